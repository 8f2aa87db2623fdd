"""Simulated hosts for the tests of the fleet: scratch roots behind connection local, an inventory, and ansible on it.

Every command that Ansible runs on such a host goes through a shell of ours that notes it, so that a test can count.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from applyroots import Root, copied
from modulepython import bare_python

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PLAYBOOKS = ROOT / "playbooks"
COLLECTION = PLAYBOOKS / "collections/ansible_collections/hosttune/host"
HOSTTUNE = str(BIN / "hosttune")
INTENT: dict[str, Any] = {
    "version": 1,
    "guests": [{"name": "train", "gpus": ["0000:41:00.0"], "vcpus": 8, "memory": "16GiB"}],
}

# Notes what is run (the interpreter's path names the host), then runs it. Ansible asks it to run itself once more.
_SHELL = """#!/bin/sh
case "$2" in
  "$0 -c "*) ;;
  *) printf '%s\\n' "$2" >> "$FLEET_COUNTED" ;;
esac
exec /bin/sh "$@"
"""


@dataclass(frozen=True)
class Played:
    """What a run of ansible-playbook left: its exit code and everything that it printed."""

    code: int
    out: str

    def recap(self) -> dict[str, dict[str, int]]:
        """Ansible's own count: host → {ok, changed, unreachable, failed, skipped, rescued, ignored}."""
        _, _, text = self.out.rpartition("PLAY RECAP")
        found = {}
        for line in text.splitlines():
            host, colon, counts = line.partition(" : ")
            if colon:
                found[host.strip()] = {key: int(n) for key, n in (word.split("=") for word in counts.split())}
        return found


@dataclass(frozen=True)
class Fleet:
    """Simulated hosts of one test in one folder."""

    folder: Path
    hosts: Mapping[str, dict[str, Any]]
    variables: dict[str, Any] = field(default_factory=dict)
    gpu_hosts: tuple[str, ...] = ()  # the group, among other machines of an inventory; without it hosttune_hosts is all
    config: Path = ROOT / "ansible.cfg"
    roots: Mapping[str, Root] = field(default_factory=dict)

    @property
    def results(self) -> Path:
        """Where answers are stored."""
        return self.folder / "results"

    def inventory(self) -> Path:
        """The inventory, written anew (JSON is YAML) with the variables of now."""
        hosts = {
            name: {"ansible_python_interpreter": self._python(name), **given} for name, given in self.hosts.items()
        }
        shared = {
            "ansible_connection": "local", "hosttune_results": str(self.results), "hosttune_command": HOSTTUNE,
            **({} if self.gpu_hosts else {"hosttune_report": False, "hosttune_hosts": "all"}),
        }  # fmt: skip
        group = {"gpu_hosts": {"hosts": dict.fromkeys(self.gpu_hosts)}} if self.gpu_hosts else {}
        path = self.folder / "inventory.yml"
        path.write_text(json.dumps({"all": {"hosts": hosts, "vars": {**shared, **self.variables}, "children": group}}))
        return path

    def _python(self, name: str) -> str:
        return bare_python(self.folder / "python", f"host-{list(self.hosts).index(name)}")

    def play(self, verb: str, *options: str, code: int | None = 0, **variables: Any) -> Played:
        """Run a playbook of ours; `variables` are extra variables, `hosttune_` left out of their names."""
        extra = json.dumps({f"hosttune_{key}": value for key, value in variables.items()})
        words = [str(PLAYBOOKS / f"{verb}.yml"), "-e", extra, *options]
        return self.ansible("ansible-playbook", *words, code=code)

    def ansible(self, program: str, *words: str, code: int | None = 0) -> Played:
        """Run one of Ansible's commands on the inventory; `code`: how it must end (None: anyhow)."""
        command = [str(BIN / program), "-i", str(self.inventory()), *words]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=self.folder, env=self.environment(), timeout=300
        )
        out = done.stdout + done.stderr
        assert code is None or done.returncode == code, out
        return Played(done.returncode, out)

    def environment(self) -> dict[str, str]:
        """The environment of a run: ours, with nothing of the user's Ansible in it."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "HOSTTUNE_"))}
        shell = self.folder / "counted.sh"
        if not shell.exists():
            shell.write_text(_SHELL)
            shell.chmod(0o755)
        return {
            **kept, "HOME": str(self.folder), "ANSIBLE_CONFIG": str(self.config), "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_EXECUTABLE": str(shell), "FLEET_COUNTED": str(self.folder / "counted"), "COLUMNS": "200",
            "HOSTTUNE_STATE": str(self.folder / "outside"),
        }  # fmt: skip

    def executions(self) -> dict[str, int]:
        """Commands that were run on each host since this was last asked; what else was run (hooks) is `others`."""
        path = self.folder / "counted"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        found = {name: sum(self._python(name) + " " in f"{line} " for line in lines) for name in self.hosts}
        others = len(lines) - sum(found.values())
        return {**found, **({"others": others} if others else {})}

    def document(self, host: str, record: str) -> dict[str, Any]:
        """The stored answer of a host."""
        found: dict[str, Any] = json.loads((self.results / host / f"{record}.json").read_text())
        return found

    def outcomes(self, record: str) -> dict[str, str]:
        """Host → outcome of a record, of the hosts that have one."""
        return {
            host: self.document(host, record)["fleet"]["outcome"]
            for host in self.hosts
            if (self.results / host / f"{record}.json").exists()
        }

    def records(self, host: str) -> set[str]:
        """The names of a host's stored answers."""
        return {path.stem for path in (self.results / host).glob("*.json")} if (self.results / host).is_dir() else set()

    def root(self, host: str) -> Root:
        """A simulated host's scratch root."""
        return self.roots[host]


def script(path: Path, text: str) -> str:
    """A command of a test, written to a file: `text` is for /bin/sh."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def stand_in(folder: Path, hosts: Sequence[str] = ("h1",), **variables: Any) -> Fleet:
    """Hosts without a root, for commands that stand in for hosttune."""
    return Fleet(folder, {name: {} for name in hosts}, variables)


@contextlib.contextmanager
def simulated(pristine: Path, folder: Path, names: Sequence[str]) -> Iterator[Fleet]:
    """Hosts with scratch roots of their own."""
    (folder / "roots").mkdir()
    with contextlib.ExitStack() as stack:
        roots = {name: stack.enter_context(copied(pristine, folder / "roots" / name)) for name in names}
        hosts = {name: {"hosttune_root": str(root.path)} for name, root in roots.items()}
        yield Fleet(folder, hosts, {"hosttune_intent": INTENT}, roots=roots)
        assert not (folder / "outside").exists()


@pytest.fixture
def fleet(pristine: Path, tmp_path: Path) -> Iterator[Fleet]:
    """Two simulated hosts."""
    with simulated(pristine, tmp_path, ("h1", "h2")) as found:
        yield found


@pytest.fixture
def lone(pristine: Path, tmp_path: Path) -> Iterator[Fleet]:
    """One simulated host."""
    with simulated(pristine, tmp_path, ("h1",)) as found:
        yield found


# Argument after argument with a NUL between, then what came on standard input.
_RECORDER = """#!/bin/sh
printf '%s\\0' "$@" > "{folder}/argv"
cat > "{folder}/stdin"
case "$2" in --expect|--accepted) cat "$3" > "{folder}/${{2#--}}";; esac
echo '{{"schema": "hosttune.plan/v1", "guests": [], "actions": []}}'
"""


def recorder(folder: Path) -> str:
    """A command that notes how it was called."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recorder"
    path.write_text(_RECORDER.format(folder=folder))
    path.chmod(0o755)
    return str(path)
