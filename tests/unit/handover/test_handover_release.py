"""`hosttune handover release`: not under a hand-over that runs, and what one that was cut off has left goes with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from applyroots import STATE
from coursekills import ASKED, DRIVE, HOSTS_NIC, NIC, passing_all, root_of
from courses import Wiped, handed, here, states
from cutshort import KilledError, put

from hosttune.errors import Refused
from hosttune.handover import calls
from hosttune.handover.cleaning import Erasure, Work
from hosttune.handover.targets import Asked, Target
from hosttune.journal.register import record_devices
from hosttune.model.quarantine import DeviceRecord
from hosttune.transaction.site import Site

METHODS = f"/sys/bus/pci/devices/{DRIVE}/reset_method"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small root with a drive and a NIC of a stopped guest."""
    return root_of(tmp_path / "small")


class Releases(Wiped):
    """A person releases a device while a hand-over works on it, and another one that is not part of it."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def erasure(self, work: Work, target: Target, *, back: bool) -> Erasure:
        """See Cleaning."""
        assert calls.release(here(self.root), HOSTS_NIC, "it is not in this hand-over").state == "released"
        with pytest.raises(Refused, match=f"hand-over 1 works on {target.address} now"):
            calls.release(here(self.root), target.address, "it takes too long")
        return super().erasure(work, target, back=back)


class CutOff(Wiped):
    """Cut off before the first reset."""

    def before_reset(self, site: Site, target: Target) -> None:
        """See Cleaning."""
        raise KilledError


def test_nothing_is_released_under_a_hand_over_that_works_on_it(root: Path) -> None:
    held = DeviceRecord(address=HOSTS_NIC, identity=f"{HOSTS_NIC} 144d:a2dc", state="quarantined", since="", why="")
    record_devices(str(root / STATE), (held,))
    asked = Asked(devices=(DRIVE,), erase=ASKED.erase)
    assert handed(root, asked, Releases(root), passing_all).clean
    assert states(root) == {DRIVE: "clean", HOSTS_NIC: "released"}


def test_a_reset_method_that_a_cut_left_is_put_back_after_a_hand_over_of_another_device(root: Path) -> None:
    left_with_one_method(root)
    assert handed(root, Asked(devices=(NIC,)), validate=passing_all).clean
    assert methods(root) == ["bus"]
    assert handed(root, ASKED, validate=passing_all).clean
    assert methods(root) == ["flr", "bus"]


def test_a_reset_method_that_a_cut_left_is_put_back_by_a_release(root: Path) -> None:
    left_with_one_method(root)
    calls.release(here(root), DRIVE, "goes back to the maker")
    assert (states(root)[DRIVE], methods(root)) == ("released", ["flr", "bus"])


@pytest.mark.parametrize("names", [5, "bus flr", {"bus": 1}, None])
def test_a_journal_without_a_list_of_reset_methods_changes_none(root: Path, names: object) -> None:
    left_with_one_method(root)
    (path,) = (root / STATE / "handover/transactions").iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    changed = [{**one, "old": {**one["old"], "reset_methods": names}} if "old" in one else one for one in lines]
    path.write_text("".join(f"{json.dumps(one)}\n" for one in changed))
    assert calls.release(here(root), DRIVE, "goes back to the maker").state == "released"
    assert methods(root) == ["bus"]


def test_where_an_erasure_stood_is_forgotten_by_a_release(root: Path) -> None:
    """Its number could be used again, if the journals are lost: it would count for what came after the release."""
    left_with_one_method(root)
    put(root, f"/{STATE}/handover/erase-{DRIVE}.json", "{}")
    calls.release(here(root), DRIVE, "goes back to the maker")
    assert not (root / STATE / f"handover/erase-{DRIVE}.json").exists()


def left_with_one_method(root: Path) -> None:
    """Leave the devices as a hand-over does that is cut off during the drive's reset."""
    with pytest.raises(KilledError):
        handed(root, ASKED, CutOff(), passing_all)
    put(root, METHODS, "bus\n")


def methods(root: Path) -> list[str]:
    return (root / METHODS[1:]).read_text().split()
