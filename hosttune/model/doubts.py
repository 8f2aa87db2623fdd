"""Which functions are in doubt: what one is, or who holds it, differs between the sources of a host document. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hosttune.model.host import DeviceSource, Host, PciDevice, SeenDevice

_KIND_WORDS = {"gpu": "a GPU", "nic": "a NIC", "nvme": "an NVMe drive", "nvswitch": "an NVSwitch"}
_LAST: list[tuple[Host, Mapping[str, str]]] = []  # what `contradicted` found of the last host: asked for each device


def contradicted(host: Host) -> Mapping[str, str]:
    """Functions of which one source says another device or another driver than the tree, by address, and why."""
    if not (_LAST and _LAST[0][0] is host):
        _LAST[:] = [(host, _contradicted(host))]
    return _LAST[0][1]


def _contradicted(host: Host) -> dict[str, str]:
    found = {device.address: device.contradicted for device in host.pci if device.contradicted is not None}
    functions = {device.address: device for device in host.pci}
    for source in host.sources or ():
        for seen in source.contrary:
            found.setdefault(seen.address, _contradiction(seen, functions.get(seen.address), source))
    return found


def _contradiction(seen: SeenDevice, function: PciDevice | None, source: DeviceSource) -> str:
    known = [seen.id, seen.model or _KIND_WORDS.get(seen.kind or ""), f"held by {seen.driver}" if seen.driver else None]
    here = f"{function.vendor_id}:{function.device_id} of class {function.class_code}" if function else "nothing"
    held = f", on {function.driver}," if function and function.driver else ""
    return f"{here}{held} in the PCI tree; {', '.join(word for word in known if word)} in {source.name}"
