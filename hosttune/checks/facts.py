"""What several checks ask of the evidence: which devices there are, who has which, which CPUs guests run on.

Pure. A guest is known by libvirt, or planned by an applied plan; where both say something, what is there counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hosttune.checks.check import skipped, unknown
from hosttune.checks.data import table
from hosttune.gpu import maker_of, nvswitches
from hosttune.model import sysfs
from hosttune.model.evidence import LIBVIRT_ANSWER, LIST_UNREAD, OUTSIDE, Evidence
from hosttune.model.gpu import OTHER, Gpu
from hosttune.model.host import Host, Nic, Nvme, NvSwitch, PciDevice, RunningGuest, SeenDevice
from hosttune.model.plan import PlannedGuest
from hosttune.model.validation import CheckResult
from hosttune.model.values import CpuSet, address_key, parse_cpus

# States of libvirt in which a guest has its memory and devices (virDomainState); one that crashed is kept with both.
RUNNING = frozenset(("running", "paused", "idle", "in shutdown", "pmsuspended", "blocked", "crashed"))
_MOST_WITHOUT_SWITCH = 3  # others that a GPU of a board without NVSwitches has links to (HGX A100 and H100, 4 GPUs)
# Vendors whose devices are software: virtio, QEMU, VMware, Google, Microsoft.
SOFTWARE = ("1af4", "1b36", "15ad", "1ae0", "1414")
HOST = "host"  # the subject of what concerns the machine as a whole
AS_ROOT = "run hosttune validate as root: the kernel shows only the first 64 bytes of configuration space to others"
AS_LIBVIRT = "run hosttune validate as root with libvirt running, so that its guests can be asked about"
LIST_PCI = "look with: lspci -D; and why the host, or its capture, does not show every function in /sys/bus/pci/devices"
RECORD = "the capture does not hold it: capture the host again with this version of hosttune, as root"


def accelerators(host: Host) -> tuple[Gpu, ...]:
    """Every GPU of a known accelerator maker that any source knows; `other` ones are left out.

    After those of the PCI tree come `lost_gpus`, of which nothing can be judged.
    """
    return (*host.index.accelerators, *lost_gpus(host))


def lost_gpus(host: Host) -> tuple[Gpu, ...]:
    """GPUs that are not in the PCI tree, or do not answer there, and that another source knows; by address.

    The other source may be a tool, the kernel, a plan in force or an earlier validation. No fact of theirs is kept
    but who they are: what a tool told of a GPU that is not there proves nothing.
    """
    listed = set(host.index.gpus)
    of_makers = {gpu.address for gpu in host.index.accelerators}
    found: dict[str, Gpu] = {}
    shown = [(seen, listed) for source in host.sources or () for seen in source.beyond]
    shown += [(seen, of_makers) for source in host.sources or () for seen in source.contrary]
    for seen, here in shown:
        if seen.kind == "gpu" and seen.address not in here:
            known = found.get(seen.address, Gpu(address=seen.address))
            vendor = seen.vendor or _maker(seen.id)
            found[seen.address] = Gpu(
                address=seen.address,
                vendor=known.vendor if known.is_accelerator else vendor or known.vendor,
                model=known.model or seen.model,
            )
    for device in host.pci:
        if device.responds is False and (device.class_code or "").startswith(("0302", "12")):
            vendor = _maker(device.vendor_id) or OTHER
            found.setdefault(device.address, Gpu(address=device.address, vendor=vendor, model=device.device_name))
    return tuple(found[address] for address in sorted(found, key=address_key))


def known_devices(host: Host) -> dict[str, SeenDevice]:
    """Every device that matters and that any source knows, by address: what the PCI tree has first.

    Of the tree the GPUs of known makers, NICs, NVMe drives and NVSwitches, no virtual functions; of the other sources
    what is not in the tree, and functions of which the tree has the address alone or that do not answer. Where there
    is no tree, what is of no known kind is left out: most of it are bridges.
    """
    functions = host.index.pci
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
    for seen in (seen for source in host.sources or () for seen in source.contrary):
        if seen.kind is not None:
            found.setdefault(seen.address, seen)
    for function in host.pci:
        if function.physfn is None and (not function.is_there or function.contradicted is not None):
            found.setdefault(function.address, SeenDevice(address=function.address, model=function.device_name))
    return found


def _seen(device: Gpu | Nic | Nvme | NvSwitch, kind: str, function: PciDevice | None) -> SeenDevice:
    return SeenDevice(
        address=device.address,
        kind=kind,
        vendor=device.vendor if isinstance(device, Gpu) else None,
        model=None if isinstance(device, Nic) else device.model,
        id=function.ids if function and function.is_there else None,
    )


def _maker(pci_id: str | None) -> str | None:
    maker = maker_of((pci_id or "").partition(":")[0])
    return maker.name if maker else None


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
    """The functions that guests have, or that stand ready for them on a VFIO driver. Bridges are never given.

    One that only some of the sources show on a VFIO driver is among them.
    """
    held = holders(evidence)
    shown = (seen for source in evidence.host.sources or () for seen in source.contrary)
    doubtful = {seen.address for seen in shown if for_vfio(seen.driver)}
    return tuple(
        device
        for device in evidence.host.pci
        if not device.is_bridge and (device.address in held or for_vfio(device.driver) or device.address in doubtful)
    )


def guests_known(evidence: Evidence) -> tuple[RunningGuest, ...] | None:
    """All guests here; None: there may be others than `host.guests`.

    Discovery notes as problems a QEMU that libvirt does not list, and a list that is no whole one. Where no libvirt is
    installed and no QEMU runs, it is known that there are none.
    """
    host = evidence.host
    if any(problem.what == LIST_UNREAD or problem.what.startswith(OUTSIDE) for problem in host.problems):
        return None
    if host.guests is not None or not lacks(evidence, LIBVIRT_ANSWER) or host.virtualization is None:
        return host.guests
    stack = host.virtualization
    return None if stack.uri or stack.libvirt_version else ()


def guests_or_why(
    evidence: Evidence, check: str, expected: str
) -> tuple[tuple[RunningGuest, ...], tuple[CheckResult, ...]]:
    """(the guests here, what a check is to say where there are none to judge)."""
    guests, known = guests_known(evidence), evidence.host.guests
    if guests is None:
        why = f"which {'other ' if known else ''}guests there are is unknown"
        return known or (), (unknown(check, HOST, expected=expected, why=why, hint=AS_LIBVIRT),)
    return guests, () if guests else (skipped(check, HOST, "no guest here"),)


def none_given(evidence: Evidence, check: str, what: str) -> CheckResult:
    """What a check says that found no device of a guest: skipped as `what` where guests and drivers are all known."""
    why, hint = unlisted(evidence), LIST_PCI
    if why is None:
        why, hint = _guests_unread(evidence), AS_LIBVIRT
    if why is None:
        host = evidence.host
        parts = (host.gpus, host.nics, host.nvme, host.nvswitches)
        silent = [one.address for part in parts for one in part if driver_unread(evidence, one.address)]
        why, hint = f"the driver of {listed(silent, 3)} was not read" if silent else None, RECORD
    if why is None:
        return skipped(check, HOST, what)
    return unknown(check, HOST, expected="each device of a guest known", why=why, hint=hint)


def _guests_unread(evidence: Evidence) -> str | None:
    """Why not all is known that guests have; None where it is."""
    guests = guests_known(evidence)
    if guests is None:
        return "which guests there are is unknown"
    blank = [guest.name for guest in guests if undefined(guest)]
    return f"the definition of {listed(blank, 3)} could not be read" if blank else None


def driver_unread(evidence: Evidence, address: str) -> bool:
    """Whether the driver of a function is not known: contradicted, or none was read and that it has none not proven."""
    index = evidence.host.index
    if address in index.contradicted:
        return True
    device = index.pci.get(address)
    return (device is None or device.driver is None) and not lacks(evidence, sysfs.function(address, "driver"))


def undefined(guest: RunningGuest) -> bool:
    """Whether nothing but a guest's name and state is known: its definition could not be read."""
    return guest.vcpus is None and guest.vcpu_pins is None and guest.memory is None and not guest.devices


