"""Speed and errors of each NVLink, from NVML or nvidia-smi → `Gpu.nvlinks`. Pure.

Sources: nvml.h, NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, _RECOVERY, _CRC and NVML_FI_DEV_NVLINK_GET_SPEED (of each link,
from Hopper on); nvmlDeviceGetNvLinkErrorCounter (before Hopper). NVLink 5 (Blackwell) has none of these counters, but
NVML_FI_DEV_NVLINK_COUNT_*: those are read whose increase NVIDIA's DCGM takes for a fault (MonitorNVLink5Fields).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from hosttune.gpu.nvidia_topo import nvlinks_by_address, parse_nvlink_errors
from hosttune.model.gpu import Gpu, Nvlink
from hosttune.model.values import MAX_SIZE

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
