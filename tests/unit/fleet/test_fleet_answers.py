"""A host's answer counts for its run, its host and its phase; anything else is unknown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.errors import BadInput
from hosttune.fleet.answers import has_answer_file, read_answer
from hosttune.fleet.results import RECORD, answer_path, host_folder, hosts_in, refuse_names

GOOD: dict[str, Any] = {
    "host": "h",
    "phase": "validate",
    "run": "r1",
    "outcome": "ok",
    "exit_code": 0,
    "verdict": "pass",
}


def put(results: Path, text: str, *, name: str = "validate.json") -> None:
    (results / "h").mkdir(exist_ok=True)
    (results / "h" / name).write_text(text)


def document(**fleet: object) -> str:
    return json.dumps({"schema": "hosttune.validation/v1", "results": [], "fleet": {**GOOD, **fleet}})


def test_an_answer_of_this_run_is_read_from_beside_the_document(tmp_path: Path) -> None:
    put(tmp_path, document(seconds=1.5))
    answer = read_answer(str(tmp_path), "h", "validate", "r1")
    assert (answer.outcome, answer.verdict, answer.seconds) == ("ok", "pass", 1.5)
    assert has_answer_file(answer)
    assert read_answer(str(tmp_path), "h", "validate", None).outcome == "ok"  # whichever run wrote it


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        (document()[:-5], "cannot be read"),
        ("[]", "cannot be read"),
        ("null", "cannot be read"),
        ('{"fleet": 1}', "cannot be read"),
        ('{"fleet": {"host": "h"}}', "cannot be read"),
        (document(outcome="fine"), "cannot be read"),
        ("[" * 20000, "cannot be read"),
        ("{}", "has no fleet record"),
        ('{"schema": "x", "fleet": null}', "has no fleet record"),
        (document(host="g"), "of another host or phase"),
        (document(phase="handover"), "of another host or phase"),
        (document(check=True), "of another host or phase"),
        (document(run="r0"), "no answer of this run"),
        (document(run=None), "no answer of this run"),
    ],
)
def test_what_is_no_answer_of_this_run_is_unknown(tmp_path: Path, text: str, why: str) -> None:
    put(tmp_path, text)
    answer = read_answer(str(tmp_path), "h", "validate", "r1")
    assert (answer.outcome, answer.verdict) == ("unknown", None)
    assert why in (answer.why or "")


@pytest.mark.parametrize(
    ("fleet", "why"),
    [
        ({"exit_code": 1}, "outcome ok, exit code 1"),
        ({"exit_code": 70}, "outcome ok, exit code 70"),
        ({"outcome": "no"}, "outcome no, exit code 0"),
        ({"outcome": "no", "exit_code": 3}, "outcome no, exit code 3"),
    ],
)
def test_an_answer_that_contradicts_itself_is_unknown(tmp_path: Path, fleet: dict[str, object], why: str) -> None:
    put(tmp_path, document(**fleet))
    answer = read_answer(str(tmp_path), "h", "validate", "r1")
    assert (answer.outcome, answer.verdict) == ("unknown", None)
    assert why in (answer.why or "")
    assert has_answer_file(answer)


def test_a_verdict_that_is_not_the_documents_is_unknown(tmp_path: Path) -> None:
    put(tmp_path, json.dumps({"schema": "hosttune.validation/v1", "verdict": "fail", "results": [], "fleet": GOOD}))
    answer = read_answer(str(tmp_path), "h", "validate", "r1")
    assert answer.outcome == "unknown"
    assert "verdict pass, and fail in the document" in (answer.why or "")


@pytest.mark.parametrize(
    ("phase", "name", "fleet"),
    [
        ("revert", "revert.check", {"exit_code": 1, "check": True}),  # it was `status`: something has drifted
        ("status", "status", {"exit_code": 0, "outcome": "no"}),  # a pending reboot
        ("validate", "validate", {"exit_code": 1, "outcome": "no", "verdict": "fail"}),
        ("undrain", "undrain", {"exit_code": None}),
        ("apply", "apply", {"exit_code": 4, "outcome": "needs-person"}),
    ],
)
def test_what_only_looks_like_a_contradiction(tmp_path: Path, phase: str, name: str, fleet: dict[str, object]) -> None:
    told = {**GOOD, "phase": phase, "verdict": None, **fleet}
    put(tmp_path, json.dumps({"fleet": told}), name=f"{name}.json")
    answer = read_answer(str(tmp_path), "h", phase, "r1", check=bool(told.get("check")))
    assert answer.outcome == told["outcome"]


def test_a_file_that_is_not_there_was_not_asked(tmp_path: Path) -> None:
    answer = read_answer(str(tmp_path), "h", "validate", "r1")
    assert (answer.outcome, answer.why) == ("unknown", "no answer of this run")
    assert not has_answer_file(answer)
    put(tmp_path, document(outcome="unknown", why="asked; no answer yet"))
    assert has_answer_file(read_answer(str(tmp_path), "h", "validate", "r1"))


def test_a_folder_in_the_place_of_a_file_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "h" / "validate.json").mkdir(parents=True)
    assert read_answer(str(tmp_path), "h", "validate", "r1").outcome == "unknown"
    (tmp_path / "g").write_text("")
    assert read_answer(str(tmp_path), "g", "validate", "r1").why == "no answer of this run"


def test_a_pipe_in_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "h").mkdir()
    os.mkfifo(tmp_path / "h" / "validate.json")
    assert read_answer(str(tmp_path), "h", "validate", "r1").outcome == "unknown"


def test_check_mode_has_files_of_its_own(tmp_path: Path) -> None:
    put(tmp_path, document(check=True), name="validate.check.json")
    assert read_answer(str(tmp_path), "h", "validate", "r1", check=True).outcome == "ok"
    assert read_answer(str(tmp_path), "h", "validate", "r1").outcome == "unknown"


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_unknown(data: bytes) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        (Path(folder) / "h").mkdir()
        (Path(folder) / "h" / "validate.json").write_bytes(data)
        assert read_answer(folder, "h", "validate", "r1").outcome == "unknown"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("gpu-17.rack_3", "gpu-17.rack_3"),
        ("..", "%2E."),
        (".ssh", "%2Essh"),
        ("a/b", "a%2Fb"),
        ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd"),
        ("a b\n", "a%20b%0A"),
        ("100%", "100%25"),
        ("größe", "gr%C3%B6%C3%9Fe"),
    ],
)
def test_a_hosts_folder_is_a_plain_name(host: str, name: str) -> None:
    assert host_folder(host) == name


@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_no_name_leads_out_of_the_folder_and_no_two_share_one(host: str, other: str) -> None:
    path = answer_path("/results", host, "validate")
    assert os.path.dirname(os.path.dirname(os.path.normpath(path))) == "/results"
    assert os.path.normpath(path) == path
    assert (host_folder(host) == host_folder(other)) == (host == other)


def test_the_hosts_of_a_folder_are_read_back_from_its_names(tmp_path: Path) -> None:
    hosts = ["gpu-1", "..", "a/b\n", "größe", "100%41"]
    for host in hosts:
        (tmp_path / host_folder(host)).mkdir()
    (tmp_path / RECORD).write_text("")
    (tmp_path / ".private").mkdir()
    assert hosts_in(str(tmp_path)) == tuple(sorted(hosts))
    with pytest.raises(BadInput, match="cannot read"):
        hosts_in(str(tmp_path / "none"))


@pytest.mark.parametrize("host", [RECORD, "x" * 256, "ä" * 90, "", "\0\0", "a\nb", "a\x7f"])
def test_a_host_that_can_have_no_folder_is_refused_by_name(host: str) -> None:
    with pytest.raises(BadInput, match="a host cannot be called") as refused:
        refuse_names(("fine", host))
    assert refused.value.where == "inventory"
