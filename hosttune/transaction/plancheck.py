"""Checks of a plan document before it is used: plan files are untrusted input."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from hosttune.errors import BadInput, HosttuneError
from hosttune.hypervisor.definition import is_domain_name
from hosttune.journal.force import FOLLOWING
from hosttune.model.host import Host
from hosttune.model.intent import check as check_intent
from hosttune.model.intent import is_guest_name
from hosttune.model.limits import check_count, limit
from hosttune.model.plan import AdoptedGuest, Plan, PlannedGuest, check_guest
from hosttune.model.values import MAX_ID, MAX_SIZE, CpuSet

_DEVICE_KINDS = ("gpu", "nic", "nvme", "vf", "mdev", "nvswitch", "other")
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"

_SMALLEST_HUGE, _LARGEST_HUGE = 64 << 10, 16 << 30  # bytes; smallest: arm64 (hugetlbpage.rst), largest: POWER


class Incomplete(HosttuneError):
    """A plan with unplaced guests: applying the rest would not be what the user asked for."""


def check_plan(plan: Plan) -> None:
    """Raise BadInput for a plan that the planner cannot have written, Incomplete for a plan with unplaced guests.

    Those in force that stay as they are do not count.
    """
    for left_out in plan.unplaced:
        if left_out.refused:
            raise BadInput(left_out.why[0], where=f"plan: guest {left_out.guest}", hint="; ".join(left_out.relaxation))
    if lines := [
        f"  guest {left_out.guest}: {'; '.join(left_out.why)}" for left_out in plan.unplaced if not left_out.stays
    ]:
        what = "guests without a place:\n" + "\n".join(lines)
        raise Incomplete(
            what, where="plan: unplaced", hint="hosttune plan says what would make room; change the intent"
        )
    adopted = {guest.name for guest in plan.adoptions}  # they have names that hosttune would not give
    own = tuple(guest for guest in plan.intent.guests if guest.name not in adopted)
    check_intent(replace(plan.intent, guests=own), where="plan: intent")
    _check_actions(plan)
    cpus: set[str] = set()
    devices: set[str] = set()
    _check_adoptions(plan, cpus, devices)
    seen: set[str] = set(adopted)
    for i, guest in enumerate(plan.guests):
        at = f"plan: guests[{i}]"
        if not is_guest_name(guest.name):
            raise BadInput(f"{guest.name!r} is not a guest name", where=f"{at}.name", hint="plan again")
        if guest.name in seen:
            raise BadInput(f"a second guest named {guest.name!r}", where=f"{at}.name", hint="plan again")
        seen.add(guest.name)
        _check_guest(guest, at, cpus, devices)
        _check_cells(guest, at)
        _check_values(guest, at)


def check_places(plan: Plan, host: Host) -> None:
    """Raise BadInput for a plan with a guest on CPUs or nodes that this host does not have, as far as is known."""
    cpus, nodes = CpuSet(cpu.id for cpu in host.cpus), CpuSet(node.id for node in host.numa_nodes)
    for i, guest in enumerate(plan.guests):
        named = (*(pin.cpus for pin in guest.vcpu_pins), guest.emulator_cpus, *guest.iothread_cpus)
        for what, known, lists in (
            ("CPU", cpus, named),
            ("node", nodes, [cell.host_nodes for cell in guest.cells]),
        ):
            strange = CpuSet.parse(",".join(lists)) - known
            if known and strange:
                where = f"plan: guests[{i}]"
                raise BadInput(f"this host has no {what} {min(strange)}", where=where, hint="plan again on this host")


def _check_guest(guest: PlannedGuest, at: str, cpus: set[str], devices: set[str]) -> None:
    """Check pins, pages and devices. `cpus` and `devices`: those of the plan's earlier guests. Raises BadInput."""
    check_guest(guest, at)
    _check_pins(guest, at, cpus)
    page = guest.page_bytes
    if page is not None and (not _SMALLEST_HUGE <= page <= _LARGEST_HUGE or page & (page - 1)):
        raise BadInput(f"{page} is not a size of a huge page", where=f"{at}.page_bytes", hint="plan again")
    for n, device in enumerate(guest.devices):
        if device.kind not in _DEVICE_KINDS:
            hint = f"one of {', '.join(_DEVICE_KINDS)}"
            raise BadInput(f"{device.kind!r} is not a kind of device", where=f"{at}.devices[{n}].kind", hint=hint)
        if device.address in devices:
            raise BadInput(f"a second use of {device.address}", where=f"{at}.devices[{n}]", hint="plan again")
        devices.add(device.address)


def _check_cells(guest: PlannedGuest, at: str) -> None:
    """Check that the cells have each vCPU once, and memory, and that devices and topology fit them. Raises BadInput."""
    vcpus = [vcpu for cell in guest.cells for vcpu in CpuSet.parse(cell.vcpus)]
    count = len(guest.vcpu_pins)
    if sorted(vcpus) != list(range(count)):
        raise BadInput("its cells do not have each vCPU once", where=f"{at}.cells", hint="plan again")
    for n, cell in enumerate(guest.cells):
        if not 0 < cell.memory_bytes <= MAX_SIZE or cell.memory_bytes % (guest.page_bytes or 1024):
            what = f"{cell.memory_bytes} is not a size of whole pages"
            raise BadInput(what, where=f"{at}.cells[{n}].memory_bytes", hint="plan again")
    cells = {None, *(cell.id for cell in guest.cells)}
    strange = next((n for n, device in enumerate(guest.devices) if device.guest_cell not in cells), None)
    if strange is not None:
        raise BadInput("the guest has no such cell", where=f"{at}.devices[{strange}].guest_cell", hint="plan again")
    made = guest.topology
    if made is not None and made.sockets * made.dies * made.cores * made.threads != count:
        raise BadInput(f"not a topology of {count} vCPUs", where=f"{at}.topology", hint="plan again")


