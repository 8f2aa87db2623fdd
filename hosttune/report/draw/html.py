"""Any report as one self-contained page: nothing is loaded from elsewhere, and every text of a document is escaped."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from hosttune.assets import folder
from hosttune.report.blocks import Report, cut
from hosttune.report.heatmaps import STEPS
from hosttune.report.page import page_templates

if TYPE_CHECKING:
    from jinja2 import Environment

DENSE = 10  # names of a heat map; above, cells are small and names of columns stand upright


def page(report: Report) -> str:
    """Return the page, ending in a newline. The same report gives the same bytes."""
    blocks = [(type(block).__name__, block, *cut(block.parts, "html")) for block in report.of("html")]
    return _environment().get_template("page.html.j2").render(report=report, blocks=blocks)


@cache
def _environment() -> Environment:
    from markupsafe import Markup

    style = Markup((folder("templates") / "report" / "style.css").read_text())
    return page_templates(STEPS=STEPS, DENSE=DENSE, style=style)
