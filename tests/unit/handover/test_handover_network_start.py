"""What a network function was like before its guest was started: recorded by the hook's script, used by a hand-over."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from applyroots import STATE
from coursekills import ASKED, HOSTS_NIC, NIC
from courses import here, states
from cutshort import put
from hypothesis import given
from hypothesis import strategies as st
from networkroots import (
    LEFT,
    SETTLED,
    TENANTS,
    VIRTUAL,
    answer,
    function,
    link,
    physical_root,
    row,
    start_guest,
    virtual_root,
)
from unit.handover.test_handover_network import PXE, erased, hand, run
from xmledits import with_edits

from hosttune.errors import CommandFailed
from hosttune.handover import calls
from hosttune.handover.network import first_look, first_look_of_virtual, goes_back_to
from hosttune.handover.network.known import known
from hosttune.handover.running import lines_of
from hosttune.handover.targets import Target
from hosttune.hypervisor.state import record_start
from hosttune.machine.opening import open_system
from hosttune.machine.scratch import Scratch
from hosttune.model.starts import FUNCTION, GUEST, HANDOVER, no_start_before, start_line
from hosttune.settings.hook import hook_text

HOSTS = function(0, "b8:59:9f:00:00:01", vlan_list=[{"vlan": 100, "qos": 2}], spoofchk=True)
ARRAYS = (
    "Configurations:                                     Default              Current              Next Boot\n"
    + "".join(f"        PCI_DOWNSTREAM_PORT_OWNER[{n}]    DEVICE_DEFAULT(0)  HOST_0(1)  HOST_0(1)\n" for n in range(16))
)
# Changed by the tenant, and booted: nothing waits for the next boot.
CHANGED = SETTLED.replace(PXE, "PXE(1)               NONE(0)              NONE(0)")


@pytest.fixture
def virtual(tmp_path: Path) -> Path:
    """A root whose host has set up a virtual function for the guest."""
    return virtual_root(tmp_path / "small", HOSTS)


@pytest.fixture
def physical(tmp_path: Path) -> Path:
    root = physical_root(tmp_path / "small")
    answer(root, f"mstconfig-arrays-{NIC}", ARRAYS)
    return root


def record(root: Path, address: str = VIRTUAL) -> Path:
    return root / STATE / "handover" / f"start-{address}"


def tenant(root: Path) -> None:
    """What the guest left of its virtual function."""
    answer(root, "ip-link-up0", link("up0", vfinfo_list=[LEFT, function(1)]))


def wanted_from(root: Path) -> str:
    """Hand the virtual function over; what its settings went back to."""
    step = erased(hand(root)[0], VIRTUAL)
    assert step.evidence is not None, step.why
    return str(step.evidence["wanted_from"])


def test_a_virtual_function_goes_back_to_what_it_was_before_its_first_tenant(virtual: Path) -> None:
    assert start_guest(virtual) == ""
    assert stat.S_IMODE(record(virtual).stat().st_mode) == 0o600
    tenant(virtual)
    assert start_guest(virtual) == ""  # the tenant starts its guest again: what it left is no record
    (line, *_) = (one for one in lines_of(here(virtual), ASKED) if one.startswith(VIRTUAL))
    assert "put its settings back (as it was before guest vm was started at 20" in line
    found, _ = hand(virtual)
    step = erased(found, VIRTUAL)
    assert (found.clean, step.outcome, step.why) == (True, "done", None)
    assert step.evidence is not None
    assert (step.evidence["left"]["address"], step.evidence["now"]["address"]) == (TENANTS, HOSTS["address"])
    assert str(step.evidence["wanted_from"]).startswith("as it was before guest vm was started at 20")
    assert str(step.evidence["recorded"]).startswith("20")
    assert {**row(virtual), "vlan_list": HOSTS["vlan_list"]} == HOSTS
    assert row(virtual)["vlan_list"][0]["vlan"] == 100
    assert not record(virtual).exists()


def test_the_next_tenant_gets_a_record_of_its_own(virtual: Path) -> None:
    """What the host sets between a clean hand-over and the next start needs no hand-over to be known."""
    start_guest(virtual)
    tenant(virtual)
    assert hand(virtual)[0].clean
    other = function(0, "b8:59:9f:00:00:02", vlan_list=[{"vlan": 200, "qos": 0}])
    answer(virtual, "ip-link-up0", link("up0", vfinfo_list=[other, function(1)]))
    start_guest(virtual, guest="next\x1b")
    tenant(virtual)
    assert wanted_from(virtual).startswith("as it was before guest next? was started at 20")
    assert (row(virtual)["address"], row(virtual)["vlan_list"][0]["vlan"]) == ("b8:59:9f:00:00:02", 200)


def test_guids_that_were_recorded_are_known(tmp_path: Path) -> None:
    """On InfiniBand a hand-over cannot know the GUIDs that a virtual function had, without a record of them."""
    guid = "00:11:22:33:44:55:66:77"
    root = virtual_root(tmp_path / "small", function(0, **{"link_type": "infiniband", "node guid": guid}))
    start_guest(root)
    step = erased(hand(root)[0], VIRTUAL)
    assert (step.outcome, step.why) == ("done", None)
    assert step.evidence is not None
    assert step.evidence["wanted"]["node guid"] == guid


def compared(root: Path) -> str:
    """What a hand-over would compare with, as `--dry-run` says it."""
    (line,) = (one for one in lines_of(here(root), ASKED) if one.startswith(NIC))
    return line.partition("compare addresses and firmware configuration (")[2].partition(")")[0]


def test_a_firmware_configuration_that_the_first_tenant_changed_and_booted_is_seen(physical: Path) -> None:
    assert compared(physical) == "as it is found, after the tenant: nothing was recorded"
    start_guest(physical)
    assert compared(physical).startswith("as it was before guest vm was started at 20")
    answer(physical, f"mstconfig-{NIC}", CHANGED)
    for _ in range(2):  # it is not forgotten by the next hand-over
        step = erased(run(physical))
        assert (step.outcome, states(physical)[NIC]) == ("failed", "quarantined")
        assert "its firmware configuration changed (as it was before guest vm was started at 20" in str(step.why)
        assert "LEGACY_BOOT_PROTOCOL was PXE(1), and is NONE(0)" in str(step.why)
        assert "PCI_DOWNSTREAM" not in str(step.why)  # the elements of arrays are recorded, too
        assert step.evidence is not None
        assert str(step.evidence["compared_with"]).startswith("as it was before guest vm was started at 20")
    calls.release(here(physical), NIC, "the operator set it")
    accepted = run(physical)
    assert accepted.clean, erased(accepted).why
    assert compared(physical) == "as of hand-over 3"


def test_without_a_record_it_is_as_the_hand_over_finds_it(physical: Path) -> None:
    answer(physical, f"mstconfig-{NIC}", CHANGED)
    step = erased(run(physical))
    assert step.evidence is not None
    assert (step.outcome, step.evidence["compared_with"]) == ("done", "as hand-over 1 found it, after the tenant")


def test_a_clean_hand_over_counts_more_than_a_start_for_the_firmware(physical: Path) -> None:
    """Whether every start since then was recorded is not proven: what was recorded clean is not replaced."""
    assert run(physical).clean
    answer(physical, f"mstconfig-{NIC}", CHANGED)
    start_guest(physical)
    step = erased(run(physical))
    assert (step.outcome, "changed (as of hand-over 1)" in str(step.why)) == ("failed", True)
    assert not record(physical, NIC).exists()


def test_firmware_that_the_first_tenant_flashed_is_seen(physical: Path) -> None:
    start_guest(physical)
    put(physical, f"/sys/devices/pci0000:c0/{NIC}/infiniband/mlx5_0/fw_ver", "28.41.1000\n")
    step = erased(run(physical))
    assert step.outcome == "failed"
    assert "firmware fw_ver was 28.40.1000, and is 28.41.1000 (as it was before guest vm was" in str(step.why)


def test_addresses_are_recorded_where_the_hosts_driver_has_the_function(physical: Path) -> None:
    start_guest(physical)
    target = Target(address=NIC, kind="nic", identity="i")
    system, folder = open_system(str(physical)), str(physical / STATE)
    first_look(system, folder, target, 1)
    before = known(folder, NIC, "i").before
    assert before is not None
    assert (before.origin, dict(before.facts.addresses or {})) == (
        "start", {"permanent address": "b8:59:9f:ce:2c:ea", "node_guid": "b859:9f03:00ce:2cea"},
    )  # fmt: skip


def test_a_hand_over_that_is_cut_off_while_it_takes_a_record_over(virtual: Path) -> None:
    start_guest(virtual)
    data = record(virtual).read_bytes()
    folder, target = str(virtual / STATE), Target(address=VIRTUAL, kind="nic", identity="i")
    tenant(virtual)
    first_look_of_virtual(open_system(str(virtual)), folder, target, HOSTS_NIC)
    taken = known(folder, VIRTUAL, "i").before
    assert taken is not None
    assert taken.origin == "start"
    for left in (data, None):  # killed before the record was removed, and after that
        if left is not None:
            record(virtual).write_bytes(left)
        first_look_of_virtual(open_system(str(virtual)), folder, target, HOSTS_NIC)
        assert known(folder, VIRTUAL, "i").before == taken
        assert not record(virtual).exists()


# --- what does not count -----------------------------------------------------------------------------------------


SPOILED: tuple[Callable[[bytes], bytes], ...] = (
    lambda data: b"",
    lambda data: data[:-1],
    lambda data: data.replace(b"\nend\n", b"\n"),
    lambda data: data + b"end\n",
    lambda data: data.replace(b"\n: /sys", b"\n: /../sys"),
    lambda data: data.replace(b"sizes 0 0", b"sizes 9999 0"),
    lambda data: data.replace(b" 0x144d", b" 0x15b3"),  # another device was there
    lambda data: data.replace(b"ip-link-up0", b"ip-link-up1"),
    lambda data: data.replace(b'"vf": 0', b'"vf": 5'),
    lambda data: b"\xff" * 100,
)


def goes_back(root: Path) -> str:
    """What a hand-over would put the settings of the virtual function back to."""
    target = Target(address=VIRTUAL, kind="nic", identity="i")
    return goes_back_to(open_system(str(root)), str(root / STATE), target, HOSTS_NIC)


def test_a_record_that_is_not_whole_or_of_something_else(virtual: Path) -> None:
    start_guest(virtual)
    data = record(virtual).read_bytes()
    assert goes_back(virtual).startswith("as it was before guest vm")
    for number, spoil in enumerate(SPOILED):
        assert spoil(data) != data, number
        record(virtual).write_bytes(spoil(data))
        assert goes_back(virtual).startswith("the kernel's defaults"), number
    tenant(virtual)
    assert wanted_from(virtual).startswith("the kernel's defaults")
    assert not record(virtual).exists()


def test_a_record_from_before_an_earlier_hand_over(virtual: Path) -> None:
    start_guest(virtual)
    starts = virtual / STATE / "handover/starts"
    text = starts.read_text()
    for times, counts in ((1, True), (2, False)):  # the hand-over that runs now is in there
        starts.write_text(text + times * start_line(VIRTUAL, HANDOVER, "2026-01-01T00:00:00+00:00", ""))
        assert goes_back(virtual).startswith("as it was before") == counts


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("starts", start_line(VIRTUAL, GUEST, "2020-01-01T00:00:00Z", "earlier")),
        ("own-starts", start_line(HOSTS_NIC, GUEST, "2020-01-01T00:00:00Z", "had all of it")),
        ("starts", "a damaged line\n"),
    ],
)
def test_a_start_that_is_not_the_first_one_is_no_record(virtual: Path, name: str, line: str) -> None:
    """The tenant's guest was started before the hook had this part: the settings may be the tenant's own by now."""
    put(virtual, f"/{STATE}/handover/{name}", line)
    start_guest(virtual)
    assert record(virtual).stat().st_size > 0
    assert goes_back(virtual).startswith("the kernel's defaults")


@pytest.mark.parametrize(
    ("opened", "whole"),
    [("/dev/vfio/12\n/dev/vfio/vfio\n", True), ("/dev/vfio/11\n", False), ("/dev/vfio/devices/vfio7\n", False)],
)
def test_a_function_that_a_process_has_is_not_recorded(virtual: Path, opened: str, whole: bool) -> None:
    """A second guest with it cannot start; but libvirt calls the hook before it finds that out."""
    (virtual / f"sys/devices/pci0000:c0/{VIRTUAL}/vfio-dev/vfio7").mkdir(parents=True)
    answer(virtual, "opened", opened)
    start_guest(virtual, guest="second")
    assert (record(virtual).stat().st_size > 0) == whole
    answer(virtual, "opened", None)
    start_guest(virtual)  # nor is a later start
    assert goes_back(virtual).startswith("as it was before" if whole else "the kernel's")


def test_a_quarantined_function_is_not_looked_at(virtual: Path) -> None:
    """A hand-over's own test guest may have it."""
    put(virtual, f"/{STATE}/handover/quarantined", f"{VIRTUAL}\n")
    start_guest(virtual, "look")
    assert not record(virtual).exists()


