"""Checks of the NVSwitch fabric: GPUs registered with it, and its NVSwitches."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.gpu import nvswitches
from hosttune.gpu.boards import waits_for_partition
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import NvSwitch
from hosttune.model.pci import for_vfio
from hosttune.rules.checks import subjects
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import HOST, accelerators, lacks
from hosttune.rules.checks.gpufacts import by_driver, complete, fact, gpu_check
from hosttune.rules.checks.nvlinks import stays_in_mig
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding

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
    """Judge the registration with the fabric: it must be completed with success, and the health mask without faults.

    On a host whose fabric has partitions (FABRIC_MODE 1 and 2), it is "in progress" while no active partition has it.
    """
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
    """Check that the board has all of its NVSwitches, and that each has the driver that its use needs.

    It must be nvidia if Fabric Manager runs here, and vfio-pci if a guest has all NVSwitches and all GPUs.
    """
    switches = on.host.nvswitches
    if switch is None:
        return _all_there(on, len(switches), {on.host.index.device_id(nv_switch.address) for nv_switch in switches})
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


def _all_there(on: On, count: int, kinds: set[str | None]) -> Finding:
    """Judge the number of NVSwitches by that of a baseboard."""
    board = table("boards")["switches"].get(next(iter(kinds))) if len(kinds) == 1 else None
    if board is None:
        return on.skipped(f"{count} NVSwitches, of which it is not known how many a board has")
    on = on.reading(sysfs.PCI_DEVICES, f"{board} on each baseboard")
    if count % board == 0:
        return on.passed(str(count))
    hint = "power-cycle the host; if it comes back, the baseboard needs service"
    whole = "give the guest all NVSwitches of the board, or none; "
    return on.failed(str(count), f"{whole}{hint}" if on.host.hypervisor else hint)
