"""The actions of a plan in the order of applying: first those that guests need, then the knobs of the intent.

Pure. There is an action only if the current value is unknown or differs from the wanted one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hosttune.domain.elements import version_of
from hosttune.gpu import fmpm
from hosttune.gpu.vgpu import stays_with_driver
from hosttune.gpu.vgpu_set import MediatedDevice
from hosttune.inventory.devices import Catalogue
from hosttune.inventory.pages import NodeMemory
from hosttune.inventory.resources import Resources
from hosttune.inventory.virtualfunctions import functions_of, kept_of, made_here
from hosttune.knobs.gpus import release_actions
from hosttune.knobs.kernelargs import IOMMU_PASSTHROUGH, off_arguments, passthrough, values, without_off
from hosttune.knobs.knob import KnobContext, make_action, split_findings, wanted
from hosttune.knobs.registry import plan_guests_knobs, plan_host_knobs, plan_isolation
from hosttune.linux.apparmor import LOCAL, RULE
from hosttune.linux.hugetlbfs import FOUND, NOT_FOUND, PLACES
from hosttune.model import sysfs
from hosttune.model.commandline import text_of
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.limits import limit
from hosttune.model.plan import Action, PlanFinding, PlannedGuest
from hosttune.model.values import CpuSet, FrozenMap, format_size, grouped
from hosttune.planning.fabric.guest import partition_actions
from hosttune.planning.host.inside import inside_findings
from hosttune.planning.host.page_actions import boot_page_actions, page_actions
from hosttune.planning.mig.types import mig_actions
from hosttune.settings.drivers import VFIO, Driver, SriovVfs
from hosttune.settings.hook import INSTALLED, LibvirtHook
from hosttune.settings.hook import PLACE as HOOK
from hosttune.settings.kernelargs import KernelArguments
from hosttune.settings.virtual import VgpuTypeSetting, VirtualFunction

# --- a hugetlbfs mount, and an AppArmor rule for it ----------------------------------------------------------
# See `hosttune.linux.hugetlbfs` for the reason: a guest with huge pages does not start without a mount of its page
# size.


_WHERE = "/proc/mounts"
_WITH_CONTEXTS = (9, 0)  # the first libvirt version that lets QEMU allocate memory on the CPUs of its node
_NODE_CPUS = (
    "QEMU allocates a guest's memory on the CPUs of its node, and libvirt's AppArmor profile does not let it read which"
    " these are: planned guests do not start without this rule"
)


def mount_actions(host: Host, guests: tuple[PlannedGuest, ...], findings: list[PlanFinding]) -> Iterator[Action]:
    """Yield a mount for each page size that has none, and libvirt's restart if it does not know the mount yet."""
    actions: list[Action] = []
    for page in sorted({guest.page_bytes for guest in guests if guest.page_bytes}):
        names = ", ".join(guest.name for guest in guests if guest.page_bytes == page)
        actions += _of_size(host, page, names, findings)
    yield from sorted(actions, key=lambda action: action.kind != "mount")  # one restart finds all mounts
    if guests and _kept_from_node_cpus(host):  # each has its memory allocated at its start, with huge pages or without
        yield make_action("apparmor-rule", LOCAL, None, RULE, _NODE_CPUS, needed=True)


def _kept_from_node_cpus(host: Host) -> bool:
    """Return whether AppArmor blocks QEMU from reading which CPUs are on a node.

    Only libvirt versions from `_WITH_CONTEXTS` on need that; an unknown version counts as one of them.
    """
    stack = host.virtualization
    if stack is None or stack.reads_node_cpus is not False:
        return False
    version = version_of(stack.libvirt_version)
    return version is None or version >= _WITH_CONTEXTS


def _of_size(host: Host, page: int, names: str, findings: list[PlanFinding]) -> Iterator[Action]:
    size = format_size(page)
    mounts = host.memory_settings.hugetlbfs if host.memory_settings else None
    if mounts is None:
        text = (
            f"whether a hugetlbfs of {size} pages is mounted is unknown: without one libvirt starts no guest with such"
            " pages; apply looks before a start"
        )
        findings.append(PlanFinding(level="warn", text=text, where=_WHERE))
        return
    alike = [mount for mount in mounts if mount.size_bytes == page]
    place = alike[0].path if alike else PLACES.get(page)
    if place is None:
        text = f"hosttune mounts no hugetlbfs of {size} pages: mount one, or guests {names} do not start"
        findings.append(PlanFinding(level="error", text=text, where=_WHERE))
        return
    if not alike and any(mount.path == place for mount in mounts):
        text = f"{place} holds huge pages of another size: unmount it, or mount {size} pages elsewhere, then plan again"
        findings.append(PlanFinding(level="error", text=text, where=_WHERE))
        return
    if not alike:
        why = f"guests with {size} pages ({names}) need a hugetlbfs of that page size: libvirt starts none without it"
        yield make_action("mount", place, None, page, why, needed=True)
    if not any(mount.libvirt is not False for mount in alike):
        why = (
            f"libvirt looks for file systems of huge pages when it starts: its daemon is restarted after {place} is"
            " mounted; running guests go on running, and nothing is done while libvirt works on one"
        )
        yield make_action("libvirt-restart", place, NOT_FOUND, FOUND, why, needed=True)


