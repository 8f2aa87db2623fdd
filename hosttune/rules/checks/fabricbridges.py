"""Check of the ConnectX functions that represent the NVSwitches of HGX B200 and B300: known, with the host's driver."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.gpu.bridges import DRIVER, has_bridges, may_be_bridge
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.host import PciDevice
from hosttune.rules.checks.facts import LIST_PCI, lacks, listed
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding, NoValue, inapplicable


def _bridges(evidence: Evidence) -> Iterator[tuple[str, PciDevice]]:
    """Yield the functions that are known as fabric bridges; the host is unknown where there may be others."""
    host = evidence.host
    if not host.pci:
        raise NoValue(Finding(outcome="unknown", text="no PCI function was read", remedy=LIST_PCI))
    if not has_bridges(host.pci):
        why = "no GPU here whose NVSwitches are reached through ConnectX functions"
        raise inapplicable(why)
    is_bridge = {nic.address: nic.fabric_bridge for nic in host.nics}
    candidates = [device for device in host.pci if may_be_bridge(device)]
    known = [device for device in candidates if is_bridge.get(device.address)]
    yield from ((device.address, device) for device in known)
    doubtful = [device.address for device in candidates if is_bridge.get(device.address) is None]
    if doubtful or not known:
        why = f"vital product data of {listed(doubtful)} not read" if doubtful else "none of the NICs here is one"
        hint = "run hosttune validate as root; look with: grep -al SMDL=SW_MNG /sys/bus/pci/devices/*/vpd"
        expected = "the functions that carry the fabric are known"
        raise NoValue(Finding(outcome="unknown", text=why, expected=expected, remedy=hint))


@check(
    "fabric-bridge",
    title="ConnectX functions that carry the NVLink fabric stay with the host",
    about="the host; each such function of HGX B200 and B300",
    why="they look like NICs; given to a guest or reset, they take the NVSwitches behind them along",
    source="Fabric Manager user guide, systems with fourth generation NVSwitches (SMDL in the VPD)",
    expected=f"on {DRIVER}: Fabric Manager and the subnet manager reach the NVSwitches through it",
    each=_bridges,
)
def fabric_bridge(on: On, device: PciDevice) -> Finding:
    """Check the fabric bridges. They look like NICs, but passing or resetting one affects the NVSwitches behind it."""
    where = sysfs.function(device.address, "driver")
    on = on.reading(where)
    driver = on.need(device.driver or ("" if lacks(on.evidence, where) else None), "its driver", where)
    if driver == DRIVER:
        return on.passed(f"on {driver}")
    hint = f"give it back to {DRIVER}: hosttune revert, or driverctl unset-override {device.address}"
    return on.failed(f"on {driver}" if driver else "no driver", hint)
