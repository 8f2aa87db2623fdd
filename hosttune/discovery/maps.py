"""Parser for `/proc/PID/numa_maps`: on which nodes the pages of a process are, and how large they are (proc(5))."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hosttune.machine.reader import number
from hosttune.model.values import Value, close_mappings

_ON_NODE = re.compile(r"N([0-9]{1,4})=([0-9]{1,15})")


class Mapped(Value, frozen=True, kw_only=True):
    """One mapping: its memory policy ("bind:0"), the file behind it, and the number of its pages in memory by node.

    `file` is None for anonymous memory, and a name in brackets for heap and stack. `page_bytes` None: unknown.
    """

    policy: str
    pages: Mapping[str, int]
    page_bytes: int | None = None
    huge: bool = False
    file: str | None = None

    def __post_init__(self) -> None:
        close_mappings(self, "pages")


def unread_line(text: str) -> str | None:
    """Return the first incomplete line: its pages by node do not add up to its total. None if every line is complete.

    A line of an address that an earlier line has is not complete either: each mapping has one.

    The total is `mapped`. The kernel leaves `mapped` out if it equals `anon` or `dirty`, which are parts of it; it
    leaves out all three if there are no pages (show_numa_map, fs/proc/task_mmu.c).
    """
    seen: set[str] = set()
    for line in text.splitlines():
        words = line.split()
        if words and words[0] in seen:
            return line
        seen.update(words[:1])
        fields = dict(word.partition("=")[::2] for word in words[2:])
        totals = {name: number(fields[name]) for name in ("anon", "dirty", "mapped") if name in fields}
        every = totals.get("mapped", max((count or 0 for count in totals.values()), default=0))
        by_node = sum(int(found[2]) for word in words[2:] if (found := _ON_NODE.fullmatch(word)))
        if len(words) < 2 or None in totals.values() or by_node != every:
            return line
    return None


def parse_maps(text: str) -> Iterator[Mapped]:
    """Yield one value for each line that has pages. The kernel escapes blanks in file names ("\\040")."""
    for line in text.splitlines():
        words = line.split()
        pages = {found[1]: int(found[2]) for word in words[2:] if (found := _ON_NODE.fullmatch(word))}
        if pages:
            fields = dict(word.partition("=")[::2] for word in words[2:])
            size = fields.get("kernelpagesize_kB", "")
            place = next((f"[{name}]" for name in ("heap", "stack") if name in words), None)
            yield Mapped(
                policy=words[1],
                pages=pages,
                page_bytes=None if (kibibytes := number(size, 10**11)) is None else kibibytes << 10,
                huge="huge" in words,
                file=fields.get("file", place),
            )
