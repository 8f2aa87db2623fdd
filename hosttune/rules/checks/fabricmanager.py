"""Checks of NVIDIA Fabric Manager: it runs where needed, matches the driver's version, and separates tenants."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.gpu import nvswitches, vendor_of
from hosttune.model.evidence import Evidence
from hosttune.model.fabricmanager import FabricManager
from hosttune.model.pci import for_vfio
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import HOST, RECORD, accelerators, driver_unread, listed, why_switches_exist
from hosttune.rules.checks.gpufacts import function, module_version
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding, inapplicable

_GUIDE = "Fabric Manager user guide"
_MODES = {
    0: "0 (bare metal or full passthrough)",
    1: "1 (shared NVSwitch)",
    2: "2 (vGPU)",
}


def _managed(evidence: Evidence) -> Iterator[tuple[str, FabricManager]]:
    """Yield the host with its Fabric Manager if this machine holds the NVSwitches of a fabric."""
    host = evidence.host
    if host.nvswitches and all(for_vfio(switch.driver) for switch in host.nvswitches):
        why = "all NVSwitches are on vfio-pci: it runs in the guest that has them"
        raise inapplicable(why)
    held = host.nvswitches or why_switches_exist(evidence) is not None
    if not held and host.hypervisor:
        raise inapplicable("no NVSwitch in this guest: it runs on the host")
    bridged = table("boards")["bridged"]["gpus"]
    if held or any(host.index.device_id(gpu.address) in bridged for gpu in accelerators(host)):
        yield HOST, evidence.fabric_manager or FabricManager()


@check(
    "fabric-manager",
    title="Fabric Manager runs where this machine holds the NVSwitches",
    about="host",
    why="Without it no GPU of the board has NVLink, and CUDA does not start",
    source=_GUIDE,
    expected="installed and running",
    reads="systemctl show nvidia-fabricmanager.service",
    each=_managed,
    inside=True,
    none="NVSwitch",
)
def fabric_manager(on: On, manager: FabricManager) -> Finding:
    """Check that Fabric Manager runs."""
    if manager.installed is False:
        hint = "install nvidia-fabricmanager of the driver's own version: without it there is no NVLink"
        return on.failed("not installed", hint)
    if on.need(manager.running, "whether it runs", look="systemctl status nvidia-fabricmanager"):
        return on.passed("running")
    hint = "systemctl enable --now nvidia-fabricmanager, then read /var/log/fabricmanager.log"
    return on.failed(f"installed, {manager.state or 'not running'}", hint)


@check(
    "driver-fm-version",
    title="Fabric Manager of the driver's version",
    about="host",
    why="It ends at its start when driver and daemon differ: after the next reboot there is no fabric",
    source=f"{_GUIDE}: the daemon compares its version with the loaded driver's",
    expected="the driver's version",
    reads="nv-fabricmanager --version, /sys/module/nvidia/version",
    each=_managed,
    inside=True,
    none="NVSwitch",
)
def driver_fm_version(on: On, manager: FabricManager) -> Finding:
    """Compare the versions of Fabric Manager and driver: any difference fails, of the branch or of the patch level.

    According to the guide, the daemon compares both when it starts, and exits if they differ.
    """
    if manager.installed is False:
        on.skip("no Fabric Manager installed (see fabric-manager)")
    driver = on.need(
        module_version(on, nvswitches.MODULE), "the driver's version", f"/sys/module/{nvswitches.MODULE}/version"
    )
    version = on.need(manager.version, "its version", look="nv-fabricmanager --version")
    expected = f"{driver}, as the driver"
    if version == driver:
        return on.passed(version, expected=expected)
    same_branch = version.split(".")[0] == driver.split(".")[0]
    kind = "another release of the branch" if same_branch else "another branch"
    hint = f"install nvidia-fabricmanager {driver}, restart it, and reset the GPUs"
    if any(gpu.driver_version == version for gpu in accelerators(on.host)):
        hint = "an update of the driver is installed and not loaded: reboot, or load it again (see gpu-driver)"
    return on.failed(f"{version}, {kind}", hint, expected=expected)


@check(
    "fabric-manager-mode",
    title="Fabric Manager isolates tenants",
    about="host",
    why="In mode 0 with GPUs in guests every NVLink route is open between tenants",
    source=f"{_GUIDE}: FABRIC_MODE, Shared NVSwitch virtualization",
    expected="1 (shared NVSwitch) or 2 (vGPU) while guests have GPUs",
    reads=nvswitches.MANAGER_CONFIG,
    each=_managed,
    none="NVSwitch",
)
def fabric_manager_mode(on: On, manager: FabricManager) -> Finding:
    """Check that tenants are separated: GPUs on vfio-pci with Fabric Manager on the host need shared NVSwitch mode.

    In mode 0 the daemon opens every route. CUDA then works in all guests, but nothing separates them.
    """
    every = [gpu for gpu in accelerators(on.host) if (vendor := vendor_of(gpu.vendor)) and vendor.fabric]
    given = [gpu for gpu in every if (device := function(on, gpu)) and for_vfio(device.driver)]
    unread = [gpu.address for gpu in every if driver_unread(on.evidence, gpu.address)]
    if unread and not given:
        on.give_up(f"the driver of {listed(unread, 3)} was not read", RECORD)
    if not given:
        on.skip("no GPU is on vfio-pci: no guests to isolate from each other")
    if manager.running is False:
        on.skip("no Fabric Manager runs here (see fabric-manager)")
    on.need(manager.running, "whether it runs", look="systemctl status nvidia-fabricmanager")
    mode = on.need(manager.mode, "its mode", look=f"grep FABRIC_MODE {nvswitches.MANAGER_CONFIG}")
    if mode != 0:
        return on.passed(_MODES.get(mode, str(mode)))
    activate = "restart nvidia-fabricmanager, and activate a partition for each guest"
    actual = f"{_MODES[0]}, with {len(given)} GPUs on vfio-pci: tenants are not isolated on NVLink"
    return on.failed(actual, f"set FABRIC_MODE=1 in {nvswitches.MANAGER_CONFIG}, {activate}")
