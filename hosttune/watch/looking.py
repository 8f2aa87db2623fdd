"""One look at the host: read it, judge it, make the text of the metrics. In a child process, with a time limit.

The child shares the agent's memory as it was when it began, so that nothing is imported again, and takes all that it
used with it when it ends. A device or a daemon that hangs costs one look: it is then reported as failed, with
everything unknown. Nothing of it is written here but the answer.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

import msgspec

from hosttune.discovery.processes import pid_of
from hosttune.errors import HosttuneError, Stuck, Unreadable
from hosttune.machine.child import in_child
from hosttune.machine.live import LiveMachine
from hosttune.machine.opening import open_system
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.metrics import CommandRun, Observed, exposition
from hosttune.model.evidence import Evidence
from hosttune.model.host import Host
from hosttune.model.jsontext import typed_json
from hosttune.model.validation import Acceptance
from hosttune.model.values import Value, to_json
from hosttune.validating import ValidationRequest, exit_code, validate
from hosttune.watch.families import AgentState, families
from hosttune.watch.foreign import Watched

VERB = "watch"
LIMIT_SECONDS = 60.0
MOST_TOLD = 40  # results that are neither pass nor skip, for the journal
_MOST_KEPT_LOG = 1 << 20
_OLDEST = re.compile(r'"time":\s*([0-9]{1,12}\.[0-9]{1,9})')
_OVERLAP_SECONDS = 60.0  # the clock of the log is not quite the monotonic one
_LOG, _JOURNAL = "dmesg", "journalctl"
_NOT_HERE = frozenset(("__main__", "libvirt", "libvirtmod", "pynvml"))  # libraries with a state of their own


class OlderLog(Value, frozen=True):
    """The journal's answer about records that the ring buffer has lost: `text`, asked at `at` seconds after boot."""

    at: float
    text: str


class LookResult(Value, frozen=True, kw_only=True):
    """What a look found. `bad`: results that are neither pass nor skip, by check and subject.

    `guests`: running guests whose vCPUs are all pinned. `drifted`: something has drifted. `older`: see `Remembering`.
    `modules`: what is imported, from the first look.
    """

    text: str
    verdict: str
    bad: Mapping[str, str] = {}
    guests: tuple[Watched, ...] = ()
    drifted: bool = False
    older: OlderLog | None = None
    modules: tuple[str, ...] = ()


class Failed(Value, frozen=True):
    """A look that did not end well: `why`, for people. `text`: the metrics with everything unknown."""

    why: str
    text: str


class Remembering(LiveMachine):
    """This machine, without asking the journal at every look for what it has answered before.

    The journal is asked for records that the kernel's ring buffer has lost. An answer still holds as long as the ring
    buffer begins before the moment of that answer: then the two have no gap.
    """

    def __init__(self, older: OlderLog | None) -> None:
        self.older = older
        self._oldest: float | None = None

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        """See System."""
        known = self.older
        if (
            argv[0] == _JOURNAL
            and known is not None
            and (self._oldest is not None and self._oldest + _OVERLAP_SECONDS < known.at)
        ):
            return known.text
        text = super().run(argv, timeout=timeout)
        if argv[0] == _LOG:
            match = _OLDEST.search(text[:4000])
            self._oldest = float(match[1]) if match else None
        if argv[0] == _JOURNAL:
            self.older = OlderLog(time.monotonic(), text) if len(text) < _MOST_KEPT_LOG else None
        return text


