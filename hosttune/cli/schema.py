"""`schema`: the JSON Schema of a document, with what the source says below each field."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import click
import msgspec

from hosttune.cli.commands import Command
from hosttune.cli.output import emit
from hosttune.knobs.knob import KEEP, Knob
from hosttune.knobs.registry import all_knobs
from hosttune.model.collective import CollectiveReport, Member
from hosttune.model.declared import Declared
from hosttune.model.diagnosis import Diagnosis
from hosttune.model.fleet import FleetReport
from hosttune.model.handover import Statement
from hosttune.model.history import History
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.lint import Linted
from hosttune.model.measured import Measured
from hosttune.model.pairs import Ends, PairsReport
from hosttune.model.plan import Plan
from hosttune.model.prediction import Prediction
from hosttune.model.result import Result
from hosttune.model.text import either
from hosttune.model.training import Training
from hosttune.model.validation import Validation
from hosttune.model.values import Value, to_json

DOCUMENTS: dict[str, type[Value]] = {
    "host": Host,
    "plan": Plan,
    "intent": Intent,
    "result": Result,
    "validation": Validation,
    "fleet": FleetReport,
    "handover": Statement,
    "measured": Measured,
    "diagnosis": Diagnosis,
    "prediction": Prediction,
    "training": Training,
    "pairs": PairsReport,
    "ends": Ends,
    "baseline": Declared,
    "collective": CollectiveReport,
    "member": Member,
    "history": History,
    "lint": Linted,
}


@click.command(
    cls=Command,
    help=f"Print the JSON Schema of a document.\n\nNAME is {either(tuple(DOCUMENTS))}.\n\n\b\nhosttune schema intent",
)
@click.argument("name", type=click.Choice(tuple(DOCUMENTS)), metavar="NAME")
def schema(name: str) -> None:
    """Print the schema."""
    emit(to_json(schema_of(name)))


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document by its name; an intent's `settings` has every knob."""
    kinds: list[type] = [Value]
    for kind in kinds:
        kinds += kind.__subclasses__()
    of_name = {kind.__name__: kind for kind in kinds}
    document = msgspec.json.schema(DOCUMENTS[name])
    for title, definition in document["$defs"].items():
        definition["description"] = inspect.cleandoc(definition["description"])  # Python 3.13 strips it itself
        for field, text in field_texts(of_name[title]).items():
            definition["properties"][field]["description"] = text
    if "Intent" in document["$defs"]:
        choices = document["$defs"]["Intent"]["properties"]["settings"]["anyOf"]
        knobs = {knob.name: knob_schema(knob) for knob in all_knobs().values()}
        choices[0] = {"type": "object", "properties": knobs, "additionalProperties": False}
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "$id": f"https://hosttune.dev/schema/{name}/v1", **document}


def field_texts(kind: type[Value]) -> dict[str, str]:
    """Return the docstring below each field of a class, where it has one."""
    (source,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(source, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value).replace("\n", " ")
        for field, text in zip(source.body, source.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def knob_schema(knob: Knob[Any]) -> dict[str, Any]:
    """Return the schema of a knob's values in an intent."""
    words = [*knob.values, *((True,) if knob.value is not None else ()), KEEP]
    words += [] if knob.false_means is not None else [False]
    choices: list[dict[str, Any]] = [{"enum": words}]
    if knob.numbers is not None:
        choices.append({"type": "integer", "minimum": knob.numbers[0], "maximum": knob.numbers[-1]})
    if knob.cpus or knob.names:
        choices.append({"type": "string"})
    if knob.cpus:
        choices.append({"type": "integer", "minimum": 0})
    return {"description": f"{knob.sets}: {knob.why} ({knob.source})", "anyOf": choices}
