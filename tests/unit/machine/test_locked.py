"""Files that are read by a child, for whoever reads them can hang: what it answers is what reading them gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hosttune.errors import Unreadable
from hosttune.machine.live import LiveMachine


@pytest.mark.parametrize("name", ["driver_override", "sriov_numvfs"])
def test_what_is_read_is_what_is_there(tmp_path: Path, name: str) -> None:
    machine = LiveMachine()
    path = tmp_path / name
    assert machine.read_bytes(str(path)) is None
    for text in ("(null)\n", "vfio-pci\n", ""):
        path.write_text(text)
        assert machine.read(str(path)) == text.rstrip("\n")
    path.unlink()
    path.mkdir()
    assert machine.read_bytes(str(path)) is None


def test_a_forked_process_reads_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "driver_override"
    path.write_text("one\n")
    machine = LiveMachine()
    assert machine.read(str(path)) == "one"
    child = os.fork()
    if child == 0:
        os._exit(0 if machine.read(str(path)) == "one" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert machine.read(str(path)) == "one"


def test_a_child_that_is_gone_is_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "driver_override"
    path.write_text("one\n")
    machine = LiveMachine()
    machine.read_bytes(str(path))
    reader = machine._locked
    os.kill(reader._child, 9)
    os.waitpid(reader._child, 0)
    with pytest.raises((Unreadable, BrokenPipeError)):
        reader.read(str(path))


INTERRUPTED = """
import os, signal, sys
from hosttune.machine.live import LiveMachine

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs the tests in the background
machine = LiveMachine()
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    machine.read(sys.argv[1])
except KeyboardInterrupt:
    print("heard", machine.read(sys.argv[1]))
"""


def test_an_interrupt_within_its_fork_is_heard_after_it(tmp_path: Path) -> None:
    path = tmp_path / "driver_override"
    path.write_text("one\n")
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("heard one\n", "", 0)
