"""A PCI function of which two sources say other things: nothing of it passes, and no fault of it goes.

The example has a fault in a GPU, a NIC and a drive; then one value of sysfs becomes another valid one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pytest
from damage import Damage, Files, Found, contradictions, improvements, load, validated
from damage import with_damage as damaged
from sickhosts import EXAMPLE

from hosttune.discovery.evidence import gather
from hosttune.machine.system import COMMANDS
from hosttune.model.host import Host

GPU, NEXT, NIC, DRIVE, SWITCH = "0000:18:00.0", "0000:29:00.0", "0000:02:00.0", "0000:01:00.0", "0000:83:00.0"
FUNCTIONS, GROUPS = "/sys/bus/pci/devices", "/sys/kernel/iommu_groups"
SMI = COMMANDS + "nvidia-smi-q-x"


def folder(address: str) -> str:
    return load(EXAMPLE).links[f"{FUNCTIONS}/{address}"]


@cache
def sick() -> Files:
    """Rows to be remapped in a GPU, fatal errors at a NIC, a warning of a drive, two GPUs in one IOMMU group."""
    host = load(EXAMPLE)
    aer, drive = f"{folder(NIC)}/aer_dev_fatal", COMMANDS + "nvme-smart-log-nvme0"
    faults = {
        SMI: host.files[SMI].replace(b"<remapped_row_pending>No", b"<remapped_row_pending>Yes", 1),
        aer: host.files[aer].replace(b"TLP 0", b"TLP 2"),
        drive: host.files[drive].replace(b'"critical_warning": 0', b'"critical_warning": 4'),
    }
    own, shared = (host.links[f"{folder(address)}/iommu_group"] for address in (GPU, NEXT))
    links = {path: to for path, to in host.links.items() if path != f"{own}/devices/{GPU}"}
    links |= {f"{folder(GPU)}/iommu_group": shared, f"{shared}/devices/{GPU}": folder(GPU)}
    return Files({**host.files, **faults}, links, host.dirs, "a sick example")


@cache
def before() -> Found:
    found = validated(sick())
    faults = {("row-remap", GPU): "fail", ("aer", NIC): "fail", ("disk-health", DRIVE): "fail"}
    assert {key: found.outcomes[key] for key in faults} == faults
    assert [found.outcomes["iommu-groups", address] for address in (GPU, NEXT)] == ["warn", "warn"]
    return found


def of(address: str) -> list[Damage]:
    paths = (f"{folder(address)}/", f"{FUNCTIONS}/{address} ")
    return [damage for damage in contradictions(sick()) if f"{damage.path} ".startswith(paths)]


def without_config(host: Files, address: str) -> Files:
    return damaged(host, Damage("", "", f"{folder(address)}/config"))


def cases() -> Iterator[tuple[str, Damage]]:
    for name, address in (("GPU", GPU), ("NIC", NIC), ("drive", DRIVE), ("NVSwitch", SWITCH)):
        for damage in of(address):
            yield f"{name}: {damage.stratum}", damage


CASES = dict(cases())


def test_all_that_can_be_contradicted_is_tried() -> None:
    names = {re.split(r"[ :]+", name)[1] for name in CASES}
    assert names == {"class", "vendor", "device", "driver", "physfn", "iommu_group", "link"}


@pytest.mark.sweep(most=8)
@pytest.mark.parametrize("case", CASES)
def test_another_valid_value_never_improves_a_result(case: str) -> None:
    after = validated(damaged(sick(), CASES[case]))
    assert list(improvements(before(), after, (GPU, NEXT, NIC, DRIVE, SWITCH))) == []
    address = next(one for one in (GPU, NIC, DRIVE, SWITCH) if one in CASES[case].path.split("/")[-2:])
    wrong = "iommu-groups" if "iommu_group" in case else "device-present"
    if (wrong, address) in before().outcomes:
        assert after.outcomes[wrong, address] in ("unknown", "fail")


@pytest.mark.parametrize(
    ("address", "name", "value"),
    [
        (GPU, "class", "0x060400"),
        (GPU, "class", "0x0c0330"),
        (GPU, "vendor", "0x15b3"),
        (NIC, "class", "0x0c0330"),
        (NIC, "class", "0x030200"),
        (DRIVE, "class", "0x010601"),
        (SWITCH, "class", "0x060400"),
    ],
)
def test_without_configuration_space_other_sources_keep_the_device(address: str, name: str, value: str) -> None:
    host = without_config(sick(), address)
    after = validated(host.put({f"{folder(address)}/{name}": f"{value}\n"}))
    assert list(improvements(validated(host), after, (address,))) == []
    assert after.outcomes["device-present", address] == "unknown"


def read(host: Files) -> Host:
    return gather(host.system()).host


def test_a_contradiction_says_what_and_where() -> None:
    moved = Damage("", "", f"{folder(GPU)}/driver", target="/sys/bus/pci/drivers/vfio-pci")
    host = read(damaged(sick(), moved))
    assert host.index.contradicted == {
        GPU: "10de:2335 of class 030200, on vfio-pci, in the PCI tree; NVIDIA H200, held by nvidia in nvidia-smi -q -x"
    }
    assert any(problem.where == f"{FUNCTIONS}/{GPU}" and "another driver" in problem.why for problem in host.problems)


def test_a_driver_that_was_asked_for_is_believed() -> None:
    """A scratch root, or a tool's answer of before: `driver_override` and the link agree."""
    moved = Damage("", "", f"{folder(GPU)}/driver", target="/sys/bus/pci/drivers/vfio-pci")
    host = damaged(sick(), moved).put({f"{folder(GPU)}/driver_override": "vfio-pci\n"})
    assert read(host).index.contradicted == {}


