"""Speed and errors of each NVLink, from NVML or nvidia-smi → `Gpu.nvlinks`. Pure.

Sources: nvml.h, NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, _RECOVERY, _CRC and NVML_FI_DEV_NVLINK_GET_SPEED (of each link,
from Hopper on); nvmlDeviceGetNvLinkErrorCounter (before Hopper). NVLink 5 (Blackwell) has none of these counters, but
NVML_FI_DEV_NVLINK_COUNT_*: those are read whose increase NVIDIA's DCGM takes for a fault (MonitorNVLink5Fields).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from hosttune.model.gpu import Gpu, Nvlink, Peer
from hosttune.model.values import MAX_SIZE, Closed, Value, grouped

Raw = Mapping[str, Any]
_SMI = {"replays": "Replay Errors", "recoveries": "Recovery Errors", "crc_errors": "CRC Errors"}
_COUNTERS = {"replays": (161, 0), "recoveries": (162, 1), "crc_errors": (163, 2)}  # field, and counter before Hopper
_NEWER = {  # of NVLink 5: the field, and its name in `nvidia-smi nvlink -e`
    "malformed packets": (206, "Malformed packet Errors"),
    "buffer overruns": (207, "Buffer overrun Errors"),
    "receive errors": (208, "Rx Errors"),
    "remote receive errors": (209, "Rx remote Errors"),
    "general receive errors": (210, "Rx General Errors"),
    "link integrity errors": (211, "Local link integrity Errors"),
    "link recoveries": (215, "Total link recovery events"),
    "effective errors": (219, "Effective Errors"),
    "symbol errors": (221, "Symbol Errors"),
}
_SPEED = 164  # Mbyte/s
# nvml.h, nvmlValueType_t: the member of the union that a value of this type has.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_MISSING = "ERR Not Supported"


class Asker(Protocol):
    """NVML with every call guarded: a plain value, or "ERR reason"."""

    library: Any

    def ask(self, name: str, *arguments: object) -> Any:
        """Call the function with that name."""

    def guard(self, call: Callable[[], Any]) -> Any:
        """Return what `call` returns."""

    def reference(self, value: Any) -> object:
        """Return a pointer to a value of C."""


def field_values(nvml: Asker, handle: object, fields: Sequence[int | tuple[int, int]]) -> list[Any]:
    """Return the values of these fields (NVML_FI_…, or that and a link) in one call: a number each, or "ERR reason"."""
    values = nvml.ask("nvmlDeviceGetFieldValues", handle, list(fields)) if fields else []
    if isinstance(values, str):
        return [values] * len(fields)
    return [
        f"ERR {nvml.ask('nvmlErrorString', value.nvmlReturn)}"
        if value.nvmlReturn
        else int(getattr(value.value, _MEMBERS[value.valueType]))
        for value in values
    ]


def ask_links(nvml: Asker, handle: object, links: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return "speed" (Mbyte/s) and the error counters of these active links; "errors" has those of NVLink 5."""
    names = ("speed", *_COUNTERS)
    numbers = (_SPEED, *(field for field, _ in _COUNTERS.values()))
    answers = _of_links(nvml, handle, links, names, numbers)
    for link, answer in answers.items():
        for name, (_, counter) in _COUNTERS.items():
            if answer[name] == _MISSING:
                answer[name] = nvml.ask("nvmlDeviceGetNvLinkErrorCounter", handle, link, counter)
    without = [link for link, answer in answers.items() if all(answer[name] == _MISSING for name in _COUNTERS)]
    newer = _of_links(nvml, handle, without, tuple(_NEWER), [number for number, _ in _NEWER.values()])
    return answers | {link: {**answers[link], "errors": errors} for link, errors in newer.items()}


def _of_links(
    nvml: Asker, handle: object, links: Sequence[int], names: Sequence[str], numbers: Sequence[int]
) -> dict[int, dict[str, Any]]:
    """Return the value of each field of each link, by name."""
    values = iter(field_values(nvml, handle, [(number, link) for link in links for number in numbers]))
    return {link: {name: next(values) for name in names} for link in links}


