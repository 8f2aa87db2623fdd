"""A recorded host as a System: `Capture` replays a directory, `Archive` what `archive` read from a tar.

Captures are untrusted input: no path may lead outside, no special file is opened, and sizes are limited. Links are
resolved inside the capture, one part at a time; every resolved directory is cached.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from itertools import islice

from hosttune.machine.files import let_go
from hosttune.machine.replay import Recorded
from hosttune.machine.system import MAX_LINKS, SCRATCH, Folder, clean_name, clean_names, join_link, unless_absent
from hosttune.model.limits import LIMITS, check_size, file_limit

_PAGE = 8192  # larger than nearly every file of sysfs
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


class Capture(Recorded):
    """A recorded host in a directory. Links that lead outside, special files and oversized files are refused."""

    def __init__(
        self,
        root: str,
        origin: str | None = None,
        *,
        most_names: int = LIMITS["names in a folder"].most,
        most_accesses: int = LIMITS["accesses to a capture"].most,
    ) -> None:
        super().__init__(origin or root, most_names)
        self.root = os.path.realpath(root)
        self._real_dirs: dict[str, str | None] = {"/": "/"}
        self._left = most_accesses
        self._plain: set[str] = set()  # files that a listing showed to be regular
        self._read_own_facts()
        self.scratch = self.exists(SCRATCH)

    def read_bytes(self, path: str) -> bytes | None:
        """See System."""
        for _ in range(MAX_LINKS):
            directory, _, name = path.rpartition("/")
            real = self._real(directory or "/")
            if real is None:
                self._refuse_lost(path)
                return None
            inside = f"{real}/{name}" if real != "/" else f"/{name}"
            if self._unreadable:
                self._refuse_unreadable(inside)
            if inside in self._plain:
                return self._contents(inside)
            try:
                # lstat before open: to open a device can already have an effect.
                status = os.lstat(self.root + inside)
            except OSError as error:
                unless_absent(path, error)
                self._refuse_lost(inside)
                return None
            if not stat.S_ISLNK(status.st_mode):
                if stat.S_ISDIR(status.st_mode):
                    return None
                if not stat.S_ISREG(status.st_mode):
                    raise self._bad(f"{inside} is a special file", "a capture holds files, directories and links only")
                return self._contents(inside)
            path = self.link(path) or path
        raise self._bad(f"{path} is a loop of links", "capture the host again")

    def _contents(self, path: str) -> bytes | None:
        """Return the contents of a regular file of limited size."""
        try:
            fd = os.open(self.root + path, _FLAGS)
        except OSError as error:
            unless_absent(path, error)
            return None
        try:
            data = os.read(fd, _PAGE)
            if len(data) == _PAGE:
                chunks, size = [data], len(data)
                while chunk := os.read(fd, 1 << 20):
                    chunks.append(chunk)
                    size += len(chunk)
                    check_size(size, file_limit(path), f"{self.origin}: {path}")
                data = b"".join(chunks)
        except OSError as error:
            unless_absent(path, error)
            return None
        finally:
            let_go(fd)
        self._spend(1 + len(data) // _PAGE)
        self._refuse_changed(path, data)
        return data

    def _spend(self, accesses: int) -> None:
        """Count reads of the capture: links and folders can make a small capture endless."""
        self._left -= accesses
        if self._left < 0:
            why = LIMITS["accesses to a capture"].why
            raise self._bad("more names and files to read than any host has", f"see docs/limits.md: {why}")

    def list(self, path: str) -> list[str]:
        """See System."""
        real = self._real(path)
        if real is None:
            self._refuse_lost(path)
            return []
        self._refuse_unreadable(real)
        names = []
        at = real.rstrip("/")
        try:
            with os.scandir(self.root + real) as entries:
                for entry in entries:
                    name = entry.name
                    names.append(name)
                    if not len(names) % 4096:
                        self._check_names(len(names), real)
                    if entry.is_file(follow_symlinks=False):
                        self._plain.add(f"{at}/{name}")
        except OSError as error:
            unless_absent(path, error)
            return []
        self._check_names(len(names), real)
        self._spend(1 + len(names))
        return self._with_lost(real, clean_names(names))

    def folder(self, path: str) -> Folder:
        """See System."""
        if self._unreadable or self._manifest:  # `super` checks each file for refusals and losses
            return super().folder(path)
        parent, _, name = path.rpartition("/")
        above = self._real_dirs.get(parent)
        # If the parent directory is known, only the name itself could be a link, which O_NOFOLLOW refuses.
        real = f"{above}/{name}" if above and above != "/" and name not in ("", ".", "..") else self._real(path)
        if real is None:
            return Folder(self, path, ())
        try:
            fd = os.open(self.root + real, _FOLDER_FLAGS)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                return super().folder(path)
            unless_absent(path, error)
            return Folder(self, path, ())
        self._real_dirs[path] = real
        try:
            return _OpenFolder(self, real, fd)
        except BaseException:
            let_go(fd)
            raise

    def link(self, path: str) -> str | None:
        """See System."""
        directory, _, name = path.rpartition("/")
        real = self._real(directory or "/")
        if real is None:
            self._refuse_lost(path)
            return None
        try:
            target = os.readlink(f"{self.root}{real}/{name}")
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            unless_absent(path, error)
            self._refuse_lost(f"{real.rstrip('/')}/{name}")
            return None
        self._refuse_link(f"{real.rstrip('/')}/{name}")
        return clean_name(self._target(real, target, path))

    def _target(self, directory: str, target: str, path: str) -> str:
        """Return a link's target as a path inside the capture. An absolute target starts at the captured root."""
        inside = join_link(directory, target)
        if inside is None or (target.startswith("/") and not os.path.lexists(self.root + inside)):
            raise self._bad(f"the link {path} leads out of the capture ({target})", "capture the host again")
        return inside

    def exists(self, path: str) -> bool:
        """See System."""
        for _ in range(MAX_LINKS):
            directory, _, name = path.rpartition("/")
            real = self._real(directory or "/")
            if real is None:
                self._refuse_lost(path)
                return False
            target = self.link(path)
            if target is None:
                inside = f"{real.rstrip('/')}/{name}"
                self._refuse_unreadable(inside)
                is_here = self._here(inside)
                if not is_here:
                    self._refuse_lost(inside)
                return is_here
            path = target
        return False

    def _here(self, real: str) -> bool:
        return os.path.lexists(self.root + real)

    def _where(self, path: str) -> str:
        directory, _, name = path.rpartition("/")
        real = self._real(directory or "/")
        return path if real is None else f"{real.rstrip('/')}/{name}"

    def _real(self, path: str) -> str | None:
        """Return the directory with every link resolved inside the root; None if it does not exist."""
        known = self._real_dirs.get(path, "")
        if known != "":
            return known
        parent, _, name = path.rpartition("/")
        above = self._real_dirs.get(parent)
        real = self._resolve(path, 0) if above is None else self._resolve(name, 0, above.rstrip("/"))
        self._real_dirs[path] = real
        return real

    def _resolve(self, path: str, depth: int, current: str = "") -> str | None:
        """Resolve `path` below the directory `current`, itself without links on the way; None if it does not exist."""
        if depth > MAX_LINKS:
            raise self._bad(f"{path} is a loop of links", "capture the host again")
        parts = path.split("/")
        for i, part in enumerate(parts):
            if part in ("", "."):
                continue
            if part == "..":
                raise self._bad(f"{path} leads out of the capture", "capture the host again")
            step = f"{current}/{part}"
            known = self._real_dirs.get(step, "")
            if known != "":
                if known is None:
                    return None
                current = "" if known == "/" else known
                continue
            try:
                status = os.lstat(self.root + step)
            except OSError as error:
                unless_absent(step, error)
                return None
            if stat.S_ISLNK(status.st_mode):
                self._refuse_link(step)
                target = self._target(current or "/", os.readlink(self.root + step), step)
                return self._resolve("/".join((target, *parts[i + 1 :])), depth + 1)
            self._real_dirs[step] = step
            current = step
        return current or "/"


