"""Plans beside what is in force: the same intent changes nothing, unchanged guests stay, the rest goes back."""

from __future__ import annotations

from typing import Any

import pytest
from examplehosts import discovered
from forcehosts import applied
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from mighosts import A as GPU
from mighosts import mig_host
from msgspec.structs import replace
from planhosts import Card, build_host
from sweeps import examples

from hosttune.cli.plan import plan_text
from hosttune.cli.planned import apply_command
from hosttune.domain.writer import domain_xml
from hosttune.errors import BadInput
from hosttune.model.force import InForce
from hosttune.model.gpu import MigInstance
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan, Source
from hosttune.model.values import parse_cpus, to_json
from hosttune.planning import plan
from hosttune.rules.lint.judge import LintedDefinition, lint

A: dict[str, Any] = {"name": "a", "gpus": 2, "memory": "64GiB", "vcpus": 16}
B: dict[str, Any] = {"name": "b", "gpus": 1}
FILE = Source(kind="file", name="intent.yaml")


def asked(*guests: dict[str, Any], **top: Any) -> Intent:
    return Intent.from_json(to_json({"version": 1, "guests": list(guests), **top}))


def example() -> Host:
    return replace(discovered(), guests=(), in_force=InForce())


def after(*guests: dict[str, Any], running: tuple[str, ...] = (), source: Source = FILE, **top: Any) -> Host:
    intent = asked(*guests, **top)
    return applied(example(), plan(example(), intent, source=source), running=running)


def places(found: Plan, name: str) -> object:
    one = found.guest(name)
    devices = [(device.address, device.guest_address) for device in one.devices]
    return one.vcpu_pins, one.cells, one.page_bytes, one.emulator_cpus, one.iothread_cpus, devices, one.uuid


@pytest.mark.parametrize(("cpus", "plans"), [("1-2", True), ("", True), ("x", False)])
def test_a_pin_in_force_that_is_not_one_cpu_is_no_crash(cpus: str, plans: bool) -> None:
    host = after({"name": "a", "gpus": 1})
    (guest,) = host.in_force.guests  # type: ignore[union-attr]
    pins = (replace(guest.places.vcpu_pins[0], cpus=cpus), *guest.places.vcpu_pins[1:])
    odd = replace(guest, places=replace(guest.places, vcpu_pins=pins))
    text = to_json(replace(host, in_force=replace(host.in_force, guests=(odd,))))  # type: ignore[type-var]
    if plans:
        assert not plan(Host.from_json(text), asked({"name": "a", "gpus": 1})).unplaced
    else:
        with pytest.raises(BadInput, match="not a CPU list"):
            Host.from_json(text)


@pytest.mark.parametrize("running", [(), ("a", "b")])
@pytest.mark.parametrize("profile", ["guest", "host", "none"])
def test_the_same_intent_changes_nothing(profile: str, running: tuple[str, ...]) -> None:
    host = after(A, B, running=running, profile=profile)
    again = plan(host, asked(A, B, profile=profile), source=FILE)
    assert [guest.change for guest in again.guests] == ["keep", "keep"]
    assert (again.actions, again.unplaced, again.removals, again.based_on) == ((), (), (), 1)


def test_a_silent_fabric_manager_takes_nothing_from_a_guest_with_a_partition() -> None:
    host = after(A)
    assert host.fabric is not None
    again = plan(replace(host, fabric=replace(host.fabric, partitions=None)), asked(A), source=FILE)
    assert {"fabric-partition", "libvirt-hook"} <= {one.kind for one in (host.in_force or InForce()).settings}
    assert (again.actions, again.guests[0].change) == ((), "keep")


@pytest.mark.parametrize(
    "same",
    [
        {"memory": 64 << 30},
        {"memory": "65536MiB", "smt": "cores", "firmware": "efi", "numa": "auto"},
        {"gpus": {"count": 2}, "networks": [], "nics": 0, "nvme": []},
    ],
)
def test_a_request_is_compared_by_its_meaning(same: dict[str, Any]) -> None:
    found = plan(after(A), asked({**A, **same}))
    assert (found.guests[0].change, found.actions) == ("keep", ())


def test_addresses_are_compared_in_one_form_and_any_order() -> None:
    host = after({**A, "gpus": ["0000:41:00.0", "0000:56:00.0"]})
    assert plan(host, asked({**A, "gpus": ["56:00.0", "41:00.0"]})).guests[0].change == "keep"


