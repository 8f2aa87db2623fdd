"""A quarantined drive that is in another slot after a boot: known by the serial number that its driver has shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from applyroots import STATE
from coursekills import DRIVE, passing_all, root_of
from courses import Wiped, handed, here, states, steps
from cutshort import put

from hosttune.cli import run
from hosttune.discovery import discover
from hosttune.discovery.handover import _brief
from hosttune.errors import Refused
from hosttune.handover.targets import Asked, Target, joined
from hosttune.inventory.devices import quarantined_devices
from hosttune.journal.register import read_register
from hosttune.machine.opening import open_system
from hosttune.model.quarantine import drive_mark
from hosttune.transaction.site import Site

MOVED, SERIAL = "0000:c9:00.0", "S6CK NE0 T1"


class OnTheDriver(Wiped):
    """The drive shows its serial number from the time on that the host's driver has it. Its erasure is not proven."""

    def __init__(self, root: Path) -> None:
        super().__init__("unknown")
        self.root = root

    def before_driver(self, site: Site, target: Target) -> None:
        """See Cleaning."""
        if target.address == DRIVE and dict.fromkeys(read_step(self.root)) == {"taken-back": None}:
            shows(self.root, DRIVE, SERIAL)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small root with a drive whose hand-over did not end well: it is quarantined, and on vfio-pci."""
    found = root_of(tmp_path / "small")
    shutil.rmtree(found / f"sys/devices/pci0000:c0/{DRIVE}/nvme")
    handed(found, Asked(devices=(DRIVE,), erase=(SERIAL,)), OnTheDriver(found), passing_all)
    assert states(found) == {DRIVE: "quarantined"}
    return found


def read_step(root: Path) -> list[str]:
    return [str(one.step) for one in read_register(str(root / STATE)).devices]


def shows(root: Path, address: str, serial: str) -> None:
    put(root, f"/sys/bus/pci/devices/{address}/nvme/nvme0/serial", f"{serial:<20}\n")
    put(root, f"/sys/bus/pci/devices/{address}/nvme/nvme0/firmware_rev", "GDC5602Q\n")


def move(root: Path) -> None:
    """Put the drive into another slot."""
    link = root / "sys/bus/pci/devices" / DRIVE
    folder = link.resolve()
    link.unlink()
    folder.rename(folder.with_name(MOVED))
    link.with_name(MOVED).symlink_to(f"../../../devices/pci0000:c0/{MOVED}")


def quarantined(root: Path) -> set[str]:
    return set(quarantined_devices(here(root)[1]()))


def test_a_drive_that_was_moved_is_still_quarantined(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert drive_mark(SERIAL) == "serial=S6CK%20NE0%20T1"
    record = read_register(str(root / STATE)).record(DRIVE)
    assert record is not None
    assert drive_mark(SERIAL) in record.identity.split(" ")
    assert quarantined(root) == {DRIVE}
    move(root)
    assert quarantined(root) == {DRIVE, MOVED}
    capsys.readouterr()
    intent = root.with_name("intent.json")
    guest = {"name": "next", "gpus": 0, "nvme": [MOVED], "vcpus": 1, "memory": "64MiB"}
    intent.write_text(json.dumps({"version": 1, "profile": "none", "guests": [guest]}))
    assert run(["plan", "--root", str(root), "-f", str(intent), "-o", "json"]) == 1
    out = capsys.readouterr().out
    assert f"{MOVED} is quarantined since" in str(json.loads(out)["unplaced"])
    shows(root, MOVED, "S6CK NE0 T2")  # another drive of that model
    assert quarantined(root) == {DRIVE}


def test_another_drive_of_the_model_in_its_place_is_not_handed_over(root: Path) -> None:
    shows(root, DRIVE, "S6CK NE0 T2")
    with pytest.raises(Refused, match=f"another device is at {DRIVE} now"):
        handed(root, Asked(devices=(DRIVE,), erase=("S6CK NE0 T2",)), Wiped(), passing_all)
    shows(root, DRIVE, SERIAL)
    assert handed(root, Asked(devices=(DRIVE,), erase=(SERIAL,)), Wiped(), passing_all).clean


def test_a_capture_has_no_serial_number_of_a_quarantined_drive(root: Path) -> None:
    state = discover(open_system(str(root))).handover
    assert state is not None
    assert state.serials == {DRIVE: SERIAL}
    assert SERIAL.split(" ")[0] not in str(_brief(state))


def test_what_was_known_of_a_device_stays_known() -> None:
    before = "0000:41:00.0 10de:2335 sub=10de:18be serial=165 uuid=GPU-1 machine=m"
    assert joined(before, "0000:41:00.0 10de:2335 sub=10de:18be uuid=GPU-1 machine=m") == (
        "0000:41:00.0 10de:2335 sub=10de:18be uuid=GPU-1 machine=m serial=165"
    )
    assert joined("0000:41:00.0 10de:2335", before) == before


class Swapped(OnTheDriver):
    """Another drive of the same model is in the slot. What is erased is proven."""

    def __init__(self, root: Path, serial: str) -> None:
        super().__init__(root)
        self.outcome, self.serial = "done", serial

    def before_driver(self, site: Site, target: Target) -> None:
        """See Cleaning."""
        if read_step(self.root) == ["taken-back"]:
            shows(self.root, DRIVE, self.serial)


@pytest.mark.parametrize("named", ["OTHER", SERIAL])
def test_another_drive_of_its_model_does_not_make_a_quarantined_one_clean(root: Path, named: str) -> None:
    """On vfio-pci the two look alike. The one that was taken out has its last tenant's data, wherever it is now."""
    shutil.rmtree((root / "sys/bus/pci/devices" / DRIVE).resolve() / "nvme")
    before = read_register(str(root / STATE)).record(DRIVE)
    assert before is not None
    asked = Asked(devices=(DRIVE,), erase=(named,))
    if named == "OTHER":
        with pytest.raises(Refused, match=f"quarantined at {DRIVE} is .* serial=S6CK%20NE0%20T1', not 'OTHER'"):
            handed(root, asked, Swapped(root, "OTHER"), passing_all)
    else:
        found = handed(root, asked, Swapped(root, "OTHER"), passing_all)
        assert (steps(found, DRIVE)[2], found.clean) == (("taken-back", "failed"), False)
        assert f"another device is at {DRIVE} now" in found.refused[0]
    after = read_register(str(root / STATE)).record(DRIVE)
    assert after is not None
    assert (after.state, after.identity) == ("quarantined", before.identity)
