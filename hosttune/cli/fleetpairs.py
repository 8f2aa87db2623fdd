"""`fleet pairs`: its options and its one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from hosttune.cli.between import end, show_pairs, taken
from hosttune.cli.commands import Number, Whole, progress, with_options
from hosttune.errors import BadInput

if TYPE_CHECKING:
    from hosttune.cluster.pairplan import PairsOptions
    from hosttune.fleet.run import FleetRequest

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


def run(context: click.Context, base: Callable[[dict[str, Any]], FleetRequest], asked: dict[str, Any]) -> None:
    """Measure and exit with the exit code. `base` makes the request of what all verbs have. Raises BadInput."""
    from hosttune.cluster.pairplan import PairsOptions
    from hosttune.cluster.pairruns import PairsRequest, run_pairs

    output = asked.pop("output")
    given = measuring(asked, PairsOptions)
    if asked["resume"] and "rounds" in given:
        raise BadInput("the rounds of a run are in its plan", where="--rounds", hint="leave it out, or begin a new run")
    own = {name: asked.pop(name) for name in ("disrupt", "window")}
    request = PairsRequest(base(asked), PairsOptions(**given), given, own["disrupt"], own["window"])
    done = run_pairs(request, progress())
    end(context, done, output, show_pairs)


def measuring(asked: dict[str, Any], kind: type[PairsOptions]) -> Mapping[str, Any]:
    """Take the options of measuring that were given out of `asked`, by their names in PairsOptions."""
    given = taken(asked, kind)
    if "against" in given:
        given["against"] = ("rate", "median") if given["against"] == "both" else (given["against"],)
    return given
