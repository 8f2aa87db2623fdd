"""Parsers for `nvidia-smi -q`, as XML (-x) and as text. Pure. Used if NVML is not available, and on captures.

Both forms are converted to one flat table (path → values in order), and one table of rows says where each fact is.
"N/A" and similar words are not values. Units are converted: MiB become bytes, and module id 0 becomes None. If a fact
occurs more than once with different values, it is unknown (`_text_at`): nvidia-smi prints each fact once, so it cannot
be known which value is true.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hosttune.errors import BadInput
from hosttune.gpu.nvidia_smi_rows import (
    ROWS,
    Row,
    compute_mode_of,
    flag_of,
    integer_of,
    is_lacking,
    mode_of,
    number_of,
    text_of,
    watts_of,
)
from hosttune.gpu.nvidia_words import CLOCK_REASONS, MOST, recovery
from hosttune.gpu.vendor import NO_ADDRESS, VendorAnswer, without_conflicting_gpus
from hosttune.model.host import Gpu, Mig, MigInstance, Problem
from hosttune.model.limits import check_count
from hosttune.model.values import parse_address

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

Flat = dict[str, list[str]]  # the texts at each path, in the order of the document

# The words of each element of the fabric's health: where there is no fault, and where there is one (nvml.h, in
# nvidia-smi's words: NVML_GPU_FABRIC_HEALTH_…). For "incorrect configuration", any other word is a fault too.
_FLAG = (("false",), ("true",))
_FABRIC_WORDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "summary": (("healthy",), ("unhealthy", "limited capacity")),
    "bandwidth": (("full",), ("degraded",)),
    "route recovery in progress": _FLAG,
    "route unhealthy": _FLAG,
    "access timeout recovery": _FLAG,
    "incorrect configuration": (("none",), ()),
    "partition assigned": (("false", "true"), ()),
}
# A driver that reports one of these reports all of them. Older drivers report only the bandwidth.
_FABRIC_CORE = frozenset(("bandwidth", "route recovery in progress", "route unhealthy", "access timeout recovery"))


class FabricHealth(NamedTuple):
    """The faults of the fabric's health, the elements that have a known word, and whether an element has none."""

    faults: tuple[str, ...]
    reported: frozenset[str]
    doubted: bool


def fabric_health(flat: Flat, folder: str) -> FabricHealth:
    """Return the faults of a GPU's connection to the fabric; `folder` is the path of its health in this form.

    "N/A" is not a doubt: most GPUs are on no such fabric.
    """
    faults: list[str] = []
    reported: set[str] = set()
    lacking: set[str] = set()
    doubted = False
    for path, values in flat.items():
        if not path.startswith(folder):
            continue
        name = path.removeprefix(folder).casefold().replace("_", " ")
        good, bad = _FABRIC_WORDS.get(name, ((), ("true",)))
        for value in dict.fromkeys(values):
            word = value.casefold()
            if is_lacking(value):
                lacking.add(name)
            elif word in good:
                reported.add(name)
            elif word in bad or (name == "incorrect configuration" and text_of(value)):
                reported.add(name)
                faults.append(name if word == "true" else f"{name} {word}" if bad else word)
            else:
                doubted = doubted or name in _FABRIC_WORDS
    core = reported & _FABRIC_CORE
    cut = bool(core) and core != {"bandwidth"} and not (reported | lacking).issuperset(_FABRIC_CORE)
    doubted = doubted or cut or bool(reported & lacking)
    return FabricHealth(tuple(faults), frozenset(reported & _FABRIC_WORDS.keys()), doubted)


_DEPTH = 8  # nvidia-smi itself nests at most 4 levels
# Every driver since 384 prints all of these (nvidia-smi(1), "Clocks Event Reasons").
_HARD = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
# The parts that belong to a complete list of ECC counters, by kind. Each form has all of them or none (nvidia-smi(1),
# "ECC Errors"; the parity and SEC-DED parts replace the older single count).
_ECC_PARTS = {
    "uncorrectable": (
        frozenset(("sram uncorrectable", "dram uncorrectable")),
        frozenset(("sram uncorrectable parity", "sram uncorrectable secded", "dram uncorrectable")),
    ),
    "correctable": (frozenset(("sram correctable", "dram correctable")),),
}
_ALIASES = {"idle": "gpu_idle", "display_clock_setting": "display_clocks_setting"}