OF_STARTS = (fmpm.KIND, VgpuTypeSetting.kind, MediatedDevice.kind)  # what libvirt's hook sets before a start


# --- all actions ---------------------------------------------------------------------------------------------


# --- kernel arguments of the IOMMU ---------------------------------------------------------------------------


SEV_SNP = "/sys/module/kvm_amd/parameters/sev_snp"


def iommu_actions(
    host: Host, intent: Intent, catalogue: Catalogue, guests: tuple[PlannedGuest, ...], findings: list[PlanFinding]
) -> Iterable[Action]:
    """Return the kernel arguments that enable the IOMMU if no groups are visible, and the profile's `iommu=pt`."""
    off: list[Action] = []
    if any(guest.devices for guest in guests) and not catalogue.groups:
        off = _iommu_off(host, findings)
    change = passthrough(host.kernel_args) if wanted(intent, IOMMU_PASSTHROUGH) else None
    if change and host.snp_meant:
        # drivers/iommu/amd/init.c, iommu_snp_enable: "SNP: IOMMU disabled or configured in passthrough mode"
        named = IOMMU_PASSTHROUGH.name in (intent.settings or {})
        text = "SEV-SNP is on or asked for, and the kernel switches it off where the IOMMU passes through: iommu=pt"
        outcome = "is asked for by name: confidential guests will not start" if named else "is left out"
        findings.append(PlanFinding(level="warn" if named else "info", text=f"{text} {outcome}", where=SEV_SNP))
        change = change if named else None
    if change:
        needed = any(action.target == change[0] for action in off)  # the argument is one action; it also removes "off"
        why = IOMMU_PASSTHROUGH.why
        off = [action for action in off if action.target != change[0]]
        off.append(_argument(*change, f"iommu=off hides the IOMMU; {why}" if needed else why, needed=needed))
    return off


def _iommu_off(host: Host, findings: list[PlanFinding]) -> list[Action]:
    """Report that no IOMMU groups are visible, and return an argument only if the facts call for one.

    Intel's driver needs intel_iommu=on unless the kernel was built with on as its default; AMD's driver runs unless
    firmware or an argument disables it (admin-guide/kernel-parameters).
    """
    present = host.iommu.present if host.iommu else None
    state = "and whether the kernel runs an IOMMU is unknown"
    if present is not None:
        state = "though the kernel runs an IOMMU" if present else "the kernel runs no IOMMU"
    text = f"no IOMMU groups are visible, {state}: no device can be given to a guest until its group is read"
    findings.append(PlanFinding(level="error", text=text, where=sysfs.IOMMU_GROUPS))
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
        findings.append(PlanFinding(level="error", text=_iommu_hint(host, vendor), where="firmware"))
    return actions


def _iommu_hint(host: Host, vendor: str | None) -> str:
    """Return where else the IOMMU may be disabled, if no kernel argument explains it."""
    if host.hypervisor:
        return "this host is itself a guest: its hypervisor has to give it an IOMMU"
    name = {"GenuineIntel": "VT-d", "AuthenticAMD": "AMD-Vi", "HygonGenuine": "AMD-Vi"}.get(vendor or "")
    if name is None:
        return "the CPUs' maker is unknown: switch the IOMMU (VT-d, AMD-Vi) on in the firmware, and in the kernel"
    arguments = "the kernel's arguments are unknown" if host.kernel_args is None else "no argument keeps the IOMMU off"
    return f"{arguments}: switch {name} on in the firmware's settings"


def _argument(target: str, current: str | None, want: str | None, why: str, *, needed: bool = False) -> Action:
    """Return a kernel argument of the next boot. `want` None: the argument is removed."""
    return make_action(KernelArguments.kind, target, current, want, why, effect="reboot", needed=needed)


# --- all actions ---------------------------------------------------------------------------------------------


