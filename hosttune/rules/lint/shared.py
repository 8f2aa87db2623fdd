"""Rules of what cannot be shared: devices and CPUs of the host, of other guests, and of the NVSwitch fabric."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from hosttune.gpu.bridges import kept_bridges
from hosttune.inventory.partitions import HostFabric, blocked, exactly, refusal, unnamed
from hosttune.model.devices import node_of
from hosttune.model.listing import numbered
from hosttune.model.values import CpuSet
from hosttune.rules.engine import Finding
from hosttune.rules.lint.devices import each
from hosttune.rules.lint.guest_on_host import GuestOnHost, OtherGuest, named
from hosttune.rules.lint.rule import CORES, ERROR, GUESTS, INFO, PCI, WARN, rule, unknown

_PINS = "/domain/cputune/vcpupin"
_HOSTDEV = "/domain/devices/hostdev"
_BLOCK = "/domain/devices/disk[@type='block']"


def _blocks(scene: GuestOnHost) -> list[str]:
    """Return the block devices of the host that are disks of the guest."""
    return [path for path in scene.guest.host_paths if path.startswith("/dev/") and "vdpa" not in path]


@rule(
    "device-in-use",
    ERROR,
    _HOSTDEV,
    right="the host itself does not use a passed device, or a drive that is a disk of the guest",
    why="the host loses its disk or network; two that write to one disk destroy it",
    source="/proc/self/mountinfo, /proc/net/route, /sys/class/net",
    remedy="pass another device, or move the host's file systems and addresses away from it",
    needs=(PCI,),
    applies=lambda scene: bool(scene.taken or _blocks(scene)),
)
def device_in_use(scene: GuestOnHost) -> Iterator[Finding]:
    """Find NICs and drives that the host needs."""
    for address, where in scene.taken.items():
        if use := scene.host.index.in_use.get(address):
            yield Finding(f"{address} is in use by the host: {use}", where)
        elif why := scene.host.index.use_unknown.get(address):
            yield unknown(f"whether the host uses {address}: {why}", where)
    strange = []
    for path in _blocks(scene):
        disk = node_of(scene.host.index.nodes, path).removeprefix("/dev/")
        drive = next((drive for drive in scene.host.nvme if drive.namespace_of(disk)), None)
        if drive is None:
            strange.append(path)
        elif use := drive.use_of(disk):
            yield Finding(f"{path} is in use by the host: {use}", _BLOCK)
        elif drive.use_unknown:
            yield unknown(f"whether the host uses {path}: {drive.use_unknown}", _BLOCK)
    if strange and scene.demanding:  # other guests are judged only by what is known
        yield unknown(f"whether the host uses {named(strange)}: only of NVMe drives this is known", _BLOCK)


@rule(
    "fabric-bridge",
    ERROR,
    _HOSTDEV,
    right="functions that carry the GPUs' NVLink fabric stay with the host, or go with all GPUs",
    why="without them the NVLinks of all GPUs of the board stop",
    source="Fabric Manager user guide, systems with fourth generation NVSwitches",
    remedy="pass another NIC",
    needs=(PCI,),
    applies=lambda scene: bool(scene.passed),
)
def fabric_bridge(scene: GuestOnHost) -> Iterator[Finding]:
    """Find functions that look like NICs and carry the fabric."""
    whole = _fabric(scene).companions(scene.sources)
    kept = {} if {*whole} & {*scene.sources} else kept_bridges(scene.host.pci, scene.host.nics)
    for device in each(scene):
        bridge = kept.get(device.source or "")
        if bridge is not None and bridge.known:
            yield Finding(f"{device.source} is not an ordinary NIC: it {bridge.why}", scene.place_of(device))
        elif bridge is not None:
            yield unknown(f"whether {device.source} carries the fabric: it {bridge.why}", scene.place_of(device))


@rule(
    "device-shared",
    ERROR,
    _HOSTDEV,
    right="no other guest has a passed device",
    why="the second of the two does not start",
    source="libvirt formatdomain, Host device assignment",
    remedy="pass another device: hosttune plan chooses free ones",
    needs=(GUESTS,),
    applies=lambda scene: bool(scene.given or scene.taken or scene.shared),
)
def device_shared(scene: GuestOnHost) -> Iterator[Finding]:
    """Find devices of other guests; of one that does not run, the two exclude each other only in time."""
    mdevs = dict.fromkeys(scene.guest.mdevs, f"{_HOSTDEV}[@type='mdev']")
    mine = {source.casefold(): (source, where) for source, where in {**scene.taken, **mdevs}.items()}
    for other in scene.others:
        shared = scene.facts.shared_by(other.guest)
        owned = [
            (f"{mine[address][0]} belongs to", mine[address][1]) for address in sorted(mine.keys() & other.devices)
        ]
        owned += [
            (f"{address} is below {shared[address]} of", where)
            for address, where in scene.taken.items()
            if address in shared
        ]
        below = ((path, address) for address, path in scene.shared.items() if address in other.devices)
        owned += [(f"{path} is on {address}, which belongs to", _BLOCK) for path, address in below]
        if other.guest.unread:
            yield unknown(f"the devices of guest {other.name} are unknown: its definition cannot be read", _HOSTDEV)
        for what, where in owned:
            text = f"{what} guest {other.name} ({other.guest.state or 'state unknown'})"
            if other.stopped:
                yield Finding(f"{text}: the two cannot run at the same time", where, WARN)
            else:
                yield Finding(text, where)


@rule(
    "device-quarantined",
    ERROR,
    _HOSTDEV,
    right="no device of the guest, and none that a disk or an interface of it is on, is between two tenants",
    why="the next tenant would get what the last one left; hosttune's hook refuses the start",
    source="hosttune handover",
    remedy="finish its hand-over (hosttune handover), or free it (hosttune handover release BDF --why TEXT)",
    applies=lambda scene: bool(scene.taken or scene.guest.host_paths),
)
def device_quarantined(scene: GuestOnHost) -> Iterator[Finding]:
    """Find devices of the register of hand-overs, also below a block device, an interface or an argument to QEMU."""
    held = scene.facts.catalogue.quarantined
    for address, where in scene.taken.items():
        if address in held:
            yield Finding(held[address], where)
    for address, path in scene.shared.items():
        if address in held:
            yield Finding(f"{path} is on {address}: {held[address]}", _BLOCK)
    if held and scene.untold:
        yield unknown(f"which device {named(scene.untold)} is on", _BLOCK)


@rule(
    "cpus-shared",
    WARN,
    _PINS,
    right="vCPUs share no core with another guest",
    why="each of the two waits for the other",
    source="libvirt formatdomain, CPU Tuning",
    remedy="pin to cores that no other guest has: hosttune plan chooses free ones",
    needs=(GUESTS,),
    applies=lambda scene: bool(scene.single or scene.service),
)
def cpus_shared(scene: GuestOnHost) -> Iterator[Finding]:
    """Compare CPUs with each other guest: vCPUs need CPUs of their own; other threads may share housekeeping CPUs."""
    for other in scene.others:
        if other.guest.unread:
            yield unknown(f"the CPUs of guest {other.name} are unknown: its definition cannot be read", _PINS)
        yield from _cpus(scene, other)
    if scene.others and not CORES.known(scene):
        yield unknown(CORES.why, _PINS)


def _cpus(scene: GuestOnHost, other: OtherGuest) -> Iterator[Finding]:
    rows = (
        ("vCPUs", scene.single, other.vcpus, "vCPUs", _PINS),
        ("vCPUs", scene.single, other.service - other.vcpus, "emulator and I/O threads", _PINS),
        ("the emulator's and I/O threads", scene.service, other.vcpus, "vCPUs", "/domain/cputune/emulatorpin"),
    )
    for who, cpus, held, whose, where in rows:
        if cpus & held:
            both = CpuSet(cpus & held)
            yield Finding(
                f"{who} on {numbered('CPU', both)}, where guest {other.name} has its {whose}: each waits for the other",
                where,
            )
    near = CpuSet(cpu for cpu in scene.single if scene.core_of(cpu) in other.cores)
    if near and not scene.single & other.vcpus:
        text = (
            f"vCPUs on {numbered('CPU', near)}, siblings of CPUs of guest {other.name}'s vCPUs: they share those cores"
        )
        yield Finding(text, _PINS)


@rule(
    "fabric-partition",
    ERROR,
    _HOSTDEV,
    right="the GPUs of a guest are exactly one partition of the NVSwitch fabric",
    why="CUDA does not start (error 802), copies over NVLink fail, or another tenant is reached",
    source="Fabric Manager user guide: GPU partitions",
    remedy="pass the GPUs of one partition: hosttune plan chooses them (fmpm -l lists them)",
    needs=(PCI,),
    applies=lambda scene: scene.may_have_gpus,
)
def fabric_partition(scene: GuestOnHost) -> Iterator[Finding]:
    """Compare the GPUs with the partitions that the planner knows."""
    fabric = _fabric(scene)
    mine = [source for source in scene.sources if source in fabric.members]
    if not mine:
        return
    missing = None if fabric.passthrough else unnamed(mine, fabric.modules, fabric.claimed)
    if not fabric.known or missing:
        yield unknown(missing or fabric.why or "the partitions of the fabric are unknown", _HOSTDEV)
        return
    partition = exactly(fabric, mine)
    why = refusal(fabric, mine)
    if why is not None:
        active = partition is not None and why == blocked(fabric, partition)
        yield Finding(why, _HOSTDEV, INFO if active else "")
    if fabric.passthrough and fabric.whole(mine) and not set(fabric.switches) <= set(scene.sources):
        text = "functions that carry its NVSwitches" if fabric.nvlink5 else "NVSwitches"
        yield Finding(f"all GPUs of the board in mode 0, without all {text}: nothing sets the fabric up", _HOSTDEV)


def _fabric(scene: GuestOnHost) -> HostFabric:
    """Return the host's fabric with the GPUs of the other guests alone taken: this guest may be defined already."""
    fabric = scene.facts.catalogue.fabric
    others = {other.name for other in scene.others}
    return replace(fabric, tenants={gpu: name for gpu, name in fabric.tenants.items() if name in others})