def test_a_function_that_libvirt_has_already_set_is_not_looked_at(virtual: Path) -> None:
    """A function of a network's pool is known at "start", after libvirt gave it the guest's address."""
    path = virtual / ".hosttune/commands/virsh-dumpxml-vm"
    address = "<address domain='0x0000' bus='0xc3' slot='0x00' function='0x1'/>"
    interface = f"<interface type='hostdev'><source>{address}</source></interface>"
    path.write_text(with_edits(path.read_text(), ("devices/hostdev[2]", None), ("devices", interface)))
    start_guest(virtual, "start")
    assert not record(virtual).exists()
    assert f"{VIRTUAL} guest" in (virtual / STATE / "handover/starts").read_text()


# --- the start goes on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("timeout -k 1 5 ", "sleep 2 #").replace("-lt 100", "-lt 2"),
        lambda text: text.replace("timeout -k 1 5", "timeout -k 1 0.1 sleep 9"),  # each tool hangs
        lambda text: text.replace("find --version", "false"),
        lambda text: text.replace("mkdir \"$looks\"", "false"),
        lambda text: text.replace("        wait\n", "        exit 1\n").replace("-lt 100", "-lt 2"),
    ],
)  # fmt: skip
def test_whatever_fails_the_start_goes_on_and_is_recorded(virtual: Path, change: Callable[[str], str]) -> None:
    text = hook_text(str(virtual / STATE)) or ""
    assert change(text) != text
    assert start_guest(virtual, script=change(text)) == ""
    assert f"{VIRTUAL} guest 20" in (virtual / STATE / "handover/starts").read_text()
    assert [one.name for one in (virtual / STATE / "handover").glob("looks*")] == []
    assert start_guest(virtual) == ""
    assert goes_back(virtual).startswith("the kernel's defaults")


