"""Settings that are one file of the kernel, of which a host has only one; class variables describe the file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, ClassVar, Literal, Self, TypeVar

from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.commandline import PAGES
from hosttune.settings.setting import MayGiveLess, Remediable, Setting, Targets, refuse

Form = Literal["text", "chosen", "number"]
_WORD = r"\[([^\]\s]+)\]"


class OneFile(Setting):
    """One file of the kernel. `target_name`: the target in plans, if it is not the path.

    `form`: the form of the file's text. "text": as it is; "chosen": of several words the one in brackets ("[none]
    bfq"); "number": a whole number. A plan can want one of `values`, or one of `numbers`.
    """

    path: ClassVar[str]
    target_name: ClassVar[str | None] = None
    form: ClassVar[Form] = "text"
    numbers: ClassVar[range | None] = None

    @classmethod
    def of(cls, target: str) -> Self:
        """See Setting."""
        return only(cls, target, cls.target_name or cls.path)

    def check(self, value: Any) -> None:
        """See Setting."""
        if self.numbers is None:
            super().check(value)
        elif type(value) is not int or value not in self.numbers:
            allowed = f"{self.numbers[0]} to {self.numbers[-1]}"
            raise refuse(self.kind, self.target, f"invalid value {value!r}", allowed)

    @classmethod
    def parse(cls, text: str | None) -> Any:
        """Return the value of the file's text; None if it has none."""
        return parsed(cls.form, text)

    def read(self, system: System) -> Any:
        """See Setting."""
        return self.parse(system.read(self.path))

    def write(self, system: System, value: Any) -> None:
        """See Setting."""
        system.write(self.path, str(value))


S = TypeVar("S", bound=Setting)


def only(cls: type[S], target: str, known: str) -> S:
    """Return the setting of a kind that exists once. Raises BadInput for any other target."""
    if target != known:
        raise refuse(cls.kind, target, f"not a target of {cls.kind}", f"it is {known}")
    return cls(target)


def parsed(form: Form, text: str | None) -> Any:
    """Return the value of a kernel file's text; None if it has none. See `OneFile`."""
    if form == "chosen":
        match = re.search(_WORD, text or "")
        return match[1] if match else None
    stripped = (text or "").strip()
    if form == "number":
        return int(stripped) if stripped.isdecimal() and len(stripped) < 20 else None
    return stripped or None


def whole_number(system: System, path: str) -> int | None:
    """Return the number in a file; None if there is none. Raises Unreadable."""
    number: int | None = parsed("number", system.read(path))
    return number


def chosen_word(system: System, path: str) -> str | None:
    """Return the word in brackets of "[none] mq-deadline"; None if there is none. Raises Unreadable."""
    word: str | None = parsed("chosen", system.read(path))
    return word


# --- memory of the host ----------------------------------------------------------------------------------------
# Memory of the host: huge pages of a node, transparent huge pages, same-page merging, NUMA balancing.

_POOL = rf"{sysfs.NODES}/node[0-9]{{1,4}}/hugepages/hugepages-[0-9]{{1,8}}kB/nr_hugepages"
_MOST_PAGES = 1 << 40
_GIGABYTE = "/hugepages-1048576kB/"


class NodeHugePages(MayGiveLess, Remediable):
    """Huge pages of one size on one node. Target: the path of `nr_hugepages`. Value: number of pages.

    The kernel reports no error if it allocates fewer (admin-guide/mm/hugetlbpage); the read-back shows the number.
    """

    kind: ClassVar[str] = "hugepages"
    limit_seconds: ClassVar[float | None] = 300.0  # the kernel moves memory to get contiguous pages
    may_stop_midway: ClassVar[bool] = True  # a signal stops the kernel (mm/hugetlb.c, set_max_huge_pages)
    targets = Targets(re.compile(_POOL).fullmatch, "not a node's pool of huge pages")

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

    def satisfied_by(self, live: Any, want: Any) -> bool:
        """See Setting. More pages than wanted: other guests of this host may need them."""
        return type(live) is int and type(want) is int and live > want

    def is_needed(self, system: System, live: Any, want: Any, ours: Callable[[], int]) -> bool:
        """See MayGiveLess. `ours`: how many pages guests in force have now."""
        free = whole_number(system, self.target.replace("/nr_hugepages", "/free_hugepages"))
        return self.satisfied_by(live, want) and free is not None and free <= want and free <= want - ours()

    @property
    def covered_by(self) -> tuple[str, str] | None:
        """See Setting. For pages of 1 GiB, the kernel argument that reserves them."""
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

    def still_in_use(self, system: System, old: Any, left: Collection[Any] | None) -> str | None:
        """See Setting. Counts the pages in use."""
        now = self.read(system)
        free = whole_number(system, self.target.replace("/nr_hugepages", "/free_hugepages"))
        is_unchanged = left is None or now in left
        if type(old) is int and now is not None and free is not None and is_unchanged and now - free > old:
            return f"{now - free} pages of {self.target} are used, and the way back would leave {old}"
        return None


class Thp(OneFile):
    """Transparent huge pages (admin-guide/mm/transhuge)."""

    kind: ClassVar[str] = "thp"
    path: ClassVar[str] = "/sys/kernel/mm/transparent_hugepage/enabled"
    form: ClassVar[Form] = "chosen"
    values: ClassVar[tuple[str | int, ...]] = ("always", "madvise", "never")


class Ksm(OneFile):
    """Kernel same-page merging (admin-guide/mm/ksm): 0 stops and keeps merged pages, 1 runs, 2 stops and unmerges."""

    kind: ClassVar[str] = "ksm"
    path: ClassVar[str] = "/sys/kernel/mm/ksm/run"
    form: ClassVar[Form] = "number"
    values: ClassVar[tuple[str | int, ...]] = (0, 1, 2)
    limit_seconds: ClassVar[float | None] = 300.0  # unmerging touches every merged page
    may_stop_midway: ClassVar[bool] = True  # if interrupted then, it is 0 (mm/ksm.c, run_store)


class NumaBalancing(OneFile):
    """Automatic NUMA balancing (admin-guide/sysctl/kernel): a bit mask since Linux 5.18, 0 off."""

    kind: ClassVar[str] = "numa-balancing"
    path: ClassVar[str] = "/proc/sys/kernel/numa_balancing"
    target_name: ClassVar[str | None] = "kernel.numa_balancing"
    form: ClassVar[Form] = "number"
    values: ClassVar[tuple[str | int, ...]] = (0, 1, 2, 3)
