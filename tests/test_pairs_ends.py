"""A host's ends: commands, recorded outputs of both tools, the way to the peer, and how two ends become one pair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hosttune.bench.parse.answer import NotUnderstood
from hosttune.errors import BadInput, CommandFailed
from hosttune.model.pairs import End, EndResult, Job, Pair, PairsReport
from hosttune.pairs.counters import came, look
from hosttune.pairs.ends import check_job, command, measure, measure_one, parse_ib_write_bw, parse_iperf3, wrong_way
from hosttune.pairs.judging import joined, judged, verdict_of
from hosttune.reader import Reader
from hosttune.recorded import Capture
from hosttune.report.pairs_text import counted

TEXT = (Path(__file__).parent / "cases/bench/perftest/gbits.txt").read_text()
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
    assert rdma[:9] == ("timeout", "-k", "2", "18", *shell, "ib_write_bw")
    assert rdma[-2:] == ("--bind_source_ip", "10.0.0.2")
    limited, _ = command(replace(CLIENT, rate_gbps=10.0, streams=4), 10)
    assert limited[limited.index("-b") + 1] == "2500000000"


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


def iperf3(**changes: Any) -> str:
    got = {"bytes": 250_000_000, "seconds": 2.0, "bits_per_second": 1e9, **changes}
    return json.dumps({"start": {"cookie": "abc", "connected": []}, "end": {"sum_received": got, "sum_sent": {}}})


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
    assert "mgmt0, not r0" in str(found.why)

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
    good = Pair(sender="a", receiver="b", rail="r0", round=1, state="good", outcome="measured", errors=what.errors)
    assert verdict_of((good,), incomplete=False, limited=False) == "warn"
    assert verdict_of((replace(good, errors=()),), incomplete=False, limited=False) == "pass"
    report = PairsReport(run="r", pairs=(good,))
    assert list(counted(report)) == ["errors: a to b on r0: receiver: r0 rx_crc_errors 2"]
