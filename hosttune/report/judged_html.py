"""A prediction and a diagnosis as self-contained HTML pages: roofline, bars beside typical figure and bound, paths.

Nothing is loaded from elsewhere, there is no script, and a content security policy lets none run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from hosttune.assets import folder
from hosttune.model.devicepath import DevicePath
from hosttune.model.diagnosis import Diagnosis
from hosttune.model.host import Host
from hosttune.model.listing import some
from hosttune.model.prediction import Prediction
from hosttune.model.roof import GpuRoof
from hosttune.report.judged import (
    BADGES,
    GRADE_WORDS,
    OWN_WORDS,
    VERDICT_SIGNS,
    diagnosis_view,
    predicted_charts,
)
from hosttune.report.page import page_templates
from hosttune.report.picture.route import pictures_of
from hosttune.report.prediction_text import sources_of
from hosttune.report.roofline import Plot, Roof, Run, roofline

if TYPE_CHECKING:
    from jinja2 import Environment

_FAR = 5000.0  # operations per byte
MANY = 12  # figures that a cause names before "and N more"
NAMES: dict[str, Any] = {"BADGES": BADGES, "VERDICT_SIGNS": VERDICT_SIGNS, "GRADE_WORDS": GRADE_WORDS}
Drawn = tuple[tuple[DevicePath, ...], Any]


def prediction_html(found: Sequence[Prediction], host: Host | None = None) -> str:
    """Return the page, ending in a newline. The same documents give the same bytes. With the host, paths are drawn."""
    parts = [
        {
            "found": one,
            "plots": plots_of(one.roofs, runs_of(one)),
            "charts": predicted_charts(one.figures),
            "pictures": drawn(host, one.paths),
            "sources": sources_of(one.figures),
        }
        for one in found
    ]
    reported = any(row.value is not None for one in found for row in one.figures)
    of = found[0].of or "this host" if len(found) == 1 else f"{len(found)} guests"
    title = f"A training run on {of}" if reported else f"What to expect of {of}"
    views = {"title": title, "parts": parts, "reported": reported, "style": _style()}
    return _environment().get_template("prediction.html.j2").render(**views)


def diagnosis_html(found: Diagnosis, host: Host | None = None, name: str | None = None) -> str:
    """Return the page, ending in a newline. `name`: of what the figures are. With the host, paths are drawn."""
    view = diagnosis_view(found)
    return (
        _environment()
        .get_template("diagnosis.html.j2")
        .render(
            title=f"Diagnosis: {view.headline}",
            name=name or (host.hostname if host else None) or "measured figures",
            view=view,
            plots=plots_of(found.roofs),
            pictures=drawn(host, found.paths),
            style=_style(),
        )
    )


def plots_of(roofs: Sequence[GpuRoof], runs: Sequence[Run] = ()) -> tuple[Plot, ...]:
    """Return a roofline for each roof; none where its memory or its products are not known."""
    plots = (
        roofline(
            (),
            Roof(
                device=roof.gpu,
                memory_gb_per_s=roof.peaks.get("memory"),
                compute={name: value for name, value in roof.peaks.items() if name != "memory"},
                source=roof.source,
                own=roof.own,
                own_is=OWN_WORDS.get(roof.own_is or "", ""),
            ),
            {},
            runs,
        )
        for roof in roofs
    )
    return tuple(plot for plot in plots if plot is not None)


def runs_of(found: Prediction) -> list[Run]:
    """Return the place of a training run under the roofline.

    One far right of the ridge is drawn at the right end (None), so that the ridge stays in the middle.
    """
    return [
        Run(
            intensity=one.intensity if one.intensity is not None and one.intensity < _FAR else None,
            tflops=one.value,
            text=f"{one.subject}: {one.value:,.4g} {one.unit}",
        )
        for one in found.figures
        if one.metric == "roofline" and one.value
    ]


def drawn(host: Host | None, paths: Sequence[DevicePath]) -> list[Drawn]:
    """Return the paths that go into one picture each, with the picture; without a host only the paths."""
    from markupsafe import Markup

    from hosttune.report.svg import host_svg

    found = []
    for number, group in enumerate(pictures_of(paths)):
        svg = Markup(host_svg(host, sheets=True, paths=group, part=f"path{number}")) if host is not None else None
        found.append((group, svg))
    return found


@cache
def _style() -> Any:
    from markupsafe import Markup

    return Markup((folder("templates") / "report" / "style.css").read_text())


@cache
def _environment() -> Environment:
    environment = page_templates(**NAMES)
    environment.filters["some"] = lambda names: some(names, MANY)
    return environment
