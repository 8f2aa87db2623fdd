"""Which driver holds a PCI function: binding to vfio-pci by address, and the number of virtual functions.

Sources: Documentation/ABI/testing/sysfs-bus-pci (driver_override, unbind, bind, sriov_numvfs),
Documentation/PCI/pci-iov-howto, Documentation/driver-api/vfio.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from hosttune.errors import BadInput, CommandFailed, Unreadable, WriteFailed
from hosttune.machine.system import System
from hosttune.model import pciclass, sysfs
from hosttune.model.host import Host
from hosttune.model.index import is_another
from hosttune.model.values import FrozenMap
from hosttune.settings.setting import DEVICES, OfFunction, TakesDevice, driver_of, refuse

DRIVERS = sysfs.PCI_DRIVERS
VFIO = "vfio-pci"
UDEV_RULES = "/etc/udev/rules.d/10-hosttune-vfio.rules"  # before 80-drivers.rules
_UDEV_RUNS = "/run/udev/control"  # `udevadm settle` checks the same file
_SETTLE_SECONDS = 10
_NVIDIA = "0x10de"
_BRIDGES = pciclass.in_sysfs(*pciclass.BRIDGES)
_MOST_FUNCTIONS = 0xFFFF  # NumVFs is a 16-bit register (SR-IOV 1.1, 3.3.7)
_NAME = re.compile(r"[A-Za-z0-9_.:+-]{1,64}")
_IDS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")


class OfHolder(OfFunction, TakesDevice):
    """Base class of settings that take the function, or others of its device, from the driver that holds it."""

    def kept_open(self, host: Host) -> str | None:
        """See Setting."""
        if not any(gpu.address == self.target and gpu.persistence for gpu in host.gpus):
            return None
        return f"persistence mode holds it (nvidia-smi -i {self.target} -pm 0)"


class Driver(OfHolder):
    """The driver of a function. A plan may only want vfio-pci; a revert restores any driver, or none.

    `driver` and `driver_override` belong together: an override without a binding would take effect at the next probe.
    Value: the driver's name (None: no driver) if no override is set, or if vfio-pci holds the function, whose override
    is then part of the setting. {"driver", "override"} for every other state, also after an interrupted write.
    """

    kind: ClassVar[str] = "driver"
    limit_seconds: ClassVar[float | None] = 60.0  # an unbind waits in the kernel until all users close the device
    none_is_value: ClassVar[bool] = True
    may_stop_midway: ClassVar[bool] = True
    hides_device: ClassVar[bool] = True  # GPU makers' tools cannot see a device on vfio-pci

    def check(self, value: Any) -> None:
        """See Setting."""
        if value != VFIO:
            raise refuse(self.kind, self.target, f"{value!r} is not a driver that a plan can ask for", f"it is {VFIO}")

    def read(self, system: System) -> Any:
        """See Setting."""
        driver, override = self._now(system)
        if override is None or driver == override == VFIO:
            return driver
        return FrozenMap({"driver": driver, "override": override})

    def effective(self, system: System) -> str | None:
        """Return the driver alone, as in plans. Raises Unreadable."""
        return self._now(system)[0]

    def taken_by_revert(self, system: System, old: Any) -> tuple[str, ...]:
        """See Setting. A function without a driver has no user."""
        driver = old.get("driver") if isinstance(old, Mapping) else old
        return () if driver_of(system, self.target) in (None, driver) else (self.target,)

    def waits_for(self, system: System) -> str | None:
        """See Setting. VFIO cannot take a function without an IOMMU group (vfio-pci's probe returns EINVAL)."""
        if system.complete and system.exists(self.path) and system.link(f"{self.path}/iommu_group") is None:
            return "it has no IOMMU group: VFIO can take it once the IOMMU is on, which needs a boot"
        return None

    def write(self, system: System, value: Any) -> str | None:
        """See Setting. The override is written first: otherwise an unbound device would be left without a driver.

        Uses `bind` and not `drivers_probe`, which hides why a driver refused (drivers/base/bus.c).
        """
        if isinstance(value, Mapping):
            driver, override = value.get("driver"), value.get("override")
        else:
            driver, override = value, VFIO if value == VFIO else None
        for name in (driver, override):
            if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
                raise refuse(self.kind, self.target, f"{name!r} is not the name of a driver", "plan again")
        now, set_to = self._now(system)
        if driver == VFIO and now != VFIO:
            held = driver_of(system, self.target)
            if held == "nvidia" and system.link(f"{self.path}/physfn") is not None:
                raise WriteFailed(
                    self.path, "a vGPU's virtual function stays with nvidia, which is its VFIO driver too"
                )
            if (system.read(f"{self.path}/class") or "").startswith(_BRIDGES):
                raise WriteFailed(self.path, "a bridge stays with the host: VFIO gives away endpoints only")
            functions = virtual_functions(system, self.target)
            if functions:
                what = f"its {len(functions)} virtual functions would go with its driver: set their number to 0 first"
                raise WriteFailed(self.path, what)
            if not system.exists(f"{DRIVERS}/{VFIO}"):
                system.change(("modprobe", VFIO), timeout=20.0)
        # If the function was found with an override for another driver, that override would prevent this binding. So it
        # is written last.
        during = override if driver is None or override is None else driver
        self._override(system, set_to, during)
        note = self._bind(system, now, driver)
        self._override(system, during, override)
        return note

    def _override(self, system: System, now: str | None, want: str | None) -> None:
        if want != now:
            system.write(f"{self.path}/driver_override", f"{want or ''}\n")  # an empty line clears it

    def _bind(self, system: System, now: str | None, driver: str | None) -> str | None:
        """Unbind one driver and bind another; None is no driver. Return a note to report."""
        notes = []
        if now not in (None, driver):
            system.write(f"{DRIVERS}/{now}/unbind", self.target)
            notes.append(settle(system))
        if driver not in (None, now):
            if driver != VFIO and not system.exists(f"{DRIVERS}/{driver}"):
                raise WriteFailed(f"{DRIVERS}/{driver}", f"driver {driver} is not loaded: load its module (modprobe)")
            system.write(f"{DRIVERS}/{driver}/bind", self.target)
            notes.append(settle(system))
        return "; ".join(dict.fromkeys(note for note in notes if note)) or None

    def _now(self, system: System) -> tuple[str | None, str | None]:
        """Return (driver, override); None for none. Raises Unreadable."""
        self.require(system)
        override = system.read(f"{self.path}/driver_override")
        return driver_of(system, self.target), None if override in ("", "(null)") else override


class SriovVfs(OfHolder):
    """The number of virtual functions of a physical function. `sriov_drivers_autoprobe` is not changed. A reload of the
    device's driver undoes it.

    The kernel changes the number only from or to 0 (drivers/pci/iov.c: EBUSY; more than `sriov_totalvfs`: ERANGE). So a
    change to another number first removes all virtual functions. NVMe functions also need resources (nvme virt-mgmt).
    """

    kind: ClassVar[str] = "sriov-vfs"
    limit_seconds: ClassVar[float | None] = 120.0  # drivers probe every new function
    may_stop_midway: ClassVar[bool] = True

    def check(self, value: Any) -> None:
        """See Setting."""
        if type(value) is not int or not 0 <= value <= _MOST_FUNCTIONS:
            raise refuse(self.kind, self.target, f"{value!r} is not a number of virtual functions", "0 to 65535")

    def read(self, system: System) -> int | None:
        """See Setting."""
        self.require(system)
        text = system.read(f"{self.path}/sriov_numvfs") or ""
        return int(text) if text.isdecimal() and len(text) < 6 else None

    def taken(self, system: System) -> tuple[str, ...]:
        """See Setting. Only the virtual functions."""
        return virtual_functions(system, self.target)

    def write(self, system: System, value: Any) -> None:
        """See Setting."""
        path = f"{self.path}/sriov_numvfs"
        now = self.read(system)
        if now == value:
            return
        if system.read(f"{self.path}/vendor") == _NVIDIA:
            raise WriteFailed(path, "NVIDIA's driver takes no raw writes: use /usr/lib/nvidia/sriov-manage")
        most = system.read(f"{self.path}/sriov_totalvfs") or ""
        if most.isdecimal() and value > int(most):
            raise WriteFailed(path, f"the device offers at most {most} virtual functions", errno.ERANGE)
        if now:
            for address in virtual_functions(system, self.target):
                driver = driver_of(system, address)
                if driver is not None and "vfio" in driver:
                    what = f"{address} is bound to {driver}: given to a guest, or kept for one"
                    raise WriteFailed(f"{self.path}/sriov_numvfs", what, errno.EBUSY)
            system.write(path, "0")
        if value:
            system.write(path, str(value))


def virtual_functions(system: System, address: str) -> tuple[str, ...]:
    """Return the addresses of a physical function's virtual functions, from `virtfn*`. Raises Unreadable."""
    path = f"{DEVICES}/{address}"
    targets = (system.link(f"{path}/{name}") for name in system.list(path) if name.startswith("virtfn"))
    return tuple(sorted(target.rpartition("/")[2] for target in targets if target is not None))


def settle(system: System) -> str | None:
    """Wait until udev has handled the events of a change. Return a note if it does not finish in time.

    Uses `udevadm settle`, as libvirt does. pyudev has no such call: it could only watch for its own events, and would
    not see that the daemon's queue is empty. Without a running udev daemon there is nothing to wait for. A queue that
    stays busy, perhaps with another device's events, is not a failure.
    """
    if not system.exists(_UDEV_RUNS):
        return None
    try:
        system.change(("udevadm", "settle", f"--timeout={_SETTLE_SECONDS}"), timeout=_SETTLE_SECONDS + 5)
    except CommandFailed as error:
        return f"udev has not finished: {error.reason}"
    return None


# --- at boot -------------------------------------------------------------------------------------------------

_RULES_HEAD = """\
# Written by hosttune: functions that are given to guests, by address, are held by vfio-pci from boot on.
# The first rule of a function runs with the event of any PCI function, before that event loads a module
# (80-drivers.rules; RUN comes after all rules): a driver that another device of the same kind loads must not
# take this one. It leaves a function alone that has a driver already, as one loaded in the initramfs would have.
"""


def udev_rules(addresses: Iterable[str], ids: Mapping[str, str | None] = FrozenMap({})) -> str:
    """Return the rules file that binds functions to vfio-pci at boot: the contents of UDEV_RULES; "" for no addresses.

    `ids`: "vendor:device" by address ("10de:2335"). When bus numbers change, an address may belong to another device,
    such as the boot drive or the only NIC; the rule then leaves it alone.

    Rules match an address, never an id (`ids=` of vfio-pci takes every device with that id, the host's own too). The
    clauses:

    - ATTR{...}= is written while the rule is evaluated, RUN{builtin} only after all rules (udev(7)).
    - "[pci/ADDRESS]" names another device's attribute (systemd's udev-rules.c, resolved against /sys/bus/pci/devices).
    - "subsystem/drivers_probe" follows the device's link to its bus. It binds the device if vfio-pci is already loaded.
    - "kmod load" (also used by 80-drivers.rules) loads vfio-pci, which then takes every function whose override names
      it.

    A rule in the root file system cannot prevent what the initramfs or an earlier modules-load binds before udev's
    coldplug: the boot unit rebinds it. Raises BadInput for a text that is not an address.
    """
    known = sorted({Driver.of(address).target for address in addresses})
    if not known:
        return ""
    lines = [_RULES_HEAD]
    for address in known:
        path = f"{DEVICES}/{address}"
        lines.append(
            f'ACTION=="add", SUBSYSTEM=="pci", TEST=="{path}/driver_override", TEST!="{path}/driver",'
            f"{_is_card(ids.get(address), f'[pci/{address}]')}"
            f' ATTR{{[pci/{address}]driver_override}}="{VFIO}"\n'
            f'ACTION=="add", SUBSYSTEM=="pci", KERNEL=="{address}",{_is_card(ids.get(address), "")}'
            f' ATTR{{subsystem/drivers_probe}}="$kernel", RUN{{builtin}}+="kmod load {VFIO}"\n'
        )
    return "".join(lines)


def _is_card(card: str | None, of: str) -> str:
    """Return the clauses that match a device's ids; "" if they are unknown.

    Raises BadInput for a text that is not ids.
    """
    if card is None:
        return ""
    if not _IDS.fullmatch(card):
        raise BadInput(f"{card!r} are not device ids", where=UDEV_RULES, hint='write them like "10de:2335"')
    vendor, _, device = card.partition(":")
    return f' ATTR{{{of}vendor}}=="0x{vendor}", ATTR{{{of}device}}=="0x{device}",'


def cards(system: System, addresses: Iterable[str]) -> dict[str, str]:
    """Return the ids of functions as `udev_rules` takes them, without those that cannot be read. Raises BadInput."""
    cards_of: dict[str, str] = {}
    for address in (Driver.of(address).target for address in addresses):
        with contextlib.suppress(Unreadable):
            words = [system.read(f"{DEVICES}/{address}/{name}") or "" for name in ("vendor", "device")]
            card = ":".join(word.removeprefix("0x") for word in words)
            if _IDS.fullmatch(card):
                cards_of[address] = card
    return cards_of


# --- identities of GPUs on vfio-pci --------------------------------------------------------------------------


def merged_identities(kept: Mapping[str, Mapping[str, Any]], host: Host) -> dict[str, dict[str, Any]]:
    """Return the facts of each GPU, by address, to save before vfio-pci takes it and its maker's tools lose it: those
    that were kept, and what is known now. If an address has another card now, nothing is kept from the old one.

    {"device": "10de:2335:10de:18be", "dsn", "model", "uuid", "serial", "module_id"}, as far as known. The module id
    connects a GPU to Fabric Manager's partitions; it does not follow the order of addresses.
    """
    merged = {address: dict(record) for address, record in kept.items()}
    for gpu in host.gpus:
        who, before = host.index.identity(gpu.address), merged.get(gpu.address, {})
        facts = {"model": gpu.model, "module_id": gpu.module_id, **who}
        known = {name: value for name, value in facts.items() if value is not None}
        merged[gpu.address] = {**({} if is_another(before, who) else before), **known}
    return dict(sorted(merged.items()))
