"""The shipped alerts about a real host: the agent and node_exporter there, Prometheus and Alertmanager here.

A healthy time first, in which nothing may fire. Then one fault after the other: its alert, with its labels, within two
intervals; nothing else; and silence again once it is gone. The rules are the shipped ones with every `for` divided by
60: what is waited for an hour elsewhere is a minute here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweeps import FULL

from lab.machine import LabMachine, booted
from lab.product import plan, run
from lab.watching import (
    BEGAN,
    EXPORTER,
    FOLDER,
    GUEST,
    SCRAPE_SECONDS,
    TEXTFILE,
    UNIT,
    VCPU_CPU,
    WRONG_CPU,
    Agent,
    Monitoring,
    Wanted,
    agent_runs,
    exporter_runs,
    keeping_drop_in,
    move_thread,
    needs_monitoring,
    start_exporter,
    start_guest,
)

# By the clock, and beside another emulated host: not for every run.
pytestmark = [pytest.mark.lab, needs_monitoring, pytest.mark.skipif(not FULL, reason="make lab-full: ten minutes")]
fault = pytest.mark.sweep(most=2)  # each of them takes half a minute; all of them in a full sweep

# A sample may run while another emulated host uses the CPUs: a look may then take longer than the five intervals of 2
# seconds after which metrics are old.
INTERVAL = 2 if FULL else 10
HEALTHY_SECONDS = 120 if FULL else 20
GPU, DRIVE, NIC, PORT = "0000:c1:00.0", "0000:c4:00.0", "0000:46:00.0", "0000:44:01.0"
BALANCING = "/proc/sys/kernel/numa_balancing"
LIBVIRT = "libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket libvirtd.service"
INTENT: dict[str, Any] = {
    "version": 1,
    "profile": "none",
    "settings": {"numa_balancing": 0},
    "guests": [
        {
            "name": "checked", "gpus": [GPU], "vcpus": 2, "memory": "256MiB", "hugepages": "2MiB",
            "firmware": "bios", "accelerator": "tcg",
        }
    ],
}  # fmt: skip
# Stands in for a link that lost lanes: both ends say that they can do four lanes of 2.5 GT/s, in sysfs and in their
# configuration space, and have the one lane that QEMU's links have.
WIDER = """
import struct, subprocess, sys
for address in sys.argv[1:]:
    folder = f"/sys/bus/pci/devices/{address}"
    config = bytearray(open(f"{folder}/config", "rb").read())
    at = config[0x34]
    while config[at] != 0x10:
        at = config[at + 1]
    (able,) = struct.unpack_from("<I", config, at + 12)
    struct.pack_into("<I", config, at + 12, able & ~0x3FF | 4 << 4 | 1)
    files = {"config": bytes(config), "max_link_width": b"4\\n", "max_link_speed": b"2.5 GT/s PCIe\\n"}
    for name, data in files.items():
        path = f"/run/wider-{address}-{name}"
        open(path, "wb").write(data)
        subprocess.run(("mount", "--bind", path, f"{folder}/{name}"), check=True)
