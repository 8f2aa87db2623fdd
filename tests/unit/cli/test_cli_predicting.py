"""`hosttune predict` and `hosttune diagnose` as users call them: formats, exit codes, bad input, and what they read."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from examplehosts import discovered
from msgspec.structs import replace

from hosttune import discover
from hosttune.bench.baselines import shipped_peaks
from hosttune.cli import run
from hosttune.model.diagnosis import Diagnosis
from hosttune.model.measured import Measured
from hosttune.model.prediction import Prediction
from hosttune.predicting import Scope, predict
from hosttune.rules.causes import diagnose

Cli = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = str(ROOT / "examples/hgx-h200-8.tar.xz")
LOW = {
    "version": 1,
    "setup": {"gpu": "NVIDIA H200"},
    "figures": [{"metric": "h2d", "subject": "GPU 0", "value": 27.5, "unit": "GB/s"}],
    "observations": {"link": {"width": 8, "max_width": 16, "speed_gts": 32, "max_speed_gts": 32}},
}


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)

    def call(*words: str, **files: Any) -> tuple[int, str, str]:
        for name, content in files.items():
            (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        code = run(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return call


# --- predict -----------------------------------------------------------------------------------------------------


def figures(found: Prediction) -> dict[tuple[str, str], tuple[float | None, float | None]]:
    return {(one.metric, one.subject): (one.bound, one.typical) for one in found.figures}


def test_what_the_example_host_can_reach() -> None:
    found = figures(predict(discovered(), Scope("host", None, 2)))
    assert found["h2d", "0000:18:00.0, near node"] == (63.02, 55.45)
    assert found["h2d", "0000:18:00.0, far node"] == (63.02, None)
    assert found["p2p", "0000:18:00.0->0000:29:00.0"] == (450.0, 394.5)
    assert found["all-reduce-busbw", "16 GPUs on 2 hosts"] == (750.0, 478.74)
    assert found["rdma-write", "mlx5_0"] == (400.0, 384.0)
    assert found["memory-copy", "node0->node1"] == (None, None)
    assert found["all-reduce-busbw", "4 GPUs, 8 GiB"][1] == pytest.approx(363.3, rel=0.02)
    assert found["all-reduce-busbw", "8 GPUs, 8 GiB"][1] == pytest.approx(473.1, rel=0.02)
    assert found["all-reduce-busbw", "8 GPUs, ring (NVLS off)"][1] == pytest.approx(365.6, rel=0.02)


def test_every_figure_says_where_it_comes_from() -> None:
    for one in predict(discovered(), Scope("host", None, 2)).figures:
        assert one.formula
        assert one.source
        assert one.because
        assert one.bound is None or one.typical is None or one.typical <= one.bound


def test_a_guest_of_an_intent_gets_its_own_devices(cli: Cli) -> None:
    intent = "{version: 1, guests: [{name: a, gpus: 2, nics: 1}, {name: b, gpus: 1}]}"
    code, out, _ = cli("predict", "--root", EXAMPLE, "-f", "intent.yaml", "-o", "json", **{"intent.yaml": intent})
    assert code == 0
    first, second = (Prediction(**one) for one in json.loads(out))
    assert (first.of, second.of) == ("a", "b")
    counts = [sum(one["metric"] == "device-copy" for one in part.figures) for part in (first, second)]  # type: ignore[index]
    assert counts == [2, 1]


def test_one_guest_of_a_plan(cli: Cli) -> None:
    assert run(["plan", "--root", EXAMPLE, "--gpus", "2", "--name", "web", "--out", "plan.json"]) == 0
    code, out, _ = cli("predict", "--root", EXAMPLE, "--plan", "plan.json", "--guest", "web")
    assert code == 0
    assert "What to expect of web" in out
    code, _, err = cli("predict", "--root", EXAMPLE, "--plan", "plan.json", "--guest", "db")
    assert code == 2
    assert "no guest 'db'" in err
    assert "give one of: web" in err


def test_a_host_without_anything_known_predicts_nothing(cli: Cli) -> None:
    bare = {"schema": "hosttune.host/v1", "hostname": "bare"}
    code, out, _ = cli("predict", "--host", "host.json", "-o", "json", **{"host.json": bare})
    assert (code, json.loads(out)["figures"]) == (0, [])


def test_a_reason_names_only_what_is_missing() -> None:
    host = discover(str(ROOT / "examples/mi300x-8.tar.xz"))
    found = {one.subject: one.because for one in predict(host, Scope("host")).figures if "all-reduce" in one.metric}
    missing = "how many links a GPU has and the rate of a link, as collectives count it"
    assert found["8 GPUs, 1 GiB"] == (f"not known: {missing}",)
    peaks = {name: replace(row, values={}) for name, row in shipped_peaks().peaks.items()}
    rows = predict(host, Scope("host"), replace(shipped_peaks(), peaks=peaks)).figures
    pair = next(one for one in rows if one.metric == "p2p")
    assert pair.because == ("not known: the number and rate of the XGMI links between the two",)


def test_a_figure_without_a_bound_is_shown(cli: Cli) -> None:
    root = str(ROOT / "tests/hosts/derived/oci-bm-gpu-a100-b4-nps4.tar.xz")
    code, out, _ = cli("predict", "--root", root, "--hosts", "2")
    assert code == 0
    assert "all-reduce-busbw     typical 3.5 GB/s, bound unknown" in out
    assert "not known: the number of NICs and the rate of a NIC, so there is no bound" in out
    _, page, _ = cli("predict", "--root", root, "--hosts", "2", "-o", "html")
    assert '<b>3.50</b><span class="range">bound unknown</span>' in page


def test_formulas_have_no_part_where_no_typical_figure_is_known(cli: Cli) -> None:
    _, out, _ = cli("predict", "--root", str(ROOT / "examples/mi300x-8.tar.xz"))
    sources = " ".join(out.partition("Formulas and sources\n")[2].split())
    assert "h2d, d2h bound R · W · encoding ÷ 8 source: PCI Express Base Specification " in sources
    assert "device-copy bound: the memory bandwidth source: peak: data sheet" in sources
    assert "gemm-bf16, gemm-fp8, gemm-bf16-sustained bound: the dense peak source:" in sources
    assert not any(words in sources for words in ("0.88", "0.81", "0.76"))
    _, out, _ = cli("predict", "--root", EXAMPLE)
    assert re.search(r"device-copy +0\.885 of the memory bandwidth\n +source:", out)


def test_values_of_any_length_leave_the_columns_aligned(cli: Cli) -> None:
    _, out, _ = cli("predict", "--root", str(ROOT / "examples/mi300x-8.tar.xz"))
    rows = [line for line in out.splitlines() if " alike: " in line]
    assert any("at most 1,307 TFLOP/s" in line for line in rows)
    assert {len(line) - len(re.sub(r"^.*?  (?=[0-9]+ alike)", "", line)) for line in rows} == {63}


def test_an_unknown_roof_is_unknown_once(cli: Cli) -> None:
    _, out, _ = cli("predict", "--root", str(ROOT / "examples/mi300x-8.tar.xz"))
    assert re.search(r"memory, read \+ written +unknown +5,300 GB/s\n", out)
    _, out, _ = cli("predict", "--root", EXAMPLE)
    assert re.search(r"memory, read \+ written +4,247 GB/s +4,800 GB/s  by the model, not measured\n", out)


def test_without_figures_no_sources_are_announced(cli: Cli) -> None:
    code, out, _ = cli("predict", "--host", "host.json", **{"host.json": {"schema": "hosttune.host/v1"}})
    assert code == 0
    assert out.endswith("\nFigures\n  Nothing is known of this host's devices.\n")


def test_predict_is_fast_enough_beside_discovery() -> None:
    host = discovered()
    predict(host, Scope("host"))  # tables are read once
    start = time.process_time()
    predict(host, Scope("host", None, 2))
    assert time.process_time() - start < 0.5  # ten times what it takes: a loop over pairs that grows is found


# --- diagnose ----------------------------------------------------------------------------------------------------


def test_a_low_figure_exits_1_and_a_good_one_0(cli: Cli) -> None:
    code, out, _ = cli("diagnose", "--measured", "m.json", **{"m.json": LOW})
    assert code == 1
    assert "1. The link runs below what both ends support: " in out
    assert "rule: pcie-link-degraded" in out
    assert re.search(r"✗ low +h2d +GPU 0 +27\.5 +55\.5 +63\.0 +GB/s", out)
    good = {**LOW, "figures": [{"metric": "h2d", "value": 55.0, "unit": "GB/s"}], "observations": {}}
    code, out, _ = cli("diagnose", "--measured", "m.json", **{"m.json": good})
    assert code == 0
    assert "no causes named" in out


def test_files_are_logs(cli: Cli) -> None:
    log = "[   12.3] NVRM: Xid (PCI:0000:61:00): 79, pid=1, GPU has fallen off the bus.\n"
    code, out, _ = cli("diagnose", "a.log", "b.log", **{"a.log": log, "b.log": "No devices were found\n"})
    assert code == 1
    assert "a.log, b.log: 0000:61:00.0: the driver reports XID 79" in out.replace("\n", " ")
    assert cli("diagnose", "nosuch")[0] == 2


def test_the_document_can_be_read_again(cli: Cli) -> None:
    _, out, _ = cli("diagnose", "--measured", "m.json", "-o", "json", **{"m.json": LOW})
    found = Diagnosis.from_json(out)
    assert found.to_json() == out
    assert found.causes[0].explains == ("h2d: GPU 0",)


def test_yaml_is_read_as_json_is(cli: Cli) -> None:
    text = "version: 1\nsetup: {gpu: NVIDIA H200, pcie: 5.0 x16}\nfigures: [{metric: h2d, value: 55, unit: GB/s}]\n"
    assert cli("diagnose", "--measured", "m.yaml", **{"m.yaml": text})[0] == 0


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not a mapping"),
        ("[]", "not a mapping"),
        ("version: 1\nfigurs: []\n", "unknown key 'figurs'"),
        ("version: 1\nsetup: {hosts: 0}\n", "0 is not possible here"),
        ("version: 1\nobservations: {ats: maybe}\n", "Expected `bool | null`"),
        ("{", "not a YAML document"),
        ("version: 1\nfigures: [{metric: h2d, value: .inf}]\n", "Expected `float | null`"),
    ],
)
def test_bad_documents_are_refused_by_name(cli: Cli, text: str, what: str) -> None:
    code, out, err = cli("diagnose", "--measured", "m.yaml", **{"m.yaml": text})
    assert (code, out) == (2, "")
    assert what in err


def test_an_unknown_slot_is_named(cli: Cli) -> None:
    document = {"version": 1, "setup": {"pcie": "fast"}}
    _, out, _ = cli("diagnose", "--measured", "m.json", **{"m.json": document})
    assert "Not used, or no cause by itself\n    setup.pcie: a slot that is not understood" in out


def test_control_characters_do_not_reach_the_terminal(cli: Cli) -> None:
    figure = {"metric": "h2d\x1b[2J", "subject": "\x1b[31m", "value": 1, "unit": "\x9b"}
    _, out, _ = cli("diagnose", "--measured", "m.json", **{"m.json": {"version": 1, "figures": [figure]}})
    assert out.replace("\n", "").isprintable()


def test_long_texts_take_bounded_time() -> None:
    long = "1" * 40_000
    figure = {"metric": "all-reduce-busbw", "subject": f"{long} GPUs on {long} hosts", "value": 1, "unit": long}
    document = {"version": 1, "setup": {"gpu": long, "pcie": long, "cpu": long}, "figures": [figure]}
    start = time.process_time()
    diagnose(Measured.from_yaml(json.dumps(document)))
    assert time.process_time() - start < 1
