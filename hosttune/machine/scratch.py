"""A scratch root: a captured host that is used in place of a machine and can be changed, for rehearsals and tests.

It behaves like the kernel for the values that hosttune writes: attributes are stored completely or not at all, a choice
(`[always] madvise never`) moves its brackets, drivers bind and unbind, huge pages and virtual functions are counted.
Commands are recorded, not run. Nothing outside the root is changed; what this module must remember is in
`var/lib/hosttune/scratch` inside it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from typing import Any

from hosttune.errors import WriteFailed
from hosttune.linux.hugetlbfs import MOUNTS, PLACES, UNITS_FOLDER, Mounted, read_hugetlbfs
from hosttune.linux.pciconfig import CAP_EXPRESS, capability_at, decode
from hosttune.machine.scratchfiles import NOTES, ScratchFiles
from hosttune.machine.system import COMMANDS, take_file
from hosttune.model import sysfs
from hosttune.model.affinity import thread_of
from hosttune.model.pci import vf_address

# Virtual functions of a scratch root: made and removed by their number, with what their physical function keeps.


_ROW: dict[str, Any] = {"link_type": "ether", "address": "00:00:00:00:00:00", "vlan_list": [{}], "spoofchk": True,
                        "rate": {"max_tx": 0, "min_tx": 0}, "link_state": "auto", "trust": False}  # fmt: skip
_OF_ROW = {"mac": "address", "state": "link_state", "node_guid": "node guid",
           "port_guid": "port guid"}  # fmt: skip


class ScratchFunctions(ScratchFiles):
    """A captured host whose virtual functions can be changed."""

    def count_functions(self, match: re.Match[str], text: str) -> None:
        """Change the number of virtual functions as the kernel does: only from or to 0."""
        now = self._held(match[0]).decode().strip()
        most = (self.read(f"{match['device']}/sriov_totalvfs") or "").strip()
        if not text.isdecimal():
            raise WriteFailed(match[0], os.strerror(errno.EINVAL), errno.EINVAL)
        if most.isdecimal() and int(text) > int(most):
            raise WriteFailed(match[0], os.strerror(errno.ERANGE), errno.ERANGE)
        if text not in ("0", now) and now != "0":
            raise WriteFailed(match[0], os.strerror(errno.EBUSY), errno.EBUSY)
        if text != now:
            self._show(self._folder(match["device"]), match["device"].rpartition("/")[2], int(text))
        self._store(match[0], f"{int(text)}\n".encode())

    def _show(self, folder: str, physical: str, count: int) -> None:
        devices, groups = self._folder(sysfs.PCI_DEVICES), self._folder(sysfs.IOMMU_GROUPS)
        for name in (one for one in os.listdir(folder) if one.startswith("virtfn")):
            own = os.path.realpath(f"{folder}/{name}")
            address, group = os.path.basename(own), os.path.realpath(f"{own}/iommu_group")
            if os.path.dirname(group) == os.path.realpath(groups) and os.listdir(f"{group}/devices") in ([address], []):
                shutil.rmtree(group)
            shutil.rmtree(own)
            os.unlink(f"{devices}/{address}")
            os.unlink(f"{folder}/{name}")
        sriov = decode(self.read_bytes(f"{sysfs.function(physical)}/config") or b"").sriov
        of_config = (sriov.offset, sriov.stride, sriov.device_id) if sriov else ()
        told = [self.read(sysfs.function(physical, f"sriov_{name}")) for name in ("offset", "stride", "vf_device")]
        facts = [text for text in told if text is not None] if None not in told else [*map(str, of_config)]
        for number in range(count if facts else 0):
            address = vf_address(physical, int(facts[0]), int(facts[1]), number)
            own = f"{os.path.dirname(folder)}/{address}"
            os.makedirs(own)
            for name in ("vendor", "class", "numa_node", "local_cpulist"):
                if os.path.exists(f"{folder}/{name}"):
                    shutil.copy(f"{folder}/{name}", own)
            with open(f"{own}/device", "w") as file:
                file.write(f"0x{facts[2]}\n")
            group = f"{groups}/{1 + max(map(int, os.listdir(groups)), default=-1)}"
            os.makedirs(f"{group}/devices")
            links = {f"{folder}/virtfn{number}": own, f"{devices}/{address}": own, f"{own}/physfn": folder,
                     f"{own}/iommu_group": group, f"{group}/devices/{address}": own}  # fmt: skip
            for place, to in links.items():
                os.symlink(os.path.relpath(to, os.path.realpath(os.path.dirname(place))), place)
        for interface in os.listdir(f"{folder}/net") if os.path.isdir(f"{folder}/net") else ():
            self._answer(interface, [{"vf": number, **_ROW} for number in range(count)])
        self.forget()

    def _answer(self, interface: str, rows: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        """Return what `ip link show` tells of an interface's virtual functions, or change it."""
        path = f"{COMMANDS}ip-link-{interface}"
        links = json.loads(self.read(path) or json.dumps([{"ifname": interface}]))
        if rows is not None:
            links[0]["vfinfo_list"] = rows
            self._made.make(COMMANDS.rstrip("/"))
            self._put(path, json.dumps(links).encode())
        return list(links[0].get("vfinfo_list", ()))

    def set_function(self, interface: str, number: int, words: tuple[str, ...]) -> None:
        """Change what a physical function keeps for a virtual one, as `ip link set DEV vf NUMBER` does."""
        rows = self._answer(interface)
        row = next(row for row in rows if row["vf"] == number)
        for word, value in zip(words[::2], words[1::2], strict=True):
            if word in ("vlan", "qos"):
                row["vlan_list"] = [{**row["vlan_list"][0], word: int(value)}]
            elif word in ("max_tx_rate", "min_tx_rate"):
                row["rate"] = {**row["rate"], word.removesuffix("_rate"): int(value)}
            elif word in ("proto", *_OF_ROW):
                row[_OF_ROW.get(word, "protocol")] = value
            else:
                row["query_rss_en" if word == "query_rss" else word] = value == "on"
        self._answer(interface, rows)


