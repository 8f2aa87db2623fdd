"""System → which speeds and lanes InfiniBand ports support, as `smpquery` tells them. Read only.

A capture must hold the answer `smpquery-portinfo-DEVICE-PORT` of each InfiniBand port of a physical network function:
the lines of `smpquery -C DEVICE -P PORT -D portinfo 0 PORT` that tell of the link, without keys and GIDs. Sources:
InfiniBand Architecture volume 1, 14.2.5.6 (PortInfo); rdma-core, libibmad/dump.c (the words) and iba_types.h.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from hosttune.discovery.devices import by_address
from hosttune.discovery.portfiles import RDMA, link_layer, tool_answer
from hosttune.machine.reader import Reader
from hosttune.model.host import Host
from hosttune.model.ports import PortInfo

Number = TypeVar("Number", int, float)

PORT_INFO = "smpquery-portinfo-"  # and the device and the port: the name of the answer
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]{0,63}")
_NUMBER = re.compile(r"[1-9][0-9]{0,2}")
_MOST = 256  # ports
_MOST_LINES = 500
_LINE = re.compile(r"((?:Phys)?Link(?:State|Width|Speed)[A-Za-z0-9]*|CapabilityMask2):\.*(\S.{0,120})")
_WIDTHS = {"1X": 1, "2X": 2, "4X": 4, "8X": 8, "12X": 12}
# Gb/s of one lane as the kernel counts it (drivers/infiniband/core/sysfs.c, rate_show), by its signalling rate.
_LANES = {
    **{"2.5 Gbps": 2.5, "5.0 Gbps": 5.0, "10.0 Gbps": 10.0, "14.0625 Gbps": 14.0, "25.78125 Gbps": 25.0},
    **{"53.125 Gbps": 50.0, "106.25 Gbps": 100.0, "212.5 Gbps": 200.0},
}
_NONE = "0"  # no extended speed
_UNNAMED = "undefined ("  # libibmad: a bit that it has no name for
_STATES = ("Supported", "Enabled")
# The speed that a port has, in the order in which one counts, and the words for none of its list.
_ACTIVE = (
    ("LinkSpeedExtActive2", "No Extended Speed 2"),
    ("LinkSpeedExtActive", "No Extended Speed"),
    ("LinkSpeedActive", "Extended speed"),
)
_PROCESS = re.compile(r"^ibwarn: \[[0-9]+\] ")  # libibmad's warnings begin with the number of the process
_EXTENDED_SPEEDS_2 = 0x0800  # CapabilityMask2: IsExtendedSpeeds2Supported, in which the speeds from XDR on are told
_HEX = re.compile(r"0x([0-9a-f]{1,4})")


def read_port_info(reader: Reader, host: Host) -> Mapping[str, PortInfo]:
    """Return what the InfiniBand ports of physical network functions support, by their name: mlx5_0/1."""
    devices = by_address(reader, RDMA)
    ports = [
        (device, number)
        for nic in host.nics
        if nic.physfn is None and not nic.fabric_bridge
        for device in devices.get(nic.address, ())
        if _NAME.fullmatch(device)
        for number in sorted(reader.names(f"{RDMA}/{device}/ports"))
        if _NUMBER.fullmatch(number) and link_layer(reader, f"{RDMA}/{device}/ports/{number}") == "InfiniBand"
    ]
    return {f"{device}/{number}": _read(reader, device, number) for device, number in ports[:_MOST]}


def _read(reader: Reader, device: str, number: str) -> PortInfo:
    # By the direct route "0", which ends at the port itself: it needs no subnet manager.
    argv = ("smpquery", "-C", device, "-P", number, "-D", "portinfo", "0", number)
    text, error = tool_answer(reader, f"{PORT_INFO}{device}-{number}", argv, strip_port_info)
    if text is not None:
        return parse_port_info(text)
    return PortInfo(error=_PROCESS.sub("", error) if error else None)


def strip_port_info(text: str) -> str:
    """Return the lines of PortInfo that tell of the link; an error as it is."""
    if text.startswith('{"error"'):
        return text
    return "".join(line for line in text.splitlines(keepends=True) if _LINE.fullmatch(line.strip()))


def parse_port_info(text: str) -> PortInfo:
    """Return the speeds and lanes of `smpquery portinfo`.

    A line that is missing or has a word that is not known makes its list None. So does the lack of what is enabled,
    which follows: a text that was cut off may end within a list.
    """
    matches = (_LINE.fullmatch(line.strip()) for line in text.splitlines()[:_MOST_LINES])
    rows = {match[1]: match[2].strip() for match in matches if match}
    widths, widths_enabled = (_listed(rows.get(f"LinkWidth{state}"), _WIDTHS) for state in _STATES)
    lanes, lanes_enabled = (_lanes(rows, state) for state in _STATES)
    return PortInfo(
        widths=widths if widths_enabled is not None else None,
        lane_gbps=lanes if lanes_enabled is not None else None,
        widths_enabled=widths_enabled,
        lane_gbps_enabled=lanes_enabled,
        gbps=_rate(rows),
        unnamed=any(_UNNAMED in words for words in rows.values()) or _has_second(rows) is True,
    )


def _lanes(rows: Mapping[str, str], state: str) -> tuple[float, ...] | None:
    """Return the Gb/s that one lane can have, of all three lists. A port without extended speeds has "0" there.

    A tool from before XDR does not print the third list. It is empty if the port says that it has none.
    """
    lists = [rows.get(f"LinkSpeed{state}"), rows.get(f"LinkSpeedExt{state}")]
    third = f"LinkSpeedExt{state}2"
    lists.append(rows[third] if third in rows else _NONE if _has_second(rows) is False else None)
    if lists[1] == "Extended link speeds disabled" and state == "Enabled":
        lists[1] = _NONE
    lanes = [() if words == _NONE and at else _listed(words, _LANES) for at, words in enumerate(lists)]
    known = [values for values in lanes if values is not None]
    return tuple(sorted(value for values in known for value in values)) if len(known) == len(lanes) else None


def _has_second(rows: Mapping[str, str]) -> bool | None:
    """Return whether the port has speeds of a third list that the tool did not print; None if that is not known."""
    if "LinkSpeedExtSupported2" in rows:
        return False
    mask = _HEX.fullmatch(rows.get("CapabilityMask2") or "")
    return bool(int(mask[1], 16) & _EXTENDED_SPEEDS_2) if mask else None


def _rate(rows: Mapping[str, str]) -> float | None:
    """Return the rate that the port has in Gb/s: its lanes, and the first speed that is one of the three lists."""
    width = _WIDTHS.get(rows.get("LinkWidthActive") or "")
    for name, none in _ACTIVE:
        words = rows.get(name, none)
        if words != none:
            lane = _LANES.get(words or "")
            return lane * width if lane is not None and width is not None else None
    return None


def _listed(words: str | None, known: Mapping[str, Number]) -> tuple[Number, ...] | None:
    """Return the numbers of "1X or 4X"; None for a list with another word in it."""
    listed = [known.get(word) for word in (words or "").removesuffix(" (IBA extension)").split(" or ")]
    numbers = tuple(number for number in listed if number is not None)
    return tuple(sorted(set(numbers))) if len(numbers) == len(listed) else None
