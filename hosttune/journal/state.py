"""Where hosttune keeps its state, and how a file is written so that a crash leaves the old or the new one."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from hosttune.errors import BadInput, state_remedy
from hosttune.machine.files import let_go, read_all, remove_abandoned, write_whole
from hosttune.machine.files import make_folder as make_folders
from hosttune.machine.system import KEPT_GPUS, MADE_FOLDERS, STATE_INSIDE
from hosttune.model.limits import check_size


def plan_of_sudo_user() -> str | None:
    """Return the plan saved by the user who called sudo, whose state directory is not root's; None if there is none."""
    import pwd

    try:
        home = pwd.getpwuid(int(os.environ["SUDO_UID"])).pw_dir
    except (KeyError, ValueError, OverflowError):
        return None
    path = os.path.join(os.environ.get("XDG_STATE_HOME") or f"{home}/.local/state", "hosttune", "plan.json")
    return path if os.path.isfile(path) else None


# File modes in the state directory, whatever the umask is; docs/state.md explains them for users. A folder's name ends
# in "/"; NAME stands for any name. Journals and plans have serial numbers and UUIDs of devices, so they are private.
# QEMU runs as its own user and must be able to reach and read a guest's seed; the seed has the guest's own settings and
# no secret. Another user's `validate` reads earlier validations; if it could not, they would be missing without notice.
MODES: Mapping[str, int] = {
    "/": 0o755,
    "/lock": 0o644,
    "/watch.lock": 0o644,
    "/plan.json": 0o600,
    "/after-stop": 0o600,
    "/at-start": 0o600,
    "/at-start.log": 0o600,
    "/forgotten.json": 0o644,
    "/accepted.json": 0o644,
    f"/{KEPT_GPUS}": 0o600,
    f"/{MADE_FOLDERS}/": 0o755,
    f"/{MADE_FOLDERS}/NAME": 0o644,
    "/transactions/": 0o700,
    "/transactions/NAME": 0o600,
    "/handover/": 0o700,
    "/handover/lock": 0o644,
    "/handover/NAME": 0o600,
    "/handover/revoked/": 0o700,
    "/handover/revoked/NAME": 0o600,
    "/handover/signed/": 0o700,
    "/handover/signed/NAME": 0o600,
    "/handover/transactions/": 0o700,
    "/handover/transactions/NAME": 0o600,
    "/removed/": 0o700,
    "/removed/NAME/": 0o700,
    "/removed/NAME/NAME": 0o600,
    "/validations/": 0o755,
    "/validations/NAME": 0o644,
    "/guests/": 0o755,
    "/guests/NAME/": 0o755,
    "/guests/NAME/seed.iso": 0o644,
    "/guests/NAME/disk.qcow2": 0o600,
    "/guests/NAME/meta-data": 0o600,
    "/guests/NAME/user-data": 0o600,
    "/guests/NAME/bundle/": 0o755,
    "/guests/NAME/bundle/hosttune-guest-apply": 0o700,
    "/guests/NAME/bundle/install.sh": 0o700,
    "/guests/NAME/bundle/NAME": 0o600,
}


def mode_of(path: str) -> int:
    """Return the mode of a path inside the state directory ("guests/a/seed.iso", a folder with its "/").

    Raises KeyError.
    """
    parts = f"/{path}".split("/")
    for row, mode in MODES.items():
        names = row.split("/")
        if len(names) == len(parts) and all(a == b or (a == "NAME" and b) for a, b in zip(names, parts, strict=True)):
            return mode
    raise KeyError(path)


AT_START = "at-start"  # what libvirt's hook sets before starts of guests by others
HOLDERS = "after-stop"  # the guests for whose end something waits, one a line: libvirt's hook reads it
VALIDATIONS = "validations"  # earlier measurements, for later comparison
DEVICES = "devices.json"  # one of them: the last one without measurements, without its results
_MOST_KEPT = 100


