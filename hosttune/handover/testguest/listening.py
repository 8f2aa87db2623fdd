"""Take one line from the channel of a guest: `python -m hosttune.handover.testguest.listening SOCKET SECONDS BYTES`.

A program of its own, so that what a guest says costs a bounded time and memory, and not hosttune's. It prints one JSON
object: `ended`, and `text`, the line (only if `ended` is "line"). The other ends: "silent" (nothing came in time),
"unfinished" (no end of line in time), "ended-early" (the guest ended), "too-much" (more bytes, or more than one line),
"garbled" (not UTF-8).
"""

from __future__ import annotations

import json
import socket
import sys
import time


def listen(path: str, seconds: float, most: int) -> dict[str, str]:
    """Return what came from a socket, and how it ended. Raises OSError if the socket cannot be reached."""
    deadline = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(min(seconds, 20.0))
        channel.connect(path)
        data = b""
        while b"\n" not in data:
            left = deadline - time.monotonic()
            if left <= 0:
                return {"ended": "unfinished" if data else "silent"}
            channel.settimeout(left)
            try:
                chunk = channel.recv(1 << 16)
            except TimeoutError:
                continue
            except ConnectionError:
                chunk = b""
            if not chunk:
                return {"ended": "ended-early"}
            data += chunk
            if len(data) > most:
                return {"ended": "too-much"}
    line, _, rest = data.partition(b"\n")
    if rest:
        return {"ended": "too-much"}
    try:
        return {"ended": "line", "text": line.decode("utf-8")}
    except UnicodeDecodeError:
        return {"ended": "garbled"}


if __name__ == "__main__":
    print(json.dumps(listen(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))))
