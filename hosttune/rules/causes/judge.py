"""Ask every rule about a case, and order what they find.

Order: how the cause is supported (`model.diagnosis.GRADES`), then what the environment or the log states outright, then
faults of the machine that were seen, then how many figures it explains, then the order of the rules below. Nothing is
weighed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from statistics import median

import msgspec
from msgspec.structs import replace

from hosttune.bench.baselines import Standard, shipped_peaks
from hosttune.errors import BadInput
from hosttune.model.devicepath import GpuRoof
from hosttune.model.diagnosis import GRADES, Cause, Diagnosis, Doubt
from hosttune.model.limits import check_count
from hosttune.model.measured import METRICS, Figure, LinkSeen, Measured, NicLink, Observations
from hosttune.model.values import grouped
from hosttune.predicting.estimates import OWN_METRICS, roof_of
from hosttune.predicting.shape import HostShape, shape_of, slot_of
from hosttune.rules.causes.equals import SPREAD, compared
from hosttune.rules.causes.rule import HOST_COPIES, PRODUCTS, TIERS, WORK, Case, CauseRule
from hosttune.rules.causes.rules_gpus import lacks_peers
from hosttune.rules.causes.rules_other import LOG_LINE
from hosttune.rules.causes.verdicts import AVERAGE, Judged, judge_figure
from hosttune.rules.engine import Finding, rules_of

FAMILIES = ("rules_other", "rules_network", "rules_power", "rules_guest", "rules_gpus", "rules_pcie")
_GRADES: tuple[str, ...] = GRADES
_CERTAIN = ("proven", "observed", "fits")  # enough to name a cause where no figure is known to be low
_STARTED = 32 << 20  # bytes; of smaller copies the start takes much of the time
_MOST_REASONS = 16  # why figures are unknown
_MOST_CAUSES, _ENOUGH = 6, 3  # so many are shown; causes that are only possible fill up to three


@cache
def rules() -> tuple[CauseRule, ...]:
    """Return every rule, in the order in which causes with the same support are named."""
    declared = rules_of("hosttune.rules.causes", FAMILIES, CauseRule)
    return tuple(sorted(declared, key=lambda rule: TIERS.index(rule.tier)))


def measured_peaks(measured: Measured, where: str) -> dict[str, float]:
    """Return the peaks that a document's figures show ("memory" in GB/s, number types in TFLOP/s).

    Raises BadInput if it has no product or no copy within a GPU, or one whose unit does not fit or that no such GPU can
    reach.
    """
    shape = shape_of(measured, shipped_peaks())
    figures = [judge_figure(figure, measured, shape) for figure in measured.figures]
    for judged in figures:
        wrong = judged.verdict == "impossible" or (judged.value is None and judged.figure.value is not None)
        if judged.figure.metric in OWN_METRICS.values() and wrong:
            what = f"{judged.name}: {judged.figure.value:g} {judged.figure.unit}: {judged.why}"
            raise BadInput(what, where=where, hint="correct the figure or its unit, or leave it out")
    peaks = own_peaks(figures)
    if not peaks:
        metrics = ", ".join(OWN_METRICS.values())
        raise BadInput("no measured peak in it", where=where, hint=f"it needs a figure of one of: {metrics}")
    return peaks


def diagnose(
    measured: Measured,
    standard: Standard | None = None,
    *,
    complaining: bool = True,
    hostless: bool = False,
    written: bool = False,
) -> Diagnosis:
    """Return verdicts and causes for a document. Raises BadInput for too many figures.

    `complaining` False: observations without figures are no complaint of speed; only faults of the machine are named.
    `hostless`: the figures are a validation's, whose host could be given and was not. `written`: people wrote the
    document, and chose what is in it.
    """
    check_count(len(measured.figures), "figures of a diagnosis", "figures")
    measured, problems = without_contradictions(measured)
    shape = shape_of(measured, standard or shipped_peaks())
    figures = compared(_of_clocks(_of_sizes([judge_figure(figure, measured, shape) for figure in measured.figures])))
    case = Case(measured, shape, figures, complaining, written)
    ranked = _ranked(case)
    merely = [finding for _, finding in ranked if case.complaint and _merely_set(case, finding)]
    if case.written:
        ranked.sort(key=lambda pair: pair[1] in merely)
    elif len(merely) == len(ranked):
        ranked = []
    return Diagnosis(
        figures=tuple(verdict.shown() for verdict in figures),
        causes=tuple(_cause(rank, rule, finding) for rank, (rule, finding) in enumerate(ranked, 1)),
        next=(
            *(f"{finding.text}: set, and no figure says that it costs anything" for finding in merely if not ranked),
            *_next(case, ranked, hostless=hostless),
        ),
        problems=problems,
        roofs=_roofs(shape, figures),
    )


def _roofs(shape: HostShape, figures: Sequence[Judged]) -> tuple[GpuRoof, ...]:
    """Return the roof of the GPUs with their own figures, if products were measured; impossible ones do not count."""
    own = own_peaks(figures)
    roof = roof_of(shape, own) if set(own) - {"memory"} else None
    return (roof,) if roof is not None else ()


def own_peaks(figures: Iterable[Judged]) -> dict[str, float]:
    """Return the medians of copies within a GPU ("memory", GB/s) and of dense products (TFLOP/s by number type)."""
    groups: dict[str, list[float]] = {}
    names = {metric: name for name, metric in OWN_METRICS.items()}
    for judged in figures:
        name = names.get(judged.figure.metric)
        if name is not None and judged.value and judged.verdict != "impossible":
            groups.setdefault(name, []).append(judged.value)
    return {name: median(values) for name, values in groups.items()}


def _of_sizes(figures: Sequence[Judged]) -> tuple[Judged, ...]:
    """Return the figures; a small message is left alone where a larger one was measured, or is as it should be.

    So is an average over sizes, where a large message is as it should be.
    """
    fine = {judged.figure.metric for judged in figures if judged.verdict == "expected"}
    largest: dict[tuple[str, str, bool], float] = {}
    for judged in figures:
        for as_expected in {False, judged.verdict == "expected"}:
            key = (judged.figure.metric, judged.figure.subject, as_expected)
            largest[key] = max(largest.get(key, 0), judged.figure.size_bytes or 0)
    return tuple(
        replace(judged, verdict="expected")
        if (judged.figure.metric in fine and judged.verdict != "impossible" and AVERAGE.search(judged.figure.subject))
        or (
            judged.verdict == "low"
            and (judged.figure.size_bytes or _STARTED) < _STARTED
            and judged.figure.metric in fine.intersection(HOST_COPIES)
        )
        or (
            (judged.small or judged.verdict == "low")
            and (judged.figure.size_bytes or 0)
            < largest.get((judged.figure.metric, judged.figure.subject, judged.verdict == "low"), 0)
        )
        else judged
        for judged in figures
    )


def _of_clocks(figures: Sequence[Judged]) -> tuple[Judged, ...]:
    """Return the figures; a clock below the maximum is left alone where products are as they should be at it."""
    fine = {judged.verdict for judged in figures if judged.figure.metric in PRODUCTS} == {"expected"}
    return tuple(
        replace(judged, verdict="expected")
        if fine and judged.figure.metric == "sm-clock" and judged.verdict == "low" else judged
        for judged in figures
    )  # fmt: skip


def _ranked(case: Case) -> list[tuple[CauseRule, Finding]]:
    low = any(figure.verdict == "low" for figure in case.figures)
    ranked: list[tuple[CauseRule, Finding]] = []
    for rule in rules():
        findings = list(rule.findings(case))
        if rule.fault_itself and not low and not any(finding.outcome in _CERTAIN for finding in findings):
            findings = list(rule.findings(Case(case.measured, case.shape, ())))  # the fault alone
        ranked += [(rule, finding) for finding in findings if low or case.complaint or finding.outcome in _CERTAIN]
    apart = case.apart(METRICS)  # what such machines have unless it was removed sets none of them apart
    ranked = [
        (rule, finding)
        for rule, finding in ranked
        if finding.outcome not in ("default", "possible") or not all(judged in apart for judged in finding.explains)
        or not finding.explains
    ]  # fmt: skip
    if not low and any(figure.verdict == "expected" for figure in case.figures):  # a setting that costs nothing there
        ranked = [
            (rule, finding)
            for rule, finding in ranked
            if rule.tier != "setting" or any(judged.figure.metric not in WORK for judged in finding.explains)
        ]
    seen = {rule.id for rule, finding in ranked if finding.outcome in ("proven", "observed")}
    ranked = [(rule, finding) for rule, finding in ranked if not seen.intersection(rule.unless)]
    ranked.sort(
        key=lambda pair: (
            _GRADES.index(pair[1].outcome), pair[0] is not LOG_LINE, not _stated(case, pair[1]),
            not (pair[0].fault_itself and pair[1].outcome == "observed" and (pair[1].explains or not case.open)),
            -len(pair[1].explains),
        )
    )  # fmt: skip
    explained = {figure.name for _, finding in ranked if finding.outcome == "proven" for figure in finding.explains}
    ranked = [
        (rule, finding)
        for rule, finding in ranked
        if finding.outcome not in ("default", "possible") or not finding.explains
        or {figure.name for figure in finding.explains} - explained
    ]  # fmt: skip
    better = [pair for pair in ranked if pair[1].outcome != "possible"]
    possible = [pair for pair in ranked if pair[1].outcome == "possible"]
    return [*better[:_MOST_CAUSES], *possible[: max(0, _ENOUGH - len(better))]]


def _merely_set(case: Case, finding: Finding) -> bool:
    """Return whether variables are all that speaks for it: machines that run well have them set, too."""
    return (
        not finding.more
        and "complaint" not in case.seen.said
        and all(
            part.partition("=")[0] in case.environment for part in re.split(r"[;,] (?=[A-Z_]+=|[a-z])", finding.text)
        )
    )


def _stated(case: Case, finding: Finding) -> bool:
    """Return whether the environment or the log says the fault itself: nothing is inferred then."""
    evidence = "; ".join((finding.text, *finding.more))
    return any(f"{name}=" in evidence for name in case.environment) or any(
        words in evidence for words in case.seen.said.values()
    )


def _cause(rank: int, rule: CauseRule, finding: Finding) -> Cause:
    return Cause(
        cause=rule.id,
        title="" if rule is LOG_LINE else rule.title.partition(":")[0].rstrip("."),
        rank=rank,
        grade=finding.outcome,  # type: ignore[arg-type]  # one of GRADES, for a cause
        evidence=(finding.text, *finding.more),
        explains=tuple(dict.fromkeys(figure.name for figure in finding.explains)),
        remedy=finding.remedy or rule.remedy,
        confirm=rule.confirm,
        source=finding.source or rule.source,
    )


def _next(case: Case, found: Sequence[tuple[CauseRule, Finding]], *, hostless: bool) -> Iterator[str]:
    """Yield what to give, to measure or to read where a figure could not be judged, or no cause is certain."""
    unknown = [figure for figure in case.figures if figure.verdict == "unknown"]
    # The model of these could not be asked, because facts of their machine are not known.
    lacking = sum(
        judged.estimate is not None and judged.bound is None and bool(judged.estimate.formula) for judged in unknown
    )
    if hostless and lacking:
        yield f"give its host, with --host FILE or --root CAPTURE: {lacking} of {len(case.figures)} figures need it"
    if case.shape.gpu and not case.shape.peaks and case.shape.generation is None:
        yield f"no model of {case.shape.gpu[:80]}: its figures are compared with each other, and with what was observed"
    if case.seen.transport is None and case.shape.hosts != 1 and "transport" in case.seen.said:
        yield (
            f"{case.seen.said['transport']}: between hosts the run would use TCP; whether there were several is not in"
            " it: the lines with nNodes, or those of every host"
        )
    if case.seen.p2p == "off" and not found and lacks_peers(case):
        yield "no peer access: the driver gives these GPUs none over PCIe, so their copies go through host memory"
    yield from _reasons(unknown)
    low = [figure.name for figure in case.figures if figure.verdict == "low"]
    if low and not found:
        yield f"no rule explains {', '.join(low[:4])}: measure with hosttune validate --level 1 and diagnose that"
    elif low and found[0][1].outcome not in ("proven", "observed"):
        yield f"to be sure: {found[0][0].confirm}"


def _reasons(unknown: Sequence[Judged]) -> Iterator[str]:
    """Yield a line for each reason why figures are unknown, and how many figures have further reasons."""
    reasons = grouped((verdict.why, verdict) for verdict in unknown)
    for why, rows in list(reasons.items())[:_MOST_REASONS]:
        metrics = ", ".join(dict.fromkeys(verdict.figure.metric for verdict in rows))
        yield f"{rows[0].name}: {why}" if len(rows) == 1 else f"{len(rows)} figures ({metrics}): {why}"
    left = list(reasons.values())[_MOST_REASONS:]
    if left:
        yield f"and {sum(map(len, left))} more figures, for {len(left)} other reasons"


# --- contradictions ------------------------------------------------------------------------------------------------


def without_contradictions(measured: Measured) -> tuple[Measured, tuple[Doubt, ...]]:
    """Return the document without observations that contradict each other, and what was left out."""
    contradictions = list(_contradictions(measured))
    names = {name for keys, _ in contradictions for name in keys}
    seen = msgspec.structs.replace(measured.observations, **dict.fromkeys(names))
    doubts = [
        Doubt(what="observations that contradict each other", where=", ".join(keys), why=why)
        for keys, why in contradictions
    ]
    pcie = measured.setup.pcie
    if pcie is not None and slot_of(pcie) is None:
        doubts.append(
            Doubt(what="a slot that is not understood", where="setup.pcie", why=f'{pcie[:80]!r}: write "5.0 x16"')
        )
    doubts += _differing(measured.figures)
    return msgspec.structs.replace(measured, observations=seen), tuple(doubts)


def _differing(figures: Sequence[Figure]) -> Iterator[Doubt]:
    """Yield the figures that are given several times with values further apart than runs are; each stays judged."""
    values: dict[tuple[str, str, float | None, str], list[float]] = {}
    for figure in figures:
        if figure.value is not None:
            values.setdefault((figure.metric, figure.subject, figure.size_bytes, figure.unit), []).append(figure.value)
    for (metric, subject, _, unit), differing in values.items():
        if max(differing) > min(differing) * SPREAD:
            name = f"{metric}: {subject}" if subject else metric
            span = f"{min(differing):g} to {max(differing):g} {unit}"
            why = f"given {len(differing)} times, {span}: which one holds is not known"
            yield Doubt(what="figures of one thing that differ", where=name, why=why)


def _contradictions(measured: Measured) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (the observations, why they cannot both be true)."""
    seen, setup = measured.observations, measured.setup
    guests = tuple(name for name in ("guest_topology", "guest_numa") if getattr(seen, name) is not None)
    rows = (
        (("transport", "nvls"), seen.transport == "nvls" and seen.nvls is False,
         "the transport is NVLS, and NVLS is not used"),
        (("transport", "gpudirect_rdma"), seen.transport == "socket" and seen.gpudirect_rdma,
         "sockets do not use GPUDirect RDMA"),
        (("p2p",), seen.p2p == "nvlink" and setup.nvlinks_per_gpu == 0,
         "the path is NVLink, and the setup has no links"),
        (guests, setup.virtual is False and guests, "the setup says that this is not a guest"),
        (("transport",), (setup.hosts or 1) > 1 and seen.transport == "shm",
         f"shared memory is within one host, and the setup has {setup.hosts}"),
    )  # fmt: skip
    yield from ((keys, why) for keys, wrong, why in rows if wrong)
    yield from _excesses(seen)


def _excesses(seen: Observations) -> Iterator[tuple[tuple[str, ...], str]]:
    link, nic = seen.link or LinkSeen(), seen.nic_link or NicLink()
    rows = (
        (("link",), "a width of {:g}", link.width, link.max_width),
        (("link",), "a speed of {:g} GT/s", link.speed_gts, link.max_speed_gts),
        (("nic_link",), "{:g} active ports", nic.ports_active, nic.ports),
        (("nic_link",), "a rate of {:g} Gb/s", nic.rate_gbps, nic.max_rate_gbps),
        (("sm_clock_mhz", "max_sm_clock_mhz"), "{:g} MHz", seen.sm_clock_mhz, seen.max_sm_clock_mhz),
    )
    for keys, words, now, most in rows:
        if now is not None and most is not None and now > most * 1.01:
            yield keys, f"{words.format(now)}, more than the largest, {most:g}"
