"""click's usage errors as error blocks: the option as the place, and what it takes as what to do."""

from __future__ import annotations

import re

import click

from hosttune.errors import BadInput
from hosttune.model.hints import did_you_mean
from hosttune.model.text import either


def usage_error(error: click.UsageError) -> BadInput:
    """Return the error block of a usage error."""
    see = f"see {error.ctx.command_path if error.ctx else 'hosttune'} --help"
    if isinstance(error, click.NoSuchOption):
        params = [*error.ctx.command.get_params(error.ctx)] if error.ctx else []
        shown = [param for param in params if isinstance(param, click.Option) and not param.hidden]
        hint = did_you_mean(
            error.option_name, [name for param in shown for name in param.opts if name.startswith("--")], see
        )
        return BadInput(f"no option {error.option_name!r}", where="command line", hint=hint)
    param = error.param if isinstance(error, click.BadParameter) else None
    if param is not None and isinstance(error, click.MissingParameter):
        hint = _takes(param, "")
        what = f"Missing argument {param.human_readable_name!r}" if hint else error.format_message()
        return BadInput(what, where="command line", hint=f"{hint}; {see}" if hint else see)
    if param is None:
        return BadInput(error.format_message(), where="command line", hint=see)
    where = param.human_readable_name if isinstance(param, click.Argument) else max(param.opts, key=len)
    hint = _takes(param, error.message)
    return BadInput(_what(param, error.message), where=where, hint=f"{hint}; {see}" if hint else see)


def _what(param: click.Parameter, message: str) -> str:
    """Return what is wrong with an option's value. click writes limits as `0<=x<=3`."""
    if isinstance(param.type, click.Choice):  # what it takes is in the hint
        return f"{_given(message)} is not known"
    given, beyond, _ = message.partition(" is not in the range ")
    limits = param.type
    if not beyond or not isinstance(limits, click.IntRange | click.FloatRange):
        return message.removesuffix(".")
    if limits.min is not None and limits.max is not None:
        return f"{given} is not from {limits.min} to {limits.max}"
    return f"{given} is less than {limits.min}" if limits.max is None else f"{given} is more than {limits.max}"


def _takes(param: click.Parameter, message: str) -> str:
    """Return what an option takes: a number, or one of some words, of which the most similar one is named first."""
    if isinstance(param.type, click.IntRange | click.FloatRange):
        return f"give a {param.type.name}"
    if not isinstance(param.type, click.Choice):
        return ""
    words = [str(word) for word in param.type.choices]
    return did_you_mean(_given(message).strip("'\""), words, f"give {either(words)}")


def _given(message: str) -> str:
    """Return the value, quoted, that click's message about a choice begins with."""
    return re.split(r" is not (?:one of )?['\"]", message)[0]
