"""Levels: what stops a start is an error, what costs a GPU's speed a warning, and the rest advice."""

from __future__ import annotations

import re

import pytest
from domain_faults import criticise, host_of
from domain_shapes import changed
from xmledits import edited, with_edits

from hosttune.domain.arguments import WINDOW
from hosttune.model.host import Host, PciDevice, Virtualization
from hosttune.model.lint import LintFinding
from hosttune.model.pci import Bar
from hosttune.model.platform import DomainCapabilities
from hosttune.model.topology import CpuModel, HugePages, MemorySettings
from hosttune.model.vgpu import Vgpu, VgpuFunction, VgpuGpu

GPU, VF, NIC = "0000:41:00.0", "0000:41:00.4", "0000:99:00.0"
TUNING = {"cpu-model", "vcpu-pins", "emulator-pin", "memory-bound", "huge-pages"}
QEMU = "xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'"


def host(driver: str = "vfio-pci", **fields: object) -> Host:
    known = host_of()
    vf = PciDevice(address=VF, class_code="030200", numa_node=0, iommu_group=77, physfn=GPU, driver=driver)
    nic = PciDevice(address=NIC, class_code="020000", numa_node=0, iommu_group=78, driver=driver)
    return changed(known, pci=(*known.pci, vf, nic), **fields)


def hostdev(address: str, more: str = "") -> str:
    bus, function = address.split(":")[1], address[-1]
    place = f"<source><address bus='0x{bus}' slot='0x00' function='0x{function}'/></source>"
    return f"<hostdev mode='subsystem' type='pci' managed='no'>{place}{more}</hostdev>"


def domain(devices: str = "", rest: str = "") -> str:
    return (
        f"<domain type='kvm' {QEMU}><name>a</name><memory>1048576</memory><vcpu>2</vcpu>"
        "<os><type arch='x86_64' machine='q35'>hvm</type><loader type='pflash'>/OVMF.fd</loader></os>"
        f"<features><acpi/></features><devices>{devices}</devices>{rest}</domain>"
    )


def argument(*words: str) -> str:
    return f"<qemu:commandline>{''.join(f'<qemu:arg value={word!r}/>' for word in words)}</qemu:commandline>"


def override(*properties: tuple[str, str], alias: str = "hostdev0") -> str:
    each = "".join(f"<qemu:property name='{name}' type='unsigned' value='{value}'/>" for name, value in properties)
    device = f"<qemu:device alias='{alias}'><qemu:frontend>{each}</qemu:frontend></qemu:device>"
    return f"<qemu:override>{device}</qemu:override>"


def levels(found: tuple[LintFinding, ...], *names: str) -> dict[str, str]:
    return {one.rule: one.level for one in found if one.judged and one.rule in names}


MDEV = "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{}'/></source></hostdev>".format(
    "c2177883-f1bb-47f0-914d-32a22e3a8804"
)


@pytest.mark.parametrize(
    ("xml", "level"),
    [
        (domain(hostdev(GPU)), "warn"),
        (domain(hostdev(VF)), "warn"),
        (domain(MDEV), "warn"),
        (domain(hostdev(NIC), argument("-device", f"vfio-pci,host={GPU[5:]}")), "warn"),
        (domain(hostdev(NIC)), "info"),
    ],
)
def test_speed_is_a_warning_for_a_guest_with_a_gpu(xml: str, level: str) -> None:
    assert levels(criticise(host(), xml, where="a.xml"), *TUNING) == dict.fromkeys(TUNING, level)


@pytest.mark.parametrize(("mode", "judged"), [("host-passthrough", None), ("host-model", False)])
def test_seabios_places_large_bars(mode: str, judged: bool | None) -> None:
    """Above the memory; whether the CPU reaches them is unknown for another one than the host's."""
    bar = Bar(index=1, size_bytes=256 << 30, prefetchable=True, is_64bit=True)
    known = host(cpu_model=CpuModel(vendor="GenuineIntel", physical_address_bits=46))
    known = changed(known, pci=tuple(changed(one, bars=(bar,)) for one in known.pci))
    xml = domain(hostdev(GPU), f"<cpu mode='{mode}'/>").replace("<loader type='pflash'>/OVMF.fd</loader>", "")
    found = [one.judged for one in criticise(known, xml, where="a.xml") if one.rule == "firmware-window"]
    assert found == ([] if judged is None else [judged])


