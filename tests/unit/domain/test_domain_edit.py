"""A domain XML is changed and every other byte stays: comments, order, quotes, line ends, encoding."""

from __future__ import annotations

from pathlib import Path

import pytest
from lxml import etree

from hosttune.domain.edit import XmlText
from hosttune.errors import BadInput

HERE = Path(__file__).parents[2]
CASES = sorted((*HERE.glob("cases/domain/*.xml"), *HERE.glob("golden/domain/*.xml")))
ODD = (
    b"<?xml version=\"1.0\" encoding='ISO-8859-1'?>\r\n<!-- first -->\r\n"
    b"<domain type = \"kvm\"\r\n  xmlns:x='urn:x' >\r\n"
    b"\t<name>a &amp; b</name> <!-- <vcpu> > -->\r\n\t<x:own note='a > b' other=\"it's\"/>\r\n\t<vcpu>4</vcpu>\r\n"
    b"\t<title>caf\xe9 <![CDATA[<cpu/>]]></title>\r\n\t<cputune/>\r\n</domain>\r\n<!-- last -->\r\n"
)
TEXTS = [ODD, *(case.read_bytes() for case in CASES)]
NAMES = ["odd.xml", *(f"{case.parent.name}-{case.name}" for case in CASES)]


@pytest.mark.parametrize("data", TEXTS, ids=NAMES)
def test_without_edits_every_byte_stays(data: bytes) -> None:
    assert bytes(XmlText(data)) == data


WITH_VCPU = [n for n, text in enumerate(TEXTS) if b"<vcpu" in text]


@pytest.mark.parametrize("data", [TEXTS[n] for n in WITH_VCPU], ids=[NAMES[n] for n in WITH_VCPU])
def test_only_the_lines_of_the_edits_change(data: bytes) -> None:
    text = XmlText(data)
    vcpu = text.root.find("vcpu")
    assert vcpu is not None
    vcpu.set("placement", "st<&'\"é")
    tune = text.root.find("cputune") or text.add(text.root, "cputune", {})
    text.add(tune, "emulatorsched", {"scheduler": "fifo"})
    after = bytes(text)
    root, was = etree.fromstring(after), etree.fromstring(data)
    now, then = root.find("vcpu"), was.find("vcpu")
    assert now is not None
    assert then is not None
    assert sorted(now.items()) == sorted(
        [*(one for one in then.items() if one[0] != "placement"), ("placement", "st<&'\"é")]
    )
    assert root.find("cputune/emulatorsched") is not None
    lines = after.splitlines(keepends=True)
    edited = (b"<vcpu>", b"<vcpu ", b"<cputune/>")
    kept = [line for line in data.splitlines(keepends=True) if not any(tag in line for tag in edited)]
    rest = iter(lines)
    assert all(line in rest for line in kept)  # the same lines in the same order
    assert len(lines) <= len(kept) + 5  # vcpu, a new or opened cputune of two lines, its child; a comment names vcpu


@pytest.mark.parametrize("data", TEXTS, ids=NAMES)
def test_what_was_added_can_be_removed_again(data: bytes) -> None:
    text = XmlText(data)
    text.remove(text.root, text.add(text.root, "perf", {}))
    assert bytes(text) == data


def test_new_elements_look_like_their_neighbours() -> None:
    text = XmlText(ODD)
    tune = text.root.find("cputune")
    assert tune is not None
    text.add(tune, "vcpupin", {"vcpu": "0", "cpuset": "4"})
    text.add(text.root, "iothreads", {}, "1")
    own = text.root.find("urn:x}own")
    assert own is not None
    own.set("other", 'it\'s "b"')
    own.unset("note")
    after = bytes(text)
    assert b'\t<cputune>\r\n\t\t<vcpupin vcpu="0" cpuset="4"/>\r\n\t</cputune>\r\n' in after
    assert b"</title>\r\n\t<iothreads>1</iothreads>\r\n\t<cputune>" in after
    assert b'<x:own other="it\'s &quot;b&quot;"/>' in after


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"<!DOCTYPE domain [<!ENTITY a 'b'>]><domain><name>&a;</name></domain>", "document type"),
        ("<domain><name>a</name></domain>".encode("utf-16"), "not in UTF-8"),
        (b"<domain><name>a</domain>", "not an XML document"),
        (b"<network/>", "not a <domain>"),
    ],
)
def test_what_is_not_a_plain_domain_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        XmlText(data, where="a.xml")
