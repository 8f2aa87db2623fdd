"""The second day of two guests on the emulated host: eight events, while one of them runs and notices nothing."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from xmledits import with_edits

from hosttune.domain.reader import read_domain
from lab import facts
from lab.machine import LabMachine
from lab.product import STATE, Ran, run

Document = dict[str, Any]
RUNS, OFF, NEW = "wide", "switched", "efi"  # the guest that runs, the one that is shut off, the one that comes and goes
GPU = "0000:c2:00.0"  # of the new one
INTENT = "/root/intent.json"
VALUE, SETTINGS, THIRD = "/proc/sys/kernel/numa_balancing", {"numa_balancing": 0}, 2
POOLS = "/sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages"
VARIABLES = f"/var/lib/libvirt/qemu/nvram/{NEW}_VARS.fd"
DISK = "/var/lib/hosttune-lab/other.raw"


class Run(NamedTuple):
    """What must stay of a guest that runs: its process and when that began, its definition, threads and pages."""

    process: int
    began: str
    definition: str
    threads: list[tuple[str, str]]
    pages: list[dict[str, int]]


class Applied(NamedTuple):
    """What an apply of the intent said; after it, the definitions of the guests, the pools of pages, a value."""

    ran: Ran
    definitions: dict[str, str]
    pools: list[int]
    value: int


class Lived(NamedTuple):
    """The second day, in its order. `variables`: digests of the new guest's, as written, kept, and come back."""

    first: dict[str, str]
    before: Run
    edited: Applied
    added: Applied
    mended: Applied
    removed: Applied
    driver: str | None
    undone: Applied
    again: Ran
    variables: list[str]
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


def apply(host: LabMachine, intent: Document) -> Applied:
    """Write the intent's file and apply it."""
    host.shell(f"cat >{INTENT}", stdin=json.dumps(intent))
    ran = run(host, "apply", "--intent", INTENT, "--yes")
    pools = [int(count) for count in host.shell(f"cat {POOLS}").split()]
    return Applied(ran, definitions(host), pools, int(host.shell(f"cat {VALUE}")))


def lived(host: LabMachine, intent: Document) -> Lived:
    """Both guests of the intent run; one is shut off and edited at rest, the other one is edited while it runs."""
    host.shell(f"virsh destroy {OFF}")
    first, before = definitions(host), run_of(host, RUNS)
    wide, off = ({**guest, "memory": "448MiB"} for guest in intent["guests"])  # less for the one, more for the other
    new = {**off, "name": NEW, "gpus": [GPU], "nics": None, "memory": "256MiB", "firmware": "efi"}

    def applied(*guests: Document) -> Applied:
        return apply(host, {**intent, "settings": SETTINGS, "guests": [*guests]})

    edited = applied(wide, off)
    added = applied(wide, off, new)
    host.shell(f"mkdir -p {os.path.dirname(VARIABLES)}; echo of this guest >{VARIABLES}")  # as its first start would
    variables = [digest(host, VARIABLES)]

    # In one night a setting, a definition and a guest drift.
    host.shell(f"echo {THIRD} >{VALUE}; virsh undefine --keep-nvram {NEW}; qemu-img create -q -f raw {DISK} 1M")
    host.shell("virsh define /dev/stdin", stdin=edited_by_hand(added.definitions[OFF]))
    mended = applied(wide, off, new)

    removed = applied(wide, off, {"name": NEW, "state": "absent"})
    driver = facts.functions_of_lspci(host)[GPU].get("Driver")
    variables.append(digest(host, f"{STATE}/removed/*/*.fd"))

    past = run(host, "history")
    assert past.document is not None, past.errors
    history = past.document["transactions"]
    undone = apply(host, json.loads(host.shell(f"hosttune history {history[-2]['number']} --intent -o json")))
    again = run(host, "apply", "--intent", INTENT, "--yes")
    variables.append(digest(host, VARIABLES))
    host.shell(f"rm {DISK} {INTENT}")
    return Lived(
        first, before, edited, added, mended, removed, driver, undone, again, variables, history,
        run_of(host, RUNS),
    )  # fmt: skip


def digest(host: LabMachine, path: str) -> str:
    """Of a file."""
    return host.shell(f"sha256sum {path}").split()[0]


def edited_by_hand(definition: str) -> str:
    """A vCPU is on another CPU, which the intent decides; a title and a disk, which it does not."""
    pinned = {"cpuset": f"11,{read_domain(definition).vcpu_pins[0].cpus}"}
    disk = f"<disk type='file' device='disk'><source file='{DISK}'/><target dev='vdz' bus='virtio'/></disk>"
    return with_edits(
        definition, ("cputune/vcpupin[@vcpu='0']", pinned), (".", "<title>theirs</title>"), ("devices", disk)
    )
