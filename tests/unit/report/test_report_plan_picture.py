"""The picture of a plan: it shows what the plan gives to each guest and nothing else, legibly at any size."""

from __future__ import annotations

import math
import re
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from domain_shapes import changed
from examplehosts import discovered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mighosts import A, B, mig_host
from msgspec.structs import replace
from picturehosts import HOSTILE, busy_host, hostile_host, many_gpus
from planhosts import build_host, wild_intents, wild_shapes
from sweeps import examples
from unit.report.test_report_svg import DEVICES, outside, overlaps, spilled, stacked_devices, texts
from unit.report.test_report_validation_html import Page

import hosttune
from hosttune.cli import run
from hosttune.model.gpu import Gpu
from hosttune.model.host import Cpu, GuestMemory, Host, NumaNode, PciDevice, RunningGuest, VcpuPin
from hosttune.model.intent import Intent
from hosttune.model.plan import Cell, Device, GuestChange, Plan, PlanFinding, PlannedGuest, PlannedPin, Unplaced
from hosttune.model.values import CpuSet, format_size, to_json
from hosttune.planning.adopting import Definition, adopt
from hosttune.report.defined import with_defined
from hosttune.report.draw.html import page as html_of
from hosttune.report.picture.guests import GUEST_COLOURS, holders_of
from hosttune.report.picture.layout import Drawing, plan_picture, side_by_side
from hosttune.report.picture.shapes import SMALL, ShapeGroup, Text
from hosttune.report.picture.style import GUESTS, RULES
from hosttune.report.plan import plan_report
from hosttune.report.svg import adoption_svg, host_svg, plan_svg, two_plans_svg

ROOT = Path(__file__).parents[3]
INTENT = ROOT / "examples" / "three-guests.yaml"
SHOWN = ROOT / "docs" / "pictures" / "three-guests.svg"
GIB = 1 << 30
GPU = "0000:41:00.0"

Made = tuple[Host, Plan]


def plan_html(host: Host, plan: Plan) -> str:
    return html_of(plan_report(plan, host))


def pinned(name: str, *cpus: int, **memory: int | None) -> RunningGuest:
    """A guest of the host on these CPUs; `node`: the node of its memory, which is unknown otherwise."""
    pins = tuple(VcpuPin(vcpu=n, cpus=str(cpu)) for n, cpu in enumerate(cpus))
    shares = (GuestMemory(node=memory["node"], memory_bytes=GIB),) if memory else None
    return RunningGuest(name=name, vcpu_pins=pins, memory=shares)


def intent(*guests: Mapping[str, object]) -> Intent:
    rows = [{"name": f"team-{n}", **guest} for n, guest in enumerate(guests)]
    return Intent.from_json(to_json({"version": 1, "profile": "none", "guests": rows}))


def made(host: Host, *guests: Mapping[str, object]) -> Made:
    return host, hosttune.plan(host, intent(*guests))


@cache
def example() -> Host:
    return discovered()


def three() -> Made:
    return example(), hosttune.plan(example(), Intent.from_yaml(INTENT.read_text()))


def sixteen() -> Made:
    sizes: dict[str, object] = {"vcpus": 8, "memory": "64GiB"}
    return made(example(), *({**sizes, "gpus": int(n < 8)} for n in range(16)))


def sliced() -> Made:
    slice_of = {"vcpus": 4, "memory": "4GiB", "mig": {"profile": "1g.18gb", "count": 1}}
    return made(Host.from_json(to_json(mig_host(A, B))), *({**slice_of, "gpus": 0} for _ in range(5)))


def beside_others() -> Made:
    """A host with guests that are not in the plan, and a planned guest on what they leave."""
    return made(busy_host(), {"vcpus": 4, "memory": "4GiB"})


