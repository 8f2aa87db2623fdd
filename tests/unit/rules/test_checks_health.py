"""The checks of kernel log, PCIe errors, drives, clock and baseline: policy by policy, and what is unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from gpuevidence import A, B, evidence, function, is_whole, nvidia, of
from hypothesis import given, settings
from hypothesis import strategies as st
from readings import LOOKED, looked_at, read_again
from sweeps import examples

from hosttune.discovery.kernellog import interesting, is_broken, parse_dmesg, parse_events
from hosttune.model.evidence import STATE, Evidence, Health, KernelEvent
from hosttune.model.gpu import Gpu
from hosttune.model.host import Bar, Link, Nvme, NvSwitch, PciDevice, Problem
from hosttune.model.result import Result
from hosttune.model.validation import CheckResult, Counted, Outcome, Sample, Validation
from hosttune.rules.checks.data import table

BAD, SWITCH = "0000:18:00.0", "0000:19:00.0"
LOGS = Path(__file__).parents[2] / "cases" / "kernel_log"
QUIET = Health(events=(), events_since=0.0, events_source="dmesg", uptime_seconds=3600.0, corrupted_bytes=0)


def logged(*events: KernelEvent, **facts: Any) -> Health:
    return msgspec.structs.replace(QUIET, events=events, **facts)


def code(number: int, address: str = A, **facts: Any) -> KernelEvent:
    return KernelEvent(kind="xid", address=address, code=number, **facts)


def one(found: Evidence, check: str, subject: str = A) -> CheckResult:
    result = of(found, check, "kernelevents", "health")[subject]
    assert is_whole(result)
    return result


# --- XID -----------------------------------------------------------------------------------------------------


def test_the_gpu_of_a_real_log_fails_and_its_neighbour_passes() -> None:
    events = parse_events(interesting(parse_dmesg((LOGS / "xid-119.txt").read_text()).lines))
    found = evidence(nvidia("0000:9b:00.0"), nvidia(B), health=logged(*events))
    result = one(found, "xid", "0000:9b:00.0")
    assert (result.outcome, result.source) == ("fail", "dmesg")
    assert result.actual == "XID 119 (GSP RPC timeout) 5 times, last 24.1 h after boot"
    assert one(found, "xid", B).outcome == "pass"


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((), "pass"),
        # the catalogue resets the GPU, or restarts the machine
        ((46,), "fail"), ((48,), "fail"), ((62,), "fail"), ((64,), "fail"), ((74,), "fail"), ((79,), "fail"),
        ((95,), "fail"), ((109,), "fail"), ((110,), "fail"), ((119,), "fail"), ((120,), "fail"), ((136,), "fail"),
        ((140,), "fail"), ((143,), "fail"), ((151,), "fail"), ((155,), "fail"), ((156,), "fail"), ((158,), "fail"),
        ((54,), "fail"), ((168,), "fail"), ((171,), "fail"), ((172,), "fail"),
        ((94,), "fail"),  # hosttune's own policy
        # an application's, or nothing to do but to look
        ((8,), "warn"), ((13,), "warn"), ((31,), "warn"), ((43,), "warn"), ((63,), "warn"), ((78,), "warn"),
        ((92,), "warn"), ((121,), "warn"), ((137,), "warn"), ((157,), "warn"), ((58,), "warn"),
        ((45,), "pass"), ((106,), "pass"), ((162,), "pass"),
        # the catalogue does not say, or does not have it
        ((142,), "unknown"), ((159,), "unknown"), ((167,), "unknown"), ((7,), "unknown"), ((9999,), "unknown"),
        ((45, 79), "fail"), ((31, 45), "warn"), ((31, 48), "fail"), ((31, 9999), "unknown"), ((9999, 79), "fail"),
    ],
)  # fmt: skip
def test_the_policy_of_xids(codes: tuple[int, ...], expected: str) -> None:
    found = evidence(nvidia(), health=logged(*map(code, codes)))
    result = one(found, "xid")
    assert result.outcome == expected
    assert all(f"XID {number}" in (result.actual or "") for number in codes)


@pytest.mark.parametrize(
    ("recovery", "expected", "hint"),
    [
        ("None", "pass", ""),
        ("Drain P2P", "fail", "peer-to-peer"),
        ("Drain and Reset", "fail", "let running work end"),
        ("GPU Reset Required", "fail", "--gpu-reset"),
        ("Node Reboot Required", "fail", "reboot the host"),
        ("PF FLR", "unknown", "catalogue"),
        (None, "unknown", "catalogue"),
    ],
)
def test_what_the_driver_asks_for_decides_xid_154(recovery: str | None, expected: str, hint: str) -> None:
    result = one(evidence(nvidia(), health=logged(code(154, recovery=recovery))), "xid")
    assert result.outcome == expected
    assert hint in (result.hint or "")


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ("GPU Reset Required", "None", "pass"),
        ("None", "GPU Reset Required", "fail"),
        ("Node Reboot Required", "Drain P2P", "fail"),
    ],
)
def test_the_last_xid_154_counts(first: str, then: str, expected: str) -> None:
    events = [code(154, recovery=word, last_seconds=at) for word, at in ((first, 10.0), (then, 20.0))]
    assert one(evidence(nvidia(), health=logged(*events)), "xid").outcome == expected
    assert one(evidence(nvidia(), health=logged(*reversed(events))), "xid").outcome == expected


def test_xid_154_of_unknown_times_all_count() -> None:
    events = [code(154, recovery="GPU Reset Required"), code(154, recovery="None", last_seconds=20.0)]
    assert one(evidence(nvidia(), health=logged(*events)), "xid").outcome == "fail"


@pytest.mark.parametrize(
    ("number", "subcode", "severity", "registers", "expected"),
    [
        (145, "RLW_REMAP", "fatal", (0x4, 0x100), "fail"),  # a fatal one whatever its status is
        (149, "NETIR_LINK_EVT", "fatal", (0x021425C6, 0), "fail"),
        (145, "RLW_REMAP", "nonfatal", (0x4, 0x40), "fail"),
        (145, "RLW_REMAP", "nonfatal", (0x4, 0x1), "warn"),
        (145, "RLW_REMAP", "nonfatal", (0x4, 0x100), "pass"),
        (145, "RLW_REMAP", "nonfatal", (0x4, 0x101), "warn"),  # several bits: the worst of them
        (145, "RLW_REMAP", "nonfatal", (0x4, 0x140), "fail"),
        (145, "RLW_REMAP", "nonfatal", (0x4, 0x1100), "unknown"),  # a bit that the catalogue does not have
        (145, "RLW_REMAP", "nonfatal", (0x4, 0x0), "unknown"),
        (145, "RLW_REMAP", "nonfatal", (), "unknown"),
        (145, "RLW_REMAP", None, (0x4, 0x100), "unknown"),
        (145, None, None, (), "unknown"),
        (145, "RLW_NEW", "nonfatal", (0x4, 0x1), "unknown"),
        (145, "RLW_RXPIPE", "nonfatal", (0x6, 0x1), "warn"),
        (145, "RLW_RXPIPE", "nonfatal", (0x86, 0x1), "fail"),  # promoted, from R575 on
        (145, "RLW_RXPIPE", "nonfatal", (0x4C2, 0x1), "fail"),  # and before
        (146, "TLW_RX_PIPE1", "nonfatal", (0xB, 0x4), "fail"),
        (149, "NETIR_BER_EVENT", "nonfatal", (0x13, 0x3), "warn"),
        (149, "NETIR_MFDE_EVENT", "nonfatal", (0x14, 0x3), "pass"),
        (149, "NETIR_MFDE_EVENT", "nonfatal", (0x14, 0x5), "fail"),
        (150, "MSE_WATCHDOG", "nonfatal", (0, 0), "fail"),
    ],
)
def test_nvlink_5_is_decoded_by_severity_subcode_and_status(
    number: int, subcode: str | None, severity: str | None, registers: tuple[int, ...], expected: str
) -> None:
    event = code(number, subcode=subcode, severity=severity, registers=registers)
    result = one(evidence(nvidia(), health=logged(event)), "xid")
    assert result.outcome == expected
    assert (subcode or "XID") in (result.actual or "")


def test_a_gpu_that_is_in_no_list_and_has_xids_is_still_a_subject() -> None:
    found = evidence(
        nvidia(), health=logged(code(79, "0000:99:00.0"), KernelEvent(kind="lost", address="0000:99:00.0"))
    )
    assert one(found, "xid", "0000:99:00.0").outcome == "fail"
    assert one(found, "xid").outcome == "pass"
    alone = evidence(health=logged(code(79, "0000:99:00.0")))
    assert one(alone, "xid", "0000:99:00.0").outcome == "fail"


def test_the_worst_xid_is_named_first_and_45_never() -> None:
    found = evidence(nvidia(), health=logged(code(45), code(31), code(79)))
    result = one(found, "xid")
    assert (result.actual or "").startswith("XID 79 (GPU has fallen off the bus)")
    assert "power-cycle" in (result.hint or "")


def test_a_gpu_off_the_bus_without_an_xid_fails() -> None:
    found = evidence(nvidia(), health=logged(KernelEvent(kind="lost", address=A)))
    assert one(found, "xid").outcome == "fail"


DOUBTFUL = ({"events_since": 7200.0}, {"events_since": None}, {"events_unread": 2})


def test_a_cut_log_says_since_when_and_what_to_do() -> None:
    result = one(evidence(nvidia(), health=logged(events_since=7200.0)), "xid")
    assert result.outcome == "unknown"
    assert result.actual == "the kernel log is only known since 2 h after boot: older lines are lost"
    assert "Storage=persistent" in (result.hint or "")


@pytest.mark.parametrize(
    ("read", "then", "expected"),
    [(8000.0, "pass", "pass"), (7000.0, "pass", "unknown"), (8000.0, "warn", "unknown")],
)
def test_lost_lines_are_known_where_a_validation_of_this_boot_passed_while_they_were_there(
    read: float, then: Outcome, expected: str
) -> None:
    old = Validation(
        results=(CheckResult(check="xid", subject=A, outcome=then),),
        counted=Counted(boot_id="a", uptime_seconds=read, counters={}),
    )
    health = logged(events_since=7200.0, uptime_seconds=9000.0)
    assert one(evidence(nvidia(), host={"boot_id": "a"}, history=(old,), health=health), "xid").outcome == expected


@pytest.mark.parametrize("doubt", DOUBTFUL)
@pytest.mark.parametrize("number", [45, 31, 9999, 79])
def test_of_a_log_that_is_not_whole_only_a_fault_is_believed(doubt: dict[str, Any], number: int) -> None:
    switch = {"nvswitches": (NvSwitch(address=B, driver="nvidia-nvswitch"),)}
    found = evidence(nvidia(), host=switch, health=logged(code(number), **doubt))
    assert one(found, "xid").outcome == ("fail" if number == 79 else "unknown")
    assert f"XID {number}" in (one(found, "xid").actual or "")
    assert one(found, "sxid", B).outcome == "unknown"
    assert one(found, "machine-check", "host").outcome == "unknown"
    quiet = evidence(nvidia(), host=switch, health=logged(KernelEvent(kind="mce", severity="corrected"), **doubt))
    assert one(quiet, "machine-check", "host").outcome == "unknown"
    hard = evidence(nvidia(), host=switch, health=logged(KernelEvent(kind="mce", severity="fatal"), **doubt))
    assert one(hard, "machine-check", "host").outcome == "fail"
    warned = logged(KernelEvent(kind="sxid", address=B, code=12028, severity="nonfatal"), **doubt)
    assert one(evidence(nvidia(), host=switch, health=warned), "sxid", B).outcome == "unknown"


@pytest.mark.parametrize("health", [None, Health(), Health(events=(), events_source="dmesg")])
def test_a_log_that_was_not_read_or_was_cleared_is_unknown(health: Health | None) -> None:
    found = evidence(nvidia(), host={"nvswitches": (NvSwitch(address=B),)}, health=health)
    assert one(found, "xid").outcome == "unknown"
    assert one(found, "sxid", B).outcome == "unknown"
    assert one(found, "machine-check", "host").outcome == "unknown"


def test_xids_of_a_gpu_in_a_guest_are_in_the_guests_log() -> None:
    """The host's log cannot clear it, only the last look can; what the log has counts as well."""
    found = evidence(nvidia(), driver="vfio-pci", health=logged(), looks={})
    assert one(found, "xid").outcome == "unknown"
    assert "never looked at" in (one(found, "xid").actual or "")
    assert one(evidence(nvidia(), driver="vfio-pci", health=logged(code(45)), looks={}), "xid").outcome == "unknown"
    before = evidence(nvidia(), driver="vfio-pci", health=logged(code(79)), looks={})
    assert one(before, "xid").outcome == "fail"


