"""`nvidia-smi -q`, as XML (-x) and as text: pure parsers, used where NVML is absent and on captures.

Both forms become one flat table, path → values in order, and one table of rows says where each fact stands.
"N/A" and its likes are no values. Numbers keep their meaning: MiB become bytes, module id 0 is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hosttune.errors import BadInput
from hosttune.gpu.nvidia_words import CLOCK_REASONS
from hosttune.gpu.vendor import Answer
from hosttune.model.host import Gpu, Mig, MigInstance, Problem
from hosttune.model.values import parse_address

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

Flat = dict[str, list[str]]

_NUMBER = re.compile(r"(-?\d{1,15}(?:\.\d{1,9})?)(?: ?[A-Za-z%/]+)?")
_UNKNOWN = re.compile(r"\[?(n/a|not supported|unknown error|gpu is lost|requested functionality .*|insufficient .*)\]?")
_DEPTH = 8  # what nvidia-smi nests at most is 4
_ALIASES = {"idle": "gpu_idle", "display_clock_setting": "display_clocks_setting"}


def _text(value: str) -> str | None:
    return None if not value or _UNKNOWN.fullmatch(value.casefold()) else value


def _word(value: str) -> str | None:
    text = _text(value)
    return text.casefold() if text else None


def _number(value: str) -> float | None:
    match = _NUMBER.fullmatch(value)
    return float(match[1]) if match else None


def _integer(value: str) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _bytes(value: str) -> int | None:
    return None if not value.endswith(" MiB") or (mib := _integer(value)) is None else mib << 20


def _flag(value: str) -> bool | None:
    return {"enabled": True, "yes": True, "disabled": False, "no": False}.get(value.casefold())


class _Row(NamedTuple):
    """One fact: the field of `Gpu`, its paths in the XML and in the text (newest form first), and how it reads."""

    field: str
    xml: tuple[str, ...]
    text: tuple[str, ...]
    read: Callable[[str], object]


_ROWS = (
    _Row("model", ("product_name",), ("Product Name",), _text),
    _Row("uuid", ("uuid",), ("GPU UUID",), _text),
    _Row("serial", ("serial",), ("Serial Number",), _text),
    _Row("firmware_version", ("vbios_version",), ("VBIOS Version",), _text),
    _Row("module_id", ("platformInfo/module_id", "gpu_module_id"), ("Platform Info/Module Id", "Module ID"), _integer),
    _Row("memory_bytes", ("fb_memory_usage/total",), ("FB Memory Usage/Total",), _bytes),
    _Row("persistence", ("persistence_mode",), ("Persistence Mode",), _flag),
    _Row("compute_mode", ("compute_mode",), ("Compute Mode",), _word),
    _Row("ecc", ("ecc_mode/current_ecc",), ("ECC Mode/Current", "Ecc Mode/Current"), _flag),
    _Row("ecc_pending", ("ecc_mode/pending_ecc",), ("ECC Mode/Pending", "Ecc Mode/Pending"), _flag),
    _Row("fabric_state", ("fabric/state",), ("Fabric/State",), _word),
    _Row("fabric_status", ("fabric/status",), ("Fabric/Status",), _word),
    _Row(
        "power_limit_watts",
        ("gpu_power_readings/current_power_limit", "power_readings/power_limit"),
        ("GPU Power Readings/Current Power Limit", "Power Readings/Power Limit"),
        _number,
    ),
    _Row(
        "power_default_watts",
        ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
        ("GPU Power Readings/Default Power Limit", "Power Readings/Default Power Limit"),
        _number,
    ),
    _Row(
        "power_min_watts",
        ("gpu_power_readings/min_power_limit", "power_readings/min_power_limit"),
        ("GPU Power Readings/Min Power Limit", "Power Readings/Min Power Limit"),
        _number,
    ),
    _Row(
        "power_max_watts",
        ("gpu_power_readings/max_power_limit", "power_readings/max_power_limit"),
        ("GPU Power Readings/Max Power Limit", "Power Readings/Max Power Limit"),
        _number,
    ),
    _Row("remapped_correctable", ("remapped_rows/remapped_row_corr",), ("Remapped Rows/Correctable Error",), _integer),
    _Row(
        "remapped_uncorrectable", ("remapped_rows/remapped_row_unc",), ("Remapped Rows/Uncorrectable Error",), _integer
    ),
    _Row("remapped_pending", ("remapped_rows/remapped_row_pending",), ("Remapped Rows/Pending",), _flag),
    _Row(
        "remapped_failed", ("remapped_rows/remapped_row_failure",), ("Remapped Rows/Remapping Failure Occurred",), _flag
    ),
    _Row(
        "pcie_max_generation",
        ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
        ("PCI/GPU Link Info/PCIe Generation/Max",),
        _integer,
    ),
    _Row(
        "pcie_gpu_max_generation",
        ("pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",),
        ("PCI/GPU Link Info/PCIe Generation/Device Max",),
        _integer,
    ),
)


class _Places(NamedTuple):
    """Where the two forms keep what is more than one value."""

    rows: Callable[[_Row], tuple[str, ...]]
    mig_current: str
    mig_pending: str
    mig_instance: str
    reasons: tuple[str, ...]
    volatile: str
    processes: str
    process: str


_XML = _Places(
    lambda row: row.xml,
    "mig_mode/current_mig",
    "mig_mode/pending_mig",
    "mig_devices/mig_device/gpu_instance_id",
    ("clocks_event_reasons/", "clocks_throttle_reasons/"),
    "ecc_errors/volatile/",
    "processes",
    "processes/process_info/pid",
)
_TEXT = _Places(
    lambda row: row.text,
    "MIG Mode/Current",
    "MIG Mode/Pending",
    "MIG Device/GPU Instance ID",
    ("Clocks Event Reasons/", "Clocks Throttle Reasons/"),
    "ECC Errors/Volatile/",
    "Processes",
    "Processes/Process ID",
)

# Columns of `nvidia-smi --query-gpu`, and the field of `Gpu` that each is.
QUERY_FIELDS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "persistence_mode": ("persistence", _flag),
    "power.limit": ("power_limit_watts", _number),
    "power.default_limit": ("power_default_watts", _number),
    "power.min_limit": ("power_min_watts", _number),
    "power.max_limit": ("power_max_watts", _number),
    "compute_mode": ("compute_mode", _word),
    "ecc.mode.current": ("ecc", _flag),
    "ecc.mode.pending": ("ecc_pending", _flag),
    "mig.mode.current": ("mode", _word),
    "mig.mode.pending": ("pending", _word),
}


def parse_smi_query(text: str, address: str) -> Gpu:
    """`nvidia-smi -i ADDRESS --query-gpu=QUERY_FIELDS --format=csv,noheader,nounits`: the one GPU. Raises BadInput."""
    lines = [line for line in text.splitlines() if line.strip()]
    cells = [cell.strip() for cell in lines[0].split(",")] if len(lines) == 1 else []
    if len(cells) != len(QUERY_FIELDS):
        raise BadInput(f"not the row of one GPU: {text[:60]!r}", where="nvidia-smi", hint="run it by hand to see why")
    facts: dict[str, Any] = {
        field: read(cell) for (field, read), cell in zip(QUERY_FIELDS.values(), cells, strict=True)
    }
    mode, pending = facts.pop("mode"), facts.pop("pending")
    return Gpu(address=address, **facts, mig=Mig(mode=mode, pending=pending) if mode or pending else None)


def parse_smi_xml(text: str) -> Answer:
    """`nvidia-smi -q -x`: the GPUs in its order. Raises BadInput when it is not XML, or declares entities.

    The text is untrusted: an internal DTD subset is refused, the external one that it names is never fetched.
    """
    from xml.etree import ElementTree

    doctype = text[text.find("<!DOCTYPE") :].partition(">")[0] if "<!DOCTYPE" in text else ""
    if "<!ENTITY" in text or "[" in doctype:
        raise BadInput("XML with its own DTD", where="nvidia-smi-q-x", hint="record it without --dtd")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise BadInput(f"not XML: {error}", where="nvidia-smi-q-x", hint="record nvidia-smi -q -x again") from error
    driver = _text((root.findtext("driver_version") or "").strip())
    flats = ((gpu.get("id", ""), _flatten(gpu)) for gpu in root.iter("gpu"))
    return _answer(flats, _XML, driver, "nvidia-smi-q-x")


def _flatten(top: Element) -> Flat:
    """Every element's text by path below `top`, in document order."""
    flat: Flat = {}
    todo: list[tuple[tuple[str, ...], Element]] = [((), top)]
    while todo:
        path, element = todo.pop()
        if len(path) < _DEPTH:
            todo.extend(((*path, child.tag), child) for child in reversed(element))
        if path:
            flat.setdefault("/".join(path), []).append((element.text or "").strip())
    return flat


