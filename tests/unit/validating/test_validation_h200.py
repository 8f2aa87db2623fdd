"""Level 1 validations of one and of four real H200 GPUs (2026-11-20, driver 580.159.04), kept as they were printed.

Their figures stand beside those of a script of its own that ran on the same GPUs right after: PyTorch's copies and
products, NCCL's all-reduce. The two share no code. The validation of four is also docs/validation-4xh200.html.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from hosttune.model.validation import Validation, verdict_of

FOLDER = Path(__file__).parents[2] / "hosts/h200"
VALIDATIONS = {n: Validation.from_json((FOLDER / f"vm-x{n}-level1.json").read_text()) for n in (1, 4)}
REFERENCES: dict[int, dict[str, Any]] = {
    n: json.loads((FOLDER / f"vm-x{n}-reference.json").read_text()) for n in VALIDATIONS
}
REFERENCE = REFERENCES[4]
GPUS = ("0000:00:06.0", "0000:00:07.0", "0000:00:08.0", "0000:00:09.0")
NEAR = pytest.approx


def median(metric: str, subject: str, machine: int = 4) -> float:
    """The median of a metric's runs, of which there are at least five."""
    runs = [one.value for one in VALIDATIONS[machine].samples if (one.metric, one.subject) == (metric, subject)]
    assert len(runs) >= 5
    return statistics.median(value for value in runs if value is not None)


@pytest.mark.parametrize("machine", VALIDATIONS)
@pytest.mark.parametrize(
    ("metric", "key"),
    [("h2d-ce", "h2d"), ("d2h-ce", "d2h"), ("device-copy", "copy"), ("gemm-bf16-sustained", "bf16_burst")],
)
def test_each_gpus_figures_are_those_of_another_program(metric: str, key: str, machine: int) -> None:
    for gpu, reference in zip(GPUS[:machine], REFERENCES[machine]["gpus"], strict=True):
        assert median(metric, gpu, machine) == NEAR(reference[key], rel=0.05)


def test_every_pair_copies_as_in_another_program() -> None:
    pairs = REFERENCE["p2p_gb_per_s"]
    assert len(pairs) == 12
    for pair, reference in pairs.items():
        source, target = (GPUS[int(number)] for number in pair.split("->"))
        assert median("p2p-write-ce", f"{source}->{target}") == NEAR(reference, rel=0.05)


def test_large_reductions_are_as_in_another_program() -> None:
    sizes = {"1024": "all-reduce-1gib", "4096": "all-reduce-4gib"}
    for mib, metric in sizes.items():
        assert median(metric, "4 GPUs") == NEAR(REFERENCE["all_reduce_gb_per_s"][mib], rel=0.05)


@pytest.mark.parametrize("machine", VALIDATIONS)
def test_a_guest_without_nodes_is_no_pass_and_no_fault(machine: int) -> None:
    validation = VALIDATIONS[machine]
    assert verdict_of(validation.results) == validation.verdict == "unknown"
    assert {one.check for one in validation.results if one.outcome == "unknown"} == {"numa-affinity"}
    assert {one.outcome for one in validation.results} >= {"pass", "skip"}
    assert "fail" not in {one.outcome for one in validation.results}
    assert (validation.facts or {})["driver"] == "580.159.04"
