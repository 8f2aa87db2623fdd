"""Checks of the NVSwitch fabric: GPUs registered with it, and its NVSwitches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hosttune.gpu import nvswitches, vendor_of
from hosttune.gpu.boards import fabric_gpus, waits_for_partition
from hosttune.gpu.bridges import DRIVER, fabric_bridges, has_bridges, may_be_bridge
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import FabricManager, Gpu
from hosttune.model.host import NvSwitch, PciDevice
from hosttune.model.pci import for_vfio
from hosttune.rules.checks import subjects
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import (
    HOST,
    LIST_PCI,
    RECORD,
    RUNNING,
    accelerators,
    driver_unread,
    lacks,
    listed,
    why_switches_exist,
)
from hosttune.rules.checks.gpufacts import by_driver, complete, fact, function, gpu_check, module_version
from hosttune.rules.checks.nvlinks import stays_in_mig
from hosttune.rules.checks.on import On, check
from hosttune.rules.checks.subjects import nothing_given
from hosttune.rules.engine import Finding, NoValue, inapplicable

_GUIDE = "Fabric Manager user guide"


@gpu_check(
    "fabric-state",
    title="GPUs registered with the fabric, and healthy on it",
    about="each GPU on an NVSwitch fabric",
    why="CUDA does not start (error 802) until the fabric is set up; a degraded one is slow",
    source=f"nvml.h: nvmlGpuFabricInfoV_t, NVML_GPU_FABRIC_HEALTH_MASK_*; {_GUIDE}",
    expected="completed, success, healthy",
)
def fabric_state(on: On, gpu: Gpu) -> Finding:
    """With partitions (FABRIC_MODE 1 and 2), "in progress" is right for a GPU that no active one has."""
    on = by_driver(on, gpu, "nvmlDeviceGetGpuFabricInfo")
    state, status, faults = fact(on, gpu, "fabric_state"), gpu.fabric_status, gpu.fabric_health or ()
    actual = ", ".join(filter(None, (state, status, *faults)))
    if state == "completed" and status == "success" and not faults:
        complete(on, gpu, actual, "fabric_health", of_sisters=True)
        return on.passed(actual)
    if state == "completed":
        on.need(status, f"{actual}; the status", look="nvidia-smi -q")
    if gpu.mig_on and not stays_in_mig(gpu):
        hint = "look at nvidia-smi -q again after a reset of the GPU"
        return on.unknown(f"{actual}; MIG is on, and goes off with its next reset", hint)
    if gpu.mig_on:
        return on.skipped(f"{actual}: a GPU in MIG mode needs no partition of the fabric")
    if state == "in progress" and set(faults) <= {"no partition"}:
        expected = "completed in an active partition, else in progress"
        waits = waits_for_partition(on.host, gpu)
        if waits:
            return on.passed(f"{actual}, and in no active partition", expected=expected)
        if waits is None:
            hint = f"read FABRIC_MODE in {nvswitches.MANAGER_CONFIG}, fmpm -l, and the module id in nvidia-smi -q"
            return on.unknown(f"{actual}; whether an active partition has it is not known", hint, expected=expected)
    hint = (
        "start nvidia-fabricmanager and read /var/log/fabricmanager.log; in a guest of a shared NVSwitch host its"
        " partition must be active there; CUDA fails with error 802 until then"
    )
    return on.failed(actual, hint)


def _board(evidence: Evidence) -> Iterator[tuple[str, NvSwitch | None]]:
    """Yield the host, for their number, and each NVSwitch; nothing where none is."""
    switches = tuple(subjects.switches(evidence))
    yield from ((HOST, None), *switches) if switches else ()


@check(
    "nvswitch",
    title="NVSwitches present, on the driver that their use needs",
    about="host, each NVSwitch",
    why="A missing switch halves paths; one on the wrong driver stops the Fabric Manager",
    source=_GUIDE,
    expected="on nvidia-nvswitch, or on vfio-pci with all the others and the GPUs",
    each=_board,
    inside=True,
    none="NVSwitch that is a PCI function",
)
def nvswitch(on: On, switch: NvSwitch | None) -> Finding:
    """nvidia is right if Fabric Manager runs here, and vfio-pci if a guest has all NVSwitches and all GPUs."""
    switches = on.host.nvswitches
    if switch is None:
        # Judge the number of NVSwitches by that of a baseboard.
        count = len(switches)
        kinds = {on.host.index.device_id(nv_switch.address) for nv_switch in switches}
        board = table("boards")["switches"].get(next(iter(kinds))) if len(kinds) == 1 else None
        if board is None:
            return on.skipped(f"{count} NVSwitches, of which it is not known how many a board has")
        on = on.reading(sysfs.PCI_DEVICES, f"{board} on each baseboard")
        if count % board == 0:
            return on.passed(str(count))
        hint = "power-cycle the host; if it comes back, the baseboard needs service"
        whole = "give the guest all NVSwitches of the board, or none; "
        return on.failed(str(count), f"{whole}{hint}" if on.host.hypervisor else hint)
    where = sysfs.function(switch.address, "driver")
    on = on.reading(where)
    driver = on.need(switch.driver or ("" if lacks(on.evidence, where) else None), "its driver", where)
    # A board may be passed in part. What matters is that no GPU kept by the host needs a switch that was passed.
    mixed = len({for_vfio(other.driver) for other in switches}) > 1
    kept = any(gpu.nvlinks_active or gpu.fabric_state for gpu in accelerators(on.host))
    if not mixed and (driver in (nvswitches.DRIVER, nvswitches.MODULE) or (for_vfio(driver) and not kept)):
        return on.passed(f"on {driver}")
    hint = "bind it to nvidia-nvswitch before the Fabric Manager starts, or give all NVSwitches and GPUs to one guest"
    return on.failed(f"on {driver}" if driver else "no driver", hint)


# --- the fabric manager ---------------------------------------------------------------------------------------

_MANAGER_GUIDE = "Fabric Manager user guide"
_MODES = {0: "0 (bare metal or full passthrough)", 1: "1 (shared NVSwitch)", 2: "2 (vGPU)"}


def _managed(evidence: Evidence) -> Iterator[tuple[str, FabricManager]]:
    """Yield the host with its Fabric Manager if this machine holds the NVSwitches of a fabric."""
    host = evidence.host
    drivers = {switch.driver for switch in host.nvswitches}
    drivers = drivers or {host.index.pci[address].driver for address in fabric_bridges(host.pci, host.nics)}
    if drivers and all(map(for_vfio, drivers)):
        raise inapplicable("all NVSwitches, or what carries them, are on vfio-pci: it runs in the guest that has them")
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
    source=_MANAGER_GUIDE,
    expected="installed and running",
    reads="systemctl show nvidia-fabricmanager.service",
    each=_managed,
    inside=True,
    none="NVSwitch",
)
def fabric_manager(on: On, manager: FabricManager) -> Finding:
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
    source=f"{_MANAGER_GUIDE}: the daemon compares its version with the loaded driver's",
    expected="the driver's version",
    reads="nv-fabricmanager --version, /sys/module/nvidia/version",
    each=_managed,
    inside=True,
    none="NVSwitch",
)
def driver_fm_version(on: On, manager: FabricManager) -> Finding:
    """The daemon compares branch and patch level when it starts, and exits if they differ."""
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
    source=f"{_MANAGER_GUIDE}: FABRIC_MODE, Shared NVSwitch virtualization",
    expected="1 (shared NVSwitch) or 2 (vGPU) while guests have GPUs",
    reads=nvswitches.MANAGER_CONFIG,
    each=_managed,
    none="NVSwitch",
)
def fabric_manager_mode(on: On, manager: FabricManager) -> Finding:
    """In mode 0 the daemon opens every route: CUDA works in all guests, and nothing separates them."""
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


# --- partitions -----------------------------------------------------------------------------------------------


def _guests_on_it(evidence: Evidence) -> Iterator[tuple[str, Mapping[str, int | None]]]:
    """Yield each running guest that has whole GPUs of the fabric, with the module ids of these."""
    host = evidence.host
    modules = {gpu.address: gpu.module_id for gpu in fabric_gpus(host)}
    running = [guest for guest in host.guests or () if (guest.state or "running") in RUNNING]
    having = {guest.name: {a: modules[a] for a in guest.devices if a in modules} for guest in running}
    having = {name: gpus for name, gpus in having.items() if gpus}
    lacking = all(
        (vendor := vendor_of(gpu.vendor)) is None or not vendor.fabric or "fabric_state" in (gpu.lacks or ())
        for gpu in accelerators(host)
    )
    if not having and not modules and lacking and accelerators(host):
        raise inapplicable("no GPU here is on an NVSwitch fabric")
    if not having:
        nothing_given(evidence, "no running guest has GPUs of an NVSwitch fabric")
    if host.fabric is not None and host.fabric.mode == 0 and not host.fabric.partitions:
        raise inapplicable("mode 0 has no partitions (see fabric-manager-mode)")
    yield from having.items()


@check(
    "fabric-partition",
    title="The GPUs of each guest are one active partition",
    about="host, each running guest with GPUs of an NVSwitch fabric",
    why="Without its partition CUDA does not start; with two, copies fail and tenants are not isolated",
    source="Fabric Manager user guide: Shared NVSwitch virtualization model",
    expected="its GPUs are exactly one active partition",
    reads="fmpm -l",
    each=_guests_on_it,
)
def fabric_partition(on: On, gpus: Mapping[str, int | None]) -> Finding:
    modules = {module for module in gpus.values() if module is not None}
    unread = ", ".join(address for address, module in gpus.items() if module is None)
    if unread:
        hint = "compare fmpm -l with the module ids that nvidia-smi -q reported before the GPUs went to vfio-pci"
        on.give_up(f"the module ids of {unread} are unknown", hint)
    partitions = on.need(
        on.host.fabric.partitions if on.host.fabric else None, "the list of partitions", look="fmpm -l"
    )
    touching = [part for part in partitions if part.active and modules & set(part.module_ids)]
    numbers = ", ".join(str(part.id) for part in touching)
    actual = f"module ids {', '.join(map(str, sorted(modules)))}; active of them: partition {numbers or 'none'}"
    if len(touching) == 1 and set(touching[0].module_ids) == modules:
        return on.passed(actual)
    own = [part.id for part in partitions if set(part.module_ids) == modules]
    if own:
        others = "".join(f"fmpm -d {part.id}, " for part in touching if part.id != own[0])
        return on.failed(actual, f"{others}fmpm -a {own[0]}: until then CUDA fails in it (error 802)")
    hint = "stop it and plan it again: its GPUs are not a partition, and NVLink between them fails or reaches others"
    return on.failed(actual, hint)


# --- bridges --------------------------------------------------------------------------------------------------


def _bridges(evidence: Evidence) -> Iterator[tuple[str, PciDevice]]:
    """Yield the functions that are known as fabric bridges; the host is unknown where there may be others."""
    host = evidence.host
    if not host.pci:
        raise NoValue(Finding(outcome="unknown", text="no PCI function was read", remedy=LIST_PCI))
    if not has_bridges(host.pci):
        why = "no GPU here whose NVSwitches are reached through ConnectX functions"
        raise inapplicable(why)
    is_bridge = {nic.address: nic.fabric_bridge for nic in host.nics}
    candidates = [device for device in host.pci if may_be_bridge(device)]
    known = [device for device in candidates if is_bridge.get(device.address)]
    yield from ((device.address, device) for device in known)
    doubtful = [device.address for device in candidates if is_bridge.get(device.address) is None]
    if doubtful or not known:
        why = f"vital product data of {listed(doubtful)} not read" if doubtful else "none of the NICs here is one"
        hint = "run hosttune validate as root; look with: grep -al SMDL=SW_MNG /sys/bus/pci/devices/*/vpd"
        expected = "the functions that carry the fabric are known"
        raise NoValue(Finding(outcome="unknown", text=why, expected=expected, remedy=hint))


@check(
    "fabric-bridge",
    title="ConnectX functions that carry the NVLink fabric stay together",
    about="the host; each such function of HGX B200 and B300",
    why="they look like NICs; given to a guest or reset, they take the NVSwitches behind them along",
    source="Fabric Manager user guide, systems with fourth generation NVSwitches (SMDL in the VPD)",
    expected=f"on {DRIVER}, or on vfio-pci with all others and all GPUs: Fabric Manager reaches the NVSwitches by them",
    each=_bridges,
)
def fabric_bridge(on: On, device: PciDevice) -> Finding:
    """Check the fabric bridges. They look like NICs, but passing or resetting one affects the NVSwitches behind it.

    All of them go to the guest that has all GPUs (`HostFabric.companions`), as NVSwitches do that are PCI functions.
    """
    where = sysfs.function(device.address, "driver")
    on = on.reading(where)
    driver = on.need(device.driver or ("" if lacks(on.evidence, where) else None), "its driver", where)
    if driver == DRIVER:
        return _subnet(on)
    carriers = fabric_bridges(on.host.pci, on.host.nics)
    every = [one for one in on.host.pci if one.address in carriers or has_bridges([one])]
    if carriers and all(for_vfio(one.driver) for one in every):
        return on.passed(f"on {driver}, as all of them and all GPUs")
    hint = f"give it back to {DRIVER}: hosttune revert, or driverctl unset-override {device.address}"
    return on.failed(f"on {driver}" if driver else "no driver", hint)


def _subnet(on: On) -> Finding:
    """Judge the ports of the bridges that the host has: one is active once nvlsm manages the NVSwitches through it.

    nvlsm needs ib_umad, and starts with the Fabric Manager's service (NVIDIA/gpu-operator#2781, siderolabs/extensions
    #717, #893). So an active port shows all three.
    """
    of_nics = on.need(on.evidence.ports, "its ports", look="ibstat")
    bridges = [of_nics[nic.address] for nic in on.host.nics if nic.fabric_bridge and nic.address in of_nics]
    ports = [port for bridge in bridges for port in on.need(bridge.rdma, "its RDMA ports", look="rdma link")]
    states = {port.name: on.need(port.state, f"the state of {port.name}", look="ibstat") for port in ports}
    actual = f"on {DRIVER}; {listed([f'{name} {state}' for name, state in states.items()]) or 'no RDMA port'}"
    if "active" in states.values():
        return on.passed(actual)
    hint = "modprobe ib_umad, then systemctl restart nvidia-fabricmanager, which starts nvlsm, and read its log"
    return on.failed(f"{actual}: no subnet manager reaches the NVSwitches", hint)