def parse_smi_text(text: str) -> Answer:
    """`nvidia-smi -q`: the GPUs in its order; empty when the text holds none."""
    driver: str | None = None
    flats: list[tuple[str, Flat]] = []
    stack: list[tuple[int, str]] = []
    for line in text.splitlines():
        if line.startswith("GPU "):
            flats.append((line[4:].strip(), {}))
            stack = []
            continue
        name, _, value = (part.strip() for part in line.partition(" : "))
        indent = len(line) - len(line.lstrip())
        if not indent:
            driver = _text(value) if name == "Driver Version" else driver
        elif flats and name:
            stack = [entry for entry in stack if entry[0] < indent][:_DEPTH]
            stack.append((indent, name))
            flats[-1][1].setdefault("/".join(part for _, part in stack), []).append(value)
    return _answer(flats, _TEXT, driver, "nvidia-smi-q")


def _answer(flats: Iterable[tuple[str, Flat]], places: _Places, driver: str | None, where: str) -> Answer:
    gpus: list[Gpu] = []
    problems: list[Problem] = []
    for bus_id, flat in flats:
        try:
            address = parse_address(bus_id, where=where)
        except BadInput as error:
            problems.append(Problem(what="GPU without a PCI address", where=where, why=error.what))
            continue
        gpus.append(_gpu(address, flat, places, driver))
    return Answer(gpus=tuple(gpus), problems=tuple(problems))


