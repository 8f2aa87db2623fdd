"""The agent as systemd runs it on an emulated host, and Prometheus with Alertmanager here, which watch that host."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import pytest

from lab.hardware import TREE
from lab.machine import LabMachine, free_port
from lab.product import PROGRAM, install

CAUSES = ("event", "interval")
BEGAN = 'hosttune_run_timestamp_seconds{verb="watch"}'
POLL_SECONDS = 0.3
UNIT, FOLDER = "hosttune-watch", "/var/lib/prometheus/node-exporter"
TEXTFILE = f"{FOLDER}/hosttune.prom"
EXPORTER, EXPORTER_PORT = "prometheus-node-exporter", 9100
INSTANCE = "lab-host:9100"
# `make set-up-test` unpacks Debian's packages there; the emulated host has it at /mnt/tree.
PROGRAMS = TREE / ".venv/prometheus/usr/bin"
NEEDED = ("prometheus", "prometheus-alertmanager", EXPORTER)
needs_monitoring = pytest.mark.skipif(
    not all((PROGRAMS / name).exists() for name in NEEDED), reason=f"not all of {', '.join(NEEDED)} in {PROGRAMS}"
)
WITHIN_SECONDS = 2.0  # after an event, the look at what it concerns has begun (docs/watch.md)
# So long a `hosttune validate` takes there at most while nothing else uses the CPUs of the emulator (measured: 2.8 s).
# Where it takes longer they are somebody else's, and a look must begin before it would have ended.
IDLE_SECONDS = 5.0
SCRAPE_SECONDS = 2
FASTER = 60  # each `for` of the shipped rules is divided by this: a minute is a second
GUEST, VCPU_CPU, WRONG_CPU = "watched", 2, 3
# Its memory is allocated at the start.
XML = f"""<domain type='qemu'><name>{GUEST}</name><memory unit='MiB'>768</memory>
<memoryBacking><allocation mode='immediate'/></memoryBacking><vcpu>1</vcpu>
<cputune><vcpupin vcpu='0' cpuset='2'/><emulatorpin cpuset='0-1'/></cputune>
<numatune><memory mode='strict' nodeset='0'/></numatune>
<os><type arch='x86_64' machine='q35'>hvm</type></os><devices/></domain>"""
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Answered(NamedTuple):
    """Seconds from an event to the begin of the look that answers it, and to the textfile that the look wrote."""

    begun: float
    written: float


class Agent:
    """The agent that runs on a host, by its textfile and its journal there."""

    def __init__(self, lab: LabMachine) -> None:
        self.lab = lab

    def value(self, series: str) -> float | None:
        """The value of a series; None if it is not there."""
        return _value(self.lab.shell(f"cat {TEXTFILE}"), series)

    def until(self, what: str, ready: Callable[[], bool], seconds: float = 120) -> float:
        """Wait until something is in the textfile; return the seconds, which an emulated CPU makes many."""
        start = time.monotonic()
        while not ready():
            assert time.monotonic() < start + seconds, f"{what}\n{self.lab.shell(f'journalctl -u {UNIT} | tail -50')}"
            time.sleep(POLL_SECONDS)
        taken = time.monotonic() - start
        print(f"lab: {what}: in the textfile after {taken:.1f} s")
        return taken

    def at_rest(self, seconds: float = 3) -> None:
        """Wait until no look was made for so long: an event that comes during a look waits until its end."""
        known, since = -1.0, time.monotonic()
        while time.monotonic() < since + seconds:
            if (now := sum(self.value(f'hosttune_watch_looks_total{{cause="{one}"}}') or 0 for one in CAUSES)) != known:
                known, since = now, time.monotonic()
            time.sleep(POLL_SECONDS)

    def answered(self, event: str, told: str, at: float) -> Answered:
        """When the agent looked after an event. `told`: its line in the journal; `at`: its time on the host's clock."""
        deadline = time.monotonic() + 120
        while True:
            # The time after the contents: it is theirs, or that of a later look.
            script = f"journalctl -u {UNIT} -o short-unix --since @{at:.6f}; cat {TEXTFILE}; stat -c %.6Y {TEXTFILE}"
            text = self.lab.shell(script)
            found = re.search(rf"^([0-9.]+) \S+ \S+: {re.escape(told)}( \([0-9]+ times\))?$", text, re.MULTILINE)
            began = _value(text, BEGAN) or 0.0
            # The journal has the event just before its look begins, in milliseconds there.
            if found is not None and began > float(found[1]) - 0.002:
                written = re.search(r"^([0-9]{9,}\.[0-9]{6})$", text, re.MULTILINE)
                assert written is not None
                answer = Answered(began - at, float(written[1]) - at)
                print(f"lab: {event}: a look began after {answer.begun:.2f} s, written after {answer.written:.2f} s")
                assert answer.written > answer.begun
                return answer
            assert time.monotonic() < deadline, f"no look after {event}:\n{text}"
            time.sleep(POLL_SECONDS)


