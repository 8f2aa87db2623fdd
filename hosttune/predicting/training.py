"""Training: how much of the GPUs' peak a run uses, how long its gradients take, and reports that cannot be true.

MFU and HFU as in PaLM (arXiv 2204.02311, appendix B): model FLOPs of a token are 6N + 12·L·H·Q·T; with full
recomputation the forward pass is done twice, 8N + 16·L·H·Q·T. Both are divided by the dense peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from hosttune.bench.baselines import Standard, shipped_peaks
from hosttune.errors import BadInput
from hosttune.gpu import generation_of
from hosttune.model.devicepath import GpuRoof
from hosttune.model.prediction import PredictedFigure, Prediction
from hosttune.model.training import Training
from hosttune.predicting import formulas
from hosttune.predicting.estimates import roof_of
from hosttune.predicting.formulas import MFU_SOURCE, MOST_MFU, TYPICAL_MFU
from hosttune.predicting.shape import HostShape, agreed, peaks_of

PALM = "PaLM, arXiv 2204.02311, appendix B; dense peak: baselines/roofline.toml"
_NEAR = 0.02
_BACKWARD = 2 / 3  # of a step's products: the gradients are ready during the backward pass


def predict_training(
    training: Training, where: str, standard: Standard | None = None, own: Mapping[str, float] | None = None
) -> Prediction:
    """Return MFU, HFU, the time of the gradients, the scaling efficiency, and the place under the roofline.

    `own`: peaks measured on the run's hosts ("memory" in GB/s, number types in TFLOP/s); without them the model's.
    Raises BadInput, with the reason, for a report that cannot be true.
    """
    peaks = agreed(peaks_of(training.gpu, None, standard or shipped_peaks()))
    if "bf16" in peaks:
        peaks.setdefault("fp16", peaks["bf16"])
    peak = peaks.get(training.precision)
    _refuse_layout(training, where)
    _refuse_peak(training, peak, where)
    _refuse_ridge(training, peak, peaks.get("memory"), where)
    roof = _roof(training, peaks, own)
    predicted_figures = [*_use(training, peak, where), *_gradients(training, where), *_efficiency(training, where)]
    if peak is not None and "memory" in peaks:
        memory = peaks["memory"]
        because = (f"{peak:g} TFLOP/s dense, {memory:g} GB/s",)
        source = "Williams et al., CACM 52(4), 2009; peaks: baselines/roofline.toml"
        row = _row("ridge", peak * 1000 / memory, None, None, "P ÷ B, dense", because, source, "FLOP/B")
        predicted_figures.append(msgspec.structs.replace(row, subject="data sheet"))
    if roof is not None:
        predicted_figures += _place(training, roof)
    notes = (*_notes(training), *_unchecked(training, peak), *_above_own(training, roof))
    return Prediction(
        of=f"{training.gpus} × {training.gpu}",
        figures=tuple(predicted_figures),
        notes=notes,
        roofs=(roof,) if roof else (),
    )


def _roof(training: Training, peaks: Mapping[str, float], own: Mapping[str, float] | None) -> GpuRoof | None:
    """Return the roof of the run's GPUs; products of FP16 have the rate of BF16 (the same row of the data sheets)."""
    kind = training.precision
    measured = dict(own or {})
    if kind == "fp16" and "bf16" in measured:
        measured["fp16"] = measured["bf16"]
    shape = HostShape(gpu=training.gpu, generation=generation_of(training.gpu), peaks=peaks)
    roof = roof_of(shape, measured)
    if roof is not None and roof.own_is == "model" and kind == "fp16" and "bf16" in roof.own:
        roof = msgspec.structs.replace(roof, own={**roof.own, "fp16": roof.own["bf16"]})
    if roof is None:
        return None
    shown = {"memory", kind}
    peaks, own = ({name: value for name, value in part.items() if name in shown} for part in (roof.peaks, roof.own))
    return msgspec.structs.replace(roof, peaks=peaks, own=own)


