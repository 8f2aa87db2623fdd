"""Synthetic results of a fleet: the bundled example's validation on N hosts with seeded differences, written as the
playbooks write them (RESULTS/HOST/PHASE.json with the key `fleet`). No host was asked for any of it.
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from hosttune.bench.baselines import shipped
from hosttune.discovery.evidence import gather
from hosttune.fleet.record import Ended, Line, Members, RecordedRun, RunBegun, Stopped, WaveBegun, past_run
from hosttune.fleet.results import host_folder
from hosttune.model.fleet import Answer, FleetReport
from hosttune.model.host import Host
from hosttune.model.validation import CheckResult, Sample, Validation, verdict_of
from hosttune.model.values import to_builtins
from hosttune.report.draw import drawn
from hosttune.report.draw.html import page
from hosttune.report.draw.text import draw
from hosttune.report.fleet import fleet_report
from hosttune.report.validation import validation_report
from hosttune.rules.checks import checks, judge

EXAMPLE = Path(__file__).parents[2] / "examples" / "hgx-h200-8.tar.xz"
RUN = "20260301T093000Z-1"
HOSTILE_NAMES = (
    "<script>window.hacked=1</script>",
    "../../etc/passwd",
    "..",
    "line\nbreak\r\n# heading | cell",
    "\"'><img src=x onerror=window.hacked=1>",
    "]]></script>{{ 7*7 }}%",
    "\u202egpj.exe\x00\x1b[31m",
)
FAULTS = (
    ("pcie-link", "fail", "16 GT/s x16, both ends can do 32 GT/s", "reseat the board of {} or replace its riser"),
    ("ecc-errors", "fail", "3 uncorrected", "nvidia-smi --gpu-reset -i {}"),
    ("clock-reasons", "warn", "hw_slowdown", "look at power and cooling of {}"),
    ("numa-affinity", "unknown", "the node of this GPU is not known", "read the firmware's tables (dmesg)"),
    ("hugepages", "fail", "612 pages of 1 GiB", "hosttune apply with profile: host, then boot"),
    ("time-sync", "unknown", "timedatectl is not installed", "systemctl enable --now chrony"),
)
LOST: tuple[tuple[str, str], ...] = (
    ("unreachable", "ssh: connect to host port 22: Connection refused"),
    ("unreachable", "Host key verification failed."),
    ("slow", "no answer within 120 s"),
    ("died", "connection lost after the command began"),
    ("disk-full", "OSError: [Errno 28] No space left on device"),
    ("wrong-version", "hosttune 0.0.9 there, 0.1.0 here"),
    ("not-installed", "/opt/hosttune/bin/hosttune is not there"),
    ("unknown", "the output is cut after 4096 bytes"),
)


def recorded(waves: Sequence[Sequence[str]], *, asked: int, verb: str = "apply") -> RecordedRun:
    """A run as its record has it that ended in order after so many of its waves."""
    hosts = sum(map(len, waves))
    began = RunBegun(run=RUN, at="2026-03-01T09:30:00+00:00", verb=verb, version="0.1.0", hosts=hosts, waves=("1",))
    lines: list[Line] = [began]
    lines += [Members(run=RUN, wave=number, hosts=tuple(those)) for number, those in enumerate(waves, 1)]
    lines += [
        WaveBegun(run=RUN, at=began.at, wave=number, hosts=len(waves[number - 1])) for number in range(1, asked + 1)
    ]
    lines += [Stopped(run=RUN, at=began.at, why="it stopped")] if asked < len(waves) else []
    found = past_run((*lines, Ended(run=RUN, at=began.at, exit_code=1)))
    assert found is not None
    return found


def html(report: FleetReport) -> str:
    return page(fleet_report(report))


def unwrapped(page: str) -> str:
    """A page without what keeps its hyphened words whole."""
    return re.sub(r'<span class="w">(.*?)</span>', r"\1", page)


def markdown(report: FleetReport) -> str:
    return drawn(fleet_report(report), "md")


def junit(report: FleetReport) -> str:
    return drawn(fleet_report(report), "junit")


def printed(report: FleetReport, width: int = 100) -> str:
    out = io.StringIO()
    draw(fleet_report(report), Console(file=out, width=width, force_terminal=False, color_system=None))
    return out.getvalue()


def host_page(found: Validation, host: Host | None) -> str:
    return page(validation_report(found, host=host, baselines=shipped, checks=checks(False)))


def formats(report: FleetReport) -> list[str]:
    """The report as JSON, text, Markdown and HTML, each in one line."""
    return [" ".join(text.split()) for text in (report.to_json(), printed(report), markdown(report), html(report))]


@cache
def example() -> tuple[Host, tuple[CheckResult, ...]]:
    """The bundled host and what the checks find on it."""
    from hosttune.machine.opening import open_root

    evidence = gather(open_root(str(EXAMPLE)))
    return evidence.host, tuple(judge(evidence))


def figures(host: Host, draw: random.Random, *, slow: str | None = None) -> tuple[Sample, ...]:
    """Five runs of some metrics on each GPU; the GPU `slow` has half the bandwidth to the host."""
    kinds = (("h2d-ce", 55.5, "GB/s"), ("d2h-ce", 55.4, "GB/s"), ("gemm-bf16", 798.0, "TFLOP/s"),
             ("load-temperature", 61.0, "°C"))  # fmt: skip
    samples = []
    for metric, value, unit in kinds:
        for gpu in host.gpus:
            held = 0.5 if gpu.address == slow and metric == "h2d-ce" else 1.0
            middle = value * held * draw.gauss(1, 0.004)
            samples += [
                Sample(metric=metric, subject=gpu.address, value=round(middle * draw.gauss(1, 0.001), 3), unit=unit)
                for _ in range(5)
            ]
    whole = 470.0 * draw.gauss(1, 0.004)
    samples += [Sample(metric="all-reduce-1gib", subject="8 GPUs", value=round(whole, 2), unit="GB/s")] * 5
    samples += [Sample(metric="memory-copy", subject="node0->node0", value=round(whole / 2, 2), unit="GB/s")] * 5
    return tuple(samples)


def spoiled(results: tuple[CheckResult, ...], host: Host, draw: random.Random, faults: int) -> tuple[CheckResult, ...]:
    """The results with some faults of FAULTS put in, each on a GPU or on the host."""
    found = {(one.check, one.subject): one for one in results}
    for check, outcome, actual, hint in draw.sample(FAULTS, k=faults):
        names = (
            [one.address for one in host.gpus]
            if check in ("pcie-link", "ecc-errors", "clock-reasons", "numa-affinity")
            else ["host"]
        )
        for subject in draw.sample(names, k=min(len(names), draw.choice((1, 1, 2)))):
            found[check, subject] = CheckResult(
                check=check, subject=subject, outcome=outcome, expected=f"as {check} requires", actual=actual,  # type: ignore[arg-type]
                source=f"/sys/bus/pci/devices/{subject}" if ":" in subject else "/sys", hint=hint.format(subject),
            )  # fmt: skip
    return tuple(found.values())


def validation(name: str, draw: random.Random, *, faults: int = 0, slow: bool = False, level: int = 1) -> Validation:
    host, results = example()
    results = spoiled(results, host, draw, faults)
    return Validation(
        host=name,
        level=level,
        verdict=verdict_of(results),
        results=results,
        samples=figures(host, draw, slow=host.gpus[2].address if slow else None) if level else (),
        at="2026-03-01T09:30:00Z",
        version="0.1.0",
        facts={"driver": "580.95.05"},
    )


def lost(host: str, why: str) -> Validation:
    """The document that stands for a host without one."""
    result = CheckResult(check="host-answers", subject="host", outcome="unknown", actual=why, hint="ask it again")
    return Validation(host=host, verdict="unknown", results=(result,))


def write(folder: Path, answer: Answer, document: object | None = None) -> Path:
    """RESULTS/HOST/PHASE.json of one answer."""
    content: dict[str, Any] = to_builtins(document) if document is not None else {"schema": "hosttune.answer/v1"}
    place = folder / host_folder(answer.host)
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{answer.phase}{'.check' if answer.check else ''}.json"
    path.write_bytes(msgspec.json.encode({**content, "fleet": to_builtins(answer)}))
    return path


def write_validation(folder: Path, name: str, document: Validation, *, phase: str = "validate", run: str = RUN) -> None:
    bad = document.verdict in ("fail", "unknown")
    write(
        folder,
        Answer(host=name, phase=phase, run=run, outcome="no" if bad else "ok", exit_code=int(bad),
               verdict=document.verdict, seconds=3.5),
        document,
    )  # fmt: skip


def write_lost(folder: Path, name: str, outcome: str, why: str, *, phase: str = "validate", run: str = RUN) -> None:
    answer = Answer(host=name, phase=phase, run=run, outcome=outcome, why=why, verdict="unknown")  # type: ignore[arg-type]
    write(folder, answer, lost(name, why))


def write_discovered(folder: Path, name: str, *, run: str = RUN) -> None:
    host = msgspec.structs.replace(example()[0], hostname=name)
    write(folder, Answer(host=name, phase="discover", run=run, outcome="ok", exit_code=0), host)


def names(count: int) -> tuple[str, ...]:
    return tuple(f"gpu-{n:0{len(str(count))}d}.dc1.example.net" for n in range(1, count + 1))


def fleet(
    folder: Path, count: int, *, seed: int = 7, level: int = 1, hostile: bool = False, discovered: bool = True
) -> tuple[str, ...]:
    """N hosts: most well, one in ten with faults, one in fifteen without an answer, one in forty slow, one silent."""
    draw = random.Random(seed)
    found = [*names(count), *(HOSTILE_NAMES if hostile else ())]
    for n, name in enumerate(found):
        if discovered and n % 3 != 1:
            write_discovered(folder, name)
        if count > 4 and n == count // 2:
            continue  # not a word of it
        if n % 15 == 4:
            write_lost(folder, name, *LOST[n // 15 % len(LOST)])
            continue
        write_validation(
            folder, name, validation(name, draw, faults=1 + n % 3 if n % 10 == 2 else 0, slow=n % 40 == 3, level=level)
        )
    return tuple(found)
