"""System → health that hardware and kernel report: kernel log, AER and EDAC counters, drives, clock. Read only.

A capture must hold, as far as the host has them, /proc/meminfo, /proc/uptime, `aer_dev_correctable`, `aer_dev_nonfatal`
and `aer_dev_fatal` of the PCI functions, `ue_count`, `ce_count`, `size_mb` and `mc_name` of the memory controllers,
`state` and `hwmon*` below /sys/class/nvme, and the answers `kernel-log`, `nvme-smart-log-NAME` and `adjtimex`.
"""

from __future__ import annotations

import ctypes
import json
import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from hosttune.discovery.kernellog import read_kernel_log
from hosttune.discovery.ports import read_ports
from hosttune.errors import BadInput, CommandFailed
from hosttune.gpu import read_gpus
from hosttune.machine.reader import Reader, number
from hosttune.model import sysfs
from hosttune.model.counters import LATER, counted, errors_in
from hosttune.model.evidence import Evidence, Health
from hosttune.model.host import Host
from hosttune.model.jsontext import recorded_json, typed_json
from hosttune.model.validation import Counted
from hosttune.model.values import MAX_SIZE, to_json

_DEVICES = sysfs.PCI_DEVICES
_NVME = "/sys/class/nvme"
_MEMINFO = "/proc/meminfo"
_EDAC = "/sys/devices/system/edac/mc"
_AMD = re.compile(r"F[0-9A-Fa-f]{2}h(_M[0-9A-Fa-f]{2,3}h)?")  # ctl_name, drivers/edac/amd64_edac.c
_CONTROLLER = re.compile(r"nvme[0-9]{1,5}")
# Source: Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats. The last line of each file is its total.
_AER = (
    ("correctable", "aer_dev_correctable", "TOTAL_ERR_COR"),
    ("nonfatal", "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
    ("fatal", "aer_dev_fatal", "TOTAL_ERR_FATAL"),
)
_AGAIN_SECONDS = 3.0
_MOST_ROWS = 128  # a register has 32 bits, and the file one more row
# Fields of `nvme smart-log -o json` (nvme-cli; NVMe base specification, SMART / Health Information log).
_COUNT = re.compile(r"[0-9]{1,39}")  # nvme-cli 2.3 writes numbers of 128 bits as text: "media_errors":"0"
_SMART = ("critical_warning", "media_errors", "percent_used", "percentage_used", "avail_spare", "spare_thresh")
_SMART_SECONDS = 10.0
_CLOCK = "adjtimex"
_STA_UNSYNC = 0x40  # linux/timex.h
_PERCENTAGES = ("avail_spare", "spare_thresh")  # "normalized percentage (0% to 100%)"


def read_health(reader: Reader, host: Host) -> Health:
    """Return the health that the machine reports. Fields that could not be read are None (see Health)."""
    known = read_log(reader)
    # STA_UNSYNC of adjtimex(2), which chrony, ntpd, systemd-timesyncd and phc2sys all clear
    clock = re.fullmatch(r"status ([0-9]{1,9}) maxerror ([0-9]{1,15})\s*", reader.query(_CLOCK, _ask_clock) or "")
    return msgspec.structs.replace(
        known,
        edac=_edac(reader, host),
        corrupted_bytes=_corrupted(reader),
        aer=_aer(reader, host, recorded=known.uptime_seconds is not None),
        disks=_disks(reader, host),
        time_synchronised=None if clock is None else not int(clock[1]) & _STA_UNSYNC,
        time_source=None if clock is None else "adjtimex(2)",
        time_error_seconds=None if clock is None else int(clock[2]) / 1e6,
    )


def read_log(reader: Reader) -> Health:
    """Return what the kernel log says of this boot, and how long it is; nothing else."""
    log = read_kernel_log(reader)
    return Health(
        events=None if log is None else log.events,
        events_since=None if log is None else log.since,
        events_source=None if log is None else log.source,
        events_unread=0 if log is None else log.unread,
        events_links=log is not None and log.links,
        uptime_seconds=_uptime(reader),
    )


def _corrupted(reader: Reader) -> int | None:
    """Return the bytes of memory that the kernel has found corrupted: HardwareCorrupted of /proc/meminfo, in kB.

    Source: Documentation/filesystems/proc.rst. A kernel without CONFIG_MEMORY_FAILURE has no such line and finds none.
    """
    text = reader.text(_MEMINFO)
    if not text or "MemTotal:" not in text:
        return None
    sizes = re.findall(r"(?m)^HardwareCorrupted:(.*)$", text)
    amounts = {number(words.removesuffix(" kB").strip(), MAX_SIZE >> 10) for words in sizes}
    if not sizes:
        return 0
    amount = amounts.pop() if len(amounts) == 1 else None
    if amount is None:
        reader.problem("not an amount of memory", _MEMINFO, f"HardwareCorrupted reads {sizes[0].strip()[:40]!r}")
        return None
    return amount << 10


def _uptime(reader: Reader) -> float | None:
    """Return the seconds since boot: the first number of /proc/uptime (proc(5))."""
    word = (reader.text("/proc/uptime") or "").split(" ", 1)[0]
    return float(word) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", word) else None


def read_counted_later(reader: Reader, evidence: Evidence) -> Counted | None:
    """Return the counters of errors a second time, some seconds later, so that growth shows; None: all are 0."""
    host = evidence.host

    def again() -> str | None:
        if not errors_in(counted(evidence)):
            return None
        time.sleep(_AGAIN_SECONDS)
        anew = Reader(reader.system)
        later = Evidence(
            host=Host(gpus=read_gpus(anew, host.pci)),
            health=Health(uptime_seconds=_uptime(anew), aer=_aer(anew, host, recorded=True), edac=_edac(anew, host)),
            ports=read_ports(anew, host),
        )
        return to_json(counted(later))

    text = reader.query(LATER, again)
    if text is None:
        return None
    try:
        return typed_json(text, Counted)
    except BadInput as error:
        reader.problem("unreadable", LATER, error.what)
        return None


# --- AER -----------------------------------------------------------------------------------------------------


def _aer(reader: Reader, host: Host, *, recorded: bool) -> dict[str, dict[str, int]] | None:
    """Return error counts by address.

    None if a capture holds no counts and may have lost them, or was not made for a validation.
    """
    files = {device.address: _aer_files(reader, device.address) for device in host.pci}
    counters = {address: counts for address, of in files.items() if (counts := _aer_of(of))}
    return counters if counters or (reader.system.complete and recorded) else None


def _aer_files(reader: Reader, address: str) -> dict[str, dict[str, int | None]]:
    """Return the rows of one function's files by kind: a count by word, None for one that is not a count."""
    aer_files: dict[str, dict[str, int | None]] = {}
    for kind, name, _ in _AER:
        path = f"{_DEVICES}/{address}/{name}"
        rows = [line.rpartition(" ") for line in (reader.text(path) or "").splitlines() if line]
        if len(rows) > _MOST_ROWS:
            reader.problem("not AER counts", path, f"{len(rows)} rows: no kernel has so many")
            rows = []
        amounts = {word[:40]: number(value) for word, _, value in rows}
        for word, amount in amounts.items():
            if amount is None:
                reader.problem("not a count", path, f"{word!r} has none")
        if amounts:
            aer_files[kind] = amounts
    return aer_files


def _aer_of(files: Mapping[str, Mapping[str, int | None]]) -> dict[str, int]:
    """Return the counts of one function. A kind whose file is absent or cannot be read completely is left out."""
    counts: dict[str, int] = {}
    for kind, _, last in _AER:
        amounts = files.get(kind, {})
        total = amounts.get(last)
        known = {word: n for word, n in amounts.items() if n and not word.startswith("TOTAL_ERR")}
        if total is not None and None not in amounts.values():
            counts[kind] = total
        elif known:  # the total, or a row, was cut off
            counts[kind] = max(known.values())
        counts |= {f"{kind}:{word}": n for word, n in known.items()}
    return counts


# --- memory --------------------------------------------------------------------------------------------------


def _edac(reader: Reader, host: Host) -> dict[str, dict[str, int | None]] | None:
    """Return uncorrected and corrected errors of each memory controller that has an EDAC driver; {} if there is none.

    Source: Documentation/ABI/testing/sysfs-devices-edac, ue_count and ce_count. The controllers are numbered from 0. If
    a number is missing and the controller is not proven to be absent, it was lost, and its counts are None. If the
    others are too few for this host, it is the one with the next number.
    """
    names = reader.listing(_EDAC)
    if names is None:
        return None
    matches = (re.fullmatch(r"mc(0|[1-9][0-9]{0,3})", name) for name in names)
    there = {int(match[1]) for match in matches if match}
    lost = {n for n in range(max(there, default=0)) if n not in there and not reader.lacks(f"{_EDAC}/mc{n}")}
    if why := _too_few(reader, sorted(there), host):
        reader.problem("memory controllers missing", _EDAC, why)
        lost.add(max(there) + 1)
    return {
        f"mc{n}": {kind: reader.count(f"{_EDAC}/mc{n}/{kind}_count") for kind in ("ue", "ce")}
        for n in sorted(there | lost)
    }


def _too_few(reader: Reader, there: list[int], host: Host) -> str | None:
    """Return why there must be more memory controllers than these; None if nothing shows it, or if there is none.

    Sizes are compared with the memory of nodes that have CPUs, which is always less than what is installed: other nodes
    are GPUs or CXL devices. AMD's driver has a controller for each node of a package, and counts DIMMs of 48 and 96 GB
    too small (drivers/edac/amd64_edac.c), so packages are compared there.
    """
    names = [reader.text(f"{_EDAC}/mc{n}/mc_name") for n in there]
    sizes = [reader.count(f"{_EDAC}/mc{n}/size_mb") for n in there]
    if there and all(name is not None and _AMD.fullmatch(name) for name in names):
        packages = len({cpu.package for cpu in host.cpus if cpu.package is not None})
        return f"{len(there)} for {packages} CPU packages" if len(there) < packages else None
    known = [size for size in sizes if size is not None]
    if not any(known):
        return None
    if len(known) < len(there):
        return "the size of one could not be read"
    memory = sum(node.memory_bytes or 0 for node in host.numa_nodes if node.kind == "cpu")
    less = sum(known) << 20 < memory
    return f"those there have {sum(known)} MiB, the nodes with CPUs {memory >> 20}" if less else None


# --- disks ---------------------------------------------------------------------------------------------------


def _disks(reader: Reader, host: Host) -> dict[str, dict[str, str]]:
    """Return facts of each NVMe drive as text, by address: state, temperature, alarm, fields of its SMART log."""
    disks: dict[str, dict[str, str]] = {}
    for drive in host.nvme:
        name = drive.controller
        if name is not None and _CONTROLLER.fullmatch(name):
            # The composite temperature in degrees Celsius and its alarm (drivers/nvme/host/hwmon.c). sysfs has
            # millidegrees. The driver creates both files, in one monitor. If there are several monitors, the
            # worst value of each counts. If a temperature has no alarm, or an empty one, the alarm is "not
            # read".
            inner = _monitors(reader, f"{_NVME}/{name}")
            places = [place for folder in inner for place in (folder, *_monitors(reader, folder))]
            degrees: list[int] = []
            alarms: list[str] = []
            for place in places:
                value = reader.integer(f"{place}/temp1_input")
                alarm = reader.text(f"{place}/temp1_alarm")
                degrees += [] if value is None else [value]
                alarms += [] if value is None and alarm is None else [alarm or "not read"]
            readings = {"temperature_c": f"{max(degrees) / 1000:g}"} if degrees else {}
            if alarms:
                readings["alarm"] = max(alarms, key=lambda alarm: (alarm == "1", alarm != "0"))
            words = {"state": reader.text(f"{_NVME}/{name}/state") or "", **readings}
            words |= _smart(reader, name)
            disks[drive.address] = {key: value for key, value in words.items() if value}
    return disks


def _monitors(reader: Reader, folder: str) -> list[str]:
    """Return the folders of hardware monitors in a folder: "hwmon3", or those inside "hwmon"."""
    return [f"{folder}/{name}" for name in reader.names(folder) if re.fullmatch(r"hwmon[0-9]*", name)]


def _smart(reader: Reader, controller: str) -> dict[str, str]:
    """Return the fields of the drive's SMART log as text (nvme-cli), or `smart` with the reason why there are none."""
    text = reader.query(f"nvme-smart-log-{controller}", lambda: _ask_smart(reader, controller))
    if text is None:
        return {}
    try:
        document: Any = recorded_json(text, where=controller)
    except BadInput:
        document = None
    if not isinstance(document, dict):
        return {"smart": "not understood"}
    if isinstance(document.get("error"), str):
        return {"smart": document["error"][:120]}
    words = {name: str(document.get(name)) for name in _SMART}
    words = {name: word for name, word in words.items() if _COUNT.fullmatch(word)}
    return {name: word for name, word in words.items() if name not in _PERCENTAGES or int(word) <= 100}


def _ask_smart(reader: Reader, controller: str) -> str:
    """Return the log as JSON, or {"error": reason}. The reason "not installed" means that the tool is absent.

    So a missing tool is not confused with a drive that fails.
    """
    argv = ("nvme", "smart-log", f"/dev/{controller}", "--output-format=json")
    try:
        return reader.system.run(argv, timeout=_SMART_SECONDS)
    except CommandFailed as error:
        lines = error.output.strip().splitlines() or [error.reason]
        return json.dumps({"error": lines[0] if error.reason.startswith("exit") else error.reason})


# --- clock ---------------------------------------------------------------------------------------------------


def _ask_clock() -> str | None:
    """Call `adjtimex` with modes 0, which only reads. Returns "status N maxerror MICROSECONDS"."""

    class Timex(ctypes.Structure):
        """The first fields of struct timex (linux/timex.h), with space for the rest."""

        _fields_ = (
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_long * 40),
        )

    clock = Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(clock)) < 0:
        return None
    return f"status {clock.status} maxerror {max(clock.maxerror, 0)}\n"
