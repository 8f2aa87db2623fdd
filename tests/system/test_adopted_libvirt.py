"""A guest that was defined by hand, adopted or replaced on a private libvirtd: what is there after apply and revert."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from adoptions import BY_HAND, SECRET, adopted_by_hand, with_changes
from faultkinds import DIGEST, host
from faultlab import quiet
from libvirtd import Libvirtd, libvirtd
from lxml import etree
from msgspec.structs import replace
from system.test_hypervisor_libvirt import machine, running_guest
from xmledits import edited, with_edits

from hosttune.domain.definitions import digest_of
from hosttune.errors import Refused
from hosttune.hypervisor import process_of
from hosttune.hypervisor.connection import has_managed_save, read_definition
from hosttune.journal import Store
from hosttune.machine.live import LiveMachine
from hosttune.model.intent import Intent
from hosttune.model.plan import AdoptedCell, Cell, Plan, Topology
from hosttune.model.topology import NumaNode
from hosttune.transaction import ApplyOptions, apply_plan, revert, status
from hosttune.transaction.site import Site

__all__ = ["libvirtd", "machine"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="apply needs root")
NAME = "byhand"


def by_hand(folder: Path, *, firmware: bool) -> str:
    """A definition with comments, a password, metadata of other programs, UEFI variables; small enough to run here."""
    listen = f"<listen type='socket' socket='{folder}/vnc'/>"
    graphics = f"<graphics type='vnc' passwd='geheim&lt;7'><!-- the console -->{listen}</graphics>"
    devices = (("devices/graphics", None), ("devices", graphics), ("devices", "<video><model type='none'/></video>"))
    loader = (
        ("os", "<loader readonly='yes' type='pflash'>/code.fd</loader>"),
        ("os", f"<nvram>{folder}/vars.fd</nvram>"),
    )
    return with_edits(BY_HAND, (".", {"type": "qemu"}), *devices, *(loader if firmware else ()))


@pytest.fixture
def site(machine: LiveMachine, tmp_path: Path) -> Site:
    return Site(system=machine, store=Store(str(tmp_path / "state")), boot_id="b", hostname="here")


@pytest.fixture
def folder(libvirtd: Libvirtd) -> Path:
    return libvirtd.directory


def plan_of(machine: LiveMachine) -> Plan:
    """A plan made from what libvirt prints without secrets."""
    plain = read_definition(machine, NAME)
    assert plain is not None
    assert "passwd=" not in plain
    return Plan(intent=Intent(version=1), host_digest=DIGEST, adoptions=(adopted_by_hand(plain),))


def secure(libvirtd: Libvirtd) -> str:
    return libvirtd.virsh("dumpxml", "--inactive", "--security-info", NAME)


def without(xml: str, *tags: str) -> bytes:
    root = etree.fromstring(xml, etree.XMLParser(remove_blank_text=True))
    for tag in tags:
        for element in root.findall(tag):
            root.remove(element)
    return bytes(etree.tostring(root))


def test_nothing_is_lost_over_apply_and_revert(
    site: Site, machine: LiveMachine, libvirtd: Libvirtd, folder: Path
) -> None:
    variables = folder / "vars.fd"
    variables.write_bytes(b"UEFI")
    libvirtd.virsh("define", libvirtd.file("byhand.xml", by_hand(folder, firmware=True)))
    libvirtd.virsh("autostart", NAME)
    libvirtd.virsh("metadata", NAME, "urn:other", "--config", "--key", "other", "--set", "<thing>7</thing>")
    libvirtd.virsh("desc", NAME, "--config", "--title", "the best guest")
    before = secure(libvirtd)
    assert "geheim&lt;7" in before
    assert "urn:other" in before
    plan = plan_of(machine)
    assert plan.adoptions[0].definition_sha256 == digest_of(before)  # secrets do not count
    result, code = apply_plan(site, plan, ApplyOptions(), host, lambda todo: True, quiet)
    assert (code, [entry.outcome for entry in result.entries]) == (0, ["done"]), result
    changed = secure(libvirtd)
    assert "<vcpupin vcpu='1'" in changed
    assert without(changed, "cputune", "numatune") == without(before)
    assert "Autostart:      enable" in libvirtd.virsh("dominfo", NAME)
    assert variables.read_bytes() == b"UEFI"
    result, code = apply_plan(site, plan, ApplyOptions(), host, lambda todo: True, quiet)
    assert (code, [entry.outcome for entry in result.entries]) == (0, ["already"])
    assert (status(site)[1], status(site)[0].drift) == (0, ())
    assert revert(site, quiet)[1] == 0
    assert secure(libvirtd) == before
    assert "Autostart:      enable" in libvirtd.virsh("dominfo", NAME)
    assert SECRET not in repr(result)


def test_a_guest_that_a_planned_one_replaces_comes_back_whole(
    site: Site, machine: LiveMachine, libvirtd: Libvirtd, folder: Path
) -> None:
    """An intent can name a guest that exists. libvirt takes a relative path, and its own schema refuses it."""
    disk = "<disk type='file'><source file='a.img'/><target dev='vda' bus='virtio'/></disk>"
    text = edited(by_hand(folder, firmware=True), "devices", disk)
    libvirtd.virsh("define", libvirtd.file("byhand.xml", text))
    libvirtd.virsh("autostart", NAME)
    before = secure(libvirtd)
    assert "passwd='geheim&lt;7'" in before
    plan = Plan(intent=Intent(version=1), host_digest=DIGEST, guests=(running_guest(NAME),))
    said: list[str] = []
    result, code = apply_plan(site, plan, ApplyOptions(), host, lambda todo: True, said.append)
    outcomes = [entry.outcome for entry in result.entries]  # the planned guest has nothing to boot from
    assert (code, outcomes) == (0, ["done", "done", "pending"]), result
    assert "passwd='geheim&lt;7'" in secure(libvirtd)  # an update keeps what the intent does not decide
    assert status(site)[1] == 0
    undone, code = revert(site, said.append)
    assert (code, undone.entries[0].outcome) == (0, "reverted"), undone
    assert secure(libvirtd) == before
    assert "Autostart:      enable" in libvirtd.virsh("dominfo", NAME)
    assert [text for text in (*said, repr(result), repr(undone)) if "geheim" in text] == []
    assert site.store is not None
    journals = Path(site.store.folder, "transactions")
    holding = {path.name: path.stat().st_mode & 0o777 for path in journals.iterdir() if b"geheim" in path.read_bytes()}
    assert set(holding.values()) == {0o600}


def test_a_running_guest_is_not_disturbed(site: Site, machine: LiveMachine, libvirtd: Libvirtd, folder: Path) -> None:
    libvirtd.virsh("define", libvirtd.file("byhand.xml", by_hand(folder, firmware=False)))
    libvirtd.virsh("start", NAME)
    process, live, before = process_of(machine, NAME), libvirtd.virsh("dumpxml", NAME), secure(libvirtd)
    assert process is not None
    plan = plan_of(machine)
    assert apply_plan(site, plan, ApplyOptions(), host, lambda todo: True, quiet)[1] == 0
    assert secure(libvirtd) != before
    assert (process_of(machine, NAME), libvirtd.virsh("dumpxml", NAME)) == (process, live)
    assert revert(site, quiet)[1] == 0
    assert (process_of(machine, NAME), libvirtd.virsh("dumpxml", NAME)) == (process, live)
    assert secure(libvirtd) == before
    assert not has_managed_save(machine, NAME)
    libvirtd.virsh("managedsave", NAME)
    try:
        assert has_managed_save(machine, NAME)
        with pytest.raises(Refused, match="managed save"):
            apply_plan(site, plan, ApplyOptions(), host, lambda todo: True, quiet)
    finally:
        libvirtd.virsh("managedsave-remove", NAME)
    libvirtd.virsh("undefine", NAME)
    with pytest.raises(Refused, match="not defined any more"):
        apply_plan(site, plan, ApplyOptions(), host, lambda todo: True, quiet)


def test_libvirt_keeps_each_change_as_it_is_written(site: Site, machine: LiveMachine, libvirtd: Libvirtd) -> None:
    """Huge pages, two cells, a topology, placement: what a guest that was never tuned gets."""
    memory = ("memory", "262144"), ("currentMemory", "262144")
    vcpus = ("vcpu", "4"), ("vcpu", {"placement": "auto"}), (".", "<iothreads>1</iothreads>")
    text = with_edits(BY_HAND, (".", {"type": "qemu"}), *memory, *vcpus)
    libvirtd.virsh("define", libvirtd.file("byhand.xml", text))
    plain = read_definition(machine, NAME)
    assert plain is not None
    found = adopted_by_hand(plain, cpus=(2, 3, 4, 5))
    cells = tuple(
        Cell(id=n, vcpus=vcpus, memory_bytes=128 << 20, host_nodes=str(n), distances=distances)
        for n, (vcpus, distances) in enumerate((("0-1", (10, 21)), ("2-3", (21, 10))))
    )
    topology = Topology(sockets=2, dies=1, cores=1, threads=2)
    guest = replace(found.guest, cells=cells, page_bytes=2 << 20, topology=topology)
    numbered = tuple(AdoptedCell(id=cell.id, cell=cell) for cell in cells)
    adopted = with_changes(replace(found, guest=guest, cells=numbered, foreign_cpus="2-5"), plain)
    assert len(adopted.changes) == 9
    plan = Plan(intent=Intent(version=1), host_digest=DIGEST, adoptions=(adopted,))
    both = replace(host(), numa_nodes=(NumaNode(id=0), NumaNode(id=1)))
    before = secure(libvirtd)
    result, code = apply_plan(site, plan, ApplyOptions(), lambda: both, lambda todo: True, quiet)
    assert (code, [entry.outcome for entry in result.entries]) == (0, ["done"]), result
    assert apply_plan(site, plan, ApplyOptions(), lambda: both, lambda todo: True, quiet)[0].changed is False
    assert revert(site, quiet)[1] == 0
    assert secure(libvirtd) == before
