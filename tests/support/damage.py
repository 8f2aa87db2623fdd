"""Captured hosts with evidence lost, emptied, refused or cut short, in memory: no unpacking, no process.

A host is read once (`Files`); one damage is a small overlay over it (`with_damage`). `places` names every damage of a
host: each file, link and folder that discovery reads, each element of `nvidia-smi -q -x`, each value of `nvml.json` and
of a drive's log, which a tool may lack or have an error for. Places that differ in an address or a number alone are of
one stratum. What is damaged counts as the machine's own answer: no digest is there, or it is that of the damaged text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from posixpath import split

from hosttune.discovery.evidence import gather
from hosttune.discovery.recording import Recording
from hosttune.machine import manifest
from hosttune.machine.capture import Archive
from hosttune.machine.opening import open_root
from hosttune.machine.replay import OWN as OWN_FOLDER
from hosttune.machine.replay import Recorded
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

    @cached_property
    def folders(self) -> dict[str, set[str]]:
        """The names in each folder."""
        return Archive(self.files, self.links, self.origin, self.dirs)._dirs

    def system(self) -> Archive:
        """The host as discovery reads it."""
        return _Host(self)

    def put(self, texts: Mapping[str, str | bytes]) -> Files:
        """The same with these files."""
        new = {path: text.encode() if isinstance(text, str) else text for path, text in texts.items()}
        return replace(self, files={**self.files, **new})


class _Host(Archive):
    """A captured host whose folders are known: to find them takes longer than to read what one damage changes."""

    def __init__(self, host: Files) -> None:
        Recorded.__init__(self, host.origin)
        self._files, self._links, self._dirs, self._real_dirs = host.files, host.links, host.folders, {}
        self._read_own_facts()


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
    """The host as a capture of hosttune's own, with what was not there proven; without digests (see `sealed`)."""
    kept = {path: data for path, data in host.files.items() if path not in OWN}
    present = (*kept, *host.links, *host.dirs, COMPLETE)
    absent = {*found.missing, *(COMMANDS + name for name in ("libvirt.json",) if COMMANDS + name not in kept)}
    text = manifest.write(present, found.listed, absent, host.links)
    return replace(host, files={**kept, COMPLETE: text.encode()})


def sealed(host: Files) -> Files:
    """The capture with the digests of its files."""
    digests = {path: sha256(data).hexdigest() for path, data in host.files.items() if path != COMPLETE}
    return host.put({COMPLETE: manifest.seal(host.files[COMPLETE].decode(), digests)})


@dataclass(frozen=True)
class Damage:
    """One thing wrong at `path`: it is gone with all below it, or `refused`, or `change` is made to its bytes.

    `at` is where in the file; of several damages of one file the last place is damaged first, so that places stay.
    """

    what: str
    stratum: str
    path: str
    change: Callable[[bytes], bytes] | None = None
    at: int = 0
    refused: bool = False

    def __str__(self) -> str:
        return self.what


def _span(start: int, stop: int, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:start] + new + data[stop:]


def with_damage(host: Files, *damages: Damage) -> Files:
    """The host with all of these wrong."""
    files, links, dirs, folders = dict(host.files), dict(host.links), set(host.dirs), dict(host.folders)
    for damage in sorted(damages, key=lambda one: -one.at):
        if damage.change is not None:
            files[damage.path] = damage.change(files[damage.path])
    for path in (damage.path for damage in damages if damage.change is None):
        files.pop(path, None)
        links.pop(path, None)
        dirs.discard(path)
        parent, name = split(path)
        if parent in folders:
            folders[parent] = folders[parent] - {name}
        if path in host.dirs:
            folders = {at: names for at, names in folders.items() if at != path and not at.startswith(f"{path}/")}
            below = f"{path}/"
            files = {name: data for name, data in files.items() if not name.startswith(below)}
            links = {name: target for name, target in links.items() if not name.startswith(below)}
            dirs = {name for name in dirs if not name.startswith(below)}
    if refused := "".join(f"{damage.path}\tPermission denied\n" for damage in damages if damage.refused):
        files[UNREADABLE] = files.get(UNREADABLE, b"") + refused.encode()
        folders["/"] = folders["/"] | {OWN_FOLDER.lstrip("/")}
        folders[OWN_FOLDER] = folders.get(OWN_FOLDER, set()) | {UNREADABLE.rpartition("/")[2]}
    damaged = replace(host, files=files, links=links, dirs=frozenset(dirs))
    damaged.__dict__["folders"] = folders
    return damaged


