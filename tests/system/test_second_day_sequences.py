"""Sequences of intents on a scratch root: guests that nobody changed stay, the settings are those of one plan on the
bare host, the same intent writes nothing, and revert gives back every byte."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import applyroots
import boardroots
import pytest
from applyroots import PREFERENCE, STATE, Root, copied
from secondday import THP, Answer, Day, Walk, check_again, check_back, check_settings
from sweeps import sample
from xmledits import edited

from hosttune.errors import WriteFailed
from hosttune.machine import scratch
from hosttune.machine.scratch import Scratch

pristine = boardroots.fewer_cpus


@pytest.fixture
def day(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    """A fresh scratch root with an empty intent; the state of this machine stays untouched."""
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "outside"))
    with copied(pristine, tmp_path / "root") as root:
        yield Day(root, pristine)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("seed", sample("second day", range(500), 1))
def test_a_sequence_of_intents(day: Day, seed: int, tmp_path: Path) -> None:
    walk = Walk(day, f"second day {seed}")
    try:
        for _ in range(5):
            walk.step()
        check_settings(day, tmp_path / "bare")
        check_back(day)
    except AssertionError as error:
        error.add_note(f"steps: {', '.join(day.log)}; intent: {day.intent}; guests in force: {day.asked}")
        raise


# --- cases by name -----------------------------------------------------------------------------------------------

A: dict[str, Any] = {"name": "a", "gpus": 2, "memory": "64GiB", "vcpus": 16}
B: dict[str, Any] = {"name": "b", "gpus": 1, "memory": "32GiB", "vcpus": 8}
C: dict[str, Any] = {"name": "c", "gpus": 1, "memory": "16GiB", "vcpus": 4}
DEFINITION = ".hosttune/commands/virsh-dumpxml-{}"


def asked(day: Day, *guests: dict[str, Any], **top: Any) -> Day:
    day.intent = {"version": 1, "guests": list(guests), **top}
    return day


@pytest.fixture(scope="module")
def applied(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with three guests in force."""
    intent = json.dumps({"version": 1, "guests": [A, B, C]})
    return applyroots.applied(pristine, tmp_path_factory.mktemp("applied"), intent)


@pytest.fixture
def three(applied: Path, pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    """Three guests in force."""
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "outside"))
    with copied(applied, tmp_path / "root") as root:
        yield asked(Day(Root(root.path), pristine), A, B, C)


def unplaced(answer: Answer, code: int) -> dict[str, str]:
    return {one["guest"]: " ".join(one["why"]) for one in answer.ended(code)["unplaced"]}


@pytest.mark.sweep(most=4)
@pytest.mark.parametrize(
    ("guests", "top"),
    [
        ([{**A, "memory": "32GiB"}, B, C], {}),
        ([A, B, C], {"profile": "host"}),
        ([A, B, C], {"settings": {"numa_balancing": 0}}),
    ],
)
def test_one_number_is_changed_and_changed_back(three: Day, guests: list[dict[str, Any]], top: dict[str, Any]) -> None:
    before = three.places()
    assert asked(three, *guests, **top).apply().ended()["changed"] is True
    after = three.places()
    assert {name: after[name] for name in "bc"} == {name: before[name] for name in "bc"}
    assert (after["a"].cpus, after["a"].devices) == (before["a"].cpus, before["a"].devices)
    asked(three, A, B, C).apply("--prune").ended()
    assert three.places() == before
    check_back(three)


def test_a_device_that_comes_back_is_set_as_the_host_wants_it_in_the_same_apply(three: Day) -> None:
    (gpu, _), *_ = three.places()["c"].devices
    asked(three, A, B, C, profile="host").apply().ended()
    asked(three, A, B, {"name": "c", "state": "absent"}, profile="host")
    entries = {one["action"]: one["outcome"] for one in three.apply().ended()["entries"]}
    assert (entries[f"driver:{gpu}"], entries[f"gpu-persistence:{gpu}"]) == ("reverted", "done")
    assert three.apply().ended()["changed"] is False
    actions = asked(three, A, B, profile="guest").plan().ended()["actions"]
    backs = [one["id"] for one in actions if one["change"] == "back" and one["current"] != one["want"]]
    text = " ".join(three("plan", "-f", str(three.file)).out.split())
    assert f"gpu-persistence {gpu}: on as before, only noted (back)" in text
    assert f" {len(backs)} to put back" in text
    check_back(three)


