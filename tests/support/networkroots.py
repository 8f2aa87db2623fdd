"""The small root of a hand-over with network functions: answers of tools, and a virtual function."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from applyroots import STATE
from coursekills import DRIVE, HOST_DRIVER, HOSTS_NIC, NIC, config, definition, root_of
from courses import Wiped, passing
from cutshort import put

from hosttune.handover.cleaning import Cleaning, Erasure, Work
from hosttune.handover.targets import Target
from hosttune.machine.scratch import Scratch
from hosttune.machine.system import COMMANDS
from hosttune.model.validation import Validation
from hosttune.settings.hook import hook_text

CASES = Path(__file__).parents[1] / "cases" / "network"
MSTCONFIG = (CASES / "mstconfig-connectx4lx.txt").read_text()
SETTLED = MSTCONFIG.replace("PXE(1)               NONE(0)", "PXE(1)               PXE(1)").replace(
    "DEVICE_DEFAULT(0)    ROCE_ENABLE(2)", "ROCE_ENABLE(2)       ROCE_ENABLE(2)"
)
VIRTUAL = "0000:c3:00.1"
MAC, TENANTS = "b8:59:9f:ce:2c:ea", "52:54:00:00:00:07"
NONE = "00:00:00:00:00:00"


class NetworkOnly(Cleaning):
    """Treats network functions as always; drives are erased at once."""

    def erasure(self, work: Work, target: Target, *, back: bool) -> Erasure:
        """See Cleaning."""
        cleaning = Wiped() if target.kind == "nvme" else Cleaning(self._clock)
        return cleaning.erasure(work, target, back=back)


def passing_all(level: int) -> Validation:
    """A validation in which every device is good."""
    every = [passing(level, address) for address in (DRIVE, NIC, VIRTUAL)]
    return msgspec.structs.replace(every[0], results=tuple(result for one in every for result in one.results))


def link(name: str, **more: Any) -> str:
    """The answer of `ip -j -d link show dev NAME`."""
    row = {
        "ifindex": 7, "ifname": name, "flags": ["BROADCAST", "MULTICAST"], "mtu": 1500,
        "qdisc": "mq", "operstate": "DOWN", "linkmode": "DEFAULT", "group": "default",
        "txqlen": 1000, "link_type": "ether", "address": MAC,
        "broadcast": "ff:ff:ff:ff:ff:ff", "promiscuity": 0, "parentbus": "pci",
    }  # fmt: skip
    return json.dumps([{**row, **more}])


def function(number: int, address: str = NONE, **more: Any) -> dict[str, Any]:
    """A row of `vfinfo_list`, as a new virtual function of mlx5_core has it."""
    row = {
        "vf": number, "link_type": "ether", "address": address, "broadcast": "ff:ff:ff:ff:ff:ff", "vlan_list": [{}],
        "rate": {"max_tx": 0, "min_tx": 0}, "spoofchk": False, "link_state": "auto", "trust": False,
        "query_rss_en": False,
    }  # fmt: skip
    return {**row, **more}


LEFT = function(
    0, TENANTS, vlan_list=[{"vlan": 7, "qos": 3}], rate={"max_tx": 500, "min_tx": 10}, spoofchk=True, trust=True,
    link_state="enable",
)  # fmt: skip


def answer(root: Path, name: str, text: str | None) -> None:
    """Record a command's answer, or none."""
    place = root / COMMANDS[1:] / name
    if text is None:
        place.unlink(missing_ok=True)
    else:
        put(root, f"{COMMANDS}{name}", text)


def physical_root(base: Path) -> Path:
    """The small root whose NIC has an interface, and a configuration of its firmware."""
    root = root_of(base)
    folder = f"/sys/devices/pci0000:c0/{NIC}"
    put(root, f"{folder}/net/eth0/address", f"{MAC}\n")
    put(root, f"{folder}/infiniband/mlx5_0/node_guid", "b859:9f03:00ce:2cea\n")
    put(root, "/sys/class/net/eth0/addr_assign_type", "0\n")
    answer(root, "ip-link-eth0", link("eth0"))
    answer(root, f"mstconfig-{NIC}", SETTLED)
    return root


