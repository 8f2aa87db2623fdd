"""What joins two GPUs of a host, and what they can reach: figures and paths ask here, so that they agree. Pure."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from hosttune.bench.baselines import Standard
from hosttune.model.host import Host
from hosttune.predicting import formulas
from hosttune.predicting.estimates import Question, estimate
from hosttune.predicting.formulas import Estimate
from hosttune.predicting.shape import HostShape, of_host

_NAMES = {"nvlink": "NVLink", "xgmi": "XGMI"}


class Join(msgspec.Struct, frozen=True):
    """How two GPUs are joined. `linked`: by links of their own (True), over PCIe alone (False), not known (None).

    `count`: the links, 0 over PCIe, None not known. `words`: of the links, for people.
    """

    linked: bool | None
    count: int | None
    estimate: Estimate
    words: str = ""


def join(host: Host, one: str, other: str, standard: Standard) -> Join:
    """Return how two GPUs are joined: as the first of them reports, else as all GPUs of its model are."""
    shape = of_host(host, (one,), standard)
    peers = next((gpu.peers or () for gpu in host.index.accelerators if gpu.address == one), ())
    peer = next((peer for peer in peers if peer.address == other), None)
    kind = peer.kind if peer is not None and peer.kind != "pcie" else None
    count = None if peer is None else peer.links if kind else 0
    has_none = shape.links == 0 or (shape.generation is not None and shape.generation.links == 0)
    if peer is None and has_none:
        count = 0
    pair = pair_estimate(shape, count, kind)
    if kind is None and count == 0:
        return Join(False, 0, pair)
    if kind is None and not (shape.links and shape.switched):
        return Join(None, None, pair)
    return Join(True, count, pair, _links_text(host, shape, count, read=kind is not None))


def _links_text(host: Host, shape: HostShape, count: int | None, *, read: bool) -> str:
    switched = ", over switches" if host.nvswitches or host.fabric is not None or not read else ""
    if not read:
        return f"{shape.links} links{switched}, as boards of this model have them; this pair was not read"
    return f"{count} links{switched}" if count else f"links{switched}, number not known"


def pair_estimate(shape: HostShape, count: int | None, kind: str | None = None) -> Estimate:
    """Return what a pair of GPUs can reach; `count` links join it (0: PCIe; None: not known). `shape`: of one GPU.

    `kind`: links of this kind join it, whatever their number.
    """
    if count:
        shape = replace(shape, links=count, peaks=_part(shape, count), switched=True)
    elif count is None and kind is not None and not shape.switched:
        name, peak = _NAMES.get(kind, kind), shape.peaks.get("pair")
        formula, source = "links × rate", formulas.PEAK_SOURCE
        if peak is None:
            rate = shape.generation.link_peak_gb_per_s if shape.generation else None
            because = (f"not known: the number {'of' if rate else 'and rate of'} the {name} links between the two",)
            return Estimate("GB/s", formula, source, because=because)
        because = (f"{name} between the two, {peak:g} GB/s one direction",)
        return Estimate("GB/s", f"bound {formula}", source, peak, None, because, at_least=None)
    elif count == 0 or not shape.switched:  # behind switches every pair has all links
        shape = replace(shape, links=count)
    return estimate(Question("p2p"), shape)


def _part(shape: HostShape, count: int) -> dict[str, float]:
    """Return the peaks, with that of the links scaled to the number of links that join a pair."""
    total = shape.links_peak_gb_per_s
    if total is None or not shape.links or "pair" in shape.peaks:
        return dict(shape.peaks)
    return {**shape.peaks, "pair": total * min(1.0, count / shape.links)}
