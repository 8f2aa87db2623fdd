"""Uniformity of a fleet: majority, outliers and groups of each configuration fact, in every format of the report."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path

import pytest
from fleetresults import HOSTILE_NAMES, RUN, html, markdown, printed, write_lost, write_validation
from uniformhosts import GPUS, KINDS, VALUES, document, facts, machine
from unit.discovery.test_configuration import edited, plant

from hosttune.fleet.medians import Hardware
from hosttune.fleet.overview import RunContext, report_of
from hosttune.fleet.results import answer_path
from hosttune.fleet.uniformity import MOST_FACTS, MOST_SUBJECTS, MOST_VALUES, Gathering, HostHardware
from hosttune.machine.opening import open_root
from hosttune.model.configuration import FACT_KINDS, Fact
from hosttune.model.fleet import FleetReport, Holder, Spread
from hosttune.validating import ValidationRequest, validate

H200 = HostHardware(None, Hardware(dict.fromkeys(GPUS, ("NVIDIA H200", "10de:2335")), "PowerBox 9680"))
H100 = HostHardware(None, Hardware(dict.fromkeys(GPUS, ("NVIDIA H100", "10de:2330")), "PowerBox 9680"))


def compared(*hosts: tuple[Fact, ...] | None, hardware: HostHardware | None = H200) -> dict[str, Spread]:
    """The spreads by fact, of hosts named h0, h1, …"""
    gathering = Gathering()
    for number, found in enumerate(hosts):
        gathering.add(f"h{number}", hardware, found)
    return {one.fact: one for one in gathering.spreads()}


def test_equal_hosts_are_alike_in_every_fact() -> None:
    found = compared(facts(), facts(), facts())
    assert found.keys() == FACT_KINDS.keys()
    assert {one.state for one in found.values()} == {"alike"}
    assert {name: one.majority for name, one in found.items()} == VALUES
    assert found["vbios"].known == 3 * len(GPUS)


@pytest.mark.parametrize("name", FACT_KINDS)
def test_a_planted_outlier_of_each_fact_is_named_with_its_host(name: str) -> None:
    found = compared(facts(), facts(), facts({name: "other"}), facts())
    one = found.pop(name)
    subjects = KINDS[FACT_KINDS[name].of][2] if FACT_KINDS[name].of in KINDS else ()
    assert (one.state, one.majority) == ("differs", VALUES[name])
    assert [(group.value, group.holders) for group in one.groups if group.holders] == [
        ("other", (Holder(host="h2", subjects=tuple(sorted(subjects))),))
    ]
    assert {other.state for other in found.values()} == {"alike"}


@pytest.mark.parametrize("name", FACT_KINDS)
def test_each_fact_that_is_missing_on_a_host_is_unknown_and_never_alike(name: str) -> None:
    unread = compared(facts(), facts({name: None}), facts())[name]
    assert unread.state == "unknown"
    assert [one.host for one in unread.unknown] == ["h1"]
    left_out = compared(facts(), facts(lost=[name]), facts())[name]
    assert (left_out.state, left_out.unknown) == ("unknown", (Holder(host="h1"),))
    nowhere = compared(facts({name: None}), facts({name: None}))[name]
    assert (nowhere.state, nowhere.majority, nowhere.known) == ("unknown", None, 0)


def test_a_single_device_that_differs_is_named_by_its_address() -> None:
    one = compared(facts(), facts(device={"vbios": (GPUS[3], "96.00.A1.00.02")}))["vbios"]
    assert one.state == "differs"
    assert one.groups[1].holders == (Holder(host="h1", subjects=(GPUS[3],)),)
    assert (one.known, one.groups[0].subjects) == (16, 15)


def test_a_host_with_other_devices_has_none_of_these() -> None:
    other = Fact(name="drive-firmware", value="7", kind="1344:51c3 1344:3100", subjects=("0000:02:00.0",))
    swapped = (*facts(lost=["drive-firmware"]), other)
    gathering = Gathering()
    for number, found in enumerate((facts(), facts(), facts(), swapped)):
        gathering.add(f"h{number}", H200, found)
    spreads = {one.kind: one for one in gathering.spreads() if one.fact == "drive-firmware"}
    lacking, own = spreads[KINDS["drive"][0]], spreads[other.kind]
    assert (lacking.state, lacking.without, lacking.unknown) == ("unknown", ("h3",), ())
    assert (own.state, own.without) == ("single", ("h0", "h1", "h2"))


def test_a_tie_has_no_majority_and_unknown_does_not_decide_it() -> None:
    tie = compared(facts(), facts(), facts({"kernel": "6.5"}), facts({"kernel": "6.5"}), facts({"kernel": None}))
    assert (tie["kernel"].state, tie["kernel"].majority) == ("split", None)
    assert [len(group.holders) for group in tie["kernel"].groups] == [2, 2]
    third = compared(facts(), facts(), facts({"kernel": "a"}), facts({"kernel": "b"}))["kernel"]
    assert (third.state, third.majority) == ("split", None)  # 2 of 4: not more than half
    more = compared(facts(), facts(), facts({"kernel": "a"}), facts({"kernel": None}))["kernel"]
    assert (more.state, more.majority, more.known) == ("differs", VALUES["kernel"], 3)


def test_one_host_is_compared_in_its_devices_only() -> None:
    found = compared(facts())
    assert (found["kernel"].state, found["kernel"].majority) == ("single", None)
    assert found["vbios"].state == "alike"
    assert found["drive-firmware"].state == "single"


def test_hosts_of_other_models_are_not_compared() -> None:
    gathering = Gathering()
    for number, (hardware, kernel) in enumerate(((H200, "a"), (H100, "b"), (H200, "a"), (H100, "b"))):
        gathering.add(f"h{number}", hardware, facts({"kernel": kernel}))
    found = [one for one in gathering.spreads() if one.fact == "kernel"]
    assert [(one.gpu_models, one.state, one.majority) for one in found] == [
        (("NVIDIA H100",), "alike", "b"),
        (("NVIDIA H200",), "alike", "a"),
    ]


def test_machines_of_unknown_model_and_devices_of_unknown_ids_are_not_compared() -> None:
    nameless = HostHardware(None, Hardware(H200.hardware.gpus, None))
    assert {one.state for one in compared(facts(), facts(), hardware=nameless).values()} == {"unknown"}
    drive = Fact(name="drive-firmware", value="1", subjects=("0000:01:00.0",))
    found = compared((*facts(lost=["drive-firmware"]), drive), (*facts(lost=["drive-firmware"]), drive))
    assert (found["drive-firmware"].state, found["drive-firmware"].majority) == ("unknown", None)


def test_contradictions_and_floods_are_unknown() -> None:
    twice = (*facts(), Fact(name="kernel", value="other"), Fact(name="no-such-fact", value="1"))
    found = compared(facts(), twice)
    assert "no-such-fact" not in found
    assert (found["kernel"].state, [one.host for one in found["kernel"].unknown]) == ("unknown", ["h1"])
    hostile = compared(facts(), facts({"vbios": "\x1b]0;x\x07", "kernel": "k" * 5000}))
    assert (hostile["vbios"].state, hostile["kernel"].state) == ("unknown", "unknown")
    floods = (
        (Fact(name="kernel", value="1"),) * (MOST_FACTS + 1),
        (Fact(name="vbios", value="1", subjects=tuple(map(str, range(MOST_SUBJECTS + 1)))),),
    )
    for flood in floods:
        gathering = Gathering()
        gathering.add("flood", H200, flood)
        assert gathering.spreads() == ()
        assert "flood" in " ".join(gathering.notes())
    long = Fact(
        name="vbios", value="1", kind="10de:2335 10de:18be" + "x" * 99, model="m" * 9999, subjects=("s" * 9999,)
    )
    (one,) = [found for found in compared((long,), (long,)).values() if found.fact == "vbios"]
    assert (one.kind, one.state) == (None, "unknown")
    assert len(str(one)) < 1500


def test_no_host_with_facts_is_no_uniformity() -> None:
    assert compared(None, None) == {}
    assert compared() == {}


# --- the report --------------------------------------------------------------------------------------------------


def fleet(folder: Path) -> tuple[str, ...]:
    """Ten hosts: one with another VBIOS on a GPU, one with other arguments, one without facts, one lost, one older."""
    odd = {
        "h3": facts(device={"vbios": (GPUS[3], "96.00.A1.00.02")}),
        "h5": facts({"kernel-arguments": "intel_iommu=on ro root=* splash"}),
        "h6": facts({"microcode": None}),
        "h7": None,
    }
    for number in range(9):
        name = f"h{number}"
        write_validation(folder, name, document(name, odd.get(name, facts())))
    write_lost(folder, "h9", "unreachable", "ssh: no route")
    return tuple(f"h{number}" for number in range(10))


def reported(folder: Path, names: tuple[str, ...]) -> FleetReport:
    return report_of(str(folder), names, RunContext(verb="validate", run=RUN))


def test_every_format_says_who_differs_and_what_is_unknown(tmp_path: Path) -> None:
    report = reported(tmp_path, fleet(tmp_path))
    assert FleetReport.from_json(report.to_json()) == report
    assert {one.fact: one.state for one in report.uniformity if one.state != "alike"} == {
        "vbios": "differs", "kernel-arguments": "differs", "microcode": "unknown",
    }  # fmt: skip
    text = printed(report)
    assert max(map(len, text.splitlines())) <= 100
    text = " ".join(text.split())
    for page in (text, " ".join(html(report).split())):
        assert "Uniformity of 28 facts: 2 differing, 1 not known everywhere, 25 alike" in page
        assert "vbios of NVIDIA H200 (10de:2335 10de:18be)" in page
        assert "majority 96.00.A5.00.01 (63 of 64 known)" in page
        assert f"96.00.A1.00.02: h3 ({GPUS[3]})" in page
        assert "adds splash; lacks iommu=pt: h5" in page
        assert "unknown: h6" in page
        assert "2 hosts gave no configuration facts" in page
    table = markdown(report)
    assert "## Uniformity" in table
    assert "h3" in table


def test_one_host_without_facts_is_one(tmp_path: Path) -> None:
    report = reported(tmp_path, fleet(tmp_path)[:9])
    assert (
        "1 host gave no configuration facts (no answer, or an older hosttune), so that it is in no" in report.notes[0]
    )


def test_uniformity_changes_no_verdict(tmp_path: Path) -> None:
    for name in ("h0", "h1", "h2"):
        write_validation(tmp_path, name, document(name, facts({"vbios": "other"} if name == "h2" else None)))
    assert reported(tmp_path, ("h0", "h1", "h2")).verdict == "pass"


def test_an_older_report_and_torn_files_are_read(tmp_path: Path) -> None:
    names = fleet(tmp_path)
    path = Path(answer_path(str(tmp_path), "h4", "validate"))
    path.write_bytes(path.read_bytes()[:-200])
    report = reported(tmp_path, names)
    assert "3 hosts gave no configuration facts" in " ".join(report.notes)
    old = json.loads(report.to_json())
    del old["uniformity"]
    assert FleetReport.from_json(json.dumps(old)).uniformity == ()
    ill = json.loads(Path(answer_path(str(tmp_path), "h0", "validate")).read_text())
    ill["configuration"] = [{"name": "kernel", "value": 7}]
    Path(answer_path(str(tmp_path), "h0", "validate")).write_text(json.dumps(ill))
    assert reported(tmp_path, names).hosts[0].verdict == "unknown"


def test_from_the_files_of_hosts_to_the_report(tmp_path: Path) -> None:
    """Three hosts of equal files; one has another drive firmware, other arguments, and no BIOS date."""
    for name in ("h0", "h1", "h2"):
        root = plant(tmp_path / name)
        arguments = f"BOOT_IMAGE=/vmlinuz root=UUID={name} ro iommu=pt intel_iommu=on crashkernel=51{name[1]}M\n"
        (root / "proc/cmdline").write_text(arguments)
    edited(root, "sys/class/nvme/nvme0/firmware_rev", lambda text: "GDC5502Q\n")
    edited(root, "proc/cmdline", lambda text: text.replace("iommu=pt ", "", 1))
    (root / "sys/class/dmi/id/bios_date").unlink()
    results = tmp_path / "results"
    for name in ("h0", "h1", "h2"):
        made = validate(open_root(str(tmp_path / name)), ValidationRequest(keep=False)).validation
        write_validation(results, name, made)
    found = {one.fact: one for one in reported(results, ("h0", "h1", "h2")).uniformity}
    assert {name for name, one in found.items() if one.state == "differs"} == {"drive-firmware", "kernel-arguments"}
    assert found["drive-firmware"].groups[1].holders == (Holder(host="h2", subjects=("0000:05:00.0",)),)
    assert found["kernel-arguments"].majority == "crashkernel=* intel_iommu=on iommu=pt ro root=*"
    assert (found["bios-date"].state, [one.host for one in found["bios-date"].unknown]) == ("unknown", ["h2"])
    assert (found["vbios"].state, found["vbios"].known) == ("unknown", 0)
    assert found["bios-version"].state == "alike"


def test_hostile_names_and_values_are_shown_as_text(tmp_path: Path) -> None:
    names = [*HOSTILE_NAMES, "h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7"]
    for name in names:
        value = {"vbios": "</script><script>hacked()</script>|`"} if name in HOSTILE_NAMES else {}
        write_validation(tmp_path, name, document(name, facts(value)))
    report = reported(tmp_path, tuple(names))
    text = printed(report)
    assert "\x1b" not in text
    assert "<script>hacked" not in html(report)
    assert "<script>" not in markdown(report)


def test_a_thousand_hosts_cost_bounded_time_and_memory() -> None:
    begun = time.process_time()
    tracemalloc.start()
    gathering = Gathering()
    for number in range(1000):
        gathering.add(f"h{number}", H200, facts({"kernel": f"6.8.{number}" if number % 10 == 3 else "6.8"}))
    found = {one.fact: one for one in gathering.spreads()}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found["kernel"].known == 1000
    assert len(found["kernel"].groups) == MOST_VALUES
    assert found["kernel"].more_values == 101 - MOST_VALUES
    assert peak < 40 << 20
    assert time.process_time() - begun < 10


def test_a_machine_in_a_document_is_the_same_model() -> None:
    assert machine().product == H200.hardware.product
