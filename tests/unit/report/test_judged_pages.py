"""Predictions and diagnoses on paper: paths on the host picture, bars, the host's own roof, pages and Markdown."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from picturehosts import cube_mesh, many_gpus
from unit.report.test_report_svg import overlaps
from unit.rules.test_diagnosing_hosts import GPU, HOST, validation, with_link

from hosttune import discover
from hosttune.cli import run
from hosttune.errors import BadInput
from hosttune.model.devicepath import DevicePath
from hosttune.model.diagnosis import Diagnosis, JudgedFigure
from hosttune.model.gpu import Peer
from hosttune.model.host import Host
from hosttune.model.measured import Figure, Measured
from hosttune.model.prediction import Prediction
from hosttune.model.values import to_json
from hosttune.predicting import Scope, predict
from hosttune.predicting.paths import path_between
from hosttune.report.draw import drawn
from hosttune.report.draw.html import page as html_of
from hosttune.report.draw.md import markdown
from hosttune.report.judged import alike, counted, figure_charts, roof_rows
from hosttune.report.outcomes import Mark
from hosttune.report.picture.layout import Drawing, picture
from hosttune.report.picture.shapes import Rect, ShapeLine, Text
from hosttune.report.prediction import diagnosis_report, pictures_of, prediction_report
from hosttune.rules.causes import diagnose
from hosttune.rules.causes.gathering import of_validation
from hosttune.rules.causes.paths import low_paths

ROOT = Path(__file__).resolve().parents[3]
VALIDATION = str(ROOT / "tests/hosts/h200/vm-x4-level1.json")
GOLDEN = Path(__file__).parents[2] / "golden" / "report"
FAR = "0000:9a:00.0"
replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The example host as a document: read faster than its capture."""
    path = tmp_path_factory.mktemp("host") / "host.json"
    path.write_text(to_json(HOST))
    return str(path)


def without_links(host: Host) -> Host:
    """The host whose GPUs reach each other over PCIe alone."""
    peers = tuple(Peer(address=gpu.address, kind="pcie") for gpu in host.gpus)
    return replace(host, gpus=tuple(replace(gpu, peers=peers) for gpu in host.gpus))


def slow_host() -> Host:
    return replace(with_link(32.0, 8, 32.0), hostname="gpu-host-7")


def low() -> Diagnosis:
    """One GPU's link has half its lanes, and its copies reach half of the typical figure."""
    measured = validation()
    samples = [
        replace(one, value=27.5) if one.metric == "h2d-ce" and one.subject == GPU else one for one in measured.samples
    ]
    found = diagnose(of_validation(replace(measured, samples=tuple(samples)), slow_host()), complaining=False)
    return replace(found, paths=low_paths(found, slow_host()))


def kinds(path: DevicePath) -> list[tuple[str, float | None, bool]]:
    return [(hop.kind, hop.gb_per_s, hop.slowest) for hop in path.hops]


# --- paths ---------------------------------------------------------------------------------------------------------


def test_two_gpus_behind_switches_use_their_links() -> None:
    path = path_between(HOST, GPU, FAR)
    assert kinds(path) == [("links", 450.0, True)]
    assert path.hops[0].words == "18 links, over switches"


def test_a_gpu_and_a_nic_of_the_other_node_pass_between_the_sockets() -> None:
    path = path_between(HOST, GPU, "0000:9b:00.0")
    assert kinds(path) == [
        ("pcie", 63.0, False), ("pcie", 63.0, False), ("socket", 40.0, True), ("pcie", 63.0, False),
        ("pcie", 63.0, False), ("port", 50.0, False),
    ]  # fmt: skip
    assert path.at_most_gb_per_s == 40.0  # NCCL's price of Emerald Rapids


def test_redirection_makes_the_path_longer_and_translated_requests_do_not() -> None:
    path = path_between(HOST, GPU, "0000:19:00.0")
    assert [hop.kind for hop in path.hops] == ["pcie", "pcie", "pcie", "pcie", "port"]
    assert "redirect requests (ACS)" in path.notes[0]
    acs = {one.address: one.acs for one in HOST.pci}["0000:17:00.0"]
    assert acs is not None
    direct = replace(acs, enabled=(*acs.enabled, "DirectTrans"))
    pci = tuple(
        replace(one, acs=direct if one.port_type == "downstream-port" else one.acs, ats_enabled=True)
        for one in HOST.pci
    )
    short = path_between(replace(HOST, pci=pci), GPU, "0000:19:00.0")
    assert [hop.kind for hop in short.hops] == ["pcie", "pcie", "port"]
    assert short.notes == ()