RAN = f"{NOTES}/ran"  # the recorded commands, one JSON list of words on each line
_DEVICES = sysfs.PCI_DEVICES
_DRIVERS = sysfs.PCI_DRIVERS
_MDEVS = "/sys/bus/mdev/devices"
_CHOICE = re.compile(r"\[([^]\s]+)\]")
_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]")
_LIBVIRT = ("libvirtd.service", "virtqemud.service")
_UNIT_LINE = {name: re.compile(rf"^{name}=(\S+)$", re.MULTILINE) for name in ("Where", "Options")}
_PIN = re.compile(r"virsh-pin-(?P<guest>[^/]+)")
_ALLOWED = re.compile(r"^(Cpus_allowed_list:\s*).*$", re.MULTILINE)
_IS_ACTIVE = re.compile(r"(\"isActive\"\s*:\s*)[01]")
_UNSET = "(null)"  # what the kernel shows for an unset driver_override


class Scratch(ScratchFunctions):
    """A scratch root as a System that can be changed. See the module."""

    def write(self, path: str, text: str) -> None:
        """See System."""
        for pattern, act in _DOORS:
            match = pattern.fullmatch(path)
            if match:
                act(self, match, text.strip())
                return
        held = self._held(path)
        self._store(path, _chosen(path, held, text))

    def write_register(self, path: str, offset: int, data: bytes) -> None:
        """See System."""
        held = self._held(path)
        if offset + len(data) > len(held):
            raise WriteFailed(path, os.strerror(errno.EINVAL), errno.EINVAL)
        self._store(path, held[:offset] + data + held[offset + len(data) :])

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        """See System. Recorded, not run, without output. Mounts of huge pages are shown as a capture shows them."""
        ran = self.read_bytes(RAN) or b""
        self.replace(RAN, ran + json.dumps(argv).encode() + b"\n")
        if argv[:2] == ("systemctl", "start") and argv[-1].endswith(".mount"):
            self._mount(argv[-1])
        elif argv[:2] == ("systemctl", "stop") and argv[-1].endswith(".mount"):
            self._unmount(argv[-1])
        elif argv[:2] == ("systemctl", "restart") and argv[-1] in _LIBVIRT:
            for path in (mount.path for mount in self._hugetlbfs() if mount.path in PLACES.values()):
                os.makedirs(os.path.dirname(self.inside(f"{path}/libvirt/qemu/guest")), exist_ok=True)
            self.forget()
        elif argv[:2] == ("qemu-img", "convert"):
            self.replace(argv[-1], self.read_bytes(argv[-2]) or b"")
        elif argv[0] == "mv":
            os.rename(self.inside(argv[-2]), self.inside(argv[-1]))
            self.forget()
        elif argv[:4] == ("ip", "link", "set", "dev") and argv[5] == "vf":
            self.set_function(argv[4], int(argv[6]), argv[7:])
        elif argv[0] == "rmdir":
            self._take_folder(argv[-1])
        elif argv[0] == "fmpm" and argv[-2] in ("-a", "-d"):
            self._partition(int(argv[-1]), active=argv[-2] == "-a")
        elif argv[1:3] == ("mig", "-i"):
            self._gpu_instance(argv[3], argv[4:])
        elif len(argv) == 3 and argv[1] in ("-e", "-d"):  # the tool that makes functions of GPUs
            most = self.read(f"{_DEVICES}/{argv[2]}/sriov_totalvfs") or "0"
            self.write(f"{_DEVICES}/{argv[2]}/sriov_numvfs", most if argv[1] == "-e" else "0")
        return ""

    def _partition(self, number: int, *, active: bool) -> None:
        """Activate or deactivate a partition of the fabric: the recorded list shows it, and is else as it was."""
        path = f"{COMMANDS}fabric-manager-partitions"
        text = self._held(path).decode()
        ids = iter(row["partitionId"] for row in json.loads(text)["partitionInfo"])
        changed = _IS_ACTIVE.sub(lambda match: f"{match[1]}{int(active)}" if next(ids) == number else match[0], text)
        self._put(path, changed.encode())

    def _gpu_instance(self, gpu: str, words: tuple[str, ...]) -> None:
        """Make a GPU instance (-cgi NAME:START) or destroy it (-dgi -gi ID): the recorded table shows it."""
        path = f"{COMMANDS}mig-lgi-{gpu}"
        rows = [line for line in (self.read(path) or "").splitlines() if " MIG " in line]
        if words[0] == "-dgi":
            rows = [row for row in rows if row.split()[5] != words[-1]]
        elif words[0] == "-cgi":
            name, _, start = words[-1].rpartition(":")
            number = 1 + max((int(row.split()[5]) for row in rows), default=0)
            rows.append(f"|   0  MIG {name}  0  {number}  {start}:1  |")
        self._put(path, ("\n".join(rows or ["No GPU instances found: Not Found"]) + "\n").encode())

    def ran(self) -> list[tuple[str, ...]]:
        """Return the recorded commands, in order."""
        return [tuple(json.loads(line)) for line in (self.read(RAN) or "").splitlines()]

    def tell(self, name: str, value: str, live: Callable[[], None]) -> None:
        """See System. The value becomes the recorded answer; an empty value removes it; a guest's thread is pinned."""
        pinned = _PIN.fullmatch(name)
        if pinned:
            self._pin(pinned["guest"], *value.split("="))
        elif value:
            self._made.make(COMMANDS.rstrip("/"))
            self._put(COMMANDS + name, value.encode())
        else:
            self.remove(COMMANDS + name)

    def _pin(self, guest: str, thread: str, cpus: str) -> None:
        """Pin a thread of a guest as libvirt does: the kernel shows its CPUs."""
        process = self.read(f"/run/libvirt/qemu/{guest}.pid")
        for task in self.list(f"/proc/{process}/task"):
            folder = f"/proc/{process}/task/{task}"
            if thread_of(self.read(f"{folder}/comm") or "") == thread:
                held = self._held(f"{folder}/status").decode()
                self._store(f"{folder}/status", _ALLOWED.sub(rf"\g<1>{cpus}", held).encode())

    # --- drivers ---------------------------------------------------------------------------------------------

    def _device(self, address: str) -> str:
        """Return the device's folder, with every link resolved. Raises WriteFailed, with ENODEV as the kernel does."""
        path = f"{_DEVICES}/{address}"
        real = self._real(path) if _ADDRESS.fullmatch(address) else None
        if real is None:
            raise WriteFailed(path, os.strerror(errno.ENODEV), errno.ENODEV)
        return real

    def lacks(self, path: str) -> bool:
        """See System. A driver that was taken from a function in this root is known to be gone."""
        taken = path.startswith(f"{_DEVICES}/") and path.endswith("/driver") and self.link(path) is None
        return super().lacks(path) or (taken and self.exists(self._note(f"own-{path.split('/')[-2]}")))

    def _driver(self, device: str) -> str | None:
        return (self.link(f"{device}/driver") or "").rpartition("/")[2] or None

    def _bind(self, device: str, driver: str | None) -> None:
        """Set the device's driver, or remove it (None); atomic."""
        link = f"{self.root}{device}/driver"
        if driver is None:
            os.unlink(link)
        else:
            os.makedirs(self._folder(f"{_DRIVERS}/{driver}"), exist_ok=True)
            self._keep_interrupts(device, driver, bound=True)  # first, so that the link is the last change
            up = "../" * (device.count("/") - 1)
            temporary = self._unfinished()
            os.symlink(f"{up}bus/pci/drivers/{driver}", temporary)
            os.replace(temporary, link)
        self.forget()

    def _unbind(self, match: re.Match[str], address: str) -> None:
        device = self._device(address)
        driver = self._driver(device)
        if driver is None or driver != match["driver"]:
            raise WriteFailed(match[0], os.strerror(errno.ENODEV), errno.ENODEV)
        self.replace(self._note(f"own-{address}"), driver.encode())  # the driver to bind it again without an override
        os.makedirs(self._folder(f"{_DRIVERS}/{driver}"), exist_ok=True)  # a capture may lack it
        self._bind(device, None)
        self._keep_interrupts(device, driver, bound=False)

    def _keep_interrupts(self, device: str, driver: str, *, bound: bool) -> None:
        """Move the interrupts of a driver away when it is unbound, and back when it is bound again."""
        note = self._note(f"irqs-{driver}-{device.rpartition('/')[2]}")
        here, aside = self._folder(f"{device}/msi_irqs"), self._folder(note)
        source, target = (aside, here) if bound else (here, aside)
        if os.path.isdir(source) and not os.path.lexists(target):
            os.rename(source, target)
        self.forget()

    def _bind_to(self, match: re.Match[str], address: str) -> None:
        device = self._device(address)
        if self._driver(device) is not None:
            raise WriteFailed(match[0], os.strerror(errno.EBUSY), errno.EBUSY)
        override = self.read(f"{device}/driver_override")
        if override not in (None, "", _UNSET, match["driver"]):
            raise WriteFailed(match[0], os.strerror(errno.ENODEV), errno.ENODEV)
        self._bind(device, match["driver"])

    def _probe(self, found: re.Match[str], address: str) -> None:
        device = self._device(address)
        if self._driver(device) is not None:
            return
        override = self.read(f"{device}/driver_override")
        if override in (None, "", _UNSET):
            override = self.read(self._note(f"own-{address}"))
            override = None if override == "vfio-pci" else override  # vfio-pci binds no device without an override
        if override:
            self._bind(device, override)

    def _override(self, match: re.Match[str], driver: str) -> None:
        device = self._device(match["address"])
        made = self._note(f"made-{match['address']}")
        path = f"{device}/driver_override"
        if driver:
            if self.read_bytes(path) is None:
                self.replace(made, b"")
            self._put(path, f"{driver}\n".encode())
        elif self.exists(made):  # the capture had no such file: restore that
            take_file(self.inside(path))
            self.remove(made)
        else:
            self._put(path, f"{_UNSET}\n".encode())

    def _reset(self, match: re.Match[str], text: str) -> None:
        """Reset a function by the first method that the kernel has for it; without one there is no such attribute."""
        method = (self.read(f"{_DEVICES}/{match['address']}/reset_method") or "").partition(" ")[0]
        if not method or text != "1":
            raise WriteFailed(match[0], os.strerror(errno.ENOENT), errno.ENOENT)
        self.replace(self._note(f"reset-{match['address']}"), method.encode())

    def _make_mediated(self, match: re.Match[str], uuid: str) -> None:
        """Make a mediated device of a type, as vfio-mediated-device.rst says."""
        self._held(match[0])
        folder = f"{_MDEVS}/{uuid}"
        self.replace(f"{folder}/remove", b"")
        up = "../" * (folder.count("/"))
        os.symlink(f"{up}{match['type'].lstrip('/')}", f"{self.root}{folder}/mdev_type")
        self.forget()

    def _remove_mediated(self, match: re.Match[str], _: str) -> None:
        self._held(match[0])
        os.unlink(f"{self.root}{match['folder']}/mdev_type")
        self.remove(match[0])
        self.forget()

    # --- links -----------------------------------------------------------------------------------------------

    def _aspm(self, match: re.Match[str], text: str) -> None:
        """Set a switch of a link: it sets link control of both ends to what all switches say; substates go off with L1.

        It does nothing if the value is the same (drivers/pci/pcie/aspm.c).
        """
        if text not in ("0", "1"):
            raise WriteFailed(match[0], os.strerror(errno.EINVAL), errno.EINVAL)
        if self._held(match[0]).strip() == text.encode():
            return
        self._store(match[0], f"{text}\n".encode())
        device = self._device(match["address"])
        bits = sum(
            bit for name, bit in (("l0s", 1), ("l1", 2)) if (self.read(f"{device}/link/{name}_aspm") or "") == "1"
        )
        for end in (device, device.rpartition("/")[0]):
            config = self.read_bytes(f"{end}/config") or b""
            at = capability_at(config, CAP_EXPRESS)
            if at is not None:
                low = config[at + 0x10] & ~3 | bits
                self._store(f"{end}/config", config[: at + 0x10] + bytes((low,)) + config[at + 0x11 :])
        if match["state"] == "l1" and text == "0":
            for name in self.list(f"{device}/link"):
                if name.startswith("l1_"):
                    self._store(f"{device}/link/{name}", b"0\n")

    # --- mounts ----------------------------------------------------------------------------------------------

    def _hugetlbfs(self) -> tuple[Mounted, ...]:
        return read_hugetlbfs(next((text for path in MOUNTS if (text := self.read(path)) is not None), ""), None)

    def _mount(self, unit: str) -> None:
        """Start a mount unit for huge pages: add its line to the list of mounts, and make its folder."""
        text = self.read(f"{UNITS_FOLDER}/{unit}") or ""
        path, options = (_UNIT_LINE[name].search(text) for name in ("Where", "Options"))
        if path is None or options is None or any(mount.path == path[1] for mount in self._hugetlbfs()):
            return
        self._made.make(path[1])
        size = options[1].replace("pagesize=1G", "pagesize=1024M")  # as the kernel shows it
        for mounts in MOUNTS:
            held = self.read_bytes(mounts)
            if held is not None:
                self._store(mounts, held + f"hugetlbfs {path[1]} hugetlbfs rw,{size} 0 0\n".encode())

    def _unmount(self, unit: str) -> None:
        path = _UNIT_LINE["Where"].search(self.read(f"{UNITS_FOLDER}/{unit}") or "")
        if path is None:
            return
        for inside in (f"{path[1]}/libvirt/qemu", f"{path[1]}/libvirt"):  # first: nobody looks for them without a mount
            if self._real(inside) is not None:
                os.rmdir(os.path.dirname(self.inside(f"{inside}/guest")))
                self.forget()
        for mounts in reversed(MOUNTS):  # the first one is read: it shows the mount until the other lists have lost it
            held = self.read_bytes(mounts)
            if held is not None:
                lines = held.splitlines(keepends=True)
                gone = f"hugetlbfs {path[1]} hugetlbfs ".encode()
                self._store(mounts, b"".join(line for line in lines if not line.startswith(gone)))

    def _take_folder(self, path: str) -> None:
        if self._real(path) is None:
            return
        self.replace(self._note(f"folder-{path.replace('/', '%')}"), b"")  # it may have existed before
        self.remove(f"{path}/made")

    # --- memory ----------------------------------------------------------------------------------------------

    def _pages(self, match: re.Match[str], text: str) -> None:
        """Set both counts of a pool: a kernel changes both or none. They are noted before."""
        if not text.isdecimal():
            raise WriteFailed(match[0], os.strerror(errno.EINVAL), errno.EINVAL)
        total = int(self._held(match[0]).decode() or 0)
        free_path = f"{match['pool']}/free_hugepages"
        free = self.read(free_path)
        if free is None or not free.isdecimal():
            self._store(match[0], f"{int(text)}\n".encode())
            return
        note = self._note(f"pages-{match[0].replace('/', '%')}")
        self._put(note, f"{total} {free}\n".encode())
        try:
            self._store(match[0], f"{int(text)}\n".encode())
            self._store(free_path, f"{max(0, int(free) + int(text) - total)}\n".encode())
        except WriteFailed:
            self.restore_cut_off()
            raise
        self.remove(note)

    def restore_cut_off(self) -> None:
        """Restore both counts of each pool of which a killed process changed one. Only for the holder of the lock."""
        for name in self.list(NOTES):
            counts = (self.read(self._note(name)) or "").split()
            path = name.removeprefix("pages-").replace("%", "/")
            if name.startswith("pages-") and len(counts) == 2:
                for file, count in zip((path, f"{path.rpartition('/')[0]}/free_hugepages"), counts, strict=True):
                    self._store(file, f"{count}\n".encode())
                self.remove(self._note(name))


