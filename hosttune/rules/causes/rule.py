"""A rule of the diagnosis: one cause, its source and remedy, and a pure function from a case to its evidence."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from hosttune.model.diagnosis import Grade
from hosttune.model.measured import COLLECTIVES, Measured, Observations
from hosttune.predicting.shape import HostShape
from hosttune.rules.causes.contrasts import contrasted
from hosttune.rules.causes.equals import BESIDE, FALLEN
from hosttune.rules.causes.verdicts import Judged
from hosttune.rules.engine import Finding, Rule

# Families of metrics that the same things limit.
HOST_COPIES = ("h2d", "d2h")
NETWORK = (*COLLECTIVES, "rdma-write")
ON_GPU = ("gemm-bf16", "gemm-fp8", "device-copy")
PRODUCTS = ("gemm-bf16", "gemm-fp8")
MEMORY = ("memory-copy", "memory-latency")
STORAGE = ("disk-read", "storage-read")
WORK = ("tokens-per-second", "mfu")  # whole programs: anything can slow them
CLOCKS = (*PRODUCTS, "sm-clock", "power")
LINK = ("link-speed-gts", "link-width")
_OWN_LIMIT = 0.85  # of the data sheet's power: some makers' boards come with less


class Case(msgspec.Struct, frozen=True, dict=True):
    """What is known: the document, its machine, and the figures with their verdicts.

    `complaining`: the document was written because something is slow; a validation is not a complaint. `written`: by
    people, who chose what is in it; a log has whatever was printed.
    """

    measured: Measured
    shape: HostShape
    figures: tuple[Judged, ...]
    complaining: bool = True
    written: bool = False

    def told(self, observation: str, words: str) -> str:
        """Return the words for an observation with where it was seen, or the words of the log that say it."""
        said = self.seen.said.get(observation)
        return f"{words} ({said})" if said else words

    def apart(self, metrics: Collection[str]) -> tuple[Judged, ...]:
        """Return the figures of these metrics that are far below their equals in the same run."""
        far = tuple(verdict for verdict in self.figures if verdict.apart and verdict.figure.metric in metrics)
        return tuple(verdict for verdict in far if not verdict.apart.endswith((FALLEN, BESIDE)))

    @cached_property
    def falling(self) -> tuple[Judged, ...]:
        """Figures of large messages that are far below those of smaller ones."""
        return tuple(verdict for verdict in self.figures if verdict.apart.endswith(FALLEN))

    @property
    def seen(self) -> Observations:
        """The observations."""
        return self.measured.observations

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """Variables that are set, as upper-case texts without blanks around them."""
        variables = self.measured.setup.environment
        return {name.upper(): str(value).strip() for name, value in variables.items() if value is not None}

    @cached_property
    def open(self) -> tuple[Judged, ...]:
        """Figures that a cause can explain: the low ones, and, if there is none, those that could not be judged."""
        low = tuple(figure for figure in self.figures if figure.verdict == "low")
        fine = any(figure.verdict == "expected" for figure in self.figures)  # then power is what they need
        return low or tuple(
            judged
            for judged in self.figures
            if judged.verdict == "unknown" and not (fine and judged.figure.metric == "power")
        )

    @cached_property
    def board_watts(self) -> float | None:
        """The board's default power limit: as observed, else that of its data sheet."""
        return self.seen.default_power_limit_watts or self.shape.peaks.get("power")

    @cached_property
    def lowered(self) -> bool:
        """Whether the power limit is below the board's default."""
        least = 0.99 if self.seen.default_power_limit_watts else _OWN_LIMIT
        return 0 < (self.seen.power_limit_watts or 0) < (self.board_watts or 0) * least

    @cached_property
    def complaint(self) -> bool:
        """Whether speed is complained of without a figure: the observations are then the finding."""
        return self.complaining and not self.figures

    @cached_property
    def alone(self) -> bool:
        """Whether people named these observations as all that there is to a complaint."""
        return self.complaint and self.written

    def contrast(self, cause: str) -> tuple[str, tuple[Judged, ...], str] | None:
        """Return what people's own comparison of two figures shows of a cause: words, the slow figures, a remedy."""
        linked = cause == "p2p-disabled" and self.shape.linked  # then it is not for want of a way between them
        return contrasted(cause, self.figures, self.seen) if self.written and not linked else None

    def low(self, metrics: Collection[str]) -> tuple[Judged, ...]:
        """Return the low figures of these metrics."""
        return tuple(judged for judged in self.figures if judged.verdict == "low" and judged.figure.metric in metrics)

    def about(self, metrics: Collection[str]) -> tuple[Judged, ...]:
        """Return the figures of these metrics that a cause can explain."""
        return tuple(verdict for verdict in self.open if verdict.figure.metric in metrics)

    def of_every_device(self, figures: tuple[Judged, ...]) -> tuple[Judged, ...]:
        """Return those that a fault of the whole host can explain: no other device has the same figure as expected."""
        fine = {judged.figure.metric for judged in self.figures if judged.verdict == "expected"}
        return tuple(judged for judged in figures if judged.figure.metric not in fine)

    @cached_property
    def networked(self) -> tuple[Judged, ...]:
        """Figures between hosts that a cause can explain; those whose number of hosts is unknown are among them.

        Where several hosts may do one piece of work and the network was not measured, the work's own are.
        """
        socket = self.seen.transport == "socket"
        return tuple(
            verdict
            for verdict in self.about((*NETWORK, "p2p"))
            if verdict.figure.metric == "rdma-write"
            or (verdict.hosts != 1 if verdict.figure.metric != "p2p" else (verdict.hosts or 1) > 1)
        ) or (self.about(WORK) if (self.shape.hosts or (2 if self.shape.nics or socket else 1)) > 1 else ())

    @cached_property
    def low_between(self) -> tuple[Judged, ...]:
        """Low figures of collectives between hosts: what they need besides the network is the GPUs' part of it."""
        return tuple(
            judged for judged in self.networked if judged.verdict == "low" and judged.figure.metric in COLLECTIVES
        )

    @cached_property
    def one_host(self) -> bool:
        """Whether all of it was between the GPUs of one host."""
        many = any((judged.hosts or 1) > 1 for judged in self.figures)
        return self.shape.hosts == 1 and (self.shape.per_host or 0) > 1 and not many

    @cached_property
    def local(self) -> tuple[Judged, ...]:
        """Figures of collectives within one host that a cause can explain."""
        return tuple(verdict for verdict in self.about(COLLECTIVES) if verdict.hosts == 1)


