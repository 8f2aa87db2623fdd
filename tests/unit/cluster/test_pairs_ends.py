"""A host's ends: commands, recorded outputs of both tools, the way to the peer, and how two ends become one pair."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from hosttune.bench.parse.answer import NotUnderstood
from hosttune.cluster.pairplan import PairsOptions, PairsPlan, PlannedHost, jobs
from hosttune.cluster.pairs.ends import (
    STALLED,
    UNBOUND,
    came,
    check_job,
    command,
    look,
    measure,
    measure_one,
    parse_ib_write_bw,
    parse_iperf3,
    wrong_way,
)
from hosttune.cluster.pairs.judging import joined, judged, verdict_of
from hosttune.cluster.pairs.ports import survey
from hosttune.cluster.pairs.programs import Run
from hosttune.discovery import discover
from hosttune.errors import BadInput, CommandFailed
from hosttune.machine.capture import Capture
from hosttune.machine.opening import open_system
from hosttune.machine.reader import Reader
from hosttune.model.pairs import End, EndResult, Job, Pair, PairsReport, PathMtu, Port
from hosttune.report.pairs import counted

TEXT = (Path(__file__).parents[2] / "cases/bench/perftest/gbits.txt").read_text()
CASES = Path(__file__).parents[2] / "cases/pairs/ib_write_bw"
CLIENT = End(
    rail="r0", role="client", tool="tcp", address="10.0.0.1", peer_address="10.0.0.2", port=5201, seconds=2, wait=1,
    interface="r0", rdma="mlx5_0",
)  # fmt: skip
SERVER = replace(CLIENT, role="server", address="10.0.0.2", peer_address="10.0.0.1")


def result(role: str, outcome: str = "measured", gbps: float | None = 95.0, name: str | None = "abc") -> EndResult:
    return EndResult(rail="r0", role=role, outcome=outcome, gbps=gbps, connection=name)  # type: ignore[arg-type]


def test_servers_bind_to_one_address_take_one_connection_and_end_by_themselves() -> None:
    shell = ("sh", "-c", 'exec "$@" 2>&1', "sh")
    argv, limit = command(SERVER, 10)
    assert argv == ("timeout", "-k", "2", "19", *shell, "iperf3", "-J", "-B", "10.0.0.2", "-p", "5201", "-s", "-1")
    assert limit == 19
    rdma, _ = command(replace(SERVER, tool="rdma"), 10)
    assert rdma[:11] == ("timeout", "-k", "2", "18", *shell, "stdbuf", "-oL", "ib_write_bw")
    assert rdma[-2:] == ("--bind_source_ip", "10.0.0.2")
    limited, _ = command(replace(CLIENT, rate_gbps=10.0, streams=4), 10)
    assert limited[limited.index("-b") + 1] == "2500000000"
    by_itself, _ = command(replace(CLIENT, tool="rdma", rate_gbps=10.0), 10)  # a card knows a few rates only
    assert by_itself[by_itself.index("--rate_limit_type") + 1] == "SW"
    assert by_itself[-3:] == ("--rate_limit", "10", "10.0.0.2")


@pytest.mark.parametrize(
    ("name", "value"),
    [("address", "-x"), ("peer_address", "h1"), ("port", 0), ("seconds", 9999), ("rate_gbps", float("nan")),
     ("streams", 65)],
)  # fmt: skip
def test_a_job_with_a_wrong_value_is_refused(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=r"(?s).*") as caught:
        check_job(Job(ends=(replace(CLIENT, **{name: value}),)))
    assert caught.value.where == f"job: ends[0].{name}"
    with pytest.raises(BadInput, match="RDMA"):
        check_job(Job(ends=(replace(CLIENT, tool="rdma", rdma="-d x"),)))


def test_the_queue_pairs_name_a_connection_of_ib_write_bw() -> None:
    client = parse_ib_write_bw(replace(CLIENT, tool="rdma"), TEXT)
    swapped = TEXT.replace(" local", " LOCAL").replace(" remote", " local").replace(" LOCAL", " remote")
    server = parse_ib_write_bw(replace(SERVER, tool="rdma"), swapped)
    assert client.gbps == pytest.approx(395.62)
    assert client.connection == server.connection
    assert joined(client, server).outcome == "measured"
    other = parse_ib_write_bw(replace(SERVER, tool="rdma"), swapped.replace("0x0128", "0x0999"))
    assert joined(client, other).outcome == "other-peer"
    with pytest.raises(NotUnderstood):
        parse_ib_write_bw(CLIENT, TEXT.replace("remote address", "nobody"))


def failing(text: str, reason: str = "exit status 1") -> tuple[list[tuple[str, ...]], Run]:
    """A machine whose way to the peer is right and whose ib_write_bw ends with these words; what was run on it."""
    asked: list[tuple[str, ...]] = []

    def run(argv: tuple[str, ...], limit: float) -> str:
        if argv[0] == "ip":
            return json.dumps([{"dev": "r0"}])
        asked.append(argv)
        raise CommandFailed(argv, reason, text)

    return asked, run


@pytest.mark.parametrize(
    ("said", "role", "outcome"),
    [((CASES / "no-device.txt").read_text(), "server", "tool-failed"),
     ((CASES / "no-such-device.txt").read_text(), "server", "tool-failed"),
     ((CASES / "busy-port.txt").read_text(), "server", "port-busy"),
     ("Failed to bind socket\n Unable to init the socket connection\n", "client", "wrong-fabric"),
     ((CASES / "nobody.txt").read_text(), "client", "no-connection"),
     (" Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0\n", "client",
      "no-connection"),
     ("ethernet_read_keys: Couldn't read remote address\n Unable to read from socket/rdma_cm\n", "server",
      "no-connection"),
     ("Found Incompatibility issue with GID types.\n", "client", "tool-failed")],
)  # fmt: skip
def test_what_ib_write_bw_says_is_an_outcome(said: str, role: str, outcome: str) -> None:
    """Files are recorded; the other words are perftest's own (src/perftest_communication.c, perftest_resources.h)."""
    _, run = failing(said)
    found = measure_one(replace(CLIENT, role=role, tool="rdma"), run)
    assert found.outcome == outcome
    assert found.why


