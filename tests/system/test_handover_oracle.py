"""Statements, judged twice: by hosttune, and by a verifier of the tests that was written from the contract alone."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from applyroots import STATE
from coursekills import ASKED, DRIVE, NIC, passing_all
from courses import Wiped, handed
from fleethandovers import Between
from fleethosts import HOSTTUNE
from handovers import DRIVE as OTHER
from handovers import GPU, SIGNER, Keys, host, live, statement
from hypothesis import given, settings
from hypothesis import strategies as st
from statement_oracle import Unparsable, canonical, faults, is_signed, live_faults, parsed, subjects
from sweeps import examples

from hosttune.errors import BadInput
from hosttune.handover.signing import Unclean, refuse_unclean
from hosttune.handover.statement import refuse_forged
from hosttune.handover.verify import verification
from hosttune.model.handover import Statement, canonical_json

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
SIGNED = statement(expires_at="2026-01-02T00:00:00+00:00").to_json()
OWN = {"subject", "no-device", "not-clean", "no-expiry", "expired", "future"}  # reasons of the statement itself


def test_the_oracle_imports_nothing_of_what_it_judges() -> None:
    text = (Path(__file__).parents[1] / "support" / "statement_oracle.py").read_text()
    assert "import hosttune" not in text
    assert "from hosttune" not in text


# --- a statement of a hand-over ------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no OpenSSH client")
def test_a_statement_of_a_hand_over_holds_for_both_until_the_next_one(tmp_path: Path) -> None:
    """Made on a scratch root, signed and verified by the command; an older one does not hold after the next."""
    between = Between(tmp_path, "h1")
    keys, first, second = Keys(tmp_path), tmp_path / "first.json", tmp_path / "second.json"
    shutil.copy(between.done, first)
    assert judged(between, keys, first) == (0, set())
    assert handed(between.root, ASKED, Wiped(), passing_all, out=str(between.done)).clean
    shutil.copy(between.done, second)
    assert judged(between, keys, second) == (0, set())
    assert judged(between, keys, first) == (1, {(DRIVE, "started"), (NIC, "started")})
    starts = between.root / STATE / "handover/starts"
    starts.write_text(starts.read_text() + f"{NIC} guest 2026-01-01T00:00:00Z vm\n")
    assert judged(between, keys, second) == (1, {(NIC, "started")})
    between.boots()
    assert judged(between, keys, second) == (1, {(NIC, "started"), ("host", "boot")})


def judged(between: Between, keys: Keys, file: Path) -> tuple[int, set[tuple[str, str]]]:
    """The command's exit code for a statement that is signed now; what the oracle finds, which the command must too."""
    ran("handover", "sign", str(file), "--key", str(keys.key), "--expires", "1h")
    words = ("--signers", str(keys.signers), "--identity", SIGNER, "--root", str(between.root), "-o", "json")
    done = ran("handover", "verify", str(file), *words)
    told = {(one["subject"], one["reason"]) for one in json.loads(done.stdout)["reasons"]}
    found = parsed(file.read_bytes())
    document = json.loads(ran("discover", "--root", str(between.root), "-o", "json").stdout)
    assert found["predicate"]["machine"] == document["digest"]
    assert is_signed(file, keys.signers, SIGNER)
    assert not is_signed(file, keys.signers, "eve@example.com")
    wrong = faults(found, datetime.now(UTC)) | live_faults(found, between.root, STATE)
    # What hosttune finds beside them follows from them: firmware that was read before a start or a boot is unknown.
    assert wrong <= told
    assert {reason for _, reason in told - wrong} <= ({"unknown"} if wrong else set())
    return done.returncode, wrong


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    """One of hosttune's commands."""
    return subprocess.run([HOSTTUNE, *words], capture_output=True, text=True, check=False)


# --- any other document --------------------------------------------------------------------------------------------


def hosttunes(data: bytes) -> set[tuple[str, str]] | None:
    """The reasons that hosttune has against the statement itself; None if it is none. `sign` refuses accordingly."""
    try:
        found = Statement.from_json(data)
    except BadInput:
        return None
    answer = verification(found, live(host()), (), SIGNER, at=NOW)
    reasons: set[tuple[str, str]] = {(one.subject, one.reason) for one in answer.reasons if one.reason in OWN}
    kinds = {reason for _, reason in reasons}
    assert refused(lambda: refuse_forged(found, "x")) == ("subject" in kinds)
    assert refused(lambda: refuse_unclean(found, "x")) == bool(kinds & {"no-device", "not-clean"})
    return reasons


def refused(call: Callable[[], None]) -> bool:
    try:
        call()
    except (BadInput, Unclean):
        return True
    return False


def oracles(data: bytes) -> set[tuple[str, str]] | None:
    """The same, by the oracle."""
    try:
        return faults(parsed(data), NOW)
    except Unparsable:
        return None


def test_a_good_statement_is_good_for_both() -> None:
    assert hosttunes(SIGNED.encode()) == oracles(SIGNED.encode()) == set()


