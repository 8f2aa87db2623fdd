"""What is kept of a network function between hand-overs, to be compared with: `handover/network-BDF.json` in the state.

`before` is what a hand-over compares with: as it was when the function was last clean, as a person accepted it
(`handover release`), as it was before its last guest was started (`recorded_start`), or, if there is none of these, as
it was found when its first hand-over began. `seen` is what the newest hand-over read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from hosttune.errors import BadInput, WriteFailed
from hosttune.handover.network.tools import Configuration
from hosttune.journal.state import load, mode_of, save
from hosttune.machine.capture import Archive
from hosttune.machine.files import make_folder, remove_file, sync_folder
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.clock import now_text
from hosttune.model.starts import FOLDER, OWN_STARTS, STARTS, count_quarantines, no_start_before
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


# --- before the guest got it -----------------------------------------------------------------------------------
# What a network function was like before the guest got it that had it until its hand-over: `handover/start-BDF`.
# The hook of libvirt writes it (templates/libvirt-hook.sh), also when hosttune itself starts a guest: before the
# first start with the function since it was last quarantined, and only if no process had it open through VFIO before
# and after it was read. A record counts if it is whole, is of the same device, and the records of starts had no start
# with it since then. What a guest did that was started before starts were recorded here is not known.
# The form: `hosttune-start 1`, `at TIME`, `sizes BYTES BYTES` (of the two records of starts), `guest NAME`; then
# parts of the machine as a capture has them: `> PATH TARGET` is a link, `: PATH` a file or an answer, whose lines
# follow, each after a space; `end`.

_HEAD = re.compile(
    r"hosttune-start 1\nat (?P<at>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z)\nsizes (?P<starts>[0-9]{1,12})"
    r" (?P<own>[0-9]{1,12})\nguest (?P<guest>.*)\n(?P<parts>(?:[>: ].*\n)*)end\n"
)
_IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device")


class Start(msgspec.Struct, frozen=True):
    """A record that counts. `guest`: its name, for people. `at`: ISO 8601 in UTC. `machine`: what was read of it."""

    guest: str
    at: str
    machine: System

    @property
    def text(self) -> str:
        """What the record is, for people."""
        return f"as it was before guest {self.guest} was started at {self.at}"

    def before(self, facts: FunctionFacts) -> Before:
        """Return facts of the record, to be compared with."""
        return Before(facts=facts, origin="start", text=self.text, at=self.at)


def recorded_start(system: System, folder: str, address: str, physical: str | None = None) -> Start | None:
    """Return what a function was like before its last guest got it; None if there is no record that counts.

    `folder`: the state directory. `physical`: the physical function of a virtual one. Raises Unreadable.
    """
    path = _start_path(folder, address)
    if not os.path.lexists(path):
        return None
    try:
        data = load(path, what="a record of a start", size="record of a start")
        match = _HEAD.fullmatch(data.decode("utf-8", "replace"))
        if match is None or not _counts(folder, match, address, physical):
            return None
        machine = _machine(match["parts"], path)
    except BadInput:
        return None  # damaged: as if there were none
    if any(machine.read(file) != system.read(file) for file in (sysfs.function(address, name) for name in _IDS)):
        return None
    guest = "".join(letter if letter.isprintable() else "?" for letter in match["guest"])
    return Start(guest=guest[:80], at=match["at"], machine=machine)


def forget_start(folder: str, address: str) -> None:
    """Remove a record, which was taken over or does not count: the next start is recorded anew. Raises WriteFailed."""
    path = _start_path(folder, address)
    if os.path.lexists(path):
        try:
            remove_file(path)
        except OSError as error:
            raise WriteFailed(path, error.strerror or str(error), error.errno) from error


def _start_path(folder: str, address: str) -> str:
    return os.path.join(folder, FOLDER, f"start-{address}")


def _counts(folder: str, match: re.Match[str], address: str, physical: str | None) -> bool:
    """Return whether no start was before the record since the last hand-over, and no hand-over since the record."""
    sizes = int(match["starts"]), int(match["own"])
    texts = [_text(os.path.join(folder, name)) for name in (STARTS, OWN_STARTS)]
    if any(len(text) < size for text, size in zip(texts, sizes, strict=True)):
        return False
    starts, own = (text[:size].decode("utf-8", "replace") for text, size in zip(texts, sizes, strict=True))
    later = texts[0][sizes[0] :].decode("utf-8", "replace")  # with the hand-over that runs now
    return count_quarantines(later, address) <= 1 and no_start_before(starts, own, address, physical)


def _text(path: str) -> bytes:
    return load(path, what="the record of starts", size="starts") if os.path.lexists(path) else b""


def _machine(parts: str, where: str) -> System:
    """Return the parts of a machine that a record has. Raises BadInput."""
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    place = ""
    for line in parts.split("\n")[:-1]:
        kind = line[0]
        if kind == " " and place:
            files[place] += line[1:].encode() + b"\n"
            continue
        place, _, target = line[2:].partition(" ")
        if not place.startswith("/") or ".." in place.split("/") or place in files or (kind == ">") != bool(target):
            raise BadInput("not understood", where=where, hint="it does not count")
        if kind == ">":
            links[place], place = target, ""
        else:
            files[place] = b""
    return Archive(files, links, where)
