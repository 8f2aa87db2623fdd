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

from hosttune.gpu import fmpm
from hosttune.gpu.settings import GpuMigMode
from hosttune.gpu.vgpu_set import MediatedDevice, MigInstanceSetting, VgpuFunctions
from hosttune.inventory.bare import runs
from hosttune.inventory.virtualfunctions import functions_of
from hosttune.knobs.knob import make_action
from hosttune.knobs.registry import given_up as kept_by_name
from hosttune.model import sysfs
from hosttune.model.commandline import PAGES
from hosttune.model.force import InForce, SettingInForce
from hosttune.model.host import Host
from hosttune.model.plan import Action, MigAssignment, PlannedGuest
from hosttune.model.values import CpuSet, FrozenMap, parse_cpus
from hosttune.planning.host.actions import OF_STARTS
from hosttune.planning.standing import StandingIntent, beyond
from hosttune.settings.cpus import EnergyPreference, Governor, ResumeLatency
from hosttune.settings.files import NodeHugePages
from hosttune.settings.hook import LibvirtHook
from hosttune.settings.irqs import DefaultAffinity, IrqAffinity, IrqbalanceBan, SliceCpus
from hosttune.settings.kernelargs import KernelArguments
from hosttune.settings.virtual import VgpuTypeSetting

Key = tuple[str, str]  # kind; target, or one CPU of it
When = Literal["now", "next-start", "after-stop", "reboot"]
_PER_CPU = {cls.kind: cls for cls in (Governor, EnergyPreference, ResumeLatency)}
_UNSEEN = (IrqAffinity.kind, LibvirtHook.kind, KernelArguments.kind)  # the host document does not say how they are set
_AS_FOUND = (fmpm.KIND, *(cls.kind for cls in (GpuMigMode, MigInstanceSetting, VgpuFunctions, MediatedDevice)))
_NONE_IS_KNOWN = (MediatedDevice.kind, "driver", "mount", "irqbalance-ban", "slice-cpus", "apparmor-rule")
_RESTART = "libvirt-restart"
# What apply does for guests and files by itself: no action of a plan.
_NO_ACTION = (
    *(
        "guest",
        "adopted-guest",
        "guest-disk",
        "guest-files",
        "guest-state",
        "guest-autostart",
        "live-affinity",
        "drop-in",
    ),
    _RESTART,
)
_SHORT = ("clamped", "ignored", "stuck")


class _Held(msgspec.Struct, frozen=True):
    """A part of a setting in force."""

    setting: SettingInForce
    original: Any
    want: Any
    after: Any


_Row = tuple[tuple[Any, ...], Action, str]  # what is alike becomes one action; the action; the part


def values_of(actions: Iterable[Action]) -> Mapping[Key, Any]:
    """Return the present value of each part that these actions are about."""
    return {(action.kind, part): action.current for action in actions for part in _parts(action.kind, action.target)}


def rebase(
    host: Host,
    standing: StandingIntent,
    desired: Collection[Action],
    live: Mapping[Key, Any],
    guests: Sequence[PlannedGuest],
) -> tuple[Action, ...]:
    """Return the actions that change something, sets before backs.

    `live`: the values now, as far as the host document has them; else they are as last read back. Pages that only a
    present run of a guest has stay until it has stopped.
    """
    force = host.in_force or InForce()
    had = {device.address for guest in standing.fixed for device in guest.places.devices}
    beside = _Beside(
        standing=standing,
        live=live,
        held=dict(_held(force)),
        busy=_busy(standing, guests),
        gone=had - host.index.pci.keys(),
        had_mig={guest.name: guest.places.mig for guest in force.guests},
        same=all(guest.change == "keep" for guest in guests),
    )
    rows: dict[tuple[Any, ...], tuple[Action, list[str]]] = {}
    for alike, action, part in (*beside.sets(desired), *beside.backs(host, force, desired, guests)):
        rows.setdefault(alike, (action, []))[1].append(part)
    actions = [_of_parts(action, parts) for action, parts in rows.values()]
    ends = tuple(dict.fromkeys(name for action in actions for name in action.holders))
    return tuple(  # at the end of a guest libvirt's hook starts what has waited for it
        changed(action, when="after-stop", holders=ends)
        if ends and action.kind == LibvirtHook.kind and action.change == "back"
        else action
        for action in actions
    )


