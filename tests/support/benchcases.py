"""The benchmark tools' outputs as cases, and a machine whose commands answer what a test says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from hosttune.bench.parse import child, dcgm, nccl, nvbandwidth
from hosttune.bench.parse.answer import ParsedOutput
from hosttune.bench.parse.tools import parse_cyclictest, parse_fio, parse_mlc, parse_perftest
from hosttune.errors import CommandFailed
from hosttune.machine.capture import Capture

CASES = Path(__file__).parents[1] / "cases" / "bench"

_PARSERS: Mapping[str, Callable[[str], ParsedOutput]] = {
    "nvbandwidth": nvbandwidth.parse,
    "dcgm": dcgm.parse,
    "child": child.parse,
    "fio": partial(parse_fio, subject="/scratch"),
    "cyclictest": partial(parse_cyclictest, subject="guests' CPUs"),
    "perftest": partial(parse_perftest, subject="mlx5_0->host2"),
    "mlc": parse_mlc,
}


def parser(case: Path) -> Callable[[str], ParsedOutput]:
    """The parser of a case, by its folder; for collectives also by its name."""
    if case.parent.name == "nccl":
        return partial(nccl.parse, collective=case.stem.rpartition("-")[0])
    return _PARSERS[case.parent.name]


def cases() -> list[Path]:
    return sorted(CASES.glob("*/*.txt"))


class Bench(Capture):
    """A tree taken for a live machine; `answers` maps what a command line contains to what it prints.

    An answer that starts with "!" is the reason why the command fails.
    """

    def __init__(self, root: Path, answers: Mapping[str, str], tools: tuple[str, ...] = ()) -> None:
        self.tools = tools
        super().__init__(str(root))
        self.captured = False
        self.complete = True
        self.answers = answers
        self.ran: list[tuple[str, ...]] = []

    def exists(self, path: str) -> bool:
        return path.rpartition("/")[2] in self.tools or super().exists(path)

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        self.ran.append(argv)
        line = " ".join(argv)
        for pattern, text in self.answers.items():
            if re.search(pattern, line):
                if text.startswith("!"):
                    raise CommandFailed(argv, text[1:])
                return text
        raise CommandFailed(argv, "not installed")
