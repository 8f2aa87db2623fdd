"""Apply of a plan that adopts an existing guest: what it changes and keeps, what it refuses, what it never shows."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import applyroots
import msgspec
import pytest
from adoptions import BY_HAND, SECRET, adopted_by_hand, with_changes
from faultkinds import DIGEST, host
from faultlab import fresh_root, quiet, site_on
from faultplans import mutant
from msgspec.structs import replace
from sweeps import sample
from xmledits import Edit, edited, with_edits

import hosttune
from hosttune.cli.process import run
from hosttune.domain.definitions import digest_of, managers_of, same_guest, secrets_of, without_secrets
from hosttune.domain.edit import XmlText
from hosttune.domain.guest import Memnode
from hosttune.domain.reader import read_domain
from hosttune.errors import BadInput, CommandFailed, Declined, HosttuneError, Refused
from hosttune.hypervisor.definition import AdoptedDefinition, is_domain_name
from hosttune.journal.register import record_devices
from hosttune.machine.live import LiveMachine
from hosttune.machine.scratch import Scratch
from hosttune.model.host import Host, RunningGuest
from hosttune.model.intent import Intent
from hosttune.model.plan import AdoptedGuest, Cell, Device, Plan, Topology
from hosttune.model.quarantine import DeviceRecord
from hosttune.model.result import Result
from hosttune.model.values import to_json
from hosttune.planning.adopting import Definition, adopt, change_definition, saved_plan
from hosttune.transaction import ApplyOptions, apply_plan, recover, rehearse_apply, revert, status
from hosttune.transaction.calls import take_away
from hosttune.transaction.guards import check_quarantine
from hosttune.transaction.guests import definition_change
from hosttune.transaction.steps import TODO, Prepared, SettingStep

NAME = "byhand"
DEFINED = f".hosttune/commands/virsh-dumpxml-{NAME}"
SAVED = f"var/lib/libvirt/qemu/save/{NAME}.save"


def plan_of(*adopted: AdoptedGuest) -> Plan:
    return Plan(intent=Intent(version=1), host_digest=DIGEST, hostname="scratch", adoptions=adopted)


ADOPTED = adopted_by_hand(BY_HAND)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return fresh_root(tmp_path / "root", {DEFINED: BY_HAND}, {})


def applied(root: Path, plan: Plan, said: list[str] | None = None) -> tuple[Result, int]:
    say = quiet if said is None else said.append
    return apply_plan(site_on(root), plan, ApplyOptions(), host, lambda todo: True, say)


def defined(root: Path) -> str:
    return (root / DEFINED).read_text()


def outcomes(result: Result) -> list[tuple[str, str]]:
    return [(entry.action, entry.outcome) for entry in result.entries]


def test_a_guest_with_a_quarantined_device_is_left_alone(root: Path) -> None:
    device = Device(address="0000:41:00.0", kind="gpu", guest_cell=0, guest_address="0000:01:00.0", identity="i")
    adopted = replace(ADOPTED, guest=replace(ADOPTED.guest, devices=(device,)))
    kept = DeviceRecord(address=device.address, identity="i", state="quarantined", since="now", why="hand-over 1")
    record_devices(str(root / "var/lib/hosttune"), (kept,))
    with pytest.raises(Refused, match=f"{device.address} is quarantined"):
        check_quarantine(plan_of(adopted), host(), site_on(root).store)
    check_quarantine(plan_of(ADOPTED), host(), site_on(root).store)


@pytest.mark.parametrize("state", ["shut off", "running"])
def test_taken_away_by_name_it_has_its_original_bytes_and_not_while_it_runs(root: Path, state: str) -> None:
    applied(root, plan_of(ADOPTED))
    site = site_on(root)
    guest = RunningGuest(name=NAME, uuid=ADOPTED.uuid, state=state)

    def discover() -> Host:
        return replace(host(), guests=(guest,), in_force=site.in_force())

    def away() -> Result:
        return take_away((site, discover), [NAME], ApplyOptions(), confirm=lambda todo: True, say=quiet)

    if state == "running":
        before = defined(root)
        with pytest.raises(Refused, match=f"{NAME!r} runs"):
            away()
        assert defined(root) == before
        return
    assert away().exit_code == 0
    assert defined(root) == BY_HAND
    assert adopted_in_force(root) == ()


# --- what it does ----------------------------------------------------------------------------------------------


def test_the_definition_is_changed_and_reverted(root: Path) -> None:
    result, code = applied(root, plan_of(ADOPTED))
    assert (code, outcomes(result), result.changed) == (0, [(f"adopted-guest:{NAME}", "done")], True)
    facts = read_domain(defined(root))
    assert [pin.cpus for pin in facts.vcpu_pins] == ["4", "5"]
    assert (facts.numatune, facts.emulator_cpus) == (Memnode(mode="strict", nodes="0"), "0-1")
    assert secrets_of(defined(root)) == (SECRET,)
    kept = iter(defined(root).splitlines())
    assert all(line in kept for line in BY_HAND.splitlines())
    found, code = status(site_on(root))
    assert (code, found.drift, outcomes(found)) == (0, (), outcomes(result))
    assert adopted_in_force(root) == (ADOPTED,)
    undone, code = revert(site_on(root), quiet)
    assert (code, outcomes(undone)) == (0, [(f"adopted-guest:{NAME}", "reverted")])
    assert defined(root) == BY_HAND
    assert adopted_in_force(root) == ()
    lines = map(json.loads, (root / "var/lib/hosttune/transactions/000001.jsonl").read_text().splitlines())
    intent = next(line for line in lines if line.get("event") == "intent")
    assert (intent["kind"], intent["target"], intent["old"]) == ("adopted-guest", NAME, BY_HAND)


def test_a_second_apply_changes_nothing(root: Path) -> None:
    applied(root, plan_of(ADOPTED))
    first = defined(root)
    result, code = applied(root, plan_of(ADOPTED))
    assert (code, outcomes(result), result.changed) == (0, [(f"adopted-guest:{NAME}", "already")], False)
    assert defined(root) == first
    (root / SAVED).parent.mkdir(parents=True)
    (root / SAVED).touch()  # nothing is written, so it does not matter
    assert applied(root, plan_of(ADOPTED))[1] == 0


def adopted_in_force(root: Path) -> tuple[AdoptedGuest, ...]:
    found = site_on(root).in_force()
    assert found is not None
    return tuple(one.adopted for one in found.guests if one.adopted is not None)


def test_what_a_failed_revert_has_left_is_in_force(root: Path) -> None:
    applied(root, plan_of(ADOPTED))
    changed = defined(root)
    revert(site_on(root), quiet)
    journal = root / "var/lib/hosttune/transactions/000002.jsonl"
    *lines, done, _ = journal.read_text().splitlines()
    journal.write_text("\n".join((*lines, done.replace('"outcome":"reverted"', '"outcome":"failed"'), "")))
    assert adopted_in_force(root) == (ADOPTED,)
    assert status(site_on(root))[0].entries == ()  # it is as it was
    (root / DEFINED).write_text(changed)
    assert recover(site_on(root), quiet)[1] == 0
    assert defined(root) == BY_HAND


class Forgetful(Scratch):
    """A libvirt that does not know an element."""

    def tell(self, name: str, value: str, live: Callable[[], None]) -> None:
        forgotten = edited(value, "cputune/emulatorpin", None) if "emulatorpin" in value else value
        super().tell(name, forgotten, live)


def test_what_libvirt_drops_ends_the_apply(root: Path) -> None:
    site = msgspec.structs.replace(site_on(root), system=Forgetful(str(root)))
    result, code = apply_plan(site, plan_of(ADOPTED), ApplyOptions(), host, lambda todo: True, quiet)
    assert (code, outcomes(result), result.changed) == (1, [(f"adopted-guest:{NAME}", "clamped")], False)
    assert result.entries[0].why == "emulatorpin: wanted host CPUs 0-1, found not pinned; rolled back: reverted"
    assert defined(root) == BY_HAND


def test_without_guests_nothing_is_asked(root: Path) -> None:
    (root / DEFINED).unlink()
    plan = plan_of(ADOPTED)
    result, code = apply_plan(site_on(root), plan, ApplyOptions(guests=False), host, lambda todo: True, quiet)
    assert (code, result.entries) == (0, ())


NOTE, OTHER_UUID = "metadata/{urn:own}note", "00000000-edaf-9455-926a-d65c16db1809"
DISK = "<disk type='file' device='disk'><source file='/more.img'/><target dev='vdz' bus='virtio'/></disk>"


@pytest.mark.parametrize(
    ("path", "edit", "drift"),
    [
        (NOTE, {"at": "8"}, None),
        ("devices", DISK, None),
        ("cputune/vcpupin", {"cpuset": "2"}, "vcpupin of vCPU 0: wanted host CPUs 4, found host CPUs 2"),
        ("vcpu", "3", "vcpus"),
        ("memory", "262144", "memory"),
        ("uuid", OTHER_UUID, "uuid"),
    ],
)
def test_an_edit_is_a_conflict_and_drift_if_the_adoption_decides_it(
    path: str, edit: Edit, drift: str | None, root: Path
) -> None:
    applied(root, plan_of(ADOPTED))
    by_hand = edited(defined(root), path, edit)
    (root / DEFINED).write_text(by_hand)
    found, code = status(site_on(root))
    assert (code, len(found.drift)) == ((0, 0) if drift is None else (1, 1))
    assert drift is None or drift in (found.drift[0].why or "")
    undone, code = revert(site_on(root), quiet)
    assert (code, outcomes(undone)[0][1], defined(root)) == (1, "conflict", by_hand)
    undone, code = revert(site_on(root), quiet, force=True)
    assert (code, defined(root)) == (0, BY_HAND)


def test_a_guest_that_is_gone_is_a_conflict_and_never_undefined(root: Path) -> None:
    applied(root, plan_of(ADOPTED))
    (root / DEFINED).unlink()
    undone, code = revert(site_on(root), quiet)
    assert (code, outcomes(undone)[0][1]) == (1, "conflict")
    with pytest.raises(HosttuneError, match="does not undefine it"):
        AdoptedDefinition.of(NAME).write(site_on(root).system, None)


# --- what it refuses -------------------------------------------------------------------------------------------

STALE: dict[str, tuple[str | None, str]] = {
    "gone": (None, "not defined any more"),
    "another guest": (edited(BY_HAND, "uuid", OTHER_UUID), "00000000-edaf.* now, and c7a5fdbd.*another guest"),
    "a note": (edited(BY_HAND, NOTE, "changed"), "something that the plan does not change"),
    "pins": (
        edited(BY_HAND, ".", "<cputune><vcpupin vcpu='1' cpuset='3'/></cputune>"),
        "vcpupin of vCPUs 0-1: planned from not pinned, now host CPUs 3",
    ),
    "more vCPUs": (edited(BY_HAND, "vcpu", "3"), "something that the plan does not change"),
    "as the plan wants it": (None, ""),  # see below
}


@pytest.mark.parametrize("what", STALE)
def test_a_guest_that_changed_since_the_plan_is_refused(what: str, root: Path) -> None:
    xml, why = STALE[what]
    if what == "as the plan wants it":  # somebody else made the same change: hosttune has no original to go back to
        applied(root, plan_of(ADOPTED))
        xml, why = defined(root), "vcpupin of vCPUs 0-1: planned from not pinned, now it needs no change"
        revert(site_on(root), quiet)
    if xml is None:
        (root / DEFINED).unlink()
    else:
        (root / DEFINED).write_text(xml)
    with pytest.raises(Refused, match=f"(?s)the plan is stale: guest 'byhand' .*{why}") as refused:
        applied(root, plan_of(ADOPTED))
    assert refused.value.hint == "plan again: hosttune plan --adopt byhand"
    with pytest.raises(Refused, match="stale"):
        rehearse_apply(site_on(root), plan_of(ADOPTED), ApplyOptions(), host)
    assert xml is None or defined(root) == xml


def test_a_password_that_changed_since_the_plan_is_kept(root: Path) -> None:
    """It is not in what the plan's digest is made of, nor in the plan."""
    (root / DEFINED).write_text(BY_HAND.replace("geheim", "anders"))
    assert applied(root, plan_of(ADOPTED))[1] == 0
    assert secrets_of(defined(root)) == (SECRET.replace("geheim", "anders"),)


