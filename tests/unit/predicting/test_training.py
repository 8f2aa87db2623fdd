"""`predict --training`: MFU, gradients, scaling; claims of common guides are refused or corrected in words."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from hosttune.bench.baselines import shipped
from hosttune.cli import run
from hosttune.errors import BadInput
from hosttune.model.prediction import PredictedFigure, Prediction
from hosttune.model.training import Training
from hosttune.predicting.training import flops_per_token, predict_training

# A model of 7 billion parameters on 2 hosts of 8 H100 with 8 ports of 400 Gb/s.
SEVEN: dict[str, Any] = {
    "version": 1, "gpu": "NVIDIA H100 80GB HBM3", "parameters": 7e9, "gpus": 16, "hosts": 2,
    "tokens_per_second": 150_000, "batch_tokens": 4_000_000, "nics_per_host": 8, "nic_gbps": 400,
}  # fmt: skip


def predicted(**changes: Any) -> Prediction:
    return predict_training(Training.from_yaml(json.dumps({**SEVEN, **changes})), "run.yaml")


def values(found: Prediction) -> dict[str, float | None]:
    return {one.metric: one.value for one in found.figures}


def refused(**changes: Any) -> tuple[str, str]:
    with pytest.raises(BadInput) as error:
        predicted(**changes)
    return error.value.what, error.value.where


def test_llama_3_405b_as_published() -> None:
    """8,192 GPUs, 8,192 tokens of context, 430 TFLOP/s a GPU, MFU 0.43 (arXiv 2407.21783, table 4)."""
    attention = {"layers": 126, "heads": 128, "head_size": 128, "sequence": 8192}
    run = Training.from_yaml(json.dumps({**SEVEN, "parameters": 405e9, **attention, "gpus": 8192, "hosts": 1024}))
    rate = 430e12 * 8192 / flops_per_token(run)
    found = predicted(parameters=405e9, **attention, gpus=8192, hosts=1024, tokens_per_second=rate)
    assert values(found)["mfu"] == pytest.approx(0.43, abs=0.01)


def test_full_recomputation_uses_the_hardware_for_a_third_more() -> None:
    found = values(predicted(recompute="full"))
    assert found["mfu"] == pytest.approx(150_000 * 42e9 / (16 * 989.5e12))
    assert found["hfu"] == pytest.approx((found["mfu"] or 0) * 8 / 6)
    assert "hfu" not in values(predicted())


def test_gradients_and_the_part_that_can_be_hidden() -> None:
    (one,) = (one for one in predicted().figures if one.metric == "gradient-all-reduce")
    assert one.value == pytest.approx(2 * 15 / 16 * 14 / 750, rel=1e-3)
    assert "100% of it can be hidden" in one.because[1]


@pytest.mark.parametrize(
    ("device", "ridge"),
    [("10de:2335", 206), ("10de:2330", 295), ("10de:2901", 281), ("1002:74a1", 247), ("1da3:1060", 453)],
)
def test_ridges_are_those_of_dense_peaks(device: str, ridge: int) -> None:
    peaks = shipped().peaks[device].values
    assert round(peaks["bf16"] * 1000 / peaks["memory"]) in (ridge, ridge + 1)


def test_scaling_says_its_base() -> None:
    runs = [{"gpus": 8, "tokens_per_second": 80_000}, {"gpus": 16, "tokens_per_second": 150_000}]
    (one,) = (one for one in predicted(runs=runs).figures if one.metric == "scaling-efficiency")
    assert one.value == pytest.approx(150_000 / 160_000)
    assert "base 8 GPUs" in one.formula


# --- claims of common guides --------------------------------------------------------------------------------------


def test_the_network_cannot_take_79_percent_of_a_7b_model() -> None:
    what, where = refused(claims={"bus_gb_per_s": 436, "network_share": 0.79})
    assert "the gradients take 0.06 s" in what
    assert where == "run.yaml: claims.network_share"


def test_rings_alone_cannot_give_436() -> None:
    assert values(predicted(claims={"bus_gb_per_s": 436}))
    what, _ = refused(ring=True, claims={"bus_gb_per_s": 436})
    assert "above the bound, 400 GB/s (a flat ring" in what


def test_an_all_reduce_of_nine_times_the_bound_is_said() -> None:
    found = predicted(
        parameters=122e9, tokens_per_second=5_000, claims={"bus_gb_per_s": 750, "all_reduce_seconds": 5.5}
    )
    assert any("5.5 s is 9.0 times the bound of 0.61 s" in note for note in found.notes)


def test_82_percent_mfu_is_refused() -> None:
    what, where = refused(claims={"mfu": 0.82})
    assert what == "an MFU of 0.82 is above 0.81, which matrix products alone reach"
    assert where == "run.yaml: claims.mfu"
    assert "above 1" in refused(tokens_per_second=5e6)[0]


def test_a_claimed_mfu_that_is_a_tenth_off_is_refused() -> None:
    """Tokens and parameters give 0.398."""
    assert values(predicted(claims={"mfu": 0.43}))["mfu"] == pytest.approx(0.398, abs=1e-3)
    assert refused(claims={"mfu": 0.45})[0] == "an MFU of 0.45 is claimed, tokens and parameters give 0.40"


def test_the_peak_with_sparsity_is_refused() -> None:
    what, _ = refused(claims={"peak_tflops": 1979})
    assert "the peak with 2:4 sparsity; dense products have 989.5" in what
    assert "above the dense peak" in refused(claims={"peak_tflops": 1200})[0]


def test_the_ridge_of_a_guide_that_used_sparse_peaks_is_refused() -> None:
    """One guide's 412 FLOP/byte of H200: 1,979 TFLOP/s with 2:4 sparsity ÷ 4.8 TB/s."""
    what, where = refused(gpu="NVIDIA H200", claims={"ridge": 412})
    assert what == "412 FLOP/byte uses the peak with 2:4 sparsity; the dense ridge is 206"
    assert where == "run.yaml: claims.ridge"
    assert values(predicted(gpu="NVIDIA H200", claims={"ridge": 206}))
    assert "dense peak and memory give 206" in refused(gpu="NVIDIA H200", claims={"ridge": 100})[0]


