"""Numbers that nothing has, in what hosttune writes and reads again: bad input or drawn, never an internal error.

The documents are made from their types with every field filled, so that a new field is tried by itself. See also
test_bad_numbers, which tries what people write.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from filleddocuments import filled
from rich.console import Console
from system.test_bad_numbers import TOO_LONG, fields, of_every_number, written

from hosttune.cluster.collective.meeting import hear
from hosttune.errors import BadInput, HosttuneError
from hosttune.fleet.answers import read_answer
from hosttune.fleet.monitored import read_metrics
from hosttune.fleet.record import WaveBegun, decode
from hosttune.fleet.uniformity import read_machine
from hosttune.handover.testguest.order import GuestOrder
from hosttune.journal.records import Header, Line, read_transaction
from hosttune.model.collective import CollectiveReport, Member
from hosttune.model.diagnosis import Diagnosis
from hosttune.model.fleet import Answer, FleetReport
from hosttune.model.handover import Statement
from hosttune.model.jsontext import typed_json
from hosttune.model.pairs import Ends, PairsReport
from hosttune.model.prediction import Prediction
from hosttune.model.quarantine import Register
from hosttune.model.result import Result
from hosttune.model.verification import Verification
from hosttune.report.blocks import Report
from hosttune.report.collective import collective_report
from hosttune.report.draw.html import page
from hosttune.report.draw.text import draw
from hosttune.report.fleet import fleet_report
from hosttune.report.handover import handed_report
from hosttune.report.pairs import ends_report, pairs_report
from hosttune.report.prediction import diagnosis_report, prediction_report
from hosttune.report.result import result_report

FEDERATE = Path(__file__).parents[2] / "cases/federate/three_hosts.prom"
DOCUMENTS: Mapping[Any, Callable[[Any], Report] | None] = {
    Result: result_report, PairsReport: pairs_report, Ends: ends_report, CollectiveReport: collective_report,
    Member: None, Statement: partial(handed_report, path="statement.json"), Register: None, GuestOrder: None,
    Prediction: lambda found: prediction_report((found,)), Diagnosis: diagnosis_report, FleetReport: fleet_report,
}  # fmt: skip
POSSIBLE = ("-1", "0", "1e308", "1e-320", str(2**64 - 1), str(-(2**63)), "9" * 19)  # in some fields


def console() -> Console:
    return Console(file=io.StringIO(), width=120)


@pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda kind: str(kind.__name__))
def test_every_number_of_a_document_is_refused_or_drawn(kind: Any) -> None:
    document, draws, drawn = filled(kind), DOCUMENTS[kind], 0
    numbers = [path for path, value in fields(document) if type(value) in (int, float)]
    for path in numbers:
        for number in TOO_LONG:
            with pytest.raises(BadInput):
                kind.from_json(written(document, path, number), where="document")
    for path, number in ((path, number) for path in numbers for number in POSSIBLE):
        try:
            found = kind.from_json(written(document, path, number), where="document")
        except BadInput:
            continue
        drawn += 1
        if draws is not None:
            draw(draws(found), console())
            page(draws(found))
    assert drawn >= len(numbers) or not numbers


@pytest.mark.parametrize("kind", [Verification, Answer, Header, Line, WaveBegun], ids=lambda kind: str(kind.__name__))
def test_every_number_of_what_is_read_by_its_type(kind: Any) -> None:
    document = filled(kind)
    for path in (path for path, value in fields(document) if type(value) in (int, float)):
        for number in TOO_LONG:
            with pytest.raises(BadInput):
                typed_json(written(document, path, number), kind)


@pytest.mark.parametrize("number", TOO_LONG)
def test_the_answers_of_a_fleet(number: str, tmp_path: Path) -> None:
    """The number is in a part that is not read: the answer cannot be trusted all the same."""
    (tmp_path / "a").mkdir()
    answer = {"host": "a", "phase": "discover", "run": "r", "outcome": "ok", "exit_code": 0}
    text = json.dumps({"schema": "hosttune.host/v1", "gpus": [], "fleet": answer})
    path = tmp_path / "a/discover.json"
    path.write_text(text)
    assert read_answer(str(tmp_path), "a", "discover", "r").outcome == "ok"
    path.write_text(text.replace("[]", f'[], "cpus": {number}'))
    assert read_answer(str(tmp_path), "a", "discover", "r").outcome == "unknown"
    assert read_machine(str(tmp_path), "a") is None


@pytest.mark.parametrize("number", TOO_LONG)
def test_a_line_of_a_record_and_of_a_journal(number: str, tmp_path: Path) -> None:
    wave = written(filled(WaveBegun), ("number",), number)
    with pytest.raises(BadInput):
        decode(wave.encode() + b"\n")
    path = tmp_path / "1.jsonl"
    path.write_text(written(filled(Header), ("number",), number) + "\n")
    with pytest.raises(HosttuneError):
        read_transaction(str(path))


def test_the_numbers_of_metrics(tmp_path: Path) -> None:
    path = tmp_path / "federate.prom"
    for _, text in of_every_number(FEDERATE.read_text(), most=60):
        path.write_text(text)
        try:
            found = read_metrics(str(path))
        except BadInput:
            continue
        for host in ("good", "sick", "stale"):
            assert found.of(host).outcome in ("pass", "warn", "fail", "unknown")
    for odd in ("NaN", "+Inf", "-Inf", "1e400", "9" * 5000):
        path.write_text(re.sub(r"(?m) [0-9.e+]+$", f" {odd}", FEDERATE.read_text()))
        with pytest.raises(BadInput):  # in place of a time, against which the age of all hosts is counted
            read_metrics(str(path))


@pytest.mark.parametrize("line", [*TOO_LONG, "[" * 4000, '{"index": NaN}', '{"index": 1e999}', '{"index": "\\ud800"}'])
def test_what_a_member_of_a_group_says(line: str) -> None:
    import socket

    here, there = socket.socketpair()
    with here, there:
        there.sendall(line.encode() + b"\n")
        assert hear(here) is None
