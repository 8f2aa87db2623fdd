"""Kill -9 at the points of a hand-over, on a small scratch root, and what must hold after each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from configspace import space
from courses import Wiped, here, passing, states
from faultlab import BOOT_ID, Ended, Faults, Job, fresh_root, kill, quiet, run_forked, site_on

from hosttune.discovery import discover
from hosttune.handover import record
from hosttune.handover.cleaning import Cleaning
from hosttune.handover.running import HandoverOptions, hand_over
from hosttune.handover.statement import applied_values, known_firmware
from hosttune.handover.targets import Asked
from hosttune.handover.verify import Live, verification
from hosttune.inventory.devices import quarantined_devices
from hosttune.machine.system import STATE_INSIDE
from hosttune.model.handover import Statement
from hosttune.model.host import Host
from hosttune.model.result import Result
from hosttune.model.starts import QUARANTINED
from hosttune.model.validation import Validation
from hosttune.settings.hook import PLACE, hook_text
from hosttune.transaction.site import Site

DRIVE, NIC, HOSTS_NIC = "0000:c1:00.0", "0000:c2:00.0", "0000:c3:00.0"
HOST_DRIVER = "mlx5_core"
ASKED = Asked(guest="vm", erase=("S1",))
_HOSTDEV = (
    "<hostdev mode='subsystem' type='pci' managed='no'><source>"
    "<address domain='0x{}' bus='0x{}' slot='0x{}' function='0x{}'/></source></hostdev>"
)


def definition(name: str, addresses: Sequence[str]) -> str:
    """The definition of a guest with devices."""
    parts = [one.replace(".", ":").split(":") for one in addresses]
    devices = "".join(_HOSTDEV.format(*words) for words in parts)
    return f"<domain type='kvm'><name>{name}</name><vcpu>2</vcpu><devices>{devices}</devices></domain>"


def config(kind: str, device: str) -> bytes:
    """Configuration space of a class and a device id, in hex."""
    config = bytearray(space())
    config[0:4], config[9:12] = b"\x4d\x14" + bytes.fromhex(device)[::-1], bytes.fromhex(kind)[::-1]
    return bytes(config)


def root_of(base: Path, *, drivers: Sequence[str] = ("vfio-pci", "vfio-pci")) -> Path:
    """A root with a drive and a NIC of the stopped guest "vm", and the hook of libvirt."""
    files: dict[str, str | bytes] = {
        "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        "proc/sys/kernel/random/boot_id": f"{BOOT_ID}\n",
        "proc/sys/kernel/hostname": "scratch\n",
        "proc/self/mounts": "proc /proc proc rw 0 0\n",
        "sys/devices/system/cpu/present": "0-1\n",
        "sys/devices/system/node/node0/cpulist": "0-1\n",
        "sys/bus/pci/drivers/nvme/module": "",
        "sys/bus/pci/drivers/mlx5_core/module": "",
        "sys/bus/pci/drivers/vfio-pci/module": "",
        PLACE[1:]: hook_text(STATE_INSIDE) or "",
        ".hosttune/commands/virsh-list": " Id   Name   State\n------\n -    vm     shut off\n",
        ".hosttune/commands/virsh-dumpxml-vm": definition("vm", (DRIVE, NIC)),
    }
    links: dict[str, str] = {}
    rows = (
        (DRIVE, "010802", "a80a", drivers[0]),
        (NIC, "020000", "a2dc", drivers[1]),
        (HOSTS_NIC, "020000", "a2dc", HOST_DRIVER),
    )
    for group, (address, kind, device, driver) in enumerate(rows, 7):
        folder = f"sys/devices/pci0000:c0/{address}"
        plain = {
            "class": f"0x{kind}", "vendor": "0x144d", "device": f"0x{device}", "power_state": "D0", "numa_node": "0",
            "reset_method": "flr bus", "driver_override": "vfio-pci" if driver == "vfio-pci" else "(null)",
            "subsystem_vendor": "0x144d", "subsystem_device": "0xa801",
        }  # fmt: skip
        files |= {f"{folder}/{name}": f"{text}\n" for name, text in plain.items()}
        files[f"{folder}/config"] = config(kind, device)
        links |= {f"sys/bus/pci/devices/{address}": folder, f"{folder}/iommu_group": f"sys/kernel/iommu_groups/{group}"}
        links |= {f"{folder}/driver": f"sys/bus/pci/drivers/{driver}"}
    files |= {f"sys/devices/pci0000:c0/{DRIVE}/nvme/nvme0/{name}": text for name, text in
              {"serial": "S1 \n", "firmware_rev": "GDC5602Q\n"}.items()}  # fmt: skip
    files[f"sys/devices/pci0000:c0/{NIC}/infiniband/mlx5_0/fw_ver"] = "28.40.1000\n"
    root = fresh_root(base, files, links)
    hook = root / PLACE[1:]
    hook.chmod(0o755)
    return root


def passing_all(level: int) -> Validation:
    """A validation in which both devices are good."""
    one, other = passing(level, DRIVE), passing(level, NIC)
    return msgspec.structs.replace(one, results=one.results + other.results)


def course(
    site: Site, cleaning: Cleaning | None = None, validate: Callable[[int], Validation] = passing_all
) -> tuple[Result, int]:
    """The hand-over of both devices, as a job that can be killed."""
    system = site.system

    def look() -> Host:
        system.forget()
        return discover(system)

    found = hand_over(
        (site, look), ASKED, HandoverOptions(None, cleaning or Wiped(), validate), lambda lines: True, quiet
    )
    return Result(verb="apply"), 0 if found.clean else 1


def neither(root: Path, devices: Sequence[str] = (DRIVE, NIC)) -> list[str]:
    """The devices that are neither quarantined nor covered by a statement, nor untouched by any hand-over."""
    site, look = here(root)
    host = look()
    assert site.store is not None
    last = record.last_course(site.store)
    begun = {one.target for one in last.records} if last is not None else set()
    return [one for one in devices if not _held(site, host, one, begun)]


def _held(site: Site, host: Host, address: str, begun: set[str]) -> bool:
    known = host.handover.register.record(address) if host.handover is not None else None
    function = host.index.pci[address]
    if known is None:
        return address not in begun and function.driver == "vfio-pci" and function.reset_methods == ("flr", "bus")
    listed = (site.system.read(f"{STATE_INSIDE}/{QUARANTINED}") or "").split()
    if known.state == "quarantined":
        return address in listed and address in quarantined_devices(host)
    path = record.statement_path(site.store.folder, int(known.why.split()[-1]))  # type: ignore[union-attr]
    statement = Statement.from_json(Path(path).read_bytes())
    firmware = {one.address: known_firmware(None, host, one.address) for one in statement.predicate.devices}
    wrong = verification(statement, Live(host=host, applied=applied_values(site), firmware=firmware), (), "")
    return {one.reason for one in wrong.reasons if address in one.subject or one.subject == "host"} <= {"quarantined"}


def judged(root: Path, job: Job = course) -> list[str]:
    """What must not be after a kill, and after the second hand-over that follows."""
    wrong = [f"{address} is neither quarantined nor covered" for address in neither(root)]
    code = job(site_on(root))[1]
    if code != 0 or states(root) != {DRIVE: "clean", NIC: "clean"}:
        wrong.append(f"a second hand-over ends with {code}, {states(root)}")
    wrong += [f"{address} is neither quarantined nor covered in the end" for address in neither(root)]
    host = here(root)[1]()
    wrong += [
        f"{one.address} is left on {one.driver}, {one.reset_methods}"
        for one in host.pci
        if (one.driver, one.reset_methods) != (HOST_DRIVER if one.address == HOSTS_NIC else "vfio-pci", ("flr", "bus"))
    ]
    return wrong


def killed(start: Path, root: Path, at: int, job: Job = course) -> Ended:
    """A copy of `start` in which a hand-over is killed at its nth point; 0: at none."""
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(start, root, symlinks=True)
    return run_forked(root, job, Faults(at=at, act=kill))
