"""Rules of vCPU pins, emulator threads and I/O threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hosttune.model import sysfs
from hosttune.model.listing import numbered
from hosttune.model.values import CpuSet, parse_cpus
from hosttune.rules.engine import Finding
from hosttune.rules.lint.guest_on_host import GuestOnHost, named
from hosttune.rules.lint.rule import ADVICE, CORES, CPU_NODES, CPUS, ERROR, TUNING, WARN, rule, unknown

_PINS = "/domain/cputune/vcpupin"
_EMULATOR = "/domain/cputune/emulatorpin"
_IOTHREAD = "/domain/cputune/iothreadpin"
_IOTHREADS = "/domain/iothreads"
_TOPOLOGY = "/domain/cpu/topology"
_SYSFS = sysfs.CPUS
_CPU_TUNING = "libvirt formatdomain, CPU Tuning"


@rule(
    "vcpu-pins",
    TUNING,
    _PINS,
    right="each vCPU is pinned to one host CPU of its own",
    why="a vCPU that may move loses its caches, and waits where two meet on one CPU",
    source=f"{_CPU_TUNING}, vcpupin",
    remedy="write one <vcpupin> with a single CPU for each vCPU: hosttune plan chooses them",
)
def vcpu_pins(scene: GuestOnHost) -> Iterator[Finding]:
    """Find vCPUs without a pin, with several CPUs, and pins of vCPUs that the guest does not have."""
    loose = [vcpu for vcpu in range(scene.guest.vcpus) if not scene.pins.get(vcpu) and vcpu not in scene.off]
    if loose:
        where = "the nodes that numad chooses" if scene.guest.vcpu_placement == "auto" else "the host"
        text = f"vCPUs {CpuSet(loose)} have no vcpupin: they may run on all CPUs of {where}"
        yield Finding(text, _PINS)
    wide = [vcpu for vcpu, cpus in scene.pins.items() if len(cpus) > 1]
    isolated = CpuSet(cpu.id for cpu in scene.host.cpus if cpu.isolated)
    still = [vcpu for vcpu in wide if scene.pins[vcpu] <= isolated]
    moving = [vcpu for vcpu in wide if vcpu not in still]
    for vcpus, what in (
        (moving, "they move, and meet each other"),
        (still, "on isolated CPUs the kernel balances no load: all of them can stay on one CPU"),
    ):
        if vcpus:
            example = f"vCPU {vcpus[0]} may use {scene.pins[vcpus[0]]}"
            text = f"vCPUs {CpuSet(vcpus)} are pinned to several CPUs each ({example}): {what}"
            yield Finding(text, _PINS, remedy="give each of them one CPU of its own: hosttune plan chooses them")
    beyond = [pin.id for pin in scene.guest.vcpu_pins if pin.id >= scene.guest.vcpus]
    if beyond:
        text = f"pins for vCPUs {CpuSet(beyond)}, but the guest has {scene.guest.vcpus} vCPUs"
        remedy = f"take these pins out, or write <vcpu>{max(beyond) + 1}</vcpu>"
        yield Finding(text, f"{_PINS}[@vcpu='{min(beyond)}']", remedy=remedy)


@rule(
    "cpus-usable",
    ERROR,
    _PINS,
    right="pinned CPUs exist, are online, and are allowed for guests",
    why="libvirt does not start a guest that is pinned to CPUs that it cannot use",
    source=f"{_SYSFS}/possible and online; Linux admin-guide/cgroup-v2, cpuset",
    remedy="pin to CPUs that are online: lscpu -e lists them",
    needs=(CPUS,),
    applies=lambda scene: bool(scene.pins or scene.service),
)
def cpus_usable(scene: GuestOnHost) -> Iterator[Finding]:
    """Find CPUs that are absent, offline or hidden, for every kind of thread."""
    emulator = parse_cpus(scene.guest.emulator_cpus)
    iothreads = CpuSet(cpu for pin in scene.guest.iothread_pins for cpu in parse_cpus(pin.cpus))
    threads = (("vCPUs", scene.pinned, _PINS), ("the emulator", emulator, _EMULATOR), ("I/O", iothreads, _IOTHREAD))
    hidden = {cpu.id for cpu in scene.host.cpus if cpu.allowed is False}
    for who, cpus, where in threads:
        absent = cpus - scene.cpus
        offline = CpuSet(cpus & scene.cpus.keys()) - scene.online
        if absent:
            yield Finding(f"CPUs {absent} of {who} do not exist on this host ({_SYSFS}/possible)", where)
        if offline:
            remedy = f"pin to CPUs that are online, or echo 1 > {_SYSFS}/cpuN/online of each"
            yield Finding(f"CPUs {offline} of {who} are offline ({_SYSFS}/online)", where, remedy=remedy)
        if cpus & hidden:
            remedy = "pin to other CPUs, or add these to AllowedCPUs= of machine.slice"
            yield Finding(f"CPUs {cpus & hidden} of {who} are hidden by a cpuset from guests", where, remedy=remedy)


@rule(
    "vcpus-crowded",
    WARN,
    _PINS,
    right="no two vCPUs are pinned to the same CPU",
    why="one of the two always waits: a vCPU that holds a lock stops all others",
    source=f"{_CPU_TUNING}, vcpupin",
    remedy="give each vCPU a CPU of its own, or the guest fewer vCPUs",
)
def vcpus_crowded(scene: GuestOnHost) -> Iterator[Finding]:
    """Find CPUs that are the only CPU of several vCPUs."""
    single = {vcpu: min(cpus) for vcpu, cpus in scene.pins.items() if len(cpus) == 1}
    shared = sorted(cpu for cpu, count in Counter(single.values()).items() if count > 1)
    if shared:
        example = CpuSet(vcpu for vcpu, cpu in single.items() if cpu == shared[0])
        yield Finding(f"CPUs {CpuSet(shared)} run several vCPUs each (CPU {shared[0]}: vCPUs {example})", _PINS)


@rule(
    "boot-core",
    TUNING,
    _PINS,
    right="the boot core stays with the host",
    why="timers and interrupts that cannot move run there, and delay the vCPU",
    source="Linux admin-guide/kernel-parameters, nohz_full (the boot CPU is never one)",
    remedy="leave the first core of the host to the emulator and the host",
    needs=(CPUS,),
    applies=lambda scene: bool(scene.pins),
)
def boot_core(scene: GuestOnHost) -> Iterator[Finding]:
    """Find vCPUs on the core of the lowest CPU."""
    if not scene.online:
        return
    boot = min(scene.online)
    core = scene.core_of(boot)
    given = scene.single & (scene.cores.get(core, CpuSet([boot])) if core is not None else CpuSet([boot]))
    if given:
        text = (
            f"CPU {boot} given away: vCPUs are pinned to {numbered('CPU', given)} of the boot core, where the "
            "host's own interrupts and timers run"
        )
        yield Finding(text, _PINS)


@rule(
    "sibling-pins",
    TUNING,
    _PINS,
    right="vCPUs that are siblings in the guest are pinned to siblings on the host",
    why="the guest's scheduler spreads and joins threads by siblings that do not exist",
    source=f"{_SYSFS}/cpu*/topology/thread_siblings_list; libvirt formatdomain, topology",
    remedy="pin vCPUs 2n and 2n+1 to the two threads of one core, or write threads='1'",
    needs=(CORES,),
    applies=lambda scene: bool(scene.pins) and _threads(scene) > 1,
)
def sibling_pins(scene: GuestOnHost) -> Iterator[Finding]:
    """Find vCPUs that are siblings in the guest's topology, on host CPUs that are not siblings."""
    threads = _threads(scene)
    torn: list[str] = []
    doubtful: set[int] = set()
    for first in range(0, scene.guest.vcpus, threads):
        vcpus = [vcpu for vcpu in range(first, first + threads) if len(scene.pins.get(vcpu, ())) == 1]
        cpus = [min(scene.pins[vcpu]) for vcpu in vcpus]
        cores = [scene.core_of(cpu) for cpu in cpus]
        doubtful.update(cpu for cpu, core in zip(cpus, cores, strict=True) if core is None and cpu in scene.online)
        if None not in cores and len(set(cores)) > 1:
            torn.append(f"{numbered('vCPU', vcpus)} on {numbered('CPU', cpus)}")
    if torn:
        text = (
            f"sibling vCPUs pinned to unrelated host cores: the guest has threads={threads}, but {named(torn, 3)} "
            f"are not siblings ({_SYSFS}/cpu*/topology/thread_siblings_list)"
        )
        yield Finding(text, _PINS)
    if doubtful:
        yield unknown(f"the cores of {numbered('CPU', doubtful)} are unknown", _PINS)


