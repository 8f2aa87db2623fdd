"""The answers of a run of `collective` → its groups, the next step, and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import msgspec
from msgspec.structs import replace

from hosttune.cluster.collective.groups import GroupFindings, Trial, counts, findings, search, series
from hosttune.cluster.collective.judging import (
    CollectiveStandard,
    WantedGroup,
    figures,
    joined,
    judged,
    scaling,
    settled,
    verdict_of,
)
from hosttune.cluster.collectiveplan import (
    CollectivePlan,
    PlannedGroup,
    PlannedMember,
    PlannedStep,
    at_once,
    group_name,
    record_name,
    series_minutes,
)
from hosttune.fleet.answers import has_answer_file, read_document
from hosttune.fleet.membership import other_machine, unwatched
from hosttune.gpu import generation_of
from hosttune.model.collective import (
    CollectiveFault,
    CollectiveHost,
    CollectiveReport,
    Device,
    HostGroup,
    Kind,
    Member,
    Wiring,
)
from hosttune.model.listing import some
from hosttune.model.text import count
from hosttune.predicting.estimates import Question, estimate
from hosttune.predicting.formulas import Estimate
from hosttune.predicting.shape import HostShape

Known = dict[int, tuple[HostGroup, ...]]
_TRIES = 2  # of a group in one call, if its hosts answer and it gives nothing


def standard_of(plan: CollectivePlan) -> CollectiveStandard:
    """Return what figures are compared with."""
    options = plan.options
    of: Machines = machines(tuple(plan.members.values()), plan.ranks, options.device)
    return CollectiveStandard(
        cache(lambda kind, hosts, size: expected(of, kind, hosts, size)),
        against=options.against,
        floor=options.floor,
        least=options.least,
    )


def next_step(
    results: str, plan: CollectivePlan, live: Sequence[str], tried: Sequence[frozenset[str]], known: Known
) -> PlannedStep | None:
    """Return the next step; None when there is nothing to measure. `live`: hosts that still answer, in their order.

    `tried`: the groups that this call asked for, as often as it did. `known`: see `raw_groups`.
    """
    groups = judged(raw_groups(results, plan, known), standard_of(plan))
    times = Counter(tried)
    trials = _trials(groups)
    there = {trial.hosts for trial in trials}
    trials += [Trial(group, None) for group, number in times.items() if number >= _TRIES and group not in there]
    made = [
        PlannedGroup(purpose="series", hosts=group)
        for group in series(live, trials, plan.first, min(plan.last, len(live)))
    ]
    if not made:
        asked = [frozenset(group.hosts) for group in groups if settled(group.outcome)]
        asked += [group for group, number in times.items() if group not in asked for _ in range(number)]
        made = [PlannedGroup(purpose="search", hosts=group) for group in search(live, trials, asked)]
    made = at_once(made, 1 if plan.options.one_group else len(made), plan.most_hosts)
    number = max((step.number for step in plan.steps), default=0) + 1
    return PlannedStep(number=number, groups=tuple(made)) if made else None


def _trials(groups: Iterable[HostGroup]) -> list[Trial]:
    states = {"good": False, "low": True, "failed": True}
    return [Trial(frozenset(group.hosts), states.get(group.state)) for group in groups if settled(group.outcome)]


def raw_groups(results: str, plan: CollectivePlan, known: Known) -> tuple[HostGroup, ...]:
    """Return every group of the plan, from the files, not judged yet.

    `known`: groups by the number of their step, as they were read before; a step that is over does not change.
    """
    machines_ = {host: member.machine for host, member in plan.members.items()}
    for step in plan.steps:
        if step.number not in known:
            groups = [
                _group(results, plan, machines_, (step.number, n), planned_group)
                for n, planned_group in enumerate(step.groups)
            ]
            known[step.number] = tuple(groups)
    return tuple(group for step in plan.steps for group in known[step.number])


def _group(
    results: str, plan: CollectivePlan, listed: Mapping[str, str | None], place: tuple[int, int], planned: PlannedGroup
) -> HostGroup:
    """Return a group, as its hosts answered. `listed`: the identities of hosts; `place`: its step, and which one."""
    step, number = place
    ranks = len(planned.hosts) * plan.ranks
    made = HostGroup(step=step, purpose=planned.purpose, hosts=planned.hosts, ranks=ranks)
    answers: dict[str, Member] = {}
    for host in planned.hosts:
        answer, member = read_document(results, host, record_name(step), plan.run, Member)
        if member is None:
            if not has_answer_file(answer):
                return made
            return replace(
                made, outcome="refused" if answer.outcome == "refused" else "host-lost", why=f"{host}: {answer.why}"
            )
        why = other_machine(listed.get(host), member.machine, "it was listed")
        if why is not None:
            return replace(made, outcome="host-lost", why=f"{host}: {why}")
        answers[host] = member
    options = plan.options
    wanted = WantedGroup(group_name(plan.run, step, number), ranks, options.kinds, options.sizes, options.runs)
    group = joined(wanted, answers)
    return replace(
        made,
        outcome=group.outcome,
        figures=figures(group.timings),
        accused=group.accused,
        why=group.why,
        left_out=group.left_out,
    )


def report(results: str, plan: CollectivePlan, *, check: bool = False, stopped: str | None = None) -> CollectiveReport:
    """Return the report of a plan from the files. `check`: nothing was measured, and all of it is unknown."""
    options, standard = plan.options, standard_of(plan)
    groups = () if check else judged(raw_groups(results, plan, {}), standard)
    wanted = counts(len(plan.names), plan.first, plan.last)
    there = {len(group.hosts) for group in groups if group.outcome == "measured" or group.state == "failed"}
    missing = [number for number in wanted if number not in there]
    group_findings = findings(_trials(groups))
    incomplete = bool(missing) or not wanted or len(plan.names) < len(plan.hosts) or any(_unwatched(plan))
    return CollectiveReport(
        run=plan.run,
        at=plan.at,
        check=check,
        device=options.device,
        ranks_per_host=plan.ranks,
        against=options.against,
        floor=options.floor,
        least=options.least,
        verdict=verdict_of(groups, incomplete=incomplete, limited=any(_limits(plan))),
        series=wanted,
        minutes=round(series_minutes(plan), 1),
        hosts=tuple(_report_host(member) for member in plan.hosts),
        scaling=scaling(groups, standard.expect),
        faults=faults(group_findings, groups),
        groups=groups,
        notes=tuple(_notes(results, plan, groups, wanted, check=check)),
        stopped=stopped,
    )


def _limits(plan: CollectivePlan) -> Iterable[str]:
    """Yield why a good figure may be that of a fleet that is slow as a whole."""
    options, members = plan.options, tuple(plan.members.values())
    if options.against == ("fleet",) and options.least is None:
        yield "compared with other groups of this fleet alone: a fleet that is slow as a whole is not seen"
    if machines(members, plan.ranks, options.device).tcp and any(member.rdma is not False for member in members):
        yield "RDMA is switched off by the environment: figures are compared with those of TCP"


def _unwatched(plan: CollectivePlan) -> Iterable[str]:
    return unwatched({host: member.machine for host, member in plan.members.items()})


def _report_host(planned_member: PlannedMember) -> CollectiveHost:
    member = planned_member.member
    return CollectiveHost(
        host=planned_member.host,
        outcome=planned_member.outcome,
        why=planned_member.why,
        gpus=member.library.gpus if member and member.library else None,
        library=member.library.words if member and member.library else None,
        environment=member.environment if member else {},
        settings=member.settings if member else (),
    )


def faults(group_findings: GroupFindings, groups: Sequence[HostGroup]) -> tuple[CollectiveFault, ...]:
    """Return what explains bad groups, in words."""
    now = [group for group in groups if not group.repeated]

    def counted(host: str, *, alone: bool) -> tuple[int, int]:
        mine = [group for group in now if host in group.hosts and (len(group.hosts) == 1) == alone]
        return sum(host_group.state in ("low", "failed") for host_group in mine), sum(
            host_group.state == "good" for host_group in mine
        )

    made = []
    for host in sorted(group_findings.slow):
        bad, good = counted(host, alone=False)
        words = (
            f"host {host}: every group with it is bad ({bad} of {bad + good}), and its companions are good without it"
        )
        made.append(CollectiveFault(kind="host", hosts=(host,), bad=bad, good=good, words=words))
    for host in sorted(group_findings.alone):
        bad, good = counted(host, alone=True)
        words = f"host {host}: bad by itself, without a network"
        made.append(CollectiveFault(kind="alone", hosts=(host,), bad=bad, good=good, words=words))
    for members in group_findings.together:
        hosts = tuple(sorted(members))
        words = (
            f"{some(hosts, 8)}: each is good in another group, together they are bad, twice: the network between them"
        )
        made.append(CollectiveFault(kind="together", hosts=hosts, bad=2, words=words))
    for members, suspects in group_findings.unexplained:
        hosts = tuple(sorted(suspects or members))
        words = f"{some(hosts, 8)}: bad together; the measurements cannot tell which of them"
        made.append(CollectiveFault(kind="suspects", hosts=hosts, bad=1, words=words))
    return tuple(made)


def _notes(
    results: str, plan: CollectivePlan, groups: Sequence[HostGroup], wanted: Sequence[int], *, check: bool
) -> Iterable[str]:
    yield from _limits(plan)
    yield from _unwatched(plan)
    if not wanted:
        yield f"{count(len(plan.names), 'host')} with {plan.ranks} ranks each: no collective"
    if len(plan.names) > plan.last:
        yield f"groups of at most {plan.last} hosts were asked for (--forks, --to)"
    measured = {len(group.hosts) for group in groups if group.outcome == "measured"}
    missing = [str(number) for number in wanted if number not in measured]
    if missing and not check:
        yield f"no figure of {', '.join(missing)} hosts"
    again = [group for group in groups if group.repeated and group.state in ("low", "failed")]
    for group in again:
        now = next(
            host_group for host_group in groups if set(host_group.hosts) == set(group.hosts) and not host_group.repeated
        )
        if now.state == "good":
            yield f"{some(group.hosts, 4)}: {group.state} in step {group.step} ({group.why}), good when it was repeated"
    for name in sorted({name for member in plan.members.values() for name in member.environment}):
        values = {member.environment.get(name) for member in plan.members.values()}
        if len(values) > 1:
            yield f"{name} is not the same on all hosts: {some(sorted(str(value) for value in values), 4)}"
    left = {note for step in plan.steps for group in step.groups[:1] for note in _left(results, plan, step, group)}
    yield from sorted(left)


def _left(results: str, plan: CollectivePlan, step: PlannedStep, group: PlannedGroup) -> Iterable[str]:
    _, member = read_document(results, group.hosts[0], record_name(step.number), plan.run, Member)
    for note in member.notes if member is not None else ():
        yield f"{count(len(group.hosts), 'host')}: {note}"


# --- what is expected -----------------------------------------------------------------------------------------

# The shape is that of the first host: hosts of other shapes are in no group. Where no host has RDMA, or a variable
# turns it off, the library goes over TCP, and the prediction is that of TCP over the port where the hosts meet.

_OFF = {"NCCL_IB_DISABLE": ("1",), "NCCL_NET": ("socket",)}


class Machines(msgspec.Struct, frozen=True):
    """The hosts of a run as the prediction needs them: `ranks` on each, and how they reach each other.

    `tcp`: not over RDMA. `rate_gbps`: of the port where they meet, the lowest; None: unknown.
    """

    wiring: Wiring | None
    ranks: int
    device: Device
    tcp: bool
    rate_gbps: float | None


def machines(members: Sequence[Member], ranks: int, device: Device) -> Machines:
    """Return the machines of these hosts. Where they differ, only what they have in common is known."""
    wirings = [member.wiring for member in members]
    alike = bool(wirings) and all(wiring == wirings[0] for wiring in wirings)
    rates = [member.place.rate_gbps if member.place is not None else None for member in members]
    known = [rate for rate in rates if rate is not None]
    least = min(known) if known and len(known) == len(rates) else None
    tcp = all(
        member.rdma is False
        or any(member.environment.get(name, "").strip().lower() in values for name, values in _OFF.items())
        for member in members
    )
    return Machines(wirings[0] if alike else None, ranks, device, tcp, least)


def expected(of: Machines, kind: Kind, hosts: int, size_bytes: int) -> Estimate | None:
    """Return bound and typical bus bandwidth in GB/s of one operation over so many hosts; None without a model."""
    wiring = of.wiring
    if wiring is None or of.device == "cpu" or wiring.gpu is None:
        return None
    tcp = hosts > 1 and of.tcp
    ports, rate = wiring.nics, wiring.nic_gb_per_s
    if wiring.per_host and of.ranks != wiring.per_host:  # the ports of the GPUs that take part
        ports = ports * of.ranks // wiring.per_host if ports and ports * of.ranks % wiring.per_host == 0 else None
    if tcp:
        ports, rate = 1, of.rate_gbps / 8 if of.rate_gbps else None
    shape = HostShape(
        gpu=wiring.gpu,
        generation=generation_of(wiring.gpu),
        peaks=dict(wiring.peaks),
        slot=wiring.slot,
        links=wiring.links,
        switched=wiring.switched,
        per_host=of.ranks,
        hosts=hosts,
        nics=ports,
        nic_gb_per_s=rate,
        cpu=wiring.cpu,
        virtual=wiring.virtual,
    )
    return estimate(Question(f"{kind}-busbw", of.ranks * hosts, hosts, size_bytes, tcp=tcp), shape)