def test_a_degraded_link_is_the_slowest() -> None:
    slowest = path_between(slow_host(), GPU, "node 0").slowest
    assert slowest is not None
    assert (slowest.start, slowest.gb_per_s) == (GPU, 31.5)
    assert "degraded: the device can do 32 GT/s ×16" in slowest.words


def test_links_that_carry_the_same_have_no_slowest_one() -> None:
    path = path_between(HOST, GPU, "node 0")
    assert kinds(path) == [("pcie", 63.0, False), ("pcie", 63.0, False)]
    assert path.slowest is None


def test_what_is_not_known_is_said_and_never_guessed() -> None:
    host = without_links(many_gpus(2, 4))
    ends = [gpu.address for gpu in host.index.accelerators]
    path = path_between(host, ends[0], ends[-1])
    assert (path.at_most_gb_per_s, path.slowest) == (None, None)
    assert any(note.startswith("not known: what the link from node 0 to node 1 carries") for note in path.notes)
    nowhere = replace(host, pci=tuple(replace(one, numa_node=None) for one in host.pci))
    (hop,) = path_between(nowhere, ends[0], ends[-1]).hops
    assert hop.words == "through the CPU; the nodes are not known"


def derived(name: str) -> Host:
    return discover(str(ROOT / f"tests/hosts/derived/{name}.tar.xz"))


def test_the_path_of_a_pair_has_the_bound_of_its_figure() -> None:
    hosts = [derived("xe9680-8xh100-lspci"), discover(str(ROOT / "examples/mi300x-8.tar.xz")), without_links(HOST)]
    for host, bound in zip(hosts, (450.0, 64.0, 63.02), strict=True):
        found = predict(host, Scope("host"))
        p2p = {one.bound for one in found.figures if one.metric == "p2p"}
        assert p2p == {bound}
        most = found.paths[0].at_most_gb_per_s
        assert most is not None
        assert most == bound if found.paths[0].hops[0].kind == "links" else most <= bound


@pytest.mark.parametrize("name", ["oci-bm-gpu-a100-b4-nps4", "amd-mi300x-8-vm", "gaudi3-8"])
def test_gpus_whose_links_were_not_read_have_no_bound_of_pcie(name: str) -> None:
    host = discover(str(ROOT / "examples/gaudi3-8.tar.xz")) if name == "gaudi3-8" else derived(name)
    found = predict(host, Scope("host"))
    path = found.paths[0]
    assert {one.bound for one in found.figures if one.metric == "p2p"} == {None}
    assert (path.at_most_gb_per_s, path.slowest) == (None, None)
    assert path.notes[0].startswith("not known: whether links join these GPUs; the path is that over PCIe")
    assert "not known how fast" in html_of(prediction_report([found], host))


def test_gpus_that_never_have_links_use_pcie() -> None:
    gpus = tuple(replace(gpu, model="NVIDIA L40S", peers=None, nvlinks_active=None) for gpu in HOST.gpus)
    pci = tuple(replace(one, device_id="26b9") if one.address in HOST.index.gpus else one for one in HOST.pci)
    path = path_between(replace(HOST, gpus=gpus, pci=pci, nvswitches=(), fabric=None), GPU, FAR)
    assert path.at_most_gb_per_s == 40.0
    assert [hop.kind for hop in path.hops] == ["pcie", "pcie", "socket", "pcie", "pcie"]


@pytest.mark.parametrize(
    ("ends", "what"),
    [
        ((GPU, GPU), "both ends are"),
        ((GPU, "node 7"), "is no GPU, NIC or node here"),
        (("0000:1a:00.0", GPU), "is no GPU, NIC or node here"),
    ],
)
def test_ends_that_have_no_path_are_refused(ends: tuple[str, str], what: str) -> None:
    with pytest.raises(BadInput, match=what):
        path_between(HOST, *ends)


