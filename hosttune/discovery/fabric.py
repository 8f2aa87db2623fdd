"""System → NVIDIA's Fabric Manager on this host: installed, running, version, mode and active partitions. Read only.

A capture must hold its configuration and the answers `fabric-manager-service`, `fabric-manager-version` and
`fabric-manager-partitions`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from hosttune.errors import CommandFailed
from hosttune.gpu import vendor_of
from hosttune.model.evidence import FabricManager
from hosttune.model.host import Host
from hosttune.reader import Reader

# Fabric Manager user guide, "Fabric Manager Config Options".
CONFIG = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
SERVICE = "nvidia-fabricmanager.service"
_PROGRAM = "/usr/bin/nv-fabricmanager"
_QUERIES: Mapping[str, tuple[str, ...]] = {
    "fabric-manager-service": ("systemctl", "show", SERVICE, "--property=LoadState,ActiveState"),
    "fabric-manager-version": (_PROGRAM, "--version"),
    # The example client of NVIDIA/Fabric-Manager-Client; it asks for the list and changes nothing.
    "fabric-manager-partitions": ("fmpm", "-l"),
}
_DEFAULT_MODE = 0  # FABRIC_MODE where the file does not say
_SHARED = (1, 2)  # modes with partitions that can be asked for


def read_fabric_manager(reader: Reader, host: Host) -> FabricManager | None:
    """The Fabric Manager of this host; None where no NVIDIA GPU or NVSwitch could need one. Unknown fields are None."""
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
        active_partitions=_partitions(reader) if running and mode in _SHARED else None,
    )


def _installed(reader: Reader, loaded: str | None) -> bool | None:
    """Whether its service or its configuration is here; None where neither is, and systemd could not be asked."""
    if loaded == "loaded" or reader.exists(CONFIG) or reader.exists(_PROGRAM):
        return True
    return False if loaded == "not-found" or not reader.system.captured else None


def _service(reader: Reader) -> tuple[str | None, str | None]:
    """systemd's ActiveState and LoadState of the service (systemctl(1)); None where systemd cannot be asked."""
    text = _ask(reader, "fabric-manager-service") or ""
    words = dict(line.partition("=")[::2] for line in text.splitlines())
    return words.get("ActiveState") or None, words.get("LoadState") or None


def _version(reader: Reader) -> str | None:
    """ "Fabric Manager version is : 535.161.08" of `nv-fabricmanager --version`."""
    found = re.search(
        r"Fabric Manager version is\s*:\s*(\d{1,4}(?:\.\d{1,4}){1,3})\b", _ask(reader, "fabric-manager-version") or ""
    )
    return found[1] if found else None


def _mode(reader: Reader) -> int | None:
    """FABRIC_MODE of the configuration as it is on disk; a daemon started before an edit runs with the old one."""
    text = reader.text(CONFIG)
    if text is None:
        return None
    found = re.findall(r"^[ \t]*FABRIC_MODE[ \t]*=[ \t]*(.*?)[ \t\r]*$", text, re.MULTILINE)
    if not found:
        return _DEFAULT_MODE
    if found[-1] in ("0", "1", "2"):
        return int(found[-1])
    reader.problem("not a FABRIC_MODE", CONFIG, f"reads {found[-1][:40]!r}")
    return None


def _partitions(reader: Reader) -> tuple[int, ...] | None:
    """Ids of the active partitions that `fmpm -l` lists."""
    text = _ask(reader, "fabric-manager-partitions")
    if text is None:
        return None
    try:
        document = json.loads(text)
        listed = document["partitionInfo"]
        return tuple(sorted(int(entry["partitionId"]) for entry in listed if entry["isActive"]))
    except (ValueError, RecursionError, KeyError, TypeError):
        reader.problem("partitions not understood", "fmpm -l", f"reads {text[:60]!r}")
        return None


def _ask(reader: Reader, name: str) -> str | None:
    """A command's answer, recorded or live; None where the tool is absent or fails."""

    def live() -> str | None:
        try:
            return reader.system.run(_QUERIES[name], timeout=10.0)
        except CommandFailed as error:
            if error.reason != "not installed":
                reader.problem("Fabric Manager did not answer", " ".join(error.argv), error.reason)
            return None

    return reader.query(name, live)
