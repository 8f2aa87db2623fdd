"""A second verifier of statements about devices between two tenants: from bytes and files alone to what is wrong.

Written from the contract's sentences about the hand-over and the table of subjects in docs/handover.md. It imports
nothing of what it judges: the canonical JSON, the digests, the times and the counting of starts are its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

STEPS = ("quarantined", "taken-back", "reset", "erased", "tested", "returned")
OUTCOMES = ("done", "not-supported", "not-needed", "failed", "unknown")
OF_HOST = ("host", "boot_id", "machine", "applied")
OF_DEVICE = ("address", "identity", "firmware", "driver", "epoch")
NAMESPACE = "hosttune-handover"
CLOCKS, LONGEST = timedelta(minutes=5), timedelta(days=30)
ADDRESS = re.compile(r"(?:[0-9a-f]{4}|[1-9a-f][0-9a-f]{4,7}):[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
SHA256 = re.compile(r"[0-9a-f]{64}")
ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

Fault = tuple[str, str]  # what it is about ("statement", "host", an address), and the reason


class Unparsable(Exception):
    """Not a statement at all."""


# --- the form ------------------------------------------------------------------------------------------------------


def parsed(data: bytes) -> dict[str, Any]:
    """A statement of the contract's form. Raises Unparsable."""
    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Unparsable(str(error)) from error
    _mapping(found, "statement")
    _need(found.get("_type") == "https://in-toto.io/Statement/v1", "_type")
    _need(found.get("predicateType") == "https://hosttune.dev/handover/v1", "predicateType")
    for subject in _list(found.get("subject"), "subject"):
        _mapping(subject, "subject")
        _need(isinstance(subject.get("name"), str), "subject.name")
        _sha256(_mapping(subject.get("digest"), "digest").get("sha256"))
    _predicate(_mapping(found.get("predicate"), "predicate"))
    return dict(found)


def _predicate(predicate: dict[str, Any]) -> None:
    for name in ("host", "boot_id"):
        _need(name in predicate, name)
    for name in ("host", "boot_id", "machine"):
        _text_or_none(predicate.get(name), name)
    _mapping(predicate.get("applied", {}), "applied")
    devices = _list(predicate.get("devices", []), "devices")
    for device in devices:
        _device(_mapping(device, "device"))
    addresses = [device["address"] for device in devices]
    _need(len(addresses) == len(set(addresses)), "a device twice")
    validation = predicate.get("validation")
    if validation is not None:
        _need(_whole(_mapping(validation, "validation").get("level")), "level")
        _need(validation.get("verdict") in ("pass", "warn", "fail", "unknown"), "verdict")
        _sha256(validation.get("sha256"))
    _need(isinstance(predicate.get("issued_at"), str), "issued_at")
    time_of(predicate["issued_at"])
    if predicate.get("expires_at") is not None:
        time_of(predicate["expires_at"])


def _device(device: dict[str, Any]) -> None:
    _need(isinstance(device.get("address"), str) and bool(ADDRESS.fullmatch(device["address"])), "address")
    _need(isinstance(device.get("identity"), str), "identity")
    for name in ("driver", "kind"):
        _text_or_none(device.get(name), name)
    firmware = device.get("firmware")
    if firmware is not None:
        _need(all(isinstance(one, str) for one in _mapping(firmware, "firmware").values()), "firmware")
    _need(device.get("epoch") is None or _whole(device["epoch"]), "epoch")
    _need(device.get("state") in ("clean", "quarantined"), "state")
    for step in _list(device.get("steps", []), "steps"):
        _need(_mapping(step, "step").get("step") in STEPS, "step")
        _need(step.get("outcome") in OUTCOMES, "outcome")
        for name in ("method", "why"):
            _text_or_none(step.get(name), name)
        if step.get("evidence") is not None:
            _mapping(step["evidence"], "evidence")


