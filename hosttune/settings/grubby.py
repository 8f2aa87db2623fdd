"""grubby, which edits the boot entries of RHEL, Fedora and related systems in place (Boot Loader Specification, GRUB).

`--update-kernel=ALL` changes every entry, the command line of future kernels (/etc/kernel/cmdline) and
GRUB_CMDLINE_LINUX in /etc/default/grub. --args removes every argument of the same name before it appends its own
(grubby-bls, update_args). So for each changed name all arguments are passed again, in their order, and the previous
arguments are kept in hosttune's file for a revert. zipl (s390x) is not supported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from hosttune.errors import WriteFailed
from hosttune.machine.system import System
from hosttune.model.commandline import PAGES, changed, split, text_of
from hosttune.settings.bootloader import (
    STATE,
    Remembered,
    ToolLoader,
    lacking,
    prove,
    read_state,
    refuse_unwritable,
    state_bytes,
    was_written,
    words_of,
)

INFO = "grubby-info-all"  # the name of grubby's output in a capture
_ENTRIES = "/boot/loader/entries"
_SECONDS = 120.0


class GrubbyState(Remembered, frozen=True, kw_only=True):
    """hosttune's file. `before`: for each name that is staged or being reverted, its original text in the entries."""

    before: dict[str, str | None] = msgspec.field(default_factory=dict)


@dataclass(frozen=True)
class Grubby(ToolLoader):
    """grubby, as a boot loader's tool."""

    name: ClassVar[str] = "grubby"
    tools: ClassVar[tuple[str, ...]] = ("/usr/sbin/grubby", "/usr/bin/grubby", "/sbin/grubby")
    state: ClassVar[type[Remembered]] = GrubbyState

    def stage(self, system: System, arguments: Mapping[str, str | None], names: Collection[str]) -> str | None:
        """See BootLoader."""
        words_of(arguments)
        refuse_unwritable(system, _ENTRIES)
        state = read_state(system, GrubbyState)
        entries = self._entries(system)
        back = [name for name in names if name in state.before and name not in arguments]
        new = [name for name in arguments if name not in state.before]
        before = state.before | {name: _common(entries, name) for name in new}
        wanted = {name: arguments[name] for name in names if name in arguments} | {name: before[name] for name in back}
        first = state_bytes(GrubbyState(arguments=dict(arguments), before=before, unfinished=tuple(sorted(names))))
        system.replace(STATE, first)
        if wanted:
            system.change(self._command(entries, wanted), timeout=_SECONDS)
            if was_written(system, STATE, first):
                prove(_ENTRIES, lacking(self._entries(system), wanted))
        left = tuple(name for name in state.unfinished if name not in names)
        if arguments or left:
            kept = {name: text for name, text in before.items() if name not in back}
            system.replace(STATE, state_bytes(GrubbyState(arguments=dict(arguments), before=kept, unfinished=left)))
        else:
            system.remove(STATE)
        return None

    def _entries(self, system: System) -> list[tuple[str, ...]]:
        """Return the command line of every entry, from grubby; empty if a capture does not have grubby's output."""
        answer = system.query(INFO, lambda: system.run((self.tool, "--info=ALL"))) or ""
        lines = [line[len('args="') :].rstrip() for line in answer.splitlines() if line.startswith('args="')]
        return [split(line.removesuffix('"')) for line in lines]

    def _command(self, entries: Sequence[tuple[str, ...]], wanted: Mapping[str, str | None]) -> tuple[str, ...]:
        names = [own for name in wanted for own in (("hugepagesz", PAGES) if name == PAGES else (name,))]
        lines = {
            tuple(word for word in changed(entry, wanted) if word.partition("=")[0] in names)
            for entry in (entries or [()])
        }
        if len(lines) != 1:
            raise WriteFailed(
                _ENTRIES, f"the boot entries differ in {', '.join(names)}: make them alike with grubby --update-kernel"
            )
        (words,) = lines
        given = (f"--args={' '.join(words)}",) if words else ()
        return (self.tool, "--update-kernel=ALL", f"--remove-args={' '.join(names)}", *given)


def _common(entries: Sequence[tuple[str, ...]], name: str) -> str | None:
    """Return the text of a name in the entries. Raises WriteFailed if the entries differ."""
    texts = {text_of(entry, name) for entry in entries} or {None}
    if len(texts) != 1:
        raise WriteFailed(
            _ENTRIES, f"the boot entries differ in {name}: make them alike with grubby --update-kernel=ALL"
        )
    (text,) = texts
    # A count refers to the page size before it. Restored at the end of the line, it needs its own size.
    return f"hugepagesz=1G {text}" if text and name == PAGES and text.startswith("hugepages=") else text
