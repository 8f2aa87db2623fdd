"""System → what a collectives library finds on a planned guest: its settings file, RDMA devices, the way to GPU memory.

Nothing is read on a machine that has no plan of a guest. A capture must hold what is read here: the libraries' files,
the names in /dev/infiniband, /proc/self/limits, and the makers' modules in /sys/module and driver texts.
"""

from __future__ import annotations

import re

from hosttune.gpu import VENDORS
from hosttune.machine.reader import Reader
from hosttune.model.evidence import UNLIMITED, RdmaAccess
from hosttune.model.guestplan import LIBRARY_FILES, OWN_FILES, PLACE, UCX_FILE
from hosttune.model.host import Host

_NODES = "/dev/infiniband"


def read_library_files(reader: Reader, host: Host) -> dict[str, str | None] | None:
    """Return the settings files of collectives libraries, those of the user root, and that of UCX.

    By path, byte for byte; None if this is no planned guest.
    """
    if not reader.exists(PLACE):
        return None
    library_files: dict[str, str | None] = {}
    for path in (*LIBRARY_FILES, *OWN_FILES.values(), UCX_FILE):
        data = reader.data(path)
        if data is not None or reader.lacks(path):
            library_files[path] = None if data is None else data.decode("utf-8", "replace")
    return library_files


def read_rdma_access(reader: Reader, host: Host) -> RdmaAccess | None:
    """Return how this guest reaches its RDMA devices and its GPUs' memory; None if it is no planned guest."""
    if not reader.exists(PLACE):
        return None
    names = tuple(reader.names(_NODES))
    modules, drivers = dict[str, bool](), dict[str, bool]()
    for vendor in VENDORS:
        inside = vendor.inside
        if inside.peer_module is None or inside.driver_text is None or inside.open_words is None:
            continue
        path = f"/sys/module/{inside.peer_module}"
        if reader.exists(path):
            modules[vendor.name] = True
        elif reader.lacks(path):
            modules[vendor.name] = False
        text = reader.text(inside.driver_text)
        if text:
            drivers[vendor.name] = inside.open_words in text
    nodes = names if names or reader.lacks(_NODES) else None
    # the soft limit (proc(5), /proc/PID/limits)
    limits = re.findall(
        r"^Max locked memory +(unlimited|[0-9]{1,19}) ", reader.text("/proc/self/limits") or "", re.MULTILINE
    )
    return RdmaAccess(
        nodes=nodes,
        peer_modules=modules,
        open_drivers=drivers,
        memlock=None if len(limits) != 1 else UNLIMITED if limits[0] == "unlimited" else int(limits[0]),
    )
