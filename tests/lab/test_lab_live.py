"""Guests that run: an apply moves their threads and the memory of one, and a revert puts them back; real kernel."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from lab import facts
from lab.machine import LabMachine
from lab.product import Ran, install, run

pytestmark = pytest.mark.lab

WRONG, LOOSE = "wrong", "loose"
SERVICES = "0-1"
# The first is on the cores that are planned for the second, which floats with all its threads. Its memory is touched by
# the emulator before it runs, so all of it is on node 1.
TUNE = {
    WRONG: "<vcpupin vcpu='0' cpuset='6'/><vcpupin vcpu='1' cpuset='7'/><emulatorpin cpuset='4-7'/>",
    LOOSE: "",
}
BACKING = {WRONG: "<memoryBacking><allocation mode='immediate'/></memoryBacking>", LOOSE: ""}
PAGES = 64 << 20 >> 12
WANT = {
    WRONG: f"vcpu.0=2 vcpu.1=3 emulator={SERVICES} iothread.1={SERVICES}",
    LOOSE: f"vcpu.0=6 vcpu.1=7 emulator={SERVICES} iothread.1={SERVICES}",
}
# They stay paused, with all their threads: their firmware, emulated twice, would take the CPUs for minutes.
XML = """<domain type='qemu'><name>{name}</name><memory unit='MiB'>64</memory>{backing}
<vcpu>2</vcpu><iothreads>1</iothreads><cputune>{tune}</cputune>
<os><type arch='x86_64' machine='q35'>hvm</type></os><devices/></domain>"""
PLAN = "/run/hosttune-live.json"

Threads = dict[str, set[str]]  # CPUs by the name of a thread


class Repaired(NamedTuple):
    """What each command said, and the threads of each guest before, after the apply and after the revert.

    `memory`: likewise the pages of the first one's memory by node.
    """

    rehearsed: Ran
    applied: Ran
    again: Ran
    status: Ran
    reverted: Ran
    before: dict[str, Threads]
    between: dict[str, Threads]
    after: dict[str, Threads]
    definitions: tuple[str, str]
    memory: tuple[dict[str, int], ...]


def threads(lab: LabMachine) -> dict[str, Threads]:
    """The threads of both guests as the kernel shows them."""
    found: dict[str, Threads] = {}
    for name in TUNE:
        each = found.setdefault(name, {})
        for thread, cpus in facts.threads_of(lab, int(lab.shell(f"cat /run/libvirt/qemu/{name}.pid"))):
            if thread != "worker":  # of QEMU's pool: it runs where the thread does that asked for it, and soon ends
                each.setdefault(thread, set()).add(cpus)
    return found


def process_of(lab: LabMachine, name: str) -> str:
    return lab.shell(f"cat /run/libvirt/qemu/{name}.pid").strip()


def memory(lab: LabMachine) -> dict[str, int]:
    """The pages of the memory of the first guest by node: of the one mapping that has so many."""
    lines = lab.shell(f"grep -w anon={PAGES} /proc/{process_of(lab, WRONG)}/numa_maps").splitlines()
    assert len(lines) == 1, lines
    return {node: int(count) for node, count in re.findall(r"\b(N[0-9]+)=([0-9]+)", lines[0])}


def definitions(lab: LabMachine) -> str:
    return "".join(lab.shell(f"virsh dumpxml --inactive {name}") for name in TUNE)


def plan_of(document: dict[str, Any], process: str) -> str:
    wants = [*(("live-affinity", name, want) for name, want in WANT.items())]
    wants += [("live-memory", WRONG, f"cell.0=0 process={process}")]
    actions = [
        {
            "id": f"{kind}:{name}", "kind": kind, "target": name, "current": None, "want": want,
            "effect": "now", "needed": False, "reversible": True, "why": "it is elsewhere",
        }
        for kind, name, want in wants
    ]  # fmt: skip
    intent = {"version": 1, "guests": []}
    return json.dumps(
        {"schema": "hosttune.plan/v1", "host_digest": document["digest"], "intent": intent, "actions": actions}
    )


@pytest.fixture(scope="module")
def repaired(lab: LabMachine, document: dict[str, Any]) -> Iterator[Repaired]:
    """Both started as they should not be, repaired while they run, and put back."""
    install(lab)
    # Otherwise the kernel moves memory by itself, while hosttune does and afterwards.
    balancing = lab.shell("sysctl -n kernel.numa_balancing; sysctl -qw kernel.numa_balancing=0").strip()
    try:
        for name, tune in TUNE.items():
            lab.shell("virsh define /dev/stdin", stdin=XML.format(name=name, tune=tune, backing=BACKING[name]))
            lab.shell(f"virsh start {name} --paused")
        process = process_of(lab, WRONG)
        began = lab.shell(f"awk '{{print $22}}' /proc/{process}/stat").strip()
        lab.shell(f"cat >{PLAN}", stdin=plan_of(document, f"{process}.{began}"))
        kept, before, pages = definitions(lab), threads(lab), [memory(lab)]
        rehearsed = run(lab, "apply", PLAN, "--dry-run", "--disrupt", WRONG)
        applied, between = run(lab, "apply", PLAN, "--yes", "--disrupt", WRONG), threads(lab)
        pages += [memory(lab)]
        again, status = run(lab, "apply", PLAN, "--yes"), run(lab, "status")
        reverted, after = run(lab, "revert", "--yes"), threads(lab)
        pages += [memory(lab)]
        texts = (kept, definitions(lab))
        yield Repaired(rehearsed, applied, again, status, reverted, before, between, after, texts, tuple(pages))
    finally:
        lab.shell(f"hosttune revert --force; rm -f {PLAN}", check=False)
        lab.shell(f"sysctl -qw kernel.numa_balancing={balancing}", check=False)
        lab.shell(f"for name in {' '.join(TUNE)}; do virsh destroy $name; virsh undefine $name; done", check=False)


def test_threads_of_running_guests_are_moved_and_put_back(repaired: Repaired) -> None:
    assert repaired.before[WRONG]["CPU 0/TCG"] == {"6"}
    assert repaired.before[LOOSE]["CPU 0/TCG"] == {"0-7"}
    assert repaired.applied.status == 0, repaired.applied.errors
    moved = (*(f"live-affinity:{name}" for name in WANT), f"live-memory:{WRONG}")
    assert repaired.applied.outcomes == dict.fromkeys(moved, "done"), repaired.applied.document
    places = {WRONG: ("2", "3"), LOOSE: ("6", "7")}
    for name, (first, second) in places.items():
        want = {"CPU 0/TCG": {first}, "CPU 1/TCG": {second}}
        assert repaired.between[name] == {thread: want.get(thread, {SERVICES}) for thread in repaired.between[name]}
    assert repaired.reverted.status == 0, repaired.reverted.errors
    assert set(repaired.reverted.outcomes.values()) == {"reverted"}
    for name in TUNE:
        assert repaired.after[name] == repaired.before[name]
    assert repaired.definitions[0] == repaired.definitions[1]


def test_memory_on_the_wrong_node_is_moved_while_the_guest_runs_and_put_back(repaired: Repaired) -> None:
    assert repaired.memory == ({"N1": PAGES}, {"N0": PAGES}, {"N1": PAGES})
    assert repaired.applied.document is not None
    (entry,) = (one for one in repaired.applied.document["entries"] if one["action"] == f"live-memory:{WRONG}")
    assert entry["before"].startswith(f"cell.0=4KiB@1:{PAGES} process=")
    assert entry["after"].startswith(f"cell.0=4KiB@0:{PAGES} process=")
    assert entry["why"].endswith(" pages moved")  # the kernel may have moved some itself, to the threads


def test_the_second_apply_and_the_rehearsal_write_nothing(repaired: Repaired) -> None:
    assert repaired.rehearsed.document is not None
    moves = repaired.rehearsed.document["writes"]
    # The one that floats leaves the other's core first, then each takes its own.
    order = [f'{LOOSE} <- "vcpu.0=0-1,4-7', f'{WRONG} <- "vcpu.0=2', f'{LOOSE} <- "vcpu.0=6']
    assert [moves.index(f'call  virsh-pin-{text}"') for text in order] == sorted(
        moves.index(f'call  virsh-pin-{text}"') for text in order
    )
    assert set(repaired.again.outcomes.values()) == {"already"}
    assert (repaired.status.status, repaired.status.document and repaired.status.document["drift"]) == (0, [])
