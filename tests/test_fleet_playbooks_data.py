"""Variables of an inventory are data: whatever stands in them arrives as it is, or is refused by name; nothing runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fleethosts import BIN, HOSTTUNE, PLAYBOOKS, Fleet, script, stand_in

from hosttune.checks.expected import of_document
from hosttune.fleet.results import host_folder

# Argument after argument with a NUL between, then what came on standard input.
_RECORDER = """#!/bin/sh
printf '%s\\0' "$@" > "{folder}/argv"
cat > "{folder}/stdin"
echo '{{"schema": "hosttune.plan/v1", "guests": [], "actions": []}}'
"""


def recorder(folder: Path) -> str:
    """A command that notes how it was called."""
    path = folder / "recorder"
    path.write_text(_RECORDER.format(folder=folder))
    path.chmod(0o755)
    return str(path)


def arguments(folder: Path) -> list[str]:
    """What the recorder was called with."""
    return (folder / "argv").read_text().split("\0")[:-1]


def hostile(mark: Path) -> list[str]:
    """Values that would touch a file where anything but data was made of them."""
    return [
        f"{{{{ lookup('pipe', 'touch {mark}') }}}}",
        f"{{% set x = lookup('pipe', 'touch {mark}') %}}",
        f"$(touch {mark})",
        f"`touch {mark}`",
        f"'; touch {mark}; '",
        f'"; touch {mark}; "',
        f"a\ntouch {mark}\n",
        f"| touch {mark}",
        "--help",
        "{{ 7 * 7 }}",
        "{{", "}}", "{%", "{#", "{ {x} }",
        "'", '"', "\\", "\\n", "\t", "\x7f\x85\u2028\u2029\ufeff\u00e4\U0001f600",
        "!vault |", "*anchor", "&anchor x", "<<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>", '"""', "'''", "\\\"\"\"",
        "syslog.LOG_USER", "<<INCLUDE_ANSIBLE_MODULE_COMPLEX_ARGS>>", "no", "1e3", "0x10", "~", "",
    ]  # fmt: skip


