"""`hosttune handover` as one call: choose the devices, ask, carry out the course, and return the statement."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

import msgspec

from hosttune.errors import BadInput, Declined
from hosttune.handover import cleaning, gpumemory, network, record
from hosttune.handover.calls import recording
from hosttune.handover.cleaning import Cleaning, can_erase
from hosttune.handover.course import Course, Tools, begun
from hosttune.handover.partitions import active_partitions
from hosttune.handover.targets import Asked, Target, chosen
from hosttune.handover.testguest import TestGuest, goes_in, remove_left
from hosttune.journal.register import record_devices
from hosttune.journal.state import save
from hosttune.machine.system import System
from hosttune.model.handover import Statement
from hosttune.model.host import Host
from hosttune.model.validation import Validation
from hosttune.model.values import Value
from hosttune.settings.drivers import VFIO
from hosttune.transaction.guards import Person
from hosttune.transaction.site import Site, writable_store
from hosttune.transaction.writing import Say, interruptible

_STATUS_SECONDS = 1.0  # `handover status` looks for a moment whether the lock is held
Here = tuple[Site, Callable[[], Host]]
Confirm = Callable[[Sequence[str]], bool]


class Handed(Value, frozen=True, kw_only=True):
    """What a hand-over ended with: the statement, and where it is. `clean`: it covers every device.

    `refused`: the devices that must not be erased, each with its reason: nothing was sent to them.
    """

    statement: Statement
    path: str
    clean: bool
    refused: tuple[str, ...] = ()


class HandoverOptions(msgspec.Struct, frozen=True):
    """`out`: where else to write the statement. `cleaning` None: the usual one. `validate`: by level.

    `confirm`: asks a person to do a step that hosttune does not do; None: nobody is there. `test_guest`: see `Tools`.
    """

    out: str | None
    cleaning: Cleaning | None
    validate: Callable[[int], Validation]
    confirm: Person | None = None
    test_guest: TestGuest | None = None


def lines_of(here: Here, asked: Asked, test_guest: TestGuest | None = None) -> tuple[str, ...]:
    """Return what a hand-over would do, one line a device, and what is in its way; changes nothing.

    Raises BadInput, Refused.
    """
    site, discover = here
    host = discover()
    return tuple(_lines(site, host, chosen(site, host, asked), asked, test_guest))


def hand_over(here: Here, asked: Asked, options: HandoverOptions, confirm: Confirm, say: Say) -> Handed:
    """Take devices from the last tenant to the next. Raises BadInput and Refused before anything is changed."""
    site, discover = here
    store = writable_store(site)
    if options.out is not None:
        # Raise BadInput for a file that could not be written at the end, hours later.
        folder = os.path.dirname(options.out) or "."
        if os.path.isdir(options.out) or not os.access(options.out if os.path.exists(options.out) else folder, os.W_OK):
            raise BadInput(f"cannot write {options.out}", where="--out", hint="name a file in a folder that exists")
    with record.state_lock(record.courses(store), _STATUS_SECONDS), interruptible():
        left = remove_left(site, store)
        if left is not None:
            say(f"removed what a hand-over left that was cut off: {left}")
        host = discover()
        targets = tuple(
            msgspec.structs.replace(target, methods=record.original_methods(store, target.address, target.methods))
            for target in chosen(site, host, asked)
        )
        if not confirm(tuple(_lines(site, host, targets, asked, options.test_guest))):
            raise Declined("not begun: answered no", where="prompt", hint="nothing was changed")
        last = record.last_course(store)
        number = last.header.number + 1 if last is not None else 1
        with record.state_lock(store):  # the register is there before anything that proves that there was one
            record_devices(store.folder, ())
        with begun(site, store, number) as journal:
            cleaning = options.cleaning or Cleaning()
            tools = Tools(discover, options.validate, cleaning, options.confirm, options.test_guest)
            course = Course(site, store, journal, number, targets, tools, asked.level, say)
            statement = course.run()
    if options.out is not None:
        save(options.out, statement.to_json())
    clean = all(device.state == "clean" for device in statement.predicate.devices)
    path = options.out or record.statement_path(store.folder, number)
    return Handed(statement=statement, path=path, clean=clean, refused=tuple(course.refused))


def _lines(
    site: Site, host: Host, targets: Sequence[Target], asked: Asked, test_guest: TestGuest | None
) -> Iterable[str]:
    for target in targets:
        inside = test_guest if goes_in(site.system, target, test_guest) else None
        method = cleaning.method_of(target.methods, target.weak)
        asks = gpumemory.announced(site.system, target)
        erased = f"erase serial number {target.serial}" if target.serial else "erase"
        if not can_erase(target):
            erased = _NO_WAY
        elif target.kind == "nic":
            erased = _compared(site.system, site.store.folder if site.store is not None else "", target)
        words = [
            f"{target.address} ({target.kind}{f', of guest {target.guest}' if target.guest else ''}): quarantine",
            f"reset ({method}{asks})" if method else "no reset that clears it: it stays quarantined",
            *_middle(target, erased, asked.level, inside),
            "reset",
            f"return to {target.back or 'no driver'}",
        ]
        yield ", ".join(words) + ("; an earlier hand-over of it was not finished" if target.again else "")
        functions = host.index.pci[target.address].virtfns if target.kind in ("nic", "gpu") else None
        if functions:
            yield f"{target.address}: its virtual functions are removed first: {', '.join(functions)}"
        active = active_partitions(host, target.address) if target.kind == "gpu" else ()
        for number in active:
            yield (
                f"{target.address}: fabric partition {number} is active: deactivated after the reset (fmpm -d {number})"
            )
        if target.back is None or "vfio" not in target.back:
            where = "without a driver" if target.back is None else f"on {target.back}"
            yield f"{target.address} {_UNRECORDED.format(where=where)}"
    found = recording(site, host)
    if found is None or not found.active:
        why = found.why if found is not None else "the hook of libvirt cannot be read"
        yield f"every device stays quarantined: starts of guests are not recorded: {why} (setting libvirt_hook: true)"


def _compared(system: System, folder: str, target: Target) -> str:
    """Return what is done about the settings of a network function."""
    if target.physical is not None:
        return f"put its settings back ({network.goes_back_to(system, folder, target, target.physical)})"
    return f"compare addresses and firmware configuration ({network.compared_with(system, folder, target)})"


def _middle(target: Target, erased: str, level: int, inside: TestGuest | None) -> tuple[str, ...]:
    """Return what is done between the two resets."""
    if inside is None:
        bound = f"bind {target.driver}" if target.driver else "no known driver of the host: it stays quarantined"
        return bound, erased, f"validate --level {level}"
    image = f"{inside.image.path} ({inside.image.format}, {inside.firmware})"
    search = "search its memory in test guests" if can_erase(target) else _NO_WAY
    return (f"leave it on {VFIO} for test guests of {image}", search, f"validate --guest --level {level} in one")


_NO_WAY = "no way to erase it is known: it stays quarantined"
_UNRECORDED = (
    f"stays quarantined: {{where}} uses by the host are not recorded, so that no statement about it can hold"
    f" (--to-vfio returns it to {VFIO})"
)
