"""Rates of GPUs as people and tools write them, each with the GPU's number: the one that is far below its equals."""

from __future__ import annotations

import re

from hosttune.model.measured import Measured, Observations, Stated
from hosttune.rules.causes.equals import SPREAD

_RATE = (
    r"([\d,]{1,12}(?:\.\d{1,9})?) ?\)?"
    r"((?i:[GTP]FLOPS?(?:/s)?|[GM]i?B/s|(?:images?|img|samples?|tokens?|tok)(?:/s(?:ec(?:ond)?)?|ps)))(?![\w/])"
)
RATES = rf"(?i:\b(gpu|hpu|device|worker|rank|card|gcd))[ #:=\[-]{{0,3}}(\d{{1,3}})\b([^\n]{{0,100}}?)(?<![\w.,]){_RATE}"
_ALIKE = 1.5  # of others that differ by more than this none is the measure of the rest
_OF_WORK = (
    "under load read its clocks' reasons, temperature, power limit and ECC errors, and see what its process waits for"
    " (CPUs, NUMA node, data); if nothing limits it, reseat it, and then replace it"
)
_OF_COPIES = "lspci -vv under load (LnkSta), its riser and slot, the NUMA node of the memory, what shares its switch"


def rates(text: str) -> Measured:
    """Return the one that is far below the others, of those whose rows differ in numbers only."""
    groups: dict[tuple[str, ...], dict[str, float]] = {}
    for word, number, words, value, unit in re.findall(RATES, text):
        form = re.sub(r"\b[0-9a-f]{0,8}\d[0-9a-f]{0,8}|\d+", "#", words)
        served = word.lower() == "worker" and "flop" not in unit.lower()  # by requests, which differ
        if not served and not re.search(r"->|<-|(?i:gpu|device|rank|card)\W{0,3}#", form):  # of two: a pair
            group = groups.setdefault((word.lower(), form, unit.lower()), {})
            group[f"{word.upper() if len(word) == 3 else word} {number}"] = float(value.replace(",", "") or 0)
    ranked = ((unit, sorted((rate, name) for name, rate in group.items())) for (*_, unit), group in groups.items())
    stated = tuple(
        Stated(
            says=f"{name} gives far less than the others",
            line=f"{name}: {least:g} {unit}, the others {rest[0][0]:g} and more",
            remedy=_OF_COPIES if unit.endswith("b/s") else _OF_WORK,
            source="runs of equal GPUs differ by less than a fifth: docs/models.md",
        )
        for unit, ((least, name), *rest) in ranked
        if len(rest) > 1 and 0 < least * SPREAD < rest[0][0] and rest[-1][0] <= _ALIKE * rest[0][0]
    )
    return Measured(version=1, observations=Observations(stated=stated[:1]))
