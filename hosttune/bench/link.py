"""Read the PCIe link of a GPU while copies run over it, because some drivers slow down the link of an idle GPU.

Source: Linux Documentation/ABI/testing/sysfs-bus-pci, current_link_speed ("32.0 GT/s PCIe") and current_link_width.
This module uses only the standard library, because the Python of the child processes may have nothing else.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

from hosttune.bench.supervise import Record
from hosttune.model import sysfs

SPEED, WIDTH = "load-link-speed", "load-link-width"
RUNS = 7
_FOLDER = sysfs.PCI_DEVICES
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) GT/s\b")
_PAUSE_SECONDS, _MOST_SECONDS = 0.01, 3.0


def under_load(
    address: str, work: Callable[[], object], busy: Callable[[], bool], read: Callable[[str], str]
) -> Iterator[Record]:
    """Yield the speed and the width, read while work is running: one record each, or one record with the error.

    `work` queues copies for some tenths of a second; `busy` returns whether they are still running. A reading is valid
    only if copies are running before and after it.
    """
    readings: list[tuple[float, float]] = []
    known = sysfs.is_function(address)
    why = "the copies ended before the link was read" if known else "its PCI address is not known"
    until = time.monotonic() + _MOST_SECONDS
    while known and len(readings) < RUNS and time.monotonic() < until:
        if not busy():
            work()
        time.sleep(_PAUSE_SECONDS)
        try:
            reading = _reading(address, read)
        except (OSError, ValueError) as error:
            why = f"{_FOLDER}/{address}/current_link_*: {error}"
            break
        if busy():
            readings.append(reading)
    if len(readings) < RUNS:
        yield {"metric": SPEED, "subject": address, "skip": why}
        return
    yield {"metric": SPEED, "subject": address, "unit": "GT/s", "values": [speed for speed, _ in readings]}
    yield {"metric": WIDTH, "subject": address, "unit": "lanes", "values": [width for _, width in readings]}


def _reading(address: str, read: Callable[[str], str]) -> tuple[float, float]:
    """Return the current speed and width. Raises OSError, ValueError."""
    speed = _SPEED.match(read(f"{_FOLDER}/{address}/current_link_speed"))
    width = read(f"{_FOLDER}/{address}/current_link_width").strip()
    if speed is None or not width.isdecimal() or not 1 <= int(width) <= 32:
        raise ValueError("no speed and width")
    return float(speed[1]), float(width)


def read_machine(path: str) -> str:
    """Return the text of a file on this machine. Raises OSError."""
    from hosttune.errors import Unreadable
    from hosttune.machine.live import LiveMachine

    try:
        data = LiveMachine().read_bytes(path)
    except Unreadable as error:
        raise OSError(error.reason) from error
    if data is None:
        raise OSError("no such file")
    return data.decode("utf-8", "replace")
