"""The hook of libvirt: what the script records and refuses, how epochs are counted, and whether libvirt calls it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.clock import now_text
from hosttune.errors import CommandFailed, Unreadable
from hosttune.libvirthook import PLACE, hook_text, recording_of
from hosttune.model.quarantine import DeviceRecord
from hosttune.register import record_devices
from hosttune.starts import QUARANTINED, STARTS, count_starts, quarantine_list, start_line
from hosttune.system import System

GPU, VF, OTHER = "0000:41:00.0", "0000:41:00.4", "10000:c1:1f.7"
XML = """<domain type='kvm'><name>vm</name><devices>
  <disk type='file'><source file='/x'/>
    <address type='pci' domain='0x0000' bus='0x09' slot='0x00' function='0x0'/></disk>
  <hostdev mode='subsystem' type='pci' managed='yes'><driver name='vfio'/>
    <source><address domain='0x0000' bus='0x41' slot='0x00' function='0x0'/></source>
    <address type='pci' domain='0x0000' bus='0x07' slot='0x02' function='0x0'/></hostdev>
  <hostdev mode='subsystem' type='usb'><source><address bus='1' device='3'/></source></hostdev>
  <interface type='hostdev'>
    <source>
      <address type="pci" domain="0x10000" bus="0xC1" slot="0x1f" function="0x7"/>
    </source>
  </interface></devices></domain>"""
PLAIN = XML[: XML.index("  <hostdev")] + "</devices></domain>"
UNCLEAR = (
    "<domain><devices><hostdev><source><address domain='0x0000' bus='0x41'/></source></hostdev></devices></domain>"
)
MDEV = "<domain><hostdev><source><address uuid='c2177883-f1bb-47f0-914d-32a22e3a8804'/></source></hostdev></domain>"

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "handover").mkdir()
    return tmp_path


@pytest.fixture
def call(state: Path) -> Call:
    """The hook, as libvirt calls it."""
    script = state / "hook"
    script.write_text(hook_text(str(state)) or "")

    def run(xml: str, operation: str = "prepare", guest: str = "vm") -> subprocess.CompletedProcess[str]:
        argv = ["sh", str(script), guest, operation, "begin", "-"]
        return subprocess.run(argv, input=xml, capture_output=True, text=True, check=False)

    return run


def recorded(state: Path) -> list[list[str]]:
    path = state / STARTS
    return [line.split(" ") for line in path.read_text().splitlines()] if path.exists() else []


def test_every_start_is_recorded(state: Path, call: Call) -> None:
    done = call(XML, guest="a  guest\nof two lines")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [row[:2] + row[3:] for row in recorded(state)] == [
        [GPU, "guest", "a", "guest", "of", "two", "lines"],
        [OTHER, "guest", "a", "guest", "of", "two", "lines"],
    ]
    assert (state / STARTS).stat().st_mode & 0o777 == 0o600
    text = (state / STARTS).read_text()
    assert [count_starts(text, address) for address in (GPU, OTHER, "0000:07:02.0")] == [1, 1, 0]


def test_the_first_start_makes_the_folder(state: Path, call: Call) -> None:
    """The hook is installed before the first hand-over: no guest may fail for that."""
    (state / "handover").rmdir()
    assert call(XML).returncode == 0
    assert len(recorded(state)) == 2
    assert (state / "handover").stat().st_mode & 0o777 == 0o700


def test_a_function_of_a_pool_is_known_at_the_start(state: Path, call: Call) -> None:
    """libvirt chooses it after "prepare"; the definition then has it, as one of an interface of the type hostdev."""
    pool = PLAIN.replace("</devices>", "<interface type='network'><source network='vfs'/></interface></devices>")
    assert (call(pool).returncode, call(pool, "start").returncode, recorded(state)) == (0, 0, [])
    assert call(XML, "start").returncode == 0
    assert [row[:2] for row in recorded(state)] == [[OTHER, "guest"]]
    (state / QUARANTINED).write_text(quarantine_list([OTHER]))
    done = call(XML, "start")
    assert (done.returncode, f"{OTHER} is quarantined" in done.stderr, len(recorded(state))) == (1, True, 1)


@pytest.mark.parametrize("operation", ["started", "stopped", "release", "migrate", "restore"])
def test_only_a_start_counts(operation: str, state: Path, call: Call) -> None:
    assert call(XML, operation).returncode == 0
    assert recorded(state) == []


def test_a_guest_without_host_devices_leaves_no_line(state: Path, call: Call) -> None:
    assert call(PLAIN).returncode == 0
    assert recorded(state) == []


@pytest.mark.parametrize("xml", [UNCLEAR, MDEV])
def test_a_device_that_cannot_be_told_counts_for_all(xml: str, state: Path, call: Call) -> None:
    assert call(xml).returncode == 0
    assert [row[0] for row in recorded(state)] == ["*"]
    assert count_starts((state / STARTS).read_text(), OTHER) == 1
    (state / QUARANTINED).write_text(quarantine_list([GPU]))
    assert call(xml).returncode == 1


def test_a_quarantined_device_does_not_start(state: Path, call: Call) -> None:
    (state / QUARANTINED).write_text(quarantine_list(["0000:41:00.1", OTHER]))
    done = call(XML)
    assert done.returncode == 1
    assert done.stderr == f"hosttune: guest vm: {OTHER} is quarantined: see hosttune handover status\n"
    assert recorded(state) == []
    (state / QUARANTINED).write_text(quarantine_list(["0000:41:00.1"]))
    assert call(XML).returncode == 0


def test_a_list_that_was_lost_frees_nothing(state: Path, call: Call) -> None:
    """The register is there, so the list was: it is written first."""
    record = DeviceRecord(address=OTHER, identity=OTHER, state="quarantined", since=now_text(), why="hand-over 1")
    record_devices(str(state), (record,))
    (state / QUARANTINED).unlink()
    done = call(XML)
    assert (done.returncode, f"{state / QUARANTINED} is missing" in done.stderr) == (1, True)
    assert call(PLAIN).returncode == 0
    record_devices(str(state), ())
    assert f"{OTHER} is quarantined" in call(XML).stderr


def test_a_function_does_not_start_while_a_virtual_one_of_it_is_quarantined(
    state: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in planning: they belong together."""
    for name, text in {
        "ls": f'[ "$1" = /sys/bus/pci/devices/{GPU} ] && echo "class virtfn0"',
        "readlink": f"case $1 in */{GPU}/virtfn0) echo ../{VF} ;; esac",
    }.items():
        (state / name).write_text(f"#!/bin/sh\n{text}\n")
        (state / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{state}:{os.environ['PATH']}")
    (state / QUARANTINED).write_text(quarantine_list([VF]))
    done = call(XML)
    assert (done.returncode, f"{VF} is quarantined" in done.stderr, recorded(state)) == (1, True, [])
    (state / QUARANTINED).write_text(quarantine_list(["0000:41:00.5"]))
    assert (call(XML).returncode, len(recorded(state))) == (0, 2)


def test_a_start_that_cannot_be_recorded_is_refused(state: Path, call: Call) -> None:
    (state / STARTS).mkdir()
    done = call(XML)
    assert done.returncode == 1
    assert "cannot be recorded" in done.stderr
    assert call(PLAIN).returncode == 0


def test_a_list_that_cannot_be_read_refuses(state: Path, call: Call) -> None:
    (state / QUARANTINED).mkdir()
    done = call(XML)
    assert (done.returncode, recorded(state)) == (1, [])
    assert "cannot read" in done.stderr


@pytest.mark.parametrize("path", ["/a b", "/a'b", "/$(x)", "/a\nb", "relative", "/a//b", ""])
def test_a_path_that_a_shell_would_interpret_is_not_written(path: str) -> None:
    assert hook_text(path) is None


# --- epochs ------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([GPU, VF, OTHER]), max_size=8), st.text(st.characters(codec="utf-8"), max_size=20))
def test_no_later_line_hides_a_start(addresses: list[str], rest: str) -> None:
    """Whatever follows, even a torn or strange line: the count only grows."""
    lines = "".join(start_line(address, "guest", "2026-01-01T00:00:00Z", "vm") for address in addresses)
    for address in (GPU, VF, OTHER):
        assert count_starts(lines, address) == addresses.count(address)
        assert count_starts(lines + rest, address) >= addresses.count(address)
    more = lines + start_line(GPU, "guest", "2026-01-01T00:00:00Z", rest)
    assert count_starts(more, GPU) == addresses.count(GPU) + 1


def test_functions_count_for_what_they_belong_to() -> None:
    one = start_line(VF, "guest", "t", "vm") + start_line(GPU, "function", "t", "vm")
    assert [count_starts(one, GPU), count_starts(one, VF, GPU), count_starts(one, "0000:41:00.5", GPU)] == [1, 1, 0]
    whole = start_line(GPU, "guest", "t", "vm")
    assert [count_starts(whole, GPU), count_starts(whole, VF, GPU), count_starts(whole, VF)] == [1, 1, 0]


# --- whether libvirt calls it ------------------------------------------------------------------------------------


class Host(System):
    """A live host with these files, and the answers of stat."""

    captured = False

    def __init__(self, files: Mapping[str, str], stats: Mapping[str, str]) -> None:
        self.files, self.stats = files, stats

    def read_bytes(self, path: str) -> bytes | None:
        if self.files.get(path) == "EIO":
            raise Unreadable(path, "EIO")
        return self.files[path].encode() if path in self.files else None

    def list(self, path: str) -> list[str]:
        raise NotImplementedError

    def link(self, path: str) -> str | None:
        raise NotImplementedError

    def exists(self, path: str) -> bool:
        return path in self.files

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        if argv[-1] not in self.stats:
            raise CommandFailed(argv, "exit status 1")
        return self.stats[argv[-1]]


STATE = "/var/lib/hosttune"
FILE = {PLACE: hook_text(STATE) or ""}
STARTED = "42 (a) b) S" + " 0" * 18 + " {ticks} 0\n"


def daemon(seconds: int = 1700000010) -> dict[str, str]:
    """virtqemud, that was started then by the clock as it is set now."""
    ticks = STARTED.format(ticks=1000 * os.sysconf("SC_CLK_TCK"))
    return {
        "/run/virtqemud.pid": "42\n", "/proc/42/comm": "virtqemud\n", "/proc/42/stat": ticks,
        "/proc/stat": f"cpu 1 2\nbtime {seconds - 1000}\n",
    }  # fmt: skip


DAEMON = daemon()
HOOK = {PLACE: "1700000000.500000000 755\n"}


@pytest.mark.parametrize(
    ("files", "stats", "active", "why"),
    [
        ({}, {}, False, "is not installed"),
        ({PLACE: FILE[PLACE] + "exit 0\n"}, HOOK, False, "is not what this hosttune writes there"),
        ({PLACE: hook_text("/elsewhere") or ""}, HOOK, False, "is not what this hosttune writes there"),
        (FILE, {PLACE: "1700000000.5 644"}, False, "is not executable"),
        (FILE, HOOK, True, None),  # no daemon runs: it finds the hook when it starts
        ({**FILE, **DAEMON}, {**HOOK, "/run/virtqemud.pid": "1700000000.4"}, False, "virtqemud has run since before"),
        ({**FILE, **DAEMON}, {**HOOK, "/run/virtqemud.pid": "1700000000.5"}, False, "virtqemud has run since before"),
        ({**FILE, **DAEMON}, {**HOOK, "/run/virtqemud.pid": "1700000000.6"}, True, None),
        # The clock was set after the daemon or the hook was there: one of the two times tells.
        ({**FILE, **daemon(1699990000)}, {**HOOK, "/run/virtqemud.pid": "1700000000.6"}, False, "has run since before"),
        ({**FILE, **daemon(1700090000)}, {**HOOK, "/run/virtqemud.pid": "1700000000.4"}, False, "has run since before"),
        ({**FILE, **DAEMON, "/proc/42/stat": "42 (a)"}, {**HOOK, "/run/virtqemud.pid": "1700000000.6"}, None, None),
        ({**FILE, **DAEMON, "/proc/42/comm": "bash\n"}, HOOK, True, None),  # a stale file of a daemon that ended
        ({**FILE, **DAEMON}, HOOK, None, None),
        (FILE, {}, None, None),
        ({PLACE: "EIO"}, HOOK, None, None),
    ],
)
def test_recording(files: Mapping[str, str], stats: Mapping[str, str], active: bool | None, why: str | None) -> None:
    found = recording_of(Host(files, stats), STATE)
    assert (found.active if found else None) == active
    assert (why or "") in ((found.why if found else None) or "")
    assert (found is None or found.why is None) == (why is None)
    assert (found.since if found else None) == ("1700000000.500000000" if active else None)
