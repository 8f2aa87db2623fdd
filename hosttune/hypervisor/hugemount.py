"""A hugetlbfs for guests' pages, as a systemd mount unit of hosttune. Target: one of `hugetlbfs.PLACES`.

Value: the size of its pages in bytes, if it is mounted now and at every boot; None, if neither. While the two differ:
{"now": bytes or null, "boot": bytes, null, or what is wrong with the unit}. A file system that was mounted by others is
used, but never counts as hosttune's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from hosttune.errors import CommandFailed, InUse, Unreadable, WriteFailed
from hosttune.hypervisor.daemon import daemon_unit, jobs, restart_daemon
from hosttune.linux.hugetlbfs import (
    FOLDER_FOUND,
    MOUNTS,
    OURS,
    PLACES,
    default_page_bytes,
    libvirts_folder,
    page_size_of,
    read_hugetlbfs,
    unit_link,
    unit_name,
    unit_path,
    unit_text,
)
from hosttune.machine.system import System
from hosttune.settings.setting import AT_BOOT, FILE, KEEP_STAGE, NOW, NowAndAtBoot, ServedByOthers, Targets, refuse

NOT_ENABLED, FOREIGN = "not enabled", "a unit that hosttune did not write"
_SYSTEMD_RUNS = "/run/systemd/system"  # sd_booted(3)
_SECONDS = 60.0
_MOST_NAMED = 5


class Mount(NowAndAtBoot, ServedByOthers):
    """See the module."""

    kind: ClassVar[str] = "mount"
    scope: ClassVar[str] = FILE
    stage: ClassVar[int] = KEEP_STAGE
    none_is_value: ClassVar[bool] = True
    may_stop_midway: ClassVar[bool] = True  # the unit's file may exist before the unit is enabled and started
    targets = Targets(page_size_of, "not a mount point of hosttune", f"one of {', '.join(PLACES.values())}")

    def check(self, value: Any) -> None:
        """See Setting."""
        if type(value) is not int or value != page_size_of(self.target):
            raise refuse(
                self.kind, self.target, f"{value!r} is not its page size", f"it is {page_size_of(self.target)}"
            )

    def places(self, system: System) -> tuple[str, ...]:
        """See Setting."""
        return (unit_path(self.target),)

    def waits_for(self, system: System) -> str | None:
        """See Setting."""
        if system.captured or system.exists(_SYSTEMD_RUNS):
            return None
        size = (page_size_of(self.target) or 0) >> 20
        return f"systemd does not run here: mount -t hugetlbfs -o pagesize={size}M hugetlbfs {self.target}"

    def read(self, system: System) -> Any:
        """See Setting."""
        return self.joined({NOW: self._mounted(system), AT_BOOT: self._unit(system)})

    def served(self, system: System, live: Any, want: Any) -> str | None:
        """See Setting."""
        if self.parts(live) == {NOW: want, AT_BOOT: None}:
            return "already mounted, not by hosttune: used as it is"
        return None

    def write(self, system: System, value: Any) -> str | None:
        """See Setting."""
        want = self.parts(value)
        if want[NOW] is not None and want[NOW] == want[AT_BOOT]:
            held, mounted = self._held(system), self._mounted(system)
            if held is not None and not held.startswith(OURS):
                raise WriteFailed(
                    unit_path(self.target), "there is a unit that hosttune did not write: move it away first"
                )
            if mounted not in (None, page_size_of(self.target)):
                raise WriteFailed(self.target, "pages of another size are mounted there: unmount them first")
            folder_there = system.exists(self.target) if held is None else FOLDER_FOUND in held
            system.replace(unit_path(self.target), unit_text(self.target, folder_found=folder_there).encode(), 0o644)
            system.change(("systemctl", "daemon-reload"), timeout=_SECONDS)
            system.change(("systemctl", "enable", unit_name(self.target)), timeout=_SECONDS)
            system.change(("systemctl", "start", unit_name(self.target)), timeout=_SECONDS)
            return None
        # The unit goes last: it shows an interrupted change.
        held = self._held(system)
        ours = held is not None and held.startswith(OURS)
        note = None
        if want[NOW] is None:
            note = self._unmount(system, ours=ours, keep_folder=held is None or FOLDER_FOUND in held)
        if ours and want[AT_BOOT] in (None, NOT_ENABLED):
            system.change(("systemctl", "disable", unit_name(self.target)), timeout=_SECONDS)
        if ours and want[AT_BOOT] is None:
            system.remove(unit_path(self.target))
            system.change(("systemctl", "daemon-reload"), timeout=_SECONDS)
        return note

    # --- present state ---------------------------------------------------------------------------------------

    def _mounted(self, system: System) -> int | None:
        text = next((text for path in MOUNTS if (text := system.read(path)) is not None), None)
        if text is None:
            raise Unreadable(MOUNTS[0], "it is not there")
        default_bytes = default_page_bytes(system.read("/proc/meminfo") or "")
        mounts = {mount.path: mount.size_bytes for mount in read_hugetlbfs(text, default_bytes)}
        return (mounts[self.target] or 0) if self.target in mounts else None

    def _unit(self, system: System) -> int | str | None:
        held = self._held(system)
        if held is None:
            return None
        if not held.startswith(OURS):
            return FOREIGN
        enabled = system.captured or system.link(unit_link(self.target)) is not None
        return page_size_of(self.target) if enabled else NOT_ENABLED

    def _held(self, system: System) -> str | None:
        return system.read(unit_path(self.target))

    # --- unmount ---------------------------------------------------------------------------------------------

    def _unmount(self, system: System, *, ours: bool, keep_folder: bool) -> str | None:
        """Unmount, and restart libvirt so that it notices.

        Otherwise libvirt would put a guest's memory into the remaining folder.
        """
        mounted = self._mounted(system) is not None
        # Not mounted, but hosttune's unit exists: an earlier attempt may have been interrupted before libvirt was
        # restarted.
        tell = system.exists(libvirts_folder(self.target)) if mounted else ours
        tell = tell and daemon_unit(system) is not None
        if tell and (doing := "; ".join(jobs(system))):
            raise InUse(self.target, f"libvirt must be restarted, and it is working: {doing}")
        if mounted:
            if users := ", ".join(users_of(system, self.target)):
                raise InUse(self.target, users)
            try:
                system.change(("systemctl", "stop", unit_name(self.target)), timeout=_SECONDS)
            except CommandFailed as error:
                if "busy" in error.output:
                    raise InUse(self.target, error.output.strip()) from error
                raise
            if not system.rehearses and self._mounted(system) is not None:
                # The unit stays: it shows that there is something left to revert.
                raise WriteFailed(self.target, f"it is mounted still after systemctl stop {unit_name(self.target)}")
        if not keep_folder and system.exists(self.target) and not system.list(self.target):
            system.change(("rmdir", self.target), timeout=_SECONDS)
        if tell:
            restart_daemon(system)
            return f"{daemon_unit(system)} was restarted: running guests went on"
        return None


def users_of(system: System, path: str) -> Iterator[str]:
    """Yield the first few processes with files of a file system open or mapped: "NAME (process N)".

    Checked before an unmount. A guest has the file system in its own mount namespace, which the host's unmount does not
    reach: it would continue to use a file system that the host no longer shows. proc(5): PID/fd, PID/maps.
    """
    count = 0
    for number in (name for name in system.list("/proc") if name.isdecimal()):
        if count < _MOST_NAMED and _uses(system, number, f"{path}/"):
            count += 1
            yield f"{(system.read(f'/proc/{number}/comm') or 'unknown').strip()} (process {number})"


def _uses(system: System, process: str, below: str) -> bool:
    folder = f"/proc/{process}"
    try:
        return f" {below}" in (system.read(f"{folder}/maps") or "") or any(
            (system.link(f"{folder}/fd/{name}") or "").startswith(below) for name in system.list(f"{folder}/fd")
        )
    except Unreadable:
        return False  # it has ended, or is a kernel thread; if it does use files, the unmount fails
