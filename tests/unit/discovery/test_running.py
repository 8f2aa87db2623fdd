"""QEMU processes in a root: who started them, and what a capture keeps of their command lines."""

from __future__ import annotations

from typing import Any

import pytest

from hosttune.discovery.qemu import PROCESSES
from hosttune.discovery.running import read_running, strip_running
from hosttune.discovery.scrub import Scrub
from hosttune.domain.reader import read_tree
from hosttune.domain.running import Running, definition
from hosttune.machine.capture import Archive
from hosttune.machine.reader import Reader
from hosttune.machine.system import COMMANDS
from hosttune.model.host import Host
from hosttune.model.values import to_json


class Live(Archive):
    """A root whose queries are asked, as on the machine."""

    def query(self, name: str, live: Any) -> str | None:
        return super().query(name, live) if name == PROCESSES else live()


def of(line: str, links: dict[str, str] | None = None, **files: str) -> Any:
    held = {COMMANDS + PROCESSES: "17 g\n18 ended\n", "/proc/17/cmdline": line.replace(" ", "\0") + "\0", **files}
    found = read_running(Reader(Live({path: text.encode() for path, text in held.items()}, links or {}, "test")))
    assert found is not None
    assert [process.pid for process, _ in found] == [17]
    return found[0][0]


@pytest.mark.parametrize(
    ("line", "manager", "known_as"),
    [
        ("/usr/bin/kvm -id 104 -pidfile /var/run/qemu-server/104.pid", "Proxmox", "104"),
        ("qemu-system-x86_64 -pidfile /run/incus/project_v1/qemu.pid", "Incus", "v1"),
        ("qemu-system-x86_64 -pidfile /var/snap/lxd/common/lxd/logs/v1/qemu.pid", "LXD", "v1"),
        ("qemu-system-x86_64 -name sandbox-55e043c4c5ea -qmp unix:/run/vc/vm/55e0/qmp.sock", "Kata", "55e043c4c5ea"),
        ("qemu-system-x86_64 -name guest=one-42,debug-threads=on", "OpenNebula", "42"),
        ("qemu-system-x86_64 -chardev socket,id=m,path=/var/lib/libvirt/qemu/domain-1-a/m.sock", "libvirt", None),
        ("qemu-system-x86_64 -m 1G", None, None),
    ],
)
def test_the_manager_is_told_by_its_paths(line: str, manager: str | None, known_as: str | None) -> None:
    process = of(line)
    assert (process.manager, process.manager_id) == (manager, known_as)


@pytest.mark.parametrize(
    ("key", "object_", "kind"),
    [
        ("confidential-guest-support", "sev-snp-guest", "sev-snp"),
        ("confidential-guest-support", "tdx-guest", "tdx"),
        ("memory-encryption", "sev-guest", "sev"),
        ("confidential-guest-support", "rme-guest", None),
    ],
)
def test_a_confidential_guest_is_one(key: str, object_: str, kind: str | None) -> None:
    line = f"qemu-system-x86_64 -machine {key}=cc0,vmport=off -object {object_},id=cc0 -machine q35 -m 1G -smp 1"
    options = of(line).options
    made = read_tree(definition(Running(name="g", program="qemu-system-x86_64", options=options), Host()), where="g")
    assert [one.get("type") for one in made.findall("launchSecurity")] == [kind]


def test_what_is_open_is_a_group_or_a_device_of_iommufd() -> None:
    opened = {f"/proc/17/fd/{n}": path for n, path in enumerate(("/dev/vfio/vfio", "/dev/vfio/41", "/dev/iommu"))}
    opened |= {"/proc/17/fd/9": "/dev/vfio/devices/vfio3", "/proc/17/fd/10": "/dev/vfio/devices/vfio4"}
    group = {"/sys/class/vfio-dev/vfio3/device/iommu_group": "/sys/kernel/iommu_groups/40"}
    assert of("qemu-system-x86_64 -m 1G", opened | group).groups == ("40", "41")


@pytest.mark.parametrize(
    ("machine", "sockets", "cores"),
    [("q35", "1", "8"), ("pc-q35-10.1", "1", "8"), ("pc-q35-6.2", "1", "8"), ("pc-q35-6.1", "8", "1")],
)
def test_a_topology_that_is_not_written_is_that_of_the_machine(machine: str, sockets: str, cores: str) -> None:
    """hw/core/machine-smp.c: cores before sockets since 6.2."""
    options = of(f"qemu-system-x86_64 -machine {machine} -m 1G -smp 8").options
    made = read_tree(definition(Running(name="g", program="qemu-system-x86_64", options=options), Host()), where="g")
    topology = made.find("cpu/topology")
    assert topology is not None
    assert (topology.get("sockets"), topology.get("cores")) == (sockets, cores)


def test_a_capture_has_no_secrets_and_no_names_of_disks() -> None:
    line = (
        "qemu-system-x86_64 -object secret,id=s,data=HIDDEN -drive file=rbd:pool/HIDDEN:key=HIDDEN,id=a"
        " -drive file=/home/HIDDEN/HIDDEN.img,id=b -device virtio-blk-pci,drive=b,serial=HIDDEN -append HIDDEN"
        " -fw_cfg name=opt/com.coreos/config,string=HIDDEN -netdev user,id=n,hostfwd=tcp:HIDDEN:1-:22"
    )
    scrub = Scrub("key", None)
    kept = strip_running(to_json((of(line),)), scrub.node, scrub.words)
    assert kept is not None
    assert "HIDDEN" not in kept
    assert strip_running("[{}]", scrub.node, scrub.words) is None
