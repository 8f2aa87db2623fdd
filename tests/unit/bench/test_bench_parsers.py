"""What benchmark tools print, parsed: case files, cross-checks, and damaged outputs that must never be believed."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

import pytest
from benchcases import CASES, cases, parser

from hosttune.bench.parse.answer import NotUnderstood, ParsedOutput
from hosttune.bench.parse.child import parse as parse_child
from hosttune.model.values import to_builtins


def facts(case: Path) -> dict[str, Any]:
    try:
        answer = parser(case)(case.read_text(encoding="utf-8"))
    except NotUnderstood as error:
        return {"error": error.what, "where": error.where}
    return {
        "samples": [[row.metric, row.subject, row.value, row.unit] for row in answer.samples],
        "results": [[row.check, row.subject, row.outcome, row.actual] for row in answer.results],
        "lost": [[row.metric, row.subject, row.why] for row in answer.lost],
        "facts": to_builtins(dict(answer.facts)),
    }


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.parent.name}/{case.stem}")
def test_output_gives_the_expected_figures(case: Path, request: pytest.FixtureRequest) -> None:
    golden = case.with_suffix(".expected.json")
    found = facts(case)
    if request.config.getoption("--regenerate"):
        text = json.dumps(found, ensure_ascii=False)
        golden.write_text(text.replace("]], ", "]],\n ").replace("], [", "],\n  [") + "\n", encoding="utf-8")
    assert found == json.loads(golden.read_text(encoding="utf-8"))


def parsed(name: str) -> ParsedOutput:
    case = CASES / f"{name}.txt"
    return parser(case)(case.read_text(encoding="utf-8"))


def damaged(name: str, old: str, new: str) -> str:
    """The error of a case in which one piece of text is another."""
    case = CASES / f"{name}.txt"
    text = case.read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(NotUnderstood) as caught:
        parser(case)(text.replace(old, new, 1))
    assert caught.value.where.startswith("output of ")
    return caught.value.what


def test_a_read_brings_the_columns_data_to_the_rows_gpu() -> None:
    found = {(row.metric, row.subject): row.value for row in parsed("nvbandwidth/two-gpus-json").samples}
    assert found["p2p-read-ce", "0000:3b:00.0->0000:19:00.0"] == 394.552
    assert found["p2p-read-ce", "0000:19:00.0->0000:3b:00.0"] == 394.613


def test_copy_engines_and_kernels_are_different_metrics() -> None:
    answer = parsed("nvbandwidth/two-gpus-json")
    ce = [row.value for row in answer.samples if row.metric == "h2d-ce"]
    sm = [row.value for row in answer.samples if row.metric == "h2d-sm"]
    assert (ce, sm) == ([55.3512, 55.2903], [52.1012, 35.2903])


def test_a_test_case_that_failed_is_lost_and_a_waived_one_is_nothing() -> None:
    answer = parsed("nvbandwidth/two-gpus-json")
    assert {(row.metric, row.subject) for row in answer.lost} == {
        ("d2h-ce", "0000:19:00.0"),
        ("d2h-ce", "0000:3b:00.0"),
    }
    assert all("p2p-write" not in row.metric for row in answer.samples)


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("nvbandwidth/two-gpus-json", '"55.3512"', '"95.3512"', "add up to"),
        ("nvbandwidth/two-gpus-json", '"55.3512"', '"-55.3512"', "cannot be"),
        ("nvbandwidth/two-gpus-json", '"55.3512"', '"nan"', "cannot be"),
        ("nvbandwidth/two-gpus-json", '"testcases"', '"testcase"', "testcases is missing"),
        ("nvbandwidth/hopper-8gpu-d2d", "395.23", "935.23", "add up to"),
        ("nccl/all-reduce-a100", "235.26", "435.26", "contradicts itself"),
        ("nccl/all-reduce-a100", "#   Rank  7", "#   Rink  7", "contradicts itself"),
        ("fio/disk-write", '"bw_bytes" : 2', '"bw_bytes" : 7', "contradict each other"),
        ("fio/disk-read", '"error" : 0', '"error" : 5', "ended with error 5"),
        ("perftest/gbits", "395.62", "39562", "BW average|contradict"),
        ("perftest/gbits", "BW average[Gb/sec]", "BW average[MB/sec]", "not in Gb/sec"),
        ("cyclictest/debian12", "Max:     789", "Max:       7", "no figures that agree"),
        ("dcgm/dcgm3-shape", "DCGM GPU Diagnostic", "DCGM Something", "missing"),
        ("child/h200-x1", '"values": [55', '"values": [45', "checksum"),
    ],
)
def test_an_answer_that_contradicts_itself_is_not_believed(name: str, old: str, new: str, said: str) -> None:
    what = damaged(name, old, new)
    assert any(word in what for word in said.split("|")), what


def test_dcgm_passes_nothing_that_says_an_error_or_an_unknown_status() -> None:
    found = {(row.check, row.subject): row.outcome for row in parsed("dcgm/dcgm4-warnings").results}
    assert found == {
        ("dcgm-software", "dcgm gpu 0"): "pass",
        ("dcgm-software", "dcgm gpu 1"): "fail",
        ("dcgm-memory", "dcgm gpu 0"): "warn",
        ("dcgm-memory", "dcgm gpu 1"): "skip",
        ("dcgm-pcie", "dcgm gpu 0"): "unknown",
    }


# What these print says nothing twice, so a damaged digit cannot be seen; no floor of ours judges them.
UNCHECKED = ("cyclictest", "mlc")


def mutated(text: str, source: random.Random) -> str:
    """One small damage: a byte changed, a piece cut out, doubled, or the end missing."""
    start = source.randrange(len(text))
    stop = min(len(text), start + source.choice((1, 1, 2, 8, 200)))
    way = source.randrange(4)
    if way == 0:
        return (
            text[:start]
            + "".join(source.choice('0123456789.-eN{}[]",: \nx') for _ in range(stop - start))
            + text[stop:]
        )
    return text[:start] + (text[stop:], text[start:stop] * 2 + text[stop:], "")[way - 1]


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.parent.name}/{case.stem}")
def test_a_thousand_damaged_outputs_give_an_error_or_figures_of_the_original(case: Path) -> None:
    text = case.read_text(encoding="utf-8")
    read = parser(case)
    try:
        whole = read(text)
    except NotUnderstood:
        whole = ParsedOutput()
    known: dict[str, list[float]] = {}
    for row in whole.samples:
        assert row.value is not None
        known.setdefault(row.metric, []).append(row.value)
    passes = sum(row.outcome == "pass" for row in whole.results)
    source = random.Random(case.name)
    refused = 0
    for _ in range(1000 // len(cases()) + 1):
        try:
            found = read(mutated(text, source))
        except NotUnderstood:
            refused += 1
            continue
        for row in found.samples if case.parent.name not in UNCHECKED else ():
            assert row.value is not None
            assert any(abs(row.value - value) <= 0.02 * value for value in known[row.metric]), row
        assert sum(row.outcome == "pass" for row in found.results) <= passes + 1  # a copy of a line is a line
    assert refused > 0


def test_the_side_of_a_product_is_a_fact_and_must_be_one() -> None:
    def said(side: object) -> str:
        record = {"metric": "gemm-bf16", "subject": "g", "unit": "TFLOP/s", "values": [1.0], "n": side}
        return json.dumps({"records": [record], "sum": zlib.crc32(json.dumps([record], sort_keys=True).encode())})

    assert parse_child(said(8192)).facts == {"gemm-bf16-side": "8192"}
    for wrong in (0, -8, 1 << 40, "8192", 8192.5, True, None, [8192]):
        with pytest.raises(NotUnderstood, match="the side of a product"):
            parse_child(said(wrong))
