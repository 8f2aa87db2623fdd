"""Checks of the way to a device: its PCIe link at both ends, its NUMA node, payload sizes, ASPM, BARs.

A link that is limited by design, or rests, is no fault.
"""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.gpu import bar_missing
from hosttune.gpu.vendor import LOADED_DRIVERS
from hosttune.inventory.pcielink import IN_THE_ROOT, SOFTWARE, JudgedLink, link_of, uplinks
from hosttune.model import sysfs
from hosttune.model.counters import of_this_boot
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, PciDevice
from hosttune.model.pci import link_shape
from hosttune.model.values import format_size
from hosttune.rules.checks.facts import accelerators, as_root, given, lacks, listed, only_node
from hosttune.rules.checks.on import On, check
from hosttune.rules.checks.subjects import gpus
from hosttune.rules.engine import Finding

_RESTING_GTS = 2.5  # at any other speed it may have trained low
_OUTCOME = {"full": "pass", "by-design": "pass", "degraded": "fail"}  # of other states: unknown


def linked(evidence: Evidence) -> Iterator[tuple[str, PciDevice | None]]:
    """Yield GPUs, NICs, NVMe drives and NVSwitches; virtual functions of NICs and drives share their parent's link."""
    host = evidence.host
    functions = host.index.pci
    gpus = [gpu.address for gpu in accelerators(host)]
    others = [one.address for part in (host.nics, host.nvme, host.nvswitches) for one in part]
    others = [other for other in others if other not in functions or functions[other].physfn is None]
    yield from ((address, functions.get(address)) for address in dict.fromkeys((*gpus, *others)))


@check(
    "pcie-link",
    title="PCIe generation and width, both ends",
    about="each GPU, NIC, NVMe drive and NVSwitch",
    why="a link that trained low costs half its bandwidth or more, and nothing else shows it; a GPU at rest can"
    " only be judged under load (level 1)",
    source="PCI Express Base 5.0, 7.5.3.6 and 7.5.3.8; Linux"
    " Documentation/ABI/testing/sysfs-bus-pci (current_link_speed); nvidia-smi documentation: lower when the GPU is"
    " not in use",
    expected="the most that both ends can do",
    remedy="reseat the card or its cable, compare with a sister slot, read AER in the kernel log; a speed forced down"
    " in the firmware's settings looks the same",
    each=linked,
    inside=True,
    none="GPU, NIC, NVMe drive or NVSwitch",
)
def pcie_link(on: On, device: PciDevice | None) -> Finding:
    if device is None:
        on.give_up("the device itself is not in the list of PCI functions", as_root(on.evidence))
    loaded = (on.evidence.loaded_links or {}).get(device.address)
    own = link_of(on.host.index, device.address, loaded)
    if own is None:
        if device.port_type in IN_THE_ROOT:
            on.skip("part of the root complex: it has no link")
        if device.vendor_id in SOFTWARE:
            on.skip("a virtual device of the hypervisor: there is no wire")
        if not device.is_display and lacks(on.evidence, sysfs.function(device.address, "current_link_speed")):
            on.skip("it reports no PCIe link: a virtual or conventional PCI device")
        outcome, texts, source = "unknown", ["no link speed or width"], sysfs.PCI_DEVICES
    else:
        outcome, texts, source = _OUTCOME.get(own.state, "unknown"), [_text(own, device, loaded)], _read(own, loaded)
        best = link_shape(own.best_speed_gts, own.best_width)
        on = on.reading(source, f"{best}, the most that {'both ends' if own.other else 'it'} can do")
    above = tuple(uplinks(on.host.index, device.address if own is None else own.end.address))
    texts += [_above(hop) for hop in above if hop.state == "degraded"]
    if outcome == "fail" or len(texts) > 1:
        return on.failed("; ".join(texts), source=source)
    texts += [_above(hop) for hop in above if outcome == "pass" and hop.state not in _OUTCOME]
    if len(texts) > 1:
        return on.unknown("; ".join(texts), "read both ends with lspci -vvv as root while something copies")
    if outcome == "pass":
        return on.passed(texts[0])
    if own is None:
        return on.unknown(texts[0], as_root(on.evidence))
    seen = next((old.at for old, _ in of_this_boot(on.evidence) if on.passed_in(old)), None)
    if seen is not None and own.state == "idle" and own.link.speed_gts == _RESTING_GTS:
        return on.passed(f"{texts[0]}; since the boot it has run as it should, as read at {seen}")
    return on.unknown(texts[0], _where_to_read(on, device, at_rest=own.state == "idle"))


