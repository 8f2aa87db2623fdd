"""`fleet collective`: its options and its one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from hosttune.cli.between import end, show_collective, taken
from hosttune.cli.commands import Number, Whole, progress, with_options
from hosttune.errors import BadInput

if TYPE_CHECKING:
    from hosttune.cluster.collectiveplan import CollectiveOptions
    from hosttune.fleet.run import FleetRequest

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


def run(context: click.Context, base: Callable[[dict[str, Any]], FleetRequest], asked: dict[str, Any]) -> None:
    """Measure and exit with the exit code. `base` makes the request of what all verbs have. Raises BadInput."""
    from hosttune.cluster.collectiveplan import CollectiveOptions
    from hosttune.cluster.collectiveruns import CollectiveRequest, run_collective

    output = asked.pop("output")
    given = measuring(asked, CollectiveOptions)
    if given.get("last") is not None and given.get("first", 1) > given["last"]:
        raise BadInput(
            f"--from {given['first']} --to {given['last']}", where="--from", hint="give the smaller one first"
        )
    own = {name: asked.pop(name) for name in ("disrupt", "window")}
    request = CollectiveRequest(base(asked), CollectiveOptions(**given), given, **own)
    done = run_collective(request, progress())
    end(context, done, output, show_collective)


def measuring(asked: dict[str, Any], kind: type[CollectiveOptions]) -> Mapping[str, Any]:
    """Take the options of measuring that were given out of `asked`, by their names in CollectiveOptions.

    Raises BadInput for sizes that are none.
    """
    from hosttune.model.values import parse_size

    given = taken(asked, kind)
    if "against" in given:
        given["against"] = ("prediction", "fleet") if given["against"] == "both" else (given["against"],)
    if "kinds" in given:
        given["kinds"] = tuple(dict.fromkeys(given["kinds"]))
    if "sizes" in given:
        sizes = sorted({parse_size(text, where="--size") for text in given["sizes"]})
        if len(sizes) > _MOST_SIZES or not all(1 << 10 <= size <= 64 << 30 for size in sizes):
            raise BadInput(f"{len(sizes)} sizes", where="--size", hint=f"at most {_MOST_SIZES}, 1KiB to 64GiB each")
        given["sizes"] = tuple(sizes)
    return given
