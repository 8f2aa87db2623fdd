"""Two guests planned together, started together, and what each finds in itself; each against the plan of both.

One spans both nodes with a device on each. The other has a device and a NIC that share a switch of the host.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lab import facts
from lab.machine import LabMachine, booted
from lab.product import STATE, Ran, document_of, install, plan, run
from lab.secondday import NEW, THIRD, Lived, lived

pytestmark = pytest.mark.lab

Document = dict[str, Any]
WIDE, SWITCHED = "wide", "switched"
PASSED = {WIDE: ("0000:41:00.0", "0000:c1:00.0"), SWITCHED: ("0000:45:00.0", "0000:46:00.0")}
NIC = "0000:46:00.0"
CELLS = {WIDE: {0: "0-1", 1: "2-3"}, SWITCHED: {0: "0-1"}}
FILES = "/var/lib/hosttune-lab"
POOL = "/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages"
CONSOLE_SECONDS, ASK_SECONDS = 900, 15
BALANCING = "numa-balancing:kernel.numa_balancing"
GUEST: Document = {
    "hugepages": "2MiB",
    "firmware": "bios",
    "accelerator": "tcg",
    "boot": {
        "kernel": f"{FILES}/vmlinux",
        "initrd": f"{FILES}/tree.cpio",
        "cmdline": "console=ttyS0 quiet mitigations=off tsc=reliable nokaslr panic=-1",
    },
}
INTENT: Document = {
    "version": 1,
    "profile": "guest",
    "guests": [
        {"name": WIDE, "gpus": list(PASSED[WIDE]), "vcpus": 4, "numa": 2, "memory": "512MiB", **GUEST},
        {"name": SWITCHED, "gpus": ["0000:45:00.0"], "nics": [NIC], "vcpus": 2, "memory": "384MiB", **GUEST},
    ],
}
# The guest's init: what its kernel shows, mostly by the shell's own words (a new process is slow, emulated twice). A
# serial line that nobody listens to loses what is said, so it says everything again for each line that it reads.
INIT = """#!/bin/sh
/bin/busybox mount -t proc proc /proc; /bin/busybox mount -t sysfs sys /sys
while :; do
  echo GUEST-BEGIN
  read boot </proc/sys/kernel/random/boot_id; read up _ </proc/uptime; echo GUEST-UP $boot ${up%.*}
  for d in /sys/bus/pci/devices/*; do
    cd -P $d; read vendor <vendor; read device <device; read node <numa_node
    echo GUEST-PCI ${d##*/} ${vendor#0x}:${device#0x} $node ${PWD#/sys/devices/}
  done
  for n in /sys/devices/system/node/node[0-9]*; do
    read _ _ _ total _ <$n/meminfo; read distances <$n/distance
    echo GUEST-NODE ${n##*node} $(/bin/busybox cat $n/cpulist) $total $distances
  done
  echo GUEST-DONE
  while read -t 2 _; do :; done
  read _
done
"""
# QEMU's own functions (docs/specs/pci-ids.rst) and Texas Instruments' switch, which its generic switch ports are.
IDS = {
    "pcie-expander-bus": "1b36:000b",
    "pcie-root-port": "1b36:000c",
    "pcie-switch-upstream-port": "104c:8232",
    "pcie-switch-downstream-port": "104c:8233",
}
CHIPSET = {"0000:00:00.0", "0000:00:1f.0", "0000:00:1f.2", "0000:00:1f.3"}  # q35's, in every guest
VIRTIO = {"1af4:1043", "1af4:1044"}  # what the guest agent's channel is behind, and the random numbers' device


class Function(NamedTuple):
    """A PCI function as a guest's kernel shows it: "vendor:device", its node, its path from the root bus down."""

    ids: str
    node: int
    path: str


class Seen(NamedTuple):
    """What a guest finds in itself: functions by address; of each node CPUs, KiB of memory, distances.

    `boot`: what its kernel names this boot by; `up`: for how many seconds it runs.
    """

    functions: dict[str, Function]
    nodes: dict[int, tuple[str, int, list[int]]]
    boot: str
    up: int


class Before(NamedTuple):
    """The host before anything is applied: values that stand still, and files."""

    values: dict[str, str]
    files: dict[str, str]


class Started(NamedTuple):
    """The plan of both guests, its apply, and each guest's process and what it sees."""

    planned: Document
    ran: Ran
    processes: dict[str, int]
    seen: dict[str, Seen]


@pytest.fixture(scope="module")
def host(image: Path) -> Iterator[LabMachine]:
    """A host of its own with three cores on each node: one for the host, one for each guest."""
    with booted(image, cores=3) as machine:
        install(machine)
        pack = f"cpio -id --quiet <{FILES}/initramfs.cpio; cat >init; find . | cpio -o -H newc --quiet"
        tree = f"mkdir /run/tree; cd /run/tree; {pack} >{FILES}/tree.cpio; rm -r /run/tree"
        machine.shell(f"{tree}; modprobe vfio-pci", stdin=INIT)
        yield machine


@pytest.fixture(scope="module")
def before(host: LabMachine) -> Before:
    """The host before."""
    first = facts.snapshot(host)
    return Before(facts.still(facts.snapshot(host), first), facts.files_below(host, "/etc", "/usr/local", "/boot"))


@pytest.fixture(scope="module")
def started(host: LabMachine, before: Before) -> Started:
    """Both guests, planned in one intent and started by one apply."""
    planned = plan(host, INTENT)
    ran = run(host, "apply", "--start", "--yes")
    assert ran.status == 0, ran.errors or ran.document
    processes = {name: int(host.shell(f"cat /run/libvirt/qemu/{name}.pid")) for name in PASSED}
    return Started(planned, ran, processes, {name: see(host, name) for name in PASSED})


@pytest.fixture(scope="module")
def second(host: LabMachine, started: Started) -> Lived:
    """The second day, and what the guest that ran throughout says of itself after it."""
    return lived(host, INTENT)


@pytest.fixture(scope="module")
def reverted(host: LabMachine, second: Lived) -> Ran:
    """All shut off and everything taken back."""
    host.shell(f"virsh destroy {WIDE}")
    return run(host, "revert", "--yes")


def see(host: LabMachine, name: str) -> Seen:
    """What a guest says of itself on its serial line; emulated twice, it takes minutes to get there."""
    whole = "sed -n '/GUEST-BEGIN/,/GUEST-DONE/{p;/GUEST-DONE/q}'"
    line = host.shell(f"virsh ttyconsole {name}").strip()
    deadline = time.monotonic() + CONSOLE_SECONDS
    while True:
        # A pipe, so that a child opens the line: the session's leader would get it as its terminal, with its signals.
        ask = f"{{ while echo; do sleep {ASK_SECONDS}; done; }} >{line} 2>&1 &"
        hear = f"timeout {CONSOLE_SECONDS} {whole} <{line} | cat; kill $!"
        answer = host.shell(f"{ask} {hear}", timeout=CONSOLE_SECONDS + 60)
        if "GUEST-DONE" in answer:
            break
        # Beside much other work the line was seen to end early. The guest says everything again.
        assert time.monotonic() < deadline, f"{name}: {answer!r} {answer.errors}"
        time.sleep(5)
    said = answer.replace("\r", "")
    functions = re.findall(r"^GUEST-PCI (\S+) (\S+) (-?\d+) (\S+)$", said, re.MULTILINE)
    nodes = re.findall(r"^GUEST-NODE (\d+) (\S+) (\d+) ([\d ]+)$", said, re.MULTILINE)
    ((boot, up),) = re.findall(r"^GUEST-UP (\S+) (\d+)$", said, re.MULTILINE)
    return Seen(
        {address: Function(ids, int(node), path) for address, ids, node, path in functions},
        {int(node): (cpus, int(kib), [int(n) for n in row.split()]) for node, cpus, kib, row in nodes},
        boot,
        int(up),
    )


def guest_of(started: Started, name: str) -> Document:
    """A guest of the plan."""
    (guest,) = (guest for guest in started.planned["guests"] if guest["name"] == name)
    assert isinstance(guest, dict)
    return guest


def cpus_of(text: str) -> set[int]:
    """The CPUs of a list such as "0-1,6"."""
    ends = ([int(n) for n in part.split("-")] for part in text.split(","))
    return {cpu for end in ends for cpu in range(end[0], end[-1] + 1)}


# --- on the host ----------------------------------------------------------------------------------------------


def test_one_plan_places_both_apart(started: Started) -> None:
    assert started.planned["unplaced"] == []
    assert {guest["name"] for guest in started.planned["guests"]} == set(PASSED)
    pins = [int(pin["cpus"]) for name in PASSED for pin in guest_of(started, name)["vcpu_pins"]]
    assert len(pins) == len(set(pins)) == 6
    kept = cpus_of(started.planned["housekeeping_cpus"])
    assert not kept & set(pins)
    assert all(cpus_of(guest_of(started, name)["emulator_cpus"]) <= kept for name in PASSED)


def test_one_apply_starts_both(host: LabMachine, started: Started) -> None:
    assert set(host.shell("virsh list --name").split()) == set(PASSED)
    outcomes = started.ran.outcomes
    # The guests' kernels have no drivers for what is passed: whether it has an interrupt is its own matter.
    assert {what for action, what in outcomes.items() if not action.startswith("irq-affinity:")} == {"done"}
    assert {f"guest-state:{name}" for name in PASSED} <= set(outcomes)
    assert {f"driver:{address}" for passed in PASSED.values() for address in passed} <= set(outcomes)
    assert started.ran.document is not None
    assert started.ran.document["notes"] == [
        f"guest {name} runs: pins, pages and devices in /proc are as planned" for name in PASSED
    ]


@pytest.mark.parametrize("name", PASSED)
def test_threads_run_where_the_plan_says(host: LabMachine, started: Started, name: str) -> None:
    guest = guest_of(started, name)
    emulator = cpus_of(guest["emulator_cpus"])
    nodes = facts.nodes_of_numactl(host)
    places = {f"CPU {pin['vcpu']}/TCG": cpus_of(pin["cpus"]) for pin in guest["vcpu_pins"]}
    places |= {f"IO iothread{number}": cpus_of(cpus) for number, cpus in enumerate(guest["iothread_cpus"], 1)}
    # QEMU clears a cell's memory from the cell's node.
    cells = {f"TC tc-ram-node{cell['id']}": nodes[int(cell["host_nodes"])]["cpus"] for cell in guest["cells"]}
    places |= {thread: emulator & cpus for thread, cpus in cells.items()}
    threads = facts.threads_of(host, started.processes[name])
    assert {thread for thread, _ in threads} >= set(places)
    for thread, cpus in threads:
        assert cpus_of(cpus) == places.get(thread, emulator), thread


@pytest.mark.parametrize("name", PASSED)
def test_memory_lies_where_the_plan_says(host: LabMachine, started: Started, name: str) -> None:
    mappings = facts.huge_pages_of(host, started.processes[name])
    cells = guest_of(started, name)["cells"]
    want = [{f"N{cell['host_nodes']}": cell["memory_bytes"] >> 21, "kernelpagesize_kB": 2048} for cell in cells]
    assert sorted(mappings, key=str) == sorted(want, key=str)


def test_all_pages_are_the_guests(host: LabMachine, started: Started) -> None:
    pages = {0: 0, 1: 0}
    for name in PASSED:
        for cell in guest_of(started, name)["cells"]:
            pages[int(cell["host_nodes"])] += cell["memory_bytes"] >> 21
    assert all(pages.values())
    assert {node: int(host.shell(f"cat {POOL.format(node)}")) for node in pages} == pages
    free = (POOL.format(node).replace("nr_", "free_") for node in pages)
    assert [host.shell(f"cat {path}").strip() for path in free] == ["0", "0"]


@pytest.mark.parametrize("name", PASSED)
def test_each_holds_its_own_devices_alone(host: LabMachine, started: Started, name: str) -> None:
    links = " ".join(f"/sys/bus/pci/devices/{address}/iommu_group" for address in PASSED[name])
    groups = {f"/dev/vfio/{link.rpartition('/')[2]}" for link in host.shell(f"readlink {links}").split()}
    found = host.shell(f"find /proc/{started.processes[name]}/fd -type l -printf '%l\n'").splitlines()
    assert {path for path in found if re.fullmatch(r"/dev/vfio/\d+", path)} == groups


# --- inside ---------------------------------------------------------------------------------------------------


def tree_of_plan(host: LabMachine, guest: Document) -> dict[str, Function]:
    """Every function of the planned tree: a controller's index is the number of its bus."""
    by_index = {controller["index"]: controller for controller in guest["controllers"]}

    def address(port: Document) -> str:
        return f"0000:{port['bus']:02x}:{port['slot']:02x}.{port['function']}"

    def above(bus: int) -> tuple[int, str]:
        """The node of what is on a bus, and the path down to it."""
        port = by_index[bus]
        if port["model"] in ("pcie-root", "pcie-expander-bus"):
            return (-1 if port["node"] is None else port["node"]), f"pci0000:{bus:02x}"
        node, path = above(port["bus"])
        return node, f"{path}/{address(port)}"

    found = {}
    for port in guest["controllers"]:
        if port["model"] != "pcie-root":
            node, path = above(port["bus"])
            found[address(port)] = Function(IDS[port["model"]], node, f"{path}/{address(port)}")
    known = facts.functions_of_lspci(host)
    for device in guest["devices"]:
        at, ids = device["guest_address"], known[device["address"]]
        node, path = above(int(at.split(":")[1], 16))
        found[at] = Function(f"{ids['Vendor']}:{ids['Device']}", node, f"{path}/{at}")
    return found


@pytest.mark.parametrize("name", PASSED)
def test_the_tree_inside_is_the_plans(host: LabMachine, started: Started, name: str) -> None:
    seen, planned = started.seen[name].functions, tree_of_plan(host, guest_of(started, name))
    virtio = {address: function for address, function in seen.items() if function.ids in VIRTIO}
    rest = seen.keys() - CHIPSET - virtio.keys()
    assert {address: seen[address] for address in rest} == planned
    assert set(seen) >= CHIPSET
    # The plan has ports for these, and libvirt chooses among them.
    assert {function.ids for function in virtio.values()} == VIRTIO
    ports = {function.path.split("/")[-2] for function in virtio.values()}
    assert len(ports) == len(virtio)
    assert {(planned[port].ids, planned[port].node) for port in ports} == {(IDS["pcie-root-port"], -1)}


def test_each_device_of_two_nodes_stands_on_its_cells_expander(started: Started) -> None:
    guest, seen = guest_of(started, WIDE), started.seen[WIDE].functions
    nodes = {device["address"]: seen[device["guest_address"]].node for device in guest["devices"]}
    assert nodes == dict(zip(PASSED[WIDE], (0, 1), strict=True))
    assert {cell["id"]: cell["host_nodes"] for cell in guest["cells"]} == {0: "0", 1: "1"}
    assert [function.ids for function in seen.values()].count(IDS["pcie-expander-bus"]) == 2


def test_two_that_share_a_switch_share_one_inside(started: Started) -> None:
    guest, seen = guest_of(started, SWITCHED), started.seen[SWITCHED].functions
    ports = [seen[device["guest_address"]].path.split("/")[1:-1] for device in guest["devices"]]
    models = {ids: model.removeprefix("pcie-") for model, ids in IDS.items()}
    want = ["root-port", "switch-upstream-port", "switch-downstream-port"]
    assert [[models[seen[port].ids] for port in chain] for chain in ports] == [want, want]
    assert ports[0][:2] == ports[1][:2]
    assert ports[0][2] != ports[1][2]


@pytest.mark.parametrize("name", PASSED)
def test_the_cells_inside_are_the_plans(started: Started, name: str) -> None:
    seen = started.seen[name].nodes
    assert {node: cpus for node, (cpus, _, _) in seen.items()} == CELLS[name]
    for cell in guest_of(started, name)["cells"]:
        cpus, kib, distances = seen[cell["id"]]
        assert (cpus, distances) == (cell["vcpus"], cell["distances"])
        assert cell["memory_bytes"] >> 11 < kib <= cell["memory_bytes"] >> 10  # its kernel keeps some


@pytest.mark.parametrize("name", PASSED)
def test_what_its_own_document_expects_is_there(host: LabMachine, started: Started, name: str) -> None:
    """What `validate --guest` would hold it against; it has no Python to run that with."""
    expected = document_of(host.shell(f"cat {STATE}/guests/{name}/bundle/expected.json"))
    seen = started.seen[name]
    assert expected["name"] == name
    assert {cell["id"]: cell["cpus"] for cell in expected["cells"]} == CELLS[name]
    devices = {device["address"]: (device["ids"], device["node"]) for device in expected["devices"]}
    assert len(devices) == 2
    assert devices == {address: (seen.functions[address].ids, seen.functions[address].node) for address in devices}
    assert [pair["grade"] for pair in expected["pairs"]] == (["PIX"] if name == SWITCHED else [])
    assert {end for pair in expected["pairs"] for end in (pair["gpu"], pair["nic"])} <= set(devices)


# --- the second day ---------------------------------------------------------------------------------------------


def but_memory(definition: str) -> list[str]:
    """A definition without its sizes."""
    return [line for line in definition.splitlines() if "emory" not in line]


def test_an_edit_is_done_at_rest_and_holds_from_the_next_start_of_a_guest_that_runs(second: Lived) -> None:
    edited = second.edited
    assert edited.ran.status == 0, edited.ran.errors
    assert edited.ran.document is not None
    for name in PASSED:
        assert edited.ran.outcomes[f"guest:{name}"] == "done"
        assert "<memory unit='KiB'>458752</memory>" in edited.definitions[name]
        assert but_memory(edited.definitions[name]) == but_memory(second.first[name])
    (note,) = (note for note in edited.ran.document["notes"] if note.startswith(f"guest {WIDE}: "))
    assert f"from its next start: virsh shutdown {WIDE}" in note
    assert edited.pools == [128 + 224, 128], "the run keeps what it has"


def test_a_guest_is_added_beside_the_others(second: Lived) -> None:
    assert second.added.ran.status == 0, second.added.ran.errors
    assert second.added.pools == [128 + 224, 128 + 128]
    assert {name: second.added.definitions[name] for name in PASSED} == second.edited.definitions
    assert (second.edited.value, second.added.value) == (0, 0)


def test_what_drifted_is_as_planned_again_and_what_others_added_stays(second: Lived) -> None:
    """A value is a third one, a definition was edited, and a guest was undefined beside its variables."""
    drift = {BALANCING, f"guest:{SWITCHED}", f"guest:{NEW}"}
    mended = second.mended
    assert mended.ran.status == 0, mended.ran.errors
    assert mended.ran.document is not None
    assert {action for action, outcome in mended.ran.outcomes.items() if outcome == "done"} == drift
    (row,) = (one for one in mended.ran.document["entries"] if one["action"] == BALANCING)
    assert (row["before"], mended.value) == (THIRD, 0)
    assert mended.definitions[NEW] == second.added.definitions[NEW], "with its UUID and MAC addresses"
    left = iter(mended.definitions[SWITCHED].splitlines())
    assert all(line in left for line in second.added.definitions[SWITCHED].splitlines()), "and more"
    assert "<title>theirs</title>" in mended.definitions[SWITCHED]
    assert "/other.raw'/>" in mended.definitions[SWITCHED]


def test_a_guest_goes_with_what_it_alone_needed(second: Lived) -> None:
    removed = second.removed
    assert removed.ran.status == 0, removed.ran.errors
    assert removed.ran.document is not None
    assert {name: removed.definitions[name] for name in PASSED} == removed.definitions
    assert (removed.pools, second.driver) == ([128 + 224, 128], None)
    assert any("not handed over: 0000:c2:00.0" in note for note in removed.ran.document["notes"])


def test_the_intent_of_that_day_undoes_it_and_again_writes_nothing(second: Lived) -> None:
    rows = [(*row["guests"].values(), row["outcome"]) for row in second.history]
    assert rows == [
        ([WIDE, SWITCHED], [], [], "done"), ([], [WIDE, SWITCHED], [], "done"), ([NEW], [], [], "done"),
        ([NEW], [SWITCHED], [], "done"), ([], [], [NEW], "done"),
    ]  # fmt: skip
    assert second.undone.ran.status == 0, second.undone.ran.errors
    assert second.undone.definitions == second.mended.definitions
    assert second.undone.pools == second.mended.pools
    assert len(set(second.variables)) == 1, "its variables were kept and came back"
    assert second.again.status == 0, second.again.errors
    assert second.again.document is not None
    assert second.again.document["changed"] is False
    assert set(second.again.outcomes.values()) == {"already", "pending"}


def test_a_running_guest_notices_nothing(host: LabMachine, started: Started, second: Lived) -> None:
    assert second.before.process == started.processes[WIDE]
    assert second.after == second.before
    then, now = started.seen[WIDE], see(host, WIDE)
    assert now.up > then.up
    assert now._replace(up=then.up) == then


# --- the way back ---------------------------------------------------------------------------------------------


def test_both_are_gone(host: LabMachine, reverted: Ran) -> None:
    assert reverted.status == 0, reverted.errors or json.dumps(reverted.document)
    kept = {action: outcome for action, outcome in reverted.outcomes.items() if outcome != "reverted"}
    # That interrupt ended with its guest.
    assert kept.items() <= {f"irq-affinity:{NIC}": "already"}.items()
    assert host.shell("virsh list --all --name").split() == []
    assert set(host.shell(f"ls {STATE}").split()) == {
        "after-stop", "gpus.json", "handover", "lock", "plan.json", "removed", "transactions",
    }  # fmt: skip
    assert host.shell(f"ls {STATE}/removed").startswith(f"{NEW}-"), "the variables of its firmware"
    assert host.shell(f"ls {STATE}/handover").split() == [f"start-{NIC}"]  # as it was then, for its next hand-over


def test_the_host_is_as_before(host: LabMachine, before: Before, reverted: Ran) -> None:
    moved = facts.moved(before.values, facts.snapshot(host))
    # The NIC's own: a number that the kernel counts on, and the CPUs of its wired interrupt. vfio used that one, so
    # it went to the guest's service CPUs; the NIC's driver uses others, and an interrupt without a user stays as it is.
    own = (f"/{NIC}/net/", "/proc/irq/")
    assert [path for path in moved if "/" in path and not any(part in path for part in own)] == []
    # Of UEFI variables libvirt asks the device mapper, which loads it (qemuSetupImagePathCgroup).
    lists = {name: {*then.split()} ^ {*(now or "").split()} for name, (then, now) in moved.items() if "/" not in name}
    assert lists in ({}, {"modules": {"dm_mod"}, "nodes": {"/dev/char/10:236"}})
    assert facts.files_below(host, "/etc", "/usr/local", "/boot") == before.files
    assert facts.functions_of_lspci(host)[NIC]["Driver"] == "e1000e"
