"""Two guests compared field by field, and whether a definition that libvirt keeps still means the XML it was given.

libvirt fills in defaults when it defines a guest (addresses, ports, models, a PS/2 mouse), so texts cannot be compared.
What the wanted XML sets must match; what it leaves to libvirt (`LEFT_OPEN`) may have any value; what it leaves out on
purpose (a device, huge pages, a hard limit, arguments to QEMU) must not be added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hosttune.domain.guest import (
    Controller,
    Disk,
    Guest,
    GuestCpu,
    GuestInterface,
    HostDevice,
    VirtualIommu,
)
from hosttune.domain.reader import domain_facts, read_tree
from hosttune.errors import BadInput
from hosttune.model.values import Value

if TYPE_CHECKING:
    from lxml.etree import _Element

LeftOpen = Mapping[type[Value], tuple[str, ...]]

# Fields that libvirt chooses if the wanted XML does not set them. All others must match, even if they are None.
LEFT_OPEN: LeftOpen = {
    Guest: ("arch", "machine", "secure_boot", "random", "balloon", "watchdog"),
    GuestCpu: ("model", "check", "migratable"),
    Controller: ("model", "address", "chassis", "port", "bus_nr", "node", "pcihole64_bytes", "hotplug"),
    HostDevice: ("guest_address", "driver", "model", "mac"),
    Disk: ("device", "bus", "type", "format", "cache", "io", "discard", "guest_address"),
    GuestInterface: ("model", "mac", "guest_address", "queues"),
    VirtualIommu: ("intremap", "caching_mode", "eim", "iotlb", "dma_translation", "aw_bits"),
}
# Names of fields in libvirt's terms; all other fields keep their own names.
_WORDS = {
    "vcpu_pins": "vcpupin",
    "emulator_cpus": "emulatorpin",
    "iothread_pins": "iothreadpin",
    "memory_bytes": "memory",
    "current_memory_bytes": "current memory",
    "max_memory_bytes": "maximum memory",
    "hard_limit_bytes": "hard limit",
    "backing": "memory backing",
    "hostdevs": "host devices",
    "qemu_arguments": "arguments to QEMU",
}
# Devices that libvirt adds by itself (formatdomain), and devices that are compared one by one.
_ADDED = frozenset(("emulator", "controller", "input", "audio", "watchdog", "memballoon", "serial", "console"))
_COMPARED = frozenset(("hostdev", "disk", "interface", "iommu"))
# Sections that each guest of hosttune has and that `Guest` does not hold.
_SECTIONS = ("clock", "on_poweroff", "on_reboot", "on_crash", "pm")


def compare(want: object, found: object, left_open: LeftOpen, at: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield (path, wanted, found) of each difference; a path is "cpu.topology.cores" or "controllers[2].port".

    Values are compared field by field, lists of equal length item by item, all else as a whole. `left_open`: by class,
    the fields that may have any value if the wanted value is None.
    """
    if isinstance(want, Value) and type(want) is type(found):
        may_differ = left_open.get(type(want), ())
        for name in want.__struct_fields__:
            field = getattr(want, name)
            if field is not None or name not in may_differ:
                yield from compare(field, getattr(found, name), left_open, f"{at}.{name}" if at else name)
    elif isinstance(want, tuple) and isinstance(found, tuple) and len(want) == len(found):
        for n, (one, other) in enumerate(zip(want, found, strict=True)):
            yield from compare(one, other, left_open, f"{at}[{n}]")
    elif want != found:
        yield at, want, found


