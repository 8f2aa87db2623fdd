"""Boot loaders: which one this machine has, and what they share. `grub` has a module; grubby and kernel-install
are in `kernelargs`.

They are recognized by their files and tools, never by a distribution's name. Each one keeps what is staged in one file
of hosttune and runs its own generator. A change is marked as unfinished in that file until the generator has finished,
so that a crash in between can be detected.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, TypeVar

import msgspec

from hosttune.errors import BadInput, Unreadable, WriteFailed
from hosttune.machine.system import System
from hosttune.model.commandline import split, text_of
from hosttune.model.jsontext import typed_json

# Allowed characters of a word that hosttune stages: none that a shell, GRUB's language or sed would interpret.
WORD = re.compile(r"[A-Za-z0-9_.,:/+=-]{1,1024}")
COMMAND_LINE_SIZE = 2048  # bytes with the final zero; the rest is cut off (arch/x86/include/asm/setup.h)
ENTRIES = ("/efi/loader/entries", "/boot/loader/entries", "/boot/efi/loader/entries")
STATE = "/etc/hosttune/kernel-arguments"  # hosttune's own file, if the boot loader's cannot hold this
_NAME = re.compile(r"[a-z_]{1,32}")

S = TypeVar("S", bound="Remembered")


class Staged(msgspec.Struct, frozen=True):
    """What hosttune's file stages for the next boot: name -> its arguments, None if they are removed.

    `unfinished`: names whose change was interrupted before the boot loader had it.
    """

    arguments: Mapping[str, str | None]
    unfinished: frozenset[str] = frozenset()


class BootLoader(ABC):
    """One way to set the kernel arguments of the next boot."""

    name: ClassVar[str] = ""
    files: ClassVar[tuple[str, ...]] = ()  # files that it may create

    @abstractmethod
    def read(self, system: System) -> Staged:
        """Return what hosttune's file stages. Raises Unreadable if hosttune did not write the file in this form."""

    @abstractmethod
    def stage(self, system: System, arguments: Mapping[str, str | None], names: Collection[str]) -> str | None:
        """Make exactly these the arguments that hosttune sets for the next boot; `names` are the ones that change.

        Can be repeated from any state that a crash leaves. Returns a note to report. Raises WriteFailed, CommandFailed.
        """


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """What hosttune's file holds for a boot loader whose own file cannot; a loader adds what a revert needs."""

    arguments: dict[str, str | None] = {}
    unfinished: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolLoader(BootLoader):
    """A boot loader that is configured by a tool; hosttune's file holds what is staged. `tool`: the tool's path."""

    tool: str
    tools: ClassVar[tuple[str, ...]] = ()  # possible paths; the first one that exists is used
    state: ClassVar[type[Remembered]] = Remembered
    files: ClassVar[tuple[str, ...]] = (STATE,)

    @classmethod
    def found(cls, system: System) -> Self | None:
        """Return the boot loader if its tool is installed, else None."""
        path = next((path for path in cls.tools if system.exists(path)), None)
        return cls(path) if path else None

    def read(self, system: System) -> Staged:
        """See BootLoader."""
        state = read_state(system, self.state)
        return Staged(state.arguments, frozenset(state.unfinished))


def entries_folder(system: System) -> str | None:
    """Return the folder with the entries of the Boot Loader Specification; None if there are none."""
    return next((path for path in ENTRIES if any(name.endswith(".conf") for name in system.list(path))), None)


def entry_lines(system: System) -> list[tuple[str, ...]]:
    """Return the command line of each entry of the Boot Loader Specification. Raises Unreadable."""
    folder = entries_folder(system)
    names = [name for name in system.list(folder) if name.endswith(".conf")] if folder else []
    lines = []
    for name in names:
        rows = (line.split(None, 1) for line in (system.read(f"{folder}/{name}") or "").splitlines())
        lines.append(split(" ".join(row[1] for row in rows if len(row) == 2 and row[0] == "options")))
    return lines


