"""Four days of two groups, a host each: editing variables and running again is enough. Undone, every byte is back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import applyroots
import pytest
from applyroots import PREFERENCE
from fleethosts import HOSTTUNE, Fleet, simulated
from sweeps import FULL
from system.test_fleet_playbooks_waves import PASSED, instead, says

from hosttune.cli import run as cli
from hosttune.machine.scratch import Scratch
from hosttune.transaction.site import site_of

RUNS = ".hosttune/commands/virsh-domstate-a"
GROUPS = "all: {children: {training: {hosts: {one: }}, inference: {hosts: {two: }}}}\n"


def guest(name: str, memory: str) -> str:
    return f"{{name: {name}, gpus: 1, memory: {memory}, networks: [{{network: default}}]}}"


def write(folder: Path, name: str, *guests: str, more: str = "") -> None:
    """The variables of a group or a host, written anew."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"hosttune_intent: {{version: 1, guests: [{', '.join(guests)}]{more}}}\n")


def in_force(fleet: Fleet, host: str) -> dict[str, Any]:
    """The guests in force of a host, by name."""
    known = site_of(Scratch(str(fleet.root(host).path))).in_force()
    assert known is not None
    return {guest.name: guest for guest in known.guests}


def by_fleet(fleet: Fleet, verb: str, code: int = 0) -> str:
    """`hosttune fleet VERB` on all hosts at once, as people call it."""
    words = [HOSTTUNE, "fleet", verb, "-i", str(fleet.inventory()), "-i", str(fleet.folder / "groups.yml"), "--yes"]
    done = subprocess.run(
        [*words, "--waves", "100%", "--results", str(fleet.results)],
        capture_output=True, text=True, check=False, cwd=fleet.folder, env=fleet.environment(), timeout=300,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def by_playbook(fleet: Fleet, verb: str, code: int = 0) -> str:
    """The playbook itself, by ansible-playbook."""
    return fleet.play(verb, "-i", str(fleet.folder / "groups.yml"), waves=["100%"], code=code).out


@pytest.mark.parametrize("run", [by_fleet, *([by_playbook] if FULL else [])])
def test_four_days(run: Callable[..., str], pristine: Path, tmp_path: Path) -> None:
    with simulated(pristine, tmp_path, ("one", "two")) as fleet:
        fleet.variables.clear()
        fleet.variables["hosttune_prune"] = True
        # What a host's validation says counts on the fourth day.
        fleet.variables["hosttune_command"] = instead(tmp_path, validate=says(PASSED))
        (tmp_path / "groups.yml").write_text(GROUPS)

        # The first day, by hand: each group its guests.
        write(tmp_path, "group_vars/training.yml", guest("a", "32GiB"), guest("b", "32GiB"))
        write(tmp_path, "group_vars/inference.yml", guest("c", "32GiB"))
        for host, group in (("one", "training"), ("two", "inference")):
            intent = tmp_path / f"{group}.yml"
            intent.write_text((tmp_path / f"group_vars/{group}.yml").read_text().removeprefix("hosttune_intent: "))
            assert cli(["apply", "--root", str(fleet.root(host).path), "--intent", str(intent), "--yes"]) == 0
        assert [list(in_force(fleet, host)) for host in fleet.hosts] == [["a", "b"], ["c"]]
        first = {host: in_force(fleet, host) for host in fleet.hosts}

        # The second: the group's variable is edited, one host says something else.
        write(tmp_path, "group_vars/training.yml", guest("a", "48GiB"), guest("b", "32GiB"))
        write(tmp_path, "host_vars/one.yml", guest("a", "40GiB"), more=", settings: {thp: never}")
        run(fleet, "apply")
        second = {host: in_force(fleet, host) for host in fleet.hosts}
        assert second["one"]["a"].request.memory == "40GiB"
        was, now = first["one"]["b"].places, second["one"]["b"].places
        assert (was.vcpu_pins, was.cells, was.devices) == (now.vcpu_pins, now.cells, now.devices)
        assert fleet.outcomes("apply") == dict.fromkeys(fleet.hosts, "ok")
        assert len(fleet.root("two").journals()) == 1  # nothing changed there, and nothing was written

        # The third: a guest leaves its group, a host changes hands, somebody writes a setting by hand.
        write(tmp_path, "group_vars/training.yml", guest("a", "48GiB"))
        write(tmp_path, "group_vars/inference.yml", guest("d", "32GiB"))
        fleet.root("one").put(PREFERENCE.format(3), "balance_power\n")
        run(fleet, "apply")
        assert [list(in_force(fleet, host)) for host in fleet.hosts] == [["a"], ["d"]]
        assert fleet.root("one").get(PREFERENCE.format(3)) == "performance"

        # The fourth: the variables of the first day again.
        write(tmp_path, "group_vars/training.yml", guest("a", "32GiB"), guest("b", "32GiB"))
        write(tmp_path, "group_vars/inference.yml", guest("c", "32GiB"))
        (tmp_path / "host_vars/one.yml").unlink()
        fleet.root("one").put(RUNS, "running\n")
        del fleet.variables["hosttune_command"]
        # Of a guest that runs on a scratch root too little is known; Ansible's own exit code is 2.
        out = run(fleet, "apply", 1 if run is by_fleet else 2)
        assert ("one (a)" if run is by_fleet else "one: apply: update pending: a") in out
        assert fleet.outcomes("apply") == dict.fromkeys(fleet.hosts, "ok")
        (fleet.root("one").path / RUNS).unlink()
        last = {host: in_force(fleet, host) for host in fleet.hosts}
        assert {host: {name: one.request for name, one in guests.items()} for host, guests in last.items()} == {
            host: {name: one.request for name, one in guests.items()} for host, guests in first.items()
        }
        for host in fleet.hosts:  # by the fleet: test_fleet_ssh
            assert cli(["revert", "--root", str(fleet.root(host).path), "--yes"]) == 0
            left = {name for name in fleet.root(host).differences(pristine) if not name.startswith("var")}
            assert {name for name in left if not name.startswith(applyroots._LEFT_BEHIND)} == set(), json.dumps([*left])
