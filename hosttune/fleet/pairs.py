"""`hosttune fleet pairs` as one call: ports of all hosts, a plan, its rounds, a report.

A round is carried out in steps: one ansible for the hosts of at most `most_hosts / 2` pairs, all at once. A host that
gives no answer is asked no more in this run; its pairs are unknown, all others go on. If the controller dies, ansible
ends with it (`launch`), and what hosts have begun ends by its own time limit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from hosttune import __version__
from hosttune.errors import BadInput
from hosttune.fleet import options as handed_on
from hosttune.fleet import pairplan
from hosttune.fleet.answers import has_answer_file, read_answer
from hosttune.fleet.inventory import Inventory, read_inventory, tool
from hosttune.fleet.pairplan import PORTS_RECORD, PairsOptions, PairsPlan, PlannedRound
from hosttune.fleet.record import Ended, Line, Members, Resumed, RunBegun, Stopped, encode, new_run, now
from hosttune.fleet.results import held
from hosttune.fleet.rollout import INTERRUPTED
from hosttune.fleet.run import Request, check_request, interruptible, order_of, past_of, with_recorded_request
from hosttune.fleet.runner import Event, Order, Played, Stop, first_error, play, playbook
from hosttune.fleet.waves import shards
from hosttune.jsonlines import JsonLines
from hosttune.model.pairs import PairsReport
from hosttune.pairs.schedule import Pairing, step_seconds, steps

DEFAULT_MOST_HOSTS = 200  # hosts at once: a step ends with its slowest host, and each costs the controller a process
_WINDOW = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])")
Player = Callable[[Order, Callable[[Event], None], Stop], Played]


@dataclass(frozen=True)
class PairsRequest:
    """What the command line asks for. `given`: the options of measuring that were given, for a run that is resumed.

    `disrupt`: hosts that are measured though guests run. `window`: HH:MM-HH:MM, when a step may run, local time.
    """

    base: Request
    options: PairsOptions = field(default_factory=PairsOptions)
    given: Mapping[str, object] = field(default_factory=dict)
    disrupt: tuple[str, ...] = ()
    window: str | None = None


@dataclass(frozen=True)
class PairsRun:
    """A run that has ended."""

    report: PairsReport
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
    """A run in progress. `lost`: hosts that gave no answer, and why."""

    results: str
    order: Order
    stop: Stop
    player: Player
    tell: Callable[[str], None]
    window: str | None
    disrupt: frozenset[str]
    clock: Callable[[], datetime]
    lost: dict[str, str] = field(default_factory=dict)

    def ask(self, record: str, hosts: Sequence[str], **variables: object) -> Played:
        """Ask these hosts, all at once, for one record."""
        named = {
            **self.order.variables,
            "hosttune_pairs_record": record,
            **{f"hosttune_{k}": v for k, v in variables.items()},
        }
        order = replace(self.order, hosts=tuple(hosts), forks=len(hosts), variables=named)
        return self.player(order, lambda event: None, self.stop)


def run_pairs(
    asked: PairsRequest,
    tell: Callable[[str], None],
    *,
    player: Player = play,
    clock: Callable[[], datetime] = datetime.now,
    reader: Callable[..., Inventory] = read_inventory,
) -> PairsRun:
    """Measure between the hosts of an inventory. `tell` gets a line a step. Raises BadInput and Refused."""
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
        course = _Course(order.results, order, stop, player, tell, asked.window, frozenset(asked.disrupt), clock)
        plan = _resumed(asked, course, run) if past is not None else None
        for line in opening(request, inventory, run) if past is None else [Resumed(run=run, at=now(), how="resume")]:
            journal.add(encode(line))
        journal.sync()
        return _carried_out(asked, course, plan, inventory, journal, run)


def check_window(window: str | None) -> None:
    """Check a time window. Raises BadInput."""
    if window is not None and _WINDOW.fullmatch(window) is None:
        raise BadInput(f"{window!r} is no time window", where="--window", hint="write HH:MM-HH:MM")


def check_named(disrupt: Sequence[str], inventory: Inventory) -> None:
    """Check that hosts which may be disrupted are in the inventory. Raises BadInput."""
    unknown = sorted(set(disrupt) - set(inventory.hosts))
    if unknown:
        raise BadInput(f"no host {unknown[0]!r} in this run", where="--disrupt", hint="name hosts of the inventory")


def _carried_out(
    asked: PairsRequest, course: _Course, plan: PairsPlan | None, inventory: Inventory, journal: JsonLines, run: str
) -> PairsRun:
    """List ports and plan, unless there is a plan; measure; record the end."""
    stopped = None
    if plan is None:
        stopped, plan = _planned(asked, course, inventory.hosts, run)
    if stopped is None and not asked.base.check:
        stopped = _measured(course, plan)
        plan = pairplan.read_plan(course.results, run) or plan
    found = pairplan.report(course.results, plan, check=asked.base.check, stopped=stopped)
    if stopped is not None:
        journal.add(encode(Stopped(run=run, at=now(), why=stopped)))
    done = PairsRun(found, stopped)
    journal.add(encode(Ended(run=run, at=now(), exit_code=done.exit_code)))
    return done


def opening(request: Request, inventory: Inventory, run: str) -> list[Line]:
    """Return the first lines of a new run in the record."""
    began = RunBegun(
        run=run,
        at=now(),
        verb=request.verb,
        version=__version__,
        hosts=len(inventory.hosts),
        check=request.check,
        inventory=request.inventories,
        limit=request.limit,
    )
    return [began, Members(run=run, wave=1, hosts=inventory.hosts)]


def _resumed(asked: PairsRequest, course: _Course, run: str) -> PairsPlan | None:
    """Return the plan of the run to be resumed; None if it ended before. Raises BadInput for other options."""
    plan = pairplan.read_plan(course.results, run)
    for name, value in asked.given.items() if plan is not None else ():
        then = getattr(plan.options, name) if plan is not None else None
        if value != then:
            raise BadInput(
                f"the run began with {name} {then}", where=f"--{name}", hint="leave it out, or begin a new run"
            )
    return plan


def _planned(asked: PairsRequest, course: _Course, hosts: Sequence[str], run: str) -> tuple[str | None, PairsPlan]:
    """Ask every host for its ports, and write the plan. Returns (why it stopped, the plan)."""
    most = asked.base.forks or DEFAULT_MOST_HOSTS
    stopped = None
    for shard in shards(hosts, max(2, most)):
        course.tell(f"pairs: ports of {len(shard)} hosts")
        played = course.ask(PORTS_RECORD, shard)
        answered = any(has_answer_file(read_answer(course.results, host, PORTS_RECORD, run)) for host in shard)
        stopped = why_stopped(played, answered)
        if stopped is not None:
            break
    surveyed = ((host, *pairplan.read_ends(course.results, host, PORTS_RECORD, run)) for host in hosts)
    planned = pairplan.planned_hosts(surveyed, asked.options.tool, frozenset(asked.disrupt))
    plan = PairsPlan(
        run=run,
        at=now(),
        options=asked.options,
        hosts=planned,
        rounds=pairplan.planned_rounds(planned, asked.options.rounds),
        most_hosts=max(2, most),
        cores=os.cpu_count() or 1,
    )
    if not asked.base.check:
        pairplan.write_plan(course.results, plan)
    return stopped, plan


def why_stopped(played: Played, answered: bool) -> str | None:
    """Return why a run cannot go on after hosts were asked; None if it can. `answered`: any of them did."""
    if played.stopped:
        return INTERRUPTED
    if not answered:
        return f"ansible contacted no host: {first_error(played.messages) or f'it ended with {played.code}'}"
    return None


def _measured(course: _Course, plan: PairsPlan) -> str | None:
    """Measure all rounds, then those that did not connect the other way round. Returns why it stopped, or None."""
    for planned in plan.rounds:
        stopped = _round(course, plan, planned)
        if stopped is not None:
            return stopped
    more = pairplan.again(course.results, plan)
    if not more:
        return None
    plan = msgspec.structs.replace(plan, rounds=(*plan.rounds, *more))
    pairplan.write_plan(course.results, plan)
    return next((why for planned in more if (why := _round(course, plan, planned)) is not None), None)


def _round(course: _Course, plan: PairsPlan, planned: PlannedRound) -> str | None:
    """Measure the pairs of a round that no file settles. Returns why it stopped, or None."""
    todo = [pair for pair in planned.pairs if not pairplan.settled(course.results, plan, planned, pair)]
    for step in steps(todo, plan.most_hosts):
        live = [pair for pair in step if not course.lost.keys() & set(pair)]
        if not live:
            continue
        if course.stop.asked:
            return INTERRUPTED
        if not in_window(course.window, course.clock(), step_seconds(2 * len(live), plan.measuring, plan.cores)):
            return f"the time window {course.window} does not leave time for the next step"
        stopped = _step(course, plan, planned, live)
        if stopped is not None:
            return stopped
    return None


def _step(course: _Course, plan: PairsPlan, planned: PlannedRound, pairs: Sequence[Pairing]) -> str | None:
    """Let the hosts of these pairs measure, all at once. Returns why the run cannot go on, or None."""
    made: dict[str, dict[str, object]] = {}
    for pair in pairs:
        made.update(pairplan.jobs(plan, pair, course.disrupt, 2 * len(pairs)))
    if not made:
        return None
    of = f"round {planned.number} of {len(plan.rounds)}{' (again, the other way round)' if planned.again else ''}"
    course.tell(f"pairs: {of}: {len(pairs)} pairs")
    limit = max(map(pairplan.seconds_of, made.values()))
    record = pairplan.record_name(planned.number)
    played = course.ask(record, tuple(made), pairs_jobs=made, timeout=limit)
    answers = [read_answer(course.results, host, record, plan.run) for host in made]
    for host, answer in zip(made, answers, strict=True):
        if answer.outcome != "ok":
            course.lost[host] = answer.why or answer.outcome
            course.tell(f"pairs: {host}: {answer.outcome}: {answer.why}; it is asked no more")
    return why_stopped(played, any(map(has_answer_file, answers)))


def in_window(window: str | None, at: datetime, seconds: float) -> bool:
    """Whether so many seconds from `at` fit into a window of each day, HH:MM-HH:MM, which may include midnight."""
    match = _WINDOW.fullmatch(window) if window is not None else None
    if match is None:
        return True
    begin, end = (int(match[i]) * 3600 + int(match[i + 1]) * 60 for i in (1, 3))
    since = (at.hour * 3600 + at.minute * 60 + at.second - begin) % 86400
    return since + seconds <= ((end - begin) % 86400 or 86400)


def report_of_past(results: str, run: str) -> PairsReport:
    """Return the report of a run from its plan and files. Raises BadInput if it has no plan there."""
    plan = pairplan.read_plan(results, run)
    if plan is None:
        raise BadInput(f"no plan of the run {run}", where=os.path.join(results, pairplan.PLAN), hint="begin a new run")
    return pairplan.report(results, plan)
