"""The persistent definition of a guest that hosttune did not make, as a setting."""

from __future__ import annotations

from typing import Any, ClassVar

from hosttune.discovery.guests import DEFINITION
from hosttune.domain.definitions import same_guest
from hosttune.errors import WriteFailed
from hosttune.hypervisor.connection import read_definition
from hosttune.hypervisor.definition import GuestDefinition, define
from hosttune.machine.system import System
from hosttune.model.limits import limit
from hosttune.settings.setting import Targets


def is_domain_name(name: str) -> bool:
    """Return whether an existing guest can have this name: libvirt takes more than hosttune gives.

    It is one line, safe as a part of a path, and virsh lists it as it is.
    """
    one_part = name.isprintable() and "/" not in name and name == name.strip() and name not in ("", ".", "..")
    return one_part and len(name.encode()) <= limit("name") - len(DEFINITION)


class AdoptedDefinition(GuestDefinition):
    """The persistent definition of an existing guest. Target: its name. Value: domain XML with all secrets.

    libvirt replaces a definition as a whole and keeps autostart, UEFI variables and whether the guest runs; a running
    guest has the new one from its next start. Two values agree if they have the same elements. The guest is never
    undefined. Only the journal, which root alone may read, has the secrets: `shown` leaves them out.
    """

    kind: ClassVar[str] = "adopted-guest"
    targets = Targets(is_domain_name, "{0!r} is not the name of a guest")

    def check(self, value: Any) -> None:
        """See Setting."""
        self.facts_of(value)

    def read(self, system: System) -> str | None:
        """See Setting."""
        return read_definition(system, self.target, secure=True)

    def compare(self, live: str, want: str) -> tuple[str, ...]:
        """See GuestDefinition."""
        return same_guest(live, want, whole=True)

    def write(self, system: System, value: Any) -> None:
        """See Setting."""
        if not isinstance(value, str):
            raise WriteFailed(f"guest {self.target}", "hosttune did not make this guest, so it does not undefine it")
        # Not validated: libvirt wrote most of this XML itself. What it drops is seen afterwards.
        system.tell(DEFINITION + self.target, value, lambda: define(system, value, validate=False))
