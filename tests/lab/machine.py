"""An emulated GPU host: a QEMU machine without KVM that runs a real kernel, with ssh into it.

Two NUMA nodes with two SMT cores each, a virtual IOMMU, and PCIe as on a GPU server, on expander buses so that
every function has the node its bus stands for:

    bus 00  node unknown  the machine's own devices (disk, management NIC, the working tree's share)
    bus 40  node 0        41:00.0, 42:00.0 stand-in GPUs behind root ports; 43/44 a switch with the stand-in 45:00.0
                          and the NIC 46:00.0 below; 47:00.0 an NVMe drive with SR-IOV
    bus c0  node 1        c1:00.0, c2:00.0 stand-in GPUs; c3:00.0 a NIC; c4:00.0 an NVMe drive

Stand-ins are display functions that no driver holds: to the kernel they are what a GPU bound to nothing is.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
BUILD = Path(__file__).with_name("build.sh")
NODE_MIB = 4096
BUILD_SECONDS = 1500
BOOT_SECONDS = 600
COMMAND_SECONDS = 180
SHUTDOWN_SECONDS = 10
CPU = "max,vendor=GenuineIntel,family=6,model=143,stepping=8,model-id=Emulated,pdpe1gb=on"
IOMMU_ON = "intel_iommu=on iommu=pt"
DRIVES = ("nvme0", "nvme1")


class Answer(str):
    """What a command printed on stdout, with its exit status and stderr."""

    status: int
    errors: str

    def __new__(cls, output: str, status: int, errors: str) -> Answer:
        answer = super().__new__(cls, output)
        answer.status = status
        answer.errors = errors
        return answer


class LabMachine:
    """A booted machine: `shell` runs a command in it as root."""

    def __init__(self, folder: Path, key: Path, port: int) -> None:
        self.folder = folder
        self._ssh = (
            "ssh", "-q", "-i", str(key), "-p", str(port), "-F", "none",
            "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes",
            "-o", "ConnectTimeout=15", "-o", "ControlMaster=auto", "-o", "ControlPath=./ssh",
            "-o", "ControlPersist=yes",
        )  # fmt: skip

    def shell(
        self, script: str, *, check: bool = True, timeout: float = COMMAND_SECONDS, stdin: str | None = None
    ) -> Answer:
        """Run a POSIX shell script inside. With `check`, a failure is an AssertionError with what it printed."""
        done = self._run((f"LC_ALL=C sh -c {shlex.quote(script)}",), timeout, None if stdin is None else stdin.encode())
        answer = Answer(done.stdout.decode("utf-8", "replace"), done.returncode, done.stderr.decode("utf-8", "replace"))
        assert not check or answer.status == 0, f"{script}\nexit {answer.status}\n{answer}\n{answer.errors}"
        return answer

    def fetch(self, path: str) -> bytes:
        """A file of the machine."""
        done = self._run(("cat", "--", shlex.quote(path)), COMMAND_SECONDS, None)
        assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
        return done.stdout

    def answers(self) -> bool:
        """Whether ssh gets in."""
        try:
            return self.shell("true", check=False, timeout=20).status == 0
        except subprocess.TimeoutExpired:
            return False

    def hang_up(self) -> None:
        """End the shared ssh connection."""
        call = (*self._ssh, "-O", "exit", "lab")
        subprocess.run(call, cwd=self.folder, capture_output=True, timeout=SHUTDOWN_SECONDS, check=False)

    def _run(self, command: tuple[str, ...], timeout: float, stdin: bytes | None) -> subprocess.CompletedProcess[bytes]:
        call = (*self._ssh, "-l", "root", "127.0.0.1", "--", *command)
        # From within the folder: a socket's path must be short, wherever the checkout lies.
        return subprocess.run(
            call, cwd=self.folder, input=stdin or b"", capture_output=True, timeout=timeout, check=False
        )


def build_image() -> Path:
    """The image directory, built if it is not there yet (minutes)."""
    environment = {"PYTHON": sys.executable, **os.environ}
    built = subprocess.run(
        (str(BUILD),), stdout=subprocess.PIPE, timeout=BUILD_SECONDS, check=True, text=True, env=environment
    )
    return Path(built.stdout.strip().splitlines()[-1])


@contextlib.contextmanager
def booted(image: Path, kernel_arguments: str = IOMMU_ON) -> Iterator[LabMachine]:
    """A machine that runs for as long as the context does; nothing of it is left afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=image.parent))
    try:
        port = free_port()
        _make_disks(folder, image)
        with (folder / "qemu.log").open("wb") as log:
            # The kernel ends the machine with us, however we end.
            command = ("setpriv", "--pdeathsig", "KILL", *qemu_command(folder, image, port, kernel_arguments))
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        machine = LabMachine(folder, image / "key", port)
        try:
            _wait(machine, process)
            yield machine
        finally:
            machine.hang_up()
            process.kill()
            process.wait(timeout=SHUTDOWN_SECONDS)
    finally:
        shutil.rmtree(folder)


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


