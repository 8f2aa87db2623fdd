"""What a host answered: RESULTS/HOST/PHASE.json read with suspicion.

An answer counts for the run whose id it bears, for that host and that phase, and for nothing else. A file that is
missing, torn, of another run or of another host is `unknown`, never an old pass.
"""

from __future__ import annotations

import msgspec

from hosttune.errors import BadInput
from hosttune.fleet.results import answer_path, read_file
from hosttune.model.fleet import Answer
from hosttune.model.values import Value

NOT_ASKED = "no answer of this run"


class _Sealed(Value, frozen=True, kw_only=True):
    """The one key of a result file that is ours; the document's own keys are skipped, not decoded."""

    fleet: Answer | None = None


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
        answer = _DECODER.decode(data).fleet
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _unknown(host, phase, run, f"the result file does not read: {error}")
    if answer is None:
        return _unknown(host, phase, run, "the result file says nothing of the fleet")
    if (answer.host, answer.phase, answer.check) != (host, phase, check):
        return _unknown(host, phase, run, "the result file is of another host or phase")
    if run is not None and answer.run != run:
        return _unknown(host, phase, run, NOT_ASKED)
    return answer


def was_asked(answer: Answer) -> bool:
    """Whether there is a file of this run at all, whatever it says."""
    return not (answer.outcome == "unknown" and answer.why == NOT_ASKED)


def _unknown(host: str, phase: str, run: str | None, why: str) -> Answer:
    return Answer(host=host, phase=phase, run=run, outcome="unknown", why=why)
