"""A definition is edited into what a plan decides, and all that others have added to it stays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import UUID

import pytest
from domain_shapes import ELEMENTS, SHAPES, changed, emulated, plan_of
from hypothesis import given, settings
from hypothesis import strategies as st
from libvirtd import Libvirtd, libvirtd
from lxml import etree
from sweeps import FULL, examples
from xmledits import Edit, edited, with_edits

from hosttune.domain.reader import read_domain
from hosttune.domain.update import differences, updated
from hosttune.domain.writer import domain_xml
from hosttune.model.intent import Network
from hosttune.model.plan import PlannedGuest

__all__ = ["libvirtd"]

# What people add to a guest, by the text behind which it goes.
EXTRAS = {
    "disk": (
        "<devices>",
        "<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/data/b&amp;b.qcow2'/>"
        "<target dev='vdq' bus='virtio'/></disk>",
    ),
    "network": (
        "<devices>",
        "<interface type='network'><mac address='52:54:00:aa:bb:cc'/><source network='theirs'/>"
        "<model type='e1000e'/></interface>",
    ),
    "channel": ("<devices>", "<channel type='unix'><target type='virtio' name='com.example.0'/></channel>"),
    "password": ("<devices>", "<graphics type='vnc' port='-1' autoport='yes' passwd='s3&quot;cret'/>"),
    "device": (
        "<devices>",
        "<hostdev mode='subsystem' type='pci' managed='yes'><source>"
        "<address domain='0x0000' bus='0xf1' slot='0x00' function='0x0'/></source></hostdev>",
    ),
    "serial": ("<devices>", "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>"),
    "comment": ("<features>", "<!-- do not <touch> this: 5 > 4 -->"),
    "feature": ("<features>", "<vmport state='off'/>"),
    "scheduler": ("<cputune>", "<vcpusched vcpus='0' scheduler='fifo' priority='1'/>"),
    "shared memory": ("<memoryBacking>", "<source type='memfd'/><access mode='shared'/>"),
    "metadata": ("</cpu>", "<metadata><a:b xmlns:a='urn:a'>caf&#233; <![CDATA[<cpu/>]]></a:b></metadata>"),
    "label": ("</cpu>", "<seclabel type='none' model='dac'/>"),
}
SAID = {"comment"}  # no element, so nothing is said of it


def xml_of(guest: PlannedGuest) -> str:
    return domain_xml(plan_of(guest), guest.name)


def with_extras(xml: str, names: list[str]) -> str:
    for name in names:
        behind, text = EXTRAS[name]
        at = xml.index(behind) + len(behind)
        xml = f"{xml[:at]}\n      {text}{xml[at:]}"
    return xml


shapes = st.sampled_from(sorted(SHAPES))
extras = st.lists(st.sampled_from(sorted(EXTRAS)), unique=True)


@settings(max_examples=examples(20, full=200))
@given(before=shapes, now=shapes, names=extras)
def test_the_plan_holds_and_the_rest_stays(before: str, now: str, names: list[str]) -> None:
    old = xml_of(changed(SHAPES[before], name="seeded"))
    want = xml_of(changed(SHAPES[now], name="seeded"))
    present = with_extras(old, names)
    update = updated(old, present, want)
    assert differences(update.xml, want) == ()
    assert updated(old, update.xml, want) == update.__class__(update.xml, (), update.kept)
    assert updated(want, update.xml, want).xml == update.xml
    for name in names:
        assert EXTRAS[name][1] in update.xml, name
    assert len(update.kept) >= len(set(names) - SAID)
    # Without what others have added, it is the plan: nothing of the earlier plan is left.
    bare = updated(old, old, want)
    assert bare.kept == ()
    assert differences(want, bare.xml) == ()
    assert read_domain(bare.xml).hostdevs == read_domain(want).hostdevs or set(read_domain(bare.xml).hostdevs) == set(
        read_domain(want).hostdevs
    )
    assert bare.xml != old or old == want or not bare.changes
    if before == now:
        assert update.xml == present
        assert update.changes == ()


def test_without_changes_every_byte_stays_and_with_one_only_its_line_moves() -> None:
    old = with_extras(xml_of(SHAPES["one-gpu"]), sorted(EXTRAS))
    guest = SHAPES["one-gpu"]
    want = xml_of(changed(guest, emulator_cpus="5"))
    update = updated(xml_of(guest), old, want)
    (change,) = update.changes
    assert (change.element, change.was, change.becomes) == ("emulatorpin", "host CPUs 0-1", "host CPUs 5")
    assert update.xml == re.sub(r"(<emulatorpin cpuset=')0-1'", r"\g<1>5'", old)
    assert "disk /data/b&b.qcow2 is not in this intent" in update.kept
    assert "hostdev pci 0000:f1:00.0 is not in this intent" in update.kept


def test_what_a_guest_has_no_word_for_is_named_beside_other_changes() -> None:
    """libvirt's own boot order goes where a disk has one, in the same update as another CPU for the emulator."""
    guest = SHAPES["one-gpu"]
    present = edited(xml_of(guest), "os", "<boot dev='hd'/>")
    update = updated(xml_of(guest), present, xml_of(changed(guest, emulator_cpus="5")))
    assert [(change.element, change.becomes) for change in update.changes] == [
        ("emulatorpin", "host CPUs 5"),
        ("domain/os/boot dev='hd'", "none"),
    ]


