"""`hosttune handover` on scratch roots: the steps of a device, what keeps it quarantined, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import applyroots
import msgspec
import pytest
from applyroots import GPU, STATE, Cli, Root, block
from coursekills import ASKED, DRIVE, NIC, config, passing_all, root_of
from courses import Wiped, handed, here, passing, states, steps, with_guest
from cutshort import put
from handovers import SIGNER, Keys
from xmledits import edited

from hosttune.cli import run
from hosttune.discovery import discover
from hosttune.errors import BadInput, Refused
from hosttune.handover import record
from hosttune.handover.calls import release as release_by_call
from hosttune.handover.cleaning import ZEROED, Erasure, Work, method_of
from hosttune.handover.running import Handed, HandoverOptions, hand_over, lines_of
from hosttune.handover.statement import read_firmware
from hosttune.handover.targets import Asked, Target
from hosttune.handover.testing import tested as judged
from hosttune.handover.verify import live_of, verification
from hosttune.journal import Store
from hosttune.journal.register import read_register, record_devices, release
from hosttune.machine.opening import open_system
from hosttune.model.handover import HandoverStep
from hosttune.model.host import Host
from hosttune.model.starts import REGISTER, STARTS
from hosttune.model.validation import Validation
from hosttune.model.values import to_json
from hosttune.settings.hook import PLACE

root = applyroots.root
cli = applyroots.cli
plan = applyroots.plan

WHOLE = ["quarantined", "reset", "taken-back", "erased", "tested", "reset", "returned"]
EXAMPLES_NIC = "0000:42:00.0"
DONE = [(name, "done") for name in WHOLE]


@pytest.fixture
def host(cli: Cli, plan: Path) -> Root:
    """A root with a stopped guest that has a GPU on vfio-pci, and the hook."""
    with_guest(cli.root.path, plan)
    cli._capsys.readouterr()
    return cli.root


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A small root with a drive and a NIC of a stopped guest."""
    return root_of(tmp_path / "small")


def why(found: Handed, name: str, address: str = DRIVE) -> str:
    """Why a step of a device is not done."""
    (device,) = (one for one in found.statement.predicate.devices if one.address == address)
    return next(str(one.why) for one in device.steps if one.step == name and one.why)


def driver(root: Path, address: str) -> str:
    return Root(root).driver(address)


# --- the whole way -----------------------------------------------------------------------------------------------


