"""Real iperf3 between hosts in network namespaces: a limited, a lossy and a one-way link are found and named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from namespaces import quiet, until
from pairhosts import HOSTTUNE, OWN_SYS, Player, needs_iperf3
from sshhosts import SshFleet, ssh_fleet
from sweeps import FULL

from hosttune.cluster.between import run_between
from hosttune.cluster.pairplan import PairsOptions
from hosttune.cluster.pairruns import PAIRS, PairsRequest, PairsRun
from hosttune.fleet.playbook import PlaybookOrder
from hosttune.fleet.run import FleetRequest
from hosttune.model.pairs import Pair, PairsReport
from hosttune.report.pairs import smaller_paths

NAMES = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")
# Little of the processor: what is found is a part of the limit, not of what this machine can do.
# On a busy machine a good link may carry less than nine tenths of the limit; the bad ones carry a fifth, or less.
OPTIONS = PairsOptions(seconds=1, rate_gbps=0.1, wait=4, floor=0.4)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshFleet]:
    """Hosts without sshd, with one port each; two of them with bad links."""
    needs_iperf3()
    folder = tmp_path_factory.mktemp("pairs")
    with ssh_fleet(folder) as found:
        for name in NAMES:
            host = found.host(name, folder / "none", mounts=OWN_SYS, listening=False)
            assert host.space is not None
            reno = ("sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno")  # others mind loss less
            quiet(*host.space.inside(*reno))
        yield found


def measure(
    fleet: SshFleet, results: Path, player: Player, *, names: Sequence[str] = NAMES, **more: object
) -> PairsRun:
    base = FleetRequest(
        verb="pairs", inventories=(",".join((*names, "")),), results=str(results), resume=bool(more.get("resume"))
    )
    options = replace(OPTIONS, rounds=1) if more.get("one_round") else OPTIONS
    request = PairsRequest(base, options, disrupt=tuple(names))
    return run_between(PAIRS, request, lambda line: None, player=player.play)


def test_a_limited_and_a_lossy_link_are_found(fleet: SshFleet, tmp_path: Path) -> None:
    """Of four hosts two are bad, in different ways; each is named, and no pair of the other two."""
    first, limited, lossy, last = fleet.hosts
    fair = (first, last)
    limited.slow("20mbit")
    lossy.lose_every(10)
    for other in (limited, *fair):
        other.lose_every(10, sender=lossy)
    player = Player(fleet)
    found = measure(fleet, tmp_path, player)
    report = found.report
    faults = {(one.kind, one.hosts, one.rail) for one in report.faults}
    assert faults == {("port", ("gpu-2",), "eth0"), ("port", ("gpu-3",), "eth0")}, report.to_json()
    assert (found.exit_code, report.verdict, report.all_pairs, report.rounds) == (1, "fail", True, 3)
    good = next(pair for pair in report.pairs if {pair.sender, pair.receiver} == {"gpu-1", "gpu-4"})
    assert (good.state, good.rate_gbps) == ("good", 10.0)
    assert good.gbps == pytest.approx(0.1, rel=0.6)
    assert good.expected == pytest.approx(0.04)  # of the limit, not of the port
    assert all(len(hosts) == len(set(hosts)) for _, hosts in player.asked)
    for one in fleet.hosts:  # as they were, for the next test
        assert one.space is not None
        quiet(*one.space.inside("iptables", "-F"))
    quiet(*limited.space.inside("tc", "qdisc", "del", "dev", "eth0", "root"))  # type: ignore[union-attr]
    quiet(*fleet.controller.inside("tc", "qdisc", "del", "dev", limited.port, "root"))


@pytest.mark.skipif(not FULL, reason="3 s of CPU time: part of the full sweep (HOSTTUNE_SWEEP=full)")
def test_a_path_that_is_smaller_than_a_port_is_told_though_the_figure_is_good(fleet: SshFleet, tmp_path: Path) -> None:
    """gpu-1 has jumbo frames, and the switch has not: TCP goes by the peer's size, and nothing else shows it."""
    first = fleet.hosts[0]
    assert first.space is not None
    quiet(*first.space.inside("ip", "link", "set", "eth0", "mtu", "9000"))
    try:
        found = measure(fleet, tmp_path, Player(fleet), names=("gpu-1", "gpu-4"))
    finally:  # as it was, for the next test
        quiet(*first.space.inside("ip", "link", "set", "eth0", "mtu", "1500"))
    of_sender = {pair.sender: (pair.state, pair.path_mtu.state, pair.path_mtu.bytes) for pair in found.report.pairs}
    assert of_sender == {"gpu-1": ("good", "smaller", 9000), "gpu-4": ("good", "whole", 1500)}, found.report.to_json()
    assert found.report.verdict == "warn"
    assert list(smaller_paths(found.report)) == [
        "MTU of the path on eth0: packets of 9000 bytes do not arrive whole, small ones do: the peer's port or a switch"
        " has less (gpu-1 to gpu-4)"
    ]


