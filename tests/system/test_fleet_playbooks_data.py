"""Variables of an inventory are data: whatever stands in them arrives as it is, or is refused by name; nothing runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fleethosts import BIN, Fleet, Played, recorder, script, stand_in

from hosttune.fleet.results import host_folder
from hosttune.rules.checks.expected import of_document
from hosttune.validating import accepting


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


@dataclass(frozen=True)
class Asked:
    """One run over many hosts, each with variables and a recorder of its own."""

    fleet: Fleet
    record: str
    played: Played
    executions: Mapping[str, int]

    def at(self, host: str) -> Path:
        """The folder of a host's recorder."""
        return self.fleet.folder / host

    def answer(self, host: str) -> dict[str, Any]:
        """What became of a host; nothing of a hostile value was run anywhere."""
        assert not (self.fleet.folder / "mark").exists()
        answer: dict[str, Any] = self.fleet.document(host, self.record)["fleet"]
        return answer


def asked(verb: str, folder: Path, hosts: Mapping[str, Mapping[str, Any]], **variables: Any) -> Asked:
    """Ask hosts that have these variables."""
    every = {host: {"hosttune_command": recorder(folder / host), **given} for host, given in hosts.items()}
    fleet = Fleet(folder, every, variables)
    return Asked(fleet, verb, fleet.play(verb, code=2), fleet.executions())


# --- what a plan is asked for ------------------------------------------------------------------------------------

# Variables of hosts; without an intent they have a small one.
PLANS: dict[str, dict[str, Any]] = {
    "joined": {"hosttune_root": "{{ base | dirname }}/{{ inventory_hostname }}", "base": "/srv/a b/x"},
    "given": {"hosttune_root": "{{ nobody | default('/srv/' ~ inventory_hostname) }}"},
    "chosen": {"hosttune_root": "{{ '/a' if deep is defined else '/b' }}", "hosttune_level": "{{ n | default(0) }}"},
    "left_out": {"hosttune_root": "{{ nobody | default(omit) }}"},
    "relative": {"hosttune_intent": "{{ 'wanted' ~ ending }}", "ending": ".yml"},
    "opted_in": {
        "hosttune_intent": {"version": 1, "guests": [{"name": "{{ 'a' ~ 1 }}"}]},
        "hosttune_root": "{{ '/srv' ~ '/x' }}",
        "hosttune_templates": True,
    },
    "referring": {
        "hosttune_intent": "{{ wanted }}",
        "wanted": {
            "version": 1,
            "guests": "{{ guests }}",
            "profile": "{{ a }}-{{ number }}",
            "x": ["{{ number }}", "{{flag}}"],
        },
        "guests": [{"name": "{{ inventory_hostname }}"}],
        "a": "b{{ 1 + 1 }}",
        "number": 7,
        "flag": True,
    },
}
WANTED = "version: 1\nguests: []  # a comment, {{ braces }}\n"

# Templates that could do something, and why they are not evaluated.
TEMPLATES: dict[str, tuple[str, str]] = {
    "arithmetic": ("{{ 7 * 7 }}", "mul is not evaluated"),
    "lookup": ("{{ lookup('pipe', 'true') }}", "call is not evaluated"),
    "class": ("{{ inventory_hostname.__class__ }}", "unsafe"),
    "shuffle": ("{{ inventory_hostname | shuffle }}", "No filter named 'shuffle'"),
    "loop": ("{% for x in groups %}a{% endfor %}", "for is not evaluated"),
    "comment": ("a{# b #}", "it has a comment"),
    "hostvars": ("{{ hostvars['x'] }}", "'hostvars' is undefined"),
    "undefined": ("{{ nobody | lower }}/x", "'nobody' is undefined"),
}

NOWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "circle": ({"hosttune_intent": "{{ a }}", "a": "{{ b }}", "b": "{{ a }}"}, "refer to each other"),
    "nobody": (
        {"hosttune_intent": {"x": "{{ nobody }}"}},
        "hosttune_intent.x refers to nobody, which is not a variable",
    ),
    "all_hosts": ({"hosttune_intent": {"x": "{{ hostvars }}"}}, "refers to hostvars"),
    "all_variables": ({"hosttune_intent": {"x": "{{ vars }}"}}, "refers to vars"),
    "list_in_text": (
        {"hosttune_intent": {"x": "in {{ a }}"}, "a": [1]},
        "hosttune_intent.x: a is a list in the middle of a text",
    ),
    "no_root": ({"hosttune_root": "{{ nobody }}"}, "hosttune_root refers to nobody"),
}

# Intents in YAML that JSON has no word for, and why they are refused.
NO_JSON: dict[str, tuple[str, str]] = {
    "day": (
        "{version: 1, day: 2026-01-01}",
        "hosttune_intent.day: neither text, number, list nor mapping: ",
    ),
    "key": ("{version: 1, 7: x}", "hosttune_intent: a key that is not a text: 7"),
    "no_number": ("{version: 1, x: .nan}", "cannot be written as JSON"),
}


def hostile_intent(mark: Path) -> dict[str, Any]:
    values = hostile(mark)
    return {"version": 1, "guests": [{"name": value, value: value} for value in values], "settings": {"x": values}}


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    folder = tmp_path_factory.mktemp("plans")
    (folder / "wanted.yml").write_text(WANTED)
    (folder / "host_vars").mkdir()
    for host, (text, _) in NO_JSON.items():
        (folder / "host_vars" / f"{host}.yml").write_text(f"hosttune_intent: {text}\n")
    hosts: dict[str, dict[str, Any]] = {
        **PLANS,
        "hostile": {"hosttune_intent": hostile_intent(folder / "mark")},
        **{f"path{n}": {"hosttune_root": value} for n, value in enumerate(hostile(folder / "mark"))},
        **{host: {"hosttune_root": template} for host, (template, _) in TEMPLATES.items()},
        **{host: variables for host, (variables, _) in NOWHERE.items()},
        **{host: {} for host in NO_JSON},
    }
    return asked("plan", folder, {host: {"hosttune_intent": {"version": 1}, **given} for host, given in hosts.items()})


def test_hostile_text_in_an_intent_arrives_as_it_is(plans: Asked) -> None:
    intent = hostile_intent(plans.fleet.folder / "mark")
    assert plans.answer("hostile")["outcome"] == "ok"
    assert json.loads((plans.at("hostile") / "stdin").read_text()) == intent
    from hosttune.model.yamltext import load_yaml  # what the command reads it with

    assert load_yaml((plans.at("hostile") / "stdin").read_bytes(), "stdin") == intent
    assert plans.executions["hostile"] == 1


def test_hostile_text_in_a_path_is_one_argument_or_refused(plans: Asked) -> None:
    refused = 0
    for number, value in enumerate(hostile(plans.fleet.folder / "mark")):
        host = f"path{number}"
        answer = plans.answer(host)
        if answer["outcome"] == "ok":
            assert arguments(plans.at(host)) == ["plan", "-f", "-", "--root", value, "-o", "json"]
            assert plans.executions[host] == 1
            continue
        refused += 1
        assert (answer["outcome"], plans.executions[host]) == ("bad-input", 0)
        if value:
            assert answer["why"].startswith("hosttune_root is a template that is not evaluated: ")
            assert "hosttune_templates" in answer["why"]
    assert refused == 4  # two lookups, an expression, and the empty one


def test_a_path_may_be_put_together_from_variables(plans: Asked) -> None:
    """What cannot do anything is evaluated in paths and the like; `default(omit)` leaves an option out."""
    roots = {}
    for host in ("joined", "given", "chosen", "left_out"):
        words = arguments(plans.at(host))
        roots[host] = words[words.index("--root") + 1] if "--root" in words else None
    assert roots == {"joined": "/srv/a b/joined", "given": "/srv/given", "chosen": "/b", "left_out": None}


