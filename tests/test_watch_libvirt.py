"""Events of a real libvirtd, received through virsh, and through libvirt-python where an interpreter has it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from libvirtd import Libvirtd, libvirtd
from test_discovery_libvirt_python import python_with_libvirt

from hosttune.discovery.libvirtd import URI_VARIABLE
from hosttune.watch.core import Event
from hosttune.watch.guests import Guests
from hosttune.watch.source import NoSource

__all__ = ["libvirtd"]  # a fixture
ROOT = Path(__file__).resolve().parent.parent
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


def test_events_through_libvirt_python(libvirtd: Libvirtd) -> None:
    packages = str(Path(msgspec.__file__).parent.parent)
    path = os.pathsep.join((str(ROOT), packages))
    python = python_with_libvirt(path)
    if python is None:
        pytest.skip("no python3 here has libvirt (Debian: python3-libvirt): only the way through virsh is proven")
    argv = [python, "-c", LISTEN, uri_of(libvirtd)]
    with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert json.loads(child.stdout.readline()) == ["opened", ""]
            change(libvirtd)
            lines = [json.loads(child.stdout.readline()) for _ in WANTED]
            assert lines == [[what, subject.removeprefix("guest ")] for what, subject in WANTED]
        finally:
            child.kill()


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
