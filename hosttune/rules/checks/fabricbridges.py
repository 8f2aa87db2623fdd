"""Check of the ConnectX functions that represent the NVSwitches of HGX B200 and B300: known, with the host's driver."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.gpu.bridges import DRIVER, has_bridges, may_be_bridge
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.host import PciDevice
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown
from hosttune.rules.checks.facts import HOST, RECORD, driver_unread, listed

_CHECK = "fabric-bridge"
_EXPECTED = f"on {DRIVER}: Fabric Manager and the subnet manager reach the NVSwitches through it"


def fabric_bridges(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the fabric bridges. They look like NICs, but passing or resetting one affects the NVSwitches behind it."""
    host = evidence.host
    if not host.pci:
        hint = f"look with: ls /sys/bus/pci/devices; {RECORD}"
        yield unknown(_CHECK, HOST, expected=_EXPECTED, why="no PCI function was recorded", hint=hint)
        return
    if not has_bridges(host.pci):
        yield skipped(_CHECK, HOST, "no GPU here whose NVSwitches are reached through ConnectX functions")
        return
    is_bridge = {nic.address: nic.fabric_bridge for nic in host.nics}
    candidates = [device for device in host.pci if may_be_bridge(device)]
    known = [device for device in candidates if is_bridge.get(device.address)]
    doubtful = [device.address for device in candidates if is_bridge.get(device.address) is None]
    if doubtful or not known:
        why = f"vital product data of {listed(doubtful)} not read" if doubtful else "none of the NICs here is one"
        hint = "run hosttune validate as root; look with: grep -al SMDL=SW_MNG /sys/bus/pci/devices/*/vpd"
        yield unknown(_CHECK, HOST, expected="the functions that carry the fabric are known", why=why, hint=hint)
    for device in known:
        yield _bridge(evidence, device)


def _bridge(evidence: Evidence, device: PciDevice) -> CheckResult:
    source = sysfs.function(device.address, "driver")
    if driver_unread(evidence, device.address):
        return unknown(_CHECK, device.address, expected=_EXPECTED, why="driver not recorded", hint=RECORD)
    actual = f"on {device.driver}" if device.driver else "no driver"
    if device.driver == DRIVER:
        return passed(_CHECK, device.address, expected=_EXPECTED, actual=actual, source=source)
    hint = f"give it back to {DRIVER}: hosttune revert, or driverctl unset-override {device.address}"
    return failed(_CHECK, device.address, expected=_EXPECTED, actual=actual, source=source, hint=hint)


CHECKS = (
    Check(
        id=_CHECK,
        title="ConnectX functions that carry the NVLink fabric stay with the host",
        subjects="the host; each such function of HGX B200 and B300",
        why="they look like NICs; given to a guest or reset, they take the NVSwitches behind them along",
        source="NVIDIA Fabric Manager User Guide, systems with fourth generation NVSwitches (SMDL in the VPD)",
        judge=fabric_bridges,
    ),
)
