"""Real QEMU processes, nobody's but the test's: what is read of them, against QMP; and one guest judged both ways."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from examplehosts import discovered
from libvirtd import Libvirtd, libvirtd
from xmledits import edited

from hosttune.discovery.running import read_running
from hosttune.domain.guest import Guest
from hosttune.domain.reader import read_domain
from hosttune.domain.running import Running, definition
from hosttune.linux.qemuline import read_options
from hosttune.machine.live import LiveMachine
from hosttune.machine.reader import Reader
from hosttune.rules.lint import LintedDefinition, Manager, lint

__all__ = ["libvirtd"]
PROGRAM = "qemu-system-x86_64"
needs_qemu = pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"{PROGRAM} is not installed")
LINES = {
    "cells": "-smp 4,sockets=2,cores=2,threads=1 -m 128M -object memory-backend-ram,id=m0,size=64M"
    " -object memory-backend-memfd,id=m1,size=64M,prealloc=on -numa node,nodeid=0,cpus=0-1,memdev=m0"
    " -numa node,nodeid=1,cpus=2-3,memdev=m1",
    "tree": "-smp 1 -m 64M -device pxb-pcie,id=x1,bus_nr=32,bus=pcie.0,addr=5"
    " -device pcie-root-port,id=rp1,bus=x1,chassis=1,addr=0 -device x3130-upstream,id=up,bus=rp1"
    " -device xio3130-downstream,id=d1,bus=up,addr=1,chassis=2 -device virtio-rng-pci,bus=d1",
    "placed": "-smp 4,sockets=1,cores=2,threads=2,maxcpus=4 -m 64M -object memory-backend-ram,id=m0,size=64M"
    " -numa node,nodeid=0,memdev=m0 -numa node,nodeid=1 -numa cpu,node-id=0,socket-id=0,core-id=0"
    " -numa cpu,node-id=1,socket-id=0,core-id=1",
}


class Qmp:
    """QEMU's own answers (docs/interop/qmp-spec). Shares no code with hosttune."""

    def __init__(self, path: Path) -> None:
        for _ in range(100):
            if path.exists():
                break
            time.sleep(0.1)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(str(path))
        self._file = self._socket.makefile("rw")
        self._file.readline()
        self.ask("qmp_capabilities")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, command: str, **arguments: str) -> Any:
        self._file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self._file.flush()
        while "return" not in (answer := json.loads(self._file.readline())):
            assert "error" not in answer, answer
        return answer["return"]


@pytest.fixture(params=LINES, ids=list(LINES))
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, Qmp]]:
    monitor = tmp_path / "qmp"
    argv = [
        PROGRAM,
        "-name",
        f"guest={request.param},debug-threads=on",
        "-machine",
        "q35",
        "-accel",
        "tcg,thread=multi",
    ]
    argv += ["-S", "-nodefaults", "-display", "none", "-qmp", f"unix:{monitor},server=on,wait=off"]
    started = subprocess.Popen([*argv, *LINES[request.param].split()])
    try:
        qmp = Qmp(monitor)
        yield started.pid, qmp
        qmp.close()
    finally:
        started.kill()
        started.wait()


def read(pid: int) -> Guest:
    (running,) = [one for process, one in read_running(Reader(LiveMachine())) or () if process.pid == pid]
    return read_domain(definition(running, discovered()))


@needs_qemu
def test_facts_are_those_that_qmp_tells(process: tuple[int, Qmp]) -> None:
    pid, qmp = process
    cpus = qmp.ask("query-cpus-fast")
    for cpu in cpus:
        os.sched_setaffinity(cpu["thread-id"], {cpu["cpu-index"] % (os.cpu_count() or 1)})
    guest = read(pid)
    assert (guest.type, guest.vcpus) == ("qemu", len(cpus))
    assert {vcpu: set(cpus) for vcpu, cpus in guest.pins.items()} == {
        cpu["cpu-index"]: os.sched_getaffinity(cpu["thread-id"]) for cpu in cpus
    }
    cells = {vcpu: cell.id for cell in guest.cells for vcpu in sets(cell.vcpus)}
    assert cells == {cpu["cpu-index"]: cpu["props"]["node-id"] for cpu in cpus if "node-id" in cpu["props"]}
    assert memory_of(guest) == sum(one["size"] for one in qmp.ask("query-memdev")) or not guest.cells
    ports = [one.address for one in guest.controllers if one.address]
    assert sorted((int(place[8:10], 16), int(place[-1])) for place in ports) == sorted(bridges_of(qmp))


