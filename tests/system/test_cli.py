"""The command line as users and scripts meet it: documents on stdout, one error block on stderr, exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from examplehosts import discovered
from unpacking import unpack
from xmledits import edited

from hosttune.cli import run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = str(ROOT / "examples" / "hgx-h200-8.tar.xz")
GPU = "0000:41:00.0"
COMMAND = (sys.executable, "-c", "from hosttune.cli import main; main()")


class Cli:
    """Run commands in process, with a state directory of their own."""

    def __init__(self, capsys: pytest.CaptureFixture[str], state: Path) -> None:
        self._capsys = capsys
        self.state = state

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        out, err = self._capsys.readouterr()
        return code, out, err


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "state"))
    return Cli(capsys, tmp_path / "state")


@pytest.fixture(scope="session")
def example_document(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The example host's document in a file."""

    path = tmp_path_factory.mktemp("document") / "host.json"
    path.write_text(discovered().to_json())
    return str(path)


def block(err: str) -> dict[str, str]:
    """The one error block, by its labels; fails when stderr holds anything else."""
    lines = err.splitlines()
    assert [line[:6].strip() for line in lines[:1]] == ["error:"], err
    assert "Traceback" not in err
    found: dict[str, str] = {}
    label = ""
    for line in lines:
        head, _, rest = line.partition(": ")
        if head.strip() in ("error", "where", "do"):
            label = head.strip()
            found[label] = rest
        else:
            found[label] += "\n" + line
    assert set(found) == {"error", "where", "do"}, err
    return found


def changed(path: str, target: Path, **fields: Any) -> str:
    """A copy of a document with other top-level fields."""
    document = json.loads(Path(path).read_text())
    document.update(fields)
    target.write_text(json.dumps(document))
    return str(target)


# --- what is asked for is given ------------------------------------------------------------------------------


def test_discover_prints_the_same_document_from_tar_and_from_directory(cli: Cli, tmp_path: Path) -> None:
    folder = str(unpack(Path(EXAMPLE), tmp_path))
    code, from_tar, err = cli("discover", "-o", "json", "--root", EXAMPLE)
    assert (code, err) == (0, "")
    assert json.loads(from_tar)["schema"] == "hosttune.host/v1"
    assert cli("discover", "-o", "json", "--root", folder) == (0, from_tar, "")


def test_a_host_document_gives_the_same_plan_as_its_capture(cli: Cli, example_document: str) -> None:
    from_capture = cli("plan", "--root", EXAMPLE, "--gpu", GPU, "-o", "json")
    from_document = cli("plan", "--host", example_document, "--gpu", GPU, "-o", "json")
    assert from_capture[0] == 0
    assert from_capture[1] == from_document[1]


