"""Which boot loader a machine has: one of those in `grub`, `grubby` and `kernelinstall`."""

from __future__ import annotations

from hosttune.machine.system import System
from hosttune.settings.bootloader import BootLoader, entries_folder
from hosttune.settings.grub import Grub
from hosttune.settings.grubby import Grubby
from hosttune.settings.kernelinstall import KernelInstall

# What systemd-boot leaves for the system that it started (systemd.io/BOOT_LOADER_INTERFACE); UTF-16 after 4 bytes.
LOADER_INFO = "/sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"


def boot_loader(system: System) -> BootLoader | None:
    """Return the boot loader of a machine; None if there is none that hosttune can configure.

    A capture contains nothing of /boot. GRUB is assumed there, so that a rehearsal shows what would be written.
    """
    kernel_install = KernelInstall.found(system)
    if kernel_install and "systemd-boot" in (system.read_bytes(LOADER_INFO) or b"")[4:].decode("utf-16-le", "replace"):
        return kernel_install
    found = Grubby.found(system) or Grub.found(system) or (kernel_install if entries_folder(system) else None)
    if found is None and system.captured and not system.list("/boot"):
        return Grub("/usr/sbin/update-grub")
    return found
