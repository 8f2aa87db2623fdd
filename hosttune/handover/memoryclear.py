"""What a GPU's maker says of its memory after a reset: whether the GPU itself has cleared it.

The maker's tool (`Vendor.memory_clear`) is asked after a reset by the kernel, while vfio-pci or no driver has the GPU,
and only if it is installed. It reads the GPU's registers from user space, so never under a driver, and not where the
kernel forbids it (kernel_lockdown(7): direct PCI BAR access). What it says is evidence of the step `reset`, under
`memory_clear`; the search of the memory still decides. Not asked, or not supported by the GPU: the reset is judged as
without it. Asked, and it failed, did not answer in time, or was not understood: the reset is `unknown`.

What it changes in the GPU, a driver that takes the GPU sets anew. If hosttune is killed meanwhile, the tool ends by
itself: it begins with what it changes there, then it reads, and it waits less than its time limit.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from hosttune.discovery.configuration import lockdown
from hosttune.errors import CommandFailed, WriteFailed
from hosttune.gpu.vendor import MemoryClear
from hosttune.handover import binding
from hosttune.handover.targets import Target
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.handover import HandoverStep
from hosttune.settings.drivers import VFIO
from hosttune.settings.setting import driver_of

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