def test_a_managed_save_is_refused(root: Path) -> None:
    (root / SAVED).parent.mkdir(parents=True)
    (root / SAVED).touch()
    with pytest.raises(Refused, match="managed save") as refused:
        applied(root, plan_of(ADOPTED))
    assert "virsh managedsave-remove byhand" in refused.value.hint


def test_another_manager_needs_consent(root: Path) -> None:
    nova = edited(BY_HAND, "metadata", "<n:instance xmlns:n='http://openstack.org/xmlns/libvirt/nova/1.1'/>")
    (root / DEFINED).write_text(nova)
    assert managers_of(XmlText(nova.encode())) == ("OpenStack Nova",)
    with pytest.raises(Refused, match="OpenStack Nova manages guest 'byhand'"):
        applied(root, plan_of(adopted_by_hand(nova)))
    with pytest.raises(Refused, match="OpenStack Nova"):
        applied(root, plan_of(replace(adopted_by_hand(nova, consent=True), managers=("oVirt",))))
    assert applied(root, plan_of(adopted_by_hand(nova, consent=True)))[1] == 0


def test_more_than_a_journal_can_hold_is_refused(root: Path) -> None:
    guests = []
    for n in range(3):
        large = with_edits(BY_HAND, ("name", f"g{n}"), (NOTE, "x" * (3 << 20)))
        (root / DEFINED).with_name(f"virsh-dumpxml-g{n}").write_text(large)
        guests.append(adopted_by_hand(large, cpus=(2 + 2 * n, 3 + 2 * n)))
    with pytest.raises(Refused, match="too large for one journal"):
        applied(root, plan_of(*guests))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"changes": ADOPTED.changes[:1]}, "does not make the changes"),
        ({"changes": (replace(ADOPTED.changes[0], becomes="host CPUs 0"), *ADOPTED.changes[1:])}, "does not make"),
        ({"cells": (replace(ADOPTED.cells[0], id=3),)}, None),
    ],
)
def test_a_plan_that_makes_other_changes_than_it_names_is_refused(
    change: dict[str, Any], why: str | None, root: Path
) -> None:
    if why is None:
        cells = edited(BY_HAND, ".", "<cpu><numa><cell cpus='0-1' memory='131072'/></numa></cpu>")
        (root / DEFINED).write_text(cells)
        wrong = with_changes(replace(adopted_by_hand(cells), **change), cells)
    else:
        wrong = replace(ADOPTED, **change)
    with pytest.raises(Refused, match="does not make the changes"):
        applied(root, plan_of(wrong))


