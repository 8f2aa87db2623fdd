"""Knobs of interrupts and of the host's tasks: they stay off the CPUs of guests; those of passed devices go to CPUs
near their guest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hosttune.knobs.knob import GUEST, HOST, Change, Knob, KnobContext, actions_for
from hosttune.linux.irqbalance import IRQBALANCE, IRQBALANCE_THEIRS
from hosttune.model.plan import Action, Device, PlanFinding, PlannedGuest
from hosttune.model.values import CpuSet, parse_cpus
from hosttune.settings.irqs import (
    DEFAULT_AFFINITY,
    SLICES,
    DefaultAffinity,
    IrqAffinity,
    IrqbalanceBan,
    SliceCpus,
    cpu_list,
    mask_list,
    slice_cpus,
    slice_file,
)


class DeviceOfGuest(NamedTuple):
    """A device that a planned guest gets."""

    ctx: KnobContext
    guest: PlannedGuest
    device: Device


def _ban(ctx: KnobContext, _: bool) -> Iterable[Change]:
    """Yield the change of irqbalance's list of banned CPUs.

    A list replaces irqbalance's own default, the isolated and nohz_full CPUs (cputree.c), and the list in the
    administrator's file. So the new list contains both.
    """
    known = ctx.host.settings or {}
    now = next((known[path] for path in IRQBALANCE if path in known), None)
    other = next((known[path] for path in IRQBALANCE_THEIRS if path in known), None)
    quiet = [cpu.id for cpu in ctx.host.cpus if cpu.isolated or cpu.nohz_full]
    cpus = CpuSet(ctx.pinned | ctx.held_cpus)
    yield Change("irqbalance", now, str(cpus | quiet | CpuSet.parse(cpu_list(other) or "")))


def _affinity(place: DeviceOfGuest, _: bool) -> Iterable[Change]:
    """Yield the affinity: the guest's emulator CPUs on the device's node; if there are none, all emulator CPUs.

    A device has no interrupts before its guest starts.
    """
    service = parse_cpus(place.guest.emulator_cpus)
    node = place.ctx.host.home(place.device.host_node)
    near = service & place.ctx.node_cpus.get(node, service) if node is not None else service
    yield Change(place.device.address, None, str(near or service), when="next-start")


def _left(ctx: KnobContext) -> str:
    """Return the CPUs that no guest has."""
    online = {cpu.id for cpu in ctx.host.cpus if cpu.online is not False}
    return str(CpuSet(online - ctx.pinned - ctx.held_cpus))


def _slices(ctx: KnobContext, _: bool) -> Iterable[Change]:
    known, left = ctx.host.settings or {}, _left(ctx)
    for name in SLICES if left else ():
        yield Change(name, slice_cpus(known.get(slice_file(name))), left)


def _default(ctx: KnobContext, _: bool) -> Iterable[Change]:
    now, left = mask_list((ctx.host.settings or {}).get(DEFAULT_AFFINITY)), _left(ctx)
    if now is not None and left:
        yield Change(DEFAULT_AFFINITY, now, left)


SLICE_CPUS: Knob[KnobContext] = Knob(
    name="slice_cpus",
    setting=SliceCpus,
    profiles=HOST,
    value=True,
    changes=_slices,
    sets="`AllowedCPUs` of system.slice and user.slice: all but pinned CPUs",
    why="services and logins of the host stay off pinned CPUs",
    source="systemd.resource-control(5)",
)
DEFAULT_IRQ_AFFINITY: Knob[KnobContext] = Knob(
    name="default_irq_affinity",
    setting=DefaultAffinity,
    profiles=HOST,
    value=True,
    changes=_default,
    sets="`/proc/irq/default_smp_affinity`: all but pinned CPUs",
    why="interrupts that the host's devices request from now on stay off pinned CPUs",
    source="Documentation/core-api/irq/irq-affinity",
)
IRQBALANCE_BAN: Knob[KnobContext] = Knob(
    name="irqbalance_ban",
    setting=IrqbalanceBan,
    profiles=GUEST,
    value=True,
    changes=_ban,
    sets="keeps irqbalance off pinned CPUs",
    why="interrupts of the host stay off pinned CPUs",
    source="irqbalance(1)",
)
IRQ_AFFINITY: Knob[DeviceOfGuest] = Knob(
    name="irq_affinity",
    kept=True,
    setting=IrqAffinity,
    profiles=GUEST,
    value=True,
    changes=_affinity,
    sets="interrupts of passed devices go to the guest's housekeeping CPUs",
    why="the device's interrupts go to the guest's housekeeping CPUs: pending until the guest runs",
    source="Documentation/core-api/irq/irq-affinity",
)
KNOBS = (IRQBALANCE_BAN, IRQ_AFFINITY, DEFAULT_IRQ_AFFINITY, SLICE_CPUS)


def plan_interrupts(ctx: KnobContext) -> Iterator[Action | PlanFinding]:
    """Yield the CPU ban for irqbalance and the affinity of passed devices; a vGPU's interrupts belong to its driver."""
    of_host = (IRQBALANCE_BAN, DEFAULT_IRQ_AFFINITY, SLICE_CPUS)
    yield from actions_for(ctx.intent, of_host, (ctx,), every=ctx.every)
    devices = (DeviceOfGuest(ctx, guest, device) for guest in ctx.guests for device in guest.devices)
    yield from actions_for(ctx.intent, (IRQ_AFFINITY,), (device for device in devices if not device.device.vgpu_type))