SECOND = "0000:45:00.0"


@pytest.mark.parametrize(
    ("qemu", "memory", "bits", "place", "said"),
    [
        ("8.2.2", 8 << 20, 46, "", True),
        ("10.0.2", 8 << 20, 52, "", True),
        (None, 8 << 20, 52, "", True),
        ("7.2.0", 8 << 20, 46, "", False),  # 1.16.2
        ("10.1.0", 8 << 20, 46, "", False),  # 1.17.0
        ("8.2.2", 2 << 20, 46, "", False),  # no memory above 4 GiB
        ("8.2.2", 8 << 20, 40, "", False),  # of an Intel CPU it takes 40 bits for QEMU's default
        ("8.2.2", 8 << 20, 46, "<address type='pci' bus='0x00' slot='0x05'/>", False),
    ],
)
def test_what_seabios_1_16_3_misplaces(qemu: str | None, memory: int, bits: int, place: str, said: bool) -> None:
    """Two of 128 GiB and 32 MiB behind ports: SeaBIOS e5f2e4c6, "pciinit: don't misalign large BARs"."""
    bars = tuple(
        Bar(index=i, size_bytes=size, prefetchable=True, is_64bit=True) for i, size in ((2, 128 << 30), (4, 32 << 20))
    )
    known = host(
        cpu_model=CpuModel(vendor="GenuineIntel", physical_address_bits=bits),
        virtualization=Virtualization(libvirt_version="9.3.0", qemu_version=qemu),
    )
    gpu = next(one for one in known.pci if one.address == GPU)
    pci = (changed(gpu, bars=bars), changed(gpu, address=SECOND, bars=bars, iommu_group=99))
    devices = hostdev(GPU, place) + hostdev(SECOND, place.replace("slot='0x05'", "slot='0x06'"))
    xml = domain(devices, "<cpu mode='host-passthrough'/>").replace("<loader type='pflash'>/OVMF.fd</loader>", "")
    xml = xml.replace("<memory>1048576<", f"<memory>{memory}<")
    found = [one for one in criticise(changed(known, pci=pci), xml, where="a.xml") if one.rule == "firmware-window"]
    assert [(one.judged, "SeaBIOS is 1.16.3" in one.text and GPU[:-2] in one.text) for one in found] == [
        (False, True)
    ] * said


def test_an_element_that_libvirt_is_too_old_for_is_named() -> None:
    """Ubuntu 22.04 and Debian 12: <maxphysaddr> and its limit are ignored (libvirt formatdomain, Since 8.7 and 9.3)."""
    cpu = "<cpu mode='host-passthrough'><maxphysaddr mode='passthrough' limit='39'/></cpu>"
    for libvirt, named in (("8.0.0", ["cpu/maxphysaddr", "cpu/maxphysaddr[@limit]"]), ("9.3.0", [])):
        known = host(virtualization=Virtualization(libvirt_version=libvirt, qemu_version="8.2.0"))
        found = criticise(known, domain(hostdev(GPU), cpu), where="a.xml")
        assert [one.text.partition(":")[0] for one in found if one.rule == "libvirt-knows"] == named


def test_what_numad_chooses_is_not_called_any_node() -> None:
    """libvirt formatdomain, NUMA Node Tuning and CPU Allocation: placement."""
    tune = "<numatune><memory mode='strict' placement='auto'/></numatune>"
    known = host()
    found = {one.rule: one for one in criticise(known, domain(hostdev(GPU), tune), where="a.xml")}
    assert (found["memory-bound"].judged, "numad" in found["memory-bound"].text) == (False, True)
    xml = domain(hostdev(GPU)).replace("<vcpu>", "<vcpu placement='auto'>")
    found = {one.rule: one for one in criticise(known, xml, where="a.xml")}
    assert (found["memory-bound"].judged, "numad" in found["vcpu-pins"].text) == (False, True)


