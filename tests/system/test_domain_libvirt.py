"""The XML against libvirt itself: its RelaxNG schema, `define --validate`, and the QEMU command line it makes."""

from __future__ import annotations

from pathlib import Path

import pytest
from domain_shapes import GIB, SHAPES, changed, emulated, plan_of
from libvirtd import PACKAGES, Argv, Libvirtd, libvirtd
from lxml import etree
from xmledits import edited

from hosttune.domain.definitions import same_guest
from hosttune.domain.writer import domain_xml
from hosttune.model.plan import PlannedGuest

__all__ = ["libvirtd"]

SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")

every_shape = pytest.mark.parametrize("guest", SHAPES.values(), ids=SHAPES.keys())


@pytest.fixture(scope="module")
def schema() -> etree.RelaxNG:
    if not SCHEMA.exists():
        pytest.fail(f"{SCHEMA} not installed: apt-get install {PACKAGES}")
    return etree.RelaxNG(etree.parse(str(SCHEMA)))


def native(guest: PlannedGuest, *, hugepages: bool) -> PlannedGuest:
    """The guest as this machine can translate it: TCG, all memory on node 0, no taps to open.

    Functions of networks are plain host devices: libvirt 9.0 translates no interface that is one (it crashes).
    """
    cells = tuple(changed(cell, host_nodes="0") for cell in guest.cells)
    devices = tuple(changed(device, network=None) for device in guest.devices)
    here = changed(emulated(guest), cells=cells, networks=(), devices=devices)
    return here if hugepages else changed(here, page_bytes=None)


@every_shape
@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
@pytest.mark.parametrize("annotate", [False, True], ids=["plain", "annotated"])
def test_valid_against_libvirts_schema(
    schema: etree.RelaxNG, guest: PlannedGuest, accelerator: str, annotate: bool
) -> None:
    xml = domain_xml(plan_of(changed(guest, accelerator=accelerator)), guest.name, annotate=annotate)
    assert schema.validate(etree.fromstring(xml)), schema.error_log


def test_the_schema_can_say_no(schema: etree.RelaxNG) -> None:
    xml = edited(domain_xml(plan_of(SHAPES["one-gpu"]), "one-gpu"), "numatune/memory", {"mode": "stern"})
    assert not schema.validate(etree.fromstring(xml))


@every_shape
def test_libvirt_defines_it_and_keeps_every_fact(libvirtd: Libvirtd, guest: PlannedGuest) -> None:
    guest = emulated(guest)
    xml = domain_xml(plan_of(guest), guest.name)
    libvirtd.virsh("define", "--validate", libvirtd.file(f"{guest.name}.xml", xml))
    assert same_guest(libvirtd.virsh("dumpxml", guest.name), xml) == ()


def translate(libvirtd: Libvirtd, guest: PlannedGuest) -> Argv:
    guest = native(guest, hugepages=libvirtd.hugepages)
    return libvirtd.argv(domain_xml(plan_of(guest), guest.name))


@every_shape
def test_qemu_gets_cells_ports_and_devices(libvirtd: Libvirtd, guest: PlannedGuest) -> None:
    argv = translate(libvirtd, guest)
    devices = {device["id"]: device for device in argv.parsed("-device") if "id" in device}
    # A mediated device is named by the folder of its UUID.
    passed = {
        device["host"] if "host" in device else device["sysfsdev"].rpartition("/")[2]: device
        for device in devices.values()
        if device["driver"] == "vfio-pci"
    }
    assert set(passed) == {device.address for device in guest.devices}
    for device in guest.devices:
        found = passed[device.address]
        assert found.get("rombar", 1) == int(device.rom_bar)
        port = devices[found["bus"]]
        assert found["bus"] == f"pci.{int(device.guest_address[5:7], 16)}"
        if port["driver"] == "xio3130-downstream":
            assert devices[port["bus"]]["driver"] == "x3130-upstream"
            port = devices[devices[port["bus"]]["bus"]]
        assert port["driver"] == "pcie-root-port"
        if any(controller.model == "pcie-expander-bus" for controller in guest.controllers):
            assert devices[port["bus"]]["driver"] == "pxb-pcie"
            assert devices[port["bus"]]["numa_node"] == device.guest_cell
        else:
            assert port["bus"] == "pcie.0"
    ports = [(device["chassis"], device["port"]) for device in devices.values() if "chassis" in device]
    assert len(set(ports)) == len(ports) >= len({device.guest_address[:10] for device in guest.devices})