def test_plan_of_a_capture_is_saved_only_where_out_says(cli: Cli, tmp_path: Path) -> None:
    assert cli("plan", "--root", EXAMPLE, "--gpu", GPU)[2] == ""
    assert not cli.state.exists()
    target = tmp_path / "plan.json"
    words = ("plan", "--root", EXAMPLE, "--gpu", GPU, "--network", "default", "-o", "xml", "--out", str(target))
    code, out, err = cli(*words)
    assert (code, err) == (0, f"plan saved: {target}\n")
    assert out.startswith("<domain")
    assert json.loads(target.read_text())["guests"][0]["devices"][0]["address"] == GPU
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_a_plan_with_an_unplaced_guest_is_printed_not_saved_and_exits_1(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    code, out, err = cli("plan", "--root", EXAMPLE, "--gpu", GPU, "--vcpus", "4000", "-o", "json", "--out", str(target))
    assert code == 1
    assert json.loads(out)["unplaced"][0]["guest"] == "gpu-guest"
    assert err == "plan not saved: not every guest is placed\n"
    assert not target.exists()


def test_where_no_guest_is_placed_nothing_is_printed_in_the_place_of_its_definition(cli: Cli) -> None:
    code, out, err = cli("plan", "--root", EXAMPLE, "--gpu", GPU, "--vcpus", "4000", "-o", "xml")
    assert (code, out) == (1, "")
    assert "guest gpu-guest: NOT PLACED" in err


def test_the_carried_intent_of_a_plan_gives_that_plan_again(cli: Cli, tmp_path: Path) -> None:
    _, first, _ = cli("plan", "--root", EXAMPLE, "--gpu", GPU, "--vcpus", "8", "--memory", "32GiB", "-o", "json")
    carried = tmp_path / "intent.json"
    carried.write_text(json.dumps(json.loads(first)["intent"]))
    assert cli("plan", "--root", EXAMPLE, "-f", str(carried), "-o", "json")[1] == first


@pytest.mark.parametrize("name", ["host", "plan", "intent", "measured", "diagnosis", "prediction", "training"])
def test_schema_is_a_json_schema(cli: Cli, name: str) -> None:
    code, out, _ = cli("schema", name)
    assert code == 0
    assert "$ref" in json.loads(out) or "anyOf" in json.loads(out)


def test_check_xml_names_faults_and_exits_1(cli: Cli, tmp_path: Path) -> None:
    own = cli("plan", "--root", EXAMPLE, "--gpu", GPU, "-o", "xml")[1]
    bad = tmp_path / "bad.xml"
    bad.write_text(edited(own, "cputune/vcpupin[@vcpu='0']", {"cpuset": "0"}))
    code, out, _ = cli("plan", "--root", EXAMPLE, "--check-xml", str(bad))
    assert code == 1
    assert "CPU 0" in out


# --- bad input: one block, exit 2, nothing written ------------------------------------------------------------


def refused(cli: Cli, *arguments: str, code: int = 2) -> dict[str, str]:
    """The block of a command that must fail with `code` and must print and write nothing."""
    got, out, err = cli(*arguments)
    assert got == code, err
    assert out == ""
    assert not cli.state.exists()
    return block(err)


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("41:00", "'41:00' is not a PCI address"),
        ("0000:41:00.8", "'0000:41:00.8' is not a PCI address"),
        ("GPU-0", "'GPU-0' is not a PCI address"),
        ("0000:41:3f.0", "'0000:41:3f.0' is not a PCI address"),
    ],
)
def test_a_malformed_address(cli: Cli, address: str, error: str) -> None:
    said = refused(cli, "plan", "--root", EXAMPLE, "--gpu", address)
    assert (said["error"], said["where"]) == (error, "--gpu")
    assert "0000:41:00.0" in said["do"]


def test_an_unknown_address_lists_the_gpus(cli: Cli) -> None:
    said = refused(cli, "plan", "--root", EXAMPLE, "--gpu", "0000:42:00.0")
    assert "0000:42:00.0" in said["error"]
    assert said["where"] == "--gpu"
    assert "0000:41:00.0 (NVIDIA H200" in said["do"]


def test_an_address_named_twice_in_two_spellings(cli: Cli) -> None:
    said = refused(cli, "plan", "--root", EXAMPLE, "--gpu", GPU, "--gpu", "41:00.0")
    assert "twice" in said["error"]
    assert said["where"] == "--gpu"


def test_the_boot_display(cli: Cli, example_document: str) -> None:
    pci = json.loads(Path(example_document).read_text())["pci"]
    boot = next(device["address"] for device in pci if device["boot_display"])
    said = refused(cli, "plan", "--root", EXAMPLE, "--gpu", boot)
    assert "boot display" in said["error"]


def test_a_function_that_is_no_gpu(cli: Cli, example_document: str) -> None:
    nic = json.loads(Path(example_document).read_text())["nics"][0]["address"]
    said = refused(cli, "plan", "--root", EXAMPLE, "--gpu", nic)
    assert f"{nic} is not a GPU but" in said["error"]


