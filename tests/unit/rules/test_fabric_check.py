"""The check `fabric-partition`: running guests against the active partitions of an NVSwitch fabric."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fabrichosts import AT, H200, MODULES, board, shared
from planhosts import Held

from hosttune.model.evidence import Evidence
from hosttune.model.host import Host
from hosttune.model.validation import CheckResult
from hosttune.rules.checks import results_of
from hosttune.rules.checks.fabric import fabric_partition


def found(fabric: dict[str, Any] | None, guests: list[Held], **more: Any) -> list[CheckResult]:
    host = Host.from_json(json.dumps(board(fabric, guests=guests, **more)))
    return list(results_of(fabric_partition, Evidence(host=host)))


@pytest.mark.parametrize(
    ("modules", "active", "outcome", "hint"),
    [
        ([1, 3], [3], "pass", ""),
        ([1, 2, 3, 4], [1], "pass", ""),
        ([1, 3], [], "fail", "fmpm -a 3"),
        ([1, 3], [1], "fail", "fmpm -d 1, fmpm -a 3"),
        ([1, 3], [7, 9], "fail", "fmpm -d 7, fmpm -d 9, fmpm -a 3"),
        ([1, 2], [3, 4], "fail", "plan it again"),
        ([1, 3], [4], "fail", "fmpm -a 3"),
    ],
)
def test_a_running_guest(modules: list[int], active: list[int], outcome: str, hint: str) -> None:
    (result,) = found(shared(H200, active), [Held(name="g", devices=tuple(AT[module] for module in modules))])
    assert (result.subject, result.outcome) == ("g", outcome)
    assert hint in (result.hint or "")


@pytest.mark.parametrize(
    ("fabric", "modules", "why"),
    [
        ({"mode": 1}, MODULES, "the list of partitions was not read"),
        (None, MODULES, "the list of partitions was not read"),
        (shared(), {**MODULES, AT[1]: None}, f"the module ids of {AT[1]} are unknown"),
    ],
)
def test_what_is_not_known(fabric: dict[str, Any] | None, modules: dict[str, int | None], why: str) -> None:
    (result,) = found(fabric, [Held(name="g", devices=(AT[1], AT[3]))], modules=modules)
    assert (result.outcome, why in (result.actual or "")) == ("unknown", True)


@pytest.mark.parametrize(
    ("fabric", "guests"),
    [
        (shared(), []),
        (shared(), [Held(name="off", devices=(AT[1],), state="shut off")]),
        (shared(), [Held(name="no-gpu")]),
        ({"mode": 0}, [Held(name="g", devices=(AT[1],))]),
    ],
)
def test_nobody_to_judge(fabric: dict[str, Any], guests: list[Held]) -> None:
    (result,) = found(fabric, guests)
    assert (result.subject, result.outcome) == ("host", "skip")
