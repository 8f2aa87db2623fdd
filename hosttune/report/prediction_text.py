"""A prediction and a diagnosis as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hosttune.model.devicepath import DevicePath
from hosttune.model.diagnosis import Diagnosis
from hosttune.model.prediction import PredictedFigure, Prediction
from hosttune.model.roof import GpuRoof
from hosttune.model.values import format_size, grouped
from hosttune.report.judged import alike, roof_rows


def prediction_text(found: Prediction) -> str:
    """Return one line a figure; figures of several devices that are alike share one line. Then formulas and sources."""
    lines = [f"{found.of or 'host'}: what to expect"]
    groups = alike(found.figures)
    width = max((len(_values(rows[0])) for _, rows in groups), default=0)
    for subjects, rows in groups:
        lines.append(f"  {rows[0].metric:20} {_values(rows[0]):{width}}  {subjects}")
        if rows[0].bound is None or rows[0].value is not None:
            lines += [f"  {'':20} {why}" for why in rows[0].because]
    lines += [*roof_lines(found.roofs), *path_lines(found.paths)]
    sources = sources_of(found.figures)
    lines += ["", "formulas and sources:"] if sources else []
    lines += [f"  {metrics}: {formula} ({source})" for metrics, formula, source in sources]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)


def sources_of(figures: Iterable[PredictedFigure]) -> tuple[tuple[str, str, str], ...]:
    """Return (metrics, formula, source) of the figures that have any; metrics that share both are together."""
    known = (one for one in figures if one.bound or one.typical or one.value)
    groups = grouped(((one.formula, one.source), one.metric) for one in known)
    return tuple((", ".join(dict.fromkeys(metrics)), *key) for key, metrics in groups.items())


def roof_lines(roofs: Iterable[GpuRoof]) -> Iterator[str]:
    """Yield this host's own roof beside the data sheet's, and whether it was measured where it is known."""
    for gpu, what, own, peak, how in roof_rows(roofs):
        yield f"roof of {gpu}: {what:22} {own}{f' ({how})' if how else ''}, data sheet {peak}"


def path_lines(paths: Iterable[DevicePath]) -> Iterator[str]:
    """Yield the paths, a line for each link; the slowest is marked."""
    for path in paths:
        most = "not known" if path.at_most_gb_per_s is None else f"at most {path.at_most_gb_per_s:g} GB/s"
        yield f"path {path.start} to {path.end}: {most}"
        for hop in path.hops:
            rate = "unknown" if hop.gb_per_s is None else f"{hop.gb_per_s:g} GB/s"
            yield f"  {'slowest' if hop.slowest else '':8}{rate:12}{hop.start} to {hop.end}: {hop.words}"
        for note in path.notes:
            yield f"  {'':8}{note}"


def _values(one: PredictedFigure) -> str:
    if one.value is not None:
        most = f", at most {one.bound:,.4g}" if one.bound is not None and one.bound != one.value else ""
        return f"{one.value:,.4g} {one.unit}".rstrip() + most
    if one.bound is None:
        return "unknown" if one.typical is None else f"typical {one.typical:,.4g} {one.unit}, bound unknown"
    typical = "typical unknown" if one.typical is None else f"typical {one.typical:,.4g}"
    return f"{typical}, at most {one.bound:,.4g} {one.unit}"


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
    yield from roof_lines(found.roofs)
    yield from path_lines(found.paths)
    for words in found.next:
        yield f"next: {words}"
    for doubt in found.problems:
        yield f"not used: {doubt.where}: {doubt.what}: {doubt.why}"
