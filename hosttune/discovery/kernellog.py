"""The kernel log → events of failing hardware: XIDs, SXids, AER, DPC, machine checks. Texts in it are untrusted.

`read_kernel_log` asks dmesg, and the journal for what the ring buffer has lost; what a capture keeps of it
(`kernel-log`) is only the lines that are one, without names of processes. Each record is matched from its
start: what a process was called, or a line break in a message, cannot pass for a record of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from hosttune.errors import BadInput, CommandFailed
from hosttune.model.evidence import KernelEvent
from hosttune.model.values import Value, plain_json
from hosttune.reader import Reader

QUERY = "kernel-log"
_DMESG_JSON = ("dmesg", "--kernel", "--json")  # util-linux 2.38 on
_DMESG = ("dmesg", "--kernel")
_FIRST = "Linux version "  # the first line of every boot
# What the journal is searched for: all that can be an event.
_WANTED = r"NVRM: |nvidia-nvswitch\d+: SXid|AER: |PCIe Bus Error|DPC: containment|\[Hardware Error\]|mce: |" + _FIRST
_JOURNAL = (
    "journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=json",
    "--output-fields=MESSAGE,_SOURCE_MONOTONIC_TIMESTAMP", f"--grep={_WANTED}", "--case-sensitive=yes",
)  # fmt: skip
_MAX_LINES, _MAX_TEXT = 20_000, 240
_BEGIN = 1.0  # a log whose oldest line is no older than this, in seconds since boot, is whole
_PROCESS = re.compile(r", pid=.{0,24}?, name=.*?(?=, |$)")

Line = tuple[float | None, str]  # seconds since boot, and the message


class KernelLog(Value, frozen=True, kw_only=True):
    """Events in order of first sight; `since`: seconds since boot of the oldest line known; `source` told it."""

    events: tuple[KernelEvent, ...]
    since: float | None = None
    source: str | None = None


def read_kernel_log(reader: Reader) -> KernelLog | None:
    """What the kernel log says of failing hardware; None, with a problem when live, where it cannot be read."""
    text = reader.query(QUERY, lambda: _ask(reader))
    if text is None:
        return None
    kept = _kept(text)
    if kept is None:
        reader.problem("kernel log not understood", QUERY, "its record is no answer of this tool")
        return None
    since, source, lines = kept
    return KernelLog(events=parse_events(lines), since=since, source=source)


# --- asking ------------------------------------------------------------------------------------------------------


def _ask(reader: Reader) -> str | None:
    """The lines that matter as {"since", "source", "lines": [[seconds, text], …]}; None when the log is refused."""
    lines = _ask_dmesg(reader)
    if lines is None:
        return None
    since = next((seconds for seconds, _ in lines if seconds is not None), None)
    source = "dmesg"
    kept = list(interesting(lines))
    if since is not None and since > _BEGIN:
        older = list(parse_journal(_ask_journal(reader)))
        if any(text.startswith(_FIRST) for _, text in older):
            kept = [line for line in older if line[0] is not None and line[0] < since] + kept
            since, source = 0.0, "journalctl and dmesg"
    if len(kept) > _MAX_LINES:
        kept = kept[-_MAX_LINES:]
        since = kept[0][0]
    return json.dumps({"since": since, "source": source, "lines": kept}, indent=0) + "\n"


def _ask_dmesg(reader: Reader) -> list[Line] | None:
    try:
        return parse_dmesg_json(reader.system.run(_DMESG_JSON))
    except (CommandFailed, BadInput):  # an older dmesg, or one that makes broken JSON of odd bytes
        return _ask_plain_dmesg(reader)


def _ask_plain_dmesg(reader: Reader) -> list[Line] | None:
    """The form that every dmesg has: what it cannot say is unknown, and a problem."""
    try:
        return list(parse_dmesg(reader.system.run(_DMESG)))
    except CommandFailed as error:
        reader.problem("kernel log unreadable", "dmesg", error.output.strip() or error.reason)
        return None


def _ask_journal(reader: Reader) -> str:
    try:
        return reader.system.run(_JOURNAL, timeout=30.0)
    except CommandFailed:
        return ""  # no journal, or none that holds this boot: the log stays cut where it is cut, which is told


def parse_dmesg_json(text: str) -> list[Line]:
    """`dmesg --kernel --json`: seconds since boot and message of each record. Raises BadInput for another text."""
    try:
        document = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON: {error}", where="dmesg --json", hint="read the kernel log by hand") from error
    records = document.get("dmesg") if isinstance(document, dict) else None
    if not isinstance(records, list):
        raise BadInput("no list of records", where="dmesg --json", hint="read the kernel log by hand")
    return [
        (_seconds(record.get("time")), record["msg"])
        for record in records
        if isinstance(record, dict) and isinstance(record.get("msg"), str)
    ]


def parse_dmesg(text: str) -> Iterator[Line]:
    """`dmesg --kernel`: "[    1.234567] message"; lines of another shape continue a record and are passed over."""
    for line in text.splitlines():
        if found := re.match(r"\[ *(\d{1,12}\.\d{1,6})\] ", line):
            yield float(found[1]), line[found.end() :]


def parse_journal(text: str) -> Iterator[Line]:
    """`journalctl --output=json`: one record a line, microseconds since boot; binary messages are lists of bytes."""
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a record that is no JSON cannot be one that the journal wrote
        if not isinstance(record, dict):
            continue
        message = record.get("MESSAGE")
        if isinstance(message, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in message):
            message = bytes(message).decode("utf-8", "replace")
        stamp = str(record.get("_SOURCE_MONOTONIC_TIMESTAMP", ""))
        if isinstance(message, str) and stamp.isdecimal() and len(stamp) < 18:
            yield int(stamp) / 1e6, message


def interesting(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines that are an event, without the names of processes in them, cut to a bounded length."""
    for seconds, text in lines:
        if _event(seconds, text[:_MAX_TEXT]) is not None:
            yield seconds, _PROCESS.sub("", text[:1024])[:_MAX_TEXT]


