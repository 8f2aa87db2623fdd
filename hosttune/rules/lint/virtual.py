"""Rules of the guest's emulated devices: disks, networks, agent, random numbers."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.domain.guest import Disk
from hosttune.domain.planned import AGENT_CHANNEL
from hosttune.rules.engine import Finding
from hosttune.rules.lint.guest_on_host import GuestOnHost, named
from hosttune.rules.lint.rule import ADVICE, rule

_DISK = "/domain/devices/disk"
_INTERFACE = "/domain/devices/interface"
_SOURCE = "libvirt formatdomain, Hard drives"
_DIRECT = ("none", "directsync")  # O_DIRECT, which io='native' needs
_QEMU_NETWORKS = ("network", "bridge", "direct", "ethernet", "user")


def _disks(scene: GuestOnHost) -> list[Disk]:
    return [disk for disk in scene.guest.disks if disk.device in (None, "disk")]


def _virtio(scene: GuestOnHost) -> list[Disk]:
    """Return the virtio disks that are a file or a block device. A volume may be on the network, but not as qcow2."""
    return [
        disk
        for disk in _disks(scene)
        if disk.bus == "virtio" and (disk.type in ("file", "block") or (disk.type, disk.format) == ("volume", "qcow2"))
    ]


def _names(disks: list[Disk]) -> str:
    return named(disk.target or disk.source or "?" for disk in disks)


@rule(
    "disk-bus",
    ADVICE,
    f"{_DISK}/target",
    right="disks are virtio or SCSI",
    why="an emulated IDE, SATA or USB controller serves one request at a time, in the emulator's thread",
    source=f"{_SOURCE}, target",
    remedy="write <target dev='vda' bus='virtio'/>",
    applies=lambda scene: scene.demanding,
)
def disk_bus(scene: GuestOnHost) -> Iterator[Finding]:
    """Find disks on emulated controllers."""
    slow = [disk for disk in _disks(scene) if disk.bus in ("ide", "sata", "usb", "fdc")]
    if slow:
        yield Finding(f"disks {_names(slow)} on an emulated {slow[0].bus} controller", _where(slow[0], "target"))


@rule(
    "disk-cache",
    ADVICE,
    f"{_DISK}/driver",
    right="virtio disks bypass the host's page cache, with asynchronous I/O",
    why="each block is cached twice, in scarce memory, and copied on the host's CPUs",
    source=f"{_SOURCE}, driver: cache and io",
    remedy="write cache='none' io='native' (or io_uring) in the disk's <driver>",
    applies=lambda scene: scene.demanding,
)
def disk_cache(scene: GuestOnHost) -> Iterator[Finding]:
    """Find virtio disks through the page cache, or with QEMU's pool of threads."""
    cached = [disk for disk in _virtio(scene) if disk.cache not in _DIRECT]
    if cached:
        text = f"disks {_names(cached)} with cache {cached[0].cache or 'not written'}: each block is cached twice"
        yield Finding(text, _where(cached[0], "driver"))
    pooled = [disk for disk in _virtio(scene) if disk.cache in _DIRECT and disk.io not in ("native", "io_uring")]
    if pooled:
        text = (
            f"disks {_names(pooled)} with io {pooled[0].io or 'not written'}: QEMU's pool of threads does each request"
        )
        remedy = "write io='native' (or io_uring) in the disk's <driver>"
        yield Finding(text, _where(pooled[0], "driver"), remedy=remedy)


@rule(
    "disk-iothread",
    ADVICE,
    f"{_DISK}/driver",
    right="a guest with I/O threads uses them for its virtio disks",
    why="the emulator's main loop serves the disk, and everything else waits for it",
    source=f"{_SOURCE}, driver: iothread",
    remedy="write iothread='1' in the disk's <driver>",
    applies=lambda scene: scene.demanding and scene.guest.iothreads > 0,
)
def disk_iothread(scene: GuestOnHost) -> Iterator[Finding]:
    """Find virtio disks that no I/O thread serves."""
    # Since libvirt 10.0 each queue can have one.
    queues = "devices/disk/target[@dev='{}']/../driver/iothreads"
    left = [
        disk
        for disk in _virtio(scene)
        if disk.iothread is None and not (_plain(disk) and scene.written(queues.format(disk.target)))
    ]
    if left:
        text = f"disks {_names(left)} have no iothread, though the guest has {scene.guest.iothreads}"
        yield Finding(text, _where(left[0], "driver"))


