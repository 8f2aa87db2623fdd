"""What the host uses its disks for, the names of an NVMe controller's namespaces, its serial number. Reads only.

A separate module because every discovery imports it and must start fast.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from hosttune.machine.reader import Reader
from hosttune.model import sysfs
from hosttune.model.devices import functions_under

MOUNTS = "/proc/self/mounts"
_DEVICES = sysfs.PCI_DEVICES
_BLOCK = "/sys/class/block"
_BTRFS = "/sys/fs/btrfs"
_NVME = "/sys/class/nvme"
_EXPORTED = "/sys/kernel/config/nvmet/subsystems"
_TARGETS = "/sys/kernel/config/target/core"
_LOOP = re.compile(r"loop[0-9]+")
_FILE = re.compile(r"\bFile: (/\S+)")
_NAMESPACE = r"nvme([0-9]+)(?:c[0-9]+)?n([0-9]+)"
_CONTROLLER = r"nvme[0-9]+"
_VDPA = "/sys/bus/vdpa/devices"
# No file says what is below these (drbd); the pool of a zd is in use by the host itself.
_UNTOLD = "/virtual/block/(?!nbd|zd|z?ram|loop)"
_DEEPEST = 16


def nvme_names(reader: Reader, address: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the NVMe controller on a function ("nvme0") and its namespaces' block devices ("nvme0n1")."""
    path = f"{_DEVICES}/{address}"
    controller = next(iter(reader.names(f"{path}/nvme")), None)
    if controller is None:  # kernels before 4.x kept the controller's name in `misc`
        controller = next((name for name in reader.names(f"{path}/misc") if re.fullmatch(_CONTROLLER, name)), None)
    below = reader.names(f"{path}/block")
    if controller is not None:
        below += reader.names(f"{path}/nvme/{controller}")
    return controller, tuple(dict.fromkeys(head for name in below if (head := namespace_of(name))))


def drive_serial(names: Callable[[str], Sequence[str]], read: Callable[[str], str | None], address: str) -> str | None:
    """Return the serial number that the host's nvme driver shows; None if it does not have the drive.

    `names` and `read`: of a System, where what the kernel refuses is an error, or of a Reader, where it is a problem.
    """
    folder = sysfs.function(address, "nvme")
    controllers = names(folder)
    return (read(f"{folder}/{controllers[0]}/serial") or "").strip() or None if len(controllers) == 1 else None


def namespace_of(name: str) -> str | None:
    """Return the block device of a namespace.

    For a path of a multipath namespace ("nvme0c1n2"): its head ("nvme0n2").
    """
    match = re.fullmatch(_NAMESPACE, name)
    return f"nvme{match[1]}n{match[2]}" if match else None


def _partition(disk: str) -> re.Pattern[str]:
    """Return a pattern for names of a disk's partitions: "p1" after a name that ends with a digit, else "1"."""
    return re.compile(rf"{re.escape(disk)}{'p' if disk[-1:].isdigit() else ''}[0-9]+")


def partitions(reader: Reader, disk: str) -> list[str]:
    """Return the partitions of a disk, by name."""
    return [name for name in reader.names(f"{_BLOCK}/{disk}") if _partition(disk).fullmatch(name)]


