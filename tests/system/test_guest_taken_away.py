"""`revert --guest`, `forget-guest`, `apply --prune`, `history`: the commands of the second day on a scratch root."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import applyroots
import boardroots
import pytest
from applyroots import Cli, Root, applied, copied

from hosttune.cli import run
from hosttune.machine.scratch import Scratch
from hosttune.model.intent import Intent
from hosttune.model.result import Entry, Result
from hosttune.transaction.site import log_line, site_of

pristine = boardroots.lean_host
plan = applyroots.plan
cli = applyroots.cli

ROWS = [f"  - {{name: {name}, gpus: 1, memory: 32GiB, networks: [{{network: default}}]}}\n" for name in ("a", "b", "c")]
HEAD = "version: 1\nguests:\n"


@pytest.fixture(scope="module")
def three(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three guests are in force there."""
    return applied(pristine, tmp_path_factory.mktemp("three"), HEAD + "".join(ROWS))


@pytest.fixture
def root(three: Path, tmp_path: Path) -> Iterator[Root]:
    with copied(three, tmp_path / "root") as root:
        yield Root(root.path)


@pytest.fixture
def intent(tmp_path: Path) -> Path:
    """Their file."""
    path = tmp_path / "intent.yaml"
    path.write_text(HEAD + "".join(ROWS))
    return path


def in_force(cli: Cli) -> dict[str, Any]:
    found = site_of(Scratch(str(cli.root.path))).in_force()
    assert found is not None
    return {guest.name: guest for guest in found.guests}


def test_one_of_three_goes_and_revert_gives_back_every_byte(cli: Cli, intent: Path, pristine: Path) -> None:
    code, out, err = cli("revert", "--guest", "bb")
    assert (code, "did you mean b?" in err) == (2, True)
    before = in_force(cli)
    code, out, err = cli("revert", "--guest", "b", "--dry-run")
    assert (code, "nothing was written" in out, "would fail" in out) == (0, True, False)
    assert cli("revert", "--guest", "b")[0] == 3  # it cannot ask
    assert cli("revert", "--guest", "b", "--force")[0] == 2
    assert in_force(cli) == before
    done = cli.json("revert", "--guest", "b", "--yes")
    address = before["b"].places.devices[0].address
    assert any(f"hosttune handover --device {address}" in note for note in done["notes"])
    after = in_force(cli)
    assert {name: one.places for name, one in after.items()} == {name: before[name].places for name in ("a", "c")}
    assert cli.root.driver(address) == "nvidia"
    assert cli.root.driver(before["a"].places.devices[0].address) == "vfio-pci"
    assert cli("status")[0] == 0
    history = json.loads(cli("history", "-o", "json")[1])["transactions"]
    assert [(one["verb"], one["source"] and one["source"]["kind"]) for one in history] == [
        ("apply", "file"), ("revert-guest", None)
    ]  # fmt: skip
    assert [one["guests"] for one in history] == [
        {"created": ["a", "b", "c"], "updated": [], "removed": []}, {"created": [], "updated": [], "removed": ["b"]}
    ]  # fmt: skip
    assert cli("revert", "--yes")[0] == 0
    left = {name for name in cli.root.differences(pristine) if name not in applyroots._MADE_ON_THE_WAY}
    assert {name for name in left if not name.startswith(applyroots._LEFT_BEHIND)} == set()


@pytest.mark.parametrize(
    ("path", "way"),
    [
        (".hosttune/commands/virsh-domstate-b", "virsh shutdown b"),
        ("var/lib/libvirt/qemu/save/b.save", "virsh managedsave-remove b"),
        ("var/lib/libvirt/qemu/snapshot/b/first.xml", "virsh snapshot-delete b"),
    ],
)
def test_a_guest_that_would_lose_something_is_refused(cli: Cli, intent: Path, path: str, way: str) -> None:
    cli.root.put(path, "running\n")
    notes = cli.json("revert", "--guest", "b", "--dry-run")["notes"]
    assert any(note.startswith("revert would ") and "guest b" in note for note in notes), notes
    code, _, err = cli("revert", "--guest", "b", "--yes")
    assert (code, way in err) == (3, True), err


