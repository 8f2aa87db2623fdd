"""Sweeps try one thing at very many places. `make test` takes a seeded sample of each, `make lab-full` all of it.

$HOSTTUNE_SWEEP is the seed of the sample (a number, 1 without it), or `full`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")

SEED = os.environ.get("HOSTTUNE_SWEEP", "1")
FULL = SEED == "full"


def sample(name: str, places: Sequence[T], most: int) -> list[T]:
    """At most `most` of the places, in their order; in a full sweep all.

    Of three and more one is the first and one the last. `name` is the sweep's own: another sweep over the same number
    of places takes others.
    """
    if FULL or len(places) <= most:
        return list(places)
    chance, last = Random(f"{SEED} {name}"), len(places) - 1
    if most < 3:
        return [places[at] for at in sorted(chance.sample(range(last + 1), most))]
    return [places[at] for at in (0, *sorted(chance.sample(range(1, last), most - 2)), last)]


def examples(most: int, full: int) -> int:
    """How many examples Hypothesis draws: `most` in a sample."""
    return full if FULL else most
