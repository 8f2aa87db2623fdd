"""Settings of NVIDIA GPUs that the `nvidia` driver holds, through NVML. Each call is for one GPU, by PCI address.

Functions and their meaning: nvml.h. Settings are read with `nvidia-smi -i ADDRESS --query-gpu` and not with NVML in
this process, for three reasons: a command that hangs in the driver can be abandoned; an NVML handle keeps /dev/nvidiaN
open, and a GPU whose device file is open cannot be given to vfio-pci; and NVML starts threads, after which a fork is
unsafe. It takes as long as NVML in a forked child (22 ms each on an H200).

A scratch root keeps a new value as `.hosttune/commands/FUNCTION-ADDRESS`. Settings that were not changed there are as
recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hosttune.errors import BadInput, CommandFailed, Unreadable, WriteFailed
from hosttune.gpu.knobs import COMPUTE_MODE, ECC, MIG_MODE, PERSISTENCE, POWER_LIMIT, Knobs
from hosttune.gpu.nvidia_smi import QUERY_FIELDS, parse_smi_query, parse_smi_text, parse_smi_xml
from hosttune.gpu.nvidia_words import COMPUTE_MODES
from hosttune.gpu.nvml import Asking
from hosttune.gpu.nvml_facts import parse_nvml
from hosttune.gpu.vendor import VendorAnswer, fill
from hosttune.machine.system import System
from hosttune.model.gpu import Gpu, Mig

SECONDS_TO_ANSWER = 20.0
_NVML = "nvml.json"
_MODES = ("disabled", "enabled")  # NVML_DEVICE_MIG_DISABLE, NVML_DEVICE_MIG_ENABLE
_RESET_REQUIRED, _IN_USE = 16, 19  # NVML_ERROR_RESET_REQUIRED, NVML_ERROR_IN_USE


# --- reading -----------------------------------------------------------------------------------------------------


def facts(system: System, address: str) -> Gpu:
    """Return the current settings of a GPU. See Knobs."""
    argv = ("nvidia-smi", "-i", address, f"--query-gpu={','.join(QUERY_FIELDS)}", "--format=csv,noheader,nounits")
    try:
        text = system.query(f"nvidia-smi-query-{address}", lambda: system.run(argv, timeout=SECONDS_TO_ANSWER))
        gpu = _recorded(system, address, _not_asked) if text is None else parse_smi_query(text, address)
    except CommandFailed as error:
        reason = error.output.strip().splitlines()[:1]  # "No devices were found"
        raise Unreadable(f"GPU {address} (nvidia-smi)", ": ".join((error.reason, *reason))) from error
    except BadInput as error:
        raise Unreadable(f"GPU {address} (nvidia-smi)", error.what) from error
    return with_recorded_settings(system, gpu)


def _recorded(system: System, address: str, ask_nvml: Callable[[], str | None]) -> Gpu:
    """Return a GPU as a capture holds it, or as `ask_nvml` reports it live; empty if neither has it."""
    gpu = Gpu(address=address)
    sources: tuple[tuple[str, Callable[[], str | None], Callable[[str], VendorAnswer]], ...] = (
        (_NVML, ask_nvml, parse_nvml),
        ("nvidia-smi-q-x", _not_asked, parse_smi_xml),
        ("nvidia-smi-q", _not_asked, parse_smi_text),
    )
    for name, live, parse in sources:
        text = system.query(name, live)
        if text is None:
            continue
        with contextlib.suppress(BadInput):  # the library failed in this record; try the next one
            gpu = fill(gpu, parse(text).by_address().get(address, gpu))
    return gpu


def _not_asked() -> None:
    """Answer nothing live: only recorded answers are used."""


def with_recorded_settings(system: System, gpu: Gpu) -> Gpu:
    """Return `gpu` with the settings that were changed on a scratch root; the same GPU on any other system."""
    for function, change in _CHANGES.items():
        text = system.query(f"{function}-{gpu.address}", _not_asked)
        if text is not None and text.isascii() and text.isdecimal() and len(text) < 10:
            gpu = msgspec.structs.replace(gpu, **change(gpu, int(text)))
    return gpu


def _mig_of_mode(gpu: Gpu, mode: int) -> dict[str, Any]:
    word = _MODES[mode == 1]
    return {"mig": msgspec.structs.replace(gpu.mig or Mig(), mode=word, pending=word)}


_CHANGES: Mapping[str, Callable[[Gpu, int], dict[str, Any]]] = {
    "nvmlDeviceSetPersistenceMode": lambda _, mode: {"persistence": mode == 1},
    "nvmlDeviceSetPowerManagementLimit": lambda _, milliwatts: {"power_limit_watts": milliwatts / 1000},
    "nvmlDeviceSetComputeMode": lambda _, mode: {"compute_mode": COMPUTE_MODES[mode % len(COMPUTE_MODES)]},
    "nvmlDeviceSetEccMode": lambda _, mode: {"ecc_pending": mode == 1},  # "takes effect after the next reboot"
    "nvmlDeviceSetMigMode": _mig_of_mode,
}


# --- writing -----------------------------------------------------------------------------------------------------


def call_nvml(library: Any, function: str, address: str, number: int) -> int | None:
    """Call a function of NVML (pynvml, any version) on one GPU. Returns what it returns. Raises WriteFailed.

    The library is closed at once: an open handle would keep the GPU from its next driver.
    """
    errors = (library.NVMLError, getattr(library, "NVMLLibraryMismatchError", library.NVMLError))
    where = f"{function} of {address}"
    setter = getattr(library, function, None)
    if setter is None:
        raise WriteFailed(where, "these bindings of NVML have no such function")
    try:
        library.nvmlInit()
        try:
            answer = setter(library.nvmlDeviceGetHandleByPciBusId(address), number)
        finally:
            with contextlib.suppress(*errors):  # the value is set already
                library.nvmlShutdown()
    except errors as error:
        raise WriteFailed(where, f"NVML: {error}") from error
    return answer if isinstance(answer, int) else None


def _tell(system: System, function: str, address: str, number: int) -> int | None:
    """Make the call on a live host; on a scratch root, record its value. Returns what the function returned."""
    answers: list[int | None] = []

    def live() -> None:
        try:
            import pynvml
        except ImportError as error:
            raise WriteFailed(f"{function} of {address}", "NVML's bindings (nvidia-ml-py) are missing") from error
        answers.append(call_nvml(pynvml, function, address, number))

    system.tell(f"{function}-{address}", str(number), live)
    return answers[0] if answers else None


def _set_persistence(system: System, address: str, wanted: Any) -> None:
    """Set the persistence mode. Takes effect at once; "not persistent across reboots"."""
    _tell(system, "nvmlDeviceSetPersistenceMode", address, int(wanted))


def _set_power_limit(system: System, address: str, watts: Any) -> None:
    """Set the power limit (NVML takes milliwatts); "not persistent across reboots or driver unloads"."""
    _tell(system, "nvmlDeviceSetPowerManagementLimit", address, round(watts * 1000))


def _set_compute_mode(system: System, address: str, mode: Any) -> None:
    """Set the compute mode. Takes effect at once.

    "If MIG is enabled on a GPU, device must be MIG device handle": then the GPU itself has no compute mode.
    """
    mig = facts(system, address).mig
    if mig is not None and mig.mode == "enabled":
        raise WriteFailed(f"the compute mode of {address}", "MIG is enabled: each MIG device has a mode of its own")
    _tell(system, "nvmlDeviceSetComputeMode", address, COMPUTE_MODES.index(mode))


def _set_ecc(system: System, address: str, wanted: Any) -> str:
    """Set the pending ECC mode; it "takes effect after the next reboot"."""
    check_idle(system, address, "ECC mode")
    _tell(system, "nvmlDeviceSetEccMode", address, int(wanted))
    return "kept by the GPU; takes effect with its next reset or the next boot"


def _set_mig_mode(system: System, address: str, mode: Any) -> str | None:
    """Set the MIG mode.

    The driver "may unbind or reset the device to activate the requested mode"; else it stays pending.
    """
    check_idle(system, address, "MIG mode")
    return activation(_tell(system, "nvmlDeviceSetMigMode", address, _MODES.index(mode)))


def activation(status: int | None) -> str | None:
    """Return what the activation status of nvmlDeviceSetMigMode means (nvmlReturn_t).

    None if it is success or unknown.
    """
    if not status:
        return None
    if status == _RESET_REQUIRED:
        return "pending: the GPU cannot be reset from here; it takes effect with a reset or the next boot"
    if status == _IN_USE:
        return "pending: the GPU is in use; stop what uses it and apply again"
    return f"not activated: NVML answered {status} (nvmlReturn_t)"


def check_idle(system: System, address: str, what: str) -> None:
    """Refuse a change that needs a reset while processes or GPU instances use the GPU. Raises WriteFailed.

    Also refuses if that is unknown, because running work would be lost. Asks NVML, which also reports instances without
    a device.
    """
    gpu = with_recorded_settings(system, _recorded(system, address, lambda: Asking((address,)).answer()))
    where = f"the {what} of {address}"
    if gpu.processes is None:
        raise WriteFailed(where, "whether processes use the GPU is unknown")
    if gpu.processes:
        raise WriteFailed(where, f"{gpu.processes} processes use the GPU: stop them first")
    if gpu.mig is None or gpu.mig.mode != "enabled":
        return
    if gpu.mig.instances is None:
        raise WriteFailed(where, "whether GPU instances exist is unknown")
    if gpu.mig.instances:
        raise WriteFailed(where, f"{len(gpu.mig.instances)} GPU instances exist: destroy them first")


NVIDIA_KNOBS = Knobs(
    driver="nvidia",
    facts=facts,
    writers={
        PERSISTENCE: _set_persistence,
        POWER_LIMIT: _set_power_limit,
        COMPUTE_MODE: _set_compute_mode,
        ECC: _set_ecc,
        MIG_MODE: _set_mig_mode,
    },
)
