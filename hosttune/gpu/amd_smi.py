"""What `amd-smi static --json` says of the GPUs that amdgpu holds, compared with the driver's files.

Recorded in tests/cases/gpu/amd-smi: ROCm 6.3.1 prints a list, 7.2.1 an object with `gpu_data`, and lines of text before
it if it may not open a device. Any other form is not understood. "N/A" is a fact that the tool does not have. Not read:
`metric`, `bad-pages` and `xgmi`, because no recorded answer of an MI300X was found.

sysfs stays the source of each fact. The tool adds the serial number and whether more memory pages were retired than
the board may lose. A fact that both have is unknown if they differ; also if the tool's answer was lost, is not
understood in this place or leaves the GPU out, because it might have contradicted sysfs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import structs

from hosttune.errors import BadInput, CommandFailed
from hosttune.gpu.vendor import NO_ADDRESS, Listing, ask
from hosttune.machine.reader import Reader
from hosttune.model import sysfs
from hosttune.model.host import Gpu, PciDevice, Problem
from hosttune.model.jsontext import recorded_json
from hosttune.model.values import Value, parse_address

QUERY = "amd-smi-static"
COMMAND = ("amd-smi", "static", "--json")
SECONDS = 60.0  # eight divided GPUs are 64 devices to the tool
NOT_UNDERSTOOD = "amd-smi output not understood"
ABSENT = "N/A"
# Facts that both have. An uncorrected error may be in pages that only the tool knows were retired.
COMPARED = (
    *("driver_version", "firmware_version", "memory_bytes", "power_limit_watts", "power_min_watts", "power_max_watts"),
    *("temperature_slowdown_c", "compute_partition", "memory_partition", "ecc_uncorrected"),
)
_WORD = re.compile(r"[!-~](?:[ -~]{0,298}[!-~])?")
# ROCm 6.4 without a version of amdgpu's own: the first words of /proc/version, without the spaces between them.
_KERNEL = re.compile(r"Linuxversion([\w.+~-]{1,80})\(.*")
Entry = Mapping[str, Any]


class Told(Value, frozen=True, kw_only=True):
    """What the tool says of one GPU. `slowdown`: limits of its sensors, in degrees Celsius.

    `doubted`: names of facts whose place in the output is not understood.
    """

    gpu: Gpu
    slowdown: tuple[float, ...] = ()
    doubted: tuple[str, ...] = ()


class Report(Value, frozen=True, kw_only=True):
    """The whole answer. `doubted`: addresses that it has twice, with different facts."""

    told: tuple[Told, ...] = ()
    doubted: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


# --- the output --------------------------------------------------------------------------------------------------


def parse_amd_smi(text: str) -> Report:
    """Parse `amd-smi static --json`. Raises BadInput if it is no list of GPUs in one of the known forms."""
    warning, body = _split(text)
    document = recorded_json(body, where=QUERY)
    entries = document.get("gpu_data") if isinstance(document, dict) and len(document) == 1 else document
    if not isinstance(entries, list) or not entries or not all(isinstance(one, dict) for one in entries):
        raise BadInput("it has no list of GPUs", where=QUERY, hint="record it again")
    problems = [Problem(what="amd-smi printed a warning", where=QUERY, why=f"{warning[:80]!r}")] if warning else []
    told: dict[str, Told] = {}
    twice: set[str] = set()
    for entry in entries:
        if entries is document:
            entry = {"partition": None} | entry  # the list has always had the partition modes
        try:
            address = parse_address(_section(entry, "bus")["bdf"], where=QUERY)
        except (BadInput, KeyError, TypeError, AttributeError):
            why = f"GPU {str(entry.get('gpu'))[:20]} of amd-smi has none"
            problems.append(Problem(what=NO_ADDRESS, where=QUERY, why=why))
            continue
        one = _told(address, entry, problems, warned=bool(warning))
        if told.setdefault(address, one) != one:
            twice.add(address)
    for address in sorted(twice):
        why = "amd-smi has it twice, and they differ: neither is used"
        problems.append(Problem(what="GPU listed twice", where=address, why=why))
    found = tuple(told.values())
    return Report(told=found, doubted=tuple(sorted(twice)), problems=tuple(dict.fromkeys(problems)))


def _split(text: str) -> tuple[str, str]:
    """Return the first line of a warning before the document ("": there is none), and the document."""
    lines = text.splitlines(keepends=True)
    start = next((at for at, line in enumerate(lines) if line[:1] in ("{", "[")), 0)
    before = (line.strip() for line in lines[:start])
    return next(filter(None, before), ""), "".join(lines[start:])


def _told(address: str, entry: Entry, problems: list[Problem], *, warned: bool) -> Told:
    """`warned`: it may not open the devices, so what it does not have of them may be there."""
    facts: dict[str, Any] = {}
    doubted: list[str] = []
    for names, read in _PARTS:
        try:
            facts |= read(entry)
        except BadInput as error:
            doubted += names
            problems.append(Problem(what=NOT_UNDERSTOOD, where=address, why=error.what))
    slowdown = facts.pop("slowdown", ())
    if warned and facts.get("unrepairable_memory") is None:
        doubted.append("ecc_uncorrected")
    return Told(gpu=Gpu(address=address, **facts), slowdown=slowdown, doubted=tuple(sorted({*doubted})))


def _bad(name: str, value: object) -> BadInput:
    return BadInput(f"{name} is {str(value)[:40]!r}", where=QUERY, hint="record it again")


def _section(entry: Entry, name: str) -> Entry:
    """Return a part of a GPU's entry; empty if the tool does not have it."""
    part = entry.get(name)
    if part == ABSENT:
        return {}
    if not isinstance(part, dict) or not part:
        raise _bad(name, part)
    return part


