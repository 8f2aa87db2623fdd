"""The diagnosis document (`hosttune.diagnosis/v1`): is a figure as it should be, and if not, why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hosttune.model.devicepath import DevicePath, GpuRoof
from hosttune.model.text import number
from hosttune.model.values import Document, Value, from_json

DIAGNOSIS_SCHEMA = "hosttune.diagnosis/v1"

OTHER_MACHINES = "runs of different machines"  # what a Doubt is of
FigureVerdict = Literal["expected", "low", "impossible", "unknown"]
# How a cause is supported, best first. Causes are ranked by it, never by weights.
#   proven     an observation shows the fault, and the figure keeps to the bound that the fault sets
#   observed   an observation shows the fault, and it acts on such figures
#   fits       the figure keeps to the bound that the fault sets; no observation speaks against it
#   indirect   an observation shows the fault, but no source says how much it costs such figures
#   default    such machines have the fault unless it was removed; no observation says so
#   possible   it acts on such figures, and nothing speaks against it
Grade = Literal["proven", "observed", "fits", "indirect", "default", "possible"]
_SURE: Mapping[Grade, str] = {"fits": "Probably", "default": "Often", "possible": "Possibly"}
GRADES: tuple[Grade, ...] = ("proven", "observed", "fits", "indirect", "default", "possible")


class JudgedFigure(Value, frozen=True, kw_only=True):
    """A figure against the model of its machine. `bound` and `typical` are in `unit`, the unit of the figure."""

    metric: str
    subject: str
    value: float | None
    unit: str
    bound: float | None = None
    typical: float | None = None
    verdict: FigureVerdict = "unknown"
    why: str
    size_bytes: float | None = None

    @property
    def words(self) -> str:
        """The figure with what it should be: "h2d 0000:18:00.0 27.5 GB/s, low: typical 55.45, bound 63.02"."""
        value = "no value" if self.value is None else f"{number(self.value)} {self.unit}".rstrip()
        known = [("typical", self.typical), ("bound", self.bound)]
        about = ", ".join(f"{word} {number(figure)}" for word, figure in known if figure is not None)
        return f"{self.metric} {self.subject} {value}, {self.verdict}" + (f": {about}" if about else "")


class Cause(Value, frozen=True, kw_only=True):
    """One possible cause. `title` says what is wrong where it is the cause, `grade` how it is supported.

    `explains` names figures ("metric: subject").
    """

    cause: str
    rank: int
    grade: Grade
    title: str = ""
    evidence: tuple[str, ...]
    explains: tuple[str, ...] = ()
    remedy: str
    confirm: str
    source: str

    @property
    def sentence(self) -> str:
        """The cause with what shows it, and how sure it is: "The link runs below …: link x8 of x16 (0000:18:00.0)"."""
        words = ": ".join(filter(None, (self.title, self.evidence[0])))
        return f"{_SURE[self.grade]}: {words}" if self.grade in _SURE else words


class Doubt(Value, frozen=True, kw_only=True):
    """A part of the input that is not used: what it is, where, and why."""

    what: str
    where: str
    why: str


class Diagnosis(Document, frozen=True, kw_only=True):
    """Figures with their verdicts, causes best first, and what to measure where that is not known (`next`).

    `paths`: those on which low figures depend, where the host is known. `roofs`: of the GPUs, where figures show it.
    """

    schema: str = DIAGNOSIS_SCHEMA
    figures: tuple[JudgedFigure, ...] = ()
    causes: tuple[Cause, ...] = ()
    next: tuple[str, ...] = ()
    problems: tuple[Doubt, ...] = ()
    paths: tuple[DevicePath, ...] = ()
    roofs: tuple[GpuRoof, ...] = ()

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "diagnosis") -> Diagnosis:
        """Read a diagnosis. Raises BadInput with the offending field or version."""
        return from_json(cls, text, schema=DIAGNOSIS_SCHEMA, where=where)
