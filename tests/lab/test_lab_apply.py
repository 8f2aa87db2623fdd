"""A plan applied on a real kernel, its guest started, drift, and the way back: each against what other tools say."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from lab import facts
from lab.machine import LabMachine
from lab.product import STATE, Ran, by_address, discover, document_of, install, plan, run

pytestmark = pytest.mark.lab

Document = dict[str, Any]
GPU, PORT = "0000:41:00.0", "0000:40:00.0"
GUEST = "inner"
FILES = "/var/lib/hosttune-lab"
POOL = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
PAGES, SOMEBODYS_PAGES = 256, 300
UNIT, RULES = "/etc/systemd/system/hosttune-boot.service", "/etc/udev/rules.d/10-hosttune-vfio.rules"
ISOLATION = "SrcValid ReqRedir CmpltRedir UpstreamFwd"
INTENT: Document = {
    "version": 1,
    "profile": "guest",
    # On already but for the last; DirectTrans is the bit that the lab's root ports still have to give.
    "settings": {"acs": f"{ISOLATION} DirectTrans"},
    "guests": [
        {
            "name": GUEST,
            "gpus": [GPU],
            "vcpus": 2,
            "memory": f"{2 * PAGES}MiB",
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


class Before(NamedTuple):
    """The machine before anything is applied: what stands still in it, and its files."""

    values: dict[str, str]
    files: dict[str, str]


class Applied(NamedTuple):
    """An apply under strace, the rehearsal before it, and the plan of both."""

    planned: Document
    rehearsal: Ran
    moved_by_rehearsal: dict[str, tuple[str, str | None]]
    ran: Ran
    calls: list[facts.Call]
    process: int


class Taken(NamedTuple):
    """The way back, in its order: what each command said, and what stood between."""

    drifted: Ran
    refused: Ran
    conflict: Ran
    pages_after_conflict: str
    forced: Ran
    after: Before


@pytest.fixture(scope="module", autouse=True)
def installed(lab: LabMachine) -> Iterator[None]:
    """hosttune with no state, and a guest that is confined as on a server: the plan has a rule for its profile."""
    install(lab)
    with lab.confining():
        yield


def look(lab: LabMachine) -> Before:
    """The machine now."""
    return Before(facts.snapshot(lab), facts.files_below(lab, "/etc", "/usr/local", "/boot"))


@pytest.fixture(scope="module")
def before(lab: LabMachine) -> Before:
    """The machine before, without the values that move by themselves."""
    lab.shell("modprobe vfio-pci")
    first, second = look(lab), look(lab)
    assert first.files == second.files
    return Before(facts.still(second.values, first.values), second.files)


@pytest.fixture(scope="module")
def applied(lab: LabMachine, before: Before) -> Iterator[Applied]:
    """Planned, rehearsed, applied and started; taken back by force at the end, whatever happened."""
    planned = plan(lab, INTENT)
    try:
        rehearsal = run(lab, "apply", "--start", "--dry-run")
        moved = facts.moved(before.values, facts.snapshot(lab))
        ran = run(lab, "apply", "--start", "--yes", before=facts.STRACE)
        calls = facts.calls_of_strace(lab)
        process = int(lab.shell(f"cat /run/libvirt/qemu/{GUEST}.pid", check=False) or 0)
        yield Applied(planned, rehearsal, moved, ran, calls, process)
    finally:
        lab.shell(f"virsh destroy {GUEST}; hosttune revert --yes --force; hosttune recover --force", check=False)


@pytest.fixture(scope="module")
def taken(lab: LabMachine, applied: Applied) -> Taken:
    """Somebody changes a value and the guest is shut off; then all is taken back."""
    lab.shell(f"echo {SOMEBODYS_PAGES} >{POOL}")
    drifted, refused = run(lab, "status"), run(lab, "revert", "--yes")
    lab.shell(f"virsh destroy {GUEST}")
    conflict = run(lab, "revert", "--yes")
    pages = lab.shell(f"cat {POOL}")
    forced = run(lab, "revert", "--yes", "--force")
    return Taken(drifted, refused, conflict, pages.strip(), forced, look(lab))


# --- the rehearsal --------------------------------------------------------------------------------------------


def test_a_rehearsal_writes_nothing(applied: Applied) -> None:
    assert applied.rehearsal.status == 0, applied.rehearsal.errors
    assert applied.moved_by_rehearsal == {}


def test_a_rehearsal_says_byte_for_byte_what_apply_writes_to_the_kernel(lab: LabMachine, applied: Applied) -> None:
    said = [found for text in _writes(applied) if (found := _value_of(lab, text))]
    made = facts.values_written(applied.calls)
    assert said == made
    assert [value.data for value in made if value.path == POOL] == [str(PAGES).encode()]
    assert any(value.offset is not None and value.path.endswith(f"/{PORT}/config") for value in made)


def test_a_rehearsal_names_the_programs_that_apply_runs(applied: Applied) -> None:
    said = [tuple(shlex.split(text.splitlines()[0][6:])) for text in _writes(applied) if text.startswith("run ")]
    names = {vector[0] for vector in said}
    assert {"udevadm", "systemctl"} <= names
    assert facts.programs_run(applied.calls, *names) == said


def test_a_rehearsal_shows_the_files_that_apply_leaves(lab: LabMachine, applied: Applied) -> None:
    shown = {}
    for text in _writes(applied):
        found = re.match(r"file  (/\S+) \(mode \d+, \d+ bytes\)(?: \((?:binary, )?sha256 ([0-9a-f]{64})\))?", text)
        if found:  # one that is written twice counts as it is in the end
            content = "".join(f"{line[4:]}\n" for line in text.splitlines()[1:])
            shown[found[1]] = found[2] or hashlib.sha256(content.encode()).hexdigest()
    kept = f"{STATE}/guests/{GUEST}"
    assert {UNIT, RULES, f"{kept}/user-data", f"{kept}/seed.iso"} <= set(shown)
    assert {path: hashlib.sha256(lab.fetch(path)).hexdigest() for path in shown} == shown


def _writes(applied: Applied) -> list[str]:
    assert applied.rehearsal.document is not None, applied.rehearsal.errors
    writes = applied.rehearsal.document["writes"]
    assert isinstance(writes, list)
    return writes


def _value_of(lab: LabMachine, text: str) -> facts.WrittenValue | None:
    """A line about one value, its path as the kernel resolves it."""
    found = re.fullmatch(r'write (\S+)(?: at (0x[0-9a-f]+))? <- (?:"(.*)"|([0-9a-f ]+))', text)
    if not found:
        return None
    path = lab.shell(f"realpath {found[1]}").strip()
    if found[2]:
        return facts.WrittenValue(path, bytes.fromhex(found[4]), int(found[2], 16))
    return facts.WrittenValue(path, json.loads(f'"{found[3]}"').encode(), None)


# --- applied --------------------------------------------------------------------------------------------------


def test_all_is_done_and_the_guest_runs(applied: Applied) -> None:
    assert applied.ran.status == 0, applied.ran.errors
    assert applied.ran.document is not None
    outcomes = applied.ran.outcomes
    waiting = f"irq-affinity:{GPU}"  # the guest's kernel has no driver for the stand-in, so it has no interrupts
    assert outcomes.pop(waiting) == "pending"
    assert set(outcomes.values()) == {"done"}
    assert set(outcomes) >= {f"hugepages:{POOL}", f"driver:{GPU}", f"acs:{PORT}", f"guest-state:{GUEST}"}
    assert applied.ran.document["notes"] == [f"guest {GUEST} runs: pins, pages and devices in /proc are as planned"]
    assert (applied.ran.document["changed"], applied.ran.document["reboot_required"]) == (True, False)


def test_the_kernel_says_so_too(lab: LabMachine, applied: Applied) -> None:
    (guest,) = applied.planned["guests"]
    assert facts.functions_of_lspci(lab)[GPU]["Driver"] == "vfio-pci"
    control = re.search(r"ACSCtl:\s+(.*)", facts.details_of_lspci(lab)[PORT])
    assert control
    assert {f"{name}+" for name in (*ISOLATION.split(), "DirectTrans")} <= set(control[1].split())
    assert lab.shell(f"cat {POOL}").strip() == str(PAGES)
    free = POOL.replace("nr_hugepages", "free_hugepages")
    assert lab.shell(f"cat {free}").strip() == "0"
    places = {f"CPU {pin['vcpu']}/TCG": pin["cpus"] for pin in guest["vcpu_pins"]}
    places |= {f"IO iothread{number}": cpus for number, cpus in enumerate(guest["iothread_cpus"], 1)}
    threads = facts.threads_of(lab, applied.process)
    assert {name for name, _ in threads} >= set(places)
    assert {name: cpus for name, cpus in threads if name in places} == places
    assert {cpus for name, cpus in threads if name not in places} == {guest["emulator_cpus"]}
    label = lab.shell(f"cat /proc/{applied.process}/attr/current").strip("\0\n ")
    assert re.fullmatch(r"libvirt-[0-9a-f-]{36} \(enforce\)", label), label
    (mapping,) = facts.huge_pages_of(lab, applied.process)
    assert mapping == {"N0": PAGES, "kernelpagesize_kB": 2048}
    group = lab.shell(f"basename $(readlink /sys/bus/pci/devices/{GPU}/iommu_group)").strip()
    assert f"/dev/vfio/{group}" in lab.shell(f"find /proc/{applied.process}/fd -type l -printf '%l\n'").splitlines()


def test_discovery_sees_what_the_guest_holds(lab: LabMachine, applied: Applied) -> None:
    (guest,) = applied.planned["guests"]
    document = discover(lab)
    (found,) = document["guests"]
    assert (found["name"], found["state"]) == (GUEST, "running")
    for field in ("vcpu_pins", "emulator_cpus", "iothread_cpus"):
        assert found[field] == guest[field]
    assert found["devices"] == [GPU]
    assert found["memory"] == [
        {"node": 0, "memory_bytes": guest["cells"][0]["memory_bytes"], "page_bytes": guest["page_bytes"]}
    ]
    assert by_address(document)[GPU]["driver"] == "vfio-pci"
    pools = {pool["size_bytes"]: pool for pool in document["numa_nodes"][0]["hugepages"]}
    assert (pools[guest["page_bytes"]]["total"], pools[guest["page_bytes"]]["free"]) == (PAGES, 0)


def test_a_held_gpu_is_not_given_away_again(lab: LabMachine, applied: Applied) -> None:
    answer = lab.shell(f"hosttune plan --gpu {GPU} --name another -o json", check=False)
    assert answer.status == 1, answer.errors
    (unplaced,) = document_of(answer)["unplaced"]
    assert unplaced["guest"] == "another"
    assert any(GPU in why and GUEST in why for why in unplaced["why"]), unplaced["why"]


def test_a_second_apply_writes_nothing(lab: LabMachine, applied: Applied) -> None:
    again = run(lab, "apply", "--start", "--yes", before=facts.STRACE)
    calls = facts.calls_of_strace(lab)
    assert again.status == 0, again.errors
    assert again.document is not None
    assert (again.document["changed"], again.document["writes"]) == (False, [])
    assert set(again.outcomes.values()) == {"already", "pending"}
    assert facts.values_written(calls) == []
    assert facts.files_changed(calls) == []
    assert lab.shell(f"cd {STATE}/transactions; ls *.jsonl").split() == ["000001.jsonl"]


def test_status_finds_no_drift(lab: LabMachine, applied: Applied) -> None:
    status = run(lab, "status")
    assert status.status == 0, status.errors
    assert status.document is not None
    assert (status.document["drift"], status.document["open_transaction"]) == ([], None)
    assert {f"hugepages:{POOL}", f"driver:{GPU}", f"acs:{PORT}", f"guest:{GUEST}"} <= set(status.outcomes)


# --- the way back ---------------------------------------------------------------------------------------------


def test_status_names_what_somebody_has_changed(taken: Taken) -> None:
    assert taken.drifted.status == 1
    assert taken.drifted.document is not None
    (drift,) = taken.drifted.document["drift"]
    assert (drift["action"], drift["expected"], drift["actual"]) == (f"hugepages:{POOL}", PAGES, SOMEBODYS_PAGES)


def test_revert_is_refused_while_the_guest_runs(taken: Taken) -> None:
    assert (taken.refused.status, taken.refused.document) == (3, None)
    assert f"running: {GUEST}" in taken.refused.errors


def test_revert_leaves_alone_what_somebody_has_changed(taken: Taken) -> None:
    assert taken.conflict.status == 1, taken.conflict.errors
    outcomes = taken.conflict.outcomes
    assert outcomes.pop(f"hugepages:{POOL}") == "conflict"
    assert set(outcomes.values()) == {"reverted"}
    assert str(SOMEBODYS_PAGES) in (taken.conflict.doubts_found[f"hugepages:{POOL}"] or "")
    assert taken.pages_after_conflict == str(SOMEBODYS_PAGES)


def test_force_takes_that_too(taken: Taken) -> None:
    assert taken.forced.status == 0, taken.forced.errors
    assert taken.forced.outcomes == {f"hugepages:{POOL}": "reverted"}


def test_everything_is_as_before(lab: LabMachine, before: Before, taken: Taken) -> None:
    assert facts.moved(before.values, taken.after.values) == {}
    assert taken.after.files == before.files
    assert lab.shell("virsh list --all --name").split() == []
    assert set(lab.shell(f"ls {STATE}").split()) == {"gpus.json", "lock", "plan.json", "transactions"}
    left = "find / -xdev -name '*hosttune*' -newer /proc/1 -not -path '/proc/*' -not -path '/sys/*'"
    known = (STATE, "/usr/local/bin", FILES)
    assert [path for path in lab.shell(left).split() if not path.startswith(known)] == []
