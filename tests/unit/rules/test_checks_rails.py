"""The NIC of each GPU's rail: below the GPU's own switch, missing on one GPU, or not known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from evidences import DOWN, DOWN_2, GPU, NIC, UP, bridge, gpu, nic, switch

from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import DeviceSource, Host, Nic, PciDevice, SeenDevice
from hosttune.model.ports import NicPorts
from hosttune.rules.checks import results_of
from hosttune.rules.checks.rails import gpu_rail

OTHER_ROOT, OTHER_UP, OTHER_DOWN, LONE = "0000:25:01.0", "0000:26:00.0", "0000:27:00.0", "0000:28:00.0"
OTHER = [
    bridge(OTHER_ROOT, None, "root-port"),
    bridge(OTHER_UP, OTHER_ROOT, "upstream-port"),
    bridge(OTHER_DOWN, OTHER_UP, "downstream-port"),
    gpu(LONE, OTHER_DOWN),
]
RDMA = Nic(address=NIC, kind="infiniband", rdma="mlx5_0")
PLAIN = Nic(address=NIC, kind="ethernet")


def outcomes(
    pci: list[PciDevice], card: Nic = RDMA, ports: NicPorts | None = None, vendor: str = "nvidia", **host: Any
) -> dict[str, str]:
    gpus = tuple(Gpu(address=one.address, vendor=vendor) for one in pci if (one.class_code or "").startswith("0302"))
    found = Host(pci=tuple(pci), gpus=gpus, nics=(card,), **({"hypervisor": False} | host))
    evidence = Evidence(host=found, complete=True, ports={NIC: ports} if ports is not None else {})
    return {result.subject: result.outcome for result in results_of(gpu_rail, evidence)}


def changed(pci: list[PciDevice], address: str, **changes: Any) -> list[PciDevice]:
    return [msgspec.structs.replace(one, **changes) if one.address == address else one for one in pci]


BOARD = [*switch(), gpu(GPU, DOWN), nic(NIC, DOWN_2, driver="mlx5_core")]
NONE = NicPorts(rdma=(), interfaces=())


def test_a_gpu_with_its_nic_passes_and_one_without_it_is_told() -> None:
    assert outcomes(BOARD) == {GPU: "pass"}
    assert outcomes([*BOARD, *OTHER]) == {GPU: "pass", LONE: "warn"}


def test_the_nic_is_named() -> None:
    evidence = Evidence(
        host=Host(pci=tuple(BOARD), gpus=(Gpu(address=GPU, vendor="nvidia"),), nics=(RDMA,), hypervisor=False)
    )
    assert [result.actual for result in results_of(gpu_rail, evidence)] == [f"{NIC} (mlx5_0)"]


@pytest.mark.parametrize(
    ("pci", "card", "ports", "expected"),
    [
        (changed(BOARD, NIC, driver="vfio-pci"), PLAIN, None, "pass"),  # for a guest
        (changed(BOARD, NIC, class_code="020000"), PLAIN, NONE, "skip"),  # known to have no RDMA
        (changed(BOARD, NIC, class_code="020000"), PLAIN, None, "unknown"),
        (changed(BOARD, NIC, class_code="020000"), PLAIN, NicPorts(rdma=None, interfaces=()), "unknown"),
        (changed(BOARD, NIC, class_code="020000", driver=None), PLAIN, NONE, "unknown"),  # whose driver was not read
        (changed(BOARD, UP, port_type=None), RDMA, None, "unknown"),
        ([one for one in BOARD if one.address != UP], RDMA, None, "unknown"),
        ([*BOARD, PciDevice(address="0000:99:00.0")], RDMA, None, "pass"),
        ([*changed(BOARD, NIC, parent=OTHER_DOWN), *OTHER[:3]], RDMA, None, "skip"),  # below another switch
        (
            [*changed(BOARD, NIC, parent=OTHER_DOWN), *OTHER[:3], PciDevice(address="0000:99:00.0")],
            RDMA,
            None,
            "unknown",
        ),
    ],
)
def test_what_is_not_read_is_no_pass_and_no_skip(
    pci: list[PciDevice], card: Nic, ports: NicPorts | None, expected: str
) -> None:
    assert outcomes(pci, card, ports)[GPU] == expected


def test_a_nic_that_only_another_source_shows_may_be_the_one() -> None:
    lost = DeviceSource(name="class", read="/sys/class/infiniband", beyond=(SeenDevice(address=NIC, kind="nic"),))
    assert outcomes(BOARD[:-1]) == {GPU: "unknown"}  # its NIC is not in the tree
    assert outcomes(BOARD[:-1], PLAIN, NONE) == {GPU: "unknown"}
    bare = [*BOARD[:-1], nic(NIC, None, driver="mlx5_core")]
    assert outcomes(bare) == {GPU: "skip"}
    assert outcomes(bare, sources=(lost,)) == {GPU: "unknown"}


def test_guests_and_gpus_with_ports_of_their_own_are_skipped() -> None:
    assert outcomes(BOARD, hypervisor=True) == {GPU: "skip"}
    assert outcomes([*BOARD, *OTHER], vendor="habana") == {GPU: "skip", LONE: "skip"}