@pytest.mark.parametrize(
    ("options", "error", "where"),
    [
        ((), "nothing to plan", "command line"),
        (("--gpu", GPU, "--gpus", "2"), "both --gpu and --gpus", "command line"),
        (("--gpu", GPU, "--memory", "lots"), "'lots' is not a size", "--memory"),
        (("--gpu", GPU, "--memory", "0"), "'0' is not a size", "--memory"),
        (("--gpu", GPU, "--memory", "200"), "200 bytes of memory: less than 1 MiB", "--memory"),
        (("--gpu", GPU, "--vcpus", "0"), "0 vCPUs", "--vcpus"),
        (
            ("--gpu", GPU, "--vcpus", "many"),
            "'many' is neither a whole number",
            "--vcpus",
        ),
        (("--gpu", GPU, "--vcpus", "1e3"), "'1e3' is neither a whole number", "--vcpus"),
        (("--gpu", GPU, "--vcpus=--5"), "'--5' is neither a whole number", "--vcpus"),
        (("--gpu", GPU, "--vcpus", "9" * 5000), "99' is neither a whole number", "--vcpus"),
        (("--gpu", GPU, "--numa", "x"), "'x' is neither a whole number", "--numa"),
        (("--gpu", GPU, "--memory", "9" * 400 + "GiB"), "is too large", "--memory"),
        (("--gpu", GPU, "--memory", "9" * 5000), "is too large", "--memory"),
        (("--gpus", "99999999999999999999"), "99,999,999,999,999,999,999 gpus, more than 64", "--gpus"),
        (("--gpus", "9" * 5000), "is not a valid whole number", "--gpus"),
        (("--gpu", GPU, "--nics", "99999999999999999999"), "nics, more than 256", "--nics"),
        (("--gpu", GPU, "--name", "a\nb"), "'a\\nb' is not a guest name", "--name"),
        (("--gpu", GPU, "--name", "a\0b"), "an argument with a NUL byte", "command line"),
        (("--gpu", GPU, "--name", "a" * 100_000), "aaa ... aaa", "--name"),
        (("--gpu", GPU, "--disk", "/\udcff"), "cannot be written in UTF-8", "command line"),
        (("--gpus", "-1"), "-1 is negative", "--gpus"),
        (("--gpus", "two"), "'two' is not a valid whole number", "--gpus"),
        (("--gpu", GPU, "--gpu", "41:00.0"), "is named twice", "--gpu"),
        (("--gpu", GPU, "--bridge", "b" * 300), "a name of more than 255 bytes", "--network or --bridge"),
        (("--gpu", GPU, "--name", ""), "an empty value", "--name"),
        (("--gpu", GPU, "--network", "default", "--network", ""), "an empty value", "--network"),
        (("--gpu", GPU, "--out", ""), "an empty value", "--out"),
        (("--gpus", "0"), "auto without a GPU", "--vcpus"),
        (("--gpu", GPU, "--name", "a b"), "'a b' is not a guest name", "--name"),
        (("--gpu", GPU, "-o", "yaml"), "'yaml' is not known", "--output"),
        (("--gpu", GPU, "--frobnicate"), "no option '--frobnicate'", "command line"),
    ],
)
def test_options_that_make_no_intent(cli: Cli, options: tuple[str, ...], error: str, where: str) -> None:
    said = refused(cli, "plan", "--root", EXAMPLE, *options)
    assert error in said["error"]
    assert said["where"] == where


def test_an_empty_or_endless_value_of_another_command(cli: Cli) -> None:
    """A variable that is not set must not mean all hosts, or this machine."""
    for words, where in (
        (("discover", "--root", "", "-o", "json"), "--root"),
        (("apply", "", "--dry-run"), "PLAN"),
        (("fleet", "apply", "-i", "x,", "--limit", ""), "--limit"),
        (("capture", ""), "FILE.tar.gz"),
    ):
        said = refused(cli, *words)
        assert (said["error"], where in said["where"]) == ("an empty value", True)
    assert refused(cli, "validate", "--level", "9")["error"] == "9 is not from 0 to 3"
    said = refused(cli, "history", "abc")
    assert (said["error"], said["do"][:20]) == ("'abc' is not a valid whole number", "give a whole number;")
    assert refused(cli, "diagnose", "--measured", "nosuch")["do"] == "give measured figures (YAML or JSON)"
    assert refused(cli, "diagnose", "--validation", "nosuch")["do"] == "give a document of this kind: validation"
    assert refused(cli, "schema")["do"].startswith("give host, plan, intent, result,")
    for option in ("--rate", "--floor"):
        assert "give a number;" in refused(cli, "fleet", "pairs", "-i", "a,", option, "0")["do"]
    for words in (("validate", "--duration", "nan"), ("fleet", "validate", "-i", "x,", "--timeout", "NaN")):
        assert "is not a number of seconds" in refused(cli, *words)["error"]