def test_one_link_is_shown_once_for_all_figures_that_depend_on_it() -> None:
    assert [(path.start, path.end) for path in low().paths] == [(GPU, "node 0")]


# --- the picture ---------------------------------------------------------------------------------------------------

DRAWN: dict[str, Callable[[], tuple[Host, list[tuple[str, str]]]]] = {
    "links and a slow link": lambda: (slow_host(), [(GPU, "0000:29:00.0"), (GPU, "node 0")]),
    "two nodes below each other": lambda: (HOST, [(GPU, "0000:ab:00.0")]),
    "redirected within a switch": lambda: (HOST, [("0000:29:00.0", "0000:2a:00.0")]),
    "eight nodes": lambda: _ends(without_links(many_gpus(8, 16)), 0, 15),
    "four nodes beside each other": lambda: _ends(without_links(many_gpus(4, 4)), 0, 2),
    "links without switches": lambda: _ends(cube_mesh(), 0, 1),
    "eight nodes of two sockets": lambda: _ends(
        discover(str(ROOT / "tests/hosts/derived/oci-bm-gpu-a100-b4-nps4.tar.xz")), 0, 7
    ),
}


def _ends(host: Host, one: int, other: int) -> tuple[Host, list[tuple[str, str]]]:
    gpus = [gpu.address for gpu in host.index.accelerators]
    return host, [(gpus[one], gpus[other])]


@pytest.mark.parametrize("name", DRAWN)
def test_lines_of_a_path_cross_no_text_and_stay_in_the_picture(name: str) -> None:
    host, pairs = DRAWN[name]()
    drawn = picture(host, paths=[path_between(host, *pair) for pair in pairs])
    assert overlaps(drawn) == []
    lines = [
        shape
        for group in drawn.groups
        for shape in group.shapes
        if isinstance(shape, ShapeLine) and "route" in shape.style
    ]
    assert lines
    texts = [shape.box for group in drawn.groups for shape in group.shapes if isinstance(shape, Text) and shape.text]
    for line in lines:
        for one, other in pairwise(line.points):
            (left, right), (top, bottom) = (sorted(pair) for pair in zip(one, other, strict=True))
            assert left == right or top == bottom
            assert min(left, top) >= 0
            assert right <= drawn.width
            assert bottom <= drawn.height
            assert not [box for box in texts if crosses(box, left, right, top, bottom)]


def crosses(box: tuple[float, float, float, float], left: float, right: float, top: float, bottom: float) -> bool:
    return left < box[2] - 1 and right > box[0] + 1 and top < box[3] - 2 and bottom > box[1] + 2


def words(drawn: Drawing) -> str:
    return " ".join(shape.text for group in drawn.groups for shape in group.shapes if isinstance(shape, Text))


def test_the_slowest_link_is_marked_at_its_device_and_its_line_dashed() -> None:
    host = slow_host()
    drawn = picture(host, paths=[path_between(host, GPU, "node 0")])
    assert "slowest link of path 1: 31.5 GB/s" in words(drawn).replace("\n", " ")
    slow = [
        shape
        for group in drawn.groups
        for shape in group.shapes
        if isinstance(shape, ShapeLine) and "slow" in shape.style
    ]
    assert len(slow) == 1
    (box,) = (group.shapes[0] for group in drawn.groups if group.name == GPU and group.kind == "gpu")
    assert isinstance(box, Rect)
    assert slow[0].points[0] == (box.x, box.y + 12)


def test_only_a_picture_with_paths_has_their_style() -> None:
    from hosttune.report.svg import host_svg

    assert ".route" not in host_svg(HOST)
    assert ".route" in host_svg(HOST, paths=[path_between(HOST, GPU, FAR)])


def test_paths_that_share_no_line_go_into_one_picture() -> None:
    linked, slow, other = (path_between(HOST, *ends) for ends in ((GPU, FAR), (GPU, "node 0"), (FAR, "node 1")))
    assert pictures_of([slow, linked, other]) == ((linked, slow), (other,))


# --- views ---------------------------------------------------------------------------------------------------------


