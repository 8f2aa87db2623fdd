"""`hosttune lint` as users and CI systems call it: files and names, formats, exit codes, bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from domain_faults import host_of
from domain_shapes import ONE_GPU, TWO_CELLS, plan_of
from jsonschema import Draft4Validator
from xmledits import edited

from hosttune.cli import run
from hosttune.domain.writer import domain_xml
from hosttune.model.limits import LIMITS
from hosttune.rules.lint import rules

SARIF = Path(__file__).parents[2] / "cases" / "sarif" / "sarif-2.1.0-rtm.5.json"
Cli = Callable[..., tuple[int, str, str]]
CLEAN = domain_xml(plan_of(ONE_GPU), "one-gpu")
MISSING = edited(
    CLEAN, "devices/hostdev/source/address", {"bus": "0x99"}
)  # a device that the host does not have: an error
LOOSE = edited(CLEAN, "cputune/emulatorpin", None)  # a warning, and no more


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    functions = tuple(device for device in host_of().pci if ":" in device.address)
    (tmp_path / "host.json").write_text(host_of(guests=(), pci=functions).to_json())
    for name, text in (("clean", CLEAN), ("missing", MISSING), ("loose", LOOSE)):
        (tmp_path / f"{name}.xml").write_text(text)

    def call(*words: str) -> tuple[int, str, str]:
        code = run(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def on_host(*words: str) -> tuple[str, ...]:
    return ("lint", "--host", "host.json", *words)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("clean.xml",), 0),
        (("loose.xml",), 1),
        (("loose.xml", "--fail-on", "error"), 0),
        (("loose.xml", "--fail-on", "warn"), 1),
        (("missing.xml", "--fail-on", "error"), 1),
        (("clean.xml", "missing.xml", "--fail-on", "error"), 1),
    ],
)
def test_the_exit_code(cli: Cli, words: tuple[str, ...], code: int) -> None:
    assert cli(*on_host(*words))[0] == code


def test_the_text_names_line_rule_and_remedy(cli: Cli) -> None:
    _, out, _ = cli(*on_host("missing.xml"))
    first, *lines = out.splitlines()
    assert first.startswith("missing.xml: 1 error, ")
    at = lines.index("  error  device-missing") + 1
    number = 1 + next(n for n, line in enumerate(MISSING.splitlines()) if "<hostdev" in line)
    assert lines[at].startswith(f"          line {number}: 0000:99:00.0 does not exist on this host")
    assert lines[at + 1] == "          do: name a device of this host: hosttune discover lists them"


def test_check_xml_is_the_same_and_takes_several_files(cli: Cli) -> None:
    words = ("--host", "host.json")
    both = ("--check-xml", "missing.xml", "--check-xml", "loose.xml")
    assert cli("plan", *words, *both) == cli("lint", *words, "missing.xml", "loose.xml")
    found = json.loads(cli("plan", *words, *both, "-o", "json")[1])["findings"]
    assert {one["file"] for one in found} == {"missing.xml", "loose.xml"}
    assert {"level", "text", "where"} <= found[0].keys()


def test_sarif_has_what_its_schema_requires(cli: Cli) -> None:
    """The required members of SARIF 2.1.0: log, run, tool, driver, reportingDescriptor, result, message."""
    code, out, _ = cli(*on_host("missing.xml", "loose.xml", "-o", "sarif"))
    log: dict[str, Any] = json.loads(out)
    assert (code, log["version"]) == (1, "2.1.0")
    (ran,) = log["runs"]
    driver = ran["tool"]["driver"]
    assert driver["name"] == "hosttune"
    assert [one["id"] for one in driver["rules"]] == [rule.id for rule in rules()]
    for one in driver["rules"]:
        assert all(one[key]["text"] for key in ("shortDescription", "fullDescription", "help"))
        assert one["defaultConfiguration"]["level"] in ("error", "warning", "note")
    for result in ran["results"]:
        assert result["message"]["text"]
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        (place,) = result["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] in ("missing.xml", "loose.xml")
        assert place["physicalLocation"]["region"]["startLine"] >= 1
        assert (result["kind"], result["level"]) in [
            *(("fail", level) for level in ("error", "warning", "note")),
            ("open", "none"),
        ]
    kinds = {(one["ruleId"], one["kind"], one["level"]) for one in ran["results"]}
    assert ("device-missing", "fail", "error") in kinds
    assert ("host-kvm", "open", "none") in kinds


@pytest.mark.parametrize("words", [(), ("missing.xml",), ("loose.xml",), ("odd: name.xml", "clean.xml")])
def test_sarif_is_valid(cli: Cli, tmp_path: Path, root: Path, words: tuple[str, ...]) -> None:
    """With the published schema; guests by name too. It names what is missing, and refuses a log of ours without it."""
    (tmp_path / "odd: name.xml").write_text(MISSING)
    call = on_host(*words, "-o", "sarif") if words else ("lint", "--root", str(root), "--all", "-o", "sarif")
    log = json.loads(cli(*call)[1])
    assert log["runs"][0]["results"]
    schema = Draft4Validator(json.loads(SARIF.read_text()))
    assert [error.message for error in schema.iter_errors(log)] == []
    del log["runs"][0]["results"][0]["message"]
    assert [error.message for error in schema.iter_errors(log)] == ["'message' is a required property"]


@pytest.mark.parametrize(("fail_on", "failed"), [("warn", True), ("error", False)])
def test_junit_has_a_case_for_each_rule(cli: Cli, fail_on: str, failed: bool) -> None:
    _, out, _ = cli(*on_host("loose.xml", "clean.xml", "-o", "junit", "--fail-on", fail_on))
    root = ElementTree.fromstring(out)
    loose, clean = root.findall("testsuite")
    assert [case.get("name") for case in loose] == [rule.id for rule in rules()]
    assert root.get("failures") == ("1" if failed else "0")
    case = next(case for case in loose if case.get("name") == "emulator-pin")
    assert (case.find("failure") is not None) is failed
    assert (case.find("system-out") is not None) is not failed
    unjudged = next(case for case in clean if case.get("name") == "host-kvm")
    skipped = unjudged.find("skipped")
    assert skipped is not None
    assert "cannot be judged: whether KVM works here is unknown" in (skipped.get("message") or "")


# --- guests of libvirt -------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A capture with a host that has nothing but two guests in libvirt."""
    path = tmp_path / "root" / ".hosttune" / "commands"
    path.mkdir(parents=True)
    (tmp_path / "root" / "sys").mkdir()
    listed = " Id   Name        State\n----------\n 3    one-gpu     running\n -    two-cells   shut off\n"
    (path / "virsh-list").write_text(listed)
    (path / "virsh-dumpxml-one-gpu").write_text(CLEAN)
    (path / "virsh-dumpxml-two-cells").write_text(domain_xml(plan_of(TWO_CELLS), "two-cells"))
    return tmp_path / "root"