def test_mig_inside_gives_the_partition_of_the_gpus_back(day: Day, tmp_path: Path) -> None:
    """MIG turns NVLink off: no partition, no hook for it, and vfio-pci has the GPUs from boot on."""
    inside = {"profile": "1g.18gb", "count": 7}
    for number, guest in enumerate((A, {**A, "mig": inside}, A)):
        asked(day, guest).apply().ended()
        day.asked = {"a": guest}
        check_settings(day, tmp_path / f"bare{number}")
    check_again(day)
    check_back(day)


def test_a_preference_of_a_third_value_is_set_again(three: Day) -> None:
    name = PREFERENCE.format(three.places()["a"].cpus[0])
    three.root.put(name, "balance_power\n")
    assert three("status", "-o", "json").ended(1)["drift"]
    (action,) = [one for one in three.plan().ended()["actions"] if one["kind"] == "energy-preference"]
    assert (action["current"], action["want"], action["drift"]) == ("balance_power", "performance", True)
    assert three.apply().ended()["changed"] is True
    assert three.root.get(name) == "performance"
    assert three("status", "-o", "json").ended()["drift"] == []


@pytest.mark.sweep(most=4)
@pytest.mark.parametrize("memory", ["64GiB", "32GiB"])
def test_the_plan_says_what_of_a_definition_by_hand_goes_back(three: Day, memory: str) -> None:
    text = three.definitions()["a"]
    cpu = three.places()["a"].cpus[0]
    disk = "<disk type='file' device='disk'><source file='/more.img'/><target dev='vdz' bus='virtio'/></disk>"
    mine = edited(text, "devices", disk)
    three.root.put(DEFINITION.format("a"), mine)
    assert asked(three, A, B, C).plan("--check").ended()["guests"][0]["change"] == "keep"
    three.root.put(DEFINITION.format("a"), edited(mine, "cputune/vcpupin[@vcpu='0']", {"cpuset": "0"}))
    (guest,) = [
        one
        for one in asked(three, {**A, "memory": memory}, B, C).plan("--check").ended(1)["guests"]
        if one["name"] == "a"
    ]
    changes = {one["element"]: (one["was"], one["becomes"], one["when"]) for one in guest["changes"]}
    assert changes["vcpupin of vCPU 0"] == ("host CPUs 0", f"host CPUs {cpu}", "now")
    assert ("memory" in changes) == (memory == "32GiB")
    assert len(changes) == len(guest["changes"])  # each element once
    three.apply().ended()
    assert (three.places()["a"].cpus[0], "/more.img" in three.definitions()["a"]) == (cpu, True)
    assert three.plan("--check").code == 0


def test_disks_and_the_start_with_the_host_are_changed_and_a_hand_is_seen(three: Day) -> None:
    start = three.root.path / ".hosttune/commands/virsh-autostart-b"
    more = {**B, "disks": ["/img/b", "/img/more"], "autostart": True}
    answer = asked(three, A, more, C).apply().ended()
    assert [one["outcome"] for one in answer["entries"] if one["action"] == "guest-autostart:b"] == ["done"]
    assert (start.exists(), "/img/more" in three.definitions()["b"]) == (True, True)
    assert three.plan("--check").code == 0
    start.unlink()
    (guest,) = [one for one in three.plan("--check").ended(1)["guests"] if one["name"] == "b"]
    assert [(one["element"], one["was"], one["becomes"]) for one in guest["changes"]] == [("autostart", "off", "on")]
    three.apply().ended()
    assert start.exists()
    asked(three, A, {**more, "disks": ["/img/b"]}, C).apply().ended()
    assert (start.exists(), "/img/more" in three.definitions()["b"]) == (True, False)
    asked(three, A, {"name": "b", "state": "absent"}, C).apply().ended()
    assert (start.exists(), "b" in three.definitions()) == (False, False)
    check_back(three)