def test_a_busy_port_of_the_receiver_is_not_the_networks_fault() -> None:
    _, run = failing((CASES / "busy-port.txt").read_text())
    server = measure_one(replace(SERVER, tool="rdma", interface=None), run)
    _, run = failing((CASES / "nobody.txt").read_text())
    assert joined(measure_one(replace(CLIENT, tool="rdma"), run), server).outcome == "port-busy"


def test_a_sender_that_was_connected_does_not_try_again() -> None:
    """TCP let it in, RDMA does not pass: the receiver has ended, and the reason must not be lost."""
    head = TEXT[: TEXT.index(" #bytes")]
    asked, run = failing(f"{head} Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n")
    found = measure_one(replace(CLIENT, tool="rdma"), run)
    assert (found.outcome, found.why, len(asked)) == (
        "no-connection",
        "Failed status 12: wr_id 0 syndrom 0x81",
        1,
    )


@pytest.mark.parametrize(("role", "outcome"), [("client", "no-connection"), ("server", "nobody-came")])
def test_an_end_without_a_peer_is_ended_by_its_time_limit(role: str, outcome: str) -> None:
    """A firewall that drops: ib_write_bw waits for TCP's own end, minutes, and says nothing."""
    _, run = failing("", "exit status 124")
    found = measure_one(replace(CLIENT, role=role, tool="rdma"), run)
    assert found.outcome == outcome
    assert found.why is not None
    assert "within 9 s" in found.why