class _Places(NamedTuple):
    """The places where the two forms have facts with more than one value."""

    rows: Callable[[Row], tuple[str, ...]]
    bus_id: str
    mig_current: str
    mig_pending: str
    mig_device: str
    mig_instance: str
    reasons: tuple[str, ...]
    volatile: str
    lifetime: str
    health: str
    requested: str
    processes: str
    process: str


_XML = _Places(
    lambda row: row.xml,
    "pci/pci_bus_id",
    "mig_mode/current_mig",
    "mig_mode/pending_mig",
    "mig_devices/mig_device",
    "mig_devices/mig_device/gpu_instance_id",
    ("clocks_event_reasons/", "clocks_throttle_reasons/"),
    "ecc_errors/volatile/",
    "ecc_errors/aggregate/",
    "fabric/health/",
    "gpu_power_readings/requested_power_limit",
    "processes",
    "processes/process_info/pid",
)
_TEXT = _Places(
    lambda row: row.text,
    "PCI/Bus Id",
    "MIG Mode/Current",
    "MIG Mode/Pending",
    "MIG Device",
    "MIG Device/GPU Instance ID",
    ("Clocks Event Reasons/", "Clocks Throttle Reasons/"),
    "ECC Errors/Volatile/",
    "ECC Errors/Aggregate/",
    "Fabric/Health/",
    "GPU Power Readings/Requested Power Limit",
    "Processes",
    "Processes/Process ID",
)

# Columns of `nvidia-smi --query-gpu`, and the field of `Gpu` for each.
QUERY_FIELDS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "persistence_mode": ("persistence", flag_of),
    "power.limit": ("power_limit_watts", number_of),
    "power.default_limit": ("power_default_watts", number_of),
    "power.min_limit": ("power_min_watts", number_of),
    "power.max_limit": ("power_max_watts", number_of),
    "compute_mode": ("compute_mode", compute_mode_of),
    "ecc.mode.current": ("ecc", flag_of),
    "ecc.mode.pending": ("ecc_pending", flag_of),
    "mig.mode.current": ("mode", mode_of),
    "mig.mode.pending": ("pending", mode_of),
}


def parse_smi_query(text: str, address: str) -> Gpu:
    """Parse `nvidia-smi -i ADDRESS --query-gpu=QUERY_FIELDS --format=csv,noheader,nounits` for one GPU.

    Raises BadInput.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    cells = [cell.strip() for cell in lines[0].split(",")] if len(lines) == 1 else []
    if len(cells) != len(QUERY_FIELDS):
        raise BadInput(f"not the row of one GPU: {text[:60]!r}", where="nvidia-smi", hint="run it by hand to see why")
    facts: dict[str, Any] = {
        field: read(cell) for (field, read), cell in zip(QUERY_FIELDS.values(), cells, strict=True)
    }
    mode, pending = facts.pop("mode"), facts.pop("pending")
    return Gpu(address=address, **facts, mig=Mig(mode=mode, pending=pending) if mode or pending else None)


@lru_cache(maxsize=1)  # the settings of a capture are read one by one, each from the complete answer
def parse_smi_xml(text: str) -> VendorAnswer:
    """Parse `nvidia-smi -q -x`: the GPUs in its order. Raises BadInput if it is not XML, or has entities or comments.

    The text is untrusted: an internal DTD subset is refused, and the external one that it names is never fetched.
    """
    from xml.etree import ElementTree  # here: most hosts answer through NVML

    doctype = text[text.find("<!DOCTYPE") :].partition(">")[0] if "<!DOCTYPE" in text else ""
    if "<!ENTITY" in text or "[" in doctype:
        raise BadInput("XML with its own DTD", where="nvidia-smi-q-x", hint="record it without --dtd")
    if "<!--" in text:
        raise BadInput(
            "XML with a comment, which nvidia-smi never writes", where="nvidia-smi-q-x", hint="record it again"
        )
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise BadInput(f"not XML: {error}", where="nvidia-smi-q-x", hint="record nvidia-smi -q -x again") from error
    check_count(sum(1 for _ in root.iter("gpu")), MOST, "nvidia-smi-q-x")
    driver = text_of(_one_of((element.text or "").strip() for element in root.iterfind("driver_version")))
    count = integer_of(_one_of((element.text or "").strip() for element in root.iterfind("attached_gpus")))
    flats = ((gpu.get("id", ""), _flatten(gpu)) for gpu in root.iter("gpu"))
    return msgspec.structs.replace(_answer(flats, _XML, driver, "nvidia-smi-q-x"), count=count)


def _flatten(top: Element) -> Flat:
    """Return every element's text by path below `top`, in document order.

    nvidia-smi never writes text around child elements. Such text gets a second, empty value, so that the fact is
    unknown.
    """
    flat: Flat = {}
    todo: list[tuple[tuple[str, ...], Element]] = [((), top)]
    while todo:
        path, element = todo.pop()
        if len(path) < _DEPTH:
            todo.extend(((*path, child.tag), child) for child in reversed(element))
        if path:
            texts = [(element.text or "").strip()]
            around = [*texts, *((child.tail or "").strip() for child in element)]
            flat.setdefault("/".join(path), []).extend([*texts, ""] if len(around) > 1 and any(around) else texts)
    return flat


def parse_smi_text(text: str) -> VendorAnswer:
    """Parse `nvidia-smi -q`: the GPUs in its order; empty if the text has none.

    Raises BadInput if there are too many.
    """
    drivers: list[str] = []
    counts: list[str] = []
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
            drivers += [value] if name == "Driver Version" else []
            counts += [value] if name == "Attached GPUs" else []
        elif flats and name:
            stack = [entry for entry in stack if entry[0] < indent][:_DEPTH]
            stack.append((indent, name))
            flats[-1][1].setdefault("/".join(part for _, part in stack), []).append(value)
    check_count(len(flats), MOST, "nvidia-smi-q")
    answer = _answer(flats, _TEXT, text_of(_one_of(drivers)), "nvidia-smi-q")
    return msgspec.structs.replace(answer, count=integer_of(_one_of(counts)))


def _one_of(values: Iterable[str]) -> str:
    """Return the text that all values are; "" (which is not a value) if there is none, or if they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else ""


