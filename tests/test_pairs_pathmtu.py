"""Whether a path carries packets of the port's MTU: what ping says, and what follows for the pair and the verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from test_pairs_ends import CLIENT, SERVER, result

from hosttune.errors import CommandFailed
from hosttune.model.pairs import GpuMemory, Pair, PathMtu
from hosttune.pairs.ends import Run, measure
from hosttune.pairs.judging import joined, verdict_of
from hosttune.pairs.pathmtu import path_mtu

# Printed by ping of iputils 20221126 (Debian 12) between network namespaces.
ANSWERED = "3 packets transmitted, 3 received, 0% packet loss, time 401ms\n"
LOST = "3 packets transmitted, 0 received, 100% packet loss, time 403ms\n"
TOO_LONG = (
    "ping: sendmsg: Message too long\n3 packets transmitted, 0 received, +3 errors, 100% packet loss, time 403ms\n"
)
LINK: dict[str, Any] = {"ifname": "r0", "mtu": 9000, "link_type": "ether"}


def machine(pings: dict[int, str], link: object = (LINK,)) -> tuple[list[tuple[str, ...]], Run]:
    """A machine whose ping prints this by size of its payload; what was run on it."""
    asked: list[tuple[str, ...]] = []

    def run(argv: tuple[str, ...], limit: float) -> str:
        asked.append(argv)
        if argv[:2] == ("ip", "-j"):
            if isinstance(link, CommandFailed):
                raise link
            return link if isinstance(link, str) else json.dumps(link)
        said = pings[int(argv[argv.index("-s") + 1])]
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
        (ANSWERED.replace("3 received", "1 received"), "", "whole", None),
        (LOST, LOST, "unknown", "the peer does not answer to ping"),
        ("sh: 1: exec: ping: not found\n", "", "unknown", "ping is not installed (iputils-ping)"),
        ("ping: invalid option -- 'M'\n", "", "unknown", "ping: ping: invalid option -- 'M'"),
        ("", "", "unknown", "ping: exit status 1"),
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
    good = joined(replace(result("client"), path_mtu=smaller, errors={}), replace(result("server"), errors={}))
    assert good.path_mtu == smaller
    pair = Pair(sender="a", receiver="b", rail="r0", round=1, state="good", outcome="measured", path_mtu=smaller)
    verdicts = {
        state: verdict_of((replace(pair, path_mtu=PathMtu(state=state)),), incomplete=False, limited=False)
        for state in ("whole", "not-asked", "smaller", "unknown")
    }
    assert verdicts == {"whole": "pass", "not-asked": "pass", "smaller": "warn", "unknown": "warn"}
