"""Sets of CPUs and nodes as the kernel writes them: lists ("0-3,8") and masks ("00000000,0000010f")."""

from __future__ import annotations

import re

from hosttune.model.limits import check_count
from hosttune.model.values import CpuSet
from hosttune.reader import Reader

# The masks among the files that discovery reads; every other one is a list.
_MASKS = frozenset(
    ("core_cpus", "thread_siblings", "package_cpus", "core_siblings", "shared_cpu_map", "cpumap"),
)
MOST = 1 << 16  # ids: eight times the most CPUs that Linux can be built for (NR_CPUS 8192)
_RANGE = re.compile(r"([0-9]{1,9})\s*-\s*([0-9]{1,9})")
_SHORT = 1 << 16  # characters: every second CPU of 8192 by itself is 24,000
_PLAIN = re.compile(r"(?:[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)?")


def parse_list(text: str) -> CpuSet:
    """A list whose writer is not trusted: as CpuSet.parse, but a few bytes cannot name a million CPUs.

    The kernel's "(null)" (`nohz_full`) is the empty set. Raises ValueError, also for ranges that are longer than MOST
    together.
    """
    if text == "(null)":
        return CpuSet()
    if _named(text) > MOST:
        raise ValueError("names more CPUs than there can be")
    return CpuSet.parse(text)


def _named(text: str) -> int:
    """How many ids the ranges of a list name; each single one counts as a few characters do."""
    if len(text) < _SHORT:
        return sum(max(0, int(last) - int(first)) + 1 for first, last in _RANGE.findall(text)) + len(text)
    return MOST + 1


def parse_mask(text: str) -> CpuSet:
    """A mask as CpuSet.parse_mask reads it. Raises ValueError, also for one of more than MOST bits."""
    if len(text) > MOST // 32 * 9:
        raise ValueError("names more CPUs than there can be")
    return CpuSet.parse_mask(text)


def read_set(reader: Reader, path: str) -> CpuSet | None:
    """The set in a file, list or mask by the file's name; None when absent, a problem when it is no set.

    An empty file is the empty set.
    """
    text = reader.text(path)
    if text is None:
        return None
    try:
        return parsed(reader, text, mask=path.rpartition("/")[2] in _MASKS)
    except ValueError:
        reader.problem("not a set of CPUs or nodes", path, f"reads {text[:40]!r}")
        return None


def parsed(reader: Reader, text: str, *, mask: bool = False) -> CpuSet:
    """The set of a text; the CPUs of a package repeat the same long one, which is parsed once a reader.

    Raises ValueError for what is no set, BadInput where all texts together name more CPUs than any machine's.
    """
    if not text:
        return CpuSet()
    found = reader.sets.get((text, mask))
    if found is None:
        reader.ids_named += len(text) if mask else min(_named(text), MOST)  # before: what is no set costs time as well
        check_count(reader.ids_named, "CPUs named in all lists", reader.system.origin)
        found = parse_mask(text) if mask else parse_list(text)
        reader.sets[text, mask] = found
    return found


def plain(text: str, ids: CpuSet) -> str:
    """The text of a set as it is where it has the kernel's form, else in that form: "" for an empty set."""
    return text if _PLAIN.fullmatch(text) else str(ids)


def read_list(reader: Reader, path: str) -> str | None:
    """The list in a file as the kernel wrote it, else in the kernel's form: "" for an empty one and for "(null)".

    None when absent, a problem when it is no list.
    """
    ids = read_set(reader, path)
    if ids is None:
        return None
    return plain(reader.text(path) or "", ids)
