"""`hosttune fleet collective` as one call: what hosts have, the series of groups, the search, a report.

A step is one ansible for the hosts of its groups, all at once. The plan is written before each step. The others are
grouped without a host that gives no answer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from hosttune.cluster import between, collectiveanswers, collectiveplan
from hosttune.cluster.between import BetweenRequest, CurrentRun, EndedRun, Verb
from hosttune.cluster.collective.groups import most_steps
from hosttune.cluster.collectiveplan import LIST_RECORD, CollectiveOptions, CollectivePlan
from hosttune.fleet.answers import read_document
from hosttune.model.clock import now_text
from hosttune.model.collective import CollectiveReport, Member

CollectiveRequest = BetweenRequest[CollectiveOptions]
CollectiveRun = EndedRun[CollectiveReport]


def _planned(current: CurrentRun[CollectiveOptions], hosts: Sequence[str]) -> tuple[str | None, CollectivePlan]:
    """Ask every host what it has, and plan."""
    options = current.asked.options
    stopped = current.list_hosts(LIST_RECORD, hosts, "GPUs and libraries", python=options.python)
    listed = ((host, *read_document(current.results, host, LIST_RECORD, current.run, Member)) for host in hosts)
    planned = collectiveplan.planned_members(listed, options, frozenset(current.asked.disrupt))
    plan = CollectivePlan(
        run=current.run,
        at=now_text(),
        options=options,
        hosts=planned,
        ranks=collectiveplan.ranks_of(planned, options),
        most_hosts=current.most_hosts,
        cores=os.cpu_count() or 1,
    )
    return stopped, plan


def _measured(current: CurrentRun[CollectiveOptions], plan: CollectivePlan) -> tuple[str | None, CollectivePlan]:
    """Measure step by step until nothing is left."""
    searched = 0
    tried: list[frozenset[str]] = []  # groups that were asked for
    known: collectiveanswers.Known = {}
    while True:
        live = [host for host in plan.names if host not in current.lost]
        step = collectiveanswers.next_step(current.results, plan, live, tried, known)
        if step is None:
            return None, plan
        searched += step.groups[0].purpose == "search"
        if searched > most_steps(len(plan.names)):
            current.tell("collective: the search ends after its most steps; the report names what is left")
            return None, plan
        hosts = sum(len(group.hosts) for group in step.groups)
        stopped = current.no_time(60 * collectiveplan.step_minutes(plan, hosts))
        if stopped is not None:
            return stopped, plan
        plan = msgspec.structs.replace(plan, steps=(*plan.steps, step))
        between.write_plan(current.results, plan)
        # The groups of a step measure all at once.
        made = collectiveplan.tasks(plan, step)
        jobs = {
            host: {
                "task": {name: value for name, value in msgspec.to_builtins(task).items() if value is not None},
                "disrupt": host in current.asked.disrupt,
            }
            for host, task in made.items()
        }
        sizes = "-".join(map(str, sorted({len(group.hosts) for group in step.groups})))
        words = f"step {step.number} ({step.groups[0].purpose}): {len(step.groups)} groups of {sizes} hosts"
        seconds = max(map(collectiveplan.seconds_of, made.values()))
        record = collectiveplan.record_name(step.number)
        stopped = current.measure(record, jobs, seconds, words, python=plan.options.python)
        if stopped is not None:
            return stopped, plan
        tried += [frozenset(group.hosts) for group in step.groups]


COLLECTIVE = Verb("collective", CollectivePlan, _planned, _measured, collectiveanswers.report)
