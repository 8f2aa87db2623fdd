"""The journal: what a transaction is about to do and has done, on disk before and after each change.

One file for each transaction under STATE/transactions, one JSON object on each line. Each line is synced before the
next step. The first line identifies the transaction. People can read the file; `recover` and `revert` depend on it.

    intent   this setting is about to change from `old` to `new`
    done     the result
    undo     it is about to be reverted
    undone   the result of that
    closed   the end: `applied`, `reverted`, or `kept` if the revert left something that others had changed

After a crash the last line may be incomplete. No step depended on it yet, so it is dropped. Any other line that cannot
be read is an error that names the line: hosttune never guesses. Times are for people; the order is by number.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from hosttune.descriptors import let_go
from hosttune.errors import BadInput, HosttuneError, Refused, WriteFailed, state_remedy
from hosttune.files import make_folder, open_new, read_whole, sync_folder
from hosttune.jsonlines import JsonLines, decoded, drop_torn_line, whole_lines
from hosttune.model.limits import check_size
from hosttune.model.values import Value, close_mappings, to_builtins
from hosttune.state import mode_of
from hosttune.system import put_file

JOURNAL_SCHEMA = "hosttune.journal/v1"
OPEN_STATES = ("applying", "reverting")
_SUFFIX = ".jsonl"
_PLAN = ".plan.json"


class JournalFailed(HosttuneError):
    """The journal cannot be written (a full disk). Nothing may be changed without it."""


class Header(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line: it identifies the transaction."""

    schema: str
    number: int
    verb: str
    version: str
    at: str
    host: str | None = None
    digest: str | None = None
    boot_id: str | None = None
    machine: str | None = None  # which machine it is, even after its CPUs were replaced


