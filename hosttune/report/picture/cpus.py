"""A node's CPUs as strips of cells, one per core, with CPU numbers at the ends of each strip.

A frame is around cores that share a last-level cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hosttune.model.host import Cpu
from hosttune.model.listing import short_list
from hosttune.model.text import count
from hosttune.model.values import CpuSet, grouped
from hosttune.report.picture.guests import PictureGuest
from hosttune.report.picture.host_view import HostView
from hosttune.report.picture.shapes import (
    ASCENT,
    SMALL,
    Rect,
    Shape,
    ShapeBlock,
    ShapeGroup,
    ShapeLine,
    flowed,
    label,
    stacked,
    text_width,
)
from hosttune.report.picture.text import paragraph

CELL = 14.0
_APART = 2.0  # between cells
_FRAME = 3.0  # between a cache's frame and its cells
_BESIDE = 3.0  # between a strip and its numbers
CAPITAL = 0.73  # height of a capital letter, as a part of the font size
MOST_CELLS = 512  # cells of one node; with more cores, one cell is several cores
_LONGEST_LETTER = 2  # a guest's letter with more characters is not written into cells


def cpu_block(view: HostView, cpus: tuple[Cpu, ...], width: float) -> ShapeBlock:
    """Return the node's CPUs as text, with the cells below. `cpus` are the online ones, at least one."""
    caches = grouped((cpu.llc, cpu) for cpu in cpus)
    step = -(-len(cores_of(cpus)) // MOST_CELLS)
    words = _cores_text(cpus, caches) + (f", one cell is {step} cores" if step > 1 else "")
    letters = {holder.letter for holder in view.guests if holder.cpus and len(holder.letter) <= _LONGEST_LETTER}
    cell, number = (
        max((CELL, *(text_width(letter, SMALL, bold=True) + 2 for letter in letters))),
        max(text_width(str(cpu.id), SMALL) for cpu in cpus) + _BESIDE,
    )
    frames = [_cache(view, cache, members, width - 2 * number, step, cell) for cache, members in caches.items()]
    strips = [_numbered(frame, rows, number) for frame, rows in frames]
    text = paragraph(words, width, SMALL)
    lines = ShapeBlock(
        width=width, height=text.height, groups=(ShapeGroup(kind="cpus", shapes=text.shapes, title=words),)
    )
    return stacked((lines, flowed(strips, width, 4)), 3)


def _cores_text(cpus: tuple[Cpu, ...], caches: Iterable[int | None]) -> str:
    facts = [f"CPUs {short_list(cpu.id for cpu in cpus)}"]
    if all(cpu.core is not None for cpu in cpus):
        cores = len(cores_of(cpus))
        facts.append(count(cores, "core") + (f" × {len(cpus) // cores} threads" if len(cpus) > cores else ""))
    caches = tuple(caches)
    facts += [] if None in caches else [count(len(caches), "last-level cache")]
    isolated = CpuSet(cpu.id for cpu in cpus if cpu.isolated)
    hidden = CpuSet(cpu.id for cpu in cpus if cpu.allowed is False)
    facts += [f"isolated {short_list(isolated)}"] if isolated else []
    facts += [f"hidden from guests {short_list(hidden)}"] if hidden else []
    return ", ".join(facts)


def cores_of(cpus: Iterable[Cpu]) -> list[tuple[Cpu, ...]]:
    """Return CPUs by core, in CPU order. A CPU whose core is unknown is a core of its own."""
    cores = grouped(((cpu.core is None, cpu.id if cpu.core is None else cpu.core), cpu) for cpu in cpus)
    return [tuple(core) for core in cores.values()]


Row = tuple[int, int, float]  # the first CPU of a strip's first and last core, and the strip's top


def _cache(
    view: HostView, cache: int | None, cpus: Sequence[Cpu], width: float, step: int, cell: float
) -> tuple[ShapeBlock, tuple[Row, ...]]:
    """Return the cells of one last-level cache, in rows of about equal length that fit the width, with a frame.

    An unknown cache has no frame.
    """
    cores, pitch = cores_of(cpus), cell + _APART
    cells = [tuple(cpu for core in cores[at : at + step] for cpu in core) for at in range(0, len(cores), step)]
    most = max(1, int((width - 2 * _FRAME + _APART) // pitch))
    rows = -(-len(cells) // most)
    columns = -(-len(cells) // rows)
    high = CELL + _APART
    groups = [
        _cell(view, core, _FRAME + n % columns * pitch, _FRAME + n // columns * high, cell)
        for n, core in enumerate(cells)
    ]
    wide, tall = columns * pitch + 2 * _FRAME - _APART, rows * high + 2 * _FRAME - _APART
    if cache is not None:
        frame = Rect(x=0, y=0, width=wide, height=tall, style="cache", radius=3)
        title = f"last-level cache {cache}: {count(len(cores), 'core')}, CPUs {short_list(cpu.id for cpu in cpus)}"
        groups.insert(0, ShapeGroup(kind="cache", shapes=(frame,), title=title))
    strips = [cells[at : at + columns] for at in range(0, len(cells), columns)]
    ends = tuple((strip[0][0].id, strip[-1][0].id, _FRAME + n * high) for n, strip in enumerate(strips))
    return ShapeBlock(width=wide, height=tall, groups=tuple(groups)), ends


def _numbered(frame: ShapeBlock, rows: Iterable[Row], number: float) -> ShapeBlock:
    """Return a frame with the number of the first CPU on the left of each strip, and of the last core on its right."""
    shapes: list[Shape] = []
    for first, last, y in rows:
        top = y + (CELL - CAPITAL * SMALL) / 2 - (ASCENT - CAPITAL) * SMALL
        left = label(number - _BESIDE, top, str(first), SMALL, most=number, style="dim", anchor="end")
        right = label(number + frame.width + _BESIDE, top, str(last), SMALL, most=number, style="dim")
        shapes += [left] if first == last else [left, right]
    ends = ShapeBlock(width=0, height=0, groups=(ShapeGroup(kind="ends", shapes=tuple(shapes)),))
    cells = stacked((frame,), 0, left=number)
    return ShapeBlock(width=frame.width + 2 * number, height=frame.height, groups=(*cells.groups, *ends.groups))


def _cell(view: HostView, cpus: tuple[Cpu, ...], x: float, y: float, width: float) -> ShapeGroup:
    held = [view.cpu_holders.get(cpu.id, ()) for cpu in cpus]
    holders = tuple({holder.letter: holder for some in held for holder in some}.values())
    # of a core that no guest has; they are in its tooltip too
    states = ["isolated"] if any(cpu.isolated for cpu in cpus) else []
    states += ["hidden"] if any(cpu.allowed is False for cpu in cpus) else []
    if view.by_guest and not any(cpu.id in view.cpu_holders for cpu in cpus):
        states.append("housekeeping" if any(cpu.id in view.housekeeping for cpu in cpus) else "free")
    kept = [word for word in states if word == "isolated"] if holders else states
    # A guest's colour fills the whole core even if it has only one thread of it: no other guest should have the rest.
    colour = [] if not holders else [f"g{holders[0].colour}"] if len(holders) == 1 else ["several"]
    style = " ".join(["core", *kept, *colour])
    box = Rect(x=x, y=y, width=width, height=CELL, style=style, radius=2)
    words = [f"CPUs {short_list(cpu.id for cpu in cpus)}", *states]
    words += [f"{kind} core" for kind in dict.fromkeys(cpu.kind for cpu in cpus) if kind]
    words += [f"{sum(1 for some in held if some)} of {len(cpus)} held"] if holders else []
    words += [f"guest {holder.letter}, {holder.name}" for holder in holders]
    hatch = (ShapeLine(points=((x + 3, y + CELL - 3), (x + width - 3, y + 3)), style="hatch", thick=2),)
    return ShapeGroup(
        kind="core",
        shapes=(box, *(hatch if "housekeeping" in states else ()), *_letter(holders, x, y, width)),
        title=", ".join(words),
        data=_data(cpus, holders),
    )


def _data(cpus: Sequence[Cpu], holders: Iterable[PictureGuest]) -> tuple[tuple[str, str], ...]:
    """Return the CPUs of each guest ("A:1,97 B:2") for programs."""
    ids = CpuSet(cpu.id for cpu in cpus)
    held = " ".join(f"{holder.letter}:{CpuSet(holder.cpus & ids)}" for holder in holders)
    return (("cpus", str(ids)), *((("held", held),) if held else ()))


def _letter(holders: tuple[PictureGuest, ...], x: float, y: float, width: float) -> tuple[Shape, ...]:
    """Return the guest's letter for the cell, "+" for several guests."""
    letter = holders[0].letter if len(holders) == 1 else "+"
    if not holders or len(letter) > _LONGEST_LETTER:
        return ()
    top = y + (CELL - CAPITAL * SMALL) / 2 - (ASCENT - CAPITAL) * SMALL
    style = f"on{holders[0].colour}" if len(holders) == 1 else "onguest"
    return (label(x + width / 2, top, letter, SMALL, most=width, style=style, bold=True, anchor="middle"),)