def _make_disks(folder: Path, image: Path) -> None:
    overlay = ("qemu-img", "create", "-q", "-f", "qcow2", "-b", str(image / "root.raw"), "-F", "raw")
    subprocess.run((*overlay, str(folder / "root.qcow2")), check=True, timeout=60)
    for name in DRIVES:
        os.truncate(os.open(folder / f"{name}.raw", os.O_CREAT | os.O_WRONLY, 0o600), 256 << 20)


def _wait(machine: LabMachine, process: subprocess.Popen[bytes]) -> None:
    """Wait until ssh gets in and systemd has settled; AssertionError with the console's end otherwise."""
    deadline = time.monotonic() + BOOT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if machine.answers():
            machine.shell("systemctl is-system-running --wait || systemctl list-units --failed", timeout=BOOT_SECONDS)
            return
        time.sleep(0.5)
    tail = "\n".join(
        path.read_text("utf-8", "replace")[-2000:]
        for path in (machine.folder / "qemu.log", machine.folder / "serial.log")
        if path.exists()
    )
    raise AssertionError(f"the emulated host did not come up (QEMU exit status {process.poll()}):\n{tail}")


# --- the machine ----------------------------------------------------------------------------------------------


def qemu_command(folder: Path, image: Path, port: int, kernel_arguments: str) -> list[str]:
    """The whole command line. The kernel is loaded directly: no boot loader, no firmware screens."""
    arguments = (
        "root=/dev/vda rw console=ttyS0 quiet mitigations=off random.trust_cpu=on",
        # Without its true frequency the emulated clock can run several times too fast.
        f"tsc=reliable tsc_early_khz={_tsc_khz()}",
        kernel_arguments,
    )
    return [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none",
        "-machine", "q35", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", CPU,
        *_nodes(), *_own_devices(folder, port), *_node0_devices(folder), *_node1_devices(folder),
        "-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initramfs.cpio"), "-append", " ".join(arguments),
        "-chardev", f"file,id=console,path={folder}/serial.log", "-serial", "chardev:console",
    ]  # fmt: skip


