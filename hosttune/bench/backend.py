"""The seam: a benchmark is a value that says what it needs, which commands it runs and how their output is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hosttune.bench.parse.answer import Answer, NotUnderstood
from hosttune.errors import CommandFailed
from hosttune.gpu.vendor import Part
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host
from hosttune.system import System


@dataclass(frozen=True)
class Ask:
    """What is to be measured. `gpus` are free, and so are `parts`, each for a process of its own; `seconds` of burn-in.

    `libraries` that the children's Python has; `backends` by name that can load these GPUs, `watch` as in `Bench`.
    `quiet` is None, or why what loads the whole host must not run now (guests are running).
    """

    host: Host
    level: int
    gpus: tuple[Gpu, ...] = ()
    seconds: float = 300.0
    scratch: str | None = None
    peers: tuple[str, ...] = ()
    libraries: frozenset[str] = frozenset()
    quiet: str | None = None
    parts: tuple[Part, ...] = ()
    backends: frozenset[str] = frozenset()
    watch: str = ""


@dataclass(frozen=True)
class Command:
    """One command to run `times`, each within `timeout` seconds, and the pure reader of its output.

    `metrics` and `subject` name what is unknown if it gives nothing. `own`: no figure of another subject can come.
    """

    argv: tuple[str, ...]
    parse: Callable[[str], Answer]
    timeout: float
    metrics: tuple[str, ...]
    subject: str
    times: int = 1
    own: bool = False


@dataclass(frozen=True)
class Backend:
    """One source of figures. `available` gives the reason why it cannot be used here, None if it can.

    `covers` are the groups of figures that it gives: of several backends that cover one group, the first that is
    available measures it.
    """

    name: str
    covers: frozenset[str]
    available: Callable[[System, Ask], str | None]
    commands: Callable[[Ask, frozenset[str]], tuple[Command, ...]]
    levels: frozenset[int] = frozenset((1, 2, 3))


def installed(system: System, tool: str) -> str | None:
    """None where a tool is in the search path, else the reason in words."""
    folders = (os.environ.get("PATH") or "/usr/bin:/bin").split(":")
    if any(folder.startswith("/") and system.exists(f"{folder}/{tool}") for folder in folders):
        return None
    return f"{tool} is not installed"


def run(system: System, command: Command) -> Answer:
    """What a command's runs came to, in order. Raises CommandFailed and what its reader raises.

    Some tools exit non-zero with their verdicts on standard output (dcgmi): that output is read then.
    """
    answers = []
    for _ in range(command.times):
        try:
            text = system.run(command.argv, timeout=command.timeout)
        except CommandFailed as error:
            if "{" not in error.output:
                raise
            text = error.output
        answers.append(command.parse(text))
    samples = tuple(sample for answer in answers for sample in answer.samples)
    # What was read under load is named by the GPU's address, also where a part of it is measured.
    figures = (row for row in samples if not row.metric.startswith("load-"))
    if command.own and any(row.subject != command.subject for row in figures):
        raise NotUnderstood(command.argv[0], f"figures of another device than {command.subject}")
    facts: Mapping[str, str] = {name: value for answer in answers for name, value in answer.facts.items()}
    return Answer(
        samples,
        answers[-1].results,
        tuple(lost for answer in answers for lost in answer.lost),
        facts,
    )
