"""The journal of a hand-over: which step of which device was begun, with what limit, and what came of it.

The same form as the journal of a transaction (`hosttune.journal`), in a folder of its own, so that `recover` and
`revert` leave it alone: a hand-over is not rolled back but ended by another `hosttune handover`. A step is a record of
kind "handover" with the device as its target and the step's name as its action. Its `old` has what was found before,
its `new` the limit, the estimate and when it began, its `after` method and evidence.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from hosttune.errors import BadInput, Refused, state_remedy
from hosttune.handover.erasing import erasing
from hosttune.handover.targets import Target
from hosttune.journal import OPEN_STATES, Journal, Record, Store, Transaction
from hosttune.journal.state import mode_of
from hosttune.machine.files import make_folder
from hosttune.model.clock import now_text
from hosttune.model.handover import HandoverStep
from hosttune.model.starts import FOLDER
from hosttune.model.values import to_builtins
from hosttune.model.verification import CourseStatus, CourseStep
from hosttune.transaction.site import Site

VERB, KIND = "handover", "handover"
WAIT_SECONDS = 30.0  # for another hosttune that changes this host


def courses(store: Store) -> Store:
    """Return the store of the hand-overs of a state directory; its folder is made. Raises Refused."""
    found = store.inside(FOLDER)
    try:
        make_folder(store.folder, mode_of(""))
        make_folder(found.folder, mode_of(f"{FOLDER}/"))
    except OSError as error:
        what = f"cannot write the state: {error.strerror}"
        raise Refused(what, where=found.folder, hint=state_remedy(error)) from error
    return found


def last_course(store: Store) -> Transaction | None:
    """Return the newest hand-over of a state directory, finished or not; None if there was none. Raises Refused."""
    transactions = store.inside(FOLDER).transactions()
    return transactions[-1] if transactions else None


def original_methods(store: Store, address: str, now: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the reset methods that a device had before a hand-over that was cut off left it with one of them."""
    for course in reversed(store.inside(FOLDER).transactions()):
        for record in course.records:
            if record.target == address and isinstance(record.old, Mapping):
                names = record.old.get("reset_methods")
                kept = tuple(names) if isinstance(names, (list, tuple)) else ()
                left = course.state in OPEN_STATES and now is not None and set(now) < set(kept)
                return kept if left else now
    return now


def running_with(store: Store, address: str) -> int | None:
    """Return the number of the hand-over that a process carries out now with a device; None if there is none."""
    if not store.inside(FOLDER).is_locked():
        return None
    last = last_course(store)
    if last is None or last.state not in OPEN_STATES or all(record.target != address for record in last.records):
        return None
    return last.header.number


@contextlib.contextmanager
def state_lock(store: Store, seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold the lock of a store, which another hosttune may hold for a short time. Raises Refused after `seconds`."""
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(store.locked())
                break
            except Refused:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)
        yield


def begin_step(
    journal: Journal, number: int, target: Target, name: str, limit: float | None, estimate: float | None
) -> None:
    """Record that a step is about to begin. Raises JournalFailed."""
    journal.write(
        "intent", step=number, kind=KIND, target=target.address, actions=(name,), scope="runtime", needed=True,
        old={"reset_methods": list(target.methods or ()), "back": target.back, "guest": target.guest},
        new={"limit_seconds": limit, "estimate_seconds": estimate, "began": now_text()},
    )  # fmt: skip


def end_step(journal: Journal, number: int, step: HandoverStep) -> None:
    """Record what came of a step. Raises JournalFailed."""
    value: dict[str, Any] = {"method": step.method, "evidence": to_builtins(step.evidence)}
    journal.write("done", step=number, outcome=step.outcome, value=value, why=step.why)


def statement_path(folder: str, number: int) -> str:
    """Return where the state directory keeps the statement of a hand-over."""
    return os.path.join(folder, FOLDER, f"statement-{number:06d}.json")


def course_status(site: Site) -> CourseStatus | None:
    """Return where the newest hand-over of a host stands; None if there was none. Raises Refused."""
    last = last_course(site.store) if site.store is not None else None
    if site.store is None or last is None:
        return None
    path = statement_path(site.store.folder, last.header.number)
    folder = site.store.folder
    return CourseStatus(
        number=last.header.number,
        began=last.header.at,
        running=site.store.inside(FOLDER).is_locked(),
        ended=last.state in ("applied", "kept"),
        statement=path if os.path.exists(path) else None,
        steps=tuple(_course_step(folder, record) for record in last.records),
    )


def _course_step(folder: str, record: Record) -> CourseStep:
    times = record.new if isinstance(record.new, Mapping) else {}
    return CourseStep(
        address=record.target,
        step=record.actions[0] if record.actions else "?",
        outcome=record.outcome,
        why=record.why,
        limit_seconds=times.get("limit_seconds"),
        estimate_seconds=times.get("estimate_seconds"),
        began=times.get("began"),
        percent=_percent(folder, record.target) if record.outcome is None and record.actions == ("erased",) else None,
    )


def _percent(folder: str, address: str) -> int | None:
    """Return how much of a drive's sanitize is done; None if that is not known."""
    try:
        known = erasing(folder, address)
    except BadInput:
        return None
    return known.percent if known is not None else None