def test_devices_go_come_and_move() -> None:
    two = SHAPES["two-cells"]
    old, devices = xml_of(two), two.devices
    fewer = xml_of(changed(two, devices=devices[1:]))
    gone = updated(old, old, fewer)
    device = f"hostdev pci {devices[0].address}"
    assert [one.becomes for one in gone.changes if one.element == device] == ["none"]
    assert {one.element.split()[0] for one in gone.changes} == {"hostdev"}  # and its port, which goes without saying
    assert [one.source for one in read_domain(gone.xml).hostdevs] == [one.source for one in read_domain(fewer).hostdevs]
    # hosttune did not plan it, as far as is known: it stays, and is said
    kept = updated(None, old, fewer)
    assert device in "".join(kept.kept)
    assert read_domain(kept.xml).hostdevs == read_domain(old).hostdevs
    come = updated(fewer, fewer, old)
    assert [one.was for one in come.changes if one.element == device] == ["none"]
    places = [one.guest_address for one in devices[:2]]
    swapped = tuple(changed(one, guest_address=place) for one, place in zip(devices[:2], reversed(places), strict=True))
    moved = xml_of(changed(two, devices=(*swapped, *devices[2:])))
    assert read_domain(updated(old, old, moved).xml).hostdevs == read_domain(moved).hostdevs


def test_disks_come_go_and_change_places() -> None:
    guest = changed(SHAPES["one-gpu"], disk="/img/a", further_disks=("/img/b",))
    orders = [("/img/a",), ("/img/a", "/img/b"), ("/img/b", "/img/a"), ("/img/c", "/img/b", "/img/a"), ()]
    for old, new in ((old, new) for old in orders for new in orders if old != new):
        was, want = (
            xml_of(changed(guest, disk=next(iter(paths), None), further_disks=paths[1:])) for paths in (old, new)
        )
        update = updated(was, was, want)
        disks = sorted(read_domain(update.xml).disks, key=lambda one: one.target or "")
        assert tuple(disks) == read_domain(want).disks, (old, new)
        assert differences(update.xml, want) == ()
    mine = xml_of(changed(guest, further_disks=()))
    kept = updated(mine, xml_of(guest), mine)
    assert (kept.changes, kept.kept) == ((), ("disk /img/b is not in this intent",))


def test_networks_are_told_apart_by_their_source_and_keep_their_address() -> None:
    guest = SHAPES["bridge"]
    mac = "52:54:00:00:00:01"
    old = xml_of(guest)
    present = edited(old, "devices/interface[@type='bridge']", f"<mac address='{mac}'/>")
    assert updated(old, present, xml_of(changed(guest, networks=guest.networks[::-1]))).xml == present
    more = xml_of(changed(guest, networks=(*guest.networks, Network(network="fast"))))
    assert updated(old, present, more).xml.count(mac) == 1
    without = updated(old, present, xml_of(changed(guest, networks=())))
    assert read_domain(without.xml).interfaces == ()


def test_arguments_to_qemu_of_others_stay() -> None:
    guest = changed(SHAPES["one-gpu"], ovmf_window_mib=None)
    old, want = xml_of(guest), xml_of(changed(guest, ovmf_window_mib=65536))
    present = old.replace("<domain ", "<domain xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0' ").replace(
        "</devices>", "</devices><q:commandline><q:arg value='-snapshot'/></q:commandline>"
    )
    update = updated(old, present, want)
    assert read_domain(update.xml).qemu_arguments == ("-snapshot", *read_domain(want).qemu_arguments)
    assert update.kept == ("other arguments to QEMU are not in this intent",)
    assert updated(want, update.xml, old).xml == present
    assert updated(old, old, want).xml.count("xmlns:qemu=") == 1
    assert updated(want, want, old).xml.count("commandline") == 0


@pytest.mark.parametrize(
    ("path", "edit", "said"),
    [
        ("devices/disk/driver", {"cache": "writeback"}, ["disk {} cache: wanted 'none', found writeback"]),
        ("devices/disk/driver", {"cache": None}, ["disk {} cache: wanted 'none', found none"]),
        ("memoryBacking/hugepages/page", {"nodeset": None}, ["memoryBacking: wanted {}, found pages of 1 GiB"]),
        ("cputune/vcpupin[@vcpu='3']", None, ["vcpupin of vCPU 3: wanted host CPUs 5, found not pinned"]),
        ("cpu/numa/cell", {"memory": "33554432"}, ["cell 0 memory: wanted 64 GiB, found 32 GiB"]),
        ("devices/controller/pcihole64", "1048576", ["controller 0 pcihole64: wanted 512 GiB, found 1 GiB"]),
        ("on_crash", "destroy", ["on crash: wanted restart, found destroy"]),
        (
            "clock/timer[@name='pit']",
            {"tickpolicy": "discard"},
            [
                "domain/clock/timer name='pit' tickpolicy='delay': missing",
                "domain/clock/timer name='pit' tickpolicy='discard': not wanted",
            ],
        ),
        (
            "devices/hostdev/source/address",
            {"bus": "0x42"},
            [
                "hostdev pci 0000:42:00.0 guest address: wanted chosen by libvirt, found 0000:01:00.0",
                "hostdev pci 0000:41:00.0: missing",
            ],
        ),
    ],
)
def test_each_difference_is_said_once_and_none_is_not_a_value(path: str, edit: Edit, said: list[str]) -> None:
    want = xml_of(SHAPES["one-gpu"])
    texts = [
        text.replace("/var/lib/libvirt/images/one-gpu.qcow2", "{}")
        for text in differences(edited(want, path, edit), want)
    ]
    assert [text.replace("pages of 1 GiB for cell 0", "{}") for text in texts] == said


