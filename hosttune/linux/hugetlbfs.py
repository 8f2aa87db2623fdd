"""File systems of huge pages: which are mounted, and the mount unit that hosttune writes. Pure.

libvirt gives a guest pages of one size from a hugetlbfs of that size (src/qemu/qemu_conf.c, "Unable to find any usable
hugetlbfs mount for … KiB"). It looks for them once, when its daemon starts (src/util/virfile.c, virFileFindHugeTLBFS),
and makes the folder `libvirt/qemu` in each that it has found (src/qemu/qemu_driver.c, qemuStateInitialize).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from hosttune.model.text import unescaped

MOUNTS = ("/proc/self/mounts", "/proc/mounts")  # the same list; a capture may have only one of them
GIB, MIB = 1 << 30, 1 << 20
# Where hosttune mounts pages of a size, as distributions and libvirt's documentation do.
PLACES: Mapping[int, str] = {GIB: "/dev/hugepages1G", 2 * MIB: "/dev/hugepages2M"}
_OPTION = {GIB: "1G", 2 * MIB: "2M"}
UNITS_FOLDER = "/etc/systemd/system"
_WANTED_BY = "sysinit.target"
_SIZE = r"pagesize=([0-9]{1,12})([KMG]?)"
_SHIFT = {"": 0, "K": 10, "M": 20, "G": 30}
_DEFAULT = re.compile(r"^Hugepagesize:\s*([0-9]{1,12}) kB", re.MULTILINE)
OURS = "# Written by hosttune"
FOUND, NOT_FOUND = "found", "not found"  # whether libvirt's daemon has found a mount
FOLDER_FOUND = "# Its folder was there before.\n"

_UNIT = """\
# Written by hosttune, whole; do not edit: `hosttune revert` takes it away.
{found}# As systemd's own dev-hugepages.mount (units/dev-hugepages.mount), for another size of page.
[Unit]
Description=Huge pages of {size} for guests
DefaultDependencies=no
Before=sysinit.target
# libvirt looks for these mounts when it starts.
Before=libvirtd.service virtqemud.service
ConditionPathExists=/sys/kernel/mm/hugepages/hugepages-{kib}kB

[Mount]
What=hugetlbfs
Where={path}
Type=hugetlbfs
Options=nosuid,nodev,pagesize={option}

[Install]
WantedBy={target}
"""


class Mounted(msgspec.Struct, frozen=True):
    """A hugetlbfs: its mount point, and the size of its pages in bytes (None: its options do not have it)."""

    path: str
    size_bytes: int | None


def read_hugetlbfs(mounts: str, default_bytes: int | None) -> tuple[Mounted, ...]:
    """Return the hugetlbfs file systems in a list of mounts (proc(5), /proc/PID/mounts), by path.

    Of several on one path the last counts, because it hides the others. `default_bytes`: the page size of a mount
    without `pagesize=`, "Hugepagesize" of /proc/meminfo (admin-guide/mm/hugetlbpage).
    """
    mounteds: dict[str, Mounted | None] = {}
    for words in (line.split(" ") for line in mounts.splitlines()):
        if len(words) < 4:
            continue
        path = unescaped(words[1])
        mounteds[path] = Mounted(path, _page_bytes(words[3], default_bytes)) if words[2] == "hugetlbfs" else None
    return tuple(mount for _, mount in sorted(mounteds.items()) if mount is not None)


def _page_bytes(options: str, default_bytes: int | None) -> int | None:
    given = [option for option in options.split(",") if option.startswith("pagesize=")]
    if not given:
        return default_bytes
    size = re.fullmatch(_SIZE, given[-1])
    return int(size[1]) << _SHIFT[size[2]] if size else None


def default_page_bytes(meminfo: str) -> int | None:
    """Return the default huge page size from /proc/meminfo; None if it is not there."""
    match = _DEFAULT.search(meminfo)
    return int(match[1]) << 10 if match else None


def libvirts_folder(path: str) -> str:
    """Return the folder that the libvirt daemon makes in each hugetlbfs that it has found: see the module."""
    return f"{path}/libvirt/qemu"


def page_size_of(path: str) -> int | None:
    """Return the page size that hosttune mounts at a path; None for a path that is not hosttune's."""
    return next((size for size, place in PLACES.items() if place == path), None)


def unit_name(path: str) -> str:
    """Return the mount unit of one of PLACES; systemd requires that name (systemd.mount(5))."""
    return f"{path[1:].replace('/', '-')}.mount"


def unit_path(path: str) -> str:
    """Return the path of that unit."""
    return f"{UNITS_FOLDER}/{unit_name(path)}"


def unit_link(path: str) -> str:
    """Return the link that `systemctl enable` makes, so that it is mounted at every boot."""
    return f"{UNITS_FOLDER}/{_WANTED_BY}.wants/{unit_name(path)}"


def unit_text(path: str, *, folder_found: bool) -> str:
    """Return the unit that mounts one of PLACES. `folder_found`: its folder existed before hosttune, and stays."""
    size = page_size_of(path)
    assert size is not None, path
    mark = FOLDER_FOUND if folder_found else ""
    text = "1 GiB" if size == GIB else f"{size // MIB} MiB"
    return _UNIT.format(found=mark, size=text, kib=size >> 10, path=path, option=_OPTION[size], target=_WANTED_BY)
