"""Facts that several checks need: which devices exist, which guest has which, and which CPUs guests run on.

Pure. A guest is known from libvirt or from an applied plan; where both describe it, the running state counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hosttune.gpu import maker_of
from hosttune.model import pciclass, platform, sysfs
from hosttune.model.evidence import LIBVIRT_ANSWER, Evidence
from hosttune.model.gpu import OTHER, Gpu
from hosttune.model.host import Host, Nic, PciDevice, RunningGuest, SeenDevice
from hosttune.model.hostfields import LIST_UNREAD, OUTSIDE
from hosttune.model.listing import some
from hosttune.model.pci import for_vfio
from hosttune.model.plan import PlannedGuest
from hosttune.model.values import CpuSet, address_key, grouped, parse_cpus
from hosttune.rules.checks.data import table
from hosttune.rules.engine import Finding

# States in which a guest holds its memory and devices (libvirt virDomainState); a crashed guest still holds both.
RUNNING = platform.RUNNING | {"crashed"}
_MOST_WITHOUT_SWITCH = 3  # most GPUs linked to one GPU on a board without NVSwitches (HGX A100 and H100, 4 GPUs)
_COMPUTE = (pciclass.DISPLAY_3D, pciclass.ACCELERATOR)  # a display with a screen may be the console of a board
OTHER_ARCHES = ("aarch64", "arm", "ia64", "ppc64", "ppc64le", "riscv32", "riscv64", "s390x")  # than x86
HOST = "host"  # the subject of results about the machine as a whole
AS_ROOT = "run hosttune validate as root: the kernel shows only the first 64 bytes of configuration space to others"
AS_LIBVIRT = "run hosttune validate as root with libvirt running, so that its guests can be asked about"
LIST_PCI = "look with: lspci -D; and why the host, or its capture, does not show every function in /sys/bus/pci/devices"
RECORD = "the capture does not hold it: capture the host again with this version of hosttune, as root"


def accelerators(host: Host) -> tuple[Gpu, ...]:
    """Return every GPU of a known accelerator maker that any source knows, without those of maker `other`.

    The GPUs of the PCI tree come first, then `lost_gpus`, which cannot be judged.
    """
    return (*host.index.accelerators, *lost_gpus(host))


def lost_gpus(host: Host) -> tuple[Gpu, ...]:
    """Return GPUs that another source knows but that are missing or do not respond in the PCI tree, by address.

    The other source may be a tool, the kernel, an applied plan or an earlier validation. Only the identity of such a
    GPU is kept: what a tool reports about a GPU that is not in the tree proves nothing.
    """
    lost: dict[str, Gpu] = {}
    blank = host.index.unidentified
    for seen in (seen for source in host.sources or () for seen in source.beyond):
        if seen.kind == "gpu" and (seen.address not in host.index.gpus or seen.address in blank):
            known = lost.get(seen.address, Gpu(address=seen.address))
            vendor = seen.vendor or _maker(seen.id)
            lost[seen.address] = Gpu(
                address=seen.address,
                vendor=known.vendor if known.is_accelerator else vendor or known.vendor,
                model=known.model or seen.model,
            )
    for device in host.pci:
        if device.responds is False and (device.class_code or "").startswith(_COMPUTE):
            vendor = _maker(device.vendor_id) or OTHER
            lost.setdefault(device.address, Gpu(address=device.address, vendor=vendor, model=device.device_name))
    return tuple(lost[address] for address in sorted(lost, key=address_key))


def known_devices(host: Host) -> dict[str, SeenDevice]:
    """Return every relevant device that any source knows, by address; the facts of the PCI tree come first.

    From the tree: GPUs of known makers, NICs, NVMe drives and NVSwitches, without virtual functions. From the other
    sources: devices that are not in the tree, and functions of which the tree has only the address or that do not
    respond. If there is no tree, devices of unknown kind are left out, because most of them are bridges.
    """
    functions = host.index.pci
    seen_devices: dict[str, SeenDevice] = {}
    parts = (("gpu", accelerators(host)), ("nic", host.nics), ("nvme", host.nvme), ("nvswitch", host.nvswitches))
    for kind, devices in parts:
        for device in devices:
            function = functions.get(device.address)
            if function is None or function.physfn is None:
                seen_devices[device.address] = SeenDevice(
                    address=device.address,
                    kind=kind,
                    vendor=device.vendor if isinstance(device, Gpu) else None,
                    model=None if isinstance(device, Nic) else device.model,
                    id=function.ids if function and function.is_there else None,
                )
    for seen in (seen for source in host.sources or () for seen in source.beyond):
        if seen.kind is not None or host.pci:
            seen_devices.setdefault(seen.address, seen)
    blank = host.index.unidentified
    for function in host.pci:
        if function.physfn is None and (not function.is_there or function.address in blank):
            seen_devices.setdefault(function.address, SeenDevice(address=function.address, model=function.device_name))
    return seen_devices


def _maker(pci_id: str | None) -> str | None:
    maker = maker_of((pci_id or "").partition(":")[0])
    return maker.name if maker else None


def planned_guests(evidence: Evidence) -> dict[str, PlannedGuest]:
    """Return the guests of the applied plans by name; if several plans have a guest, that of the newest plan."""
    return {guest.name: guest for plan in evidence.plans for guest in plan.guests}


def holders(evidence: Evidence) -> dict[str, tuple[str, ...]]:
    """Return the names of the guests that have a device, by its address: guests in libvirt, and planned guests that
    libvirt does not have."""
    known = {guest.name: guest.devices for guest in evidence.host.guests or ()}
    for name, guest in planned_guests(evidence).items():
        known.setdefault(name, tuple(device.address for device in guest.devices))
    names_of = grouped((address, name) for name, devices in known.items() for address in devices)
    return {address: tuple(dict.fromkeys(names)) for address, names in names_of.items()}


def given(evidence: Evidence) -> tuple[PciDevice, ...]:
    """Return the functions that guests have, or that a VFIO driver holds ready for them. Bridges are never included."""
    held = holders(evidence)
    return tuple(
        device
        for device in evidence.host.pci
        if not device.is_bridge and (device.address in held or for_vfio(device.driver))
    )


def guests_known(evidence: Evidence) -> tuple[RunningGuest, ...] | None:
    """Return all guests of this host; None: there may be guests besides `host.guests`.

    Discovery reports a problem for a QEMU process that libvirt does not list, and for an incomplete list of guests.
    If no libvirt is installed and no QEMU runs, it is known that there are no guests.
    """
    host = evidence.host
    if any(problem.what == LIST_UNREAD or problem.what.startswith(OUTSIDE) for problem in host.problems):
        return None
    if host.guests is not None or not lacks(evidence, LIBVIRT_ANSWER) or host.virtualization is None:
        return host.guests
    stack = host.virtualization
    return None if stack.uri or stack.libvirt_version else ()


def driver_unread(evidence: Evidence, address: str) -> bool:
    """Return whether a function's driver is unknown: not read and not proven to be absent."""
    device = evidence.host.index.pci.get(address)
    return (device is None or device.driver is None) and not lacks(evidence, sysfs.function(address, "driver"))