def test_a_device_that_goes_from_guest_to_guest_is_said(cli: Cli, intent: Path) -> None:
    """One guest goes and another gets its GPU; two swap theirs: no driver changes."""
    gpus = {name: guest.places.devices[0].address for name, guest in in_force(cli).items()}
    rows = [row.replace("gpus: 1", f'gpus: ["{gpus[name]}"]') for name, row in zip("abc", ROWS, strict=True)]
    swapped = [rows[0].replace(gpus["a"], gpus["b"]), rows[1].replace(gpus["b"], gpus["a"]), rows[2]]
    renamed = [*swapped[:2], rows[2].replace("name: c", "name: d")]
    for text, left in ((rows, ()), (swapped, "ba"), (renamed, "c")):
        intent.write_text(HEAD + "".join(text))
        notes = cli.json("apply", "--intent", str(intent), "--prune", "--yes")["notes"]
        said = {word for note in notes if note.startswith("not handed over: ") for word in note.split("--device ")[1:]}
        assert {word.strip() for word in said} == {gpus[name] for name in left}


def test_a_guest_that_was_undefined_by_hand_is_defined_again_with_its_variables(cli: Cli, intent: Path) -> None:
    nvram, definition = "var/lib/libvirt/qemu/nvram/b_VARS.fd", ".hosttune/commands/virsh-dumpxml-b"
    cli.root.put(nvram, "variables")
    before = cli.root.get(definition)
    (cli.root.path / definition).unlink()
    done = cli.json("apply", "--intent", str(intent), "--yes")
    assert [one["action"] for one in done["entries"] if one["outcome"] == "done"] == ["guest:b"]
    assert (cli.root.get(definition), cli.root.get(nvram)) == (before, "variables")


def test_a_new_guest_does_not_get_the_variables_of_an_earlier_one(cli: Cli, intent: Path) -> None:
    nvram = "var/lib/libvirt/qemu/nvram/d_VARS.fd"
    cli.root.put(nvram, "variables")
    intent.write_text(HEAD + "".join(ROWS) + ROWS[0].replace("name: a", "name: d"))
    code, _, err = cli("apply", "--intent", str(intent), "--yes")
    assert (code, f"mv /{nvram} /{nvram}.old" in err) == (3, True), err
    assert set(in_force(cli)) == {"a", "b", "c"}
    (cli.root.path / nvram).unlink()
    assert cli("apply", "--intent", str(intent), "--yes")[0] == 0
    assert set(in_force(cli)) == {"a", "b", "c", "d"}


def test_a_change_of_a_guest_that_runs_says_when_it_holds(cli: Cli, intent: Path) -> None:
    cli.root.put(".hosttune/commands/virsh-domstate-b", "running\n")
    intent.write_text(intent.read_text().replace("32GiB", "16GiB"))
    notes = cli.json("apply", "--intent", str(intent), "--yes")["notes"]
    way = "virsh shutdown b, then hosttune apply --intent FILE --start"
    assert [note for note in notes if "next start" in note] == [
        f"guest b: it runs, and has this from its next start: {way}"
    ]


def test_what_was_kept_is_deleted_only_when_asked(cli: Cli, intent: Path) -> None:
    nvram = "var/lib/libvirt/qemu/nvram/b_VARS.fd"
    cli.root.put(nvram, "variables")
    assert cli("revert", "--guest", "b", "--yes")[0] == 0
    code, out, err = cli("forget-guest", "b")
    assert (code, nvram in err) == (3, True), out + err
    assert cli("forget-guest", "b", "--yes")[0] == 0
    assert cli("forget-guest", "b", "--yes")[0] == 2


def test_prune_takes_what_the_file_does_not_name(cli: Cli, intent: Path) -> None:
    intent.write_text(HEAD + ROWS[0])
    assert cli("apply", "--prune", "--yes")[0] == 2
    assert cli("apply", "--intent", str(intent), "--yes")[0] == 0
    assert set(in_force(cli)) == {"a", "b", "c"}
    assert cli("apply", "--intent", str(intent), "--prune", "--yes")[0] == 0
    assert set(in_force(cli)) == {"a"}
    intent.write_text("version: 1\n")
    code, _, err = cli("apply", "--intent", str(intent), "--prune", "--yes")
    assert (code, "guests: []" in err) == (2, True)


