"""Faults at every point of a transaction: SIGKILL, a signal, a failing write or fsync, at the nth of them.

Points are found, not listed. They are: before and after each call of a System that changes something (by introspection:
what Machine and Scratch both override and a capture refuses), before and after each fsync of the journal, and before
each change of a file that these calls and the engine make (by Python's audit events), unless it stands for the inside
of one kernel call. A counter in shared memory counts them, so that those in a child that the engine forks count too.
"""

from __future__ import annotations

import gc
import inspect
import mmap
import os
import shutil
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hosttune.errors import CommandFailed, HosttuneError, WriteFailed
from hosttune.journal import Record, Store, Transaction
from hosttune.machine.capture import Capture
from hosttune.machine.live import LiveMachine
from hosttune.machine.scratch import Scratch
from hosttune.machine.scratchfiles import ScratchFiles
from hosttune.machine.system import STATE_INSIDE, System
from hosttune.model.result import Result
from hosttune.model.values import freeze
from hosttune.transaction.site import Site
from hosttune.transaction.steps import setting_of_record

BEFORE, AFTER, SYNC, SYNCED, FILE = "before", "after", "sync", "synced", "file"
ALL_POINTS = frozenset((BEFORE, AFTER, SYNC, SYNCED, FILE))
# Inside these, what a scratch root does stands for one call of the kernel or of a command: whole, or not at all.
WHOLE = frozenset(("write", "write_register", "change", "tell"))
_WRITING = os.O_WRONLY | os.O_RDWR
_CHANGES = frozenset(
    ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod", "os.chown")
)
_OURS = ("lock", "transactions", "scratch", "gpus.json", "plan.json")  # of the state directory, what is no setting
_ANSWERS = "/.hosttune/commands"  # stand for libraries and daemons, whose state is compared by reading it
BOOT_ID = "11111111-0000-4000-8000-000000000000"


def effect_names() -> tuple[str, ...]:
    """Methods of a System that change it: those that both Machine and Scratch bring, and no capture has."""
    stand_in = vars(Scratch).keys() | vars(ScratchFiles).keys()
    both = {name for name in vars(LiveMachine) if name in stand_in and hasattr(System, name)}
    recorded = {name for room in Capture.__mro__ if room not in (System, object) for name in vars(room)}
    return tuple(sorted(name for name in both - recorded if not name.startswith("_")))


# --- faults --------------------------------------------------------------------------------------------------


@dataclass
class Faults:
    """What happens at the nth point of some kinds (`at` 0: never). The counters are shared with forked children.

    `act` is called with what the point is; `again`: at this point, too; `persistent`: at every later one. `inside`:
    only points in a child that the engine forked count.
    """

    at: int = 0
    kinds: frozenset[str] = ALL_POINTS
    act: Callable[[Faults, str], None] = lambda faults, what: None
    again: int = 0
    persistent: bool = False
    inside: bool = False
    engine: int = field(default_factory=os.getpid)
    depth: int = 0  # effects within effects are theirs
    quiet: bool = False
    whole: frozenset[str] = WHOLE  # effects without points inside them
    state: str = ""  # the state directory: only there are files changed without a System
    _memory: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, mmap.PAGESIZE))

    @property
    def count(self) -> int:
        """Points so far."""
        return int(struct.unpack_from("q", self._memory, 0)[0])

    @property
    def child(self) -> int:
        """The last child of the engine that came to a point; 0 for none."""
        return int(struct.unpack_from("q", self._memory, 8)[0])

    @property
    def fired(self) -> str:
        """What the point was that the fault happened at."""
        (length,) = struct.unpack_from("q", self._memory, 16)
        return self._memory[32 : 32 + length].decode()

    def point(self, kind: str, what: str) -> None:
        """One point is reached."""
        here = os.getpid()
        if here != self.engine:
            struct.pack_into("q", self._memory, 8, here)
        if kind not in self.kinds or (self.inside and here == self.engine):
            return
        count = self.count + 1
        struct.pack_into("q", self._memory, 0, count)
        if self.at and (count in (self.at, self.again) or (self.persistent and count > self.at)):
            text = f"{kind} {what}".encode()[:2000]
            self._memory[32 : 32 + len(text)] = text
            struct.pack_into("q", self._memory, 16, len(text))
            self.act(self, what)

    def sync(self, fd: int) -> None:
        """The journal's fsync."""
        self.point(SYNC, "journal")
        self.point(SYNCED, "journal")

    @contextmanager
    def effect(self, name: str, what: str) -> Iterator[None]:
        """Around one change of the System."""
        if self.depth == 0:
            self.point(BEFORE, f"{name} {what}")
        quiet = self.quiet
        self.depth += 1
        self.quiet = quiet or name in self.whole
        try:
            yield
        finally:
            self.depth -= 1
            self.quiet = quiet
        if self.depth == 0:
            self.point(AFTER, f"{name} {what}")

    def watch(self, root: str) -> None:
        """Make points of changes of files below `root`; for the life of this process."""

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open":
                path, flags = arguments[0], arguments[2]
                if not (isinstance(path, str) and path.startswith(root) and flags & _WRITING):
                    return
            elif event not in _CHANGES or not (isinstance(arguments[0], int) or str(arguments[0]).startswith(root)):
                return
            what = f"{event} {arguments[0]}"
            if not self.quiet:
                self.point(FILE, what)
            path = f"{arguments[0]}/"
            ours = path.startswith(f"{self.state}/") or self.state.startswith(path)  # in it, or a folder above it
            if self.depth == 0 and path.startswith("/") and not ours:
                struct.pack_into("q", self._memory, 24, struct.unpack_from("q", self._memory, 24)[0] + 1)

        sys.addaudithook(hook)

    @property
    def strays(self) -> int:
        """Changes of files that were made through no System, and outside the state directory."""
        return int(struct.unpack_from("q", self._memory, 24)[0])


