"""Reads a captured host in a tar archive into memory.

Captures are untrusted input: nothing is written, no name leads outside, only files, directories and links are accepted,
and size is limited while reading, so that an archive bomb is stopped early. Every error is one BadInput that names the
archive and the member.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import time
import zlib
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import IO, Protocol, Self

from hosttune.errors import BadInput
from hosttune.machine.capture import Archive
from hosttune.machine.replay import OWN, TOP
from hosttune.machine.system import join_link
from hosttune.model.limits import LIMITS as TABLE
from hosttune.model.values import Value, format_size

_MAX_HEADER_BYTES = 1 << 20  # of one member: names and extended headers; real ones are below 10 KiB
_MAX_NAME_BYTES = 4096  # PATH_MAX
_MAX_DEPTH = 128
_SETTLED_NS = 1_000_000_000  # a file that is written twice within a tick of the clock has the same times
_BLOCK = 512
_SLACK = 64 << 10  # tarfile reads this far ahead


class Limits(Value, frozen=True, kw_only=True):
    """Limits of an archive: unpacked bytes in total and in one file, and the number of members."""

    total_bytes: int = TABLE["capture, unpacked"].most
    file_bytes: int = TABLE["/proc/interrupts"].most  # the largest of all; each kind has its own limit when read
    members: int = TABLE["members of a capture"].most


LIMITS = Limits()


def open_archive(place: str, origin: str, limits: Limits = LIMITS) -> Archive:
    """Open the tar archive at `place` (plain, gzip, bzip2 or xz, recognized by its first bytes).

    A command asks for its capture several times: it is read once. Raises BadInput and OSError.
    """
    status = os.stat(place)
    file = (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
    settled = time.time_ns() - status.st_ctime_ns > _SETTLED_NS
    return (_archive_of if settled else _archive_of.__wrapped__)(place, origin, limits, file)


@lru_cache(maxsize=1)
def _archive_of(place: str, origin: str, limits: Limits, file: tuple[int, ...]) -> Archive:
    with open(place, "rb") as stream:
        return _load(stream, origin, limits)


# --- tar -----------------------------------------------------------------------------------------------------


class _TarMember(tarfile.TarInfo):
    """A member of a tar. Of a plain header only what a capture keeps is read: the rest takes most of the time."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """See tarfile.TarInfo."""
        kind, size, checksum = bytes(buf[156:157]), buf[124:135], buf[148:154]
        plain = kind in _PLAIN and buf[257:262] == b"ustar" and buf[345:346] == b"\0" and len(buf) == _BLOCK
        if not (plain and size.isdigit() and checksum.isdigit()):
            return super().frombuf(buf, encoding, errors)
        if sum(buf) - sum(buf[148:156]) + 8 * ord(" ") != int(checksum, 8):
            return super().frombuf(buf, encoding, errors)
        member = cls(buf[:100].partition(b"\0")[0].decode(encoding, errors))
        member.type, member.size = kind, int(size, 8)
        member.linkname = buf[157:257].partition(b"\0")[0].decode(encoding, errors)
        if kind == tarfile.DIRTYPE:
            member.name = member.name.rstrip("/")
        return member


_PLAIN = (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE)


class _Contents:
    """The contents of an archive read so far, by absolute path."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}  # as in the archive, relative to the link's directory
        self.dirs: set[str] = set()
        self.taken_bytes = 0


def _load(file: IO[bytes], origin: str, limits: Limits) -> Archive:
    """Read a whole archive. Raises BadInput."""
    contents = _Contents()
    stream = _Bounded(unpacked(file), origin, limits)
    try:
        for tar, member in _members(stream, origin):
            stream.member = member.name
            _take(contents, tar, member, stream, origin)
        stream.drain()  # the checksums are at the end
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError, OverflowError) as error:
        where = f"{origin}: {stream.member}" if stream.member else origin
        what = "not a tar archive, or a truncated or corrupt one"
        raise BadInput(f"{what} ({error})", where=where, hint="copy or capture it again") from error
    return _archive(contents, origin)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def unpacked(file: IO[bytes]) -> _Readable:
    """Return the decompressed stream of a file; its first bytes tell the compression."""
    magic = file.read(6)
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if magic.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMAFile(file)
    return file


