"""The results folder of a fleet: RESULTS/HOST/PHASE.json, the record RESULTS/run.jsonl, and the lock of a run.

This is the only module of the package that opens files there. Host names come from an inventory, so they are untrusted
data: characters that are unsafe in a file name are escaped, and no name can point outside the folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator

from hosttune.errors import BadInput, Refused
from hosttune.journal.jsonlines import JsonLines, drop_torn_line
from hosttune.machine.files import let_go, read_all, write_new, write_whole
from hosttune.model.limits import check_size

RECORD = "run.jsonl"
_LOCK = ".lock"  # locked by the run itself; a host's folder never begins with a dot
ASKING = ".asking"  # locked (shared) by each ansible that a run started: ansible may outlive a run that was killed
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")
_LONGEST = 255  # most bytes of a file name (NAME_MAX, linux/limits.h)


def host_folder(host: str) -> str:
    """Return the folder name of an inventory host. Bytes that are not [A-Za-z0-9._-], and a leading ".", become %XX."""
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in host.encode("utf-8", "surrogateescape"))
    return f"%2E{name[1:]}" if name.startswith(".") else name


def answer_path(results: str, host: str, phase: str, *, check: bool = False) -> str:
    """Return the path of a host's answer in a phase. Check mode has its own file, because it changed nothing."""
    return os.path.join(results, host_folder(host), f"{phase}{'.check' if check else ''}.json")


def hosts_in(results: str) -> tuple[str, ...]:
    """Return the hosts that have a folder in the results, sorted. Raises BadInput if the folder cannot be read."""
    try:
        names = os.listdir(results)
    except OSError as error:
        raise _unreadable(results, error) from error
    folders = [name for name in names if not name.startswith(".") and os.path.isdir(os.path.join(results, name))]
    hosts = (_ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), os.fsencode(name)) for name in folders)
    return tuple(sorted(host.decode("utf-8", "surrogateescape") for host in hosts))


def refuse_names(hosts: tuple[str, ...]) -> None:
    """Check that each host name can be the name of a folder and an argument of ansible.

    Raises BadInput for a name that is empty, too long, the name of the record, or has a control character.
    """
    for host in hosts:
        # Why a host cannot have this name; empty if it can.
        name = host_folder(host)
        if name == RECORD:
            why = "the record has that name"
        elif not 0 < len(name) <= _LONGEST:
            why = f"it may have 1 to {_LONGEST} bytes, it has {len(name)}"
        else:
            why = "it has a control character" if any(ord(letter) < 32 or ord(letter) == 127 for letter in host) else ""
        if why:
            what = f"a host cannot be called {host[:80]!r}: {why}"
            raise BadInput(what, where="inventory", hint="give it another name there")


def read_file(path: str) -> bytes | None:
    """Return the bytes of a result file; None if it does not exist. Raises BadInput if it exists but cannot be read."""
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
    """Remove a host's answer of a phase, if there is one. Raises BadInput if it cannot be removed."""
    path = answer_path(results, host, phase)
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise _unwritable(path, error) from error


def replace_file(path: str, data: bytes) -> None:
    """Write a file in a host's folder atomically. Raises BadInput if it cannot be written.

    The file is not synced to disk, because it can be made again.
    """
    try:
        write_whole(path, data, None, sync=False)
    except OSError as error:
        raise _unwritable(path, error) from error


def remove_file(path: str) -> None:
    """Remove a file from a host's folder, if it exists. Raises BadInput if it cannot be removed."""
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unreadable(path: str, error: OSError) -> BadInput:
    return BadInput(f"cannot read {path}: {error.strerror}", where=path, hint="check the results folder")


def limit_file(folder: str, hosts: tuple[str, ...]) -> str:
    """Write a file with one host per line for ansible's `--limit @FILE`, and return its path."""
    path = os.path.join(folder, "limit")
    lines = "".join(f"{host}\n" for host in hosts)
    write_new(path, lines.encode("utf-8", "surrogateescape"), 0o600, sync=False)
    return path


@contextlib.contextmanager
def held(results: str, *, wait_seconds: float = 60.0) -> Iterator[JsonLines]:
    """Lock the results folder for one run, and yield its record for writing. The folder is made if it does not exist.

    The record is not synced after each line: if a power cut loses a line, a host is processed twice, but never passes
    wrongly.

    Raises BadInput if the folder cannot be written. Raises Refused if another run has locked it, or if the ansible of a
    run that was killed is still working on hosts after `wait_seconds`: answers of two runs would be mixed.
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
        drop_torn_line(record)
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
    """Wait until no ansible of an earlier run is working on hosts. Raises Refused after `seconds`."""
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
