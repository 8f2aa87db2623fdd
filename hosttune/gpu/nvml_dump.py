"""What NVML tells of GPUs: raw facts that a capture can hold as one JSON text (`nvml.json`).

Nothing is interpreted here (see `nvml_facts`), and nothing is set. A failure is recorded as "ERR reason", so that one
missing function or lost GPU does not affect any other fact. NVML is never asked for a link or a profile beyond its
count: drivers of branch 580 then end some calls in a segmentation fault instead of an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ctypes import byref, c_uint
from functools import partial
from typing import Any

import msgspec

from hosttune.gpu.nvidia_links import ask_links, field_values
from hosttune.gpu.nvml_health import ask_health

# Functions that need only the device handle. Their answers are numbers, texts or short lists.
PLAIN = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetInforomImageVersion",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetVirtualizationMode",
)
UNCORRECTED, VOLATILE = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC
P2P_NVLINK = 2  # NVML_P2P_CAPS_INDEX_NVLINK
NOT_SUPPORTED = "ERR Not Supported"
# NVML_FI_DEV_NVLINK_LINK_COUNT; NVML_FI_DEV_NVLINK_GET_SPEED (a link's, Hopper on), …_SPEED_MBPS_COMMON: Mbyte/s.
LINK_COUNT, SPEED, SPEED_COMMON = 91, 164, 90


def dump_from(library: Any, addresses: Iterable[str], notes: Mapping[str, str] | None = None) -> str:
    """Return what an initialised library tells of these GPUs: pynvml's functions, of any version.

    What it lacks is recorded. `notes` are told with the facts.
    """
    nvml = _Nvml(library)
    handles = {address: nvml.ask("nvmlDeviceGetHandleByPciBusId", address) for address in addresses}
    facts: dict[str, Any] = {
        **(notes or {}),
        "driver": nvml.ask("nvmlSystemGetDriverVersion"),
        "nvml": nvml.ask("nvmlSystemGetNVMLVersion"),
    }
    for index, (address, handle) in enumerate(handles.items()):
        if failed(handle):
            facts[str(index)] = {"busId": address, "handle": handle}
            continue
        others = {other: peer for other, peer in handles.items() if other != address and not failed(peer)}
        count, own, common = field_values(nvml, handle, (LINK_COUNT, (SPEED, 0), SPEED_COMMON))
        speeds = (speed for speed in (own, common) if not failed(speed) and speed)
        facts[str(index)] = {
            "busId": address,
            **_device(nvml, handle),
            "nvlinks": count if failed(count) else _nvlinks(nvml, handle, count),
            "nvlinkSpeed": next(speeds, common if failed(common) else NOT_SUPPORTED),
            "p2pNvlink": {
                other: nvml.ask("nvmlDeviceGetP2PStatus", handle, peer, P2P_NVLINK) for other, peer in others.items()
            },
        }
    return msgspec.json.format(msgspec.json.encode(facts, enc_hook=str), indent=1).decode() + "\n"


class _Nvml:
    """The library with every call guarded: an answer is a plain value, or "ERR reason"."""

    def __init__(self, library: Any) -> None:
        self.library = library
        mismatch = getattr(library, "NVMLLibraryMismatchError", library.NVMLError)
        self._errors = (library.NVMLError, mismatch, AttributeError, TypeError, UnicodeDecodeError)

    def ask(self, name: str, *arguments: object) -> Any:
        """Call the function with that name."""
        function = getattr(self.library, name, None)
        if function is None:
            return f"ERR these bindings have no {name}"
        return self.guard(lambda: function(*arguments))

    def guard(self, call: Callable[[], Any]) -> Any:
        """Return what `call` returns, with bytes as text.

        Functions, structures and their fields differ between bindings.
        """
        try:
            answer = call()
        except self._errors as error:
            return f"ERR {error}"
        return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer

    reference = staticmethod(byref)


def failed(answer: object) -> bool:
    """Return whether an answer is a recorded failure."""
    return isinstance(answer, str) and answer.startswith("ERR ")


def _device(nvml: _Nvml, handle: object) -> dict[str, Any]:
    facts: dict[str, Any] = {name: nvml.ask(name, handle) for name in PLAIN}
    facts["nvmlDeviceGetModuleId"] = nvml.guard(partial(_module_id, nvml, handle))
    facts["nvmlDeviceGetMemoryInfo"] = nvml.guard(lambda: {"total": nvml.library.nvmlDeviceGetMemoryInfo(handle).total})
    facts["uncorrectedVolatile"] = nvml.ask("nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, VOLATILE)
    reasons = nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if failed(reasons):  # drivers before 535 lack the newer function
        older = nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        reasons = reasons if failed(older) else older
    facts["nvmlDeviceGetCurrentClocksEventReasons"] = reasons
    facts["fabricInfo"] = nvml.guard(partial(_fabric, nvml, handle))
    facts["processes"] = nvml.guard(partial(_processes, nvml, handle))
    facts["health"] = ask_health(nvml, handle)
    facts.update(_profiles(nvml, handle, facts["nvmlDeviceGetMigMode"]))
    return facts


def _module_id(nvml: _Nvml, handle: object) -> Any:
    """Return the baseboard's number for the GPU.

    The number is passed by reference, which all bindings accept. They then return NVML's code without checking it, so
    it is checked here.
    """
    number = c_uint(0)
    code = nvml.ask("nvmlDeviceGetModuleId", handle, byref(number))
    if failed(code):
        return code
    return f"ERR {nvml.ask('nvmlErrorString', code)}" if code else number.value


def _fabric(nvml: _Nvml, handle: object) -> Any:
    """Return state (nvmlGpuFabricState_t), status (nvmlReturn_t), clique: from the versioned call, or the first one."""
    answer: Any = "ERR these bindings have no fabric info"
    for function, structure in (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfoV_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    ):
        make = getattr(nvml.library, structure, None)
        if make is None:
            continue
        info = make()
        answer = nvml.ask(function, handle, byref(info))
        if not failed(answer):
            names = ("state", "status", "cliqueId", "healthMask")
            facts = {name: getattr(info, name) for name in names if hasattr(info, name)}
            return {**facts, "statusText": nvml.ask("nvmlErrorString", info.status)}
    return answer


def _processes(nvml: _Nvml, handle: object) -> Any:
    """Return how many processes use the GPU, for computing or for graphics."""
    pids: set[int] = set()
    for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"):
        running = nvml.ask(name, handle)
        if failed(running):
            return running
        pids.update(process.pid for process in running)
    return len(pids)


def _nvlinks(nvml: _Nvml, handle: object, count: int) -> Any:
    states = [nvml.ask("nvmlDeviceGetNvLinkState", handle, link) for link in range(count)]
    if all(state == NOT_SUPPORTED for state in states):
        return NOT_SUPPORTED
    active = [link for link, state in enumerate(states) if state == 1]
    counters = ask_links(nvml, handle, active)
    remotes = {link: _remote(nvml, handle, link) for link in active}
    return [
        {"link": link, "state": state, **remotes.get(link, {}), **counters.get(link, {})}
        for link, state in enumerate(states)
    ]


def _remote(nvml: _Nvml, handle: object, link: int) -> dict[str, Any]:
    return {
        "remoteType": nvml.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
        "remoteBusId": nvml.guard(lambda: nvml.library.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId),
    }


def _profiles(nvml: _Nvml, handle: object, mode: Any) -> dict[str, Any]:
    """Return GPU instance profiles as "profileN" by NVML's enumerator, with possible placements.

    Also returns the instances while MIG is on.
    """
    facts: dict[str, Any] = {}
    instances: list[dict[str, Any]] = []
    mig_on = not failed(mode) and mode[0] == 1
    profiles = 0 if mode == NOT_SUPPORTED else nvml.library.NVML_GPU_INSTANCE_PROFILE_COUNT
    for number in range(profiles):
        info = nvml.ask("nvmlDeviceGetGpuInstanceProfileInfo", handle, number)
        if failed(info):
            if info not in (NOT_SUPPORTED, "ERR Invalid Argument"):
                facts[f"profile{number}"] = info
            continue
        facts[f"profile{number}"] = {
            **{name: nvml.guard(partial(getattr, info, name)) for name, *_ in info._fields_},
            "placements": nvml.guard(partial(_placements, nvml, handle, info.id)),
        }
        if mig_on:
            of_profile = nvml.guard(partial(_instances, nvml, handle, info))
            if failed(of_profile):
                facts["migInstances"] = of_profile
            else:
                instances += of_profile
    if mig_on:
        facts.setdefault("migInstances", instances)
        facts["migUuids"] = nvml.guard(partial(_mig_uuids, nvml, handle))
    return facts


def _placements(nvml: _Nvml, handle: object, profile: int) -> Any:
    """Return [[start, size], …] in memory slices.

    The first call asks for the count, the second for the list (nvml.h).
    """
    count = c_uint(0)
    answer = nvml.ask("nvmlDeviceGetGpuInstancePossiblePlacements", handle, profile, None, byref(count))
    if failed(answer):
        return answer
    places = (nvml.library.c_nvmlGpuInstancePlacement_t * max(count.value, 1))()
    answer = nvml.ask("nvmlDeviceGetGpuInstancePossiblePlacements", handle, profile, places, byref(count))
    return answer if failed(answer) else [[place.start, place.size] for place in places[: count.value]]


def _instances(nvml: _Nvml, handle: object, profile: Any) -> Any:
    count = c_uint(0)
    instances = (nvml.library.c_nvmlGpuInstance_t * profile.instanceCount)()
    answer = nvml.ask("nvmlDeviceGetGpuInstances", handle, profile.id, instances, byref(count))
    if failed(answer):
        return answer
    found = []
    for instance in instances[: count.value]:
        info = nvml.ask("nvmlGpuInstanceGetInfo", instance)
        if failed(info):
            return info
        place = info.placement
        found.append({"id": info.id, "profileId": info.profileId, "start": place.start, "size": place.size})
    return found


def _mig_uuids(nvml: _Nvml, handle: object) -> Any:
    """Return [[GPU instance id, UUID], …] of the MIG devices.

    A GPU instance with a compute instance has such a device.
    """
    count = nvml.ask("nvmlDeviceGetMaxMigDeviceCount", handle)
    if failed(count):
        return count
    uuids = []
    for index in range(count):
        device = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if not failed(device):  # "Not Found": no device at this index
            uuids.append([nvml.ask("nvmlDeviceGetGpuInstanceId", device), nvml.ask("nvmlDeviceGetUUID", device)])
    return uuids
