"""`validate` through the command line: documents and exit codes, what it refuses, what a capture keeps for it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from applyroots import EXAMPLE, PREFERENCE, Root, copied

from hosttune.bench.measuring import MeasuredRuns
from hosttune.cli import run
from hosttune.cli.validate import report_of
from hosttune.discovery.evidence import IRQBALANCE_UNIT, gather, read_irqbalance
from hosttune.discovery.recording import write_capture
from hosttune.machine.live import LiveMachine
from hosttune.machine.opening import open_root
from hosttune.machine.reader import Reader
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, Link, PciDevice
from hosttune.model.validation import Sample, Validation, verdict_of
from hosttune.report.draw.html import page
from hosttune.rules.checks import checks
from hosttune.validating import Validated, decide

ROOT = Path(__file__).resolve().parents[3]
HOSTS = Path(__file__).resolve().parents[2] / "hosts"
VM = str(HOSTS / "older" / "vm-x4.tar.gz")
NO_GPU = str(HOSTS / "hwloc" / "96em64t-4no4pa3ca2co.tar.bz2")
GPU = "0000:41:00.0"
FIELDS = {"check", "subject", "outcome", "expected", "actual", "source", "hint", "accepted"}


class Cli:
    """Run commands in process, with a state directory of their own."""

    def __init__(self, capsys: pytest.CaptureFixture[str], state: Path) -> None:
        self._capsys = capsys
        self.state = state

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        out, err = self._capsys.readouterr()
        return code, out, err

    def json(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        code, out, err = self("validate", "-o", "json", *arguments)
        assert err == ""
        return code, json.loads(out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "state"))
    return Cli(capsys, tmp_path / "state")


def of(document: dict[str, Any], check: str) -> dict[str, str]:
    """Outcomes of one check by subject."""
    return {row["subject"]: row["outcome"] for row in document["results"] if row["check"] == check}


def document_of(tmp_path: Path, **changes: Any) -> str:
    """A host document of the contract's fields only: one GPU, known node, full link; `changes` are of that GPU."""
    link = {"speed_gts": 32.0, "width": 16, "max_speed_gts": 32.0, "max_width": 16}
    gpu = {"address": GPU, "vendor_id": "10de", "device_id": "2335", "class_code": "030200", "numa_node": 0,
           "numa_source": "device", "link": link, "bars": [], "parent": None, "virtfns": []} | changes  # fmt: skip
    host = {
        "schema": "hosttune.host/v1", "hostname": "doc", "numa_nodes": [{"id": 0}, {"id": 1}],
        "pci": [gpu], "gpus": [{"address": GPU, "vendor": "nvidia"}],
    }  # fmt: skip
    path = tmp_path / "host.json"
    path.write_text(json.dumps(host))
    return str(path)


# --- documents and exit codes --------------------------------------------------------------------------------


def test_the_document_has_the_contracts_fields_and_its_verdict_follows_from_its_results(cli: Cli) -> None:
    code, document = cli.json("--root", VM)
    assert set(document) >= {"schema", "host", "level", "verdict", "results", "samples"}
    assert (document["schema"], document["level"], document["samples"]) == ("hosttune.validation/v1", 0, [])
    assert all(set(row) >= FIELDS for row in document["results"])
    read = Validation.from_json(json.dumps(document))
    assert read.verdict == verdict_of(read.results)
    assert code == (0 if read.verdict in ("pass", "warn") else 1)
    assert not cli.state.exists(), "a checklist writes nothing"


def test_the_same_capture_gives_the_same_bytes(cli: Cli) -> None:
    first = cli("validate", "--root", VM, "-o", "json")
    assert cli("validate", "--root", VM, "-o", "json") == first


@pytest.mark.parametrize(
    ("change", "link", "node"),
    [
        ({}, "pass", "pass"),
        ({"numa_node": None, "numa_source": "unknown"}, "pass", "unknown"),
        ({"numa_node": 7}, "pass", "fail"),
        ({"link": None}, "unknown", "pass"),
        ({"link": {"speed_gts": None, "width": 16, "max_speed_gts": 32.0, "max_width": 16}}, "unknown", "pass"),
    ],
)
def test_a_document_of_the_contracts_fields(
    cli: Cli, tmp_path: Path, change: dict[str, Any], link: str, node: str
) -> None:
    code, document = cli.json("--host", document_of(tmp_path, **change))
    assert of(document, "pcie-link") == {GPU: link}
    assert of(document, "numa-affinity") == {GPU: node}
    assert code == 1, "most of it is unknown"


