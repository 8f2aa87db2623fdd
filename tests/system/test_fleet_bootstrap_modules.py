"""The bootstrap's modules by themselves, and pull mode: on folders of a test, with commands of a test."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bootstraps import COLLECTION, ROOT, load

from hosttune.fleet.answers import read_answer
from hosttune.fleet.results import host_folder
from hosttune.model.validation import Validation

TAGS = ["cp311-x86_64", "cp312-x86_64", "cp313-x86_64"]
install = load("plugins/modules/bootstrap_hosttune.py")
prune = load("plugins/modules/bootstrap_prune.py")
python = load("plugins/modules/bootstrap_python.py")
pull = load("roles/gpu_host/files/bootstrap_pull.py")


def asked(prefix: Path | str, **options: Any) -> Any:
    values = {
        **{"prefix": str(prefix), "sha256": "ab" * 32, "version": "1.0", "python": sys.executable, "libvirt": []},
        **{"archive": None, "limit_seconds": 30, **options},
    }
    return install.Ask(**values)


def script(folder: Path, name: str, text: str) -> str:
    """A command that runs this shell text; its path."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


# --- which Python -------------------------------------------------------------------------------------------------


def interpreter(folder: Path, name: str, **facts: Any) -> str:
    """A command that answers the probe as this interpreter would."""
    told = {
        **{"version": [3, 12, 1], "implementation": "cpython", "machine": "x86_64", "free_threaded": False},
        **{"venv": True, "executable": f"/usr/bin/{name}", "libvirt": [], **facts},
    }
    return script(folder, name, f"cat <<'END'\n{json.dumps(told)}\nEND")


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"version": [3, 9, 18]}, "3.9.18, older than 3.11"),
        ({"version": [3, 14, 0]}, "3.14.0: the wheelhouse has nothing for cp314-x86_64"),
        ({"machine": "aarch64"}, "3.12.1: the wheelhouse has nothing for cp312-aarch64"),
        ({"venv": False}, "3.12.1, without the module venv"),
        ({"free_threaded": True}, "3.12.1, not the usual build of CPython"),
        ({"implementation": "pypy"}, "3.12.1, not the usual build of CPython"),
    ],
    ids=["old", "not-served", "machine", "venv", "free-threaded", "pypy"],
)
def test_why_an_interpreter_does_not_fit(tmp_path: Path, facts: dict[str, Any], why: str) -> None:
    assert python.look_at(interpreter(tmp_path, "python3", **facts), TAGS) == why


def test_the_first_that_fits_is_taken(tmp_path: Path) -> None:
    commands = [
        interpreter(tmp_path, "python3", version=[3, 9, 18]),
        interpreter(tmp_path, "python3.12", libvirt=["/usr/lib/libvirt.py"]),
        interpreter(tmp_path, "python3.13", version=[3, 13, 0]),
    ]
    found = python.choose(commands, TAGS, [])
    assert found == python.Python("/usr/bin/python3.12", "3.12.1", "cp312-x86_64", ["/usr/lib/libvirt.py"])


@pytest.mark.parametrize("text", ["exit 1", "echo Python 2.7", "echo '[]'", "echo '{\"version\": 3}'"])
def test_what_does_not_answer_is_no_python(tmp_path: Path, text: str) -> None:
    assert str(python.look_at(script(tmp_path, "python3", text), TAGS)).startswith("does not answer as Python 3 does")


def test_without_one_all_is_said_that_was_found_and_what_to_install(tmp_path: Path) -> None:
    old = interpreter(tmp_path, "python3", version=[3, 9, 18])
    with pytest.raises(python.Refused) as refused:
        python.choose([old, "python3.99"], TAGS, ["python3.12"])
    said = str(refused.value)
    assert f"Looked at {old}: 3.9.18, older than 3.11; python3.99: not there." in said
    assert "To do: install python3.12, or name its path in hosttune_pythons." in said


def test_this_interpreter_fits_itself() -> None:
    tag = "cp{}{}-{}".format(*sys.version_info[:2], os.uname().machine)
    found = python.look_at(sys.executable, [tag])
    assert isinstance(found, python.Python), found
    assert found.python == os.path.realpath(sys.executable)