@pytest.mark.parametrize(("place", "why"), [({"cpus": (4, 400)}, "CPUs 400"), ({"node": 9}, "nodes 9")])
def test_places_that_the_host_lacks_are_refused(place: dict[str, Any], why: str, root: Path) -> None:
    with pytest.raises(Refused, match=f"{why}, which this host does not have"):
        applied(root, plan_of(adopted_by_hand(BY_HAND, **place)))
    assert defined(root) == BY_HAND


HOSTILE: dict[str, dict[str, Any]] = {
    "name": {"name": "a\nb", "guest": replace(ADOPTED.guest, name="a\nb")},
    "path": {"name": "../x", "guest": replace(ADOPTED.guest, name="../x")},
    "other name": {"name": "other"},
    "uuid": {"uuid": "not one"},
    "digest": {"definition_sha256": "0" * 63},
    "text": {"changes": (replace(ADOPTED.changes[0], was="\x1b[2J"),)},
    "effect": {"changes": (replace(ADOPTED.changes[0], effect="never"),)},
    "manager": {"managers": ("a\u202eb",)},
    "pins": {"pins": ADOPTED.pins[:1]},
    "vCPU twice": {"pins": (ADOPTED.pins[0], replace(ADOPTED.pins[1], vcpu=0))},
    "negative vCPU": {"pins": (ADOPTED.pins[0], replace(ADOPTED.pins[1], vcpu=-1))},
    "CPU twice": {"pins": (ADOPTED.pins[0], replace(ADOPTED.pins[1], cpus="4"))},
    "absurd CPU": {"pins": (ADOPTED.pins[0], replace(ADOPTED.pins[1], cpus="9" * 6000))},
    "several CPUs": {"pins": (ADOPTED.pins[0], replace(ADOPTED.pins[1], cpus="5-7"))},
    "no CPU": {"pins": (ADOPTED.pins[0], replace(ADOPTED.pins[1], cpus=""))},
    "cell": {"cells": (replace(ADOPTED.cells[0], id=-1),)},
    "cells": {"cells": ()},
    "foreign": {"foreign_cpus": "0-99999999999"},
}
BAD_CELLS: dict[str, dict[str, Any]] = {
    "node": {"host_nodes": "x"},
    "memory": {"memory_bytes": -1},
    "much memory": {"memory_bytes": 1 << 80},
    "distance": {"distances": (0,)},
}