def test_82_percent_mfu_on_fp16_is_refused() -> None:
    """FP16 has the dense rate of BF16, so that its claims are held against the same peak."""
    assert refused(precision="fp16", claims={"mfu": 0.82})[0].startswith("an MFU of 0.82 is above 0.81")
    assert values(predicted(precision="fp16"))["mfu"] == values(predicted())["mfu"]


def test_a_claim_that_cannot_be_checked_is_said() -> None:
    notes = predicted(batch_tokens=None, claims={"network_share": 0.79}).notes
    assert "claims.network_share is not checked: not known: batch_tokens" in notes
    notes = predicted(gpu="a new one", claims={"mfu": 0.5, "ridge": 206}).notes
    assert "claims.mfu is not checked: not known: the dense bf16 peak of a new one" in notes
    notes = predicted(nic_gbps=None, claims={"bus_gb_per_s": 436}).notes
    assert "claims.bus_gb_per_s is not checked: not known: nics_per_host and nic_gbps" in notes


# --- the place under the roofline ---------------------------------------------------------------------------------


def place(found: Prediction) -> PredictedFigure:
    (one,) = (one for one in found.figures if one.metric == "roofline")
    return one


def test_a_run_is_placed_under_the_measured_roof_of_its_hosts() -> None:
    training = Training.from_yaml(json.dumps(SEVEN))
    found = predict_training(training, "run.yaml", own={"memory": 3000.0, "bf16": 700.0})
    one = place(found)
    assert one.value == pytest.approx(150_000 * 42e9 / 16 / 1e12)  # TFLOP/s of a GPU
    assert one.bound == 700.0
    assert one.because[0] == "roof measured on this host: BF16 700 TFLOP/s, memory 3000 GB/s"
    assert one.intensity == pytest.approx(6 * 4e6 / 16 / 6)  # 6N·D/n ÷ (N · (2 · 2 + 2))
    assert [(row.subject, round(row.value or 0)) for row in found.figures if row.metric == "ridge"] == [
        ("data sheet", 295), ("this host", 233),
    ]  # fmt: skip