def read_nodes(reader: Reader, paths: Iterable[str] = ()) -> dict[str, tuple[str, ...]]:
    """Return what nodes and interfaces of the host are on, as `HostFields.nodes` has it, and where these paths lead.

    What cannot be told has no entry. Sources: Documentation/ABI (sysfs-class-net, sysfs-bus-vdpa), the folders `slaves`
    that dm, md and bcache make (block/holder.c), drivers/nvme/host/multipath.c (the head is in its subsystem).
    """
    nodes: dict[str, tuple[str, ...]] = {}
    for kind, prefix in ((_BLOCK, "/dev"), (sysfs.NET, sysfs.NET)):
        for name in reader.names(kind):
            functions = _under(reader, f"{kind}/{name}")
            if functions or (functions is not None and kind == _BLOCK and not re.match("loop|ram", name)):
                nodes[f"{prefix}/{name}"] = tuple(sorted(functions))
            mapped = reader.text(f"{kind}/{name}/dm/name") if name.startswith("dm-") else None
            volume = re.fullmatch(r"((?:[^-]|--)++)-((?:[^-]|--)+)", mapped or "")  # LVM doubles dashes in names
            for link in (mapped and f"mapper/{mapped}", volume and "/".join(volume.groups()).replace("--", "-")):
                if link:
                    nodes[f"/dev/{link}"] = (f"/dev/{name}",)
    for name in reader.names(_VDPA):
        for node in reader.names(f"{_VDPA}/{name}"):
            if node.startswith("vhost-vdpa-"):
                nodes[f"/dev/{node}"] = tuple(sysfs.functions_in(reader.link(f"{_VDPA}/{name}") or "")[-1:])
    folders = ("/dev/mapper", "/dev/md", *(f"/dev/disk/{kind}" for kind in reader.names("/dev/disk")))
    for path in (*(f"{folder}/{name}" for folder in folders for name in reader.names(folder)), *paths):
        target = reader.link(path) if path.startswith("/") else None
        if target is not None and path not in nodes:
            nodes[path] = (reader.link(target) or target,)
    return nodes


def functions_of(reader: Reader, paths: Sequence[str]) -> list[tuple[str, ...] | None]:
    """Return the PCI functions that each of these nodes and interfaces is on; None for one that cannot be told."""
    nodes = read_nodes(reader, paths) if paths else {}
    return [functions_under(nodes, path) for path in paths]


def _under(reader: Reader, place: str, depth: int = 0) -> set[str] | None:
    """Return the PCI functions that a device of a class is on, or all that it is made of; None if that is unknown."""
    real = reader.link(place)
    if real is None or depth > _DEEPEST:
        return None
    below = [f"{_BLOCK}/{name}" for name in reader.names(f"{place}/slaves")]
    below += [f"{sysfs.NET}/{name[6:]}" for name in reader.names(place) if name.startswith("lower_")]
    below += [f"{_BLOCK}/{name}" for name in _kernel_name(reader, reader.text(f"{place}/loop/backing_file"))]
    subsystem = re.match(r".*/nvme-subsystem/[^/]+", real)
    if subsystem:
        below += [f"{_NVME}/{name}" for name in reader.names(subsystem[0]) if re.fullmatch(_CONTROLLER, name)]
    if below:
        parts = [_under(reader, name, depth + 1) for name in below]
        return None if None in parts else set().union(*filter(None, parts))
    return None if re.search(_UNTOLD, real) else set(sysfs.functions_in(real)[-1:])


def block_uses(reader: Reader) -> dict[str, str]:
    """Return the block devices that are mounted, used for swap or by the kernel itself, by name and by "major:minor",
    with a text for each use.

    If the list of mounts cannot be read, this is a problem, because a disk that looks free could be given away.
    """
    mounts, info = _mounts(reader)
    if mounts is None and info is None:
        reader.problem("mounts unknown", MOUNTS, "absent; whether an NVMe drive is mounted is not known")
    uses: dict[str, str] = {}
    for words in (line.split() for line in (mounts or "").splitlines()):
        for source in words[0].split(":/") if len(words) > 1 and words[0].startswith("/dev/") else ():  # bcachefs: all
            uses.setdefault(source.lstrip("/")[4:], f"mounted on {words[1]}")
    for words in (line.split() for line in (info or "").splitlines()):
        if len(words) > 4:  # finds the root file system if mounts has /dev/root
            uses.setdefault(words[2], f"mounted on {words[4]}")
    for words in (line.split() for line in (reader.text("/proc/swaps") or "").splitlines()):
        if words and words[0].startswith("/dev/"):
            uses.setdefault(words[0][5:], "swap")
    for volume in reader.names(_BTRFS):  # mounted volumes; the mount names only one of several devices
        for name in reader.names(f"{_BTRFS}/{volume}/devices"):
            uses.setdefault(name, "part of a btrfs file system")
    for name, use in _kernel_uses(reader):
        uses.setdefault(name, use)
    return uses


def mounts_known(reader: Reader) -> bool:
    """Return whether the list of mounts could be read."""
    return any(text is not None for text in _mounts(reader))


