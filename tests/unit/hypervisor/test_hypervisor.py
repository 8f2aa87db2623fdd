"""Guests as settings on a scratch root, what keeps one from being defined or started, proof from a recorded /proc."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from pathlib import Path

import pytest
from domain_shapes import GIB, SHAPES, changed, emulated, plan_of
from hypothesis import given
from hypothesis import strategies as st
from xmledits import Edit, edited, with_edits

from hosttune.discovery import discover
from hosttune.domain.definitions import same_guest
from hosttune.domain.writer import domain_xml
from hosttune.errors import BadInput, Unreadable, WriteFailed
from hosttune.hypervisor import canonical, no_system, ready, startable, xml_difference
from hosttune.hypervisor.definition import PlannedDefinition
from hosttune.hypervisor.state import GuestState
from hosttune.machine.capture import Capture
from hosttune.machine.scratch import Scratch
from hosttune.machine.system import COMMANDS, COMPLETE
from hosttune.model.gpu import Gpu
from hosttune.model.host import (
    Host,
    HugePages,
    Hugetlbfs,
    MemorySettings,
    NumaNode,
    PciDevice,
    RunningGuest,
    Virtualization,
)
from hosttune.model.plan import PlannedGuest
from hosttune.transaction.kinds import kind_class, setting_of

GUEST = SHAPES["one-gpu"]
GPU = GUEST.devices[0].address


def xml_of(guest: PlannedGuest) -> str:
    return domain_xml(plan_of(guest), guest.name)


def tree(root: Path, files: dict[str, str], links: dict[str, str] | None = None) -> Path:
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for path, target in (links or {}).items():
        link = root / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    """A scratch root whose libvirt was recorded as `virsh list --all` of no guests."""
    return Scratch(
        str(
            tree(
                tmp_path,
                {"/.hosttune/scratch": "", "/proc/version": "", COMMANDS + "virsh-list": " Id   Name   State\n---\n"},
            )
        )
    )


# --- the settings --------------------------------------------------------------------------------------------


def test_both_kinds_are_registered() -> None:
    assert kind_class("guest", "test") is PlannedDefinition
    assert setting_of("guest-state", "g") == GuestState("g")


def test_defined_started_ended_and_undefined_leaves_nothing(scratch: Scratch, tmp_path: Path) -> None:
    before = contents(tmp_path)
    definition, state = PlannedDefinition.of(GUEST.name), GuestState.of(GUEST.name)
    assert definition.read(scratch) is None
    assert state.read(scratch) == "shut off"
    definition.check(xml_of(GUEST))
    definition.write(scratch, xml_of(GUEST))
    assert definition.read(scratch) == xml_of(GUEST)
    assert definition.agrees(definition.read(scratch), xml_of(GUEST))
    (found,) = discover(scratch).guests or ()
    assert (found.name, found.state, found.devices) == (GUEST.name, "shut off", (GPU,))
    state.check("running")
    state.write(scratch, "running")
    assert state.read(scratch) == "running"
    (found,) = discover(scratch).guests or ()
    assert found.state == "running"
    with pytest.raises(WriteFailed, match="it runs"):
        definition.write(scratch, None)
    state.write(scratch, "shut off")
    assert state.read(scratch) == "shut off"
    definition.write(scratch, None)
    definition.write(scratch, None)
    assert discover(scratch).guests == ()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("record", ["libvirt.json", "virsh"])
def test_a_recorded_guest_is_redefined_and_put_back(tmp_path: Path, record: str) -> None:
    old = xml_of(changed(GUEST, uuid="11111111-2222-3333-4444-555555555555"))
    facts = {"uri": "qemu:///system", "domains": [{"name": GUEST.name, "state": "shut off", "xml": old}]}
    files = {
        "libvirt.json": {COMMANDS + "libvirt.json": json.dumps(facts)},
        "virsh": {
            COMMANDS + "virsh-list": f" -    {GUEST.name}    shut off\n",
            COMMANDS + f"virsh-dumpxml-{GUEST.name}": old,
        },
    }[record]
    scratch = Scratch(str(tree(tmp_path, {"/.hosttune/scratch": "", "/proc/version": "", **files})))
    setting = PlannedDefinition.of(GUEST.name)
    assert setting.read(scratch) == old
    want = xml_of(changed(GUEST, emulator_cpus="7"))
    assert not setting.agrees(old, want)
    setting.write(scratch, want)
    assert setting.agrees(setting.read(scratch), want)
    (found,) = discover(scratch).guests or ()
    assert (found.emulator_cpus, found.uuid) == ("7", "11111111-2222-3333-4444-555555555555")
    GuestState.of(GUEST.name).write(scratch, "running")
    assert [guest.state for guest in discover(scratch).guests or ()] == ["running"]
    GuestState.of(GUEST.name).write(scratch, "shut off")
    assert [guest.state for guest in discover(scratch).guests or ()] == ["shut off"]
    setting.write(scratch, setting.read(scratch))
    setting.write(scratch, old)
    assert setting.agrees(setting.read(scratch), old)


def test_guests_that_were_not_recorded_are_unknown(tmp_path: Path) -> None:
    capture = Capture(str(tree(tmp_path, {"/proc/version": ""})))
    with pytest.raises(Unreadable, match="not recorded"):
        PlannedDefinition.of("g").read(capture)
    facts = {"uri": "qemu:///system", "error": "no connection"}
    capture = Capture(str(tree(tmp_path, {COMMANDS + "libvirt.json": json.dumps(facts)})))
    with pytest.raises(Unreadable, match="no connection"):
        GuestState.of("g").read(capture)


@given(st.text())
def test_a_name_is_a_name_or_refused(name: str) -> None:
    for kind in (PlannedDefinition, GuestState):
        try:
            setting = kind.of(name)
        except BadInput as refused:
            where = refused.where
        else:
            assert set(name) <= set(string.ascii_letters + string.digits + "._-")
            where = f"action {setting.kind}:{setting.target}"
        assert where == f"action {kind.kind}:{name}"


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "-all", "a b", "a\n", "é", "a" * 65, "--nvram", "$(id)"])
def test_hostile_names(name: str) -> None:
    for kind in ("guest", "guest-state"):
        with pytest.raises(BadInput, match="is not a guest name"):
            setting_of(kind, name)


def commandline(*words: str) -> Callable[[str], str]:
    """The XML with an element of QEMU's own namespace."""
    space = "http://libvirt.org/schemas/domain/qemu/1.0"
    inner = "".join(f"<q:{word}/>" for word in words)
    return lambda xml: edited(xml, ".", f"<q:commandline xmlns:q='{space}'>{inner}</q:commandline>")


