"""docs/tutorial.md on the emulated host: its commands in their order, also those "on the machine".

`make test` runs the page on a scratch root (system/test_docs_apply.py). Here are a kernel, libvirt and guests that run,
and NVMe drives in place of GPUs, so that a hand-over can end with exit 0. It takes about half an hour
beside other work, five minutes of which are a guest's boot, emulated twice.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from docpages import commands, files, shown, story
from sweeps import FULL

from lab.hardware import further_drive
from lab.machine import Answer, LabMachine, booted
from lab.product import STATE, install
from lab.testimage import IMAGE, build

pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FULL, reason="make lab-full: a machine of its own")]

HOME = "/root/tutorial"
SECONDS = 900  # of a command, beside other work
ALICE, BOB = ("0000:c4:00.0", "0000:c5:00.0"), "0000:47:00.0"
GUEST = "vcpus: 2, firmware: bios, accelerator: tcg"
# What stands for what is on the page: drives for GPUs, 2 MiB for each GiB, emulation for KVM, no question.
INSTEAD = (
    (r" --root try\b", ""),
    (r"\btry/", "/"),
    ("example-hgx-h200", "lab-host"),
    ("0000:41:00.0", ALICE[0]),
    ("0000:56:00.0", ALICE[1]),
    ("0000:18:00.0", BOB),
    (r"0000:41\.", "0000:c4."),
    (r"\(gpu", "(nvme"),
    ("bind nvidia", "bind nvme"),
    ("handover --guest alice", "handover --guest alice --erase 0000:c4:00.0=LAB1 --erase 0000:c5:00.0=GPU5"),
    (r"gpus: (\d)", rf"gpus: 0, nvme: \1, {GUEST}"),
    ("--gpus 1", "--gpus 0 --nvme 1 --vcpus 2 --firmware bios --accelerator tcg"),
    (r"\b(\d+)( ?)GiB", lambda size: f"{2 * int(size[1])}{size[2]}MiB"),
    ("hugepages-1048576kB", "hugepages-2048kB"),
    (r"\{libvirt_hook: true\}", "{libvirt_hook: true, numa_balancing: 0}"),
    ("grep energy", "grep numa_balancing"),
    ("^hosttune apply --start", "hosttune apply --start --yes"),
)
# The key that the guest was given, as it says it itself. Emulated twice, it has the host's CPU to itself.
HEARD = (
    "virsh -q destroy bob;"
    f" timeout {SECONDS - 100} sed -n '/ops@desk/{{p;q}}' <$(virsh ttyconsole alice) | cat | grep ops@desk"
)
# Commands that do here what those of the page do on a scratch root; its guests have no system that hears `shutdown`.
OTHERS = {
    # Emulated beside other work, a benchmark may have no figure in its time, which is unknown.
    "hosttune validate --level 1": "hosttune validate --level 1 || [ $? -eq 1 ]",
    "echo running > try/": "virsh -q start bob",
    "rm try/": "virsh -q destroy bob",
    # What waited for bob's stop is done by the unit before anybody starts it again.
    "virsh shutdown": "virsh -q destroy bob; until hosttune history | grep after-stop; do sleep 5; done",
    # The page goes on with bob alone.
    "hosttune apply --start    #": "hosttune apply --start --yes && virsh -q destroy alice",
    # No system with sshd comes up in time, emulated twice. The page goes on with guests that are off.
    "ssh ops@192.168.122.41 nvidia-smi": HEARD,
    "ssh ops@192.168.122.41 sudo": "virsh -q destroy alice",
    "echo balance_power": "echo 1 > /proc/sys/kernel/numa_balancing",
    'at=try/sys/bus/pci/devices/0000:18:00.0; mv "$': f"echo 1 > /sys/bus/pci/devices/{BOB}/remove",
    "at=try/sys/bus/pci/devices/0000:18:00.0; mv link": "echo 1 > /sys/bus/pci/rescan; udevadm settle",
}
LEFT_OUT = {
    "apt ": "the packages are in the image; hosttune runs from the tree (test_lab_packages.py installs its own)",
    **dict.fromkeys(
        ("grep quarantined", "hosttune revert --root try --yes 2>&1", "hosttune handover release"),
        "of a device whose memory cannot be searched; the drives are erased",
    ),
    **dict.fromkeys(("mkdir -p try", "tar xf", "touch try", "echo 0123456789abcdef"), "makes the scratch root"),
}
# What is shown of this host and not of the page's.
SHOWN = {
    "hosttune handover --root try --guest alice --dry-run": """\
  0000:c4:00.0 (nvme, of guest alice): quarantine, reset (flr), bind nvme, erase serial number LAB1,""",
    "hosttune handover --root try --guest alice --yes": "exit 0",
    "hosttune discover": """...
  devices  5 x other display, 3 NICs, 4 NVMe drives, 35 PCI functions in all
node 0""",
    "hosttune validate --root try > first": """exit 0
  ! time-sync: host""",
    "head -1 plan.txt": """plan for lab-host: 2 guests placed
