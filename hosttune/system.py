"""The only door to a machine: files, links and read-only commands, of this machine or of a captured one.

`discovery` reads through a `System` and nothing else. `hosttune.machine` is the live host; `hosttune.recorded` holds
the captured ones. Paths are absolute inside the machine that is looked at ("/sys/bus/pci/devices").

What a capture holds beside the machine's own files lies in `/.hosttune`: `commands/NAME` the answers of
read-only commands; `unreadable` one line "PATH<tab>REASON" for each file that the kernel refused; `capture`
when hosttune made it, with what was there and what was not (see `hosttune.manifest`); `scratch` marks a scratch root.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from hosttune.descriptors import let_go as let_go
from hosttune.errors import Refused, Unreadable, WriteFailed

MAX_FILE_BYTES = 64 << 20
MAX_LINKS = 40  # as the kernel's own limit (MAXSYMLINKS)
COMMANDS = "/.hosttune/commands/"
UNREADABLE = "/.hosttune/unreadable"
COMPLETE = "/.hosttune/capture"
SCRATCH = "/.hosttune/scratch"
STATE_INSIDE = "/var/lib/hosttune"  # where root and scratch roots keep their state
MADE_FOLDERS = "folders"  # in there: a note for each folder that was made for a file of ours
KEPT_GPUS = "gpus.json"  # in there: what was known of GPUs before vfio-pci took them
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


class Folder:
    """One directory of a System: its names, and its files, without finding the way to it again for each.

    To be closed; usable in a `with`.
    """

    def __init__(self, system: System, path: str, names: Iterable[str]) -> None:
        self.path = path
        self.names = frozenset(names)
        self._system = system

    def read(self, name: str) -> bytes | None:
        """The bytes of a file in it; None when it does not exist. Raises Unreadable."""
        return self._system.read_bytes(f"{self.path}/{name}") if name in self.names else None

    def close(self) -> None:
        """Let go of what is held open."""

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class System(ABC):
    """What every reader is given. Subclasses say where the bytes come from.

    `captured` is True for anything but this machine as it runs: what would write refuses. `complete` is True
    where discovery looked (live, or captured by hosttune); that one path is not on the machine, only `lacks` proves.
    `scratch` marks a root that stands in for a machine.
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

    def lacks(self, path: str) -> bool:
        """Whether it is proven that the machine has no such path; False where nobody looked, or nobody may."""
        return False

    def folder(self, path: str) -> Folder:
        """A directory of which several files are wanted; one without names when there is none. Raises Unreadable."""
        return Folder(self, path, self.list(path))

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

    # --- changes: only a transaction's settings call these ---------------------------------------------------

    def write(self, path: str, text: str) -> None:
        """Write a value into an existing kernel attribute, in one call. Raises WriteFailed; a capture refuses."""
        raise self._captured(path)

    def write_register(self, path: str, offset: int, data: bytes) -> None:
        """Write bytes into a register file (PCI `config`) at an offset, in one call. Raises WriteFailed."""
        raise self._captured(path)

    def replace(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Put a whole file of ours in place, atomically and synced; missing folders are made. Raises WriteFailed."""
        raise self._captured(path)

    def remove(self, path: str) -> None:
        """Take a file of ours away, and the folders above it that are empty then and ours. Raises WriteFailed."""
        raise self._captured(path)

    def tidy(self, path: str) -> None:
        """Take away what a crash left of putting or removing a file of ours: see `tidy_file`. Raises WriteFailed."""
        raise self._captured(path)

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        """Run a command that changes the machine (`update-grub`), return its stdout. Raises CommandFailed."""
        raise self._captured(argv[0])

    def tell(self, name: str, value: str, live: Callable[[], None]) -> None:
        """Change what is no file, by a library call; `query` of that name reads it back. Raises WriteFailed."""
        raise self._captured(name)

    def forget(self) -> None:  # noqa: B027  (most remember nothing)
        """Drop what is remembered of the machine: something else than this object has changed it."""

    def _captured(self, what: str) -> Refused:
        return Refused(f"{what} cannot be changed on a captured host", where=self.origin, hint="run on the host itself")


def state_directory() -> str:
    """$HOSTTUNE_STATE, else /var/lib/hosttune for root, else $XDG_STATE_HOME/hosttune."""
    named = os.environ.get("HOSTTUNE_STATE")
    if named:
        return named
    if os.geteuid() == 0:
        return STATE_INSIDE
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "hosttune")


def put_file(path: str, data: bytes, mode: int = 0o644) -> None:
    """A whole file, old or new after a crash: written beside, synced, renamed, folder synced. Raises WriteFailed."""
    temporary = f"{path}.hosttune-new"  # one name: what a crash leaves, the next try replaces
    try:
        make_folder(os.path.dirname(path))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        write_new(temporary, data, mode)
        os.replace(temporary, path)
        sync_folder(os.path.dirname(path))
    except OSError as error:
        raise WriteFailed(path, error.strerror or str(error), error.errno) from error
    finally:
        with contextlib.suppress(OSError):  # renamed, as it should be; a full disk or an interrupt leaves no half
            os.unlink(temporary)


def make_folder(path: str, mode: int = 0o755) -> None:
    """Make a folder and those above it that are missing, with this mode whatever the umask is. Raises OSError."""
    if os.path.isdir(path):
        return
    make_folder(os.path.dirname(path) or "/", mode)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    if os.stat(path).st_mode & 0o777 != mode:
        os.chmod(path, mode)


class MadeFolders:
    """Folders that were made for files of ours: each is noted before it is made, and goes with the last file in it.

    `prefix`: of the notes' paths. `root`, `inside`: of a machine that lies in a folder of this one: that folder, and
    how to find one of its folders. Raises WriteFailed.
    """

    def __init__(self, prefix: str, root: str = "", inside: Callable[[str], str] = str) -> None:
        self._prefix = prefix
        self._root = root
        self._inside = inside

    def make(self, folder: str) -> None:
        """Make a folder and those above it that are missing."""
        if not folder or os.path.isdir(self._inside(folder)):
            return
        self.make(folder.rpartition("/")[0])
        if not self._prefix.startswith(f"{folder}/"):  # noted first: a folder that nobody knows of would stay
            put_file(self._note(folder), b"")
        try:
            make_folder(self._inside(folder))
        except OSError as error:
            raise WriteFailed(folder, error.strerror or str(error), error.errno) from error

    def take(self, folder: str) -> None:
        """Remove a folder and those above it that are noted and empty; a crash may have taken some already."""
        while folder:
            inside, note = self._inside(folder), self._note(folder)
            there, noted = os.path.isdir(inside), os.path.exists(note)
            try:
                if there and (not noted or os.listdir(inside)):
                    return
                if there:
                    os.rmdir(inside)
                    sync_folder(os.path.dirname(inside))
            except OSError as error:
                raise WriteFailed(folder, error.strerror or str(error), error.errno) from error
            if noted:
                take_file(note, self._root)
            folder = folder.rpartition("/")[0]

    def _note(self, folder: str) -> str:
        name = f"{self._prefix}{folder.replace('/', '%')}"
        return f"{self._inside(os.path.dirname(name))}/{os.path.basename(name)}"


def made_here() -> MadeFolders:
    """Those of this machine, noted in its state."""
    return MadeFolders(f"{state_directory()}/{MADE_FOLDERS}/")


def open_new(path: str, mode: int, flags: int = 0) -> int:
    """Make a file that is not there yet, with this mode whatever the umask is; open for writing. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW | flags, mode)
    try:
        if os.fstat(fd).st_mode & 0o777 != mode:
            os.fchmod(fd, mode)  # before there is anything to read in it
    except BaseException:
        let_go(fd)
        os.unlink(path)
        raise
    return fd


