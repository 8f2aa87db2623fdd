"""Metrics as Prometheus' own parser reads them: another reader than the writer under test."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hosttune.metrics import CommandRun, Observed, exposition
from hosttune.model.evidence import Evidence
from hosttune.model.validation import Validation

AT = 1_800_000_000.0
# `make` unpacks Prometheus' programs beside Python's; elsewhere they are in PATH.
PATH = f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '')}"
PROMTOOL = shutil.which("promtool", path=PATH)
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool")


class Series(NamedTuple):
    """One sample's name and labels."""

    name: str
    labels: frozenset[tuple[str, str]]

    def label(self, name: str) -> str:
        return dict(self.labels)[name]


Values = Mapping[Series, float]


def values(text: str) -> dict[Series, float]:
    """The samples of a text. A series twice, or one with a timestamp, is an error."""
    found: dict[Series, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series = Series(sample.name, frozenset(sample.labels.items()))
            assert series not in found, series
            assert sample.timestamp is None, series
            found[series] = sample.value
    return found


def of(found: Values, name: str, **labels: str) -> dict[Series, float]:
    """The samples of one name with these labels."""
    wanted = frozenset(labels.items())
    return {one: value for one, value in found.items() if one.name == name and wanted <= one.labels}


def value(found: Values, name: str, **labels: str) -> float | None:
    """The one sample; None for NaN."""
    (number,) = of(found, name, **labels).values()
    return None if math.isnan(number) else number


def text_of(evidence: Evidence | None, validation: Validation | None, **more: object) -> str:
    """The metrics of these, at a fixed time."""
    run = CommandRun(verb="metrics", at=AT, exit_code=0, seconds=0.5)
    return exposition(Observed(run=run, evidence=evidence, validation=validation, **more))  # type: ignore[arg-type]


def promtool(*words: str, text: str = "") -> tuple[int, str]:
    """Run promtool; its exit code, and all that it said."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *words], input=text, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def lines(text: str) -> Iterable[str]:
    """The sample lines."""
    return (line for line in text.splitlines() if line and not line.startswith("#"))
