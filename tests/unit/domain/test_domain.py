"""Domain XML written from plans and read back; foreign XML read to facts; bad XML and bad texts refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from domain_shapes import ONE_GPU, SEEDED, SHAPES, TWO_CELLS, changed, device, emulated, plan_of
from xmledits import Edit, edited

from hosttune.domain.compare import LEFT_OPEN, compare
from hosttune.domain.definitions import same_guest
from hosttune.domain.elements import known_elements
from hosttune.domain.guest import AddressWidth, Guest
from hosttune.domain.planned import guest_of
from hosttune.domain.reader import read_domain
from hosttune.domain.writer import domain_xml
from hosttune.domain.xml import QEMU
from hosttune.errors import BadInput
from hosttune.model.intent import Boot, Network
from hosttune.model.plan import PlannedGuest
from hosttune.model.values import to_builtins

HERE = Path(__file__).parents[2]
CASES = sorted(HERE.glob("cases/domain/*.xml"))
GOLDEN = ("two-cells", "kernel-boot", "many-vcpus", "odd")
NEWEST, LEFT_OUT = known_elements("11.3.0", "10.0.2")
UUID = "53764d0e-85a0-42b4-af5c-2046b460b1dc"
MEDIATED = changed(ONE_GPU, devices=(device(UUID, "mdev", 1),))
LIMITED = changed(ONE_GPU, elements=NEWEST, physical_address_limit_bits=39)
OTHER_MAC = "52:54:00:00:00:01"
NAMED = changed(ONE_GPU, uuid="955c52bd-010f-5fce-a8bc-904f657d5001")


def written(guest: PlannedGuest, **changes: object) -> Guest:
    guest = changed(guest, **changes)
    return read_domain(domain_xml(plan_of(guest), guest.name))


def check_golden(request: pytest.FixtureRequest, name: str, text: str) -> None:
    golden = HERE / "golden" / "domain" / name
    if request.config.getoption("--regenerate"):
        golden.write_text(text)
    assert text == golden.read_text()


# --- writing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
def test_xml_is_as_it_was_reviewed(request: pytest.FixtureRequest, name: str) -> None:
    check_golden(request, f"{name}.xml", domain_xml(plan_of(SHAPES[name]), name))


def test_tcg_xml_is_as_it_was_reviewed(request: pytest.FixtureRequest) -> None:
    check_golden(request, "two-cells-tcg.xml", domain_xml(plan_of(emulated(TWO_CELLS)), "two-cells"))


def test_annotated_xml_is_as_it_was_reviewed(request: pytest.FixtureRequest) -> None:
    check_golden(request, "two-cells-annotated.xml", domain_xml(plan_of(TWO_CELLS), "two-cells", annotate=True))


@pytest.mark.parametrize("guest", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
def test_read_back_to_the_plans_facts(guest: PlannedGuest, accelerator: str) -> None:
    guest = changed(guest, accelerator=accelerator)
    plan = plan_of(guest)
    plain, annotated = (domain_xml(plan, guest.name, annotate=annotate) for annotate in (False, True))
    assert read_domain(plain) == guest_of(guest)
    assert read_domain(annotated) == read_domain(plain)
    assert domain_xml(plan, guest.name) == plain


QEMU_ARGUMENT = f"{QEMU}commandline/{QEMU}arg[2]"
# Guest, an element of its XML, its edit, and the field in which the guest that is read then differs.
MUTATIONS: tuple[tuple[PlannedGuest, str, Edit, str], ...] = (
    (TWO_CELLS, "cputune/vcpupin[4]", {"cpuset": "6"}, "vcpu_pins"),
    (TWO_CELLS, "vcpu", "17", "vcpus"),
    (TWO_CELLS, "vcpu", {"current": "8"}, "vcpus_current"),
    (TWO_CELLS, "vcpu", {"placement": "auto"}, "vcpu_placement"),
    (TWO_CELLS, "cputune/emulatorpin", None, "emulator_cpus"),
    (TWO_CELLS, "cputune/iothreadpin", {"cpuset": "0-2"}, "iothread_pins"),
    (TWO_CELLS, "iothreads", "2", "iothreads"),
    (TWO_CELLS, "memory", "134217720", "memory_bytes"),
    (TWO_CELLS, "currentMemory", "4096", "current_memory_bytes"),
    (TWO_CELLS, "numatune/memnode[2]", {"nodeset": "0"}, "memnodes"),
    (TWO_CELLS, "numatune/memnode[2]", {"mode": "preferred"}, "memnodes"),
    (TWO_CELLS, "numatune/memory", {"mode": "interleave"}, "numatune"),
    (TWO_CELLS, "numatune/memory", {"nodeset": "0"}, "numatune"),
    (TWO_CELLS, "cpu/numa/cell/distances/sibling[2]", {"value": "31"}, "cells.distances"),
    (TWO_CELLS, "cpu/numa/cell[2]", {"cpus": "8-14"}, "cells.vcpus"),
    (TWO_CELLS, "devices/hostdev/source/address[@bus='0xc1']", {"bus": "0xc2"}, "hostdevs"),
    (TWO_CELLS, "devices/hostdev/rom", None, "hostdevs.rom_bar"),
    (TWO_CELLS, "devices/hostdev[@managed='yes']", {"managed": "no"}, "hostdevs.managed"),
    (TWO_CELLS, "devices/hostdev/driver", {"name": "xen"}, "hostdevs.driver"),
    (MEDIATED, "devices/hostdev", {"type": "usb"}, "hostdevs"),
    (MEDIATED, "devices/hostdev", {"model": "vfio-ap"}, "hostdevs.model"),
    (TWO_CELLS, "devices/controller/target[@busNr='64']", {"busNr": "65"}, "controllers.bus_nr"),
    (TWO_CELLS, "devices/controller/target[@busNr='128']/node", "0", "controllers.node"),
    (TWO_CELLS, "devices/controller/target[@chassis='3']", {"chassis": "30"}, "controllers.chassis"),
    (TWO_CELLS, "devices/controller/target[@hotplug='off']", {"hotplug": None}, "controllers.hotplug"),
    (TWO_CELLS, "devices/controller/pcihole64", "1", "controllers.pcihole64_bytes"),
    (TWO_CELLS, QEMU_ARGUMENT, {"value": "name=opt/ovmf/X-PciMmio64Mb,string=1"}, "qemu_arguments"),
    (SHAPES["many-vcpus"], QEMU_ARGUMENT, {"value": "intel-iommu.dma-translation=on"}, "qemu_arguments"),
    (SHAPES["amd"], "clock/timer[@name='pit']", {"tickpolicy": "delay"}, "pit"),
    (TWO_CELLS, "clock/timer[@name='pit']", {"tickpolicy": "discard"}, "pit"),
    (TWO_CELLS, "devices/channel/target", {"name": "org.qemu.guest_agent.1"}, "channels"),
    (TWO_CELLS, "devices/rng/backend", "/dev/random", "random"),
    (TWO_CELLS, "cpu/topology", {"threads": "1"}, "cpu.topology.threads"),
    (TWO_CELLS, "cpu", {"mode": "host-model"}, "cpu.mode"),
    (emulated(ONE_GPU), "cpu", {"mode": "host-passthrough"}, "cpu.mode"),
    (TWO_CELLS, "cpu", {"check": "full"}, "cpu.check"),
    (TWO_CELLS, "cpu", {"migratable": "on"}, "cpu.migratable"),
    (TWO_CELLS, "cpu", {"migratable": None}, "cpu.migratable"),
    (TWO_CELLS, "cpu/cache", None, "cpu.cache"),
    (TWO_CELLS, "cpu/cache", {"mode": "disable"}, "cpu.cache"),
    (TWO_CELLS, "cpu", "<feature policy='disable' name='x2apic'/>", "cpu.features"),
    (SHAPES["amd"], "cpu/feature[@name='topoext']", None, "cpu.features"),
    (emulated(ONE_GPU), "cpu/feature[@name='topoext']", None, "cpu.features"),
    (TWO_CELLS, "cpu/maxphysaddr", None, "cpu.address_width"),
    (TWO_CELLS, "cpu/maxphysaddr", {"mode": "emulate", "bits": "40"}, "cpu.address_width"),
    (LIMITED, "cpu/maxphysaddr", {"limit": "46"}, "cpu.address_width"),
    (LIMITED, "cpu/maxphysaddr", {"limit": None}, "cpu.address_width"),
    (emulated(ONE_GPU), "cpu/maxphysaddr", {"bits": "40"}, "cpu.address_width"),
    (TWO_CELLS, "features/kvm/hint-dedicated", None, "kvm_features"),
    (TWO_CELLS, "features/kvm/poll-control", {"state": "off"}, "kvm_features"),
    (emulated(ONE_GPU), "features", "<kvm><poll-control state='on'/></kvm>", "kvm_features"),
    (TWO_CELLS, "features/acpi", None, "features"),
    (TWO_CELLS, "memoryBacking", "<locked/>", "backing.locked"),
    (TWO_CELLS, "memoryBacking/nosharepages", None, "backing.nosharepages"),
    (TWO_CELLS, "memoryBacking/allocation", None, "backing.allocation"),
    (TWO_CELLS, "memoryBacking/allocation", {"mode": "ondemand"}, "backing.allocation"),
    (TWO_CELLS, "memoryBacking/allocation", {"threads": "1"}, "backing.allocation_threads"),
    (TWO_CELLS, ".", "<memtune><hard_limit>1</hard_limit></memtune>", "hard_limit_bytes"),
    (TWO_CELLS, "memoryBacking/hugepages/page", {"size": "2048"}, "backing.pages"),
    (TWO_CELLS, "devices/memballoon", {"model": "virtio"}, "balloon"),
    (TWO_CELLS, "devices/memballoon", None, "balloon"),
    (TWO_CELLS, "name", "other", "name"),
    (NAMED, "uuid", "055c52bd-010f-5fce-a8bc-904f657d5001", "uuid"),
    (TWO_CELLS, ".", {"type": "qemu"}, "type"),
    (TWO_CELLS, "os/type", {"arch": "i686"}, "arch"),
    (TWO_CELLS, "os/type", {"machine": "pc"}, "machine"),
    (TWO_CELLS, "os", {"firmware": None}, "firmware"),
    (TWO_CELLS, "os/firmware/feature", None, "secure_boot"),
    (TWO_CELLS, "os/firmware/feature", {"enabled": "yes"}, "secure_boot"),
    (SHAPES["kernel-boot"], "os/initrd", None, "initrd"),
    (SHAPES["many-vcpus"], "devices/iommu/driver", {"eim": "off"}, "iommu.eim"),
    (SHAPES["many-vcpus"], "devices/iommu/driver", {"intremap": None}, "iommu.intremap"),
    (SHAPES["many-vcpus"], "devices/iommu/driver", {"caching_mode": "off"}, "iommu.caching_mode"),
    (SHAPES["many-vcpus"], "features/ioapic", {"driver": "kvm"}, "ioapic"),
    (TWO_CELLS, "devices/disk/source", {"file": "/mnt/lib/two-cells.img"}, "disks"),
    (TWO_CELLS, "devices/disk/driver", {"cache": "writeback"}, "disks.cache"),
    (TWO_CELLS, "devices/disk/driver", {"iothread": None}, "disks.iothread"),
    (SEEDED, "devices/disk/readonly", None, "disks.readonly"),
    (TWO_CELLS, "devices/interface/source", {"network": "other"}, "interfaces"),
    (TWO_CELLS, "devices/disk/target", {"dev": "vdb"}, "disks.target"),
    (TWO_CELLS, "devices/interface/driver", {"queues": "1"}, "interfaces.queues"),
    (NAMED, "devices/interface/mac", {"address": OTHER_MAC}, "interfaces.mac"),
    (TWO_CELLS, "devices/disk/driver", {"discard": None}, "disks.discard"),
    (TWO_CELLS, "devices/panic", None, "panic"),
    (changed(TWO_CELLS, tpm=True), "devices/tpm", None, "tpm"),
    (SHAPES["watched"], "devices/watchdog", {"model": "itco"}, "watchdog"),
    (SHAPES["virtual-functions"], "devices/interface[@type='hostdev']/mac", {"address": OTHER_MAC}, "hostdevs.mac"),
    (SHAPES["virtual-functions"], "devices/interface[@type='hostdev']/vlan/tag", {"id": "8"}, "hostdevs.vlan"),
    (SHAPES["virtual-functions"], "devices/interface[@type='hostdev']", {"managed": "no"}, "hostdevs.managed"),
    (SHAPES["secure"], "os/firmware/feature[@name='secure-boot']", {"enabled": "no"}, "secure_boot"),
    (TWO_CELLS, "on_crash", "destroy", "on_crash"),
    (TWO_CELLS, "features/vmcoreinfo", None, "features"),
)


# A guest that is defined anew keeps its UUID, and a CD-ROM drive is read-only anyway.
NOT_COMPARED = ("uuid", "disks.readonly")


def named(guest: PlannedGuest, xml: str) -> set[str]:
    """The fields that differ, without the names of list items."""
    return {re.sub(r"\[[^]]*\]", "", field) for field, _, _ in compare(guest_of(guest), read_domain(xml))}


@pytest.mark.parametrize(("guest", "path", "edit", "field"), MUTATIONS)
def test_each_edit_makes_another_guest(guest: PlannedGuest, path: str, edit: Edit, field: str) -> None:
    xml = domain_xml(plan_of(guest), guest.name)
    other = edited(xml, path, edit)
    assert any(f"{name}.".startswith(f"{field}.") for name in named(guest, other))
    assert same_guest(xml, xml) == ()
    assert bool(same_guest(other, xml)) is (field not in NOT_COMPARED), field


def test_a_difference_too_small_for_words_is_told_in_bytes_and_a_device_by_its_name() -> None:
    xml = domain_xml(plan_of(TWO_CELLS), "two-cells")
    kib = (read_domain(xml).memory_bytes or 0) >> 10
    assert same_guest(edited(xml, "memory", str(kib + 1)), xml) == (
        f"memory: wanted {kib << 10}, found {(kib + 1) << 10}",
    )
    (gone,) = same_guest(edited(xml, "devices/hostdev", None), xml)
    assert gone == f"hostdev pci {TWO_CELLS.devices[0].address}: missing"
    assert [len(same_guest(edited(xml, f"devices/{tag}", None), xml)) for tag in ("rng", "panic", "channel")] == [1] * 3


def test_a_guest_without_a_serial_port_is_another_guest() -> None:
    xml = edited(domain_xml(plan_of(TWO_CELLS), "two-cells"), "devices/serial", None)
    assert named(TWO_CELLS, edited(xml, "devices/console", None)) == {"serial"}


@pytest.mark.parametrize("guest", [TWO_CELLS, SHAPES["many-vcpus"], emulated(ONE_GPU)], ids=["kvm", "eim", "tcg"])
def test_every_field_of_a_planned_guest_has_a_row_above(guest: PlannedGuest) -> None:
    """What an empty domain lacks is what was planned."""
    asked = named(guest, "<domain/>")
    assert len(asked) > 30
    rows = ["serial.", *(f"{field}." for *_, field in MUTATIONS)]
    assert [name for name in sorted(asked) if not any(row.startswith(f"{name}.") for row in rows)] == []


def test_kvm_only_elements_stay_out_of_an_emulated_guest() -> None:
    kvm, tcg = written(ONE_GPU), written(emulated(ONE_GPU))
    assert (kvm.type, kvm.cpu.mode, kvm.kvm_features) == ("kvm", "host-passthrough", ("hint-dedicated", "poll-control"))
    assert (tcg.type, tcg.cpu.mode, tcg.kvm_features) == ("qemu", "maximum", ())
    assert tcg.cpu.address_width == AddressWidth(mode="emulate", bits=46)
    same = (
        "vcpu_pins",
        "emulator_cpus",
        "iothread_pins",
        "cells",
        "numatune",
        "memnodes",
        "backing",
        "hostdevs",
        "controllers",
    )
    assert [getattr(tcg, field) for field in same] == [getattr(kvm, field) for field in same]


def test_cpu_shows_the_hosts_topology() -> None:
    intel, amd = written(ONE_GPU), written(SHAPES["amd"])
    assert (intel.cpu.cache, intel.cpu.migratable, intel.cpu.features) == ("passthrough", False, ())
    assert amd.cpu.features == (("topoext", "require"),)


def test_elements_are_written_only_where_the_plan_names_them() -> None:
    bare = written(ONE_GPU, elements=())
    assert bare.kvm_features == ()
    assert bare.cpu.address_width is None
    assert bare.backing.allocation_threads is None
    assert bare.secure_boot is None
    assert LEFT_OUT == ()
    full = written(LIMITED)
    assert full.cpu.address_width == AddressWidth(mode="passthrough", limit=39)
    assert full.secure_boot is False


def test_each_device_has_its_place_and_its_options() -> None:
    facts = written(TWO_CELLS)
    assert [(d.source, d.guest_address, d.managed, d.rom_bar) for d in facts.hostdevs] == [
        ("0000:41:00.0", "0000:03:00.0", False, False),
        ("0000:43:00.0", "0000:04:00.0", True, False),
        ("0000:c1:00.0", "0000:05:00.0", False, False),
    ]
    assert [c.node for c in facts.controllers if c.model == "pcie-expander-bus"] == [0, 1]


def test_functions_of_one_slot_say_so() -> None:
    xml = domain_xml(plan_of(SHAPES["odd"]), "odd")
    assert xml.count("multifunction='on'") == 1
    assert "bus='0x01' slot='0x00' function='0x0' multifunction='on'" in xml
    assert "domain='0x10000' bus='0x01'" in xml


def test_a_mediated_device_is_named_by_its_uuid() -> None:
    (device_,) = written(MEDIATED).hostdevs
    assert (device_.kind, device_.source, device_.managed) == ("mdev", UUID, False)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/img/a.qcow2", ("file", "qcow2")),
        ("/img/a.img", ("file", "raw")),
        ("/dev/vg0/a.qcow2", ("block", "raw")),
        ("/img/a'b\"<&>.raw", ("file", "raw")),
    ],
)
def test_disk_by_its_path(path: str, expected: tuple[str, str]) -> None:
    (disk,) = written(ONE_GPU, disk=path).disks
    assert (disk.type, disk.format) == expected
    assert (disk.source, disk.cache, disk.io, disk.iothread) == (path, "none", "native", 1)


def test_every_disk_is_like_the_first_and_only_the_first_boots() -> None:
    first, *others = written(ONE_GPU, disk="/img/a.qcow2", further_disks=("/img/b.qcow2", "/dev/vg0/c")).disks
    assert (first.target, first.boot_order) == ("vda", 1)
    assert [(one.source, one.target, one.type, one.format) for one in others] == [
        ("/img/b.qcow2", "vdb", "file", "qcow2"),
        ("/dev/vg0/c", "vdc", "block", "raw"),
    ]
    assert {(one.boot_order, one.bus, one.cache, one.io, one.iothread) for one in others} == {
        (None, first.bus, first.cache, first.io, first.iothread)
    }


def test_a_plan_with_more_disks_than_names_is_refused() -> None:
    guest = changed(ONE_GPU, further_disks=tuple(f"/img/{n}" for n in range(26)))
    with pytest.raises(BadInput, match="27 disks, more than 26"):
        domain_xml(plan_of(guest), guest.name)


def test_unknown_host_nodes_bind_nothing() -> None:
    cells = tuple(changed(cell, host_nodes="") for cell in ONE_GPU.cells)
    assert written(ONE_GPU, cells=cells).numatune is None


def test_special_characters_are_carried_not_interpreted() -> None:
    cmdline = "a='<b>' & \"c\" -- ]]> é"
    boot = Boot(kernel="/boot/vm&linuz", cmdline=cmdline)
    facts = written(ONE_GPU, boot=boot, networks=(Network(bridge="br'0"),))
    assert (facts.kernel, facts.initrd, facts.cmdline) == ("/boot/vm&linuz", None, cmdline)
    assert facts.interfaces[0].source == "br'0"


@pytest.mark.parametrize("why", ["ends --> here <locked/>", "a---b-", "\x00\ud800", "--"])
def test_a_reason_cannot_leave_its_comment(why: str) -> None:
    guest = changed(ONE_GPU, why=(why,))
    assert read_domain(domain_xml(plan_of(guest), guest.name, annotate=True)) == written(ONE_GPU)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"disk": "/img/a\nb"}, "disk"),
        ({"further_disks": ("/img/a\nb",)}, "further_disks[0]"),
        ({"boot": Boot(kernel="/k", cmdline="a\x00b")}, "boot.cmdline"),
        ({"networks": (Network(network="a\ud800"),)}, "networks[0]"),
    ],
)
def test_a_control_character_is_refused_by_field(changes: dict[str, object], field: str) -> None:
    guest = changed(ONE_GPU, **changes)
    with pytest.raises(BadInput, match="control character") as refused:
        domain_xml(plan_of(guest), guest.name)
    assert refused.value.where == f"plan: guests['one-gpu'].{field}"


def test_an_unknown_guest_is_refused_with_those_that_exist() -> None:
    with pytest.raises(BadInput, match="no guest named 'x'") as refused:
        domain_xml(plan_of(ONE_GPU, TWO_CELLS), "x")
    assert refused.value.hint == "it places one-gpu, two-cells"


# --- elements ------------------------------------------------------------------------------------------------


def test_elements_follow_the_versions_installed() -> None:
    jammy, left_out = known_elements("8.0.0", "6.2.0")
    assert "maxphysaddr" not in jammy
    assert "poll-control" in jammy
    assert dict(left_out)["maxphysaddr"] == "needs libvirt 8.7, this one is 8.0.0"
    assert dict(known_elements("8.7.0", "2.6")[1])["maxphysaddr"] == "needs QEMU 2.7, this one is 2.6"


@pytest.mark.parametrize("unknown", [None, "", "unknown"])
def test_unknown_versions_count_as_the_oldest_targets(unknown: str | None) -> None:
    assert known_elements(unknown, unknown)[0] == known_elements("9.0", "7.2")[0]
    assert known_elements(unknown, unknown)[1] == (
        ("itco-watchdog", "needs libvirt 9.1, this one is of unknown version, assumed to be 9.0"),
        ("maxphysaddr-limit", "needs libvirt 9.3, this one is of unknown version, assumed to be 9.0"),
        ("dma-translation", "needs libvirt 10.7, this one is of unknown version, assumed to be 9.0"),
    )


# --- what libvirt keeps -----------------------------------------------------------------------------------------


def test_what_libvirt_may_choose_are_fields() -> None:
    assert {name for of, names in LEFT_OPEN.items() for name in names if name not in of.__struct_fields__} == set()


# --- reading -------------------------------------------------------------------------------------------------


def holds(expected: Any, actual: Any, at: str = "$") -> None:
    """Every value in `expected` stands in `actual`; lists have the same length."""
    if isinstance(expected, dict):
        assert isinstance(actual, dict), at
        for key, value in expected.items():
            assert key in actual, f"{at}.{key}"
            holds(value, actual[key], f"{at}.{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), f"{at}: {actual}"
        for n, (wanted, found) in enumerate(zip(expected, actual, strict=True)):
            holds(wanted, found, f"{at}[{n}]")
    else:
        assert actual == expected, at


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_foreign_xml_gives_the_facts_written_down(path: Path) -> None:
    expected = json.loads(path.with_suffix(".json").read_text())
    assert expected
    holds(expected, to_builtins(read_domain(path.read_bytes())))


def test_text_and_bytes_read_alike() -> None:
    text = "<?xml version='1.0' encoding='iso-8859-1'?><domain type='kvm'><name>é</name></domain>"
    assert read_domain(text).name == read_domain(text.encode("iso-8859-1")).name == "é"


def test_iothread_count_and_units_as_libvirt_counts_them() -> None:
    facts = read_domain(
        "<domain><memory unit='GB'>4</memory><iothreadids><iothread id='2'/><iothread id='4'/></iothreadids>"
        "<memoryBacking><hugepages><page size='1' unit='G' nodeset='0-3,^2'/></hugepages></memoryBacking></domain>"
    )
    assert (facts.memory_bytes, facts.iothreads) == (4_000_000_000, 2)
    assert facts.backing.pages
    assert (facts.backing.pages[0].size_bytes, facts.backing.pages[0].cells) == (1 << 30, "0-1,3")


ENTITY = "<!DOCTYPE d [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><domain><name>&e;</name></domain>"
LAUGHS = "<!DOCTYPE d [<!ENTITY a 'ha'><!ENTITY b '&a;&a;&a;'>]><domain><name>&b;</name></domain>"


@pytest.mark.parametrize(
    ("xml", "what", "where"),
    [
        ("", "not an XML document", "f.xml"),
        ("<domain>", "not an XML document", "f.xml"),
        (b"\xff\xfe\x00", "not an XML document", "f.xml"),
        ("<network/>", "a <network>, not a <domain>", "f.xml"),
        (ENTITY, "holds a document type", "f.xml"),
        (LAUGHS, "holds a document type", "f.xml"),
        ("<domain>" + "<a>" * 300 + "</a>" * 300 + "</domain>", "not an XML document", "f.xml"),
        ("<domain>" + " " * (4 << 20) + "</domain>", "larger than 4 MiB", "f.xml"),
        ("<domain>\n<vcpu>x</vcpu></domain>", "'x' is not a whole number", "f.xml: line 2, <vcpu>"),
        ("<domain><vcpu>99999999</vcpu></domain>", "out of range", "f.xml: line 1, <vcpu>"),
        ("<domain><memory unit='parsec'>1</memory></domain>", "not a unit of size", "f.xml: line 1, <memory>"),
        ("<domain><memory>-1</memory></domain>", "not a size", "f.xml: line 1, <memory>"),
        (
            "<domain><cputune><vcpupin vcpu='0' cpuset='0-'/></cputune></domain>",
            "'0-' is not a CPU or node list",
            "f.xml: line 1, <vcpupin>",
        ),
        (
            "<domain><cputune><emulatorpin cpuset='0-99999999'/></cputune></domain>",
            "not a range",
            "f.xml: line 1, <emulatorpin>",
        ),
        ("<domain><cputune><vcpupin cpuset='0'/></cputune></domain>", "has no vcpu", "f.xml: line 1, <vcpupin>"),
        (
            "<domain><devices><hostdev type='pci'><source><address bus='0x100' slot='0'/></source></hostdev>"
            "</devices></domain>",
            "not a PCI address",
            "f.xml: line 1, <address>",
        ),
        (
            "<domain><cpu><topology sockets='0' cores='1' threads='1'/></cpu></domain>",
            "sockets is 0",
            "f.xml: line 1, <topology>",
        ),
    ],
)
def test_bad_xml_is_refused_with_its_place(xml: str | bytes, what: str, where: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_domain(xml, where="f.xml")
    assert what in refused.value.what
    assert refused.value.where == where
    assert "root:" not in str(refused.value)


@pytest.mark.parametrize(
    ("what", "copy"),
    [
        (r"<numatune>.*?</numatune>", "<numatune><memory mode='strict' nodeset='0'/></numatune>"),
        (r"<cputune>", "<cputune><emulatorpin cpuset='0'/></cputune>"),
        (r"<vcpupin vcpu='0'", "<vcpupin vcpu='0' cpuset='0'/>"),
        (r"<memory ", "<memory unit='KiB'>1</memory>"),
    ],
)
def test_what_stands_twice_in_a_definition_makes_it_none(what: str, copy: str) -> None:
    xml = domain_xml(plan_of(TWO_CELLS), TWO_CELLS.name)
    assert re.search(what, xml, re.DOTALL), what
    with pytest.raises(BadInput, match="is there more than once"):
        read_domain(re.sub(f"(?s)({what})", lambda found: copy + found[0], xml, count=1))