def put(path: str, edit: Edit) -> Callable[[str], str]:
    """The XML with one element changed."""
    return lambda xml: edited(xml, path, edit)


def override(*names: str) -> Callable[[str], str]:
    """The XML with these properties for its GPU."""
    inner = "".join(f"<q:property name='{name}' type='unsigned' value='0'/>" for name in names)
    device = f"<q:device alias='ua-a'><q:frontend>{inner}</q:frontend></q:device>"
    space = "http://libvirt.org/schemas/domain/qemu/1.0"
    edits = ("devices/hostdev", "<alias name='ua-a'/>"), (".", f"<q:override xmlns:q='{space}'>{device}</q:override>")
    return lambda xml: with_edits(xml, *edits)


HOSTILE: dict[str, tuple[Callable[[str], object], str]] = {
    "another guest": (put("name", "other"), "the XML is that of 'other'"),
    "another hypervisor": (put(".", {"type": "xen"}), "a <domain> of type 'xen'"),
    "a program": (put("devices", "<emulator>/tmp/x</emulator>"), "a <emulator> in <devices>"),
    "a loader": (put("os", "<loader>/tmp/x</loader>"), "a <loader> in <os>"),
    "arguments": (commandline("arg value='-incoming'", "arg value='exec:x'"), "arguments to QEMU: -incoming exec:x"),
    "another property": (override("x-nv-gpudirect-clique", "romfile"), "the property 'romfile' of a device"),
    "a property alone": (override("romfile"), "a <"),
    "environment": (commandline("env name='LD_PRELOAD' value='/x'"), "/1.0}commandline> in <domain>"),
    "a file to log into": (put("devices/serial", {"type": "file"}), "a <serial> of type 'file'"),
    "a script": (put("devices/interface", "<script path='/x'/>"), "a <script> in <interface>"),
    "a network disk": (put("devices/disk", {"type": "network"}), "a <disk> of type 'network'"),
    "a host's directory": (put("devices", "<filesystem/>"), "a <filesystem> in <devices>"),
    "another file for random numbers": (put("devices/rng/backend", "/dev/sda"), "random numbers from '/dev/sda'"),
    "another program's channel": (
        put("devices/channel/target", {"name": "org.qemu.spice.0"}),
        "a <channel> other than org.qemu.guest_agent.0",
    ),
    "a socket of the host": (put("devices/channel", "<source path='/x'/>"), "a <source>"),
    "no XML": (lambda xml: xml[:40], "not an XML document"),
    "a document type": (lambda xml: f"<!DOCTYPE domain [<!ENTITY x 'y'>]>{xml}", "document type"),
    "a number": (lambda xml: 7, "int is not domain XML"),
}


