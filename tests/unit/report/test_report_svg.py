"""The host as a picture: nothing overlaps, nothing is cut, every device stands there once, and faults are marked."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from examplehosts import discovered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from picturehosts import (
    BUSY_RESULTS,
    HOSTILE,
    busy_host,
    crowded,
    cube_mesh,
    hostile_host,
    many_gpus,
    nothing_known,
    slow,
)
from planhosts import build_host, wild_shapes

import hosttune
from hosttune.cli import run
from hosttune.model.gpu import Gpu
from hosttune.model.host import Cpu, Host, Link, NumaNode, PciDevice, RunningGuest, VcpuPin
from hosttune.model.text import printable
from hosttune.model.validation import CheckResult
from hosttune.model.values import to_json
from hosttune.report.picture.layout import Drawing, picture
from hosttune.report.picture.shapes import SIGN, Rect, ShapeGroup, ShapeLine, Sign, Text, fitted, text_width, wrapped
from hosttune.report.picture.style import GUESTS, ROOT, RULES
from hosttune.report.svg import host_svg

GOLDEN = Path(__file__).parents[2] / "golden" / "report"
PAGE = Path(__file__).parents[3] / "docs" / "pictures" / "hgx-h200-8.svg"
DEVICES = ("gpu", "nic", "nvme", "nvswitch", "display", "other", "vf")
MADE: dict[str, Callable[[], Host]] = {
    "busy": busy_host,
    "cube-mesh": cube_mesh,
    "nothing-known": nothing_known,
    "hostile": hostile_host,
    "empty": Host,
    "1-node-1-gpu": lambda: many_gpus(1, 1),
    "1-node-16-gpus": lambda: many_gpus(1, 16),
    "2-nodes-8-gpus": lambda: many_gpus(2, 8, cores=96),
    "4-nodes-4-gpus": lambda: many_gpus(4, 4),
    "8-nodes-16-gpus": lambda: many_gpus(8, 16),
    "8-nodes-in-pairs": lambda: many_gpus(8, 16, kind="xgmi", pairs=2),
    "1-node-in-pairs": lambda: many_gpus(1, 16, kind="xgmi", pairs=2),
}
CAPTURED = (
    "derived/xe9680-8xh100-lspci",
    "derived/oci-bm-gpu-a100-b4-nps4",
    "derived/azure-ndv4-8xa100-vm",
    "h200/vm-h200x1",
    "older/vm-x4",
    "ghw/linux-amd64-8581cf3a529e5d8b97ea876eade2f60d",
    "hwloc/nvidiagpunumanodes",
    "hwloc/fakememinitiators-1np2c+1npp+gi",
    "hwloc/20em64t-hybrid-1p6c2t+2ca4co1t",
    "hwloc/2i386-2c-nohugepage",
)


def texts(drawn: Drawing) -> list[Text]:
    return [shape for group in drawn.groups for shape in group.shapes if isinstance(shape, Text) and shape.text]


def overlaps(drawn: Drawing) -> list[tuple[str, str]]:
    """Pairs of texts whose boxes share any area."""
    rows = sorted(((text.box, text.text) for text in texts(drawn)), key=lambda row: row[0][1])
    found = []
    for n, ((left, _, right, bottom), text) in enumerate(rows):
        for (left_2, top_2, right_2, _), text_2 in rows[n + 1 :]:
            if top_2 >= bottom:
                break
            if left < right_2 and left_2 < right:
                found.append((text, text_2))
    return found


def corners(drawn: Drawing) -> Iterable[tuple[float, float, float, float]]:
    for shape in (shape for group in drawn.groups for shape in group.shapes):
        if isinstance(shape, Rect):
            yield shape.x, shape.y, shape.x + shape.width, shape.y + shape.height
        elif isinstance(shape, ShapeLine):
            xs, ys = zip(*shape.points, strict=True)
            yield min(xs), min(ys), max(xs), max(ys)
        elif isinstance(shape, Sign):
            yield shape.x, shape.y, shape.x + SIGN, shape.y + SIGN
        else:
            yield shape.box


def outside(drawn: Drawing) -> list[tuple[float, float, float, float]]:
    return [c for c in corners(drawn) if c[0] < 0 or c[1] < 0 or c[2] > drawn.width or c[3] > drawn.height]


def spilled(drawn: Drawing) -> list[str]:
    """Texts that leave the box of the device or guest that they are about."""
    found = []
    for group in drawn.groups:
        box = group.shapes[0] if group.shapes else None
        if group.kind not in (*DEVICES, "guest", "switch") or not isinstance(box, Rect):
            continue
        for text in (shape for shape in group.shapes if isinstance(shape, Text)):
            left, top, right, bottom = text.box
            inside = box.x <= left and right <= box.x + box.width and box.y <= top and bottom <= box.y + box.height
            found += [] if inside else [f"{group.name}: {text.text}"]
    return found


def stacked_devices(drawn: Drawing) -> list[tuple[str, str]]:
    """Pairs of device boxes on top of each other; a virtual function stands in its physical function's box."""
    boxes = [(g.shapes[0], g.name) for g in drawn.groups if g.kind in DEVICES and g.kind != "vf"]
    return [
        (name, name_2)
        for n, (a, name) in enumerate(boxes)
        for b, name_2 in boxes[n + 1 :]
        if isinstance(a, Rect) and isinstance(b, Rect)
        if a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height
    ]


