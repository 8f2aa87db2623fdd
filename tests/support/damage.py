"""Captured hosts with evidence taken away, emptied, garbled or contradicted, in memory: no unpacking, no process.

A host is read once (`Files`); one damage is a small overlay over it (`with_damage`). `places` names every damage of a
host: each file, link and folder that discovery reads, each line of the text that tools print, each element of
`nvidia-smi -q -x`, each value of `nvml.json` and of a drive's log. Of a sick host, each of these is told twice as well,
the second time as the healthy host has it. Places that differ in an address or a number alone are of one stratum.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from hosttune.discovery.evidence import gather
from hosttune.discovery.recording import Recording
from hosttune.machine import manifest
from hosttune.machine.archive import open_root
from hosttune.machine.capture import Archive
from hosttune.machine.system import COMMANDS, COMPLETE, UNREADABLE
from hosttune.model.validation import CheckResult, verdict_of
from hosttune.rules.checks import judge

OWN = (COMPLETE, UNREADABLE)  # what a capture says of itself, which is no evidence of the machine


@dataclass(frozen=True)
class Files:
    """A captured host in memory."""

    files: Mapping[str, bytes]
    links: Mapping[str, str]
    dirs: frozenset[str] = frozenset()
    origin: str = "a captured host"

    def system(self) -> Archive:
        """The host as discovery reads it."""
        return Archive(self.files, self.links, self.origin, self.dirs)

    def put(self, texts: Mapping[str, str | bytes]) -> Files:
        """The same with these files."""
        new = {path: text.encode() if isinstance(text, str) else text for path, text in texts.items()}
        return replace(self, files={**self.files, **new})


@cache
def load(path: Path) -> Files:
    """A tar of the tests, or the example."""
    found = open_root(str(path))
    assert isinstance(found, Archive)
    return Files(found._files, found._links, frozenset(found._dirs), path.name)


class _Machine(Archive):
    """A captured host taken for a machine: what is not in it is not there."""

    complete = True

    def lacks(self, path: str) -> bool:
        return not self.exists(path) and self.link(path) is None


def read_by_discovery(host: Files) -> Recording:
    """What discovery reads of a host: the sources."""
    machine = _Machine(host.files, host.links, host.origin, host.dirs)
    machine.complete = True
    recording = Recording(machine)
    gather(recording)
    return recording


def as_captured(host: Files, found: Recording) -> Files:
    """The host as a capture of hosttune's own, with what was not there proven."""
    kept = {path: data for path, data in host.files.items() if path not in OWN}
    present = (*kept, *host.links, *host.dirs, COMPLETE)
    absent = {*found.missing, *(COMMANDS + name for name in ("libvirt.json",) if COMMANDS + name not in kept)}
    text = manifest.write(present, found.listed, absent, host.links)
    return replace(host, files={**kept, COMPLETE: text.encode()})


@dataclass(frozen=True)
class Damage:
    """One thing wrong at `path`: it is gone with all below it, `change` is made to its bytes, or it leads to `target`.

    `at` is where in the file; of several damages of one file the last place is damaged first, so that places stay.
    """

    what: str
    stratum: str
    path: str
    change: Callable[[bytes], bytes] | None = None
    at: int = 0
    target: str | None = None

    def __str__(self) -> str:
        return self.what


def _span(start: int, stop: int, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:start] + new + data[stop:]


def with_damage(host: Files, *damages: Damage) -> Files:
    """The host with all of these wrong."""
    files, links, dirs = dict(host.files), dict(host.links), set(host.dirs)
    for damage in sorted(damages, key=lambda one: -one.at):
        if damage.change is not None:
            files[damage.path] = damage.change(files[damage.path])
    moved = {damage.path: damage.target for damage in damages if damage.target is not None}
    for path in (damage.path for damage in damages if damage.change is None):
        files.pop(path, None)
        links.pop(path, None)
        dirs.discard(path)
        if path in host.dirs:
            below = f"{path}/"
            files = {name: data for name, data in files.items() if not name.startswith(below)}
            links = {name: target for name, target in links.items() if not name.startswith(below)}
            dirs = {name for name in dirs if not name.startswith(below)}
    links.update(moved)
    return replace(host, files=files, links=links, dirs=frozenset(dirs))