def test_a_gpu_goes_the_whole_way_and_its_statement_verifies(host: Root, cli: Cli, tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no OpenSSH client")
    out = tmp_path / "statement.json"
    found = handed(host.path, Asked(guest="gpu-guest"), out=str(out))
    assert (steps(found), found.clean, states(host.path)) == (DONE, True, {GPU: "clean"})
    (device,) = found.statement.predicate.devices
    resets = [one for one in device.steps if one.step == "reset"]
    assert [one.method for one in resets] == ["bus reset"] * 2  # not by flr, which leaves state
    assert resets[0].evidence is not None
    assert (resets[0].evidence["driver_before"], resets[0].evidence["reset_method"]) == ("vfio-pci", "bus")
    assert (device.driver, device.epoch, host.driver(GPU)) == ("vfio-pci", 1, "vfio-pci")
    assert host.get(f"sys/bus/pci/devices/{GPU}/reset_method") == "flr bus"
    validation = found.statement.predicate.validation
    assert validation is not None
    assert (validation.level, validation.verdict) == (1, "pass")

    keys = Keys(tmp_path)
    assert run(["handover", "sign", str(out), "--key", str(keys.key), "--expires", "1h"]) == 0
    words = ["--signers", str(keys.signers), "--identity", SIGNER]
    assert run(["handover", "verify", "--root", str(host.path), str(out), *words]) == 0
    cli._capsys.readouterr()
    again = handed(host.path, Asked(devices=(GPU,)))
    assert again.clean
    assert run(["handover", "verify", "--root", str(host.path), str(out), *words]) == 1
    assert "started" in cli._capsys.readouterr().out  # another hand-over makes the first one's statement void


def test_a_drive_and_a_nic_of_a_guest(small: Path) -> None:
    found = handed(small, ASKED, validate=passing_all)
    for address in (DRIVE, NIC):
        assert (steps(found, address), driver(small, address)) == (DONE, "vfio-pci")
    assert (found.clean, states(small)) == (True, {DRIVE: "clean", NIC: "clean"})
    records = read_register(str(small / STATE)).devices
    assert [(one.guest, one.handover, one.epoch, dict(one.firmware or {})) for one in records] == [
        ("vm", "1", 1, {"firmware_rev": "GDC5602Q"}), ("vm", "1", 1, {"fw_ver": "28.40.1000"}),
    ]  # fmt: skip
    last = record.last_course(Store(str(small / STATE)))
    assert last is not None
    assert (last.state, len(last.records)) == ("applied", 2 * len(WHOLE))


def test_a_device_of_the_hosts_driver_stays_quarantined_unless_it_goes_to_vfio(tmp_path: Path) -> None:
    small = root_of(tmp_path / "small", drivers=("nvme", "vfio-pci"))
    found = handed(small, ASKED, validate=passing_all)
    assert (steps(found), driver(small, DRIVE)) == (DONE, "nvme")
    assert (found.clean, states(small)) == (False, {DRIVE: "quarantined", NIC: "clean"})
    reason = read_register(str(small / STATE)).record(DRIVE)
    assert reason is not None
    assert "it is on nvme: uses by processes of the host are not recorded" in reason.why
    again = handed(small, msgspec.structs.replace(ASKED, to_vfio=True), validate=passing_all)
    assert (again.clean, driver(small, DRIVE)) == (True, "vfio-pci")


def test_a_device_without_a_driver_stays_quarantined_unless_it_goes_to_vfio(small: Path) -> None:
    """A driver could be bound to it and unbound again: nothing would show that."""
    (small / f"sys/devices/pci0000:c0/{DRIVE}/driver").unlink()
    assert any("stays quarantined: without a driver uses by the host" in line for line in lines_of(here(small), ASKED))
    found = handed(small, ASKED, validate=passing_all)
    assert (steps(found), found.clean, states(small)[DRIVE]) == (DONE, False, "quarantined")
    assert handed(small, msgspec.structs.replace(ASKED, to_vfio=True), validate=passing_all).clean


def test_a_device_that_is_bound_anew_after_its_return_voids_the_statement(small: Path) -> None:
    put(small, f"/.hosttune/commands/driver-link-{DRIVE}", "4711")
    found = handed(small, ASKED, validate=passing_all)
    assert found.clean
    assert {one.address: one.binding for one in read_register(str(small / STATE)).devices} == {DRIVE: "4711", NIC: None}

    def told() -> set[tuple[str, str]]:
        site, look = here(small)
        answer = verification(found.statement, live_of(site, look(), found.statement), (), "")
        names: set[tuple[str, str]] = {(one.subject, one.reason) for one in answer.reasons}
        return names - {("statement", "no-expiry")}

    assert told() == set()
    put(small, f"/.hosttune/commands/driver-link-{DRIVE}", "4712")
    assert told() == {(DRIVE, "driver")}
    put(small, "/.hosttune/unreadable", f"/.hosttune/commands/driver-link-{DRIVE}\tInput/output error\n")
    assert told() == {(DRIVE, "unknown")}


def test_a_state_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match="cannot write the state: Not a directory"):
        record.courses(Store(f"{tmp_path}/file/state"))


def test_without_the_hook_nothing_is_freed(small: Path) -> None:
    (small / PLACE[1:]).unlink()
    found = handed(small, ASKED, validate=passing_all)
    assert (steps(found), found.clean) == (DONE, False)
    assert set(states(small).values()) == {"quarantined"}
    assert any("starts of guests are not recorded" in line for line in lines_of(here(small), ASKED))


# --- what keeps a device quarantined -----------------------------------------------------------------------------


def test_a_device_without_a_reset_that_clears_it_is_never_bound(small: Path) -> None:
    for text in ("pm\n", "\n"):
        put(small, f"/sys/bus/pci/devices/{DRIVE}/reset_method", text)
        found = handed(small, ASKED, validate=passing_all)
        assert steps(found)[:2] == [("quarantined", "done"), ("reset", "not-supported")]
        assert set(steps(found)[2:]) == {(name, "unknown") for name in ("taken-back", "erased", "tested", "returned")}
        assert why(found, "reset").startswith(
            f"no reset method that clears it: the kernel offers {text.strip() or 'none'}"
        )
        assert (states(small)[DRIVE], driver(small, DRIVE)) == ("quarantined", "vfio-pci")
        assert states(small)[NIC] == "clean"


