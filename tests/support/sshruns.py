"""Runs of the fleet over hosts behind ssh: roots from the example, the commands, and what they left behind."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from applyroots import ROOT, Root
from namespaces import kill_tree, until
from sshhosts import BIN, SshFleet, SshHost

INTENT = 'version: 1\nguests:\n- {name: tenant, gpus: ["0000:41:00.0"]}\n'
HELD = Path(__file__).resolve().parent / "heldcommand.py"
# A host that is gone is noticed after seconds, not after a minute as by default.
IMPATIENT: dict[str, Any] = {
    "ansible_ssh_args": "-C -o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=1"
    " -o ServerAliveCountMax=3",
    "ansible_timeout": 5,
}


def copy_root(pristine: Path, target: Path) -> Root:
    """A scratch root to be written; an old one at this place goes."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-al", str(pristine), str(target)], check=True)
    return Root(target)


def finished(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """How a command on the controller ended."""
    try:
        out, err = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        kill_tree(process.pid)
        pytest.fail(f"no end: {process.communicate()}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@dataclass(frozen=True)
class Runs:
    """The controller's side: `folder` is where its commands run, with the inventory, the intent and the results."""

    fleet: SshFleet
    folder: Path

    @property
    def results(self) -> Path:
        """The folder of the answers."""
        return self.folder / "results"

    @property
    def intent(self) -> Path:
        """An intent of one guest."""
        path = self.folder / "intent.yml"
        path.write_text(INTENT)
        return path

    def host(self, name: str) -> SshHost:
        """A host by its name."""
        (found,) = (host for host in self.fleet.hosts if host.name == name)
        return found

    def root(self, name: str) -> Root:
        """A host's scratch root."""
        return Root(self.host(name).root)

    def inventory(self, own: Mapping[str, Mapping[str, Any]] | None = None, **variables: Any) -> Path:
        """Write the inventory; `own`: variables of single hosts."""
        return self.fleet.inventory(self.folder / "inventory.yml", variables=variables, own=own or {})

    def words(self, verb: str, *options: str) -> list[str]:
        """`hosttune fleet VERB` with this inventory and these results."""
        given = ("-i", str(self.folder / "inventory.yml"), "--results", str(self.results))
        intent = ("--intent", str(self.intent)) if verb in ("plan", "apply") else ()
        yes = ["--yes"] if verb in ("apply", "revert") and "--check" not in options else []
        return [str(BIN / "hosttune"), "fleet", verb, *given, *intent, *yes, *options]

    def command(self, verb: str, *options: str, code: int = 0) -> dict[str, Any]:
        """Run `hosttune fleet VERB`, which must end with `code`: its report."""
        run = self.fleet.run(*self.words(verb, *options, "-o", "json"), cwd=self.folder)
        return self.reported(run, code)

    def start(self, verb: str, *options: str, **environment: str) -> subprocess.Popen[str]:
        """Start `hosttune fleet VERB`."""
        return self.fleet.start(*self.words(verb, *options, "-o", "json"), cwd=self.folder, **environment)

    def ended(self, process: subprocess.Popen[str], code: int) -> dict[str, Any]:
        """Wait for what `start` started: its report."""
        return self.reported(finished(process), code)

    def reported(self, run: subprocess.CompletedProcess[str], code: int) -> dict[str, Any]:
        """The report of a run that must have ended with `code`."""
        assert run.returncode == code, run.stdout[-4000:] + run.stderr[-4000:]
        assert "Traceback" not in run.stderr, run.stderr
        report: dict[str, Any] = json.loads(run.stdout)
        assert report["schema"] == "hosttune.fleet/v1"
        return {**report, "stderr": run.stderr}

    def verdicts(self) -> dict[str, str]:
        """What `hosttune fleet report` says of each host, from the files alone."""
        words = ("fleet", "report", "--results", str(self.results), "-o", "json")
        run = self.fleet.run(str(BIN / "hosttune"), *words, cwd=self.folder)
        return {host["host"]: host["verdict"] for host in json.loads(run.stdout)["hosts"]}

    def start_playbook(self, name: str, *options: str) -> subprocess.Popen[str]:
        """Start one of the shipped playbooks with ansible-playbook."""
        given = ("-i", str(self.folder / "inventory.yml"), "-e", f"hosttune_results={self.results}")
        intent = ("-e", f"hosttune_intent={self.intent}") if name in ("plan", "apply") else ()
        words = (str(BIN / "ansible-playbook"), *given, *intent, f"playbooks/{name}.yml", *options)
        return self.fleet.start(*words, cwd=ROOT)

    def playbook(self, name: str, *options: str, code: int = 0) -> dict[str, dict[str, int]]:
        """Run one of the shipped playbooks, as it must end: its recap by host."""
        return self.recap(self.start_playbook(name, *options), code)

    def recap(self, process: subprocess.Popen[str], code: int) -> dict[str, dict[str, int]]:
        """Wait for what `start_playbook` started: its recap by host."""
        run = finished(process)
        assert run.returncode == code, run.stdout[-4000:] + run.stderr[-4000:]
        recap = re.findall(r"^(\S+) +: (ok=.*)$", run.stdout, re.MULTILINE)
        return {host: {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", counts)} for host, counts in recap}

    def document(self, host: str, record: str) -> dict[str, Any]:
        """A result file."""
        found: dict[str, Any] = json.loads((self.results / host / f"{record}.json").read_text())
        return found

    def answer(self, host: str, record: str) -> dict[str, Any]:
        """What a result file says of the phase."""
        found = self.document(host, record)["fleet"]
        assert (found["host"], found["phase"]) == (host, record)
        assert isinstance(found, dict)
        return found

    def outcomes(self, record: str) -> dict[str, str]:
        """Outcome by host, of every host that has such a file."""
        names = (host.name for host in self.fleet.hosts)
        return {
            name: self.answer(name, record)["outcome"]
            for name in names
            if (self.results / name / f"{record}.json").exists()
        }

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The record's lines of a kind."""
        lines = map(json.loads, (self.results / "run.jsonl").read_text().splitlines())
        return [line for line in lines if line["event"] == event]

    def executions(self, what: Callable[[], object]) -> dict[str, int]:
        """How many sessions each host's sshd starts while `what` is done."""
        before = {host.name: host.executions for host in self.fleet.hosts}
        what()
        return {host.name: host.executions - before[host.name] for host in self.fleet.hosts}

    # --- hosts that stop half-way ---------------------------------------------------------------------------

    def held(self, name: str) -> dict[str, Any]:
        """The inventory's variables of a host whose command can be held."""
        return {"hosttune_command": [str(BIN / "python"), str(HELD), str(self.host(name).folder)]}

    def hold(self, name: str, verb: str, at: int = 0) -> None:
        """Let a host's `verb` wait before its change number `at`."""
        folder = self.host(name).folder
        (folder / "held").unlink(missing_ok=True)
        (folder / "hold.json").write_text(json.dumps({"verb": verb, "at": at}))

    def wait_held(self, *names: str) -> None:
        """Wait until these hosts stand where they were told to wait."""
        for name in names:
            until(lambda name=name: (self.host(name).folder / "held").exists(), f"{name} to come half-way")  # type: ignore[misc]

    def let_go(self, *names: str) -> None:
        """Let them go on."""
        for name in names:
            (self.host(name).folder / "hold.json").unlink()

    def began(self, name: str) -> list[str]:
        """The verbs that a host began, in order."""
        path = self.host(name).folder / "began"
        return path.read_text().split() if path.exists() else []
