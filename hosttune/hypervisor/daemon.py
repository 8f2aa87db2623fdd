"""The libvirt daemon that runs the guests: its unit, what a restart would interrupt, and the restart.

Guests keep running during a restart: QEMU does not end with the daemon (its units have KillMode=process), and the
daemon finds its guests again. A job that it is doing for a guest (a migration, a snapshot, a start) is interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, ClassVar

from hosttune.discovery.libvirtd import DEFAULT_URI, URI_VARIABLE
from hosttune.errors import CommandFailed, InUse, Unreadable, WriteFailed
from hosttune.hypervisor.connection import CHANGE_SECONDS, ask, virsh
from hosttune.linux.hugetlbfs import FOUND, NOT_FOUND, libvirts_folder
from hosttune.machine.system import System
from hosttune.settings.setting import FILE, KEEP_STAGE, Disturbing, Remediable, Targets, refuse

# libvirt's modular and its monolithic daemon, by the socket that clients of qemu:///system use (libvirt daemons.rst).
_SOCKETS = {"virtqemud.service": "/run/libvirt/virtqemud-sock", "libvirtd.service": "/run/libvirt/libvirt-sock"}
# virsh domstate --reason, of a guest that libvirt is working on (libvirt-domain.h, virDomainPausedReason).
_WORK = ("starting up", "migrating", "saving", "dumping", "snapshot", "creating snapshot", "post-copy")


def daemon_unit(system: System) -> str | None:
    """Return the systemd unit of the system's daemon that runs the guests.

    None if there is none, or if hosttune uses another libvirt (HOSTTUNE_LIBVIRT_URI).
    """
    if not system.captured and _uri() != DEFAULT_URI:
        return None
    units = [unit for unit, socket in _SOCKETS.items() if system.exists(socket)]
    if not units:
        return "libvirtd.service" if system.captured else None
    return next((unit for unit in units if len(units) > 1 and _is_active(system, unit)), units[0])


def _uri() -> str:
    return os.environ.get(URI_VARIABLE) or DEFAULT_URI


def _is_active(system: System, unit: str) -> bool:
    if system.captured:
        return False
    try:
        system.run(("systemctl", "is-active", "--quiet", unit))
    except CommandFailed:
        return False
    return True


def jobs(system: System) -> Iterator[str]:
    """Yield the guests' jobs that a restart of libvirt would interrupt, or why they are unknown: a few words each."""
    if system.captured or daemon_unit(system) is None:
        return
    try:
        rows = (line.split(maxsplit=1) for line in ask(system, "list", "--uuid", "--name").splitlines())
        for uuid, name in [row for row in rows if len(row) == 2]:
            if doing := _doing(system, uuid):
                yield f"guest {name.strip()}: {doing}"
    except Unreadable as error:
        yield f"unknown, it cannot be asked: {error.reason}"


def _doing(system: System, uuid: str) -> str | None:
    try:
        state = ask(system, "domstate", "--reason", uuid)
        return next((work for work in _WORK if f"({work}" in state), None) or _job(ask(system, "domjobinfo", uuid))
    except Unreadable as error:
        if "failed to get domain" in error.reason or "not running" in error.reason:
            return None  # it ended after it was listed
        raise


def _job(info: str) -> str | None:
    """Return the job in the output of `virsh domjobinfo`; None if there is none."""
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in info.splitlines())}
    return None if facts.get("Job type", "None") in ("None", "") else f"a job ({facts.get('Operation', 'unknown')})"


def restart_daemon(system: System) -> None:
    """Restart the daemon and wait until it responds. Raises InUse while it has a job, WriteFailed, CommandFailed."""
    unit = daemon_unit(system)
    if unit is None:
        raise WriteFailed("libvirt", "no daemon of it has a socket in /run/libvirt: is it installed?")
    if doing := "; ".join(jobs(system)):
        raise InUse(unit, doing)
    system.change(("systemctl", "restart", unit), timeout=CHANGE_SECONDS)
    if not system.captured:
        system.run(virsh("--readonly", "list", "--uuid"), timeout=CHANGE_SECONDS)  # responds when its drivers are up


class LibvirtRestart(Disturbing, Remediable):
    """Whether the libvirt daemon has found a hugetlbfs. Target: its mount point. Value: "found" or "not found".

    libvirt looks for them only when it starts, so it is restarted. There is no revert, and none is needed: it does no
    harm if the daemon knows one more. `mount` restarts the daemon when that file system is unmounted.
    """

    kind: ClassVar[str] = "libvirt-restart"
    scope: ClassVar[str] = FILE
    stage: ClassVar[int] = KEEP_STAGE
    undone_later: ClassVar[bool] = False
    targets = Targets(
        lambda path: path.startswith("/") and path.isprintable() and "/../" not in f"{path}/" and len(path) <= 4096,
        "not a place where a file system is mounted",
    )

    def check(self, value: Any) -> None:
        """See Setting."""
        if value != FOUND:
            raise refuse(self.kind, self.target, f"{value!r} is not a value that it can have", f"it is {FOUND!r}")

    def waits_for(self, system: System) -> str | None:
        """See Setting."""
        if system.captured:
            return None
        if _uri() != DEFAULT_URI:
            return f"libvirt is not this system's own ({_uri()}): restart its daemon by hand"
        if daemon_unit(system) is None:
            return "no libvirt daemon has a socket in /run/libvirt: install libvirt, or start it"
        return None

    def read(self, system: System) -> str:
        """See Setting."""
        return FOUND if system.exists(libvirts_folder(self.target)) else NOT_FOUND

    def agrees(self, live: Any, want: Any) -> bool:
        """See Setting. "found" is as good as "not found" when the latter is wanted."""
        return bool(live in (FOUND, want))

    def write(self, system: System, value: Any) -> str | None:
        """See Setting."""
        if self.agrees(self.read(system), value):
            return None
        restart_daemon(system)
        return f"{daemon_unit(system)} was restarted: running guests went on"

    def disturbed(self, system: System) -> Iterator[str]:
        """See Setting."""
        yield from (f"libvirt must be restarted, and it is working: {text}" for text in jobs(system))

    @property
    def remedy(self) -> str | None:
        """See Setting."""
        return "libvirt does not take this mount: see hugetlbfs_mount in /etc/libvirt/qemu.conf"
