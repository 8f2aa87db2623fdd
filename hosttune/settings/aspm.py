"""Active State Power Management (ASPM) of a link. Target: the address of one end, usually the port above.

Value: the states that both ends have enabled, as in `PciDevice.aspm`: "off", "L0s", "L1", "L0s L1". The value is a
mapping if the ends differ, if the kernel's switches contradict the ends, or if substates are on that a revert must
switch on again: address -> states, "link" -> names of the kernel's switches that are on, "apart" -> names of the
switches that contradict the ends.

ASPM is set in two places. One is bits 1:0 of link control at each end. The other is the kernel's own switches
(Documentation/ABI/testing/sysfs-bus-pci, `link/l0s_aspm`…; on the function below the port). They set both ends, and do
nothing if the kernel already has the requested value (drivers/pci/pcie/aspm.c, pcie_config_aspm_link). setpci and
firmware change the bits without the kernel noticing. So both places are read, and each is written if it differs. PCIe
5.0, 5.4.1.3: L1 is disabled at the downstream end first, so the port is written last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hosttune.linux.pciconfig import ASPM, decode
from hosttune.machine.system import System
from hosttune.model.values import FrozenMap
from hosttune.settings.pcie import ADDRESS, OfRegister, below, real_path
from hosttune.settings.registers import LINK_ASPM, config_of, write_field
from hosttune.settings.setting import DEVICES

SWITCHES = {"l0s_aspm": "L0s", "l1_aspm": "L1"}
SUBSTATES = ("l1_1_aspm", "l1_2_aspm", "l1_1_pcipm", "l1_2_pcipm")  # cleared with l1_aspm, but not set again with it
LINK, APART = "link", "apart"
_FACING_DOWN = ("root-port", "downstream-port")


class Aspm(OfRegister):
    """See the module."""

    kind: ClassVar[str] = "aspm"
    may_stop_midway: ClassVar[bool] = True  # two ends, several switches
    values = ASPM

    def effective(self, system: System) -> Any:
        """See Setting. Read from the registers of both ends, as in the host document."""
        ends = self._states(system)
        if self.target not in ends:
            return None
        return ends[self.target] if len(set(ends.values())) == 1 else FrozenMap(ends)

    def read(self, system: System) -> Any:
        """See Setting."""
        ends = self._states(system)
        if self.target not in ends:
            return None
        switches = _switches(system, self._folder(system))
        states = ends[self.target]
        alike = set(ends.values()) == {states}
        if not switches:
            return states if alike else FrozenMap(ends)
        on = [name for name, value in switches.items() if value == "1"]
        if "l1_aspm" not in on:  # substates have no effect without it
            on = [name for name in on if name in SWITCHES]
        apart = _apart(states, switches) if alike else []
        if alike and not apart and SWITCHES.keys() >= set(on):
            return states
        return FrozenMap({**ends, LINK: " ".join(on) or "off"} | ({APART: " ".join(apart)} if apart else {}))

    def write(self, system: System, value: Any) -> str | None:
        """See Setting. The registers of the ends are written only if the switches did not set the wanted states."""
        folder = self._folder(system)
        switches = _switches(system, folder)
        before = self._states(system)
        whole = dict.fromkeys(before, value)
        states = {end: words for end, words in value.items() if end in whole} if isinstance(value, Mapping) else whole
        wanted = _wanted(value, switches)
        _set_switches(system, folder, switches, wanted)
        now = self._states(system)
        if now == before and any(wanted[name] != switches[name] for name in wanted if name in SWITCHES):
            now = dict.fromkeys(
                before, " ".join(state for name, state in SWITCHES.items() if wanted.get(name) == "1") or "off"
            )  # for a rehearsal; live, the read-back shows it
        notes = [
            write_field(system, end, LINK_ASPM, ASPM.index(words))
            for end, words in _port_last(states, self.ends(system))
            if now.get(end) != words
        ]
        return "; ".join(filter(None, notes)) or None

    def agrees(self, live: Any, want: Any) -> bool:
        """See Setting. Substates are ignored if the ends are as wanted, unless "off" is wanted."""
        if not (isinstance(live, Mapping) and isinstance(want, str)):
            return super().agrees(live, want)
        ends = all(states == want for end, states in live.items() if end not in (LINK, APART))
        return ends and APART not in live and (want != "off" or live.get(LINK, "off") == "off")

    def ends(self, system: System) -> tuple[str, ...]:
        """Return the functions at both ends of the link, the port above last; virtual functions are not ends."""
        path = real_path(system, self.target)
        if decode(config_of(system, self.target)).port_type not in _FACING_DOWN:
            path = path.rpartition("/")[0]
        port = path.rpartition("/")[2]
        ends = [name for name, folder in below(system, path) if system.link(f"{folder}/physfn") is None]
        if not ADDRESS.fullmatch(port):  # on a root bus: no port is visible
            ends, port = [], self.target
        return (*sorted(ends), port)

    def _states(self, system: System) -> dict[str, str]:
        """Return the ASPM states of each end that reports them."""
        if system.link(f"{DEVICES}/{self.target}/physfn") is not None:
            return {}
        states_of = {end: decode(config_of(system, end)).aspm for end in self.ends(system)}
        return {end: states for end, states in states_of.items() if states is not None}

    def _folder(self, system: System) -> str:
        """Return the folder with the kernel's switches for this link, of the first function that has it; "" if none."""
        folders = [f"{DEVICES}/{end}/link" for end in self.ends(system)[:-1]]
        return next((folder for folder in folders if SWITCHES.keys() & set(system.list(folder))), "")


def _switches(system: System, folder: str) -> dict[str, str]:
    """Return the switches of a link with their values, "0" or "1"."""
    names = set(system.list(folder)) if folder else set()
    values = {name: system.read(f"{folder}/{name}") for name in (*SWITCHES, *SUBSTATES) if name in names}
    return {name: value.strip() for name, value in values.items() if value is not None}


def _wanted(value: Any, switches: Mapping[str, str]) -> dict[str, str]:
    """Return the wanted value of each switch. Substates are only ever restored."""
    if isinstance(value, Mapping) and LINK in value:
        on = set(value[LINK].split())
        return {name: "1" if name in on else "0" for name in switches if name in SWITCHES or "l1_aspm" in on}
    states = value.split() if isinstance(value, str) else {word for words in value.values() for word in words.split()}
    return {name: "1" if SWITCHES[name] in states else "0" for name in switches if name in SWITCHES}


def _apart(states: str, switches: Mapping[str, str]) -> list[str]:
    """Return the switches that contradict `states`, the states of the ends."""
    on = states.split()
    return [name for name, state in SWITCHES.items() if name in switches and (switches[name] == "1") != (state in on)]


def _set_switches(system: System, folder: str, now: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Write the switches that differ, in this order: those to switch off, those to switch on, substates to switch on.

    A substate also switches L1 on, and switching L1 off also switches substates off.
    """
    differing = [name for name in wanted if wanted[name] != now[name]]
    for name in sorted(differing, key=lambda name: (wanted[name] == "1", name in SUBSTATES)):
        system.write(f"{folder}/{name}", wanted[name])


def _port_last(states: Mapping[str, str], ends: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(end, states[end]) for end in ends if end in states]
