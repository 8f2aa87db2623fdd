"""Drives between two tenants on an emulated host: a guest that writes, what is behind the drives, and hand-overs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lab.hardware import DRIVES, drive_behind, further_drive, further_port
from lab.machine import LabMachine, booted
from lab.product import install, outside, plan, run

PATTERN = b"HOSTTUNE-TENANT\n"
MIB = 1 << 20
SIZE_MIB = 64  # of the drives that are made here; the two of every machine have 256
PLACES_MIB = (0, 30, SIZE_MIB - 1)  # where the pattern is written
TENANT = "tenant"
SHARED, TAKEN, LIAR, REFUSER = "0000:47:00.0", "0000:c7:00.0", "0000:c5:00.0", "0000:c6:00.0"
MOVED = "0000:c8:00.0"  # a port with nothing behind it, to which the drive of the guest can be moved
SERIALS = {SHARED: "LAB0", TAKEN: "TENANT1", LIAR: "LIAR", REFUSER: "REFUSER"}
NAMED = f"--erase {SERIALS[TAKEN]} --to-vfio"
AGAIN = f"--device {TAKEN} {NAMED}"
STEPS = ("quarantined", "reset", "taken-back", "erased", "tested", "reset", "returned")
CUTS = tuple((step, STEPS[: at + 1].count(step)) for at, step in enumerate(STEPS))
BALANCING = "/proc/sys/kernel/numa_balancing"
FILES = "/var/lib/hosttune-lab"
STATEMENT = "/root/statement.json"
WRITES_SECONDS = 900
COURSE_SECONDS = 580
MONITOR_SECONDS = 60.0
_OTHER = "use-intel-id"  # a property of QEMU's drive: another vendor and device id
IDENTITY = "ops@example.com"
SETTINGS = {"libvirt_hook": True, "numa_balancing": 0}
# The guest's init: it loads the drive's driver, and writes the pattern to the first, a middle and the last MiB.
INIT = f"""#!/bin/sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
while read module; do $b insmod /mods/$module; done </mods/order
while [ ! -b /dev/nvme0n1 ]; do $b sleep 0.2; done
$b yes HOSTTUNE-TENANT | $b head -c {MIB} >/pattern
for at in {" ".join(map(str, PLACES_MIB))}; do
  $b dd if=/pattern of=/dev/nvme0n1 bs={MIB} seek=$at conv=notrunc,fsync