def test_what_could_do_something_is_not_evaluated(plans: Asked) -> None:
    for host, (_, why) in TEMPLATES.items():
        answer = plans.answer(host)
        assert answer["outcome"] == "bad-input", host
        assert answer["why"].startswith("hosttune_root is a template that is not evaluated: "), host
        assert why in answer["why"]
        assert not (plans.at(host) / "argv").exists(), host


def test_the_path_of_an_intent_is_a_path_as_any_other(plans: Asked) -> None:
    """Relative, it is of the working directory, or else beside the inventory."""
    assert (plans.at("relative") / "stdin").read_text() == WANTED


def test_the_opt_in_makes_templates_of_them(plans: Asked) -> None:
    assert json.loads((plans.at("opted_in") / "stdin").read_text()) == {"version": 1, "guests": [{"name": "a1"}]}
    assert "/srv/x" in arguments(plans.at("opted_in"))


def test_a_reference_to_a_variable_becomes_its_value(plans: Asked) -> None:
    read = json.loads((plans.at("referring") / "stdin").read_text())
    assert read == {"version": 1, "guests": [{"name": "referring"}], "profile": "b{{ 1 + 1 }}-7", "x": [7, True]}


def test_references_that_lead_nowhere_and_what_is_no_json_are_refused(plans: Asked) -> None:
    for host, (_, why) in {**NOWHERE, **NO_JSON}.items():
        answer = plans.answer(host)
        assert answer["outcome"] == "bad-input", host
        assert why in answer["why"], host
        assert plans.executions[host] == 0, host


# --- what a validation is asked for ------------------------------------------------------------------------------

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


