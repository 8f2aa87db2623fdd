"""The roof of the GPUs of a host: data sheet, and this host's own figures where there are any, else the model's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hosttune.bench.baselines import ABOVE_PEAK, Standard
from hosttune.errors import BadInput
from hosttune.model.host import Host
from hosttune.model.roof import GpuRoof
from hosttune.predicting.estimates import Question, estimate
from hosttune.predicting.shape import HostShape, of_host

OWN_METRICS: Mapping[str, str] = {"memory": "device-copy", "bf16": "gemm-bf16", "fp8": "gemm-fp8"}
KINDS = ("bf16", "fp16", "fp8", "tf32", "fp32", "fp64")
SOURCE = "peaks: data sheets (baselines/roofline.toml); the host's own: measured, or docs/models.md"


def roofs_of(
    host: Host, gpus: Iterable[str], standard: Standard, measured: Mapping[str, float] | None = None
) -> tuple[GpuRoof, ...]:
    """Return a roof for each GPU model among these, if its peaks are known.

    `measured`: of a host with one model of GPU: "memory" in GB/s, number types in TFLOP/s. Raises BadInput for figures
    above the peaks, and where the GPUs are of several models.
    """
    models: dict[str, str] = {}
    for address in gpus:
        models.setdefault(host.index.ids(address) or address, address)
    if measured and len(models) > 1:
        raise BadInput("the GPUs are of several models", where="measured peaks", hint="choose one guest or plan")
    found = (roof_of(of_host(host, (address,), standard), measured) for address in models.values())
    return tuple(roof for roof in found if roof is not None)


def roof_of(shape: HostShape, measured: Mapping[str, float] | None = None) -> GpuRoof | None:
    """Return the roof of a machine's GPUs; None if nothing is known of them. Raises BadInput for impossible figures."""
    peaks = {name: value for name, value in shape.peaks.items() if name == "memory" or name in KINDS}
    if not peaks or shape.gpu is None:
        return None
    own = {name: value for name, value in (measured or {}).items() if value > 0}
    for name, value in own.items():
        if value > peaks.get(name, float("inf")) * ABOVE_PEAK:
            unit = "GB/s" if name == "memory" else "TFLOP/s"
            what = f"{OWN_METRICS.get(name, name)}: {value:g} {unit} is above the peak of {shape.gpu}, {peaks[name]:g}"
            raise BadInput(
                what, where="measured peaks", hint="measure again; products are dense, copies read + written"
            )
    if own:
        return GpuRoof(gpu=shape.gpu, peaks=peaks, own=own, own_is="measured", source=SOURCE)
    typical = {name: estimate(Question(metric), shape).typical for name, metric in OWN_METRICS.items()}
    known = {name: round(value, 1) for name, value in typical.items() if value is not None}
    return GpuRoof(gpu=shape.gpu, peaks=peaks, own=known, own_is="model" if known else None, source=SOURCE)