def test_a_further_disk_is_an_update_and_one_disk_in_a_list_is_not() -> None:
    host = after({**A, "disk": "/img/a"})
    assert plan(host, asked({**A, "disks": ["/img/a"]})).guests[0].change == "keep"
    (guest,) = plan(host, asked({**A, "disks": ["/img/a", "/img/b"]})).guests
    assert (guest.change, guest.disks) == ("update", ("/img/a", "/img/b"))
    assert ("disk /img/b", "none") in [(one.element, one.was) for one in guest.changes]
    (fewer,) = plan(applied(host, plan(host, asked({**A, "disks": ["/img/a", "/img/b"]}))), asked(A)).guests
    assert ("disk /img/b", "none") in [(one.element, one.becomes) for one in fewer.changes]


@pytest.mark.parametrize("running", [(), ("a",)])
def test_less_memory_keeps_devices_and_cpus_in_their_order(running: tuple[str, ...]) -> None:
    host = after(A, running=running)
    found = plan(host, asked({**A, "memory": "32GiB"}))
    (guest,) = found.guests
    before = host.in_force.guests[0].places  # type: ignore[union-attr]
    assert guest.change == "update"
    assert {change.element for change in guest.changes} == {"memory", "cell 0 memory"}
    assert guest.vcpu_pins == before.vcpu_pins
    assert guest.changes[0].when == ("next-start" if running else "now")
    (pool,) = found.actions
    assert (pool.kind, pool.current, pool.want, pool.when) == ("hugepages", 64, 32, "after-stop" if running else "now")


def test_a_smaller_guest_and_a_larger_one_are_told_in_few_words() -> None:
    host = after(A, B)
    less = plan(host, asked({**A, "gpus": 1, "vcpus": 8}, B)).guest("a").changes
    told = {change.element: change.becomes for change in less}
    assert told["vcpupin of vCPUs 8-15"] == "none"  # not: not pinned
    assert not [name for name in told if name.startswith("controller") and " pcihole64" not in name]
    assert [told[name] for name in told if name.startswith("hostdev pci")] == ["none"]


@pytest.mark.parametrize("vcpus", [8, 24])
def test_other_vcpus_are_a_part_of_the_same_cores_or_more_on_the_same_nodes(vcpus: int) -> None:
    host = after(A)
    found = plan(host, asked({**A, "vcpus": vcpus}, B))
    had = {pin.cpus for pin in host.in_force.guests[0].places.vcpu_pins}  # type: ignore[union-attr]
    now = {pin.cpus for pin in found.guest("a").vcpu_pins}
    assert (now <= had) if vcpus == 8 else (had <= now)
    assert {cell.host_nodes for cell in found.guest("a").cells} == {"0"}


def test_a_guest_that_goes_gives_everything_back() -> None:
    host = after(A, B)
    found = plan(host, asked(A, {"name": "b", "state": "absent", "vcpus": "auto"}))
    assert [one.name for one in found.removals] == ["b"]
    assert {action.change for action in found.actions if action.kind == "driver"} == {"back"}
    alone = after(A)
    then = applied(host, found)
    assert (then.numa_nodes, then.pci, then.cpus, then.kernel_args) == (
        (alone.numa_nodes, alone.pci, alone.cpus, alone.kernel_args)
    )
    assert then.in_force is not None
    assert plan(then, asked(A)).actions == ()


@pytest.mark.parametrize(("total", "free", "change"), [(74, 64, ("set", 10)), (10, 0, None), (64, 64, ("back", 0))])
def test_pages_that_others_use_stay_when_a_guest_goes(total: int, free: int, change: object) -> None:
    host = after(A)

    def used(pools: Any) -> Any:
        return tuple(
            replace(one, total=total, free=free) if one.size_bytes == 1 << 30 and one.total else one for one in pools
        )

    nodes = tuple(replace(node, hugepages=used(node.hugepages or ())) for node in host.numa_nodes)
    found = plan(replace(host, numa_nodes=nodes), asked({"name": "a", "state": "absent"}))
    rows = [(one.change, one.want) for one in found.actions if one.kind == "hugepages"]
    assert rows == ([change] if change else [])


def test_what_a_guest_that_runs_has_goes_back_after_its_stop() -> None:
    found = plan(after(A, B, running=("a", "b")), asked(A, {"name": "b", "state": "absent"}))
    assert found.removals[0].when == "after-stop"
    backs = [action for action in found.actions if action.change == "back"]
    assert backs
    assert {action.when for action in backs} == {"after-stop"}


