"""Faults of vCPU pins, emulator and I/O threads, and of the guest's topology."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hosttune.domain.guest_on_host import Fault, GuestOnHost
from hosttune.model import sysfs
from hosttune.model.listing import some
from hosttune.model.values import CpuSet, parse_cpus

_PINS = "/domain/cputune/vcpupin"
_EMULATOR = "/domain/cputune/emulatorpin"
_IOTHREAD = "/domain/cputune/iothreadpin"
_TOPOLOGY = "/domain/cpu/topology"
_CELLS = "/domain/cpu/numa/cell"
_SYSFS = sysfs.CPUS


def cpu_faults(scene: GuestOnHost) -> Iterator[Fault]:
    """Yield all faults that the rules of this file find."""
    yield from _unpinned(scene)
    yield from _unusable(scene)
    yield from _crowded(scene)
    yield from _boot_core(scene)
    yield from _siblings(scene)
    yield from _flat_threads(scene)
    yield from _emulator(scene)
    yield from _iothreads(scene)
    yield from _topology(scene)
    yield from _cells(scene)
    yield from _pit(scene)


def _pit(scene: GuestOnHost) -> Iterator[Fault]:
    """Find a PIT that reinjects missed ticks, QEMU's default: KVM then disables AVIC (`implied.pit_policy`)."""
    if scene.guest.type == "kvm" and scene.guest.pit != "discard" and scene.host.switched_on("kvm_amd", "avic"):
        text = (
            f"PIT with tickpolicy {scene.guest.pit or 'not written (QEMU: delay)'}: KVM switches AVIC, which is on"
            " here, off for this guest; use discard"
        )
        yield Fault("warn", text, "/domain/clock/timer[@name='pit']")


def _unpinned(scene: GuestOnHost) -> Iterator[Fault]:
    loose = [vcpu for vcpu in range(scene.guest.vcpus) if vcpu not in scene.pins]
    if loose:
        text = f"vCPUs {CpuSet(loose)} have no vcpupin: they may run on all CPUs of the host"
        yield Fault("warn", text, _PINS)
    wide = [vcpu for vcpu, cpus in scene.pins.items() if len(cpus) > 1]
    if wide:
        example = f"vCPU {wide[0]} may use {scene.pins[wide[0]]}"
        text = f"vCPUs {CpuSet(wide)} are pinned to several CPUs each ({example}): they move, and meet each other"
        yield Fault("warn", text, _PINS)
    beyond = [pin.id for pin in scene.guest.vcpu_pins if pin.id >= scene.guest.vcpus]
    if beyond:
        text = f"pins for vCPUs {CpuSet(beyond)}, but the guest has {scene.guest.vcpus} vCPUs"
        yield Fault("warn", text, _PINS)


def _unusable(scene: GuestOnHost) -> Iterator[Fault]:
    """Find CPUs that are absent, offline or hidden, for every kind of thread."""
    if not scene.cpus:
        return
    emulator = parse_cpus(scene.guest.emulator_cpus)
    iothreads = CpuSet(cpu for pin in scene.guest.iothread_pins for cpu in parse_cpus(pin.cpus))
    threads = (("vCPUs", scene.pinned, _PINS), ("the emulator", emulator, _EMULATOR), ("I/O", iothreads, _IOTHREAD))
    hidden = {cpu.id for cpu in scene.host.cpus if cpu.allowed is False}
    for who, cpus, where in threads:
        absent = cpus - scene.cpus
        offline = CpuSet(cpus & scene.cpus.keys()) - scene.online
        if absent:
            yield Fault("error", f"CPUs {absent} of {who} do not exist on this host ({_SYSFS}/possible)", where)
        if offline:
            yield Fault("error", f"CPUs {offline} of {who} are offline ({_SYSFS}/online)", where)
        if cpus & hidden:
            yield Fault("error", f"CPUs {cpus & hidden} of {who} are hidden by a cpuset from guests", where)