# --- other lines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("line", "subject", "expected"), [
    (f"vfio-pci {A}: not ready 65535ms after bus reset; giving up", A, "fail"),
    (f"vfio-pci {A}: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0037 address=0x7b657064 flags=0x0000]", A, "warn"),
    (f"pci {A}: BAR 1 [mem size 0x800000000 64bit pref]: can't assign; no space", A, "fail"),
    ("Out of memory: Killed process 4242 (qemu-system-x86) total-vm:68031232kB", "host", "fail"),
    ("nvme nvme0: I/O 192 QID 5 timeout, aborting", BAD, "warn"),
    ("nvme nvme7: I/O 192 QID 5 timeout, aborting", "host", "warn"),
    ("vfio-pci 0000:99:00.0: enabling device (0000 -> 0002)", "host", "pass"),
])  # fmt: skip
def test_a_line_of_the_kernel_is_judged_for_the_device_that_it_names(line: str, subject: str, expected: str) -> None:
    events = parse_events([(7200.0, line)])
    drives = {"nvme": (Nvme(address=BAD, controller="nvme0"),)}
    found = evidence(nvidia(), health=logged(*events), host=drives)
    assert one(found, "kernel-log", subject).outcome == expected
    part = evidence(nvidia(), health=logged(*events, events_since=9000.0), host=drives)
    assert one(part, "kernel-log", subject).outcome == ("fail" if expected == "fail" else "unknown")


