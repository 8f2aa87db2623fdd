# ruff: noqa: N802, N815  (the fake library has the real one's names)
"""NVML's dump and its reading, over a library of our own making: every shape that hardware at hand cannot show."""

from __future__ import annotations

import os
import re
import resource
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pynvml
import pytest

from hosttune.errors import BadInput
from hosttune.gpu import nvml_dump
from hosttune.gpu.nvml import Asking
from hosttune.gpu.nvml_dump import PLAIN, dump_from
from hosttune.gpu.nvml_facts import parse_nvml
from hosttune.model.gpu import Gpu, Peer
from hosttune.model.host import Problem

A, B, C = "0000:19:00.0", "0000:3b:00.0", "0000:4c:00.0"
SWITCH = "0000:83:00.0"
GPU, NVSWITCH, HIDDEN = 0, 2, 0xFF
OK, OFF = 0, 2
DOWN = (HIDDEN, "")  # a link that is not active


class Failure(Exception):
    """The fake library's NVMLError."""


class FakeNvml:
    """Three GPUs: `links` gives each one's (remote type, remote address) and `p2p` the status between two."""

    NVMLError = Failure
    c_nvmlGpuInstancePlacement_t = pynvml.c_nvmlGpuInstancePlacement_t
    c_nvmlGpuInstance_t = pynvml.c_nvmlGpuInstance_t
    c_nvmlGpuFabricInfoV_t = pynvml.c_nvmlGpuFabricInfoV_t
    NVML_GPU_INSTANCE_PROFILE_COUNT = 18

    def __init__(self, links: dict[str, list[tuple[int, str]]], p2p: dict[frozenset[str], int], mig: int = 0) -> None:
        self.links, self.p2p, self.mig = links, p2p, mig
        self.opened: list[str] = []
        self.field_calls: list[int] = []  # fields in each call
        self.errors: dict[tuple[str, int], int] = {}  # of every link, by GPU and field
        self.module = 0
        for name in PLAIN:
            if name not in dir(self):
                setattr(self, name, lambda handle: 1)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetHandleByPciBusId(self, address: str) -> str:
        self.opened.append(address)
        if address not in self.links:
            raise Failure("GPU is lost")
        return address

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"NVIDIA H200"

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        return [self.mig, self.mig]

    def nvmlDeviceGetModuleId(self, handle: str, number: Any) -> int:
        number._obj.value = self.module
        return 0

    def nvmlDeviceGetRemappedRows(self, handle: str) -> tuple[int, ...]:
        if self.mig:
            raise Failure("Not Supported")
        return (3, 1, 1, 0)

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: str) -> list[int]:
        return [200000, 700000]

    def nvmlDeviceGetEccMode(self, handle: str) -> list[int]:
        return [1, 0]

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(total=150754820096)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 0x8 | 0x80

    def nvmlDeviceGetGpuFabricInfoV(self, handle: str, info: Any) -> None:
        info._obj.state, info._obj.status = 3, 0

    def nvmlErrorString(self, code: int) -> bytes:
        return b"Success"

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=7), SimpleNamespace(pid=8)]

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=7)]

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[Any]) -> list[Any]:
        self.field_calls.append(len(fields))
        numbers = [field[0] if isinstance(field, tuple) else field for field in fields]
        values = [
            len(self.links[handle]) + bool(self.links[handle])  # the last one is down
            if number == pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT
            else self.errors.get((handle, number), 0 if number in (161, 162, 163) else 26562)  # nvml.h: DL counters
            for number in numbers
        ]
        return [SimpleNamespace(nvmlReturn=0, valueType=1, value=SimpleNamespace(uiVal=value)) for value in values]

    def nvmlDeviceGetP2PStatus(self, one: str, other: str, index: int) -> int:
        return self.p2p[frozenset((one, other))]

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:
        if link > len(self.links[handle]) or not self.links[handle]:
            raise AssertionError(f"link {link} does not exist: the real library may end here in a segmentation fault")
        if self.mig:
            raise Failure("Not Supported")
        return int(link < len(self.links[handle]) and self.links[handle][link] != DOWN)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: str, link: int) -> int:
        return self.links[handle][link][0]

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: str, link: int) -> Any:
        if self.links[handle][link][0] == HIDDEN:
            raise Failure("Not Supported")
        return SimpleNamespace(busId=f"0000{self.links[handle][link][1]}".encode())

    def nvmlDeviceGetGpuInstanceProfileInfo(self, handle: str, number: int) -> Any:
        if number not in (0, 9):
            assert number < self.NVML_GPU_INSTANCE_PROFILE_COUNT
            raise Failure("Not Supported")
        info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
        info.id, info.name = (19, b"MIG 1g.18gb") if number == 0 else (9, b"MIG 3g.71gb")
        info.sliceCount, info.instanceCount, info.multiprocessorCount, info.memorySizeMB = 1, 7, 16, 16384
        return info

    def nvmlDeviceGetGpuInstancePossiblePlacements(self, handle: str, profile: int, places: Any, count: Any) -> None:
        found = [(start, 1) for start in range(7)] if profile == 19 else [(4, 4), (0, 4)]
        count._obj.value = len(found)
        for place, (start, size) in zip(places if places is not None else (), found, strict=False):
            place.start, place.size = start, size

    def nvmlDeviceGetGpuInstances(self, handle: str, profile: int, instances: Any, count: Any) -> None:
        count._obj.value = 1 if profile == 9 else 0

    def nvmlGpuInstanceGetInfo(self, instance: Any) -> Any:
        return SimpleNamespace(id=2, profileId=9, placement=SimpleNamespace(start=4, size=4))

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 2

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index:
            raise Failure("Not Found")
        return "device"

    def nvmlDeviceGetGpuInstanceId(self, device: str) -> int:
        return 2

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return "MIG-1" if handle == "device" else f"GPU-{handle}"