def hostile() -> Iterator[tuple[str, AdoptedGuest]]:
    for what, change in HOSTILE.items():
        yield what, replace(ADOPTED, **change)
    for what, change in BAD_CELLS.items():
        cell: Cell = replace(ADOPTED.cells[0].cell, **change)
        guest = replace(ADOPTED.guest, cells=(cell,))
        yield what, replace(ADOPTED, guest=guest, cells=(replace(ADOPTED.cells[0], cell=cell),))
    for what, topology in {"no level": (0, 1, 1, 1), "levels": (1, 1, 1 << 70, 1)}.items():
        levels = Topology(**dict(zip(("sockets", "dies", "cores", "threads"), topology, strict=True)))
        yield what, replace(ADOPTED, guest=replace(ADOPTED.guest, topology=levels))
    yield "emulator", replace(ADOPTED, guest=replace(ADOPTED.guest, emulator_cpus="'/><x/>"))


@pytest.mark.parametrize(("what", "adopted"), list(hostile()), ids=lambda value: value if type(value) is str else "")
def test_hostile_values_of_a_plan_are_bad_input(what: str, adopted: AdoptedGuest, root: Path) -> None:
    with pytest.raises(BadInput) as bad:
        applied(root, plan_of(adopted))
    assert bad.value.where.startswith("plan: adoptions[0]")
    assert defined(root) == BY_HAND


