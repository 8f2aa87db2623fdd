"""An emulated GPU host (`lab.hardware`): a QEMU machine without KVM that runs a real kernel, with ssh into it."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lab.hardware import CORES, DRIVES, HOSTTUNE, MONITOR, NODE_MIB, TREE, kernel_loaded, qemu_command

BUILD = Path(__file__).with_name("build.sh")
BUILD_SECONDS = 1500
BOOT_SECONDS = 300
COMMAND_SECONDS = 180
CONNECT_SECONDS = 120
ANSWER_SECONDS = 20
SHUTDOWN_SECONDS = 10
CUT_OFF = 255  # ssh's own exit status: the connection ended
IOMMU_ON = "intel_iommu=on iommu=pt"
DISTRIBUTIONS = "/usr/local/share/hosttune-lab"  # files that the image has changed, as they were


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
    """A machine with its disks: `start` boots it, `shell` runs a command in it as root.

    Others reach its ssh at `port` of 127.0.0.1, as root, by the key `folder`/key.
    """

    def __init__(self, folder: Path, port: int, command: list[str]) -> None:
        self.folder = folder
        self.port = port
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._ssh = (
            "ssh", "-i", "key", "-p", str(port), "-F", "none", "-o", "LogLevel=ERROR",
            "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes",
            "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=30", "-o", "ServerAliveCountMax=20",
            "-o", "ControlPath=./ssh",
        )  # fmt: skip

    # --- power ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Switch on and wait until it is up. AssertionError with the console's end when it does not come up."""
        try:
            self._switch_on()
        except AssertionError:
            # An emulated kernel can starve while it boots (seen once: RCU's thread got no CPU for minutes). Nothing of
            # ours has run by then, so that the plug may be pulled and put in again, once.
            self.power_cut()
            self._switch_on()

    def _switch_on(self) -> None:
        assert self._process is None, "the machine is already on"
        with (self.folder / "qemu.log").open("ab") as log:
            # The kernel ends the machine with us, however we end.
            command = ("setpriv", "--pdeathsig", "KILL", *self._command)
            self._process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait()

    def power_cut(self) -> None:
        """Switch off as a pulled plug does; `start` boots from the same disks.

        What the machine had written and flushed (fsync) is on them. What only its page cache held is gone, and what
        it wrote without a flush may be: such is the disk's cache. This machine's own power is another matter.
        """
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=SHUTDOWN_SECONDS)
            self._process = None
        self.hang_up()

    def power_off(self) -> None:
        """Shut down as an operator does it, and wait until it is off: its disks are whole."""
        self.shell("systemctl poweroff", check=False)
        assert self._process is not None
        self._process.wait(timeout=BOOT_SECONDS)

    def reboot(self) -> None:
        """Boot again as an operator does it, and wait until it is up. AssertionError when it does not come up."""
        before = self.boot_id()
        self.shell("systemctl reboot", check=False)
        deadline = time.monotonic() + BOOT_SECONDS
        while True:
            self.hang_up()
            self._wait()
            with contextlib.suppress(AssertionError):  # the old boot may still answer, and then hang up
                if self.boot_id() != before:
                    return
            assert time.monotonic() < deadline, f"the emulated host did not boot again:\n{self._last_words()}"
            time.sleep(1)

    def boot_id(self) -> str:
        """What the kernel names this boot by."""
        return self.shell("cat /proc/sys/kernel/random/boot_id").strip()

    def _wait(self) -> None:
        """Wait until ssh gets in, and udev and systemd have settled."""
        deadline = time.monotonic() + BOOT_SECONDS
        while self._process and self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if self._connect() is None:
                    # The boot does not wait for the share's device, which is late beside much other work.
                    mounted = "{ mountpoint -q /mnt/tree/hosttune || mount -a; }"
                    settled = f"udevadm settle --timeout 240 && {mounted} && systemctl is-system-running --wait"
                    self.shell(f"{settled} || systemctl list-units --failed", timeout=BOOT_SECONDS)
                    return
            self.hang_up()
            time.sleep(0.5)
        raise AssertionError(f"the emulated host did not come up:\n{self._last_words()}")

    def _last_words(self) -> str:
        logs = (self.folder / "qemu.log", self.folder / "serial.log")
        return "\n".join(log.read_text("utf-8", "replace")[-2000:] for log in logs if log.exists())

    def hardware(self, command: str) -> str:
        """What QEMU's monitor answers to a command about the machine's hardware (pcie_aer_inject_error, device_del)."""
        asked = {"execute": "human-monitor-command", "arguments": {"command-line": command}}
        folder = os.open(self.folder, os.O_PATH)
        try:
            with socket.socket(socket.AF_UNIX) as monitor, monitor.makefile("rw") as lines:
                monitor.settimeout(ANSWER_SECONDS)
                monitor.connect(f"/proc/self/fd/{folder}/{MONITOR}")  # a socket's own path must be short
                for one in ({"execute": "qmp_capabilities"}, asked):
                    lines.write(json.dumps(one) + "\n")
                lines.flush()
                answers = (json.loads(line) for line in lines)
                found = list(itertools.islice((one for one in answers if "return" in one), 2))
        finally:
            os.close(folder)
        return str(found[1]["return"])

    # --- commands ---------------------------------------------------------------------------------------------

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

    def reached(self, inside: int) -> int:
        """A port of 127.0.0.1 here that leads to a port of 127.0.0.1 inside, until `hang_up`."""
        port = free_port()
        self.shell("true")
        forward = f"127.0.0.1:{port}:127.0.0.1:{inside}"
        call = (*self._ssh, "-O", "forward", "-L", forward, "lab")
        subprocess.run(call, cwd=self.folder, capture_output=True, timeout=ANSWER_SECONDS, check=True)
        return port

    @contextlib.contextmanager
    def confining(self) -> Iterator[None]:
        """With AppArmor, and with libvirt's files as the distribution has them: guests that start are confined."""
        self.shell(f"systemctl -q enable --now apparmor; cp -a {DISTRIBUTIONS}/qemu.conf /etc/libvirt/")
        self.shell("systemctl restart libvirtd")
        try:
            yield
        finally:
            self.shell("echo 'security_driver = \"none\"' >>/etc/libvirt/qemu.conf; systemctl restart libvirtd")
            self.shell("systemctl -q disable apparmor")

    def hang_up(self) -> None:
        """End the shared ssh connection."""
        self._ask_connection("exit")

    def _run(self, command: tuple[str, ...], timeout: float, stdin: bytes | None) -> subprocess.CompletedProcess[bytes]:
        """Run a command once. Connecting is tried again and again; a command that may have run never is."""
        deadline = time.monotonic() + CONNECT_SECONDS
        while (refusal := self._connect()) is not None:
            assert time.monotonic() < deadline, f"no ssh connection: {refusal}\n{self._last_words()}"
            time.sleep(0.5)
        return self._call(command, timeout, stdin)

    def _connect(self) -> str | None:
        """Open the shared connection unless it stands: None, or why it could not be opened."""
        if self._ask_connection("check") == 0:
            return None
        try:
            opened = self._call(
                ("true",), ANSWER_SECONDS, options=("-o", "ControlMaster=auto", "-o", "ControlPersist=yes")
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {ANSWER_SECONDS} s"
        return None if opened.returncode == 0 else opened.stderr.decode("utf-8", "replace")

    def _ask_connection(self, request: str) -> int:
        call = (*self._ssh, "-O", request, "lab")
        asked = subprocess.run(call, cwd=self.folder, capture_output=True, timeout=SHUTDOWN_SECONDS, check=False)
        return asked.returncode

    def _call(
        self, command: tuple[str, ...], timeout: float, stdin: bytes | None = None, options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[bytes]:
        call = (*self._ssh, *options, "-l", "root", "127.0.0.1", "--", *command)
        # From within the folder: a socket's path must be short, wherever the checkout lies.
        return subprocess.run(
            call, cwd=self.folder, input=stdin or b"", capture_output=True, timeout=timeout, check=False
        )


# --- booting --------------------------------------------------------------------------------------------------


def build_image() -> Path:
    """The image directory, built and prepared if it is not there yet (minutes)."""
    # The machines run hosttune from the working tree, and may not write there.
    subprocess.run((sys.executable, "-m", "compileall", "-q", "hosttune"), cwd=TREE, check=True)
    environment = {"PYTHON": sys.executable, **os.environ}
    built = subprocess.run(
        (str(BUILD),), stdout=subprocess.PIPE, timeout=BUILD_SECONDS, check=True, text=True, env=environment
    )
    image = Path(built.stdout.strip().splitlines()[-1])
    with (image.parent / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (image / "prepared").exists():
            _prepare(image)
    return image


def _prepare(image: Path) -> None:
    """Boot it once, so that no machine has a first boot: AppArmor's cache, what libvirt asked QEMU, GRUB's menu."""
    with booted(image) as machine:
        # Each machine gives itself an id at its boot.
        machine.shell(
            "systemctl start apparmor && virsh domcapabilities >/dev/null && update-grub && : >/etc/machine-id"
        )
        machine.power_off()
        flat = ("qemu-img", "convert", "-O", "raw", "root.qcow2", "prepared.raw")
        subprocess.run(flat, cwd=machine.folder, check=True, timeout=BUILD_SECONDS)
        (machine.folder / "prepared.raw").replace(image / "root.raw")
    (image / "prepared").touch()


@contextlib.contextmanager
def booted(
    image: Path, kernel_arguments: str = IOMMU_ON, *, cores: int = CORES, more: Sequence[str] = ()
) -> Iterator[LabMachine]:
    """A machine that runs for as long as the context does; nothing of it is left afterwards.

    QEMU loads the kernel: no firmware, no boot loader, the arguments are fixed for every boot. `cores` are each node's;
    `more`: QEMU's options of further devices.
    """
    with _running(image, kernel_loaded(kernel_arguments), cores, more=more) as machine:
        yield machine


@contextlib.contextmanager
def booted_by_grub(image: Path, *, node_mib: int = NODE_MIB) -> Iterator[LabMachine]:
    """As `booted`, from the disk through BIOS, GRUB and the distribution's initramfs. `node_mib` is each node's memory.

    The kernel's arguments are those of /boot/grub/grub.cfg, which `update-grub` has made in the machine itself.
    """
    with _running(image, [], node_mib=node_mib) as machine:
        yield machine


@contextlib.contextmanager
def _running(
    image: Path, boot: list[str], cores: int = CORES, node_mib: int = NODE_MIB, more: Sequence[str] = ()
) -> Iterator[LabMachine]:
    with switched_off(image, lambda port: qemu_command(port, boot, cores, node_mib, more)) as machine:
        machine.start()
        yield machine


@contextlib.contextmanager
def switched_off(image: Path, command: Callable[[int], list[str]]) -> Iterator[LabMachine]:
    """A machine that is not on yet; it is off, and nothing of it is left, afterwards.

    `command`: QEMU's command line for a port of 127.0.0.1 that leads to its ssh.
    """
    with _folder(image) as folder:
        port = free_port()
        machine = LabMachine(folder, port, command(port))
        try:
            yield machine
        finally:
            machine.power_cut()


@contextlib.contextmanager
def _folder(image: Path) -> Iterator[Path]:
    """A machine's own folder with its disks. Also removes folders whose tests were killed: they hold no lock."""
    cache = image.parent
    with _alone(cache):
        for stale in cache.glob("run-*"):
            _remove_unless_locked(stale)
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=cache))
        lock = (folder / "lock").open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX)
    with lock:
        try:
            _fill(folder, image)
            yield folder
        finally:
            with _alone(cache):
                shutil.rmtree(folder)


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[None]:
    with (cache / "runs").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_unless_locked(folder: Path) -> None:
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # a machine runs from it
        shutil.rmtree(folder)


def _fill(folder: Path, image: Path) -> None:
    """The disks of one machine. Linked, not referred to: a newer image that replaces this one leaves it whole."""
    for name in ("root.raw", "vmlinux", "initramfs.cpio", "key"):
        os.link(image / name, folder / name)
    # A command's start reads 600 modules of hosttune: from a disk that takes a fifth less than by way of the share.
    disk = ("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", TREE / "hosttune", HOSTTUNE, "64M")
    subprocess.run(disk, cwd=folder, check=True, timeout=60)
    overlay = ("qemu-img", "create", "-q", "-f", "qcow2", "-b", "root.raw", "-F", "raw", "root.qcow2")
    subprocess.run(overlay, cwd=folder, check=True, timeout=60)
    for name in DRIVES:
        with (folder / f"{name}.raw").open("wb") as drive:
            drive.truncate(256 << 20)


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port
