"""What is kept of a network function between hand-overs, to be compared with: `handover/network-BDF.json` in the state.

`before` is what a hand-over compares with: as it was when the function was last clean, as a person accepted it
(`handover release`), as it was before its last guest was started (`atstart`), or, if there is none of these, as it was
found when its first hand-over began. `seen` is what the
newest hand-over read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import msgspec

from hosttune.handover.network.tools import Configuration
from hosttune.journal.state import load, mode_of, save
from hosttune.machine.files import make_folder, sync_folder
from hosttune.model.clock import now_text
from hosttune.model.starts import FOLDER
from hosttune.model.values import Closed, Value, from_json, to_json

SCHEMA = "hosttune.network-function/v1"
Origin = Literal["clean", "accepted", "start", "found"]


class FunctionFacts(Closed, frozen=True, kw_only=True):
    """What was read of a function.

    - `addresses`: what is burnt in, by name ("permanent address", "node_guid"). `configuration`: of its firmware.
    - `settings`: of a virtual function, as its physical one keeps them. `firmware`: versions, before a start; the
      register has those of each hand-over. None: not read, or it has none of its own.
    """

    addresses: Mapping[str, str] | None = None
    configuration: Configuration | None = None
    settings: Mapping[str, str | int | bool] | None = None
    firmware: Mapping[str, str] | None = None

    MAPPINGS = ("addresses", "settings", "firmware")


class Before(Value, frozen=True, kw_only=True):
    """Facts with where they are from: `origin`, the text for people, and the time, ISO 8601 in UTC."""

    facts: FunctionFacts
    origin: Origin
    text: str
    at: str


class KnownFunction(Value, frozen=True, kw_only=True):
    """What is kept of one function. `identity`: as in plans: another device at its address has nothing of it."""

    schema: str = SCHEMA
    address: str
    identity: str
    before: Before | None = None
    seen: FunctionFacts | None = None


def known(folder: str, address: str, identity: str) -> KnownFunction:
    """Return what is kept of a function; nothing if another device was there. Raises BadInput for a damaged file."""
    path = _path(folder, address)
    empty = KnownFunction(address=address, identity=identity)
    if not os.path.lexists(path):
        return empty
    function = from_json(
        KnownFunction, load(path, what="hosttune's own record of a network function"), schema=SCHEMA, where=path
    )
    return function if (function.address, function.identity) == (address, identity) else empty


def keep(folder: str, value: KnownFunction) -> None:
    """Write what is kept of a function; on the disk when this returns. Raises BadInput."""
    path = _path(folder, value.address)
    make_folder(folder, mode_of(""))
    make_folder(os.path.dirname(path), mode_of(f"{FOLDER}/"))
    save(path, to_json(value), mode=mode_of(f"{FOLDER}/NAME"))
    sync_folder(os.path.dirname(path))


def settle(folder: str, address: str, identity: str, origin: Origin, text: str) -> None:
    """Make what the newest hand-over read what the next one compares with. Raises BadInput."""
    function = known(folder, address, identity)
    if function.seen is not None:
        before = Before(facts=function.seen, origin=origin, text=text, at=now_text())
        keep(folder, msgspec.structs.replace(function, before=before))


def _path(folder: str, address: str) -> str:
    return os.path.join(folder, FOLDER, f"network-{address}.json")
