"""`apply`, `status`, `revert`, `recover`, `history`: the commands that change a machine or show what was changed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hosttune.cli.commands import Command, Whole, completing, host_options, progress, read_document
from hosttune.cli.output import agreed, detail, emit, emit_report, exiting, waiting
from hosttune.errors import BadInput, HosttuneError

if TYPE_CHECKING:
    from hosttune.model.plan import Plan
    from hosttune.model.result import Result
    from hosttune.transaction.calls import Here, PlanRequest
    from hosttune.transaction.steps import Prepared

OUTPUT = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
                      help="What to print.")  # fmt: skip


@click.command(cls=Command)
@host_options
@click.argument("plan", metavar="[PLAN]", required=False)
@click.option("--intent", metavar="FILE", help="Plan this intent (YAML or JSON; - is standard input) and apply that.")
@click.option("--dry-run", is_flag=True, help="Print each write, guests' files by size and sha256; write nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--no-guests", is_flag=True, help="Change host settings only; neither define nor start guests.")
@click.option("--start", is_flag=True, help="Also start the guests, once everything they need is ready.")
@click.option(
    "--prune", is_flag=True, help="Take away guests and settings of intent files that --intent does not name."
)
@click.option(
    "--disrupt",
    multiple=True,
    metavar="GPU|GUEST",
    shell_complete=completing("gpus_or_guests"),
    help="Allow to reset this GPU or to disturb this guest (repeatable).",
)
@click.option("--boot", is_flag=True, hidden=True, help="Set again what the reboot has undone (the boot unit).")
@OUTPUT
@click.pass_context
def apply(
    context: click.Context,
    /,
    root: str | None,
    document: str | None,
    plan: str | None,
    intent: str | None,
    prune: bool,
    dry_run: bool,
    yes: bool,
    no_guests: bool,
    start: bool,
    disrupt: tuple[str, ...],
    boot: bool,
    output: str,
) -> None:
    """Configure the host as a plan says; roll back on failure.

    \b
    hosttune apply --dry-run
    hosttune apply --start
    hosttune apply --intent intent.yaml
    hosttune apply --intent intent.yaml --prune
    hosttune apply plan.json --yes --disrupt 0000:41:00.0
    """
    from hosttune.model.text import count
    from hosttune.transaction import calls
    from hosttune.transaction.applying import ApplyOptions

    def confirm(todo: Sequence[Prepared]) -> bool:
        question = f"change {count(len(todo), 'setting')}?"
        return yes or agreed(calls.change_lines(todo), question)

    if no_guests and start:
        raise BadInput("both --no-guests and --start", where="command line", hint="give one of the two")
    if plan is not None and intent is not None:
        raise BadInput("both a plan and an intent", where="command line", hint="give one of the two")
    if prune and intent is None:
        hint = "give the whole intent with --intent FILE; a plan made with hosttune plan --prune has it in itself"
        raise BadInput("--prune without an intent", where="--prune", hint=hint)
    if boot and (plan is not None or intent is not None or dry_run or no_guests or start or disrupt):
        raise BadInput("--boot with a plan or another option of apply", where="command line", hint="give --boot alone")
    here = place(root, document)
    if boot:
        finish(context, output, calls.set_again(here, progress()))
        return
    person = waiting(yes, sys.stdin)
    options = ApplyOptions(guests=not no_guests, start=start, disrupt=frozenset(disrupt), person=person)
    done = calls.apply(
        here, lambda: asked_plan(plan, intent, prune=prune), options, confirm=confirm, say=progress(), dry_run=dry_run
    )
    finish(context, output, done)


@click.command(cls=Command)
@host_options
@OUTPUT
@click.pass_context
def status(context: click.Context, /, root: str | None, document: str | None, output: str) -> None:
    """Show what is applied, what drifted, what waits for a reboot."""
    from hosttune.handover import kept

    finish(context, output, kept.status(place(root, document)))


@click.command(cls=Command)
@host_options
@click.option("--guest", "guests", multiple=True, metavar="NAME", shell_complete=completing("guests"),
              help="Only take this guest away, with what it alone needed (repeatable).")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print what would be restored; write nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--force", is_flag=True, help="Also revert settings that something else has changed since.")
@OUTPUT
@click.pass_context
def revert(
    context: click.Context,
    /,
    root: str | None,
    document: str | None,
    guests: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    force: bool,
    output: str,
) -> None:
    """Restore the values from before hosttune, or take guests away.

    \b
    hosttune revert --dry-run
    hosttune revert --guest bob
    """
    from hosttune.transaction import calls

    if guests and force:
        raise BadInput(
            "--guest with --force", where="command line", hint="a guest is taken away as it is now: no --force"
        )
    if guests:
        from hosttune.transaction.applying import ApplyOptions

        finish(context, output, calls.take_away(
            place(root, document), tuple(dict.fromkeys(guests)), ApplyOptions(), say=progress(), dry_run=dry_run,
            confirm=lambda todo: yes or agreed(calls.change_lines(todo), f"take away {', '.join(guests)}?"),
        ))  # fmt: skip
        return
    done = calls.revert(
        place(root, document), progress(), force=force, dry_run=dry_run,
        confirm=lambda lines: yes or agreed(lines, "restore the original values?"),
    )  # fmt: skip
    finish(context, output, done)


@click.command("forget-guest", cls=Command)
@host_options
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@OUTPUT
@click.pass_context
def forget_guest(
    context: click.Context, /, root: str | None, document: str | None, name: str, yes: bool, output: str
) -> None:
    """Delete what was kept of a guest that was taken away.

    They are its UEFI variables and TPM state, in the state directory. Without them a guest of that name starts as new.
    """
    from hosttune.transaction import calls

    finish(context, output, calls.forget_guest(
        place(root, document), name,
        confirm=lambda paths: yes or agreed(paths, f"delete for ever what was kept of guest {name}?"),
    ))  # fmt: skip


@click.command(cls=Command)
@host_options
@click.option("--force", is_flag=True, help="Also revert settings that something else has changed since.")
@click.option("--disrupt", multiple=True, metavar="GUEST", shell_complete=completing("guests"),
              help="Allow to stop this guest, which the interrupted apply started (repeatable).")  # fmt: skip
@OUTPUT
@click.pass_context
def recover(
    context: click.Context,
    /,
    root: str | None,
    document: str | None,
    force: bool,
    disrupt: tuple[str, ...],
    output: str,
) -> None:
    """Roll back an interrupted apply or revert."""
    from hosttune.transaction import calls

    finish(context, output, calls.recover(place(root, document), progress(), force=force, disrupt=disrupt))


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
    from hosttune.transaction.history import history as past
    from hosttune.transaction.history import intent_of

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


def place(root: str | None, document: str | None) -> Here:
    """Return the place to work on: this machine, --root or --host. Raises BadInput."""
    from hosttune.transaction.site import open_site

    detail(f"reading the host: {document or root or 'this machine'}")
    host = read_document(root, document)
    opened = open_site(root, host, document or "")
    detail(f"state: {opened[0].store.folder if opened[0].store else 'none, this is a captured host'}")
    return opened


def asked_plan(plan: str | None, intent: str | None, *, prune: bool) -> Plan | PlanRequest | None:
    """Return the given plan or intent; None means the saved plan. Raises BadInput."""
    from hosttune.cli.plan import intent_of_file
    from hosttune.transaction.calls import PlanRequest, read_plan

    if intent is not None:
        return PlanRequest(*intent_of_file(intent, None, prune=prune), prune=prune)
    return read_plan(plan) if plan is not None else None


def finish(context: click.Context, output: str, result: Result) -> None:
    """Print a result and exit with its exit code."""
    from hosttune.report.result import result_report

    code = result.exit_code or 0
    with exiting(context, code):
        emit_report(result, output, result_report)
