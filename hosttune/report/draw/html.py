"""Any report as one self-contained page: nothing is loaded from elsewhere, and every text of a document is escaped.

A page of findings or of many hosts has scripts that filter, sort and draw the map; a content security policy lets no
other run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from hosttune.assets import shipped_text, templates
from hosttune.model.text import printable
from hosttune.model.validation import OUTCOMES
from hosttune.report.blocks import Findings, Grid, NameList, Report, Roster, cut, told
from hosttune.report.heatmaps import STEPS
from hosttune.report.outcomes import SIGNS, WORDS, Mark, subjects_by_check

if TYPE_CHECKING:
    from jinja2 import Environment

# A text of a page, or a part that has none whose lines a browser ends; and a word with a hyphen that is no path.
_TEXT = re.compile(r"<(style|script|svg|pre|title|option)\b.*?</\1>|>[^<]*-\w[^<]*", re.DOTALL)
_HYPHENED = re.compile(r"(?<![^\s>])(?=[^\s>/]*-\w)[^\s/]++(?!\S)")
AT_ONCE = 25  # rows of a long list that a browser lays out before it shows the page
DENSE = 10  # names of a heat map; above, cells are small and names of columns stand upright


def page(report: Report) -> str:
    """Return the page, ending in a newline. The same report gives the same bytes."""
    sections = []
    for number, section in enumerate(report.sections("html"), 1):
        names = [type(block).__name__ for block in section.blocks]
        blocks = [(name, one, *cut(one, one.parts, "html")) for name, one in zip(names, section.blocks, strict=True)]
        listed = any(isinstance(block, Findings | Roster) for block in section.blocks)
        sections.append((section, "checklist" if listed else f"section-{number}", blocks))
    shown = [block for section, _, _ in sections for block in section.blocks]
    rows = [member.name for block in shown if isinstance(block, Roster) for member in block.parts]
    text = (
        _environment()
        .get_template("page.html.j2")
        .render(
            report=report,
            sections=sections,
            scripts=_scripts()[: 2 if rows else int(any(isinstance(block, Findings) for block in shown))],
            places={name: place for place, name in enumerate(rows)},
        )
    )
    return _TEXT.sub(lambda part: part[0] if part[1] else _HYPHENED.sub(r'<span class="w">\g<0></span>', part[0]), text)


def _grid(block: Grid) -> str:
    """Return a grid as JSON."""
    return json.dumps({"columns": [printable(name) for name in block.columns], "rows": block.parts})


def _embedded(text: str) -> str:
    """Return JSON that cannot end its HTML element."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _scripts() -> tuple[tuple[str, str], ...]:
    """Return the filter and the map, each with its hash for the content security policy."""
    from markupsafe import Markup

    texts = (shipped_text("templates", f"report/{name}") for name in ("script.js", "map.js"))
    return tuple((Markup(text), digest(text)) for text in texts)


@cache
def _environment() -> Environment:
    from markupsafe import Markup

    environment = page_templates(
        STEPS=STEPS,
        AT_ONCE=AT_ONCE,
        DENSE=DENSE,
        SIGNS=SIGNS,
        WORDS=WORDS,
        FOLDED=("pass", "skip"),  # outcomes of which a page first shows only the number
        STYLE=Markup(shipped_text("templates", "report/style.css")),
        OUTCOMES=OUTCOMES,
        DELTAS={"+": "added", "~": "changed", "-": "taken away", "=": "stays"},
        by_check=subjects_by_check,
        grid_data=_grid,
        told=told,
        embedded=_embedded,
        markup=Markup,
    )
    environment.tests["mark"] = lambda cell: isinstance(cell, Mark)
    environment.tests["names"] = lambda text: isinstance(text, NameList)
    return environment


# --- templates ------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from jinja2 import Environment


def page_templates(**names: Any) -> Environment:
    """Return jinja2 for the templates of pages, which can use these names."""
    environment = templates("report", finalize=_printed)
    environment.globals.update(names)
    return environment


def _printed(value: Any) -> Any:
    """Return a printed value: None as "unknown", which it means in every document, and no control characters."""
    if value is None:
        return "unknown"
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def digest(text: str) -> str:
    """Return the SHA-256 of a script or a style as a content security policy has it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
