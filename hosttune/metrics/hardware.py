"""Series of the devices: what is there and should be, links, error counts, and what the kernel log says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from hosttune.inventory.pcielink import JudgedLink, link_of
from hosttune.metrics import families as f
from hosttune.metrics.writing import Group, Point
from hosttune.model import sysfs
from hosttune.model.devices import SeenDevice
from hosttune.model.evidence import Evidence
from hosttune.model.pci import Link
from hosttune.model.validation import Validation
from hosttune.model.values import address_key, slot_of
from hosttune.rules.checks.facts import accelerators, holders, known_devices, lacks, planned_guests
from hosttune.rules.checks.xids import rule

KINDS = ("gpu", "nic", "nvme", "nvswitch")
SEVERITIES = ("fatal", "nonfatal", "correctable")
EVENTS = ("xid", "sxid", "lost", "aer", "dpc", "mce", "edac")  # kinds of KernelEvent that are faults
_LINK_CHECK = "pcie-link"
_SLOW_FIRST = {kind: n for n, kind in enumerate(KINDS)}


def pci_known(evidence: Evidence) -> bool:
    """Return whether the PCI functions are known: some are there, or it is proven that there are none."""
    return bool(evidence.host.pci) or lacks(evidence, sysfs.PCI_DEVICES)


def expects(evidence: Evidence) -> bool:
    """Return whether a plan in force, a kept validation or --expect says which devices should be here."""
    return any(source.expects for source in evidence.host.sources or ())


# --- devices -------------------------------------------------------------------------------------------------


def device_groups(evidence: Evidence) -> tuple[Group, Group]:
    """Return how many devices of each kind are there, and how many should be."""
    known = known_devices(evidence.host)
    there = Counter(_kind(device) for device in known.values() if _is_there(evidence, device.address))
    wanted = Counter(_kind(device) for device in known.values())
    kinds = (*KINDS, *(["other"] if wanted["other"] else []))
    read, told = pci_known(evidence), expects(evidence)
    return (
        (f.DEVICES, tuple(Point(labels={"kind": kind}, value=there[kind] if read else None) for kind in kinds)),
        (
            f.DEVICES_EXPECTED,
            tuple(Point(labels={"kind": kind}, value=wanted[kind] if told else None) for kind in kinds),
        ),
    )


def info_group(evidence: Evidence) -> Group:
    """Return a series for each known device, there or not, with its addresses here and in the guest that has it."""
    gpus = evidence.host.index.gpus
    held = holders(evidence)
    given = {
        (device.address, name): device.guest_address
        for name, guest in planned_guests(evidence).items()
        for device in guest.devices
    }
    points = []
    for address, seen_device in sorted(known_devices(evidence.host).items(), key=_order):
        gpu = gpus.get(address)
        guests = held.get(address, ())
        labels = {
            "address": address,
            "kind": _kind(seen_device),
            "uuid": (gpu.uuid if gpu else None) or "",
            "module": "" if gpu is None or gpu.module_id is None else str(gpu.module_id),
            "guest": ",".join(guests),
            "guest_address": given.get((address, guests[0]), "") if len(guests) == 1 else "",
        }
        points.append(Point(labels=labels, value=1))
    return f.DEVICE_INFO, tuple(points)


def _order(row: tuple[str, SeenDevice]) -> tuple[int, tuple[int, ...]]:
    return _SLOW_FIRST.get(_kind(row[1]), len(KINDS)), address_key(row[0])


def _kind(device: SeenDevice) -> str:
    return device.kind if device.kind in KINDS else "other"


def _is_there(evidence: Evidence, address: str) -> bool:
    function = evidence.host.index.pci.get(address)
    return function is not None and function.is_there


# --- links ---------------------------------------------------------------------------------------------------


def link_groups(evidence: Evidence, validation: Validation | None) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """Return the links of GPUs (both ends, and what both can do), and those of the other devices (their own end).

    A device is left out only if its link was not found worth judging: it has none, or `pcie-link` does not apply.
    """
    results = validation.results if validation is not None else ()
    judged = {result.subject: result.outcome for result in results if result.check == _LINK_CHECK}
    gpus = [gpu.address for gpu in accelerators(evidence.host)]
    others = [a for a, device in sorted(known_devices(evidence.host).items(), key=_order) if a not in gpus]
    first = {slot_of(address): address for address in reversed(others)}  # functions of one slot share the link
    links: dict[str, JudgedLink | None] = {}
    for address in (*gpus, *(a for a in others if first[slot_of(a)] == a)):
        link = link_of(evidence.host.index, address)
        if judged.get(address) != "skip" and (link is not None or address in judged):
            links[address] = link
    return (
        _links({a: link for a, link in links.items() if a in gpus}, both=True),
        _links({a: link for a, link in links.items() if a not in gpus}, both=False),
    )


def _links(links: Mapping[str, JudgedLink | None], *, both: bool) -> tuple[Group, ...]:
    rows: dict[str, list[Point]] = {"speed": [], "width": [], "speeds": [], "widths": []}
    for address, link in links.items():
        here = {"address": address, "end": "device"}
        own, above = (Link(), None) if link is None else (link.link, link.port)
        rows["speed"].append(Point(labels=here, value=own.speed_gts))
        rows["width"].append(Point(labels=here, value=own.width))
        if not both:
            continue
        there = {"address": address, "end": "port"}
        port = (above.link if above is not None else None) or Link()
        rows["speed"].append(Point(labels=there, value=port.speed_gts))
        rows["width"].append(Point(labels=there, value=port.width))
        rows["speeds"].append(Point(labels=here, value=None if link is None else link.best_speed_gts))
        rows["widths"].append(Point(labels=here, value=None if link is None else link.best_width))
    families = (f.LINK_SPEED, f.LINK_WIDTH, f.LINK_SPEED_EXPECTED, f.LINK_WIDTH_EXPECTED)
    return tuple((family, tuple(points)) for family, points in zip(families, rows.values(), strict=True))


# --- errors --------------------------------------------------------------------------------------------------


def aer_groups(evidence: Evidence) -> tuple[Group, Group]:
    """Return the AER counts above 0, worst severity first; then the other counts of GPUs, None for unknown ones."""
    counts = (evidence.health.aer if evidence.health else None) or {}
    above = [
        Point(labels={"address": address, "severity": severity}, value=n)
        for severity in SEVERITIES
        for address, of in counts.items()
        if (n := of.get(severity)) is not None and n > 0
    ]
    rest = [
        Point(labels={"address": gpu.address, "severity": severity}, value=n)
        for gpu in accelerators(evidence.host)
        for severity in SEVERITIES
        if not (n := counts.get(gpu.address, {}).get(severity))
    ]
    return (f.AER_ERRORS, tuple(above)), (f.AER_ERRORS, tuple(rest))


def kernel_groups(evidence: Evidence) -> tuple[Group, Group]:
    """Return the signs of failing hardware in the kernel log by kind, and XIDs by GPU; None: not all could be read."""
    events = evidence.health.events if evidence.health else None
    counted: Counter[str] = Counter()
    classes: Counter[tuple[str, str]] = Counter()
    for event in events or ():
        counted[event.kind] += event.count
        if event.kind in ("xid", "lost"):
            classes[event.address or "", rule(event).outcome] += event.count
    sure = events is not None and not (evidence.health and evidence.health.events_unread)
    kinds = (
        Point(labels={"kind": event}, value=counted[event] if sure or counted[event] else None) for event in EVENTS
    )
    return (f.KERNEL_EVENTS, tuple(kinds)), (f.XID_EVENTS, tuple(_xids(classes)))


def _xids(classes: Mapping[tuple[str, str], int]) -> Iterable[Point]:
    worst = {"fail": 0, "unknown": 1, "warn": 2}
    for (address, outcome), count in sorted(classes.items(), key=lambda row: (worst.get(row[0][1], 3), row[0])):
        yield Point(labels={"address": address, "class": outcome}, value=count)
