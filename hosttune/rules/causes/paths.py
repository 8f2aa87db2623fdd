"""The paths on which low figures depend, of the host on which they were measured."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.errors import BadInput
from hosttune.model.devicepath import DevicePath
from hosttune.model.diagnosis import Diagnosis, JudgedFigure
from hosttune.model.host import Host
from hosttune.model.measured import COLLECTIVES
from hosttune.predicting.paths import nearest, path_between, worst_paths

MOST = 4


def low_paths(diagnosis: Diagnosis, host: Host) -> tuple[DevicePath, ...]:
    """Return at most MOST paths of figures that are low, in the order of the figures.

    Of a collective: its slowest pair of GPUs, and the slowest way from a GPU to a NIC. A path whose slowest link
    another path has shown is left out.
    """
    paths: dict[object, DevicePath] = {}
    for figure in diagnosis.figures:
        if figure.verdict == "low":
            for path in _of_figure(figure, host):
                paths.setdefault(path.slowest or (path.start, path.end), path)
    return tuple(paths.values())[:MOST]


def _of_figure(figure: JudgedFigure, host: Host) -> Iterator[DevicePath]:
    gpus = {gpu.address for gpu in host.index.accelerators}
    start, _, end = figure.subject.partition("->")
    if figure.metric in COLLECTIVES:
        yield from worst_paths(host, [*gpus, *(nic.address for nic in host.nics)])
    elif figure.metric == "p2p" and {start, end} <= gpus and start != end:
        yield path_between(host, start, end)
    elif figure.metric in ("h2d", "d2h") and figure.subject in gpus:
        yield from _to_memory(host, figure.subject)
    elif figure.metric == "rdma-write" and gpus:
        nic = next((nic.address for nic in host.nics if nic.rdma and nic.rdma == figure.subject), None)
        if nic is not None:
            yield path_between(host, nearest(host, nic, sorted(gpus)), nic)


def _to_memory(host: Host, gpu: str) -> Iterator[DevicePath]:
    device = host.index.pci.get(gpu)
    if device is None or device.numa_node is None:
        return
    try:
        yield path_between(host, gpu, f"node {device.numa_node}")
    except BadInput:  # the node is not in the document
        return
