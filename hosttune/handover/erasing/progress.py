"""Where the erasure of a drive stands: one file for each drive, `handover/erase-BDF.json` in the state directory."""

from __future__ import annotations

import os
from typing import Literal

from hosttune.errors import BadInput, state_remedy
from hosttune.handover.erasing.sanitizing import Sanitize
from hosttune.journal.state import load, mode_of, save
from hosttune.machine.files import make_folder, remove_file, sync_folder
from hosttune.model.handover import HandoverStep
from hosttune.model.starts import FOLDER
from hosttune.model.values import Closed, Value, from_json, to_json

SCHEMA = "hosttune.erasure/v1"

# surveyed: it may be erased. digested: the digests from before are on the disk. sending: the erasing command may have
# been sent. running: the drive has taken it. reading: it has ended, what the drive gives back is compared. ended:
# `step` is set.
Phase = Literal["surveyed", "digested", "sending", "running", "reading", "ended"]


class EraseOrder(Closed, frozen=True, kw_only=True):
    """What is to be erased, and by what right.

    - `serial`: as the operator named it (`--erase SERIAL`). `handover`: the number of the hand-over.
    - `owner`: how it is known that the stopped guest had the drive ("guest a, from its definition"); None: not known.
    - `belonging`: the addresses of all functions of the hand-over, this one among them.
    """

    address: str
    serial: str
    handover: str
    owner: str | None
    belonging: tuple[str, ...]


class Digests(Value, frozen=True, kw_only=True):
    """Of one namespace, before it was erased: its size, and the digests of its places, joined by commas."""

    nsid: int
    bytes: int
    digests: str


class ErasureProgress(Closed, frozen=True, kw_only=True):
    """One erasure.

    - `serial`: as the drive gave it. `method`: as in the statement. `key`: of the places and their digests.
    - `run`: the sanitize. `formatted`: the namespaces whose format has ended.
    - `started`: ISO 8601 in UTC. `percent`: of a running sanitize; None: unknown, or a format.
    - `step`: the result, once it is final.
    """

    schema: str = SCHEMA
    order: EraseOrder
    serial: str
    method: str | None
    phase: Phase = "surveyed"
    key: str
    started: str
    estimate_seconds: float | None = None
    limit_seconds: float
    percent: int | None = None
    before: tuple[Digests, ...] = ()
    run: Sanitize | None = None
    formatted: tuple[int, ...] = ()
    step: HandoverStep | None = None


def erasing(folder: str, address: str) -> ErasureProgress | None:
    """Return where the erasure of a drive stands; None if there is none. Raises BadInput for a file that is damaged."""
    path = _path(folder, address)
    if not os.path.lexists(path):
        return None
    return from_json(ErasureProgress, load(path, what="hosttune's own record of an erasure"), schema=SCHEMA, where=path)


def keep(folder: str, progress: ErasureProgress) -> None:
    """Write where an erasure stands; on the disk when this returns. Raises BadInput."""
    path = _path(folder, progress.order.address)
    make_folder(folder, mode_of(""))
    make_folder(os.path.dirname(path), mode_of(f"{FOLDER}/"))
    save(path, to_json(progress), mode=mode_of(f"{FOLDER}/NAME"))
    sync_folder(os.path.dirname(path))


def forget_erasing(folder: str, address: str) -> None:
    """Remove the file of an erasure, whose step is in a statement now. Raises BadInput."""
    path = _path(folder, address)
    try:
        remove_file(path)
    except OSError as error:
        raise BadInput(f"cannot remove {path}: {error.strerror}", where=path, hint=state_remedy(error)) from error


def _path(folder: str, address: str) -> str:
    return os.path.join(folder, FOLDER, f"erase-{address}.json")