done
while :; do $b sleep 3600; done
"""
GUEST: dict[str, Any] = {
    "name": TENANT, "gpus": 0, "nvme": [TAKEN], "vcpus": 1, "memory": "256MiB", "hugepages": "2MiB",
    "firmware": "bios", "accelerator": "tcg",
    "boot": {
        "kernel": f"{FILES}/vmlinux", "initrd": f"{FILES}/writer.cpio",
        "cmdline": "console=ttyS0 quiet mitigations=off tsc=reliable nokaslr panic=-1",
    },
}  # fmt: skip
OWNER = """<domain type='qemu'><name>{name}</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os><devices><hostdev mode='subsystem' type='pci' managed='yes'>
<source><address domain='0x0000' bus='0x{bus}' slot='0x00' function='0x0'/></source></hostdev></devices></domain>"""


class Tenancy(NamedTuple):
    """The host, the file behind each drive here, and the controller's folder with the keys."""

    host: LabMachine
    behind: dict[str, Path]
    keys: Path

    def with_pattern(self, drive: str) -> int:
        """In how many MiB of a drive the pattern is, as what is behind it has it."""
        count = 0
        with self.behind[drive].open("rb") as file:
            while data := file.read(MIB):
                count += PATTERN in data
        return count

    def hand_over(self, *words: str) -> tuple[int, dict[str, Any] | None, str]:
        """Exit code, statement and stderr of a hand-over."""
        ran = self.host.shell(f"hosttune handover {' '.join(words)} --yes -o json", check=False, timeout=COURSE_SECONDS)
        return ran.status, json.loads(ran) if ran.strip() else None, ran.errors

    def state(self, drive: str) -> str | None:
        """The state of a drive in the register, as `handover status` shows it."""
        found = json.loads(self.host.shell("hosttune handover status -o json"))
        return next((one["record"]["state"] for one in found["devices"] if one["record"]["address"] == drive), None)

    def verify(self, *words: str, file: str = STATEMENT) -> tuple[int, set[tuple[str, str]]]:
        """Exit code, and each reason with its subject."""
        told = f"--signers /root/signers --identity {IDENTITY} {' '.join(words)}"
        answer = self.host.shell(f"hosttune handover verify {file} {told} -o json", check=False)
        assert answer.status in (0, 1), answer.errors
        return answer.status, {(one["reason"], one["subject"]) for one in json.loads(answer)["reasons"]}

    def sign(self, expires: str, file: str = STATEMENT) -> None:
        """Sign a statement of the host here, where the key is, and put both files there."""
        here = self.keys / Path(file).name
        here.write_bytes(self.host.fetch(STATEMENT))
        outside("handover", "sign", str(here), "--key", str(self.keys / "key"), "--expires", expires)
        for suffix in ("", ".sig"):
            self.host.shell(f"cat >{file}{suffix}", stdin=Path(f"{here}{suffix}").read_text())

    def own(self, name: str, drive: str) -> None:
        """Define a guest that has a drive, and does not run."""
        self.host.shell("virsh define /dev/stdin", stdin=OWNER.format(name=name, bus=drive[5:7]))

    def refuses_to_start(self, guest: str, drive: str) -> None:
        """Nobody gets a drive that is quarantined: libvirt's own command says so."""
        refused = self.host.shell(f"virsh start {guest}", check=False)
        assert refused.status != 0
        assert f"{drive} is quarantined" in refused.errors

    def put_pattern(self, drive: str) -> None:
        """Put the pattern on a drive, in a guest's name: into the file behind it, as nothing has the drive now."""
        with self.behind[drive].open("r+b") as file:
            for at in PLACES_MIB:
                file.seek(at * MIB)
                file.write(PATTERN * (MIB // len(PATTERN)))

    def device(self, drive: str) -> str:
        """The block device of a drive that the host's driver has."""
        return f"/dev/{self.host.shell(f'ls /sys/bus/pci/devices/{drive}/nvme').strip()}n1"

    def move(self, source: str, target: str) -> None:
        """Take the guest's drive out of one port and put it into another one, while the host runs."""
        name = SERIALS[TAKEN]
        kind, *rest = drive_behind(name, int(target[6:7])).split(",")
        with _monitor(self.host) as ask:
            assert ask("device_del", id=f"drive-{name}") is None
            self._until(f"[ ! -e /sys/bus/pci/devices/{source} ]")
            deadline = time.monotonic() + MONITOR_SECONDS
            while wrong := ask("device_add", driver=kind, **dict(one.split("=") for one in rest), **{_OTHER: True}):
                assert "Duplicate" in wrong, wrong  # the port has not let it go yet
                assert time.monotonic() < deadline, wrong
                time.sleep(0.5)
            self._until(f"[ -e /sys/bus/pci/devices/{target}/driver ]")

    def _until(self, condition: str) -> None:
        waiting = f"n=0; until {condition}; do n=$((n+1)); [ $n -lt 200 ] || exit 1; sleep 0.2; done; udevadm settle"
        self.host.shell(waiting)


@contextlib.contextmanager
def _monitor(host: LabMachine) -> Iterator[Any]:
    """QEMU's monitor of the host: a function that runs one of its commands."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(MONITOR_SECONDS)
        folder = os.open(host.folder, os.O_PATH)
        try:
            connection.connect(f"/proc/self/fd/{folder}/monitor")  # a socket's path must be short
        finally:
            os.close(folder)
        with connection.makefile("rw") as lines:

            def ask(command: str, **arguments: object) -> str | None:
                """What is wrong; None if it was done."""
                lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
                lines.flush()
                answer: dict[str, Any] = {}
                while not answer.keys() & {"return", "error"}:  # events come in between
                    answer = json.loads(lines.readline())
                return str(answer["error"]["desc"]) if "error" in answer else None

            lines.readline()
            ask("qmp_capabilities")
            yield ask


@contextlib.contextmanager
def tenancy(image: Path, folder: Path) -> Iterator[Tenancy]:
    """A host of its own with four drives; the hook of libvirt is installed and starts are recorded."""
    behind = {drive: folder / f"{SERIALS[drive]}.raw" for drive in (TAKEN, LIAR, REFUSER)}
    for file in behind.values():
        with file.open("wb") as disk:
            disk.truncate(SIZE_MIB << 20)
    server = folder / "liar"
    lying = (sys.executable, str(Path(__file__).with_name("lyingdrive.py")), str(server), str(behind[LIAR]))
    more = [
        *("-qmp", "unix:monitor,server=on,wait=off"),
        *further_drive("LIAR", 5, f"driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={server}"),
        *further_drive("REFUSER", 6, _refusing(behind[REFUSER])),
        # It differs from the others, so that it is known again at another port.
        *further_drive(
            SERIALS[TAKEN], 7, f"driver=raw,file.driver=file,file.filename={behind[TAKEN]}", f",{_OTHER}=on"
        ),
        *further_port(8),
    ]
    with subprocess.Popen(lying) as process:
        try:
            while not server.exists():
                assert process.poll() is None
                time.sleep(0.05)
            with booted(image, more=more) as host:
                made = dict(zip((SHARED, "0000:c4:00.0"), (host.folder / f"{one}.raw" for one in DRIVES), strict=True))
                yield _prepared(Tenancy(host, {**behind, **made}, folder))
        finally:
            process.kill()


def _refusing(file: Path) -> str:
    """What is behind a drive that refuses a format: it answers each write of zeros with an error of its media."""
    return (
        f"driver=raw,file.driver=blkdebug,file.image.driver=file,file.image.filename={file},"
        "file.inject-error.0.event=none,file.inject-error.0.iotype=write-zeroes,file.inject-error.0.errno=5"
    )


def _prepared(found: Tenancy) -> Tenancy:
    host = found.host
    install(host)
    host.shell("modprobe vfio-pci")
    modules = "for m in $(modprobe --show-depends nvme | awk '{print $2}'); do cp $m mods/; basename $m >>mods/order"
    pack = f"cpio -id --quiet <{FILES}/initramfs.cpio; cat >init; mkdir mods; {modules}; done"
    tree = f"mkdir /run/tree; cd /run/tree; {pack}; find . | cpio -o -H newc --quiet >{FILES}/writer.cpio"
    host.shell(f"{tree}; rm -r /run/tree", stdin=INIT)
    plan(host, {"version": 1, "profile": "none", "settings": SETTINGS, "guests": []})
    ran = run(host, "apply", "--yes")
    assert ran.status == 0, ran.errors or ran.document
    host.shell("systemctl restart libvirtd")
    making = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "operator", "-f", str(found.keys / "key"))
    subprocess.run(making, check=True, timeout=60)
    public = (found.keys / "key.pub").read_text()
    host.shell("cat >/root/signers", stdin=f'{IDENTITY} namespaces="hosttune-handover" {public}')
    host.shell("cat >/root/revoked", stdin=public)
    return found


def start_tenant(found: Tenancy) -> None:
    """Plan and start the guest, and wait until what is behind its drive has what it wrote."""
    planned = plan(found.host, {"version": 1, "profile": "none", "settings": SETTINGS, "guests": [GUEST]})
    assert planned["unplaced"] == []
    ran = run(found.host, "apply", "--start", "--yes")
    assert ran.status == 0, ran.errors or ran.document
    deadline = time.monotonic() + WRITES_SECONDS
    while found.with_pattern(TAKEN) < len(PLACES_MIB):
        assert time.monotonic() < deadline, found.host.shell(f"tail -50 /var/log/libvirt/qemu/{TENANT}.log")
        time.sleep(2)


def cut_off(host: LabMachine, words: str, step: str, nth: int = 1, *, signal: str = "KILL") -> None:
    """Run a hand-over and end it when it begins a step for the `nth` time, as it says on stderr.

    `signal` STOP: it stands still there, with its children, so that the power can be cut.
    """
    pipe, told = "/run/handover", f"[0-9a-f]*': {step}' | [0-9a-f]*': {step} (about '*"
    ended = "/bin/kill -STOP -- -$process" if signal == "STOP" else "kill -9 $process; wait $process; true"
    # The shell reads itself: a process for each look would cost as much as the hand-over does. What is open as 3 is a
    # reader to the end: without one the hand-over would end by itself.
    script = (
        f"rm -f {pipe}; mkfifo {pipe}; setsid hosttune handover {words} --yes -v >/dev/null 2>{pipe} </dev/null &"
        f" process=$!; exec 3<{pipe}; times=0; while [ $times -lt {nth} ]; do read -r line <&3 || exit 1;"
        f' echo "$line" >&2; case $line in {told}) times=$((times + 1));; esac; done; {ended}'
    )
    host.shell(script, timeout=COURSE_SECONDS)