"""


class Watch:
    """The host, its agent, and what watches both."""

    def __init__(self, lab: LabMachine, agent: Agent, monitoring: Monitoring) -> None:
        self.lab, self.agent, self.monitoring = lab, agent, monitoring

    def limit(self, extra: float = 0) -> float:
        """Two intervals of the agent with the look that each ends with, two of Prometheus, and what `for` adds."""
        look = self.monitoring.number("max_over_time(hosttune_run_duration_seconds[30m])") or 0
        return 2 * (INTERVAL + look) + 3 * SCRAPE_SECONDS + extra

    def found(self, *wanted: Wanted, extra: float = 0, beside: tuple[str, ...] = ()) -> None:
        """These alerts come within two intervals, and none but them, and what goes along with them (`beside`)."""
        limit = self.limit(extra)
        start = time.monotonic()
        for one in wanted:
            self.monitoring.raised(one, limit - (time.monotonic() - start))
        names = {one["alertname"] for one in self.monitoring.alerts()}
        assert {one.name for one in wanted} <= names <= {*(one.name for one in wanted), *beside}

    def over(self, extra: float = 0) -> None:
        """Silence again."""
        self.monitoring.silent(self.limit(extra) + 10)


@pytest.fixture(scope="module")
def watch(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """A host of its own that was applied, validated and is watched; a guest runs."""
    with booted(image) as lab, agent_runs(lab, INTERVAL) as agent:
        lab.shell("modprobe vfio-pci")
        lab.shell(f"systemctl stop {UNIT}; echo 1 >{BALANCING}")
        plan(lab, INTENT)
        assert run(lab, "apply", "--yes").status == 0
        start_guest(lab)
        lab.shell("hosttune validate", check=False)
        lab.shell(f"systemctl start {UNIT}", timeout=300)
        with exporter_runs(lab), Monitoring.runs(tmp_path_factory.mktemp("prometheus"), lab) as monitoring:
            yield Watch(lab, agent, monitoring)


def test_a_healthy_time_is_silent(watch: Watch) -> None:
    watch.monitoring.silent(30)
    time.sleep(HEALTHY_SECONDS)
    assert watch.monitoring.fired(HEALTHY_SECONDS - 1) == set()
    age = watch.monitoring.number("max_over_time(hosttune:run_age_seconds[3m])")
    took = watch.monitoring.number("max_over_time(hosttune_run_duration_seconds[3m])")
    print(f"lab: silent for {HEALTHY_SECONDS} s; metrics at most {age:.1f} s old, a look took at most {took:.1f} s")


@fault
def test_a_link_that_lost_lanes(watch: Watch) -> None:
    watch.lab.shell(f"python3 - {NIC} {PORT}", stdin=WIDER)
    try:
        watch.found(Wanted("HosttunePcieLinkDegraded", {"subject": NIC}), beside=("HosttuneVerdictFail",))
    finally:
        paths = " ".join(
            f"/sys/bus/pci/devices/{one}/{name}"
            for one in (NIC, PORT)
            for name in ("config", "max_link_width", "max_link_speed")
        )
        watch.lab.shell(f"for path in {paths}; do umount $path; done; rm -f /run/wider-*")
    watch.over()


@fault
def test_a_setting_that_drifts(watch: Watch) -> None:
    watch.lab.shell(f"echo 1 >{BALANCING}")
    try:
        wanted = Wanted("HosttuneSettingDrifted", {"kind": "numa-balancing"})
        watch.found(wanted, extra=1, beside=("HosttuneCheckFailed", "HosttuneVerdictFail"))
    finally:
        watch.lab.shell(f"echo 0 >{BALANCING}")
    watch.over()


@fault
def test_a_setting_that_is_kept_and_given_up(watch: Watch) -> None:
    """With the drop-in of docs/watch.md: set again twice, then left alone with an alert, by the next agent too."""
    lab, folder = watch.lab, f"/run/systemd/system/{UNIT}.service.d"
    lab.shell(f"mkdir -p {folder}; cat >{folder}/keep.conf; systemctl daemon-reload", stdin=keeping_drop_in(INTERVAL))
    lab.shell(f"systemctl restart {UNIT}", timeout=300)
    corrected = 'hosttune_watch_keep_corrections_total{outcome="corrected"}'
    try:
        for times in (1, 2):
            lab.shell(f"echo 1 >{BALANCING}")
            watch.agent.until(f"correction {times}", lambda: watch.agent.value(corrected) == times)  # noqa: B023
            assert lab.shell(f"cat {BALANCING}").strip() == "0"
        lab.shell(f"echo 1 >{BALANCING}")
        wanted = Wanted("HosttuneKeepGaveUp", {"kind": "numa-balancing"})
        beside = ("HosttuneSettingDrifted", "HosttuneCheckFailed", "HosttuneVerdictFail")
        watch.found(wanted, extra=INTERVAL, beside=beside)
        lab.shell(f"systemctl restart {UNIT}", timeout=300)
        began = watch.agent.value(BEGAN) or 0.0
        watch.agent.until("two more looks", lambda: (watch.agent.value(BEGAN) or 0.0) > began + 2 * INTERVAL)
        assert (lab.shell(f"cat {BALANCING}").strip(), watch.agent.value(corrected)) == ("1", 0)
        watch.monitoring.raised(wanted, watch.limit())
    finally:
        lab.shell(f"echo 0 >{BALANCING}; rm -r {folder}; systemctl daemon-reload")
        lab.shell(f"systemctl restart {UNIT}", timeout=300)
    watch.over()


@fault
def test_a_thread_that_was_moved(watch: Watch) -> None:
    move_thread(watch.lab, WRONG_CPU)
    try:
        watch.found(
            Wanted("HosttuneGuestMisplaced", {"guest": GUEST, "kind": "pins"}),
            Wanted("HosttuneCheckFailed", {"check": "guest-pins", "subject": GUEST}),
            extra=1, beside=("HosttuneVerdictFail",),
        )  # fmt: skip
    finally:
        move_thread(watch.lab, VCPU_CPU)
    watch.over()


@fault
def test_a_device_that_was_unbound(watch: Watch) -> None:
    watch.lab.shell(f"echo {GPU} >/sys/bus/pci/drivers/vfio-pci/unbind")
    try:
        wanted = Wanted("HosttuneSettingDrifted", {"kind": "driver", "subject": GPU})
        watch.found(wanted, extra=1, beside=("HosttuneCheckFailed", "HosttuneVerdictFail"))
    finally:
        watch.lab.shell(f"echo {GPU} >/sys/bus/pci/drivers/vfio-pci/bind")
    watch.over()


@fault
def test_a_device_that_is_gone(watch: Watch) -> None:
    watch.lab.shell(f"echo 1 >/sys/bus/pci/devices/{DRIVE}/remove")
    try:
        wanted = Wanted("HosttuneDevicesMissing", {"kind": "nvme"})
        watch.found(wanted, beside=("HosttuneCheckFailed", "HosttuneVerdictFail"))
    finally:
        watch.lab.shell("echo 1 >/sys/bus/pci/rescan; udevadm settle")
    watch.over()


@fault
def test_libvirt_that_stops(watch: Watch) -> None:
    watch.lab.shell(f"systemctl stop {LIBVIRT}")
    try:
        watch.found(
            Wanted("HosttuneEventsMissed", {"source": "libvirt"}),
            Wanted("HosttuneSourceUnreadable", {"source": "guests"}),
            extra=10,
            beside=(
                *("HosttuneVerdictUnknown", "HosttuneCheckUnknown"),
                *("HosttuneGuestPlacementUnknown", "HosttuneSettingUnknown"),
            ),
        )  # fmt: skip
    finally:
        watch.lab.shell(f"systemctl start {LIBVIRT}")
    watch.over(10)


@fault
def test_a_watch_that_stops(watch: Watch) -> None:
    watch.lab.shell(f"systemctl stop {UNIT}", timeout=120)
    try:
        watch.found(Wanted("HosttuneStale"), extra=5 * INTERVAL + 1)
    finally:
        watch.lab.shell(f"systemctl start {UNIT}", timeout=300)
    watch.over()


@fault
def test_a_watch_killed_in_the_middle_of_a_write(watch: Watch) -> None:
    """Killed when it syncs the temporary file: the earlier file stays whole, and systemd starts another one."""
    lab = watch.lab
    process = lab.shell(f"systemctl show {UNIT} -p MainPID --value").strip()
    lab.shell(
        f"timeout 60 strace -q -o /dev/null -p {process} -e inject=fsync:signal=SIGKILL:when=1 -e trace=fsync",
        check=False,
        timeout=90,
    )
    left = lab.shell(f"ls -A {FOLDER}").split()
    assert len(left) == 2, left
    assert "# HELP hosttune_" in lab.shell(f"head -1 {TEXTFILE}")
    watch.found(Wanted("HosttuneStale"), extra=5 * INTERVAL + 1)
    watch.over(60)
    assert lab.shell(f"ls -A {FOLDER}").split() == [TEXTFILE.rpartition("/")[2]], "what it left is removed"
    assert lab.shell(f"systemctl show {UNIT} -p NRestarts --value").strip() == "1"
    assert "HosttuneTextfileError" not in watch.monitoring.fired(60)


@fault
def test_a_full_disk(watch: Watch) -> None:
    watch.lab.shell(f"dd if=/dev/zero of={FOLDER}/filler bs=4k", check=False)
    try:
        watch.found(Wanted("HosttuneStale"), extra=5 * INTERVAL + 1)
        assert "# HELP hosttune_" in watch.lab.shell(f"head -1 {TEXTFILE}"), "the earlier file stays"
    finally:
        watch.lab.shell(f"rm {FOLDER}/filler")
    watch.over()
    assert "is written again" in watch.lab.shell(f"journalctl -u {UNIT} -o cat")


@fault
def test_a_node_exporter_that_restarts(watch: Watch) -> None:
    watch.lab.shell(f"systemctl stop {EXPORTER}")
    try:
        watch.found(Wanted("HosttuneHostDown"), extra=2, beside=("HosttuneStale",))
    finally:
        start_exporter(watch.lab)
    watch.over()


def test_nothing_was_lost(watch: Watch) -> None:
    """No event was dropped, every source is open, the agent did not fail to look, and the last file is today's."""
    query = watch.monitoring.number
    # An agent that was just started has its connection to libvirt after its first file.
    watch.monitoring.until("every source", lambda: query("min(hosttune_watch_source_up)") == 1, watch.limit())
    assert query("sum(max_over_time(hosttune_watch_events_lost_total[1h]))") == 0
    assert query("max_over_time(hosttune_watch_look_failed[1h])") == 0
    fresh = 5 * INTERVAL  # node_exporter is just back: the recorded age may be missing for one more evaluation
    watch.monitoring.until("fresh metrics", lambda: (query("hosttune:run_age_seconds") or fresh) < fresh, watch.limit())
