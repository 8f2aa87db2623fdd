"""`hosttune capture --seal DIR`: the digests of a capture folder that was changed on purpose are written again."""

from __future__ import annotations

import os
from hashlib import file_digest

from hosttune.errors import BadInput
from hosttune.machine import manifest
from hosttune.machine.files import write_whole
from hosttune.machine.opening import capture_folder
from hosttune.machine.system import COMPLETE, SCRATCH


def seal(path: str) -> int:
    """Write the digests of all files of a capture folder into its manifest; return their number. Raises BadInput.

    What the manifest says of files that were there or missing stays: a file that was taken away is still a lost one.
    """
    if not os.path.isdir(path):
        what, hint = "no folder", "give the folder of a capture"
        if os.path.exists(path):
            what, hint = "not a folder", "unpack the archive, and seal the folder"
        raise BadInput(what, where=path, hint=hint)
    try:
        root = os.path.realpath(capture_folder(path))
        if os.path.lexists(root + SCRATCH):
            hint = "nothing to seal; to make it a capture, remove .hosttune/scratch"
            raise BadInput("a scratch root: its files may change", where=path, hint=hint)
        own = root + COMPLETE
        if os.path.realpath(own) != own:
            raise BadInput("a link among hosttune's own files", where=path, hint="capture the host again")
        with open(own, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
        if text.partition("\n")[0] != manifest.FORMAT:
            raise BadInput("a capture without a manifest", where=path, hint="nothing is checked in it; capture again")
        digests = _digests(root)
        write_whole(own, manifest.seal(text, digests).encode("utf-8", "surrogateescape"), os.stat(own).st_mode & 0o777)
    except FileNotFoundError as error:
        hint = "give a folder that hosttune capture made: it has .hosttune/capture"
        raise BadInput("no capture of hosttune", where=path, hint=hint) from error
    except OSError as error:
        what = f"cannot be sealed: {error.strerror or error}"
        raise BadInput(
            what, where=str(error.filename or path), hint="seal it as the user who owns its files"
        ) from error
    return len(digests)


def _digests(root: str) -> dict[str, str]:
    """Return the digest of each file, by its path in the capture. Raises OSError."""
    digests = {}
    for folder, _, names in os.walk(root, onerror=_refuse):
        for path in (f"{folder}/{name}" for name in names):
            if path != root + COMPLETE and os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    digests[path.removeprefix(root)] = file_digest(file, "sha256").hexdigest()
    return digests


def _refuse(error: OSError) -> None:
    raise error