# --- the prefix ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad", ["/opt/host tune", "/opt/$(reboot)", "relative", "/opt/a'b", "/opt/../etc", "/opt/", "/" + "a" * 99, "/a\nb"]
)
def test_a_prefix_that_cannot_stand_in_a_script_is_refused(bad: str) -> None:
    with pytest.raises(install.Refused, match="cannot be the prefix"):
        install.check_ask(asked(bad))


@pytest.mark.parametrize("bad", ["", "../../etc", "AB" * 32, "ab" * 31])
def test_a_hash_that_is_none_is_refused(tmp_path: Path, bad: str) -> None:
    with pytest.raises(install.Refused, match="is not a SHA-256"):
        install.check_ask(asked(tmp_path, sha256=bad))


def test_a_prefix_that_others_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(install.Refused, match="only its owner"):
        install.check_ask(asked(tmp_path))


def test_two_bootstraps_do_not_work_at_once(tmp_path: Path) -> None:
    first = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(first, fcntl.LOCK_EX)
    with pytest.raises(install.Refused, match="another bootstrap is at work"), install.locked(str(tmp_path)):
        pass
    with pytest.raises(prune.Refused, match="bootstrap is at work"):
        prune.prune(str(tmp_path), 1, [], False)
    os.close(first)
    with install.locked(str(tmp_path)):
        pass


def test_leftovers_of_killed_runs_go_and_nothing_else(tmp_path: Path) -> None:
    for name in (".new-a", ".old-b", "ab" * 8, "bin", "mine"):
        (tmp_path / name / "deep").mkdir(parents=True)
    for name in (".incoming-1.tar", ".incoming-2.tar", "note"):
        (tmp_path / name).write_text("")
    install.clear(asked(tmp_path, archive=str(tmp_path / ".incoming-2.tar")))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".incoming-2.tar", "ab" * 8, "bin", "mine", "note"]


def test_what_somebody_put_in_place_of_the_command_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "hosttune").write_text("#!/bin/sh\n")
    with pytest.raises(install.Refused, match="not a link of the bootstrap's"):
        install.in_use(asked(tmp_path))


def test_a_command_that_hangs_is_ended_and_named(tmp_path: Path) -> None:
    with pytest.raises(install.Refused, match=r"nap \(/bin/sleep\) did not end within 1 s"):
        install.command(["/bin/sleep", "60"], asked(tmp_path, limit_seconds=1), str(tmp_path), "nap")


# --- libvirt's binding --------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """site-packages of a version."""
    site = tmp_path / ("ab" * 8) / "lib" / "python3.12" / "site-packages"
    site.mkdir(parents=True)
    (site / "msgspec.py").write_text("")
    return site


def links(site: Path) -> dict[str, str]:
    return {path.name: os.readlink(path) for path in site.iterdir() if path.is_symlink()}


def test_of_the_distribution_hosttune_sees_libvirt_and_nothing_beside_it(tmp_path: Path, home: Path) -> None:
    files = ["/usr/lib/python3/dist-packages/libvirt.py", "/usr/lib/python3/dist-packages/libvirtmod.cpython-312.so"]
    ask = asked(tmp_path, libvirt=files)
    assert install.bind(ask, check=True)
    assert links(home) == {}
    assert install.bind(ask, check=False)
    assert links(home) == {"libvirt.py": files[0], "libvirtmod.cpython-312.so": files[1]}
    assert not install.bind(ask, check=False)
    assert install.bind(asked(tmp_path), check=False), "the distribution has it no more: virsh"
    assert links(home) == {}
    assert (home / "msgspec.py").exists()


@pytest.mark.parametrize("files", [["/usr/lib/libvirt.py"], ["/etc/shadow", "/usr/lib/libvirt.py"]])
def test_half_a_binding_is_none(tmp_path: Path, home: Path, files: list[str]) -> None:
    with pytest.raises(install.Refused, match="a libvirt binding is"):
        install.bind(asked(tmp_path, libvirt=files), check=False)
    assert links(home) == {}


# --- old versions -------------------------------------------------------------------------------------------------


@pytest.fixture
def four(tmp_path: Path) -> tuple[Path, list[str]]:
    """A prefix with four versions, oldest first, the last one in use."""
    prefix = tmp_path / "opt"
    names = [f"{number:016x}" for number in (1, 2, 3, 4)]
    for age, name in enumerate(names):
        (prefix / name / "bin").mkdir(parents=True)
        os.utime(prefix / name, (1000 + age, 1000 + age))
    (prefix / "bin").mkdir()
    (prefix / "bin" / "hosttune").symlink_to(f"../{names[-1]}/bin/hosttune")
    return prefix, names