def _gpu(address: str, flat: Flat, places: _Places, driver: str | None) -> Gpu:
    facts: dict[str, Any] = {}
    for row in _ROWS:
        for path in places.rows(row):
            if path in flat:
                facts[row.field] = row.read(flat[path][0])
                break
    return Gpu(
        address=address,
        **{**facts, "module_id": facts.get("module_id") or None},
        driver_version=driver,
        mig=_mig(flat, places),
        clock_reasons=_reasons(flat, places),
        ecc_uncorrected=_uncorrected(flat, places),
        processes=_processes(flat, places),
    )


def _mig(flat: Flat, places: _Places) -> Mig | None:
    """MIG mode and the instances that have a device; None where MIG is not supported."""
    mode, pending = (_word(flat.get(path, [""])[0]) for path in (places.mig_current, places.mig_pending))
    if mode is None and pending is None:
        return None
    ids = dict.fromkeys(map(_integer, flat.get(places.mig_instance, [])))
    instances = tuple(MigInstance(id=number) for number in ids if number is not None)
    return Mig(mode=mode, pending=pending, instances=instances or (() if mode == "disabled" else None))


def _reasons(flat: Flat, places: _Places) -> tuple[str, ...] | None:
    """The active clock event reasons in NVML's bit order; None when none of them says yes or no."""
    active: dict[str, bool] = {}
    for path, values in flat.items():
        if path.startswith(places.reasons) and values[0] in ("Active", "Not Active"):
            name = re.sub(r"^clocks_(event|throttle)_reason_", "", path.rpartition("/")[2])
            name = name.casefold().replace(" ", "_")
            active[_ALIASES.get(name, name)] = values[0] == "Active"
    if not active:
        return None
    named = tuple(name for name in CLOCK_REASONS if active.get(name))
    return (*named, *(name for name, on in active.items() if on and name not in CLOCK_REASONS))


def _uncorrected(flat: Flat, places: _Places) -> int | None:
    """Uncorrectable ECC errors since the driver was loaded, SRAM and DRAM together; None if any part is unknown."""
    parts = [
        _integer(values[0])
        for path, values in flat.items()
        if path.startswith(places.volatile) and "uncorrectable" in path.casefold()
    ]
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def _processes(flat: Flat, places: _Places) -> int | None:
    if places.processes not in flat:
        return None
    listed = flat.get(places.process, [])
    return None if not listed and _text(flat[places.processes][0] or "none") is None else len(set(listed))
