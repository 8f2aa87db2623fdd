"""The actions that lead from the present values to the wanted ones, beside what hosttune has applied before.

Pure. `desired` are all actions of a plan on the bare host, also those for what is as wanted there; each is compared
with the value that the host has now. What is in force and not desired any more goes back to its original.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace as changed

from hosttune.inventory.bare import runs
from hosttune.knobs.knob import make_action
from hosttune.knobs.registry import given_up as kept_by_name
from hosttune.model import sysfs
from hosttune.model.commandline import PAGES
from hosttune.model.force import InForce, SettingInForce
from hosttune.model.host import Host
from hosttune.model.plan import Action, PlannedGuest
from hosttune.model.values import CpuSet, FrozenMap, parse_cpus
from hosttune.planning.standing import Standing, beyond
from hosttune.settings.cpus import EnergyPreference, Governor, ResumeLatency
from hosttune.settings.irqs import IrqAffinity, IrqbalanceBan
from hosttune.settings.kernelargs import KernelArguments
from hosttune.settings.libvirthook import LibvirtHook
from hosttune.settings.memory import HugePages
from hosttune.settings.vgpu import VgpuType

Key = tuple[str, str]  # kind; target, or one CPU of it
When = Literal["now", "next-start", "after-stop", "reboot"]
_PER_CPU = {cls.kind: cls for cls in (Governor, EnergyPreference, ResumeLatency)}
_UNSEEN = (IrqAffinity.kind, LibvirtHook.kind, KernelArguments.kind)  # the host document does not say how they are set
_NONE_IS_KNOWN = ("driver", "mount", "irqbalance-ban", "apparmor-rule")
_RESTART = "libvirt-restart"
# What apply does for guests and files by itself: no action of a plan.
_NO_ACTION = ("guest", "adopted-guest", "guest-files", "guest-state", "live-affinity", "drop-in", "sriov-vfs", _RESTART)
_SHORT = ("clamped", "ignored", "stuck")
_BACK = "nothing in force asks for it any more: back to what it was before hosttune's first write"


class _Held(msgspec.Struct, frozen=True):
    """A part of a setting in force."""

    setting: SettingInForce
    original: Any
    want: Any
    after: Any


def values_of(actions: Iterable[Action]) -> Mapping[Key, Any]:
    """Return the present value of each part that these actions are about."""
    return {(one.kind, part): one.current for one in actions for part in _parts(one.kind, one.target)}


def rebase(
    host: Host,
    standing: Standing,
    desired: Iterable[Action],
    live: Mapping[Key, Any],
    guests: Sequence[PlannedGuest],
) -> tuple[Action, ...]:
    """Return the actions that change something, sets before backs.

    `live`: the values now, as far as the host document has them; else they are as last read back. Pages that only a
    present run of a guest has stay until it has stopped.
    """
    busy = _busy(standing, guests)
    force = host.in_force or InForce()
    held = dict(_held(force))
    had = {device.address for guest in standing.fixed for device in guest.places.devices}
    run_with = {device for one in standing.residents.values() if runs(one) for device in one.devices}
    gone = had - host.index.pci.keys()  # their guests are left as they are
    wanted: set[Key] = set()
    rows: dict[tuple[Any, ...], tuple[Action, list[str]]] = {}
    for action in desired:
        for part in _parts(action.kind, action.target):
            key, want, when = (action.kind, part), action.want, action.when
            wanted.add(key)
            was = held.get(key)
            now = live.get(key, was.after if was else action.current)
            # Somebody else may have written what is wanted from now on: that it is wanted is then all there is to do.
            noted = was is None or was.want == want or action.kind in (HugePages.kind, IrqbalanceBan.kind)
            if (
                (now == want == action.current and noted)
                or part in gone
                or (key not in live and action.kind == _RESTART)
            ):
                continue
            if action.kind == HugePages.kind and action.effect == "reboot" and (KernelArguments.kind, PAGES) in held:
                continue  # the next boot reserves them already
            if when == "next-start" and part in run_with:
                when = "now"
            if was and action.kind == HugePages.kind:
                action = changed(action, why=action.why.partition(",")[0])  # free on the bare host is not free now
            holders: Mapping[str, int] = (
                busy.get(part, {}) if action.kind == HugePages.kind and type(now) is int else {}
            )
            held_now = want + sum(holders.values()) if holders else want
            if action.kind == IrqbalanceBan.kind:
                holders = {name: 0 for cpu, names in busy.items() if cpu.isdecimal() for name in names}
                cpus = (int(cpu) for cpu in busy if cpu.isdecimal())
                held_now = str(CpuSet((*parse_cpus(want), *cpus)))
            if held_now != want:
                later = changed(action, current=held_now, want=want, when="after-stop", holders=tuple(holders))
                rows[key, "after-stop"] = later, [part]
                want = held_now
            ours = was is not None and was.want == want
            if (now == want and noted) or (was is not None and ours and _is_settled(action.kind, now, was)):
                continue
            row = changed(action, current=now, want=want, when=when, drift=ours)
            rows.setdefault((action.id, now, want, when, ours), (row, []))[1].append(part)
    given_up = frozenset(kept_by_name(standing.intent, held))
    stays = frozenset(key for key, was in held.items() if _stays(force, key, was, guests))
    pools, now_there = (dict(_pools(one)) for one in (standing.bare, host))
    for key, was in held.items():
        if key in wanted or key in given_up or key in stays or key[1] in gone:
            continue
        kind, part = key
        reboot = was.setting.scope == "boot"
        want = pools.get(part, was.original)
        if want != was.original and want == now_there.get(part):
            continue  # of a pool: others use what is there
        now = live.get(key, now_there.get(part, was.after))
        back = changed(
            make_action(kind, was.setting.target, now, want, _BACK),
            effect="reboot" if reboot else "now",
            change="back" if want == was.original else "set",
            when="after-stop" if part in busy else "reboot" if reboot else "now",
            holders=tuple(busy.get(part, ())),
        )
        rows.setdefault((back.id, "back", back.current, back.want, back.holders), (back, []))[1].append(part)
    return tuple(_of_parts(action, parts) for action, parts in rows.values())


def _pools(host: Host) -> Iterator[tuple[str, int | None]]:
    """Yield the pools of huge pages by the paths of their nr_hugepages, with their sizes."""
    for node in host.numa_nodes:
        for pool in node.hugepages or ():
            yield sysfs.pool_total(node.id, pool.size_bytes), pool.total


def _parts(kind: str, target: str) -> Iterable[str]:
    cls = _PER_CPU.get(kind)
    return [target] if cls is None else map(str, sorted(cls.of(target).cpus))


def _of_parts(action: Action, parts: Collection[str]) -> Action:
    cls = _PER_CPU.get(action.kind)
    target = next(iter(parts)) if cls is None else cls(action.target).target_of(parts)
    return changed(action, id=f"{action.kind}:{target}", target=target)


def _held(force: InForce) -> Iterator[tuple[Key, _Held]]:
    for one in force.settings:
        if one.kind in _NO_ACTION:
            continue
        if one.kind in _PER_CPU or one.kind == KernelArguments.kind:
            for part, want in one.want.items():
                yield (one.kind, part), _Held(one, one.original.get(part), want, one.after.get(part))
        else:
            yield (one.kind, one.target), _Held(one, _whole(one.original), _whole(one.want), _whole(one.after))


def _whole(parts: Mapping[str, Any]) -> Any:
    """Return the value of a setting that is one value, or one now and one at the next boot (`NowAndAtBoot`)."""
    values = list(parts.values())
    one = set(parts) == {""} or (set(parts) == {"now", "boot"} and values[0] == values[1])
    return values[0] if one else FrozenMap(parts)


def _is_settled(kind: str, now: Any, was: _Held) -> bool:
    """Return whether a setting that is in force as wanted is to be left alone although another value is seen."""
    unknown = kind in _UNSEEN or (now is None and kind not in _NONE_IS_KNOWN)
    return unknown or (was.setting.outcome in _SHORT and now == was.after)


def _stays(force: InForce, key: Key, was: _Held, guests: Iterable[PlannedGuest]) -> bool:
    """Return whether a setting is still needed although the facts no longer show it."""
    kind, part = key
    adopted = [one.adopted.guest for one in force.guests if one.adopted is not None]
    if was.setting.source is not None and was.setting.source.kind == "adopted":
        return bool(adopted)
    if kind in _PER_CPU:
        return any(int(part) in parse_cpus(pin.cpus) for guest in adopted for pin in guest.vcpu_pins)
    devices = {device.address for guest in (*guests, *adopted) for device in guest.devices}
    if kind == KernelArguments.kind and part.endswith("iommu"):  # with it, groups are visible
        return bool(devices) and "pt" not in str(was.want).partition("=")[2].split(",")
    return kind == VgpuType.kind and part in devices


def _busy(standing: Standing, guests: Iterable[PlannedGuest]) -> Mapping[str, Counter[str]]:
    """Return the parts that only the present runs of guests hold: by the guest, of a pool the number of its pages."""
    planned, found = {guest.name: guest for guest in guests}, defaultdict[str, Counter[str]](Counter)
    for name, run in standing.residents.items():
        if not runs(run):
            continue
        entry = beyond(standing.bare, run, planned.get(name), run=True)
        parts = [str(cpu) for pin in entry.vcpu_pins or () for cpu in parse_cpus(pin.cpus)]
        parts += (a for device in entry.devices for a in (device, *standing.bare.index.above(device)))
        for one in parts:
            found[one][name] += 1
        for part in entry.memory or ():
            if part.node is not None and part.page_bytes:
                pool = sysfs.pool_total(part.node, part.page_bytes)
                found[pool][name] += (part.memory_bytes or 0) // part.page_bytes
    return found
