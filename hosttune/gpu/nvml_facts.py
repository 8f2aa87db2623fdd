"""NVML's raw facts (`nvml.json`) → partial GPUs. Pure: a capture gives the same facts as the live host.

"ERR reason" in place of a value means unknown. "Not Supported" is NVML's way to say that a GPU does not have the
feature. Every other reason is a doubt; all of a GPU's doubts are in one problem.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from hosttune.errors import BadInput
from hosttune.gpu.mig import compute_slices
from hosttune.gpu.nvidia_links import links_of_record
from hosttune.gpu.nvidia_words import COMPUTE_MODES, FABRIC_STATES, MOST, clock_reasons
from hosttune.gpu.nvml_health import health_facts, incomplete_fabric_masks
from hosttune.gpu.vendor import NO_ADDRESS, VendorAnswer, without_conflicting_gpus
from hosttune.model.host import Gpu, Mig, MigInstance, MigProfile, Peer, Problem
from hosttune.model.jsontext import recorded_json
from hosttune.model.limits import check_count
from hosttune.model.values import grouped, parse_address

QUERY = "nvml.json"
Raw = Mapping[str, Any]

_INDEX = re.compile(r"[0-9]{1,4}")  # the key of a GPU's entry: its index
_REMOTE_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_MODES = ("disabled", "enabled")
# A list of numbers in Python's text form, as in older records: "(0, 0, 0, 0)".
_NUMBERS = re.compile(r"[(\[]? ?-?[0-9]{1,9}(?:, ?-?[0-9]{1,9}){0,9} ?[)\]]?")


def parse_nvml(text: str, *, only: str | None = None) -> VendorAnswer:
    """Parse `nvml.json`. A GPU without "busId" (an older record) gets the address `only`, the host's single GPU.

    Raises BadInput if it is not a JSON object of that kind, has more GPUs than a host can have, or reports that NVML
    failed altogether.
    """
    document = recorded_json(text, where=QUERY)
    if not isinstance(document, dict):
        raise BadInput("not an object", where=QUERY, hint="record it again")
    if "error" in document:
        raise BadInput(f"NVML: {document['error']}", where=QUERY, hint="install the driver's NVML library")
    entries = [entry for key, entry in document.items() if _INDEX.fullmatch(key) and isinstance(entry, dict)]
    check_count(len(entries), MOST, QUERY)
    placed: list[tuple[str, Raw]] = []
    problems: list[Problem] = []
    if crashed := _text(document, "crashed"):
        problems.append(Problem(what="NVML was asked twice", where=QUERY, why=crashed))
    for entry in entries:
        address = _bus_id(entry, only if len(entries) == 1 else None)
        if address is None:
            problems.append(Problem(what=NO_ADDRESS, where=QUERY, why="it joins no PCI function"))
        elif address in _part(entry, "p2pNvlink"):  # the paths to other GPUs
            why = f"{address} has a path to {address}: which of them it is is not known"
            problems.append(Problem(what=NO_ADDRESS, where=QUERY, why=why))
        else:
            placed.append((address, entry))
    raw = dict(placed)
    driver = _text(document, "driver")
    # A GPU that occurs twice with different facts gives no information about the paths to it.
    host = _GpuEntries({address: {} for address, entry in placed if entry != raw[address]}, raw)
    gpus = tuple(_gpu(address, entry, driver, host) for address, entry in placed)
    hazy = incomplete_fabric_masks(raw)
    gpus = tuple(
        msgspec.structs.replace(gpu, fabric_health=None, fabric_status=None)
        if gpu.address in hazy and not gpu.fabric_health
        else gpu
        for gpu in gpus
    )
    problems += [doubt for address, entry in raw.items() if (doubt := _doubt(address, entry))]
    return without_conflicting_gpus(VendorAnswer(gpus=gpus, problems=tuple(problems)), QUERY)


def _bus_id(entry: Raw, fallback: str | None) -> str | None:
    try:
        return parse_address(str(entry["busId"]), where=QUERY) if "busId" in entry else fallback
    except BadInput:
        return None


def _text(raw: Raw, name: str) -> str | None:
    value = raw.get(name)
    return value if isinstance(value, str) and value and not value.startswith("ERR ") else None


def _integer(raw: Raw, name: str) -> int | None:
    value = raw.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _integers(raw: Raw, name: str, count: int) -> tuple[int, ...] | tuple[None, ...]:
    """Return a list of `count` numbers, also from Python's text form; otherwise all None."""
    value = raw.get(name)
    if isinstance(value, str) and not value.startswith("ERR "):
        value = [int(number) for number in re.findall(r"-?[0-9]+", value)] if _NUMBERS.fullmatch(value) else None
    if isinstance(value, list) and len(value) == count and all(type(n) is int and n >= 0 for n in value):
        return tuple(value)
    return (None,) * count