def test_a_page_size_that_the_host_lacks_is_not_to_be_mounted() -> None:
    """A host of aarch64 with 2 MiB, 512 MiB and 16 GiB is told so, and not to mount pages of 1 GiB."""
    known = host_of(memory_settings=MemorySettings(hugetlbfs=()))
    for size, wanted in ((1 << 20, {"hugetlbfs-mount"}), (16 << 20, {"page-size"})):
        pages = f"<memoryBacking><hugepages><page size='{size}'/></hugepages></memoryBacking>"
        found = criticise(known, domain(hostdev(GPU), pages), where="a.xml")
        assert {one.rule for one in found if one.judged} & {"hugetlbfs-mount", "page-size"} == wanted


@pytest.mark.parametrize(("reserved", "said"), [(300, []), (200, ["needs 512 pages of 2 MiB, and 400 are reserved"])])
def test_pages_of_memory_that_is_not_bound_come_from_all_nodes(reserved: int, said: list[str]) -> None:
    pool = HugePages(size_bytes=2 << 20, total=reserved)
    known = host(numa_nodes=tuple(changed(node, hugepages=(pool,)) for node in host().numa_nodes))
    pages = "<memoryBacking><hugepages><page size='2048'/></hugepages></memoryBacking>"
    found = [
        one for one in criticise(known, domain(hostdev(GPU), pages), where="a.xml") if one.rule == "pages-reserved"
    ]
    assert [one.text.partition(" on ")[0] for one in found] == said
    assert {one.level for one in found} <= {"info"}


def test_an_expander_bus_needs_no_address() -> None:
    """It fits on pcie.0 only (libvirt docs, pci-addresses and formatdomain, Controllers)."""
    port = (
        "<controller type='pci' index='2' model='pcie-root-port'><address type='pci' bus='{}' slot='0'/></controller>"
    )
    expander = "<controller type='pci' index='1' model='pcie-expander-bus'><target busNr='252'/>{}</controller>"
    seat = "<address type='pci' bus='2' slot='0'/>"
    for address, found in (("", False), ("<address type='pci' bus='9' slot='1'/>", True)):
        tree = expander.format(address) + port.format(1) + hostdev(GPU, seat)
        rules = {one.rule for one in criticise(host(), domain(tree), where="a.xml")}
        assert ("device-place" in rules) == found


@pytest.mark.parametrize(
    ("rest", "text"), [("", "PCIe without"), ("<cpu><numa><cell id='0' cpus='0-1'/></numa></cpu>", "no NUMA")]
)
def test_what_a_guest_without_acpi_lacks(rest: str, text: str) -> None:
    xml = domain(hostdev(GPU), rest).replace("<acpi/>", "")
    assert [text in one.text for one in criticise(host(), xml, where="a.xml") if one.rule == "acpi"] == [True]


@pytest.mark.parametrize("kind", ["sev", "sev-snp", "tdx", "s390-pv"])
def test_a_confidential_guest_gets_no_advice_for_ordinary_ones(kind: str) -> None:
    security = f"<launchSecurity type='{kind}'/>"
    ordinary, confidential = (criticise(host(), domain(hostdev(GPU), more), where="a.xml") for more in ("", security))
    gone = {one.rule for one in ordinary if one.judged} - {one.rule for one in confidential if one.judged}
    assert gone == {
        *("cpu-model", "memory-bound", "huge-pages", "memory-balloon", "memory-merging"),
        *("guest-agent", "random-numbers"),
    }