@pytest.mark.parametrize(
    ("text", "error", "where"),
    [
        ("version: 1\nguests: [{name: a, gpus: 1, disk: ''}]", "an empty text", ": guests[0].disk"),
        ("version: 2", "version 2 is not known", ": version"),
        ("schema: hosttune.validation/v1\nversion: 0.1.0", "hosttune.validation/v1, not an intent", ""),
        ("\x7f", "control characters are not allowed at position 0", ""),
        ("guests: []", "no version", ": version"),
        ("- 1", "not a mapping", ""),
        ("version: 1\nguets: []", "unknown key 'guets'", ": guets"),
        ("version: 1\nguests: [{name: a, gpus: 1, cpu: 2}]", "unknown key 'cpu'", ": guests[0].cpu"),
        ("version: 1\nguests: [{name: a, numa: [{vcpu: 2}]}]", "unknown key 'vcpu'", ": guests[0].numa[0].vcpu"),
        ("version: 1\nguests: [{name: a, gpus: [41]}]", "expected text, found a whole number", ": guests[0].gpus[0]"),
        (
            "version: 1\nguests: [{name: a, gpus: 1}, {name: a, gpus: 1}]",
            "a second guest named 'a'",
            ": guests[1].name",
        ),
        ("version: 1\nsettings: {turbo: 1}\nguests: [{name: a, gpus: 1}]", "no setting 'turbo'", ": settings.turbo"),
        ("version: 1\nversion: 1", "is there twice", ""),
        ("a: &x [*x]", "aliases are not accepted", ""),
        ("{", "not a YAML document", ""),
        ("version: 1\nreserve: {cores_per_node: -1}", "cannot be negative", ": reserve.cores_per_node"),
        (b"version: 1\n# \xff", "not a YAML document", ""),
        ("version: 1\n# \0", "not a YAML document", ""),
        ("version: 1\nguests: " + "[" * 20_000, "nested deeper than 64", ""),
        ('{"version": 1, "guests": ' + "[" * 20_000, "nested deeper than 64", ""),
        ("#" * (10 << 20), "larger than 256 KiB", ""),
        ('version: 1\nguests: [{name: a, gpus: 1, disk: "/\\ud800"}]', "invalid Unicode character escape code", ""),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, str | bytes) else None,
)
def test_an_intent_that_cannot_be_meant(cli: Cli, tmp_path: Path, text: str | bytes, error: str, where: str) -> None:
    path = tmp_path / "intent.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    said = refused(cli, "plan", "--root", EXAMPLE, "-f", str(path))
    assert error in said["error"]
    assert said["where"] == f"{path}{where}"


def test_an_error_in_an_intent_says_what_could_be_there(cli: Cli, tmp_path: Path) -> None:
    cases = {
        "profile: fast": ("invalid value 'fast'", "write guest, host or none"),
        "guests: [{name: a, gpus: '2'}]": (
            "expected a whole number, a mapping or a list, found text",
            "write a number",
        ),
        "guests: [{name: a, gpus: 1, vcpus: many}]": ("invalid value 'many'", "write a number or auto"),
        "guests: [{name: a, gpus: {}}]": ("no 'count'", "see docs"),
        "settings: {acs: {a: 1}}": ("invalid value {'a': 1}", "allowed: one or several"),
    }
    path = tmp_path / "intent.yaml"
    for text, (error, hint) in cases.items():
        path.write_text(f"version: 1\n{text}\n")
        said = refused(cli, "plan", "--root", EXAMPLE, "-f", str(path))
        assert said["error"] == error
        assert said["do"].startswith(hint)


def test_addresses_need_no_quotes_in_yaml_and_off_is_a_word(cli: Cli, tmp_path: Path) -> None:
    """YAML 1.1 reads 0000:41:00.0 as a number to the base of 60, and off as false."""
    path = tmp_path / "intent.yaml"
    path.write_text("version: 1\nsettings: {aspm: off}\nguests: [{name: a, gpus: [0000:41:00.0], numa: ~}]\n")
    code, out, _ = cli("plan", "--root", EXAMPLE, "-f", str(path), "-o", "json")
    assert code == 0
    assert json.loads(out)["guests"][0]["devices"][0]["address"] == GPU


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ('{"schema": "hosttune.host/v9"}', "a document of schema 'hosttune.host/v9', not 'hosttune.host/v1'"),
        ("{}", "not a hosttune.host/v1 document"),
        ("[1", "not a JSON document"),
        ('{"schema": "hosttune.host/v1", "cpus": [{"core": 1}]}', "no 'id'"),
        ('{"schema": "hosttune.host/v1", "cpus": {"id": 1}}', "expected a list, found a mapping"),
        ('{"schema": "hosttune.host/v1", "cpus": [{"id": -1}]}', "-1 is out of bounds"),
        ('{"schema": "hosttune.host/v1", "numa_nodes": [{"id": 0, "cpus": "0-1048575"}]}', "not a CPU list"),
    ],
)
def test_a_host_document_that_is_none(cli: Cli, tmp_path: Path, document: str, error: str) -> None:
    path = tmp_path / "host.json"
    path.write_text(document)
    said = refused(cli, "discover", "--host", str(path))
    assert error in said["error"]
    assert said["where"].startswith(str(path))


