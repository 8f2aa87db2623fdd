"""Faults of domain XML on a host, each with its evidence (`hosttune lint`, `hosttune plan --check-xml FILE`).

A rule uses only what is known: an unknown node, core or group gives a finding that says so. The planner follows the
same rules, so XML written for a host has no fault there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from hosttune.domain.defined import as_defined
from hosttune.domain.guest import Guest
from hosttune.domain.reader import domain_facts, read_tree
from hosttune.domain.running import UNREAD, not_judged
from hosttune.domain.xml import QEMU, Malformed, pci_address
from hosttune.errors import BadInput
from hosttune.model.host import Host
from hosttune.model.limits import check_count
from hosttune.model.lint import LintFinding
from hosttune.model.validation import severity
from hosttune.rules.engine import Finding, rules_of
from hosttune.rules.lint.guest_on_host import GuestOnHost, HostFacts
from hosttune.rules.lint.rule import ADVICE, LEVEL, TUNING, LintRule
from hosttune.rules.lint.running import NOT_ASKED, RUNNING_READ, Manager, author_of, remedy_of

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
        findings += _of_guest(definition, GuestOnHost(facts, guest, root, definition.manager is not None))
    return tuple(sorted(findings, key=lambda finding: severity(finding.level)))


def _read(definition: LintedDefinition) -> tuple[LintedDefinition, Guest, _Element]:
    root = read_tree(definition.xml, where=definition.file)
    try:
        guest = domain_facts(root, where=definition.file)
    except BadInput as error:
        if definition.manager is None:
            raise
        not_judged(root, error)
        guest = domain_facts(root, where=definition.file)
    if guest.type not in _JUDGED:
        what = f"a domain of type {guest.type!r}" if guest.type else "a domain without a type"
        hint = "give the XML of a guest of KVM or QEMU: no rule is meant for another hypervisor"
        raise BadInput(f"{what}, which hosttune does not judge", where=definition.file, hint=hint)
    return definition, guest, root


def _of_guest(definition: LintedDefinition, scene: GuestOnHost) -> Iterator[LintFinding]:
    lines, manager = XmlLines(scene.root), definition.manager
    author = manager or author_of(scene)
    unread = tuple(element.get("path", "") for element in scene.root.iterfind(f"metadata/{UNREAD}")) if manager else ()
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
                remedy=remedy if author is None else remedy_of(author, rule.id, remedy),
                source=rule.source,
                judged=judged,
            )


def _shown(rule: LintRule, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield each finding once, and after many only their number: a guest can have thousands of devices."""
    every = sorted(dict.fromkeys(findings), key=lambda finding: severity(LEVEL[finding.outcome or rule.outcome]))
    yield from every[:MOST]
    if len(every) > MOST:
        yield replace(every[MOST], text=f"and {len(every) - MOST} more of this rule", subject=rule.about, remedy=None)


# --- lines of XML ---------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from lxml.etree import _Element

_OF_SOURCE = re.compile(r"/domain/devices/hostdev\[([^@\]]+)\]")


class XmlLines:
    """The lines of one parsed XML."""

    def __init__(self, root: _Element) -> None:
        self._root = root
        self._known: dict[str, int] = {}

    @cached_property
    def _hostdevs(self) -> dict[str, int]:
        """Return the lines of passed functions by their address on the host; the last, where one is passed twice."""
        counted: dict[str, int] = {}
        for element in self._root.iterfind("devices/hostdev"):
            try:
                source = pci_address(element.find("source/address"))
            except Malformed:
                continue
            if source is not None:
                counted[source] = _line(element)
        return counted

    def of(self, path: str) -> int:
        """Return the line of the element at a path, or of the nearest element above that exists; from 1."""
        if path not in self._known:
            self._known[path] = self._of(path)
        return self._known[path]

    def _of(self, path: str) -> int:
        from lxml.etree import XPathError

        if (passed := _OF_SOURCE.fullmatch(path)) and passed[1] in self._hostdevs:
            return self._hostdevs[passed[1]]
        steps = path.removeprefix("/domain").strip("/")
        while steps:
            # libxml2's XPath: lxml's own find() takes a time that is the square of the number for `disk[9000]`.
            try:
                place = _OF_SOURCE.sub("devices/hostdev", steps)
                found: Any = self._root.xpath(f"({place})[1]/self::*", namespaces={"qemu": QEMU[1:-1]})
            except XPathError:  # a name with a prefix that is not known
                found = None
            if found:
                return _line(found[0])
            steps = steps.rpartition("/")[0]
        return _line(self._root)


def _line(element: _Element) -> int:
    line = element.sourceline
    return line if isinstance(line, int) else 1
