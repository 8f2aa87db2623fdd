"""The controller's half of a hand-over: what is named for a host, its statement as a file, and the signature.

RESULTS/HOST/statement.json is what the host stated, whole and unchanged, until `sign` adds the expiry and writes
statement.json.sig. Read by the action plugin `hosttune`. The key stays on the controller.
"""

# Copyright: hosttune's authors. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import contextlib
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping

STATEMENT, SIGNATURE = "statement.json", "statement.json.sig"
ADDRESS = re.compile(r"[0-9A-Fa-f]{1,8}:[0-9A-Fa-f]{1,2}:[0-9A-Fa-f]{1,2}\.[0-7]")
WORDS = {0: "ok", 1: "no", 2: "bad-input", 3: "refused", 70: "internal"}
SIGN_SECONDS = 120
CLOCKS = datetime.timedelta(hours=1)  # how far a host's clock may differ from this one
# How long a hand-over may take: the host has a limit for each step, and this controller must not come before it. A
# drive has 48.5 hours: an overwrite of which it tells no time.
STEPS_SECONDS, DRIVE_SECONDS, MOST_SECONDS = 43200.0, 174600.0, 6.5 * 86400.0
LATER = (
    "a device that was not returned yet stays quarantined, and an erasure that a drive has begun goes on there:"
    " hosttune fleet handover --retry waits for it"
)
MOST_BYTES = 4 << 20  # of a statement, of a list of signers, of revoked keys


class Unfit(Exception):
    """A variable or a file that cannot be used: one line that names it."""


def named(value: object, name: str) -> list[str]:
    """The texts of `hosttune_handover` or `hosttune_erase`. Raises Unfit."""
    found = [] if value is None else [value] if isinstance(value, str) else value
    bad = not isinstance(found, (list, tuple)) or not all(isinstance(one, str) and one.strip() for one in found)
    if bad or any("\0" in one or one.startswith("-") for one in found):
        raise Unfit(f"hosttune_{name} is not a list of texts: {value!r:.80}")
    return [one.strip() for one in found]


def seconds(erase: list[str]) -> float:
    """How long a hand-over may take that erases these drives, one after the other."""
    return min(MOST_SECONDS, STEPS_SECONDS + DRIVE_SECONDS * len(set(erase)))


def words(things: list[str], erase: list[str], to_vfio: bool, level: int, inside: str | None = None) -> list[str]:
    """The arguments of `hosttune handover`: addresses are devices, anything else is a guest's name. Raises Unfit."""
    guests = [one for one in things if not ADDRESS.fullmatch(one)]
    if not things:
        raise Unfit("hosttune_handover names no device and no guest")
    if len(guests) > 1:
        raise Unfit(f"hosttune_handover names two guests, {guests[0]} and {guests[1]}: hand one over after the other")
    found = [word for one in things for word in ("--guest" if one in guests else "--device", one)]
    found += [word for one in erase for word in ("--erase", one)]
    if inside is not None and not inside.startswith("/"):
        raise Unfit(f"hosttune_test_guest is not an absolute path on the host: {inside!r:.80}")
    found += ["--test-guest", inside] if inside is not None else []
    return [*found, *(["--to-vfio"] if to_vfio else []), "--level", str(min(2, max(1, level)))]


def refuse_incomplete(asked: Mapping, texts: Mapping) -> None:
    """Raise Unfit before anything is done on the host, if its statement could not be signed or verified in the end."""
    for name in ("key", "signers", "identity"):
        if not texts.get(name):
            raise Unfit(f"hosttune_{name} is not set: without it no statement can be signed and verified")
    if asked.get("results") is None:
        raise Unfit("hosttune_results is not set: there is no place for the statement")
    for name in ("key", "signers", "revoked"):
        data = content(texts[name], f"hosttune_{name}") if texts.get(name) else None
        if data is not None and not data.strip(b" \t\r\n\0"):
            raise Unfit(f"hosttune_{name}: {texts[name]} is empty")


def refuse_shared(extra: Mapping) -> None:
    """Raise Unfit for devices that extra variables name: these are the same for every host, and win over its own."""
    for name in ("hosttune_handover", "hosttune_erase"):
        if name in extra:
            raise Unfit(f"{name} is an extra variable (-e), so the same for every host: write it for each host")


def mark_drained(phase: str, given: object, answer: dict, path: str) -> None:
    """Note in a host's record `undrain` that a hand-over left it drained, until one gives it back."""
    ended = isinstance(given, Mapping) and given.get("outcome") == "ok"
    if not ended and (phase == "course" or left_drained(path)):
        answer["left_by"] = "hand-over"


def left_drained(path: str) -> bool:
    """Whether a record `undrain` says that a hand-over left the host drained; so also if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return json.load(file)["fleet"].get("left_by") is not None
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True


def content(path: str, name: str) -> bytes:
    """The bytes of a file on the controller. Raises Unfit."""
    real = os.path.abspath(os.path.expanduser(path))
    try:
        if os.path.getsize(real) > MOST_BYTES:
            raise Unfit(f"{name}: {path} is larger than {MOST_BYTES >> 20} MiB")
        with open(real, "rb") as file:
            return file.read()
    except OSError as error:
        raise Unfit(f"{name}: cannot read {path}: {error.strerror}") from error


def own_command(given: str | None) -> str | None:
    """The controller's hosttune: the given one, else that beside Ansible, else that on PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "hosttune")
    return given or (beside if os.path.exists(beside) else shutil.which("hosttune"))


