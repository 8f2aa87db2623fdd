"""How a host's answer fails, each way with its own word, and never as ok: commands that stand in for hosttune."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fleethosts import Fleet, Played, script, stand_in

from hosttune.model.validation import Validation

PASS: dict[str, Any] = {
    "schema": "hosttune.validation/v1", "host": "h", "level": 0, "verdict": "pass", "samples": [],
    "results": [{"check": "cpu", "subject": "host", "outcome": "pass", "actual": "8", "source": "/proc/cpuinfo"}],
}  # fmt: skip
WHOLE = json.dumps(PASS)
BLOCK = "error: the plan is stale\\nwhere: gpu 1\\n   do: plan again\\n"


def printing(text: str) -> str:
    """Shell that prints a text as it is."""
    return f"cat <<'END'\n{text}\nEND\n"


def told(document: dict[str, Any]) -> str:
    return printing(json.dumps(document))


# What a command does instead of hosttune, the outcome that it is, and what the reason says.
CASES: list[tuple[str, str, str]] = [
    (f"{printing(WHOLE)}exit 0", "ok", ""),
    ("exit 0", "unknown", "no document, exit code 0"),
    (f"{printing(WHOLE[: len(WHOLE) // 2])}", "unknown", "cut or no JSON"),
    (f"{printing(WHOLE[:-2])}", "unknown", "cut or no JSON"),
    (f"{printing(WHOLE + '}')}", "unknown", "cut or no JSON"),
    ("echo '[]'", "unknown", "the document's schema is None"),
    ("echo 'null'", "unknown", "the document's schema is None"),
    ("printf '\\377\\376'", "unknown", ""),
    (told({**PASS, "verdict": "fail"}), "unknown", "exit code 0 beside the verdict fail"),
    (told({**PASS, "verdict": "unknown"}), "unknown", "exit code 0 beside the verdict unknown"),
    (told({**PASS, "verdict": "splendid"}), "unknown", "without results or verdict"),
    (told({**PASS, "results": []}), "unknown", "without results or verdict"),
    (told({**PASS, "schema": "hosttune.validation/v2"}), "wrong-version", "hosttune.validation/v2"),
    (told({**PASS, "schema": "hosttune.result/v1"}), "unknown", "hosttune.result/v1"),
    (told({**PASS, "version": "9.9.9"}), "wrong-version", "hosttune 9.9.9 answered, and 0.1.0 is required"),
    (f"{told({**PASS, 'verdict': 'fail'})}exit 1", "no", ""),
    (f"printf '{BLOCK}' >&2; exit 1", "no", "the plan is stale (gpu 1)"),
    ("echo Traceback >&2; exit 1", "unknown", "no document, exit code 1: Traceback"),
    (f"printf '{BLOCK}' >&2; exit 2", "bad-input", "the plan is stale (gpu 1)"),
    (f"printf '{BLOCK}' >&2; exit 3", "refused", "the plan is stale (gpu 1)"),
    (f"printf '{BLOCK}' >&2; exit 4", "needs-person", "the plan is stale (gpu 1)"),
    (f"printf '{BLOCK}' >&2; exit 70", "internal", "the plan is stale (gpu 1)"),
    ("exit 5", "unknown", "exit code 5"),
    (f"{printing(WHOLE)}exit 5", "unknown", "exit code 5"),
    ("no-such-command-here", "not-installed", "no-such-command-here"),
    ("kill -9 $$", "died", "signal 9"),
    ("sh -c 'kill -9 $$'; exit $?", "died", "signal 9"),
    (f"{printing(WHOLE)}kill -9 $$", "died", "signal 9"),
    ("echo 'error: cannot write /x: No space left on device' >&2; exit 2", "disk-full", "No space left on device"),
    ("echo 'OSError: [Errno 122] Disk quota exceeded' >&2; exit 1", "disk-full", "quota exceeded"),
    ("echo 'exit 0, and no space' >&2; echo ENOSPC >&2; exit 0", "disk-full", "ENOSPC"),
]


# Hosts of the same run that are not judged by that table alone.
SLOW = "trap 'echo asked > {mark}; exit 0' TERM\nsleep 60 & wait"
LEAVES = f"sleep 100 &\n{printing(WHOLE)}"
FLOODS = "exec cat /dev/zero"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fleet, Played, Mapping[str, int]]:
    """One run over a host for each case."""
    folder = tmp_path_factory.mktemp("asked")
    commands = {f"h{n}": case[0] for n, case in enumerate(CASES)}
    commands |= {"slow": SLOW.format(mark=folder / "mark"), "leaves": LEAVES, "floods": FLOODS}
    hosts: dict[str, dict[str, Any]] = {
        name: {"hosttune_command": script(folder / f"command-{name}", text)} for name, text in commands.items()
    }
    hosts["slow"]["hosttune_timeout"] = 1
    hosts["leaves"]["hosttune_timeout"] = 50
    fleet = Fleet(folder, hosts)
    return fleet, fleet.play("validate", code=2), fleet.executions()


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_validation(asked: tuple[Fleet, Played, Mapping[str, int]], number: int) -> None:
    fleet, played, executions = asked
    host, (_, outcome, why) = f"h{number}", CASES[number]
    answer = fleet.document(host, "validate")["fleet"]
    assert (answer["host"], answer["outcome"]) == (host, outcome), answer
    assert why in (answer.get("why") or "")
    assert played.recap()[host]["failed"] == int(outcome != "ok")
    assert executions[host] == 1
    read = Validation.from_json((fleet.results / host / "validate.json").read_text())
    kept = outcome == "no" and "stale" not in answer["why"]  # the command's own document
    assert read.verdict == ("pass" if outcome == "ok" else "fail" if kept else "unknown")
    if read.verdict == "unknown":
        assert [(r.check, r.outcome) for r in read.results] == [("host-answers", "unknown")]
        assert read.results[0].hint


def test_the_word_of_a_slow_host_comes_when_its_time_is_over(asked: tuple[Fleet, Played, Mapping[str, int]]) -> None:
    fleet, _, _ = asked
    answer = fleet.document("slow", "validate")["fleet"]
    assert (answer["outcome"], answer["why"]) == ("slow", "no answer within 1 s")
    assert answer["seconds"] < 30
    assert (fleet.folder / "mark").read_text() == "asked\n"  # a transaction may take itself back


def test_what_a_command_leaves_behind_does_not_hold_its_answer(
    asked: tuple[Fleet, Played, Mapping[str, int]],
) -> None:
    assert asked[0].outcomes("validate")["leaves"] == "ok"


def test_a_flood_is_no_document(asked: tuple[Fleet, Played, Mapping[str, int]]) -> None:
    answer = asked[0].document("floods", "validate")["fleet"]
    assert (answer["outcome"], answer["why"]) == ("unknown", "more than 64 MiB on standard output")


def test_other_phases_have_a_plain_answer_in_their_file(tmp_path: Path) -> None:
    """Results are below the working directory where nothing says otherwise."""
    fleet = stand_in(tmp_path, hosttune_results=None)
    fleet.play("discover", code=2, command="/no/such/hosttune")
    document = json.loads((tmp_path / "hosttune-results/h1/discover.json").read_text())
    assert (document["schema"], set(document)) == ("hosttune.answer/v1", {"schema", "fleet"})
    assert document["fleet"]["outcome"] == "not-installed"
    assert "bootstrap.yml" in document["fleet"]["why"]


def test_another_version_is_told_before_the_command_is_run(tmp_path: Path) -> None:
    fleet = stand_in(tmp_path)
    site = tmp_path / "venv/lib/python3.11/site-packages/hosttune-9.9.9.dist-info"
    site.mkdir(parents=True)
    (tmp_path / "venv/bin").mkdir()
    ran = tmp_path / "ran"
    command = tmp_path / "venv/bin/hosttune"
    command.write_text(f"#!/bin/sh\n# {tmp_path}/venv/bin/python\ntouch {ran}\n")
    command.chmod(0o755)
    fleet.play("apply", code=2, command=str(command), version="0.1.0")
    answer = fleet.document("h1", "before")["fleet"]
    assert (answer["outcome"], answer["why"]) == (
        "wrong-version",
        "hosttune 9.9.9 is installed, and 0.1.0 is required",
    )
    assert not ran.exists()
    assert "apply" not in fleet.records("h1")
    fleet.play("discover", code=2, command=str(command), version="9.9.9")
    assert ran.exists()


def test_an_unreachable_host_is_told_and_the_others_are_visited(tmp_path: Path) -> None:
    fleet = stand_in(tmp_path, ("h1", "away", "h2"), hosttune_command=script(tmp_path / "good", printing(WHOLE)))
    with socket.socket() as closed:  # bound and not listening: nobody else takes the port meanwhile
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        fleet.hosts["away"].update(ansible_connection="ssh", ansible_host="127.0.0.1", ansible_port=port)
        played = fleet.play("validate", code=4)
    assert fleet.outcomes("validate") == {"h1": "ok", "away": "unreachable", "h2": "ok"}
    document = fleet.document("away", "validate")
    assert "Connection refused" in document["fleet"]["why"]
    assert document["verdict"] == "unknown"
    assert [played.recap()[host]["unreachable"] for host in ("h1", "away")] == [0, 1]


def test_a_controller_that_is_killed_leaves_unknown_and_never_an_old_pass(tmp_path: Path) -> None:
    fleet = stand_in(tmp_path, hosttune_command=script(tmp_path / "good", printing(WHOLE)))
    fleet.play("validate")
    assert fleet.document("h1", "validate")["verdict"] == "pass"
    seen = tmp_path / "seen.json"
    body = f"cp {fleet.results}/h1/validate.json {seen}\n{printing(WHOLE)}"
    fleet.play("validate", command=script(tmp_path / "looks", body), run="r2")
    while_asked = json.loads(seen.read_text())
    assert (while_asked["verdict"], while_asked["fleet"]["outcome"]) == ("unknown", "unknown")
    assert while_asked["fleet"]["why"] == "asked; no answer yet"
    assert while_asked["fleet"]["run"] == "r2"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"level": 7}, "hosttune_level is 7"),
    ({"level": True}, "hosttune_level is True"),
    ({"gate": "shut"}, "hosttune_gate is 'shut'"),
    ({"timeout": "soon"}, "hosttune_timeout is not a number"),
    ({"timeout": -1}, "hosttune_timeout is -1 s"),
    ({"root": ""}, "hosttune_root is empty"),
    ({"root": ["/"]}, "hosttune_root is not a text"),
    ({"command": {"a": 1}}, "hosttune_command is neither a path nor a list"),
    ({"command": []}, "hosttune_command is neither a path nor a list"),
    ({"start": "perhaps"}, "hosttune_start is neither true nor false"),
    ({"intent": "/no/such/file"}, "cannot read /no/such/file"),
    ({"intent": 7}, "neither a mapping nor a path"),
    ({"intent": None}, "hosttune_intent is not set: nothing to plan"),
    ({"against": "before"}, "no record 'before' to compare with"),
    ({"floors": "/no/such/floors.toml"}, "cannot read /no/such/floors.toml"),
]


@pytest.mark.parametrize("verb", ["validate", "plan"])
def test_bad_options_are_bad_input_of_their_host_and_nothing_is_asked(tmp_path: Path, verb: str) -> None:
    cases = [(variables, why) for variables, why in BAD if ("intent" in variables) == (verb == "plan")]
    hosts = {
        f"h{n}": {f"hosttune_{name}": value for name, value in variables.items()}
        for n, (variables, _) in enumerate(cases)
    }
    fleet = Fleet(tmp_path, hosts)
    fleet.play(verb, code=2)
    for host, (_, why) in zip(hosts, cases, strict=True):
        answer = fleet.document(host, verb)["fleet"]
        assert answer["outcome"] == "bad-input"
        assert why in answer["why"]
    assert set(fleet.executions().values()) == {0}
