"""Devices that the administrator removed from those expected here (`validate --forget BDF --why TEXT`), kept in the
state.

One document, `forgotten.json`, written whole; each address has who, when and why.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable

from hosttune.journal.state import load, mode_of, save
from hosttune.model.clock import now_text
from hosttune.model.values import Value, from_json, to_json
from hosttune.rules.checks.expected import Forgotten

FILE = "forgotten.json"
SCHEMA = "hosttune.forgotten/v1"
MOST_WHY = 500  # characters


class _ForgottenFile(Value, frozen=True, kw_only=True):
    """The file's document."""

    schema: str = SCHEMA
    devices: tuple[Forgotten, ...] = ()


def read_forgotten(folder: str) -> tuple[Forgotten, ...]:
    """Return the removed devices from a state directory. Raises BadInput for a file that is not such a document."""
    path = os.path.join(folder, FILE)
    if not os.path.lexists(path):
        return ()
    return from_json(_ForgottenFile, load(path, what="hosttune's own record"), schema=SCHEMA, where=path).devices


def forget(folder: str, addresses: Iterable[str], why: str) -> None:
    """Record that these devices are no longer expected, as of now; replaces an earlier record of the same device.

    Raises BadInput if the record cannot be read or written.
    """
    now = now_text()
    known = {forgotten.address: forgotten for forgotten in read_forgotten(folder)}
    known |= {address: Forgotten(address=address, why=why, who=caller(), at=now) for address in addresses}
    document = _ForgottenFile(devices=tuple(known[address] for address in sorted(known)))
    save(os.path.join(folder, FILE), to_json(document), make_folder=True, mode=mode_of(FILE))


def caller() -> str:
    """Return the user, and the user who called sudo."""
    number = os.getuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        name = str(number)
    asked = os.environ.get("SUDO_USER", "")
    return f"{name} ({asked})" if asked and asked != name and asked.isprintable() else name