def _text(own: JudgedLink, device: PciDevice, loaded: tuple[float, int] | None) -> str:
    """Return what runs and why: "16 GT/s x8, by design: …", "32 GT/s x16 under load, 2.5 GT/s x16 at rest"."""
    now = link_shape(own.link.speed_gts, own.link.width)
    if loaded is not None:
        at_rest = device.link or own.link
        rest = link_shape(at_rest.speed_gts, at_rest.width)
        now += f" under load{f', {rest} at rest' if rest != now else ''}"
    why = {"full": "", "by-design": f"by design: {own.why}", "idle": f"at rest: {own.rest}"}.get(own.state, own.why)
    return f"{now}, {why}" if why else now


def _read(own: JudgedLink, loaded: tuple[float, int] | None) -> str:
    """Return the files that were read, of both ends; "the host document" for a document that keeps no sources."""
    links = (own.link, None if own.port is None else own.port.link)
    read = [figures.read for link in links if link is not None for figures in link.told or ()]
    return (", ".join(read) or "the host document") + ("; its speed and width while copies ran" if loaded else "")


def _above(hop: JudgedLink) -> str:
    return f"above it, {hop.end.address} to {hop.end.parent}: {hop.why}"


def _where_to_read(on: On, device: PciDevice, *, at_rest: bool) -> str:
    """Return when or where a link that is unknown, or at rest, can be read."""
    if (device.power_state or "").startswith("D3"):
        return (
            "validate again while its guest runs, or wake it:"
            f" echo on > /sys/bus/pci/devices/{device.address}/power/control"
        )
    if at_rest and device.driver in LOADED_DRIVERS:
        return "hosttune validate --level 1 reads it while copies run: on the machine itself, with the GPU free"
    if at_rest:
        return "validate again while something copies to and from it"
    if on.host.hypervisor:
        return "a virtual port shows no wire: run hosttune validate on the host of this guest"
    return "read both ends with lspci -vvv as root (LnkCap, LnkSta), and the kernel log for the port above"


_FROM = {"device": ", from the device itself", "bridge": ", from the bridge above", "firmware": ", from its local CPUs"}


@check(
    "numa-affinity",
    title="NUMA node of every GPU",
    about="each GPU",
    why="memory and CPUs of another node halve the bandwidth to a GPU; what is unknown cannot be placed",
    source="Linux Documentation/ABI/testing/sysfs-bus-pci (numa_node); ACPI 6.5, 5.2.16 SRAT and 6.2.14 _PXM",
    expected="its NUMA node is known",
    each=gpus,
    none="GPU",
    inside=True,
)
def numa_affinity(on: On, gpu: Gpu) -> Finding:
    host, path = on.host, sysfs.function(gpu.address, "numa_node")
    on = on.reading(path)
    if unread := _problem(host, "NUMA node not read", gpu):
        on.give_up(f"its numa_node was not read: {unread}", f"look with: cat {path}")
    device = host.index.pci.get(gpu.address)
    if device is None or device.numa_node is None:
        return _without_node(on)
    nodes = {node.id for node in host.numa_nodes}
    actual = f"node {device.numa_node}"
    if not nodes and not lacks(on.evidence, sysfs.NODES):
        hint = "look with: ls -d /sys/devices/system/node/node*"
        on.give_up(f"{actual}; which nodes this host has was not read", hint)
    if nodes and device.numa_node not in nodes:
        hint = "update the firmware, whose tables name a node that it does not describe; plan with numa: 0 until then"
        return on.failed(f"{actual}, which this host does not have", hint)
    actual += _FROM.get(device.numa_source or "", "")
    if alone := _problem(host, "NUMA node not compared", gpu):
        hint = f"look with: cat {path}; and those of the bridges above, and local_cpulist beside it"
        on.give_up(f"{actual}; {alone}", hint)
    if doubt := _problem(host, "NUMA node contradicts", gpu):
        hint = "see which is right in the board's manual, or measure it: hosttune validate --level 1"
        return on.warned(f"{actual}; but it {doubt}", hint)
    return on.passed(actual)


def _problem(host: Host, what: str, gpu: Gpu) -> str | None:
    """Return what discovery says of a GPU's node (`Problem.what` of pci); None if it has nothing to say."""
    return next(
        (problem.why for problem in host.problems if problem.what.startswith(what) and gpu.address in problem.where),
        None,
    )