def test_a_name_is_a_guest_of_libvirt(cli: Cli, root: Path) -> None:
    _, out, err = cli("lint", "--root", str(root), "two-cells", "-o", "json")
    assert err == ""
    found = json.loads(out)["findings"]
    assert {one["file"] for one in found} == {"libvirt:two-cells"}
    assert {one["guest"] for one in found} == {"two-cells"}
    assert any("belongs to guest one-gpu (running)" in one["text"] for one in found)


def test_all_guests_are_judged_together(cli: Cli, root: Path) -> None:
    code, out, _ = cli("lint", "--root", str(root), "--all", "-o", "json")
    assert code == 1
    shared = {one["file"] for one in json.loads(out)["findings"] if one["rule"] == "cpus-shared"}
    assert shared == {"libvirt:one-gpu", "libvirt:two-cells"}
    assert cli("lint", "--root", str(root), "one-gpu", "two-cells", "-o", "json") == (code, out, "")


def test_a_host_without_guests_has_nothing_to_judge(cli: Cli, root: Path) -> None:
    for path in root.glob(".hosttune/commands/virsh-*"):
        path.unlink()
    (root / ".hosttune/commands/virsh-list").write_text(" Id   Name   State\n---\n")
    assert cli("lint", "--root", str(root), "--all") == (0, "no guest to judge\n", "")


