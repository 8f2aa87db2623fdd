"""What measured figures stand beside: floors, references, peaks and this host's own history, found for each of them.

hosttune.bench.baselines holds the figures and their sources; here each is looked up for the device that was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from statistics import median

from hosttune.bench.baselines import Baseline, Standard, pair_links
from hosttune.bench.metrics import metric_of
from hosttune.model.host import Host
from hosttune.model.validation import Sample, Validation
from hosttune.report.heatmaps import pair_of
from hosttune.report.measures import Scale, measures
from hosttune.report.roofline import KINDS, Roof

_GPUS = re.compile(r"([0-9]{1,3}) GPUs?")
_SIDE = "gemm-{}-side"  # the fact that tells the side of the products of a type


def scales(
    samples: Iterable[Sample], host: Host | None, standard: Standard, history: Iterable[Validation] = ()
) -> tuple[Scale, ...]:
    """A scale for each metric and subject of the samples that anything is known of.

    The typical figure is a fleet's median where one is given, else the median of this host's earlier validations, else
    a reference; `typical_is` says which.
    """
    kinds = device_kinds(host)
    links = pair_links(host, list(kinds)) if host is not None else {}
    before = _before(history)
    found = (
        _scale(metric, subject, kinds, standard, before, links.get(subject))
        for metric, subject in dict.fromkeys((sample.metric, sample.subject) for sample in samples)
    )
    return tuple(scale for scale in found if scale)


def device_kinds(host: Host | None) -> dict[str, str]:
    """vendor:device of each GPU by address; graphics that are nobody's accelerator are left out."""
    if host is None:
        return {}
    gpus = {gpu.address for gpu in host.index.accelerators}
    return {device.address: device.ids for device in host.pci if device.address in gpus and device.ids}


def roofs(host: Host | None, standard: Standard) -> dict[str, Roof]:
    """A roof for each GPU by address, where the standard knows the device's peaks."""
    known = {}
    for address, kind in device_kinds(host).items():
        peaks = standard.peaks.get(kind)
        if peaks is not None:
            known[address] = Roof(
                device=peaks.model,
                memory_gb_per_s=peaks.values.get("memory"),
                compute={name: value for name, value in peaks.values.items() if name in KINDS},
                source=peaks.source,
            )
    return known


def sides(facts: Mapping[str, str] | None) -> dict[str, int]:
    """The side of the square products by type, as the facts of a validation tell."""
    told = {kind: (facts or {}).get(_SIDE.format(kind), "") for kind in KINDS}
    return {kind: int(text) for kind, text in told.items() if re.fullmatch(r"[1-9][0-9]{0,6}", text)}


def _scale(
    metric: str,
    subject: str,
    kinds: Mapping[str, str],
    standard: Standard,
    before: Mapping[tuple[str, str], float],
    links: int | None,
) -> Scale | None:
    kind, gpus = _measured_on(subject, kinds)
    rows = standard.of(metric, kind, gpus, links) if kind else ()
    by_kind: dict[str, Baseline] = {}
    for row in rows:
        by_kind.setdefault(row.kind, row)
    floor, peak = by_kind.get("floor"), standard.peak(metric, kind, links)
    typical, words = _typical(by_kind, before.get((metric, subject)))
    family = metric_of(metric)
    if floor is None and typical is None and peak is None:
        return None
    return Scale(
        metric=metric,
        subject=subject,
        floor=floor.limit if floor else None,
        typical=typical,
        typical_is=words,
        peak=peak,
        lower_is_better=None if family is None else family.direction == "lower",
        source=floor.source if floor else None,
    )


def _typical(by_kind: Mapping[str, Baseline], before: float | None) -> tuple[float | None, str]:
    if "fleet" in by_kind:
        return by_kind["fleet"].expected, "fleet's median"
    if before is not None:
        return before, "this host before"
    if "reference" in by_kind:
        return by_kind["reference"].expected, "reference"
    return None, ""


def _measured_on(subject: str, kinds: Mapping[str, str]) -> tuple[str | None, int]:
    """(vendor:device, GPUs at once) of a subject: a GPU, a pair of alike ones, or "8 GPUs" where all are alike."""
    together = _GPUS.fullmatch(subject)
    if together:
        alike = set(kinds.values())
        return (alike.pop() if len(alike) == 1 else None), int(together[1])
    ends = {kinds.get(name) for name in pair_of(subject) or (subject,)}
    return (ends.pop() if len(ends) == 1 else None), 1


def _before(history: Iterable[Validation]) -> dict[tuple[str, str], float]:
    """The median over earlier validations of their medians."""
    medians: dict[tuple[str, str], list[float]] = {}
    for validation in history:
        for one in measures(validation.samples):
            if one.median is not None:
                medians.setdefault((one.metric, one.subject), []).append(one.median)
    return {key: median(values) for key, values in medians.items()}