def _word(part: Entry, name: str) -> str | None:
    value = part.get(name, None if part else ABSENT)
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise _bad(name, value)
    return None if value == ABSENT else value


def _quantity(part: Entry, name: str, unit: str) -> float | None:
    value = part.get(name, None if part else ABSENT)
    if value == ABSENT:
        return None
    if not isinstance(value, dict) or value.keys() != {"value", "unit"} or value["unit"] != unit:
        raise _bad(name, value)
    amount = value["value"]
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < 1 << 40:
        raise _bad(name, amount)
    return float(amount)


def _driver(entry: Entry) -> Entry:
    version = _word(_section(entry, "driver"), "version")
    kernel = _KERNEL.fullmatch(version or "")
    return {"driver_version": kernel[1] if kernel else version}


def _image(entry: Entry) -> Entry:
    """`vbios` in ROCm 6, `ifwi` in 7. amdgpu's `vbios_version` is the part number."""
    names = [name for name in ("vbios", "ifwi") if name in entry]
    if len(names) != 1:
        raise _bad("vbios or ifwi", names)
    return {"firmware_version": _word(_section(entry, names[0]), "part_number")}


def _memory(entry: Entry) -> Entry:
    mebibytes = _quantity(_section(entry, "vram"), "size", "MB")
    return {"memory_bytes": None if mebibytes is None else int(mebibytes) << 20}


def _limits(entry: Entry) -> Entry:
    """In ROCm 7 the limits of the whole package are those of `ppt0`. A limit of 0 W is none."""
    limits = _section(entry, "limit")
    parts, end = (_section(limits, "ppt0"), "_power_limit") if "ppt0" in limits else (limits, "_power")
    least, most, now = (_quantity(parts, f"{name}{end}", "W") for name in ("min", "max", "socket"))
    return {"power_limit_watts": now or None, "power_max_watts": most or None, "power_min_watts": least}


def _slowdown(entry: Entry) -> Entry:
    limits = _section(entry, "limit")
    found = (_quantity(limits, f"slowdown_{name}_temperature", "C") for name in ("edge", "hotspot", "vram"))
    return {"slowdown": tuple(sorted(limit for limit in found if limit))}


def _retired(entry: Entry) -> Entry:
    """ROCm 7.0.2 and newer compare the number of retired pages with the threshold of the board.

    The recorded answers that have `ppt0` have it too: where it is missing beside `ppt0`, it was lost.
    """
    part = _section(entry, "ras")
    if "bad_page_threshold_exceeded" not in part and "ppt0" not in _section(entry, "limit"):
        return {}
    word = _word(part, "bad_page_threshold_exceeded")
    if word not in (None, "True", "False"):
        raise _bad("bad_page_threshold_exceeded", word)
    return {"unrepairable_memory": None if word is None else word == "True"}


def _modes(entry: Entry) -> Entry:
    """ROCm 6 prints the partition modes; 7 does only if it is asked for nothing else."""
    if "partition" not in entry:
        return {}
    part = _section(entry, "partition")
    return {name: _word(part, name) for name in ("compute_partition", "memory_partition")}


def _board(entry: Entry) -> Entry:
    serial = _word(_section(entry, "board"), "product_serial")
    return {"serial": None if serial == "0" else serial}


_PARTS: tuple[tuple[tuple[str, ...], Callable[[Entry], Entry]], ...] = (
    (("driver_version",), _driver),
    (("firmware_version",), _image),
    (("memory_bytes",), _memory),
    (("power_limit_watts", "power_min_watts", "power_max_watts"), _limits),
    (("temperature_slowdown_c",), _slowdown),
    (("compute_partition", "memory_partition"), _modes),
    (("ecc_uncorrected",), _retired),
    (("serial",), _board),
)