@pytest.mark.skipif(not FULL, reason="7 s of CPU time: part of the full sweep (HOSTTUNE_SWEEP=full)")
def test_one_way_busy_ports_lost_hosts_and_a_resumed_run(fleet: SshFleet, tmp_path: Path) -> None:
    """gpu-1 lets nobody in; gpu-2 has a port that is taken; gpu-3 dies in the first round and is asked again later."""
    first, second, *_ = fleet.hosts
    first.filter("-A", "INPUT", "-p", "tcp", "--dport", "5201", "-j", "DROP")
    assert second.space is not None
    taken = ("import socket, time; s = socket.create_server(('', 5201)); print(1, flush=True); time.sleep(60)",)
    busy = subprocess.Popen(second.space.inside(sys.executable, "-c", *taken), stdout=subprocess.PIPE)
    with busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        player = Player(fleet, dies={"gpu-3": "pairs-001"})
        report = measure(fleet, tmp_path, player, names=NAMES[:3]).report
        busy.kill()
    told = {frozenset((p.sender, p.receiver)): (p.outcome, p.state) for p in report.pairs}
    first_round = [pair for pair in report.pairs if pair.round == 1]
    assert report.verdict in ("fail", "unknown"), report.to_json()
    assert all(pair.state != "good" for pair in report.pairs if "gpu-3" in (pair.sender, pair.receiver)), told
    if any("gpu-3" in (pair.sender, pair.receiver) for pair in first_round):  # its other pairs are not even tried
        assert set(told.values()) & {("host-lost", "unknown"), ("not-asked", "unknown")}, told
    assert ("gpu-1", "gpu-2") not in {(p.sender, p.receiver) for p in report.pairs} or (
        told[frozenset(("gpu-1", "gpu-2"))] == ("port-busy", "unknown")
    ), told

    again = measure(fleet, tmp_path, Player(fleet), names=NAMES[:3], resume=True)
    told = {frozenset((p.sender, p.receiver)): (p.outcome, p.state) for p in again.report.pairs}
    into_first = [p for p in again.report.pairs if p.receiver == "gpu-1"]
    assert into_first, told
    assert all((p.outcome, p.state) == ("one-way", "cut") for p in into_first), told
    assert all(p.state == "good" for p in again.report.pairs if p.receiver != "gpu-1"), told
    assert again.report.run == report.run
    assert first.space is not None
    quiet(*first.space.inside("iptables", "-F"))  # as it was, for the next test


@pytest.mark.skipif(not FULL, reason="9 s of CPU time: part of the full sweep (HOSTTUNE_SWEEP=full)")
def test_a_killed_controller_leaves_nothing_and_the_resumed_run_measures_the_rest(
    fleet: SshFleet, tmp_path: Path
) -> None:
    """SIGKILL while the second of three rounds is measured: iperf3 ends by its own limit on every host."""
    names = NAMES[:3]
    whole = measure(fleet, tmp_path / "whole", Player(fleet), names=names).report
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        doomed = Player(fleet, before=lambda order, stop: said(order, writes))
        measure(fleet, tmp_path / "killed", doomed, names=names)
        os._exit(0)
    assert os.read(reads, 1) == b"2"
    until(lambda: programs(fleet), "a measurement of the second round")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    until(lambda: not programs(fleet), "the end of what the hosts had begun", seconds=40)
    player = Player(fleet)
    found = measure(fleet, tmp_path / "killed", player, names=names, resume=True).report
    assert [record for record, _ in player.asked] == ["pairs-002", "pairs-003"]
    assert [told(pair) for pair in found.pairs] == [told(pair) for pair in whole.pairs]
    assert (found.verdict, found.rounds, found.faults) == (whole.verdict, whole.rounds, whole.faults) == ("warn", 3, ())


