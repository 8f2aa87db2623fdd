"""The settings wanted inside a guest: the plan's `guest_settings`, checked and typed.

They are untrusted input. Unknown names and impossible values are refused (BadInput) with their path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from hosttune.errors import BadInput
from hosttune.model.intent import is_sysctl
from hosttune.model.plan import PlannedGuest
from hosttune.model.values import Closed

MAX_WATTS = 10_000  # far above any board; the driver refuses what the board does not support
READ_REQUESTS = tuple(128 << n for n in range(6))  # pci_regs.h, PCI_EXP_DEVCTL_READRQ: field n = 128 << n bytes


class WantedInside(Closed, frozen=True, kw_only=True):
    """The settings wanted inside a guest. None or False: the setting is not changed.

    `aspm_off`, `read_request_bytes` and `relaxed_ordering` are settings of the passed endpoints, whose registers vfio
    resets when the guest opens them. `sysctl` has only what the intent names.
    """

    persistence: bool = False
    power_limit_watts: int | None = None
    aspm_off: bool = False
    read_request_bytes: int | None = None
    relaxed_ordering: bool | None = None
    sysctl: Mapping[str, str] | None = None

    MAPPINGS = ("sysctl",)


def read_wanted(guest: PlannedGuest) -> WantedInside:
    """Return the guest's settings. Raises BadInput for an unknown setting or an impossible value."""
    fields: dict[str, Any] = {}
    for name, value in (guest.guest_settings or {}).items():
        where = f"plan: guests[{guest.name!r}].guest_settings.{name}"
        reader = _READERS.get(name)
        if reader is None:
            raise BadInput(f"no setting {name!r} inside a guest", where=where, hint=f"known: {', '.join(_READERS)}")
        if value is not None:
            field, read = reader
            fields[field] = read(value, where)
    return WantedInside(**fields)


def _switch(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        _refuse(value, where, "true or false")
    return value


def _on_or_off(value: object, where: str) -> bool:
    """Return a switch from a truth value or from an intent's word: in YAML 1.2 `off` is text."""
    return _switch({"on": True, "off": False}.get(value, value) if isinstance(value, str) else value, where)


def _watts(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_WATTS:
        _refuse(value, where, f"whole watts from 1 to {MAX_WATTS}")
    return value


def _off(value: object, where: str) -> bool:
    if value != "off":
        _refuse(value, where, '"off"')
    return True


def _read_request(value: object, where: str) -> int:
    if isinstance(value, bool) or value not in READ_REQUESTS:
        _refuse(value, where, f"one of {', '.join(map(str, READ_REQUESTS))}")
    return int(value)


def _sysctl(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        _refuse(value, where, "a mapping of names to values")
    for name, wanted in value.items():
        if not is_sysctl(name, wanted):
            _refuse({name: wanted}, where, "names such as vm.nr_hugepages, and words with single spaces between")
    return {name: str(wanted) for name, wanted in value.items()}


def _refuse(value: object, where: str, allowed: str) -> NoReturn:
    raise BadInput(f"invalid value {value!r}", where=where, hint=f"allowed: {allowed}")


_READERS: Mapping[str, tuple[str, Callable[[Any, str], object]]] = {
    "persistence": ("persistence", _switch),
    "power_limit_watts": ("power_limit_watts", _watts),
    "aspm": ("aspm_off", _off),
    "read_request_bytes": ("read_request_bytes", _read_request),
    "relaxed_ordering": ("relaxed_ordering", _on_or_off),
    "sysctl": ("sysctl", _sysctl),
}
