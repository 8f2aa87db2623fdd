"""The memory of a GPU: after its reset all of it must read as zeros; a pattern shows that the search can see.

First all memory that can be allocated is searched, before the host writes anything: what the tenant left would be
data. Then a pattern is written into all of it and read in the same program, the GPU is reset, and all is searched
again. Only memory that the driver gives to a program is seen. Whose data are
that are not zeros is unknown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Literal

from hosttune.errors import BadInput, CommandFailed, HosttuneError
from hosttune.handover.memoryclear import EVIDENCE
from hosttune.handover.targets import Target
from hosttune.machine.system import System
from hosttune.model.handover import HandoverStep, StepOutcome
from hosttune.model.jsontext import plain_json

LIMIT_SECONDS, ESTIMATE_SECONDS = 5400.0, 480.0  # 150 GB: 210 s to search, 17 s to write (H200)
MemoryTask = Literal["search", "write"]
_LEAST = 0.95  # of the memory that the driver reports for the whole GPU


def search(system: System, target: Target, memory_bytes: int | None, reset: Callable[[], HandoverStep]) -> HandoverStep:
    """Write, reset (`reset` leaves the GPU on the host's driver), search. Raises CommandFailed, WriteFailed.

    `memory_bytes`: of the whole GPU; a part of it (a MIG instance) does not count as all.
    """
    if not target.search:
        return _step("unknown", None, "hosttune knows no way to search the memory of this maker's GPUs")
    if memory_bytes is None:
        return _step("unknown", None, "how much memory it has is unknown: its driver does not say")
    return searched(
        lambda task, pattern: ask(system, target.search, task, target.address, pattern), memory_bytes, reset
    )


def searched(
    asked: Callable[[MemoryTask, str], dict[str, Any]], memory_bytes: int | None, reset: Callable[[], HandoverStep]
) -> HandoverStep:
    """Search, write, reset, search. `asked`: the answer of the search program to a task with a pattern.

    `memory_bytes` None: the first answer has it; without it nothing is written.
    """
    pattern = os.urandom(16).hex()
    evidence: dict[str, Any] = {"memory_bytes": memory_bytes, "found": asked("search", pattern)}
    if memory_bytes is None:
        memory_bytes = evidence["memory_bytes"] = evidence["found"].get("memory_bytes")
        if type(memory_bytes) is not int or memory_bytes <= 0:
            return _step("unknown", None, "how much memory it has is unknown: its driver does not say")
    evidence["written"] = asked("write", pattern)
    step = reset()
    # what the maker's tool said of the memory, if there is one
    said = (step.evidence or {}).get(EVIDENCE)
    evidence |= {"reset": step.method, **({} if said is None else {EVIDENCE: said})}
    if step.outcome != "done":
        return _step("unknown", evidence, f"the reset after the pattern was written is {step.outcome}: {step.why}")
    evidence["found_after"] = asked("search", pattern)
    # what an answer lacks is unknown
    left = evidence["found_after"].get("found")
    if type(left) is int and left > 0:
        return _step("failed", evidence, f"the pattern was found {left} times after a reset: it does not clear memory")
    for name in ("found", "written", "found_after"):
        size = evidence[name].get("bytes")
        if type(size) is not int or not _LEAST * memory_bytes <= size <= memory_bytes:
            return _step("unknown", evidence, f"{name}: {size} of {memory_bytes} bytes: not all of its memory")
    if evidence["written"].get("seen") is not True or not _is_zero(left):
        return _step("unknown", evidence, "the pattern was not seen in the memory that it was written to")
    for name in ("found", "found_after"):
        data = evidence[name].get("nonzero")
        if not _is_zero(data):
            return _step("unknown", evidence, f"{name}: {data} bytes are not zero, and whose they are is unknown")
    return _step("done", evidence)


def _is_zero(value: object) -> bool:
    """Return whether an answer is the number 0; false is none."""
    return type(value) is int and value == 0


def ask(system: System, module: str, task: str, address: str, pattern: str) -> dict[str, Any]:
    """Return the answer of the program that searches a GPU's memory. Raises CommandFailed, HosttuneError."""
    argv = (sys.executable, "-P", "-m", module, task, address, pattern)
    text = system.change(argv, timeout=LIMIT_SECONDS / 3)
    if system.scratch and not text:
        what = "its memory was not searched: on a scratch root programs are recorded, not run"
        raise HosttuneError(what, where=module, hint="hand it over on the host itself")
    try:
        answer = plain_json(text, where=module)
    except BadInput as error:
        raise CommandFailed(argv, "its answer cannot be read", text[:200]) from error
    if not isinstance(answer, dict):
        raise CommandFailed(argv, "its answer cannot be read", text[:200])
    return answer


def _step(outcome: StepOutcome, evidence: dict[str, Any] | None, why: str | None = None) -> HandoverStep:
    method = "searched for data; pattern written, reset, searched" if evidence is not None else None
    return HandoverStep(step="erased", outcome=outcome, method=method, evidence=evidence, why=why)
