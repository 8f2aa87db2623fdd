"""Where hosttune keeps what it must remember, and how a file is written so that a crash leaves old or new."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO

from hosttune.errors import BadInput
from hosttune.system import state_directory as state_directory
from hosttune.system import write_new


def saved_plan() -> str:
    """Where the plan of this host is saved."""
    return os.path.join(state_directory(), "plan.json")


VALIDATIONS = "validations"  # what was measured here, for later comparison
_MOST_KEPT = 100


def stored_validations(folder: str) -> tuple[str, ...]:
    """Paths of the validations kept in a state directory, oldest first; the newest of very many. Empty: none, or none
    that may be read.
    """
    try:
        names = sorted(name for name in os.listdir(os.path.join(folder, VALIDATIONS)) if name.endswith(".json"))
    except OSError:
        return ()
    return tuple(os.path.join(folder, VALIDATIONS, name) for name in names[-_MOST_KEPT:])


def save(path: str, text: str, *, make_folder: bool = False) -> None:
    """Write a file whole or not at all: a temporary one beside it, synced, then renamed. Raises BadInput.

    A link is followed. Anything but a regular file is refused: a rename would put the file in the place of a
    device (`/dev/null`). `make_folder` makes missing directories; a folder that the user named must exist.
    """
    hint = "choose another place with --out" + (" or HOSTTUNE_STATE" if make_folder else "")
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise BadInput(f"cannot write {path}: not a regular file", where=path, hint=hint)
        target = os.path.realpath(path)
        if make_folder:
            os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        _replace(target, text.encode())
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}", where=path, hint=hint) from error


def holds(path: str, text: str) -> bool:
    """Whether a regular file holds just this text; one that cannot be read does not."""
    data = text.encode()
    try:
        if not os.path.isfile(path) or os.path.getsize(path) != len(data):
            return False
        with open(path, "rb") as file:
            return file.read() == data
    except OSError:
        return False


def _replace(path: str, data: bytes) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    write_new(temporary, data, 0o644)
    try:
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):  # renamed: as it should be
            os.unlink(temporary)


def load(path: str, *, what: str, limit_bytes: int = 64 << 20) -> bytes:
    """Read a file that the user named ("-" is standard input). Raises BadInput."""
    try:
        fd = 0 if path == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            chunks = []
            size = 0
            while chunk := os.read(fd, 1 << 20):
                chunks.append(chunk)
                size += len(chunk)
                if size > limit_bytes:
                    raise BadInput(f"larger than {limit_bytes >> 20} MiB", where=path, hint=f"give {what}")
        finally:
            if fd:
                os.close(fd)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", where=path, hint=f"give {what}") from error
    return b"".join(chunks)


def drop(stream: TextIO) -> None:
    """Send what a failed stream still holds to nowhere: at exit, Python would fail on it again (and exit 120)."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a file of its own, as in tests
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