class Looker:
    """Makes looks at one place. `document`: a host document instead of a root; `root` None is this machine.

    `accepted`: what a configuration accepts of the results.
    """

    def __init__(
        self,
        root: str | None,
        document: Host | None,
        *,
        accepted: tuple[Acceptance, ...] = (),
        limit: float = LIMIT_SECONDS,
        child: Callable[[Callable[[], str | None], float, str], str | None] = in_child,
    ) -> None:
        self._root = root
        self._document = document
        self._accepted = accepted
        self._limit = limit
        self._child = child
        self._older: OlderLog | None = None
        self._imported = False
        self._stuck: frozenset[int] = frozenset()

    def system(self) -> System | None:
        """Return the place, opened anew; None for a document. Raises BadInput."""
        if self._document is not None:
            return None
        return open_system(self._root) if self._root is not None else Remembering(self._older)

    def look(self, state: AgentState, foreign: Mapping[str, float | None]) -> LookResult | Failed:
        """Look at the host, and return the text of its metrics with those of the agent."""
        if any(map(still_hangs, self._stuck)):  # one more would hang as well, and keep its memory
            return _failed(state, "an earlier look still hangs in the kernel")
        self._stuck, before = frozenset(), children()
        try:
            answer = self._child(lambda: self._seen(state, foreign), self._limit, "the look at this host")
            seen = typed_json(answer or "", LookResult)
        except (HosttuneError, OSError, RuntimeError, msgspec.DecodeError) as error:
            self._stuck = children() - before if isinstance(error, Stuck) else frozenset()
            return _failed(state, f"{error.what} ({error.where})" if isinstance(error, HosttuneError) else str(error))
        self._older = seen.older
        if not self._imported:
            self._imported = True
            for name in seen.modules:
                if name not in sys.modules and name.partition(".")[0] not in _NOT_HERE:
                    with contextlib.suppress(ImportError):
                        import_module(name)
            gc.collect()
            gc.freeze()
        return seen

    def _seen(self, state: AgentState, foreign: Mapping[str, float | None]) -> str:
        system = self.system()
        begun = time.time()
        validated = validate(
            system or self._document or LiveMachine(), ValidationRequest(accepted=self._accepted, keep=False)
        )
        evidence, validation = validated.evidence, validated.validation
        run = CommandRun(verb=VERB, at=begun, exit_code=exit_code(validation), seconds=max(0.0, time.time() - begun))
        observed = Observed(
            run=run,
            evidence=evidence,
            validation=validation,
            foreign_cpu_seconds=dict(foreign),
            extra=families(state),
        )
        bad = [result for result in validation.results if result.outcome not in ("pass", "skip")]
        applied = evidence.applied_state
        seen = LookResult(
            text=exposition(observed),
            verdict=validation.verdict,
            bad={f"{result.check} {result.subject}": result.outcome for result in bad[:MOST_TOLD]},
            guests=tuple(watched(evidence, system)) if system is not None else (),
            drifted=bool(applied and applied.drift),
            older=system.older if isinstance(system, Remembering) else None,
            modules=() if self._imported else tuple(sys.modules),
        )
        return to_json(seen)


def _failed(state: AgentState, why: str) -> Failed:
    run = CommandRun(verb=VERB, at=time.time(), exit_code=None)
    extra = families(msgspec.structs.replace(state, failed=True))
    return Failed(why, exposition(Observed(run=run, extra=extra)))


def children() -> frozenset[int]:
    """Return the process ids of this process' children; empty where the kernel does not list them."""
    own = os.getpid()
    try:
        return frozenset(map(int, (LiveMachine().read(f"/proc/{own}/task/{own}/children") or "").split()))
    except Unreadable:
        return frozenset()


def still_hangs(child: int) -> bool:
    """Return whether a child that was killed has still not ended; one that has is reaped."""
    try:
        return os.waitpid(child, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def watched(evidence: Evidence, system: System) -> Iterable[Watched]:
    """Yield the running guests of which every vCPU is pinned, and whose process is known."""
    processes = {guest_process.guest: guest_process.pid for guest_process in evidence.processes or ()}
    for guest in evidence.host.guests or ():
        if guest.name not in processes:
            continue
        pins = guest.pins
        pid = processes[guest.name] or pid_of(Reader(system), guest.name)
        if pid is not None and guest.vcpus is not None and len(pins) == guest.vcpus:
            cpus = sorted({cpu for cpus in pins.values() for cpu in cpus})
            yield Watched(name=guest.name, pid=pid, cpus=tuple(cpus))
