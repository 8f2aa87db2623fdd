"""Proof from a recorded /proc that a guest runs where its plan puts it, and what is told when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from domain_shapes import SHAPES, changed
from hypothesis import given
from hypothesis import strategies as st
from unit.hypervisor.test_hypervisor import tree

from hosttune.discovery.processes import parse_maps
from hosttune.hypervisor import process_of, read_state, verify_running
from hosttune.machine.capture import Capture
from hosttune.machine.system import COMMANDS

GUEST = SHAPES["one-gpu"]
GPU = GUEST.devices[0].address
PROCESS = 4242
PROC = f"/proc/{PROCESS}"
THREADS = {
    **{str(5000 + n): (f"CPU {n}/KVM", GUEST.vcpu_pins[n].cpus) for n in range(16)},
    "4242": ("qemu-system-x86", "0-1"),
    "4250": ("IO iothread1", "0-1"),
    "4251": ("IO mon_iothread", "0-1"),
    "4252": ("kvm-nx-lpage-re", "0"),
    "4253": ("TC tc-ram-node0", "0-127"),
    "4254": ("vhost-4242", "0-1"),
    "4255": ("worker", GUEST.vcpu_pins[0].cpus),  # of QEMU's pool: asked for by a vCPU, as the firmware writes
}
MAPS = [
    "55d0a0000000 default file=/usr/bin/qemu-system-x86_64 mapped=900 N1=900 kernelpagesize_kB=4",
    "55d0b0000000 default heap anon=77 dirty=77 N1=77 kernelpagesize_kB=4",
    "7f0000000000 bind:0 file=/dev/hugepages/libvirt/qemu/1-one/qemu_back_mem._objects_ram-node0.x\\040(deleted)"
    " huge dirty=64 N0=64 kernelpagesize_kB=1048576",
    "7ffe00000000 default stack anon=3 dirty=3 N0=3 kernelpagesize_kB=4",
    "ffff00000000 default",
]


def proc(
    root: Path,
    threads: dict[str, tuple[str, str]] | None = None,
    maps: list[str] | None = None,
    driver: str = "vfio-pci",
    held: str = "/dev/vfio/21",
) -> Capture:
    """What the kernel shows of `GUEST` when it runs as planned, with one part of it changed."""
    files = {f"{PROC}/numa_maps": "\n".join(MAPS if maps is None else maps) + "\n", held: "", "/dev/vfio/vfio": ""}
    for number, (name, cpus) in (THREADS if threads is None else threads).items():
        files[f"{PROC}/task/{number}/comm"] = f"{name}\n"
        files[f"{PROC}/task/{number}/status"] = f"Name:\t{name}\nCpus_allowed:\tffff\nCpus_allowed_list:\t{cpus}\n"
    bus = "/sys/bus/pci"
    files |= {f"{bus}/drivers/{driver}/bind": "", "/sys/kernel/iommu_groups/21/type": "DMA\n"}
    files[f"{bus}/devices/{GPU}/vfio-dev/vfio3/dev"] = "511:3\n"
    links = {
        f"{PROC}/fd/9": "/dev/vfio/vfio",
        f"{PROC}/fd/10": held,
        f"{bus}/devices/{GPU}/driver": f"../../drivers/{driver}",
        f"{bus}/devices/{GPU}/iommu_group": "../../../../kernel/iommu_groups/21",
    }
    return Capture(str(tree(root, files, links)))


def test_a_guest_that_runs_as_planned(tmp_path: Path) -> None:
    assert verify_running(proc(tmp_path), GUEST, PROCESS) == ()


def test_a_device_held_through_its_own_file(tmp_path: Path) -> None:
    assert verify_running(proc(tmp_path, held="/dev/vfio/devices/vfio3"), GUEST, PROCESS) == ()


ASTRAY = {
    "a vCPU floats": ({"5003": ("CPU 3/KVM", "0-127")}, "vCPU 3 may run on CPUs 0-127, expected 5"),
    "a vCPU is another's": ({"5003": ("CPU 4/KVM", "5")}, "vCPU 3: no thread of it, expected on CPUs 5"),
    "one too many": ({"5999": ("CPU 16/KVM", "5")}, "vCPU 16 is not expected"),
    "the I/O thread": ({"4250": ("IO iothread1", "2")}, "I/O thread 1 may run on CPUs 2, expected 0-1"),
    "QEMU itself": (
        {"4242": ("qemu-system-x86", "0-5")},
        "emulator thread 'qemu-system-x86' may run on CPUs 0-5, expected 0-1",
    ),
    "a helper on no vCPU's own": (
        {"4255": ("worker", "0-127")},
        "emulator thread 'worker' may run on CPUs 0-127, expected 0-1",
    ),
    "its monitor": (
        {"4251": ("IO mon_iothread", "9")},
        "emulator thread 'IO mon_iothread' may run on CPUs 9, expected 0-1",
    ),
}


@pytest.mark.parametrize(("changes", "why"), ASTRAY.values(), ids=ASTRAY.keys())
def test_a_thread_elsewhere_is_told(tmp_path: Path, changes: dict[str, tuple[str, str]], why: str) -> None:
    assert why in verify_running(proc(tmp_path, THREADS | changes), GUEST, PROCESS)


RAM = "7f0000000000 bind:0 file=/x/ram-node0 huge dirty="
MISPLACED = {
    "half elsewhere": (
        [f"{RAM}64 N0=32 N1=32 kernelpagesize_kB=1048576"],
        (
            "memory: 32768 MiB on node 1, expected on node 0",
            "memory: 32768 MiB on node 0, expected 65536 MiB",
            "memory of cell 0: on node 0-1, expected on node 0",
        ),
    ),
    "one page short": (
        [f"{RAM}63 N0=63 kernelpagesize_kB=1048576"],
        ("memory: 64512 MiB on node 0, expected 65536 MiB",),
    ),
    "other pages": (
        [f"{RAM}32768 N0=32768 kernelpagesize_kB=2048"],
        ("memory: on pages of 2048 KiB, expected pages of 1048576 KiB",),
    ),
    "ordinary pages": (
        ["7f0000000000 bind:0 anon=16777216 dirty=16777216 N0=16777216 kernelpagesize_kB=4"],
        ("memory: on ordinary pages, expected pages of 1048576 KiB",),
    ),
    "nothing shown": ([], ("memory: where it is, is unknown",)),
}


@pytest.mark.parametrize(("maps", "why"), MISPLACED.values(), ids=MISPLACED.keys())
def test_memory_elsewhere_is_told(tmp_path: Path, maps: list[str], why: tuple[str, ...]) -> None:
    assert verify_running(proc(tmp_path, maps=maps), GUEST, PROCESS) == why


def test_two_cells_that_changed_places(tmp_path: Path) -> None:
    two = changed(SHAPES["two-cells"], devices=())
    threads = {str(n): (f"CPU {n}/KVM", pin.cpus) for n, pin in enumerate(two.vcpu_pins)}
    threads |= {"4242": ("qemu-kvm", "0-1"), "901": ("IO iothread1", "0-1")}
    line = "7f{1}000000000 bind:{0} file=/x/ram-node{1} huge dirty=64 N{2}=64 kernelpagesize_kB=1048576"
    capture = proc(tmp_path / "right", threads, [line.format(n, n, n) for n in (0, 1)])
    assert verify_running(capture, two, PROCESS) == ()
    capture = proc(tmp_path / "wrong", threads, [line.format(1 - n, n, 1 - n) for n in (0, 1)])
    assert verify_running(capture, two, PROCESS) == (
        "memory of cell 0: on node 1, expected on node 0",
        "memory of cell 1: on node 0, expected on node 1",
    )


def test_ordinary_pages(tmp_path: Path) -> None:
    plain = changed(GUEST, page_bytes=None)
    ram = "7f0000000000 bind:0 anon=16777216 dirty=16777216 N{}=16777216 kernelpagesize_kB=4"
    assert verify_running(proc(tmp_path / "right", maps=[ram.format(0)]), plain, PROCESS) == ()
    assert verify_running(proc(tmp_path / "wrong", maps=[ram.format(1)]), plain, PROCESS) == (
        "memory: 65536 MiB on node 1, expected on node 0",
        "memory: 0 MiB on node 0, expected 65536 MiB",
    )
    assert verify_running(proc(tmp_path / "huge"), plain, PROCESS) == (
        "memory: on pages of 1048576 KiB, expected ordinary pages",
    )


def test_a_device_that_is_not_held_is_told(tmp_path: Path) -> None:
    assert verify_running(proc(tmp_path / "other", held="/dev/vfio/22"), GUEST, PROCESS) == (
        f"device {GPU}: process {PROCESS} does not hold /dev/vfio/21 or /dev/vfio/devices/vfio3",
    )
    assert verify_running(proc(tmp_path / "driver", driver="nvidia"), GUEST, PROCESS) == (
        f"device {GPU}: planned on vfio-pci, bound to nvidia",
    )


def test_what_cannot_be_read_is_no_proof(tmp_path: Path) -> None:
    refused = "".join(f"{path}\tPermission denied\n" for path in (f"{PROC}/numa_maps", f"{PROC}/fd", f"{PROC}/task"))
    proc(tmp_path)
    capture = Capture(str(tree(tmp_path, {"/.hosttune/unreadable": refused})))
    assert verify_running(capture, GUEST, PROCESS) == (
        f"unreadable: {PROC}/numa_maps: Permission denied",
        f"unreadable: {PROC}/task: Permission denied",
        f"threads: unknown, process {PROCESS} shows none",
        "memory: where it is, is unknown",
        f"devices: unknown, cannot read {PROC}/fd: Permission denied",
    )
    assert verify_running(Capture(str(tree(tmp_path / "empty", {"/x": ""}))), GUEST, PROCESS) == (
        f"threads: unknown, process {PROCESS} shows none",
        "memory: where it is, is unknown",
        f"device {GPU}: planned on vfio-pci, bound to no driver",
        f"device {GPU}: unknown, it has no IOMMU group",
    )


def test_the_process_of_a_guest(tmp_path: Path) -> None:
    asked = COMMANDS + "qemu-processes"
    kept = {f"/run/libvirt/qemu/{name}.pid": "20\n" for name in "cd"}  # d's is stale: no QEMU has that name
    capture = Capture(str(tree(tmp_path / "a", {asked: "17 a\n18 b\n19 c\n20 c\n21 e\n22 e\n", **kept})))
    assert [process_of(capture, name) for name in ("a", "b", "c", "d", "e", "f")] == [17, 18, 20, None, None, None]


def test_the_state_of_a_recorded_guest(tmp_path: Path) -> None:
    capture = Capture(str(tree(tmp_path, {COMMANDS + "virsh-list": " 3    a    paused\n -    b    shut off\n"})))
    assert [read_state(capture, name) for name in ("a", "b", "c")] == ["paused", "shut off", None]


@given(st.text(alphabet="N0123456789= \nkernelpagesize_kB:bindhuge/\t-", max_size=200))
def test_any_maps_can_be_read(text: str) -> None:
    for mapped in parse_maps(text)[0]:
        assert mapped.pages
        assert mapped.page_bytes is None or mapped.page_bytes >= 0
