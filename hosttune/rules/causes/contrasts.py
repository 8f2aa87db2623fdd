"""Two figures that differ in one circumstance, which their subjects name: near and far, first and later, local and not.

The one tells what the machine can do, the other what the circumstance costs; no model of the machine is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from hosttune.model.measured import COLLECTIVES, Figure
from hosttune.rules.causes.verdicts import Judged

_COPIES = ("h2d", "d2h", "p2p", "device-copy", "memory-copy")
_STORAGE = ("disk-read", "storage-read")
_WORK = ("tokens-per-second", "mfu")
_AFTER = r"\b(?:hot|warm|sustained|steady|(?:after|for) (?:\S{1,12} )?(?:minutes?|hours?))\b"
_BEGIN = r"\b(?:cold|first (?:minutes?|seconds?|run)|at (?:the )?(?:start|begin\w*)|fresh)\b"
_FIRST, _AGAIN = (
    r"\bfirst (?:run|call|step|iteration|pass|request|epoch)s?\b|\bcold\b|\bbefore (?:the |a )?warm-?up\b",
    r"\b(?:second|next|later|warm|third|other|steady|after (?:the |a )?warm-?up)\b",
)


class Contrast(NamedTuple):
    """What the subject of the slow figure and that of the fast one say, and the cause that makes the difference.

    `times`: the fast one is at least so many times the slow one; more than `most` is another fault.
    """

    cause: str
    metrics: tuple[str, ...]
    slow: str
    fast: str
    words: str
    times: float = 1.25
    most: float = 100.0


CONTRASTS = (
    Contrast("thermal", (*_WORK, "sm-clock", "gemm-bf16", "gemm-fp8"), _AFTER, _BEGIN,
             "less than when cold", 1.07, 2.5),
    Contrast("measurement-artefact", (*_COPIES, *_WORK, *COLLECTIVES), _FIRST, _AGAIN, "the first run was cold"),
    Contrast("measurement-artefact", (*_COPIES, "gemm-bf16", "gemm-fp8"), r"^(?!.*\bsame (?:gpu|card|device)\b)",
             r"\bsame (?:gpu|card|device)\b", "another tool gives more on the same GPU", 2.0),
    Contrast("storage", (*_STORAGE, *_WORK),
             r"\b(?:shared|network|remote|nfs|lustre|gpfs|ceph|s3|bucket|hdd)\b", r"\b(?:local|nvme|ssd|ram|memory)\b",
             "the same from local storage is faster", 1.5),
    Contrast("storage", _STORAGE, r"\b(?:after|later|sustained)\b",
             r"\bat (?:the )?(?:start|begin)|\b(?:first|fresh)\b", "it falls while it works", 1.5),
    Contrast("far-numa-node", (*_WORK, "memory-copy"), r"first[- ]touch", r"interleav",
             "spread over the nodes it is faster", 1.15),
    Contrast("far-numa-node", (*_WORK, "memory-copy"), r"(?<!not )interleav", r"not interleaved|membind|\bbound\b",
             "on one node it is faster", 1.15),
    Contrast("far-numa-node", _WORK, r"\b(?:two|both|2) (?:sockets|cpus|processors|numa)",
             r"\b(?:one|single|1) (?:socket|cpu|processor|numa)", "one socket alone is faster", 1.1),
    Contrast("nic-on-other-socket", ("rdma-write", *COLLECTIVES, "p2p"),
             r"\b(?:other|far|remote|another|cross)\b.*\b(?:gpu|nic|adapter|port|hca|socket|node|root)",
             r"\b(?:near|nearest|same (?:switch|socket|root|node)|close|own)\b", "the near one is faster"),
    Contrast("small-message-latency", _WORK, r"(?i)tensor.parallel.*\b[2-9] (?:hosts|nodes)",
             r"(?i)tensor.parallel.*\b(?:1|one) (?:host|node)",
             "each step waits for messages between hosts, one host does not", 1.0),
    Contrast("p2p-disabled", _WORK, r"tensor.parallel|\btp", r"layers?.split|pipeline|\bpp\b|\b(?:1|one|single) gpu",
             "the same without exchange between the GPUs is faster"),
)  # fmt: skip


def contrasted(cause: str, figures: Iterable[Judged]) -> tuple[str, tuple[Judged, ...]] | None:
    """Return in which figures the circumstance of a cause shows, with words; None if it shows in none."""
    known = [(judged, _rate(judged)) for judged in figures if judged.verdict != "impossible"]
    for row in CONTRASTS:
        if row.cause != cause:
            continue
        fast: dict[tuple[str, float | None], tuple[float, Judged]] = {}
        slow = []
        for judged, rate in known:
            figure = judged.figure
            if figure.metric not in row.metrics or not rate:
                continue
            if re.search(f"(?i){row.slow}", figure.subject[:400]):
                slow.append((judged, rate))
            elif re.search(f"(?i){row.fast}", figure.subject[:400]):
                key = (figure.metric, figure.size_bytes)
                fast[key] = max(fast.get(key, (0.0, judged)), (rate, judged), key=lambda pair: pair[0])
        low = [
            (judged, other)
            for judged, rate in slow
            if judged.verdict != "expected"
            for best, other in [fast.get((judged.figure.metric, judged.figure.size_bytes), (0.0, judged))]
            if rate * row.times < best <= rate * row.most
        ]
        if low:
            judged, other = low[0]
            return f"{judged.name}: {row.words} ({_shown(other.figure)})", tuple(judged for judged, _ in low)
    return None


def _rate(judged: Judged) -> float | None:
    """Return what grows with speed: of a time its inverse."""
    return judged.value or (1 / judged.seconds if judged.seconds else None)


def _shown(figure: Figure) -> str:
    return f"{figure.subject}: {figure.value:g} {figure.unit}"
