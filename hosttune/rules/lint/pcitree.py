"""Rules of the guest's PCI space: devices passed twice, ports, bus numbers, windows for the BARs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hosttune.domain import elements
from hosttune.domain.arguments import WINDOW, values_of
from hosttune.domain.guest import Controller, HostDevice
from hosttune.domain.xml import Malformed, pci_address
from hosttune.inventory.width import AddressBits, address_width
from hosttune.inventory.window import (
    DEFAULT_HOLE,
    Firmware,
    add_bars,
    firmware_of,
    misalignment,
    own_window,
    size_window,
)
from hosttune.model.values import format_size, grouped
from hosttune.rules.engine import Finding, Need
from hosttune.rules.lint.devices import each
from hosttune.rules.lint.guest_on_host import GuestOnHost, bus_of, named
from hosttune.rules.lint.rule import ADVICE, ERROR, PCI, WARN, rule, unknown

if TYPE_CHECKING:
    from lxml.etree import _Element

_CONTROLLER = "/domain/devices/controller"
_HOLE = f"{_CONTROLLER}[@index='0']/pcihole64"
_WIDTH = "/domain/cpu/maxphysaddr"
_OS = "/domain/os"
_EXPANDER = "pcie-expander-bus"
_BUSES = 256
_PORTS = ("pcie-root-port", "pcie-switch-downstream-port")
_PCI_BRIDGES = ("pci-bridge", "pcie-to-pci-bridge")
_LOW_MEMORY = 2 << 30  # most memory that q35 places below 4 GiB, the rest above (QEMU hw/i386/pc_q35.c)
_FOUR_GIB = 4 << 30
_PCIE = "QEMU docs/pcie.txt"


def _bars_known(scene: GuestOnHost) -> bool:
    return not add_bars(scene.facts.catalogue, [source for source in scene.sources if source in scene.pci]).unknown


BARS = Need[GuestOnHost]("the BARs of the passed devices are unknown", _bars_known)
FIRMWARE = Need[GuestOnHost](
    "which firmware the guest has is unknown: neither its architecture nor the name of its ROM says it",
    lambda scene: scene.guest.firmware is not None,
)


@rule(
    "device-twice",
    ERROR,
    "/domain/devices/hostdev",
    right="each device is passed once",
    why="libvirt refuses the definition",
    source="libvirt formatdomain, Host device assignment",
    remedy="take all but one out",
)
def device_twice(scene: GuestOnHost) -> Iterator[Finding]:
    """Find devices that are passed several times."""
    counts: dict[str, int] = {}
    for device in scene.guest.hostdevs:
        if device.source:
            counts[device.source] = counts.get(device.source, 0) + 1
    for source, count in counts.items():
        if count > 1:
            text = f"{source} is passed {count} times: libvirt refuses (Hostdev already exists)"
            yield Finding(text, f"/domain/devices/hostdev[{source}]")


def _seats(scene: GuestOnHost) -> Iterator[tuple[_Element, str | None]]:
    """Yield each device with a guest PCI address, and the address; None where the address is not one.

    libvirt takes slot 0 of bus 0 for not written, and shows the first serial port a second time as <console>.
    """
    for element in scene.root.iterfind("devices/*"):
        target = element.find("target")
        twin = element.tag == "console" and (target is None or target.get("type", "serial") == "serial")
        if twin or element.get("model") == "none":
            continue
        try:
            address = pci_address(element.find("address"))
        except Malformed:
            yield element, None
        else:
            if address is not None and not address.startswith("0000:00:00."):
                yield element, address


def _called(element: _Element) -> str:
    """Return the name of a device for a message."""
    if element.tag == "controller":
        words = ("controller", element.get("index"), f"({element.get('model') or element.get('type')})")
        return " ".join(word for word in words if word)
    source = pci_address(element.find("source/address")) if element.get("type") in ("pci", "hostdev") else None
    target = element.find("target")
    name = source or (target.get("dev") if target is not None else None)
    return f"{element.tag} {name}" if name else str(element.tag)


def _path_of(element: _Element) -> str:
    """Return the XML path of a device: a passed one by its address on the host, any other by its place."""
    if element.tag == "hostdev" and element.get("type") == "pci":
        return f"/domain/devices/hostdev[{pci_address(element.find('source/address'))}]"
    place = 1 + sum(1 for _ in element.itersiblings(str(element.tag), preceding=True))
    return f"/domain/devices/{element.tag}[{place}]"


@rule(
    "address-twice",
    ERROR,
    "/domain/devices",
    right="no two devices have the same guest PCI address",
    why="libvirt refuses the definition",
    source="libvirt src/conf/domain_addr.c (virDomainPCIAddressReserveAddrInternal)",
    remedy="give each device a slot or a function of its own, or leave the <address> out: libvirt then chooses one",
)
def address_twice(scene: GuestOnHost) -> Iterator[Finding]:
    """Find addresses that several devices have, controllers included. Functions of one slot are different addresses."""
    for address, devices in grouped((address, element) for element, address in _seats(scene) if address).items():
        if len(devices) > 1:
            text = f"{named(map(_called, devices))} are at {address}: libvirt refuses (double use of PCI address)"
            yield Finding(text, _path_of(devices[-1]))


@rule(
    "address-slot",
    ERROR,
    "/domain/devices",
    right="each device has a slot that its bus has",
    why="libvirt refuses the definition",
    source="libvirt src/conf/domain_addr.c (virDomainPCIAddressBusSetModel)",
    remedy="write slot 0x00 behind a port, 0x01 to 0x1f on a PCI bridge, or leave the <address> out",
)
def address_slot(scene: GuestOnHost) -> Iterator[Finding]:
    """Compare slots with those of the bus: a port has slot 0 only, a bridge of PCI devices has no slot 0."""
    for element, address in _seats(scene):
        if address is None:
            yield Finding(f"{_called(element)}: its <address> is no PCI address: libvirt refuses", _path_of(element))
            continue
        slot = int(address.split(":")[2].partition(".")[0], 16)
        bus = scene.by_index.get(bus_of(address))
        model = bus.model if bus else None
        where = f"bus {bus_of(address):#04x} ({model})"
        if model in _PORTS and slot:
            text = f"{_called(element)} is at {address}, but {where} has slot 0 only: libvirt refuses"
            yield Finding(text, _path_of(element))
        elif model in _PCI_BRIDGES and not slot:
            text = f"{_called(element)} is at {address}, but the slots of {where} begin at 1: libvirt refuses"
            yield Finding(text, _path_of(element))


@rule(
    "root-port",
    ERROR,
    "/domain/devices/hostdev",
    right="each PCIe device has a port of its own",
    why="on the root bus it is an integrated endpoint: on SXM boards CUDA then fails (error 3)",
    source=f"{_PCIE}, 2; Ubicloud, Virtualizing NVIDIA HGX B200 GPUs",
    remedy="put each device behind a pcie-root-port of its own",
    needs=(PCI,),
    applies=lambda scene: bool(scene.passed) and scene.q35,
)
def root_port(scene: GuestOnHost) -> Iterator[Finding]:
    """Find devices that are behind no port. A GPU of an NVSwitch board does not work there."""
    known = any(function.parent for function in scene.host.pci)
    loose: dict[tuple[str, str], list[HostDevice]] = {}
    for device in each(scene):
        function = scene.pci.get(device.source or "")
        if known and function is not None and function.parent is None:
            continue  # it is an integrated endpoint of the host, too (an IGD must be one), or conventional PCI
        chain = scene.above(device)
        on_root = device.guest_address is not None and bus_of(device.guest_address) == 0
        if on_root or (chain and chain[0].model == "pcie-root"):
            gpu = device.source in scene.facts.catalogue.fabric.members
            seat = f"directly on pcie.0, without a root port{': there CUDA fails on SXM boards' if gpu else ''}"
            loose.setdefault((ERROR if gpu else WARN, seat), []).append(device)
        elif chain and chain[0].model not in _PORTS:
            loose.setdefault((WARN, f"on a {chain[0].model}, not behind a root port"), []).append(device)
    for (level, seat), devices in loose.items():
        text = f"{named(device.source for device in devices)} {'sits' if len(devices) == 1 else 'sit'} {seat}"
        yield Finding(text, scene.place_of(devices[0]), level)


@rule(
    "port-chassis",
    ERROR,
    _CONTROLLER,
    right="each port has a chassis number of its own",
    why="QEMU refuses (Can't add chassis slot)",
    source=f"{_PCIE}, 3",
    remedy="number the chassis 1, 2, …, or leave them to libvirt",
)
def port_chassis(scene: GuestOnHost) -> Iterator[Finding]:
    """Find ports with the same chassis number, which QEMU refuses.

    QEMU identifies a port by chassis and slot, and libvirt does not write the slot, so the chassis must differ. Port
    numbers may repeat: QEMU starts with them, and ports of different buses may have equal numbers.
    """
    seats: dict[int, list[Controller]] = {}
    for controller in scene.guest.controllers:
        if controller.model in _PORTS and controller.chassis is not None:
            seats.setdefault(controller.chassis, []).append(controller)
    for chassis, ports in sorted(seats.items()):
        if len(ports) > 1:
            who = named(
                f"{port.index} (port {'not written' if port.port is None else f'{port.port:#x}'})" for port in ports
            )
            text = f"controllers {who} have the same chassis {chassis}: QEMU refuses (Can't add chassis slot)"
            yield Finding(text, _CONTROLLER)


@rule(
    "bus-numbers",
    ERROR,
    _CONTROLLER,
    right="each root bus has enough numbers for the ports below it",
    why="the guest's firmware cannot reach the devices behind the last ports",
    source=f"{_PCIE}, 4",
    remedy="leave more numbers between the busNr of one expander and the next",
)
def bus_numbers(scene: GuestOnHost) -> Iterator[Finding]:
    """Count bus numbers: every port takes one between its root bus's own number and the next.

    Ports that libvirt places are not counted, so the count is a lower bound: libvirt may add ports, but removes none.
    """
    controllers = scene.by_index
    firsts = {0: 0} | {c.index: c.bus_nr for c in controllers.values() if c.model == _EXPANDER and c.bus_nr is not None}
    below = dict.fromkeys(firsts, 0)
    for controller in controllers.values():
        root = _root_of(controllers, controller)
        if root in below and controller.model in (*_PORTS, "pcie-switch-upstream-port"):
            below[root] += 1
    for index, first in firsts.items():
        end = min((other for other in firsts.values() if other > first), default=_BUSES)
        if first + below[index] >= end:
            who = "pcie.0" if index == 0 else f"expander {index} (busNr {first})"
            text = (
                f"{below[index]} ports below {who} need bus numbers up to {first + below[index]}, but "
                f"{'an expander begins' if end < _BUSES else 'the numbers end'} at {end}: the guest's firmware cannot "
                "reach all devices"
            )
            yield Finding(text, _CONTROLLER)


def _root_of(controllers: Mapping[int, Controller], controller: Controller) -> int | None:
    """Return the index of the root bus above a controller; None if the XML does not say."""
    seen: set[int] = set()
    at: Controller | None = controller
    while at is not None and at.address and at.index not in seen:
        seen.add(at.index)
        bus = bus_of(at.address)
        at = controllers.get(bus)
        if bus == 0 or (at is not None and at.model == _EXPANDER):
            return bus
    return None


@rule(
    "port-hotplug",
    ADVICE,
    f"{_CONTROLLER}/target",
    right="ports of passed devices have no hot plug",
    why="firmware and kernel keep memory and I/O free behind each port that has it",
    source=f"{_PCIE}, 3; libvirt formatdomain, Controllers: hotplug",
    remedy="write hotplug='off' in the <target> of the port",
    applies=lambda scene: bool(scene.passed) and elements.PORT_HOTPLUG in scene.facts.elements,
)
def port_hotplug(scene: GuestOnHost) -> Iterator[Finding]:
    """Find ports above passed devices that keep resources for hot plug."""
    ports = {c.index: c for device in each(scene) for c in scene.above(device) if c.model in _PORTS}
    plugged = [index for index, controller in sorted(ports.items()) if controller.hotplug is not False]
    if plugged:
        text = f"ports {named(plugged)} of passed devices have hot plug: memory and I/O space are kept free behind each"
        yield Finding(text, f"{_CONTROLLER}[@index='{plugged[0]}']")


@rule(
    "pci-hole64",
    ADVICE,
    _HOLE,
    right="the host bridge's 64-bit hole holds the BARs of the passed devices",
    why="the guest's kernel has no room to place what the firmware did not",
    source="QEMU hw/pci-host/q35.c (pci-hole64-size); libvirt formatdomain, pcihole64",
    remedy="write <pcihole64> with twice the next power of two of all BARs in the pcie-root",
    needs=(PCI, BARS),
    applies=lambda scene: scene.x86 and scene.kvm and bool(scene.passed),
)
def pci_hole64(scene: GuestOnHost) -> Iterator[Finding]:
    """Find a hole smaller than the BARs: a warning, since it grows to what the firmware could place by itself."""
    hole, bars = scene.hole_bytes, scene.bars_bytes
    if (DEFAULT_HOLE if hole is None else hole) < bars:
        written = (
            f"is {format_size(hole)}" if hole is not None else f"is not written (QEMU: {format_size(DEFAULT_HOLE)})"
        )
        text = (
            f"pcihole64 {written}, but the 64-bit BARs of the passed devices are {format_size(bars)} "
            "(/sys/bus/pci/devices/*/resource): the guest's kernel has no room to place what the firmware did not"
        )
        gib = 2 << ((bars - 1) >> 30).bit_length()
        yield Finding(text, _HOLE, remedy=f"write <pcihole64 unit='GiB'>{gib}</pcihole64> in the pcie-root")


@rule(
    "firmware-window",
    ERROR,
    _OS,
    right="the guest's firmware opens a window that holds the BARs of the passed devices",
    why="BARs have no address, and the GPU's driver fails (BAR0 is 0M @ 0x0)",
    source="edk2 OvmfPkg PlatformInitLib/MemDetect.c; SeaBIOS src/fw/pciinit.c",
    remedy="write <cpu mode='host-passthrough'> with the feature pdpe1gb, if the host has it, or give it fewer GPUs",
    needs=(FIRMWARE, PCI, BARS),
    applies=lambda scene: scene.x86 and scene.may_have_gpus,
)
def firmware_window(scene: GuestOnHost) -> Iterator[Finding]:
    """Compare the window that the firmware opens, by the planner's arithmetic, with the BARs.

    SeaBIOS opens none: it places them above the memory, and the host bridge's hole grows (pci_bios_map_devices, since
    2012; q35_host_get_pci_hole64_end). 1.16.3 does so wrongly behind ports.
    """
    devices = [source for source in scene.sources if source in scene.pci]
    firmware = _firmware(scene)
    width, memory = _guest_width(scene), _memory(scene)
    window = size_window(scene.facts.catalogue, devices, memory, width, firmware)
    need = window.mmio64_bytes or 0
    if scene.guest.firmware == "bios":
        if width.bits is None and need > DEFAULT_HOLE:
            yield unknown("whether the guest's CPU has address bits for the BARs: its address width is unknown", _OS)
        behind = [one.source or "" for one in scene.passed
                  if not one.guest_address or any(above.model in _PORTS for above in scene.above(one))]  # fmt: skip
        behind = [source for source in devices if source in behind] if scene.q35 else []
        if misaligned := misalignment(scene.facts.catalogue, behind, memory, width, firmware):
            yield unknown(misaligned, _OS)
        return
    if window.refusal and scene.kvm:
        yield Finding(window.refusal, _OS, WARN)
        return
    own, doubt = own_window(memory, width, firmware)
    written = (re.fullmatch(WINDOW, value) for value in values_of(scene.guest.qemu_arguments, "fw_cfg"))
    asked = max((int(match[1]) << 20 for match in written if match), default=0)
    if max(own, asked) >= need:
        less = replace(firmware, one_gib_pages=False)
        refusal = size_window(scene.facts.catalogue, devices, memory, width, less).refusal
        if firmware.one_gib_pages is None and refusal and scene.kvm:
            yield unknown(f"whether the guest's CPU has 1 GiB pages (pdpe1gb) is unknown; without: {refusal}", _OS)
        return
    unsure = width.bits is None or firmware.sizes_by_width is None or firmware.one_gib_pages is None
    if unsure and doubt:
        yield unknown(f"how large the firmware's own window is: {doubt}", _OS)
        return
    text = f"the firmware's window is {format_size(max(own, asked))}, and the BARs need {format_size(need)}"
    level = ERROR if max(own, asked) < scene.bars_bytes else ADVICE
    remedy = f"write -fw_cfg name=opt/ovmf/X-PciMmio64Mb,string={need >> 20} in <qemu:commandline>"
    yield Finding(f"{text}{f': {doubt}' if doubt else ''}", _OS, level, remedy=remedy)


def _firmware(scene: GuestOnHost) -> Firmware:
    """Return the guest's firmware; it uses fewer address bits if the guest's CPU has no 1 GiB pages.

    QEMU shows a guest on KVM no feature that the host's CPU lacks; which of them a named model or host-model has, the
    XML does not say.
    """
    firmware = firmware_of(scene.host, scene.guest.firmware or "", "kvm" if scene.kvm else "tcg")
    policy = dict(scene.guest.cpu.features).get("pdpe1gb")
    if policy in ("disable", "forbid"):
        return replace(firmware, one_gib_pages=False)
    sure = not scene.kvm or scene.takes_host_cpu or policy in ("require", "force")
    return firmware if sure or not firmware.one_gib_pages else replace(firmware, one_gib_pages=None)


def _memory(scene: GuestOnHost) -> int:
    """Return the guest's memory: libvirt makes it the sum of its cells, whatever <memory> says."""
    return max(scene.guest.memory_bytes or 0, sum(cell.memory_bytes or 0 for cell in scene.guest.cells))