def test_a_bar_that_has_an_address_now_is_no_fault() -> None:
    events = parse_events([(0.5, f"pci {A}: BAR 1 [mem size 0x800000000 64bit pref]: can't assign; no space")])
    placed = msgspec.structs.replace(function(A), bars=(Bar(index=1, size_bytes=1 << 35),))
    found = evidence(nvidia(), health=logged(*events), host={"pci": (placed,)})
    assert one(found, "kernel-log").outcome == "pass"


def test_other_makers_log_no_xids() -> None:
    found = evidence(Gpu(address=A, vendor="amd"), driver="amdgpu", health=logged())
    assert one(found, "xid", "host").outcome == "skip"


def test_every_row_of_the_catalogue_names_its_source_and_an_action_that_is_known() -> None:
    xids = table("xids")
    decoded = {"WORKFLOW_NVLINK5_ERR", "XID_154"}
    for number, (name, action, then, source) in xids["xid"].items():
        assert name, number
        assert xids["sources"][source], number
        assert action in xids["actions"] or action in decoded or number in xids["policy"] or not action, number
        assert (
            not then
            or then in xids["then"]
            or action in decoded
            or number in xids["policy"]
            or then == action
            or (then == "IGNORE")
        ), number
    assert set(xids["policy"]) <= set(xids["xid"])
    outcomes = [rule[0] for kind in ("actions", "policy", "recovery") for rule in xids[kind].values()]
    assert set(outcomes) == {"fail", "unknown", "warn", "inform"}
    assert {str(row["xid"]) for row in xids["nvlink5"]} == {str(n) for n in range(144, 151)}


