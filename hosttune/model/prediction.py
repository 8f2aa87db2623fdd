"""The prediction document (`hosttune.prediction/v1`): what a host, a plan or a guest can reach."""

from __future__ import annotations

from hosttune.model.devicepath import DevicePath
from hosttune.model.roof import GpuRoof
from hosttune.model.values import Document, Value, close_lists, from_json

PREDICTION_SCHEMA = "hosttune.prediction/v1"


class PredictedFigure(Value, frozen=True, kw_only=True):
    """What a metric can reach for one subject. `bound`: the physical limit; `typical`: what such hardware gives.

    None: no source exists, or an input is not known; `because` then says what is missing. `because` are the inputs
    from this host, `formula` uses the symbols of docs/models.md. `width`: the fraction by which measurements differ
    from `typical`, None if only one point is known. `value`: of a run that was reported;
    `intensity`: the most operations per byte that it can have, where it is placed under the roofline.
    """

    metric: str
    subject: str
    bound: float | None = None
    typical: float | None = None
    unit: str
    formula: str
    because: tuple[str, ...] = ()
    source: str
    width: float | None = None
    value: float | None = None
    intensity: float | None = None


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

    def __post_init__(self) -> None:
        close_lists(self)

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "prediction") -> Prediction:
        """Read a prediction. Raises BadInput with the offending field or version."""
        return from_json(cls, text, schema=PREDICTION_SCHEMA, where=where)


class WorsePlacement(Value, frozen=True, kw_only=True):
    """What a guest would lose in another placement on the same host: `here` and `there` are in `unit`.

    `there` is what the source counts; of a pair of GPUs (p2p) it is the bound, so that at least so much is lost.
    `loses`: the fraction of `here` that is lost; None: no source says how much, or an input is not known, see `why`.
    """

    placement: str
    metric: str
    here: float | None = None
    there: float | None = None
    unit: str
    loses: float | None = None
    why: str
    source: str


class Expectation(Value, frozen=True, kw_only=True):
    """The figures of a planned guest that matter most; those of devices that are alike are one row."""

    guest: str
    figures: tuple[PredictedFigure, ...] = ()
    worse: tuple[WorsePlacement, ...] = ()
