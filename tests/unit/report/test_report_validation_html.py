"""The HTML report of a validation: what it holds, what it may not hold, its size, its colours."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from validations import GPUS, HOSTILE, clean, everything_unknown, faulty, hostile, large, runs

import hosttune
from hosttune.bench.baselines import shipped
from hosttune.bench.measures import Scale, measures, scales
from hosttune.domain.guestdiff import DIFFERENT, SAME, UNKNOWN
from hosttune.model.gpu import Gpu
from hosttune.model.host import GuestMemory, Host, NumaNode, PciDevice, RunningGuest, VcpuPin
from hosttune.model.intent import Intent
from hosttune.model.plan import Cell, Device, Plan, PlannedGuest, PlannedPin
from hosttune.model.text import printable
from hosttune.model.validation import OUTCOMES, Sample, Validation
from hosttune.report.changes import changes
from hosttune.report.draw.html import page as html_of
from hosttune.report.draw.html import page_templates
from hosttune.report.heatmaps import STEPS, matrices
from hosttune.report.judged import charts
from hosttune.report.outcomes import Mark, folded, groups
from hosttune.report.roofline import Roof, intensity, roofline
from hosttune.report.validation import reality, validation_report

ROOT = Path(__file__).parents[3]
GIB = 1 << 30


def host(**changes: object) -> Host:
    fields: dict[str, object] = {
        "hostname": "gpu-07.example.net",
        "numa_nodes": (
            NumaNode(id=0, distances={"0": 10, "1": 21}),
            NumaNode(id=1, distances={"0": 21, "1": 10}),
        ),
        "pci": tuple(PciDevice(address=gpu, vendor_id="10de", device_id="2335") for gpu in GPUS),
        "gpus": tuple(Gpu(address=gpu, vendor="nvidia", model="NVIDIA H200") for gpu in GPUS),
    }
    return Host(**(fields | changes))  # type: ignore[arg-type]


def planned() -> Plan:
    guest = PlannedGuest(
        name="tenant-a",
        vcpu_pins=tuple(PlannedPin(vcpu=n, cpus=str(4 + n)) for n in range(4)),
        emulator_cpus="0",
        cells=(Cell(id=0, vcpus="0-3", memory_bytes=8 * GIB, host_nodes="0"),),
        page_bytes=GIB,
        devices=(Device(address=GPUS[0], kind="gpu", guest_cell=0, guest_address="0000:01:00.0", identity=""),),
    )
    return Plan(intent=Intent(version=1), guests=(guest,))


def running(**changes: object) -> RunningGuest:
    fields: dict[str, object] = {
        "name": "tenant-a",
        "state": "running",
        "vcpus": 4,
        "vcpu_pins": tuple(VcpuPin(vcpu=n, cpus=(4 + n,)) for n in range(4)),
        "emulator_cpus": "0",
        "memory_bytes": 8 * GIB,
        "memory": (GuestMemory(node=0, memory_bytes=8 * GIB),),
        "page_bytes": GIB,
        "devices": (GPUS[0],),
    }
    return RunningGuest(**(fields | changes))  # type: ignore[arg-type]


class Page(HTMLParser):
    """Tags with their attributes, texts, and ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open[-1:]):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


DOCUMENTS = {"clean": clean, "faulty": faulty, "unknown": everything_unknown, "hostile": hostile, "large": large}


def page_of(found: Validation, **beside: Any) -> str:
    return html_of(validation_report(found, **beside))


def page(name: str) -> str:
    guests = host(guests=(running(),))
    return page_of(DOCUMENTS[name](), host=guests, plans=(planned(),), baselines=shipped, before=clean())


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: page(name) for name in DOCUMENTS}


# --- what it says --------------------------------------------------------------------------------------------


def test_the_verdict_comes_first(pages: dict[str, str]) -> None:
    text = Page(pages["faulty"]).text
    start = text.index("FAIL Do not give this host to a tenant")
    assert start < text.index("What to do next") < text.index("Checklist") < text.index("Measurements")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_result_is_in_the_checklist_without_any_script(name: str, pages: dict[str, str]) -> None:
    tags = Page(pages[name]).tags
    rows = [attributes for tag, attributes in tags if tag == "tr" and "data-f0" in attributes]
    told = folded(groups(DOCUMENTS[name]().results))
    assert [row["data-f0"] for row in rows] == [printable(f"|{'|'.join(one.subjects)}|") for one in told]
    assert {one.subject for one in DOCUMENTS[name]().results} == {of for one in told for of in one.subjects}
    assert not any("hidden" in row for row in rows)


