"""System → NVIDIA's Fabric Manager on this host: installed, running, version, mode and partitions. Read only.

A capture must hold its configuration and the answers `fabric-manager-service`, `fabric-manager-version` and
`fabric-manager-partitions`. It must also hold `kept-gpus`: facts of GPUs that were saved before vfio-pci took the GPUs,
because their module ids cannot be read any more. (On a scratch root they are in its own state.)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from hosttune.errors import BadInput, CommandFailed
from hosttune.gpu import nvswitches, vendor_of
from hosttune.gpu.boards import board_of, has_fabric
from hosttune.gpu.fmpm import LIST, ask_list, parse_partitions
from hosttune.machine.reader import Reader
from hosttune.machine.system import KEPT_GPUS, state_in
from hosttune.model.gpu import FabricManager
from hosttune.model.host import Fabric, FabricPartition, Gpu, Host, PciDevice
from hosttune.model.index import DeviceIndex, is_another
from hosttune.model.jsontext import recorded_json
from hosttune.model.values import MAX_ID, grouped

# Fabric Manager user guide, "Fabric Manager Config Options".
CONFIG = nvswitches.MANAGER_CONFIG
SERVICE = nvswitches.MANAGER_SERVICE
_PROGRAM = "/usr/bin/nv-fabricmanager"
_QUERIES: Mapping[str, tuple[str, ...]] = {
    "fabric-manager-service": ("systemctl", "show", SERVICE, "--property=LoadState,ActiveState"),
    "fabric-manager-version": (_PROGRAM, "--version"),
}
_KEPT = "kept-gpus"
_DEFAULT_MODE = 0  # FABRIC_MODE if the file does not set it
_SHARED = (1, 2)  # the modes that have partitions


def read_fabric_manager(reader: Reader, host: Host) -> FabricManager | None:
    """Return the Fabric Manager of this host; None if no NVIDIA GPU or NVSwitch could need one.

    Unknown fields are None.
    """
    if not host.nvswitches and not any(vendor.fabric for gpu in host.gpus if (vendor := vendor_of(gpu.vendor))):
        return None
    state, loaded = _service(reader)
    installed = _installed(reader, loaded)
    mode = _mode(reader)
    running = None if state is None else state == "active"
    return FabricManager(
        installed=installed,
        running=running,
        state=state,
        version=_version(reader) if installed is not False else None,
        mode=mode,
        active_partitions=_active(reader, host) if running and mode in _SHARED else None,
    )


def _active(reader: Reader, host: Host) -> tuple[int, ...] | None:
    """Return the ids of the active partitions. If discovery found a fabric, it has already asked for them."""
    listed = host.fabric.partitions if host.fabric else _partitions(reader)
    return None if listed is None else tuple(partition.id for partition in listed if partition.active)


def _installed(reader: Reader, loaded: str | None) -> bool | None:
    """Return whether its service, configuration or program is installed.

    None, in a capture, if none of them is there and systemd could not be asked.
    """
    if loaded == "loaded" or reader.exists(CONFIG) or reader.exists(_PROGRAM):
        return True
    return False if loaded == "not-found" or not reader.system.captured else None


def _service(reader: Reader) -> tuple[str | None, str | None]:
    """Return systemd's ActiveState and LoadState of the service (systemctl(1)).

    None if systemd cannot be asked, or if the output has the line more than once with different values.
    """
    text = _ask(reader, "fabric-manager-service") or ""
    words = grouped((name, word) for name, _, word in (line.partition("=") for line in text.splitlines()))
    return _only(words.get("ActiveState", ())), _only(words.get("LoadState", ()))


def _only(words: Collection[str]) -> str | None:
    """Return the only word; None if there is none, or if there are several different ones."""
    different = set(words)
    return (different.pop() or None) if len(different) == 1 else None


def _version(reader: Reader) -> str | None:
    """Return the version that `nv-fabricmanager --version` prints ("Fabric Manager version is : 535.161.08").

    None if it prints several different versions.
    """
    return _only(
        re.findall(
            r"Fabric Manager version is\s*:\s*([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})\b",
            _ask(reader, "fabric-manager-version") or "",
        )
    )


def _mode(reader: Reader) -> int | None:
    """Return FABRIC_MODE of the configuration on disk.

    A daemon that was started before the file was edited still runs with the old mode.
    """
    text = reader.text(CONFIG)
    if text is None:
        return None
    modes = re.findall(r"^[ \t]*FABRIC_MODE[ \t]*=[ \t]*(.*?)[ \t\r]*$", text, re.MULTILINE)
    if not modes:
        return _DEFAULT_MODE
    if modes[-1] in ("0", "1", "2"):
        return int(modes[-1])
    reader.problem("not a FABRIC_MODE", CONFIG, f"reads {modes[-1][:40]!r}")
    return None


def read_fabric(reader: Reader, host: Host) -> Fabric | None:
    """Return the fabric as its Fabric Manager reports it; None if this host has no known fabric.

    The list of partitions is read if there can be partitions (modes 1 and 2, the daemon running), or if it was
    recorded. Addresses and UUIDs in it are ignored: they are empty on H100 and later, and the daemon may run on another
    machine (a service VM). The module id connects a partition to its GPUs.
    """
    if not has_fabric(host):
        return None
    board, mode = board_of(host), _mode(reader)
    active = reader.system.captured or (mode in _SHARED and _service(reader)[0] == "active")
    partitions = _partitions(reader) if active else None
    return Fabric(
        mode=mode,
        partitions=partitions,
        generation=board.generation if board else None,
        source="fmpm -l" if partitions is not None else CONFIG if mode is not None else None,
    )


def _partitions(reader: Reader) -> tuple[FabricPartition, ...] | None:
    """Return the partitions that `fmpm -l` lists, by id; None if it does not answer or its output is not understood."""
    text = _ask(reader, LIST)
    if text is None:
        return None
    try:
        return parse_partitions(text)
    except ValueError:
        reader.problem("partitions not understood", "fmpm -l", f"reads {text[:60]!r}")
        return None


# --- saved module ids ------------------------------------------------------------------------------------------


def recall_modules(reader: Reader, pci: tuple[PciDevice, ...], gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Return the GPUs, with saved module ids for those whose module id cannot be read now.

    The ids were saved when vfio-pci took the GPUs. A module id is a place on the baseboard, so it belongs to a slot:
    the address and all PCI ids must equal the saved ones, and serial numbers and UUID too where both are known. A
    module id that another GPU has as well is left out, with a problem.
    """
    index = DeviceIndex(pci, gpus)
    asked = [gpu for gpu in gpus if gpu.module_id is None and _may_have_module(gpu, index.pci.get(gpu.address))]
    if not asked:
        return gpus
    kept = kept_gpus(reader)
    modules = ((gpu.address, _kept_module(kept.get(gpu.address), index.identity(gpu.address))) for gpu in asked)
    module_of = {address: module for address, module in modules if module is not None}
    uses = Counter([*module_of.values(), *(gpu.module_id for gpu in gpus)])
    doubted = {address for address, module in module_of.items() if uses[module] > 1}
    for address in sorted(doubted):
        reader.problem(
            "module id not unique", address, f"{module_of[address]} was kept for it, and another GPU has it too"
        )
    return tuple(
        msgspec.structs.replace(gpu, module_id=module_of[gpu.address], module_id_source="kept before vfio-pci took it")
        if gpu.address in module_of.keys() - doubted
        else gpu
        for gpu in gpus
    )


