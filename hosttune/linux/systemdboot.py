"""How a machine with systemd-boot is told, and who writes its boot entries."""

from __future__ import annotations

# What systemd-boot leaves for the system that it started (systemd.io/BOOT_LOADER_INTERFACE); UTF-16 after 4 bytes.
LOADER_INFO = "/sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
# With this file Proxmox VE keeps its kernels on several boot partitions, by its own tool (pve Host_Bootloader).
PROXMOX_DISKS = "/etc/kernel/proxmox-boot-uuids"
PROXMOX = "proxmox-boot-tool"
BY_KERNEL_INSTALL = ("systemd-boot", PROXMOX)  # their command line is /etc/kernel/cmdline
