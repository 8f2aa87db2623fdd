"""Plans and dry runs of many hosts, as people read them: each distinct change once, bytes only on request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fleetresults import RUN, formats, write
from msgspec.structs import replace

import hosttune
from hosttune.cli import output
from hosttune.cli.fleetrun import show_changes, show_plans
from hosttune.fleet.overview import RunContext, report_of
from hosttune.model.fleet import Answer, FleetReport, HostLine
from hosttune.model.result import Entry, Result
from hosttune.report.fleet_groups import meaning, troubles

HOSTS = tuple(f"h{n:02}" for n in range(16))
GPU = "0000:41:00.0"


def answered(folder: Path, host: str, verb: str, document: object, outcome: str = "ok", check: bool = False) -> None:
    code = {"ok": 0, "no": 1}[outcome]
    answer = Answer(host=host, phase=verb, run=RUN, outcome=outcome, exit_code=code, check=check)  # type: ignore[arg-type]
    write(folder, answer, document)


def rehearsed(host: str, pages: int) -> Result:
    entries = (
        Entry(action=f"driver:{GPU}", outcome="planned", before="nvidia", want="vfio-pci"),
        Entry(action="hugepages:node0", outcome="planned", before=0, want=pages),
        Entry(action="sysctl:vm.swappiness", outcome="already", before=1, want=1),
    )
    return Result(host=host, verb="apply", changed=False, reboot_required=False, entries=entries,
                  writes=tuple(f"/sys/{host}/{n}: x" for n in range(100)))  # fmt: skip


def test_a_change_of_many_hosts_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for host in HOSTS[:-1]:  # the last did not answer
        answered(tmp_path, host, "apply", rehearsed(host, 8 if host == "h03" else 254), check=True)
    output.set_amount(quiet=False, verbose=False)
    show_changes(str(tmp_path), "apply", RUN, HOSTS)
    named = ", ".join(HOSTS[:8])
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"what would change on 15 hosts ({named} and 7 more): 3 distinct changes, 1500 writes; nothing was written",
        f"  all 15 hosts: driver {GPU}: nvidia -> vfio-pci",
        "  14 hosts (h00, h01, h02, h04, h05, h06, h07, h08 and 6 more): hugepages node0: 0 -> 254",
        "  1 host (h03): hugepages node0: 0 -> 8",
        f"-v prints each write; {tmp_path}/HOST/apply.check.json holds them",
    ]
    output.set_amount(quiet=False, verbose=True)
    show_changes(str(tmp_path), "apply", RUN, HOSTS)
    output.set_amount(quiet=False, verbose=False)
    assert "  /sys/h14/99: x\n" in capsys.readouterr().out


def test_plans_are_shown_by_group_of_alike_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = hosttune.discover("@example")
    made = {
        vcpus: hosttune.plan(host, hosttune.Intent.from_yaml(
            f"{{version: 1, guests: [{{name: g, gpus: [{GPU}], vcpus: {vcpus}, memory: 8GiB}}]}}"))
        for vcpus in (4, 4000)
    }  # fmt: skip
    for name in HOSTS:
        big = name == "h05"
        answered(tmp_path, name, "plan", made[4000 if big else 4], "no" if big else "ok")
    show_plans(str(tmp_path), RUN, HOSTS, check=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("plan of")] == [
        f"plan of 15 hosts ({', '.join(name for name in HOSTS[:9] if name != 'h05')} and 7 more)",
        "plan of 1 host (h05)",
    ]
    assert f"  guest g: 4 vCPUs, 8 GiB in 1 GiB pages; node 0; gpu {GPU}" in lines
    assert any(line.startswith("  guest g: NOT PLACED: ") for line in lines)


def test_plans_with_errors_are_counted_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that was made is a success, even where its guest cannot start: the reader must not stop at PASS."""
    host = hosttune.discover("@example")
    groupless = replace(host, pci=tuple(replace(one, iommu_group=None) for one in host.pci))
    intent = hosttune.Intent.from_yaml(f"{{version: 1, guests: [{{name: g, gpus: [{GPU}], vcpus: 4, memory: 8GiB}}]}}")
    for name in HOSTS:
        answered(tmp_path, name, "plan", hosttune.plan(groupless if name == "h05" else host, intent))
    show_plans(str(tmp_path), RUN, HOSTS, check=False)
    assert capsys.readouterr().out.endswith("\n\n1 plan of 16 with errors: see to them before fleet apply\n")
    show_plans(str(tmp_path), RUN, HOSTS[:5], check=False)
    assert "with errors" not in capsys.readouterr().out
    of_all, of_some = (report_of(str(tmp_path), hosts, RunContext("plan", run=RUN)) for hosts in (HOSTS, HOSTS[:5]))
    assert (of_all.verdict, of_some.verdict) == ("warn", "pass")
    assert meaning(of_some) == "Every host succeeded."
    said = "Every host succeeded. 1 plan of 16 with errors: see to them before fleet apply."
    assert meaning(of_all) == said
    (trouble,) = troubles(of_all)
    assert (trouble.hosts, trouble.outcome) == (("h05",), "warn")
    assert (trouble.actual or "").startswith("no IOMMU groups are visible")
    for text in formats(of_all):
        assert said in text or '"plan-errors": "warn"' in text
        assert "no IOMMU groups are visible" in text


def test_a_plan_that_cannot_be_read_is_no_success(tmp_path: Path) -> None:
    host = hosttune.discover("@example")
    intent = hosttune.Intent.from_yaml(f"{{version: 1, guests: [{{name: g, gpus: [{GPU}], vcpus: 4, memory: 8GiB}}]}}")
    answered(tmp_path, "h00", "plan", hosttune.plan(host, intent))
    path = tmp_path / "h00" / "plan.json"
    document = json.loads(path.read_text())
    for damaged in ({**document, "guests": 7}, {**document, "schema": "x"}, {"fleet": document["fleet"]}):
        path.write_text(json.dumps(damaged))
        (line,) = report_of(str(tmp_path), ["h00"], RunContext("plan", run=RUN)).hosts
        assert (line.verdict, line.told[0].actual) == ("unknown", "the plan beside the answer cannot be read")


def line_of(warnings: int) -> HostLine:
    return HostLine(host="a", folder="a", verdict="pass", counts={"pass": 3} | ({"warn": warnings} if warnings else {}))


@pytest.mark.parametrize(
    ("verb", "warnings", "text"),
    [
        ("validate", 0, "Every host succeeded, and every check that applies to it passed."),
        ("apply", 0, "Every host succeeded."),
        ("apply", 2, "Every host succeeded; 1 host with warnings."),
        ("validate", 1, "Every host succeeded; 1 host with warnings."),
    ],
)
def test_a_pass_speaks_of_checks_only_where_all_were_asked_for(verb: str, warnings: int, text: str) -> None:
    report = FleetReport(verb=verb, verdict="pass", hosts=(line_of(warnings),))
    assert meaning(report) == text