def _without_node(on: On) -> Finding:
    only = only_node(on.host)
    if on.host.hypervisor is False and only is not None:
        return on.passed(f"node {only}: the only one, though the device names none")
    if on.host.hypervisor:
        hint = (
            "give the guest NUMA cells and put the GPU behind an expander bus of its cell (hosttune plan on its host"
            " does both); no setting in here shows it"
        )
        why = "the hypervisor of this machine shows no node for it"
        return on.warned(why, hint) if on.evidence.complete else on.unknown(why, hint)
    hint = (
        "enable NUMA (SRAT, ACPI _PXM) in the firmware or update it; write the node to its numa_node file only if"
        " the board's manual says it"
    )
    return on.unknown("neither the device, nor a bridge above it, nor its local CPUs name a node", hint)


_UNRESIZED = 256 << 20  # the largest BAR that firmware assigns without resizing: a larger one was resized


def for_guests(evidence: Evidence) -> Iterator[tuple[str, PciDevice]]:
    """Yield GPUs of known makers and guests' devices, without virtual functions."""
    host = evidence.host
    names = [gpu.address for gpu in accelerators(host)] + [device.address for device in given(evidence)]
    known = (host.index.pci.get(name) for name in dict.fromkeys(names))
    yield from ((device.address, device) for device in known if device is not None and device.physfn is None)


def first_functions(evidence: Evidence) -> Iterator[tuple[str, PciDevice]]:
    """Yield the first function of each GPU, device of a guest, NIC and NVMe drive, without virtual functions."""
    host = evidence.host
    names = [device.address for part in (host.nics, host.nvme) for device in part]
    others = [(name, host.index.pci[name]) for name in names if name in host.index.pci]
    every = dict([*for_guests(evidence), *others])
    yield from ((name, device) for name, device in every.items() if name.endswith(".0") and device.physfn is None)


# --- payload -------------------------------------------------------------------------------------------------


@check(
    "pcie-payload",
    title="Maximum payload size",
    about="each GPU, NIC, NVMe drive and device of a guest, with the bridges above it",
    why="a packet larger than a port takes is malformed: a fatal error, or silence",
    source="PCI Express Base 5.0, 2.2.2 and 7.5.3.4 Device Control; kernel-parameters (pci=pcie_bus_*)",
    expected="one maximum payload size from the root port down",
    remedy="boot with pci=pcie_bus_safe, which gives every path the largest size that all of it can do",
    each=first_functions,
    none="GPU, NIC or NVMe drive",
    of_tree=True,
    for_guests=True,
)
def pcie_payload(on: On, device: PciDevice) -> Finding:
    bridges = on.host.index.bridges(device.address)
    config = sysfs.function(device.address, "config")
    on = on.reading(f"{config} (Device Control), the same of {len(bridges)} bridges above")
    if (not bridges and not device.parent) or device.port_type in IN_THE_ROOT:
        on.skip("nothing above it: a virtual root bus, or part of the root complex")
    top = (device, *bridges)[-1].parent
    if top and top not in on.host.index.pci:
        on.give_up(f"{top}, which is above it, is not in the list of PCI functions", f"look with: lspci -s {top}")
    if device.max_payload_bytes is None and device.link is None and device.acs is None and _linkless(on, device):
        on.skip("it reports no PCI Express capability: a virtual or conventional PCI device")
    sizes = {pci_device.address: pci_device.max_payload_bytes for pci_device in (device, *bridges)}
    if unread := [name for name, size in sizes.items() if size is None]:
        on.give_up(f"payload size of {listed(unread)} was not read", as_root(on.evidence), on.reads or "")
    upwards = [size or 0 for size in sizes.values()]
    if len(set(upwards)) == 1:
        return on.passed(f"{upwards[0]} B")
    actual = ", ".join(f"{name} {size} B" for name, size in sizes.items())
    perf = any("pcie_bus_perf" in word for word in on.host.kernel_args or () if word.startswith("pci="))
    if perf and upwards == sorted(upwards):
        return on.passed(f"{actual}: larger towards the root, as pci=pcie_bus_perf allows")
    return on.failed(actual)


def _linkless(on: On, device: PciDevice) -> bool:
    """Return whether the kernel shows no link for it: it has no PCI Express capability."""
    return lacks(on.evidence, sysfs.function(device.address, "current_link_speed"))


# --- ASPM ----------------------------------------------------------------------------------------------------


