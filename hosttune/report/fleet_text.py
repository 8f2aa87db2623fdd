"""The fleet report as text: the verdict, what to do next, waves, outliers, and the hosts with problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hosttune.model.fleet import FleetReport, HostLine
from hosttune.model.listing import some
from hosttune.report.branch import count, prose, say
from hosttune.report.fleet_causes import cause_size, cause_title, causes_heading
from hosttune.report.fleet_groups import (
    ANSWERS,
    Trouble,
    answers_worst_first,
    headline,
    hosts_worst_first,
    meaning,
    median_name,
    occasion,
    outlier_words,
    results_left_out,
    summary,
    troubles,
    wave_outcome,
    wave_words,
)
from hosttune.report.fleet_uniform import (
    SIGN_OF,
    fact_words,
    few_without,
    group_words,
    holders_words,
    machine_words,
    majority_words,
    notable,
    others,
    some_unknown,
    uniform_heading,
)
from hosttune.report.measures import number
from hosttune.report.outcomes import SIGNS

if TYPE_CHECKING:
    from rich.console import Console

MANY = 8  # hosts of a group named before "and N more"; the other formats name all
MOST_WARNINGS = 10  # groups of warnings that are shown; the other formats show all
MOST_HOSTS = 40  # hosts that are listed one by one
MOST_OUTLIERS = 20
MOST_SPREADS = 40  # facts that are not alike everywhere
MOST_VALUES = 5  # of a fact, besides the majority
_STYLES = {"fail": "error", "unknown": "warn", "warn": "warn", "pass": "plain", "skip": "dim"}


def print_fleet(report: FleetReport, console: Console) -> None:
    """Print what a person must know after a run over many hosts: worst first, similar problems together.

    Lines have at most 100 columns.
    """
    style = {"fail": "error", "unknown": "warn", "warn": "warn"}.get(report.verdict, "strong")
    prose(f"{report.verdict.upper()}  {headline(report)}", 0, console, style)
    prose(meaning(report), 0, console)
    prose(", ".join(occasion(report)), 0, console, "dim")
    if report.stopped:
        prose(f"stopped: {report.stopped}", 0, console, "error", hang=2)
    _print_answers(report, console)
    _print_troubles(troubles(report), results_left_out(report), console)
    _print_handed(report, console)
    _print_waves(report, console)
    _print_causes(report, console)
    _print_uniformity(report, console)
    _print_outliers(report, console)
    _print_medians(report, console)
    _print_hosts(hosts_worst_first(report.hosts), console)
    for note in report.notes:
        say("", console)
        prose(f"note: {note}", 0, console, "warn", hang=2)


def _print_answers(report: FleetReport, console: Console) -> None:
    """Print how the hosts answered, if any host did not answer."""
    found = answers_worst_first(report)
    if set(found) <= {"ok", "no"}:
        return
    _heading("answers", console)
    for word, hosts in found.items():
        prose(f"{hosts:>5}  {ANSWERS[word]} ({word})", 2, console, "plain" if word in ("ok", "no") else "warn", hang=7)


def _print_troubles(found: Sequence[Trouble], left_out: str | None, console: Console) -> None:
    if not found:
        return
    _heading("what to do next", console)
    warnings = [one for one in found if one.outcome == "warn"]
    for one in (*(one for one in found if one.outcome != "warn"), *warnings[:MOST_WARNINGS]):
        _print_trouble(one, console)
    if len(warnings) > MOST_WARNINGS:
        prose(f"! and {len(warnings) - MOST_WARNINGS} more kinds of warnings", 2, console)
    if left_out:
        prose(left_out, 2, console, "warn")


def _print_trouble(one: Trouble, console: Console) -> None:
    sign = SIGNS.get(one.outcome, "?")
    prose(f"{sign} {one.title}: {one.size}: {some(one.hosts, MANY)}", 2, console, _STYLES[one.outcome], hang=2)
    if one.expected:
        prose(f"expected  {one.expected}", 4, console, hang=10)
    if one.actual:
        prose(f"actual    {one.actual}" + ("" if one.alike else " (the first of them)"), 4, console, hang=10)
    if one.hint:
        prose(f"do        {one.hint}", 4, console, hang=10)


def _print_waves(report: FleetReport, console: Console) -> None:
    if not report.waves:
        return
    _heading("waves", console)
    for wave in report.waves:
        outcome = wave_outcome(wave)
        text = f"{SIGNS[outcome]} wave {wave.number}, {count(wave.hosts, 'host')}: {wave_words(wave)}"
        prose(text, 2, console, _STYLES[outcome], hang=2)
        for why in wave.why:
            prose(why, 6, console, hang=2)


def _print_handed(report: FleetReport, console: Console) -> None:
    """Print the devices that were handed over, by the state of their statements."""
    found = [(one.state, line.host) for line in report.hosts for one in line.handed]
    if not found:
        return
    _heading("statements of devices", console)
    for state, style in (("quarantined", "error"), ("void", "error"), ("expiring", "warn"), ("valid", "plain")):
        hosts = [host for known, host in found if known == state]
        if hosts:
            prose(f"{state}: {len(hosts)}: {some(list(dict.fromkeys(hosts)), MANY)}", 2, console, style, hang=2)


def _print_causes(report: FleetReport, console: Console) -> None:
    """Print which hosts are low, grouped by cause."""
    if not report.causes:
        return
    _heading(causes_heading(report), console)
    for one in report.causes:
        prose(f"✗ {cause_title(one)}: {cause_size(one)}: {some(one.hosts, MANY)}", 2, console, "warn", hang=2)
        evidence = "; ".join(one.evidence)
        rows = (("example", one.example), ("evidence", evidence), ("do", one.remedy), ("confirm", one.confirm))
        for word, text in rows:
            if text:
                prose(f"{word:8}  {text}", 4, console, hang=10)


def _print_uniformity(report: FleetReport, console: Console) -> None:
    """Print the configuration facts that are not alike, by machine model."""
    if not report.uniformity:
        return
    _heading(uniform_heading(report), console)
    found = notable(report)
    machine = ""
    for one in found[:MOST_SPREADS]:
        if machine_words(one) != machine:
            machine = machine_words(one)
            prose(f"{machine}: {count(one.hosts, 'host')}", 2, console, hang=2)
        style = "warn" if one.state in ("differs", "split", "unknown") else "plain"
        prose(f"{SIGN_OF[one.state]} {fact_words(one)}: {majority_words(one)}", 4, console, style, hang=2)
        for group in others(one)[:MOST_VALUES]:
            prose(f"{group_words(one, group)}: {holders_words(group.holders, MANY)}", 8, console, hang=2)
        left = len(others(one)) + one.more_values - MOST_VALUES
        if left > 0:
            prose(f"and {left} more values", 8, console)
        if some_unknown(one):
            prose(f"unknown: {holders_words(some_unknown(one), MANY)}", 8, console, hang=2)
        if few_without(one):
            prose(f"no such device: {some(one.without, MANY)}", 8, console, hang=2)
    if len(found) > MOST_SPREADS:
        prose(f"and {len(found) - MOST_SPREADS} more facts: -o json has every one", 2, console)


def _print_outliers(report: FleetReport, console: Console) -> None:
    if not report.outliers:
        return
    _heading(f"outliers: {count(len(report.outliers), 'figure')} far from their model's median", console)
    for one in report.outliers[:MOST_OUTLIERS]:
        sign = "✗" if one.worse else "·"
        prose(f"{sign} {one.host} {one.subject} {one.metric}: {outlier_words(one)}", 2, console, hang=2)
    if len(report.outliers) > MOST_OUTLIERS:
        prose(f"and {len(report.outliers) - MOST_OUTLIERS} more", 2, console)


def _print_medians(report: FleetReport, console: Console) -> None:
    if not report.medians:
        return
    _heading("medians of the fleet, and their deviation (MAD)", console)
    model = ""
    for one in report.medians:
        if one.model != model:
            model = one.model
            prose(model + (f" ({one.device})" if one.device else ""), 2, console, hang=2)
        figure = f"{number(one.median)} ± {number(one.mad)} {one.unit}"
        prose(f"{median_name(one)}: {figure}, {one.subjects} figures of {count(one.hosts, 'host')}", 4, console, hang=2)


def _print_hosts(lines: Sequence[HostLine], console: Console) -> None:
    """Print the hosts with problems one by one, and count the others."""
    bad = [line for line in lines if line.verdict in ("fail", "unknown") or line.worse]
    if not bad:
        return
    _heading(f"hosts with problems: {len(bad)} of {len(lines)}", console)
    for line in bad[:MOST_HOSTS]:
        text = f"{SIGNS[line.verdict]} {line.host}: {summary(line, warnings=False)}"
        prose(text, 2, console, _STYLES[line.verdict], hang=2)
    if len(bad) > MOST_HOSTS:
        prose(f"and {len(bad) - MOST_HOSTS} more: -o html, json or junit has every host", 2, console)


def _heading(text: str, console: Console) -> None:
    say("", console)
    say(text, console, "strong")
