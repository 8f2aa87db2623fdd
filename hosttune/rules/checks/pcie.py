"""Checks of PCIe settings: payload sizes equal along each path, ASPM off, BARs as large as possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hosttune.gpu import bar_missing
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import PciDevice
from hosttune.model.validation import CheckResult
from hosttune.model.values import format_size
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.rules.checks.facts import (
    RECORD,
    accelerators,
    as_root,
    given,
    lacks,
    listed,
)

Functions = Mapping[str, PciDevice]
_UNRESIZED = 256 << 20  # the largest BAR that firmware assigns without resizing: a larger one was resized
_IN_THE_ROOT = ("root-complex-endpoint", "root-complex-event-collector")


def _worth(evidence: Evidence, *, others: bool) -> list[PciDevice]:
    """Return GPUs of known makers and guests' devices; with `others` also NICs and NVMe drives. No VFs."""
    host = evidence.host
    functions = host.index.pci
    names = [gpu.address for gpu in accelerators(host)] + [device.address for device in given(evidence)]
    if others:
        names += [nic.address for nic in host.nics] + [drive.address for drive in host.nvme]
    found = (functions.get(name) for name in dict.fromkeys(names))
    return [device for device in found if device is not None and device.physfn is None]


# --- payload -------------------------------------------------------------------------------------------------


