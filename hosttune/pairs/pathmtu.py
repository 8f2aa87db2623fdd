"""Whether the path between two ports carries packets as large as the sender's MTU undivided (ping of iputils).

A port with MTU 9000 whose switch, or whose peer, has 1500 connects, and its large packets are lost: TCP stalls or makes
its packets smaller, RoCE drops. ping(8) with -M do sends a packet that nobody may divide. A path that answers small
packets and none of full size is smaller; one that answers neither says nothing (a firewall for ICMP).
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable

from hosttune.errors import CommandFailed
from hosttune.model.pairs import End, PathMtu

_HEADERS = {4: 28, 6: 48}  # bytes of IP and ICMP (RFC 791, RFC 8200, RFC 792, RFC 4443)
_SMALL = 64
_LEAST, _MOST = 576, 65535  # RFC 791: what every host takes; the largest packet of IP
_PACKETS, _LIMIT_SECONDS = 3, 6
USUAL_SECONDS = 0.5  # three packets at 0.2 s, answered
MOST_SECONDS = 2 * _LIMIT_SECONDS
_SUMMARY = re.compile(r"^([0-9]{1,3}) packets transmitted, ([0-9]{1,3}) received", re.MULTILINE)


def path_mtu(end: End, run: Callable[[tuple[str, ...], float], str]) -> PathMtu:
    """Return whether packets as large as the MTU of an end's interface reach its peer. Takes half a second, 5 s at most
    if nothing answers. InfiniBand is not asked: its MTU is of the fabric, and the subnet manager sets it."""
    if end.interface is None:
        return PathMtu(why="the port has no interface")
    try:
        [row] = json.loads(run(("ip", "-j", "link", "show", "dev", end.interface), 10.0))
        bytes_, kind = row["mtu"], row["link_type"]
    except CommandFailed as error:
        return PathMtu(why=f"the MTU of {end.interface} was not read: {error.reason}")
    except (ValueError, TypeError, KeyError):
        return PathMtu(why="`ip -j link show` gave an answer that cannot be read")
    if kind == "infiniband":
        return PathMtu(state="not-asked")
    if type(bytes_) is not int or not bytes_ >= _LEAST:
        return PathMtu(why=f"the MTU of {end.interface} is not one: {str(bytes_)[:20]}")
    bytes_ = min(bytes_, _MOST)  # loopback has one more
    full = _answered(end, bytes_, run)
    if full is True:
        return PathMtu(state="whole", bytes=bytes_)
    small = full if isinstance(full, str) else _answered(end, _SMALL, run)
    if small is True:
        return PathMtu(
            state="smaller", bytes=bytes_, why=f"packets of {bytes_} bytes do not arrive whole, small ones do"
        )
    return PathMtu(bytes=bytes_, why=small if isinstance(small, str) else "the peer does not answer to ping")


def _answered(end: End, size: int, run: Callable[[tuple[str, ...], float], str]) -> bool | str:
    """Return whether a packet of this size is answered; if this cannot be known, why."""
    payload = str(size - _HEADERS[ipaddress.ip_address(end.peer_address).version])
    words = ("ping", "-n", "-q", "-M", "do", "-s", payload, "-c", str(_PACKETS), "-i", "0.2", "-W", "1")
    argv = ("timeout", "-k", "1", str(_LIMIT_SECONDS), "sh", "-c", 'exec "$@" 2>&1', "sh", *words)
    try:
        text, failed = run((*argv, "-I", end.address, end.peer_address), _LIMIT_SECONDS + 5.0), ""
    except CommandFailed as error:
        text, failed = error.output, error.reason
    found = _SUMMARY.search(text)
    if found is not None:
        return int(found[2]) > 0
    if "not found" in text or failed == "not installed":
        return "ping is not installed (iputils-ping)"
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [failed or "it printed nothing"]
    return f"ping: {lines[-1][:100]}"
