"""`fleet`: run a verb on many hosts through Ansible. Options → one call → report; the worst host is the exit code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hosttune.cli import fleetbaseline, fleetbetween
from hosttune.cli.commands import Command, CommandGroup, Seconds, Whole, with_options
from hosttune.cli.fleetrun import inventory_options, request_of, run, show
from hosttune.cli.output import FORMATS as REPORTS
from hosttune.cli.output import emit, shown, tell
from hosttune.errors import BadInput

if TYPE_CHECKING:
    from hosttune.fleet.monitored import Monitored
    from hosttune.model.fleet import FleetReport

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = (*REPORTS, "junit")
RESULTS = "hosttune-results"


GROUPS = {  # of the help of a verb that contacts hosts
    "Which hosts": ("--inventory", "--limit", "--resume", "--retry"),
    "What": ("--intent", "--level", "--baseline", "--check", "--yes", "-e"),
    "How": ("--waves", "--gate", "--reboot", "--reboot-guests", "--recover", "--forks", "--shard", "--timeout"),
    "Output": ("--results", "--output"),
}


@click.group(cls=CommandGroup, no_args_is_help=False)
def fleet() -> None:
    """Run hosttune on many hosts, through Ansible.

    \b
    hosttune fleet validate -i inventory.yml --limit rack7
    hosttune fleet apply -i inventory.yml --intent intent.yml --check
    hosttune fleet apply -i inventory.yml --intent intent.yml --reboot
    hosttune fleet apply -i inventory.yml --resume
    hosttune fleet report -o html > fleet.html
    """


def results_option(command: F) -> F:
    """Add --results: the folder of the hosts' answers."""
    return click.option("--results", metavar="DIR", default=RESULTS, show_default=True,
                        help="Keep each host's answers here, as HOST/PHASE.json.")(command)  # fmt: skip


def answers_option(command: F) -> F:
    """Add --results for a command that asks no host: where the answers of earlier runs are."""
    return click.option("--results", metavar="DIR", default=RESULTS, show_default=True,
                        help="The folder of the hosts' answers.")(command)  # fmt: skip


def output_option(command: F) -> F:
    """Add -o: the format of the report."""
    return click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True,
                        help="Format of the report.")(command)  # fmt: skip


# The options of every verb that contacts hosts.
run_options = with_options(
    inventory_options,
    results_option,
    click.option("--forks", type=Whole(1, 5000), metavar="N", help="Hosts to ask at once (default 50)."),
    click.option("--shard", type=Whole(1, 100000), metavar="N",
                 help="Most hosts per ansible process (default 500)."),
    click.option("--timeout", type=Seconds(min=1, max=7 * 86400 - 1), metavar="SECONDS",
                 help="Time limit of a phase on a host."),
    click.option("--resume", is_flag=True, help="Continue the last run: unproven hosts first, then the rest."),
    click.option("--retry", is_flag=True, help="Repeat the last run for the hosts that failed or are unknown."),
    output_option,
    click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- ANSIBLE-OPTIONS]"),
)  # fmt: skip


def intent_option(command: F) -> F:
    """Add --intent: the intent for every host."""
    return click.option("--intent", metavar="FILE",
                        help="The intent of every host (else the variable hosttune_intent).")(command)  # fmt: skip


def level_option(command: F) -> F:
    """Add --level: how much is measured."""
    return click.option("--level", type=Whole(0, 3), metavar="N", help="The level of validation (default 0).")(command)


# The options of verbs that change hosts.
change_options = with_options(
    level_option,
    click.option("--waves", metavar="SIZES", help="Sizes of the waves: hosts or percent (default 1,5%,25%,100%)."),
    click.option("--gate", type=click.Choice(("either", "worse", "verdict")),
                 help="What stops a run: a bad verdict, a result worse than before, or either (default)."),
    click.option("--check", is_flag=True, help="Change nothing; show what would change (with -v: every write)."),
    click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
    click.option("--reboot", is_flag=True, help="Reboot hosts that need it; never one with running guests."),
    click.option("--reboot-guests", is_flag=True, help="Reboot also hosts with running guests."),
    click.option("--recover", is_flag=True, help="First roll back what an interrupted run left unfinished."),
)  # fmt: skip


