"""Parse the text output of nccl-tests (all_reduce_perf, alltoall_perf, …).

Source: NVIDIA/nccl-tests, src/common.cu and doc/PERFORMANCE.md. A line of figures: size, count, type, (redop, root,)
then time in µs, algbw, busbw in GB/s and errors, out of place and in place. The numbers of a line must be consistent:
algbw = size / time, busbw = algbw × the collective's factor.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hosttune.bench.gpu_jobs import size_name
from hosttune.bench.parse.answer import Lost, NotJudged, NotUnderstood, ParsedOutput, close, number
from hosttune.model.validation import Sample

_FACTORS: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    **dict.fromkeys(("all-gather", "all-to-all"), lambda ranks: (ranks - 1) / ranks),
    **dict.fromkeys(("send-recv", "broadcast", "reduce"), lambda ranks: 1.0),
}
_RANK = re.compile(r"^#?[ \t]+Rank\s+([0-9]{1,6})\s", re.MULTILINE)
_LINE = re.compile(r"^\s*[0-9]{1,15}\s+[0-9]+\s+\w+\s")
_FAILED = re.compile(r"(?:Test NCCL failure|Test CUDA failure|Out of bounds values : (?!0 OK))[^\n]*")
_COLUMNS = 4  # time, algbw, busbw, errors


def parse(text: str, collective: str) -> ParsedOutput:
    """Return the out-of-place bus bandwidths of a collective of `_FACTORS` by size. Raises NotUnderstood."""
    tool = f"{collective.replace('-', '_')}_perf"
    ranks = len(set(_RANK.findall(text)))
    if ranks < 2:
        raise NotUnderstood(tool, "it names fewer than two ranks: the bus bandwidth of one GPU is 0 by its definition")
    failure = _FAILED.search(text)
    if failure:
        raise NotUnderstood(tool, f"it says: {failure[0][:200]}")
    samples: list[Sample] = []
    lost: list[Lost] = []
    for line in text.splitlines():
        if not _LINE.match(line):
            continue
        words = line.split()
        if len(words) < 3 + 2 * _COLUMNS or any("#" in word for word in words):
            raise NotUnderstood(tool, f"a line of figures is cut short: {line.strip()[:60]!r}")
        size = int(words[0])
        if size < 1 << 20:
            continue  # below 1 MiB the time is mostly latency
        metric = f"{collective}-{size_name(size)}"
        time, algorithm, bus, errors = words[-2 * _COLUMNS : -_COLUMNS]
        if errors not in ("N/A", "0", "0e+00"):
            lost.append(Lost(metric, f"{ranks} GPUs", f"{errors} wrong values"))
            continue
        microseconds, bandwidth, value = (number(word, tool, "a figure", least=1e-9) for word in (time, algorithm, bus))
        # Before 2.11 all_gather's algbw already had the factor, and its count was that of one rank.
        old = collective == "all-gather" and algorithm == bus
        rate, factor = size / microseconds / 1e3, _FACTORS[collective](ranks)
        if not close(bandwidth, rate * (factor if old else 1), 0.01, 0.006) or not close(
            value, bandwidth * (1 if old else factor), 0.01, 0.012
        ):
            raise NotUnderstood(tool, f"the line of {size} bytes contradicts itself")
        samples.append(Sample(metric=metric, subject=f"{ranks} GPUs", value=value, unit="GB/s"))
    if not samples and not lost:
        raise NotJudged(tool, "no line of figures for a megabyte or more")
    return ParsedOutput(tuple(samples), (), tuple(lost))
