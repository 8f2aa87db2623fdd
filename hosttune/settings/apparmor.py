"""hosttune's rule in libvirt's AppArmor profile for guests: see `hosttune.linux.apparmor`.

Target: the profile's local part. Value: the rule; None if it is missing. virt-aa-helper loads the profile at each start
of a guest, so nothing is restarted; running guests keep the profile that they were started with.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hosttune.linux.apparmor import (
    LOCAL,
    PROFILE,
    RULE,
    allows_node_cpus,
    includes_local,
    is_ours,
    with_rule,
    without_rule,
)
from hosttune.machine.system import System
from hosttune.settings.setting import FILE, KEEP_STAGE, ServedByOthers, Targets, refuse

_MODE = 0o644


class AppArmorRule(ServedByOthers):
    """See the module."""

    kind: ClassVar[str] = "apparmor-rule"
    scope: ClassVar[str] = FILE
    stage: ClassVar[int] = KEEP_STAGE
    none_is_value: ClassVar[bool] = True
    targets = Targets(LOCAL.__eq__, "not a part of a profile that hosttune changes", f"it is {LOCAL}")

    def check(self, value: Any) -> None:
        """See Setting."""
        if value != RULE:
            raise refuse(self.kind, self.target, f"invalid value {value!r}", f"it is {RULE!r}")

    def read(self, system: System) -> str | None:
        """See Setting."""
        return RULE if is_ours(_text(system, self.target)) else None

    def waits_for(self, system: System) -> str | None:
        """See Setting."""
        profile = _text(system, PROFILE)
        if profile is None or includes_local(profile):
            return None
        return f"{PROFILE} does not include {self.target}: put the rule {RULE!r} into the profile by hand"

    def served(self, system: System, live: Any, want: Any) -> str | None:
        """See Setting."""
        if live is None and allows_node_cpus(_text(system, PROFILE), _text(system, self.target)):
            return "the profile allows it without hosttune's rule"
        return None

    def write(self, system: System, value: Any) -> None:
        """See Setting. All other lines of the file are kept."""
        text = _text(system, self.target)
        if value is not None:
            system.replace(self.target, with_rule(text).encode("utf-8", "surrogateescape"), _MODE)
        elif text is not None:
            rest = without_rule(text)
            if rest is None:
                system.remove(self.target)
            else:
                system.replace(self.target, rest.encode("utf-8", "surrogateescape"), _MODE)

    def places(self, system: System) -> tuple[str, ...]:
        """See Setting."""
        return (self.target,)


def _text(system: System, path: str) -> str | None:
    """Return a file's text; bytes that are not UTF-8 are kept (surrogateescape)."""
    data = system.read_bytes(path)
    return None if data is None else data.decode("utf-8", "surrogateescape")
