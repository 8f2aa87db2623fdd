"""The plan of a run of `collective`: its hosts, its groups step by step, and from the hosts' files the report.

RESULTS/collective-plan.json is written whole before each step. What became of a group is only in its hosts' files of
that step, RESULTS/HOST/collective-NNN.json. So a report can be made, and a run resumed, whenever it ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from hosttune.cluster.between import BetweenPlan
from hosttune.cluster.collective.groups import counts
from hosttune.cluster.collective.judging import FLOOR
from hosttune.cluster.pairs.schedule import START_SECONDS, step_seconds
from hosttune.fleet.membership import Planned, groups_of_known_hosts, unanswered, with_guests, without_mistaken
from hosttune.model.collective import Device, Kind, Member, Purpose, Task
from hosttune.model.fleet import Answer
from hosttune.model.text import count
from hosttune.model.values import Value
from hosttune.predicting.formulas import SMALL_BYTES

LIST_RECORD = "collective-hosts"
SIZES = (SMALL_BYTES, 256 << 20, 1 << 30)
KINDS: tuple[Kind, ...] = ("all-reduce", "all-gather")
_MOST_RANKS = 64  # of a host
_COMMAND_SECONDS = 30  # of the command itself, besides waiting and measuring


class CollectiveOptions(Value, frozen=True, kw_only=True):
    """How a run measures. `seconds`: the most that a group measures; `wait`: that its hosts wait for each other.

    `python`: the interpreter on the hosts that has PyTorch; None: hosttune's own. `gpus`: of each host that take
    part, None: all that PyTorch sees; on the CPU so many processes. `first` and `last`: the fewest and most hosts of
    a group. `one_group`: one at a time. `least`: GB/s, the operator's own floor.
    """

    device: Device = "gpu"
    python: str | None = None
    kinds: tuple[Kind, ...] = KINDS
    sizes: tuple[int, ...] = SIZES
    gpus: int | None = None
    first: int = 1
    last: int | None = None
    runs: int = 5
    seconds: int = 60
    wait: int | None = None
    port: int = 29500
    one_group: bool = False
    floor: float = FLOOR
    least: float | None = None
    against: tuple[str, ...] = ("prediction", "fleet")


class PlannedMember(Planned, frozen=True, kw_only=True):
    """A host of the plan, with what it said of itself."""

    member: Member | None = None


class PlannedGroup(Value, frozen=True, kw_only=True):
    """Hosts that do collectives together, the first one where the others meet."""

    purpose: Purpose
    hosts: tuple[str, ...]


class PlannedStep(Value, frozen=True, kw_only=True):
    """A step: groups that measure at once, without a common host."""

    number: int
    groups: tuple[PlannedGroup, ...]


class CollectivePlan(BetweenPlan, frozen=True, kw_only=True):
    """A run of `collective`. `ranks`: on each host. `most_hosts`: asked at once; `cores`: of the controller."""

    FILE = "collective-plan.json"
    SCHEMA = "hosttune.cluster.collective-plan/v1"
    schema: str = SCHEMA
    options: CollectiveOptions
    hosts: tuple[PlannedMember, ...]
    ranks: int = 1
    steps: tuple[PlannedStep, ...] = ()
    most_hosts: int = 200
    cores: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts that can be in groups, in the order of the inventory."""
        return tuple(member.host for member in self.hosts if member.outcome == "ok")

    @property
    def members(self) -> Mapping[str, Member]:
        """What the hosts that can be in groups said of themselves."""
        return {
            planned_member.host: planned_member.member
            for planned_member in self.hosts
            if planned_member.outcome == "ok" and planned_member.member is not None
        }

    @property
    def first(self) -> int:
        """The fewest hosts of a group: one host with one rank has no collective."""
        return max(self.options.first, 1 if self.ranks > 1 else 2)

    @property
    def last(self) -> int:
        """The most hosts of a group."""
        return min(len(self.names), self.most_hosts, self.options.last or len(self.names))

    def contradiction(self) -> str | None:
        """Return what in it contradicts itself; None if nothing does."""
        if len({member.host for member in self.hosts}) != len(self.hosts):
            return "a host is there twice"
        if len({step.number for step in self.steps}) != len(self.steps) or not all(step.groups for step in self.steps):
            return "a step is there twice, or without groups"
        if not 1 <= self.ranks <= _MOST_RANKS or self.most_hosts < 2 or not self.options.sizes:
            return f"{self.ranks} ranks, {self.most_hosts} hosts at once, {len(self.options.sizes)} sizes"
        if self.cores < 1:
            return f"{self.cores} cores"
        reasons = (groups_of_known_hosts((g.hosts for g in step.groups), self.members) for step in self.steps)
        return next((why for why in reasons if why is not None), None)

    def wait(self, hosts: int) -> int:
        """Return how long the hosts of a step wait: ansible reaches the last one later than the first."""
        return self.options.wait if self.options.wait is not None else min(600, 30 + hosts // 5)


# --- planning ------------------------------------------------------------------------------------------------


def planned_members(
    listed: Iterable[tuple[str, Answer, Member | None]], options: CollectiveOptions, disrupt: frozenset[str]
) -> tuple[PlannedMember, ...]:
    """Return the hosts, and why some are not measured. `listed`: host, its answer, its document.

    Hosts of a group must be alike: the same versions and number of GPUs as most hosts have.
    """
    planned = [_planned(host, answer, member, options, disrupt) for host, answer, member in listed]
    addresses = {
        planned_member.host: [address]
        for planned_member in planned
        if (address := _address(planned_member.member)) is not None
    }
    said = {
        planned_member.host: planned_member.member.host if planned_member.member is not None else None
        for planned_member in planned
    }
    members: Sequence[PlannedMember] = without_mistaken(planned, addresses, said)
    if options.device == "gpu" and options.gpus is None:
        members = _alike(
            members, "gpus", lambda member: member.library.gpus if member.library else None, "GPUs that PyTorch sees"
        )
    return tuple(
        _alike(members, "version", lambda member: member.library.words if member.library else None, "libraries")
    )


def _planned(
    host: str, answer: Answer, member: Member | None, options: CollectiveOptions, disrupt: frozenset[str]
) -> PlannedMember:
    if member is None or answer.outcome != "ok":
        outcome, why = unanswered(answer)
        return PlannedMember(host=host, outcome=outcome, why=why)
    outcome, why = "ok", ""
    gpus = member.library.gpus if member.library is not None else 0
    needed = options.gpus or 1
    if member.library is None or member.library.torch is None:
        outcome, why = "not-installed", "; ".join(member.notes) or "no PyTorch"
    elif member.guests != () and host not in disrupt:
        outcome, why = "refused", with_guests(host, member.guests)
    elif options.device == "gpu" and (gpus < needed or member.library.nccl is None):
        outcome = "no-gpus"
        seen = f"PyTorch ({member.library.made_for}) sees {gpus} GPUs of {member.gpus_present}"
        why = f"{seen}, {needed} or more are needed"
    elif _address(member) is None:
        outcome, why = "no-address", "; ".join(("no address where others can meet it", *member.notes))
    return PlannedMember(host=host, outcome=outcome, why=why or None, member=member)


def _address(member: Member | None) -> str | None:
    return member.place.address if member is not None and member.place is not None else None


def _alike(
    hosts: Sequence[PlannedMember], what: str, fact: Callable[[Member], Hashable], words: str
) -> list[PlannedMember]:
    """Return the hosts, those with another fact than most others not to be measured."""
    values = {
        planned_member.host: fact(planned_member.member)
        for planned_member in hosts
        if planned_member.outcome == "ok" and planned_member.member is not None
    }
    if len(set(values.values())) < 2:
        return list(hosts)
    counted = Counter(values.values())
    (most, number), (_, second) = counted.most_common(2)
    if number == second:  # no majority: the first host in the inventory decides, and it is said
        most = next(iter(values.values()))
    made = []
    for member in hosts:
        if member.host in values and values[member.host] != most:
            why = f"{words}: {values[member.host]}, and {most} on {count(counted[most], 'host')}"
            member = replace(member, outcome=f"other-{what}", why=why)
        made.append(member)
    return made


def ranks_of(hosts: Sequence[PlannedMember], options: CollectiveOptions) -> int:
    """Return how many ranks each host has: the GPUs that are asked for, or that all hosts have; on the CPU 1."""
    if options.gpus is not None or options.device == "cpu":
        return options.gpus or 1
    seen = [
        planned_member.member.library.gpus
        for planned_member in hosts
        if planned_member.outcome == "ok" and planned_member.member and planned_member.member.library
    ]
    return min(seen, default=1)


def at_once(groups: Sequence[PlannedGroup], most: int, hosts: int) -> list[PlannedGroup]:
    """Return the first groups, at most so many with at most so many hosts; the others come in a later step."""
    made: list[PlannedGroup] = []
    for group in groups[:most]:
        if made and sum(len(planned_group.hosts) for planned_group in made) + len(group.hosts) > hosts:
            break
        made.append(group)
    return made


def tasks(plan: CollectivePlan, step: PlannedStep) -> dict[str, Task]:
    """Return the task of each host of a step."""
    options, members = plan.options, plan.members
    wait = plan.wait(sum(len(group.hosts) for group in step.groups))
    made = {}
    for number, group in enumerate(step.groups):
        places = [members[host].place for host in group.hosts]
        first = members[group.hosts[0]]
        for index, host in enumerate(group.hosts):
            place = places[index]
            made[host] = Task(
                group=group_name(plan.run, step.number, number),
                hosts=group.hosts,
                index=index,
                machines=tuple(members[name].machine for name in group.hosts) if index == 0 else (),
                address=str(places[0].address if places[0] else None),
                port=options.port,
                own=str(place.address if place else None),
                interface=place.interface if place else None,
                ranks=plan.ranks,
                kinds=options.kinds,
                sizes=options.sizes,
                device=options.device,
                library=first.library.words if first.library else None,
                runs=options.runs,
                seconds=options.seconds,
                wait=wait,
            )
    return made


def group_name(run: str, step: int, number: int) -> str:
    """Return the name of a group, which no other one has."""
    return f"{run}/{step}/{number}"


def seconds_of(task: Task) -> float:
    """Return the most seconds that a task may take."""
    return float(_COMMAND_SECONDS + task.wait + task.seconds + 15)


def step_minutes(plan: CollectivePlan, hosts: int) -> float:
    """Return the most minutes that a step with so many hosts takes, if its hosts meet at once."""
    return step_seconds(hosts, float(plan.options.seconds), plan.cores) / 60


def series_minutes(plan: CollectivePlan) -> float:
    """Return the most minutes that the series takes, if its hosts meet at once."""
    wanted = counts(len(plan.names), plan.first, plan.last)
    steps = len(wanted) if not plan.options.one_group else sum(len(plan.names) // number for number in wanted)
    return steps * step_minutes(plan, len(plan.names)) + START_SECONDS / 60


def record_name(number: int) -> str:
    """Return the name of a host's file of a step."""
    return f"collective-{number:03}"
