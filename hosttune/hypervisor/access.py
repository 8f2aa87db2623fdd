"""Whether QEMU can read a guest's files: its seed, disks, kernel and initramfs. Checked right before a start.

QEMU runs as its own user. libvirt gives it ownership of the file itself (qemu.conf, dynamic_ownership), but never of
the folders above; under AppArmor or SELinux access also depends on the policy. The daemon reports the user and the
active security models (`virsh capabilities`, host/secmodel). Whether that user can search and read is tested as that
user, by the kernel: so access lists, root squashing and read-only file systems are taken into account.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from hosttune.domain.xml import parse
from hosttune.errors import BadInput, CommandFailed, Unreadable
from hosttune.hypervisor.connection import ask
from hosttune.hypervisor.disk import image_here
from hosttune.machine.system import System
from hosttune.model.plan import NO_BOOT, PlannedGuest

_OWNERSHIP = re.compile(r"^[ \t]*dynamic_ownership\s*=\s*([0-9])", re.MULTILINE)
_LABEL = re.compile(r"\+?([0-9]{1,10}):\+?([0-9]{1,10})")
# libvirt src/security/virt-aa-helper.c, valid_path: it leaves these paths out of a guest's AppArmor profile.
_APPARMOR_NEVER = (
    *("/bin/", "/etc/", "/lib", "/lost+found/", "/proc/", "/sbin/", "/selinux/", "/sys/", "/usr/bin/", "/usr/lib"),
    *("/usr/sbin/", "/usr/share/", "/usr/local/bin/", "/usr/local/etc/", "/usr/local/lib", "/usr/local/sbin/"),
)
_APPARMOR_READ_ONLY = ("/boot/", "/vmlinuz", "/initrd")
# File systems without labels, and the boolean that lets svirt use them (RHEL, "Booleans for virtualization";
# fedora-selinux/selinux-policy, virt.te and filesystem.te).
_BOOLEANS = {
    "nfs": "virt_use_nfs", "nfs4": "virt_use_nfs", "9p": "virt_use_nfs",
    "cifs": "virt_use_samba", "fuse": "virt_use_fusefs", "fuseblk": "virt_use_fusefs",
}  # fmt: skip
_LABELLED = "seclabel"  # mount option of a file system with labels, for example NFS 4.2


class FileUser(NamedTuple):
    """The user that reads the files, QEMU's.

    `user` and `group`: its ids. `models`: the security models besides "dac". `owns`: whether libvirt gives it
    ownership.
    """

    user: int
    group: int
    models: tuple[str, ...]
    owns: bool


class GuestFile(NamedTuple):
    """A file of a guest: its name for messages, its path, whether QEMU also writes it.

    `as_is`: libvirt does not give QEMU ownership of it.
    """

    what: str
    path: str
    written: bool = False
    as_is: bool = False


def unreachable(system: System, guest: PlannedGuest, *, base: str | None = None) -> tuple[str, ...]:
    """Return what QEMU could not read of a guest's files, with the part of the path that is closed; empty for nothing.

    `base`: an image below the guest's disk, whose owner stays as it is.
    If access is unknown, that is a reason too. Nothing is checked on a captured host.
    """
    given = (*_given(guest), *([GuestFile("image", base, as_is=True)] if base is not None else ()))
    if system.captured or not given:
        return ()
    try:
        reader = _reader(system)
        return tuple(text for file in given for text in _reasons_unreachable(system, reader, file))
    except Unreadable as error:
        return (f"whether QEMU can read its files is unknown: {error.what}",)


_SWTPM = "/usr/bin/swtpm"


def no_system(system: System, guest: PlannedGuest) -> str | None:
    """Return why a guest cannot start: nothing to boot from, or a disk or its TPM's program is missing."""
    if not (guest.boots_from or guest.may_boot_from):
        return NO_BOOT
    known = not system.captured or system.scratch  # a capture has no guests' disks
    for disk in guest.disks if known else ():
        if system.exists(f"{disk}/."):
            return f"{disk} is a folder, not a disk: give the path of its file"
        if not (system.lacks(disk) or (system.scratch and not system.exists(disk))):
            continue
        if disk != guest.disk or guest.image is None:
            return f"there is no {disk}, which should be its disk: make it, or give another path"
        try:
            image_here(system, guest.image)
        except BadInput as error:
            return f"{error.where}, of which its disk is to be a copy: {error.what}"
    if known and guest.tpm and system.lacks(_SWTPM):
        return f"there is no {_SWTPM}, which its TPM needs: install swtpm and swtpm-tools"
    return None


def _given(guest: PlannedGuest) -> Iterator[GuestFile]:
    if guest.boot is not None:
        if guest.boot.kernel:
            yield GuestFile("kernel", guest.boot.kernel)
        if guest.boot.initrd:
            yield GuestFile("initramfs", guest.boot.initrd)
    yield from (GuestFile("disk", disk, written=True) for disk in guest.disks)
    if guest.seed:
        yield GuestFile("seed", guest.seed)


