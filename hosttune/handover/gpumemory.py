"""The memory of a GPU: after its reset all of it must read as zeros; a pattern shows that the search can see.

First all memory that can be allocated is searched, before the host writes anything: what the tenant left would be
data. Then a pattern is written into all of it and read in the same program, the GPU is reset, and all is searched
again. Only memory that the driver gives to a program is seen. Whose data are
that are not zeros is unknown.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from hosttune.discovery.configuration import lockdown
from hosttune.errors import BadInput, CommandFailed, HosttuneError, WriteFailed
from hosttune.gpu.vendor import MemoryClear
from hosttune.handover import binding
from hosttune.handover.targets import Target
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.handover import HandoverStep, StepOutcome
from hosttune.model.jsontext import plain_json
from hosttune.settings.drivers import VFIO
from hosttune.settings.setting import driver_of

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


# --- what the maker says ---------------------------------------------------------------------------------------
# What a GPU's maker says of its memory after a reset: whether the GPU itself has cleared it.
# The maker's tool (`Vendor.memory_clear`) is asked after a reset by the kernel, while vfio-pci or no driver has the
# GPU, and only if it is installed. It reads the GPU's registers from user space, so never under a driver, and not
# where the kernel forbids it (kernel_lockdown(7): direct PCI BAR access). What it says is evidence of the step
# `reset`, under `memory_clear`; the search of the memory still decides. Not asked, or not supported by the GPU: the
# reset is judged as without it. Asked, and it failed, did not answer in time, or was not understood: the reset is
# `unknown`.
# What it changes in the GPU, a driver that takes the GPU sets anew. If hosttune is killed meanwhile, the tool ends by
# itself: it begins with what it changes there, then it reads, and it waits less than its time limit.

EVIDENCE, NOT_ASKED = "memory_clear", "not asked"
_LOCKED = ("integrity", "confidentiality")


def times(system: System, target: Target) -> tuple[float, float]:
    """Return by how much the time limit and the estimate of a reset grow, in seconds."""
    tool = target.memory_clear
    return (tool.limit_seconds, tool.estimate_seconds) if tool is not None and _there(system, tool) else (0.0, 0.0)


def announced(system: System, target: Target) -> str:
    """Return what a plan says besides the reset; "" if the tool is not there."""
    tool = target.memory_clear
    return f", then {tool.tool} is asked" if tool is not None and _there(system, tool) else ""


def asked(system: System, target: Target, step: HandoverStep) -> HandoverStep:
    """Return the step of a reset with what the maker's tool says in its evidence. Raises WriteFailed, Unreadable."""
    tool = target.memory_clear
    if tool is None or step.outcome != "done":
        return step
    began = time.monotonic()
    said: dict[str, Any] = {"tool": tool.tool, "version": None, "answer": None}
    why = None
    try:
        said["version"] = _version(system, tool)
        against = "it is not installed" if said["version"] is None else _against(system, target, tool, step)
        if against is not None:
            said |= {"answer": NOT_ASKED, "why": against}
        else:
            output = system.change(tool.command(target.address), timeout=tool.limit_seconds)
            said["answer"] = tool.heard(output, target.address)
            why = None if said["answer"] is not None else "its output is not understood"
    except CommandFailed as error:
        why = f"{error.reason}: {tool.failure(error.output)}" if error.output else error.reason
    said |= {"seconds": round(time.monotonic() - began, 1)} | ({} if why is None else {"why": why})
    told = msgspec.structs.replace(step, evidence={**(step.evidence or {}), EVIDENCE: said})
    if why is None:
        return told
    text = f"reset, but whether it has cleared its memory is unknown: {tool.tool}: {why}"
    return msgspec.structs.replace(told, outcome="unknown", why=text)


def _version(system: System, tool: MemoryClear) -> str | None:
    """Return the version of the tool; None if it is not installed. Raises CommandFailed if it cannot be used."""

    def live() -> str | None:
        try:
            return system.run(tool.probe)
        except CommandFailed as error:
            if error.reason == "not installed":
                return None
            raise

    text = system.query(tool.tool, live)
    version = tool.version(text) if text is not None else None
    if text is not None and version is None:
        raise CommandFailed(tool.probe, "its answer is not understood")
    return version


def _there(system: System, tool: MemoryClear) -> bool:
    """Return whether the tool is installed; also one that cannot be used."""
    try:
        return _version(system, tool) is not None
    except CommandFailed:
        return True


def _against(system: System, target: Target, tool: MemoryClear, step: HandoverStep) -> str | None:
    """Return why a GPU cannot be asked; None if it can. Raises WriteFailed if something uses it."""
    method = (step.evidence or {}).get("reset_method")
    if method not in tool.after:
        return (
            f"cannot ask: it was reset by {method}, and the answer is about a reset by {', '.join(sorted(tool.after))}"
        )
    mode = lockdown(Reader(system)).value
    if mode in _LOCKED:
        return f"cannot ask: the kernel's lockdown ({mode}) forbids access to the registers"
    like = [name for name in system.list(sysfs.PCI_DEVICES) if target.address in name and name != target.address]
    maker = system.read(sysfs.function(target.address, "vendor"))
    for name in like:
        if system.read(sysfs.function(name, "vendor")) == maker:
            return f"cannot ask: its address is a part of that of {name}, which the tool would open too"
    binding.refuse_users(system, target.address)
    driver = driver_of(system, target.address)
    if driver not in (None, VFIO):
        raise WriteFailed(sysfs.function(target.address, "driver"), f"{driver} has it: its registers are not read then")
    return None
