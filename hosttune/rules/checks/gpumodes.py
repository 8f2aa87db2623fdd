"""Checks of GPU modes and use: persistence, compute mode, MIG with its instances, processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hosttune.gpu import hints_for
from hosttune.gpu.knobs import COMPUTE_MODE, MIG_MODE, PERSISTENCE
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu, Mig
from hosttune.rules.checks.facts import accelerators, planned_guests, wanted
from hosttune.rules.checks.gpufacts import by_driver, fact, gpu_check
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding

_GUIDE = "NVIDIA, Multi-Instance GPU user guide"
_Place = tuple[str, int | None]  # a profile and its start; None: any, or not reported


@gpu_check(
    "persistence",
    title="Persistence mode is on",
    about="each GPU that its driver holds",
    why="Without it an idle GPU shuts down: the next start takes seconds, limits and modes are lost",
    source="nvml.h: nvmlDeviceSetPersistenceMode",
    expected="enabled",
)
def persistence(on: On, gpu: Gpu) -> Finding:
    on = by_driver(on, gpu, "nvmlDeviceGetPersistenceMode")
    enabled, off = fact(on, gpu, "persistence"), wanted(on.evidence, PERSISTENCE).get(gpu.address) is False
    now = "enabled" if enabled else "disabled"
    if enabled or off:
        return on.passed(now, expected="disabled, as planned" if off else "")
    hint = "systemctl enable --now nvidia-persistenced (or nvidia-smi -pm 1): without it settings are forgotten"
    return on.warned(now, hint)


@gpu_check(
    "compute-mode",
    title="Compute mode as planned, else the default",
    about="each GPU that its driver holds",
    why="A GPU left in a prohibited or exclusive mode refuses programs",
    source="nvml.h: nvmlComputeMode_t",
    expected="default",
)
def compute_mode(on: On, gpu: Gpu) -> Finding:
    want = wanted(on.evidence, COMPUTE_MODE).get(gpu.address)
    on = by_driver(on, gpu, "nvmlDeviceGetComputeMode", f"{want}, as planned" if want else None)
    now = fact(on, gpu, "compute_mode")
    if now == (want or "default"):
        return on.passed(now)
    hint = f"nvidia-smi -i {gpu.address} -c DEFAULT"
    return on.failed(now, hint) if now == "prohibited" else on.warned(now, hint)


# Measured on H100 and H200 SXM (580.159.04): below their power limit they reach 0.93 of their clock and more.
_LEAST_CLOCK, _POWER_LIMITED = 0.85, 0.9


def _loaded(evidence: Evidence) -> Iterator[tuple[str, Gpu]]:
    seen = evidence.loaded_clocks or {}
    return ((gpu.address, gpu) for gpu in accelerators(evidence.host) if gpu.address in seen)


@check(
    "locked-clocks",
    title="No clock is locked",
    about="each GPU whose clock was read under load",
    why="A lock (nvidia-smi -lgc) stays while the driver is loaded, and NVML does not tell it",
    source="nvml.h: nvmlDeviceSetGpuLockedClocks, nvmlDeviceResetGpuLockedClocks; docs/measurements.md",
    expected="near its highest clock, unless it draws all the power that it may",
    reads="the SM clock and power while data was copied and multiplied",
    each=_loaded,
    inside=True,
)
def locked_clocks(on: On, gpu: Gpu) -> Finding:
    highest, power = (on.evidence.loaded_clocks or {})[gpu.address]
    most = on.need(gpu.sm_clock_max_mhz, "its highest SM clock", look="nvidia-smi -q -d CLOCK")
    text = f"{highest:g} of {most:g} MHz"
    if highest >= _LEAST_CLOCK * most:
        return on.passed(text)
    limit = on.need(gpu.power_limit_watts, f"{text}; its power limit", look="nvidia-smi -q -d POWER")
    text += f", with at most {power:g} of {limit:g} W"
    if power >= _POWER_LIMITED * limit:
        on.skip(f"{text}: power may have held it down")
    hint = f"nvidia-smi -i {gpu.address} --reset-gpu-clocks --reset-applications-clocks, then validate --level 1 again"
    return on.warned(text, hint)


# --- MIG -----------------------------------------------------------------------------------------------------


def _mig(on: On, gpu: Gpu) -> tuple[Mig, str]:
    """Return a GPU's MIG state, and the mode that is in force."""
    mig = gpu.mig if gpu.mig is not None and gpu.mig.mode is not None else fact(on, gpu, "mig")
    return mig, on.need(mig.mode, "its MIG mode", look=f"nvidia-smi -i {gpu.address} -q -d MIG_MODE, or nvidia-smi -q")