@pytest.mark.parametrize(
    ("kind", "qemu", "devices", "level"),
    [
        ("sev-snp", "9.1.0", hostdev(NIC), "error"),
        ("sev-snp", "9.1.3 (Debian 1:9.1.3)", MDEV, "error"),
        ("sev-snp", "9.1.0", "", None),
        ("sev-snp", "9.2.0", hostdev(NIC), None),
        ("sev-snp", "8.2.2", hostdev(NIC), "info"),  # as its builder made it
        ("sev-snp", None, hostdev(NIC), "info"),
        ("tdx", "9.1.0", hostdev(NIC), None),
        ("sev", "9.1.0", hostdev(NIC), None),
    ],
)
def test_snp_with_devices_needs_a_qemu_that_has_both(
    kind: str, qemu: str | None, devices: str, level: str | None
) -> None:
    there = host(virtualization=Virtualization(qemu_version=qemu))
    found = criticise(there, domain(devices, f"<launchSecurity type='{kind}'/>"), where="a.xml")
    assert [one.level for one in found if one.rule == "confidential-devices"] == ([level] if level else [])


@pytest.mark.parametrize(
    ("kind", "libvirt", "asked"),
    [
        ("sev-snp", "10.0.0", True),
        ("sev-snp", None, True),
        ("sev-snp", "10.5.0", False),
        ("sev-snp", "10.10.0", False),
        ("sev", "9.0.0", False),
    ],
)
def test_snp_needs_a_libvirt_that_has_it(kind: str, libvirt: str | None, asked: bool) -> None:
    there = host(virtualization=Virtualization(libvirt_version=libvirt))
    found = criticise(there, domain("", f"<launchSecurity type='{kind}'/>"), where="a.xml")
    assert [one.judged for one in found if one.rule == "confidential-type"] == ([False] if asked else [])


@pytest.mark.parametrize(("kind", "level"), [("1414", None), ("0", "error"), (None, "info")])
def test_a_vgpu_has_a_type(kind: str | None, level: str | None) -> None:
    gpu = VgpuGpu(address=GPU, framework="vfio", functions=(VgpuFunction(address=VF, current_type=kind),))
    there = host(driver="nvidia", vgpu=Vgpu(gpus=(gpu,)))
    for xml in (domain(hostdev(VF)), domain("", argument("-device", f"vfio-pci,sysfsdev=/sys/bus/pci/devices/{VF}"))):
        found = criticise(there, xml, where="a.xml")
        assert [one.level for one in found if one.rule == "vgpu-type"] == ([level] if level else [])


def test_a_driver_that_the_xml_names_is_the_one_to_bind() -> None:
    (found,) = (
        one
        for one in criticise(
            host(driver="mlx5_core"),
            domain(hostdev(NIC, "<driver name='vfio' model='mlx5_vfio_pci'/>")),
            where="a.xml",
        )
        if one.rule == "host-driver"
    )
    assert (found.text.partition(": ")[2], found.remedy) == (
        "driver mlx5_core holds it now, not mlx5_vfio_pci",
        "bind it to mlx5_vfio_pci, which <driver model=…> asks for",
    )


@pytest.mark.parametrize(
    ("rest", "rom"),
    [
        ("", True),
        (override(("rombar", "0")), False),
        (override(("rombar", "1")), True),
        (override(("rombar", "0"), alias="hostdev7"), True),
        (argument("-set", "device.hostdev0.rombar=0"), False),
    ],
)
def test_an_overridden_property_counts(rest: str, rom: bool) -> None:
    found = criticise(host(), domain(hostdev(NIC), rest), where="a.xml")
    assert ("rom-bar" in {one.rule for one in found}) is rom


def test_the_iommu_device_is_judged_with_its_override() -> None:
    iommu = "<iommu model='intel'><driver intremap='on' caching_mode='on'/></iommu>"
    for rest, said in (("", True), (override(("dma-translation", "off"), alias="iommu0"), False)):
        found = criticise(host(), domain(hostdev(NIC) + iommu, rest), where="a.xml")
        assert ("iommu-dma" in {one.rule for one in found}) is said