@check(
    "aspm",
    title="ASPM off",
    about="the link of each GPU and of each device that a guest has",
    why="a link that sleeps wakes within microseconds: each short transfer pays for it",
    source="PCI Express Base 5.0, 5.4.1 Active State Power Management; kernel-parameters (pcie_aspm)",
    expected="off at both ends",
    remedy="plan with the guest that gets it and apply (setting aspm), or boot with pcie_aspm.policy=performance;"
    " pcie_aspm=off leaves what the firmware set",
    each=for_guests,
    none="GPU, and no device that a guest has",
    of_tree=True,
    for_guests=True,
)
def aspm(on: On, device: PciDevice) -> Finding:
    port = on.host.index.pci.get(device.parent or "")
    config = f"{sysfs.function(device.address, 'config')} (Link Control)"
    on = on.reading(f"{config}, of {port.address} too" if port else config)
    if device.port_type in IN_THE_ROOT or (device.link is None and device.aspm is None and _linkless(on, device)):
        on.skip("it has no link")
    states = {end.address: end.aspm for end in (device, port) if end is not None}
    if port is None and device.parent:
        states[device.parent] = None
    if enabled := [f"{name} {state}" for name, state in states.items() if state not in (None, "off")]:
        return on.warned(", ".join(enabled))
    if unread := [name for name, state in states.items() if state is None]:
        on.give_up(f"link control of {listed(unread)} was not read", as_root(on.evidence), on.reads or "")
    return on.passed("off")


# --- BARs ----------------------------------------------------------------------------------------------------


@check(
    "bar-size",
    title="GPU BARs",
    about="each GPU",
    why="a GPU without its window does not work, with a small one peers and NICs reach only a part of its memory",
    source="Linux Documentation/ABI/testing/sysfs-bus-pci (resource, resource<N>_resize), include/linux/ioport.h",
    expected="its memory within reach of the CPU and of other devices",
    each=gpus,
    none="GPU",
    inside=True,
)
def bar_size(on: On, gpu: Gpu) -> Finding:
    functions, address = on.host.index.pci, gpu.address
    path = sysfs.function(address, "resource")
    # Every real machine has functions with BARs: if none is listed, the BARs were not recorded.
    recorded = any(device.bars for device in functions.values())
    on, device = on.reading(path), functions.get(address)
    bars = on.need(device.bars if device is not None and recorded else None, "its BARs", path)
    device = on.need(device, "the device", path)
    if device.physfn is not None and not bars:
        on.skip("a virtual function: its windows are part of its parent's")
    size = _largest(device)
    if missing := bar_missing(device) if size else "no memory BAR assigned":
        return on.failed(
            missing,
            "the firmware left no room: switch Above 4G Decoding on and raise its MMIO window; in a guest give it a"
            " larger one (hosttune plan works it out), or boot with pci=realloc as a rescue",
        )
    actual = f"largest BAR {format_size(size)}"
    sister = _largest_of_model(on, device)
    if sister is not None:
        what = f"{actual}; that of {sister.address}, the same card,"
        on.need(sister.bars, what, sysfs.function(sister.address, "resource"))
    if sister is not None and _largest(sister) > size:
        hint = "compare the slots' firmware settings (Above 4G Decoding, resizable BAR), and reboot"
        return on.failed(f"{actual}; {sister.address}, the same card, has {format_size(_largest(sister))}", hint)
    if gpu.memory_bytes is not None and gpu.memory_bytes <= size:  # all of its memory can already be reached
        return on.passed(actual)
    limits = on.evidence.bar_limits or {}
    sisters = (functions[name] for name in limits if name in functions and name != address)
    if address not in limits and (size <= _UNRESIZED or any(sister.ids == device.ids for sister in sisters)):
        look = f"lspci -vvv -s {address} (Physical Resizable BAR), as root"
        on.need(None, f"{actual}; how large it can be", path, look=look)
    if (most := limits.get(address, 0)) > size:
        hint = "switch resizable BAR and Above 4G Decoding on in the firmware, and reboot"
        return on.warned(f"{actual}, of {format_size(most)} that it can have", hint)
    return on.passed(actual)


def _largest(device: PciDevice) -> int:
    return max((bar.size_bytes for bar in device.bars or ()), default=0)


def _largest_of_model(on: On, device: PciDevice) -> PciDevice | None:
    """Return the card with the largest BAR among those with the same ids; virtual functions are compared separately.

    If the BARs of all others are unknown, return one of these.
    """
    if device.ids is None:
        return None
    key = (device.ids, device.subsystem_device_id, device.physfn is None)
    cards = [on.host.index.pci[gpu.address] for gpu in accelerators(on.host) if gpu.address in on.host.index.pci]
    same = [card for card in cards if (card.ids, card.subsystem_device_id, card.physfn is None) == key]
    others = [card for card in same if card.address != device.address]
    if others and all(card.bars is None for card in others):
        return others[0]
    return max((card for card in same if card.bars is not None), key=_largest, default=None)
