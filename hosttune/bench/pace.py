"""Take a figure on a device that is timed by a function: a warm-up, then a number of runs of similar length."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any


def paced_rates(seconds: Callable[[int], float], amount: float, pace: dict[str, Any]) -> list[float]:
    """Return the rate of each run in `amount` per second. `seconds(n)` runs n operations and returns their time.

    `pace`: `runs` of about `run_seconds`, after `warm_seconds` of the same work, with `rest_seconds` before each.
    """
    seconds(1)
    count = max(1, math.ceil(pace["run_seconds"] / (seconds(2) / 2)))
    until = time.monotonic() + pace["warm_seconds"]
    while time.monotonic() < until:
        seconds(count)
    values = []
    for _ in range(pace["runs"]):
        time.sleep(pace.get("rest_seconds", 0))
        values.append(amount * count / seconds(count))
    return values
