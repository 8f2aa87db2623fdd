"""The second day of two guests on the emulated host: eight events, while the one of them runs and notices nothing."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from lab import facts
from lab.machine import LabMachine
from lab.product import STATE, Ran, run

Document = dict[str, Any]
RUNS, OFF, NEW = "wide", "switched", "efi"  # the guest that runs, the one that is shut off, the one that comes and goes
GPU = "0000:c2:00.0"  # of the new one
INTENT = "/root/intent.json"
VALUE, THIRD = "/proc/sys/kernel/numa_balancing", "1"
VARIABLES = f"/var/lib/libvirt/qemu/nvram/{NEW}_VARS.fd"
DISK = "/var/lib/hosttune-lab/other.raw"
MARK = "written by the guest"


class Run(NamedTuple):
    """What must stay of a guest that runs: its process and when that began, its definition, threads and pages."""

    process: int
    began: str
    definition: str
    threads: list[tuple[str, str]]
    pages: list[dict[str, int]]


class Applied(NamedTuple):
    """An apply of the intent: what it said; after it, the definitions of the guests and the pools of pages."""

    ran: Ran
    definitions: dict[str, str]
    pools: list[int]


class Lived(NamedTuple):
    """The second day, in its order."""

    first: dict[str, str]  # definitions as of the first day
    before: Run
    edited: Applied
    added: Applied
    drifted: Ran
    mended: Applied
    value: str
    uuid: str
    removed: Applied
    kept: list[str]
    undone: Applied
    again: Ran
    variables: list[str]  # digests of the new guest's UEFI variables: as written, kept, as they came back
    history: list[Document]
    after: Run


def run_of(host: LabMachine, name: str) -> Run:
    """A guest that runs, as the kernel and libvirt show it."""
    process = int(host.shell(f"cat /run/libvirt/qemu/{name}.pid"))
    began = host.shell(f"cut -d' ' -f22 /proc/{process}/stat").strip()
    threads = sorted(one for one in facts.threads_of(host, process) if one[0] != "worker")  # those come and go
    return Run(process, began, host.shell(f"virsh dumpxml {name}"), threads, facts.huge_pages_of(host, process))


def definitions(host: LabMachine) -> dict[str, str]:
    """What libvirt would start each guest by."""
    names = host.shell("virsh list --all --name").split()
    return {name: host.shell(f"virsh dumpxml --inactive {name}") for name in names}


def pools(host: LabMachine) -> list[int]:
    """2 MiB pages of each node."""
    pattern = "/sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages"
    return [int(count) for count in host.shell(f"cat {pattern}").split()]


def apply(host: LabMachine, intent: Document) -> Applied:
    """Write the intent's file and apply it."""
    host.shell(f"cat >{INTENT}", stdin=json.dumps(intent))
    ran = run(host, "apply", "--intent", INTENT, "--yes")
    return Applied(ran, definitions(host), pools(host))


def lived(host: LabMachine, intent: Document) -> Lived:
    """Two guests are in force by this intent and run; the one that is edited at rest is shut off first."""
    host.shell(f"virsh destroy {OFF}")
    first, before = definitions(host), run_of(host, RUNS)
    wide, off = intent["guests"]
    new = {**off, "name": NEW, "gpus": [GPU], "nics": None, "memory": "256MiB", "firmware": "efi"}

    # An edit of the one that is off, which gets more memory, and of the one that runs, which gets less.
    wide, off = {**wide, "memory": "448MiB"}, {**off, "memory": "448MiB"}
    edited = apply(host, {**intent, "guests": [wide, off]})

    added = apply(host, {**intent, "guests": [wide, off, new]})
    uuid = host.shell(f"virsh domuuid {NEW}").strip()
    host.shell(f"virsh start --paused {NEW}; virsh destroy {NEW}")  # its firmware's variables are there from now on
    host.shell(f"printf %s '{MARK}' | dd of={VARIABLES} conv=notrunc status=none")
    variables = [digest(host, VARIABLES)]

    # A night: a value, a definition, and one that is gone.
    host.shell(f"echo {THIRD} >{VALUE}; virsh undefine --keep-nvram {NEW}; qemu-img create -q -f raw {DISK} 1M")
    host.shell("virsh define /dev/stdin", stdin=edited_by_hand(added.definitions[OFF]))
    drifted = run(host, "status")
    mended = apply(host, {**intent, "guests": [wide, off, new]})
    value = host.shell(f"cat {VALUE}").strip()

    removed = apply(host, {**intent, "guests": [wide, off, {"name": NEW, "state": "absent"}]})
    kept = host.shell(f"find {STATE}/removed -type f").split()
    variables += [digest(host, path) for path in kept if path.endswith(".fd")]

    past = run(host, "history")
    assert past.document is not None, past.errors
    number = past.document["transactions"][-2]["number"]
    then = json.loads(host.shell(f"hosttune history {number} --intent -o json"))
    undone = apply(host, then)
    again = run(host, "apply", "--intent", INTENT, "--yes")
    variables.append(digest(host, VARIABLES))
    return Lived(
        first, before, edited, added, drifted, mended, value, uuid, removed, kept, undone, again, variables,
        past.document["transactions"], run_of(host, RUNS),
    )  # fmt: skip


def digest(host: LabMachine, path: str) -> str:
    """Of a file."""
    return host.shell(f"sha256sum {path}").split()[0]


def edited_by_hand(definition: str) -> str:
    """A vCPU is on another CPU, which the intent decides; a title and a disk, which it does not."""
    pinned = definition.replace("<vcpupin vcpu='0' cpuset='", "<vcpupin vcpu='0' cpuset='11,", 1)
    assert pinned != definition
    disk = f"<disk type='file' device='disk'><source file='{DISK}'/><target dev='vdz' bus='virtio'/></disk>"
    return pinned.replace("</name>", "</name><title>theirs</title>", 1).replace("</devices>", f"{disk}</devices>")