FABRIC = {"roce": {"mtu": 9000, "pfc": [3]}}
# Every other variable: a template in it is refused.
VARIABLES = (
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


ACCEPTANCE = "check: time-sync, subject: host, by: ops, why: x, until: 2999-12-31"


@pytest.fixture(scope="module")
def validations(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    folder = tmp_path_factory.mktemp("validations")
    template = f"{{{{ lookup('pipe', 'touch {folder / 'mark'}') }}}}"
    intent = {"version": 1, "guests": [{"name": "a", "gpus": 1}], "fabric": FABRIC}
    for name, (text, _) in INTENT_FILES.items():
        if text is not None:
            (folder / f"{name}.yml").write_text(text)
    (folder / "host_vars").mkdir()
    (folder / "host_vars/dated.yml").write_text(f"hosttune_accept:\n- {{{ACCEPTANCE}}}\n")
    hosts: dict[str, dict[str, Any]] = {
        "mapping": {"hosttune_intent": intent},
        "dated": {},
        **{name: {"hosttune_intent": f"{folder / name}.yml"} for name in INTENT_FILES},
        **{f"var_{name}": {f"hosttune_{name}": template} for name in VARIABLES},
    }
    return asked("validate", folder, hosts)


def test_what_an_intent_declares_of_the_network_goes_to_a_validation(validations: Asked) -> None:
    assert arguments(validations.at("mapping"))[:2] == ["validate", "--expect"]
    assert json.loads((validations.at("mapping") / "expect").read_text()) == {"version": 1, "fabric": FABRIC}


def test_what_a_fleet_accepts_arrives_also_with_a_date_that_is_not_quoted(validations: Asked) -> None:
    rows = json.loads((validations.at("dated") / "accepted").read_text())
    assert [(one.check, one.until) for one in accepting.declared(rows, "x")] == [("time-sync", "2999-12-31")]


def test_an_intent_given_as_a_path_is_read_for_a_validation_too(validations: Asked) -> None:
    """What cannot be read stops the validation: it would be one without what is declared."""
    for name, (_, declared) in INTENT_FILES.items():
        answer = validations.answer(name)
        if isinstance(declared, str):
            assert answer["outcome"] == "bad-input", name
            assert answer["why"].startswith("hosttune_intent: ")
            assert declared in answer["why"]
            assert not (validations.at(name) / "argv").exists()
            continue
        assert ("--expect" in arguments(validations.at(name))) == (declared is not None), name
        if declared is not None:
            found = of_document((validations.at(name) / "expect").read_bytes(), "expect")
            assert found.roce is not None
            assert (found.roce.mtu, found.devices) == (declared, ())


def test_a_template_in_any_other_variable_is_refused(validations: Asked) -> None:
    out = validations.played.out
    assert [name for name in VARIABLES if f"bad-input: hosttune_{name} is a template" not in out] == []
    assert [name for name in VARIABLES if validations.executions[f"var_{name}"]] == []
    assert not (validations.fleet.folder / "mark").exists()


# --- what hosts and controllers know, and names ------------------------------------------------------------------


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
    - hosttune.host.hosttune: {phase: plan}
      vars: {hosttune_intent: {version: 1, x: "{{ heard }}", y: "{{ said }}"}, heard: "{{ said }}"}
      ignore_errors: true
    - hosttune.host.hosttune: {phase: plan, intent: {version: 1, x: "{{ said.stdout }}"}}
"""
    )
    fleet.ansible("ansible-playbook", str(play), "-e", "ansible_pipelining=true")
    assert json.loads((tmp_path / "stdin").read_text()) == {"version": 1, "x": "{{ secret }}"}


NAMES = ["../../x", "..", ".hidden", "a b", "ü", "a/b", "%2E", "x;touch y", "$(id)", "-rf", "run.jsonl", "{{ x }}"]


def test_names_of_hosts_and_records_stay_in_their_folders(tmp_path: Path) -> None:
    fleet = stand_in(
        tmp_path / "work" / "deep", (*NAMES, "h1"), hosttune_command=script(tmp_path / "command", "exit 3")
    )
    fleet.hosts["h1"]["hosttune_record"] = "../../../etc/passwd"
    fleet.folder.mkdir(parents=True)
    fleet.play("discover", code=2)
    found = {path.name for path in fleet.results.iterdir()}
    assert found == {host_folder(name) for name in (*NAMES, "h1")}
    for name in NAMES:
        sealed = json.loads((fleet.results / host_folder(name) / "discover.json").read_text())["fleet"]
        assert (sealed["host"], sealed["outcome"]) == (name, "refused")
    assert [path.name for path in (fleet.results / "h1").iterdir()] == ["%2E.%2F..%2F..%2Fetc%2Fpasswd.json"]
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"deep"}


def test_secrets_of_a_vault_are_in_no_log(tmp_path: Path) -> None:
    """A text among the variables, and the file of a whole intent."""
    text = "version: 1\nguests:\n  - {name: s3cret, gpus: 1}  # a comment, {{ braces }}\n"
    (tmp_path / "word").write_text("word\n")
    (tmp_path / "line").write_text("console=s3cret{{ x }}")
    (tmp_path / "intent.yml").write_text(text)
    vault = ("--vault-password-file", str(tmp_path / "word"))
    hosts: dict[str, dict[str, Any]] = {
        "referring": {"hosttune_intent": {"version": 1, "x": "{{ cmdline }}"}},
        "filed": {"hosttune_intent": str(tmp_path / "intent.yml")},
    }
    for host, variables in hosts.items():
        variables["hosttune_command"] = recorder(tmp_path / host)
    fleet = Fleet(tmp_path, hosts)
    subprocess.run(
        [str(BIN / "ansible-vault"), "encrypt", *vault, str(tmp_path / "line"), str(tmp_path / "intent.yml")],
        capture_output=True, text=True, check=True, env=fleet.environment(),
    )  # fmt: skip
    assert "s3cret" not in (tmp_path / "intent.yml").read_text()
    extra = tmp_path / "secret.yml"
    lines = (tmp_path / "line").read_text().splitlines()
    extra.write_text("".join(["cmdline: !vault |\n", *(f"  {line}\n" for line in lines)]))
    played = fleet.play("plan", "-vvv", *vault, "-e", f"@{extra}")
    assert json.loads((tmp_path / "referring/stdin").read_text())["x"] == "console=s3cret{{ x }}"
    assert (tmp_path / "filed/stdin").read_text() == text
    assert "s3cret" not in played.out
    for host in hosts:
        assert "s3cret" not in (fleet.results / host / "plan.json").read_text()