def test_nvlink_statuses_stand_in_one_list_each() -> None:
    for row in table("xids")["nvlink5"]:
        values = [value for kind in ("reset", "evaluate", "look", "ignore") for value in row.get(kind, ())]
        assert len(values) == len(set(values)), row
        assert bool(values) != ("any" in row), row


RECORDS = (
    "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:18:00): 31, pid=7, name=x, Ch 00000008, MMU Fault",
    "NVRM: Xid (PCI:0000:18:00): 45, pid=7, name=x, Ch 00000008",
    "NVRM: Xid (PCI:0000:18:00): 9999, what is to come",
    "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    "NVRM: Xid (PCI:0000:18:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001)",
    "nvidia-nvswitch0: SXid (PCI:0000:19:00.0): 12028, Non-fatal, Link 32 egress (First)",
    "nvidia-nvswitch0: SXid (PCI:0000:19:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm: DEV 0000:7e:0c.0 (INTERRUPT)",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
    "eth0: link up",
)
BEGINS = {"NVRM: ": "NVRM: Xid", "nvidia": "nvidia-nvswitch0: SXid", "EDAC M": "EDAC MC0: 1"}


def told(texts: list[str], first: str = "Linux version 6.1.0", **facts: Any) -> Evidence:
    """What a host with such a log shows, by the way that a live log goes."""
    records = parse_dmesg("".join(f"[{at:5}.000000] {text}\n" for at, text in enumerate([first, *texts])))
    health = logged(*parse_events(records.lines), **facts)
    broken = records.unread + sum(map(is_broken, (text for _, text in records.lines)))
    host = {"nvswitches": (NvSwitch(address=SWITCH, driver="nvidia-nvswitch"),)}
    health = msgspec.structs.replace(health, events_unread=broken)
    return evidence(nvidia(BAD), nvidia(B), host=host, health=health)