def test_a_perftest_that_cannot_bind_is_run_without_and_the_result_says_so() -> None:
    asked: list[tuple[str, ...]] = []
    swapped = TEXT.replace(" local", " LOCAL").replace(" remote", " local").replace(" LOCAL", " remote")

    def run(argv: tuple[str, ...], limit: float) -> str:
        if argv[0] == "ip":
            return json.dumps([{"dev": "r0"}])
        asked.append(argv)
        if "--bind_source_ip" in argv:
            raise CommandFailed(argv, "exit status 1", (CASES / "no-bind-option.txt").read_text())
        return TEXT if argv[-1] == "10.0.0.2" else swapped

    client = measure_one(replace(CLIENT, tool="rdma"), run)
    server = measure_one(replace(SERVER, tool="rdma", interface=None), run)
    assert (client.outcome, server.outcome, client.why, server.why) == ("measured", "measured", None, UNBOUND)
    assert len(asked) == 4
    found = joined(client, server)
    assert (found.outcome, found.why) == ("measured", UNBOUND)


@pytest.mark.parametrize("together", [True, False])
def test_all_ends_at_once_or_one_after_another(*, together: bool) -> None:
    """At once: each waits until both are there. One after another: never two."""
    both, there, most = threading.Barrier(2), [0], [0]

    def run(argv: tuple[str, ...], limit: float) -> str:
        if argv[0] == "ip":
            return json.dumps([{"dev": "r0"}])
        there[0] += 1
        most[0] = max(most[0], there[0])
        if together:
            both.wait(timeout=30)
        there[0] -= 1
        return iperf3()

    found = measure([CLIENT, replace(CLIENT, rail="r1", port=5202)], run, together=together)
    assert [one.outcome for one in found] == ["measured", "measured"]
    assert most[0] == 2 if together else most[0] == 1


@pytest.mark.parametrize(
    ("line", "figure"),
    [("1048576    20    0.00    0.05    0.000006", 0.05), ("1048576    2    0.00    0.01    0.000001", 0.01),
     ("1048576    1    0.00    0.00    0.000000", 0.0)],
)  # fmt: skip
def test_a_very_slow_link_has_a_figure_though_the_message_rate_is_rounded(line: str, figure: float) -> None:
    """perftest prints Gb/s with two decimals and millions of messages with six: here 20, 2 and 1 message in 3 s."""
    slow = re.sub(r"(?m)^ 1048576 .*$", f" {line}", TEXT)
    assert parse_ib_write_bw(CLIENT, slow).gbps == figure
    with pytest.raises(NotUnderstood, match="contradict"):
        parse_ib_write_bw(CLIENT, slow.replace(" 0.0000", " 0.0900"))


def iperf3(**changes: Any) -> str:
    got = {"bytes": 250_000_000, "seconds": 2.0, "bits_per_second": 1e9, **changes}
    return json.dumps({"start": {"cookie": "abc", "connected": []}, "end": {"sum_received": got, "sum_sent": {}}})


@pytest.mark.parametrize("end", [CLIENT, SERVER])
def test_iperf3_must_have_measured_as_long_as_was_asked(end: End) -> None:
    """A program that stops early has a true rate of the first moments, which is not that of the port."""
    took = {seconds: {"seconds": seconds, "bytes": seconds * 125e6} for seconds in (0.05, 1.7, 1.994, 2.4, 9.0)}
    for short in (0.05, 1.7):
        with pytest.raises(NotUnderstood, match=f"it measured {short:g} s instead of 2"):
            parse_iperf3(end, iperf3(**took[short]))
    assert [parse_iperf3(end, iperf3(**took[whole])).gbps for whole in (1.994, 2.4, 9.0)] == [1.0] * 3


def test_iperf3s_figures_must_agree() -> None:
    assert parse_iperf3(CLIENT, iperf3()).gbps == 1.0
    for wrong in ({"bits_per_second": 2e9}, {"bytes": 0}, {"seconds": "x"}):
        with pytest.raises(NotUnderstood):
            parse_iperf3(CLIENT, iperf3(**wrong))
    with pytest.raises(NotUnderstood):
        parse_iperf3(CLIENT, "iperf3: something else")


