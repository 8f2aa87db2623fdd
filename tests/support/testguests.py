"""A host without the GPU's driver, with a stand-in for libvirt, QEMU's tools and the guest that answers. Synthetic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import yaml
from coursekills import _HOSTDEV
from courses import Wiped
from cutshort import KilledError
from faultlab import BOOT_ID, fresh_root
from lxml import etree
from planhosts import build_host

from hosttune.discovery import discover
from hosttune.errors import CommandFailed
from hosttune.guest.bundle import FOLDER
from hosttune.handover.running import Handed, HandoverOptions, hand_over
from hosttune.handover.targets import Asked
from hosttune.handover.testguest import TestGuest
from hosttune.handover.testguest.order import CHANNEL
from hosttune.handover.testguest.planned import NAME
from hosttune.hypervisor.disk import Image
from hosttune.journal import Store
from hosttune.machine.scratch import Scratch
from hosttune.machine.system import STATE_INSIDE
from hosttune.model.host import Host
from hosttune.model.platform import Virtualization
from hosttune.settings.hook import PLACE, hook_text
from hosttune.transaction.site import Site

GPU = "0000:41:00.0"
MEMORY = 100 << 30
ASKED = Asked(guest="vm")
LIST, XML = ".hosttune/commands/virsh-list", ".hosttune/commands/virsh-dumpxml-"
Says = Callable[[dict[str, Any]], Any]


def root_of(base: Path) -> Path:
    """A root with a GPU of the stopped guest "vm" on vfio-pci, the hook, and no driver of the GPU's maker."""
    words = GPU.replace(".", ":").split(":")
    xml = f"<domain type='kvm'><name>vm</name><vcpu>2</vcpu><devices>{_HOSTDEV.format(*words)}</devices></domain>"
    files: dict[str, str | bytes] = {
        "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        "proc/sys/kernel/random/boot_id": f"{BOOT_ID}\n",
        "proc/sys/kernel/hostname": "scratch\n",
        "proc/self/mounts": "proc /proc proc rw 0 0\n",
        "sys/devices/system/cpu/present": "0-31\n",
        "sys/devices/system/node/node0/cpulist": "0-31\n",
        "sys/bus/pci/drivers/vfio-pci/module": "",
        PLACE[1:]: hook_text(STATE_INSIDE) or "",
        LIST: " Id   Name   State\n------\n -    vm     shut off\n",
        f"{XML}vm": xml,
    }
    folder = f"sys/devices/pci0000:40/{GPU}"
    plain = {
        "class": "0x030200", "vendor": "0x10de", "device": "0x2335", "power_state": "D3hot", "numa_node": "0",
        "reset_method": "flr bus", "driver_override": "vfio-pci", "subsystem_vendor": "0x10de",
        "subsystem_device": "0x18be",
    }  # fmt: skip
    files |= {f"{folder}/{name}": f"{text}\n" for name, text in plain.items()}
    files[f"{folder}/config"] = b"\xde\x10\x35\x23" + bytes(5) + b"\x00\x02\x03" + bytes(244)
    links = {
        f"sys/bus/pci/devices/{GPU}": folder,
        f"{folder}/iommu_group": "sys/kernel/iommu_groups/7",
        f"{folder}/driver": "sys/bus/pci/drivers/vfio-pci",
    }
    root = fresh_root(base, files, links)
    (root / PLACE[1:]).chmod(0o755)
    return root


