"""Outputs of machines in order: no cause is named, and no figure is called low."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from hosttune.rules.causes import diagnose
from hosttune.rules.causes.logs import read_log
from hosttune.rules.causes.rules_network import ports_named

CASES = tomllib.loads((Path(__file__).parents[2] / "cases/diagnosis/quiet.toml").read_text())["quiet"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_what_is_in_order_gets_no_cause(case: dict[str, str]) -> None:
    found = diagnose(read_log(case["log"], "a.log")[0])
    assert [cause.title or cause.evidence for cause in found.causes] == []
    assert {figure.verdict for figure in found.figures} <= {"expected", "unknown"}


def test_variables_that_are_merely_set_are_said() -> None:
    found = diagnose(read_log("export NCCL_PROTO=LL\n", "a.log")[0])
    assert found.next[0] == "NCCL_PROTO=LL: set, and no figure says that it costs anything"


@pytest.mark.parametrize(
    ("value", "count"),
    [("mlx5_0,mlx5_1", 2), ("=mlx5_0:1,mlx5_1:1", 2), ("rocep", None), ("mlx5", None), ("mlx5_", None),
     ("=rocep1s0", 1), ("^mlx5_8", None), ("^=mlx5_8", None), ("rocep1s0:1,ibp", None), ("", None)],
)  # fmt: skip
def test_the_ports_that_a_variable_names(value: str, count: int | None) -> None:
    assert ports_named(value) == count
