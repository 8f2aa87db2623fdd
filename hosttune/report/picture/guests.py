"""Guests as the picture needs them: one value for a guest that a plan places and for one that is there now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hosttune.model.host import Host, RunningGuest
from hosttune.model.plan import Plan, PlannedGuest
from hosttune.model.text import count
from hosttune.model.values import CpuSet, Value, format_size, parse_cpus
from hosttune.report.plan import guest_facts

GUEST_COLOURS = 12


class MemoryShare(Value, frozen=True, kw_only=True):
    """Memory of a guest on one host node. `page_bytes` None: no huge pages, or unknown."""

    node: int | None
    memory_bytes: int
    page_bytes: int | None = None

    @property
    def text(self) -> str:
        """The size, and how many huge pages that is."""
        size = format_size(self.memory_bytes)
        if not self.page_bytes or self.page_bytes <= 4096:
            return size
        return f"{size} ({self.memory_bytes // self.page_bytes} × {format_size(self.page_bytes)} pages)"


class PictureGuest(Value, frozen=True, kw_only=True):
    """A guest in the picture: a letter, a colour (0 to GUEST_COLOURS - 1), its name, and what it has.

    `planned` is its part of the plan; None for a guest that is only there now. `mig` has (GPU, instance) pairs.
    `pinned`: all its CPUs are in `cpus`; `placed`: all its memory is in `shares`, each with its node.
    """

    letter: str
    colour: int
    name: str
    facts: str = ""
    cpus: CpuSet = CpuSet()
    emulator: CpuSet = CpuSet()
    shares: tuple[MemoryShare, ...] = ()
    devices: tuple[str, ...] = ()
    mig: tuple[tuple[str, str], ...] = ()
    planned: PlannedGuest | None = None
    pinned: bool = True
    placed: bool = True


def holders_of(host: Host, plan: Plan | None = None, names: Sequence[str] = ()) -> tuple[PictureGuest, ...]:
    """Return the guests in order: those of the plan, then the host's own that the plan does not place anew.

    The place of a name in `names` decides letter and colour, so that two pictures agree; other guests come after.
    """
    planned = plan.guests if plan else ()
    placed = {guest.name for guest in planned}
    guests: list[PlannedGuest | RunningGuest] = [*planned]
    guests += [guest for guest in host.guests or () if guest.name not in placed]
    first = {name: n for n, name in enumerate(dict.fromkeys(names))}
    holders: list[PictureGuest] = []
    after = len(first)
    for guest in guests:
        number = first.get(guest.name, after)
        after += number == after
        holders.append(_planned(guest, number) if isinstance(guest, PlannedGuest) else _present(guest, number))
    return tuple(holders)


def _planned(guest: PlannedGuest, number: int) -> PictureGuest:
    return PictureGuest(
        letter=_letter(number),
        colour=number % GUEST_COLOURS,
        name=guest.name,
        facts=guest_facts(guest).replace(" x ", " × "),
        cpus=_all(pin.cpus for pin in guest.vcpu_pins),
        emulator=_all((guest.emulator_cpus, *guest.iothread_cpus)),
        shares=tuple(
            MemoryShare(node=node, memory_bytes=cell.memory_bytes, page_bytes=guest.page_bytes)
            for cell in guest.cells
            for node in sorted(parse_cpus(cell.host_nodes))[:1]
        ),
        devices=tuple(device.address for device in guest.devices if device.kind != "mdev"),
        mig=tuple((assignment.gpu, f"{assignment.profile} at {assignment.start}") for assignment in guest.mig),
        planned=guest,
    )


def _present(guest: RunningGuest, number: int) -> PictureGuest:
    pinned = len({pin.vcpu for pin in guest.vcpu_pins or ()})
    vcpus = guest.vcpus if guest.vcpus is not None else pinned or None
    how = "not pinned" if not pinned else "pinned" if vcpus is None or pinned >= vcpus else f"({pinned} pinned)"
    facts = [guest.state or "state unknown"]
    facts += [f"{vcpus} vCPUs {how}"] if vcpus is not None else []
    facts += [format_size(guest.memory_bytes)] if guest.memory_bytes is not None else []
    facts += [count(len(guest.devices), "device")] if guest.devices else []
    return PictureGuest(
        letter=_letter(number),
        colour=number % GUEST_COLOURS,
        name=guest.name,
        facts=", ".join(facts),
        cpus=_all(pin.cpus for pin in guest.vcpu_pins or ()),
        emulator=parse_cpus(guest.emulator_cpus),
        shares=tuple(
            MemoryShare(node=share.node, memory_bytes=share.memory_bytes, page_bytes=share.page_bytes)
            for share in guest.memory or ()
            if share.memory_bytes is not None
        ),
        devices=tuple(dict.fromkeys(guest.devices)),
        pinned=bool(pinned) and (vcpus is None or pinned >= vcpus),
        placed=bool(guest.memory)
        and all(None not in (guest_memory.node, guest_memory.memory_bytes) for guest_memory in guest.memory or ()),
    )


def _all(sets: Iterable[str | Iterable[int]]) -> CpuSet:
    return CpuSet(CpuSet().union(*map(parse_cpus, sets)))


def _letter(number: int) -> str:
    """Return the n-th letter: A to Z, then AA, AB, …"""
    letter = ""
    while number >= 0:
        letter = chr(ord("A") + number % 26) + letter
        number = number // 26 - 1
    return letter
