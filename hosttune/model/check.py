"""Checks that refuse a host document that no machine can have: duplicates, malformed addresses, absurd numbers.

Values from discovery are correct by construction and are not checked. A document can also be written by hand or by
another program. Pure: reads nothing. Only the first fault is reported, with its path in the document.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from hosttune.errors import BadInput
from hosttune.model.hostfields import HostFields
from hosttune.model.limits import check_count
from hosttune.model.values import MAX_ID, MAX_SIZE, Value, check_address, parse_cpus
from hosttune.model.vgpu import is_type_id

# (path in the document, what is wrong there, what to do)
Fault = tuple[str, str, str]

_DEVICES = ("pci", "gpus", "nics", "nvme", "nvswitches")
_MAX_DISTANCE = 255  # one byte in the firmware's table (ACPI 6.5, 5.2.17 SLIT)
_ID = (0, MAX_ID)
_SOME_BYTES = (1, MAX_SIZE)
_BITS = (1, 64)
_SPEED = (0, 1024)  # GT/s; PCI Express 7.0 is 128
_WIDTH = (0, 64)  # lanes; the specification ends at 32
_CELSIUS = (-300, 300)
# Minimum and maximum of the numbers, by field. Any other field is a count, a rate or bytes: 0 to MAX_SIZE.
_BOUNDS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("id", "core", "package", "die", "numa_node", "llc", "l2", "node", "vcpu", "cpus"), _ID),
    **dict.fromkeys(("emulator_cpus", "iommu_group", "index", "module_id", "vcpus", "max_vcpus"), _ID),
    **dict.fromkeys(("size_bytes", "page_bytes", "default_hugepage_bytes"), _SOME_BYTES),
    **dict.fromkeys(("physical_address_bits", "virtual_address_bits", "address_bits"), _BITS),
    **dict.fromkeys(("speed_gts", "max_speed_gts"), _SPEED),
    **dict.fromkeys(("width", "max_width"), _WIDTH),
    **dict.fromkeys(("temperature_c", "temperature_margin_c", "temperature_slowdown_c"), _CELSIUS),
    "memory_temperature_c": _CELSIUS,
    "module_ids": _ID,
    "mode": (0, 2),  # FABRIC_MODE; in all other places, mode is a word
}
_ANY = (0, MAX_SIZE)


def check_host(host: HostFields, where: str) -> None:
    """Check a host document and refuse values that no machine can have.

    A device without an entry in `pci` is accepted, and so is a CPU whose node has no entry in `numa_nodes`: a document
    may omit any field.

    Raises BadInput for the first fault, with its path.
    """
    check_counts(host, where)
    parts = (
        _numbers(host, "$"),
        _doubles(host),
        _misspelt(host),
        _no_vgpu_types(host),
        _no_cpu_lists(host),
        _distances(host),
        _loops(host),
    )
    for path, what, hint in chain.from_iterable(parts):
        raise BadInput(what, where=f"{where}: {path}", hint=hint)


def check_counts(host: HostFields, where: str) -> None:
    """Raise BadInput if a document has more CPUs, nodes, functions or guests than any machine has."""
    for count, name, at in (
        (len(host.cpus), "CPUs", "cpus"),
        (len(host.numa_nodes), "NUMA nodes", "numa_nodes"),
        (len(host.pci), "PCI functions", "pci"),
        (len(host.gpus), "GPUs of a host", "gpus"),
        *((len(getattr(host, kind)), "PCI functions", kind) for kind in ("nics", "nvme", "nvswitches")),
        (len(host.guests or ()), "guests of a host", "guests"),
    ):
        check_count(count, name, f"{where}: $.{at}")


def _numbers(value: Value, at: str) -> Iterator[Fault]:
    """Yield a fault for each number that is out of bounds, in every field at any depth."""
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if field is None or isinstance(field, str | bool):
            continue
        here = f"{at}.{name}"
        if isinstance(field, Value):
            yield from _numbers(field, here)
        elif isinstance(field, tuple):
            for i, part in enumerate(field):
                if isinstance(part, Value):
                    yield from _numbers(part, f"{here}[{i}]")
                elif isinstance(part, int):
                    yield from _number(part, name, f"{here}[{i}]")
        elif isinstance(field, int | float):
            yield from _number(field, name, here)
        elif isinstance(field, Mapping) and name != "distances":
            for key, part in field.items():
                if isinstance(part, int):
                    yield from _number(part, name, f"{here}.{key}")


def _number(number: float, name: str, at: str) -> Iterator[Fault]:
    least, most = _BOUNDS.get(name, _ANY)
    if not least <= number <= most:
        yield at, f"{number} is out of bounds", f"write a number from {least} to {most}, or null for unknown"


def _doubles(host: HostFields) -> Iterator[Fault]:
    """Yield a fault for each name, id or address that must be unique and occurs twice."""
    yield from _double("$.cpus", "id", [cpu.id for cpu in host.cpus])
    yield from _double("$.numa_nodes", "id", [node.id for node in host.numa_nodes])
    for n, node in enumerate(host.numa_nodes):
        sizes = [pages.size_bytes for pages in node.hugepages or ()]
        yield from _double(f"$.numa_nodes[{n}].hugepages", "size_bytes", sizes)
    for kind in _DEVICES:
        yield from _double(f"$.{kind}", "address", [device.address for device in getattr(host, kind)])
    for n, function in enumerate(host.pci):
        yield from _double(f"$.pci[{n}].bars", "index", [bar.index for bar in function.bars or ()])
    yield from _double_vgpus(host)
    partitions = host.fabric.partitions or () if host.fabric else ()
    yield from _double("$.fabric.partitions", "id", [partition.id for partition in partitions])
    guests = host.guests or ()
    yield from _double("$.guests", "name", [guest.name for guest in guests])
    for n, guest in enumerate(guests):
        yield from _double(f"$.guests[{n}].vcpu_pins", "vcpu", [pin.vcpu for pin in guest.vcpu_pins or ()])


def _double(at: str, key: str, values: Sequence[Hashable]) -> Iterator[Fault]:
    if len(set(values)) == len(values):
        return
    first: dict[Hashable, int] = {}
    for i, value in enumerate(values):
        if first.setdefault(value, i) != i:
            yield f"{at}[{i}].{key}", f"{value!r} is there twice, first in {at}[{first[value]}]", "list each once"


def _double_vgpus(host: HostFields) -> Iterator[Fault]:
    """Yield a fault for each vGPU type or function, and each GPU that has them, that occurs twice.

    A function belongs to one GPU only.
    """
    cards = host.vgpu.gpus if host.vgpu else ()
    yield from _double("$.vgpu.gpus", "address", [card.address for card in cards])
    first: dict[str, str] = {}
    for i, card in enumerate(cards):
        yield from _double(f"$.vgpu.gpus[{i}].types", "id", [vgpu_type.id for vgpu_type in card.types or ()])
        for n, function in enumerate(card.functions):
            at = f"$.vgpu.gpus[{i}].functions[{n}]"
            if first.setdefault(function.address, at) != at:
                what = f"{function.address!r} is there twice, first in {first[function.address]}"
                yield f"{at}.address", what, "list each once"


def _misspelt(host: HostFields) -> Iterator[Fault]:
    """Yield a fault for each address that is malformed or not in the kernel's form.

    Two spellings of one address would count as two devices.
    """
    for at, address in _addresses(host):
        try:
            check_address(address, at)
        except BadInput as error:
            yield at, error.what, error.hint


def _no_vgpu_types(host: HostFields) -> Iterator[Fault]:
    """Yield a fault for each malformed id of a vGPU type: ids become parts of paths and of commands for people."""
    for i, card in enumerate(host.vgpu.gpus if host.vgpu else ()):
        for n, vgpu_type in enumerate(card.types or ()):
            if not is_type_id(vgpu_type.id):
                yield (
                    f"$.vgpu.gpus[{i}].types[{n}].id",
                    f"{vgpu_type.id!r} is not a vGPU type",
                    "a number, or nvidia-NUMBER",
                )


def _addresses(host: HostFields) -> Iterator[tuple[str, str]]:
    for kind in _DEVICES:
        for i, device in enumerate(getattr(host, kind)):
            yield f"$.{kind}[{i}].address", device.address
    for i, function in enumerate(host.pci):
        at = f"$.pci[{i}]"
        upstream = function.link.upstream if function.link else None
        optional = (
            ("parent", function.parent),
            ("physfn", function.physfn),
            ("link.upstream.address", upstream.address if upstream else None),
        )
        yield from ((f"{at}.{name}", address) for name, address in optional if address is not None)
        yield from _listed(f"{at}.virtfns", function.virtfns)
    for i, gpu in enumerate(host.gpus):
        yield from ((f"$.gpus[{i}].peers[{n}].address", peer.address) for n, peer in enumerate(gpu.peers or ()))
    yield from ((f"$.nics[{i}].physfn", nic.physfn) for i, nic in enumerate(host.nics) if nic.physfn is not None)
    for i, guest in enumerate(host.guests or ()):
        yield from _listed(f"$.guests[{i}].devices", guest.devices)
    for i, source in enumerate(host.sources or ()):
        yield from ((f"$.sources[{i}].beyond[{n}].address", seen.address) for n, seen in enumerate(source.beyond))
        yield from _listed(f"$.sources[{i}].lacking", source.lacking)
    for i, card in enumerate(host.vgpu.gpus if host.vgpu else ()):
        yield f"$.vgpu.gpus[{i}].address", card.address
        yield from _listed(f"$.vgpu.gpus[{i}].functions", [function.address for function in card.functions])


def _listed(at: str, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    return ((f"{at}[{n}]", text) for n, text in enumerate(texts))


def _no_cpu_lists(host: HostFields) -> Iterator[Fault]:
    """Yield a fault for each CPU list that cannot be parsed.

    Many functions have the same text, so each text is parsed once.
    """
    good: set[str] = set()
    for at, text in _cpu_lists(host):
        if text in good:
            continue
        try:
            parse_cpus(text)
        except ValueError as error:
            yield at, f"not a CPU list: {error}", 'write the kernel\'s list format, for example "0-3,8"'
        good.add(text)


def _cpu_lists(host: HostFields) -> Iterator[tuple[str, str]]:
    yield "$.cpu_model.present", (host.cpu_model.present if host.cpu_model else None) or ""
    for i, node in enumerate(host.numa_nodes):
        yield f"$.numa_nodes[{i}].cpus", node.cpus or ""
    for i, function in enumerate(host.pci):
        yield f"$.pci[{i}].local_cpus", function.local_cpus or ""
    for i, guest in enumerate(host.guests or ()):
        at = f"$.guests[{i}]"
        for n, pin in enumerate(guest.vcpu_pins or ()):
            if isinstance(pin.cpus, str):
                yield f"{at}.vcpu_pins[{n}].cpus", pin.cpus
        if isinstance(guest.emulator_cpus, str):
            yield f"{at}.emulator_cpus", guest.emulator_cpus
        yield from _listed(f"{at}.iothread_cpus", guest.iothread_cpus or ())
    for i, applied in enumerate(host.in_force.guests if host.in_force else ()):
        yield from ((f"$.in_force.guests[{i}].places.{name}", text) for name, text in applied.places.id_lists)


def _distances(host: HostFields) -> Iterator[Fault]:
    """Yield a fault for each distance that is not 1 to 255, or that does not belong to a node."""
    for i, node in enumerate(host.numa_nodes):
        for key, distance in (node.distances or {}).items():
            at = f"$.numa_nodes[{i}].distances.{key}"
            if not (key.isascii() and key.isdecimal() and len(key) < 8 and str(int(key)) == key):
                yield at, f"{key!r} is not a node number", "name each node by its id"
            elif not 1 <= distance <= _MAX_DISTANCE:
                yield at, f"distance {distance}", f"write 1 to {_MAX_DISTANCE} (10 is local), or leave it out"


def _loops(host: HostFields) -> Iterator[Fault]:
    """Yield a fault for each bridge that is its own ancestor: the parents of every function must end at a root bus."""
    above = {function.address: function.parent for function in host.pci}
    ended: set[str] = set()
    for i, function in enumerate(host.pci):
        path: set[str] = set()
        address: str | None = function.address
        while address is not None and address not in ended:
            if address in path:
                yield f"$.pci[{i}].parent", f"{address} is above itself", "parent is the bridge directly above"
                break
            path.add(address)
            address = above.get(address)
        ended |= path
