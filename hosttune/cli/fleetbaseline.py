"""`fleet baseline`: write a declared baseline from a run or a host, or check a run against one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hosttune.cli.commands import Command
from hosttune.cli.output import emit, emit_report, exiting, tell
from hosttune.errors import BadInput

if TYPE_CHECKING:
    from hosttune.fleet.checking import Answers

F = TypeVar("F", bound=Callable[..., Any])


def baseline_option(command: F) -> F:
    """Add --baseline: the declared baseline that hosts are held to."""
    words = "A host that differs from this declared baseline is not good (see fleet baseline)."
    return click.option("--baseline", metavar="FILE", help=words)(command)


@click.command("baseline", cls=Command)
@click.option("--results", metavar="DIR", default="hosttune-results", show_default=True,
              help="The folder of the hosts' answers.")  # fmt: skip
@click.option("--run", "run_id", metavar="ID", help="This run (default: the last one).")
@click.option("--verb", type=click.Choice(("validate", "handover", "apply")),
              help="Instead of a run: the last answer of each host to this command.")  # fmt: skip
@click.option("-i", "--inventory", "inventories", multiple=True, metavar="INVENTORY",
              help="With --verb: the hosts of this inventory instead of those that have answered.")  # fmt: skip
@click.option(
    "--from-host", "host", metavar="NAME", help="Write the values of this host instead of those of most hosts."
)
@click.option("--against", "path", metavar="FILE", help="Check the hosts against this declared baseline; write none.")
@click.option("--out", metavar="FILE", help="Write to this file, not to standard output; never over an existing one.")
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True,
              help="With --against: the format of the answer.")  # fmt: skip
@click.pass_context
def baseline(
    context: click.Context, /, results: str, host: str | None, path: str | None, out: str | None, output: str, **of: Any
) -> None:
    """Write a declared baseline from the last run, or check a run against one.

    Firmware, drivers, kernel and settings that hosts of a model must have. With --against: exits 1 if a host differs,
    or if something that is declared is unknown. Asks no host. `fleet apply --baseline FILE` holds each wave to it.
    """
    from hosttune.fleet.checking import check_answers, write_baseline
    from hosttune.report.fleet_uniform import checked_report

    only_writing = next((word for word, value in (("--from-host", host), ("--out", out)) if value is not None), None)
    if path is not None and only_writing is not None:
        raise BadInput(f"both --against and {only_writing}", where="command line", hint="give one of the two")
    if path is None and output != "text":
        raise BadInput("a baseline is written as YAML", where="-o", hint="give --against with it, or leave it out")
    answers = asked(results, **of)
    if path is not None:
        checked = check_answers(path, results, answers)
        with exiting(context, checked.exit_code):
            emit_report(checked, output, checked_report)
        return
    text = write_baseline(results, answers, host)
    if out is None:
        emit(text)
    else:
        save(text, out)


def asked(results: str, run_id: str | None, verb: str | None, inventories: tuple[str, ...]) -> Answers:
    """Return which validations are meant. Raises BadInput."""
    from hosttune.fleet.checking import answers_of_last, answers_of_run
    from hosttune.fleet.inventory import read_inventory

    if verb is None:
        if inventories:
            raise BadInput("a run's hosts are in its record", where="-i", hint="give --verb with it, or leave it out")
        return answers_of_run(results, run_id)
    if run_id is not None:
        raise BadInput("both --run and --verb", where="command line", hint="a run has its own verb: drop --verb")
    return answers_of_last(results, verb, read_inventory(inventories, None) if inventories else None)


def save(text: str, path: str) -> None:
    """Write the file. Raises BadInput if it exists or cannot be written."""
    from hosttune.machine.files import write_new

    try:
        write_new(path, text.encode(), 0o644)
    except FileExistsError as error:
        raise BadInput("the file exists", where=path, hint="name another file, or remove this one") from error
    except OSError as error:
        raise BadInput(f"cannot write it: {error.strerror or error}", where=path, hint="name another file") from error
    tell(f"written: {path}; read it before you use it")