def kill(faults: Faults, what: str) -> None:
    """SIGKILL for the engine, and for the child that works for it."""
    os.kill(faults.engine, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def kill_child(faults: Faults, what: str) -> None:
    """SIGKILL for the child alone."""
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(number: int) -> Callable[[Faults, str], None]:
    """The kernel's refusal of a change, by its errno; of a command, that it failed."""

    def act(faults: Faults, what: str) -> None:
        name, _, rest = what.partition(" ")
        if name == "change":
            raise CommandFailed(tuple(rest.split()), "exit status 1", "it cannot be done")
        raise WriteFailed(rest.partition(" ")[0], os.strerror(number), number)

    return act


def send(*numbers: int) -> Callable[[Faults, str], None]:
    """Signals for the engine."""

    def act(faults: Faults, what: str) -> None:
        for number in numbers:
            os.kill(faults.engine, number)

    return act


class Faulty(Scratch):
    """A scratch root whose changes are points of `faults`."""

    def __init__(self, root: Path, faults: Faults) -> None:
        self.faults = faults
        super().__init__(str(root))


def _with_points(name: str) -> Callable[..., Any]:
    original: Callable[..., Any] = getattr(Scratch, name)

    def method(self: Faulty, *arguments: Any, **named: Any) -> Any:
        with self.faults.effect(name, " ".join(map(str, arguments))[:200]):
            return original(self, *arguments, **named)

    method.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]  # functions take attributes
    return method


for _name in effect_names():
    setattr(Faulty, _name, _with_points(_name))


# --- sites ---------------------------------------------------------------------------------------------------

Job = Callable[[Site], tuple[Result, int]]


def site_on(root: Path, faults: Faults | None = None, *, boot_id: str = BOOT_ID) -> Site:
    """A scratch root as a site, new in all its objects; with faults where they are given."""
    system = Scratch(str(root)) if faults is None else Faulty(root, faults)
    folder = f"{system.root}{STATE_INSIDE}"
    sync = os.fsync if faults is None else faults.sync
    store = Store(folder, sync=sync, ready=system.restore_cut_off)
    return Site(system=system, store=store, boot_id=boot_id, hostname="scratch")


def quiet(text: str) -> None:
    """A transaction's progress, unheard."""


@dataclass(frozen=True)
class Ended:
    """How a forked run ended: its exit code (None: killed), and the points that it passed."""

    code: int | None
    count: int
    fired: str
    strays: int