@pytest.mark.parametrize("kind", ["irqbalance-ban", "slice-cpus"])
def test_what_keeps_the_host_off_cpus_keeps_it_off_those_of_an_old_run(kind: str) -> None:
    host = after(A, running=("a",), profile="host")
    found = plan(host, asked({**A, "vcpus": 8}, profile="host"))
    later, *_ = [one for one in found.actions if one.kind == kind]
    assert (later.when, later.holders) == ("after-stop", ("a",))
    assert [one.when for one in found.actions if one.kind == kind and one.target == later.target] == ["after-stop"]
    stopped = replace(host, guests=tuple(replace(one, state="shut off") for one in host.guests or ()))
    then = plan(stopped, asked({**A, "vcpus": 8}, profile="host")).actions
    change, *_ = [one for one in then if one.kind == kind]
    assert len(parse_cpus(change.want) ^ parse_cpus(change.current)) == 8
    assert (later.current, later.want) == (change.current, change.want)


def test_drift_is_an_ordinary_action_that_is_marked() -> None:
    host = after(A)
    pinned = int(host.in_force.guests[0].places.vcpu_pins[0].cpus)  # type: ignore[union-attr]
    cpus = tuple(replace(cpu, energy_preference="power") if cpu.id == pinned else cpu for cpu in host.cpus)
    (action,) = plan(replace(host, cpus=cpus), asked(A)).actions
    assert (action.target, action.current, action.want, action.drift) == (
        f"cpus {pinned}",
        "power",
        "performance",
        True,
    )


def test_keep_gives_a_setting_up_and_false_takes_it_back() -> None:
    host = after(A, settings={"thp": "never"})
    assert plan(host, asked(A)).actions == ()  # it stays, whoever asked for it
    assert plan(host, asked(A, settings={"thp": "keep"})).actions == ()
    (back,) = plan(host, asked(A, settings={"thp": False})).actions
    assert (back.kind, back.change) == ("thp", "back")


def test_prune_takes_what_came_from_files_only() -> None:
    host = after(A, B, settings={"thp": "never"})
    kept = plan(host, asked(A), source=FILE)
    assert [(one.kind, one.name) for one in kept.unnamed] == [("guest", "b"), ("setting", "thp")]
    assert kept.removals == ()
    pruned = plan(host, asked(A), source=FILE, prune=True)
    assert ([one.name for one in pruned.removals], pruned.unnamed) == (["b"], ())
    assert "thp" in {action.kind for action in pruned.actions if action.change == "back"}
    options = after(A, B, source=Source(kind="options"))
    assert plan(options, asked(A), source=FILE, prune=True).removals == ()
    with pytest.raises(BadInput, match="without an intent file"):
        plan(host, asked(A), prune=True)


def test_a_guest_that_has_another_name_is_refused_and_the_others_are_planned() -> None:
    host = after(A, B)
    guests = tuple(replace(one, name="c") if one.name == "b" else one for one in host.guests or ())
    found = plan(replace(host, guests=guests), asked({**A, "memory": "32GiB"}, B))
    assert [(one.guest, one.refused) for one in found.unplaced] == [("b", True)]
    assert "virsh domrename c b" in found.unplaced[0].relaxation[0]
    assert found.guest("a").change == "update"


def test_an_intent_that_names_a_guest_as_libvirt_does_now_is_told_of_the_old_name() -> None:
    host = after(A, B)
    guests = tuple(replace(one, name="c") if one.name == "b" else one for one in host.guests or ())
    found = plan(replace(host, guests=guests), asked(A, {**B, "name": "c"}), source=FILE, prune=True)
    assert [(one.guest, one.refused) for one in found.unplaced] == [("c", True)]
    assert "virsh domrename c b" in found.unplaced[0].relaxation[0]
    assert (found.removals, found.actions) == ((), ())


def test_another_guest_under_the_name_is_moved_out_of_the_way() -> None:
    host = after(A, B)
    other = "11111111-2222-3333-4444-555555555555"
    guests = tuple(replace(one, uuid=other) if one.name == "b" else one for one in host.guests or ())
    found = plan(replace(host, guests=guests), asked(A, B))
    assert "virsh domrename b b-other" in found.unplaced[0].relaxation[0]
    moved = tuple(replace(one, name="b-other") if one.uuid == other else one for one in guests)
    assert [one.change for one in plan(replace(host, guests=moved), asked(A, B)).guests] == ["keep", "create"]


def without(host: Host, lost: str) -> Host:
    pci = tuple(device for device in host.pci if device.address != lost)
    return replace(host, pci=pci, gpus=tuple(gpu for gpu in host.gpus if gpu.address != lost))


