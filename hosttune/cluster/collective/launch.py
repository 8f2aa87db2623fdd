"""The child process of a host in a group: it is started, told its task, and ended in any case."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from hosttune.cluster.collective.meeting import Met
from hosttune.model.collective import Task

_CHILD = "hosttune.cluster.collective.child"
_START = f"from runpy import run_module\nrun_module('{_CHILD}', run_name='__main__', alter_sys=True)\n"
_STDERR_BYTES = 8192


@contextmanager
def own_program() -> Iterator[str]:
    """Give a folder that a Python runs as the child (`python FOLDER`), with hosttune's package and nothing else.

    Another Python must not see what else lies beside the package. Unlike with -m, any version imports nothing from
    the working directory (-P is new in 3.11).
    """
    with tempfile.TemporaryDirectory(prefix="hosttune-") as folder:
        os.symlink(Path(__file__).resolve().parents[2], f"{folder}/hosttune")
        Path(folder, "__main__.py").write_text(_START, encoding="utf-8")
        yield folder


class MeasuringChild:
    """The process that measures, as its host follows it."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._process, self._errors = process, errors

    def fileno(self) -> int:
        """The file that its lines come from."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read(self) -> bytes:
        """Return what there is; nothing at its end."""
        return os.read(self.fileno(), 1 << 16)

    def end(self, seconds: float) -> int | None:
        """Return its exit status if it ends within this time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def last_words(self) -> str:
        """Return the last line of its standard error."""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _STDERR_BYTES))
        lines = self._errors.read().decode("utf-8", "replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "no word")


@contextmanager
def child(task: Task, met: Met, python: str, variables: Mapping[str, str]) -> Iterator[MeasuringChild]:
    """Start the child with its task. It is ended in any case. Raises OSError if it does not start."""
    fd = met.listening.fileno() if met.listening is not None else -1
    told = {**msgspec.to_builtins(task), "listen_fd": fd, "parent": os.getpid()}
    with tempfile.TemporaryFile() as errors, own_program() as folder:
        process = subprocess.Popen(
            (python, "-B", folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            pass_fds=(fd,) if fd >= 0 else (), env=dict(variables),
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin as there:
                there.write(json.dumps(told).encode())
            yield MeasuringChild(process, errors)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