def _value(text: str, series: str) -> float | None:
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else None


@contextlib.contextmanager
def agent_runs(lab: LabMachine, interval: int) -> Iterator[Agent]:
    """The shipped unit with the path of this machine's program, running; its folder has a small file system."""
    install(lab)
    unit = f"/run/systemd/system/{UNIT}.service"
    sed = f"sed -e 's#/opt/hosttune/bin/hosttune#{PROGRAM}#' -e 's#--textfile#--interval {interval} --textfile#'"
    lab.shell(f"mkdir -p {FOLDER} /run/systemd/system && mount -t tmpfs -o size=256k,mode=755 tmpfs {FOLDER}")
    lab.shell(f"{sed} /mnt/tree/playbooks/files/{UNIT}.service >{unit} && systemctl daemon-reload")
    try:
        lab.shell(f"systemctl start {UNIT} || {{ journalctl -u {UNIT} | tail -50 >&2; exit 1; }}", timeout=300)
        yield Agent(lab)
    finally:
        lab.shell(
            f"systemctl stop {UNIT}; umount {FOLDER}; rm -rf {unit} {FOLDER}; systemctl daemon-reload;"
            f" rmdir --ignore-fail-on-non-empty -p {FOLDER.rpartition('/')[0]};"
            f" systemctl start libvirtd.socket libvirtd; virsh destroy {GUEST}; virsh undefine {GUEST}",
            check=False,
        )


def keeping_drop_in(interval: int) -> str:
    """The drop-in of docs/watch.md for --keep, with the path of this machine's program and this interval."""
    page = (TREE / "docs/watch.md").read_text().partition("## Keeping settings")[2]
    found = re.search(r"(?m)^    \[Service\]\n(?:    .*\n)+", page)
    assert found is not None
    text = re.sub("(?m)^    ", "", found[0]).replace("/opt/hosttune/bin/hosttune", PROGRAM)
    return text.replace("--textfile", f"--interval {interval} --textfile")


def seconds_of_validate(lab: LabMachine) -> float:
    """How long a whole `hosttune validate` takes there now, by the host's own clock."""
    before, after = lab.shell("date +%s.%N; hosttune validate >/dev/null; date +%s.%N", check=False).split()
    return float(after) - float(before)


def start_guest(lab: LabMachine) -> float:
    """Start the guest, paused: its threads are all there, and its firmware takes no CPU time.

    Return when libvirt told another client that it has started, by the host's clock.
    """
    lab.shell("virsh define /dev/stdin", stdin=XML)
    told = lab.shell(
        "virsh event --event lifecycle --loop --timestamp >/run/lifecycle & sleep 1;"
        f" virsh start {GUEST} --paused >&2; sleep 1; kill $!; grep Started /run/lifecycle"
    )
    return float(lab.shell(f"date +%s.%N -d '{told.partition(': ')[0]}'"))


def move_thread(lab: LabMachine, cpu: int) -> None:
    """Move the guest's vCPU thread to a CPU by its control group (cgroups(7), cpuset), without libvirt."""
    process = lab.shell(f"cat /run/libvirt/qemu/{GUEST}.pid").strip()
    thread = lab.shell(f"grep -l '^CPU 0' /proc/{process}/task/*/comm | cut -d/ -f5").strip()
    lab.shell(f"echo {cpu} >/sys/fs/cgroup$(cut -d: -f3 /proc/{thread}/cgroup)/cpuset.cpus")
    assert f"Cpus_allowed_list:\t{cpu}\n" in lab.shell(f"cat /proc/{thread}/status")


def start_exporter(lab: LabMachine) -> None:
    """node_exporter with the textfile collector alone."""
    options = f"--collector.disable-defaults --collector.textfile --collector.textfile.directory={FOLDER}"
    lab.shell(
        f"systemd-run --quiet --collect --unit {EXPORTER} /mnt/tree/{PROGRAMS.relative_to(TREE)}/{EXPORTER} {options}"
    )


@contextlib.contextmanager
def exporter_runs(lab: LabMachine) -> Iterator[None]:
    """node_exporter runs on the host."""
    start_exporter(lab)
    try:
        yield
    finally:
        lab.shell(f"systemctl stop {EXPORTER}", check=False)