def undefined(guest: RunningGuest) -> bool:
    """Return whether only a guest's name and state are known, because its definition could not be read."""
    return guest.vcpus is None and guest.vcpu_pins is None and guest.memory is None and not guest.devices


def named_nodes(host: Host) -> set[int]:
    """Return the NUMA nodes that any source names: node directories, distances, CPUs, PCI functions."""
    named = {node.id for node in host.numa_nodes}
    named |= {int(other) for node in host.numa_nodes for other in node.distances or {}}
    named |= {cpu.numa_node for cpu in host.cpus if cpu.numa_node is not None}
    return named | {device.numa_node for device in host.pci if device.numa_node is not None}


def only_node(host: Host) -> int | None:
    """Return the only NUMA node of a host if no source names another one; None if there are several."""
    return host.numa_nodes[0].id if len(host.numa_nodes) == 1 and len(named_nodes(host)) == 1 else None


def online(host: Host) -> CpuSet:
    """Return the CPUs that are online; empty if that is unknown."""
    return CpuSet(cpu.id for cpu in host.cpus if cpu.online)


def pinned(evidence: Evidence) -> dict[str, CpuSet]:
    """Return the CPUs to which each guest's vCPUs are pinned, without guests that have no pins.

    A pin to all CPUs of the host does not count: libvirt shows it for a vCPU that may run anywhere.
    """
    everywhere = online(evidence.host)
    cpus_of = {}
    for guest in evidence.host.guests or ():
        pins = [parse_cpus(pin.cpus) for pin in guest.vcpu_pins or ()]
        cpus_of[guest.name] = CpuSet(
            cpu for pin in pins if not everywhere or pin & everywhere != everywhere for cpu in pin
        )
    for name, planned in planned_guests(evidence).items():
        cpus_of.setdefault(name, CpuSet(cpu for pin in planned.vcpu_pins for cpu in parse_cpus(pin.cpus)))
    return {name: cpus for name, cpus in cpus_of.items() if cpus}


def wanted(evidence: Evidence, kind: str) -> dict[str, object]:
    """Return the values that the applied plans set for one kind of setting, by target; the newest plan counts."""
    return {action.target: action.want for plan in evidence.plans for action in plan.actions if action.kind == kind}