def test_a_document_of_hosttune_in_the_place_of_another_one(cli: Cli, tmp_path: Path) -> None:
    """What to do is to give the right one; only one of an older version is to be written again."""
    path = tmp_path / "x.json"
    for schema, remedy in (("hosttune.plan/v1", "give a hosttune.host/v1 document"), ("hosttune.host/v9", "write it")):
        path.write_text(json.dumps({"schema": schema}))
        assert refused(cli, "discover", "--host", str(path))["do"].startswith(remedy)
    for verb in ("pairs", "collective"):  # as a job it was taken for an empty one: nothing was measured, exit code 0
        assert refused(cli, verb, "-f", str(path))["error"] == "not a job: it has 'schema'"
    assert "only `hosttune apply --dry-run` works" in refused(cli, "revert", "--root", "@example", code=3)["do"]


def test_a_host_document_of_nulls_is_an_empty_host(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text('{"schema": "hosttune.host/v1", "cpus": null, "pci": null, "gpus": null, "problems": null}')
    code, out, err = cli("discover", "--host", str(path), "-o", "json")
    assert (code, err) == (0, "")
    assert (json.loads(out)["cpus"], json.loads(out)["gpus"]) == ([], [])


GUESTS = "version: 1\nguests: [{name: one, gpus: 1}, {name: two, gpus: 0, vcpus: 2, memory: 1GiB}]"


def intent_file(folder: Path, text: str) -> str:
    path = folder / "intent.yaml"
    path.write_text(text)
    return str(path)


def test_an_intent_without_guests_is_an_empty_plan(cli: Cli, tmp_path: Path) -> None:
    path = intent_file(tmp_path, "version: 1\n")
    code, out, err = cli("plan", "--root", EXAMPLE, "-f", path)
    assert (code, err) == (0, "")
    assert out.startswith("plan for example-hgx-h200: 0 guests placed, nothing to change on the host\n")
    said = refused(cli, "plan", "--root", EXAMPLE, "-f", path, "-o", "xml")
    assert (said["error"], said["where"]) == ("the intent asks for no guest", "-f")


def test_name_picks_a_guest_of_the_file(cli: Cli, tmp_path: Path) -> None:
    path = intent_file(tmp_path, GUESTS)
    said = refused(cli, "plan", "--root", EXAMPLE, "-f", path, "--name", "three")
    assert (said["error"], said["where"], said["do"]) == ("no guest 'three'", "--name", "name one of: one, two")
    path = intent_file(tmp_path, "version: 1\nguests: [{name: one, gpus: 1}]")
    code, out, _ = cli("plan", "--root", EXAMPLE, "-f", path, "--name", "one", "-o", "xml")
    assert (code, out.count("<name>one</name>")) == (0, 1)


@pytest.mark.parametrize(
    "options", [("--smt", "threads"), ("--hugepages", "none"), ("--bridge", "br0"), ("--gpus", "0"), ("--vcpus", "2")]
)
def test_an_option_of_a_single_guest_beside_a_file(cli: Cli, tmp_path: Path, options: tuple[str, ...]) -> None:
    said = refused(cli, "plan", "--root", EXAMPLE, "-f", intent_file(tmp_path, GUESTS), *options)
    assert said["error"] == "-f together with options of a single guest"


def test_a_missing_file_is_named(cli: Cli, tmp_path: Path) -> None:
    for option in ("--root", "--host"):
        said = refused(cli, "discover", option, str(tmp_path / "nothing"))
        assert "nothing" in said["error"] + said["where"]


def test_a_named_pipe_is_refused_and_that_of_a_shell_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for option in ("-f", "--check-xml"):
        done = spawn("plan", "--root", EXAMPLE, option, str(tmp_path / "pipe"))
        assert done.returncode == 2
        assert block(done.stderr.decode())["error"] == f"{tmp_path}/pipe is a named pipe"
    script = 'exec "$@" -f <(sleep 0.1; echo "version: 2")'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *COMMAND, "plan", "--root", EXAMPLE],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert block(done.stderr.decode())["error"] == "version 2 is not known"


