"""The parts around the nodes: the title above; guests, problems and the legend below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hosttune.model.host import RunningGuest
from hosttune.model.listing import some
from hosttune.report.branch import count
from hosttune.report.picture.host_view import Holder, HostView, Mark, check_marks
from hosttune.report.picture.metrics import text_width
from hosttune.report.picture.shapes import SIGN, Block, Group, Line, Rect, Shape, Sign, Text, flowed, label, shifted
from hosttune.report.picture.text import Piece, at, below, mark_row, paragraph
from hosttune.report.text import guest_facts, header, problem_lines
from hosttune.report.text import title as title_of

_LABEL = 66.0
_CARD = 252.0
MOST_PROBLEMS = 24
_OUTCOMES = (("pass", "passed"), ("fail", "failed"), ("unknown", "unknown"), ("warn", "warned"), ("skip", "skipped"))


def title_block(view: HostView, elsewhere: Sequence[Mark], width: float) -> Block:
    """Return the host's name, facts about the whole machine, and faults of the whole machine."""
    name, _, machine = title_of(view.host).partition(": ")
    pieces = [_heading(name, 24, width), paragraph(machine, width, 12, lines=2)]
    rows = [*header(view.host), *([("checks", _tally(view))] if view.checked else [])]
    pieces += [_fact(head, text.replace(" x ", " × "), width) for head, text in rows]
    pieces += [mark_row(mark, width) for mark in elsewhere]
    whole = below(pieces, 3)
    return Block(width=width, height=whole.height, groups=(Group(kind="title", shapes=at(whole, 0, 0)),))


def _heading(text: str, size: float, width: float) -> Piece:
    return Piece(width=width, height=size * 1.25, shapes=(label(0, 0, text, size, most=width, bold=True),))


def _fact(head: str, text: str, width: float) -> Piece:
    body = paragraph(text, width - _LABEL, 10.5, lines=3, style="")
    shapes = (label(0, 0, head, 10.5, most=_LABEL - 4, style="dim"), *at(body, _LABEL, 0))
    return Piece(width=width, height=body.height, shapes=shapes)


def _tally(view: HostView) -> str:
    counts = {outcome: sum(1 for result in view.checked if result.outcome == outcome) for outcome, _ in _OUTCOMES}
    return ", ".join(f"{counts[outcome]} {word}" for outcome, word in _OUTCOMES if counts[outcome])


def guests_panel(view: HostView, width: float) -> Block:
    """Return a card for each guest: its letter, its name, and what it has, in figures."""
    cards = [_guest(view, holder, guest) for holder, guest in zip(view.guests, view.host.guests or (), strict=True)]
    return _panel("Guests", flowed(cards, width - 24, 8), width)


def _panel(name: str, content: Block, width: float) -> Block:
    high = content.height + 42
    back = Rect(x=0, y=0, width=width, height=high, style="panel", radius=9)
    head = label(12, 10, name, 13, most=width - 24, bold=True)
    group = Group(kind="panel", name=name, shapes=(back, head))
    return Block(width=width, height=high, groups=(group, *shifted(content, 12, 31)))


def _guest(view: HostView, holder: Holder, guest: RunningGuest) -> Block:
    inner = _CARD - 14
    badge = max(18.0, text_width(holder.letter, 11, bold=True) + 8)
    devices = [count(len(guest.devices), "device")] if guest.devices else []
    text = ", ".join(guest_facts(guest) + devices)
    name = label(badge + 6, 2, holder.name, 12, most=inner - badge - 6, bold=True)
    shapes: tuple[Shape, ...] = (
        Rect(x=0, y=0, width=badge, height=18, style=f"g{holder.colour}", radius=4),
        label(badge / 2, 3, holder.letter, 11, most=badge - 4, style="onguest", bold=True, anchor="middle"),
        name,
    )
    marks = check_marks(view, (guest.name,))
    whole = below(
        (
            Piece(width=inner, height=20, shapes=shapes),
            paragraph(text, inner, 10),
            *(mark_row(m, inner) for m in marks),
        ),
        3,
    )
    outline = Rect(x=0, y=0, width=_CARD, height=whole.height + 14, style=f"guest o{holder.colour}", radius=6)
    story = (f"guest {holder.letter}, {holder.name}: {text}", some(guest.devices, 16), *(mark.story for mark in marks))
    group = Group(
        kind="guest", name=guest.name, shapes=(outline, *at(whole, 7, 7)), title="; ".join(filter(None, story))
    )
    return Block(width=_CARD, height=whole.height + 14, groups=(group,))