def virtual_root(base: Path, left: Mapping[str, Any] = LEFT) -> Path:
    """The small root whose guest has, instead of the NIC, a virtual function of the host's one."""
    root = root_of(base)
    folder, physical = f"/sys/devices/pci0000:c0/{VIRTUAL}", f"/sys/devices/pci0000:c0/{HOSTS_NIC}"
    plain = {
        "class": "0x020000", "vendor": "0x144d", "device": "0xa2dd", "power_state": "D0", "numa_node": "0",
        "reset_method": "flr bus", "driver_override": "vfio-pci", "subsystem_vendor": "0x144d",
        "subsystem_device": "0xa801",
    }  # fmt: skip
    for name, text in plain.items():
        put(root, f"{folder}/{name}", f"{text}\n")
    hardware = b"\xff" * 4 + config("020000", "a2dd")[4:]  # a virtual function has no ids of its own there
    (root / f"{folder[1:]}/config").write_bytes(hardware)
    second = "0000:c3:00.2"  # another virtual function, which the host keeps: its driver is theirs
    other = f"/sys/devices/pci0000:c0/{second}"
    for name, text in plain.items():
        put(root, f"{other}/{name}", "(null)\n" if name == "driver_override" else f"{text}\n")
    (root / f"{other[1:]}/config").write_bytes(hardware)
    for place, to in {
        f"{folder}/physfn": physical, f"{other}/physfn": physical, f"{physical}/virtfn0": folder,
        f"{physical}/virtfn1": other,
        f"/sys/bus/pci/devices/{VIRTUAL}": folder, f"/sys/bus/pci/devices/{second}": other,
        f"{folder}/iommu_group": "/sys/kernel/iommu_groups/11", f"{other}/iommu_group": "/sys/kernel/iommu_groups/12",
        f"{folder}/driver": "/sys/bus/pci/drivers/vfio-pci", f"{other}/driver": f"/sys/bus/pci/drivers/{HOST_DRIVER}",
    }.items():  # fmt: skip
        for group in ("11", "12"):
            (root / f"sys/kernel/iommu_groups/{group}/devices").mkdir(parents=True, exist_ok=True)
        path = root / place[1:]
        path.symlink_to(os.path.relpath(root / to[1:], path.parent))
    for name, text in (("sriov_numvfs", "2\n"), ("sriov_totalvfs", "8\n"), ("net/up0/address", f"{MAC}\n")):
        put(root, f"{physical}/{name}", text)
    answer(root, "ip-link-up0", link("up0", vfinfo_list=[dict(left), function(1)]))
    answer(root, "virsh-dumpxml-vm", definition("vm", (DRIVE, VIRTUAL)))
    return root


class Uplink(Scratch):
    """A host whose physical function keeps settings for its virtual ones, as `ip link set` gives them.

    `stubborn`: words that it does not follow. `sent`: the commands.
    """

    stubborn: tuple[str, ...] = ()

    def set_function(self, interface: str, number: int, words: tuple[str, ...]) -> None:
        """See ScratchFunctions."""
        pairs = zip(words[::2], words[1::2], strict=True)
        done = tuple(word for pair in pairs if pair[0] not in self.stubborn for word in pair)
        super().set_function(interface, number, done)

    def sent(self) -> list[tuple[str, ...]]:
        """The commands of ip that were given."""
        return [one[5:] for one in self.ran() if one[0] == "ip"]


def row(root: Path) -> dict[str, Any]:
    """What the physical function keeps for the virtual one."""
    found: dict[str, Any] = json.loads((root / ".hosttune/commands/ip-link-up0").read_text())[0]["vfinfo_list"][0]
    return found


# What answers for a host's tools: the root's recorded answers. `find` says of processes what the root has as "opened".
_TOOL = """#!/bin/sh
case ${{0##*/}} in
ip) name=ip-link-$6 ;;
ethtool) name=ethtool$1-$2 ;;
mstconfig) name=mstconfig-${{5:+arrays-}}$3 ;;
devlink) [ "$3" = info ] && name=devlink-info-${{4#pci/}} || name=devlink-param-${{5#pci/}} ;;
find) case "$*" in *'/dev/vfio/'*) name=opened ;; *) exec /usr/bin/find "$@" ;; esac ;;
esac
exec cat {root}/.hosttune/commands/$name
"""


def start_guest(root: Path, operation: str = "prepare", *, guest: str = "vm", script: str | None = None) -> str:
    """Call the hook as libvirt does before it starts the root's guest; return what it says on stderr.

    `script`: another text of the hook. The start must not fail.
    """
    tools = root.parent / f"{root.name}-tools"
    tools.mkdir(exist_ok=True)
    for name in ("ip", "ethtool", "mstconfig", "mlxconfig", "devlink", "find"):
        (tools / name).write_text(_TOOL.format(root=root))
        (tools / name).chmod(0o755)
    text = script or hook_text(str(root / STATE)) or ""
    done = subprocess.run(
        ["sh", "-c", text.replace("sys=/sys\n", f"sys={root}/sys\n"), "hosttune", guest, operation, "begin", "-"],
        input=(root / COMMANDS[1:] / "virsh-dumpxml-vm").read_text(), capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for record in (root / STATE / "handover").glob("start-*"):
        record.write_text(record.read_text().replace(f"{root}/sys", "/sys"))
    return done.stderr
