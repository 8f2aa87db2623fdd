"""Sets of CPUs and nodes as the kernel writes them: lists ("0-3,8") and masks ("00000000,0000010f")."""

from __future__ import annotations

from functools import lru_cache

from hosttune.model.values import CpuSet
from hosttune.reader import Reader

# The masks among the files that discovery reads; every other one is a list.
_MASKS = frozenset(
    ("core_cpus", "thread_siblings", "package_cpus", "core_siblings", "shared_cpu_map", "cpumap"),
)


def plain_text(reader: Reader, path: str) -> str | None:
    """The file's text without the terminating NUL that some kernels count in.

    Linux 2.6.32 does so in node/online, 5.16 in the lists of topology and nodes.
    """
    text = reader.text(path)
    return None if text is None else text.strip("\0\n ")


def read_set(reader: Reader, path: str) -> CpuSet | None:
    """The set in a file, list or mask by the file's name; None when absent, a problem when it is no set.

    An empty file, and the "(null)" that `nohz_full` prints, are the empty set.
    """
    text = plain_text(reader, path)
    if text is None:
        return None
    if text in ("", "(null)"):
        return CpuSet()
    try:
        return _parse(text, path.rpartition("/")[2] in _MASKS)
    except ValueError:
        reader.problem("not a set of CPUs or nodes", path, f"reads {text[:40]!r}")
        return None


@lru_cache(maxsize=4096)  # the CPUs of a package repeat the same long text: parse it once
def _parse(text: str, is_mask: bool) -> CpuSet:
    return CpuSet.parse_mask(text) if is_mask else CpuSet.parse(text)