def logs_outcomes(found: Evidence) -> dict[tuple[str, str], str]:
    return {
        (check, subject): result.outcome
        for check in ("xid", "sxid", "machine-check")
        for subject, result in of(found, check, "health").items()
    }


@given(st.lists(st.sampled_from(RECORDS), max_size=5), st.data())
@settings(max_examples=examples(60, full=1000))
def test_a_damaged_log_never_tells_a_better_story(texts: list[str], data: st.DataObject) -> None:
    """A record that lost its end or got a wrong byte behind its first words; lines lost; counts lost; no log at all."""
    edac = {"mc0": {"ue": data.draw(st.integers(0, 1)), "ce": data.draw(st.integers(0, 1))}}
    whole = told(texts, edac=edac)
    assert whole.health is not None
    changes: list[Health | None] = [
        None,
        msgspec.structs.replace(whole.health, events=None),
        msgspec.structs.replace(whole.health, events_since=7200.0),
        msgspec.structs.replace(whole.health, events_since=None),
    ]
    spoilt = [msgspec.structs.replace(whole, health=health) for health in changes]
    if texts:
        which = data.draw(st.integers(0, len(texts) - 1))
        first = BEGINS.get(texts[which][:6], "eth0")
        keep = data.draw(st.integers(len(first), 110))
        cuts = (texts[which][:keep], texts[which][:keep] + "\x7f" + texts[which][keep + 1 :])
        damaged = [[*texts[:which], text, *texts[which + 1 :]] for text in cuts if text.startswith(first)]
        spoilt += [told(log, edac=edac) for log in damaged]
    if RECORDS[8] in texts:
        spoilt.append(told(texts, edac={}))
    before = logs_outcomes(whole)
    for found in spoilt:
        after = logs_outcomes(found)
        for one_of, outcome in before.items():
            assert outcome in ("pass", "skip") or after.get(one_of) not in ("pass", "skip"), (one_of, found.health)


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


@pytest.mark.parametrize(
    ("severity", "expected"), [("corrected", "warn"), (None, "warn"), ("nonfatal", "fail"), ("fatal", "fail")]
)
def test_machine_checks(severity: str | None, expected: str) -> None:
    found = evidence(health=logged(KernelEvent(kind="mce", severity=severity)))
    assert one(found, "machine-check", "host").outcome == expected


MCS = {"mc0": {"ue": 0, "ce": 0}, "mc1": {"ue": 0, "ce": 0}}


