"""The interface of a benchmark: a value that defines its requirements, its commands and how their output is parsed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

from hosttune.bench.parse.answer import NotUnderstood, ParsedOutput
from hosttune.errors import CommandFailed
from hosttune.gpu.vendor import MeasuredPart
from hosttune.machine.system import System
from hosttune.model.host import Gpu, Host


class Ask(msgspec.Struct, frozen=True):
    """The request for a measurement.

    `gpus` and `parts` are not in use; each part is measured in a separate process. `seconds`: duration of the burn-in.
    `lacking`: the packages that the children's Python needs for these GPUs and does not have. `backends`: names of the
    backends that can load these GPUs. `watch` is the same as in `Bench`. `quiet` is None, or the reason why benchmarks
    that load the whole host must not run now (guests are running).
    """

    host: Host
    level: int
    gpus: tuple[Gpu, ...] = ()
    seconds: float = 300.0
    scratch: str | None = None
    peers: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    quiet: str | None = None
    parts: tuple[MeasuredPart, ...] = ()
    backends: frozenset[str] = frozenset()
    watch: str = ""


class BackendCommand(msgspec.Struct, frozen=True):
    """A command that is run `times` times, each within `timeout` seconds, and the pure function that parses its output.

    `metrics` and `subject` are what becomes unknown if the command gives no figure. `own`: the command can only give
    figures of this subject.
    """

    argv: tuple[str, ...]
    parse: Callable[[str], ParsedOutput]
    timeout: float
    metrics: tuple[str, ...]
    subject: str
    times: int = 1
    own: bool = False


class Backend(msgspec.Struct, frozen=True):
    """A source of figures. `available` returns the reason why it cannot be used here, None if it can.

    `covers`: the groups of figures that it measures. If several backends cover a group, the first available one
    measures it.
    """

    name: str
    covers: frozenset[str]
    available: Callable[[System, Ask], str | None]
    commands: Callable[[Ask, frozenset[str]], tuple[BackendCommand, ...]]
    levels: frozenset[int] = frozenset((1, 2, 3))


def installed(system: System, tool: str) -> str | None:
    """Return None if a tool is in the search path, else the reason as text."""
    folders = (os.environ.get("PATH") or "/usr/bin:/bin").split(":")
    if any(folder.startswith("/") and system.exists(f"{folder}/{tool}") for folder in folders):
        return None
    return f"{tool} is not installed"


def run(system: System, command: BackendCommand) -> ParsedOutput:
    """Run a command and return its parsed output, in the order of the runs. Raises CommandFailed and parser errors.

    Some tools exit non-zero and still print their verdicts to standard output (dcgmi): that output is parsed too.
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
    # Figures read under load have the GPU's address as subject, even if only a part of the GPU is measured.
    figures = (row for row in samples if not row.metric.startswith("load-"))
    if command.own and any(row.subject != command.subject for row in figures):
        raise NotUnderstood(command.argv[0], f"figures of another device than {command.subject}")
    facts: Mapping[str, str] = {name: value for answer in answers for name, value in answer.facts.items()}
    return ParsedOutput(
        samples,
        answers[-1].results,
        tuple(lost for answer in answers for lost in answer.lost),
        facts,
    )
