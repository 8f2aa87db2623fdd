"""When the rate that a kernel shows of an RDMA port is proven. Pure; `discover` imports it, so nothing else is here."""

from __future__ import annotations


def believed_gbps(layer: str | None, rate: float | None, speed: str | None) -> float | None:
    """Return the rate of an active RDMA port in Gb/s, or None where the kernel's text does not prove it.

    `speed`: the name beside the rate. A kernel shows SDR also for a speed that it has no name for
    (drivers/infiniband/core/sysfs.c, rate_show: "default to SDR for invalid rates"): an XDR port of 800 Gb/s is
    "10 Gb/sec (4X SDR)" to an older one. Nothing there tells the two apart.
    """
    return None if layer is not None and layer.lower() == "infiniband" and speed in (None, "SDR") else rate
