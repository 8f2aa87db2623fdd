"""The memory of a running guest as a setting: moved between nodes by move_pages(2), read back from numa_maps.

Only pages of the guest's RAM move (`discovery.guestram`), in steps of at most 1 GiB, each a call of its own and within
it in small batches with pauses (`movepages`). libvirt is not told: its numatune, the policy of the mappings and the
control groups stay, so a page that comes into memory later follows them.

Not while the guest runs, so only at its next start: vfio pins all memory of a guest with a device (kernel,
driver-api/vfio.rst). A cpuset without the node (libvirt sets cpuset.mems for numatune strict) makes move_pages refuse
it; extending the cpuset is no way out, because with cgroup v2 each write of cpuset.mems moves all memory of the group
at once (admin-guide/cgroup-v2.rst, cpuset.mems). Huge pages need free ones of their size on the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from hosttune.discovery.guestram import CellRam, ram_by_cell
from hosttune.discovery.guests import recorded_domain
from hosttune.domain.facts import DomainFacts
from hosttune.domain.reader import read_domain
from hosttune.errors import BadInput, PartlyRestored, Unreadable, WriteFailed
from hosttune.hypervisor.connection import ask, identity_of, is_active, known_uuid, process_of, read_state
from hosttune.hypervisor.definition import named
from hosttune.model import sysfs
from hosttune.model.guestmemory import MemoryPlaces, Pages, RunningMemory, Step, Transfer, read_memory, transfers
from hosttune.model.values import CpuSet, FrozenMap, format_size, parse_cpus
from hosttune.movepages import Moved, move_range
from hosttune.settings.setting import GUEST_STAGE, refuse
from hosttune.settings.traits import Gradual, NeedsName, Say
from hosttune.system import System

MOVE = "move-pages-"  # name of the call, followed by the guest's name; its value is a step's text
_STEP_BYTES = 1 << 30
_MOST_PASSES = 4  # pages that were in use are tried again, and those that came meanwhile are moved
_READS = 4  # of the mappings, until those of both files are the same
_ORDINARY = 4096
_ALLOWED = re.compile(r"^Mems_allowed_list:\s*(\S+)\s*$", re.MULTILINE)
_MEMINFO = re.compile(r"^Node [0-9]+ (\S+):\s+([0-9]{1,15}) kB$", re.MULTILINE)
# Open files of a process whose devices hold its memory where it is.
_HOLDING = re.compile(r"/dev/vfio/|/dev/iommu$|/dev/vhost-vdpa|anon_inode:\[?(vfio|iommufd)")
STOPPED = "it does not run: its definition holds when it starts"
NEXT_START = "it moves at its next start"


class LiveMemory(Gradual, NeedsName):
    """The nodes of a running guest's memory. Target: the guest's name. Values: see `model.guestmemory`.

    A wanted value names the process: another one is not touched. What was read and is written back is the number of
    pages by node, so any of a cell's pages go back; what does not go back is a conflict that says so. A guest that does
    not run has no value.
    """

    kind: ClassVar[str] = "live-memory"
    stage: ClassVar[int] = GUEST_STAGE
    last_of_stage: ClassVar[bool] = True  # after its threads, so that what it touches from then on is near them
    may_stop_midway: ClassVar[bool] = True  # one page after the other

    @classmethod
    def of(cls, target: str) -> Self:
        """See Setting."""
        return cls(named(cls.kind, target))

    def check(self, value: Any) -> None:
        """See Setting."""
        try:
            sound = isinstance(value, str) and bool(read_memory(value).nodes)
        except ValueError:
            sound = False
        if not sound:
            what = f"not the nodes of cells: {str(value)[:80]!r}"
            raise refuse(self.kind, self.target, what, 'write "cell.0=1 process=1000.4711"')

    def parts(self, value: Any) -> Mapping[str, Any]:
        """See Setting. A guest that does not run has none."""
        return {} if value is None else {"": value}

    def joined(self, parts: Mapping[str, Any]) -> Any:
        """See Setting."""
        return parts.get("")

    def waits_for(self, system: System) -> str | None:
        """See Setting."""
        return None if is_active(read_state(system, self.target)) else STOPPED

    def hindered(self, system: System, want: Any) -> str | None:
        """See NeedsName."""
        now = memory_of(system, self.target)
        return STOPPED if now is None else _hindrance(system, now, read_memory(want))

    def read(self, system: System) -> Any:
        """See Setting."""
        now = memory_of(system, self.target)
        return None if now is None else str(now.places)

    def agrees(self, live: Any, want: Any) -> bool:
        """See Setting. Two readings agree if nothing has to move from one to the other: pages come and go."""
        wanted = read_memory(want)
        if live is None:
            return False
        now = read_memory(live)
        if now.process != wanted.process:
            return not wanted.nodes  # what was read of a process that has ended: nothing of it is left
        known = wanted.nodes.keys() | wanted.pages.keys() <= now.pages.keys()
        return known and not transfers(now, wanted)

    def same_thing(self, now: Any, before: Any) -> bool:
        """See Gradual: the same process, with the same cells."""
        one, other = read_memory(now), read_memory(before)
        return one.process == other.process and one.pages.keys() == other.pages.keys()

    def lies_between(self, now: Any, one: Any, other: Any) -> bool:
        """See Gradual: no node has more pages than in both others, but for those that came into memory since."""
        if not (self.same_thing(now, one) and self.same_thing(now, other)):
            return False
        readings = [read_memory(text).pages for text in (now, one, other)]
        return all(_between(*(pages[cell].on for pages in readings)) for cell in readings[0])

    def write(self, system: System, value: Any) -> str | None:
        """See Setting."""
        return self.write_telling(system, value, lambda text: None)

    def write_telling(self, system: System, value: Any, say: Say) -> str | None:
        """See Gradual. Raises WriteFailed before the first page moves if none may, PartlyRestored, Unreadable."""
        want = read_memory(value)
        now = first = self._present(system, want)
        if want.nodes and (why := _hindrance(system, now, want)):
            raise WriteFailed(f"the memory of guest {self.target}", why)
        moved = Moved()
        for _ in range(_MOST_PASSES):
            self._pass(system, now, want, moved, say)
            before, now = now, self._present(system, want)
            if not transfers(now.places, want) or now.places == before.places:
                break
        left = transfers(now.places, want)
        note = _note(first.places, transfers(first.places, want), left, moved)
        if left and want.pages:
            raise PartlyRestored(f"the memory of guest {self.target}", note or "")
        return note

    def _present(self, system: System, want: MemoryPlaces) -> GuestRam:
        """Return its memory now. Raises Unreadable; if its process ended, or something holds its memory now:
        WriteFailed, or PartlyRestored where it is put back.
        """
        now = memory_of(system, self.target)
        same = now is not None and now.places.process == want.process
        why = _held(system, now) if now is not None and same else "its process ended meanwhile"
        if now is None or why:
            raise (PartlyRestored if want.pages else WriteFailed)(f"the memory of guest {self.target}", why or "")
        return now

    def _pass(self, system: System, now: GuestRam, want: MemoryPlaces, moved: Moved, say: Say) -> None:
        """Move once what has to move, as far as the target has room when memory is put back."""
        for one in transfers(now.places, want):
            size = now.places.pages[one.cell].page_bytes
            left = one.pages if want.nodes else min(one.pages, _room(system, one.target, size))
            done = 0
            for first, last in _steps(now.cells[one.cell], size):
                count = min(left - done, (last - first) // size)
                if count <= 0:
                    break
                step = Step(first, last, one.source, one.target, count)
                before = moved.pages
                system.tell(f"{MOVE}{self.target}", str(step), partial(_move, system, now, step, size, moved))
                done += moved.pages - before if not system.captured else count
                cell = f"cell {one.cell} of guest {self.target}, node {one.source} to {one.target}"
                say(f"  {cell}: {format_size(done * size)} of {format_size(left * size)} moved")


def _between(now: Mapping[int, int], one: Mapping[int, int], other: Mapping[int, int]) -> bool:
    more = sum(max(0, count - max(one.get(node, 0), other.get(node, 0))) for node, count in now.items())
    return more <= max(0, sum(now.values()) - max(sum(one.values()), sum(other.values())))


@dataclass(frozen=True)
class GuestRam:
    """The memory of a running guest: its process, the cells' mappings, and where their pages are.

    `private`: it is encrypted (SEV, TDX), so the host cannot move it, or does not see it in these mappings at all.
    """

    process: int
    facts: DomainFacts
    private: bool
    cells: Mapping[int, CellRam]
    places: MemoryPlaces


def memory_of(system: System, name: str) -> GuestRam | None:
    """Return where the memory of a guest is; None if it does not run. Raises Unreadable if that is not certain."""
    if not is_active(read_state(system, name)):
        return None
    process = process_of(system, name)
    if process is None:
        raise Unreadable(f"the process of guest {name}", "no QEMU of that name is found")
    facts, private = _running_definition(system, name)
    sizes = {cell.id: cell.memory_bytes for cell in facts.cells} or {0: facts.memory_bytes}
    known = {cell: size for cell, size in sizes.items() if size}
    if known.keys() != sizes.keys():
        raise Unreadable(f"guest {name}", "the size of its memory is not known")
    identity = identity_of(system, process)
    if identity.endswith("?"):
        raise Unreadable(f"/proc/{process}/stat", "when the process started is not known")
    cells = _cells(system, process, known)
    pages = FrozenMap({cell: ram.pages for cell, ram in cells.items()})
    return GuestRam(process, facts, private, cells, MemoryPlaces(process=identity, pages=pages))


def _cells(system: System, process: int, sizes: Mapping[int, int]) -> Mapping[int, CellRam]:
    """Return the memory by cell. Raises Unreadable.

    The two files are not read at one moment: while a thread of QEMU starts or ends they differ, and are read again.
    """
    why = ""
    for _ in range(_READS):
        maps, numa_maps = (system.read(f"/proc/{process}/{file}") for file in ("maps", "numa_maps"))
        try:
            return ram_by_cell(maps or "", numa_maps or "", sizes)
        except ValueError as error:
            why = str(error)
    raise Unreadable(f"/proc/{process}/numa_maps", why)


def running_memory(system: System, name: str) -> RunningMemory | None:
    """Return where a guest's memory is, and what keeps it there; None if the guest does not run."""
    try:
        ram = memory_of(system, name)
        if ram is None:
            return None
        return RunningMemory(places=str(ram.places), stays=_held(system, ram), allowed=str(_allowed(system, ram)))
    except Unreadable as error:
        return RunningMemory(stays=f"{error.where}: {error.reason}")