def _plain(disk: Disk) -> bool:
    return (disk.target or "").isalnum()


def _where(disk: Disk, child: str) -> str:
    return f"{_DISK}/target[@dev='{disk.target}']/../{child}" if _plain(disk) else f"{_DISK}/{child}"


@rule(
    "nic-model",
    ADVICE,
    f"{_INTERFACE}/model",
    right="network interfaces are virtio",
    why="each packet through an emulated NIC is several exits to QEMU",
    source="libvirt formatdomain, Setting the NIC model",
    remedy="write <model type='virtio'/> in the interface",
    applies=lambda scene: scene.demanding,
)
def nic_model(scene: GuestOnHost) -> Iterator[Finding]:
    """Find emulated NICs."""
    models = {nic.model for nic in scene.guest.interfaces if nic.type in _QEMU_NETWORKS}
    slow = sorted((model or "not written") for model in models if not (model or "").startswith("virtio"))
    if slow:
        yield Finding(f"network interfaces with model {named(slow)}: an emulated NIC", f"{_INTERFACE}/model")


@rule(
    "nic-queues",
    ADVICE,
    f"{_INTERFACE}/driver",
    right="a virtio network interface has several queues",
    why="with one queue a single vCPU handles all packets",
    source="libvirt formatdomain, Setting NIC driver-specific options: queues; hosttune writes at most 8",
    remedy="write <driver queues='8'/> in the interface, or the number of vCPUs if that is less",
    applies=lambda scene: scene.demanding and scene.guest.vcpus > 1,
)
def nic_queues(scene: GuestOnHost) -> Iterator[Finding]:
    """Find virtio NICs with one queue."""
    single = [
        nic
        for nic in scene.guest.interfaces
        if nic.type in _QEMU_NETWORKS[:-1] and (nic.model or "").startswith("virtio") and (nic.queues or 1) < 2
    ]
    if single:
        names = named(nic.source or "?" for nic in single)
        text = f"network interfaces ({names}) with one queue, for {scene.guest.vcpus} vCPUs"
        remedy = f"write <driver queues='{min(8, scene.guest.vcpus)}'/> in the interface"
        yield Finding(text, f"{_INTERFACE}/driver", remedy=remedy)


@rule(
    "guest-agent",
    ADVICE,
    "/domain/devices/channel",
    right="there is a channel for the guest's agent",
    why="the host cannot ask for addresses, freeze file systems, or shut it down cleanly",
    source="libvirt formatdomain, Channel; QEMU docs/interop/qemu-ga",
    remedy=f"write <channel type='unix'><target type='virtio' name='{AGENT_CHANNEL}'/></channel>",
    applies=lambda scene: scene.demanding and not scene.confidential,
)
def guest_agent(scene: GuestOnHost) -> Iterator[Finding]:
    """Find guests without the agent's channel."""
    if AGENT_CHANNEL not in scene.guest.channels:
        yield Finding(
            f"no channel {AGENT_CHANNEL}: the guest's agent cannot answer the host", "/domain/devices/channel"
        )


@rule(
    "random-numbers",
    ADVICE,
    "/domain/devices/rng",
    right="there is a virtio device for random numbers",
    why="a new guest waits for entropy before it makes its keys",
    source="libvirt formatdomain, Random number generator device",
    remedy="write <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>",
    applies=lambda scene: scene.demanding and not scene.confidential,
)
def random_numbers(scene: GuestOnHost) -> Iterator[Finding]:
    """Find guests without a source of random numbers."""
    if not scene.written("devices/rng/backend"):
        yield Finding("no virtio device for random numbers", "/domain/devices/rng")
