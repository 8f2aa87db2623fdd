"""The settings that a physical function keeps for a virtual one: read, put back, and read again.

They outlive the guest: address, VLAN, rates, spoof check, link state, trust, RSS query, GUIDs. They are put back to
what they were before its last guest was started, or when the function was last clean (or was accepted), else to what
the kernel begins with: no address of its own, no VLAN, no limits, link state auto, no trust (net/core/rtnetlink.c,
struct ifla_vf_info), and the spoof check that the driver begins with. What else a tenant can have made lives in the
driver of the virtual function, in the guest, or in the function itself, and is gone with the guest, the unbind and the
reset.

How they are read and set: `hosttune.settings.virtual`.
"""

from __future__ import annotations

import re
from functools import partial

import msgspec

from hosttune.handover.binding import refuse_users
from hosttune.handover.network.known import Before, FunctionFacts, forget_start, keep, known, recorded_start
from hosttune.handover.targets import Target
from hosttune.machine.child import in_child
from hosttune.machine.iplink import Settings, read_function, uplink
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.clock import now_text
from hosttune.model.handover import HandoverStep
from hosttune.model.values import FrozenMap
from hosttune.settings.drivers import SriovVfs, virtual_functions
from hosttune.settings.setting import driver_of
from hosttune.settings.virtual import commands

LIMIT_SECONDS, ESTIMATE_SECONDS = 300.0, 10.0
_METHOD = "state of its driver gone with unbind and reset; settings of its physical function put back"
_step = partial(HandoverStep, step="erased", method=_METHOD)
_NO_ADDRESS = re.compile(r"[0:]+")
_DEFAULT: Settings = FrozenMap(
    {"vlan": 0, "qos": 0, "protocol": "802.1Q", "max_tx": 0, "min_tx": 0, "link_state": "auto", "trust": False,
     "query_rss_en": False, "address": "00:00:00:00:00:00"}
)  # fmt: skip
# What the driver of a physical function begins with. mlx5_core: its vports are zeroed (eswitch.c); ice_vf_lib.c,
# ice_initialize_vf_entry; i40e_virtchnl_pf.c, i40e_alloc_vfs; ixgbe_sriov.c, __ixgbe_enable_sriov.
_SPOOFCHK = {"mlx5_core": False, "ice": True, "i40e": True, "ixgbe": True}
_HOSTS = "as the host had set it: no guest was started with it since its last hand-over, which was clean"
_DEFAULTS = "the kernel's defaults: nothing was recorded before the tenant"


def first_look(system: System, folder: str, target: Target, physical: str) -> None:
    """Keep the settings that the host gave a function: those from before its guest was started.

    If no guest can have had it since it was clean, they are those that it has now. Raises BadInput, Unreadable,
    WriteFailed.
    """
    if target.unused:
        settings = _read(system, target.address, physical)
        before = None
        if settings is not None:
            before = Before(facts=FunctionFacts(settings=settings), origin="clean", text=_HOSTS, at=now_text())
    else:
        before = at_start(system, folder, target, physical)
    if before is not None:
        keep(folder, msgspec.structs.replace(known(folder, target.address, target.identity), before=before))
    forget_start(folder, target.address)


def at_start(system: System, folder: str, target: Target, physical: str) -> Before | None:
    """Return the settings of a function from before its guest was started; None if no record counts that has them."""
    start = recorded_start(system, folder, target.address, physical)
    settings = _read(start.machine, target.address, physical) if start is not None else None
    return start.before(FunctionFacts(settings=settings)) if start is not None and settings is not None else None


def _read(system: System, address: str, physical: str) -> Settings | None:
    place, _ = _place(system, address, physical)
    return read_function(system, *place) if place is not None else None