def test_a_page_of_nothing_says_so() -> None:
    text = Page(page_of(Validation(verdict="unknown"))).text
    assert "Nothing was checked" in text
    assert "No check was made" in text
    assert "Nothing was measured" in text


def test_a_guest_that_is_as_planned() -> None:
    (guest,) = reality((planned(),), host(guests=(running(),)))
    assert {row.what: row.state for row in guest.rows} == dict.fromkeys(
        ("vcpus", "vcpupin of vCPUs 0-3", "emulatorpin", "memory", "memory on node 0", "memoryBacking", "hostdev"), SAME
    )


@pytest.mark.parametrize(
    ("change", "what", "words"),
    [
        ({"vcpu_pins": (VcpuPin(vcpu=0, cpus="0-7"),)}, "vcpupin of vCPUs 0-3", "host CPUs 0-7, 3 of 4 not pinned"),
        ({"emulator_cpus": "0-7"}, "emulatorpin", "host CPUs 0-7"),
        ({"emulator_cpus": None}, "emulatorpin", "not pinned"),
        ({"memory": (GuestMemory(node=1, memory_bytes=8 * GIB),)}, "memory on node 1", "8 GiB"),
        ({"memory": (GuestMemory(node=None, memory_bytes=8 * GIB),)}, "memory on node any", "8 GiB"),
        ({"page_bytes": 4096}, "memoryBacking", "ordinary pages"),
        ({"devices": (GPUS[1],)}, "hostdev", GPUS[1]),
    ],
)
def test_a_guest_that_is_not_as_planned(change: dict[str, object], what: str, words: str) -> None:
    (guest,) = reality((planned(),), host(guests=(running(**change),)))
    assert what in {row.what for row in guest.rows if row.state == DIFFERENT} <= {what, "memory on node 0"}
    assert words in next(row.actual for row in guest.rows if row.what == what)


@pytest.mark.parametrize("field", ["vcpu_pins", "memory", "page_bytes"])
def test_what_a_host_does_not_tell_of_a_guest_is_unknown(field: str) -> None:
    (guest,) = reality((planned(),), host(guests=(running(**{field: None}),)))
    assert [row.state for row in guest.rows].count(UNKNOWN) == 1
    assert guest.differing == 0


def test_a_planned_guest_that_is_not_there_differs_and_is_unknown_where_guests_are() -> None:
    assert reality((planned(),), host(guests=()))[0].rows[0].state == DIFFERENT
    assert reality((planned(),), host(guests=None))[0].rows[0].state == UNKNOWN
    assert reality((planned(),), None)[0].rows[0].state == UNKNOWN


def test_a_bar_below_its_floor_is_said_in_words() -> None:
    text = Page(page_of(faulty(), host=host(), baselines=shipped)).text
    assert text.count("below floor") == 2
    assert "Azure/azurehpc-health-checks" in text


def test_floor_typical_and_peak_are_those_of_the_measured_device() -> None:
    samples = runs("h2d-ce", GPUS[0], 55.5, "GB/s", 0)
    (scale,) = scales(samples, host(), shipped())
    assert (scale.floor, scale.typical, scale.peak) == (48.0, 55.5, 63.0)
    other = host(pci=(PciDevice(address=GPUS[0], vendor_id="10de", device_id="ffff"),))
    assert scales(samples, other, shipped()) == ()


def test_own_history_goes_before_a_reference() -> None:
    samples = runs("h2d-ce", GPUS[0], 55.5, "GB/s", 0)
    before = Validation(samples=(Sample(metric="h2d-ce", subject=GPUS[0], value=54.0, unit="GB/s"),))
    (scale,) = scales(samples, host(), shipped(), (before,))
    assert (scale.typical, scale.typical_is) == (54.0, "this host before")


def test_bars_share_an_axis_that_holds_floor_and_peak() -> None:
    samples = [Sample(metric="m", subject=name, value=value, unit="u") for name, value in (("a", 50.0), ("b", 25.0))]
    (chart,) = charts(measures(samples, (Scale(metric="m", floor=40.0, peak=100.0),)))
    assert [(bar.width, bar.floor, bar.mark is not None, bar.beside) for bar in chart.bars] == [
        (50.0, 40.0, False, "50% of peak; 1 run"),
        (25.0, 40.0, True, "25% of peak; 1 run"),
    ]


def test_a_note_whose_facts_another_note_has_is_left_out() -> None:
    samples = [Sample(metric="m", subject=name, value=9.0, unit="u") for name in "abc"]
    known = [Scale(metric="m", subject="a", peak=10.0), Scale(metric="m", subject="b", typical=8.0, peak=10.0)]
    (chart,) = charts(measures(samples, known))
    assert chart.notes == ("typical: 8.00 u, peak: 10.0 u",)
    (chart,) = charts(measures(samples, [*known, Scale(metric="m", subject="c", peak=12.0)]))
    assert chart.notes == ("typical: 8.00 u, peak: 10.0 u", "peak: 12.0 u")


