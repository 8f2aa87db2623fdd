"""The signed statements that a host keeps, so that `status`, `validate` and metrics can say what they are worth now.

`handover verify --keep` puts a statement that is valid here into the state directory, with all that it was verified
with: `handover/signed/NAME.json`, `.json.sig`, `.signers`, `.identity` and `.revoked`, the digests of the lists of
revoked keys. Each reading verifies it anew, with all lists that the host was given since.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec

from hosttune.errors import BadInput, HosttuneError, state_remedy
from hosttune.handover.signing import SUFFIX, signature_reasons
from hosttune.handover.verify import live_of, verification
from hosttune.journal import Store
from hosttune.journal.state import load, load_text, mode_of
from hosttune.machine.files import make_folder, names_ending, remove_file, sync_folder, write_whole
from hosttune.model.evidence import UNREAD_STATEMENT
from hosttune.model.handover import Statement
from hosttune.model.host import Host, Problem
from hosttune.model.result import Result
from hosttune.model.starts import REVOKED, SIGNED
from hosttune.model.verification import RevokedList, Verification
from hosttune.transaction import calls
from hosttune.transaction.site import Site

_TEXT = ".json"
_PARTS = (_TEXT, _TEXT + SUFFIX, ".signers", ".identity", ".revoked")  # without the first it does not count


def keep(
    store: Store, data: bytes, signature: str, signers: str, identity: str, revoked: Iterable[RevokedList]
) -> None:
    """Keep a statement that was found valid, in place of those that have a device of it. Raises BadInput.

    `data`: its bytes. `signature`, `signers`: paths. `revoked`: the lists that it was verified with, which the
    host has. The caller holds the lock.
    """
    parts = {
        _TEXT + SUFFIX: load(signature, what="the signature"),
        ".signers": load(signers, what="a file of allowed signers"),
        ".identity": identity.encode(),
        ".revoked": "".join(f"{revoked_list.sha256}\n" for revoked_list in revoked).encode(),
        _TEXT: data,
    }
    folder, name = os.path.join(store.folder, SIGNED), hashlib.sha256(data).hexdigest()[:16]
    devices = {device.address for device in Statement.from_json(data).predicate.devices}
    try:
        make_folder(folder, mode_of(f"{SIGNED}/"))
        for part, value in parts.items():
            write_whole(os.path.join(folder, name + part), value, mode_of(f"{SIGNED}/NAME"))
        sync_folder(folder)
        for other in _names(store):
            if other != name and devices & _devices(os.path.join(folder, other + _TEXT)):
                for part in _PARTS:
                    remove_file(os.path.join(folder, other + part))
    except OSError as error:
        raise BadInput(f"cannot write {folder}: {error.strerror}", where=folder, hint=state_remedy(error)) from error


def kept(site: Site, host: Host) -> tuple[tuple[Verification, ...] | None, tuple[Problem, ...]]:
    """Return the statements that are kept, as they are now, and what of them cannot be read.

    None: the host has no readable state. A statement that cannot be verified is a problem.
    """
    if site.store is None:
        return None, ()
    verifications, problems = [], []
    try:
        names = _names(site.store)
    except OSError as error:
        where = os.path.join(site.store.folder, SIGNED)
        return None, (Problem(what=UNREAD_STATEMENT, where=where, why=str(error.strerror)),)
    for name in names:
        path = os.path.join(site.store.folder, SIGNED, name)
        try:
            data = load(path + _TEXT, what="a statement", size="statement")
            statement = Statement.from_json(data, where=path + _TEXT)
            identity = load_text(path + ".identity", what="the name of its signer")
            paths = lists(site.store)
            known = given(paths)
            lost = set(load_text(path + ".revoked", what="its lists of revoked keys").split()) - {
                revoked_list.sha256 for revoked_list in known
            }
            if lost:
                hint = "verify it again with --revoked and --keep"
                raise BadInput("a list of revoked keys that it was verified with is missing", where=path, hint=hint)
            wrong = signature_reasons(data, path + _TEXT + SUFFIX, path + ".signers", identity, paths)
            answer = verification(statement, live_of(site, host, statement), wrong, identity)
            verifications.append(msgspec.structs.replace(answer, revoked=known))
        except (HosttuneError, OSError) as error:
            why = error.what if isinstance(error, HosttuneError) else str(error.strerror)
            problems.append(Problem(what=UNREAD_STATEMENT, where=path + _TEXT, why=why))
    return tuple(verifications), tuple(problems)


def _names(store: Store) -> list[str]:
    folder = os.path.join(store.folder, SIGNED)
    return [name.removesuffix(_TEXT) for name in names_ending(folder, _TEXT)] if os.path.lexists(folder) else []


def _devices(path: str) -> set[str]:
    """Return the devices of a statement that is kept; none if it cannot be read: it stays."""
    try:
        return {device.address for device in Statement.from_json(load(path, what="a statement")).predicate.devices}
    except BadInput:
        return set()


def lines_of(verifications: Iterable[Verification]) -> Iterable[str]:
    """Yield one line about each device of the statements, for people."""
    for one in verifications:
        for address in one.devices:
            state, why = one.state(address), "; ".join(dict.fromkeys(reason.text for reason in one.of(address)))
            until = f"{'valid' if state == 'valid' else 'valid, and expires soon:'} until {one.expires_at}"
            signed = f"signer {one.signer}, {one.list_age()}"
            yield f"{address}: its statement is {f'{state}: {why}' if why else until} ({signed})"


# The lists of revoked keys that a host was given: each of them counts for every statement here, from then on.
# A host cannot fetch a list, and cannot tell which of two lists is newer: a file of public keys has no date, and a
# controller may have an old copy. So it keeps every list that `handover verify --keep` was given
# (`handover/revoked/NAME`, by its digest), and a key that one of them revokes stays revoked here. A revocation that
# the host was never told of it cannot know: what it answers says when it was last given a list.


def remember(store: Store, path: str) -> None:
    """Keep a list; one that is kept already was given again now. Raises BadInput. The caller holds the lock."""
    data = load(path, what="revoked keys")
    folder = os.path.join(store.folder, REVOKED)
    kept = os.path.join(folder, hashlib.sha256(data).hexdigest())
    try:
        make_folder(folder, mode_of(f"{REVOKED}/"))
        # Also if it is there: its time says when it was given last. What a crash leaves is beside the folder, no list.
        write_whole(kept, data, mode_of(f"{REVOKED}/NAME"), temporary=f"{folder}.new")
        sync_folder(folder)
    except OSError as error:
        raise BadInput(f"cannot write {folder}: {error.strerror}", where=folder, hint=state_remedy(error)) from error


def lists(store: Store | None) -> tuple[str, ...]:
    """Return the paths of the lists that are kept. Raises OSError; BadInput for one that is not what its name says."""
    folder = os.path.join(store.folder, REVOKED) if store is not None else ""
    paths = tuple(os.path.join(folder, name) for name in names_ending(folder, "")) if os.path.lexists(folder) else ()
    for path in paths:
        if hashlib.sha256(load(path, what="revoked keys")).hexdigest() != os.path.basename(path):
            hint = "remove it, and give the host the controller's list again (handover verify --keep --revoked FILE)"
            raise BadInput("a list of revoked keys that was changed since it was kept", where=path, hint=hint)
    return paths


def given(paths: Iterable[str], now: str | None = None) -> tuple[RevokedList, ...]:
    """Return the digest of each list, and when the host was last given it, each once. Raises BadInput.

    `now`: the path of a list that it is given now.
    """
    revoked_lists: dict[str, RevokedList] = {}
    for path in paths:
        digest = hashlib.sha256(load(path, what="revoked keys")).hexdigest()
        at = datetime.now(UTC) if path == now else datetime.fromtimestamp(os.stat(path).st_mtime, UTC)
        revoked_lists.setdefault(digest, RevokedList(sha256=digest, given_at=at.isoformat(timespec="seconds")))
    return tuple(revoked_lists.values())


# --- notes of status -------------------------------------------------------------------------------------------
# `hosttune status` with what the signed statements that are kept here are worth now.


def status(here: tuple[Site, Callable[[], Host]]) -> Result:
    """Return what `hosttune status` answers, with a note about each device of a statement."""
    site, discover = here
    result = calls.status(here)
    if site.store is None or not os.path.lexists(os.path.join(site.store.folder, SIGNED)):
        return result
    from hosttune.handover.kept import kept, lines_of  # few hosts need it

    known, problems = kept(site, discover())
    told = (*lines_of(known or ()), *(f"{problem.what}: {problem.where}: {problem.why}" for problem in problems))
    return msgspec.structs.replace(result, notes=(*result.notes, *told))
