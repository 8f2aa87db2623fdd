"""What became worse since the run before, and what the report says of it first."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

from fleetresults import RUN, html, names, printed, unwrapped, validation, write_validation
from msgspec.structs import replace

from hosttune.fleet.overview import RunContext, report_of
from hosttune.fleet.reporting import with_worse
from hosttune.model.fleet import FleetReport

HOSTS = names(3)


def run_of(folder: Path, run: str, *, faults: int = 0, unknown: bool = False) -> FleetReport:
    for n, name in enumerate(HOSTS):
        found = validation(name, random.Random(7), faults=faults if n == 1 else 0)
        if unknown and n == 2:
            results = tuple(
                replace(result, outcome="unknown") if result.check == "acs" else result for result in found.results
            )
            found = replace(found, results=results, verdict="unknown")
        write_validation(folder, name, found, run=run)
    return report_of(str(folder), HOSTS, RunContext("validate", run=run))


def test_a_run_is_compared_with_the_one_before(tmp_path: Path) -> None:
    first = with_worse(run_of(tmp_path, "1"), str(tmp_path), keep=True)
    assert [line.worse for line in first.hosts] == [(), (), ()]
    second = with_worse(run_of(tmp_path, "2", faults=3, unknown=True), str(tmp_path), keep=True)
    worse = {line.host: line.worse for line in second.hosts}
    assert worse[HOSTS[0]] == ()
    assert worse[HOSTS[1]]
    assert all(re.fullmatch(r"[a-z-]+: (pass|skip|warn) -> (fail|unknown|warn)", line) for line in worse[HOSTS[1]])
    assert worse[HOSTS[2]] == ("acs: skip -> unknown",)
    assert "Worse than in the run before" in printed(second)
    again = with_worse(run_of(tmp_path, "2", faults=3, unknown=True), str(tmp_path), keep=False)
    assert {line.host: line.worse for line in again.hosts} == worse, "the report of a past run says the same"
    third = with_worse(run_of(tmp_path, "3", faults=3), str(tmp_path), keep=True)
    assert [line.worse for line in third.hosts] == [(), (), ()], "what was so before is not worse"


def test_other_verbs_are_not_compared(tmp_path: Path) -> None:
    report = replace(run_of(tmp_path, RUN), verb="plan")
    assert with_worse(report, str(tmp_path), keep=True) == report
    assert not (tmp_path / ".before.json").exists()


def test_it_says_first_how_many_may_go_to_tenants_and_why_not_the_others(tmp_path: Path) -> None:
    report = run_of(tmp_path, RUN, faults=3, unknown=True)
    text = unwrapped(html(report))
    banner = re.sub(r"\s+", " ", text[text.index('<div class="verdict') : text.index('<ul class="tiles')])
    said = re.search(r"<p>1 of 3 hosts may go to tenants; the others: (.*?)\. 1 host must not", banner)
    assert said is not None, banner
    causes = dict(re.findall(r"([\w-]+) \((\d+)\)", said[1]))
    assert causes["acs"] == "1"
    assert sum(map(int, causes.values())) == 2, "each host under the worst that it has"


def test_problem_columns_come_first_and_devices_are_named_with_their_host(tmp_path: Path) -> None:
    text = unwrapped(html(run_of(tmp_path, RUN, faults=3)))
    data = json.loads(re.search(r'id="grid">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    wrong = [any(row[n] in "fuwx" for row in data["rows"]) for n in range(len(data["columns"]))]
    assert wrong == sorted(wrong, reverse=True)
    assert any(wrong)
    assert re.search(rf"<dt>Devices</dt><dd>[^<]*0000:[0-9a-f:.]+ of {re.escape(HOSTS[1])}", text)


def test_a_run_of_some_hosts_forgets_none_of_the_others(tmp_path: Path) -> None:
    with_worse(run_of(tmp_path, "1"), str(tmp_path), keep=True)
    some = run_of(tmp_path, "2")
    with_worse(replace(some, hosts=some.hosts[:1]), str(tmp_path), keep=True)
    third = with_worse(run_of(tmp_path, "3", unknown=True), str(tmp_path), keep=True)
    assert {line.host: line.worse for line in third.hosts}[HOSTS[2]] == ("acs: skip -> unknown",)
