"""Whether a statement is valid here and now: its signature, its time, and its subjects, recomputed from the host.

Whatever cannot be read makes it void. A result about a host document opens no gate (`about`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from hosttune.discovery.holders import DeviceUser, holders
from hosttune.errors import Unreadable
from hosttune.handover.binding import binding_of
from hosttune.handover.statement import Unread, applied_values, epoch_of, known_firmware, live_device
from hosttune.hypervisor import is_active, unread_guests
from hosttune.model.handover import CLOCKS, LONGEST, HandedDevice, Predicate, Statement, digest_of, time_of
from hosttune.model.host import Host
from hosttune.model.values import FrozenMap, Value, value_text
from hosttune.model.verification import Reason, Verification
from hosttune.transaction.site import Site

_UNREADABLE = "cannot be read now"


class Live(Value, frozen=True, kw_only=True):
    """The host as it is now. `applied` None: a host document, which has no applied settings.

    `firmware`: that of each device of the statement, by address; None for one: unknown. `users`: who has the devices
    open, and what of that could not be read. `bindings`: each device's to its driver (`binding_of`).
    """

    host: Host
    applied: Mapping[str, Any] | None
    firmware: Mapping[str, Mapping[str, str] | None]
    users: tuple[DeviceUser, ...] = ()
    bindings: Mapping[str, str | None] = FrozenMap({})


def live_of(site: Site, host: Host, statement: Statement, *, document: bool = False) -> Live:
    """Return what a statement is compared with; `document`: a host document. Raises Refused (an unread journal)."""
    addresses = tuple(device.address for device in statement.predicate.devices)
    system = None if document else site.system
    return Live(
        host=host,
        users=()
        if document
        else holders(site.system, tuple(address for address in addresses if address in host.index.pci)),
        applied=None if document else applied_values(site),
        firmware={address: known_firmware(system, host, address) for address in addresses},
        bindings={} if document else {address: _binding_now(site, address) for address in addresses},
    )


def _binding_now(site: Site, address: str) -> str | None:
    try:
        return binding_of(site.system, address)
    except Unreadable:
        return None


def verification(
    statement: Statement, live: Live, signature: Iterable[Reason], signer: str, *, at: datetime | None = None
) -> Verification:
    """Return the answer about a statement. `signature`: what is wrong with its signature. `at`: now, in UTC."""
    predicate, at = statement.predicate, at or datetime.now(UTC)
    reasons = (
        *signature,
        *_of_statement(statement, at),
        *_of_host(statement, live),
        *(reason for device in predicate.devices for reason in _of_device(device, live)),
        *(_about(user.address, "unknown" if user.unknown else "in-use", user.text) for user in live.users),
    )
    return Verification(
        verdict="void" if reasons else "valid",
        about="document" if live.applied is None else "host",
        host=predicate.host,
        signer=signer,
        devices=tuple(handed_device.address for handed_device in predicate.devices),
        issued_at=predicate.issued_at,
        expires_at=predicate.expires_at,
        reasons=reasons,
        expiring=not reasons and _expiring(predicate, at),
    )


def _expiring(predicate: Predicate, at: datetime) -> bool:
    """Return whether less than an hour, or a tenth of its time, is left."""
    if predicate.expires_at is None:
        return False
    issued, until = (time_of(one, "statement") for one in (predicate.issued_at, predicate.expires_at))
    return until - at < min(timedelta(hours=1), (until - issued) / 10)


def _of_statement(statement: Statement, at: datetime) -> Iterable[Reason]:
    predicate = statement.predicate
    if statement.subject != Statement.of(predicate).subject:
        yield _about("statement", "subject", "the digests of its subjects are not those of its fields")
    if not predicate.devices:
        yield _about("statement", "no-device", "it has no device")
    for device in predicate.devices:
        for why in device.unclean:
            yield _about(device.address, "not-clean", why)
    if time_of(predicate.issued_at, "statement") > at + CLOCKS:
        text = f"issued at {predicate.issued_at}, and it is {_shown(at)}: one of the clocks is wrong"
        yield _about("statement", "future", text)
    if predicate.expires_at is None:
        yield _about("statement", "no-expiry", "it has no expiry: it was not signed by hosttune handover sign")
    elif time_of(predicate.expires_at, "statement") > at + LONGEST + CLOCKS:
        text = f"expires at {predicate.expires_at}, and it is {_shown(at)}: more than the {LONGEST.days} days that"
        yield _about("statement", "future", f"{text} sign gives at most, so that one of the clocks is wrong")
    elif time_of(predicate.expires_at, "statement") <= at:
        yield _about("statement", "expired", f"expired at {predicate.expires_at}, and it is {_shown(at)}")


def _of_host(statement: Statement, live: Live) -> Iterable[Reason]:
    predicate, host = statement.predicate, live.host
    rows = (
        ("host", "name", predicate.host, host.hostname),
        ("boot", "boot id", predicate.boot_id, host.boot_id),
        ("machine", "machine (its id, CPUs and nodes)", predicate.machine, host.digest),
    )
    for reason, what, stated, now in rows:
        if stated is None or now is None:
            where = "the statement does not know it" if stated is None else _UNREADABLE
            yield _about("host", "unknown", f"{what}: {where}")
        elif stated != now:
            yield _about("host", reason, f"{what}: was {stated!r}, and is {now!r}")
    if live.applied is None:
        for name in predicate.applied:
            yield _about("host", "unknown", f"applied setting {name}: a host document does not have it")
    else:
        for name in sorted(predicate.applied.keys() | live.applied.keys()):
            value = live.applied.get(name)
            if name not in predicate.applied:
                yield _about("host", "setting", f"{name} was applied since")
            elif name not in live.applied:
                yield _about("host", "setting", f"{name} was reverted since")
            elif isinstance(value, Unread):
                yield _about("host", "unknown", f"{name} {value.why}")
            elif digest_of(value) != digest_of(predicate.applied[name]):
                shown = (value_text(one, nothing="none") for one in (predicate.applied[name], value))
                yield _about("host", "setting", f"{name}: was {', and is '.join(shown)}")


def _of_device(device: HandedDevice, live: Live) -> Iterable[Reason]:
    address, host = device.address, live.host
    if address not in host.index.pci:
        yield (_elsewhere(device, host) or _about(device.address, "missing", "the host has no such function"))
        return
    now = live_device(host, address, live.firmware.get(address))
    if now["identity"] != device.identity:
        yield _elsewhere(device, host) or _about(
            address, "identity", f"it was {device.identity!r}, and is {now['identity']!r}"
        )
    if now["driver"] != device.driver:
        yield _about(address, "driver", f"it was on {device.driver or 'none'}, and is on {now['driver'] or 'none'}")
    yield from _bound_anew(address, live)
    yield from _firmware(device, now["firmware"])
    why = epoch_of(host, address)[1]
    if device.epoch is None:
        yield _about(address, "unknown", "the statement has no epoch: starts were not recorded when it was made")
    if now["epoch"] is None:
        yield _about(address, "unknown", f"whether it was started since is unknown: {why}")
    elif device.epoch is not None and now["epoch"] != device.epoch:
        epochs = f"epoch {device.epoch}, now {now['epoch']}"
        yield _about(address, "started", f"a guest was started with it since, or it was handed over again ({epochs})")
    yield from _use(address, host)


def _bound_anew(address: str, live: Live) -> Iterable[Reason]:
    """Yield that a device was bound to a driver since it was returned."""
    state = live.host.handover
    record = state.register.record(address) if state is not None else None
    if record is None or record.state != "clean" or record.binding is None or live.applied is None:
        return
    now = live.bindings.get(address)
    if now is None:
        yield _about(address, "unknown", "whether a driver was bound to it since is unknown")
    elif now != record.binding and record.boot_id == live.host.boot_id:
        text = "a driver was bound to it since it was returned: another one had it, or another device is in its place"
        yield _about(address, "driver", text)


def _firmware(device: HandedDevice, now: Mapping[str, str] | None) -> Iterable[Reason]:
    if device.firmware is None:
        yield _about(device.address, "unknown", "the statement does not know its firmware")
    elif now is None:
        yield _about(device.address, "unknown", f"its firmware {_UNREADABLE}")
    else:
        for name in sorted(device.firmware.keys() | now.keys()):
            if device.firmware.get(name) != now.get(name):
                text = f"{name} was {device.firmware.get(name)!r}, and is {now.get(name)!r}"
                yield _about(device.address, "firmware", text)


def _use(address: str, host: Host) -> Iterable[Reason]:
    """Yield what the register and libvirt say against a device."""
    record = host.handover.register.record(address) if host.handover else None
    if record is not None and record.state == "quarantined":
        yield _about(address, "quarantined", f"it is quarantined since {record.since}: {record.why}")
    if record is not None and record.state == "released":
        yield _about(address, "released", f"{record.who} released it at {record.since}: {record.why}")
    if host.guests is None:
        yield _about(address, "unknown", "libvirt cannot be asked whether a guest has it")
    unread = unread_guests(host)
    for guest in host.guests or ():
        if address in guest.devices and is_active(guest.state):
            yield _about(address, "in-use", f"guest {guest.name} has it and is {guest.state}")
        elif address in guest.devices and guest.may_run:
            yield _about(address, "unknown", f"guest {guest.name} has it, and whether that runs {_UNREADABLE}")
        elif guest in unread and guest.may_run:
            text = f"whether guest {guest.name} has it, which is not shut off: its definition {_UNREADABLE}"
            yield _about(address, "unknown", text)


def _elsewhere(device: HandedDevice, host: Host) -> Reason | None:
    """Return the reason if the device is now at another address; None if it is at none, or at several."""
    from hosttune.inventory.devices import identity, read_catalogue

    catalogue = read_catalogue(host)
    wanted = device.identity.partition(" ")[2]
    here = [
        function.address
        for function in host.pci
        if function.address != device.address
        and identity(catalogue, function.address, host).partition(" ")[2] == wanted
    ]
    if len(here) != 1:
        return None
    return _about(device.address, "moved", f"a device with this identity is at {here[0]} now")


def _about(subject: str, reason: Any, text: str) -> Reason:
    return Reason(reason=reason, subject=subject, text=text)


def _shown(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
