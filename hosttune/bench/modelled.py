"""What a model says of one figure on a machine of this shape. `hosttune.predicting.references` makes it; nothing here
knows how."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from hosttune.bench.baselines import Baseline, Standard
from hosttune.model.host import Host


class Modelled(msgspec.Struct, frozen=True):
    """What one figure should be.

    `row`: a reference of kind "typical", which replaces the shipped ones, or, where no typical figure has a source, of
    kind "least": a smaller part of the bound than any such machine is known for. `most`: the bound; larger figures are
    not credible. `why`: the inputs of the formula. None: no model has a source, or an input is not known.
    """

    row: Baseline | None = None
    most: float | None = None
    why: str = ""


Model = Callable[[str, str], Modelled]  # of (metric, subject)
ModelOf = Callable[[Host, Sequence[str], Standard], Model]  # of a host and the addresses of the GPUs measured together


def no_model(metric: str, subject: str) -> Modelled:
    """Say nothing of any figure."""
    return Modelled()


def against_model(rows: Sequence[Baseline], modelled: Modelled, reached: bool) -> tuple[Baseline, ...]:
    """Return the baselines that a figure is compared with.

    A typical figure replaces the shipped references, never a floor, nor what an operator's own file says. `reached`:
    whether the figure reaches the model's row. A least part of the bound that is reached shows nothing: it is left out.
    """
    row = modelled.row
    if row is None or (row.kind == "least" and reached):
        return tuple(rows)
    kept = (
        rows if row.kind == "least" else [baseline for baseline in rows if baseline.kind != "reference" or baseline.own]
    )
    return (*kept, row)