class _OpenFolder(Folder):
    """A directory of a capture, held open: its regular files are opened relative to it."""

    def __init__(self, capture: Capture, real: str, fd: int) -> None:
        with os.scandir(fd) as entries:
            self._entries = {entry.name: entry for entry in islice(entries, capture._most_names + 1)}
        names = list(self._entries)
        capture._check_names(len(names), real)
        capture._spend(1 + len(names))
        super().__init__(capture, real, names if "".join(names).isascii() else clean_names(names))
        self._fd = fd

    def read(self, name: str) -> bytes | None:
        """See Folder."""
        entry = self._entries.get(name)
        if entry is None or not entry.is_file(follow_symlinks=False):
            return super().read(name)
        try:
            fd = os.open(name, _FLAGS, dir_fd=self._fd)
            try:
                data = os.read(fd, _PAGE)
            finally:
                let_go(fd)
        except OSError as error:
            unless_absent(f"{self.path}/{name}", error)
            return None
        return data if len(data) < _PAGE else super().read(name)

    def close(self) -> None:
        """See Folder."""
        let_go(self._fd)


class Archive(Recorded):
    """A recorded host in memory: `files`, `links` and (empty) `dirs` by absolute path, as `archive` reads a tar.

    A link's target is a path inside the machine; all paths are normalized (no "..", no "//").
    """

    def __init__(
        self, files: Mapping[str, bytes], links: Mapping[str, str], origin: str, dirs: Iterable[str] = ()
    ) -> None:
        super().__init__(origin)
        self._files = files
        self._links = links
        self._dirs: dict[str, set[str]] = {"/": set()}
        for path in (*files, *links):
            self._add(path)
        for path in dirs:
            self._add(path)
            self._dirs.setdefault(path, set())
        self._real_dirs: dict[str, str] = {}
        self._read_own_facts()

    def _add(self, path: str) -> None:
        while path != "/":
            parent, _, name = path.rpartition("/")
            parent = parent or "/"
            names = self._dirs.setdefault(parent, set())
            if name in names:
                return
            names.add(name)
            path = parent

    def read_bytes(self, path: str) -> bytes | None:
        """See System."""
        data = self._files.get(path)
        if data is None or self._unreadable:
            path = self._real(path)
            self._refuse_unreadable(path)
            data = self._files.get(path)
        if data is not None and len(data) > _PAGE:
            check_size(len(data), file_limit(path), f"{self.origin}: {path}")
        if data is not None:
            self._refuse_changed(path, data)
        elif self._manifest and path not in self._dirs:
            self._refuse_lost(path)
        return data

    def list(self, path: str) -> list[str]:
        """See System."""
        real = self._real(path)
        self._refuse_unreadable(real)
        if self._manifest and real not in self._dirs:
            self._refuse_lost(real)
        names = self._dirs.get(real, ())
        self._check_names(len(names), real)
        return self._with_lost(real, sorted(names))

    def link(self, path: str) -> str | None:
        """See System."""
        if path in self._links:
            self._refuse_link(path)
            return self._links[path]
        real = self._where(path)
        target = self._links.get(real)
        if target is not None:
            self._refuse_link(real)
        if target is None and self._manifest and not self._here(real):
            self._refuse_lost(real)
        return target

    def exists(self, path: str) -> bool:
        """See System."""
        real = self._real(path)
        self._refuse_unreadable(real)
        is_here = real in self._files or real in self._dirs
        if not is_here and self._manifest:
            self._refuse_lost(real)
        return is_here

    def _here(self, real: str) -> bool:
        return real in self._files or real in self._dirs or real in self._links

    def _where(self, path: str) -> str:
        parent, _, name = path.rpartition("/")
        return f"{self._real(parent or '/').rstrip('/')}/{name}"

    def _real(self, path: str, depth: int = 0) -> str:
        known = self._real_dirs.get(path)
        if known is not None:
            return known
        if depth > MAX_LINKS:
            raise self._bad(f"{path} is a loop of links", "capture the host again")
        parent, _, name = path.rpartition("/")
        real = path if path == "/" else f"{self._real(parent or '/', depth).rstrip('/')}/{name}"
        target = self._links.get(real)
        if target is not None:
            self._refuse_link(real)
            real = self._real(target, depth + 1)
        self._real_dirs[path] = real
        return real
