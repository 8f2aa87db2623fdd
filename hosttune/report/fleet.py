"""The report of a fleet: what to do next, waves, who differs, every host with its checks, worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from urllib.parse import quote

import msgspec

from hosttune.model.fleet import STATES, CauseGroup, FleetReport, HostLine, Outlier, Spread, State
from hosttune.model.listing import some
from hosttune.model.text import count, number
from hosttune.model.validation import OUTCOMES, CheckResult, Outcome
from hosttune.model.values import grouped
from hosttune.model.verification import StatementState
from hosttune.report.blocks import (
    GRID,
    AnyBlock,
    Entries,
    Facet,
    Findings,
    Grid,
    Lines,
    NameList,
    Report,
    Roster,
    RosterRow,
    Section,
    Suite,
    Table,
    TitledFacts,
)
from hosttune.report.fleet_groups import (
    ANSWERS,
    VERDICT_WORDS,
    Trouble,
    answer_of,
    answers_worst_first,
    headline,
    hosts_worst_first,
    meaning,
    median_name,
    occasion,
    outlier_text,
    pending,
    results_left_out,
    summary,
    troubles,
    verdicts,
)
from hosttune.report.fleet_uniform import (
    STATE_WORDS,
    fact_text,
    few_without,
    group_text,
    holder_text,
    machine_text,
    majority_text,
    notable,
    others,
    some_unknown,
)
from hosttune.report.outcomes import WORDS, Mark, groups

NO_CAUSE = "no cause found"
GRADE_WORDS = {
    "proven": "proven: the fault was seen, and the figure keeps to the bound that it sets",
    "observed": "observed: the fault was seen, and it acts on such figures",
    "fits": "fits: the figure keeps to the bound that the fault sets",
    "indirect": "indirect: the fault was seen; no source says what it costs such figures",
    "default": "default: such machines have it unless it was removed",
    "possible": "possible: it acts on such figures, and nothing speaks against it",
}
MOST_GROUPS = 12  # for one host's row: its own page and its result file have all of them
DEVICES = 8  # named for one thing to do; each host's row has all of its own
MOST_WHY = 20  # reasons of one wave
WARNINGS_SHOWN = 8  # kinds that a page shows at once
_STATES: Mapping[State, str] = {"differs": "fail", "split": "fail", "unknown": "unknown"}
_STATEMENTS: Mapping[StatementState, str] = {"quarantined": "fail", "void": "fail", "expiring": "warn", "valid": "pass"}
_ABOUT = (
    "A host's verdict is that of its validation in this run: any failure makes it FAIL, else anything unknown makes it "
    "UNKNOWN, else a warning makes it WARN; a host without an answer is UNKNOWN. The fleet has that of its worst host."
)


def fleet_report(report: FleetReport) -> Report:
    """Return the report. Links to hosts' own pages are relative to the results folder."""
    lines = hosts_worst_first(report.hosts)
    return Report(
        kind="A fleet of GPU hosts",
        command=f"hosttune fleet {report.verb}: {headline(report)}",
        verdict=report.verdict,
        word=report.verdict.upper(),
        name=count(len(lines), "host") if lines else "",
        headline=headline(report).partition(": ")[2] or headline(report),
        meaning=meaning(report),
        occasion=(", ".join(occasion(report)),),
        stopped=report.stopped,
        tiles=tuple((verdict, hosts, VERDICT_WORDS[verdict]) for verdict, hosts in verdicts(report).items() if lines),
        blocks=_blocks(report, lines),
    )


