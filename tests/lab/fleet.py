"""A controller over emulated hosts: `hosttune fleet` on the machine that runs the tests, over real ssh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lab.hardware import TREE
from lab.machine import LabMachine

FLEET_SECONDS = 2700
REBOOT_SECONDS = 1000  # for one that never comes up to fail here, with what Ansible says; two boot beside a third host
# What the operator does at the two ends of a host's change: ask the host for its boot, write that down here.
HOOK = """
- name: Which boot
  ansible.builtin.raw: cat /proc/sys/kernel/random/boot_id
  register: boot
  changed_when: false
- name: Written down
  ansible.builtin.shell: >-
    echo {hook} {{{{ inventory_hostname }}}} {{{{ boot.stdout | trim }}}} $(date -u +%Y-%m-%dT%H:%M:%SZ) >>hooks.log
  args:
    chdir: "{folder}"
  delegate_to: localhost
  vars:
    ansible_connection: local
  changed_when: true
"""


class Told(NamedTuple):
    """A line that a hook of the operator's wrote: which one, for which host, in which of its boots, when (UTC)."""

    hook: str
    host: str
    boot: str
    at: str


class Asked(NamedTuple):
    """A `hosttune fleet VERB` that was run.

    Exit status, its report, stderr; the hosts' result files by host and phase; what the hooks wrote meanwhile.
    """

    status: int
    report: dict[str, Any]
    errors: str
    files: dict[str, dict[str, dict[str, Any]]]
    told: list[Told]

    def outcomes(self, host: str) -> dict[str, str]:
        """Outcome by phase that a host was asked in, of this run."""
        line = next(line for line in self.report["hosts"] if line["host"] == host)
        return {answer["phase"]: answer["outcome"] for answer in line["answers"]}

    def answer(self, host: str, phase: str) -> dict[str, Any]:
        """What became of a phase on a host, as its file says."""
        found = self.files[host][phase]["fleet"]
        assert isinstance(found, dict)
        return found

    @property
    def waves(self) -> list[bool | None]:
        """What the gate behind each wave said; None: it was not reached."""
        return [wave["passed"] for wave in self.report["waves"]]

    @property
    def story(self) -> str:
        """What the run printed and why each wave's gate stayed shut: for whoever reads of a failure."""
        return "\n".join([self.errors[-20_000:], *(str(wave.get("why")) for wave in self.report["waves"])])

    @property
    def hooks(self) -> list[tuple[str, str]]:
        """(hook, host) in their order."""
        return [(line.hook, line.host) for line in self.told]


@dataclass(frozen=True)
class Controller:
    """A folder with an inventory of emulated hosts, the operator's hooks, and the results of what was asked.

    `home`: where Ansible keeps its connections; a short path, for sockets lie in it.
    """

    folder: Path
    home: Path
    hosts: dict[str, LabMachine]

    def set_up(self, intent: dict[str, Any]) -> None:
        """Write inventory, hooks and the hosts' keys, which must match. The intent is a variable of all hosts."""
        known, entries = "", {}
        for name, machine in self.hosts.items():
            kind, key = machine.shell("cat /etc/ssh/ssh_host_ed25519_key.pub").split()[:2]
            known += f"[127.0.0.1]:{machine.port} {kind} {key}\n"
            private = str(machine.folder / "key")
            entries[name] = {"ansible_port": machine.port, "ansible_ssh_private_key_file": private}
        for hook in ("drain", "undrain"):
            (self.folder / f"{hook}.yml").write_text(HOOK.format(hook=hook, folder=self.folder))
        (self.folder / "known_hosts").write_text(known)
        common = {
            "ansible_host": "127.0.0.1",
            "ansible_user": "root",
            "ansible_timeout": 30,  # to connect: an emulated sshd is slow to say its first word
            "ansible_ssh_common_args": f"-F none -o UserKnownHostsFile={self.folder / 'known_hosts'}",
            "hosttune_intent": intent,
            "hosttune_reboot_timeout": REBOOT_SECONDS,
            "hosttune_drain": str(self.folder / "drain.yml"),
            "hosttune_undrain": str(self.folder / "undrain.yml"),
        }
        (self.folder / "hosts.json").write_text(json.dumps({"all": {"vars": common, "hosts": entries}}))

    def ask(self, verb: str, *words: str) -> Asked:
        """Run `hosttune fleet VERB WORDS...` over the hosts, as somebody who has configured nothing of Ansible."""
        earlier = len(self._told())
        call = [sys.executable, "-c", "from hosttune.cli import main; main()", "fleet", verb]
        if verb in ("apply", "revert") and "--check" not in words:
            call.append("--yes")
        own = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
        done = subprocess.run(
            (*call, "-i", "hosts.json", "--results", "results", "-o", "json", *words),
            cwd=self.folder,
            env={**own, "ANSIBLE_HOME": str(self.home), "PYTHONPATH": str(TREE)},
            capture_output=True,
            text=True,
            timeout=FLEET_SECONDS,
            check=False,
        )
        assert done.stdout, done.stderr
        return Asked(done.returncode, json.loads(done.stdout), done.stderr, self._files(), self._told()[earlier:])

    def _told(self) -> list[Told]:
        log = self.folder / "hooks.log"
        return [Told(*line.split()) for line in log.read_text().splitlines()] if log.exists() else []

    def _files(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Each host's result files by phase, of this run and of earlier ones."""
        folders = {name: self.folder / "results" / name for name in self.hosts}
        return {
            name: {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
            for name, folder in folders.items()
        }
