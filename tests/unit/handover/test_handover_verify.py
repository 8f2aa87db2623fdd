"""Every reason that makes a statement void: its time, and whatever the host is not as stated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import handovers
import msgspec
import pytest
from handovers import BOOT, DONE, DRIVE, GPU, SIGNER, host, live, record, statement, with_state

from hosttune.discovery.holders import DeviceUser
from hosttune.handover.statement import Unread
from hosttune.handover.verify import verification
from hosttune.model.handover import Statement
from hosttune.model.host import Host, Problem, RunningGuest
from hosttune.model.hostfields import NO_DEFINITION
from hosttune.model.quarantine import StartRecording
from hosttune.model.verification import Reason, RevokedList

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)


def voids(
    found: Host, *, stated: Statement | None = None, at: datetime = NOW, before: Iterable[Reason] = (), **changes: Any
) -> list[tuple[str, str]]:
    """The reasons and their subjects, sorted. The statement is signed until tomorrow unless it is given."""
    one = stated or statement(expires_at="2026-01-02T00:00:00+00:00")
    answer = verification(one, live(found, **changes), before, SIGNER, at=at)
    assert (answer.verdict == "valid") == (answer.reasons == ())
    return sorted((reason.subject, reason.reason) for reason in answer.reasons)


def test_a_statement_of_an_unchanged_host_is_valid() -> None:
    assert voids(host()) == []


FUNCTION = {one.address: one for one in host().pci}
RUNNING = RunningGuest(name="next", state="running", devices=(GPU,))
UNREAD = Problem(what=NO_DEFINITION, where="guest next", why="its XML is cut")
CHANGES: Mapping[str, tuple[Mapping[str, Any], list[tuple[str, str]]]] = {
    "another host": ({"hostname": "node2"}, [("host", "host")]),
    "another boot": ({"boot_id": BOOT[:-1] + "2"}, [(GPU, "unknown"), (DRIVE, "unknown"), ("host", "boot")]),
    "boot unknown": ({"boot_id": None}, [(GPU, "unknown"), (DRIVE, "unknown"), ("host", "unknown")]),
    "another machine": ({"digest": "e" * 64}, [("host", "machine")]),
    "machine unknown": ({"digest": None}, [("host", "unknown")]),
    "a missing device": ({"pci": (FUNCTION[DRIVE],)}, [(GPU, "missing")]),
    "another device": (
        {"pci": (msgspec.structs.replace(FUNCTION[GPU], device_id="2330"), FUNCTION[DRIVE])}, [(GPU, "identity")],
    ),
    "a moved device": (
        {"pci": (msgspec.structs.replace(FUNCTION[GPU], address="0000:42:00.0"), FUNCTION[DRIVE])}, [(GPU, "moved")],
    ),
    "another driver": (
        {"pci": (msgspec.structs.replace(FUNCTION[GPU], driver="nvidia"), FUNCTION[DRIVE])},
        [(GPU, "driver"), (GPU, "unknown")],
    ),
    "a guest that has it": ({"guests": (RUNNING,)}, [(GPU, "in-use")]),
    "a guest whose state is unknown": (
        {"guests": (msgspec.structs.replace(RUNNING, state=None),)}, [(GPU, "unknown")],
    ),
    "a guest that is only defined": ({"guests": (msgspec.structs.replace(RUNNING, state="shut off"),)}, []),
    "a guest that may have it": (
        {"guests": (msgspec.structs.replace(RUNNING, devices=()),), "problems": (UNREAD,)},
        [(GPU, "unknown"), (DRIVE, "unknown")],
    ),
    "one that is shut off": (
        {"guests": (msgspec.structs.replace(RUNNING, devices=(), state="shut off"),), "problems": (UNREAD,)}, [],
    ),
    "libvirt unknown": ({"guests": None}, [(GPU, "unknown"), (DRIVE, "unknown")]),
    "register unknown": ({"handover": None}, [(GPU, "unknown"), (DRIVE, "unknown")]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_of_the_host_has_its_reason(name: str) -> None:
    changes, expected = CHANGES[name]
    firmware = {GPU: None, DRIVE: None} if "boot" in name else handovers.FIRMWARE  # not known over a boot
    assert sorted(set(voids(host(**changes), firmware=firmware))) == sorted(expected)


STATES: Mapping[str, tuple[Mapping[str, Any], list[tuple[str, str]]]] = {
    "a start": ({"epochs": {GPU: 4, DRIVE: 0}}, [(GPU, "started")]),
    "fewer starts than before": ({"epochs": {GPU: 2, DRIVE: 0}}, [(GPU, "started")]),
    "epoch unknown": ({"epochs": {DRIVE: 0}}, [(GPU, "unknown")]),
    "starts not recorded": (
        {"recording": StartRecording(active=False, why="no hook"), "epochs": None},
        [(GPU, "unknown"), (DRIVE, "unknown")],
    ),
    "another hook": (
        {"recording": StartRecording(active=True, since="2")}, [(GPU, "unknown"), (DRIVE, "unknown")],
    ),
    "hook unreadable": ({"recording": None}, [(GPU, "unknown"), (DRIVE, "unknown")]),
    "quarantined": ({"devices": (record(GPU, state="quarantined"), record(DRIVE))}, [(GPU, "quarantined")]),
    "released": ({"devices": (record(GPU, state="released", who="root"), record(DRIVE))}, [(GPU, "released")]),
    "not in the register": ({"devices": (record(DRIVE),)}, [(GPU, "unknown")]),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_each_change_of_the_register_has_its_reason(name: str) -> None:
    changes, expected = STATES[name]
    assert voids(with_state(host(), **changes)) == sorted(expected)


def test_firmware_and_settings() -> None:
    other = {**handovers.FIRMWARE, GPU: {"vbios": "96.00.99"}}
    assert voids(host(), firmware=other) == [(GPU, "firmware")]
    assert voids(host(), firmware={**handovers.FIRMWARE, GPU: {}}) == [(GPU, "firmware")]
    assert voids(host(), firmware={**handovers.FIRMWARE, GPU: None}) == [(GPU, "unknown")]
    ksm, driver = handovers.APPLIED["ksm:/sys/kernel/mm/ksm/run"], handovers.APPLIED["driver:0000:41:00.0"]
    assert (ksm, driver) == (2, "vfio-pci")
    for applied in (
        {**handovers.APPLIED, "ksm:/sys/kernel/mm/ksm/run": 1},  # drifted
        {"driver:0000:41:00.0": driver},  # reverted
        {**handovers.APPLIED, "sysctl:vm.swappiness": "1"},  # applied since
    ):
        assert voids(host(), applied=applied) == [("host", "setting")]
    nothing = statement(applied={"drop-in:/x": None}, expires_at="2026-01-02T00:00:00+00:00")
    assert voids(host(), stated=nothing, applied={"drop-in:/x": None}) == []
    unread = {"drop-in:/x": Unread(why="cannot be read: EIO")}
    assert voids(host(), stated=nothing, applied=unread) == [("host", "unknown")]


def test_a_device_that_was_bound_anew() -> None:
    """Another driver, or another device at the same place, in between: on vfio-pci again nothing else tells."""
    found = with_state(host(), devices=(record(GPU, binding="11"), record(DRIVE)))
    assert voids(found, bindings={GPU: "11", DRIVE: "5"}) == []
    assert voids(found, bindings={GPU: "12", DRIVE: "5"}) == [(GPU, "driver")]
    assert voids(found, bindings={GPU: None}) == voids(found) == [(GPU, "unknown")]
    other = msgspec.structs.replace(found, boot_id=BOOT[:-1] + "2")
    assert (GPU, "driver") not in voids(other, bindings={GPU: "12"})  # numbers of another boot say nothing
    assert (GPU, "driver") not in voids(found, bindings={GPU: "12"}, applied=None)  # of a document


def test_a_process_that_has_a_device_open() -> None:
    user = DeviceUser(GPU, "/dev/vfio/1", "stop it", name="qemu", pid=42)
    hidden = DeviceUser(f"{GPU}, {DRIVE}", "/proc is hidden", "run as root", unknown=True)
    assert voids(host(), users=(user,)) == [(GPU, "in-use")]
    assert voids(host(), users=(hidden,)) == [(f"{GPU}, {DRIVE}", "unknown")]


def test_the_time() -> None:
    signed = statement(expires_at="2026-01-02T00:00:00+00:00")
    assert voids(host(), stated=signed, at=datetime(2026, 1, 1, 23, 59, 59, tzinfo=UTC)) == []
    assert voids(host(), stated=signed, at=datetime(2026, 1, 2, tzinfo=UTC)) == [("statement", "expired")]
    assert voids(host(), stated=statement()) == [("statement", "no-expiry")]
    slow = datetime(2025, 12, 31, 23, 56, tzinfo=UTC)  # this clock is four minutes behind that of the host
    assert voids(host(), stated=signed, at=slow) == []
    assert voids(host(), stated=signed, at=slow - timedelta(hours=1)) == [("statement", "future")]
    # Signed by a controller whose clock is years ahead: for this host it would be valid for years.
    ahead = statement(expires_at="2036-01-02T00:00:00+00:00")
    assert voids(host(), stated=ahead) == [("statement", "future")]
    longest = NOW + timedelta(days=30, minutes=5)  # what sign gives at most, and clocks that differ by five minutes
    assert voids(host(), stated=statement(expires_at=longest.isoformat())) == []
    longer = statement(expires_at=(longest + timedelta(seconds=1)).isoformat())
    assert voids(host(), stated=longer) == [("statement", "future")]
    assert voids(host(), stated=signed, at=datetime(2036, 1, 1, tzinfo=UTC)) == [("statement", "expired")]


def test_a_statement_that_is_not_clean_or_forged() -> None:
    (gpu, drive) = statement().predicate.devices
    unclean = msgspec.structs.replace(gpu, steps=DONE[:5])
    until = "2026-01-02T00:00:00+00:00"
    assert voids(host(), stated=statement(devices=(unclean, drive), expires_at=until)) == [(GPU, "not-clean")]
    assert voids(host(), stated=statement(devices=(), expires_at=until)) == [("statement", "no-device")]
    forged = msgspec.structs.replace(statement(expires_at=until), subject=statement(boot_id="x").subject)
    assert voids(host(), stated=forged) == [("statement", "subject")]
    unknown = msgspec.structs.replace(gpu, firmware=None, epoch=None)
    assert set(voids(host(), stated=statement(devices=(unknown, drive), expires_at=until))) == {(GPU, "unknown")}


def test_every_reason_is_told_at_once() -> None:
    found = with_state(host(hostname="node2"), epochs={GPU: 4, DRIVE: 0})
    before = [Reason(reason="revoked", subject="statement", text="")]
    later = datetime(2026, 1, 3, tzinfo=UTC)
    assert voids(found, at=later, before=before) == [
        (GPU, "started"), ("host", "host"), ("statement", "expired"), ("statement", "revoked"),
    ]  # fmt: skip


def test_a_document_says_so_and_does_not_know_what_is_applied() -> None:
    signed = statement(expires_at="2026-01-02T00:00:00+00:00", applied={})
    answer = verification(signed, live(host(), applied=None), (), SIGNER, at=NOW)
    assert (answer.verdict, answer.about, answer.opens_gates) == ("valid", "document", False)
    assert voids(host(), applied=None) == [("host", "unknown"), ("host", "unknown")]
    assert verification(signed, live(host(), applied={}), (), SIGNER, at=NOW).opens_gates


def test_a_longer_address_is_another_device() -> None:
    """One behind a VMD controller has a domain of five digits, which can end as the other one's."""
    near, far = GPU, f"1{GPU}"
    reasons = (
        Reason(reason="quarantined", subject=far, text="far"), Reason(reason="boot", subject="host", text="host"),
        Reason(reason="unknown", subject=f"{far}, {near}", text="both"),
    )  # fmt: skip
    answer = verification(statement(), live(host()), (), SIGNER, at=NOW)
    answer = msgspec.structs.replace(answer, devices=(near, far), reasons=reasons)
    assert [[one.text for one in answer.of(address)] for address in (near, far)] == [
        ["host", "both"], ["far", "host", "both"],
    ]  # fmt: skip
    assert (answer.state(near), answer.state(far)) == ("void", "quarantined")


