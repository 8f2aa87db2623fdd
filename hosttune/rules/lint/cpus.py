"""Rules of the guest's CPU: its model, topology, cells, timers, and interrupts beyond 255 vCPUs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from hosttune.domain import elements
from hosttune.domain.arguments import DMA_OFF, values_of
from hosttune.domain.planned import NO_DMA_TRANSLATION
from hosttune.inventory.vcpus import LAST_XAPIC_ID, last_apic_id, needs_iommu
from hosttune.model.limits import limit
from hosttune.model.plan import Topology
from hosttune.model.values import CpuSet, parse_cpus
from hosttune.rules.engine import Finding
from hosttune.rules.lint.guest_on_host import GuestOnHost, named
from hosttune.rules.lint.rule import ADVICE, CPU_VENDOR, ERROR, TUNING, WARN, rule, unknown

_CPU = "/domain/cpu"
_TUNE = "/domain/cputune"
_TOPOLOGY = "/domain/cpu/topology"
_CELLS = "/domain/cpu/numa/cell"
_IOMMU = "/domain/devices/iommu"
_MODEL = "libvirt formatdomain, CPU model and topology"
_OWN_MODES = ("host-passthrough", "maximum")
_AMD = "AuthenticAMD"
_MIGRATABLE = (6, 5)  # libvirt formatdomain: the attribute migratable
_MOST_WITHOUT_EIM = 255  # vCPUs (libvirt, QEMU_MAX_VCPUS_WITHOUT_EIM)
_ADDS_IOMMU = (10, 10)  # libvirt's NEWS: Automatically add IOMMU when needed
_WRITE_EIM = (
    "write <iommu model='intel'><driver intremap='on' caching_mode='on' eim='on'{}/></iommu>"
    " and <ioapic driver='qemu'/>"
)


@rule(
    "cpu-model",
    TUNING,
    _CPU,
    right="a guest on KVM has the host's own CPU model",
    why="it lacks instructions, and with QEMU's default of 40 address bits firmware leaves no room for large BARs",
    source=f"{_MODEL}; QEMU target/i386/host-cpu.c; edk2 PlatformInitLib/MemDetect.c",
    remedy="write <cpu mode='host-passthrough' migratable='off'>",
    applies=lambda scene: (
        scene.kvm
        and scene.x86
        and scene.demanding
        and not (scene.confidential or any(values_of(scene.guest.qemu_arguments, "cpu")))  # QEMU takes the last -cpu
    ),
)
def cpu_model(scene: GuestOnHost) -> Iterator[Finding]:
    """Find named and default CPU models, and a CPU without its invariant time stamp counter."""
    cpu, old = scene.guest.cpu, (scene.facts.libvirt or _MIGRATABLE) < _MIGRATABLE
    if cpu.mode not in _OWN_MODES:
        model = f"mode {cpu.mode}" if cpu.mode else f"model {cpu.model}" if cpu.model else "QEMU's default model"
        remedy = "write <cpu mode='host-passthrough'>" if old else None
        yield Finding(f"the CPU has {model}: the guest does not see this host's CPU", _CPU, remedy=remedy)
    elif cpu.migratable is not False and scene.given and not old:
        text = f"mode {cpu.mode} without migratable='off': QEMU hides the invariant TSC from the guest"
        yield Finding(text, _CPU, ADVICE)


_PERIOD = 100_000  # microseconds: the kernel's own period, if none is written
_LIMITED = (
    ("", "each vCPU"),
    ("iothread_", "each I/O thread"),
    ("emulator_", "the emulator threads together"),
    ("global_", "all threads of the guest together"),
)


@rule(
    "cpu-quota",
    WARN,
    f"{_TUNE}/quota",
    right="no quota keeps a guest from its CPUs",
    why="the kernel stops its threads for the rest of each period, although their CPUs are free",
    source="libvirt formatdomain, CPU Tuning, quota; Linux admin-guide/cgroup-v2, cpu.max",
    remedy="take the quota out, or write -1; to give less, give fewer vCPUs",
    applies=lambda scene: scene.demanding,
)
def cpu_quota(scene: GuestOnHost) -> Iterator[Finding]:
    """Find quotas below a whole CPU for each thread that they limit; 0 and less are none."""
    for prefix, who in _LIMITED:
        quota, period = (_microseconds(scene, f"{prefix}{name}") for name in ("quota", "period"))
        cpus = scene.guest.vcpus - len(scene.off) if prefix == "global_" else 1
        if quota <= 0 or quota >= cpus * (period or _PERIOD) or (prefix == "iothread_" and not scene.guest.iothreads):
            continue
        part = 100 * quota / (period or _PERIOD)
        text = f"{who} may run {quota} of {period or _PERIOD} microseconds, which is {part:.3g} % of a CPU"
        yield Finding(text + (f", for {cpus} vCPUs" if cpus > 1 else ""), f"{_TUNE}/{prefix}quota")


def _microseconds(scene: GuestOnHost, name: str) -> int:
    """Return a period or quota; 0 where none is written. libvirt refuses what is no number."""
    text = (scene.root.findtext(f"cputune/{name}") or "").strip()
    return int(text) if re.fullmatch("-?[0-9]{1,18}", text) else 0


@rule(
    "vcpus-off",
    WARN,
    "/domain/vcpu",
    right="all vCPUs that have a host CPU of their own are on when the guest starts",
    why="their CPUs are kept from others for nothing",
    source="libvirt formatdomain, CPU Allocation: vcpu (current), vcpus",
    remedy="leave current out, or give the guest only the vCPUs that it is to have",
    applies=lambda scene: bool(scene.off),
)
def vcpus_off(scene: GuestOnHost) -> Iterator[Finding]:
    """Find vCPUs with one host CPU each that are off at the start. Without pins they may be room to plug in more."""
    idle = CpuSet(vcpu for vcpu in scene.off if len(scene.pins.get(vcpu, ())) == 1)
    if idle:
        text = f"vCPUs {idle} of {scene.guest.vcpus} are off when the guest starts: their pinned CPUs do nothing"
        yield Finding(text, "/domain/vcpus" if scene.written("vcpus/vcpu") else "/domain/vcpu")


@rule(
    "cpu-cache",
    ADVICE,
    "/domain/cpu/cache",
    right="the guest sees the host's caches",
    why="QEMU makes up a cache: work is divided by an L3 that is not there",
    source=f"{_MODEL}, cache",
    remedy="write <cache mode='passthrough'/> in <cpu mode='host-passthrough'>",
    applies=lambda scene: scene.x86 and scene.all_pinned and scene.guest.cpu.mode in _OWN_MODES,
)
def cpu_cache(scene: GuestOnHost) -> Iterator[Finding]:
    """Find pinned guests with an emulated cache."""
    if scene.guest.cpu.cache not in ("passthrough", "disable"):  # planned so where an L3 would span two of the host
        written = scene.guest.cpu.cache or "not written"
        yield Finding(f"cache mode {written}: the guest sees caches that QEMU made up", "/domain/cpu/cache")


@rule(
    "cpu-topoext",
    ADVICE,
    "/domain/cpu/feature[@name='topoext']",
    right="a guest with sibling threads on an AMD CPU has the feature topoext",
    why="without it CPUID does not describe threads: the guest sees no siblings",
    source="QEMU target/i386/cpu.c (CPUID 0x8000001E); AMD64 Architecture Programmer's Manual, volume 3",
    remedy="write <feature policy='require' name='topoext'/> in <cpu>",
    applies=lambda scene: (
        scene.x86
        and scene.guest.cpu.mode in _OWN_MODES
        and scene.guest.cpu.topology is not None
        and scene.guest.cpu.topology.threads > 1
    ),
)
def cpu_topoext(scene: GuestOnHost) -> Iterator[Finding]:
    """Find sibling threads that an AMD CPU does not show; QEMU's emulated maximum is an AMD CPU."""
    where = "/domain/cpu/feature[@name='topoext']"
    if scene.kvm and scene.cpu_vendor is None:
        yield unknown(CPU_VENDOR.why, where)
        return
    asked = {name for name, policy in scene.guest.cpu.features if policy in ("require", "force")}
    if (not scene.kvm or scene.cpu_vendor == _AMD) and "topoext" not in asked:
        threads = scene.guest.cpu.topology.threads if scene.guest.cpu.topology else 1
        yield Finding(f"threads={threads} on an AMD CPU without topoext: the guest sees no siblings", where)