class Wanted(NamedTuple):
    """An alert: its name, and labels that it must have."""

    name: str
    labels: Mapping[str, str] = {}

    def is_in(self, alerts: list[dict[str, str]]) -> bool:
        want = {"alertname": self.name, "instance": INSTANCE, **self.labels}
        return any(want.items() <= one.items() for one in alerts)


def rules(text: str) -> str:
    """The shipped rules with each `for` divided by FASTER."""

    def shorter(found: re.Match[str]) -> str:
        return f"{found[1]}{int(found[2]) * _UNIT_SECONDS[found[3]] * 1000 // FASTER}ms"

    return re.sub(r"(?m)^(\s+for: )([0-9]+)([smhd])$", shorter, text)


class Monitoring:
    """Prometheus and Alertmanager, as processes here; `exporter`: the port that leads to the host's node_exporter."""

    def __init__(self, folder: Path, exporter: int) -> None:
        self.port, self.manager = free_port(), free_port()
        (folder / "rules.yml").write_text(rules((TREE / "monitoring/rules/hosttune.yml").read_text()))
        target = {"targets": [f"127.0.0.1:{exporter}"], "labels": {"instance": INSTANCE}}
        self._write(folder / "prometheus.yml", {
            "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "hosttune", "static_configs": [target]}],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{self.manager}"]}]}]},
        })  # fmt: skip
        self._write(folder / "alertmanager.yml", {"route": {"receiver": "nobody"}, "receivers": [{"name": "nobody"}]})
        words = (
            (PROGRAMS / "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{self.port}"),
            # Debian's has its template below /usr/share, where an unpacked package is not.
            ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /usr/share && exec "$@"', PROGRAMS.parent / "share",
             PROGRAMS / "prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml",
             f"--storage.path={folder}/alerts", f"--web.listen-address=127.0.0.1:{self.manager}",
             "--cluster.listen-address="),
        )  # fmt: skip
        with (folder / "log").open("w") as log:
            self._processes = [subprocess.Popen(one, stdout=log, stderr=log) for one in words]

    STEP_SECONDS: ClassVar[float] = 2 * SCRAPE_SECONDS  # a scrape and an evaluation of the rules

    @classmethod
    @contextlib.contextmanager
    def runs(cls, folder: Path, lab: LabMachine) -> Iterator[Self]:
        """Both, for as long as the context runs, and with the host's metrics in Prometheus."""
        found = cls(folder, lab.reached(EXPORTER_PORT))
        try:
            found.until("metrics of the host", lambda: bool(found.query("hosttune:run_age_seconds")), 120)
            yield found
        finally:
            found.end()

    @staticmethod
    def _write(path: Path, content: Mapping[str, Any]) -> None:
        path.write_text(json.dumps(content))  # JSON is YAML

    def end(self) -> None:
        """End both."""
        for process in self._processes:
            process.terminate()
            process.wait(30)

    def _get(self, port: int, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{path}", timeout=10) as answer:
            return json.load(answer)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        words = urllib.parse.urlencode({"query": expression})
        found: list[dict[str, Any]] = self._get(self.port, f"v1/query?{words}")["data"]["result"]
        return found

    def number(self, expression: str) -> float | None:
        """The value of the one series of a query; None if there is none."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else None

    def alerts(self) -> list[dict[str, str]]:
        """The labels of each alert that Alertmanager has now."""
        return [one["labels"] for one in self._get(self.manager, "v2/alerts?active=true")]

    def fired(self, seconds: float) -> set[str]:
        """The names of all alerts that fired at some moment of the last seconds."""
        found = self.query(f'count_over_time(ALERTS{{alertstate="firing"}}[{seconds:.0f}s])')
        return {one["metric"]["alertname"] for one in found}

    def until(self, what: str, ready: Callable[[], bool], seconds: float) -> float:
        """Wait until something holds; return the seconds."""
        start = time.monotonic()
        while True:
            with contextlib.suppress(OSError):  # neither answers at once
                if ready():
                    taken = time.monotonic() - start
                    print(f"lab: {what}: after {taken:.1f} s")
                    return taken
            assert time.monotonic() < start + seconds, f"not within {seconds:.0f} s: {what}; there are {self._told()}"
            time.sleep(0.5)

    def _told(self) -> list[str]:
        ours = ("job", "instance", "severity")
        return [" ".join(f"{k}={v}" for k, v in one.items() if k not in ours) for one in self.alerts()]

    def raised(self, wanted: Wanted, seconds: float) -> float:
        """Wait for an alert."""
        return self.until(f"{wanted.name} {dict(wanted.labels)}", lambda: wanted.is_in(self.alerts()), seconds)

    def silent(self, seconds: float) -> float:
        """Wait until there is no alert."""
        return self.until("no alert", lambda: not self.alerts(), seconds)
