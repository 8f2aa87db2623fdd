"""Answers that are not there: was the host asked, and what is to be done? Only the record of the run says.

A host's file says that it is asked before it is, so a host without a file was most likely not asked. But files get
lost, and other runs over the same folder replace them: a host that the record says was asked may have been changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hosttune.fleet.answers import NOT_ASKED, has_answer_file
from hosttune.fleet.gate import COURSE, WAVES
from hosttune.fleet.record import NOT_CONTACTED, HostDone, RecordedRun
from hosttune.model.fleet import Answer

# What to do about each answer that is not ok. Exit codes: hosttune's own (1, 2, 3, 4, 70).
HINTS: Mapping[str, str] = {
    "no": "read the host's own result file: it says what does not fit or was reverted",
    "bad-input": "correct the intent or the variables of this host",
    "refused": "see what the guard names (a busy device, a stale plan); if a transaction is unfinished, add --recover",
    "needs-person": "log in: a revert failed; look at hosttune status, then run hosttune recover",
    "internal": "a bug in hosttune: keep the result file and report it",
    "unreachable": "check power, network, ssh port, user and keys of the host, then run again with --retry",
    "slow": "look at the load of the host, or give a longer --timeout; then run again with --retry",
    "died": "look at the host's kernel log and whether it restarted; then go on, after apply or revert with --recover",
    "disk-full": "free space on the host (state directory and temporary files), then run again with --retry",
    "wrong-version": "run the bootstrap playbook: all hosts need the controller's version of hosttune",
    "not-installed": "run the bootstrap playbook on the host",
    "unknown": "run again with --retry; if it stays so, run the command on the host by hand",
}  # fmt: skip
_DROPPED = r"(?:kex|ssh)_exchange_identification|Connection (?:closed|reset)"
_DROPS = (
    "sshd of the host, or of the jump host before it, drops new connections (its log has the reason; often more log in "
    "at once than MaxStartups allows): raise MaxStartups there, or give --forks 2; then run again with --retry"
)
ASKED = "asked; no answer yet"  # what a file says while its host is asked (the action plugin of the collection)
_UNKNOWN = "what it did is unknown"
_LOOK = "look at hosttune status there; then run again with --retry, and with --recover if a transaction is unfinished"
_LOOK_COURSE = "look at hosttune handover status there; then run again with --retry"
_WORDS = {COURSE: "hand-over"}


def changes_hosts(verb: str, *, check: bool) -> bool:
    """Whether hosts that were asked may have been changed."""
    return verb in WAVES and not check


def why_unanswered(answer: Answer, record: RecordedRun | None, stopped: str | None) -> tuple[str, str]:
    """Return (what is known of a host that has no file of its phase, what to do). `record`: None if there is none.

    `stopped`: why the run ended before every host was asked; None if it did not.
    """
    if record is None:
        return answer.why or NOT_ASKED, HINTS["unknown"]
    line = record.last.get(answer.host)
    if line is not None and line.why == NOT_CONTACTED:
        return f"not asked: {NOT_CONTACTED}", "fix what stopped the run, then run --resume"
    begun = answer.host in record.begun_hosts
    if line is None and not (begun and record.cut):
        if stopped:
            return "not asked: the run stopped before", "fix what stopped the run, then run --resume"
        if begun:
            return "not asked: it was left out", "go on with --resume; a host that left the inventory needs a new run"
        return "not asked: the run has not come to its wave", "go on with --resume"
    change = changes_hosts(answer.phase, check=answer.check)
    doubt = f": {_UNKNOWN}" if change else ""
    if line is None:
        why = f"its wave had begun when the run was cut off, and it may have been asked{doubt}"
    else:
        why = f"asked, and there is no answer of its {_WORDS.get(answer.phase, answer.phase)}{doubt}{_recorded(line)}"
    return why, hint_of(answer)


def _recorded(line: HostDone) -> str:
    """Return what the record says of the host, whose files have been lost since; "" if it had no answer then either."""
    if line.outcome == "unknown" and line.why == NOT_ASKED:
        return ""
    words = ": ".join(word for word in (line.phase, line.outcome, line.why) if word)
    return f" (the record of the run says: {words})"


def hint_of(answer: Answer) -> str:
    """Return what to do about a host that did not do what it was asked, or of which it is unknown what it did."""
    if answer.outcome == "unreachable" and re.search(_DROPPED, answer.why or ""):
        return _DROPS
    if answer.outcome != "unknown":
        return HINTS[answer.outcome]
    if not changes_hosts(answer.phase, check=answer.check):
        return HINTS["unknown"]
    return _LOOK_COURSE if answer.phase == COURSE else _LOOK


def told(answer: Answer, record: RecordedRun | None, stopped: str | None) -> str | None:
    """Return the reason of an answer, as a report tells it."""
    if not has_answer_file(answer):
        return why_unanswered(answer, record, stopped)[0]
    cut_off = answer.outcome == "unknown" and answer.why == ASKED and changes_hosts(answer.phase, check=answer.check)
    return f"{ASKED}: {_UNKNOWN}" if cut_off else answer.why