def test_a_gpu_whose_only_reset_leaves_state() -> None:
    from hosttune.gpu.nvidia import WEAK_RESETS

    assert method_of(("flr",), WEAK_RESETS) is None
    assert method_of(("flr", "pm"), WEAK_RESETS) is None
    assert method_of(("flr", "bus"), WEAK_RESETS) == "bus"
    assert (method_of(("flr", "bus"), {}), method_of(None, {})) == ("flr", None)


@pytest.mark.parametrize(
    ("start", "says", "outcome"),
    [
        (b"\xff" * 8, "reads all ones", "failed"),
        (b"\x4d\x14\x0a\xa8" + b"\xff" * 4, "reads all ones", "failed"),
        (b"\x4d\x14\x05\xa8", "it was 144d:a80a before its reset, and says that it is 144d:a805", "failed"),
        (b"\x4d\x14", "cannot be read", "unknown"),
    ],
)
def test_a_device_that_does_not_answer_as_before_its_reset(small: Path, start: bytes, says: str, outcome: str) -> None:
    """The kernel keeps the ids that it read at boot: a device whose firmware did not start shows only here."""
    config = small / f"sys/devices/pci0000:c0/{DRIVE}/config"
    config.write_bytes(start + (config.read_bytes()[len(start) :] if outcome == "failed" else b""))
    found = handed(small, ASKED, validate=passing_all)
    assert (steps(found)[1], driver(small, DRIVE)) == (("reset", outcome), "vfio-pci")
    assert says in why(found, "reset")


@pytest.mark.parametrize("outcome", ["unknown"])
def test_what_was_not_erased_is_returned_and_stays_quarantined(small: Path, outcome: str) -> None:
    found = handed(small, ASKED, Wiped(outcome), passing_all)
    assert steps(found) == [(name, outcome if name == "erased" else "done") for name in WHOLE]
    assert (found.clean, driver(small, DRIVE), states(small)[DRIVE]) == (False, "vfio-pci", "quarantined")


def test_memory_of_the_guest_that_a_file_keeps(small: Path) -> None:
    """As long as the file is there, the pages are the last tenant's."""
    put(small, "/proc/self/mounts", "hugetlbfs /dev/hugepages hugetlbfs rw 0 0\n")
    folder = small / "dev/hugepages/libvirt/qemu/3-vm"
    folder.mkdir(parents=True)
    found = handed(small, ASKED, validate=passing_all)
    assert (steps(found)[0], states(small)) == (("quarantined", "failed"), dict.fromkeys((DRIVE, NIC), "quarantined"))
    assert "/dev/hugepages/libvirt/qemu/3-vm" in why(found, "quarantined")
    folder.rmdir()
    found = handed(small, ASKED, validate=passing_all)
    evidence = found.statement.predicate.devices[0].steps[0].evidence
    assert evidence is not None
    assert (found.clean, evidence["memory"]) == (True, ZEROED)


def test_what_was_not_tested(small: Path) -> None:
    def refused(level: int) -> Validation:
        raise Refused("GPU in use", where="GPU", hint="stop it")

    found = handed(small, ASKED, validate=refused)
    assert (("tested", "unknown") in steps(found), why(found, "tested")) == (True, "no validation: GPU in use")

    def broken(level: int) -> Validation:
        raise RuntimeError("a defect")

    assert why(handed(small, ASKED, validate=broken), "tested").endswith("a defect")


def test_firmware_that_cannot_be_read(small: Path) -> None:
    """The hand-over goes on to its end, and the device stays quarantined."""
    unread = f"/sys/devices/pci0000:c0/{DRIVE}/nvme/nvme0/firmware_rev\tInput/output error\n"
    put(small, "/.hosttune/unreadable", unread)
    found = handed(small, ASKED, validate=passing_all)
    assert (steps(found), states(small)) == (DONE, {DRIVE: "quarantined", NIC: "clean"})
    reason = read_register(str(small / STATE)).record(DRIVE)
    assert reason is not None
    assert "the statement does not know its firmware" in reason.why


