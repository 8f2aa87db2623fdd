"""kernel-install (systemd-boot and others of the Boot Loader Specification): hosttune writes /etc/kernel/cmdline whole.

Its 90-loaderentry plugin takes the command line of new entries from /etc/kernel/cmdline, else /usr/lib/kernel/cmdline,
else /proc/cmdline without BOOT_IMAGE= and initrd= (kernel-install(8)). The file cannot have a comment, so another file
records that hosttune wrote it. A file that hosttune did not write is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from hosttune.errors import WriteFailed
from hosttune.machine.system import System
from hosttune.model.commandline import changed, split
from hosttune.settings.bootloader import (
    STATE,
    Remembered,
    ToolLoader,
    by_hand,
    entries_folder,
    entry_lines,
    lacking,
    prove,
    read_state,
    refuse_unwritable,
    state_bytes,
    was_written,
    words_of,
)

LINE = "/etc/kernel/cmdline"
VENDOR = "/usr/lib/kernel/cmdline"
_SECONDS = 600.0  # it may build an initial ramdisk
_OF_THE_LOADER = ("BOOT_IMAGE", "initrd")


class KernelInstallState(Remembered, frozen=True, kw_only=True):
    """hosttune's file.

    `base`: the command line without hosttune's arguments. `was`: what /etc/kernel/cmdline held before the change.
    """

    base: str | None = None
    was: str | None = None

    @property
    def line(self) -> str:
        """Return the command line that hosttune writes."""
        return " ".join(changed(split(self.base or ""), self.arguments)) + "\n"


@dataclass(frozen=True)
class KernelInstall(ToolLoader):
    """kernel-install, as a boot loader's tool."""

    name: ClassVar[str] = "kernel-install"
    tools: ClassVar[tuple[str, ...]] = ("/usr/bin/kernel-install", "/bin/kernel-install")
    state: ClassVar[type[Remembered]] = KernelInstallState
    files: ClassVar[tuple[str, ...]] = (STATE, LINE)

    def stage(self, system: System, arguments: Mapping[str, str | None], names: Collection[str]) -> str | None:
        """See BootLoader. Rewrites the entries of all kernels, one after the other."""
        words_of(arguments)
        folder = entries_folder(system) or "/boot/loader/entries"
        refuse_unwritable(system, folder)
        held = read_state(system, KernelInstallState)
        now = _text(system, LINE)
        if now is not None and now not in (held.was, held.line if held.base is not None else None):
            raise WriteFailed(LINE, f"is not hosttune's: {by_hand(arguments)}, then run kernel-install for each kernel")
        kernels = tuple(_kernels(system))
        if not kernels:
            raise WriteFailed("/usr/lib/modules", "no kernel is found whose boot entry could be written")
        base = held.base if held.base is not None else _base(system)
        state = KernelInstallState(arguments=dict(arguments), base=base, was=now, unfinished=tuple(sorted(names)))
        first = state_bytes(state)
        system.replace(STATE, first)
        system.replace(LINE, state.line.encode())
        for version, image in kernels:
            system.change((self.tool, "add", version, image), timeout=_SECONDS)
        if arguments and was_written(system, STATE, first):
            prove(folder, lacking(entry_lines(system), arguments))
        if arguments:
            system.replace(STATE, state_bytes(KernelInstallState(arguments=dict(arguments), base=base)))
        else:
            system.remove(LINE)
            system.remove(STATE)
        return None


def _text(system: System, path: str) -> str | None:
    data = system.read_bytes(path)
    return None if data is None else data.decode("utf-8", "replace")


def _base(system: System) -> str:
    """Return the command line without hosttune's arguments, from kernel-install's sources. Raises WriteFailed."""
    text = _text(system, VENDOR) or _text(system, "/proc/cmdline")
    if text is None:
        raise WriteFailed(LINE, "the command line that it would replace is unknown: /proc/cmdline cannot be read")
    return " ".join(word for word in split(text) if word.partition("=")[0] not in _OF_THE_LOADER)


def _kernels(system: System) -> Iterator[tuple[str, str]]:
    """Yield version and image of each installed kernel."""
    for version in system.list("/usr/lib/modules") or system.list("/lib/modules"):
        for image in (f"/usr/lib/modules/{version}/vmlinuz", f"/boot/vmlinuz-{version}"):
            if system.exists(image):
                yield version, image
                break
