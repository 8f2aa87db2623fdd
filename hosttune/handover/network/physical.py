"""What a physical network function was left with: its addresses, its interfaces, and the configuration of its firmware.

Steering rules, tc filters, XDP programs, bonds, RDMA objects and devlink's settings that are not permanent live in the
driver's instance of the function. The kernel removes them when the driver lets go (unregister_netdevice:
net/core/dev.c; devlink_free: net/devlink/core.c; ib_unregister_device: drivers/infiniband/core/device.c), and the reset
clears what the device itself had of them. What shows it: the function had no driver of the host when it was reset
(step `reset`), and its interfaces were made anew afterwards: no XDP program is on them, no virtual function is there.

What stays is in the device: addresses, firmware, and the configuration of the firmware. They are read, never written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from hosttune.handover.network import tools
from hosttune.handover.network.known import Before, FunctionFacts, forget_start, keep, known, recorded_start
from hosttune.handover.network.tools import Configuration, KernelInterface
from hosttune.handover.targets import Target
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.clock import now_text
from hosttune.model.handover import HandoverStep, digest_of
from hosttune.settings.setting import driver_of

LIMIT_SECONDS, ESTIMATE_SECONDS = 300.0, 10.0
_METHOD = "state of the driver gone with unbind and reset; addresses and firmware configuration compared"
_step = partial(HandoverStep, step="erased", method=_METHOD)
_MOST_NAMED = 8
_INFINIBAND = "infiniband"


def first_look(system: System, folder: str, target: Target, number: int) -> None:
    """Keep what is to be compared with, before anything is done, unless a hand-over or a person settled it.

    That is the record of the guest's start, else the firmware configuration as it is now. Raises BadInput, Unreadable,
    WriteFailed.
    """
    function = known(folder, target.address, target.identity)
    before = _recorded(system, folder, target)
    if before is None:
        read, _ = tools.configuration(system, target.address, None)
        before = _before(FunctionFacts(configuration=read), number) if read is not None else None
    if before != function.before:
        keep(folder, msgspec.structs.replace(function, before=before))
    forget_start(folder, target.address)


def compared_with(system: System, folder: str, target: Target) -> str:
    """Return what a hand-over compares a function with, in words. Raises BadInput, Unreadable."""
    before = _recorded(system, folder, target)
    return before.text if before is not None else "as it is found, after the tenant: nothing was recorded"


def _recorded(system: System, folder: str, target: Target) -> Before | None:
    """Return what a hand-over or a person settled, else the record of the guest's start, else what was found before."""
    before = known(folder, target.address, target.identity).before
    settled = before is not None and before.origin in ("clean", "accepted")
    return before if settled else _at_start(system, folder, target) or before


def _at_start(system: System, folder: str, target: Target) -> Before | None:
    """Return what a function was like before its guest was started; None without its firmware configuration."""
    start = recorded_start(system, folder, target.address)
    if start is None:
        return None
    there = start.machine
    read, _ = tools.configuration(there, target.address, driver_of(there, target.address))
    interfaces = [tools.interface_of(there, name) for name in tools.names_of(there, target.address, "net")]
    addresses, unknown = _addresses(there, target.address, interfaces)
    firmware = tools.versions(there, target.address)
    facts = FunctionFacts(addresses=None if unknown else addresses, configuration=read, firmware=firmware)
    return start.before(facts) if read is not None else None


def _before(facts: FunctionFacts, number: int) -> Before:
    return Before(facts=facts, origin="found", text=f"as hand-over {number} found it, after the tenant", at=now_text())


def step(system: System, folder: str, target: Target, driver: str | None, number: int) -> HandoverStep:
    """Return the step `erased` of a function that the host's driver has. Raises BadInput, Unreadable."""
    interfaces = [tools.interface_of(system, name) for name in tools.names_of(system, target.address, "net")]
    addresses, unknown = _addresses(system, target.address, interfaces)
    configuration, lacking = tools.configuration(system, target.address, driver)
    facts = FunctionFacts(addresses=addresses, configuration=configuration)
    kept = known(folder, target.address, target.identity)
    before = _filled(kept.before, facts, number)
    keep(folder, msgspec.structs.replace(kept, before=before, seen=facts))
    evidence = _evidence(interfaces, facts, before, kept.before, tools.waiting(system, target.address))
    # The versions of the firmware that are not as they were before the guest was started.
    old, new = before.facts.firmware or {}, tools.versions(system, target.address) or {}
    firmware = (
        f"firmware {name} was {old[name]}, and is {new.get(name, 'not told')} ({before.text})"
        for name in sorted(old)
        if old[name] != new.get(name)
    )
    failed = [*_left(interfaces), *_differences(facts, before), *firmware, *_waiting(evidence)]
    if failed:
        return _step(outcome="failed", evidence=evidence, why="; ".join(failed))
    unknown += [lacking] if lacking else []
    if configuration is not None and (kept.before is None or kept.before.facts.configuration is None):
        unknown.append("its firmware configuration could not be read before: it is recorded now, hand it over again")
    return _step(outcome="unknown" if unknown else "done", evidence=evidence, why="; ".join(unknown) or None)


def _filled(before: Before | None, facts: FunctionFacts, number: int) -> Before:
    """Return what to compare with: what of it was not known before is what is read now."""
    if before is None:
        return _before(facts, number)
    old = before.facts
    merged = FunctionFacts(
        addresses=old.addresses if old.addresses is not None else facts.addresses,
        configuration=old.configuration if old.configuration is not None else facts.configuration,
        firmware=old.firmware,
    )
    return msgspec.structs.replace(before, facts=merged)


