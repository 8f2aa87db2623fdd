"""Variables of an inventory as data: `{{ name }}` becomes that variable's value, and nothing else is done to an intent.

In paths and the like also what cannot do anything is evaluated: names, literals, `default`, `dirname`, put together
(`{{ inventory_dir | dirname }}/roots/{{ inventory_hostname }}`). What of Jinja's language could run, read or grow
without bound is refused before anything is evaluated. Read by the action plugin `hosttune` on the controller.
"""

# Copyright: hosttune's authors. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import date

from jinja2 import StrictUndefined, TemplateError, filters, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

try:
    from ansible.template import is_trusted_as_template  # ansible-core 2.19: templates are what is marked as such
except ImportError:
    from ansible.utils.unsafe_proxy import AnsibleUnsafe

    def is_trusted_as_template(value: object) -> bool:
        """Whether a text may be a template at all: older releases mark what is none."""
        return not isinstance(value, AnsibleUnsafe)


INTENT_BYTES = 4 << 20  # what the command reads of an intent
DEPTH = 32  # of containers and of variables that name variables
REFERENCE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.S)
# What YAML reads otherwise than JSON in a quoted text: line ends of Unicode, and what it calls not printable.
NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


FILTERS = {
    **{name: filters.FILTERS[name] for name in ("default", "d", "first", "int", "last", "length", "lower", "string")},
    **{name: filters.FILTERS[name] for name in ("trim", "upper")},
    "basename": os.path.basename,
    "dirname": os.path.dirname,
}
NODES = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.Getitem, nodes.Getattr,
    nodes.Filter, nodes.Keyword, nodes.Concat, nodes.CondExpr, nodes.Compare, nodes.Operand, nodes.Not, nodes.And,
    nodes.Or, nodes.Test, nodes.List,
)  # fmt: skip
MOST_CHARACTERS = 4096  # of such a template, and of what comes out
OMIT = object()  # what `default(omit)` leaves: no value


class BadInput(Exception):
    """A variable or option that cannot be used: one line that names it."""


class NotHarmless(Exception):
    """A template with more in it than this: what it is."""


