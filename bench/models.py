"""What models cost: whole `predict` and `diagnose` against `discover` on the same 8-GPU host, and figures of a plan."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rows import HOSTTUNE, ROOT, Row, interleaved

EXAMPLE = ROOT / "examples/hgx-h200-8.tar.xz"
MOST_MS = 50.0


def models(root: str) -> list[Row]:
    """`root`: an unpacked capture with 8 GPUs. Each command prints JSON; the validation has some 300 figures."""
    import hosttune

    host = hosttune.discover(root)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "validation.json"
        kept.write_text(validation(host))
        common = ["--root", root, "-o", "json"]
        discover = [HOSTTUNE, "discover", *common]
        predict = [HOSTTUNE, "predict", *common]
        diagnose = [HOSTTUNE, "diagnose", "--validation", str(kept), *common]
        alone, predicted, diagnosed = interleaved(discover, predict, diagnose)
    rows = []
    for what, seconds in (("predict", predicted), ("diagnose --validation", diagnosed)):
        extra = (seconds - alone) * 1000
        figure = f"{extra:+.0f} ms ({seconds / alone:.2f}× it)"
        rows.append(Row(f"`{what}`, 8 GPUs, over `discover`", figure, "≤ 50 ms", extra <= MOST_MS))
    return [*rows, of_a_plan(host)]


def of_a_plan(host: object) -> Row:
    """The figures of a plan with all GPUs, in process: the first call, with its imports, is what a command pays."""
    import hosttune

    assert isinstance(host, hosttune.Host)
    intent = hosttune.Intent.from_yaml("version: 1\nguests: [{name: guest, gpus: 8}]")
    start = time.perf_counter()
    from hosttune.planning import plan as decide

    plan = decide(host, intent)
    decided = time.perf_counter()
    from hosttune.predicting.expecting import with_expectations

    with_expectations(plan, host)
    first = (time.perf_counter() - decided) * 1000
    later = []
    for _ in range(25):
        again = time.perf_counter()
        with_expectations(plan, host)
        later.append((time.perf_counter() - again) * 1000)
    share = first / ((decided - start) * 1000)
    figure = f"{first:.0f} ms ({share:.2f}× the plan), {median(later):.1f} ms once loaded"
    return Row("what a plan's guest can expect, 8 GPUs", figure, "≤ 50 ms", first <= MOST_MS)


def validation(host: object) -> str:
    """A validation of every figure of level 1, five runs each, none low."""
    import hosttune

    assert isinstance(host, hosttune.Host)
    gpus = [gpu.address for gpu in host.index.accelerators]
    figures = [(metric, gpu, 55.4, "GB/s") for metric in ("h2d-ce", "d2h-ce") for gpu in gpus]
    figures += [("gemm-bf16", gpu, 797.0, "TFLOP/s") for gpu in gpus]
    figures += [("p2p-write-ce", f"{one}->{other}", 394.0, "GB/s") for one in gpus for other in gpus if one != other]
    figures += [(f"all-reduce-{size}", f"{len(gpus)} GPUs", 470.0, "GB/s") for size in ("1gib", "4gib")]
    samples = [
        {"metric": metric, "subject": subject, "value": value, "unit": unit}
        for metric, subject, value, unit in figures
        for _ in range(5)
    ]
    return json.dumps({"schema": "hosttune.validation/v1", "level": 1, "results": [], "samples": samples})


if __name__ == "__main__":
    for row in models(sys.argv[1] if len(sys.argv) > 1 else str(EXAMPLE)):
        print(f"{row.what}: {row.figure} ({row.bound}{'' if row.holds else ', missed'})")