@pytest.mark.parametrize(
    ("edac", "events", "expected"),
    [
        (MCS, (), "pass"),
        ({}, (), "pass"),
        (None, (), "pass"),
        ({**MCS, "mc1": {"ue": 1, "ce": 0}}, (), "warn"),
        ({**MCS, "mc1": {"ue": 0, "ce": 4}}, (), "warn"),
        ({**MCS, "mc1": {"ue": None, "ce": 0}}, (), "unknown"),
        ({**MCS, "mc1": {"ue": None, "ce": 4}}, (), "unknown"),
        ({"mc0": {"ue": 1, "ce": 0}, "mc1": {"ue": None, "ce": None}}, (), "unknown"),
        (MCS, (KernelEvent(kind="edac", code=0, severity="nonfatal"),), "fail"),
        (MCS, (KernelEvent(kind="edac", code=0, severity="corrected", count=3),), "warn"),
        ({}, (KernelEvent(kind="edac", code=0, severity="nonfatal"),), "fail"),
        # the log has seen a controller whose counts are gone
        ({"mc0": MCS["mc0"]}, (KernelEvent(kind="edac-mc", code=1),), "unknown"),
        (None, (KernelEvent(kind="edac-mc", code=1),), "unknown"),
        (MCS, (KernelEvent(kind="edac-mc", code=1),), "pass"),
    ],
)
def test_memory_errors_of_two_sources(
    edac: dict[str, dict[str, int | None]] | None, events: tuple[KernelEvent, ...], expected: str
) -> None:
    assert one(evidence(health=logged(*events, edac=edac)), "machine-check", "host").outcome == expected


@pytest.mark.parametrize(
    ("before", "loaded", "outcome", "grown"),
    [
        (1, 60.0, "warn", "none"),
        (0, 60.0, "fail", "1 ue"),
        (
            1,
            99_000.0,
            "fail",
            "1 ue, 9 ce",
        ),  # a driver that was loaded since counts from 0, and may be past the old value
    ],
)
def test_memory_errors_of_before_the_last_look_do_not_fail_again(
    before: int, loaded: float, outcome: str, grown: str
) -> None:
    old = KernelEvent(kind="edac", code=1, severity="nonfatal", seconds=60.0, last_seconds=60.0)
    there = KernelEvent(kind="edac-mc", code=1, seconds=loaded, last_seconds=loaded)
    found = evidence(health=logged(old, there, edac={**MCS, "mc1": {"ue": 1, "ce": 9}}))
    result = one(looked_at(found, {"edac mc1": {"ue": before, "ce": 9}}), "machine-check", "host")
    assert result.outcome == outcome
    assert result.actual == f"mc1 counts 1 ue, 9 ce, of which {grown} since the look of {LOOKED}"


def test_corrected_memory_errors_of_before_the_last_look_pass() -> None:
    found = evidence(health=logged(edac={"mc0": {"ue": 0, "ce": 9}}))
    assert one(looked_at(found, {"edac mc0": {"ue": 0, "ce": 9}}), "machine-check", "host").outcome == "pass"


@pytest.mark.parametrize(
    ("corrupted", "events", "expected"),
    [
        (0, (), "pass"),
        (1 << 30, (), "warn"),
        (1 << 30, (KernelEvent(kind="mce", severity="nonfatal"),), "fail"),
        (None, (), "unknown"),
    ],
)
def test_memory_that_the_kernel_found_corrupted(
    corrupted: int | None, events: tuple[KernelEvent, ...], expected: str
) -> None:
    found = one(evidence(health=logged(*events, corrupted_bytes=corrupted)), "machine-check", "host")
    assert found.outcome == expected
    assert ("found 1 GiB of memory corrupted" in (found.actual or "")) is bool(corrupted)


def test_counts_of_memory_errors_that_the_kernel_refuses_are_unknown() -> None:
    doubt = Problem(what="unreadable", where="/sys/devices/system/edac/mc/mc0/ue_count", why="Permission denied")
    found = evidence(health=logged(edac={}), problems=(doubt,))
    assert one(found, "machine-check", "host").outcome == "unknown"


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


def test_corrected_errors_above_gen5_have_no_bound() -> None:
    fast = Link(speed_gts=64.0, width=16, max_speed_gts=64.0, max_width=16)
    device = msgspec.structs.replace(function(A, parent=PORT), link=fast)
    host = {"pci": (device, PciDevice(address=PORT, class_code="060400"))}
    found = evidence(nvidia(), host=host, health=msgspec.structs.replace(QUIET, aer={A: {**NONE, "correctable": 1}}))
    assert one(read_again(found, {f"aer {A}": {**NONE, "correctable": 2}}), "aer").outcome == "unknown"
    clean = evidence(nvidia(), host=host, health=msgspec.structs.replace(QUIET, aer={A: NONE}))
    assert one(clean, "aer").outcome == "pass"


