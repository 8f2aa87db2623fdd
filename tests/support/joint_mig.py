"""Batches of vGPU guests and whole-GPU guests on small hosts, with a judge that tries everything.

From the MIG user guide's placement table and the contract's sentences; imports nothing of what it judges. A batch is
small enough that every way of sharing the GPUs out is counted: which guests have which GPUs whole, and how many
instances of each profile are on which GPU. CPUs and memory never bind here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, combinations_with_replacement
from random import Random
from typing import Any

import mighosts

Json = dict[str, Any]
Where = tuple[int, ...]

# MIG user guide, "Supported MIG Profiles" and `nvidia-smi mig -lgipp`: memory slices taken, and slices to start at.
TABLE = {
    "1g.18gb": (1, (0, 1, 2, 3, 4, 5, 6)),
    "1g.18gb+me": (1, (0, 1, 2, 3, 4, 5, 6)),
    "1g.35gb": (2, (0, 2, 4, 6)),
    "2g.35gb": (2, (0, 2, 4)),
    "3g.71gb": (4, (0, 4)),
    "4g.71gb": (4, (0,)),
    "7g.141gb": (8, (0,)),
}
GPUS = (mighosts.A, mighosts.B, mighosts.C)
SMALL: Json = {"vcpus": 2, "memory": "1GiB", "hugepages": "none"}


@dataclass(frozen=True)
class Card:
    """What is on a GPU before: (profile, start) of each instance, whether they are unused, functions left."""

    address: str
    instances: tuple[tuple[str, int], ...] = ()
    unused: bool = True
    functions: int = 8


@dataclass(frozen=True)
class Batch:
    """A host with such GPUs, and guests for it."""

    cards: tuple[Card, ...]
    guests: tuple[Json, ...]
    host: Json = field(compare=False)

    @property
    def intent(self) -> Json:
        """The guests as an intent."""
        return {"version": 1, "profile": "none", "guests": list(self.guests)}


def batch(seed: int) -> Batch:
    """The batch of a seed: 1-3 GPUs, some with instances, some with few functions; 2-7 guests."""
    rng = Random(seed)
    cards = tuple(_card(rng, address) for address in GPUS[: rng.choice([1, 2, 2, 3, 3])])
    guests = tuple(_guest(rng, f"g{i}", cards) for i in range(rng.randint(2, 7)))
    named: set[str] = set()
    kept = []
    for guest in guests:  # a GPU in two guests is bad input
        mine = set(guest["gpus"]) if isinstance(guest.get("gpus"), list) else set()
        if not mine & named:
            kept.append(guest)
            named |= mine
    if len(named) == len(cards):  # and MIG where every GPU is whole with another is bad input too
        kept = [guest for guest in kept if not _sliced(guest)]
    return Batch(cards, tuple(kept), _host(cards))


def _sliced(guest: Json) -> bool:
    """Instances of the host's, not of the guest's own making."""
    return "mig" in guest and not guest.get("gpus")


def _card(rng: Random, address: str) -> Card:
    instances: list[tuple[str, int]] = []
    for _ in range(rng.choice([0, 0, 0, 1, 2, 3])):
        profile = rng.choice(["1g.18gb", "1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "1g.18gb+me"])
        free = [start for start in TABLE[profile][1] if valid([*instances, (profile, start)])]
        if free:
            instances.append((profile, rng.choice(free)))
    return Card(address, tuple(instances), rng.random() < 0.6, rng.choice([1, 2, 3, 8, 8, 8]))


def _guest(rng: Random, name: str, cards: tuple[Card, ...]) -> Json:
    if rng.random() < 0.2:
        gpus: int | list[str] = rng.choice([1, 1, 2])
        if rng.random() < 0.4:
            gpus = [rng.choice(cards).address]
        inside = {"mig": {"profile": "1g.18gb", "count": rng.choice([2, 7])}} if rng.random() < 0.3 else {}
        return {"name": name, **SMALL, "gpus": gpus, **inside}
    profile = rng.choice([*TABLE, "1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb"])
    return {"name": name, **SMALL, "mig": {"profile": profile, "count": rng.choice([1, 1, 1, 2, 3])}}


def _host(cards: tuple[Card, ...]) -> Json:
    host = mighosts.mig_host(*(card.address for card in cards))
    for card in cards:
        used = {} if card.unused else {"uuid": f"MIG-{card.address}"}  # NVML: the UUID is the compute instance's
        rows = [
            {"profile": name, "id": i + 1, "start": start, "size": TABLE[name][0], **used}
            for i, (name, start) in enumerate(card.instances)
        ]
        mighosts.gpu_row(host, card.address)["mig"]["instances"] = rows
        vgpus = mighosts.vgpu_row(host, card.address)
        for function in vgpus["functions"][card.functions :]:
            function["current_type"] = "1414"
        vgpus["types"] += [{"id": "1420", "name": "NVIDIA H200X-7-141C"}]
    taken = [name for card in cards for name in mighosts.functions_of(card.address)[card.functions :]]
    host["guests"] = [{"name": "old", "state": "running", "vcpu_pins": [], "devices": taken}] if taken else []
    return host


# --- what a GPU can hold -----------------------------------------------------------------------------------------


def slices(profile: str, start: int) -> set[int]:
    """Memory slices of an instance."""
    return set(range(start, start + TABLE[profile][0]))


def valid(instances: list[tuple[str, int]]) -> bool:
    """Each starts where its profile may, none overlap, and one at most has the media engines."""
    taken = [one for profile, start in instances for one in slices(profile, start)]
    starts = all(start in TABLE[profile][1] for profile, start in instances)
    return starts and len(taken) == len(set(taken)) and sum("+me" in profile for profile, _ in instances) <= 1


@cache
def packs(card: Card, wanted: tuple[str, ...]) -> bool:
    """Whether these instances can be had on a GPU, its own staying; unused ones of a wanted profile may be taken."""
    if len(wanted) > card.functions:
        return False
    return _packs(wanted, list(card.instances), list(card.instances) if _reusable(card) else [])


def _reusable(card: Card) -> bool:
    return card.unused and card.functions == 8


def _packs(wanted: tuple[str, ...], there: list[tuple[str, int]], spare: list[tuple[str, int]]) -> bool:
    if not wanted:
        return True
    profile, rest = wanted[0], wanted[1:]
    for old in spare:
        if old[0] == profile and _packs(rest, there, [one for one in spare if one != old]):
            return True
    return any(
        valid([*there, (profile, start)]) and _packs(rest, [*there, (profile, start)], spare)
        for start in TABLE[profile][1]
    )


# --- the most that can be placed ---------------------------------------------------------------------------------


def most(found: Batch) -> int:
    """The largest number of guests that the GPUs can have together."""
    cards = found.cards

    @cache
    def best(i: int, state: tuple[tuple[str, ...] | None, ...]) -> int:
        if i == len(found.guests):
            return 0
        placed = (1 + best(i + 1, after) for after in _ways(found.guests[i], cards, state))
        return max(best(i + 1, state), max(placed, default=0))

    return best(0, ((),) * len(cards))


def _ways(
    guest: Json, cards: tuple[Card, ...], state: tuple[tuple[str, ...] | None, ...]
) -> Iterator[tuple[tuple[str, ...] | None, ...]]:
    """The GPUs after a guest has its part: None = whole with somebody."""
    if not _sliced(guest):
        gpus = guest["gpus"]
        for chosen in combinations(range(len(cards)), len(gpus) if isinstance(gpus, list) else gpus):
            named = not isinstance(gpus, list) or {cards[c].address for c in chosen} == set(gpus)
            if named and all(state[c] == () and _whole(cards[c]) for c in chosen):
                yield tuple(None if c in chosen else row for c, row in enumerate(state))
        return
    profile = guest["mig"]["profile"]
    for spread in combinations_with_replacement(range(len(cards)), guest["mig"]["count"]):
        more: Counter[int] = Counter(spread)
        if any(state[c] is None for c in more):
            continue
        rows = [(*(row or ()), *([profile] * more[c])) if c in more else row for c, row in enumerate(state)]
        after = tuple(row if row is None else tuple(sorted(row)) for row in rows)
        if all(packs(cards[c], after[c] or ()) for c in more):
            yield after


def _whole(card: Card) -> bool:
    """[plan] a guest defined here keeps its devices: none of the GPU's functions is somebody's."""
    return card.functions == 8


# --- what is wrong with a plan -----------------------------------------------------------------------------------


def faults(found: Batch, plan: Json) -> list[str]:
    """Every fault of the plan, as lines."""
    lines = []
    cards = {card.address: card for card in found.cards}
    owners = {name: address for address in cards for name in mighosts.functions_of(address)}
    asked = {guest["name"]: guest for guest in found.guests}
    whole: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    new: dict[str, list[tuple[str, int]]] = {address: [] for address in cards}
    for guest in plan["guests"]:
        want, name = asked[guest["name"]], guest["name"]
        gpus = [row["address"] for row in guest["devices"] if row["kind"] == "gpu"]
        mine = [row["address"] for row in guest["devices"] if row["kind"] in ("vf", "mdev")]
        whole.update(gpus)
        functions.update(mine)
        rows = [(row["gpu"], row["profile"], row["start"]) for row in guest["mig"]]
        if _sliced(want):
            if [row[1] for row in rows] != [want["mig"]["profile"]] * want["mig"]["count"] or gpus:
                lines.append(f"{name}: has {rows} and GPUs {gpus}")
            if Counter(owners[one] for one in mine) != Counter(gpu for gpu, _, _ in rows):
                lines.append(f"{name}: functions {mine} are not those of {rows}")
            for gpu, profile, start in rows:
                new[gpu].append((profile, start))
            continue
        count = want["gpus"] if isinstance(want["gpus"], int) else len(want["gpus"])
        if len(gpus) != count or mine or (isinstance(want["gpus"], list) and set(gpus) != set(want["gpus"])):
            lines.append(f"{name}: GPUs {gpus} and functions {mine}")
        inside = want.get("mig", {"count": 0})["count"]
        for gpu in gpus:
            own = [(profile, start) for on, profile, start in rows if on == gpu]
            if len(own) != inside or not valid(own):
                lines.append(f"{name}: inside it {own} on {gpu}")
    lines += [f"{one} is passed {times} times" for one, times in (whole + functions).items() if times > 1]
    for address, card in cards.items():
        lines += [f"{address}: {text}" for text in _on_gpu(card, new[address], address in whole)]
        mine = [one for one in functions if owners[one] == address]
        taken = mighosts.functions_of(address)[card.functions :]
        if set(mine) & set(taken):
            lines.append(f"{address}: functions {mine}, of which {taken} are taken")
    placed, best = len(plan["guests"]), most(found)
    if placed > best or (placed < best and not cut_off(plan)):
        lines.append(f"{placed} placed, the most is {best}")
    return lines


def cut_off(plan: Json) -> bool:
    """Whether the plan says that its search was not finished."""
    return any("cut off" in finding["text"] for finding in plan["findings"])


def _on_gpu(card: Card, new: list[tuple[str, int]], whole: bool) -> Iterator[str]:
    if whole and (new or not _whole(card)):
        yield f"whole with a guest, and {new} of others with {card}"
    again = [one for one in new if one in card.instances and _reusable(card)]
    made = [one for one in new if one not in again]
    if not valid([*card.instances, *made]) or len(again) != len(set(again)):
        yield f"{new} beside {card.instances}"
