"""Faults of devices and CPUs that the host itself or other guests use."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.domain.guest_on_host import Fault, GuestOnHost
from hosttune.gpu.bridges import kept_bridges
from hosttune.model.host import RunningGuest
from hosttune.model.values import CpuSet, parse_cpus

_PINS = "/domain/cputune/vcpupin"
_STOPPED = ("shut off", "crashed")


def shared_faults(scene: GuestOnHost) -> Iterator[Fault]:
    """Yield all faults that the rules of this file find."""
    yield from _used_by_host(scene)
    for guest in scene.others:
        yield from _devices(scene, guest)
        yield from _cpus(scene, guest)


def _used_by_host(scene: GuestOnHost) -> Iterator[Fault]:
    for device in scene.passed:
        if use := scene.host.index.in_use.get(device.source or ""):
            yield Fault("error", f"{device.source} is in use by the host: {use}", scene.place_of(device))
    kept = kept_bridges(scene.host.pci, scene.host.nics)
    for device in scene.passed:
        bridge = kept.get(device.source or "")
        if bridge is not None and bridge.known:
            yield Fault("error", f"{device.source} is not an ordinary NIC: it {bridge.why}", scene.place_of(device))


def _devices(scene: GuestOnHost, other: RunningGuest) -> Iterator[Fault]:
    for device in scene.guest.hostdevs:
        if device.source not in other.devices:
            continue
        text = f"{device.source} belongs to guest {other.name} ({other.state or 'state unknown'})"
        if other.state in _STOPPED:
            yield Fault("warn", f"{text}: the two cannot run at the same time", scene.place_of(device))
        else:
            yield Fault("error", text, scene.place_of(device))


def _cpus(scene: GuestOnHost, other: RunningGuest) -> Iterator[Fault]:
    """Compare CPUs with another guest: vCPUs need CPUs of their own; other threads may share housekeeping CPUs."""
    theirs = CpuSet(cpu for pin in other.vcpu_pins or () for cpu in parse_cpus(pin.cpus))
    beside = parse_cpus(other.emulator_cpus).union(*(parse_cpus(cpus) for cpus in other.iothread_cpus or ()))
    # A guest that may use every CPU is not pinned: it has no CPUs of its own.
    theirs = CpuSet() if scene.online and theirs >= scene.online else theirs
    beside = CpuSet() if scene.online and beside >= scene.online else CpuSet(beside)
    mine = scene.service
    rows = (
        ("vCPUs", scene.single, theirs, "vCPUs", _PINS),
        ("vCPUs", scene.single, beside - theirs, "emulator and I/O threads", _PINS),
        ("the emulator's and I/O threads", mine, theirs, "vCPUs", "/domain/cputune/emulatorpin"),
    )
    for who, cpus, held, whose, where in rows:
        if cpus & held:
            text = f"{who} on CPUs {cpus & held}, where guest {other.name} has its {whose}: each waits for the other"
            yield Fault("warn", text, where)
    near = _siblings(scene, scene.single, theirs)
    if near and not scene.single & theirs:
        text = f"vCPUs on CPUs {near}, siblings of CPUs of guest {other.name}'s vCPUs: they share those cores"
        yield Fault("warn", text, _PINS)


def _siblings(scene: GuestOnHost, cpus: CpuSet, others: CpuSet) -> CpuSet:
    """Return those of the CPUs whose core is known and has a CPU in `others`."""
    cores = {scene.core_of(cpu) for cpu in others} - {None}
    return CpuSet(cpu for cpu in cpus if scene.core_of(cpu) in cores)