def named_nodes(host: Host) -> set[int]:
    """The NUMA nodes that anything names: their own directories, distances, CPUs, PCI functions."""
    named = {node.id for node in host.numa_nodes}
    named |= {int(other) for node in host.numa_nodes for other in node.distances or {}}
    named |= {cpu.numa_node for cpu in host.cpus if cpu.numa_node is not None}
    return named | {device.numa_node for device in host.pci if device.numa_node is not None}


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


def none_here(evidence: Evidence, check: str, kinds: str) -> CheckResult:
    """What a check says that found none of its devices: skipped where all PCI functions are known, else unknown."""
    why = unlisted(evidence)
    if why is None:
        return skipped(check, HOST, f"no {kinds} here")
    expected = f"each {kinds} known"
    return unknown(check, HOST, expected=expected, why=f"whether there is one is unknown: {why}", hint=LIST_PCI)


def unlisted(evidence: Evidence) -> str | None:
    """Why the list of PCI functions does not show every device; None where it does."""
    host = evidence.host
    if not host.pci:
        return None if lacks(evidence, sysfs.PCI_DEVICES) else "no PCI function was read"
    blank = [device.address for device in host.pci if device.class_code is None or device.vendor_id in (None, "ffff")]
    doubtful = list(host.index.contradicted)
    if doubtful and not blank:
        return f"what {listed(doubtful, 3)} is, or which driver holds it, is contradicted"
    return f"what {listed(blank, 3)} is could not be read" if blank else None


