"""A command run once, heard within bounds of size and time, and ended with its children where its time is over.

Part of the module `hosttune`, so it runs on the host with whatever Python that has (3.8 or newer).
"""

# Copyright: hosttune's authors. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time

from ansible.module_utils.hosttune_answer import FULL, NoAnswer

DOCUMENT_BYTES = 64 << 20
STDERR_BYTES = 16 << 10
GRACE_SECONDS = 30.0  # for a transaction to take itself back when its time is over


def run(argv: list[str], text: str | None, fds: list[int], seconds: float) -> tuple[int, bytes, bytes]:
    """(exit code, negative for a signal; standard output; the end of standard error). Raises NoAnswer."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL if text is None else subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, pass_fds=fds, start_new_session=True, close_fds=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        full = isinstance(error, OSError) and FULL.search(str(error))
        raise NoAnswer("disk-full" if full else "not-installed", f"{argv[0]} does not start: {error}") from error
    with process:
        out, err, over = talk(process, (text or "").encode("utf-8"), seconds)
        if over:
            end(process)
            raise NoAnswer(*over)
        return process.wait(), out, err[-STDERR_BYTES:]


def talk(process: subprocess.Popen, data: bytes, seconds: float) -> tuple[bytes, bytes, tuple[str, str] | None]:
    """(output, errors, why it is no answer) of a process that is fed and heard until it ends or its time is over."""
    heard = {process.stdout: bytearray(), process.stderr: bytearray()}
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for stream in heard:
            selector.register(stream, selectors.EVENT_READ)
        if process.stdin:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while any(stream in heard for stream in (key.fileobj for key in selector.get_map().values())):
            ready = selector.select(0.5)
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    data = feed(selector, process, data)
                    continue
                chunk = os.read(key.fd, 1 << 16)
                heard[key.fileobj] += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
            if len(heard[process.stdout]) > DOCUMENT_BYTES:
                return b"", b"", ("unknown", f"more than {DOCUMENT_BYTES >> 20} MiB on standard output")
            del heard[process.stderr][: -2 * STDERR_BYTES]
            if not ready and process.poll() is not None:
                break  # it has ended; what it left behind still holds its output
            if time.monotonic() > deadline:
                return b"", b"", ("slow", f"no answer within {seconds:g} s")
    return bytes(heard[process.stdout]), bytes(heard[process.stderr]), None


def feed(selector: selectors.BaseSelector, process: subprocess.Popen, data: bytes) -> bytes:
    """Write what the pipe takes; what is left. The pipe is closed at the end, or where nobody reads it."""
    try:
        data = data[os.write(process.stdin.fileno(), data[: 1 << 16]) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        data = b""
    if not data:
        selector.unregister(process.stdin)
        process.stdin.close()
    return data


def end(process: subprocess.Popen) -> None:
    """Ask a command and its children to end, then make them. A write stuck in the kernel outlives even that."""
    for sent, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    process.returncode = process.returncode or -signal.SIGKILL  # so that leaving `with` does not wait for it
