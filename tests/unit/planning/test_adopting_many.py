"""Several existing guests, planned together: no core and no device twice, each where it is if that is as good."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import applyroots
import pytest
from adoptedguests import Guest, crowds, host_with
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree
from planhosts import Card, Shape, cores_of
from sweeps import examples
from xmledits import edited

import hosttune
from hosttune.cli.process import run
from hosttune.domain.reader import read_domain
from hosttune.domain.writer import domain_xml
from hosttune.errors import BadInput
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan
from hosttune.model.values import parse_cpus
from hosttune.planning import plan
from hosttune.planning.adopting import LIVE_AFFINITY, Adoption, Adoptions, Definition, adopt, saved_plan
from hosttune.planning.staying import most_staying

NEAR, FAR = "0000:c1:00.0", "0000:41:00.0"
SHAPE = Shape(cards=(Card(NEAR, 1, group=7), Card(FAR, 0, group=9), Card("0000:c2:00.0", 1, kind="nic", group=8)))


def host_of(*guests: Guest, shape: Shape = SHAPE, **changes: Any) -> Host:
    return Host.from_json(json.dumps(host_with(replace(shape, **changes), guests)))


def together(host: Host, guests: Iterable[Guest]) -> Adoptions:
    return adopt(host, [Definition(guest.xml.encode(), guest.name) for guest in guests])


def pins(xml: bytes) -> dict[int, int]:
    return {pin.id: int(pin.cpus) for pin in read_domain(xml).vcpu_pins}


def on(cores: Sequence[Sequence[int]]) -> dict[int, str]:
    """Pins of vCPUs to all threads of these cores."""
    return dict(enumerate(str(cpu) for core in cores for cpu in core))


def by_name(found: Adoptions) -> Mapping[str, Adoption]:
    return {one.name: one for one in found.guests}


# --- what always holds ------------------------------------------------------------------------------------------


@settings(max_examples=examples(15, 600), deadline=None, suppress_health_check=list(HealthCheck))
@given(crowds())
def test_guests_planned_together(case: tuple[Shape, tuple[Guest, ...]]) -> None:
    shape, guests = case
    host = Host.from_json(json.dumps(host_with(shape, guests)))
    found = together(host, guests)
    assert found == together(host, guests[::-1])
    placed = [one for one in found.guests if one.placement is not None]
    assert {one.guest for one in found.plan.unplaced} == {one.name for one in found.guests} - {p.name for p in placed}
    check_apart(host, found)
    for one in found.guests:
        check_kept(one)
    document = saved_plan(found)
    assert Plan.from_json(document.to_json()) == document
    check_settled(host, shape, guests, placed)


def check_apart(host: Host, found: Adoptions) -> None:
    """No core and no device of a planned guest is another's: neither a planned one's nor a defined one's."""
    core = {cpu.id: cpu.core for cpu in host.cpus}
    planned = {one.name for one in found.guests if one.placement is not None}
    cores = {one.name: {core[cpu] for cpu in pins(one.after).values()} for one in found.guests if one.name in planned}
    reserved = {core[cpu] for cpu in parse_cpus(found.plan.housekeeping_cpus)}
    online = {cpu.id for cpu in host.cpus if cpu.online is not False}
    others = {}
    for guest in host.guests or ():
        held = {cpu for pin in guest.vcpu_pins or () for cpu in parse_cpus(pin.cpus)}
        if guest.name not in planned and not held >= online:  # on every CPU: that is not pinned
            others[guest.name] = {core[cpu] for cpu in held}
    for name, own in cores.items():
        assert len(own) > 0
        assert own.isdisjoint(reserved)
        assert all(own.isdisjoint(theirs) for other, theirs in {**others, **cores}.items() if other != name)
    devices = [{device.address for device in guest.devices} for guest in found.plan.guests]
    assert all(a.isdisjoint(b) for a, b in combinations(devices, 2))
    used = {cpu for one in found.guests if one.name in planned for cpu in pins(one.after).values()}
    for one in found.guests:
        if one.name in planned and found.plan.housekeeping_cpus:
            facts = read_domain(one.after)
            threads = [facts.emulator_cpus, *(pin.cpus for pin in facts.iothread_pins)]
            assert all(parse_cpus(cpus).isdisjoint(used) for cpus in threads)


CHANGED = [
    *(f"cputune/{tag}" for tag in ("vcpupin", "emulatorpin", "iothreadpin")),
    *("numatune", "memoryBacking/hugepages", "cpu/numa", "cpu/topology"),
]
MADE = ("cputune", "memoryBacking", "cpu")