def _running_definition(system: System, name: str) -> tuple[DomainFacts, bool]:
    """Return what libvirt reports of the guest that runs, and whether its memory is private. Raises Unreadable."""
    if system.captured:
        domain = recorded_domain(system, name)
        xml = domain.xml if domain else None
    else:
        xml = ask(system, "dumpxml", known_uuid(system, name))
    if xml is None:
        raise Unreadable(f"guest {name}", "its definition is not recorded")
    try:
        return read_domain(xml, where=f"guest {name}"), "<launchSecurity" in xml
    except BadInput as error:
        raise Unreadable(error.where, error.what) from error


# --- what forbids it -------------------------------------------------------------------------------------------


def _hindrance(system: System, now: GuestRam, want: MemoryPlaces) -> str | None:
    """Return why the memory cannot move now; None if it can. Raises Unreadable."""
    if now.places.process != want.process:
        return "it was started again since it was planned: plan again"
    if want.nodes.keys() != now.places.pages.keys():
        return "it has other cells than planned: plan again"
    return _held(system, now) or _forbidden(system, now, want) or _too_full(system, now.places, want)


def _held(system: System, ram: GuestRam) -> str | None:
    """Return what holds the memory where it is, if anything does. Raises Unreadable if its open files are hidden."""
    if ram.private:
        return f"its memory is private (launchSecurity): {NEXT_START}"
    given = [device.source or device.kind for device in ram.facts.hostdevs if device.kind in ("pci", "mdev")]
    given += [disk.function for disk in ram.facts.disks if disk.function is not None]
    folder = f"/proc/{ram.process}/fd"
    opened = system.list(folder)
    if not opened and not system.scratch:
        raise Unreadable(folder, "which devices the guest has open cannot be seen")
    given += [path for name in opened if (path := system.link(f"{folder}/{name}")) and _HOLDING.search(path)]
    return f"{given[0]} is assigned to it and holds its memory: {NEXT_START}" if given else None


