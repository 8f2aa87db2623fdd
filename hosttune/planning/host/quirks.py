"""Known problems and costs of a planned guest on this host that no setting of the intent covers. Pure.

Each text says what happens, where, and what to do. The source is next to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hosttune.domain.elements import version_of
from hosttune.gpu import VENDORS, bar_missing, hints_for, inside, reset_touches, vendor_of
from hosttune.guest.nccl import is_gpu, is_nic
from hosttune.inventory.devices import Catalogue
from hosttune.inventory.pcielink import path
from hosttune.linux.tuned import (
    ACTIVE,
    OTHERWISE,
    OVERRULED,
    UNSURE,
    WantedSetting,
    conflict_lines,
    reaches,
    tuned_conflicts,
    unknown_profiles,
)
from hosttune.model.host import Host, Tuned
from hosttune.model.listing import some
from hosttune.model.plan import Action, Device, PlanFinding, PlannedGuest
from hosttune.model.values import format_size, grouped

# Mapping BARs of 256 GiB each took minutes to over an hour for 4 to 8 GPUs (Ubicloud, "Virtualizing NVIDIA HGX B200
# GPUs"). There is a finding for four or more of them. What maps them fast, and since when: QEMU aligns its maps (QEMU
# 00b519c0, "vfio/helpers: Align mmaps"); the kernel faults them in huge pieces (Linux f9e54c3a2f5b,
# vfio_pci_mmap_huge_fault), and maps these for DMA whole (Linux 0fd06844de5d, "Use mapping page mask for pfnmaps").
HUGE_BARS = 1 << 40
ALIGNED, HUGE_FAULTS, WHOLE_MAPS = (9, 2), (6, 12), (6, 15)
_BYTES_PER_ENTRY = 512  # of a BAR for each byte of page table: 8 bytes for 4 KiB
ROOT_PORT_GTS = 16.0  # link speed of QEMU's root port (hw/pci-bridge/gen_pcie_root_port.c, x-speed)


def guest_quirks(host: Host, catalogue: Catalogue, guest: PlannedGuest) -> Iterator[PlanFinding]:
    """Yield the known problems of one guest."""
    where = f"guest {guest.name}"
    told: dict[tuple[str, str], list[str]] = {}
    for device in guest.devices:
        gpu, function = catalogue.gpus.get(device.address), catalogue.pci.get(device.address)
        vendor = vendor_of(gpu.vendor) if gpu else None
        for level, doubts in (("warn", vendor.reset_doubts), ("info", vendor.reset_reports)) if vendor else ():
            if doubt := doubts.get((function.device_id if function else None) or ""):
                told.setdefault((level, doubt), []).append(device.address)
        if gpu and function and (missing := bar_missing(function)):
            mend = "switch Above 4G Decoding on in the host's firmware and raise its MMIO window"
            yield PlanFinding(
                level="error", text=f"GPU {device.address} fails in a guest: {missing}: {mend}", where=where
            )
    for (level, doubt), addresses in told.items():
        yield PlanFinding(level=level, text=f"GPU {some(addresses, len(addresses))}: {doubt}", where=where)
    yield from _narrow_links(host, guest, where)
    yield from _in_parts(catalogue, guest, where)
    yield from _divided(host, catalogue, guest, where)
    yield from _joined_by_ports(catalogue, guest, where)
    yield from _slow_start(host, catalogue, guest, where)
    yield from _emulated_ports(catalogue, guest, where)


def _narrow_links(host: Host, guest: PlannedGuest, where: str) -> Iterator[PlanFinding]:
    """Yield the links on the way to the root port that run below what both ends can do."""
    links = ((link, device.address) for device in guest.devices for link in path(host.index, device.address))
    limited = grouped((link.why, address) for link, address in links if link.state == "degraded")
    for why, names in limited.items():
        text = f"a PCIe link limits {', '.join(names)}: {why}: reseat the card or its cable (check pcie-link)"
        yield PlanFinding(level="warn", text=text, where=where)


def _in_parts(catalogue: Catalogue, guest: PlannedGuest, where: str) -> Iterator[PlanFinding]:
    """Yield the GPUs that are several devices now. No source says which mode a GPU has after its guest's reset."""
    for address in (device.address for device in guest.devices):
        gpu = catalogue.gpus.get(address)
        modes = vendor.partitioning if gpu and (vendor := vendor_of(gpu.vendor)) else None
        if gpu is None or modes is None or gpu.compute_partition in (None, modes.whole):
            continue
        text = (
            f"GPU {address} is divided ({gpu.compute_partition}): no source says whether the guest gets one device or"
            f" several: set {modes.whole} with {hints_for(gpu).tool} before, or look at its mode in the guest"
        )
        yield PlanFinding(level="warn", text=text, where=where)