@gpu_check(
    "mig-mode",
    title="MIG mode as planned, nothing pending",
    about="each GPU that supports MIG",
    why="A pending mode comes with the next reset, unexpectedly; MIG turns NVLink P2P off",
    source=f"nvml.h: nvmlDeviceGetMigMode; {_GUIDE}",
    expected="as planned, and nothing pending",
)
def mig_mode(on: On, gpu: Gpu) -> Finding:
    on = by_driver(on, gpu, "nvmlDeviceGetMigMode")
    (mig, mode), want = _mig(on, gpu), wanted(on.evidence, MIG_MODE).get(gpu.address)
    if mig.pending not in (None, mode):
        hint = f"reset the GPU (nvidia-smi --gpu-reset -i {gpu.address}), or set the mode back"
        return on.warned(f"{mode}, {mig.pending} pending", hint)
    if want not in (None, mode):
        hint = f"nvidia-smi -i {gpu.address} -mig {1 if want == 'enabled' else 0}; MIG's mode is lost with some resets"
        return on.failed(mode, hint, expected=f"{want}, as planned")
    on.need(mig.pending, f"{mode}; whether another mode is pending", look=f"nvidia-smi -i {gpu.address} -q -d MIG_MODE")
    return on.passed(mode)


@gpu_check(
    "mig-instances",
    title="MIG instances as planned",
    about="each GPU in MIG mode",
    why="Instances never survive a reset or reboot; a guest without its instance does not start",
    source=f"nvml.h: nvmlDeviceGetGpuInstances; {_GUIDE}",
    expected="the planned instances",
)
def mig_instances(on: On, gpu: Gpu) -> Finding:
    mig, mode = _mig(on, gpu)
    guests = planned_guests(on.evidence).values()
    planned = [(place.profile, place.start) for guest in guests for place in guest.mig if place.gpu == gpu.address]
    if mode != "enabled" and not planned:
        on.skip("MIG is off, and no applied plan has instances here")
    expected = _text(planned) if planned else "instances on a GPU in MIG mode"
    on = by_driver(on, gpu, "nvmlDeviceGetGpuInstances", expected)
    instances = mig.instances or ()
    if mode == "enabled" and (mig.instances is None or any(instance.profile is None for instance in instances)):
        if instances and not planned:
            return on.passed(f"{len(instances)} instances")
        on.give_up("which instances it has was not read", on.look("nvidia-smi mig -lgi"))
    there = [(instance.profile or "", instance.start) for instance in instances]
    actual = _text(there) if there else "none"
    if planned and not _same(planned, there):
        return on.failed(actual, "hosttune apply makes them again: instances are lost with every reset and reboot")
    if not there:
        off = f"nvidia-smi -i {gpu.address} -mig 0"
        return on.warned(actual, f"make instances (nvidia-smi mig -cgi), or {off}: nothing can use it as it is")
    return on.passed(actual)


def _same(planned: Sequence[_Place], there: Sequence[_Place]) -> bool:
    """Return whether each planned instance exists, at its start if both name one, and no other instance exists."""
    rest = list(there)
    for profile, start in planned:
        fits = [place for place in rest if place[0] == profile and None in (start, place[1])]
        match = next((place for place in rest if place == (profile, start)), fits[0] if fits else None)
        if match is None:
            return False
        rest.remove(match)
    return not rest


def _text(places: Sequence[_Place]) -> str:
    return ", ".join(
        f"{profile}@{start}" if start is not None else profile for profile, start in sorted(places, key=str)
    )


# --- use -----------------------------------------------------------------------------------------------------


@gpu_check(
    "gpu-processes",
    title="No process on the GPU",
    about="each GPU that its driver holds",
    why="A process of the last tenant holds memory and can read what the next one leaves",
    source="nvml.h: nvmlDeviceGetComputeRunningProcesses",
    expected="none before a tenant comes",
)
def gpu_processes(on: On, gpu: Gpu) -> Finding:
    on = by_driver(on, gpu, "nvmlDeviceGetComputeRunningProcesses")
    count = fact(on, gpu, "processes")
    if not count:
        return on.passed("none")
    names = f"{hints_for(gpu).processes} names them"
    return on.warned(f"{count} use it", f"{names}: end what the last tenant left; benchmarks need the GPU idle")
