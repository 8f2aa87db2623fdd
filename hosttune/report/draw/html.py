"""Any report as one self-contained page: nothing is loaded from elsewhere, and every text of a document is escaped.

A page of findings has one script, which only filters them; a content security policy lets no other run.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from hosttune.assets import shipped_text
from hosttune.report.blocks import CHECKLIST, Findings, Report, cut
from hosttune.report.heatmaps import STEPS
from hosttune.report.outcomes import SIGNS, WORDS, Mark
from hosttune.report.page import digest, page_templates

if TYPE_CHECKING:
    from jinja2 import Environment

DENSE = 10  # names of a heat map; above, cells are small and names of columns stand upright


def page(report: Report) -> str:
    """Return the page, ending in a newline. The same report gives the same bytes."""
    sections = []
    for number, section in enumerate(report.sections("html"), 1):
        names = [type(block).__name__ for block in section.blocks]
        blocks = [(name, one, *cut(one, one.parts, "html")) for name, one in zip(names, section.blocks, strict=True)]
        sections.append((section, "checklist" if section.heading == CHECKLIST else f"section-{number}", blocks))
    script = any(isinstance(block, Findings) for section, _, _ in sections for block in section.blocks)
    return _environment().get_template("page.html.j2").render(report=report, sections=sections, script=script)


@cache
def _environment() -> Environment:
    from markupsafe import Markup

    style, script = (shipped_text("templates", f"report/{name}") for name in ("style.css", "script.js"))
    environment = page_templates(
        STEPS=STEPS,
        DENSE=DENSE,
        SIGNS=SIGNS,
        WORDS=WORDS,
        FOLDED=("pass", "skip"),  # outcomes of which a page first shows only the number
        STYLE=Markup(style),
        SCRIPT=Markup(script),
        SCRIPT_HASH=digest(script),
        markup=Markup,
    )
    environment.tests["mark"] = lambda cell: isinstance(cell, Mark)
    return environment
