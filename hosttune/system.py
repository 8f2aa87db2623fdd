"""The only door to a machine: files, links and read-only commands, of this machine or of a captured one.

`discovery` reads through a `System` and nothing else. `Machine` is the live host; `Capture` replays a
directory or a tar archive that a user sent, which is untrusted: no path in it may lead out of it, and its
size is bounded. Paths are absolute inside the machine that is looked at ("/sys/bus/pci/devices").
"""

from __future__ import annotations

import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from hosttune.errors import BadInput, CommandFailed, Refused, Unreadable

MAX_FILE_BYTES = 64 << 20
COMMANDS = "/.hosttune/commands/"
_CHUNK = 65536
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
# Not there, or a file whose driver says that it has no such fact (EINVAL: the speed of a port that is down).
_ABSENT = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENODEV,
        errno.ENXIO,
        errno.EISDIR,
        errno.EINVAL,
        errno.ENODATA,
        errno.EOPNOTSUPP,
    )
)


class System(ABC):
    """What every reader is given. Subclasses say where the bytes come from.

    `captured` is True for anything but this machine as it runs: what would write refuses.
    """

    captured = True
    origin = "?"

    @abstractmethod
    def read_bytes(self, path: str) -> bytes | None:
        """The file's bytes; None when it does not exist. Raises Unreadable (EACCES, EIO…), BadInput."""

    @abstractmethod
    def list(self, path: str) -> list[str]:
        """Sorted names in a directory; empty when there is none. Raises Unreadable."""

    @abstractmethod
    def link(self, path: str) -> str | None:
        """Where a symbolic link leads, as a path inside the machine; None when it is no link."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether something is there (a link that leads nowhere is not)."""

    def read(self, path: str) -> str | None:
        """The file as text without the trailing newline; None when it does not exist. Raises Unreadable."""
        data = self.read_bytes(path)
        return None if data is None else data.decode("utf-8", "replace").rstrip("\n")

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        """What a read-only command or library call answers, as text; None when it cannot be asked.

        A captured host answers with what was recorded as `.hosttune/commands/NAME`; only a live one calls `live`.
        """
        return self.read(COMMANDS + name)

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        """Run a read-only command on the live machine, return its stdout. Raises CommandFailed; a capture refuses."""
        raise Refused(
            f"{argv[0]} cannot run on a captured host", where=self.origin, hint="run hosttune on the host itself"
        )

    def write(self, path: str, text: str) -> None:
        """Write a file of the live machine. A capture refuses."""
        raise Refused(
            f"{path} cannot be written on a captured host", where=self.origin, hint="run hosttune on the host itself"
        )


