"""A kernel command line: split as the kernel splits it, read, and with some arguments replaced.

Pure: reads nothing. `arguments` is a command line as `split` returns it; None if it is unknown. The name "hugepages"
means all arguments that ask for 1 GiB pages, sizes and counts together: they have a meaning only together and in their
order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import msgspec

from hosttune.model.values import number

PAGES = "hugepages"
HUGE_1G = 1 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(?i)([0-9]{1,15})([KMGT]?)")


def split(text: str) -> tuple[str, ...]:
    """Split kernel arguments as the kernel does: at white space that is not inside double quotes.

    The quotes stay in the text, so joining the arguments with spaces gives the same command line (lib/cmdline.c,
    next_arg).
    """
    return tuple(re.findall(r'(?:[^\s"]|"[^"]*(?:"|$))+', text))


def find(arguments: Sequence[str] | None, name: str) -> str | None:
    """Return the first argument with this name ("iommu" finds "iommu=pt"); None if there is none."""
    return next((a for a in arguments or () if a.partition("=")[0] == name), None)


def options(argument: str | None) -> list[str]:
    """Return the comma-separated values of an argument."""
    return [part for part in (argument or "").partition("=")[2].split(",") if part]


def text_of(arguments: Sequence[str] | None, name: str) -> str | None:
    """Return the argument with this name as text, all of them if it is repeated; None if there is none."""
    if name == PAGES:
        return " ".join(read_boot_pages(arguments).arguments) or None
    return " ".join(a for a in arguments or () if a.partition("=")[0] == name) or None


def changed(arguments: Sequence[str], wanted: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the command line with these arguments at the end, in their order, in place of all others with their names.

    None as the argument removes all arguments with that name.
    """
    added = [word for text in wanted.values() if text for word in split(text)]
    return (*without(arguments, wanted), *added)


def without(arguments: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """Return the command line without arguments of these names. Pages of other sizes and the default size stay."""
    size = _size(options(find(arguments, "default_hugepagesz")))
    kept: list[str] = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name in ("hugepagesz", "default_hugepagesz"):
            size = _size([value])
        pages = name in ("hugepagesz", PAGES)
        if not (PAGES in names and size == HUGE_1G if pages else name in names):
            kept.append(argument)
    return tuple(kept)


class BootPages(msgspec.Struct, frozen=True):
    """The 1 GiB pages that a command line asks for.

    They are given by node, or as `anywhere`: a total that the kernel spreads over the nodes.
    """

    arguments: tuple[str, ...] = ()
    by_node: Mapping[int, int] | None = None
    anywhere: int = 0

    def least(self, node: int, totals: Mapping[int, int]) -> int:
        """Return the least number of pages that the node gets at every boot.

        `totals`: the present pools of all nodes with memory.
        """
        if self.by_node is not None:
            return self.by_node.get(node, 0)
        if sum(totals.values()) == self.anywhere:  # the kernel's present distribution
            return totals.get(node, 0)
        return self.anywhere // max(1, len(totals))

    def most(self, node: int, totals: Mapping[int, int]) -> int:
        """Return the pages to keep for the node so that all nodes together get no fewer pages than now."""
        if self.by_node is not None:
            return self.by_node.get(node, 0)
        if sum(totals.values()) >= self.anywhere:
            return totals.get(node, 0)
        return -(-self.anywhere // max(1, len(totals))) if node in totals else 0


def read_boot_pages(arguments: Sequence[str] | None) -> BootPages:
    """Return the 1 GiB pages of a command line.

    `hugepages=` belongs to the `hugepagesz=` or `default_hugepagesz=` before it, or to the default size if there is
    none. A second count for the same size is ignored (mm/hugetlb.c, hugepages_setup).
    """
    default = _size(options(find(arguments, "default_hugepagesz")))
    size = default
    selector: str | None = None
    for argument in arguments or ():
        name, _, value = argument.partition("=")
        if name in ("hugepagesz", "default_hugepagesz"):
            size = _size([value])
            if name == "hugepagesz" and size == HUGE_1G and selector is None:
                selector = argument
        elif name == PAGES and size == HUGE_1G:
            return _counted(value, tuple(a for a in (selector, argument) if a))
    return BootPages((selector,) if selector else ())


def _size(values: Sequence[str]) -> int | None:
    match = _SIZE.fullmatch(values[0]) if values else None
    return int(match[1]) * _UNITS[match[2].upper()] if match else None


def _counted(value: str, arguments: tuple[str, ...]) -> BootPages:
    if (alone := number(value)) is not None:
        return BootPages(arguments, None, alone)
    counts: dict[int, int] = {}
    for part in value.split(","):
        node, count = (number(word) for word in part.partition(":")[::2])
        if node is None or count is None:
            break  # the kernel stops parsing here too
        counts[node] = count
    return BootPages(arguments, counts)
