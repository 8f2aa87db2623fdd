"""`hosttune collective` and the options of `fleet collective`: what is refused, before anything is measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hosttune.cli import run
from hosttune.cli.between import refuse_used_gpus
from hosttune.cluster.collective.listing import listed
from hosttune.cluster.collectiveanswers import machines
from hosttune.discovery import discover
from hosttune.errors import Refused
from hosttune.machine.opening import open_system
from hosttune.model.collective import CollectiveJob, Member

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/hgx-h200-8.tar.xz"
NO_GPU = Path(__file__).resolve().parents[1] / "hosts/lscpu/arm-A510-A710-A715-X3.tar.gz"
TASK = {
    "group": "g", "hosts": ["a", "b"], "index": 0, "machines": [None, None], "address": "127.0.0.1", "port": 29500,
    "own": "127.0.0.1", "ranks": 1, "kinds": ["all-reduce"], "sizes": [4096], "device": "cpu",
}  # fmt: skip


def told(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    assert run(list(words)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("job", "said"),
    [("{", "not a JSON document"),
     ({"task": {**TASK, "kinds": ["scatter"]}}, "scatter"),
     ({"task": {**TASK, "address": "h1"}}, "job: task.address"),
     ({"task": {**TASK, "port": 70000}}, "70000 is not 1 to 65535"),
     ({"task": {**TASK, "hosts": ["a", "a"]}}, "different hosts"),
     ({"task": 7}, "not a job")],
)  # fmt: skip
def test_a_job_that_is_none_is_bad_input(
    job: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.json"
    path.write_text(job if isinstance(job, str) else json.dumps(job))
    assert said in told(capsys, 2, "collective", "-f", str(path))


def test_a_captured_host_takes_no_part_and_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"task": TASK, "disrupt": True}))
    assert "a captured host has no network" in told(capsys, 3, "collective", "--root", str(EXAMPLE), "-f", str(path))
    assert run(["collective", "--root", str(EXAMPLE), "-o", "json"]) == 0
    found = Member.from_json(capsys.readouterr().out)
    assert found.library is None
    assert f"PyTorch was not looked for: {sys.executable} cannot run on a captured host" in found.notes
    assert found.environment == {}
    assert found.wiring is not None
    assert (found.wiring.per_host, found.gpus_present) == (8, 8)


def test_infiniband_without_its_rdma_device_is_not_measured_by_tcp() -> None:
    """The module that makes the devices is not loaded, on all hosts alike: figures of TCP would look as predicted."""
    system = open_system(str(EXAMPLE))
    host = discover(system)
    assert listed(system, host, CollectiveJob()).rdma is True
    lost = replace(host, nics=tuple(replace(nic, rdma=None) for nic in host.nics))
    found = listed(system, lost, CollectiveJob())
    assert found.rdma is None
    assert not machines([found, found], 8, "gpu").tcp
    plain = replace(lost, nics=tuple(replace(nic, kind="ethernet") for nic in lost.nics))
    assert listed(system, plain, CollectiveJob()).rdma is False


def test_gpus_that_nobody_knows_are_refused() -> None:
    """A host of which no GPU is known: what PyTorch would load there is not known either."""
    system = open_system(str(NO_GPU))
    assert not discover(system).gpus
    with pytest.raises(Refused, match="no GPU is known here"):
        refuse_used_gpus(system)


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--from", "8", "--to", "4"), "--from 8 --to 4"),
     (("--size", "1KiB", "--size", "1"), "1KiB to 64GiB each"),
     (("--size", "many"), "many"),
     (("--window", "1-2"), "no time window"),
     (("--disrupt", "h9"), "no host 'h9'"),
     (("--least", "nan"), "nan"),
     (("--resume",), "no run of collective to continue")],
)  # fmt: skip
def test_options_that_make_no_sense_are_bad_input(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--results", str(tmp_path / "results"))
    assert said in told(capsys, 2, "fleet", "collective", "-i", "h1,h2", *where, *words)