def _chosen(path: str, held: bytes, text: str) -> bytes:
    """Return an attribute's contents after `text` was written: for a list of choices, move the brackets."""
    now = held.decode("utf-8", "replace")
    words = [word.strip("[]") for word in now.split()]
    if _CHOICE.search(now):
        if text.strip() not in words:
            raise WriteFailed(path, os.strerror(errno.EINVAL), errno.EINVAL)
        chosen = (f"[{word}]" if word == text.strip() else word for word in words)
        return (" ".join(chosen) + "\n").encode()
    return text.rstrip("\n").encode() + (b"\n" if now.endswith("\n") or not now else b"")


_DOORS: tuple[tuple[re.Pattern[str], Callable[[Scratch, re.Match[str], str], None]], ...] = (
    (re.compile(rf"{_DRIVERS}/(?P<driver>[^/]+)/unbind"), Scratch._unbind),
    (re.compile(rf"{_DRIVERS}/(?P<driver>[^/]+)/bind"), Scratch._bind_to),
    (re.compile(rf"{sysfs.PCI_DRIVERS}_probe"), Scratch._probe),
    (re.compile(rf"{_DEVICES}/(?P<address>[^/]+)/driver_override"), Scratch._override),
    (re.compile(rf"{_DEVICES}/(?P<address>[^/]+)/reset"), Scratch._reset),
    (re.compile(rf"{_DEVICES}/(?P<address>[^/]+)/link/(?P<state>l0s|l1)_aspm"), Scratch._aspm),
    (re.compile(r"(?P<pool>/sys/.*/hugepages-[0-9]+kB)/nr_hugepages"), Scratch._pages),
    (re.compile(r"(?P<device>/sys/.*)/sriov_numvfs"), Scratch.count_functions),
    (re.compile(r"(?P<type>/sys/.*/mdev_supported_types/[^/]+)/create"), Scratch._make_mediated),
    (re.compile(rf"(?P<folder>{_MDEVS}/[^/]+)/remove"), Scratch._remove_mediated),
)