def resolved(value: object, where: str, variables: Mapping, *, strict: bool = True, depth: int = 0) -> object:
    """A raw variable, with references to variables replaced by their values and nothing else done to it.

    `strict`: a template that can do nothing is evaluated and any other refused; elsewhere it is text. Raises BadInput
    with the place.
    """
    if depth > DEPTH:
        raise BadInput(f"{where}: nested too deep, or variables that refer to each other")
    if hasattr(value, "_ciphertext"):
        return str(value)  # of ansible-vault: what it says is data
    if isinstance(value, str):
        return referred(value, where, variables, strict, depth) if is_trusted_as_template(value) else str(value)
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise BadInput(f"{where}: a key that is not a text: {next(k for k in value if not isinstance(k, str))!r}")
        return {
            str(key): resolved(item, f"{where}.{key}", variables, strict=strict, depth=depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [
            resolved(item, f"{where}[{n}]", variables, strict=strict, depth=depth + 1) for n, item in enumerate(value)
        ]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if where.startswith("hosttune_accept[") and isinstance(value, date):
        return value.isoformat()  # `until`, not quoted
    raise BadInput(f"{where}: neither text, number, list nor mapping: {type(value).__name__}")


def referred(text: str, where: str, variables: Mapping, strict: bool, depth: int) -> object:
    """A text with `{{ name }}` replaced; a text that is nothing else becomes the variable's own value."""
    if strict and TEMPLATE.search(REFERENCE.sub(" ", text)):
        return expressed(str(text), where, variables, depth)

    def value_of(match: re.Match) -> object:
        name = match[1]
        if name not in variables or name in ("vars", "hostvars"):
            raise BadInput(f"{where} refers to {name}, which is not a variable of this host")
        return resolved(variables[name], f"{where} ({name})", variables, strict=strict, depth=depth + 1)

    def text_of_value(match: re.Match) -> str:
        found = value_of(match)
        if isinstance(found, (dict, list)):
            raise BadInput(f"{where}: {match[1]} is a {type(found).__name__} in the middle of a text")
        return "" if found is None else str(found)

    whole = REFERENCE.fullmatch(text)
    return value_of(whole) if whole else REFERENCE.sub(text_of_value, str(text))


def expressed(text: str, where: str, variables: Mapping, depth: int) -> object:
    """What a template that can do nothing comes to; None for one that leaves the option out. Raises BadInput."""

    def value_of(name: str) -> object:
        if name == "omit":
            return OMIT
        if name not in variables or name in ("vars", "hostvars"):
            raise KeyError(name)
        return resolved(variables[name], f"{where} ({name})", variables, depth=depth + 1)

    try:
        found = evaluated(text, value_of)
    except NotHarmless as error:
        hint = "hosttune_templates: true allows all of Ansible's"
        raise BadInput(f"{where} is a template that is not evaluated: {error}; {hint}") from error
    return None if found is OMIT else found


def evaluated(text: str, value_of: Callable[[str], object]) -> object:
    """What a text's templates come to; a text that is one expression becomes that value itself.

    `value_of` gives a variable's value and raises KeyError for one that there is not. Raises NotHarmless.
    """
    if len(text) > MOST_CHARACTERS:
        raise NotHarmless("it is too long")
    if "{#" in text:
        raise NotHarmless("it has a comment")
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
    environment.globals, environment.filters = {}, FILTERS
    environment.tests = {name: environment.tests[name] for name in ("defined", "none", "undefined")}
    try:
        tree = environment.parse(text)
        for node in tree.find_all(nodes.Node):
            if not isinstance(node, NODES):
                raise NotHarmless(f"{type(node).__name__.lower()} is not evaluated")
        names = {}
        for name in meta.find_undeclared_variables(tree):
            try:
                names[name] = value_of(name)
            except KeyError:
                continue  # `default` and `is defined` may be there for it
        found = _value(environment, tree, text, names)
    except (TemplateError, TypeError, ValueError) as error:
        raise NotHarmless(str(error) or type(error).__name__) from error
    if isinstance(found, str) and len(found) > MOST_CHARACTERS:
        raise NotHarmless("what comes out is too long")
    return found


def _value(environment: ImmutableSandboxedEnvironment, tree: nodes.Template, text: str, names: dict) -> object:
    """The value of a text that is one expression, else the text with all of them put in."""
    stripped = text.strip()
    parts = [node for output in tree.body for node in output.nodes]
    if len(parts) == 1 and not isinstance(parts[0], nodes.TemplateData) and stripped.startswith("{{"):
        expression = environment.compile_expression(stripped[2:-2].strip("-"), undefined_to_none=False)
        found = expression(**names)
        if isinstance(found, StrictUndefined):
            str(found)  # says which name it is
        return found
    return environment.from_string(text).render(**names)


def merged(layers: list) -> dict:
    """One intent of those of groups and host: guests by name, settings by key, anything else as a whole.

    `layers`: (level, whose, intent), the most general first; of two levels the more specific counts. Raises BadInput
    where two of one level say different things.
    """
    said: dict = {}  # (key, name) -> (level, whose, value), in the order of the first that says it
    for level, whose, intent in layers:
        if not isinstance(intent, Mapping):
            raise BadInput(f"hosttune_intent of {whose} is not a mapping")
        for place, value in _parts(intent, whose):
            earlier = said.get(place)
            if earlier is not None and earlier[0] == level and earlier[2] != value:
                key = f"{place[0]}.{place[1]}" if place[1] else place[0]
                raise BadInput(
                    f"hosttune_intent: {earlier[1]} and {whose} say different things of {key}, and neither is more"
                    " specific: say it in the host's own hosttune_intent, or set ansible_group_priority"
                )
            said[place] = (level, whose, value)
    found: dict = {}
    for (key, name), (_, _, value) in said.items():
        if key == "guests":
            found.setdefault(key, []).extend([] if name is None else [value])
        elif key == "settings" and name is not None:
            found.setdefault(key, {})[name] = value
        else:
            found[key] = value
    return found


def _parts(intent: Mapping, whose: str) -> list:
    """What an intent says: ((key, name of a guest or setting, or None), value)."""
    found = []
    for key, value in intent.items():
        if key == "settings" and isinstance(value, Mapping):
            found += [((key, name), one) for name, one in value.items()]
        elif key == "guests" and isinstance(value, list):
            names = [one.get("name") if isinstance(one, Mapping) else None for one in value]
            if not all(isinstance(name, str) for name in names):
                raise BadInput(f"hosttune_intent of {whose}: a guest without a name")
            if len(set(names)) < len(names):
                raise BadInput(f"hosttune_intent of {whose}: a guest is named twice")
            found += [((key, None), None), *(((key, name), one) for name, one in zip(names, value, strict=True))]
        else:
            found.append(((key, None), value))
    return found


def as_json(intent: Mapping) -> str:
    """An intent as JSON that reads the same as YAML. Raises BadInput."""
    try:
        text = json.dumps(intent, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"hosttune_intent cannot be written as JSON: {error}") from error
    if len(text) > INTENT_BYTES:
        raise BadInput(f"hosttune_intent is larger than {INTENT_BYTES >> 20} MiB")
    return NOT_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
