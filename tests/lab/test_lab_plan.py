"""Plans made on a real kernel, and a guest started from one: what the plan said against what libvirt and QEMU did."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from lab import facts
from lab.machine import LabMachine
from lab.product import discover, document_of, plan

pytestmark = pytest.mark.lab

Document = dict[str, Any]
GPU = "0000:41:00.0"
GUEST = "inner"
FILES = "/var/lib/hosttune-lab"
START_SECONDS = 300
CONSOLE_SECONDS = 900
INTENT: Document = {
    "version": 1,
    "profile": "none",
    "guests": [
        {
            "name": GUEST,
            "gpus": [GPU],
            "vcpus": 2,
            "memory": "512MiB",
            "hugepages": "2MiB",
            "firmware": "bios",
            "accelerator": "tcg",
            "boot": {
                "kernel": f"{FILES}/vmlinux",
                "initrd": f"{FILES}/initramfs.cpio",
                "cmdline": "console=ttyS0 quiet mitigations=off tsc=reliable nokaslr panic=-1",
            },
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


# --- a guest from a plan --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planned(lab: LabMachine) -> Document:
    """The plan of the guest that is started below."""
    return plan(lab, INTENT)


@pytest.fixture(scope="module")
def running(lab: LabMachine, planned: Document) -> Iterator[int]:
    """The process of the guest, started from the plan's XML after the plan's needed actions, done by hand."""
    lab.shell(f"hosttune plan -f - -o xml >/root/{GUEST}.xml", stdin=json.dumps(INTENT))
    lab.shell(f"virsh define --validate /root/{GUEST}.xml")
    for action in planned["actions"]:
        _carry_out(lab, action)
    try:
        lab.shell(f"virsh start {GUEST}", timeout=START_SECONDS)
        lab.shell(f"cat $(virsh ttyconsole {GUEST}) >/root/console 2>/dev/null </dev/null &")
        yield int(lab.shell(f"cat /run/libvirt/qemu/{GUEST}.pid"))
    finally:
        lab.shell(f"virsh destroy {GUEST}; virsh undefine {GUEST}", check=False)
        lab.shell(f"echo {GPU} >/sys/bus/pci/drivers/vfio-pci/unbind; echo >/sys/bus/pci/devices/{GPU}/driver_override")
        pages = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
        lab.shell(f"echo 0 >{pages}; rm -f /root/console /root/{GUEST}.xml")


def _carry_out(lab: LabMachine, action: Document) -> None:
    """What an operator would type for an action; reads back, since a short allocation is no error to the kernel."""
    if action["kind"] == "hugepages":
        lab.shell(f"echo {action['want']} >{action['target']}")
        assert int(lab.shell(f"cat {action['target']}")) == action["want"]
    elif action["kind"] == "driver":
        device = f"/sys/bus/pci/devices/{action['target']}"
        lab.shell(f"modprobe {action['want']} && echo {action['want']} >{device}/driver_override")
        lab.shell(f"echo {action['target']} >/sys/bus/pci/drivers_probe")
        assert lab.shell(f"basename $(readlink {device}/driver)").strip() == action["want"]
    else:
        pytest.fail(f"an action that nobody asked for: {action}")


def test_the_plan_needs_pages_and_the_binding(planned: Document) -> None:
    assert {action["kind"] for action in planned["actions"]} == {"hugepages", "driver"}
    assert {action["needed"] for action in planned["actions"]} == {True}


def test_threads_run_where_the_plan_says(lab: LabMachine, planned: Document, running: int) -> None:
    (guest,) = planned["guests"]
    places = {f"CPU {pin['vcpu']}/TCG": pin["cpus"] for pin in guest["vcpu_pins"]}
    places |= {f"IO iothread{number}": cpus for number, cpus in enumerate(guest["iothread_cpus"], 1)}
    threads = facts.threads_of(lab, running)
    assert {name for name, _ in threads} >= set(places)
    for name, cpus in threads:
        assert cpus == places.get(name, guest["emulator_cpus"]), name


def test_memory_lies_where_the_plan_says(lab: LabMachine, planned: Document, running: int) -> None:
    (guest,) = planned["guests"]
    (cell,) = guest["cells"]
    mappings = facts.huge_pages_of(lab, running)
    assert {mapping.pop("kernelpagesize_kB") << 10 for mapping in mappings} == {guest["page_bytes"]}
    assert {node for mapping in mappings for node in mapping} == {f"N{cell['host_nodes']}"}
    assert sum(sum(mapping.values()) for mapping in mappings) * guest["page_bytes"] == cell["memory_bytes"]


def test_discovery_sees_what_the_guest_holds(lab: LabMachine, planned: Document, running: int) -> None:
    (guest,) = planned["guests"]
    document = discover(lab)
    (found,) = document["guests"]
    assert (found["name"], found["state"]) == (GUEST, "running")
    assert found["vcpu_pins"] == guest["vcpu_pins"]
    assert found["emulator_cpus"] == guest["emulator_cpus"]
    assert found["iothread_cpus"] == guest["iothread_cpus"]
    assert found["devices"] == [GPU]
    assert found["memory"] == [
        {"node": 0, "memory_bytes": guest["cells"][0]["memory_bytes"], "page_bytes": guest["page_bytes"]}
    ]
    (device,) = [device for device in document["pci"] if device["address"] == GPU]
    assert device["driver"] == "vfio-pci"
    pools = {pool["size_bytes"]: pool for pool in document["numa_nodes"][0]["hugepages"]}
    assert (pools[guest["page_bytes"]]["total"], pools[guest["page_bytes"]]["free"]) == (256, 0)


def test_a_held_gpu_is_not_given_away_again(lab: LabMachine, running: int) -> None:
    answer = lab.shell(f"hosttune plan --gpu {GPU} --name another -o json", check=False)
    assert answer.status == 1, answer.errors
    (unplaced,) = document_of(answer)["unplaced"]
    assert unplaced["guest"] == "another"
    assert any(GPU in why and GUEST in why for why in unplaced["why"]), unplaced["why"]


def test_the_guest_sees_its_device_at_the_planned_address(lab: LabMachine, planned: Document, running: int) -> None:
    """Its own kernel's words on its serial line; emulated twice, it takes minutes to get there."""
    wait = "for i in $(seq 800); do grep -q GUEST-DONE /root/console && break; sleep 1; done; cat /root/console"
    console = lab.shell(wait, timeout=CONSOLE_SECONDS)
    assert "GUEST-DONE" in console, console
    (guest,) = planned["guests"]
    devices = dict(re.findall(r"GUEST-PCI (\S+) (\S+ \S+) ", console))
    assert devices[guest["devices"][0]["guest_address"]] == "0x1234 0x1111"
    assert re.search(r"GUEST-CPUS 0-1\b", console)
