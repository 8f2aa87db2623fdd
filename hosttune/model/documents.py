"""A document whose kind only its text tells: a host, a plan, a validation, or an intent."""

from __future__ import annotations

import re

from hosttune.errors import BadInput
from hosttune.model.host import HOST_SCHEMA, Host
from hosttune.model.intent import Intent
from hosttune.model.jsontext import plain_json
from hosttune.model.plan import PLAN_SCHEMA, Plan
from hosttune.model.validation import VALIDATION_SCHEMA, Validation

AnyDocument = Host | Plan | Validation | Intent
KINDS: tuple[type[AnyDocument], ...] = (Host, Plan, Validation, Intent)
PLANNED: tuple[type[Plan | Intent], ...] = (Plan, Intent)


def read_any(text: bytes, where: str, hint: str) -> AnyDocument:
    """Read a document by its schema; an intent, in YAML or JSON, has none. Raises BadInput with `hint` for another."""
    try:
        document = plain_json(text, where=where, hint=hint)
    except BadInput:
        if re.search(rb"^(?:\{ *)?version *:", text, re.MULTILINE):
            return Intent.from_yaml(text, where=where)
        raise
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema is None and isinstance(document, dict) and "version" in document:
        return Intent.from_json(text, where=where)
    for name, kind in ((HOST_SCHEMA, Host), (PLAN_SCHEMA, Plan), (VALIDATION_SCHEMA, Validation)):
        if schema == name:
            return kind.from_json(text, where=where)
    what = "it has no schema" if schema is None else f"its schema is {str(schema)[:60]!r}"
    raise BadInput(f"not a document that can be used here: {what}", where=where, hint=hint)
