"""References for a validation's figures, made of the models for the shape of this machine. Pure.

A validation warns below them, in place of the shipped references, which were measured on one shape. Floors stay: what
fails is decided by published floors and by the rate of a port alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Literal

from msgspec.structs import replace

from hosttune.bench.baselines import Baseline, Standard, pair_links
from hosttune.bench.modelled import Model, Modelled
from hosttune.model.host import Host
from hosttune.predicting.estimates import Question, estimate
from hosttune.predicting.formulas import Estimate
from hosttune.predicting.pairs import pair_estimate
from hosttune.predicting.shape import HostShape, of_host

# Metrics of a validation -> metrics of a prediction. What the models do not know keeps the shipped reference.
_OF_A_GPU = {
    "h2d-ce": "h2d", "d2h-ce": "d2h", "device-copy": "device-copy", "gemm-bf16": "gemm-bf16", "gemm-fp8": "gemm-fp8",
}  # fmt: skip
_FAR = {"h2d-ce-far": "h2d", "d2h-ce-far": "d2h"}
_PAIRS = frozenset(("p2p-write-ce", "p2p-read-ce"))
_COLLECTIVE = re.compile(r"(all-reduce|all-gather)-([0-9]{1,6})(kib|mib|gib)")
_BYTES = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
# How far below the typical figure a good machine is: as far as the shipped references allow. Products depend on clocks.
# Of collectives the estimate says it (`low_below`), by the size of the message.
_TOLERANCE = {"h2d": 0.05, "d2h": 0.05, "p2p": 0.05, "device-copy": 0.05, "gemm-bf16": 0.1, "gemm-fp8": 0.1}


def model_of(host: Host, gpus: Sequence[str], standard: Standard) -> Model:
    """Return what this host's figures are like. `gpus`: those that are measured together; their peaks: `standard`."""
    links = pair_links(host, gpus)

    @cache
    def shape(*addresses: str) -> HostShape:
        return _with_all_links(of_host(host, addresses, standard), host, addresses, standard)

    def model(metric: str, subject: str) -> Modelled:
        if metric in _PAIRS:
            pair = subject.split("->")
            known = len(pair) == 2 and all(address in host.index.pci for address in pair)
            # Behind switches every pair has all links: fewer are a fault and not another shape.
            joined = None if host.nvswitches and links.get(subject) else links.get(subject)
            found = pair_estimate(shape(pair[0]), joined) if known else None
            return _modelled(metric, "p2p", found, host, shape(pair[0]).links if known else None)
        if metric in _FAR:
            found = estimate(Question(_FAR[metric], far=True), shape(subject))
            return replace(_modelled(metric, _FAR[metric], found, host), row=None)  # no source says what is low there
        if metric in _OF_A_GPU:
            name = _OF_A_GPU[metric]
            return _modelled(metric, name, estimate(Question(name), shape(subject)), host)
        match, count = _COLLECTIVE.fullmatch(metric), re.fullmatch(r"([0-9]{1,4}) GPUs", subject)
        if match and count:
            size, ranks = int(match[2]) * _BYTES[match[3]], int(count[1])
            found = estimate(Question(f"{match[1]}-busbw", ranks, 1, size), _joined(shape(*gpus), ranks, links))
            return _modelled(metric, match[1], found, host)
        return Modelled()

    return model


def _with_all_links(shape: HostShape, host: Host, addresses: Sequence[str], standard: Standard) -> HostShape:
    """Return the shape with all links of its model: links that are down are a fault and not another shape."""
    ids = {host.index.ids(address) for address in addresses}
    row = standard.peaks.get(ids.pop() or "") if len(ids) == 1 else None
    most = row.nvlinks if row is not None else None
    return replace(shape, links=most) if shape.switched and most and 0 < (shape.links or 0) < most else shape


def _joined(shape: HostShape, ranks: int, links: dict[str, int]) -> HostShape:
    """Return the shape for GPUs without switches between them: two that are measured together have their own links."""
    pair = links.get("2 GPUs")
    return replace(shape, links=pair) if ranks == 2 and not shape.switched and pair is not None else shape


def _modelled(metric: str, name: str, found: Estimate | None, host: Host, links: int | None = None) -> Modelled:
    """Return reference and bound. A guest does not see all of its path: there the device's peak is the bound."""
    if found is None or found.bound is None:
        return Modelled()
    why = "; ".join(found.because)
    most = found.bound if host.hypervisor is False else None
    tolerance = _TOLERANCE.get(name, 1 - found.low_below)
    kind: Literal["typical", "least"] = "least"
    expected = found.bound
    if found.typical is not None and tolerance < 1:
        kind, expected = "typical", found.typical
    elif found.typical is not None or found.at_least is None:
        return Modelled(None, most, why)
    else:
        tolerance = 1 - found.at_least
    row = Baseline(
        metric, "", expected, tolerance, "higher", found.unit, f"{found.formula}: {found.source}", kind,
        nvlinks=links or None, why=why,
    )  # fmt: skip
    return Modelled(row, most, why)