def run_forked(root: Path, job: Job, faults: Faults, *, watch: bool = True) -> Ended:
    """Run a job in a process of its own, faults and all. An error that nothing should let out is code 70."""
    engine = os.fork()
    if engine == 0:
        failure = 70
        try:
            failure = _engine(root, job, faults, watch)
        except HosttuneError as error:
            failure = error.exit_code
        except KeyboardInterrupt:
            failure = 130
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error} at {faults.fired}\n".encode())
        finally:
            os._exit(failure)
    _, status = os.waitpid(engine, 0)
    await_end(faults.child)
    code = None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return Ended(code, faults.count, faults.fired, faults.strays)


def _engine(root: Path, job: Job, faults: Faults, watch: bool) -> int:
    gc.disable()
    # As in a terminal, also where whoever runs the tests had these ignored (nohup, a shell's background).
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    faults.engine = os.getpid()
    site = site_on(root, faults)
    faults.state = f"{os.path.realpath(root)}{STATE_INSIDE}"
    if watch:
        faults.watch(os.path.realpath(root))
    return job(site)[1]


def await_end(process: int) -> None:
    """Wait for a process that is no child of this one."""
    if process:
        try:
            fd = os.pidfd_open(process)
        except ProcessLookupError:
            return
        try:
            import select

            assert select.select([fd], [], [], 60)[0], f"process {process} does not end"
        finally:
            os.close(fd)


# --- looking -------------------------------------------------------------------------------------------------


def tree_of(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file, link and empty folder of a root, but locks, journals and the scratch root's own notes.

    Of sysfs folders count by files: a driver that was bound once has a folder there, as in the kernel.
    """
    found: dict[str, tuple[int, bytes]] = {}
    base = str(root)
    for folder, folders, names in os.walk(base):
        inside = folder[len(base) :]
        if inside == _ANSWERS:
            continue
        if inside == STATE_INSIDE:
            folders[:] = [name for name in folders if name not in _OURS]
            names = [name for name in names if name not in _OURS]
        elif not (folders or names or inside.startswith("/sys/") or STATE_INSIDE.startswith(f"{inside}/")):
            found[f"{inside}/"] = (-2, b"")
        for name in (*names, *(one for one in folders if os.path.islink(f"{folder}/{one}"))):
            path = f"{folder}/{name}"
            if os.path.islink(path):
                found[f"{inside}/{name}"] = (-1, os.readlink(path).encode())
            else:
                found[f"{inside}/{name}"] = (os.stat(path).st_mode, Path(path).read_bytes())
    return found


def difference(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """What differs between two trees, by path."""
    gone = [f"{path} is gone" for path in one if path not in other]
    new = [f"{path} is left" for path in other if path not in one]
    return gone + new + [f"{path} differs" for path in one if path in other and one[path] != other[path]]


def transactions(root: Path) -> tuple[Transaction, ...]:
    """The journals of a root."""
    return site_on(root).transactions()


def applied_state(root: Path, records: tuple[Record, ...]) -> tuple[str, ...]:
    """Of each record's setting, by part: "old", "new", "between" (as it declares), or what it reads instead.

    `after` of a record is the new value as it reads.
    """
    return tuple(_standing(root, record) for record in records)


def _standing(root: Path, record: Record) -> str:
    setting = setting_of_record(record)
    live = freeze(setting.read(Scratch(str(root))))
    old, new = freeze(record.old), freeze(record.after)
    for word, value in (("old", old), ("new", new)):
        if live == value or (None not in (live, value) and setting.agrees(live, value)):
            return word
    parts, old_parts, new_parts = (setting.parts(value) for value in (live, old, new))
    if parts.keys() == old_parts.keys() and all(
        part in (old_parts[name], new_parts.get(name)) for name, part in parts.items()
    ):
        return "new"  # part by part: some old, some new
    return "between" if setting.may_stop_midway else f"{setting.kind} reads {live!r:.300}"


def fresh_root(base: Path, files: Mapping[str, str | bytes], links: Mapping[str, str]) -> Path:
    """A scratch root of these files; anything that was there goes."""
    if base.exists():
        shutil.rmtree(base)
    for name, content in {".hosttune/scratch": "", ".hosttune/capture": "", **files}.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for name, target in links.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (base / target).mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(base / target, path.parent))
    return base