def test_hostile_text_in_an_intent_arrives_as_it_is(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    values = hostile(mark)
    intent = {"version": 1, "guests": [{"name": value, value: value} for value in values], "settings": {"x": values}}
    fleet = stand_in(tmp_path, hosttune_command=recorder(tmp_path), hosttune_intent=intent)
    fleet.play("plan")
    assert json.loads((tmp_path / "stdin").read_text()) == intent
    from hosttune.model.yamltext import load_yaml  # what the command reads it with

    assert load_yaml((tmp_path / "stdin").read_bytes(), "stdin") == intent
    assert not mark.exists()
    assert fleet.executions() == {"h1": 1}


def test_what_an_intent_declares_of_the_network_goes_to_a_validation(tmp_path: Path) -> None:
    fabric = {"roce": {"mtu": 9000, "pfc": [3]}}
    path = Path(recorder(tmp_path))
    path.write_text(path.read_text() + f'[ "$2" = --expect ] && cat "$3" > "{tmp_path}/expect"\n')
    intent = {"version": 1, "guests": [{"name": "a", "gpus": 1}], "fabric": fabric}
    fleet = stand_in(tmp_path, hosttune_command=str(path), hosttune_intent=intent)
    fleet.play("validate", code=None)
    assert arguments(tmp_path)[:2] == ["validate", "--expect"]
    assert json.loads((tmp_path / "expect").read_text()) == {"version": 1, "fabric": fabric}


# The texts of intents, and what they declare: an MTU, nothing (None), or an error.
INTENT_FILES: dict[str, tuple[str | None, int | str | None]] = {
    "block": ("version: 1\nfabric:\n  roce: {mtu: 9000, nics: [0000:19:00.0]}\n", 9000),
    "flow": ("{version: 1, fabric: {roce: {mtu: 4200}}}\n", 4200),
    "null": ("version: 1\nfabric: null\nguests: [{name: a, gpus: 1}]\n", None),
    "without": ("version: 1\nguests: [{name: a, gpus: 1}]\n", None),
    "missing": (None, "cannot read"),
    "broken": ("version: [1\n", "is not YAML"),
    "list": ("- a list\n", "is not a mapping"),
}


def test_an_intent_given_as_a_path_is_read_for_a_validation_too(tmp_path: Path) -> None:
    """What cannot be read stops the validation: it would be one without what is declared."""
    hosts = {}
    for name, (text, _) in INTENT_FILES.items():
        folder = tmp_path / name
        folder.mkdir()
        path = Path(recorder(folder))
        path.write_text(path.read_text() + f'[ "$2" = --expect ] && cat "$3" > "{folder}/expect"\n')
        if text is not None:
            (folder / "intent.yml").write_text(text)
        hosts[name] = {"hosttune_command": str(path), "hosttune_intent": str(folder / "intent.yml")}
    fleet = Fleet(tmp_path, hosts, {})
    fleet.play("validate", code=None)
    for name, (_, declared) in INTENT_FILES.items():
        answer = fleet.document(name, "validate")["fleet"]
        if isinstance(declared, str):
            assert answer["outcome"] == "bad-input", name
            assert answer["why"].startswith("hosttune_intent: ")
            assert declared in answer["why"]
            assert not (tmp_path / name / "argv").exists()
            continue
        assert ("--expect" in arguments(tmp_path / name)) == (declared is not None), name
        if declared is not None:
            found = of_document((tmp_path / name / "expect").read_bytes(), "expect")
            assert found.roce is not None
            assert (found.roce.mtu, found.devices) == (declared, ())


def test_hostile_text_in_a_path_is_one_argument_or_refused(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    hosts = {}
    for number, value in enumerate(hostile(mark)):
        (tmp_path / f"h{number}").mkdir()
        hosts[f"h{number}"] = {"hosttune_root": value, "hosttune_command": recorder(tmp_path / f"h{number}")}
    fleet = Fleet(tmp_path, hosts, {"hosttune_intent": {"version": 1}})
    fleet.play("plan", code=2)
    assert not mark.exists()
    executions = fleet.executions()
    refused = 0
    for host, given in hosts.items():
        value, answer = given["hosttune_root"], fleet.document(host, "plan")["fleet"]
        if answer["outcome"] == "ok":
            assert arguments(tmp_path / host) == ["plan", "-f", "-", "--root", value, "-o", "json"]
            assert executions[host] == 1
            continue
        refused += 1
        assert (answer["outcome"], executions[host]) == ("bad-input", 0)
        if value:
            assert answer["why"].startswith("hosttune_root is a template that is not evaluated: ")
            assert "hosttune_templates" in answer["why"]
    assert refused == 4  # two lookups, an expression, and the empty one


def test_a_template_in_any_other_variable_is_refused(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    names = (
        "command",
        "results",
        "record",
        "run",
        "against",
        "floors",
        "version",
        "gate",
        "level",
        "templates",
        "keep",
    )
    hosts = {name: {f"hosttune_{name}": f"{{{{ lookup('pipe', 'touch {mark}') }}}}"} for name in names}
    out = Fleet(tmp_path, hosts, {"hosttune_command": HOSTTUNE}).play("validate", code=2).out
    assert [name for name in names if f"bad-input: hosttune_{name} is a template" not in out] == []
    assert not mark.exists()


def test_a_path_may_be_put_together_from_variables(tmp_path: Path) -> None:
    """What cannot do anything is evaluated in paths and the like; `default(omit)` leaves an option out."""
    (tmp_path / "a b").mkdir()
    hosts: dict[str, dict[str, Any]] = {
        "joined": {"hosttune_root": "{{ base | dirname }}/{{ inventory_hostname }}", "base": f"{tmp_path}/x"},
        "given": {"hosttune_root": "{{ nobody | default('/srv/' ~ inventory_hostname) }}"},
        "chosen": {
            "hosttune_root": "{{ '/a' if deep is defined else '/b' }}",
            "hosttune_level": "{{ n | default(0) }}",
        },
        "left_out": {"hosttune_root": "{{ nobody | default(omit) }}"},
    }
    for host, variables in hosts.items():
        (tmp_path / host).mkdir()
        variables["hosttune_command"] = recorder(tmp_path / host)
    Fleet(tmp_path, hosts, {"hosttune_intent": {"version": 1}}).play("plan")
    roots = {}
    for host in hosts:
        words = arguments(tmp_path / host)
        roots[host] = words[words.index("--root") + 1] if "--root" in words else None
    assert roots == {"joined": f"{tmp_path}/joined", "given": "/srv/given", "chosen": "/b", "left_out": None}


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ 7 * 7 }}", "mul is not evaluated"),
        ("{{ lookup('pipe', 'true') }}", "call is not evaluated"),
        ("{{ inventory_hostname.__class__ }}", "unsafe"),
        ("{{ inventory_hostname | shuffle }}", "No filter named 'shuffle'"),
        ("{% for x in groups %}a{% endfor %}", "for is not evaluated"),
        ("a{# b #}", "it has a comment"),
        ("{{ hostvars['x'] }}", "'hostvars' is undefined"),
        ("{{ nobody | lower }}/x", "'nobody' is undefined"),
    ],
)
def test_what_could_do_something_is_not_evaluated(tmp_path: Path, template: str, why: str) -> None:
    fleet = stand_in(tmp_path, hosttune_command=recorder(tmp_path), hosttune_intent={"version": 1})
    fleet.variables["hosttune_root"] = template
    fleet.play("plan", code=2)
    answer = fleet.document("h1", "plan")["fleet"]
    assert answer["outcome"] == "bad-input"
    assert answer["why"].startswith("hosttune_root is a template that is not evaluated: ")
    assert why in answer["why"]
    assert not (tmp_path / "argv").exists()


