"""Hosts of a group, each with its own address of the loopback: they meet, measure and end, or say why not.

The collectives are those of the stand-in for PyTorch (collectivehosts); everything else is what a host runs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from collectivehosts import standin_torch
from msgspec.structs import replace
from namespaces import ended, until

from hosttune.cluster.collective.child import is_of_all
from hosttune.cluster.collective.listing import _library
from hosttune.cluster.collective.meeting import listen
from hosttune.cluster.collective.member import check_task, environment, take_part
from hosttune.errors import BadInput
from hosttune.machine.live import LiveMachine
from hosttune.model.collective import Member, Task

NAMES = ("gpu-1", "gpu-2", "gpu-3")
ROOT = Path(__file__).resolve().parents[2]


def no_command(argv: tuple[str, ...], limit: float) -> str:
    raise AssertionError(argv)


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return standin_torch(tmp_path_factory.mktemp("standin") / "site")


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def task(index: int, port: int, count: int = 2, **changes: Any) -> Task:
    made = Task(
        group="run/1/0", hosts=NAMES[:count], index=index, machines=tuple(f"boot-{name}" for name in NAMES[:count]),
        address="127.0.0.1", port=port, own=f"127.0.0.{index + 1}", ranks=1, kinds=("all-reduce", "all-gather"),
        sizes=(4096,), device="cpu", library="torch 2.11.0, nccl None, cpu", runs=2, run_seconds=0.001, seconds=20,
        wait=8,
    )  # fmt: skip
    return replace(made, **changes)


def variables(torch: Path | None, told: Mapping[str, object] | None = None) -> dict[str, str]:
    own = {"PATH": os.environ["PATH"], "NCCL_DEBUG": "INFO", "STANDIN": json.dumps(told or {})}
    return own if torch is None else {**own, "PYTHONPATH": str(torch)}


def measure(
    torch: Path | None, port: int, count: int = 2, told: Mapping[int, Mapping[str, object]] | None = None,
    changes: Mapping[int, Mapping[str, Any]] | None = None, who: Callable[[str], str] = lambda name: f"boot-{name}",
    **of_all: Any,
) -> list[Member]:  # fmt: skip
    """All hosts at once, each in a thread: the product's own processes begin below it."""

    def host(index: int) -> Member:
        own = task(index, port, count, **{**of_all, **(changes or {}).get(index, {})})
        about = Member(host=NAMES[index], machine=who(NAMES[index]))
        return take_part(own, about, no_command, variables=variables(torch, (told or {}).get(index)))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(host, range(count)))


