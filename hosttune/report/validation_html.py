"""The validation as one self-contained HTML page, for the person who decides whether a host goes to a tenant.

Nothing is loaded from elsewhere: style and script are inline, and a content security policy lets no other script run,
whatever a document contains. The page is complete without its script, which only filters the checklist.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from hosttune.assets import folder
from hosttune.bench.baselines import Standard
from hosttune.checks.check import Check
from hosttune.model.diagnosis import Diagnosis
from hosttune.model.host import Host
from hosttune.model.listing import some
from hosttune.model.plan import Plan
from hosttune.model.validation import CheckResult, Validation
from hosttune.model.values import format_size
from hosttune.report.bars import charts
from hosttune.report.changes import SIGNS as CHANGE_SIGNS
from hosttune.report.changes import changes
from hosttune.report.heatmaps import STEPS, Matrix, distances, matrices
from hosttune.report.judged import diagnosis_view
from hosttune.report.judged_html import NAMES, drawn
from hosttune.report.measures import Measure, measures
from hosttune.report.outcomes import (
    OUTCOMES,
    SIGNS,
    WORDS,
    counts,
    headline,
    meaning,
    next_steps,
    occasion,
    worst_first,
)
from hosttune.report.page import digest, page_templates
from hosttune.report.reality import reality
from hosttune.report.roofline import rooflines
from hosttune.report.standards import roofs, scales, sides

if TYPE_CHECKING:
    from jinja2 import Environment

STEPS_SHOWN = 8  # shown at once, the others on request; steps that fix a failure are always shown
FOLDED = ("pass", "skip")  # outcomes of which the page first shows only the number
MANY = 12  # subjects named in the list of steps before "and N more"; the checklist has all of them


def html(
    validation: Validation,
    *,
    host: Host | None = None,
    plans: Iterable[Plan] = (),
    before: Validation | None = None,
    svg: str | None = None,
    baselines: Standard | None = None,
    history: Iterable[Validation] = (),
    checks: Iterable[Check] = (),
    diagnosis: Diagnosis | None = None,
) -> str:
    """Return the page, ending in a newline. The same documents give the same bytes.

    `svg` is markup made by hosttune (hosttune.report.svg.host_svg with `sheets`) and is used unchanged; every other
    text is escaped.
    `before` is an earlier validation to compare with. `baselines` and `history` (earlier validations of this host) are
    what figures are compared with. `checks` explain the ids of the results. `diagnosis`: these figures against the
    model of this host. What is not given is left out, or the page says that it is missing.
    """
    views = {
        "validation": validation,
        "title": f"{validation.verdict.upper()}: {validation.host or 'unnamed host'}",
        "machine": _machine(host),
        "headline": headline(validation),
        "meaning": meaning(validation),
        "occasion": " · ".join(occasion(validation)),
        "counts": counts(validation.results),
        **_steps(validation.results),
        "open_sections": _sections(validation.results, folded=False),
        "folded_sections": _sections(validation.results, folded=True),
        "devices": _devices(validation.results, host),
        **_figures(validation, host, baselines, history),
        "guests": reality(plans, host, validation.results),
        "changes": changes(before, validation),
        "facts": dict(validation.facts or {}),
        "explained": _explained(validation.results, checks),
        "diagnosed": diagnosis_view(diagnosis) if diagnosis else None,
        "pictures": drawn(host, diagnosis.paths) if diagnosis else (),
    }
    return _environment().get_template("validation.html.j2").render(**views, **_assets(svg))


def _steps(results: Iterable[CheckResult]) -> dict[str, Any]:
    steps = next_steps(results)
    return {"steps": steps, "steps_shown": max(STEPS_SHOWN, sum(step.outcome == "fail" for step in steps))}


def _figures(
    validation: Validation, host: Host | None, baselines: Standard | None, history: Iterable[Validation]
) -> dict[str, Any]:
    """Return the views of what was measured: bars, rooflines and matrices."""
    beside = scales(validation.samples, host, baselines, history) if baselines else ()
    found = measures(validation.samples, beside)
    return {
        "charts": charts(found),
        "plots": rooflines(found, roofs(host, baselines), sides(validation.facts)) if baselines else (),
        "matrices": _matrices(host, found),
    }


def _sections(results: Iterable[CheckResult], *, folded: bool) -> list[tuple[str, list[CheckResult]]]:
    """Return the results that the page folds, or the others, by outcome, worst first; no outcome without results."""
    ordered = worst_first(results)
    sections = [(outcome, [result for result in ordered if result.outcome == outcome]) for outcome in OUTCOMES]
    return [(outcome, members) for outcome, members in sections if members and (outcome in FOLDED) == folded]


def _devices(results: Iterable[CheckResult], host: Host | None) -> list[tuple[str, str]]:
    """Return (subject, text) of each subject for the filter.

    The host comes first, then the others by name; GPUs have their model.
    """
    models = {gpu.address: gpu.model for gpu in host.gpus} if host else {}
    subjects = sorted({result.subject for result in results}, key=lambda name: (name != "host", name))
    return [(name, f"{name}: {models[name]}" if models.get(name) else name) for name in subjects]


def _machine(host: Host | None) -> list[str]:
    """Return a description of the machine: product, CPUs, memory, GPUs, kernel; only what is known."""
    if host is None:
        return []
    platform, model = host.platform, host.cpu_model
    facts = [" ".join(word for word in (platform.vendor, platform.product) if word)] if platform else []
    online = sum(1 for cpu in host.cpus if cpu.online)
    facts += [f"{online} CPUs" + (f", {model.model}" if model and model.model else "")] if online else []
    sizes = [node.memory_bytes for node in host.numa_nodes if node.memory_bytes]
    facts += [f"{format_size(sum(sizes))} in {len(sizes)} node{'s' if len(sizes) > 1 else ''}"] if sizes else []
    gpus: dict[str, int] = {}
    for gpu in host.index.accelerators:
        gpus[gpu.model or f"{gpu.vendor} GPU"] = gpus.get(gpu.model or f"{gpu.vendor} GPU", 0) + 1
    facts += [f"{number} × {name}" for name, number in gpus.items()]
    facts += [f"kernel {host.kernel}"] if host.kernel else []
    return [fact for fact in facts if fact]


def _matrices(host: Host | None, found: Iterable[Measure]) -> list[Matrix]:
    far = distances(host) if host else None
    return [*matrices(found), *([far] if far else [])]


def _explained(results: Iterable[CheckResult], checks: Iterable[Check]) -> list[Check]:
    used = {result.check for result in results}
    return [check for check in checks if check.id in used]


@cache
def _assets(svg: str | None) -> dict[str, Any]:
    """Return style and script as they are inlined, and the script's hash for the content security policy."""
    from markupsafe import Markup

    style, script = ((folder("templates") / "report" / name).read_text() for name in ("style.css", "script.js"))
    texts = {"style": style, "script": script, "svg": svg}
    return {name: Markup(text) if text else None for name, text in texts.items()} | {"script_hash": digest(script)}


@cache
def _environment() -> Environment:
    names = {"WORDS": WORDS, "SIGNS": SIGNS, "OUTCOMES": OUTCOMES, "STEPS": STEPS, "CHANGE_SIGNS": CHANGE_SIGNS}
    environment = page_templates(**names, **NAMES)
    environment.filters["some"] = lambda names: some(names, MANY)
    return environment
