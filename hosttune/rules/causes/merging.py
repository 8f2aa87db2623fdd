"""Several sources of facts and figures → one document. A fact in which two of them differ is unknown, and named."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from hosttune.model.diagnosis import OTHER_MACHINES, Doubt
from hosttune.model.measured import Figure, Measured, Nics, Observations, Setup, Stated

_FEW = 4  # times as many NICs as a run uses: it leaves most of them out


def merge(parts: Iterable[tuple[str, Measured]]) -> tuple[Measured, tuple[Doubt, ...]]:
    """Return one document of several, each with the name of its source.

    A fact in which two of them differ is unknown, and named.
    """
    setup: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    figures: list[tuple[str | None, Figure]] = []
    said: dict[str, str] = {}
    stated: list[Stated] = []
    doubts: dict[str, Doubt] = {}
    for where, part in parts:
        figures += ((part.setup.gpu, figure) for figure in part.figures)
        _join(environment, dict(part.setup.environment), f"{where}: setup.environment", doubts)
        nics = part.setup.nics
        known = {
            name: getattr(part.setup, name) for name in Setup.__struct_fields__ if name not in ("nics", "environment")
        }
        of_nics = {f"nics.{name}": getattr(nics, name) if nics else None for name in Nics.__struct_fields__}
        _join(setup, {**known, **of_nics}, f"{where}: setup", doubts)
        observed = msgspec.structs.asdict(part.observations)
        said = {**observed.pop("said"), **said}
        stated += observed.pop("stated")
        _join(seen, observed, f"{where}: observations", doubts)
    ports = {name: setup.pop(f"nics.{name}", None) for name in Nics.__struct_fields__}
    of_all = Nics(**ports) if any(value is not None for value in ports.values()) else None
    if any(doubt.what == OTHER_MACHINES for doubt in doubts.values()):  # their figures are no equals
        figures = [(gpu, msgspec.structs.replace(one, subject=f"{gpu}: {one.subject}")) for gpu, one in figures]
    merged = Measured(
        version=1,
        setup=Setup(**setup, nics=of_all, environment=environment),
        figures=tuple(figure for _, figure in figures),
        observations=Observations(**seen, said=said, stated=tuple(dict.fromkeys(stated))),
    )
    return merged, tuple(doubts.values())


def _join(into: dict[str, Any], facts: dict[str, Any], where: str, doubts: dict[str, Doubt]) -> None:
    for name, value in facts.items():
        before = into.setdefault(name, None)
        if value is None or name in doubts or value == before or _same(name, before, value):
            continue
        if before is None:
            into[name] = value
            continue
        left_out = name == "nics.count" and max(before, value) >= _FEW * min(before, value)
        if name == "gpus_per_host" or left_out:  # a run can leave some of a host's out
            into[name] = max(before, value) if left_out else min(before, value)
            continue
        if name == "p2p" and "pcie" in (before, value) and {"off", "partly"} & {before, value}:
            into[name] = before if value == "pcie" else value  # a path is there, and peer access is not
            continue
        into[name] = None
        what, why = "two sources differ", f"{name}: {before!r} and {value!r}"
        if name == "gpu":
            what, why = OTHER_MACHINES, f"of {before!r} and of {value!r}: give the output of each machine alone"
        doubts[name] = Doubt(what=what, where=f"{where}.{name}", why=why[:300])


def _same(name: str, before: Any, value: Any) -> bool:
    """Return whether two names of a GPU can be those of one model: one has all words of the other."""
    if name != "gpu" or before is None:
        return False
    one, other = (set(re.findall(r"[a-z0-9]+", str(text).lower())) for text in (before, value))
    return one <= other or other <= one
