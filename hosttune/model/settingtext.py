"""A setting's value in words, the same in all places: in a plan, in the prompt, in a result, in a reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hosttune.model.listing import LONG_LIST, short_list
from hosttune.model.text import count
from hosttune.model.values import CpuSet, format_size, grouped, value_text

_CPU_LIST = re.compile(r"(?<![\w:.-])[0-9]{1,5}(?:[-,][0-9]{1,5}){2,}(?![\w:.-])")


def setting_value(kind: str, value: Any) -> Any:
    """Return a setting's value as people read it: of a mount, the pages by their size."""
    return f"{format_size(value)} pages" if kind == "mount" and isinstance(value, int) else value


def short_lists(text: str) -> str:
    """Return a text in which long CPU lists with even steps are short: "2,4,6" up to 166 is "2,4..166"."""
    return _CPU_LIST.sub(lambda match: _short(match[0]), text)


def _short(cpus: str) -> str:
    if len(cpus) <= LONG_LIST:
        return cpus
    try:
        return short_list(CpuSet.parse(cpus))
    except ValueError:  # it is not a list of CPUs
        return cpus


NOTHING = "none"


LONGEST_VALUE = 60  # characters of a value in a row


def setting_text(action: str) -> str:
    """Return an action's id for people, as the plan's text shows it: "driver:0000:41:00.0" is "driver 0000:41:00.0"."""
    kind, _, target = action.partition(":")
    return f"{kind} {short_lists(target)}" if target and target != kind else kind


def short_value(value: Any) -> str:
    """Return a value for a row: one line, cut if it is long; an empty value is "none"."""
    if isinstance(value, Mapping) and any("\n" in str(part) for part in value.values()):
        return f"({count(len(value), 'file')})"
    text = short_lists(value_text(value, nothing=NOTHING))
    lines = text.splitlines()
    if len(lines) > 1:
        return f"({len(lines)} lines)"
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def change_text(now: str, then: str) -> str:
    """Return what changes, in words of `short_value`: contents of the same size are only said to be others."""
    same = f"{now}, edited" if now.startswith("(") else f"{now} as before, only noted"
    return same if now == then else f"{now} -> {then}"


def targets_text(kind: str, targets: Sequence[str]) -> tuple[str, str]:
    """Return the title of a change that is the same for each target, and the targets, "" if the title has the one."""
    if len(targets) == 1:
        return setting_text(f"{kind}:{targets[0]}"), ""
    return f"{kind} of {len(targets)} targets, each", ", ".join(map(short_lists, targets))


def value_lines(rows: Iterable[tuple[Any, Any, Any, str]]) -> Iterator[str]:
    """Yield the lines of a prompt: (setting, present value, value that it would get, why); alike ones are one line."""
    alike = grouped(
        (
            (
                setting.kind,
                *(short_value(setting_value(setting.kind, setting.shown(value))) for value in (live, want)),
                why,
            ),
            setting.target,
        )
        for setting, live, want, why in rows
    )
    for (kind, now, then, why), targets in alike.items():
        title, names = targets_text(kind, targets)
        yield f"  {title}: {change_text(now, then)}{f' ({why})' if why else ''}"
        if names:
            yield f"      {names}"
