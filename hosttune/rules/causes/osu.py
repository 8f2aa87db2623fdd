"""Tables of the OSU Micro-Benchmarks: bandwidth and latency between two ranks, all-reduce and all-gather of GPUs."""

from __future__ import annotations

import re

from hosttune.bench.parse.answer import NotJudged, NotUnderstood
from hosttune.model.measured import Figure, Measured, Observations, Setup
from hosttune.rules.causes.equals import OF_MPI

# Options of launchers with one rank a host.
_APART = r"-{1,2}(?:map-by|npernode|N|ppn|ntasks-per-node)[ =](?:node|ppr:1:node|1)\b|-{1,2}(?:host|H)[ =]\w[^,\s]*,\w"
_LARGE, _FALLEN = 1 << 20, 2 / 3  # bytes from which a time says something of the bandwidth; part of the fastest size's


def osu(text: str) -> Measured:
    """Return the figure of the largest message, and of the fastest one where that is half as fast again.

    A table does not say where its ranks are, nor how many: only a launcher's options do. MB are 10^6 bytes, times are
    in µs, of a ping-pong one way, of all_gather's size each rank's (osu_util.h). Raises NotUnderstood.
    """
    title = re.search(r"# OSU MPI\S* (.{1,80}? Test)\b", text)
    what = title[1] if title else ""
    rows = {int(size): float(value) for size, value in re.findall(
        r"(?m)^(\d{1,12})[ \t]+(\d{1,9}\.\d{2})(?=[ \t\r]*$|[ \t]+\d)", text)}  # fmt: skip
    between, gpus = re.search(_APART, text) is not None, re.search(r"MPI-|DEVICE", text) and "on HOST (H)" not in text
    if not rows:
        raise NotUnderstood(f"OSU {what}", "no row")
    if not (between or gpus):
        raise NotJudged(f"OSU {what}", "host memory, and whether on one host is not said")
    metric, subject = ("rdma-write", OF_MPI) if between else ("p2p", "rank 0->rank 1")
    subject += ", GPU memory" if between and gpus else ""
    ways = (("Send Buffer on HOST (H) and Receive Buffer on DEVICE", ", to a GPU"),
            ("Send Buffer on DEVICE (D) and Receive Buffer on HOST", ", from a GPU"))  # fmt: skip
    subject += next((way for words, way in ways if words in text), "")
    if collective := re.match(r"All(reduce|gather) Latency", what):
        ranks = re.search(r" (?:-np?|--ntasks)[ =](\d{1,6})\b", text)
        if not gpus or not ranks or int(ranks[1]) < 2:
            raise NotUnderstood(f"OSU {what}", "how many GPUs took part is not said (-n of the launcher)")
        many = int(ranks[1])
        factor = many - 1 if collective[1] == "gather" else 2 * (many - 1) / many
        metric, subject = f"all-{collective[1]}-busbw", f"{many} GPUs" + (f" on {many} hosts" if between else "")
    elif what in ("Latency Test", "Multi Latency Test"):
        factor = 1.0
    elif "Bandwidth" not in what:
        raise NotUnderstood(f"OSU {what}", "a diagnosis knows bandwidth, latency, all-reduce and all-gather")
    if "Bandwidth" not in what:
        rows = {size: round(size * factor / time, 2) for size, time in rows.items() if size >= _LARGE and time}
        if not rows:
            raise NotJudged(f"OSU {what}", "messages below 1 MiB: their times say nothing of the bandwidth")
    both = ", both directions" if "Bi-Directional" in what else ""
    largest, fastest = max(rows), max(rows, key=lambda size: rows[size])
    sizes = {largest, *([fastest] if rows[largest] < rows[fastest] * _FALLEN else [])}
    figures = tuple(
        Figure(metric=metric, subject=subject + both, value=rows[size], unit="MB/s", size_bytes=size)
        for size in sorted(sizes)
    )
    tcp = re.search(r"-mca btl (?!\^)\S{0,60}\btcp\b|UCX_TLS=\S{0,60}\btcp\b", text) if between else None
    return Measured(
        version=1,
        setup=Setup(hosts=None if between else 1),
        figures=figures,
        observations=Observations(transport="socket" if tcp else None, said={"transport": tcp[0]} if tcp else {}),
    )
