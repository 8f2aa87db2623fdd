"""Memory of a plan comes from what is free or in caches now, or a reboot reserves it first.

Sizes are worked out by hand: a node of 64 GiB keeps 8 for the host, and of what is free the kernel keeps 1/256 of the
node (0.25 GiB) below its watermark.
"""

from __future__ import annotations

from typing import Any

import pytest
from planhosts import Card, Held, build_host, intent_of

import hosttune
from hosttune.machine.scratch import Scratch
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Plan
from hosttune.model.values import to_json
from hosttune.planning import plan
from hosttune.transaction.steps import PENDING, TODO, prepare, steps_of

GIB = 1 << 30
GPU = Card("0000:41:00.0", 0, group=1)
Json = dict[str, Any]


def planned(free_gib: list[float], profile: str = "guest", **intent: Any) -> Plan:
    more = {key: intent.pop(key) for key in ("guests", "hugepages_of", "kernel_args") if key in intent}
    host = build_host(
        memory_gib=64,
        free_mib=[int(gib * 1024) for gib in free_gib],
        cards=[GPU],
        guests=more.get("guests", []),
        hugepages=more.get("hugepages_of", {}),
    )
    host["kernel_args"] = more.get("kernel_args", [])
    document = intent_of(profile=profile, **{"gpus": 1, "vcpus": 4, **intent})
    return plan(Host.from_json(to_json(host)), Intent.from_json(to_json(document)))


def gib_of(made: Plan) -> list[float]:
    return [cell.memory_bytes / GIB for cell in made.guests[0].cells]


def pages(made: Plan) -> list[tuple[str, int, str]]:
    """(node and size, pages, effect) of each action on a pool."""
    rows = [a for a in made.actions if a.kind == "hugepages"]
    return [(f"{a.target[29:34]} {a.target[-24:-13]}", a.want, a.effect) for a in rows]


def argument(made: Plan) -> Action | None:
    return next((a for a in made.actions if (a.kind, a.target) == ("kernel-argument", "hugepages")), None)


@pytest.mark.parametrize("profile", ["guest", "host"])
def test_auto_leaves_out_what_others_hold_and_says_so(profile: str) -> None:
    made = planned([40, 60], profile, memory="auto")
    assert gib_of(made) == [39]  # of 39.75
    assert pages(made)[0][1:] == (39, "now")
    (said,) = [f for f in made.findings if "cannot give it back" in f.text]
    assert "24.2 GiB of node 0" in said.text
    assert "auto is a share of the rest" in said.text


@pytest.mark.parametrize("cache_gib", [17, None])
def test_what_caches_hold_does_not_count_and_is_said_with_the_way_to_free_it(cache_gib: int | None) -> None:
    """Nor does memory that is not free for an unknown reason: it may all be caches."""
    host = build_host(memory_gib=64, free_mib=[40 * 1024, 60 * 1024], cards=[GPU])
    host["numa_nodes"][0]["cache_bytes"] = None if cache_gib is None else cache_gib * GIB
    made = plan(Host.from_json(to_json(host)), Intent.from_json(to_json(intent_of(gpus=1))))
    assert gib_of(made) == [56]
    (said,) = [f for f in made.findings if "40 GiB free now, 56 GiB of new pages" in f.text]
    assert said.level == ("warn" if cache_gib is None else "info")
    assert "drop_caches" in said.text