def test_firmware_that_changed_between_two_hand_overs(small: Path) -> None:
    assert handed(small, ASKED, validate=passing_all).clean
    put(small, f"/sys/bus/pci/devices/{DRIVE}/nvme/nvme0/firmware_rev", "EVIL0001\n")
    found = handed(small, ASKED, validate=passing_all)
    assert (steps(found)[4], states(small)) == (("tested", "failed"), {DRIVE: "quarantined", NIC: "clean"})
    assert "firmware_rev was 'GDC5602Q', and is 'EVIL0001'" in why(found, "tested")
    release(str(small / STATE), DRIVE, "flashed by the operator")
    assert handed(small, ASKED, validate=passing_all).clean


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        ({"vbios": "1"}, {"vbios": "1", "inforom": "G520.0282.02.02"}, None),  # not known then: recorded now
        ({"vbios": "1", "inforom": "G520"}, {"vbios": "1", "inforom": "G521"}, "inforom was 'G520', and is 'G521'"),
        ({"vbios": "1", "inforom": "G520"}, {"vbios": "1"}, "inforom was 'G520', and is None"),
    ],
)
def test_the_inforom_is_compared_with_the_last_hand_overs(
    before: dict[str, str], now: dict[str, str], says: str | None
) -> None:
    target = Target(address=GPU, kind="gpu", identity=GPU, firmware=before)
    found = judged(target, passing(1), now, True)
    assert (found.outcome, says is None or says in str(found.why)) == ("done" if says is None else "failed", True)


def test_the_inforom_is_read_with_the_vbios(cli: Cli) -> None:
    system = open_system(str(cli.root.path))
    known = discover(system)
    (gpu,) = (one for one in known.gpus if one.address == GPU)
    rest = tuple(one for one in known.gpus if one.address != GPU)
    with_inforom = msgspec.structs.replace(gpu, firmware_version="96.00", inforom_version="G520.0282.02.02")
    found = msgspec.structs.replace(known, gpus=(with_inforom, *rest))
    assert read_firmware(system, found, GPU) == {"vbios": "96.00", "inforom": "G520.0282.02.02"}


@pytest.mark.parametrize(
    ("rows", "kind", "outcome"),
    [
        ((("pcie-link", GPU, "pass"), ("bench-device-copy", GPU, "pass")), "gpu", "done"),
        ((("pcie-link", GPU, "pass"), ("bench-device-copy", f"{GPU} MIG 0", "warn")), "gpu", "done"),
        ((("pcie-link", GPU, "pass"),), "gpu", "unknown"),  # nothing was measured
        ((("nvme-health", GPU, "pass"),), "nvme", "done"),
        ((("pcie-link", GPU, "pass"), ("bench-p2p", f"{GPU}->0000:42:00.0", "fail")), "gpu", "failed"),
        ((("pcie-link", GPU, "pass"), ("bench-device-copy", GPU, "unknown")), "gpu", "unknown"),
        ((("pcie-link", "0000:42:00.0", "fail"), ("bench-a", GPU, "pass")), "gpu", "done"),  # of another device
        ((("pcie-link", f"1{GPU}", "pass"), ("bench-a", "all GPUs", "pass")), "gpu", "unknown"),
        ((("pcie-link", GPU, "skip"),), "nvme", "unknown"),
        ((("device-quarantined", GPU, "warn"), ("handover-statement", GPU, "warn")), "nvme", "unknown"),  # no test
        ((), "nic", "unknown"),
    ],
)
def test_only_results_about_the_device_count(rows: Sequence[Any], kind: str, outcome: str) -> None:
    found = passing(1)
    results = tuple(
        msgspec.structs.replace(found.results[0], check=check, subject=subject, outcome=result)
        for check, subject, result in rows
    )
    target = Target(address=GPU, kind=kind, identity=GPU)
    assert judged(target, msgspec.structs.replace(found, results=results), None, True).outcome == outcome
    assert judged(target, found, None, False).outcome == "unknown"


# --- meanwhile ---------------------------------------------------------------------------------------------------


