"""The local connection, counting: each remote execution and each file sent is a line HOST KIND in FLEET_COUNTED."""

from __future__ import annotations

import os
from typing import Any

from ansible.plugins.connection.local import Connection as Local  # type: ignore[import-untyped]

DOCUMENTATION = """
    name: counted
    short_description: the local connection, counting
    description:
        - Runs everything on the controller, and notes each execution and each transfer.
    author: hosttune
    options: {}
    extends_documentation_fragment:
        - connection_pipelining
"""


class Connection(Local):  # type: ignore[misc]
    """See the module."""

    transport = "counted"

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> Any:
        """Note it, run it."""
        self._note("exec")
        return super().exec_command(cmd, in_data=in_data, sudoable=sudoable)

    def put_file(self, in_path: str, out_path: str) -> Any:
        """Note it, send it."""
        self._note("put")
        return super().put_file(in_path, out_path)

    def fetch_file(self, in_path: str, out_path: str) -> Any:
        """Note it, fetch it."""
        self._note("fetch")
        return super().fetch_file(in_path, out_path)

    def _note(self, kind: str) -> None:
        line = f"{self._play_context.remote_addr} {kind}\n".encode()
        fd = os.open(os.environ["FLEET_COUNTED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, line)  # short and appended whole, whoever else writes
        finally:
            os.close(fd)