@rule(
    "kvm-hints",
    ADVICE,
    "/domain/features/kvm",
    right="a guest with CPUs of its own knows that it has them",
    why="it yields and halts as if others waited for its CPUs: each wake-up is an exit",
    source="Linux Documentation/virt/kvm/x86/cpuid (KVM_HINTS_REALTIME); libvirt formatdomain, kvm",
    remedy="write <kvm><hint-dedicated state='on'/><poll-control state='on'/></kvm> in <features>",
    # A guest from which KVM is hidden sees no hint of it.
    applies=lambda scene: scene.kvm and scene.x86 and scene.all_pinned and "hidden" not in scene.guest.kvm_features,
)
def kvm_hints(scene: GuestOnHost) -> Iterator[Finding]:
    """Find pinned guests without KVM's hints, where the installed software has them."""
    for hint in (elements.HINT_DEDICATED, elements.POLL_CONTROL):
        if hint in scene.facts.elements and hint not in scene.guest.kvm_features:
            yield Finding(f"each vCPU has a CPU of its own, but {hint} is not on", f"/domain/features/kvm/{hint}")


@rule(
    "pit-policy",
    ADVICE,
    "/domain/clock/timer[@name='pit']",
    right="on AMD, the PIT discards missed ticks",
    why="KVM switches AVIC off for a guest whose PIT reinjects ticks: each interrupt of a device is an exit",
    source="Linux arch/x86/kvm/i8254.c (kvm_pit_set_reinject)",
    remedy="write <timer name='pit' tickpolicy='discard'/> in <clock>",
    applies=lambda scene: (
        scene.kvm and scene.x86 and scene.demanding and scene.guest.pit != "discard" and not scene.confidential
    ),
)
def pit_policy(scene: GuestOnHost) -> Iterator[Finding]:
    """Find a PIT that reinjects missed ticks, QEMU's default, where AVIC is on."""
    where = "/domain/clock/timer[@name='pit']"
    on = scene.host.switched_on("kvm_amd", "avic")
    if on:
        text = (
            f"PIT with tickpolicy {scene.guest.pit or 'not written (QEMU: delay)'}: KVM switches AVIC, which is on"
            " here, off for this guest; use discard"
        )
        yield Finding(text, where)
    elif on is None and scene.cpu_vendor in (None, _AMD):
        yield unknown("whether AVIC is on is unknown (/sys/module/kvm_amd/parameters/avic)", where)