@pytest.mark.sweep(most=4)
@pytest.mark.parametrize("way", ["absent", "prune", "revert --guest"])
def test_one_guest_is_taken_away_and_the_others_stay(three: Day, way: str, tmp_path: Path) -> None:
    before = three.places()
    if way == "absent":
        asked(three, {"name": "b", "state": "absent"}).apply().ended()
    elif way == "prune":
        asked(three, A, C).apply("--prune").ended()
    else:
        three("revert", "--guest", "b", "--yes", "-o", "json").ended()
    assert three.places() == {name: before[name] for name in "ac"}
    three.asked = {"a": A, "c": C}
    asked(three, A, C)
    check_settings(three, tmp_path / "bare")
    check_back(three)


@pytest.mark.parametrize("profile", ["guest", "host"])
def test_the_rehearsal_of_a_partial_revert_says_what_the_revert_does(three: Day, profile: str) -> None:
    """A GPU's driver comes back before what it alone can set; what is as it was before is not written."""
    asked(three, A, B, C, profile=profile).apply().ended()
    for name in "bc":
        words = ("revert", "--guest", name, "-o", "json")
        rehearsed = {one["action"]: one["outcome"] for one in three(*words, "--dry-run").ended()["entries"]}
        done = {one["action"]: one["outcome"] for one in three(*words, "--yes").ended()["entries"]}
        assert any(action.startswith("gpu-persistence:") for action in done)
        named = {"done": "planned", "reverted": "planned"}
        assert rehearsed == {action: named.get(outcome, outcome) for action, outcome in done.items()}


def test_a_guest_that_is_left_out_stays_and_is_named(three: Day) -> None:
    before = three.places()
    plan = asked(three, A, C).plan().ended()
    assert [(one["kind"], one["name"]) for one in plan["unnamed"]] == [("guest", "b")]
    assert three.apply().ended()["changed"] is False
    assert three.places() == before


def test_guests_that_swapped_names_are_refused_and_the_third_is_planned(three: Day) -> None:
    texts = three.definitions()
    for name, other in (("a", "b"), ("b", "a")):
        text = edited(texts[other], "name", name)
        three.root.put(DEFINITION.format(name), text)
    answer = asked(three, A, B, {**C, "memory": "8GiB"}).plan()
    assert set(unplaced(answer, 2)) == {"a", "b"}
    assert [(one["name"], one["change"]) for one in answer.document["guests"]] == [("c", "update")]
    before = three.outside()
    assert three.apply().code == 2
    assert three.outside() == before


def test_a_guest_that_was_renamed_is_refused(three: Day) -> None:
    text = edited(three.definitions()["b"], "name", "z")
    (three.root.path / DEFINITION.format("b")).unlink()
    three.root.put(DEFINITION.format("z"), text)
    assert set(unplaced(three.plan(), 2)) == {"b"}


def test_apply_of_a_guest_that_was_renamed_is_bad_input_as_its_plan_is(three: Day) -> None:
    text = edited(three.definitions()["b"], "name", "z")
    (three.root.path / DEFINITION.format("b")).unlink()
    three.root.put(DEFINITION.format("z"), text)
    assert three.apply().code == 2


def test_a_guest_that_was_undefined_by_hand_is_defined_again(three: Day) -> None:
    before = three.definitions()
    (three.root.path / DEFINITION.format("b")).unlink()
    assert three("status", "-o", "json").ended(1)["drift"]
    three.apply().ended()
    assert three.definitions() == before


def test_a_dead_device_of_one_guest_leaves_it_and_the_rest_is_planned(three: Day) -> None:
    before = three.places()
    die(three, before["b"].devices[0][0])
    answer = asked(three, A, B, {**C, "memory": "8GiB"}).plan()
    assert before["b"].devices[0][0] in unplaced(answer, 1)["b"]
    assert {one["name"]: one["change"] for one in answer.document["guests"]} == {"a": "keep", "c": "update"}
    note = " ".join(three.apply().ended(1)["notes"])
    assert f"guest b: {before['b'].devices[0][0]} is gone" in note
    after = three.places()
    assert {name: after[name] for name in "ab"} == {name: before[name] for name in "ab"}
    assert after["c"].memory == 8 << 30