def test_a_small_step_is_bound_by_memory() -> None:
    training = Training.from_yaml(json.dumps({**SEVEN, "batch_tokens": 1600, "tokens_per_second": 10_000}))
    one = place(predict_training(training, "run.yaml", own={"memory": 3000.0, "bf16": 700.0}))
    assert one.intensity == pytest.approx(100)
    assert one.bound == pytest.approx(300)  # 100 FLOP/byte · 3,000 GB/s


def test_without_measurements_the_roof_is_said_to_be_the_models() -> None:
    assert place(predicted()).because[0].startswith("roof by the model: nothing was measured: BF16 797.5")
    unknown = predicted(gpu="NVIDIA A100-SXM4-80GB", tokens_per_second=50_000)
    assert [one for one in unknown.figures if one.metric == "roofline"] == []  # no source for what A100 reaches


def test_a_run_above_the_measured_peak_contradicts_it() -> None:
    training = Training.from_yaml(json.dumps(SEVEN))
    (note,) = (one for one in predict_training(training, "x", own={"bf16": 300.0}).notes if "contradict" in one)
    assert note.startswith("393.8 TFLOP/s a GPU is above the 300 that was measured on this host")


def test_numbers_are_written_as_the_manual_writes_them() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "models.md").read_text()
    (block,) = re.findall(r"(?m)(^    version: 1\n(?:    .*\n)+)", page)
    found = predict_training(Training.from_yaml(textwrap.dedent(block)), "docs/models.md")
    assert values(found)["mfu"] == pytest.approx(0.398, abs=0.001)


@pytest.mark.parametrize(
    ("changes", "what", "where"),
    [
        ({"hosts": 32}, "16 GPUs on 32 hosts", "hosts"),
        ({"split": 3}, "do not hold whole copies of a model that takes 3", "split"),
        ({"split": 32}, "do not hold whole copies", "split"),
        ({"batch_tokens": 10, "sequence": 8192}, "a step of 10 tokens", "batch_tokens"),
        (
            {"runs": [{"gpus": 16, "tokens_per_second": 90_000}]},
            "90000 tokens/s on 16 GPUs here, 150000 above",
            "runs[0]",
        ),
        ({"runs": [{"gpus": 8, "tokens_per_second": 1}] * 2}, "two runs on 8 GPUs", "runs"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(changes: dict[str, Any], what: str, where: str) -> None:
    found, place = refused(**changes)
    assert what in found
    assert place == f"run.yaml: {where}"


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"gpus": 0}, "gpus"),
        ({"tokens_per_second": -1}, "tokens_per_second"),
        ({"split": 0}, "split"),
        ({"claims": {"mfu": 0}}, "claims.mfu"),
        ({"runs": [{"gpus": 0, "tokens_per_second": 1}]}, "runs[0].gpus"),
        ({"precision": "fp4"}, "precision"),
        ({"version": 2}, "version"),
    ],
)
def test_numbers_that_no_run_has_are_refused(changes: dict[str, Any], where: str) -> None:
    assert refused(**changes)[1] == f"training: {where}"


def test_an_unknown_gpu_has_no_mfu() -> None:
    found = predicted(gpu="a new one")
    assert values(found)["mfu"] is None
    assert "not known: the dense peak" in found.figures[0].because


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(SEVEN))
    assert run(["predict", "--training", str(path)]) == 0
    assert "mfu                  0.3979, at most 0.81" in capsys.readouterr().out
    assert run(["predict", "--training", str(path), "--guest", "a"]) == 2
    assert "give --training alone" in capsys.readouterr().err