@fleet.command(cls=Command, groups=GROUPS)
@run_options
@click.pass_context
def discover(context: click.Context, /, **asked: Any) -> None:
    """Discover every host; store its host document."""
    run(context, "discover", asked)


@fleet.command(cls=Command, groups=GROUPS)
@run_options
@intent_option
@click.option("--check", is_flag=True, help="Do not save the plans on the hosts.")
@click.pass_context
def plan(context: click.Context, /, **asked: Any) -> None:
    """Plan every host from its intent. Changes only the saved plan."""
    run(context, "plan", asked)


@fleet.command(cls=Command, groups=GROUPS)
@run_options
@intent_option
@change_options
@fleetbaseline.baseline_option
@click.pass_context
def apply(context: click.Context, /, **asked: Any) -> None:
    """Apply every host's plan, in waves, with a gate after each.

    Per host: validate, drain hook, apply, reboot where it is needed and allowed, confirm, validate against before,
    undrain hook. If a wave is not proven good, the run stops; --resume continues from there.
    """
    run(context, "apply", asked)


@fleet.command(cls=Command, groups=GROUPS)
@run_options
@level_option
@fleetbaseline.baseline_option
@click.pass_context
def validate(context: click.Context, /, **asked: Any) -> None:
    """Validate every host. Exits 1 if a result failed or is unknown, or a host did not answer."""
    run(context, "validate", asked)


@fleet.command(cls=Command, groups=GROUPS)
@run_options
@click.option(
    "--waves", metavar="SIZES", help="Sizes of the waves, where devices are handed over (default 1,5%,25%,100%)."
)
@click.option("--check", is_flag=True, help="Hand nothing over; show what would be done with each named device.")
@click.pass_context
def handover(context: click.Context, /, **asked: Any) -> None:
    """Check that every host is fit for its next tenant, or hand named devices over.

    Validates in full and looks for what the last tenant left; an unknown result fails. Hosts whose inventory names
    devices or a guest (hosttune_handover) hand them over instead, in waves: erased (hosttune_erase), tested, the
    statement signed on this machine and verified on the host, and only then given back (hosttune_undrain).
    """
    run(context, "handover", asked)


@fleet.command(cls=Command, groups=fleetbetween.PAIR_GROUPS)
@results_option
@fleetbetween.between_options
@click.option("--forks", type=Whole(2, 5000), metavar="N", help="Hosts to ask at once (default 200).")
@click.option("--resume", is_flag=True, help="Continue the last run: measure the pairs that are still unknown.")
@fleetbetween.pair_options
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- ANSIBLE-OPTIONS]")
@click.pass_context
def pairs(context: click.Context, /, **asked: Any) -> None:
    """Measure between hosts, port by port; name the host, port or pair that is slow.

    It loads the network. No host is in two pairs at a time. A host with running guests is not measured unless it is
    named by --disrupt.
    """
    fleetbetween.measure_pairs(context, lambda rest: request_of("pairs", rest), asked)


@fleet.command(cls=Command, groups=fleetbetween.COLLECTIVE_GROUPS)
@results_option
@fleetbetween.between_options
@click.option(
    "--forks", type=Whole(2, 5000), metavar="N", help="Hosts to ask at once, and most of a group (default 200)."
)
@click.option("--resume", is_flag=True, help="Continue the last run: measure the groups that are still unknown.")
@fleetbetween.collective_options
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- ANSIBLE-OPTIONS]")
@click.pass_context
def collective(context: click.Context, /, **asked: Any) -> None:
    """All-reduce and all-gather over 1, 2, 4 … hosts; find the slow host.

    It loads the network and the GPUs. Bus bandwidth is compared with the prediction of this shape and within the fleet;
    where a group is slow, hosts are left out until the slow one is found. A host with running guests is not measured
    unless it is named by --disrupt. No MPI, no scheduler.
    """
    fleetbetween.measure_collective(context, lambda rest: request_of("collective", rest), asked)


