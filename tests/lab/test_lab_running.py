"""QEMU that somebody started by hand, read from /proc: the facts that it says of itself; and a guest of libvirt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from lab.machine import LabMachine
from lab.product import COMMAND_SECONDS, install
from lab.qmp import Seen, seen

pytestmark = pytest.mark.lab

PASSED, POOL = "0000:c1:00.0", "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
Q35 = "-machine q35 -nodefaults"
# Paused: their firmware, emulated twice, would take the CPUs for minutes. One trait or two each.
LINES = {
    "plain": "-machine pc -m 96 -smp 2 -hda /run/plain.raw",
    "bound": f"{Q35} -smp 2 -m 64 -machine memory-backend=main -object iothread,id=io0"
    " -object memory-backend-memfd,id=main,size=64M,hugetlb=on,hugetlbsize=2M,prealloc=on,host-nodes=1,policy=bind"
    " -uuid 4450a55c-1669-4a0e-90bd-3ab45fef0398",
    "filed": "-readconfig /run/filed.conf",
    "celled": f"{Q35} -m 128 -smp 4,sockets=2,cores=2,threads=1"
    " -object memory-backend-ram,id=ram0,size=80M,host-nodes=0,policy=bind"
    " -object memory-backend-ram,id=ram1,size=48M,host-nodes=1,policy=preferred"
    " -numa node,nodeid=0,memdev=ram0 -numa node,nodeid=1,memdev=ram1"
    " -numa cpu,node-id=0,socket-id=1 -numa cpu,node-id=1,socket-id=0"
    " -device pxb-pcie,id=far,bus=pcie.0,bus_nr=64,numa_node=1,addr=0x6"
    " -device pcie-root-port,id=p1,bus=far,chassis=1,addr=0x0"
    " -device pcie-root-port,id=p2,bus=pcie.0,chassis=2,addr=0x3",
    "passing": f"{Q35} -m 64 -smp 1 -bios /usr/share/ovmf/OVMF.fd"
    " -device pcie-root-port,id=up,bus=pcie.0,chassis=1,addr=0x4"
    f" -device vfio-pci,id=passed,host={PASSED},bus=up,addr=0x0,rombar=0",
    "switched": f"{Q35} -m 64 -smp 3,maxcpus=4 -drive file=/run/switched.raw,format=raw,if=none,id=d"
    " -device pcie-root-port,id=r,bus=pcie.0,chassis=1,addr=0x2.0x0 -device x3130-upstream,id=u,bus=r"
    " -device xio3130-downstream,id=a,bus=u,chassis=2,addr=0x0 -device xio3130-downstream,id=b,bus=u,chassis=3,addr=0x1"
    " -device virtio-blk-pci,drive=d,bus=b",
}
FILED = """[machine]
  type = "q35"
[memory]
  size = "72M"
[smp-opts]
  cpus = "2"
[device "below"]
  driver = "pcie-root-port"
  bus = "pcie.0"
  chassis = "1"
  addr = "0x5"
"""
# {pid} and the threads by their names: vCPUs on a core of node 1, everything else on the first.
PIN = """for t in /proc/$(cat /run/bound.pid)/task/*; do
  case $(cat $t/comm) in "CPU 0/TCG") on=6;; "CPU 1/TCG") on=7;; "IO io0") on=2;; *) on=0-1;; esac
  taskset -cp $on ${t##*/} >/dev/null
