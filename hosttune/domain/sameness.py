"""Whether the XML that libvirt keeps still says what the XML that it was given said.

libvirt fills in defaults when it defines a guest (addresses, ports, models, a PS/2 mouse), so texts cannot be compared.
What the wanted XML says must be said; what it leaves to libvirt may be anything; what it leaves out on purpose (a
device, huge pages, a hard limit, arguments to QEMU) must stay out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from hosttune.domain.facts import DomainFacts, HostDevice, MemoryBacking, Pin
from hosttune.domain.reader import read_domain
from hosttune.domain.xml import parse
from hosttune.errors import BadInput
from hosttune.model.values import CpuSet, parse_cpus

Comparison = tuple[str, object, object]
T = TypeVar("T")

# Devices that libvirt adds by itself (formatdomain), and those that are compared one by one below.
_ADDED = frozenset(("emulator", "controller", "input", "audio", "watchdog", "memballoon", "serial", "console"))
_COMPARED = frozenset(("hostdev", "disk", "interface", "iommu"))
# What every guest of ours says and `DomainFacts` does not hold.
_SECTIONS = ("clock", "on_poweroff", "on_reboot", "on_crash", "pm")


def same_guest(live_xml: str, want_xml: str) -> tuple[str, ...]:
    """What the live XML says otherwise than the wanted one, one text a field; empty when they mean the same guest.

    Not compared: the UUID (a guest that is redefined keeps its own), titles, and what libvirt chooses where the wanted
    XML does not. Live XML that cannot be read differs. Raises BadInput for wanted XML that is no domain.
    """
    want = read_domain(want_xml, where="wanted XML")
    try:
        live = read_domain(live_xml, where="live XML")
    except BadInput as error:
        return (f"{error.where}: {error.what}",)
    compared = (
        *_machine(want, live),
        *_cpus(want, live),
        *_memory(want, live),
        *_backing(want, live),
        *_controllers(want, live),
        *_devices(want, live),
        ("other devices", _other_devices(want_xml), _other_devices(live_xml)),
    )
    told = [f"{field}: wanted {planned}, found {read}" for field, planned, read in compared if planned != read]
    missing = _said(want_xml) - _said(live_xml)
    return (*told, *(f"{said}: no longer written" for said in sorted(missing)))


def _left_open(want: T | None, live: T | None) -> T | None:
    """The live value; what the wanted XML leaves to libvirt counts as left so, whatever libvirt chose."""
    return None if want is None else live


def _machine(want: DomainFacts, live: DomainFacts) -> Iterator[Comparison]:
    yield "name", want.name, live.name
    yield "type", want.type, live.type
    yield "arch", want.arch, _left_open(want.arch, live.arch)
    # libvirt resolves an alias ("q35") to the newest version it has ("pc-q35-7.2").
    resolved = want.machine in (live.machine or "").split("-")
    yield "machine", want.machine, want.machine if resolved else _left_open(want.machine, live.machine)
    yield "firmware", want.firmware, live.firmware
    yield "secure boot", want.secure_boot, _left_open(want.secure_boot, live.secure_boot)
    yield "boot", (want.kernel, want.initrd, want.cmdline), (live.kernel, live.initrd, live.cmdline)
    yield "features", set(want.features), set(want.features).intersection(live.features)
    yield "kvm features", set(want.kvm_features), set(live.kvm_features)
    yield "ioapic", want.ioapic, live.ioapic
    yield "arguments to QEMU", want.qemu_arguments, live.qemu_arguments


def _cpus(want: DomainFacts, live: DomainFacts) -> Iterator[Comparison]:
    yield "vcpus", (want.vcpus, want.vcpus_current or want.vcpus), (live.vcpus, live.vcpus_current or live.vcpus)
    yield "vcpu cpuset", parse_cpus(want.vcpu_cpus), parse_cpus(live.vcpu_cpus)
    yield "vcpu placement", want.vcpu_placement or "static", live.vcpu_placement or "static"
    yield "vcpupin", _pins(want.vcpu_pins), _pins(live.vcpu_pins)
    yield "emulatorpin", parse_cpus(want.emulator_cpus), parse_cpus(live.emulator_cpus)
    yield "iothreads", want.iothreads, live.iothreads
    yield "iothreadpin", _pins(want.iothread_pins), _pins(live.iothread_pins)
    mine, theirs = want.cpu, live.cpu
    yield "cpu mode", mine.mode, theirs.mode
    yield "cpu model", mine.model, _left_open(mine.model, theirs.model)
    yield "cpu check", mine.check, _left_open(mine.check, theirs.check)
    yield "migratable", mine.migratable, _left_open(mine.migratable, theirs.migratable)
    yield "topology", mine.topology, theirs.topology
    yield "cpu cache", mine.cache, theirs.cache
    yield "maxphysaddr", mine.address_width, theirs.address_width
    yield "cpu features", set(mine.features), set(theirs.features)


def _pins(pins: tuple[Pin, ...]) -> dict[int, CpuSet]:
    return {pin.id: parse_cpus(pin.cpus) for pin in pins}


def _memory(want: DomainFacts, live: DomainFacts) -> Iterator[Comparison]:
    yield "memory", want.memory_bytes, live.memory_bytes
    yield (
        "current memory",
        want.current_memory_bytes or want.memory_bytes,
        live.current_memory_bytes or live.memory_bytes,
    )
    yield "maximum memory", want.max_memory_bytes, live.max_memory_bytes
    yield "hard limit", want.hard_limit_bytes, live.hard_limit_bytes
    yield "cells", _cells(want), _cells(live)
    yield (
        "numatune",
        (want.numatune.mode, parse_cpus(want.numatune.nodes)),
        (live.numatune.mode, parse_cpus(live.numatune.nodes)),
    )
    yield "memnodes", _memnodes(want), _memnodes(live)


def _cells(facts: DomainFacts) -> list[tuple[object, ...]]:
    return [
        (cell.id, parse_cpus(cell.vcpus), cell.memory_bytes, sorted(cell.distances), cell.access, cell.discard)
        for cell in facts.cells
    ]


def _memnodes(facts: DomainFacts) -> dict[int, tuple[str | None, CpuSet]]:
    return {memnode.cell: (memnode.mode, parse_cpus(memnode.nodes)) for memnode in facts.numatune.memnodes}


def _backing(want: DomainFacts, live: DomainFacts) -> Iterator[Comparison]:
    mine, theirs = want.backing, live.backing
    yield "pages", _pages(mine), _pages(theirs)
    for field in ("locked", "nosharepages", "allocation", "allocation_threads", "source", "access"):
        yield f"memory backing: {field}", getattr(mine, field), getattr(theirs, field)


def _pages(backing: MemoryBacking) -> set[tuple[CpuSet, int | None]] | None:
    return None if backing.pages is None else {(parse_cpus(page.cells), page.size_bytes) for page in backing.pages}


def _controllers(want: DomainFacts, live: DomainFacts) -> Iterator[Comparison]:
    """Those that were wanted; libvirt adds some for what it adds."""
    found = {controller.index: controller for controller in live.controllers}
    left = ("model", "address", "chassis", "port", "bus_nr", "node", "pcihole64_bytes", "hotplug")
    for wanted in want.controllers:
        other = found.get(wanted.index)
        yield (
            f"controllers[{wanted.index}]",
            _seen(wanted, wanted, (), left),
            None if other is None else _seen(wanted, other, (), left),
        )


def _devices(want: DomainFacts, live: DomainFacts) -> Iterator[Comparison]:
    mine, theirs = sorted(want.hostdevs, key=_source), sorted(live.hostdevs, key=_source)
    yield from _each("host device", mine, theirs, ("kind", "source", "interface"), ("guest_address", "driver", "model"))
    yield "host devices: managed, rom bar", _switches(want), _switches(live)
    chosen = ("device", "bus", "type", "format", "cache", "io", "guest_address")
    yield from _each("disk", want.disks, live.disks, ("source", "target", "iothread", "boot_order"), chosen)
    yield (
        "read-only disks",
        [disk.readonly or disk.device == "cdrom" for disk in want.disks],
        [disk.readonly or disk.device == "cdrom" for disk in live.disks],
    )
    left = ("model", "guest_address", "queues")
    yield from _each("interface", want.interfaces, live.interfaces, ("type", "source"), left)
    yield "serial console", want.serial, live.serial
    yield "channels", sorted(want.channels), sorted(live.channels)
    yield "random numbers", want.random, _left_open(want.random, live.random)
    yield "balloon", want.balloon, _left_open(want.balloon, live.balloon)
    of_iommu = ("intremap", "caching_mode", "eim", "iotlb", "dma_translation", "aw_bits")
    yield from _each("iommu", _some(want.iommu), _some(live.iommu), ("model",), of_iommu)


def _some(value: T | None) -> tuple[T, ...]:
    return () if value is None else (value,)


def _switches(facts: DomainFacts) -> list[tuple[object, ...]]:
    return sorted((_source(d), bool(d.managed), d.rom_bar is not False) for d in facts.hostdevs)


def _source(device: HostDevice) -> tuple[str, str]:
    return device.kind, device.source or ""


def _each(
    what: str, want: Sequence[object], live: Sequence[object], decided: tuple[str, ...], left: tuple[str, ...]
) -> Iterator[Comparison]:
    """Alike devices in order; where their numbers differ, all of them at once."""
    if len(want) != len(live):
        yield f"{what}s", [_seen(w, w, decided, ()) for w in want], [_seen(r, r, decided, ()) for r in live]
        return
    for n, (wanted, found) in enumerate(zip(want, live, strict=True)):
        yield f"{what} {n}", _seen(wanted, wanted, decided, left), _seen(wanted, found, decided, left)


def _seen(want: object, live: object, decided: tuple[str, ...], left: tuple[str, ...]) -> tuple[object, ...]:
    """The live fields: the decided ones as they are, the others where the wanted XML says something."""
    return (
        *(getattr(live, field) for field in decided),
        *(_left_open(getattr(want, field), getattr(live, field)) for field in left),
    )


def _other_devices(xml: str) -> dict[str, int]:
    """How many there are of each kind of device that is not compared one by one and that libvirt does not add."""
    tags = (str(element.tag) for element in parse(xml).iterfind("devices/*"))
    return dict(Counter(tag for tag in tags if tag not in _ADDED | _COMPARED))


def _said(xml: str) -> set[str]:
    """What the sections that every guest of ours has say, one text an element: tag, attributes, text."""
    root = parse(xml)
    elements = (element for tag in _SECTIONS for section in root.iterfind(tag) for element in section.iter())
    return {
        " ".join(
            (str(e.tag), *(f"{key}={value!r}" for key, value in sorted(e.items())), (e.text or "").strip())
        ).strip()
        for e in elements
    }
