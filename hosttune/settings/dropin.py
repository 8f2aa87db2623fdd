"""Whole files of hosttune that make settings last over a reboot. Target: one of the paths listed here.

Value: the text; None for no file. A plan is untrusted, and these files take effect as root at boot. So a text is
accepted only if it is exactly one that hosttune writes there. A file at that path that hosttune did not write is left
alone.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any, ClassVar

from hosttune.errors import CommandFailed, WriteFailed
from hosttune.machine.system import System
from hosttune.settings.drivers import UDEV_RULES, udev_rules
from hosttune.settings.setting import FILE, KEEP_STAGE, Setting, Targets, refuse

BOOT_UNIT = "/etc/systemd/system/hosttune-boot.service"
UNIT_NAME = "hosttune-boot.service"
_ENABLED = f"/etc/systemd/system/multi-user.target.wants/{UNIT_NAME}"
OURS = "# Written by hosttune"  # the first line of each of these files
_NOT_ENABLED = "# not enabled\n"
_PATH = re.compile(r"/[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+)*")  # no characters that systemd would interpret
_CARD = re.compile(
    r"KERNEL==\"([0-9a-f:.]{12})\",(?: ATTR\{vendor\}==\"0x([0-9a-f]{4})\", ATTR\{device\}==\"0x([0-9a-f]{4})\",)?"
)
_UDEV_RUNS, _SYSTEMD_RUNS = "/run/udev/control", "/run/systemd/system"  # sd_booted(3) for the second
_LONGEST = 1 << 20

_UNIT = """\
# Written by hosttune, whole; do not edit: `hosttune revert` takes it away.
# After= and Before= only order units that start anyhow (systemd.unit(5)): each of these may be absent. Those before
# which this one stands wait until it has ended, well or not. Their sockets are not named: a service is After= the
# basic system, which waits for all sockets, and a call that comes early waits for the service behind its socket.
[Unit]
Description=Set again what hosttune has applied and a reboot has undone
After=systemd-modules-load.service systemd-sysctl.service systemd-udev-trigger.service
After=tuned.service cpupower.service cpufrequtils.service
Before=libvirtd.service virtqemud.service libvirt-guests.service
Before=nvidia-persistenced.service nvidia-dcgm.service
{order}=nvidia-fabricmanager.service nvidia-vgpud.service nvidia-vgpu-mgr.service
RequiresMountsFor={places}

[Service]
Type=oneshot
RemainAfterExit=yes
{environment}# A "-" before a command: its failure is no failure of the unit (systemd.service(5)).
ExecStartPre=-udevadm settle --timeout=120
ExecStart={command} apply --boot
# Off by default for a oneshot: what hangs must not keep the guests from starting for good.
TimeoutStartSec=15min