@pytest.mark.parametrize("driver", ["nvidia", "vfio-pci"])
@pytest.mark.parametrize("end", [A, PORT])
@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, "pass"),
        ({"correctable": 930}, "pass"),
        ({"correctable": 931}, "warn"),
        ({"nonfatal": 1}, "fail"),
        ({"fatal": 1}, "fail"),
    ],
)
def test_aer_at_either_end_of_the_link(driver: str, end: str, counts: dict[str, int], expected: str) -> None:
    """31 a minute is what the bit error rate allows at 32 GT/s x16; the last look was 30 minutes ago."""
    before = {A: {**NONE, "correctable": 500_000}, PORT: {**NONE, "nonfatal": 3}}
    now = {**before, end: {kind: n + counts.get(kind, 0) for kind, n in before[end].items()}}
    known = looked_at(linked(now, driver), {f"aer {end}": counts for end, counts in before.items()})
    assert one(known, "aer").outcome == expected
    if not counts:
        assert (one(known, "aer").actual or "").endswith("of which none since the look of 2026-11-28T12:00:00+00:00")
    rebooted = msgspec.structs.replace(known, host=msgspec.structs.replace(known.host, boot_id="c"))
    assert one(rebooted, "aer").outcome == "warn", "one reading alone does not tell when"


def test_two_readings_some_seconds_apart_tell_whether_errors_come_now() -> None:
    now = {A: {**NONE, "nonfatal": 7}, PORT: NONE}
    assert one(linked(now), "aer").outcome == "warn"
    again = read_again(linked(now), {f"aer {end}": counts for end, counts in now.items()})
    assert (one(again, "aer").outcome, one(again, "aer").actual) == ("pass", "7 nonfatal, of which none within 3 s")
    more = read_again(linked(now), {f"aer {A}": {**NONE, "nonfatal": 8}, f"aer {PORT}": NONE})
    assert one(more, "aer").outcome == "fail"


def test_an_event_of_the_log_from_before_the_last_look_is_not_judged_again() -> None:
    event = KernelEvent(kind="aer", address=A, severity="nonfatal", seconds=60.0, last_seconds=60.0)
    found = linked({A: NONE, PORT: NONE}, events=(event,))
    assert one(found, "aer").outcome == "fail"
    assert one(looked_at(found, {}), "aer").outcome == "pass"


@pytest.mark.parametrize("lost", [A, PORT])
@pytest.mark.parametrize("kind", ["correctable", "nonfatal", "fatal", None])
def test_half_of_the_counts_do_not_pass(lost: str, kind: str | None) -> None:
    half = {} if kind is None else {name: 0 for name in NONE if name != kind}
    result = one(linked({A: NONE, PORT: NONE, lost: half}, absent=()), "aer")
    assert (result.outcome, lost in (result.actual or "")) == ("unknown", True)


@pytest.mark.parametrize(
    ("device", "sister", "expected"),
    [
        (True, True, "unknown"),  # its configuration space says that it has AER
        (None, True, "unknown"),  # it was not read, and a function of the same model has counters
        (None, None, "unknown"),
        (False, True, "pass"),  # firmware hid the capability of this one, and the port's counters are there
        (False, False, "unknown"),  # no capability can be seen here at all, and the same model has counters
    ],
)
def test_counters_that_the_kernel_must_have_are_not_absent(
    device: bool | None, sister: bool | None, expected: str
) -> None:
    found = linked({B: NONE, PORT: NONE})
    functions = [msgspec.structs.replace(one, aer=device) if one.address == A else one for one in found.host.pci]
    functions.append(function(B, "nvidia", aer=sister))
    host = msgspec.structs.replace(found.host, pci=tuple(functions))
    assert one(msgspec.structs.replace(found, host=host), "aer").outcome == expected


def test_without_the_kernel_log_a_port_may_have_cut_its_link_off() -> None:
    assert one(linked({A: NONE, PORT: NONE}, events=None), "aer").outcome == "unknown"


def test_aer_names_the_kind() -> None:
    result = one(linked({A: {**NONE, "correctable": 3, "correctable:RxErr": 3}, PORT: NONE}), "aer")
    assert result.actual == "3 correctable, RxErr since boot, within 1 h; one reading does not tell when"