class Meanwhile(Wiped):
    """Something else happens on the host while a device is erased."""

    def __init__(self, root: Path, what: str) -> None:
        super().__init__()
        self.root, self.what = root, what

    def erasure(self, work: Work, target: Target, *, back: bool) -> Erasure:
        """See Cleaning."""

        def erase() -> HandoverStep:
            if self.what == "swapped" and target.address == NIC:  # when the drive has been erased
                put(self.root, f"/sys/devices/pci0000:c0/{DRIVE}/device", "0xbeef\n")
            if self.what == "put in again" and target.address == NIC:
                put(self.root, f"/.hosttune/commands/device-link-{DRIVE}", "4712")
            if self.what == "released" and target.address == DRIVE:
                release(str(self.root / STATE), DRIVE, "somebody needs it")
            if self.what == "opened":
                self.opens("fdisk", "/dev/nvme0")
            if self.what == "started" and target.address == DRIVE:
                driver = self.root / f"sys/devices/pci0000:c0/{DRIVE}/driver"
                vfio = os.path.join(os.path.dirname(os.readlink(driver)), "vfio-pci")
                driver.unlink()
                driver.symlink_to(vfio)
                self.opens("qemu-system-x86", "/dev/vfio/7")
            return HandoverStep(step="erased", outcome="done", method="wiped")

        return Erasure(work=erase)

    def opens(self, name: str, node: str) -> None:
        """A process opens a device node."""
        put(self.root, "/proc/77/comm", f"{name}\n")
        put(self.root, node, "")
        (self.root / "proc/77/fd").mkdir(exist_ok=True)
        link = self.root / "proc/77/fd/3"
        link.unlink(missing_ok=True)
        link.symlink_to(node)


def test_a_guest_that_starts_meanwhile_keeps_its_device_and_gets_no_reset(small: Path) -> None:
    """By a libvirt without our hook, which takes the drive from the host's driver: the hand-over lets go of it."""
    found = handed(small, ASKED, Meanwhile(small, "started"), passing_all)
    assert (found.clean, steps(found)[-2:]) == (False, [("reset", "failed"), ("returned", "unknown")])
    assert "qemu-system-x86 (process 77) has /dev/vfio/7 open" in why(found, "reset")
    assert (states(small)[DRIVE], driver(small, DRIVE)) == ("quarantined", "vfio-pci")
    with pytest.raises(Refused, match="in use"):
        handed(small, ASKED, validate=passing_all)


def test_a_device_that_is_opened_meanwhile_is_not_touched_again(small: Path) -> None:
    found = handed(small, ASKED, Meanwhile(small, "opened"), passing_all)
    assert (("reset", "failed") in steps(found), states(small)[DRIVE]) == (True, "quarantined")
    assert "fdisk (process 77) has /dev/nvme0 open" in why(found, "reset")
    assert driver(small, DRIVE) == "nvme"
    with pytest.raises(Refused, match="fdisk"):
        handed(small, ASKED, validate=passing_all)
    shutil.rmtree(small / "proc/77")
    assert handed(small, ASKED, validate=passing_all).clean


@pytest.mark.parametrize(
    ("what", "says"),
    [("swapped", "another device is there: it was '0000:c1:00.0 144d:a80a"), ("put in again", "it was taken out")],
)
def test_another_device_is_never_clean_by_what_was_done_to_the_first(small: Path, what: str, says: str) -> None:
    """The slot has another drive after the erasure: of another model, or of the same one, which only its link tells."""
    put(small, f"/.hosttune/commands/device-link-{DRIVE}", "4711")
    found = handed(small, ASKED, Meanwhile(small, what), passing_all)
    assert (steps(found), found.clean) == (DONE, False)
    assert states(small) == {DRIVE: "quarantined", NIC: "clean"}
    reason = read_register(str(small / STATE)).record(DRIVE)
    assert reason is not None
    assert says in reason.why


def test_another_device_in_the_place_of_a_quarantined_one_is_not_handed_over(small: Path) -> None:
    """It would take the other one's place in the register, which is free wherever it is now; and the guest had that."""
    handed(small, ASKED, Wiped("unknown"), passing_all)
    put(small, f"/sys/devices/pci0000:c0/{DRIVE}/device", "0xbeef\n")
    (small / f"sys/devices/pci0000:c0/{DRIVE}/config").write_bytes(config("010802", "beef"))
    before = read_register(str(small / STATE))
    with pytest.raises(Refused, match=f"another device is at {DRIVE} now"):
        handed(small, ASKED, validate=passing_all)
    assert read_register(str(small / STATE)) == before
    release(str(small / STATE), DRIVE, "it was taken out")
    assert handed(small, ASKED, validate=passing_all).clean