def test_a_guest_name_that_is_taken(cli: Cli, example_document: str, tmp_path: Path) -> None:
    taken = changed(example_document, tmp_path / "h.json", guests=[{"name": "gpu-guest"}])
    said = refused(cli, "plan", "--host", taken, "--gpu", GPU)
    assert said["error"] == "a guest named 'gpu-guest' exists on this host"
    assert said["where"] == "--name"


def test_another_architecture_is_discovered_but_not_planned(cli: Cli, example_document: str, tmp_path: Path) -> None:
    arm = changed(example_document, tmp_path / "h.json", arch="aarch64")
    code, out, _ = cli("plan", "--host", arm, "--gpu", GPU, "-o", "json")
    assert code == 1
    assert json.loads(out)["unplaced"][0]["why"] == ["this host is aarch64: guests are planned on x86-64 only"]


# --- where a plan is saved ------------------------------------------------------------------------------------

SMALL = ("--gpus", "0", "--vcpus", "1", "--memory", "64MiB", "--hugepages", "none")


def test_out_that_cannot_be_written_is_named_and_leaves_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    for name, why in {
        "missing/plan.json": "No such file or directory",
        "file/plan.json": "Not a directory",
        "folder": "not a regular file",
        "pipe": "not a regular file",
        "a" * 300: "File name too long",
    }.items():
        path = str(tmp_path / name)
        code, out, err = cli("plan", "--root", EXAMPLE, *SMALL, "-o", "json", "--out", path)
        assert (code, out) == (2, "")
        assert block(err)["error"] == f"cannot write {path}: {why}"
        assert block(err)["where"] == path
    assert sorted(tmp_path.iterdir()) == before


def test_out_replaces_a_file_whole_and_follows_a_link(cli: Cli, tmp_path: Path) -> None:
    target, link = tmp_path / "plan.json", tmp_path / "link"
    target.write_text("old " * 100_000)
    link.symlink_to(target)
    with target.open() as old:
        assert cli("plan", "--root", EXAMPLE, *SMALL, "--out", str(link))[0] == 0
        assert old.read(4) == "old "  # whoever reads the old file goes on reading it
    assert json.loads(target.read_text())["schema"] == "hosttune.plan/v1"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "plan.json"]


def test_a_plan_of_this_machine_is_printed_also_where_it_cannot_be_saved(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    state = tmp_path / "file" / "state"
    done = spawn("plan", *SMALL, "-o", "json", env=os.environ | {"HOSTTUNE_STATE": str(state)})
    assert json.loads(done.stdout)["schema"] == "hosttune.plan/v1"
    if json.loads(done.stdout)["unplaced"]:
        pytest.skip("this machine has no room for a guest of one CPU")
    assert done.returncode == 2
    said = block(done.stderr.decode())
    assert said["error"] == f"cannot write {state}/plan.json: Not a directory"
    assert said["do"] == "correct what is at this path"


def test_a_state_directory_that_is_none_is_not_a_matter_of_privilege(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "file"))
    for words in (("status",), ("revert", "--yes"), ("recover",)):
        code, out, err = cli(*words)
        if words == ("status",):
            assert code == 1
            assert "Not a directory" in out
            continue
        assert (code, out) == (3, "")
        if os.geteuid() == 0:  # what changes the machine asks for privilege first
            assert block(err)["error"].endswith("Not a directory")
            assert block(err)["do"] == "correct what is at this path"


# --- the process ---------------------------------------------------------------------------------------------


def spawn(*arguments: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, check=False, timeout=60, cwd=ROOT, **more)


def test_colours_only_on_a_terminal() -> None:
    done = spawn("discover", "--root", EXAMPLE)
    assert done.returncode == 0
    assert b"\x1b[" not in done.stdout + done.stderr


