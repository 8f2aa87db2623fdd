"""The order in which threads of running guests change their CPUs, so that no two guests share a core that one is given.

Pure. A core is *given* to a guest if vCPUs of that guest want it alone and those of no other guest do. A vCPU may take
its core once all threads of other guests have left it that are to leave it. So in every state between: where a vCPU has
arrived, its guest is alone. Each thread arrives in one move. Where all that are left wait for each other, one is first
moved off the cores that are given to others: to the rest of its CPUs, or, if there is none, to those for emulator
threads, which are housekeeping. Then nobody waits for it. So each thread is moved so at most once, and of threads that
have one core each, one of each cycle: the number of moves is at most that of the threads and the cycles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from hosttune.model.affinity import EMULATOR, VCPU
from hosttune.model.values import CpuSet


class Thread(msgspec.Struct, frozen=True):
    """A thread of a guest ("vcpu.0", "emulator"), the CPUs on which it may run now, and those that it should have."""

    guest: str
    name: str
    now: CpuSet
    want: CpuSet


class Move(msgspec.Struct, frozen=True):
    """One thread, and its CPUs from then on. `meanwhile`: it is moved again later."""

    thread: Thread
    cpus: CpuSet
    meanwhile: bool = False


def in_safe_order(threads: Sequence[Thread], core_of: Mapping[int, int]) -> tuple[Move, ...]:
    """Return the moves that bring every thread to its wanted CPUs. `core_of`: a CPU's core; absent: one of its own.

    Raises ValueError if a thread must leave its CPUs and there is no CPU for it in between.
    """
    room = _Room(threads, core_of)
    moves: list[Move] = []
    left = [thread for thread in threads if thread.now != thread.want]
    while left:
        able = [thread for thread in left if not room.waits(thread)]
        if able:
            ready = next(filter(room.bars, able), able[0])  # what frees cores of others goes first
            moves.append(room.move(ready, ready.want))
            left.remove(ready)
        else:
            thread = room.in_a_cycle(left)
            moves.append(room.move(thread, room.refuge(thread), meanwhile=True))
    return tuple(moves)


class _Room:
    """Which threads may run on which cores at the moment."""

    def __init__(self, threads: Sequence[Thread], core_of: Mapping[int, int]) -> None:
        self._threads = threads
        self._core_of = core_of
        self._order = {thread: number for number, thread in enumerate(threads)}
        self._at = {thread: thread.now for thread in threads}
        self._wanted = {thread: self._cores(thread.want) for thread in threads}
        self._own: dict[Thread, int] = {}  # the core of each vCPU that wants one alone
        wanting: dict[int, set[str]] = defaultdict(set)
        for thread, cores in self._wanted.items():
            if len(cores) == 1 and thread.name.startswith(VCPU):
                self._own[thread] = next(iter(cores))
                wanting[self._own[thread]].add(thread.guest)
        self._given = {core: next(iter(guests)) for core, guests in wanting.items() if len(guests) == 1}
        self._leaving: dict[int, dict[str, set[Thread]]] = defaultdict(dict)  # threads by core and guest; no empty set
        for thread in threads:
            self._put(thread, thread.now)

    def _cores(self, cpus: CpuSet) -> frozenset[int]:
        return frozenset(self._core_of.get(cpu, cpu) for cpu in cpus)

    def _put(self, thread: Thread, cpus: CpuSet) -> None:
        for core in self._cores(cpus) - self._wanted[thread]:
            self._leaving[core].setdefault(thread.guest, set()).add(thread)

    def waits(self, thread: Thread) -> bool:
        """Return whether threads of other guests have yet to leave the core that a vCPU is given."""
        core = self._own.get(thread)
        return core is not None and self._given.get(core) == thread.guest and bool(self._others(thread, core))

    def _others(self, thread: Thread, core: int) -> list[str]:
        return [guest for guest in self._leaving[core] if guest != thread.guest]

    def bars(self, thread: Thread) -> bool:
        """Return whether a thread is on a core that is given to another guest."""
        return any(not self._may_be_on(thread, cpu) for cpu in self._at[thread])

    def in_a_cycle(self, left: Sequence[Thread]) -> Thread:
        """Return a thread of a cycle in which each waits for the next; every one that is left waits for one.

        The last one that has other CPUs of its own; if none has, the last one.
        """
        chain: dict[Thread, None] = {}
        thread = left[0]
        while thread not in chain:
            chain[thread] = None
            core = self._own[thread]
            others = (other for guest in self._others(thread, core) for other in self._leaving[core][guest])
            thread = min(others, key=self._order.__getitem__)
        seen = list(chain)
        cycle = seen[seen.index(thread) :]
        return max(cycle, key=lambda thread: (bool(self._free_for(thread, self._at[thread])), self._order[thread]))

    def refuge(self, thread: Thread) -> CpuSet:
        """Return CPUs where nobody waits for a thread to leave: of its own, else those for emulator threads.

        Raises ValueError.
        """
        own = self._free_for(thread, self._at[thread])
        if own:
            return own
        services = [pinned for pinned in self._threads if pinned.name == EMULATOR]
        mine = [service for service in services if service.guest == thread.guest] or services
        cpu_sets = [self._free_for(thread, cpus) for pinned in mine for cpus in (pinned.want, pinned.now)]
        refuge = min(filter(None, cpu_sets), key=len, default=None)
        if refuge is None:
            what = f"{thread.name} of guest {thread.guest} must leave CPUs {self._at[thread]}"
            raise ValueError(f"{what}, and no CPU is left over for it until its own are free")
        return refuge

    def _free_for(self, thread: Thread, cpus: CpuSet) -> CpuSet:
        return CpuSet(cpu for cpu in cpus if self._may_be_on(thread, cpu))

    def _may_be_on(self, thread: Thread, cpu: int) -> bool:
        core = self._core_of.get(cpu, cpu)
        return self._given.get(core, thread.guest) == thread.guest or core in self._wanted[thread]

    def move(self, thread: Thread, cpus: CpuSet, *, meanwhile: bool = False) -> Move:
        """Put a thread on other CPUs."""
        for core in self._cores(self._at[thread]) - self._wanted[thread]:
            there = self._leaving[core][thread.guest]
            there.remove(thread)
            if not there:
                del self._leaving[core][thread.guest]
        self._put(thread, cpus)
        self._at[thread] = cpus
        return Move(thread, cpus, meanwhile)
