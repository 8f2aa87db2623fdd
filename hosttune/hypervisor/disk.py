"""A guest's disk, made as a copy of an image where there is none. It is never written again, and never deleted."""

from __future__ import annotations

import os
import stat
from typing import Any, ClassVar, Literal

from hosttune.domain.planned import disk_format
from hosttune.errors import BadInput, CommandFailed, Refused
from hosttune.machine.files import read_start
from hosttune.machine.system import System
from hosttune.model.jsontext import plain_json
from hosttune.model.login import is_file_path
from hosttune.model.values import Value
from hosttune.settings.setting import FILE, KEEP_STAGE, Setting, Targets, refuse

ABSENT, THERE = "absent", "there"
_COPY_SECONDS = 3600.0  # an image of 100 GiB at 30 MB/s
_MODE = 0o600  # until libvirt gives it to QEMU: a tenant's data


class CopiedDisk(Setting):
    """Whether a guest's disk is there. Target: its path. Value: "there" or "absent"; wanted: the path of its image.

    A disk that is there is as good as any: it may have a guest's data. So nothing takes it away, no rollback either.
    """

    kind: ClassVar[str] = "guest-disk"
    scope: ClassVar[str] = FILE
    stage: ClassVar[int] = KEEP_STAGE
    undone_later: ClassVar[bool] = False
    targets = Targets(is_file_path, "not the path of a file")

    def check(self, value: Any) -> None:
        """See Setting."""
        if not is_file_path(value) or value == self.target:
            raise refuse(self.kind, self.target, f"{value!r} is not the path of an image", "plan again")

    def read(self, system: System) -> str:
        """See Setting."""
        return THERE if system.exists(self.target) else ABSENT

    def agrees(self, live: Any, want: Any) -> bool:
        """See Setting."""
        return bool(live in (THERE, want))

    def write(self, system: System, value: Any) -> None:
        """See Setting. The copy gets its name when it is whole and on the medium."""
        image = image_here(system, value)
        copy = _copy_of(self.target)
        system.replace(copy, b"", _MODE)
        formats = ("-f", image.format, "-O", disk_format(self.target))
        # -t: qemu-img ignores flushes of what it writes otherwise (qemu-img(1), "unsafe")
        system.change(("qemu-img", "convert", "-t", "writeback", *formats, image.path, copy), timeout=_COPY_SECONDS)
        system.change(("sync", "--", copy), timeout=_COPY_SECONDS)
        system.change(("mv", "-n", "-T", "--", copy, self.target))
        if system.exists(copy):  # another disk has come meanwhile
            system.remove(copy)

    def places(self, system: System) -> tuple[str, ...]:
        """See Setting."""
        return (_copy_of(self.target), self.target)


def _copy_of(path: str) -> str:
    return f"{path}.hosttune-new"


def image_here(system: System, path: str) -> Image:
    """Return an image of the machine. Raises BadInput. On a scratch root it must only be there, a capture has none."""
    if not system.captured:
        return read_image(system, path)
    if system.scratch and not system.exists(path):
        raise BadInput("not an image for a guest: there is no such file", where=path, hint="give the path of a file")
    return Image(path=path, format="qcow2" if path.endswith(".qcow2") else "raw")


# --- the image -------------------------------------------------------------------------------------------------
# The operator's image for a guest: a qcow2 or raw disk that names no other file.
# An image is untrusted: a qcow2 can name any file of the host as its backing or data file. So its header is read here
# before QEMU's tools open it, and `qemu-img` gets the format and bounds of memory and time (as OpenStack Nova does:
# nova/privsep/qemu.py, QEMU_IMG_LIMITS: 30 s of CPU, 1 GiB). Source of the header: QEMU docs/interop/qcow2.txt.

_MAGIC, _HEADER = b"QFI\xfb", 104
_BACKING, _CRYPT, _INCOMPATIBLE = slice(8, 16), slice(32, 36), slice(72, 80)
_KNOWN_FEATURES = 1 << 0 | 1 << 3 | 1 << 4  # dirty refcounts, compression type, extended L2 entries
_DATA_FILE, _CORRUPT = 1 << 2, 1 << 1
_BOUNDS = ("prlimit", "--as=1073741824", "--cpu=30", "--")
_SECONDS = 60.0
_MOST_BYTES = 16 << 40
_SECTOR = 512


class Image(Value, frozen=True, kw_only=True):
    """An image: its real path, its format, and the size of its disk in bytes; None: not asked (a captured host)."""

    path: str
    format: Literal["qcow2", "raw"]
    virtual_bytes: int | None = None


def read_image(system: System, path: str) -> Image:
    """Return the image at a path of this machine. Raises BadInput, without opening any other file."""
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
        start = read_start(real, _HEADER) if stat.S_ISREG(status.st_mode) else b""
        sector = read_start(real, _SECTOR)
    except OSError as error:
        raise _refused(path, f"cannot read it: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise _refused(path, "not a regular file")
    if not real.isprintable():
        raise _refused(path, "its path has characters that XML cannot hold")
    if start[:4] == _MAGIC:
        _check_qcow2(path, start)
        image = Image(path=real, format="qcow2")
    elif len(sector) == _SECTOR and sector[510:] == b"\x55\xaa" and status.st_size % _SECTOR == 0:
        image = Image(path=real, format="raw")
    else:
        raise _refused(path, "neither a qcow2 nor a raw disk with a partition table or boot sector")
    return Image(path=real, format=image.format, virtual_bytes=_size(system, image))


def _check_qcow2(path: str, header: bytes) -> None:
    version = int.from_bytes(header[4:8], "big")
    if version not in (2, 3) or len(header) < (_HEADER if version == 3 else 72):
        raise _refused(path, f"a qcow2 of version {version}, or cut short")
    features = int.from_bytes(header[_INCOMPATIBLE], "big") if version == 3 else 0
    if int.from_bytes(header[_BACKING], "big"):
        raise _refused(path, "it has a backing file, which would be read too")
    if features & _DATA_FILE:
        raise _refused(path, "its data is in another file, which would be read too")
    if features & _CORRUPT or features & ~_KNOWN_FEATURES:
        raise _refused(path, f"it is marked corrupt, or has features that are not known (0x{features:x})")
    if int.from_bytes(header[_CRYPT], "big"):
        raise _refused(path, "it is encrypted")


def _size(system: System, image: Image) -> int | None:
    """Return the size of the disk, as qemu-img says; None if it cannot be asked here."""
    argv = (*_BOUNDS, "qemu-img", "info", "--output=json", "-f", image.format, image.path)
    try:
        told = plain_json(system.run(argv, timeout=_SECONDS), where="qemu-img")
    except Refused:  # a captured host
        return None
    except CommandFailed as error:
        why = f"qemu-img does not read it: {error.reason}: {error.output.strip()[-300:]}"
        raise _refused(image.path, why) from error
    except BadInput as error:
        raise _refused(image.path, "what qemu-img says of it cannot be read") from error
    size = told.get("virtual-size") if isinstance(told, dict) else None
    if not isinstance(size, int) or not 0 < size <= _MOST_BYTES or told.get("format") != image.format:
        raise _refused(image.path, f"qemu-img does not take it for a {image.format} of at most 16 TiB")
    if told.get("backing-filename") is not None or told.get("encrypted"):
        raise _refused(image.path, "it has a backing file, or is encrypted")
    return size


def _refused(path: str, why: str) -> BadInput:
    return BadInput(
        f"not an image for a guest: {why}",
        where=path,
        hint="give a qcow2 without a backing file (qemu-img convert -O qcow2 OLD NEW), or a raw disk",
    )
