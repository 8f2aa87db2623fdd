"""irqbalance's own files: which CPUs it does not use. Pure except for the `read` function that is passed in.

A separate module because every discovery imports it and must start fast.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from hosttune.model.values import CpuSet

_MOST_MASK = (1 << 16) // 32 * 9  # characters of a mask of 65536 CPUs
DROP_IN = "/etc/systemd/system/irqbalance.service.d/hosttune.conf"
IRQBALANCE_OURS = "/etc/systemd/system/irqbalance.service.d/hosttune.env"
# The environment files of irqbalance: Debian's, and that of the RPM distributions.
IRQBALANCE_THEIRS = ("/etc/default/irqbalance", "/etc/sysconfig/irqbalance")
IRQBALANCE = (IRQBALANCE_OURS, *IRQBALANCE_THEIRS)
OWED = "# irqbalance has yet to be restarted for it.\n"
OWED_SAID = " (irqbalance not restarted)"
_ASSIGNED = r'(?m)^[ \t]*(?:export[ \t]+)?(IRQBALANCE_BANNED_CPU\w+)=["\']?([^"\'\n#]*)'


def irqbalance_bans(
    read: Callable[[str], str | None], paths: Iterable[str] = IRQBALANCE
) -> Iterator[tuple[str, str | None]]:
    """Yield (file, the CPUs that it bans) for every irqbalance file that exists; the first one counts.

    "": it bans none. None: it cannot be parsed. hosttune's own file has no effect without its drop-in.
    """
    for path in paths:
        text = read(path)
        if text is None or (path == IRQBALANCE_OURS and OWED not in text and read(DROP_IN) is None):
            continue
        yield path, parse_ban(text)


def parse_ban(text: str) -> str | None:
    """Return the CPUs that an irqbalance environment file bans, as a list; "" for none, None if it cannot be parsed.

    If the deprecated mask is not empty, it counts before the list (irqbalance 1.8 to 1.9.5).
    """
    assigned = dict(re.findall(_ASSIGNED, text))
    mask = assigned.get("IRQBALANCE_BANNED_CPUS", "").strip()
    try:
        if len(mask) > _MOST_MASK:
            return None
        cpus = CpuSet.parse_mask(mask) if mask else CpuSet.parse(assigned.get("IRQBALANCE_BANNED_CPULIST", "").strip())
    except ValueError:
        return None
    return f"{cpus}{OWED_SAID if OWED in text else ''}"