def test_a_mutated_plan_is_refused_or_makes_the_same_definition(root: Path) -> None:
    wanted: list[Any] = []

    def decline(todo: Sequence[Prepared]) -> bool:
        wanted.extend(one.step.want for one in todo)
        return False

    text, want = plan_of(ADOPTED).to_json(), change_definition(BY_HAND, ADOPTED)[0]
    ended: Counter[str] = Counter()
    for number in sample("mutated adoptions", range(3000), 60):
        what, data = mutant(text, number)
        try:
            _, code = apply_plan(site_on(root), Plan.from_json(data), ApplyOptions(), host, decline, quiet)
            ended["none"] += 1
            assert code == 0
            assert "gone" in what  # the adoption itself
        except (BadInput, Refused, Declined) as error:
            ended[type(error).__name__] += 1
    assert {"BadInput", "Declined"} <= ended.keys()
    assert set(wanted) == {want}
    assert defined(root) == BY_HAND


def test_two_guests_of_one_name_are_bad_input(root: Path) -> None:
    with pytest.raises(BadInput, match="not the name of one guest"):
        applied(root, plan_of(ADOPTED, ADOPTED))
    with pytest.raises(BadInput, match="a second guest named 'byhand'"):
        applied(root, replace(plan_of(ADOPTED), guests=(ADOPTED.guest,)))


def test_a_plan_survives_its_file() -> None:
    assert Plan.from_json(plan_of(ADOPTED).to_json()) == plan_of(ADOPTED)


@pytest.mark.parametrize(
    ("name", "valid"),
    [("Windows 10", True), ("größe", True), ("-x", True), ("", False), (" a", False), (".", False), ("a/b", False),
     ("a\nb", False), ("\ud800", False), ("x" * 300, False)],
)  # fmt: skip
def test_names_that_libvirt_takes(name: str, valid: bool) -> None:
    assert is_domain_name(name) is valid


# --- what it never shows ---------------------------------------------------------------------------------------


