"""Checks of NVIDIA Fabric Manager: it runs where needed, matches the driver's version, and separates tenants."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.gpu import nvswitches, vendor_of
from hosttune.model.evidence import Evidence
from hosttune.model.fabricmanager import FabricManager
from hosttune.model.gpu import Gpu
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import (
    HOST,
    RECORD,
    accelerators,
    driver_unread,
    for_vfio,
    none_given,
    none_here,
    why_switches_exist,
)

_GUIDE = "NVIDIA, Fabric Manager for NVIDIA NVSwitch systems, user guide"
_SERVICE, _VERSION, _MODE = "fabric-manager", "driver-fm-version", "fabric-manager-mode"
_VERSIONS_READ = "nv-fabricmanager --version, /sys/module/nvidia/version"
_NOTHING = FabricManager()
_MODES = {
    0: "0 (bare metal or full passthrough)",
    1: "1 (shared NVSwitch)",
    2: "2 (vGPU)",
}


def _idle(evidence: Evidence, check: str) -> CheckResult | None:
    """Return the result of a check on a machine that needs no Fabric Manager; None if the machine needs one."""
    host = evidence.host
    switches = host.nvswitches
    if switches and all(for_vfio(switch.driver) for switch in switches):
        return skipped(check, HOST, "all NVSwitches are on vfio-pci: it runs in the guest that has them")
    if switches or why_switches_exist(evidence) is not None:
        return None
    if host.hypervisor:
        return skipped(check, HOST, "no NVSwitch in this guest: it runs on the host")
    functions = host.index.pci
    bridged = table("boards")["bridged"]["gpus"]
    gpus = [functions.get(gpu.address) for gpu in accelerators(host)]
    if any(device is not None and device.device_id in bridged for device in gpus):
        return None
    return none_here(evidence, check, "NVSwitch")


def fabric_manager(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that Fabric Manager runs where this machine holds the NVSwitches."""
    expected = "installed and running"
    idle = _idle(evidence, _SERVICE)
    if idle is not None:
        yield idle
        return
    manager = evidence.fabric_manager or _NOTHING
    read = "systemctl show nvidia-fabricmanager.service"
    if manager.installed is False:
        hint = "install nvidia-fabricmanager of the driver's own version: without it there is no NVLink"
        yield failed(_SERVICE, HOST, expected=expected, actual="not installed", source=read, hint=hint)
    elif manager.running is None:
        hint = "systemctl status nvidia-fabricmanager" if evidence.complete else RECORD
        yield unknown(_SERVICE, HOST, expected=expected, why="whether it runs is not known", hint=hint)
    elif manager.running:
        yield passed(_SERVICE, HOST, expected=expected, actual="running", source=read)
    else:
        hint = "systemctl enable --now nvidia-fabricmanager, then read /var/log/fabricmanager.log"
        actual = f"installed, {manager.state or 'not running'}"
        yield failed(_SERVICE, HOST, expected=expected, actual=actual, source=read, hint=hint)


def driver_fm_version(evidence: Evidence) -> Iterable[CheckResult]:
    """Compare the versions of Fabric Manager and driver: any difference fails, of the branch or of the patch level.

    According to the guide, the daemon compares both when it starts, and exits if they differ.
    """
    idle = _idle(evidence, _VERSION)
    manager = evidence.fabric_manager or _NOTHING
    if idle is not None or manager.installed is False:
        yield idle or skipped(_VERSION, HOST, "no Fabric Manager installed (see fabric-manager)")
        return
    versions = _versions_of_gpus(evidence)
    module = _module_version(evidence)
    driver = module or next(iter(versions), None)
    expected = f"{driver}, as the driver" if driver else "the driver's version"
    if driver is None or manager.version is None:
        lacking = "the driver's version" if driver is None else "its version"
        hint = "compare nv-fabricmanager --version with /proc/driver/nvidia/version" if evidence.complete else RECORD
        yield unknown(_VERSION, HOST, expected=expected, why=f"{lacking} is not known", hint=hint)
        return
    apart = sorted({*versions, *([module] if module else [])})
    if len(apart) > 1:
        why = f"the driver's own sources differ ({', '.join(apart)}); Fabric Manager is {manager.version}"
        hint = "compare /sys/module/nvidia/version with nvidia-smi --version; load the driver again, or reboot"
        yield unknown(_VERSION, HOST, expected="the driver's version", why=why, hint=hint, source=_VERSIONS_READ)
    elif manager.version == driver and not versions and _held(evidence):
        why = f"{manager.version}, as the loaded module; the version that the driver's library reports was not read"
        hint = "compare with: nvidia-smi --query-gpu=driver_version --format=csv"
        yield unknown(_VERSION, HOST, expected=expected, why=why, hint=hint, source=_VERSIONS_READ)
    elif manager.version == driver and module is None:
        why = f"{manager.version}, as the driver's library; the version of the loaded module was not read"
        hint = "compare with /sys/module/nvidia/version"
        yield unknown(_VERSION, HOST, expected=expected, why=why, hint=hint, source=_VERSIONS_READ)
    elif manager.version == driver:
        yield passed(_VERSION, HOST, expected=expected, actual=manager.version, source=_VERSIONS_READ)
    else:
        yield _other_version(manager.version, driver)


