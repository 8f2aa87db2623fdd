"""libvirt's hook before a start by another program: it sets what apply has decided for the guest, or refuses."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from hosttune.journal import Record
from hosttune.model.plan import Cell, Device, PlannedGuest
from hosttune.settings.hook import hook_text
from hosttune.transaction.site import list_at_start

A, B, C = "0000:41:00.0", "0000:42:00.0", "0000:43:00.0"
VF, UUID = "0000:41:00.4", "6b1f4c52-9f2e-5a54-8f0c-6a1d0c5d1f7e"
TABLE = {0: {1, 2, 3, 12}, 3: {1, 12}, 7: {1}, 8: {2}}
# As fmpm.cpp prints it: jsoncpp's styled writer sorts the names of each object.
FMPM = """#!/usr/bin/python3
import json, sys, time
place = {place!r}
state = json.load(open(place))
open(place + ".ran", "a").write(" ".join(sys.argv[1:]) + "\\n")
time.sleep(state["slow"])
if sys.argv[-1] == "-l":
    if state["deaf"]:
        state["deaf"] -= 1
        json.dump(state, open(place, "w"))
        print("Failed to connect to Fabric Manager instance.")
        sys.exit(1)
    rows = [dict(gpuInfo=[dict(maxNumNvLinks=18, pciBusId="00000000:00:00.0", physicalId=m, uuid="") for m in modules],
                 isActive=int(int(n) in state["active"]), numGpus=len(modules), partitionId=int(n))
            for n, modules in state["table"].items()]
    print(json.dumps(dict(maxNumPartitions=15, partitionInfo=rows, version=16909068), indent=3, sort_keys=True))
elif sys.argv[-2] == "-a":
    if state["refuses"]:
        print("Failed to activate partition. fmReturn: -7")
        sys.exit(249)
    json.dump(dict(state, active=[*state["active"], int(sys.argv[-1])]), open(place, "w"))
"""
Start = Callable[..., subprocess.CompletedProcess[str]]


def record(kind: str, target: str, new: object) -> Record:
    return Record(
        step=1, kind=kind, target=target, actions=(), scope="runtime", needed=True, old=None, new=new, outcome="done"
    )


def guest(name: str, *addresses: str, kind: str = "gpu") -> PlannedGuest:
    devices = tuple(Device(address=a, kind=kind, guest_cell=0, guest_address="", identity=a) for a in addresses)
    cells = (Cell(id=0, vcpus="0", memory_bytes=1 << 30, host_nodes="0"),)
    return PlannedGuest(name=name, vcpu_pins=(), emulator_cpus="0", cells=cells, page_bytes=None, devices=devices)


def definition(*functions: str, mdevs: Iterable[str] = ()) -> str:
    sources = [
        f"<address domain='0x{f[:4]}' bus='0x{f[5:7]}' slot='0x{f[8:10]}' function='0x{f[11:]}'/>" for f in functions
    ]
    sources += [f"<address uuid='{uuid}'/>" for uuid in mdevs]
    rows = "".join(f"<hostdev mode='subsystem'><source>{source}</source></hostdev>" for source in sources)
    return f"<domain><name>vm</name><devices>{rows}</devices></domain>"


def board(folder: Path, **changes: object) -> None:
    """The Fabric Manager's state: its partitions, those that are active, and faults."""
    state = {"table": {str(n): sorted(m, reverse=True) for n, m in TABLE.items()}, "active": [], **changes}
    (folder / "fm").write_text(json.dumps({"slow": 0, "deaf": 0, "refuses": False, **state}))


def active(folder: Path) -> list[int]:
    numbers: list[int] = json.loads((folder / "fm").read_text())["active"]
    return numbers


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """The hook, as libvirt calls it before a start; PATH has an fmpm."""
    tool = tmp_path / "bin/fmpm"
    tool.parent.mkdir()
    tool.write_text(FMPM.format(place=str(tmp_path / "fm")))
    tool.chmod(0o755)
    (tmp_path / "hook").write_text((hook_text(str(tmp_path)) or "").replace("sys=/sys", f"sys={tmp_path}/sys"))
    records = [
        record("fabric-partition", f"3@{A}+{B}", "active: modules 1, 12"),
        record("fabric-partition", f"8@{C}", "active: modules 2"),
        record("vgpu-type", VF, "1414"),
        record("vgpu-mdev", f"{UUID} {VF}", "nvidia-474"),
    ]
    guests = [guest("vm", A, B), guest("v.m", C), guest("vgpu", VF, kind="vf"), guest("mdev", UUID, kind="mdev")]
    (tmp_path / "at-start").write_text(list_at_start(guests, records, ("fmpm", "--hostname", "127.0.0.1")))

    def run(xml: str, name: str = "vm", operation: str = "prepare") -> subprocess.CompletedProcess[str]:
        argv = ["sh", str(tmp_path / "hook"), name, operation, "begin", "-"]
        path = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        return subprocess.run(argv, input=xml, capture_output=True, text=True, check=False, env=path)

    return run


def test_an_inactive_partition_is_activated_and_noted(tmp_path: Path, start: Start) -> None:
    board(tmp_path)
    ended = start(definition(A, B))
    assert (ended.returncode, ended.stderr, active(tmp_path)) == (0, "", [3])
    assert "vm partition 3 activated\n" in (tmp_path / "at-start.log").read_text()
    ran = (tmp_path / "fm.ran").read_text().splitlines()
    assert ran == ["--hostname 127.0.0.1 -l", "--hostname 127.0.0.1 -a 3", "--hostname 127.0.0.1 -l"]
    assert start(definition(A, B)).returncode == 0
    assert (tmp_path / "at-start.log").read_text().count("\n") == 1  # it was active already