def _may_have_module(gpu: Gpu, function: PciDevice | None) -> bool:
    vendor = vendor_of(gpu.vendor)
    return bool(vendor and vendor.fabric and function and not function.physfn and function.driver != vendor.driver)


def kept_gpus(reader: Reader) -> Mapping[str, Any]:
    """Return what apply saved of GPUs, by address (`settings.drivers.identities`).

    A bad file is a problem, not an error.
    """
    system = reader.system
    path = f"{state_in(system)}/{KEPT_GPUS}"
    text = reader.text(path) if system.scratch else reader.query(_KEPT, lambda: reader.text(path))
    if not text:
        return {}
    try:
        recorded = recorded_json(text, where=path)
    except BadInput:
        recorded = None
    if isinstance(recorded, dict):
        return recorded
    reader.problem("identities of GPUs not understood", path, f"reads {text[:60]!r}")
    return {}


def _kept_module(record: object, now: Mapping[str, str]) -> int | None:
    if not isinstance(record, dict) or record.get("device") != now.get("device") or is_another(record, now):
        return None
    module = record.get("module_id")
    return module if isinstance(module, int) and 0 < module <= MAX_ID else None


# --- running the tools -----------------------------------------------------------------------------------------


def _ask(reader: Reader, name: str) -> str | None:
    """Return a command's answer, recorded or live; None if the tool is not installed or fails."""

    def live() -> str | None:
        try:
            if name == LIST:
                return ask_list(reader.system, reader.text(CONFIG))
            return reader.system.run(_QUERIES[name], timeout=10.0)
        except CommandFailed as error:
            if error.reason != "not installed":
                reader.problem("Fabric Manager did not answer", " ".join(error.argv), error.reason)
            return None

    return reader.query(name, live)