def same_guest(live_xml: str, want_xml: str) -> tuple[str, ...]:
    """Return how the live XML differs from the wanted one, one text per field; empty if both mean the same guest.

    Not compared: the UUID (a guest that is redefined keeps its own), titles, and what libvirt chooses if the wanted XML
    does not. Live XML that cannot be read counts as different. Raises BadInput if the wanted XML is not a domain.
    """
    want_root = read_tree(want_xml, where="wanted XML")
    want = _comparable(domain_facts(want_root, where="wanted XML"))
    try:
        live_root = read_tree(live_xml, where="live XML")
        live = _comparable(domain_facts(live_root, where="live XML"))
    except BadInput as error:
        return (f"{error.where}: {error.what}",)
    compared = [
        *((_word(field), wanted, found) for field, wanted, found in compare(want, _allowed(live, want), LEFT_OPEN)),
        ("other devices", _other_devices(want_root), _other_devices(live_root)),
    ]
    texts = [f"{field}: wanted {wanted}, found {found}" for field, wanted, found in compared if wanted != found]
    missing = sorted(_sections(want_root) - _sections(live_root))
    return (*texts, *(f"{element}: missing" for element in missing))


def _word(path: str) -> str:
    """Return a field's name for people: "cpu.mode" as "cpu mode", "vcpu_pins[3].cpus" as "vcpupin[3] cpus"."""
    top = path.partition(".")[0].partition("[")[0]
    return (_WORDS.get(top, top) + path.removeprefix(top)).replace(".", " ").replace("_", " ")


def _comparable(facts: Guest) -> Guest:
    """Return the facts in one form: with defaults for what is not written, and sorted where the order has no meaning.

    Left out are the UUID, the PIT, which is in `_SECTIONS`, and how the memory's nodes were chosen (placement).
    """
    cpu, numatune = facts.cpu, facts.numatune
    pages = (replace(page, cells=page.cells or None) for page in facts.backing.pages or ())
    in_order = tuple(sorted(pages, key=lambda page: (page.cells or "", page.size_bytes or 0)))
    return replace(
        facts,
        uuid=None,
        pit=None,
        vcpus_current=facts.vcpus_current or facts.vcpus,
        vcpu_cpus=facts.vcpu_cpus or None,
        vcpu_placement=facts.vcpu_placement or "static",
        emulator_cpus=facts.emulator_cpus or None,
        current_memory_bytes=facts.current_memory_bytes or facts.memory_bytes,
        backing=replace(facts.backing, pages=None if facts.backing.pages is None else in_order),
        numatune=replace(
            numatune, placement=None, memnodes=tuple(sorted(numatune.memnodes, key=lambda memnode: memnode.cell))
        ),
        cpu=replace(cpu, features=tuple(sorted(set(cpu.features)))),
        cells=tuple(replace(cell, distances=tuple(sorted(cell.distances))) for cell in facts.cells),
        kvm_features=tuple(sorted(set(facts.kvm_features))),
        hostdevs=tuple(sorted(map(_hostdev, facts.hostdevs), key=lambda device: (device.kind, device.source or ""))),
        disks=tuple(replace(disk, readonly=disk.readonly or disk.device == "cdrom") for disk in facts.disks),
        channels=tuple(sorted(facts.channels)),
    )


def _hostdev(device: HostDevice) -> HostDevice:
    return replace(device, managed=bool(device.managed), rom_bar=device.rom_bar is not False)


def _allowed(live: Guest, want: Guest) -> Guest:
    """Return the live facts without what libvirt may add: a machine version ("pc-q35-7.2"), features, controllers."""
    wanted = {controller.index for controller in want.controllers}
    resolved = want.machine in (live.machine or "").split("-")
    return replace(
        live,
        machine=want.machine if resolved else live.machine,
        features=tuple(feature for feature in want.features if feature in live.features),
        controllers=tuple(controller for controller in live.controllers if controller.index in wanted),
    )


def _other_devices(root: _Element) -> dict[str, int]:
    """Return the number of devices of each kind that is not compared one by one and that libvirt does not add."""
    tags = (str(element.tag) for element in root.iterfind("devices/*"))
    return dict(Counter(tag for tag in tags if tag not in _ADDED | _COMPARED))


def _sections(root: _Element) -> set[str]:
    """Return the sections that each guest of hosttune has, one text per element: tag, attributes, text."""
    elements = (element for tag in _SECTIONS for section in root.iterfind(tag) for element in section.iter())
    return {
        " ".join(
            (str(e.tag), *(f"{key!s}={value!r}" for key, value in sorted(e.items())), (e.text or "").strip())
        ).strip()
        for e in elements
    }