FIELDS = [f"devices.{n}.{name}" for n in (0, 1) for name in ("address", "identity", "driver", "firmware", "epoch")]


@pytest.mark.parametrize("field", ["host", "boot_id", "machine", "applied", *FIELDS])
def test_every_field_of_a_subject_counts(field: str) -> None:
    """The same statement about something else, with digests of its own: the live host contradicts it."""
    other: dict[str, Any] = {
        "address": "0000:43:00.0", "identity": "other", "driver": None, "firmware": {"vbios": "1"}, "epoch": 99,
        "host": "x", "boot_id": "x", "machine": "x", "applied": {},
    }  # fmt: skip
    *device, name = field.split(".")
    predicate = statement(expires_at="2026-01-02T00:00:00+00:00").predicate
    if device:
        devices = list(predicate.devices)
        devices[int(device[1])] = msgspec.structs.replace(devices[int(device[1])], **{name: other[name]})
        changed = Statement.of(msgspec.structs.replace(predicate, devices=tuple(devices)))
    else:
        changed = Statement.of(msgspec.structs.replace(predicate, **{name: other[name]}))
    found = voids(host(), stated=changed)
    assert found
    assert all(subject in ("host", GPU, DRIVE, "0000:43:00.0") for subject, _ in found)
    assert BOOT not in str(found)


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        ((), "no list of revoked keys was given"),
        ((0.5, 900), "list of revoked keys given less than an hour ago"),
        ((47,), "list of revoked keys given 47 h ago"),
        ((100, 72), "list of revoked keys given 3 days ago"),
        ((-2,), "list of revoked keys given 2026-01-01T14:00:00+00:00, which is in the future: a clock is wrong"),
    ],
)
def test_how_old_the_list_of_revoked_keys_is(hours: tuple[float, ...], text: str) -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    lists = tuple(RevokedList(sha256="a", given_at=(at - timedelta(hours=one)).isoformat()) for one in hours)
    answer = verification(statement(), live(host()), (), SIGNER, at=NOW)
    assert msgspec.structs.replace(answer, revoked=lists).list_age(at) == text