def test_a_fabric_manager_that_answers_late_is_waited_for(tmp_path: Path, start: Start) -> None:
    board(tmp_path, deaf=2)
    assert start(definition(A, B)).returncode == 0
    assert active(tmp_path) == [3]


def until_ended(group: int) -> None:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("it still waits")


def test_a_refused_start_sets_nothing_later(tmp_path: Path, start: Start) -> None:
    """What waits for the Fabric Manager ends with the refusal; the GPUs may be another guest's by then."""
    board(tmp_path, deaf=99)
    argv = ["sh", str(tmp_path / "hook"), "vm", "prepare", "begin", "-"]
    path = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=path,
                          start_new_session=True) as hook:  # fmt: skip
        assert "not ready within 20 seconds" in hook.communicate(definition(A, B))[1]
    board(tmp_path)
    until_ended(hook.pid)
    assert (active(tmp_path), [*tmp_path.glob("at-start.*")]) == ([], [])


@pytest.mark.parametrize(
    ("changes", "devices", "why"),
    [
        ({"table": {"3": [5, 7]}}, (A, B), "partition 3 has not module ids 1,12 now"),
        ({"active": [7]}, (A, B), "partition 7 is active and has GPUs of partition 3"),
        ({"active": [0]}, (A, B), "partition 0 is active and has GPUs of partition 3"),
        ({"refuses": True}, (A, B), "fmpm -a 3 failed"),
        ({}, (A,), f"it has not {B}, which is of partition 3"),
        ({}, (A, B, C), f"it has {C}, which is not of partition 3"),
        ({"active": [3]}, (A, B, C), f"it has {C}, which is not of partition 3"),
    ],
)
def test_a_start_on_another_partition_is_refused(
    tmp_path: Path, start: Start, changes: Mapping[str, object], devices: tuple[str, ...], why: str
) -> None:
    board(tmp_path, **changes)
    before, begun = active(tmp_path), time.monotonic()
    ended = start(definition(*devices))
    assert ended.returncode == 1
    assert why in ended.stderr
    assert "hosttune apply, then start it" in ended.stderr
    assert active(tmp_path) == before
    assert time.monotonic() - begun < 24


def test_other_guests_and_other_operations_are_left_alone(tmp_path: Path, start: Start) -> None:
    board(tmp_path)
    for name, operation in (
        ("vim", "prepare"),
        ("vm", "start"),
        ("vm", "stopped"),
        ("vm", "release"),
        ("v", "prepare"),
    ):
        assert start(definition(A, B), name, operation).returncode == 0
    assert not (tmp_path / "fm.ran").exists()


def test_a_function_gets_its_type(tmp_path: Path, start: Start) -> None:
    board(tmp_path)
    file = tmp_path / f"sys/bus/pci/devices/{VF}/nvidia/current_vgpu_type"
    file.parent.mkdir(parents=True)
    for held, code in (("0", 0), ("1414", 0), ("1428", 1)):
        file.write_text(held)
        assert start(definition(VF), "vgpu").returncode == code
        assert file.read_text() == (held if code else "1414")
    file.unlink()
    assert start(definition(VF), "vgpu").returncode == 1


@pytest.mark.parametrize("answer", ["1414", "0"])
def test_a_refused_start_gives_no_type_later(tmp_path: Path, start: Start, answer: str) -> None:
    """A driver that hangs answers after the refusal: neither its function nor the next one gets a type then."""
    other = "0000:41:00.5"
    slow, next_one = (tmp_path / f"sys/bus/pci/devices/{f}/nvidia/current_vgpu_type" for f in (VF, other))
    for file in (slow, next_one):
        file.parent.mkdir(parents=True)
    os.mkfifo(slow)
    next_one.write_text("0")
    with (tmp_path / "at-start").open("a") as listed:
        listed.write(f"vgpu vgpu-type {other} 1414\n")
    text = (tmp_path / "hook").read_text()
    (tmp_path / "hook").write_text(text.replace("timeout 18 ", "timeout 1 "))
    argv = ["sh", str(tmp_path / "hook"), "vgpu", "prepare", "begin", "-"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as hook:  # fmt: skip
        assert "not ready within 20 seconds" in hook.communicate(definition(VF))[1]
    slow.write_text(answer)
    until_ended(hook.pid)
    assert (next_one.read_text(), (tmp_path / "at-start.log").exists()) == ("0", False)


def test_a_mediated_device_of_another_type_is_refused(tmp_path: Path, start: Start) -> None:
    board(tmp_path)
    made = tmp_path / "sys/bus/mdev/devices" / UUID
    made.mkdir(parents=True)
    (made / "mdev_type").symlink_to("../../x/nvidia-475")
    ended = start(definition(mdevs=[UUID]), "mdev")
    assert (ended.returncode, f"{UUID} is of type nvidia-475, not nvidia-474" in ended.stderr) == (1, True)
    (made / "mdev_type").unlink()
    (made / "mdev_type").symlink_to("../../x/nvidia-474")
    assert start(definition(mdevs=[UUID]), "mdev").returncode == 0