def test_a_latency_above_its_floor_is_the_bad_one() -> None:
    samples = [Sample(metric="memory-latency", subject="a", value=200.0, unit="ns")]
    (chart,) = charts(measures(samples, (Scale(metric="memory-latency", floor=150.0),)))
    assert chart.bars[0].mark == Mark("fail", "above floor")
    assert chart.lower_is_better


def test_sizes_of_a_collective_are_one_chart_and_pairs_are_none() -> None:
    found = charts(measures(clean().samples))
    (reduce,) = [chart for chart in found if chart.title.startswith("all-reduce")]
    assert [bar.name for bar in reduce.bars] == ["1mib", "32mib", "256mib", "4gib"]
    assert not [chart for chart in found if chart.title.startswith("p2p")]


def test_a_heat_map_is_calm_where_all_are_alike_and_dark_where_one_is_not() -> None:
    def steps(odd: float) -> list[int | None]:
        pairs = (("a->b", 394.0), ("b->a", odd), ("a->c", 392.0))
        samples = [Sample(metric="p2p-write-ce", subject=pair, value=value, unit="GB/s") for pair, value in pairs]
        return [cell.step for row in matrices(measures(samples))[0].rows for cell in row if cell.step is not None]

    assert max(step or 0 for step in steps(393.0)) == 0
    assert sorted(step or 0 for step in steps(40.0)) == [0, 0, STEPS - 1]


def test_a_pair_without_a_figure_is_a_question_mark() -> None:
    samples = [Sample(metric="p2p-write-ce", subject="a->b", value=None, unit="GB/s")]
    cells = [cell for row in matrices(measures(samples))[0].rows for cell in row]
    assert "?" in [cell.text for cell in cells]


def test_the_roofline_puts_a_product_at_its_intensity_below_its_peak() -> None:
    assert intensity("bf16", 8192) == pytest.approx(2 * 8192**3 / (3 * 2 * 8192**2))
    samples = (*runs("gemm-bf16", GPUS[0], 800.0, "TFLOP/s", 0), *runs("device-copy", GPUS[0], 4247.0, "GB/s", 0))
    roof = Roof(device="X", memory_gb_per_s=4800.0, compute={"bf16": 989.5})
    plot = roofline(measures(samples), roof, {"bf16": 8192})
    assert plot is not None
    (dot,) = plot.dots
    peak = next(line for line in plot.lines if line.text.startswith("BF16 peak"))
    assert peak.x1 < dot.x < peak.x2
    assert dot.y > peak.y1
    assert [row.part for row in plot.rows] == ["88%", "81%"]


def test_what_cannot_be_compared_is_unknown_and_noise_is_no_effect() -> None:
    found = changes(clean(), faulty())
    assert found is not None
    assert [(one.metric, one.verdict) for one in found.changed] == [("h2d-ce", "worse"), ("d2h-ce", "worse")]
    assert {one.metric for one in found.unknown} == {"p2p-write-ce", "memory-copy", "memory-latency"}
    assert found.outcomes[0].worse
    assert changes(clean(), clean()).outcomes == ()  # type: ignore[union-attr]


def test_a_check_that_is_not_made_any_more_is_worse() -> None:
    found = changes(clean(), Validation())
    assert found is not None
    assert all(one.worse for one in found.outcomes)


# --- what it may not do --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_page_refers_to_nothing_outside_itself(name: str, pages: dict[str, str]) -> None:
    loading = ("src", "srcset", "data", "action", "poster", "background", "ping", "cite", "xlink:href", "formaction")
    for tag, attributes in Page(pages[name]).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "video", "audio", "source"), tag
        assert not set(loading) & set(attributes), (tag, attributes)
        assert (attributes.get("href") or "#").startswith("#")
        assert not [key for key in attributes if key.startswith("on")], (tag, attributes)
    style = re.findall(r"<style>(.*?)</style>", pages[name], re.DOTALL)[0]
    assert not re.search(r"url\(|@import|//", style)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_only_our_script_may_run(name: str, pages: dict[str, str]) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", pages[name], re.DOTALL)
    assert scripts == [(ROOT / "templates" / "report" / "script.js").read_text()]
    policy = next(attributes["content"] for tag, attributes in Page(pages[name]).tags if "http-equiv" in attributes)
    assert policy is not None
    assert "default-src 'none'" in policy
    (allowed,) = re.findall(r"'sha256-([^']+)'", policy)
    assert allowed == base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()