@pytest.mark.sweep(most=4)
@pytest.mark.parametrize("way", ["revert", "revert --guest", "absent", "replan"])
def test_of_a_dead_device_nothing_is_left_to_put_back(three: Day, way: str) -> None:
    (gpu, _), *_ = three.places()["b"].devices
    die(three, gpu)
    asked(three, A, B, C)
    if way == "replan":
        assert three.plan("--replan", "b").code == 0
        assert "would" not in " ".join(three("apply", "--dry-run", "-o", "json").document["notes"])
        done = three("apply", "--yes", "-o", "json").ended()
        assert gpu not in dict(three.places()["b"].devices)
    elif way == "absent":
        done = asked(three, {"name": "b", "state": "absent"}).apply().ended()
    else:
        done = three("revert", *(["--guest", "b"] if way.endswith("guest") else []), "--yes", "-o", "json").ended()
    entries = {one["action"]: one["outcome"] for one in done["entries"]}
    assert (entries[f"driver:{gpu}"], f"--device {gpu}" in json.dumps(done["notes"])) == ("already", False)
    assert three("status").code == 0
    three("revert", "--yes", "-o", "json").ended()
    assert "nothing in force" in three("status").out


def test_the_rule_of_a_device_that_is_gone_stays_as_it_is(three: Day) -> None:
    """Another card at the address must not be taken when it comes."""
    die(three, three.places()["b"].devices[0][0])
    before = three.outside()
    assert asked(three, A, B, C).apply().code == 1
    assert "nothing changed, but NOT COMPLETELY" in three("apply", "--intent", str(three.file), "--yes").out
    assert three.outside() == before


def die(day: Day, address: str) -> None:
    """A device falls off the bus."""
    root = day.root.path
    link = root / "sys/bus/pci/devices" / address
    shutil.rmtree(link.resolve())
    for left in (
        link,
        root / "sys/bus/pci/drivers/vfio-pci" / address,
        *root.glob(f"sys/kernel/iommu_groups/*/devices/{address}"),
    ):
        left.unlink(missing_ok=True)


@pytest.mark.parametrize("text", ['{"version": 1}', None, "guests: ["])
def test_what_is_no_list_of_guests_prunes_nothing(three: Day, text: str | None) -> None:
    file = three.root.path.parent / "other.json"
    if text is not None:
        file.write_text(text)
    before = three.root.tree()
    assert three("apply", "--intent", str(file), "--prune", "--yes").code == 2
    assert three.root.tree() == before


def test_an_empty_list_prunes_every_guest(three: Day) -> None:
    asked(three).apply("--prune").ended()
    assert three.places() == {}
    assert three.contents() == {}


def test_the_plan_of_the_slower_of_two_operators_is_stale(three: Day, tmp_path: Path) -> None:
    slow = tmp_path / "slow.json"
    asked(three, {**A, "memory": "32GiB"}, B, C).plan("--out", str(slow)).ended()
    asked(three, A, {**B, "memory": "16GiB"}, C).apply().ended()
    before = three.outside()
    answer = three("apply", str(slow), "--yes")
    assert (answer.code, "based_on" in answer.err) == (3, True)
    assert three.outside() == before


def test_a_plan_that_was_looked_at_before_its_intent_was_applied_is_not_in_the_way(three: Day) -> None:
    """So that `hosttune apply --start` goes on with what was applied, as its entries say."""
    asked(three, {**A, "memory": "32GiB"}, B, C).plan().ended()
    three.apply().ended()
    assert three("apply", "--yes", "-o", "json").ended()["changed"] is False


class WithoutPages(Scratch):
    """A root on which no pool of huge pages can be changed."""

    def write(self, path: str, text: str) -> None:
        """See System."""
        if path.endswith("nr_hugepages"):
            raise WriteFailed(path, os.strerror(errno.EIO), errno.EIO)
        super().write(path, text)


