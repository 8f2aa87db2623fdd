"""One function for each command of the statement's life. A function here prints nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from hosttune.errors import BadInput, Refused
from hosttune.handover.erasing import forget_erasing, let_go
from hosttune.handover.kept import given, kept, lists, remember
from hosttune.handover.kept import keep as keep_statement
from hosttune.handover.network import settle
from hosttune.handover.record import course_status, original_methods, running_with, state_lock
from hosttune.handover.signing import SUFFIX, check_list, signature_reasons
from hosttune.handover.statement import epoch_of
from hosttune.handover.verify import live_of, verification
from hosttune.journal.register import release as release_device
from hosttune.journal.state import load
from hosttune.machine.system import state_in
from hosttune.model.handover import Statement
from hosttune.model.host import Host
from hosttune.model.quarantine import DeviceRecord, StartRecording
from hosttune.model.starts import REVOKED
from hosttune.model.verification import DeviceStatus, HandoverStatus, Verification
from hosttune.settings.hook import recording_of
from hosttune.settings.resets import methods_now, restore_methods
from hosttune.transaction.site import Site, writable_store

Here = tuple[Site, Callable[[], Host]]  # where to work, and how to discover the host there


def verify(
    here: Here,
    file: str,
    signers: str,
    identity: str,
    revoked: str | None = None,
    *,
    document: bool = False,
    keep: bool = False,
) -> Verification:
    """Verify a statement on this host (or, `document`, about a host document). Raises BadInput, Refused.

    `keep`: one that is valid is kept in the state directory, for `status`, `validate` and metrics; the list of revoked
    keys is, whatever the answer is: from then on it counts here for every statement.
    """
    store = writable_store(here[0]) if keep else None
    if file == "-":
        raise BadInput("not a file", where=file, hint="name the file: its signature is beside it")
    data = load(file, what="a statement", size="statement")
    statement = Statement.from_json(data, where=file)
    site, discover = here
    # the given list, and those that this host was given before
    try:
        before = () if document else lists(site.store)
    except OSError as error:
        hint = "run as root, on the host itself"
        what = f"the lists of revoked keys here cannot be read: {error.strerror}"
        raise Refused(what, where=REVOKED, hint=hint) from error
    paths = (*(() if revoked is None else (revoked,)), *before)
    reasons = signature_reasons(data, file + SUFFIX, signers, identity, paths)
    answer = verification(statement, live_of(site, discover(), statement, document=document), reasons, identity)
    answer = msgspec.structs.replace(answer, revoked=given(paths, revoked))
    if store is not None and revoked is not None:
        check_list(revoked)  # whatever the signature is
    if store is not None:
        with state_lock(store):
            if revoked is not None:
                remember(store, revoked)
            if answer.opens_gates:
                keep_statement(store, data, file + SUFFIX, signers, identity, answer.revoked)
    return answer


def status(here: Here) -> HandoverStatus:
    """Return the register of a host, with each device's epoch, and whether starts are recorded."""
    site, discover = here
    host = discover()
    state = host.handover
    device_status = None
    if state is not None:
        epochs = {device_record.address: epoch_of(host, device_record.address) for device_record in state.devices}
        device_status = tuple(
            DeviceStatus(record=device_record, epoch=epoch, epoch_unknown=why or None)
            for device_record in state.devices
            for epoch, why in (epochs[device_record.address],)
        )
    return HandoverStatus(
        host=host.hostname,
        devices=device_status,
        recording=recording(site, host),
        course=course_status(site),
        statements=statements(site, host),
    )


def statements(site: Site, host: Host) -> tuple[Verification, ...] | None:
    """Return the signed statements that are kept here, as they are now; None if one cannot be read."""
    verifications, problems = kept(site, host)
    return None if problems else verifications


def recording(site: Site, host: Host) -> StartRecording | None:
    """Return whether starts of guests by other programs are recorded on a host; None if that cannot be read."""
    if host.handover is not None and host.handover.recording is not None:
        return host.handover.recording
    if site.store is None:
        return None
    return recording_of(site.system, state_in(site.system))


def release(here: Here, address: str, why: str) -> DeviceRecord:
    """Free a quarantined device, as a person decided. Raises BadInput, Refused.

    What a hand-over that was cut off has left goes with it: the rules of udev, the one reset method, and where an
    erasure stood, which proves nothing from now on.
    """
    store, system = writable_store(here[0]), here[0].system
    with store.locked():
        number = running_with(store, address)
        if number is not None:
            hint = "wait until it ends, or end it with Ctrl-C first: the device stays quarantined"
            raise Refused(f"hand-over {number} works on {address} now", where=address, hint=hint)
        freed = release_device(store.folder, address, why)
        forget_erasing(store.folder, address)
        let_go(system, address)
        with contextlib.suppress(Refused):  # a journal that cannot be read keeps no device quarantined
            restore_methods(system, address, original_methods(store, address, methods_now(system, address)))
        settle(store.folder, address, freed.identity, "accepted", f"as a person released it: {freed.why}")
        return freed


def checked_identity(identity: str) -> str:
    """Return a signer's name. Raises BadInput for one that ssh-keygen could take for a pattern or a list."""
    if not identity.isprintable() or any(character in identity for character in "*?!,\"' ") or len(identity) > 255:
        raise BadInput(f"{identity!r} is not the name of a signer", where="--identity", hint="alice@example.com")
    return identity