def begin(folder: str) -> None:
    """Remove the statement of an earlier hand-over of this host. Raises OSError."""
    for name in (SIGNATURE, STATEMENT):  # the signature first: never one beside another text
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))


def keep(folder: str, text: str) -> None:
    """Write the statement as the host printed it, whole or not at all. Raises OSError."""
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".{STATEMENT}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, os.path.join(folder, STATEMENT))


def sign(folder: str, texts: Mapping, things: list[str]) -> dict:
    """Sign the statement of a host on the controller: an outcome, and why. Raises Unfit."""
    path = os.path.join(folder, STATEMENT)
    try:
        stated = json.loads(content(path, "the statement"))
        other = foreign(folder, stated, things) or untimely(folder, stated)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise Unfit(f"{path} is not a statement: {error}"[:300]) from error
    if other is not None:
        return {"outcome": "refused", "why": other}
    program = own_command(texts.get("controller_command"))
    if program is None:
        raise Unfit(
            "no command hosttune on the controller: pip install hosttune there, or set hosttune_controller_command"
        )
    key = os.path.abspath(os.path.expanduser(texts["key"]))
    argv = [program, "handover", "sign", path, "--key", key, "--expires", texts.get("expires") or "24h"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SIGN_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"outcome": "unknown", "why": f"hosttune handover sign: {error}"[:300]}
    why = " ".join(line.strip().removeprefix("error: ") for line in done.stderr.splitlines()[:4] if line.strip())
    outcome = WORDS.get(done.returncode, "unknown")
    return {"outcome": outcome, "why": None if outcome == "ok" else why[:500], "exit_code": done.returncode}


def foreign(folder: str, statement: Mapping, things: list[str]) -> str | None:
    """Why a statement is not that of this host, by what the controller knows of it; None if nothing speaks against it.

    A host could state what is another one's, to get it signed. `fleet discover` has recorded which machine this is.
    """
    predicate = statement.get("predicate") or {}
    found = {str(one.get("address")).lower() for one in predicate.get("devices") or []}
    missing = [one for one in things if ADDRESS.fullmatch(one) and one.lower() not in found]
    if missing:
        return f"the statement does not have {', '.join(missing)}, which hosttune_handover names"
    try:
        with open(os.path.join(folder, "discover.json"), encoding="utf-8") as file:
            known = json.load(file)
    except (OSError, ValueError):
        return None
    for name, stated, recorded in (
        ("machine", predicate.get("machine"), known.get("digest")),
        ("host name", predicate.get("host"), known.get("hostname")),
    ):
        if recorded is not None and stated != recorded:
            return f"the {name} of the statement is {stated}, and fleet discover recorded {recorded} for this host"
    return None


def untimely(folder: str, statement: Mapping) -> str | None:
    """Why a statement was not made by the hand-over that this controller asked for, by the times; None if it was.

    A host whose clock is far behind would find its statement valid for so much longer; an older one of its own was made
    before something that has happened since.
    """
    try:
        with open(os.path.join(folder, "course.json"), encoding="utf-8") as file:
            asked = json.load(file)["fleet"]
        began = datetime.datetime.strptime(asked["started"], "%Y-%m-%dT%H:%M:%S%z")
        ended = began + datetime.timedelta(seconds=asked["seconds"])
        issued = datetime.datetime.fromisoformat(statement["predicate"]["issued_at"])
        early, late = issued < began - CLOCKS, issued > ended + CLOCKS
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        return f"whether the statement is of this hand-over cannot be told: {error!r}"[:300]
    if not early and not late:
        return None
    when = f"before {began.isoformat()}, when its hand-over began" if early else "after its hand-over had ended"
    return f"the statement was issued at {issued.isoformat()}, {when}: it is an older one, or a clock is wrong"


def of_this(folder: str, answer: dict) -> dict:
    """The answer of a host that verified; unknown, if what it found valid is not the statement that it was sent."""
    if answer.get("outcome") != "ok":
        return answer
    found = json.loads(answer["document"])
    predicate = json.loads(content(os.path.join(folder, STATEMENT), "the statement"))["predicate"]
    sent = {name: predicate.get(name) for name in ("host", "issued_at", "expires_at")}
    sent["devices"] = [one["address"] for one in predicate["devices"]]
    other = [name for name, value in sent.items() if found.get(name) != value]
    if not other:
        return answer
    why = f"it verified another statement: its {', '.join(other)} is not that of the one that was sent"
    return {"outcome": "unknown", "why": why, "changed": False, "exit_code": answer.get("exit_code")}


def carried(folder: str, texts: Mapping) -> dict:
    """What the host needs to verify its statement: texts, and bytes in base64. Raises Unfit."""
    found = {
        "statement": content(os.path.join(folder, STATEMENT), "the statement"),
        "signature": content(os.path.join(folder, SIGNATURE), "the signature"),
        "signers": content(texts["signers"], "hosttune_signers"),
        "revoked": content(texts["revoked"], "hosttune_revoked") if texts.get("revoked") else None,
    }
    coded = {name: base64.b64encode(data).decode() for name, data in found.items() if data is not None}
    return {**coded, "identity": texts["identity"]}
