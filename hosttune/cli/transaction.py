"""`apply`, `status`, `revert`, `recover`: the commands that change a machine, or say what was changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from hosttune.cli.commands import Command, host_options
from hosttune.cli.output import emit, emit_page, shown, tell
from hosttune.errors import BadInput

if TYPE_CHECKING:
    from hosttune.model.host import Host
    from hosttune.model.plan import Plan
    from hosttune.model.result import Result
    from hosttune.system import System
    from hosttune.transaction.site import Site
    from hosttune.transaction.steps import Prepared

OUTPUT = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)


@click.command(cls=Command)
@host_options
@click.argument("plan", metavar="[PLAN]", required=False)
@click.option("--intent", metavar="FILE", help="Use the plan in force or saved for this intent, else make one.")
@click.option("--dry-run", is_flag=True, help="Print each write, guests' files by size and sha256; write nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--no-guests", is_flag=True, help="Change host settings only; neither define nor start guests.")
@click.option("--start", is_flag=True, help="Also start the guests, once everything they need is ready.")
@click.option("--disrupt", multiple=True, metavar="GPU|GUEST", help="May be reset or redefined (repeatable).")
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
    dry_run: bool,
    yes: bool,
    no_guests: bool,
    start: bool,
    disrupt: tuple[str, ...],
    boot: bool,
    output: str,
) -> None:
    """Configure the host as a plan says; roll back on failure. PLAN: by default the saved one.

    \b
    hosttune apply --dry-run
    hosttune apply --start
    hosttune apply --intent intent.yaml
    hosttune apply plan.json --yes --disrupt 0000:41:00.0
    """
    from hosttune.transaction import Options, apply_plan, reapply, rehearse_apply

    if no_guests and start:
        raise BadInput("both --no-guests and --start", where="command line", hint="give one of the two")
    if plan is not None and intent is not None:
        raise BadInput("both a plan and an intent", where="command line", hint="give one of the two")
    if boot and (plan is not None or intent is not None or dry_run or no_guests or start or disrupt):
        raise BadInput("--boot with a plan or another option of apply", where="command line", hint="give --boot alone")
    options = Options(guests=not no_guests, start=start, disrupt=frozenset(disrupt))
    site, discover = at_site(root, document)
    if boot:
        finish(context, output, reapply(site, progress()))
        return
    wanted = wanted_plan(site, plan, intent, discover, refuse=not dry_run)
    if dry_run:
        finish(context, output, rehearse_apply(site, wanted, options, discover))
        return
    finish(context, output, apply_plan(site, wanted, options, discover, asking(yes), progress()))


@click.command(cls=Command)
@host_options
@OUTPUT
@click.pass_context
def status(context: click.Context, /, root: str | None, document: str | None, output: str) -> None:
    """Show what is applied, what drifted, what waits for a reboot."""
    from hosttune.transaction import status as look

    site, _ = at_site(root, document)
    finish(context, output, look(site))


@click.command(cls=Command)
@host_options
@click.option("--force", is_flag=True, help="Also revert settings that something else has changed since.")
@OUTPUT
@click.pass_context
def revert(context: click.Context, /, root: str | None, document: str | None, force: bool, output: str) -> None:
    """Restore the values from before hosttune, newest change first."""
    from hosttune.transaction import revert as take_back

    site, _ = at_site(root, document)
    finish(context, output, take_back(site, progress(), force=force))


@click.command(cls=Command)
@host_options
@click.option("--force", is_flag=True, help="Also revert settings that something else has changed since.")
@click.option("--disrupt", multiple=True, metavar="GUEST", help="May be stopped: the interrupted apply started it.")
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
    from hosttune.transaction import recover as settle

    site, _ = at_site(root, document)
    finish(context, output, settle(site, progress(), force=force, disrupt=frozenset(disrupt)))


def at_site(root: str | None, document: str | None) -> tuple[Site, Callable[[], Host]]:
    """(where to work, how to discover the host there). Raises BadInput."""
    from hosttune.transaction.site import site_of

    if root is not None and document is not None:
        raise BadInput("both --root and --host", where="command line", hint="give one of the two")
    if document is not None:
        from hosttune.model.host import Host
        from hosttune.recorded import Archive
        from hosttune.state import load

        host = Host.from_json(load(document, what="a host document"), where=document)
        return replace(site_of(Archive({}, {}, document)), hostname=host.hostname), lambda: host
    system = open_system(root)
    return site_of(system), lambda: discover_on(system)


def open_system(root: str | None) -> System:
    """This machine, or what --root names."""
    if root is None:
        from hosttune.system import Machine

        return Machine()
    from hosttune.archive import open_root

    return open_root(root)


def discover_on(system: System) -> Host:
    """The host behind a System."""
    from hosttune.discovery import discover

    return discover(system)


def wanted_plan(
    site: Site, plan: str | None, intent: str | None, discover: Callable[[], Host], *, refuse: bool
) -> Plan:
    """The plan to apply: that of a file, of an intent, or the saved one. Raises BadInput, Refused."""
    return read_plan(site, plan, refuse=refuse) if intent is None else plan_of_intent(site, intent, discover, refuse)


def plan_of_intent(site: Site, path: str, discover: Callable[[], Host], refuse: bool) -> Plan:
    """What an intent's plan is here: the one in force that was made from it, else the saved one, else a new one.

    So a second apply of an intent has nothing to do, and what an operator has read in a saved plan is what is applied;
    where the host has changed since, that plan is stale and refused as ever. Raises BadInput, Refused.
    """
    from hosttune.cli.plan import decide, intent_of_file
    from hosttune.model.plan import Plan
    from hosttune.state import load
    from hosttune.transaction import plan_in_force
    from hosttune.transaction.site import must_write, saved_plan_path

    if refuse:
        must_write(site)
    intent, where = intent_of_file(path, None)
    found = plan_in_force(site, intent)
    if found is None and site.store is not None and os.path.exists(saved := saved_plan_path(site)):
        kept = Plan.from_json(load(saved, what="a plan (hosttune plan saves one)"), where=saved)
        found = kept if kept.intent == intent else None
    return found or decide(discover(), intent, where)


def read_plan(site: Site, path: str | None, *, refuse: bool) -> Plan:
    """The plan of a file, or the saved one. `refuse`: a site that cannot be changed is told before its plan is read."""
    from hosttune.model.plan import Plan
    from hosttune.state import load
    from hosttune.transaction.site import must_write, saved_plan_path

    if refuse:
        must_write(site)
    where = path if path is not None else saved_plan_path(site)
    if path is None and not os.path.exists(where):
        raise BadInput("no plan is saved", where=where, hint="make one: hosttune plan; or name a plan document")
    return Plan.from_json(load(where, what="a plan (hosttune plan saves one)"), where=where)


def asking(yes: bool) -> Callable[[Sequence[Prepared]], bool]:
    """The prompt: shows what would change and asks; --yes answers it. Raises BadInput where nobody can be asked."""

    def ask(todo: Sequence[Prepared]) -> bool:
        if yes:
            return True
        from hosttune.report.result_text import wanted_lines
        from hosttune.transaction.guests import definition_change

        for line in wanted_lines(todo):
            tell(shown(line))
        for change in filter(None, map(definition_change, todo)):
            tell(shown(change))
        if sys.stdin is None or not sys.stdin.isatty():
            raise BadInput("cannot ask for confirmation: stdin is not a terminal", where="prompt", hint="give --yes")
        # Not click.confirm: on stderr its input() does not hear a Ctrl-C (CPython 3.11, without readline).
        click.echo(f"change {len(todo)} setting{'' if len(todo) == 1 else 's'}? [y/N]: ", nl=False, err=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    return ask


def progress() -> Callable[[str], None]:
    """Says each step on stderr where that is a terminal, else nothing."""
    if sys.stderr is not None and sys.stderr.isatty():
        return lambda text: tell(shown(text))
    return lambda text: None


def finish(context: click.Context, output: str, outcome: tuple[Result, int]) -> None:
    """Print a result and leave with its code."""
    result, code = outcome
    if output == "json":
        emit(result.to_json())
    else:
        from hosttune.report.result_text import print_result

        emit_page(lambda page: print_result(result, page, code))
    context.exit(code)
