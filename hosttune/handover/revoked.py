"""The lists of revoked keys that a host was given: each of them counts for every statement here, from then on.

A host cannot fetch a list, and cannot tell which of two lists is newer: a file of public keys has no date, and a
controller may have an old copy. So it keeps every list that `handover verify --keep` was given
(`handover/revoked/NAME`, by its digest), and a key that one of them revokes stays revoked here. A revocation that the
host was never told of it cannot know: what it answers says when it was last given a list.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from datetime import UTC, datetime

from hosttune.errors import BadInput, state_remedy
from hosttune.journal import Store
from hosttune.journal.state import load, mode_of
from hosttune.machine.files import make_folder, names_ending, sync_folder, write_whole
from hosttune.model.starts import REVOKED
from hosttune.model.verification import RevokedList


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