def test_bars_are_sorted_worst_first_and_have_their_marks() -> None:
    charts = figure_charts(low().figures)
    assert (charts[0].title, charts[0].bars[0].mark, charts[0].bars[0].name) == ("h2d", Mark("fail", "low"), GPU)
    bar = charts[0].bars[0]
    assert (bar.width, bar.typical, bar.bound) == (43.64, 88.0, 100.0)
    assert counted(low()).startswith("29 figures: 1 low, ")


def test_the_roof_is_measured_where_figures_show_it_else_the_models() -> None:
    (roof,) = predict(HOST, Scope("host")).roofs
    assert (roof.own_is, roof.own["bf16"]) == ("model", 797.5)
    (roof,) = predict(HOST, Scope("host", measured={"memory": 4300.0, "bf16": 790.0})).roofs
    assert (roof.own_is, roof.own) == ("measured", {"memory": 4300.0, "bf16": 790.0})
    assert (
        "NVIDIA H200",
        "ridge of BF16",
        "184 FLOP/byte",
        "206 FLOP/byte",
        "measured, median of the GPUs",
    ) in roof_rows([roof])
    with pytest.raises(BadInput, match=r"above the peak of NVIDIA H200, 989\.5"):
        predict(HOST, Scope("host", measured={"bf16": 1200.0}))
    (roof,) = low().roofs
    assert (roof.own_is, roof.own) == ("measured", {"memory": 4247.0, "bf16": 797.0})


def test_alike_figures_share_a_line() -> None:
    subjects = [text for text, rows in alike(predict(HOST, Scope("host")).figures) if rows[0].metric == "rdma-write"]
    assert subjects == ["8 alike: mlx5_0 to mlx5_7"]


# --- pages and Markdown --------------------------------------------------------------------------------------------

HOSTILE = '<script>alert(1)</script>|`a`\u202e\x1b[31m\u200b[x](http://y) & "'


def hostile() -> Diagnosis:
    figures = tuple(Figure(metric=HOSTILE, subject=HOSTILE, value=1.0, unit=HOSTILE) for _ in range(2))
    found = diagnose(Measured(version=1, figures=figures))
    return replace(found, next=(HOSTILE,))


def test_nothing_from_outside_becomes_markup() -> None:
    pages = [
        html_of(diagnosis_report(hostile(), name=HOSTILE)),
        html_of(prediction_report([Prediction(of=HOSTILE, notes=(HOSTILE,))])),
    ]
    for page in pages:
        assert "<script" not in page
        assert not {"\u202e", "\u200b", "\x1b"} & set(page)
        assert html.escape("<script>alert(1)</script>") in page
        assert not re.search(r'(?:src|href)="http|url\(|@import', page)
    for text in (
        markdown(diagnosis_report(hostile())),
        markdown(prediction_report([Prediction(of=HOSTILE, notes=(HOSTILE,))])),
    ):
        assert not {"\u202e", "\u200b", "\x1b"} & set(text)
        assert not re.search(r"(?<!\\)[<>`]", text)
        rows = [line for line in text.splitlines() if line.startswith("| ")]
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in rows}
        assert len(widths) <= 1  # no cell became two


def test_a_page_needs_no_script_and_nothing_from_elsewhere() -> None:
    page = html_of(diagnosis_report(low(), slow_host()))
    assert "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'" in page
    assert "<script" not in page
    assert page.count("<svg") >= 2
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_no_text_of_the_drawings_is_too_small() -> None:
    sizes = [
        float(size) for size in re.findall(r'font-size="([0-9.]+)"', html_of(diagnosis_report(low(), slow_host())))
    ]
    assert sizes
    assert min(sizes) >= 11


@pytest.mark.parametrize("name", ["diagnosis.md", "prediction.md"])
def test_markdown_is_as_before(name: str, request: pytest.FixtureRequest) -> None:
    made = {
        "diagnosis.md": lambda: markdown(diagnosis_report(low())),
        "prediction.md": lambda: markdown(prediction_report([predict(HOST, Scope("example", {GPU, "0000:19:00.0"}))])),
    }[name]()
    if request.config.getoption("--regenerate"):
        (GOLDEN / name).write_text(made)
    assert (GOLDEN / name).read_text() == made