def remaining(prefix: Path) -> list[str]:
    return sorted(path.name for path in prefix.iterdir() if path.name != "bin")


def test_those_used_last_stay(four: tuple[Path, list[str]]) -> None:
    prefix, names = four
    assert prune.prune(str(prefix), 2, [], True)["removed"] == [names[1], names[0]]
    assert remaining(prefix) == names
    assert prune.prune(str(prefix), 2, [], False)["changed"]
    assert remaining(prefix) == names[2:]
    assert not prune.prune(str(prefix), 2, [], False)["changed"]


def test_the_version_in_use_stays_whatever_is_kept(four: tuple[Path, list[str]]) -> None:
    prefix, names = four
    os.utime(prefix / names[-1], (1, 1))
    prune.prune(str(prefix), 0, [], False)
    assert remaining(prefix) == [names[-1]]


@pytest.mark.parametrize("place", ["hosttune-boot.service", "other.service.d/override.conf"])
def test_a_version_that_a_unit_or_a_drop_in_names_stays(
    four: tuple[Path, list[str]], tmp_path: Path, place: str
) -> None:
    prefix, names = four
    unit = tmp_path / "units" / place
    unit.parent.mkdir(parents=True)
    unit.write_text(f"[Service]\nExecStart={prefix}/{names[0]}/bin/hosttune apply --boot\n")
    (tmp_path / "units" / "gone.service").symlink_to("/nonexistent")
    done = prune.prune(str(prefix), 1, [str(tmp_path / "units"), str(tmp_path / "absent")], False)
    assert done == {"changed": True, "removed": [names[2], names[1]], "held": [names[0]]}
    assert remaining(prefix) == [names[0], names[-1]]