class Line(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Any later line; the fields that it has depend on `event`."""

    event: str
    at: str
    step: int | None = None
    kind: str | None = None
    target: str | None = None
    actions: tuple[str, ...] = ()
    scope: str | None = None
    needed: bool | None = None
    old: Any = None
    new: Any = None
    outcome: str | None = None
    value: Any = None
    why: str | None = None
    untouched: bool = False
    state: str | None = None


class Record(Value, frozen=True, kw_only=True):
    """One step of a transaction, from its lines. `outcome` None: it was interrupted before it had one.

    `after`: the value that was read back. `untouched`: it failed before anything was written. `undone`: the result of
    its revert, None before any attempt. `undoing`: a revert of it had begun when the journal ended.
    """

    step: int
    kind: str
    target: str
    actions: tuple[str, ...]
    scope: str
    needed: bool
    old: Any
    new: Any
    outcome: str | None = None
    after: Any = None
    why: str | None = None
    untouched: bool = False
    undone: str | None = None
    undoing: bool = False

    def __post_init__(self) -> None:
        close_mappings(self, "old", "new", "after")

    @property
    def in_force(self) -> bool:
        """Return whether this step's setting is as the transaction left it, as far as the journal shows."""
        return self.to_undo and self.undone != "conflict"

    @property
    def to_undo(self) -> bool:
        """Return whether this step still has to be reverted.

        A step that changed nothing never has: it is not hosttune's.
        """
        nothing = self.outcome == "conflict" or self.dropped or self.untouched
        return not nothing and self.undone in (None, "conflict", "failed")

    @property
    def dropped(self) -> bool:
        """Return whether a write changed nothing."""
        return self.outcome == "ignored" or (self.outcome == "clamped" and self.after == self.old)


class Transaction(Value, frozen=True, kw_only=True):
    """A journal file that was read. `state`: applying, reverting (both unfinished), applied, kept or reverted."""

    path: str
    header: Header
    records: tuple[Record, ...]
    state: str

    @property
    def is_open(self) -> bool:
        """Return whether it was interrupted. If it has no step, there is nothing to roll back."""
        return self.state in OPEN_STATES and bool(self.records)

    @property
    def is_applied(self) -> bool:
        """Return whether it is a finished apply of which nothing was reverted: its plan is applied."""
        return self.state == "applied" and self.header.verb == "apply"

    @property
    def to_revert(self) -> bool:
        """Return whether it is an apply with something left to revert (if kept: what others changed)."""
        return self.state in ("applied", "kept") and self.header.verb == "apply"


_HEADER, _LINE = msgspec.json.Decoder(Header), msgspec.json.Decoder(Line)


# --- reading -------------------------------------------------------------------------------------------------


def read_transaction(path: str) -> Transaction | None:
    """Read a journal file; None if not even its first line is complete. Raises Refused, naming file and line."""
    try:
        check_size(os.path.getsize(path), "journal", path)
    except BadInput as error:
        raise _unreadable(path, 1, error.what) from error
    lines = list(whole_lines(read_whole(path)))
    if not lines:
        return None
    header = decoded(lines[0][1], _HEADER.decode, lambda why: _unreadable(path, 1, why))
    if header.schema != JOURNAL_SCHEMA:
        raise _unreadable(path, 1, f"schema {header.schema!r}, this version writes {JOURNAL_SCHEMA!r}")
    records: dict[int, Record] = {}
    state = "applying"
    for number, text in lines[1:]:
        line = decoded(text, _LINE.decode, partial(_unreadable, path, number))
        try:
            state = _take(records, line, state)
        except (KeyError, ValueError) as error:
            raise _unreadable(path, number, str(error)) from error
    ordered = tuple(records[step] for step in sorted(records))
    return Transaction(path=path, header=header, records=ordered, state=state)


def _take(records: dict[int, Record], line: Line, state: str) -> str:
    """Return the state after one more line. Raises ValueError for a line that is not valid here."""
    if line.event == "closed":
        if line.state not in ("applied", "kept", "reverted"):
            raise ValueError(f"closed as {line.state!r}")
        return line.state
    if line.step is None:
        raise ValueError(f"{line.event!r} without a step")
    if line.event == "intent":
        if line.step in records or line.kind is None or line.target is None or line.scope is None:
            raise ValueError("an intent that is incomplete, or a second one")
        records[line.step] = Record(
            step=line.step, kind=line.kind, target=line.target, actions=line.actions, scope=line.scope,
            needed=bool(line.needed), old=line.old, new=line.new,
        )  # fmt: skip
        return state
    record = records.get(line.step)
    if record is None:
        raise ValueError(f"{line.event!r} of a step without an intent")
    if line.event == "done":
        records[line.step] = msgspec.structs.replace(
            record, outcome=line.outcome, after=line.value, why=line.why, untouched=line.untouched
        )
        return state
    if line.event == "undo":
        records[line.step] = msgspec.structs.replace(record, undoing=True)
        return "reverting"
    if line.event == "undone":
        records[line.step] = msgspec.structs.replace(record, undone=line.outcome, undoing=False)
        return "reverting"
    raise ValueError(f"no event {line.event!r}")


def _unreadable(path: str, number: int, why: str) -> Refused:
    return Refused(
        f"a journal that cannot be read: {why}",
        where=f"{path}, line {number}",
        hint="read it, restore the host by hand if it is unfinished, and move it out of the folder",
    )


# --- writing -------------------------------------------------------------------------------------------------


class Journal:
    """A journal file that is being written: each line is on the disk before the next step."""

    def __init__(self, path: str, lines: JsonLines) -> None:
        self.path = path
        self._lines = lines

    def append(self, value: Value) -> None:
        """Write one line, on disk when this returns.

        Raises JournalFailed; the file then ends with its last whole line.
        """
        self._lines.add(msgspec.json.encode(to_builtins(value)))

    def write(self, event: str, **fields: Any) -> None:
        """Write one event, with its time. Raises JournalFailed."""
        self.append(Line(event=event, at=now(), **fields))

    def close(self) -> None:
        """Close the file. Every line is on disk by then."""
        self._lines.close()


def now() -> str:
    """Return the time for people, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Store:
    """The state directory: lock and journals. A machine has one; a scratch root has its own inside.

    `ready` is called when the lock is taken.
    """

    def __init__(
        self, folder: str, sync: Callable[[int], None] = os.fsync, ready: Callable[[], None] = lambda: None
    ) -> None:
        self.folder = folder
        self._ready = ready
        self._journals = os.path.join(folder, "transactions")
        self._sync = sync

    @contextlib.contextmanager
    def locked(self, name: str = "lock", what: str = "is changing this host") -> Iterator[None]:
        """Hold the lock. `name`: its file; `what`: what its holder does.

        The kernel holds it (flock), so it ends with its process. Raises Refused, naming the holder.
        """
        path = os.path.join(self.folder, name)
        try:
            make_folder(self.folder, mode_of(""))
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode_of(name))
        except OSError as error:
            raise Refused(f"cannot write the state: {error.strerror}", where=path, hint=state_remedy(error)) from error
        try:
            with contextlib.suppress(OSError):
                if os.fstat(fd).st_mode & 0o777 != mode_of(name):  # the umask may have changed it
                    os.fchmod(fd, mode_of(name))
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
                raise Refused(
                    f"another hosttune (process {holder}) {what}", where=path, hint="wait until it ends"
                ) from error
            with contextlib.suppress(OSError):  # the lock also works on a full disk
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            self._ready()
            yield
        finally:
            let_go(fd)

    def is_locked(self) -> bool:
        """Return whether a process holds the lock now; False if that cannot be read."""
        try:
            fd = os.open(os.path.join(self.folder, "lock"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            let_go(fd)
        return False

    def inside(self, name: str) -> Store:
        """Return the store of a folder in this one, with a lock and journals of its own."""
        return Store(os.path.join(self.folder, name), self._sync)

    def transactions(self) -> tuple[Transaction, ...]:
        """Return all journals, oldest first, except those that never began.

        Raises Refused for one that cannot be read.
        """
        try:
            names = sorted(name for name in os.listdir(self._journals) if name.endswith(_SUFFIX))
        except FileNotFoundError:
            return ()
        except OSError as error:
            what = f"cannot read the journals: {error.strerror}"
            raise Refused(what, where=self._journals, hint=state_remedy(error)) from error
        read = (self._read(os.path.join(self._journals, name)) for name in names)
        return tuple(found for found in read if found is not None)

    def _read(self, path: str) -> Transaction | None:
        try:
            return read_transaction(path)
        except OSError as error:
            raise Refused(f"cannot read a journal: {error.strerror}", where=path, hint=state_remedy(error)) from error

    def begin(self, number: int, **facts: Any) -> Journal:
        """Begin a new journal, with its first line on disk. Raises JournalFailed and then leaves nothing behind."""
        path = os.path.join(self._journals, f"{number:06d}{_SUFFIX}")
        try:
            self._make_folder()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # left without a first line
            fd = open_new(path, mode_of("transactions/NAME"), os.O_APPEND)
        except OSError as error:
            raise JournalFailed(
                f"cannot begin a journal: {error.strerror}", where=path, hint="free space on that disk"
            ) from error
        journal = self._journal(path, fd)
        try:
            journal.append(Header(schema=JOURNAL_SCHEMA, number=number, at=now(), **facts))
            sync_folder(self._journals)
        except (JournalFailed, OSError) as error:
            journal.close()
            os.unlink(path)
            if isinstance(error, OSError):
                raise JournalFailed(f"cannot begin a journal: {error}", where=path, hint="make room") from error
            raise
        return journal

    def _make_folder(self) -> None:
        """Make the folder of the journals private to its owner, also if an earlier version made it. Raises OSError."""
        make_folder(self.folder, mode_of(""))
        make_folder(self._journals, mode_of("transactions/"))
        if os.stat(self._journals).st_mode & 0o777 != mode_of("transactions/"):
            os.chmod(self._journals, mode_of("transactions/"))

    def keep_plan(self, number: int, text: str) -> None:
        """Save the plan of a transaction beside its journal, before the journal begins. Raises JournalFailed."""
        try:
            self._make_folder()
            put_file(os.path.join(self._journals, f"{number:06d}{_PLAN}"), text.encode(), mode_of("transactions/NAME"))
        except OSError as error:
            what = f"cannot keep the plan: {error.strerror}"
            raise JournalFailed(what, where=self._journals, hint="free space on that disk") from error
        except WriteFailed as error:
            what = f"cannot keep the plan: {error.reason}"
            raise JournalFailed(what, where=error.path, hint="free space on that disk") from error

    def plan_of(self, transaction: Transaction) -> str | None:
        """Return the plan that a transaction applied, as JSON; None if none was saved."""
        try:
            return read_whole(transaction.path.removesuffix(_SUFFIX) + _PLAN).decode("utf-8", "replace")
        except FileNotFoundError:
            return None

    def reopen(self, transaction: Transaction) -> Journal:
        """Open the journal of a transaction to continue it. An incomplete last line is cut off."""
        try:
            fd = os.open(transaction.path, os.O_RDWR | os.O_CLOEXEC | os.O_APPEND | os.O_NOFOLLOW)
            drop_torn_line(fd)
        except OSError as error:
            what = f"cannot write the journal: {error.strerror}"
            raise JournalFailed(what, where=transaction.path, hint=state_remedy(error)) from error
        return self._journal(transaction.path, fd)

    def _journal(self, path: str, fd: int) -> Journal:
        def failed(error: OSError) -> JournalFailed:
            why = error.strerror or str(error)
            return JournalFailed(f"cannot write the journal: {why}", where=path, hint="free space on that disk")

        return Journal(path, JsonLines(fd, failed, fsync=self._sync))

    def forget(self, transaction: Transaction) -> None:
        """Delete the journal of a transaction of which nothing is applied any more."""
        os.unlink(transaction.path)


def in_force(transactions: Iterable[Transaction]) -> Mapping[tuple[str, str], Record]:
    """Return the newest record of each setting that is applied, i.e. written and not reverted.

    Not included: boot re-applies; writes that changed nothing; what a revert left alone because others had changed it;
    and an interrupted apply, whose steps do not count as applied before it is rolled back.
    """
    return _newest(transactions, lambda record: record.in_force)


def dropped(transactions: Iterable[Transaction]) -> Mapping[tuple[str, str], Record]:
    """Return the newest record of each setting whose write changed nothing."""
    applied = (one for one in transactions if one.is_applied)
    return _newest(applied, lambda record: record.dropped)


def left_alone(transactions: Iterable[Transaction]) -> Mapping[tuple[str, str], Record]:
    """Return the newest record of each setting that a revert left alone because others had changed it."""
    return _newest(transactions, lambda record: record.to_undo and record.undone == "conflict")


def _newest(transactions: Iterable[Transaction], wanted: Callable[[Record], bool]) -> Mapping[tuple[str, str], Record]:
    return {
        (record.kind, record.target): record
        for transaction in transactions
        if transaction.header.verb == "apply" and transaction.state != "applying"
        for record in transaction.records
        if wanted(record)
    }