def check_kept(one: Adoption) -> None:
    """All that is no place is as before, also comments and text; all lines of the rest are there in their order."""
    if not one.changes:
        assert one.after == one.before
        return
    assert rest(one.after) == rest(one.before)
    lines = iter(one.after.splitlines(keepends=True))
    places = (b"pin ", b"numatune", b"cputune")
    kept = [line for line in one.before.splitlines(keepends=True) if not any(place in line for place in places)]
    assert all(line in lines for line in kept)


def rest(xml: bytes) -> bytes:
    """The canonical text of a definition without the elements that say where the guest runs."""
    root = etree.fromstring(xml, etree.XMLParser(remove_blank_text=True))
    for path in CHANGED:
        for element in root.findall(path):
            parent = element.getparent()
            assert parent is not None
            parent.remove(element)
    for tag in MADE:
        for element in root.findall(tag):
            if not len(element):
                root.remove(element)
    return etree.tostring(root, method="c14n", with_comments=True)


def check_settled(host: Host, shape: Shape, guests: Sequence[Guest], placed: Sequence[Adoption]) -> None:
    """Planned again where they are defined so, nothing changes; those without a place are as they were."""
    after = {one.name: {str(vcpu): cpu for vcpu, cpu in pins(one.after).items()} for one in placed}
    moved = [
        replace(guest, pins={int(v): str(c) for v, c in after[guest.name].items()}, runs=False)
        if guest.name in after
        else guest
        for guest in guests
    ]
    then = Host.from_json(json.dumps(host_with(shape, moved)))
    again = adopt(then, [Definition(one.after, one.name) for one in placed])
    assert again.plan.unplaced == ()
    assert [one.changes for one in again.guests] == [()] * len(placed)


# --- who stays --------------------------------------------------------------------------------------------------


def test_of_two_guests_on_the_same_cores_the_running_one_stays() -> None:
    cores = cores_of(SHAPE, 1)[2:4]
    first = Guest("a", devices=(NEAR,), pins=on(cores), runs=False)
    second = Guest("b", devices=("0000:c2:00.0",), pins=on(cores), runs=True)
    found = by_name(together(host_of(first, second), (first, second)))
    assert pins(found["b"].after) == pins(second.xml.encode())
    assert set(pins(found["a"].after).values()).isdisjoint(pins(found["b"].after).values())


def test_a_guest_makes_way_for_one_that_gains_more() -> None:
    """`idle` has no device and so many cores of the node of `fast`'s GPU that `fast` had to go to the other node."""
    shape = replace(SHAPE, cores_per_node=12)
    near, far = cores_of(shape, 1), cores_of(shape, 0)
    idle = Guest("idle", vcpus=20, pins=on(near[1:11]), node=1, runs=True)
    fast = Guest("fast", vcpus=4, devices=(NEAR,), pins=on(far[1:3]), node=0, runs=False)
    right = Guest("right", vcpus=2, devices=(FAR,), pins=on(far[4:5]), node=0, runs=False)
    found = by_name(together(host_of(idle, fast, right, shape=shape), (idle, fast, right)))
    assert set(pins(found["fast"].after).values()) <= {cpu for core in near for cpu in core}
    assert set(pins(found["idle"].after).values()) <= {cpu for core in far for cpu in core}
    assert pins(found["right"].after) == pins(right.xml.encode())  # only those that must move do
    alone = together(host_of(idle, fast, right, shape=shape), (fast,)).guests[0]
    assert pins(alone.after) == pins(fast.xml.encode())  # all others stay, so it has no better place


@pytest.mark.parametrize("picked", [(0, 1, 2), (0, 1, 3), (0, 2, 3), (0, 2)])
def test_a_guest_on_parts_of_cores_stays(picked: tuple[int, ...]) -> None:
    cpus = [cpu for core in cores_of(SHAPE, 1)[3:5] for cpu in core]
    odd = Guest(vcpus=len(picked), devices=(NEAR,), pins={n: str(cpus[at]) for n, at in enumerate(picked)})
    assert pins(together(host_of(), (odd,)).guests[0].after) == pins(odd.xml.encode())


