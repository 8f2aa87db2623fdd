"""System → current values of host settings that have no better place in the host document, by path.

A plan records them as `current`. A value that cannot be read is left out. The key is the file's path and the value is
its text, with two exceptions: for `queue/scheduler` the value is only the chosen word, and for an irqbalance file it is
the list of banned CPUs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hosttune.errors import CommandFailed
from hosttune.knobs.files import paths_to_read
from hosttune.linux.irqbalance import irqbalance_bans
from hosttune.linux.tuned import ACTIVE, PROFILES
from hosttune.machine.reader import Reader
from hosttune.model import sysfs
from hosttune.model.host import Host, PciDevice, Tuned
from hosttune.settings.irqs import DEFAULT_AFFINITY, SLICES, slice_file

_FILES = (
    "/sys/module/pcie_aspm/parameters/policy",
    "/sys/module/kvm/parameters/halt_poll_ns",
    "/proc/sys/kernel/nmi_watchdog",
    "/proc/sys/kernel/timer_migration",
    "/proc/sys/vm/hugetlb_optimize_vmemmap",
    "/proc/sys/vm/compaction_proactiveness",
    "/proc/sys/vm/dirty_background_bytes",
    "/proc/sys/vm/dirty_background_ratio",
    "/proc/sys/vm/dirty_bytes",
    "/proc/sys/vm/dirty_ratio",
    "/proc/sys/vm/max_map_count",
    "/proc/sys/vm/min_free_kbytes",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/stat_interval",
    "/proc/sys/vm/swappiness",
    "/proc/sys/vm/zone_reclaim_mode",
    ACTIVE,
    DEFAULT_AFFINITY,
    *map(slice_file, SLICES),
)
_QUEUE = ("scheduler", "nr_requests", "rq_affinity", "wbt_lat_usec")


def read_settings(reader: Reader, pci: Sequence[PciDevice]) -> dict[str, str]:
    """Return values by path: ASPM (GPU and NIC links, policy), halt polling, irqbalance, NVMe queues, sysctl."""
    values = {path: reader.text(path) for path in (*_FILES, *paths_to_read())}
    for device in pci:
        if device.is_display or device.is_network:
            folder = sysfs.function(device.address, "link")
            values |= {f"{folder}/{name}": reader.text(f"{folder}/{name}") for name in reader.names(folder)}
    for path, ban in irqbalance_bans(reader.text):
        values[path] = ban
        if ban is None:
            reader.problem("not a CPU list", path, "the CPUs that irqbalance bans cannot be read")
    for disk in reader.names("/sys/block"):
        if disk.startswith("nvme"):
            folder = f"/sys/block/{disk}/queue"
            values |= {f"{folder}/{name}": _chosen(reader.text(f"{folder}/{name}")) for name in _QUEUE}
    return {path: value for path, value in values.items() if value is not None}


def _chosen(text: str | None) -> str | None:
    """Return the word in brackets of a text such as "[none] mq-deadline"; any other text unchanged."""
    match = re.search(r"\[([^]]*)\]", text or "")
    return match[1] if match else text


# --- TuneD ----------------------------------------------------------------------------------------------------

MODE = "/etc/tuned/profile_mode"  # tuned/consts.py: PROFILE_MODE_FILE, …
POST_LOADED = "/etc/tuned/post_loaded_profile"
OWN_FOLDERS = (
    "/etc/tuned/profiles",
    "/etc/tuned",
)  # they come before the system's; older releases have only the second
VERIFY = "tuned-adm-verify"  # name of the query
_SECONDS = 30.0  # TuneD compares each value of each CPU
_VERDICTS = {"Verification succeeded": True, "Verification failed": False}  # tuned/admin/admin.py


def read_tuned(reader: Reader, active: str | None) -> Tuned | None:
    """Return the profiles that `active`, the text of ACTIVE, names; None if no profile is active."""
    if active is None and reader.system.complete and not reader.lacks(ACTIVE):
        return Tuned(profiles=())
    if not active:
        return None
    names = (*active.split(), *(reader.text(POST_LOADED) or "").split())
    own = (name for name in names if name in PROFILES and not all(_lacked(reader, name, top) for top in OWN_FOLDERS))
    return Tuned(profiles=names, mode=reader.text(MODE) or None, own=tuple(own))


def _lacked(reader: Reader, name: str, folder: str) -> bool:
    """Return whether the user has no profile of this name there; not every capture can prove it."""
    path = f"{folder}/{name}/tuned.conf"
    return reader.lacks(path) or (not reader.system.complete and reader.exists(path) is False)


def read_tuned_verified(reader: Reader, host: Host) -> bool | None:
    """Return whether every value that the active profiles set is in force, says TuneD; None where it was not asked.

    `tuned-adm verify` compares and sets nothing. A stopped TuneD is not started by it and does not answer.
    """
    if host.tuned is None:
        return None

    def live() -> str | None:
        try:
            return reader.system.run(("tuned-adm", "verify"), timeout=_SECONDS)
        except CommandFailed as error:  # it exits 1 for "failed", too
            return error.output or None

    answer = reader.query(VERIFY, live) or ""
    return next((verdict for words, verdict in _VERDICTS.items() if answer.startswith(words)), None)
