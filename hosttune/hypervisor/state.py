"""Whether a guest runs, and whether libvirt starts it when the host has booted, as settings."""

from __future__ import annotations

from typing import Any, ClassVar

from hosttune.discovery.guests import STATE
from hosttune.errors import WriteFailed
from hosttune.hypervisor.connection import (
    CHANGE_SECONDS,
    RUNNING,
    SHUT_OFF,
    START_SECONDS,
    ask,
    known_uuid,
    read_definition,
    read_state,
    uuid_of,
    virsh,
)
from hosttune.hypervisor.definition import GUESTS, PlannedDefinition
from hosttune.hypervisor.ownstarts import record_start
from hosttune.machine.system import System
from hosttune.settings.setting import FILE, GUEST_STAGE, START_STAGE, MadeByAnother, Setting, refuse


class GuestState(Setting):
    """The state of a guest. Target: its name. Value: virsh's word. A guest that libvirt does not know is shut off.

    Only "running" can be wanted. A rollback ends the guest at once (`virsh destroy`). This is right only within the
    transaction that started it, because later the guest does a tenant's work (`undone_later` is False).
    """

    kind: ClassVar[str] = "guest-state"
    stage: ClassVar[int] = START_STAGE
    may_stop_midway: ClassVar[bool] = True  # libvirt continues a start without its caller; the guest is "paused" then
    undone_later: ClassVar[bool] = False
    targets = GUESTS

    def check(self, value: Any) -> None:
        """See Setting."""
        if value != RUNNING:
            raise refuse(self.kind, self.target, f"{value!r} is not a state a plan can ask for", f"it is {RUNNING!r}")

    def read(self, system: System) -> str:
        """See Setting."""
        return read_state(system, self.target) or SHUT_OFF

    def write(self, system: System, value: Any) -> None:
        """See Setting. Returns when the guest runs; before that all of its memory is cleared."""
        if self.read(system) == value:
            return
        if value == RUNNING:
            record_start(system, self.target)
            system.tell(STATE + self.target, RUNNING, lambda: _start(system, self.target))
        elif value == SHUT_OFF:
            # On a scratch root, a guest that does not run has no record.
            system.tell(STATE + self.target, "", lambda: _end(system, self.target))
        else:
            raise WriteFailed(f"guest {self.target}", f"it cannot be made {value!r} again")


def _start(system: System, name: str) -> None:
    system.change(virsh("start", known_uuid(system, name)), timeout=START_SECONDS)


def _end(system: System, name: str) -> None:
    uuid = uuid_of(system, name)
    if uuid is not None:
        system.change(virsh("destroy", uuid), timeout=CHANGE_SECONDS)


# --- start with the host ---------------------------------------------------------------------------------------

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