@pytest.mark.parametrize(("libvirt", "level"), [("8.0.0", "warn"), ("8.2.0", None)])
def test_libvirt_before_8_2_ignores_overrides(libvirt: str, level: str | None) -> None:
    there = host(virtualization=Virtualization(libvirt_version=libvirt, qemu_version="6.2.0"))
    found = criticise(there, domain(hostdev(NIC), override(("rombar", "0"))), where="a.xml")
    assert [one.level for one in found if one.rule == "qemu-override"] == ([level] if level else [])


def test_an_override_of_what_is_passed_is_not_judged() -> None:
    found = criticise(host(), domain(hostdev(NIC), override(("host", "0000:01:00.0"))), where="a.xml")
    assert [one.judged for one in found if one.rule == "qemu-override"] == [False]


@pytest.mark.parametrize(("libvirt", "remedy"), [("9.0.0", "-global"), ("10.7.0", "dma_translation='off'")])
def test_a_remedy_is_one_that_the_installed_libvirt_takes(libvirt: str, remedy: str) -> None:
    there = host(virtualization=Virtualization(libvirt_version=libvirt, qemu_version="8.2.0"))
    xml = domain(hostdev(NIC) + "<iommu model='intel'><driver intremap='on' caching_mode='on'/></iommu>")
    (found,) = (one for one in criticise(there, xml, where="a.xml") if one.rule == "iommu-dma")
    assert remedy in found.remedy


@pytest.mark.parametrize("form", ["0:41:0.0", "41:0.0", "0000:41:00.0", "00000000:41:00.0"])
def test_an_address_is_read_as_qemu_reads_it(form: str) -> None:
    found = criticise(host(), domain("", argument("-device", f"vfio-pci,host={form}")), where="a.xml")
    assert {one.rule for one in found} & {"device-missing", "huge-pages", "vcpu-pins"} == {"vcpu-pins"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("intel-iommu.dma-translation=off", False),
        ("driver=intel-iommu,property=dma-translation,value=false", False),
        ("intel-iommu.dma-translation=on", True),
    ],
)
def test_a_global_has_two_forms(value: str, said: bool) -> None:
    xml = domain(hostdev(NIC) + "<iommu model='intel'><driver caching_mode='on'/></iommu>", argument("-global", value))
    assert ("iommu-dma" in {one.rule for one in criticise(host(), xml, where="a.xml")}) is said


@pytest.mark.parametrize(
    ("written", "sized"),
    [
        ("name=opt/ovmf/X-PciMmio64Mb,string=65536", True),
        ("opt/ovmf/X-PciMmio64Mb,string=65536", True),
        ("string=65536,name=opt/ovmf/X-PciMmio64Mb", True),
        ("string=65536", False),
        ("name=opt/other,string=65536", False),
    ],
)
def test_the_window_is_read_in_each_form(written: str, sized: bool) -> None:
    assert (re.fullmatch(WINDOW, written) is not None) is sized


def test_a_guest_that_floats_over_both_nodes_is_told_so_once() -> None:
    """As Nova writes a guest without dedicated CPUs, where some CPUs are the host's alone."""
    xml = edited(domain(hostdev(GPU)), "vcpu", {"cpuset": "1-199,513-711"})
    told = {one.rule for one in criticise(host(), xml, where="a.xml") if one.level != "info"}
    assert told == TUNING


@pytest.mark.parametrize(("loader", "unknown"), [("<loader type='pflash'>/x.fd</loader>", False),
                                                 ("<loader>/usr/share/qemu/edk2.fd</loader>", False),
                                                 ("<loader>/opt/fw.bin</loader>", True)])  # fmt: skip
def test_a_guest_without_an_architecture_has_the_hosts(loader: str, unknown: bool) -> None:
    xml = with_edits(domain(hostdev(GPU)), ("os/type", {"arch": None}), ("os/loader", None), ("os", loader))
    texts = [one.text for one in criticise(host(arch="x86_64"), xml, where="a.xml") if one.rule == "firmware-window"]
    assert any("which firmware" in text for text in texts) is unknown