def write_new(path: str, data: bytes, mode: int) -> None:
    """Make a file that is not there yet, written and synced; where that fails, it is gone again. Raises OSError."""
    fd = open_new(path, mode)
    try:
        try:
            while data:
                data = data[os.write(fd, data) :]
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:  # an interrupt, too
        os.unlink(path)
        raise


def take_file(path: str, root: str = "") -> None:
    """Remove a file and what was made for it: the folders above that are empty and named for hosttune or a unit.

    `root`: of a machine that lies in a folder of this one. Raises WriteFailed.
    """
    try:
        for name in (path, f"{path}.hosttune-new"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        _take_folders(os.path.dirname(path), root)
    except OSError as error:
        raise WriteFailed(path, error.strerror or str(error), error.errno) from error


def tidy_file(path: str, root: str = "") -> None:
    """Remove what a crash may have left of a change of a file: the new one beside it, and folders without it.

    Changes nothing where there is nothing of that. Raises WriteFailed.
    """
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(f"{path}.hosttune-new")
        if not os.path.lexists(path):
            _take_folders(os.path.dirname(path), root)
    except OSError as error:
        raise WriteFailed(path, error.strerror or str(error), error.errno) from error


def _take_folders(folder: str, root: str) -> None:
    """Remove a folder of ours and those above it that are empty then; those that are gone already count as taken."""
    taken = False
    while _is_ours(folder.removeprefix(root)):
        try:
            os.rmdir(folder)
            taken = True
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            break
        folder = os.path.dirname(folder)
    if taken or os.path.isdir(folder):
        sync_folder(folder)


def _is_ours(folder: str) -> bool:
    """Whether a folder was made for files of ours: named for hosttune, in the state, or a unit's drop-ins."""
    return (
        "/hosttune/" in folder
        or "hosttune" in os.path.basename(folder)
        or folder.endswith(".service.d")
        or folder.startswith(f"{state_directory()}/")
    )


def sync_folder(path: str) -> None:
    """Make the names in a folder last through a power cut. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        let_go(fd)


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


def printable(name: str) -> str:
    """A name that every document can carry: bytes that are no UTF-8 become U+FFFD (such a file cannot be opened)."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "replace")


def clean_names(names: list[str]) -> list[str]:
    """Names of a directory, sorted, each fit for a document."""
    names.sort()
    return names if all(map(str.isascii, names)) else sorted(map(printable, names))


def unless_absent(path: str, error: OSError) -> None:
    """Return for a file that is not there; anything else the kernel says is a fact that must not be lost."""
    if error.errno not in _ABSENT:
        raise Unreadable(path, error.strerror or str(error)) from error


def let_go_of_devices() -> None:
    """Close the device files that whoever started us has left open in us; standard streams and terminals stay.

    Nothing here uses them, and a driver whose device file is open does not let go of its device: we would wait for
    ourselves. Locks and pipes that were handed down stay open: they may be how somebody waits for our end.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # that of the folder itself is closed by now
                fd = int(name)
                mode = os.fstat(fd).st_mode
                if fd > 2 and (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and not os.isatty(fd):
                    os.close(fd)
