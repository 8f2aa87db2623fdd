"""Text that is no Unicode is refused wherever it stands; what acts on a terminal reaches no output as it is."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from examplehosts import discovered
from fleetresults import html as fleet_html
from fleetresults import junit as fleet_junit
from fleetresults import markdown as fleet_markdown
from fleetresults import write_lost, write_validation
from sweeps import sample
from system.test_bounds import GUEST, host_of
from unit.report.test_fleet_report import ASKED
from validations import HOSTILE

import hosttune
from hosttune.cli import run
from hosttune.domain.writer import domain_xml
from hosttune.errors import BadInput
from hosttune.fleet.overview import report_of
from hosttune.model.intent import Intent
from hosttune.model.jsontext import plain_json
from hosttune.model.plan import Plan
from hosttune.model.text import UNSAFE, json_escaped, visible
from hosttune.model.validation import CheckResult, Outcome, Validation
from hosttune.model.values import to_builtins, to_json
from hosttune.report.draw.html import page as html_of
from hosttune.report.draw.junit import junit
from hosttune.report.draw.md import markdown
from hosttune.report.svg import host_svg
from hosttune.report.validation import validation_report

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/hgx-h200-8.tar.xz"
NASTY = "x\x1b]0;y\x07\x9b31m\x7f\u202eevil\u2066\u200f\u2028\u061cz"
TERMINAL = "\x1b[31m\nPASS"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "state"))

    def call(*words: str) -> tuple[int, str, str]:
        code = run(list(words))
        return code, *capsys.readouterr()

    return call


def refused(found: tuple[int, str, str]) -> str:
    """The error of a command that was refused with one block and nothing else."""
    code, out, err = found
    assert (code, out) == (2, ""), (code, out[:200], err[:500])
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert not re.search(UNSAFE, err)
    return err.splitlines()[0]


# --- no Unicode ----------------------------------------------------------------------------------------------

TEXTS = ("profile", "smt", "hugepages", "firmware", "accelerator", "vcpus", "numa", "name", "memory", "disk", "gpus")


@pytest.mark.parametrize("key", TEXTS)
def test_half_a_character_in_an_intent(cli: Run, tmp_path: Path, key: str) -> None:
    half = '"\\ud800"'
    text = f"version: 1\n{key}: {half}\n" if key == "profile" else f"version: 1\nguests: [{{name: a, {key}: {half}}}]\n"
    for name, data in (("a.yaml", text), ("a.json", json.dumps({"version": 1, key: "\ud800"}))):
        path = tmp_path / name
        path.write_text(data)
        refused(cli("plan", "--root", str(EXAMPLE), "-f", str(path)))
    guest = {**GUEST, key: "\ud800"}
    document = {"version": 1, key: "\ud800"} if key == "profile" else {"version": 1, "guests": [guest]}
    with pytest.raises(BadInput, match=r"Unicode|JSON"):
        Intent.from_json(json.dumps(document))


@pytest.mark.parametrize("space", ["", "\n "])
def test_a_character_that_json_writes_as_two_escapes(cli: Run, tmp_path: Path, space: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(space + json.dumps({"version": 1, "guests": [{**GUEST, "disk": "/\U0001f600.img"}]}))
    code, out, err = cli("plan", "--root", str(EXAMPLE), "-f", str(path), "-o", "json")
    assert (code, err) == (0, "")
    assert json.loads(out)["intent"]["guests"][0]["disk"] == "/\U0001f600.img"


def test_an_error_names_the_half_pair_and_not_what_follows_from_it() -> None:
    for text in ('["\\ud83d"]', '["\\ude00\\ud83d"]', '["\\ud83d\\ude00\\ud83d\\u0041"]'):
        with pytest.raises(BadInput, match="half of a surrogate pair"):
            plain_json(text, where="x")
    for text in ('["\\ud83d\\ude00"', '["\\\\ud83d"'):
        with pytest.raises(BadInput, match="truncated"):
            plain_json(text, where="x")


NO_UNICODE = {
    "lone surrogate": b'"\\ud800"',
    "lone low surrogate": b'"\\udc00x"',
    "half a pair, then text": b'"\\ud800\\u0041"',
    "byte that is no UTF-8": b'"\xff"',
    "surrogate as bytes": b'"\xed\xa0\x80"',
    "overlong": b'"\xc0\xaf"',
    "cut off": b'"\xe2\x82"',
}


@pytest.mark.parametrize("case", NO_UNICODE)
def test_a_document_that_is_no_unicode(cli: Run, tmp_path: Path, case: str) -> None:
    path, host = tmp_path / "x.json", tmp_path / "host.json"
    host.write_text('{"schema": "hosttune.host/v1"}')
    schemas = {"host": "hostname", "plan": "host_digest", "validation": "host"}
    commands = {
        "host": (("discover", "--host"), ("plan", "--gpus", "1", "--host"), ("validate", "--host")),
        "plan": (("apply", "--dry-run", "--host", str(host)),),
        "validation": (("validate", "--host", str(host), "--against"),),
    }
    for kind, field in schemas.items():
        for place in (field, "never-heard-of"):
            path.write_bytes(
                b'{"schema": "hosttune.%s/v1", "%s": %s}' % (kind.encode(), place.encode(), NO_UNICODE[case])
            )
            for words in commands[kind]:
                refused(cli(*words, str(path)))


def test_text_that_python_could_not_write_either() -> None:
    with pytest.raises(BadInput, match="not valid Unicode"):
        plain_json('"\ud800"', where="x")
    for kind in (hosttune.Host, hosttune.Plan, hosttune.Intent, Validation):
        with pytest.raises(BadInput, match="not valid Unicode"):
            kind.from_json('{"schema": "\ud800"}')


# --- control characters in intents ---------------------------------------------------------------------------

PLACES: dict[str, Any] = {
    "disk": lambda text: {"disk": f"/a{text}b"},
    "boot.kernel": lambda text: {"boot": {"kernel": f"/a{text}b"}},
    "boot.initrd": lambda text: {"boot": {"kernel": "/k", "initrd": text}},
    "boot.cmdline": lambda text: {"boot": {"kernel": "/k", "cmdline": f"a{text}"}},
    "networks[0].bridge": lambda text: {"networks": [{"bridge": text}]},
    "gpus.model": lambda text: {"gpus": {"count": 1, "model": text}},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_control_character_in_a_text_of_an_intent(place: str) -> None:
    for character in ("\n", "\t", "\x1b", "\x7f", "\x9b", "\u202e", "\u2066", "\u2028"):
        guest = {**GUEST, **PLACES[place](character)}
        with pytest.raises(BadInput, match=r"holds the control character U\+") as caught:
            Intent.from_json(json.dumps({"version": 1, "guests": [guest]}))
        assert caught.value.where == f"intent: guests[0].{place}"


def test_a_newline_in_a_disk_gives_no_plan(cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "intent.yaml"
    path.write_text('version: 1\nguests: [{name: a, gpus: 1, disk: "/a\\nb"}]\n')
    assert "control character U+000A" in refused(cli("plan", "--root", str(EXAMPLE), "-f", str(path), "-o", "json"))


# --- outputs -------------------------------------------------------------------------------------------------


def spoilt(value: Any, text: str, keep: frozenset[str] = frozenset()) -> Any:
    """A plain document with this text behind every free text in it."""
    if isinstance(value, dict):
        return {name: part if name in keep else spoilt(part, text, keep) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [spoilt(part, text, keep) for part in value]
    return value + text if isinstance(value, str) else value


KEPT = frozenset(
    ("schema", "address", "parent", "vendor_id", "device_id", "class_code", "cpus", "local_cpus", "numa_source", "kind",
     "vendor", "physfn", "virtfns", "state", "verb", "level", "verdict", "outcome", "at", "distances", "peers", "mode")
)  # fmt: skip


@pytest.fixture(scope="module")
def nasty_host() -> hosttune.Host:
    """The example with an odd end to its names: host, models, drivers, guests, problems."""
    plain = to_builtins(discovered())
    for name in ("hostname", "kernel", "kernel_args", "platform", "problems", "settings"):
        plain[name] = spoilt(plain[name], NASTY, KEPT)
    for gpu in plain["gpus"]:
        gpu["model"] += NASTY
    for function in plain["pci"]:
        function["device_name"] = (function["device_name"] or "") + NASTY
    plain["guests"] = [{"name": f"guest{NASTY}", "state": "running", "vcpu_pins": [], "devices": []}]
    return hosttune.Host.from_json(json.dumps(plain))


def clean(text: str) -> None:
    found = re.search(UNSAFE, text)
    assert found is None, repr(text[max(0, found.start() - 80) : found.end() + 20])


def test_a_hosts_own_names_act_on_nothing(cli: Run, tmp_path: Path, nasty_host: hosttune.Host) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps(to_builtins(nasty_host)))
    commands: list[tuple[str, ...]] = [("discover", "-o", form) for form in ("text", "json", "svg")]
    commands += [("validate", "-o", form) for form in ("text", "json", "md", "html", "junit")]
    commands += [("plan", "--gpus", "1", "-o", form) for form in ("text", "json", "xml", "svg", "html")]
    for words in commands:
        _, out, err = cli(*words, "--host", str(path))
        assert out, (words, err)
        clean(out)
        clean(err)


def test_json_reads_back_as_the_same_text(nasty_host: hosttune.Host) -> None:
    text = nasty_host.to_json()
    clean(text)
    assert hosttune.Host.from_json(text) == nasty_host
    assert json.loads(text)["hostname"].endswith(NASTY)
    assert json_escaped('"plain ü 中"') == '"plain ü 中"'
    assert json.loads(to_json(NASTY)) == NASTY


def nasty_validation() -> Validation:
    rows = tuple(
        CheckResult(
            check="a", subject=f"{n}{NASTY}", outcome=one, expected=NASTY, actual=NASTY, source=NASTY, hint=NASTY
        )
        for n, one in enumerate(get_args(Outcome))
    )
    return Validation(host=NASTY, level=0, verdict="fail", results=rows, facts={NASTY: NASTY}, version=NASTY)


def test_a_validation_acts_on_nothing_in_any_format(nasty_host: hosttune.Host) -> None:
    one = nasty_validation()
    pages = (
        junit(validation_report(one)),
        markdown(validation_report(one)),
        one.to_json(),
        html_of(validation_report(one, host=nasty_host, before=one)),
        host_svg(nasty_host, results=one.results),
    )
    for page in pages:
        clean(page)
    assert "\\x9b31m" in junit(validation_report(one))
    assert "\\u202eevil" in junit(validation_report(one))


def test_a_fleet_acts_on_nothing_in_any_format(tmp_path: Path) -> None:
    rows = [
        CheckResult(check=f"a{NASTY}", subject=NASTY, outcome=outcome, actual=NASTY, hint=NASTY)
        for outcome in ("fail", "unknown", "warn")
    ]  # fmt: skip
    write_validation(tmp_path, "host1", Validation(host=NASTY, level=0, verdict="fail", results=tuple(rows)))
    write_lost(tmp_path, "host2", "unreachable", f"ssh: {NASTY}")
    report = report_of(str(tmp_path), ("host1", "host2"), ASKED)
    assert NASTY in to_builtins(report)["hosts"][0]["hostname"]
    for page in (fleet_junit(report), fleet_markdown(report), fleet_html(report), report.to_json()):
        clean(page)


def test_xml_that_would_hold_one_is_refused() -> None:
    plan = hosttune.plan(discovered(), Intent.from_json(json.dumps({"version": 1, "guests": [GUEST]})))
    document = to_builtins(plan)
    document["guests"][0]["disk"] = "/a\u202eb"
    with pytest.raises(BadInput, match="holds a control character"):
        domain_xml(Plan.from_json(json.dumps(document)), "a")


def test_what_is_visible_says_what_was_there() -> None:
    assert visible("a\x1b[1m\x9b\u202e\u2069\ud800 ü\tb\n") == "a\\x1b[1m\\x9b\\u202e\\u2069\\ud800 ü\tb\n"


# --- whatever a file holds -----------------------------------------------------------------------------------


def spoilers(kind: str) -> Iterator[bytes]:
    """Files of every kind of input, each with something wrong."""
    generator = random.Random(kind)
    yield from (
        b"",
        b"\0",
        b"\xff\xfe\0\0",
        b"\xef\xbb\xbf",
        b"[" * 3000,
        b"{" * 3000,
        b"null",
        b"[]",
        b"{}",
        b"1e999999",
        b'"',
    )
    yield from (
        b"-" * 5000,
        b"\x1f\x8b\x08",
        b"BZh9",
        b"\xfd7zXZ\0",
        b"<a",
        b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
        HOSTILE.encode(),
    )
    seeds: list[Any] = [
        {"schema": "hosttune.host/v1", "cpus": [{"id": 0}], "pci": [{"address": "0000:01:00.0"}], "hostname": "h"},
        {"schema": "hosttune.plan/v1", "intent": {"version": 1}, "guests": [], "actions": []},
        {"schema": "hosttune.validation/v1", "level": 0, "verdict": "pass", "results": [], "samples": []},
        {"version": 1, "guests": [GUEST]},
    ]
    for _ in range(40):
        data = bytearray(json.dumps(generator.choice(seeds)).encode())
        for _ in range(generator.randint(1, 4)):
            at = generator.randrange(len(data))
            piece = generator.choice(
                (b"\xff", b"\\ud800", b"\\u202e", b"\x9b", b"\0", b"9" * 400, b"[[", b"", b"null", b'"')
            )
            data[at : at + generator.randint(0, 3)] = piece
        yield bytes(data)


COMMANDS = {
    "host": ("discover", "--host"),
    "host, validated": ("validate", "--host"),
    "host, planned": ("plan", "--gpus", "1", "--host"),
    "host, plan drawn": ("plan", "--gpus", "1", "-o", "html", "--host"),
    "host, drawn": ("discover", "-o", "svg", "--host"),
    "host, status": ("status", "--host"),
    "root": ("discover", "--root"),
    "root, validated": ("validate", "--root"),
    "root, captured": ("capture", "/nonexistent/x.tar.gz", "--root"),
    "plan": ("apply", "--dry-run", "--host", "HOST"),
    "validation": ("validate", "--host", "HOST", "--against"),
    "floors": ("validate", "--level", "1", "--fleet"),
    "xml": ("plan", "--host", "HOST", "--check-xml"),
    "intent": ("plan", "--host", "HOST", "-o", "json", "-f"),
    "intent of apply": ("apply", "--dry-run", "--host", "HOST", "--intent"),
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_no_file_is_an_internal_error(cli: Run, tmp_path: Path, kind: str) -> None:
    host = tmp_path / "host.json"
    host.write_text('{"schema": "hosttune.host/v1"}')
    words = tuple(str(host) if word == "HOST" else word for word in COMMANDS[kind])
    path = tmp_path / "spoilt"
    for data in sample(kind, list(spoilers(kind)), 25):
        path.write_bytes(data)
        code, out, err = cli(*words, str(path))
        assert code in (0, 1, 2, 3), (data[:200], err)
        assert "Traceback" not in err
        clean(out)
        clean(err)
        assert code != 2 or (out == "" and err.startswith("error: ")), (data[:200], out[:200], err)


def test_odd_answers_of_commands_are_no_internal_error() -> None:
    """What stands in a capture's kernel log or SMART log reaches the report: half characters, too."""
    from hosttune.discovery.evidence import gather

    for name in ("kernel-log", "nvml.json", "libvirt.json", "fabric-manager-partitions", "kept-gpus", "adjtimex"):
        for text in (
            b'{"since": 1, "source": "\\ud800", "lines": []}',
            b"\xff\xfe",
            b"[" * 5000,
            b"{}",
            b"[]",
            b'"\\udc00"',
        ):
            try:
                found = gather(host_of({f"/.hosttune/commands/{name}": text}))
            except BadInput:
                continue
            msgspec.json.encode(to_builtins(found.host))
