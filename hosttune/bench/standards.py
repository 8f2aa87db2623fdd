"""The figures that measurements are compared with: floors, references, peaks and this host's own history.

hosttune.bench.baselines has the figures and their sources. This module looks them up for each measured device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from statistics import median

from hosttune.bench.baselines import Baseline, Standard, pair_links
from hosttune.bench.measures import Scale, measures, pair_of
from hosttune.bench.metrics import metric_of
from hosttune.model.host import Host
from hosttune.model.validation import Sample, Validation
from hosttune.model.values import grouped

_GPUS = re.compile(r"([0-9]{1,3}) GPUs?")


def scales(
    samples: Iterable[Sample], host: Host | None, standard: Standard, history: Iterable[Validation] = ()
) -> tuple[Scale, ...]:
    """Return a scale for each metric and subject of the samples about which anything is known.

    The typical figure is a fleet's median if one is given, else the median of this host's earlier validations, else a
    reference. `typical_is` says which.
    """
    kinds = device_kinds(host)
    links = pair_links(host, list(kinds)) if host is not None else {}
    medians = grouped(
        ((measure.metric, measure.subject), measure.median)
        for validation in history
        for measure in measures(validation.samples)
        if measure.median is not None
    )
    before = {key: median(values) for key, values in medians.items()}
    known_scales = (
        _scale(metric, subject, kinds, standard, before, links.get(subject))
        for metric, subject in dict.fromkeys((sample.metric, sample.subject) for sample in samples)
    )
    return tuple(scale for scale in known_scales if scale)


def device_kinds(host: Host | None) -> dict[str, str]:
    """Return vendor:device of each GPU by address. Displays of other makers are left out."""
    if host is None:
        return {}
    gpus = {gpu.address for gpu in host.index.accelerators}
    return {device.address: device.ids for device in host.pci if device.address in gpus and device.ids}


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
    by_kind: dict[str, Baseline] = {row.kind: row for row in reversed(rows)}  # the first of each kind
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
    """Return (vendor:device, GPUs at once) of a subject.

    A subject is a GPU, a pair of the same model, or "8 GPUs" if all are of the same model.
    """
    together = _GPUS.fullmatch(subject)
    if together:
        alike = set(kinds.values())
        return (alike.pop() if len(alike) == 1 else None), int(together[1])
    ends = {kinds.get(name) for name in pair_of(subject) or (subject,)}
    return (ends.pop() if len(ends) == 1 else None), 1