def test_a_guest_without_its_device_is_left_as_it_is() -> None:
    host = after(A, B)
    lost = host.in_force.guests[1].places.devices[0].address  # type: ignore[union-attr]
    found = plan(without(host, lost), asked(A, B))
    assert [(one.guest, one.stays) for one in found.unplaced] == [("b", True)]
    assert "--replan b" in found.unplaced[0].relaxation[0]
    assert found.actions == ()
    text = " ".join(plan_text(plan(without(host, lost), asked(A, B), source=FILE), host, "text", None, False).split())
    assert text.endswith("nothing would change")


def test_a_guest_without_its_device_gets_another_when_asked() -> None:
    host = after(A, B)
    lost = host.in_force.guests[1].places.devices[0].address  # type: ignore[union-attr]
    found = plan(without(host, lost), asked(A, B), replan=["b"])
    assert found.unplaced == ()
    (device,) = found.guest("b").devices
    assert device.address != lost
    assert found.guest("b").change == "update"
    named = {**B, "gpus": [device.address]}
    assert plan(without(host, lost), asked(A, named)).guest("b").devices == found.guest("b").devices


def exchanged(host: Host, address: str, **ids: str) -> Host:
    """The host after the GPU at an address was replaced."""
    gpus = tuple(replace(g, serial="new", uuid="GPU-new") if g.address == address else g for g in host.gpus)
    return replace(host, gpus=gpus, pci=tuple(replace(d, **ids) if d.address == address else d for d in host.pci))


def test_a_gpu_that_was_exchanged_is_the_guests_at_its_old_place() -> None:
    host = after(A, B)
    (device,) = host.in_force.guests[1].places.devices  # type: ignore[union-attr]
    found = plan(exchanged(host, device.address), asked(A, B))
    assert ([guest.change for guest in found.guests], found.actions) == (["keep", "keep"], ())
    assert "serial=new" in found.guest("b").devices[0].identity
    assert replace(found.guest("b").devices[0], identity=device.identity) == device
    assert [f"another device is at {device.address}" in one.text for one in found.findings].count(True) == 1
    other = plan(exchanged(host, device.address, device_id="2331"), asked(A, B))
    assert any("of another kind" in one.text for one in other.findings if one.where == "guest b")
    assert other.guest("a").change == "keep"


def test_nodes_that_the_firmware_renumbered_are_said_and_the_guest_is_placed_there() -> None:
    host = after(A, B)
    new = {0: 1, 1: 0}
    nodes = sorted((replace(node, id=new[node.id]) for node in host.numa_nodes), key=lambda node: node.id)
    other = replace(
        host,
        numa_nodes=tuple(nodes),
        cpus=tuple(replace(cpu, numa_node=new.get(cpu.numa_node or 0)) for cpu in host.cpus),
        pci=tuple(replace(one, numa_node=None if one.numa_node is None else new[one.numa_node]) for one in host.pci),
    )
    found = plan(other, asked(A, B))
    assert [guest.change for guest in found.guests] == ["update", "update"]
    assert ["other numbers now" in one.text for one in found.findings].count(True) == 2
    for guest in found.guests:
        before = next(one.places for one in host.in_force.guests if one.name == guest.name)  # type: ignore[union-attr]
        assert [pin.cpus for pin in guest.vcpu_pins] == [pin.cpus for pin in before.vcpu_pins]
        assert [one.address for one in guest.devices] == [one.address for one in before.devices]
        assert {cell.host_nodes for cell in guest.cells} == {str(new[int(cell.host_nodes)]) for cell in before.cells}


def test_a_guest_that_was_undefined_by_hand_is_defined_again() -> None:
    host = after(A)
    found = plan(replace(host, guests=()), asked(A))
    assert found.guests[0].change == "create"
    assert places(found, "a") == places(plan(host, asked(A)), "a")


