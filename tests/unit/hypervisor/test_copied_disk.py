"""A guest's disk as a copy of an image: made where there is none, never written again, never deleted."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from domain_shapes import changed
from faultkills import Lab, applying, lab_of, options_of, reverting
from faultkinds import EXAMPLES, host
from faultlab import quiet, site_on, tree_of
from testguests import qcow2

from hosttune.errors import BadInput
from hosttune.hypervisor import no_system
from hosttune.hypervisor.disk import CopiedDisk
from hosttune.machine.live import LiveMachine
from hosttune.machine.scratch import Scratch
from hosttune.model.result import Result
from hosttune.transaction import apply_plan, status

DISK, IMAGE = "srv/disk.qcow2", "srv/image.qcow2"
ACTION = f"guest-disk:/{DISK}"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A root with an image and the plan of a guest without a disk."""
    made = lab_of(EXAMPLES["guest-disk"], tmp_path / "root")
    made.anew()
    return made


def outcome(result: Result) -> tuple[str, Any, Any]:
    (entry,) = [one for one in result.entries if one.action == ACTION]
    return entry.outcome, entry.before, entry.after


# --- a transaction -----------------------------------------------------------------------------------------------


def test_apply_makes_the_disk_and_nothing_takes_it_or_writes_it_again(lab: Lab) -> None:
    disk = lab.root / DISK
    result, code = applying(lab.example)(site_on(lab.root))
    assert (code, outcome(result)) == (0, ("done", "absent", "there"))
    assert disk.read_text() == "an image"
    disk.write_text("a tenant's data")
    (lab.root / IMAGE).unlink()
    again, code = applying(lab.example)(site_on(lab.root))
    assert (code, again.changed, outcome(again)) == (0, False, ("already", "there", "there"))
    found, code = status(site_on(lab.root))
    assert (code, found.drift) == (0, ())
    assert reverting(lab.example)(site_on(lab.root))[1] == 0
    assert disk.read_text() == "a tenant's data"


def test_an_apply_that_fails_after_it_leaves_it(lab: Lab) -> None:
    (lab.root / ".hosttune/commands/virsh-dumpxml-vm").mkdir()
    result, code = applying(lab.example)(site_on(lab.root))
    assert code == 1
    (entry,) = [one for one in result.entries if one.action == ACTION]
    assert entry.why == "it is there now, and may stay: nothing was written"
    assert (lab.root / DISK).read_text() == "an image"


def test_without_the_image_nothing_is_written(lab: Lab) -> None:
    (lab.root / IMAGE).unlink()
    before = tree_of(lab.root)
    guest = lab.example.guests[0]
    with pytest.raises(BadInput, match="there is no such file") as error:
        apply_plan(site_on(lab.root), lab.example.plan, options_of(lab.example), host, lambda todo: True, quiet)
    assert error.value.where == f"/{IMAGE}"
    assert tree_of(lab.root) == before
    why = f"/{IMAGE}, of which its disk is to be a copy: not an image for a guest: there is no such file"
    assert no_system(Scratch(str(lab.root)), guest) == why
    assert no_system(Scratch(str(lab.root)), changed(guest, image=None)) is not None
    (lab.root / IMAGE).write_text("an image")
    assert no_system(Scratch(str(lab.root)), guest) is None


@pytest.mark.parametrize("target", ["", "disk", "/", "/dev/sda", "/proc/x", "/srv/../x", "/srv/a\nb", "//srv/a"])
def test_a_plan_names_no_other_place(target: str) -> None:
    with pytest.raises(BadInput):
        CopiedDisk.of(target)
    with pytest.raises(BadInput):
        CopiedDisk.of("/srv/a").check(target)


# --- with the real tool --------------------------------------------------------------------------------------------


@pytest.fixture
def here() -> Iterator[Path]:
    """An empty folder that is not below /dev."""
    if shutil.which("qemu-img") is None:
        pytest.skip("no qemu-img")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def formats(path: Path) -> dict[str, Any]:
    out = subprocess.run(["qemu-img", "info", "--output=json", str(path)], check=True, capture_output=True)
    told = json.loads(out.stdout)
    return {key: told.get(key) for key in ("format", "virtual-size", "backing-filename")}


@pytest.mark.parametrize(("of", "to"), [("raw", "qcow2"), ("qcow2", "raw"), ("qcow2", "qcow2")])
def test_the_copy_has_the_format_of_its_name_and_nobody_else_reads_it(here: Path, of: str, to: str) -> None:
    raw, image, disk = here / "whole", here / f"image.{of}", here / f"disk.{to}"
    raw.write_bytes(bytes(510) + b"\x55\xaa" + b"x" * (1 << 20))
    raw.write_bytes(raw.read_bytes().ljust(2 << 20, b"\0"))
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", of, raw, image], check=True)
    setting = CopiedDisk.of(str(disk))
    assert setting.read(LiveMachine()) == "absent"
    setting.write(LiveMachine(), str(image))
    assert setting.read(LiveMachine()) == "there"
    assert formats(disk) == {"format": to, "virtual-size": 2 << 20, "backing-filename": None}
    assert disk.stat().st_mode & 0o777 == 0o600
    subprocess.run(["qemu-img", "compare", "-q", "-f", to, "-F", "raw", disk, raw], check=True)
    disk.write_bytes(b"a tenant's data")
    setting.write(LiveMachine(), str(image))  # it came after it was looked for
    assert disk.read_bytes() == b"a tenant's data"
    assert sorted(path.name for path in here.iterdir()) == sorted((raw.name, image.name, disk.name))


def test_an_image_that_reaches_elsewhere_is_not_copied(here: Path) -> None:
    image = qcow2(here / "bad.qcow2", backing=512)
    with pytest.raises(BadInput, match="backing file"):
        CopiedDisk.of(str(here / "disk.qcow2")).write(LiveMachine(), str(image))
    assert [path.name for path in here.iterdir()] == ["bad.qcow2"]