def with_virtual(host: Files, address: str, *, numbered: bool) -> Files:
    """A virtual function of `address`: no ids in its header, as the kernel shows one; with links back, or a number."""
    virtual = address[:-1] + "7"
    real = folder(address).replace(address, virtual)
    config = bytearray(host.files[f"{folder(address)}/config"])
    config[:4] = b"\xff\xff\xff\xff"
    own = {name: host.files[f"{folder(address)}/{name}"] for name in ("class", "vendor", "device")}
    files = {f"{real}/{name}": data for name, data in {**own, "config": bytes(config)}.items()}
    files |= {f"{folder(address)}/sriov_numvfs": b"1\n"} if numbered else {}
    links = {f"{FUNCTIONS}/{virtual}": real, f"{real}/physfn": folder(address)}
    links |= {} if numbered else {f"{folder(address)}/virtfn0": real}
    return Files({**host.files, **files}, {**host.links, **links}, host.dirs | {real}, host.origin)


@pytest.mark.parametrize("numbered", [True, False])
def test_a_real_virtual_function_stays_one(numbered: bool) -> None:
    host = read(with_virtual(load(EXAMPLE), NIC, numbered=numbered))
    found = next(device for device in host.pci if device.address == NIC[:-1] + "7")
    assert (found.physfn, found.contradicted) == (NIC, None)


def test_a_usb_adapter_is_no_other_kind_of_its_controller() -> None:
    host = load(EXAMPLE)
    controller = next(
        path.rpartition("/")[0]
        for path, data in host.files.items()
        if path.endswith("/class") and data.startswith((b"0x0c", b"0x06")) and "/pci" in path
    )
    links = {**host.links, "/sys/class/net/usb0": f"{controller}/usb1/1-1/1-1:1.0/net/usb0"}
    assert read(Files(host.files, links, host.dirs, host.origin)).index.contradicted == {}


def test_a_member_that_denies_its_group_leaves_nobody_of_it_known() -> None:
    moved = Damage("", "", f"{folder(GPU)}/iommu_group", target=f"{GROUPS}/99999")
    host = read(damaged(sick(), moved))
    groups = {device.address: device.iommu_group for device in host.pci}
    assert (groups[GPU], groups[NEXT]) == (None, None)
    assert {problem.what for problem in host.problems if problem.where.endswith("iommu_group")} == {
        "IOMMU groups disagree"
    }