def _check_adoptions(plan: Plan, cpus: set[str], devices: set[str]) -> None:
    check_count(len(plan.adoptions), "guests", "plan: adoptions")
    names: set[str] = set()
    for i, adopted in enumerate(plan.adoptions):
        at = f"plan: adoptions[{i}]"
        if not is_domain_name(adopted.name) or adopted.guest.name != adopted.name or adopted.name in names:
            raise BadInput(f"{adopted.name!r} is not the name of one guest", where=f"{at}.name", hint="plan again")
        names.add(adopted.name)
        _check_guest(adopted.guest, f"{at}.guest", cpus, devices)
        for field, sound in _sound(adopted):
            if not sound:
                raise BadInput("not as hosttune writes it", where=f"{at}.{field}", hint="plan again")


def _sound(adopted: AdoptedGuest) -> Iterator[tuple[str, bool]]:
    """Yield the fields of an adoption, and whether the planner can have written each."""
    texts = [text for change in adopted.changes for text in (change.element, change.was, change.becomes, change.why)]
    cells = [adopted_cell.cell for adopted_cell in adopted.cells]
    numbers = {adopted_cell.id for adopted_cell in adopted.cells if 0 <= adopted_cell.id < limit("cells")}
    topology = adopted.guest.topology
    levels = (topology.sockets, topology.dies, topology.cores, topology.threads) if topology else ()
    yield "uuid", re.fullmatch(_UUID, adopted.uuid) is not None
    yield "definition_sha256", re.fullmatch("[0-9a-f]{64}", adopted.definition_sha256) is not None
    yield "changes", all(map(str.isprintable, (*texts, *adopted.managers)))
    yield "changes: effect", all(change.effect in ("live", "next start") for change in adopted.changes)
    yield "pins", 0 < len(adopted.pins) == len(adopted.guest.vcpu_pins) <= limit("vcpus")
    yield "pins: vcpu", {planned_pin.vcpu for planned_pin in adopted.pins} == set(range(len(adopted.pins)))
    yield "pins: cpus", len({_ids(pin.cpus) for pin in adopted.pins if len(_ids(pin.cpus)) == 1}) == len(adopted.pins)
    yield "cells", 0 < len(numbers) == len(cells) and tuple(cells) == adopted.guest.cells
    yield "cells: host_nodes", all(_ids(cell.host_nodes) and _ids(cell.vcpus) for cell in cells)
    yield "cells: memory_bytes", all(0 < cell.memory_bytes < 1 << 63 for cell in cells)
    yield "cells: distances", all(0 < distance < 256 for cell in cells for distance in cell.distances)
    yield "foreign_cpus", bool(_ids(adopted.foreign_cpus))
    yield "guest.topology", all(0 < level <= limit("vcpus") for level in levels)


def _ids(text: str) -> CpuSet:
    """Return the ids of a list; none for a text that is not one."""
    try:
        return CpuSet.parse(text)
    except ValueError:
        return CpuSet()


def _check_pins(guest: PlannedGuest, at: str, cpus: set[str]) -> None:
    """Check that each vCPU is pinned to one CPU, which no other vCPU of the plan has (`cpus`). Raises BadInput."""
    if sorted(pin.vcpu for pin in guest.vcpu_pins) != list(range(len(guest.vcpu_pins))):
        raise BadInput("its vCPUs are not each pinned once", where=f"{at}.vcpu_pins", hint="plan again")
    for n, pin in enumerate(guest.vcpu_pins):
        if not pin.cpus.isdecimal() or pin.cpus in cpus:
            raise BadInput(
                f"{pin.cpus!r} is not one CPU of its own", where=f"{at}.vcpu_pins[{n}].cpus", hint="plan again"
            )
        cpus.add(pin.cpus)


def _check_values(guest: PlannedGuest, at: str) -> None:
    """Check the words and numbers of which only some have a meaning. Raises BadInput."""
    for name, word, known in (
        ("accelerator", guest.accelerator, ("kvm", "tcg")),
        ("firmware", guest.firmware, ("efi", "bios")),
        ("machine", guest.machine, ("q35",)),
        *((f"steps[{n}].when", step.when, ("start", "stop")) for n, step in enumerate(guest.steps)),
    ):
        if word not in known:
            raise BadInput(f"{word!r} is none", where=f"{at}.{name}", hint=f"one of {', '.join(known)}")
    for name, value, least, most in (
        ("fabric_partition", guest.fabric_partition, 0, MAX_ID),
        ("allocation_threads", guest.allocation_threads, 1, len(guest.vcpu_pins)),
        ("physical_address_bits", guest.physical_address_bits, 32, 64),
        *(
            (f"cells[{n}].distances", distance, 10, 254)
            for n, cell in enumerate(guest.cells)
            for distance in cell.distances
        ),
    ):
        if value is not None and not least <= value <= most:
            raise BadInput(f"{value} is not within {least} to {most}", where=f"{at}.{name}", hint="plan again")


def _check_actions(plan: Plan) -> None:
    for i, action in enumerate(plan.actions):
        at = f"plan: actions[{i}]"
        if action.id != f"{action.kind}:{action.target}":
            raise BadInput(f"id {action.id!r} is not its kind and target", where=f"{at}.id", hint="plan again")
        if action.effect not in ("now", "reboot"):
            raise BadInput(f"{action.effect!r} is not an effect", where=f"{at}.effect", hint="now or reboot")
        if action.kind in FOLLOWING:  # derived from a plan's guests and actions: one could name another guest
            raise BadInput(f"{action.kind} cannot be an action of a plan", where=at, hint="plan again")
