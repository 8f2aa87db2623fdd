"""`hosttune fleet` as a command: usage, exit codes, waves through Ansible, and runs that are cut off and go on.

Marked tests have a twin without Ansible in tests/unit/fleet/test_fleet_course.py; a full sweep runs all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from fleetsim import Fleet, begin, rollout_of
from fleetstub import Stubs, end, until

from hosttune.cli import run
from hosttune.cli.commands import command
from hosttune.cluster.collectiveplan import CollectiveOptions
from hosttune.cluster.pairplan import PairsOptions
from hosttune.fleet.record import Line
from hosttune.fleet.reporting import report_of_past
from hosttune.fleet.results import host_folder
from hosttune.fleet.rollout import DEFAULT
from hosttune.model.fleet import AnswerOutcome
from hosttune.model.values import Value

ROOT = Path(__file__).resolve().parents[2]
SOME = ("a", "b", "c")


@pytest.fixture
def stubs(tmp_path: Path) -> Stubs:
    made = Stubs(tmp_path, SOME)
    made.inventory()
    return made


# --- usage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("", "Missing command"),
        ("nosuch", "no command 'nosuch'"),
        ("discover", "Missing option '-i'"),
        ("discover -i none.yml", "no such inventory: none.yml"),
        ("discover -i a, b", "unexpected argument 'b'"),
        ("discover -i a, --limit b", "Could not match supplied host pattern"),
        ("discover -i a, -- -K", "would ask for a password"),
        ("discover -i a, -e x", "'x' is not a variable"),
        ("discover -i a, -e @none.yml", "cannot read none.yml"),
        ("discover -i a, -e hosttune_results=x", "hosttune_results cannot be given as a variable"),
        ("discover -i a, --level 1", "no option"),
        ("discover -i a, --forks 0", "0 is not from 1 to "),
        ("discover -i a, --resume", "no run of discover to continue"),
        ("apply -i a, --resume --retry", "both --resume and --retry"),
        ("apply -i a, --check --retry", "there is nothing to continue"),
        ("apply -i a, --resume --waves 1", "no run of apply to continue"),
        ("apply -i a, --waves=", "an empty value"),
        ("apply -i a, --waves 1,0%", "'0%' is not a size of a wave"),
        ("apply -i a, --gate open", "is not known"),
        ("apply -i a, --reboot-guests", "--reboot-guests without --reboot"),
        ("apply -i a, --intent none.yml", "cannot read none.yml"),
        ("apply -i a, --intent old.yml", "version"),
        ("plan -i a, --intent broken.yml", "YAML"),
        ("plan -i a, --waves 1", "no option"),
        ("report --results none", "no run in its record"),
        ("report --run r1", "no run r1 in its record"),
        ("report --run r1 --verb validate", "both --run and --verb"),
        ("report --verb validate", "cannot read hosttune-results"),
        ("report -i a,", "a run's hosts are in its record"),
        ("report --verb validate --limit a", "--limit without -i"),
        ("floors", "no run in its record"),
    ],
)
def test_bad_usage_is_told_and_nothing_is_written(
    words: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.yml").write_text("version: 7\n")
    (tmp_path / "broken.yml").write_text("version: [1\n")
    before = sorted(tmp_path.iterdir())
    assert run(["fleet", *words.split()]) == 2
    assert what in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_a_python_without_ansible_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.executable = '/nowhere/python'; from hosttune.cli import run; "
    code += "sys.exit(run(['fleet', 'discover', '-i', 'a,']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "ansible is not installed beside this hosttune" in done.stderr
    assert "hosttune[fleet]" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_files_for_an_ansible_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is told to come next is run as it stands there."""
    folder = tmp_path / "fleet"
    assert run(["fleet", "files", str(folder)]) == 0
    told = capsys.readouterr().err.partition("next: ")[2]
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["sh", "-c", told], capture_output=True, text=True, check=True, env=environment)
    assert '"validate: 1 host: 1 ok (warn)"' in done.stdout
    assert f'"page: {folder}/hosttune-results/validate.html"' in done.stdout
    assert run(["fleet", "files", str(folder)]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err


def test_nothing_of_ansible_or_of_the_fleet_is_imported_for_the_help() -> None:
    for words in (["--help"], ["fleet", "--help"], ["fleet", "apply", "--help"], ["schema", "host"]):
        code = f"from hosttune.cli import run; run({words!r}); import sys; sys.stderr.write(' '.join(sys.modules))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        loaded = done.stderr.split()
        assert not [name for name in loaded if name.startswith(("ansible", "hosttune.fleet", "rich"))]


# --- verbs ---------------------------------------------------------------------------------------------------


def test_every_host_is_visited_and_the_worst_is_the_exit_code(stubs: Stubs) -> None:
    stubs.tell("b", "validate verdict fail")
    stubs.tell("c", "validate cut")
    done = stubs.fleet("validate", "-o", "json", code=1)
    report = json.loads(done.stdout)
    assert (report["schema"], report["verdict"]) == ("hosttune.fleet/v1", "fail")
    assert {line["host"]: line["verdict"] for line in report["hosts"]} == {
        "a": "pass", "b": "fail", "c": "unknown",
    }  # fmt: skip
    assert sorted(stubs.calls()) == [f"{host} validate" for host in SOME]
    assert stubs.answer("c", "validate")["outcome"] == "unknown"
    assert "a: ok" in done.stderr.splitlines()
    assert any(line.startswith("c: validate: unknown") for line in done.stderr.splitlines())
    stubs.tell("b", "")
    stubs.tell("c", "")
    stubs.fleet("validate", "--retry", "--limit", "b:c", code=2)  # the run was over all hosts
    assert stubs.calls() == []
    stubs.fleet("validate", "--retry")
    assert sorted(stubs.calls()) == ["b validate", "c validate"]


def reported(stubs: Stubs, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The document of `hosttune fleet report` on the results folder."""
    capsys.readouterr()
    assert run(["fleet", "report", "--results", str(stubs.results), "-o", "json", *words]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_without_a_terminal_hosts_are_changed_only_with_yes(stubs: Stubs, verb: str) -> None:
    words = [word for word in stubs.words(verb, "--waves", "1,100%") if word != "--yes"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=stubs.folder, env=stubs.environment(),
        stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    assert f"{verb} on 3 hosts:\n  wave 1: a\n  wave 2: b, c\n" in done.stderr
    assert "do: give --yes" in done.stderr
    assert (stubs.calls(), stubs.results.exists()) == ([], False)


@pytest.mark.sweep(most=1)
def test_a_canary_that_fails_stops_the_run_and_resume_goes_on_from_there(
    stubs: Stubs, capsys: pytest.CaptureFixture[str]
) -> None:
    stubs.tell("a", "validate verdict fail")
    done = stubs.fleet("apply", "--waves", "1,100%", code=1)
    assert stubs.calls() == ["a validate", "a apply", "a validate"]
    assert "stopped: the gate after wave 1 of 2 did not open" in done.stderr
    assert "--resume" in done.stderr
    stubs.tell("a", "")
    refused = stubs.fleet("apply", "--waves", "2,100%", "--resume", code=2)
    assert "the run's waves are 1,100%" in refused.stderr
    done = stubs.fleet("apply", "--waves", "1,100%", "--resume")  # the same command, as it was told
    calls = stubs.calls()
    assert calls[:2] == ["a apply", "a validate"]  # what it was before the first attempt is known
    assert {call.split()[0] for call in calls[2:]} == {"b", "c"}
    assert [line["passed"] for line in stubs.record() if line["event"] == "gate"] == [False, True, True]
    assert stubs.record()[-1] == {**stubs.record()[-1], "event": "ended", "exit_code": 0}
    assert [wave["passed"] for wave in reported(stubs, capsys)["waves"]] == [True, True]


def test_a_report_of_whoever_asked_last_takes_every_host_of_the_folder(
    stubs: Stubs, capsys: pytest.CaptureFixture[str]
) -> None:
    result = {"check": "cpu", "subject": "host", "outcome": "pass", "actual": "x"}
    passed = {"schema": "hosttune.validation/v1", "level": 0, "verdict": "pass", "results": [result], "samples": []}
    for run_id, hosts in (("r1", ["a", "b"]), ("r2", ["c"])):
        begin(rollout_of(stubs.results, "validate", hosts, run=run_id), stubs.results, Fleet())
        for host in hosts:
            answer = stubs.answer(host, "validate")
            document = json.dumps({**passed, "host": host, "fleet": answer})
            (stubs.results / host / "validate.json").write_text(document)
    assert [line["host"] for line in reported(stubs, capsys)["hosts"]] == ["c"]
    every = reported(stubs, capsys, "--verb", "validate")
    assert {line["host"]: line["verdict"] for line in every["hosts"]} == dict.fromkeys("abc", "pass")
    stubs.inventory(["b", "z"])  # who did not answer is unknown
    told = reported(stubs, capsys, "--verb", "validate", "-i", str(stubs.folder / "inventory.yml"))
    assert {line["host"]: line["verdict"] for line in told["hosts"]} == {"b": "pass", "z": "unknown"}


@pytest.mark.sweep(most=1)
def test_a_host_that_needs_a_reboot_or_a_person_keeps_the_gate_shut(stubs: Stubs) -> None:
    """What the gate says of each host, and 4, the worst of their exit codes."""
    stubs.tell("a", "apply reboot")
    stubs.tell("b", "apply exit 4")
    done = stubs.fleet("apply", "-o", "md", "--waves", "2,100%", code=4)
    assert any(line.startswith("a: ") and "reboot" in line for line in done.stderr.splitlines())
    assert [stubs.answer("a", "status")["outcome"], stubs.answer("b", "apply")["outcome"]] == [
        "refused",
        "needs-person",
    ]
    assert not {call.split()[0] for call in stubs.calls()} & {"c"}


def test_hostile_names_arrive_as_names_and_secrets_are_kept_nowhere(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    names = ("a b", "web*", "~re", "a:b", "x,y", "größe", f"'\"`$(touch {touched})", "../up", "-v", "#c", "%41",
             f"{{{{ lookup('pipe', 'touch {touched}') }}}}")  # fmt: skip
    stubs = Stubs(tmp_path, names)
    stubs.inventory()
    (stubs.folder / "vars.yml").write_text("my_password: hunter2\n")
    stubs.fleet("discover", "-o", "json", "-e", "@vars.yml", "-e", "other=hunter2", "--", "-e", "third=hunter2")
    assert not touched.exists()
    for name in names:
        answer = json.loads((stubs.results / host_folder(name) / "discover.json").read_text())
        assert (answer["fleet"]["host"], answer["hostname"]) == (name, name)
    assert len([path for path in stubs.results.iterdir() if path.is_dir()]) == len(names)
    kept = [path for path in stubs.results.rglob("*") if path.is_file()]
    assert not [path for path in kept if b"hunter2" in path.read_bytes()]
    assert not list(stubs.folder.glob("hosttune-fleet-*"))


def test_a_folder_whose_name_is_no_text_is_a_host_of_that_name(
    stubs: Stubs, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder = os.fsencode(stubs.results) + b"/\xff\xfe"
    os.makedirs(folder)
    Path(os.fsdecode(folder + b"/validate.json")).write_text("{")
    for form in ("text", "json", "html", "junit", "md"):
        code = run(["fleet", "report", "--results", str(stubs.results), "--verb", "validate", "-o", form])
        out, err = capsysbinary.readouterr()
        assert (code, err) == (0, b""), form
        assert b"unknown" in out


@pytest.mark.sweep(most=1)
def test_a_run_under_nohup_does_not_end_with_its_terminal(stubs: Stubs) -> None:
    stubs.tell("a", "discover wait")
    child = subprocess.Popen(
        ["nohup", *stubs.words("discover")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=stubs.folder,
        env=stubs.environment(), start_new_session=True,
    )  # fmt: skip
    until(lambda: (stubs.results / "a" / "discover.json").exists())
    child.send_signal(signal.SIGHUP)
    stubs.let_go()
    _, err = child.communicate(timeout=180)
    assert child.returncode == 0, err
    assert stubs.answer("a", "discover")["outcome"] == "ok"


def test_a_playbook_that_does_not_work_is_told(stubs: Stubs) -> None:
    """A file of variables that ansible-vault has encrypted, and no password for it."""
    (stubs.folder / "vars.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n3132\n")
    done = stubs.fleet("discover", "--", "-e", "@vars.yml", code=1)
    assert "stopped: ansible contacted no host" in done.stderr
    assert "vars.yml" in done.stderr
    stubs.fleet("discover", "--", "-e", "@/nowhere/vars.yml", code=2)


@pytest.mark.sweep(most=1)
def test_a_folder_that_takes_no_answer_is_not_said_to_be_hosts_that_were_not_contacted(stubs: Stubs) -> None:
    """Ansible tells an error of its task, and it has run that task for the host."""
    stubs.results.mkdir()
    (stubs.results / "a").touch()
    done = stubs.fleet("apply", "--waves", "1", code=1)
    assert "no host's answer is in" in done.stderr
    assert "contacted no host" not in done.stdout + done.stderr
    told = {line.host: line.told[0].actual for line in report_of_past(str(stubs.results)).hosts}
    assert told == {
        "a": "asked, and there is no answer of its apply: what it did is unknown",
        **dict.fromkeys("bc", "not asked: the run stopped before"),
    }


# --- runs that are cut off -----------------------------------------------------------------------------------


def in_second_wave(stubs: Stubs) -> bool:
    return any(line["event"] == "asked" and line["wave"] == 2 for line in stubs.record())


def cut_off(stubs: Stubs, number: signal.Signals) -> tuple[int, str]:
    """Begin an apply, send a signal while hosts of the second wave are at it; (exit status, stderr).

    They still wait: whoever asks them again lets them go before.
    """
    for host in SOME[1:]:
        stubs.tell(host, "apply wait")
    child = stubs.start("apply", "--waves", "1,100%")
    until(lambda: in_second_wave(stubs) and any((stubs.results / host / "apply.json").exists() for host in SOME[1:]))
    refused = stubs.fleet("validate", code=3)  # a second run over the same results
    assert f"process {child.pid} works on it" in refused.stderr
    err = end(child, number)
    return child.returncode, err


def well(stubs: Stubs) -> None:
    """All hosts answer at once."""
    for host in SOME:
        stubs.tell(host, "")


@pytest.mark.sweep(most=1)
def test_a_controller_that_is_killed_leaves_unknown_and_resume_completes(stubs: Stubs) -> None:
    assert cut_off(stubs, signal.SIGKILL)[0] == -signal.SIGKILL
    left = [json.loads(path.read_text())["fleet"] for path in stubs.results.rglob("apply.json")]
    assert {answer["outcome"] for answer in left if answer["host"] != "a"} == {"unknown"}
    assert stubs.record()[-1]["event"] == "asked"
    for path in stubs.folder.glob("hosttune-fleet-*"):
        found = b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
        assert b"hunter2" not in found  # the environment was in none of the files that are left
    stubs.let_go()  # a host that the killed run was about to ask is asked, or not, before the next run
    stubs.calls()
    well(stubs)
    stubs.fleet("apply", "--resume")
    calls = stubs.calls()
    assert not [call for call in calls if call.startswith("a ")]
    assert sorted(call for call in calls if call.endswith("apply")) == [f"{host} apply" for host in SOME[1:]]
    assert {stubs.answer(host, phase)["outcome"] for host in SOME for phase in ("apply", "validate")} == {"ok"}
    assert len({stubs.answer(host, "validate")["run"] for host in SOME}) == 1


@pytest.mark.sweep(most=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_in_order(stubs: Stubs, number: signal.Signals) -> None:
    code, err = cut_off(stubs, number)
    assert code == 130
    assert "stopped: interrupted" in err
    assert [line["event"] for line in stubs.record()[-2:]] == ["stopped", "ended"]
    assert not list(stubs.folder.glob("hosttune-fleet-*"))
    stubs.let_go()
    if number == signal.SIGINT:  # the record that the other one leaves is the same
        well(stubs)
        stubs.fleet("apply", "--resume")
        assert {stubs.answer(host, "validate")["outcome"] for host in SOME} == {"ok"}


# --- the page ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "kind", "left"), [("pairs", PairsOptions, set()), ("collective", CollectiveOptions, {"runs"})]
)
def test_an_option_of_measuring_has_the_name_of_a_field(verb: str, kind: type[Value], left: set[str]) -> None:
    """By these names they are taken. `left`: fields that no option sets."""
    fleet = command("fleet")
    assert isinstance(fleet, click.Group)
    names = {param.name for param in fleet.commands[verb].params}
    others = {"inventories", "limit", "extra", "window", "disrupt", "output", "results", "forks", "resume", "check"}
    assert names - set(kind.__struct_fields__) == {*others, "options"}
    assert set(kind.__struct_fields__) - names == left


def test_the_page_names_every_option_outcome_and_event() -> None:
    page = (ROOT / "docs" / "fleet.md").read_text()
    group = command("fleet")
    assert isinstance(group, click.Group)
    for verb in ("discover", "plan", "apply", "validate", "handover", "revert", "report", "floors"):
        assert f"hosttune fleet {verb}" in page
        for parameter in group.commands[verb].params:
            if isinstance(parameter, click.Option) and parameter.name != "help":
                assert f"`{parameter.opts[0]}" in page or f" {parameter.opts[0]} " in page, parameter.opts
    assert not [outcome for outcome in get_args(AnswerOutcome) if f"`{outcome}`" not in page]
    kinds = [kind.__struct_config__.tag for kind in get_args(Line)]
    assert not [kind for kind in kinds if f"`{kind}`" not in page]
    assert DEFAULT in page
