"""What several checks ask of the evidence: bridges above a device, who has which device, which CPUs guests run on.

Pure. A guest is known by libvirt, or planned by an applied plan; where both say something, what is there counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hosttune.checks.check import skipped, unknown
from hosttune.gpu import maker_of
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, Nic, Nvme, NvSwitch, PciDevice, RunningGuest, SeenDevice
from hosttune.model.plan import PlannedGuest
from hosttune.model.validation import CheckResult
from hosttune.model.values import CpuSet, address_key, parse_cpus

# States of libvirt in which a guest has its memory and devices (virDomainState).
RUNNING = frozenset(("running", "paused", "idle", "in shutdown", "pmsuspended", "blocked"))
HOST = "host"  # the subject of what concerns the machine as a whole
AS_ROOT = "run hosttune validate as root: the kernel shows only the first 64 bytes of configuration space to others"
AS_LIBVIRT = "run hosttune validate as root with libvirt running, so that its guests can be asked about"
RECORD = "the capture does not hold it: capture the host again with this version of hosttune, as root"


def accelerators(host: Host) -> tuple[Gpu, ...]:
    """Every GPU of a known accelerator maker that any source knows; `other` ones are left out.

    After those of the PCI tree come `lost_gpus`, of which nothing can be judged.
    """
    return (*(gpu for gpu in host.gpus if gpu.vendor != "other"), *lost_gpus(host))


def lost_gpus(host: Host) -> tuple[Gpu, ...]:
    """GPUs that are not in the PCI tree, or do not answer there, and that another source knows; by address.

    The other source may be a tool, the kernel, a plan in force or an earlier validation. No fact of theirs is kept
    but who they are: what a tool told of a GPU that is not there proves nothing.
    """
    listed = {gpu.address for gpu in host.gpus}
    found: dict[str, Gpu] = {}
    for seen in (seen for source in host.sources or () for seen in source.beyond if seen.kind == "gpu"):
        if seen.address not in listed:
            known = found.get(seen.address, Gpu(address=seen.address))
            vendor = seen.vendor or _maker(seen.id)
            found[seen.address] = Gpu(
                address=seen.address,
                vendor=vendor if vendor and known.vendor == "other" else known.vendor,
                model=known.model or seen.model,
            )
    for device in host.pci:
        if device.responds is False and (device.class_code or "").startswith(("0302", "12")):
            vendor = _maker(device.vendor_id) or "other"
            found.setdefault(device.address, Gpu(address=device.address, vendor=vendor, model=device.device_name))
    return tuple(found[address] for address in sorted(found, key=address_key))


def known_devices(host: Host) -> dict[str, SeenDevice]:
    """Every device that matters and that any source knows, by address: what the PCI tree has first.

    Of the tree the GPUs of known makers, NICs, NVMe drives and NVSwitches, no virtual functions; of the other sources
    what is not in the tree. Where there is no tree, what is of no known kind is left out: most of it are bridges.
    """
    functions = by_address(host)
    found: dict[str, SeenDevice] = {}
    parts = (("gpu", accelerators(host)), ("nic", host.nics), ("nvme", host.nvme), ("nvswitch", host.nvswitches))
    for kind, devices in parts:
        for device in devices:
            function = functions.get(device.address)
            if function is None or function.physfn is None:
                found[device.address] = _seen(device, kind, function)
    for seen in (seen for source in host.sources or () for seen in source.beyond):
        if seen.kind is not None or host.pci:
            found.setdefault(seen.address, seen)
    for function in host.pci:
        if function.responds is False and function.physfn is None:
            found.setdefault(function.address, SeenDevice(address=function.address, model=function.device_name))
    return found


def _seen(device: Gpu | Nic | Nvme | NvSwitch, kind: str, function: PciDevice | None) -> SeenDevice:
    ids = (function.vendor_id, function.device_id) if function and function.is_there else (None, None)
    return SeenDevice(
        address=device.address,
        kind=kind,
        vendor=device.vendor if isinstance(device, Gpu) else None,
        model=None if isinstance(device, Nic) else device.model,
        id=":".join(part for part in ids if part) if all(ids) else None,
    )


def _maker(pci_id: str | None) -> str | None:
    maker = maker_of((pci_id or "").partition(":")[0])
    return maker.name if maker else None


def by_address(host: Host) -> dict[str, PciDevice]:
    """The PCI functions by address."""
    return {device.address: device for device in host.pci}


def above(functions: Mapping[str, PciDevice], address: str) -> tuple[PciDevice, ...]:
    """The bridges above a function, nearest first; a loop of parents ends where it closes."""
    found: dict[str, PciDevice] = {}
    device = functions.get(address)
    while device is not None and device.parent and device.parent not in found and device.parent != address:
        device = functions.get(device.parent)
        if device is not None:
            found[device.address] = device
    return tuple(found.values())


def planned_guests(evidence: Evidence) -> dict[str, PlannedGuest]:
    """The guests of the applied plans by name; of one that several plans have, the newest."""
    return {guest.name: guest for plan in evidence.plans for guest in plan.guests}


def holders(evidence: Evidence) -> dict[str, tuple[str, ...]]:
    """Which guests have a device, by its address: those that libvirt knows, and planned ones that it does not."""
    known = {guest.name: guest.devices for guest in evidence.host.guests or ()}
    for name, guest in planned_guests(evidence).items():
        known.setdefault(name, tuple(device.address for device in guest.devices))
    found: dict[str, list[str]] = {}
    for name, devices in known.items():
        for address in devices:
            found.setdefault(address, []).append(name)
    return {address: tuple(dict.fromkeys(names)) for address, names in found.items()}


def for_vfio(driver: str | None) -> bool:
    """Whether a driver gives its device to guests: vfio-pci, and its variants (mlx5_vfio_pci, nvgrace_gpu_vfio_pci)."""
    return driver is not None and "vfio" in driver


def given(evidence: Evidence) -> tuple[PciDevice, ...]:
    """The functions that guests have, or that stand ready for them on a VFIO driver. Bridges are never given."""
    held = holders(evidence)
    return tuple(
        device
        for device in evidence.host.pci
        if not device.is_bridge and (device.address in held or for_vfio(device.driver))
    )


def guests_known(evidence: Evidence) -> tuple[RunningGuest, ...] | None:
    """The guests here; None: unknown. Where no libvirt is installed and no QEMU runs, it is known that there are none.

    Discovery notes a QEMU that libvirt does not own as a problem.
    """
    host = evidence.host
    if host.guests is not None or not evidence.complete or host.virtualization is None:
        return host.guests
    stack = host.virtualization
    strangers = any(problem.what.startswith("a QEMU guest outside libvirt") for problem in host.problems)
    return None if strangers or stack.uri or stack.libvirt_version else ()


def guests_or_why(
    evidence: Evidence, check: str, expected: str
) -> tuple[tuple[RunningGuest, ...], tuple[CheckResult, ...]]:
    """(the guests here, what a check is to say where there are none to judge)."""
    guests = guests_known(evidence)
    if guests is None:
        if evidence.host.hypervisor and not evidence.plans:
            return (), (skipped(check, HOST, "this machine is itself a guest, and gives nothing to guests of its own"),)
        return (), (unknown(check, HOST, expected=expected, why="which guests there are is unknown", hint=AS_LIBVIRT),)
    return guests, () if guests else (skipped(check, HOST, "no guest here"),)


def undefined(guest: RunningGuest) -> bool:
    """Whether nothing but a guest's name and state is known: its definition could not be read."""
    return guest.vcpus is None and guest.vcpu_pins is None and guest.memory is None and not guest.devices


