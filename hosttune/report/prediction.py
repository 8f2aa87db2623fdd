"""The reports of `predict` and `diagnose`: figures beside the models, causes, paths drawn on the host, rooflines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from hosttune.model.devicepath import DevicePath, GpuRoof
from hosttune.model.diagnosis import OTHER_MACHINES, Cause, Diagnosis, JudgedFigure
from hosttune.model.host import Host
from hosttune.model.listing import some
from hosttune.model.prediction import PredictedFigure, Prediction
from hosttune.model.text import number
from hosttune.report.blocks import AnyBlock, Charts, Entries, Lines, Picture, Plots, Report, Section, Table, TitledFacts
from hosttune.report.judged import (
    BADGES,
    GRADE_WORDS,
    OWN_WORDS,
    VERDICTS,
    alike,
    counted,
    figure_charts,
    named,
    predicted_charts,
    roof_rows,
    sources_of,
)
from hosttune.report.outcomes import Mark
from hosttune.report.roofline import Roof, RooflineRun, roofline

_FIRST = ("all-reduce-busbw", "p2p", "h2d", "gemm-bf16")  # what is asked for first
_FAR = 5000.0  # operations per byte
MANY = 16  # figures that a cause names before "and N more"
_GRADES = {"proven": "fail", "observed": "fail", "fits": "warn", "indirect": "warn"}
_BOUND = (("typical", "typical figure"), ("bound", "bound"))
_JUDGED_KEY = (("bar", "figure"), ("low", "low or impossible"), *_BOUND)
_PREDICTED_KEY = (("bar", "typical figure, or the run's own"), *_BOUND)
_NUMBERS = dict.fromkeys(("typical", "value", "figure", "at most", "bound", "GB/s", "this host", "data sheet"), "num")


def prediction_report(predictions: Sequence[Prediction], host: Host | None = None) -> Report:
    """Return the report of predictions. With the host, paths are drawn on it."""
    reported = any(row.value is not None for prediction in predictions for row in prediction.figures)
    of = predictions[0].of or "this host" if len(predictions) == 1 else f"{len(predictions)} guests"
    measured = "Nothing was measured: each figure follows from a formula, with its inputs and source."
    run = "The run as it was reported, against the models. Each figure follows from a formula, with inputs and source."
    bound = "The bound is what no such machine can exceed"
    typical = "." if reported else "; the typical figure is what such machines give."
    foremost = _foremost(predictions[0].figures) if len(predictions) == 1 and not reported else ""
    return Report(
        kind="Prediction",
        headline=f"A training run on {of}" if reported else f"What to expect of {of}{foremost}",
        occasion=(f"{run if reported else measured} {bound}{typical} What has no source is unknown.",),
        blocks=tuple(
            block for prediction in predictions for block in _predicted(prediction, host, len(predictions) > 1)
        ),
    )


def _foremost(figures: Sequence[PredictedFigure]) -> str:
    """Return the figure that most users ask for first, in words; empty if none is known."""
    for metric in _FIRST:
        known = [figure for figure in figures if figure.metric == metric and figure.typical]
        if known:
            best = max(known, key=lambda figure: figure.typical or 0.0)
            return f": {metric} of {best.subject} should reach {number(best.typical)} {best.unit}"
    return ""


def _predicted(prediction: Prediction, host: Host | None, several: bool) -> Iterator[Section | AnyBlock]:
    of = f"{prediction.of or 'guest'}: " if several else ""
    rows = [(words, members[0]) for words, members in alike(prediction.figures)]
    value = "value" if any(figure.value is not None for _, figure in rows) else "typical"
    cells = tuple(
        (
            *(
                figure.metric,
                number(figure.typical if figure.value is None else figure.value),
                number(figure.bound),
                figure.unit,
                words,
            ),
            "; ".join(figure.because),
        )
        for words, figure in rows
    )
    told = tuple(
        (
            figure.metric,
            _figure_text(figure),
            words,
            "; ".join(figure.because) if figure.bound is None or figure.value else "",
        )
        for words, figure in rows
    )
    columns = ("metric", value, "at most", "unit", "of", "inputs")
    yield Section(
        heading=f"{of}Figures",
        blocks=(
            Table(columns=("metric", "figures", "of", "inputs"), rows=told, forms=("text",), whole=True),
            Table(columns=columns, rows=cells, styles=_NUMBERS, forms=("md",), whole=True),
            Charts(parts=predicted_charts(prediction.figures), key=_PREDICTED_KEY),
            *(() if rows else (Lines(lines=("Nothing is known of this host's devices.",)),)),
            Lines(lines=prediction.notes),
        ),
    )
    yield from _roofs(prediction.roofs, _runs(prediction), of)
    lead = "The slowest path between two GPUs, and from a GPU to its nearest NIC, unless others were asked for."
    yield Section(heading=f"{of}Paths between devices", lead=lead, blocks=path_blocks(prediction.paths, host))
    yield Table(
        heading=f"{of}Formulas and sources",
        columns=("metric", "formula", "source"),
        rows=sources_of(prediction.figures),
        whole=True,
    )


def _figure_text(figure: PredictedFigure) -> str:
    """Return value or typical figure, and the bound, in words."""
    if figure.value is not None:
        most = f", at most {figure.bound:,.4g}" if figure.bound is not None and figure.bound != figure.value else ""
        return f"{figure.value:,.4g} {figure.unit}".rstrip() + most
    if figure.bound is None:
        return "unknown" if figure.typical is None else f"typical {figure.typical:,.4g} {figure.unit}, bound unknown"
    typical = "typical unknown" if figure.typical is None else f"typical {figure.typical:,.4g}"
    return f"{typical}, at most {figure.bound:,.4g} {figure.unit}"


def diagnosis_report(diagnosis: Diagnosis, host: Host | None = None, name: str | None = None) -> Report:
    """Return the report of a diagnosis. `name`: of what the figures are. With the host, paths are drawn on it."""
    verdicts = {figure.verdict for figure in diagnosis.figures}
    style = "unknown" if verdicts == {"unknown"} or not verdicts else "pass"
    style = "fail" if verdicts & {"low", "impossible"} else "warn" if diagnosis.causes else style
    answer = shortfall(diagnosis.figures, diagnosis.causes[0].explains if diagnosis.causes else ())
    told = f"{counted(diagnosis)}."
    if diagnosis.causes:
        sentence = diagnosis.causes[0].sentence
        headline, meaning = (answer, f"{sentence}. {told}") if answer else (sentence, told)
    elif style == "fail":
        headline, meaning = answer or "A figure is low", "No cause found: no rule explains what is low."
    elif style == "pass" and diagnosis.figures:
        headline = "every figure is as such a machine gives it"
        meaning = f"{told} A figure that is as it should be gets no cause."
    else:
        trouble = next((doubt.why for doubt in diagnosis.problems if "no rule knows" in doubt.what), "")
        headline = "not decided: no line names a cause, and no figure is known to be low"
        headline = f"not decided: no rule knows the line {trouble}" if trouble else headline
        apart = next((doubt for doubt in diagnosis.problems if doubt.what == OTHER_MACHINES), None)
        headline = f"not decided: {apart.what}, {apart.why}" if apart else headline
        meaning = (
            told if diagnosis.figures else "Give the figure that is slow, or what shows links, ports and peer access."
        )
    return Report(
        kind="Diagnosis",
        name=name or (host.hostname if host else None) or "measured figures",
        verdict=style,
        headline=headline,
        meaning=meaning,
        blocks=(
            Section(heading="Causes and figures", blocks=diagnosis_blocks(diagnosis)),
            Section(heading="Paths on which the low figures depend", blocks=path_blocks(diagnosis.paths, host)),
            *_roofs(diagnosis.roofs),
        ),
    )


def shortfall(figures: Sequence[JudgedFigure], explained: Sequence[str]) -> str:
    """Return the figure that falls short most, with what it should reach; empty if none does.

    Of figures that the first cause explains where there are any: the sentence of that cause follows.
    """
    goals = [
        (figure, figure.typical or figure.bound or 0.0, figure.value or 0.0)
        for figure in figures
        if figure.verdict == "low"
    ]
    low = [(figure, goal, value) for figure, goal, value in goals if goal and value]
    if not low:
        return ""
    first = [row for row in low if f"{row[0].metric}: {row[0].subject}" in explained] or low
    worst, goal, value = max(first, key=lambda row: abs(math.log(row[2] / row[1])))
    should = "should reach" if worst.typical else "may reach at most"
    words = f"{should} {number(goal)} {worst.unit}; reaches {number(value)}"
    if value > goal:
        words = f"should be {number(goal)} {worst.unit}; is {number(value)}"
    others = f", and {len(low) - 1} more low" if len(low) > 1 else ""
    return f"{worst.metric} of {named(worst)} {words}{others}"


def diagnosis_blocks(diagnosis: Diagnosis) -> tuple[AnyBlock, ...]:
    """Return causes, figures, and what is not known."""
    ordered = sorted(diagnosis.figures, key=lambda figure: VERDICTS.index(figure.verdict))
    fine = [figure for figure in ordered if figure.verdict == "expected"]
    rows = tuple(
        (
            Mark(BADGES[figure.verdict], figure.verdict),
            *(figure.metric, named(figure), "no value" if figure.value is None else number(figure.value)),
            *(number(figure.typical), number(figure.bound), figure.unit, figure.why),
        )
        for figure in ordered
    )
    columns = ("verdict", "metric", "of", "figure", "typical", "bound", "unit", "why")
    bad = figure_charts(figure for figure in ordered if figure.verdict != "expected")
    as_expected = f"{len(fine)} figures as expected"
    return (
        Entries(heading="Causes, best first", parts=tuple(_cause(cause) for cause in diagnosis.causes), whole=True),
        Table(heading="Figures", columns=columns, rows=rows, styles=_NUMBERS, forms=("text", "md"), whole=True),
        Charts(heading="Figures that are not as expected", parts=bad, key=_JUDGED_KEY),
        Charts(heading=as_expected, parts=figure_charts(fine), key=_JUDGED_KEY, fold=True),
        Lines(heading="What is not known, and what to do next", lines=diagnosis.next),
        Lines(
            heading="Not used, or no cause by itself",
            lines=tuple(f"{doubt.where}: {doubt.what}: {doubt.why}" for doubt in diagnosis.problems),
        ),
    )


def _cause(cause: Cause) -> TitledFacts:
    facts = (
        ("evidence", "; ".join(cause.evidence[1:])),
        ("explains", some(cause.explains, MANY)),
        ("do", cause.remedy),
        ("to confirm", cause.confirm),
        ("source", cause.source),
        ("rule", cause.cause),
    )
    return TitledFacts(
        title=cause.sentence,
        mark=Mark(_GRADES[cause.grade], cause.grade) if cause.grade in _GRADES else None,
        note=GRADE_WORDS[cause.grade],
        facts=tuple(fact for fact in facts if fact[1]),
        strong="do",
    )


def path_blocks(paths: Sequence[DevicePath], host: Host | None) -> tuple[AnyBlock, ...]:
    """Return the links of each path, and pictures of the host with them."""
    blocks: list[AnyBlock] = []
    for place, group in enumerate(pictures_of(paths)):
        titles = [f"Path {n}: {path.start} to {path.end}" for n, path in enumerate(group, 1)]
        for title, path in zip(titles, group, strict=True):
            most = "not known how fast" if path.at_most_gb_per_s is None else f"at most {path.at_most_gb_per_s:g} GB/s"
            rows = tuple(
                (
                    *(hop.start, hop.end, number(hop.gb_per_s)),
                    Mark("warn", "slowest") if hop.slowest else "",
                    hop.words,
                )
                for hop in path.hops
            )
            styles = {"from": "mono", "to": "mono", **_NUMBERS}
            columns = ("from", "to", "GB/s", "", "link")
            blocks.append(Table(heading=f"{title}, {most}", columns=columns, rows=rows, styles=styles))
            blocks.append(Lines(lines=path.notes, style="dim"))
        if host is not None:
            caption = f"{'. '.join(titles)}. The slowest link is dashed and named at its device."
            draw = _drawing(host, group, place)
            blocks.append(Picture(draw=draw, name="Paths drawn on the host", caption=caption))
    return tuple(blocks)


def pictures_of(paths: Sequence[DevicePath]) -> tuple[tuple[DevicePath, ...], ...]:
    """Return which paths are drawn together: one over links between GPUs and one over PCIe share no line."""
    linked = [path for path in paths if path.hops and path.hops[0].kind == "links"]
    others = [path for path in paths if path not in linked]
    most = max(len(linked), len(others))
    return tuple((*linked[n : n + 1], *others[n : n + 1]) for n in range(most))


def _drawing(host: Host, paths: Sequence[DevicePath], place: int) -> Callable[[], str]:
    def draw() -> str:
        from hosttune.report.svg import host_svg

        return host_svg(host, sheets=True, paths=paths, part=f"path{place}")

    return draw


def _roofs(roofs: Sequence[GpuRoof], runs: Sequence[RooflineRun] = (), of: str = "") -> Iterator[Section]:
    columns = ("GPU", "what", "this host", "data sheet", "this host's figure is")
    rows = tuple(roof_rows(roofs))
    table = Table(columns=columns, rows=rows, styles=_NUMBERS, forms=("text", "md"))
    plots = (
        roofline(
            (),
            Roof(
                device=roof.gpu,
                memory_gb_per_s=roof.peaks.get("memory"),
                compute={name: value for name, value in roof.peaks.items() if name != "memory"},
                source=roof.source,
                own=roof.own,
                own_is=OWN_WORDS.get(roof.own_is or "", ""),
            ),
            {},
            runs,
        )
        for roof in roofs
    )
    yield Section(
        heading=f"{of}Roofline", blocks=(table, Plots(parts=tuple(plot for plot in plots if plot is not None)))
    )


def _runs(prediction: Prediction) -> list[RooflineRun]:
    """Return the place of a training run under the roofline.

    One far right of the ridge is drawn at the right end (None), so that the ridge stays in the middle.
    """
    return [
        RooflineRun(
            intensity=figure.intensity if figure.intensity is not None and figure.intensity < _FAR else None,
            tflops=figure.value,
            text=f"{figure.subject}: {figure.value:,.4g} {figure.unit}",
        )
        for figure in prediction.figures
        if figure.metric == "roofline" and figure.value
    ]
