"""The hosts of the fleet's ssh tests: they are what they say, leave nothing, and touch nothing of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from namespaces import SEARCH, ended, full, kill_tree, until
from sshhosts import SshFleet, SshHost, keygen, ssh_fleet

_KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from sshhosts import ssh_fleet
with ssh_fleet(Path(sys.argv[1])) as fleet:
    host = fleet.host("one", Path(sys.argv[1]))
    options = ("-F", f"{{fleet.folder}}/ssh_config", "-f", "-N", "-M", "-S", "/run/tmp/mux")
    fleet.run("ssh", *options, f"root@{{host.address}}", cwd=fleet.folder)
    print(fleet.controller.init, host.space.init, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def machine(own: Path) -> str:
    """This machine's network and mounts, as its own tools tell them, without mounts of tests beside this one."""
    told = [
        subprocess.run(argv, capture_output=True, text=True, check=True, env={**os.environ, "PATH": SEARCH}).stdout
        for argv in (("ip", "-o", "link"), ("ip", "-o", "addr"), ("ip", "route"), ("iptables-save",))
    ]
    rules = [line for line in "".join(told).splitlines() if not line.startswith("#") and "[" not in line]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return "\n".join(rules + [line for line in mounts if str(own) in line or "/pytest-of-" not in line])


def asked(fleet: SshFleet, host: SshHost, *argv: str) -> tuple[int, str]:
    """A command over ssh: its exit status, and what it or ssh says."""
    options = ("-F", f"{fleet.folder}/ssh_config", "-o", "ConnectTimeout=2")
    found = fleet.run("ssh", *options, f"root@{host.address}", *argv, cwd=fleet.folder)
    return found.returncode, (found.stdout + found.stderr).strip()


def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    before = machine(tmp_path)
    script = _KILLED.format(tests=str(Path(__file__).parents[1] / "support"))
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert run.returncode == -signal.SIGKILL, run.stderr
    for pid in map(int, run.stdout.split()):
        until(partial(ended, pid), f"the end of process {pid}")
    assert machine(tmp_path) == before


def test_hosts_are_apart_from_this_machine_and_from_each_other(tmp_path: Path) -> None:
    before = machine(tmp_path)
    with ssh_fleet(tmp_path) as fleet:
        tight = full(tmp_path / "two" / "tmp", room=8192) + full("/var/tmp", keep=(tmp_path,))
        one, two = fleet.host("one", tmp_path), fleet.host("two", tmp_path, mounts=tight)
        assert asked(fleet, one, "echo $HOME $TMPDIR") == (0, f"{tmp_path}/one/home {tmp_path}/one/tmp")
        assert asked(fleet, one, "ls /run | grep -v -x -e sshd -e mount; ls -A $TMPDIR") == (0, "shadow")
        code, said = asked(fleet, two, "head -c 8192 /dev/zero >$TMPDIR/mine && echo fits && echo more >>$TMPDIR/mine")
        assert (code, said.splitlines()[0]) == (1, "fits")
        assert "No space left on device" in said
        assert asked(fleet, two, "ls -A $TMPDIR") == (0, "mine\nsomebody-elses")
        assert list((tmp_path / "two" / "tmp").iterdir()) == []  # full for nobody else
        assert (one.executions, two.executions, two.transfers) == (2, 2, 0)
        assert one.connections == 2
    assert machine(tmp_path) == before


def test_every_way_to_fail_is_there(tmp_path: Path) -> None:
    with ssh_fleet(tmp_path) as fleet:
        host = fleet.host("one", tmp_path)
        host.kill_sshd()
        assert "Connection refused" in asked(fleet, host, "true")[1]
        host.stop(silently=True)
        assert asked(fleet, host, "true")[0] == 255
        host.start()
        assert asked(fleet, host, "true") == (0, "")
        host.unplug()
        assert asked(fleet, host, "true")[0] == 255
        host.plug()
        host.lose(0.05)
        host.slow("256kbit")
        assert asked(fleet, host, "true") == (0, "")
        host.filter("-F")
        host.filter("-A", "INPUT", "-j", "DROP")
        assert "timed out" in asked(fleet, host, "true")[1]
        host.filter("-F")
        (host.folder / "authorized_keys").write_text("")
        assert "Permission denied (publickey)" in asked(fleet, host, "true")[1]
        keygen(host.folder / "host_key")
        host.stop()
        host.start()
        assert "Host key verification failed" in asked(fleet, host, "true")[1]


def test_a_command_on_the_controller_is_killed_with_all_below_it(tmp_path: Path) -> None:
    with ssh_fleet(tmp_path) as fleet:
        process = fleet.start("sh", "-c", "sleep 1000 & sleep 1000", cwd=tmp_path)
        kill_tree(process.pid)
        assert process.communicate()[0] == ""
