"""`--erase`: which drive gets which serial number, and what is refused before anything is changed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from applyroots import STATE
from coursekills import ASKED, DRIVE, NIC, passing_all, root_of
from courses import Wiped, handed, here, states
from cutshort import KilledError, put

from hosttune.errors import BadInput, Refused
from hosttune.handover.cleaning import Cleaning, Erasure, Work
from hosttune.handover.erasing import held_back
from hosttune.handover.targets import Asked, Target, chosen
from hosttune.transaction.site import Site


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small root with a drive and a NIC of a stopped guest."""
    return root_of(tmp_path / "small")


def serial(root: Path, *erase: str) -> str | None:
    """The serial number that the drive would be erased by."""
    site, look = here(root)
    asked: Asked = msgspec.structs.replace(ASKED, erase=erase)
    (drive,) = (one for one in chosen(site, look(), asked) if one.kind == "nvme")
    return drive.serial


def shows(root: Path, text: str) -> None:
    """The host's driver has the drive, and shows its serial number, which it pads with spaces."""
    put(root, f"/sys/bus/pci/devices/{DRIVE}/nvme/nvme0/serial", f"{text:<20}\n")


def test_an_address_in_every_form(root: Path) -> None:
    for text in (f"{DRIVE}=S1", "c1:00.0= S1 ", f"{DRIVE.upper()}=S1", "S1", " S1"):
        assert serial(root, text) == "S1"


@pytest.mark.parametrize(
    ("erase", "says"),
    [
        ((f"{DRIVE}=S1", f"{DRIVE}=S2"), f"{DRIVE} is named twice"),
        ((f"{DRIVE}=S1", "c1:00.0=S1"), f"{DRIVE} is named twice"),
        ((f"{DRIVE}=",), "'' is not a serial number of a drive"),
        (("",), "'' is not a serial number of a drive"),
        (("S*",), "'S\\*' is not a serial number of a drive"),
        (("=S1",), "'' is not a PCI address"),
        ((f"{NIC}=S1",), f"{NIC} is not a drive of this hand-over"),
        (("S1", "S2"), "S2 is not a drive of this hand-over"),
    ],
)
def test_what_is_not_one_serial_number_of_each_drive(root: Path, erase: tuple[str, ...], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        serial(root, *erase)


def test_a_drive_that_shows_another_serial_number_already(root: Path) -> None:
    shows(root, "S6CK NE0 T1")
    assert serial(root, f"{DRIVE}=S6CK NE0 T1") == "S6CK NE0 T1"
    assert serial(root, "S6CK NE0 T1") == "S6CK NE0 T1"
    with pytest.raises(Refused, match="has the serial number 'S6CK NE0 T1', not 'S6CK NE0 T2'"):
        handed(root, Asked(guest="vm", erase=(f"{DRIVE}=S6CK NE0 T2",)))
    assert states(root) == {}


class CutOff(Cleaning):
    """Cut off before the first reset. What is not a drive is erased at once."""

    def before_reset(self, site: Site, target: Target) -> None:
        """See Cleaning."""
        raise KilledError

    def erasure(self, work: Work, target: Target, *, back: bool) -> Erasure:
        """See Cleaning."""
        return Wiped().erasure(work, target, back=back)


def test_a_drive_is_kept_from_udev_before_its_first_reset(root: Path) -> None:
    """The power can fail then, and the host's driver finds the drive at the boot."""
    with pytest.raises(KilledError):
        handed(root, ASKED, CutOff(), passing_all)
    site, _ = here(root)
    assert (held_back(site.system), states(root)[DRIVE]) == ((DRIVE,), "quarantined")
    assert (root / STATE / "handover/register.json").exists()
