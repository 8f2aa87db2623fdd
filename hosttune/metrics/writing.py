"""The text format of Prometheus: one HELP and one TYPE line a name, then its samples, without timestamps.

The textfile collector of node_exporter drops a whole file for a sample with a timestamp and for a missing line end at
its end. https://prometheus.io/docs/instrumenting/exposition_formats/#text-format-details
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Literal

from hosttune.model.text import visible
from hosttune.model.values import Closed

MOST_LABEL = 120  # characters of a label's value; a longer one is cut, and ends in a digest of all of it
_KEPT = 100


class Family(Closed, frozen=True, kw_only=True):
    """One metric, declared once. `help` is one sentence; `labels` are the names of its labels, in order."""

    name: str
    kind: Literal["gauge", "counter"] = "gauge"
    help: str
    labels: tuple[str, ...] = ()


class Point(Closed, frozen=True, kw_only=True):
    """One sample of a family: a value for each of its labels. `value` None is unknown, and is written as NaN."""

    labels: Mapping[str, str] = {}
    value: float | None = None

    MAPPINGS = ("labels",)


Group = tuple[Family, tuple[Point, ...]]


def written(groups: Iterable[Group]) -> str:
    """Return the text of these groups. Groups of one family are put together; of equal samples the first is kept.

    Raises ValueError for two different families of one name, and for labels that the family does not declare.
    """
    families: dict[str, Family] = {}
    lines: dict[str, dict[str, str]] = {}
    for family, points in groups:
        if families.setdefault(family.name, family) != family:
            raise ValueError(f"two declarations of {family.name}")
        samples = lines.setdefault(family.name, {})
        for point in points:
            if set(point.labels) != set(family.labels):
                raise ValueError(f"{family.name} has the labels {family.labels}, not {tuple(point.labels)}")
            quoted = (f'{name}="{_quoted(label_value(point.labels[name]))}"' for name in family.labels)
            samples.setdefault("{" + ",".join(quoted) + "}" if point.labels else "", number(point.value))
    text = []
    for name, samples in lines.items():
        if samples:
            text.append(f"# HELP {name} {_escaped(families[name].help)}\n# TYPE {name} {families[name].kind}\n")
            text += [f"{name}{labels} {value}\n" for labels, value in samples.items()]
    return "".join(text)


def number(value: float | None) -> str:
    """Return a number as the format writes it; None is NaN."""
    if value is None or math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(float(value))


def label_value(text: str) -> str:
    """Return a text as a label's value: without characters that act on a terminal, and of at most MOST_LABEL."""
    shown = visible(text)
    if len(shown) <= MOST_LABEL:
        return shown
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{shown[:_KEPT]}…{digest[:8]}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
