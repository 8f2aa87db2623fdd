"""The only door to a machine: files, links and read-only commands, of this machine or of a captured one.

`discovery` reads through a `System` and nothing else. `Machine` is the live host; `Capture` replays a
directory and `Archive` a tar (read by `hosttune.archive`) that a user sent, which is untrusted: no path in it
may lead out of it, and its size is bounded. Paths are absolute inside the machine that is looked at
("/sys/bus/pci/devices").

What a capture holds beside the machine's own files lies in `/.hosttune`: `commands/NAME` the answers of
read-only commands; `unreadable` one line "PATH<tab>REASON" for each file that the kernel refused; `capture`
when hosttune made it, so that what is missing was really absent; `scratch` marks a scratch root.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from hosttune.errors import BadInput, CommandFailed, Refused, Unreadable

if TYPE_CHECKING:
    import subprocess

MAX_FILE_BYTES = 64 << 20
MAX_LINKS = 40  # as the kernel's own limit (MAXSYMLINKS)
COMMANDS = "/.hosttune/commands/"
UNREADABLE = "/.hosttune/unreadable"
COMPLETE = "/.hosttune/capture"
SCRATCH = "/.hosttune/scratch"
_CHUNK = 65536
_PAGE = 8192  # more than nearly every file of sysfs holds
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
# Not there, or a file whose driver says that it has no such fact (EINVAL: the speed of a port that is down).
_ABSENT = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENODEV,
        errno.ENXIO,
        errno.ESRCH,  # /proc of a process that has ended
        errno.EISDIR,
        errno.EINVAL,
        errno.ENODATA,
        errno.EOPNOTSUPP,
    )
)


class System(ABC):
    """What every reader is given. Subclasses say where the bytes come from.

    `captured` is True for anything but this machine as it runs: what would write refuses. `complete` is True
    where a missing file means that the machine has none (live, or captured by hosttune), not merely that
    nobody recorded it. `scratch` marks a root that stands in for a machine.
    """

    captured = True
    complete = False
    scratch = False
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
    complete = True
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
            chunks = [chunk]
            size = len(chunk)
            while chunk and (len(chunk) % 4096 == 0 or not path.startswith("/sys/")):
                chunk = os.read(fd, _CHUNK)
                chunks.append(chunk)
                size += len(chunk)
                if size > MAX_FILE_BYTES:
                    raise Unreadable(path, f"larger than {MAX_FILE_BYTES >> 20} MiB")
        except OSError as error:
            _unless_absent(path, error)
            return None
        finally:
            os.close(fd)
        return b"".join(chunks)

    def list(self, path: str) -> list[str]:
        """See System."""
        try:
            return _clean(os.listdir(path))
        except OSError as error:
            _unless_absent(path, error)
            return []

    def link(self, path: str) -> str | None:
        """See System. Of a link on a path through links, the target is counted from the real directory."""
        try:
            target = os.readlink(path)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            _unless_absent(path, error)
            return None
        directory = os.path.dirname(path)
        if target.startswith("../"):
            directory = os.path.realpath(directory)
        return _printable(os.path.normpath(os.path.join(directory, target)))

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
            _abandon(child)
            raise CommandFailed(argv, f"no answer within {timeout:g} s") from error
        output = out.decode("utf-8", "replace")
        if child.returncode != 0:
            raise CommandFailed(argv, f"exit status {child.returncode}", err.decode("utf-8", "replace") or output)
        return output


class _Recorded(System):
    """What captures have in common: facts about the recording itself."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self._unreadable: Mapping[str, str] = {}

    def _settle(self) -> None:
        """Read the capture's own facts; called once the contents can be read."""
        self.complete = self.exists(COMPLETE)
        lines = (self.read(UNREADABLE) or "").splitlines()
        self._unreadable = {path: reason for path, _, reason in (line.partition("\t") for line in lines if line)}

    def _refuse_unreadable(self, path: str) -> None:
        reason = self._unreadable.get(path)
        if reason is not None:
            raise Unreadable(path, reason or "recorded as unreadable")

    def _bad(self, what: str, hint: str) -> BadInput:
        return BadInput(what, where=self.origin, hint=hint)