def plan_actions(
    host: Host,
    intent: Intent,
    resources: Resources,
    memory: Mapping[int, NodeMemory],
    catalogue: Catalogue,
    guests: tuple[PlannedGuest, ...],
    *,
    every: bool = False,
) -> tuple[tuple[Action, ...], tuple[PlanFinding, ...]]:
    """Return every action of a plan in the order of applying, and findings about them.

    `every`: also actions for what is as wanted now.
    """
    ctx = KnobContext(
        host=host,
        intent=intent,
        guests=guests,
        held_cpus=CpuSet(resources.pinned - resources.housekeeping),
        node_cpus={
            number: CpuSet(cpu for core in node.cores for cpu in core.cpus) for number, node in resources.nodes.items()
        },
        every=every,
    )
    findings: list[PlanFinding] = []
    needed = [
        *page_actions(host, intent, memory, guests, findings, every=every),
        *mount_actions(host, guests, findings),
        *iommu_actions(host, intent, catalogue, guests, findings),
        *split_findings(plan_isolation(ctx))[0],
        *boot_page_actions(host, intent, memory, guests, findings),
        *_released(catalogue, guests),
        *partition_actions(catalogue.fabric, guests),
        *_drivers(catalogue, guests, every=every),
        *_virtual_functions(host, guests, every=every),
        *mig_actions(host, catalogue, guests),
    ]
    of_guests, about_guests = split_findings(plan_guests_knobs(ctx))
    of_host, about_host = split_findings(plan_host_knobs(ctx))
    if any(action.kind in OF_STARTS for action in needed):
        of_host = [action for action in of_host if action.kind != LibvirtHook.kind]  # of a setting that names it
        why = "a start by another program finds what the guest's devices need, or is refused"
        needed.append(make_action(LibvirtHook.kind, HOOK, None, INSTALLED, why, needed=True))
    inside = [finding for guest in guests for finding in inside_findings(intent, host, catalogue, guest)]
    return (*needed, *of_guests, *of_host), (*findings, *about_guests, *inside, *about_host)


def _bound(catalogue: Catalogue, guests: tuple[PlannedGuest, ...]) -> Iterator[tuple[str, str, str | None]]:
    """Yield each device that goes to vfio-pci: its guest, its address and its driver now."""
    for guest in guests:
        for device in guest.devices:
            function = catalogue.pci.get(device.address)
            if device.managed or device.vgpu_type or stays_with_driver(function):
                continue  # libvirt binds a managed one; the vendor's driver of a vGPU is its VFIO driver, too
            yield guest.name, device.address, function.driver if function else None


def _released(catalogue: Catalogue, guests: tuple[PlannedGuest, ...]) -> Iterator[Action]:
    """Yield what keeps the driver from letting go: before partitions, for which some GPUs are reset."""
    for _, address, driver in _bound(catalogue, guests):
        if driver != VFIO:
            yield from release_actions(catalogue.gpus.get(address), driver)


def _drivers(catalogue: Catalogue, guests: tuple[PlannedGuest, ...], *, every: bool) -> Iterator[Action]:
    for name, address, driver in _bound(catalogue, guests):
        if every or driver != VFIO:
            yield make_action(Driver.kind, address, driver, VFIO, f"guest {name} gets {address}", needed=True)


def _virtual_functions(host: Host, guests: tuple[PlannedGuest, ...], *, every: bool) -> Iterator[Action]:
    """Yield the number of virtual functions of each NIC, and what it keeps for those of guests.

    A number that is there stays while a guest has one of them: to change it, all have to go.
    """
    rows = [(guest.name, device) for guest in guests for device in guest.devices]
    kept_now = {nic.address: nic.functions for nic in host.nics}
    by_nic = grouped((network.vf_of, (name, device, network)) for name, device in rows if (network := device.network))
    for physical, own in sorted((nic, of) for nic, of in by_nic.items() if nic is not None):
        addresses = functions_of(host, physical, limit("networks"))
        numbers = {device.address: addresses.index(device.address) for _, device, _ in own}
        now = host.index.pci[physical].sriov_vfs
        want = max(now or 0, made_here(host, physical), 1 + max(numbers.values()))
        names = ", ".join(dict.fromkeys(name for name, _, _ in own))
        if every or now != want:
            why = f"guests {names} get virtual functions of {physical}"
            yield make_action(SriovVfs.kind, physical, now, want, why, needed=True)
        for name, device, network in own:
            kept = kept_of(network)
            why = f"guest {name}: what {physical} does with {device.address}, whatever the guest wants"
            target = f"{physical}/{numbers[device.address]}"
            told = (kept_now.get(physical) or {}).get(str(numbers[device.address]))
            current = told and FrozenMap({name: told[name] for name in kept if name in told})
            if now != want:
                current = FrozenMap[str, Any]({})  # new functions have nothing of it
            if kept and (every or current != kept):
                yield make_action(VirtualFunction.kind, target, current, kept, why, needed=True)
