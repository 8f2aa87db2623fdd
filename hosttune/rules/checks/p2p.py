"""Checks of traffic between devices: ACS sends it through the IOMMU; only requests that ATS translated are direct."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hosttune.gpu.ats import ats_step
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.host import PciDevice
from hosttune.model.index import DeviceIndex
from hosttune.model.pcitree import shared_switch
from hosttune.model.validation import CheckResult
from hosttune.model.values import slot_of
from hosttune.rules.checks.check import Check, failed, passed, unknown, warned
from hosttune.rules.checks.facts import as_root, given, holders, listed, none_given

# The ACS bits that the kernel requires of a port to treat devices below as isolated: REQ_ACS_FLAGS,
# drivers/iommu/iommu.c.
_REQUIRED = ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")
_FACING_DOWN = ("root-port", "downstream-port")

Functions = Mapping[str, PciDevice]


def acs(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the ports above guests' devices: the ACS bits that the kernel set to form the groups must still be on."""
    check = "acs"
    passed_on = given(evidence)
    if not passed_on:
        yield none_given(evidence, check, "no device is given to a guest")
        return
    functions = evidence.host.index.pci
    below: dict[str, list[PciDevice]] = {}
    for device in passed_on:
        for bridge in evidence.host.index.bridges(device.address):
            if bridge.port_type in _FACING_DOWN or bridge.port_type is None:
                below.setdefault(bridge.address, []).append(device)
    gone = {device.parent for device in passed_on if device.parent and device.parent not in functions}
    for address in sorted(gone):
        why = "it is above a device of a guest and is not in the list of PCI functions"
        yield unknown(check, address, expected=" ".join(_REQUIRED), why=why, hint=f"look with: lspci -s {address}")
    if not below and not gone:
        yield none_given(evidence, check, "no bridge above the devices of guests")
    for address, devices in sorted(below.items()):
        yield _port(evidence, check, functions[address], devices)


def _port(evidence: Evidence, check: str, port: PciDevice, devices: list[PciDevice]) -> CheckResult:
    source = f"{sysfs.PCI_DEVICES}/{port.address}/config (ACS Control)"
    expected = f"{' '.join(_REQUIRED)}, as far as the port has them"
    if port.acs is None:
        why = "extended configuration space was not read"
        return unknown(check, port.address, expected=expected, why=why, hint=as_root(evidence), source=source)
    missing = [name for name in _REQUIRED if name in port.acs.capable and name not in port.acs.enabled]
    merged = _merged(evidence.host.index, devices)
    if not port.acs.capable:
        actual = "it has no ACS: " + ("its devices share a group" if merged else "the kernel's groups say enough")
        return passed(check, port.address, expected=expected, actual=actual, source=source)
    if not missing:
        return passed(check, port.address, expected=expected, actual=" ".join(port.acs.enabled), source=source)
    actual = f"{' '.join(missing)} off, above {listed([device.address for device in devices])}"
    if merged:
        text = f"{actual}, which share a group with what they can reach (see iommu-groups)"
        return passed(check, port.address, expected=expected, actual=text, source=source)
    hint = (
        f"they were cleared after boot, and the groups are older: settings: acs: {' '.join(missing)}, then apply;"
        " a reboot puts them back too"
    )
    return failed(check, port.address, expected=expected, actual=actual, source=source, hint=hint)


def _merged(index: DeviceIndex, devices: Iterable[PciDevice]) -> bool:
    """Return whether each device's group also has functions of other slots: the kernel knows that they are not isolated
    from each other."""
    for device in devices:
        mates = () if device.iommu_group is None else index.groups[device.iommu_group]
        if all(slot_of(mate.address) == slot_of(device.address) for mate in mates):
            return False
    return True


# --- ATS -----------------------------------------------------------------------------------------------------


