"""The kernel log: every form of record that tells of failing hardware, and texts that only pretend to be one."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hosttune.discovery.kernellog import (
    QUERY,
    _ask,
    interesting,
    parse_dmesg,
    parse_dmesg_json,
    parse_events,
    parse_journal,
    read_kernel_log,
)
from hosttune.discovery.scrub import Scrub
from hosttune.errors import BadInput, CommandFailed
from hosttune.gpu import KERNEL_LINES
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.model.evidence import KernelEvent

CASES = Path(__file__).parents[2] / "cases" / "kernel_log"
KINDS = {line.kind for line in KERNEL_LINES if line.outcome}


def events(name: str) -> tuple[KernelEvent, ...]:
    return parse_events(interesting(parse_dmesg((CASES / f"{name}.txt").read_text()).lines))


class Asked(Capture):
    """A machine whose commands answer from a table; one that is not in it is not installed."""

    def __init__(self, root: Path, answers: dict[str, str | CommandFailed]) -> None:
        super().__init__(str(root))
        self.answers = answers

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        return live()

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        key = " ".join(argv[:3])
        answer = next((answer for start, answer in self.answers.items() if key.startswith(start)), None)
        if answer is None:
            raise CommandFailed(argv, "not installed")
        if isinstance(answer, CommandFailed):
            raise answer
        return answer


def dmesg_json(*records: tuple[float, str]) -> str:
    return json.dumps({"dmesg": [{"pri": 4, "time": time, "msg": text} for time, text in records]})


def test_a_hung_gsp_is_one_event_with_its_count() -> None:
    (event,) = events("xid-119")
    assert (event.kind, event.address, event.code, event.count) == ("xid", "0000:9b:00.0", 119, 5)
    assert (event.seconds, event.last_seconds) == (86400.0, 86755.0)
    assert event.text.startswith("NVRM: Xid (PCI:0000:9b:00): 119, Timeout after 6s")


def test_processes_are_not_named() -> None:
    assert "gpud" not in str(events("xid-119"))
    assert "nvidia-smi" not in str(events("xid-119"))


def test_every_form_of_xid_and_sxid() -> None:
    found = [(e.kind, e.address, e.code, e.severity) for e in events("xids")]
    assert found == [
        ("xid", "0000:05:00.0", 79, None),
        ("lost", "0000:05:00.0", None, None),
        ("xid", "0000:03:00.0", 14, None),
        ("xid", "0009:01:00.0", 149, "fatal"),
        ("xid", "0009:01:00.0", 154, None),
        ("sxid", "0000:05:00.0", 12028, "nonfatal"),
        ("sxid", "0000:a9:00.0", 20034, "fatal"),
    ]


def test_severity_subcode_status_and_recovery_of_an_xid_are_read() -> None:
    found = {e.code: e for e in events("xids")}
    assert (found[149].subcode, found[149].registers) == ("NETIR_LINK_EVT", (0x021425C6, 0))
    assert found[154].recovery == "Drain and Reset"
    told = [(e.code, e.subcode, e.severity, e.registers) for e in events("nvlink5")]
    assert told == [
        (145, "RLW_REMAP", "nonfatal", (0x4, 0x1)),
        (145, "RLW_REMAP", "fatal", (0x4, 0x40)),
        (144, "SAW_MVB", "nonfatal", (0x1, 0x4)),
        (145, "RLW_REMAP", "nonfatal", ()),
        (150, "MSE Degraded", "fatal", (0, 0xFFFFFFFF)),
    ]


def test_events_that_differ_in_what_decides_are_not_counted_as_one() -> None:
    found = [(e.severity, e.count) for e in events("nvlink5") if e.code == 145]
    assert found == [("nonfatal", 2), ("fatal", 1), ("nonfatal", 1)]


def test_edac() -> None:
    found = [(e.kind, e.code, e.severity, e.count) for e in events("edac")]
    assert found == [
        ("edac-mc", 0, None, 1),
        ("edac-mc", 1, None, 1),
        ("edac", 0, "corrected", 3),
        ("edac", 1, "nonfatal", 1),
        ("edac", 2, "nonfatal", 1),
        ("edac", 3, "corrected", 1),
    ]


def test_both_wordings_of_aer_are_one() -> None:
    found = [(e.kind, e.address, e.severity, e.count) for e in events("aer")]
    assert found == [
        ("aer", "0000:41:00.0", "corrected", 2),
        ("aer", "0000:c1:00.0", "nonfatal", 1),
        ("aer", "0000:50:00.0", "fatal", 1),
        ("dpc", "0000:50:00.0", "fatal", 1),
        ("mce", None, None, 1),
        ("mce", None, "corrected", 1),
    ]


# The first two as posted at github.com/andikleen/mcelog, the others in the forms of the kernel's files.
@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("mce: [Hardware Error]: Machine check events logged", None),
        ("mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 4: a600000000020408", "nonfatal"),
        ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 0: bb80000000000e0b", "nonfatal"),
        ("mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 9c00004001010091", None),
        ("mce: Uncorrected hardware memory error in user-access at 1efa4c7cc40", "nonfatal"),
        ("[Hardware Error]: Uncorrected, software containable error.", "nonfatal"),
        ("[Hardware Error]: Deferred error, no action required.", "nonfatal"),
        ("Memory failure: 0x1efa4c7: recovery action for dirty LRU page: Recovered", "nonfatal"),
    ],
)
def test_a_machine_check_is_uncorrected_where_its_record_says_so(text: str, severity: str | None) -> None:
    assert [(event.kind, event.severity) for event in parse_events([(1.0, text)])] == [("mce", severity)]


@pytest.mark.parametrize(
    "text",
    [
        "[Hardware Error]: Corrected error, no action required.",
        "mce: CPU0: Core temperature/speed normal",
        "mce: CPU supports 32 MCE banks",
        "soft_offline: 0x1efa4c7: page already poisoned",
    ],
)
def test_what_is_no_uncorrected_error_is_no_event(text: str) -> None:
    assert not parse_events([(1.0, text)])


@pytest.mark.parametrize(
    "text",
    [
        "systemd[1]: NVRM: Xid (PCI:0000:41:00): 79, forged by a program's name",
        "process\nNVRM: Xid (PCI:0000:41:00): 79, forged by a line break",
        "NVRM: Xid (PCI:zz:41:00): 79, no address",
        "NVRM: Xid (PCI:0000:41:00): 99999999, no code",
        "nvidia-nvswitch0: SXid (PCI:0000:41:00.0): 20034, Data {0x1}",
    ],
)
def test_a_text_that_is_no_record_is_no_event(text: str) -> None:
    assert parse_events([(1.0, text)]) == ()


def test_control_characters_do_not_reach_a_report() -> None:
    (event,) = parse_events([(1.0, "NVRM: Xid (PCI:0000:41:00): 79, \x1b[2Jgone\n<script>")])
    assert event.text == "NVRM: Xid (PCI:0000:41:00): 79, \ufffd[2Jgone\ufffd<script>"


def test_a_whole_log_begins_with_the_boot(tmp_path: Path) -> None:
    text = dmesg_json((0.0, "Linux version 6.1.0"), (9.0, "NVRM: Xid (PCI:0000:41:00): 48, ECC"))
    log = read_kernel_log(Reader(Asked(tmp_path, {"dmesg --kernel --json": text})))
    assert log is not None
    assert (log.since, log.source, [e.code for e in log.events]) == (0.0, "dmesg", [48])


def test_an_old_dmesg_is_asked_in_its_plain_form(tmp_path: Path) -> None:
    answers: dict[str, str | CommandFailed] = {
        "dmesg --kernel --json": CommandFailed(("dmesg",), "exit status 1", "unrecognized option '--json'"),
        "dmesg --kernel": (CASES / "xids.txt").read_text(),
    }
    log = read_kernel_log(Reader(Asked(tmp_path, answers)))
    assert log is not None
    assert len(log.events) == 7


def test_a_refused_log_is_unknown_and_said(tmp_path: Path) -> None:
    refusal = CommandFailed(("dmesg",), "exit status 1", "dmesg: read kernel buffer failed: Operation not permitted\n")
    reader = Reader(Asked(tmp_path, {"dmesg": refusal}))
    assert read_kernel_log(reader) is None
    assert [(p.what, p.why) for p in reader.problems] == [
        ("kernel log unreadable", "dmesg: read kernel buffer failed: Operation not permitted")
    ]


def journal(*records: tuple[int, object]) -> str:
    return "".join(
        json.dumps({"MESSAGE": text, "_SOURCE_MONOTONIC_TIMESTAMP": str(micros)}) + "\n" for micros, text in records
    )


def test_the_journal_knows_what_the_ring_buffer_lost(tmp_path: Path) -> None:
    cut = dmesg_json((7200.0, "eth0: link up"), (7300.0, "NVRM: Xid (PCI:0000:41:00): 31, fault"))
    older = journal(
        (0, "Linux version 6.1.0"),
        (60_000_000, list(b"NVRM: Xid (PCI:0000:41:00): 79, gone")),
        (7_300_000_000, "NVRM: Xid (PCI:0000:41:00): 31, fault"),
    )
    log = read_kernel_log(Reader(Asked(tmp_path, {"dmesg --kernel --json": cut, "journalctl": older})))
    assert log is not None
    assert (log.since, log.source) == (0.0, "journalctl and dmesg")
    assert [(e.code, e.count) for e in log.events] == [(79, 1), (31, 1)]


@pytest.mark.parametrize(
    ("older", "codes"), [(None, []), (journal((60_000_000, "NVRM: Xid (PCI:0000:41:00): 79, gone")), [79])]
)
def test_a_cut_log_says_where_it_begins_and_keeps_what_is_older(
    tmp_path: Path, older: str | None, codes: list[int]
) -> None:
    """A journal without the first line of this boot has lost some itself; what it still has is no less true."""
    answers: dict[str, str | CommandFailed] = {"dmesg --kernel --json": dmesg_json((7200.0, "eth0: link up"))}
    if older:
        answers["journalctl"] = older
    log = read_kernel_log(Reader(Asked(tmp_path, answers)))
    assert log is not None
    assert (log.since, [e.code for e in log.events]) == (7200.0, codes)


def test_the_journal_stands_in_for_a_log_that_was_cleared(tmp_path: Path) -> None:
    older = journal((0, "Linux version 6.1.0"), (60_000_000, "NVRM: Xid (PCI:0000:41:00): 79, gone"))
    log = read_kernel_log(Reader(Asked(tmp_path, {"dmesg --kernel --json": dmesg_json(), "journalctl": older})))
    assert log is not None
    assert (log.since, [e.code for e in log.events]) == (0.0, [79])


@pytest.mark.parametrize(
    "answers",
    [
        {"dmesg --kernel --json": json.dumps({"dmesg": [{"time": 0.0, "msg": "Linux version 6"}, {"time": 3.0}]})},
        {"dmesg --kernel --json": json.dumps({"dmesg": [{"time": 0.0, "msg": "Linux version 6"}, "torn"]})},
        {"dmesg --kernel --json": dmesg_json((0.0, "Linux version 6"), (3.0, "NVRM: Xid (PCI:00"))},
        {"dmesg --kernel --json": dmesg_json((0.0, "Linux version 6"), (3.0, "NVRM: Xid (PCI:0000:41:00): gone"))},
        {"dmesg --kernel --json": dmesg_json((0.0, "x"), (3.0, "nvidia-nvswitch0: SXid (PCI:0000:41:00.0): 20"))},
        {"dmesg --kernel --json": dmesg_json((0.0, "x"), (3.0, "nvidia 0000:41:00.0: PCIe Bus Error: severity=Cor"))},
        {"dmesg --kernel --json": dmesg_json((0.0, "x"), (3.0, "{1}[Hardware Error]: event severity: fa"))},
        {"dmesg --kernel --json": dmesg_json((0.0, "x"), (3.0, "EDAC MC0: 1 U"))},
        {
            "dmesg --kernel --json": "no JSON",
            "dmesg --kernel": "[    0.000000] Linux version 6\n[   3.0NVRM: Xid (PC\n",
        },
        {
            "dmesg --kernel --json": dmesg_json((7200.0, "eth0: link up")),
            "journalctl": journal((0, "Linux version 6.1.0")) + '{"MESSAGE": "NVRM: Xid (PCI',
        },
        {
            "dmesg --kernel --json": dmesg_json((7200.0, "eth0: link up")),
            "journalctl": journal((0, "Linux version 6.1.0")) + '{"MESSAGE": "Missed 40 kernel messages"}',
        },
    ],
)
def test_a_record_that_cannot_be_read_is_counted(tmp_path: Path, answers: dict[str, str | CommandFailed]) -> None:
    log = read_kernel_log(Reader(Asked(tmp_path, answers)))
    assert log is not None
    assert (log.events, log.unread) == ((), 1)


def test_what_switches_and_multi_line_records_add_is_no_damage(tmp_path: Path) -> None:
    text = (CASES / "xids.txt").read_text() + "[  999.000000] a record\n                 its second line\n"
    text += "[  999.500000] {1}[Hardware Error]: event severity: info\n[  999.600000] EDAC MC: Ver: 3.0.0\n"
    switch = "[ 1000.000000] nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Severity 1 Engine instance 30\n"
    answers: dict[str, str | CommandFailed] = {"dmesg --kernel --json": "old", "dmesg --kernel": text + switch}
    log = read_kernel_log(Reader(Asked(tmp_path, answers)))
    assert log is not None
    assert log.unread == 0


@pytest.mark.parametrize("text", ["", "[]", '{"dmesg": 1}', "[" * 100_000, '{"dmesg"'])
def test_other_text_is_no_kernel_log(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_dmesg_json(text)
    assert caught.value.where == "dmesg --json"


@pytest.mark.parametrize("text", ["nonsense", "[1, 2]", '{"MESSAGE": 1}', "[" * 100_000, journal((10**19, "x"))])
def test_other_lines_are_no_journal(text: str) -> None:
    assert parse_journal(text) == ([], 1)


@pytest.mark.parametrize(
    "record",
    [
        "",
        "[]",
        '{"lines": 3}',
        "[" * 100_000,
        '{"lines": [], "unrefd": 2}',
        '{"lines": [], "unread": -1}',
        '{"lines": [], "unread": "2"}',
    ],
)
def test_a_spoilt_record_is_unknown(tmp_path: Path, record: str) -> None:
    place = tmp_path / ".hosttune" / "commands" / QUERY
    place.parent.mkdir(parents=True)
    place.write_text(record)
    reader = Reader(Capture(str(tmp_path)))
    assert read_kernel_log(reader) is None
    assert [p.what for p in reader.problems] == ["kernel log not understood"]


def test_a_hostile_record_loses_only_its_bad_lines(tmp_path: Path) -> None:
    place = tmp_path / ".hosttune" / "commands" / QUERY
    place.parent.mkdir(parents=True)
    good = [3.0, "NVRM: Xid (PCI:0000:41:00): 48, ECC"]
    lines = [good, [True, "x"], ["1", 2], 7, [1e300, "NVRM: Xid (PCI:0000:42:00): 48, ECC"]]
    place.write_text(json.dumps({"since": -5, "source": 3, "lines": lines}))
    log = read_kernel_log(Reader(Capture(str(tmp_path))))
    assert log is not None
    assert [(e.address, e.seconds) for e in log.events] == [("0000:41:00.0", 3.0), ("0000:42:00.0", None)]
    assert (log.since, log.source, log.unread) == (None, None, 3)


def test_what_was_kept_is_what_was_read(tmp_path: Path) -> None:
    """A live log and the record that a capture keeps of it say the same."""
    text = dmesg_json(
        (0.0, "Linux version 6"), (3.0, "NVRM: Xid (PCI:0000:41:00): 79, pid=3, name=x, gone"), (4.0, "NVRM: Xid (")
    )
    asked = Asked(tmp_path, {"dmesg --kernel --json": text})
    live = read_kernel_log(Reader(asked))
    place = tmp_path / ".hosttune" / "commands" / QUERY
    place.parent.mkdir(parents=True)
    place.write_text(_ask(Reader(asked)) or "")
    assert read_kernel_log(Reader(Capture(str(tmp_path)))) == live
    assert live is not None
    assert (live.unread, [e.code for e in live.events]) == (1, [79])


def recorded(root: Path, record: str) -> tuple[Any, ...] | None:
    """What a capture with that record says of events, but for their texts and who told them; None: no log."""
    place = root / ".hosttune" / "commands" / QUERY
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(record)
    log = read_kernel_log(Reader(Capture(str(root))))
    return None if log is None else (log.since, log.unread, [msgspec.structs.replace(e, text="") for e in log.events])


@pytest.mark.parametrize("damage", ["\x7f", "0", "1", ""])
def test_a_damaged_record_is_no_log(tmp_path: Path, damage: str) -> None:
    text = dmesg_json((0.0, "Linux version 6"), (3.0, "NVRM: Xid (PCI:0000:41:00): 79, gone"))
    record = _ask(Reader(Asked(tmp_path, {"dmesg --kernel --json": text}))) or ""
    whole = recorded(tmp_path, record)
    assert whole is not None
    for where in range(len(record)):
        assert recorded(tmp_path, f"{record[:where]}{damage}{record[where + 1 :]}") in (None, whole), where


def test_what_a_capture_replaces_is_no_damage(tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0000:41:00): 79, gpu17.example.com GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7 10.1.2.3 gone"
    text = dmesg_json((0.0, "Linux version 6"), (3.0, line))
    record = _ask(Reader(Asked(tmp_path, {"dmesg --kernel --json": text}))) or ""
    scrubbed = Scrub("key", "gpu17.example.com").contents(f"/.hosttune/commands/{QUERY}", record.encode()).decode()
    assert "b850f46d" not in scrubbed
    assert recorded(tmp_path, scrubbed) == recorded(tmp_path, record) is not None


@pytest.mark.parametrize("checksum", [3004892948, 972110688])
def test_a_record_is_whole_where_an_earlier_version_called_its_line_otherwise(tmp_path: Path, checksum: int) -> None:
    """Once it was "lost"; the second checksum has the kind of today."""
    line = "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1b80)\nNVRM: installed in this system is not supported by"
    record = {"since": 0.0, "source": "dmesg", "unread": 0, "links": True, "lines": [[5.0, line]], "sum": checksum}
    told = recorded(tmp_path, json.dumps(record))
    assert told is not None
    assert [event.kind for event in told[2]] == ["gpu-unsupported"]
    assert recorded(tmp_path, json.dumps({**record, "since": 1.0})) is None


def test_a_gpu_that_its_driver_does_not_support_is_not_lost() -> None:
    """As the plain form of dmesg has it; a failure of its own is one."""
    refused = (
        "[{}] NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:2c58)\n"
        "               NVRM: installed in this system requires use of the NVIDIA open kernel modules.\n"
        "[{}] NVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x22:0x56:884)\n"
    )
    text = refused.format("    5.559842", "    5.559858") + refused.format("    8.481576", "    8.481591")
    assert [(e.kind, e.count) for e in parse_events(parse_dmesg(text).lines)] == [("gpu-unsupported", 2)]
    text += "[  900.000000] NVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x62:0x40:2168)\n"
    assert [(e.kind, e.count) for e in parse_events(parse_dmesg(text).lines)][1:] == [("lost", 1)]


# --- lines of the kernel -------------------------------------------------------------------------------------

LINES_POSTED = tomllib.loads((CASES / "lines.toml").read_text())["line"]


@pytest.mark.parametrize("row", LINES_POSTED, ids=lambda row: f"{row['kind']}: {row['text'][:40]}")
def test_a_line_is_the_event_of_its_kind_and_its_neighbours_are_none(row: dict[str, Any]) -> None:
    (found,) = parse_events([(1.0, row["text"])])
    assert (found.kind, found.address, found.code) == (row["kind"], row.get("address"), row.get("code"))
    ((_, kept),) = interesting([(1.0, row["text"])])
    assert parse_events([(1.0, kept)])[0].kind == row["kind"], "what a capture keeps is still the event"
    assert not any(name in kept for name in ("kworker", "mysqld", "-system")), "no names of processes"
    assert [one for one in parse_events((1.0, text) for text in row["not"]) if one.kind in KINDS] == []


def test_each_form_of_line_has_a_posted_one_and_is_found_in_a_journal() -> None:
    for line in KERNEL_LINES:
        if line.outcome:
            posted = [row["text"] for row in LINES_POSTED if re.match(line.pattern, row["text"])]
            assert posted, line.pattern
            assert all(re.search(line.wanted, text) for text in posted), line.wanted
    assert {row["kind"] for row in LINES_POSTED} == KINDS
