"""Keep udev from assembling or mounting what is on a drive, from before the host's nvme driver sees it.

One file of udev's rules for each drive. It is in /etc, not in /run: after a power cut the nvme driver may find the
drive at boot, before hosttune runs. What the rules of others test, read in Debian 12's packages (udev 252, mdadm 4.2,
lvm2 2.03.16, btrfs-progs 6.2, bcache-tools 1.0.8, multipath-tools 0.9.4, udisks2 2.9.4) and in OpenZFS's repository:

- UDEV_DISABLE_PERSISTENT_STORAGE_RULES_FLAG=1: 60-persistent-storage.rules end before blkid, so ID_FS_TYPE is not set;
  LVM (69-lvm.rules), mdadm (64-md-raid-assembly.rules), btrfs (64-btrfs.rules) and ZFS (90-zfs.rules) act on that
  alone.
- DM_UDEV_DISABLE_OTHER_RULES_FLAG=1: LVM, bcache (which would probe by itself) and udisks leave the device alone.
- SYSTEMD_READY=0: mdadm and btrfs do, and systemd starts no unit for it (systemd.device(5)).
- nompath=1: 60-multipath.rules end before `multipath -u`. UDISKS_IGNORE=1: udisks(8).

The rules do not stop a person or a service that scans all disks by itself (`vgchange -ay`, `zpool import -a` at boot):
against these the survey looks for holders, and the erasure holds each namespace open with O_EXCL. No rule touches a
signature on the media. A namespace's disk is below the PCI function, or, where the kernel's multipath made it, below
the subsystem.
"""

from __future__ import annotations

import re

from hosttune.errors import BadInput, WriteFailed
from hosttune.handover.serials import check_serial
from hosttune.machine.system import System
from hosttune.model.values import is_address

FOLDER = "/etc/udev/rules.d"
_NAME = r"00-hosttune-handover-(.+)\.rules"  # before every rule that reads a disk
MARK = "HOSTTUNE_HANDOVER"

_RULES = """\
# Written by hosttune, whole; do not edit: `hosttune handover` takes it away.
# This drive is between two tenants: nothing may assemble or mount what is on it.
ACTION=="remove", GOTO="hosttune_handover_end"
SUBSYSTEM!="block", GOTO="hosttune_handover_end"
KERNELS=="{address}", GOTO="hosttune_handover_hold"
KERNELS=="nvme-subsys*", ATTRS{{serial}}=="{serial}", GOTO="hosttune_handover_hold"
GOTO="hosttune_handover_end"
LABEL="hosttune_handover_hold"
ENV{{{mark}}}="1"
ENV{{UDEV_DISABLE_PERSISTENT_STORAGE_RULES_FLAG}}="1"
ENV{{DM_UDEV_DISABLE_OTHER_RULES_FLAG}}="1"
ENV{{SYSTEMD_READY}}="0"
ENV{{nompath}}="1"
ENV{{UDISKS_IGNORE}}="1"
LABEL="hosttune_handover_end"
"""


def hold_back(system: System, address: str, serial: str) -> None:
    """Keep udev from acting on a drive's namespaces; before the nvme driver is bound. Nothing happens if it is so.

    Raises BadInput for a serial number that a rule cannot hold, WriteFailed; CommandFailed if udev cannot be told: then
    the nvme driver must not be bound.
    """
    data = _RULES.format(address=address, serial=check_serial(serial), mark=MARK).encode()
    path = _path(address)
    if system.read_bytes(path) != data:
        system.replace(path, data)
    if system.read_bytes(path) != data:
        raise WriteFailed(path, "it reads differently from what was written")
    _reload(system)


def let_go(system: System, address: str) -> None:
    """Let udev act on the drive again; after the nvme driver has left it, or after it is proven erased.

    Nothing happens if it is not held back. Raises WriteFailed, CommandFailed.
    """
    path = _path(address)
    if system.read_bytes(path) is not None:
        system.remove(path)
        _reload(system)


def held_back(system: System) -> tuple[str, ...]:
    """Return the addresses of the drives that udev leaves alone now. Raises Unreadable."""
    names = (re.fullmatch(_NAME, name) for name in system.list(FOLDER))
    return tuple(match[1] for match in names if match and is_address(match[1]))


def _path(address: str) -> str:
    if not is_address(address):
        raise BadInput(f"{address[:40]!r} is not a PCI address", where="hand-over", hint="write it as 0000:c1:00.0")
    return f"{FOLDER}/00-hosttune-handover-{address}.rules"


def _reload(system: System) -> None:
    if system.exists("/run/udev/control"):
        system.change(("udevadm", "control", "--reload"), timeout=30.0)
