"""The gate behind a wave, and what a whole run comes to. Pure.

A host is good when every phase that its verb needs answered well in this run; a wave's gate opens when every host of
the wave is good. Whatever was not proven keeps it shut: a missing answer, a reboot that is still to come, a
validation that somebody else's run left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from hosttune.fleet.answers import NOT_ASKED, was_asked
from hosttune.model.fleet import Answer, AnswerOutcome
from hosttune.model.validation import Verdict

Gate = Literal["either", "worse", "verdict"]
GATES: tuple[Gate, ...] = get_args(Gate)

# The phases of each verb, in order. `status` is asked only after a reboot; `hook` is there only where a step of the
# operator's (drain, undrain, the reboot itself) failed, `recover` only where --recover asks for it, `undrain` only
# where the operator has such a step: unknown until it has ended.
PHASES: Mapping[str, tuple[str, ...]] = {
    "discover": ("discover",),
    "plan": ("plan",),
    "apply": ("hook", "recover", "before", "apply", "status", "validate", "undrain"),
    "validate": ("validate",),
    "handover": ("handover",),
    "revert": ("hook", "recover", "before", "revert", "status", "validate", "undrain"),
}
ONLY_IF_ASKED = ("hook", "recover", "undrain")
WAVES = frozenset(("apply", "revert"))  # the verbs that change hosts; the others visit every host
_MOST_REASONS = 20


@dataclass(frozen=True)
class HostStatus:
    """How a host stands in a run: `outcome` ok, or that of the first phase that was not, with its reason."""

    host: str
    outcome: AnswerOutcome = "unknown"
    phase: str | None = None
    why: str | None = None
    verdict: Verdict | None = None
    changed: bool = False

    @property
    def good(self) -> bool:
        """Whether all that was asked of the host is proven."""
        return self.outcome == "ok"

    @property
    def line(self) -> str:
        """What keeps the host from being good, in one line."""
        return f"{self.host}: {self.phase or 'no phase'}: {self.outcome}" + (f": {self.why}" if self.why else "")


def phases(verb: str, *, check: bool) -> tuple[str, ...]:
    """The phases that decide about a host: in check mode nothing is changed, so there is nothing to validate after."""
    return tuple(phase for phase in PHASES[verb] if not check or phase in ("before", verb))


def stands(host: str, verb: str, answers: Mapping[str, Answer], gate: Gate, *, check: bool = False) -> HostStatus:
    """How a host stands, from its answers by phase; a phase that is not there was not answered."""
    verdict = next((answers[name].verdict for name in ("validate", "handover") if name in answers), None)
    changed = any(answer.changed for answer in answers.values())
    for phase in phases(verb, check=check):
        answer = answers.get(phase) or Answer(host=host, phase=phase, why=NOT_ASKED)
        fault = _fault(phase, answer, _reboots(verb, answers), gate)
        if fault is not None:
            outcome, why = fault
            return HostStatus(host, outcome, phase, why, verdict, changed)
    return HostStatus(host, "ok", None, None, verdict, changed)


def _reboots(verb: str, answers: Mapping[str, Answer]) -> bool:
    """Whether the change takes hold at the next boot only."""
    return verb in answers and answers[verb].reboot_required is True


def _fault(phase: str, answer: Answer, reboots: bool, gate: Gate) -> tuple[AnswerOutcome, str | None] | None:
    """(what is wrong with an answer, why); None: nothing is."""
    if phase == "before" and answer.outcome == "no":
        return None  # a host may well have faults before it is changed: it is measured against them
    if (phase == "status" and not reboots) or (phase in ONLY_IF_ASKED and not was_asked(answer)):
        return None
    if phase == "status" and not was_asked(answer):
        return "refused", "a reboot is pending, and was not made"
    if answer.outcome != "ok":
        return answer.outcome, answer.why
    by_verdict = phase == "handover" or (phase == "validate" and gate != "worse")
    if by_verdict and answer.verdict not in ("pass", "warn"):  # the command's exit says the same; both must
        return "no" if answer.verdict == "fail" else "unknown", f"verdict {answer.verdict or 'missing'}"
    return None


def judge(hosts: Sequence[str], standings: Mapping[str, HostStatus]) -> tuple[bool, tuple[str, ...]]:
    """(whether the next wave may go, why not: a line for each host that is not proven good, cut after some)."""
    bad = [standings.get(host) or HostStatus(host, why="not asked") for host in hosts]
    reasons = [standing.line for standing in bad if not standing.good]
    told = reasons[:_MOST_REASONS]
    if len(reasons) > len(told):
        told.append(f"and {len(reasons) - len(told)} more hosts")
    return bool(hosts) and not reasons, tuple(told)


def exit_code(standings: Iterable[HostStatus]) -> int:
    """4 where a host needs a person, else 1 where one is not good or its verdict is a fail or unknown, else 0."""
    found = list(standings)
    if any(standing.outcome == "needs-person" for standing in found):
        return 4
    return int(any(not one.good or one.verdict in ("fail", "unknown") for one in found))
