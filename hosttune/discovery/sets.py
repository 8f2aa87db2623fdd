"""Sets of CPUs and nodes in the kernel's formats: lists ("0-3,8") and masks ("00000000,0000010f")."""

from __future__ import annotations

import re

from hosttune.machine.reader import Reader
from hosttune.model.limits import check_count
from hosttune.model.values import CpuSet

# The masks among the files that discovery reads. All other files are lists.
_MASKS = frozenset(
    ("core_cpus", "thread_siblings", "package_cpus", "core_siblings", "shared_cpu_map", "cpumap"),
)
MOST = 1 << 16  # ids: eight times the most CPUs that Linux can be built for (NR_CPUS 8192)
_RANGE = re.compile(r"([0-9]{1,9})\s*-\s*([0-9]{1,9})")
_SHORT = 1 << 16  # characters: a list of every second CPU of 8192 has 24,000
_PLAIN = re.compile(r"(?:[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)?")


def parse_list(text: str) -> CpuSet:
    """Parse a list from an untrusted source. Like CpuSet.parse, but a few bytes cannot name a million CPUs.

    The kernel's "(null)" (`nohz_full`) is the empty set. Raises ValueError, also if the ranges together are longer than
    MOST.
    """
    if text == "(null)":
        return CpuSet()
    if _count(text) > MOST:
        raise ValueError("names more CPUs than there can be")
    return CpuSet.parse(text)


def _count(text: str) -> int:
    """Return how many ids the ranges of a list name. A single id is counted like a few characters."""
    if len(text) < _SHORT:
        return sum(max(0, int(last) - int(first)) + 1 for first, last in _RANGE.findall(text)) + len(text)
    return MOST + 1


def parse_mask(text: str) -> CpuSet:
    """Parse a mask like CpuSet.parse_mask. Raises ValueError, also for more than MOST bits."""
    if len(text) > MOST // 32 * 9:
        raise ValueError("names more CPUs than there can be")
    return CpuSet.parse_mask(text)


def read_set(reader: Reader, path: str) -> CpuSet | None:
    """Return the set in a file, a list or a mask by the file's name; None if absent, or, with a problem, if not a set.

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
    """Return the set of a text.

    A reader parses each text only once, because the CPUs of a package repeat the same long one.
    Raises ValueError if the text is not a set, BadInput if all texts together name more CPUs than any machine has.
    """
    if not text:
        return CpuSet()
    cpu_set = reader.sets.get((text, mask))
    if cpu_set is None:
        reader.ids_named += len(text) if mask else min(_count(text), MOST)  # first: parsing costs time
        check_count(reader.ids_named, "CPUs named in all lists", reader.system.origin)
        cpu_set = parse_mask(text) if mask else parse_list(text)
        reader.sets[text, mask] = cpu_set
    return cpu_set


def plain(text: str, ids: CpuSet) -> str:
    """Return the text of a set unchanged if it has the kernel's form, or else converted to it: "" for an empty set."""
    return text if _PLAIN.fullmatch(text) else str(ids)


def read_list(reader: Reader, path: str) -> str | None:
    """Return the list in a file as the kernel wrote it, or else converted to the kernel's form.

    The result is "" for an empty list and for "(null)". None if the file is absent or, with a problem, if it does not
    hold a list.
    """
    ids = read_set(reader, path)
    if ids is None:
        return None
    return plain(reader.text(path) or "", ids)