def _blocks(report: FleetReport, lines: tuple[HostLine, ...]) -> tuple[Section | AnyBlock, ...]:
    """Return the parts of the report in order, of which empty ones are left out."""
    answers = () if set(answers_worst_first(report)) <= {"ok", "no"} else answers_worst_first(report).items()
    causes = sum(len(group.hosts) for group in report.causes)
    bad = [line for line in lines if line.verdict in ("fail", "unknown") or line.worse]
    return (
        Table(
            heading="Answers",
            columns=("answer", "hosts", "meaning"),
            rows=tuple((word, str(hosts), ANSWERS[word]) for word, hosts in answers),
            styles={"hosts": "num"},
            forms=("text", "md"),  # a page filters by them
        ),
        Section(
            heading="What to do next",
            lead="Worst first; the same failure of many hosts is one line.",
            blocks=_steps(report),
        ),
        Table(
            heading="Worse than in the run before",
            columns=("host", "what"),
            rows=tuple((line.host, "; ".join(line.worse)) for line in lines if line.worse),
        ),
        Entries(heading="Done, apart", parts=tuple(_apart(report)), numbered=False),
        Entries(heading="Statements of devices", parts=tuple(_statements(report)), numbered=False),
        Entries(heading="Waves", parts=tuple(_waves(report)), numbered=False),
        Section(
            heading="Hosts",
            lead="Worst first. A host whose answer is missing, empty, incomplete or of another run is unknown; it "
            "is never left out.",
            blocks=lambda: (_roster(report, lines),),
            forms=("html",),
        ),
        Section(heading="Checks", blocks=lambda: _checks(report, lines), forms=("html",)),
        Section(
            heading=f"Hosts that are low, by cause: {causes} of {len(lines)}",
            lead="Figures below what is typical of the shape of their machine, and why, as hosttune diagnose says "
            "of each host's validation. A host is under its best supported cause.",
            blocks=(Entries(parts=tuple(map(_cause, report.causes)), numbered=False),),
        ),
        *([_uniformity(report)] if report.uniformity else []),
        *([_figures(report)] if report.outliers or report.medians else []),
        Table(
            heading=f"Hosts with problems: {len(bad)} of {len(lines)}",
            columns=("verdict", "host", "answer", "what"),
            rows=tuple(
                (
                    Mark(host_line.verdict, host_line.verdict),
                    host_line.host,
                    answer_of(host_line),
                    summary(host_line, warnings=False),
                )
                for host_line in bad
            ),
            forms=("text", "md"),
        ),
        Section(
            heading="About this report",
            blocks=(
                Lines(lines=report.notes, style="warn"),
                Lines(lines=(_ABOUT,), style="dim", forms=("html",)),
            ),
        ),
        Section(
            heading="Hosts",
            blocks=lambda: tuple(_suite(line, report.verb) for line in report.hosts),
            forms=("junit",),
        ),
    )


# --- what to do ----------------------------------------------------------------------------------------------


def _steps(report: FleetReport) -> tuple[AnyBlock, ...]:
    steps = [(trouble.outcome == "warn", _step(trouble)) for trouble in troubles(report)]
    return (
        Entries(parts=tuple(step for warning, step in steps if not warning)),
        Entries(heading="Warnings", parts=tuple(step for warning, step in steps if warning), first=WARNINGS_SHOWN),
        Lines(lines=tuple(filter(None, [results_left_out(report)])), style="warn"),
    )


def _step(trouble: Trouble) -> TitledFacts:
    actual = f"{trouble.actual or 'no reason given'}{'' if trouble.alike else ' (the first of them)'}"
    return TitledFacts(
        title=trouble.title,
        mark=Mark(trouble.outcome, trouble.outcome),
        note=trouble.size,
        facts=_given(
            ("hosts", NameList(trouble.hosts)),
            ("devices", some(trouble.places, DEVICES)),
            ("expected", trouble.expected),
            ("actual", actual),
            ("do", trouble.hint),
        ),
        strong="do",
    )


def _apart(report: FleetReport) -> Iterator[TitledFacts]:
    """Yield what is done and not as wanted yet: guests that run as before their change, settings with another value."""
    if waits := pending(report):
        hosts = NameList(tuple(f"{host} ({', '.join(guests)})" for host, guests in waits.items()))
        do = "shut each guest down when it suits, then hosttune apply --start: its next start has the change"
        yield TitledFacts(
            title=f"update pending: {count(len(waits), 'host')}",
            facts=_given(("hosts", hosts), ("do", do)),
            strong="do",
        )
    told = ((answer, line.host) for line in report.hosts for answer in line.answers if answer.outcome == "ok")
    for why, names in grouped((answer.why, host) for answer, host in told if answer.why).items():
        facts = _given(("hosts", NameList(tuple(dict.fromkeys(names)))))
        yield TitledFacts(title=why, mark=Mark("warn", "other value"), facts=facts)


