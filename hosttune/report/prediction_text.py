"""A prediction and a diagnosis as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.model.diagnosis import Diagnosis
from hosttune.model.prediction import PredictedFigure, Prediction
from hosttune.model.values import format_size


def prediction_text(found: Prediction) -> str:
    """Return one line a figure; figures of several devices that are alike share one line. Then formulas and sources."""
    lines = [f"{found.of or 'host'}: what to expect"]
    groups: dict[tuple[object, ...], list[PredictedFigure]] = {}
    for one in found.figures:
        groups.setdefault((one.metric, _kind(one), one.bound, one.typical, one.because), []).append(one)
    for rows in groups.values():
        metric, kind = rows[0].metric, _kind(rows[0])
        lines.append(f"  {metric:20} {_values(rows[0]):36} {_subjects(rows, kind)}")
        if rows[0].bound is None or rows[0].value is not None:
            lines += [f"  {'':20} {why}" for why in rows[0].because]
    lines += ["", "formulas and sources:"]
    known = dict.fromkeys((one.metric, one.formula, one.source) for one in found.figures if one.bound or one.value)
    lines += [f"  {metric}: {formula} ({source})" for metric, formula, source in known]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)


def _kind(one: PredictedFigure) -> str:
    """Return what distinguishes a subject besides its address: rows of one kind may share a line."""
    address = ":" in one.subject
    return one.subject.partition(", ")[2] or ("" if address else one.subject)


def _values(one: PredictedFigure) -> str:
    if one.value is not None:
        most = f", at most {one.bound:,.4g}" if one.bound is not None and one.bound != one.value else ""
        return f"{one.value:,.4g} {one.unit}".rstrip() + most
    if one.bound is None:
        return "unknown"
    typical = "typical unknown" if one.typical is None else f"typical {one.typical:,.4g}"
    return f"{typical}, at most {one.bound:,.4g} {one.unit}"


def _subjects(rows: list[PredictedFigure], kind: str) -> str:
    names = [one.subject.partition(", ")[0] if kind and ", " in one.subject else one.subject for one in rows]
    words = names[0] if len(names) == 1 else f"{len(names)} alike: {names[0]} to {names[-1]}"
    return f"{words}, {kind}" if kind and words != kind else words


def diagnosis_text(found: Diagnosis) -> str:
    """Return figures with verdicts, then causes, best first, with evidence and what to do."""
    return "\n".join(_diagnosis(found))


def _diagnosis(found: Diagnosis) -> Iterator[str]:
    for one in found.figures:
        value = "no value" if one.value is None else f"{one.value:g} {one.unit}".rstrip()
        about = [
            f"typical {one.typical:.4g}" if one.typical is not None else "",
            f"bound {one.bound:.4g}" if one.bound else "",
        ]
        known = ", ".join(word for word in about if word)
        size = format_size(int(one.size_bytes)) if one.size_bytes else ""
        words = ", ".join(word for word in (one.subject, size) if word)
        subject = f" ({words})" if words else ""
        yield f"{one.verdict:10}  {one.metric}{subject}: {value}{f'; {known}' if known else ''}"
        yield f"            {one.why}"
    if not found.causes:
        bad = any(one.verdict in ("low", "impossible") for one in found.figures)
        yield "no cause found" if bad else "no cause named: no figure is known to be low, and no fault was observed"
    for cause in found.causes:
        yield f"{cause.rank}. {cause.cause} ({cause.grade})"
        for words in cause.evidence:
            yield f"      evidence: {words}"
        if cause.explains:
            yield f"      explains: {', '.join(cause.explains)}"
        yield f"      do: {cause.remedy}"
        yield f"      to confirm: {cause.confirm}"
        yield f"      source: {cause.source}"
    for words in found.next:
        yield f"next: {words}"
    for doubt in found.problems:
        yield f"not used: {doubt.where}: {doubt.what}: {doubt.why}"