def _other_version(version: str, driver: str) -> CheckResult:
    branch = driver.split(".")[0]
    kind = "another branch" if version.split(".")[0] != branch else "another release of the branch"
    hint = f"install nvidia-fabricmanager {driver}, restart it, and reset the GPUs"
    expected, actual = f"{driver}, as the driver", f"{version}, {kind}"
    return failed(_VERSION, HOST, expected=expected, actual=actual, source=_VERSIONS_READ, hint=hint)


def _versions_of_gpus(evidence: Evidence) -> list[str]:
    """Return the versions that the driver's library reported for GPUs with a fabric, without duplicates."""
    versions = [gpu.driver_version for gpu in _with_fabric(evidence) if gpu.driver_version]
    return list(dict.fromkeys(versions))


def _held(evidence: Evidence) -> bool:
    """Return whether the maker's driver, whose library would report a GPU, holds a GPU with a fabric."""
    functions = evidence.host.index.pci
    drivers = [functions[gpu.address].driver for gpu in _with_fabric(evidence) if gpu.address in functions]
    return any(driver is not None and not for_vfio(driver) for driver in drivers)


def _with_fabric(evidence: Evidence) -> list[Gpu]:
    return [gpu for gpu in accelerators(evidence.host) if (vendor := vendor_of(gpu.vendor)) and vendor.fabric]


def _module_version(evidence: Evidence) -> str | None:
    platform = evidence.host.platform
    modules = platform.modules if platform else ()
    return next((module.version for module in modules if module.name == nvswitches.MODULE and module.version), None)


def fabric_manager_mode(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that tenants are separated: GPUs on vfio-pci with Fabric Manager on the host need shared NVSwitch mode.

    In mode 0 the daemon opens every route. CUDA then works in all guests, but nothing separates them.
    """
    idle = _idle(evidence, _MODE)
    functions = evidence.host.index.pci
    given = [
        gpu.address
        for gpu in accelerators(evidence.host)
        if (vendor := vendor_of(gpu.vendor))
        and vendor.fabric
        and for_vfio(functions[gpu.address].driver if gpu.address in functions else None)
    ]
    manager = evidence.fabric_manager or _NOTHING
    unread = any(driver_unread(evidence, gpu.address) for gpu in accelerators(evidence.host))
    if idle is None and not given and not unread:
        idle = skipped(_MODE, HOST, "no GPU is on vfio-pci: no guests to isolate from each other")
    if idle is None and not given:
        idle = none_given(evidence, _MODE, "no GPU is on vfio-pci: no guests to isolate from each other")
    if idle is None and manager.running is False:
        idle = skipped(_MODE, HOST, "no Fabric Manager runs here (see fabric-manager)")
    if idle is not None:
        yield idle
        return
    expected = "1 (shared NVSwitch) or 2 (vGPU) while guests have GPUs"
    if manager.mode is None or manager.running is None:
        hint = f"read FABRIC_MODE in {nvswitches.MANAGER_CONFIG}" if evidence.complete else RECORD
        yield unknown(_MODE, HOST, expected=expected, why="its mode is not known", hint=hint)
    elif manager.mode == 0:
        hint = (
            f"set FABRIC_MODE=1 in {nvswitches.MANAGER_CONFIG}, restart nvidia-fabricmanager, and activate a partition"
        )
        hint += " for each guest"
        actual = f"{_MODES[0]}, with {len(given)} GPUs on vfio-pci: tenants are not isolated on NVLink"
        yield failed(_MODE, HOST, expected=expected, actual=actual, source=nvswitches.MANAGER_CONFIG, hint=hint)
    else:
        actual = _MODES.get(manager.mode, str(manager.mode))
        yield passed(_MODE, HOST, expected=expected, actual=actual, source=nvswitches.MANAGER_CONFIG)


CHECKS: tuple[Check, ...] = (
    Check(
        _SERVICE,
        "Fabric Manager runs where this machine holds the NVSwitches",
        "host",
        "Without it no GPU of the board has NVLink, and CUDA does not start",
        _GUIDE,
        fabric_manager,
        inside=True,
    ),
    Check(
        _VERSION,
        "Fabric Manager of the driver's version",
        "host",
        "It ends at its start when driver and daemon differ: after the next reboot there is no fabric",
        f"{_GUIDE}: the daemon compares its version with the loaded driver's",
        driver_fm_version,
        inside=True,
    ),
    Check(
        _MODE,
        "Fabric Manager isolates tenants",
        "host",
        "In mode 0 with GPUs in guests every NVLink route is open between tenants",
        f"{_GUIDE}: FABRIC_MODE, Shared NVSwitch virtualization",
        fabric_manager_mode,
    ),
)
