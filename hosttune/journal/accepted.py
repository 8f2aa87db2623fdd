"""Results that somebody answers for (`validate --accept CHECK[:SUBJECT] --why TEXT --until DATE`), kept in the state.

One document, `accepted.json`, written whole; a new acceptance of the same result replaces the earlier one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import date

from hosttune.errors import BadInput
from hosttune.journal.state import load, mode_of, save
from hosttune.model.validation import Acceptance
from hosttune.model.values import Value, from_json, to_json

FILE = "accepted.json"
SCHEMA = "hosttune.accepted/v1"


class _AcceptedFile(Value, frozen=True, kw_only=True):
    """The file's document."""

    schema: str = SCHEMA
    results: tuple[Acceptance, ...] = ()


def read_accepted(folder: str) -> tuple[Acceptance, ...]:
    """Return what was accepted, from a state directory. Raises BadInput for a file that is not such a document."""
    path = os.path.join(folder, FILE)
    if not os.path.lexists(path):
        return ()
    acceptances = from_json(_AcceptedFile, load(path, what="hosttune's own record"), schema=SCHEMA, where=path).results
    for acceptance in acceptances:
        check_date(acceptance.until, f"{path}: {acceptance.check}")
    return acceptances


def check_date(text: str, where: str) -> None:
    """Refuse what is no date as 2026-12-31: dates are compared as texts, so not 20261231. Raises BadInput."""
    try:
        written = date.fromisoformat(text).isoformat()
    except ValueError:
        written = ""
    if written != text:
        raise BadInput(f"{text!r:.40} is no date", where=where, hint="write it as 2026-12-31")


def accept(folder: str, accepted: Iterable[Acceptance]) -> None:
    """Record acceptances. Raises BadInput if the record cannot be read or written."""
    known = {(acceptance.check, acceptance.subject): acceptance for acceptance in (*read_accepted(folder), *accepted)}
    path = os.path.join(folder, FILE)
    save(path, to_json(_AcceptedFile(results=tuple(known.values()))), make_folder=True, mode=mode_of(FILE))
