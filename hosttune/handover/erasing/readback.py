"""What a drive still gives back after it was erased, compared with digests from before, at the same places.

Places of a namespace: its first and last MiB, and 1,024 blocks of 4 KiB chosen by a random key, so that neither the
tenant nor the drive can know them. A digest is keyed with the same key: it tells nothing about the tenant's data to who
reads the file. Equal blocks that are not constant (one byte all over) are old data: the drive was not erased. Zeros are
not required: after a cryptographic erase a drive may return anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b

from hosttune.errors import Unreadable
from hosttune.machine.system import System
from hosttune.model.values import Value

BLOCK, MIB = 4096, 1 << 20
RANDOM_PLACES = 1024  # of each namespace; at least 1,000 are asked for
CONSTANT, UNREAD = "", "?"  # in place of a digest


class Readback(Value, frozen=True, kw_only=True):
    """What was compared. `with_data`: blocks that were not constant before. `same`: of these, unchanged now.

    `unread`: blocks that could not be read, before or now. `first_same`, `first_unread`: where, for a message.
    """

    places: int
    with_data: int
    same: int
    unread: int
    first_same: str | None = None
    first_unread: str | None = None


def places(size: int, key: str, nsid: int) -> tuple[int, ...]:
    """Return the offsets of the blocks to compare, ascending, without repetition; every block of a small namespace."""
    blocks = size // BLOCK
    edge = MIB // BLOCK
    if blocks <= 2 * edge + RANDOM_PLACES:
        return tuple(n * BLOCK for n in range(blocks))
    chosen = set(range(edge)) | set(range(blocks - edge, blocks))
    wanted, n = len(chosen) + RANDOM_PLACES, 0
    while len(chosen) < wanted:
        digest = blake2b(f"{nsid}/{n}".encode(), key=bytes.fromhex(key), digest_size=8).digest()
        chosen.add(int.from_bytes(digest, "big") % blocks)
        n += 1
    return tuple(block * BLOCK for block in sorted(chosen))


def digests(
    system: System, device: str | None, size: int, key: str, nsid: int, late: Callable[[], bool]
) -> tuple[str, ...]:
    """Return the digest of each of the `places` of a namespace: CONSTANT, UNREAD, or hex.

    `late`: whether the time is over. What is left then is UNREAD: a drive that dies can take a minute for each read.
    """
    return tuple(UNREAD if late() else _digest(system, device, offset, key) for offset in places(size, key, nsid))


def _digest(system: System, device: str | None, offset: int, key: str) -> str:
    if device is None:
        return UNREAD
    try:
        data = system.read_medium(device, offset, BLOCK)
    except Unreadable:
        return UNREAD
    if len(data) != BLOCK:
        return UNREAD
    if data == data[:1] * BLOCK:
        return CONSTANT
    return blake2b(data, key=bytes.fromhex(key), digest_size=16).hexdigest()


def compare(
    key: str, sizes: Mapping[int, int], before: Mapping[int, tuple[str, ...]], now: Mapping[int, tuple[str, ...]]
) -> Readback:
    """Return the comparison of all namespaces, by nsid. A list of another length counts as unread."""
    rows = [row for nsid, size in sizes.items() for row in _rows(nsid, places(size, key, nsid), before, now)]
    same = [where for where, old, new in rows if old == new and old not in (CONSTANT, UNREAD)]
    unread = [where for where, old, new in rows if UNREAD in (old, new)]
    return Readback(
        places=len(rows),
        with_data=sum(1 for _, old, _ in rows if old not in (CONSTANT, UNREAD)),
        same=len(same),
        unread=len(unread),
        first_same=next(iter(same), None),
        first_unread=next(iter(unread), None),
    )


def _rows(
    nsid: int,
    offsets: tuple[int, ...],
    before: Mapping[int, tuple[str, ...]],
    now: Mapping[int, tuple[str, ...]],
) -> Iterator[tuple[str, str, str]]:
    lists = [found if len(found) == len(offsets) else (UNREAD,) * len(offsets) for found in
             (before.get(nsid, ()), now.get(nsid, ()))]  # fmt: skip
    for offset, old, new in zip(offsets, *lists, strict=True):
        yield f"namespace {nsid} at {offset}", old, new