def test_the_path_of_an_intent_is_a_path_as_any_other(tmp_path: Path) -> None:
    """Relative, it is of the working directory, or else beside the inventory."""
    (tmp_path / "wanted.yml").write_text("version: 1\nguests: []\n")
    fleet = stand_in(tmp_path, hosttune_command=recorder(tmp_path), hosttune_intent="{{ 'wanted' ~ ending }}")
    fleet.variables["ending"] = ".yml"
    fleet.play("plan")
    assert (tmp_path / "stdin").read_text() == "version: 1\nguests: []\n"


def test_the_opt_in_makes_templates_of_them(tmp_path: Path) -> None:
    intent = {"version": 1, "guests": [{"name": "{{ 'a' ~ 1 }}"}]}
    fleet = stand_in(tmp_path, hosttune_command=recorder(tmp_path), hosttune_intent=intent, hosttune_templates=True)
    fleet.variables["hosttune_root"] = "{{ '/srv' ~ '/x' }}"
    fleet.play("plan")
    assert json.loads((tmp_path / "stdin").read_text()) == {"version": 1, "guests": [{"name": "a1"}]}
    assert "/srv/x" in arguments(tmp_path)


def test_a_reference_to_a_variable_becomes_its_value(tmp_path: Path) -> None:
    intent = {
        "version": 1,
        "guests": "{{ guests }}",
        "profile": "{{ a }}-{{ number }}",
        "x": ["{{ number }}", "{{flag}}"],
    }
    fleet = stand_in(tmp_path, hosttune_command=recorder(tmp_path), hosttune_intent="{{ wanted }}", wanted=intent)
    fleet.variables.update(guests=[{"name": "{{ inventory_hostname }}"}], a="b{{ 1 + 1 }}", number=7, flag=True)
    fleet.play("plan")
    read = json.loads((tmp_path / "stdin").read_text())
    assert read == {"version": 1, "guests": [{"name": "h1"}], "profile": "b{{ 1 + 1 }}-7", "x": [7, True]}


NOWHERE: list[tuple[dict[str, Any], str]] = [
    ({"hosttune_intent": "{{ a }}", "a": "{{ b }}", "b": "{{ a }}"}, "refer to each other"),
    ({"hosttune_intent": {"x": "{{ nobody }}"}}, "hosttune_intent.x refers to nobody, which is not a variable"),
    ({"hosttune_intent": {"x": "{{ hostvars }}"}}, "refers to hostvars"),
    ({"hosttune_intent": {"x": "{{ vars }}"}}, "refers to vars"),
    ({"hosttune_intent": {"x": "in {{ a }}"}, "a": [1]}, "hosttune_intent.x: a is a list in the middle of a text"),
    ({"hosttune_root": "{{ nobody }}"}, "hosttune_root refers to nobody"),
]


def test_references_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    hosts = {f"h{n}": variables for n, (variables, _) in enumerate(NOWHERE)}
    fleet = Fleet(tmp_path, hosts, {"hosttune_command": recorder(tmp_path)})
    fleet.play("plan", code=2)
    for host, (_, why) in zip(hosts, NOWHERE, strict=True):
        answer = fleet.document(host, "plan")["fleet"]
        assert answer["outcome"] == "bad-input"
        assert why in answer["why"]
    assert set(fleet.executions().values()) == {0}


