"""Host settings that a plan wants, as actions: what the guests cannot work without, then the profile's.

Pure. An action stands only where the current value is unknown or differs from the wanted one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hosttune.gpu.vgpu import stays_with_driver
from hosttune.irqbalance import IRQBALANCE, IRQBALANCE_THEIRS
from hosttune.model import sysfs
from hosttune.model.commandline import text_of
from hosttune.model.host import Cpu, Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Device, Finding, PlannedGuest
from hosttune.model.values import CpuSet, format_size, parse_cpus
from hosttune.planning.action import make_action
from hosttune.planning.bootargs import add_cpus, boot_pages, off_arguments, passthrough, values, without_off
from hosttune.planning.devices import Catalogue
from hosttune.planning.gpusettings import let_go, plan_gpu_settings
from hosttune.planning.hostwishes import plan_host
from hosttune.planning.migguest import mig_actions
from hosttune.planning.mounts import mount_actions
from hosttune.planning.pages import GIB, HUGE_1G, NodeMemory
from hosttune.planning.pciwishes import plan_pci
from hosttune.planning.resources import Resources
from hosttune.planning.settings import reason, wanted
from hosttune.settings.irqs import cpu_list

VMEMMAP = "/proc/sys/vm/hugetlb_optimize_vmemmap"
VMEMMAP_OF_1G = 16 << 20  # struct pages of 64 bytes for 262144 pages of 4 KiB
SEV_SNP = "/sys/module/kvm_amd/parameters/sev_snp"
# These drivers choose frequencies themselves and take a preference instead of a governor (admin-guide/pm).
PREFERENCE_DRIVERS = frozenset(("intel_pstate", "amd-pstate-epp", "amd_pstate_epp"))


def plan_actions(
    host: Host,
    intent: Intent,
    resources: Resources,
    memory: Mapping[int, NodeMemory],
    catalogue: Catalogue,
    guests: tuple[PlannedGuest, ...],
) -> tuple[tuple[Action, ...], tuple[Finding, ...]]:
    """Every action of a plan in the order of applying, and what is worth knowing about them."""
    findings: list[Finding] = []
    actions = [*_pages(host, intent, memory, guests, findings), *mount_actions(host, guests, findings)]
    actions += _iommu(host, intent, catalogue, guests, findings)
    actions += _isolation(host, intent, guests)
    actions += _boot_pages(host, intent, memory, guests, findings)
    actions += _drivers(catalogue, guests)
    actions += mig_actions(host, catalogue, guests)
    pinned = CpuSet(cpu for guest in guests for pin in guest.vcpu_pins for cpu in parse_cpus(pin.cpus))
    if guests:
        actions += _cpus(host, intent, pinned, findings)
        actions += _interrupts(host, intent, resources, guests, pinned)
    if guests or not intent.guests:  # nothing for a request that finds no place
        for found, known in (
            plan_pci(host, intent, catalogue, guests),
            plan_host(host, intent, catalogue, guests),
        ):
            actions += found
            findings += known
    of_gpus, said = plan_gpu_settings(host, intent, catalogue, guests)
    return (*actions, *of_gpus), (*findings, *said)


Pages = dict[tuple[int, int], int]  # (node, page size) -> bytes, or pages


def _page_demand(guests: tuple[PlannedGuest, ...]) -> Pages:
    """What the planned guests take of each pool."""
    demand: Pages = {}
    for guest in guests:
        for cell in guest.cells if guest.page_bytes else ():
            key = int(cell.host_nodes), guest.page_bytes or 0
            demand[key] = demand.get(key, 0) + cell.memory_bytes
    return demand


def _missing(memory: Mapping[int, NodeMemory], guests: tuple[PlannedGuest, ...]) -> Pages:
    """How many pages each pool has to grow by."""
    return {
        (node, page): memory[node].missing_pages(page, size) if node in memory else -(-size // page)
        for (node, page), size in _page_demand(guests).items()
    }


def _at_boot(memory: Mapping[int, NodeMemory], guests: tuple[PlannedGuest, ...]) -> frozenset[int]:
    """Nodes whose 1 GiB pages wait for a reboot: what is free now does not give what the guests need."""
    missing = _missing(memory, guests)
    new: dict[int, int] = {}
    for (node, page), pages in missing.items():
        new[node] = new.get(node, 0) + pages * page
    return frozenset(
        node
        for node, size in new.items()
        if missing.get((node, HUGE_1G)) and node in memory and memory[node].short_now
        if size > (memory[node].room_bytes() or 0)
    )


def _pages(
    host: Host,
    intent: Intent,
    memory: Mapping[int, NodeMemory],
    guests: tuple[PlannedGuest, ...],
    findings: list[Finding],
) -> Iterable[Action]:
    free = {node.id: node.free_bytes for node in host.numa_nodes}
    late = _at_boot(memory, guests)
    missing_pages = _missing(memory, guests)
    for (node, page), size in sorted(_page_demand(guests).items()):
        missing = missing_pages[node, page]
        if not missing:
            continue
        pool = memory[node].pools.get(page) if node in memory else None
        current = pool.total if pool else None
        want = memory[node].pages_wanted(page, size) if node in memory else missing
        target = f"{sysfs.pool(node, page)}/nr_hugepages"
        have = "none known" if pool is None else f"{pool.free} free" if pool.counted else "how many are free is unknown"
        why = f"guests on node {node} need {-(-size // page)} pages of {format_size(page)}, {have}"
        if page == HUGE_1G and node in late:
            why += f"; {format_size(free.get(node))} of the node is free now: the next boot reserves them"
            yield make_action("hugepages", target, current, want, why, needed=True, effect="reboot")
            continue
        yield make_action("hugepages", target, current, want, why, needed=True)
        if current is None:
            text = (
                f"the pages that node {node} has now are unknown: {want} is what this plan needs, and writing it takes"
                " pages from others where there are more"
            )
            findings.append(Finding(level="warn", text=text, where=target))
        findings += _page_doubts(intent, node, page, missing, free.get(node), target)


def _page_doubts(
    intent: Intent, node: int, page: int, missing: int, free_bytes: int | None, target: str
) -> Iterable[Finding]:
    """Why the kernel may give fewer pages than an action wants."""
    if free_bytes is not None and free_bytes < missing * page:
        text = (
            f"node {node} has {format_size(free_bytes)} free now, {format_size(missing * page)} of new pages are"
            " wanted: the kernel may give fewer"
        )
        yield Finding(level="warn", text=text, where=target)
    elif page == HUGE_1G and wanted(intent, "boot_pages") is None:
        text = (
            "1 GiB pages need unbroken memory: on a host that has run for a while the kernel may give fewer;"
            " hugepages: 2MiB or profile: host (reserved at boot) avoid that"
        )
        yield Finding(level="info", text=text, where=target)


def _argument(target: str, current: str | None, want: str | None, why: str, *, needed: bool = False) -> Action:
    """A kernel argument of the next boot. `want` None: it goes away."""
    return make_action("kernel-argument", target, current, want, why, effect="reboot", needed=needed)


def _boot_pages(
    host: Host,
    intent: Intent,
    memory: Mapping[int, NodeMemory],
    guests: tuple[PlannedGuest, ...],
    findings: list[Finding],
) -> Iterable[Action]:
    """1 GiB pages of the planned guests, reserved at boot besides what the pools hold now.

    As the profile wants, and on the nodes that have too little free memory for them now.
    """
    late = _at_boot(memory, guests)
    every = bool(wanted(intent, "boot_pages"))
    needed = {
        node: memory[node].pages_wanted(page, size) if node in memory else -(-size // page)
        for (node, page), size in _page_demand(guests).items()
        if page == HUGE_1G and (every or node in late)
    }
    if not needed:
        return
    saved = sum(needed.values()) * VMEMMAP_OF_1G
    asked = wanted(intent, "hugetlb_free_vmemmap") or text_of(host.kernel_args, "hugetlb_free_vmemmap")
    if saved >= GIB and not asked and (host.settings or {}).get(VMEMMAP, "0").strip() == "0":
        text = (
            f"the kernel's records of these pages take {format_size(saved)}: settings: {{hugetlb_free_vmemmap: true}}"
            " gives that back, but the kernel then needs memory to give a page back and takes longer over it"
        )
        findings.append(Finding(level="info", text=text, where=VMEMMAP))
    totals = {node.node: node.pages_known(HUGE_1G) for node in memory.values() if node.has_memory}
    change = boot_pages(host.kernel_args, totals, needed)
    if change:
        why = "1 GiB pages are certain only at boot; no node gets fewer than it has now"
        if late:
            why = f"node {CpuSet(late)} has too little free memory for these pages now; no node gets fewer than it has"
        yield _argument(*change, why, needed=bool(late))


def _isolation(host: Host, intent: Intent, guests: tuple[PlannedGuest, ...]) -> Iterable[Action]:
    pinned = CpuSet(cpu for guest in guests for pin in guest.vcpu_pins for cpu in parse_cpus(pin.cpus))
    for name in ("isolcpus", "nohz_full"):
        value = wanted(intent, name)
        if value is None or not pinned:
            continue
        current = text_of(host.kernel_args, name)
        change = add_cpus(host.kernel_args, name, pinned) if value is True else (name, current, f"{name}={value}")
        if change and change[1] != change[2]:
            yield _argument(*change, f"asked for by name: settings.{name}")


def _iommu(
    host: Host, intent: Intent, catalogue: Catalogue, guests: tuple[PlannedGuest, ...], findings: list[Finding]
) -> Iterable[Action]:
    """What the IOMMU wants of the next boot: to be on where no groups are seen, and the profile's `iommu=pt`."""
    off: list[Action] = []
    if any(guest.devices for guest in guests) and not catalogue.groups:
        off = _iommu_off(host, findings)
    change = passthrough(host.kernel_args) if wanted(intent, "iommu_passthrough") else None
    if change and host.switched_on("kvm_amd", "sev_snp"):
        # drivers/iommu/amd/init.c, iommu_snp_enable: "SNP: IOMMU disabled or configured in passthrough mode"
        by_name = "iommu_passthrough" in (intent.settings or {})
        text = (
            "SEV-SNP is on (kvm_amd.sev_snp), and the kernel switches it off where the IOMMU passes through: iommu=pt"
        )
        said = "is asked for by name, and confidential guests end with it" if by_name else "is left out"
        findings.append(Finding(level="warn" if by_name else "info", text=f"{text} {said}", where=SEV_SNP))
        change = change if by_name else None
    if change:
        needed = any(action.target == change[0] for action in off)  # one argument, one action: "off" goes with it
        why = "host-owned devices bypass translation; guests keep theirs"
        off = [action for action in off if action.target != change[0]]
        off.append(_argument(*change, f"iommu=off hides the IOMMU; {why}" if needed else why, needed=needed))
    return off


