"""Measured figures as they are written: YAML or JSON. `measured` has their values, which discovery needs."""

from __future__ import annotations

import re

import msgspec

from hosttune.errors import BadInput
from hosttune.model.measured import MEASURED_VERSION, Measured, check_measured
from hosttune.model.text import refuse_surrogates
from hosttune.model.values import without_nulls
from hosttune.model.yamltext import check_version, load_yaml


def read_measured(text: str | bytes, *, where: str = "measured") -> Measured:
    """Read the document from YAML or JSON. Raises BadInput with the path of the key that is wrong."""
    document = load_yaml(text, where)
    if not isinstance(document, dict):
        raise BadInput("not a mapping", where=where, hint="begin with `version: 1`")
    check_version(document, MEASURED_VERSION, "measured figures (docs/diagnose.md)", where)
    refuse_surrogates(document, where)
    try:
        found = msgspec.convert(without_nulls(document, Measured), Measured)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _named(error, where) from error
    check_measured(found, where)
    return found


def _named(error: Exception, where: str) -> BadInput:
    problem, _, path = str(error).partition(" - at ")
    at = path.strip("`").removeprefix("$").lstrip(".")
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", problem, re.DOTALL)
    if unknown:
        name = unknown[1][:80]
        return BadInput(f"unknown key {name!r}", where=f"{where}: {at or '$'}", hint="docs/diagnose.md lists the keys")
    return BadInput(problem, where=f"{where}: {at or '$'}", hint="correct the value; docs/diagnose.md lists the keys")
