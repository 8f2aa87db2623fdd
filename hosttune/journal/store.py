"""The folder of journals: its lock, and a journal as it is written."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from hosttune.errors import HosttuneError, Refused, WriteFailed, state_remedy
from hosttune.journal.jsonlines import JsonLines, drop_torn_line
from hosttune.journal.records import JOURNAL_SCHEMA, Header, Line, Transaction, read_transaction
from hosttune.journal.state import mode_of
from hosttune.machine.files import let_go, make_folder, open_new, read_whole, sync_folder
from hosttune.machine.system import put_file
from hosttune.model.clock import now_text
from hosttune.model.values import Value, to_builtins

_SUFFIX = ".jsonl"
_PLAN = ".plan.json"


class JournalFailed(HosttuneError):
    """The journal cannot be written (a full disk). Nothing may be changed without it."""


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
        self.append(Line(event=event, at=now_text(), **fields))

    def close(self) -> None:
        """Close the file. Every line is on disk by then."""
        self._lines.close()


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
        return tuple(transaction for transaction in read if transaction is not None)

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
            journal.append(Header(schema=JOURNAL_SCHEMA, number=number, at=now_text(), **facts))
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
