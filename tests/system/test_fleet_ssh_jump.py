"""Hosts behind a jump host whose sshd drops new connections while others log in (MaxStartups), over real ssh."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import kill_tree, quiet, until
from sshhosts import BIN, SUBNET, SshHost, ssh_fleet
from sshruns import Runs

HOSTS = {f"gpu{n:02}": f"{SUBNET}.{100 + n}" for n in range(10)}
MANY = {f"gpu{n:02}": f"{SUBNET}.{n}" for n in range(120, 144)}
# A login takes two seconds: sshd asks once for the key, once for its signature.
SLOW = "AuthorizedKeysCommand /bin/sleep 1\nAuthorizedKeysCommandUser root\n"
# Connects and says nothing, as often as connections may log in at a time: sshd has answered each, and drops the next.
HOLDER = """import signal, socket, sys
held = [socket.create_connection((sys.argv[1], 22)) for _ in range(int(sys.argv[2]))]
print([one.recv(1) for one in held], flush=True)
signal.pause()"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """A jump host, one machine with the addresses of all hosts behind it, and a host that lets nobody in."""
    folder = tmp_path_factory.mktemp("jump")
    with ssh_fleet(folder) as fleet:
        jump = fleet.host("jump", folder, sshd="MaxStartups 10:100:10\nLoginGraceTime 0\n")
        wide = fleet.host("wide", folder, sshd="MaxStartups 10:100:10\n" + SLOW)
        closed = fleet.host("closed", folder, sshd="MaxStartups 1:100:1\nLoginGraceTime 0\n")
        behind = fleet.host("behind", folder, sshd="MaxStartups 100\n")
        assert behind.space is not None
        for address in (*HOSTS.values(), *MANY.values()):
            quiet(*behind.space.inside("ip", "addr", "add", f"{address}/24", "dev", "eth0"))
        with (folder / "known_hosts").open("a") as known:
            known.write(f"{SUBNET}.1?? {(behind.folder / 'host_key.pub').read_text()}")
        config = f"-F {folder}/ssh_config"

        def through(jump: SshHost) -> str:
            return f'{config} -o ProxyCommand="ssh {config} -W %h:%p root@{jump.address}"'

        hosts = {name: {"ansible_host": address} for name, address in HOSTS.items()}
        variables = {
            "ansible_user": "root", "ansible_ssh_common_args": through(jump),
            "ansible_python_interpreter": sys.executable,
            "hosttune_command": str(BIN / "hosttune"), "hosttune_root": str(small(folder / "root")),
        }  # fmt: skip
        hosts["refused"] = {"ansible_host": behind.address, "ansible_user": "nobody", "ansible_ssh_common_args": config}
        hosts["closed"] = {"ansible_host": closed.address, "ansible_ssh_common_args": config}
        many = {
            name: {"ansible_host": address, "ansible_ssh_common_args": through(wide)} for name, address in MANY.items()
        }
        (folder / "many.yml").write_text(json.dumps({"all": {"hosts": many, "vars": variables}}))
        (folder / "inventory.yml").write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}))
        yield Runs(fleet, folder)


def small(root: Path) -> Path:
    """A host of one CPU: what is asked of it is of no matter here, and it is asked of many."""
    for name, text in (("sys/devices/system/cpu/online", "0\n"), ("proc/cpuinfo", "processor\t: 0\n")):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    return root


def hold(runs: Runs, name: str, connections: int) -> subprocess.Popen[str]:
    """Take all connections of a host's sshd that may log in at a time."""
    holder = runs.fleet.start(sys.executable, "-c", HOLDER, runs.host(name).address, str(connections), cwd=runs.folder)
    assert holder.stdout is not None
    assert "b'S'" in holder.stdout.readline()
    return holder


def test_hosts_whose_connections_are_dropped_are_asked_again(runs: Runs) -> None:
    """Those that the jump host dropped answer; what drops every connection is told apart from what refuses a key."""
    hold(runs, "closed", 1)
    holder = hold(runs, "jump", 10)
    process = runs.start("discover")
    until(lambda: "MaxStartups" in runs.host("jump").log, "a connection that the jump host drops")
    kill_tree(holder.pid)  # from then on it takes all that log in at a time
    report = runs.ended(process, 1)
    assert "MaxStartups" in runs.host("closed").log
    answers = {host["host"]: host["answers"][0]["outcome"] for host in report["hosts"]}
    assert answers == {**dict.fromkeys(HOSTS, "ok"), "refused": "unreachable", "closed": "unreachable"}
    hints = {host["host"]: problem["hint"] for host in report["hosts"] for problem in host["told"]}
    assert "MaxStartups" in hints["closed"]
    assert "user and keys" in hints["refused"]
    asked = [line for line in runs.host("behind").log.splitlines() if re.search(r"closed by .*user nobody", line)]
    assert len(asked) == 1, asked  # asking again does not help a wrong key, and can lock an account


def test_no_more_hosts_log_in_at_a_time_than_a_jump_host_takes(runs: Runs) -> None:
    """By OpenSSH's default the tenth may be dropped, here it surely is: of 24 hosts none was, and none asked twice."""
    words = ("--results", str(runs.folder / "many"), "-o", "json")
    run = runs.fleet.run(
        str(BIN / "hosttune"), "fleet", "discover", "-i", str(runs.folder / "many.yml"), *words, cwd=runs.folder
    )
    report = runs.reported(run, 0)
    assert {host["answers"][0]["outcome"] for host in report["hosts"]} == {"ok"}
    log = runs.host("wide").log
    assert ("MaxStartups" in log, log.count("Accepted publickey")) == (False, len(MANY)), log[-2000:]
