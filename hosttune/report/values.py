"""A setting's value in words, the same in all places: in a plan, in the prompt, in a result, in a reason."""

from __future__ import annotations

import re
from typing import Any

from hosttune.model.listing import LONG_LIST, short_list
from hosttune.model.values import CpuSet, format_size

_CPU_LIST = re.compile(r"(?<![\w:.-])[0-9]{1,5}(?:[-,][0-9]{1,5}){2,}(?![\w:.-])")


def setting_value(kind: str, value: Any) -> Any:
    """Return a setting's value as people read it: of a mount, the pages by their size."""
    return f"{format_size(value)} pages" if kind == "mount" and isinstance(value, int) else value


def short_lists(text: str) -> str:
    """Return a text in which long CPU lists with even steps are short: "2,4,6" up to 166 is "2,4..166"."""
    return _CPU_LIST.sub(lambda found: _short(found[0]), text)


def _short(cpus: str) -> str:
    if len(cpus) <= LONG_LIST:
        return cpus
    try:
        return short_list(CpuSet.parse(cpus))
    except ValueError:  # it is not a list of CPUs
        return cpus