def _text_at(flat: Flat, path: str) -> str:
    """Return the text at a path; "" if there is none, or if it occurs more than once with different values."""
    return _one_of(flat.get(path, ()))


def _answer(flats: Iterable[tuple[str, Flat]], places: _Places, driver: str | None, where: str) -> VendorAnswer:
    gpus: list[Gpu] = []
    problems: list[Problem] = []
    flats = list(flats)
    healths = [fabric_health(flat, places.health) for _, flat in flats]
    reported = frozenset(name for health in healths for name in health.reported)
    for (bus_id, flat), health in zip(flats, healths, strict=True):
        try:
            address, *others = (parse_address(text, where=where) for text in (bus_id, *flat.get(places.bus_id, ())))
        except BadInput as error:
            problems.append(Problem(what=NO_ADDRESS, where=where, why=error.what))
            continue
        if set(others) - {address}:
            why = f"{address} is listed as {others[0]} too: which of them it is is not known"
            problems.append(Problem(what=NO_ADDRESS, where=where, why=why))
            continue
        gpu = _gpu(address, flat, places, driver)
        if health.faults or (reported == health.reported and not health.doubted):
            gpus.append(msgspec.structs.replace(gpu, fabric_health=health.faults if health.reported else None))
        else:  # an element without a known word may hide a fault, and so may the status that sums it up
            gpus.append(msgspec.structs.replace(gpu, fabric_status=None))
    return without_conflicting_gpus(VendorAnswer(gpus=tuple(gpus), problems=tuple(problems)), where)


def _gpu(address: str, flat: Flat, places: _Places, driver: str | None) -> Gpu:
    facts: dict[str, Any] = {}
    lacks: list[str] = []
    for row in ROWS:
        facts[row.field], lacking = _fact(flat, row, places.rows(row))
        lacks += [row.field] if lacking else []
    counts = {
        "ecc_uncorrected": (places.volatile, "uncorrectable"),
        "ecc_corrected": (places.volatile, "correctable"),
        "ecc_uncorrected_lifetime": (places.lifetime, "uncorrectable"),
    }
    for field, (folder, word) in counts.items():
        facts[field], lacking = _errors(flat, folder, word)
        lacks += [field] if lacking else []
    requested, limit = watts_of(_text_at(flat, places.requested)), facts["power_limit_watts"]
    if requested is not None and limit is not None and limit > requested:  # the limit in effect is never above it
        facts["power_limit_watts"] = None
    facts["recovery_action"] = recovery(facts["recovery_action"], (text for texts in flat.values() for text in texts))
    lacks += ["mig"] if is_lacking(_text_at(flat, places.mig_current)) and places.mig_device not in flat else []
    return Gpu(
        address=address,
        **{**facts, "module_id": facts.get("module_id") or None},
        driver_version=driver,
        mig=_mig(flat, places),
        clock_reasons=_reasons(flat, places),
        processes=_processes(flat, places),
        lacks=tuple(sorted(lacks)) or None,
    )