def _place(training: Training, roof: GpuRoof) -> Iterator[PredictedFigure]:
    """Yield where the run is under the roof of its hosts, and where that roof bends."""
    compute = roof.own.get(training.precision)
    if compute is None:
        return
    rate = training.tokens_per_second * flops_per_token(training) / training.gpus / 1e12
    most, memory = _intensity(training), roof.own.get("memory")
    bound = compute if most is None or memory is None else min(compute, most * memory / 1000)
    word = "measured on this host" if roof.own_is == "measured" else "by the model: nothing was measured"
    known = f"{training.precision.upper()} {compute:.4g} TFLOP/s" + (f", memory {memory:.4g} GB/s" if memory else "")
    because: tuple[str, ...] = (f"roof {word}: {known}", f"{rate / bound:.0%} of the roof")
    if most is not None:
        because += (f"at most {most:,.0f} FLOP/byte: a step reads each weight twice and writes each gradient once",)
    else:
        because += ("not known: batch_tokens, so no operations per byte; the bound is that of products",)
    source = "Williams et al., CACM 52(4), 2009; least traffic of a step: derived (docs/models.md)"
    row = _row(
        "roofline", rate, bound, None, "tokens/s · FLOPs a token ÷ n against min(P, AI · B)", because, source, "TFLOP/s"
    )
    yield msgspec.structs.replace(row, intensity=most)
    ridge = roof.ridge(training.precision)
    if ridge is not None:
        words = (f"{known}, {word}",)
        own = _row("ridge", ridge, None, None, "P ÷ B of this host", words, source, "FLOP/B")
        yield msgspec.structs.replace(own, subject="this host")


def _intensity(training: Training) -> float | None:
    """Return the most operations per byte that a step can have.

    A GPU does 6N·D/n operations (D tokens of a step) and at least reads its weights twice and writes its gradients.
    """
    if training.batch_tokens is None:
        return None
    weight = 1 if training.precision == "fp8" else 2
    moved = training.parameters / training.split * (2 * weight + training.gradient_bytes)
    return flops_per_token(training) * training.batch_tokens / training.gpus / moved


def _above_own(training: Training, roof: GpuRoof | None) -> Iterator[str]:
    compute = roof.own.get(training.precision) if roof is not None and roof.own_is == "measured" else None
    rate = training.tokens_per_second * flops_per_token(training) / training.gpus / 1e12
    if compute is not None and rate > compute:
        yield (
            f"{rate:.4g} TFLOP/s a GPU is above the {compute:.4g} that was measured on this host: the two contradict"
            " each other; measure again (hosttune validate --level 2)"
        )


def check_same_gpu(gpu: str | None, measured_on: str | None, where: str) -> None:
    """Refuse peaks that were measured on another model of GPU. Raises BadInput."""
    ours, measured = ({row.device for row in peaks_of(name, None, shipped_peaks())} for name in (gpu, measured_on))
    if ours and measured and not ours & measured:
        what = f"{where} is of {gpu}, the measured peaks are of {measured_on}"
        raise BadInput(what, where="measured peaks", hint="give figures of the same hosts")


def flops_per_token(training: Training) -> float:
    """Return the model FLOPs of a token. Attention is left out where its sizes are not given (it is then too small)."""
    attention = (training.layers, training.heads, training.head_size, training.sequence)
    product = 1.0
    for size in attention:
        product *= size or 0
    return 6 * training.parameters + 12 * product


def _refuse_layout(training: Training, where: str) -> None:
    """Refuse numbers of GPUs, hosts and tokens that contradict each other. Raises BadInput."""
    gpus, hosts, split = training.gpus, training.hosts, training.split
    if hosts > gpus:
        raise BadInput(f"{gpus} GPUs on {hosts} hosts", where=f"{where}: hosts", hint="gpus counts those of all hosts")
    if gpus % split:
        what = f"{gpus} GPUs do not hold whole copies of a model that takes {split}"
        raise BadInput(what, where=f"{where}: split", hint="split is tensor × pipeline parallel, a divisor of gpus")
    if training.batch_tokens is not None and training.sequence and training.batch_tokens < training.sequence:
        what = f"a step of {training.batch_tokens:g} tokens, and a sequence has {training.sequence}"
        raise BadInput(what, where=f"{where}: batch_tokens", hint="give the tokens of one step of all GPUs")
    for number, run in enumerate(training.runs):
        if run.gpus == gpus and abs(run.tokens_per_second / training.tokens_per_second - 1) > _NEAR:
            what = f"{run.tokens_per_second:g} tokens/s on {gpus} GPUs here, {training.tokens_per_second:g} above"
            raise BadInput(what, where=f"{where}: runs[{number}]", hint="give the same figure twice, or leave one out")


