"""Checks of PCIe settings: payload sizes equal along each path, ASPM off, BARs as large as possible."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.gpu import bar_missing
from hosttune.inventory.pcielink import IN_THE_ROOT
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import PciDevice
from hosttune.model.values import format_size
from hosttune.rules.checks.facts import accelerators, as_root, given, lacks, listed
from hosttune.rules.checks.on import On, check
from hosttune.rules.checks.subjects import gpus
from hosttune.rules.engine import Finding

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
