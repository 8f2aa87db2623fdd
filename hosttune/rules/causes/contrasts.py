"""Two figures that differ in one circumstance, which their subjects name: near and far, first and later, local and not.

The one tells what the machine can do, the other what the circumstance costs; no model of the machine is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from hosttune.model.measured import COLLECTIVES, Observations
from hosttune.rules.causes.verdicts import Judged

_COPIES = ("h2d", "d2h", "p2p", "device-copy", "memory-copy")
_ON_GPU = ("device-copy", "gemm-bf16", "gemm-fp8")
_STORAGE = ("disk-read", "storage-read")
_WORK = ("tokens-per-second", "mfu")
_AFTER = r"\b(?:hot|warm|sustained|steady|(?:after|for) (?:\S{1,12} )?(?:minutes?|hours?))\b"
_BEGIN = r"\b(?:cold|first (?:minutes?|seconds?|run)|at (?:the )?(?:start|begin\w*)|fresh)\b"
_FIRST, _AGAIN = (
    r"\bfirst (?:run|call|step|iteration|pass|request|epoch)s?\b|\bcold\b|\bbefore (?:the |a )?warm-?up\b",
    r"\b(?:second|next|later|warm|third|steady|after (?:the |a )?warm-?up)\b(?! gpu)",
)


class Contrast(NamedTuple):
    """What the subject of the slow figure and that of the fast one say, and the cause that makes the difference.

    `times`: the fast one is at least so many times the slow one; more than `most` is another fault. `read`: the
    observation that shows the cause itself; where it was read, the figures are not asked. `remedy`: where the rule's
    does not fit.
    """

    cause: str
    metrics: tuple[str, ...]
    slow: str
    fast: str
    words: str
    times: float = 1.25
    most: float = 100.0
    read: str = ""
    remedy: str = ""


CONTRASTS = (
    Contrast("thermal", (*_WORK, "sm-clock", "gemm-bf16", "gemm-fp8"), _AFTER, _BEGIN,
             "less than when cold", 1.07, 2.5, read="thermal_slowdown"),
    Contrast("measurement-artefact", (*_COPIES, *_WORK, *COLLECTIVES), _FIRST, _AGAIN, "the first run was cold",
             read="cold"),
    Contrast("measurement-artefact", _ON_GPU, r"^(?!.*\bsame (?:gpu|card|device)\b)",
             r"\bsame (?:gpu|card|device)\b", "another tool gives more on the same GPU", 2.0,
             remedy="count with what the other tool gives; mend or update this one"),
    Contrast("storage", (*_STORAGE, *_WORK),
             r"\b(?:(?:shared|network|remote) (?:mount|storage|disk|drive|file)|nfs|lustre|gpfs|ceph|s3|bucket|hdd)",
             r"\b(?:local|nvme|ssd)\b", "the same from local storage is faster", 1.5, read="storage_bound"),
    Contrast("storage", _STORAGE, r"\b(?:after|later|sustained)\b",
             r"\bat (?:the )?(?:start|begin)|\b(?:first|fresh)\b", "it falls while it works", 1.5,
             remedy="read the drive's temperature and health while it works (nvme smart-log); cool it, or trim it"
             " (fstrim)"),
    Contrast("far-numa-node", (*_WORK, "memory-copy"), r"first[- ]touch", r"interleav",
             "spread over the nodes it is faster", 1.15, read="memory_node",
             remedy="spread memory that the CPUs of all nodes read: numactl --interleave=all"),
    # A node can be a host, too.
    Contrast("far-numa-node", _WORK, r"\b(?:two|both|2) (?:sockets|cpus|processors|numa)",
             r"\b(?:one|single|1) (?:socket|cpu|processor|numa)", "one socket alone is faster", 1.1,
             read="memory_node"),
    Contrast("nic-on-other-socket", ("rdma-write",),
             r"\b(?:other|far|another|cross)\b.*\b(?:gpu|nic|adapter|hca|socket)",
             r"\b(?:near|nearest|same (?:switch|socket|root|node)|close|own)\b", "the near one is faster"),
    Contrast("small-message-latency", _WORK, r"tensor.parallel.*\b[2-9] (?:hosts|nodes)",
             r"tensor.parallel.*\b(?:1|one) (?:host|node)",
             "each step waits for messages between hosts, one host does not", 1.0,
             remedy="keep tensor parallelism within a host; between hosts use pipeline or data parallelism"),
    Contrast("p2p-disabled", _WORK, r"^(?!.*\b(?:hosts|nodes)\b).*(?:tensor.parallel|\btp\d{0,3}\b)",
             r"layers?.split|pipeline|\bpp\b|\b(?:1|one|single) gpu",
             "the same without exchange between the GPUs is faster", read="p2p",
             remedy="see whether the GPUs have peer access (p2pBandwidthLatencyTest); without it split by layers"),
)  # fmt: skip


def contrasted(cause: str, figures: Iterable[Judged], seen: Observations) -> tuple[str, tuple[Judged, ...], str] | None:
    """Return words, the figures in which the circumstance of a cause shows, and the remedy; None if it shows in none.

    "": the remedy is the rule's.
    """
    known = [  # with what grows with speed: of a time its inverse
        ((judged.figure.metric, judged.figure.size_bytes, judged.value is None), rate, judged)
        for judged in figures
        if judged.verdict != "impossible" and (rate := judged.value or (1 / judged.seconds if judged.seconds else 0.0))
    ]
    for row in CONTRASTS:
        if row.cause != cause or (row.read and getattr(seen, row.read) is not None):
            continue
        fast: dict[tuple[object, ...], tuple[float, Judged]] = {}
        slow = []
        for key, rate, judged in known:
            if key[0] not in row.metrics:
                continue
            if re.search(f"(?i){row.slow}", judged.figure.subject[:400]):
                slow.append((key, rate, judged))
            elif rate > fast.get(key, (0.0,))[0] and re.search(f"(?i){row.fast}", judged.figure.subject[:400]):
                fast[key] = (rate, judged)
        low = [
            (judged, fast[key][1].figure)
            for key, rate, judged in slow
            if judged.verdict != "expected" and key in fast
            and rate * row.times < fast[key][0] <= rate * row.most
        ]  # fmt: skip
        if low:
            judged, other = low[0]
            return (
                f"{judged.name}: {row.words} ({other.subject}: {other.value:g} {other.unit})",
                tuple(judged for judged, _ in low),
                row.remedy,
            )
    return None