class Machine(System):
    """This machine, live."""

    captured = False
    origin = "this machine"

    def read_bytes(self, path: str) -> bytes | None:
        """See System."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            _unless_absent(path, error)
            return None
        try:
            # A kernel file ends at the first short chunk only when that chunk is no whole page: seq files hand
            # out page by page.
            chunk = os.read(fd, _CHUNK)
            data = chunk
            while chunk and (len(chunk) % 4096 == 0 or not path.startswith("/sys/")):
                chunk = os.read(fd, _CHUNK)
                data += chunk
                if len(data) > MAX_FILE_BYTES:
                    raise Unreadable(path, f"larger than {MAX_FILE_BYTES >> 20} MiB")
        except OSError as error:
            _unless_absent(path, error)
            return None
        finally:
            os.close(fd)
        return data

    def list(self, path: str) -> list[str]:
        """See System."""
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            _unless_absent(path, error)
            return []

    def link(self, path: str) -> str | None:
        """See System."""
        try:
            target = os.readlink(path)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            _unless_absent(path, error)
            return None
        return os.path.normpath(os.path.join(os.path.dirname(path), target))

    def exists(self, path: str) -> bool:
        """See System."""
        return os.path.exists(path)

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        """See System."""
        return live()

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        """See System. No shell; the C locale; every other variable passes through untouched."""
        import subprocess

        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise CommandFailed(argv, "not installed") from error
        except OSError as error:
            raise CommandFailed(argv, error.strerror or str(error)) from error
        try:
            out, err = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            # A driver's tool can hang in the kernel where no signal reaches it: kill, and do not wait for it.
            child.kill()
            raise CommandFailed(argv, f"no answer within {timeout:g} s") from error
        output = out.decode("utf-8", "replace")
        if child.returncode != 0:
            raise CommandFailed(argv, f"exit status {child.returncode}", err.decode("utf-8", "replace") or output)
        return output


class Capture(System):
    """A recorded host in a directory. No link is followed out of it; special files and oversized files are refused."""

    def __init__(self, root: str, origin: str | None = None) -> None:
        self.root = os.path.realpath(root)
        self.origin = origin or root
        self._real_dirs: dict[str, str | None] = {"/": "/"}

    def read_bytes(self, path: str) -> bytes | None:
        """See System."""
        for _ in range(40):
            directory, _, name = path.rpartition("/")
            real = self._real(directory or "/")
            if real is None:
                return None
            try:
                fd = os.open(f"{self.root}{real}/{name}", _FLAGS)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    _unless_absent(path, error)
                    return None
            else:
                return self._contents(path, fd)
            target = self.link(path)  # NOFOLLOW: the last part is a link, go on inside the root
            if target is None:
                return None
            path = target
        self._reject(f"{path} is a loop of links", "capture the host again")
        return None

    def _contents(self, path: str, fd: int) -> bytes | None:
        """Read and close an opened file of known, bounded size."""
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                if stat.S_ISDIR(status.st_mode):
                    return None
                self._reject(f"{path} is a special file", "capture regular files only")
            if status.st_size > MAX_FILE_BYTES:
                self._reject(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB", "no file of a host is that large")
            data = os.read(fd, max(status.st_size, 1))
            while len(data) < status.st_size and (chunk := os.read(fd, status.st_size - len(data))):
                data += chunk
        except OSError as error:
            _unless_absent(path, error)
            return None
        finally:
            os.close(fd)
        return data

    def list(self, path: str) -> list[str]:
        """See System."""
        real = self._real(path)
        if real is None:
            return []
        try:
            return sorted(os.listdir(self.root + real))
        except OSError as error:
            _unless_absent(path, error)
            return []

    def link(self, path: str) -> str | None:
        """See System."""
        directory, _, name = path.rpartition("/")
        real = self._real(directory or "/")
        if real is None:
            return None
        try:
            target = os.readlink(f"{self.root}{real}/{name}")
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            _unless_absent(path, error)
            return None
        return self._join(real, target, path)

    def exists(self, path: str) -> bool:
        """See System."""
        for _ in range(40):
            directory, _, name = path.rpartition("/")
            real = self._real(directory or "/")
            if real is None:
                return False
            target = self.link(path)
            if target is None:
                return os.path.lexists(f"{self.root}{real}/{name}")
            path = target
        return False

    def _real(self, path: str) -> str | None:
        """The directory with every link on the way resolved inside the root; None when it does not exist."""
        known = self._real_dirs.get(path, "")
        if known != "":
            return known
        real = self._resolve(path, 0)
        self._real_dirs[path] = real
        return real

    def _resolve(self, path: str, depth: int) -> str | None:
        if depth > 40:
            self._reject(f"{path} is a loop of links", "capture the host again")
        current = ""
        parts = path.split("/")
        for i, part in enumerate(parts):
            if part in ("", "."):
                continue
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
                if error.errno not in _ABSENT:
                    raise Unreadable(step, error.strerror or str(error)) from error
                return None
            if stat.S_ISLNK(status.st_mode):
                target = self._join(current or "/", os.readlink(self.root + step), step)
                return self._resolve("/".join((target, *parts[i + 1 :])), depth + 1)
            self._real_dirs[step] = step
            current = step
        return current or "/"

    def _join(self, directory: str, target: str, path: str) -> str:
        """A link's target as a path inside the capture. An absolute target means the captured root."""
        parts: list[str] = [] if target.startswith("/") else [part for part in directory.split("/") if part]
        for part in target.split("/"):
            if part == "..":
                if not parts:
                    self._reject(f"the link {path} leads out of the capture ({target})", "capture the host again")
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        return "/" + "/".join(parts)

    def _reject(self, what: str, hint: str) -> None:
        raise BadInput(what, where=self.origin, hint=hint)


class Archive(System):
    """A recorded host in memory: `files` and `links` by absolute path, as `capture.load` reads them from a tar."""

    def __init__(self, files: Mapping[str, bytes], links: Mapping[str, str], origin: str) -> None:
        self.origin = origin
        self._files = files
        self._links = links
        self._dirs: dict[str, set[str]] = {"/": set()}
        for path in (*files, *links):
            self._add(path)
        self._real_dirs: dict[str, str] = {}

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
        return data if data is not None else self._files.get(self._real(path))

    def list(self, path: str) -> list[str]:
        """See System."""
        return sorted(self._dirs.get(path) or self._dirs.get(self._real(path)) or ())

    def link(self, path: str) -> str | None:
        """See System."""
        if path in self._links:
            return self._links[path]
        parent, _, name = path.rpartition("/")
        return self._links.get(f"{self._real(parent or '/').rstrip('/')}/{name}")

    def exists(self, path: str) -> bool:
        """See System."""
        real = self._real(path)
        return real in self._files or real in self._dirs

    def _real(self, path: str, depth: int = 0) -> str:
        known = self._real_dirs.get(path)
        if known is not None:
            return known
        if depth > 40:
            raise BadInput(f"{path} is a loop of links", where=self.origin, hint="capture the host again")
        parent, _, name = path.rpartition("/")
        real = path if path == "/" else f"{self._real(parent or '/', depth).rstrip('/')}/{name}"
        target = self._links.get(real)
        if target is not None:
            real = self._real(target, depth + 1)
        self._real_dirs[path] = real
        return real


def _unless_absent(path: str, error: OSError) -> None:
    """Return for a file that is not there; anything else the kernel says is a fact that must not be lost."""
    if error.errno not in _ABSENT:
        raise Unreadable(path, error.strerror or str(error)) from error
