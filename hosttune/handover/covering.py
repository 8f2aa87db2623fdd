"""Whether a statement covers its devices: whether `verify` would find it valid now, once it is signed.

A device that is clean, but about which no statement can hold, stays quarantined: nobody could tell later whether it was
used since.
"""

from __future__ import annotations

from collections.abc import Mapping

from hosttune.discovery.holders import holders
from hosttune.handover.statement import applied_values
from hosttune.handover.verify import Live, verification
from hosttune.model.handover import Statement
from hosttune.model.host import Host
from hosttune.transaction.site import Site

_COMES_WITH_THE_SIGNATURE = "no-expiry"
_ENDS_WITH_THE_COURSE = "quarantined"


def uncovered(
    site: Site, host: Host, statement: Statement, firmware: Mapping[str, Mapping[str, str] | None]
) -> Mapping[str, str]:
    """Return why a statement cannot hold, for each device of which it cannot; what is about the host is about each.

    `firmware`: as read during the hand-over. Raises Refused for a journal that cannot be read.
    """
    addresses = tuple(device.address for device in statement.predicate.devices)
    present = tuple(address for address in addresses if address in host.index.pci)
    live = Live(host=host, users=holders(site.system, present), applied=applied_values(site), firmware=firmware)
    why: dict[str, list[str]] = {}
    for reason in verification(statement, live, (), "").reasons:
        if reason.reason in (_COMES_WITH_THE_SIGNATURE, _ENDS_WITH_THE_COURSE):
            continue
        mine = [address for address in addresses if address in reason.addresses]  # users that are unknown name all
        for address in mine or ([] if reason.subject in host.index.pci else addresses):
            why.setdefault(address, []).append(reason.text)
    return {address: "; ".join(dict.fromkeys(texts)) for address, texts in why.items()}
