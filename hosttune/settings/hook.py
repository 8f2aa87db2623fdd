"""hosttune's hook of libvirt: a script that libvirt calls before every start of a guest, by any program.

It refuses a guest that has a quarantined device, and records each device of the guest (`model.starts`). libvirt
looks for hooks only when its daemon starts, and runs the files of `qemu.d` since 6.5.0
(https://libvirt.org/hooks.html). It calls no hook when a device is attached to a running guest: that is not recorded
(docs/threats.md).
"""

from __future__ import annotations

import os
import re

from hosttune.assets import shipped_text
from hosttune.errors import CommandFailed, Unreadable
from hosttune.machine.system import System
from hosttune.model.quarantine import StartRecording

PLACE = "/etc/libvirt/hooks/qemu.d/hosttune"
MODE = 0o755
_INEXACT = 2.0  # seconds: the kernel tells its boot to the second
# The file that each daemon writes when it starts, before it looks for hooks (remote_daemon.c, virPidFileAcquirePath).
DAEMONS = {"libvirtd": "/run/libvirtd.pid", "virtqemud": "/run/virtqemud.pid"}
_PATH = r"/[A-Za-z0-9_.+-]+(?:/[A-Za-z0-9_.+-]+)*"  # no characters that a shell would interpret


def hook_text(state: str) -> str | None:
    """Return the script for a state directory; None for a path that cannot be written in it."""
    if not re.fullmatch(_PATH, state):
        return None
    return shipped_text("templates", "libvirt-hook.sh").replace("@STATE@", state)


def recording_of(system: System, state: str) -> StartRecording | None:
    """Return whether the hook records every start from now on; None if that cannot be read."""
    try:
        text = system.read(PLACE)
        if text is None:
            return StartRecording(active=False, why=f"{PLACE} is not installed")
        if text.rstrip("\n") != (hook_text(state) or "").rstrip("\n"):
            return StartRecording(active=False, why=f"{PLACE} is not what this hosttune writes there")
        changed, mode = (None, "755") if system.captured else _stat(system, "%.9Z %a", PLACE)
        why = None if changed is None else _not_called(system, changed, mode)
    except (Unreadable, CommandFailed):
        return None
    return StartRecording(active=why is None, why=why, since=changed if why is None else None)


def _not_called(system: System, changed: str, mode: str) -> str | None:
    """Return why libvirt would not call the hook; None if it calls it. Raises CommandFailed, Unreadable.

    A daemon that runs must have started after the file was made or last changed in any way (its ctime), by its own file
    and by the kernel's: the clock may have been set in between, in either direction.
    """
    if not int(mode, 8) & 0o100:
        return f"{PLACE} is not executable"
    for name, path in DAEMONS.items():
        pid = (system.read(path) or "").strip()
        if not pid.isdecimal() or (system.read(f"/proc/{pid}/comm") or "").strip() != name:
            continue  # it does not run: it finds the hook when it starts
        (started,) = _stat(system, "%.9Y", path)
        if float(started) <= float(changed) or _started(system, pid) + _INEXACT <= float(changed):
            return f"{name} has run since before the hook was installed: restart it (running guests go on)"
    return None


def _started(system: System, pid: str) -> float:
    """Return when a process started, by the clock as it is now, to the second. Raises Unreadable. Source: proc(5)."""
    process, kernel = (system.read(path) for path in (f"/proc/{pid}/stat", "/proc/stat"))
    boot = re.search(r"^btime ([0-9]+)$", kernel or "", re.MULTILINE)
    fields = (process or "").rpartition(")")[2].split()  # the name before it may have any characters
    if boot is None or len(fields) < 20 or not fields[19].isdecimal():
        raise Unreadable(f"/proc/{pid}/stat", "when it started is unknown")
    return int(boot[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _stat(system: System, form: str, path: str) -> list[str]:
    return system.run(("stat", "-c", form, "--", path)).split()
