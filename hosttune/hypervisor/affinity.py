"""The CPUs of the threads of running guests as a setting: written by libvirt, read back from the kernel.

libvirt: virDomainPinVcpu, PinEmulator and PinIOThread with VIR_DOMAIN_AFFECT_LIVE alone, by virsh; each changes the
thread's control group and its affinity, so it works while the guest runs. What counts is the kernel's word: proc(5),
Cpus_allowed_list in `status` of each thread, which is what affinity and cpuset both allow.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import msgspec

from hosttune.discovery.cpu import cpuset_of_guest
from hosttune.discovery.processes import read_threads
from hosttune.discovery.sets import read_set
from hosttune.domain.moves import Move, Thread, in_safe_order
from hosttune.domain.reader import read_domain
from hosttune.errors import CommandFailed, Unreadable, WriteFailed
from hosttune.hypervisor.connection import (
    CHANGE_SECONDS,
    ask,
    identity_of,
    is_active,
    known_uuid,
    process_of,
    read_state,
    virsh,
)
from hosttune.hypervisor.definition import GUESTS
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.affinity import EMULATOR, Affinity, masks, read_affinity, thread_of
from hosttune.model.values import CpuSet, FrozenMap, parse_cpus
from hosttune.settings.setting import GUEST_STAGE, WrittenTogether, refuse

PIN = "virsh-pin-"  # name of the call, followed by the guest's name; its value is a thread and its CPUs
_COMMANDS = {"vcpu": "vcpupin", EMULATOR: "emulatorpin", "iothread": "iothreadpin"}
STOPPED = "it does not run: its definition holds when it starts"


class LiveAffinity(WrittenTogether):
    """The CPUs of the threads of running guests. Target: a guest's name. Value: see `model.affinity`.

    The guests of one plan are written together, because the order of their moves counts (`domain.moves`). A word that a
    wanted value lacks is a thread that stays as it is. A guest that does not run has no part. What was read names the
    process: when that has ended, nothing of it is left to restore or to differ, and a later process is not changed.
    """

    kind: ClassVar[str] = "live-affinity"
    stage: ClassVar[int] = GUEST_STAGE
    may_stop_midway: ClassVar[bool] = True  # one thread after the other
    targets = GUESTS

    def check(self, value: Any) -> None:
        """See Setting."""
        for name, text in self.parts(value).items():
            try:
                plain = isinstance(text, str) and "|" not in text and read_affinity(text).without_notes() == text
            except ValueError:
                plain = False
            if not plain or name not in self.names:
                raise refuse(self.kind, name, f"not the CPUs of threads: {str(text)[:80]!r}", 'write "vcpu.0=4"')

    def waiting(self, system: System) -> Mapping[str, str]:
        """See WrittenTogether."""
        return {name: STOPPED for name in self.names if not is_active(read_state(system, name))}

    def waits_for(self, system: System) -> str | None:
        """See Setting."""
        return "; ".join(f"guest {name}: {why}" for name, why in self.waiting(system).items()) or None

    def read(self, system: System) -> Any:
        """See Setting."""
        return FrozenMap(
            {name: str(affinity) for name in self.names if (affinity := affinity_of(system, name)) is not None}
        )

    def effective(self, system: System) -> Any:
        """See Setting. The CPUs alone, as the kernel has them."""
        pairs = ((name, affinity_of(system, name, libvirts=False)) for name in self.names)
        return FrozenMap({name: affinity.without_notes() for name, affinity in pairs if affinity is not None})

    def agrees(self, live: Any, want: Any) -> bool:
        """See Setting. Also for one guest's part."""
        if isinstance(want, Mapping):
            return isinstance(live, Mapping) and all(_agrees(live.get(name), text) for name, text in want.items())
        return _agrees(live, want)

    def write(self, system: System, value: Any) -> str | None:
        """See Setting. Raises WriteFailed before the first move if a cpuset forbids a wanted CPU."""
        wanted = sorted(self.parts(value).items())
        guests = {name: _GuestAffinity(name, read_affinity(text), _running(system, name)) for name, text in wanted}
        for guest in guests.values():
            guest.refuse_forbidden(system)
        threads = [thread for guest in guests.values() for thread in guest.threads()]
        try:
            reader = Reader(system)
            cpus = CpuSet(cpu for thread in threads for cpu in thread.now | thread.want)
            siblings = {cpu: read_set(reader, f"{sysfs.CPUS}/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus}
            moves = in_safe_order(threads, {cpu: min(cpu_set) for cpu, cpu_set in siblings.items() if cpu_set})
        except ValueError as error:
            raise WriteFailed("the CPUs of guests", str(error)) from error
        # Where the kernel has the wanted CPUs already, and libvirt reports others.
        again = [
            thread for thread in threads if thread.now == thread.want and guests[thread.guest].differs(thread.name)
        ]
        refused = _made(system, guests, (*(Move(thread, thread.want) for thread in again), *moves))
        missing = [(guest.name, ", ".join(guest.missing())) for guest in guests.values() if guest.missing()]
        return refused or "; ".join(f"guest {name} has no thread of {words}" for name, words in missing) or None


def _agrees(live: str | None, want: str) -> bool:
    wanted = read_affinity(want)
    if live is None:
        return wanted.process is not None  # it has ended
    now = read_affinity(live)
    if wanted.process is None:
        return all(_is_on(now, wanted, thread) for thread in wanted.cpus)
    return wanted.process != now.process or all(_is_on(now, wanted, one) for one in wanted.cpus if one in now.cpus)


def _is_on(now: Affinity, want: Affinity, thread: str) -> bool:
    """Return whether a thread has its wanted CPUs, and libvirt reports no others."""
    cpus, wanted = now.cpus.get(thread), want.cpus[thread]
    same = cpus == wanted or (cpus is not None and "|" in wanted and _all_of(cpus) == _all_of(wanted))
    return same and (thread not in now.libvirt or thread in want.libvirt)


def _all_of(cpus: str) -> CpuSet:
    """Return the CPUs of all threads of one word: libvirt has one list for all of the emulator's threads."""
    return CpuSet(cpu for mask in masks(cpus) for cpu in mask)


class _GuestAffinity(msgspec.Struct, frozen=True):
    """A running guest: the CPUs of its threads as wanted and as they are."""

    name: str
    want: Affinity
    now: Affinity

    def differs(self, thread: str) -> bool:
        """Return whether a thread is to be changed."""
        return thread in self.now.cpus and not _is_on(self.now, self.want, thread)

    def missing(self) -> list[str]:
        """Return the wanted threads that it does not have: a vCPU that is not plugged in."""
        return [thread for thread in self.want.cpus if thread not in self.now.cpus]

    def threads(self) -> Iterator[Thread]:
        """Yield its threads that are wanted somewhere."""
        for thread, cpus in self.want.cpus.items():
            if thread in self.now.cpus:
                yield Thread(self.name, thread, _all_of(self.now.cpus[thread]), _all_of(cpus))

    def refuse_forbidden(self, system: System) -> None:
        """Raise WriteFailed if its cpuset lacks a CPU that a thread is to have."""
        wanted = CpuSet(cpu for one in self.want.cpus if self.differs(one) for cpu in _all_of(self.want.cpus[one]))
        allowed = cpuset_of_guest(Reader(system), _process(self.now)) if wanted else None
        if allowed is not None and (forbidden := wanted - allowed[1]):
            group, cpus = allowed
            hint = f"systemctl set-property --runtime {group.rpartition('/')[2]} AllowedCPUs={cpus | wanted}"
            what = f"its control group {group} has only CPUs {cpus}, so no thread can run on {forbidden}: {hint}"
            raise WriteFailed(f"guest {self.name}", what)


# --- what is -------------------------------------------------------------------------------------------------


def affinity_of(system: System, name: str, *, libvirts: bool = True) -> Affinity | None:
    """Return the CPUs of a guest's threads; None if it does not run. Raises Unreadable if they are not all known.

    `libvirts`: with the pins that libvirt reports and the kernel does not have.
    """
    if not is_active(read_state(system, name)):
        return None
    process = process_of(system, name)
    if process is None:
        raise Unreadable(f"the process of guest {name}", "no QEMU of that name is found")
    cpus = _cpus_of(system, process)
    pins = _libvirts(system, name, cpus) if libvirts else {}
    return Affinity(cpus=cpus, libvirt=pins, process=identity_of(system, process))


def _running(system: System, name: str) -> Affinity:
    affinity = affinity_of(system, name)
    if affinity is None:
        raise WriteFailed(f"guest {name}", STOPPED)
    return affinity


def _cpus_of(system: System, process: int) -> Mapping[str, str]:
    """Return the CPUs by thread, without offline ones, which the kernel may or may not list. Raises Unreadable."""
    reader = Reader(system)
    online = _online(reader)
    by_thread: dict[str, set[str]] = {}
    for thread in read_threads(reader, process) or ():
        word = thread_of(thread.name)
        if word is not None:
            cpus = parse_cpus(thread.cpus)
            by_thread.setdefault(word, set()).add(str(cpus & (online or cpus)))
    unread = "; ".join(f"{problem.where}: {problem.why}" for problem in reader.problems)
    if unread or EMULATOR not in by_thread or any("" in cpus for cpus in by_thread.values()):
        raise Unreadable(f"/proc/{process}/task", unread or "the CPUs of its threads are not all known")
    return FrozenMap({word: "|".join(sorted(cpus)) for word, cpus in by_thread.items()})


def _online(reader: Reader) -> CpuSet | None:
    return read_set(reader, f"{sysfs.CPUS}/online")


def _process(affinity: Affinity) -> int:
    return int((affinity.process or "").partition(".")[0])


def _libvirts(system: System, name: str, cpus: Mapping[str, str]) -> Mapping[str, str]:
    """Return, by thread, the pins of the running guest that libvirt reports and the kernel does not have."""
    if system.captured:
        return {}
    facts = read_domain(ask(system, "dumpxml", known_uuid(system, name)), where=f"guest {name}")
    pins = {f"vcpu.{pin.id}": parse_cpus(pin.cpus) for pin in facts.vcpu_pins}
    pins |= {f"iothread.{pin.id}": parse_cpus(pin.cpus) for pin in facts.iothread_pins}
    pins |= {EMULATOR: parse_cpus(facts.emulator_cpus)} if facts.emulator_cpus else {}
    online = _online(Reader(system))
    differing = (one for one, pin in pins.items() if one in cpus and pin & (online or pin) != _all_of(cpus[one]))
    return FrozenMap({one: str(pins[one]) for one in differing})


# --- moves ---------------------------------------------------------------------------------------------------


class _NotFollowed(WriteFailed):
    """libvirt accepted a change that the kernel does not show."""


def _made(system: System, guests: Mapping[str, _GuestAffinity], moves: Iterable[Move]) -> str | None:
    """Make the moves in order. Return why the first one changed nothing; raises WriteFailed for a later one.

    A later move may put a thread onto CPUs that an earlier one has freed, so none is made after one that failed.
    """
    uuids: dict[str, str] = {}
    for number, move in enumerate(moves):
        guest, thread, cpus = guests[move.thread.guest], move.thread.name, str(move.cpus)
        name = f"{PIN}{guest.name}"
        try:
            system.tell(name, f"{thread}={cpus}", partial(_pin_and_read, system, guest, thread, cpus, uuids))
        except _NotFollowed as error:
            if number:
                raise
            before = str(move.thread.now)
            system.tell(name, f"{thread}={before}", partial(_pin, system, uuids[guest.name], guest, thread, before))
            return error.reason
    return None


def _pin_and_read(system: System, guest: _GuestAffinity, thread: str, cpus: str, uuids: dict[str, str]) -> None:
    """Change one thread and read it back. Raises WriteFailed, CommandFailed, Unreadable."""
    if guest.name not in uuids:
        uuids[guest.name] = known_uuid(system, guest.name)
    _pin(system, uuids[guest.name], guest, thread, cpus)
    process = _process(guest.now)
    now = _cpus_of(system, process).get(thread)
    if identity_of(system, process) != guest.now.process:
        raise WriteFailed(f"guest {guest.name}", "its process ended meanwhile")
    if now != cpus:
        what = f"libvirt accepted CPUs {cpus} for {thread}, and the kernel has {now or 'no such thread'}"
        raise _NotFollowed(f"guest {guest.name}", what)


def _pin(system: System, uuid: str, guest: _GuestAffinity, thread: str, cpus: str) -> None:
    """Pin a thread by libvirt, and the emulator's threads that libvirt leaves where they are.

    Without a control group for the emulator (qemu.conf, cgroup_controllers) it moves the process' first thread alone.
    """
    word, _, number = thread.partition(".")
    numbers = (number,) if number else ()
    system.change(virsh(_COMMANDS[word], uuid, *numbers, cpus, "--live"), timeout=CHANGE_SECONDS)
    for task in _left_behind(system, _process(guest.now), cpus) if thread == EMULATOR else ():
        with contextlib.suppress(CommandFailed):  # it ended, or its cpuset forbids it: what is read back counts
            system.change(("taskset", "--pid", "--cpu-list", cpus, task), timeout=CHANGE_SECONDS)


def _left_behind(system: System, process: int, cpus: str) -> Iterator[str]:
    """Yield the threads of the emulator that may run on other CPUs."""
    for task in system.list(f"/proc/{process}/task"):
        folder = f"/proc/{process}/task/{task}"
        if thread_of(system.read(f"{folder}/comm") or "") == EMULATOR:
            shown = re.search(r"^Cpus_allowed_list:\s*(\S+)$", system.read(f"{folder}/status") or "", re.MULTILINE)
            if shown is not None and parse_cpus(shown[1]) != CpuSet.parse(cpus):
                yield task
