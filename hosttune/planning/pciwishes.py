"""PCIe settings that a plan wants, as actions: ASPM of links, ACS of bridges, and the endpoints that the host keeps.

Pure. vfio resets a passed endpoint whenever it is opened (drivers/vfio/pci), so its own bits are its guest's work and
only the bridge above gets an action. What GPU and NIC need to talk directly is said by `pciedirect`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from hosttune.model.host import Host, PciDevice
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Finding, PlannedGuest
from hosttune.model.values import FrozenMap
from hosttune.planning.action import make_action
from hosttune.planning.devices import Catalogue, address_key
from hosttune.planning.pciedirect import direct_findings, pci_options
from hosttune.planning.settings import reason, wanted
from hosttune.settings.pcie import acs_text

Found = tuple[list[Action], list[Finding]]
_FACING_DOWN = ("root-port", "downstream-port", None)
_NOT_KEPT = (None, "vfio-pci", "pci-stub")
_ENDPOINTS = ("gpu", "nic", "nvme")


class _Row(NamedTuple):
    """A setting of endpoints: its name in an intent, its kind, its field of a PciDevice, and why a profile wants it."""

    name: str
    kind: str
    field: str
    why: str


_ROWS = (
    _Row("read_request_bytes", "read-request", "read_request_bytes", "longer reads need fewer requests"),
    _Row("relaxed_ordering", "relaxed-ordering", "relaxed_ordering", "its writes need not wait for each other"),
)


def plan_pci(host: Host, intent: Intent, catalogue: Catalogue, guests: tuple[PlannedGuest, ...]) -> Found:
    """Actions for PCIe and what is worth knowing about them."""
    findings: list[Finding] = []
    actions = [
        *_aspm(intent, catalogue, guests),
        *_acs(intent, catalogue, guests, findings),
        *_kept_endpoints(host, intent, catalogue, guests, findings),
    ]
    for guest in guests:
        findings += _left_inside(intent, catalogue, guest)
        findings += direct_findings(host, catalogue, guest, (wanted(intent, "acs") or "").split())
    return actions, findings


# --- links ---------------------------------------------------------------------------------------------------


def _aspm(intent: Intent, catalogue: Catalogue, guests: Iterable[PlannedGuest]) -> Iterator[Action]:
    """ASPM off on the links to passed devices, by the port above; a link that is off already is left alone."""
    want = wanted(intent, "aspm")
    if want is None:
        return
    passed = [catalogue.pci.get(device.address) for guest in guests for device in guest.devices]
    ports = {function.parent for function in passed if function and function.parent}
    for address in sorted(ports, key=address_key):
        port = catalogue.pci.get(address)
        if port is None or port.link is None or port.port_type not in _FACING_DOWN:
            continue
        now = _link_states(catalogue, port)
        if now != want:
            why = (
                "the link to a passed device leaves its low-power states too slowly; set at the port above, for vfio"
                " resets the endpoint whenever it is opened: its own end is seen to again inside the guest"
            )
            yield make_action("aspm", address, now, want, reason(intent, "aspm", why))


def _link_states(catalogue: Catalogue, port: PciDevice) -> Any:
    """ASPM of the link below a port: of both ends where they agree, else by address (as `settings.aspm` reads it)."""
    ends = [d for d in catalogue.index.below.get(port.address, ()) if d.physfn is None]
    states = {end.address: end.aspm for end in (*ends, port) if end.aspm is not None}
    if port.aspm is None or set(states.values()) == {port.aspm}:
        return port.aspm
    return FrozenMap(states)


def _left_inside(intent: Intent, catalogue: Catalogue, guest: PlannedGuest) -> Iterator[Finding]:
    """What of a guest's endpoints is not as wanted and left to the guest."""
    names = {"aspm": "ASPM", "read_request_bytes": "read-request size", "relaxed_ordering": "relaxed ordering"}
    functions = [catalogue.pci.get(device.address) for device in guest.devices if device.kind in _ENDPOINTS]
    whole = [function for function in functions if function is not None and function.physfn is None]
    left = []
    for name, text in names.items():
        want = wanted(intent, name)
        if want is not None and any(getattr(function, name) != want for function in whole):
            left.append(text)
    if left:
        said = (
            f"{' and '.join(left) if len(left) < 3 else ', '.join(left)} of the passed endpoints themselves: left to"
            " the guest, whose seed (or bundle) sets them, for vfio resets an endpoint whenever it is opened"
        )
        if "ASPM" in left:  # linux, drivers/vfio/pci/vfio_pci_config.c, init_pci_cap_exp_perm: no link control
            said += "; where vfio keeps link control to itself, the seed says so"
        yield Finding(level="info", text=said, where=f"guest {guest.name}")


