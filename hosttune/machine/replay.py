"""What every captured host has in common as a System: what was lost, changed, missing on the machine or unreadable."""

from __future__ import annotations

from collections.abc import Mapping

from hosttune.errors import BadInput, Unreadable
from hosttune.machine import manifest
from hosttune.machine.system import COMPLETE, UNREADABLE, System
from hosttune.model.limits import LIMITS

OWN = "/.hosttune"  # where a capture has what is not a file of the machine
TOP = ("sys", "proc", OWN[1:])  # what is at the top of a recorded host
_AGAIN = "capture the host again"
_CHANGED = (
    "changed since the capture: its digest differs; capture again, or, if it was changed on purpose, seal the folder"
    " with hosttune capture --seal DIR"
)


class Recorded(System):
    """Base class of captures: facts about the recording itself."""

    def __init__(self, origin: str, most_names: int = LIMITS["names in a folder"].most) -> None:
        self.origin = origin
        self._most_names = most_names
        self._unreadable: Mapping[str, str] = {}
        self._manifest = manifest.Manifest({})

    def _read_own_facts(self) -> None:
        """Read the capture's own facts; called when its contents can be read."""
        self.complete = self.exists(COMPLETE)
        self._manifest = manifest.read((self.read_bytes(COMPLETE) or b"").decode("utf-8", "replace"))
        self.facts = self._manifest.facts
        lines = (self.read(UNREADABLE) or "").splitlines()
        self._unreadable = {path: reason for path, _, reason in (line.partition("\t") for line in lines if line)}

    def _refuse_unreadable(self, path: str) -> None:
        reason = self._unreadable.get(path)
        if reason is not None:
            raise Unreadable(path, reason or "recorded as unreadable")

    def _check_names(self, count: int, path: str) -> None:
        if count > self._most_names:
            why = LIMITS["names in a folder"].why
            raise self._bad(f"{path} holds more than {self._most_names:,} names", f"no folder of a host does: {why}")

    def _refuse_lost(self, real: str) -> None:
        """Raise Unreadable if a missing path, or a part of it, is in the manifest: it was lost after the capture."""
        while self._manifest and real != "/":
            if self._manifest.had(real) and not self._here(real):
                raise Unreadable(real, "lost: it was in this capture when it was made", _AGAIN)
            real = real.rpartition("/")[0] or "/"

    def _refuse_changed(self, real: str, data: bytes) -> None:
        """Raise Unreadable if a file's contents are not those that were captured."""
        if self._manifest.changed(real, data):
            raise Unreadable(real, _CHANGED, _AGAIN)

    def _refuse_link(self, real: str) -> None:
        """Check that a link may be here.

        Raises Unreadable if it was not a link according to the manifest, and BadInput if it is among hosttune's own
        files, where hosttune makes no links.
        """
        if real == OWN or real.startswith(f"{OWN}/"):
            raise self._bad(f"{real} is a link", "capture the host again")
        if self._manifest and self._manifest.was_no_link(real):
            reason = "lost: a link is in its place, which was not there when this capture was made"
            raise Unreadable(real, reason, _AGAIN)

    def _here(self, real: str) -> bool:
        """Return whether this path exists; it has no links on the way."""
        raise NotImplementedError

    def _with_lost(self, real: str, names: list[str]) -> list[str]:
        """Return the names in a directory, with those that are in the manifest but missing here."""
        lost = self._manifest.names(real).difference(names) if self._manifest else ()
        return sorted([*names, *lost]) if lost else names

    def lacks(self, path: str) -> bool:
        """See System. Only the manifest of a capture made by hosttune proves it."""
        try:
            return bool(self._manifest) and self._manifest.lacked(self._where(path)) and not self.exists(path)
        except Unreadable:
            return False

    def _where(self, path: str) -> str:
        """Return the path with the links before its last part resolved, as far as they exist."""
        raise NotImplementedError

    def _bad(self, what: str, hint: str) -> BadInput:
        return BadInput(what, where=self.origin, hint=hint)
