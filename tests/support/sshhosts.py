"""Hosts that answer over real ssh, for tests of the fleet: each one's own network, processes, mounts and sshd.

Nothing of this machine is touched. A host is a process tree in network, mount and PID namespaces of its own, joined by
a pair of virtual Ethernet devices to a bridge; the bridge and the controller live in namespaces of their own, too. No
namespace has a name that could stay behind: each one ends with its first process, and that one ends when the pipe on
its stdin is closed, so that a test run that is killed leaves no host, no interface and no mount.

What a host shares with this machine is the file system, read as it is; /run, HOME and TMPDIR are its own. It is given a
scratch root below the folder of the test, so that no setting of a machine is ever written.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from applyroots import KEPT_BY_VALIDATE
from namespaces import SEARCH, Space, children, kill_tree, possible, quiet, until

BIN = Path(sys.executable).parent  # hosttune's and Ansible's commands, as the tests' environment has them
SUBNET = "10.231.77"
CONTROLLER = f"{SUBNET}.1"
# The shell sleeps in `read` until the pipe on its stdin ends, with whoever made it. Root may be locked for sshd
# (`!` in shadow, as on Ubuntu), which would be taken for a wrong key.
_HOST = """
mount -t tmpfs -o mode=755,size=1m hosttune-run /run
mkdir -m 755 /run/sshd
(umask 077 && sed 's/^root:[^:]*:/root:*:/' /etc/shadow >/run/shadow)
mount --bind /run/shadow /etc/shadow
ip link set lo up
{mounts}
cd {home}
{sshd}
read -r _ || :
"""
_CONTROLLER = """
mount -t tmpfs -o mode=755 hosttune-run /run
mkdir -m 700 /run/home /run/tmp
ip link set lo up
ip link add br0 type bridge forward_delay 0
ip addr add {address}/24 dev br0
ip link set br0 up
echo ready
read -r _ || :
"""
_SSHD = """
Port 22
ListenAddress 0.0.0.0
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
UseDNS no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
LogLevel VERBOSE
SetEnv HOME={folder}/home TMPDIR={folder}/tmp
Subsystem sftp internal-sftp
"""
# Known hosts and keys of the test alone: -F keeps the configuration of whoever runs it, and of the system, out.
_SSH = """
Host *
  IdentityFile {folder}/key
  IdentitiesOnly yes
  BatchMode yes
  StrictHostKeyChecking yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


