"""System → QEMU processes, also those that libvirt does not own. A capture has them in `qemu-processes`."""

from __future__ import annotations

import re
from itertools import pairwise

from hosttune.errors import Unreadable
from hosttune.machine.reader import Reader, number

PROCESSES = "qemu-processes"
MAX_PID = 1 << 22  # PID_MAX_LIMIT, include/linux/threads.h
QEMU_COMMS = ("qemu-", "kvm")  # the kernel cuts process names to 15 bytes: qemu-system-x86, qemu-kvm, kvm


def qemu_lines(reader: Reader) -> list[str]:
    """Return one line "PID NAME" for each QEMU process; NAME is from its option -name, empty without one."""
    return (reader.query(PROCESSES, lambda: _find(reader)) or "").splitlines()


def qemu_processes(reader: Reader) -> list[tuple[int, str]]:
    """Return the id of each QEMU process with the name of its guest (its option -name; empty without one)."""
    rows = [line.partition(" ") for line in qemu_lines(reader)]
    return [(process, name) for text, _, name in rows if (process := number(text, MAX_PID))]


def _find(reader: Reader) -> str:
    paths = []
    for process in reader.names("/proc"):
        if process.isdecimal() and _is_qemu(reader, process):
            arguments = (reader.text(f"/proc/{process}/cmdline") or "").split("\0")
            program = arguments[0].rpartition("/")[2]
            # To find out what QEMU can do, libvirt starts one without a machine.
            if program.startswith(("qemu-system", "qemu-kvm", "kvm")) and not any(
                option == "-machine" and value.startswith("none") for option, value in pairwise(arguments)
            ):
                name = arguments[arguments.index("-name") + 1] if "-name" in arguments[:-1] else ""
                paths.append(f"{process} {_guest_name(name)}")
    return "\n".join(paths)


def _is_qemu(reader: Reader, process: str) -> bool:
    """Return whether a process or its program is called so: `-name NAME,process=TITLE` and wrappers (NixOS:
    .qemu-system-x86_64-wrapped) change the first. Its command line is not asked: to read that can wait without end.
    """
    try:
        program = reader.system.link(f"/proc/{process}/exe") or ""
    except Unreadable:  # another user's
        program = ""
    names = (reader.text(f"/proc/{process}/comm") or "", program.rpartition("/")[2])
    return any(name.lstrip(".").startswith(QEMU_COMMS) for name in names)


def _guest_name(option: str) -> str:
    """Return the name in QEMU's option -name ("guest=a,debug-threads=on"); a comma in the name is doubled."""
    name = re.match(r"(?:guest=)?((?:[^,]|,,)*)", option, re.DOTALL)
    return " ".join(name[1].replace(",,", ",").splitlines()) if name else ""