def test_a_better_place_is_said_and_replan_gives_it() -> None:
    """`b` is on node 1 because `a` has the CPUs of node 0, where its GPU is; then `a` goes."""
    cards = [Card("0000:21:00.0", 0, group=1), Card("0000:31:00.0", 1, group=2)]
    bare = Host.from_json(to_json(build_host(nodes=2, cores_per_node=8, cards=cards)))
    a = {"name": "a", "gpus": 0, "vcpus": 12, "memory": "1GiB", "numa": 1}
    b = {"name": "b", "gpus": ["0000:21:00.0"], "vcpus": 8, "memory": "1GiB"}
    c = {"name": "c", "gpus": ["0000:31:00.0"], "vcpus": 2, "memory": "1GiB"}
    host = applied(bare, plan(bare, asked(a, c)))
    host = applied(host, plan(host, asked(a, b, c)))
    away = host.in_force.guests[-1].places.cells[0].host_nodes  # type: ignore[union-attr]
    assert away == "1"
    assert [one for one in plan(host, asked(a, b, c)).findings if "--replan" in one.text] == []
    host = applied(host, plan(host, asked({**a, "state": "absent"}, b, c)))
    found = plan(host, asked(b, c))
    assert [guest.change for guest in found.guests] == ["keep", "keep"]
    assert [one.where for one in found.findings if "--replan b" in one.text] == ["guest b"]
    freed = plan(host, asked(b, c), replan=["b"])
    assert [(guest.change, guest.cells[0].host_nodes) for guest in freed.guests] == [("update", "0"), ("keep", "1")]
    assert [one for one in plan(applied(host, freed), asked(b, c)).findings if "--replan" in one.text] == []


def vgpu(name: str, count: int = 1, memory: str = "4GiB") -> dict[str, Any]:
    return {"name": name, "mig": {"profile": "1g.18gb", "count": count}, "vcpus": 2, "memory": memory}


@pytest.mark.parametrize("running", [(), ("a", "b", "c")])
@pytest.mark.parametrize("made", [False, True])
def test_a_changed_guest_with_vgpus_keeps_its_instances_and_no_other_gets_them(
    made: bool, running: tuple[str, ...]
) -> None:
    bare = replace(Host.from_json(to_json(mig_host(GPU))), in_force=InForce(), guests=())
    first = plan(bare, asked(vgpu("a"), vgpu("b"), vgpu("c", 4)))
    host = applied(bare, first, running=running)
    if made:
        slots = [one for guest in first.guests for one in guest.mig]
        there = tuple(MigInstance(profile=one.profile, start=one.start, size=1) for one in slots)
        host = replace(host, gpus=tuple(replace(gpu, mig=replace(gpu.mig, instances=there)) for gpu in host.gpus))  # type: ignore[type-var]
    found = plan(host, asked(vgpu("a"), vgpu("b", memory="8GiB"), vgpu("c", 4), vgpu("d")))
    assert [(one.name, one.change) for one in found.guests] == [
        ("a", "keep"), ("b", "update"), ("c", "keep"), ("d", "create")
    ]  # fmt: skip
    for name in "abc":
        assert (found.guest(name).mig, places(found, name)) == (
            first.guest(name).mig,
            places(first, name),
        ) or name == "b"
    assert (found.guest("b").mig, found.guest("b").devices) == (first.guest("b").mig, first.guest("b").devices)
    starts = [one.start for guest in found.guests for one in guest.mig]
    assert sorted(starts) == [0, 1, 2, 3, 4, 5, 6]


GUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "gpus": st.integers(0, 2),
            "vcpus": st.sampled_from([2, 4, 8]),
            "memory": st.sampled_from(["1GiB", "4GiB"]),
            "hugepages": st.sampled_from(["2MiB", "1GiB", "none"]),
        }
    ),
    min_size=1,
    max_size=3,
)


@settings(
    max_examples=examples(15, full=200),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(GUESTS, min_size=2, max_size=4), st.integers(1, 3))
def test_sequences(days: list[list[dict[str, Any]]], nodes: int) -> None:
    """After any sequence the settings are those of a plan on the bare host, and the same intent changes nothing."""
    cards = [Card(f"0000:{0x21 + 0x10 * n:02x}:00.0", n % nodes, group=n) for n in range(4)]
    bare = host = Host.from_json(to_json(build_host(nodes=nodes, cores_per_node=16, cards=cards)))
    for day in days:
        guests = [{"name": f"g{n}", **one} for n, one in enumerate(day)]
        gone = [{"name": f"g{n}", "state": "absent"} for n in range(len(day), 3)]
        before = {one.name: one for one in host.in_force.guests} if host.in_force else {}
        found = plan(host, asked(*guests, *gone))
        assume(not found.unplaced)
        for guest in found.guests:
            old = before.get(guest.name)
            if old is not None and asked(guests[int(guest.name[1:])]).guests[0] == old.request:
                assert guest.change == "keep"
                assert guest.vcpu_pins == old.places.vcpu_pins
        host = applied(host, found)
        again = plan(host, asked(*guests, *gone))
        assert [guest.change for guest in again.guests] == ["keep"] * len(guests)
        assert again.actions == ()
    end = plan(host, asked(*({"name": f"g{n}", "state": "absent"} for n in range(3))))
    host = applied(host, end)
    assert (host.cpus, host.pci, host.numa_nodes, host.guests) == (bare.cpus, bare.pci, bare.numa_nodes, ())
    assert host.in_force is not None
    assert (host.in_force.guests, host.in_force.settings) == ((), ())


