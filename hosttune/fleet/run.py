"""`hosttune fleet VERB` as one call: request → inventory → rollout → report.

An invalid request is refused before anything is written.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from hosttune import __version__
from hosttune.assets import folder
from hosttune.errors import BadInput, Declined
from hosttune.fleet import options as handed_on
from hosttune.fleet.declared import read_declared
from hosttune.fleet.gate import COURSE, WAVES, Gate
from hosttune.fleet.inventory import Inventory, read_inventory, tool
from hosttune.fleet.live import Progress, watch
from hosttune.fleet.playbook import PlaybookOrder, Stop, playbook
from hosttune.fleet.record import Line, RecordedRun, Resumed, RunBegun, decode, encode, last_took, new_run, past_run
from hosttune.fleet.results import RECORD, held, read_file
from hosttune.fleet.rollout import DEFAULT as DEFAULT_WAVES
from hosttune.fleet.rollout import (
    Rollout,
    RunOutcome,
    RunServices,
    carry_out,
    changes,
    digest,
    opening,
    parse_sizes,
    resumed,
    waves_of,
)
from hosttune.journal.jsonlines import JsonLines
from hosttune.journal.state import load, load_text
from hosttune.model.clock import now_text
from hosttune.model.declared import Declared
from hosttune.model.listing import some
from hosttune.model.text import count

HANDOVER = "handover"  # as asked; it means COURSE where hosts name devices
DEFAULT_RESULTS = "hosttune-results"
DEFAULT_SHARD = 500  # measured: an ansible needs 0.7 CPU-s to start and 60 to 70 MB, with 50 hosts as with 500
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Options that only some verbs use. With another verb they are refused, not ignored.
_ONLY = {
    "level": ("apply", "validate", "revert"),
    "intent": ("plan", "apply"),
    "waves": ("apply", "revert", "handover"),
    "gate": ("apply", "revert"),
    "reboot": ("apply", "revert"),
    "reboot_guests": ("apply", "revert"),
    "recover": ("apply", "revert"),
    "baseline": ("apply", "validate"),
}


class FleetRequest(msgspec.Struct, frozen=True):
    """The request of the command line. None and False: not given. `extra`: values of -e; `options`: words after --.

    `baseline`: the file of a declared baseline; `declared`: its content.
    """

    verb: str
    inventories: tuple[str, ...]
    limit: str | None = None
    results: str = DEFAULT_RESULTS
    intent: str | None = None
    level: int | None = None
    forks: int | None = None
    waves: str | None = None
    gate: Gate | None = None
    resume: bool = False
    retry: bool = False
    check: bool = False
    timeout: float | None = None
    reboot: bool = False
    reboot_guests: bool = False
    recover: bool = False
    baseline: str | None = None
    declared: Declared | None = None
    shard: int = DEFAULT_SHARD
    extra: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    playbooks: str = msgspec.field(default_factory=lambda: folder("playbooks"))


class FleetRun(msgspec.Struct, frozen=True):
    """A run that has ended, with everything that its report needs."""

    rollout: Rollout
    outcome: RunOutcome
    inventory: Inventory
    at: str


def run_fleet(
    request: FleetRequest, tell: Callable[[str], None], confirm: Callable[[Sequence[str]], bool] = lambda lines: True
) -> FleetRun:
    """Run a verb over the fleet. `tell` writes a line to stderr.

    `confirm` gets the waves before hosts are changed. Raises BadInput and Refused; Declined if it returns false.
    """
    check_request(request)
    request = _last_handover(request)
    if request.baseline is not None:
        request = replace(request, declared=read_declared(request.baseline))
    past = past_of(request)
    if past is not None:
        request = with_recorded_request(request, past)
    intent = read_intent(request.intent)
    tool("ansible-playbook")
    playbook(order_of(request))
    inventory = read_inventory(request.inventories, request.limit, handed_on.vault(request.options))
    if inventory.left_out:
        tell(inventory.told_left_out())
    request, inventory = _handing_over(request, inventory, past, tell)
    order = order_of(request)
    if request.verb in ("apply", "revert") and not request.check:
        rollout = (
            _again(request, order, inventory, intent, past) if past else _new(request, order, inventory, intent)
        )[0]
        if not confirm(_waves_text(rollout, reboots=request.reboot)):
            raise Declined("not begun: answered no", where="prompt", hint="no host was contacted")
    with held(order.results) as journal, interruptible() as stop:
        if past is None:
            rollout, lines = _new(request, order, inventory, intent)
        else:
            past = past_of(request) or past  # read again: with the lock, no other run writes there
            rollout, lines = _again(request, order, inventory, intent, past)
        for line in lines:
            journal.add(encode(line))
            for note in line.told if isinstance(line, Resumed) else ():
                tell(f"note: {note}")
        journal.sync()  # without its waves a run cannot be resumed; losing a later line only means to repeat a host
        outcome = _watched(rollout, journal, stop, tell, request.results)
    began = past.began if past is not None else next(line for line in lines if isinstance(line, RunBegun))
    return FleetRun(rollout, outcome, inventory, began.at)


def _last_handover(request: FleetRequest) -> FleetRequest:
    """Return the request of a hand-over that is continued with the verb that it began with."""
    if request.verb != HANDOVER or not (request.resume or request.retry):
        return request
    lines = read_record(request.results)
    verbs = [line.verb for line in lines if isinstance(line, RunBegun) and line.verb in (HANDOVER, COURSE)]
    return replace(request, verb=verbs[-1]) if verbs else request


def _handing_over(
    request: FleetRequest, inventory: Inventory, past: RecordedRun | None, tell: Callable[[str], None]
) -> tuple[FleetRequest, Inventory]:
    """Return the request with the verb that is meant by `handover`, and the hosts that it is about.

    Where hosts name devices, these are handed over, in waves; else every host is validated, and nothing is written.
    Raises BadInput.
    """
    if request.verb == HANDOVER and past is None and inventory.between:
        hosts = tuple(host for host in inventory.hosts if host in inventory.between)
        left = len(inventory.hosts) - len(hosts)
        if left and hosts:
            tell(f"note: {left} hosts name no devices in hosttune_handover: they are not in this run")
        if hosts:
            return replace(request, verb=COURSE), replace(inventory, hosts=hosts)
    if request.verb == HANDOVER and request.check:
        hint = "name devices or a guest for the hosts (hosttune_handover); a validation writes nothing: leave it out"
        raise BadInput("no host of the inventory is handed over", where="--check", hint=hint)
    if request.verb == HANDOVER and request.waves is not None:
        hint = "name devices or a guest for the hosts (hosttune_handover), or leave it out"
        raise BadInput("no host of the inventory is handed over: there are no waves", where="--waves", hint=hint)
    if request.verb == COURSE:
        return request, replace(inventory, hosts=tuple(host for host in inventory.hosts if host in inventory.between))
    return request, inventory


def _waves_text(rollout: Rollout, *, reboots: bool) -> list[str]:
    """Return the hosts that a run would change, wave by wave."""
    todo = frozenset(rollout.todo)
    waves = [[host for host in wave if host in todo] for wave in rollout.waves]
    rebooted = ", with a reboot where one is needed" if reboots else ""
    return [
        f"{rollout.verb} on {count(len(todo), 'host')}{rebooted}:",
        *(f"  wave {number}: {some(wave, 10)}" for number, wave in enumerate(waves, 1) if wave),
    ]


def _watched(rollout: Rollout, journal: JsonLines, stop: Stop, tell: Callable[[str], None], results: str) -> RunOutcome:
    try:
        earlier = last_took(read_record(results), rollout.verb)
    except BadInput:  # a new run goes on beside a record that cannot be read
        earlier = ""
    progress = Progress(rollout.verb, len(rollout.todo), len(rollout.waves), earlier)
    with watch(progress, sys.stderr, tell) as shown:
        return carry_out(rollout, RunServices(journal, stop, shown.heard, shown.host_done))


def _new(
    request: FleetRequest, order: PlaybookOrder, inventory: Inventory, intent: str | None
) -> tuple[Rollout, list[Line]]:
    """Return (a new run, the first lines of its record)."""
    sizes = parse_sizes(request.waves or DEFAULT_WAVES)
    run = new_run()
    waves = waves_of(request.verb, inventory.hosts, sizes, check=request.check)
    rollout = _for_run(_base(request, order), run, waves)
    began = RunBegun(
        run=run,
        at=now_text(),
        verb=request.verb,
        version=__version__,
        hosts=len(inventory.hosts),
        waves=sizes if rollout.gated else (),
        gate=rollout.gate,
        check=request.check,
        inventory=request.inventories,
        limit=request.limit,
        level=request.level,
        intent=os.path.abspath(request.intent) if request.intent is not None else None,
        intent_sha256=intent,
        declared=request.declared,
    )
    return rollout, opening(rollout, began)


def _again(
    request: FleetRequest, order: PlaybookOrder, inventory: Inventory, intent: str | None, past: RecordedRun
) -> tuple[Rollout, list[Line]]:
    """Return (the recorded run to be resumed, the lines to add to its record)."""
    kept = resumed(_base(request, order), past, inventory.hosts, only_failed=request.retry)
    rollout = _for_run(kept, past.run, kept.waves)
    changed = changes(rollout, past, inventory.hosts, intent)
    how = "retry" if request.retry else "resume"
    return rollout, [Resumed(run=rollout.run, at=now_text(), how=how, gate=rollout.gate, told=tuple(changed))]


def _base(request: FleetRequest, order: PlaybookOrder) -> Rollout:
    return Rollout(
        "", request.verb, order, (), request.gate or "either", request.check, request.shard, declared=request.declared
    )


def _for_run(rollout: Rollout, run: str, waves: tuple[tuple[str, ...], ...]) -> Rollout:
    """Return the rollout with the id of its run, which every answer must contain."""
    order = replace(rollout.order, variables={**rollout.order.variables, "hosttune_run": run})
    return replace(rollout, run=run, waves=waves, order=order)


# --- the request ---------------------------------------------------------------------------------------------


def check_request(request: FleetRequest) -> None:
    """Check a request before any host is contacted or any file is written. Raises BadInput if it is invalid."""
    if not request.inventories:
        raise BadInput("no inventory", where="-i", hint="give one: -i FILE")
    for name, verbs in _ONLY.items():
        if request.verb not in verbs and getattr(request, name) not in (None, False):
            hint = f"it is for {' and '.join(verbs)}"
            raise BadInput(f"{request.verb} does not take it", where=f"--{name.replace('_', '-')}", hint=hint)
    if request.resume and request.retry:
        raise BadInput("both --resume and --retry", where="command line", hint="give one of the two")
    if request.check and (request.resume or request.retry):
        raise BadInput("--check changes nothing, so there is nothing to continue", where="--check", hint="drop one")
    if request.check and request.baseline is not None:
        raise BadInput("--check validates no host", where="--baseline", hint="drop one of the two")
    if request.reboot_guests and not request.reboot:
        raise BadInput("--reboot-guests without --reboot", where="--reboot-guests", hint="give both")
    parse_sizes(request.waves if request.waves is not None else DEFAULT_WAVES)
    handed_on.checked(request.options)
    for word in request.extra:
        if word.startswith("@"):
            load(word[1:], what="a file of variables (YAML or JSON)")
        elif "=" not in word and not word.lstrip().startswith("{"):
            raise BadInput(f"{word[:80]!r} is not a variable", where="-e", hint="write KEY=VALUE, or @FILE")
        handed_on.check_variable(word)


def read_intent(path: str | None) -> str | None:
    """Return the digest of the intent file, None without a path.

    Raises BadInput for a file that contains no template variables and is not a valid intent.
    """
    if path is None:
        return None
    text = load_text(path, what="an intent (YAML or JSON)", size="intent")
    if "{{" not in text:
        from hosttune.model.intent import Intent

        Intent.from_yaml(text, where=path)
    return digest(text.encode())


def order_of(request: FleetRequest) -> PlaybookOrder:
    """Return the order for each ansible of the run, without its hosts."""
    given = {
        "hosts": "all",  # of those behind --limit
        "report": False,  # it has its own
        "results": os.path.abspath(request.results),
        "intent": os.path.abspath(request.intent) if request.intent is not None else None,
        "level": request.level,
        "gate": request.gate or ("either" if request.verb in WAVES else None),
        "timeout": request.timeout,
        "reboot": request.reboot or None,
        "reboot_guests": request.reboot_guests or None,
        "recover": request.recover or None,
        "course": {HANDOVER: False, COURSE: True}.get(request.verb),
        "waves": ["100%"] if request.verb in WAVES else None,  # here each wave is a separate run of the playbook
    }
    return PlaybookOrder(
        verb=request.verb,
        inventories=tuple(source if "," in source else os.path.abspath(source) for source in request.inventories),
        hosts=(),
        results=os.path.abspath(request.results),
        variables={f"hosttune_{name}": value for name, value in given.items() if value is not None},
        options=(*(word for extra in request.extra for word in ("-e", extra)), *request.options),
        forks=request.forks,
        check=request.check,
        playbooks=request.playbooks,
    )


def past_of(request: FleetRequest) -> RecordedRun | None:
    """Return the run to be resumed; None for a new run.

    Raises BadInput if there is no run to resume, or if its --limit or --waves differ from those given. A run is resumed
    with the same command and --resume.
    """
    if not request.resume and not request.retry:
        return None
    past = read_past(request.results, request.verb)
    if past is None:
        raise BadInput(f"no run of {request.verb} to continue", where=request.results, hint="leave it out to begin one")
    if request.limit not in (None, past.began.limit):
        began = f"--limit {past.began.limit}" if past.began.limit is not None else "no --limit"
        raise BadInput(f"the run began with {began}", where="--limit", hint="leave it out, or begin a new run")
    if request.waves is not None and parse_sizes(request.waves) != past.began.waves:
        began = ",".join(past.began.waves)
        raise BadInput(f"the run's waves are {began}", where="--waves", hint="leave it out, or begin a new run")
    if request.declared is not None and request.declared != past.began.declared:
        began = "another declared baseline" if past.began.declared is not None else "no declared baseline"
        raise BadInput(f"the run began with {began}", where="--baseline", hint="leave it out, or begin a new run")
    return past


def read_past(results: str, verb: str | None, run: str | None = None) -> RecordedRun | None:
    """Return the named run, or else the last run of a verb, from the record of a results folder; None if none.

    Raises BadInput if the record cannot be read.
    """
    return past_run(read_record(results), verb, run)


def read_record(results: str) -> tuple[Line, ...]:
    """Return the lines of the record of a results folder; none if there is none. Raises BadInput."""
    path = os.path.join(results, RECORD)
    data = read_file(path)
    return decode(data, where=path) if data is not None else ()


def with_recorded_request(request: FleetRequest, past: RecordedRun) -> FleetRequest:
    """Return the request of a run to be resumed. Values that are not given come from its record."""
    began = past.began
    return replace(
        request,
        limit=began.limit,
        intent=request.intent if request.intent is not None else began.intent,
        level=request.level if request.level is not None else began.level,
        gate=request.gate or past.gate,
        declared=began.declared,
    )


@contextmanager
def interruptible() -> Iterator[Stop]:
    """Within this context, Ctrl-C, SIGTERM and SIGHUP end the run in order; a second signal ends it at once.

    Signals that the parent process set to be ignored (nohup, a background job of a script) stay ignored.
    """
    stop = Stop()
    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: stop.now()) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
