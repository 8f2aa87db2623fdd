"""A guest with a virtual function of a NIC: made, set, passed, seen inside, and taken away.

The emulated host's NIC is an Intel 82576 (igb), which QEMU has from 8.0 on: that of Debian 13, unpacked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweeps import FULL

from lab import facts
from lab.hardware import CPU, further_port, kernel_loaded, qemu_command
from lab.machine import IOMMU_ON, LabMachine, switched_off
from lab.product import install, plan, run
from lab.seen import unpacked
from lab.test_lab_guests import FILES, INIT, see

pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FULL, reason="make lab-full: a machine of its own")]

NIC, GUEST, VLAN = "0000:c5:00.0", "netted", 7
FUNCTION = "8086:10ca"  # the 82576's virtual function
NUMVFS = f"/sys/bus/pci/devices/{NIC}/sriov_numvfs"
INTENT: dict[str, Any] = {
    "version": 1,
    "profile": "none",
    "guests": [
        {
            "name": GUEST,
            "gpus": 0,
            "vcpus": 2,
            "memory": "384MiB",
            "hugepages": "none",
            "firmware": "bios",
            "accelerator": "tcg",
            "networks": [{"vf_of": NIC, "vlan": VLAN, "spoof_check": True}],
            "boot": {
                "kernel": f"{FILES}/vmlinux",
                "initrd": f"{FILES}/tree.cpio",
                "cmdline": "console=ttyS0 quiet mitigations=off tsc=reliable nokaslr panic=-1",
            },
        }
    ],
}


def newer_qemu() -> list[str]:
    """The words that start Debian 13's QEMU on any Debian."""
    root = unpacked("trixie", "qemu-system-x86")
    libraries = f"{root}/usr/lib/x86_64-linux-gnu"
    loader = [f"{root}/usr/lib64/ld-linux-x86-64.so.2", "--library-path", libraries]
    data = ["-L", f"{root}/usr/share/qemu", "-L", f"{root}/usr/share/seabios"]
    return ["env", f"QEMU_MODULE_DIR={libraries}/qemu", *loader, f"{root}/usr/bin/qemu-system-x86_64", *data]


@pytest.fixture(scope="module")
def host(image: Path) -> Iterator[LabMachine]:
    """A host of its own with one NIC more."""
    nic = [*further_port(5), "-netdev", "user,id=nic5,restrict=on"]
    nic += ["-device", "igb,netdev=nic5,bus=portc5,mac=52:54:00:00:c5:01"]

    def command(port: int) -> list[str]:
        words = qemu_command(port, kernel_loaded(IOMMU_ON), more=nic)
        words[words.index(CPU)] = "Skylake-Server,la57=off"  # all that this QEMU emulates stops Linux 6.1 as it boots
        return [*newer_qemu(), *words[1:]]

    with switched_off(image, command) as machine:
        machine.start()
        install(machine)
        pack = f"cpio -id --quiet <{FILES}/initramfs.cpio; cat >init; find . | cpio -o -H newc --quiet"
        machine.shell(
            f"mkdir /run/tree; cd /run/tree; {pack} >{FILES}/tree.cpio; rm -r /run/tree; modprobe vfio-pci", stdin=INIT
        )
        yield machine


def test_a_virtual_function_is_made_set_seen_inside_and_taken_away(host: LabMachine) -> None:
    before = host.shell(f"cat {NUMVFS}").strip()
    interface = host.shell(f"ls /sys/bus/pci/devices/{NIC}/net").strip()
    host.shell(f"ip link set {interface} up")  # libvirt sets a function only of a NIC that is up
    planned = plan(host, INTENT)
    (guest,) = planned["guests"]
    (device,) = guest["devices"]
    ran = run(host, "apply", "--start", "--yes")
    assert ran.status == 0, ran.errors or json.dumps(ran.document)
    assert (before, host.shell(f"cat {NUMVFS}").strip()) == ("0", "1")
    (kept,) = json.loads(host.shell(f"ip -j link show {interface}"))[0]["vfinfo_list"]
    assert (kept["address"], kept["vlan_list"][0]["vlan"], kept["spoofchk"]) == (device["network"]["mac"], VLAN, True)
    assert facts.functions_of_lspci(host)[device["address"]]["Driver"] == "vfio-pci"
    inside = see(host, GUEST).functions[device["guest_address"]]
    assert inside.ids == FUNCTION
    assert run(host, "status").status == 0
    host.shell(f"virsh destroy {GUEST}")
    gone = run(host, "revert", "--yes")
    assert gone.status == 0, gone.errors or json.dumps(gone.document)
    assert host.shell(f"cat {NUMVFS}").strip() == "0"
    assert not re.search(FUNCTION, host.shell("lspci -n"))