@pytest.mark.parametrize("uptime", [None, 0.0])
def test_corrected_errors_over_an_unknown_time_have_no_rate(uptime: float | None) -> None:
    event = KernelEvent(kind="aer", address=A, severity="corrected", count=3)
    assert one(linked({}, events=(event,), uptime_seconds=uptime), "aer").outcome == "unknown"


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
        ({**GOOD, "avail_spare": "9", "spare_thresh": "10"}, "fail"),
        ({**GOOD, "avail_spare": "10", "spare_thresh": "10"}, "pass"),
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


def test_a_tool_that_one_drive_was_asked_with_is_installed() -> None:
    found = drive({"state": "live", "smart": "not installed"})
    other = PciDevice(address=A, class_code="010802", driver="nvme")
    host = msgspec.structs.replace(
        found.host, pci=(*found.host.pci, other), nvme=(*found.host.nvme, Nvme(address=A, controller="nvme1"))
    )
    health = msgspec.structs.replace(QUIET, disks={B: {"state": "live", "smart": "not installed"}, A: GOOD})
    both = msgspec.structs.replace(found, host=host, health=health)
    assert (one(both, "disk-health", B).outcome, one(both, "disk-health", A).outcome) == ("unknown", "pass")


# --- clock and baseline --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("synchronised", "error", "expected"),
    [
        (True, 0.001, "pass"),
        (False, 16.0, "warn"),
        (False, None, "warn"),
        (False, 0.02, "pass"),
        (None, None, "unknown"),
    ],
)
def test_clock(synchronised: bool | None, error: float | None, expected: str) -> None:
    """A chronyd without `rtcsync` leaves the flag set, and keeps the error below the 16 s of no service."""
    found = evidence(health=Health(time_synchronised=synchronised, time_source="adjtimex(2)", time_error_seconds=error))
    assert one(found, "time-sync", "host").outcome == expected


def stored(level: int, driver: str) -> Validation:
    samples = (Sample(metric="h2d", subject=A, value=55.5, unit="GB/s"),)
    return Validation(level=level, samples=samples, facts={"driver": driver}, at="2026-01-01")


@pytest.mark.parametrize(
    ("history", "applied_state", "expected"),
    [
        ((stored(1, "580.1"),), None, "pass"),
        ((stored(2, "570.1"), stored(1, "580.1")), None, "pass"),
        ((stored(1, "570.1"),), None, "warn"),
        ((stored(0, "580.1"),), Result(verb="status"), "warn"),
        ((), Result(verb="status"), "warn"),
        ((), None, "skip"),  # a capture, a document
    ],
)
def test_baseline(history: tuple[Validation, ...], applied_state: Result | None, expected: str) -> None:
    found = evidence(nvidia(driver_version="580.1"), history=history, applied_state=applied_state)
    assert one(found, "monitoring-baseline", "host").outcome == expected


def test_a_baseline_of_a_state_that_is_not_readable_is_unknown() -> None:
    doubt = Problem(what=STATE, where="/var/lib/hosttune", why="Permission denied")
    found = evidence(nvidia(driver_version="580.1"), problems=(doubt,))
    assert one(found, "monitoring-baseline", "host").outcome == "unknown"


def test_the_baseline_is_of_the_driver_and_not_of_a_library_of_its_number() -> None:
    other = Validation(level=1, samples=stored(1, "").samples, facts={"driver": "570.1", "library": "580.1"})
    found = evidence(nvidia(driver_version="580.1"), history=(other,), applied_state=Result(verb="status"))
    assert one(found, "monitoring-baseline", "host").outcome == "warn"


def test_a_measurement_is_a_baseline_itself() -> None:
    found = evidence(
        nvidia(driver_version="580.1"), applied_state=Result(verb="status"), loaded_clocks={A: (1980, 690.0)}
    )
    assert one(found, "monitoring-baseline", "host").outcome == "pass"


def test_no_baseline_where_nothing_can_be_measured() -> None:
    found = evidence(nvidia(), driver="vfio-pci")
    assert one(found, "monitoring-baseline", "host").outcome == "skip"