@pytest.mark.parametrize(
    ("pages", "told"),
    [
        ("<hugepages/><allocation mode='ondemand'/>", {"memory-allocation"}),
        ("<hugepages/><allocation mode='immediate'/>", set()),
        ("<hugepages/>", set()),  # libvirt allocates huge pages at the start
        ("<allocation mode='ondemand'/>", set()),  # a passed device pins ordinary pages at the start
    ],
)
def test_huge_pages_that_are_taken_on_first_use_are_told(pages: str, told: set[str]) -> None:
    xml = domain(hostdev(GPU), f"<memoryBacking>{pages}</memoryBacking>")
    assert {finding.rule for finding in criticise(host(), xml, where="a.xml")} & {"memory-allocation"} == told


@pytest.mark.parametrize(("rest", "level"), [("", "warn"), (argument("-cpu", "host,kvm=off"), None)])
def test_the_cpu_of_the_command_line_takes_the_place_of_the_element(rest: str, level: str | None) -> None:
    found = criticise(host(), domain(hostdev(GPU), f"<cpu mode='host-model'/>{rest}"), where="a.xml")
    assert levels(found, "cpu-model").get("cpu-model") == level
    assert any(one.rule == "qemu-arguments" and not one.judged for one in found) is (level is None)


# What people published (tests/cases/lint/FINDINGS.md, "Published guests"), values changed.


@pytest.mark.parametrize(
    ("libvirt", "qemu", "told"),
    [
        ("8.1.0", "7.0.0", True),
        ("9.0.0", "7.2.9", True),
        ("8.1.0", "6.2.0", False),  # hot plug of JSON devices is broken there: libvirt writes them as before
        ("8.0.0", "6.2.0", True),
        ("7.8.0", "6.2.0", False),
        ("8.0.0", "6.1.0", False),
    ],
)
def test_set_finds_no_device_that_is_json(libvirt: str, qemu: str, told: bool) -> None:
    there = host(virtualization=Virtualization(libvirt_version=libvirt, qemu_version=qemu))
    words = ("-set", "device.hostdev0.x-vga=on", "-set", "device.hostdev0.x-pci-sub-vendor-id=0x17aa")
    found = criticise(
        there, domain(hostdev(GPU), argument(*words, "-set", "device.hostdev0.display=on")), where="a.xml"
    )
    remedies = {one.level: str(one.remedy) for one in found if one.rule == "qemu-set"}
    assert remedies.keys() == ({"error"} if told else set())
    for name, kind, value in (("x-vga", "bool", "true"), ("x-pci-sub-vendor-id", "unsigned", "6058"),
                              ("display", "string", "on")):  # fmt: skip
        assert all(f"name='{name}' type='{kind}' value='{value}'" in remedy for remedy in remedies.values())


@pytest.mark.parametrize(
    "rest",
    [
        argument("-device", "ich9-intel-hda,id=hda", "-set", "device.hda.msi=on"),
        argument("-set", "drive.disk.cache=none"),
        argument("-set", "device.hostdev0.x-vga=on")
        + "<qemu:capabilities><qemu:del capability='device.json+hotplug'/></qemu:capabilities>",
    ],
)
def test_set_may_change_what_is_no_json(rest: str) -> None:
    there = host(virtualization=Virtualization(libvirt_version="10.0.0", qemu_version="8.2.2"))
    assert "qemu-set" not in {one.rule for one in criticise(there, domain(hostdev(GPU), rest), where="a.xml")}


@pytest.mark.parametrize(("libvirt", "remedy"), [("8.1.0", "update libvirt to 8.2"), ("7.0.0", "-set")])
def test_before_overrides_set_is_advised_where_it_works(libvirt: str, remedy: str) -> None:
    there = host(virtualization=Virtualization(libvirt_version=libvirt, qemu_version="7.0.0"))
    xml = domain(hostdev(NIC), override(("rombar", "0")))
    (found,) = (one for one in criticise(there, xml, where="a.xml") if one.rule == "qemu-override")
    assert remedy in str(found.remedy)


