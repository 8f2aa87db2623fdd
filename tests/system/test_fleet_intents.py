"""The intents of groups and host are one: guests by name, settings by key, the more specific level counts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fleethosts import Fleet, recorder

GROUPS = """
all:
  children:
    rack: {children: {training: {}, notebooks: {}}}
    training: {hosts: {one: , both: , alone: }}
    notebooks: {hosts: {both: }}
"""
INTENTS: dict[str, str] = {
    "group_vars/rack": "{version: 1, profile: guest, settings: {thp: madvise, ksm: 2}, guests: [{name: a, gpus: 1}]}",
    "group_vars/training": "'{{ inventory_dir }}/training.yml'",
    "group_vars/notebooks": "{version: 1, guests: [{name: b, gpus: 1}]}",
    "host_vars/one": "{version: 1, settings: {ksm: keep}, guests: [{name: a, state: absent}, {name: c, gpus: 2}]}",
}
TRAINING = "version: 1\nprofile: host\nsettings: {thp: never}\nguests: [{name: b, gpus: 4}]\n"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fleet, dict[str, Any]]:
    """Three hosts of two groups below a third."""
    folder = tmp_path_factory.mktemp("intents")
    hosts = {name: {"hosttune_command": recorder(folder / name)} for name in ("one", "both", "alone")}
    hosts["alone"]["hosttune_intent"] = {"version": 1, "reserve": {"cores_per_node": 2}}  # type: ignore[assignment]
    for name, text in INTENTS.items():
        (folder / f"{name}.yml").parent.mkdir(exist_ok=True)
        (folder / f"{name}.yml").write_text(f"hosttune_intent: {text}\n")
    (folder / "training.yml").write_text(TRAINING)
    (folder / "groups.yml").write_text(GROUPS)
    fleet = Fleet(folder, hosts)
    fleet.play("plan", "-i", str(folder / "groups.yml"), code=2)
    return fleet, {name: fleet.document(name, "plan")["fleet"] for name in hosts}


def given(fleet: Fleet, host: str) -> Any:
    return json.loads((fleet.folder / host / "stdin").read_text())


def test_the_more_specific_level_counts_guest_by_guest_and_setting_by_setting(
    played: tuple[Fleet, dict[str, Any]],
) -> None:
    assert given(played[0], "one") == {
        "version": 1,
        "profile": "host",
        "settings": {"thp": "never", "ksm": "keep"},
        "guests": [{"name": "a", "state": "absent"}, {"name": "b", "gpus": 4}, {"name": "c", "gpus": 2}],
    }


def test_what_only_a_host_says_is_added_to_what_its_groups_say(played: tuple[Fleet, dict[str, Any]]) -> None:
    assert given(played[0], "alone") == {
        "version": 1,
        "profile": "host",
        "settings": {"thp": "never", "ksm": 2},
        "guests": [{"name": "a", "gpus": 1}, {"name": "b", "gpus": 4}],
        "reserve": {"cores_per_node": 2},
    }


def test_two_groups_of_one_level_must_not_contradict_each_other(played: tuple[Fleet, dict[str, Any]]) -> None:
    answer = played[1]["both"]
    assert answer["outcome"] == "bad-input"
    assert "group notebooks and group training say different things of guests.b" in answer["why"]
    assert "ansible_group_priority" in answer["why"]
    assert not (played[0].folder / "both" / "argv").exists()


def test_an_intent_of_the_run_itself_is_not_merged(played: tuple[Fleet, dict[str, Any]]) -> None:
    fleet = played[0]
    fleet.play("plan", "-i", str(fleet.folder / "groups.yml"), intent={"version": 1, "guests": []})
    assert [given(fleet, host) for host in ("one", "both", "alone")] == [{"version": 1, "guests": []}] * 3
