"""Checks of GPU modes and use: persistence, compute mode, MIG with its instances, processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from hosttune.gpu import hints_for
from hosttune.gpu.knobs import COMPUTE_MODE, MIG_MODE, PERSISTENCE
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu, Mig
from hosttune.model.host import PciDevice
from hosttune.model.validation import CheckResult
from hosttune.model.values import grouped
from hosttune.rules.checks.check import Check, skipped, unknown
from hosttune.rules.checks.facts import planned_guests, wanted
from hosttune.rules.checks.gpufacts import Fact, each_gpu, every_gpu, not_judged

_NVML = "NVIDIA, NVML API reference (nvml.h)"

_PERSISTENCE = Fact("persistence", "enabled", ("persistence",), "nvmlDeviceGetPersistenceMode")


def _persistence(plan: dict[str, object], gpu: Gpu) -> CheckResult:
    now = "enabled" if gpu.persistence else "disabled"
    if gpu.persistence or plan.get(gpu.address) is False:
        expected = "disabled, as planned" if plan.get(gpu.address) is False else _PERSISTENCE.expected
        return _PERSISTENCE.passed(gpu, now, expected=expected)
    hint = "systemctl enable --now nvidia-persistenced (or nvidia-smi -pm 1): without it settings are forgotten"
    return _PERSISTENCE.warned(gpu, now, hint)


_COMPUTE = Fact("compute-mode", "default", ("compute_mode",), "nvmlDeviceGetComputeMode")


def _compute_mode(plan: dict[str, object], gpu: Gpu) -> CheckResult:
    now = gpu.compute_mode or ""
    want = plan.get(gpu.address)
    expected = f"{want}, as planned" if want else _COMPUTE.expected
    if now == (want or "default"):
        return _COMPUTE.passed(gpu, now, expected=expected)
    verdict = _COMPUTE.failed if now == "prohibited" else _COMPUTE.warned
    return verdict(gpu, now, f"nvidia-smi -i {gpu.address} -c DEFAULT", expected=expected)


_BUSY = Fact("gpu-processes", "none before a tenant comes", ("processes",), "nvmlDeviceGetComputeRunningProcesses")


def _processes(gpu: Gpu) -> CheckResult:
    if not gpu.processes:
        return _BUSY.passed(gpu, "none")
    actual = f"{gpu.processes} use it"
    hint = f"{hints_for(gpu).processes} names them: end what the last tenant left; benchmarks need the GPU idle"
    return _BUSY.warned(gpu, actual, hint)


# --- MIG -----------------------------------------------------------------------------------------------------

_MODE = Fact("mig-mode", "as planned, and nothing pending", ("mig",), "nvmlDeviceGetMigMode", tables=True)
_INSTANCES = Fact("mig-instances", "the planned instances", ("mig",), "nvmlDeviceGetGpuInstances", tables=True)
_GUIDE = "NVIDIA, Multi-Instance GPU user guide"


def mig_mode(evidence: Evidence) -> Iterable[CheckResult]:
    """Compare the MIG mode of each GPU that supports MIG with the applied plans."""
    plan = wanted(evidence, MIG_MODE)
    return _each_mig(evidence, _MODE, lambda gpu, mig: _mig_mode(plan.get(gpu.address), gpu, mig))


def mig_instances(evidence: Evidence) -> Iterable[CheckResult]:
    """Compare the instances on each GPU in MIG mode with those that applied plans give to guests."""
    planned = grouped(
        (place.gpu, (place.profile, place.start)) for guest in planned_guests(evidence).values() for place in guest.mig
    )
    return _each_mig(evidence, _INSTANCES, lambda gpu, mig: _mig_instances(planned.get(gpu.address, []), gpu, mig))


def _each_mig(evidence: Evidence, fact: Fact, judge: Callable[[Gpu, Mig], CheckResult]) -> Iterable[CheckResult]:
    def judged(gpu: Gpu, device: PciDevice | None) -> CheckResult:
        if gpu.mig is not None and gpu.mig.mode is not None:
            return judge(gpu, gpu.mig)
        hint = f"nvidia-smi -i {gpu.address} -q -d MIG_MODE, or nvidia-smi -q, shows it"
        return not_judged(evidence, fact, gpu, device) or unknown(
            fact.check, gpu.address, expected=fact.expected, why="its MIG mode is not reported", hint=hint
        )

    return every_gpu(evidence, fact, judged)


def _mig_mode(want: object, gpu: Gpu, mig: Mig) -> CheckResult:
    mode = mig.mode or ""
    if mig.pending not in (None, mode):
        actual = f"{mode}, {mig.pending} pending"
        hint = f"reset the GPU (nvidia-smi --gpu-reset -i {gpu.address}), or set the mode back"
        return _MODE.warned(gpu, actual, hint)
    if want in (None, mode) and mig.pending is None:
        hint = f"nvidia-smi -i {gpu.address} -q shows Current and Pending of its MIG mode"
        why = f"{mode}; whether another mode is pending is not reported"
        return _MODE.unknown(gpu, why, hint)
    if want in (None, mode):
        return _MODE.passed(gpu, mode)
    hint = f"nvidia-smi -i {gpu.address} -mig {1 if want == 'enabled' else 0}; MIG's mode is lost with some resets"
    return _MODE.failed(gpu, mode, hint, expected=f"{want}, as planned")


def _mig_instances(planned: Sequence[tuple[str, int | None]], gpu: Gpu, mig: Mig) -> CheckResult:
    address = gpu.address
    if mig.mode != "enabled" and not planned:
        return skipped(_INSTANCES.check, address, "MIG is off, and no applied plan has instances here")
    expected = _named(planned) if planned else "instances on a GPU in MIG mode"
    if mig.mode == "enabled" and (mig.instances is None or any(one.profile is None for one in mig.instances)):
        if not planned and mig.instances:
            return _INSTANCES.passed(gpu, f"{len(mig.instances)} instances", expected=expected)
        hint = "nvidia-smi mig -lgi lists them; install NVML's bindings, or run as root"
        return unknown(_INSTANCES.check, address, expected=expected, why="not reported which they are", hint=hint)
    found = [(one.profile or "", one.start) for one in mig.instances or ()]
    actual = _named(found) if found else "none"
    if planned and not _same(planned, found):
        hint = "hosttune apply makes them again: instances are lost with every reset and reboot"
        return _INSTANCES.failed(gpu, actual, hint, expected=expected)
    if not found:
        hint = f"make instances (nvidia-smi mig -cgi), or nvidia-smi -i {address} -mig 0: nothing can use it as it is"
        return _INSTANCES.warned(gpu, actual, hint, expected=expected)
    return _INSTANCES.passed(gpu, actual, expected=expected)


def _same(planned: Sequence[tuple[str, int | None]], found: Sequence[tuple[str, int | None]]) -> bool:
    """Return whether each planned instance exists, at its start if both name one, and no other instance exists."""
    rest = list(found)
    for profile, start in planned:
        match = next((one for one in rest if one[0] == profile and None in (start, one[1])), None)
        match = next((one for one in rest if one == (profile, start)), match)
        if match is None:
            return False
        rest.remove(match)
    return not rest


def _named(instances: Sequence[tuple[str, int | None]]) -> str:
    return ", ".join(
        profile if start is None else f"{profile}@{start}" for profile, start in sorted(instances, key=str)
    )


# --- the list ------------------------------------------------------------------------------------------------


def _persistences(evidence: Evidence) -> Iterable[CheckResult]:
    return each_gpu(evidence, _PERSISTENCE, partial(_persistence, wanted(evidence, PERSISTENCE)))


def _compute_modes(evidence: Evidence) -> Iterable[CheckResult]:
    return each_gpu(evidence, _COMPUTE, partial(_compute_mode, wanted(evidence, COMPUTE_MODE)))


CHECKS: tuple[Check, ...] = (
    Check(
        _PERSISTENCE.check,
        "Persistence mode is on",
        "each GPU that its driver holds",
        "Without it the driver shuts an idle GPU down: the next start takes seconds, and limits and modes are lost",
        f"{_NVML}: nvmlDeviceSetPersistenceMode",
        _persistences,
        inside=True,
        none="GPU",
    ),
    Check(
        _COMPUTE.check,
        "Compute mode as planned, else the default",
        "each GPU that its driver holds",
        "A GPU left in a prohibited or exclusive mode refuses programs",
        f"{_NVML}: nvmlComputeMode_t",
        _compute_modes,
        inside=True,
        none="GPU",
    ),
    Check(
        _MODE.check,
        "MIG mode as planned, nothing pending",
        "each GPU that supports MIG",
        "A pending mode takes effect with the next reset, unexpectedly; MIG turns NVLink P2P off",
        f"{_NVML}: nvmlDeviceGetMigMode; {_GUIDE}",
        mig_mode,
        inside=True,
        none="GPU",
    ),
    Check(
        _INSTANCES.check,
        "MIG instances as planned",
        "each GPU in MIG mode",
        "Instances never survive a reset or reboot; a guest without its instance does not start",
        f"{_NVML}: nvmlDeviceGetGpuInstances; {_GUIDE}",
        mig_instances,
        inside=True,
        none="GPU",
    ),
    Check(
        _BUSY.check,
        "No process on the GPU",
        "each GPU that its driver holds",
        "A process of the last tenant holds memory and can read what the next one leaves",
        f"{_NVML}: nvmlDeviceGetComputeRunningProcesses",
        lambda evidence: each_gpu(evidence, _BUSY, _processes),
        inside=True,
        none="GPU",
    ),
)