def test_hostile_text_stays_text(pages: dict[str, str]) -> None:
    found = Page(pages["hostile"])
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert " ".join(HOSTILE.replace("\x00", "?").replace("\x1b", "?").split()) in found.text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", pages["hostile"])


def test_a_hostile_plan_and_host_stay_text() -> None:
    guest = running(name=HOSTILE, state=HOSTILE)
    plan = planned()
    plan = hosttune.Plan.from_json(plan.to_json().replace('"tenant-a"', json.dumps(HOSTILE)))
    gpus = (Gpu(address=GPUS[0], vendor="nvidia", model=HOSTILE),)
    text = page_of(faulty(), host=host(guests=(guest,), gpus=gpus, kernel=HOSTILE), plans=(plan,), before=hostile())
    assert [tag for tag, _ in Page(text).tags].count("script") == 1
    assert "img" not in [tag for tag, _ in Page(text).tags]


def test_16_gpus_and_2000_results_stay_below_2_mb(pages: dict[str, str]) -> None:
    assert len(large().results) == 2000
    assert len(pages["large"].encode()) < 2_000_000


def test_the_same_documents_give_the_same_bytes_in_any_process() -> None:
    program = (
        "import sys; sys.path[:0] = ['tests/support', 'tests', '.']; "
        "import unit.report.test_report_validation_html as t; "
        "sys.stdout.buffer.write(t.page('faulty').encode())"
    )
    made = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        found = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, check=True
        )
        made.add(found.stdout)
    assert made == {page("faulty").encode()}


# --- accessible ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_ids_are_unique_and_labels_lead_somewhere(name: str, pages: dict[str, str]) -> None:
    tags = Page(pages[name]).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in tags:
        for key in ("aria-labelledby", "for"):
            assert set((attributes.get(key) or "").split()) <= set(ids)
        if (attributes.get("href") or "").startswith("#"):
            assert (attributes["href"] or "")[1:] in ids


@pytest.mark.parametrize("name", DOCUMENTS)
def test_tables_have_a_caption_and_scoped_headers(name: str, pages: dict[str, str]) -> None:
    tags = Page(pages[name]).tags
    assert [tag for tag, _ in tags].count("table") == [tag for tag, _ in tags].count("caption")
    assert all("scope" in attributes for tag, attributes in tags if tag == "th")


def test_every_outcome_has_a_word_and_a_sign_beside_its_colour(pages: dict[str, str]) -> None:
    text = Page(pages["faulty"]).text
    for words in ("✗ failed (4)", "? unknown (2)", "! warnings (2)", "✓ passed (29)", "– not applicable (2)"):
        assert words in text


def _luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.2."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _palettes() -> dict[str, dict[str, str]]:
    style = (ROOT / "templates" / "report" / "style.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks[:2])
    return {"light": light, "dark": light | dark}


TEXTS = [
    *((text, paper) for text in ("text", "muted", "accent") for paper in ("page", "card")),
    *((text, "shade") for text in ("text", "muted")),
    *((f"{outcome}-text", paper) for outcome in OUTCOMES for paper in (f"{outcome}-tint", "card")),
    *(("on-outcome", outcome) for outcome in OUTCOMES),
    *((text, f"{outcome}-tint") for text in ("text", "muted") for outcome in OUTCOMES),
    *(("ht-low", f"h{n}") for n in range(4)),
    *(("ht-high", f"h{n}") for n in range(4, STEPS)),
    ("fail-text", "shade"),
]
GRAPHICS = [
    *((outcome, "card") for outcome in OUTCOMES),
    *((bar, "shade") for bar in ("bar", "bar-low", "text")),
    *(("text", bar) for bar in ("bar", "bar-low")),
    *((line, "card") for line in ("bar", "strong-line")),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("front", "back"), TEXTS)
def test_text_has_the_contrast_of_wcag_aa(scheme: str, front: str, back: str) -> None:
    colours = _palettes()[scheme]
    assert contrast(colours[front], colours[back]) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("front", "back"), GRAPHICS)
def test_marks_have_the_contrast_of_wcag_aa(scheme: str, front: str, back: str) -> None:
    colours = _palettes()[scheme]
    assert contrast(colours[front], colours[back]) >= 3.0


def test_what_a_template_prints_of_an_unknown_value_is_a_word() -> None:
    page = page_templates(known="a\x1bb").from_string("{{ known }} {{ given }} {{ 0 }}")
    assert page.render(given=None) == "a?b unknown 0"


def test_contrast_is_computed_as_wcag_does() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
