"""States that nobody prepared: each a small change of the example host, and the one result that tells of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from applyroots import EXAMPLE, copied, unpack
from unit.rules.test_states import DRIVE, GPU, NIC, State

UPLINK, ROOT_PORT = "0000:16:00.0", "0000:15:01.0"
FATAL = (
    f"pcieport {ROOT_PORT}: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)"
)
AMDGPU = f"amdgpu {GPU}: amdgpu: socket: 0, die: 0, 1 new uncorrectable hardware errors detected in umc block"


class Found(State):
    """The base, and what somebody may find it like."""

    def has(self, path: str, text: str) -> Found:
        """The kernel says it, in a file that the capture did not have."""
        self.put(path, text + "\n")
        return self

    def without_driver(self, address: str) -> Found:
        """No driver holds a function, and what the driver made of it is gone."""
        device = Path(os.path.realpath(self.path / "sys/bus/pci/devices" / address))
        for kind in ("infiniband", "net", "nvme"):
            for name in os.listdir(device / kind) if (device / kind).exists() else ():
                (self.path / "sys/class" / kind / name).unlink()
            shutil.rmtree(device / kind, ignore_errors=True)
        self.bound(address, None)
        return self

    def unlisted(self, address: str, driver: str) -> Found:
        """The links of a function to its driver and of the driver to it are gone, as somebody removes both."""
        (self.path / "sys/bus/pci/devices" / address / "driver").unlink()
        (self.path / "sys/bus/pci/drivers" / driver / address).unlink()
        return self


# What happened; the check that tells of it, of which subject; what it says.
STATES: dict[str, tuple[Callable[[Found], object], str, str, str]] = {
    "the TSC was rejected": (
        lambda one: one.has("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet"),
        "clocksource", "host", "fail",
    ),
    "a mitigation is off": (
        lambda one: one.has("sys/devices/system/cpu/vulnerabilities/vmscape", "Vulnerable"),
        "cpu-vulnerabilities", "host", "warn",
    ),
    "a line of a kind that is newer than the capture": (lambda one: one.log(AMDGPU), "kernel-log", GPU, "fail"),
    "a fatal PCIe error above the switch": (lambda one: one.log(FATAL), "aer", UPLINK, "fail"),
    "a GPU answers that it requires a reset": (
        lambda one: one.smi("<gpu_temp>46 C", "<gpu_temp>GPU requires reset"),
        "gpu-status", GPU, "fail",
    ),
    "no driver has a GPU": (lambda one: one.without_driver(GPU), "gpu-driver", GPU, "warn"),
    "no driver has a GPU, by hand": (lambda one: one.unlisted(GPU, "nvidia"), "gpu-driver", GPU, "warn"),
    "no driver has a NIC, and has the others": (lambda one: one.without_driver(NIC), "port-state", NIC, "warn"),
    "no driver has a drive": (lambda one: one.without_driver(DRIVE), "disk-health", DRIVE, "warn"),
}  # fmt: skip


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(EXAMPLE, tmp_path_factory.mktemp("base") / "root")


@pytest.fixture
def one(pristine: Path, tmp_path: Path) -> Iterator[Found]:
    with copied(pristine, tmp_path / "root") as root:
        yield Found(root.path, root.lower, root.upper)


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_told_and_nothing_else_fails(name: str, one: Found) -> None:
    change, check, subject, outcome = STATES[name]
    change(one)
    found = one.validated().results
    (told,) = (result for result in found if (result.check, result.subject) == (check, subject))
    assert told.outcome == outcome, told
    assert told.hint
    assert [result for result in found if result.outcome == "fail" and result != told] == []
    assert {result.subject for result in found if result.outcome == "unknown"} <= {subject}