def _part(raw: Raw, name: str) -> Raw:
    value = raw.get(name)
    return value if isinstance(value, dict) else {}


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _flag(number: int | None) -> bool | None:
    return {0: False, 1: True}.get(-1 if number is None else number)


def _word(words: tuple[str | None, ...], number: int | None) -> str | None:
    return words[number] if number is not None and 0 <= number < len(words) else None


def _gpu(address: str, raw: Raw, driver: str | None, host: _GpuEntries) -> Gpu:
    """Return one GPU's facts.

    NVML reports milliwatts and bytes; module id 0 means a card that is not on a baseboard.
    """
    reasons = _integer(raw, "nvmlDeviceGetCurrentClocksEventReasons")
    fabric = _part(raw, "fabricInfo")
    state = _word(FABRIC_STATES, _integer(fabric, "state"))
    speed = _integer(raw, "nvlinkSpeed")
    return Gpu(
        address=address,
        model=_text(raw, "nvmlDeviceGetName"),
        memory_bytes=_integer(_part(raw, "nvmlDeviceGetMemoryInfo"), "total"),
        uuid=_text(raw, "nvmlDeviceGetUUID"),
        serial=_text(raw, "nvmlDeviceGetSerial"),
        module_id=_integer(raw, "nvmlDeviceGetModuleId") or None,
        mig=_mig(raw),
        peers=_peers(address, host),
        driver_version=driver,
        firmware_version=_text(raw, "nvmlDeviceGetVbiosVersion"),
        inforom_version=_text(raw, "nvmlDeviceGetInforomImageVersion"),
        nvlinks_active=None if (links := host.links.get(address)) is None else len(links),
        nvlink_gb_per_s=None if speed is None else speed / 1000,
        nvlinks=None if links is None else links_of_record(raw.get("nvlinks"), speed),
        fabric_state=state,
        fabric_status=_fabric_status(fabric) if state == "completed" else None,
        persistence=_flag(_integer(raw, "nvmlDeviceGetPersistenceMode")),
        compute_mode=_word(COMPUTE_MODES, _integer(raw, "nvmlDeviceGetComputeMode")),
        clock_reasons=None if reasons is None else clock_reasons(reasons),
        pcie_max_generation=_integer(raw, "nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_gpu_max_generation=_integer(raw, "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        pcie_generation=_integer(raw, "nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_width=_integer(raw, "nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_max_width=_integer(raw, "nvmlDeviceGetMaxPcieLinkWidth"),
        processes=_integer(raw, "processes"),
        **_power_limits(raw),
        **_memory_protection(raw),
        **health_facts(raw),
    )


def _power_limits(raw: Raw) -> dict[str, Any]:
    low, high = _integers(raw, "nvmlDeviceGetPowerManagementLimitConstraints", 2)
    return {
        "power_limit_watts": _watts(_integer(raw, "nvmlDeviceGetPowerManagementLimit")),
        "power_default_watts": _watts(_integer(raw, "nvmlDeviceGetPowerManagementDefaultLimit")),
        "power_min_watts": _watts(low),
        "power_max_watts": _watts(high),
    }


def _memory_protection(raw: Raw) -> dict[str, Any]:
    correctable, uncorrectable, pending, failure = _integers(raw, "nvmlDeviceGetRemappedRows", 4)
    ecc, ecc_pending = _integers(raw, "nvmlDeviceGetEccMode", 2)
    return {
        "ecc": _flag(ecc),
        "ecc_pending": _flag(ecc_pending),
        "ecc_uncorrected": _integer(raw, "uncorrectedVolatile"),
        "remapped_pending": _flag(pending),
        "remapped_failed": _flag(failure),
        "remapped_uncorrectable": uncorrectable,
        "remapped_correctable": correctable,
    }


def _fabric_status(fabric: Raw) -> str | None:
    """Return "success", or the reason in NVML's words. It has a meaning only after the state is completed (nvml.h)."""
    return "success" if _integer(fabric, "status") == 0 else (_text(fabric, "statusText") or "unknown").casefold()


# --- MIG ---------------------------------------------------------------------------------------------------------


def _mig(raw: Raw) -> Mig | None:
    """Return mode, profiles with placements, and instances; None if the GPU does not support MIG.

    If MIG is off but there are instances, the mode is unknown.
    """
    current, pending = (_word(_MODES, mode) for mode in _integers(raw, "nvmlDeviceGetMigMode", 2))
    if raw.get("migInstances") or raw.get("migUuids"):
        current = current if current == "enabled" else None
    names = sorted((key for key in raw if re.fullmatch(r"profile[0-9]{1,2}", key)), key=lambda key: int(key[7:]))
    profiles = tuple(profile for name in names if (profile := _profile(_part(raw, name))))
    if current is None and not profiles:
        return None
    instances: tuple[MigInstance, ...] | None = () if current == "disabled" else None
    if isinstance(listed := raw.get("migInstances"), list):
        instances = tuple(_instance(entry, raw, profiles) for entry in listed if isinstance(entry, dict))
    return Mig(mode=current, pending=pending, profiles=profiles or None, instances=instances)


def _profile(raw: Raw) -> MigProfile | None:
    name = _text(raw, "name")
    if name is None:
        return None
    name = name.removeprefix("MIG ")
    mebibytes = _integer(raw, "memorySizeMB")
    places = raw.get("placements")
    known = [place for place in places if _is_place(place)] if isinstance(places, list) else []
    return MigProfile(
        name=name,
        id=_integer(raw, "id"),
        memory_bytes=None if mebibytes is None else mebibytes << 20,
        compute_slices=compute_slices(name) or _integer(raw, "sliceCount"),
        multiprocessors=_integer(raw, "multiprocessorCount"),
        max_instances=_integer(raw, "instanceCount"),
        starts=tuple(sorted(place[0] for place in known)) or None,
        size=known[0][1] if known else None,
    )


def _is_place(place: object) -> bool:
    return isinstance(place, list) and len(place) == 2 and all(isinstance(number, int) for number in place)


def _instance(entry: Raw, raw: Raw, profiles: tuple[MigProfile, ...]) -> MigInstance:
    number = _integer(entry, "id")
    uuids = raw.get("migUuids")
    pairs = [pair for pair in uuids if isinstance(pair, list) and len(pair) == 2] if isinstance(uuids, list) else []
    return MigInstance(
        profile=next((profile.name for profile in profiles if profile.id == entry.get("profileId")), None),
        id=number,
        start=_integer(entry, "start"),
        size=_integer(entry, "size"),
        uuid=next((str(uuid) for owner, uuid in pairs if owner == number), None),
    )


# --- NVLink ------------------------------------------------------------------------------------------------------


def _links(raw: Raw) -> list[Raw] | None:
    """Return the active links; None if unknown. "Not Supported" means none, except under MIG, which hides them.

    A list is complete if it has each number from 0 on once, with a state that is up (1) or down (0).
    """
    links = raw.get("nvlinks")
    if isinstance(links, list):
        states = {_integer(link, "link"): _integer(link, "state") for link in links if isinstance(link, dict)}
        whole = bool(links) and len(states) == len(links) and set(states) == set(range(len(links)))
        if not whole or not set(states.values()) <= {0, 1}:
            return None
        return [link for link in links if link["state"] == 1]
    current, _ = _integers(raw, "nvmlDeviceGetMigMode", 2)
    return [] if links == "ERR Not Supported" and current != 1 else None


class _LinkEnds(NamedTuple):
    """The remote ends of a GPU's active links: how many lead to each GPU, and how many to a switch."""

    gpus: Mapping[str, int]
    switch: int
    unnamed: int  # all links that do not lead to a GPU of the record


class _GpuEntries:
    """The entries of all GPUs by address, and the remote ends of their links, each read once."""

    def __init__(self, doubted: Mapping[str, Raw], raw: Mapping[str, Raw]) -> None:
        self.raw: Mapping[str, Raw] = {**raw, **doubted}
        self.addresses = sorted(self.raw)
        # GPUs of one model have the same number of links. A list that is shorter than another GPU's has lost some.
        counts = grouped((_text(entry, "nvmlDeviceGetName"), _listed(entry)) for entry in self.raw.values())
        whole = {
            address: _listed(entry) in (0, max(counts[_text(entry, "nvmlDeviceGetName")]))
            for address, entry in self.raw.items()
        }
        self.links = {address: _links(entry) if whole[address] else None for address, entry in self.raw.items()}
        self.ends = {address: _ends(links, self.raw) for address, links in self.links.items()}


def _peers(address: str, host: _GpuEntries) -> tuple[Peer, ...] | None:
    """Return every other GPU that NVML sees, by address; None if one of the paths is unknown."""
    peers: list[Peer] = []
    for other in host.addresses:
        if other == address:
            continue
        path = _path(address, other, host)
        if path is None:
            return None
        peers.append(Peer(address=other, kind=path[0], links=path[1]))
    return tuple(peers)


def _path(one: str, other: str, host: _GpuEntries) -> tuple[str, int | None] | None:
    """Return the path between two GPUs: ("nvlink", links) or ("pcie", None); None if unknown.

    NVLink P2P status 0 is OK. Any other status means that the links, if there are any, carry no traffic between the two
    (MIG, no common fabric partition). Both GPUs report the same status: if one says OK and the other not, the path is
    unknown; if only one is known, it counts for both. If neither is known, links alone do not prove that they carry
    traffic. Behind an NVSwitch, the number of links is that of the GPU with fewer links. If the remote ends are hidden
    (in a guest), OK without a direct link proves that there is a switch in between.
    """
    both = (_integer(_part(host.raw[a], "p2pNvlink"), b) for a, b in ((one, other), (other, one)))
    statuses = {status == 0 for status in both if status is not None}
    if len(statuses) > 1:
        return None
    if statuses == {False}:
        return "pcie", None
    first, second = host.ends[one], host.ends[other]
    if first is None or second is None:
        return ("nvlink", None) if statuses else None
    if not statuses:
        return None if all(ends.gpus or ends.unnamed for ends in (first, second)) else ("pcie", None)
    if direct := first.gpus.get(other, 0):
        return "nvlink", direct
    return "nvlink", min(first.switch, second.switch) or min(first.unnamed, second.unnamed) or None


def _listed(raw: Raw) -> int:
    """Return how many links are listed, up or down."""
    links = raw.get("nvlinks")
    return len(links) if isinstance(links, list) else 0


def _ends(links: list[Raw] | None, host: Mapping[str, Raw]) -> _LinkEnds | None:
    """Return the remote ends of the active links; None if unknown.

    If NVML does not name the remote end, or names a GPU that is not in the record (asleep, on vfio-pci), the link is
    counted as `unnamed`.
    """
    if links is None:
        return None
    others = [link for link in links if link.get("remoteType") != _REMOTE_SWITCH]
    named = (_bus_id({"busId": link.get("remoteBusId")}, None) for link in others)
    gpus = Counter(address for address in named if address is not None and address in host)
    return _LinkEnds(gpus, len(links) - len(others), len(links) - sum(gpus.values()))


# --- doubts ------------------------------------------------------------------------------------------------------


def _doubt(address: str, raw: Raw) -> Problem | None:
    """Return a problem with the facts that NVML failed to report, except those that the GPU does not have."""
    values = ((name, value) for name, value in raw.items() if name != "health")
    failures = grouped((reason, name) for name, value in values for reason in _failures(value))
    if not failures:
        return None
    why = "; ".join(f"{reason}: {', '.join(dict.fromkeys(names))}" for reason, names in failures.items())
    return Problem(what="NVML facts unknown", where=address, why=why)


def _failures(value: object) -> list[str]:
    """Return the reasons in one answer. "Not Supported" is not a failure."""
    if isinstance(value, str):
        return [value[4:]] if value.startswith("ERR ") and value != "ERR Not Supported" else []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [reason for part in parts if isinstance(part, (str, dict, list)) for reason in _failures(part)]