@fleet.command(cls=Command, groups=GROUPS)
@run_options
@change_options
@click.pass_context
def revert(context: click.Context, /, **asked: Any) -> None:
    """Restore on every host the values from before hosttune, in waves."""
    run(context, "revert", asked)


@fleet.command(cls=Command)
@answers_option
@click.option("--run", "run_id", metavar="ID", help="The report of this run (default: the last one).")
@click.option("--verb", type=click.Choice(("discover", "plan", "apply", "validate", "handover", "course", "revert")),
              help="Instead of a run: the last answer of each host to this command (course: hand-overs).")  # fmt: skip
@click.option("-i", "--inventory", "inventories", multiple=True, metavar="INVENTORY",
              help="With --verb: the hosts of this inventory instead of those that have answered.")  # fmt: skip
@click.option("--limit", metavar="PATTERN", help="With -i: only these hosts and groups.")
@click.option("--metrics", metavar="FILE",
              help="Also judge hosts by their metrics: the answer of Prometheus' /federate (- is stdin).")  # fmt: skip
@output_option
def report(results: str, run_id: str | None, output: str, **last: Any) -> None:
    """Report on the answers in the results folder. Asks no host.

    Exits with 0 if the report could be made, whatever its verdict: the run itself ended with the verdict's exit code.
    """
    from hosttune.fleet.reporting import report_of_past

    if last["verb"] is None and (last["inventories"] or last["limit"]):
        raise BadInput("a run's hosts are in its record", where="-i", hint="give --verb with it, or leave it out")
    if last["verb"] is None and fleetbetween.show_past(results, run_id, output, last["metrics"]):
        return
    path, metrics = last.pop("metrics"), None
    if path is not None:
        from hosttune.fleet.monitored import read_metrics

        metrics = read_metrics(path)
    if last["verb"] is None:
        fleet_report = report_of_past(results, run_id, metrics)
    else:
        fleet_report = last_answers(results, run_id, metrics, **last)
    show(fleet_report, output, results)


def last_answers(
    results: str, run_id: str | None, metrics: Monitored | None, verb: str, inventories: tuple[str, ...],
    limit: str | None,
) -> FleetReport:  # fmt: skip
    """Return the report of the last answer of each host to a verb. Raises BadInput."""
    from hosttune.fleet.inventory import read_inventory
    from hosttune.fleet.reporting import report_of_last

    if run_id is not None:
        raise BadInput("both --run and --verb", where="command line", hint="a run has its own verb: drop --verb")
    if limit is not None and not inventories:
        raise BadInput("--limit without -i", where="--limit", hint="give the inventory with -i")
    return report_of_last(results, verb, read_inventory(inventories, limit) if inventories else None, metrics)


@fleet.command(cls=Command)
@answers_option
@click.option("--run", "run_id", metavar="ID", help="The medians of this run (default: the last one).")
def floors(results: str, run_id: str | None) -> None:
    """Print the fleet's medians as floors, for validate --fleet."""
    from hosttune.fleet.medians import floors_toml
    from hosttune.fleet.reporting import report_of_past

    fleet_report = report_of_past(results, run_id)
    emit(floors_toml(fleet_report.medians, run=fleet_report.run, at=fleet_report.at))


@fleet.command(cls=Command)
@click.argument("target", metavar="DIR")
def files(target: str) -> None:
    """Write playbooks, example inventories and ansible.cfg into DIR.

    For ansible-playbook by hand, where hosttune comes from a package. DIR must be new.
    """
    from hosttune.fleet.files import write_files

    write_files(target)
    tell(
        f"next: cd {shown(target)} && ansible-playbook playbooks/validate.yml   # the bundled example; changes nothing"
    )


fleet.add_command(fleetbaseline.baseline)