def test_a_plan_made_with_prune_has_it_in_itself(cli: Cli, intent: Path, tmp_path: Path) -> None:
    intent.write_text(HEAD + ROWS[2])
    path = tmp_path / "plan.json"
    assert cli("plan", "-f", str(intent), "--prune", "--check", "--out", str(path))[0] == 1
    assert cli("apply", str(path), "--yes")[0] == 0
    assert set(in_force(cli)) == {"c"}
    assert cli("plan", "-f", str(intent), "--replan", "nobody")[0] == 2


def test_the_intent_of_that_day_can_be_applied(cli: Cli, intent: Path, tmp_path: Path) -> None:
    first = intent.read_text()
    intent.write_text(first.replace("a, gpus: 1, memory: 32GiB", "a, gpus: 1, memory: 64GiB"))
    assert cli("apply", "--intent", str(intent), "--yes")[0] == 0
    code, then, _ = cli("history", "1", "--intent")
    assert (code, Intent.from_yaml(then)) == (0, Intent.from_yaml(first))
    assert len(json.loads(cli("history", "2", "-o", "json")[1])["transactions"][0]["entries"]) > 1
    assert cli("history", "--intent")[0] == cli("history", "9")[0] == 2
    assert cli("history")[1].count("intent.yaml") == 2


def test_history_of_a_capture_is_unknown_and_its_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", "--root", "@example"]) == 1
    assert run(["schema", "history"]) == 0
    assert "settings" in capsys.readouterr().out


@pytest.mark.parametrize(("value", "via"), [("ansible", "ansible"), ("other", "shell")])
def test_who_made_it(monkeypatch: pytest.MonkeyPatch, value: str, via: str) -> None:
    from hosttune.transaction.site import caller

    monkeypatch.setenv("HOSTTUNE_VIA", value)
    assert caller().via == via


def test_one_line_in_the_system_log_says_who_did_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scratch root writes none: the line is `log_line`'s, which `log` hands to syslog."""
    monkeypatch.setenv("HOSTTUNE_VIA", "ansible")
    entries = tuple(Entry(action=f"thp:{n}", outcome="done", before="a", want="b", after="b") for n in range(2))
    line = log_line(Result(host="h", verb="apply", entries=entries), 0)
    assert "\n" not in line
    assert line.startswith("hosttune apply by ")
    assert line.endswith(" via ansible: exit code 0, 2 settings and guests changed")


def test_the_second_of_two_operators_is_refused_while_the_first_writes(cli: Cli, intent: Path) -> None:
    store = site_of(Scratch(str(cli.root.path))).store
    assert store is not None
    before = in_force(cli)
    with store.locked():
        for words in (("apply", "--intent", str(intent), "--prune"), ("revert",), ("revert", "--guest", "a")):
            code, _, err = cli(*words, "--yes")
            assert (code, "another hosttune (process " in err) == (3, True), err
    assert in_force(cli) == before


def test_a_value_that_somebody_wrote_and_that_is_wanted_from_now_on_is_noted(cli: Cli, intent: Path) -> None:
    thp = "sys/kernel/mm/transparent_hugepage/enabled"
    text, before = intent.read_text(), cli.root.get(thp)
    for value in ("never", "always"):
        intent.write_text(text.replace("guests:", f"settings: {{thp: {value}}}\nguests:"))
        if value == "always":
            cli.root.put(thp, "[always] madvise never\n")
            assert cli("status")[0] == 1
            assert cli("plan", "-f", str(intent), "--check")[0] == 1
        assert cli("apply", "--intent", str(intent), "--yes")[0] == 0
    assert (cli("status")[0], cli("plan", "-f", str(intent), "--check")[0]) == (0, 0)
    assert cli("apply", "--intent", str(intent), "--yes")[1].count("nothing to change") == 1
    assert cli("revert", "--yes")[0] == 0
    assert cli.root.get(thp) == before


def test_pages_that_others_use_are_no_drift(cli: Cli, intent: Path) -> None:
    pages = int(cli.root.get(applyroots.PAGES))
    cli.root.put(applyroots.PAGES, f"{pages + 6}\n")
    for free, code in ((pages, 0), (pages + 6, 1)):
        cli.root.put(applyroots.PAGES.replace("nr_", "free_"), f"{free}\n")
        assert cli("status")[0] == code
        assert cli("plan", "-f", str(intent), "--check")[0] == code
    assert cli("apply", "--intent", str(intent), "--yes")[0] == 0
    assert (int(cli.root.get(applyroots.PAGES)), cli("status")[0]) == (pages, 0)
