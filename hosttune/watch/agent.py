"""The agent's loop: wait for events, look when a look is due, write the textfile, tell systemd. One thread."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from hosttune.errors import BadInput, HosttuneError
from hosttune.machine.files import let_go
from hosttune.metrics import write_textfile
from hosttune.model.clock import since_boot
from hosttune.transaction.keeping import Keeping
from hosttune.watch.core import LOST, DueLook, Event, NoSource, Opener, OpenSource, Schedule
from hosttune.watch.families import AgentState
from hosttune.watch.footprint import Footprint, ProcessUse, footprint, processes, suspects
from hosttune.watch.foreign import Counter, ProcSample, Watched, advance, sample
from hosttune.watch.looking import Failed, Looker
from hosttune.watch.looking import LookResult as SeenHost

# --- what the service manager is told ------------------------------------------------------------------------


class Notifier:
    """Sends to the socket that systemd names in NOTIFY_SOCKET; without one it does nothing."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        known = dict(os.environ) if environment is None else environment
        address = known.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.ping_seconds = _half(known.get("WATCHDOG_USEC"), known.get("WATCHDOG_PID"))

    def send(self, *lines: str) -> None:
        """Send lines such as READY=1. A manager that does not listen is no error."""
        if not self._address.startswith(("/", "\0")):
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
            door.setblocking(False)
            door.sendto("\n".join(lines).encode(), self._address)


def _half(microseconds: str | None, process: str | None) -> float | None:
    """Return half the watchdog's time in seconds; None if no watchdog asks this process (sd_watchdog_enabled(3))."""
    if microseconds is None or not microseconds.isdecimal() or process not in (None, str(os.getpid())):
        return None
    return max(int(microseconds) / 2e6, 0.05)


# --- the loop ------------------------------------------------------------------------------------------------


_TICK = 0.25  # seconds between two questions to a source that cannot be waited on
_CONNECTING = 1.0  # seconds until a source that waits for its daemon is asked again
_RETRY = (2.0, 4.0, 8.0, 16.0, 30.0, 60.0)  # seconds until a source that is closed is opened again
_NOTICED_SHARE = 0.02  # of one CPU: less than that is not worth a search for suspects
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Say = Callable[[str], None]


def keep_off(pinned: Collection[int]) -> None:
    """Keep this process, and the children that it will have, off the CPUs of guests, as far as others are left."""
    everywhere = set(range(os.cpu_count() or 1)) | os.sched_getaffinity(0)
    wanted = everywhere - set(pinned)
    if wanted and wanted != os.sched_getaffinity(0):
        with suppress(OSError):  # a cpuset allows none of them
            os.sched_setaffinity(0, wanted)


def wait_for(descriptors: Sequence[int], seconds: float) -> None:
    """Wait until one of the descriptors can be read, at most so many seconds."""
    select.select(descriptors, [], [], seconds)


@dataclass
class _SourceSlot:
    """A source, open or to be opened. `was_up`: at the last turn. `tries`: in a row, without success."""

    name: str
    opener: Opener
    source: OpenSource | None = None
    was_up: bool = False
    retry_at: float = 0.0
    tries: int = 0
    told: str = ""
    absent: bool = False
    events: int = 0
    lost: int = 0

    @property
    def up(self) -> bool:
        return self.source is not None and self.source.up


