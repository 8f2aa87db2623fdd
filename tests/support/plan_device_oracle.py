"""The device part of the plan oracle: who gets which function, and what must be said about it.

The tags name the section of the contract that a check comes from, as in `plan_oracle`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from plan_facts import GuestFacts, HostFacts, ids, is_bridge, named

Found = Iterator[str]
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")


def device_checks(guest: GuestFacts) -> Found:
    """Every sentence about the devices of one planned guest, as "check-name: detail"."""
    host = guest.host
    passed = [device["address"] for device in guest.devices if device["kind"] != "mdev"]
    everyone = Counter(d["address"] for g in guest.plan["guests"] for d in g["devices"] if d["kind"] != "mdev")
    for address in passed:
        if everyone[address] > 1:
            yield f"device-once: {address} is given {everyone[address]} times"
        if address in host.held_devices:  # [plan] a guest defined here keeps its devices
            yield f"device-held: {address} belongs to an existing guest"
        if address not in host.pci:
            yield f"device-exists: {address}"
        elif is_bridge(host.pci[address]):
            yield f"device-bridge: {address} is a bridge"
        elif host.pci[address].get("boot_display"):  # exit codes: boot display is refused
            yield f"device-boot-display: {address}"
    yield from _given(guest, [address for address in passed if address in host.pci])
    places = [device["guest_address"] for device in guest.devices]
    if len(set(places)) != len(places) or not all(_BDF.fullmatch(place) for place in places):
        yield f"guest-address: {places}"  # [plan] the XML gives each device its guest_address
    if not all(device["identity"] for device in guest.devices):  # [plan] a passed device's identity
        yield "device-identity: a device has none"
    if all(address in host.pci for address in passed):
        yield from _affinity(guest)
        yield from _groups(guest, set(passed))
        yield from _asked_devices(guest, passed)
        yield from _nearest(guest, passed)


def _given(guest: GuestFacts, passed: list[str]) -> Found:
    """What a passed device needs besides: its driver, and words about what is unknown."""
    rows = guest.host.pci
    bound = {
        str(action["target"]) + str(action["id"]) for action in guest.plan["actions"] if action["want"] == "vfio-pci"
    }
    by_libvirt = {device["address"] for device in guest.devices if device.get("managed")}
    for address in passed:
        if (
            rows[address].get("driver") != "vfio-pci"
            and address not in by_libvirt
            and not any(address in b for b in bound)
        ):
            yield f"binding: no action binds {address} to vfio-pci"  # [intent] profile none: pages, driver binding
    if any(rows[address].get("bars") is None for address in passed) and not guest.said(r"\bBARs?\b"):
        yield "bars-said: BARs are unknown and no finding says it"  # [plan] BARs unknown: no MMIO sizing, a finding
    switches = {row["address"] for row in guest.host.document.get("nvswitches") or []}
    nvidia = {g["address"] for g in guest.host.document.get("gpus") or [] if g.get("vendor") == "nvidia"}
    errors = " ".join(finding["text"] for finding in guest.plan["findings"] if finding["level"] == "error")
    blind = switches and nvidia & set(passed) and guest.planned["fabric_partition"] is None
    if blind and not re.search("fabric|partition", errors, re.IGNORECASE):
        yield "fabric-error: partitions are unknown and no finding of level error says it"  # [plan] fabric present but


def _affinity(guest: GuestFacts) -> Found:
    """[issue] cells with their own devices; [inv] unknown affinity is said, never guessed."""
    cell_of = {min(ids(cell["host_nodes"]), default=-1): cell["id"] for cell in guest.cells}
    for device in guest.devices:
        node = guest.host.device_node(device["address"])
        if node is None and device["guest_cell"] is not None:
            yield f"affinity-guessed: {device['address']} is in cell {device['guest_cell']}, its node is unknown"
        if node is None and not guest.said(re.escape(device["address"].rpartition(".")[0] + ".")):  # its slot
            yield f"affinity-said: nothing says that the node of {device['address']} is unknown"
        if node in cell_of and device["guest_cell"] != cell_of[node]:
            yield f"device-cell: {device['address']} of node {node} is in cell {device['guest_cell']}"


def _groups(guest: GuestFacts, passed: set[str]) -> Found:
    """[inv] every non-bridge function of a passed device's IOMMU group goes to the same guest."""
    host, requested_by_name, slots = guest.host, named(guest.asked), {a.rpartition(".")[0] for a in passed}
    for address in sorted(passed):
        members = host.group(address)
        if members is None:  # [plan] no IOMMU groups: the plan stands with an `error` finding
            if not any(finding["level"] == "error" for finding in guest.plan["findings"]):
                yield f"no-groups-error: {address} has no IOMMU group and no finding of level error says it"
            continue
        if not members <= passed:
            yield f"group-whole: {sorted(members - passed)} of the group of {address} stay behind"
        for other in sorted(members - {address} - requested_by_name):
            row = host.pci[other]
            same_slot = sum(other.startswith(slot + ".") for slot in slots) and other[:-1] in {
                a[:-1] for a in passed - {other}
            }
            switch = str(row.get("class_code"))[:4] == "0680"
            if not same_slot and not switch and not _chosen(guest, other):
                yield f"group-uninvited: {other} goes along with {address} though the intent does not name it"


