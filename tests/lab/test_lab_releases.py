"""The XML of every shape against the libvirt of each release that it is promised for."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from domain_shapes import SHAPES, changed, emulated, plan_of
from libvirtd import Libvirtd, private_libvirtd
from lxml import etree
from sweeps import FULL

from hosttune.domain.definitions import same_guest
from hosttune.domain.elements import known_elements
from hosttune.domain.writer import domain_xml
from lab.seen import unpacked

pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FULL, reason="make lab-full: unpacks two releases")]

RELEASES = {"bookworm": ("9.0.0", "7.2.0"), "trixie": ("11.3.0", "10.0.0")}
PACKAGES = ("libvirt-daemon-system", "libvirt-clients", "qemu-system-x86", "ovmf", "swtpm", "swtpm-tools")


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> Iterator[tuple[str, etree.RelaxNG, Libvirtd]]:
    """A release by name, its schema, and a libvirtd of it that runs."""
    root = unpacked(request.param, *PACKAGES)
    schema = etree.RelaxNG(etree.parse(str(root / "usr/share/libvirt/schemas/domain.rng")))
    with private_libvirtd(root) as libvirtd:
        yield request.param, schema, libvirtd


def test_it_is_the_libvirt_of_the_release(release: tuple[str, etree.RelaxNG, Libvirtd]) -> None:
    name, _, libvirtd = release
    told = re.search(r"daemon: ([\d.]+)", libvirtd.virsh("version", "--daemon"))
    assert told
    assert told[1] == RELEASES[name][0]


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_is_valid_defined_and_kept(release: tuple[str, etree.RelaxNG, Libvirtd], shape: str) -> None:
    """With the elements that the plan writes for this libvirt and QEMU."""
    name, schema, libvirtd = release
    elements, _ = known_elements(*RELEASES[name])
    guest = changed(emulated(SHAPES[shape]), elements=elements, tpm=True)
    xml = domain_xml(plan_of(guest), guest.name)
    assert schema.validate(etree.fromstring(xml)), schema.error_log
    libvirtd.virsh("define", "--validate", libvirtd.file(f"{guest.name}.xml", xml))
    assert same_guest(libvirtd.virsh("dumpxml", guest.name), xml) == ()