def _forbidden(system: System, ram: GuestRam, want: MemoryPlaces) -> str | None:
    """Return which nodes its cpuset lacks. Raises Unreadable."""
    allowed = _allowed(system, ram)
    lacking = CpuSet(want.nodes.values()) - allowed
    if not lacking:
        return None
    return f"its control group allows memory of node {allowed} only (numatune strict), not of {lacking}: {NEXT_START}"


def _allowed(system: System, ram: GuestRam) -> CpuSet:
    """Return the nodes that the process' cpuset allows (proc(5), status). Raises Unreadable."""
    path = f"/proc/{ram.process}/task/{ram.process}/status"
    found = _ALLOWED.search(system.read(path) or "")
    if found is None:
        raise Unreadable(path, "it has no Mems_allowed_list")
    return parse_cpus(found[1])


def _too_full(system: System, now: MemoryPlaces, want: MemoryPlaces) -> str | None:
    """Return which node has too few free pages. Raises Unreadable."""
    needs: dict[tuple[int, int], int] = {}
    for one in transfers(now, want):
        key = one.target, now.pages[one.cell].page_bytes
        needs[key] = needs.get(key, 0) + one.pages
    for (node, size), count in sorted(needs.items()):
        if (free := _room(system, node, size)) < count:
            return f"node {node} has room for {free} pages of {format_size(size)}, and {count} have to move there"
    return None