def changed(change: Callable[[dict[str, Any]], Any], *, again: bool = True) -> bytes:
    """The signed statement with a change; `again`: with digests of its own."""
    document = json.loads(SIGNED)
    change(document["predicate"])
    if again:
        document["subject"] = subjects(document["predicate"])
    return json.dumps(document).encode()


def steps_of(predicate: dict[str, Any]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = predicate["devices"][0]["steps"]
    return steps


BY_HAND: dict[str, tuple[bytes, set[tuple[str, str]] | None]] = {
    "a key twice": (SIGNED.replace('"epoch": 3', '"epoch": 9, "epoch": 3').encode(), None),
    "cut": (SIGNED.encode()[:-9], None),
    "other digests": (changed(lambda one: one["devices"][0].update(epoch=4), again=False), {("statement", "subject")}),
    "a device without a subject": (
        changed(lambda one: one["devices"].append({**one["devices"][0], "address": "0000:99:00.0"}), again=False),
        {("statement", "subject")},
    ),
    "a subject without a device": (changed(lambda one: one["devices"].pop(), again=False), {("statement", "subject")}),
    "no device": (changed(lambda one: one.update(devices=[])), {("statement", "no-device")}),
    "clean without a step": (changed(lambda one: steps_of(one).pop()), {(GPU, "not-clean")}),
    "clean without steps": (changed(lambda one: steps_of(one).clear()), {(GPU, "not-clean")}),
    "the second time failed": (
        changed(lambda one: steps_of(one).append({"step": "reset", "outcome": "failed"})), {(GPU, "not-clean")},
    ),
    "not supported": (changed(lambda one: steps_of(one)[3].update(outcome="not-supported")), {(GPU, "not-clean")}),
    "not needed": (changed(lambda one: steps_of(one)[1].update(outcome="not-needed")), set()),
    "quarantined": (changed(lambda one: one["devices"][1].update(state="quarantined")), {(OTHER, "not-clean")}),
    "without expiry": (changed(lambda one: one.update(expires_at=None)), {("statement", "no-expiry")}),
    "expired elsewhere": (
        changed(lambda one: one.update(expires_at="2026-01-01T12:59:59+12:00")), {("statement", "expired")},
    ),
    "not yet expired elsewhere": (changed(lambda one: one.update(expires_at="2025-12-31T13:00:01-12:00")), set()),
    "without a time zone": (changed(lambda one: one.update(expires_at="2026-01-02T00:00:00")), None),
    "of next year": (changed(lambda one: one.update(issued_at="2027-01-01T00:00:00Z")), {("statement", "future")}),
    "for a year": (changed(lambda one: one.update(expires_at="2027-01-01T00:00:00Z")), {("statement", "future")}),
    "a started word": (changed(lambda one: one["devices"][0].update(epoch=True)), None),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_what_is_wrong_is_told_by_both(name: str) -> None:
    data, expected = BY_HAND[name]
    assert oracles(data) == expected
    assert hosttunes(data) == expected


def places_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inner for place in places_of(part, (*path, key)))]


PLACES = [path for path in places_of(json.loads(SIGNED)) if path]
VALUES = st.sampled_from(
    [
        None, True, False, 0, 1, 3, -1, 1 << 60, 2.5, "", "x", "é\x1b\u2028", [], ["x"], {}, {"x": None},
        {"b": 1, "a": [2]},
        "done", "not-needed", "failed", "unknown", "clean", "quarantined", "reset", GPU, "0000:41:00.1", "f" * 64,
        "2026-01-01T00:30:00Z", "2026-01-01T02:00:00+00:30", "2025-12-31T23:59:59-05:00", "2026-02-01T00:00:00Z",
    ]
)  # fmt: skip
EDITS = st.tuples(st.sampled_from(PLACES), st.sampled_from(["put", "drop", "repeat"]), VALUES)


def edited(edits: list[tuple[tuple[Any, ...], str, Any]]) -> dict[str, Any]:
    """The signed statement after edits; those whose place is gone by then do nothing."""
    document: dict[str, Any] = json.loads(SIGNED)
    for (*above, last), what, value in edits:
        place: Any = document
        try:
            for key in above:
                place = place[key]
            if what == "put":
                place[last] = copy.deepcopy(value)
            elif what == "drop":
                del place[last]
            elif isinstance(place, list):
                place.append(copy.deepcopy(place[last]))
        except (KeyError, IndexError, TypeError):
            continue
    return document


@given(st.lists(EDITS, min_size=1, max_size=3), st.booleans())
@settings(max_examples=examples(50, full=5000), deadline=None)
def test_both_say_the_same_of_any_document(edits: list[Any], again: bool) -> None:
    """`again`: whoever forged it has also made the digests anew."""
    document = edited(edits)
    data = json.dumps(document).encode()
    if again and oracles(data) is not None:
        document["subject"] = subjects(document["predicate"])
        data = json.dumps(document).encode()
    assert hosttunes(data) == oracles(data)


TEXT = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


@given(JSON)
@settings(max_examples=examples(40, full=2000), deadline=None)
def test_both_have_the_same_canonical_form(value: Any) -> None:
    assert canonical(value).encode() == canonical_json(value)