done"""
TYPES = {
    "pcie-expander-bus": "pxb-pcie", "pcie-root-port": "pcie-root-port", "pcie-switch-upstream-port": "x3130-upstream",
    "pcie-switch-downstream-port": "xio3130-downstream",
}  # fmt: skip
LIBVIRT = "managed"
XML = f"""<domain type='qemu'><name>{LIBVIRT}</name><memory unit='MiB'>64</memory>
<vcpu>2</vcpu><iothreads>1</iothreads>
<cputune><vcpupin vcpu='0' cpuset='4'/><vcpupin vcpu='1' cpuset='5'/><emulatorpin cpuset='0-1'/></cputune>
<os><type arch='x86_64' machine='q35'>hvm</type></os>
<cpu mode='custom'><model>qemu64</model><topology sockets='1' dies='1' cores='2' threads='1'/></cpu>
<devices><memballoon model='none'/></devices></domain>"""


class Read(NamedTuple):
    """What each side says of the guests, and the findings about the guest of libvirt: as it runs, as it is defined."""

    guests: dict[str, dict[str, Any]]
    oracle: dict[str, Seen]
    running: list[dict[str, Any]]
    defined: list[dict[str, Any]]


@pytest.fixture(scope="module")
def read(lab: LabMachine) -> Iterator[Read]:
    """Six started by hand and one by libvirt, all at once, read, judged, and ended."""
    install(lab)
    device = f"/sys/bus/pci/devices/{PASSED}"
    bind = f"modprobe vfio-pci; echo vfio-pci >{device}/driver_override; echo {PASSED} >/sys/bus/pci/drivers_probe"
    try:
        lab.shell(
            f"{bind}; echo 40 >{POOL}; truncate -s 1M /run/plain.raw /run/switched.raw; cat >/run/filed.conf",
            stdin=FILED,
        )
        for name, line in LINES.items():
            numactl = "numactl --cpunodebind=1 --membind=1 " if name == "switched" else ""
            lab.shell(
                f"{numactl}qemu-system-x86_64 -name {name},debug-threads=on -S -display none -daemonize {line}"
                f" -accel tcg,thread=multi -qmp unix:/run/{name}.qmp,server=on,wait=off -pidfile /run/{name}.pid"
            )
        lab.shell(PIN)
        lab.shell("virsh define /dev/stdin", stdin=XML)
        lab.shell(f"virsh start {LIBVIRT} --paused")
        guests = json.loads(lab.shell("python3 /mnt/tree/tests/lab/inside.py running"))
        oracle = seen(lab, list(LINES))
        running, defined = (
            json.loads(lab.shell(f"hosttune lint {what} -o json", check=False, timeout=COMMAND_SECONDS))["findings"]
            for what in ("--running", LIBVIRT)
        )
        yield Read(guests, oracle, running, defined)
    finally:
        ends = "; ".join(f"kill $(cat /run/{name}.pid)" for name in LINES)
        back = f"echo {PASSED} >{device}/driver/unbind; echo >{device}/driver_override"
        lab.shell(f"{ends}; virsh destroy {LIBVIRT}; virsh undefine {LIBVIRT}; sleep 1; {back}; echo 0 >{POOL}",
                  check=False)  # fmt: skip


def tree(guest: dict[str, Any]) -> dict[str, str]:
    """Types of the controllers and passed devices by their path, as the oracle has them."""
    controllers = {one["index"]: one for one in guest["controllers"]}

    def path(address: str) -> str:
        bus, place = int(address.split(":")[1], 16), address.split(":")[2]
        above = controllers[bus]
        root = f"{above['bus_nr'] or 0:02x}" if bus == 0 or above["bus_nr"] else None
        return f"{root or path(above['address'])}/{place}"

    found = {path(one["address"]): TYPES[one["model"]] for one in controllers.values() if one["index"]}
    return {**found, **{path(one["guest_address"]): "vfio-pci" for one in guest["hostdevs"]}}


@pytest.mark.parametrize("name", LINES)
def test_what_is_read_is_what_qemu_says_of_itself(read: Read, name: str) -> None:
    guest, oracle = read.guests[name], read.oracle[name]
    assert guest["uuid"] == oracle.uuid
    assert oracle.machine.startswith({"pc": "pc-i440fx-", "q35": "pc-q35-"}[guest["machine"]])
    online = guest["vcpus_current"] or guest["vcpus"]
    assert online == oracle.vcpus
    everywhere = "0-7"
    pins = {one["id"]: one["cpus"] for one in guest["vcpu_pins"]}
    shared = guest["vcpu_cpus"] or everywhere
    assert {vcpu: pins.get(vcpu, shared) for vcpu in range(online)} == oracle.pins
    assert (guest["emulator_cpus"] or shared) == oracle.emulator
    io = {one["id"]: one["cpus"] for one in guest["iothread_pins"]}
    assert [io.get(n, shared) for n in range(1, guest["iothreads"] + 1)] == oracle.iothreads
    assert guest["memory_bytes"] == oracle.memory
    pages = guest["backing"]["pages"] or ()
    assert {one["size_bytes"] for one in pages} == oracle.page_bytes
    known = {path: kind for path, kind in oracle.tree.items() if kind in (*TYPES.values(), "vfio-pci")}
    assert tree(guest) == known
    assert [one["source"] for one in guest["hostdevs"]] == ([oracle.passed] if oracle.passed else [])
    assert {one["source"] for one in guest["disks"]} == {file for file in oracle.disks if not file.endswith(".fd")}


def test_cells_and_where_their_memory_is(read: Read) -> None:
    guest, oracle = read.guests["celled"], read.oracle["celled"]
    cells = {one["id"]: (set(range(*_ends(one["vcpus"]))), one["memory_bytes"]) for one in guest["cells"]}
    assert cells == oracle.cells
    nodes = {f"ram{one['cell']}": (one["mode"], one["nodes"]) for one in guest["memnodes"]}
    assert nodes == oracle.bound
    bound = read.guests["bound"]["numatune"]
    assert (bound["mode"], bound["nodes"]) == read.oracle["bound"].bound["main"]
    switched = read.guests["switched"]["numatune"]  # numactl's: of the kernel, not of QEMU
    assert (switched["mode"], switched["nodes"]) == ("strict", "1")


def _ends(cpus: str) -> tuple[int, int]:
    first, _, last = cpus.partition("-")
    return int(first), int(last or first) + 1


def test_a_guest_of_libvirt_is_judged_alike_as_it_runs_and_as_it_is_defined(read: Read) -> None:
    def said(findings: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
        return {(one["rule"], one["level"], one["text"]) for one in findings if one["guest"] == LIBVIRT}

    assert said(read.defined)
    assert said(read.running) == said(read.defined)