def step(system: System, folder: str, target: Target, physical: str) -> HandoverStep:
    """Return the step `erased` of a virtual function. `physical`: address of its physical one. Raises HosttuneError."""
    place, why = _place(system, target.address, physical)
    if place is None:
        return _step(outcome="unknown", evidence={"physical_function": physical}, why=why)
    interface, number = place
    left = read_function(system, interface, number)
    if left is None:
        why = f"what {interface} keeps for virtual function {number} cannot be read: ip -j link show dev {interface}"
        return _step(outcome="unknown", evidence={"physical_function": physical}, why=why)
    kept = known(folder, target.address, target.identity)
    before = kept.before
    used = before if before is not None and before.facts.settings is not None else None
    want, missing = _wanted(left, before, driver_of(system, physical))
    for words in commands(left, want):
        system.change(("ip", "link", "set", "dev", interface, "vf", str(number), *words))
    system.forget()
    now = read_function(system, interface, number)
    evidence = {
        "physical_function": physical,
        "interface": interface,
        "number": number,
        "left": dict(left),
        "wanted": dict(want),
        "wanted_from": used.text if used is not None else _DEFAULTS,
        "recorded": used.at if used is not None else None,
        "now": None if now is None else dict(now),
    }
    if now is None:
        return _step(
            outcome="unknown",
            evidence=evidence,
            why=f"what {interface} keeps for it cannot be read after it was put back",
        )
    keep(folder, msgspec.structs.replace(kept, seen=FunctionFacts(settings=now)))
    wrong = sorted(
        name for name, value in want.items() if now.get(name) != value and not _is_new(name, value, left, now)
    )
    if wrong:
        texts = ", ".join(f"{name} is {now.get(name)}, not {want[name]}" for name in wrong)
        return _step(
            outcome="failed", evidence=evidence, why=f"what {interface} keeps for it is not as it was: {texts}"
        )
    return _step(outcome="unknown" if missing else "done", evidence=evidence, why="; ".join(missing) or None)


def goes_back_to(system: System, folder: str, target: Target, physical: str) -> str:
    """Return what the settings of a virtual function go back to, in words. Raises BadInput, Unreadable."""
    if target.unused:
        return "what they are now: no guest was started with it since its last hand-over"
    before = at_start(system, folder, target, physical) or known(folder, target.address, target.identity).before
    return before.text if before is not None and before.facts.settings is not None else _DEFAULTS


def _place(system: System, address: str, physical: str) -> tuple[tuple[str, int] | None, str]:
    """Return (the interface of the physical function and the virtual one's number, ""), or (None, why not)."""
    folder = sysfs.function(physical)
    numbers = [
        int(name.removeprefix("virtfn"))
        for name in system.list(folder)
        if re.fullmatch(r"virtfn[0-9]{1,5}", name)
        and (system.link(f"{folder}/{name}") or "").rpartition("/")[2] == address
    ]
    interface, why = uplink(system, physical)
    if len(numbers) != 1:
        return None, f"which virtual function of {physical} it is cannot be told"
    return (None, why) if interface is None else ((interface, numbers[0]), "")


def _wanted(left: Settings, before: Before | None, driver: str | None) -> tuple[Settings, list[str]]:
    """Return (what the function shall have, of what it has; what of that is not known)."""
    recorded = before.facts.settings if before is not None else None
    if recorded is not None:
        missing = [
            f"{name} of it was {recorded[name]}, and cannot be read now" for name in recorded if name not in left
        ]
        return FrozenMap({name: value for name, value in recorded.items() if name in left}), missing
    defaults = {**_DEFAULT, **({"spoofchk": _SPOOFCHK[driver]} if driver in _SPOOFCHK else {})}
    missing = [
        f"what {name} of it was is not recorded, and what the kernel begins with is not known"
        for name in left
        if name not in defaults
    ]
    return FrozenMap({name: defaults[name] for name in left if name in defaults}), missing


def _is_new(name: str, value: object, left: Settings, now: Settings) -> bool:
    """Return whether an address that was taken away is shown as one that the driver made, and not the tenant's."""
    return name == "address" and bool(_NO_ADDRESS.fullmatch(str(value))) and now.get(name) != left.get(name)


def remove_all(system: System, address: str) -> tuple[str, ...]:
    """Remove the virtual functions of a physical one that is handed over; return their addresses. Raises WriteFailed.

    Their settings go with them. One that is used, or is bound to vfio-pci, refuses.
    """
    functions = virtual_functions(system, address)
    if not functions:
        return ()
    for function in functions:
        refuse_users(system, function)
    setting = SriovVfs.of(address)
    in_child(
        lambda: setting.write(system, 0), setting.limit_seconds or LIMIT_SECONDS, f"virtual functions of {address}"
    )
    system.forget()
    return functions
