"""Hosts of `fleet pairs` in network namespaces: real iperf3, without ssh, and answers as the playbook stores them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from namespaces import SEARCH
from sshhosts import SshFleet

from hosttune.fleet.playbook import PlaybookOrder, Played, Stop, TaskEvent
from hosttune.fleet.results import answer_path

ROOT = Path(__file__).resolve().parents[2]
# This checkout's hosttune, whichever one the environment has installed.
_MAIN = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from hosttune.cli import main; main()"
HOSTTUNE = [sys.executable, "-c", _MAIN]
# Each host sees its own interfaces in /sys.
OWN_SYS = "mount -t sysfs sysfs /sys"


def needs_iperf3() -> None:
    """Fail, with what to do, where iperf3 is missing."""
    if shutil.which("iperf3", path=SEARCH) is None:
        pytest.fail("not installed: apt-get install iperf3")


@dataclass
class Player:
    """In ansible's place. `dies`: hosts that give no answer in these records; `before`: called before each order."""

    fleet: SshFleet
    ports: tuple[str, ...] = ("eth0",)
    dies: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[PlaybookOrder, Stop], None] = lambda order, stop: None
    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    jobs: list[Mapping[str, Any]] = field(default_factory=list)

    def play(self, order: PlaybookOrder, heard: Callable[[TaskEvent], None], stop: Stop) -> Played:
        """As `playbook.play`."""
        self.before(order, stop)
        if stop.asked:
            return Played(254, True, ())
        record = str(order.variables["hosttune_pairs_record"])
        self.asked.append((record, order.hosts))
        jobs = order.variables.get("hosttune_pairs_jobs", {})
        self.jobs.append(jobs)
        running = {}
        for host in self.fleet.hosts:
            if host.name not in order.hosts:
                continue
            if self.dies.get(host.name) == record:
                store(order, host.name, record, {"outcome": "died", "why": "the connection was lost"}, None)
                continue
            assert host.space is not None
            words = host.space.inside(*HOSTTUNE, "pairs", "-f", "-", "-o", "json", kinds=("--net", "--mount", "--pid"))
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "PATH": SEARCH},
            )  # fmt: skip
            assert process.stdin is not None
            process.stdin.write(json.dumps(jobs.get(host.name, {"ports": self.ports})))
            process.stdin.close()
            process.stdin = None
            running[host.name] = process
        for name, process in running.items():
            out, err = process.communicate(timeout=60)
            answer = {0: {"outcome": "ok"}, 3: {"outcome": "refused", "why": err.strip()}}.get(process.returncode)
            store(order, name, record, answer or {"outcome": "unknown", "why": err}, out if answer else None)
        return Played(0, False, ())


def store(order: PlaybookOrder, host: str, record: str, answer: Mapping[str, Any], document: str | None) -> None:
    """Write a result file as the playbook does."""
    path = Path(answer_path(order.results, host, record))
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"host": host, "phase": record, "run": order.variables["hosttune_run"], **answer}
    body = json.loads(document) if document else {"schema": "hosttune.answer/v1"}
    path.write_text(json.dumps({**body, "fleet": head}))
