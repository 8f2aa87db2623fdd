"""The report of a validation, for the person who decides whether a host goes to a tenant: the verdict, what to do next,
every result, changes, measurements, and plan against reality.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from hosttune.bench.baselines import Standard
from hosttune.bench.measures import by_metric, figure_rows, measures, scales
from hosttune.domain.defined import as_planned
from hosttune.domain.guestdiff import DIFFERENT, UNKNOWN, Comparison, compare_definition
from hosttune.model.diagnosis import Diagnosis
from hosttune.model.host import Host
from hosttune.model.listing import some
from hosttune.model.plan import Plan, PlannedGuest
from hosttune.model.text import count, number
from hosttune.model.validation import OUTCOMES, CheckResult, Validation, counts, worst_first
from hosttune.model.values import Value, format_size
from hosttune.report.blocks import (
    CHECKLIST,
    EVERY,
    AnyBlock,
    Charts,
    Entries,
    Facts,
    Findings,
    Lines,
    Maps,
    Picture,
    Plots,
    Report,
    Section,
    Suite,
    Table,
    TitledFacts,
)
from hosttune.report.changes import ChangedFigure, Changes, changes
from hosttune.report.heatmaps import distances, matrices
from hosttune.report.judged import charts, counted
from hosttune.report.outcomes import (
    WORDS,
    Mark,
    NextStep,
    folded,
    groups,
    headline,
    meaning,
    next_steps,
    occasion,
)
from hosttune.report.prediction import diagnosis_blocks, path_blocks
from hosttune.report.roofline import rooflines, roofs, sides
from hosttune.rules.checks.on import Check

# --- plan and reality ----------------------------------------------------------------------------------------
# The checks judge; this module only compares. What the host does not report is unknown, never "as planned".


class GuestReality(Value, frozen=True, kw_only=True):
    """One planned guest: `state` as libvirt reports it, the comparisons, and the results of the checks."""

    name: str
    state: str
    rows: tuple[Comparison, ...]
    results: tuple[CheckResult, ...] = ()

    @property
    def differing(self) -> int:
        """The number of rows that differ."""
        return sum(row.state == DIFFERENT for row in self.rows)

    @property
    def unknown(self) -> int:
        """The number of rows that could not be compared."""
        return sum(row.state == UNKNOWN for row in self.rows)


def reality(plans: Iterable[Plan], host: Host | None, results: Iterable[CheckResult] = ()) -> tuple[GuestReality, ...]:
    """Compare every guest of the plans, in their order. If two plans have the same guest, the later one counts."""
    planned = {guest.name: guest for plan in plans for guest in plan.guests}
    results = tuple(results)
    return tuple(
        _real_guest(guest, host, tuple(result for result in worst_first(results) if result.subject == guest.name))
        for guest in planned.values()
    )


def _real_guest(planned: PlannedGuest, host: Host | None, results: tuple[CheckResult, ...]) -> GuestReality:
    guests = host.guests if host else None
    actual = next((guest for guest in guests or () if guest.name == planned.name), None)
    if actual is None:
        missing = "this host's guests are unknown" if guests is None else "not defined on this host"
        state = UNKNOWN if guests is None else DIFFERENT
        row = Comparison(what="guest", planned="defined", actual=missing, state=state)
        return GuestReality(name=planned.name, state=missing, rows=(row,), results=results)
    rows = compare_definition(as_planned(planned), actual)
    return GuestReality(name=planned.name, state=actual.state or "state unknown", rows=rows, results=results)


# --- the report ----------------------------------------------------------------------------------------------


KINDS_SHOWN = 12  # rows of results on a page that must stay short
STEPS_SHOWN = 8  # shown at once, the others on request; steps that fix a failure are always shown
MANY = 12  # subjects named in the list of steps before "and N more"; the checklist has all of them
_CHANGE = {"worse": "fail", "better": "pass", "unknown": "unknown", "within noise": "skip"}
_STANDING = {"as planned": "pass", "differs": "fail"}
_WHEN = re.compile(r"([0-9]{4}-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9])")
_KEY = (
    ("bar", "median"),
    ("low", "median on the wrong side of its floor"),
    ("range", "range of the runs"),
    ("floor", "floor"),
    ("typical", "typical figure"),
)
_RULE = (
    "Any failure makes the verdict FAIL; else anything unknown makes it UNKNOWN; else a warning makes it WARN. Only"
    " otherwise is it PASS."
)


def validation_report(
    validation: Validation,
    *,
    host: Host | None = None,
    plans: Iterable[Plan] = (),
    before: Validation | None = None,
    baselines: Callable[[], Standard] | None = None,
    history: Iterable[Validation] = (),
    checks: Iterable[Check] = (),
    diagnosis: Callable[[], Diagnosis] | None = None,
    each: bool = False,
) -> Report:
    """Return the report. `before` is an earlier validation to compare with; `baselines` and `history` (earlier
    validations of this host) are what figures are compared with. `checks` explain the ids of the results. `diagnosis`:
    these figures against the model of this host. Both are asked for only where they are shown. What is not given is
    left out, or the report says that it is missing. `each`: nothing that has one reason is told once.
    """
    checklist = Findings(
        parts=validation.results,
        labels=_labels(validation.results, host),
        suite=_suite(validation),
        each=each,
        forms=(*EVERY, "junit"),
    )
    number_of = counts(validation.results)
    facts = dict(validation.facts or {})
    nothing = "No check was made: this says nothing about the host."
    return Report(
        kind="Validation of a GPU host",
        command="hosttune validate",
        name=validation.host or "unnamed host",
        verdict=validation.verdict,
        word=validation.verdict.upper(),
        headline=headline(validation),
        meaning=meaning(validation),
        occasion=tuple(line for line in (machine_text(host), ", ".join(occasion(validation))) if line),
        tiles=tuple((outcome, number, WORDS[outcome]) for outcome, number in number_of.items()),
        blocks=(
            _steps(next_steps(validation.results)),
            *([_picture(host, validation.results)] if host else []),
            Section(
                heading=CHECKLIST,
                lead="Unknown is what applies here and could not be read; it is never a pass.",
                blocks=(checklist,) if validation.results else (Lines(lines=(nothing,)),),
                forms=(*EVERY, "junit"),
            ),
            *_changes(changes(before, validation)),
            *_measured(validation, host, baselines, history),
            *([_diagnosed(diagnosis, host)] if diagnosis else []),
            Section(
                heading="Plan against reality",
                lead="What each planned guest was to get, beside what this host says that it has.",
                blocks=tuple(_guest(guest) for guest in reality(plans, host, validation.results)),
            ),
            Facts(heading="Measured with", parts=tuple(facts.items())),
            Section(
                heading="About this report",
                lead=_RULE,
                blocks=(Facts(heading="What the checks are", parts=_explained(validation.results, checks), fold=True),),
                forms=("html",),
            ),
        ),
    )


def brief_report(validation: Validation) -> Report:
    """Return the verdict, and one table of what did not pass with what to do."""
    return Report(
        kind="Validation of a GPU host",
        name=validation.host or "unnamed host",
        verdict=validation.verdict,
        word=validation.verdict.upper(),
        headline=headline(validation),
        meaning=meaning(validation),
        blocks=(results_table(validation.results, "What did not pass", "fail", "unknown", "warn", most=None),),
        after="every result: hosttune validate; one page: -o html",
    )


def results_table(
    results: Iterable[CheckResult], heading: str, *outcomes: str, most: int | None = KINDS_SHOWN
) -> Table:
    """Return what has these outcomes, what says the same in one row; at most so many rows, and how many more."""
    alike = [group for group in folded(groups(results)) if group.outcome in outcomes]
    rows = [
        (
            Mark(group.outcome, group.outcome),
            some(group.check.split(", "), 1),
            some(group.subjects, 1),
            group.actual or "",
            group.hint or "",
        )
        for group in alike[:most]
    ]
    if len(rows) < len(alike):
        rows.append(
            (Mark(outcomes[-1], "more"), f"{len(alike) - len(rows)} more", "", "the full validation has them", "")
        )
    columns = ("outcome", "check", "of", "what was seen", "what to do")
    return Table(heading=heading, columns=columns, rows=tuple(rows), whole=True)


def _suite(validation: Validation) -> Suite:
    when = _WHEN.match(validation.at or "")
    runs = (
        f"{measure.metric} {measure.subject}: {number(measure.median)} {measure.unit}"
        f" (runs: {' '.join(map(number, measure.runs))})"
        for measure in measures(validation.samples)
    )
    return Suite(
        name=f"hosttune validate {validation.host or 'host'}",
        attributes={"hostname": validation.host or "unknown", **({"timestamp": when[1]} if when else {})},
        properties={
            "verdict": validation.verdict,
            "summary": headline(validation),
            "level": str(validation.level),
            "hosttune": validation.version or "unknown",
            **(validation.facts or {}),
        },
        log="\n".join(runs),
    )


def _steps(steps: tuple[NextStep, ...]) -> Section:
    entries = tuple(
        TitledFacts(
            title=step.hint,
            mark=Mark(step.outcome, step.outcome),
            facts=(("fixes", "; ".join(f"{check}: {some(subjects, MANY)}" for check, subjects in step.mends)),),
        )
        for step in steps
    )
    first = max(STEPS_SHOWN, sum(step.outcome == "fail" for step in steps))
    lead = "Worst first; each remedy once, with everything that it fixes."
    block = Entries(parts=entries, first=first, forms=("md", "html"), whole=True)
    return Section(heading="What to do next", lead=lead, blocks=(block,))


def _picture(host: Host, results: tuple[CheckResult, ...]) -> Section:
    def draw() -> str:
        from hosttune.report.svg import host_svg

        return host_svg(host, results=results, sheets=True)

    caption = "NUMA nodes, PCIe tree and GPUs, with what the checks found on them. Select a device to see its results."
    return Section(heading="The host", blocks=(Picture(draw=draw, name="Picture of the host", caption=caption),))


def _changes(found: Changes | None) -> Iterator[Section]:
    if found is None:
        return
    outcomes = tuple(
        (outcome.check, outcome.subject, _outcome(outcome.before), _outcome(outcome.after), outcome.actual)
        for outcome in found.outcomes
    )
    columns = ("check", "subject", "before", "after", "actual")
    unknown, noise = len(found.unknown), len(found.within_noise)
    yield Section(
        heading="Before and after",
        blocks=(
            Lines(lines=(f"Compared with {found.before}: {found.headline}.",), style="dim"),
            Table(
                heading="Outcomes that changed", columns=columns, rows=outcomes, whole=True, styles={"subject": "mono"}
            ),
            _figures("Figures that changed", found.changed),
            _figures(f"{unknown} figures that cannot be compared", found.unknown, fold=True),
            _figures(f"{noise} figures within noise", found.within_noise, fold=True),
            Lines(heading="Not comparable", lines=found.doubts, style="warn", forms=("text", "md")),
        ),
    )


def _outcome(word: str) -> Mark:
    return Mark(word if word in OUTCOMES else "skip", word)


def _figures(heading: str, figures: tuple[ChangedFigure, ...], *, fold: bool = False) -> Table:
    rows = tuple(
        (
            Mark(_CHANGE[figure.verdict], figure.verdict),
            figure.metric,
            figure.subject,
            figure.before,
            f"{figure.after} {figure.unit}",
            figure.effect,
        )
        for figure in figures
    )
    return Table(
        heading=heading,
        columns=("verdict", "metric", "subject", "before", "after", "effect (95 %)"),
        rows=rows,
        styles={"subject": "mono", **dict.fromkeys(("before", "after", "effect (95 %)"), "num")},
        fold=fold,
        forms=("html",) if fold else ("text", "md", "html"),
        whole=True,
    )


def _measured(
    validation: Validation, host: Host | None, baselines: Callable[[], Standard] | None, history: Iterable[Validation]
) -> Iterator[Section | AnyBlock]:
    rows = tuple(
        (metric, subject, figure, members[0].unit)
        for metric, members in by_metric(measures(validation.samples)).items()
        for subject, figure in figure_rows(members)
    )
    columns = ("metric", "subject", "median (lowest to highest)", "unit")
    yield Table(heading="Measured", columns=columns, rows=rows, forms=("text", "md"), whole=True)

    def drawn() -> tuple[AnyBlock, ...]:
        standard = baselines() if baselines else None
        beside = scales(validation.samples, host, standard, history) if standard else ()
        figures = measures(validation.samples, beside)
        plots = rooflines(figures, roofs(host, standard), sides(validation.facts)) if standard else ()
        return (Charts(parts=charts(figures), key=_KEY), Plots(parts=plots))

    def maps() -> tuple[AnyBlock, ...]:
        far = distances(host) if host else None
        return (Maps(parts=(*matrices(measures(validation.samples)), *([far] if far else []))),)

    lead = "Medians; the fine line is the range of all runs, none left out."
    nothing = (
        "Nothing was measured at this level. Run hosttune validate --level 1 on the host for the quick benchmarks."
    )
    none = Lines(lines=(nothing,), style="dim")
    yield Section(
        heading="Measurements",
        lead=lead if validation.samples else "",
        blocks=drawn if validation.samples else (none,),
        forms=("html",),
    )
    yield Section(heading="Matrices", blocks=maps, forms=("html",))


def _diagnosed(diagnosis: Callable[[], Diagnosis], host: Host | None) -> Section:
    def drawn() -> tuple[AnyBlock, ...]:
        found = diagnosis()
        return (
            Lines(lines=(f"{counted(found)}.",), style="dim"),
            *diagnosis_blocks(found),
            *path_blocks(found.paths, host),
        )

    lead = (
        "Each figure beside what a machine of this shape gives (hosttune predict); the results of the checklist do not"
        " depend on it."
    )
    return Section(heading="Figures against the model, and causes", lead=lead, blocks=drawn, forms=("html",))


def _guest(guest: GuestReality) -> Table:
    standing = "as planned"
    if guest.differing:
        standing = f"{guest.differing} differ{'s' if guest.differing == 1 else ''}"
    elif guest.unknown:
        standing = f"{guest.unknown} unknown"
    rows = [(row.what, row.planned, row.actual, _STANDING.get(row.state, "unknown"), row.state) for row in guest.rows]
    rows += [
        (result.check, result.expected or "", result.actual or "", result.outcome, result.outcome)
        for result in guest.results
        if result.outcome in ("fail", "unknown", "warn")
    ]
    return Table(
        heading=f"{guest.name}: {guest.state}; {standing}",
        columns=("what", "planned", "now", "standing"),
        rows=tuple((*row[:3], Mark(*row[3:])) for row in rows),
        forms=("html",),
    )


def _labels(results: Iterable[CheckResult], host: Host | None) -> Mapping[str, str]:
    models = {gpu.address: gpu.model for gpu in host.gpus} if host else {}
    return {
        result.subject: f"{result.subject}: {models[result.subject]}"
        for result in results
        if models.get(result.subject)
    }


def machine_text(host: Host | None) -> str:
    """Return a description of the machine: product, CPUs, memory, GPUs, kernel; only what is known."""
    if host is None:
        return ""
    platform, model = host.platform, host.cpu_model
    facts = [" ".join(word for word in (platform.vendor, platform.product) if word)] if platform else []
    online = sum(1 for cpu in host.cpus if cpu.online)
    facts += [f"{online} CPUs" + (f", {model.model}" if model and model.model else "")] if online else []
    sizes = [node.memory_bytes for node in host.numa_nodes if node.memory_bytes]
    facts += [f"{format_size(sum(sizes))} in {count(len(sizes), 'node')}"] if sizes else []
    gpus = Counter(gpu.model or f"{gpu.vendor} GPU" for gpu in host.index.accelerators)
    facts += [f"{number} × {name}" for name, number in gpus.items()]
    facts += [f"kernel {host.kernel}"] if host.kernel else []
    return " · ".join(fact for fact in facts if fact)


def _explained(results: Iterable[CheckResult], checks: Iterable[Check]) -> tuple[tuple[str, str], ...]:
    used = {result.check for result in results}
    return tuple(
        (f"{check.id}: {check.title}", f"{check.why} ({check.source})") for check in checks if check.id in used
    )
