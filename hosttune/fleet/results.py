"""The results folder of a fleet: RESULTS/HOST/PHASE.json, the record RESULTS/run.jsonl, and who works on it now.

The only module of the room that opens files there. Names of hosts come from an inventory, so they are data: what is
not plainly a file name is escaped, and no name leads out of the folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator

from hosttune.descriptors import let_go
from hosttune.errors import BadInput, Refused
from hosttune.files import read_all, write_new, write_whole
from hosttune.jsonlines import JsonLines, cut_torn
from hosttune.model.limits import check_size

RECORD = "run.jsonl"
_LOCK = ".lock"  # held by the run itself; a host's folder never begins with a dot
ASKING = ".asking"  # held, shared, by each ansible that a run started: it may outlive a run that was killed
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")
_LONGEST = 255  # bytes of a file name (NAME_MAX, linux/limits.h)


def host_folder(host: str) -> str:
    """The folder name of an inventory host: each byte that is not [A-Za-z0-9._-], and a leading ".", as %XX."""
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in host.encode("utf-8", "surrogateescape"))
    return f"%2E{name[1:]}" if name.startswith(".") else name


def answer_path(results: str, host: str, phase: str, *, check: bool = False) -> str:
    """Where the answer of a host in a phase lies; in check mode it stands beside, for nothing was done."""
    return os.path.join(results, host_folder(host), f"{phase}{'.check' if check else ''}.json")


def hosts_in(results: str) -> tuple[str, ...]:
    """The hosts that have a folder in the results, by name. Raises BadInput where the folder does not read."""
    try:
        names = os.listdir(results)
    except OSError as error:
        raise _unreadable(results, error) from error
    folders = [name for name in names if not name.startswith(".") and os.path.isdir(os.path.join(results, name))]
    hosts = (_ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), os.fsencode(name)) for name in folders)
    return tuple(sorted(host.decode("utf-8", "surrogateescape") for host in hosts))


def refuse_names(hosts: tuple[str, ...]) -> None:
    """Refuse hosts whose folder would be no folder name, or one of the files beside the folders. Raises BadInput."""
    for host in hosts:
        name = host_folder(host)
        if name == RECORD or not 0 < len(name) <= _LONGEST:
            why = (
                "the record has that name"
                if name == RECORD
                else f"it may have 1 to {_LONGEST} bytes, it has {len(name)}"
            )
            raise BadInput(
                f"a host cannot be called {host[:80]!r}: {why}", where="inventory", hint="give it another name there"
            )


def read_file(path: str) -> bytes | None:
    """The bytes of a result file; None where there is none. Raises BadInput where it is there and does not read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise _unreadable(path, error) from error
    try:
        size = os.fstat(fd).st_size
        check_size(size, "record of a fleet" if os.path.basename(path) == RECORD else "document", path)
        return read_all(fd)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        let_go(fd)


def forget(results: str, host: str, phase: str) -> None:
    """Take a host's answer of a phase away, where there is one. Raises BadInput where that is not possible."""
    path = answer_path(results, host, phase)
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise _unwritable(path, error) from error


def replace_file(path: str, data: bytes) -> None:
    """Write a file of a host's folder whole or not at all. Not synced: what is written here can be made again.

    Raises BadInput.
    """
    try:
        write_whole(path, data, None, sync=False)
    except OSError as error:
        raise _unwritable(path, error) from error


def remove_file(path: str) -> None:
    """Remove a file of a host's folder, if it is there. Raises BadInput."""
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unreadable(path: str, error: OSError) -> BadInput:
    return BadInput(f"cannot read {path}: {error.strerror}", where=path, hint="check the results folder")


def limit_file(folder: str, hosts: tuple[str, ...]) -> str:
    """A file that names these hosts, a line each, for ansible's `--limit @FILE`; its path."""
    path = os.path.join(folder, "limit")
    lines = "".join(f"{host}\n" for host in hosts)
    write_new(path, lines.encode("utf-8", "surrogateescape"), 0o600, sync=False)
    return path


@contextlib.contextmanager
def held(results: str, *, wait_seconds: float = 60.0) -> Iterator[JsonLines]:
    """The results folder for one run alone, made where it is not there, and its record to write into.

    A line that a power cut takes away makes a host asked twice, no pass: the record is not synced after each.

    Raises BadInput where the folder cannot be written, Refused where another run has it, or where the ansible of a
    run that was killed is still asking hosts after `wait_seconds`: two that ask at once would mix their answers.
    """
    fds = []
    try:
        os.makedirs(results, exist_ok=True)
        for name in (_LOCK, ASKING, RECORD):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_APPEND if name == RECORD else 0)
            fds.append(os.open(os.path.join(results, name), flags, 0o644))
        lock, asking, record = fds
        _take(lock, results)
        _wait_for(asking, results, wait_seconds)
        cut_torn(record)
        path = os.path.join(results, RECORD)
        yield JsonLines(record, lambda error: _unwritable(path, error), synced=False)
    except OSError as error:
        raise _unwritable(results, error) from error
    finally:
        for fd in fds:
            let_go(fd)


def _unwritable(path: str, error: OSError) -> BadInput:
    return BadInput(f"cannot write {path}: {error.strerror}", where=path, hint="choose another place with --results")


def _take(fd: int, results: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
        who = f"process {holder}" if holder.isdecimal() else "another run"
        raise Refused(f"{who} works on it", where=results, hint="wait for it, or choose another --results") from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)


def _wait_for(fd: int, results: str, seconds: float) -> None:
    """Wait until no ansible of an earlier run asks hosts any more."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise Refused(
                    "the ansible-playbook of a run that was killed is still asking hosts",
                    where=results,
                    hint="end it (ps shows it), then ask again",
                ) from error
            time.sleep(0.05)
        else:
            fcntl.flock(fd, fcntl.LOCK_UN)
            return
