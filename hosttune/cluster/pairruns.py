"""`hosttune fleet pairs` as one call: ports of all hosts, a plan, its rounds, a report.

A round is carried out in steps: one ansible for the hosts of at most `most_hosts / 2` pairs, all at once. The pairs of
a host that gives no answer are unknown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from hosttune.cluster import between, pairanswers, pairplan
from hosttune.cluster.between import BetweenRequest, CurrentRun, EndedRun, Player, Verb, run_between
from hosttune.cluster.pairplan import PORTS_RECORD, PairsOptions, PairsPlan, PlannedRound
from hosttune.cluster.pairs.schedule import Pairing, step_seconds, steps
from hosttune.fleet.answers import read_document
from hosttune.fleet.inventory import Inventory, read_inventory
from hosttune.fleet.playbook import play
from hosttune.model.clock import now_text
from hosttune.model.pairs import Ends, PairsReport

PairsRequest = BetweenRequest[PairsOptions]
PairsRun = EndedRun[PairsReport]


def run_pairs(
    asked: PairsRequest,
    tell: Callable[[str], None],
    *,
    player: Player = play,
    clock: Callable[[], datetime] = datetime.now,
    reader: Callable[..., Inventory] = read_inventory,
) -> PairsRun:
    """Measure between the hosts of an inventory. `tell` gets a line a step. Raises BadInput and Refused."""
    return run_between(_PAIRS, asked, tell, player=player, clock=clock, reader=reader)


def report_of_past(results: str, run: str) -> PairsReport:
    """Return the report of a run from its plan and files. Raises BadInput if it has no plan there."""
    return between.report_of_past(_PAIRS, results, run)


def _planned(current: CurrentRun[PairsOptions], hosts: Sequence[str]) -> tuple[str | None, PairsPlan]:
    """Ask every host for its ports, and plan rounds."""
    options = current.asked.options
    stopped = current.list_hosts(PORTS_RECORD, hosts, "ports")
    surveyed = ((host, *read_document(current.results, host, PORTS_RECORD, current.run, Ends)) for host in hosts)
    planned = pairplan.planned_hosts(surveyed, options.tool, frozenset(current.asked.disrupt))
    plan = PairsPlan(
        run=current.run,
        at=now_text(),
        options=options,
        hosts=planned,
        rounds=pairplan.planned_rounds(planned, options),
        most_hosts=current.most_hosts,
        cores=os.cpu_count() or 1,
    )
    return stopped, plan


def _measured(current: CurrentRun[PairsOptions], plan: PairsPlan) -> tuple[str | None, PairsPlan]:
    """Measure all rounds, then those that did not connect the other way round."""
    stopped = _rounds(current, plan, plan.rounds)
    more = pairanswers.again(current.results, plan) if stopped is None else ()
    if more:
        plan = msgspec.structs.replace(plan, rounds=(*plan.rounds, *more))
        between.write_plan(current.results, plan)
        stopped = _rounds(current, plan, more)
    return stopped, plan


def _rounds(current: CurrentRun[PairsOptions], plan: PairsPlan, rounds: Sequence[PlannedRound]) -> str | None:
    return next((why for planned in rounds if (why := _round(current, plan, planned)) is not None), None)


def _round(current: CurrentRun[PairsOptions], plan: PairsPlan, planned: PlannedRound) -> str | None:
    """Measure the pairs of a round that no file settles. Returns why it stopped, or None."""
    todo = [pair for pair in planned.pairs if not pairanswers.settled(current.results, plan, planned, pair)]
    for step in steps(todo, plan.most_hosts):
        live = [pair for pair in step if not current.lost.keys() & set(pair)]
        if not live:
            continue
        stopped = current.no_time(step_seconds(2 * len(live), plan.measuring, plan.cores))
        stopped = stopped or _step(current, plan, planned, live)
        if stopped is not None:
            return stopped
    return None


def _step(
    current: CurrentRun[PairsOptions], plan: PairsPlan, planned: PlannedRound, pairs: Sequence[Pairing]
) -> str | None:
    """Let the hosts of these pairs measure, all at once. Returns why the run cannot go on, or None."""
    made = {
        host: job
        for pair in pairs
        for host, job in pairplan.jobs(plan, pair, frozenset(current.asked.disrupt), 2 * len(pairs)).items()
    }
    if not made:
        return None
    of = f"round {planned.number} of {len(plan.rounds)}{' (again, the other way round)' if planned.again else ''}"
    seconds = max(map(pairplan.seconds_of, made.values()))
    return current.measure(pairplan.record_name(planned.number), made, seconds, f"{of}: {len(pairs)} pairs")


_PAIRS = Verb("pairs", PairsPlan, _planned, _measured, pairanswers.report)
