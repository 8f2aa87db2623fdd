"""The process of a command: every outcome becomes a documented exit code, and every error one block on stderr."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence

import click

from hosttune.cli.commands import cli
from hosttune.cli.output import say, set_amount, write
from hosttune.cli.usage import usage_error
from hosttune.errors import BadInput, HosttuneError, Refused
from hosttune.machine.system import close_inherited_devices

INTERNAL_ERROR = 70
# Flags that every command takes, before or after its name, in their long form.
FLAGS = {"--debug": "--debug", "-q": "--quiet", "--quiet": "--quiet", "-v": "--verbose", "--verbose": "--verbose"}
COMPLETE = "_HOSTTUNE_COMPLETE"  # variable of the environment in which a completion script asks (click)


def main() -> None:
    """Entry point. Every outcome becomes one of the documented exit codes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Escape characters that the locale's encoding cannot represent, as JSON does, instead of failing.
        sys.stdout.reconfigure(errors="backslashreplace")
    close_inherited_devices()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    found = {FLAGS[word] for word in arguments[:end] if word in FLAGS}
    flags, words = found, [*(word for word in arguments[:end] if word not in FLAGS), *arguments[end:]]
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
            write(traceback.format_exc())
        what = f"internal error: {type(error).__name__}: {error}"
        hint = "report what it prints with --debug"
        say(Refused(what, where=" ".join(["hosttune", *arguments]), hint=hint))
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
