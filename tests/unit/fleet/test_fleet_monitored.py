"""The metrics of a fleet's hosts in its report: newer than the answers, and never better than what they prove."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fleetresults import RUN, write
from unit.report.test_fleet_report import GOOD, answered, of

from hosttune.cli import run
from hosttune.errors import BadInput
from hosttune.fleet.monitored import QUERY, read_metrics
from hosttune.fleet.overview import RunContext, report_of
from hosttune.model.fleet import FleetReport

FEDERATE = Path(__file__).parents[2] / "cases/federate/three_hosts.prom"
TEXT = FEDERATE.read_text()


def report(folder: Path, text: str, *hosts: str) -> FleetReport:
    """The report on hosts that all passed, with the metrics in `text`."""
    for host in hosts:
        write(folder, answered(host=host), of(GOOD))
    path = folder / "federate.prom"
    path.write_text(text)
    return report_of(str(folder), hosts, RunContext("validate", run=RUN, metrics=read_metrics(str(path))))


def test_each_host_is_judged_by_its_metrics(tmp_path: Path) -> None:
    found = report(tmp_path, TEXT, "good", "sick", "stale", "silent")
    lines = {line.host: line for line in found.hosts}
    assert {name: (line.verdict, line.checks["monitored"]) for name, line in lines.items()} == {
        "good": ("warn", "warn"),
        "sick": ("fail", "fail"),
        "stale": ("unknown", "unknown"),
        "silent": ("unknown", "unknown"),
    }
    told = {name: [one for one in line.told if one.check == "monitored"] for name, line in lines.items()}
    texts = {name: results[0].actual or "" for name, results in told.items()}
    assert texts["good"].startswith("verdict warn; ")
    assert "2 applied settings have another value, or cannot be read" in texts["sick"]
    assert "pcie-link 0000:41:00.0: fail" in texts["sick"]
    assert texts["stale"] == "the host was last read 60 minutes before the newest sample of the file"
    assert texts["silent"] == "none"
    assert report_of(str(tmp_path), lines, RunContext("validate", run=RUN)).verdict == "pass"


def edited(pattern: str, by: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        changed = re.sub(pattern, by, text, flags=re.MULTILINE)
        assert changed != text
        return changed

    return edit


HOST = r'(?=.*instance="good")'
DAMAGES: dict[str, tuple[Callable[[str], str], str]] = {
    "no verdict": (edited(rf"^hosttune_validation_verdict{HOST}.*\n", ""), "0 verdicts"),
    "two verdicts": (edited(rf"^(hosttune_validation_verdict{HOST}.*pass.*) 0 ", r"\1 1 "), "2 verdicts: pass, warn"),
    "another verdict": (edited(rf'^(hosttune_validation_verdict{HOST}.*)"warn"', r'\1"fine"'), "verdict unknown"),
    "no time of the look": (
        edited(rf"^hosttune_run_timestamp{HOST}.*\n", ""),
        "is not known (0 times)",
    ),
    "NaN": (
        edited(rf"^(hosttune_run_timestamp{HOST}.*}}) \S+", r"\1 NaN"),
        "is not known (1 times)",
    ),
    "a clock ahead": (edited(rf"^(hosttune_run_timestamp{HOST}.*}}) \S+", r"\1 1.9e+09"), "a clock is wrong"),
    "no times of samples": (edited(rf"^(hosttune_\w+{{{HOST}.*}} \S+) \d+$", r"\1"), "the samples have no times"),
    "a better verdict than its results": (
        lambda text: edited(r'(verdict="warn"}) 1', r"\1 0")(edited(r'(verdict="pass"}) 0', r"\1 1")(text)),
        "the verdict is pass, and a result is warn",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_metrics_that_are_incomplete_or_contradict_themselves_are_unknown(name: str, tmp_path: Path) -> None:
    edit, why = DAMAGES[name]
    (line,) = report(tmp_path, edit(TEXT), "good").hosts
    assert line.checks["monitored"] == "unknown"
    assert why in (line.told[0].actual or "")


def test_losing_any_line_makes_no_host_better(tmp_path: Path) -> None:
    order = ("fail", "unknown", "warn", "pass")
    hosts = ("good", "sick", "stale")
    before = {name: read_metrics(str(FEDERATE)).of(name).outcome for name in hosts}
    lines = TEXT.splitlines(keepends=True)
    verdicts = [number for number, line in enumerate(lines) if "verdict" in line or "timestamp" in line]
    for number in verdicts:
        path = tmp_path / "less.prom"
        path.write_text("".join(lines[:number] + lines[number + 1 :]))
        for name in hosts:
            after = read_metrics(str(path)).of(name).outcome
            assert after == before[name] or after == "unknown" or order.index(after) <= order.index(before[name]), (
                number
            )


def test_hosts_that_are_not_in_the_report_are_named(tmp_path: Path) -> None:
    assert report(tmp_path, TEXT, "good").notes == ("metrics of 2 hosts that are not in this report: sick, stale",)


def test_the_page_asks_prometheus_for_what_is_read_and_no_more() -> None:
    assert f"'match[]={QUERY}'" in (Path(__file__).parents[3] / "docs/report.md").read_text()
    asked = re.compile(QUERY.partition('"')[2].rpartition('"')[0])
    names = {match[1] for match in re.finditer(r"^(hosttune_[a-z_]+)", TEXT, re.MULTILINE)}
    assert {name for name in names if asked.fullmatch(name)} == {
        *("hosttune_run_timestamp_seconds", "hosttune_validation_verdict"),
        *("hosttune_check_status", "hosttune_setting_drift"),
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no metrics of hosttune"),
        ("{}", "no metrics of hosttune"),
        ("node_load1 3\n", "no metrics of hosttune"),
        (TEXT.replace('instance="', 'host="'), "without the label instance: this is the file of one host"),
        ('hosttune_validation_verdict{instance="a', "not in Prometheus' text format"),
        ('hosttune_validation_verdict{instance="a"} soon\n', "not in Prometheus' text format"),
        (TEXT + 'hosttune_check_status{instance="a"} 1\n' * 200_001, "samples, more than 200,000"),
    ],
)
def test_what_is_no_answer_of_prometheus(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    path.write_text(text)
    with pytest.raises(BadInput, match=re.escape(why)) as refused:
        read_metrics(str(path))
    assert refused.value.where == str(path)
    assert refused.value.hint


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, answered(host="sick"), of(GOOD))
    asked = ["fleet", "report", "--results", str(tmp_path), "--verb", "validate", "--metrics"]
    assert run([*asked, str(FEDERATE)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("FAIL")
    assert "1. monitored (fail: 1 host)\n      hosts: sick\n" in printed
    assert run([*asked, str(tmp_path / "none")]) == 2
    assert "the answer of Prometheus' /federate" in capsys.readouterr().err
