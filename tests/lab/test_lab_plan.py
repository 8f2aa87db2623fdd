"""Plans made on a real kernel, against what other tools say of it. Guests that run: test_lab_apply, test_lab_guests."""

from __future__ import annotations

from typing import Any

import pytest

from lab import facts
from lab.machine import LabMachine
from lab.product import discover, document_of, plan

pytestmark = pytest.mark.lab

Document = dict[str, Any]
GPU = "0000:41:00.0"
INTENT: Document = {
    "version": 1,
    "profile": "none",
    "guests": [
        {
            "name": "inner",
            "gpus": [GPU],
            "vcpus": 2,
            "memory": "512MiB",
            "hugepages": "2MiB",
            "firmware": "bios",
            "accelerator": "tcg",
        }
    ],
}


# --- plans ----------------------------------------------------------------------------------------------------


def test_a_named_gpu_of_no_known_maker_gets_the_share_of_its_node(lab: LabMachine) -> None:
    """A core stays with the host on each node: what is left of node 0 is one core, the only GPU counted takes it."""
    planned = document_of(lab.shell(f"hosttune plan --gpu {GPU} -o json"))
    (guest,) = planned["guests"]
    assert planned["unplaced"] == []
    assert [pin["cpus"] for pin in guest["vcpu_pins"]] == ["2", "3"]
    assert [(cell["host_nodes"], cell["vcpus"]) for cell in guest["cells"]] == [("0", "0-1")]
    assert [(device["address"], device["kind"]) for device in guest["devices"]] == [(GPU, "gpu")]
    assert planned["housekeeping_cpus"] == "0-1,4-5"
    node = facts.nodes_of_numactl(lab)[0]
    assert 1024 <= guest["cells"][0]["memory_bytes"] >> 20 <= node["mib"] * 3 // 4


@pytest.mark.parametrize(("address", "node"), [("0000:42:00.0", 0), ("0000:45:00.0", 0), ("0000:c1:00.0", 1)])
def test_cpus_and_memory_follow_the_gpu(lab: LabMachine, address: str, node: int) -> None:
    planned = document_of(lab.shell(f"hosttune plan --gpu {address} -o json"))
    (guest,) = planned["guests"]
    near = facts.nodes_of_numactl(lab)[node]["cpus"]
    assert {int(pin["cpus"]) for pin in guest["vcpu_pins"]} <= near
    assert {cell["host_nodes"] for cell in guest["cells"]} == {str(node)}
    # A port of the switch is in the group of 45:00.0; it is a bridge, and stays.
    assert [device["address"] for device in guest["devices"]] == [address]


def test_a_live_plan_is_saved_in_the_state_directory(lab: LabMachine) -> None:
    lab.shell("rm -rf /var/lib/hosttune")
    planned = plan(lab, INTENT)
    assert lab.shell("ls -A /var/lib/hosttune").split() == ["plan.json"]
    assert document_of(lab.shell("cat /var/lib/hosttune/plan.json")) == planned
    assert planned["host_digest"] == discover(lab)["digest"] is not None


def test_the_same_host_and_intent_give_the_same_plan(lab: LabMachine) -> None:
    assert plan(lab, INTENT) == plan(lab, INTENT)


def test_the_plan_needs_pages_and_the_binding(lab: LabMachine) -> None:
    actions = plan(lab, INTENT)["actions"]
    assert {action["kind"] for action in actions} == {"hugepages", "driver", "apparmor-rule"}
    assert {action["needed"] for action in actions} == {True}