@pytest.mark.parametrize("output", ["text", "md", "html", "junit"])
def test_every_format_names_the_host_its_verdict_and_a_check(cli: Cli, output: str) -> None:
    code, out, err = cli("validate", "--root", VM, "-o", output)
    assert (code, err) == (1, "")
    assert "numa-affinity" in out
    assert "unknown" in out.lower()
    if output == "junit":
        assert ET.fromstring(out).iter("testcase")
    if output == "text":
        assert max(map(len, out.splitlines())) <= 100


def test_against_an_earlier_validation(cli: Cli, tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    before.write_text(cli("validate", "--root", VM, "-o", "json")[1])
    code, out, err = cli("validate", "--root", VM, "--against", str(before))
    assert (code, err) == (1, "")
    assert "0 worse" in out


def test_schema(cli: Cli) -> None:
    code, out, _ = cli("schema", "validation")
    assert code == 0
    assert "CheckResult" in out


# --- the list ------------------------------------------------------------------------------------------------


def test_the_list_documents_every_check_and_checks_nothing(cli: Cli) -> None:
    code, out, err = cli("validate", "--list")
    assert (code, err) == (0, "")
    for row in checks():
        assert any(line.startswith(f"  {row.id}  ") for line in out.splitlines()), row.id
    code, out, _ = cli("validate", "--list", "--guest", "-o", "json")
    rows = json.loads(out)
    assert {row["id"] for row in rows} == {row.id for row in checks(inside=True)}
    assert all(row["why"] and row["source"] and row["title"] and row["subjects"] for row in rows)


# --- a guest -------------------------------------------------------------------------------------------------


def test_inside_a_guest_only_what_makes_sense_there(cli: Cli) -> None:
    _, document = cli.json("--root", VM, "--guest")
    assert {row["check"] for row in document["results"]} <= {row.id for row in checks(inside=True)}
    assert list(of(document, "numa-affinity").values()) == ["warn"] * 4
    assert "fail" not in of(document, "pcie-link").values()


# --- a gate ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "outcome", "gate", "code"),
    [
        ("warn", "pass", "verdict", 0),  # a warning that was none before, on a host that is fit
        ("warn", "pass", "worse", 1),
        ("warn", "pass", "either", 1),
        ("warn", "warn", "either", 0),
        ("unknown", "warn", "worse", 0),  # unfit as it was: nothing is worse
        ("unknown", "warn", "either", 0),  # what was unknown before the change blocks no wave
        ("unknown", "warn", "verdict", 1),
    ],
)
def test_a_gate_is_closed_by_the_verdict_or_by_what_is_worse(
    cli: Cli, tmp_path: Path, verdict: str, outcome: str, gate: str, code: int
) -> None:
    where = str(EXAMPLE) if verdict == "warn" else VM
    arguments = ("--root", where) if verdict == "warn" else ("--root", where, "--guest")
    _, now = cli.json(*arguments)
    assert now["verdict"] == verdict
    assert now["worse"] is None
    told = next(row for row in now["results"] if row["outcome"] == "warn") if outcome == "pass" else None
    if told is not None:
        told["outcome"] = outcome
    before = tmp_path / "before.json"
    before.write_text(json.dumps(now))
    got, found = cli.json(*arguments, "--against", str(before), "--gate", gate)
    assert got == code
    assert len(found["worse"]) == (told is not None)
    if told is not None:
        assert found["worse"][0].startswith(f"{told['check']} {told['subject']}: pass -> warn")


