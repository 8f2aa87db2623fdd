"""Parse the output of nvbandwidth (NVIDIA): its JSON (`-j`) and its text.

Source: NVIDIA/nvbandwidth, json_output.cpp and output.cpp. A test case has a matrix of strings, "N/A" for pairs that
do not apply, and a sum, which must agree with the cells. Names ending in _ce use copy engines, names ending in _sm use
kernels: these are different metrics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hosttune.bench.parse.answer import Lost, NotUnderstood, ParsedOutput, close, document, part, positive
from hosttune.model.validation import Sample
from hosttune.model.values import number

TOOL = "nvbandwidth"
TESTS = {
    "host_to_device_memcpy_ce": "h2d-ce",
    "device_to_host_memcpy_ce": "d2h-ce",
    "host_to_device_memcpy_sm": "h2d-sm",
    "device_to_host_memcpy_sm": "d2h-sm",
    "device_to_device_memcpy_read_ce": "p2p-read-ce",
    "device_to_device_memcpy_write_ce": "p2p-write-ce",
    "device_to_device_memcpy_read_sm": "p2p-read-sm",
    "device_to_device_memcpy_write_sm": "p2p-write-sm",
    "device_local_copy": "device-copy-nvbandwidth",
}
_BUS = re.compile(r"\(([0-9a-fA-F]{8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.0)?\)")
_ROUNDING = 0.006  # largest rounding error of a printed cell, GB/s
_NAME = re.compile(r"Running (\w+)\.?")
_SUM = re.compile(r"SUM (\w+) (\S+)")


def parse(text: str) -> ParsedOutput:
    """Return the figures by GPU address, from JSON or text. Raises NotUnderstood."""
    if text.find("{") >= 0:
        root = part(document(text, TOOL).get("nvbandwidth"), dict, TOOL, "nvbandwidth")
        if root.get("error"):
            raise NotUnderstood(TOOL, f"it says: {str(root['error'])[:200]}")
        names = _names(part(root.get("GPU Device list"), list, TOOL, "GPU Device list"))
        samples: list[Sample] = []
        lost: list[Lost] = []
        for case in part(root.get("testcases"), list, TOOL, "testcases"):
            name = part(part(case, dict, TOOL, "a test case").get("name"), str, TOOL, "name")
            if name not in TESTS or case.get("status") == "Waived":  # the test does not apply to these GPUs
                continue
            if case.get("status") != "Passed":
                why = str(case.get("error") or case.get("status"))[:200]
                lost += [Lost(TESTS[name], subject, f"nvbandwidth: {why}") for subject in names.values()]
                continue
            matrix = part(case.get("bandwidth_matrix"), list, TOOL, "bandwidth_matrix")
            samples += _figures(name, [part(row, list, TOOL, "a row") for row in matrix], case.get("sum"), names)
        facts = {"nvbandwidth": str(root.get("git_version", ""))}
        return ParsedOutput(tuple(samples), (), tuple(lost), facts)
    return _from_text(text)


def _from_text(text: str) -> ParsedOutput:
    devices = [line for line in text.splitlines() if line.startswith("Device ")]
    names = _names([line.removeprefix("Device ") for line in devices])
    samples: list[Sample] = []
    name: str | None = None
    rows: list[Sequence[str]] = []
    for line in text.splitlines():
        if match := _NAME.match(line):
            name, rows = match[1], []
        elif match := _SUM.match(line):
            if name != match[1]:
                raise NotUnderstood(TOOL, f"the sum of {match[1]} is below {name}")
            if name in TESTS:
                header, *body = rows or [()]
                for row in body:
                    if len(row) != len(header) + 1:
                        raise NotUnderstood(TOOL, f"a row of {name} has {len(row) - 1} cells of {len(header)}")
                samples += _figures(name, [list(row[1:]) for row in body], match[2], names)
        elif name is not None and re.match(r"\s*\d+(?:\s|$)", line):
            rows.append(line.split())
    if not samples:
        raise NotUnderstood(TOOL, "no figures in it")
    return ParsedOutput(tuple(samples))


def _names(rows: Sequence[object]) -> dict[int, str]:
    """Return the GPU addresses by index, from lines such as "0: NVIDIA H200 (00000000:19:00)"."""
    names: dict[int, str] = {}
    for row in rows:
        text = part(row, str, TOOL, "a device")
        match = _BUS.search(text)
        index = number(text.partition(":")[0].strip())
        if index is not None and match:
            names[index] = f"{match[1][-4:]}:{match[2]}:{match[3]}.0".lower()
    return names


def _figures(name: str, matrix: list[list[Any]], total: object, names: Mapping[int, str]) -> Iterator[Sample]:
    """Yield the samples of one matrix, after comparing them with its sum."""
    figures: list[tuple[int, int, float]] = []
    for row, cells in enumerate(matrix):
        for column, cell in enumerate(cells):
            if cell != "N/A":
                figures.append((row, column, positive(cell, TOOL, name)))
    wanted = positive(total, TOOL, f"the sum of {name}")
    values = sum(value for _, _, value in figures)
    if not figures or not close(values, wanted, 1e-4, _ROUNDING * (len(figures) + 1)):
        raise NotUnderstood(TOOL, f"the cells of {name} add up to {values:.2f}, it says {wanted:.2f}")
    metric = TESTS[name]
    for row, column, value in figures:
        yield Sample(metric=metric, subject=_subject(name, row, column, names), value=value, unit="GB/s")


def _subject(name: str, row: int, column: int, names: Mapping[int, str]) -> str:
    """Return the address of one GPU, or the direction of the data between two GPUs ("A->B").

    The GPU of the row does the copy: a read moves data from the column's GPU to the row's GPU, a write from the row's
    GPU to the column's GPU (testcases_ce.cpp, DeviceToDeviceReadCE and WriteCE). The arrows in the tool's descriptions
    point the other way.
    """
    here, there = (names.get(index, f"gpu{index}") for index in (row, column))
    if "device_to_device" not in name:
        return there
    return f"{there}->{here}" if "read" in name else f"{here}->{there}"
