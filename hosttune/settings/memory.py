"""Memory of the host: huge pages of a node, transparent huge pages, same-page merging, NUMA balancing."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from hosttune.model.commandline import PAGES
from hosttune.settings.setting import Setting, refuse
from hosttune.system import System

_POOL = re.compile(r"/sys/devices/system/node/node[0-9]{1,4}/hugepages/hugepages-[0-9]{1,8}kB/nr_hugepages")
_WORD = re.compile(r"\[([^\]\s]+)\]")
_MOST_PAGES = 1 << 40
_GIGABYTE = "/hugepages-1048576kB/"


@dataclass(frozen=True)
class HugePages(Setting):
    """Pages of one size on one node; target: the path of `nr_hugepages`. Value: pages.

    A short allocation is no error to the kernel (admin-guide/mm/hugetlbpage): what it gave is in the read-back.
    """

    kind: ClassVar[str] = "hugepages"
    limit_seconds: ClassVar[float | None] = 300.0  # the kernel moves memory about to find whole pages
    takes_less: ClassVar[bool] = True
    between: ClassVar[bool] = True  # the kernel leaves off at a signal (mm/hugetlb.c, set_max_huge_pages)
    persisted_by: ClassVar[str] = "the boot unit; for certain only as kernel arguments (settings.boot_pages)"

    @classmethod
    def of(cls, target: str) -> Self:
        """See Setting."""
        if not _POOL.fullmatch(target):
            raise refuse(cls.kind, target, "not a node's pool of huge pages", "plan again")
        return cls(target)

    def check(self, value: Any) -> None:
        """See Setting."""
        if type(value) is not int or not 0 <= value <= _MOST_PAGES:
            raise refuse(self.kind, self.target, f"{value!r} is not a number of pages", "plan again")

    def read(self, system: System) -> int | None:
        """See Setting."""
        return whole_number(system, self.target)

    def write(self, system: System, value: Any) -> None:
        """See Setting."""
        system.write(self.target, str(value))

    def enough(self, live: Any, want: Any) -> bool:
        """See Setting. More pages: somebody else has guests here, too."""
        return type(live) is int and type(want) is int and live > want

    @property
    def covered_by(self) -> tuple[str, str] | None:
        """See Setting: of pages of 1 GiB, the argument that reserves them."""
        return ("kernel-argument", PAGES) if _GIGABYTE in self.target else None

    @property
    def remedy(self) -> str | None:
        """See Setting."""
        if _GIGABYTE not in self.target:
            return None
        return (
            "the node has no more unbroken memory for pages of this size: plan with hugepages: 2MiB, or with"
            " profile: host, which reserves 1 GiB pages at boot"
        )

    def missed(self, system: System, old: Any, left: Collection[Any] | None) -> str | None:
        """See Setting: pages."""
        now = self.read(system)
        free = whole_number(system, self.target.replace("/nr_hugepages", "/free_hugepages"))
        ours = left is None or now in left
        if type(old) is int and now is not None and free is not None and ours and now - free > old:
            return f"{now - free} pages of {self.target} are used, and the way back would leave {old}"
        return None


@dataclass(frozen=True)
class Thp(Setting):
    """Transparent huge pages (admin-guide/mm/transhuge). Value: always, madvise or never."""

    kind: ClassVar[str] = "thp"
    path: ClassVar[str] = "/sys/kernel/mm/transparent_hugepage/enabled"

    @classmethod
    def of(cls, target: str) -> Self:
        """See Setting."""
        return only(cls, target, cls.path)

    def check(self, value: Any) -> None:
        """See Setting."""
        one_of(self, value, ("always", "madvise", "never"))

    def read(self, system: System) -> str | None:
        """See Setting."""
        return chosen_word(system, self.target)

    def write(self, system: System, value: Any) -> None:
        """See Setting."""
        system.write(self.target, value)


@dataclass(frozen=True)
class Ksm(Setting):
    """Same-page merging (admin-guide/mm/ksm): 0 stops and keeps merged pages, 1 runs, 2 stops and unmerges."""

    kind: ClassVar[str] = "ksm"
    path: ClassVar[str] = "/sys/kernel/mm/ksm/run"
    limit_seconds: ClassVar[float | None] = 300.0  # unmerging touches every merged page
    between: ClassVar[bool] = True  # cut off in that, it is 0 (mm/ksm.c, run_store)

    @classmethod
    def of(cls, target: str) -> Self:
        """See Setting."""
        return only(cls, target, cls.path)

    def check(self, value: Any) -> None:
        """See Setting."""
        one_of(self, value, (0, 1, 2))

    def read(self, system: System) -> int | None:
        """See Setting."""
        return whole_number(system, self.target)

    def write(self, system: System, value: Any) -> None:
        """See Setting."""
        system.write(self.target, str(value))


@dataclass(frozen=True)
class NumaBalancing(Setting):
    """Automatic NUMA balancing (admin-guide/sysctl/kernel): a bit mask since Linux 5.18, 0 off."""

    kind: ClassVar[str] = "numa-balancing"
    path: ClassVar[str] = "/proc/sys/kernel/numa_balancing"

    @classmethod
    def of(cls, target: str) -> Self:
        """See Setting."""
        return only(cls, target, "kernel.numa_balancing")

    def check(self, value: Any) -> None:
        """See Setting."""
        one_of(self, value, (0, 1, 2, 3))

    def read(self, system: System) -> int | None:
        """See Setting."""
        return whole_number(system, self.path)

    def write(self, system: System, value: Any) -> None:
        """See Setting."""
        system.write(self.path, str(value))


S = TypeVar("S", bound=Setting)


def only(cls: type[S], target: str, known: str) -> S:
    """The setting of a kind that exists once. Raises BadInput for any other target."""
    if target != known:
        raise refuse(cls.kind, target, f"not a target of {cls.kind}", f"it is {known}")
    return cls(target)


def one_of(setting: Setting, value: Any, values: tuple[Any, ...]) -> None:
    """Raise BadInput unless the value is one of these, of the same type."""
    if not any(type(value) is type(known) and value == known for known in values):
        raise refuse(setting.kind, setting.target, f"invalid value {value!r}", f"one of {values}")


def whole_number(system: System, path: str) -> int | None:
    """The number that a file holds; None where there is none. Raises Unreadable."""
    text = (system.read(path) or "").strip()
    return int(text) if text.isdecimal() and len(text) < 20 else None


def chosen_word(system: System, path: str) -> str | None:
    """The word in brackets of "[none] mq-deadline", None where there is none. Raises Unreadable."""
    found = _WORD.search(system.read(path) or "")
    return found[1] if found else None