@dataclass
class Agent:
    """The agent. `textfile`: "" to write none. `openers`: its sources by name. `keep`: one turn of --keep, or None.

    `foreign`: count the time of others on pinned CPUs (not for a captured host, whose /proc stands still). `moves`: the
    agent keeps itself off pinned CPUs.
    """

    looker: Looker
    textfile: str
    interval: float
    openers: Mapping[str, Opener]
    say: Say
    keep: Callable[[], Keeping] | None = None
    foreign: bool = True
    moves: bool = False
    notifier: Notifier = field(default_factory=Notifier)
    clock: Callable[[], float] = since_boot
    wait: Callable[[Sequence[int], float], object] = wait_for
    write: Callable[[str, str], None] = write_textfile

    def __post_init__(self) -> None:
        self._slots = [_SourceSlot(name, opener) for name, opener in self.openers.items()]
        self._looks = {"event": 0, "interval": 0}
        self._corrections = {"corrected": 0, "failed": 0}
        self._kept = Keeping()
        self._own = Footprint(None, None)
        self._counters: dict[str, Counter] = {}
        self._foreign: dict[str, float | None] = {}
        self._guests: tuple[Watched, ...] = ()
        self._sample: ProcSample | None = None
        self._ran: Mapping[int, ProcessUse] | None = None
        self._verdict = ""
        self._bad: Mapping[str, str] = {}
        self._unwritten = ""
        self._stopping: str | None = None
        self._looking = False

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, return exit code 0. Raises BadInput if the first textfile cannot be written."""
        gc.enable()
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = {number: signal.signal(number, self._signalled) for number in _SIGNALS}
        woken = signal.set_wakeup_fd(writer)
        try:
            schedule = Schedule(self.interval, self.clock())
            first = True
            while self._stopping is None:
                self.notifier.send("WATCHDOG=1")
                for slot in self._slots:
                    if slot.source is not None or self.clock() < slot.retry_at:
                        continue
                    try:
                        slot.source, slot.absent = slot.opener(), False
                    except NoSource as error:
                        self._closed(slot, error)
                self._take(schedule)
                look = schedule.take(self.clock())
                if look is not None:
                    self._look(look, first=first)
                    if first and self._stopping is None:
                        self.notifier.send("READY=1", f"STATUS={self._status()}")
                        first = False
                    continue
                self._wait(schedule.next_due() - self.clock(), reader)
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            let_go(reader)
            let_go(writer)
            for slot in self._slots:
                if slot.source is not None:
                    slot.source.close()
        self.notifier.send("STOPPING=1")
        self.say(f"ended: {self._stopping}{f'; {self.textfile} stays and grows old' if self.textfile else ''}")
        return 0

    def _signalled(self, number: int, frame: object) -> None:
        if number == signal.SIGHUP:
            self.say("SIGHUP: there is nothing to read again; to change options, restart the agent")
            return
        first = self._stopping is None
        self._stopping = signal.Signals(number).name
        if first and self._looking:
            raise KeyboardInterrupt  # a look can take long, and is not needed any more

    def _wait(self, seconds: float, waking: int) -> None:
        slots = [slot for slot in self._slots if slot.source is not None]
        waits = [slot.source.fileno() for slot in slots if slot.source is not None]
        limits = [seconds, self.notifier.ping_seconds or 3600.0]
        limits += [_TICK for number in waits if number is None]
        limits += [_CONNECTING for slot in slots if not slot.up]
        limits += [slot.retry_at - self.clock() for slot in self._slots if slot.source is None]
        wanted = [waking, *(number for number in waits if number is not None)]
        self.wait(wanted, max(0.0, min(limits)))
        with suppress(BlockingIOError):
            while os.read(waking, 512):
                pass

    # --- sources ---------------------------------------------------------------------------------------------

    def _closed(self, slot: _SourceSlot, error: NoSource) -> None:
        slot.source, slot.absent = None, error.absent
        slot.retry_at = self.clock() + _RETRY[min(slot.tries, len(_RETRY) - 1)]
        slot.tries += 1
        if slot.told != error.why:
            self.say(f"{error.what}; {error.hint}")
            slot.told = error.why

    def _take(self, schedule: Schedule) -> None:
        for slot in self._slots:
            if slot.source is None:
                continue
            try:
                events = slot.source.take()
            except NoSource as error:
                slot.source.close()
                self._closed(slot, error)
                events = ()
            # What happened while it did not is unknown: everything is read again.
            up = slot.up
            if up:
                slot.tries, slot.told = 0, ""
            if up != slot.was_up:
                schedule.add(self.clock(), Event(slot.name, "opened" if up else "closed"))
            slot.was_up = up
            for event in events:
                slot.events += event.what != LOST
                slot.lost += event.what == LOST
                schedule.add(self.clock(), event)

    # --- looks -----------------------------------------------------------------------------------------------

    def _look(self, look: DueLook, *, first: bool) -> None:
        self._looks["event" if look.events else "interval"] += 1
        # The lines about the events of a look, at most five.
        lines = [f"{text}{f' ({count} times)' if count > 1 else ''}" for text, count in look.events]
        for text in lines if len(lines) <= 5 else [*lines[:4], f"and {len(lines) - 4} more kinds of event"]:
            self.say(text)
        self._own = footprint()
        if self.foreign:
            self._count()
        seen = self._ask()
        if isinstance(seen, SeenHost):
            self._tell(seen)
            self._guests = seen.guests
            if self.moves:
                keep_off({cpu for guest in seen.guests for cpu in guest.cpus})
        elif isinstance(seen, Failed):
            self.say(f"the host could not be read: {seen.why}; its state is unknown")
        if seen is not None:
            self._put(seen, first=first)
        if isinstance(seen, SeenHost) and not seen.drifted:
            self._kept = Keeping()  # what was given up or refused is as applied now
        elif self.keep is not None and isinstance(seen, SeenHost) and self._keep_turn(self.keep):
            again = self._ask()
            if again is not None:
                self._put(again, first=first)

    def _ask(self) -> SeenHost | Failed | None:
        """Make a look; None if a signal has ended the agent meanwhile."""
        if self._stopping is not None:
            return None
        self.notifier.send("WATCHDOG=1")  # with --keep there are two looks and a transaction in one turn of the loop
        self._looking = True
        try:
            state = AgentState(
                interval=self.interval,
                looks=dict(self._looks),
                failed=False,
                events={slot.name: slot.events for slot in self._slots},
                lost={slot.name: slot.lost for slot in self._slots},
                up={slot.name: slot.up for slot in self._slots if not slot.absent},
                cpu_seconds=self._own.cpu_seconds,
                resident_bytes=self._own.resident_bytes,
                keeping=self.keep is not None,
                corrections=dict(self._corrections),
                given_up=tuple(
                    (setting.kind, setting.target) for setting in self._kept.settings if setting.outcome == "given-up"
                ),
                refused=self._kept.refused is not None,
            )
            seen = self.looker.look(state, self._foreign)
        except KeyboardInterrupt:
            return None
        finally:
            self._looking = False
        return seen if self._stopping is None else None

    def _put(self, seen: SeenHost | Failed, *, first: bool) -> None:
        """Write the textfile. If that fails later on, each reason is said once, and it is tried again at each look."""
        try:
            if self.textfile:
                self.write(self.textfile, seen.text)
        except BadInput as error:
            if first:
                raise
            if error.what != self._unwritten:
                self.say(f"{error.what} ({error.where}): {error.hint}; the file grows old until then")
            self._unwritten = error.what
            return
        if self._unwritten:
            self.say(f"{self.textfile} is written again")
        self._unwritten = ""

    def _tell(self, seen: SeenHost) -> None:
        """Say what has changed since the last look."""
        worse = [f"{name}: {outcome}" for name, outcome in seen.bad.items() if self._bad.get(name) != outcome]
        better = [name for name in self._bad if name not in seen.bad]
        if self._verdict:
            for line in worse[:10]:
                self.say(line)
            if len(worse) > 10:
                self.say(f"and {len(worse) - 10} more results")
            if better:
                more = f" and {len(better) - 3} more" if len(better) > 3 else ""
                self.say(f"no longer: {', '.join(better[:3])}{more}")
        if seen.verdict != self._verdict:
            self.say(f"verdict {seen.verdict}{f', was {self._verdict}' if self._verdict else ''}")
        changed = seen.verdict != self._verdict
        self._verdict, self._bad = seen.verdict, seen.bad
        if changed:
            self.notifier.send(f"STATUS={self._status()}")

    def _status(self) -> str:
        closed = [slot.name for slot in self._slots if not slot.up and not slot.absent]
        events = f"; no events of {', '.join(closed)}" if closed else ""
        return f"verdict {self._verdict or 'unknown'}{events}"

    # --- others on pinned CPUs -------------------------------------------------------------------------------

    def _count(self) -> None:
        """Count the time of others since the last look; name suspects where there is enough of it to matter."""
        system = self.looker.system()
        now = sample(system, self._guests, self.clock()) if system is not None else None
        counters = advance(self._counters, self._guests, self._sample, now)
        self._counters = {guest.name: counters[guest.name] or self._counters.get(guest.name) or Counter()
                          for guest in self._guests}  # fmt: skip
        self._foreign = {name: None if counter is None else counter.shown for name, counter in counters.items()}
        self._sample = now
        loud = [guest for guest in self._guests if (counter := counters[guest.name]) and counter.share > _NOTICED_SHARE]
        cpus = {cpu for guest in loud for cpu in guest.cpus}
        ran = processes(cpus) if loud else None
        for guest in loud if self._ran is not None and ran is not None else ():
            own = {watched.pid for watched in self._guests} | {os.getpid()}
            names = suspects(self._ran or {}, ran or {}, guest.cpus, own)
            share = counters[guest.name].share  # type: ignore[union-attr]  # loud: not None
            words = ", ".join(names) or "no process: interrupts, or threads of the kernel"
            self.say(f"guest {guest.name}: others used {share:.0%} of a CPU on its pinned CPUs: {words}")
        self._ran = ran

    # --- keeping ---------------------------------------------------------------------------------------------

    def _keep_turn(self, keep: Callable[[], Keeping]) -> bool:
        """Make one turn of --keep. Return whether something was written, so that the host must be read again."""
        before = self._kept
        self.notifier.send("WATCHDOG=1")
        try:
            self._kept = keep()
        except HosttuneError as error:
            self._kept = Keeping(refused=f"{error.what} ({error.where})")
        except KeyboardInterrupt:
            self._stopping = "a signal during a correction, which was rolled back"
            return True
        if self._kept.interrupted:
            self._stopping = "a signal during a correction, which was rolled back"
        if self._kept.refused is not None and self._kept.refused != before.refused:
            self.say(f"nothing is kept: {self._kept.refused}")
        for setting in self._kept.settings:
            if setting.outcome in self._corrections:
                self._corrections[setting.outcome] += 1
            if setting.outcome != "given-up" or setting not in before.settings:
                self.say(
                    f"{setting.kind} {setting.target}: {setting.outcome}{f': {setting.why}' if setting.why else ''}"
                )
        return any(setting.outcome != "given-up" for setting in self._kept.settings)