@every_shape
def test_qemu_gets_cpus_and_memory(libvirtd: Libvirtd, guest: PlannedGuest) -> None:
    argv = translate(libvirtd, guest)
    topology = guest.topology
    assert topology is not None
    assert argv.one("-smp") == (
        f"{len(guest.vcpu_pins)},sockets={topology.sockets},dies={topology.dies},"
        f"cores={topology.cores},threads={topology.threads}"
    )
    numa = argv.all("-numa")
    backends = {backend["id"]: backend for backend in argv.parsed("-object") if backend["id"].startswith("ram-node")}
    for cell in guest.cells:
        assert f"node,nodeid={cell.id},cpus={cell.vcpus},memdev=ram-node{cell.id}" in numa
        backend = backends[f"ram-node{cell.id}"]
        assert backend["size"] == cell.memory_bytes
        assert backend["policy"] == "bind"
        assert backend["prealloc"] is True
        if libvirtd.hugepages and guest.page_bytes:
            assert f"/{'1G' if guest.page_bytes == GIB else '2M'}/" in backend["mem-path"]
        for other, distance in enumerate(cell.distances):
            assert f"dist,src={cell.id},dst={other},val={distance}" in numa
    assert argv.one("-accel") == "tcg"
    assert argv.one("-cpu").startswith("max,")
    assert "kvm-" not in argv.one("-cpu")


@every_shape
def test_qemu_gets_firmware_windows_and_threads(libvirtd: Libvirtd, guest: PlannedGuest) -> None:
    argv = translate(libvirtd, guest)
    window = guest.ovmf_window_mib
    assert argv.all("-fw_cfg") == ([] if window is None else [f"name=opt/ovmf/X-PciMmio64Mb,string={window}"])
    holes = [value for value in argv.all("-global") if "pci-hole64-size" in value]
    expected = guest.pci_hole64_bytes
    assert holes == ([] if expected is None else [f"q35-pcihost.pci-hole64-size={expected // 1024}K"])
    assert ("pflash0=" in argv.one("-machine")) is (guest.firmware == "efi")
    assert len([o for o in argv.parsed("-object") if o["qom-type"] == "iothread"]) == len(guest.iothread_cpus)
    assert not [device for device in argv.parsed("-device") if "balloon" in device["driver"]]
    iommu = [device for device in argv.parsed("-device") if device["driver"] == "intel-iommu"]
    assert [device["eim"] for device in iommu] == (["on"] if guest.iommu_eim else [])
    assert argv.all("-kernel") == ([guest.boot.kernel] if guest.boot else [])
    if guest.boot:
        assert argv.all("-append") == [guest.boot.cmdline]
        assert argv.all("-initrd") == [guest.boot.initrd]
    disk = next(device for device in argv.parsed("-device") if device["driver"] == "virtio-blk-pci")
    assert disk.get("iothread") == ("iothread1" if guest.iothread_cpus else None)
    assert disk["bootindex"] == 1


def test_a_disk_leaves_the_cells_ports_to_their_devices(libvirtd: Libvirtd) -> None:
    argv = translate(libvirtd, SHAPES["eight-gpus"])
    devices = {device["id"]: device for device in argv.parsed("-device") if "id" in device}
    disk = next(device for device in devices.values() if device["driver"] == "virtio-blk-pci")
    assert devices[disk["bus"]]["bus"] == "pcie.0"