def said(order: PlaybookOrder, into: int) -> None:
    """Write the digit of the round that begins, of the second one alone."""
    if order.variables["hosttune_pairs_record"] == "pairs-002":
        os.write(into, b"2")


def told(pair: Pair) -> tuple[str, str, str, int, str, str]:
    return (pair.sender, pair.receiver, pair.rail, pair.round, pair.outcome, pair.state)


def programs(fleet: SshFleet) -> list[str]:
    """iperf3 and timeout in the hosts' networks."""
    networks = {os.readlink(f"/proc/{host.space.init}/ns/net") for host in fleet.hosts if host.space is not None}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, network = (folder / "comm").read_text().strip(), os.readlink(folder / "ns/net")
        except OSError:  # it ended meanwhile
            continue
        if name in ("iperf3", "timeout") and network in networks:
            found.append(name)
    return found


@pytest.mark.skipif(not FULL, reason="4 s of CPU time: part of the full sweep (HOSTTUNE_SWEEP=full)")
def test_somebody_else_answers_and_another_subnet(fleet: SshFleet, tmp_path: Path) -> None:
    """What is sent to gpu-1 or gpu-2 reaches a server on gpu-3; gpu-4 is in a subnet to which there is no way."""
    first, second, third, fourth = fleet.hosts
    assert third.space is not None
    assert fourth.space is not None
    redirect = ("-p", "tcp", "--dport", "5201", "-j", "DNAT", "--to-destination", third.address)
    for host in (first, second):
        host.filter("-t", "nat", "-A", "OUTPUT", *redirect)
    rogue = subprocess.Popen(
        third.space.inside("timeout", "60", "iperf3", "-s", "-1", "-p", "5201"), stdout=subprocess.DEVNULL
    )
    quiet(*fourth.space.inside("ip", "addr", "flush", "dev", "eth0"))
    quiet(*fourth.space.inside("ip", "addr", "add", "10.99.0.4/24", "dev", "eth0"))
    try:
        other = measure(fleet, tmp_path / "other", Player(fleet), names=NAMES[:2], one_round=True)
        apart = measure(fleet, tmp_path / "apart", Player(fleet), names=(NAMES[0], NAMES[3]), one_round=True)
    finally:
        rogue.kill()
        rogue.wait()
        for host in (first, second):
            host.filter("-t", "nat", "-F")
        quiet(*fourth.space.inside("ip", "addr", "flush", "dev", "eth0"))
        quiet(*fourth.space.inside("ip", "addr", "add", f"{fourth.address}/24", "dev", "eth0"))
    assert [(pair.outcome, pair.state) for pair in other.report.pairs] == [("other-peer", "cut")], (
        other.report.to_json()
    )
    assert [(pair.outcome, pair.state) for pair in apart.report.pairs] == [("no-route", "cut")], apart.report.to_json()
    assert "Network is unreachable" in str(apart.report.pairs[0].why)
    assert (other.exit_code, apart.exit_code) == (1, 1)


def test_the_command_itself_through_ansible(fleet: SshFleet, tmp_path: Path) -> None:
    """`hosttune fleet pairs` with the shipped playbook: ports, plan, a round for each direction, report."""
    hosts = {}
    for host in fleet.hosts[2:]:
        assert host.space is not None
        into = host.space.inside(*HOSTTUNE, kinds=("--net", "--mount", "--pid"))
        hosts[host.name] = {"hosttune_command": into, "hosttune_ports": ["eth0"]}
    shared = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "inventory.yml").write_text(json.dumps({"all": {"hosts": hosts, "vars": shared}}))
    words = [*HOSTTUNE, "fleet", "pairs", "-i", "inventory.yml", "--seconds", "1", "--rate", "0.1", "-o", "json"]
    words += ["--disrupt", "gpu-3", "--disrupt", "gpu-4", "--floor", "0.4"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=200, check=False)
    report = PairsReport.from_json(done.stdout or done.stderr)
    assert [(p.outcome, p.state) for p in report.pairs] == [("measured", "good")] * 2, done.stdout + done.stderr
    assert (done.returncode, report.verdict) == (0, "warn")  # the rate was limited
    told = subprocess.run(
        [*HOSTTUNE, "fleet", "report"], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False
    )
    assert "WARN  pairs: 2 good" in told.stdout, told.stdout + told.stderr