class _Bounded(io.RawIOBase):
    """A stream that counts bytes and refuses to return more than is allowed for this member or in total."""

    def __init__(self, source: _Readable, origin: str, limits: Limits) -> None:
        super().__init__()
        self._source = source
        self._origin = origin
        self.limits = limits
        self._count = 0
        self._limit = 0
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=8)
        self.member = ""

    def allow(self, size: int) -> None:
        """Allow the next `size` bytes."""
        self._limit = self._count + size + _SLACK

    def read(self, size: int = 65536, /) -> bytes:
        """Return at most `size` bytes. Raises BadInput past a limit."""
        data = self._source.read(size)
        self._recent.append((self._count, data))
        self._count += len(data)
        # Each member also has a header, a long name's block and padding, one block each; they are read but not kept.
        if self._count > self.limits.total_bytes + 3 * _BLOCK * self.limits.members:
            raise _too_much(self.limits, self._place())
        if self._count > self._limit:
            raise BadInput("a header without end", where=self._place(), hint=_BOMB_HINT)
        return data

    def block(self, offset: int) -> bytes:
        """Return the tar block at an offset that was read recently; shorter if the stream ends before."""
        data_of_block = b""
        for start, data in self._recent:
            at = offset + len(data_of_block) - start
            if 0 <= at < len(data) and len(data_of_block) < _BLOCK:
                data_of_block += data[at : at + _BLOCK - len(data_of_block)]
        return data_of_block

    def drain(self) -> None:
        """Read to the end, so that truncation and wrong checksums are detected."""
        while True:
            self.allow(_MAX_HEADER_BYTES)
            if not self.read():
                return

    def _place(self) -> str:
        return f"{self._origin}: after {self.member}" if self.member else self._origin


def _too_much(limits: Limits, where: str) -> BadInput:
    return BadInput(f"larger than {format_size(limits.total_bytes)} when unpacked", where=where, hint=_BOMB_HINT)


_BOMB_HINT = "no real capture is like that; do not trust this archive"


