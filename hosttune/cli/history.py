"""`history`: the transactions of this host, one of them, or the intent of that day."""

from __future__ import annotations

import click

from hosttune.cli.commands import Command, Whole, host_options
from hosttune.cli.output import emit, emit_report
from hosttune.cli.transaction import OUTPUT, place
from hosttune.errors import BadInput, HosttuneError
from hosttune.transaction.history import history as past
from hosttune.transaction.history import intent_of


@click.command(cls=Command)
@host_options
@click.argument("number", metavar="[N]", type=Whole(min=1), required=False)
@click.option("--intent", is_flag=True, help="Print the intent of transaction N, for hosttune apply --intent FILE.")
@OUTPUT
def history(root: str | None, document: str | None, number: int | None, intent: bool, output: str) -> None:
    """List every transaction; print one, or the intent of that day.

    \b
    hosttune history
    hosttune history 3
    hosttune history 3 --intent > then.yaml && hosttune apply --intent then.yaml
    """
    from hosttune.report.result import history_report

    site = place(root, document)[0]
    if not intent:
        emit_report(past(site, number), output, history_report)
        if lost := site.lost(site.transactions()):
            raise HosttuneError(lost.what, where=lost.where, hint=lost.hint)  # after the list, which is not whole
        return
    if number is None:
        raise BadInput("--intent without a transaction", where="--intent", hint="give its number: hosttune history")
    asked = intent_of(site, number)
    emit(asked.to_json() if output == "json" else asked.to_yaml())