def _given(*facts: tuple[str, str | NameList | None]) -> tuple[tuple[str, str | NameList], ...]:
    return tuple((label, text) for label, text in facts if text)


def _statements(report: FleetReport) -> Iterator[TitledFacts]:
    states = grouped((handed_line.state, line.host) for line in report.hosts for handed_line in line.handed)
    for state, outcome in _STATEMENTS.items():
        if hosts := states.get(state):
            facts = (("hosts", NameList(tuple(dict.fromkeys(hosts)))),)
            yield TitledFacts(title=count(len(hosts), "device"), mark=Mark(outcome, state), facts=facts)


def _waves(report: FleetReport) -> Iterator[TitledFacts]:
    for wave in report.waves:
        outcome, word = {None: ("skip", "not reached"), True: ("pass", "passed"), False: ("fail", "stopped")}[
            wave.passed
        ]
        why = [*wave.why[:MOST_WHY], *([f"and {len(wave.why) - MOST_WHY} more"] if len(wave.why) > MOST_WHY else [])]
        title = f"wave {wave.number}, {count(wave.hosts, 'host')}"
        yield TitledFacts(title=title, mark=Mark(outcome, word), facts=tuple(("", line) for line in why))


def _cause(cause: CauseGroup) -> TitledFacts:
    hosts = count(len(cause.hosts), "host")
    size = f"{count(cause.figures, 'low figure')} of {hosts}" if cause.figures else f"{hosts}, no figure low"
    facts = _given(
        ("hosts", NameList(cause.hosts)),
        ("grade", GRADE_WORDS[cause.grade] if cause.grade else None),
        ("example", cause.example),
        ("evidence", "; ".join(cause.evidence)),
        ("do", cause.remedy),
        ("confirm", cause.confirm),
    )
    return TitledFacts(
        title=f"{cause.cause or NO_CAUSE}: {size}",
        facts=facts,
        strong="do",
    )


# --- who differs ---------------------------------------------------------------------------------------------


def _uniformity(report: FleetReport) -> Section:
    counted = Counter(spread.state for spread in report.uniformity)
    states = ", ".join(f"{counted[state]} {STATE_WORDS[state]}" for state in STATES if counted[state])
    machines = grouped((f"{machine_text(spread)}: {count(spread.hosts, 'host')}", spread) for spread in notable(report))
    lead = (
        "Compared among hosts of the same machine model and devices of the same kind. A majority is more than half of "
        "what is known; unknown never counts as agreeing. No verdict follows from it: a declared baseline (hosttune "
        "fleet baseline) decides."
    )
    return Section(
        heading=f"Uniformity of {count(len(report.uniformity), 'fact')}: {states}",
        lead=lead,
        blocks=(
            *(
                Entries(heading=machine, parts=tuple(map(_spread, spreads)), numbered=False)
                for machine, spreads in machines.items()
            ),
            Lines(lines=() if machines else ("No fact differs.",)),
        ),
    )


def _spread(spread: Spread) -> TitledFacts:
    facts: list[str | NameList] = [
        NameList(tuple(map(holder_text, group.holders)), f"{group_text(spread, group)}: ") for group in others(spread)
    ]
    facts += [f"and {spread.more_values} more values"] if spread.more_values else []
    facts += [NameList(tuple(map(holder_text, some_unknown(spread))), "unknown: ")] if some_unknown(spread) else []
    facts += [NameList(few_without(spread), "no such device: ")] if few_without(spread) else []
    return TitledFacts(
        title=f"{fact_text(spread)}: {majority_text(spread)}",
        mark=Mark(_STATES.get(spread.state, "skip"), spread.state),
        facts=tuple(("", fact) for fact in facts),
    )