def test_of_sixteen_guests_only_the_one_that_gains_moves() -> None:
    shape = replace(SHAPE, cores_per_node=40, memory_gib=256)
    cores = [cores_of(shape, n % 2)[2 + n // 2 * 2 : 4 + n // 2 * 2] for n in range(16)]
    guests = [Guest(f"g{n:02}", pins=on(own), node=n % 2, runs=bool(n % 3)) for n, own in enumerate(cores)]
    guests[6] = replace(guests[6], devices=(NEAR,))
    found = together(host_of(*guests, shape=shape), guests)
    assert [one.name for one in found.guests if any("vcpupin" in c.element for c in one.changes)] == ["g06"]


@given(st.integers(0, 16), st.sets(st.frozensets(st.integers(0, 15), min_size=1, max_size=3), max_size=5))
def test_who_stays_is_decided_one_by_one_in_few_steps(count: int, conflicts: set[frozenset[int]]) -> None:
    """`conflicts`: guests that cannot all stay."""
    asked = []

    def is_good(names: tuple[str, ...]) -> bool:
        asked.append(names)
        return not any({str(one) for one in conflict} <= set(names) for conflict in conflicts)

    expected: tuple[str, ...] = ()
    for name in map(str, range(count)):
        expected = (*expected, name) if is_good((*expected, name)) else expected
    asked.clear()
    assert most_staying((), tuple(map(str, range(count))), is_good) == expected
    assert len(asked) <= max(1, 2 * count)


# --- running guests ---------------------------------------------------------------------------------------------


def test_threads_of_a_running_guest_move_now_unless_its_memory_must_stay() -> None:
    wrong = Guest(devices=(NEAR,), pins=on(cores_of(SHAPE, 0)[1:3]), iothreads=2, runs=True)
    found = together(host_of(wrong), (wrong,))
    (action,) = (action for action in found.plan.actions if action.kind == LIVE_AFFINITY)
    mine = pins(found.guests[0].after)
    words = [*(f"vcpu.{vcpu}={cpu}" for vcpu, cpu in sorted(mine.items())), "emulator=8,24"]
    assert (action.id, action.target, action.current) == ("live-affinity:old", "old", None)
    assert action.want == " ".join([*words, "iothread.1=8,24", "iothread.2=8,24"])
    bound = replace(wrong, node=0)
    held = together(host_of(bound), (bound,))
    assert [action for action in held.plan.actions if action.kind == LIVE_AFFINITY] == []
    assert any("its threads stay too" in finding.text for finding in held.plan.findings)
    there = replace(wrong, pins={vcpu: str(cpu) for vcpu, cpu in mine.items()}, emulator="8,24", iothreads=0)
    settled = together(host_of(there), (there,))
    assert [action for action in settled.plan.actions if action.kind == LIVE_AFFINITY] == []


def test_threads_do_not_move_to_cores_where_another_guest_stays() -> None:
    """The memory of `held` stays on node 0 until it starts again, so its threads stay on cores that `next` gets."""
    near, far = cores_of(SHAPE, 1), cores_of(SHAPE, 0)
    held = Guest("held", vcpus=14, devices=(NEAR,), pins=on(far[1:8]), node=0, runs=True)
    coming = Guest("next", devices=(FAR,), pins=on(near[1:3]), runs=True)
    last = Guest("last", vcpus=2, pins=on(near[3:4]), runs=False)
    found = together(host_of(held, coming, last), (held, coming, last))
    assert set(pins(by_name(found)["next"].after).values()) <= {cpu for core in far for cpu in core}
    assert [action for action in found.plan.actions if action.kind == LIVE_AFFINITY] == []
    waiting = {
        finding.where: finding.text for finding in found.plan.findings if "planned for this guest" in finding.text
    }
    assert waiting["guest next"].startswith("guest held runs on cores")
    free = replace(held, node=None)
    moved = together(host_of(free, coming, last), (free, coming, last))
    assert [action.target for action in moved.plan.actions if action.kind == LIVE_AFFINITY] == ["held", "next"]


def test_a_running_guest_that_left_its_definition_is_put_back() -> None:
    right = Guest(devices=(NEAR,), pins=on(cores_of(SHAPE, 1)[1:3]), emulator="8,24", runs=True)
    document = host_with(SHAPE, (replace(right, pins=on(cores_of(SHAPE, 1)[4:6])),))
    right = replace(right, node=1, huge=True)
    text = edited(right.xml, "numatune/memory", {"mode": "strict"})
    found = adopt(Host.from_json(json.dumps(document)), [Definition(text.encode())])
    assert found.guests[0].changes == ()
    assert found.guests[0].affinity is not None
    assert [action.kind for action in found.plan.actions if action.kind == LIVE_AFFINITY] == [LIVE_AFFINITY]


# --- guests that cannot be planned ------------------------------------------------------------------------------


def test_a_guest_without_a_place_keeps_its_cores() -> None:
    huge = Guest("huge", gib=4096, pins=on(cores_of(SHAPE, 1)[1:3]), runs=False)
    plain = Guest("plain", devices=(NEAR,), runs=None)
    found = together(host_of(huge, plain), (huge, plain))
    assert [one.guest for one in found.plan.unplaced] == ["huge"]
    assert set(map(int, (huge.pins or {}).values())).isdisjoint(pins(by_name(found)["plain"].after).values())
    assert [one.name for one in saved_plan(found).adoptions] == ["plain"]


def test_two_definitions_with_one_device_are_both_refused() -> None:
    a, b, c = (Guest(name, devices=(NEAR,) if name != "c" else (FAR,)) for name in "abc")
    found = by_name(together(host_of(), (a, b, c)))
    assert found["a"].unplaced == (f"{NEAR} is also in the definition of guest b: a device goes to one guest",)
    assert found["b"].placement is None
    assert found["c"].placement is not None


def test_a_device_that_must_go_along_is_not_given_away() -> None:
    cards = (Card(NEAR, 1, group=7), Card("0000:c1:00.1", 1, kind="audio", group=7))
    whole, part = Guest("whole", devices=(NEAR,)), Guest("part", devices=("0000:c1:00.1",))
    found = by_name(together(host_of(cards=cards), (whole, part)))
    assert found["whole"].unplaced == ("0000:c1:00.1 must go with its devices, and guest part has it",)


def test_bad_definitions_are_refused_or_raised() -> None:
    good = Definition(Guest("good").xml.encode(), "guest good", "good")
    bad = {
        "alien": (edited(Guest("alien").xml, ".", {"type": "xen"}), "hypervisor 'xen'"),
        "gone": (Guest("gone", devices=("0000:99:00.0",)).xml, "no device 0000:99:00.0"),
        "entity": (f"<!DOCTYPE domain [<!ENTITY a 'b'>]>{Guest('entity').xml}", "document type"),
        "renamed": (Guest("other").xml, "that of guest 'other'"),
    }
    definitions = [Definition(text.encode(), f"guest {name}", name) for name, (text, _) in bad.items()]
    for definition, (_, what) in zip(definitions, bad.values(), strict=True):
        with pytest.raises(BadInput, match=what):
            adopt(host_of(), [good, definition])
    saved = Definition(Guest("saved").xml.encode(), "guest saved", "saved", ("it has a managed save",))
    found = adopt(host_of(), [good, *definitions, saved], tolerant=True)
    reasons = {one.guest: "; ".join(one.why) for one in found.plan.unplaced}
    assert all(what in reasons[name] for name, (_, what) in bad.items())
    assert reasons["saved"] == "it has a managed save"
    assert by_name(found)["good"].changes


def test_a_guest_that_is_given_twice_is_refused() -> None:
    first, second = Guest("a"), Guest("b")
    with pytest.raises(BadInput, match="guest 'a' is given twice"):
        together(host_of(), (first, first))
    same = Definition(edited(second.xml, "uuid", first.uuid).encode())
    with pytest.raises(BadInput, match="have the same UUID"):
        adopt(host_of(), [Definition(first.xml.encode()), same])


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path, pristine: Path) -> Iterable[Path]:
    """A scratch root on which libvirt has guests `one` and `two`, floating, and `nova` of OpenStack."""
    with applyroots.copied(pristine, tmp_path / "root") as copy:
        host = hosttune.discover(str(copy.path))
        commands = copy.path / ".hosttune" / "commands"
        commands.mkdir(parents=True, exist_ok=True)
        wanted = [{"name": name, "gpus": 0, "vcpus": 4, "memory": "8GiB"} for name in ("one", "two", "nova")]
        planned = plan(host, Intent.from_json(json.dumps({"version": 1, "guests": wanted})))
        for name in ("one", "two", "nova"):
            text = "".join(x for x in domain_xml(planned, name).splitlines(keepends=True) if "pin " not in x)
            mark = '<metadata><n:instance xmlns:n="http://openstack.org/xmlns/libvirt/nova/1.1"/></metadata>'
            (commands / f"virsh-dumpxml-{name}").write_text(edited(text, ".", mark) if name == "nova" else text)
        yield copy.path


def test_the_plan_of_several_guests_is_printed_and_saved(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    two = ["plan", "--root", str(root), "--adopt", "two", "--adopt", "one"]
    assert run([*two, "-o", "json", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert f"plan saved: {out}" in printed.err
    document = Plan.from_json(out.read_text())
    assert json.loads(printed.out)["adoptions"] == json.loads(out.read_text())["adoptions"]
    assert [one.name for one in document.adoptions] == ["one", "two"]
    assert {change.effect for one in document.adoptions for change in one.changes} == {"live"}
    assert run([*two]) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 guests, 2 to change, 0 right as they are")
    assert text.count("--- definition") == 2
    assert run([*two, "-o", "xml"]) == 2
    assert "--name" in capsys.readouterr().err
    assert run([*two, "-o", "xml", "--name", "one"]) == 0
    assert "<name>one</name>" in capsys.readouterr().out
    assert run([*two, "-o", "html"]) == 0
    page = capsys.readouterr().out
    assert page.count("<svg ") >= 2
    assert 'id="hosttune-picture-before-title"' in page
    assert page.count('class="diff mono"') == 2
    assert "&lt;vcpupin" in page
    assert "<vcpupin" not in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(set(ids)) == len(ids)


def test_the_saved_plan_can_be_applied(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, where = tmp_path / "plan.json", ["--root", str(root)]
    two = ["plan", *where, "--adopt", "one", "--adopt", "two"]
    before = {path.name: path.read_text() for path in (root / ".hosttune" / "commands").glob("virsh-dumpxml-*")}
    assert run([*two, "--out", str(out)]) == 0
    assert run(["apply", str(out), *where, "--yes"]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert run(two) == 0
    assert capsys.readouterr().out.startswith("2 guests, 0 to change, 2 right as they are")
    intent = tmp_path / "intent.json"
    intent.write_text(json.dumps({"version": 1, "guests": [{"name": "own", "gpus": 0, "vcpus": 2, "memory": "1GiB"}]}))
    assert run(["apply", "--intent", str(intent), *where, "--yes"]) == 0, capsys.readouterr().err
    assert run(["plan", *where, "--adopt", "own"]) == 2
    assert "hosttune plan -f FILE" in capsys.readouterr().err
    assert run(["plan", *where, "--adopt-all", "--yes"]) == 0
    assert capsys.readouterr().out.startswith("3 guests, 1 to change, 2 right as they are")
    assert run(["revert", "--yes", *where]) == 0
    assert {path.name: path.read_text() for path in (root / ".hosttune" / "commands").glob("virsh-dumpxml-*")} == before


def test_all_guests_are_planned_but_the_refused_ones(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    everyone = ["plan", "--root", str(root), "--adopt-all"]
    assert run([*everyone, "--out", str(out)]) == 2
    assert "OpenStack Nova manages guest nova" in capsys.readouterr().err
    assert not out.exists()
    assert run([*everyone, "--yes", "--out", str(out)]) == 0
    (nova,) = (one for one in Plan.from_json(out.read_text()).adoptions if one.name == "nova")
    assert (nova.managers, nova.consent) == (("OpenStack Nova",), True)
    assert "OpenStack Nova manages this guest" in capsys.readouterr().out
    (root / "var/lib/libvirt/qemu/save").mkdir(parents=True)
    (root / "var/lib/libvirt/qemu/save/two.save").write_text("")
    out.unlink()
    assert run([*everyone, "--yes", "--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert "guest two: NOT PLACED" in printed.out
    assert "it has a managed save" in printed.out
    assert "guest one: " in printed.out
    assert not out.exists()
    assert "plan not saved" in printed.err
    assert run([*everyone, "-o", "html"]) == 1
    page = capsys.readouterr().out
    assert "Not every guest is placed" in page
    assert "it has a managed save" in page


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--adopt", "one", "--adopt", "one"), "guest 'one' is given twice"),
        (("--adopt", "one", "--adopt-all"), "--adopt-all together with guests"),
        (("--adopt", "oen"), "did you mean one?"),
        (("--adopt", "one", "--vcpus", "4"), "--adopt together with options of another plan"),
        (("--adopt", "one", "--name", "one"), "--name together with --adopt"),
        (("--gpus", "1", "--yes"), "--yes without guests to adopt"),
    ],
)
def test_wrong_options(root: Path, options: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--root", str(root), *options]) == 2
    assert what in capsys.readouterr().err


def test_the_plan_of_a_file_is_not_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host, guest, out = (tmp_path / name for name in ("host.json", "guest.xml", "plan.json"))
    host.write_text(host_of().to_json())
    guest.write_text(Guest().xml)
    assert run(["plan", "--host", str(host), "--xml", str(guest), "--out", str(out)]) == 2
    assert "this plan is not saved" in capsys.readouterr().err
    assert not out.exists()
    guest.write_text(Guest().xml.replace("by hand", "x" * (5 << 20)))
    assert run(["plan", "--host", str(host), "--xml", str(guest)]) == 2
    assert "4 MiB" in capsys.readouterr().err
