"""Hand-overs of drives on a real kernel: data is gone, a lie is found out, a drive in use gets no command.

QEMU's NVMe drive has no sanitize (no SANICAP); it has Format NVM, and writes zeros to what is behind it. So the method
is "format, user data erase" everywhere here. Whether the data is gone is read in the files behind the drives, on the
machine that runs the tests, not through the drive.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweeps import FULL

from lab.tenancy import LIAR, SHARED, STATEMENT, TAKEN, Tenancy, tenancy

# Its own machine and several hand-overs: minutes.
pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FULL, reason="make lab-full: a machine of its own")]

BALANCING = "/proc/sys/kernel/numa_balancing"
STEPS = ("quarantined", "reset", "taken-back", "erased", "tested", "reset", "returned")


@pytest.fixture(scope="module")
def found(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenancy]:
    with tenancy(image, tmp_path_factory.mktemp("drives")) as made:
        yield made


def steps_of(statement: dict[str, Any] | None, drive: str) -> list[dict[str, Any]]:
    """The steps of a drive."""
    assert statement is not None
    (device,) = (one for one in statement["predicate"]["devices"] if one["address"] == drive)
    steps = device["steps"]
    assert isinstance(steps, list)
    return steps


def test_what_was_written_is_gone_and_the_statement_holds_until_something_changes(found: Tenancy) -> None:
    """One course: written, handed over, signed, verified, and made void in ways that can be taken back."""
    host = found.host
    found.write_pattern(TAKEN)
    found.own("tenant", TAKEN)
    assert found.with_pattern(TAKEN) == 3
    code, statement, errors = found.hand_over(f"--guest tenant --erase LAB1 --to-vfio --out {STATEMENT}")
    assert code == 0, (errors, statement)
    assert found.with_pattern(TAKEN) == 0
    steps = steps_of(statement, TAKEN)
    assert [(one["step"], one["outcome"]) for one in steps] == [(name, "done") for name in STEPS]
    erased = steps[STEPS.index("erased")]
    assert erased["method"] == "format, user data erase"
    assert erased["evidence"]["read_back"]["with_data"] >= 512, "the first and the last MiB had the pattern"
    assert found.state(TAKEN) == "clean"

    short = "/root/short.json"
    found.sign("1m", short)
    signed = time.monotonic()
    found.sign("24h")
    assert found.verify() == (0, set())
    host.shell(f"echo 1 >{BALANCING}")
    assert found.verify() == (1, {("setting", "host")})
    host.shell(f"echo 0 >{BALANCING}")
    assert found.verify("--revoked /root/revoked") == (1, {("revoked", "statement")})
    time.sleep(max(0.0, 65 - (time.monotonic() - signed)))
    assert found.verify(file=short) == (1, {("expired", "statement")})


def test_a_drive_that_lies_about_erasing_stays_quarantined(found: Tenancy) -> None:
    found.write_pattern(LIAR)
    found.own("liars", LIAR)
    code, statement, errors = found.hand_over("--guest liars --erase LIAR --to-vfio")
    assert code == 1, errors
    assert found.with_pattern(LIAR) == 3
    erased = steps_of(statement, LIAR)[STEPS.index("erased")]
    assert erased["outcome"] == "failed"
    assert "blocks still have their old data" in erased["why"]
    assert found.state(LIAR) == "quarantined"
    refused = found.host.shell("virsh start liars", check=False)
    assert refused.status != 0
    assert f"{LIAR} is quarantined" in refused.errors


def test_a_drive_in_use_or_of_two_guests_gets_no_command(found: Tenancy) -> None:
    """A mounted file system, then two guests that have the drive: refused, and nothing is changed."""
    host, words = found.host, f"--device {SHARED} --erase LAB0 --to-vfio"
    found.write_pattern(SHARED)
    found.own("one", SHARED)
    device = found.device(SHARED)
    host.shell(
        f"mkfs.ext4 -q -E nodiscard {device}; mkdir -p /mnt/held; mount {device} /mnt/held;"
        " echo kept >/mnt/held/file; sync"
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
