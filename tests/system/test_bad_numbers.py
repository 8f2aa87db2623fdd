"""Numbers that nothing has, and texts in place of addresses and lists: bad input, never an internal error.

Whole numbers are bounded where a text becomes values (`plain_json`, `load_yaml`, `plain_toml`, `number`), so that no
reader needs a check of its own.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from applyroots import EXAMPLE, STATE, block
from sshruns import copy_root
from sweeps import examples

import hosttune
from hosttune.bench.baselines import with_fleet
from hosttune.cli import run
from hosttune.errors import BadInput
from hosttune.model.jsontext import plain_toml, recorded_json
from hosttune.model.measured import Measured
from hosttune.model.training import Training
from hosttune.model.validation import Validation

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests/cases"
INTENT = {
    "version": 1, "reserve": {"cores_per_node": 1, "memory_per_node": 8 << 30},
    "settings": {"resume_latency_us": 20},
    "guests": [
        {"name": "a", "gpus": {"count": 2}, "vcpus": 8, "memory": 8 << 30, "nics": 1, "nvme": 1, "numa": 1},
        {"name": "b", "gpus": ["0000:41:00.0"], "numa": [{"vcpus": 2, "memory": 1 << 30}]},
        {"name": "c", "mig": {"profile": "1g.18gb", "count": 1}},
    ],
}  # fmt: skip
MEASURED = {
    "version": 1,
    "setup": {
        "gpu": "H200", "gpus_per_host": 8, "hosts": 2, "nvlinks_per_gpu": 18, "environment": {"NCCL_X": 3},
        "nics": {"count": 8, "rate_gbps": 400, "kind": "infiniband"},
    },
    "figures": [{"metric": "h2d", "subject": "0", "value": 50, "unit": "GB/s", "size_bytes": 1000}],
    "observations": {
        "link": {"speed_gts": 16, "width": 8, "max_speed_gts": 32, "max_width": 16}, "sm_clock_mhz": 1000,
        "nic_link": {"rate_gbps": 100, "max_rate_gbps": 400, "ports": 8, "ports_active": 7},
    },
}  # fmt: skip
TRAINING = {
    "version": 1, "gpu": "H200", "parameters": 7e10, "layers": 80, "heads": 64, "head_size": 128, "sequence": 8192,
    "gpus": 64, "hosts": 8, "tokens_per_second": 100000, "split": 8, "gradient_bytes": 2, "nics_per_host": 8,
    "claims": {"mfu": 0.4}, "runs": [{"gpus": 32, "tokens_per_second": 50000}],
}  # fmt: skip
Read = Callable[[str], object]
READ: Mapping[str, Read] = {
    "host": hosttune.Host.from_json,
    "plan": hosttune.Plan.from_json,
    "validation": Validation.from_json,
    "intent": hosttune.Intent.from_json,
    "intent of YAML": hosttune.Intent.from_yaml,
    "measured": Measured.from_yaml,
    "training": Training.from_yaml,
}
TOO_LONG = ("1" + "0" * 30, "-1" + "0" * 30, "9" * 400, "9" * 5000)
# Texts that are neither an address nor a list of CPUs or nodes.
NONSENSE = ("zz:99", "-1", "9" * 40, "0000:ff:99.9", "0-99999999", "5-3")


@pytest.fixture(scope="module")
def documents() -> Mapping[str, Any]:
    """One document of each kind; of long lists, the first parts, because all parts of a list are alike."""
    host = hosttune.discover(str(EXAMPLE))
    plan = hosttune.plan(host, hosttune.Intent.from_json(json.dumps(INTENT)))
    validation = json.loads(hosttune.validate(str(EXAMPLE)).to_json())
    return {
        "host": shortened(json.loads(host.to_json())),
        "plan": shortened(json.loads(plan.to_json())),
        "validation": shortened(validation),
        "intent": INTENT,
        "intent of YAML": INTENT,
        "measured": MEASURED,
        "training": TRAINING,
    }


def shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shortened(part) for key, part in value.items()}
    return [shortened(part) for part in value[:1]] if isinstance(value, list) else value


def fields(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from fields(part, (*path, key))
    else:
        yield path, value


def template(document: Any, path: tuple[str | int, ...]) -> str:
    """The document as text with "HERE" in one place."""
    changed = json.loads(json.dumps(document))
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = "HERE"
    return json.dumps(changed)


def written(document: Any, path: tuple[str | int, ...], value: str) -> str:
    """The document as text with `value` in one place."""
    return template(document, path).replace('"HERE"', value)


@pytest.mark.parametrize("kind", READ)
def test_a_whole_number_of_more_than_64_bits_is_refused_in_every_field(kind: str, documents: Mapping[str, Any]) -> None:
    """Each field in turn with one of them, as the bound is where a text becomes values; and with what some may have."""
    document, tried = documents[kind], set[tuple[str, ...]]()
    for path, value in fields(document):
        field = tuple(one for one in path if isinstance(one, str))  # of the rows of a list one is enough
        if field in tried or not isinstance(value, int | float) or isinstance(value, bool):
            continue
        text = template(document, path)
        with pytest.raises(BadInput):
            READ[kind](text.replace('"HERE"', TOO_LONG[len(tried) % len(TOO_LONG)]))
        for number in ("-1", "1e308", "0"):
            with contextlib.suppress(BadInput):
                READ[kind](text.replace('"HERE"', number))
        tried.add(field)
    assert len(tried) >= len(TOO_LONG)


@pytest.mark.parametrize("kind", ["host", "plan", "validation"])
def test_a_place_that_is_none_is_refused(kind: str, documents: Mapping[str, Any]) -> None:
    document = documents[kind]
    names = re.compile(r"address|cpus|host_nodes|local_cpus|emulator_cpus|iothread_cpus|present|devices")
    tried = 0
    for path, value in fields(document):
        key = next(one for one in reversed(path) if isinstance(one, str))
        if not isinstance(value, str) or not names.fullmatch(key) or path[0] in ("problems", "results", "intent"):
            continue
        for text in NONSENSE:
            tried += 1
            if (re.fullmatch("[0-9]+", text) and len(text) < 7) or (key == "address" and ":" not in value):
                continue
            with pytest.raises(BadInput):
                READ[kind](written(document, path, json.dumps(text)))
    assert tried


def test_a_number_of_a_drive_may_have_128_bits() -> None:
    assert recorded_json('{"data_units_read": 340282366920938463463374607431768211455}', where="nvme")
    with pytest.raises(BadInput):
        recorded_json(f'{{"data_units_read": {1 << 128}}}', where="nvme")


@pytest.mark.parametrize("number", TOO_LONG)
def test_a_number_of_toml(number: str) -> None:
    with pytest.raises(BadInput):
        plain_toml(f"[fleet]\nforks = {number}\n", where="config.toml", hint="correct it")


def of_every_number(text: str, most: int = 40) -> Iterator[tuple[str, str]]:
    """(what was changed, the text) for each number in a text, or for some of many."""
    places = list(re.finditer(r"[0-9]+", text))
    for found in places[:: len(places) // most + 1]:
        for number in ("9" * 20, "9" * 400, "9" * 5000, "0", "-1"):
            yield (
                f"{text[max(0, found.start() - 30) : found.start()]!r} {number[:9]}",
                (text[: found.start()] + number + text[found.end() :]),
            )


LOGS = ("bench/nccl", "bench/nvbandwidth", "bench/perftest", "gpu/topo")
DOMAINS = (
    "cputune",
    "numatune-hmat",
    "hugepages-numa-default-dimm",
    "memtune",
    "pcihole64-gib",
    "iothreads-ids-partial",
)


@pytest.mark.parametrize("folder", LOGS)
def test_the_numbers_of_a_log(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tried = 0
    for case in sorted((CASES / folder).glob("*.txt"))[:4]:
        for what, text in of_every_number(case.read_text(errors="replace"), most=examples(8, full=25)):
            path = tmp_path / "log.txt"
            path.write_text(text)
            code = run(["diagnose", "--log", str(path)])
            err = capsys.readouterr().err
            assert code in (0, 1, 2), (case, what, err)
            tried += code != 2
    assert tried


@pytest.mark.parametrize("name", DOMAINS)
def test_the_numbers_of_a_definition(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = tmp_path / "host.json"
    host.write_text('{"schema": "hosttune.host/v1"}')
    for what, text in of_every_number((CASES / "domain" / f"{name}.xml").read_text()):
        path = tmp_path / "guest.xml"
        path.write_text(text)
        code = run(["lint", str(path), "--host", str(host)])
        assert code in (0, 1, 2), (what, capsys.readouterr().err)


def refused(code: int, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    return block(err)


def test_a_guest_without_vcpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "guest.xml"
    path.write_text("<domain type='kvm'><name>a</name><memory>1024</memory>\n<vcpu>0</vcpu></domain>")
    said = refused(run(["lint", str(path), "--root", str(EXAMPLE)]), capsys)
    assert said["where"] == f"{path}: line 2, <vcpu>"


def test_an_expected_device_at_no_address(
    documents: Mapping[str, Any], pristine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Named by the caller it is refused; in what hosttune keeps it is a doubt, and the validation goes on."""
    document = json.loads(json.dumps(documents["validation"]))
    document["machine"]["devices"][0]["address"] = "zz:99"
    path = tmp_path / "validation.json"
    path.write_text(json.dumps(document))
    said = refused(run(["validate", "--root", str(EXAMPLE), "--expect", str(path)]), capsys)
    assert "'zz:99' is not a PCI address" in said["error"]
    root = copy_root(pristine, tmp_path / "root").path
    kept = root / STATE / "validations/devices.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(document))
    assert run(["validate", "--root", str(root), "-o", "json"]) == 1
    out, _ = capsys.readouterr()
    assert "'zz:99' is not a PCI address" in out


def test_a_plan_on_nodes_that_are_none(
    documents: Mapping[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    document = documents["plan"]
    place = next(path for path, _ in fields(document) if path[-1] == "host_nodes")
    path.write_text(written(document, place, '"zz"'))
    said = refused(run(["predict", "--root", str(EXAMPLE), "--plan", str(path)]), capsys)
    assert said["where"] == f"{path}: guests[0].cells[0].host_nodes"


def test_floors_with_a_number_that_nothing_has() -> None:
    with pytest.raises(BadInput):
        with_fleet("[[floor]]\nnvlinks = " + "9" * 5000, where="floors.toml")
