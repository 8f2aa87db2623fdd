"""Whether the path between two ports carries packets as large as the sender's MTU undivided (ping of iputils).

A port with MTU 9000 whose switch, or whose peer, has 1500 connects, and its large packets are lost: TCP stalls or makes
its packets smaller, RoCE loses those that are larger than the path. ping(8) with -M do sends a packet that nobody may
divide. A path that answers all small packets and none of full size is smaller. One that answers only some of them loses
packets, and one that answers none says nothing (a firewall for ICMP).
"""

from __future__ import annotations

import ipaddress
import re

from hosttune.cluster.pairs.programs import KILL_SECONDS, Run, bounded
from hosttune.errors import BadInput, CommandFailed
from hosttune.model.jsontext import plain_json
from hosttune.model.pairs import End, PathMtu

_HEADERS = {4: 28, 6: 48}  # bytes of IP and ICMP (RFC 791, RFC 8200, RFC 792, RFC 4443)
_SMALL = 64
_LEAST, _MOST = 576, 65535  # RFC 791: what every host takes; the largest packet of IP
_PACKETS = 3
_LIMIT_SECONDS = 6  # of one ping: 0.4 s of sending, and 1 s for the last answer
USUAL_SECONDS = 0.5  # if the first ping is answered; 2.8 if none is
MOST_SECONDS = 3 * (_LIMIT_SECONDS + KILL_SECONDS)
_SUMMARY = re.compile(r"^([0-9]{1,3}) packets transmitted, ([0-9]{1,3}) received", re.MULTILINE)
_KNOWN = re.compile(r'"mtu": ?([0-9]{2,5})\b')  # in "metrics" of `ip -j route get`: of the route, or learned


def path_mtu(end: End, run: Run) -> PathMtu:
    """Return whether packets as large as the MTU of an end's interface reach its peer.

    InfiniBand is not asked: its MTU is of the fabric, and the subnet manager sets it.
    """
    if end.interface is None:
        return PathMtu(why="the port has no interface")
    try:
        [row] = plain_json(run(("ip", "-j", "link", "show", "dev", end.interface), 10.0), where="ip")
        mtu, kind = row["mtu"], row["link_type"]
    except CommandFailed as error:
        return PathMtu(why=f"the MTU of {end.interface} was not read: {error.reason}")
    except (BadInput, ValueError, TypeError, KeyError):
        return PathMtu(why="`ip -j link show` gave an answer that cannot be read")
    if kind == "infiniband":
        return PathMtu(state="not-asked")
    if type(mtu) is not int or mtu < _LEAST:
        return PathMtu(why=f"the MTU of {end.interface} is not one: {str(mtu)[:20]}")
    return _asked(end, min(mtu, _MOST), run)  # loopback has one more


def _asked(end: End, mtu: int, run: Run) -> PathMtu:
    """Return what pings of full size and small ones say; those of full size once more before the path is blamed."""
    try:
        if _answers(end, mtu, run):
            return PathMtu(state="whole", bytes=mtu)
        small = _answers(end, _SMALL, run)
        if small == 0:
            return PathMtu(bytes=mtu, why="the peer does not answer to ping")
        if small < _PACKETS or _answers(end, mtu, run):
            return PathMtu(bytes=mtu, why="the path loses packets of ping")
    except _NoAnswerError as error:
        return PathMtu(bytes=mtu, why=str(error))
    return PathMtu(
        state="smaller", bytes=mtu, why=f"packets of {mtu} bytes do not arrive whole, small ones do{_kept(end, run)}"
    )


class _NoAnswerError(Exception):
    """ping did not say how many packets were answered."""


def _answers(end: End, size: int, run: Run) -> int:
    """Return how many packets of this size are answered. Raises _NoAnswerError if ping does not say it."""
    payload = str(size - _HEADERS[ipaddress.ip_address(end.peer_address).version])
    words = ("ping", "-n", "-q", "-M", "do", "-s", payload, "-c", str(_PACKETS), "-i", "0.2", "-W", "1")
    argv = bounded(_LIMIT_SECONDS, *words, "-I", end.address, end.peer_address)
    try:
        text, failed = run(argv, _LIMIT_SECONDS + 5.0), ""
    except CommandFailed as error:
        text, failed = error.output, error.reason
    match = _SUMMARY.search(text)
    if match is not None:
        return int(match[2])
    if "not found" in text or failed == "not installed":
        raise _NoAnswerError("ping is not installed (iputils-ping)")
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [failed or "it printed nothing"]
    raise _NoAnswerError(f"ping, which must be that of iputils: {lines[0].removeprefix('ping: ')[:100]}")


def _kept(end: End, run: Run) -> str:
    """Return that the kernel itself sends no larger packets to the peer, if so: by its route, or as it has learned."""
    try:
        match = _KNOWN.search(run(("ip", "-j", "route", "get", end.peer_address, "from", end.address), 10.0))
    except CommandFailed:
        return ""
    learned = "of the route, or learned and kept up to 10 minutes: ip route flush cache"
    return f" (this host's kernel has a path MTU of {match[1]}, {learned})" if match else ""
