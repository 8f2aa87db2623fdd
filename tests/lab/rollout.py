"""One story for many tests: two hosts that boot by GRUB, brought through `hosttune fleet` to an intent and back again.

The canary is in the way twice before the second host's turn comes: it has a running guest, then somebody's service
makes it worse at the boot. Both are then mended, and the run goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lab import facts
from lab.fleet import Asked, Controller
from lab.machine import LabMachine
from lab.product import STATE, install

Document = dict[str, Any]
CANARY, SECOND = "canary", "second"
GPU = "0000:c1:00.0"
UNIT = "hosttune-boot.service"
POOL = "/sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages"
FOLDERS = ("/etc", "/boot")
# What no file of the distribution sets and so every boot must set again: value by path.
RUNTIME = {
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "/proc/sys/kernel/numa_balancing": "0",
    "/proc/sys/vm/compaction_proactiveness": "0",
    "/sys/devices/system/cpu/cpu6/power/pm_qos_resume_latency_us": "10",
    "/sys/devices/system/cpu/cpu7/power/pm_qos_resume_latency_us": "10",
}
# On node 1, where the running kernel can still find a whole gigabyte; on node 0 it has none.
INTENT: Document = {
    "version": 1,
    "profile": "host",
    "guests": [
        {
            "name": "staged",
            "gpus": [GPU],
            "vcpus": 2,
            "memory": "1GiB",
            "hugepages": "1GiB",
            "firmware": "bios",
            "accelerator": "tcg",
        }
    ],
}
# A guest of somebody's: it boots from nothing, and runs.
TENANT = """<domain type='qemu'><name>tenant</name><memory unit='MiB'>16</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type></os></domain>"""
# A service of somebody's that is on from the next boot, as ksmtuned of a distribution's virtualisation packages is.
KSM = "/sys/kernel/mm/ksm/run"
MERGER = "merge-pages.service"
MERGER_TEXT = f"""[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo 1 >{KSM}'
[Install]
WantedBy=multi-user.target
"""


class Boot(NamedTuple):
    """A machine as one boot shows it. `state`: the files that hosttune keeps."""

    id: str
    arguments: list[str]
    values: dict[str, str]
    pages: int
    driver: str | None
    files: dict[str, str]
    state: list[str]


class Rollout(NamedTuple):
    """What was asked of the fleet in this order, and the hosts at each stage."""

    before: dict[str, Boot]
    planned: Asked
    guarded: Asked  # the canary has a running guest
    staged: Boot  # the canary's
    broken: Asked  # then a service of somebody's makes it worse at the boot
    spared: Boot  # the second host, after both
    done: Asked
    booted: dict[str, Boot]
    unit: dict[str, str]  # the second host's boot unit
    libvirtd: dict[str, str]
    report: str
    reverted: Asked
    taken: dict[str, Boot]


def look(lab: LabMachine) -> Boot:
    """The machine now."""
    values = lab.shell(f"grep -H . {' '.join(RUNTIME)}").splitlines()
    return Boot(
        id=lab.boot_id(),
        arguments=facts.arguments_of_kernel(lab),
        values=dict(line.split(":", 1) for line in values),
        pages=int(lab.shell(f"cat {POOL}")),
        driver=facts.functions_of_lspci(lab)[GPU].get("Driver"),
        files=facts.files_below(lab, *FOLDERS),
        state=lab.shell(f"find {STATE} -type f", check=False).split(),
    )


def times_of(lab: LabMachine, unit: str) -> dict[str, str]:
    """systemd's facts of a service in this boot."""
    names = "ActiveState,Result,ExecMainStatus,ExecMainStartTimestampMonotonic,ExecMainExitTimestampMonotonic"
    lines = lab.shell(f"systemctl show {unit} -p {names}").splitlines()
    return dict(line.split("=", 1) for line in lines)


def rolled_out(canary: LabMachine, second: LabMachine, folder: Path, home: Path) -> Rollout:
    """The whole story, on two hosts just booted by GRUB; in the end they are as before."""
    hosts = {CANARY: canary, SECOND: second}
    for machine in hosts.values():
        install(machine)
    before = {name: look(machine) for name, machine in hosts.items()}
    fleet = Controller(folder, home, hosts)
    fleet.set_up(INTENT)
    planned = fleet.ask("plan")
    change = ("--reboot", "--waves", "1,100%")
    with running_guest(canary):
        guarded, staged = fleet.ask("apply", *change), look(canary)
    with service_of_somebody(canary):
        broken, spared = fleet.ask("apply", "--reboot", "--resume"), look(second)
    done = fleet.ask("apply", "--reboot", "--resume")
    booted = {name: look_anew(machine) for name, machine in hosts.items()}
    unit, libvirtd = times_of(second, UNIT), times_of(second, "libvirtd.service")
    report = second.shell(f"journalctl -b -o cat -u {UNIT}")
    reverted = fleet.ask("revert", "--reboot", "--waves", "100%")
    taken = {name: look_anew(machine) for name, machine in hosts.items()}
    return Rollout(
        before, planned, guarded, staged, broken, spared, done, booted, unit, libvirtd, report, reverted, taken,
    )  # fmt: skip


def look_anew(lab: LabMachine) -> Boot:
    """The machine now, by a connection that no boot of it has ended."""
    lab.hang_up()
    return look(lab)


@contextlib.contextmanager
def running_guest(lab: LabMachine) -> Iterator[None]:
    """With a guest that runs."""
    lab.shell("virsh create /dev/stdin", stdin=TENANT)
    try:
        yield
    finally:
        lab.shell("virsh destroy tenant")


@contextlib.contextmanager
def service_of_somebody(lab: LabMachine) -> Iterator[None]:
    """With a service that the next boot starts: it merges the pages of guests. Its trace is gone afterwards."""
    lab.shell(f"cat >/etc/systemd/system/{MERGER} && systemctl enable {MERGER}", stdin=MERGER_TEXT)
    try:
        yield
    finally:
        lab.hang_up()
        lab.shell(f"systemctl disable {MERGER} && rm /etc/systemd/system/{MERGER} && echo 0 >{KSM}")