def _threads(scene: GuestOnHost) -> int:
    return scene.guest.cpu.topology.threads if scene.guest.cpu.topology else 1


@rule(
    "flat-threads",
    ADVICE,
    _TOPOLOGY,
    right="a guest on whole host cores knows which vCPUs are siblings",
    why="it schedules two busy threads on one core while another core is idle",
    source=f"{_SYSFS}/cpu*/topology/thread_siblings_list; libvirt formatdomain, topology",
    remedy="write threads='2' and half as many cores, and pin siblings to siblings",
    needs=(CORES,),
    applies=lambda scene: scene.all_pinned and _threads(scene) == 1,
)
def flat_threads(scene: GuestOnHost) -> Iterator[Finding]:
    """Find whole host cores given to a guest whose topology has single-threaded cores."""
    used: dict[int, set[int]] = {}
    for cpu in scene.single:
        core = scene.core_of(cpu)
        if core is None:
            if cpu in scene.online:
                yield unknown(f"the core of CPU {cpu} is unknown", _TOPOLOGY)
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
    yield Finding(text, _TOPOLOGY)


@rule(
    "emulator-pin",
    TUNING,
    _EMULATOR,
    right="the emulator's threads have CPUs apart from the vCPUs, on a node of the guest",
    why="a vCPU waits while they run on its core; on another node each access is remote",
    source=f"{_CPU_TUNING}, emulatorpin",
    remedy="write <emulatorpin> with housekeeping CPUs on the guest's node",
    applies=lambda scene: scene.demanding,
)
def emulator_pin(scene: GuestOnHost) -> Iterator[Finding]:
    """Find an emulator that may run anywhere, beside vCPUs, or on a foreign node."""
    emulator = parse_cpus(scene.guest.emulator_cpus)
    if not emulator:
        where = f"CPUs {scene.guest.vcpu_cpus}, as <vcpu> says" if scene.guest.vcpu_cpus else "all CPUs"
        yield Finding(f"no emulatorpin: the emulator's threads may run on {where}, beside the vCPUs", _EMULATOR)
        return
    yield from _on_vcpus(scene, emulator, "emulator threads", _EMULATOR)
    yield from _far(scene, emulator, "emulator threads", _EMULATOR)