# --- beside the driver's files -----------------------------------------------------------------------------------


def with_static(reader: Reader, devices: Iterable[PciDevice], facts: Mapping[str, Gpu]) -> dict[str, Gpu]:
    """Return the facts of sysfs, by address, after the comparison with what the tool says; as they are without it.

    The tool opens every device, so on a live host it runs only if none is asleep.
    """
    mine = {device.address: device for device in devices if device.driver == "amdgpu"}
    asleep = mine.keys() - facts.keys()
    text = ask(reader, QUERY, lambda: None if asleep else _run(reader))
    if text is None:
        lost = any((one.what, one.where) == ("unreadable", QUERY) for one in reader.problems)
        return {address: _doubtful(gpu, COMPARED) if lost else gpu for address, gpu in facts.items()}
    try:
        report = parse_amd_smi(text)
    except BadInput as error:
        reader.problem(NOT_UNDERSTOOD, QUERY, error.what)
        report = Report()
    for problem in report.problems:
        reader.problem(problem.what, problem.where, problem.why)
    told = {one.gpu.address: one for one in report.told if one.gpu.address not in report.doubted}
    found = {}
    for address, gpu in facts.items():
        one = told.get(address)
        if one is None and report.told and address not in report.doubted and mine[address].physfn is None:
            why = "amdgpu holds it, and amd-smi lists other GPUs and not this one"
            reader.problem("GPU facts unknown", address, why)
        found[address] = _doubtful(gpu, COMPARED) if one is None else _agreed(reader, gpu, one)
    return found


def _run(reader: Reader) -> str | None:
    try:
        return reader.system.run(COMMAND, timeout=SECONDS)
    except CommandFailed as error:
        if error.reason != "not installed":  # many hosts have the kernel's driver alone
            reader.problem("amd-smi did not answer", QUERY, f"{error.reason}: only the driver's files were read")
        return None


def _doubtful(gpu: Gpu, names: Iterable[str]) -> Gpu:
    """Return the GPU without these facts. Errors that the driver has counted remain."""
    kept = {"ecc_uncorrected"} if gpu.ecc_uncorrected else set()
    return structs.replace(gpu, **dict.fromkeys(set(names) - kept))


def _agreed(reader: Reader, gpu: Gpu, told: Told) -> Gpu:
    """Return the facts of sysfs without those that the tool contradicts, and with those that only the tool has."""
    other = told.gpu
    if reader.system.scratch:  # the limit may have been set since it was recorded
        other = structs.replace(other, power_limit_watts=None)
    differing = [name for name in COMPARED if _differ(name, getattr(gpu, name), getattr(other, name))]
    if told.slowdown and gpu.temperature_slowdown_c not in (None, *told.slowdown):
        differing.append("temperature_slowdown_c")
    for name in differing:
        said = told.slowdown if name == "temperature_slowdown_c" else getattr(other, name)
        why = f"{name}: sysfs of amdgpu has {getattr(gpu, name)}, and amd-smi {said}: taken as unknown"
        reader.problem("contradicting facts of a GPU", gpu.address, why)
    known = _doubtful(gpu, (*differing, *told.doubted))
    return structs.replace(known, serial=gpu.serial or other.serial, unrepairable_memory=other.unrepairable_memory)


def _differ(name: str, one: Any, other: Any) -> bool:
    if one is None or other is None:
        return False
    if name == "memory_bytes":
        return bool(one >> 20 != other >> 20)
    return bool(abs(one - other) >= 1 if name.startswith("power_") else one != other)


def listings(reader: Reader) -> tuple[Listing, ...]:
    """Return the GPUs that the tool listed (in a capture).

    Each part of a divided GPU is a device to the tool, with the part's number in place of the function's in its address
    (ROCm/amdsmi, CHANGELOG, ROCm 6.4): a function that is not there, where function 0 of the slot is listed.
    """
    try:
        report = parse_amd_smi(ask(reader, QUERY, lambda: None) or "")
    except BadInput:
        return ()
    listed = [one.gpu.address for one in report.told]
    whole = [one for one in listed if not _is_part(reader, one, listed)]
    gpus = tuple(Gpu(address=address, vendor="amd") for address in whole)
    return (Listing(name="amd-smi", read="amd-smi static", gpus=gpus),) if gpus else ()


def _is_part(reader: Reader, address: str, listed: list[str]) -> bool:
    first = f"{address[:-1]}0"
    return address != first and first in listed and reader.exists(sysfs.function(address)) is False
