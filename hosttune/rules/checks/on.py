"""A check: a rule about evidence. It names its subjects, and judges each by values.

    @check("thp", title="Transparent huge pages", about="the host", why="…", source="…", expected="madvise")
    def thp(on: On) -> Finding:
        mode = on.need(on.host.memory_settings and on.host.memory_settings.thp, "the mode", THP)
        return on.passed(mode) if mode == "madvise" else on.warned(mode, "echo madvise > …")

A check of devices declares `each`, a function from Evidence to (subject, thing), and gets the thing as second argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec.structs import replace

from hosttune.model.counters import LATER
from hosttune.model.evidence import Evidence
from hosttune.model.host import Host
from hosttune.model.validation import Validation
from hosttune.model.values import grouped
from hosttune.rules.checks.facts import HOST, RECORD, lacks, refused
from hosttune.rules.engine import Finding, NoValue, Rule

T = TypeVar("T")


class Check(Rule["On"], frozen=True, kw_only=True):
    """One check. One result per subject, and at least one in all.

    `expected` is what is right, in words, and `look` how to look at what is not known, where a finding does not say it.
    `each` yields the subjects, None: the host.
    `inside`: the check also makes sense inside a guest, where settings of the host are not judged.
    `for_guests`: the check matters only on a host with GPUs or guests; on others it is skipped and not asked.
    `none`: what the host does not have if there is no subject ("GPU"); used in the single result that says so.
    `of_tree`: the check uses only the PCI tree, although it is about each GPU: unknown for a GPU missing from the tree.
    `since`: the number of the newest fact that it needs (`discovery.evidence`): in older captures only what is bad
    counts.
    """

    expected: str = ""
    look: str = ""
    each: Callable[[Evidence], Iterable[tuple[str, Any]]] | None = None
    inside: bool = False
    for_guests: bool = False
    none: str | None = None
    of_tree: bool = False
    since: int = 0


class On(msgspec.Struct, frozen=True):
    """Evidence as one check asks it about one subject. `reads` is the source of a finding that names none."""

    evidence: Evidence
    check: Check
    subject: str = HOST
    thing: Any = None
    reads: str | None = None
    expected: str | None = None

    @property
    def host(self) -> Host:
        """Return the host document."""
        return self.evidence.host

    def reading(self, source: str, expected: str | None = None) -> On:
        """Return the same with another source, and with what is expected of this subject if that is more exact."""
        return replace(self, reads=source, expected=expected or self.expected)

    def need(self, value: T | None, what: str, path: str = "", *, look: str = "", skip: str = "") -> T:  # noqa: RET503
        """Return a known value; otherwise the check ends with why it is not there, and how to look.

        The kernel refused it at `path`; it is proven absent there, and `skip` says why the check does not apply then;
        or it was not read. Without `path` and `look` the check's own `look` is told.
        """
        if value is not None:
            return value
        why = refused(self.evidence, path) if path else None
        if path and skip and why is None and lacks(self.evidence, path):
            self.skip(skip)
        look = look or (f"cat {path}" if path else "")
        self.give_up(why or f"{what} was not read", self.look(look) if look or not self.check.look else None, path)

    def look(self, command: str) -> str:
        """Return how to look at what is not known: with a command, on a machine and in a whole capture."""
        return f"look with: {command}" if command and self.evidence.complete else RECORD

    def give_up(self, why: str, remedy: str | None = None, source: str = "") -> NoReturn:
        """End the check for this subject: unknown."""
        raise NoValue(self.unknown(why, remedy, source))

    def skip(self, why: str) -> NoReturn:
        """End the check for this subject: it does not apply here."""
        raise NoValue(self.skipped(why))

    def passed(self, text: str, source: str = "", *, expected: str = "") -> Finding:
        """Return that the value is as expected."""
        return self._say("pass", text, None, source, expected)

    def warned(self, text: str, remedy: str | None = None, source: str = "", *, expected: str = "") -> Finding:
        """Return a certain or possible cost that does not stop the use of the host."""
        return self._say("warn", text, remedy, source, expected)

    def failed(self, text: str, remedy: str | None = None, source: str = "", *, expected: str = "") -> Finding:
        """Return that the value is not as expected. `remedy`: the command or setting that corrects it."""
        return self._say("fail", text, remedy, source, expected)

    def unknown(self, text: str, remedy: str | None = None, source: str = "", *, expected: str = "") -> Finding:
        """Return that the check applies, but the value is not known. Never a pass."""
        return self._say("unknown", text, remedy, source, expected)

    def alone(self, text: str, remedy: str = "") -> Finding:
        """Judge a count that was read once: nothing tells when it was. Unknown if a second reading was lost."""
        lost = refused(self.evidence, LATER)
        again = "validate again: what is counted now does not count then"
        again += f"; if it grows, {remedy}" if remedy else ""
        return (self.unknown if lost else self.warned)(f"{text}; {lost or 'one reading does not tell when'}", again)

    def skipped(self, text: str) -> Finding:
        """Return that the check does not apply here."""
        return Finding(outcome="skip", text=text, subject=self.subject)

    def passed_in(self, earlier: Validation) -> bool:
        """Return whether an earlier validation passed this check of this subject."""
        wanted = (self.check.id, self.subject, "pass")
        return any((result.check, result.subject, result.outcome) == wanted for result in earlier.results)

    def worst(self, findings: Iterable[Finding]) -> Finding:
        """Return one finding of several about this subject: the worst, with the text of all that are as bad.

        What is unknown is told with the warnings beside it, and what passed with what was skipped.
        """
        known: list[Finding] = []
        try:
            for finding in findings:
                known.append(finding)  # noqa: PERF402  # what was found before the end counts
        except NoValue as no:
            known.append(no.finding)
        of = grouped((finding.outcome, finding) for finding in known)
        kinds = ("fail",), ("unknown", "warn"), ("warn",), ("pass", "skip"), ("skip",)
        alike = next([finding for kind in row for finding in of.get(kind, ())] for row in kinds if row[0] in of)
        return replace(alike[0], text="; ".join(finding.text for finding in alike if finding.text))

    def _say(self, outcome: str, text: str, remedy: str | None, source: str, expected: str) -> Finding:
        return Finding(
            outcome=outcome,
            text=text,
            subject=self.subject,
            expected=expected or self.expected,
            source=source or self.reads,
            remedy=remedy,
        )


def worst_of(judge: Callable[..., Iterable[Finding]]) -> Callable[..., Finding]:
    """Make a function that yields all findings about a subject return the worst (`On.worst`)."""

    @wraps(judge)
    def single(on: On, *things: Any) -> Finding:
        return on.worst(judge(on, *things))

    return single


def check(
    name: str,
    *,
    reads: str | None = None,
    each: Callable[[Evidence], Iterable[tuple[str, Any]]] | None = None,
    **declaration: Any,
) -> Callable[[Callable[..., Finding | Iterable[Finding]]], Check]:
    """Make the decorated function a `Check`, whose fields the declaration has. It returns or yields its findings.

    `reads`: the source of findings that name none.
    """

    def declare(function: Callable[..., Finding | Iterable[Finding]]) -> Check:
        @wraps(function)
        def judge(on: On) -> Iterator[Finding]:
            on = replace(on, reads=reads) if reads and on.reads is None else on
            said = function(on) if each is None else function(on, on.thing)
            yield from (said,) if isinstance(said, Finding) else said

        return Check(id=name, judge=judge, each=each, **declaration)

    return declare
