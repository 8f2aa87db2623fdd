"""`fleet pairs` and `fleet collective`: their options, and the one call of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from hosttune.cli.commands import Number, Whole, progress, with_options
from hosttune.cli.fleetrun import inventory_options
from hosttune.cli.output import FORMATS, emit_report, exiting, shown, tell, write
from hosttune.errors import BadInput
from hosttune.model.values import Value, parse_size

if TYPE_CHECKING:
    from hosttune.cluster.between import EndedRun
    from hosttune.fleet.run import FleetRequest
    from hosttune.report.blocks import Report

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


def end(context: click.Context, done: EndedRun[Any], output: str, draw: Callable[[Any], Report]) -> None:
    """Print the report of a run, and why it stopped, and exit with its exit code."""
    with exiting(context, done.exit_code):
        emit_report(done.report, output, draw)
        if done.stopped is not None:
            write(shown(f"stopped: {done.stopped}"))
            tell("the same command with --resume continues from here")


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
    from hosttune.cluster.between import report_of_past

    if verb == "pairs":
        from hosttune.cluster.pairruns import PAIRS
        from hosttune.report.pairs import pairs_report

        emit_report(report_of_past(PAIRS, results, past.run), output, pairs_report)
    else:
        from hosttune.cluster.collectiveruns import COLLECTIVE
        from hosttune.report.collective import collective_report

        emit_report(report_of_past(COLLECTIVE, results, past.run), output, collective_report)
    return True


# --- pairs ------------------------------------------------------------------------------------------------

PAIR_GROUPS = {
    "Which hosts": ("--inventory", "--limit", "--disrupt", "--resume"),
    "What": ("--tool", "--against", "--floor", "--rounds", "--no-gpu", "--check", "-e"),
    "Limits": ("--seconds", "--rate", "--streams", "--together", "--window", "--port", "--wait", "--forks"),
    "Output": ("--results", "--output"),
}


# The options that only `fleet pairs` has. Those of measuring have the names of PairsOptions' fields.
pair_options = with_options(
    click.option("--tool", type=click.Choice(("tcp", "rdma")), help="iperf3 (tcp, the default) or ib_write_bw."),
    click.option("--seconds", type=Whole(1, 600), metavar="N", help="Duration of a measurement (default 5)."),
    click.option("--rate", "rate_gbps", type=Number(0.001, 10000), metavar="GBITS",
                 help="Send at most this, in Gb/s. No pair then proves a port's full rate."),
    click.option("--streams", type=Whole(1, 64), metavar="N", help="TCP streams or queue pairs (default 1)."),
    click.option("--rounds", type=Whole(1, 10000), metavar="N",
                 help="At most this many rounds (default: all pairs up to 32 hosts, 8 above)."),
    click.option("--floor", type=Number(0.01, 1), metavar="PART",
                 help="A figure below this part of it is low (default 0.9)."),
    click.option("--against", type=click.Choice(("rate", "median", "both")),
                 help="Compare with the port's active rate, the fleet's median, or both (default)."),
    click.option("--no-gpu", "gpu", is_flag=True, flag_value=False, default=None,
                 help="Measure with host memory only (default for rdma: with GPU memory, too, where possible)."),
    click.option("--together", is_flag=True, default=None, help="All ports of a host at once, not one by one."),
    click.option("--port", type=Whole(1024, 65400), metavar="N", help="First TCP port of servers (default 5201)."),
    click.option("--wait", type=Whole(1, 600), metavar="SECONDS", help="How long a sender tries to connect."),
    click.option("--check", is_flag=True, help="Only list ports and plan rounds; say how long they would take."),
)  # fmt: skip


def measure_pairs(
    context: click.Context, base: Callable[[dict[str, Any]], FleetRequest], asked: dict[str, Any]
) -> None:
    """Measure and exit with the exit code. `base` makes the request of what all verbs have. Raises BadInput."""
    from hosttune.cluster.between import run_between
    from hosttune.cluster.pairplan import PairsOptions
    from hosttune.cluster.pairruns import PAIRS, PairsRequest
    from hosttune.report.pairs import pairs_report

    output = asked.pop("output")
    given = taken(asked, PairsOptions)
    if "against" in given:
        given["against"] = ("rate", "median") if given["against"] == "both" else (given["against"],)
    if asked["resume"] and "rounds" in given:
        raise BadInput("the rounds of a run are in its plan", where="--rounds", hint="leave it out, or begin a new run")
    own = {name: asked.pop(name) for name in ("disrupt", "window")}
    request = PairsRequest(base(asked), PairsOptions(**given), given, own["disrupt"], own["window"])
    end(context, run_between(PAIRS, request, progress()), output, pairs_report)


# --- collective -------------------------------------------------------------------------------------------

COLLECTIVE_GROUPS = {
    "Which hosts": ("--inventory", "--limit", "--disrupt", "--resume"),
    "What": ("--on", "--kind", "--size", "--gpus", "--from", "--to", "--python", "--check", "-e"),
    "Judging": ("--against", "--floor", "--least"),
    "Limits": ("--seconds", "--one-group", "--window", "--port", "--wait", "--forks"),
    "Output": ("--results", "--output"),
}
_MOST_SIZES = 12


# The options that only `fleet collective` has. Those of measuring have the names of CollectiveOptions' fields.
collective_options = with_options(
    click.option("--on", "device", type=click.Choice(("gpu", "cpu")),
                 help="NCCL or RCCL on GPUs (default), or gloo on CPUs: the network without GPUs."),
    click.option("--kind", "kinds", type=click.Choice(("all-reduce", "all-gather")), multiple=True,
                 help="Which collective (repeatable; default both)."),
    click.option("--size", "sizes", multiple=True, metavar="SIZE",
                 help="Bytes of the buffer (repeatable; default 32MiB, 256MiB, 1GiB)."),
    click.option("--gpus", type=Whole(1, 64), metavar="N", help="GPUs of each host (default all)."),
    click.option("--from", "first", type=Whole(1, 5000), metavar="N",
                 help="Hosts of the smallest groups (default 1)."),
    click.option("--to", "last", type=Whole(2, 5000), metavar="N", help="Most hosts of a group (default all)."),
    click.option("--python", metavar="PATH", help="Interpreter on the hosts that has PyTorch."),
    click.option("--against", type=click.Choice(("prediction", "fleet", "both")),
                 help="Compare with the prediction, the fleet's median, or both (default)."),
    click.option("--floor", type=Number(0.01, 1), metavar="PART",
                 help="Part of the fleet's median below which a group is low (default 0.9)."),
    click.option("--least", type=Number(0.000001, 100000), metavar="GB/S",
                 help="Your own floor: less than this between hosts, at the largest size, is low."),
    click.option("--seconds", type=Whole(5, 3600), metavar="N", help="Most that a group measures (default 60)."),
    click.option("--one-group", is_flag=True, default=None, help="One group at a time, not all of a step."),
    click.option("--port", type=Whole(1024, 65400), metavar="N", help="TCP port where hosts meet (default 29500)."),
    click.option("--wait", type=Whole(1, 600), metavar="SECONDS", help="How long hosts of a group wait to meet."),
    click.option("--check", is_flag=True, help="Only list hosts and plan; say how long it would take at most."),
)  # fmt: skip


def measure_collective(
    context: click.Context, base: Callable[[dict[str, Any]], FleetRequest], asked: dict[str, Any]
) -> None:
    """Measure and exit with the exit code. `base` makes the request of what all verbs have. Raises BadInput."""
    from hosttune.cluster.between import run_between
    from hosttune.cluster.collectiveplan import CollectiveOptions
    from hosttune.cluster.collectiveruns import COLLECTIVE, CollectiveRequest
    from hosttune.report.collective import collective_report

    output = asked.pop("output")
    given = taken(asked, CollectiveOptions)
    if "against" in given:
        given["against"] = ("prediction", "fleet") if given["against"] == "both" else (given["against"],)
    if "kinds" in given:
        given["kinds"] = tuple(dict.fromkeys(given["kinds"]))
    if "sizes" in given:
        sizes = sorted({parse_size(text, where="--size") for text in given["sizes"]})
        if len(sizes) > _MOST_SIZES or not all(1 << 10 <= size <= 64 << 30 for size in sizes):
            raise BadInput(f"{len(sizes)} sizes", where="--size", hint=f"at most {_MOST_SIZES}, 1KiB to 64GiB each")
        given["sizes"] = tuple(sizes)
    if given.get("last") is not None and given.get("first", 1) > given["last"]:
        raise BadInput(
            f"--from {given['first']} --to {given['last']}", where="--from", hint="give the smaller one first"
        )
    own = {name: asked.pop(name) for name in ("disrupt", "window")}
    request = CollectiveRequest(base(asked), CollectiveOptions(**given), given, **own)
    end(context, run_between(COLLECTIVE, request, progress()), output, collective_report)