# --- commands ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "sign"), [("md", "# What to expect of example-hgx-h200"), ("html", "<!DOCTYPE html>")]
)
def test_predict_prints_every_format(form: str, sign: str, example: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", "--host", example, "--between", f"{GPU},{FAR}", "--validation", VALIDATION, "-o", form]) == 0
    printed = capsys.readouterr().out
    assert sign in printed
    assert "measured, median of the GPUs" in printed
    assert f"{GPU} to {FAR}" in printed


def test_diagnose_prints_every_format_and_draws_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "host.json").write_text(to_json(slow_host()))
    measured = validation(h2d_ce=27.5)
    (tmp_path / "v.json").write_text(measured.to_json())
    asked = ["diagnose", "--validation", str(tmp_path / "v.json"), "--host", str(tmp_path / "host.json"), "-o"]
    printed = {}
    for form in ("text", "json", "md", "html"):
        assert run([*asked, form]) == 1
        printed[form] = capsys.readouterr().out
    assert f"{GPU}  0000:17:00.0  31.5  ! slowest" in printed["text"]
    assert json.loads(printed["json"])["paths"][0]["at_most_gb_per_s"] == 31.5
    assert "1. **The link runs below what both ends support: link x8 of x16" in printed["md"]
    assert "**rule**: pcie-link-degraded" in printed["md"]
    assert 'data-kind="path"' in printed["html"]


H200, A100 = "setup: {gpu: NVIDIA H200}, ", "setup: {gpu: NVIDIA A100-SXM4-80GB}, "
PRODUCT = "figures: [{metric: gemm-bf16, value: %s}]"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--between", GPU], "is not two devices"),
        (["--between", f"{GPU},{GPU}"], "both ends are"),
        (["--measured", PRODUCT % "800, unit: GB/s"], "does not measure operations per second"),
        (["--measured", H200 + PRODUCT % "1600, unit: TFLOP/s"], "162% of"),
        (["--measured", "figures: []"], "no measured peak in it"),
        (["--measured", A100 + PRODUCT % "250, unit: TFLOP/s"], "the measured peaks are of NVIDIA A100"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    words: list[str], what: str, example: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "--measured":
        path = tmp_path / "m.yaml"
        path.write_text(f"{{version: 1, {words[1]}}}")
        words = ["--measured", str(path)]
    assert run(["predict", "--host", example, *words]) == 2
    captured = capsys.readouterr()
    assert what in captured.err
    assert captured.out == ""


def test_the_drawing_is_loaded_only_for_a_page() -> None:
    """Import cost counts: text and JSON load neither jinja2 nor the picture."""
    import subprocess
    import sys

    code = (
        "import sys; from hosttune.cli import run; run(['predict', '--host', sys.argv[1]]);"
        "print([name for name in sys.modules if name == 'jinja2' or name.startswith('hosttune.report.picture')])"
    )
    bare: dict[str, Any] = {"schema": "hosttune.host/v1", "hostname": "bare"}
    done = subprocess.run(
        [sys.executable, "-c", code, "/dev/stdin"], input=json.dumps(bare), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ([("all-reduce-busbw", 180.0, 359.0, 450.0, "GB/s")], "should reach 359 GB/s; reaches 180"),
        ([("h2d", 50.0, 55.0, 63.0, "GB/s"), ("h2d", 27.0, 55.0, 63.0, "GB/s")], "reaches 27.0, and 1 more low"),
        ([("memory-latency", 400.0, 100.0, None, "ns")], "should be 100 ns; is 400"),
        ([("p2p", 30.0, None, 63.0, "GB/s")], "may reach at most 63.0 GB/s; reaches 30.0"),
    ],
)
def test_a_diagnosis_says_the_number_first(figures: list[tuple[Any, ...]], said: str) -> None:
    judged = tuple(
        JudgedFigure(metric=metric, subject=f"GPU {n}", value=value, unit=unit, typical=typical, bound=bound,
                     verdict="low", why="")
        for n, (metric, value, typical, bound, unit) in enumerate(figures)
    )  # fmt: skip
    report = diagnosis_report(Diagnosis(figures=judged))
    assert said in report.headline
    assert said in drawn(report, "text").replace("\n", " ")