def _addresses(
    system: System, address: str, interfaces: Iterable[KernelInterface | None]
) -> tuple[Mapping[str, str] | None, list[str]]:
    """Return (the addresses that are burnt in, by name; what is unknown). Names of interfaces can change."""
    addresses: dict[str, set[str]] = {}
    unknown = []
    for interface in interfaces:
        if interface is None:
            unknown.append("ip cannot be asked about its interface (package iproute2)")
        elif interface.kind != _INFINIBAND and interface.permanent is None:
            unknown.append(f"the permanent address of {interface.name} is unknown: install ethtool")
        elif interface.kind != _INFINIBAND:
            addresses.setdefault("permanent address", set()).add(str(interface.permanent))
    for name in tools.names_of(system, address, _INFINIBAND):
        for file in ("node_guid", "sys_image_guid"):
            text = (system.read(sysfs.function(address, f"{_INFINIBAND}/{name}/{file}")) or "").strip()
            if text:
                addresses.setdefault(file, set()).add(text)
    if not addresses and not unknown:
        unknown.append("its driver shows neither a network interface nor an RDMA device")
    return {name: " ".join(sorted(texts)) for name, texts in sorted(addresses.items())} or None, unknown


def _left(interfaces: Iterable[KernelInterface | None]) -> Iterable[str]:
    """Yield what is on the interfaces that a new one of the driver would not have."""
    for interface in interfaces:
        if (
            interface is not None
            and interface.kind != _INFINIBAND
            and interface.permanent not in (None, interface.address)
        ):
            yield (
                f"{interface.name} has the address {interface.address}, and {interface.permanent} is burnt in:"
                f" ip link set dev {interface.name} address {interface.permanent}, or find what of the host sets it"
            )
        if interface is not None and interface.xdp:
            yield (
                f"{interface.name} has an XDP program: ip link set dev {interface.name} xdp off, or find what loads it"
            )


def _differences(facts: FunctionFacts, before: Before) -> Iterable[str]:
    """Yield what is not as it was, and what is about to change without anybody of the host having been asked."""
    old, new = before.facts.addresses or {}, facts.addresses or {}
    for name in sorted(old.keys() & new.keys()):
        if old[name] != new[name]:
            yield f"{name} was {old[name]}, and is {new[name]} ({before.text})"
    if before.facts.addresses is not None and old.keys() - new.keys():
        yield f"{', '.join(sorted(old.keys() - new.keys()))} was there, and cannot be read now ({before.text})"
    was, now_ = before.facts.configuration, facts.configuration
    if was is None or now_ is None:
        return
    if was.source.split(" ")[0] != now_.source.split(" ")[0]:
        yield f"its firmware configuration was read by {was.source}, and now by {now_.source}: they cannot be compared"
        return
    names = sorted(
        {name for name in was.values.keys() | now_.values.keys() if was.values.get(name) != now_.values.get(name)}
        | {name for name in was.current.keys() & now_.current.keys() if was.current[name] != now_.current[name]}
    )
    if names:
        changes = ", ".join(
            f"{name} was {_shown(was, name)}, and is {_shown(now_, name)}" for name in names[:_MOST_NAMED]
        )
        rest = f", and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        yield f"its firmware configuration changed ({before.text}): {changes}{rest}; {_back(was, names)}"
    elif before.origin in ("start", "found") and now_.pending:
        listed = ", ".join(f"{name}: {_shown(now_, name)}" for name in now_.pending[:_MOST_NAMED])
        yield (
            f"its firmware configuration is about to change, and whether the tenant did that is not known: {listed};"
            f" {_back(now_, now_.pending)}"
        )


def _shown(configuration: Configuration, name: str) -> str:
    later, current = configuration.values.get(name, "absent"), configuration.current.get(name)
    return later if current in (None, later) else f"{current}, {later} after the next boot of the firmware"


def _back(want: Configuration, names: Iterable[str]) -> str:
    """Return what the operator can do; hosttune does not write it."""
    accept = "if it is right: hosttune handover release"
    if not want.source.startswith(("mstconfig", "mlxconfig")):
        return f"set it back with devlink dev param set, or {accept}"
    words = want.source.split(" ")
    values = " ".join(
        f"{name}={want.current.get(name, want.values.get(name, '?')).partition('(')[0]}"
        for name in list(names)[:_MOST_NAMED]
    )
    return f"hosttune does not write it: {words[0]} -d {words[3]} set {values}, then a power cycle; {accept}"


def _waiting(evidence: Mapping[str, Any]) -> Iterable[str]:
    stored = evidence["firmware_stored"]
    if stored:
        listed = ", ".join(f"{name} {text}" for name, text in stored.items())
        yield f"other firmware is stored in it, and will run after its next reset: {listed}"


def _evidence(
    interfaces: Iterable[KernelInterface | None],
    facts: FunctionFacts,
    used: Before,
    kept: Before | None,
    stored: Mapping[str, str],
) -> dict[str, Any]:
    read = facts.configuration
    return {
        "interfaces": [
            {
                "name": interface.name,
                "ifindex": interface.index,
                "address": interface.address,
                "permanent": interface.permanent,
                "xdp": list(interface.xdp),
            }
            for interface in interfaces
            if interface is not None
        ],
        "virtual_functions": 0,
        "addresses": None if facts.addresses is None else dict(facts.addresses),
        "compared_with": used.text if kept is not None else "nothing: none was recorded",
        "recorded": used.at,
        "firmware_stored": dict(stored),
        "configuration": None
        if read is None
        else {
            "source": read.source,
            "parameters": len(read.values),
            "sha256": digest_of({"values": read.values, "current": read.current}),
            "pending": list(read.pending),
            "not_default": list(read.changed_from_default),
            "not_shown": list(read.hidden),
        },
    }
