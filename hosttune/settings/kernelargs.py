"""Kernel arguments for the next boot. Those of one plan are written together, because they share one file.

Value: {name: text}. A plan wants the argument as written on the command line, or null to remove it. `read` returns what
hosttune's file stages for the next boot: "not staged" if the file does not have the name, "unfinished: …" if a change
was interrupted before the boot loader had it. The effective value is read from /proc/cmdline.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from hosttune.errors import WriteFailed
from hosttune.linux.systemdboot import LOADER_INFO, PROXMOX, PROXMOX_DISKS
from hosttune.machine.system import System
from hosttune.model.commandline import PAGES, split, text_of
from hosttune.settings.bootloader import COMMAND_LINE_SIZE, WORD, BootLoader, Staged, by_hand, entries_folder
from hosttune.settings.grub import Grub
from hosttune.settings.grubby import Grubby
from hosttune.settings.kernelinstall import KernelInstall
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