def read(library: FakeNvml, *addresses: str) -> tuple[dict[str, Gpu], tuple[Problem, ...]]:
    answer = parse_nvml(dump_from(library, addresses))
    return answer.by_address(), answer.problems


def everyone(status: int, *pairs: tuple[str, str]) -> dict[frozenset[str], int]:
    return dict.fromkeys(map(frozenset, pairs or ((A, B), (A, C), (B, C))), status)


def test_facts_come_through_with_their_units() -> None:
    library = FakeNvml({A: [(NVSWITCH, SWITCH)] * 18}, {})
    gpus, problems = read(library, A)
    gpu = gpus[A]
    assert (gpu.model, gpu.uuid, gpu.driver_version) == ("NVIDIA H200", f"GPU-{A}", "580.159.04")
    assert (gpu.memory_bytes, gpu.power_min_watts, gpu.power_max_watts) == (150754820096, 200.0, 700.0)
    assert (gpu.ecc, gpu.ecc_pending, gpu.module_id, gpu.processes) == (True, False, None, 2)
    assert gpu.remapped_correctable == 3
    assert gpu.remapped_uncorrectable == 1
    assert (gpu.remapped_pending, gpu.remapped_failed) == (True, False)
    assert (gpu.nvlinks_active, gpu.nvlink_gb_per_s, gpu.peers) == (18, 26.562, ())
    assert (gpu.fabric_state, gpu.fabric_status) == ("completed", "success")
    assert gpu.clock_reasons == ("hw_slowdown", "hw_power_brake_slowdown")  # an old driver: the old name answers
    assert [(doubt.what, doubt.where) for doubt in problems] == [("NVML facts unknown", A)]
    assert "these bindings have no nvmlDeviceGetTotalEccErrors: uncorrectedVolatile" in problems[0].why


def test_module_id_is_the_baseboards_number() -> None:
    library = FakeNvml({A: []}, {})
    library.module = 3
    assert read(library, A)[0][A].module_id == 3


