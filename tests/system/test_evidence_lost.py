"""Evidence that is lost, emptied, refused or cut short never makes a result better: over every captured host.

The whole (`make evidence`, HOSTTUNE_SWEEP=full) tries one place of every stratum alone, and random sets: 43,646 trials
in 88 cases, an hour of one core. One device or CPU of 192 stands for the others; the cases of one host and of the
sick hosts made of it take other places. `make test` takes a seeded sample, stratified by host and by kind of source.
What the rule does not hold for, records whose absence is the healthy state, is in docs/validate.md.
"""

from __future__ import annotations

import gc
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random

import pytest
from damage import (
    OWN,
    Damage,
    Files,
    Found,
    as_captured,
    improvements,
    load,
    places,
    read_by_discovery,
    sealed,
    validated,
)
from damage import with_damage as damaged
from sickhosts import HEALTHY, SICK
from sweeps import SEED, sample
from unit.rules.test_checks_captures import ARCHIVES

from hosttune.discovery.recording import Recording
from hosttune.errors import BadInput, Unreadable
from hosttune.rules.checks import checks

HOSTS: Mapping[str, Callable[[], Files]] = {
    **{name: lambda path=path: load(path) for name, path in ARCHIVES.items()},  # type: ignore[misc]
    **SICK,
}
# Hosts with many sources, a fault in many of them; the others lack most of what is looked at.
RICH = ("example-hgx-h200-8", *SICK, "older-vm-x4", "derived-xe9680-8xh100-lspci", "derived-amd-mi300x-8-vm")
# GPUs and NVSwitches, which drivers, tools and boards know besides the list of PCI functions.
PRESENCE = any(check.id == "device-present" for check in checks())
SETS = 400  # random sets of a host in the whole; 50 of other hosts
SUMMARY = os.environ.get("HOSTTUNE_EVIDENCE_SUMMARY")  # a file to which the whole appends what it has covered


@cache
def sources(name: str) -> tuple[Files, Recording, tuple[Damage, ...]]:
    """(the host as it is, what discovery reads of it, every damage)."""
    found = HOSTS[name]()
    read = read_by_discovery(found)
    return found, read, tuple(places(found, read))


@cache
def host(name: str, own: bool) -> tuple[Files, Found, tuple[Damage, ...]]:
    """(the host, as a capture of hosttune's own or as it is; what is found on it; every damage)."""
    found, read, every = sources(name)
    found = as_captured(found, read) if own else found
    return found, validated(found), every


def trial(name: str, own: bool, *damages: Damage) -> list[str]:
    """What got better by these damages; none for a capture that is refused."""
    whole, before, _ = host(name, own)
    known = {subject for check, subject in before.outcomes if check in ("gpu-driver", "sxid")} if PRESENCE else ()
    try:
        after = validated(damaged(whole, *damages))
    except (BadInput, Unreadable):
        return []
    what = ", ".join(damage.what for damage in damages)
    return [f"{name}{' (own capture)' if own else ''}: {what}: {line}" for line in improvements(before, after, known)]


def one_of_each(damages: tuple[Damage, ...], chance: Random) -> list[Damage]:
    """One damage of each stratum."""
    strata: dict[str, list[Damage]] = {}
    for damage in damages:
        strata.setdefault(damage.stratum, []).append(damage)
    return [chance.choice(alike) for alike in strata.values()]


def trials(name: str, own: bool) -> list[tuple[Damage, ...]]:
    """The whole of a host: single damages, and sets of two to six."""
    _, _, every = host(name, own)
    chance = Random(f"{SEED} {name} {own}")
    single, of_sets = one_of_each(every, chance), one_of_each(every, chance)
    number = (SETS if name in RICH else 50) if every else 0
    sets = [tuple(chance.sample(of_sets, min(chance.randint(2, 6), len(of_sets)))) for _ in range(number)]
    return [*((damage,) for damage in single), *sets]


def run(name: str, own: bool, tried: list[tuple[Damage, ...]]) -> None:
    """Try them; every improvement is told, by kind of damage, in the error."""
    gc.freeze()  # the host, which every trial reads and none changes
    better = {damages: found for damages in tried if (found := trial(name, own, *damages))}
    gc.unfreeze()
    if SUMMARY:
        _, before, every = host(name, own)
        row = {
            "host": name,
            "own": own,
            "verdict": before.verdict,
            "results": len(before.outcomes),
            "places": len(every),
            "strata": len({damage.stratum for damage in every}),
            "trials": len(tried),
            "covered": len({damage.stratum for damages in tried for damage in damages}),
            "improved": len(better),
        }
        with Path(SUMMARY).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    kinds = Counter(" + ".join(damage.stratum for damage in damages) for damages in better)
    lines = [line for found in better.values() for line in found[:3]]
    told = [f"{len(better)} of {len(tried)} trials improved a result:", *lines[:200], *map(str, kinds.items())]
    assert not better, "\n".join(told)


CASES = [
    (name, own)
    for name in (*RICH, *sample("evidence hosts", [name for name in HOSTS if name not in RICH], 2))
    for own in (False, True)
]


@pytest.mark.parametrize(("name", "own"), sample("evidence cases", CASES, 8))
def test_lost_evidence_never_improves_a_result(name: str, own: bool) -> None:
    run(name, own, sample(f"evidence {name} {own}", trials(name, own), 2))


def test_the_folders_of_a_damaged_host_are_those_of_an_archive() -> None:
    whole, _, every = host("older-vm-x4", own=True)
    for damage in sample("folders of damaged hosts", one_of_each(every, Random(SEED)), 60):
        found = damaged(whole, damage)
        assert found.folders == Files(found.files, found.links, found.dirs).folders, damage.what


@pytest.mark.parametrize("name", sample("healed hosts", list(HEALTHY), 1))
def test_a_fault_whose_file_was_changed_later_is_not_healed(name: str) -> None:
    """Each file in which a sick host differs from a healthy one reads as the healthy one's: its digest tells."""
    whole, before, _ = host(name, own=True)
    healthy = HEALTHY[name]()
    capture = sealed(whole)
    faulty = [path for path in capture.files if healthy.files.get(path, b"") not in (b"", capture.files[path])]
    assert faulty
    for path in sample(f"healed {name}", [path for path in faulty if path not in OWN], 4):
        after = validated(capture.put({path: healthy.files[path]}))
        assert list(improvements(before, after)) == [], path
