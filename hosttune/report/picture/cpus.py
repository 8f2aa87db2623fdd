"""A node's CPUs as small cells, one per core, with a frame around cores that share a last-level cache."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.model.host import Cpu
from hosttune.model.listing import short_list
from hosttune.model.values import CpuSet
from hosttune.report.branch import count
from hosttune.report.picture.host_view import Holder, HostView
from hosttune.report.picture.shapes import ASCENT, Block, Group, Rect, Shape, flowed, label, stacked
from hosttune.report.picture.text import paragraph

CELL = 11.0
_PITCH = 13.0
_FRAME = 3.0  # between a cache's frame and its cells
CAPITAL = 0.73  # height of a capital letter, as a part of the font size
MOST_CELLS = 512  # cells of one node; with more cores, one cell is several cores


def cpu_block(view: HostView, cpus: tuple[Cpu, ...], width: float) -> Block:
    """Return the node's CPUs as text, with the cells below. `cpus` are the online ones, at least one."""
    caches: dict[int | None, list[Cpu]] = {}
    for cpu in cpus:
        caches.setdefault(cpu.llc, []).append(cpu)
    step = -(-len(_cores(cpus)) // MOST_CELLS)
    words = _words(cpus, caches) + (f", one cell is {step} cores" if step > 1 else "")
    frames = [_cache(view, cache, tuple(members), width, step) for cache, members in caches.items()]
    text = paragraph(words, width, 10)
    lines = Block(width=width, height=text.height, groups=(Group(kind="cpus", shapes=text.shapes, title=words),))
    return stacked((lines, flowed(frames, width, 4)), 3)


def _words(cpus: tuple[Cpu, ...], caches: Iterable[int | None]) -> str:
    facts = [f"CPUs {short_list(cpu.id for cpu in cpus)}"]
    if all(cpu.core is not None for cpu in cpus):
        cores = len(_cores(cpus))
        facts.append(count(cores, "core") + (f" × {len(cpus) // cores} threads" if len(cpus) > cores else ""))
    caches = tuple(caches)
    facts += [] if None in caches else [count(len(caches), "last-level cache")]
    isolated = CpuSet(cpu.id for cpu in cpus if cpu.isolated)
    hidden = CpuSet(cpu.id for cpu in cpus if cpu.allowed is False)
    facts += [f"isolated {short_list(isolated)}"] if isolated else []
    facts += [f"hidden from guests {short_list(hidden)}"] if hidden else []
    return ", ".join(facts)


def _cores(cpus: Iterable[Cpu]) -> list[tuple[Cpu, ...]]:
    """Return CPUs by core, in CPU order. A CPU whose core is unknown is a core of its own."""
    cores: dict[tuple[bool, int], list[Cpu]] = {}
    for cpu in cpus:
        cores.setdefault((cpu.core is None, cpu.id if cpu.core is None else cpu.core), []).append(cpu)
    return [tuple(core) for core in cores.values()]


def _cache(view: HostView, cache: int | None, cpus: tuple[Cpu, ...], width: float, step: int) -> Block:
    """Return the cells of one last-level cache, in rows that fit the width, with a frame.

    An unknown cache has no frame.
    """
    cores = _cores(cpus)
    cells = [tuple(cpu for core in cores[at : at + step] for cpu in core) for at in range(0, len(cores), step)]
    columns = max(1, min(len(cells), int((width - 2 * _FRAME) // _PITCH)))
    groups = [
        _cell(view, cell, _FRAME + n % columns * _PITCH, _FRAME + n // columns * _PITCH) for n, cell in enumerate(cells)
    ]
    rows = -(-len(cells) // columns)
    wide, high = columns * _PITCH + 2 * _FRAME - 2, rows * _PITCH + 2 * _FRAME - 2
    if cache is not None:
        frame = Rect(x=0, y=0, width=wide, height=high, style="cache", radius=3)
        title = f"last-level cache {cache}: {count(len(cores), 'core')}, CPUs {short_list(cpu.id for cpu in cpus)}"
        groups.insert(0, Group(kind="cache", shapes=(frame,), title=title))
    return Block(width=wide, height=high, groups=tuple(groups))


def _cell(view: HostView, cpus: tuple[Cpu, ...], x: float, y: float) -> Group:
    held = [view.cpu_holders.get(cpu.id, ()) for cpu in cpus]
    holders = tuple({holder.letter: holder for some in held for holder in some}.values())
    states = [
        word
        for word, true in (
            ("isolated", any(cpu.isolated for cpu in cpus)),
            ("hidden", any(cpu.allowed is False for cpu in cpus)),
        )
        if true
    ]
    style = ["core", *(word for word in states if word != "hidden"), _colour(holders)] if holders else ["core", *states]
    shapes = (Rect(x=x, y=y, width=CELL, height=CELL, style=" ".join(style), radius=2), *_letter(holders, x, y))
    words = [f"CPUs {short_list(cpu.id for cpu in cpus)}", *states]
    words += [f"{kind} core" for kind in dict.fromkeys(cpu.kind for cpu in cpus) if kind]
    words += [f"{sum(1 for some in held if some)} of {len(cpus)} held"] if holders else []
    words += [f"guest {holder.letter}, {holder.name}" for holder in holders]
    return Group(kind="core", shapes=shapes, title=", ".join(words))


def _colour(holders: tuple[Holder, ...]) -> str:
    """Return the style of the core's holders.

    A guest's colour fills the whole core even if it has only one thread of it, because no other guest should have the
    rest.
    """
    return f"g{holders[0].colour}" if len(holders) == 1 else "several"


def _letter(holders: tuple[Holder, ...], x: float, y: float) -> tuple[Shape, ...]:
    """Return the guest's letter for the cell, "+" for several guests. Three letters do not fit and are left out."""
    letter = holders[0].letter if len(holders) == 1 else "+"
    if not holders or len(letter) > 2:
        return ()
    size = 8.0 if len(letter) == 1 else 5.5
    top = y + (CELL - CAPITAL * size) / 2 - (ASCENT - CAPITAL) * size
    return (label(x + CELL / 2, top, letter, size, most=CELL, style="onguest", bold=True, anchor="middle"),)