EVERY_OUTPUT = [
    ("discover", "--root", EXAMPLE, "-o", "json"),
    ("discover", "--root", EXAMPLE),
    ("plan", "--root", EXAMPLE, "--gpu", GPU),
    ("plan", "--root", EXAMPLE, "--gpu", GPU, "--network", "default", "-o", "xml"),
    ("schema", "host"),
    ("--help",),
    ("plan", "--help"),
    ("--version",),
]
NOT_BUFFERED = {"PYTHONUNBUFFERED": "1"}
OUTPUTS = [*((words, {}) for words in EVERY_OUTPUT), *((EVERY_OUTPUT[at], NOT_BUFFERED) for at in (0, 4, 5))]


def environment(more: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | more


@pytest.mark.sweep(most=8)
@pytest.mark.parametrize(("arguments", "more"), OUTPUTS, ids=str)
def test_a_reader_that_is_gone_is_no_error(arguments: tuple[str, ...], more: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*COMMAND, *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
            cwd=ROOT,
            env=environment(more),
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.sweep(most=8)
@pytest.mark.parametrize(("arguments", "more"), OUTPUTS, ids=str)
def test_an_output_that_cannot_be_written(arguments: tuple[str, ...], more: dict[str, str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
            cwd=ROOT,
            env=environment(more),
        )
    assert done.returncode == 2
    said = block(done.stderr.decode())
    assert said["error"] == "cannot write the output: No space left on device"
    assert said["where"] == "standard output"


def with_stdout(place: str, *arguments: str) -> tuple[int, str]:
    """The exit code and stderr of a command whose stdout is a pipe without a reader ("gone") or a file."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as gone, Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, *arguments],
            stdout=gone if place == "gone" else full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
            cwd=ROOT,
        )
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("place", ["gone", "full"])
def test_an_output_that_nobody_gets_hides_no_result(place: str, tmp_path: Path) -> None:
    """`hosttune validate | grep -q ...` must not turn a failed check into 0, and a plan is saved all the same."""
    (tmp_path / "host.json").write_text('{"schema": "hosttune.host/v1"}')
    code, err = with_stdout(place, "validate", "--host", str(tmp_path / "host.json"))
    assert code == 1
    assert ("No space left on device" in err) == (place == "full")
    out = tmp_path / "plan.json"
    code, err = with_stdout(place, "plan", "--root", EXAMPLE, *SMALL, "--out", str(out))
    assert code == (2 if place == "full" else 0)
    assert f"plan saved: {out}" in err
    assert json.loads(out.read_text())["unplaced"] == []


def test_a_plan_that_cannot_be_printed_as_xml_is_not_saved(cli: Cli, tmp_path: Path) -> None:
    out, path = tmp_path / "plan.json", tmp_path / "two.yaml"
    path.write_text("version: 1\nguests: [{name: a, gpus: 1}, {name: b, gpus: 1}]\n")
    said = refused(cli, "plan", "--root", EXAMPLE, "-f", str(path), "-o", "xml", "--out", str(out))
    assert said["error"] == "2 guests, but -o xml prints one"
    assert not out.exists()


@pytest.mark.parametrize("arguments", EVERY_OUTPUT[:3], ids=" ".join)
def test_a_closed_output(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *COMMAND, *arguments], capture_output=True, check=False, timeout=60, cwd=ROOT
    )
    assert done.returncode == 2
    assert block(done.stderr.decode())["error"] == "cannot write the output: standard output is closed"


@pytest.mark.parametrize("place", ["2>/dev/full", "2>&-"])
def test_the_exit_code_tells_where_stderr_cannot(place: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$@" {place}', "sh", *COMMAND, "plan"], capture_output=True, check=False, timeout=60, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


def test_a_narrow_locale_still_gets_the_document(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps({"schema": "hosttune.host/v1", "hostname": "h\u00f6st"}))
    narrow = environment({"PYTHONIOENCODING": "ascii"})
    done = spawn("discover", "--host", str(path), "-o", "json", env=narrow)
    assert (done.returncode, done.stderr) == (0, b"")
    assert spawn("discover", "--host", str(path), env=narrow).returncode == 0


def test_no_command_prints_the_help_on_stderr(cli: Cli) -> None:
    for arguments in ((), ("--debug",)):
        code, out, err = cli(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("Usage: hosttune ")
        assert re.search("discover +Show the host", err)


@pytest.mark.parametrize("word", ["help", "aply", ""])
def test_an_unknown_command_is_told_the_commands(cli: Cli, word: str) -> None:
    said = refused(cli, word)
    assert (said["error"], said["do"]) == (
        f"no command {word!r}",
        ("did you mean apply? " if word == "aply" else "")
        + "give one of: apply, capture, collective, completion, diagnose, discover, docs, fleet, forget-guest,"
        " handover, history, lint, lint-env, metrics, pairs, plan, predict, recover, revert, schema, status, validate,"
        " watch",
    )


def test_debug_may_stand_anywhere(cli: Cli) -> None:
    code, plain, _ = cli("schema", "host")
    assert code == 0
    for arguments in (("--debug", "schema", "host"), ("schema", "--debug", "host"), ("schema", "host", "--debug")):
        assert cli(*arguments) == (0, plain, "")
    assert "'--debug'" in refused(cli, "schema", "--", "--debug")["error"]


def test_an_error_block_is_bounded_and_safe_for_a_terminal(cli: Cli) -> None:
    said = refused(cli, "discover", "--root", "/\x1b[31m" + "a" * 100_000)
    assert all(len(part) < 5000 for part in said.values())
    assert "\x1b" not in "".join(said.values())


def test_a_line_break_in_a_files_name_makes_no_line_of_the_block(cli: Cli) -> None:
    for arguments in (("discover", "--host"), ("plan", "--root", EXAMPLE, "-f"), ("lint-env",)):
        said = cli(*arguments, "/none/a\n   do: rm -r /")
        lines = said[2].rstrip("\n").split("\n")
        assert said[0] == 2
        assert lines[0].startswith("error: cannot read /none/a")
        assert "where: /none/a\\n   do: rm -r /" in lines
        assert sum(line.startswith("   do: ") for line in lines) == 1


def test_an_unknown_word_is_answered_with_the_known_ones_once(cli: Cli) -> None:
    said = refused(cli, "schema", "foo")
    assert said["error"] == "'foo' is not known"
    assert said["do"].startswith("give host, plan, intent,")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_document_with_a_byte_order_mark_says_how_to_save_it(cli: Cli, tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "host.json"
    path.write_text('{"schema": "hosttune.host/v1"}', encoding=encoding)
    said = refused(cli, "validate", "--host", str(path))
    assert said == {
        "error": "begins with a byte order mark",
        "where": str(path),
        "do": "save it in UTF-8 without a byte order mark",
    }


def test_a_command_imports_only_what_it_needs(host_root: Callable[[str], Path]) -> None:
    root = str(host_root("derived/xe9680-8xh100-lspci"))
    optional = {"pynvml", "libvirt"}
    # Documents of other commands, and libraries for files that this host does not have:
    spared_by_discover = {
        *("hosttune.planning", "hosttune.rules.checks", "hosttune.model.evidence", "hosttune.hypervisor"),
        *("hosttune.domain.writer", "lxml.etree", "yaml", "pathlib", "tempfile"),
    }
    calls = (
        (["--version"], {"jinja2", "rich", "lxml.etree", "yaml", "subprocess", "tarfile", "msgspec"} | optional),
        (["discover", "-o", "json", "--root", root], {"rich", *spared_by_discover} | optional),
        (["discover", "-o", "json"], {"rich", *spared_by_discover}),
        (["status", "--root", root, "-o", "json"], {"rich", "hosttune.fleet", "hosttune.rules.checks.memory"}),
    )
    for arguments, spared in calls:
        code = (
            "import sys, io; from hosttune.cli import run; sys.stdout = io.StringIO();"
            f" run({arguments!r}); sys.stderr.write(' '.join(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=ROOT, timeout=60)
        loaded = set(done.stderr.decode().split())
        assert "hosttune.cli.process" in loaded
        assert not spared & loaded


def test_an_internal_error_is_one_block_and_70(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise RuntimeError("a defect")

    out, sys.stdout = sys.stdout, Broken()
    try:
        code = run(["schema", "host"])
    finally:
        sys.stdout = out
    assert code == 70
    assert block(capsys.readouterr().err)["error"] == "internal error: RuntimeError: a defect"
    sys.stdout = Broken()
    try:
        code = run(["schema", "host", "--debug"])
    finally:
        sys.stdout = out
    assert code == 70
    assert "Traceback" in capsys.readouterr().err


def test_the_state_directory_is_the_contract_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from hosttune.machine.system import state_directory

    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path))
    assert state_directory() == str(tmp_path)
    monkeypatch.delenv("HOSTTUNE_STATE")
    if os.geteuid() == 0:
        assert state_directory() == "/var/lib/hosttune"
