"""Events of a real libvirtd, received through virsh, and through libvirt-python where an interpreter has it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from libvirtd import Libvirtd, libvirtd
from system.test_discovery_libvirt_python import python_with_libvirt

from hosttune.discovery.libvirtd import URI_VARIABLE
from hosttune.watch.core import Event, NoSource
from hosttune.watch.guests import Guests

__all__ = ["libvirtd"]  # a fixture
ROOT = Path(__file__).resolve().parents[2]
XML = (
    "<domain type='qemu'><name>watched one</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>"
    "<os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
)
WANTED = [("defined", "guest watched one"), ("undefined", "guest watched one")]
# The child of an interpreter that has libvirt-python: what `Guests` runs in its child.
LISTEN = "import os, sys; from hosttune.watch.guests import listen; listen(1, sys.argv[1])"


def uri_of(libvirtd: Libvirtd) -> str:
    return f"qemu+unix:///session?socket={libvirtd.directory}/libvirt/libvirt-sock"


def change(libvirtd: Libvirtd) -> None:
    libvirtd.virsh("define", libvirtd.file("watched.xml", XML))
    libvirtd.virsh("undefine", "watched one")


def until_up(source: Guests) -> None:
    end = time.monotonic() + 30
    while not source.up:
        assert time.monotonic() < end
        select.select([source.fileno()], [], [], 0.1)


def test_events_through_virsh(libvirtd: Libvirtd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URI_VARIABLE, uri_of(libvirtd))
    source = Guests()
    until_up(source)
    change(libvirtd)
    found: list[Event] = []
    end = time.monotonic() + 30
    while [(one.what, one.subject) for one in found] != WANTED:
        assert time.monotonic() < end, found
        select.select([source.fileno()], [], [], 1)
        found += [one for one in source.take() if one.subject != "host"]
    source.close()


class Door:
    """A socket in front of libvirtd's that can be closed with all its connections, as a daemon that ends does."""

    def __init__(self, libvirtd: Libvirtd) -> None:
        self.path, self._real = libvirtd.directory / "door", str(libvirtd.directory / "libvirt" / "libvirt-sock")
        self._open: list[socket.socket] = []
        self.open()

    def open(self) -> None:
        """Take connections."""
        self.path.unlink(missing_ok=True)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.path))
        self._listening.listen()
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def close(self) -> None:
        """End all connections, and refuse new ones."""
        for one in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                outside, inside = listening.accept()[0], socket.socket(socket.AF_UNIX)
                self._open += [outside, inside]
                inside.connect(self._real)
                for pair in ((outside, inside), (inside, outside)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    @staticmethod
    def _forward(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def listening(uri: str) -> Iterator[Callable[[], list[str]]]:
    """The child of an interpreter that has libvirt-python; a call returns its next line."""
    packages = str(Path(msgspec.__file__).parent.parent)
    path = os.pathsep.join((str(ROOT), packages))
    python = python_with_libvirt(path)
    if python is None:
        pytest.skip("no python3 here has libvirt (Debian: python3-libvirt): only the way through virsh is proven")
    argv = [python, "-c", LISTEN, uri]
    with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True) as child:
        out = child.stdout
        assert out is not None
        try:
            yield lambda: json.loads(out.readline())
        finally:
            child.kill()


def test_events_through_libvirt_python(libvirtd: Libvirtd) -> None:
    with listening(uri_of(libvirtd)) as line:
        assert line() == ["opened", ""]
        change(libvirtd)
        assert [line() for _ in WANTED] == [[what, subject.removeprefix("guest ")] for what, subject in WANTED]


def test_a_libvirtd_that_restarts_is_told_and_its_events_come_again(libvirtd: Libvirtd) -> None:
    door = Door(libvirtd)
    try:
        with listening(f"qemu+unix:///session?socket={door.path}") as line:
            assert line() == ["opened", ""]
            for _ in range(2):
                door.close()
                assert line() == ["closed", ""]
                door.open()
                assert line() == ["opened", ""], "told once, however often it was tried"
                change(libvirtd)
                assert [line()[0] for _ in WANTED] == [what for what, _ in WANTED]
    finally:
        door.close()


@pytest.mark.skipif(find_spec("libvirt") is not None, reason="libvirt-python is installed")
def test_a_host_without_libvirt_is_one_that_has_no_guests_to_tell_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoSource, match="neither libvirt-python nor virsh is installed") as caught:
        Guests()
    assert caught.value.absent


def test_no_daemon_is_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URI_VARIABLE, f"qemu+unix:///session?socket={tmp_path}/no-socket")
    source = Guests()
    end = time.monotonic() + 30
    ended = False
    while not ended:
        assert time.monotonic() < end
        select.select([source.fileno()], [], [], 1)
        try:
            ended = any(one.what == "closed" for one in source.take())  # libvirt-python's: it tries again
        except NoSource as error:
            ended = "has a connection" in error.why
    assert not source.up
    source.close()