def pcie_payload(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the maximum payload size: one value along each path."""
    check = "pcie-payload"
    devices = [d for d in _worth(evidence, others=True) if d.address.endswith(".0")]
    for device in devices:
        yield _path(evidence, check, device, evidence.host.index.bridges(device.address))


def _path(evidence: Evidence, check: str, device: PciDevice, bridges: tuple[PciDevice, ...]) -> CheckResult:
    """Judge one device and the bridges above it."""
    address = device.address
    source = f"{sysfs.PCI_DEVICES}/{address}/config (Device Control), the same of {len(bridges)} bridges above"
    expected = "one maximum payload size from the root port down"
    if (not bridges and not device.parent) or device.port_type in _IN_THE_ROOT:
        return skipped(check, address, "nothing above it: a virtual root bus, or part of the root complex")
    last = (device, *bridges)[-1]
    if last.parent and last.parent not in (device.address, *(bridge.address for bridge in bridges)):
        why = f"{last.parent}, which is above it, is not in the list of PCI functions"
        return unknown(check, address, expected=expected, why=why, hint=f"look with: lspci -s {last.parent}")
    sizes = {one.address: one.max_payload_bytes for one in (device, *bridges)}
    unread = [name for name, size in sizes.items() if size is None]
    if device.max_payload_bytes is None and device.link is None and device.acs is None and _linkless(evidence, device):
        return skipped(check, address, "it reports no PCI Express capability: a virtual or conventional PCI device")
    if unread:
        hint = as_root(evidence)
        why = f"payload size of {listed(unread)} was not read"
        return unknown(check, address, expected=expected, why=why, hint=hint, source=source)
    found = [size for size in sizes.values() if size is not None]
    if len(set(found)) == 1:
        return passed(check, address, expected=expected, actual=f"{found[0]} B", source=source)
    actual = ", ".join(f"{name} {size} B" for name, size in sizes.items())
    perf = any("pcie_bus_perf" in word for word in evidence.host.kernel_args or () if word.startswith("pci="))
    if perf and found == sorted(found):
        text = f"{actual}: larger towards the root, as pci=pcie_bus_perf allows"
        return passed(check, address, expected=expected, actual=text, source=source)
    hint = "boot with pci=pcie_bus_safe, which gives every path the largest size that all of it can do"
    return failed(check, address, expected=expected, actual=actual, source=source, hint=hint)


# --- ASPM ----------------------------------------------------------------------------------------------------


def aspm(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the link power states of GPUs and of guests' devices: off at both ends."""
    check = "aspm"
    functions = evidence.host.index.pci
    devices = _worth(evidence, others=False)
    for device in devices:
        yield _link_power(evidence, check, device, functions.get(device.parent or ""))


def _link_power(evidence: Evidence, check: str, device: PciDevice, port: PciDevice | None) -> CheckResult:
    address = device.address
    source = f"{sysfs.PCI_DEVICES}/{address}/config (Link Control)" + (f", of {port.address} too" if port else "")
    expected = "off at both ends"
    linkless = device.link is None and device.aspm is None and _linkless(evidence, device)
    if device.port_type in _IN_THE_ROOT or linkless:
        return skipped(check, address, "it has no link")
    ends = [end for end in (device, port) if end is not None]
    states = {end.address: end.aspm for end in ends}
    enabled = [f"{name} {state}" for name, state in states.items() if state not in (None, "off")]
    if enabled:
        hint = (
            "plan with the guest that gets it and apply (setting aspm), or boot with pcie_aspm.policy=performance;"
            " pcie_aspm=off leaves what the firmware set"
        )
        return warned(check, address, expected=expected, actual=", ".join(enabled), source=source, hint=hint)
    unread = [name for name, state in states.items() if state is None]
    unread += [device.parent] if port is None and device.parent else []
    if unread:
        hint = as_root(evidence)
        why = f"link control of {listed(unread)} was not read"
        return unknown(check, address, expected=expected, why=why, hint=hint, source=source)
    return passed(check, address, expected=expected, actual="off", source=source)


def _linkless(evidence: Evidence, device: PciDevice) -> bool:
    """Return whether the kernel shows no link for it: it has no PCI Express capability."""
    return lacks(evidence, sysfs.function(device.address, "current_link_speed"))


# --- BARs ----------------------------------------------------------------------------------------------------


def bar_size(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the BARs of GPUs: assigned, as large as those of cards of the same model, and as large as they can be."""
    check = "bar-size"
    gpus = accelerators(evidence.host)
    functions = evidence.host.index.pci
    # Every real machine has functions with BARs: if none is listed, the BARs were not recorded.
    unrecorded = not any(one.bars for one in functions.values())
    for gpu in gpus:
        yield _window(evidence, check, gpu, functions, unrecorded)


def _window(evidence: Evidence, check: str, gpu: Gpu, functions: Functions, unrecorded: bool) -> CheckResult:
    device = functions.get(gpu.address)
    source = sysfs.function(gpu.address, "resource")
    expected = "its memory within reach of the CPU and of other devices"
    if device is None or device.bars is None or unrecorded:
        hint = f"look with: cat {source}" if evidence.complete else RECORD
        return unknown(check, gpu.address, expected=expected, why="its BARs were not read", hint=hint, source=source)
    if device.physfn is not None and not device.bars:
        return skipped(check, gpu.address, "a virtual function: its windows are part of its parent's")
    size = _largest(device)
    missing = bar_missing(device) if size else "no memory BAR assigned"
    if missing is not None:
        hint = (
            "the firmware left no room: switch Above 4G Decoding on and raise its MMIO window; in a guest give it a"
            " larger one (hosttune plan works it out), or boot with pci=realloc as a rescue"
        )
        return failed(check, gpu.address, expected=expected, actual=missing, source=source, hint=hint)
    actual = f"largest BAR {format_size(size)}"
    sister = _largest_of_model(evidence, functions, device)
    if sister is not None and sister.bars is None:
        look = f"look with: cat /sys/bus/pci/devices/{sister.address}/resource"
        why = f"{actual}; that of {sister.address}, the same card, was not read"
        return unknown(check, gpu.address, expected=expected, why=why, hint=look, source=source)
    if sister is not None and _largest(sister) > size:
        hint = "compare the slots' firmware settings (Above 4G Decoding, resizable BAR), and reboot"
        text = f"{actual}; {sister.address}, the same card, has {format_size(_largest(sister))}"
        return failed(check, gpu.address, expected=expected, actual=text, source=source, hint=hint)
    limits = evidence.bar_limits or {}
    most = limits.get(gpu.address)
    whole = gpu.memory_bytes is not None and gpu.memory_bytes <= size  # all of its memory can already be reached
    limits_known = size <= _UNRESIZED or any(
        functions[other].ids == device.ids for other in limits if other in functions and other != gpu.address
    )
    if most is None and not whole and limits_known:
        look = f"look with: lspci -vvv -s {gpu.address} (Physical Resizable BAR), as root"
        why = f"{actual}; how large it can be was not read"
        return unknown(check, gpu.address, expected=expected, why=why, hint=look, source=source)
    if most is not None and most > size and not whole:
        hint = "switch resizable BAR and Above 4G Decoding on in the firmware, and reboot"
        text = f"{actual}, of {format_size(most)} that it can have"
        return warned(check, gpu.address, expected=expected, actual=text, source=source, hint=hint)
    return passed(check, gpu.address, expected=expected, actual=actual, source=source)


def _largest(device: PciDevice) -> int:
    return max((bar.size_bytes for bar in device.bars or ()), default=0)


def _largest_of_model(evidence: Evidence, functions: Functions, device: PciDevice) -> PciDevice | None:
    """Return the card with the largest BAR among those with the same ids; virtual functions are compared separately.

    If the BARs of all others are unknown, return one of these.
    """
    ids = (device.vendor_id, device.device_id, device.subsystem_device_id, device.physfn is None)
    if None in ids[:2]:
        return None
    found = [functions[gpu.address] for gpu in accelerators(evidence.host) if gpu.address in functions]
    same = [f for f in found if (f.vendor_id, f.device_id, f.subsystem_device_id, f.physfn is None) == ids]
    others = [f for f in same if f.address != device.address]
    if others and all(f.bars is None for f in others):
        return others[0]
    return max((f for f in same if f.bars is not None), key=_largest, default=None)


CHECKS = (
    Check(
        id="pcie-payload",
        title="Maximum payload size",
        subjects="each GPU, NIC, NVMe drive and device of a guest, with the bridges above it",
        why="a packet larger than a port takes is malformed: a fatal error, or silence",
        source="PCI Express Base 5.0, 2.2.2 and 7.5.3.4 Device Control; kernel-parameters (pci=pcie_bus_*)",
        judge=pcie_payload,
        none="GPU, NIC or NVMe drive",
        of_tree=True,
        for_guests=True,
    ),
    Check(
        id="aspm",
        title="ASPM off",
        subjects="the link of each GPU and of each device that a guest has",
        why="a link that sleeps wakes within microseconds: each short transfer pays for it",
        source="PCI Express Base 5.0, 5.4.1 Active State Power Management; kernel-parameters (pcie_aspm)",
        judge=aspm,
        none="GPU, and no device that a guest has",
        of_tree=True,
        for_guests=True,
    ),
    Check(
        id="bar-size",
        title="GPU BARs",
        subjects="each GPU of a known maker, given to a guest or not",
        why="a GPU without its window does not work, with a small one peers and NICs reach only a part of its memory",
        source="Linux Documentation/ABI/testing/sysfs-bus-pci (resource, resource<N>_resize), include/linux/ioport.h",
        judge=bar_size,
        none="GPU",
        inside=True,
    ),
)