def none_here(evidence: Evidence, kinds: str) -> Finding:
    """Return the finding of a check that has none of its devices: skipped if all functions are known, else unknown."""
    why = unlisted(evidence)
    if why is None:
        return Finding(f"no {kinds} here", outcome="skip")
    expected = f"the host's {f'{kinds}s' if kinds.isalpha() else 'devices'} can be listed"
    return Finding(f"whether there is one is unknown: {why}", HOST, "unknown", expected, remedy=LIST_PCI)


def without_use(evidence: Evidence) -> Finding | None:
    """Return the finding of a check of host settings if the host has neither GPUs nor guests; None if it has some.

    It is known that there are none only if both GPUs and guests could be listed; otherwise the result is unknown.
    """
    host = evidence.host
    if evidence.plans or host.guests or any(for_vfio(device.driver) for device in host.pci):
        return None
    if host.hypervisor:
        return Finding("this machine is a guest and has no guests of its own", outcome="skip")
    if accelerators(host):
        return None
    why, remedy = unlisted(evidence), LIST_PCI
    if why is None and guests_known(evidence) is None:
        why, remedy = "which guests there are is unknown", AS_LIBVIRT
    if why is None:
        return Finding("no GPU and no guest here", outcome="skip")
    expected = "depends on this host's GPUs and guests"
    return Finding(f"whether it has any is unknown: {why}", HOST, "unknown", expected, remedy=remedy)


def unlisted(evidence: Evidence) -> str | None:
    """Return why the list of PCI functions may not show every device; None if it shows all."""
    host = evidence.host
    if not host.pci:
        return None if lacks(evidence, sysfs.PCI_DEVICES) else "no PCI function was read"
    blank = host.index.unidentified
    return f"what {listed(blank, 3)} is could not be read" if blank else None


def why_switches_exist(evidence: Evidence) -> str | None:
    """Return why NVSwitches must exist although the list of PCI functions has none; None if nothing proves it.

    Proof is a GPU of a board whose switches are PCI functions (`boards`: with NVLinks, not bridged) that is registered
    with a fabric, or that has links to more GPUs than a board without switches connects. A guest may have no switch.
    """
    host, boards = evidence.host, table("boards")
    functions = host.index.pci
    for gpu in () if host.nvswitches or host.hypervisor else accelerators(host):
        device = functions.get(gpu.address)
        known = device.device_id if device else None
        if known not in boards["nvlinks"] or known in boards["bridged"]["gpus"]:
            continue
        reach = sum(peer.kind == "nvlink" for peer in gpu.peers or ())
        if gpu.fabric_state is not None or reach > _MOST_WITHOUT_SWITCH:
            reason = f"its fabric is {gpu.fabric_state}" if gpu.fabric_state else f"it has NVLink to {reach} others"
            return f"{gpu.address} is on an NVSwitch fabric ({reason}), and no switch is in the list of PCI functions"
    return None


def lacks(evidence: Evidence, *paths: str) -> bool:
    """Return whether the machine is proven to have none of these paths: looked for, and neither refused nor lost."""
    if "/" in evidence.absent:
        return refused(evidence, *paths) is None
    return all(path in evidence.absent or path.rpartition("/")[0] in evidence.absent for path in paths)


def as_root(evidence: Evidence) -> str:
    """Return the hint how to read PCI configuration space that was not read."""
    return AS_ROOT if evidence.complete else RECORD


def model_of(device: PciDevice) -> tuple[str | None, ...]:
    """Return what functions of one model of a device have in common: ids, function number and type of port."""
    ids = (device.vendor_id, device.device_id, device.subsystem_vendor_id, device.subsystem_device_id)
    return (*ids, device.address[-1], device.port_type)


def refused(evidence: Evidence, *paths: str) -> str | None:
    """Return why the kernel refused to read one of these files, as discovery recorded it; None if it did not refuse."""
    for problem in (*evidence.host.problems, *evidence.problems):
        if problem.what == "unreadable" and any(path in problem.where for path in paths):
            return f"{problem.where}: {problem.why}"
    return None


def listed(names: Sequence[str], most: int = 6) -> str:
    """Return the first few of many names, and the number of the others."""
    return some(names, most)


def spread(values: Iterable[tuple[str, int]]) -> str:
    """Return values with the CPUs that have them: "powersave (CPUs 4-7), performance (CPUs 0-3)"."""
    groups = grouped(values)
    if len(groups) == 1:
        return next(iter(groups))
    return ", ".join(f"{value} (CPUs {CpuSet(cpus)})" for value, cpus in groups.items())