def _crowded(scene: GuestOnHost) -> Iterator[Fault]:
    single = {vcpu: min(cpus) for vcpu, cpus in scene.pins.items() if len(cpus) == 1}
    shared = sorted(cpu for cpu, count in Counter(single.values()).items() if count > 1)
    if shared:
        example = CpuSet(vcpu for vcpu, cpu in single.items() if cpu == shared[0])
        text = f"CPUs {CpuSet(shared)} run several vCPUs each (CPU {shared[0]}: vCPUs {example})"
        yield Fault("error", text, _PINS)


def _boot_core(scene: GuestOnHost) -> Iterator[Fault]:
    if not scene.online or not scene.pins:
        return
    boot = min(scene.online)
    core = scene.core_of(boot)
    given = scene.pinned & (scene.cores.get(core, CpuSet([boot])) if core is not None else CpuSet([boot]))
    if given:
        text = (
            f"CPU {boot} given away: vCPUs are pinned to CPUs {given} of the boot core, where the host's own "
            "interrupts and timers run"
        )
        yield Fault("warn", text, _PINS)


def _siblings(scene: GuestOnHost) -> Iterator[Fault]:
    """Find vCPUs that are siblings in the guest's topology, on host CPUs that are not siblings."""
    threads = scene.guest.cpu.topology.threads if scene.guest.cpu.topology else 1
    if threads < 2:
        return
    torn: list[str] = []
    for first in range(0, scene.guest.vcpus, threads):
        vcpus = [vcpu for vcpu in range(first, first + threads) if len(scene.pins.get(vcpu, ())) == 1]
        cpus = [min(scene.pins[vcpu]) for vcpu in vcpus]
        cores = [scene.core_of(cpu) for cpu in cpus]
        if None not in cores and len(set(cores)) > 1:
            torn.append(f"vCPUs {CpuSet(vcpus)} on CPUs {CpuSet(cpus)}")
    if torn:
        text = (
            f"sibling vCPUs pinned to unrelated host cores: the guest has threads={threads}, but {some(torn, 3)} "
            f"are not siblings ({_SYSFS}/cpu*/topology/thread_siblings_list)"
        )
        yield Fault("warn", text, _PINS)


def _flat_threads(scene: GuestOnHost) -> Iterator[Fault]:
    """Find whole host cores given to a guest whose topology has single-threaded cores."""
    threads = scene.guest.cpu.topology.threads if scene.guest.cpu.topology else 1
    single = [min(cpus) for cpus in scene.pins.values() if len(cpus) == 1]
    if threads > 1 or len(single) < scene.guest.vcpus or len(set(single)) < len(single):
        return
    used: dict[int, set[int]] = {}
    for cpu in single:
        core = scene.core_of(cpu)
        if core is None:
            return
        used.setdefault(core, set()).add(cpu)
    # Sibling threads are possible only if every core is used as a whole; with an odd number they are not.
    if any(len(cpus) < 2 or CpuSet(cpus) != scene.cores.get(core, CpuSet()) for core, cpus in used.items()):
        return
    core, cpus = min(used.items())
    text = (
        f"the guest has threads=1, but its vCPUs share {len(used)} host cores (core {core} is CPUs {CpuSet(cpus)}, "
        f"{_SYSFS}/cpu{core}/topology/thread_siblings_list): it schedules siblings as if they were cores"
    )
    yield Fault("warn", text, _TOPOLOGY)


def _emulator(scene: GuestOnHost) -> Iterator[Fault]:
    emulator = parse_cpus(scene.guest.emulator_cpus)
    if not emulator:
        if scene.pins or scene.passed:
            text = "no emulatorpin: the emulator's threads may run on all CPUs, those of vCPUs included"
            yield Fault("warn", text, _EMULATOR)
        return
    yield from _on_vcpus(scene, emulator, "emulator threads", _EMULATOR)
    yield from _far(scene, emulator, "emulator threads", _EMULATOR)


def _iothreads(scene: GuestOnHost) -> Iterator[Fault]:
    pinned = {pin.id for pin in scene.guest.iothread_pins}
    loose = scene.guest.iothreads - len(pinned)
    if loose > 0 and (scene.pins or scene.passed):
        text = f"{loose} of {scene.guest.iothreads} I/O threads have no iothreadpin: they may run on all CPUs"
        yield Fault("warn", text, _IOTHREAD)
    cpus = CpuSet(cpu for pin in scene.guest.iothread_pins for cpu in parse_cpus(pin.cpus))
    yield from _on_vcpus(scene, cpus, "I/O threads", _IOTHREAD)
    yield from _far(scene, cpus, "I/O threads", _IOTHREAD)