# --- where something can be wrong ----------------------------------------------------------------------------

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def _stratum(path: str) -> str:
    """The path without the bridges on the way, and without numbers."""
    parts = path.split("/")
    addresses = [at for at, part in enumerate(parts) if _ADDRESS.fullmatch(part)]
    if addresses and parts[1:3] == ["sys", "devices"]:
        parts = ["", "DEVICE", *parts[addresses[-1] :]]
    return re.sub(r"\d+", "N", _ADDRESS.sub("ADDRESS", "/".join(parts)))


def places(host: Files, found: Recording, sound: Files | None = None) -> list[Damage]:
    """Every damage of the host that is tried, in the order of the sources' paths.

    Where the host differs from a `sound` one, the files of the same folder and of the bridges above a PCI function are
    strata of their own: what contradicts a fault stands beside it, and one of 200 devices is not often drawn.
    """
    twice = () if sound is None else told_twice(host, sound)
    every = (*_of_files(host, found), *_of_folders(host, found), *_of_answers(host), *contradictions(host), *twice)
    beside = _beside(host, sound) if sound is not None else set()
    named = (
        replace(one, stratum=f"{one.stratum}, beside a fault") if one.path.rpartition("/")[0] in beside else one
        for one in every
    )
    return sorted(named, key=lambda one: one.what)


def _beside(host: Files, sound: Files) -> set[str]:
    """The folders of files that differ, and those of the bridges above them; not that of the tools' answers."""
    changed = {path for path, data in host.files.items() if sound.files.get(path) != data}
    folders = {path.rpartition("/")[0] for path in changed if not path.startswith(COMMANDS)}
    parts = [folder.split("/") for folder in folders]
    above = {"/".join(p[:depth]) for p in parts for depth in range(len(p)) if _ADDRESS.fullmatch(p[depth - 1])}
    return {*folders, *above}