def test_a_plan_whose_apply_was_rolled_back_is_applied(three: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(three, {**A, "memory": "32GiB"}, B, C)
    with monkeypatch.context() as patch:
        patch.setattr(scratch, "Scratch", WithoutPages)
        three.apply().ended(1)
    three.plan().ended()
    assert three("apply", "--yes", "-o", "json").ended()["changed"] is True
    assert three.places()["a"].memory == 32 << 30


def test_without_the_state_directory_nothing_is_updated_or_taken(three: Day) -> None:
    shutil.rmtree(three.root.path / STATE)
    before = three.outside()
    for request in ({**A, "memory": "32GiB"}, {"name": "a", "state": "absent"}):
        answer = asked(three, request).apply()
        assert (answer.code, answer.err[:39]) == (3, "error: what is in force here is unknown")
    assert three.outside() == before


def test_a_plan_beside_an_unreadable_journal_says_so_first(three: Day) -> None:
    journal = max((three.root.path / STATE / "transactions").glob("*.jsonl"))
    journal.write_text(journal.read_text() + "garbage{\n")
    answer = asked(three, A).plan()
    assert (answer.code, answer.err[:42]) == (2, "error: a journal that cannot be read: JSON")
    assert f"where: {journal}, line " in answer.err


def test_a_lost_state_directory_is_unknown_and_the_way_back_works(three: Day) -> None:
    shutil.move(three.root.path / STATE, three.root.path.parent / "backup")
    status = three("status", "-o", "json")
    assert (status.code, status.document["state_known"]) == (1, False)
    (why,) = status.document["notes"]
    host = three("discover", "-o", "json").ended()
    assert host["in_force"] is None
    assert any(one["why"].startswith("what is in force here is unknown") for one in host["problems"])
    asked(three, {"name": "d", "gpus": 1, "memory": "8GiB"})
    assert any("restore " in one["text"] for one in three.plan().ended()["findings"])
    before = three.outside()
    refused = [("revert", "--yes"), ("revert", "--guest", "a", "--yes"), ("recover",)]
    for answer in (three.apply(), *(three(*words) for words in refused)):
        assert (answer.code, "what is in force here is unknown" in answer.err) == (3, True)
    assert three.outside() == before
    shutil.rmtree(three.root.path / STATE, ignore_errors=True)
    shutil.move(three.root.path.parent / "backup", three.root.path / STATE)
    check_back(three)
    assert "rm /etc" in why


def test_without_a_backup_the_files_that_hosttune_wrote_are_removed(three: Day) -> None:
    shutil.rmtree(three.root.path / STATE)
    (why,) = three("status", "-o", "json").document["notes"]
    boot = three("apply", "--boot", "-o", "json")
    assert (boot.code, boot.document["notes"]) == (1, [why])
    history = three("history")
    assert (history.code, "no journal knows" in history.err) == (1, True)
    for answer in (
        asked(three, {**A, "memory": "32GiB"}).plan(),
        asked(three, {"name": "a", "state": "absent"}).plan(),
    ):
        assert (answer.code, answer.err[:39]) == (2, "error: what is in force here is unknown")
        assert "rm /etc" in answer.err
    assert asked(three).apply().code == 3
    results = {one["check"]: one for one in three("validate", "-o", "json").document["results"]}
    assert (results["settings-in-force"]["outcome"], results["settings-in-force"]["actual"]) == ("unknown", why)
    for path in why.partition("rm ")[2].partition(",")[0].split():
        (three.root.path / path.lstrip("/")).unlink()
    files = (path for path in (three.root.path / "etc").rglob("*") if path.is_file())
    ours = [path for path in files if "by hosttune" in path.read_text()]
    assert ("nothing in force" in three("status").out, ours) == (True, [])
    assert three("plan", "--adopt", "a").code == 0


@pytest.mark.parametrize("more", [{"profile": "host"}, {"guests": [A, B, C, {**C, "name": "d", "gpus": 0, "nics": 1}]}])
def test_a_state_directory_of_an_older_backup_is_unknown(three: Day, more: dict[str, Any]) -> None:
    folder = three.root.path / STATE
    shutil.copytree(folder, three.root.path.parent / "backup")
    asked(three, A, B, C, **more).apply().ended()
    shutil.rmtree(folder)
    shutil.move(three.root.path.parent / "backup", folder)
    assert three("status", "-o", "json").document["state_known"] is False


def test_a_guest_that_an_older_backup_does_not_know_is_named(three: Day) -> None:
    """Its GPU is of the NVSwitch fabric, so no file outside the state directory has it."""
    folder = three.root.path / STATE
    shutil.copytree(folder, three.root.path.parent / "backup")
    assert three("status", "-o", "json").ended()["notes"] == []
    asked(three, A, B, C, {**C, "name": "d"}).apply().ended()
    shutil.rmtree(folder)
    shutil.move(three.root.path.parent / "backup", folder)
    (note,) = three("status", "-o", "json").document["notes"]
    assert ("guest d: " in note, "restore the newest; else hosttune plan --adopt d" in note) == (True, True)


def test_a_setting_that_was_given_up_does_not_drift(three: Day) -> None:
    asked(three, A, B, C, settings={"thp": "never"}).apply().ended()
    asked(three, A, B, C, settings={"thp": "keep"}).apply().ended()
    three.root.put(THP, "[always] madvise never\n")
    assert three("status", "-o", "json").ended()["drift"] == []
    assert three.apply().ended()["changed"] is False


def test_what_is_only_noted_as_wanted_is_said(three: Day) -> None:
    """Somebody else has written what the intent wants from now on."""
    asked(three, A, B, C, settings={"thp": "never"}).apply().ended()
    three.root.put(THP, "[always] madvise never\n")
    asked(three, A, B, C, settings={"thp": "always"}).file.write_text(json.dumps(three.intent))
    done = three("apply", "--intent", str(three.file), "--yes")
    assert "always as before, only noted" in done.out, done.out
    assert three.apply().ended()["changed"] is False


def test_what_has_drifted_and_is_given_up_stays_as_it_is_and_that_is_said(three: Day) -> None:
    asked(three, A, B, C, settings={"thp": "never"}).apply().ended()
    three.root.put(THP, "[always] madvise never\n")
    asked(three, A, B, C, settings={"thp": "keep"}).file.write_text(json.dumps(three.intent))
    for outcome, option in (("planned", "--dry-run"), ("done", "--yes")):
        told = " ".join(three("apply", "--intent", str(three.file), option).out.split())
        assert re.search(f" {outcome} thp [^ ]*: always as before, only noted given up: left as it is ", told), told
        assert "-> never" not in told
    assert three.root.get(THP) == "[always] madvise never"


def test_what_somebody_did_by_hand_and_the_intent_wants_now_is_in_force(three: Day) -> None:
    """A definition and a pool that are already as wanted: the next status calls nothing drifted."""
    before = three.root.path.parent / "backup"
    shutil.copytree(three.root.path / STATE, before)
    asked(three, {**A, "memory": "32GiB"}, B, C).apply().ended()
    shutil.rmtree(three.root.path / STATE)
    shutil.move(before, three.root.path / STATE)
    assert len(three("status", "-o", "json").ended(1)["drift"]) >= 2
    three.apply().ended()
    assert three("status", "-o", "json").ended()["drift"] == []
    assert three.apply().ended()["changed"] is False
    check_back(three)


def test_a_guest_that_went_just_before_a_revert_was_cut_is_in_the_history(three: Day) -> None:
    assert three("revert", "--yes").code == 0
    journal = max((three.root.path / STATE / "transactions").glob("*.jsonl"))
    lines = journal.read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if '"kind":"guest","target":"b"' in line)
    begun, done = json.loads(lines[at]), json.loads(lines[at + 1])
    begun.pop("old")
    # The step has no end, as a kill right after the write leaves it, and the next revert finds that done.
    lines[at + 1 : at + 2] = [json.dumps({**begun, "step": 99}), json.dumps({**done, "step": 99, "outcome": "already"})]
    journal.write_text("\n".join(lines) + "\n")
    newest = three("history", "-o", "json").document["transactions"][-1]
    assert sorted(newest["guests"]["removed"]) == ["a", "b", "c"]
