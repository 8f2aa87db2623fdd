"""System → what was kept of GPUs before vfio-pci took them, and which guests have started with them since.

Starts are recorded by libvirt itself, in the log of each guest ("starting up", then the command line: qemu_process.c,
qemuLogOperation), and by hosttune's hook of libvirt where it is installed (`hosttune.model.starts`).
"""

from __future__ import annotations

import io
import lzma
import os
import re
import zlib
from collections.abc import Iterable

import msgspec

from hosttune.discovery.fabric import kept_gpus
from hosttune.errors import BadInput
from hosttune.machine.archive import unpacked
from hosttune.machine.reader import Reader
from hosttune.machine.system import KEPT_GPUS, STATE_INSIDE, state_directory
from hosttune.model.clock import now_text, seconds_of
from hosttune.model.evidence import GuestRun, Look
from hosttune.model.host import Host
from hosttune.model.jsontext import typed_json
from hosttune.model.pci import for_vfio
from hosttune.model.starts import GUEST, STARTS
from hosttune.model.values import to_json

RUNS = "guest-runs"  # name of the query
LOGS = "/var/log/libvirt/qemu"
_MOST = 64 << 20  # bytes of a log; virtlogd keeps 2 MiB
_LOG = re.compile(r"(.+)\.log(?:[.-][0-9]{1,8}(?:\.(?:gz|bz2|xz))?)?")
_START = re.compile(r"^([0-9]{4}-[0-9]{2}-[0-9]{2}) ([0-9:]{8})\.[0-9]{3}\+0000: starting up", re.MULTILINE)
# Older libvirt, such as RHEL 7's, writes no domain 0.
_DEVICE = re.compile(r'(?:"host":"|[,\s]host=)((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])')


def read_looks(reader: Reader, host: Host) -> dict[str, Look] | None:
    """Return the last look at each GPU that was looked at, by address; None if what was kept cannot be read."""
    if not _in_guests(host):
        return {}
    known, path = len(reader.problems), f"{STATE_INSIDE}/{KEPT_GPUS}"
    not_root = not reader.system.captured and state_directory() != STATE_INSIDE
    if not_root and not os.environ.get("HOSTTUNE_STATE") and reader.exists(path):
        reader.problem("unreadable", path, "only root may read it")
    kept = kept_gpus(reader)
    if len(reader.problems) > known:
        return None
    looks, now = {}, seconds_of(reader.query("time", now_text) or now_text()) or 0.0  # a capture's is when it was made
    for address, record in kept.items():
        if isinstance(record, dict) and record.get("look") is not None:
            try:
                look = msgspec.convert(record["look"], Look)
            except msgspec.ValidationError as error:
                reader.problem("unreadable", f"{path}: {address}", str(error))
                continue
            at = seconds_of(look.at)
            if at is None or at > now:  # the clock was set back: starts of guests cannot be compared with it
                why = f"its look is of {look.at[:40]}, later than this host's clock"
                reader.problem("unreadable", f"{path}: {address}", why)
            else:
                looks[address] = look
    return looks


def read_guest_runs(reader: Reader, host: Host) -> tuple[GuestRun, ...] | None:
    """Return the recorded starts of guests with functions of this host; None if the records cannot be read.

    Where no GPU is on vfio-pci, nothing is read. Of logs that were rotated, those compressed by zstd are not read.
    """
    if not _in_guests(host):
        return ()
    if reader.system.scratch:
        guest_runs = _recorded(reader, STATE_INSIDE)
        return None if guest_runs is None else tuple(guest_runs)

    def live() -> str | None:
        runs = _recorded(reader, state_directory())
        return None if runs is None or not (runs or reader.exists(LOGS)) else to_json(runs)  # libvirt makes it

    text = reader.query(RUNS, live)
    try:
        return None if text is None else typed_json(text, tuple[GuestRun, ...])
    except BadInput as error:
        reader.problem("starts of guests not understood", RUNS, error.what)
        return None


def _in_guests(host: Host) -> bool:
    return any(device.is_display and for_vfio(device.driver) for device in host.pci)


def _recorded(reader: Reader, folder: str) -> list[GuestRun] | None:
    known = len(reader.problems)
    runs = list(_of_hook(reader.text(f"{folder}/{STARTS}") or ""))
    for name in reader.names(LOGS):
        log = _LOG.fullmatch(name)
        if log is not None:
            # The text of a log, which logrotate may have compressed; a part of it is a problem
            path = f"{LOGS}/{name}"
            try:
                data = unpacked(io.BytesIO(reader.data(path) or b"")).read(_MOST + 1)
            except (lzma.LZMAError, zlib.error, EOFError, OSError) as error:
                data = b""
                reader.problem("unreadable", path, str(error))
            if len(data) > _MOST:
                reader.problem("unreadable", path, f"more than {_MOST >> 20} MiB")
            runs += of_log(log[1], data.decode("utf-8", "replace"))
    return None if len(reader.problems) > known else runs


def of_log(guest: str, text: str) -> Iterable[GuestRun]:
    """Yield the starts in libvirt's log of a guest, with the functions on QEMU's command line."""
    begun = list(_START.finditer(text))
    ends = [*(match.start() for match in begun[1:]), len(text)]
    for match, end in zip(begun, ends, strict=False):
        named = _DEVICE.findall(text, match.end(), end)
        devices = tuple(dict.fromkeys(name if name.count(":") == 2 else f"0000:{name}" for name in named))
        if devices:
            yield GuestRun(guest=guest, at=f"{match[1]}T{match[2]}", devices=devices, source=LOGS)


def _of_hook(text: str) -> Iterable[GuestRun]:
    for line in text.splitlines():
        words = line.split(" ", 3)
        if len(words) == 4 and words[1] == GUEST:
            yield GuestRun(guest=words[3], at=words[2], devices=(words[0],), source=STARTS)
