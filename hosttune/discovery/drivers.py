"""System → what a network interface's driver says of itself and its firmware. Read only.

Live it is the request ETHTOOL_GDRVINFO of ioctl SIOCETHTOOL, which needs no privilege and changes nothing
(include/uapi/linux/ethtool.h, struct ethtool_drvinfo; net/ethtool/ioctl.c). The recorded answer, `ethtool-i-INTERFACE`,
has the lines of `ethtool -i` that are used here.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Mapping

from hosttune.machine.reader import Reader

_SIOCETHTOOL = 0x8946  # include/uapi/linux/sockios.h
_GDRVINFO = 0x00000003
_DRVINFO = struct.Struct("=I32s32s32s32s32s12s5I")
_LONGEST_NAME = 15  # IFNAMSIZ, include/uapi/linux/if.h, without its end


def read_driver_info(reader: Reader, interface: str) -> Mapping[str, str]:
    """Return "driver", "version" and "firmware-version" of an interface, those that the driver fills in.

    Empty if it cannot be asked, or if the answer is not in this form.
    """
    if not 0 < len(interface.encode("utf-8", "surrogateescape")) <= _LONGEST_NAME or "/" in interface:
        return {}
    answer = reader.query(f"ethtool-i-{interface}", lambda: _ask(interface)) or ""
    rows = (line.partition(": ") for line in answer.splitlines())
    found: dict[str, str] = {}
    for name, colon, value in rows:
        if name in found:
            return {}  # a line that is there twice: it is unknown which of the two is true
        if colon and value.strip() not in ("", "N/A"):
            found[name] = value.strip()
    return found


def _ask(interface: str) -> str | None:
    buffer = array.array("B", _DRVINFO.pack(_GDRVINFO, b"", b"", b"", b"", b"", b"", 0, 0, 0, 0, 0))
    place, _ = buffer.buffer_info()
    name = interface.encode("utf-8", "surrogateescape")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
            fcntl.ioctl(channel.fileno(), _SIOCETHTOOL, struct.pack("16sP16x", name, place))
    except OSError:
        return None  # this driver has no answer, or the interface has gone: the fact is then unknown
    _, driver, version, firmware, *_ = _DRVINFO.unpack(buffer.tobytes())
    rows = (("driver", driver), ("version", version), ("firmware-version", firmware))
    return "".join(f"{row}: {text.partition(bytes(1))[0].decode('utf-8', 'replace')}\n" for row, text in rows)