def problems_panel(view: HostView, width: float) -> Block:
    """Return the host's problems, with the numbers that marks refer to."""
    lines = problem_lines(view.host)
    pieces = []
    for n, line in enumerate(lines[:MOST_PROBLEMS], 1):
        body = paragraph(line, width - 24 - 28, 10, lines=3, style="")
        number = label(0, 0, f"{n}.", 10, most=26, style="dim")
        pieces.append(Piece(width=width - 24, height=body.height, shapes=(number, *at(body, 28, 0))))
    if len(lines) > MOST_PROBLEMS:
        more = f"and {len(lines) - MOST_PROBLEMS} more, which `hosttune discover` lists"
        pieces.append(paragraph(more, width - 24, 10))
    whole = below(pieces, 3)
    content = Block(width=width - 24, height=whole.height, groups=(Group(kind="text", shapes=at(whole, 0, 0)),))
    return _panel("Problems", content, width)


# --- legend --------------------------------------------------------------------------------------------------

_ICON = 14.0


def legend(groups: Iterable[Group], width: float) -> Block:
    """Return the signs and colours that this picture uses, with their meanings."""
    styles: set[str] = set()
    for group in groups:
        for shape in group.shapes:
            styles.update((f"sign-{shape.kind}",) if isinstance(shape, Sign) else _classes(shape))
    items = [_item(icon, words) for key, icon, words in _entries() if key in styles]
    return flowed(items, width, 6)


def _classes(shape: Shape) -> tuple[str, ...]:
    if isinstance(shape, Text | Sign):
        return ()
    return (shape.style, *shape.style.split())


def _item(icon: tuple[Shape, ...], words: str) -> Block:
    text = label(_ICON + 6, 2, words, 9.5, most=400, style="dim")
    shapes = (*icon, text)
    return Block(width=_ICON + 6 + text.width + 12, height=16, groups=(Group(kind="legend", shapes=shapes),))


def _entries() -> Iterable[tuple[str, tuple[Shape, ...], str]]:
    boxes = (
        ("gpu", "GPU"),
        ("nic", "NIC"),
        ("nvme", "NVMe drive"),
        ("nvswitch", "NVSwitch"),
        ("display", "other display"),
        ("other", "other function"),
    )
    for kind, words in boxes:
        yield kind, (_swatch(f"device {kind}"),), words
    yield "switch", (_swatch("switch"),), "PCIe switch"
    yield "pcie", tuple(_line(y, "pcie", thick) for y, thick in ((2, 1.5), (7, 3.5), (13, 5))), "link ×1, ×8, ×16"
    yield "degraded", (_line(8, "pcie degraded", 3.5),), "degraded link"
    yield "fabric", (_line(8, "fabric", 3),), "links between GPUs"
    yield "core", (_cell("core"),), "core"
    yield "cache", (Rect(x=0, y=1, width=14, height=14, style="cache", radius=3),), "cores of one last-level cache"
    yield "isolated", (_cell("core isolated"),), "isolated core"
    yield "hidden", (_cell("core hidden"),), "core hidden from guests"
    yield (
        "g0",
        (_cell("g0"), label(7, 4, "A", 8, most=9, style="onguest", bold=True, anchor="middle")),
        "held by guest A",
    )
    yield (
        "several",
        (_cell("several"), label(7, 4, "+", 8, most=9, style="onguest", bold=True, anchor="middle")),
        "held by several guests",
    )
    yield "memory free", (_cell("memory free"),), "memory free"
    yield "memory unknown", (_cell("memory unknown"),), "use of memory unknown"
    yield "memory used", (_cell("memory used"),), "memory used"
    yield "memory pages", (_cell("memory pages"),), "huge pages in use"
    yield "memory spare", (_cell("memory spare"),), "huge pages free"
    yield "sign-fail", (Sign(x=1, y=2, kind="fail"),), "a check failed"
    yield "sign-warn", (Sign(x=1, y=2, kind="warn"),), "degraded, or a check warns"
    yield "sign-unknown", (Sign(x=1, y=2, kind="unknown"),), "doubtful, or a check is unknown"


def _swatch(style: str) -> Rect:
    return Rect(x=0, y=1, width=_ICON, height=_ICON, style=style, radius=3)


def _cell(style: str) -> Rect:
    return Rect(x=1.5, y=2.5, width=SIGN, height=SIGN, style=style, radius=2)


def _line(y: float, style: str, thick: float) -> Line:
    return Line(points=((0, y), (_ICON, y)), style=style, thick=thick)