@rule(
    "iothread-pins",
    TUNING,
    _IOTHREAD,
    right="each I/O thread has CPUs apart from the vCPUs, on a node of the guest",
    why="a vCPU waits while it runs on its core; on another node each access is remote",
    source=f"{_CPU_TUNING}, iothreadpin",
    remedy="write one <iothreadpin> with housekeeping CPUs for each I/O thread",
    applies=lambda scene: scene.demanding,
)
def iothread_pins(scene: GuestOnHost) -> Iterator[Finding]:
    """Find I/O threads that may run anywhere, beside vCPUs, or on a foreign node."""
    pinned = {pin.id for pin in scene.guest.iothread_pins if pin.cpus}
    loose = scene.guest.iothreads - len(pinned)
    if loose > 0:
        text = f"{loose} of {scene.guest.iothreads} I/O threads have no iothreadpin: they may run on all CPUs"
        if loose == 1:
            who = "the I/O thread" if scene.guest.iothreads == 1 else f"1 of {scene.guest.iothreads} I/O threads"
            text = f"{who} has no iothreadpin: it may run on all CPUs"
        yield Finding(text, _IOTHREAD, ADVICE)
    cpus = CpuSet(cpu for pin in scene.guest.iothread_pins for cpu in parse_cpus(pin.cpus))
    yield from _on_vcpus(scene, cpus, "I/O threads", _IOTHREAD)
    yield from _far(scene, cpus, "I/O threads", _IOTHREAD)


@rule(
    "iothread-missing",
    ERROR,
    _IOTHREADS,
    right="every I/O thread that is pinned or serves a disk is declared",
    why="libvirt refuses the definition",
    source="libvirt formatdomain, IOThreads Allocation",
    remedy="write <iothreads> with the number of I/O threads",
)
def iothread_missing(scene: GuestOnHost) -> Iterator[Finding]:
    """Find I/O threads that are pinned or used and not declared."""
    used = {pin.id for pin in scene.guest.iothread_pins}
    used |= {disk.iothread for disk in scene.guest.disks if disk.iothread is not None}
    if used and len(used) > scene.guest.iothreads:
        text = f"I/O threads {named(sorted(used))} are pinned or used, but the guest has {scene.guest.iothreads}"
        yield Finding(text, _IOTHREADS, remedy=f"write <iothreads>{len(used)}</iothreads>")


def _on_vcpus(scene: GuestOnHost, cpus: CpuSet, who: str, where: str) -> Iterator[Finding]:
    both = cpus & scene.single
    if both:
        yield Finding(f"{who} on {numbered('CPU', both)} of vCPUs: a vCPU waits each time they run", where)
        return
    if cpus and scene.single and not CORES.known(scene):
        yield unknown(CORES.why, where)
        return
    cores = {scene.core_of(cpu) for cpu in scene.single} - {None}
    near = CpuSet(cpu for cpu in cpus if scene.core_of(cpu) in cores)
    if near:
        yield Finding(f"{who} on {numbered('CPU', near)}, siblings of CPUs of vCPUs: they share those cores", where)


def _far(scene: GuestOnHost, cpus: CpuSet, who: str, where: str) -> Iterator[Finding]:
    """Find threads that serve the guest and all run on nodes where it has neither vCPUs nor memory."""
    if cpus and not CPU_NODES.known(scene):
        yield unknown(CPU_NODES.why, where)
        return
    cells: list[int | None] = [cell.id for cell in scene.guest.cells]
    home = scene.vcpu_nodes(None).union(*(scene.memory_nodes(cell) or () for cell in cells or [None]))
    nodes = scene.nodes_of(cpus)
    if home and nodes and not nodes & home and all(scene.node_of(cpu) is not None for cpu in cpus):
        text = (
            f"{who} on {numbered('CPU', cpus)} of {numbered('node', nodes)}, where the guest has no cell: its vCPUs "
            f"and memory are on {numbered('node', home)} (/sys/devices/system/node/node*/cpulist)"
        )
        yield Finding(text, where)
