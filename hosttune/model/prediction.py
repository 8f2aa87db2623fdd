"""The prediction document (`hosttune.prediction/v1`): what a host, a plan or a guest can reach."""

from __future__ import annotations

from hosttune.model.devicepath import DevicePath, GpuRoof
from hosttune.model.values import Document, Value, from_json

PREDICTION_SCHEMA = "hosttune.prediction/v1"


class PredictedFigure(Value, frozen=True, kw_only=True):
    """What a metric can reach for one subject."""

    metric: str
    """Name of the metric."""
    subject: str
    """What it is about: a device, a pair, the host."""
    bound: float | None = None
    """The physical limit; null: no source exists, or an input is not known."""
    typical: float | None = None
    """What such hardware gives; null as `bound`."""
    unit: str
    """Unit of the values."""
    formula: str
    """In the symbols of docs/models.md."""
    because: tuple[str, ...] = ()
    """The inputs from this host, or what is missing."""
    source: str
    """Where the formula comes from."""
    width: float | None = None
    """The fraction by which measurements differ from `typical`; null: only one point is known."""
    value: float | None = None
    """Of a run that was reported."""
    intensity: float | None = None
    """The most operations per byte that it can have, where it is placed under the roofline."""


class Prediction(Document, frozen=True, kw_only=True):
    """All figures that were asked for, of one host or guest (`of`). `notes`: what the models do not cover.

    `paths`: between two devices, the slowest ones unless others were asked for. `roofs`: of each GPU model.
    """

    schema: str = PREDICTION_SCHEMA
    of: str | None = None
    figures: tuple[PredictedFigure, ...] = ()
    notes: tuple[str, ...] = ()
    paths: tuple[DevicePath, ...] = ()
    roofs: tuple[GpuRoof, ...] = ()

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "prediction") -> Prediction:
        """Read a prediction. Raises BadInput with the offending field or version."""
        return from_json(cls, text, schema=PREDICTION_SCHEMA, where=where)


class WorsePlacement(Value, frozen=True, kw_only=True):
    """What a guest would lose in another placement on the same host."""

    placement: str
    """The other placement on the same host."""
    metric: str
    """Name of the metric."""
    here: float | None = None
    """Value of the planned placement."""
    there: float | None = None
    """Value of the other placement; of a pair of GPUs the bound, so that at least so much is lost."""
    unit: str
    """Unit of the values."""
    loses: float | None = None
    """The fraction of `here` that is lost; null: no source says how much, or an input is not known."""
    why: str
    """Why it loses, or why that is unknown."""
    source: str
    """Where the values come from."""


class Expectation(Value, frozen=True, kw_only=True):
    """What a planned guest can reach."""

    guest: str
    """Name of the guest."""
    figures: tuple[PredictedFigure, ...] = ()
    """The figures that matter most; devices that are alike share one."""
    worse: tuple[WorsePlacement, ...] = ()
    """What other placements would lose."""
