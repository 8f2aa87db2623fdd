"""What a plan sets inside its guests: settings that only the guest can make, and the seed that carries them.

Pure. vfio resets a passed device when the guest opens it and again when it closes it (drivers/vfio/pci), and the host's
driver does not hold it. So only the guest can set persistence, power limit and the endpoint's own PCIe bits.
`hosttune.guest` turns the values into files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hosttune.inventory.devices import Catalogue
from hosttune.knobs.gpus import PERSISTENCE_MODE, POWER_LIMIT
from hosttune.knobs.knob import GUEST, KEEP, Knob, wanted
from hosttune.knobs.pcie import ACS, ASPM, READ_REQUEST, RELAXED_ORDERING
from hosttune.model.host import Host
from hosttune.model.intent import GuestIntent, Intent
from hosttune.model.plan import PlanFinding, PlannedGuest
from hosttune.planning.mig.instances import counts_inside
from hosttune.planning.pcie.direct import direct_findings

# The directory of a guest's files, owned by root.
GUESTS_FOLDER = "/var/lib/hosttune/guests"
# Knobs that the guest sets on the passed endpoint, in the plan's order, with their names for people. The name of each
# knob is also its field of a PciDevice.
_ON_ENDPOINTS: Mapping[Knob[Any], str] = {
    ASPM: "ASPM",
    READ_REQUEST: "read-request size",
    RELAXED_ORDERING: "relaxed ordering",
}
_ENDPOINTS = ("gpu", "nic", "nvme")


def seed_path(guest: GuestIntent) -> str | None:
    """Return the path of the seed image of a guest that asks for one, has keys or creates MIG instances; else None."""
    return f"{GUESTS_FOLDER}/{guest.name}/seed.iso" if guest.seed or guest.ssh_keys or counts_inside(guest) else None


def guest_settings(intent: Intent, guest: GuestIntent) -> Mapping[str, Any] | None:
    """Return the values that the intent wants inside a guest, by name; None if there are none.

    `profile: none` sets nothing; the other profiles set persistence. Inside a guest it affects only the guest, so the
    profile `guest` sets it like `host`. The power limit is set only if the intent gives one, a sysctl only if the
    intent names it.
    """
    given = (intent.settings or {}).get(PERSISTENCE_MODE.name, intent.profile in GUEST)
    watts = (intent.settings or {}).get(POWER_LIMIT.name)
    values = {
        PERSISTENCE_MODE.name: None if given is False or given == KEEP else True,
        POWER_LIMIT.name: watts if isinstance(watts, int) and not isinstance(watts, bool) else None,
        **{knob.name: wanted(intent, knob) for knob in _ON_ENDPOINTS},
        "sysctl": guest.sysctl or None,
    }
    return {name: value for name, value in values.items() if value is not None} or None


def inside_findings(intent: Intent, host: Host, catalogue: Catalogue, guest: PlannedGuest) -> Iterator[PlanFinding]:
    """Yield what the guest has to set on its endpoints, and what prevents direct traffic between its GPUs and NICs."""
    # what differs from the wanted, and only the guest can change
    functions = [catalogue.pci.get(device.address) for device in guest.devices if device.kind in _ENDPOINTS]
    whole = [function for function in functions if function is not None and function.physfn is None]
    left = [
        text
        for knob, text in _ON_ENDPOINTS.items()
        if (want := wanted(intent, knob)) is not None
        and any(getattr(function, knob.name) != want for function in whole)
    ]
    if left:
        text = (
            f"{' and '.join(left) if len(left) < 3 else ', '.join(left)} of the passed endpoints themselves: set"
            " inside the guest by its seed or bundle, because vfio resets a device whenever it is opened"
        )
        if _ON_ENDPOINTS[ASPM] in left:
            # linux, drivers/vfio/pci/vfio_pci_config.c, init_pci_cap_exp_perm: the guest cannot write link control
            text += "; where vfio does not let the guest write link control, the seed reports it"
        yield PlanFinding(level="info", text=text, where=f"guest {guest.name}")
    yield from direct_findings(host, catalogue, guest, (wanted(intent, ACS) or "").split())