def test_guests_that_run_are_judged_together_without_libvirt(cli: Cli, root: Path) -> None:
    """As on Proxmox and Incus: two guests whose vCPUs have the same CPU."""
    commands = root / ".hosttune/commands"
    for path in commands.glob("virsh-*"):
        path.unlink()
    options = [["machine", {"type": "q35", "accel": "kvm"}], ["smp", {"cpus": "1"}]]
    processes = [{"pid": pid, "name": f"g{pid}", "program": "kvm", "options": options} for pid in (17, 18)]
    (commands / "qemu-running").write_text(json.dumps(processes))
    for pid in (17, 18):
        for thread, name, cpu in ((pid, "kvm", 0), (pid + 100, "CPU 0/KVM", 1)):
            folder = root / f"proc/{pid}/task/{thread}"
            folder.mkdir(parents=True)
            (folder / "comm").write_text(f"{name}\n")
            (folder / "status").write_text(f"Threads:\t2\nCpus_allowed_list:\t{cpu}\n")
    _, out, _ = cli("lint", "--root", str(root), "--running", "-o", "json")
    found = {(one["guest"], one["text"]) for one in json.loads(out)["findings"] if one["rule"] == "cpus-shared"}
    text = "vCPUs on CPU 1, where guest {} has its vCPUs: each waits for the other"
    assert found > {("g17", text.format("g18")), ("g18", text.format("g17"))}


# --- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ((), "nothing to judge"),
        (("clean.xml", "--all"), "guests together with --all"),
        (("--host", "host.json", "--all"), "a host document holds no definitions of guests"),
        (("--host", "host.json", "web"), "a host document holds no definitions of guests"),
        (("--host", "host.json", "gone.xml"), "cannot read gone.xml"),
        (("--root", "ROOT", "web"), "no file and no guest 'web'"),
        (("--root", "ROOT", "one-gup"), "do: did you mean one-gpu? libvirt has one-gpu, two-cells"),
        (("--root", "EMPTY", "--all"), "do: give XML files: the capture does not hold what libvirt answered"),
        (("clean.xml", "-o", "xml"), "is not known"),
    ],
)
def test_a_bad_request_is_one_error(cli: Cli, root: Path, tmp_path: Path, words: tuple[str, ...], what: str) -> None:
    (tmp_path / "empty" / "sys").mkdir(parents=True)
    places = {"ROOT": str(root), "EMPTY": str(tmp_path / "empty")}
    code, out, err = cli("lint", *(places.get(word, word) for word in words))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert what in err


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('<!DOCTYPE domain [<!ENTITY a "b">]><domain type="kvm"><name>&a;</name></domain>', "holds a document type"),
        ('<!DOCTYPE domain SYSTEM "file:///etc/passwd"><domain type="kvm"/>', "holds a document type"),
        ('<domain type="kvm"><name>&a;</name></domain>', "not an XML document"),
        ('<domain type="xen"><name>a</name></domain>', "a domain of type 'xen', which hosttune does not judge"),
        ("<domain><name>a</name></domain>", "a domain without a type, which hosttune does not judge"),
        ("<network/>", "a <network>, not a <domain>"),
        ("", "not an XML document"),
    ],
)
def test_what_is_no_guest_of_kvm_is_refused(cli: Cli, tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "bad.xml").write_text(text)
    code, out, err = cli(*on_host("clean.xml", "bad.xml"))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {what}")
    assert "where: bad.xml" in err
    assert "<string>" not in err


def test_a_file_of_100_mb_is_refused_by_its_limit(cli: Cli, tmp_path: Path) -> None:
    with open(tmp_path / "large.xml", "wb") as file:
        file.truncate(100 << 20)
    code, out, err = cli(*on_host("large.xml"))
    assert (code, out) == (2, "")
    assert f"error: larger than {LIMITS['domain XML'].text}" in err
