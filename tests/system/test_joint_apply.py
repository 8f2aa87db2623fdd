"""`apply` of two guests in one plan on a scratch root: rehearsed, done, done again, read back and taken back."""

from __future__ import annotations

import json
from pathlib import Path

import applyroots
import pytest
from applyroots import GPU, OTHER_GPU, STATE, Cli, outcomes, planned
from fabricroots import active
from xmledits import edited

from hosttune.domain.reader import read_domain
from hosttune.domain.writer import domain_xml
from hosttune.model.plan import Plan

INTENT = f"""
version: 1
guests:
- {{name: near, gpus: ["{GPU}"], vcpus: 8, memory: 32GiB, accelerator: tcg, networks: [{{network: default}}]}}
- {{name: far, gpus: ["0000:9a:00.0"], vcpus: 7, memory: 16GiB, hugepages: 2MiB, accelerator: tcg,
   networks: [{{network: default}}]}}
"""
FAR_GPU = "0000:9a:00.0"
POOL = "sys/devices/system/node/node{}/hugepages/hugepages-{}kB/nr_hugepages"
DEFINED = ".hosttune/commands/virsh-dumpxml-{}"

root = applyroots.root
cli = applyroots.cli


@pytest.fixture(scope="module")
def plan(pristine: Path) -> Path:
    """A plan of two guests, on a node each."""
    path = pristine.parent / "joint.yaml"
    path.write_text(INTENT)
    return planned(pristine, "joint", "-f", str(path))


def guests_of(plan: Path) -> dict[str, dict[str, object]]:
    """The planned guests by name."""
    return {guest["name"]: guest for guest in json.loads(plan.read_text())["guests"]}


def test_the_plan_has_both(plan: Path) -> None:
    assert list(guests_of(plan)) == ["near", "far"]


def test_a_rehearsal_names_everything_and_writes_nothing(cli: Cli, plan: Path) -> None:
    before = cli.root.tree()
    found = cli.json("apply", str(plan), "--dry-run")
    assert cli.root.tree() == before
    assert found["changed"] is False
    ids = {row["id"] for row in json.loads(plan.read_text())["actions"]}
    assert ids <= set(outcomes(found))
    for name in ("near", "far"):
        assert any(action.startswith("guest") and action.endswith(f":{name}") for action in outcomes(found)), name


def test_both_guests_get_what_they_need(cli: Cli, plan: Path) -> None:
    found = cli.json("apply", str(plan), "--yes")
    assert found["changed"] is True
    assert set(outcomes(found).values()) <= {"done", "pending", "already"}
    assert cli.root.get(POOL.format(0, 1048576)) == "32"
    assert cli.root.get(POOL.format(1, 2048)) == str(16 << 9)
    assert {cli.root.driver(GPU), cli.root.driver(FAR_GPU)} == {"vfio-pci"}
    assert cli.root.driver(OTHER_GPU) == "nvidia"
    whole = Plan.from_json(plan.read_text())
    for name in ("near", "far"):
        xml = cli.root.get(DEFINED.format(name))
        assert read_domain(xml) == read_domain(domain_xml(whole, name))
        assert cli.root.get(f"{STATE}/guests/{name}/user-data").startswith("#cloud-config")


def test_status_knows_both_and_finds_no_drift(cli: Cli, plan: Path) -> None:
    assert cli("apply", str(plan), "--yes")[0] == 0
    found = cli.json("status")
    assert found["drift"] == []
    assert found["open_transaction"] is None
    for name in ("near", "far"):
        assert any(action.endswith(f":{name}") for action in outcomes(found)), name


def test_drift_of_one_guest_is_told_of_that_one(cli: Cli, plan: Path) -> None:
    assert cli("apply", str(plan), "--yes")[0] == 0
    cli.root.put(POOL.format(1, 2048), "0\n")
    found = cli.json("status", code=1)
    told = json.dumps(found["drift"])
    assert "node1/hugepages/hugepages-2048kB" in told
    assert "node0" not in told


def test_drift_of_a_definition_names_what_was_edited(cli: Cli, plan: Path) -> None:
    assert cli("apply", str(plan), "--yes")[0] == 0
    xml = cli.root.get(DEFINED.format("far"))
    pin = next(guest for guest in Plan.from_json(plan.read_text()).guests if guest.name == "far").vcpu_pins[1].cpus
    cli.root.put(DEFINED.format("far"), edited(xml, "cputune/vcpupin[@vcpu='1']", {"cpuset": "0"}))
    (drift,) = cli.json("status", code=1)["drift"]
    assert (drift["action"], drift["why"]) == (
        "guest:far",
        f"vcpupin of vCPU 1: wanted host CPUs {pin}, found host CPUs 0",
    )
    assert drift["actual"] != drift["expected"]
    code, out, _ = cli("status")
    assert code == 1
    assert f"vcpupin of vCPU 1: wanted host CPUs {pin}, found host CPUs 0" in " ".join(out.split())


