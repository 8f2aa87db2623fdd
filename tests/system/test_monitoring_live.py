"""The shipped rules and dashboards in a real Prometheus that scrapes a real node_exporter."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dashboards
import msgspec
import pytest
from exposed import PATH
from system.test_monitoring_dashboards import FOLDER, page, replaced
from unit.metrics.test_metrics_hosts import HOSTS, judged

from hosttune.metrics import CommandRun, Family, Observed, Point, exposition, write_textfile
from hosttune.model.evidence import Evidence, KernelEvent
from hosttune.model.host import DeviceSource, SeenDevice
from hosttune.model.quarantine import DeviceRecord, HandoverState
from hosttune.model.result import Drift, Entry, Result
from hosttune.model.validation import CheckResult, Sample, Validation
from hosttune.model.verification import Verification

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS, EXPORTER = (shutil.which(name, path=PATH) for name in ("prometheus", "prometheus-node-exporter"))
pytestmark = pytest.mark.skipif(PROMETHEUS is None or EXPORTER is None, reason="no Prometheus")
INTERVAL = Family(name="hosttune_watch_interval_seconds", help="Seconds between two looks at the host.")
GPU = "0000:41:00.0"
SECONDS = 40.0


def sick() -> tuple[Evidence, Validation]:
    """A host with something of everything: drift, a fault of its guest, XIDs, a measurement, a hand-over."""
    evidence, validation = judged(HOSTS["example with a guest"]())
    drift = (Drift(action="governor:0-3"), Drift(action="ksm:host", why="cannot be read: Input/output error"))
    device = DeviceRecord(address=GPU, identity="", state="quarantined", since="", why="")
    health, host = evidence.health, evidence.host
    assert health is not None
    lost = SeenDevice(address="0000:f0:00.0", kind="gpu")
    plan = DeviceSource(name="the plan in force", read="the journal", shows=9, could=100, beyond=(lost,), expects=True)
    narrow = [
        msgspec.structs.replace(one, link=msgspec.structs.replace(one.link, width=8))
        if one.address == GPU and one.link is not None
        else one
        for one in host.pci
    ]
    kept_here = Verification(
        verdict="void", about="host", host=None, signer="ops@example.com", devices=(GPU,),
        issued_at="2026-11-01T00:00:00Z", expires_at="2026-11-02T00:00:00Z",
    )  # fmt: skip
    found = msgspec.structs.replace(
        evidence,
        statements=(kept_here,),
        applied_state=Result(verb="status", entries=(Entry(action="thp:host", outcome="done"),), drift=drift),
        host=msgspec.structs.replace(
            host, pci=tuple(narrow), sources=(*(host.sources or ()), plan), handover=HandoverState(devices=(device,))
        ),
        health=msgspec.structs.replace(
            health,
            events=(KernelEvent(kind="xid", address=GPU, code=79),),
            aer={**(health.aer or {}), GPU: {"fatal": 0, "nonfatal": 0, "correctable": 3}},
        ),
        history=(Validation(samples=(Sample(metric="h2d-ce", subject=GPU, value=20, unit="GB/s"),)),),
    )
    guest = next(iter(evidence.host.guests or ())).name
    more = (
        CheckResult(check="guest-pins", subject=guest, outcome="fail"),
        CheckResult(check="pcie-link", subject=GPU, outcome="fail"),
        CheckResult(check="aer", subject=GPU, outcome="unknown"),
    )
    kept = [one for one in validation.results if (one.check, one.subject) not in {(o.check, o.subject) for o in more}]
    return found, msgspec.structs.replace(validation, results=(*kept, *more), verdict="fail")


def text(interval: float = 60.0) -> str:
    evidence, validation = sick()
    guests = {guest.name: time.time() % 1000 for guest in evidence.host.guests or ()}
    run = CommandRun(verb="watch", at=time.time(), exit_code=0, seconds=0.5)
    extra = ((INTERVAL, (Point(value=interval),)),)
    return exposition(
        Observed(run=run, evidence=evidence, validation=validation, foreign_cpu_seconds=guests, extra=extra)
    )


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Live:
    """Prometheus and one node_exporter with a textfile folder."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "textfiles" / "hosttune.prom"
        self.file.parent.mkdir()
        exporter, self.port = port(), port()
        (folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ROOT / "monitoring/rules/hosttune.yml")],
            "scrape_configs": [{"job_name": "hosttune", "static_configs": [{"targets": [f"127.0.0.1:{exporter}"]}]}],
        }))  # fmt: skip
        words = [[EXPORTER, "--collector.disable-defaults", "--collector.textfile", "--collector.stat",
                  f"--collector.textfile.directory={self.file.parent}", f"--web.listen-address=127.0.0.1:{exporter}"],
                 [PROMETHEUS, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                  f"--web.listen-address=127.0.0.1:{self.port}"]]  # fmt: skip
        with (folder / "log").open("w") as log:
            self.processes = [subprocess.Popen([str(w) for w in one], stdout=log, stderr=log) for one in words]

    def ask(self, what: str, **options: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(options)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def alerts(self) -> dict[str, str]:
        return {one["labels"]["alertname"]: one["state"] for one in self.ask("alerts")["alerts"]}

    def until(self, holds: Callable[[], object], what: str) -> None:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                if holds():
                    return
            except OSError:
                pass
            time.sleep(0.5)
        raise AssertionError(f"not within {SECONDS:g} s: {what}")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    found = Live(tmp_path_factory.mktemp("prometheus"))
    yield found
    for process in found.processes:
        process.terminate()
        process.wait(30)


def test_every_query_of_the_dashboards_returns_series(live: Live) -> None:
    write_textfile(str(live.file), text())
    live.until(lambda: live.query("hosttune:run_age_seconds"), "the first evaluation")
    write_textfile(str(live.file), text())
    queries = {one for path in FOLDER.glob("*.json") for one in dashboards.expressions(page(path.name))}
    live.until(lambda: live.query("rate(hosttune_foreign_cpu_seconds_total[5m])"), "two scrapes")
    empty = [one for one in queries if not live.query(replaced(one).removesuffix(" > 0"))]  # annotations: events only
    assert empty == []


def test_what_is_wrong_fires_and_what_is_not_does_not(live: Live) -> None:
    write_textfile(str(live.file), text())
    wanted = {"HosttuneDevicesMissing", "HosttunePcieLinkDegraded", "HosttuneBenchBelowFloor"}
    live.until(lambda: wanted <= {name for name, state in live.alerts().items() if state == "firing"}, str(wanted))
    waiting = {"HosttuneSettingDrifted", "HosttuneSettingUnknown", "HosttuneCheckUnknown", "HosttuneGuestMisplaced",
               "HosttuneVerdictFail"}  # fmt: skip
    assert waiting <= set(live.alerts())
    silent = {"HosttuneStale", "HosttuneSilent", "HosttuneHostDown", "HosttuneNeedsPerson", "HosttuneTextfileError"}
    assert not silent & set(live.alerts())


def test_silence_is_told(live: Live) -> None:
    write_textfile(str(live.file), text(interval=0.1))
    live.until(lambda: "HosttuneStale" in live.alerts(), "metrics that are five intervals old")
    write_textfile(str(live.file), text())
    live.until(lambda: "HosttuneStale" not in live.alerts(), "an end of the alert")
    with live.file.open("a") as file:
        file.write("hosttune_broken 1 1700000000000\n")  # a timestamp: the collector drops the whole file
    live.until(lambda: {"HosttuneTextfileError", "HosttuneSilent"} <= set(live.alerts()), "a file that is dropped")
    live.file.unlink()
    live.until(lambda: "HosttuneTextfileError" not in live.alerts(), "a folder without files")
    assert "HosttuneSilent" in live.alerts()
    live.processes[0].terminate()
    live.until(lambda: "HosttuneHostDown" in live.alerts(), "a host that cannot be scraped")
