"""`plan --xml` and `--adopt`: an existing definition, planned and changed only where it must be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import applyroots
import pytest
from lxml import etree
from msgspec.structs import replace
from planhosts import Card, Held, Shape, build_host, cores_of
from xmledits import edited, with_edits

import hosttune
from hosttune.cli.process import run
from hosttune.domain.guest import Memnode
from hosttune.domain.reader import read_domain
from hosttune.domain.writer import domain_xml
from hosttune.errors import BadInput
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.topology import MemorySettings
from hosttune.planning import plan
from hosttune.planning.adopting import LIVE, NEXT_START, Adoption, Adoptions, Definition, adopt

GPU = "0000:c1:00.0"
UUID = "c7a5fdbd-edaf-9455-926a-d65c16db1809"
PAGES = {node: {2 << 20: (8192, 8192)} for node in (0, 1)}
FLOATING = f"""<domain type="kvm">
  <!-- by hand -->
  <name>old</name>
  <uuid>{UUID}</uuid>
  <metadata><own:note xmlns:own="urn:own">kept</own:note></metadata>
  <memory unit="GiB">8</memory>
  <vcpu>4</vcpu>
  <iothreads>1</iothreads>
  <os><type arch="x86_64" machine="q35">hvm</type></os>
  <devices>
    <emulator>/opt/qemu</emulator>
    <hostdev mode="subsystem" type="pci" managed="yes">
      <source><address domain="0x0000" bus="0xc1" slot="0x00" function="0x0"/></source>
    </hostdev>
  </devices>