def _iommu_off(host: Host, findings: list[Finding]) -> list[Action]:
    """No IOMMU groups are seen: say so, and plan an argument only where the facts ask for one.

    Intel's driver needs intel_iommu=on unless the kernel was built to default to it; AMD's runs unless firmware
    or an argument says no (admin-guide/kernel-parameters).
    """
    present = host.iommu.present if host.iommu else None
    state = "and whether the kernel runs an IOMMU is unknown"
    if present is not None:
        state = "though the kernel runs an IOMMU" if present else "the kernel runs no IOMMU"
    text = f"no IOMMU groups are visible, {state}: no device can be given to a guest until its group is read"
    findings.append(Finding(level="error", text=text, where=sysfs.IOMMU_GROUPS))
    if present:
        return []
    vendor = host.cpu_model.vendor if host.cpu_model else None
    off = off_arguments(host.kernel_args, vendor)
    actions = []
    for name, argument in {argument.partition("=")[0]: argument for argument in off}.items():
        change = without_off(host.kernel_args, name)
        why = f"{argument} keeps the IOMMU off{'' if change[2] else ': the argument goes away'}"
        actions.append(_argument(*change, why, needed=True))
    if vendor == "GenuineIntel" and "on" not in values(host.kernel_args, "intel_iommu"):
        if not any(action.target == "intel_iommu" for action in actions):
            why = "no IOMMU groups are visible; Intel needs this argument unless its kernel defaults to on"
            now = text_of(host.kernel_args, "intel_iommu")
            want = ",".join(("intel_iommu=on", *values(host.kernel_args, "intel_iommu")))
            actions.append(_argument("intel_iommu", now, want, why, needed=True))
    elif not off:
        findings.append(Finding(level="error", text=_iommu_hint(host, vendor), where="firmware"))
    return actions