# --- the record --------------------------------------------------------------------------------------------------


def _kept(text: str) -> tuple[float | None, str | None, list[Line]] | None:
    """What `_ask` wrote, checked: a capture is untrusted."""
    try:
        document = plain_json(text, where=QUERY)
    except BadInput:
        return None
    if not isinstance(document, dict) or not isinstance(document.get("lines"), list):
        return None
    lines = [
        (_seconds(line[0]), line[1][:_MAX_TEXT])
        for line in document["lines"][-_MAX_LINES:]
        if isinstance(line, list) and len(line) == 2 and isinstance(line[1], str)
    ]
    source = document.get("source")
    return _seconds(document.get("since")), source if isinstance(source, str) else None, lines


def strip_log(text: str, clean: Callable[[str], str]) -> str | None:
    """A record of the log with the lines that are events and no others, each text as `clean` gives it.

    None for what is no record of ours: somebody may have put anything there.
    """
    if _kept(text) is None:
        return None
    document = json.loads(text)
    lines = [
        line for line in document["lines"] if isinstance(line, list) and len(line) == 2 and isinstance(line[1], str)
    ]
    events = interesting((_seconds(line[0]), line[1]) for line in lines)
    kept = {name: clean(part) if isinstance(part, str) else part for name, part in document.items()}
    kept = {name: part for name, part in kept.items() if part is None or isinstance(part, str | int | float)}
    return json.dumps({**kept, "lines": [(seconds, clean(words)) for seconds, words in events]}, indent=0) + "\n"