def words_of(arguments: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return all words that hosttune sets, in order. Raises WriteFailed for a word with unsafe characters."""
    words = tuple(word for text in arguments.values() if text for word in text.split())
    for word in (*words, *arguments):
        if not WORD.fullmatch(word):
            raise WriteFailed("the kernel's command line", f"{word[:80]!r} has characters that are not safe there")
    return words


def lacking(lines: Iterable[Sequence[str]], arguments: Mapping[str, str | None]) -> str | None:
    """Return why none of these command lines has exactly these arguments; None if one of them has."""
    best: list[str] | None = None
    for words in lines:
        heard = tuple(words)[: list(words).index("--")] if "--" in words else words  # words after "--" are for init
        wrong = [text or f"the removal of {name}" for name, text in arguments.items() if text_of(heard, name) != text]
        if not wrong and len(" ".join(words)) >= COMMAND_LINE_SIZE:
            wrong = [f"room: the kernel reads {COMMAND_LINE_SIZE - 1} bytes at most"]
        if not wrong:
            return None
        best = wrong if best is None or len(wrong) < len(best) else best
    return "there is no boot entry" if best is None else f"no boot entry has {', '.join(best)}"


def prove(path: str, why: str | None) -> None:
    """Raise WriteFailed, naming the generated configuration, if it lacks what was staged."""
    if why:
        raise WriteFailed(path, f"the boot loader's tool succeeded, but {why}: something sets them after hosttune")


def was_written(system: System, path: str, data: bytes) -> bool:
    """Return whether the file has what was just written; False in a rehearsal or capture, where nothing is written."""
    return not system.captured and system.read_bytes(path) == data


def refuse_unwritable(system: System, path: str) -> None:
    """Raise WriteFailed if the boot partition of `path` is not mounted, or is mounted read-only."""
    mounts = [line.split() for line in (system.read("/proc/mounts") or "").splitlines()]
    mounted = {row[1]: row[3].split(",") for row in mounts if len(row) > 3}  # the last mount at a place counts
    if not mounted:
        return  # a capture
    for line in (system.read("/etc/fstab") or "").splitlines():
        row = line.split()
        place = row[1].rstrip("/") if len(row) > 2 and not row[0].startswith("#") else ""
        if (
            place
            and place not in mounted
            and f"{path}/".startswith(f"{place}/")
            and place.startswith(("/boot", "/efi"))
        ):
            raise WriteFailed(place, "is a file system of its own that is not mounted: mount it first")
    place = max((p for p in mounted if f"{path}/".startswith(f"{p.rstrip('/')}/")), key=len, default="")
    if "ro" in mounted.get(place, ()):
        raise WriteFailed(place, "is mounted read-only: make it writable first")


def names_in(text: str) -> frozenset[str]:
    """Return the names of arguments in a list of words; anything else in it is dropped."""
    return frozenset(word for word in text.split() if _NAME.fullmatch(word))


def by_hand(arguments: Mapping[str, str | None]) -> str:
    """Return what the administrator has to do to a command line that hosttune leaves alone."""
    words = " ".join(words_of(arguments))
    gone = ", ".join(name for name, text in arguments.items() if text is None)
    steps = (f"add {words}" if words else "", f"remove {gone}" if gone else "")
    return " and ".join(step for step in steps if step) or "change nothing"


def read_state(system: System, kind: type[S]) -> S:
    """Return what hosttune's file holds; the kind's defaults if there is no file. Raises Unreadable."""
    data = system.read_bytes(STATE)
    try:
        return kind() if data is None else typed_json(data, kind, where=STATE)
    except BadInput as error:
        raise Unreadable(STATE, f"not as hosttune writes it: {error.what}") from error


def state_bytes(state: Remembered) -> bytes:
    """Return the contents of hosttune's file."""
    return msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n"
