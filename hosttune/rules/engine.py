"""The one engine of what is judged: hosts (checks), definitions (lint), figures (causes), variables (environment).

A rule is a declaration and a pure function from values to findings. It speaks of values: a fact that it needs it asks
with `known` or declares as a `Need`, and the engine says why that fact is not there. Unknown is never a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Generic, TypeVar

import msgspec

Scene = TypeVar("Scene")
AnyRule = TypeVar("AnyRule", bound="Rule[Any]")


class Finding(msgspec.Struct, frozen=True):
    """What a rule says of one subject: an address, a guest, the host, a path in the XML.

    `text` says what is there, `more` are further lines of evidence. `outcome` is pass, warn, fail, skip, unknown or
    info, for a cause its grade; "": the rule's own. `source` is what was read. `expected`, `remedy` None: the rule's
    own. `explains`: the figures that a cause explains.
    """

    text: str
    subject: str = ""
    outcome: str = ""
    expected: str | None = None
    source: str | None = None
    remedy: str | None = None
    more: tuple[str, ...] = ()
    explains: tuple[Any, ...] = ()


class NoValue(Exception):
    """A fact that a rule needs is not known, or the rule does not apply without it: the finding that says so."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


def inapplicable(why: str) -> NoValue:
    """Return what ends a rule that does not apply here: it is skipped, with the reason."""
    return NoValue(Finding(why, outcome="skip"))


class Need(msgspec.Struct, Generic[Scene], frozen=True):
    """A fact without which a rule cannot judge: why it cannot, and whether the fact is known."""

    why: str
    known: Callable[[Scene], bool]


class Rule(msgspec.Struct, Generic[Scene], frozen=True, kw_only=True):
    """One rule. `id` is stable and kebab-case.

    `title` says what is right, `about` what it looks at (subjects, or the path of an XML element), `why` what a fault
    costs, `source` where the rule comes from, `remedy` what to do where a finding does not say it. `outcome` is that of
    a finding that names none. The rule is asked only if it `applies`, and then only if each of its `needs` is known.
    """

    id: str
    title: str
    about: str
    why: str = ""
    source: str
    remedy: str = ""
    outcome: str = "fail"
    needs: tuple[Need[Scene], ...] = ()
    applies: Callable[[Scene], bool] = lambda scene: True
    judge: Callable[[Scene], Iterable[Finding]]

    def findings(self, scene: Scene) -> Iterator[Finding]:
        """Yield what this rule finds. What it needs and lacks is one finding, and ends it."""
        if not self.applies(scene):
            return
        missing = next((need for need in self.needs if not need.known(scene)), None)
        if missing is not None:
            yield Finding(missing.why, self.about, "unknown")
            return
        try:
            yield from self.judge(scene)
        except NoValue as no:
            yield no.finding


def rules_of(room: str, families: Sequence[str], kind: type[AnyRule]) -> tuple[AnyRule, ...]:
    """Return the rules that the modules of a room declare, in order. A rule is registered by being declared."""
    modules = [import_module(f"{room}.{family}") for family in families]
    return tuple(dict.fromkeys(rule for module in modules for rule in vars(module).values() if isinstance(rule, kind)))
