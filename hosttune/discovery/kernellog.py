"""The kernel log → events: what `linux.kernellines` and the makers' drivers have of faults. Its texts are untrusted.

`read_kernel_log` asks dmesg, and the journal for records that the ring buffer has lost. A capture (`kernel-log`) keeps
only the lines that are events, without process names. Each record is matched from its start, so that a process name or
a line break in a message cannot pass for a record of its own. A record that cannot be read is counted, and so is one
that begins like an event but does not match: it may be any event.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from hosttune.errors import BadInput, CommandFailed
from hosttune.gpu import KERNEL_LINES, VENDORS
from hosttune.machine.reader import Reader
from hosttune.model.evidence import KernelEvent
from hosttune.model.jsontext import recorded_json
from hosttune.model.values import Value

QUERY = "kernel-log"
_DMESG_JSON = ("dmesg", "--kernel", "--json")  # since util-linux 2.38
_DMESG = ("dmesg", "--kernel")
_FIRST = "Linux version "  # the first line of every boot
_MAKERS = tuple(vendor.traces.log for vendor in VENDORS if vendor.traces.log is not None)
# The pattern for the search in the journal: it matches every possible event.
FOUND_BY = [log.wanted for log in _MAKERS if log.wanted] + [line.wanted for line in KERNEL_LINES]
_WANTED = "|".join(dict.fromkeys((*FOUND_BY, "^Missed [0-9]+ kernel messages", _FIRST)))
# The kernel's records, and those of journald itself: it reports how many records it missed, by sequence numbers.
_JOURNAL = (
    "journalctl", "--boot", "_TRANSPORT=kernel", "+", "_TRANSPORT=driver", "--no-pager", "--quiet", "--output=json",
    "--output-fields=MESSAGE,_SOURCE_MONOTONIC_TIMESTAMP", f"--grep={_WANTED}", "--case-sensitive=yes",
)  # fmt: skip
_MAX_LINES, _MAX_TEXT, _MAX_UNREAD = 20_000, 240, 1_000_000_000
_BEGIN = 1.0  # a log is complete if its oldest line is no later than this, in seconds since boot
_PROCESS = re.compile(r", pid=.{0,24}?, name=.*?(?=, |$)")
# What another version may call otherwise, what scrubbing changes, and what one line does not have.
_UNSUMMED = ("kind", "text", "least_seconds_apart")
_FORMER = {"gpu-unsupported": "lost"}
_SAME_START = 1.0  # in seconds
_KEYS = frozenset(("since", "source", "unread", "links", "lines", "sum"))

Line = tuple[float | None, str]  # seconds since boot, and the message


class Records(NamedTuple):
    """The lines of a log, and how many of its records could not be read."""

    lines: list[Line]
    unread: int = 0


class KernelLog(Value, frozen=True, kw_only=True):
    """Events in the order in which each was first seen.

    `since`: the oldest known line, in seconds since boot. `source`: where the log was read. `unread`: how many records
    could not be read. `links`: lost links of network interfaces are events of it; captures by older versions lack them.
    """

    events: tuple[KernelEvent, ...]
    since: float | None = None
    source: str | None = None
    unread: int = 0
    links: bool = False


def read_kernel_log(reader: Reader) -> KernelLog | None:
    """Return the events of failing hardware in the kernel log.

    None if it cannot be read (with a problem, on a live host).
    """
    text = reader.query(QUERY, lambda: _ask(reader))
    if text is None:
        return None
    kept = _kept(text)
    if kept is None:
        reader.problem("kernel log not understood", QUERY, "its record is not output of this tool")
        return None
    since, source, links, records = kept
    events = parse_events(records.lines)
    return KernelLog(events=events, since=since, source=source, unread=records.unread, links=links)


# --- reading the log ---------------------------------------------------------------------------------------------


def _ask(reader: Reader) -> str | None:
    """Return the events as JSON: {"since", "source", "unread", "lines": [[seconds, text], …], "sum"}; None if refused.

    If the ring buffer does not begin with the boot, the journal is asked for older records. If it has the first line of
    the boot, the two together are the complete log. If the journal has lost that line, its records are kept as well.
    """
    records = _ask_dmesg(reader)
    if records is None:
        return None
    since = next((seconds for seconds, _ in records.lines if seconds is not None), None)
    source = "dmesg"
    if since is None or since > _BEGIN:
        older = parse_journal(_ask_journal(reader))
        before = [line for line in older.lines if line[0] is not None and (since is None or line[0] < since)]
        records = Records(before + records.lines, records.unread + older.unread)
        if any(text.startswith(_FIRST) for _, text in before):
            since, source = 0.0, "journalctl and dmesg"
    kept = list(interesting(records.lines))
    unread = records.unread + sum(is_broken(text) for _, text in records.lines)
    if len(kept) > _MAX_LINES:
        kept = kept[-_MAX_LINES:]
        since = kept[0][0]
    record = {"since": since, "source": source, "unread": unread, "links": True, "lines": kept}
    return json.dumps({**record, "sum": _sum(record)}, indent=0) + "\n"


def _sum(record: Mapping[str, Any], *kinds: Mapping[str, str]) -> int:
    """Return a checksum that shows whether a record of the log is damaged.

    A changed figure would mean another event, or none. The checksum covers the events of the lines and not their text,
    because a capture replaces text that identifies the machine. `kinds`: that of earlier versions, which covers the
    kinds, with what they called some of them.
    """
    facts = [
        event
        and [former.get(event.kind, event.kind) for former in kinds]
        + [getattr(event, name) for name in event.__struct_fields__ if name not in _UNSUMMED]
        for event in (_event(*line) for line in record["lines"])
    ]
    links = [True] if record["links"] else []
    return zlib.crc32(json.dumps([record["since"], record["unread"], facts, *links]).encode())


def _ask_dmesg(reader: Reader) -> Records | None:
    try:
        return parse_dmesg_json(reader.system.run(_DMESG_JSON))
    except (CommandFailed, BadInput):  # an older dmesg, or one that writes invalid JSON for unusual bytes
        try:
            return parse_dmesg(reader.system.run(_DMESG))
        except CommandFailed as error:
            reader.problem("kernel log unreadable", "dmesg", error.output.strip() or error.reason)
            return None


def _ask_journal(reader: Reader) -> str:
    try:
        return reader.system.run(_JOURNAL, timeout=30.0)
    except CommandFailed:
        return ""  # no journal, or none of this boot: the log stays incomplete, and `since` shows that


def parse_dmesg_json(text: str) -> Records:
    """Parse `dmesg --kernel --json`: seconds since boot and message of each record. Raises BadInput for other text."""
    try:
        document = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON: {error}", where="dmesg --json", hint="read the kernel log by hand") from error
    records = document.get("dmesg") if isinstance(document, dict) else None
    if not isinstance(records, list):
        raise BadInput("no list of records", where="dmesg --json", hint="read the kernel log by hand")
    lines: list[Line] = [
        (_seconds(record.get("time")), record["msg"])
        for record in records
        if isinstance(record, dict) and isinstance(record.get("msg"), str)
    ]
    return Records(lines, len(records) - len(lines))


def parse_dmesg(text: str) -> Records:
    """Parse `dmesg --kernel`: "[    1.234567] message"; a line that begins with a blank continues the record above."""
    lines: list[Line] = []
    unread = 0
    for line in text.splitlines():
        if match := re.match(r"\[ *([0-9]{1,12}\.[0-9]{1,6})\] ?", line):
            lines.append((float(match[1]), line[match.end() :]))
        elif line[:1].isspace() and lines:
            lines[-1] = lines[-1][0], f"{lines[-1][1]}\n{line.strip()}"[:1024]
        elif line.strip():
            unread += 1
    return Records(lines, unread)


def parse_journal(text: str) -> Records:
    """Parse `journalctl --output=json`: one record per line, microseconds since boot.

    Binary messages are lists of bytes. journald's own report of missed records (systemd, journald-kmsg.c) has no kernel
    time stamp: it is counted as unread.
    """
    lines: list[Line] = []
    records = [line for line in text.splitlines() if line.strip()]
    for line in records:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(record, dict):
            continue
        message = record.get("MESSAGE")
        if isinstance(message, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in message):
            message = bytes(message).decode("utf-8", "replace")
        stamp = str(record.get("_SOURCE_MONOTONIC_TIMESTAMP", ""))
        if isinstance(message, str) and stamp.isdecimal() and len(stamp) < 18:
            lines.append((int(stamp) / 1e6, message))
    return Records(lines, len(records) - len(lines))


def interesting(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines that are events, without process names, cut to a limited length."""
    for seconds, text in lines:
        for shape in _SHAPES:
            if match := shape.pattern.match(text[:_MAX_TEXT]):
                yield seconds, _PROCESS.sub("", text[:1024])[:_MAX_TEXT] if shape.whole else match[0]
                break


