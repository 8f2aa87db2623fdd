"""This machine, live: its files, its commands, and what changes them."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import signal
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from functools import cached_property

from hosttune.errors import CommandFailed, InUse, Unreadable, WriteFailed
from hosttune.machine.child import start_child
from hosttune.machine.files import let_go
from hosttune.machine.system import (
    MAX_FILE_BYTES,
    System,
    clean_name,
    clean_names,
    made_here,
    put_file,
    remove_leftovers_of_file,
    state_directory,
    take_file,
    unless_absent,
)

_READ_SECONDS = 5.0  # until a file that needs a device's lock counts as unreadable
_LENGTH = struct.Struct("=i")  # length of the data; less than 0: an errno instead


class LockedReads:
    """A child that reads files for this process which need a device's lock. It ends when the process ends.

    The kernel shows `driver_override` and `sriov_numvfs` under the device's lock (drivers/pci/pci-sysfs.c,
    driver_override_show; drivers/pci/iov.c, sriov_numvfs_show), a mutex that no signal interrupts: while an unbind
    hangs, every reader hangs too. If the child does not respond in time, the file counts as unreadable, and the hanging
    child is left alone.
    """

    def __init__(self) -> None:
        self._owner = 0
        self._child = 0
        self._questions = -1
        self._answers = -1

    def read(self, path: str) -> bytes:
        """Return the file's bytes. Raises Unreadable if no response comes in time, OSError as open and read do."""
        if self._owner != os.getpid():  # a forked child needs its own pipes
            question, self._questions = os.pipe()
            self._answers, answer = os.pipe()
            owner = os.getpid()
            self._child, held = start_child(lambda: _serve(question, answer, owner), (question, answer))
            let_go(question)
            let_go(answer)
            self._owner = owner
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        os.write(self._questions, path.encode() + b"\n")
        head = self._some(_LENGTH.size, path)
        (length,) = _LENGTH.unpack(head)
        if length < 0:
            raise OSError(-length, os.strerror(-length))
        return self._some(length, path)

    def _some(self, count: int, path: str) -> bytes:
        data = b""
        while len(data) < count:
            ready, _, _ = select.select([self._answers], [], [], _READ_SECONDS)
            more = os.read(self._answers, count - len(data)) if ready else b""
            if not more:
                # Abandon the child: it is killed, and ends when the kernel lets it
                let_go(self._questions)
                let_go(self._answers)
                self._owner = 0
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._child, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(self._child, os.WNOHANG)
                raise Unreadable(path, "no answer: an unbind of the device hangs in the kernel (dmesg)")
            data += more
        return data


def _serve(question: int, answer: int, parent: int) -> None:
    with os.fdopen(question, "rb", buffering=0) as questions:
        while os.getppid() == parent and (line := questions.readline()):
            os.write(answer, _answered(line[:-1]))


def _answered(path: bytes) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = os.read(fd, 4096)
        finally:
            let_go(fd)
    except OSError as error:
        return _LENGTH.pack(-(error.errno or 5))
    return _LENGTH.pack(len(data)) + data


_CHUNK = 65536
_BEHIND_A_LOCK = ("/driver_override", "/sriov_numvfs")  # see `locked`


