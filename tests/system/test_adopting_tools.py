"""Definitions as other tools write them, adopted: only places change, libvirt takes it, and a second time nothing.

The files are those of the linter (`tests/cases/lint`, whose README says where they come from).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from libvirtd import Libvirtd, libvirtd
from lxml import etree
from system.test_lint_tools import CASES, hosts
from system.test_plan_xml import SCHEMA
from unit.planning.test_adopting_many import rest
from xmledits import edited

from hosttune.model.host import Host
from hosttune.planning.adopting import Adoption, Definition, adopt

__all__ = ["hosts", "libvirtd"]

# What a line must have to be changed or taken out.
PLACES = re.compile(rb"<(vcpupin|emulatorpin|iothreadpin|memnode|memory mode|topology|vcpu )")
WHY = {"virt-install-two": "are not a partition of this host's NVSwitch fabric"}  # those without a place
files = pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)


def adopted(host: Host, xml: bytes) -> Adoption:
    (found,) = adopt(host, [Definition(xml)]).guests
    return found


def changed_lines(one: Adoption) -> list[bytes]:
    """The lines of the definition that are not in the planned one, in their order."""
    before, after = (xml.splitlines(keepends=True) for xml in (one.before, one.after))
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return [line for kind, start, end, _, _ in blocks if kind != "equal" for line in before[start:end]]


@files
def test_only_places_change_and_a_second_time_nothing(path: Path, hosts: Callable[[str], Host]) -> None:
    xml = path.read_bytes()
    one = adopted(hosts("example"), xml)
    assert one.before == xml
    if path.stem in WHY:
        assert WHY[path.stem] in " ".join(one.unplaced)
        assert "guests[" not in " ".join(one.unplaced)  # that is a place in an intent
        assert (one.after, one.changes) == (xml, ())
        return
    assert one.placement is not None
    assert {change.element.split(" of ")[0] for change in one.changes} >= {"vcpupin"}
    assert all(change.why for change in one.changes)
    assert [line for line in changed_lines(one) if not PLACES.search(line)] == []
    assert rest(one.after) == rest(xml)
    again = adopted(hosts("example"), one.after)
    assert (again.after, again.changes) == (one.after, ())


def test_libvirts_schema_accepts_the_results(hosts: Callable[[str], Host]) -> None:
    if not SCHEMA.exists():
        pytest.skip("libvirt's schemas are not installed")
    schema = etree.RelaxNG(etree.parse(SCHEMA))
    for path in CASES:
        schema.assertValid(etree.fromstring(adopted(hosts("example"), path.read_bytes()).after))


def test_libvirt_keeps_them_as_they_are_planned(hosts: Callable[[str], Host], libvirtd: Libvirtd) -> None:
    """As it prints it, each of them has nothing to change. Here is neither KVM nor a TPM's emulator."""
    for path in CASES:
        planned = adopted(hosts("example"), path.read_bytes())
        if planned.placement is None:
            continue
        text = edited(edited(planned.after, ".", {"type": "qemu"}, each=True), "devices/tpm", None, each=True)
        libvirtd.virsh("define", libvirtd.file("planned.xml", text))
        try:
            kept = libvirtd.virsh("dumpxml", "--inactive", "--security-info", planned.name)
            assert adopted(hosts("example"), kept.encode()).changes == (), path.stem
        finally:
            libvirtd.virsh("undefine", "--nvram", planned.name)


def test_what_is_not_understood_stays(hosts: Callable[[str], Host]) -> None:
    """Comments, a tab, two elements on a line, a password, metadata, arguments to QEMU, the end of the file."""
    path = next(path for path in CASES if path.stem == "by-hand")
    one = adopted(hosts("example"), path.read_bytes())
    texts = (
        *(b"<!-- end -->\n", b"  <!-- huge pages: later -->", b"passwd='geheim&lt;7'", b"urn:example:site"),
        *(b"X-PciMmio64Mb,string=262144", b"\n\t<vcpupin vcpu='4'", b"Do not switch off", b"cpuset='0-11'>12<"),
    )
    for kept in texts:
        assert kept in one.before
        assert kept in one.after
