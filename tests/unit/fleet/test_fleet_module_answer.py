"""What a playbook says in a line of a command that ended, and what its diff shows: the words, not the outcome."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

COLLECTION = Path(__file__).resolve().parents[3] / "playbooks/collections/ansible_collections/hosttune/host"
PATH = COLLECTION / "plugins/module_utils/hosttune_answer.py"


@pytest.fixture(scope="module")
def answer() -> ModuleType:
    """The file as the action plugin takes it: it is in no package."""
    spec = importlib.util.spec_from_file_location("hosttune_answer", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("err", "why"),
    [
        ("error: lock held\nwhere: /var/lib/hosttune\n   do: wait\n", "lock held (/var/lib/hosttune)"),
        (
            "error: version 2 is not known\nwhere: -: version\n   do: x\n",
            "version 2 is not known (hosttune_intent: version)",
        ),
        ("error: it is no YAML\nwhere: -\n   do: x\n", "it is no YAML (hosttune_intent)"),
        ("error: no YAML: mapping\n  in line 3\n     ^\nwhere: -\n   do: x\n", "no YAML: mapping (hosttune_intent)"),
        ("error: x\nwhere: -rf\n   do: x\n", "x (-rf)"),
        ("error: stale:\n  a: 1\n  b: 2\nwhere: plan\n   do: x\n", "stale: a: 1; b: 2 (plan)"),
        ("Killed\n", "Killed"),
        ("", ""),
    ],
)
def test_the_reason_is_what_and_where_of_the_block(answer: ModuleType, err: str, why: str) -> None:
    assert answer.reason(err) == why


def test_what_got_worse_is_told_before_the_faults_that_were_there(answer: ModuleType) -> None:
    faults = [{"check": f"c{n}", "subject": "host", "outcome": "fail"} for n in range(9)]
    said = answer.no({"results": faults, "worse": ["link host: pass -> warn"]})
    assert said == "worse than before: link host: pass -> warn; c0 host: fail; c1 host: fail and 7 more"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            {"entries": [{"action": "a", "outcome": "reverted"}, {"action": "b", "outcome": "conflict", "why": "9"},
                         {"action": "c", "outcome": "failed", "why": "refused"}]},
            "c: refused; b: 9",
        ),
        ({"unplaced": [{"guest": "g", "why": ["2 GPUs, 1 free"]}]}, "guest g is not placed: 2 GPUs, 1 free"),
        ({"drift": [{"action": "pages", "expected": 254, "actual": 300}]}, "pages: was 254, now 300"),
        ({"open_transaction": {"number": 4}}, "transaction 4 is unfinished: run hosttune recover"),
        ({"state_known": False}, "what is applied is unknown: ask as root, on the host itself"),
        ({"results": [{"check": "x", "outcome": "unknown"}, {"check": "y", "outcome": "fail"}]},
         "y None: fail; x None: unknown"),
        ({"notes": ["a unit waits"]}, "a unit waits"),
        ({}, "no reason given"),
    ],
)  # fmt: skip
def test_a_no_tells_the_worst_with_its_reason(answer: ModuleType, document: dict[str, object], said: str) -> None:
    assert answer.no(document) == said


def test_a_success_names_what_is_not_as_wanted_and_whose_change_waits(answer: ModuleType) -> None:
    entries = [{"action": "a", "outcome": "done"}, {"action": "p", "outcome": "ignored", "why": "the firmware decides"}]
    document = {"schema": "hosttune.result/v1", "verb": "apply", "entries": entries, "pending": ["g"]}
    found = answer.meant(
        {"phase": "apply"}, {"exit_code": 0, "out": json.dumps(document), "err": ""}, check=False, diff=False
    )
    assert (found["outcome"], found["why"], found["pending"]) == ("ok", "p: the firmware decides", ["g"])


def test_a_diff_names_a_guests_files_and_holds_none_of_them(answer: ModuleType) -> None:
    files = {"seed/user-data": "#cloud-config\nruncmd: []\n", "bundle/run": "#!/bin/sh\nexit\n"}
    entry = {"action": "guest-files:g", "outcome": "planned", "before": None, "want": files}
    (found,) = answer.difference({"entries": [entry]})
    assert found["prepared"] == "+guest-files:g = 2 files: bundle/run, seed/user-data\n"
    assert "runcmd" not in str(found)


@pytest.mark.parametrize(("verb", "now", "then"), [("apply", "0", "512"), ("status", "512", "0")])
def test_a_rehearsed_revert_shows_the_way_back(answer: ModuleType, verb: str, now: str, then: str) -> None:
    entry = {"action": "pages", "outcome": "done", "before": "0", "want": "512", "after": "512"}
    (found,) = answer.difference({"verb": verb, "entries": [entry]})
    assert found["prepared"] == f"-pages = {now}\n+pages = {then}\n"


def test_a_diff_is_a_setting_after_the_other_and_folds_what_is_alike(answer: ModuleType) -> None:
    """A text of many lines is how long it is; of tables only what differs; nothing is left out that changes."""
    rows: list[tuple[str, Any, Any]]
    rows = [(f"driver:0000:{n}1:00.0", "nvidia", "vfio-pci") for n in range(4)]
    rows += [("guest:a", None, "<domain>\n</domain>"), ("guest:b", "x\ny", "x\nz"), ("same:c", 1, 1)]
    rows += [("irq-affinity:e", {"1": "0-9", "2": "0-9"}, {"1": "0-9", "2": "3"})]
    entries = [{"action": name, "outcome": "planned", "before": old, "want": new} for name, old, new in rows]
    (found,) = answer.difference({"entries": entries})
    assert found["prepared"].splitlines() == [
        "-driver:0000:01:00.0, 0000:11:00.0, 0000:21:00.0 and 1 more = nvidia",
        "+driver:0000:01:00.0, 0000:11:00.0, 0000:21:00.0 and 1 more = vfio-pci",
        "+guest:a = 2 lines",
        "-guest:b = 2 lines",
        "+guest:b = 2 lines (other ones)",
        '-irq-affinity:e = {"2": "0-9"}',
        '+irq-affinity:e = {"2": "3"}',
    ]


@pytest.mark.parametrize(
    ("phase", "gate", "code", "facts", "why"),
    [
        ("validate", None, 0, {"verdict": "fail"}, "exit code 0 beside the verdict fail"),
        ("validate", None, 1, {"verdict": "pass"}, "exit code 1 beside the verdict pass"),
        ("validate", "either", 1, {"verdict": "warn", "worse": []}, "exit code 1 beside the verdict warn"),
        ("validate", "worse", 0, {"verdict": "pass", "worse": ["x"]}, "1 things are worse than before"),
        ("plan", None, 0, {"unplaced": [{"guest": "g"}]}, "1 guests are not placed"),
    ],
)
def test_an_end_that_contradicts_its_document_is_unknown(
    answer: ModuleType, phase: str, gate: str | None, code: int, facts: dict[str, object], why: str
) -> None:
    with pytest.raises(answer.NoAnswer, match=why) as stop:
        answer.outcome_of({"phase": phase, "gate": gate}, False, code, facts, "")
    assert stop.value.outcome == "unknown"


@pytest.mark.parametrize(
    ("phase", "gate", "code", "facts", "word"),
    [
        ("validate", "worse", 0, {"verdict": "fail", "worse": []}, "ok"),
        ("validate", "either", 1, {"verdict": "pass", "worse": ["x"]}, "no"),
        ("validate", None, 1, {"verdict": "unknown"}, "no"),
        ("plan", None, 1, {"unplaced": [{"guest": "g"}]}, "no"),
        ("plan", None, 0, {"unplaced": []}, "ok"),
    ],
)
def test_an_end_that_fits_its_document(
    answer: ModuleType, phase: str, gate: str | None, code: int, facts: dict[str, object], word: str
) -> None:
    assert answer.outcome_of({"phase": phase, "gate": gate}, False, code, facts, "")[0] == word


@pytest.mark.parametrize(
    "predicate", [{"devices": ["0000:41:00.0"]}, {"devices": [{"steps": [3]}]}, {"devices": 3}, [], None]
)
def test_a_statement_of_any_form_is_no_traceback(answer: ModuleType, predicate: object) -> None:
    out = json.dumps({**answer.STATEMENT, "predicate": predicate})
    said = answer.meant({"phase": "course"}, {"exit_code": 0, "out": out, "err": ""}, check=False, diff=False)
    assert (said["outcome"], "document" in said) == ("unknown", False)


def test_a_plan_shows_the_guests_that_change(answer: ModuleType) -> None:
    guests = [
        {"name": name, "change": change, "cells": [{"host_nodes": "0"}]}
        for name, change in (("old", "keep"), ("new", "create"))
    ]
    (found,) = answer.difference({"guests": guests, "removals": [{"name": "gone"}]})
    assert found["prepared"] == "+guest new = 0 vCPUs, nodes 0\n-guest gone = in force\n"