def test_a_reading_that_ends_too_late_does_not_count(virtual: Path) -> None:
    """What was still read when the guest got the function is thrown away, whenever it ends."""
    text = (hook_text(str(virtual / STATE)) or "").replace("-lt 100", "-lt 2")
    go, gone = virtual / "go", virtual / "gone"
    held = text.replace(
        "    echo end\n", f"    while [ ! -e {go} ]; do sleep 0.05; done\n    echo end\n    : >{gone}\n"
    )
    start_guest(virtual, script=held)
    assert record(virtual).read_text() == ""
    go.touch()
    deadline = time.monotonic() + 60
    while not gone.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert record(virtual).read_text() == ""


# --- starts by hosttune ------------------------------------------------------------------------------------------


class Told(Scratch):
    """A host on which the hook's script runs when hosttune calls it. `fails`: it cannot be run."""

    fails = False

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        """See System."""
        super().change(argv, timeout=timeout, stdin=stdin)
        if self.fails:
            raise CommandFailed(argv, "cannot be run")
        assert argv[:2] == ("sh", "-c")
        assert "<hostdev" in str(stdin)
        start_guest(Path(self.root), argv[5], guest=argv[4])
        return ""


def test_a_start_by_hosttune_is_looked_at_without_the_hook(virtual: Path) -> None:
    record_start(Told(str(virtual)), "vm")
    assert record(virtual).stat().st_size > 0
    assert not (virtual / STATE / "handover/starts").exists()  # the hook was not there
    start_guest(virtual)  # libvirt calls the hook for the same start
    assert goes_back(virtual).startswith("as it was before guest vm was started")


