"""A libvirtd of the test's own: sockets, state and configuration in one new directory, nothing of the system touched.

It runs in session mode, as nobody when the tests run as root: a root daemon would use /etc/libvirt and /var/lib.
Where a mount namespace can be had it sees hugetlbfs mounts of its own, so that huge pages can be translated.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NOBODY = 65534
SIZES = {"2M": 2 << 20, "1G": 1 << 30}
NEEDED = ("libvirtd", "virsh", "qemu-system-x86_64")
PACKAGES = "libvirt-daemon-system libvirt-clients qemu-system-x86 ovmf"


@dataclass(frozen=True)
class Argv:
    """A QEMU command line: options in order, and its JSON devices by id."""

    options: tuple[tuple[str, str], ...]

    def all(self, option: str) -> list[str]:
        return [value for name, value in self.options if name == option]

    def one(self, option: str) -> str:
        (value,) = self.all(option)
        return value

    def parsed(self, option: str) -> list[dict[str, Any]]:
        return [json.loads(value) for value in self.all(option) if value.startswith("{")]


@dataclass(frozen=True)
class Libvirtd:
    """A running private libvirtd. `hugepages`: it sees hugetlbfs mounts for 2 MiB and 1 GiB pages."""

    directory: Path
    hugepages: bool

    def virsh(self, *arguments: str) -> str:
        """What virsh prints; fails the test with virsh's own words otherwise."""
        result = self._run(arguments)
        if result.returncode != 0:
            pytest.fail(f"{' '.join(result.args)}: {result.stderr.strip()}")
        return result.stdout

    def refusal(self, *arguments: str) -> str | None:
        """Why virsh fails; None if it does not."""
        result = self._run(arguments)
        return result.stderr.strip() if result.returncode else None

    def _run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        argv = (*_as_user(), "virsh", "-q", "-c", "qemu:///session", *arguments)
        return subprocess.run(argv, env=_environment(self.directory), capture_output=True, text=True, timeout=120)

    def file(self, name: str, text: str) -> str:
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o644)
        return str(path)

    def argv(self, xml: str) -> Argv:
        """The QEMU command line that libvirt makes of this XML.

        Newer versions look up the node of every pinned CPU on the machine at hand. Pins are not on the command line,
        so all of them name CPU 0 here.
        """
        here = _PIN.sub(r"\g<1>0\g<2>", xml)
        words = shlex.split(self.virsh("domxml-to-native", "qemu-argv", self.file("native.xml", here)))
        return Argv(tuple(_options(words)))


_PIN = re.compile(r"(<(?:vcpupin|emulatorpin|iothreadpin)\b[^>]*cpuset=['\"])[^'\"]*(['\"])")


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for n, word in enumerate(words):
        if word.startswith("-") and not words[n - 1].startswith("-"):
            value = words[n + 1] if n + 1 < len(words) and not words[n + 1].startswith("-") else ""
            yield word, value.replace(",clusters=1,", ",") if word == "-smp" else value  # newer versions say so
        elif word.startswith("-"):
            yield word, ""


def _as_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def _environment(directory: Path) -> dict[str, str]:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin:/sbin:/bin"
    folders = {f"XDG_{name}": str(directory) for name in ("RUNTIME_DIR", "CONFIG_HOME", "CACHE_HOME", "DATA_HOME")}
    return {"PATH": path, "HOME": str(directory), "LC_ALL": "C", **folders}


def _mounts(directory: Path) -> str:
    lines = [
        f"mount -t hugetlbfs -o pagesize={size},uid={NOBODY} none {shlex.quote(str(directory / size))}"
        for size in SIZES
    ]
    return " && ".join(lines)


def _can_mount(directory: Path) -> bool:
    """Whether this machine lets us mount hugetlbfs where nobody else sees it."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    trial = subprocess.run(["unshare", "-m", "sh", "-c", _mounts(directory)], capture_output=True, timeout=60)
    return trial.returncode == 0


def _prepare(directory: Path, hugepages: bool) -> None:
    (directory / "libvirt").mkdir()
    paths = ", ".join(f'"{directory / size}"' for size in SIZES)
    (directory / "libvirt" / "qemu.conf").write_text(f"hugetlbfs_mount = [{paths}]\n" if hugepages else "")
    (directory / "libvirt" / "libvirtd.conf").write_text('auth_unix_rw = "none"\n')
    if os.geteuid() == 0:
        for path in (directory, *directory.rglob("*")):
            os.chown(path, NOBODY, NOBODY)


def _wait(libvirtd: Libvirtd, daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while not (libvirtd.directory / "libvirt" / "libvirt-sock").exists():
        if daemon.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"the private libvirtd did not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)


def _within(release: Path | None, directory: Path) -> str:
    """Shell, in a mount namespace: change into the root of another release, and keep kernel and directory."""
    if release is None:
        return "exec"
    root, here = shlex.quote(str(release)), shlex.quote(str(directory))
    binds = [f"mount --rbind {path} {root}{path}" for path in ("/proc", "/sys", "/dev", here)]
    return f"mkdir -p {root}{{/proc,/sys,/dev,{here}}} && {' && '.join(binds)} && exec chroot {root}"


@contextlib.contextmanager
def private_libvirtd(release: Path | None = None) -> Iterator[Libvirtd]:
    """A private libvirtd. `release`: of the packages unpacked there; needs root and a mount namespace."""
    # Not tmp_path: a socket's path is at most 107 bytes, and nobody must be able to reach it.
    directory = Path(tempfile.mkdtemp(prefix="hosttune-"))
    for size in SIZES:
        (directory / size).mkdir()
    hugepages = _can_mount(directory)
    _prepare(directory, hugepages)
    log = directory / "log"
    start = shlex.join([*_as_user(), "libvirtd", "-p", str(directory / "pid")])
    script = " && ".join([*([_mounts(directory)] if hugepages else []), f"{_within(release, directory)} {start}"])
    argv = ["unshare", "-m", "bash", "-c", script] if hugepages or release else shlex.split(start)
    with log.open("wb") as output:
        daemon = subprocess.Popen(argv, env=_environment(directory), stdout=output, stderr=output, cwd=directory)
    try:
        running = Libvirtd(directory, hugepages)
        _wait(running, daemon, log)
        yield running
    finally:
        daemon.terminate()
        try:
            daemon.wait(timeout=10)
        except subprocess.TimeoutExpired:  # libvirt 11 may wait for its own threads for ever
            daemon.kill()
            daemon.wait(timeout=10)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def libvirtd() -> Iterator[Libvirtd]:
    """A private libvirtd for the session. Fails, and says what to install, where libvirt or QEMU is missing."""
    where = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [name for name in NEEDED if shutil.which(name, path=where) is None]
    if missing:
        pytest.fail(f"{', '.join(missing)} not installed: apt-get install {PACKAGES}")
    with private_libvirtd() as running:
        yield running
