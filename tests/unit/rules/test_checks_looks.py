"""What a look at a GPU is worth once vfio-pci or a guest has it: pure, by who had it since."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gpuevidence import A, B, evidence, function, nvidia, of

from hosttune.model.evidence import LOOKED, Evidence, GuestProcess, GuestRun, Health, KernelEvent, Look, SeenRun
from hosttune.model.gpu import Gpu
from hosttune.model.host import Module, Platform, Problem, RunningGuest
from hosttune.model.validation import CheckResult, Validation
from hosttune.report.outcomes import meaning
from hosttune.rules.checks.looks import looked, looks_to_keep

AT = "2026-11-26T14:03:00+00:00"
IDS = "10de:2335"
GOOD = CheckResult(check="ecc-errors", subject=A, outcome="pass", actual="0 uncorrected", source="NVML")
LOADED = Platform(modules=(Module(name="nvidia"),))


def look(*seen: SeenRun, result: CheckResult = GOOD, **facts: Any) -> Look:
    return Look(**{"at": AT, "boot_id": "b", "device": IDS, **facts}, results=(result,), seen=seen)


def run(guest: str, at: str, source: str = "log") -> GuestRun:
    return GuestRun(guest=guest, at=at, devices=(A,), source=source)


def given(
    *runs: GuestRun, by: Look | None = None, guest: str | None = None, process: GuestProcess | None = None, **more: Any
) -> Evidence:
    """A GPU on vfio-pci with a look; `guest` runs with it now."""
    guests = (RunningGuest(name=guest, state="running", devices=(A,), vcpus=2),) if guest else ()
    facts = {"boot_id": "b", "platform": LOADED, "guests": guests, **more.pop("host", {})}
    rest: dict[str, Any] = {"looks": {A: by or look()}, "guest_runs": runs, "processes": (process,) if process else ()}
    return evidence(Gpu(address=A, vendor="nvidia", source="sysfs"), driver="vfio-pci", host=facts, **{**rest, **more})


def ecc(found: Evidence) -> CheckResult:
    return of(found, "ecc-errors", "gpumemory")[A]


BEFORE, FIRST, SECOND = "2026-11-26T14:02:59", "2026-11-26T14:03:00", "2026-11-27T09:00:00"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (given(), "0 uncorrected; looked at 26 Nov 2026 14:03 UTC"),
        (given(run("old", BEFORE)), "0 uncorrected; looked at 26 Nov 2026 14:03 UTC"),
        (given(run("alice", FIRST), guest="alice"), "looked at 26 Nov 2026 14:03 UTC, before guest alice"),
        (given(run("alice", FIRST), run("alice", FIRST, "hook"), guest="alice"), "before guest alice"),
        (given(guest="alice"), "before guest alice"),  # attached while it ran, or started by another program
        (given(guest="alice", by=look(SeenRun(guest="alice", boot_id="b"))), "before guest alice"),
    ],
)  # fmt: skip
def test_it_counts_until_a_guest_has_ended(found: Evidence, text: str) -> None:
    result = ecc(found)
    assert (result.outcome, text in (result.actual or "")) == ("pass", True), result.actual


RUNS = GuestProcess(guest="alice", pid=7, started=100)
SEEN = SeenRun(guest="alice", boot_id="b", process="7.100")


@pytest.mark.parametrize(
    ("found", "ended"),
    [
        (given(run("alice", FIRST)), "alice"),
        (given(run("alice", FIRST), run("alice", SECOND), guest="alice"), "alice"),  # started again
        (given(run("alice", FIRST), run("bob", SECOND), guest="bob"), "alice"),
        (given(run("bob", SECOND), run("alice", FIRST)), "bob"),
        (given(run("alice", FIRST), guest="bob"), "alice"),
        (given(run("al", FIRST, "hook"), run("al", SECOND, "hook"), run("al", SECOND), guest="al"), "al"),
        (given(by=look(SEEN)), "alice"),
        (given(by=look(SEEN), guest="bob"), "alice"),
        (given(by=look(SEEN), guest="alice", process=GuestProcess(guest="alice", pid=9, started=500)), "alice"),
        (given(by=look(SEEN), guest="alice", process=RUNS, host={"boot_id": "later"}), "alice"),
    ],
)  # fmt: skip
def test_then_it_is_unknown_and_names_the_guest(found: Evidence, ended: str) -> None:
    result = ecc(found)
    assert (result.outcome, f"not looked at since guest {ended}," in (result.actual or "")) == ("unknown", True)
    assert f"hosttune handover --device {A}" in (result.hint or "")


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (given(looks={}), "never looked at"),
        (given(looks=None), "cannot be read"),
        (
            given(looks=None, problems=(Problem(what="unreadable", where="/var/lib/hosttune/gpus.json", why="no"),)),
            "/var/lib/hosttune/gpus.json: no",
        ),
        (
            given(looks={}, problems=(Problem(what="unreadable", where=f"gpus.json: {A}", why="of 2999"),)),
            f"gpus.json: {A}: of 2999",
        ),
        (given(guest_runs=None), "which guests have had it since is not known"),
        (given(host={"guests": None}, complete=None), "which guests have had it since is not known"),
        (given(by=look(device="10de:2330")), "another GPU is there"),
        (given(by=look(result=CheckResult(check="xid", subject=A, outcome="pass"))), "without this check"),
    ],
)
def test_what_is_not_known_of_it_is_no_pass(found: Evidence, why: str) -> None:
    result = ecc(found)
    assert (result.outcome, why in (result.actual or "")) == ("unknown", True), result.actual
    assert result.hint


@pytest.mark.parametrize("fact", ["uuid", "serial"])
def test_another_gpu_at_the_address_has_no_look(fact: str) -> None:
    facts: dict[str, Any] = {fact: "the old one's"}
    old = look(**facts)
    assert ecc(given(by=old)).outcome == "pass"  # neither can be read on vfio-pci
    there = given(by=old, host={"gpus": (nvidia(uuid="new", serial="new"),)})
    assert "another GPU is there" in (ecc(there).actual or "")


def test_a_gpu_of_the_same_model_put_in_while_vfio_had_the_slot_is_told_by_its_device_serial_number() -> None:
    now = {"pci": (msgspec.structs.replace(function(A, "vfio-pci"), dsn="48b02d0000000002"),)}
    assert ecc(given(by=look(dsn="48b02d0000000002"), host=now)).outcome == "pass"
    assert ecc(given(by=look(), host=now)).outcome == "pass"
    swapped = ecc(given(by=look(dsn="48b02d0000000001"), host=now))
    assert (swapped.outcome, "another GPU is there" in (swapped.actual or "")) == ("unknown", True)


def test_a_fault_that_the_look_found_stays_with_what_to_do_from_here() -> None:
    bad = CheckResult(
        check="ecc-errors", subject=A, outcome="fail", actual="2 uncorrected", source="NVML", hint="reset"
    )
    result = ecc(given(by=look(result=bad)))
    assert (result.outcome, result.hint) == ("fail", f"hosttune handover --device {A}; with its driver: reset")


def test_a_fault_of_the_look_stays_where_the_log_of_this_boot_is_cut_short() -> None:
    bad = CheckResult(check="xid", subject=A, outcome="fail", actual="XID 79", source="dmesg")
    log = Health(events=(KernelEvent(kind="xid", address=A, code=43),), events_since=90000.0, events_source="dmesg")
    assert of(given(by=look(result=bad), health=log), "xid", "kernelevents")[A].outcome == "fail"


def test_the_command_that_looks() -> None:
    """Without the driver on the host a test guest looks; a guest that runs has to end first."""
    found = given(looks={}, guest="alice", host={"platform": Platform()})
    assert ecc(found).hint == f"once guest alice has ended: hosttune handover --device {A} --test-guest IMAGE"


def test_what_is_kept() -> None:
    """A look of each GPU on its driver, only of its health; of one in a guest, who has it."""
    told = (GOOD, CheckResult(check="power-limit", subject=A, outcome="pass"),
            CheckResult(check="ecc-errors", subject=B, outcome="pass"))  # fmt: skip
    on_driver = evidence(nvidia(uuid="u", serial="s"), host={"boot_id": "b"})
    kept = looks_to_keep(on_driver, told, AT)[A]
    assert (kept.results, kept.uuid, kept.serial, kept.boot_id, kept.device) == ((GOOD,), "u", "s", "b", IDS)
    inside = given(guest="alice", process=RUNS)
    assert looks_to_keep(inside, told, SECOND) == {A: look(SEEN)}
    assert looks_to_keep(given(guest="alice", process=RUNS, by=look(SEEN)), told, SECOND) == {}
    assert looks_to_keep(given(), told, SECOND) == {}
    assert {"ecc-errors", "row-remap", "gpu-status", "nvlink", "xid"} <= set(LOOKED)


def test_what_nobody_looked_at_is_not_called_fit_for_use_even_if_accepted() -> None:
    unseen = CheckResult(check="ecc-errors", subject=A, outcome="unknown")
    assert "not shown to be fit for use" in meaning(Validation(results=(unseen,), verdict="pass"))
    assert "fit for use" not in meaning(Validation(results=(GOOD,), verdict="pass")).casefold()


def test_in_one_sentence() -> None:
    assert looked(evidence(nvidia())) is None
    assert looked(given(guest="alice")) == "1 of 1 GPUs looked at 26 Nov 2026 14:03 UTC, before guest alice"
    assert looked(given(looks={})) == (
        "0 of 1 GPUs looked at; 1 never looked at while its driver had it, as far as this host's state goes; look:"
        f" hosttune handover --device {A}"
    )