def test_a_version_that_a_process_runs_from_stays(four: tuple[Path, list[str]]) -> None:
    prefix, names = four
    with subprocess.Popen(
        [f"{prefix}/{names[0]}/bin/python", "-c", "print(flush=True); input()"],
        executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        running.stdout.readline()
        assert prune.prune(str(prefix), 1, [], False)["held"] == [names[0]]
        running.communicate(b"\n")
    assert prune.prune(str(prefix), 1, [], False)["removed"] == [names[0]]


def test_where_a_unit_cannot_be_read_nothing_goes(four: tuple[Path, list[str]], tmp_path: Path) -> None:
    prefix, names = four
    loop = tmp_path / "units" / "loop.service"
    loop.parent.mkdir()
    loop.symlink_to(loop.name)  # ELOOP: not even root reads it
    with pytest.raises(OSError, match=r"loop\.service"):
        prune.prune(str(prefix), 1, [str(loop.parent)], False)
    assert remaining(prefix) == names


def test_without_a_version_in_use_nothing_goes(four: tuple[Path, list[str]]) -> None:
    prefix, names = four
    (prefix / "bin" / "hosttune").unlink()
    with pytest.raises(prune.Refused, match="leads to no version"):
        prune.prune(str(prefix), 1, [], False)
    assert remaining(prefix) == names


# --- pull mode ----------------------------------------------------------------------------------------------------

VALIDATION = {
    **{"schema": "hosttune.validation/v1", "host": "gpu1", "level": 0, "verdict": "fail"},
    "results": [{"check": "pcie-link", "subject": "0000:41:00.0", "outcome": "fail", "hint": "reseat", "source": "x"}],
}


def visited(folder: Path, text: str, host: str = "gpu1", **config: Any) -> tuple[bool, Any, Validation]:
    """Pull mode's validation with this shell text as hosttune: whether it was answered, and what the file says."""
    results = str(folder / "results")
    told = {"host": host, "results": results, "command": script(folder, "hosttune", text), "level": 0, "timeout": 30}
    answered = pull.visit({**told, **config}, "validate")
    document = (folder / "results" / host_folder(host) / "validate.json").read_text()
    return answered, read_answer(results, host, "validate", None), Validation.from_json(document)


def test_an_answer_is_left_as_it_was_given(tmp_path: Path) -> None:
    answered, answer, validation = visited(tmp_path, f"cat <<'END'\n{json.dumps(VALIDATION)}\nEND\nexit 1")
    assert answered, "a bad host that says so has answered"
    assert (answer.outcome, answer.verdict, answer.exit_code) == ("no", "fail", 1)
    assert validation.results[0].check == "pcie-link"
    assert answer.started is not None


@pytest.mark.parametrize(
    ("text", "outcome", "why"),
    [
        ("exit 0", "unknown", "no document"),
        (f"echo '{json.dumps(VALIDATION)[:80]}'", "unknown", "cut or no JSON"),
        ("kill -9 $$", "died", "signal 9"),
        ("exec sleep 60", "slow", "no answer within 1 s"),
        ("echo 'No space left on device' >&2; exit 70", "disk-full", "No space left"),
        ("""echo '{"schema": "hosttune.validation/v2"}'""", "wrong-version", "v2"),
    ],
    ids=["empty", "cut", "killed", "slow", "full", "version"],
)
def test_no_answer_is_unknown_and_never_the_last_one(tmp_path: Path, text: str, outcome: str, why: str) -> None:
    passed = {**VALIDATION, "verdict": "pass", "results": [{"check": "a", "subject": "b", "outcome": "pass"}]}
    assert visited(tmp_path, f"echo '{json.dumps(passed)}'")[2].verdict == "pass"
    answered, answer, validation = visited(tmp_path, text, timeout=1)
    assert not answered
    assert answer.outcome == outcome
    assert why in (answer.why or "")
    assert validation.verdict == "unknown"
    assert [(result.check, result.outcome) for result in validation.results] == [("host-answers", "unknown")]


def test_while_hosttune_is_asked_the_file_says_unknown(tmp_path: Path) -> None:
    kept = tmp_path / "then.json"
    visited(tmp_path, f"cp {tmp_path}/results/gpu1/validate.json {kept}")
    then = json.loads(kept.read_text())
    assert then["verdict"] == then["fleet"]["outcome"] == "unknown"
    assert then["fleet"]["why"] == "asked; no answer yet"


def test_a_host_without_hosttune_says_so(tmp_path: Path) -> None:
    told = {"host": "gpu1", "results": str(tmp_path), "command": str(tmp_path / "none"), "level": 0, "timeout": 5}
    assert not pull.visit(told, "validate")
    assert read_answer(str(tmp_path), "gpu1", "validate", None).outcome == "not-installed"


@pytest.mark.parametrize("host", ["../../etc", ".hidden", "a b\nc", "größe", "-o", "{{ x }}"])
def test_names_of_hosts_stay_in_the_folder(tmp_path: Path, host: str) -> None:
    assert pull.folder_of(host) == host_folder(host)
    assert visited(tmp_path, "exit 0", host=host)[1].outcome == "unknown"
    assert [path.name for path in (tmp_path / "results").iterdir()] == [host_folder(host)]


def test_the_timer_starts_the_service_and_the_service_what_is_installed() -> None:
    files = COLLECTION / "roles/gpu_host/files"
    service, timer = ((files / f"hosttune-pull.{kind}").read_text() for kind in ("service", "timer"))
    assert "ExecStart=/usr/bin/python3 -E -s /opt/hosttune/pull/bootstrap_pull.py\n" in service
    assert "WantedBy=timers.target" in timer
    assert "FixedRandomDelay=yes" in timer, "a fleet does not come all at once"
    assert "User=" not in service, "what it reads needs root"


# --- the page -----------------------------------------------------------------------------------------------------


def test_every_variable_of_the_playbook_is_in_the_documentation_and_no_other() -> None:
    role = COLLECTION / "roles/gpu_host"
    places = [role / "vars/main.yml", *(role / "tasks").glob("bootstrap*.yml")]
    names = {name for place in places for name in re.findall(r"\bhosttune_[a-z_]+[a-z]\b", place.read_text())}
    page = (ROOT / "docs" / "bootstrap.md").read_text()
    told = set(re.findall(r"^\| `(hosttune_[a-z_]+)` \|", page, re.M))
    elsewhere = {"hosttune_root", "hosttune_hosts", "hosttune_answer", "hosttune_pull"}  # of other pages
    assert names - elsewhere == told
    assert "`hosttune_pull: true`" in page