def _chosen(guest: GuestFacts, address: str) -> bool:
    """A count in the intent may have chosen this device."""
    kinds = {"gpus": "gpus", "nics": "nics", "nvme": "nvme"}
    return any(
        isinstance(guest.asked.get(key), int | dict)
        and address in {row["address"] for row in guest.host.document.get(rows) or []}
        for key, rows in kinds.items()
    )


def _asked_devices(guest: GuestFacts, passed: list[str]) -> Found:
    lost = named(guest.asked) - set(passed)
    if lost:  # [intent] the devices that are named
        yield f"devices-asked: {sorted(lost)} are not given"
    others = {g["address"] for g in guest.host.document.get("gpus") or [] if g.get("vendor", "other") == "other"}
    for key, rows in (("gpus", "gpus"), ("nics", "nics"), ("nvme", "nvme")):
        wanted = guest.asked.get(key)
        count = wanted["count"] if isinstance(wanted, dict) else wanted if isinstance(wanted, int) else None
        if count is None:
            continue
        mine = {row["address"] for row in guest.host.document.get(rows) or []} & set(passed)
        if len(mine) < count or (len(mine) > count and _all_single(guest.host, mine)):
            yield f"devices-count: {key}: {sorted(mine)}, asked {count}"
        if key == "gpus" and mine & others:  # [host] `other` is ignored by counts and auto
            yield f"devices-other: a count took {sorted(mine & others)}"


def _nearest(guest: GuestFacts, passed: list[str]) -> Found:
    """[issue] nearest NICs and NVMe on request, of those that are left: for a guest whose GPUs and cell share a node.

    Where they do not, the objective weighs the cell's distance, and what is near the GPU may be far from the cell.
    """
    host, gpus = guest.host, {row["address"] for row in guest.host.document.get("gpus") or []}
    nodes = {host.device_node(address) for address in gpus & set(passed)}
    node = nodes.pop() if len(nodes) == 1 else None
    cells = {min(ids(cell["host_nodes"]), default=-1) for cell in guest.cells}
    if node is None or node not in host.nodes or cells != {node}:
        return
    theirs = {d["address"] for g in guest.plan["guests"] if g is not guest.planned for d in g["devices"]}
    for key in ("nics", "nvme"):
        free = {row["address"] for row in host.document.get(key) or []} - host.held_devices - theirs
        steps = {a: host.distance(node, n) for a in free if (n := host.device_node(a)) is not None and _lone(host, a)}
        taken = [step for a, step in steps.items() if a in passed and step is not None]
        left = [step for a, step in steps.items() if a not in passed and step is not None]
        if isinstance(guest.asked.get(key), int) and taken and left and max(taken) > min(left):
            yield f"nearest: {key} at distances {taken}, others are free at {left}"


def _lone(host: HostFacts, address: str) -> bool:
    return len(host.group(address) or {address}) == 1


def _all_single(host: HostFacts, addresses: set[str]) -> bool:
    return all(_lone(host, address) for address in addresses)