MORE = st.fixed_dictionaries(
    {
        "disks": st.integers(0, 12).map(lambda count: [f"/img/{n}" for n in range(count)]),
        "networks": st.integers(0, 12).map(lambda count: [{"bridge": f"br{n}"} for n in range(count)]),
        "memory": st.sampled_from(["1GiB", "2GiB"]),
        "watchdog": st.booleans(),
    }
)


@settings(max_examples=examples(12, full=500), derandomize=True, deadline=None, database=None)
@given(st.lists(MORE, min_size=2, max_size=4), st.integers(1, 4), st.sampled_from([1, 2, None]))
def test_other_disks_and_networks_move_nothing_inside_a_guest(
    days: list[dict[str, Any]], gpus: int, nodes: int | None
) -> None:
    """Its system names drives and NICs by address. The ports that were there stay too: libvirt has given them away."""
    cards = [Card(f"0000:{0x21 + 0x10 * n:02x}:00.0", nodes and n % nodes, group=n) for n in range(4)]
    host = Host.from_json(to_json(build_host(nodes=nodes or 1, cores_per_node=16, cards=cards)))
    first = {"name": "a", "gpus": gpus, "vcpus": 4, **days[0]}
    host = applied(host, plan(host, asked(first)))
    for day in days[1:]:
        (before,), request = (host.in_force or InForce()).guests, {**first, **day}
        (guest,) = plan(host, asked(request)).guests
        assert guest.controllers[: len(before.places.controllers)] == before.places.controllers
        assert [one.guest_address for one in guest.devices] == [one.guest_address for one in before.places.devices]
        used = {port.bus for port in guest.controllers} | {int(one.guest_address[5:7], 16) for one in guest.devices}
        free = [one for one in guest.controllers if one.model == "pcie-root-port" and one.index not in used]
        assert len(free) > len(day["disks"]) + len(day["networks"]) + 2, "with the guest agent's and one for hotplug"
        assert [one.index for one in guest.controllers] == list(range(len(guest.controllers)))
        found = plan(host, asked(request))
        faults = lint(host, [LintedDefinition("a.xml", domain_xml(found, "a").encode())])
        assert not {"expander-node", "device-place"} & {one.rule for one in faults}
        host = applied(host, found)
        assert plan(host, asked(request)).guests[0].change == "keep"


def test_the_text_says_what_changes_and_ends_with_the_next_command() -> None:
    host = after(A, B, running=("a", "b"))
    found = plan(host, asked({**A, "memory": "32GiB"}, {"name": "b", "state": "absent"}, {**B, "name": "c"}))
    text = plan_text(found, host, "text", None, False)
    assert "~ guest a (from its next start) memory: 64 GiB -> 32 GiB cell 0 memory: " in " ".join(text.split())
    assert "- guest b once it has stopped: virsh shutdown b" in text
    assert "+ guest c: " in text
    assert "0 free" not in text
    assert " ".join(text.split()).endswith("next: hosttune apply")
    saved = plan_text(found, host, "text", None, False, following=apply_command("/scratch root", "p.json"))
    assert " ".join(saved.split()).endswith("next: hosttune apply --root '/scratch root' p.json")
    again = plan_text(plan(host, asked(A, B)), host, "text", None, False)
    assert again.rstrip().endswith("nothing would change")
    assert "Actions" not in again


def test_a_guest_of_an_apply_that_the_journal_does_not_know_is_said() -> None:
    """The state directory is that of an older backup: the guest has the UUID that hosttune gives it."""
    newer = after(A, B)
    force = newer.in_force
    assert force is not None
    older = replace(newer, in_force=replace(force, guests=force.guests[:1]))
    texts = [finding.text for finding in plan(older, asked(A)).findings if finding.where == "guest b"]
    assert any("older backup" in text for text in texts)
    assert not any("older backup" in finding.text for finding in plan(newer, asked(A, B)).findings)
    with pytest.raises(BadInput) as refused:
        plan(older, asked(A, B))
    assert "restore the newest" in refused.value.hint