def _tsc_khz() -> int:
    found = re.search(r"^cpu MHz\s*:\s*([0-9.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    assert found, "this machine's CPU frequency is not in /proc/cpuinfo"
    return int(float(found[1]) * 1000)


def _nodes() -> list[str]:
    return [
        "-smp", "8,sockets=2,cores=2,threads=2", "-m", str(2 * NODE_MIB),
        "-object", f"memory-backend-ram,id=memory0,size={NODE_MIB}M",
        "-object", f"memory-backend-ram,id=memory1,size={NODE_MIB}M",
        "-numa", "node,nodeid=0,cpus=0-3,memdev=memory0", "-numa", "node,nodeid=1,cpus=4-7,memdev=memory1",
        "-numa", "dist,src=0,dst=1,val=21", "-numa", "dist,src=1,dst=0,val=21",
        "-device", "intel-iommu,intremap=on,device-iotlb=on",
    ]  # fmt: skip


def _own_devices(folder: Path, port: int) -> list[str]:
    """On bus 00, whose node the firmware does not tell. The network leads nowhere but to our ssh port."""
    return [
        "-drive", f"if=none,id=root,file={folder}/root.qcow2,format=qcow2,cache=unsafe,discard=unmap",
        "-device", "virtio-blk-pci,drive=root,addr=3",
        "-netdev", f"user,id=management,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22",
        "-device", "virtio-net-pci,netdev=management,addr=4",
        "-fsdev", f"local,id=tree,path={TREE},security_model=none,readonly=on",
        "-device", "virtio-9p-pci,fsdev=tree,mount_tag=tree,addr=5",
        "-device", "virtio-rng-pci,addr=7",
    ]  # fmt: skip


def _root_port(name: str, bus: str, slot: int, chassis: int) -> list[str]:
    where = f"bus={bus},chassis={chassis},slot={chassis},addr={slot}.0"
    return ["-device", f"pcie-root-port,id={name},{where},x-speed=16,x-width=16"]


def _node0_devices(folder: Path) -> list[str]:
    return [
        "-device", "pxb-pcie,id=bus40,bus=pcie.0,bus_nr=0x40,numa_node=0,addr=8",
        *_root_port("port41", "bus40", 0, 41), "-device", "bochs-display,bus=port41",
        *_root_port("port42", "bus40", 1, 42), "-device", "bochs-display,bus=port42",
        *_root_port("port43", "bus40", 2, 43), "-device", "x3130-upstream,id=switch,bus=port43",
        "-device", "xio3130-downstream,id=down0,bus=switch,chassis=44,slot=44,addr=0.0",
        "-device", "xio3130-downstream,id=down1,bus=switch,chassis=45,slot=45,addr=1.0",
        "-device", "bochs-display,bus=down0",
        "-netdev", "user,id=nic0,restrict=on", "-device", "e1000e,netdev=nic0,bus=down1,mac=52:54:00:00:46:01",
        *_root_port("port47", "bus40", 3, 47), "-device", "nvme-subsys,id=subsystem0",
        "-drive", f"if=none,id=nvme0,file={folder}/nvme0.raw,format=raw,cache=unsafe",
        "-device", "nvme,id=drive0,serial=LAB0,subsys=subsystem0,bus=port47,sriov_max_vfs=4,max_ioqpairs=26,"
        "msix_qsize=27,sriov_vq_flexible=8,sriov_vi_flexible=8,sriov_max_vi_per_vf=2,sriov_max_vq_per_vf=2",
        "-device", "nvme-ns,drive=nvme0,bus=drive0,nsid=1,shared=off",
    ]  # fmt: skip


def _node1_devices(folder: Path) -> list[str]:
    return [
        "-device", "pxb-pcie,id=busc0,bus=pcie.0,bus_nr=0xc0,numa_node=1,addr=9",
        *_root_port("portc1", "busc0", 0, 91), "-device", "bochs-display,bus=portc1",
        *_root_port("portc2", "busc0", 1, 92), "-device", "secondary-vga,bus=portc2",
        *_root_port("portc3", "busc0", 2, 93),
        "-netdev", "user,id=nic1,restrict=on", "-device", "e1000e,netdev=nic1,bus=portc3,mac=52:54:00:00:c3:01",
        *_root_port("portc4", "busc0", 3, 94),
        "-drive", f"if=none,id=nvme1,file={folder}/nvme1.raw,format=raw,cache=unsafe",
        "-device", "nvme,serial=LAB1,drive=nvme1,bus=portc4",
    ]  # fmt: skip
