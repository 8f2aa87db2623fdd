"""Metrics: the text format, what each series says, and at most 300 of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from evidences import GPU, evidence, gpu, guest, host, switch, with_pci
from exposed import lines, needs_promtool, of, promtool, text_of, value, values
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples
from validations import HOSTILE

import hosttune
from hosttune.metrics import MOST_SERIES, CommandRun, Family, Observed, Point, exposition
from hosttune.metrics.exposition import MOST_STATUS
from hosttune.metrics.families import FAMILIES
from hosttune.metrics.writing import MOST_LABEL, label_value, written
from hosttune.model.evidence import STATE, Evidence, Health, KernelEvent
from hosttune.model.gpu import Gpu
from hosttune.model.host import DeviceSource, Problem, SeenDevice
from hosttune.model.intent import Intent
from hosttune.model.quarantine import DeviceRecord, HandoverState, StartRecording
from hosttune.model.result import Drift, Entry, OpenTransaction, Result
from hosttune.model.validation import CheckResult, Outcome, Sample, Validation
from hosttune.model.verification import Verification

ROOT = Path(__file__).resolve().parents[3]
NASTY = 'a"b\\c\nd\re\x1b[31m\ud800é' + HOSTILE


def result(check: str, subject: str, outcome: Outcome) -> CheckResult:
    return CheckResult(check=check, subject=subject, outcome=outcome)


def validation(*results: CheckResult, **more: Any) -> Validation:
    return Validation(verdict="fail" if any(r.outcome == "fail" for r in results) else "pass", results=results, **more)


def applied(**more: Any) -> Evidence:
    return evidence(applied_state=Result(verb="status", **more))


# --- the format ----------------------------------------------------------------------------------------------


def test_every_label_comes_back_as_it_was() -> None:
    text = text_of(None, validation(result(NASTY, NASTY, "fail")))
    (found,) = of(values(text), "hosttune_check_status")
    assert found.label("subject") == label_value(NASTY)
    assert "\r" not in text
    assert "\x1b" not in text
    text.encode()  # a lone surrogate cannot be written


@settings(max_examples=examples(40, 2000))
@given(st.lists(st.tuples(st.text(), st.text(), st.sampled_from(["fail", "unknown", "warn"])), max_size=40))
def test_any_text_in_a_label_is_read_again_by_another_parser(rows: list[tuple[str, str, Outcome]]) -> None:
    text = text_of(None, validation(*(result(*row) for row in rows)))
    named = {
        (s.label("check"), s.label("subject"), s.label("status")) for s in of(values(text), "hosttune_check_status")
    }
    wanted = {(label_value(check), label_value(subject), status) for check, subject, status in rows}
    assert named <= wanted
    assert len(named) == min(len(wanted), MOST_STATUS) or len(rows) > MOST_STATUS


def test_two_long_labels_stay_two() -> None:
    long = "x" * 500
    text = text_of(None, validation(result("a", long + "1", "fail"), result("a", long + "2", "fail")))
    subjects = {one.label("subject") for one in of(values(text), "hosttune_check_status")}
    assert len(subjects) == 2
    assert max(map(len, subjects)) <= MOST_LABEL


def test_equal_samples_are_written_once() -> None:
    """Two equal series make the collector drop the whole file."""
    text = text_of(None, validation(result("a", "b", "fail"), result("a", "b", "fail")))
    assert len(of(values(text), "hosttune_check_status")) == 1


def test_one_help_a_name_and_labels_as_declared() -> None:
    one = Family(name="x", help="one", labels=("a",))
    with pytest.raises(ValueError, match="two declarations of x"):
        written([(one, ()), (msgspec.structs.replace(one, help="two"), ())])
    with pytest.raises(ValueError, match="x has the labels"):
        written([(one, (Point(labels={"b": "1"}, value=1),))])


def test_numbers() -> None:
    one = Family(name="x", help="a\nb\\", labels=("a",))
    amounts = {"none": None, "nan": float("nan"), "big": 1e300, "inf": float("inf"), "low": -float("inf"), "part": 0.1}
    text = written([(one, tuple(Point(labels={"a": name}, value=v) for name, v in amounts.items()))])
    assert text.splitlines()[0] == "# HELP x a\\nb\\\\"
    assert [line.split()[1] for line in lines(text)] == ["NaN", "NaN", "1e+300", "+Inf", "-Inf", "0.1"]
    assert len(values(text)) == len(amounts)


def test_no_timestamps_and_a_line_end_at_the_end() -> None:
    text = text_of(evidence(), validation(result("a", "b", "pass")))
    assert text.endswith("\n")
    assert all(len(line.rpartition("}")[2].split()) == 1 for line in lines(text) if "}" in line)


def test_each_family_is_declared_once_and_documented() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    assert all(name.endswith("_total") == (f.kind == "counter") for name, f in zip(names, FAMILIES, strict=True))
    page = (ROOT / "docs" / "monitoring.md").read_text()
    assert [name for name in names if f"`{name}`" not in page] == []


@needs_promtool
def test_promtool_has_nothing_to_say() -> None:
    found = validation(
        result(NASTY, NASTY, "fail"), samples=(Sample(metric="h2d-ce", subject=GPU, value=50, unit="GB/s"),)
    )
    full = applied(drift=(Drift(action="governor:0-3"),), entries=(Entry(action="governor:0-3", outcome="done"),))
    text = text_of(full, found, foreign_cpu_seconds={"guest": 1.5, "other": None})
    assert promtool("check", "metrics", text=text) == (0, "")


# --- what they say -------------------------------------------------------------------------------------------


def test_without_anything_known_nothing_is_healthy() -> None:
    found = values(text_of(None, None))
    assert value(found, "hosttune_validation_verdict", verdict="unknown") == 1
    assert value(found, "hosttune_validation_verdict", verdict="pass") == 0
    assert value(found, "hosttune_apply_state", state="unknown") == 1
    assert set(of(found, "hosttune_source_readable").values()) == {0}
    assert value(found, "hosttune_settings", state="drifted") is None


def test_results_are_counted_and_only_the_bad_ones_are_named() -> None:
    outcomes: tuple[Outcome, ...] = ("pass", "pass", "skip", "warn", "unknown", "fail")
    rows = [result("a", f"s{n}", outcome) for n, outcome in enumerate(outcomes)]
    found = values(text_of(None, validation(*rows)))
    assert value(found, "hosttune_check_results", check="a", status="pass") == 2
    named = {(s.label("subject"), s.label("status")) for s in of(found, "hosttune_check_status")}
    assert named == {("s3", "warn"), ("s4", "unknown"), ("s5", "fail")}


def test_a_check_with_very_many_fails_hides_no_other() -> None:
    rows = [result("many", f"s{n}", "fail") for n in range(1000)] + [result("one", "x", "fail")]
    rows += [result("later", "x", "unknown")]
    found = values(text_of(None, validation(*rows)))
    named = of(found, "hosttune_check_status")
    assert len(named) == MOST_STATUS
    assert {one.label("check") for one in named} == {"many", "one"}
    assert value(found, "hosttune_check_status_omitted") == 1002 - MOST_STATUS
    assert value(found, "hosttune_check_results", check="later", status="unknown") == 1


def test_drift_that_cannot_be_read_is_not_drift_and_not_well() -> None:
    drift = (
        Drift(action="governor:0-3", expected="performance", actual="powersave"),
        Drift(action="hugepages:0", expected=4, why="cannot be read: Input/output error"),
    )
    entries = tuple(Entry(action=one, outcome="done") for one in ("governor:0-3", "hugepages:0", "ksm:host"))
    found = values(text_of(applied(drift=drift, entries=entries), None))
    assert value(found, "hosttune_setting_drift", kind="governor", subject="0-3") == 1
    assert value(found, "hosttune_setting_drift", kind="hugepages", subject="0") is None
    counts = {s.label("state"): n for s, n in of(found, "hosttune_settings").items()}
    assert counts == {"as-applied": 1, "drifted": 1, "unknown": 1}


OPEN = OpenTransaction(number=1, verb="apply", state="applying", journal="/j")
DONE = Entry(action="ksm:host", outcome="done")


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ("none", applied()),
        ("applied", applied(entries=(DONE,))),
        ("pending-reboot", applied(entries=(DONE,), reboot_required=True)),
        ("unfinished", applied(open_transaction=OPEN, reboot_required=True)),
        ("needs-person", applied(entries=(DONE, Entry(action="thp:host", outcome="conflict")), open_transaction=OPEN)),
        ("unknown", evidence()),
        (
            "unknown",
            msgspec.structs.replace(applied(entries=(DONE,)), problems=(Problem(what=STATE, where="/j", why="torn"),)),
        ),
    ],
)
def test_the_state_that_needs_attention_most(state: str, found: Evidence) -> None:
    series = of(values(text_of(found, None)), "hosttune_apply_state")
    assert [one.label("state") for one, number in series.items() if number == 1] == [state]


def test_a_missing_device_is_expected_and_not_counted() -> None:
    lost = SeenDevice(address="0000:99:00.0", kind="gpu", id="10de:2335")
    plan = DeviceSource(name="the plan in force", read="the journal", shows=2, could=9, beyond=(lost,), expects=True)
    found = values(text_of(evidence(host(sources=(plan,))), None))
    assert value(found, "hosttune_devices", kind="gpu") == 1
    assert value(found, "hosttune_devices_expected", kind="gpu") == 2
    assert value(found, "hosttune_device_info", address="0000:99:00.0") == 1


def test_nothing_is_expected_is_not_the_same_as_enough() -> None:
    found = values(text_of(evidence(), None))
    assert value(found, "hosttune_devices_expected", kind="gpu") is None
    assert value(found, "hosttune_source_readable", source="expected-devices") == 0


def test_devices_of_a_host_without_a_list_are_unknown() -> None:
    found = values(text_of(evidence(host(pci=(), gpus=(), nics=()), complete=False), None))
    assert value(found, "hosttune_devices", kind="gpu") is None
    assert value(found, "hosttune_source_readable", source="pci") == 0


def test_a_link_at_both_ends_and_what_both_can_do() -> None:
    slow = gpu()
    assert slow.link is not None
    link = msgspec.structs.replace(slow.link, speed_gts=5.0, width=8)
    ports = switch(link=msgspec.structs.replace(link, max_speed_gts=16.0))
    found = values(text_of(evidence(host(pci=(*ports, msgspec.structs.replace(slow, link=link)))), None))
    assert value(found, "hosttune_pcie_link_speed_gts", address=GPU, end="device") == 5
    assert value(found, "hosttune_pcie_link_width", address=GPU, end="port") == 8
    assert value(found, "hosttune_pcie_link_speed_gts_expected", address=GPU) == 16


def test_a_link_that_was_not_read_is_unknown() -> None:
    blank = msgspec.structs.replace(gpu(), link=None)
    judged = validation(result("pcie-link", GPU, "unknown"))
    found = values(text_of(with_pci(blank), judged))
    assert value(found, "hosttune_pcie_link_speed_gts", address=GPU, end="device") is None
    assert value(found, "hosttune_pcie_link_width_expected", address=GPU) is None


def test_errors_that_were_not_read_are_unknown() -> None:
    found = values(text_of(evidence(health=Health(events=None, aer=None)), None))
    assert value(found, "hosttune_kernel_events_total", kind="xid") is None
    assert value(found, "hosttune_aer_errors_total", address=GPU, severity="fatal") is None
    assert value(found, "hosttune_source_readable", source="kernel-log") == 0
    partly = values(text_of(evidence(health=Health(events=(), events_unread=2)), None))
    assert value(partly, "hosttune_kernel_events_total", kind="xid") is None


def test_errors_by_severity_and_xids_by_what_they_mean() -> None:
    events = (
        KernelEvent(kind="xid", address=GPU, code=79, count=2, text="secret text"),
        KernelEvent(kind="xid", address=GPU, code=13),
    )
    counts = {GPU: {"correctable": 3, "nonfatal": 0, "correctable:RxErr": 3}, "0000:17:00.0": {"fatal": 1}}
    text = text_of(evidence(health=Health(events=events, aer=counts)), None)
    found = values(text)
    assert value(found, "hosttune_xid_events_total", address=GPU, **{"class": "fail"}) == 2
    assert value(found, "hosttune_kernel_events_total", kind="xid") == 3
    assert value(found, "hosttune_aer_errors_total", address=GPU, severity="correctable") == 3
    assert value(found, "hosttune_aer_errors_total", address=GPU, severity="fatal") is None  # its file has no count
    assert value(found, "hosttune_aer_errors_total", address="0000:17:00.0", severity="fatal") == 1
    assert "secret" not in text


def test_a_guest_that_cannot_be_read_is_not_well_placed() -> None:
    names = host(guests=(guest("one"), guest("two")))
    judged = validation(
        result("guest-pins", "one", "fail"),
        result("guest-memory", "one", "unknown"),
        result("guest-pins", "two", "pass"),
    )
    found = values(text_of(evidence(names), judged))
    assert value(found, "hosttune_guest_placement_violations", guest="one", kind="pins") == 1
    assert value(found, "hosttune_guest_placement_violations", guest="one", kind="memory") is None
    assert value(found, "hosttune_guest_placement_violations", guest="two", kind="pins") == 0


def record(address: str, **more: Any) -> DeviceRecord:
    facts: dict[str, Any] = {"state": "clean", "boot_id": "b", "epoch": 3, "recorded_since": "1.5"} | more
    return DeviceRecord(address=address, identity="", since="", why="", **facts)


def test_a_device_is_clean_only_as_long_as_its_boot_and_epoch_are_the_same() -> None:
    records = (
        record("0000:01:00.0"),
        record("0000:02:00.0", state="quarantined"),
        record("0000:03:00.0", epoch=2),
        record("0000:04:00.0", boot_id="a"),
        record("0000:05:00.0", epoch=None),
    )

    def valid(recording: StartRecording | None) -> dict[str, float | None]:
        epochs = dict.fromkeys((one.address for one in records), 3)
        state = HandoverState(devices=records, epochs=epochs, recording=recording)
        found = values(text_of(evidence(host(handover=state, boot_id="b")), None))
        devices = (one.label("device") for one in of(found, "hosttune_handover_valid"))
        return {one[5:7]: value(found, "hosttune_handover_valid", device=one) for one in devices}

    assert valid(StartRecording(active=True, since="1.5")) == {"01": 1, "02": 0, "03": 0, "04": 0, "05": None}
    # The hook was installed again since, does not record, or cannot be read: a start in between is in no record.
    for other in (
        StartRecording(active=True, since="2.5"),
        StartRecording(active=False, why="it is not installed"),
        None,
    ):
        assert valid(other) == {"01": None, "02": 0, "03": 0, "04": 0, "05": None}


def test_the_last_measurement_and_its_floors() -> None:
    def runs(metric: str, *figures: float | None) -> tuple[Sample, ...]:
        return tuple(Sample(metric=metric, subject=GPU, value=one, unit="GB/s") for one in figures)

    old = Validation(samples=runs("h2d-ce", 1, 1, 1), at="2026-01-01T00:00:00+00:00")
    new = Validation(samples=(*runs("h2d-ce", 50, 52, 51), *runs("d2h-ce", None)), at="2026-02-01T00:00:00+00:00")
    found = values(text_of(evidence(history=(old, new)), Validation()))
    assert value(found, "hosttune_bench_value", metric="h2d-ce") == 51
    assert value(found, "hosttune_bench_value", metric="d2h-ce") is None
    assert value(found, "hosttune_bench_timestamp_seconds") == 1769904000
    floor = value(found, "hosttune_bench_floor", metric="h2d-ce")
    assert floor is not None
    assert 30 < floor < 64


def test_a_device_of_a_guest_is_joined_with_its_address_there() -> None:
    found = hosttune.discover("@example")
    plan = hosttune.plan(found, Intent.from_yaml("version: 1\nguests: [{name: one, gpus: [0000:41:00.0]}]"))
    series = of(values(text_of(Evidence(host=found, plans=(plan,)), None)), "hosttune_device_info", guest="one")
    (info,) = (dict(one.labels) for one in series)
    assert info["address"] == "0000:41:00.0"
    assert info["guest_address"] == plan.guests[0].devices[0].guest_address
    assert (info["module"], info["uuid"]) == ("1", "GPU-00000000-0000-4000-8000-000000000041")


# --- at most 300 ---------------------------------------------------------------------------------------------


def test_never_more_than_300_series_and_what_is_left_out_is_counted() -> None:
    gpus = tuple(gpu(address=f"00{bus:02x}:18:00.0") for bus in range(200))
    many = with_pci(*gpus, gpus=tuple(Gpu(address=one.address, vendor="nvidia") for one in gpus))
    rows = [result(f"c{n}", "x", "fail") for n in range(500)]
    extra = (Family(name="hosttune_watch_x", help="x", labels=("n",)), tuple(
        Point(labels={"n": str(n)}, value=n) for n in range(30)))  # fmt: skip
    text = text_of(many, validation(*rows), extra=(extra,))
    found = values(text)
    assert len(found) == MOST_SERIES
    assert (value(found, "hosttune_series_omitted") or 0) > 1000
    assert len(of(found, "hosttune_watch_x")) == 30


def test_of_very_many_statements_and_guests_the_good_ones_are_left_out() -> None:
    def statement(n: int, verdict: Literal["valid", "void"], expires_at: str) -> Verification:
        return Verification(
            verdict=verdict, about="host", host=None, signer="a", devices=(f"0000:{n:02x}:00.0",), issued_at=far,
            expires_at=expires_at,
        )  # fmt: skip

    far, soon = "2026-12-24T00:00:00Z", "2026-11-24T12:00:00Z"
    kept = [statement(n, "valid", far) for n in range(30)]
    kept += [statement(40, "valid", soon), statement(41, "void", soon)]
    foreign: dict[str, float | None] = {f"g{n:02}": 0.0 for n in range(30)}
    foreign.update({"loud": 99.0, "unread": None})
    text = text_of(evidence(statements=tuple(kept)), None, foreign_cpu_seconds=foreign)
    found = values(text)
    assert value(found, "hosttune_handover_expiry_timestamp_seconds", device="0000:29:00.0") == 0
    assert value(found, "hosttune_handover_expiry_timestamp_seconds", device="0000:28:00.0") == 1795521600
    assert value(found, "hosttune_foreign_cpu_seconds_total", guest="loud") == 99
    assert of(found, "hosttune_foreign_cpu_seconds_total", guest="unread")
    assert len(of(found, "hosttune_foreign_cpu_seconds_total")) == 16


def test_the_same_values_give_the_same_text() -> None:
    run_ = CommandRun(verb="watch", at=1.0)
    one = Observed(run=run_, evidence=evidence(), validation=validation(result("a", "b", "pass")))
    assert exposition(one) == exposition(msgspec.structs.replace(one))
    assert 'hosttune_run_exit_code{verb="watch"} NaN' in exposition(one)