def test_profiles_and_placements_come_from_the_device() -> None:
    gpus, _ = read(FakeNvml({A: []}, {}), A)
    mig = gpus[A].mig
    assert mig is not None
    assert (mig.mode, mig.instances) == ("disabled", ())
    assert [(p.name, p.id, p.compute_slices, p.starts, p.size) for p in mig.profiles or ()] == [
        ("1g.18gb", 19, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        ("3g.71gb", 9, 3, (0, 4), 4),
    ]


def test_mig_on_lists_instances_and_turns_nvlink_peers_off() -> None:
    links = {A: [(NVSWITCH, SWITCH)] * 18, B: [(NVSWITCH, SWITCH)] * 18}
    gpus, problems = read(FakeNvml(links, everyone(OFF, (A, B)), mig=1), A, B)
    mig = gpus[A].mig
    assert mig is not None
    assert [(i.profile, i.id, i.start, i.size, i.uuid) for i in mig.instances or ()] == [("3g.71gb", 2, 4, 4, "MIG-1")]
    assert gpus[A].peers == (Peer(address=B, kind="pcie"),)
    assert gpus[A].nvlinks_active is None  # not supported under MIG says nothing about the links
    assert gpus[A].remapped_pending is None
    assert not any("RemappedRows" in doubt.why for doubt in problems)


@pytest.mark.parametrize("kind", [NVSWITCH, HIDDEN], ids=["switch named", "remote ends hidden in a guest"])
def test_gpus_behind_a_switch_are_nvlink_peers(kind: int) -> None:
    links = {A: [(kind, SWITCH)] * 18, B: [*[(kind, SWITCH)] * 17, DOWN], C: [(kind, SWITCH)] * 18}
    gpus, _ = read(FakeNvml(links, everyone(OK)), A, B, C)
    assert gpus[A].peers == (Peer(address=B, kind="nvlink", links=17), Peer(address=C, kind="nvlink", links=18))


def test_bridged_pair_is_direct_and_others_are_pcie() -> None:
    links: dict[str, list[tuple[int, str]]] = {A: [(GPU, B)] * 12, B: [(GPU, A)] * 12, C: []}
    p2p = {frozenset((A, B)): OK, frozenset((A, C)): OFF, frozenset((B, C)): OFF}
    gpus, _ = read(FakeNvml(links, p2p), A, B, C)
    assert gpus[A].peers == (Peer(address=B, kind="nvlink", links=12), Peer(address=C, kind="pcie"))
    assert gpus[C].nvlinks_active == 0


def test_links_that_carry_nothing_make_no_peer() -> None:
    """Two GPUs of different fabric partitions: links up, P2P status not OK."""
    links = {A: [(NVSWITCH, SWITCH)] * 18, B: [(NVSWITCH, SWITCH)] * 18}
    gpus, _ = read(FakeNvml(links, everyone(OFF, (A, B))), A, B)
    assert gpus[A].peers == (Peer(address=B, kind="pcie"),)


def test_lost_gpu_costs_no_other_fact() -> None:
    gpus, problems = read(FakeNvml({A: []}, {}), A, B)
    assert gpus[A].memory_bytes == 150754820096
    assert gpus[B].uuid is None
    assert gpus[B].peers is None
    assert Problem(what="NVML facts unknown", where=B, why="GPU is lost: handle") in problems


def test_only_the_named_gpus_are_opened() -> None:
    library = FakeNvml({A: [], B: []}, {})
    read(library, B)
    assert library.opened == [B]


def _pair(**changes: Any) -> tuple[Gpu, Gpu]:
    """A and B behind a switch, 18 links each; `changes` of A's entry: a value, or a function of what stands there."""
    links = {A: [(NVSWITCH, SWITCH)] * 17, B: [(NVSWITCH, SWITCH)] * 17}
    document = msgspec.json.decode(dump_from(FakeNvml(links, everyone(OK, (A, B))), (A, B)))
    for name, value in changes.items():
        document["0"][name] = value(document["0"][name]) if callable(value) else value
    gpus = parse_nvml(msgspec.json.encode(document).decode()).by_address()
    return gpus[A], gpus[B]


@pytest.mark.parametrize(
    ("mine", "kind"),
    [({B: OK}, "nvlink"), ({}, "nvlink"), ({B: "ERR Unknown Error"}, "nvlink"), ({B: OFF}, None), ([], "nvlink")],
)
def test_p2p_is_what_both_gpus_say(mine: Any, kind: str | None) -> None:
    """One status of two GPUs: told by one it is that of both, told by both it is the same."""
    for gpu in _pair(p2pNvlink=mine):
        assert (gpu.peers and gpu.peers[0].kind) == kind


def test_a_status_that_one_gpu_alone_tells_is_not_ok_either() -> None:
    links = {A: [(NVSWITCH, SWITCH)] * 18, B: [(NVSWITCH, SWITCH)] * 18}
    document = msgspec.json.decode(dump_from(FakeNvml(links, everyone(1, (A, B))), (A, B)))
    del document["0"]["p2pNvlink"][B]
    one_lost = parse_nvml(msgspec.json.encode(document).decode()).by_address()
    assert [gpu.peers for gpu in one_lost.values()] == [
        (Peer(address=B, kind="pcie"),),
        (Peer(address=A, kind="pcie"),),
    ]
    del document["1"]["p2pNvlink"]
    both_lost = parse_nvml(msgspec.json.encode(document).decode()).by_address()
    assert [gpu.peers for gpu in both_lost.values()] == [None, None]


def _down(links: Any) -> Any:
    """Link 5 is down."""
    links[5] = {"link": 5, "state": 0}
    return links


@pytest.mark.parametrize(
    ("links", "active"),
    [
        (_down, 16),
        (lambda links: [*_down(links), links[6]], None),
        (lambda links: [*_down(links), {**links[6], "link": 5}], None),
        (lambda links: [link for link in _down(links) if link["link"] != 4], None),
        (lambda links: [*_down(links)[:5], {"link": 5, "state": True}, *links[6:]], None),
        (lambda links: [*_down(links)[:5], {"link": 5, "state": 1.0}, *links[6:]], None),
        (lambda links: [*_down(links)[:5], {"link": 5, "state": "ERR Unknown Error"}, *links[6:]], None),
        (lambda links: [*_down(links), "x"], None),
        (lambda links: links[:-1], None),  # B has one more
        ([], None),
    ],
)
def test_nvlinks_are_counted_in_a_whole_list_alone(links: Any, active: int | None) -> None:
    assert _pair(nvlinks=links)[0].nvlinks_active == active


@pytest.mark.parametrize(
    ("rows", "pending"),
    [
        ([0, 0, 1, 0], True),
        ("(0, 0, 1, 0)", True),
        ("(0, 0, None, 0, 0)", None),
        ("0, 0, 0x1, 0", None),
        ("0 0 .1 0", None),
        ([0, 0, False, 0], None),
        ([0, 0, 0], None),
    ],
)
def test_a_list_of_numbers_is_nothing_but_them(rows: Any, pending: bool | None) -> None:
    assert _pair(nvmlDeviceGetRemappedRows=rows)[0].remapped_pending is pending


def test_instances_of_a_gpu_whose_mig_mode_is_off_leave_the_mode_unknown() -> None:
    mig = _pair(migInstances=[{"id": 1, "profileId": 9, "start": 0, "size": 4}])[0].mig
    assert mig is not None
    assert mig.mode is None


def test_what_is_told_twice_of_a_gpu_says_nothing_of_the_paths_to_it() -> None:
    gpus = parse_nvml(
        msgspec.json.encode(
            {
                "0": {"busId": A, "nvlinks": "ERR Not Supported"},
                "1": {"busId": B, "nvlinks": "ERR Not Supported"},
                "2": {"busId": B, "nvlinks": "ERR Not Supported", "nvmlDeviceGetSerial": "x"},
            }
        ).decode()
    ).by_address()
    assert (list(gpus), gpus[A].peers) == ([A], None)


WHOLE = 0b0001_10101010  # each part says that there is no fault


@pytest.mark.parametrize(
    ("mask", "faults"),
    [
        (WHOLE, ()),
        (WHOLE & ~3 | 1, ("degraded bandwidth",)),
        (WHOLE & ~3, None),
        (WHOLE | 3, None),
        (WHOLE & 0xFF, None),
        (0, None),
        (None, None),
    ],
)
def test_a_health_mask_that_tells_less_than_a_sisters_is_no_proof(
    mask: int | None, faults: tuple[str, ...] | None
) -> None:
    links: dict[str, list[tuple[int, str]]] = {A: [], B: []}
    document = msgspec.json.decode(dump_from(FakeNvml(links, everyone(OFF, (A, B))), (A, B)))
    document["0"]["fabricInfo"]["healthMask"], document["1"]["fabricInfo"]["healthMask"] = mask, WHOLE
    gpus = parse_nvml(msgspec.json.encode(document).decode()).by_address()
    assert (gpus[B].fabric_health, gpus[B].fabric_status) == ((), "success")
    assert (gpus[A].fabric_health, gpus[A].fabric_status) == (faults, None if faults is None else "success")


def test_entries_that_exchanged_their_addresses_join_no_function() -> None:
    """Each has a path to every GPU but itself."""
    document = msgspec.json.decode(dump_from(FakeNvml({A: [], B: []}, everyone(OFF, (A, B))), (A, B)))
    document["0"]["busId"], document["1"]["busId"] = B, A
    answer = parse_nvml(msgspec.json.encode(document).decode())
    assert (answer.gpus, [one.what for one in answer.problems]) == ((), ["GPU without a PCI address"] * 2)


def test_a_record_of_more_gpus_than_a_driver_has_numbers_for_is_refused() -> None:
    entries = {str(n): {"busId": f"{n:04x}:01:00.0", "nvlinks": []} for n in range(1000)}
    with pytest.raises(BadInput, match="1,000 GPUs that NVIDIA's driver reports, more than 248") as caught:
        parse_nvml(msgspec.json.encode(entries).decode())
    assert caught.value.where == "nvml.json"


def test_dump_is_json_that_names_each_gpu() -> None:
    document = msgspec.json.decode(dump_from(FakeNvml({A: [], C: []}, everyone(OFF, (A, C))), (A, C)))
    assert (document["0"]["busId"], document["1"]["busId"]) == (A, C)


def test_installed_bindings_have_every_function_that_is_asked_for() -> None:
    """A misspelt name would only ever be written down as unknown."""
    source = Path(nvml_dump.__file__).read_text()
    asked = set(re.findall(r'"(nvml[A-Z]\w+|c_nvml\w+)"|library\.(\w+)', source))
    assert len(asked) > 30
    assert [name for pair in sorted(asked) for name in pair if name and not hasattr(pynvml, name)] == []


def test_fields_are_asked_in_few_calls() -> None:
    library = FakeNvml({A: [(NVSWITCH, SWITCH)] * 18}, {})
    assert len(read(library, A)[0][A].nvlinks or ()) == 19
    assert library.field_calls == [3, 18 * 4]  # these bindings have no fields of health


class Dying:
    """A dump that a segmentation fault ends, `times` times."""

    def __init__(self, marks: Path, times: int) -> None:
        self.marks, self.times = marks, times

    def __call__(self, addresses: list[str], notes: dict[str, str]) -> str:
        if len(list(self.marks.iterdir())) < self.times:
            (self.marks / str(os.getpid())).touch()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.kill(os.getpid(), signal.SIGSEGV)
        entry = {"busId": addresses[0], "nvmlDeviceGetName": "NVIDIA H200", "nvlinks": []}
        return msgspec.json.encode({**notes, "0": entry}).decode()


def test_a_reader_that_crashed_is_started_once_more_and_that_is_said(tmp_path: Path) -> None:
    answer = parse_nvml(Asking((A,), Dying(tmp_path, times=1)).answer())
    assert [gpu.model for gpu in answer.gpus] == ["NVIDIA H200"]
    why = "the process for it was ended by SIGSEGV before it had answered"
    assert answer.problems[0] == Problem(what="NVML was asked twice", where="nvml.json", why=why)


def test_a_reader_that_crashes_twice_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="NVML: the process for it was ended by SIGSEGV before it had answered"):
        parse_nvml(Asking((A,), Dying(tmp_path, times=2)).answer())
    assert len(list(tmp_path.iterdir())) == 2
