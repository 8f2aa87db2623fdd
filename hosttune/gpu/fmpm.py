"""The partitions of NVIDIA's Fabric Manager as its client `fmpm` lists them, and how hosttune names one as a setting.

Source: NVIDIA/Fabric-Manager-Client, README.md and fmpm.cpp (listPartitions); nv_fm_types.h: physicalId is the module
id. Addresses and UUIDs in the list are ignored: they are empty on H100 and later. The list is read for discovery and by
the setting; a capture holds it as the answer `LIST`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from hosttune.errors import BadInput, CommandFailed, Unreadable
from hosttune.gpu.nvswitches import MANAGER_CONFIG
from hosttune.machine.system import System
from hosttune.model.host import FabricPartition
from hosttune.model.jsontext import recorded_json
from hosttune.model.values import MAX_ID, is_address

LIST = "fabric-manager-partitions"
KIND, INACTIVE = "fabric-partition", "inactive"
_ACTIVE = "active: modules "
_LISTENS = re.compile(r"(?m)^[ \t]*(FM_CMD_UNIX_SOCKET_PATH|FM_CMD_BIND_INTERFACE)[ \t]*=[ \t]*(\S+)")
_SOCKET, _ADDRESS = r"/[\w./-]{1,200}", r"[0-9A-Fa-f.:]{2,45}"
_SECONDS = 10.0
# fmReturn_t of nv_fm_types.h, in words; what each means of partitions: user guide, "Partition Life Cycle Errors".
_RETURNED = {
    -1: "there is no such partition",
    -3: "its FABRIC_MODE does not have this",
    -4: "the partition is not active",
    -5: "it timed out: try again",
    -7: "the partition, or one that shares GPUs with it, is active: fmpm -l",
    -8: "it is still starting, or was started with FABRIC_MODE_RESTART=1: fmpm --set-activated-list, within 60 seconds",
    -9: "it does not run or listens elsewhere: systemctl status nvidia-fabricmanager",
    -10: "a GPU of it does not answer, or was not reset since the Fabric Manager's start",
}


def client(config: str | None) -> tuple[str, ...]:
    """Return the command `fmpm`, with the daemon's socket or address if its configuration sets one.

    A socket is preferred to an address (README.md).
    """
    settings = dict(_LISTENS.findall(config or ""))
    socket, address = settings.get("FM_CMD_UNIX_SOCKET_PATH", ""), settings.get("FM_CMD_BIND_INTERFACE", "")
    if re.fullmatch(_SOCKET, socket):
        return ("fmpm", "--unix-domain-socket", socket)
    return ("fmpm", "--hostname", address) if re.fullmatch(_ADDRESS, address) else ("fmpm",)


def ask_list(system: System, config: str | None) -> str | None:
    """Return the list, recorded or live; None if it was not recorded. Raises CommandFailed."""
    return system.query(LIST, lambda: system.run((*client(config), "-l"), timeout=_SECONDS))


def answer_of(error: CommandFailed) -> str:
    """Return what a command of `fmpm` that failed has said."""
    said = " ".join(error.output.split())
    number = re.search(r"fmReturn: (-[0-9]{1,2})\b", said)
    words = _RETURNED.get(int(number[1]) if number else -9 if "Failed to connect" in said else 0)
    return ": ".join(part for part in (error.reason, said[:200], words) if part)


def partitions_now(system: System) -> tuple[FabricPartition, ...]:
    """Return the partitions that the Fabric Manager lists now. Raises Unreadable."""
    try:
        text = ask_list(system, system.read(MANAGER_CONFIG))
    except CommandFailed as error:
        raise Unreadable("fmpm -l", answer_of(error)) from error
    if text is None:
        raise Unreadable("fmpm -l", "not recorded")
    try:
        return parse_partitions(text)
    except ValueError as error:
        raise Unreadable("fmpm -l", f"reads {text[:60]!r}") from error


def parse_partitions(text: str) -> tuple[FabricPartition, ...]:
    """Return the partitions of a list, by id: {"partitionInfo": [{"partitionId", "isActive", "numGpus", "gpuInfo":
    [{"physicalId", "numNvLinksAvailable", …}]}]}. Raises ValueError for anything else.
    """
    try:
        rows = recorded_json(text, where="fmpm -l")["partitionInfo"]
        partitions = sorted((_partition(row) for row in rows), key=lambda partition: partition.id)
    except (BadInput, KeyError, TypeError) as error:
        raise ValueError("not a list of partitions") from error
    if len({partition.id for partition in partitions}) != len(partitions):
        raise ValueError("ids of partitions")
    return tuple(partitions)


def _partition(entry: Any) -> FabricPartition:
    """Return one row of the list. Raises ValueError, KeyError or TypeError for anything else."""
    if not isinstance(entry, dict):
        raise TypeError("no partition")
    gpus = entry.get("gpuInfo", [])
    modules = tuple(sorted(_identifier(gpu["physicalId"]) for gpu in gpus))
    links = [_identifier(gpu["numNvLinksAvailable"]) for gpu in gpus if "numNvLinksAvailable" in gpu]
    if len(set(modules)) != len(modules) or entry.get("numGpus", len(modules)) != len(modules):
        raise ValueError("GPUs of a partition")
    return FabricPartition(
        id=_identifier(entry["partitionId"]),
        module_ids=modules,
        active=bool(_identifier(entry["isActive"])),
        nvlinks=min(links) if links and len(links) == len(modules) else None,
    )


def _identifier(value: object) -> int:
    number = int(value) if isinstance(value, int) else -1
    if not 0 <= number <= MAX_ID:
        raise ValueError("not an id")
    return number


# --- a partition as a setting ------------------------------------------------------------------------------------
# Its target has the GPUs by address, because the list has them by module id, which only the nvidia driver tells.


def target_of(number: int, gpus: Iterable[str]) -> str:
    """Return the target of a partition: "3@0000:18:00.0+0000:2a:00.0"."""
    return f"{number}@{'+'.join(sorted(gpus))}"


def parts_of(target: str) -> tuple[int, tuple[str, ...]]:
    """Return the id and the GPUs of a target. Raises ValueError."""
    number, _, addresses = target.partition("@")
    gpus = tuple(addresses.split("+"))
    if not re.fullmatch(r"[0-9]{1,9}", number) or not all(map(is_address, gpus)):
        raise ValueError("not a partition and its GPUs")
    if target != target_of(int(number), set(gpus)):
        raise ValueError("not in the order of addresses")
    return int(number), gpus


def active_as(modules: Iterable[int]) -> str:
    """Return the value of a partition that is active and has these module ids."""
    return _ACTIVE + ", ".join(map(str, sorted(modules)))


def modules_of(value: Any) -> tuple[int, ...]:
    """Return the module ids of the value of an active partition; none for any other value."""
    match = re.fullmatch(_ACTIVE + r"([0-9]{1,9}(?:, [0-9]{1,9})*)", value) if isinstance(value, str) else None
    modules = tuple(map(int, match[1].split(", "))) if match else ()
    return modules if value == active_as(set(modules)) else ()
