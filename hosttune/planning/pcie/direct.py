"""What a GPU and an RDMA NIC of one guest need for direct traffic below the switch that they share: ATS and ACS.

Pure. The guest's addresses mean nothing to a switch until the IOMMU has translated them. So the NIC must ask for
translations itself (ATS), and the switch's ports must send untranslated requests to the root complex (ReqRedir,
CmpltRedir, UpstreamFwd: these isolate, too) and let translated requests through (DirectTrans): PCIe 5.0, 6.12.1.1 and
10.1. A port without ACS redirects nothing: translated requests are direct there. Nothing is changed here: ACS is set by
name (`settings: acs`), ATS is set in the NIC's firmware.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from hosttune.gpu.ats import ats_step
from hosttune.inventory.devices import Catalogue
from hosttune.model.host import Host, PciDevice
from hosttune.model.pcitree import shared_switch
from hosttune.model.plan import PlanFinding, PlannedGuest

NEEDED = ("ReqRedir", "CmpltRedir", "UpstreamFwd", "DirectTrans")
_FACING_DOWN = ("downstream-port", None)


def direct_findings(
    host: Host, catalogue: Catalogue, guest: PlannedGuest, asked: Collection[str] = ()
) -> Iterator[PlanFinding]:
    """Yield what prevents direct traffic between a guest's RDMA NICs and GPUs below the same switch, and how to fix it.

    `asked` are ACS bits that the plan already sets.
    """
    gpus = [device.address for device in guest.devices if device.kind == "gpu"]
    rdma = {nic.address for nic in host.nics if nic.rdma}
    for device in guest.devices:
        function = catalogue.pci.get(device.address)
        near = [gpu for gpu in gpus if shared_switch(catalogue.index, gpu, device.address) is not None]
        if not near or function is None or not ({device.address, function.physfn} & rdma):
            continue
        yield from _no_ats(host, catalogue.pci.get(function.physfn or "", function), near, guest)
        yield from _ports(catalogue, device.address, near, guest, asked)


def _no_ats(host: Host, nic: PciDevice, gpus: Sequence[str], guest: PlannedGuest) -> Iterator[PlanFinding]:
    if nic.ats_enabled:
        return
    state = "off" if nic.ats_enabled is False or nic.acs is not None else "unknown"
    text = (
        f"ATS is {state}: traffic with {', '.join(gpus)} below the same switch goes through the root complex;"
        f" {ats_step(nic, host.kernel_args)}"
    )
    yield PlanFinding(level="warn" if state == "off" else "info", text=text, where=f"guest {guest.name}: {nic.address}")


def _ports(
    catalogue: Catalogue, nic: str, gpus: Sequence[str], guest: PlannedGuest, asked: Collection[str]
) -> Iterator[PlanFinding]:
    """Return the ports between the two that lack something that direct traffic needs, by what they lack."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    unable: list[str] = []
    for port in _between(catalogue, nic, gpus):
        if port.acs is None:
            continue
        able = [name for name in NEEDED if name in port.acs.capable]
        if "ReqRedir" in able and "DirectTrans" not in able:
            unable.append(port.address)
        elif missing := tuple(name for name in able if name not in (*port.acs.enabled, *asked)):
            lacking.setdefault(missing, []).append(port.address)
    where = f"guest {guest.name}: {nic}"
    pair = f"between {nic} and {', '.join(gpus)}"
    for missing, ports in lacking.items():
        text = (
            f"direct traffic {pair} needs ACS {' '.join(NEEDED)} and ATS; ports {', '.join(ports)} lack"
            f" {' '.join(missing)}: settings: acs: {' '.join(NEEDED)}"
        )
        yield PlanFinding(level="info", text=text, where=where)
    if unable:
        text = f"ports {', '.join(unable)} redirect without ACS DirectTrans: no direct traffic {pair}, whatever is set"
        yield PlanFinding(level="info", text=text, where=where)


def _between(catalogue: Catalogue, nic: str, gpus: Sequence[str]) -> Iterator[PciDevice]:
    """Yield the downstream ports on the way from a NIC to GPUs below the same switch, each once."""
    seen: set[str] = set()
    for gpu in gpus:
        shared = shared_switch(catalogue.index, gpu, nic)
        for end in (nic, gpu):
            above = catalogue.above(end)
            for address in above[: above.index(shared) if shared in above else 0]:
                port = catalogue.pci.get(address)
                if port is not None and address not in seen and port.port_type in _FACING_DOWN:
                    seen.add(address)
                    yield port