def test_hosts_meet_measure_and_agree(torch: Path, port: int) -> None:
    found = measure(torch, port, 3, ranks=2, sizes=(4096, 8192))
    assert [(one.outcome, one.ranks, one.why) for one in found] == [("measured", 6, None)] * 3
    assert [(one.kind, one.size_bytes, one.ranks) for one in found[0].timings] == [
        ("all-reduce", 4096, 6), ("all-gather", 4080, 6), ("all-reduce", 8192, 6), ("all-gather", 8184, 6),
    ]  # fmt: skip
    assert found[0].timings == found[1].timings == found[2].timings
    assert found[1].environment == {"NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize("value", ["nan", "1.5"])
def test_wrong_values_are_no_figure_and_name_whose_part_it_is(torch: Path, port: int, value: str) -> None:
    found = measure(torch, port, 3, told={1: {"wrong": 1, "by": value}})
    assert [one.outcome for one in found] == ["wrong"] * 3
    assert "all-reduce of 4096 bytes gave wrong values" in str(found[0].why)
    assert found[0].accused == found[2].accused == ("gpu-2",)  # the all-gather tells


def test_a_rank_that_dies_ends_the_group_at_once(torch: Path, port: int) -> None:
    found = measure(torch, port, 3, told={2: {"dies": True}}, seconds=60)
    assert found[2].outcome == "tool-failed"
    assert "SIGKILL" in str(found[2].why)
    assert found[0].outcome in ("member-lost", "collective-failed")
    assert found[1].outcome in ("member-lost", "collective-failed")


def test_an_error_of_the_library_is_one_of_the_group(torch: Path, port: int) -> None:
    said = "NCCL error: unhandled system error, remote process exited"
    found = measure(torch, port, told={0: {"raises": said}, 1: {"raises": said}})
    assert [one.outcome for one in found] == ["collective-failed"] * 2 or "member-lost" in [
        one.outcome for one in found
    ]
    assert "unhandled system error" in " ".join(str(one.why) for one in found)
    assert is_of_all("RuntimeError: [gloo] Timed out waiting 1000ms")
    assert not is_of_all("OutOfMemoryError: CUDA out of memory; NCCL")


def test_a_collective_that_hangs_ends_by_its_limit(torch: Path, port: int) -> None:
    found = measure(torch, port, told={0: {"hangs": True}, 1: {"hangs": True}}, seconds=1)
    assert {one.outcome for one in found} <= {"collective-failed", "member-lost"}
    assert "did not end in" in " ".join(str(one.why) for one in found)


def test_a_host_that_does_not_come_is_named(torch: Path, port: int) -> None:
    about = Member(machine="boot-gpu-1")
    found = take_part(task(0, port, wait=1), about, no_command, variables=variables(torch))
    assert (found.outcome, found.accused) == ("nobody-came", ("gpu-2",))
    alone = take_part(task(1, port, wait=1), about, no_command, variables=variables(torch))
    assert (alone.outcome, alone.accused) == ("connection-refused", ("gpu-1",))


def test_a_busy_port_and_an_address_of_another_host(torch: Path, port: int) -> None:
    with listen("127.0.0.1", port, 1):
        found = take_part(task(0, port, wait=1), Member(), no_command, variables=variables(torch))
    assert found.outcome == "port-busy"
    assert f"127.0.0.1 port {port}: Address already in use" in str(found.why)
    away = take_part(task(0, port, address="192.0.2.9", wait=1), Member(), no_command, variables=variables(torch))
    assert away.outcome == "wrong-fabric"


def test_strangers_are_told_so_and_cost_nobody_anything(torch: Path, port: int) -> None:
    """A port scanner, a host of another group, and one with a name that is not in this group."""
    told: list[str] = []

    def intrude() -> None:
        until(lambda: not _free(port), "the first host listens")
        with socket.create_connection(("127.0.0.1", port)) as scanner:
            scanner.sendall(b"GET / HTTP/1.0\r\n\n")
        for who in (
            {"group": "other"},
            {"group": "run/1/0", "host": "gpu-9", "index": 1},
            {"group": "run/1/0", "index": "x"},
        ):
            with socket.create_connection(("127.0.0.1", port)) as link:
                link.sendall(json.dumps(who).encode() + b"\n")
                told.append(link.makefile().readline())
        host = task(1, port)
        found.append(take_part(host, Member(machine="boot-gpu-2"), no_command, variables=variables(torch)))

    found: list[Member] = []
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(intrude)
        found.append(take_part(task(0, port), Member(machine="boot-gpu-1"), no_command, variables=variables(torch)))
        other.result()
    assert [one.outcome for one in found] == ["measured"] * 2
    assert [json.loads(one)["refused"].split()[-1] for one in told] == ["group", "group", "group"]


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_another_machine_in_a_hosts_place_is_refused(torch: Path, port: int) -> None:
    found = measure(torch, port, wait=2, who=lambda name: "boot-other" if name == "gpu-2" else f"boot-{name}")
    assert (found[0].outcome, found[0].accused) == ("other-member", ("gpu-2",))
    assert "another machine answers in its place" in str(found[0].why)
    assert found[1].outcome == "nobody-came"
    assert "another machine" in str(found[1].why)


def test_other_numbers_of_ranks_and_other_versions(torch: Path, port: int) -> None:
    found = measure(torch, port, wait=2, changes={1: {"ranks": 2}})
    assert "gpu-2 comes with 2 ranks, not 1" in str(found[0].why)
    older = measure(torch, port, told={1: {"torch": "2.5.0"}})
    assert older[1].outcome == "other-version"
    assert "this host has torch 2.5.0" in str(older[1].why)
    assert older[0].outcome in ("member-lost", "collective-failed")  # whichever it learns first
    wrong = measure(torch, port, told={0: {"world": 4}, 1: {"world": 4}})
    assert "not-understood" in {one.outcome for one in wrong}
    assert "4 ranks, not 2" in " ".join(str(one.why) for one in wrong)


def test_without_pytorch_it_is_said(port: int) -> None:
    found = measure(None, port)
    assert {one.outcome for one in found} <= {"not-installed", "member-lost"}
    assert "No module named 'torch'" in " ".join(str(one.why) for one in found)
    missing = take_part(replace(task(0, port), hosts=("a",), machines=(None,)), Member(), no_command, python="/nowhere")
    assert missing.outcome == "not-installed"


def test_another_way_to_the_first_host_is_the_wrong_fabric(port: int) -> None:
    def run(argv: tuple[str, ...], limit: float) -> str:
        return json.dumps([{"dst": "127.0.0.1", "dev": "mgmt0"}])

    found = take_part(task(1, port, interface="eth0"), Member(), run)
    assert found.outcome == "wrong-fabric"
    assert "leaves by mgmt0, not by eth0" in str(found.why)


KILLED = """
import sys
sys.path.insert(0, {root!r})
from hosttune.cluster.collective.member import take_part
from hosttune.model.collective import Member, Task
task = Task(group="g", hosts=("a",), index=0, machines=(None,), address="127.0.0.1", port={port}, own="127.0.0.1",
            ranks=2, kinds=("all-reduce",), sizes=(4096,), device="cpu", seconds=600)
take_part(task, Member(), None)
"""


def test_nothing_is_left_behind_when_a_host_is_killed(torch: Path, port: int) -> None:
    """The process that ansible has started is killed, without a word, while two ranks hang."""
    words = (sys.executable, "-c", KILLED.format(root=str(ROOT), port=port))
    with subprocess.Popen(words, env=variables(torch, {"hangs": True})) as host:
        below: list[int] = []

        def started() -> bool:
            below[:] = descendants(host.pid)
            return len(below) == 3  # the child and two ranks

        until(started, "two ranks run")
        host.send_signal(signal.SIGKILL)
    until(lambda: all(ended(pid) for pid in below), "child and ranks are gone", 20)


def descendants(pid: int) -> list[int]:
    from namespaces import children

    return [one for child in children(pid) for one in (child, *descendants(child))]


def test_the_environment_is_kept_as_it_is() -> None:
    """Those variables that the library reads are recorded."""
    own = {"NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "eth1", "HOME": "/root", "SECRET_TOKEN": "y"}
    assert environment(own) == {"NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "eth1"}


PLANTED = ("hosttune", "torch", "json", "importlib", "datetime", "numpy")


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with modules of somebody else, which say that they were imported."""
    place = tmp_path / "cwd"
    place.mkdir()
    for name in PLANTED:
        (place / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write('{name} ')\n")
    monkeypatch.chdir(place)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path / "imported"


def test_children_import_nothing_from_the_working_directory(planted: Path, torch: Path, port: int) -> None:
    found = measure(torch, port)
    assert [one.outcome for one in found] == ["measured"] * 2
    _library(LiveMachine(), sys.executable, [])
    assert not planted.exists(), planted.read_text()


def test_every_python_that_the_product_starts_is_told_not_to_look_there() -> None:
    """-P before -m or -c. The program of a collective is a folder, since another Python may not know -P."""
    starts = [
        (path.name, line.strip())
        for path in sorted((ROOT / "hosttune").rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(r'"-[mc]",', line) and re.search(r"executable|python", line)
    ]
    assert len(starts) == 5, starts
    assert [one for one in starts if '"-P"' not in one[1]] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("address", "-x"), ("own", "h1"), ("port", 0), ("seconds", 99999), ("ranks", 0), ("run_seconds", float("nan")),
     ("hosts", ("a", "a")), ("index", 5), ("sizes", ()), ("sizes", (1 << 60,)), ("kinds", ())],
)  # fmt: skip
def test_a_task_with_a_wrong_value_is_refused(name: str, value: Any) -> None:
    with pytest.raises(BadInput) as caught:
        check_task(replace(task(0, 29500), **{name: value}))
    assert caught.value.where.startswith("job: task.")


@pytest.mark.skipif(
    "HOSTTUNE_TORCH_PYTHON" not in os.environ, reason="needs a Python with PyTorch: HOSTTUNE_TORCH_PYTHON"
)
def test_gloo_itself_over_the_loopback(port: int) -> None:
    """PyTorch and gloo as they are: two hosts of two ranks, right values, the store at one address."""

    def host(index: int) -> Member:
        own = task(index, port, ranks=2, sizes=(1 << 20,), seconds=60, wait=30, own="127.0.0.1", library=None)
        given = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        python = os.environ["HOSTTUNE_TORCH_PYTHON"]
        return take_part(own, Member(machine=f"boot-{NAMES[index]}"), no_command, python=python, variables=given)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(host, range(2)))
    assert [(one.outcome, one.ranks, one.why) for one in found] == [("measured", 4, None)] * 2
    assert found[0].timings == found[1].timings
    assert len(found[0].timings) == 2
