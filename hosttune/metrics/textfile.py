"""Writes the file that node_exporter's textfile collector reads, whole or not at all.

Traps of the collector (tried with node_exporter 1.5.0): it reads only names that end in ".prom"; it runs as another
user, so the file must be readable by all; the same metric in two files makes one of them disappear without an error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat

from hosttune.errors import BadInput
from hosttune.machine.files import names_ending, read_start, remove_abandoned, sync_folder, write_whole

MODE = 0o644
SUFFIX = ".prom"
_OURS = b"# HELP hosttune_"
_SAMPLE = re.compile(rb"^hosttune_", re.MULTILINE)
_MOST_READ = 1 << 20  # bytes of another file of the folder
_MOST_FILES = 200
_FOLDER = "name a file in the folder of node_exporter's --collector.textfile.directory (docs/monitoring.md)"


def check_textfile(path: str) -> None:
    """Refuse a path that cannot be written, or that is not hosttune's to write; writes nothing. Raises BadInput."""
    folder = os.path.dirname(os.path.abspath(path))
    if not path.endswith(SUFFIX) or os.path.basename(path) == SUFFIX:
        raise BadInput(
            "the textfile collector reads only files that end in .prom", where=path, hint="name it NAME.prom"
        )
    if not os.path.isdir(folder):
        what = "not a folder" if os.path.lexists(folder) else "no such folder"
        raise BadInput(f"cannot write {path}: {what}", where=folder, hint=_FOLDER)
    try:
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        _refuse_other(path)
        _refuse_second(folder, os.path.basename(path))
    except OSError as error:
        raise _unwritable(path, error) from error


def write_textfile(path: str, text: str) -> None:
    """Write the file with mode 0644: a temporary file beside it, synced, then renamed.

    The collector does not read the temporary file: its name does not end in .prom. On failure the file that was there
    stays as it was, and no temporary file is left. Raises BadInput.
    """
    check_textfile(path)
    try:
        remove_abandoned(os.path.dirname(os.path.abspath(path)), os.path.basename(path))
        write_whole(path, text.encode(), MODE)
    except OSError as error:
        raise _unwritable(path, error) from error
    with contextlib.suppress(OSError):  # it is written; only whether its new name survives a power cut is open
        sync_folder(os.path.dirname(os.path.abspath(path)))


def _refuse_other(path: str) -> None:
    """Refuse a path that has something else: a rename would replace it."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    what = None
    if not stat.S_ISREG(status.st_mode):
        what = "there is something else than a file"
    elif status.st_size and not read_start(path, len(_OURS)).startswith(_OURS):
        what = "there is a file that hosttune has not written"
    if what is not None:
        raise BadInput(f"cannot write {path}: {what}", where=path, hint="give another name, or remove what is there")


def _refuse_second(folder: str, name: str) -> None:
    """Refuse if another file of the folder has hosttune's metrics: one of the two would not be read."""
    others = [one for one in names_ending(folder, SUFFIX) if one != name]
    for other in others[:_MOST_FILES]:
        path = os.path.join(folder, other)
        with contextlib.suppress(OSError):
            if _SAMPLE.search(read_start(path, _MOST_READ)):
                what = f"{path} has hosttune's metrics already; the collector would lose one of the two files"
                raise BadInput(what, where=path, hint=f"write to that file, or remove it: rm {path}")


def _unwritable(path: str, error: OSError) -> BadInput:
    hints = {
        errno.EACCES: "run it as root, or as the owner of the folder",
        errno.EPERM: "run it as root, or as the owner of the folder",
        errno.EROFS: "the file system is read-only: " + _FOLDER,
        errno.ENOSPC: "free space on that disk; the earlier file stays, and its metrics get old",
        errno.EDQUOT: "free space on that disk; the earlier file stays, and its metrics get old",
    }
    return BadInput(f"cannot write {path}: {error.strerror}", where=path, hint=hints.get(error.errno or 0, _FOLDER))