@pytest.mark.parametrize(
    ("said", "outcome"),
    [("unable to connect to server: Connection refused", "connection-refused"),
     ("unable to connect to server: No route to host", "no-route"),
     ("unable to start listener for connections: Address already in use", "port-busy"),
     ("interrupt - the client has terminated", "no-connection"),
     ("a thing that nobody has seen", "tool-failed")],
)  # fmt: skip
def test_what_iperf3_says_is_an_outcome(said: str, outcome: str) -> None:
    text = json.dumps({"start": {"connected": []}, "end": {}, "error": said})
    assert parse_iperf3(CLIENT, text).outcome == outcome


def test_another_way_to_the_peer_is_the_wrong_fabric_and_nothing_is_sent() -> None:
    asked: list[str] = []

    def run(argv: tuple[str, ...], limit: float) -> str:
        asked.append(argv[0])
        return json.dumps([{"dst": "10.0.0.2", "dev": "mgmt0"}])

    found = measure_one(CLIENT, run)
    assert (found.outcome, asked) == ("wrong-fabric", ["ip"])
    assert "leaves by mgmt0, not by r0" in str(found.why)

    def none(argv: tuple[str, ...], limit: float) -> str:
        raise CommandFailed(argv, "exit status 2", "RTNETLINK answers: Network is unreachable")

    lost = wrong_way(CLIENT, none)
    assert lost is not None
    assert lost[0] == "no-route"


@pytest.mark.parametrize(
    ("client", "server", "outcome"),
    [(result("client"), result("server"), "measured"),
     (result("client"), result("server", name="xyz"), "other-peer"),
     (result("client"), result("server", "nobody-came", None, None), "other-peer"),
     (result("client", "no-connection", None, None), result("server", "nobody-came", None, None), "no-connection"),
     (result("client", "no-connection", None, None), result("server", "port-busy", None, None), "port-busy"),
     (result("client"), result("server", gbps=50.0), "not-understood"),
     (result("client", name=None), result("server", name=None), "not-understood"),
     (None, result("server"), "host-lost"),
     (result("client"), None, "host-lost")],
)  # fmt: skip
def test_two_ends_become_one_pair(client: EndResult | None, server: EndResult | None, outcome: str) -> None:
    found = joined(client, server)
    assert found.outcome == outcome
    assert (found.gbps is not None) == (outcome == "measured")


def test_unknown_rates_are_never_good_unless_only_the_median_is_asked() -> None:
    pairs = [
        Pair(sender="a", receiver=name, rail="r", round=1, state="unknown", outcome="measured", gbps=figure)
        for name, figure in (("b", 10.0), ("c", 10.0), ("d", 5.0))
    ]
    both = judged(pairs, floor=0.9, against=("rate", "median"))
    assert [pair.state for pair in both] == ["unknown", "unknown", "low"]
    assert [pair.state for pair in judged(pairs, floor=0.9, against=("median",))] == ["good", "good", "low"]
    assert [pair.state for pair in judged(pairs[:2], floor=0.9, against=("median",))] == ["unknown"] * 2


@pytest.mark.parametrize(
    ("name", "figure"),
    [("gid-index", 0.17), ("bidirectional", 0.17176), ("rate-limit", 0.025164), ("limited", 0.004194),
     ("lossy", 0.012582)],
)  # fmt: skip
def test_both_ends_as_recorded_are_one_measurement(name: str, figure: float) -> None:
    """Each end as ib_write_bw printed it; of two ends of different measurements somebody else has answered."""
    client = parse_ib_write_bw(CLIENT, (CASES / f"{name}-client.txt").read_text())
    server = parse_ib_write_bw(SERVER, (CASES / f"{name}-server.txt").read_text())
    assert (joined(client, server).outcome, joined(client, server).gbps) == ("measured", figure)
    other = parse_ib_write_bw(SERVER, (CASES / "stalled-server.txt").read_text())
    assert joined(client, other).outcome == "other-peer"