def _unchecked(training: Training, peak: float | None) -> Iterator[str]:
    """Yield the claims that could not be held against a model, with what is missing."""
    claims, bus = training.claims, _bus(training)
    if peak is None:
        for name in ("mfu", "peak_tflops", "ridge"):
            if getattr(claims, name) is not None:
                yield f"claims.{name} is not checked: not known: the dense {training.precision} peak of {training.gpu}"
    if claims.bus_gb_per_s is not None and bus is None:
        yield "claims.bus_gb_per_s is not checked: not known: nics_per_host and nic_gbps"
    rate = claims.bus_gb_per_s or bus
    if claims.network_share is not None and (training.batch_tokens is None or rate is None):
        missing = "batch_tokens" if training.batch_tokens is None else "nics_per_host and nic_gbps"
        yield f"claims.network_share is not checked: not known: {missing}"
    if claims.all_reduce_seconds is not None and (rate is None or training.gpus == training.split):
        yield "claims.all_reduce_seconds is not checked: not known: the network, or there is one copy of the model"
    if training.gpus % training.hosts:
        yield f"{training.gpus} GPUs do not divide over {training.hosts} hosts: bounds are those of any number a host"


def _refuse_peak(training: Training, peak: float | None, where: str) -> None:
    claimed = training.claims.peak_tflops
    if claimed is None or peak is None:
        return
    if abs(claimed / (2 * peak) - 1) <= _NEAR:
        what = f"{claimed:g} TFLOP/s is the peak with 2:4 sparsity; dense products have {peak:g}"
        raise BadInput(what, where=f"{where}: claims.peak_tflops", hint="divide by the dense peak")
    if claimed > peak * (1 + _NEAR):
        what = f"{claimed:g} TFLOP/s is above the dense peak, {peak:g}"
        raise BadInput(what, where=f"{where}: claims.peak_tflops", hint="take the data sheet's dense figure")


def _refuse_ridge(training: Training, peak: float | None, memory: float | None, where: str) -> None:
    claimed = training.claims.ridge
    if claimed is None or peak is None or memory is None:
        return
    ridge = peak * 1000 / memory
    if abs(claimed / (2 * ridge) - 1) <= _NEAR:
        what = f"{claimed:g} FLOP/byte uses the peak with 2:4 sparsity; the dense ridge is {ridge:.0f}"
        raise BadInput(what, where=f"{where}: claims.ridge", hint="divide the dense peak by the memory bandwidth")
    if abs(claimed / ridge - 1) > 0.05:
        what = f"a ridge of {claimed:g} FLOP/byte: dense peak and memory give {ridge:.0f}"
        raise BadInput(what, where=f"{where}: claims.ridge", hint="check the two figures that were divided")


def _use(training: Training, peak: float | None, where: str) -> Iterator[PredictedFigure]:
    flops = flops_per_token(training)
    mfu = None if peak is None else training.tokens_per_second * flops / (training.gpus * peak * 1e12)
    for name, value in (("tokens_per_second", mfu), ("claims.mfu", training.claims.mfu)):
        if value is not None and value > MOST_MFU:
            above = "above 1" if value > 1 else f"above {MOST_MFU:g}, which matrix products alone reach"
            hint = "check tokens, parameters (active ones of a mixture of experts) and the number of GPUs"
            raise BadInput(f"an MFU of {value:.2f} is {above}", where=f"{where}: {name}", hint=hint)
    claimed = training.claims.mfu
    if claimed is not None and mfu is not None and abs(claimed - mfu) > 0.1 * mfu:
        what = f"an MFU of {claimed:.2f} is claimed, tokens and parameters give {mfu:.2f}"
        raise BadInput(what, where=f"{where}: claims.mfu", hint="check tokens, parameters and GPUs")
    because = (f"{flops:.3g} FLOPs a token", f"peak {peak:g} TFLOP/s" if peak else "not known: the dense peak")
    formula, source = "tokens/s · (6N + 12·L·H·Q·T) ÷ ΣP", f"{PALM}; {MFU_SOURCE}"
    known = mfu is not None
    yield _row("mfu", mfu, MOST_MFU if known else None, TYPICAL_MFU if known else None, formula, because, source)
    if training.recompute == "full" and mfu is not None:
        yield _row("hfu", mfu * 8 / 6, MOST_MFU, None, "tokens/s · (8N + 16·L·H·Q·T) ÷ ΣP", because, PALM)


def _row(
    metric: str,
    value: float | None,
    bound: float | None,
    typical: float | None,
    formula: str,
    because: tuple[str, ...],
    source: str,
    unit: str = "",
) -> PredictedFigure:
    return PredictedFigure(
        metric=metric, subject="this run", bound=bound, typical=typical, unit=unit, formula=formula, because=because,
        source=source, value=value,
    )  # fmt: skip


