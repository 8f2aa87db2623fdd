"""Reads files that need a device's lock: while an unbind hangs in the kernel, every reader of these files hangs too.

The kernel shows `driver_override` and `sriov_numvfs` under the device's lock (drivers/pci/pci-sysfs.c,
driver_override_show; drivers/pci/iov.c, sriov_numvfs_show), a mutex that no signal interrupts. A child process reads
them; each process keeps one child for further reads. If it does not respond in time, the file counts as unreadable, and
the hanging child is left alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct

from hosttune.errors import Unreadable
from hosttune.machine.child import start_child
from hosttune.machine.files import let_go

SECONDS = 5.0
_LENGTH = struct.Struct("=i")  # length of the data; less than 0: an errno instead


class LockedReads:
    """A child that reads for this process. It ends at the latest when the process ends."""

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
            ready, _, _ = select.select([self._answers], [], [], SECONDS)
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
