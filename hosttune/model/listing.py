"""Long lists as text that fits on a line: names, and CPU ids."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.model.values import CpuSet

LONG_LIST = 32  # a CPU list up to this many characters is not shortened
PLACES = 4  # names shown of a long list before "and N more"


def some(names: Iterable[str], most: int = PLACES, between: str = ", ") -> str:
    """Return the first few of many names, and how many more there are."""
    names = tuple(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def numbered(noun: str, ids: Iterable[int]) -> str:
    """Return a noun with its numbers: "node 0", "nodes 0-1"."""
    cpu_set = CpuSet(ids)
    return f"{noun}{'' if len(cpu_set) == 1 else 's'} {cpu_set}"


def short_list(ids: Iterable[int]) -> str:
    """Return CPU ids for people: the kernel's list format, or "0,2..222" for even steps if that list would be long."""
    plain = str(CpuSet(ids))
    if len(plain) <= LONG_LIST:
        return plain
    ordered = sorted(set(CpuSet.parse(plain)))
    runs: list[list[int]] = []
    for cpu in ordered:
        if runs and (len(runs[-1]) < 2 or cpu - runs[-1][-1] == runs[-1][1] - runs[-1][0]):
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(_run(run) for run in runs)


def _run(run: list[int]) -> str:
    if len(run) < 3:
        return ",".join(map(str, run))
    return f"{run[0]}-{run[-1]}" if run[1] == run[0] + 1 else f"{run[0]},{run[1]}..{run[-1]}"
