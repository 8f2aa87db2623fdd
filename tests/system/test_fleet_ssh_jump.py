"""Hosts behind a jump host whose sshd drops new connections while others log in (MaxStartups), over real ssh."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator

import pytest
from applyroots import EXAMPLE
from namespaces import quiet
from sshhosts import BIN, SUBNET, SshHost, ssh_fleet
from sshruns import Runs

HOSTS = {f"gpu{n:02}": f"{SUBNET}.{100 + n}" for n in range(10)}
MANY = {f"gpu{n:02}": f"{SUBNET}.{n}" for n in range(120, 160)}
# A login takes two seconds: sshd asks once for the key, once for its signature.
SLOW = "AuthorizedKeysCommand /bin/sleep 1\nAuthorizedKeysCommandUser root\n"
# Connects and says nothing, so that it is the one connection that may log in.
HOLDER = (
    "import signal, socket, sys; held = socket.create_connection((sys.argv[1], 22)); print(flush=1); signal.pause()"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """A jump host, one machine with the addresses of all hosts behind it, and a host that lets nobody in."""
    folder = tmp_path_factory.mktemp("jump")
    with ssh_fleet(folder) as fleet:
        jump = fleet.host("jump", folder, sshd="MaxStartups 2:50:5\n")
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
            "hosttune_command": str(BIN / "hosttune"), "hosttune_root": str(EXAMPLE),
        }  # fmt: skip
        hosts["refused"] = {"ansible_host": behind.address, "ansible_user": "nobody", "ansible_ssh_common_args": config}
        hosts["closed"] = {"ansible_host": closed.address, "ansible_ssh_common_args": config}
        many = {
            name: {"ansible_host": address, "ansible_ssh_common_args": through(wide)} for name, address in MANY.items()
        }
        (folder / "many.yml").write_text(json.dumps({"all": {"hosts": many, "vars": variables}}))
        (folder / "inventory.yml").write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}))
        yield Runs(fleet, folder)


def test_hosts_whose_connections_are_dropped_are_asked_again(runs: Runs) -> None:
    """Those that the jump host dropped answer; what drops every connection is told apart from what refuses a key."""
    held = runs.fleet.start(sys.executable, "-c", HOLDER, runs.host("closed").address, cwd=runs.folder)
    assert held.stdout is not None
    held.stdout.readline()
    report = runs.command("discover", code=1)
    answers = {host["host"]: host["answers"][0]["outcome"] for host in report["hosts"]}
    assert answers == {**dict.fromkeys(HOSTS, "ok"), "refused": "unreachable", "closed": "unreachable"}
    assert all("MaxStartups" in runs.host(name).log for name in ("jump", "closed"))
    hints = {host["host"]: problem["hint"] for host in report["hosts"] for problem in host["told"]}
    assert "MaxStartups" in hints["closed"]
    assert "user and keys" in hints["refused"]
    asked = [line for line in runs.host("behind").log.splitlines() if re.search(r"closed by .*user nobody", line)]
    assert len(asked) == 1, asked  # asking again does not help a wrong key, and can lock an account


def test_no_more_hosts_log_in_at_a_time_than_a_jump_host_takes(runs: Runs) -> None:
    """By OpenSSH's default the tenth may be dropped, here it surely is: of 40 hosts none was, and none asked twice."""
    words = ("--results", str(runs.folder / "many"), "-o", "json")
    run = runs.fleet.run(
        str(BIN / "hosttune"), "fleet", "discover", "-i", str(runs.folder / "many.yml"), *words, cwd=runs.folder
    )
    report = runs.reported(run, 0)
    assert {host["answers"][0]["outcome"] for host in report["hosts"]} == {"ok"}
    log = runs.host("wide").log
    assert ("MaxStartups" in log, log.count("Accepted publickey")) == (False, len(MANY)), log[-2000:]