class Capture(_Recorded):
    """A recorded host in a directory. No link is followed out of it; special files and oversized files are refused."""

    def __init__(self, root: str, origin: str | None = None) -> None:
        super().__init__(origin or root)
        self.root = os.path.realpath(root)
        self._real_dirs: dict[str, str | None] = {"/": "/"}
        self._plain: set[str] = set()  # files that a listing showed to be regular ones
        self._settle()
        self.scratch = self.exists(SCRATCH)

    def read_bytes(self, path: str) -> bytes | None:
        """See System."""
        for _ in range(MAX_LINKS):
            directory, _, name = path.rpartition("/")
            real = self._real(directory or "/")
            if real is None:
                return None
            inside = f"{real}/{name}" if real != "/" else f"/{name}"
            if self._unreadable:
                self._refuse_unreadable(inside)
            if inside in self._plain:
                return self._contents(inside)
            try:
                # Asked before it is opened: to open a device can already do something.
                status = os.lstat(self.root + inside)
            except OSError as error:
                _unless_absent(path, error)
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
        """The contents of a regular file, which must be of bounded size."""
        try:
            fd = os.open(self.root + path, _FLAGS)
        except OSError as error:
            _unless_absent(path, error)
            return None
        try:
            data = os.read(fd, _PAGE)
            if len(data) == _PAGE:
                data = self._rest(path, fd, data)
        except OSError as error:
            _unless_absent(path, error)
            return None
        finally:
            os.close(fd)
        return data

    def _rest(self, path: str, fd: int, data: bytes) -> bytes:
        """The whole of a file that begins with `data` and is longer."""
        chunks, size = [data], len(data)
        while chunk := os.read(fd, 1 << 20):
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_FILE_BYTES:
                raise self._bad(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB", "no file of a host is that large")
        return b"".join(chunks)

    def list(self, path: str) -> list[str]:
        """See System."""
        real = self._real(path)
        if real is None:
            return []
        self._refuse_unreadable(real)
        names = []
        at = real.rstrip("/")
        try:
            with os.scandir(self.root + real) as entries:
                for entry in entries:
                    name = entry.name
                    names.append(name)
                    if entry.is_file(follow_symlinks=False):
                        self._plain.add(f"{at}/{name}")
        except OSError as error:
            _unless_absent(path, error)
            return []
        return _clean(names)

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
        return _printable(self._target(real, target, path))

    def _target(self, directory: str, target: str, path: str) -> str:
        """A link's target as a path inside the capture. An absolute target means the captured root."""
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
        if depth > MAX_LINKS:
            raise self._bad(f"{path} is a loop of links", "capture the host again")
        current = ""
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
                if error.errno not in _ABSENT:
                    raise Unreadable(step, error.strerror or str(error)) from error
                return None
            if stat.S_ISLNK(status.st_mode):
                target = self._target(current or "/", os.readlink(self.root + step), step)
                return self._resolve("/".join((target, *parts[i + 1 :])), depth + 1)
            self._real_dirs[step] = step
            current = step
        return current or "/"


class Archive(_Recorded):
    """A recorded host in memory: `files`, `links` and (empty) `dirs` by absolute path, as `archive` reads a tar.

    A link's target is given as a path inside the machine; all paths are normal (no "..", no "//").
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
        self._settle()

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
        return data

    def list(self, path: str) -> list[str]:
        """See System."""
        real = self._real(path)
        self._refuse_unreadable(real)
        return sorted(self._dirs.get(real, ()))

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
        if depth > MAX_LINKS:
            raise self._bad(f"{path} is a loop of links", "capture the host again")
        parent, _, name = path.rpartition("/")
        real = path if path == "/" else f"{self._real(parent or '/', depth).rstrip('/')}/{name}"
        target = self._links.get(real)
        if target is not None:
            real = self._real(target, depth + 1)
        self._real_dirs[path] = real
        return real


def _abandon(child: subprocess.Popen[bytes]) -> None:
    """Kill a command and all it started, without waiting: a driver's tool can hang where no signal reaches it."""
    import signal
    import subprocess

    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    try:
        child.wait(timeout=1)
    except subprocess.TimeoutExpired:
        child.returncode = -signal.SIGKILL  # init reaps it when the kernel lets go; Popen must not warn


def join_link(directory: str, target: str) -> str | None:
    """Where a link in `directory` leads, as a path inside the machine; None when ".." leads above its root."""
    if target.startswith("../") and "/." not in target[target.rfind("../") + 2 :] and directory != "/":
        # The common form of sysfs, "../../bus/pci/drivers/x": so many steps up, then down.
        up = target.count("../")
        if target.startswith("../" * up) and "//" not in target and directory.count("/") >= up:
            return f"{directory.rsplit('/', up)[0]}/{target[3 * up :]}".rstrip("/") or "/"
    parts: list[str] = [] if target.startswith("/") else [part for part in directory.split("/") if part]
    for part in target.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def _printable(name: str) -> str:
    """A name that every document can carry: bytes that are no UTF-8 become U+FFFD (such a file cannot be opened)."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "replace")


def _clean(names: list[str]) -> list[str]:
    names.sort()
    return names if all(map(str.isascii, names)) else sorted(map(_printable, names))


def _unless_absent(path: str, error: OSError) -> None:
    """Return for a file that is not there; anything else the kernel says is a fact that must not be lost."""
    if error.errno not in _ABSENT:
        raise Unreadable(path, error.strerror or str(error)) from error
