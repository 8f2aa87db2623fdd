"""Drives between two tenants on an emulated host: their owners, what is behind them, and hand-overs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lab.hardware import DRIVES, further_drive
from lab.machine import LabMachine, booted
from lab.product import install, outside, plan, run

PATTERN = b"HOSTTUNE-TENANT\n"
MIB = 1 << 20
SIZE_MIB = 64  # of the drives that are made here; the two of every machine have 256
TAKEN, SHARED, LIAR = "0000:c4:00.0", "0000:47:00.0", "0000:c5:00.0"  # serial numbers LAB1, LAB0, LIAR
STATEMENT = "/root/statement.json"
COURSE_SECONDS = 580
IDENTITY = "ops@example.com"
SETTINGS = {"libvirt_hook": True, "numa_balancing": 0}
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

    def write_pattern(self, drive: str) -> None:
        """Write the pattern to the first, a middle and the last MiB of a drive, by the host, which has it."""
        device = self.device(drive)
        whole = f"yes HOSTTUNE-TENANT | head -c {MIB} >/run/pattern; size=$(blockdev --getsize64 {device})"
        at = f"for at in 0 30 $((size / {MIB} - 1)); do dd if=/run/pattern of={device} bs={MIB} seek=$at conv=fsync"
        self.host.shell(f"{whole}; {at} 2>/dev/null; done; rm /run/pattern; blockdev --flushbufs {device}")

    def device(self, drive: str) -> str:
        """The block device of a drive that the host's driver has."""
        return f"/dev/{self.host.shell(f'ls /sys/bus/pci/devices/{drive}/nvme').strip()}n1"


@contextlib.contextmanager
def tenancy(image: Path, folder: Path) -> Iterator[Tenancy]:
    """A host of its own with three drives; the hook of libvirt is installed and starts are recorded."""
    behind = folder / "liar.raw"
    with behind.open("wb") as disk:
        disk.truncate(SIZE_MIB << 20)
    socket = folder / "liar"
    lying = (sys.executable, str(Path(__file__).with_name("lyingdrive.py")), str(socket), str(behind))
    more = further_drive("LIAR", 5, f"format=raw,file.driver=nbd,file.server.type=unix,file.server.path={socket}")
    with subprocess.Popen(lying) as server:
        try:
            while not socket.exists():
                assert server.poll() is None
                time.sleep(0.05)
            with booted(image, more=more) as host:
                made = dict(zip((SHARED, TAKEN), (host.folder / f"{name}.raw" for name in DRIVES), strict=True))
                yield _prepared(Tenancy(host, {LIAR: behind, **made}, folder))
        finally:
            server.kill()


def _prepared(found: Tenancy) -> Tenancy:
    host = found.host
    install(host)
    host.shell("modprobe vfio-pci")
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
