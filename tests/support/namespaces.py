"""Namespaces that end with the test: a process tree with its own network, mounts and process numbers.

None has a name that could stay behind. Each ends with its first process, and that one ends when the pipe on its stdin
is closed, so that a test run that is killed leaves no process, no interface and no mount.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NEEDED = {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client", "ip": "iproute2",
          "tc": "iproute2", "iptables": "iptables", "unshare": "util-linux", "nsenter": "util-linux"}  # fmt: skip
SEARCH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"


def quiet(*argv: str, **named: Any) -> None:
    """Run a command that must work; its own words otherwise."""
    found = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": SEARCH}, **named
    )
    if found.returncode != 0:
        pytest.fail(f"{shlex.join(argv)}: exit status {found.returncode}: {found.stderr.strip() or found.stdout}")


def until(holds: Callable[[], object], what: str, seconds: float = 120) -> None:
    """Wait for something that must come; fails the test where it does not."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.02)


def children(pid: int) -> tuple[int, ...]:
    """Processes whose parent is `pid`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        if int(fields[1]) == pid:
            found.append(int(folder.name))
    return tuple(sorted(found))


def ended(pid: int) -> bool:
    """Whether a process is gone, or only waits for whoever adopted it to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def kill_tree(pid: int) -> None:
    """SIGKILL for a process and all below it: stopped first, top down, so that nobody starts another meanwhile.

    On return all of them have ended: their files and sockets are closed.
    """
    stopped: list[int] = []
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        try:
            os.kill(one, signal.SIGSTOP)
        except ProcessLookupError:
            continue
        stopped.append(one)
        waiting += children(one)
    for one in reversed(stopped):
        try:
            ended = os.pidfd_open(one)
        except ProcessLookupError:
            continue
        try:
            signal.pidfd_send_signal(ended, signal.SIGKILL)
            assert select.select([ended], [], [], 30)[0], f"process {one} has not ended 30 s after SIGKILL"
        except ProcessLookupError:
            continue
        finally:
            os.close(ended)


@dataclass
class Space:
    """Namespaces that live as long as their first process; `log` is where it says what it says."""

    process: subprocess.Popen[bytes]
    init: int

    @classmethod
    def made(cls, script: str, log: Path, ready: Callable[[], bool]) -> Space:
        """Start `script` as the first process of new namespaces, and wait until `ready`."""
        new = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*new, "sh", "-euc", script], stdin=subprocess.PIPE, stdout=output, stderr=output,
                env={"PATH": SEARCH, "LC_ALL": "C"},
            )  # fmt: skip
        until(lambda: process.poll() is not None or ready(), f"a start: {log.read_text()[-2000:]}")
        if process.poll() is not None:
            pytest.fail(f"no namespaces can be made here ({shlex.join(new)}): {log.read_text()[-2000:]}")
        (init,) = children(process.pid)
        return cls(process, init)

    def inside(self, *argv: str, kinds: Sequence[str] = ("--net",)) -> list[str]:
        """A command line in these namespaces."""
        return ["nsenter", f"--target={self.init}", *kinds, "--", *argv]

    def end(self) -> None:
        """End every process in it, at once."""
        self.process.kill()  # --kill-child: the first process goes along, and the kernel ends the others
        self.process.wait(timeout=30)
        assert self.process.stdin is not None
        self.process.stdin.close()
        until(lambda: ended(self.init), "the end of a host")


def possible() -> None:
    """Skip where the tests do not run as root; fail, with what to do, where something is missing."""
    if os.geteuid() != 0:
        pytest.skip("hosts behind ssh are network namespaces, and making these takes root")
    missing = sorted({package for name, package in NEEDED.items() if shutil.which(name, path=SEARCH) is None})
    if missing:
        pytest.fail(f"not installed: apt-get install {' '.join(missing)}")


def full(path: Path | str, *, room: int = 0, keep: Sequence[Path] = ()) -> str:
    """Shell lines for `SshHost.mounts`: a file system with `room` bytes left at `path`; `keep` is still seen below it.

    Pages are counted, 4 KiB at least; a file or folder without contents takes none.
    """
    there = str(path)
    kept = [str(one) for one in keep if one.is_relative_to(there)]
    lines = [f"mkdir -p {shlex.quote(there)}"]
    for number, one in enumerate(kept):
        stash = f"/run/keep{number}"
        lines += [f"mkdir {stash}", f"mount --rbind {shlex.quote(one)} {stash}"]
    size = 4096 + room
    lines += [f"mount -t tmpfs -o mode=1777,size={size} hosttune-full {shlex.quote(there)}"]
    for number, one in enumerate(kept):
        lines += [f"mkdir -p {shlex.quote(one)}", f"mount --move /run/keep{number} {shlex.quote(one)}"]
        lines += [f"rmdir /run/keep{number}"]
    lines += [f"head -c 4096 /dev/zero >{shlex.quote(f'{there}/somebody-elses')}"]
    return "\n".join(lines) + "\n"
