"""What `amd-smi static --json` says of the GPUs that amdgpu holds, and the driver's files do not.

Recorded in tests/cases/gpu/amd-smi: ROCm 6.3.1 prints a list, 7.2.1 an object with `gpu_data`, and lines of text before
it if it may not open a device. Any other form is not understood. "N/A" is a fact that the tool does not have. Not read:
`metric`, `bad-pages` and `xgmi`, because no recorded answer of an MI300X was found.

The tool adds the serial number and whether more memory pages were retired than the board may lose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import structs

from hosttune.errors import BadInput, CommandFailed
from hosttune.gpu.vendor import NO_ADDRESS, Listing, ask, fill
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
_WORD = re.compile(r"[!-~](?:[ -~]{0,298}[!-~])?")
Entry = Mapping[str, Any]


class AmdSmiReport(Value, frozen=True, kw_only=True):
    """The whole answer. `unread`: addresses of which it is not known whether more pages were retired than they may."""

    told: tuple[Gpu, ...] = ()
    unread: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


# --- the output --------------------------------------------------------------------------------------------------


def parse_amd_smi(text: str) -> AmdSmiReport:
    """Parse `amd-smi static --json`. Raises BadInput if it is no list of GPUs in one of the known forms."""
    # a warning may stand before the document
    lines = text.splitlines(keepends=True)
    start = next((at for at, line in enumerate(lines) if line[:1] in ("{", "[")), 0)
    before = (line.strip() for line in lines[:start])
    warning, body = next(filter(None, before), ""), "".join(lines[start:])
    document = recorded_json(body, where=QUERY)
    entries = document.get("gpu_data") if isinstance(document, dict) and len(document) == 1 else document
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise BadInput("it has no list of GPUs", where=QUERY, hint="record it again")
    problems = [Problem(what="amd-smi printed a warning", where=QUERY, why=f"{warning[:80]!r}")] if warning else []
    told: dict[str, Gpu] = {}
    unread: set[str] = set()
    for entry in entries:
        try:
            address = parse_address(_section(entry, "bus")["bdf"], where=QUERY)
        except (BadInput, KeyError, TypeError, AttributeError):
            why = f"GPU {str(entry.get('gpu'))[:20]} of amd-smi has none"
            problems.append(Problem(what=NO_ADDRESS, where=QUERY, why=why))
            continue
        facts: dict[str, Any] = {}
        for read in (_retired, _board):
            try:
                facts |= read(entry)
            except BadInput as error:
                problems.append(Problem(what=NOT_UNDERSTOOD, where=address, why=error.what))
                unread.update([address] if read is _retired else [])
        # With a warning it may not open the devices: what it does not have of them may be there.
        if warning and facts.get("unrepairable_memory") is None:
            unread.add(address)
        told[address] = Gpu(address=address, vendor="amd", **facts)
    return AmdSmiReport(
        told=tuple(told.values()), unread=tuple(sorted(unread)), problems=tuple(dict.fromkeys(problems))
    )


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


def _board(entry: Entry) -> Entry:
    serial = _word(_section(entry, "board"), "product_serial")
    return {"serial": None if serial == "0" else serial}


# --- beside the driver's files -----------------------------------------------------------------------------------


def with_static(reader: Reader, devices: Iterable[PciDevice], facts: Mapping[str, Gpu]) -> dict[str, Gpu]:
    """Return the facts of sysfs, by address, with those that only the tool has; as they are without the tool.

    The tool opens every device, so on a live host it runs only if none is asleep. If its answer was lost or is not
    understood, uncorrected errors are unknown unless the driver has counted some: they may be in pages that only the
    tool knows were retired.
    """
    mine = {device.address: device for device in devices if device.driver == "amdgpu"}
    asleep = mine.keys() - facts.keys()
    text = ask(reader, QUERY, lambda: None if asleep else _run(reader))
    if text is None and not any((problem.what, problem.where) == ("unreadable", QUERY) for problem in reader.problems):
        return dict(facts)
    report = AmdSmiReport()
    try:
        report = report if text is None else parse_amd_smi(text)
    except BadInput as error:
        reader.problem(NOT_UNDERSTOOD, QUERY, error.what)
    for problem in report.problems:
        reader.problem(problem.what, problem.where, problem.why)
    told = {gpu.address: gpu for gpu in report.told}
    by_address = {}
    for address, gpu in facts.items():
        if report.told and address not in told and mine[address].physfn is None:
            why = "amdgpu holds it, and amd-smi lists other GPUs and not this one"
            reader.problem("GPU facts unknown", address, why)
        unread = address not in told or address in report.unread
        known = structs.replace(gpu, ecc_uncorrected=gpu.ecc_uncorrected or None) if unread else gpu
        by_address[address] = fill(known, told[address]) if address in told else known
    return by_address


def _run(reader: Reader) -> str | None:
    try:
        return reader.system.run(COMMAND, timeout=SECONDS)
    except CommandFailed as error:
        if error.reason != "not installed":  # many hosts have the kernel's driver alone
            reader.problem("amd-smi did not answer", QUERY, f"{error.reason}: only the driver's files were read")
        return None


def listings(reader: Reader) -> tuple[Listing, ...]:
    """Return the GPUs that the tool listed (in a capture).

    Each part of a divided GPU is a device to the tool, with the part's number in place of the function's in its address
    (ROCm/amdsmi, CHANGELOG, ROCm 6.4): a function that is not there, where function 0 of the slot is listed.
    """
    try:
        report = parse_amd_smi(ask(reader, QUERY, lambda: None) or "")
    except BadInput:
        return ()
    listed = [gpu.address for gpu in report.told]
    whole = [path for path in listed if not _is_part(reader, path, listed)]
    gpus = tuple(Gpu(address=address, vendor="amd") for address in whole)
    return (Listing(name="amd-smi", read="amd-smi static", gpus=gpus),) if gpus else ()


def _is_part(reader: Reader, address: str, listed: list[str]) -> bool:
    first = f"{address[:-1]}0"
    return address != first and first in listed and reader.exists(sysfs.function(address)) is False
