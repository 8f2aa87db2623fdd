"""irqbalance's own files: which CPUs it leaves alone. Pure but for the reading that is handed in.

A module of its own because every discovery needs it, and a start must stay quick.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from hosttune.model.values import CpuSet

_MOST_MASK = (1 << 16) // 32 * 9  # characters of a mask of 65536 CPUs
DROP_IN = "/etc/systemd/system/irqbalance.service.d/hosttune.conf"
IRQBALANCE_OURS = "/etc/systemd/system/irqbalance.service.d/hosttune.env"
# Debian's file of irqbalance's environment, and that of the RPM distributions.
IRQBALANCE_THEIRS = ("/etc/default/irqbalance", "/etc/sysconfig/irqbalance")
IRQBALANCE = (IRQBALANCE_OURS, *IRQBALANCE_THEIRS)
OWED = "# irqbalance has yet to be restarted for it.\n"
OWED_SAID = " (irqbalance not restarted)"
_ASSIGNED = re.compile(r'^\s*(?:export\s+)?(IRQBALANCE_BANNED_CPU\w+)=["\']?([^"\'\n#]*)', re.MULTILINE)


def irqbalance_bans(
    read: Callable[[str], str | None], paths: Iterable[str] = IRQBALANCE
) -> Iterator[tuple[str, str | None]]:
    """(file, the CPUs that it bans) of every irqbalance file there is, the one that counts first.

    "" bans none; None is what cannot be understood. Without its drop-in our own file says nothing.
    """
    for path in paths:
        text = read(path)
        if text is None or (path == IRQBALANCE_OURS and OWED not in text and read(DROP_IN) is None):
            continue
        yield path, parse_ban(text)


def parse_ban(text: str) -> str | None:
    """The CPUs that an irqbalance environment file bans, as a list; "" when it bans none, None when unintelligible.

    The deprecated mask counts before the list where it is not empty (irqbalance 1.8 to 1.9.5).
    """
    assigned = dict(_ASSIGNED.findall(text))
    mask = assigned.get("IRQBALANCE_BANNED_CPUS", "").strip()
    try:
        if len(mask) > _MOST_MASK:
            return None
        cpus = CpuSet.parse_mask(mask) if mask else CpuSet.parse(assigned.get("IRQBALANCE_BANNED_CPULIST", "").strip())
    except ValueError:
        return None
    return f"{cpus}{OWED_SAID if OWED in text else ''}"