def _of_files(host: Files, found: Recording) -> Iterator[Damage]:
    commands = (path for path in host.files if path.startswith(COMMANDS))
    for path in dict.fromkeys((*(path for path in found.files if path in host.files), *commands)):
        if path in OWN:
            continue
        data, name = host.files[path], _stratum(path)
        yield Damage(f"{path} lost", f"{name} lost", path)
        for how, new in (
            ("empty", b""),
            ("garbled", bytes(reversed(data.rstrip(b"\n"))) + b"\x00\xff"),
            ("negative", b"-7\n"),
            ("huge", b"9" * 30 + b"\n"),
            ("no number", b"NaN\n"),
            ("cut off", data[: len(data) // 2]),
        ):
            # The words of the kernel's arguments are records (docs/validate.md), and any text is one.
            records = path == "/proc/cmdline" and how in ("cut off", "huge", "no number")
            if new != data and not records:
                yield Damage(f"{path} {how}", f"{name} {how}", path, _span(0, len(data), new))
    for path in found.links:
        if path in host.links:
            yield Damage(f"{path} lost", f"{_stratum(path)} lost", path)


def _of_folders(host: Files, found: Recording) -> Iterator[Damage]:
    folders = {path.rpartition("/")[0] for path in (*found.files, *found.links)} | found.listed
    above = {"/".join(path.split("/")[:depth]) for path in folders for depth in range(2, path.count("/") + 2)}
    for path in sorted(above):
        if path in host.dirs:
            yield Damage(f"{path}/ lost", f"{_stratum(path)}/ lost", path)


# Values that are right for some other function; and which functions are tried: what guests or tuning are about.
_OTHERS: Mapping[str, tuple[str, ...]] = {
    "class": ("0x030200", "0x020000", "0x010802", "0x060400", "0x0c0330", "0x068000"),
    "vendor": ("0x10de", "0x1002", "0x8086", "0x15b3"),
    "device": ("0x2335", "0x22a3", "0x1021", "0x9999"),
}
_OTHER_DRIVERS = ("vfio-pci", "nvidia", "nouveau")
_TRIED = re.compile(rb"0x(03|12|0200|0207|0108|0680)")
_FUNCTIONS, _GROUPS, _DRIVERS = "/sys/bus/pci/devices", "/sys/kernel/iommu_groups", "/sys/bus/pci/drivers"


def contradictions(host: Files) -> Iterator[Damage]:
    """A value of a PCI function that is valid, and another one's, where a second source of the host belies it.

    Ids and class: its configuration space. Driver: the drivers' folders, or the maker's tool that lists it. Physical
    function: its own ids in configuration space. IOMMU group: the group's folder. Its link: the folder's own name.
    """
    folders = {path.rpartition("/")[2]: to for path, to in host.links.items() if path.startswith(f"{_FUNCTIONS}/")}
    for address, folder in folders.items():
        code = host.files.get(f"{folder}/class", b"")
        if not _TRIED.match(code) or f"{folder}/physfn" in host.links:
            continue
        kind = code.decode()[2:6]
        other = next((to for name, to in folders.items() if name != address and to != folder), folder)

        def damage(name: str, value: str, **how: object) -> Damage:
            path = f"{folder}/{name}" if name else f"{_FUNCTIONS}/{address}"  # noqa: B023
            what = f"{name or 'link'} of a function of class {kind} -> {value}"  # noqa: B023
            return Damage(f"{path} -> {value}", what, path, **how)  # type: ignore[arg-type]

        config = host.files.get(f"{folder}/config", b"")
        if len(config) >= 64 and config[:2] != b"\xff\xff":
            for name, values in _OTHERS.items():
                here = host.files.get(f"{folder}/{name}", b"")
                for value in (value for value in values if here and value.encode() != here.strip()):
                    yield damage(name, value, change=_span(0, len(here), f"{value}\n".encode()))
            yield damage("physfn", "another function", target=other)
        held = host.links.get(f"{folder}/driver", "").rpartition("/")[2]
        if f"{_DRIVERS}/{held}/{address}" in host.links:
            for driver in _OTHER_DRIVERS:
                if driver != held:
                    yield damage("driver", driver, target=f"{_DRIVERS}/{driver}")
        group = host.links.get(f"{folder}/iommu_group", "")
        if f"{_GROUPS}/{group.rpartition('/')[2]}/devices/{address}" in host.links:
            for number in (host.links.get(f"{other}/iommu_group", "").rpartition("/")[2], "99999"):
                if number and number != group.rpartition("/")[2]:
                    value = "that of another" if number != "99999" else "one that is not there"
                    yield damage("iommu_group", value, target=f"{_GROUPS}/{number}")
        if other != folder:
            yield damage("", "another folder", target=other)


_LINES = (
    "nvidia-smi-q",
    "nvidia-smi-topo-m",
    "nvidia-smi-nvlink-s",
    "nvidia-smi-nvlink-e",
    "hl-smi-q",
    "hl-smi-ports",
    "amd-smi-static",
    "virsh-list",
)


def _of_answers(host: Files) -> Iterator[Damage]:
    for path, data in host.files.items():
        name = path.removeprefix(COMMANDS)
        if not path.startswith(COMMANDS):
            if "/aer_dev_" in path:
                yield from _of_lines(path, data)
            continue
        if name == "nvidia-smi-q-x":
            yield from _of_elements(path, data.decode("latin-1"))
        elif name in _LINES:
            yield from _of_lines(path, data)
        elif data.lstrip()[:1] == b"{":
            yield from _of_values(path, data)


def _of_lines(path: str, data: bytes) -> Iterator[Damage]:
    start = 0
    for number, line in enumerate(data.decode("latin-1").splitlines(keepends=True)):
        start, stop = start + len(line), start + len(line)
        first = stop - len(line)
        if not line.strip():
            continue
        label = re.sub(r"\d+", "N", line.split(":")[0].split("\t")[0].strip())[:40]
        for how, new in (
            ("lost", ""),
            ("garbled", line[::-1].strip() + "\n"),
            ("negative", re.sub(r"\d+", "-7", line)),
        ):
            if new != line:
                name = f"{_stratum(path)} line {label!r} {how}"
                yield Damage(f"{path}:{number + 1} {how}", name, path, _span(first, stop, new.encode("latin-1")), first)


# What nvidia-smi prints in place of a value that it could not get.
_NO_VALUE = ("[Unknown Error]", "[GPU is lost]", "N/A", "-7", "", "9" * 30, "NaN")


def _of_elements(path: str, text: str) -> Iterator[Damage]:
    """Each element of each GPU: taken away with all in it; each that has a value, with another text."""
    for number, tags, first, last in _elements(text):
        tag, where = tags[-1], "/".join(tags[1:])
        if not where or "process_info" in where or "supported_clocks" in where:
            continue
        label = f"{path}: GPU {number} {where}"
        name = f"{COMMANDS}nvidia-smi-q-x: {where}"
        yield Damage(f"{label} lost", f"{name} lost", path, _span(first, last, b""), first)
        inner = text[first:last]
        if inner.count("<") == 2:
            for word in _NO_VALUE:
                new = f"<{tag}>{word}</{tag}>"
                if new != inner and where != "processes":
                    change = _span(first, last, new.encode())
                    yield Damage(f"{label} {word!r}", f"{name} {word!r}", path, change, first)


def _elements(text: str, top: str = "gpu") -> Iterator[tuple[int, tuple[str, ...], int, int]]:
    """(number of the element `top` that it is in, the tags from there to it, where it begins and ends) of each."""
    for number, part in enumerate(re.finditer(rf"<{top}[ >].*?</{top}>", text, re.DOTALL)):
        stack: list[tuple[str, int]] = []
        for token in re.finditer(r"<(/?)(\w+)[^>]*>", part[0]):
            if not token[1]:
                stack.append((token[2], part.start() + token.start()))
            if (token[1] or token[0].endswith("/>")) and stack:
                tags = tuple(name for name, _ in stack)
                yield number, tags, stack.pop()[1], part.start() + token.end()


def _of_values(path: str, data: bytes) -> Iterator[Damage]:
    """Each value of a JSON answer, at any depth of objects: taken away, null, negative, an error."""
    document = json.loads(data)
    for keys in _keys(document):
        label = ".".join(keys)
        name = re.sub(r"\d+", "N", label)
        for how, change in _CHANGES.items():
            yield Damage(f"{path}: {label} {how}", f"{_stratum(path)}: {name} {how}", path, _value(keys, change))


def _value(keys: tuple[str, ...], change: Callable[[dict[str, object], str], object]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        try:
            document = inner = json.loads(data)
            for key in keys[:-1]:
                inner = inner[key]
            change(inner, keys[-1])
        except (ValueError, KeyError, TypeError):
            return data  # another damage of the same set was there first
        return json.dumps(document).encode()

    return changed


def _put(value: object) -> Callable[[dict[str, object], str], None]:
    def change(inner: dict[str, object], key: str) -> None:
        inner[key] = value

    return change


_CHANGES: Mapping[str, Callable[[dict[str, object], str], object]] = {
    "lost": lambda inner, key: inner.pop(key),
    "null": _put(None),
    "negative": _put(-7),
    "huge": _put(10**30),
    "no number": _put(float("nan")),
    "an error": _put("ERR Unknown Error"),
    "lost GPU": _put("ERR GPU is lost"),
}


def _keys(document: object, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in document.items() if isinstance(document, dict) else ():
        yield (*above, key)
        yield from _keys(value, (*above, key))


# --- what is told twice ----------------------------------------------------------------------------------------

_XML = {"nvidia-smi-q-x": "gpu", "virsh-dumpxml-": "domain"}


def told_twice(host: Files, healthy: Files) -> Iterator[Damage]:
    """Each file, line, element and JSON key of a sick host that a healthy one has otherwise, with that beside it."""
    for path, data in host.files.items():
        well = healthy.files.get(path)
        if well is None or well == data or not (path.startswith(COMMANDS) or "/aer_dev_" in path):
            continue
        name = _stratum(path)
        yield from _twice(path, f"{path}", name, 0, len(data), well)
        top = next((tag for start, tag in _XML.items() if path.startswith(COMMANDS + start)), None)
        if top is not None:
            mine, theirs = data.decode("latin-1"), well.decode("latin-1")
            for one, other in zip(_elements(mine, top), _elements(theirs, top), strict=True):
                number, tags, first, last = one
                if mine[first:last] != theirs[other[2] : other[3]]:
                    where = "/".join(tags)
                    copy = theirs[other[2] : other[3]].encode("latin-1")
                    yield from _twice(path, f"{path}: {top} {number} {where}", f"{name}: {where}", first, last, copy)
        elif data.lstrip()[:1] == b"{":
            yield from _keys_twice(path, data, well)
        else:
            first = 0
            lines, others = data.splitlines(keepends=True), well.splitlines(keepends=True)
            for number, (line, copy) in enumerate(zip(lines, others, strict=False)):
                if line != copy:
                    yield from _twice(path, f"{path}:{number + 1}", f"{name} line", first, first + len(line), copy)
                first += len(line)


def _twice(path: str, label: str, name: str, first: int, last: int, copy: bytes) -> Iterator[Damage]:
    for how, at in (("before it", first), ("after it", last)):
        yield Damage(f"{label} told twice, {how}", f"{name} told twice, {how}", path, _span(at, at, copy), at)


def _keys_twice(path: str, data: bytes, well: bytes) -> Iterator[Damage]:
    document, healthy = json.loads(data), json.loads(well)
    for keys in _keys(document):
        mine, theirs = document, healthy
        for key in keys:
            mine, theirs = mine[key], theirs.get(key) if isinstance(theirs, dict) else None
        if theirs is None or mine == theirs:
            continue
        name = f"{_stratum(path)}: {re.sub(r'[0-9]+', 'N', '.'.join(keys))}"
        for how, last in (("before it", False), ("after it", True)):
            change = _doubled(keys, theirs, last)
            yield Damage(f"{path}: {'.'.join(keys)} told twice, {how}", f"{name} told twice, {how}", path, change)
        if len(keys) == 1 and keys[0].isdecimal():
            yield Damage(
                f"{path}: {keys[0]} told again as 99", f"{name} told again", path, _value(("99",), _put(theirs))
            )


_SECOND = "told-a-second-time"


def _doubled(keys: tuple[str, ...], copy: object, last: bool) -> Callable[[bytes], bytes]:
    """The document with the key twice in its object, the copy first or last."""

    def change(inner: dict[str, object], key: str) -> None:
        before = dict(inner)
        inner.clear()
        for name, value in before.items():
            pair = [(name, value), (_SECOND, copy)] if last else [(_SECOND, copy), (name, value)]
            inner.update(pair if name == key else [(name, value)])

    def changed(data: bytes) -> bytes:
        return _value(keys, change)(data).replace(_SECOND.encode(), keys[-1].encode())

    return changed


# --- what must hold ------------------------------------------------------------------------------------------

_BAD = {"pass": 0, "skip": 0, "warn": 1, "unknown": 2, "fail": 2}


@dataclass(frozen=True)
class Found:
    """What validation finds: the verdict, and each outcome by check and subject."""

    verdict: str
    outcomes: Mapping[tuple[str, str], str]


def validated(host: Files) -> Found:
    """Raises BadInput where discovery refuses the capture, which is an answer too (exit 2)."""
    results: tuple[CheckResult, ...] = tuple(judge(gather(host.system())))
    return Found(verdict_of(results), {(result.check, result.subject): result.outcome for result in results})


def improvements(before: Found, after: Found, known: Collection[str] = ()) -> Iterator[str]:
    """What got better by the damage: each line names a result, or the verdict.

    A subject of `known`, devices that several sources show, does not go without a word: another result of the check is
    unknown or fails, or `device-present` has one of it.
    """
    if _BAD[after.verdict] < _BAD[before.verdict]:
        yield f"verdict {before.verdict} -> {after.verdict}"
    doubts = {check for (check, _), outcome in after.outcomes.items() if _BAD[outcome] == 2}
    for key, outcome in before.outcomes.items():
        now = after.outcomes.get(key)
        if now is None:
            told = key[0] in doubts or _BAD[after.outcomes.get(("device-present", key[1]), "pass")] == 2
            if outcome != "skip" and key[1] in known and not told:
                yield f"{key[0]} {key[1]}: {outcome} -> gone"
        elif now != outcome and (_BAD[now] < _BAD[outcome] or (now == "skip" and outcome != "skip")):
            yield f"{key[0]} {key[1]}: {outcome} -> {now}"