class _Beside(msgspec.Struct, frozen=True):
    """What the actions are compared with. `gone`: devices that the host lost, whose guests are left as they are.

    `had_mig`: the instances of each guest in force. `same`: no guest changes.
    """

    standing: StandingIntent
    live: Mapping[Key, Any]
    held: Mapping[Key, _Held]
    busy: Mapping[str, Mapping[str, int]]
    gone: Collection[str]
    had_mig: Mapping[str, Collection[MigAssignment]]
    same: bool

    def sets(self, desired: Iterable[Action]) -> Iterator[_Row]:
        """Yield the actions that set something else than there is."""
        run_with = {device for guest in self.standing.residents.values() if runs(guest) for device in guest.devices}
        for action in desired:
            for part in _parts(action.kind, action.target):
                was = self.held.get((action.kind, part))
                now = self.live.get((action.kind, part), was.after if was else action.current)
                # Somebody else may have written what is wanted from now on: that it is wanted is then all there is to
                # do. Guests of others change what is wanted of pages and the ban, too.
                noted = (action.kind not in _AS_FOUND if was is None else was.want == action.want) or (
                    self.same and action.kind in (NodeHugePages.kind, IrqbalanceBan.kind)
                )
                if (now == action.want == action.current and noted) or not self._is_due(action, part):
                    continue
                due = action
                if action.when == "next-start" and part in run_with:
                    due = changed(due, when="now")
                if was and action.kind == NodeHugePages.kind:
                    due = changed(due, why=due.why.partition(",")[0])  # free on the bare host is not free now
                want, holders = self._until_stopped(action, part, now)
                if want != action.want:
                    later = changed(due, current=want, when="after-stop", holders=tuple(holders))
                    yield (due.id, "after-stop", part), later, part
                ours = was is not None and was.want == want
                if (now == want and (noted or holders)) or (was and ours and _is_settled(action.kind, now, was)):
                    continue
                due = changed(due, current=now, want=want, drift=ours)
                yield (due.id, now, want, due.when, ours), due, part

    def _is_due(self, action: Action, part: str) -> bool:
        """Return whether it is to be done: not for a lost device, nor a restart of what is not there now."""
        if (
            action.kind == NodeHugePages.kind
            and action.effect == "reboot"
            and (KernelArguments.kind, PAGES) in self.held
        ):
            return False  # the next boot reserves them already
        return part not in self.gone and (action.kind != _RESTART or (action.kind, part) in self.live)

    def _until_stopped(self, action: Action, part: str, now: Any) -> tuple[Any, Collection[str]]:
        """Return the value until present runs of guests have stopped, and these guests."""
        if action.kind == NodeHugePages.kind and type(now) is int:
            holders = self.busy.get(part, {})
            return action.want + sum(holders.values()), holders
        if action.kind in (IrqbalanceBan.kind, SliceCpus.kind, DefaultAffinity.kind):
            cpus = {int(cpu): names for cpu, names in self.busy.items() if cpu.isdecimal()}
            names = dict.fromkeys(name for guests in cpus.values() for name in guests)
            want = parse_cpus(action.want)
            return str(CpuSet(want.union(cpus) if action.kind == IrqbalanceBan.kind else want.difference(cpus))), names
        if action.kind == fmpm.KIND and now != action.want and (users := self._holders(action.kind, part)):
            return now, users
        return action.want, ()

    def _holders(self, kind: str, part: str) -> Collection[str]:
        """Return the guests of which only the present run holds a part; a partition changes under none that runs."""
        if kind in (MigInstanceSetting.kind, VgpuFunctions.kind):
            gpu, _, place = part.partition(" ")
            return [
                name
                for name, run in self.standing.residents.items()
                if runs(run)
                and any(
                    assignment.gpu == gpu and place in ("", f"{assignment.profile}:{assignment.start}")
                    for assignment in self.had_mig.get(name, ())
                )
            ]
        if kind != fmpm.KIND:
            return self.busy.get(part, ())
        gpus = fmpm.parts_of(part)[1]
        return [
            name for name, run in self.standing.residents.items() if runs(run) and not {*gpus}.isdisjoint(run.devices)
        ]

    def backs(
        self, host: Host, force: InForce, desired: Iterable[Action], guests: Sequence[PlannedGuest]
    ) -> Iterator[_Row]:
        """Yield the actions that put back what is in force and not desired any more."""
        left = {(action.kind, part) for action in desired for part in _parts(action.kind, action.target)}
        left |= set(kept_by_name(self.standing.intent, self.held))
        pools, now_there = (dict(_pools(side)) for side in (self.standing.bare, host))
        for key, was in self.held.items():
            if key in left or key[1] in self.gone or _stays(force, key, was, guests):
                continue
            kind, part = key
            holders = tuple(self._holders(kind, part))
            reboot = was.setting.scope == "boot"
            want = pools.get(part, was.original)
            if want != was.original and want == now_there.get(part):
                continue  # of a pool: others use what is there
            now = self.live.get(key, now_there.get(part, was.after))
            back = changed(
                make_action(
                    kind,
                    was.setting.target,
                    now,
                    want,
                    "nothing in force asks for it any more: back to what it was before hosttune's first write",
                ),
                effect="reboot" if reboot else "now",
                change="back" if want == was.original else "set",
                when="after-stop" if holders else "reboot" if reboot else "now",
                holders=holders,
            )
            yield (back.id, "back", back.current, back.want, back.holders), back, part


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
    for setting in force.settings:
        if setting.kind in _NO_ACTION:
            continue
        if setting.kind in _PER_CPU or setting.kind == KernelArguments.kind:
            for part, want in setting.want.items():
                yield (setting.kind, part), _Held(setting, setting.original.get(part), want, setting.after.get(part))
        else:
            yield (
                (setting.kind, setting.target),
                _Held(setting, _whole(setting.original), _whole(setting.want), _whole(setting.after)),
            )


