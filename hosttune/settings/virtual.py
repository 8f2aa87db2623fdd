"""What a network function keeps for one of its virtual ones, whatever the guest that has it wants.

Rates, spoof check, trust, GUIDs. Target: "PHYSICAL/NUMBER". They go with the virtual function. Not MAC and VLAN:
libvirt sets these by the definition at each start of the guest, and others when it stops (virHostdevRestoreNetConfig).
Sources: ip-link(8) (vf NUM); iproute2, ip/ipaddress.c (print_vfinfo): vlan, qos and rates that are 0 may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from hosttune.errors import Unreadable, WriteFailed
from hosttune.machine.iplink import FLAGS, GUIDS, Settings, read_function, uplink
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.values import FrozenMap, is_address
from hosttune.settings.drivers import SriovVfs
from hosttune.settings.setting import EditedInPlace, MadeByAnother, Targets, refuse

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