def _room(system: System, node: int, page_bytes: int) -> int:
    """Return how many pages of a size a node has free. Raises Unreadable.

    Of ordinary ones: MemFree and half of the file cache, less a 64th of the node, which stays free.
    """
    folder = f"{sysfs.NODES}/node{node}"
    if page_bytes != _ORDINARY:
        path = f"{folder}/hugepages/hugepages-{page_bytes >> 10}kB/free_hugepages"
        free = system.read(path)
        if free is None or not free.isdecimal():
            raise Unreadable(path, "the free huge pages of the node are not known")
        return int(free)
    path = f"{folder}/meminfo"
    kib = {name: int(size) for name, size in _MEMINFO.findall(system.read(path) or "")}
    try:
        cache = kib["Active(file)"] + kib["Inactive(file)"]
        return max(0, kib["MemFree"] + cache // 2 - kib["MemTotal"] // 64) >> 2
    except KeyError as error:
        raise Unreadable(path, f"it has no line {error.args[0]}") from error


# --- moving ----------------------------------------------------------------------------------------------------


def _steps(ram: CellRam, page_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the addresses of a cell's memory, in steps of at most 1 GiB or one page."""
    size = max(_STEP_BYTES, page_bytes)
    for start, end in ram.ranges:
        for first in range(start, end, size):
            yield first, min(first + size, end)


def _move(system: System, ram: GuestRam, step: Step, page_bytes: int, moved: Moved) -> None:
    """Make one step. Raises WriteFailed, also if the process is another one now."""
    if identity_of(system, ram.process) != ram.places.process:
        raise WriteFailed(f"process {ram.process}", "it ended meanwhile")
    addresses = range(step.start, step.end, page_bytes)
    move_range(ram.process, addresses, step.source, step.target, step.pages, moved)


def _note(before: MemoryPlaces, asked: tuple[Transfer, ...], left: tuple[Transfer, ...], moved: Moved) -> str | None:
    """Return what moved, by what was read before and after, what stayed and why; None where nothing is known."""
    stayed = [_stayed(before.pages[one.cell], one) for one in left]
    if not moved.pages and not moved.failed and not stayed:
        return None
    count = max(0, sum(one.pages for one in asked) - sum(one.pages for one in left))
    parts = [f"{count} pages moved", *stayed]
    return "; ".join([*parts, f"not moved at a try: {moved.failures}"] if moved.failed else parts)


def _stayed(pages: Pages, one: Transfer) -> str:
    what = f"{one.pages} of {format_size(pages.page_bytes)} of cell {one.cell}"
    return f"{what} stay on node {one.source}, not on {one.target}"
