"""Figures of equals in one run against each other: GPUs, pairs, ports, hosts. The one far below the others stands out.

Runs of one figure on one machine are nearer to each other than `SPREAD`; no model of the machine is needed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from hosttune.model.text import number
from hosttune.rules.causes.verdicts import LOADED, Judged

SPREAD = 1.25
FALLEN, BESIDE = " bytes give", " host memory gives over this port"
OF_MPI = "one rank a host"  # MPI chooses the way itself, where perftest has registered GPU memory with the NIC
_ALIKE = 1.5  # of others that differ by more than this none is the measure of the rest
_COUNTED = r"gpus|ranks|processes|hosts|nodes|guests|ports|nics|hcas|rails|cards"
_PLACE = re.compile(
    r"\b(?:host|node|pair|rack)[ _-][a-z0-9][\w.-]{0,62}|"
    r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|\d{1,3}(?:\.\d{1,3}){3}|"  # an address; 2.27.3 is a version
    # No size of a matrix, no model (H100, MI300X, RTX 4090), no count, no size.
    r"(?<![\d.])(?<![x×] )(?<![x×])(?<!\b[mnk]=)(?<!\bmi)(?<!\b[abhlptv])\d{1,3}"
    rf"(?!\d|\.\d| ?[x×]| ?(?:{_COUNTED}|[kmgt]i?b)\b)",
    re.IGNORECASE,
)
_PORTS = re.compile(r"\b(\d{1,4}) (?:ports?|nics?|hcas?|rails?|cards?)\b", re.IGNORECASE)


def compared(figures: Sequence[Judged]) -> tuple[Judged, ...]:
    """Return the figures; one that is far below its equals is low, and `apart` says by how much."""
    apart: dict[int, str] = {}
    for group in _groups(figures):
        apart.update(_apart(figures, group))
    apart.update(_of_ports(figures))
    apart.update(_of_larger(figures))
    apart.update(_of_gpu_memory(figures))
    return tuple(
        replace(
            judged,
            verdict="low",
            why=f"{apart[n]}; {judged.why}" if judged.verdict == "low" else apart[n],
            apart=apart[n],
        )
        if n in apart and judged.verdict != "impossible" else judged
        for n, judged in enumerate(figures)
    )  # fmt: skip


def _groups(figures: Sequence[Judged]) -> Iterator[Mapping[int, float]]:
    """Yield the values of figures that differ only in the device, pair or host that their subject names."""
    groups: dict[tuple[object, ...], dict[int, float]] = {}
    for n, verdict in enumerate(figures):
        if verdict.value is not None and not verdict.small and _PLACE.search(verdict.figure.subject):
            key = (verdict.figure.metric, verdict.figure.size_bytes, _PLACE.sub("#", verdict.figure.subject.lower()))
            groups.setdefault(key, {})[n] = verdict.value
    for (metric, *_), group in groups.items():
        if len({figures[n].figure.subject for n in group}) == len(group) and (
            metric not in ("memory-latency", "power")
            or (metric == "power" and all(LOADED.search(figures[n].figure.subject[:400]) for n in group))
        ):
            yield group


def _apart(figures: Sequence[Judged], group: Mapping[int, float]) -> Iterator[tuple[int, str]]:
    """Yield the few that are far below the others, if the others are alike.

    Of pairs there may be many: all those of devices that have no pair as fast as the others.
    """
    low = {n for n in group if group[n] * SPREAD < max(group.values()) / (_ALIKE / SPREAD if len(group) == 2 else 1)}
    places = {n: frozenset(_PLACE.findall(figures[n].figure.subject)) for n in group}
    fine = frozenset().union(*(places[n] for n in group if n not in low))
    pairs = all(len(place) == 2 for place in places.values()) and len(fine) > 1
    if len(low) * 3 > len(group) and len(group) != 2 and not (pairs and all(places[n] - fine for n in low)):
        return
    rest = [group[n] for n in group if n not in low]
    if low and max(rest) <= _ALIKE * min(rest) and all(group[n] * SPREAD < min(rest) for n in low):
        middle, unit = median(rest), figures[min(low)].figure
        factor = figures[min(low)].factor
        others = "the other" if len(rest) == 1 else f"the other {len(rest)}"
        often = Counter(place for n in low if pairs for place in places[n] - fine)
        shared = {place for place in often if often[place] > 1}
        for n in low:
            part = f"{group[n] / middle:.0%} of {others} ({number(middle / factor)} {unit.unit})"
            names = (rf"[a-z]{{0,16}}{re.escape(place)}\b" for place in shared & places[n])
            whose = [re.search(name, figures[n].figure.subject) for name in names]
            also = f", as all pairs of {whose[0][0]}" if len(whose) == 1 and whose[0] else ""
            yield n, f"{number(figures[n].figure.value)} {unit.unit}, {part}{also}"


def _of_ports(figures: Sequence[Judged]) -> Iterator[tuple[int, str]]:
    """Yield figures of several ports that are hardly more than that of fewer."""
    groups: dict[tuple[str, str], list[tuple[int, int, float]]] = {}
    for n, verdict in enumerate(figures):
        if (match := _PORTS.search(verdict.figure.subject)) and verdict.value and int(match[1]):
            rest = _PORTS.sub("", verdict.figure.subject)
            groups.setdefault((verdict.figure.metric, rest), []).append((int(match[1]), n, verdict.value))
    for group in groups.values():
        few, _, least = min(group)
        for many, n, value in group:
            if many > few and value / least * SPREAD < many / few:
                yield n, f"{many} ports give {value / least:.2f} times what {few} give{'s' if few == 1 else ''}"


def _of_gpu_memory(figures: Sequence[Judged]) -> Iterator[tuple[int, str]]:
    """Yield figures of GPU memory that are less than two thirds of those of host memory over the same port."""
    ports = [
        re.sub(r"(?i)(?:, ?)?\b(?:host|CPU|GPU) memory\b(?:, ?)?", "", v.figure.subject[:400]).strip() for v in figures
    ]
    of_gpu = [bool(re.search(r"\bGPU memory\b", verdict.figure.subject[:400])) for verdict in figures]
    plain = {
        port: verdict.value
        for port, gpu, verdict in zip(ports, of_gpu, figures, strict=True)
        if not gpu and verdict.value and not verdict.small
    }
    for n, verdict in enumerate(figures):
        host, figure = plain.get(ports[n]), verdict.figure
        if of_gpu[n] and host and verdict.value and not verdict.small and verdict.value * _ALIKE < host:
            yield n, f"{number(figure.value)} {figure.unit}, {verdict.value / host:.0%} of what{BESIDE}"


def _of_larger(figures: Sequence[Judged]) -> Iterator[tuple[int, str]]:
    """Yield the figures of the largest messages that are less than two thirds of those of smaller ones."""
    groups: dict[tuple[str, str], list[tuple[float, int, float]]] = {}
    for n, verdict in enumerate(figures):
        if verdict.value and verdict.figure.size_bytes:
            rows = groups.setdefault((verdict.figure.metric, verdict.figure.subject), [])
            rows.append((verdict.figure.size_bytes, n, verdict.value))
    for group in groups.values():
        largest, n, value = max(group)
        size, _, best = max(group, key=lambda row: row[2])
        if value * _ALIKE < best and size < largest:
            share, figure = value / best, figures[n].figure
            yield n, f"{number(figure.value)} {figure.unit}, {share:.0%} of what {size:,.0f}{FALLEN}"