def test_a_size_in_another_unit_becomes_the_planned_size() -> None:
    want = xml_of(SHAPES["one-gpu"])
    for size, kept in (("32", False), ("64", True)):
        present = with_edits(want, ("memory", size), ("memory", {"unit": "GiB"}))
        update = updated(want, present, want)
        assert read_domain(update.xml).memory_bytes == 64 << 30
        assert (update.xml == present) == kept


def test_a_definition_that_cannot_be_read_differs() -> None:
    (said,) = differences("<domain", xml_of(SHAPES["one-gpu"]))
    assert said.startswith("present definition: not an XML document")


# --- as libvirt prints it ------------------------------------------------------------------------------------

THEIRS = tuple(
    ("devices", device)
    for device in (
        "<disk type='file' device='disk'><source file='/data/b.qcow2'/><target dev='vdq' bus='virtio'/></disk>",
        "<interface type='user'><mac address='52:54:00:aa:bb:cc'/><model type='virtio'/></interface>",
        "<channel type='unix'><target type='virtio' name='com.example.0'/></channel>",
        "<graphics type='vnc' port='-1' autoport='yes' passwd='secret'/>",
    )
)


@pytest.fixture
def cleared(libvirtd: Libvirtd) -> Iterator[Libvirtd]:
    """The private libvirtd, without guests afterwards."""
    yield libvirtd
    for name in libvirtd.virsh("list", "--all", "--name").split():
        libvirtd.virsh("undefine", "--nvram", name)


def define(libvirtd: Libvirtd, xml: str) -> str:
    libvirtd.virsh("define", libvirtd.file("update.xml", xml))
    return libvirtd.virsh("dumpxml", "--inactive", "--security-info", "seeded")


@pytest.mark.parametrize("before", sorted(SHAPES))
def test_libvirt_takes_every_update_and_prints_what_was_planned(cleared: Libvirtd, before: str) -> None:
    old = xml_of(changed(emulated(SHAPES[before]), name="seeded", uuid=None))
    names = sorted(SHAPES)
    others = (names[names.index(before) - 1], names[names.index(before) - 4], "eight-gpus", "no-gpu")
    for now in others if FULL else others[:2]:
        want = xml_of(changed(emulated(SHAPES[now]), name="seeded", uuid=None))
        printed = define(cleared, with_edits(define(cleared, old), *THEIRS))
        assert differences(printed, old) == ()
        update = updated(old, printed, want)
        after = define(cleared, update.xml)
        assert differences(after, want) == (), now
        assert updated(want, after, want).xml == after
        for path in ("/data/b.qcow2", "52:54:00:aa:bb:cc", "com.example.0", "passwd='secret'"):
            assert path in after, (now, path)
        uuids = [etree.fromstring(xml).findtext("uuid") for xml in (printed, after)]
        assert uuids[0] == uuids[1]
        cleared.virsh("undefine", "--nvram", "seeded")


def test_a_mac_is_the_guests_own_at_each_print_and_the_present_one_stays() -> None:
    guest = changed(SHAPES["bridge"], uuid="6b1f4c52-9f2e-5a54-8f0c-6a1d0c5d1f7e")
    want = domain_xml(plan_of(guest), "bridge")
    macs = re.findall(r"<mac address='(52:54:00(?::[0-9a-f]{2}){3})'/>", want)
    assert len(set(macs)) == 2
    assert domain_xml(plan_of(changed(guest, name="renamed")), "renamed").count(macs[0]) == 1
    theirs = edited(want, "devices/interface/mac", {"address": "52:54:00:aa:bb:cc"})
    assert updated(want, theirs, want).changes == ()
    assert "52:54:00:aa:bb:cc" in updated(want, theirs, edited(want, "on_crash", "destroy")).xml


def test_a_guest_of_an_earlier_version_is_printed_as_it_was() -> None:
    """Elements of later versions are not in its plan."""
    later = ("mac", "discard", "panic", "vmcoreinfo", "gpudirect-clique", "firmware")
    known = tuple(name for name in ELEMENTS if name not in later)
    xml = domain_xml(plan_of(changed(SHAPES["switched"], uuid=str(UUID(int=1)), elements=known)), "switched")
    for word in ("<mac", "discard", "panic", "vmcoreinfo", "alias", "override", "restart</on_crash>"):
        assert word not in xml
