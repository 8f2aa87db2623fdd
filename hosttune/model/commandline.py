"""A kernel command line: cut as the kernel cuts it, read, and with arguments of some names replaced.

Pure. `arguments` is a command line as `split` gives it, None where it is unknown. "hugepages" names the arguments
that ask for 1 GiB pages, size and counts, as one: they only mean something together and in this order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

PAGES = "hugepages"
HUGE_1G = 1 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]+)([KMGT]?)", re.IGNORECASE)


def split(text: str) -> tuple[str, ...]:
    """Kernel arguments as the kernel splits them: at white space that is not inside double quotes.

    The quotes stay in the text, so that joining with spaces gives the same command line (lib/cmdline.c, next_arg).
    """
    return tuple(re.findall(r'(?:[^\s"]|"[^"]*(?:"|$))+', text))


def find(arguments: Sequence[str] | None, name: str) -> str | None:
    """The first argument of this name ("iommu" finds "iommu=pt"), None when there is none."""
    return next((a for a in arguments or () if a.partition("=")[0] == name), None)


def options(argument: str | None) -> list[str]:
    """The comma-separated values of an argument."""
    return [part for part in (argument or "").partition("=")[2].split(",") if part]


def text_of(arguments: Sequence[str] | None, name: str) -> str | None:
    """What stands there of this name: its argument, all of them where it is repeated; None where there is none."""
    if name == PAGES:
        return " ".join(read_boot_pages(arguments).arguments) or None
    return " ".join(a for a in arguments or () if a.partition("=")[0] == name) or None


def changed(arguments: Sequence[str], wanted: Mapping[str, str | None]) -> tuple[str, ...]:
    """The command line with these arguments last, in their order, and nothing else of their names.

    A None takes all arguments of its name away.
    """
    added = [word for text in wanted.values() if text for word in split(text)]
    return (*without(arguments, wanted), *added)


def without(arguments: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """The command line without the arguments of these names; pages of other sizes and the default size stay."""
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


class BootPages(NamedTuple):
    """The 1 GiB pages that a command line asks for: by node, or `anywhere` spread over the nodes by the kernel."""

    arguments: tuple[str, ...] = ()
    by_node: Mapping[int, int] | None = None
    anywhere: int = 0

    def least(self, node: int, totals: Mapping[int, int]) -> int:
        """Pages that the node gets at least at every boot. `totals`: the pools of all nodes with memory, now."""
        if self.by_node is not None:
            return self.by_node.get(node, 0)
        if sum(totals.values()) == self.anywhere:  # what the kernel made of it
            return totals.get(node, 0)
        return self.anywhere // max(1, len(totals))

    def most(self, node: int, totals: Mapping[int, int]) -> int:
        """Pages to keep for the node so that all nodes together get no fewer than now."""
        if self.by_node is not None:
            return self.by_node.get(node, 0)
        if sum(totals.values()) >= self.anywhere:
            return totals.get(node, 0)
        return -(-self.anywhere // max(1, len(totals))) if node in totals else 0


def read_boot_pages(arguments: Sequence[str] | None) -> BootPages:
    """The 1 GiB pages of a command line.

    `hugepages=` belongs to the `hugepagesz=` or `default_hugepagesz=` before it, to the default size where there
    is none; a second count for a size is ignored (mm/hugetlb.c, hugepages_setup).
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
    if value.isdecimal():
        return BootPages(arguments, None, int(value))
    counts: dict[int, int] = {}
    for part in value.split(","):
        node, _, count = part.partition(":")
        if not (node.isdecimal() and count.isdecimal()):
            break  # the kernel stops here too
        counts[int(node)] = int(count)
    return BootPages(arguments, counts)
