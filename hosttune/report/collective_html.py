"""The report on collectives over several hosts as one self-contained HTML page: faults, scaling, groups."""

from __future__ import annotations

from hosttune.assets import folder
from hosttune.model.collective import CollectiveReport, Scaling
from hosttune.model.listing import some
from hosttune.report.collective_text import headline, occasion, sections, size_words, unmeasured
from hosttune.report.page import page_templates

MOST_GROUPS = 300  # on the page; bad ones first. The JSON has all.
_ORDER = ("failed", "low", "unknown", "good")


def html(report: CollectiveReport) -> str:
    """Return the page."""
    from markupsafe import Markup

    environment = page_templates()
    groups = sorted(report.groups, key=lambda one: (one.repeated, _ORDER.index(one.state), one.step))
    return environment.get_template("collective.html.j2").render(
        report=report,
        title=headline(report),
        occasion=tuple(occasion(report)),
        sections=tuple(
            (
                f"{kind}, {size_words(size)}",
                tuple(_row(row) for row in report.scaling if (row.kind, row.size_bytes) == (kind, size)),
            )
            for kind, size in sections(report)
        ),
        groups=tuple(
            (
                group.step,
                group.purpose,
                some(group.hosts, 8),
                _state(group.state, repeated=group.repeated),
                group.outcome,
                group.why or "",
            )
            for group in groups[:MOST_GROUPS]
        ),
        more=max(0, len(groups) - MOST_GROUPS),
        unmeasured=(*unmeasured(report), *report.notes),
        style=Markup((folder("templates") / "report" / "style.css").read_text()),
    )


def _state(state: str, *, repeated: bool) -> str:
    return f"{state}, repeated later" if repeated else state


def _row(row: Scaling) -> tuple[str, ...]:
    def number(value: float | None) -> str:
        return "unknown" if value is None else f"{value:.4g}"

    efficiency = "" if row.efficiency is None else f"{row.efficiency:.0%} of {row.base_hosts} hosts"
    alone = "" if row.of_one_host is None else f"{row.of_one_host:.0%}"
    return (
        *(str(row.hosts), str(row.ranks), str(row.groups), number(row.busbw), number(row.lowest)),
        *(number(row.typical), number(row.bound), efficiency, alone),
    )