@pytest.mark.parametrize(("change", "why"), HOSTILE.values(), ids=HOSTILE.keys())
def test_xml_that_is_not_ours_is_refused(change: Callable[[str], object], why: str) -> None:
    setting = PlannedDefinition.of(GUEST.name)
    setting.check(None)
    for guest in SHAPES.values():
        PlannedDefinition.of(guest.name).check(xml_of(guest))
    with pytest.raises(BadInput, match="action guest:one-gpu") as refused:
        setting.check(change(xml_of(GUEST)))
    assert why in str(refused.value)


@pytest.mark.parametrize("value", ["shut off", "paused", None, True, 1])
def test_no_guest_can_be_wanted_ended(value: object) -> None:
    with pytest.raises(BadInput, match="is not a state"):
        GuestState.of("g").check(value)


# --- texts ---------------------------------------------------------------------------------------------------


def test_the_difference_is_that_of_meaning_not_of_layout() -> None:
    xml = xml_of(GUEST)
    assert xml_difference(xml, xml.replace("  ", "").replace("'", '"')) == ""
    assert xml_difference(xml, domain_xml(plan_of(GUEST), GUEST.name, annotate=True)) == ""
    shown = xml_difference(xml, xml_of(changed(GUEST, emulator_cpus="5")))
    assert [line for line in shown.splitlines() if line[0] in "+-"] == [
        "--- defined now",
        "+++ defined then",
        '-    <emulatorpin cpuset="0-1"/>',
        '+    <emulatorpin cpuset="5"/>',
    ]
    assert xml_difference(None, xml).startswith("--- not defined\n+++ defined then\n")
    assert xml_difference(xml, None).startswith("--- defined now\n+++ not defined\n")


@pytest.mark.parametrize("guest", SHAPES.values(), ids=SHAPES.keys())
def test_the_canonical_form_means_the_same_and_is_final(guest: PlannedGuest) -> None:
    form = canonical(xml_of(guest))
    assert same_guest(form, xml_of(guest)) == ()
    assert canonical(form) == form


# --- before it is defined or started -------------------------------------------------------------------------


def function(address: str, group: int | None, driver: str | None = "vfio-pci", **fields: object) -> PciDevice:
    return PciDevice(address=address, iommu_group=group, driver=driver, class_code="030200", **fields)  # type: ignore[arg-type]


def host(*others: PciDevice, **fields: object) -> Host:
    """A host on which `GUEST` can start, with other functions, or fields that spoil that."""
    sound: dict[str, object] = {
        "pci": (function(GPU, 21), *others),
        "numa_nodes": (NumaNode(id=0, hugepages=(HugePages(size_bytes=GIB, total=64, free=64),)),),
        "memory_settings": mounts((GIB, True)),
        "virtualization": Virtualization(kvm=True),
        "guests": (),
    }
    return Host(**(sound | fields))  # type: ignore[arg-type]


