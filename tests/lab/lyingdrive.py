"""What is behind a drive that lies about erasing: an NBD server that takes every command, and zeroes nothing.

python lyingdrive.py SOCKET FILE    one connection after the other, until it is killed

QEMU's NVMe drive carries a format out as a write of zeros to what is behind it, so its host is told that the format is
complete. The protocol: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md, fixed newstyle, simple
replies.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

_OPTION, _REPLY, _REQUEST, _ANSWER = 0x49484156454F5054, 0x3E889045565A9, 0x25609513, 0x67446698
_NEWSTYLE, _NO_ZEROES = 1, 2
_EXPORT_NAME, _ABORT, _INFO, _GO = 1, 2, 6, 7
_ACK, _SIZE, _UNSUPPORTED = 1, 3, 0x80000001
_HAS_FLAGS, _FLUSH, _FUA, _TRIM, _WRITE_ZEROES = 1, 4, 8, 32, 64
FLAGS = _HAS_FLAGS | _FLUSH | _FUA | _TRIM | _WRITE_ZEROES
READ, WRITE, DISCONNECT = 0, 1, 2  # flush, trim and write of zeros: answered, not done


def main(path: str, file: str) -> None:
    """See the module."""
    disk = os.open(file, os.O_RDWR)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(1)
        while True:
            connection, _ = listening.accept()
            with connection:
                try:
                    if _agreed(connection, os.fstat(disk).st_size):
                        _serve(connection, disk)
                except ConnectionError:
                    pass


def _agreed(connection: socket.socket, size: int) -> bool:
    """The options, until the client wants the disk (True) or leaves."""
    connection.sendall(b"NBDMAGIC" + struct.pack(">QH", _OPTION, _NEWSTYLE | _NO_ZEROES))
    _take(connection, 4)
    while True:
        _, option, length = struct.unpack(">QII", _take(connection, 16))
        _take(connection, length)
        if option == _EXPORT_NAME:
            connection.sendall(struct.pack(">QH", size, FLAGS))
            return True
        if option in (_INFO, _GO):
            _reply(connection, option, _SIZE, struct.pack(">HQH", 0, size, FLAGS))
            _reply(connection, option, _ACK)
            if option == _GO:
                return True
        elif option == _ABORT:
            _reply(connection, option, _ACK)
            return False
        else:
            _reply(connection, option, _UNSUPPORTED)


def _serve(connection: socket.socket, disk: int) -> None:
    while True:
        _, _, command, handle, offset, length = struct.unpack(">IHHQQI", _take(connection, 28))
        if command == DISCONNECT:
            return
        if command == WRITE:
            os.pwrite(disk, _take(connection, length), offset)
        data = os.pread(disk, length, offset) if command == READ else b""
        connection.sendall(struct.pack(">IIQ", _ANSWER, 0, handle) + data)


def _reply(connection: socket.socket, option: int, kind: int, data: bytes = b"") -> None:
    connection.sendall(struct.pack(">QIII", _REPLY, option, kind, len(data)) + data)


def _take(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            raise ConnectionError("the client has left")
        data += more
    return data


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
