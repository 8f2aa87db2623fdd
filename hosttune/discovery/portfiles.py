"""What sysfs shows of one port, each file parsed once here: RDMA ports, and the speed of network interfaces.

Discovery of the host, the evidence of a validation and the survey of `fleet pairs` share it. Sources:
drivers/infiniband/core/sysfs.c; Documentation/ABI/testing/sysfs-class-net.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from hosttune.errors import BadInput, CommandFailed
from hosttune.machine.reader import Reader
from hosttune.model.jsontext import recorded_json

NET, RDMA = "/sys/class/net", "/sys/class/infiniband"
_LAYERS = ("InfiniBand", "Ethernet", "Unspecified")  # link_layer_show; unspecified: such as EFA
# "400 Gb/sec (4X NDR)", "2.5 Gb/sec (1X SDR)"; a kernel that knows no name for the speed writes none.
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9])?) Gb/sec \(([0-9]{1,2})X(?: ([A-Z0-9]{3,5}))?\)")
_WORD = re.compile(r"[0-9]{1,2}: ([A-Za-z_ ]{1,40})")


def link_layer(reader: Reader, port: str) -> str | None:
    """Return the kernel's word for the layer of an RDMA port, whose folder is `port`; None if it has none of these."""
    layer = reader.text(f"{port}/link_layer")
    return layer if layer in _LAYERS else None


def state_word(reader: Reader, path: str) -> str | None:
    """Return the word of a file such as "4: ACTIVE" in small letters."""
    match = _WORD.fullmatch(reader.text(path) or "")
    return match[1].lower() if match else None


def rdma_rate(reader: Reader, path: str) -> tuple[float | None, int | None, str | None]:
    """Return Gb/s, lanes and the name of the speed."""
    text = reader.text(path)
    match = _RATE.fullmatch(text or "")
    if match is None:
        if text:
            reader.problem("not a rate", path, f"reads {text[:40]!r}")
        return None, None, None
    return float(match[1]), int(match[2]), match[3]


def interface_gbps(reader: Reader, interface: str) -> float | None:
    """Return the speed of a network interface in Gb/s; None while it is down or unknown (-1, or reading fails)."""
    speed = reader.integer(f"{NET}/{interface}/speed")
    return speed / 1000 if speed is not None and 0 < speed < 1 << 31 else None


# --- answers of tools -----------------------------------------------------------------------------------------

# A tool that failed is recorded as {"error": reason}, so that a capture answers as the machine did.

_SECONDS = 10.0
_MOST_WORDS = 120  # characters of a tool's error


def unchanged(text: str) -> str:
    """Return the text as it is."""
    return text


def tool_answer(
    reader: Reader, query: str, argv: tuple[str, ...], keep: Callable[[str], str] = unchanged
) -> tuple[str | None, str | None]:
    """Return a tool's text and its error; both None if the answer was not recorded or is damaged.

    `keep` returns the part of the text that is recorded.
    """
    text = reader.query(query, lambda: _ask(reader, argv, keep))
    if text is None or not text.lstrip().startswith("{"):
        return text, None
    try:
        document = recorded_json(text, where=query)
    except BadInput:
        return None, None
    error = document.get("error") if isinstance(document, dict) else None
    return (None, error[:_MOST_WORDS]) if isinstance(error, str) and error else (text, None)


def _ask(reader: Reader, argv: tuple[str, ...], keep: Callable[[str], str]) -> str:
    try:
        return keep(reader.system.run(argv, timeout=_SECONDS))
    except CommandFailed as error:
        lines = error.output.strip().splitlines() or [error.reason]
        answer = {"error": lines[-1] if error.reason.startswith("exit") else error.reason}
        return msgspec.json.encode(answer).decode()
