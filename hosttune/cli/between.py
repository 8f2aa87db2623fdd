"""What `fleet pairs` and `fleet collective` share, and what a host's own `pairs` and `collective` do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hosttune.cli.commands import with_options
from hosttune.cli.fleetrun import inventory_options
from hosttune.cli.output import FORMATS, emit_report, exiting, shown, tell, write
from hosttune.errors import BadInput, Refused
from hosttune.model.collective import CollectiveReport
from hosttune.model.pairs import PairsReport
from hosttune.model.values import Value

if TYPE_CHECKING:
    from hosttune.cluster.between import EndedRun

J = TypeVar("J", bound="Value")

between_options = with_options(
    inventory_options,
    click.option("--window", metavar="HH:MM-HH:MM", help="Begin steps only in this time of the day, local time."),
    click.option("--disrupt", multiple=True, metavar="HOST",
                 help="Measure on this host even if guests run, or may run, on it (repeatable)."),
    click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True,
                 help="Format of the report."),
)  # fmt: skip


def taken(asked: dict[str, Any], kind: type[Value]) -> dict[str, Any]:
    """Take the options that were given out of `asked`: those with the names of this document's fields."""
    return {name: value for name in kind.__struct_fields__ if (value := asked.pop(name, None)) not in (None, ())}


def end(context: click.Context, done: EndedRun[Any], output: str, show: Callable[[Any, str], None]) -> None:
    """Print the report of a run, and why it stopped, and exit with its exit code."""
    with exiting(context, done.exit_code):
        show(done.report, output)
        if done.stopped is not None:
            write(shown(f"stopped: {done.stopped}"))
            tell("the same command with --resume continues from here")


def show_pairs(report: PairsReport, output: str) -> None:
    """Print a report on pairs."""
    from hosttune.report.pairs import pairs_report

    emit_report(report, output, pairs_report)


def show_collective(report: CollectiveReport, output: str) -> None:
    """Print a report on collectives."""
    from hosttune.report.collective import collective_report

    emit_report(report, output, collective_report)


def show_past(results: str, run_id: str | None, output: str, metrics: str | None) -> bool:
    """Show the run that a report is asked of, if it measured between hosts. Returns whether it did. Raises BadInput.

    `metrics`: a file that can judge hosts, not such runs.
    """
    from hosttune.fleet.run import read_past

    past = read_past(results, None, run_id)
    verb = past.began.verb if past is not None else None
    if past is None or verb not in ("pairs", "collective"):
        return False
    if metrics is not None:
        hint = "leave it out, or name another run by --run, or answers by --verb"
        raise BadInput(f"the run {past.run} is one of {verb}: no host is judged", where="--metrics", hint=hint)
    if verb == "pairs":
        from hosttune.cluster.pairruns import report_of_past as report_of_pairs

        show_pairs(report_of_pairs(results, past.run), output)
    else:
        from hosttune.cluster.collectiveruns import report_of_past as report_of_collective

        show_collective(report_of_collective(results, past.run), output)
    return True


def read_job(path: str | None, kind: type[J], verb: str) -> J:
    """Return the job in a file that `fleet VERB` wrote; the empty one without a path. Raises BadInput."""
    import msgspec
    from msgspec.structs import fields

    from hosttune.journal.state import load_text
    from hosttune.model.jsontext import plain_json

    if path is None:
        return kind()
    hint = f"`hosttune fleet {verb}` writes it"
    text = load_text(path, what="a job (JSON)", size="intent")
    head = plain_json(text, where=path, hint=hint, once=True)
    if isinstance(head, dict) and (others := sorted(head.keys() - {field.encode_name for field in fields(kind)})):
        raise BadInput(f"not a job: it has {shown(others[0][:60])!r}", where=path, hint=hint)
    try:
        return msgspec.convert(head, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadInput(f"not a job: {error}", where=path, hint=hint) from error


def refuse_captured(*sources: str | None) -> None:
    """Refuse to measure on a host that is only a capture or a document. Raises Refused."""
    source = next((source for source in sources if source is not None), None)
    if source is not None:
        raise Refused("a captured host has no network", where=source, hint="ask the host itself")


def refuse_guests(guests: tuple[str, ...] | None, *, disrupt: bool) -> None:
    """Refuse to measure on a host with running guests, or unknown ones (None). Raises Refused."""
    if not disrupt and guests != ():
        what = "its guests are unknown" if guests is None else f"guests are running: {', '.join(guests)}"
        raise Refused(f"not measured: {what}", where="network", hint="name the host in --disrupt to load its network")
