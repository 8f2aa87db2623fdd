"""What a network function keeps for one of its virtual ones, whatever the guest that has it wants.

Rates, spoof check, trust, GUIDs. Target: "PHYSICAL/NUMBER". They go with the virtual function. Not MAC and VLAN:
libvirt sets these by the definition at each start of the guest, and others when it stops (virHostdevRestoreNetConfig).
Sources: ip-link(8) (vf NUM); iproute2, ip/ipaddress.c (print_vfinfo): vlan, qos and rates that are 0 may be left out.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from hosttune.errors import Unreadable, WriteFailed
from hosttune.machine.iplink import FLAGS, GUIDS, Settings, read_function, uplink
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.values import FrozenMap, is_address
from hosttune.settings.drivers import SriovVfs
from hosttune.settings.setting import ByService, EditedInPlace, MadeByAnother, OfFunction, Targets, refuse

_TARGET = re.compile(r"(.{1,20})/(0|[1-9][0-9]{0,4})")
_HEX = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}(:[0-9a-f]{2}:[0-9a-f]{2})?")
_OF_LIBVIRT = frozenset(("address", "vlan", "qos", "protocol"))
_WANTED: Mapping[str, type] = {"max_tx": int, "spoofchk": bool, "trust": bool, **dict.fromkeys(GUIDS, str)}


class VirtualFunction(EditedInPlace, MadeByAnother):
    """See the module. None: there is no such virtual function."""

    kind: ClassVar[str] = "virtual-function"
    limit_seconds: ClassVar[float | None] = 60.0  # the firmware of the device answers
    none_is_value: ClassVar[bool] = True
    may_stop_midway: ClassVar[bool] = True
    targets = Targets(
        lambda target: (match := _TARGET.fullmatch(target)) and is_address(match[1]),
        "{1!r} is not a virtual function",
        "write it as 0000:41:00.0/0",
    )

    @property
    def made_by(self) -> tuple[str, str]:
        """See MadeByAnother."""
        return SriovVfs.kind, self._physical

    @property
    def _physical(self) -> str:
        return self.target.partition("/")[0]

    @property
    def _number(self) -> int:
        return int(self.target.partition("/")[2])

    def check(self, value: Any) -> None:
        """See Setting."""
        wrong = [
            name
            for name, item in (value.items() if isinstance(value, Mapping) else [("value", value)])
            if type(item) is not _WANTED.get(name) or (isinstance(item, str) and not _HEX.fullmatch(item))
        ]
        if wrong:
            raise refuse(self.kind, self.target, f"{wrong[0]} cannot be set so", f"it has {', '.join(_WANTED)}")

    def read(self, system: System) -> Settings | None:
        """See Setting."""
        if self.waits_for(system) is not None:
            return None
        interface, why = uplink(system, self._physical)
        settings = read_function(system, interface, self._number) if interface else None
        if settings is None:
            command = f"ip -j -d link show dev {interface}"
            raise Unreadable(self.target, why or f"{command} does not tell what it keeps for function {self._number}")
        return FrozenMap({name: value for name, value in settings.items() if name not in _OF_LIBVIRT})

    def waits_for(self, system: System) -> str | None:
        """See Setting."""
        there = system.link(f"{sysfs.function(self._physical, 'virtfn')}{self._number}") is not None
        return None if there else f"{self._physical} has no virtual function {self._number}"

    def edited(self, planned: Any, live: Any, want: Any) -> tuple[Any, tuple[str, ...]]:
        """See EditedInPlace."""
        return FrozenMap({**live, **want}), ()

    def agrees(self, live: Any, want: Any) -> bool:
        """See Setting. What is not asked for may have any value."""
        return isinstance(live, Mapping) and isinstance(want, Mapping) and {*want.items()} <= {*live.items()}

    def write(self, system: System, value: Any) -> None:
        """See Setting."""
        left = self.read(system)
        interface, why = uplink(system, self._physical)
        if left is None or interface is None:
            raise WriteFailed(self.target, why or "there is no such virtual function")
        for words in commands(left, value):
            system.change(("ip", "link", "set", "dev", interface, "vf", str(self._number), *words))
        system.forget()


def commands(left: Settings, want: Settings) -> list[tuple[str, ...]]:
    """Return the words of ip-link(8) that set what is not as wanted, one command for what is set together."""
    want = {**left, **want}  # a plan wants a part of them
    differs = {name for name, value in want.items() if left.get(name) != value}
    words: list[tuple[str, ...]] = []
    if "address" in differs:
        words.append(("mac", str(want["address"])))
    if differs & {"vlan", "qos", "protocol"}:
        proto = ("proto", str(want["protocol"])) if want["vlan"] and want["protocol"] != "802.1Q" else ()
        words.append(("vlan", str(want["vlan"]), "qos", str(want["qos"]), *proto))
    if differs & {"max_tx", "min_tx"}:
        words.append(("max_tx_rate", str(want["max_tx"]), "min_tx_rate", str(want["min_tx"])))
    words += [(option, "on" if want[name] else "off") for name, option in FLAGS.items() if name in differs]
    words += [(option, str(want[name])) for name, option in GUIDS.items() if name in differs]
    if "link_state" in differs:
        words.append(("state", str(want["link_state"])))
    return words


# --- the vGPU type ---------------------------------------------------------------------------------------------
# The vGPU type of a virtual function that its maker's own VFIO driver holds. Target: the function's PCI address.
# Value: the type's number as text, "0" for none. The numbers of types depend on this host's driver and are read from
# `creatable_vgpu_types`. `sriov-manage -d` of the GPU undoes it. Source: NVIDIA virtual GPU software documentation,
# "Creating an NVIDIA vGPU on a Linux with KVM Hypervisor that Uses a Vendor-Specific VFIO Framework".

NONE = "0"
_AGAIN = "systemctl restart nvidia-vgpud nvidia-vgpu-mgr, then apply again"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


class VgpuTypeSetting(ByService, OfFunction):
    """See the module."""

    kind: ClassVar[str] = "vgpu-type"
    limit_seconds: ClassVar[float | None] = 60.0  # the driver asks its manager

    @property
    def file(self) -> str:
        """Return the path of the file that holds the type."""
        return f"{self.path}/nvidia/current_vgpu_type"

    def check(self, value: Any) -> None:
        """See Setting. A plan gives a type; only a revert sets none."""
        if not isinstance(value, str) or not _NUMBER.fullmatch(value) or value == NONE:
            raise refuse(self.kind, self.target, f"{value!r} is not a vGPU type", "its number in creatable_vgpu_types")

    def read(self, system: System) -> str | None:
        """See Setting. None if the function does not exist, or offers no vGPU."""
        text = system.read(self.file)
        if text is not None and not _NUMBER.fullmatch(text):
            raise Unreadable(self.file, f"reads {text[:40]!r}")
        return text

    def waits_for(self, system: System) -> str | None:
        """See Setting. sriov-manage creates and removes functions (`gpu.vgpu_set`)."""
        if system.exists(self.file):
            return None
        return "the function is not there, or offers no vGPU: /usr/lib/nvidia/sriov-manage -e ADDRESS of its GPU"

    def write(self, system: System, value: Any) -> None:
        """See Setting.

        A type is only changed from or to none, because any other type is a vGPU that someone else made.
        """
        now = self.read(system)
        if now == value:
            return
        if now is None:
            raise WriteFailed(self.file, "the function is not there, or offers no vGPU", errno.ENOENT)
        if NONE not in (now, value):
            raise WriteFailed(self.file, f"the function carries vGPU type {now}: it is in use", errno.EBUSY)
        if value != NONE:
            self._check_offered(system, str(value))
        try:
            system.write(self.file, str(value))
        except WriteFailed as error:
            why = f"the driver refuses type {value} ({error.reason}): {_AGAIN}"
            raise WriteFailed(self.file, why, error.errno) from error

    def _check_offered(self, system: System, value: str) -> None:
        path = self.file.replace("current_vgpu_type", "creatable_vgpu_types")
        offered = [line.partition(":")[0].strip() for line in (system.read(path) or "").splitlines()]
        if value not in offered:
            which = f"it lists {', '.join(offered)}" if any(offered) else "the list is empty"
            raise WriteFailed(path, f"type {value} cannot be made now, {which}: {_AGAIN}")
