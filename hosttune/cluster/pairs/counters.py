"""Error counters of an end's port before and after its measurement, and which of what came is more than allowed.

What is allowed, and the source of each number, is in `hosttune/rules/checks/data/ports.toml`, as for `port-errors`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hosttune.discovery.portfiles import NET, RDMA
from hosttune.discovery.ports import HARDWARE_COUNTERS, PORT_COUNTERS
from hosttune.machine.reader import Reader
from hosttune.model.pairs import End
from hosttune.rules.checks.data import table

Counters = Mapping[str, int | None]  # by "PORT COUNTER"; None: could not be read
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_FRAMES = {"rx_crc_errors": "statistics/rx_crc_errors", "carrier_down_count": "carrier_down_count"}


def look(reader: Reader, end: End) -> Counters:
    """Return the counters of the RDMA port (of all, if its number is not known) and the interface of an end that its
    drivers have."""
    found: dict[str, int | None] = {}
    if end.rdma is not None and _NAME.fullmatch(end.rdma):
        for number in (str(end.rdma_port),) if end.rdma_port else reader.names(f"{RDMA}/{end.rdma}/ports"):
            at = f"{RDMA}/{end.rdma}/ports/{number}"
            paths = {name: f"{at}/counters/{name}" for name in PORT_COUNTERS}
            paths |= {name: f"{at}/hw_counters/{name}" for name in HARDWARE_COUNTERS}
            judged = [row["name"] for row in table("ports")["rdma"] if row["name"] in paths]
            found |= {f"{end.rdma}/{number} {name}": reader.count(paths[name]) for name in judged}
    if end.interface is not None and _NAME.fullmatch(end.interface):
        found |= {
            f"{end.interface} {name}": reader.count(f"{NET}/{end.interface}/{at}") for name, at in _FRAMES.items()
        }
    return {name: count for name, count in found.items() if count is not None}


def came(before: Counters, after: Counters, seconds: int) -> dict[str, int]:
    """Return what was counted in between and is more than allowed in so many seconds. A counter that is smaller than
    before was reset, and began at 0 again."""
    found: dict[str, int] = {}
    for name, count in after.items():
        first = before.get(name)
        if count is not None and first is not None:
            grown = count - first if count >= first else count
            if grown > _allowed(name.rpartition(" ")[2], seconds):
                found[name] = grown
    return found


def _allowed(name: str, seconds: int) -> float:
    """Return how many of these errors may come: of frames with a wrong check sum and of lost links none, of others what
    is allowed in so many seconds, at least the amount for the time that its source names."""
    row = next((row for row in table("ports")["rdma"] if row["name"] == name), None)
    if row is None:
        return 0.0
    most, period = float(row["most"]), float(row["seconds"])
    return most * max(seconds / period, 1.0) if period else most
