"""Pull mode, on the host itself: asks the installed hosttune and leaves the answers where a collector takes them.

    /usr/bin/python3 -E -s /opt/hosttune/pull/bootstrap_pull.py

Run by hosttune-pull.service. Beside it lie `pull.json` (what to do, written by playbooks/bootstrap.yml) and
`hosttune_answer.py` (what the end of a command means, the same as when a controller asks). The files are laid out as a
fleet's results folder, RESULTS/HOST/PHASE.json, with the same key `fleet`. While hosttune is being asked, and when it
gives no answer, the file says unknown: an older answer never stays in its place.

It runs under the host's own /usr/bin/python3, which may be older than what hosttune needs (3.9 on RHEL 9), so it
keeps to that language.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

from hosttune_answer import NoAnswer, judged

# What is asked: only what changes nothing. The report names GPUs and products from `discover`.
PHASES = ("discover", "validate")
PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def arguments(config: dict, phase: str) -> list[str]:
    """The command of a phase, as a list; nothing of it goes through a shell."""
    root = ["--root", config["root"]] if config.get("root") else []
    level = ["--level", str(config["level"])] if phase == "validate" else []
    return [config["command"], phase, *root, *level, "-o", "json"]


def folder_of(host: str) -> str:
    """The name of a host's folder: each byte that is not [A-Za-z0-9._-], and a leading ".", as %XX."""
    name = "".join(
        chr(byte) if chr(byte) in PLAIN else f"%{byte:02X}" for byte in host.encode("utf-8", "surrogateescape")
    )
    return f"%2E{name[1:]}" if name.startswith(".") else name


def no_document(phase: str, host: str, why: str) -> dict:
    """What stands in the file where the command printed no document: never a pass."""
    if phase != "validate":
        return {"schema": "hosttune.answer/v1"}
    result = {
        **{"check": "host-answers", "subject": "host", "outcome": "unknown", "actual": why},
        "hint": "journalctl -u hosttune-pull on the host",
    }
    return {"schema": "hosttune.validation/v1", "host": host, "verdict": "unknown", "results": [result]}


def write(path: str, document: dict) -> None:
    """The file, whole or not at all, readable by its group. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o750, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(prefix=".new-", dir=os.path.dirname(path))
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file)
            os.fchmod(file.fileno(), 0o640)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def ask(config: dict, phase: str) -> tuple[dict, dict]:
    """The document of a phase (its own keys, untouched) and what became of it, as in the key `fleet`."""
    asked = {"phase": phase, "version": config.get("version"), "gate": "verdict"}
    code = None
    try:
        done = subprocess.run(
            arguments(config, phase), capture_output=True, timeout=config["timeout"], check=False, cwd="/",
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        code = done.returncode
        facts = judged(asked, False, code, done.stdout, done.stderr.decode("utf-8", "replace"))
    except subprocess.TimeoutExpired:
        facts = {"outcome": "slow", "why": f"no answer within {config['timeout']} s"}
    except FileNotFoundError:
        facts = {"outcome": "not-installed", "why": f"there is no {config['command']}"}
    except OSError as error:
        facts = {"outcome": "unknown", "why": f"cannot be run: {error}"}
    except NoAnswer as error:
        facts = {"outcome": error.outcome, "why": str(error)}
    text = facts.get("document")
    document = json.loads(text) if text else no_document(phase, config["host"], facts["why"])
    return document, {**{name: facts.get(name) for name in ("outcome", "why", "verdict")}, "exit_code": code}


def visit(config: dict, phase: str) -> bool:
    """Ask, and leave the answer in its file; whether it is one, good or bad. Raises OSError."""
    path = os.path.join(config["results"], folder_of(config["host"]), f"{phase}.json")
    seal = {"host": config["host"], "phase": phase, "started": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())}
    waiting = "asked; no answer yet"
    seal_now = {**seal, "outcome": "unknown", "why": waiting}
    write(path, {**no_document(phase, config["host"], waiting), "fleet": seal_now})
    begun = time.monotonic()
    document, facts = ask(config, phase)
    write(path, {**document, "fleet": {**seal, **facts, "seconds": round(time.monotonic() - begun, 3)}})
    if facts["outcome"] != "ok":
        print(f"{phase}: {facts['outcome']}: {facts['why']}", file=sys.stderr)
    return facts["outcome"] in ("ok", "no")


def main() -> int:
    """0: every phase was answered (what the answers say is in the files). 1: one was not."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "pull.json"), encoding="utf-8") as file:
        config = json.load(file)
    answered = [visit(config, phase) for phase in PHASES]  # all of them, whatever the first one says
    return 0 if all(answered) else 1


if __name__ == "__main__":
    sys.exit(main())
