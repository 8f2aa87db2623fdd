"""The gate after a wave, and the exit code of a whole run. Pure functions.

A host is good if every phase that its verb needs succeeded in this run. The gate opens if every host of the wave is
good. Anything that is not proven keeps the gate closed: a missing answer, a pending reboot, or a validation that
another run left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import msgspec

from hosttune.fleet.answers import NOT_ASKED, has_answer_file
from hosttune.model.fleet import Answer, AnswerOutcome
from hosttune.model.validation import Verdict

Gate = Literal["either", "worse", "verdict"]
GATES: tuple[Gate, ...] = get_args(Gate)

# The phases of each verb, in order. `course`: `fleet handover` of hosts that name devices; its phase `sign` is made on
# the controller. `status` runs only after a reboot. `hook` exists only if a step of the operator
# (drain, undrain, the reboot itself) failed, `recover` only if --recover is given. `undrain` exists only if the
# operator has defined such a step; it is unknown until that step has ended.
PHASES: Mapping[str, tuple[str, ...]] = {
    "discover": ("discover",),
    "plan": ("plan",),
    "apply": ("hook", "recover", "before", "apply", "status", "validate", "undrain"),
    "validate": ("validate",),
    "handover": ("handover",),
    "course": ("hook", "course", "sign", "verify", "undrain"),
    "revert": ("hook", "recover", "before", "revert", "status", "validate", "undrain"),
}
ONLY_IF_ASKED = ("hook", "recover", "undrain")
COURSE = "course"
WAVES = frozenset(("apply", "revert", COURSE))  # the verbs that change hosts; the others process all hosts in one wave
_MOST_REASONS = 20


class HostStatus(msgspec.Struct, frozen=True):
    """The status of a host in a run: `outcome` ok, or the outcome of the first phase that failed, with its reason."""

    host: str
    outcome: AnswerOutcome = "unknown"
    phase: str | None = None
    why: str | None = None
    verdict: Verdict | None = None
    changed: bool = False

    @property
    def good(self) -> bool:
        """Whether every needed phase of the host is proven to have succeeded."""
        return self.outcome == "ok"

    @property
    def line(self) -> str:
        """The reason why the host is not good, in one line."""
        return f"{self.host}: {self.phase or 'no phase'}: {self.outcome}" + (f": {self.why}" if self.why else "")


def phases(verb: str, *, check: bool) -> tuple[str, ...]:
    """Return the phases that decide whether a host is good.

    Check mode changes nothing, so there is nothing to validate after it.
    """
    return tuple(phase for phase in PHASES[verb] if not check or phase in ("before", verb))


def status_of(host: str, verb: str, answers: Mapping[str, Answer], gate: Gate, *, check: bool = False) -> HostStatus:
    """Return the status of a host from its answers by phase. A phase missing from `answers` has no answer."""
    verdict = next((answers[name].verdict for name in ("validate", "handover") if name in answers), None)
    changed = any(answer.changed for answer in answers.values())
    for phase in phases(verb, check=check):
        answer = answers.get(phase) or Answer(host=host, phase=phase, why=NOT_ASKED)
        fault = _fault(phase, answer, verb in answers and answers[verb].reboot_required is True, gate)
        if fault is not None:
            outcome, why = fault
            return HostStatus(host, outcome, phase, why, verdict, changed)
    return HostStatus(host, "ok", None, None, verdict, changed)


def _fault(phase: str, answer: Answer, reboots: bool, gate: Gate) -> tuple[AnswerOutcome, str | None] | None:
    """Return (outcome, reason) of an answer that keeps the host from being good; None if the answer is good."""
    if phase == "before" and answer.outcome == "no":
        return None  # a host may have faults before it is changed: later results are compared with them
    if (phase == "status" and not reboots) or (phase in ONLY_IF_ASKED and not has_answer_file(answer)):
        return None
    if phase == "status" and not has_answer_file(answer):
        return "refused", "a reboot is pending, and was not made"
    if answer.outcome != "ok":
        return answer.outcome, answer.why
    # The exit code says the same: both must be good. With `either` the host tells what was unknown before.
    good = ("pass", "warn", "unknown") if phase == "validate" and gate == "either" else ("pass", "warn")
    by_verdict = phase == "handover" or (phase == "validate" and gate != "worse")
    if by_verdict and answer.verdict not in good:
        return "no" if answer.verdict == "fail" else "unknown", f"verdict {answer.verdict or 'missing'}"
    return None


def judge(hosts: Sequence[str], host_statuses: Mapping[str, HostStatus]) -> tuple[bool, tuple[str, ...]]:
    """Return (whether the next wave may start, the reasons why not).

    There is one line for each host that is not proven good, up to _MOST_REASONS.
    """
    bad = [host_statuses.get(host) or HostStatus(host, why="not asked") for host in hosts]
    reasons = [host_status.line for host_status in bad if not host_status.good]
    shown = reasons[:_MOST_REASONS]
    if len(reasons) > len(shown):
        shown.append(f"and {len(reasons) - len(shown)} more hosts")
    return bool(hosts) and not reasons, tuple(shown)


def exit_code(host_statuses: Iterable[HostStatus]) -> int:
    """Return the exit code of a run.

    4 if a host needs a person; else 1 if a host is not good, or its verdict is fail or unknown; else 0.
    """
    statuses = list(host_statuses)
    if any(host_status.outcome == "needs-person" for host_status in statuses):
        return 4
    return int(any(not status.good or status.verdict in ("fail", "unknown") for status in statuses))