def links_of_record(links: object, common: int | None) -> tuple[Nvlink, ...] | None:
    """Return the links of one GPU's entry in `nvml.json`; None if it has no counters, or the list is damaged.

    `common`: Mbyte/s of all links, for GPUs that do not report it of each.
    """
    if not isinstance(links, list) or not all(isinstance(link, dict) for link in links):
        return None
    if not any(name in link for link in links for name in _COUNTERS) or has_no_counters(links):
        return None
    if [link.get("link") for link in links] != list(range(len(links))):
        return None
    return tuple(_link(link, common) for link in links)


def has_no_counters(links: object) -> bool:
    """Return whether the driver says of every active link that it has no counters at all."""
    every = links if isinstance(links, list) else []
    active = [link for link in every if isinstance(link, dict) and link.get("state") == 1]
    return bool(active) and all(
        link.get(name) == _MISSING and not _has_newer(link) for link in active for name in _COUNTERS
    )


def _has_newer(raw: Raw) -> bool:
    newer = raw.get("errors")
    return isinstance(newer, dict) and any(newer.get(name, _MISSING) != _MISSING for name in _NEWER)


def _link(raw: Raw, common: int | None) -> Nvlink:
    speed = common if raw.get("speed") == _MISSING else _count(raw.get("speed"))
    counts = {name: _count(raw.get(name)) for name in _COUNTERS}
    newer = {name: _count(raw["errors"].get(name)) for name in _NEWER} if _has_newer(raw) else None
    return Nvlink(
        link=raw["link"],
        active=raw.get("state") == 1,
        gb_per_s=None if speed is None else speed / 1000,
        errors=newer,
        **counts,
    )


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_SIZE else None


def links_of_tables(
    errors: str, speeds: Mapping[str, tuple[float | None, ...]], gpus: tuple[Gpu, ...], *, numbered: bool
) -> dict[str, tuple[Nvlink, ...]]:
    """Return the links by address, from `nvidia-smi nvlink -e` and the speeds of `-s`; none without both."""
    labels = {**_SMI, **{name: label for name, (_, label) in _NEWER.items()}}
    counts = {
        name: nvlinks_by_address(parse_nvlink_errors(errors, label), gpus, numbered=numbered)
        for name, label in labels.items()
    }
    links: dict[str, tuple[Nvlink, ...]] = {}
    for address in (gpu.address for gpu in gpus):
        lists = {name: of[address] for name, of in counts.items() if address in of}
        newer = not lists.keys() & _SMI.keys() and bool(lists)
        own = speeds.get(address)
        if own is None or not lists or any(len(numbers) != len(own) for numbers in lists.values()):
            continue
        links[address] = tuple(
            Nvlink(link=n, active=speed is not None, gb_per_s=speed, **_of_tables(lists, n, newer=newer))
            for n, speed in enumerate(own)
        )
    return links


def _of_tables(lists: Mapping[str, tuple[float | None, ...]], n: int, *, newer: bool) -> dict[str, Any]:
    if newer:
        return {"errors": {name: _at(lists[name], n) if name in lists else None for name in _NEWER}}
    return {name: _at(of, n) for name, of in lists.items() if name in _SMI}


def _at(numbers: Iterable[float | None], place: int) -> int | None:
    number = tuple(numbers)[place]
    return None if number is None else int(number)


# --- nvidia-smi topo -------------------------------------------------------------------------------------------
# Parsers for `nvidia-smi topo -m`, `nvidia-smi nvlink -s` and `-e`. Pure. GPUs are named by nvidia-smi's index.
# Both print each fact once. If the matrix occurs twice, it is not used; if a link occurs twice, the GPU's links are
# unknown.
# The affinity columns are the kernel's lists, cut down to the caller's cpuset. They do not describe the topology.

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