def switches_missed(evidence: Evidence) -> str | None:
    """Why there must be NVSwitches although none is in the list of PCI functions; None where nothing says so.

    A GPU is registered with a fabric, or reaches more GPUs than boards without a switch join, of a board whose switches
    are PCI functions (`boards`: with NVLinks, not bridged). A guest need not have any.
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
            said = f"its fabric is {gpu.fabric_state}" if gpu.fabric_state else f"it has NVLink to {reach} others"
            return f"{gpu.address} is on an NVSwitch fabric ({said}), and no switch is in the list of PCI functions"
    return None


def no_switch(evidence: Evidence, check: str) -> CheckResult:
    """What a check of NVSwitches says that found none in the list of PCI functions."""
    missed = switches_missed(evidence)
    if missed is None:
        return none_here(evidence, check, "NVSwitch that is a PCI function")
    hint = f"look with: lspci -d {nvswitches.VENDOR_ID}: (class 0680); power-cycle the host if they are gone"
    return unknown(check, HOST, expected="the NVSwitches of the GPUs' board", why=missed, hint=hint)


def at_rest(evidence: Evidence, check: str) -> CheckResult | None:
    """What a check of the host's settings says where they are nobody's business; None where it has GPUs, or guests.

    That there are neither is known only where both could be seen.
    """
    host = evidence.host
    if evidence.plans or host.guests or any(for_vfio(device.driver) for device in host.pci):
        return None
    if host.hypervisor:
        return skipped(check, HOST, "this machine is itself a guest, and gives nothing to guests of its own")
    doubtful = {device.address for device in host.pci if device.contradicted is not None}
    doubtful -= {seen.address for source in host.sources or () for seen in source.contrary if seen.kind == "gpu"}
    if any(gpu.address not in doubtful for gpu in accelerators(host)):
        return None
    why, hint = unlisted(evidence), LIST_PCI
    if why is None and guests_known(evidence) is None:
        why, hint = "which guests there are is unknown", AS_LIBVIRT
    if why is None:
        return skipped(check, HOST, "no GPU and no guest here")
    expected = "right for the GPUs and guests of this host"
    return unknown(check, HOST, expected=expected, why=f"whether it has any is unknown: {why}", hint=hint)


def lacks(evidence: Evidence, *paths: str) -> bool:
    """Whether the machine is proven to have none of these paths: it was looked for, and neither refused nor lost."""
    if "/" in evidence.absent:
        return refused(evidence, *paths) is None
    return all(path in evidence.absent or path.rpartition("/")[0] in evidence.absent for path in paths)


def as_root(evidence: Evidence) -> str:
    """How to read configuration space that was not read."""
    return AS_ROOT if evidence.complete else RECORD


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
