"""System → TuneD's active profiles, and whether TuneD finds the values that they set."""

from __future__ import annotations

from hosttune.errors import CommandFailed
from hosttune.linux.tuned import ACTIVE, PROFILES
from hosttune.machine.reader import Reader
from hosttune.model.host import Host, Tuned

MODE = "/etc/tuned/profile_mode"  # tuned/consts.py: PROFILE_MODE_FILE, …
POST_LOADED = "/etc/tuned/post_loaded_profile"
OWN_FOLDERS = (
    "/etc/tuned/profiles",
    "/etc/tuned",
)  # they come before the system's; older releases have only the second
VERIFY = "tuned-adm-verify"  # name of the query
_SECONDS = 30.0  # TuneD compares each value of each CPU
_VERDICTS = {"Verification succeeded": True, "Verification failed": False}  # tuned/admin/admin.py


def read_tuned(reader: Reader, active: str | None) -> Tuned | None:
    """Return the profiles that `active`, the text of ACTIVE, names; None if no profile is active."""
    if active is None and reader.system.complete and not reader.lacks(ACTIVE):
        return Tuned(profiles=())
    if not active:
        return None
    names = (*active.split(), *(reader.text(POST_LOADED) or "").split())
    own = (name for name in names if name in PROFILES and not all(_lacked(reader, name, top) for top in OWN_FOLDERS))
    return Tuned(profiles=names, mode=reader.text(MODE) or None, own=tuple(own))


def _lacked(reader: Reader, name: str, folder: str) -> bool:
    """Return whether the user has no profile of this name there; not every capture can prove it."""
    path = f"{folder}/{name}/tuned.conf"
    return reader.lacks(path) or (not reader.system.complete and reader.exists(path) is False)


def read_tuned_verified(reader: Reader, host: Host) -> bool | None:
    """Return whether every value that the active profiles set is in force, says TuneD; None where it was not asked.

    `tuned-adm verify` compares and sets nothing. A stopped TuneD is not started by it and does not answer.
    """
    if host.tuned is None:
        return None

    def live() -> str | None:
        try:
            return reader.system.run(("tuned-adm", "verify"), timeout=_SECONDS)
        except CommandFailed as error:  # it exits 1 for "failed", too
            return error.output or None

    answer = reader.query(VERIFY, live) or ""
    return next((verdict for words, verdict in _VERDICTS.items() if answer.startswith(words)), None)