def _seconds(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
    return float(value) if usable else None


# --- events ------------------------------------------------------------------------------------------------------

_BDF = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_SEVERITY = r"(?P<severity>Correct(?:ed|able)|Uncorrect(?:ed|able) \((?:Non-Fatal|Fatal)\))"


class _Shape(NamedTuple):
    """One form of record, matched from its start. Groups: address, code, severity, as far as it has them."""

    kind: str
    pattern: re.Pattern[str]
    severity: str | None = None


# Sources: NVIDIA, "XID Errors" (form of the record) and Fabric Manager user guide, appendix D (SXid); Linux
# drivers/pci/pcie/{aer,dpc}.c, whose words changed in 6.10 ("Corrected error received" → "Correctable error message
# received"); open-gpu-kernel-modules (RmInitAdapter, "fallen off the bus").
_SHAPES = (
    _Shape("xid", re.compile(rf"NVRM: Xid \((?:PCI:)?(?P<address>{_BDF})(?: GPU-I:\d+)?\): (?P<code>\d{{1,4}})\b")),
    _Shape(
        "sxid",
        re.compile(
            rf"nvidia-nvswitch\d+: SXid \((?:PCI:)?(?P<address>{_BDF})\): (?P<code>\d{{1,6}}), "
            r"(?P<severity>Fatal|Non-fatal)\b"
        ),
    ),
    _Shape("lost", re.compile(rf"NVRM: GPU (?P<address>{_BDF}): (?:GPU has fallen off the bus|RmInitAdapter failed)")),
    _Shape("lost", re.compile(rf"NVRM: The NVIDIA GPU (?P<address>{_BDF})")),
    _Shape(
        "aer", re.compile(rf"\S+ (?P<address>{_BDF}): (?:AER: )?PCIe Bus Error: severity={_SEVERITY}", re.IGNORECASE)
    ),
    _Shape("dpc", re.compile(rf"pcieport (?P<address>{_BDF}): (?:pciehp: )?DPC: containment event"), "fatal"),
    _Shape("mce", re.compile(r"mce: \[Hardware Error\]: (?:CPU|Machine check)"), "nonfatal"),
    _Shape("mce", re.compile(r"\{\d+\}\[Hardware Error\]: *event severity: (?P<severity>fatal|recoverable|corrected)")),
)
_SEVERITIES: Mapping[str, str] = {
    "corrected": "corrected",
    "correctable": "corrected",
    "non-fatal": "nonfatal",
    "recoverable": "nonfatal",
    "fatal": "fatal",
}


def parse_events(lines: Iterable[Line]) -> tuple[KernelEvent, ...]:
    """The events among records of the kernel log; those of one kind, place, code and severity counted as one."""
    found: dict[tuple[object, ...], KernelEvent] = {}
    for seconds, text in lines:
        event = _event(seconds, text)
        if event is None:
            continue
        key = (event.kind, event.address, event.code, event.severity)
        first = found.get(key)
        found[key] = event if first is None else _again(first, event)
    return tuple(found.values())


def _again(first: KernelEvent, event: KernelEvent) -> KernelEvent:
    import msgspec

    last = event.seconds if event.seconds is not None else first.last_seconds
    return msgspec.structs.replace(first, count=first.count + 1, last_seconds=last)


def _event(seconds: float | None, text: str) -> KernelEvent | None:
    for shape in _SHAPES:
        if match := shape.pattern.match(text):
            groups = match.groupdict()
            code = groups.get("code")
            return KernelEvent(
                kind=shape.kind,
                address=_address(groups.get("address")),
                code=int(code) if code else None,
                severity=shape.severity or _severity(groups.get("severity")),
                seconds=seconds,
                last_seconds=seconds,
                text="".join(char if char.isprintable() else "\ufffd" for char in text),
            )
    return None


def _severity(word: str | None) -> str | None:
    """corrected, nonfatal or fatal, of "Uncorrected (Non-Fatal)" and the like."""
    last = (word or "").casefold().rpartition("(")[2].rstrip(")")
    return _SEVERITIES.get(last)


def _address(text: str | None) -> str | None:
    """A whole PCI address of one without domain or function, as XIDs have it."""
    if text is None:
        return None
    slot, _, function = text.lower().partition(".")
    *domain, bus, device = slot.split(":")
    number = int(domain[0], 16) if domain else 0
    return f"{number:04x}:{bus}:{device}.{function or '0'}"
