"""Parsers for `nvidia-smi topo -m`, `nvidia-smi nvlink -s` and `-e`. Pure. GPUs are named by nvidia-smi's index.

Both print each fact once. If the matrix occurs twice, it is not used; if a link occurs twice, the GPU's links are
unknown.

The affinity columns are the kernel's lists, cut down to the caller's cpuset. They do not describe the topology.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from hosttune.model.gpu import Gpu, Peer
from hosttune.model.values import Closed, Value, grouped

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HEADING = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID|\S+")
_PATH = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|C2C|NV[0-9]{1,4}|N/A")
_MOST_LINKS = 18  # of one GPU (nvml.h, NVML_NVLINK_MAX_LINKS)
_AFFINITY = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")


class TopoMatrix(Closed, frozen=True, kw_only=True):
    """The matrix: `paths[A][B]` is the word in row A, column B ("NV18", "PIX", "SYS"…), without the diagonal.

    `legend` has each NIC's RDMA device ("NIC0" → "mlx5_1"): the number of the NIC is not that of the device.
    """

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    paths: Mapping[str, Mapping[str, str]]
    legend: Mapping[str, str] | None = None

    MAPPINGS = ("paths", "legend")


class NvlinkStatus(Value, frozen=True, kw_only=True):
    """One GPU of `nvlink -s`: GB/s of each link in one direction by the link's number, None for an inactive link.

    `links` is None if the GPU refused, and if the numbers are not 0, 1, 2… with each of them once.
    """

    index: int
    uuid: str | None = None
    links: tuple[float | None, ...] | None = None


def parse_topo_matrix(text: str) -> TopoMatrix | None:
    """Parse the matrix, tab- or space-separated, with or without the affinity columns; None if there is none.

    Also None if a row or a column occurs twice. (`topo -p2p` prints a table of the same form with other words.)
    """
    lines = [_ANSI.sub("", line).rstrip() for line in text.splitlines()]
    top = next((i for i, line in enumerate(lines) if re.match(r"\s+GPU0\b", line)), None)
    if top is None:
        return None
    devices = [name for name in _HEADING.findall(lines[top]) if name not in _AFFINITY]
    rows = [cells[0] for line in lines if _row_words(cells := line.split(), devices) is not None]
    if len(set(rows)) != len(rows) or len(set(devices)) != len(devices):
        return None
    paths: dict[str, Mapping[str, str]] = {}
    for line in lines[top + 1 :]:
        cells = line.split()
        if not cells or cells[0] not in devices:
            break
        words = _row_words(cells, devices)
        if words is None:
            continue
        paths[cells[0]] = {name: word for name, word in zip(devices, words, strict=True) if word != "X"}
    gpus = tuple(name for name in devices if name.startswith("GPU"))
    nics = tuple(name for name in devices if name not in gpus)
    names = (re.fullmatch(r"\s+(NIC[0-9]+): (\S+)", line) for line in lines)
    return TopoMatrix(
        gpus=gpus, nics=nics, paths=paths, legend={match[1]: match[2] for match in names if match} or None
    )


def _row_words(cells: list[str], devices: list[str]) -> list[str] | None:
    """Return the words of a row of the matrix; None for any other line."""
    words = cells[1 : len(devices) + 1]
    if not cells or len(words) != len(devices) or not all(map(_PATH.fullmatch, words)):
        return None
    itself = [name for name, word in zip(devices, words, strict=True) if word == "X"]
    return words if itself == [cells[0]] else None


def parse_nvlink_status(text: str) -> tuple[NvlinkStatus, ...]:
    """Parse `nvidia-smi nvlink -s`.

    A GPU in MIG mode refuses the query: its links are None, which does not mean zero.
    """
    return _link_rows(text, r"(?:([0-9]{1,6}(?:\.[0-9]{1,6})?) GB/s|<inactive>)")


def parse_nvlink_errors(text: str, counter: str) -> tuple[NvlinkStatus, ...]:
    """Parse one counter of `nvidia-smi nvlink -e` ("Replay Errors", …): counts in place of GB/s.

    The links are None where there is no such counter: NVLinks of Blackwell have others than those before.
    """
    return _link_rows(text, rf"{re.escape(counter)}: (?:([0-9]{{1,15}})|N/A)")


def _link_rows(text: str, value: str) -> tuple[NvlinkStatus, ...]:
    row = re.compile(rf"\s+Link ([0-9]{{1,4}}): {value}")
    nvlink_status: list[NvlinkStatus] = []
    numbered: list[list[tuple[int, float | None]]] = []
    for line in text.splitlines():
        if gpu := re.match(r"GPU ([0-9]{1,4}): ", line):
            uuid = re.search(r"UUID: ([^)\s]+)", line)
            nvlink_status.append(NvlinkStatus(index=int(gpu[1]), uuid=uuid[1] if uuid else None))
            numbered.append([])
        elif nvlink_status and (link := row.match(line)):
            numbered[-1].append((int(link[1]), float(link[2]) if link[2] else None))
    return tuple(
        msgspec.structs.replace(status, links=_in_order(links))
        for status, links in zip(nvlink_status, numbered, strict=True)
    )


def _in_order(links: list[tuple[int, float | None]]) -> tuple[float | None, ...] | None:
    """Return the links from 0 on; None if there is none, and if one is missing or occurs twice."""
    speeds = dict(links)
    whole = links and len(speeds) == len(links) == max(speeds) + 1 <= _MOST_LINKS
    return tuple(speeds[number] for number in range(len(speeds))) if whole else None


def nvlinks_by_address(
    statuses: tuple[NvlinkStatus, ...], gpus: tuple[Gpu, ...], *, numbered: bool
) -> dict[str, tuple[float | None, ...]]:
    """Return each GPU's links by address.

    A row belongs to the GPU with its UUID, or, if the rows are `numbered`, to the GPU at its place among `gpus`. The
    links are unknown for a GPU that occurs twice, or whose UUID belongs to another place.
    """
    uuids = {gpu.uuid.casefold(): gpu for gpu in gpus if gpu.uuid}
    nvlinks: dict[str, list[NvlinkStatus]] = {}
    doubted: set[str] = set()
    for status in statuses:
        place = gpus[status.index] if numbered and status.index < len(gpus) else None
        named = uuids.get((status.uuid or "").casefold())
        if place and place.uuid and status.uuid and named is not place:
            doubted.update(gpu.address for gpu in (place, named) if gpu)
        if gpu := named or place:
            nvlinks.setdefault(gpu.address, []).append(status)
    known = {
        address: rows[0].links
        for address, rows in nvlinks.items()
        if len(rows) == 1 and rows[0].links is not None and address not in doubted
    }
    # GPUs of one model have the same number of links. A list that is shorter than another GPU's has lost some.
    models = {gpu.address: gpu.model for gpu in gpus}
    counts = grouped((models[address], len(links)) for address, links in known.items())
    return {address: links for address, links in known.items() if len(links) == max(counts[models[address]])}


def peers_from_matrix(matrix: TopoMatrix, order: tuple[str, ...]) -> dict[str, tuple[Peer, ...]]:
    """Return each GPU's peers from a topology matrix; GPU n is `order[n]`. NV18 means 18 NVLinks, any other word PCIe.

    A path belongs to both GPUs. If a GPU's row and another GPU's row disagree about it, its peers are unknown.
    """
    addresses = dict(zip(matrix.gpus, order, strict=True))
    peers: dict[str, tuple[Peer, ...]] = {}
    for name, address in addresses.items():
        row = matrix.paths.get(name)
        if row is None or any(matrix.paths.get(other, {}).get(name, word) != word for other, word in row.items()):
            continue
        found = {addresses[other]: row[other] for other in matrix.gpus if other in row}
        peers[address] = tuple(
            Peer(address=other, kind="nvlink", links=int(word[2:]))
            if word.startswith("NV")
            else Peer(address=other, kind="pcie")
            for other, word in sorted(found.items())
        )
    return peers