def _divided(host: Host, catalogue: Catalogue, guest: PlannedGuest, where: str) -> Iterator[PlanFinding]:
    """Yield GPUs outside of the guest that a link joins with its own, where a reset of one touches the others.

    How they are joined is known only while their maker's driver holds them, so unknown peers are named too; not of a
    GPU that the guest has already, of which the plan that gave it told.
    """
    force = host.in_force.guests if host.in_force else ()
    had = {device.address for one in force if one.name == guest.name for device in one.places.devices}
    told = {address: reset_touches(gpu, catalogue.pci.get(address)) for address, gpu in catalogue.gpus.items()}
    touching = {address: gpu for address, gpu in catalogue.gpus.items() if told[address]}
    own = {device.address: touching[device.address] for device in guest.devices if device.address in touching}
    for address, gpu in own.items():
        link = maker.link if (maker := vendor_of(gpu.vendor)) else ""
        peers = {peer.address for peer in gpu.peers or () if peer.kind == link} - own.keys()
        alike = {other: one for other, one in touching.items() if one.vendor == gpu.vendor and other not in own}
        unknown = {other for other, one in alike.items() if gpu.peers is None or one.peers is None}
        unknown -= {peer.address for peer in gpu.peers or ()}
        if peers:
            text = f"{told[address]}: {', '.join(sorted(peers))} are joined with {address}, and the guest has them not"
            yield PlanFinding(level="warn", text=f"{text}; give it all of them, or none beside it", where=where)
        elif unknown and address not in had:
            text = f"{told[address]}: whether {', '.join(sorted(unknown))} are joined with {address} is unknown"
            hint = f"discover while {maker.driver if maker else 'their driver'} holds them"
            yield PlanFinding(level="warn", text=f"{text}; {hint}", where=where)
        else:
            continue
        return  # one GPU of the guest stands for all


def _joined_by_ports(catalogue: Catalogue, guest: PlannedGuest, where: str) -> Iterator[PlanFinding]:
    """Yield GPUs whose own network ports join them with GPUs that the guest has not."""
    own = {device.address for device in guest.devices}
    for vendor in VENDORS:
        if vendor.ports is None:
            continue
        board = [address for address, gpu in catalogue.gpus.items() if gpu.vendor == vendor.name]
        mine, others = [one for one in board if one in own], [one for one in board if one not in own]
        if mine and others:
            text = (
                f"{len(mine)} of {len(board)} GPUs that are joined by network ports of their own: no source says"
                f" whether the ports to {', '.join(sorted(others)[:8])} are cut from the guest, nor whether they are up"
                " in it; where tenants must be apart, give all of them to one guest"
            )
            yield PlanFinding(level="warn", text=text, where=where)


def _slow_start(host: Host, catalogue: Catalogue, guest: PlannedGuest, where: str) -> Iterator[PlanFinding]:
    """Yield that huge BARs take long to map. A distribution may have put the kernel's part into an older one."""
    stack = host.virtualization
    qemu, kernel = version_of(stack.qemu_version) if stack else None, version_of(host.kernel)
    functions = [catalogue.pci.get(device.address) for device in guest.devices]
    size = sum(bar.size_bytes for function in functions if function for bar in function.bars or ())
    small = ["QEMU before 9.2 does not align them"] if qemu and qemu < ALIGNED else []
    small += ["Linux before 6.12 faults them in 4 KiB at a time"] if kernel and kernel < HUGE_FAULTS else []
    causes = small or (
        ["Linux before 6.15 maps them for DMA 4 KiB at a time"] if kernel and kernel < WHOLE_MAPS else []
    )
    if not causes or size < HUGE_BARS:
        return
    tables = (
        f", and their page tables take {format_size(size // _BYTES_PER_ENTRY)} of what the host keeps"
        " (reserve: memory_per_node)"
    )
    text = (
        f"its devices have BARs of {format_size(size)}, and {', '.join(causes)}: the start can take minutes, with many"
        f" such GPUs more than an hour{tables if small else ''}; QEMU 9.2 and Linux 6.15 map them fast"
    )
    yield PlanFinding(level="info", text=text, where=where)


