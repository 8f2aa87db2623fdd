"""The search of a GPU's memory in a hand-over, by what the search program answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hosttune.errors import CommandFailed, HosttuneError
from hosttune.gpu.nvidia_memory import count_aligned
from hosttune.handover.gpumemory import search
from hosttune.handover.targets import Target
from hosttune.machine.scratch import Scratch
from hosttune.model.handover import HandoverStep

GIB = 1 << 30
# As on an H200 (149,554,200,576 bytes written, of 150,109,880,320), in proportion.
GOOD: tuple[dict[str, Any], ...] = (
    {"bytes": 99 * GIB, "total": 100 * GIB, "found": 0, "nonzero": 0},
    {"bytes": 99 * GIB, "total": 100 * GIB, "seen": True},
    {"bytes": 99 * GIB, "total": 100 * GIB, "found": 0, "nonzero": 0},
)
TARGET = Target(address="0000:41:00.0", kind="gpu", identity="x", search="hosttune.gpu.nvidia_memory")


class Answering(Scratch):
    """Answers the search program's commands in order."""

    def __init__(self, root: Path, answers: list[Any]) -> None:
        (root / ".hosttune").mkdir(parents=True, exist_ok=True)
        (root / ".hosttune/scratch").touch()
        super().__init__(str(root))
        self.answers, self.asked = answers, list[str]()

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        assert argv[1:4] == ("-P", "-m", TARGET.search)
        assert (argv[5], len(bytes.fromhex(argv[6]))) == (TARGET.address, 16)
        self.asked.append(argv[4])
        answer = self.answers[len(self.asked) - sum(one == "reset" for one in self.asked) - 1]
        return answer if isinstance(answer, str) else json.dumps(answer)


def searched(root: Path, answers: list[Any], memory: int | None = 100 * GIB, reset: str = "done") -> HandoverStep:
    """The step, for these answers; the order of what is done is checked."""
    system = Answering(root, answers)

    def again() -> HandoverStep:
        system.asked.append("reset")
        return HandoverStep(step="reset", outcome=reset, method="bus reset", why="refused")  # type: ignore[arg-type]

    found = search(system, TARGET, memory, again)
    assert system.asked == ["search", "write", "reset", "search"][: len(system.asked)]
    return found


def test_memory_that_reads_as_zeros_before_and_after(tmp_path: Path) -> None:
    found = searched(tmp_path, list(GOOD))
    assert (found.outcome, found.why) == ("done", None)
    assert found.evidence is not None
    assert (found.evidence["reset"], found.evidence["found"]["bytes"]) == ("bus reset", 99 * GIB)


@pytest.mark.parametrize(
    ("number", "change", "outcome"),
    [
        (0, {"nonzero": 4096}, "unknown"),  # what the last tenant, or the driver, has left
        (2, {"nonzero": 1}, "unknown"),
        (0, {"nonzero": None}, "unknown"),
        (0, {"nonzero": False}, "unknown"),
        (2, {"found": False}, "unknown"),
        (2, {"found": 3}, "failed"),
        (2, {"found": None}, "unknown"),
        (1, {"seen": False}, "unknown"),  # what is read is not what was written: zeros mean nothing
        (1, {"seen": None}, "unknown"),
        (0, {"bytes": 94 * GIB}, "unknown"),
        (1, {"bytes": 12 * GIB}, "unknown"),  # one MIG instance
        (2, {"bytes": "all"}, "unknown"),
        (2, {"bytes": 101 * GIB}, "unknown"),
        (2, {"bytes": True}, "unknown"),
    ],
)
def test_what_is_not_proven(tmp_path: Path, number: int, change: dict[str, Any], outcome: str) -> None:
    answers = [one | change if at == number else one for at, one in enumerate(GOOD)]
    assert searched(tmp_path, answers).outcome == outcome


def test_without_a_program_or_a_size_or_a_reset(tmp_path: Path) -> None:
    assert searched(tmp_path, list(GOOD), memory=None).outcome == "unknown"
    assert searched(tmp_path, list(GOOD), reset="failed").why == (
        "the reset after the pattern was written is failed: refused"
    )
    other = Target(address="0000:41:00.0", kind="gpu", identity="x")
    assert search(Answering(tmp_path, []), other, GIB, lambda: HandoverStep(step="reset", outcome="done")).outcome == (
        "unknown"
    )
    with pytest.raises(HosttuneError, match="on a scratch root programs are recorded, not run"):
        searched(tmp_path, [""])
    for answer in ("[]", "{"):
        with pytest.raises(CommandFailed, match="its answer cannot be read"):
            searched(tmp_path, [answer])


def test_the_pattern_is_counted_where_it_can_be() -> None:
    pattern = bytes(range(1, 17))
    assert count_aligned(pattern * 3, pattern) == 3
    assert count_aligned(b"x" + pattern * 3, pattern) == 0
    assert count_aligned(pattern + b"x" * 16 + pattern, pattern) == 2
    assert count_aligned(bytes(64), pattern) == 0
    assert count_aligned(bytes(64), bytes(16)) == 4