guest alice: 2 vCPUs (1 socket x 1 core x 2 threads), 128 MiB in 2 MiB pages, 2 devices, accelerator
tcg: slow, for trials
  cell 0            host node 1, 128 MiB (64 pages)
    vCPUs 0-1       host CPUs 8 with siblings 9""",
    "hosttune plan --root try -f intent.yaml 2> /dev/null | sed -n '/What": """What changes of the guests
  ~ guest bob
      memory: 128 MiB -> 192 MiB
      cells: node 0: 128 MiB, vCPUs 0-1 -> node 0: 192 MiB, vCPUs 0-1
  = stays as it is: guest alice""",
    "hosttune apply --root try --intent intent.yaml --yes > running": """\
  pending  hugepages /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages: 96 ->
           80
            guest bob still runs on it: virsh shutdown bob, then hosttune apply --start""",
    "hosttune apply --root try --intent intent.yaml --yes | grep energy": """\
  done     numa-balancing kernel.numa_balancing: 1 -> 0""",
    "hosttune plan --root try -f inference.yaml": """\
  + guest small-0: 2 vCPUs (1 socket x 1 core x 2 threads), 64 MiB in 2 MiB pages, 1 device,
  + guest small-1: 2 vCPUs (1 socket x 1 core x 2 threads), 64 MiB in 2 MiB pages, 1 device,
  - guest alice
  - guest bob""",
    # With the two that started guests.
    "hosttune history --root try |": """\
 1 2026-11-28 09:00Z root apply intent.yaml +alice +bob
 2 2026-11-28 09:00Z root apply intent.yaml
 3 2026-11-28 09:00Z root apply intent.yaml ~bob
 4 2026-11-28 09:00Z root apply options +carol
 5 2026-11-28 09:00Z root apply intent.yaml ~bob
 6 2026-11-28 09:00Z root, unit after-stop
 7 2026-11-28 09:00Z root apply intent.yaml
 8 2026-11-28 09:00Z root apply intent.yaml
 9 2026-11-28 09:00Z root revert-guest -carol
...""",
    "hosttune status --root try\n": "lab-host: nothing in force\n...",  # and what was handed over
}
# A bridge instead of libvirt's own network, which needs dnsmasq.
NETWORK = "<network><name>default</name><forward mode='bridge'/><bridge name='virbr9'/></network>"
KEYS = """ssh-keygen -q -t ed25519 -N '' -f handover_key; ssh-keygen -q -k -f krl
echo 'ops@example.com namespaces="hosttune-handover" '$(cat handover_key.pub) >allowed_signers"""
# Of the guest: what its seed brings it, said again and again on its serial line.
INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /seed; /bin/busybox --install -s /bin; export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
while read m; do insmod /mods/$m; done </mods/order
while [ ! -b /dev/sr0 ]; do sleep 1; done
mount -t iso9660 -o ro /dev/sr0 /seed
while :; do echo SEED; cat /seed/user-data; echo SEED-END; sleep 10; done
"""


def told(text: str) -> str:
    """A text of the page, about this host."""
    for pattern, new in INSTEAD:
        text = re.sub(pattern, new, text)
    return text


def of(line: str, table: dict[str, str]) -> str | None:
    """What a table has for a command: its keys are what commands begin with, to the line's end where they have one."""
    return next((value for begin, value in table.items() if f"{line}\n".startswith(begin)), None)


@pytest.fixture(scope="module")
def host(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabMachine]:
    """A host with two more drives, the network `default`, an image of a guest, keys, and the files of the page."""
    more: list[str] = []
    for place in (5, 6):
        file = tmp_path_factory.mktemp("drive") / "raw"
        with file.open("wb") as drive:
            drive.truncate(64 << 20)
        more += further_drive(f"GPU{place}", place, f"driver=raw,file.driver=file,file.filename={file}")
    with booted(image, cores=3, more=more) as machine:
        install(machine)
        bridge = "ip link add virbr9 type bridge; ip link set virbr9 up; virsh net-undefine default"
        machine.shell(f"mkdir -p {HOME}; {bridge}; virsh net-define /dev/stdin", stdin=NETWORK)
        build(machine, INIT)
        machine.shell(f"cd {HOME}; mv {IMAGE} debian-13-generic-amd64.qcow2; {KEYS}")
        for name, text in files(story("tutorial.md")):
            machine.shell(f"cat >{HOME}/{name}", stdin=told(text))
        yield machine


def run(host: LabMachine, line: str) -> Answer:
    """What a command prints on both streams, where the page's files are."""
    # hosttune's own programs import it, too; it is not installed here.
    return host.shell(
        f"cd {HOME}; export LC_ALL=C.UTF-8 PYTHONPATH=/mnt/tree; {{ {line}\n}} 2>&1", check=False, timeout=SECONDS
    )


def test_every_command_of_the_page_does_what_it_says(host: LabMachine) -> None:
    wrong = []
    for command in commands(story("tutorial.md")):
        line, begun = command.line, time.monotonic()
        if of(line, LEFT_OUT):
            continue
        ran = run(host, told(of(line, OTHERS) or line))
        print(f"{ran.status} $ {line}  ({time.monotonic() - begun:.0f} s)\n{ran}", flush=True)
        other = of(line, SHOWN)
        expected = other.splitlines() if other else told("\n".join(command.shown)).splitlines()
        if not (re.fullmatch(shown(expected), ran) if command.here else ran.status == 0):
            wrong.append(f"$ {line}\n{ran}")
    assert not wrong, "\n".join(wrong)
    assert host.shell(f"ls {STATE} 2>&1; virsh list --all --name", check=False).split()[-1] == "directory"