def test_a_device_that_is_released_meanwhile_stays_released(small: Path) -> None:
    with pytest.raises(Refused, match="not quarantined any more"):
        handed(small, ASKED, Meanwhile(small, "released"), passing_all)
    assert states(small) == {DRIVE: "released", NIC: "quarantined"}
    found = json.loads(status_of(small))["course"]
    assert (found["ended"], found["running"]) == (False, False)


@pytest.mark.parametrize("when", ["asked", "read again"])
def test_a_device_that_is_released_before_its_first_step_stays_released(small: Path, when: str) -> None:
    """While a person is asked, or the host is read again: nothing is in the journal yet that would refuse it."""
    handed(small, ASKED, Wiped("unknown"), passing_all)
    site, discover_again = here(small)
    looks: list[bool] = []

    def free() -> bool:
        return release_by_call((site, discover_again), DRIVE, "its data is needed").state == "released"

    def look() -> Host:
        looks.append(len(looks) == 1 and when == "read again" and free())
        return discover_again()

    options = HandoverOptions(None, Wiped(), passing_all)
    with pytest.raises(Refused, match="not quarantined any more"):
        hand_over((site, look), ASKED, options, lambda lines: when != "asked" or free(), lambda line: None)
    assert (states(small)[DRIVE], driver(small, DRIVE)) == ("released", "vfio-pci")


def test_a_lost_record_of_starts_shows_after_a_hand_over_that_was_begun_before(small: Path) -> None:
    """Its epoch would be 0, as after a second loss, with a start in between."""
    handed(small, ASKED, Wiped("unknown"), passing_all)
    starts = small / STATE / STARTS
    starts.unlink()
    found = handed(small, ASKED, validate=passing_all)
    assert [(one.state, one.epoch) for one in found.statement.predicate.devices] == [("clean", 1)] * 2
    starts.unlink()
    site, look = here(small)
    answer = verification(found.statement, live_of(site, look(), found.statement), (), "")
    assert {(one.subject, one.reason) for one in answer.reasons if one.subject != "statement"} == {
        (DRIVE, "unknown"), (NIC, "unknown"),
    }  # fmt: skip


def test_an_epoch_of_0_is_none(small: Path) -> None:
    """A register as it was written when a lost record could end so: nothing shows whether more was lost since."""
    found = handed(small, ASKED, validate=passing_all)
    (small / STATE / STARTS).unlink()
    path = small / STATE / REGISTER
    register = read_register(str(small / STATE))
    none = (msgspec.structs.replace(one, epoch=0, starts=None) for one in register.devices)
    path.write_text(to_json(msgspec.structs.replace(register, devices=tuple(none))))
    _, look = here(small)
    state = look().handover
    assert (found.clean, state is not None and state.epochs) == (True, {})


def test_two_hand_overs_at_once(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    courses = record.courses(Store(str(small / STATE)))
    with courses.locked(), pytest.raises(Refused, match="another hosttune"):
        handed(small, ASKED, validate=passing_all)
    assert states(small) == {}
    with courses.locked():  # what else is done on the host goes on
        assert run(["discover", "--root", str(small)]) == 0
    capsys.readouterr()


def status_of(root: Path) -> str:
    """`handover status`, as JSON."""
    from hosttune.handover.calls import status

    return status(here(root)).to_json()


# --- refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "error", "match"),
    [
        (Asked(), BadInput, "no device is named"),
        (Asked(erase=("S1",)), BadInput, "no device is named"),
        (Asked(devices=("0000:99:00.0",)), BadInput, "no device 0000:99:00.0"),
        (Asked(devices=(NIC, NIC)), BadInput, "named twice"),
        (Asked(guest="none"), BadInput, "no guest none is defined here"),
        (Asked(guest="vm"), Refused, f"drive {DRIVE} is not named to be erased"),
        (Asked(guest="vm", erase=("S2",)), BadInput, "S2 is not a drive of this hand-over"),
        (Asked(guest="vm", erase=("S1", "S2")), BadInput, "S2 is not a drive of this hand-over"),
        (Asked(devices=(NIC,), erase=("S1",)), BadInput, "S1 is not a drive of this hand-over"),
        (Asked(devices=(NIC,), erase=(f"{NIC}=S1",)), BadInput, f"{NIC} is not a drive of this hand-over"),
    ],
)
def test_what_is_asked_wrongly(small: Path, asked: Asked, error: type[Exception], match: str) -> None:
    before = Root(small).tree()
    with pytest.raises(error, match=match):
        lines_of(here(small), asked)
    with pytest.raises(error, match=match):
        handed(small, asked)
    left = Root(small).tree().keys() - before.keys()
    assert left <= {f"{STATE}", "var", "var/lib", f"{STATE}/handover", f"{STATE}/handover/lock"}


