"""Which devices of a host are quarantined: between two tenants, and not proven clean (`Host.handover`). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hosttune.model.host import Host
from hosttune.model.quarantine import DeviceRecord, Register, drive_mark
from hosttune.model.starts import unread_register

_OF_ONE_DEVICE = ("dsn=", "serial=", "uuid=")  # parts of an identity that no other device has


def quarantined_devices(host: Host, register: Register | None = None) -> Mapping[str, str]:
    """Return why a device is quarantined, by address: those of the register, and what belongs to them.

    `register`: as it is now; None: that of the host document, or none if the document does not know it.

    A device that was moved is known by its serial numbers or UUID. A physical function and its virtual functions are
    quarantined together, because a guest that has one can reach what the other has left.
    """
    found: dict[str, str] = {}
    lost = unread_register(host.problems) if register is None and host.handover is None else None
    if lost is not None:
        why = f"may be quarantined: {lost.what}: {lost.why} ({lost.where})"
        return {function.address: f"{function.address} {why}" for function in host.pci}
    known = register or (host.handover.register if host.handover else Register())
    for record in known.quarantined:
        why = f"is quarantined since {record.since} ({record.why}): {record.ways_out}"
        for address in _places(host, record):
            found.setdefault(address, f"{address} {why}")
            for other in _relatives(host, address):
                found.setdefault(other, f"{other} belongs with {address}, which {why}")
    return found


def _places(host: Host, record: DeviceRecord) -> Iterator[str]:
    yield record.address
    marks = {word for word in record.identity.split(" ") if word.startswith(_OF_ONE_DEVICE)}
    if marks & _marks(host, record.address):
        return  # it is still there
    yield from (gpu.address for gpu in host.gpus if marks & _marks(host, gpu.address))
    serials = (host.handover.serials if host.handover else None) or {}
    yield from (address for address, serial in serials.items() if drive_mark(serial) in marks)


def _marks(host: Host, address: str) -> set[str]:
    return {f"{name}={value}" for name, value in host.index.identity(address).items()}


def _relatives(host: Host, address: str) -> Iterator[str]:
    function = host.index.pci.get(address)
    yield from host.index.virtuals.get(address, ())
    if function is not None and function.physfn is not None:
        yield function.physfn
