"""Host settings that a plan wants, as actions: what the guests cannot work without, then the profile's.

Pure. An action stands only where the current value is unknown or differs from the wanted one. Which profile
brings which setting is the contract's; `settings` of the intent adds to it or overrides it by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hosttune.errors import BadInput
from hosttune.model.host import Cpu, Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Finding, PlannedGuest
from hosttune.model.values import CpuSet, format_size, parse_cpus
from hosttune.planning.devices import Catalogue, address_key
from hosttune.planning.pages import HUGE_1G, NodeMemory
from hosttune.planning.resources import Resources

# name -> (profiles that bring it, wanted value). None: the value is worked out from the plan.
SETTINGS: Mapping[str, tuple[tuple[str, ...], Any]] = {
    "governor": (("guest", "host"), "performance"),
    "energy_preference": (("guest", "host"), "performance"),
    "irqbalance_ban": (("guest", "host"), None),
    "irq_affinity": (("guest", "host"), None),
    "aspm": (("guest", "host"), "off"),
    "resume_latency_us": (("host",), 10),
    "thp": (("host",), "madvise"),
    "numa_balancing": (("host",), 0),
    "ksm": (("host",), 2),
    "iommu_passthrough": (("host",), True),
    "boot_pages": (("host",), True),
    "isolcpus": ((), None),
    "nohz_full": ((), None),
}

# These drivers choose frequencies themselves and take a preference instead of a governor (admin-guide/pm).
PREFERENCE_DRIVERS = frozenset(("intel_pstate", "amd-pstate-epp", "amd_pstate_epp"))


def check_settings(intent: Intent, where: str = "intent") -> None:
    """Refuse (BadInput) a name under `settings` that hosttune does not know."""
    for name in intent.settings or {}:
        if name not in SETTINGS:
            raise BadInput(
                f"no setting {name!r}", where=f"{where}: settings.{name}", hint=f"known: {', '.join(SETTINGS)}"
            )


def wanted(intent: Intent, name: str) -> Any:
    """The value an intent wants of a setting, None where it is left alone (`NAME: keep`, or not in the profile)."""
    profiles, default = SETTINGS[name]
    value = (intent.settings or {}).get(name, True if intent.profile in profiles else "keep")
    if value in ("keep", False, None) and not (value == 0 and value is not False):
        return None
    return (True if default is None else default) if value is True else value


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
    actions = [*_pages(host, intent, memory, guests, findings)]
    actions += _kernel_args(host, intent, catalogue, guests, findings)
    actions += _drivers(catalogue, guests)
    pinned = CpuSet(cpu for guest in guests for pin in guest.vcpu_pins for cpu in parse_cpus(pin.cpus))
    if guests:
        actions += _cpus(host, intent, pinned, findings)
        actions += _interrupts(host, intent, resources, guests, pinned)
        actions += _aspm(intent, catalogue, guests)
        actions += _memory(host, intent)
    return tuple(actions), tuple(findings)


def _action(kind: str, target: str, current: Any, want: Any, why: str, **more: Any) -> Action:
    """An action that takes effect now, is not needed and can be undone, unless `more` says otherwise."""
    rest = {"effect": "now", "needed": False, "reversible": True, **more}
    return Action(id=f"{kind}:{target}", kind=kind, target=target, current=current, want=want, why=why, **rest)


def _pages(
    host: Host,
    intent: Intent,
    memory: Mapping[int, NodeMemory],
    guests: tuple[PlannedGuest, ...],
    findings: list[Finding],
) -> Iterable[Action]:
    demand: dict[tuple[int, int], int] = {}
    for guest in guests:
        for cell in guest.cells:
            if guest.page_bytes:
                key = int(cell.host_nodes), guest.page_bytes
                demand[key] = demand.get(key, 0) + cell.memory_bytes
    free = {node.id: node.free_bytes for node in host.numa_nodes}
    for (node, page), size in sorted(demand.items()):
        pool = memory[node].pools.get(page) if node in memory else None
        missing = memory[node].missing_pages(page, size) if node in memory else -(-size // page)
        if not missing:
            continue
        total = pool.total if pool else 0
        target = f"/sys/devices/system/node/node{node}/hugepages/hugepages-{page // 1024}kB/nr_hugepages"
        have = f"{pool.free} free" if pool else "none known"
        why = f"guests on node {node} need {-(-size // page)} pages of {format_size(page)}, {have}"
        yield _action("hugepages", target, pool.total if pool else None, total + missing, why, needed=True)
        left = free.get(node)
        if left is not None and left < missing * page:
            text = (
                f"node {node} has {format_size(left)} free now, {format_size(missing * page)} of new pages are wanted:"
                " the kernel may give fewer"
            )
            findings.append(Finding(level="warn", text=text, where=target))
        elif page == HUGE_1G and wanted(intent, "boot_pages") is None:
            text = (
                "1 GiB pages need unbroken memory: on a host that has run for a while the kernel may give fewer;"
                " hugepages: 2MiB or profile: host (reserved at boot) avoid that"
            )
            findings.append(Finding(level="info", text=text, where=target))


def _kernel_args(
    host: Host, intent: Intent, catalogue: Catalogue, guests: tuple[PlannedGuest, ...], findings: list[Finding]
) -> list[Action]:
    """Arguments for the next boot: the IOMMU where it is off, then what the profile or the intent asks."""
    arguments = host.kernel_args
    actions = []

    def want(argument: str, why: str, *, needed: bool = False) -> None:
        if argument not in (arguments or ()):
            name = argument.partition("=")[0]
            now = next((a for a in arguments or () if a.partition("=")[0] == name), None)
            actions.append(_action("kernel-argument", name, now, argument, why, effect="reboot", needed=needed))

    devices = [device.address for guest in guests for device in guest.devices]
    if devices and not catalogue.groups:
        actions += _iommu_off(host, findings)
    elif wanted(intent, "iommu_passthrough"):
        want("iommu=pt", "host-owned devices bypass translation; guests keep theirs")
    pinned = CpuSet(cpu for guest in guests for pin in guest.vcpu_pins for cpu in parse_cpus(pin.cpus))
    for name in ("isolcpus", "nohz_full"):
        value = wanted(intent, name)
        if value is not None and pinned:
            want(f"{name}={pinned if value is True else value}", f"asked for by name: settings.{name}")
    if wanted(intent, "boot_pages"):
        counts: dict[int, int] = {}
        for guest in guests:
            for cell in guest.cells if guest.page_bytes == HUGE_1G else ():
                node = int(cell.host_nodes)
                counts[node] = counts.get(node, 0) + cell.memory_bytes // HUGE_1G
        if counts:
            nodes = ",".join(f"{node}:{count}" for node, count in sorted(counts.items()))
            want(f"hugepages={nodes}", "1 GiB pages are certain only at boot (with hugepagesz=1G before it)")
    return actions


def _iommu_off(host: Host, findings: list[Finding]) -> list[Action]:
    """The argument that turns the IOMMU on: Intel needs one; AMD is on unless firmware or an argument says no."""
    text = "no IOMMU groups: no device can be given to a guest until the IOMMU is on and its groups are read"
    findings.append(Finding(level="error", text=text, where="/sys/kernel/iommu_groups"))
    vendor = host.cpu_model.vendor if host.cpu_model else None
    if host.iommu and host.iommu.present:
        return []
    off = [a for a in host.kernel_args or () if a in ("iommu=off", "amd_iommu=off", "intel_iommu=off")]
    if vendor == "AuthenticAMD" and not off:
        text = "AMD's IOMMU is on by default: switch it on in the firmware's settings"
        findings.append(Finding(level="error", text=text, where="firmware"))
        return []
    name = "amd_iommu" if vendor == "AuthenticAMD" else "intel_iommu"
    current = off[0] if off else None
    want = None if vendor == "AuthenticAMD" else "intel_iommu=on"
    why = "the kernel runs no IOMMU: without one nothing keeps a guest's device in its own memory"
    target = (current or name).partition("=")[0]
    return [_action("kernel-argument", target, current, want, why, effect="reboot", needed=True)]


def _drivers(catalogue: Catalogue, guests: tuple[PlannedGuest, ...]) -> Iterable[Action]:
    for guest in guests:
        for device in guest.devices:
            function = catalogue.pci.get(device.address)
            driver = function.driver if function else None
            if driver != "vfio-pci":
                yield _action(
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
        findings.append(Finding(level="info", text=text, where="/sys/devices/system/cpu/cpufreq"))
    elif driver in PREFERENCE_DRIVERS:
        value = wanted(intent, "energy_preference")
        why = f"{driver} takes a preference, not a governor"
        yield from _per_cpu("energy-preference", {c.id: c.energy_preference for c in cpus}, value, why)
    else:
        why = f"pinned vCPUs should not wait for {driver or 'the frequency driver'} to raise the clock"
        yield from _per_cpu("governor", {c.id: c.governor for c in cpus}, wanted(intent, "governor"), why)
    latency = wanted(intent, "resume_latency_us")
    if latency is not None:
        why = "bounds how long an idle core takes to wake (pm_qos_resume_latency_us; 0 would mean no limit)"
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
        yield _action(kind, f"cpus {CpuSet(cpus)}", value, want, why)


def _interrupts(
    host: Host, intent: Intent, resources: Resources, guests: tuple[PlannedGuest, ...], pinned: CpuSet
) -> Iterable[Action]:
    if wanted(intent, "irqbalance_ban") is not None:
        held = str(CpuSet(pinned | (resources.pinned - resources.housekeeping)))
        now = (host.settings or {}).get("/etc/default/irqbalance")
        if now != held:
            yield _action("irqbalance-ban", "irqbalance", now, held, "interrupts of the host stay off pinned CPUs")
    if wanted(intent, "irq_affinity") is not None:
        for guest in guests:
            for device in guest.devices:
                why = "its interrupts are handled beside the guest; they exist only once it runs: pending until then"
                yield _action("irq-affinity", device.address, None, guest.emulator_cpus, why)


def _aspm(intent: Intent, catalogue: Catalogue, guests: tuple[PlannedGuest, ...]) -> Iterable[Action]:
    """ASPM off on the links to passed devices, both ends; an end that is off already is left alone."""
    want = wanted(intent, "aspm")
    if want is None:
        return
    ends: dict[str, str] = {}
    for guest in guests:
        for device in guest.devices:
            function = catalogue.pci.get(device.address)
            for address in (device.address, function.parent if function else None):
                if address:
                    ends.setdefault(address, guest.name)
    for address in sorted(ends, key=address_key):
        function = catalogue.pci.get(address)
        now = function.aspm if function else None
        if now == want or (function and function.link is None):
            continue
        bridge = bool(function and function.is_bridge)
        why = "the link to a passed device leaves its low-power states too slowly"
        if not bridge:
            why += "; vfio resets the endpoint when the guest opens it: the guest's seed repeats it"
        yield _action("aspm", address, now, want, why)


def _memory(host: Host, intent: Intent) -> Iterable[Action]:
    now = host.memory_settings
    thp = wanted(intent, "thp")
    if thp is not None and (now is None or now.thp != thp):
        path = "/sys/kernel/mm/transparent_hugepage/enabled"
        yield _action("thp", path, now.thp if now else None, thp, "guests have their own pages; the host asks for its")
    balancing = wanted(intent, "numa_balancing")
    if balancing is not None and (now is None or now.numa_balancing != balancing):
        current = now.numa_balancing if now else None
        why = "page scanning costs time and cannot move pinned memory"
        yield _action("numa-balancing", "kernel.numa_balancing", current, balancing, why)
    ksm = wanted(intent, "ksm")
    if ksm is not None and now is not None and now.ksm_run == 1:
        why = "2 stops merging and unmerges; 0 would keep the merged pages"
        yield _action("ksm", "/sys/kernel/mm/ksm/run", now.ksm_run, ksm, why)