def ats(evidence: Evidence) -> Iterable[CheckResult]:
    """Check guests with a GPU and an RDMA NIC below one switch: whether the two can exchange data directly."""
    check = "ats"
    functions = evidence.host.index.pci
    pairs = _pairs(evidence, functions)
    if not pairs:
        yield none_given(evidence, check, "no guest has a GPU and an RDMA NIC below one switch")
    for nic, gpus in pairs.items():
        yield _judge_nic(evidence, check, functions, nic, gpus)


def _pairs(evidence: Evidence, functions: Functions) -> dict[str, list[str]]:
    """Return the guests' RDMA NICs, each with the GPUs of the same guest below the same switch."""
    held = holders(evidence)
    gpus = {gpu.address for gpu in evidence.host.gpus}
    rdma = {nic.address for nic in evidence.host.nics if nic.rdma or nic.kind == "infiniband"}
    found: dict[str, list[str]] = {}
    for address, names in held.items():
        function = functions.get(address)
        if function is None or not {address, function.physfn} & rdma:
            continue
        near = [
            gpu
            for gpu in sorted(gpus & set(held))
            if set(held[gpu]) & set(names) and shared_switch(evidence.host.index, gpu, address)
        ]
        if near:
            found[address] = near
    return found


def _judge_nic(evidence: Evidence, check: str, functions: Functions, nic: str, gpus: list[str]) -> CheckResult:
    function = functions[nic]
    physical = functions.get(function.physfn or "", function)
    ports = [evidence.host.index.bridges(end)[0] for end in (nic, *gpus)]
    redirecting = [port for port in ports if port.acs and "ReqRedir" in port.acs.enabled]
    source = f"{sysfs.PCI_DEVICES}/{physical.address}/config (ATS Control)"
    expected = f"direct traffic with {listed(gpus)} below the same switch"
    if physical.ats_enabled:
        if silent := [port.address for port in ports if port.acs is None]:
            why = f"whether ports {listed(silent)} redirect (ACS) was not read"
            return unknown(check, nic, expected=expected, why=why, hint=as_root(evidence), source=source)
        blocked = [p.address for p in redirecting if p.acs and "DirectTrans" not in p.acs.enabled]
        if not blocked:
            return passed(check, nic, expected=expected, actual="ATS on, ports let it through", source=source)
        actual = f"ATS is on, but ports {listed(blocked)} redirect translated requests too"
        hint = "add DirectTrans: settings: acs: SrcValid ReqRedir CmpltRedir UpstreamFwd DirectTrans"
        return warned(check, nic, expected=expected, actual=actual, source=source, hint=hint)
    if physical.ats_enabled is None and physical.acs is None:
        hint = as_root(evidence)
        return unknown(check, nic, expected=expected, why="whether ATS is on was not read", hint=hint, source=source)
    step = ats_step(physical, evidence.host.kernel_args)
    actual = "ATS is off: it sends the guest's addresses, which mean nothing to the switch, so nothing is direct"
    return warned(check, nic, expected=expected, actual=actual, source=source, hint=step)


CHECKS = (
    Check(
        id="acs",
        title="ACS above devices of guests",
        subjects="each root and downstream port above a device that a guest has or that is bound for one",
        why="the kernel made the IOMMU groups with these bits on; off, devices of two tenants can reach each other",
        source="PCI Express Base 5.0, 6.12 Access Control Services; Linux drivers/iommu/iommu.c (REQ_ACS_FLAGS)",
        judge=acs,
        for_guests=True,
    ),
    Check(
        id="ats",
        title="ATS for GPUDirect RDMA",
        subjects="each RDMA NIC whose guest also has a GPU below the same switch",
        why="a guest's NIC sends the guest's addresses: only requests that ATS translated can stay below the switch,"
        " and ports that redirect must let them through (DirectTrans)",
        source="PCI Express Base 5.0, 6.12.1.1 ACS Direct Translated P2P and 10 ATS Specification",
        judge=ats,
        for_guests=True,
    ),
)