@pytest.mark.parametrize(
    ("machine", "emulator", "level"),
    [
        ("pc-q35-9.2", "", "error"),
        ("pc-i440fx-10.0", "<emulator>/usr/libexec/qemu-kvm</emulator>", "error"),
        ("pc-q35-9.2", "<emulator>/opt/qemu/bin/qemu-system-x86_64</emulator>", None),
        ("pc-q35-8.2", "", None),
        ("pc-q35-rhel9.6.0", "", None),
        ("q35", "", None),
    ],
)
def test_a_machine_that_is_newer_than_qemu_does_not_start(machine: str, emulator: str, level: str | None) -> None:
    offered = DomainCapabilities(machine="pc-q35-8.2", max_vcpus=1024)
    there = host(virtualization=Virtualization(qemu_version="8.2.2", capabilities=offered))
    xml = domain(hostdev(NIC) + emulator).replace("machine='q35'", f"machine='{machine}'")
    assert levels(criticise(there, xml, where="a.xml"), "hypervisor-offers").get("hypervisor-offers") == level


@pytest.mark.parametrize(
    ("memory", "cells", "page"),
    [
        (67108864, "", "<page size='1' unit='GiB'/>"),
        (65904640, "", "<page size='2' unit='MiB'/>"),  # 62.85 GiB: pages of 1 GiB would be the next fault
        (3906250, "", ", and round the memory up to whole pages"),  # 4 GB
        (2097152, "<cell id='0' cpus='0' memory='1048576'/><cell id='1' cpus='1' memory='1048576'/>",
         "<page size='1' unit='GiB' nodeset='…'/>"),
    ],
)  # fmt: skip
def test_the_pages_that_are_advised_hold_the_memory(memory: int, cells: str, page: str) -> None:
    cpu = f"<cpu><numa>{cells}</numa></cpu>" if cells else ""
    for backing in ("", "<memoryBacking><hugepages/></memoryBacking>"):
        xml = domain(hostdev(GPU), cpu + backing).replace("1048576</memory>", f"{memory}</memory>")
        found = criticise(host(), xml, where="a.xml")
        assert [page in str(one.remedy) for one in found if one.rule in ("huge-pages", "page-size")] == [True]


@pytest.mark.parametrize(
    ("qemu", "more", "tune", "level"),
    [
        ("8.2.2", "", "", "warn"),  # QEMU takes a whole last page of a hugetlbfs
        ("9.1.0", "", "", "error"),
        (None, "", "", "error"),
        ("8.2.2", "<source type='memfd'/>", "", "error"),
        ("8.2.2", "", "<numatune><memory mode='strict' nodeset='0'/></numatune>", "error"),
    ],
)
def test_memory_that_ends_within_a_page(qemu: str | None, more: str, tune: str, level: str) -> None:
    pages = f"<memoryBacking><hugepages><page size='2' unit='MiB'/></hugepages>{more}</memoryBacking>"
    xml = domain("", pages + tune).replace("1048576</memory>", "15625000</memory>")
    (found,) = (
        one
        for one in criticise(host(virtualization=Virtualization(qemu_version=qemu)), xml, where="a.xml")
        if one.rule == "page-alignment"
    )
    assert (found.level, found.remedy) == (level, "write 15626240 KiB of memory")


@pytest.mark.parametrize(("parent", "level"), [(None, None), ("0000:00:01.1", "warn")])
def test_an_integrated_endpoint_of_the_host_needs_no_port(parent: str | None, level: str | None) -> None:
    """The USB controller of a chipset behind libvirt's bridge, and an IGD at its place on the root bus."""
    known = host()
    pci = (*(changed(one, parent="0000:00:01.1") for one in known.pci),
           PciDevice(address="0000:00:14.0", class_code="0c0330", iommu_group=5, parent=parent))  # fmt: skip
    place = "<address type='pci' domain='0x0000' bus='0x00' slot='0x07' function='0x0'/>"
    xml = domain(hostdev("0000:00:14.0", place).replace("slot='0x00' function", "slot='0x14' function"))
    assert levels(criticise(changed(known, pci=pci), xml, where="a.xml"), "root-port").get("root-port") == level


