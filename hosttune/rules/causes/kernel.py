"""Lines of the kernel log in what people paste → the faults that they state: those that discovery knows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from hosttune.discovery.kernellog import FOUND_BY, interesting, parse_events
from hosttune.gpu import VENDORS
from hosttune.model.evidence import KernelEvent
from hosttune.model.listing import some
from hosttune.model.measured import Stated
from hosttune.model.values import grouped
from hosttune.rules.causes.search import letters_of
from hosttune.rules.checks.health import WIRE, aer
from hosttune.rules.checks.kernelevents import JUDGED, SXID_REMEDIES, kernel_log, machine_check, sxid, xid
from hosttune.rules.checks.xids import RANK, rulings

# dmesg: seconds, also since the line before (-d, -H), dates in any language (-T), and the minutes of -H.
_STAMP = (
    r"\[[ +]{0,10}\d{1,10}\.\d{3,6}(?: <[ \d]{0,10}\.\d{3,6}>)?\](?:\[[ \w]{2,12}\])?:? ?"
    r"|\[[^\]\[\n]{4,24} \d\d:\d\d:\d\d \d{4}\] ?|\[[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d\] "
)
_DRIVERS = (
    r"NVRM: |nvidia-nvswitch\d|nvme nvme\d|DMAR:|AMD-Vi: |EDAC [MD]|mce: |\{\d{1,4}\}\[Hardware|"
    r"[\w-]{2,32} [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?:: | [\w.]{2,16}: )"
)
KERNEL = rf"(?:kernel: ?(?:{_STAMP})?|{_STAMP}|(?={_DRIVERS}))"  # how a line of the kernel begins
_LINE = re.compile(KERNEL)
# Of lines with something else in front: dates of any language, quotes, labels.
WITHIN = (
    "kernel: ", r"kernel:\[", "NVRM: ", r"nvidia-nvswitch\d{1,2}: ", r"DMAR: ?\[", "AMD-Vi: ",
    *(f"{driver} [0-9a-f]{{4}}:[0-9a-f]{{2}}:"
      for driver in ("vfio-pci", "pcieport", "mlx5_core", *(vendor.driver for vendor in VENDORS if vendor.driver))),
)  # fmt: skip
_FROM = re.compile(rf"\bkernel: ?(?:{_STAMP})?|{_STAMP}|\b(?={_DRIVERS})")
_MOST_LINES, _MOST_WORDS = 20_000, 140
_MOST_BEFORE, _FORMS = 400, 8  # characters in front of a message, and where it can begin
_HIDDEN = re.compile(r"Xid \((?!(?:PCI:)?[0-9a-fA-F]{2,8}:)[^()\n]{0,40}\)")  # people take addresses out
_CAUSED = re.compile(r"(Xid \([^()\n]{1,40}\): )45\b[^\n]{0,200}? caused by previous Xid (\d{1,4})\b.*")
_NOWHERE = "(PCI:0000:00:00)"
_WORDS = tuple({letters for wanted in FOUND_BY for letters in letters_of(wanted) or ("[#",)})  # of each record
_FLAPPING = 3  # lost links: one is a cable that was pulled
_LATER = (109, 154)
_SEVERAL, _FOLLOWING, _OFF_THE_BUS = 3, (45, 154), 79  # kinds of XIDs; of two the worse says more
_Judged = tuple[KernelEvent, str, str, str, str]  # outcome, words, remedy, source
_GRAVE = ("fatal", "nonfatal")
_PASTED = 12  # lines
ASLEEP = "it cannot be woken"
_AWAKE = (
    "power-cycle the host, then keep it out of D3cold: d3cold_allowed 0 and power/control on in its folder of sysfs and"
    " in that of the bridge above it (vfio-pci: disable_idle_d3=1); update the board's firmware"
)


def of_kernel(text: str) -> Iterator[Stated]:
    """Yield what the kernel's lines state, the gravest first; equal faults of several devices together."""
    messages: dict[str, str] = {}
    seen: Counter[str] = Counter()
    lines, words = text.split("\n"), [word for word in _WORDS if word in text]
    for number, line in enumerate(lines):
        if not any(word in line for word in words):
            continue
        if len(messages) >= _MOST_LINES:
            break
        ends = [match.end() for match in islice(_FROM.finditer(line[:_MOST_BEFORE]), _FORMS)]
        message = next((line[end:] for end in ends if next(interesting([(None, line[end:])]), None)), None)
        if message is None:
            message = line[ends[0] :] if ends else ""
        if message.startswith("NVRM: Th"):  # its next lines say what is wrong
            more = (_LINE.sub("", other.strip(), count=1) for other in lines[number + 1 : number + 3])
            message = " ".join((message, *more))
        plain = _HIDDEN.sub(f"Xid {_NOWHERE}", message)
        if next(interesting([(None, plain)]), None):
            told_of = _CAUSED.sub(r"\1\2", plain)
            messages.setdefault(told_of, message)
            seen[told_of] += 1
    distinct = parse_events((None, text) for text in messages)
    told = [replace(event, count=max(event.count, seen[event.text])) for event in distinct]
    judged = _failing(told, [(event, *said) for event in told if (said := _fault_of(event))])
    groups = grouped(((outcome, says, remedy, source), event) for event, outcome, says, remedy, source in judged)
    if len(lines) > _PASTED:  # of a whole log, not of the lines that somebody asks about
        groups = {what: events for what, events in groups.items() if not _corrected_once(events, seen)}
    first = {event.address: event.code for event in reversed(told) if event.kind == "xid"}
    silent = "CmpltTO" in text and any(event.kind == "reset-failed" for event in told)  # it does not answer any more
    order = sorted(
        groups.items(),
        key=lambda group: (
            _follows(group[1][0], first) or (silent and group[1][0].kind == "aer"),
            -RANK.index(group[0][0]),
        ),
    )
    for (_, says, remedy, source), events in order:
        places = dict.fromkeys(
            event.address
            for event in events
            if event.address
            and event.address.removeprefix("0000:").removesuffix(".0") in event.text
            and _NOWHERE not in event.text
        )
        sentence = f"{some(list(places), 4)}: {says}" if places else says
        yield Stated(
            says=sentence,
            line=messages.get(events[0].text, events[0].text)[:_MOST_WORDS].strip(),
            remedy=remedy,
            source=source,
        )


