"""Whether libvirt starts a guest when the host has booted, as a setting."""

from __future__ import annotations

from typing import Any, ClassVar

from hosttune.hypervisor.connection import CHANGE_SECONDS, ask, known_uuid, read_definition, uuid_of, virsh
from hosttune.hypervisor.definition import GUESTS, PlannedDefinition
from hosttune.machine.system import System
from hosttune.settings.setting import FILE, GUEST_STAGE, MadeByAnother, refuse

_AUTOSTART = "virsh-autostart-"  # followed by the guest's name


class Autostart(MadeByAnother):
    """Whether libvirt starts a guest with the host. Target: its name. Value: true or false, which a new guest has."""

    kind: ClassVar[str] = "guest-autostart"
    scope: ClassVar[str] = FILE
    stage: ClassVar[int] = GUEST_STAGE
    targets = GUESTS

    @property
    def made_by(self) -> tuple[str, str]:
        """See MadeByAnother."""
        return PlannedDefinition.kind, self.target

    def check(self, value: Any) -> None:
        """See Setting."""
        if not isinstance(value, bool):
            raise refuse(self.kind, self.target, f"{value!r} is neither true nor false", "plan again")

    def waits_for(self, system: System) -> str | None:
        """See Setting."""
        return None if read_definition(system, self.target) is not None else "the guest is not defined"

    def read(self, system: System) -> bool:
        """See Setting."""
        return system.query(_AUTOSTART + self.target, lambda: _ask(system, self.target)) is not None

    def write(self, system: System, value: Any) -> None:
        """See Setting."""
        if self.read(system) != value:
            system.tell(_AUTOSTART + self.target, "on" if value else "", lambda: _set(system, self.target, value))


def _ask(system: System, name: str) -> str | None:
    uuid = uuid_of(system, name)
    return "on" if uuid in ask(system, "list", "--all", "--autostart", "--uuid").split() else None


def _set(system: System, name: str, on: bool) -> None:
    system.change(virsh("autostart", *(() if on else ("--disable",)), known_uuid(system, name)), timeout=CHANGE_SECONDS)