def _figures(report: FleetReport) -> Section:
    outliers = grouped((outlier.model, outlier) for outlier in report.outliers)
    medians = grouped(
        (median.model + (f" ({median.device})" if median.device else ""), median) for median in report.medians
    )
    lead = (
        "Each device is compared with all others of its model. Far is a modified z-score, |0.6745 × (figure − median) "
        "÷ MAD|, above 3.5 (Iglewicz and Hoaglin 1993) and a difference that matters; with fewer than five hosts "
        "nothing is called far."
    )
    return Section(
        heading="Outliers and medians",
        lead=lead,
        blocks=(
            Lines(lines=() if outliers else ("No figure is far from the others of its model.",)),
            *(
                Table(
                    heading=f"{model}: {count(len(those), 'figure')} far from the median",
                    columns=("side", "host", "subject", "metric", "figure"),
                    rows=tuple(map(_outlier, those)),
                    styles={"subject": "mono"},
                )
                for model, those in outliers.items()
            ),
            *(
                Table(
                    heading=f"Medians of {model}",
                    columns=("metric", "median", "MAD", "unit", "hosts", "figures"),
                    rows=tuple(
                        (
                            median_name(median),
                            number(median.median),
                            number(median.mad),
                            median.unit,
                            str(median.hosts),
                            str(median.subjects),
                        )
                        for median in those
                    ),
                    styles=dict.fromkeys(("median", "MAD", "hosts", "figures"), "num"),
                    fold=True,
                )
                for model, those in medians.items()
            ),
        ),
    )


def _outlier(outlier: Outlier) -> tuple[Mark | str, ...]:
    side = Mark("fail", "worse") if outlier.worse else Mark("skip", "better")
    return (side, outlier.host, outlier.subject, outlier.metric, outlier_text(outlier))


# --- every host ----------------------------------------------------------------------------------------------


def _roster(report: FleetReport, lines: tuple[HostLine, ...]) -> Roster:
    wrong = (
        tuple(check for check, outcome in line.checks.items() if outcome in ("fail", "unknown", "warn"))
        for line in lines
    )
    facets = (
        Facet(label="Answer", values=tuple((answer_of(line),) for line in lines)),
        Facet(label="Check", values=tuple(wrong)),
        Facet(label="Wave", values=tuple((str(line.wave),) if line.wave is not None else () for line in lines)),
        Facet(label="Group", values=tuple(line.groups for line in lines)),
        Facet(label="Machine", values=tuple((_machine(line),) if _machine(line) else () for line in lines)),
    )
    columns = (*(("Wave",) if report.waves else ()), *(("Machine",) if any(map(_machine, lines)) else ()))
    return Roster(
        noun="host",
        columns=columns,
        styles={"Wave": "num"},
        parts=tuple(_member(line, columns) for line in lines),
        facets=tuple(facet for facet in facets if len(facet.options) > 1),
    )


def _machine(line: HostLine) -> str:
    return line.devices or line.product or ""


def _member(line: HostLine, columns: tuple[str, ...]) -> RosterRow:
    alike = groups(line.told)
    more = sum(len(group.subjects) for group in alike[MOST_GROUPS:]) + line.untold
    entries = [TitledFacts(title=why, mark=Mark("fail", "worse")) for why in line.worse]
    entries += [
        TitledFacts(
            title=group.check,
            mark=Mark(group.outcome, group.outcome),
            note=", ".join(group.subjects),
            facts=_given(("", group.actual or "no reason given"), ("expected", group.expected), ("do", group.hint)),
            strong="do",
        )
        for group in alike[:MOST_GROUPS]
        if group.outcome != "warn"
    ]
    entries += [TitledFacts(title=figure.words, mark=Mark("fail", figure.verdict)) for figure in line.low]
    notes = [
        f"{group.check} of {', '.join(group.subjects)}: {group.actual or 'no reason given'}"
        for group in alike[:MOST_GROUPS]
        if group.outcome == "warn" and group.subjects != ("host",)
    ]
    causes = (f"{cause.cause} ({cause.grade}: {'; '.join(cause.evidence)})" for cause in line.causes)
    notes += [f"and {line.low_untold} more low figures"] if line.low_untold else []
    notes += [f"why: {', then '.join(causes)}"] if line.low and line.causes else []
    notes += [f"and {more} more results in the host's own file"] if more else []
    answers = (
        f"{answer.phase}: {answer.outcome}" + (f" in {number(answer.seconds)} s" if answer.seconds is not None else "")
        for answer in line.answers
    )
    cells = {"Wave": str(line.wave) if line.wave is not None else "–", "Machine": _machine(line)}
    return RosterRow(
        name=line.host,
        outcome=line.verdict,
        note=line.hostname if line.hostname and line.hostname != line.host else "",
        cells=tuple(cells[column] for column in columns),
        summary=summary(line) or "nothing to fix",
        entries=tuple(entries),
        notes=(*notes, " · ".join(filter(None, (line.product, ", ".join(answers)))))
        if entries or notes or line.page
        else (),
        page=quote(line.page, safe="/") if line.page else None,
    )


