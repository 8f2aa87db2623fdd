"""Which devices a quarantine covers: the register's, what belongs to them, and a device that was moved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from handovers import DRIVE, GPU, host, record
from planhosts import intent_of

from hosttune.errors import BadInput, Refused
from hosttune.inventory.devices import quarantined_devices
from hosttune.journal import Store
from hosttune.journal.register import read_register, record_devices, release
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.pci import PciDevice
from hosttune.model.quarantine import HandoverState, Register
from hosttune.model.starts import QUARANTINED, REGISTER
from hosttune.model.values import to_json
from hosttune.planning import plan

VFS = ("0000:41:00.4", "0000:41:00.5")
MOVED = "0000:42:00.0"


def held(**changes: Any) -> Host:
    """A host whose GPU is quarantined; fields of the host can be changed."""
    register = (record(GPU, state="quarantined", identity=f"{GPU} 10de:2335 serial=S1 uuid=GPU-1"), record(DRIVE))
    return host(**{"handover": HandoverState(devices=register), **changes})


def functions(*more: PciDevice) -> tuple[PciDevice, ...]:
    return (*host().pci, *more)


def test_only_what_is_quarantined() -> None:
    assert set(quarantined_devices(held())) == {GPU}
    assert quarantined_devices(host()) == {}
    assert quarantined_devices(host(handover=None)) == {}
    assert set(quarantined_devices(host(), Register(devices=(record(DRIVE, state="quarantined"),)))) == {DRIVE}
    assert quarantined_devices(held(), Register()) == {}  # the register as it is now counts


def test_a_function_and_its_virtual_functions_are_quarantined_together() -> None:
    virtual = tuple(PciDevice(address=address, physfn=GPU) for address in VFS)
    found = quarantined_devices(held(pci=functions(*virtual)))
    assert set(found) == {GPU, *VFS}
    assert found[VFS[0]].startswith(f"{VFS[0]} belongs with {GPU}, which is quarantined since")
    of_one = msgspec.structs.replace(record(GPU, state="quarantined"), address=VFS[0])
    one = HandoverState(devices=(of_one,))
    assert set(quarantined_devices(held(pci=functions(*virtual), handover=one))) == {GPU, VFS[0]}


@pytest.mark.parametrize("facts", [{"serial": "S1"}, {"uuid": "GPU-1"}, {"serial": "S1", "uuid": "GPU-2"}])
def test_a_device_that_was_moved_stays_quarantined(facts: Mapping[str, Any]) -> None:
    moved = PciDevice(address=MOVED, vendor_id="10de", device_id="2335", class_code="030200")
    there = held(pci=functions(moved), gpus=(Gpu(address=MOVED, vendor="nvidia", **facts),))
    assert set(quarantined_devices(there)) == {GPU, MOVED}
    other = held(pci=functions(moved), gpus=(Gpu(address=MOVED, vendor="nvidia", serial="S2", uuid="GPU-2"),))
    assert set(quarantined_devices(other)) == {GPU}
    unknown = held(pci=functions(moved), gpus=(Gpu(address=MOVED, vendor="nvidia"),))
    assert set(quarantined_devices(unknown)) == {GPU}


def test_a_device_that_was_moved_is_known_on_vfio_pci_by_its_device_serial_number() -> None:
    """Some makers give all cards one number: a device that is where it was has not moved."""
    ids: dict[str, Any] = {"vendor_id": "10de", "device_id": "2335", "class_code": "030200"}
    moved = PciDevice(address=MOVED, dsn="48b02d0000000001", **ids)
    told = msgspec.structs.replace(record(GPU, state="quarantined"), identity=f"{GPU} 10de:2335 dsn=48b02d0000000001")
    gpus = (Gpu(address=MOVED, vendor="nvidia"), Gpu(address=GPU, vendor="nvidia"))
    for own, places in (("48b02d0000000002", {GPU, MOVED}), ("48b02d0000000001", {GPU})):
        pci = (*(one for one in host().pci if one.address != GPU), PciDevice(address=GPU, dsn=own, **ids), moved)
        there = held(pci=pci, gpus=gpus, handover=HandoverState(devices=(told,)))
        assert set(quarantined_devices(there)) == places


def test_planning_leaves_the_guest_unplaced_with_the_reason() -> None:
    intent = Intent.from_json(to_json(intent_of(vcpus=4, memory="4GiB", gpus=[GPU], profile="none")))
    found = plan(held(), intent)
    (unplaced,) = found.unplaced
    assert (found.guests, unplaced.why[0].split(" since")[0]) == ((), f"{GPU} is quarantined")
    assert len(plan(host(), intent).guests) == 1
    drive = Intent.from_json(to_json(intent_of(vcpus=4, memory="4GiB", nvme=[DRIVE], profile="none")))
    assert len(plan(held(), drive).guests) == 1


# --- the register ------------------------------------------------------------------------------------------------


def test_the_hooks_list_never_lacks_a_device_whatever_is_cut_off(tmp_path: Path) -> None:
    """Every file of the register is refused in turn: the list for the hook has what the register quarantines."""
    folder = str(tmp_path)
    record_devices(folder, (record(GPU, state="quarantined"),))
    for address, state in ((DRIVE, "quarantined"), (GPU, "clean")):
        for blocked in (QUARANTINED, REGISTER):
            path = tmp_path / blocked
            kept = path.read_bytes()
            path.unlink()
            path.mkdir()  # it cannot be replaced
            with pytest.raises(BadInput):
                record_devices(folder, (record(address, state=state),))
            path.rmdir()
            path.write_bytes(kept)
            listed = set((tmp_path / QUARANTINED).read_text().split())
            assert {one.address for one in read_register(folder).quarantined} <= listed
    record_devices(folder, (record(DRIVE, state="quarantined"), record(GPU)))
    assert (tmp_path / QUARANTINED).read_text().split() == [DRIVE, "end", "1"]


def test_a_register_with_an_address_twice_is_refused(tmp_path: Path) -> None:
    record_devices(str(tmp_path), (record(GPU),))
    text = to_json(Register(devices=(record(GPU, state="quarantined"), record(GPU))))
    (tmp_path / REGISTER).write_text(text)
    with pytest.raises(BadInput, match="occurs twice"):
        read_register(str(tmp_path))


@pytest.mark.parametrize("why", ["", " ", "a\nb", "x" * 501, "\x1b[31m"])
def test_a_release_needs_a_reason_that_can_be_shown(why: str, tmp_path: Path) -> None:
    record_devices(str(tmp_path), (record(GPU, state="quarantined"),))
    with pytest.raises(BadInput) as error:
        release(str(tmp_path), GPU, why)
    assert error.value.where == "--why"
    assert [one.state for one in read_register(str(tmp_path)).devices] == ["quarantined"]


def test_a_release_says_who_and_happens_once(tmp_path: Path) -> None:
    record_devices(str(tmp_path), (record(GPU, state="quarantined"),))
    freed = release(str(tmp_path), GPU, "back to the maker")
    assert (freed.state, freed.why, bool(freed.who)) == ("released", "back to the maker", True)
    assert read_register(str(tmp_path)).record(GPU) == freed
    for address in (GPU, DRIVE):
        with pytest.raises(Refused, match="is not quarantined"):
            release(str(tmp_path), address, "again")


def test_one_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another hosttune that changes this host keeps a release out."""
    from hosttune.cli import run

    root = tmp_path / "root"
    for name in (".hosttune/scratch", "sys/x"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    folder = root / "var/lib/hosttune"
    record_devices(str(folder), (record(GPU, state="quarantined"),))
    with Store(str(folder)).locked():
        assert run(["handover", "release", "--root", str(root), GPU, "--why", "x"]) == 3
    assert "another hosttune" in capsys.readouterr().err
    assert msgspec.json.decode((folder / "handover/register.json").read_bytes())["devices"][0]["state"] == "quarantined"