def _iommu_hint(host: Host, vendor: str | None) -> str:
    """Where else an IOMMU may be off, when no argument that is known to be there or missing explains it."""
    if host.hypervisor:
        return "this host is itself a guest: its hypervisor has to give it an IOMMU"
    name = {"GenuineIntel": "VT-d", "AuthenticAMD": "AMD-Vi", "HygonGenuine": "AMD-Vi"}.get(vendor or "")
    if name is None:
        return "the CPUs' maker is unknown: switch the IOMMU (VT-d, AMD-Vi) on in the firmware, and in the kernel"
    arguments = "the kernel's arguments are unknown" if host.kernel_args is None else "no argument keeps the IOMMU off"
    return f"{arguments}: switch {name} on in the firmware's settings"


def _drivers(catalogue: Catalogue, guests: tuple[PlannedGuest, ...]) -> Iterable[Action]:
    for guest in guests:
        for device in guest.devices:
            function = catalogue.pci.get(device.address)
            driver = function.driver if function else None
            if device.vgpu_type or stays_with_driver(function):
                continue  # a vGPU's virtual function stays with its maker's driver, which is its VFIO driver too
            if driver != "vfio-pci":
                yield from let_go(catalogue.gpus.get(device.address), driver)
                yield make_action(
                    "driver",
                    device.address,
                    driver,
                    "vfio-pci",
                    f"guest {guest.name} gets {device.address}",
                    needed=True,
                )