</domain>
"""


DISK = "<disk type='file'><source file='/srv/old.qcow2'/><target dev='vda' bus='virtio'/></disk>"
NETWORK = "<interface type='network'><source network='default'/></interface>"


def host_of(**changes: Any) -> Host:
    cards = (Card(GPU, 1, group=7), Card("0000:c2:00.0", 1, kind="usb", group=8))
    return Host.from_json(json.dumps(build_host(**{"cards": cards, "hugepages": PAGES, **changes})))


def adopted(text: str, **changes: Any) -> Adoption:
    return only(host_of(**changes), text)


def only(host: Host, text: str) -> Adoption:
    (found,) = together(host, text).guests
    return found


def together(host: Host, *texts: str) -> Adoptions:
    return adopt(host, [Definition(text.encode()) for text in texts])


def test_a_floating_guest_is_pinned_beside_its_gpu() -> None:
    found = adopted(FLOATING)
    facts = read_domain(found.after)
    node = {cpu.id: cpu.numa_node for cpu in host_of().cpus}
    pins = [int(pin.cpus) for pin in facts.vcpu_pins]
    assert len(set(pins)) == 4
    assert {node[cpu] for cpu in pins} == {1}
    assert facts.numatune == Memnode(mode="strict", nodes="1")
    assert facts.backing.pages
    assert facts.emulator_cpus == facts.iothread_pins[0].cpus
    assert {change.effect for change in found.changes if "pin" in change.element} == {LIVE}
    assert {change.effect for change in found.changes if "pin" not in change.element} == {NEXT_START}
    lines = iter(found.after.decode().splitlines())
    assert all(line in lines for line in FLOATING.splitlines())  # no line of the definition is changed or moved


def test_what_is_shown_of_it_is_its_own() -> None:
    """Its disk, network and way of binding; and no finding says that it has nothing to boot from."""
    half = "<cputune><vcpupin vcpu='1' cpuset='2'/></cputune>"
    text = with_edits(FLOATING, ("devices", DISK), ("devices", NETWORK), (".", half))
    found = together(host_of(), text)
    (guest,) = found.plan.guests
    assert (guest.disks, [one.text for one in guest.networks]) == (("/srv/old.qcow2",), ["default"])
    assert ([device.managed for device in guest.devices], guest.why) == ([True], ())
    assert not [finding for finding in found.plan.findings if "boot from" in finding.text]
    assert found.guests[0].changes[0].was == "host CPUs 2, 3 of 4 not pinned"


def test_a_second_plan_finds_nothing_to_change() -> None:
    first = adopted(FLOATING)
    again = adopted(first.after.decode())
    assert again.changes == ()
    assert again.after == first.after


@pytest.mark.parametrize("guest", [{"vcpus": 4}, {"vcpus": 6, "numa": 2}])
def test_what_hosttune_planned_needs_no_change(guest: dict[str, Any]) -> None:
    host = host_of()
    wanted = {"version": 1, "guests": [{"name": "own", "gpus": [GPU], "memory": "8GiB", **guest}]}
    own = domain_xml(plan(host, Intent.from_json(json.dumps(wanted))), "own")
    assert only(host, own).changes == ()


def test_a_guest_on_good_cpus_stays_there_and_on_another_node_moves() -> None:
    first = adopted(FLOATING).after.decode()
    pins = [pin.cpus for pin in read_domain(first).vcpu_pins]
    numbers = {node: [cpu for core in cores_of(Shape(), node)[-2:] for cpu in core] for node in (0, 1)}
    moved, wrong = (
        with_edits(
            first,
            *((f"cputune/vcpupin[@vcpu='{vcpu}']", {"cpuset": str(cpu)}) for vcpu, cpu in enumerate(numbers[node])),
        )
        for node in (1, 0)
    )
    assert len(pins) == len(numbers[0]) == len(numbers[1])
    assert adopted(moved).changes == ()
    assert [c.element for c in adopted(wrong).changes] == ["vcpupin of vCPUs 0-3"]


def test_what_the_running_guest_holds_is_its_own() -> None:
    full = {node: {2 << 20: (4096, 0 if node else 4096)} for node in (0, 1)}
    held = Held("old", (), 8 << 30, (GPU,))
    document = build_host(cards=(Card(GPU, 1, group=7),), hugepages=full, guests=(held,))
    document["guests"][0] |= {"memory": [{"node": 1, "memory_bytes": 8 << 30, "page_bytes": 2 << 20}]}
    backing = '<memoryBacking><hugepages><page size="2" unit="MiB"/></hugepages></memoryBacking>'
    found = together(Host.from_json(json.dumps(document)), edited(FLOATING, ".", backing))
    assert found.plan.unplaced == ()
    assert found.guests[0].runs
    assert [action for action in found.plan.actions if action.kind == "hugepages"] == []
    document["guests"][0]["name"] = "other"
    assert "held by guest other" in " ".join(only(Host.from_json(json.dumps(document)), FLOATING).unplaced)


@pytest.mark.parametrize(("kind", "mode"), [("kvm", "host-passthrough"), ("qemu", "maximum")])
def test_a_flat_guest_with_gpus_on_two_nodes_gets_cells(kind: str, mode: str) -> None:
    cards = (Card(GPU, 1, group=7), Card("0000:41:00.0", 0, group=9))
    second = '<address domain="0x0000" bus="0x41" slot="0x00" function="0x0"/></source></hostdev>'
    hostdev = f'<hostdev mode="subsystem" type="pci"><source>{second}'
    text = edited(FLOATING, "devices", hostdev)
    found = adopted(text if kind == "kvm" else edited(text, ".", {"type": kind}), cards=cards)
    facts = read_domain(found.after)
    assert [cell.vcpus for cell in facts.cells] == ["0-1", "2-3"]
    assert [memnode.nodes for memnode in facts.memnodes] == ["0", "1"]
    assert facts.cpu.topology is not None
    assert (facts.cpu.mode, facts.cpu.topology.sockets, facts.cpu.topology.threads) == (mode, 2, 2)
    again = adopted(found.after.decode(), cards=cards)
    assert again.changes == ()


def test_emulator_threads_leave_the_vcpus() -> None:
    good = adopted(FLOATING).after.decode()
    facts = read_domain(good)
    found = adopted(edited(good, "cputune/emulatorpin", {"cpuset": facts.vcpu_pins[0].cpus}))
    assert [change.element for change in found.changes] == ["emulatorpin"]
    assert read_domain(found.after) == facts


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((".", "<memoryBacking><hugepages/></memoryBacking>"), "the host's default size"),
        ((".", '<cpu><numa><cell id="0" cpus="0-3" memory="1" unit="GiB"/></numa></cpu>'), "add up"),
        (("vcpu", "400"), "needs 200 cores"),
    ],
)
def test_a_guest_without_a_place_keeps_its_definition(change: tuple[str, str], why: str) -> None:
    found = adopted(edited(FLOATING, *change))
    assert why in " ".join(found.unplaced)
    assert found.after == found.before
    assert found.changes == ()


def test_huge_pages_without_a_size_are_the_hosts_default_and_stay_as_written() -> None:
    definition = edited(FLOATING, ".", "<memoryBacking><hugepages/></memoryBacking>")
    adoptions = together(replace(host_of(), memory_settings=MemorySettings(default_hugepage_bytes=2 << 20)), definition)
    assert [guest.page_bytes for guest in adoptions.plan.guests] == [2 << 20]
    assert b"<memoryBacking><hugepages/></memoryBacking>" in adoptions.guests[0].after


def test_a_guest_of_libvirt_is_adopted_unless_it_has_a_managed_save(
    tmp_path: Path, pristine: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    with applyroots.copied(pristine, tmp_path / "root") as copy:
        adopt_on(copy.path, capsysbinary)


def adopt_on(root: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    host = hosttune.discover(str(root))
    wanted = {"version": 1, "guests": [{"name": "old", "gpus": [applyroots.GPU], "vcpus": 4, "memory": "8GiB"}]}
    own = domain_xml(plan(host, Intent.from_json(json.dumps(wanted))), "old")
    commands = root / ".hosttune" / "commands"
    commands.mkdir(parents=True, exist_ok=True)
    floating = "".join(line for line in own.splitlines(keepends=True) if "pin " not in line)
    (commands / "virsh-dumpxml-old").write_text(floating)
    assert run(["plan", "--root", str(root), "--adopt", "old"]) == 0
    assert b"vcpupin of vCPUs 0-3: not pinned" in capsysbinary.readouterr().out
    assert run(["plan", "--root", str(root), "--adopt", "none"]) == 2
    assert b"no guest 'none' is defined" in capsysbinary.readouterr().err
    saved = root / "var/lib/libvirt/qemu/save/old.save"
    saved.parent.mkdir(parents=True, exist_ok=True)
    saved.write_text("")
    assert run(["plan", "--root", str(root), "--adopt", "old", "-o", "xml"]) == 1
    assert b"managed save" in capsysbinary.readouterr().out


def test_a_guest_of_another_manager_is_named() -> None:
    text = edited(FLOATING, "metadata", "<n:instance xmlns:n='http://openstack.org/xmlns/libvirt/nova/1.1'/>")
    assert any("OpenStack Nova manages this guest" in finding.text for finding in adopted(text).findings)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda text: edited(text, ".", {"type": "xen"}), "hypervisor 'xen'"),
        (lambda text: edited(text, "os/type", {"arch": "aarch64"}), "architecture 'aarch64'"),
        (lambda text: edited(text, "devices/hostdev/source/address", {"bus": "0xc9"}), "no device 0000:c9:00.0"),
        (lambda text: edited(text, "name", None), "no name"),
        (lambda text: f"<!DOCTYPE domain [<!ENTITY a 'b'>]>{text}", "document type"),
        (lambda text: text.replace("</vcpu>", ""), "not an XML document"),
    ],
)
def test_bad_definitions_are_refused(change: Callable[[str], str], what: str) -> None:
    with pytest.raises(BadInput, match=what):
        adopted(change(FLOATING))


def test_the_command_prints_the_difference_and_the_definition(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    host, guest = tmp_path / "host.json", tmp_path / "guest.xml"
    host.write_text(host_of().to_json())
    guest.write_bytes(FLOATING.replace("\n", "\r\n").encode())
    assert run(["plan", "--host", str(host), "--xml", str(guest)]) == 0
    text = capsysbinary.readouterr().out.decode()
    assert "at the next start" in text
    assert '+    <memory mode="strict" nodeset="1"/>' in text
    assert "--- definition" in text
    assert run(["plan", "--host", str(host), "--xml", str(guest), "-o", "xml"]) == 0
    printed = capsysbinary.readouterr().out
    assert etree.fromstring(printed).find("numatune") is not None
    assert b"\n" not in printed.replace(b"\r\n", b"")
    assert run(["plan", "--host", str(host), "--xml", str(guest), "-o", "svg"]) == 0
    assert capsysbinary.readouterr().out.startswith(b"<svg")
    guest.write_bytes(printed)
    assert run(["plan", "--host", str(host), "--xml", str(guest)]) == 0
    assert b"nothing to change" in capsysbinary.readouterr().out


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--xml", "missing.xml"), b"missing.xml"),
        (("--xml", "a.xml", "--gpus", "1"), b"--xml together with options of another plan"),
        (("--xml", "a.xml", "--adopt", "a"), b"--adopt together with --host"),
        (("--adopt", "a"), b"--adopt together with --host"),
    ],
)
def test_wrong_options(
    options: tuple[str, ...], what: bytes, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    host = tmp_path / "host.json"
    host.write_text(host_of().to_json())
    assert run(["plan", "--host", str(host), *options]) == 2
    assert what in capsysbinary.readouterr().err
