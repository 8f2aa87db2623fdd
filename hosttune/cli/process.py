"""The process of a command: every outcome becomes a documented exit code, and every error one block on stderr."""

from __future__ import annotations

import gc
import io
import os
import re
import sys
from collections.abc import Sequence

import click

from hosttune.cli.commands import cli
from hosttune.cli.output import say, set_amount, write
from hosttune.errors import BadInput, HosttuneError, Refused
from hosttune.machine.system import close_inherited_devices
from hosttune.model.hints import did_you_mean
from hosttune.model.text import either

# --- usage errors --------------------------------------------------------------------------------------------


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


# --- the process ---------------------------------------------------------------------------------------------


INTERNAL_ERROR = 70
# Flags that every command takes, before or after its name, in their long form.
FLAGS = {"--debug": "--debug", "-q": "--quiet", "--quiet": "--quiet", "-v": "--verbose", "--verbose": "--verbose"}
COMPLETE = "_HOSTTUNE_COMPLETE"  # variable of the environment in which a completion script asks (click)


def main() -> None:
    """Entry point. Every outcome becomes one of the documented exit codes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Escape characters that the locale's encoding cannot represent, as JSON does, instead of failing.
        sys.stdout.reconfigure(errors="backslashreplace")
    gc.set_threshold(50_000)  # documents are large and have no cycles: to look for some costs time
    close_inherited_devices()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    given = {FLAGS[word] for word in arguments[:end] if word in FLAGS}
    flags, words = given, [*(word for word in arguments[:end] if word not in FLAGS), *arguments[end:]]
    try:
        set_amount(quiet="--quiet" in flags, verbose="--verbose" in flags)
        return invoke(words)
    except HosttuneError as error:
        say(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the only catch-all: any other exception is a bug in hosttune
        if "--debug" in flags:
            sys.excepthook(type(error), error, error.__traceback__)
        what = f"internal error: {type(error).__name__}: {error}"
        say(Refused(what, where=" ".join(["hosttune", *arguments]), hint="report what it prints with --debug"))
        return INTERNAL_ERROR


def invoke(arguments: list[str]) -> int:
    """Run one command through click, and turn usage errors into BadInput."""
    if any("\0" in word for word in arguments):
        raise BadInput("an argument with a NUL byte", where="command line", hint="take it out")
    if not arguments and COMPLETE not in os.environ:
        write(cli.get_help(click.Context(cli, info_name="hosttune", **cli.context_settings)))
        return BadInput.exit_code
    try:
        result = cli.main(args=arguments, prog_name="hosttune", standalone_mode=False)
    except click.UsageError as error:
        raise usage_error(error) from error
    except click.Abort:
        return 130
    return result if isinstance(result, int) else 0