def test_nodes_with_the_same_modules_give_guests_of_equal_size() -> None:
    """Firmware has taken 1 GiB more of node 0; node 2 has half of the modules."""
    cards = [Card(f"0000:{0x41 + n:02x}:00.0", n, group=n) for n in range(3)]
    host = build_host(nodes=3, memory_gib=[127, 128, 64], cards=cards)
    wanted = {"version": 1, "guests": [{"name": f"g{n}", "gpus": 1} for n in range(3)]}
    made = plan(Host.from_json(to_json(host)), Intent.from_json(to_json(wanted)))
    assert sorted(cell.memory_bytes // GIB for guest in made.guests for cell in guest.cells) == [56, 119, 119]


def test_what_is_held_of_one_node_makes_guests_of_both_smaller_and_is_said_of_both() -> None:
    cards = [Card(f"0000:{0x41 + n:02x}:00.0", n, group=n) for n in range(2)]
    host = build_host(memory_gib=64, free_mib=[40 * 1024, 60 * 1024], cards=cards)
    wanted = {"version": 1, "guests": [{"name": f"g{n}", "gpus": 1} for n in range(2)]}
    made = plan(Host.from_json(to_json(host)), Intent.from_json(to_json(wanted)))
    assert [guest.cells[0].memory_bytes // GIB for guest in made.guests] == [39, 39]
    said = [f.where for f in made.findings if "hold 24.2 GiB of node 0 and cannot give it back" in f.text]
    assert said == ["guest g0", "guest g1"]


def test_eight_equal_guests_of_a_host_get_equal_sizes() -> None:
    host = hosttune.discover("tests/hosts/derived/xe9680-8xh100-lspci.tar.xz")
    wanted = {"version": 1, "guests": [{"name": f"g{n}", "gpus": 1} for n in range(8)]}
    made = plan(host, Intent.from_json(to_json(wanted)))
    assert {(len(g.vcpu_pins), g.cells[0].memory_bytes // GIB) for g in made.guests} == {(26, 249)}
    crowded = [f.text for f in made.findings if f.where == "reserve"]
    assert len(crowded) == 2
    assert crowded[0].startswith("emulator, I/O and vhost threads of 4 guests share 1 core of node 0 (CPUs 0,112)")
    more = plan(host, Intent.from_json(to_json({**wanted, "reserve": {"cores_per_node": 2}})))
    assert not [f for f in more.findings if f.where == "reserve"]


def test_auto_is_the_whole_share_where_that_is_free() -> None:
    made = planned([60, 60], memory="auto")
    assert gib_of(made) == [56]
    assert not [f for f in made.findings if "cannot give it back" in f.text]


def test_a_size_by_number_that_only_a_reboot_gives_is_planned_with_it() -> None:
    made = planned([40, 60], memory="50GiB")
    assert gib_of(made) == [50]
    assert pages(made)[0][1:] == (50, "reboot")
    found = argument(made)
    assert found is not None
    assert found.needed
    assert "too little free memory" in found.why


def test_no_reboot_where_the_same_is_to_be_had_without() -> None:
    """No GPU: node 1 has it free, and is as near to nothing as node 0."""
    made = planned([40, 60], gpus=0, memory="50GiB")
    assert [cell.host_nodes for cell in made.guests[0].cells] == ["1"]
    assert pages(made)[0][1:] == (50, "now")


@pytest.mark.parametrize(
    ("intent", "most"),
    [
        ({"hugepages": "2MiB"}, "memory: 40704MiB"),
        ({"hugepages": "none"}, "memory: 40704MiB"),
        ({"settings": {"boot_pages": "keep"}, "hugepages": "1GiB"}, "memory: 39GiB"),
    ],
)
def test_what_cannot_be_had_is_not_planned(intent: Json, most: str) -> None:
    made = planned([40, 40], memory="50GiB", numa=1, **intent)
    assert made.guests == ()
    assert not [a for a in made.actions if a.kind == "hugepages"]
    (row,) = made.unplaced
    assert any("free now" in line for line in row.why), row.why
    assert most in row.relaxation


def test_the_setting_that_would_help_is_named() -> None:
    made = planned([40, 40], memory="50GiB", numa=1, hugepages="1GiB", settings={"boot_pages": "keep"})
    assert any("boot_pages: true" in line for line in made.unplaced[0].relaxation)


def test_free_pages_of_the_pool_count_besides() -> None:
    made = planned([40, 60], memory="50GiB", hugepages_of={0: {GIB: (12, 11)}, 1: {GIB: (0, 0)}})
    assert pages(made)[0][1:] == (12 + 39, "now")


def test_memory_that_a_defined_guest_will_take_is_not_free() -> None:
    other = Held(pins=(2, 18), memory_bytes=8 * GIB, state="shut off")
    made = planned([40, 60], memory="auto", guests=[other])
    assert gib_of(made) == [31]


def test_two_guests_do_not_share_what_is_free_once() -> None:
    host = build_host(free_mib=[40 * 1024, 1024], cards=[], memory_gib=64)
    guests = [{"name": n, "vcpus": 2, "memory": "25GiB", "hugepages": "2MiB"} for n in "ab"]
    made = plan(Host.from_json(to_json(host)), Intent.from_json(to_json({"version": 1, "guests": guests})))
    assert len(made.guests) == 1
    assert len(made.unplaced) == 1


def test_pages_for_the_next_boot_are_not_asked_of_a_running_kernel(pristine: Any) -> None:
    """Their step waits: asked now, the kernel would take what little the host has left."""
    made = planned([40, 60], memory="50GiB")
    (action,) = [a for a in made.actions if a.kind == "hugepages"]
    (one,) = prepare(Scratch(pristine), steps_of([action]), {})
    assert one.verdict == PENDING
    assert "next boot" in (one.why or "")
    (now,) = prepare(Scratch(pristine), steps_of([replaced(action, effect="now")]), {})
    assert now.verdict == TODO


def replaced(action: Action, **fields: Any) -> Action:
    import msgspec

    return msgspec.structs.replace(action, **fields)