@rule(
    "topology",
    ERROR,
    _TOPOLOGY,
    right="the topology makes as many vCPUs as the guest has",
    why="libvirt refuses another product",
    source=f"{_MODEL}, topology",
    remedy="write sockets, dies, cores and threads as on the host, and their product as <vcpu>",
)
def topology(scene: GuestOnHost) -> Iterator[Finding]:
    """Find a topology of another size."""
    written = scene.guest.cpu.topology
    vcpus = scene.guest.vcpus
    if written is None:
        return
    total = written.sockets * written.dies * written.clusters * written.cores * written.threads
    if total != vcpus:
        remedy = f"write <vcpu>{total}</vcpu>, or a topology whose product is {vcpus}"
        yield Finding(f"the topology makes {total} vCPUs, the guest has {vcpus}", _TOPOLOGY, remedy=remedy)


@rule(
    "topology-missing",
    ADVICE,
    _TOPOLOGY,
    right="the topology of a guest with passed devices or pinned vCPUs is written",
    why="without one each vCPU is a socket of its own",
    source=f"{_MODEL}, topology; libvirt qemu_command.c (qemuBuildSmpCommandLine)",
    remedy="write sockets, dies, cores and threads as on the host, and their product as <vcpu>",
    applies=lambda scene: scene.demanding and scene.guest.vcpus > 1 and scene.guest.cpu.topology is None,
)
def topology_missing(scene: GuestOnHost) -> Iterator[Finding]:
    """Find guests without a topology."""
    yield Finding(f"no topology: the guest has {scene.guest.vcpus} sockets of one core each", _TOPOLOGY)


