"""The index of a host: devices by address, slot, bridge and group; built once, and no part of the document."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, Nic, Nvme, PciDevice, RunningGuest
from hosttune.model.index import DeviceIndex

ROOT, UP, DOWN, GPU, AUDIO = "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0", "0000:18:00.1"
USB, SMBUS = "0000:00:1f.0", "0000:00:1f.4"


def function(address: str, parent: str | None = None, **facts: object) -> PciDevice:
    return PciDevice(address=address, parent=parent, **facts)  # type: ignore[arg-type]


HOST = Host(
    pci=(
        function(ROOT, class_code="060400", iommu_group=1),
        function(UP, ROOT, class_code="060400", iommu_group=2),
        function(DOWN, UP, class_code="060400", iommu_group=3),
        function(GPU, DOWN, vendor_id="10de", device_id="2335", iommu_group=4),
        function(AUDIO, DOWN, vendor_id="10de", iommu_group=4),
        function(USB),
        function(SMBUS),
    ),
    gpus=(Gpu(address=GPU, vendor="nvidia"), Gpu(address="0000:03:00.0")),
    guests=(RunningGuest(name="a", devices=(GPU,)),),
    nics=(Nic(address=USB, in_use="carries the default route"), Nic(address=SMBUS)),
    nvme=(Nvme(address=DOWN, in_use="mounted on /"),),
)


def test_devices_by_address() -> None:
    index = HOST.index
    assert index.pci[GPU] is HOST.pci[3]
    assert index.gpus["0000:03:00.0"].vendor == "other"
    assert [gpu.address for gpu in index.accelerators] == [GPU]
    assert (index.ids(GPU), index.ids(AUDIO), index.ids("0000:99:00.0")) == ("10de:2335", None, None)
    assert (index.device_id(GPU), index.device_id("0000:99:00.0")) == ("2335", None)
    assert index.holders == {GPU: "a"}
    assert index.in_use == {USB: "carries the default route", DOWN: "mounted on /"}


def test_what_is_above_and_beside_a_device() -> None:
    index = HOST.index
    assert index.above(GPU) == (DOWN, UP, ROOT)
    assert index.path(GPU) == (ROOT, UP, DOWN, GPU)
    assert [bridge.address for bridge in index.bridges(GPU)] == [DOWN, UP, ROOT]
    assert [one.address for one in index.below[DOWN]] == [GPU, AUDIO]
    assert [one.address for one in index.siblings(index.pci[AUDIO])] == [GPU, AUDIO]
    assert [one.address for one in index.siblings(index.pci[USB])] == [USB, SMBUS]  # of one slot of the root bus
    assert {number: [one.address for one in members] for number, members in index.groups.items()} == {4: [GPU, AUDIO]}


def test_a_bridge_that_the_document_lacks_is_named_and_not_made_up() -> None:
    index = DeviceIndex((function(GPU, DOWN),))
    assert index.above(GPU) == (DOWN,)
    assert index.bridges(GPU) == ()
    assert index.above("0000:99:00.0") == ()


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 9), max_size=10))
def test_a_loop_of_parents_ends_where_it_closes(parents: dict[int, int]) -> None:
    def name(number: int) -> str:
        return f"0000:{number:02x}:00.0"

    index = DeviceIndex(tuple(function(name(one), name(parent)) for one, parent in parents.items()))
    for one in parents:
        chain = index.above(name(one))
        assert len(set(chain)) == len(chain)
        steps = [one, *(int(bridge[5:7], 16) for bridge in chain)]
        assert all(parents[below] == above for below, above in pairwise(steps))
        assert parents.get(steps[-1], steps[-1]) in steps


def test_it_is_built_once_and_no_part_of_the_document() -> None:
    assert HOST.index is HOST.index
    assert "index" not in HOST.to_json()
    fresh = Host.from_json(HOST.to_json())
    assert fresh == HOST
    assert hash(pickle.loads(pickle.dumps(fresh))) == hash(copy.copy(fresh))
    other = msgspec.structs.replace(HOST, pci=HOST.pci[:1])
    assert (set(other.index.pci), len(HOST.index.pci)) == ({ROOT}, 7)
    with pytest.raises(AttributeError, match="immutable type: 'Host'"):
        HOST.index = other.index