def test_what_a_host_said_is_no_template(tmp_path: Path) -> None:
    """A fact that a host sent may name variables of the controller: they are not put in."""
    fleet = stand_in(tmp_path, hosttune_command=recorder(tmp_path), secret="s3cret")
    play = tmp_path / "play.yml"
    play.write_text(
        """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.command: printf '%s' '{{ "{{ secret }}" }}'
      register: said
    - hosttune: {phase: plan}
      vars: {hosttune_intent: {version: 1, x: "{{ heard }}", y: "{{ said }}"}, heard: "{{ said }}"}
      ignore_errors: true
    - hosttune: {phase: plan, intent: {version: 1, x: "{{ said.stdout }}"}}
"""
    )
    fleet.ansible("ansible-playbook", str(play), "-e", "ansible_pipelining=true")
    assert json.loads((tmp_path / "stdin").read_text()) == {"version": 1, "x": "{{ secret }}"}


def test_numbers_dates_and_keys_that_are_no_json(tmp_path: Path) -> None:
    fleet = stand_in(tmp_path, hosttune_command=recorder(tmp_path))
    inventory = fleet.inventory()
    for text, why in (
        ("{version: 1, day: 2026-01-01}", "hosttune_intent.day: neither text, number, list nor mapping: "),
        ("{version: 1, 7: x}", "hosttune_intent: a key that is not a text: 7"),
        ("{version: 1, x: .nan}", "cannot be written as JSON"),
    ):
        extra = tmp_path / "extra.yml"
        extra.write_text(f"hosttune_intent: {text}\n")
        command = [str(BIN / "ansible-playbook"), "-i", str(inventory), "-e", f"@{extra}", str(PLAYBOOKS / "plan.yml")]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=fleet.environment(), cwd=tmp_path
        )
        assert done.returncode == 2, done.stdout + done.stderr
        assert why in fleet.document("h1", "plan")["fleet"]["why"]


NAMES = ["../../x", "..", ".hidden", "a b", "ü", "a/b", "%2E", "x;touch y", "$(id)", "-rf", "run.jsonl", "{{ x }}"]


def test_host_names_stay_in_the_results_folder(tmp_path: Path) -> None:
    command = script(tmp_path / "command", "exit 3")
    fleet = stand_in(tmp_path / "work" / "deep", NAMES, hosttune_command=command)
    fleet.folder.mkdir(parents=True)
    fleet.play("discover", code=2)
    found = {path.name for path in fleet.results.iterdir()}
    assert found == {host_folder(name) for name in NAMES}
    for name in NAMES:
        sealed = json.loads((fleet.results / host_folder(name) / "discover.json").read_text())["fleet"]
        assert (sealed["host"], sealed["outcome"]) == (name, "refused")
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"deep"}


def test_a_record_name_stays_in_the_host_folder(tmp_path: Path) -> None:
    fleet = stand_in(tmp_path, hosttune_command="/no/such/command")
    fleet.play("discover", code=2, record="../../../etc/passwd")
    assert [path.name for path in (fleet.results / "h1").iterdir()] == ["%2E.%2F..%2F..%2Fetc%2Fpasswd.json"]


def test_secrets_of_a_vault_are_in_no_log(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("word\n")
    vault = ("--vault-password-file", str(tmp_path / "word"))
    done = subprocess.run(
        [str(BIN / "ansible-vault"), "encrypt_string", *vault, "--name", "cmdline", "console=s3cret{{ x }}"],
        capture_output=True, text=True, check=True, env=stand_in(tmp_path).environment(),
    )  # fmt: skip
    fleet = stand_in(
        tmp_path, hosttune_command=recorder(tmp_path), hosttune_intent={"version": 1, "x": "{{ cmdline }}"}
    )
    extra = tmp_path / "secret.yml"
    extra.write_text(done.stdout)
    played = fleet.play("plan", "-vvv", *vault, "-e", f"@{extra}")
    assert json.loads((tmp_path / "stdin").read_text())["x"] == "console=s3cret{{ x }}"
    assert "s3cret" not in played.out
    stored = (fleet.results / "h1" / "plan.json").read_text()
    assert "s3cret" not in stored
