"""Hand-overs of drives on a real kernel: what a guest wrote is gone, what voids a statement, what is never erased.

QEMU's NVMe drive has no sanitize (no SANICAP); it has Format NVM, and writes zeros to what is behind it. So the method
is "format, user data erase" everywhere here. Whether the data is gone is read in the files behind the drives, on the
machine that runs the tests, not through the drive.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sweeps import FULL

from lab.tenancy import (
    AGAIN,
    BALANCING,
    LIAR,
    MOVED,
    NAMED,
    PLACES_MIB,
    REFUSER,
    SHARED,
    STATEMENT,
    STEPS,
    TAKEN,
    TENANT,
    Tenancy,
    start_tenant,
    tenancy,
)

# Its own machine, a guest in it and many hand-overs.
pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FULL, reason="make lab-full: a machine of its own")]


class Handed(NamedTuple):
    """The first hand-over: the MiB with the tenant's pattern before and after, and what it said."""

    before: int
    after: int
    code: int
    statement: dict[str, Any] | None
    errors: str


@pytest.fixture(scope="module")
def found(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenancy]:
    with tenancy(image, tmp_path_factory.mktemp("drives")) as made:
        yield made


@pytest.fixture(scope="module")
def handed(found: Tenancy) -> Handed:
    """The guest writes and is ended; its drive is handed over."""
    start_tenant(found)
    found.host.shell(f"virsh destroy {TENANT}")
    before = found.with_pattern(TAKEN)
    code, statement, errors = found.hand_over(f"--guest {TENANT} {NAMED} --out {STATEMENT}")
    return Handed(before, found.with_pattern(TAKEN), code, statement, errors)


def steps_of(statement: dict[str, Any] | None, drive: str) -> list[dict[str, Any]]:
    """The steps of a drive."""
    assert statement is not None
    (device,) = (one for one in statement["predicate"]["devices"] if one["address"] == drive)
    steps = device["steps"]
    assert isinstance(steps, list)
    return steps


def erased_of(statement: dict[str, Any] | None, drive: str) -> dict[str, Any]:
    """The step that erases a drive."""
    return steps_of(statement, drive)[STEPS.index("erased")]


# --- one tenant ------------------------------------------------------------------------------------------------


def test_what_a_guest_wrote_is_gone(found: Tenancy, handed: Handed) -> None:
    assert handed.before == len(PLACES_MIB)
    assert handed.code == 0, (handed.errors, handed.statement)
    assert handed.after == 0
    steps = steps_of(handed.statement, TAKEN)
    assert [(one["step"], one["outcome"]) for one in steps] == [(name, "done") for name in STEPS]
    erased = erased_of(handed.statement, TAKEN)
    assert erased["method"] == "format, user data erase"
    read = erased["evidence"]["read_back"]
    assert read["with_data"] >= 512, "the first and the last MiB had the pattern"
    assert (read["same"], read["unread"]) == (0, 0)
    assert erased["evidence"]["udev_held_back"]
    assert found.state(TAKEN) == "clean"


def test_a_signed_statement_is_valid_until_something_changes(found: Tenancy, handed: Handed) -> None:
    """A setting, a byte, the key, the time: each is taken back before the next one. Then the place, then a start."""
    assert handed.code == 0
    host = found.host
    short = "/root/short.json"
    found.sign("1m", short)
    signed = time.monotonic()
    found.sign("24h")
    assert found.verify() == (0, set())

    host.shell(f"echo 1 >{BALANCING}")
    assert found.verify() == (1, {("setting", "host")})
    host.shell(f"echo 0 >{BALANCING}")

    byte = "/root/byte.json"
    changed = f"sed 's/user data erase/user data erasf/' {STATEMENT} >{byte}; ! cmp -s {STATEMENT} {byte}"
    host.shell(f"cp {STATEMENT}.sig {byte}.sig; {changed}")
    assert found.verify(file=byte) == (1, {("signature", "statement")})

    assert found.verify("--revoked /root/revoked") == (1, {("revoked", "statement")})

    time.sleep(max(0.0, 65 - (time.monotonic() - signed)))
    assert found.verify(file=short) == (1, {("expired", "statement")})
    assert found.verify() == (0, set()), "all of it is as it was"

    found.move(TAKEN, MOVED)
    code, reasons = found.verify()
    # The setting is the driver that was planned for it, which cannot be read now.
    assert (code, reasons) == (1, {("moved", TAKEN), ("unknown", "host")})
    found.move(MOVED, TAKEN)  # where udev's rule gives it to vfio-pci again, unless the kernel's nvme driver is first
    code, reasons = found.verify()
    assert (code, ("driver", TAKEN) in reasons) == (1, True), reasons


