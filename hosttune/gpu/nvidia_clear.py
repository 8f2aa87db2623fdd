"""The word of NVIDIA's gpu-admin-tools on whether a GPU has cleared its memory since a bus reset. It needs no driver.

`--clear-memory` clears nothing itself. It waits until the GPU has booted, and then at most 5 seconds until a register
(`memory_clear_finished`) says that the GPU's firmware has cleared the memory; it assumes a bus reset before. A GPU that
does not say so is an exception, so exit status 1. On success it prints nothing about it, and exit status 0 is not
enough: on a GPU before Turing it only logs that clearing is not supported. So the GPU that it selected, and each line
that it logs as an error, are read too; both stand on the other stream.

It opens the configuration space and BAR 0 and 1 of the GPU (sysfs), keeps it in D0 while it runs, and leaves memory
decoding on; before Blackwell it writes two registers of the GPU's internal bus. Bridges are read alone. It does not
notice a driver on Hopper or newer. `--gpu-bdf` takes each GPU and NVSwitch whose address contains the one given.

Its own reset (`--reset-with-sbr`) is not used: it sets the bridge's register past the kernel, restores 8 registers of
the GPU, does not look for other devices on the bus, exits with 0 if it could not be made, and killed in between leaves
the bus in reset. The kernel's bus reset has none of these, and its answer is evidence.

Source: NVIDIA/gpu-admin-tools@82422cc (v2025.10.20): nvidia_gpu_tools.py (Gpu, NvidiaDevice, poll_register),
cli/main.py, cli/per_gpu.py, cli/per_device.py, pci/bridge.py, pci/devices.py (find_gpus_sysfs), README.md.
"""

from __future__ import annotations

import re

from hosttune.gpu.vendor import MemoryClear

TOOL = "nvidia_gpu_tools.py"
_OPTION = "--clear-memory"
# The tool logs to stderr.
_MERGED = ("sh", "-c", 'exec "$@" 2>&1', "sh")
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d,[\d:.]+ (DEBUG|INFO|WARNING|ERROR|CRITICAL) +(.*)")
_ERRORS = ("ERROR", "CRITICAL")
_MOST = 300  # characters of a reason


def version(text: str) -> str | None:
    """Return the version that an answer begins with; None if it is not this tool's."""
    match = re.match(r"NVIDIA GPU Tools version (\S{1,40})\n", text)
    return match[1] if match else None


def version_of_help(text: str) -> str | None:
    """Return the version of a tool that can be asked; None if it cannot, or is another one."""
    return version(text) if _OPTION in text else None


def heard(output: str, address: str) -> str | None:
    """Return "finished" or "not supported", as the tool says of the GPU; None if its output is not understood.

    `output`: of a command that ended with 0.
    """
    lines = _logged(output)
    chosen = [text for _, text in lines if text.startswith("Selected ")]
    gpu = re.fullmatch(
        rf"Selected (GPU {re.escape(address)} .{{1,60}}? 0x[0-9a-f]{{1,4}} BAR0 0x[0-9a-f]+)", "".join(chosen[:1])
    )
    if version(output) is None or gpu is None or len(chosen) != 1 or "Traceback" in output:
        return None
    errors = [text for level, text in lines if level in _ERRORS]
    if errors == [f"Clearing memory not supported on {gpu[1]}"]:
        return "not supported"
    return None if errors else "finished"


def failure(output: str) -> str:
    """Return what the tool says of its failure, on one line: its first error, else the end of its exception."""
    errors = [text for level, text in _logged(output) if level in _ERRORS]
    rest = [line for line in output.splitlines() if line.strip() and not _LOGGED.fullmatch(line)]
    return " ".join((errors[:1] or rest[-1:] or ["it says nothing"])[0].split())[:_MOST]


def _logged(output: str) -> list[tuple[str, str]]:
    """Return the lines that the tool logged, each with its level."""
    return [(match[1], match[2]) for line in output.splitlines() if (match := _LOGGED.fullmatch(line))]


MEMORY_CLEAR = MemoryClear(
    tool=TOOL,
    probe=(TOOL, "--help"),
    version=version_of_help,
    command=lambda address: (*_MERGED, TOOL, "--gpu-bdf", address, _OPTION),
    heard=heard,
    failure=failure,
    after=frozenset({"bus"}),
    # Blackwell, v2025.11.21: twice 15 s for the BARs, 10 s for the boot, 5 s for the memory.
    limit_seconds=60.0,
    estimate_seconds=5.0,
)
