"""System → every QEMU process that runs, whoever started it: its options, threads, memory and open IOMMU groups.

proc(5): cmdline, fd, cgroup, task/*/comm and status, numa_maps. The options, the names of open groups and the manager
are one query, because a command line and a configuration file hold secrets: its answer has only what is read of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
from msgspec.structs import replace

from hosttune.discovery.processes import numa_maps, parse_maps, read_threads
from hosttune.discovery.qemu import qemu_processes
from hosttune.domain.running import Running
from hosttune.errors import BadInput
from hosttune.linux.qemuline import Option, read_options
from hosttune.machine.reader import Reader
from hosttune.model.jsontext import recorded_json
from hosttune.model.values import Value, to_json

RUNNING = "qemu-running"
_MOST_OPEN = 65_536  # descriptors of one process that are looked at
_NODES = re.compile(r"^Mems_allowed_list:\s*([0-9,-]+)\s*$", re.MULTILINE)
_LARGE = re.compile(" N[0-9]{1,4}=[0-9]{4}| huge ")  # mappings of 1,000 pages, or huge ones
# Who starts QEMU so, by its arguments and its control group; the first that fits. `id` is what its commands ask for.
_MANAGERS = (
    ("Proxmox", re.compile(r"/run/qemu-server/([0-9]+)\.")),
    ("Kata", re.compile(r"\bsandbox-([0-9a-f]{8,64})|/run/(?:vc|kata)/")),
    ("Incus", re.compile(r"/incus/(?:[^\0/]*/){0,6}?(?:[^/\0_]*_)?([^/\0]+)/qemu\.")),
    ("LXD", re.compile(r"/lxd/(?:[^\0/]*/){0,6}?(?:[^/\0_]*_)?([^/\0]+)/qemu\.")),
    ("OpenNebula", re.compile(r"\bguest=one-([0-9]+)\b")),
    ("OpenStack Nova", re.compile(r"\bguest=(instance-[0-9a-f]{8})\b")),
    ("KubeVirt", re.compile(r"(?:/run/|[-_/])kubevirt()")),
    ("libvirt", re.compile(r"/libvirt/qemu|machine-qemu")),
)
# What is kept: a command line and a file that it names have secrets, too.
_KEPT = frozenset(
    ["accel", "bios", "blockdev", "cdrom", "cpu", "device", "drive", "enable-kvm", "fw_cfg", "global", "hda", "hdb",
     "m", "machine", "mem-path", "mem-prealloc", "net", "netdev", "nic", "no-acpi", "numa", "object", "overcommit",
     "pflash", "smp", "uuid"]
)  # fmt: skip
_OBJECTS = ("memory-backend", "iothread", "sev-", "tdx-")
_SECRET = re.compile(r"serial|mac|conf|.*fwd|.*(?:secret|passw|key|user|server|cookie|url).*")
_REMOTE = re.compile(r"([a-z0-9+]{2,12}):.*", re.DOTALL)  # a disk that is not a file may have its key in its name
_FILES = re.compile(r"|(?:.*\.)?file(?:name)?")


class Process(Value, frozen=True, kw_only=True):
    """A process in the answer of the query. `manager` None: a shell, or a program that is not known."""

    pid: int
    name: str
    program: str
    manager: str | None = None
    manager_id: str | None = None
    options: tuple[Option, ...] = ()
    unread: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


def read_running(reader: Reader) -> tuple[tuple[Process, Running], ...] | None:
    """Return every QEMU that runs, by its id; None if the capture does not say which there are. Raises BadInput."""
    answer = reader.query(RUNNING, lambda: to_json(tuple(_processes(reader))))
    if answer is None:
        return None
    return tuple((process, _running(reader, process)) for process in _decoded(answer))


def _decoded(answer: str) -> tuple[Process, ...]:
    plain = recorded_json(answer, where=RUNNING)
    try:
        return msgspec.convert(plain, tuple[Process, ...])
    except msgspec.ValidationError as error:
        raise BadInput(str(error), where=RUNNING, hint="make the capture again") from error


def _processes(reader: Reader) -> Iterator[Process]:
    for pid, name in qemu_processes(reader):
        words = (reader.text(f"/proc/{pid}/cmdline") or "").split("\0")
        if not words[0]:
            continue  # it has ended
        options, unread = read_options(words[1:], partial(_config, reader, pid))
        whole = "\0".join(words) + "\n" + (reader.text(f"/proc/{pid}/cgroup") or "")
        manager = next((found for found in ((who, form.search(whole)) for who, form in _MANAGERS) if found[1]), None)
        opened = (
            reader.link(f"/proc/{pid}/fd/{number}") or "" for number in reader.names(f"/proc/{pid}/fd")[:_MOST_OPEN]
        )
        groups = {_group(reader, path) for path in opened if path.startswith("/dev/vfio/")} - {""}
        yield Process(
            pid=pid,
            name=name or f"process {pid}",
            program=words[0].rpartition("/")[2],
            manager=manager[0] if manager else None,
            manager_id=next(filter(None, manager[1].groups()), None) if manager and manager[1] else None,
            options=tuple(filter(None, map(_kept, options))),
            unread=unread,
            groups=tuple(sorted(groups)),
        )


def _group(reader: Reader, path: str) -> str:
    """Return the IOMMU group of an open node of VFIO; "" if it is none: iommufd opens the device itself (vfio7)."""
    name = path.rpartition("/")[2]
    if path.startswith("/dev/vfio/devices/"):
        return reader.link_name(f"/sys/class/vfio-dev/{name}/device/iommu_group") or ""
    return name if name.isdecimal() else ""


def _config(reader: Reader, pid: int, path: str) -> str | None:
    """Return the text of a file as the process sees it: its mounts may be others than those of the host."""
    return reader.text(f"/proc/{pid}/root{path}") if path.startswith("/") else None


def _kept(option: Option) -> Option | None:
    """Return of an option what is read; None for one of which nothing is."""
    hidden = option.name == "object" and not option.get("qom-type").startswith(_OBJECTS)
    if option.name not in _KEPT or hidden or (option.name == "fw_cfg" and "opt/ovmf/" not in option.get("name")):
        return None
    values = {key: value for key, value in option.values.items() if not _SECRET.fullmatch(key)}
    files = {key: _REMOTE.sub(r"\1:", value) for key, value in values.items() if _FILES.fullmatch(key)}
    return Option(option.name, values | (files if option.name not in ("global", "uuid") else {}))


def strip_running(answer: str, scrub_node: Callable[[str], str], scrub_words: Callable[[str], str]) -> str | None:
    """Return the answer without the names of disks and files, for a capture; None if it is not one."""

    def place(option: Option, key: str, value: str) -> str:
        if not _FILES.fullmatch(key) or option.name in ("global", "uuid", "bios", "pflash", "mem-path"):
            return value
        return scrub_node(value) if value.startswith("/dev/") else scrub_words(value)

    try:
        processes = _decoded(answer)
    except BadInput:
        return None
    return to_json(
        tuple(
            replace(
                process,
                options=tuple(
                    Option(option.name, {key: place(option, key, value) for key, value in option.values.items()})
                    for option in process.options
                ),
                unread=tuple(map(scrub_words, process.unread)),
            )
            for process in processes
        )
    )


def _running(reader: Reader, process: Process) -> Running:
    pid = process.pid
    text = numa_maps(reader, pid)
    maps, unread = parse_maps("\n".join(filter(_LARGE.search, text.splitlines())) or text)
    maps = maps if unread is None else []
    most = max(maps, key=lambda mapped: sum(mapped.pages.values()) * (mapped.page_bytes or 0), default=None)
    nodes = _NODES.search(reader.text(f"/proc/{pid}/task/{pid}/status") or "")
    return Running(
        name=process.name,
        program=process.program,
        title=reader.text(f"/proc/{pid}/task/{pid}/comm") or "",
        options=process.options,
        unread=process.unread,
        groups=process.groups,
        threads=read_threads(reader, pid),
        policy=most.policy if most else None,
        nodes=nodes[1] if nodes else None,
        page_bytes=tuple(sorted({mapped.page_bytes for mapped in maps if mapped.huge and mapped.page_bytes}))
        if maps
        else None,
    )