def _mounts(reader: Reader) -> tuple[str | None, str | None]:
    """Return the list of mounts in its two forms, of which one is enough."""
    mounts = reader.text_once(MOUNTS)
    if mounts is None:
        mounts = reader.text_once("/proc/mounts")
    return mounts, reader.text_once("/proc/self/mountinfo")


def _kernel_uses(reader: Reader) -> Iterator[tuple[str, str]]:
    """Yield the disks and partitions that the kernel itself has open without a claim, by name, with a text.

    They have no holder in sysfs, no process has them open, and O_EXCL does not find them: drivers/block/loop.c
    (loop_configure keeps the file of losetup), drivers/nvme/target/io-cmd-bdev.c and passthru.c (opened without a
    holder), drivers/target/target_core_file.c (filp_open).
    """
    for name in reader.names(_BLOCK):
        if _LOOP.fullmatch(name):
            backing = reader.text(f"{_BLOCK}/{name}/loop/backing_file")
            yield from ((disk, f"is behind {name}") for disk in _kernel_name(reader, backing))
    for subsystem in reader.names(_EXPORTED):
        path = f"{_EXPORTED}/{subsystem}"
        use = f"exported over NVMe-oF as {subsystem}"
        for number in reader.names(f"{path}/namespaces"):
            yield from ((disk, use) for disk in _enabled(reader, f"{path}/namespaces/{number}"))
        for controller in _enabled(reader, f"{path}/passthru"):
            heads = map(namespace_of, reader.names(f"{_NVME}/{controller}"))
            yield from ((head, use) for head in heads if head)
    for kind in reader.names(_TARGETS):
        for name in reader.names(f"{_TARGETS}/{kind}") if kind.startswith("fileio_") else ():
            match = _FILE.search(reader.text(f"{_TARGETS}/{kind}/{name}/info") or "")
            yield from ((disk, f"exported over SCSI as {name}") for disk in _kernel_name(reader, match and match[1]))


def _enabled(reader: Reader, path: str) -> Iterable[str]:
    """Return the device of a namespace or controller of the kernel's NVMe target, unless it is not enabled."""
    return () if reader.text(f"{path}/enable") == "0" else _kernel_name(reader, reader.text(f"{path}/device_path"))


def _kernel_name(reader: Reader, path: str | None) -> Iterable[str]:
    """Return the kernel's name of a device node, also by a link to it as in /dev/disk."""
    if path is None or not path.startswith("/dev/"):
        return ()
    path = path.removesuffix(" (deleted)")
    return (reader.link_name(path) or path.removeprefix("/dev/"),)


def disk_uses(reader: Reader, disk: str, uses: Mapping[str, str]) -> list[str]:
    """Return why the host needs a disk or one of its partitions; `uses` is the result of `block_uses`."""
    partition = _partition(disk)
    names = [disk, *partitions(reader, disk)]
    reasons: list[str] = []
    for name in names:
        number = reader.text(f"{_BLOCK}/{name}/dev")
        use = uses.get(name) or uses.get(number or "")
        if use is not None:
            reasons.append(f"{name} {use}")
        reasons += [f"{name} held by {holder}" for holder in reader.names(f"{_BLOCK}/{name}/holders")]
        reasons += [f"{name} part of the ZFS pool {pool}" for pool in _pools(reader, number)]
    # A mounted partition counts even if sysfs does not list the drive's partitions.
    reasons += [f"{name} {use}" for name, use in uses.items() if name not in names and partition.fullmatch(name)]
    return reasons


def _pools(reader: Reader, number: str | None) -> list[str]:
    """Return the imported ZFS pool of a disk or partition: sysfs shows no holder for a disk that ZFS has opened.

    Uses what udev has read from its label (/run/udev/data, ID_FS_TYPE), and the pools that OpenZFS lists.
    """
    imported = reader.names("/proc/spl/kstat/zfs") if number else []
    if not imported:
        return []
    rows = (line.partition("=") for line in (reader.text(f"/run/udev/data/b{number}") or "").splitlines())
    known = {name: value for name, _, value in rows}
    if known.get("E:ID_FS_TYPE") != "zfs_member":
        return []
    return [pool for pool in imported if pool == known.get("E:ID_FS_LABEL")]
