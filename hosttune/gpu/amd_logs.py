"""Output of AMD's rocm_bandwidth_test that an operator saved, for a diagnosis."""

from __future__ import annotations

import re

from hosttune.errors import BadInput
from hosttune.gpu.matrices import between, matrices, within
from hosttune.gpu.vendor import LogReader
from hosttune.model.measured import Figure, Measured, Observations, Setup

_DEVICE = re.compile(r"(?m)^[ \t]*Device: (\d{1,4}),  ?([^,\n]{1,120})(,.*)?$")  # a GPU has a bus address behind
_TITLE = re.compile(r"[ \t]{0,40}Unidirectional (?:copy )?peak bandwidth GB/s[ \t]{0,40}$")

_SIGN = rf"(?m)RocmBandwidthTest Version|^{_TITLE.pattern}"


def _bandwidth(text: str) -> Measured:
    """Read the unidirectional matrix (rocm_bandwidth_test, rocm_bandwidth_test_report.cpp). Raises BadInput."""
    devices = _DEVICE.findall(text)
    gpus = {int(number): f"gpu{number}" for number, _, bus in devices if bus}
    models = {model.strip() for _, model, bus in devices if bus}
    figures: list[Figure] = []
    peers: list[float | None] = []
    for _, cells in matrices(text, _TITLE):
        figures += [*between(cells, gpus, False), *within(cells, gpus)]
        peers += [value for (here, there), value in cells.items() if here != there and {here, there} <= set(gpus)]
        for (here, there), value in cells.items():
            if value is not None and (here in gpus) != (there in gpus):
                gpu, cpu = (here, there) if here in gpus else (there, here)
                metric = "d2h" if here in gpus else "h2d"
                figures.append(Figure(metric=metric, subject=f"gpu{gpu}, CPU {cpu}", value=value, unit="GB/s"))
    if not figures and not peers:
        raise BadInput(
            "no device, or no whole matrix, in it", where="rocm_bandwidth_test", hint="save its whole output"
        )
    none = bool(peers) and not any(peers)
    return Measured(
        version=1,
        setup=Setup(gpu=models.pop() if len(models) == 1 else None, gpus_per_host=len(gpus) or None, hosts=1),
        figures=tuple(figures),
        observations=Observations(
            p2p="off" if none else None, said={"p2p": "the tool has N/A for each pair"} if none else {}
        ),
    )


AMD_LOGS = (
    LogReader(name="rocm_bandwidth_test", sign=_SIGN, machine=_bandwidth,
              begin=r"^[ \t]*RocmBandwidthTest Version"),
)  # fmt: skip
