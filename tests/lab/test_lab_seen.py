"""What a booted guest sees of itself: the PCIe classes of its host, Secure Boot, a TPM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from guest_tree_oracle import Nccl, host_grade, merged
from guestplans import gpu, nic, planned
from guesttrees import Hub, Made, Root
from libvirtd import Libvirtd, libvirtd
from sweeps import FULL

import hosttune
from hosttune.domain.writer import domain_xml
from hosttune.guest import guest_files
from hosttune.guest.nccl import FILE
from hosttune.model.host import Host
from lab.seen import CMDLINE, Files, boot_files, by_lspci, by_lstopo, grade, said_by

__all__ = ["libvirtd"]

# Each boot is emulated; UEFI takes half a minute of CPU.
pytestmark = [pytest.mark.lab, pytest.mark.skipif(not FULL, reason="make lab-full: boots eight guests")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "hgx-h200-8.tar.xz"
HOSTS = {
    "example": EXAMPLE,
    "xe9680": "derived/xe9680-8xh100-lspci",
    "nps4": "derived/oci-bm-gpu-a100-b4-nps4",
    # Built: PIX, PXB, PHB, NODE and SYS; the captured ones have three of them.
    "every class": (
        Root((Hub((Hub((gpu("a"), nic("b"))), nic("c"))), nic("d"))),
        Root((gpu("e"),)),
        Root((gpu("f"), nic("g")), 1),
    ),
}


@pytest.fixture(scope="module")
def files(libvirtd: Libvirtd) -> Files:
    """What the guests boot, where QEMU's user may read it."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return boot_files(release["VERSION_CODENAME"], libvirtd.directory / "guests")


def host_of(host_root: Callable[[str], Path], name: str) -> Host:
    where = HOSTS[name]
    if isinstance(where, tuple):
        return Host.from_json(Made(where, nodes=2).text())
    return hosttune.discover(str(host_root(where) if isinstance(where, str) else where))


@pytest.mark.parametrize("firmware", ["bios", "efi"])
@pytest.mark.parametrize("name", HOSTS)
def test_the_class_of_each_pair_in_the_guest_is_the_hosts(
    libvirtd: Libvirtd, files: Files, host_root: Callable[[str], Path], name: str, firmware: str
) -> None:
    host = host_of(host_root, name)
    pci = {d["address"]: d for d in json.loads(host.to_json())["pci"]}
    gpus = [gpu.address for gpu in host.gpus if gpu.vendor != "other"]
    used = {nic.address.rpartition(".")[0] for nic in host.nics if nic.in_use is not None}
    nics = [nic.address for nic in host.nics if nic.address.rpartition(".")[0] not in used]
    nodes = len({pci[gpu]["numa_node"] for gpu in gpus})  # a cell on each, with a core
    boot = {"kernel": str(files.kernel), "initrd": str(files.initrd), "cmdline": CMDLINE}
    plan = planned(
        host, gpus=gpus, nics=nics, memory="2GiB", vcpus=2 * nodes, firmware=firmware, accelerator="tcg", boot=boot
    )
    pairs = {(gpu, other): host_grade(pci, gpu, other) for gpu in gpus for other in (*gpus, *nics) if gpu != other}
    (guest,) = plan.guests
    at = {device.address: device.guest_address for device in guest.devices}
    said = said_by(libvirtd, domain_xml(plan, "g"))
    assert name != "every class" or len(set(pairs.values())) == 5
    lspci, lstopo, nccl = by_lspci(said), by_lstopo(said), Nccl(guest_files(plan, "g").bundle[FILE])
    assert {pair: grade(lspci, *(at[end] for end in pair)) for pair in pairs} == pairs
    assert {pair: grade(lstopo, *(at[end] for end in pair)) for pair in pairs} == pairs
    assert {pair: nccl.grade(*(at[end] for end in pair)) for pair in pairs} == {p: merged(g) for p, g in pairs.items()}


def test_secure_boot_and_a_tpm_are_there(libvirtd: Libvirtd, files: Files, host_root: Callable[[str], Path]) -> None:
    """The distribution's signed loaders and kernel start; the kernel says that Secure Boot is on, and locks itself."""
    host = host_of(host_root, "example")
    gpu = next(gpu.address for gpu in host.gpus if gpu.vendor != "other")
    plan = planned(
        host, name="s", gpus=[gpu], memory="1GiB", vcpus=2, accelerator="tcg", secure_boot=True, tpm=True,
        disk=str(files.signed),
    )  # fmt: skip
    said = said_by(libvirtd, domain_xml(plan, "s"))
    assert "secureboot: Secure boot enabled" in said
    assert "lockdown: none [integrity] confidentiality" in said
    assert "tpm0: 2" in said