def _emulated_ports(catalogue: Catalogue, guest: PlannedGuest, where: str) -> Iterator[PlanFinding]:
    """Yield GPUs whose links look slower in the guest than they are, because of QEMU's emulated ports.

    A switch's ports report 2.5 GT/s x1 (hw/pci-bridge/xio3130_downstream.c: no x-speed, no x-width), a root port 16
    GT/s x32 since QEMU 4.0 (hw/pci-bridge/gen_pcie_root_port.c, x-speed and x-width; still so in 10.1). libvirt sets
    neither. NCCL uses the lower value of device and port (nccl, src/graph/xml.cc, ncclTopoGetXmlFromSys), but only for
    a device whose link is not in a topology file; hosttune's file has the host's values (`guest.nccl`). With one GPU
    and no NIC, NCCL has nothing to compare. GPUs whose collectives library reads no such file are left out.
    """
    if guest.seed is not None or sum(is_gpu(device) or is_nic(device) for device in guest.devices) < 2:
        return
    mend = "and NCCL takes the lesser of device and port: put the guest's topology file (its bundle, or seed: true)"
    models = {controller.index: controller.model for controller in guest.controllers}
    functions = {address: function.vendor_id for address, function in catalogue.pci.items()}
    gpus = [
        (models.get(_bus(device)), device)
        for device in guest.devices
        if device.kind == "gpu" and inside(functions.get(device.address)).nccl is not None
    ]
    below = sum(model == "pcie-switch-downstream-port" for model, _ in gpus)
    if below:
        text = f"GPUs below an emulated PCIe switch: {below}. Its ports say 2.5 GT/s x1, {mend} into the guest"
        yield PlanFinding(level="warn", text=text, where=where)
    speeds = [device.link_speed_gts or 0 for model, device in gpus if model == "pcie-root-port"]
    faster = [speed for speed in speeds if speed > ROOT_PORT_GTS]
    if faster:
        text = (
            f"GPUs on an emulated root port: {len(faster)} with a link of {max(faster):g} GT/s. The port says"
            f" {ROOT_PORT_GTS:g} GT/s at most, {mend} into the guest"
        )
        yield PlanFinding(level="warn", text=text, where=where)


def _bus(device: Device) -> int:
    """Return the bus of a passed function in the guest, which is its controller's index."""
    return int(device.guest_address.split(":")[1], 16)


def tuned_findings(host: Host, actions: Iterable[Action]) -> Iterator[PlanFinding]:
    """Yield settings of the plan that an active TuneD profile sets to other values at each of its starts."""
    active = (host.settings or {}).get(ACTIVE, "").split()
    reached = [action for action in actions if reaches(action.kind, action.target)]
    wanted_settings = [WantedSetting(action.kind, action.target, action.want) for action in reached]
    if not wanted_settings or not (active or host.tuned):
        return
    tuned = host.tuned or Tuned(profiles=tuple(active))
    name = " ".join(tuned.profiles) + (" (which TuneD chose itself)" if tuned.mode == "auto" else "")
    conflicts = tuned_conflicts(tuned, wanted_settings, host.kernel_args)
    mend = "leave each to one of the two (tuned-adm off, a profile of your own, or settings: NAME: keep)"
    kept = "hosttune's value stays in force, because TuneD then applies /etc/sysctl.d again (reapply_sysctl)"
    for how, level, what_it_does, remedy in (
        (OTHERWISE, "warn", "sets otherwise, again at each start of TuneD", mend),
        (UNSURE, "warn", "may set otherwise, which is known only when TuneD starts", mend),
        (OVERRULED, "info", "sets otherwise", kept),
    ):
        texts = "; ".join(conflict_lines(conflicts, how))
        if texts:
            yield PlanFinding(
                level=level, text=f"TuneD's profile {name} {what_it_does}: {texts}: {remedy}", where=ACTIVE
            )
    kinds = ", ".join(sorted({wanted_setting.kind for wanted_setting in wanted_settings}))
    look = "and at its tuned.conf; after applying, compare with: tuned-adm verify"
    for unknown in unknown_profiles(tuned):
        text = f"what TuneD's profile {unknown} sets is not known, and it may set {kinds} otherwise"
        yield PlanFinding(
            level="warn", text=f"{text}: look with: tuned-adm profile_info {unknown}, {look}", where=ACTIVE
        )
    if not tuned.profiles:
        text = f"which profile of TuneD is active could not be read, and it may set {kinds} otherwise"
        yield PlanFinding(level="warn", text=f"{text}: look with: tuned-adm active", where=ACTIVE)