def _guest_width(scene: GuestOnHost) -> AddressBits:
    """Return the guest's address width as the planner counts it: no wider than what the IOMMU maps."""
    bits, _ = _width(scene)
    iommu = scene.host.iommu.address_bits if scene.host.iommu else None
    return AddressBits(bits, bits if bits is None or iommu is None else min(bits, iommu))


@rule(
    "address-width",
    ERROR,
    _WIDTH,
    right="memory and the window above it are within the guest's address width",
    why="QEMU refuses to start, or the guest sees fewer GPUs the more memory it has",
    source="QEMU hw/i386/pc.c (pc_memory_init); /proc/cpuinfo, address sizes",
    remedy="less memory, fewer GPUs, a smaller pcihole64, or host-passthrough",
    applies=lambda scene: scene.x86,
)
def address_bits(scene: GuestOnHost) -> Iterator[Finding]:
    """Check that memory and the BARs (or the written hole) above it are addressable: QEMU checks it for the hole.

    Gaps from alignment are not counted: what does not fit without them never fits.
    """
    bits, said = _width(scene)
    memory = _memory(scene)
    hole = scene.hole_bytes or 0
    above = max(hole, scene.bars_bytes)
    if bits is None and scene.passed and scene.takes_host_cpu:
        yield unknown("the host's address width is unknown (/proc/cpuinfo)", _WIDTH)
    if bits is None or not memory:
        return
    end = _FOUR_GIB + max(0, memory - _LOW_MEMORY) + above
    if end <= 1 << bits:
        return
    what = f"a pcihole64 of {format_size(hole)}" if hole == above else f"BARs of {format_size(above)}"
    text = (
        f"{bits} address bits ({said}) reach {format_size(1 << bits)}, but {format_size(memory)} of memory and "
        f"{what} above it need {(end - 1).bit_length()} bits"
    )
    if scene.guest.cpu.address_width and scene.guest.cpu.address_width.mode == "emulate" and scene.takes_host_cpu:
        # host-passthrough turns host-phys-bits on, and QEMU then ignores the number (QEMU target/i386/host-cpu.c).
        yield Finding(f"{text}; with {scene.guest.cpu.mode} QEMU takes the host's width instead", _WIDTH, WARN)
    else:
        least = "no pcihole64, " if hole > scene.bars_bytes else ""
        wider = (
            "" if scene.takes_host_cpu and not said.startswith("maxphysaddr") else ", or the host's own address width"
        )
        yield Finding(text, _WIDTH, remedy=f"write {least}less memory or fewer devices with large BARs{wider}")