def hostile() -> Made:
    """Names, reasons and addresses that a document may contain and no planner makes."""
    device = Device(address=HOSTILE, kind=HOSTILE, guest_cell=0, guest_address=HOSTILE, identity="")
    guest = PlannedGuest(
        name=HOSTILE,
        vcpu_pins=(PlannedPin(vcpu=0, cpus="1"),),
        emulator_cpus="0",
        cells=(Cell(id=0, vcpus="0", memory_bytes=GIB, host_nodes="0"),),
        page_bytes=GIB,
        devices=(device,),
        fabric_partition=1,
        why=(HOSTILE,),
    )
    left = tuple(Unplaced(guest=HOSTILE, why=(HOSTILE,)) for _ in range(20))
    return hostile_host(), Plan(intent=Intent(version=1), hostname=HOSTILE, guests=(guest,), unplaced=left)


def large() -> Made:
    """32 nodes, 2,048 CPUs and 64 guests, each with 32 CPUs of one node and a GPU."""
    cpus = tuple(Cpu(id=n, core=n % 1024, numa_node=n % 1024 // 32, llc=n % 1024 // 8) for n in range(2048))
    far = {str(n): 10 + n for n in range(32)}
    nodes = tuple(NumaNode(id=n, memory_bytes=256 * GIB, distances=far) for n in range(32))
    gpus = tuple(Gpu(address=f"{n:04x}:01:00.0", vendor="nvidia", model="NVIDIA H200") for n in range(64))
    pci = tuple(PciDevice(address=gpu.address, class_code="030200", numa_node=n // 2) for n, gpu in enumerate(gpus))
    host = Host(hostname="large", cpus=cpus, numa_nodes=nodes, pci=pci, gpus=gpus)
    guests = []
    for n in range(64):
        half = [n * 16 + core for core in range(1, 16)]
        pins = sorted([*half, *(core + 1024 for core in half)])
        gpu = Device(address=gpus[n].address, kind="gpu", guest_cell=0, guest_address="0000:07:00.0", identity="")
        guests.append(
            PlannedGuest(
                name=f"guest-{n}",
                vcpu_pins=tuple(PlannedPin(vcpu=vcpu, cpus=str(cpu)) for vcpu, cpu in enumerate(pins)),
                emulator_cpus=str(n * 16),
                cells=(Cell(id=0, vcpus=f"0-{len(pins) - 1}", memory_bytes=100 * GIB, host_nodes=str(n // 2)),),
                page_bytes=GIB,
                devices=(gpu,),
            )
        )
    housekeeping = str(CpuSet(range(0, 1024, 16)))
    return host, Plan(intent=Intent(version=1), guests=tuple(guests), housekeeping_cpus=housekeeping)


SCENES: dict[str, Callable[[], Made]] = {
    "three": three,
    "sixteen": sixteen,
    "8-nodes-16-guests": lambda: made(
        many_gpus(8, 16, cores=16), *({"vcpus": 8, "memory": "8GiB", "gpus": 1} for _ in range(16))
    ),
    "wide": lambda: made(many_gpus(2, 8, cores=96), {"gpus": 8, "nics": 4}),
    "1-node": lambda: made(many_gpus(1, 1), {"gpus": 1}),
    "no-guest-placed": lambda: made(many_gpus(2, 4), *({"gpus": 5} for _ in range(15))),
    "threads": lambda: made(many_gpus(2, 2), *({"vcpus": 3, "smt": "threads", "memory": "1GiB"} for _ in range(4))),
    "sliced": sliced,
    "beside-others": beside_others,
    "hostile": hostile,
    "large": large,
}


@cache
def scene(name: str) -> Made:
    return SCENES[name]()


def check(drawn: Drawing) -> None:
    assert overlaps(drawn) == []
    assert outside(drawn) == []
    assert spilled(drawn) == []
    assert stacked_devices(drawn) == []
    assert [text.text for text in texts(drawn) if text.size < SMALL] == []


def cpus_shown(drawn: Drawing) -> dict[str, CpuSet]:
    """The CPUs of each guest, by letter, as the cores' data say."""
    found: dict[str, CpuSet] = {}
    for group in drawn.groups:
        for part in dict(group.data).get("held", "").split() if group.kind == "core" else ():
            letter, _, cpus = part.partition(":")
            assert not found.get(letter, CpuSet()) & CpuSet.parse(cpus)
            found[letter] = CpuSet(found.get(letter, CpuSet()) | CpuSet.parse(cpus))
    return found


def devices_shown(drawn: Drawing) -> set[tuple[str, str]]:
    groups = [group for group in drawn.groups if group.kind in DEVICES]
    return {(group.name, letter) for group in groups for letter in dict(group.data).get("held", "").split()}


def shares_shown(drawn: Drawing) -> Counter[tuple[str, str, str, str | None]]:
    found = (dict(group.data) for group in drawn.groups if group.kind == "share")
    return Counter((one["held"], one["node"], one["bytes"], one.get("page-bytes")) for one in found)


def check_content(host: Host, plan: Plan, drawn: Drawing) -> None:
    """What the plan gives, and what guests outside it have, is in the picture once; nothing else is anybody's."""
    online = CpuSet(cpu.id for cpu in host.cpus if cpu.online)
    nodes = {node.id for node in host.numa_nodes if node.memory_bytes}
    cpus: dict[str, CpuSet] = {}
    devices: set[tuple[str, str]] = set()
    shares: Counter[tuple[str, str, str, str | None]] = Counter()
    for holder, guest in zip(holders_of(host, plan), plan.guests, strict=False):
        cpus[holder.letter] = CpuSet(int(pin.cpus) for pin in guest.vcpu_pins)
        devices |= {(device.address, holder.letter) for device in guest.devices if device.kind != "mdev"}
        pages = str(guest.page_bytes) if guest.page_bytes else None
        shares.update((holder.letter, cell.host_nodes, str(cell.memory_bytes), pages) for cell in guest.cells)
        assert cpus[holder.letter] <= online
    for holder in holders_of(host, plan)[len(plan.guests) :]:
        cpus[holder.letter] = CpuSet(holder.cpus & online)
        devices |= {(address, holder.letter) for address in holder.devices}
        shares.update(
            (
                holder.letter,
                str(share.node),
                str(share.memory_bytes),
                str(share.page_bytes) if share.page_bytes else None,
            )
            for share in holder.shares
            if share.node in nodes
        )
    assert cpus_shown(drawn) == {letter: ids for letter, ids in cpus.items() if ids}
    assert devices_shown(drawn) == devices
    assert shares_shown(drawn) == shares
    kept = [dict(group.data)["cpus"] for group in drawn.groups if "housekeeping" in group.title.split(", ")]
    held = CpuSet().union(*cpus.values())
    reserved = CpuSet.parse(plan.housekeeping_cpus) & online - held
    assert reserved <= CpuSet().union(*map(CpuSet.parse, kept))


# --- content -------------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=examples(25, full=500), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_plan_is_shown_whole_and_nothing_else_is(data: st.DataObject) -> None:
    shape = data.draw(wild_shapes())
    host = Host.from_json(to_json(build_host(shape)))
    plan = hosttune.plan(host, Intent.from_json(to_json(data.draw(wild_intents(shape)))))
    drawn = plan_picture(host, plan)
    check(drawn)
    check_content(host, plan, drawn)


@pytest.mark.parametrize("name", [name for name in SCENES if name != "hostile"])
def test_the_plan_is_shown_whole_and_nothing_overlaps(name: str) -> None:
    host, plan = scene(name)
    assert plan.guests or name == "no-guest-placed"
    drawn = plan_picture(host, plan)
    check(drawn)
    check_content(host, plan, drawn)
    cards = Counter(group.name for group in drawn.groups if group.kind == "guest")
    assert cards == Counter(holder.name for holder in holders_of(host, plan))


def test_the_test_of_content_finds_a_core_of_another_guest() -> None:
    host, plan = scene("three")
    other = hosttune.plan(host, intent({"gpus": 1}))
    with pytest.raises(AssertionError):
        check_content(host, plan, plan_picture(host, other))


def test_cards_name_cells_pins_pages_threads_switches_and_partition() -> None:
    host, plan = scene("three")
    drawn = plan_picture(host, plan)
    (card,) = (group for group in drawn.groups if group.kind == "guest" and group.name == "train-b")
    said = [shape.text for shape in card.shapes if isinstance(shape, Text)]
    guest = plan.guests[1]
    cell = guest.cells[0]
    assert f"cell 0 on node {cell.host_nodes}" in said
    assert f"{cell.memory_bytes // GIB} pages of {format_size(GIB)}" in said
    assert f"emulator threads on CPUs {guest.emulator_cpus}" in said
    assert f"fabric partition {guest.fabric_partition}" in said
    assert sum(text.startswith("switch ") for text in said) == 2
    for device in guest.devices:
        assert any(text.endswith(device.address) for text in said)
        assert f"at {device.guest_address.removeprefix('0000:')}" in said


def test_what_stays_free_is_named_and_looks_different_from_what_the_host_keeps() -> None:
    host, plan = scene("three")
    drawn = plan_picture(host, plan)
    said = " ".join(text.text for text in texts(drawn))
    given = {device.address for guest in plan.guests for device in guest.devices}
    (left,) = (gpu.address for gpu in host.index.accelerators if gpu.address not in given)
    assert f"1 of 8 GPUs ({left})" in said
    assert f"CPUs {plan.housekeeping_cpus} stay with the host" in said
    styles = {group.shapes[0].style for group in drawn.groups if group.kind == "core"}  # type: ignore[union-attr]
    assert styles == {"core free", "core housekeeping", "core g0", "core g1", "core g2"}


@pytest.mark.parametrize(
    ("guests", "words"),
    [
        (None, "the guests of this host are unknown"),
        ((RunningGuest(name="old", memory=(GuestMemory(node=0, memory_bytes=GIB),)),), "they are not pinned: old"),
        ((pinned("old", 1),), "have memory on unknown nodes: old"),
        ((pinned("old", 1, node=None),), "have memory on unknown nodes: old"),
    ],
)
def test_what_is_not_known_of_guests_is_never_shown_as_free(
    guests: tuple[RunningGuest, ...] | None, words: str
) -> None:
    base = many_gpus(2, 2)
    host = Host(**{**{name: getattr(base, name) for name in base.__struct_fields__}, "guests": guests})
    said = " ".join(text.text for text in texts(plan_picture(host, hosttune.plan(base, intent({"gpus": 1})))))
    assert f"what looks free may be in use: {words}" in said.replace("run on any CPU, because ", "")
    assert "at most " in said


def test_what_is_known_of_guests_is_not_doubted() -> None:
    host, plan = scene("three")
    said = " ".join(text.text for text in texts(plan_picture(host, plan)))
    assert "at most " not in said
    assert "may be in use" not in said


def test_a_guest_without_a_place_is_named_with_its_reason() -> None:
    host, plan = scene("no-guest-placed")
    said = [text.text for text in texts(plan_picture(host, plan))]
    assert sum(text.startswith("NOT placed: team-") for text in said) == 12
    assert "and 3 more NOT placed" in said


def test_instances_of_a_gpu_are_on_the_gpu() -> None:
    host, plan = scene("sliced")
    drawn = plan_picture(host, plan)
    shown = {(group.name, letter) for group in drawn.groups for letter in dict(group.data).get("mig", "").split()}
    letters = {holder.name: holder.letter for holder in holders_of(host, plan)}
    assert shown == {(one.gpu, letters[guest.name]) for guest in plan.guests for one in guest.mig}
    assert shown


def test_distances_are_a_matrix() -> None:
    host, plan = made(many_gpus(8, 16), {"gpus": 1})
    (matrix,) = (group for group in plan_picture(host, plan).groups if group.kind == "distances")
    said = [shape.text for shape in matrix.shapes if isinstance(shape, Text)]
    known = [str(far) for node in host.numa_nodes for far in (node.distances or {}).values()]
    assert len(known) == 64
    assert Counter(said) == Counter([*known, *(f"node {n}" for n in range(8)), *map(str, range(8))])


def test_distances_that_do_not_fit_are_counted() -> None:
    nodes = tuple(NumaNode(id=n, distances={str(m): 20 for m in range(90)}) for n in range(90))
    drawn = plan_picture(Host(numa_nodes=nodes), None)
    check(drawn)
    (more,) = (text.text for text in texts(drawn) if text.text.startswith("and "))
    assert re.fullmatch(r"and \d+ nodes more, in `hosttune discover -o json`", more)


def test_each_strip_has_cpu_numbers_at_its_ends() -> None:
    host, plan = scene("three")
    ends = [group for group in plan_picture(host, plan).groups if group.kind == "ends"]
    said = [[shape.text for shape in group.shapes if isinstance(shape, Text)] for group in ends]
    assert said == [["0", "47"], ["48", "95"]]


# --- two plans -----------------------------------------------------------------------------------------------


def test_two_plans_are_side_by_side_and_a_guest_keeps_its_colour() -> None:
    base = many_gpus(2, 2)
    fields = {name: getattr(base, name) for name in base.__struct_fields__}
    host = Host(**{**fields, "guests": (pinned("old", 1), pinned("team-1", 2, 9))})
    plan = hosttune.plan(base, intent({"vcpus": 4, "memory": "1GiB"}, {"vcpus": 4, "memory": "1GiB"}))
    root = ET.fromstring(two_plans_svg(host, None, plan))
    cards = [
        (group.attrib["data-name"], group.attrib["data-held"])
        for group in root.iter()
        if group.attrib.get("data-kind") == "guest"
    ]
    assert cards == [("old", "C"), ("team-1", "B"), ("team-0", "A"), ("team-1", "B"), ("old", "C")]
    left, right = plan_picture(host, None), plan_picture(host, plan)
    both = side_by_side(left, right)
    check(both)
    assert both.width >= left.width + right.width
    assert [text.text for text in texts(both) if text.text in ("before", "after")] == ["before", "after"]
    assert len(both.groups) == len(left.groups) + len(right.groups) + 2


# --- documents -----------------------------------------------------------------------------------------------


def test_a_definition_from_a_file_is_shown_before_and_after() -> None:
    """Two of its eight vCPUs are pinned: where the others run is not known, so no core is shown as free for certain."""
    xml = (ROOT / "tests" / "cases" / "lint" / "virt-install-tuned.xml").read_bytes()
    host = example()
    adoption = adopt(host, [Definition(xml, "tuned")])
    drawn = adoption_svg(host, [xml], adoption.plan)
    both = [node.get("data-held") for node in ET.fromstring(drawn).iter() if node.get("data-name") == GPU]
    assert both == ["A", "A"]
    assert "shut off, 8 vCPUs (2 pinned), 128 GiB, 1 device" in drawn
    assert "what looks free may be in use" in drawn
    assert two_plans_svg(host, None, adoption.plan).count("shut off") == 0
    resident = changed(host, guests=(RunningGuest(name="tuned", state="running", devices=(GPU,)),))
    assert "running" in adoption_svg(resident, [xml], adoption.plan)
    unknown = changed(host, guests=None)
    assert adoption_svg(unknown, [xml], None) == two_plans_svg(unknown, None, None)


CELLS = "<cpu><numa><cell cpus='0' memory='2' unit='GiB'/><cell cpus='1' memory='1' unit='GiB'/></numa></cpu>"
MEMNODE = "<memnode cellid='1' mode='strict' nodeset='1'/>"


@pytest.mark.parametrize(
    ("numatune", "rest", "found"),
    [
        ("<memory mode='strict' nodeset='1'/>", "", [(1, 3, None)]),
        ("<memory nodeset='1'/>", "<memoryBacking><hugepages><page size='1' unit='GiB'/></hugepages></memoryBacking>",
         [(1, 3, 1)]),
        ("<memory mode='strict' nodeset='0-1'/>", "", [(None, 3, None)]),
        ("", "", [(None, 3, None)]),
        ("<memory mode='strict' nodeset='0'/>" + MEMNODE, CELLS, [(0, 2, None), (1, 1, None)]),
    ],
)  # fmt: skip
def test_before_an_adoption_memory_is_where_the_definition_binds_it(
    numatune: str, rest: str, found: list[tuple[int | None, int, int | None]]
) -> None:
    name = "<name>a</name><memory unit='GiB'>3</memory><vcpu>2</vcpu>"
    xml = f"<domain type='kvm'>{name}<numatune>{numatune}</numatune>{rest}</domain>".encode()
    (guest,) = with_defined(changed(example(), guests=()), [xml]).guests or ()
    shares = guest.memory and [(m.node, m.memory_bytes // GIB, m.page_bytes and m.page_bytes // GIB)
                               for m in guest.memory if m.memory_bytes]  # fmt: skip
    assert shares == found
    runs = changed(example(), guests=(RunningGuest(name="a", state="running"),))
    assert with_defined(runs, [xml]) == runs


def test_a_large_host_is_drawn_in_2_seconds_and_2_mib() -> None:
    host, plan = scene("large")
    before = time.process_time()
    text = plan_svg(host, plan)
    assert time.process_time() - before < 2
    assert len(text.encode()) < 2 << 20


@pytest.mark.parametrize("name", ["hostile", "large", "three"])
def test_no_sheet_cuts_a_text_and_all_are_whole(name: str) -> None:
    host, plan = scene(name)
    drawn = plan_picture(host, plan)
    check(drawn)
    assert list(drawn.cuts) == sorted(set(drawn.cuts))
    cut = [text.text for text in texts(drawn) for y in drawn.cuts if text.box[1] < y < text.box[3]]
    assert cut == []
    page = ET.fromstring(f"<div>{plan_svg(host, plan, sheets=True)}</div>")
    heights = [float(sheet.attrib["height"]) for sheet in page]
    assert len(heights) == len(drawn.cuts) + 1
    assert sum(heights) == pytest.approx(drawn.height, abs=0.1)
    written = {element.text for element in page.iter() if element.tag.endswith("}text")}
    assert written == {text.text for text in texts(drawn)}


def test_no_part_of_a_picture_changes_the_page_around_it() -> None:
    """A rule of the page that asks for a class (`:has`) must not find it inside the picture."""
    asked = set(re.findall(r":has\(\.([\w-]+)\)", (ROOT / "templates/report/style.css").read_text()))
    assert {"picture", "beside"} <= asked
    parts = ET.fromstring(plan_svg(*three())).iter()
    assert asked.isdisjoint(name for part in parts for name in part.get("class", "").split())


def test_hostile_documents_stay_text_on_the_picture_and_on_the_page() -> None:
    host, plan = scene("hostile")
    for text in (plan_svg(host, plan), plan_html(host, plan), two_plans_svg(host, plan, plan)):
        assert "<script" not in text
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
    tags = {tag for tag, _ in Page(plan_html(host, plan)).tags}
    assert not tags & {"script", "img", "link", "iframe"}
    ET.fromstring(plan_svg(host, plan))


def test_the_page_holds_everything_and_loads_nothing() -> None:
    host, plan = scene("three")
    page = Page(plan_html(host, plan))
    policy = next(attributes["content"] or "" for tag, attributes in page.tags if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'")
    assert "script-src" not in policy
    loading = {"src", "srcset", "data", "action", "poster", "xlink:href"}
    assert not [one for one in page.tags if loading & set(one[1]) or any(key.startswith("on") for key in one[1])]
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {(a["href"] or "")[1:] for _, a in page.tags if "href" in a} <= set(ids)
    for guest in plan.guests:
        assert all(" ".join(line.split()) in page.text for line in guest.why)
    assert all(" ".join(finding.text.split()) in page.text for finding in plan.findings)
    assert all(action.target in page.text for action in plan.actions)


def test_the_same_plan_gives_the_same_bytes() -> None:
    host, plan = scene("sixteen")
    again, same = Host.from_json(host.to_json()), Plan.from_json(plan.to_json())
    assert plan_svg(again, same) == plan_svg(host, plan)
    assert plan_html(again, same) == plan_html(host, plan)


@pytest.mark.parametrize(("output", "draw"), [("svg", plan_svg), ("html", plan_html)])
def test_the_command_prints_it(
    output: str, draw: Callable[[Host, Plan], str], capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    host = many_gpus(2, 4)
    document = tmp_path / "host.json"
    document.write_text(host.to_json())
    base = ["plan", "--host", str(document), "-o", output]
    assert run([*base, "--gpus", "2", "--name", "a"]) == 0
    guest = {"version": 1, "guests": [{"name": "a", "gpus": 2}]}
    assert capsysbinary.readouterr().out.decode() == draw(host, hosttune.plan(host, Intent.from_json(to_json(guest))))
    assert run([*base, "--gpus", "4", "--vcpus", "999"]) == 1
    assert b"NOT placed" in capsysbinary.readouterr().out


def test_an_xml_check_has_no_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    document = tmp_path / "host.json"
    document.write_text(many_gpus(1, 1).to_json())
    assert run(["plan", "--host", str(document), "--check-xml", "x.xml", "-o", "svg"]) == 2
    assert "-o svg together with --check-xml" in capsys.readouterr().err


def test_the_picture_in_the_readme_is_of_the_bundled_host(request: pytest.FixtureRequest) -> None:
    """Parts in order; names of models come from this machine's pci.ids and may differ."""
    text = plan_svg(*scene("three"))
    if request.config.getoption("--regenerate"):
        SHOWN.write_text(text)
    shown, now = (
        [
            {key: value for key, value in element.attrib.items() if "data-" in key}
            for element in ET.fromstring(svg).iter()
        ]
        for svg in (SHOWN.read_text(), text)
    )
    assert shown == now
    assert "SYNTHETIC" in SHOWN.read_text()


def test_a_host_without_a_plan_keeps_the_colours_of_kinds() -> None:
    styles = re.findall(r'<rect class="device ([a-z]+)"', host_svg(example()))
    assert {"gpu", "nic", "nvme"} <= set(styles)


# --- colours -------------------------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes 2009, table 1, severity 1.0, on linear RGB.
SIGHT = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def lab(colour: str, sight: str) -> tuple[float, float, float]:
    """CIELAB (D65) of an sRGB colour as seen."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    red, green, blue = (
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear, strict=True)))) for row in SIGHT[sight]
    )
    x = (0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047
    y = 0.2126729 * red + 0.7151522 * green + 0.0721750 * blue
    z = (0.0193339 * red + 0.1191920 * green + 0.9503041 * blue) / 1.08883
    f, g, h = (t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116 for t in (x, y, z))
    return 116 * g - 16, 500 * (f - g), 200 * (g - h)


@pytest.mark.parametrize("sight", SIGHT)
def test_12_guests_are_told_apart_by_everybody(sight: str) -> None:
    fills = [lab(fill, sight) for fill, _, _, _ in GUESTS]
    assert len(fills) == GUEST_COLOURS == 12
    near = [sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) ** 0.5 for a, b in combinations(fills, 2)]
    assert min(near) > 16


def test_no_guest_looks_like_an_outcome() -> None:
    """Of the page and of the picture, light and dark: red, amber, violet, green."""
    style = (Path(__file__).parents[3] / "templates/report/style.css").read_text()
    outcomes = re.findall(r"--(?:m-)?(?:fail|warn|unknown|pass): (#[0-9a-f]{6})", style)
    outcomes += [value for name, _, *values in RULES if name.startswith((".sign", ".fault")) for value in values]
    assert len(outcomes) > 20
    for guest in GUESTS:
        _, a, b = lab(guest[0], "normal")
        assert 190 < math.degrees(math.atan2(b, a)) % 360 < 290 or math.degrees(math.atan2(b, a)) % 360 > 320, guest
        assert min(math.dist(lab(guest[0], "normal"), lab(other, "normal")) for other in outcomes) > 16, guest


def test_no_kind_of_device_looks_like_an_outcome() -> None:
    """Grey, blue or teal: what is green, amber, violet or red was judged."""
    kinds = (".gpu", ".nic", ".nvme", ".nvswitch", ".fabric", ".joint", ".memory", ".pair", ".core", ".switch")
    colours = [value for name, _, *values in RULES if name.startswith(kinds) for value in values if value != "none"]
    assert len(colours) > 30
    for colour in colours:
        _, a, b = lab(colour, "normal")
        assert math.hypot(a, b) < 8 or 190 < math.degrees(math.atan2(b, a)) % 360 < 290, colour


def test_each_coloured_part_has_the_letter_too() -> None:
    host, plan = scene("sixteen")

    def lettered(group: ShapeGroup, letter: str) -> bool:
        return any(isinstance(one, Text) and one.text.split(" ")[0] == letter for one in group.shapes)

    held = [
        (group, dict(group.data)["held"]) for group in plan_picture(host, plan).groups if "held" in dict(group.data)
    ]
    assert [group.title for group, held_by in held if not lettered(group, held_by.partition(":")[0])] == []


# --- the page around the picture -------------------------------------------------------------------------------


def test_the_page_says_first_what_changes_what_is_wrong_and_what_comes_next() -> None:
    host = example()
    plan = hosttune.plan(host, Intent.from_yaml(INTENT.read_text()))
    text = plan_html(host, plan)
    banner = text[text.index('<div class="verdict warn"') : text.index("<nav")]
    assert "3 guests placed" in banner
    assert "3 warnings" in banner
    assert "to write, 0 to put back" in banner
    assert "next: plan and apply on the host itself" in banner
    headings = re.findall(r"<h2[^>]*>([^<]*)</h2>", text)
    assert headings.index("Actions, effective at once") < headings.index("The host and its guests")
    error = PlanFinding(level="error", text="no IOMMU groups", where="/sys")
    text = plan_html(host, replace(plan, findings=(error, *plan.findings)))
    assert '<div class="verdict fail"' in text
    assert re.findall(r"<h2[^>]*>([^<]*)</h2>", text)[0] == "Errors"
    assert '<div class="verdict pass"' in plan_html(host, replace(plan, findings=()))


def test_a_card_names_disk_and_networks_and_what_differs() -> None:
    host = example()
    plan = hosttune.plan(host, Intent.from_yaml(INTENT.read_text()))
    change = GuestChange(element="memory", was="512 GiB", becomes="1016 GiB", when="next-start")
    first, second, third = plan.guests
    text = plan_svg(host, plan)
    assert "disk /var/lib/libvirt/images/train-a.qcow2" in text
    assert "network default" in text
    assert "~" not in text
    guests = (replace(first, change="update", changes=(change,)), replace(second, change="keep"), third)
    text = plan_svg(host, replace(plan, based_on=3, guests=guests))
    for told in ("~ train-a", "~ memory: 512 GiB &#8594; 1016 GiB", "= train-b", "+ tenant-c"):
        assert told in text, told
