"""`hosttune fleet collective` through Ansible, between hosts in network namespaces, with the stand-in for PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from collectivehosts import standin_torch
from pairhosts import HOSTTUNE, OWN_SYS
from sshhosts import SshFleet, ssh_fleet
from sweeps import FULL

from hosttune.model.collective import CollectiveReport


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshFleet]:
    """Hosts without sshd, with one port each."""
    folder = tmp_path_factory.mktemp("collective")
    with ssh_fleet(folder) as found:
        for number in range(4 if FULL else 2):
            found.host(f"gpu-{number + 1}", folder / "none", mounts=OWN_SYS, listening=False)
        yield found


def test_the_command_itself_through_ansible(fleet: SshFleet, tmp_path: Path) -> None:
    """Listing, series, wrong sums of one host, search, report; nothing of a default route is needed."""
    torch = standin_torch(tmp_path / "site")
    hosts = {}
    for number, host in enumerate(fleet.hosts):
        assert host.space is not None
        spoiled = {"wrong": "here"} if number == 3 else {}
        told = ("env", f"PYTHONPATH={torch}", f"STANDIN={json.dumps(spoiled)}", "NCCL_DEBUG=WARN", *HOSTTUNE)
        into = host.space.inside(*told, kinds=("--net", "--mount", "--pid"))
        hosts[host.name] = {"hosttune_command": into, "hosttune_interface": "eth0"}
    shared = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "inventory.yml").write_text(json.dumps({"all": {"hosts": hosts, "vars": shared}}))
    words = [*HOSTTUNE, "fleet", "collective", "-i", "inventory.yml", "--on", "cpu", "--size", "4KiB", "--from", "2"]
    words += ["--least", "0.000001", "--seconds", "20", "-o", "json"]
    words += [word for name in hosts for word in ("--disrupt", name)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    report = CollectiveReport.from_json(done.stdout or done.stderr)
    assert {one.outcome for one in report.hosts} == {"ok"}, done.stdout + done.stderr
    assert report.hosts[0].environment == {"NCCL_DEBUG": "WARN"}
    if not FULL:
        assert [(one.outcome, one.state) for one in report.groups] == [("measured", "good")], report.to_json()
        assert (done.returncode, report.verdict) == (0, "pass")
    else:
        assert (done.returncode, report.verdict) == (1, "fail")
        assert [(one.kind, one.hosts) for one in report.faults] == [("host", ("gpu-4",))], report.to_json()
        assert {one.outcome for one in report.groups} == {"measured", "wrong"}
    told_again = subprocess.run(
        [*HOSTTUNE, "fleet", "report"], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False
    )
    assert f"{report.verdict.upper()}  groups of hosts:" in told_again.stdout, told_again.stdout + told_again.stderr


@pytest.mark.skipif(
    "HOSTTUNE_TORCH_PYTHON" not in os.environ, reason="needs a Python with PyTorch: HOSTTUNE_TORCH_PYTHON"
)
def test_gloo_itself_finds_the_slow_link(tmp_path: Path) -> None:
    """PyTorch and gloo as they are, between three hosts; the link of one has 40 Mb/s, which is 0.005 GB/s."""
    with ssh_fleet(tmp_path) as found:
        hosts = {}
        for number in range(3):
            host = found.host(f"gpu-{number + 1}", tmp_path / "none", mounts=OWN_SYS, listening=False)
            assert host.space is not None
            into = host.space.inside(*HOSTTUNE, kinds=("--net", "--mount", "--pid"))
            hosts[host.name] = {"hosttune_command": into, "hosttune_interface": "eth0"}
        found.hosts[2].slow("40mbit")
        shared = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        (tmp_path / "inventory.yml").write_text(json.dumps({"all": {"hosts": hosts, "vars": shared}}))
        words = [
            *HOSTTUNE,
            "fleet",
            "collective",
            "-i",
            "inventory.yml",
            "--on",
            "cpu",
            "--size",
            "1MiB",
            "--from",
            "2",
        ]
        words += [
            "--least",
            "0.02",
            "--kind",
            "all-reduce",
            "--python",
            os.environ["HOSTTUNE_TORCH_PYTHON"],
            "-o",
            "json",
        ]
        words += [word for name in hosts for word in ("--disrupt", name)]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=500, check=False)
    report = CollectiveReport.from_json(done.stdout or done.stderr)
    assert [(one.kind, one.hosts) for one in report.faults] == [("host", ("gpu-3",))], report.to_json()
    low = [figure.busbw for one in report.groups if "gpu-3" in one.hosts for figure in one.figures]
    assert max(low) < 0.006
