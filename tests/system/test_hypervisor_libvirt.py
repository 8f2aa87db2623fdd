"""Guests defined, edited, started and undone on a private libvirtd: what a scratch root can only suppose."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping

import pytest
from domain_shapes import GIB, SHAPES, changed, emulated, plan_of
from forcehosts import applied
from libvirtd import Libvirtd, libvirtd
from planhosts import Card, build_host
from xmledits import Edit, edited

from hosttune.domain.definitions import same_guest
from hosttune.domain.reader import read_domain
from hosttune.domain.writer import domain_xml
from hosttune.errors import CommandFailed, Unreadable, WriteFailed
from hosttune.handover.testguest.order import CHANNEL
from hosttune.handover.testguest.planned import NAME
from hosttune.handover.testguest.planned import xml_of as with_base
from hosttune.hypervisor import process_of, read_state, verify_running, xml_difference
from hosttune.hypervisor.definition import PlannedDefinition
from hosttune.hypervisor.disk import Image
from hosttune.hypervisor.state import Autostart, GuestState
from hosttune.machine.live import LiveMachine
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Cell, Plan, PlannedGuest, PlannedPin, Topology
from hosttune.model.values import to_json
from hosttune.planning import plan

__all__ = ["libvirtd"]

shapes = pytest.mark.parametrize("name", ["one-gpu", "two-cells", "many-vcpus", "kernel-boot", "bridge", "odd"])


@pytest.fixture
def machine(libvirtd: Libvirtd, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveMachine]:
    """This machine with the private libvirtd as its libvirt; every guest is gone afterwards."""
    monkeypatch.setenv("HOSTTUNE_LIBVIRT_URI", f"qemu+unix:///session?socket={libvirtd.directory}/libvirt/libvirt-sock")
    yield LiveMachine()
    for name in libvirtd.virsh("list", "--name").split():
        libvirtd.virsh("destroy", name)
    for name in libvirtd.virsh("list", "--all", "--name").split():
        libvirtd.virsh("undefine", "--nvram", name)


def xml_of(guest: PlannedGuest) -> str:
    return domain_xml(plan_of(guest), guest.name)


@shapes
def test_what_libvirt_keeps_is_what_was_wanted(machine: LiveMachine, name: str) -> None:
    guest = emulated(SHAPES[name])
    setting, want = PlannedDefinition.of(guest.name), xml_of(guest)
    setting.check(want)
    assert setting.read(machine) is None
    setting.write(machine, want)
    kept = setting.read(machine)
    assert kept is not None
    assert same_guest(kept, want) == ()
    assert setting.agrees(kept, want)
    setting.write(machine, want)
    again = setting.read(machine)
    assert setting.is_original(again, kept), "a second definition changes at most the order of controllers"
    setting.write(machine, None)
    assert setting.read(machine) is None
    setting.write(machine, None)  # as after a crash between undefine and the journal's word


EDITS: dict[str, Mapping[str, Edit]] = {
    "a vCPU's pin": {"cputune/vcpupin": {"cpuset": "7"}},
    "emulator pin": {"cputune/emulatorpin": {"cpuset": "7"}},
    "I/O thread's pin": {"cputune/iothreadpin": {"cpuset": "7"}},
    "memory's node": {"numatune/memnode": {"nodeset": "1"}},
    "memory's mode": {"numatune/memnode": {"mode": "preferred"}, "numatune/memory": {"mode": "preferred"}},
    "page size": {"memoryBacking/hugepages/page": {"size": "2048"}},
    "no huge pages": {"memoryBacking/hugepages": None},
    "the passed device": {"devices/hostdev/source/address": {"bus": "0x42"}},
    "managed": {"devices/hostdev": {"managed": "yes"}},
    "no device": {"devices/hostdev": None},
    "option ROM": {"devices/hostdev/rom": {"bar": "on"}},
    "the device's place": {"devices/hostdev/address": {"bus": "0x06"}},
    "disk": {"devices/disk/source": {"file": "/other.qcow2"}},
    "disk's cache": {"devices/disk/driver": {"cache": "writeback", "io": "threads"}},
    "network": {"devices/interface/source": {"network": "other"}},
    "no network": {"devices/interface": None},
    "the source of random numbers": {"devices/rng/backend": "/dev/random"},
    "the agent's channel": {"devices/channel/target": {"name": "org.qemu.guest_agent.1"}},
    "balloon": {"devices/memballoon": {"model": "virtio"}},
    "CPU": {"cpu/cache": {"mode": "emulate", "level": "3"}},
    "topology": {"cpu/topology": {"cores": "4", "dies": "2"}},
    "window": {"devices/controller/pcihole64": "1048576"},
    "port": {"devices/controller/target": {"chassis": "33"}},
    "kernel": {"os": "<kernel>/vmlinuz</kernel>"},
    "clock": {"clock": {"offset": "localtime"}},
    "a timer": {"clock/timer[@name='hpet']": {"present": "yes"}},
    "restart": {"on_reboot": "destroy"},
}


THEIRS: dict[str, Mapping[str, Edit]] = {
    "locked memory": {"memoryBacking": "<locked/>"},
    "a hard limit": {".": "<memtune><hard_limit unit='KiB'>99999999</hard_limit></memtune>"},
    "a second disk": {"devices": "<disk type='file'><source file='/b'/><target dev='vdb' bus='virtio'/></disk>"},
    "graphics": {"devices": "<graphics type='vnc' port='-1' autoport='yes'/>"},
    "random numbers": {"devices": "<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>"},
}


def with_edits(xml: str, edits: Mapping[str, Edit]) -> str:
    """The XML as somebody leaves it after `virsh edit`."""
    for path, edit in edits.items():
        xml = edited(xml, path, edit)
    return xml


def test_an_edit_of_what_the_plan_decides_is_drift(machine: LiveMachine, libvirtd: Libvirtd) -> None:
    guest = emulated(SHAPES["one-gpu"])
    setting, want = PlannedDefinition.of(guest.name), xml_of(guest)
    setting.write(machine, want)
    kept = setting.read(machine)
    assert kept is not None
    unseen = []
    for what, change in EDITS.items():
        libvirtd.virsh("define", libvirtd.file("edited.xml", with_edits(kept, change)))
        found = setting.read(machine)
        assert found is not None
        assert found != kept, what
        if setting.agrees(found, want) or setting.agrees(found, kept):
            unseen.append(what)
    assert unseen == []
    setting.write(machine, kept)
    assert setting.read(machine) == kept
    for what, change in THEIRS.items():
        libvirtd.virsh("define", libvirtd.file("edited.xml", with_edits(kept, change)))
        found = setting.read(machine)
        assert found is not None
        assert setting.agrees(found, want), what
        assert not setting.is_original(found, kept), what


def test_whether_libvirt_starts_it_with_the_host(machine: LiveMachine, libvirtd: Libvirtd) -> None:
    guest = emulated(SHAPES["one-gpu"])
    definition, setting = PlannedDefinition.of(guest.name), Autostart.of(guest.name)
    assert (setting.waits_for(machine), setting.read(machine)) == ("the guest is not defined", False)
    definition.write(machine, xml_of(guest))
    assert (setting.waits_for(machine), setting.read(machine)) == (None, False)
    for value, word in ((True, "enable"), (True, "enable"), (False, "disable"), (True, "enable")):
        setting.write(machine, value)
        assert setting.read(machine) is value
        assert re.search(rf"^Autostart: +{word}$", libvirtd.virsh("dominfo", guest.name), re.MULTILINE)
    definition.write(machine, xml_of(changed(guest, emulator_cpus="1")))
    assert setting.read(machine), "a new definition leaves it alone"
    definition.write(machine, None)
    assert not setting.read(machine)


def test_a_title_is_nobodys_drift(machine: LiveMachine, libvirtd: Libvirtd) -> None:
    guest = emulated(SHAPES["one-gpu"])
    setting, want = PlannedDefinition.of(guest.name), xml_of(guest)
    setting.write(machine, want)
    libvirtd.virsh("desc", guest.name, "--config", "--title", "the best guest")
    assert setting.agrees(setting.read(machine), want)


def test_a_redefined_guest_keeps_its_uuid(machine: LiveMachine, libvirtd: Libvirtd) -> None:
    guest = emulated(SHAPES["no-gpu"])
    foreign = "11111111-2222-3333-4444-555555555555"
    libvirtd.virsh("define", libvirtd.file("foreign.xml", xml_of(changed(guest, uuid=foreign))))
    setting = PlannedDefinition.of(guest.name)
    old = setting.read(machine)
    assert old is not None
    want = xml_of(changed(guest, emulator_cpus="0", uuid="99999999-2222-3333-4444-555555555555"))
    assert not setting.agrees(old, want)
    setting.write(machine, want)
    found = setting.read(machine)
    assert found is not None
    assert read_domain(found).uuid == foreign
    assert setting.agrees(found, want)
    shown = xml_difference(old, found)
    assert '\n-    <emulatorpin cpuset="0-1"/>\n' in shown
    assert '\n+    <emulatorpin cpuset="0"/>\n' in shown
    assert "mac address" not in "".join(line for line in shown.splitlines() if line.startswith(("+", "-")))
    setting.write(machine, old)
    assert setting.read(machine) == old


def test_disks_and_networks_that_are_added_move_no_device_inside(machine: LiveMachine) -> None:
    """Neither what hosttune placed nor what libvirt did, by which the guest's system names its drives and NICs."""
    cards = [Card("0000:21:00.0", 0, group=1), Card("0000:31:00.0", 1, group=2)]
    host = Host.from_json(to_json(build_host(nodes=2, cores_per_node=8, cards=cards)))

    def planned(host: Host, more: int) -> Plan:
        disks, networks = [f"/img/{n}" for n in range(1 + more)], [{"bridge": f"br{n}"} for n in range(1 + more)]
        guest = {"name": "a", "gpus": 2, "vcpus": 4, "memory": "1GiB", "accelerator": "tcg"}
        intent = {"version": 1, "guests": [{**guest, "hugepages": "none", "disks": disks, "networks": networks}]}
        return plan(host, Intent.from_json(to_json(intent)))

    setting, first = PlannedDefinition.of("a"), planned(host, 0)
    setting.write(machine, domain_xml(first, "a"))
    then = setting.read(machine)
    assert then is not None
    more = domain_xml(planned(applied(host, first), 9), "a")
    setting.write(machine, setting.edited(domain_xml(first, "a"), then, more)[0])
    now = setting.read(machine)
    assert now is not None
    assert addresses(then).items() <= addresses(now).items()
    assert len(addresses(now)) >= len(addresses(then)) + 2 * 9


