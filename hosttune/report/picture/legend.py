"""The legend: the signs and colours that a picture uses, with their meanings."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.report.picture.metrics import SMALL
from hosttune.report.picture.shapes import SIGN, Block, Group, Line, Rect, Shape, Sign, Text, flowed, label

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
    return (shape.style, *(word for word in shape.style.split() if word != "core"))


def _item(icon: tuple[Shape, ...], words: str) -> Block:
    text = label(_ICON + 6, 1.5, words, SMALL, most=400, style="dim")
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
        yield f"device {kind}", (_swatch(f"device {kind}"),), words
    yield "ungiven", (_swatch("device ungiven"),), "device that no guest has"
    yield "switch", (_swatch("switch"),), "PCIe switch"
    yield "pcie", tuple(_line(y, "pcie", thick) for y, thick in ((2, 1.5), (7, 3.5), (13, 5))), "link ×1, ×8, ×16"
    yield "degraded", (_line(8, "pcie degraded", 3.5),), "degraded link"
    yield "fabric", (_line(8, "fabric", 3),), "links between GPUs"
    yield "route r0", (_line(8, "route r0", 4),), "path 1"
    yield "route r1", (_line(8, "route r1", 4),), "path 2"
    yield "core", (_cell("core"),), "core"
    yield "cache", (Rect(x=0, y=1, width=14, height=14, style="cache", radius=3),), "cores of one last-level cache"
    yield "core free", (_cell("core free"),), "core that no guest has"
    yield (
        "housekeeping",
        (_cell("core housekeeping"), Line(points=((3.5, 11.5), (10.5, 4.5)), style="hatch", thick=2)),
        "core that stays with the host",
    )
    yield "isolated", (_cell("core isolated"),), "isolated core"
    yield "hidden", (_cell("core hidden"),), "core hidden from guests"
    yield "g0", (_swatch("g0"), _letter("A", "on0")), "held by guest A"
    yield "several", (_swatch("several"), _letter("+", "onguest")), "held by several guests"
    yield "memory stays", (_cell("memory stays"),), "memory that no guest has"
    yield "memory free", (_cell("memory free"),), "memory free"
    yield "memory unknown", (_cell("memory unknown"),), "use of memory unknown"
    yield "memory used", (_cell("memory used"),), "memory used"
    yield "memory pages", (_cell("memory pages"),), "huge pages in use"
    yield "memory spare", (_cell("memory spare"),), "huge pages free"
    yield "sign-fail", (Sign(x=1, y=2, kind="fail"),), "a check failed"
    yield "sign-warn", (Sign(x=1, y=2, kind="warn"),), "degraded, or a check warns"
    yield "sign-slow", (Sign(x=1, y=2, kind="slow"),), "slowest link of a path"
    yield "sign-unknown", (Sign(x=1, y=2, kind="unknown"),), "doubtful, or a check is unknown"


def _swatch(style: str) -> Rect:
    return Rect(x=0, y=1, width=_ICON, height=_ICON, style=style, radius=3)


def _cell(style: str) -> Rect:
    return Rect(x=1.5, y=2.5, width=SIGN, height=SIGN, style=style, radius=2)


def _line(y: float, style: str, thick: float) -> Line:
    return Line(points=((0, y), (_ICON, y)), style=style, thick=thick)


def _letter(text: str, style: str) -> Text:
    return label(_ICON / 2, 1.5, text, SMALL, most=_ICON, style=style, bold=True, anchor="middle")