def test_a_drive_that_no_stopped_guest_had(small: Path) -> None:
    (small / ".hosttune/commands/virsh-dumpxml-vm").unlink()
    (small / ".hosttune/commands/virsh-list").write_text(" Id   Name   State\n------\n")
    with pytest.raises(Refused, match="that a stopped guest had it is not known"):
        handed(small, Asked(devices=(DRIVE,), erase=("S1",)))
    assert handed(small, Asked(devices=(NIC,)), validate=passing_all).clean  # nothing of it is erased by its serial


def test_a_guest_with_a_mediated_device_is_not_handed_over_in_part(small: Path) -> None:
    mdev = "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{}'/></source></hostdev>"
    xml = (small / ".hosttune/commands/virsh-dumpxml-vm").read_text()
    known = mdev.format("c2177883-f1bb-47f0-914d-32a22e3a8804")
    put(small, "/.hosttune/commands/virsh-dumpxml-vm", edited(xml, "devices", known))
    with pytest.raises(Refused, match="guest vm has mediated devices, which cannot be handed over: c2177883"):
        handed(small, ASKED)
    assert states(small) == {}
    assert handed(small, Asked(devices=(NIC,)), validate=passing_all).clean


def test_a_drive_that_another_guest_shares(small: Path) -> None:
    xml = (small / ".hosttune/commands/virsh-dumpxml-vm").read_text()
    put(small, "/.hosttune/commands/virsh-dumpxml-other", edited(xml, "name", "other"))
    put(small, "/.hosttune/commands/virsh-list", " Id Name State\n---\n - vm shut off\n - other shut off\n")
    with pytest.raises(Refused, match="that a stopped guest had it is not known"):
        handed(small, ASKED)


def test_a_drive_that_another_guest_may_share(small: Path) -> None:
    """Its definition cannot be read: it may have the drive too."""
    put(small, "/.hosttune/commands/virsh-dumpxml-other", "<domain>")
    put(small, "/.hosttune/commands/virsh-list", " Id Name State\n---\n - vm shut off\n - other shut off\n")
    with pytest.raises(Refused, match="that a stopped guest had it is not known") as refused:
        handed(small, ASKED)
    assert "cannot be read: other" in str(refused.value.hint)


def test_a_guest_that_runs_and_libvirt_that_cannot_be_asked(small: Path) -> None:
    put(small, "/.hosttune/commands/virsh-list", " Id   Name   State\n------\n 1    vm     running\n")
    with pytest.raises(Refused, match="guest vm is running"):
        handed(small, ASKED)
    with pytest.raises(Refused, match="guest vm has it and is running"):
        handed(small, Asked(devices=(NIC,)))
    put(small, "/.hosttune/commands/virsh-list", " Id   Name   State\n------\n -    vm     an oracle\n")
    with pytest.raises(Refused, match="guest vm is in an unknown state"):
        handed(small, ASKED)
    for path in (small / ".hosttune/commands").glob("virsh-*"):
        path.unlink()
    with pytest.raises(Refused, match="libvirt cannot be asked"):
        handed(small, Asked(devices=(NIC,)))


def test_a_device_that_a_process_has_open(small: Path) -> None:
    put(small, "/proc/77/comm", "qemu-system-x86\n")
    (small / "proc/77/fd").mkdir()
    put(small, "/dev/vfio/7", "")
    (small / "proc/77/fd/3").symlink_to("/dev/vfio/7")
    with pytest.raises(Refused, match="in use"):
        handed(small, ASKED)
    assert states(small) == {}


def test_a_guest_that_was_undefined_after_its_hand_over_was_cut_off(small: Path) -> None:
    with pytest.raises(Refused, match="not quarantined any more"):
        handed(small, ASKED, Meanwhile(small, "released"), passing_all)
    (small / ".hosttune/commands/virsh-dumpxml-vm").unlink()
    (small / ".hosttune/commands/virsh-list").write_text(" Id   Name   State\n------\n")
    found = handed(small, Asked(guest="vm"), validate=passing_all)  # only the NIC is left in its hand-over
    assert (found.clean, states(small)) == (True, {DRIVE: "released", NIC: "clean"})


