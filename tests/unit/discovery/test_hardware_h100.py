"""One real H100 SXM in a guest, captured by `hosttune capture` (2026-11-24): a model that no code was written on.

The facts are those that `nvidia-smi -q` printed in the same minute. The predictions were saved before the validation of
level 2 ran; `tests/cases/models/POINTS.md` has both.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

import hosttune
from hosttune.model.validation import Validation, verdict_of

FOLDER = Path(__file__).parents[2] / "hosts" / "h100"
SMI = (FOLDER / "nvidia-smi-q.txt").read_text()
VALIDATION = Validation.from_json((FOLDER / "vm-h100-level2.json").read_text())
PREDICTED = {
    figure["metric"]: figure
    for figure in json.loads((FOLDER / "vm-h100-predicted.json").read_text())["figures"]
    if figure["subject"].startswith("0000:00:06.0")
}
MEASURED = {"h2d": "h2d-ce", "d2h": "d2h-ce"}  # by copy engines; the other metrics have one name


def said(name: str) -> str:
    """What nvidia-smi printed for a name that occurs once, or first."""
    found = re.search(rf"^ +{re.escape(name)} +: (.+)$", SMI, re.MULTILINE)
    assert found is not None, name
    return found[1]


def test_the_gpu_is_what_nvidia_smi_printed() -> None:
    host = hosttune.discover(FOLDER / "vm-h100.tar.gz")
    (gpu,) = host.gpus
    assert (gpu.vendor, gpu.model, gpu.source) == ("nvidia", said("Product Name"), "nvml")
    assert gpu.firmware_version == said("VBIOS Version")
    assert gpu.inforom_version == said("Image Version")
    assert gpu.module_id == int(said("Module Id"))
    assert gpu.mig is not None
    assert gpu.mig.mode == "disabled"
    device = next(one for one in host.pci if one.address == gpu.address)
    assert f"0x{device.device_id}{device.vendor_id}".upper() == said("Device Id").upper()
    assert device.link is not None
    assert (device.link.speed_gts, device.link.width) == (32.0, 16)


def test_the_capture_and_the_machine_had_the_same_results() -> None:
    """The validation was made on the machine, the capture is read here."""
    replayed = {(one.check, one.subject): one.outcome for one in hosttune.validate(FOLDER / "vm-h100.tar.gz").results}
    live = {(one.check, one.subject): one.outcome for one in VALIDATION.results if not one.check.startswith("bench-")}
    asked = {check for check, _ in live}  # newer checks were not
    replayed = {key: outcome for key, outcome in replayed.items() if key[0] in asked}
    differ = {key: (live.get(key), replayed.get(key)) for key in live.keys() | replayed.keys()}
    differ = {key: pair for key, pair in differ.items() if pair[0] != pair[1]}
    assert differ == {
        ("monitoring-baseline", "host"): ("warn", "skip"),  # a capture keeps no measurements
        ("numa-affinity", "0000:00:06.0"): ("unknown", "warn"),  # unknown in the version of then
        ("pcie-replay", "0000:00:06.0"): ("pass", "warn"),  # one reading; captures of then held no second one
    }


def test_a_guest_that_shows_no_node_is_unknown_though_all_figures_pass() -> None:
    figures = [one for one in VALIDATION.results if one.check.startswith("bench-") and one.outcome != "skip"]
    assert {one.outcome for one in figures} == {"pass"}
    assert [one.check for one in VALIDATION.results if one.outcome == "unknown"] == ["numa-affinity"]
    assert VALIDATION.verdict == verdict_of(VALIDATION.results) == "unknown"


@pytest.mark.parametrize("metric", ["h2d", "d2h", "device-copy", "gemm-bf16", "gemm-fp8"])
def test_what_was_predicted_first_was_measured_within_5_percent(metric: str) -> None:
    """Formulas that were made on H200 and published figures; the H100 was not among the measured points."""
    name = MEASURED.get(metric, metric)
    runs = [one.value for one in VALIDATION.samples if one.metric == name and one.value is not None]
    assert len(runs) >= 5
    figure = PREDICTED[metric]
    assert statistics.median(runs) == pytest.approx(figure["typical"], rel=0.05)
    assert max(runs) <= figure["bound"]