# --- ACS -----------------------------------------------------------------------------------------------------


def _acs(
    intent: Intent, catalogue: Catalogue, guests: Iterable[PlannedGuest], findings: list[Finding]
) -> Iterator[Action]:
    """ACS bits that were asked for by name, added on the bridges above passed devices; none is ever taken away."""
    asked = (wanted(intent, "acs") or "").split()
    if not asked:
        return
    above = {bridge for guest in guests for device in guest.devices for bridge in catalogue.above(device.address)}
    for address in sorted(above, key=address_key):
        bridge = catalogue.pci.get(address)
        if bridge is None or bridge.acs is None:
            text = "its ACS is unknown: left alone"
            findings.append(Finding(level="warn", text=text, where=address))
            continue
        missing = [name for name in asked if name not in bridge.acs.capable]
        if missing and bridge.port_type in ("root-port", "downstream-port"):
            findings.append(Finding(level="info", text=f"it has no ACS {' '.join(missing)}", where=address))
        more = [name for name in asked if name in bridge.acs.capable and name not in bridge.acs.enabled]
        if more:
            why = "asked for by name: settings.acs; bits are only added"
            now, want = acs_text(bridge.acs.enabled), acs_text((*bridge.acs.enabled, *more))
            yield make_action("acs", address, now, want, why)


# --- endpoints that stay with the host -----------------------------------------------------------------------


def _kept_endpoints(
    host: Host, intent: Intent, catalogue: Catalogue, guests: tuple[PlannedGuest, ...], findings: list[Finding]
) -> Iterator[Action]:
    rows = [row for row in _ROWS if wanted(intent, row.name) is not None]
    small = any(option == "pcie_bus_perf" for word in host.kernel_args or () for option in pci_options(word))
    if small and any(row.kind == "read-request" for row in rows):
        # admin-guide/kernel-parameters, pci=pcie_bus_perf: payloads may differ along a path, and reads must stay small.
        text = "the kernel keeps read requests as small as payloads: their size is left alone"
        findings.append(Finding(level="info", text=text, where="kernel argument pci=pcie_bus_perf"))
        rows = [row for row in rows if row.kind != "read-request"]
    for function in _kept(host, catalogue, guests) if rows else ():
        if function.read_request_bytes is None:
            text = "its device control cannot be read: read-request size and relaxed ordering are left alone"
            findings.append(Finding(level="info", text=text, where=function.address))
            continue
        for row in rows:
            now, want = getattr(function, row.field), wanted(intent, row.name)
            flawed = row.kind == "relaxed-ordering" and _flawed_root(catalogue, function)
            if flawed and now != want:
                text = f"relaxed ordering stays off: the kernel knows the root port {flawed} to break it"
                findings.append(Finding(level="info", text=text, where=function.address))
            elif now != want:
                yield make_action(row.kind, function.address, now, want, reason(intent, row.name, row.why))


def _kept(host: Host, catalogue: Catalogue, guests: Iterable[PlannedGuest]) -> Iterator[PciDevice]:
    """GPUs and RDMA NICs that the host's own drivers hold, in address order; neither virtual nor the boot display."""
    given = {device.address for guest in guests for device in guest.devices} | set(catalogue.holders)
    gpus = [gpu.address for gpu in host.index.accelerators]
    nics = [nic.address for nic in host.nics if nic.rdma]
    for address in sorted({*gpus, *nics} - given, key=address_key):
        function = catalogue.pci.get(address)
        if function and function.driver not in _NOT_KEPT and not function.physfn and not function.boot_display:
            yield function


def _flawed_root(catalogue: Catalogue, function: PciDevice) -> str | None:
    """The root port above, where it is one that the kernel keeps relaxed ordering from (drivers/pci/quirks.c)."""
    root = catalogue.pci.get((catalogue.above(function.address) or ("",))[-1])
    if root is None or root.device_id is None:
        return None
    number = int(root.device_id, 16)
    intel = root.vendor_id == "8086" and (0x2F01 <= number <= 0x2F0E or 0x6F01 <= number <= 0x6F0E)
    amd = root.vendor_id == "1022" and 0x1A00 <= number <= 0x1A02
    return root.address if intel or amd else None
