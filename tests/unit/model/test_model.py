"""Documents that somebody gave: null means left out, and what no machine can be is refused with its path."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from planhosts import Card, Held, build_host, intent_of

import hosttune
from hosttune.errors import BadInput
from hosttune.handover.testguest.order import ANSWER_SCHEMA, GuestAnswer, GuestOrder, OrderedDevice
from hosttune.model.collective import Member
from hosttune.model.gpu import Gpu
from hosttune.model.host import Cpu, Host, MemorySettings, NumaNode, PciDevice, RunningGuest
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan
from hosttune.model.values import MAX_SET, CpuSet, from_json, parse_size, to_json
from hosttune.watch.looking import LookResult

GPU, NIC, BRIDGE = "0000:41:00.0", "0000:42:00.0", "0000:40:01.0"
Change = Callable[[dict[str, Any]], object]


def document() -> dict[str, Any]:
    """A host with a GPU, a NIC and a guest, with every field that a check looks at."""
    held = Held(name="a", pins=(1, 2), memory_bytes=1 << 30, devices=("0000:43:00.0",))
    cards = (Card(GPU, bar_bytes=1 << 38, group=7), Card(NIC, kind="nic"))
    host = build_host(cards=cards, guests=(held, Held(name="b")), hugepages={0: {1 << 21: (10, 5)}})
    gpu = function(host, GPU)
    gpu["local_cpus"] = "0-7"
    gpu["virtfns"] = ["0000:41:00.4"]
    gpu["link"] = {"speed_gts": 32, "width": 16, "upstream": {"address": BRIDGE, "width": 16}}
    host["gpus"][0]["peers"] = [{"address": "0000:43:00.0", "kind": "pcie"}]
    host["guests"][0]["iothread_cpus"] = ["0"]
    host["memory_settings"] = {"overcommit_hugepages": {"2097152": 0}}
    host["cpu_model"] = {"physical_address_bits": 46}
    return host


def function(host: dict[str, Any], address: str) -> dict[str, Any]:
    found: dict[str, Any] = next(f for f in host["pci"] if f["address"] == address)
    return found


def read(host: Mapping[str, Any]) -> Host:
    return Host.from_json(json.dumps(host), where="h.json")


def refusal(change: Change) -> BadInput:
    """What is said about the document after the change; the document itself is good."""
    host = document()
    read(host)
    change(host)
    with pytest.raises(BadInput) as caught:
        read(host)
    return caught.value


def put(path: str, value: object) -> Change:
    """A change that sets one place of a document, named as in its errors ("cpus[3].id")."""

    def change(host: dict[str, Any]) -> None:
        place: Any = host
        *way, last = path.replace("[", ".").replace("]", "").split(".")
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        place[int(last) if isinstance(place, list) else last] = value

    return change


def index_of(address: str) -> int:
    return next(i for i, f in enumerate(document()["pci"]) if f["address"] == address)


AT = f"pci[{index_of(GPU)}]"


# --- what no machine can be ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cpus[3].id", 0),
        ("numa_nodes[1].id", 0),
        (f"pci[{len(document()['pci']) - 1}].address", document()["pci"][0]["address"]),
        ("guests[1].name", "a"),
        ("guests[0].vcpu_pins[1].vcpu", 0),
    ],
)
def test_a_double_is_refused_where_it_stands(path: str, value: object) -> None:
    error = refusal(put(path, value))
    assert error.where == f"h.json: $.{path}"
    assert error.what.startswith(f"{value!r} is there twice, first in $.")


@pytest.mark.parametrize("kind", ["gpus", "nics", "nvme", "nvswitches"])
def test_a_device_listed_twice(kind: str) -> None:
    error = refusal(put(kind, [{"address": "0000:01:00.0"}, {"address": "0000:02:00.0"}, {"address": "0000:01:00.0"}]))
    assert error.where == f"h.json: $.{kind}[2].address"
    assert error.what == f"'0000:01:00.0' is there twice, first in $.{kind}[0]"


def test_pages_and_bars_listed_twice() -> None:
    pages = refusal(lambda host: host["numa_nodes"][0]["hugepages"].append({"size_bytes": 1 << 21}))
    assert pages.where == "h.json: $.numa_nodes[0].hugepages[2].size_bytes"
    bars = refusal(put(f"{AT}.bars", [{"index": 0, "size_bytes": 4096}, {"index": 0, "size_bytes": 8192}]))
    assert bars.where == f"h.json: $.{AT}.bars[1].index"


@pytest.mark.parametrize("address", ["0000:41:0.0", "0000:41:00.8", "GPU-0", "", "0000:41:3f.0"])
@pytest.mark.parametrize(
    "path",
    [
        f"{AT}.address",
        f"{AT}.parent",
        f"{AT}.physfn",
        f"{AT}.virtfns[0]",
        f"{AT}.link.upstream.address",
        "gpus[0].address",
        "gpus[0].peers[0].address",
        "nics[0].address",
        "nics[0].physfn",
        "guests[0].devices[0]",
    ],
)
def test_a_malformed_address(path: str, address: str) -> None:
    error = refusal(put(path, address))
    assert (error.what, error.where) == (f"{address!r} is not a PCI address", f"h.json: $.{path}")


@pytest.mark.parametrize("kind", ["nvme", "nvswitches"])
def test_a_malformed_address_of_a_device_without_a_function(kind: str) -> None:
    assert refusal(put(kind, [{"address": "41"}])).where == f"h.json: $.{kind}[0].address"


@pytest.mark.parametrize("spelling", ["41:00.0", "0000:41:00.0 ", "00000000:41:00.0", "0000:4A:00.0"])
def test_another_spelling_of_an_address_would_be_another_device(spelling: str) -> None:
    error = refusal(put("gpus[0].address", spelling))
    assert "is not the kernel's spelling" in error.what
    assert error.hint in ("write 0000:41:00.0", "write 0000:4a:00.0")


@pytest.mark.parametrize("text", ["x", "3-1", "-1", "0-", "0-1048575", "1_0", "٣", "0-70000", "9999999999"])
@pytest.mark.parametrize(
    "path",
    [
        "numa_nodes[1].cpus",
        f"{AT}.local_cpus",
        "guests[0].vcpu_pins[1].cpus",
        "guests[0].emulator_cpus",
        "guests[0].iothread_cpus[0]",
    ],
)
def test_a_cpu_list_that_is_none(path: str, text: str) -> None:
    error = refusal(put(path, text))
    assert error.where == f"h.json: $.{path}"
    assert error.what.startswith("not a CPU list: ")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cpus[0].id", -1),
        ("cpus[0].id", 1 << 20),
        ("cpus[0].numa_node", -1),
        ("cpus[0].core", 1 << 40),
        ("numa_nodes[0].id", -1),
        ("numa_nodes[0].memory_bytes", -1),
        ("numa_nodes[0].memory_bytes", 1 << 63),
        ("numa_nodes[0].free_bytes", -4096),
        ("numa_nodes[0].hugepages[0].size_bytes", 0),
        ("numa_nodes[0].hugepages[0].total", -1),
        ("numa_nodes[0].hugepages[0].free", (1 << 64) - 1),
        (f"{AT}.numa_node", -1),
        (f"{AT}.iommu_group", -1),
        (f"{AT}.link.width", -1),
        (f"{AT}.link.speed_gts", -2.5),
        (f"{AT}.link.speed_gts", 1e300),
        (f"{AT}.link.upstream.width", 1000),
        (f"{AT}.bars[0].size_bytes", 0),
        (f"{AT}.bars[0].size_bytes", 1 << 63),
        (f"{AT}.sriov_total_vfs", -1),
        ("gpus[0].memory_bytes", -1),
        ("guests[0].memory_bytes", -1),
        ("guests[0].vcpus", 1 << 20),
        ("guests[0].vcpu_pins[0].vcpu", -1),
        ("memory_settings.overcommit_hugepages.2097152", -1),
        ("cpu_model.physical_address_bits", 10**6),
    ],
)
def test_a_number_that_no_machine_has(path: str, value: float) -> None:
    error = refusal(put(path, value))
    assert error.where == f"h.json: $.{path}"
    assert error.what == f"{value} is out of bounds"


def test_a_cpu_out_of_bounds_in_a_list_of_ids() -> None:
    assert refusal(put("guests[0].vcpu_pins[1].cpus", [1, -1])).where == "h.json: $.guests[0].vcpu_pins[1].cpus[1]"


@pytest.mark.parametrize(
    ("key", "distance", "what"),
    [
        ("0", 0, "distance 0"),
        ("1", -21, "distance -21"),
        ("1", 256, "distance 256"),
        ("x", 10, "'x' is not a node number"),
        ("-1", 10, "'-1' is not a node number"),
        ("01", 10, "'01' is not a node number"),
        ("9" * 5000, 10, f"'{'9' * 5000}' is not a node number"),
    ],
)
def test_a_distance_that_is_none(key: str, distance: int, what: str) -> None:
    error = refusal(lambda host: host["numa_nodes"][0]["distances"].update({key: distance}))
    assert (error.what, error.where) == (what, f"h.json: $.numa_nodes[0].distances.{key}")


@pytest.mark.parametrize("length", [1, 2, 5])
def test_bridges_above_themselves(length: int) -> None:
    loop = [f"0000:9{n}:00.0" for n in range(length)]
    ring = [{"address": loop[n], "parent": loop[(n + 1) % length]} for n in range(length)]
    first = len(document()["pci"])
    error = refusal(lambda host: host["pci"].extend(ring))
    assert error.where == f"h.json: $.pci[{first}].parent"
    assert error.what.endswith("is above itself")


def test_a_long_chain_of_bridges_is_no_loop() -> None:
    names = [f"0000:{bus:02x}:{slot:02x}.0" for bus in range(200) for slot in range(32)]
    host = {"schema": "hosttune.host/v1", "pci": [{"address": names[0]}]}
    host["pci"] = [{"address": a, "parent": b} for a, b in zip(names, [None, *names], strict=False)]
    assert len(read(host).pci) == 6400


def test_what_a_document_leaves_out_is_no_fault() -> None:
    host = {
        "schema": "hosttune.host/v1",
        "cpus": [{"id": 0, "numa_node": 3}],
        "gpus": [{"address": "10000:e1:00.0", "peers": [{"address": GPU, "kind": "nvlink"}]}],
        "guests": [{"name": "a", "vcpu_pins": [{"vcpu": 0, "cpus": [700]}], "devices": ["0000:99:00.0"]}],
    }
    assert read(host).gpus[0].address == "10000:e1:00.0"


# --- null means left out -------------------------------------------------------------------------------------


def test_null_is_left_out_wherever_a_field_may_be() -> None:
    lists = ("cpus", "numa_nodes", "pci", "gpus", "nics", "nvme", "nvswitches", "guests", "problems", "kernel_args")
    assert read({"schema": "hosttune.host/v1", **dict.fromkeys(lists)}) == Host()
    host = read(
        {
            "schema": "hosttune.host/v1",
            "cpus": [{"id": 0, "online": None, "core": None}],
            "numa_nodes": [{"id": 0, "distances": {"0": 10, "1": None}, "hugepages": None}],
            "pci": [{"address": GPU, "virtfns": None, "acs": {"capable": None, "enabled": None}, "parent": None}],
            "gpus": [{"address": GPU, "vendor": None}],
            "guests": [{"name": "a", "devices": None, "vcpu_pins": None}],
            "platform": {"modules": None},
            "memory_settings": {"overcommit_hugepages": {"2097152": None}},
        }
    )
    assert host.cpus == (Cpu(id=0, online=None),)
    assert host.numa_nodes == (NumaNode(id=0, distances={"0": 10}),)
    assert (host.pci[0].virtfns, host.pci[0].acs and host.pci[0].acs.capable) == ((), ())
    assert host.gpus == (Gpu(address=GPU),)
    assert host.guests == (RunningGuest(name="a"),)
    assert host.memory_settings == MemorySettings(overcommit_hugepages={})


@pytest.mark.parametrize(
    ("field", "value", "what", "where"),
    [
        ("cpus", [{"id": None}], "expected a whole number, found nothing", "$.cpus[0].id"),
        ("cpus", [None], "expected a mapping, found nothing", "$.cpus[0]"),
        ("cpus", [{"core": 1}], "no 'id'", "$.cpus[0]"),
        ("pci", [{"address": GPU, "virtfns": [None]}], "expected text, found nothing", "$.pci[0].virtfns[0]"),
        ("guests", [{"name": None}], "expected text, found nothing", "$.guests[0].name"),
        ("cpus", [{"id": "0"}], "expected a whole number, found text", "$.cpus[0].id"),
    ],
)
def test_a_required_field_cannot_be_null(field: str, value: object, what: str, where: str) -> None:
    error = refusal(put(field, value))
    assert (error.what, error.where) == (what, f"h.json: {where}")


def test_a_plan_keeps_the_nulls_that_say_something() -> None:
    """A device without affinity, an action whose current value is unknown: null is their value."""
    plan = hosttune.plan(read(document()), Intent.from_json(json.dumps(intent_of(gpus=[GPU], vcpus=2, memory="1GiB"))))
    plain = json.loads(plan.to_json())
    assert any(action["current"] is None for action in plain["actions"])
    assert Plan.from_json(json.dumps(plain)) == plan
    plain["unplaced"] = None
    plain["guests"][0]["why"] = None
    plain["guests"][0]["devices"][0]["guest_cell"] = None
    again = Plan.from_json(json.dumps(plain))
    assert (again.unplaced, again.guests[0].why, again.guests[0].devices[0].guest_cell) == ((), (), None)


def test_a_document_reads_back_as_it_was_written() -> None:
    host = read(document())
    assert Host.from_json(host.to_json()) == host
    assert isinstance(host.pci[0], PciDevice)


# --- small types ---------------------------------------------------------------------------------------------


def test_a_set_of_cpus_is_bounded() -> None:
    assert len(CpuSet.parse(f"0-{MAX_SET - 1}")) == MAX_SET
    for text in ("0-1048575", f"0-{MAX_SET}", ",".join(f"{n}-{n + 999}" for n in range(0, 100_000, 1000)), "0-9999999"):
        with pytest.raises(ValueError, match=r"more than 65536 ids|not a CPU range"):
            CpuSet.parse(text)


@pytest.mark.parametrize(("text", "ids"), [("", ()), ("0-3,8", (0, 1, 2, 3, 8)), (" 1, 2\n", (1, 2)), ("1-1", (1,))])
def test_a_set_of_cpus_is_read(text: str, ids: tuple[int, ...]) -> None:
    assert sorted(CpuSet.parse(text)) == list(ids)


@pytest.mark.parametrize(
    ("size", "parsed"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("1.5GiB", 3 << 29),
        (" 2 TiB ", 2 << 40),
        ("0.0009765625KiB", 1),
        ("8388607.5TiB", (1 << 63) - (1 << 39)),
    ],
)
def test_a_size_is_exact(size: int | str, parsed: int) -> None:
    assert parse_size(size, where="memory") == parsed


@pytest.mark.parametrize(
    "size",
    [0, -1, True, "", "x", "1GB", "0.1GiB", "-1GiB", "1e3", "٣"],
)
def test_a_size_that_is_none(size: int | str) -> None:
    with pytest.raises(BadInput, match="is not a size") as caught:
        parse_size(size, where="memory")
    assert caught.value.where == "memory"


@pytest.mark.parametrize(
    "size", [1 << 63, str(1 << 63), "8388608TiB", "999999999999999TiB", "9" * 400 + "GiB", "9" * 5000]
)
def test_a_size_that_is_too_large(size: int | str) -> None:
    with pytest.raises(BadInput, match="is too large") as caught:
        parse_size(size, where="memory")
    assert caught.value.where == "memory"
    assert caught.value.hint == "give at most 8388607TiB"


# --- documents of our own programs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "write", "read"),
    [
        (
            GuestOrder(nonce="ab", task="search", devices=(OrderedDevice(address="0000:41:00.0"),)),
            to_json,
            GuestOrder.from_json,
        ),
        (
            GuestAnswer(nonce="ab", memory={"bytes": 1, "seen": {"a": [1]}}, firmware={"0000:41:00.0": {"vbios": "1"}}),
            GuestAnswer.to_line,
            lambda text: from_json(GuestAnswer, text, schema=ANSWER_SCHEMA, where="test"),
        ),
        (Member(host="a", environment={"NCCL_DEBUG": "INFO"}), Member.to_json, Member.from_json),
        (
            LookResult(text="x", verdict="pass", bad={"a": "fail"}),
            to_json,
            lambda text: msgspec.json.decode(text, type=LookResult),
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, msgspec.Struct) else "",
)
def test_what_our_own_programs_tell_each_other_is_read_as_it_was_written(
    value: Any, write: Callable[[Any], str], read: Callable[[str], Any]
) -> None:
    assert read(write(value)) == value