# --- where something can be wrong ----------------------------------------------------------------------------

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def _stratum(path: str) -> str:
    """The path without the bridges on the way, and without numbers."""
    parts = path.split("/")
    addresses = [at for at, part in enumerate(parts) if _ADDRESS.fullmatch(part)]
    if addresses and parts[1:3] == ["sys", "devices"]:
        parts = ["", "DEVICE", *parts[addresses[-1] :]]
    return re.sub(r"\d+", "N", _ADDRESS.sub("ADDRESS", "/".join(parts)))


def places(host: Files, found: Recording) -> list[Damage]:
    """Every damage of the host that is tried, in the order of the sources' paths."""
    every = (*_of_files(host, found), *_of_folders(host, found), *_of_answers(host))
    return sorted(every, key=lambda one: one.what)


def _of_files(host: Files, found: Recording) -> Iterator[Damage]:
    commands = (path for path in host.files if path.startswith(COMMANDS))
    for path in dict.fromkeys((*(path for path in found.files if path in host.files), *commands)):
        if path in OWN:
            continue
        data, name = host.files[path], _stratum(path)
        yield Damage(f"{path} lost", f"{name} lost", path)
        yield Damage(f"{path} refused", f"{name} refused", path, refused=True)
        if data:
            yield Damage(f"{path} empty", f"{name} empty", path, _span(0, len(data), b""))
        # The words of the kernel's arguments are records (docs/validate.md). Half a number is another number.
        if data.count(b"\n") > 1 and path != "/proc/cmdline":
            yield Damage(f"{path} cut short", f"{name} cut short", path, _span(len(data) // 2, len(data), b""))
    for path in found.links:
        if path in host.links:
            yield Damage(f"{path} lost", f"{_stratum(path)} lost", path)


def _of_folders(host: Files, found: Recording) -> Iterator[Damage]:
    folders = {path.rpartition("/")[0] for path in (*found.files, *found.links)} | found.listed
    above = {"/".join(path.split("/")[:depth]) for path in folders for depth in range(2, path.count("/") + 2)}
    for path in sorted(above):
        if path in host.dirs:
            yield Damage(f"{path}/ lost", f"{_stratum(path)}/ lost", path)


def _of_answers(host: Files) -> Iterator[Damage]:
    for path, data in host.files.items():
        if path == f"{COMMANDS}nvidia-smi-q-x":
            yield from _of_elements(path, data.decode("latin-1"))
        elif path.startswith(COMMANDS) and data.lstrip()[:1] == b"{":
            yield from _of_values(path, data)


# What nvidia-smi prints in place of a value that it could not get.
_NO_VALUE = ("[Unknown Error]", "[GPU is lost]", "N/A")


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
    """Each value of a JSON answer, at any depth of objects: taken away, null, an error."""
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
        except (ValueError, KeyError, TypeError, AttributeError):
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
    "an error": _put("ERR Unknown Error"),
    "lost GPU": _put("ERR GPU is lost"),
}


def _keys(document: object, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in document.items() if isinstance(document, dict) else ():
        yield (*above, key)
        yield from _keys(value, (*above, key))


# --- what must hold ------------------------------------------------------------------------------------------

# "newer": the capture does not say that its version held the fact, so that only what is bad counts.
_BAD = {"pass": 0, "skip": 0, "newer": 0, "warn": 1, "unknown": 2, "fail": 2}


@dataclass(frozen=True)
class Found:
    """What validation finds: the verdict, and each outcome by check and subject."""

    verdict: str
    outcomes: Mapping[tuple[str, str], str]


def validated(host: Files) -> Found:
    """Raises BadInput where discovery refuses the capture, which is an answer too (exit 2)."""
    results: tuple[CheckResult, ...] = tuple(judge(gather(host.system())))
    outcomes = {
        (result.check, result.subject): "newer" if result.actual == "not in this capture" else result.outcome
        for result in results
    }
    return Found(verdict_of(results), outcomes)


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