# --- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "where"),
    [
        (("--level", "1", "--root", VM), 3, "--level"),
        (("--level", "3", "--host", "nothing.json"), 3, "--level"),
        (("--root", VM, "--host", "nothing.json"), 2, "command line"),
        (("--host", "nothing.json"), 2, "nothing.json"),
        (("--root", VM, "--against", "nothing.json"), 2, "nothing.json"),
        (("--root", VM, "--against", str(ROOT / "pyproject.toml")), 2, "pyproject.toml"),
        (("--level", "4"), 2, "--level"),
        (("--root", VM, "--duration", "10"), 2, "--duration"),
        (("--root", VM, "--scratch", "x"), 2, "--scratch"),
        (("--root", VM, "--peer", "x"), 2, "--peer"),
        (("--root", VM, "--gate", "worse"), 2, "--gate"),
        (("--root", VM, "--gate", "most"), 2, "--gate"),
        (("--list", "-o", "prometheus"), 2, "--output"),
        (("--level", "1", "--fleet", "nothing.toml"), 2, "nothing.toml"),
        (("--level", "1", "--fleet", str(ROOT / "pyproject.toml")), 2, "pyproject.toml"),
        (("-o", "yaml"), 2, "--output"),
    ],
)
def test_what_is_refused(cli: Cli, arguments: tuple[str, ...], code: int, where: str) -> None:
    got, out, err = cli("validate", *arguments)
    assert (got, out) == (code, ""), err
    assert where in next(line for line in err.splitlines() if line.startswith("where:"))
    assert not cli.state.exists()


def test_a_fleets_medians_stand_in_the_page_beside_what_was_measured() -> None:
    row = """[[baseline]]
metric = "h2d-ce"
device = "10de:2335"
kind = "fleet"
expected = 52.7
tolerance = 0.05
direction = "higher"
unit = "GB/s"
source = "the median of our forty hosts"
"""
    evidence = gather(open_root(str(EXAMPLE)))
    samples = tuple(Sample(metric="h2d-ce", subject=GPU, value=55.5, unit="GB/s") for _ in range(5))
    validation = Validation(level=1, samples=samples)
    median = re.compile("fleet(?:'|&#39;)s median: 52.7 GB/s")
    assert median.search(page(report_of(Validated(validation, evidence), None))) is None
    assert median.search(page(report_of(Validated(validation, evidence), None, row))) is not None


# --- what was applied ----------------------------------------------------------------------------------------


def test_a_plan_applied_is_in_force_and_its_drift_fails_by_setting(cli: Cli, pristine: Path, tmp_path: Path) -> None:
    with copied(pristine, tmp_path / "root") as root:
        plan = str(tmp_path / "plan.json")
        shape = ("--gpu", GPU, "--vcpus", "4", "--memory", "8GiB", "--profile", "host")
        assert cli("plan", "--root", str(root.path), *shape, "--out", plan)[0] == 0
        before = cli.json("--root", str(root.path))[1]
        assert of(before, "settings-in-force") == {"host": "skip"}
        assert of(before, "cpu-frequency") == {"host": "warn"}
        code, out, err = cli("apply", "--root", str(root.path), plan, "--yes", "--no-guests")
        assert code == 0, out + err
        after = cli.json("--root", str(root.path))[1]
        assert of(after, "settings-in-force")["host"] in ("pass", "warn")
        assert of(after, "cpu-frequency") == {"gpu-guest": "pass"}
        assert of(after, "numa-balancing") == {"host": "pass"}
        told = json.loads(cli("status", "--root", str(root.path), "-o", "json")[1])
        waits = {entry["action"] for entry in told["entries"] if entry["outcome"] == "pending"}
        assert waits == {"kernel-argument:hugepages", "kernel-argument:iommu"}  # no boot loader could be told
        assert not told["reboot_required"]
        assert of(after, "kernel-arguments-pending") == {"host": "fail"}
        drift(root)
        drifted = cli.json("--root", str(root.path))[1]
        assert [s for s, found in of(drifted, "settings-in-force").items() if found == "fail"] == [
            "numa-balancing:kernel.numa_balancing"
        ]


def drift(root: Root) -> None:
    root.put("proc/sys/kernel/numa_balancing", "1\n")
    assert "performance" in root.get(PREFERENCE.format(1))


def test_a_journal_that_does_not_read_is_unknown_and_no_error(cli: Cli, pristine: Path, tmp_path: Path) -> None:
    with copied(pristine, tmp_path / "root") as root:
        root.put("var/lib/hosttune/transactions/000001.jsonl", "no record\n")
        code, document = cli.json("--root", str(root.path))
        assert code == 1
        assert of(document, "settings-in-force") == {"host": "unknown"}
        assert of(document, "kernel-arguments-pending") == {"host": "unknown"}


# --- captures ------------------------------------------------------------------------------------------------


