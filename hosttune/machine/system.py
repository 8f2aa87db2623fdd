"""The only access to a machine: files, links and read-only commands, of this machine or of a captured one.

`discovery` reads only through a `System`. `hosttune.machine.live` is the live host; `hosttune.machine.capture` has the
captured ones. Paths are absolute inside the machine that is read ("/sys/bus/pci/devices").

A capture has its own files in `/.hosttune`. `commands/NAME`: the answers of read-only commands. `unreadable`: one line
"PATH<tab>REASON" for each file that the kernel refused. `capture`: present if hosttune made the capture, with what
existed and what did not (see `hosttune.machine.manifest`). `scratch`: marks a scratch root.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager

from hosttune.errors import Refused, Unreadable, WriteFailed
from hosttune.machine.files import make_folder, sync_folder, write_whole

MAX_FILE_BYTES = 64 << 20
MAX_LINKS = 40  # the kernel's own limit (MAXSYMLINKS)
COMMANDS = "/.hosttune/commands/"
UNREADABLE = "/.hosttune/unreadable"
NODES = "device-nodes"  # in there: what nodes and interfaces are on
COMPLETE = "/.hosttune/capture"
SCRATCH = "/.hosttune/scratch"
STATE_INSIDE = "/var/lib/hosttune"  # where root and scratch roots keep their state
MADE_FOLDERS = "folders"  # in there: a note for each folder that hosttune made for its files
KEPT_GPUS = "gpus.json"  # in there: facts of GPUs from before vfio-pci took them
# The file is missing, or its driver reports that it has no such fact (EINVAL: the speed of a port that is down).
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
    """One directory of a System: its names, and its files, read without resolving the path again for each.

    Must be closed; usable in a `with`.
    """

    def __init__(self, system: System, path: str, names: Iterable[str]) -> None:
        self.path = path
        self.names = frozenset(names)
        self._system = system

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file in it; None if it does not exist. Raises Unreadable."""
        return self._system.read_bytes(f"{self.path}/{name}") if name in self.names else None

    def close(self) -> None:
        """Close what is held open."""

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class System(ABC):
    """The interface of every reader. Subclasses define where the bytes come from.

    `captured`: True for everything except this machine, live; methods that write then refuse. `complete`: True if
    discovery has read it (live, or captured by hosttune); that one path is absent is proven only by `lacks`. `scratch`:
    a root that is used in place of a machine. `facts`: which facts a capture holds (`hosttune.discovery.evidence`);
    None: all. `rehearses`: a change is recorded and not made, so that reading it back shows nothing. `undone`: kind and
    target of the settings that are put back before what is rehearsed.
    """

    captured = True
    complete = False
    scratch = False
    rehearses = False
    undone: Collection[tuple[str, str]] = ()
    facts: int | None = None
    origin = "?"

    @abstractmethod
    def read_bytes(self, path: str) -> bytes | None:
        """Return the file's bytes; None if it does not exist. Raises Unreadable (EACCES, EIO…), BadInput."""

    @abstractmethod
    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty if there is none. Raises Unreadable."""

    @abstractmethod
    def link(self, path: str) -> str | None:
        """Return where a symbolic link leads, as a path inside the machine; None if it is not a link."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether a path exists (False for a link to nothing)."""

    def link_number(self, path: str) -> str | None:
        """Return what tells a symbolic link of /sys from each other one that was at its path since the boot.

        It is the inode number: sysfs gives no number twice (kernfs ids, fs/kernfs/dir.c). None if it is no link, and on
        captures.
        """
        return None

    def lacks(self, path: str) -> bool:
        """Return whether it is proven that the machine has no such path.

        False if nothing looked for it, or if access is denied.
        """
        return False

    def folder(self, path: str) -> Folder:
        """Open a directory to read several files; it has no names if it does not exist. Raises Unreadable."""
        return Folder(self, path, self.list(path))

    def read(self, path: str) -> str | None:
        """Return the file as text without the trailing newline; None if it does not exist. Raises Unreadable."""
        data = self.read_bytes(path)
        return None if data is None else data.decode("utf-8", "replace").rstrip("\n")

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        """Return the answer of a read-only command or library call, as text; None if it cannot be called.

        A captured host returns what is recorded as `.hosttune/commands/NAME`; only a live one calls `live`.
        """
        return self.read(COMMANDS + name)

    def derive(self, name: str, make: Callable[[], str]) -> str:
        """Return what `make` tells of files that a capture must not have, because their names identify a machine.

        A capture returns what was recorded as for `query`; other roots have the files.
        """
        return self.query(name, make) or make()

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        """Run a read-only command on the live machine, return its stdout. Raises CommandFailed; a capture refuses."""
        raise Refused(
            f"{argv[0]} cannot run on a captured host", where=self.origin, hint="run hosttune on the host itself"
        )

    def read_medium(self, path: str, offset: int, size: int) -> bytes:
        """Return bytes of a block device as its medium has them, past the kernel's cache. Raises Unreadable.

        `offset` and `size` are multiples of 4096. Fewer bytes than asked are an error. A capture has no media: Refused.
        """
        raise self._captured(path)

    def claim(self, path: str) -> AbstractContextManager[None]:
        """Return a context in which nothing else can claim a block device (open(2), O_EXCL): no mount, array or swap.

        Raises InUse if something has claimed it or one of its partitions, in any mount namespace; Unreadable. A capture
        refuses.
        """
        raise self._captured(path)

    # --- changes: only a transaction's settings call these ---------------------------------------------------

    def write(self, path: str, text: str) -> None:
        """Write a value into an existing kernel attribute, in one call. Raises WriteFailed; a capture refuses."""
        raise self._captured(path)

    def write_register(self, path: str, offset: int, data: bytes) -> None:
        """Write bytes into a register file (PCI `config`) at an offset, in one call. Raises WriteFailed."""
        raise self._captured(path)

    def replace(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a whole file of hosttune, atomic and synced; missing folders are made. Raises WriteFailed."""
        raise self._captured(path)

    def remove(self, path: str) -> None:
        """Remove a file of hosttune, and the folders above it that are then empty and hosttune's.

        Raises WriteFailed.
        """
        raise self._captured(path)

    def tidy(self, path: str) -> None:
        """Remove what a crash left while a file of hosttune was written or removed: see `remove_leftovers_of_file`.

        Raises WriteFailed.
        """
        raise self._captured(path)

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        """Run a command that changes the machine (`update-grub`), return its stdout. Raises CommandFailed."""
        raise self._captured(argv[0])

    def tell(self, name: str, value: str, live: Callable[[], None]) -> None:
        """Change what is not a file, by a library call; `query` with the same name reads it back.

        Raises WriteFailed.
        """
        raise self._captured(name)

    def forget(self) -> None:  # noqa: B027  (most remember nothing)
        """Clear cached data of the machine, because something other than this object has changed it."""

    def _captured(self, what: str) -> Refused:
        return Refused(f"{what} cannot be changed on a captured host", where=self.origin, hint="run on the host itself")


def state_directory() -> str:
    """Return $HOSTTUNE_STATE, else /var/lib/hosttune for root, else $XDG_STATE_HOME/hosttune."""
    named = os.environ.get("HOSTTUNE_STATE")
    if named:
        return named
    if os.geteuid() == 0:
        return STATE_INSIDE
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "hosttune")


def state_in(system: System) -> str:
    """Return hosttune's state directory as this System has it; a captured or scratch root has its own inside."""
    return STATE_INSIDE if system.captured else state_directory()


def put_file(path: str, data: bytes, mode: int = 0o644, temporary: str | None = None) -> None:
    """Write a whole file; a crash leaves the old or the new one.

    It is written beside (or as `temporary`), synced, renamed, and its folder is synced. Raises WriteFailed.
    """
    temporary = temporary or f"{path}.hosttune-new"  # always the same name: the next attempt replaces what a crash left
    try:
        make_folder(os.path.dirname(path))
        write_whole(path, data, mode, temporary=temporary)
        sync_folder(os.path.dirname(path))
    except OSError as error:
        raise WriteFailed(path, error.strerror or str(error), error.errno) from error


class MadeFolders:
    """Folders made for files of hosttune: each is noted before it is made, and is removed with the last file in it.

    `prefix`: of the notes' paths. `root`, `inside`: for a machine that is in a folder of this one: that folder, and a
    function that returns where one of its folders is. Raises WriteFailed.
    """

    def __init__(self, prefix: str, root: str = "", inside: Callable[[str], str] = str) -> None:
        self._prefix = prefix
        self._root = root
        self._inside = inside

    def make(self, folder: str) -> None:
        """Make a folder and the missing ones above it."""
        if not folder or os.path.isdir(self._inside(folder)):
            return
        self.make(folder.rpartition("/")[0])
        if not self._prefix.startswith(f"{folder}/"):  # noted first: otherwise a crash could leave an unknown folder
            put_file(self._note(folder), b"")
        try:
            make_folder(self._inside(folder))
        except OSError as error:
            raise WriteFailed(folder, error.strerror or str(error), error.errno) from error

    def take(self, folder: str) -> None:
        """Remove a folder and those above it that are noted and empty; a crash may have removed some already."""
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
    """Return those of this machine, noted in its state."""
    return MadeFolders(f"{state_directory()}/{MADE_FOLDERS}/")


def take_file(path: str, root: str = "") -> None:
    """Remove a file and the folders above it that are empty and named for hosttune or a unit.

    `root`: for a machine that is in a folder of this one. Raises WriteFailed.
    """
    try:
        for name in (path, f"{path}.hosttune-new"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        _take_folders(os.path.dirname(path), root)
    except OSError as error:
        raise WriteFailed(path, error.strerror or str(error), error.errno) from error


def remove_leftovers_of_file(path: str, root: str = "") -> None:
    """Remove what a crash may have left of a change to a file: the new file beside it, and folders that lack the file.

    Changes nothing if there is nothing of that. Raises WriteFailed.
    """
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(f"{path}.hosttune-new")
        if not os.path.lexists(path):
            _take_folders(os.path.dirname(path), root)
    except OSError as error:
        raise WriteFailed(path, error.strerror or str(error), error.errno) from error


def _take_folders(folder: str, root: str) -> None:
    """Remove a folder of hosttune and those above it that are then empty; missing folders count as removed."""
    taken = False
    while _is_own_folder(folder.removeprefix(root)):
        try:
            os.rmdir(folder)
            taken = True
        except FileNotFoundError:
            pass
        except OSError as error:
            # EBUSY: something is mounted there, the state directory for one; it stays, whatever is in it.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY):
                raise
            break
        folder = os.path.dirname(folder)
    if taken or os.path.isdir(folder):
        sync_folder(folder)


def _is_own_folder(folder: str) -> bool:
    """Return whether a folder was made for hosttune's files: named for hosttune, in the state, or a unit's drop-ins."""
    return (
        "/hosttune/" in folder
        or "hosttune" in os.path.basename(folder)
        or folder.endswith(".service.d")
        or folder.startswith(f"{state_directory()}/")
    )


def join_link(directory: str, target: str) -> str | None:
    """Return where a link in `directory` leads, as a path inside the machine; None if ".." leads above its root."""
    if target.startswith("../") and "/." not in target[target.rfind("../") + 2 :] and directory != "/":
        # The usual form in sysfs, "../../bus/pci/drivers/x": a number of steps up, then down.
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


def clean_name(name: str) -> str:
    """Return a name that fits into every document.

    Bytes that are not UTF-8 become U+FFFD (such a file cannot be opened).
    """
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "replace")


def clean_names(names: list[str]) -> list[str]:
    """Return the names of a directory, sorted, each fit for a document."""
    names.sort()
    return names if all(map(str.isascii, names)) else sorted(map(clean_name, names))


def unless_absent(path: str, error: OSError) -> None:
    """Return for a file that does not exist. For any other error raise Unreadable, so that it is not lost."""
    if error.errno not in _ABSENT:
        raise Unreadable(path, error.strerror or str(error)) from error


def close_inherited_devices() -> None:
    """Close the device files that the parent process has left open in this one; standard streams and terminals stay.

    hosttune does not use them. A driver does not release a device whose file is open, so hosttune would wait for
    itself. Inherited locks and pipes stay open, because another process may use them to wait until this one ends.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the descriptor of the folder itself is already closed
                fd = int(name)
                mode = os.fstat(fd).st_mode
                if fd > 2 and (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and not os.isatty(fd):
                    os.close(fd)