def addresses(definition: str) -> dict[str, str]:
    """Where each device of a guest is, by its element without its place."""
    found = {}
    for device in ElementTree.fromstring(definition).iterfind("devices/*"):
        for address in device.findall("address[@type='pci']"):
            device.remove(address)
            found[ElementTree.tostring(device, encoding="unicode").strip()] = str(address.attrib)
    return found


def test_a_name_that_looks_like_an_id_is_a_name(machine: LiveMachine, libvirtd: Libvirtd) -> None:
    small = running_guest("other")
    PlannedDefinition.of("other").write(machine, xml_of(small))
    GuestState.of("other").write(machine, "running")
    (number,) = libvirtd.virsh("list", "--id").split()
    setting = PlannedDefinition.of(number)
    assert setting.read(machine) is None
    assert GuestState.of(number).read(machine) == "shut off"
    GuestState.of(number).write(machine, "shut off")
    setting.write(machine, None)
    assert read_state(machine, "other") == "running"
    PlannedDefinition.of(number).write(machine, xml_of(changed(small, name=number)))
    GuestState.of(number).write(machine, "shut off")
    setting.write(machine, None)
    assert read_state(machine, "other") == "running"


def test_libvirt_refuses_what_its_schema_does_not_know(machine: LiveMachine) -> None:
    guest = emulated(SHAPES["no-gpu"])
    setting = PlannedDefinition.of(guest.name)
    with pytest.raises(CommandFailed, match="failed to validate"):
        setting.write(machine, edited(xml_of(guest), "numatune/memory", {"mode": "stern"}))
    assert setting.read(machine) is None