def stored_validations(folder: str) -> tuple[str, ...]:
    """Return the paths of the validations in a state directory, oldest first; of very many, only the newest.

    Empty if there are none or the user may not read them.
    """
    try:
        names = sorted(name for name in os.listdir(os.path.join(folder, VALIDATIONS)) if name.endswith(".json"))
    except OSError:
        return ()
    return tuple(os.path.join(folder, VALIDATIONS, name) for name in names[-_MOST_KEPT:])


def save(path: str, text: str, *, make_folder: bool = False, mode: int | None = None) -> None:
    """Write a file completely or not at all: write a temporary file beside it, sync, rename. Raises BadInput.

    A link is followed. Anything except a regular file is refused, because a rename would replace a device
    (`/dev/null`). `make_folder` makes missing directories; a folder that the user named must exist. `mode`: from
    `mode_of`, for a file of the state; the user's own files get the mode from the umask.
    """
    elsewhere = "choose another place with --out"
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            hint = elsewhere if mode is None else "remove it, or choose another state directory with HOSTTUNE_STATE"
            raise BadInput(f"cannot write {path}: not a regular file", where=path, hint=hint)
        target = os.path.realpath(path)
        if make_folder:
            make_folders(os.path.dirname(target))
            remove_abandoned(os.path.dirname(target))
        write_whole(target, text.encode(), mode)
    except OSError as error:
        hint = elsewhere if mode is None else state_remedy(error)
        raise BadInput(f"cannot write {path}: {error.strerror}", where=path, hint=hint) from error


def holds(path: str, text: str) -> bool:
    """Return whether a regular file has exactly this text; False if it cannot be read."""
    data = text.encode()
    try:
        if not os.path.isfile(path) or os.path.getsize(path) != len(data):
            return False
        with open(path, "rb") as file:
            return file.read() == data
    except OSError:
        return False


def load(path: str, *, what: str, size: str = "document") -> bytes:
    """Read a file that the user named ("-" is standard input); `size` names its limit (`limits`). Raises BadInput.

    A named pipe is refused, because reading it can wait for ever; that of a shell's `<(command)` has no name.
    """
    try:
        fd = 0 if path == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if fd and stat.S_ISFIFO(os.fstat(fd).st_mode) and os.path.exists(os.path.realpath(path)):
                raise BadInput(f"{path} is a named pipe", where=path, hint="give a file, or - for standard input")
            if fd:
                os.set_blocking(fd, True)
            return read_all(fd, lambda taken: check_size(taken, size, path))
        finally:
            if fd:
                let_go(fd)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", where=path, hint=f"give {what}") from error


def load_trusted(path: str, *, what: str, size: str) -> bytes | None:
    """Read a file of the system's configuration; None if it does not exist.

    Raises BadInput, also for root if another user owns the file or may write to it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", where=path, hint=f"give {what}") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise BadInput("not a file", where=path, hint=f"give {what}")
        if os.geteuid() == 0 and (status.st_uid != 0 or status.st_mode & 0o022):
            raise BadInput(
                f"another user can change this file (owner {status.st_uid}, mode {status.st_mode & 0o7777:04o})",
                where=path,
                hint=f"as root: chown root {path} && chmod go-w {path}",
            )
        return read_all(fd, lambda taken: check_size(taken, size, path))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", where=path, hint=f"give {what}") from error
    finally:
        let_go(fd)


def load_text(path: str, *, what: str, size: str = "document") -> str:
    """As `load`, decoded. Raises BadInput, also for bytes that are not UTF-8."""
    try:
        return load(path, what=what, size=size).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"not valid UTF-8 at byte {error.start}", where=path, hint=f"give {what}, in UTF-8") from error


def unseen_journals(folder: str) -> str | None:
    """Return the journals that count on this machine and that this user does not read; None if there are none.

    They are those of the state in `folder`, and root's, whose state is another one than the user's.
    """
    for state in dict.fromkeys((folder,) if os.environ.get("HOSTTUNE_STATE") else (folder, STATE_INSIDE)):
        journals = os.path.join(state, "transactions")
        try:
            names = os.listdir(journals)
        except PermissionError:
            return journals
        except OSError:
            continue  # there are none, or what is wrong is said where they are read
        if names and state != folder:
            return journals
    return None