def test_a_guest_with_a_managed_save_is_not_redefined(cli: Cli, plan: Path) -> None:
    """libvirt would start it from the saved state, with the definition that it had then."""
    assert cli("apply", str(plan), "--yes")[0] == 0
    xml = edited(cli.root.get(DEFINED.format("far")), "cputune/vcpupin[@vcpu='1']", {"cpuset": "0"})
    cli.root.put(DEFINED.format("far"), xml)
    cli.root.put("var/lib/libvirt/qemu/save/far.save", "")
    found = cli.json("apply", str(plan), "--yes")
    assert outcomes(found)["guest:far"] == "pending"
    (row,) = [row for row in found["entries"] if row["action"] == "guest:far"]
    assert "it has a managed save" in row["why"]
    assert "virsh managedsave-remove far" in row["why"]
    assert cli.root.get(DEFINED.format("far")) == xml
    (cli.root.path / "var/lib/libvirt/qemu/save/far.save").unlink()
    assert outcomes(cli.json("apply", str(plan), "--yes"))["guest:far"] == "done"


def test_a_second_apply_changes_nothing(cli: Cli, plan: Path) -> None:
    assert cli("apply", str(plan), "--yes")[0] == 0
    before = cli.root.tree()
    found = cli.json("apply", str(plan), "--yes")
    after = cli.root.tree()
    assert {name for name in before | after if before.get(name) != after.get(name)} <= {f"{STATE}/lock"}
    assert found["changed"] is False
    assert set(outcomes(found).values()) <= {"already", "pending"}


def test_revert_gives_back_what_both_took(cli: Cli, plan: Path) -> None:
    before = cli.root.contents()
    assert cli("apply", str(plan), "--yes")[0] == 0
    assert cli.root.contents() != before
    assert cli("revert", "--yes")[0] == 0
    assert cli.root.contents() == before
    assert cli.json("status")["entries"] == []


def test_no_guests_prepares_the_host_for_both_and_defines_none(cli: Cli, plan: Path) -> None:
    found = cli.json("apply", str(plan), "--yes", "--no-guests")
    assert [name for name in outcomes(found) if name.startswith("guest")] == []
    assert {cli.root.driver(GPU), cli.root.driver(FAR_GPU)} == {"vfio-pci"}
    for name in ("near", "far"):
        assert not (cli.root.path / DEFINED.format(name)).exists()
    assert not (cli.root.path / STATE / "guests").exists()


def test_both_are_started_on_their_partitions(cli: Cli, plan: Path) -> None:
    partitions = {guest["fabric_partition"] for guest in guests_of(plan).values()}
    found = outcomes(cli.json("apply", str(plan), "--yes", "--start"))
    assert {found["guest-state:near"], found["guest-state:far"]} == {"done"}
    assert set(active(cli.root.path)) == partitions


def test_after_one_is_there_the_next_plan_keeps_away_from_both(cli: Cli, plan: Path, tmp_path: Path) -> None:
    """[plan] A guest defined here, running or not, keeps its CPUs, pages and devices."""
    assert cli("apply", str(plan), "--yes")[0] == 0
    path = tmp_path / "third.yaml"
    path.write_text("version: 1\nguests: [{name: third, gpus: 6, vcpus: 8, memory: 16GiB}]\n")
    code, out, err = cli("plan", "-f", str(path), "-o", "json")
    found = json.loads(out)
    assert (code, found["guests"]) == (1, []), err
    held = " ".join(found["unplaced"][0]["why"])
    assert GPU in held or "6" in held
    path.write_text("version: 1\nguests: [{name: third, gpus: 1, vcpus: 160, memory: 16GiB}]\n")
    code, out, err = cli("plan", "-f", str(path), "-o", "json")
    assert code == 0, err
    (third,) = json.loads(out)["guests"]
    mine = {pin["cpus"] for pin in third["vcpu_pins"]}
    for guest in guests_of(plan).values():
        pins = guest["vcpu_pins"]
        assert isinstance(pins, list)
        assert not mine & {pin["cpus"] for pin in pins}
    assert {GPU, FAR_GPU}.isdisjoint(device["address"] for device in third["devices"])