def test_a_reset_method_that_a_cut_left_is_put_back(small: Path) -> None:
    class Cut(Wiped):
        def erasure(self, work: Work, target: Target, *, back: bool) -> Erasure:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        handed(small, ASKED, Cut())
    put(small, f"/sys/bus/pci/devices/{DRIVE}/reset_method", "bus\n")
    assert handed(small, ASKED, validate=passing_all).clean
    assert (small / f"sys/bus/pci/devices/{DRIVE}/reset_method").read_text() == "flr bus\n"


# --- the command -------------------------------------------------------------------------------------------------


def command(root: Path, *words: str) -> int:
    return run(["handover", *words, "--root", str(root)])


def test_the_command(small: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = Root(small).tree()
    words = ("--guest", "vm", "--erase", "S1")
    assert command(small, *words, "--dry-run") == 0
    text = capsys.readouterr().out
    assert f"{DRIVE} (nvme, of guest vm): quarantine, reset (flr), bind nvme, erase serial number S1" in text
    assert Root(small).tree() == before
    assert command(small, *words) == 3  # it asks, and nobody answers
    assert block(capsys.readouterr().err.partition("error: ")[1] + "cannot ask\nwhere: prompt\n   do: x\n")
    assert states(small) == {}
    out = tmp_path / "statement.json"
    assert (
        command(small, *words, "--yes", "--out", str(out), "-o", "json") == 3
    )  # a drive of a captured host gets no command
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(out.read_text())
    reasons = [one["why"] for one in found["predicate"]["devices"][1]["steps"] if one["outcome"] != "done"]
    assert "a captured host cannot be measured" in str(reasons)
    assert command(small, "status") == 0
    text = capsys.readouterr().out
    assert f"{NIC}  quarantined since" in text
    assert "hand-over 1, begun" in text
    assert f"statement: {small}/{STATE}/handover/statement-000001.json" in "".join(text.split()).replace(
        "statement:", "statement: "
    )


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("--yes",), "command line"),
        ((), "command line"),
        (("--device", "gpu0"), "--device"),
        (("--device", NIC, "--test-guest", "image.qcow2"), "image.qcow2"),
        (("--device", NIC, "--out", "/none/statement.json", "--yes"), "--out"),
        (("--device", NIC, "--level", "3"), "--level"),
        (("--erase", ""), "--erase"),
    ],
)
def test_bad_input(small: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], where: str) -> None:
    assert command(small, *words) == 2
    out, err = capsys.readouterr()
    assert (out, block(err)["where"] in (where, "command line")) == ("", True)
    assert states(small) == {}


def test_options_before_a_command_of_the_group(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["handover", "--yes", "status", "--root", str(small)]) == 2
    assert "an option before status" in block(capsys.readouterr().err)["error"]


@pytest.mark.parametrize("example", ["gaudi3-8", "mi300x-8"])
def test_a_gpu_that_cannot_be_erased_is_promised_nothing(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--device", "0000:18:00.0", "--dry-run", "--to-vfio"]
    assert run(["handover", *words, "--root", f"examples/{example}.tar.xz"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ", no way to erase it is known: it stays quarantined, validate" in said
    assert ", erase," not in said


def test_a_captured_host_is_only_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["handover", "--root", str(applyroots.EXAMPLE), "--device", EXAMPLES_NIC]
    assert run([*words, "--dry-run"]) == 0
    assert f"{EXAMPLES_NIC} (nic): quarantine, reset (flr), bind mlx5_core" in capsys.readouterr().out
    assert run([*words[:-1], GPU, "--dry-run"]) == 3
    assert "persistence mode holds it" in block(capsys.readouterr().err)["error"]
    assert run([*words, "--yes"]) == 3
    assert "a captured host cannot be changed" in block(capsys.readouterr().err)["error"]


def test_a_statement_that_cannot_be_written_frees_nothing(small: Path) -> None:
    record_devices(str(small / STATE), ())
    put(small, f"/{STATE}/handover/statement-000001.json/x", "")
    with pytest.raises(BadInput, match="not a regular file"):
        hand_over(
            here(small), ASKED, HandoverOptions(None, Wiped(), passing_all), lambda lines: True, lambda text: None
        )
    assert set(states(small).values()) == {"quarantined"}
