"""Hosts that answer as they are told, in hosttune's place, for `hosttune fleet` through the real playbooks.

A host's behaviour is a file of its name in a folder: lines "VERB DO", where DO is `wait` (until `let_go`, at most
40 s), `verdict WORD`, `exit CODE`, `cut` or `reboot`; without a file all is well. Each call is noted, so that a test
sees who was asked what.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STUB = """
import json, pathlib, sys, time
folder, host, verb = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
if "--intent" in sys.argv:
    sys.stdin.read()
with open(folder / "calls", "a") as calls:
    calls.write(f"{host} {verb}\\n")
told = folder / host.replace("/", "_")
lines = [line.split() for line in told.read_text().splitlines()] if told.exists() else []
does = {words[1]: words[2] if len(words) > 2 else "" for words in lines if words[0] == verb}
give_up = time.monotonic() + 40
while "wait" in does and not (folder / "go").exists() and time.monotonic() < give_up:
    time.sleep(0.02)
verdict = does.get("verdict", "pass")
word = {"pass": "pass", "warn": "warn"}.get(verdict, verdict)
if verb == "discover":
    document = {"schema": "hosttune.host/v1", "hostname": host, "guests": []}
elif verb == "validate":
    result = {"check": "pcie-link", "subject": "0000:41:00.0", "outcome": word, "actual": "x"}
    document = {"schema": "hosttune.validation/v1", "host": host, "level": 0, "verdict": verdict,
                "results": [result], "samples": []}
else:
    document = {"schema": "hosttune.result/v1", "host": host, "verb": verb, "changed": True,
                "reboot_required": "reboot" in does, "entries": [], "drift": []}
text = json.dumps(document)
print(text[: len(text) // 2] if "cut" in does else text)
sys.exit(int(does.get("exit", verdict not in ("pass", "warn"))))
"""
HOSTTUNE = Path(sys.executable).with_name("hosttune")


@dataclass(frozen=True)
class Stubs:
    """So many hosts in one folder, and `hosttune fleet` over them."""

    folder: Path
    hosts: tuple[str, ...]

    @property
    def results(self) -> Path:
        """The results folder."""
        return self.folder / "results"

    def inventory(self, hosts: Sequence[str] | None = None, **variables: Any) -> str:
        """The inventory over all these hosts, or some."""
        (self.folder / "stub.py").write_text(_STUB)
        (self.folder / "told").mkdir(exist_ok=True)
        command = [sys.executable, str(self.folder / "stub.py"), str(self.folder / "told"), "{{ inventory_hostname }}"]
        shared = {"ansible_connection": "local", "hosttune_command": command, **variables}
        path = self.folder / "inventory.yml"
        listed = self.hosts if hosts is None else hosts
        path.write_text(json.dumps({"all": {"vars": shared, "hosts": {host: {} for host in listed}}}))
        return str(path)

    def tell(self, host: str, text: str) -> None:
        """What a host does from now on; nothing: all well."""
        (self.folder / "told").mkdir(exist_ok=True)
        (self.folder / "told" / host).write_text(text)

    def let_go(self) -> None:
        """Hosts that wait go on; returns when nothing of any run is at work, a killed one's included."""
        (self.folder / "told" / "go").touch()
        until(lambda: not self._at_work())
        (self.folder / "told" / "go").unlink()

    def _at_work(self) -> list[str]:
        """Processes of the controller and of hosts: all have the folder as their HOME."""
        mark = f"HOME={self.folder}".encode()
        found = []
        for process in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # it has ended
                if mark in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                    found.append(process)
        return found

    def calls(self) -> list[str]:
        """The calls since this was last asked, as "HOST VERB"."""
        path = self.folder / "told" / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def words(self, verb: str, *words: str) -> list[str]:
        """The command line of a verb."""
        yes = ["--yes"] if verb in ("apply", "revert") and "--check" not in words else []
        return [str(HOSTTUNE), "fleet", verb, "-i", str(self.folder / "inventory.yml"), "--results",
                str(self.results), *yes, *words]  # fmt: skip

    def fleet(self, verb: str, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """`hosttune fleet VERB WORDS…` to its end."""
        done = subprocess.run(
            self.words(verb, *words), capture_output=True, text=True, check=False, cwd=self.folder,
            env=self.environment(), timeout=240,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def start(self, verb: str, *words: str) -> subprocess.Popen[bytes]:
        """The same, begun."""
        return subprocess.Popen(
            self.words(verb, *words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=self.folder,
            env=self.environment(), start_new_session=True,
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Ours, with nothing of the user's Ansible in it, and temporary files where the test can see them."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "HOSTTUNE_"))}
        return {**kept, "HOME": str(self.folder), "TMPDIR": str(self.folder), "SECRET_OF_MINE": "hunter2"}

    def answer(self, host: str, phase: str) -> dict[str, Any]:
        """The key `fleet` of a result file."""
        found: dict[str, Any] = json.loads((self.results / host / f"{phase}.json").read_text())["fleet"]
        return found

    def record(self) -> list[dict[str, Any]]:
        """The lines of the record."""
        path = self.results / "run.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else []


def until(claim: Any, seconds: float = 180.0) -> None:
    """Wait until a claim holds."""
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def end(child: subprocess.Popen[bytes], number: signal.Signals) -> str:
    """Send a signal and wait for the end; what was on stderr."""
    child.send_signal(number)
    _, err = child.communicate(timeout=180)
    return err.decode()