def time_of(text: object) -> datetime:
    """A time with its zone, in UTC. Raises Unparsable."""
    try:
        _need(isinstance(text, str), "time")
        found = datetime.fromisoformat(str(text))
        _need(found.tzinfo is not None, "time zone")
        return found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Unparsable(str(error)) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    _need(len(found) == len(pairs), "a key twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise Unparsable(name)


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise Unparsable(what)


def _mapping(value: Any, what: str) -> dict[str, Any]:
    _need(isinstance(value, dict), what)
    return dict(value)


def _list(value: Any, what: str) -> list[Any]:
    _need(isinstance(value, list), what)
    return list(value)


def _text_or_none(value: Any, what: str) -> None:
    _need(value is None or isinstance(value, str), what)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _sha256(value: Any) -> None:
    _need(isinstance(value, str) and bool(SHA256.fullmatch(value)), "sha256")


# --- digests -------------------------------------------------------------------------------------------------------


def canonical(value: Any) -> str:
    """Keys sorted, no spaces; every character as itself but those that JSON needs escaped (RFC 8259, 7)."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{canonical(key)}:{canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(ESCAPES.get(one, one if one >= " " else f"\\u{ord(one):04x}") for one in value) + '"'
    names: dict[Any, str] = {None: "null", True: "true", False: "false"}
    return names[value] if value is None or isinstance(value, bool) else repr(value)


def digest(fields: dict[str, Any]) -> str:
    """The sha256 of the canonical JSON, in hex."""
    return hashlib.sha256(canonical(fields).encode("utf-8")).hexdigest()


def subjects(predicate: dict[str, Any]) -> list[dict[str, Any]]:
    """The subjects that a predicate must have: the host, then each device."""
    host = {"machine": None, "applied": {}, **predicate}
    rows = [(predicate["host"] or "host", {name: host[name] for name in OF_HOST})]
    devices = predicate.get("devices", [])
    rows += [(device["address"], {name: device.get(name) for name in OF_DEVICE}) for device in devices]
    return [{"name": name, "digest": {"sha256": digest(fields)}} for name, fields in rows]


# --- what is wrong ---------------------------------------------------------------------------------------------------


def faults(statement: dict[str, Any], at: datetime) -> set[Fault]:
    """What a statement itself says against it, at a time in UTC."""
    return set(_faults(statement, at))


def _faults(statement: dict[str, Any], at: datetime) -> Iterator[Fault]:
    predicate = statement["predicate"]
    found = [{"name": one["name"], "digest": {"sha256": one["digest"]["sha256"]}} for one in statement["subject"]]
    if found != subjects(predicate):
        yield "statement", "subject"
    if not predicate.get("devices"):
        yield "statement", "no-device"
    for device in predicate.get("devices", []):
        outcomes = {name: {one["outcome"] for one in device.get("steps", []) if one["step"] == name} for name in STEPS}
        proven = all(one and one <= {"done", "not-needed"} for one in outcomes.values())
        if device["state"] != "clean" or not proven:
            yield device["address"], "not-clean"
    if time_of(predicate["issued_at"]) > at + CLOCKS:
        yield "statement", "future"
    if predicate.get("expires_at") is None:
        yield "statement", "no-expiry"
        return
    until = time_of(predicate["expires_at"])
    if until > at + LONGEST + CLOCKS:
        yield "statement", "future"
    if until <= at:
        yield "statement", "expired"


def live_faults(statement: dict[str, Any], root: Path, state: str) -> set[Fault]:
    """What the files of a host below `root` say against it; `state`: its state directory there."""
    return set(_live_faults(statement["predicate"], root, root / state / "handover"))


def _live_faults(predicate: dict[str, Any], root: Path, folder: Path) -> Iterator[Fault]:
    for name, path in (("host", "hostname"), ("boot_id", "random/boot_id")):
        if (root / f"proc/sys/kernel/{path}").read_text().strip() != predicate[name]:
            yield "host", name.removesuffix("_id")
    register = json.loads((folder / "register.json").read_text())["devices"]
    records = {one["address"]: one for one in register}
    lines = [line for name in ("starts", "own-starts") for line in _lines(folder / name)]
    for device in predicate["devices"]:
        address = device["address"]
        driver = root / f"sys/bus/pci/devices/{address}/driver"
        if (os.path.basename(os.readlink(driver)) if driver.is_symlink() else None) != device["driver"]:
            yield address, "driver"
        if device["epoch"] is None or device["firmware"] is None:
            yield address, "unknown"
        if sum(line.split(" ", 1)[0] in (address, "*") for line in lines) != device["epoch"]:
            yield address, "started"
        if records[address]["state"] != "clean":
            yield address, records[address]["state"]


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def is_signed(file: Path, signers: Path, identity: str) -> bool:
    """Whether FILE.sig is the signature of FILE, by a signer, in the namespace of statements."""
    argv = ["ssh-keygen", "-Y", "verify", "-n", NAMESPACE, "-f", str(signers), "-I", identity, "-s", f"{file}.sig"]
    return subprocess.run(argv, input=file.read_bytes(), capture_output=True, check=False).returncode == 0
