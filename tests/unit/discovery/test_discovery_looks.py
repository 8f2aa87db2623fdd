"""Kept looks, and starts of guests in libvirt's logs and the hook's record."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hosttune.discovery.looks import LOGS, of_log, read_guest_runs, read_looks
from hosttune.journal.gpus import keep_gpus
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.machine.scratch import Scratch
from hosttune.model.evidence import GuestRun, Look
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, PciDevice

GPU = "0000:41:00.0"
STATE = "/var/lib/hosttune"
STARTS = f"{STATE}/handover/starts"
# libvirt 9.0 and 7.0 write the device differently.
LOG = """2026-11-26 15:00:00.123+0000: starting up libvirt version: 9.0.0, package: 9.0.0-4, qemu version: 7.2.9
/usr/bin/qemu-system-x86_64 \\
-name guest=alice,debug-threads=on \\
-device '{"driver":"vfio-pci","host":"0000:41:00.0","id":"hostdev0","bus":"pci.5","addr":"0x0"}' \\
2026-11-26T18:00:00.000000Z qemu-system-x86_64: terminating on signal 15 from pid 1 (libvirtd)
2026-11-26 18:00:00.500+0000: shutting down, reason=shutdown
2026-11-27 08:00:00.001+0000: starting up libvirt version: 7.0.0, package: 3, qemu version: 5.2.0
-device vfio-pci,host=0000:41:00.0,id=hostdev0,bus=pci.5,addr=0x0 \\
2026-11-28 08:00:00.001+0000: starting up libvirt version: 9.0.0
-device '{"driver":"virtio-net-pci","netdev":"hostnet0"}' \\
"""


def host(driver: str = "vfio-pci", **more: Any) -> Host:
    functions = PciDevice(address=GPU, class_code="030200", vendor_id="10de", device_id="2335", driver=driver)
    return Host(pci=(functions,), gpus=(Gpu(address=GPU, vendor="nvidia", **more),), boot_id="b")


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        (root / name[1:]).write_text(text)
    return root


def scratch(tmp_path: Path, files: dict[str, str]) -> Reader:
    return Reader(Scratch(str(put(tmp_path, {"/.hosttune/scratch": "", **files}))))


def test_starts_in_libvirts_log_of_a_guest() -> None:
    one: dict[str, Any] = {"guest": "alice", "devices": (GPU,), "source": LOGS}
    assert list(of_log("alice", LOG)) == [
        GuestRun(at="2026-11-26T15:00:00", **one),
        GuestRun(at="2026-11-27T08:00:00", **one),
    ]


def test_every_record_of_starts_is_read(tmp_path: Path) -> None:
    starts = f"{GPU} guest 2026-11-26T15:00:00Z al ice\n{GPU} hand-over 2026-11-25T15:00:00Z \n0 function x y\n"
    files = {f"{LOGS}/alice.log": "", f"{LOGS}/alice.log.1": LOG, f"{LOGS}/old.log.2.gz": "x", STARTS: starts}
    found = read_guest_runs(scratch(tmp_path, files), host()) or ()
    assert sorted((run.guest, run.at[:19], run.source) for run in found) == [
        ("al ice", "2026-11-26T15:00:00", "handover/starts"),
        ("alice", "2026-11-26T15:00:00", LOGS),
        ("alice", "2026-11-27T08:00:00", LOGS),
    ]
    assert read_guest_runs(scratch(tmp_path, files), host("nvidia")) == ()


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("alice.log.2.gz", gzip.compress),
        ("alice.log-20261126.gz", gzip.compress),
        ("alice.log.2.xz", lzma.compress),
        ("alice.log.2.bz2", bz2.compress),
        ("alice.log-20261126", bytes),
    ],
)
def test_logs_that_logrotate_has_moved_are_read(tmp_path: Path, name: str, packed: Callable[[bytes], bytes]) -> None:
    reader = scratch(tmp_path, {f"{LOGS}/alice.log": ""})
    path = tmp_path / LOGS[1:] / name
    path.write_bytes(packed(LOG.encode()))
    assert [run.guest for run in read_guest_runs(reader, host()) or ()] == ["alice", "alice"]
    if packed is not bytes:
        path.write_bytes(path.read_bytes()[:-20])
        assert read_guest_runs(reader, host()) is None


class Live(Capture):
    """A machine that is asked itself."""

    captured = False

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        return live()


def test_without_the_folder_of_libvirts_logs_it_is_not_known_which_guests_ran(tmp_path: Path) -> None:
    assert read_guest_runs(Reader(Live(str(tmp_path))), host()) is None
    put(tmp_path, {f"{LOGS}/alice.log": ""})
    reader = Reader(Live(str(tmp_path)))
    assert (read_guest_runs(reader, host()), reader.problems) == ((), [])


def test_older_libvirt_writes_no_domain() -> None:
    (run,) = of_log("a", "2026-11-26 15:00:00.123+0000: starting up\n-device vfio-pci,host=41:00.0,id=hostdev0 \\\n")
    assert run.devices == (GPU,)


def test_without_its_record_a_capture_does_not_know_the_starts(tmp_path: Path) -> None:
    answer = "/.hosttune/commands/guest-runs"
    assert read_guest_runs(Reader(Capture(str(put(tmp_path / "a", {"/proc/version": ""})))), host()) is None
    run = GuestRun(guest="alice", at="2026-11-26T15:00:00", devices=(GPU,), source=LOGS)
    told = put(tmp_path / "b", {answer: msgspec.json.encode([run]).decode()})
    assert read_guest_runs(Reader(Capture(str(told))), host()) == (run,)
    broken = Reader(Capture(str(put(tmp_path / "c", {answer: "[3]"}))))
    assert read_guest_runs(broken, host()) is None
    assert [problem.what for problem in broken.problems] == ["starts of guests not understood"]


LOOK = Look(at="2025-11-26T14:03:00+00:00", boot_id="b", device="10de:2335", uuid="u")


def test_a_look_is_kept_beside_who_the_gpu_is_and_read_again(tmp_path: Path) -> None:
    reader = scratch(tmp_path, {})
    folder = str(tmp_path) + STATE
    keep_gpus(folder, host("nvidia", uuid="u", module_id=3), {GPU: LOOK})
    keep_gpus(folder, host())  # by an apply, when vfio-pci has it: nothing of it is lost
    assert read_looks(reader, host()) == {GPU: LOOK}
    assert read_looks(reader, host("nvidia")) == {}
    keep_gpus(folder, host("nvidia", uuid="another"))
    assert read_looks(reader, host()) == {}


@pytest.mark.parametrize("text", ["{", "3"])
def test_what_was_kept_and_cannot_be_read_is_unknown(tmp_path: Path, text: str) -> None:
    assert read_looks(scratch(tmp_path, {f"{STATE}/gpus.json": text}), host()) is None


def test_a_look_that_is_not_understood_is_none(tmp_path: Path) -> None:
    reader = scratch(tmp_path, {f"{STATE}/gpus.json": json.dumps({GPU: {"look": {"at": 3}}})})
    assert read_looks(reader, host()) == {}
    assert [problem.where for problem in reader.problems] == [f"{STATE}/gpus.json: {GPU}"]


@pytest.mark.parametrize("at", ["2999-01-01T00:00:00+00:00", "yesterday"])
def test_a_look_of_a_later_time_than_the_clock_does_not_count(tmp_path: Path, at: str) -> None:
    """The clock was set back: the times of guests that started since are before it."""
    reader = scratch(tmp_path, {})
    keep_gpus(str(tmp_path) + STATE, host("nvidia"), {GPU: Look(at=at)})
    assert read_looks(reader, host()) == {}
    assert [problem.where for problem in reader.problems] == [f"{STATE}/gpus.json: {GPU}"]


@pytest.mark.parametrize(("made", "looked"), [("2026-11-26T14:04:00Z", True), ("2025-01-01T00:00:00Z", False)])
def test_the_clock_of_a_capture_is_when_it_was_made(tmp_path: Path, made: str, looked: bool) -> None:
    kept = json.dumps({GPU: {"look": msgspec.to_builtins(LOOK)}})
    put(tmp_path, {"/.hosttune/commands/kept-gpus": kept, "/.hosttune/commands/time": made})
    assert bool(read_looks(Reader(Capture(str(tmp_path))), host())) is looked
