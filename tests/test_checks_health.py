"""The checks of kernel log, PCIe errors, drives, clock and baseline: policy by policy, and what is unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from gpuevidence import A, B, evidence, function, is_whole, nvidia, of

from hosttune.checks.data import table
from hosttune.discovery.kernellog import interesting, parse_dmesg, parse_events
from hosttune.model.evidence import STATE, Evidence, Health, KernelEvent
from hosttune.model.gpu import Gpu
from hosttune.model.host import Nvme, NvSwitch, PciDevice, Problem
from hosttune.model.result import Result
from hosttune.model.validation import CheckResult, Sample, Validation

LOGS = Path(__file__).parent / "cases" / "kernel_log"
QUIET = Health(events=(), events_since=0.0, events_source="dmesg", uptime_seconds=3600.0)


def logged(*events: KernelEvent, **facts: Any) -> Health:
    return msgspec.structs.replace(QUIET, events=events, **facts)


def code(number: int, address: str = A, **facts: Any) -> KernelEvent:
    return KernelEvent(kind="xid", address=address, code=number, **facts)


def one(found: Evidence, check: str, subject: str = A) -> CheckResult:
    result = of(found, check, "health")[subject]
    assert is_whole(result)
    return result


# --- XID -----------------------------------------------------------------------------------------------------


def test_the_gpu_of_a_real_log_fails_and_its_neighbour_passes() -> None:
    events = parse_events(interesting(parse_dmesg((LOGS / "xid-119.txt").read_text())))
    found = evidence(nvidia("0000:9b:00.0"), nvidia(B), health=logged(*events))
    result = one(found, "xid", "0000:9b:00.0")
    assert (result.outcome, result.source) == ("fail", "dmesg")
    assert result.actual == "XID 119 (GSP RPC timeout) 5 times, last 24.1 h after boot"
    assert one(found, "xid", B).outcome == "pass"


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((), "pass"),
        ((48,), "fail"), ((64,), "fail"), ((74,), "fail"), ((79,), "fail"), ((94,), "fail"), ((95,), "fail"),
        ((119,), "fail"), ((120,), "fail"), ((140,), "fail"), ((143,), "fail"), ((150,), "fail"),
        ((13,), "warn"), ((31,), "warn"), ((43,), "warn"), ((63,), "warn"), ((92,), "warn"),
        ((45,), "pass"), ((154,), "pass"), ((156,), "pass"),
        ((9999,), "warn"),
        ((45, 79), "fail"), ((31, 45), "warn"), ((31, 48), "fail"),
    ],
)  # fmt: skip
def test_the_policy_of_xids(codes: tuple[int, ...], expected: str) -> None:
    found = evidence(nvidia(), health=logged(*map(code, codes)))
    result = one(found, "xid")
    assert result.outcome == expected
    assert all(f"XID {number}" in (result.actual or "") for number in codes)


def test_the_worst_xid_is_named_first_and_45_never() -> None:
    found = evidence(nvidia(), health=logged(code(45), code(31), code(79)))
    result = one(found, "xid")
    assert (result.actual or "").startswith("XID 79 (GPU has fallen off the bus)")
    assert "power-cycle" in (result.hint or "")


def test_a_gpu_off_the_bus_without_an_xid_fails() -> None:
    found = evidence(nvidia(), health=logged(KernelEvent(kind="lost", address=A)))
    assert one(found, "xid").outcome == "fail"


def test_a_cut_log_says_since_when() -> None:
    result = one(evidence(nvidia(), health=logged(events_since=7200.0)), "xid")
    assert (result.outcome, result.actual) == ("pass", "none since 2 h after boot (older lines are lost)")


@pytest.mark.parametrize("health", [None, Health(), Health(events=(), events_source="dmesg")])
def test_a_log_that_was_not_read_or_was_cleared_is_unknown(health: Health | None) -> None:
    found = evidence(nvidia(), host={"nvswitches": (NvSwitch(address=B),)}, health=health)
    assert one(found, "xid").outcome == "unknown"
    assert one(found, "sxid", B).outcome == "unknown"
    assert one(found, "machine-check", "host").outcome == "unknown"


def test_xids_of_a_gpu_in_a_guest_are_in_the_guests_log() -> None:
    found = evidence(nvidia(), driver="vfio-pci", health=logged())
    assert one(found, "xid").actual == "on vfio-pci: its XIDs are in the guest's kernel log"
    before = evidence(nvidia(), driver="vfio-pci", health=logged(code(79)))
    assert one(before, "xid").outcome == "fail"


def test_other_makers_log_no_xids() -> None:
    found = evidence(Gpu(address=A, vendor="amd"), driver="amdgpu", health=logged())
    assert one(found, "xid", "host").outcome == "skip"


def test_the_policy_names_each_code_once() -> None:
    xids = table("xids")
    codes = [number for numbers in xids["outcome"].values() for number in numbers]
    assert len(codes) == len(set(codes))
    assert set(xids["outcome"]) == {"fail", "warn", "inform"}
    assert set(map(int, xids["names"])) <= set(codes)
    assert set(xids["hint"].values()) <= set(xids["hints"])


# --- SXid and machine checks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("severity", "expected"), [("fatal", "fail"), ("nonfatal", "warn")])
def test_sxid(severity: str, expected: str) -> None:
    event = KernelEvent(kind="sxid", address=B, code=20034, severity=severity)
    found = evidence(nvidia(), host={"nvswitches": (NvSwitch(address=B),)}, health=logged(event))
    result = one(found, "sxid", B)
    assert (result.outcome, result.actual) == (expected, f"SXid 20034 ({severity})")


def test_nvswitches_without_sxids() -> None:
    switches = (NvSwitch(address=B, driver="nvidia-nvswitch"), NvSwitch(address=A, driver="vfio-pci"))
    found = evidence(host={"nvswitches": switches}, health=logged())
    assert (one(found, "sxid", B).outcome, one(found, "sxid", A).outcome) == ("pass", "skip")


@pytest.mark.parametrize(("severity", "expected"), [("corrected", "warn"), ("nonfatal", "fail"), ("fatal", "fail")])
def test_machine_checks(severity: str, expected: str) -> None:
    found = evidence(health=logged(KernelEvent(kind="mce", severity=severity)))
    assert one(found, "machine-check", "host").outcome == expected


# --- AER -----------------------------------------------------------------------------------------------------

PORT = "0000:40:01.0"
NONE = {"correctable": 0, "nonfatal": 0, "fatal": 0}


def linked(
    aer: dict[str, dict[str, int]] | None, driver: str = "nvidia", absent: tuple[str, ...] | None = None, **facts: Any
) -> Evidence:
    """A GPU below a port. Without `absent` ends that keep no counts are proven to have none."""
    rest: dict[str, Any] = {} if absent is None else {"absent": absent}
    host = {"pci": (function(A, driver, parent=PORT), PciDevice(address=PORT, class_code="060400"))}
    return evidence(nvidia(), host=host, health=msgspec.structs.replace(QUIET, aer=aer, **facts), **rest)


@pytest.mark.parametrize("driver", ["nvidia", "vfio-pci"])
@pytest.mark.parametrize("end", [A, PORT])
@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, "pass"),
        ({"correctable": 1860}, "pass"),
        ({"correctable": 1861}, "warn"),
        ({"nonfatal": 1}, "fail"),
        ({"fatal": 1}, "fail"),
    ],
)
def test_aer_at_either_end_of_the_link(driver: str, end: str, counts: dict[str, int], expected: str) -> None:
    """31 a minute is what the bit error rate allows at 32 GT/s x16; the host is up for an hour."""
    assert one(linked({A: NONE, PORT: NONE, end: {**NONE, **counts}}, driver), "aer").outcome == expected


@pytest.mark.parametrize("lost", [A, PORT])
@pytest.mark.parametrize("kind", ["correctable", "nonfatal", "fatal", None])
def test_half_of_the_counts_do_not_pass(lost: str, kind: str | None) -> None:
    half = {} if kind is None else {name: 0 for name in NONE if name != kind}
    result = one(linked({A: NONE, PORT: NONE, lost: half}, absent=()), "aer")
    assert (result.outcome, lost in (result.actual or "")) == ("unknown", True)


def test_without_the_kernel_log_a_port_may_have_cut_its_link_off() -> None:
    assert one(linked({A: NONE, PORT: NONE}, events=None), "aer").outcome == "unknown"


def test_aer_names_the_kind() -> None:
    result = one(linked({A: {**NONE, "correctable": 3, "correctable:RxErr": 3}, PORT: NONE}), "aer")
    assert result.actual == "3 correctable, RxErr; 0.05 a minute since boot"


@pytest.mark.parametrize("uptime", [None, 0.0])
def test_corrected_errors_over_an_unknown_time_have_no_rate(uptime: float | None) -> None:
    assert one(linked({A: {**NONE, "correctable": 3}}, uptime_seconds=uptime), "aer").outcome == "unknown"


def test_a_link_without_counts_is_skipped_and_an_unread_one_unknown() -> None:
    assert one(linked({}), "aer").outcome == "skip"
    assert one(linked(None, absent=()), "aer").outcome == "unknown"
    assert one(evidence(nvidia(), absent=()), "aer").outcome == "unknown"


def test_corrected_errors_of_the_log_have_a_rate() -> None:
    event = KernelEvent(kind="aer", address=A, severity="corrected", count=1861)
    assert one(linked({}, events=(event,)), "aer").outcome == "warn"


@pytest.mark.parametrize(("severity", "expected"), [("corrected", "pass"), ("nonfatal", "fail"), ("fatal", "fail")])
def test_the_kernel_log_tells_what_no_counter_kept(severity: str, expected: str) -> None:
    event = KernelEvent(kind="aer", address=A, severity=severity)
    result = one(linked({}, events=(event,)), "aer")
    assert result.outcome == expected
    assert f"{severity} in the kernel log" in (result.actual or "")


# --- drives --------------------------------------------------------------------------------------------------

GOOD = {
    "state": "live", "critical_warning": "0", "media_errors": "0", "percent_used": "3", "avail_spare": "100",
    "spare_thresh": "10",
}  # fmt: skip


def drive(words: dict[str, str] | None, driver: str | None = "nvme", **rest: Any) -> Evidence:
    disk = PciDevice(address=B, class_code="010802", driver=driver)
    disks = None if words is None else {B: words}
    health = msgspec.structs.replace(QUIET, disks=disks)
    return evidence(host={"pci": (disk,), "nvme": (Nvme(address=B, controller="nvme0"),)}, health=health, **rest)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (GOOD, "pass"),
        ({**GOOD, "critical_warning": "4"}, "fail"),
        ({**GOOD, "state": "dead"}, "fail"),
        ({**GOOD, "alarm": "1"}, "fail"),
        ({**GOOD, "avail_spare": "5", "spare_thresh": "10"}, "fail"),
        ({**GOOD, "media_errors": "7"}, "warn"),
        ({**GOOD, "percent_used": "100"}, "warn"),
        ({"state": "live", "smart": "not installed"}, "skip"),
        ({"state": "resetting", "smart": "not installed"}, "fail"),
        ({"state": "live", "smart": "Permission denied"}, "unknown"),
        ({"state": "live"}, "unknown"),
        *(({name: word for name, word in GOOD.items() if name != lost}, "unknown") for lost in GOOD),
        *(({**GOOD, name: "-7"}, "unknown") for name in GOOD if name != "state"),
        ({}, "unknown"),
        (None, "unknown"),
    ],
)
def test_drives(words: dict[str, str] | None, expected: str) -> None:
    assert one(drive(words), "disk-health", B).outcome == expected


def test_a_drive_of_a_guest_is_the_guests() -> None:
    assert one(drive(None, "vfio-pci"), "disk-health", B).outcome == "skip"


# --- clock and baseline --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("synchronised", "expected"), [(True, "pass"), (False, "warn"), (None, "unknown")])
def test_clock(synchronised: bool | None, expected: str) -> None:
    found = evidence(health=Health(time_synchronised=synchronised, time_source="adjtimex(2)"))
    assert one(found, "time-sync", "host").outcome == expected


def stored(level: int, driver: str) -> Validation:
    samples = (Sample(metric="h2d", subject=A, value=55.5, unit="GB/s"),)
    return Validation(level=level, samples=samples, facts={"driver": driver}, at="2026-01-01")


@pytest.mark.parametrize(
    ("history", "standing", "expected"),
    [
        ((stored(1, "580.1"),), None, "pass"),
        ((stored(2, "570.1"), stored(1, "580.1")), None, "pass"),
        ((stored(1, "570.1"),), None, "warn"),
        ((stored(0, "580.1"),), Result(verb="status"), "warn"),
        ((), Result(verb="status"), "warn"),
        ((), None, "skip"),  # a capture, a document
    ],
)
def test_baseline(history: tuple[Validation, ...], standing: Result | None, expected: str) -> None:
    found = evidence(nvidia(driver_version="580.1"), history=history, standing=standing)
    assert one(found, "monitoring-baseline", "host").outcome == expected


def test_a_baseline_of_a_state_that_is_not_readable_is_unknown() -> None:
    doubt = Problem(what=STATE, where="/var/lib/hosttune", why="Permission denied")
    found = evidence(nvidia(driver_version="580.1"), problems=(doubt,))
    assert one(found, "monitoring-baseline", "host").outcome == "unknown"


def test_the_baseline_is_of_the_driver_and_not_of_a_library_of_its_number() -> None:
    other = Validation(level=1, samples=stored(1, "").samples, facts={"driver": "570.1", "library": "580.1"})
    found = evidence(nvidia(driver_version="580.1"), history=(other,), standing=Result(verb="status"))
    assert one(found, "monitoring-baseline", "host").outcome == "warn"


def test_no_baseline_where_nothing_can_be_measured() -> None:
    found = evidence(nvidia(), driver="vfio-pci")
    assert one(found, "monitoring-baseline", "host").outcome == "skip"