def _bus(training: Training) -> tuple[float, str] | None:
    """Return (the most that an all-reduce over all GPUs can reach, why); None if it is not known."""
    per_host = training.gpus // training.hosts if training.gpus % training.hosts == 0 else None
    if training.hosts == 1:
        generation = generation_of(training.gpu)
        if generation is None or not generation.link_peak_gb_per_s or not generation.links:
            return None
        return generation.links * generation.link_peak_gb_per_s * 2, "the links of a GPU, and a switch that reduces"
    if not training.nics_per_host or not training.nic_gbps:
        return None
    host = training.nics_per_host * training.nic_gbps / 8
    if training.ring:
        return formulas.flat(host), f"a flat ring over ports of {host:g} GB/s a host"
    return formulas.hierarchical(host, training.hosts, per_host), f"ports of {host:g} GB/s a host"


def _gradients(training: Training, where: str) -> Iterator[PredictedFigure]:
    copies = training.gpus // training.split
    if copies < 2:
        return
    claims, bus = training.claims, _bus(training)
    if claims.bus_gb_per_s is not None and bus is not None and claims.bus_gb_per_s > bus[0] * 1.01:
        what = f"{claims.bus_gb_per_s:g} GB/s is above the bound, {bus[0]:.4g} GB/s ({bus[1]})"
        raise BadInput(what, where=f"{where}: claims.bus_gb_per_s", hint="check the figure and the algorithm")
    rate = claims.bus_gb_per_s or (bus[0] if bus else None)
    formula = "2(n-1)/n · N · bytes ÷ split ÷ bus bandwidth; hidden at most: two thirds of the step"
    source = "nccl-tests doc/PERFORMANCE.md, bus bandwidth"
    if rate is None:
        because: tuple[str, ...] = ("not known: NICs of a host and their rate",)
        yield _row("gradient-all-reduce", None, None, None, formula, because, source, "s")
        return
    size = training.parameters * training.gradient_bytes / training.split
    seconds = 2 * (copies - 1) / copies * size / 1e9 / rate
    step = training.batch_tokens / training.tokens_per_second if training.batch_tokens else None
    because = (f"{size / 1e9:.4g} GB of gradients at {rate:.4g} GB/s",)
    if step is not None:
        hidden = min(1.0, step * _BACKWARD / seconds)
        because += (f"{seconds / step:.1%} of a step of {step:.3g} s; {hidden:.0%} of it can be hidden",)
    yield _row("gradient-all-reduce", seconds, seconds, None, formula, because, source, "s")
    share = training.claims.network_share
    if share is not None and step is not None and share > seconds / step * 1.1 + 0.01:
        what = (
            f"{share:.0%} of the time in the network: the gradients take {seconds:.2g} s of {step:.3g} s at that rate"
        )
        raise BadInput(what, where=f"{where}: claims.network_share", hint="bandwidth does not explain it")


def _notes(training: Training) -> Iterator[str]:
    claimed = training.claims.all_reduce_seconds
    rate = training.claims.bus_gb_per_s or (bus[0] if (bus := _bus(training)) else None)
    copies = training.gpus // training.split
    if claimed is not None and rate is not None and copies > 1:
        size = training.parameters * training.gradient_bytes / training.split
        bound = 2 * (copies - 1) / copies * size / 1e9 / rate
        if claimed > 1.5 * bound:
            times = f"{claimed / bound:.1f} times the bound of {bound:.2g} s"
            yield f"an all-reduce of {claimed:g} s is {times}: bandwidth does not explain it"
    if None in (training.layers, training.heads, training.head_size, training.sequence):
        yield "attention is left out of the FLOPs: give layers, heads, head_size and sequence"


def _efficiency(training: Training, where: str) -> Iterator[PredictedFigure]:
    runs = sorted(training.runs, key=lambda run: run.gpus)
    counts = [run.gpus for run in runs]
    twice = next((gpus for gpus in counts if counts.count(gpus) > 1), None)
    if twice is not None:
        what = f"two runs on {twice} GPUs"
        raise BadInput(what, where=f"{where}: runs", hint="give one run for each number of GPUs: the median, say")
    for run in runs[1:]:
        base = runs[0]
        part = run.tokens_per_second / run.gpus / (base.tokens_per_second / base.gpus)
        because: tuple[str, ...] = (f"{run.gpus} GPUs against {base.gpus} GPUs",)
        if part > 1 + _NEAR:
            because += ("above 1: the base is slow, or the runs differ in more than their GPUs",)
        formula = f"T_N ÷ (N · T_base ÷ base), base {base.gpus} GPUs"
        row = _row("scaling-efficiency", part, None, None, formula, because, "definition")
        yield msgspec.structs.replace(row, subject=f"{run.gpus} GPUs, base {base.gpus}")
