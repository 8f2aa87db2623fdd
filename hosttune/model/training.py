"""A training run as it was reported: the input of `hosttune predict --training FILE`."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from hosttune.errors import BadInput
from hosttune.model.text import below_root, decoding_fault
from hosttune.model.values import Part, Value, without_nulls

TRAINING_VERSION = 1


class Run(Part, frozen=True, kw_only=True):
    """One run of the same model on so many GPUs."""

    gpus: int
    tokens_per_second: float


class Claims(Part, frozen=True, kw_only=True):
    """What a report says of the run, to be held against the models.

    `mfu` and `network_share` are fractions; `peak_tflops` is of one GPU; `bus_gb_per_s` of an all-reduce;
    `all_reduce_seconds` of one all-reduce of all gradients; `ridge` of the roofline, in operations per byte.
    """

    mfu: float | None = None
    peak_tflops: float | None = None
    bus_gb_per_s: float | None = None
    all_reduce_seconds: float | None = None
    network_share: float | None = None
    ridge: float | None = None


class Training(Part, frozen=True, kw_only=True):
    """The whole document (YAML or JSON).

    `parameters` is N; `layers` L, `heads` H, `head_size` Q and `sequence` T count the attention. `batch_tokens`: tokens
    of one step. `split`: over how many GPUs one copy of the model is divided (tensor × pipeline). `nics_per_host` and
    `nic_gbps`: the ports of one host. `ring`: the library may use rings alone (NCCL_ALGO=Ring).
    """

    version: int
    gpu: str
    precision: Literal["bf16", "fp16", "fp8"] = "bf16"
    parameters: float
    layers: int | None = None
    heads: int | None = None
    head_size: int | None = None
    sequence: int | None = None
    gpus: int
    hosts: int = 1
    tokens_per_second: float
    batch_tokens: float | None = None
    split: int = 1
    gradient_bytes: int = 2
    recompute: Literal["none", "full"] = "none"
    nics_per_host: int | None = None
    nic_gbps: float | None = None
    ring: bool = False
    claims: Claims = msgspec.field(default_factory=Claims)
    runs: tuple[Run, ...] = ()

    @classmethod
    def from_yaml(cls, text: str | bytes, *, where: str = "training") -> Training:
        """Read the document. Raises BadInput with the path of the key that is wrong."""
        from hosttune.model.yamltext import load_versioned  # PyYAML loads slowly, and `diagnose` imports this

        document = load_versioned(text, TRAINING_VERSION, "a training run (docs/models.md)", where)
        try:
            training = msgspec.convert(without_nulls(document, cls), cls)
        except (msgspec.ValidationError, RecursionError) as error:
            problem, path, _ = decoding_fault(error)
            at = f"{where}: {below_root(path) or path}"
            raise BadInput(problem, where=at, hint="docs/models.md lists the keys") from error
        _check(training, where, "")
        return training


def _check(value: Value, where: str, path: str) -> None:
    """Refuse numbers that are not positive and finite. Raises BadInput."""
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, Value):
            _check(field, where, f"{path}{name}.")
        elif isinstance(field, tuple):
            for number, item in enumerate(field):
                _check(item, where, f"{path}{name}[{number}].")
        elif isinstance(field, int | float) and not isinstance(field, bool) and not (0 < field < math.inf):
            raise BadInput(f"{field:g} is not possible here", where=f"{where}: {path}{name}", hint="correct it")
