"""Faults of foreign domain XML, each on a guest that is right but for that fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from domain_faults import criticise, faults, findings, host_of, xml_of
from domain_shapes import MANY_VCPUS, ONE_GPU, SHAPES, TWO_CELLS, changed, emulated, pins_of
from xmledits import Edit, edited

from hosttune.errors import BadInput
from hosttune.model.gpu import Gpu
from hosttune.model.host import Cpu, CpuModel, Host, NumaNode, PciDevice, Virtualization

PIN, EMULATOR, IOTHREAD = "cputune/vcpupin[@vcpu='{}']", "cputune/emulatorpin", "cputune/iothreadpin"
CELL, TOPOLOGY, HOSTDEV = "cpu/numa/cell", "cpu/topology", "devices/hostdev"
SECOND_PORT = "devices/controller[@index='2']"


def pin(cpus: str) -> tuple[str, Edit]:
    return PIN.format(1), {"cpuset": cpus}


def bound(**attributes: str) -> list[tuple[str, Edit]]:
    return [(f"numatune/{tag}", attributes) for tag in ("memory", "memnode")]


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "odd"])
@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
def test_our_own_xml_has_no_faults(name: str, accelerator: str) -> None:
    guest = changed(SHAPES[name], accelerator=accelerator)
    known = ("managed='yes'", "Secure Boot is on")  # what was asked for
    remarks = [one for one in faults(guest) if not any(words in one.text for words in known)]
    assert remarks == []


def test_an_odd_guest_is_not_blamed_for_its_threads() -> None:
    texts = [finding.text for finding in faults(SHAPES["odd"])]
    assert len(texts) == 2
    assert texts[0].startswith("no huge pages")
    assert texts[1].startswith("10000:01:00.0: the option ROM is mapped")


@pytest.mark.parametrize(
    ("edits", "level", "text", "where"),
    [
        ([pin("40")], "warn", "vCPUs 0-1 on CPUs 2,40", "/domain/cputune/vcpupin"),
        ([pin("0")], "warn", "CPU 0 given away", "/domain/cputune/vcpupin"),
        ([pin("1")], "warn", "pinned to CPU 1 of the boot core", "/domain/cputune/vcpupin"),
        ([(PIN.format(1), None)], "warn", "vCPUs 1 have no vcpupin", "/domain/cputune/vcpupin"),
        ([pin("2-3")], "warn", "vCPU 1 may use 2-3", "/domain/cputune/vcpupin"),
        ([pin("2")], "warn", "CPU 2: vCPUs 0-1", "/domain/cputune/vcpupin"),
        ([pin("400")], "error", "CPUs 400 of vCPUs do not exist", "/domain/cputune/vcpupin"),
        ([(EMULATOR, None)], "warn", "no emulatorpin", "/domain/cputune/emulatorpin"),
        ([(EMULATOR, {"cpuset": "1-2"})], "warn", "emulator threads on CPU 2 of vCPUs", "/domain/cputune/emulatorpin"),
        ([(EMULATOR, {"cpuset": "400"})], "error", "CPUs 400 of the emulator", "/domain/cputune/emulatorpin"),
        ([(IOTHREAD, None)], "info", "the I/O thread has no iothreadpin: it may", "/domain/cputune/iothreadpin"),
        ([(IOTHREAD, {"cpuset": "3"})], "warn", "I/O threads on CPU 3 of vCPUs", "/domain/cputune/iothreadpin"),
        (bound(mode="preferred"), "warn", "numatune mode is preferred", "/domain/numatune"),
        (bound(nodeset="1"), "warn", "memory off the GPU's node: 0000:41:00.0 is on node 0", "/domain/numatune"),
        (bound(nodeset="0-1"), "warn", "the memory of cell 0 comes from nodes 0-1", "/domain/numatune"),
        (bound(nodeset="7"), "error", "nodes 7 do not exist", "/domain/numatune"),
        ([("memoryBacking", "<locked/>")], "warn", "<locked/> without a hard_limit", "/domain/memoryBacking/locked"),
        ([("devices/memballoon", None)], "info", "libvirt adds one", "/domain/devices/memballoon"),
        ([("devices/memballoon", {"model": "virtio"})], "info", "model virtio", "/domain/devices/memballoon"),
        (
            [(".", "<memtune><hard_limit unit='GiB'>64</hard_limit></memtune>")],
            "error",
            "hard_limit 64 GiB is below memory + 1 GiB",
            "/domain/memtune/hard_limit",
        ),
        (
            [(f"{HOSTDEV}/address", {"bus": "0x00", "slot": "0x05"})],
            "warn",
            "0000:41:00.0 sits directly on pcie.0",
            "/domain/devices/hostdev[0000:41:00.0]",
        ),
        (
            [("devices/controller[@index='1']", {"model": "dmi-to-pci-bridge"})],
            "warn",
            "not behind a root port",
            "/domain/devices/hostdev[0000:41:00.0]",
        ),
        ([("os/type", {"machine": "pc"})], "info", "machine pc, and not q35", "/domain/os/type"),
        ([(f"{HOSTDEV}/rom", None)], "info", "option ROM", "/domain/devices/hostdev[0000:41:00.0]"),
        (
            [(HOSTDEV, {"managed": "yes"})],
            "info",
            "managed='yes' gives it back",
            "/domain/devices/hostdev[0000:41:00.0]",
        ),
        (
            [(f"{HOSTDEV}/source/address", {"bus": "0x99"})],
            "error",
            "0000:99:00.0 does not exist",
            "/domain/devices/hostdev[0000:99:00.0]",
        ),
        ([(TOPOLOGY, {"threads": "1", "cores": "16"})], "info", "has threads=1", "/domain/cpu/topology"),
        (
            [(EMULATOR, {"cpuset": "512-513"})],
            "warn",
            "emulator threads on CPUs 512-513 of node 1, where the guest has no cell: its vCPUs and memory are on "
            "node 0",
            "/domain/cputune/emulatorpin",
        ),
        ([(IOTHREAD, {"cpuset": "512"})], "warn", "I/O threads on CPU 512 of node 1", "/domain/cputune/iothreadpin"),
        (
            [("memory", "33554432")],
            "warn",
            "<memory> is 32 GiB (34359738368 bytes), but the cells add up to 64 GiB (68719476736 bytes)",
            "/domain/memory",
        ),
        ([("memory", "67108865")], "warn", "the cells add up to 64 GiB (68719476736 bytes)", "/domain/memory"),
        (
            [("vcpu", "14"), (TOPOLOGY, {"cores": "7"})],
            "error",
            "the cells hold vCPUs 14-15, but the guest has 14 vCPUs",
            "/domain/cpu/numa/cell",
        ),
        (
            [(f"{SECOND_PORT}/target", {"chassis": "1"})],
            "error",
            "controllers 1 (port 0x1), 2 (port 0x2) have the same chassis 1",
            "/domain/devices/controller",
        ),
        (
            [
                (SECOND_PORT, {"model": "pcie-switch-downstream-port"}),
                (f"{SECOND_PORT}/target", {"chassis": "1", "port": None}),
            ],
            "error",
            "controllers 1 (port 0x1), 2 (port not written) have the same chassis 1",
            "/domain/devices/controller",
        ),
        ([(TOPOLOGY, {"cores": "9"})], "error", "makes 18 vCPUs, the guest has 16", "/domain/cpu/topology"),
        (
            [("memoryBacking/hugepages/page", {"size": "4194304"})],
            "error",
            "this host has 2 MiB and 1 GiB",
            "/domain/memoryBacking/hugepages",
        ),
        ([(CELL, {"memory": "67110912"})], "error", "not a whole number of 1 GiB pages", "/domain/cpu/numa/cell"),
        ([(CELL, {"memory": "4294967296"})], "error", "4 TiB of memory bound to node 0", "/domain/numatune"),
        (
            [(CELL, {"memory": "2145386496"})],
            "info",
            "needs 2046 pages of 1 GiB on node 0, where 2000 are reserved",
            "/domain/memoryBacking/hugepages",
        ),
    ],
)
def test_one_fault_is_named(edits: list[tuple[str, Edit]], level: str, text: str, where: str) -> None:
    found = [finding for finding in faults(ONE_GPU, *edits) if text in finding.text]
    assert [(finding.level, finding.where) for finding in found] == [(level, f"vm.xml: {where}")]


@pytest.mark.parametrize(("gib", "found"), [(2048, False), (2049, True)])
def test_memory_that_fills_its_node_is_no_fault(gib: int, found: bool) -> None:
    texts = [one.text for one in faults(ONE_GPU, (CELL, {"memory": str(gib << 20)}))]
    assert any("bound to node 0, which has 2 TiB" in text for text in texts) == found


def test_memory_devices_are_no_contradiction() -> None:
    """They count in <memory>, in no cell, and need a maxMemory; less than the cells is wrong even so."""
    room = (".", "<maxMemory slots='4' unit='GiB'>256</maxMemory>")
    more, less = ("memory", "134217728"), ("memory", "33554432")
    assert faults(ONE_GPU, more, room) == faults(ONE_GPU)
    assert [f.where for f in faults(ONE_GPU, less, room) if f not in faults(ONE_GPU)] == ["vm.xml: /domain/memory"]


def test_overlapping_cells() -> None:
    found = [f for f in faults(TWO_CELLS, ("cpu/numa/cell[@id='1']", {"cpus": "7-15"})) if "in several cells" in f.text]
    assert [(f.level, f.where, f.text[:7]) for f in found] == [("error", "vm.xml: /domain/cpu/numa/cell", "vCPUs 7")]


def test_ports_of_one_number_on_their_own_chassis_are_right() -> None:
    assert faults(ONE_GPU, (f"{SECOND_PORT}/target", {"port": "0x1"})) == faults(ONE_GPU)


def test_a_device_passed_twice() -> None:
    first, second = ONE_GPU.devices[0], changed(ONE_GPU.devices[0], guest_address="0000:02:00.0")
    found = faults(changed(ONE_GPU, devices=(first, second)))
    assert [(f.level, f.where) for f in found] == [("error", "vm.xml: /domain/devices/hostdev[0000:41:00.0]")]
    assert found[0].text.startswith("0000:41:00.0 is passed 2 times")


def test_missing_huge_pages() -> None:
    (finding,) = faults(changed(ONE_GPU, page_bytes=None))
    assert (finding.level, finding.where) == ("warn", "vm.xml: /domain/memoryBacking")
    assert "no huge pages" in finding.text


def test_vcpus_off_the_gpus_node() -> None:
    pins = tuple(changed(pin, cpus=str(int(pin.cpus) + 512)) for pin in ONE_GPU.vcpu_pins)
    texts = [finding.text for finding in faults(changed(ONE_GPU, vcpu_pins=pins))]
    assert any(text.startswith("vCPUs off the GPU's node: 0000:41:00.0 is on node 0") for text in texts)
    assert any("run on node 1, its memory is on node 0" in text for text in texts)


def test_vcpus_across_nodes_without_cells() -> None:
    pins = tuple(changed(pin, cpus=str(int(pin.cpus) + (512 if pin.vcpu > 7 else 0))) for pin in ONE_GPU.vcpu_pins)
    texts = [finding.text for finding in faults(changed(ONE_GPU, vcpu_pins=pins))]
    assert any(text.startswith("flat topology: the vCPUs run on nodes 0-1") for text in texts)


def test_a_gpu_on_the_wrong_cells_bus() -> None:
    edits = ((f"devices/controller/target[node='{node}']/node", other) for node, other in ((0, "2"), (1, "0")))
    texts = [finding.text for finding in faults(TWO_CELLS, *edits)]
    assert any("0000:c1:00.0 is on node 1" in text and "memory of cell 0" in text for text in texts)


def test_many_cells_on_one_bus() -> None:
    flat = changed(
        TWO_CELLS,
        controllers=ONE_GPU.controllers,
        devices=(changed(TWO_CELLS.devices[0], guest_address="0000:01:00.0"),),
    )
    assert any(finding.text.startswith("flat topology: 2 cells") for finding in faults(flat))


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        (("0-3,12-15", "4-11"), "cell 0 (0-3,12-15) cuts socket 0 (0-7)"),
        (("0-6", "7-15"), "cell 0 (0-6) cuts sibling group 3 (6-7)"),
    ],
)
def test_cells_that_cut(cells: tuple[str, str], text: str) -> None:
    edits = [(f"cpu/numa/cell[@id='{cell}']", {"cpus": cpus}) for cell, cpus in enumerate(cells)]
    found = [finding for finding in faults(TWO_CELLS, *edits) if text in finding.text]
    assert [finding.level for finding in found] == ["warn"]


def test_cells_within_one_socket_are_right() -> None:
    one_socket = changed(TWO_CELLS, topology=ONE_GPU.topology)
    assert not [finding for finding in faults(one_socket) if "cut" in finding.text]


def test_siblings_of_vcpu_cpus_for_the_emulator() -> None:
    guest = changed(ONE_GPU, vcpu_pins=(*pins_of(1, 16)[:-1], changed(pins_of(1, 16)[-1], cpus="40")))
    found = faults(guest, (EMULATOR, {"cpuset": "41"}))
    assert any("emulator threads on CPU 41, siblings of CPUs of vCPUs" in finding.text for finding in found)


def other_member(host: Host) -> Host:
    audio = PciDevice(address="0000:41:00.1", class_code="040300", numa_node=0, iommu_group=0, driver="snd_hda_intel")
    bridge = PciDevice(address="0000:40:01.0", class_code="060400", numa_node=0, iommu_group=0)
    return changed(host, pci=(*host.pci, audio, bridge))


def offline(host: Host) -> Host:
    return changed(host, cpus=tuple(changed(cpu, online=cpu.id != 3) for cpu in host.cpus))


def hidden(host: Host) -> Host:
    return changed(host, cpus=tuple(changed(cpu, allowed=cpu.id != 3) for cpu in host.cpus))


def boot_display(host: Host) -> Host:
    return changed(host, pci=tuple(changed(device, boot_display=True) for device in host.pci))


@pytest.mark.parametrize(
    ("change", "level", "text"),
    [
        (other_member, "error", "0000:41:00.0 cannot be passed: 0000:41:00.1, which driver snd_hda_intel holds, is in"),
        (offline, "error", "CPUs 3 of vCPUs are offline"),
        (hidden, "error", "CPUs 3 of vCPUs are hidden"),
        (boot_display, "error", "0000:41:00.0 is the display"),
    ],
)
def test_one_fault_of_the_host_is_named(change: Callable[[Host], Host], level: str, text: str) -> None:
    found = [finding for finding in faults(ONE_GPU, host=change(host_of())) if text in finding.text]
    assert [finding.level for finding in found] == [level]


def test_what_the_host_does_not_know_is_no_fault() -> None:
    assert faults(ONE_GPU, host=Host()) == ()
    unknown = host_of(
        cpus=tuple(Cpu(id=cpu.id) for cpu in host_of().cpus),
        pci=tuple(PciDevice(address=device.address) for device in host_of().pci),
        numa_nodes=tuple(NumaNode(id=n) for n in (0, 1)),
    )
    assert faults(MANY_VCPUS, host=unknown) == ()


def test_errors_come_first() -> None:
    found = faults(ONE_GPU, (HOSTDEV, {"managed": "yes"}), (f"{HOSTDEV}/source/address", {"bus": "0x99"}))
    assert [finding.level for finding in found] == ["error", "info"]


def test_a_plain_guest_is_left_alone() -> None:
    xml = "<domain type='kvm'><name>web</name><memory unit='GiB'>4</memory><vcpu>2</vcpu></domain>"
    assert [finding.text[:21] for finding in criticise(host_of(), xml, where="web.xml")] == ["vCPUs 0-1 have no vcp"]


def test_no_domain_xml_is_bad_input() -> None:
    with pytest.raises(BadInput) as refused:
        criticise(host_of(), "<network/>", where="net.xml")
    assert refused.value.where == "net.xml"


def test_the_emulated_twin_has_the_same_faults() -> None:
    edit = pin("40")
    assert faults(emulated(ONE_GPU), edit) == faults(ONE_GPU, edit)


def _tune(**values: int) -> list[tuple[str, str]]:
    return [("cputune", f"<{tag}>{value}</{tag}>") for tag, value in values.items()]


def _current(count: int) -> list[tuple[str, Edit]]:
    return [("vcpu", {"current": str(count)})]


LOOSE = [(PIN.format(vcpu), None) for vcpu in range(4, 16)]
OFF = "<vcpus>" + "".join(f"<vcpu id='{n}' enabled='{'no' if n == 3 else 'yes'}'/>" for n in range(16)) + "</vcpus>"


@pytest.mark.parametrize(
    ("edits", "texts"),
    [
        (_tune(period=100000, quota=1000), ["each vCPU may run 1000 of 100000 microseconds, "]),
        (_tune(quota=50000), ["each vCPU may run 50000 of 100000 microseconds, which is 50 % of a CPU"]),
        (_tune(period=100000, quota=99999), ["each vCPU may run 99999 of"]),
        (_tune(period=100000, quota=100000), []),
        (_tune(quota=150000), []),
        (_tune(period=1000), []),
        (_tune(period=1000, quota=-1), []),
        (_tune(quota=0), []),
        (_tune(global_quota=400000), ["all threads of the guest together may run 400000 of 100000"]),
        (_tune(global_quota=1600000), []),
        (_tune(emulator_period=20000, emulator_quota=10000), ["the emulator thr"]),
        (_tune(iothread_period=20000, iothread_quota=10000), ["each I/O thread"]),
        ([*_tune(iothread_quota=10000), ("iothreads", None)], []),
        (_current(4), ["vCPUs 4-15 of 16 are off when the guest starts: their pinned CPUs do nothing"]),
        (_current(16), []),
        ([*_current(4), *LOOSE], []),
        ([(".", OFF)], ["vCPUs 3 of 16 are off"]),
    ],
)
def test_vcpus_that_are_kept_from_their_cpus(edits: list[tuple[str, Edit]], texts: list[str]) -> None:
    found = [one for one in faults(ONE_GPU, *edits) if one.rule in ("cpu-quota", "vcpus-off")]
    assert [one.level for one in found] == ["warn"] * len(texts)
    assert all(text in one.text for text, one in zip(texts, found, strict=True)), found


def test_a_quota_of_a_guest_without_cpus_of_its_own_is_as_its_operator_wants() -> None:
    xml = xml_of(ONE_GPU, *((PIN.format(vcpu), None) for vcpu in range(16)), *_tune(quota=1000))
    assert "cpu-quota" in {one.rule for one in criticise(host_of(), xml, where="vm.xml")}, "it has a GPU"
    xml = edited(xml, HOSTDEV, None)
    assert "cpu-quota" not in {one.rule for one in criticise(host_of(), xml, where="vm.xml")}


WINDOWS = (
    "<metadata><libosinfo:libosinfo xmlns:libosinfo='http://libosinfo.org/xmlns/libvirt/domain/1.0'>"
    "<libosinfo:os id='http://microsoft.com/win/11'/></libosinfo:libosinfo></metadata>"
)


@pytest.mark.parametrize(
    ("vendor", "machine", "size", "count"),
    [
        ("AuthenticAMD", "pc-q35-8.2", 2048, 1),
        ("AuthenticAMD", "pc-q35-7.0", 2048, 0),
        ("AuthenticAMD", "pc-q35-8.2", 256, 0),
        ("GenuineIntel", "pc-q35-8.2", 2048, 0),
    ],
)
def test_windows_above_amds_hole(vendor: str, machine: str, size: int, count: int) -> None:
    edits = (
        (".", WINDOWS),
        (".", f"<maxMemory slots='16' unit='GiB'>{size}</maxMemory>"),
        ("os/type", {"machine": machine}),
    )
    found = findings(ONE_GPU, *edits, host=host_of(cpu_model=CpuModel(vendor=vendor)))
    assert [one.level for one in found if one.rule == "high-memory"] == ["info"] * count


@pytest.mark.parametrize(("version", "levels"), [("4.5.0", ["error"]), ("5.2.0", []), (None, [])])
def test_a_firmware_that_libvirt_does_not_choose(version: str | None, levels: list[str]) -> None:
    host = host_of(virtualization=Virtualization(libvirt_version=version, qemu_version="2.12.0" if version else None))
    found = findings(ONE_GPU, host=host)
    assert [one.level for one in found if one.rule == "firmware-choice"] == levels


def test_the_rom_of_a_gpu_whose_driver_reads_it() -> None:
    host = host_of(gpus=(Gpu(address=ONE_GPU.devices[0].address, vendor="amd"),))
    assert [one.level for one in findings(ONE_GPU, host=host) if one.rule == "rom-bar"] == ["info"]
    assert [one for one in findings(ONE_GPU, (f"{HOSTDEV}/rom", None), host=host) if one.rule == "rom-bar"] == []
