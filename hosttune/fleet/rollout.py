"""A run over a fleet: its waves in order, each in shards. Each wave is judged from the hosts' files and recorded.

The answers of the hosts are read from their files after each shard; only a host's status is kept in memory. A run ends
when all waves are done, when a gate stays closed, when it is interrupted, or when ansible cannot work. The record then
says how far the run came, and the run can be resumed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from hosttune.errors import BadInput
from hosttune.fleet.answers import has_answer_file, read_answer
from hosttune.fleet.declared import kept_to
from hosttune.fleet.gate import COURSE, ONLY_IF_ASKED, WAVES, Gate, HostStatus, exit_code, judge, phases, status_of
from hosttune.fleet.playbook import PlaybookOrder, Played, Stop, TaskEvent, play
from hosttune.fleet.record import (
    NOT_CONTACTED,
    Ended,
    GateRecord,
    HostDone,
    Line,
    Members,
    RecordedRun,
    RunBegun,
    Stopped,
    WaveBegun,
    encode,
)
from hosttune.fleet.results import RECORD, forget
from hosttune.journal.jsonlines import JsonLines
from hosttune.model.clock import now_text
from hosttune.model.declared import Declared
from hosttune.model.fleet import Wave
from hosttune.model.listing import some

INTERRUPTED = "interrupted"
GONE = "no longer in the inventory"
_MOST = 10  # hosts of a change before "and N more"
# Answers of an earlier attempt that are removed before a host is changed again. `validate` is removed first: if the run
# is killed in between, no old proof is left.
_OUTDATED = ("validate", "status", "sign", "verify", *ONLY_IF_ASKED)


class Rollout(msgspec.Struct, frozen=True):
    """The work of a run: its waves with their hosts. Verbs that change nothing have one wave without a gate.

    `order` is the order for each ansible, without its hosts. For a run that is resumed: `host_statuses` has the hosts
    that are already proven good, `unasked` the hosts that are skipped and the reasons, and `begun` the waves that had
    started. With `only_failed` (retry) no further wave is started. `declared`: the baseline that hosts are held to.
    """

    run: str
    verb: str
    order: PlaybookOrder
    waves: tuple[tuple[str, ...], ...]
    gate: Gate = "either"
    check: bool = False
    shard: int = 500
    host_statuses: Mapping[str, HostStatus] = msgspec.field(default_factory=dict)
    unasked: Mapping[str, str] = msgspec.field(default_factory=dict)
    begun: frozenset[int] = frozenset()
    only_failed: bool = False
    declared: Declared | None = None

    @property
    def gated(self) -> bool:
        """Whether every host of a wave must be proven good before the next wave begins."""
        return self.verb in WAVES and not self.check

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host of the run, in its order."""
        return tuple(host for wave in self.waves for host in wave)

    @property
    def todo(self) -> tuple[str, ...]:
        """The hosts that the run will process if no gate stops it."""
        waves = [wave for number, wave in enumerate(self.waves, 1) if not self.only_failed or number in self.begun]
        return tuple(
            host for wave in waves for host in wave if host not in self.host_statuses and host not in self.unasked
        )


class RunServices(msgspec.Struct, frozen=True):
    """What a rollout uses: its record, the stop request, ansible, and two callbacks for progress.

    `heard` gets ansible's events. `host_done` gets the wave and the status of each host after its files were read.
    """

    journal: JsonLines
    stop: Stop
    heard: Callable[[TaskEvent], None]
    host_done: Callable[[int, HostStatus], None]
    player: Callable[[PlaybookOrder, Callable[[TaskEvent], None], Stop], Played] = play

    def add(self, line: Line) -> None:
        """Append a line to the record."""
        self.journal.add(encode(line))