def test_a_start_voids_a_statement(found: Tenancy, handed: Handed) -> None:
    """A guest has the drive, and then had it."""
    code, statement, errors = found.hand_over(f"{AGAIN} --out {STATEMENT}")
    assert code == 0, (errors, statement)
    found.sign("24h")
    assert found.verify() == (0, set())
    found.host.shell(f"virsh start {TENANT}")
    code, reasons = found.verify()
    assert (code, {("started", TAKEN), ("in-use", TAKEN)} <= reasons) == (1, True), reasons
    found.host.shell(f"virsh destroy {TENANT}")
    # Its firmware can only be read by the host's driver, and the guest could have written another one.
    assert found.verify() == (1, {("started", TAKEN), ("unknown", TAKEN)})


def test_a_reboot_voids_a_statement(found: Tenancy, handed: Handed) -> None:
    """The applied setting is put back by hand after the boot."""
    code, statement, errors = found.hand_over(f"{AGAIN} --out {STATEMENT}")
    assert code == 0, (errors, statement)
    found.sign("24h")
    assert found.verify() == (0, set())
    found.host.reboot()
    found.host.shell(f"modprobe vfio-pci; echo 0 >{BALANCING}")
    code, reasons = found.verify()
    assert (code, ("boot", "host") in reasons) == (1, True), reasons


# --- drives that do not, and that may not ------------------------------------------------------------------------


def test_a_drive_that_lies_about_erasing_stays_quarantined(found: Tenancy) -> None:
    found.put_pattern(LIAR)
    found.own("liars", LIAR)
    code, statement, errors = found.hand_over("--guest liars --erase LIAR --to-vfio")
    assert code == 1, errors
    assert found.with_pattern(LIAR) == len(PLACES_MIB)
    erased = erased_of(statement, LIAR)
    assert erased["outcome"] == "failed"
    assert "blocks still have their old data" in erased["why"]
    assert found.state(LIAR) == "quarantined"
    found.refuses_to_start("liars", LIAR)


def test_a_drive_that_refuses_stays_quarantined_until_a_person_frees_it(found: Tenancy) -> None:
    found.put_pattern(REFUSER)
    found.own("refusers", REFUSER)
    code, statement, errors = found.hand_over("--guest refusers --erase REFUSER --to-vfio")
    assert code == 1, errors
    erased = erased_of(statement, REFUSER)
    assert erased["outcome"] == "failed"
    assert "the drive refused the command" in erased["why"]
    assert found.with_pattern(REFUSER) == len(PLACES_MIB)
    assert found.state(REFUSER) == "quarantined"
    found.refuses_to_start("refusers", REFUSER)
    found.host.shell(f"hosttune handover release {REFUSER} --why 'goes back to the maker'")
    assert found.state(REFUSER) == "released"


def test_a_drive_in_use_or_of_two_guests_gets_no_command(found: Tenancy) -> None:
    """A mounted file system, then two guests that have the drive: refused, and nothing is changed."""
    host, words = found.host, f"--device {SHARED} --erase LAB0 --to-vfio"
    found.put_pattern(SHARED)
    found.own("one", SHARED)
    device = found.device(SHARED)
    host.shell(
        f"blockdev --flushbufs {device}; mkfs.ext4 -q -E nodiscard {device}; mkdir -p /mnt/held;"
        f" mount {device} /mnt/held; echo kept >/mnt/held/file; sync"
    )
    try:
        code, _, errors = found.hand_over(words)
        assert (code, "/mnt/held" in errors) == (3, True), errors
        assert host.shell("cat /mnt/held/file").strip() == "kept"
    finally:
        host.shell("umount /mnt/held")
    found.own("two", SHARED)
    code, _, errors = found.hand_over(words)
    assert (code, "that a stopped guest had it is not known" in errors) == (3, True), errors
    assert found.state(SHARED) is None
    assert found.with_pattern(SHARED) > 0
    assert host.shell(f"basename $(readlink /sys/bus/pci/devices/{SHARED}/driver)").strip() == "nvme"