def mounts(*found: tuple[int, bool | None]) -> MemorySettings:
    """File systems of huge pages: of which size, and whether libvirt has found them."""
    return MemorySettings(hugetlbfs=tuple(Hugetlbfs(path="/pages", size_bytes=s, libvirt=known) for s, known in found))


def running(name: str, **fields: object) -> RunningGuest:
    return RunningGuest(name=name, state="running", **fields)  # type: ignore[arg-type]


def test_a_guest_that_may_be_defined_and_started() -> None:
    bridge = changed(function("0000:40:01.0", 21, "pcieport"), class_code="060400")
    sound = host(bridge, function("0000:41:00.1", 21, None), function("0000:41:00.2", 21, "pci-stub"))
    assert ready(sound, GUEST) == ()
    assert startable(sound, GUEST) == ()
    assert startable(host(virtualization=None), emulated(GUEST)) == ()


AUDIO = "0000:41:00.1"
NOT_READY = {
    "no group": (host(pci=(function(GPU, None),)), f"the IOMMU group of {GPU} cannot be read"),
    "gone": (host(pci=()), f"{GPU} is not on this host"),
    "driven": (
        host(function(AUDIO, 21, "snd_hda_intel")),
        f"IOMMU group 21 of {GPU} also holds {AUDIO}, which snd_hda_intel drives",
    ),
    "another's": (
        host(function(AUDIO, 21), guests=(RunningGuest(name="b", state="shut off", devices=(AUDIO,)),)),
        f"IOMMU group 21 of {GPU} also holds {AUDIO}, which is guest b's",
    ),
    "libvirt unknown": (host(guests=None), "libvirt cannot be asked which guests there are"),
}


@pytest.mark.parametrize(("spoilt", "why"), NOT_READY.values(), ids=NOT_READY.keys())
def test_why_a_guest_is_not_defined(spoilt: Host, why: str) -> None:
    assert ready(spoilt, GUEST) == (why,)
    assert why in startable(spoilt, GUEST)


def test_a_tpm_needs_its_program(tmp_path: Path) -> None:
    guest = changed(GUEST, tpm=True, disk=None)
    bare = Scratch(str(tree(tmp_path, {"/.hosttune/scratch": "", COMPLETE: "", "/proc/version": ""})))
    assert no_system(bare, changed(guest, tpm=False)) is None
    assert str(no_system(bare, guest)).startswith("there is no /usr/bin/swtpm, which its TPM needs")
    there = Scratch(str(tree(tmp_path, {"/usr/bin/swtpm": ""})))
    assert no_system(there, guest) is None


def test_the_disk_that_is_missing_is_named_and_an_image_stands_in_for_the_first_alone(tmp_path: Path) -> None:
    there = Scratch(str(tree(tmp_path, {"/.hosttune/scratch": "", "/img/a": "", "/img/i": ""})))
    guest = changed(GUEST, tpm=False, disk="/img/a", further_disks=("/img/b", "/img/c"))
    missing = "there is no /img/b, which should be its disk: make it, or give another path"
    assert no_system(there, guest) == missing
    assert no_system(there, changed(guest, disk="/img/x", image="/img/i")) == missing
    tree(tmp_path, {"/img/b": "", "/img/c": ""})
    assert no_system(there, guest) is None
    assert no_system(there, changed(guest, disk="/img/x", image="/img/i")) is None


def test_a_group_that_goes_to_the_guest_as_a_whole() -> None:
    both = changed(GUEST, devices=(*GUEST.devices, changed(GUEST.devices[0], address=AUDIO)))
    assert ready(host(function(AUDIO, 21, "snd_hda_intel")), both) == ()


def pages(free: int | None, size: int = GIB, node: int = 0) -> tuple[NumaNode, ...]:
    return (NumaNode(id=node, hugepages=(HugePages(size_bytes=size, total=free, free=free),)),)


