"""Discovery on a real kernel against what lscpu, numactl, lspci, libvirt, ethtool and nvme say of the same machine."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lab import facts
from lab.machine import LabMachine
from lab.product import by_address

pytestmark = pytest.mark.lab

Document = dict[str, Any]
GPUS = ("0000:41:00.0", "0000:42:00.0", "0000:45:00.0", "0000:c1:00.0", "0000:c2:00.0")


# --- the machine ----------------------------------------------------------------------------------------------


def test_identity_is_what_the_kernel_says(lab: LabMachine, document: Document) -> None:
    assert document["hostname"] == lab.shell("hostname").strip()
    assert document["kernel"] == lab.shell("uname -r").strip()
    assert document["arch"] == lab.shell("uname -m").strip()
    assert document["boot_id"] == lab.shell("cat /proc/sys/kernel/random/boot_id").strip()
    assert document["kernel_args"] == lab.shell("cat /proc/cmdline").split()
    assert re.fullmatch("[0-9a-f]{64}", document["digest"])


def test_a_machine_under_qemu_is_a_guest_without_kvm(lab: LabMachine, document: Document) -> None:
    assert lab.shell("systemd-detect-virt").strip() == "qemu"
    assert lab.shell("test -e /dev/kvm", check=False).status == 1
    assert document["hypervisor"] is True
    assert document["virtualization"]["kvm"] is False
    versions = lab.shell("virsh version --daemon")
    assert f"library: libvirt {document['virtualization']['libvirt_version']}" in versions
    assert f"hypervisor: QEMU {document['virtualization']['qemu_version']}" in versions


def test_nothing_is_doubtful_and_no_guest_exists(lab: LabMachine, document: Document) -> None:
    assert document["problems"] == []
    assert lab.shell("virsh list --all --name").split() == []
    assert document["guests"] == []


# --- CPUs and nodes -------------------------------------------------------------------------------------------


def test_cpus_have_the_places_that_lscpu_tells(lab: LabMachine, document: Document) -> None:
    rows = facts.cpus_of_lscpu(lab)
    assert [cpu["id"] for cpu in document["cpus"]] == [row["cpu"] for row in rows]
    assert [cpu["online"] for cpu in document["cpus"]] == [row["online"] for row in rows]
    assert [cpu["numa_node"] for cpu in document["cpus"]] == [row["node"] for row in rows]
    assert [cpu["package"] for cpu in document["cpus"]] == [row["socket"] for row in rows]
    caches = [(row["cpu"], row["l1d:l1i:l2:l3"].split(":")) for row in rows]
    expected = {
        "core": facts.grouped([(row["cpu"], row["core"]) for row in rows]),
        "l2": facts.grouped([(cpu, names[2]) for cpu, names in caches]),
        "llc": facts.grouped([(cpu, names[3]) for cpu, names in caches]),
    }
    for field, groups in expected.items():
        assert facts.grouped([(cpu["id"], cpu[field]) for cpu in document["cpus"]]) == groups, field
        assert {cpu[field] for cpu in document["cpus"]} == {min(group) for group in groups}, field


def test_the_emulated_layout_arrives(document: Document) -> None:
    """As built: two packages of two cores with two threads each. Guards the comparisons above against emptiness."""
    assert [cpu["core"] for cpu in document["cpus"]] == [0, 0, 2, 2, 4, 4, 6, 6]
    assert [cpu["llc"] for cpu in document["cpus"]] == [0, 0, 0, 0, 4, 4, 4, 4]
    assert document["cpu_model"]["smt_active"] is True
    assert [(node["cpus"], node["distances"]) for node in document["numa_nodes"]] == [
        ("0-3", {"0": 10, "1": 21}),
        ("4-7", {"0": 21, "1": 10}),
    ]


def test_nodes_are_those_of_numactl(lab: LabMachine, document: Document) -> None:
    nodes = facts.nodes_of_numactl(lab)
    assert [node["id"] for node in document["numa_nodes"]] == sorted(nodes)
    for node in document["numa_nodes"]:
        expected = nodes[node["id"]]
        assert {cpu["id"] for cpu in document["cpus"] if cpu["numa_node"] == node["id"]} == expected["cpus"]
        assert node["memory_bytes"] >> 20 == expected["mib"]
        assert [node["distances"][str(other)] for other in sorted(nodes)] == expected["distances"]


# --- PCI ------------------------------------------------------------------------------------------------------


def test_pci_functions_are_those_of_lspci(lab: LabMachine, document: Document) -> None:
    expected = facts.functions_of_lspci(lab)
    found = by_address(document)
    assert list(found) == sorted(expected)
    for address, fields in expected.items():
        device = found[address]
        assert device["vendor_id"] == fields["Vendor"], address
        assert device["device_id"] == fields["Device"], address
        assert device["class_code"] == fields["Class"] + fields.get("ProgIf", "00"), address
        assert device["revision"] == fields.get("Rev", "00"), address
        assert device["driver"] == fields.get("Driver"), address
        if "SVendor" in fields:
            assert (device["subsystem_vendor_id"], device["subsystem_device_id"]) == (
                fields["SVendor"],
                fields["SDevice"],
            ), address


def test_every_function_has_its_node_or_none(lab: LabMachine, document: Document) -> None:
    """lspci leaves NUMANode out where the kernel says -1."""
    for address, fields in facts.functions_of_lspci(lab).items():
        device = by_address(document)[address]
        node = int(fields["NUMANode"]) if "NUMANode" in fields else None
        assert device["numa_node"] == node, address
        assert device["numa_source"] == ("unknown" if node is None else "device"), address
        assert node == {"0": None, "4": 0, "c": 1}[address[5]], address  # as built: by the digit of the bus


def test_bridges_above_are_those_of_lspci(lab: LabMachine, document: Document) -> None:
    assert {address: device["parent"] for address, device in by_address(document).items()} == (
        facts.parents_of_lspci(lab)
    )
    assert by_address(document)["0000:46:00.0"]["parent"] == "0000:44:01.0"


def test_iommu_groups_are_the_kernels(lab: LabMachine, document: Document) -> None:
    groups: dict[int, set[str]] = {}
    for address, device in by_address(document).items():
        groups.setdefault(device["iommu_group"], set()).add(address)
    assert groups == facts.groups_of_kernel(lab)
    assert document["iommu"]["present"] is True
    # No ACS on the switch's ports: each device below shares its port's group.
    assert {"0000:44:00.0", "0000:45:00.0"} in groups.values()
    assert {"0000:41:00.0"} in groups.values()


def test_libvirt_sees_the_same_devices(lab: LabMachine, document: Document) -> None:
    devices = facts.devices_of_libvirt(lab)
    found = by_address(document)
    assert set(devices) == set(found)
    for address, device in devices.items():
        node = device.find("capability/numa")
        assert found[address]["numa_node"] == (None if node is None else int(node.attrib["node"])), address
        group = device.find("capability/iommuGroup")
        assert group is not None, address
        assert found[address]["iommu_group"] == int(group.attrib["number"]), address
        members = {facts.address_of_libvirt(member) for member in group.iter("address")}
        assert members == {a for a in found if found[a]["iommu_group"] == found[address]["iommu_group"]}, address
        virtual = device.find("capability/capability[@type='virt_functions']")
        total = None if virtual is None else int(virtual.attrib["maxCount"])
        assert found[address]["sriov_total_vfs"] == total, address
    assert found["0000:47:00.0"]["sriov_total_vfs"] == 4


def test_links_are_those_in_config_space(lab: LabMachine, document: Document) -> None:
    compared = 0
    for address, text in facts.details_of_lspci(lab).items():
        cap = re.search(r"LnkCap:.*Speed ([\d.]+)GT/s, Width x(\d+)", text)
        now = re.search(r"LnkSta:\s*Speed ([\d.]+)GT/s[^,]*, Width x(\d+)", text)
        if not (cap and now):
            continue
        compared += 1
        link = by_address(document)[address]["link"]
        assert (link["speed_gts"], link["width"]) == (float(now[1]), int(now[2])), address
        if link["max_speed_gts"] is not None:  # the kernel does not name every encoding
            assert (link["max_speed_gts"], link["max_width"]) == (float(cap[1]), int(cap[2])), address
    assert compared >= 15


def test_config_space_is_read_as_lspci_reads_it(lab: LabMachine, document: Document) -> None:
    for address, text in facts.details_of_lspci(lab).items():
        device = by_address(document)[address]
        request = re.search(r"MaxReadReq (\d+) bytes", text)
        assert device["read_request_bytes"] == (int(request[1]) if request else None), address
        aspm = re.search(r"LnkCtl:\s*ASPM (Disabled|[^;]*) ?(?:Enabled)?;", text)
        if aspm:
            assert device["aspm"] == ("off" if aspm[1] == "Disabled" else aspm[1].strip()), address
        control = re.search(r"ACSCtl:(.*)", text)
        if control:
            assert device["acs"]["enabled"] == re.findall(r"(\w+)\+", control[1]), address
        sizes = {int(n): size for n, size in re.findall(r"Region (\d): Memory at [^\[]*\[size=(\w+)\]", text)}
        bars = {bar["index"]: bar["size_bytes"] for bar in device["bars"]}
        assert {n: bars[n] for n in sizes} == {n: _bytes(size) for n, size in sizes.items()}, address


def _bytes(size: str) -> int:
    unit = {"K": 10, "M": 20, "G": 30}.get(size[-1])
    return int(size) if unit is None else int(size[:-1]) << unit


# --- devices by what they do ----------------------------------------------------------------------------------


def test_every_display_function_is_a_gpu_of_no_known_maker(lab: LabMachine, document: Document) -> None:
    displays = {a for a, fields in facts.functions_of_lspci(lab).items() if fields["Class"].startswith("03")}
    assert set(by_address(document, "gpus")) == displays == set(GPUS)
    assert {gpu["vendor"] for gpu in document["gpus"]} == {"other"}


def test_network_interfaces_are_those_of_ethtool(lab: LabMachine, document: Document) -> None:
    found = {name: nic["address"] for nic in document["nics"] for name in nic["interfaces"]}
    assert found == facts.interfaces_of_ethtool(lab)
    assert by_address(document, "nics")["0000:00:04.0"]["in_use"]
    assert by_address(document, "nics")["0000:46:00.0"]["in_use"] is None


def test_drives_are_those_of_nvme_cli(lab: LabMachine, document: Document) -> None:
    found = {name: drive["address"] for drive in document["nvme"] for name in drive["namespaces"]}
    assert found == facts.drives_of_nvme(lab)
    assert {drive["in_use"] for drive in document["nvme"]} == {None}
