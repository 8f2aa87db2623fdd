"""Two guests compared: the one comparison, and the words for it.

`compare` walks two guests field by field. libvirt fills in defaults when it defines a guest (addresses, ports, models,
a PS/2 mouse), so what it may choose (`LEFT_OPEN`) can have any value where the wanted guest leaves it open, and what
that leaves out on purpose (a device, huge pages, a hard limit, arguments to QEMU) must not be added. Only what `Guest`
does not hold is compared as XML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from hosttune.domain.guest import (
    Controller,
    Disk,
    Guest,
    GuestCell,
    GuestCpu,
    GuestInterface,
    HostDevice,
    Memnode,
    Pages,
    Pin,
    VirtualIommu,
)
from hosttune.domain.reader import domain_facts
from hosttune.model.listing import numbered
from hosttune.model.plan import GuestChange
from hosttune.model.values import CpuSet, Value, format_size, parse_cpus

if TYPE_CHECKING:
    from lxml.etree import _Element

LeftOpen = Mapping[type[Value], tuple[str, ...]]
Difference = tuple[str, object, object]  # path, wanted, found

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
    "backing": "memoryBacking",
    "backing.pages": "memoryBacking",
    "numatune": "numatune memory",
    "memnodes": "memory of cell",
    "cells": "cell",
    "controllers": "controller",
    "hostdevs": "hostdev",
    "disks": "disk",
    "interfaces": "interface",
    "qemu_arguments": "arguments to QEMU",
}
_NOTHING = {
    "emulator_cpus": "not pinned",
    "backing.pages": "ordinary pages",
    "numatune": "any node",
    "memnodes": "not bound",
}
_NAMING = ("kind", "type", "source", "index", "id")  # of what a path names already
_THREADS = {"vcpu_pins": "vCPU", "iothread_pins": "I/O thread"}
# Devices that libvirt adds by itself (formatdomain), and devices that are compared one by one.
_ADDED = frozenset(("emulator", "controller", "input", "audio", "watchdog", "memballoon", "serial", "console"))
_COMPARED = frozenset(("hostdev", "disk", "interface", "iommu"))
# Sections that each guest of hosttune has and that `Guest` does not hold.
SECTIONS = tuple(f"/domain/{tag}" for tag in ("clock", "on_poweroff", "on_reboot", "pm"))
# Amounts that the guest starts with, by the whole amount.
_AT_THE_START = {"current_memory_bytes": "memory_bytes", "vcpus_current": "vcpus"}
# Devices that a field of the guest names otherwise than by their tag.
_FIELDS = {"rng": "random", "channel": "channels"}
SECRET = "passwd"  # of <graphics>: all that --security-info adds (libvirt, virDomainGraphicsAuthDefFormatAttr)
# What newer versions add to an element that hosttune writes (libvirt 10.1, virCPUDefFormatBuf).
_WRITTEN_SINCE = {"topology": ("clusters", "1")}


# --- two guests ----------------------------------------------------------------------------------------------


def compare(want: object, found: object, left_open: LeftOpen | None = None, at: str = "") -> Iterator[Difference]:
    """Yield (path, wanted, found) of each difference; a path is "cpu.topology.cores" or "controllers[2].port".

    Values are compared field by field, pins, cells and devices by their names (None: there is none), all else as a
    whole. `left_open`: by class, the fields that may have any value if the wanted value is None.
    """
    if isinstance(want, Value) and type(want) is type(found) and not isinstance(want, Pin | Memnode):
        may_differ = (left_open or {}).get(type(want), ())
        for name in want.__struct_fields__:
            field = getattr(want, name)
            if field is not None or name not in may_differ:
                yield from compare(field, getattr(found, name), left_open, f"{at}.{name}" if at else name)
    elif want != found:
        wanted, there = (_by_name(values) if isinstance(values, tuple) else {} for values in (want, found))
        for name in wanted | there:
            yield from compare(wanted.get(name), there.get(name), left_open, f"{at}[{name}]")
        if not wanted and not there:
            yield at, want, found


def compare_guests(want: Guest, found: Guest, left_open: LeftOpen | None = None) -> Iterator[Difference]:
    """Yield each difference in what two guests mean: not in how it is written, nor in the UUID, the PIT and numad.

    Memory and vCPUs at the start are named only where they are not all.
    """
    wanted, there = _comparable(want), _comparable(found)
    for difference in compare(wanted, there, left_open):
        whole = _AT_THE_START.get(difference[0])
        if whole is None or any(getattr(guest, difference[0]) != getattr(guest, whole) for guest in (wanted, there)):
            yield difference


def _by_name(values: Iterable[object]) -> dict[str, object]:
    """Return the pins, cells or devices of a list by what tells them apart; empty for a list of anything else."""
    named: dict[str, object] = {}
    seen: Counter[str] = Counter()
    for value in values:
        match value:
            case Pin() | GuestCell():
                name = str(value.id)
            case Memnode():
                name = str(value.cell)
            case Controller():
                name = str(value.index)
            case Disk():
                name = value.source or value.target or "without a medium"
            case HostDevice(kind=kind, source=source) | GuestInterface(type=kind, source=source):
                name = " ".join(filter(None, (kind, source)))
            case _:
                return {}
        seen[name] += 1
        named[name if seen[name] == 1 else f"{name} ({seen[name]})"] = value
    return named


# --- in words ------------------------------------------------------------------------------------------------


def in_words(differences: Iterable[Difference]) -> Iterator[tuple[str, str, str]]:
    """Yield (what it is, wanted, found) for people; the pins of all threads as one."""
    vcpus: tuple[object, object] = (None, None)  # of both, where they differ: a vCPU that is not there has no pin
    for field, alike in groupby(differences, lambda difference: difference[0].partition("[")[0]):
        paths, wants, founds = zip(*alike, strict=True)
        if field == "vcpus":
            vcpus = (wants[0], founds[0])
        if field in _THREADS:
            ids = [int(path.rstrip("]").partition("[")[2]) for path in paths]
            threads = CpuSet(ids)
            if field == "vcpu_pins":
                wants, founds = (
                    tuple(
                        pin for thread, pin in zip(ids, pins, strict=True) if not isinstance(most, int) or thread < most
                    )
                    for pins, most in zip((wants, founds), vcpus, strict=True)
                )
            words = _pinned(wants), _pinned(founds)
            if words[0] == words[1]:  # the same CPUs, for other threads
                words = _in_order(wants), _in_order(founds)
            yield f"{_WORDS[field]} of {numbered(_THREADS[field], threads)}", *words
        else:
            for path, want, found in zip(paths, wants, founds, strict=True):
                words = _value(path, want), _value(path, found)  # two sizes can be alike in words
                yield name_of(path), *(words if words[0] != words[1] else (str(want), str(found)))


def as_changes(
    differences: Iterable[Difference], when: Literal["now", "next-start"] = "now"
) -> tuple[GuestChange, ...]:
    """Return differences as the changes to what is wanted. Ports that come or go with devices are left out."""
    every = [*differences]
    shown = [row for row in every if not (row[0].startswith("controllers[") and None in row[1:])]
    return tuple(
        GuestChange(element=element, was=was, becomes=becomes, when=when)
        for element, becomes, was in in_words(shown or every)
    )


def as_texts(differences: Iterable[tuple[str, str, str]]) -> tuple[str, ...]:
    """Return one text for each (what it is, wanted, found) of `in_words`; of whole elements only that one lacks it."""
    return tuple(
        f"{name}: missing"
        if found == "none" and (wanted == "there" or ", " in wanted)
        else f"{name}: not wanted"
        if wanted == "none" and (found == "there" or ", " in found)
        else f"{name}: wanted {wanted}, found {found}"
        for name, wanted, found in differences
    )


def name_of(path: str, *, whole: bool = True) -> str:
    """Return a path for people: "cpu.mode" as "cpu mode", "hostdevs[pci 0000:01:00.0].mac" as "hostdev ... mac".

    Not `whole`: without the item of a list and what is below it: "hostdev".
    """
    if path.startswith("/"):
        return path[1:] if whole else path[1:].partition(" ")[0]
    field, _, rest = path.partition("[")
    item, _, below = rest.rpartition("]")
    first, *more = [field] if field in _WORDS else field.split(".")
    names = [_WORDS.get(first, first), *more, *([item, *below.split(".")[1:]] if whole and item else ())]
    return " ".join(name if name == item else name.removesuffix("_bytes").replace("_", " ") for name in names)


def _value(path: str, value: object) -> str:
    match value:
        case None | ():
            return (
                "chosen by libvirt"
                if path.endswith("].guest_address")
                else _NOTHING.get(path.partition("[")[0], "none")
            )
        case "none":
            return "'none'"  # a value: not that there is none
        case bool():
            return "on" if value else "off"
        case int() if path.endswith("_bytes"):
            return format_size(value)
        case str() if path == "emulator_cpus":
            return f"host CPUs {value}"
        case Memnode():
            return f"{value.mode}, {on_nodes(value.nodes)}"
        case Pages():
            pages = f"pages of {format_size(value.size_bytes)}" if value.size_bytes else "huge pages"
            return f"{pages} for {numbered('cell', parse_cpus(value.cells))}" if value.cells else pages
        case Value():
            fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
            return ", ".join(
                f"{name_of(name)} {_value(name, field)}"
                for name, field in fields
                if field not in (None, ()) and field is not False and not (name in _NAMING and path.endswith("]"))
            )
        case tuple():
            return " ".join(_value(path, item) for item in value)
    return str(value)


def on_nodes(nodes: CpuSet | str | None) -> str:
    """Return host nodes in words: "node 0", "nodes 0-1"."""
    ids = parse_cpus(nodes)
    return numbered("node", ids) if ids else "node chosen at the start"


def _pinned(pins: Iterable[object]) -> str:
    places = [parse_cpus(pin.cpus) if isinstance(pin, Pin) else CpuSet() for pin in pins]
    cpus, floating = CpuSet(cpu for place in places for cpu in place), sum(not place for place in places)
    more = f", {floating} of {len(places)} not pinned" if floating else ""
    return f"host CPUs {cpus}{more}" if cpus else "not pinned" if places else "none"


def _in_order(pins: Iterable[object]) -> str:
    return f"host CPUs {' '.join(pin.cpus if isinstance(pin, Pin) else 'any' for pin in pins)} in this order"


# --- two definitions -----------------------------------------------------------------------------------------


def differing(live: _Element, want: _Element) -> Iterator[Difference]:
    """Yield how a guest differs from the wanted one, by their XML.

    Not compared: the UUID (a guest that is redefined keeps its own), titles, and what libvirt chooses if the wanted XML
    does not.  Raises BadInput for an invalid value.
    """
    wanted, there = domain_facts(want, where="wanted XML"), domain_facts(live, where="live XML")
    differences = list(compare_guests(wanted, _allowed(there, wanted), LEFT_OPEN))
    yield from differences
    named = {path for path, *_ in differences}
    devices = [
        Counter(f"/domain/devices/{element.tag}" for element in root.iterfind("devices/*")) for root in (want, live)
    ]
    for path in dict.fromkeys((*devices[0], *devices[1])):
        tag = path.rpartition("/")[2]
        wanted_number, number = (counted[path] or None for counted in devices)
        if wanted_number != number and tag not in _ADDED | _COMPARED and _FIELDS.get(tag, tag) not in named:
            yield path, wanted_number, number
    yield from (other for other in other_elements(live, want) if other[0].startswith(SECTIONS) and other[2] is None)


def other_elements(live: _Element, want: _Element) -> Iterator[Difference]:
    """Yield the elements that only one of two definitions has, by the tags to it, its attributes and its text."""
    wanted, there = _elements(want), _elements(live)
    yield from ((element, "there", None) for element in wanted - there)
    yield from ((element, None, "there") for element in there - wanted)


def _comparable(facts: Guest) -> Guest:
    """Return the facts in one form: with defaults for what is not written, and sorted where the order has no meaning.

    Left out are the UUID, the PIT, which is in `SECTIONS`, and how the memory's nodes were chosen (placement).
    """
    cpu = facts.cpu
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
        numatune=facts.numatune and replace(facts.numatune, placement=None),
        cpu=replace(cpu, features=tuple(sorted(set(cpu.features)))),
        cells=tuple(replace(cell, distances=tuple(sorted(cell.distances))) for cell in facts.cells),
        kvm_features=tuple(sorted(set(facts.kvm_features))),
        hostdevs=tuple(
            replace(device, managed=bool(device.managed), rom_bar=device.rom_bar is not False)
            for device in facts.hostdevs
        ),
        disks=tuple(replace(disk, readonly=disk.readonly or disk.device == "cdrom") for disk in facts.disks),
        channels=tuple(sorted(facts.channels)),
    )


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


def _elements(root: _Element) -> Counter[str]:
    """Return each element of a definition as the tags to it, its attributes without passwords, and its text."""
    elements: Counter[str] = Counter()
    pending = [(root, "")]
    while pending:
        element, above = pending.pop()
        path, text = f"{above}/{element.tag}", (element.text or "").strip()
        attributes = {(str(name), str(value)) for name, value in element.items() if name != SECRET}
        attributes.discard(_WRITTEN_SINCE.get(str(element.tag), ("", "")))
        said = "".join(f" {name}={value!r}" for name, value in sorted(attributes))
        elements[f"{path}{said}{f' {text!r}' if text else ''}"] += 1
        pending += [(child, path) for child in element]
    return elements