def _fact(flat: Flat, row: Row, paths: tuple[str, ...]) -> tuple[object, bool]:
    """Return one fact, and whether the GPU reports that it does not have it.

    If older and newer paths of the fact differ, it is unknown.
    """
    texts = [_text_at(flat, path) for path in paths if path in flat]
    if texts:
        values = {value for text in texts if (value := row.read(text)) is not None}
        doubted = len(values) > 1 or "" in texts
        value = values.pop() if values and not doubted else None
        return value, value is None and not doubted and all(map(is_lacking, texts))
    # "Remapped Rows : N/A" applies to everything that would be below it.
    return None, any(is_lacking(_text_at(flat, path.rpartition("/")[0])) for path in paths)


def _mig(flat: Flat, places: _Places) -> Mig | None:
    """Return the MIG mode and the instances that have a device; None if MIG is not supported.

    If MIG is off but there is a device, the mode is unknown.
    """
    mode, pending = (mode_of(_text_at(flat, path)) for path in (places.mig_current, places.mig_pending))
    mode = None if places.mig_device in flat and mode != "enabled" else mode
    if mode is None and pending is None:
        return None
    ids = dict.fromkeys(map(integer_of, flat.get(places.mig_instance, [])))
    instances = tuple(MigInstance(id=number) for number in ids if number is not None)
    return Mig(mode=mode, pending=pending, instances=instances or (() if mode == "disabled" else None))


def _reasons(flat: Flat, places: _Places) -> tuple[str, ...] | None:
    """Return the active clock event reasons in NVML's bit order; None if no reason has a known state.

    Also None if the state of a reason that hardware or heat would set (`_HARD`) is unknown, unless another of them is
    active. A reason that occurs more than once, also under its older name, is active if any occurrence says so. If its
    occurrences differ in another way, it is unknown.
    """
    by_reason: dict[str, set[str]] = {}
    for path, values in flat.items():
        if path.startswith(places.reasons):
            name = re.sub(r"^clocks_(event|throttle)_reason_", "", path.rpartition("/")[2])
            name = name.casefold().replace(" ", "_")
            by_reason.setdefault(_ALIASES.get(name, name), set()).update(values)
    active = {
        name: "Active" in words for name, words in by_reason.items() if "Active" in words or words == {"Not Active"}
    }
    if not active or not (any(map(active.get, _HARD)) or all(name in active for name in _HARD)):
        return None
    named = tuple(name for name in CLOCK_REASONS if active.get(name))
    return (*named, *(name for name, on in active.items() if on and name not in CLOCK_REASONS))


def _errors(flat: Flat, folder: str, word: str) -> tuple[int | None, bool]:
    """Return ECC errors of one kind, SRAM and DRAM together; and whether the GPU reports that it does not count them.

    The sum is None if any part is unknown, unless the known parts already count errors.
    """
    errors: dict[str, list[str]] = {}
    for path, values in flat.items():
        if path.startswith(folder) and _kind(name := path.rpartition("/")[2]) == word:
            name = re.sub(r"[ _-]+", " ", name.casefold()).replace("sec ded", "secded")
            errors.setdefault(name, []).extend(values)
    texts = [_one_of(values) for values in errors.values()]
    parts = [integer_of(text) for text in texts]
    known = [part for part in parts if part is not None]
    whole = len(known) == len(parts) and frozenset(errors) in _ECC_PARTS[word]
    total = sum(known) if known and (whole or sum(known)) else None  # known errors count even if a part is unknown
    return total, bool(texts) and all(map(is_lacking, texts))


def _kind(name: str) -> str:
    """Return correctable or uncorrectable, from "SRAM Uncorrectable Parity" or "dram_correctable".

    The result is "" for another counter.
    """
    words = re.split(r"[ _]", name.casefold())
    return next((word for word in ("uncorrectable", "correctable") if word in words), "")


def _processes(flat: Flat, places: _Places) -> int | None:
    """Return the number of processes that use the GPU.

    At least 1 if anything is listed; None if the element is neither a list nor empty.
    """
    if any(path.startswith(f"{places.processes}/") for path in flat):
        return len(set(flat.get(places.process, ()))) or 1
    return 0 if places.processes in flat and set(flat[places.processes]) <= {"", "None"} else None