def good(order: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What a guest with a healthy GPU answers; top-level fields can be changed."""
    (device,) = order["devices"]
    address = device["address"]
    answer: dict[str, Any] = {"schema": "hosttune.test-answer/v1", "nonce": order["nonce"], "version": "0.1.0"}
    if order["task"] == "validate":
        rows = (("pcie-link", address), ("bench-device-copy", address), ("ecc-errors", address),
                ("cpu-vulnerabilities", "host"))  # fmt: skip
        answer["validation"] = {
            "schema": "hosttune.validation/v1", "host": "guest", "level": order["level"], "verdict": "pass",
            "results": [{"check": check, "subject": one, "outcome": "pass", "actual": "x"} for check, one in rows],
            "machine": {"gpus": [{"address": address, "id": device["ids"]}], "devices": [{"address": address}]},
        }  # fmt: skip
        answer["firmware"] = {address: {"vbios": "96.00.61"}}
    else:
        row = {"bytes": MEMORY - (1 << 30), "total": MEMORY - (1 << 29)}
        wrote = order["task"] == "write"
        answer["memory"] = {**row, "seen": True} if wrote else {**row, "found": 0, "nonzero": 0}
        answer["memory_bytes"] = MEMORY
    return {**answer, **changes}


class GuestHost(Scratch):
    """A scratch root whose libvirt, qemu-img and test guests are stand-ins.

    `says`: what a guest says to an order: an answer, a text, or how it ends ({"ended": …}). `orders`: those that were
    given. `refuses`: first words of commands that fail. `stays`: domains cannot be ended. `cut`: killed at this
    operation; nothing is done after it. Writes to the kernel are no points: they are made in a child.
    """

    def __init__(self, root: Path, says: Says = good, *, cut: int = -1) -> None:
        super().__init__(str(root))
        self.says, self.cut, self.count = says, cut, 0
        self.orders: list[dict[str, Any]] = []
        self.made: list[str] = []
        self.listening: list[int] = []  # the operations in which a guest was listened to
        self.refuses: tuple[str, ...] = ()
        self.stays = False
        self.overlay = Path(self.root) / f"var/lib/hosttune/guests/{NAME}/disk.qcow2"

    def _reach(self) -> None:
        self.count += 1
        if 0 <= self.cut < self.count:
            raise KilledError

    def replace(self, path: str, data: bytes, mode: int = 0o644) -> None:
        if "/scratch/" not in path:  # the scratch root's own notes
            self._reach()
        super().replace(path, data, mode)

    def remove(self, path: str) -> None:
        if "/scratch/" not in path:
            self._reach()
        super().remove(path)

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        self._reach()
        if "list" in argv:
            return "\n".join(self._domains())
        if "dumpxml" in argv:
            domain = etree.fromstring(self._domains()[argv[-1]])
            for channel in domain.iterfind(f"devices/channel/target[@name='{CHANNEL}']/.."):
                etree.SubElement(channel, "source", mode="bind", path="/run/channel")
            return etree.tostring(domain, encoding="unicode")
        if "hosttune.handover.testguest.listening" in argv:
            assert (argv[0], argv[4]) == (sys.executable, "/run/channel")
            self.listening.append(self.count)
            return self._listened()
        if "info" in argv:
            return json.dumps({"virtual-size": 1 << 30, "format": argv[argv.index("-f") + 1]})
        raise AssertionError(argv)

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        self._reach()
        if any(word in self.refuses for word in argv):
            raise CommandFailed(argv, "exit status 1", "it does not want to")
        if "create" in argv and "qemu-img" in argv:
            assert (self.overlay.stat().st_mode & 0o777, self.overlay.read_bytes()) == (0o600, b"")
            self.overlay.write_bytes(" ".join(argv).encode())
        elif "create" in argv:
            assert stdin is not None
            self._create(stdin)
        elif "destroy" in argv and not self.stays:
            self._keep({uuid: xml for uuid, xml in self._domains().items() if uuid != argv[-1]})
        return ""

    def _create(self, xml: str) -> None:
        """Start a transient domain, unless the hook refuses, which is run as libvirt runs it."""
        script = hook_text(f"{self.root}{STATE_INSIDE}") or ""
        asked = ["sh", "-c", script, "hook", NAME, "prepare", "begin", "-"]
        done = subprocess.run(asked, input=xml, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CommandFailed(("virsh", "create"), "exit status 1", done.stderr)
        self.made.append(xml)
        self._keep({**self._domains(), str(etree.fromstring(xml).findtext("uuid")): xml})

    def _listened(self) -> str:
        user = self.read(f"{STATE_INSIDE}/guests/{NAME}/user-data") or ""
        document = yaml.load(user, yaml.CSafeLoader)
        files = {one["path"]: one["content"] for one in document["write_files"]}
        order = json.loads(files[f"{FOLDER}/order.json"])
        self.orders.append(order)
        said = self.says(order)
        if isinstance(said, dict) and "ended" in said:
            return json.dumps(said)
        return json.dumps({"ended": "line", "text": said if isinstance(said, str) else json.dumps(said)})

    def _domains(self) -> dict[str, str]:
        path = Path(self.root) / ".hosttune/domains"
        found = json.loads(path.read_text()) if path.exists() else {}
        assert isinstance(found, dict)
        return found

    def _keep(self, domains: dict[str, str]) -> None:
        """Keep the domains that run, also where discovery looks."""
        root = Path(self.root)
        (root / ".hosttune/domains").write_text(json.dumps(domains))
        rows = "".join(f" {n}    {NAME}   running\n" for n, _ in enumerate(domains, 1))
        (root / LIST).unlink()
        (root / LIST).write_text(f" Id   Name   State\n------\n{rows} -    vm     shut off\n")
        for xml in domains.values():
            (root / f"{XML}{NAME}").write_text(xml)
        self.forget()

    def left(self) -> list[str]:
        """What is there of a test guest."""
        state = Path(self.root) / "var/lib/hosttune"
        found = [str(one) for one in (state / "guests", state / "handover/test-guest") if os.path.lexists(one)]
        return found + list(self._domains())


def place(system: GuestHost) -> tuple[Site, Callable[[], Host]]:
    """Where `hand_over` works: CPUs and memory are those of a built host."""
    folder = f"{system.root}{STATE_INSIDE}"
    site = Site(system=system, store=Store(folder), boot_id=BOOT_ID, hostname="scratch")
    built = Host.from_json(json.dumps(build_host(nodes=1)))

    def look() -> Host:
        system.forget()
        facts = {name: getattr(built, name) for name in ("cpus", "numa_nodes", "arch")}
        return msgspec.structs.replace(discover(system), **facts, virtualization=Virtualization(kvm=True))

    return site, look


def tried(system: GuestHost, image: Path, asked: Asked = ASKED, *, inside: bool = True) -> Handed:
    """A hand-over with a test guest."""

    def refused(level: int) -> Any:
        raise AssertionError("no driver of the host has a device: there is nothing to validate")

    wanted = TestGuest(image=Image(path=str(image), format="qcow2")) if inside else None
    options = HandoverOptions(None, Wiped() if not inside else None, refused, test_guest=wanted)
    return hand_over(place(system), asked, options, lambda lines: True, lambda text: None)


def qcow2(path: Path, **fields: int) -> Path:
    """A file with a qcow2 header (QEMU docs/interop/qcow2.txt); `backing`, `features`, `version`, `crypt` of it."""
    header = bytearray(104)
    header[0:4] = b"QFI\xfb"
    header[4:8] = fields.get("version", 3).to_bytes(4, "big")
    header[8:16] = fields.get("backing", 0).to_bytes(8, "big")
    header[32:36] = fields.get("crypt", 0).to_bytes(4, "big")
    header[72:80] = fields.get("features", 0).to_bytes(8, "big")
    path.write_bytes(bytes(header))
    return path