def test_the_password_is_in_the_journal_alone(root: Path) -> None:
    said: list[str] = []
    shown = [plan_of(ADOPTED).to_json()]
    shown += [to_json(rehearse_apply(site_on(root), plan_of(ADOPTED), ApplyOptions(), host)[0])]
    shown += [to_json(applied(root, plan_of(ADOPTED), said)[0]), to_json(status(site_on(root))[0])]
    (root / DEFINED).write_text(defined(root).replace("geheim", "geheim-2"))
    shown += [to_json(status(site_on(root))[0]), to_json(revert(site_on(root), said.append)[0])]
    shown += [to_json(status(site_on(root))[0]), to_json(revert(site_on(root), said.append, force=True)[0])]
    assert said
    assert [text for text in (*shown, *said) if "geheim" in text] == []
    assert any("passwdValidTo" in text for text in shown)  # the definition is shown, but for that
    folder = root / "var/lib/hosttune/transactions"
    holding = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir() if b"geheim" in path.read_bytes()}
    assert holding == {f"00000{number}.jsonl": 0o600 for number in (1, 2, 3)}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_a_difference_beside_the_password_does_not_show_it() -> None:
    want = edited(BY_HAND, "devices", "<input type='tablet'/>")
    step = SettingStep(AdoptedDefinition.of(NAME), want, (), {})
    shown = definition_change(Prepared(step, TODO, BY_HAND, BY_HAND))
    assert shown
    assert "passwdValidTo" in shown
    assert "geheim" not in shown


def test_a_refusal_of_libvirt_does_not_show_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    virsh = tmp_path / "virsh"
    virsh.write_text("#!/bin/sh\ncat >&2\nexit 1\n")  # it prints what it was given
    virsh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    xml = BY_HAND.replace("geheim&lt;7", "geheim")
    with pytest.raises(CommandFailed) as failed:
        AdoptedDefinition.of(NAME).write(LiveMachine(), xml)
    assert "passwd='*****'" in failed.value.output
    assert "geheim" not in str(failed.value)


def test_a_definition_that_cannot_be_read_is_not_shown() -> None:
    assert AdoptedDefinition.of(NAME).shown("<domain passwd='x") == "17 characters that are not a definition"


def test_the_command_line_shows_no_password(
    tmp_path: Path, pristine: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    with applyroots.copied(pristine, tmp_path / "root") as copy:
        (copy.path / DEFINED).parent.mkdir(parents=True, exist_ok=True)
        (copy.path / DEFINED).write_text(BY_HAND)
        found = adopt(hosttune.discover(str(copy.path)), [Definition(without_secrets(BY_HAND).encode())])
        (tmp_path / "plan.json").write_text(saved_plan(found).to_json())
        words = ["--root", str(copy.path)]
        printed = b""
        for command in (
            ["apply", str(tmp_path / "plan.json"), "--dry-run"],
            ["apply", str(tmp_path / "plan.json"), "--yes", "-o", "json"],
            ["status"],
            ["revert", "--yes", "-o", "json"],
        ):
            assert run([*command, *words]) == 0, capsysbinary.readouterr().err
            out, err = capsysbinary.readouterr()
            printed += out + err
        assert b"+  <cputune>" in printed
        assert b'"adopted-guest:byhand"' in printed
        assert b"geheim" not in printed
        assert (copy.path / DEFINED).read_text() == BY_HAND


# --- texts of definitions --------------------------------------------------------------------------------------


def test_secrets_leave_every_other_byte() -> None:
    text = BY_HAND.replace(" passwd='geheim&lt;7'", "")
    assert without_secrets(BY_HAND) == text
    assert digest_of(BY_HAND) == digest_of(text) == digest_of(f"\n{text}\n\n")
    assert digest_of(text) != digest_of(text.replace("kept", "lost"))
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    ("path", "edit", "what"),
    [
        (NOTE, "lost", "'kept': missing"),
        ("devices", "<input type='tablet'/>", "domain/devices/input type='tablet': not wanted"),
        ("memory", "262144", "memory: wanted"),
        ("devices/graphics", {"passwd": "anders"}, "the password of a graphics device differs"),
    ],
)
def test_definitions_are_compared_by_all_elements(path: str, edit: Edit, what: str) -> None:
    assert same_guest(BY_HAND, BY_HAND, whole=True) == ()
    assert same_guest(BY_HAND.replace("  ", ""), BY_HAND, whole=True) == ()
    assert what in " ".join(same_guest(edited(BY_HAND, path, edit), BY_HAND, whole=True))
    assert "not an XML document" in " ".join(same_guest(BY_HAND[:-12], BY_HAND, whole=True))