@dataclass
class SshHost:
    """One host. `root`: its scratch root. Its sshd says in `log` what it did.

    `mounts`: shell lines that only this host's processes see the effect of, taken at `start`.
    """

    name: str
    number: int
    folder: Path
    controller: Space
    root: Path
    mounts: str = ""
    listening: bool = True
    space: Space | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """Its address on the bridge."""
        return f"{SUBNET}.{self.number}"

    @property
    def port(self) -> str:
        """The name of the bridge's side of its cable."""
        return f"h{self.number}"

    @property
    def log(self) -> str:
        """What its sshd said so far."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def executions(self) -> int:
        """Sessions that its sshd started so far: commands and subsystems (sftp), interactive ones too."""
        return len(re.findall(r"^Starting session: ", self.log, re.MULTILINE))

    @property
    def transfers(self) -> int:
        """Sessions that were file transfers."""
        return len(re.findall(r"^Starting session: subsystem |scp -[tf]", self.log, re.MULTILINE))

    @property
    def connections(self) -> int:
        """Connections that were let in so far."""
        return len(re.findall(r"^Accepted publickey for root ", self.log, re.MULTILINE))

    def start(self) -> None:
        """Switch the host on; waits until its sshd listens."""
        seen = self.log.count("Server listening on")
        sshd = shlex.join([str(shutil.which("sshd", path=SEARCH)), "-D", "-e", "-f", str(self.folder / "sshd_config")])
        script = _HOST.format(
            mounts=self.mounts, home=shlex.quote(str(self.folder / "home")),
            sshd=f"{sshd} &" if self.listening else "echo Server listening on nothing",
        )  # fmt: skip
        self.space = Space.made(script, self.folder / "log", lambda: self.log.count("Server listening on") > seen)
        self._cable(self.space)

    def _cable(self, space: Space) -> None:
        mac = f"02:68:74:00:00:{self.number:02x}"  # the same one after a restart: nobody has to forget the old one
        into = self.controller.inside
        quiet(*into("ip", "link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", str(space.init)))
        quiet(*into("ip", "link", "set", self.port, "master", "br0", "up"))
        quiet(*space.inside("ip", "link", "set", "eth0", "address", mac))
        quiet(*space.inside("ip", "addr", "add", f"{self.address}/24", "dev", "eth0"))
        quiet(*space.inside("ip", "link", "set", "eth0", "up"))

    def stop(self, *, silently: bool = False) -> None:
        """SIGKILL for every process of the host; `silently`: the cable goes first, so that no peer is told."""
        if self.space is None:
            return
        if silently:
            self.unplug()
        self.space.end()
        self.space = None
        subprocess.run(self.controller.inside("ip", "link", "del", self.port), capture_output=True, timeout=60)

    def kill_sshd(self) -> None:
        """SIGKILL for sshd and everything below it; the host goes on, and nobody listens."""
        assert self.space is not None
        for pid in children(self.space.init):
            kill_tree(pid)

    def unplug(self) -> None:
        """Cut the cable."""
        quiet(*self.controller.inside("ip", "link", "set", self.port, "down"))

    def plug(self) -> None:
        """Mend it."""
        quiet(*self.controller.inside("ip", "link", "set", self.port, "up"))

    def filter(self, *rule: str) -> None:
        """A rule of the host's own packet filter."""
        assert self.space is not None
        quiet(*self.space.inside("iptables", *rule))

    def lose(self, share: float) -> None:
        """Drop this share of the packets, both ways."""
        often = ("-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP")
        self.filter("-A", "INPUT", *often)
        self.filter("-A", "OUTPUT", *often)

    def lose_every(self, packets: int, sender: SshHost | None = None) -> None:
        """Drop each so manyth packet that comes in, from one sender or from all: no run has less luck than another.

        They are dropped where they arrive: TCP hears of what its own host drops, and sends it again at once.
        """
        which = () if sender is None else ("-s", sender.address)
        often = ("-m", "statistic", "--mode", "nth", "--every", str(packets), "--packet", "0", "-j", "DROP")
        self.filter("-A", "INPUT", *which, *often)

    def slow(self, rate: str) -> None:
        """Bound what the cable carries towards the controller and back, "64kbit" say."""
        assert self.space is not None
        shaped = ("root", "tbf", "rate", rate, "burst", "4kb", "latency", "2s")
        quiet(*self.space.inside("tc", "qdisc", "add", "dev", "eth0", *shaped))
        quiet(*self.controller.inside("tc", "qdisc", "add", "dev", self.port, *shaped))

    def tree(self) -> dict[str, tuple[Any, ...] | str]:
        """Every name below the scratch root with inode, size and time: equal only if nothing was written between.
        Without what a validation keeps of GPUs."""
        found: dict[str, tuple[Any, ...] | str] = {}
        for folder, folders, files in os.walk(self.root):
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                state = os.lstat(path)
                told = (state.st_mode, state.st_ino, state.st_size, state.st_mtime_ns)
                link = os.readlink(path) if os.path.islink(path) else told
                found[os.path.relpath(path, self.root)] = told[:1] if os.path.isdir(path) else link
        return {name: told for name, told in found.items() if name not in KEPT_BY_VALIDATE}