class LiveMachine(System):
    """This machine, live."""

    captured = False
    complete = True
    origin = "this machine"

    @cached_property
    def _locked(self) -> LockedReads:
        return LockedReads()

    def read_bytes(self, path: str) -> bytes | None:
        """See System."""
        if path.endswith(_BEHIND_A_LOCK):
            try:
                return self._locked.read(path)
            except OSError as error:
                unless_absent(path, error)
                return None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            unless_absent(path, error)
            return None
        try:
            # A short chunk is the end of a kernel file only if it is not a whole number of pages: seq files return data
            # page by page.
            chunk = os.read(fd, _CHUNK)
            chunks = [chunk]
            size = len(chunk)
            while chunk and (len(chunk) % 4096 == 0 or not path.startswith("/sys/")):
                chunk = os.read(fd, _CHUNK)
                chunks.append(chunk)
                size += len(chunk)
                if size > MAX_FILE_BYTES:
                    raise Unreadable(path, f"larger than {MAX_FILE_BYTES >> 20} MiB")
        except OSError as error:
            unless_absent(path, error)
            return None
        finally:
            let_go(fd)
        return b"".join(chunks)

    def list(self, path: str) -> list[str]:
        """See System."""
        try:
            return clean_names(os.listdir(path))
        except OSError as error:
            unless_absent(path, error)
            return []

    def link(self, path: str) -> str | None:
        """See System. If the path contains links, the target is relative to the real directory."""
        try:
            target = os.readlink(path)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            unless_absent(path, error)
            return None
        directory = os.path.dirname(path)
        if target.startswith("../"):
            directory = os.path.realpath(directory)
        return clean_name(os.path.normpath(os.path.join(directory, target)))

    def link_number(self, path: str) -> str | None:
        """See System."""
        try:
            status = os.lstat(path)
        except OSError as error:
            unless_absent(path, error)
            return None
        return str(status.st_ino) if stat.S_ISLNK(status.st_mode) else None

    def exists(self, path: str) -> bool:
        """See System."""
        return os.path.exists(path)

    def lacks(self, path: str) -> bool:
        """See System."""
        try:
            os.lstat(path)
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.ENOTDIR)
        return False

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        """See System."""
        return live()

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        """See System. No shell; the C locale; every other environment variable is passed unchanged."""
        return run_command(argv, timeout)

    def read_medium(self, path: str, offset: int, size: int) -> bytes:
        """See System."""
        buffer = mmap.mmap(-1, size)  # O_DIRECT needs an aligned buffer: open(2)
        try:
            fd = _open_block(path, os.O_DIRECT)
            try:
                taken = os.preadv(fd, [buffer], offset)
            finally:
                let_go(fd)
            if taken != size:
                raise Unreadable(path, f"only {taken} of {size} bytes at {offset}")
            return bytes(buffer)
        except OSError as error:
            raise Unreadable(path, f"{error.strerror or error} at {offset}") from error
        finally:
            buffer.close()

    @contextlib.contextmanager
    def claim(self, path: str) -> Iterator[None]:
        """See System."""
        try:
            fd = _open_block(path, os.O_EXCL)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise InUse(path, "it or a partition of it is mounted, or part of an array, volume or pool") from error
            raise Unreadable(path, error.strerror or str(error)) from error
        try:
            yield
        finally:
            let_go(fd)

    def write(self, path: str, text: str) -> None:
        """See System. The file is neither created nor truncated: a missing attribute is an error, not a new file."""
        self._write(path, text.encode(), None)

    def write_register(self, path: str, offset: int, data: bytes) -> None:
        """See System."""
        self._write(path, data, offset)

    def _write(self, path: str, data: bytes, offset: int | None) -> None:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                written = os.write(fd, data) if offset is None else os.pwrite(fd, data, offset)
            finally:
                os.close(fd)
        except OSError as error:
            raise WriteFailed(path, error.strerror or str(error), error.errno) from error
        if written != len(data):
            raise WriteFailed(path, f"only {written} of {len(data)} bytes were taken")

    def replace(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See System."""
        folder = os.path.dirname(path)
        if not f"{folder}/".startswith(f"{state_directory()}/"):
            made_here().make(folder)
        put_file(path, data, mode)

    def remove(self, path: str) -> None:
        """See System."""
        take_file(path)
        made_here().take(os.path.dirname(path))

    def tidy(self, path: str) -> None:
        """See System."""
        remove_leftovers_of_file(path)
        made_here().take(os.path.dirname(path))

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        """See System."""
        return run_command(argv, timeout, stdin)

    def tell(self, name: str, value: str, live: Callable[[], None]) -> None:
        """See System."""
        live()


def _open_block(path: str, flags: int) -> int:
    """Open a block device to read. Raises OSError, and Unreadable for anything else at that path."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    if not stat.S_ISBLK(os.fstat(fd).st_mode):
        let_go(fd)
        raise Unreadable(path, "not a block device")
    return fd


def run_command(argv: tuple[str, ...], timeout: float, stdin: str | None = None) -> str:
    """Run a command, return its stdout. No shell; the C locale. Raises CommandFailed."""
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise CommandFailed(argv, "not installed") from error
    except OSError as error:
        raise CommandFailed(argv, error.strerror or str(error)) from error
    try:
        out, err = child.communicate(None if stdin is None else stdin.encode(), timeout=timeout)
    except subprocess.TimeoutExpired as error:
        _abandon(child)
        raise CommandFailed(argv, f"no answer within {timeout:g} s") from error
    except BaseException:  # Ctrl-C: the command must not continue during the rollback
        _abandon(child)
        raise
    output = out.decode("utf-8", "replace")
    if child.returncode != 0:
        raise CommandFailed(argv, f"exit status {child.returncode}", err.decode("utf-8", "replace") or output)
    return output


def _abandon(child: subprocess.Popen[bytes]) -> None:
    """Kill a command and all that it started, without waiting: a driver's tool can hang where no signal reaches it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    try:
        child.wait(timeout=1)
    except subprocess.TimeoutExpired:
        child.returncode = -signal.SIGKILL  # init reaps it when the kernel lets go; Popen must not warn
