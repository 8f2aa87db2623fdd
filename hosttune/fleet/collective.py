"""`hosttune fleet collective` as one call: what hosts have, the series of groups, the search, a report.

A step is one ansible for the hosts of its groups, all at once. The plan is written before each step. A host that
gives no answer is asked no more in this run, and the others are grouped without it. If the controller dies, ansible
ends with it (`launch`), and what hosts have begun ends by its own time limit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from hosttune.collective.groups import most_steps
from hosttune.errors import BadInput
from hosttune.fleet import collectiveanswers, collectiveplan
from hosttune.fleet import options as handed_on
from hosttune.fleet.answers import has_answer_file, read_answer
from hosttune.fleet.collectiveplan import LIST_RECORD, CollectiveOptions, CollectivePlan, PlannedStep
from hosttune.fleet.inventory import Inventory, read_inventory, tool
from hosttune.fleet.pairs import (
    DEFAULT_MOST_HOSTS,
    Player,
    check_named,
    check_window,
    in_window,
    opening,
    why_stopped,
)
from hosttune.fleet.record import Ended, Resumed, Stopped, encode, new_run, now
from hosttune.fleet.results import held
from hosttune.fleet.rollout import INTERRUPTED
from hosttune.fleet.run import Request, check_request, interruptible, order_of, past_of, with_recorded_request
from hosttune.fleet.runner import Order, Played, Stop, play, playbook
from hosttune.fleet.waves import shards
from hosttune.jsonlines import JsonLines
from hosttune.model.collective import CollectiveReport


@dataclass(frozen=True)
class CollectiveRequest:
    """What the command line asks for. `given`: the options of measuring that were given, for a run that is resumed.

    `disrupt`: hosts that are measured though guests run. `window`: HH:MM-HH:MM, when a step may run, local time.
    """

    base: Request
    options: CollectiveOptions = field(default_factory=CollectiveOptions)
    given: Mapping[str, object] = field(default_factory=dict)
    disrupt: tuple[str, ...] = ()
    window: str | None = None


@dataclass(frozen=True)
class CollectiveRun:
    """A run that has ended."""

    report: CollectiveReport
    stopped: str | None = None

    @property
    def exit_code(self) -> int:
        """0: pass or warn, or only planned; 1: anything else; 130: interrupted."""
        if self.stopped == INTERRUPTED:
            return 130
        planned = self.report.check and self.stopped is None
        return 0 if planned or (self.report.verdict in ("pass", "warn") and self.stopped is None) else 1


@dataclass
class _Course:
    """A run in progress.

    `lost`: hosts that gave no answer. `tried`: groups that were asked for. `known`: their answers.
    """

    results: str
    order: Order
    stop: Stop
    player: Player
    tell: Callable[[str], None]
    asked: CollectiveRequest
    options: CollectiveOptions
    clock: Callable[[], datetime]
    lost: set[str] = field(default_factory=set)
    tried: list[frozenset[str]] = field(default_factory=list)
    known: collectiveanswers.Known = field(default_factory=dict)

    def ask(self, record: str, hosts: Sequence[str], **variables: object) -> Played:
        """Ask these hosts, all at once, for one record."""
        named = {
            **self.order.variables,
            "hosttune_collective_record": record,
            **{f"hosttune_{k}": v for k, v in variables.items()},
        }
        if self.options.python is not None:
            named["hosttune_python"] = self.options.python
        order = replace(self.order, hosts=tuple(hosts), forks=len(hosts), variables=named)
        return self.player(order, lambda event: None, self.stop)


def run_collective(
    asked: CollectiveRequest,
    tell: Callable[[str], None],
    *,
    player: Player = play,
    clock: Callable[[], datetime] = datetime.now,
    reader: Callable[..., Inventory] = read_inventory,
) -> CollectiveRun:
    """Do collectives over the hosts of an inventory. `tell` gets a line a step. Raises BadInput and Refused."""
    request = asked.base
    check_request(request)
    check_window(asked.window)
    past = past_of(request)
    if past is not None:
        request = with_recorded_request(request, past)
    order = order_of(request)
    tool("ansible-playbook")
    playbook(order)
    inventory = reader(request.inventories, request.limit, handed_on.vault(request.options))
    check_named(asked.disrupt, inventory)
    with held(order.results) as journal, interruptible() as stop:
        run = past.run if past is not None else new_run()
        order = replace(order, check=False, variables={**order.variables, "hosttune_run": run})
        course = _Course(order.results, order, stop, player, tell, asked, asked.options, clock)
        plan = _resumed(asked, course, run) if past is not None else None
        course.options = plan.options if plan is not None else asked.options
        for line in opening(request, inventory, run) if past is None else [Resumed(run=run, at=now(), how="resume")]:
            journal.add(encode(line))
        journal.sync()
        return _carried_out(course, plan, inventory, journal, run)


def _carried_out(
    course: _Course, plan: CollectivePlan | None, inventory: Inventory, journal: JsonLines, run: str
) -> CollectiveRun:
    """List hosts and plan, unless there is a plan; measure; record the end."""
    check, stopped = course.asked.base.check, None
    if plan is None:
        stopped, plan = _planned(course, inventory.hosts, run)
    if stopped is None and not check:
        stopped, plan = _measured(course, plan)
    found = collectiveanswers.report(course.results, plan, check=check, stopped=stopped)
    if stopped is not None:
        journal.add(encode(Stopped(run=run, at=now(), why=stopped)))
    done = CollectiveRun(found, stopped)
    journal.add(encode(Ended(run=run, at=now(), exit_code=done.exit_code)))
    return done


def _resumed(asked: CollectiveRequest, course: _Course, run: str) -> CollectivePlan | None:
    """Return the plan of the run to be resumed; None if it ended before. Raises BadInput for other options."""
    plan = collectiveplan.read_plan(course.results, run)
    for name, value in asked.given.items() if plan is not None else ():
        then = getattr(plan.options, name) if plan is not None else None
        if value != then:
            hint = "leave it out, or begin a new run"
            raise BadInput(f"the run began with {name} {then}", where=f"--{name}", hint=hint)
    return plan


def _planned(course: _Course, hosts: Sequence[str], run: str) -> tuple[str | None, CollectivePlan]:
    """Ask every host what it has, and write the plan. Returns (why it stopped, the plan)."""
    options, most = course.asked.options, max(2, course.asked.base.forks or DEFAULT_MOST_HOSTS)
    stopped = None
    for shard in shards(hosts, most):
        course.tell(f"collective: what {len(shard)} hosts have")
        played = course.ask(LIST_RECORD, shard)
        answered = any(has_answer_file(read_answer(course.results, host, LIST_RECORD, run)) for host in shard)
        stopped = why_stopped(played, answered)
        if stopped is not None:
            break
    listed = ((host, *collectiveanswers.read_member(course.results, host, LIST_RECORD, run)) for host in hosts)
    planned = collectiveplan.planned_members(listed, options, frozenset(course.asked.disrupt))
    plan = CollectivePlan(
        run=run,
        at=now(),
        options=options,
        hosts=planned,
        ranks=collectiveplan.ranks_of(planned, options),
        most_hosts=most,
    )
    if not course.asked.base.check:
        collectiveplan.write_plan(course.results, plan)
    return stopped, plan


def _measured(course: _Course, plan: CollectivePlan) -> tuple[str | None, CollectivePlan]:
    """Measure step by step until nothing is left. Returns (why it stopped or None, the plan with its steps)."""
    searched = 0
    while True:
        live = [host for host in plan.names if host not in course.lost]
        step = collectiveanswers.next_step(course.results, plan, live, course.tried, course.known)
        if step is None:
            return None, plan
        searched += step.groups[0].purpose == "search"
        if searched > most_steps(len(plan.names)):
            course.tell("collective: the search ends after its most steps; the report names what is left")
            return None, plan
        if course.stop.asked:
            return INTERRUPTED, plan
        hosts = sum(len(group.hosts) for group in step.groups)
        if not in_window(course.asked.window, course.clock(), 60 * collectiveplan.step_minutes(plan, hosts)):
            return f"the time window {course.asked.window} does not leave time for the next step", plan
        plan = msgspec.structs.replace(plan, steps=(*plan.steps, step))
        collectiveplan.write_plan(course.results, plan)
        stopped = _step(course, plan, step)
        if stopped is not None:
            return stopped, plan


def _step(course: _Course, plan: CollectivePlan, step: PlannedStep) -> str | None:
    """Let the groups of a step measure, all at once. Returns why the run cannot go on, or None."""
    made = collectiveplan.tasks(plan, step)
    sizes = sorted({len(group.hosts) for group in step.groups})
    what = "search" if step.groups[0].purpose == "search" else "series"
    course.tell(
        f"collective: step {step.number} ({what}): {len(step.groups)} groups of {'-'.join(map(str, sizes))} hosts"
    )
    jobs = {
        host: {
            "task": {name: value for name, value in msgspec.to_builtins(task).items() if value is not None},
            "disrupt": host in course.asked.disrupt,
        }
        for host, task in made.items()
    }
    limit = max(map(collectiveplan.seconds_of, made.values()))
    played = course.ask(collectiveplan.record_name(step.number), tuple(made), collective_jobs=jobs, timeout=limit)
    answers = [read_answer(course.results, host, collectiveplan.record_name(step.number), plan.run) for host in made]
    for host, answer in zip(made, answers, strict=True):
        if answer.outcome != "ok":
            course.lost.add(host)
            course.tell(f"collective: {host}: {answer.outcome}: {answer.why}; it is asked no more")
    course.tried += [frozenset(group.hosts) for group in step.groups]
    return why_stopped(played, any(map(has_answer_file, answers)))


def report_of_past(results: str, run: str) -> CollectiveReport:
    """Return the report of a run from its plan and files. Raises BadInput if it has no plan there."""
    plan = collectiveplan.read_plan(results, run)
    if plan is None:
        path = os.path.join(results, collectiveplan.PLAN)
        raise BadInput(f"no plan of the run {run}", where=path, hint="begin a new run")
    return collectiveanswers.report(results, plan)