@rule(
    "cell-cuts",
    WARN,
    _CELLS,
    right="no cell cuts a socket or a group of siblings",
    why="the guest's kernel expects whole ones, and its scheduler is misled",
    source="Linux arch/x86/kernel/smpboot.c (topology_sane)",
    remedy="give each cell whole sockets, or put several whole cells into one socket",
    applies=lambda scene: scene.guest.cpu.topology is not None and bool(scene.guest.cells),
)
def cell_cuts(scene: GuestOnHost) -> Iterator[Finding]:
    """Compare cells with sockets and sibling pairs: QEMU and guest kernels expect no cell to divide one."""
    written = scene.guest.cpu.topology
    total = scene.guest.vcpus
    if written is None or total != written.sockets * written.dies * written.clusters * written.cores * written.threads:
        return
    for name, width in (("socket", total // written.sockets), ("sibling group", written.threads)):
        cut = [
            f"cell {cell.id} ({cell.vcpus}) cuts {name} {n} ({n * width}-{(n + 1) * width - 1})"
            for cell in scene.guest.cells
            for n in _cut(parse_cpus(cell.vcpus), width, total, within=name == "socket")
        ]
        if cut:
            text = f"cells cut the guest's {name}s: {named(cut, 3)}; topology and cells contradict each other"
            yield Finding(text, _CELLS)


def _cut(cell: CpuSet, width: int, total: int, *, within: bool) -> list[int]:
    """Return the groups of `width` vCPUs of which a cell has a part; a cell `within` one socket is valid (sub-NUMA)."""
    counts = Counter(vcpu // width for vcpu in cell if vcpu < total)
    return [] if within and len(counts) == 1 else sorted(n for n, count in counts.items() if count != width)


@rule(
    "cell-vcpus",
    ERROR,
    _CELLS,
    right="every vCPU is in exactly one cell",
    why="libvirt refuses two, and puts a vCPU without a cell into the first",
    source="libvirt formatdomain, Guest NUMA Topology",
    remedy="list each vCPU in the cpus of one <cell>",
    applies=lambda scene: bool(scene.guest.cells),
)
def cell_vcpus(scene: GuestOnHost) -> Iterator[Finding]:
    """Find vCPUs in two cells, in none, or that the guest does not have; and more cells than QEMU takes."""
    most = limit("cells")
    if len(scene.guest.cells) > most:
        text = f"{len(scene.guest.cells)} cells, QEMU takes at most {most}"
        yield Finding(text, _CELLS, remedy=f"write at most {most} cells")
    every = CpuSet(range(scene.guest.vcpus))
    counts = Counter(vcpu for cell in scene.guest.cells for vcpu in parse_cpus(cell.vcpus))
    twice = CpuSet(vcpu for vcpu, count in counts.items() if count > 1)
    if twice:
        yield Finding(f"vCPUs {twice} are in several cells: libvirt refuses overlapping cells", _CELLS)
    beyond = CpuSet(counts) - every
    if beyond:
        text = f"the cells hold vCPUs {beyond}, but the guest has {scene.guest.vcpus} vCPUs: libvirt refuses"
        yield Finding(text, _CELLS, remedy=f"take them out of the cells, or write <vcpu>{max(beyond) + 1}</vcpu>")
    missing = every - counts
    if missing and len(scene.guest.cells) > 1:  # one cell gets them all, as oVirt writes room for vCPUs to plug in
        yield Finding(f"vCPUs {missing} are in no cell: they come into cell 0", _CELLS, WARN)


@rule(
    "iommu-eim",
    ERROR,
    _IOMMU,
    right="a guest with APIC ids above 254 has an IOMMU device that remaps interrupts with extended ids",
    why="interrupts do not reach the vCPUs above; libvirt refuses more than 255",
    source="Intel VT-d, 5.1.4 (EIME); Linux arch/x86/kernel/apic/apic.c; libvirt qemu_validate.c;"
    " QEMU target/i386/kvm/kvm-cpu.c (kvm-msi-ext-dest-id)",
    remedy=_WRITE_EIM.format(""),
    applies=lambda scene: scene.x86,
)
def iommu_eim(scene: GuestOnHost) -> Iterator[Finding]:
    """Find large guests without interrupt remapping, and IOMMU devices that QEMU or libvirt refuse."""
    device = scene.guest.iommu
    last = _last_apic_id(scene)
    adds = _adds_iommu(scene)
    eim = device and device.model != "virtio" and device.eim  # virtio's remaps no interrupts
    split = scene.kvm and scene.guest.ioapic == "qemu" and not (device and device.intremap)
    off = elements.DMA_TRANSLATION in scene.facts.elements
    remedy = _WRITE_EIM.format(" dma_translation='off'" if off else "")
    if scene.passed and not off and elements.DMA_TRANSLATION_GLOBAL in scene.facts.elements:
        remedy += f", and in <qemu:commandline> {' '.join(NO_DMA_TRANSLATION)}"
    if last > LAST_XAPIC_ID and device is not None and device.model not in (None, "intel", "virtio"):
        yield unknown(f"whether an IOMMU device of model {device.model} serves APIC ids up to {last}", _IOMMU)
    elif last > LAST_XAPIC_ID and (device is None or eim is False or not (eim or adds)):
        has = "no IOMMU device" if device is None else "an IOMMU device without eim='on'"
        text = f"{scene.guest.vcpus} vCPUs with APIC ids up to {last}, but {has}"
        if split and (scene.runs or scene.guest.vcpus <= _MOST_WITHOUT_EIM):
            who = "only a guest that knows KVM's extended destination ids (Linux 5.11, machine type 5.2) uses them"
            yield Finding(f"{text}: {who}", _IOMMU, WARN, remedy=remedy)
        elif device is not None or not adds:
            yield Finding(text, _IOMMU, remedy=remedy)
        elif scene.passed:
            own = "libvirt adds one (since 10.10), but without caching_mode, which QEMU asks for with passed devices"
            yield Finding(f"{text}: {own}", _IOMMU, WARN, remedy=remedy)
    if device is None or device.model != "intel":
        return
    if device.eim and device.intremap is not True:
        yield Finding("eim='on' without intremap='on': libvirt refuses", f"{_IOMMU}/driver", remedy=remedy)
    if device.intremap and scene.kvm and scene.guest.ioapic not in ("qemu", None if adds else "qemu"):
        text = "intremap='on' without <ioapic driver='qemu'/>: libvirt refuses, KVM's own I/O APIC cannot be remapped"
        yield Finding(text, "/domain/features/ioapic", remedy="write <ioapic driver='qemu'/> in <features>")
    if scene.passed and device.caching_mode is not True:
        text = "passed devices and an IOMMU device without caching_mode='on': QEMU refuses to start"
        yield Finding(text, f"{_IOMMU}/driver", remedy=remedy)


def _adds_iommu(scene: GuestOnHost) -> bool:
    """Return whether this libvirt adds what is not written of the IOMMU device and the I/O APIC of a guest with more
    than 255 vCPUs (since 10.10, qemu_postparse.c: qemuDomainNeedsIOMMUWithEIM).
    """
    return (
        not scene.runs
        and scene.q35
        and scene.guest.vcpus > _MOST_WITHOUT_EIM
        and (scene.facts.libvirt or (0,)) >= _ADDS_IOMMU
    )


def _last_apic_id(scene: GuestOnHost) -> int:
    """Return the highest APIC id; without a topology each vCPU is a socket."""
    written = scene.guest.cpu.topology
    vcpus = scene.guest.vcpus
    if written is None:
        return vcpus - 1
    shape = Topology(
        sockets=written.sockets, dies=written.dies, cores=written.clusters * written.cores, threads=written.threads
    )
    return max(last_apic_id(shape), vcpus - 1) if needs_iommu(vcpus, shape) else last_apic_id(shape)


@rule(
    "iommu-dma",
    WARN,
    f"{_IOMMU}/driver",
    right="the IOMMU device of a guest with passed devices leaves DMA alone",
    why="if the guest's kernel uses it, each mapping is shadowed for VFIO, which takes 65,535 of them",
    source="Linux drivers/vfio/vfio_iommu_type1.c (dma_entry_limit); QEMU 7.2, -device intel-iommu,help",
    remedy="write dma_translation='off'",
    applies=lambda scene: scene.guest.iommu is not None and scene.guest.iommu.model == "intel" and bool(scene.passed),
)
def iommu_dma(scene: GuestOnHost) -> Iterator[Finding]:
    """Find an IOMMU device that translates DMA."""
    device = scene.guest.iommu
    off = device is not None and device.dma_translation is False
    if not off and not any(re.fullmatch(DMA_OFF, value) for value in values_of(scene.guest.qemu_arguments, "global")):
        remedy = "write <driver dma_translation='off'/> in the <iommu>"
        if elements.DMA_TRANSLATION not in scene.facts.elements:
            remedy = f"write {' '.join(NO_DMA_TRANSLATION)} in <qemu:commandline> (QEMU 7.2)"
        yield Finding("the IOMMU device translates DMA of passed devices, too", f"{_IOMMU}/driver", remedy=remedy)
