"""Opens a host that a user names: this machine, or with `--root` a directory as it is or a tar archive.

The module of a kind of machine is imported when one is opened.
"""

from __future__ import annotations

import os
import stat

from hosttune.assets import folder
from hosttune.errors import BadInput
from hosttune.machine.capture import Capture
from hosttune.machine.replay import TOP
from hosttune.machine.system import System
from hosttune.model.hints import did_you_mean

EXAMPLE = "@example"  # in place of a path: the example host that is shipped with hosttune


def open_system(root: str | None) -> System:
    """Return this machine, or the captured host of `open_root`. Raises BadInput."""
    if root is not None:
        return open_root(root)
    from hosttune.machine.live import LiveMachine

    return LiveMachine()


def open_root(path: str) -> System:
    """Open the captured host in a directory or a tar archive (plain, gzip, bzip2 or xz, recognized by its first bytes).

    If everything is in a single directory (`host1/sys`, `host1/proc`), that one is used. `@example` is the example host
    that is shipped with hosttune (a directory of that name is `./@example`). Raises BadInput.
    """
    place = f"{folder('examples')}/hgx-h200-8.tar.xz" if path == EXAMPLE else path
    try:
        status = os.stat(place)
        if stat.S_ISDIR(status.st_mode):
            capture = Capture(capture_folder(path), origin=path)
            if not capture.scratch:
                return capture
            from hosttune.machine.scratch import Scratch

            return Scratch(capture.root, origin=path)
        if not stat.S_ISREG(status.st_mode):
            raise BadInput("neither a directory nor an archive", where=path, hint=_HINT)
        from hosttune.machine.archive import open_archive

        return open_archive(place, path)
    except OSError as error:
        hint = _HINT
        if path.startswith("@"):
            hint = did_you_mean(path, [EXAMPLE], f"the host that comes with hosttune is {EXAMPLE}; or {_HINT}")
        raise BadInput(f"cannot be read: {error.strerror or error}", where=path, hint=hint) from error


_HINT = "give the directory that holds sys/ and proc/, or a tar of it (hosttune capture writes one)"


def capture_folder(path: str) -> str:
    """Return the directory, or, if it does not contain a host, the only directory inside it that does."""
    names = os.listdir(path)
    if any(name in names for name in TOP):
        return path
    inner = [entry for entry in map(path.rstrip("/").__add__, (f"/{name}" for name in names)) if _real_directory(entry)]
    holding = [entry for entry in inner if any(_real_directory(f"{entry}/{name}") for name in ("sys", "proc"))]
    return holding[0] if len(holding) == 1 else path


def _real_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)