def test_a_capture_keeps_what_only_a_validation_reads(pristine: Path, tmp_path: Path) -> None:
    with copied(pristine, tmp_path / "root") as root:
        root.put(f"sys/bus/pci/devices/{GPU}/resource2_resize", "000000000007ff00\n")
        root.put(f".hosttune/commands/{IRQBALANCE_UNIT}", "installed\n")
        root.put("sys/kernel/mm/ksm/pages_shared", "12\n")
        found = gather(open_root(str(root.path)))
        assert found.bar_limits == {GPU: 1 << 38}
        assert (found.irqbalance, found.ksm_pages_shared) == (True, 12)
        archive = str(tmp_path / "host.tar.gz")
        write_capture(open_root(str(root.path)), archive)
        replayed = gather(open_root(archive))
        assert replayed.bar_limits == found.bar_limits
        assert (replayed.irqbalance, replayed.ksm_pages_shared) == (True, 12)


@pytest.mark.parametrize(("answer", "expected"), [("installed\n", True), ("masked\n", False), ("absent\n", False)])
def test_whether_irqbalance_is_there_is_replayed(answer: str, expected: bool, pristine: Path, tmp_path: Path) -> None:
    with copied(pristine, tmp_path / "root") as root:
        assert gather(open_root(str(root.path))).irqbalance is None
        root.put(f".hosttune/commands/{IRQBALANCE_UNIT}", answer)
        assert gather(open_root(str(root.path))).irqbalance is expected


class Units(LiveMachine):
    """A machine that has these files and links and nothing else."""

    def __init__(self, **links: str | None) -> None:
        self._links = {f"/usr/lib/systemd/system/{name}.service": target for name, target in links.items()}

    def exists(self, path: str) -> bool:
        return path in self._links

    def link(self, path: str) -> str | None:
        return self._links.get(path)


def test_irqbalance_of_a_machine() -> None:
    for links, expected in (({}, False), ({"irqbalance": None}, True), ({"irqbalance": "/dev/null"}, False)):
        assert read_irqbalance(Reader(Units(**links)), Host()) is expected


# --- what was validated --------------------------------------------------------------------------------------


def test_a_validation_says_whose_figures_it_holds(cli: Cli) -> None:
    _, document = cli.json("--root", VM, "--guest")
    machine = document["machine"]
    assert [gpu["address"] for gpu in machine["gpus"]] == [f"0000:00:0{n}.0" for n in (6, 7, 8, 9)]
    assert {(gpu["model"], gpu["id"]) for gpu in machine["gpus"]} == {("NVIDIA H200", "10de:2335")}
    assert machine["product"] is None


def test_a_device_of_no_known_maker_is_no_gpu_of_the_fleet(cli: Cli) -> None:
    _, document = cli.json("--root", str(EXAMPLE))
    assert {gpu["id"] for gpu in document["machine"]["gpus"]} == {"10de:2335"}
    assert len(document["machine"]["gpus"]) == 8


# --- what is measured decides ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ({}, "unknown"),
        ({GPU: (32.0, 16)}, "pass"),
        ({GPU: (16.0, 16)}, "fail"),
        ({"0000:99:00.0": (32.0, 16)}, "unknown"),
    ],
)
def test_a_link_at_rest_is_judged_by_what_it_does_under_load(
    links: dict[str, tuple[float, int]], expected: str
) -> None:
    rest = Link(speed_gts=2.5, width=16, max_speed_gts=32.0, max_width=16)
    port = PciDevice(address="0000:40:01.0", class_code="060400", port_type="root-port",
                     link=Link(speed_gts=2.5, width=16, max_speed_gts=32.0, max_width=16))  # fmt: skip
    device = PciDevice(address=GPU, vendor_id="10de", device_id="2335", class_code="030200", driver="nvidia",
                       parent=port.address, link=rest)  # fmt: skip
    evidence = Evidence(host=Host(pci=(port, device), gpus=(Gpu(address=GPU, vendor="nvidia"),)))
    found = decide(evidence, 1, MeasuredRuns((), (), {}, links), live=True)
    rows = [row for row in found.results if row.check == "pcie-link"]
    assert [(row.subject, row.outcome) for row in rows] == [(GPU, expected)]
    assert (rows[0].hint is None) == (expected == "pass")