def expected_once(host: Host) -> set[str]:
    """Addresses that must have a box: devices that are no virtual function, and whatever a guest holds."""
    virtual = {device.address for device in host.pci if device.physfn}
    classes = (host.gpus, host.nics, host.nvme, host.nvswitches)
    named = {device.address for devices in classes for device in devices}
    held = {address for guest in host.guests or () for address in guest.devices}
    bridges = {device.address for device in host.pci if device.is_bridge}
    return (named - virtual) | (held - bridges)


def check_picture(host: Host, results: Iterable[CheckResult] = ()) -> Drawing:
    drawn = picture(host, results)
    assert overlaps(drawn) == []
    assert outside(drawn) == []
    assert spilled(drawn) == []
    assert stacked_devices(drawn) == []
    assert [text.text for text in texts(drawn) if text.size < 11] == []
    counted = Counter(group.name for group in drawn.groups if group.kind in DEVICES)
    assert {name: counted[name] for name in expected_once(host)} == dict.fromkeys(expected_once(host), 1)
    assert max(counted.values(), default=1) == 1
    guests = Counter(group.name for group in drawn.groups if group.kind == "guest")
    assert guests == Counter(guest.name for guest in host.guests or ())
    return drawn


def words_of(drawn: Drawing, name: str, kind: str | None = None) -> str:
    """What is written on the thing of that name."""
    groups = [group for group in drawn.groups if group.name == name and kind in (None, group.kind)]
    return " | ".join(shape.text for group in groups for shape in group.shapes if isinstance(shape, Text))


def signs_of(drawn: Drawing, name: str) -> list[str]:
    groups = [group for group in drawn.groups if group.name == name]
    return [shape.kind for group in groups for shape in group.shapes if isinstance(shape, Sign)]


# --- layout --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
def test_nothing_overlaps_and_all_is_there(name: str) -> None:
    check_picture(MADE[name](), BUSY_RESULTS)


@pytest.mark.parametrize("name", CAPTURED)
def test_nothing_overlaps_on_captured_hosts(name: str, host_root: Callable[[str], Path]) -> None:
    check_picture(hosttune.discover(str(host_root(name))))