def own_pins(guest: RunningGuest) -> dict[int, CpuSet]:
    """The CPUs of each vCPU that has a pin."""
    return {pin.vcpu: parse_cpus(pin.cpus) for pin in guest.vcpu_pins or ()}


def online(host: Host) -> CpuSet:
    """The CPUs that are online; empty where that is not known."""
    return CpuSet(cpu.id for cpu in host.cpus if cpu.online)


def pinned(evidence: Evidence) -> dict[str, CpuSet]:
    """The CPUs that each guest's vCPUs are pinned to; guests without pins are left out.

    A pin that names every CPU of the host is none: that is how libvirt shows a vCPU that may run anywhere.
    """
    everywhere = online(evidence.host)
    found = {}
    for guest in evidence.host.guests or ():
        pins = [parse_cpus(pin.cpus) for pin in guest.vcpu_pins or ()]
        found[guest.name] = CpuSet(
            cpu for pin in pins if not everywhere or pin & everywhere != everywhere for cpu in pin
        )
    for name, planned in planned_guests(evidence).items():
        found.setdefault(name, CpuSet(cpu for pin in planned.vcpu_pins for cpu in parse_cpus(pin.cpus)))
    return {name: cpus for name, cpus in found.items() if cpus}


def wanted(evidence: Evidence, kind: str) -> dict[str, object]:
    """What the applied plans want of one kind of setting, by target; the newest counts."""
    return {action.target: action.want for plan in evidence.plans for action in plan.actions if action.kind == kind}


def no_work(evidence: Evidence) -> str | None:
    """Why the host's settings are nobody's business here; None where they are: it has GPUs, or guests."""
    if evidence.plans or evidence.host.guests or any(for_vfio(device.driver) for device in evidence.host.pci):
        return None
    if evidence.host.hypervisor:
        return "this machine is itself a guest, and gives nothing to guests of its own"
    return None if accelerators(evidence.host) else "no GPU and no guest here"


def absent(evidence: Evidence) -> bool:
    """Whether a fact that discovery did not find is known not to be there (not merely unrecorded, nor refused)."""
    return bool(evidence.complete)


def refused(evidence: Evidence, *paths: str) -> str | None:
    """Why the kernel refused one of these files, as discovery noted it; None where it did not."""
    for problem in (*evidence.host.problems, *evidence.problems):
        if problem.what == "unreadable" and any(path in problem.where for path in paths):
            return f"{problem.where}: {problem.why}"
    return None


def listed(names: Sequence[str], most: int = 6) -> str:
    """The first few of many names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def spread(values: Iterable[tuple[str, int]]) -> str:
    """Values with the CPUs that have them: "powersave (CPUs 4-7), performance (CPUs 0-3)"."""
    groups: dict[str, list[int]] = {}
    for value, cpu in values:
        groups.setdefault(value, []).append(cpu)
    if len(groups) == 1:
        return next(iter(groups))
    return ", ".join(f"{value} (CPUs {CpuSet(cpus)})" for value, cpus in groups.items())
