"""What a host answered: RESULTS/HOST/PHASE.json read with suspicion.

An answer counts for the run whose id it bears, for that host and that phase, and for nothing else. A file that is
missing, torn, of another run or of another host is `unknown`, never an old pass; so is an answer whose exit code,
outcome and verdict contradict each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hosttune.errors import BadInput
from hosttune.fleet.results import answer_path, read_file
from hosttune.model.fleet import Answer
from hosttune.model.validation import Verdict
from hosttune.model.values import Value

NOT_ASKED = "no answer of this run"
# Exit codes that an outcome can stand beside; the other outcomes say by themselves that it did not go well.
_CODES: Mapping[str, tuple[int, ...]] = {"ok": (0,), "no": (1,)}


class _Sealed(Value, frozen=True, kw_only=True):
    """The key of a result file that is ours, and the document's verdict; all else is skipped, not decoded."""

    fleet: Answer | None = None
    verdict: Verdict | None = None


_DECODER = msgspec.json.Decoder(_Sealed)


def read_answer(results: str, host: str, phase: str, run: str | None, *, check: bool = False) -> Answer:
    """The answer of a host in a phase of a run (`run` None: whichever run wrote it last). Never raises.

    Whatever is no answer to trust comes back as one with outcome `unknown` and the reason in `why`.
    """
    path = answer_path(results, host, phase, check=check)
    try:
        data = read_file(path)
    except BadInput as error:
        return _unknown(host, phase, run, error.what)
    if data is None:
        return _unknown(host, phase, run, NOT_ASKED)
    try:
        sealed = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _unknown(host, phase, run, f"the result file cannot be read: {error}")
    answer = sealed.fleet
    if answer is None:
        return _unknown(host, phase, run, "the result file has no fleet record")
    if (answer.host, answer.phase, answer.check) != (host, phase, check):
        return _unknown(host, phase, run, "the result file is of another host or phase")
    if run is not None and answer.run != run:
        return _unknown(host, phase, run, NOT_ASKED)
    doubt = _disagree(answer, sealed.verdict)
    return answer if doubt is None else _unknown(host, phase, answer.run, doubt)


def _disagree(answer: Answer, verdict: Verdict | None) -> str | None:
    """What in an answer contradicts itself: exit code and outcome, or its verdict and the document's."""
    codes = _CODES.get(answer.outcome)
    if answer.phase == "revert" and answer.check:
        codes = None  # it was `status`, whose 1 says that something drifted: no reason against taking back
    elif answer.phase == "status" and answer.outcome == "no":
        codes = (0, 1)  # a pending reboot, an unfinished transaction
    if codes is not None and answer.exit_code is not None and answer.exit_code not in codes:
        return f"the answer contradicts itself: outcome {answer.outcome}, exit code {answer.exit_code}"
    if None not in (verdict, answer.verdict) and verdict != answer.verdict:
        return f"the answer contradicts itself: verdict {answer.verdict}, and {verdict} in the document"
    return None


def was_asked(answer: Answer) -> bool:
    """Whether there is a file of this run at all, whatever it says."""
    return not (answer.outcome == "unknown" and answer.why == NOT_ASKED)


def _unknown(host: str, phase: str, run: str | None, why: str) -> Answer:
    return Answer(host=host, phase=phase, run=run, outcome="unknown", why=why)
