"""The drivers of a device during its hand-over: vfio-pci for a reset, the host's own for erasing and tests.

The same setting as in `apply` changes the driver (`settings.drivers.Driver`). What uses the device is looked for before
each change: a guest that started meanwhile keeps its device, and the step fails.
"""

from __future__ import annotations

from hosttune.discovery.holders import holders
from hosttune.errors import WriteFailed
from hosttune.handover.targets import Target
from hosttune.machine.child import in_child
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.handover import HandoverStep
from hosttune.settings.drivers import DRIVERS, VFIO, Driver
from hosttune.settings.setting import driver_of

LIMIT_SECONDS, ESTIMATE_SECONDS = 180.0, 10.0


def refuse_users(system: System, address: str) -> None:
    """Raise WriteFailed if a guest or a process has the device now, or if that cannot be told."""
    lines = [user.text for user in holders(system, (address,))]
    if lines:
        raise WriteFailed(sysfs.function(address), "; ".join(lines))


def binding_of(system: System, address: str) -> str | None:
    """Return what tells the binding of a device to its driver from every other one since the boot; None if unknown.

    The kernel makes the link `driver` anew each time a driver is bound (drivers/base/dd.c, driver_sysfs_add). A device
    that was taken out and another one in its place, or that another driver had in between, has another one.
    """
    path = sysfs.function(address, "driver")
    return system.query(f"driver-link-{address}", lambda: system.link_number(path))


def place_of(system: System, address: str) -> str | None:
    """Return what tells a device from each other one that was at its address since the boot; None if unknown.

    The kernel makes the link in /sys/bus/pci/devices when it finds a device, also one that is put in again
    (drivers/base/bus.c, bus_add_device).
    """
    path = sysfs.function(address)
    return system.query(f"device-link-{address}", lambda: system.link_number(path))


def hold(system: System, address: str) -> str | None:
    """Give a device to vfio-pci, or to no driver where it has no IOMMU group. Return which. Raises WriteFailed."""
    grouped = system.link(sysfs.function(address, "iommu_group")) is not None
    return give(system, address, VFIO if grouped else None)


def give(system: System, address: str, driver: str | None) -> str | None:
    """Give a device to a driver, or to none (None). Return the driver that it has then. Raises WriteFailed."""
    setting = Driver.of(address)
    refuse_users(system, address)
    if setting.read(system) != driver:
        in_child(lambda: setting.write(system, driver), LIMIT_SECONDS, f"driver of {address}")
        system.forget()
    now = driver_of(system, address)
    if now != driver:
        raise WriteFailed(
            sysfs.function(address, "driver"), f"it reads {now or 'none'} after {driver or 'none'} was bound"
        )
    return now


def take_back(system: System, target: Target) -> HandoverStep:
    """Give a device to the host's own driver, which can erase and test it. Raises WriteFailed."""
    if target.driver is None:
        why = "the host has no known driver of its own for it"
        return HandoverStep(step="taken-back", outcome="not-supported", why=why)
    if not system.exists(f"{DRIVERS}/{target.driver}"):
        why = f"driver {target.driver} is not loaded on this host: load its module (modprobe) and begin again"
        return HandoverStep(step="taken-back", outcome="unknown", why=why)
    before = driver_of(system, target.address)
    now = give(system, target.address, target.driver)
    evidence = {"before": before, "now": now}
    return HandoverStep(step="taken-back", outcome="done", method=f"bound to {now}", evidence=evidence)


def give_back(system: System, target: Target) -> HandoverStep:
    """Return a device to the driver that it had before its hand-over. Raises WriteFailed."""
    now = give(system, target.address, target.back)
    method = f"bound to {now}" if now else "left without a driver"
    return HandoverStep(step="returned", outcome="done", method=method, evidence={"driver": now})
