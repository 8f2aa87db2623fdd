"""NVSwitches that a guest had: quarantined and reset, and not proven clean; never while another guest has a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from coursekills import DRIVE, HOSTS_NIC, config, definition, root_of
from courses import handed, here, states, steps
from cutshort import put
from networkroots import answer

from hosttune.errors import BadInput, Refused
from hosttune.handover.cleaning import Cleaning
from hosttune.handover.running import lines_of
from hosttune.handover.targets import Asked

SWITCH, GPU, PORT = "0000:c4:00.0", "0000:c5:00.0", "0000:c6:00.0"
IDS = {SWITCH: ("068000", "22a3"), GPU: ("030200", "2335"), PORT: ("060400", "22ff")}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The small root, with an NVSwitch of the stopped guest, a GPU and a port, all on vfio-pci."""
    root = root_of(tmp_path / "small")
    for group, (address, (kind, device)) in enumerate(IDS.items(), 20):
        folder = f"/sys/devices/pci0000:c0/{address}"
        plain = {
            "class": f"0x{kind}", "vendor": "0x10de", "device": f"0x{device}", "power_state": "D3hot", "numa_node": "0",
            "reset_method": "flr bus", "driver_override": "vfio-pci",
        }  # fmt: skip
        for name, text in plain.items():
            put(root, f"{folder}/{name}", f"{text}\n")
        space = bytearray(config(kind, device))
        space[0:2] = b"\xde\x10"
        (root / f"{folder[1:]}/config").write_bytes(space)
        (root / f"sys/kernel/iommu_groups/{group}/devices").mkdir(parents=True)
        for place, to in {
            f"/sys/bus/pci/devices/{address}": folder,
            f"{folder}/iommu_group": f"/sys/kernel/iommu_groups/{group}",
            f"{folder}/driver": "/sys/bus/pci/drivers/vfio-pci",
        }.items():
            path = root / place[1:]
            path.symlink_to(os.path.relpath(root / to[1:], path.parent))
    answer(root, "virsh-dumpxml-vm", definition("vm", (SWITCH,)))
    return root


def test_an_nvswitch_of_a_guest_is_quarantined_and_stays_so(root: Path) -> None:
    asked = Asked(guest="vm")
    (line, *_) = lines_of(here(root), asked)
    assert line.startswith(f"{SWITCH} (nvswitch, of guest vm): quarantine, reset (bus)")
    assert "no way to erase it is known: it stays quarantined" in line
    found = handed(root, asked, Cleaning())
    assert (found.clean, states(root)) == (False, {SWITCH: "quarantined"})
    assert ("reset", "done") in steps(found)
    assert ("erased", "done") not in steps(found)
    (device,) = found.statement.predicate.devices
    resets = [one.method for one in device.steps if one.step == "reset"]
    assert resets == ["bus reset"] * 2  # as for the GPUs of its maker: flr is known to leave state there


def test_what_the_host_driver_can_have_is_not_supported(root: Path) -> None:
    put(root, "/sys/bus/pci/drivers/nvidia-nvswitch/module", "")
    driver = root / f"sys/devices/pci0000:c0/{SWITCH}/driver"
    driver.unlink()
    driver.symlink_to("../../../bus/pci/drivers/nvidia-nvswitch")
    put(root, f"/sys/devices/pci0000:c0/{SWITCH}/driver_override", "(null)\n")
    found = handed(root, Asked(guest="vm"), Cleaning())
    (device,) = found.statement.predicate.devices
    (erased,) = (one for one in device.steps if one.step == "erased")
    assert (erased.outcome, "what an NVSwitch keeps over a reset cannot be read" in str(erased.why)) == (
        "not-supported", True,
    )  # fmt: skip
    assert states(root) == {SWITCH: "quarantined"}


def test_no_reset_while_another_guest_has_a_gpu(root: Path) -> None:
    answer(root, "virsh-list", " Id   Name   State\n------\n -    vm     shut off\n 1    other  running\n")
    answer(root, "virsh-dumpxml-other", definition("other", (GPU,)))
    with pytest.raises(Refused) as refused:
        handed(root, Asked(guest="vm"), Cleaning())
    assert f"{GPU}: guest other has it and is running, and a reset of {SWITCH} can interrupt it" in refused.value.what
    assert states(root) == {}
    answer(root, "virsh-dumpxml-vm", definition("vm", (DRIVE,)))
    assert lines_of(here(root), Asked(guest="vm", erase=("S1",)))  # a drive interrupts nobody


def test_a_port_is_still_a_bridge(root: Path) -> None:
    with pytest.raises(BadInput) as refused:
        handed(root, Asked(devices=(PORT,)), Cleaning())
    assert refused.value.what == f"{PORT} is a bridge"
    assert lines_of(here(root), Asked(devices=(HOSTS_NIC,)))