@given(wild_shapes(), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_overlaps_on_any_host(shape: object, data: st.DataObject) -> None:
    host = Host.from_json(to_json(build_host(shape)))  # type: ignore[arg-type]
    subjects = ["host", "0", "node 1", "nobody", *(device.address for device in host.pci)]
    subjects += [guest.name for guest in host.guests or ()]
    results = data.draw(
        st.lists(
            st.builds(
                CheckResult,
                check=st.sampled_from(["pcie-link", "numa-affinity", "a-check-with-a-very-long-name-that-must-wrap"]),
                subject=st.sampled_from(subjects),
                outcome=st.sampled_from(["pass", "warn", "fail", "skip", "unknown"]),
                actual=st.one_of(st.none(), st.text(max_size=20)),
            ),
            max_size=12,
        )
    )
    drawn = check_picture(host, results)
    written = " ".join(text.text for text in texts(drawn)) + " ".join(group.title for group in drawn.groups)
    assert all(result.check in written for result in results if result.outcome == "fail" and "long" not in result.check)


def test_the_test_for_overlaps_finds_one() -> None:
    one = Text(x=0, y=10, text="a", size=10, width=20)
    other = Text(x=19, y=12, text="b", size=10, width=20)
    drawn = Drawing(width=10, height=50, groups=(ShapeGroup(kind="text", shapes=(one, other)),), name="", words="")
    assert overlaps(drawn) == [("a", "b")]
    assert len(outside(drawn)) == 2


@pytest.mark.parametrize(
    ("nodes", "rows"),
    [(2, [2]), (3, [3]), (4, [2, 2]), (5, [3, 2]), (8, [3, 3, 2]), (11, [3, 3, 3, 2])],
)
def test_many_nodes_are_put_in_rows_that_a_window_shows_whole(nodes: int, rows: list[int]) -> None:
    """A page with a scroll bar in a window of 1,280 pixels has 1,227 for a picture."""
    host = Host(
        cpus=tuple(Cpu(id=n, core=n, package=0, numa_node=n) for n in range(nodes)),
        numa_nodes=tuple(NumaNode(id=n, cpus=str(n), memory_bytes=1 << 30) for n in range(nodes)),
    )
    drawn = picture(host)
    assert drawn.width <= 1227
    frames = [one.shapes[0] for one in drawn.groups if one.kind == "node"]
    tops = [frame.y for frame in frames if isinstance(frame, Rect)]
    assert [tops.count(top) for top in sorted(set(tops))] == rows


def test_a_chain_of_bridges_that_no_machine_has_is_drawn_in_bounds() -> None:
    deep = [
        PciDevice(address=f"{n:04x}:00:00.0", class_code="060400", parent=f"{n - 1:04x}:00:00.0")
        for n in range(1, 2000)
    ]
    gpu = PciDevice(address="ffff:00:00.0", class_code="030200", parent="07cf:00:00.0")
    check_picture(Host(pci=(*deep, gpu), gpus=(Gpu(address="ffff:00:00.0"),)))


def test_cpus_of_no_known_node_are_not_lost() -> None:
    host = Host(
        numa_nodes=(NumaNode(id=0, cpus="0"),), cpus=(Cpu(id=0, core=0, numa_node=0), Cpu(id=1), Cpu(id=2, numa_node=9))
    )
    drawn = check_picture(host)
    assert [group.title for group in drawn.groups if group.kind == "core"] == ["CPUs 0", "CPUs 1", "CPUs 2"]
    assert "node unknown" in [group.name for group in drawn.groups if group.kind == "node"]


def test_a_node_of_a_thousand_cores_shares_cells_and_says_so() -> None:
    cpus = tuple(Cpu(id=n, core=n, numa_node=0) for n in range(1100))
    drawn = check_picture(Host(numa_nodes=(NumaNode(id=0),), cpus=cpus))
    cells = [group for group in drawn.groups if group.kind == "core"]
    assert len(cells) == -(-1100 // 3)
    assert any("one cell is 3 cores" in text.text for text in texts(drawn))


# --- what it says --------------------------------------------------------------------------------------------


def test_guests_are_marked_on_all_that_they_hold() -> None:
    drawn = check_picture(busy_host())
    assert "A · train-0" in words_of(drawn, "0000:13:00.0")
    assert "B · inference" in words_of(drawn, "0000:13:00.0")  # two guests are defined with it
    assert "A · train-0" in words_of(drawn, "0000:14:00.1")
    assert "A · train-0" not in words_of(drawn, "0000:14:00.0")
    assert "B · inference" in words_of(drawn, "0000:25:00.0")
    assert any(text.text == "A · train-0 24 GiB" for text in texts(drawn))
    letters = {
        group.title.partition(", ")[0]: shape.text
        for group in drawn.groups
        if group.kind == "core"
        for shape in group.shapes
        if isinstance(shape, Text)
    }
    assert letters == {"CPUs 4,20": "A", "CPUs 5,21": "+", "CPUs 12,28": "B"}


def test_a_degraded_link_is_told_once_at_the_device_and_in_words() -> None:
    drawn = check_picture(busy_host())
    assert "degraded from 32 GT/s ×16" in words_of(drawn, "0000:13:00.0")
    assert "16 GT/s ×8" in words_of(drawn, "0000:13:00.0")
    assert "degraded from 32 GT/s ×16" in words_of(drawn, "0000:21:00.0")
    assert signs_of(drawn, "0000:13:00.0") == ["warn"]
    assert signs_of(drawn, "0000:12:00.0") == []  # the port at the other end of the same link


def test_a_degraded_link_of_any_other_function_gets_a_box() -> None:
    host = Host(pci=(PciDevice(address="0000:07:00.0", class_code="010700", link=slow("0000:00:01.0")),))
    assert "degraded" in words_of(check_picture(host), "0000:07:00.0")


def test_by_design_is_no_fault() -> None:
    link = Link(speed_gts=16.0, width=4, max_speed_gts=32.0, max_width=4, state="by-design")
    host = Host(
        pci=(PciDevice(address="0000:07:00.0", class_code="030200", link=link),), gpus=(Gpu(address="0000:07:00.0"),)
    )
    assert signs_of(check_picture(host), "0000:07:00.0") == []


def test_results_are_marked_on_their_subject_with_sign_and_word() -> None:
    drawn = check_picture(busy_host(), BUSY_RESULTS)
    assert "failed: pcie-link" in words_of(drawn, "0000:13:00.0")
    assert signs_of(drawn, "0000:13:00.0") == ["fail", "warn"]
    assert "unknown: numa-affinity" in words_of(drawn, "0000:40:00.0")
    assert signs_of(drawn, "0000:40:00.0") == ["unknown", "unknown"]  # the check, and problem 1
    assert "failed: pinned-memory" in words_of(drawn, "inference", "guest")
    assert signs_of(drawn, "0000:23:00.0") == []  # it passed
    said = [text.text for text in texts(drawn)]
    assert "warning: free-memory" in said
    assert "failed: iommu (host)" in said
    assert "unknown: acs (0000:77:00.0)" in said
    assert "3 failed, 2 unknown, 1 warning, 1 passed" in said


def test_expectation_and_reality_are_in_the_tooltip() -> None:
    drawn = picture(busy_host(), BUSY_RESULTS)
    title = next(group.title for group in drawn.groups if group.name == "0000:13:00.0")
    assert "failed: pcie-link (expected 32 GT/s x16, is 16 GT/s x8)" in title


def test_a_device_of_unknown_node_stands_in_a_box_of_its_own() -> None:
    drawn = picture(busy_host())
    frames = {group.name: group.shapes[0] for group in drawn.groups if group.kind == "node"}
    box = next(group.shapes[0] for group in drawn.groups if group.name == "0000:40:00.0")
    frame = frames["node unknown"]
    assert isinstance(box, Rect)
    assert isinstance(frame, Rect)
    assert frame.x < box.x < frame.x + frame.width
    assert "see problem 1" in words_of(drawn, "0000:40:00.0")


def test_a_full_mesh_is_one_bundle() -> None:
    drawn = picture(many_gpus(2, 8))
    assert "NVLink: 8 GPUs, every GPU is linked to every other over 18 links" in [text.text for text in texts(drawn)]
    (links,) = (group for group in drawn.groups if group.kind == "links")
    assert len(links.shapes) < 80  # 28 pairs drawn one by one would need more, and hide the rest


def test_pairs_have_lines_of_their_own() -> None:
    drawn = picture(many_gpus(8, 16, kind="xgmi", pairs=2))
    assert [text.text for text in texts(drawn)].count("XGMI: 2 GPUs, joined by 18 links") == 8
    (links,) = (group for group in drawn.groups if group.kind == "links")
    level: dict[float, int] = {}
    for line in (shape for shape in links.shapes if isinstance(shape, ShapeLine)):
        (x, y), (x_2, y_2) = line.points[0], line.points[-1]
        if len(line.points) == 2 and y == y_2 and abs(x_2 - x) > 100:
            level[y] = level.get(y, 0) + 1
    assert level == dict.fromkeys(level, 1)
    assert len(level) == 8


def test_links_that_differ_are_in_a_table() -> None:
    drawn = picture(cube_mesh())
    (panel,) = (group for group in drawn.groups if group.kind == "fabric")
    said = [shape.text for shape in panel.shapes if isinstance(shape, Text)]
    assert "NVLink: 8 GPUs, links differ by pair" in said
    assert said.count("2") == 1 + 2 * 8  # the column's number, and the pairs with two links
    assert said.count("·") == 8 * 7 - 2 * 16


def test_links_that_a_gpu_of_a_guest_does_not_report_are_no_difference() -> None:
    base = cube_mesh()
    gpus = (Gpu(address=base.gpus[0].address, vendor="nvidia"), *base.gpus[1:])
    (panel,) = (group for group in picture(replace(base, gpus=gpus)).groups if group.kind == "fabric")
    said = [shape.text for shape in panel.shapes if isinstance(shape, Text)]
    assert "NVLink: 8 GPUs, the links of 1 of them were not read" in said
    assert said.count("?") == 7


def test_gpus_without_links_are_told_apart_from_unknown_ones() -> None:
    base = many_gpus(1, 4, pairs=2)
    gpus = (
        *base.gpus[:2],
        Gpu(address=base.gpus[2].address, vendor="nvidia", peers=()),
        Gpu(address=base.gpus[3].address, vendor="nvidia"),
    )
    drawn = picture(Host(numa_nodes=base.numa_nodes, pci=base.pci, gpus=gpus))
    said = [text.text for text in texts(drawn)]
    assert f"In no bundle, no such link seen: {gpus[2].address}" in said
    assert f"Links unknown: {gpus[3].address}" in said


def test_guests_past_the_alphabet_keep_letters_of_their_own() -> None:
    guests = tuple(RunningGuest(name=f"vm{n}", vcpu_pins=(VcpuPin(vcpu=0, cpus=str(n)),)) for n in range(30))
    cpus = tuple(Cpu(id=n, core=n, numa_node=0) for n in range(30))
    drawn = check_picture(Host(numa_nodes=(NumaNode(id=0),), cpus=cpus, guests=guests))
    letters = [
        shape.text
        for group in drawn.groups
        if group.kind == "core"
        for shape in group.shapes
        if isinstance(shape, Text)
    ]
    assert letters[25:28] == ["Z", "AA", "AB"]
    assert len(set(letters)) == 30


# --- the document --------------------------------------------------------------------------------------------


def agrees(name: str, text: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / name
    if request.config.getoption("--regenerate"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", ["busy", "nothing-known"])
def test_the_file_is_as_before(name: str, request: pytest.FixtureRequest) -> None:
    agrees(f"{name}.svg", host_svg(MADE[name](), results=BUSY_RESULTS if name == "busy" else ()), request)


def test_the_picture_in_the_documentation_is_of_the_bundled_host(request: pytest.FixtureRequest) -> None:
    """Parts in order; names of models come from this machine's pci.ids and may differ."""
    text = host_svg(discovered())
    if request.config.getoption("--regenerate"):
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text)
    shown, now = (
        [(element.attrib.get("data-kind"), element.attrib.get("data-name")) for element in ET.fromstring(svg).iter()]
        for svg in (PAGE.read_text(), text)
    )
    assert shown == now
    assert "SYNTHETIC" in PAGE.read_text()


def test_the_same_host_gives_the_same_bytes() -> None:
    assert host_svg(busy_host(), results=BUSY_RESULTS) == host_svg(busy_host(), results=iter(BUSY_RESULTS))


@pytest.mark.parametrize("name", MADE)
def test_it_is_one_self_contained_document(name: str) -> None:
    text = host_svg(MADE[name](), results=BUSY_RESULTS)
    root = ET.fromstring(text)
    spaces = {"http://www.w3.org/2000/svg"}
    assert {element.tag.partition("}")[0].strip("{") for element in root.iter()} == spaces
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "title", "desc", "style", "g", "rect", "polyline", "path", "text"}
    assert not {name for element in root.iter() for name in element.attrib if "href" in name or name.startswith("on")}
    style = next(element for element in root.iter() if element.tag.endswith("style")).text or ""
    assert "url(" not in style
    assert "@import" not in style
    assert style.count("prefers-color-scheme: dark") == 1
    assert {line.split()[0] for line in style.splitlines() if "{" in line and not line.startswith("@")} == {f".{ROOT}"}


def test_the_command_prints_it_in_any_locale(capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    document = tmp_path / "host.json"
    document.write_text(hostile_host().to_json())
    assert run(["discover", "--host", str(document), "-o", "svg"]) == 0
    out, err = capsysbinary.readouterr()
    assert out.decode("ascii") == host_svg(hostile_host())
    assert err == b""


def test_it_tells_those_who_do_not_see_it() -> None:
    root = ET.fromstring(host_svg(busy_host()))
    space = "{http://www.w3.org/2000/svg}"
    assert root.attrib["role"] == "img"
    named = [element.attrib["id"] for element in root if element.tag in (f"{space}title", f"{space}desc")]
    assert root.attrib["aria-labelledby"].split() == named
    assert root.findtext(f"{space}title") == "Topology of busy"
    assert "2 guests, 1 problems" in (root.findtext(f"{space}desc") or "")
    devices = [g for g in root.iter(f"{space}g") if g.attrib.get("data-kind") in DEVICES]
    assert devices
    assert all(g.findtext(f"{space}title") for g in devices)


def test_hostile_names_stay_text() -> None:
    text = host_svg(hostile_host(), results=(CheckResult(check=HOSTILE, subject=HOSTILE, outcome="fail"),))
    root = ET.fromstring(text)
    assert "<script" not in text
    assert not set(text) & {"\x00", "\x1b", "\u202e"}
    long = [element for element in root.iter() if (element.text or "").endswith("漢字")]
    assert long == []  # cut long before
    assert len(text) < 100_000


def test_text_of_unknown_width_is_made_to_fit() -> None:
    root = ET.fromstring(host_svg(Host(hostname="漢字ホスト")))
    head = next(element for element in root.iter() if element.text == "漢字ホスト" and element.tag.endswith("text"))
    assert float(head.attrib["textLength"]) == pytest.approx(5 * 24 * 1.05, abs=0.1)


def test_a_real_host_of_517_functions_stays_small(host_root: Callable[[str], Path]) -> None:
    text = host_svg(hosttune.discover(str(host_root("derived/xe9680-8xh100-lspci"))))
    assert len(text.encode()) < 500_000


def test_125_guests_with_500_functions_stay_in_bounds() -> None:
    check_picture(crowded())
    assert len(host_svg(crowded()).encode()) < 700_000


# --- text and colour -----------------------------------------------------------------------------------------


@given(st.text(max_size=60), st.floats(0, 200), st.booleans())
def test_fitted_text_fits(text: str, most: float, bold: bool) -> None:
    assert text_width(fitted(text, most, 10, bold=bold), 10, bold=bold) <= most


@given(st.text(max_size=200), st.integers(1, 4))
def test_wrapped_text_fits_and_keeps_its_words(text: str, lines: int) -> None:
    rows = wrapped(text, 150, 10, lines)
    assert len(rows) <= lines
    assert all(text_width(row, 10) <= 150 for row in rows)
    assert "…" in "".join(rows) or "".join(rows).replace(" ", "") == printable(text).replace(" ", "")


def _luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour (WCAG 2.1)."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_is_readable_on_every_fill_in_both_schemes() -> None:
    fills = {selector: (day, night) for selector, name, day, night in RULES if name == "fill"}
    plain = (".paper", ".node", ".panel", ".card", ".switch", ".device", ".nic", ".nvme", ".nvswitch")
    pairs = [(words, fill) for words in ("text", ".dim") for fill in plain]
    pairs += [(".onstrip", f".strip.{kind}") for kind in ("fail", "warn", "unknown")]
    pairs += [
        (".ongpu", ".gpu"),
        (".onguest", ".several"),
        (".bridge", ".switch"),
        (".bridge", ".card"),
        ("text", ".pair.on"),
    ]
    low = {
        (words, fill, scheme): round(_contrast(fills[words][scheme], fills[fill][scheme]), 1)
        for words, fill in pairs
        for scheme in (0, 1)
        if _contrast(fills[words][scheme], fills[fill][scheme]) < 4.5
    }
    assert low == {}
    assert [fill for fill, ink, _, _ in GUESTS if _contrast(ink, fill) < 4.5] == []
