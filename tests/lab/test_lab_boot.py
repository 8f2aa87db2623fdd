"""A host booted otherwise: IOMMU off, two CPUs isolated, 1 GiB pages reserved at boot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.machine import LabMachine, booted
from lab.product import discover, document_of

pytestmark = pytest.mark.lab

# nokaslr: a small node has few whole aligned gigabytes, and a kernel loaded at random may lie in the last of them.
ARGUMENTS = "nokaslr intel_iommu=off isolcpus=2-3 nohz_full=2-3 hugepagesz=1G hugepages=0:1,1:1"
GIB = 1 << 30


@pytest.fixture(scope="module")
def plain(image: Path) -> Iterator[LabMachine]:
    """The machine without an IOMMU."""
    with booted(image, ARGUMENTS) as machine:
        yield machine


@pytest.fixture(scope="module")
def found(plain: LabMachine) -> dict[str, Any]:
    """Its host document."""
    return discover(plain)


def test_an_iommu_that_is_off_is_seen(plain: LabMachine, found: dict[str, Any]) -> None:
    assert plain.shell("ls /sys/kernel/iommu_groups").split() == []
    assert found["iommu"]["present"] is False
    assert {device["iommu_group"] for device in found["pci"]} == {None}


def test_isolated_cpus_are_the_kernels(plain: LabMachine, found: dict[str, Any]) -> None:
    assert plain.shell("cat /sys/devices/system/cpu/isolated").strip() == "2-3"
    assert [cpu["id"] for cpu in found["cpus"] if cpu["isolated"]] == [2, 3]
    # Debian's kernel has no full dynticks: an argument alone does not make CPUs tickless.
    full = plain.shell("cat /sys/devices/system/cpu/nohz_full 2>/dev/null", check=False).strip()
    assert [cpu["id"] for cpu in found["cpus"] if cpu["nohz_full"]] == ([2, 3] if full == "2-3" else [])


def test_pages_of_the_boot_are_counted_by_node(plain: LabMachine, found: dict[str, Any]) -> None:
    for node in found["numa_nodes"]:
        folder = f"/sys/devices/system/node/node{node['id']}/hugepages/hugepages-1048576kB"
        total, free = plain.shell(f"cat {folder}/nr_hugepages {folder}/free_hugepages").split()
        (pool,) = [pool for pool in node["hugepages"] if pool["size_bytes"] == GIB]
        assert (pool["total"], pool["free"]) == (int(total), int(free)) == (1, 1)


def test_a_plan_stands_and_asks_for_the_iommu(plain: LabMachine) -> None:
    arguments = "--gpu 0000:41:00.0 --memory 1GiB --hugepages 1GiB --profile none -o json"
    planned = document_of(plain.shell(f"hosttune plan {arguments}"))
    (guest,) = planned["guests"]
    assert [pin["cpus"] for pin in guest["vcpu_pins"]] == ["2", "3"]
    # The free page of the node serves: nothing is to be reserved.
    assert "hugepages" not in {action["kind"] for action in planned["actions"]}
    argument = next(action for action in planned["actions"] if action["kind"] == "kernel-argument")
    assert (argument["effect"], argument["needed"]) == ("reboot", True)
    assert any("iommu" in finding["text"].lower() for finding in planned["findings"] if finding["level"] == "error")
