"""Whether a path carries packets of the port's MTU: what ping says, and what follows for the pair and the verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from unit.cluster.test_pairs_ends import CLIENT, SERVER, iperf3, result

from hosttune.cluster.pairplan import seconds_of
from hosttune.cluster.pairs.ends import measure
from hosttune.cluster.pairs.judging import joined, verdict_of
from hosttune.cluster.pairs.pathmtu import path_mtu
from hosttune.cluster.pairs.programs import Run
from hosttune.errors import CommandFailed
from hosttune.model.pairs import GpuMemory, Pair, PathMtu

# Printed by ping of iputils 20221126 (Debian 12) between network namespaces.
ANSWERED = "3 packets transmitted, 3 received, 0% packet loss, time 401ms\n"
LOST = "3 packets transmitted, 0 received, 100% packet loss, time 403ms\n"
TOO_LONG = (
    "ping: sendmsg: Message too long\n3 packets transmitted, 0 received, +3 errors, 100% packet loss, time 403ms\n"
)
SOME = "3 packets transmitted, 1 received, 66.6667% packet loss, time 402ms\n"
LINK: dict[str, Any] = {"ifname": "r0", "mtu": 9000, "link_type": "ether"}


def machine(pings: dict[int, str], link: object = (LINK,), route: str = "[{}]") -> tuple[list[tuple[str, ...]], Run]:
    """A machine whose ping prints this by size of its payload, each of several texts once; what was run on it."""
    left = {size: said.split("|") for size, said in pings.items()}
    asked: list[tuple[str, ...]] = []

    def run(argv: tuple[str, ...], limit: float) -> str:
        asked.append(argv)
        if argv[:3] == ("ip", "-j", "route"):
            return route
        if argv[:2] == ("ip", "-j"):
            if isinstance(link, CommandFailed):
                raise link
            return link if isinstance(link, str) else json.dumps(link)
        texts = left[int(argv[argv.index("-s") + 1])]
        said = texts.pop(0) if len(texts) > 1 else texts[0]
        if ", 0 received" in said or "transmitted" not in said:
            raise CommandFailed(argv, "exit status 1", said)
        return said

    return asked, run


def found(pings: dict[int, str], link: object = (LINK,), **end: Any) -> PathMtu:
    return path_mtu(replace(CLIENT, **end), machine(pings, link)[1])


def test_a_packet_of_the_mtu_is_sent_from_the_port_s_address_and_must_not_be_divided() -> None:
    asked, run = machine({8972: ANSWERED})
    assert path_mtu(CLIENT, run) == PathMtu(state="whole", bytes=9000)
    (_, ping) = asked
    words = ping[ping.index("ping") :]
    assert words == ("ping", "-n", "-q", "-M", "do", "-s", "8972", "-c", "3", "-i", "0.2", "-W", "1",
                     "-I", "10.0.0.1", "10.0.0.2")  # fmt: skip
    assert ping[:2] == ("timeout", "-k")
    six = replace(CLIENT, address="fd00::1", peer_address="fd00::2")
    assert path_mtu(six, machine({8952: ANSWERED})[1]).state == "whole"


@pytest.mark.parametrize(
    ("full", "small", "state", "why"),
    [
        (LOST, ANSWERED, "smaller", "packets of 9000 bytes do not arrive whole, small ones do"),
        (TOO_LONG, ANSWERED, "smaller", "packets of 9000 bytes do not arrive whole, small ones do"),
        (SOME, "", "whole", None),
        (f"{LOST}|{ANSWERED}", ANSWERED, "unknown", "the path loses packets of ping"),
        (LOST, SOME, "unknown", "the path loses packets of ping"),
        (LOST, LOST, "unknown", "the peer does not answer to ping"),
        ("sh: 1: exec: ping: not found\n", "", "unknown", "ping is not installed (iputils-ping)"),
        (
            "ping: invalid option -- 'M'\nBusyBox v1.35.0 multi-call binary.\n",
            "",
            "unknown",
            "ping, which must be that of iputils: invalid option -- 'M'",
        ),
        ("", "", "unknown", "ping, which must be that of iputils: exit status 1"),
    ],
)
def test_what_ping_says(full: str, small: str, state: str, why: str | None) -> None:
    told = found({8972: full, 36: small})
    assert (told.state, told.why, told.bytes) == (state, why, 9000)


@pytest.mark.parametrize(
    ("link", "state"),
    [
        (({**LINK, "link_type": "infiniband"},), "not-asked"),
        (({**LINK, "mtu": "9000"},), "unknown"),
        (({**LINK, "mtu": 9},), "unknown"),
        (({"ifname": "r0"},), "unknown"),
        ((LINK, LINK), "unknown"),
        ("no json", "unknown"),
        (CommandFailed(("ip",), "exit status 1", "Device does not exist"), "unknown"),
    ],
)
def test_an_mtu_that_is_not_known_is_never_whole(link: object, state: str) -> None:
    assert found({}, link).state == state


def test_loopback_and_a_port_without_an_interface() -> None:
    assert found({65507: ANSWERED}, ({**LINK, "mtu": 65536},)) == PathMtu(state="whole", bytes=65535)
    assert found({}, interface=None).state == "unknown"


def test_a_path_mtu_that_the_kernel_keeps_is_told() -> None:
    """After a repair ping still goes by it: `ip -j route get` of iproute2 6.1 with a route of `mtu 1500`."""
    route = '[{"dst":"10.0.0.2","from":"10.0.0.1","dev":"r0","flags":[],"uid":0,"cache":[],"metrics":[{"mtu":1500}]}]'
    told = path_mtu(CLIENT, machine({8972: TOO_LONG, 36: ANSWERED}, route=route)[1])
    assert (told.state, told.why) == (
        "smaller",
        "packets of 9000 bytes do not arrive whole, small ones do (this host's kernel has a path MTU of 1500, of the"
        " route, or learned and kept up to 10 minutes: ip route flush cache)",
    )


@pytest.mark.parametrize(
    ("said", "outcome", "state"),
    [
        (iperf3(), "measured", "smaller"),
        ('{"start": {}, "error": "unable to connect to server: Connection timed out"}', "no-connection", "smaller"),
        ('{"start": {"connected": [{}]}, "error": "control socket: timed out"}', "tool-failed", "smaller"),
        ('{"start": {}, "error": "unable to connect to server: Connection refused"}', "connection-refused", "unknown"),
    ],
)
def test_it_is_asked_after_the_measurement_where_large_packets_may_be_the_reason(
    said: str, outcome: str, state: str
) -> None:
    asked, pinging = machine({8972: LOST, 36: ANSWERED}, route=json.dumps([{"dev": "r0"}]))

    def run(argv: tuple[str, ...], limit: float) -> str:
        return pinging(argv, limit) if "iperf3" not in argv else said

    (end,) = measure((replace(CLIENT, wait=0),), run, together=False)
    assert (end.outcome, end.path_mtu.state) == (outcome, state)
    assert sum("ping" in argv for argv in asked) == (3 if state == "smaller" else 0)


def test_a_job_s_time_has_room_for_all_pings() -> None:
    end = {"wait": 10, "seconds": 2}
    assert seconds_of({"ends": [end], "together": False}) >= 30 + 10 + 2 + 3 * 7


def test_the_sender_alone_asks_and_not_again_for_the_memory_of_a_gpu() -> None:
    def nothing(argv: tuple[str, ...], limit: float) -> str:
        raise CommandFailed(argv, "not installed", "")

    (server,) = measure((SERVER,), nothing, together=False)
    assert server.path_mtu == PathMtu()
    gpu = replace(CLIENT, tool="rdma", gpu=GpuMemory(address="0000:18:00.0", maker="nvidia"))
    (client,) = measure((gpu,), nothing, together=False)
    assert client.path_mtu.state == "not-asked"


def test_a_smaller_path_is_the_reason_of_a_cut_pair_and_never_a_pass() -> None:
    smaller = PathMtu(state="smaller", bytes=9000, why="packets of 9000 bytes do not arrive whole, small ones do")
    lost = replace(result("client", "no-connection"), why="nothing came", path_mtu=smaller)
    assert joined(lost, result("server", "nobody-came")).why == (
        "sender: nothing came; packets of 9000 bytes do not arrive whole, small ones do"
    )
    for lie in (PathMtu(state="whole"), PathMtu(state="smaller", why="x")):  # without the MTU
        told = joined(replace(result("client"), path_mtu=lie), result("server"))
        assert told.path_mtu.state == "unknown"
    long = joined(replace(result("client"), path_mtu=PathMtu(why="x" * 100_000)), result("server"))
    assert len(long.path_mtu.why or "") == 300
    good = joined(replace(result("client"), path_mtu=smaller, errors={}), replace(result("server"), errors={}))
    assert good.path_mtu == smaller
    pair = Pair(sender="a", receiver="b", rail="r0", round=1, state="good", outcome="measured", path_mtu=smaller)
    verdicts = {
        state: verdict_of((replace(pair, path_mtu=PathMtu(state=state)),), incomplete=False, limited=False)
        for state in ("whole", "not-asked", "smaller", "unknown")
    }
    assert verdicts == {"whole": "pass", "not-asked": "pass", "smaller": "warn", "unknown": "warn"}