def sets(text: str) -> set[int]:
    spans = (part.split("-") for part in text.split(",") if part)
    return {one for span in spans for one in range(int(span[0]), int(span[-1]) + 1)}


def memory_of(guest: Guest) -> int:
    return sum(cell.memory_bytes or 0 for cell in guest.cells)


BRIDGES = ("pxb-pcie", "pcie-root-port", "x3130-upstream", "xio3130-downstream")


def bridges_of(qmp: Qmp) -> list[tuple[int, int]]:
    """Slot and function of each bridge. query-pci shows none behind a port before firmware has numbered the buses."""
    place = "/machine/peripheral"
    made = [one["name"] for one in qmp.ask("qom-list", path=place) if one["type"][6:-1] in BRIDGES]
    return [divmod(qmp.ask("qom-get", path=f"{place}/{name}", property="addr"), 8) for name in made]


@needs_qemu
def test_the_command_judges_it_and_changes_nothing(process: tuple[int, Qmp]) -> None:
    pid, qmp = process
    done = subprocess.run(
        [sys.executable, "-m", "hosttune", "lint", "--running", "-o", "json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in (0, 1), done.stderr
    files = {one["file"] for one in json.loads(done.stdout)["findings"]}
    assert any(file.endswith(f" (process {pid}, started by hand)") for file in files)
    assert qmp.ask("query-status")["status"] == "prelaunch"


# What only libvirt knows, or only a process: the XML says it, a command line does not.
ONLY_ONE_WAY = {"managed", "hugetlbfs-mount", "memory-locking", "secure-boot", "qemu-arguments", "running-read"}
ONLY_ONE_WAY |= {
    "confidential-type",
    "host-driver",
    "port-hotplug",
}  # as managed is not known; of ports that libvirt adds
ONLY_ONE_WAY |= {"hypervisor-offers", "device-place", "guest-arch"}
ONLY_ONE_WAY |= {"topology-missing", "page-size", "memory-allocation"}  # libvirt writes what the XML leaves open
PINNED = {
    "vcpu-pins",
    "emulator-pin",
    "iothread-pins",
    "cpus-usable",
    "boot-core",
    "memory-near-vcpus",
    "gpu-vcpus",
    "sibling-pins",
}
GUEST = Path(__file__).parents[1] / "cases/lint"


@pytest.mark.parametrize("name", ["virt-install-gpu", "virt-install-two", "by-hand"])
def test_a_guest_of_libvirt_is_judged_equally_both_ways(libvirtd: Libvirtd, name: str) -> None:
    xml = edited((GUEST / f"{name}.xml").read_bytes(), ".", {"type": "qemu"}, each=True)
    xml = edited(xml, "cpu[@mode='host-passthrough']", {"mode": "maximum"}, each=True)  # the daemon has no KVM here
    xml = edited(xml, "devices/interface", None, each=True)  # virsh would open /dev/net/tun
    xml = edited(xml, "devices/hostdev[@type='pci']", "<driver name='vfio'/>", each=True)
    host = discovered()
    here = edited(xml, ".//*[@cpuset]", {"cpuset": "0"}, each=True)  # pins are not on the command line
    words = shlex.split(libvirtd.virsh("domxml-to-native", "qemu-argv", libvirtd.file("running.xml", here)))
    first = next(n for n, word in enumerate(words) if word.endswith(PROGRAM))
    options, unread = read_options(words[first + 1 :], lambda path: None)
    running = Running(name="g", program=PROGRAM, options=options, unread=unread, threads=(), page_bytes=(2 << 20,))
    read = read_domain(xml)
    made = definition(msgspec.structs.replace(running, name=read.name or ""), host)
    mine = {one.rule for one in lint(host, [LintedDefinition("x", made, Manager("libvirt"))]) if one.judged}
    theirs = {one.rule for one in lint(host, [LintedDefinition("x", xml)]) if one.judged}
    assert mine ^ theirs <= ONLY_ONE_WAY | PINNED