def _members(stream: _Bounded, origin: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield each member in turn.

    tarfile's own list of members is emptied, because it would keep every header in memory.
    """
    stream.allow(_MAX_HEADER_BYTES)
    with tarfile.open(fileobj=stream, mode="r|", errors="replace", tarinfo=_TarMember) as tar:
        count = 0
        while True:
            stream.allow(_MAX_HEADER_BYTES)
            member = tar.next()
            if member is None:
                # tarfile reports no error for a damaged or missing header; only a block of zeros is a valid end.
                if stream.block(tar.offset) != bytes(_BLOCK):
                    raise tarfile.ReadError("no end of archive")
                return
            count += 1
            if count > stream.limits.members:
                raise BadInput(f"more than {stream.limits.members} members", where=origin, hint=_BOMB_HINT)
            yield tar, member
            tar.members = []  # type: ignore[attr-defined]  # an attribute that every Python has, but typeshed lacks


def _take(contents: _Contents, tar: tarfile.TarFile, member: tarfile.TarInfo, stream: _Bounded, origin: str) -> None:
    """Add one member to the contents. Raises BadInput for what a capture must not contain."""
    where = f"{origin}: {member.name}"
    path = _inside(member.name, where)
    if member.isdir():
        contents.dirs.add(path)
    elif member.issym():
        if contents.links.get(path, member.linkname) != member.linkname:
            raise BadInput("a link that is there twice, with another target", where=where, hint=_HOSTILE)
        contents.links[path] = member.linkname
    elif member.islnk():
        raise BadInput(
            f"a hard link to {member.linkname[:80]}",
            where=where,
            hint="a capture has no hard links: pack a directory with tar --hard-dereference",
        )
    elif member.isreg():
        contents.taken_bytes += member.size
        if member.size > stream.limits.file_bytes:
            raise BadInput(f"a file larger than {format_size(stream.limits.file_bytes)}", where=where, hint=_BOMB_HINT)
        if contents.taken_bytes > stream.limits.total_bytes:
            raise _too_much(stream.limits, where)
        stream.allow(member.size + _MAX_HEADER_BYTES)
        # What a file holds. tarfile's file objects are made for more than to be read once.
        file = tar.extractfile(member) if member.issparse() else tar.fileobj
        assert file is not None
        if file is tar.fileobj:
            file.seek(member.offset_data)
        read = file.read(member.size)
        if len(read) != member.size:
            raise tarfile.ReadError("unexpected end of data")
        if contents.files.get(path, read) != read:
            raise BadInput("a file that is there twice, with other contents", where=where, hint=_HOSTILE)
        contents.files[path] = read
    else:
        raise BadInput("neither file, directory nor link", where=where, hint=_HOSTILE)


_HOSTILE = "a capture holds files, directories and links inside it only; do not trust this archive"


def _inside(name: str, where: str) -> str:
    """Return a member's name as an absolute path of the captured machine. Raises BadInput if it would lead outside."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/"):
        raise BadInput("an absolute name", where=where, hint=_HOSTILE)
    if ".." in parts:
        raise BadInput("a name that leads upwards", where=where, hint=_HOSTILE)
    if len(name) > _MAX_NAME_BYTES or len(parts) > _MAX_DEPTH:
        raise BadInput("a name that is too long", where=where[:200], hint=_BOMB_HINT)
    return "/" + "/".join(parts)


def _archive(contents: _Contents, origin: str) -> Archive:
    """Return the contents as a System, without the wrapper directory; each link is checked to stay inside."""
    prefix = _wrapper(contents)
    strip = len(prefix)

    def inside(path: str) -> bool:
        return path.startswith(f"{prefix}/")

    files = {path[strip:]: data for path, data in contents.files.items() if inside(path)}
    dirs = {path[strip:] for path in contents.dirs if inside(path)}
    links = {path[strip:]: target for path, target in contents.links.items() if inside(path)}
    parents = {path.rpartition("/")[0] for path in (*files, *links)} | dirs
    if both := files.keys() & parents:
        path = min(both)
        raise BadInput("a file that is a directory, too", where=f"{origin}: {path[1:]}", hint=_HOSTILE)
    resolved: dict[str, str] = {}
    for path, target in links.items():
        end = join_link(path.rpartition("/")[0], target)
        outside = end is None or (target.startswith("/") and not (end in files or end in parents or end in links))
        if end is None or outside:
            raise BadInput(f"a link that points outside ({target})", where=f"{origin}: {path[1:]}", hint=_HOSTILE)
        if path == OWN or path.startswith(f"{OWN}/"):
            raise BadInput("a link among hosttune's own files", where=f"{origin}: {path[1:]}", hint=_HOSTILE)
        if path in files or path in parents:
            raise BadInput("a link that is a file or directory, too", where=f"{origin}: {path[1:]}", hint=_HOSTILE)
        resolved[path] = end
    return Archive(files, resolved, origin, dirs)


def _wrapper(contents: _Contents) -> str:
    """Return the path of the one directory that contains the host; "" if the host is at the top."""
    tops: dict[str, set[str]] = {}
    for path in (*contents.files, *contents.links, *contents.dirs):
        parts = path.split("/", 3)
        if len(parts) > 1 and parts[1]:
            tops.setdefault(parts[1], set()).update(parts[2:3])
    if any(name in tops for name in TOP):
        return ""
    holding = [name for name, inner in tops.items() if "sys" in inner or "proc" in inner]
    return f"/{holding[0]}" if len(holding) == 1 else ""
