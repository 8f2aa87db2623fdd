"""One run of a fleet's verb, and its output: the report, what hosts answered or would change, why it ended early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hosttune.cli.commands import with_options
from hosttune.cli.output import agreed, emit, emit_report, exiting, report_text, shown, tell, write
from hosttune.errors import BadInput

if TYPE_CHECKING:
    from hosttune.fleet.run import FleetRequest, FleetRun
    from hosttune.model.fleet import FleetReport

INTERRUPTED = 130
WITH_ANSWERS = ("text",)  # formats after which the answers of the hosts follow
PAGES = ("html",)  # formats that link to a page of each host
inventory_options = with_options(
    click.option("-i", "--inventory", "inventories", multiple=True, required=True, metavar="INVENTORY",
                 help="Ansible's inventory: a file, a directory, or HOST,… (repeatable)."),
    click.option("--limit", metavar="PATTERN", help="Only these hosts and groups, as with Ansible's --limit."),
    click.option("-e", "extra", multiple=True, metavar="KEY=VALUE|@FILE",
                 help="A variable for the playbooks (repeatable)."),
)  # fmt: skip


def run(context: click.Context, verb: str, asked: dict[str, Any]) -> None:
    """Run a verb and exit with its exit code. Raises BadInput and Refused."""
    from hosttune.fleet.reporting import report_of_run
    from hosttune.fleet.run import run_fleet

    output = asked.pop("output")
    yes = asked.pop("yes", False)
    request = request_of(verb, asked)
    done = run_fleet(
        request, lambda line: tell(shown(line)), lambda lines: yes or agreed(lines, f"{verb} on these hosts?")
    )
    with exiting(context, done.outcome.exit_code):
        try:
            show(report_of_run(done), output, done.rollout.order.results, keep=True)
            if output in WITH_ANSWERS:
                rollout = done.rollout
                if rollout.verb == "plan":
                    show_plans(rollout.order.results, rollout.run, rollout.hosts, check=rollout.check)
                elif rollout.check and rollout.verb in ("apply", "revert"):
                    show_changes(rollout.order.results, rollout.verb, rollout.run, rollout.hosts)
                elif rollout.check and rollout.verb == "course":
                    from hosttune.fleet.rehearsal import courses

                    courses_of = courses(rollout.order.results, rollout.run, rollout.hosts)
                    where = hosts_text(tuple(courses_of), rollout.hosts)
                    emit(f"\nwhat would be handed over on {where}; nothing was written")
                    for host, course in courses_of.items():
                        emit(shown("\n  ".join([host, *course])))
        finally:
            print_end(done, reasons=output not in WITH_ANSWERS)


def request_of(verb: str, asked: dict[str, Any]) -> FleetRequest:
    """Return the options as a request. Options that were not given get their defaults."""
    from hosttune.fleet.run import FleetRequest

    options = asked.pop("options")
    if options and not options[0].startswith("-"):
        raise BadInput(f"unexpected argument {options[0][:80]!r}", where="command line", hint="see --help")
    given = {name: value for name, value in asked.items() if value is not None}
    return FleetRequest(verb=verb, options=options, **given)


def print_end(done: FleetRun, *, reasons: bool) -> None:
    """Print why a run ended early and how to continue it.

    `reasons`: also print the reasons of the closed gate. The text report already has them.
    """
    if done.outcome.stopped is None:
        return
    write(shown(f"stopped: {done.outcome.stopped}"))
    for line in done.outcome.messages:
        write(shown(f"  {line}"))
    shut = [wave for wave in done.outcome.waves if wave.passed is False]
    for line in shut[0].why if reasons and shut and done.outcome.exit_code != INTERRUPTED else ():
        write(shown(f"  {line}"))
    if not done.rollout.check:
        tell("the same command with --resume continues from here; with --retry it asks only the hosts that failed")


def show_changes(results: str, verb: str, run: str, hosts: Sequence[str]) -> None:
    """Print the distinct changes of a run in check mode, each with its hosts; every write of each host with -v."""
    from hosttune.cli.output import VERBOSE, Amount
    from hosttune.fleet.rehearsal import changes, rehearsals
    from hosttune.model.text import count
    from hosttune.report.result import result_report

    rehearsed_changes = changes(results, verb, run, hosts)
    counts = f"{count(len(rehearsed_changes.of), 'distinct change')}, {count(rehearsed_changes.writes, 'write')}"
    emit(f"\nwhat would change on {hosts_text(rehearsed_changes.hosts, hosts)}: {counts}; nothing was written")
    for line, alike in rehearsed_changes.of.items():
        emit(shown(f"  {hosts_text(alike, rehearsed_changes.hosts)}: {line}"))
    if not rehearsed_changes.of:
        emit("  nothing: every host that answered is as planned")
    if Amount.now != VERBOSE:
        path = f"{results}/HOST/{verb}.check.json"
        emit(shown(f"-v prints each write; {path} holds them"))
        return
    for members, result in rehearsals(results, verb, run, hosts):
        emit(shown(f"\n{hosts_text(members, ())}"))
        emit(report_text(result, "text", result_report))


def show_plans(results: str, run: str, hosts: Sequence[str], *, check: bool) -> None:
    """Print the plans, those of alike hosts once, and how many have errors: a plan can be made and still not work."""
    from hosttune.fleet.rehearsal import has_errors, plans
    from hosttune.model.text import count

    hosts_by_plan = plans(results, run, hosts, check=check)
    for lines, alike in hosts_by_plan.items():
        emit(shown("\n  ".join([f"\nplan of {hosts_text(alike, hosts)}", *lines])))
    wrong = sum(len(alike) for lines, alike in hosts_by_plan.items() if has_errors(lines))
    if wrong:
        plans_in_all = sum(map(len, hosts_by_plan.values()))
        emit(f"\n{count(wrong, 'plan')} of {plans_in_all} with errors: see to them before fleet apply")


def hosts_text(hosts: Sequence[str], of: Sequence[str]) -> str:
    """Return hosts with their number, at most 8 by name: "2 hosts (a, b)"; "all 16 hosts" without their names."""
    from hosttune.model.listing import some
    from hosttune.model.text import count

    if len(hosts) == len(of) > 1:
        return f"all {len(hosts)} hosts"
    return f"{count(len(hosts), 'host')} ({some(hosts, 8)})" if hosts else "no host"


def show(report: FleetReport, output: str, results: str, *, keep: bool = False) -> None:
    """Print a report. For HTML, also write a page into the results folder for each host with problems.

    `keep` a validation's outcomes there, with which the next is compared.
    """
    from hosttune.fleet.reporting import with_worse
    from hosttune.report.fleet import fleet_report

    report = with_worse(report, results, keep=keep)
    emit_report(report, output, lambda report: fleet_report(linked(report, results) if output in PAGES else report))


def linked(report: FleetReport, results: str) -> FleetReport:
    """Write the pages of hosts with problems; return the report with their paths. Raises BadInput."""
    from hosttune.bench.baselines import shipped
    from hosttune.fleet.pages import with_pages
    from hosttune.report.draw.html import page
    from hosttune.report.validation import validation_report
    from hosttune.rules.checks import checks

    standard, explained = shipped(), checks(False)
    return with_pages(
        report,
        results,
        lambda validation, host: page(
            validation_report(validation, host=host, baselines=lambda: standard, checks=explained)
        ),
    )