def test_rdma_that_carries_nothing_is_low_though_every_pair_is_so() -> None:
    """Recorded: TCP connects, RDMA's packets are dropped, and both ends end well, with 0."""
    client = parse_ib_write_bw(CLIENT, (CASES / "stalled-client.txt").read_text())
    server = parse_ib_write_bw(SERVER, (CASES / "stalled-server.txt").read_text())
    assert (client.seen, server.seen) == ("10.50.2.2", "10.50.2.1")
    found = joined(client, server)
    assert (found.outcome, found.gbps, found.why) == ("measured", 0.0, STALLED)
    pairs = [
        Pair(sender="a", receiver=name, rail="r", round=1, state="unknown", outcome="measured", gbps=0.0)
        for name in ("b", "c", "d")
    ]
    for against in (("median",), ("rate", "median")):
        assert {pair.state for pair in judged(pairs, floor=0.5, against=against)} == {"low"}


def test_an_rdma_device_over_a_bond_belongs_to_the_bond(tmp_path: Path) -> None:
    """It is below no PCI function: the kernel says which interface its addresses are of (so does software RDMA)."""
    for path, text in {
        "sys/class/infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/0": "bond0",
        "sys/class/infiniband/mlx5_9/ports/1/gid_attrs/ndevs/0": "eth9",
        "sys/class/net/bond0/speed": "200000",
        "sys/class/net/eth0/speed": "100",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    system = open_system(str(tmp_path))
    bond, plain = survey(system, discover(system), ("bond0", "eth0")).ports
    assert (bond.rail, bond.rdma, bond.rate_gbps, bond.link_layer) == ("bond0", "mlx5_bond_0", 200.0, "Ethernet")
    assert (plain.rdma, plain.link_layer) == (None, None)


def two_ports(root: Path) -> Path:
    """One PCI function whose one RDMA device has two ports: the first RoCE, the second InfiniBand (a VPI card)."""
    device = root / "sys/devices/pci0000:80/0000:82:00.0"
    rdma = "sys/class/infiniband/mlx4_0"
    files = {
        "class": "0x020700", "vendor": "0x15b3", "device": "0x1007", f"{rdma}/ports/1/link_layer": "Ethernet",
        f"{rdma}/ports/1/state": "4: ACTIVE", f"{rdma}/ports/1/rate": "40 Gb/sec (4X QDR)",
        f"{rdma}/ports/1/gid_attrs/ndevs/0": "enp1", f"{rdma}/ports/2/link_layer": "InfiniBand",
        f"{rdma}/ports/2/state": "4: ACTIVE", f"{rdma}/ports/2/rate": "56 Gb/sec (4X FDR)",
        "sys/class/net/enp1/dev_port": "0", "sys/class/net/enp1/type": "1", "sys/class/net/ibs2/dev_port": "1",
        "sys/class/net/enp1/speed": "25000",  # RoCE has its interface's rate
        "sys/class/net/ibs2/type": "32", "sys/class/net/enp1/operstate": "up", "sys/class/net/ibs2/operstate": "up",
        ".hosttune/commands/ip-j-address": json.dumps(
            [{"ifname": name, "addr_info": [{"scope": "global", "local": f"10.0.{number}.1"}]}
             for number, name in enumerate(("enp1", "ibs2"))]
        ),
    }  # fmt: skip
    for path, text in files.items():
        at = root / path if "/" in path else device / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(f"{text}\n")
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    (root / "sys/bus/pci/devices/0000:82:00.0").symlink_to("../../../devices/pci0000:80/0000:82:00.0")
    for folder in ("infiniband/mlx4_0", "net/enp1", "net/ibs2"):
        (root / "sys/class" / folder / "device").symlink_to("../../../devices/pci0000:80/0000:82:00.0")
    return root


def test_each_of_two_ports_of_an_rdma_device_is_an_end_of_its_own(tmp_path: Path) -> None:
    system = open_system(str(two_ports(tmp_path)))
    host = discover(system)
    first, second = survey(system, host).ports
    assert (first.rail, first.rdma, first.rdma_port, first.rate_gbps) == ("enp1", "mlx4_0", 1, 25.0)
    assert (second.rail, second.rdma, second.rdma_port, second.rate_gbps) == ("ibs2", "mlx4_0", 2, 56.0)
    assert (first.link_layer, second.link_layer) == ("Ethernet", "InfiniBand")
    assert (first.address, second.address) == ("10.0.0.1", "10.0.1.1")
    assert survey(system, host, ("mlx4_0/2",)).ports == survey(system, host, ("ibs2",)).ports == (second,)
    assert survey(system, host, ("mlx4_0", "enp1")).ports == (first, second)
    with pytest.raises(BadInput, match="no port 'mlx4_0/3'"):
        survey(system, host, ("mlx4_0/3",))


def test_a_rate_that_the_kernel_may_not_know_is_no_rate(tmp_path: Path) -> None:
    """An older kernel shows SDR for XDR: 0.9 times 10 Gb/s would be a pass for a port of 800."""
    (two_ports(tmp_path) / "sys/class/infiniband/mlx4_0/ports/2/rate").write_text("10 Gb/sec (4X SDR)\n")
    system = open_system(str(tmp_path))
    assert survey(system, discover(system)).ports[1].rate_gbps is None


def test_a_port_whose_interface_is_not_known_is_listed_without_one(tmp_path: Path) -> None:
    """Never measured as another port, and named as not measured: it has no address."""
    (two_ports(tmp_path) / "sys/class/net/ibs2/dev_port").write_text("0\n")
    system = open_system(str(tmp_path))
    found = {port.rail: port for port in survey(system, discover(system)).ports}
    assert set(found) == {"enp1", "ibs2", "mlx4_0/2"}
    assert (found["ibs2"].rdma, found["ibs2"].address) == (None, "10.0.1.1")
    assert (found["mlx4_0/2"].rdma_port, found["mlx4_0/2"].address) == (2, None)


def test_an_end_measures_and_counts_on_its_own_port(tmp_path: Path) -> None:
    end = replace(CLIENT, tool="rdma", rdma="mlx4_0", rdma_port=2, interface=None)
    words, _ = command(end, 10)
    at = words.index("-d")
    assert words[at : at + 2] == ("-d", "mlx4_0")
    assert words[words.index("-i") + 1] == "2"
    assert "-i" not in command(replace(end, rdma_port=None), 10)[0]
    for number, count in ((1, 7), (2, 5)):
        folder = tmp_path / f"sys/class/infiniband/mlx4_0/ports/{number}/counters"
        folder.mkdir(parents=True)
        (folder / "symbol_error").write_text(f"{count}\n")
    reader = Reader(Capture(str(tmp_path)))
    assert look(reader, end) == {"mlx4_0/2 symbol_error": 5}
    assert look(reader, replace(end, rdma_port=None)) == {"mlx4_0/1 symbol_error": 7, "mlx4_0/2 symbol_error": 5}
    with pytest.raises(BadInput) as caught:
        check_job(Job(ends=(replace(end, rdma_port=0),)))
    assert caught.value.where == "job: ends[0].rdma_port"


def test_the_two_ends_of_a_rail_may_have_different_port_numbers() -> None:
    def host(name: str, number: int) -> PlannedHost:
        port = Port(rail="ibs", interface="ibs", rdma="mlx4_0", rdma_port=number, address=f"10.0.0.{number}")
        return PlannedHost(host=name, ports=(port,))

    plan = PairsPlan(run="r", at="", options=PairsOptions(tool="rdma"), hosts=(host("a", 1), host("b", 2)))
    made = msgspec.convert(jobs(plan, ("a", "b"), frozenset(), 2), dict[str, Job])
    assert [(end.role, end.rdma_port) for name in "ab" for end in made[name].ends] == [("client", 1), ("server", 2)]


# --- error counters -------------------------------------------------------------------------------------------------


def port(root: Path, **counts: int) -> Reader:
    """A host whose port has these counters; those of hardware below hw_counters, frames below statistics."""
    folder = root / "sys/class/infiniband/mlx5_0/ports/1"
    places = {"rnr_nak_retry_err": folder / "hw_counters", "rx_crc_errors": root / "sys/class/net/r0/statistics"}
    for name, count in counts.items():
        at = places.get(name, folder / "counters")
        at.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(f"{count}\n")
    return Reader(Capture(str(root)))


def test_the_counters_of_an_end_are_those_of_its_device_and_interface(tmp_path: Path) -> None:
    found = look(port(tmp_path, symbol_error=3, rnr_nak_retry_err=1, rx_crc_errors=7, port_rcv_data=9), CLIENT)
    assert found == {"mlx5_0/1 symbol_error": 3, "mlx5_0/1 rnr_nak_retry_err": 1, "r0 rx_crc_errors": 7}
    assert look(port(tmp_path), replace(CLIENT, rdma="../x", interface=None)) == {}


@pytest.mark.parametrize(
    ("name", "before", "after", "errors"),
    [
        ("mlx5_0/1 link_downed", 4, 5, 1),  # none at all is allowed
        ("mlx5_0/1 link_downed", 5, 5, None),
        ("mlx5_0/1 symbol_error", 10, 130, None),  # 120 in an hour
        ("mlx5_0/1 symbol_error", 10, 131, 121),
        ("mlx5_0/1 symbol_error", 65535, 200, 200),  # cleared in between
        ("mlx5_0/1 port_xmit_discards", 0, 200, None),  # 100 in each of the two seconds
        ("mlx5_0/1 port_xmit_discards", 0, 201, 201),
        ("r0 rx_crc_errors", 0, 1, 1),
        ("r0 carrier_down_count", 1, 2, 1),
    ],
)
def test_what_came_beyond_what_is_allowed(name: str, before: int, after: int, errors: int | None) -> None:
    assert came({name: before}, {name: after}, 2) == ({} if errors is None else {name: errors})
    assert came({}, {name: after}, 2) == {}


def test_an_end_that_counted_errors_says_so_and_its_pair_is_no_pass() -> None:
    counts = iter(({"r0 rx_crc_errors": 0}, {"r0 rx_crc_errors": 2}))

    def fails(argv: tuple[str, ...], limit: float) -> str:
        raise CommandFailed(argv, "not installed")

    (end,) = measure((replace(CLIENT, interface=None),), fails, together=False, look=lambda end: next(counts))
    assert end.errors == {"r0 rx_crc_errors": 2}
    (blind,) = measure((replace(CLIENT, interface=None),), fails, together=False)
    assert blind.errors is None
    what = joined(result("client"), replace(result("server"), errors=end.errors))
    assert (what.outcome, what.errors) == ("measured", ("receiver: r0 rx_crc_errors 2",))
    good = Pair(
        sender="a", receiver="b", rail="r0", round=1, state="good", outcome="measured", errors=what.errors,
        path_mtu=PathMtu(state="whole"),
    )  # fmt: skip
    assert verdict_of((good,), incomplete=False, limited=False) == "warn"
    assert verdict_of((replace(good, errors=()),), incomplete=False, limited=False) == "pass"
    report = PairsReport(run="r", pairs=(good,))
    assert list(counted(report)) == ["errors: a to b on r0: receiver: r0 rx_crc_errors 2"]
