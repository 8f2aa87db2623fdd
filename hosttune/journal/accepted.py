"""What the administrator answers for, kept in the state: results (`validate --accept CHECK[:SUBJECT] --why TEXT
--until DATE`), and devices that are not expected any more (`validate --forget BDF --why TEXT`).

One document, `accepted.json`, written whole; a new acceptance of the same result replaces the earlier one.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from datetime import date

from hosttune.errors import BadInput
from hosttune.journal.state import load, mode_of, save
from hosttune.model.clock import now_text
from hosttune.model.validation import Acceptance
from hosttune.model.values import Value, from_json, to_json
from hosttune.rules.checks.expected import Forgotten

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


# --- devices that are not expected -----------------------------------------------------------------------------
# Devices that the administrator removed from those expected here (`validate --forget BDF --why TEXT`), kept in the
# state.
# One document, `forgotten.json`, written whole; each address has who, when and why.

FORGOTTEN = "forgotten.json"
FORGOTTEN_SCHEMA = "hosttune.forgotten/v1"
MOST_WHY = 500  # characters


class _ForgottenFile(Value, frozen=True, kw_only=True):
    """The file's document."""

    schema: str = FORGOTTEN_SCHEMA
    devices: tuple[Forgotten, ...] = ()


def read_forgotten(folder: str) -> tuple[Forgotten, ...]:
    """Return the removed devices from a state directory. Raises BadInput for a file that is not such a document."""
    path = os.path.join(folder, FORGOTTEN)
    if not os.path.lexists(path):
        return ()
    return from_json(
        _ForgottenFile, load(path, what="hosttune's own record"), schema=FORGOTTEN_SCHEMA, where=path
    ).devices


def forget(folder: str, addresses: Iterable[str], why: str) -> None:
    """Record that these devices are no longer expected, as of now; replaces an earlier record of the same device.

    Raises BadInput if the record cannot be read or written.
    """
    now = now_text()
    known = {forgotten.address: forgotten for forgotten in read_forgotten(folder)}
    known |= {address: Forgotten(address=address, why=why, who=caller(), at=now) for address in addresses}
    document = _ForgottenFile(devices=tuple(known[address] for address in sorted(known)))
    save(os.path.join(folder, FORGOTTEN), to_json(document), make_folder=True, mode=mode_of(FORGOTTEN))


def caller() -> str:
    """Return the user, and the user who called sudo."""
    number = os.getuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        name = str(number)
    asked = os.environ.get("SUDO_USER", "")
    return f"{name} ({asked})" if asked and asked != name and asked.isprintable() else name
