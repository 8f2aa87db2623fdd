"""`fleet baseline`: write a declared baseline from a run or a host, or check a run against one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hosttune.cli.commands import Command
from hosttune.cli.output import emit, exiting, shown, tell
from hosttune.errors import BadInput

if TYPE_CHECKING:
    from hosttune.fleet.checking import Checked

F = TypeVar("F", bound=Callable[..., Any])
MOST_HOSTS = 40  # named in the text; JSON has every one
MOST_RESULTS = 12  # of a host


def baseline_option(command: F) -> F:
    """Add --baseline: the declared baseline that hosts are held to."""
    words = "A host that differs from this declared baseline is not good (see fleet baseline)."
    return click.option("--baseline", metavar="FILE", help=words)(command)


@click.command("baseline", cls=Command)
@click.option("--results", metavar="DIR", default="hosttune-results", show_default=True,
              help="The folder of the hosts' answers.")  # fmt: skip
@click.option("--run", "run_id", metavar="ID", help="This run (default: the last one).")
@click.option("--host", metavar="NAME", help="Write the values of this host instead of those of most hosts.")
@click.option("--check", "path", metavar="FILE", help="Check the run against this declared baseline; write none.")
@click.option(
    "--out", metavar="FILE", help="Write to this file instead of standard output; never over an existing one."
)
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True,
              help="With --check: the format of the answer.")  # fmt: skip
@click.pass_context
def baseline(
    context: click.Context, results: str, run_id: str | None, host: str | None, path: str | None, out: str | None,
    output: str,
) -> None:  # fmt: skip
    """Write a declared baseline from the last run, or check a run against one.

    Firmware, drivers, kernel and settings that hosts of a model must have. With --check: exits 1 if a host differs, or
    if something that is declared is unknown. Asks no host. `fleet apply --baseline FILE` holds each wave to it.
    """
    from hosttune.fleet.checking import check_run, write_baseline

    if path is None:
        text = write_baseline(results, run_id, host)
        if out is None:
            emit(text)
        else:
            save(text, out)
        return
    given = next((word for word, value in (("--host", host), ("--out", out)) if value is not None), None)
    if given is not None:
        raise BadInput(f"both --check and {given}", where="command line", hint="give one of the two")
    checked = check_run(path, results, run_id)
    with exiting(context, checked.exit_code):
        if output == "json":
            emit(checked.to_json())
        else:
            show(checked)


def save(text: str, path: str) -> None:
    """Write the file. Raises BadInput if it exists or cannot be written."""
    from hosttune.files import write_new

    try:
        write_new(path, text.encode(), 0o644)
    except FileExistsError as error:
        raise BadInput("the file exists", where=path, hint="name another file, or remove this one") from error
    except OSError as error:
        raise BadInput(f"cannot write it: {error.strerror or error}", where=path, hint="name another file") from error
    tell(f"written: {path}; read it before you use it")


def show(checked: Checked) -> None:
    """Print which hosts are not as declared, and in what."""
    from hosttune.model.listing import some
    from hosttune.report.outcomes import SIGNS

    emit(shown(f"{checked.verdict.upper()}  {checked.headline}"))
    bad = [one for one in checked.hosts if one.verdict != "pass"]
    for one in bad[:MOST_HOSTS]:
        emit(shown(f"  {SIGNS[one.verdict]} {one.host}"))
        for result in one.results[:MOST_RESULTS]:
            place = "" if result.subject == "host" else f" {result.subject}"
            what = f"{result.check.removeprefix('declared-')}{place}: {result.actual}, declared {result.expected}"
            emit(shown(f"      {SIGNS[result.outcome]} {what}"))
        if len(one.results) > MOST_RESULTS:
            emit(f"      and {len(one.results) - MOST_RESULTS} more")
    if len(bad) > MOST_HOSTS:
        emit(shown(f"  and {len(bad) - MOST_HOSTS} more: {some([one.host for one in bad[MOST_HOSTS:]], 8)}"))
