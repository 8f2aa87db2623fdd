"""Kernel arguments for the next boot. Those of one plan are written together, because they share one file.

Value: {name: text}. A plan wants the argument as written on the command line, or null to remove it. `read` returns what
hosttune's file stages for the next boot: "not staged" if the file does not have the name, "unfinished: …" if a change
was interrupted before the boot loader had it. The effective value is read from /proc/cmdline.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from hosttune.errors import WriteFailed
from hosttune.linux.systemdboot import LOADER_INFO, PROXMOX, PROXMOX_DISKS
from hosttune.machine.system import System
from hosttune.model.commandline import PAGES, changed, split, text_of
from hosttune.settings.bootloader import (
    COMMAND_LINE_SIZE,
    STATE,
    WORD,
    BootLoader,
    Grub,
    Remembered,
    Staged,
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
from hosttune.settings.setting import BOOT, KEEP_STAGE, Targets, WrittenTogether, refuse

# --- which boot loader a machine has -------------------------------------------------------------------------


def boot_loader(system: System) -> BootLoader | None:
    """Return the boot loader of a machine; None if there is none that hosttune can configure.

    A capture contains nothing of /boot. GRUB is assumed there, so that a rehearsal shows what would be written.
    """
    kernel_install = KernelInstall.found(system)
    if "systemd-boot" in (system.read_bytes(LOADER_INFO) or b"")[4:].decode("utf-16-le", "replace"):
        if system.exists(PROXMOX_DISKS):
            return None
        if kernel_install:
            return kernel_install
    loader = Grubby.found(system) or Grub.found(system) or (kernel_install if entries_folder(system) else None)
    if loader is None and system.captured and not system.list("/boot"):
        return Grub("/usr/sbin/update-grub")
    return loader


# --- kernel arguments ----------------------------------------------------------------------------------------


# The only arguments that a plan may set. A plan file is untrusted, and init= or module arguments could run any program.
NAMES = frozenset(
    (PAGES, "iommu", "intel_iommu", "amd_iommu", "isolcpus", "nohz_full", "mitigations", "hugetlb_free_vmemmap")
)
NOT_STAGED = "not staged"
_UNFINISHED, _REMOVAL = "unfinished: ", "removal"
_PAGES = re.compile(r"hugepagesz=1G hugepages=[0-9]{1,9}(:[0-9]{1,9}(,[0-9]{1,9}:[0-9]{1,9})*)?")


class KernelArguments(WrittenTogether):
    """Kernel arguments. Target: a name."""

    kind: ClassVar[str] = "kernel-argument"
    scope: ClassVar[str] = BOOT
    stage: ClassVar[int] = KEEP_STAGE
    none_is_value: ClassVar[bool] = True
    may_stop_midway: ClassVar[bool] = True
    targets = Targets(NAMES.__contains__, "not an argument that hosttune sets", f"known: {', '.join(sorted(NAMES))}")

    def check(self, value: Any) -> None:
        """See Setting."""
        parts = self.parts(value)
        if set(parts) != set(self.names):
            raise refuse(self.kind, self.target, "not a value for each argument", "plan again")
        for name, text in parts.items():
            if text is not None and not (isinstance(text, str) and _allowed(name, text)):
                raise refuse(self.kind, name, f"invalid value {str(text)[:80]!r}", "plan again")

    def read(self, system: System) -> Any:
        """See Setting."""
        loader = boot_loader(system)
        staged = loader.read(system) if loader else Staged({})
        return self.joined({name: _staged_text(staged, name) for name in self.names})

    def effective(self, system: System) -> Any:
        """See Setting. Read from /proc/cmdline."""
        arguments = split(system.read("/proc/cmdline") or "")
        return self.joined({name: text_of(arguments, name) for name in self.names})

    def waits_for(self, system: System) -> str | None:
        """See Setting. It waits for a boot loader that hosttune can configure."""
        return None if boot_loader(system) else f"{_no_loader(system)}: add them by hand and reboot"

    def places(self, system: System) -> tuple[str, ...]:
        """See Setting."""
        loader = boot_loader(system)
        return loader.files if loader else ()

    def write(self, system: System, value: Any) -> str | None:
        """See Setting."""
        parts = {name: _plain(text) for name, text in self.parts(value).items()}
        loader = boot_loader(system)
        if loader is None:
            wanted = {name: text for name, text in parts.items() if text != NOT_STAGED}
            raise WriteFailed("/boot", f"{_no_loader(system)}: {by_hand(wanted)} by hand, reboot, then apply again")
        staged = {name: text for name, text in loader.read(system).arguments.items() if name not in parts}
        staged |= {name: text for name, text in parts.items() if text != NOT_STAGED}
        loader.stage(system, {name: staged[name] for name in sorted(staged)}, sorted(parts))
        note = f"by {loader.name}"
        return f"{note}: this capture has no boot loader: one is assumed" if system.captured else note


def _allowed(name: str, text: str) -> bool:
    """Return whether a text has only arguments of this name, in words without special characters."""
    if len(text) >= COMMAND_LINE_SIZE:
        return False
    if name == PAGES:
        return bool(_PAGES.fullmatch(text))
    return bool(text) and all(WORD.fullmatch(word) and word.startswith(f"{name}=") for word in text.split(" "))


def _staged_text(staged: Staged, name: str) -> str | None:
    """Return the staged text of a name, as a value."""
    text = staged.arguments.get(name, NOT_STAGED)
    return f"{_UNFINISHED}{_REMOVAL if text is None else text}" if name in staged.unfinished else text


def _plain(value: Any) -> str | None:
    """Return the value that an unfinished change was meant to write. Writing it completes the change."""
    if not isinstance(value, str) or not value.startswith(_UNFINISHED):
        return None if value is None else str(value)
    text = value.removeprefix(_UNFINISHED)
    return None if text == _REMOVAL else text


def _no_loader(system: System) -> str:
    """Return why there is no boot loader to write for, up to the colon before what to do."""
    if system.exists(PROXMOX_DISKS):
        return f"only {PROXMOX} writes the boot entries here (/etc/kernel/cmdline, then {PROXMOX} refresh)"
    return "no boot loader that hosttune can configure (GRUB with /etc/default/grub.d, grubby, kernel-install)"


# --- grubby ----------------------------------------------------------------------------------------------------
# grubby, which edits the boot entries of RHEL, Fedora and related systems in place (Boot Loader Specification, GRUB).
# `--update-kernel=ALL` changes every entry, the command line of future kernels (/etc/kernel/cmdline) and
# GRUB_CMDLINE_LINUX in /etc/default/grub. --args removes every argument of the same name before it appends its own
# (grubby-bls, update_args). So for each changed name all arguments are passed again, in their order, and the previous
# arguments are kept in hosttune's file for a revert. zipl (s390x) is not supported.

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


# --- kernel-install --------------------------------------------------------------------------------------------
# kernel-install (systemd-boot and others of the Boot Loader Specification): hosttune writes /etc/kernel/cmdline
# whole. Its 90-loaderentry plugin takes the command line of new entries from /etc/kernel/cmdline, else
# /usr/lib/kernel/cmdline, else /proc/cmdline without BOOT_IMAGE= and initrd= (kernel-install(8)). The file cannot
# have a comment, so another file records that hosttune wrote it. A file that hosttune did not write is left alone.

LINE = "/etc/kernel/cmdline"
VENDOR = "/usr/lib/kernel/cmdline"
_INSTALL_SECONDS = 600.0  # it may build an initial ramdisk
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
            system.change((self.tool, "add", version, image), timeout=_INSTALL_SECONDS)
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
