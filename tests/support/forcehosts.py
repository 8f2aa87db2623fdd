"""A host on which a plan is applied, in process: guests defined, values set, and what is then in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from hosttune.domain.defined import as_planned
from hosttune.inventory.bare import without_guest
from hosttune.linux.irqbalance import IRQBALANCE
from hosttune.model.commandline import changed as with_arguments
from hosttune.model.force import GuestInForce, InForce, SettingInForce, Wanted
from hosttune.model.host import GuestMemory, Host, RunningGuest
from hosttune.model.plan import Action, Plan
from hosttune.model.topology import Hugetlbfs
from hosttune.model.values import CpuSet
from hosttune.settings.cpus import EnergyPreference, Governor, ResumeLatency
from hosttune.settings.irqs import HEAD, slice_file

PER_CPU = {
    Governor.kind: (Governor, "governor"),
    EnergyPreference.kind: (EnergyPreference, "energy_preference"),
    ResumeLatency.kind: (ResumeLatency, "resume_latency_us"),
}


def applied(host: Host, plan: Plan, *, running: Sequence[str] = ()) -> Host:
    """The host after this plan: what the fold of its journal would give, and what discovery would then see."""
    force = host.in_force or InForce()
    number = force.last + 1
    gone = {one.name for one in plan.removals}
    for name in (*gone, *(guest.name for guest in plan.guests if guest.change != "keep")):
        for resident in [one for one in host.guests or () if one.name == name]:
            host = without_guest(host, resident)
    settings = {_key(one.kind, one.target, part): one for one in force.settings for part in one.want}
    for action in plan.actions:
        host = _set(host, action)
        for part in _parts(action):
            key = _key(action.kind, action.target, part)
            before = settings.pop(key, None)
            if action.change == "set":
                original = before.original[part] if before else _original(action)
                settings[key] = SettingInForce(
                    kind=action.kind,
                    target=action.target,
                    original={part: original},
                    want={part: action.want},
                    after={part: action.want},
                    outcome="done",
                    scope="boot" if action.effect == "reboot" else "runtime",
                    source=plan.source,
                    number=number,
                )
    for guest in plan.guests:
        if guest.change != "keep":
            host = _with_guest(host, as_planned(guest), runs=guest.name in running)
    requests = {guest.name: guest for guest in plan.intent.guests}
    new = {
        guest.name: GuestInForce(
            name=guest.name,
            uuid=guest.uuid,
            request=requests[guest.name],
            reserve=plan.intent.reserve,
            places=replace(guest, change="create", changes=()),
            source=plan.source,
            number=number,
        )
        for guest in plan.guests
    }
    guests = {**{one.name: one for one in force.guests if one.name not in gone}, **new}
    wanted = {
        **force.wanted,
        **{k: Wanted(value=v, source=plan.source) for k, v in (plan.intent.settings or {}).items()},
    }
    folded = InForce(
        last=number,
        profile=plan.intent.profile,
        guests=tuple(guests.values()),
        settings=tuple(settings.values()),
        wanted={name: one for name, one in wanted.items() if one.value != "keep"},
    )
    return replace(host, in_force=folded)


def _key(kind: str, target: str, part: str) -> tuple[str, str]:
    return kind, part or target


def _parts(action: Action) -> Sequence[str]:
    if action.kind in PER_CPU:
        return [str(cpu) for cpu in sorted(PER_CPU[action.kind][0].of(action.target).cpus)]
    return [action.target] if action.kind == "kernel-argument" else [""]


def _original(action: Action) -> Any:
    return "not staged" if action.kind == "kernel-argument" else action.current


def _with_guest(host: Host, guest: RunningGuest, *, runs: bool) -> Host:
    if runs:
        guest = replace(guest, state="running")
        nodes = [_less(node, guest.memory or ()) for node in host.numa_nodes]
        host = replace(host, numa_nodes=tuple(nodes))
    return replace(host, guests=(*(host.guests or ()), guest))


def _less(node: Any, memory: Sequence[GuestMemory]) -> Any:
    for part in memory:
        if part.node == node.id and part.page_bytes is None and node.free_bytes is not None:
            node = replace(node, free_bytes=node.free_bytes - (part.memory_bytes or 0))
        elif part.node == node.id and part.page_bytes:
            pages = (part.memory_bytes or 0) // part.page_bytes
            pools = [
                replace(pool, free=(pool.free or 0) - pages) if pool.size_bytes == part.page_bytes else pool
                for pool in node.hugepages or ()
            ]
            node = replace(node, hugepages=tuple(pools))
    return node


def _set(host: Host, action: Action) -> Host:
    """The host document with the value of an action, as far as it has it."""
    want = action.want
    if action.kind in PER_CPU:
        kind, field = PER_CPU[action.kind]
        cpus = kind.of(action.target).cpus
        return replace(host, cpus=tuple(replace(c, **{field: want}) if c.id in cpus else c for c in host.cpus))
    if action.kind == "driver":
        return replace(host, pci=tuple(replace(d, driver=want) if d.address == action.target else d for d in host.pci))
    if action.kind == "kernel-argument":
        args = None if host.kernel_args is None else with_arguments(host.kernel_args, {action.target: want})
        return replace(host, kernel_args=args) if want != "not staged" else host
    if action.kind == "fabric-partition" and host.fabric and host.fabric.partitions:
        number = int(action.target.partition("@")[0])
        parts = (replace(p, active=want != "inactive") if p.id == number else p for p in host.fabric.partitions)
        return replace(host, fabric=replace(host.fabric, partitions=tuple(parts)))
    if action.kind == "hugepages":
        return replace(host, numa_nodes=tuple(_pool(node, action.target, want) for node in host.numa_nodes))
    memory: Mapping[str, str] = {"thp": "thp", "ksm": "ksm_run", "numa-balancing": "numa_balancing"}
    if action.kind in memory and host.memory_settings:
        return replace(host, memory_settings=replace(host.memory_settings, **{memory[action.kind]: want}))
    if action.kind == "mount" and host.memory_settings:
        others = [one for one in host.memory_settings.hugetlbfs or () if one.path != action.target]
        mounts = [*others, *([Hugetlbfs(path=action.target, size_bytes=want, libvirt=True)] if want else [])]
        return replace(host, memory_settings=replace(host.memory_settings, hugetlbfs=tuple(mounts)))
    if action.kind == "irqbalance-ban":
        known = {path: text for path, text in (host.settings or {}).items() if path != IRQBALANCE[0]}
        return replace(host, settings={**known, **({IRQBALANCE[0]: want} if want is not None else {})})
    if action.kind == "slice-cpus":
        path, text = slice_file(action.target), f"{HEAD}{want}"
        known = {name: one for name, one in (host.settings or {}).items() if name != path}
        return replace(host, settings={**known, **({path: text} if want is not None else {})})
    if action.kind == "default-irq-affinity":
        mask = f"{sum(1 << cpu for cpu in CpuSet.parse(want)):x}"
        return replace(host, settings={**(host.settings or {}), action.target: mask})
    gpus = {"gpu-persistence": "persistence", "gpu-power-limit": "power_limit_watts"}
    if action.kind in gpus:
        held = tuple(replace(g, **{gpus[action.kind]: want}) if g.address == action.target else g for g in host.gpus)
        return replace(host, gpus=held)
    fields = {"aspm": "aspm", "read-request": "read_request_bytes", "relaxed-ordering": "relaxed_ordering"}
    if action.kind in fields:
        made = tuple(replace(d, **{fields[action.kind]: want}) if d.address == action.target else d for d in host.pci)
        return replace(host, pci=made)
    return host


def _pool(node: Any, target: str, want: int) -> Any:
    pools = []
    for pool in node.hugepages or ():
        if f"/node{node.id}/" in target and f"hugepages-{pool.size_bytes >> 10}kB" in target:
            more = want - (pool.total or 0)
            if node.free_bytes is not None:
                node = replace(node, free_bytes=node.free_bytes - more * pool.size_bytes)
            pool = replace(pool, total=want, free=(pool.free or 0) + more)
        pools.append(pool)
    return replace(node, hugepages=tuple(pools) if node.hugepages else node.hugepages)