@dataclass
class SshFleet:
    """The controller and its hosts, in inventory order. Its HOME and TMPDIR are its own, too, and go with it."""

    folder: Path
    controller: Space
    hosts: list[SshHost] = field(default_factory=list)
    commands: list[subprocess.Popen[str]] = field(default_factory=list, repr=False)

    def host(self, name: str, root: Path, *, mounts: str = "", listening: bool = True, sshd: str = "") -> SshHost:
        """A new host that is let in with the fleet's key and whose own key is known; started.

        `sshd`: further lines of its sshd's configuration.
        """
        number = len(self.hosts) + 11
        folder = self.folder / name
        for part in ("home", "tmp"):
            (folder / part).mkdir(parents=True)
        keygen(folder / "host_key")
        shutil.copy(self.folder / "key.pub", folder / "authorized_keys")
        (folder / "sshd_config").write_text(_sshd_config(folder) + sshd)
        host = SshHost(name, number, folder, self.controller, root, mounts, listening)
        self.hosts.append(host)
        self.know(host)
        host.start()
        return host

    def know(self, host: SshHost) -> None:
        """Write its key as it is now into the controller's list of known hosts."""
        kind, key = (host.folder / "host_key.pub").read_text().split()[:2]
        path = self.folder / "known_hosts"
        lines = path.read_text().splitlines() if path.exists() else []
        lines = [line for line in lines if not line.startswith(f"{host.address} ")]
        path.write_text("".join(f"{line}\n" for line in (*lines, f"{host.address} {kind} {key}")))

    def inventory(self, path: Path, *, variables: Mapping[str, Any], own: Mapping[str, Mapping[str, Any]]) -> Path:
        """Write an inventory of all hosts; `own`: variables of single hosts by name. JSON is YAML."""
        hosts = {
            host.name: {"ansible_host": host.address, "hosttune_root": str(host.root), **own.get(host.name, {})}
            for host in self.hosts
        }
        everywhere = {
            "ansible_user": "root",
            "ansible_ssh_common_args": f"-F {self.folder}/ssh_config",
            "hosttune_command": str(BIN / "hosttune"),
            "hosttune_hosts": "all",
            "hosttune_report": False,
        }
        document = {"all": {"hosts": hosts, "vars": {**everywhere, **variables}}}
        path.write_text(json.dumps(document, indent=1))
        return path

    def environment(self, **more: str) -> dict[str, str]:
        """What the controller's commands get: nothing of whoever runs the tests."""
        path = f"{BIN}:{SEARCH}"
        return {"PATH": path, "HOME": "/run/home", "TMPDIR": "/run/tmp", "LC_ALL": "C.UTF-8", **more}

    def start(self, *argv: str, cwd: Path, **more: str) -> subprocess.Popen[str]:
        """Start a command on the controller. Its pid is nsenter's; `on_controller` finds the command's own."""
        line = self.controller.inside(*argv, kinds=("--net", "--mount", "--pid", f"--wd={cwd}"))
        process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=self.environment(**more),
        )  # fmt: skip
        self.commands.append(process)
        return process

    def end_commands(self) -> None:
        """End what was started on the controller and still runs: a test that failed did not wait for it."""
        for process in self.commands:
            if process.poll() is None:
                kill_tree(process.pid)
            process.communicate()
        self.commands.clear()

    def run(self, *argv: str, cwd: Path, seconds: float = 300, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the controller to its end."""
        process = self.start(*argv, cwd=cwd, **more)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)
            out, err = process.communicate()
            pytest.fail(f"{shlex.join(argv)}: no end within {seconds:.0f} s: {out[-2000:]}{err[-2000:]}")
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    @property
    def temporary(self) -> Path:
        """The controller's folder for temporary files, as this machine sees it."""
        return Path(f"/proc/{self.controller.init}/root/run/tmp")

    def forget(self) -> None:
        """End the connections that ssh keeps open for the next play: the processes `ssh: SOCKET [mux]`."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                line = (folder / "cmdline").read_bytes()
                if not (line.startswith(b"ssh: ") and b"[mux]" in line):
                    continue
                mine = os.path.samefile(folder / "ns/pid", f"/proc/{self.controller.init}/ns/pid")
            except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                continue
            if mine:
                os.kill(int(folder.name), signal.SIGKILL)


def on_controller(process: subprocess.Popen[str]) -> int:
    """The pid, as this machine counts, of the command that was started on the controller."""
    until(lambda: children(process.pid), "the command's start on the controller")
    return children(process.pid)[0]


def keygen(path: Path) -> None:
    """A new key; an old one at this path is replaced."""
    for old in (path, path.with_suffix(".pub")):
        old.unlink(missing_ok=True)
    quiet("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path))


def _sshd_config(folder: Path) -> str:
    """sshd's configuration; from 9.8 on it would shut out a peer whose sessions were killed."""
    text = _SSHD.format(folder=folder)
    trial = folder / "sshd_config"
    trial.write_text(text + "PerSourcePenalties no\n")
    found = subprocess.run(
        [str(shutil.which("sshd", path=SEARCH)), "-t", "-f", str(trial)], capture_output=True, text=True, timeout=60
    )
    return trial.read_text() if "PerSourcePenalties" not in found.stderr else text


@contextmanager
def ssh_fleet(folder: Path) -> Iterator[SshFleet]:
    """A controller without hosts that keeps its files in `folder`; at the end all of its hosts are gone."""
    possible()
    log = folder / "log"
    script = _CONTROLLER.format(address=CONTROLLER)
    controller = Space.made(script, log, lambda: log.exists() and "ready" in log.read_text())
    fleet = SshFleet(folder, controller)
    try:
        keygen(folder / "key")
        (folder / "ssh_config").write_text(_SSH.format(folder=folder))
        yield fleet
    finally:
        fleet.end_commands()
        for host in fleet.hosts:
            host.stop()
        controller.end()