# --- the recorded log --------------------------------------------------------------------------------------------


def _kept(text: str) -> tuple[float | None, str | None, bool, Records] | None:
    """Return what `_ask` wrote, checked, because a capture is untrusted.

    Only events are kept. `_ask` records only events, so any other line is counted as lost.
    """
    try:
        document = recorded_json(text, where=QUERY)
    except BadInput:
        return None
    if not isinstance(document, dict) or not isinstance(document.get("lines"), list):
        return None
    unread = document.get("unread", 0)  # captures of earlier versions have neither the count nor the checksum
    if not _KEYS.issuperset(document) or not isinstance(unread, int) or isinstance(unread, bool) or unread < 0:
        return None
    given = document["lines"][-_MAX_LINES:]
    lines: list[Line] = [
        (_seconds(line[0]), line[1][:_MAX_TEXT])
        for line in given
        if isinstance(line, list) and len(line) == 2 and isinstance(line[1], str)
    ]
    since, source, links = _seconds(document.get("since")), document.get("source"), document.get("links") is True
    record = {"since": since, "unread": unread, "lines": lines, "links": links}
    sums = (_sum(record, *kinds) for kinds in ((), ({},), (_FORMER,)))
    if "sum" in document and document["sum"] not in sums:
        return None
    events = [line for line in lines if _event(*line) is not None]
    lost = min(unread + len(given) - len(events), _MAX_UNREAD)
    return since, source if isinstance(source, str) else None, links, Records(events, lost)


