"""Metrics over every captured host: few, read by another parser as they were meant, never better than the evidence.

`make test` takes a sample; HOSTTUNE_SWEEP=full tries every host and many damages of each.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

import pytest
from damage import Damage, Files, improvements, load, places, read_by_discovery
from damage import Found as Outcomes
from damage import with_damage as damaged
from exposed import Series, Values, of, promtool, text_of, value, values
from sickhosts import SICK
from sweeps import FULL, SEED, sample
from unit.rules.test_checks_captures import ARCHIVES

from hosttune.discovery.evidence import gather
from hosttune.errors import BadInput, Unreadable
from hosttune.metrics import MOST_SERIES
from hosttune.model.evidence import Evidence
from hosttune.model.validation import Validation
from hosttune.validating import decide

EXAMPLE = "example-hgx-h200-8"
HOSTS: Mapping[str, Callable[[], Files]] = {
    **{name: partial(load, path) for name, path in ARCHIVES.items()},
    **SICK,
}
RICH = (EXAMPLE, "older-vm-x4", *SICK)
RANK = {"pass": 0, "warn": 1, "unknown": 2, "fail": 2}


def judged(host: Files) -> tuple[Evidence, Validation]:
    evidence = gather(host.system())
    return evidence, decide(evidence, 0, None, live=False)


@cache
def whole(name: str) -> tuple[Files, Evidence, Validation, Values]:
    found = HOSTS[name]()
    evidence, validation = judged(found)
    return found, evidence, validation, values(text_of(evidence, validation))


@pytest.mark.parametrize("name", [EXAMPLE, *sample("metrics of hosts", [name for name in HOSTS if name != EXAMPLE], 4)])
def test_what_is_written_is_what_was_found(name: str) -> None:
    _, evidence, validation, found = whole(name)
    assert len(found) <= MOST_SERIES
    assert value(found, "hosttune_validation_verdict", verdict=validation.verdict) == 1
    assert sum(of(found, "hosttune_validation_verdict").values()) == 1
    counted = sum(of(found, "hosttune_check_results").values())
    omitted = value(found, "hosttune_series_omitted") or 0
    assert counted == len(validation.results) or omitted
    named = {(s.label("check"), s.label("subject"), s.label("status")) for s in of(found, "hosttune_check_status")}
    bad = {(r.check, r.subject, r.outcome) for r in validation.results if r.outcome not in ("pass", "skip")}
    assert named <= bad
    assert len(bad) == len(named) + (value(found, "hosttune_check_status_omitted") or 0)
    assert not list(unhealthy_as_healthy(evidence, validation, found))


def unhealthy_as_healthy(evidence: Evidence, validation: Validation, found: Values) -> Iterator[str]:
    """What the text says and the evidence does not."""
    unknown = {r.subject for r in validation.results if r.check == "pcie-link" and r.outcome == "unknown"}
    for series, number in found.items():
        if series.name.startswith("hosttune_pcie_link_") and series.label("end") == "device" and not math.isnan(number):
            function = evidence.host.index.pci.get(series.label("address"))
            if function is None or function.link is None:
                yield f"a figure of a link that was not read: {series}"
    for address in unknown:
        if not [one for one in of(found, "hosttune_check_status") if one.label("subject") == address] and not value(
            found, "hosttune_check_status_omitted"
        ):
            yield f"{address}: a link that is unknown is not told"
    if evidence.health is None or evidence.health.events is None:
        for series, number in of(found, "hosttune_kernel_events_total").items():
            if not math.isnan(number):
                yield f"events of a log that was not read: {series}"
    for series, number in of(found, "hosttune_aer_errors_total").items():
        counts = (evidence.health.aer if evidence.health else None) or {}
        if not math.isnan(number) and series.label("severity") not in counts.get(series.label("address"), {}):
            yield f"a count that was not read: {series}"


# --- evidence that is lost -----------------------------------------------------------------------------------


def better(before: Values, after: Values, *, only_lost: bool) -> Iterator[str]:
    """What looks healthier after a damage than before. `only_lost`: no file was cut short, so no figure may rise."""
    ranks = [
        next(rank for verdict, rank in RANK.items() if value(found, "hosttune_validation_verdict", verdict=verdict))
        for found in (before, after)
    ]
    if ranks[1] < ranks[0]:
        yield "the verdict"
    for series, number in of(after, "hosttune_source_readable").items():
        if number > before[series]:
            yield f"{series}: {before[series]} -> {number}"
    if not only_lost:
        return
    for series, number in after.items():
        was = before.get(series, math.nan)
        if math.isnan(number) or series.name not in _FIGURES:
            continue
        if series.name == "hosttune_devices" and number == 0:  # a kind that a missing device alone has
            continue
        if math.isnan(was) or not _FIGURES[series.name](was, number):
            yield f"{series}: {was} -> {number}"


def _same(was: float, now: float) -> bool:
    return was == now


def _no_more(was: float, now: float) -> bool:
    return now <= was


def _no_less(was: float, now: float) -> bool:
    return now >= was


_FIGURES = {
    "hosttune_devices_expected": _no_less,
    "hosttune_guest_placement_violations": _no_less,
    "hosttune_handover_valid": _no_more,
    "hosttune_pcie_link_speed_gts": _same,
    "hosttune_pcie_link_width": _same,
    "hosttune_devices": _no_more,
}


@pytest.mark.parametrize("name", RICH if FULL else sample("metrics of damaged hosts", RICH, 2))
def test_lost_evidence_never_looks_healthier(name: str) -> None:
    found, _, validation, before = whole(name)
    every = list(places(found, read_by_discovery(found)))
    chance = random.Random(f"{SEED} metrics {name}")
    tried = chance.sample(every, min(len(every), 300 if FULL else 2))
    tried += chance.sample([one for one in every if gone(one)], 100 if FULL else 2)
    outcomes = Outcomes(validation.verdict, {(r.check, r.subject): r.outcome for r in validation.results})
    wrong = []
    for damage in tried:
        try:
            evidence, now = judged(damaged(found, damage))
        except (BadInput, Unreadable):
            continue
        after = values(text_of(evidence, now))
        assert len(after) <= MOST_SERIES
        wrong += [f"{damage.what}: {line}" for line in better(before, after, only_lost=gone(damage))]
        wrong += [f"{damage.what}: {line}" for line in unhealthy_as_healthy(evidence, now, after)]
        hidden = Outcomes(now.verdict, {(r.check, r.subject): r.outcome for r in now.results})
        wrong += [f"{damage.what}: {line}" for line in improvements(outcomes, hidden) if "verdict" in line]
    assert wrong == []


def gone(damage: Damage) -> bool:
    """Whether a damage takes a whole file, link or folder away."""
    return damage.change is None


def test_the_comparison_can_fail() -> None:
    link = Series("hosttune_pcie_link_width", frozenset({("address", "a"), ("end", "device")}))
    verdicts: Mapping[str, float] = {"fail": 1, "pass": 0, "warn": 0, "unknown": 0}
    before = {Series("hosttune_validation_verdict", frozenset({("verdict", one)})): n for one, n in verdicts.items()}
    for was, now in ((8.0, 16.0), (math.nan, 16.0)):
        assert list(better({**before, link: was}, {**before, link: now}, only_lost=True))
    assert not list(better({**before, link: 8.0}, {**before, link: math.nan}, only_lost=True))


@pytest.mark.skipif(not FULL, reason="a sample of one is in test_metrics")
def test_promtool_has_nothing_to_say_about_any_host() -> None:
    for name in HOSTS:
        _, evidence, validation, _ = whole(name)
        assert promtool("check", "metrics", text=text_of(evidence, validation)) == (0, ""), name
