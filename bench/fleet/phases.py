"""One phase on some hosts: against `ansible -m ping`, executions counted, `hosttune fleet` over the bare playbook."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path

from rows import Row

from fleet.hosts import BIN, EXAMPLE, INTENT, ROOT, inventory, names, scratch, unpack
from fleet.meter import Failed, in_turn, measure

HOSTS = 16
RUNNER_HOSTS = 96
FORKS = 4
ROUNDS = 5
RUNNER_ROUNDS = 3
PING_TIMES = 1.5
OVERHEAD = 0.10
# Phases of each playbook: apply and revert have a validation before and one after.
PHASES = {"discover": 1, "plan": 1, "apply": 3, "validate": 1, "handover": 1, "revert": 3}
# 1: the answer is no, as a simulated host's full benchmarks answer; 2 and 4 are ansible-playbook's for failed hosts.
ANSWERED = (0, 1, 2, 4)


def phases(work: Path) -> list[Row]:
    """The three comparisons."""
    base = unpack(EXAMPLE, work / "base")
    return [*against_ping(base, work), *counted(base, work), *runner(base, work)]


def playbook(name: str, hosts: Path, results: Path, *words: object, **variables: object) -> list[object]:
    """The command line of one of hosttune's playbooks."""
    given = {"hosttune_results": str(results), "hosttune_intent": str(INTENT), "hosttune_level": 0, **variables}
    given |= {"hosttune_hosts": "all", "hosttune_report": False}
    extra = ["-f", str(FORKS), "-e", json.dumps(given), *map(str, words)]
    return [BIN / "ansible-playbook", "-i", hosts, *extra, ROOT / f"playbooks/{name}.yml"]


def against_ping(base: Path, work: Path) -> list[Row]:
    """CPU a host-phase of discover and validate, against a ping of the same hosts and the command run alone."""
    hosts = inventory(work / "ping.ini", [(name, base) for name in names(HOSTS)])
    ping = partial(measure, [BIN / "ansible", "-i", hosts, "-f", str(FORKS), "all", "-m", "ping"], cwd=ROOT)
    rows = []
    for phase, words in (("discover", ["discover"]), ("validate", ["validate", "--level", "0"])):
        alone = partial(measure, [BIN / "hosttune", *words, "-o", "json", "--root", base], codes=(0, 1))
        ours = partial(measure, playbook(phase, hosts, work / "results"), cwd=ROOT, codes=ANSWERED)
        pinged, cost, own = in_turn(ROUNDS, ping, ours, alone)
        bound = PING_TIMES * pinged.cpu / HOSTS + own.cpu
        rows += [
            Row(
                f"CPU a host of phase {phase}, {HOSTS} hosts",
                f"{cost.cpu / HOSTS:.2f} s",
                f"≤ {PING_TIMES}× `ansible -m ping` ({pinged.cpu / HOSTS:.2f} s) + the command alone ({own.cpu:.2f} s)",
                cost.cpu / HOSTS <= bound,
            )
        ]
    return rows


def counted(base: Path, work: Path) -> list[Row]:
    """Remote executions a host and phase, counted in the connection."""
    roots = [(name, scratch(base, work / "counted" / name)) for name in names(2)]
    hosts = inventory(work / "counted.ini", roots, connection="counted")
    rows = []
    for phase, phases_of in PHASES.items():
        found = executions(hosts, work / f"{phase}.counted", phase, work / "counted-results")
        every = {kinds.get("exec", 0) for kinds in found.values()}
        files = sum(sum(kinds.values()) - kinds.get("exec", 0) for kinds in found.values())
        holds = every == {phases_of} and not files and len(found) == len(roots)
        figure = f"{', '.join(map(str, sorted(every))) or 'none'}; files sent: {files}"
        rows.append(Row(f"remote executions a host of `{phase}.yml`", figure, f"{phases_of}; 0", holds))
    return rows


def executions(hosts: Path, noted: Path, phase: str, results: Path) -> dict[str, Counter[str]]:
    """What the connection of each host did in one playbook: how many executions, files sent and fetched."""
    noted.unlink(missing_ok=True)
    env = {"FLEET_COUNTED": str(noted), "ANSIBLE_CONNECTION_PLUGINS": str(ROOT / "bench/fleet/connection_plugins")}
    command = playbook(phase, hosts, results, hosttune_waves=["100%"])
    measure(command, cwd=ROOT, env=env, codes=ANSWERED)
    found: dict[str, Counter[str]] = {}
    for line in noted.read_text("utf-8").splitlines():
        host, kind = line.rsplit(" ", 1)
        found.setdefault(host, Counter())[kind] += 1
    return found


def runner(base: Path, work: Path) -> list[Row]:
    """`hosttune fleet validate` (ansible-runner, live progress, judgement, report) over the bare playbook."""
    hosts = inventory(work / "runner.ini", [(name, base) for name in names(RUNNER_HOSTS)])
    fleet = [
        BIN / "hosttune", "fleet", "validate", "-i", hosts, "--level", "0", "--forks", str(FORKS),
        "--results", work / "fleet-results", "-o", "json",
    ]  # fmt: skip
    bare = partial(measure, playbook("validate", hosts, work / "bare-results"), cwd=ROOT, codes=ANSWERED)
    ours = partial(measure, fleet, cwd=ROOT, codes=(0, 1), output=work / "fleet.json")
    plain, whole = in_turn(RUNNER_ROUNDS, bare, ours)
    _all_there(work / "fleet-results", RUNNER_HOSTS)
    return [
        _over(f"`hosttune fleet validate` over the bare playbook, {RUNNER_HOSTS} hosts: wall", plain.wall, whole.wall),
        _over("… CPU", plain.cpu, whole.cpu),
    ]


def _over(what: str, plain: float, whole: float) -> Row:
    more = whole / plain - 1
    return Row(what, f"{plain:.1f} s → {whole:.1f} s: {more:+.0%}", f"≤ +{OVERHEAD:.0%}", more <= OVERHEAD)


def _all_there(results: Path, count: int) -> None:
    """Whether every host has a whole validation. Raises Failed."""
    found = [json.loads(path.read_bytes()) for path in results.glob("*/validate.json")]
    answered = [document for document in found if document["fleet"]["outcome"] in ("ok", "no")]
    if len(answered) != count:
        raise Failed(f"{len(answered)} of {count} hosts answered")
