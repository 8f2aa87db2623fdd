"""What a running guest's next start would change: from two definitions, with what differs by itself left out."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from xmledits import edited, with_edits

from hosttune.discovery.guests import read_guests
from hosttune.discovery.qemu import qemu_processes
from hosttune.machine.capture import Archive
from hosttune.machine.reader import Reader
from hosttune.machine.system import COMMANDS
from hosttune.model.host import RunningGuest

XML = """<domain type='kvm'><name>a</name><memory unit='GiB'>4</memory><currentMemory unit='GiB'>4</currentMemory>
<vcpu>2</vcpu><cputune><vcpupin vcpu='0' cpuset='4'/><vcpupin vcpu='1' cpuset='5'/></cputune>
<os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os><cpu mode='host-passthrough' check='none'/>
<devices>{0}</devices></domain>"""
KEPT = XML.format("")
MODEL = edited(KEPT, "cpu", {"mode": "host-model", "check": "partial"})
CUSTOM = with_edits(
    edited(KEPT, "cpu", {"mode": "custom", "match": "exact", "check": "partial"}),
    ("cpu", "<model fallback='forbid'>EPYC</model>"),
    ("cpu", "<feature policy='disable' name='hle'/>"),
    ("cpu", "<feature policy='optional' name='svm'/>"),
)
CUSTOM_LIVE = with_edits(
    CUSTOM,
    ("cpu", {"check": "full"}),
    ("cpu/feature[@name='svm']", {"policy": "require"}),
    ("cpu", "<feature policy='require' name='hypervisor'/>"),
    ("cpu", "<feature policy='disable' name='lahf_lm'/>"),
)
MDEV = "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{0}'/></source></hostdev>"
UUID = "4b20d080-1b54-4048-85b3-a6a62d165c01"


def read(live: str | None, kept: str | None, state: str | None = "running") -> tuple[RunningGuest, Reader]:
    domain = {"name": "a", "state": state, "xml": live, "inactive_xml": kept}
    text = json.dumps({"uri": "qemu:///system", "domains": [domain]})
    reader = Reader(Archive({f"{COMMANDS}libvirt.json": text.encode()}, {}, "test"))
    (guest,) = read_guests(reader)[0] or ()
    return guest, reader


PINNED_ELSEWHERE = edited(KEPT, "cputune/vcpupin[@vcpu='1']", {"cpuset": "6"})
CASES = {
    "the same": (KEPT, KEPT, ()),
    "its pins were edited": (KEPT, PINNED_ELSEWHERE, ("vcpupin",)),
    "memory was edited": (KEPT, with_edits(KEPT, ("memory", "8"), ("currentMemory", "8")), ("memory",)),
    "the balloon holds less now": (edited(KEPT, "currentMemory", "3"), KEPT, ()),
    "host-model became a model": (
        with_edits(
            KEPT,
            ("cpu", {"mode": "custom", "check": "full"}),
            ("cpu", "<model>Icelake-Server</model>"),
            ("cpu", "<feature policy='require' name='ss'/>"),
        ),
        MODEL, (),
    ),
    "a model became itself with QEMU's features": (CUSTOM_LIVE, CUSTOM, ()),
    "a model with other features": (
        CUSTOM_LIVE, edited(CUSTOM, "cpu/feature[@name='hle']", {"policy": "require"}), ("cpu features",),
    ),
    "a model with one feature more": (
        edited(CUSTOM_LIVE, "cpu/feature[@name='hle']", {"name": "rtm"}), CUSTOM, ("cpu features",),
    ),
    "another model": (CUSTOM_LIVE, edited(CUSTOM, "cpu/model", "EPYC-Rome"), ("cpu model",)),
    "to host-model it was edited": (KEPT, edited(KEPT, "cpu", {"mode": "maximum"}), ("cpu mode",)),
    "a device was added": (KEPT, XML.format(MDEV.format(UUID)), ("hostdev",)),
    "no kept definition": (KEPT, None, None),
}  # fmt: skip


@pytest.mark.parametrize(("live", "kept", "expected"), CASES.values(), ids=CASES.keys())
def test_what_its_next_start_changes(live: str, kept: str | None, expected: tuple[str, ...] | None) -> None:
    guest, reader = read(live, kept)
    told = guest.next_start
    assert (told is None) == (expected is None)
    assert set(expected or ()) <= set(told or ())
    assert bool(told) == bool(expected)
    assert reader.problems == []


@pytest.mark.parametrize("state", ["paused", "crashed", "in shutdown"])
def test_what_does_not_run_freely_is_compared_too(state: str) -> None:
    assert read(KEPT, PINNED_ELSEWHERE, state)[0].next_start == ("vcpupin",)


def test_a_guest_that_is_off_has_one_definition_and_of_an_unknown_state_it_is_unknown() -> None:
    assert read(KEPT, None, "shut off")[0].next_start == ()
    assert read(KEPT, KEPT, None)[0].next_start is None


@pytest.mark.parametrize("kept", ["", "<domain", "<network/>", "<domain type='kvm'><vcpu>x</vcpu></domain>"])
def test_a_kept_definition_that_is_none_is_unknown_and_a_problem(kept: str) -> None:
    guest, reader = read(KEPT, kept)
    assert guest.next_start is None
    assert [problem.what for problem in reader.problems] == ["no kept definition"]


def test_mediated_devices_are_named_by_their_uuid() -> None:
    assert read(XML.format(MDEV.format(UUID)), None)[0].mdevs == (UUID,)


def test_the_emulator_has_the_cpus_of_the_vcpus_where_it_has_no_pin() -> None:
    placed = edited(KEPT, "vcpu", {"placement": "static", "cpuset": "4-7"})
    assert read(placed, None)[0].emulator_cpus == "4-7"
    assert read(KEPT, None)[0].emulator_cpus is None


@pytest.mark.parametrize(
    ("option", "name"),
    [("guest=a,debug-threads=on", "a"), ("a", "a"), ("guest=a,,b,debug-threads=on", "a,b"), ("", ""), ("guest=", "")],
)
def test_the_name_of_a_qemu_process(option: str, name: str) -> None:
    class Live(Archive):
        """A machine whose /proc is this archive."""

        def query(self, name: str, live: Callable[[], str | None]) -> str | None:
            return live()

    arguments = "\0".join(("/usr/bin/qemu-system-x86_64", "-name", option, "-machine", "q35"))
    files = {"/proc/17/comm": b"qemu-system-x86\n", "/proc/17/cmdline": arguments.encode() + b"\0"}
    assert qemu_processes(Reader(Live(files, {}, "test"))) == [(17, name)]