def test_a_start_by_hosttune_does_not_fail_for_it(virtual: Path) -> None:
    system = Told(str(virtual))
    system.fails = True
    record_start(system, "vm")
    assert [one[:2] for one in system.ran()] == [("sh", "-c")]
    answer(virtual, "virsh-dumpxml-vm", "<domain type='kvm'><name>vm</name><vcpu>2</vcpu></domain>")
    record_start(system, "vm")  # nothing to look at
    answer(virtual, "virsh-dumpxml-vm", "<domain")
    record_start(system, "vm")
    assert len(system.ran()) == 1


# --- which start was the first -----------------------------------------------------------------------------------

LINES = st.lists(
    st.tuples(st.sampled_from([VIRTUAL, HOSTS_NIC, NIC]), st.sampled_from([GUEST, FUNCTION, HANDOVER])), max_size=8
)


@given(LINES)
def test_only_a_start_since_the_last_quarantine_is_earlier(lines: list[tuple[str, str]]) -> None:
    text = "".join(
        start_line(address, how, f"2026-01-01T00:00:{at:02}Z", "vm") for at, (address, how) in enumerate(lines)
    )
    last = max((at for at, one in enumerate(lines) if one == (VIRTUAL, HANDOVER)), default=-1)
    mine = [(VIRTUAL, GUEST), (VIRTUAL, FUNCTION), (HOSTS_NIC, GUEST)]
    assert no_start_before(text, "", VIRTUAL, HOSTS_NIC) == (not any(one in mine for one in lines[last + 1 :]))
    own = "".join(line for line in text.splitlines(keepends=True) if HANDOVER not in line)
    assert no_start_before(text, own, VIRTUAL, HOSTS_NIC) == no_start_before(text, "", VIRTUAL, HOSTS_NIC)
    assert not no_start_before(text, "torn", VIRTUAL, HOSTS_NIC)


@pytest.mark.parametrize(("time", "first"), [("00:59", True), ("01:00", False), ("01:01", False)])
def test_an_own_start_in_the_second_of_the_quarantine_counts(time: str, first: bool) -> None:
    """Which of the two came first is unknown."""
    quarantined = start_line(VIRTUAL, HANDOVER, "2026-01-01T00:01:00Z", "-")
    own = start_line(VIRTUAL, GUEST, f"2026-01-01T00:{time}Z", "vm")
    assert no_start_before(quarantined, own, VIRTUAL) == first
