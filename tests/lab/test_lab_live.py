"""Guests that run: an apply moves their threads, and a revert puts them back; real kernel."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from lab import facts
from lab.machine import LabMachine
from lab.product import Ran, install, run

pytestmark = pytest.mark.lab

WRONG, LOOSE = "wrong", "loose"
SERVICES = "0-1"
# The first is on the cores that are planned for the second, which floats with all its threads.
TUNE = {
    WRONG: "<vcpupin vcpu='0' cpuset='6'/><vcpupin vcpu='1' cpuset='7'/><emulatorpin cpuset='4-7'/>",
    LOOSE: "",
}
WANT = {
    WRONG: f"vcpu.0=2 vcpu.1=3 emulator={SERVICES} iothread.1={SERVICES}",
    LOOSE: f"vcpu.0=6 vcpu.1=7 emulator={SERVICES} iothread.1={SERVICES}",
}
# They stay paused, with all their threads: their firmware, emulated twice, would take the CPUs for minutes.
XML = """<domain type='qemu'><name>{name}</name><memory unit='MiB'>64</memory>
<vcpu>2</vcpu><iothreads>1</iothreads><cputune>{tune}</cputune>
<os><type arch='x86_64' machine='q35'>hvm</type></os><devices/></domain>"""
PLAN = "/run/hosttune-live.json"

Threads = dict[str, set[str]]  # CPUs by the name of a thread


class Repaired(NamedTuple):
    """What each command said, and the threads of each guest before, after the apply and after the revert."""

    rehearsed: Ran
    applied: Ran
    again: Ran
    status: Ran
    reverted: Ran
    before: dict[str, Threads]
    between: dict[str, Threads]
    after: dict[str, Threads]
    definitions: tuple[str, str]


def threads(lab: LabMachine) -> dict[str, Threads]:
    """The threads of both guests as the kernel shows them."""
    found: dict[str, Threads] = {}
    for name in TUNE:
        each = found.setdefault(name, {})
        for thread, cpus in facts.threads_of(lab, int(lab.shell(f"cat /run/libvirt/qemu/{name}.pid"))):
            if thread != "worker":  # of QEMU's pool: it runs where the thread does that asked for it, and soon ends
                each.setdefault(thread, set()).add(cpus)
    return found


def definitions(lab: LabMachine) -> str:
    return "".join(lab.shell(f"virsh dumpxml --inactive {name}") for name in TUNE)


def plan_of(document: dict[str, Any]) -> str:
    actions = [
        {
            "id": f"live-affinity:{name}", "kind": "live-affinity", "target": name, "current": None, "want": want,
            "effect": "now", "needed": False, "reversible": True, "why": "it is elsewhere",
        }
        for name, want in WANT.items()
    ]  # fmt: skip
    intent = {"version": 1, "guests": []}
    return json.dumps(
        {"schema": "hosttune.plan/v1", "host_digest": document["digest"], "intent": intent, "actions": actions}
    )


@pytest.fixture(scope="module")
def repaired(lab: LabMachine, document: dict[str, Any]) -> Repaired:
    """Both started as they should not be, repaired while they run, and put back."""
    install(lab)
    try:
        for name, tune in TUNE.items():
            lab.shell("virsh define /dev/stdin", stdin=XML.format(name=name, tune=tune))
            lab.shell(f"virsh start {name} --paused")
        lab.shell(f"cat >{PLAN}", stdin=plan_of(document))
        kept, before = definitions(lab), threads(lab)
        rehearsed = run(lab, "apply", PLAN, "--dry-run")
        applied, between = run(lab, "apply", PLAN, "--yes"), threads(lab)
        again, status = run(lab, "apply", PLAN, "--yes"), run(lab, "status")
        reverted, after = run(lab, "revert", "--yes"), threads(lab)
        texts = (kept, definitions(lab))
    except BaseException:
        lab.shell("hosttune revert --yes --force", check=False)
        raise
    finally:
        lab.shell(
            f"rm -f {PLAN}; for name in {' '.join(TUNE)}; do virsh destroy $name; virsh undefine $name; done",
            check=False,
        )
    return Repaired(rehearsed, applied, again, status, reverted, before, between, after, texts)


def test_threads_of_running_guests_are_moved_and_put_back(repaired: Repaired) -> None:
    assert repaired.before[WRONG]["CPU 0/TCG"] == {"6"}
    assert repaired.before[LOOSE]["CPU 0/TCG"] == {"0-7"}
    assert repaired.applied.status == 0, repaired.applied.errors
    moved = [f"live-affinity:{name}" for name in WANT]
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