# Of causes with the same support those come first that are about the run itself (its figures, what changed, what it
# waited for), then those that stop a path altogether, then those that limit the machine, those of the network, and
# settings that cost little alone.
TIERS = ("run", "stop", "machine", "network", "setting")


class CauseRule(Rule[Case], frozen=True, kw_only=True):
    """One cause. `remedy`: a command or setting; `confirm`: the one measurement that would confirm it.

    `tier` is one of TIERS. `fault_itself`: the observation is a fault of the machine even where every figure is as
    expected. `unless`: causes which, if they are observed, are the reason of this one: it is then left out.
    """

    confirm: str
    tier: str = "machine"
    fault_itself: bool = False
    unless: tuple[str, ...] = ()


def rule(
    cause: str, *, unread: tuple[str, tuple[str, ...], str, Grade] | None = None, **declaration: Any
) -> Callable[[Callable[[Case], Finding | None]], CauseRule]:
    """Make the decorated function a rule, whose other fields the declaration has. Its docstring says what is wrong.

    `unread`: an observation ("": none shows it). If it is not known and the function finds nothing, low figures of
    these metrics support the cause, with these words and this grade; "default" is that of guests.
    """

    def of_unread(case: Case) -> Finding | None:
        if unread is None or (unread[0] and getattr(case.seen, unread[0]) is not None):
            return None
        low = case.low(unread[1]) if unread[3] == "possible" or case.shape.virtual else ()
        return supports(unread[3], (unread[2],), low) if low else None

    def declare(function: Callable[[Case], Finding | None]) -> CauseRule:
        return CauseRule(
            id=cause,
            title=function.__doc__ or "",
            about="figures",
            judge=lambda case: filter(None, (_or_contrast(function(case), cause, case) or of_unread(case),)),
            **declaration,
        )

    return declare


def _or_contrast(finding: Finding | None, cause: str, case: Case) -> Finding | None:
    """Return the finding, or, where it is none or only possible, what people's own comparison shows of the cause."""
    shown = case.contrast(cause) if finding is None or finding.outcome == "possible" else None
    return supports("fits", (shown[0],), shown[1], shown[2] or None) if shown else finding


def supports(
    grade: Grade, evidence: Sequence[str], explains: tuple[Judged, ...] = (), remedy: str | None = None
) -> Finding:
    """Return what speaks for a cause: how strong it is, the evidence in words, and the figures that it explains.

    `remedy`: where the rule's does not fit the evidence.
    """
    return Finding(evidence[0], outcome=grade, remedy=remedy, more=tuple(evidence[1:]), explains=explains)


def slower_run(case: Case, named: re.Pattern[str], times: float) -> tuple[Judged, ...]:
    """Return the figures that are so many times below the same run with another of what their subjects name."""
    rows = [
        ((v.figure.metric, v.figure.size_bytes, named.sub("", v.figure.subject[:400])), v)
        for v in case.figures
        if named.search(v.figure.subject[:400])
    ]
    best: dict[object, float] = {}
    for run, v in rows:
        best[run] = max(best.get(run, 0.0), v.value or 0.0)
    return tuple(v for run, v in rows if (v.value or 0) * times < best[run])


def keeps_to(figure: Judged, limit: float | None, least: float = 0.8) -> bool:
    """Return whether a figure is held by a limit in its own unit: at most the limit, and not far below it."""
    return limit is not None and figure.value is not None and limit * least <= figure.value <= limit * 1.02


def first_kept(
    figures: Iterable[Judged], limits: Iterable[tuple[float, str]], least: float = 0.8
) -> tuple[Judged, str] | None:
    """Return the first low figure that keeps to one of the limits, the nearest one, with the words of that limit."""
    known = sorted(limits)
    for figure in figures:
        if figure.verdict != "low":
            continue
        for limit, words in known:
            if keeps_to(figure, limit, least):
                return figure, words
    return None


def observed(
    case: Case,
    evidence: str,
    strong: tuple[Judged, ...],
    kept: tuple[Judged, str] | None = None,
    *,
    weak: tuple[Judged, ...] = (),
) -> Finding | None:
    """Return the finding of an observed fault.

    proven if a figure also keeps to the fault's bound; observed if it acts on an open figure (`strong`) or no figure is
    given; indirect if it acts on one, and no source says how much (`weak`); otherwise nothing.
    """
    if kept is not None:
        return supports("proven", (evidence, f"{kept[0].name} keeps to {kept[1]}"), strong or (kept[0],))
    if strong or case.complaint:
        return supports("observed", (evidence,), strong)
    return supports("indirect", (evidence,), weak) if weak else None
