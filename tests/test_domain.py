"""Domain XML written from plans and read back; foreign XML read to facts; bad XML and bad texts refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from domain_shapes import ONE_GPU, SHAPES, TWO_CELLS, changed, device, emulated, plan_of

from hosttune.domain import differences, domain_xml, known_elements, read_domain
from hosttune.domain.facts import AddressWidth, DomainFacts
from hosttune.errors import BadInput
from hosttune.model.intent import Boot, Network
from hosttune.model.plan import PlannedGuest
from hosttune.model.values import to_builtins

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("cases/domain/*.xml"))
GOLDEN = ("two-cells", "kernel-boot", "many-vcpus", "odd")
NEWEST, LEFT_OUT = known_elements("11.3.0", "10.0.2")
UUID = "53764d0e-85a0-42b4-af5c-2046b460b1dc"
MEDIATED = changed(ONE_GPU, devices=(device(UUID, "mdev", 1),))
LIMITED = changed(ONE_GPU, elements=NEWEST, physical_address_limit_bits=39)
NAMED = changed(ONE_GPU, uuid="955c52bd-010f-5fce-a8bc-904f657d5001")


def written(guest: PlannedGuest, **changes: object) -> DomainFacts:
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
    assert differences(guest, read_domain(plain)) == ()
    assert read_domain(annotated) == read_domain(plain)
    assert domain_xml(plan, guest.name) == plain


# Guest, a text of its XML, what stands there instead, and the field that the proof must name.
MUTATIONS: tuple[tuple[PlannedGuest, str, str, str], ...] = (
    (TWO_CELLS, "vcpu='3' cpuset='5'", "vcpu='3' cpuset='6'", "vcpu_pins"),
    (TWO_CELLS, "'static'>16<", "'static'>17<", "vcpus"),
    (TWO_CELLS, "placement='static'", "placement='static' current='8'", "vcpus_current"),
    (TWO_CELLS, "<emulatorpin cpuset='0-1'/>", "", "emulator_cpus"),
    (TWO_CELLS, "iothread='1' cpuset='0-1'", "iothread='1' cpuset='0-2'", "iothread_cpus"),
    (TWO_CELLS, "<iothreads>1<", "<iothreads>2<", "iothreads"),
    (TWO_CELLS, "<memory unit='KiB'>134217728<", "<memory unit='KiB'>134217720<", "memory_bytes"),
    (TWO_CELLS, "<currentMemory unit='KiB'>134217728<", "<currentMemory unit='KiB'>4096<", "current_memory_bytes"),
    (TWO_CELLS, "cellid='1' mode='strict' nodeset='1'", "cellid='1' mode='strict' nodeset='0'", "memnodes"),
    (TWO_CELLS, "cellid='1' mode='strict'", "cellid='1' mode='preferred'", "memnodes"),
    (TWO_CELLS, "<memory mode='strict'", "<memory mode='interleave'", "numatune"),
    (TWO_CELLS, "value='21'", "value='31'", "cells"),
    (TWO_CELLS, "cpus='8-15'", "cpus='8-14'", "cells"),
    (TWO_CELLS, "bus='0xc1'", "bus='0xc2'", "devices"),
    (TWO_CELLS, "<rom bar='off'/>", "", "devices"),
    (TWO_CELLS, "managed='yes'", "managed='no'", "devices"),
    (TWO_CELLS, "<driver name='vfio'/>", "<driver name='xen'/>", "devices"),
    (MEDIATED, "type='mdev'", "type='usb'", "devices"),
    (MEDIATED, "model='vfio-pci'", "model='vfio-ap'", "devices"),
    (TWO_CELLS, "busNr='64'", "busNr='65'", "controllers[1]"),
    (TWO_CELLS, "<node>1</node>", "<node>0</node>", "controllers[2]"),
    (TWO_CELLS, "chassis='3'", "chassis='30'", "controllers[3]"),
    (TWO_CELLS, " hotplug='off'", "", "fixed_ports"),
    (TWO_CELLS, "<pcihole64 unit='KiB'>536870912<", "<pcihole64 unit='KiB'>1<", "pci_hole64_bytes"),
    (TWO_CELLS, "string=1048576", "string=1", "qemu_arguments"),
    (SHAPES["many-vcpus"], "intel-iommu.dma-translation=off", "intel-iommu.dma-translation=on", "qemu_arguments"),
    (SHAPES["amd"], "tickpolicy='discard'", "tickpolicy='delay'", "pit"),
    (TWO_CELLS, "tickpolicy='delay'", "tickpolicy='discard'", "pit"),
    (TWO_CELLS, "org.qemu.guest_agent.0", "org.qemu.guest_agent.1", "channels"),
    (TWO_CELLS, "/dev/urandom", "/dev/random", "random"),
    (TWO_CELLS, "threads='2'/>", "threads='1'/>", "topology"),
    (TWO_CELLS, "mode='host-passthrough'", "mode='host-model'", "cpu_mode"),
    (emulated(ONE_GPU), "mode='maximum'", "mode='host-passthrough'", "cpu_mode"),
    (TWO_CELLS, "check='none'", "check='full'", "cpu_check"),
    (TWO_CELLS, "migratable='off'", "migratable='on'", "migratable"),
    (TWO_CELLS, " migratable='off'", "", "migratable"),
    (TWO_CELLS, "<cache mode='passthrough'/>", "", "cpu_cache"),
    (TWO_CELLS, "<cache mode='passthrough'/>", "<cache mode='disable'/>", "cpu_cache"),
    (TWO_CELLS, "<numa>", "<feature policy='disable' name='x2apic'/><numa>", "cpu_features"),
    (SHAPES["amd"], "<feature policy='require' name='topoext'/>", "", "cpu_features"),
    (emulated(ONE_GPU), "<feature policy='require' name='topoext'/>", "", "cpu_features"),
    (TWO_CELLS, "<maxphysaddr mode='passthrough'/>", "", "maxphysaddr"),
    (TWO_CELLS, "maxphysaddr mode='passthrough'", "maxphysaddr mode='emulate' bits='40'", "maxphysaddr"),
    (LIMITED, "limit='39'", "limit='46'", "maxphysaddr"),
    (LIMITED, " limit='39'", "", "maxphysaddr"),
    (emulated(ONE_GPU), "bits='46'", "bits='40'", "maxphysaddr"),
    (TWO_CELLS, "<hint-dedicated state='on'/>", "", "kvm_features"),
    (TWO_CELLS, "<poll-control state='on'/>", "<poll-control state='off'/>", "kvm_features"),
    (emulated(ONE_GPU), "<acpi/>", "<acpi/><kvm><poll-control state='on'/></kvm>", "kvm_features"),
    (TWO_CELLS, "<acpi/>", "", "features"),
    (TWO_CELLS, "<nosharepages/>", "<nosharepages/><locked/>", "locked"),
    (TWO_CELLS, "<nosharepages/>", "", "nosharepages"),
    (TWO_CELLS, "<allocation mode='immediate' threads='8'/>", "", "allocation"),
    (TWO_CELLS, "mode='immediate'", "mode='ondemand'", "allocation"),
    (TWO_CELLS, "'immediate' threads='8'", "'immediate' threads='1'", "allocation"),
    (TWO_CELLS, "<cputune>", "<memtune><hard_limit>1</hard_limit></memtune><cputune>", "hard_limit_bytes"),
    (TWO_CELLS, "size='1048576'", "size='2048'", "page_bytes"),
    (TWO_CELLS, "memballoon model='none'", "memballoon model='virtio'", "memballoon"),
    (TWO_CELLS, "<memballoon model='none'/>", "", "memballoon"),
    (TWO_CELLS, "<name>two-cells<", "<name>other<", "name"),
    (NAMED, "<uuid>955c52bd", "<uuid>055c52bd", "uuid"),
    (TWO_CELLS, "<domain type='kvm'", "<domain type='qemu'", "accelerator"),
    (TWO_CELLS, "arch='x86_64'", "arch='i686'", "arch"),
    (TWO_CELLS, "machine='q35'", "machine='pc'", "machine"),
    (TWO_CELLS, " firmware='efi'", "", "firmware"),
    (TWO_CELLS, "<feature enabled='no' name='secure-boot'/>", "", "secure_boot"),
    (TWO_CELLS, "enabled='no' name='secure-boot'", "enabled='yes' name='secure-boot'", "secure_boot"),
    (SHAPES["kernel-boot"], "<initrd>/boot/initrd.img</initrd>", "", "boot"),
    (SHAPES["many-vcpus"], "eim='on'", "eim='off'", "iommu"),
    (SHAPES["many-vcpus"], "intremap='on'", "", "iommu"),
    (SHAPES["many-vcpus"], "caching_mode='on'", "caching_mode='off'", "iommu"),
    (SHAPES["many-vcpus"], "<ioapic driver='qemu'/>", "<ioapic driver='kvm'/>", "ioapic"),
    (TWO_CELLS, "file='/var/lib", "file='/mnt/lib", "disk"),
    (TWO_CELLS, "cache='none'", "cache='writeback'", "disk"),
    (TWO_CELLS, "io='native' iothread='1'", "io='native'", "disk"),
    (TWO_CELLS, "<source network='default'/>", "<source network='other'/>", "networks"),
    (TWO_CELLS, "queues='8'", "queues='1'", "networks"),
)


@pytest.mark.parametrize(("guest", "old", "new", "field"), MUTATIONS)
def test_the_proof_names_what_differs(guest: PlannedGuest, old: str, new: str, field: str) -> None:
    xml = domain_xml(plan_of(guest), guest.name)
    assert old in xml
    assert field in {text.split(":")[0] for text in differences(guest, read_domain(xml.replace(old, new)))}


@pytest.mark.parametrize("guest", [TWO_CELLS, SHAPES["many-vcpus"], emulated(ONE_GPU)], ids=["kvm", "eim", "tcg"])
def test_every_field_of_the_proof_has_a_row_above(guest: PlannedGuest) -> None:
    """What an empty domain lacks is what the proof asks for."""
    named = {text.split(":")[0].split("[")[0] for text in differences(guest, read_domain("<domain/>"))}
    assert len(named) > 20
    assert named <= {field.split("[")[0] for *_, field in MUTATIONS}


def test_kvm_only_elements_stay_out_of_an_emulated_guest() -> None:
    kvm, tcg = written(ONE_GPU), written(emulated(ONE_GPU))
    assert (kvm.type, kvm.cpu.mode, kvm.kvm_features) == ("kvm", "host-passthrough", ("hint-dedicated", "poll-control"))
    assert (tcg.type, tcg.cpu.mode, tcg.kvm_features) == ("qemu", "maximum", ())
    assert tcg.cpu.address_width == AddressWidth(mode="emulate", bits=46)
    same = ("vcpu_pins", "emulator_cpus", "iothread_pins", "cells", "numatune", "backing", "hostdevs", "controllers")
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


def test_unknown_host_nodes_bind_nothing() -> None:
    cells = tuple(changed(cell, host_nodes="") for cell in ONE_GPU.cells)
    assert written(ONE_GPU, cells=cells).numatune.mode is None


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
        ("maxphysaddr-limit", "needs libvirt 9.3, this one is of unknown version, assumed to be 9.0"),
        ("dma-translation", "needs libvirt 10.7, this one is of unknown version, assumed to be 9.0"),
    )


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
