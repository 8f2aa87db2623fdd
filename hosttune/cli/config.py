"""The configuration file: defaults of some options of `plan` and `fleet` (docs/configuration.md).

It has no option that changes a machine, chooses which host is changed, or answers a question. Commands without a table
here never read it, so that a damaged file does not stop `apply`, `revert` and `recover`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from hosttune.cli.output import detail
from hosttune.errors import BadInput

if TYPE_CHECKING:
    from hosttune.model.validation import Acceptance

PLACE = "/etc/hosttune/config.toml"
VARIABLE = "HOSTTUNE_CONFIG"  # another file; empty: none
# Table: the long options that may have a default there, and the type of their values in TOML.
TABLES: Mapping[str, Mapping[str, type]] = {
    "plan": {"profile": str, "smt": str, "hugepages": str, "firmware": str, "network": list, "bridge": list},
    "fleet": {"inventory": list, "results": str, "forks": int, "shard": int, "timeout": int},
}
# With one of these `plan` does not read the file: a captured host, an intent and existing XML give the same result on
# every machine.
ELSEWHERE = ("--root", "--host", "-f", "--file", "--check-xml", "--adopt", "--adopt-all", "--xml", "-h", "--help")
ACCEPT = "accept"  # a list beside the tables: results that somebody answers for
ASKING = ("discover", "plan", "validate", "handover")  # verbs of a fleet with a default inventory: they change no host


def defaults(context: click.Context, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the defaults of a command's options, by the names of its parameters. Raises BadInput.

    `arguments`: the words after the command.
    """
    table, *verb = context.command_path.split()[1:]
    if any(word.startswith(ELSEWHERE) for word in arguments):
        return {}
    path = os.environ.get(VARIABLE, PLACE)
    settings = read(path, needed=VARIABLE in os.environ) if path else {}
    values = {}
    for key, value in settings.get(table, {}).items():
        param = option(context.command, key)
        if param is None or (key == "inventory" and verb[0] not in ASKING):
            continue
        check(param, context, value, f"{path}: {table}.{key}")
        values[param.name or ""] = value
        detail(f"default from {path}: {table}.{key} = {value!r}")
    return values


def read(path: str, *, needed: bool) -> dict[str, dict[str, Any]]:
    """Return the tables of the file; none if it does not exist and is not `needed`. Raises BadInput."""
    from hosttune.journal.state import load_trusted
    from hosttune.model.jsontext import plain_toml

    data = load_trusted(path, what="a configuration file (TOML)", size="configuration")
    if data is None:
        if not needed:
            return {}
        raise BadInput("no such file", where=f"{VARIABLE}={path}", hint="correct the variable, or unset it")
    tables = plain_toml(data, where=path, hint="correct it, or move the file away")
    tables.pop(ACCEPT, None)  # of `accepted`
    for table, values in tables.items():
        known(table, TABLES, path)
        if not isinstance(values, dict):
            raise BadInput(f"{table} is not a table", where=path, hint=f"write [{table}], and its keys below")
        for key, value in values.items():
            place = f"{path}: {table}.{key}"
            known(key, TABLES[table], place)
            kind = TABLES[table][key]
            items = value if isinstance(value, list) else []
            if value == "":
                raise BadInput("an empty value", where=place, hint="give a value, or take the key out")
            if type(value) is not kind or not all(isinstance(item, str) and item for item in items):
                words = {str: "a text", int: "a whole number", list: "a list of texts"}[kind]
                raise BadInput(f"{value!r} is not {words}", where=place, hint=f"give {words}")
    return tables


def accepted() -> tuple[Acceptance, ...]:
    """Return the results that the file accepts on this machine. Raises BadInput."""
    from hosttune.journal.state import load_trusted
    from hosttune.model.jsontext import plain_toml
    from hosttune.validating.accepting import declared

    path = os.environ.get(VARIABLE, PLACE)
    data = load_trusted(path, what="a configuration file (TOML)", size="configuration") if path else None
    rows = plain_toml(data, where=path, hint="correct it, or move the file away").get(ACCEPT) if data else None
    return declared(rows, f"{path}: {ACCEPT}") if rows is not None else ()


def known(name: str, names: Iterable[str], where: str) -> None:
    """Raise BadInput for a table or key that does not exist."""
    if name not in names:
        from hosttune.model.hints import did_you_mean

        hint = did_you_mean(name, names, f"give one of: {', '.join(names)}")
        raise BadInput(f"unknown key {name!r}", where=where, hint=hint)


def option(command: click.Command, key: str) -> click.Parameter | None:
    """Return the option of a command with this long name, if it has one."""
    return next((param for param in command.params if f"--{key}" in param.opts), None)


def check(param: click.Parameter, context: click.Context, value: Any, where: str) -> None:
    """Raise BadInput for a value that the option does not take."""
    try:
        param.type_cast_value(context, value)
    except click.BadParameter as error:
        raise BadInput(error.message, where=where, hint="correct the value") from error