def strip_log(text: str, clean: Callable[[str], str]) -> str | None:
    """Return a record of the log that has only the lines that are events, with each text passed through `clean`.

    None if it is not a record that hosttune wrote: such a file may contain anything.
    """
    kept = _kept(text)
    if kept is None:
        return None
    since, source, links, records = kept
    lines = [(seconds, clean(words)) for seconds, words in interesting(records.lines)]
    head = {"since": since, "source": source and clean(source), "unread": records.unread, "links": links}
    record: dict[str, Any] = {**head, "lines": lines}
    return json.dumps({**record, "sum": _sum(record)}, indent=0) + "\n"


def _seconds(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 <= value < 1e12 else None


# --- events ------------------------------------------------------------------------------------------------------


class _Shape(NamedTuple):
    """One form of record, matched from its start. Groups, where the form has them: address, code, severity, count.

    `whole`: the record is kept to its end, else to the last word that the pattern matches.
    """

    kind: str
    pattern: re.Pattern[str]
    severity: str | None = None
    whole: bool = True


_SHAPES = (
    *(_Shape(kind, re.compile(pattern)) for log in _MAKERS for kind, pattern in log.shapes),
    *(_Shape(line.kind, re.compile(line.pattern), line.severity, not line.outcome) for line in KERNEL_LINES),
)
# How records of events begin.
_BEGINNINGS = re.compile(
    "|".join([log.begins for log in _MAKERS if log.begins] + [line.begins for line in KERNEL_LINES if line.begins])
)
_NVLINK5_CODES = frozenset(str(code) for code in range(144, 151))
_NVLINK5 = re.compile(
    r", +(?P<subcode>[A-Za-z][A-Za-z0-9_/]{0,30}(?: [A-Za-z]{1,12})?) +(?P<severity>Fatal|Non-?fatal)\b"
    r"(?:[^(]{0,80}\((?P<registers>0x[0-9a-fA-F]{1,8}(?: 0x[0-9a-fA-F]{1,8}){0,9}))?"
)
_RECOVERY = re.compile(
    r".{0,80}\bGPU recovery action changed from 0x[0-9a-fA-F]{1,8} \([^()]{1,40}\)"
    r" to 0x[0-9a-fA-F]{1,8} \((?P<recovery>[^()]{1,40})\)"
)
_SEVERITIES: Mapping[str, str] = {
    "corrected": "corrected",
    "correctable": "corrected",
    "non-fatal": "nonfatal",
    "recoverable": "nonfatal",
    "nonfatal": "nonfatal",
    "fatal": "fatal",
    "ce": "corrected",
    "ue": "nonfatal",
}


def parse_events(lines: Iterable[Line]) -> tuple[KernelEvent, ...]:
    """Return the events in records of the kernel log; those that say the same about the same place are one.

    That a GPU was not started is no event of its own where its driver has just said that it does not support it.
    """
    events: dict[tuple[object, ...], KernelEvent] = {}
    unsupported: dict[str | None, float] = {}
    for seconds, text in lines:
        event = _event(seconds, text)
        if event is None:
            continue
        if event.kind == "gpu-unsupported" and seconds is not None:
            unsupported[event.address] = seconds
        since = unsupported.get(event.address, -math.inf)
        if event.kind == "lost" and seconds is not None and seconds - since < _SAME_START:
            continue
        key = (event.kind, event.address, event.code, event.severity, event.subcode, event.registers, event.recovery)
        first = events.get(key)
        events[key] = event if first is None else _again(first, event)
    return tuple(events.values())


def _again(first: KernelEvent, event: KernelEvent) -> KernelEvent:
    last, now, apart = first.last_seconds, event.seconds, first.least_seconds_apart
    if now is not None and last is not None:
        apart = min(abs(now - last), apart if apart is not None else math.inf)
    last, count = last if now is None else now, first.count + event.count
    return msgspec.structs.replace(first, count=count, last_seconds=last, least_seconds_apart=apart)


def is_broken(text: str) -> bool:
    """Return whether a record begins like an event but does not match one. Then its content and its device are lost."""
    return _BEGINNINGS.match(text) is not None and _event(None, text) is None


def _event(seconds: float | None, text: str) -> KernelEvent | None:
    for shape in _SHAPES:
        if match := shape.pattern.match(text):
            groups = match.groupdict()
            code = groups.get("code")
            found = (_NVLINK5 if code in _NVLINK5_CODES else _RECOVERY).match(groups.get("rest") or "")
            details = found.groupdict() if found else {}
            return KernelEvent(
                kind=shape.kind,
                address=_address(groups.get("address")),
                code=int(code) if code else None,
                severity=shape.severity or _severity(groups.get("severity") or details.get("severity")),
                seconds=seconds,
                last_seconds=seconds,
                count=int(groups.get("count") or 1) or 1,
                text="".join(char if char.isprintable() else "\ufffd" for char in text),
                subcode=details.get("subcode"),
                registers=tuple(int(word, 16) for word in (details.get("registers") or "").split()[:2]),
                recovery=details.get("recovery"),
            )
    return None


def _severity(word: str | None) -> str | None:
    """Return corrected, nonfatal or fatal for a word such as "Uncorrected (Non-Fatal)", "Nonfatal" or "UE"."""
    last = (word or "").casefold().rpartition("(")[2].rstrip(")")
    return _SEVERITIES.get(last)


def _address(text: str | None) -> str | None:
    """Return the full PCI address of one that lacks the domain or the function, as in XID records."""
    if text is None:
        return None
    slot, _, function = text.lower().replace("0x", "").partition(".")
    *domain, bus, device = slot.split(":")
    number = int(domain[0], 16) if domain else 0
    return f"{number:04x}:{bus}:{device}.{function or '0'}"
