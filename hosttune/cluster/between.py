"""What the verbs between hosts share: `pairs` and `collective`.

Such a verb lists what hosts have, writes a plan, measures step by step, and makes its report from the hosts' files. A
step is one ansible for its hosts, all at once. A host that gives no answer is asked no more in this run; the others go
on. If the controller dies, ansible ends with it (`launch`), and what hosts have begun ends by its own time limit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from hosttune import __version__
from hosttune.errors import BadInput
from hosttune.fleet import options as handed_on
from hosttune.fleet.answers import has_answer_file, read_answer
from hosttune.fleet.inventory import Inventory, read_inventory, tool
from hosttune.fleet.playbook import PlaybookOrder, Played, Stop, TaskEvent, play, playbook
from hosttune.fleet.record import Ended, Line, Members, Resumed, RunBegun, Stopped, encode, new_run
from hosttune.fleet.results import held, read_file, replace_file
from hosttune.fleet.rollout import INTERRUPTED, shards
from hosttune.fleet.run import FleetRequest, check_request, interruptible, order_of, past_of, with_recorded_request
from hosttune.journal.jsonlines import JsonLines
from hosttune.model.clock import now_text
from hosttune.model.jsontext import typed_json
from hosttune.model.listing import some
from hosttune.model.text import count
from hosttune.model.values import Value, to_json

DEFAULT_MOST_HOSTS = 200  # hosts at once: a step ends with its slowest host, and each costs the controller a process
_WINDOW = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])")
Player = Callable[[PlaybookOrder, Callable[[TaskEvent], None], Stop], Played]


class BetweenPlan(Value, frozen=True, kw_only=True):
    """A plan of a verb between hosts: the file FILE of the results folder, of the schema SCHEMA."""

    FILE: ClassVar[str]
    SCHEMA: ClassVar[str]
    schema: str
    run: str
    at: str
    options: Value

    def contradiction(self) -> str | None:
        """Return what in it contradicts itself, as of a file that was changed; None if nothing does."""
        raise NotImplementedError


class BetweenReport(Protocol):
    """What every report of a verb between hosts has."""

    @property
    def check(self) -> bool:
        """Whether nothing was measured."""

    @property
    def verdict(self) -> str:
        """pass, warn, fail or unknown."""


OptionsT = TypeVar("OptionsT", bound=Value)
PlanT = TypeVar("PlanT", bound=BetweenPlan)
ReportT = TypeVar("ReportT", bound=BetweenReport)


class BetweenRequest(msgspec.Struct, Generic[OptionsT], frozen=True):
    """What the command line asks for. `given`: the options of measuring that were given, for a run that is resumed.

    `disrupt`: hosts that are measured though guests run. `window`: HH:MM-HH:MM, when a step may begin, local time.
    """

    base: FleetRequest
    options: OptionsT
    given: Mapping[str, object] = msgspec.field(default_factory=dict)
    disrupt: tuple[str, ...] = ()
    window: str | None = None


class EndedRun(msgspec.Struct, Generic[ReportT], frozen=True):
    """A run that has ended."""

    report: ReportT
    stopped: str | None = None

    @property
    def exit_code(self) -> int:
        """0: pass or warn, or only planned; 1: anything else; 130: interrupted."""
        if self.stopped == INTERRUPTED:
            return 130
        planned = self.report.check and self.stopped is None
        return 0 if planned or (self.report.verdict in ("pass", "warn") and self.stopped is None) else 1


class CurrentRun(msgspec.Struct, Generic[OptionsT]):
    """A run in progress. `lost`: hosts that gave no answer, and why."""

    verb: str
    run: str
    asked: BetweenRequest[OptionsT]
    order: PlaybookOrder
    stop: Stop
    player: Player
    tell: Callable[[str], None]
    clock: Callable[[], datetime]
    lost: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def results(self) -> str:
        """The folder of results."""
        return self.order.results

    @property
    def most_hosts(self) -> int:
        """The most hosts that are asked at once."""
        return max(2, self.asked.base.forks or DEFAULT_MOST_HOSTS)

    def list_hosts(self, record: str, hosts: Sequence[str], what: str, **variables: object) -> str | None:
        """Ask every host for its list, many at once. `what` is listed. Returns why the run cannot go on, or None."""
        for shard in shards(hosts, self.most_hosts):
            self.tell(f"{self.verb}: {what} of {count(len(shard), 'host')}")
            played = self._ask(record, shard, variables)
            answers = (read_answer(self.results, host, record, self.run) for host in shard)
            stopped = self._why_stopped(played, answered=any(map(has_answer_file, answers)))
            if stopped is not None:
                return stopped
        return None

    def no_time(self, seconds: float) -> str | None:
        """Return why no step of so many seconds may begin now; None if it may."""
        if self.stop.asked:
            return INTERRUPTED
        if in_window(self.asked.window, self.clock(), seconds):
            return None
        return f"the time window {self.asked.window} does not leave time for the next step"

    def measure(
        self, record: str, jobs: Mapping[str, object], seconds: float, words: str, **variables: object
    ) -> str | None:
        """Let hosts do their jobs, all at once, for at most so many seconds. `words` say what the step is.

        A host that does not answer with ok is lost. Returns why the run cannot go on, or None.
        """
        self.tell(f"{self.verb}: {words}")
        played = self._ask(record, tuple(jobs), {f"{self.verb}_jobs": jobs, "timeout": seconds, **variables})
        answers = [read_answer(self.results, host, record, self.run) for host in jobs]
        for host, answer in zip(jobs, answers, strict=True):
            if answer.outcome != "ok":
                self.lost[host] = answer.why or answer.outcome
                self.tell(f"{self.verb}: {host}: {answer.outcome}: {answer.why}; it is asked no more")
        return self._why_stopped(played, answered=any(map(has_answer_file, answers)))

    def _why_stopped(self, played: Played, *, answered: bool) -> str | None:
        """Return why a run cannot go on after hosts were asked; None if it can. `answered`: any of them did."""
        if played.stopped:
            return INTERRUPTED
        return None if answered else played.why_unanswered(self.results)

    def _ask(self, record: str, hosts: Sequence[str], variables: Mapping[str, object]) -> Played:
        named = {f"hosttune_{name}": value for name, value in variables.items() if value is not None}
        named = {**self.order.variables, f"hosttune_{self.verb}_record": record, **named}
        order = replace(self.order, hosts=tuple(hosts), forks=len(hosts), variables=named)
        return self.player(order, lambda event: None, self.stop)


class Verb(msgspec.Struct, Generic[OptionsT, PlanT, ReportT], frozen=True):
    """One verb. `planned`: lists these hosts and plans; `measured`: measures; both return (why it stopped, the plan).

    `report`: (results, plan, check=, stopped=) → the report, from the hosts' files.
    """

    name: str
    plan: type[PlanT]
    planned: Callable[[CurrentRun[OptionsT], Sequence[str]], tuple[str | None, PlanT]]
    measured: Callable[[CurrentRun[OptionsT], PlanT], tuple[str | None, PlanT]]
    report: Callable[..., ReportT]


def run_between(
    verb: Verb[OptionsT, PlanT, ReportT],
    asked: BetweenRequest[OptionsT],
    tell: Callable[[str], None],
    *,
    player: Player = play,
    clock: Callable[[], datetime] = datetime.now,
    reader: Callable[..., Inventory] = read_inventory,
) -> EndedRun[ReportT]:
    """Measure between the hosts of an inventory. `tell` gets a line a step. Raises BadInput and Refused."""
    request = asked.base
    check_request(request)
    if asked.window is not None and _WINDOW.fullmatch(asked.window) is None:
        raise BadInput(f"{asked.window!r} is no time window", where="--window", hint="write HH:MM-HH:MM")
    past = past_of(request)
    if past is not None:
        request = with_recorded_request(request, past)
    order = order_of(request)
    tool("ansible-playbook")
    playbook(order)
    inventory = reader(request.inventories, request.limit, handed_on.vault(request.options))
    if inventory.left_out:
        tell(inventory.told_left_out())
    unknown = sorted(set(asked.disrupt) - set(inventory.hosts))
    if unknown:
        raise BadInput(f"no host {unknown[0]!r} in this run", where="--disrupt", hint="name hosts of the inventory")
    if past is not None:
        # the report would not have the new ones
        new = sorted(set(inventory.hosts).difference(*past.members.values()))
        if past.whole and new:
            raise BadInput(f"the run began without {some(new, 5)}", where="--inventory", hint="begin a new run")
    with held(order.results) as journal, interruptible() as stop:
        run = past.run if past is not None else new_run()
        order = replace(order, check=False, variables={**order.variables, "hosttune_run": run})
        current = CurrentRun(verb.name, run, asked, order, stop, player, tell, clock)
        plan = _plan_of_past(verb, current) if past is not None else None
        again = [Resumed(run=run, at=now_text(), how="resume")]
        for line in again if past is not None else _opening(request, inventory, run):
            journal.add(encode(line))
        journal.sync()
        return _carried_out(verb, current, plan, inventory, journal)


def _opening(request: FleetRequest, inventory: Inventory, run: str) -> Iterator[Line]:
    """Yield the first lines of a new run in the record."""
    yield RunBegun(
        run=run,
        at=now_text(),
        verb=request.verb,
        version=__version__,
        hosts=len(inventory.hosts),
        check=request.check,
        inventory=request.inventories,
        limit=request.limit,
    )
    yield Members(run=run, wave=1, hosts=inventory.hosts)


def _plan_of_past(verb: Verb[OptionsT, PlanT, ReportT], current: CurrentRun[OptionsT]) -> PlanT | None:
    """Return the plan of the run to be resumed; None if it ended before. Raises BadInput for other options."""
    plan = read_plan(current.results, verb.plan, current.run)
    for name, value in current.asked.given.items() if plan is not None else ():
        then = getattr(plan.options, name) if plan is not None else None
        if value != then:
            hint = "leave it out, or begin a new run"
            raise BadInput(f"the run began with {name} {then}", where=f"--{name}", hint=hint)
    return plan


def _carried_out(
    verb: Verb[OptionsT, PlanT, ReportT],
    current: CurrentRun[OptionsT],
    plan: PlanT | None,
    inventory: Inventory,
    journal: JsonLines,
) -> EndedRun[ReportT]:
    """List hosts and plan, unless there is a plan; measure; record the end."""
    check, stopped = current.asked.base.check, None
    if plan is None:
        stopped, plan = verb.planned(current, inventory.hosts)
        if stopped is None and not check:  # a plan of some hosts only would be all that a resumed run measures
            write_plan(current.results, plan)
    if stopped is None and not check:
        stopped, plan = verb.measured(current, plan)
    done = EndedRun(verb.report(current.results, plan, check=check, stopped=stopped), stopped)
    if stopped is not None:
        journal.add(encode(Stopped(run=current.run, at=now_text(), why=stopped)))
    journal.add(encode(Ended(run=current.run, at=now_text(), exit_code=done.exit_code)))
    return done


def in_window(window: str | None, at: datetime, seconds: float) -> bool:
    """Whether so many seconds from `at` fit into a window of each day, HH:MM-HH:MM, which may include midnight."""
    match = _WINDOW.fullmatch(window) if window is not None else None
    if match is None:
        return True
    begin, end = (int(match[i]) * 3600 + int(match[i + 1]) * 60 for i in (1, 3))
    since = (at.hour * 3600 + at.minute * 60 + at.second - begin) % 86400
    return since + seconds <= ((end - begin) % 86400 or 86400)


# --- the plan --------------------------------------------------------------------------------------------------


def read_plan(results: str, kind: type[PlanT], run: str) -> PlanT | None:
    """Return the plan of a run; None if it has none there. Raises BadInput if it cannot be read."""
    path = os.path.join(results, kind.FILE)
    data = read_file(path)
    if data is None:
        return None
    try:
        plan = typed_json(data, kind)
    except BadInput as error:
        raise BadInput(f"the plan cannot be read: {error.what}", where=path, hint="begin a new run") from error
    if plan.run != run or plan.schema != kind.SCHEMA:
        return None
    if (why := plan.contradiction()) is not None:
        raise BadInput(f"the plan contradicts itself: {why}", where=path, hint="begin a new run")
    return plan


def write_plan(results: str, plan: BetweenPlan) -> None:
    """Write the plan whole. Raises BadInput if it cannot be written."""
    replace_file(os.path.join(results, plan.FILE), to_json(plan).encode())


def report_of_past(verb: Verb[OptionsT, PlanT, ReportT], results: str, run: str) -> ReportT:
    """Return the report of a run from its plan and files. Raises BadInput if it has no plan there."""
    plan = read_plan(results, verb.plan, run)
    if plan is None:
        raise BadInput(f"no plan of the run {run}", where=os.path.join(results, verb.plan.FILE), hint="begin a new run")
    return verb.report(results, plan)