def _width(scene: GuestOnHost) -> tuple[int | None, str]:
    """Return the guest's address bits and their source; None if neither the XML nor the host has them."""
    cpu = scene.guest.cpu
    written = cpu.address_width
    if written and written.mode == "emulate" and written.bits:
        return written.bits, f"maxphysaddr bits='{written.bits}'"
    if not scene.takes_host_cpu and not (written and written.mode == "passthrough"):
        return None, ""
    model = scene.host.cpu_model
    own = model.physical_address_bits if model else None
    limit = written.limit if written else None
    if limit is not None and (own is None or limit < own):
        return limit, f"maxphysaddr limit='{limit}'"
    return own, "this host's, /proc/cpuinfo"


@rule(
    "iommu-width",
    WARN,
    _WIDTH,
    right="the guest's address width is no larger than what the IOMMU maps",
    why="BARs above it fail with VFIO_MAP_DMA",
    source="Linux drivers/iommu/intel (MGAW); libvirt formatdomain, maxphysaddr: limit",
    remedy="write <maxphysaddr mode='passthrough' limit='BITS'/>",
    applies=lambda scene: scene.x86 and scene.takes_host_cpu and bool(scene.passed),
)
def iommu_width(scene: GuestOnHost) -> Iterator[Finding]:
    """Find guests wider than the host's IOMMU."""
    wanted = address_width(scene.host, "kvm", devices=True)
    written = scene.guest.cpu.address_width
    have = written.limit if written else None
    if wanted.limit is not None and (have is None or have > wanted.limit):
        text = f"the IOMMU maps {wanted.limit} address bits, and the guest's CPU has {have or 'more'}"
        remedy = f"write <maxphysaddr mode='passthrough' limit='{wanted.limit}'/> in <cpu>"
        if elements.MAXPHYSADDR_LIMIT not in scene.facts.elements:
            remedy = f"update libvirt to 9.3 or newer, and {remedy}"
        yield Finding(text, _WIDTH, remedy=remedy)
    elif wanted.limit is None and wanted.finding is not None:
        level, text = wanted.finding
        yield Finding(text, _WIDTH, {"error": ERROR}.get(level, level))
