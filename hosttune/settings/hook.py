"""hosttune's hook of libvirt: a script that libvirt calls before every start of a guest, by any program.

It refuses a guest that has a quarantined device, and records each device of the guest (`model.starts`). libvirt
looks for hooks only when its daemon starts, and runs the files of `qemu.d` since 6.5.0
(https://libvirt.org/hooks.html). It calls no hook when a device is attached to a running guest: that is not recorded
(docs/threats.md).
"""

from __future__ import annotations

import os
import re
from typing import Any, ClassVar

from hosttune.assets import shipped_text
from hosttune.errors import CommandFailed, Unreadable, WriteFailed
from hosttune.machine.system import System, state_in
from hosttune.model.quarantine import StartRecording
from hosttune.settings.setting import FILE, KEEP_STAGE, Setting, Targets, refuse

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


# --- the hook as a setting -------------------------------------------------------------------------------------
# Target: its file. Value: "installed"; None: no such file.
# libvirt's daemon looks for hooks only when it starts. hosttune does not restart it for this, because nothing waits
# for it; until then starts are not recorded, and `hosttune handover status` says so.

INSTALLED, FOREIGN, OLDER = "installed", "of another program", "of another version or state directory"
_OURS = "#!/bin/sh\n# Written by hosttune"


class LibvirtHook(Setting):
    """The hook, as a setting."""

    kind: ClassVar[str] = "libvirt-hook"
    scope: ClassVar[str] = FILE
    stage: ClassVar[int] = KEEP_STAGE
    none_is_value: ClassVar[bool] = True
    targets = Targets(PLACE.__eq__, "not the place of hosttune's hook", f"it is {PLACE}")

    def check(self, value: Any) -> None:
        """See Setting."""
        if value != INSTALLED:
            raise refuse(self.kind, self.target, f"{value!r} is not a value that it can have", f"it is {INSTALLED!r}")

    def waits_for(self, system: System) -> str | None:
        """See Setting."""
        if hook_text(state_in(system)) is None:
            return "the path of the state directory has characters that a shell would interpret"
        if self.read(system) == FOREIGN:
            return f"{self.target} is a file of another program: move it away"
        return None

    def places(self, system: System) -> tuple[str, ...]:
        """See Setting."""
        return (self.target,)

    def read(self, system: System) -> str | None:
        """See Setting."""
        data = system.read_bytes(self.target)
        if data is None:
            return None
        text = data.decode("utf-8", "replace")
        if text == hook_text(state_in(system)):
            return INSTALLED
        return OLDER if text.startswith(_OURS) else FOREIGN

    def agrees(self, live: Any, want: Any) -> bool:
        """See Setting. A revert cannot bring back a hook of another version: then no file is right."""
        return bool(live == want or (live is None and want == OLDER))

    def write(self, system: System, value: Any) -> str | None:
        """See Setting. A hook of another version is replaced; a revert cannot bring it back, and removes the file."""
        if self.read(system) == FOREIGN:
            raise WriteFailed(self.target, "a file that hosttune did not write: move it away")
        text = hook_text(state_in(system))
        if value != INSTALLED or text is None:
            system.remove(self.target)
            return None
        system.replace(self.target, text.encode(), MODE)
        recording = recording_of(system, state_in(system))
        return recording.why if recording is not None else None