def _follows(event: KernelEvent, first: Mapping[str | None, int | None]) -> bool:
    """Return whether an XID tells that work hangs after another one of its GPU, or what to do."""
    return event.kind == "xid" and event.code in _LATER and first[event.address] != event.code


def _corrected_once(events: Sequence[KernelEvent], seen: Mapping[str, int]) -> bool:
    """Return whether these are one corrected error: any link has one now and then."""
    once = sum(seen.get(event.text, 1) for event in events) == 1
    return once and events[0].kind in ("aer", "edac", "mce") and events[0].severity not in _GRAVE


def _failing(told: Iterable[KernelEvent], judged: Sequence[_Judged]) -> list[_Judged]:
    """Return the judged events; those of a GPU that reports XIDs of several kinds and is lost are one."""
    kinds = {
        address: list(dict.fromkeys(event.code for event in events))
        for address, events in grouped((event.address, event) for event in told if event.kind == "xid").items()
    }
    dying = {
        row[0].address: row
        for row in judged
        if row[0].kind == "lost"
        and len({*kinds.get(row[0].address, ())} - {*_FOLLOWING}) >= _SEVERAL
        and _OFF_THE_BUS not in kinds[row[0].address]
    }
    rows = []
    for address, (event, outcome, _, _, source) in dying.items():
        codes = ", ".join(map(str, kinds[address]))
        rows.append((event, outcome, f"the GPU itself is failing: XID {codes}, and it was lost or did not start",
                     "power-cycle the host and try it in another slot with other power cables; if the XIDs come back,"
                     " replace it", source))  # fmt: skip
    why = {row[0].address for row in judged if row[0].kind == "xid" and row[1] != "warn"}  # it was lost after that
    left = (row for row in judged if row[0].kind != "lost" or row[0].address not in why)
    return [*rows, *(row for row in left if row[0].address not in dying or row[0].kind not in ("xid", "lost"))]


def _fault_of(event: KernelEvent) -> tuple[str, str, str, str] | None:
    """Return (outcome, words, remedy, source) of an event; None if it is no fault."""
    if event.kind in ("xid", "lost"):
        ((_, ruling),) = rulings((event,))
        if ruling.outcome == "inform":
            return None
        words = f"the driver reports {ruling.name}" if event.code is not None else "the GPU is lost, or did not start"
        return ruling.outcome, words, ruling.hint, xid.source
    if event.kind == "sxid":
        severity = event.severity or ""
        outcome = "fail" if severity == "fatal" else "warn"
        return (
            outcome,
            f"a switch reports SXid {event.code} ({severity})",
            SXID_REMEDIES[severity == "fatal"],
            sxid.source,
        )
    if event.kind in ("aer", "dpc"):
        grave = event.severity in _GRAVE
        says = (
            "a port cut off its PCIe link" if event.kind == "dpc" else f"PCIe errors, {event.severity or 'corrected'}"
        )
        return "fail" if grave else "warn", says, WIRE, aer.source
    if event.kind in ("mce", "edac"):
        grave = event.severity in _GRAVE
        says = "a memory or CPU error that was not corrected" if grave else "memory or CPU errors (machine check)"
        return "fail" if grave else "warn", says, machine_check.remedy, machine_check.source
    if event.kind == "link-down" and event.count >= _FLAPPING:
        return "warn", "the link goes down again and again", "reseat or replace cable and module", kernel_log.source
    if event.kind == "reset-failed" and re.search(r"after resume|power state", event.text):
        return "fail", ASLEEP, _AWAKE, "Linux drivers/pci/pci.c, pci_power_up"
    if (line := JUDGED.get(event.kind)) is not None:
        return line.outcome, line.says, line.remedy, f"Linux {line.source}"
    return None
