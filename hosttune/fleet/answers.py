"""Read the answer of a host from RESULTS/HOST/PHASE.json, and check that it can be trusted.

An answer is valid only for the run whose id it contains, for that host and for that phase. A file that is missing,
incomplete, from another run or from another host gives `unknown`; an old pass is never used. An answer whose exit
code, outcome and verdict contradict each other is `unknown` too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self, TypeVar, get_args

import msgspec

from hosttune.errors import BadInput
from hosttune.fleet.results import answer_path, read_file
from hosttune.model.fleet import Answer
from hosttune.model.jsontext import typed_json
from hosttune.model.validation import Verdict
from hosttune.model.values import Value

NOT_ASKED = "no answer of this run"
# The exit codes that are consistent with an outcome. Every other outcome is a failure, whatever the exit code.
_CODES: Mapping[str, tuple[int, ...]] = {"ok": (0,), "no": (1,)}


class _ResultParts(Value, frozen=True, kw_only=True):
    """The two parts of a result file that are decoded: the `fleet` key and the document's verdict."""

    fleet: Answer | None = None
    verdict: str | None = None


def read_answer(results: str, host: str, phase: str, run: str | None, *, check: bool = False) -> Answer:
    """Return the answer of a host in a phase of a run (`run` None: the run that wrote the file last). Never raises.

    If the file cannot be trusted, the outcome is `unknown` and `why` has the reason.
    """
    path = answer_path(results, host, phase, check=check)
    try:
        data = read_file(path)
    except BadInput as error:
        return _unknown(host, phase, run, error.what)
    if data is None:
        return _unknown(host, phase, run, NOT_ASKED)
    try:
        sealed = typed_json(data, _ResultParts)
    except BadInput as error:
        return _unknown(host, phase, run, f"the result file cannot be read: {error.what}")
    answer = sealed.fleet
    if answer is None:
        return _unknown(host, phase, run, "the result file has no fleet record")
    if (answer.host, answer.phase, answer.check) != (host, phase, check):
        return _unknown(host, phase, run, "the result file is of another host or phase")
    if run is not None and answer.run != run:
        return _unknown(host, phase, run, NOT_ASKED)
    doubt = _disagree(answer, sealed.verdict)
    return answer if doubt is None else _unknown(host, phase, answer.run, doubt)


class _FromText(Protocol):
    """What can be read from the text of a document."""

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str) -> Self: ...


D = TypeVar("D", bound=_FromText)


def read_document(results: str, host: str, phase: str, run: str, kind: type[D]) -> tuple[Answer, D | None]:
    """Return a host's answer in a phase of a run, and its document. What cannot be read is unknown. Never raises."""
    answer = read_answer(results, host, phase, run)
    if answer.outcome != "ok":
        return answer, None
    path = answer_path(results, host, phase)
    try:
        return answer, kind.from_json(read_file(path) or b"", where=path)
    except BadInput as error:
        return msgspec.structs.replace(answer, outcome="unknown", why=error.what), None


def _disagree(answer: Answer, verdict: str | None) -> str | None:
    """Return the contradiction in an answer, or None.

    The exit code can contradict the outcome, and the answer's verdict can contradict the verdict in the document.
    """
    codes = _CODES.get(answer.outcome)
    if answer.phase == "revert" and answer.check:
        codes = None  # this phase ran `status`; its exit code 1 means drift, and drift does not prevent a revert
    elif answer.phase == "status" and answer.outcome == "no":
        codes = (0, 1)  # a reboot is pending, or a transaction is unfinished
    if codes is not None and answer.exit_code is not None and answer.exit_code not in codes:
        return f"the answer contradicts itself: outcome {answer.outcome}, exit code {answer.exit_code}"
    if answer.phase == "verify" and answer.outcome in ("ok", "no") and (answer.outcome == "ok") != (verdict == "valid"):
        return f"the answer contradicts itself: outcome {answer.outcome}, and {verdict} in the document"
    if verdict is not None and answer.phase != "verify" and verdict not in get_args(Verdict):
        return f"{verdict[:40]!r} is not a verdict"
    if None not in (verdict, answer.verdict) and verdict != answer.verdict:
        return f"the answer contradicts itself: verdict {answer.verdict}, and {verdict} in the document"
    return None


def has_answer_file(answer: Answer) -> bool:
    """Return whether a result file of this run exists, whatever its content."""
    return not (answer.outcome == "unknown" and answer.why == NOT_ASKED)


def _unknown(host: str, phase: str, run: str | None, why: str) -> Answer:
    return Answer(host=host, phase=phase, run=run, outcome="unknown", why=why)
