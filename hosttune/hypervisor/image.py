"""The operator's image for a guest: a qcow2 or raw disk that names no other file.

An image is untrusted: a qcow2 can name any file of the host as its backing or data file. So its header is read here
before QEMU's tools open it, and `qemu-img` gets the format and bounds of memory and time (as OpenStack Nova does:
nova/privsep/qemu.py, QEMU_IMG_LIMITS: 30 s of CPU, 1 GiB). Source of the header: QEMU docs/interop/qcow2.txt.
"""

from __future__ import annotations

import os
import stat
from typing import Literal

from hosttune.errors import BadInput, CommandFailed, Refused
from hosttune.machine.files import read_start
from hosttune.machine.system import System
from hosttune.model.jsontext import plain_json
from hosttune.model.values import Value

_MAGIC, _HEADER = b"QFI\xfb", 104
_BACKING, _CRYPT, _INCOMPATIBLE = slice(8, 16), slice(32, 36), slice(72, 80)
_KNOWN_FEATURES = 1 << 0 | 1 << 3 | 1 << 4  # dirty refcounts, compression type, extended L2 entries
_DATA_FILE, _CORRUPT = 1 << 2, 1 << 1
_BOUNDS = ("prlimit", "--as=1073741824", "--cpu=30", "--")
_SECONDS = 60.0
_MOST_BYTES = 16 << 40
_SECTOR = 512


class Image(Value, frozen=True, kw_only=True):
    """An image: its real path, its format, and the size of its disk in bytes; None: not asked (a captured host)."""

    path: str
    format: Literal["qcow2", "raw"]
    virtual_bytes: int | None = None


def read_image(system: System, path: str) -> Image:
    """Return the image at a path of this machine. Raises BadInput, without opening any other file."""
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
        start = read_start(real, _HEADER) if stat.S_ISREG(status.st_mode) else b""
        sector = read_start(real, _SECTOR)
    except OSError as error:
        raise _refused(path, f"cannot read it: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise _refused(path, "not a regular file")
    if not real.isprintable():
        raise _refused(path, "its path has characters that XML cannot hold")
    if start[:4] == _MAGIC:
        _check_qcow2(path, start)
        image = Image(path=real, format="qcow2")
    elif len(sector) == _SECTOR and sector[510:] == b"\x55\xaa" and status.st_size % _SECTOR == 0:
        image = Image(path=real, format="raw")
    else:
        raise _refused(path, "neither a qcow2 nor a raw disk with a partition table or boot sector")
    return Image(path=real, format=image.format, virtual_bytes=_size(system, image))


def _check_qcow2(path: str, header: bytes) -> None:
    version = int.from_bytes(header[4:8], "big")
    if version not in (2, 3) or len(header) < (_HEADER if version == 3 else 72):
        raise _refused(path, f"a qcow2 of version {version}, or cut short")
    features = int.from_bytes(header[_INCOMPATIBLE], "big") if version == 3 else 0
    if int.from_bytes(header[_BACKING], "big"):
        raise _refused(path, "it has a backing file, which would be read too")
    if features & _DATA_FILE:
        raise _refused(path, "its data is in another file, which would be read too")
    if features & _CORRUPT or features & ~_KNOWN_FEATURES:
        raise _refused(path, f"it is marked corrupt, or has features that are not known (0x{features:x})")
    if int.from_bytes(header[_CRYPT], "big"):
        raise _refused(path, "it is encrypted")


def _size(system: System, image: Image) -> int | None:
    """Return the size of the disk, as qemu-img says; None if it cannot be asked here."""
    argv = (*_BOUNDS, "qemu-img", "info", "--output=json", "-f", image.format, image.path)
    try:
        told = plain_json(system.run(argv, timeout=_SECONDS), where="qemu-img")
    except Refused:  # a captured host
        return None
    except CommandFailed as error:
        why = f"qemu-img does not read it: {error.reason}: {error.output.strip()[-300:]}"
        raise _refused(image.path, why) from error
    except BadInput as error:
        raise _refused(image.path, "what qemu-img says of it cannot be read") from error
    size = told.get("virtual-size") if isinstance(told, dict) else None
    if not isinstance(size, int) or not 0 < size <= _MOST_BYTES or told.get("format") != image.format:
        raise _refused(image.path, f"qemu-img does not take it for a {image.format} of at most 16 TiB")
    if told.get("backing-filename") is not None or told.get("encrypted"):
        raise _refused(image.path, "it has a backing file, or is encrypted")
    return size


def _refused(path: str, why: str) -> BadInput:
    return BadInput(
        f"not an image for a guest: {why}",
        where=path,
        hint="give a qcow2 without a backing file (qemu-img convert -O qcow2 OLD NEW), or a raw disk",
    )