def _on_vcpus(scene: GuestOnHost, cpus: CpuSet, who: str, where: str) -> Iterator[Fault]:
    both = cpus & scene.single
    if both:
        text = f"{who} on vCPU CPUs {both}: a vCPU waits each time they run"
        yield Fault("warn", text, where)
        return
    cores = {scene.core_of(cpu) for cpu in scene.single} - {None}
    near = CpuSet(cpu for cpu in cpus if scene.core_of(cpu) in cores)
    if near:
        text = f"{who} on CPUs {near}, siblings of vCPU CPUs: they share those cores"
        yield Fault("warn", text, where)


def _far(scene: GuestOnHost, cpus: CpuSet, who: str, where: str) -> Iterator[Fault]:
    """Find threads that serve the guest and all run on nodes where it has neither vCPUs nor memory."""
    cells: list[int | None] = [cell.id for cell in scene.guest.cells]
    home = scene.vcpu_nodes(None).union(*(scene.memory_nodes(cell) or () for cell in cells or [None]))
    nodes = scene.nodes_of(cpus)
    if home and nodes and not nodes & home and all(scene.node_of(cpu) is not None for cpu in cpus):
        text = (
            f"{who} on CPUs {cpus} of nodes {nodes}, where the guest has no cell: its vCPUs and memory are on nodes "
            f"{CpuSet(home)} (/sys/devices/system/node/node*/cpulist)"
        )
        yield Fault("warn", text, where)


def _topology(scene: GuestOnHost) -> Iterator[Fault]:
    """Compare cells with sockets and sibling pairs: QEMU and guest kernels expect no cell to divide one."""
    topology = scene.guest.cpu.topology
    if topology is None:
        return
    total = topology.sockets * topology.dies * topology.clusters * topology.cores * topology.threads
    if total != scene.guest.vcpus:
        text = f"the topology makes {total} vCPUs, the guest has {scene.guest.vcpus}"
        yield Fault("error", text, _TOPOLOGY)
        return
    per_socket = total // topology.sockets
    for name, width in (("socket", per_socket), ("sibling group", topology.threads)):
        groups = [CpuSet(range(first, first + width)) for first in range(0, total, width)]
        cut = [
            f"cell {cell.id} ({cell.vcpus}) cuts {name} {n} ({group})"
            for cell in scene.guest.cells
            for n, group in enumerate(groups)
            if _cuts(parse_cpus(cell.vcpus), group, whole_inside=name == "socket")
        ]
        if cut and width > 1:
            text = f"cells cut the guest's {name}s: {some(cut, 3)}; topology and cells contradict each other"
            yield Fault("error", text, _CELLS)


def _cells(scene: GuestOnHost) -> Iterator[Fault]:
    """Check that every vCPU is in one cell: libvirt refuses two, and puts a vCPU without a cell into the first."""
    cells = [parse_cpus(cell.vcpus) for cell in scene.guest.cells]
    if not cells:
        return
    every = CpuSet(range(scene.guest.vcpus))
    counts = Counter(vcpu for cell in cells for vcpu in cell)
    twice = CpuSet(vcpu for vcpu, count in counts.items() if count > 1)
    if twice:
        yield Fault("error", f"vCPUs {twice} are in several cells: libvirt refuses overlapping cells", _CELLS)
    beyond = CpuSet(counts) - every
    if beyond:
        text = f"the cells hold vCPUs {beyond}, but the guest has {scene.guest.vcpus} vCPUs: libvirt refuses"
        yield Fault("error", text, _CELLS)
    missing = every - counts
    if missing:
        yield Fault("warn", f"vCPUs {missing} are in no cell: libvirt puts them into cell 0", _CELLS)


def _cuts(cell: CpuSet, group: CpuSet, *, whole_inside: bool) -> bool:
    """Return whether a cell has only a part of a group; several cells in one socket are valid (sub-NUMA clustering)."""
    common = cell & group
    return bool(common) and common != group and not (whole_inside and common == cell)
