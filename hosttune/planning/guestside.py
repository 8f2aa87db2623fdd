"""What a plan wants inside its guests: settings that only the guest can make, and the seed that carries them.

Pure. vfio resets a passed device when the guest opens it and again when it closes it (drivers/vfio/pci), and the
host's driver does not hold it: persistence, power limit and the endpoint's own PCIe bits are the guest's work.
`hosttune.guest` turns the values into files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hosttune.model.intent import GuestIntent, Intent
from hosttune.planning.mig import counts_inside
from hosttune.planning.settings import GUEST, KEEP, SETTINGS, wanted

# Where the applier keeps a guest's files: the state directory of root.
GUESTS_FOLDER = "/var/lib/hosttune/guests"
# Host settings whose part on the passed endpoint is made in the guest, in the plan's order.
ON_ENDPOINTS = ("aspm", "read_request_bytes", "relaxed_ordering")


def seed_path(guest: GuestIntent) -> str | None:
    """The seed image of a guest that asks for one, or whose MIG instances it has to make; None for the others."""
    return f"{GUESTS_FOLDER}/{guest.name}/seed.iso" if guest.seed or counts_inside(guest) else None


def guest_settings(intent: Intent, guest: GuestIntent) -> Mapping[str, Any] | None:
    """What the intent wants inside a guest, resolved, by name; None where that is nothing.

    `profile: none` brings nothing, the others bring persistence: inside the guest it is the guest's own affair, so
    `guest` brings it as `host` does. A power limit only where the intent gives one, a sysctl only by its name.
    """
    values = {
        "persistence": _persistence(intent),
        "power_limit_watts": _watts(intent),
        **{name: wanted(intent, name) for name in ON_ENDPOINTS if name in SETTINGS},
        "sysctl": guest.sysctl or None,
    }
    return {name: value for name, value in values.items() if value is not None} or None


def _persistence(intent: Intent) -> bool | None:
    given = (intent.settings or {}).get("persistence", intent.profile in GUEST)
    return None if given is False or given == KEEP else True


def _watts(intent: Intent) -> int | None:
    given = (intent.settings or {}).get("power_limit_watts")
    return given if isinstance(given, int) and not isinstance(given, bool) else None
