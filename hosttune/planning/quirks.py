"""What is known to go wrong, or to cost something, with a planned guest on this host, and is nobody's setting. Pure.

Each text names what happens, where, and what to do; its source stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hosttune.domain.elements import version_of
from hosttune.gpu import vendor_of
from hosttune.model.host import Host
from hosttune.model.plan import Action, Finding, PlannedGuest
from hosttune.model.values import format_size
from hosttune.planning.devices import Catalogue

# Mapping BARs of 256 GiB each took minutes to over an hour for 4 to 8 GPUs with QEMU 8.2, and no longer with 10.1
# (Ubicloud, "Virtualizing NVIDIA HGX B200 GPUs"); from four of them on it is said.
HUGE_BARS = 1 << 40
FAST_BARS = (10, 1)
TUNED = "/etc/tuned/active_profile"
# What TuneD's profiles set, too: plugins cpu, vm, sysctl, scheduler, irqbalance (tuned, profiles/*/tuned.conf).
TUNED_KINDS = frozenset(
    ("governor", "energy-preference", "resume-latency", "thp", "numa-balancing", "ksm", "sysctl", "irqbalance-ban")
)


def guest_quirks(host: Host, catalogue: Catalogue, guest: PlannedGuest) -> Iterator[Finding]:
    """What to know of one guest."""
    where = f"guest {guest.name}"
    for device in guest.devices:
        gpu, function = catalogue.gpus.get(device.address), catalogue.pci.get(device.address)
        vendor = vendor_of(gpu.vendor) if gpu else None
        doubt = vendor.reset_doubts.get((function.device_id if function else None) or "") if vendor else None
        if doubt is not None:
            yield Finding(level="warn", text=f"GPU {device.address}: {doubt}", where=where)
    yield from _slow_start(host, catalogue, guest, where)
    yield from _emulated_switches(guest, where)


def _slow_start(host: Host, catalogue: Catalogue, guest: PlannedGuest, where: str) -> Iterator[Finding]:
    stack = host.virtualization
    version = version_of(stack.qemu_version) if stack else None
    functions = [catalogue.pci.get(device.address) for device in guest.devices]
    size = sum(bar.size_bytes for function in functions if function for bar in function.bars or ())
    if version is None or version >= FAST_BARS or size < HUGE_BARS:
        return
    text = (
        f"its devices have BARs of {format_size(size)}, and QEMU before 10.1 maps them slowly: the start can take"
        " minutes, with many such GPUs more than an hour on an older kernel; wait for it, or use QEMU 10.1"
    )
    yield Finding(level="info", text=text, where=where)


def _emulated_switches(guest: PlannedGuest, where: str) -> Iterator[Finding]:
    """Ports of QEMU's emulated switch say 2.5 GT/s x1 (hw/pci-bridge/xio3130_downstream.c: no x-speed, no x-width).

    NCCL takes the lesser of device and port (nccl, src/graph/xml.cc, ncclTopoGetXmlFromSys); a file of ours says what
    the host's link is (`guest.nccl`).
    """
    ports = {c.index for c in guest.controllers if c.model == "pcie-switch-downstream-port"}
    below = [d.address for d in guest.devices if d.kind == "gpu" and int(d.guest_address.split(":")[1], 16) in ports]
    if below and guest.seed is None:
        text = (
            f"GPUs below an emulated PCIe switch: {len(below)}. Its ports say 2.5 GT/s x1, and NCCL takes"
            " the lesser of device and port: put the guest's topology file (its bundle, or seed: true) into the guest"
        )
        yield Finding(level="warn", text=text, where=where)


def tuned_findings(host: Host, actions: Iterable[Action]) -> Iterator[Finding]:
    """Settings of the plan that an active profile of TuneD sets, too: the one that comes last wins."""
    profile = " ".join((host.settings or {}).get(TUNED, "").split())
    kinds = sorted({action.kind for action in actions} & TUNED_KINDS)
    if profile and kinds:
        text = (
            f"TuneD's profile {profile} is active and may set {', '.join(kinds)} too, again at each of its starts:"
            " leave these to one of the two (tuned-adm off, or settings: NAME: keep)"
        )
        yield Finding(level="warn", text=text, where=TUNED)