def test_a_libvirt_that_cannot_be_asked_is_unknown(
    machine: LiveMachine, libvirtd: Libvirtd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTTUNE_LIBVIRT_URI", f"qemu+unix:///session?socket={libvirtd.directory}/nobody-listens")
    with pytest.raises(Unreadable, match="virsh list") as unreadable:
        PlannedDefinition.of("g").read(machine)
    assert unreadable.value.hint == "start libvirt's daemon, or run as root"
    with pytest.raises(Unreadable, match="virsh list"):
        GuestState.of("g").read(machine)


# --- running -------------------------------------------------------------------------------------------------


def running_guest(name: str) -> PlannedGuest:
    """A guest small enough to run here: two emulated vCPUs, 128 MiB of ordinary memory, no devices."""
    cpus = sorted(os.sched_getaffinity(0))
    return changed(
        emulated(SHAPES["no-gpu"]),
        name=name,
        firmware="bios",
        vcpu_pins=tuple(PlannedPin(vcpu=n, cpus=str(cpus[n % len(cpus)])) for n in range(2)),
        emulator_cpus=str(cpus[0]),
        iothread_cpus=(str(cpus[-1]),),
        topology=Topology(sockets=1, dies=1, cores=2, threads=1),
        cells=(Cell(id=0, vcpus="0-1", memory_bytes=GIB // 8, host_nodes="0"),),
        page_bytes=None,
        disk=None,
        networks=(),
        allocation_threads=None,
    )


def test_started_proven_and_ended(machine: LiveMachine, libvirtd: Libvirtd) -> None:
    guest = running_guest("runs")
    definition, state = PlannedDefinition.of(guest.name), GuestState.of(guest.name)
    assert state.read(machine) == "shut off"
    definition.write(machine, xml_of(guest))
    state.write(machine, "running")
    assert state.read(machine) == "running"
    state.write(machine, "running")  # again, as after a crash
    process = process_of(machine, guest.name)
    assert process is not None
    assert verify_running(machine, guest, process) == ()
    with pytest.raises(WriteFailed, match="it runs"):
        definition.write(machine, None)
    state.write(machine, "shut off")
    assert state.read(machine) == "shut off"
    state.write(machine, "shut off")
    definition.write(machine, None)
    assert definition.read(machine) is None


def test_what_runs_elsewhere_is_told(machine: LiveMachine, libvirtd: Libvirtd) -> None:
    guest = running_guest("strays")
    PlannedDefinition.of(guest.name).write(machine, xml_of(guest))
    GuestState.of(guest.name).write(machine, "running")
    process = process_of(machine, guest.name)
    assert process is not None
    other = changed(
        guest,
        vcpu_pins=(PlannedPin(vcpu=0, cpus="900"), *guest.vcpu_pins[1:], PlannedPin(vcpu=2, cpus="901")),
        emulator_cpus="902",
        iothread_cpus=("903",),
        cells=(Cell(id=0, vcpus="0-1", memory_bytes=GIB * 64, host_nodes="0"),),
    )
    told = verify_running(machine, other, process)
    assert any(re.match(r"vCPU 0 may run on CPUs [0-9,-]+, expected 900", text) for text in told)
    assert "vCPU 2: no thread of it, expected on CPUs 901" in told
    assert any(text.startswith("I/O thread 1 may run on ") for text in told)
    assert any(text.startswith("emulator thread 'qemu-system") for text in told)
    assert any(re.match(r"memory: \d+ MiB on node 0, expected 65536 MiB", text) for text in told)
    assert not any(text.startswith("vCPU 1") for text in told)


def test_a_guest_without_a_definition_is_left_alone(machine: LiveMachine, libvirtd: Libvirtd) -> None:
    guest = running_guest("transient")
    libvirtd.virsh("create", libvirtd.file("transient.xml", xml_of(guest)))
    setting = PlannedDefinition.of(guest.name)
    assert setting.read(machine) is None
    with pytest.raises(WriteFailed, match="runs without a definition"):
        setting.write(machine, xml_of(guest))
    assert read_state(machine, guest.name) == "running"


def test_the_image_of_a_test_guest_is_read_only_and_the_last_of_its_chain(libvirtd: Libvirtd) -> None:
    """QEMU is given every file by name, so that none is opened which an image names; the answer has a channel."""
    base = str(libvirtd.directory / "operator.qcow2")
    overlay = libvirtd.directory / "disk.qcow2"
    overlay.write_bytes(b"")
    guest = changed(emulated(SHAPES["no-gpu"]), name=NAME, disk=str(overlay), networks=())
    argv = libvirtd.argv(with_base(plan_of(guest), Image(path=base, format="qcow2")))
    nodes = {node["node-name"]: node for node in argv.parsed("-blockdev")}
    of = {nodes[node["file"]]["filename"]: node for node in nodes.values() if node["driver"] == "qcow2"}
    assert {path: node["read-only"] for path, node in of.items()} == {base: True, str(overlay): False}
    assert of[str(overlay)]["backing"] == of[base]["node-name"]
    assert of[base]["backing"] is None, "whatever the image says"
    assert [CHANNEL in one for one in argv.all("-device") if "virtserialport" in one] == [False, True]