@pytest.mark.parametrize(
    ("more", "said"),
    [("", True), ("<rom bar='on'/>", True), ("<rom file='/x.rom'/>", False), ("<boot order='1'/>", False)],
)
def test_a_rom_that_is_wanted_is_not_advised_away(more: str, said: bool) -> None:
    found = criticise(host(), domain(hostdev(NIC, more)), where="a.xml")
    assert ("rom-bar" in {one.rule for one in found}) is said


def test_vcpus_that_no_cell_has_are_the_first_cells() -> None:
    """oVirt writes room for vCPUs to plug in, and one cell with those of the start."""
    one, two = "<cell id='0' cpus='0' memory='1048576'/>", "<cell id='1' cpus='1' memory='1048576'/>"
    for cells, level in ((one, None), (one + two, "warn")):
        xml = domain("", f"<cpu><numa>{cells}</numa></cpu>").replace("<vcpu>2", "<vcpu>4")
        assert levels(criticise(host(), xml, where="a.xml"), "cell-vcpus").get("cell-vcpus") == level


@pytest.mark.parametrize(
    ("kind", "libvirt", "asked"), [("tdx", "10.0.0", True), ("tdx", "11.6.0", False), ("sev", "4.4.0", True)]
)
def test_each_protection_needs_its_libvirt(kind: str, libvirt: str, asked: bool) -> None:
    there = host(virtualization=Virtualization(libvirt_version=libvirt))
    found = criticise(there, domain("", f"<launchSecurity type='{kind}'/>"), where="a.xml")
    assert [one.judged for one in found if one.rule == "confidential-type"] == ([False] if asked else [])


def test_a_guest_that_sees_no_kvm_gets_no_hints_of_it() -> None:
    pins = "<cputune><vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='3'/></cputune>"
    for state, said in (("off", True), ("on", False)):
        xml = domain(hostdev(GPU), pins).replace("<acpi/>", f"<acpi/><kvm><hidden state='{state}'/></kvm>")
        assert ("kvm-hints" in {one.rule for one in criticise(host(), xml, where="a.xml")}) is said


def test_locked_memory_that_libvirt_does_not_limit_gets_a_limit() -> None:
    """For passed devices libvirt raises the limit by itself; else <locked/> raises it."""
    limit, locked = "<hard_limit unit='KiB'>2097152</hard_limit>", "<memoryBacking><locked/></memoryBacking>"
    mdev = argument("-device", "vfio-pci,sysfsdev=/sys/class/mdev_bus/0000:00:02.0/fc444019,rombar=0")
    for devices, rest, remedy in ((hostdev(NIC), "", "take <locked/> out"), ("", mdev, limit), ("", "", limit)):
        found = criticise(host(), domain(devices, locked + rest), where="a.xml")
        assert [remedy in str(one.remedy) for one in found if one.rule == "memory-locking"] == [True]


@pytest.mark.parametrize(("libvirt", "known"), [("6.0.0", False), ("6.5.0", True), (None, True)])
def test_migratable_is_advised_to_a_libvirt_that_has_it(libvirt: str | None, known: bool) -> None:
    there = host(virtualization=Virtualization(libvirt_version=libvirt))
    for mode, count in (("host-model", 1), ("host-passthrough", int(known))):
        found = criticise(there, domain(hostdev(GPU), f"<cpu mode='{mode}'/>"), where="a.xml")
        assert ["migratable" in str(one.remedy) for one in found if one.rule == "cpu-model"] == [known] * count


@pytest.mark.parametrize(
    ("devices", "anew"), [("", False), ("<controller type='pci' index='0' model='pci-root'/>", True)]
)
def test_a_machine_with_addresses_of_its_own_is_left_by_a_new_guest(devices: str, anew: bool) -> None:
    xml = domain(hostdev(NIC) + devices).replace("machine='q35'", "machine='pc-i440fx-7.2'")
    (found,) = (one for one in criticise(host(), xml, where="a.xml") if one.rule == "machine-type")
    assert ("make it anew" in str(found.remedy)) is anew