def _checks(report: FleetReport, lines: tuple[HostLine, ...]) -> tuple[AnyBlock, ...]:
    """Return the map of hosts by checks, and the same in numbers. No cell of a host without an answer is empty."""
    checks = tuple(dict.fromkeys(check for line in report.hosts for check in line.checks))
    cells = []
    for line in lines:
        nothing = "none" if answer_of(line) in ("ok", "no") else "lost"
        cells.append({check: line.checks.get(check, nothing) for check in checks})
    counted = {check: Counter(row[check] for row in cells) for check in checks}
    order = sorted(checks, key=lambda check: tuple(-counted[check][outcome] for outcome in OUTCOMES[:3]))
    words = {**{outcome: WORDS[outcome] for outcome in OUTCOMES}, "lost": "no answer", "none": "not made"}
    return (
        Grid(
            columns=tuple(order),
            parts=tuple("".join(GRID[row[check]] for check in order) for row in cells) if checks else (),
        ),
        Table(
            heading="Hosts by check and outcome",
            columns=("check", *words.values()),
            rows=tuple((check, *(str(counted[check][word] or "") for word in words)) for check in order),
            styles=dict.fromkeys(words.values(), "num"),
            fold=True,
        ),
    )


# --- JUnit: a suite a host, a case for each of its checks -------------------------------------------------------


def _suite(line: HostLine, verb: str) -> Findings:
    seconds = [answer.seconds for answer in line.answers if answer.seconds is not None]
    properties = {
        "verdict": line.verdict,
        "answer": answer_of(line),
        "summary": summary(line),
        "product": line.product,
        "devices": line.devices,
        "wave": str(line.wave) if line.wave is not None else None,
    }
    results = grouped((result.check, result) for result in line.told)
    cases = [_case(check, outcome, results.get(check, ())) for check, outcome in line.checks.items()]
    if not {"fail", "unknown"} & set(line.checks.values()) and line.verdict in ("fail", "unknown"):
        reason = summary(line) or "nothing is proven of this host"
        cases.append(CheckResult(check="verdict", subject="host", outcome=line.verdict, actual=reason))
    return Findings(
        parts=tuple(cases),
        suite=Suite(
            name=line.host,
            classname=f"hosttune.{verb}.{line.host}",
            attributes={
                "hostname": line.hostname or line.host,
                **({"time": f"{sum(seconds):.3f}"} if seconds else {}),
            },
            properties={name: value for name, value in properties.items() if value},
        ),
        forms=("junit",),
    )


def _case(check: str, outcome: Outcome, results: list[CheckResult] | tuple[()]) -> CheckResult:
    """Return the worst result of a check, with the texts of every subject with a problem."""
    if not results:
        actual = "does not apply here" if outcome == "skip" else "see the host's own result file"
        return CheckResult(check=check, subject="host", outcome=outcome, actual=actual)
    alone = len(results) == 1
    lines = (
        f"{result.subject}: {'' if alone else f'{result.outcome}: '}{result.actual or 'no reason given'}"
        for result in results
    )
    return msgspec.structs.replace(results[0], actual="\n".join(lines))
