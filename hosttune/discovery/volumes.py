"""Volumes of storage pools in a domain's XML, as the disks that they are."""

from __future__ import annotations

from collections.abc import Callable

from lxml import etree

from hosttune.domain.xml import parse


def resolve_volumes(xml: str, path_of: Callable[[str, str], str | None]) -> str:
    """Return a domain's XML with its volumes of storage pools as the disks that they are when it starts.

    `path_of`: the path of a volume (pool, name): a file, a block device, or no path of the host for one on a
    network (RBD). None, as for a pool that is not active, leaves the disk as it is.
    """
    try:
        root = parse(xml)
    except (etree.XMLSyntaxError, ValueError):
        return xml  # whoever reads it says what is wrong
    for disk in root.iterfind("devices/disk[@type='volume']"):
        source = disk.find("source")
        path = path_of(source.get("pool", ""), source.get("volume", "")) if source is not None else None
        if source is not None and path:
            kind = "network" if path[0] != "/" else "block" if path.startswith("/dev/") else "file"
            disk.set("type", kind)
            source.set({"network": "name", "block": "dev", "file": "file"}[kind], path)
    return str(etree.tostring(root, encoding="unicode"))