def _cpus(host: Host, intent: Intent, pinned: CpuSet, findings: list[Finding]) -> Iterable[Action]:
    cpus = [cpu for cpu in host.cpus if cpu.id in pinned]
    driver = host.cpu_model.scaling_driver if host.cpu_model else None
    known = [cpu for cpu in cpus if cpu.governor is not None]
    if not known and (wanted(intent, "governor") or wanted(intent, "energy_preference")):
        text = "no frequency driver is visible: governor and energy preference are left alone"
        findings.append(Finding(level="info", text=text, where=f"{sysfs.CPUS}/cpufreq"))
    elif driver in PREFERENCE_DRIVERS:
        value = wanted(intent, "energy_preference")
        why = f"{driver} takes a preference, not a governor"
        why = reason(intent, "energy_preference", why)
        yield from _per_cpu("energy-preference", {c.id: c.energy_preference for c in cpus}, value, why)
    else:
        why = f"pinned vCPUs should not wait for {driver or 'the frequency driver'} to raise the clock"
        why = reason(intent, "governor", why)
        yield from _per_cpu("governor", {c.id: c.governor for c in cpus}, wanted(intent, "governor"), why)
    latency = wanted(intent, "resume_latency_us")
    if latency is not None:
        why = "bounds how long an idle core takes to wake (pm_qos_resume_latency_us; 0 would mean no limit)"
        why = reason(intent, "resume_latency_us", why)
        yield from _per_cpu("resume-latency", _latencies(cpus), str(latency), why)


def _latencies(cpus: list[Cpu]) -> dict[int, str | None]:
    return {cpu.id: cpu.resume_latency_us for cpu in cpus}


def _per_cpu(kind: str, values: Mapping[int, str | None], want: Any, why: str) -> Iterable[Action]:
    """One action per group of CPUs that have the same value now."""
    if want is None:
        return
    groups: dict[str | None, list[int]] = {}
    for cpu, value in values.items():
        if value != want:
            groups.setdefault(value, []).append(cpu)
    for value, cpus in sorted(groups.items(), key=lambda row: row[1]):
        yield make_action(kind, f"cpus {CpuSet(cpus)}", value, want, why)


def _interrupts(
    host: Host, intent: Intent, resources: Resources, guests: tuple[PlannedGuest, ...], pinned: CpuSet
) -> Iterable[Action]:
    if wanted(intent, "irqbalance_ban") is not None:
        now, ban = _ban(host, CpuSet(pinned | (resources.pinned - resources.housekeeping)))
        if now != ban:
            yield make_action("irqbalance-ban", "irqbalance", now, ban, "interrupts of the host stay off pinned CPUs")
    if wanted(intent, "irq_affinity") is not None:
        for guest in guests:
            for device in (device for device in guest.devices if not device.vgpu_type):  # whose driver has them
                why = "its interrupts are handled beside the guest; they exist only once it runs: pending until then"
                yield make_action("irq-affinity", device.address, None, str(_beside(resources, guest, device)), why)


def _ban(host: Host, cpus: CpuSet) -> tuple[str | None, str]:
    """(what irqbalance is banned from now, the list that bans these CPUs too).

    A list replaces what irqbalance leaves alone by itself, isolated and nohz_full CPUs (cputree.c), and what the
    administrator's own file bans: both stay banned.
    """
    known = host.settings or {}
    now = next((known[path] for path in IRQBALANCE if path in known), None)
    theirs = next((known[path] for path in IRQBALANCE_THEIRS if path in known), None)
    quiet = [cpu.id for cpu in host.cpus if cpu.isolated or cpu.nohz_full]
    return now, str(cpus | quiet | CpuSet.parse(cpu_list(theirs) or ""))


def _beside(resources: Resources, guest: PlannedGuest, device: Device) -> CpuSet:
    """CPUs for a device's interrupts: those of the guest's emulator threads that are on the device's node, if any."""
    service = parse_cpus(guest.emulator_cpus)
    node = resources.nodes.get(device.host_node) if device.host_node is not None else None
    near = service & [cpu for core in node.cores for cpu in core.cpus] if node else service
    return near or service