[Install]
# Wanted, not required: the boot goes on without it (systemd.unit(5), Wants=).
WantedBy=multi-user.target
"""


def own_command() -> str:
    """Return the absolute path of the running hosttune."""
    called = os.path.abspath(sys.argv[0])
    return (
        called if os.path.basename(called) == "hosttune" else os.path.join(os.path.dirname(sys.executable), "hosttune")
    )


def own_state() -> str | None:
    """Return the state directory that the environment names; None for the usual one."""
    named = os.environ.get("HOSTTUNE_STATE")
    return os.path.abspath(named) if named else None


def boot_unit(command: str, state: str | None, *, by_services: bool = False) -> str | None:
    """Return the unit that runs `COMMAND apply --boot` after a boot; None if a path cannot be written in a unit.

    `by_services`: it sets what only services of the GPUs' maker can set, so it runs after them; else before them.
    """
    places = [command, *((state,) if state else ())]
    if not all(_PATH.fullmatch(path) for path in places):
        return None
    environment = f"Environment=HOSTTUNE_STATE={state}\n" if state else ""
    order = "After" if by_services else "Before"
    return _UNIT.format(command=command, environment=environment, places=" ".join(places), order=order)


def ruled(text: str) -> dict[str, str | None]:
    """Return the devices that a text of the udev rules gives to vfio-pci, with the ids that it asks for."""
    return {address: f"{vendor}:{device}" if vendor else None for address, vendor, device in _CARD.findall(text)}


def _is_rules(text: str) -> bool:
    ruled_devices = ruled(text)
    return text != "" and text == udev_rules(ruled_devices, ruled_devices)


def _is_own_unit(text: str) -> bool:
    # The second form: a scratch root has its state inside, so the environment does not matter.
    return any(
        text == boot_unit(own_command(), state, by_services=late)
        for state in (own_state(), None)
        for late in (False, True)
    )


# path -> whether a text is one that hosttune writes there now
FILES: dict[str, Callable[[str], bool]] = {UDEV_RULES: _is_rules, BOOT_UNIT: _is_own_unit}


class DropIn(Setting):
    """See the module."""

    kind: ClassVar[str] = "drop-in"
    scope: ClassVar[str] = FILE
    stage: ClassVar[int] = KEEP_STAGE
    none_is_value: ClassVar[bool] = True
    may_stop_midway: ClassVar[bool] = True  # a unit's file may exist before the unit is enabled
    targets = Targets(FILES.__contains__, "not a file of hosttune", f"one of {', '.join(sorted(FILES))}")

    def check(self, value: Any) -> None:
        """See Setting."""
        if value is not None and not (
            isinstance(value, str) and len(value) < _LONGEST and value.startswith(OURS) and FILES[self.target](value)
        ):
            raise refuse(self.kind, self.target, "not what hosttune writes there", "plan again with this hosttune")

    def places(self, system: System) -> tuple[str, ...]:
        """See Setting."""
        return (self.target,)

    def waits_for(self, system: System) -> str | None:
        """See Setting."""
        if self.target == BOOT_UNIT and not system.captured and not system.exists(_SYSTEMD_RUNS):
            return "systemd does not run here: have `hosttune apply --boot` run at boot by other means"
        if self.target == BOOT_UNIT and not system.captured and not system.exists(own_command()):
            return f"there is no {own_command()} for it to run: apply with an installed hosttune"
        return None

    def read(self, system: System) -> str | None:
        """See Setting. The text of a unit that is not enabled begins with "# not enabled"."""
        data = system.read_bytes(self.target)
        if data is None:
            return None
        text = data.decode("utf-8", "replace")
        on = self.target != BOOT_UNIT or system.captured or system.link(_ENABLED) is not None
        return text if on else _NOT_ENABLED + text

    def write(self, system: System, value: Any) -> str | None:
        """See Setting."""
        held = system.read_bytes(self.target)
        if held is not None and not held.startswith(OURS.encode()):
            raise WriteFailed(self.target, "there is a file that hosttune did not write: move it away first")
        if self.target == BOOT_UNIT:
            _put_unit(system, value)
            return None
        if value is None:
            system.remove(self.target)
        else:
            system.replace(self.target, value.encode())
        if not system.exists(_UDEV_RUNS):
            return None
        try:
            system.change(("udevadm", "control", "--reload"), timeout=30.0)
        except CommandFailed as error:
            return f"udev was not notified: {error.reason}"
        return None


def _put_unit(system: System, value: str | None) -> None:
    """Write a unit and enable it, or disable and remove it.

    On removal the file goes last: while it exists, an interrupted change can still be detected.
    """
    enabled = value is not None and not value.startswith(_NOT_ENABLED)
    if value is None and system.read_bytes(BOOT_UNIT) is None:
        return
    if value is not None:
        system.replace(BOOT_UNIT, value.removeprefix(_NOT_ENABLED).encode())
    if enabled:
        system.change(("systemctl", "daemon-reload"))
    system.change(("systemctl", "enable" if enabled else "disable", UNIT_NAME))
    if value is None:
        system.remove(BOOT_UNIT)
        system.change(("systemctl", "daemon-reload"))