class RunOutcome(msgspec.Struct, frozen=True):
    """The outcome of a run: the status of each host, the results of the gates, and why the run stopped early, if so."""

    host_statuses: Mapping[str, HostStatus]
    waves: tuple[Wave, ...]
    stopped: str | None = None
    messages: tuple[str, ...] = ()  # messages of an ansible that contacted no host

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 130 if the run was interrupted, else that of the worst host."""
        return 130 if self.stopped == INTERRUPTED else exit_code(self.host_statuses.values())


def carry_out(rollout: Rollout, run_services: RunServices) -> RunOutcome:
    """Carry out and record a rollout. Raises BadInput if ansible cannot be started, or if the disk is full."""
    host_statuses = dict(rollout.host_statuses)
    waves = [Wave(number=number, hosts=len(hosts)) for number, hosts in enumerate(rollout.waves, 1)]
    why: str | None = None
    messages: list[str] = []
    for number in range(1, len(rollout.waves) + 1):
        if rollout.only_failed and number not in rollout.begun:
            break
        why = _ask_wave(rollout, number, host_statuses, run_services, messages)
        if rollout.gated:
            hosts = rollout.waves[number - 1]
            passed, reasons = judge(hosts, host_statuses)
            run_services.add(GateRecord(run=rollout.run, wave=number, passed=passed, why=reasons))
            waves[number - 1] = Wave(number=number, hosts=len(hosts), passed=passed, why=reasons)
            if why is None and not waves[number - 1].passed and number < len(rollout.waves):
                why = f"the gate after wave {number} of {len(rollout.waves)} did not open"
        if why is not None:
            break
    for host in rollout.hosts:
        host_statuses.setdefault(host, HostStatus(host, why="not asked"))
    if why is not None:
        run_services.add(Stopped(run=rollout.run, at=now_text(), why=why))
    outcome = RunOutcome(host_statuses, tuple(waves), why, tuple(messages))
    run_services.add(Ended(run=rollout.run, at=now_text(), exit_code=outcome.exit_code))
    return outcome


def _ask_wave(
    rollout: Rollout, number: int, host_statuses: dict[str, HostStatus], run_services: RunServices, messages: list[str]
) -> str | None:
    """Process the hosts of a wave that are not proven good, shard by shard.

    Returns the reason if the run cannot continue, else None. The messages of an ansible that contacted no host are
    added to `messages`.
    """
    hosts = rollout.waves[number - 1]
    for host in hosts:
        if host in rollout.unasked:
            host_statuses[host] = HostStatus(host, why=rollout.unasked[host])
    todo = [host for host in hosts if host not in host_statuses]
    if todo and not run_services.stop.asked:
        run_services.add(WaveBegun(run=rollout.run, at=now_text(), wave=number, hosts=len(todo)))
        run_services.journal.sync()  # else a power cut makes hosts that were changed hosts that were not asked
    for order in _orders(rollout, todo):
        if run_services.stop.asked:
            return INTERRUPTED
        shard = order.hosts
        for host in shard if rollout.gated else ():
            for phase in _OUTDATED:
                forget(order.results, host, phase)
        played = run_services.player(order, run_services.heard, run_services.stop)
        untouched = played.contacted_none
        answered = [
            _read_host_status(rollout, number, host, host_statuses, run_services, untouched=untouched) for host in shard
        ]
        if played.stopped:
            return INTERRUPTED
        if not any(answered):
            messages += played.messages
            return played.why_unanswered(order.results)
    return None


def _orders(rollout: Rollout, hosts: Sequence[str]) -> Iterator[PlaybookOrder]:
    """Yield the order for each ansible.

    A host that this run has already validated keeps that validation as the state before the change. The host may have
    been changed since; compared with the state that an earlier attempt left, it would not look worse. A host whose
    hand-over has ended well in this run is not erased once more: its statement is signed and verified.
    """
    measured = [host for host in hosts if rollout.gated and rollout.begun and _measured(rollout, host)]
    again = frozenset(measured)
    kept = "hosttune_keep_course" if rollout.verb == COURSE else "hosttune_keep_before"
    keeping = replace(rollout.order, variables={**rollout.order.variables, kept: True})
    for order, part in ((keeping, measured), (rollout.order, [host for host in hosts if host not in again])):
        for shard in shards(part, rollout.shard):
            yield replace(order, hosts=shard)


def _measured(rollout: Rollout, host: str) -> bool:
    if rollout.verb == COURSE:
        return read_answer(rollout.order.results, host, COURSE, rollout.run).outcome == "ok"
    return read_answer(rollout.order.results, host, "before", rollout.run).outcome in ("ok", "no")


def _read_host_status(
    rollout: Rollout,
    number: int,
    host: str,
    host_statuses: dict[str, HostStatus],
    run_services: RunServices,
    *,
    untouched: bool,
) -> bool:
    """Read the status of a host from its files, record and report it. Returns whether it has any file of this run.

    `untouched`: it is known that no host was contacted.
    """
    host_status, asked = status_of_host(rollout, host)
    if untouched and not asked:
        host_status = replace(host_status, why=NOT_CONTACTED)
    host_statuses[host] = host_status
    if asked or not run_services.stop.asked:  # a host that an interrupted ansible did not reach has nothing to record
        run_services.add(
            HostDone(
                run=rollout.run,
                wave=number,
                host=host_status.host,
                outcome=host_status.outcome,
                phase=host_status.phase,
                why=host_status.why,
                verdict=host_status.verdict,
                changed=host_status.changed,
            )
        )
    run_services.host_done(number, host_status)
    return asked


def status_of_host(rollout: Rollout, host: str) -> tuple[HostStatus, bool]:
    """Return (the status of a host from its files of this run, whether there is any such file)."""
    check, results = rollout.check, rollout.order.results
    asked_in = phases(rollout.verb, check=check)
    answers = {phase: read_answer(results, host, phase, rollout.run, check=check) for phase in asked_in}
    host_status = status_of(host, rollout.verb, answers, rollout.gate, check=check)
    if rollout.declared is not None and host_status.good:
        host_status = kept_to(host_status, rollout.declared, results, "validate")
    return host_status, any(map(has_answer_file, answers.values()))


# --- starting and resuming -----------------------------------------------------------------------------------


def opening(rollout: Rollout, began: RunBegun) -> list[Line]:
    """Return the first lines of a new run. The hosts of all waves are recorded before the first host is contacted."""
    members = [Members(run=rollout.run, wave=number, hosts=hosts) for number, hosts in enumerate(rollout.waves, 1)]
    return [began, *members]


def waves_of(verb: str, hosts: Sequence[str], sizes: Sequence[str], *, check: bool) -> tuple[tuple[str, ...], ...]:
    """Return the waves of a new run: waves of `sizes` if hosts are changed, else one wave with all hosts."""
    return cut(hosts, sizes) if verb in WAVES and not check else (tuple(hosts),)


def resumed(rollout: Rollout, past: RecordedRun, inventory: Sequence[str], *, only_failed: bool) -> Rollout:
    """Return the rollout of a run that is resumed: its recorded waves, without the hosts that are proven good.

    A host is proven good by the record, or by its files of this run (if the controller died before it could write the
    line). `only_failed`: only hosts that were contacted and are not good. Raises BadInput if the record does not have
    all waves: then no host was contacted.
    """
    if not past.whole:
        raise BadInput("the run ended before its waves were written", where=RECORD, hint="begin a new run")
    waves = tuple(past.members[number] for number in sorted(past.members))
    again = replace(rollout, run=past.run, waves=waves, only_failed=only_failed, begun=past.asked)
    known = frozenset(inventory)
    good: dict[str, HostStatus] = {}
    unasked = {host: GONE for host in again.hosts if host not in known}
    for host in (host for number in sorted(past.asked) for host in past.members[number]):
        host_status, asked = _status_at_end(again, past, host)
        if host_status.good:
            good[host] = host_status
        elif only_failed and not asked:
            unasked.setdefault(host, "not asked; --resume asks it")
    return replace(again, host_statuses=good, unasked={host: why for host, why in unasked.items() if host not in good})


def _status_at_end(rollout: Rollout, past: RecordedRun, host: str) -> tuple[HostStatus, bool]:
    """Return (the status of a host when the run ended, whether it was contacted).

    If the gate has changed, the host must be proven good by the new gate.
    """
    line = past.done.get(host)
    if line is not None and line.outcome == "ok" and rollout.gate == past.gate:
        return HostStatus(host, "ok", None, None, line.verdict, line.changed), True
    host_status, asked = status_of_host(rollout, host)
    return host_status, asked or line is not None


def changes(rollout: Rollout, past: RecordedRun, inventory: Sequence[str], intent: str | None) -> list[str]:
    """Return what has changed since the run began, one line each. `intent`: its digest, None if none is given."""
    texts = []
    hosts = frozenset(rollout.hosts)
    gone = [host for host, why in rollout.unasked.items() if why == GONE]
    new = [host for host in inventory if host not in hosts]
    if gone:
        texts.append(f"no longer in the inventory, {len(gone)}: {some(gone, _MOST)}; what is not proven stays unknown")
    if new:
        texts.append(f"new in the inventory, {len(new)}: {some(new, _MOST)}; not in this run")
    if intent != past.began.intent_sha256:
        texts.append("the intent is not the one that the run began with")
    if rollout.gate != past.gate:
        texts.append(f"the gate is {rollout.gate}, was {past.gate}")
    return texts


def digest(data: bytes) -> str:
    """Return the digest by which the record identifies an intent."""
    return hashlib.sha256(data).hexdigest()


# --- waves -----------------------------------------------------------------------------------------------------
# Waves: which hosts are changed together, and in which order. Pure functions.
# The sizes have the same meaning as in Ansible's `serial`: a number of hosts, or a percentage of all hosts, rounded
# down but at least one host. The last size is repeated until no host is left (playbooks_strategies, "Setting the
# batch size"). All waves of `hosttune fleet` are made here. When ansible-playbook is used alone, `serial` in
# playbooks/waves.yml makes the same waves.

DEFAULT = "1,5%,25%,100%"
_SIZE = re.compile(r"([0-9]{1,7})(%?)")


def parse_sizes(text: str) -> tuple[str, ...]:
    """Return the sizes in a text such as "1,5%,25%,100%". Raises BadInput that names an invalid size."""
    sizes = tuple(part.strip() for part in text.split(","))
    for size in sizes:
        match = _SIZE.fullmatch(size)
        if match is None or not 1 <= int(match[1]) <= (100 if match[2] else 10**7):
            raise BadInput(
                f"{size!r} is not a size of a wave",
                where="--waves",
                hint=f"write hosts or percentages with commas, as in {DEFAULT}",
            )
    return sizes


def hosts_of(size: str, total: int) -> int:
    """Return how many of `total` hosts a size means, at least one."""
    number = int(size.removesuffix("%"))
    return max(1, number * total // 100 if size.endswith("%") else number)


def cut(hosts: Sequence[str], sizes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Split the hosts, in their order, into waves of these sizes. Every host is in one wave, and no wave is empty."""
    waves: list[tuple[str, ...]] = []
    start = 0
    while start < len(hosts):
        size = sizes[min(len(waves), len(sizes) - 1)]
        end = start + hosts_of(size, len(hosts))
        waves.append(tuple(hosts[start:end]))
        start = end
    return tuple(waves)


def shards(hosts: Sequence[str], most: int) -> tuple[tuple[str, ...], ...]:
    """Split the hosts, in their order, into as few parts of at most `most` hosts as possible, of about equal size.

    One ansible process handles one shard, because ansible keeps the data of each host in memory until it ends.
    """
    count = -(-len(hosts) // most)
    bounds = [len(hosts) * i // count for i in range(count + 1)] if count else []
    return tuple(tuple(hosts[a:b]) for a, b in pairwise(bounds))
