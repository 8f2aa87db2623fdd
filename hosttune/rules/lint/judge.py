"""Faults of domain XML on a host, each with its evidence (`hosttune lint`, `hosttune plan --check-xml FILE`).

A rule uses only what is known: an unknown node, core or group gives a finding that says so. The planner follows the
same rules, so XML written for a host has no fault there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from hosttune.domain.defined import as_defined
from hosttune.domain.guest import Guest
from hosttune.domain.reader import domain_facts, read_tree
from hosttune.domain.running import UNREAD
from hosttune.errors import BadInput
from hosttune.model.host import Host
from hosttune.model.limits import check_count
from hosttune.model.lint import LintFinding
from hosttune.model.validation import severity
from hosttune.rules.engine import Finding, rules_of
from hosttune.rules.lint.guest_on_host import GuestOnHost, HostFacts
from hosttune.rules.lint.lines import XmlLines
from hosttune.rules.lint.rule import ADVICE, LEVEL, TUNING, LintRule
from hosttune.rules.lint.running import NOT_ASKED, RUNNING_READ, Manager, remedy_of

if TYPE_CHECKING:
    from lxml.etree import _Element

# The modules of rules, in the order of the manual and of findings of the same level.
FAMILIES = (
    *("machine", "cpus", "pins", "memory", "pages", "devices", "pcitree", "locality", "shared", "virtual", "running"),
)
_JUDGED = ("kvm", "qemu")
MOST = 200  # findings of one rule about one guest: the largest planned guests have some 20 devices


@cache
def rules() -> tuple[LintRule, ...]:
    """Return all rules, in the order of the manual."""
    return rules_of("hosttune.rules.lint", FAMILIES, LintRule)


class LintedDefinition(msgspec.Struct, frozen=True):
    """A domain XML and its name for messages: a path, or `libvirt:NAME`.

    `manager`: who started the QEMU that it was made of; None for a definition that somebody wrote.
    """

    file: str
    xml: str | bytes
    manager: Manager | None = None


def lint(host: Host, definitions: Sequence[LintedDefinition]) -> tuple[LintFinding, ...]:
    """Return what is wrong with these guests on this host, also with each other; errors first.

    Raises BadInput, naming the file, for what is not a domain XML, or is one of another hypervisor.
    """
    check_count(len(definitions), "guests of a host", "command line")
    read = [_read(definition) for definition in definitions]
    facts = HostFacts(host, tuple(as_defined(guest) for _, guest, _ in read if guest.name))
    findings: list[LintFinding] = []
    for definition, guest, root in read:
        findings += _of_guest(definition, GuestOnHost(facts, guest, root))
    return tuple(sorted(findings, key=lambda one: severity(one.level)))


def _read(definition: LintedDefinition) -> tuple[LintedDefinition, Guest, _Element]:
    root = read_tree(definition.xml, where=definition.file)
    guest = domain_facts(root, where=definition.file)
    if guest.type not in _JUDGED:
        what = f"a domain of type {guest.type!r}" if guest.type else "a domain without a type"
        hint = "give the XML of a guest of KVM or QEMU: no rule is meant for another hypervisor"
        raise BadInput(f"{what}, which hosttune does not judge", where=definition.file, hint=hint)
    return definition, guest, root


def _of_guest(definition: LintedDefinition, scene: GuestOnHost) -> Iterator[LintFinding]:
    lines, manager = XmlLines(scene.root), definition.manager
    unread = tuple(one.get("path", "") for one in scene.root.iterfind(f"metadata/{UNREAD}")) if manager else ()
    for rule in rules():
        if manager is not None and rule.id in NOT_ASKED:
            continue
        for finding in _shown(rule, rule.findings(scene)):
            if finding.subject.startswith(unread) and rule.id != RUNNING_READ:
                continue  # a rule of its own says that it is not judged
            judged = finding.outcome != "unknown"
            outcome = finding.outcome or rule.outcome
            remedy = finding.remedy or rule.remedy
            yield LintFinding(
                level=LEVEL[ADVICE if outcome == TUNING and not scene.has_gpus else outcome],
                text=finding.text if judged else f"cannot be judged: {finding.text}",
                where=f"{definition.file}: {finding.subject}",
                rule=rule.id,
                guest=scene.guest.name,
                file=definition.file,
                line=lines.of(finding.subject),
                path=finding.subject,
                remedy=remedy if manager is None else remedy_of(manager, rule.id, remedy),
                source=rule.source,
                judged=judged,
            )


def _shown(rule: LintRule, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield each finding once, and after many only their number: a guest can have thousands of devices."""
    every = sorted(dict.fromkeys(findings), key=lambda finding: severity(LEVEL[finding.outcome or rule.outcome]))
    yield from every[:MOST]
    if len(every) > MOST:
        yield replace(every[MOST], text=f"and {len(every) - MOST} more of this rule", subject=rule.about, remedy=None)
