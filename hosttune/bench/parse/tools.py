"""Parse the output of fio, perftest, cyclictest and Intel MLC, with one short parser each."""

from __future__ import annotations

import re
from typing import Any

from hosttune.bench.parse.answer import NotUnderstood, ParsedOutput, close, document, number, part, positive
from hosttune.model.validation import Sample

_COUNT = "([0-9]{1,15})"
_CYCLIC = re.compile(
    rf"^T:\s*{_COUNT} .*?C:\s*{_COUNT} Min:\s*{_COUNT} Act:\s*{_COUNT} Avg:\s*{_COUNT} Max:\s*{_COUNT}\s*$",
    re.MULTILINE,
)
# The message rate is missing in old tables; CPU load and the figures of each of two ports can stand behind it.
_PERFTEST = re.compile(
    rf"^[ \t]*{_COUNT}[ \t]+{_COUNT}[ \t]+(\S+)[ \t]+(\S+)(?:[ \t]+([0-9.]+))?(?:[ \t]+[0-9.]+)*[ \t\r]*$", re.MULTILINE
)
_PERFTEST_HEAD = re.compile(r"#bytes\s+#?iterations\s+BW peak ?\[(\S+)\]\s+BW average ?\[(\S+)\](\s+MsgRate)?")
_PERFTEST_UNITS = {"Gb/sec": 1.0, "MB/sec": 2**20 * 8 / 1e9}  # perftest_parameters.h: MB is 0x100000 bytes


def parse_fio(text: str, subject: str) -> ParsedOutput:
    """Parse `fio --output-format=json` (fio's documentation, "JSON output").

    The figure is `bw_bytes`, bytes per second. It must agree with the bytes and the run time in ms. Raises
    NotUnderstood.
    """
    jobs = part(document(text, "fio").get("jobs"), list, "fio", "jobs")
    samples: list[Sample] = []
    for job in jobs:
        row = part(job, dict, "fio", "a job")
        if row.get("error") != 0:
            raise NotUnderstood("fio", f"a job ended with error {row.get('error')}")
        samples.append(_fio_sample(part(row.get("jobname"), str, "fio", "jobname"), row, subject))
    if not samples:
        raise NotUnderstood("fio", "no job in it")
    return ParsedOutput(tuple(samples))


def _fio_sample(name: str, row: dict[str, Any], subject: str) -> Sample:
    side = part(row.get("write" if name == "disk-write" else "read"), dict, "fio", f"{name}")
    size, seconds = (positive(side.get(key), "fio", key) for key in ("io_bytes", "runtime"))
    rate = positive(side.get("bw_bytes"), "fio", "bw_bytes")
    if not close(rate, size / seconds * 1000, 0.02):
        raise NotUnderstood("fio", f"bandwidth and bytes of {name} contradict each other")
    if name == "disk-random-read":
        operations = positive(side.get("total_ios"), "fio", "total_ios")
        value = positive(side.get("iops"), "fio", "iops")
        if not close(value, operations / seconds * 1000, 0.02):
            raise NotUnderstood("fio", "iops and operations contradict each other")
        return Sample(metric=name, subject=subject, value=value, unit="1/s")
    return Sample(metric=name, subject=subject, value=rate / 1e9, unit="GB/s")


def parse_perftest(text: str, subject: str, *, stalled: bool = False) -> ParsedOutput:
    """Parse `ib_write_bw` (linux-rdma/perftest), also without --report_gbits: the average in the last line.

    That line is of the largest size. `stalled`: 0 is a figure, too: nothing was carried. Raises NotUnderstood.
    """
    head = _PERFTEST_HEAD.search(text)
    if head is None:
        raise NotUnderstood("ib_write_bw", "no table in it")
    unit = _PERFTEST_UNITS.get(head[2])
    if head[1] != head[2] or unit is None:
        raise NotUnderstood("ib_write_bw", f"its figures are in {head[2]}, not in Gb/sec or MB/sec")
    table, end, _ = text[head.end() :].partition("\n----")
    rows = _PERFTEST.findall(table)
    if (
        not rows
        or (head[3] and not rows[-1][-1])
        or (len(rows) > 1 and not (end and _PERFTEST.match(table.rstrip().rpartition("\n")[2])))
    ):
        raise NotUnderstood("ib_write_bw", "no whole line of figures at its end")
    size, _, peak, average, rate = rows[-1]
    value = (number if stalled else positive)(average, "ib_write_bw", "BW average") * unit
    most = number(peak, "ib_write_bw", "BW peak") * unit  # 0 if the run has a duration (-D)
    # Both are rounded to their last digit, which is much of the message rate of a slow link.
    rounding = 0.5 * (int(size) * 8 / 1e3 * 10 ** -_decimals(rate) + 10 ** -_decimals(average) * unit)
    apart = abs(value - number(rate, "ib_write_bw", "MsgRate") * int(size) * 8 / 1e3) if rate else 0
    if (most and value > most * 1.01) or apart > 0.02 * value + rounding:
        raise NotUnderstood("ib_write_bw", "bandwidth and message rate contradict each other")
    return ParsedOutput((Sample(metric="rdma-write", subject=subject, value=value, unit="Gb/s"),))


def _decimals(figure: str) -> int:
    return len(figure.partition(".")[2])


def parse_cyclictest(text: str, subject: str) -> ParsedOutput:
    """Parse `cyclictest -q` (rt-tests): the largest latency of any thread, in µs. Raises NotUnderstood."""
    rows = [tuple(map(int, row)) for row in _CYCLIC.findall(text)]
    if not rows:
        raise NotUnderstood("cyclictest", "no thread in it")
    for thread, cycles, least, _, average, most in rows:
        if cycles == 0 or not least <= average <= most:
            raise NotUnderstood("cyclictest", f"thread {thread} has no figures that agree")
    worst = max(row[-1] for row in rows)
    return ParsedOutput((Sample(metric="timer-jitter", subject=subject, value=float(worst), unit="us"),))


def parse_mlc(text: str) -> ParsedOutput:
    """Parse `mlc --latency_matrix` (Intel Memory Latency Checker): ns by CPU node (row) and memory node (column).

    Raises NotUnderstood.
    """
    lines = [line.split() for line in text.splitlines()]
    start = next((index for index, words in enumerate(lines) if words[:2] == ["Numa", "node"] and len(words) > 2), None)
    if start is None:
        start = next((i for i, words in enumerate(lines) if words[:2] == ["Numa", "node"]), None)
        if start is None or start + 1 >= len(lines):
            raise NotUnderstood("mlc", "no matrix in it")
    head = lines[start][2:]
    nodes = [word for word in head if word.isdecimal()]
    rows = [words for words in lines[start + 1 :] if len(words) == len(nodes) + 1 and words[0].isdecimal()]
    if not nodes or not rows:
        raise NotUnderstood("mlc", "no matrix in it")
    samples = [
        Sample(
            metric="memory-latency", subject=f"node{row[0]}->node{node}", value=positive(cell, "mlc", "ns"), unit="ns"
        )
        for row in rows
        for node, cell in zip(nodes, row[1:], strict=True)
    ]
    return ParsedOutput(tuple(samples))