def _reader(system: System) -> FileUser:
    """Return QEMU's user, group and security models. Raises Unreadable."""
    text = ask(system, "capabilities")
    models = {
        model.findtext("model") or "": [label.text or "" for label in model.iterfind("baselabel")]
        for model in parse(text).iterfind("host/secmodel")
    }
    found = next((match for label in models.get("dac", ()) if (match := _LABEL.fullmatch(label.strip()))), None)
    if found is None:
        raise Unreadable("virsh capabilities", "it does not say which user QEMU runs as (host/secmodel dac)")
    given = _OWNERSHIP.findall(system.read("/etc/libvirt/qemu.conf") or "")
    owns = not given or given[-1] != "0"
    return FileUser(int(found[1]), int(found[2]), tuple(name for name in models if name != "dac"), owns)


def _reasons_unreachable(system: System, reader: FileUser, file: GuestFile) -> Iterator[str]:
    path = os.path.normpath(file.path)
    who = f"QEMU (user {reader.user}, group {reader.group})"
    if not system.exists(path):
        yield f"there is no {path}, which should be the {file.what}"
        return
    how = ("-r", "-w") if file.written else ("-r",)
    if not all(_may(system, reader, one, path) for one in how):
        closed = next((folder for folder in _folders(path) if not _may(system, reader, "-x", folder)), None)
        if closed is not None:
            yield f"{who} cannot reach the {file.what} {path}: it may not search {closed}: chmod o+x {closed}"
            return
        # libvirt, which is root, gives the file to QEMU before the start. On NFS with root squashing it cannot.
        if file.as_is or not (reader.owns and _local(system, path)):
            verb, mode = ("read and write", "o+rw") if file.written else ("read", "o+r")
            yield f"{who} cannot {verb} the {file.what} {path}: chmod {mode} {path}"
            return
    yield from _confined(system, reader, file, path)


def _folders(path: str) -> list[str]:
    """Return the folders above a path, "/" first."""
    folders = [os.path.dirname(path)]
    while folders[-1] not in ("/", ""):
        folders.append(os.path.dirname(folders[-1]))
    return [folder for folder in reversed(folders) if folder]


def _may(system: System, reader: FileUser, how: str, path: str) -> bool:
    """Return whether QEMU's user may search a folder ("-x"), read or write a file, tested by the kernel.

    Raises Unreadable.
    """
    groups = "--clear-groups" if reader.user == 0 else "--init-groups"
    as_qemu = ("setpriv", "--reuid", str(reader.user), "--regid", str(reader.group), groups, "--")
    try:
        system.run((*as_qemu, "test", how, path))
    except CommandFailed as error:
        if error.reason == "exit status 1" and not error.output.strip():
            return False
        raise _unknown(error) from error
    return True


def _command(system: System, *argv: str) -> str:
    try:
        return system.run(argv)
    except CommandFailed as error:
        raise _unknown(error) from error


def _unknown(error: CommandFailed) -> Unreadable:
    return Unreadable(" ".join(error.argv), f"{error.reason}: {error.output.strip()}".rstrip(": "))


def _local(system: System, path: str) -> bool:
    kind, _ = _file_system(system, path)
    return not kind.startswith(("nfs", "cifs", "smb", "fuse", "ceph", "9p"))


def _file_system(system: System, path: str) -> tuple[str, list[str]]:
    """Return (type, mount options) of the file system of a path, from the longest mount above it; "" if unknown."""
    rows = [line.split() for line in (system.read("/proc/self/mounts") or "").splitlines()]
    above = [row for row in rows if len(row) > 3 and f"{path}/".startswith(f"{row[1].rstrip('/')}/")]
    row = max(above, key=lambda row: len(row[1]), default=None)
    return (row[2], row[3].split(",")) if row else ("", [])


def _confined(system: System, reader: FileUser, file: GuestFile, path: str) -> Iterator[str]:
    """Return what the security models deny, no matter who owns the file."""
    if "apparmor" in reader.models:
        real = _command(system, "realpath", "--", path).rstrip("\n")
        denied = real.startswith(_APPARMOR_NEVER) or '"' in real
        if denied or (file.written and real.startswith(_APPARMOR_READ_ONLY)):
            yield (
                f"AppArmor keeps QEMU from the {file.what} {real}: libvirt's virt-aa-helper leaves such paths out of a"
                " guest's profile; move it, below /var/lib/libvirt/images for one"
            )
    if "selinux" in reader.models:
        kind, options = _file_system(system, path)
        boolean = None if _LABELLED in options else _BOOLEANS.get(kind.split(".")[0])
        now = system.read(f"/sys/fs/selinux/booleans/{boolean}") if boolean else None
        if boolean and (now or "").split()[:1] == ["0"]:
            yield f"SELinux keeps QEMU from the {file.what} {path} on {kind}: setsebool -P {boolean} on"
