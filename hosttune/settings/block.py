"""Queue of an NVMe namespace. Target: "ADDRESS nN", the drive's PCI address and the number at the end of the block
device's name, which a reboot does not change ("0000:c1:00.0 n1").

Value: a mapping of `scheduler` (the chosen word), `nr_requests` and `rq_affinity` (numbers), as far as they exist. The
three are one setting because the kernel resets `nr_requests` when the scheduler changes (block/elevator.c): if they
were written one by one, a revert could not restore them reliably. Source: Documentation/ABI/stable/sysfs-block.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from hosttune.errors import WriteFailed
from hosttune.machine.system import System
from hosttune.model.values import FrozenMap, is_address
from hosttune.settings.files import chosen_word, whole_number
from hosttune.settings.setting import DEVICES, Setting, Targets, refuse

SCHEDULER, REQUESTS, AFFINITY = "scheduler", "nr_requests", "rq_affinity"
FEWEST_REQUESTS, MOST_REQUESTS = 4, 1 << 16  # BLKDEV_MIN_RQ; far above any drive's queue
AFFINITIES = (0, 1, 2)
_TARGET = re.compile(r"(\S+) n([1-9][0-9]{0,6})")
_WORD = re.compile(r"[a-z][a-z0-9_-]{0,15}")


class NvmeQueue(Setting):
    """See the module."""

    kind: ClassVar[str] = "nvme-queue"
    limit_seconds: ClassVar[float | None] = 60.0  # the kernel drains the queue first; a faulty drive may never finish
    may_stop_midway: ClassVar[bool] = True  # a new scheduler sets its own queue depth
    targets = Targets(
        lambda target: (match := _TARGET.fullmatch(target)) and is_address(match[1]),
        "not a namespace of an NVMe drive",
        'write "0000:c1:00.0 n1"',
    )

    def check(self, value: Any) -> None:
        """See Setting."""
        known = isinstance(value, Mapping) and bool(value) and set(value) <= {SCHEDULER, REQUESTS, AFFINITY}
        if not known or not all(_is_value(name, part) for name, part in value.items()):
            raise refuse(self.kind, self.target, f"invalid value {value!r}", "plan again")

    def read(self, system: System) -> Any:
        """See Setting."""
        folder = self._queue(system)
        if folder is None:
            return None
        text = (system.read(f"{folder}/{SCHEDULER}") or "").strip()
        values = {
            SCHEDULER: chosen_word(system, f"{folder}/{SCHEDULER}") or text or None,
            REQUESTS: whole_number(system, f"{folder}/{REQUESTS}"),
            AFFINITY: whole_number(system, f"{folder}/{AFFINITY}"),
        }
        return FrozenMap({name: value for name, value in values.items() if value is not None}) or None

    def write(self, system: System, value: Any) -> str | None:
        """See Setting. The scheduler is written first, because it resets the number of requests."""
        folder = self._queue(system)
        if folder is None:
            raise WriteFailed(f"{DEVICES}/{self.target}", "there is no such namespace now")
        now = self.read(system) or {}
        chosen = value.get(SCHEDULER, now.get(SCHEDULER))
        anew = chosen is not None and chosen != now.get(SCHEDULER)
        if anew:
            system.write(f"{folder}/{SCHEDULER}", chosen)
        note = None
        requests = value.get(REQUESTS, now.get(REQUESTS))
        if requests is not None and (anew or requests != now.get(REQUESTS)):
            note = _write_requests(system, folder, requests, chosen)
        if value.get(AFFINITY, now.get(AFFINITY)) != now.get(AFFINITY):
            system.write(f"{folder}/{AFFINITY}", str(value[AFFINITY]))
        return note

    def parts(self, value: Any) -> Mapping[str, Any]:
        """See Setting."""
        return value if isinstance(value, Mapping) else {}

    def joined(self, parts: Mapping[str, Any]) -> Any:
        """See Setting."""
        return FrozenMap(dict(parts)) or None

    def agrees(self, live: Any, want: Any) -> bool:
        """See Setting. Parts that are not wanted may have any value."""
        if not isinstance(live, Mapping) or not isinstance(want, Mapping):
            return bool(live == want)
        return all(name in live and live[name] == part for name, part in want.items())

    def _queue(self, system: System) -> str | None:
        """Return the queue's folder; None if there is none.

        A namespace with several paths has one queue for each ("nvme0c1n2"), below its controller.
        """
        address, _, number = self.target.partition(" ")
        name = re.compile(rf"nvme[0-9]+(?:c[0-9]+)?{number}")
        drive = f"{DEVICES}/{address}/nvme"
        for controller in system.list(drive):
            for disk in system.list(f"{drive}/{controller}"):
                if name.fullmatch(disk) and system.list(f"{drive}/{controller}/{disk}/queue"):
                    return f"{drive}/{controller}/{disk}/queue"
        return None


def _write_requests(system: System, folder: str, requests: int, scheduler: str | None) -> str | None:
    """Write the number of requests. Without a scheduler the maximum is the size of the drive's own queue."""
    most = whole_number(system, f"{folder.rpartition('/')[0].rpartition('/')[0]}/sqsize")
    note = None
    if scheduler == "none" and most and requests > most:
        requests, note = most, f"the drive's own queue holds {most}"
    try:
        system.write(f"{folder}/{REQUESTS}", str(requests))
    except WriteFailed as error:
        if error.errno != errno.EINVAL:
            raise
        note = f"the kernel does not take {requests} requests for this drive"  # the read-back shows the value
    return note


def _is_value(name: str, part: Any) -> bool:
    if name == SCHEDULER:
        return isinstance(part, str) and bool(_WORD.fullmatch(part))
    if type(part) is not int:
        return False
    return part in AFFINITIES if name == AFFINITY else FEWEST_REQUESTS <= part <= MOST_REQUESTS