def _whole(parts: Mapping[str, Any]) -> Any:
    """Return the value of a setting that is one value, or one now and one at the next boot (`NowAndAtBoot`)."""
    values = list(parts.values())
    is_whole = set(parts) == {""} or (set(parts) == {"now", "boot"} and values[0] == values[1])
    return values[0] if is_whole else FrozenMap(parts)


def _is_settled(kind: str, now: Any, was: _Held) -> bool:
    """Return whether a setting that is in force as wanted is to be left alone although another value is seen."""
    unknown = kind in _UNSEEN or (now is None and kind not in _NONE_IS_KNOWN)
    return unknown or (was.setting.outcome in _SHORT and now == was.after)


def _stays(force: InForce, key: Key, was: _Held, guests: Sequence[PlannedGuest]) -> bool:
    """Return whether a setting is still needed although the facts no longer show it."""
    kind, part = key
    adopted = [guest_in_force.adopted.guest for guest_in_force in force.guests if guest_in_force.adopted is not None]
    if was.setting.source is not None and was.setting.source.kind == "adopted":
        return bool(adopted)
    if kind in _PER_CPU:
        return any(int(part) in parse_cpus(pin.cpus) for guest in adopted for pin in guest.vcpu_pins)
    devices = {device.address for guest in (*guests, *adopted) for device in guest.devices}
    if kind == fmpm.KIND:  # the Fabric Manager may not have answered; with MIG inside none is needed
        number, gpus = fmpm.parts_of(part)
        return any(
            guest.fabric_partition in (None, number) and {*gpus} <= {device.address for device in guest.devices}
            for guest in guests
            if not guest.mig
        )
    if kind == LibvirtHook.kind:  # as long as something stays that it sets
        return any(key[0] in OF_STARTS and _stays(force, key, held, guests) for key, held in _held(force))
    if kind == KernelArguments.kind and part.endswith("iommu"):  # with it, groups are visible
        return bool(devices) and "pt" not in str(was.want).partition("=")[2].split(",")
    return kind in (VgpuTypeSetting.kind, MediatedDevice.kind) and part.partition(" ")[0] in devices


def _of_nic(host: Host, address: str) -> tuple[str, ...]:
    """Return the targets of the settings that make and describe a virtual function."""
    physical = host.index.pci[address].physfn if address in host.index.pci else None
    functions = functions_of(host, physical, 0) if physical is not None else ()
    return (physical, f"{physical}/{functions.index(address)}") if physical and address in functions else ()


def _busy(standing: StandingIntent, guests: Iterable[PlannedGuest]) -> Mapping[str, Counter[str]]:
    """Return the parts that only the present runs of guests hold: by the guest, of a pool the number of its pages."""
    planned, counted = {guest.name: guest for guest in guests}, defaultdict[str, Counter[str]](Counter)
    for name, run in standing.residents.items():
        if not runs(run):
            continue
        entry = beyond(standing.bare, run, planned.get(name), run=True)
        parts = [str(cpu) for pin in entry.vcpu_pins or () for cpu in parse_cpus(pin.cpus)]
        parts += (a for device in entry.devices for a in (device, *standing.bare.index.above(device)))
        parts += (a for device in entry.devices for a in _of_nic(standing.bare, device))
        for path in parts:
            counted[path][name] += 1
        for part in entry.memory or ():
            if part.node is not None and part.page_bytes:
                pool = sysfs.pool_total(part.node, part.page_bytes)
                counted[pool][name] += (part.memory_bytes or 0) // part.page_bytes
    return counted