NOT_STARTABLE = {
    "runs": (host(guests=(running(GUEST.name),)), "it is running"),
    "paused": (host(guests=(RunningGuest(name=GUEST.name, state="paused"),)), "it is paused"),
    "no KVM": (host(virtualization=Virtualization(kvm=False)), "there is no KVM on this host"),
    "KVM unknown": (host(virtualization=None), "whether this host has KVM is unknown"),
    "mounts unknown": (
        host(memory_settings=None),
        "whether a hugetlbfs with pages of 1048576 KiB is mounted is unknown: /proc/mounts cannot be read",
    ),
    "no mount": (
        host(memory_settings=mounts()),
        "/proc/mounts has no hugetlbfs with pages of 1048576 KiB: plan again, the plan then mounts one",
    ),
    "a mount of other pages": (
        host(memory_settings=mounts((2 << 20, True))),
        "/proc/mounts has no hugetlbfs with pages of 1048576 KiB: plan again, the plan then mounts one",
    ),
    "a mount that libvirt has not found": (
        host(memory_settings=mounts((GIB, False))),
        "libvirt has not found the hugetlbfs on /pages: it looks when it starts, so restart its daemon (plan again, the"
        " plan then does), and see hugetlbfs_mount in /etc/libvirt/qemu.conf",
    ),
    "a mount that libvirt may not have found": (
        host(memory_settings=mounts((GIB, None))),
        "whether libvirt has found the hugetlbfs on /pages is unknown: its folder in it was not recorded",
    ),
    "few pages": (host(numa_nodes=pages(63)), "63 pages of 1048576 KiB are free on node 0; it needs 64"),
    "pages unknown": (
        host(numa_nodes=pages(None)),
        "how many pages of 1048576 KiB are free on node 0 is unknown; it needs 64",
    ),
    "other pages": (
        host(numa_nodes=pages(99999, 2 << 20)),
        "how many pages of 1048576 KiB are free on node 0 is unknown; it needs 64",
    ),
    "no such node": (
        host(numa_nodes=pages(64, node=1)),
        "how many pages of 1048576 KiB are free on node 0 is unknown; it needs 64",
    ),
    "unbound": (host(pci=(function(GPU, 21, None),)), f"{GPU} is bound to no driver, not to vfio-pci"),
    "its maker's": (host(pci=(function(GPU, 21, "nvidia"),)), f"{GPU} is bound to nvidia, not to vfio-pci"),
    "held": (host(guests=(running("b", devices=(GPU,)),)), f"{GPU} is held by guest b"),
    "perhaps held": (host(guests=(RunningGuest(name="b", devices=(GPU,)),)), "whether guest b runs is unknown"),
    "fabric": (
        host(gpus=(Gpu(address=GPU, vendor="nvidia", fabric_state="completed"),)),
        "its GPUs are on an NVSwitch fabric and which partition holds them is unknown: the module ids of"
        f" {GPU} are unknown: only the driver nvidia reports them (its Module Id)",
    ),
}


@pytest.mark.parametrize(("spoilt", "why"), NOT_STARTABLE.values(), ids=NOT_STARTABLE.keys())
def test_why_a_guest_is_not_started(spoilt: Host, why: str) -> None:
    assert startable(spoilt, GUEST) == (why,)


def test_what_does_not_keep_a_guest_from_starting() -> None:
    managed = changed(GUEST, devices=(changed(GUEST.devices[0], managed=True),))
    assert startable(host(pci=(function(GPU, 21, "nvidia"),)), managed) == ()
    on_fabric = host(gpus=(Gpu(address=GPU, vendor="nvidia", fabric_state="completed"),))
    assert startable(on_fabric, changed(GUEST, fabric_partition=0)) == ()
    assert startable(host(guests=(RunningGuest(name="b", state="shut off", devices=(GPU,)),)), GUEST) == ()
    assert startable(host(numa_nodes=()), changed(GUEST, page_bytes=None)) == ()
