"""libvirt-python asked for real, at libvirt's test driver, by an interpreter that has it.

It comes with the distribution's interpreter (Debian: python3-libvirt), which need not be the one of the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from unit.discovery.test_discovery_guests import PINNED, PLAIN, TENANT, recorded

from hosttune.discovery.guests import read_guests
from hosttune.discovery.libvirtd import URI_VARIABLE, ask_libvirt
from hosttune.discovery.scrub import Scrub, strip_facts
from hosttune.machine.live import LiveMachine

ROOT = Path(__file__).resolve().parents[2]
ASK = """
from hosttune.discovery.libvirtd import ask_libvirt
from hosttune.machine.live import LiveMachine
import libvirt
print(ask_libvirt(LiveMachine()))
"""


def python_with_libvirt(path: str) -> str | None:
    """An interpreter that can import libvirt and what hosttune needs to ask it; None where there is none."""
    for python in dict.fromkeys((sys.executable, "/usr/bin/python3", "/usr/libexec/platform-python")):
        if Path(python).exists():
            environment = {**os.environ, "PYTHONPATH": path}
            argv = [python, "-c", "import libvirt, msgspec"]
            if subprocess.run(argv, env=environment, capture_output=True, timeout=60).returncode == 0:
                return python
    return None


def library_facts(uri: str, empty: Path) -> str:
    """What libvirt-python answers at a URI, asked in a process of its own that can find no virsh.

    Skips where no interpreter has libvirt-python: `_ask_library` and what it calls are then not proven by this run.
    What virsh answers, and all that is made of either's answers, is proven by test_discovery_guests.py.
    """
    packages = str(Path(msgspec.__file__).parent.parent)
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""), packages))
    python = python_with_libvirt(path)
    if python is None:
        pytest.skip("no python3 here has libvirt (Debian: python3-libvirt): only the way through virsh is proven")
    environment = {**os.environ, "PYTHONPATH": path, "PATH": str(empty), URI_VARIABLE: uri}
    done = subprocess.run([python, "-c", ASK], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "libvirt:" not in done.stderr  # its own way of reporting; libxml2's, in the test driver alone, stays
    return done.stdout


def test_libvirt_python_is_asked(tmp_path: Path) -> None:
    (tmp_path / "node.xml").write_text(f"<node>{PINNED}{PLAIN}</node>")
    uri = f"test://{tmp_path}/node.xml"
    reader = recorded({"libvirt.json": library_facts(uri, tmp_path)})
    guests, stack = read_guests(reader)
    assert guests is not None
    assert [guest.name for guest in guests] == ["plain", "tenant a"]
    assert guests[1] == msgspec.structs.replace(TENANT, next_start=())
    assert (stack.uri, stack.qemu_version) == (uri, None)
    assert stack.libvirt_version is not None
    assert [problem.what for problem in reader.problems] == ["no domain capabilities"]


def test_libvirt_python_finds_the_default_guest(tmp_path: Path) -> None:
    guests, _ = read_guests(recorded({"libvirt.json": library_facts("test:///default", tmp_path)}))
    assert guests is not None
    assert [(guest.name, guest.state, guest.vcpus, guest.memory_bytes) for guest in guests] == [
        ("test", "running", 2, 8 << 30),
    ]


def test_libvirt_python_that_cannot_connect_says_why(tmp_path: Path) -> None:
    uri = f"test://{tmp_path}/none.xml"
    reader = recorded({"libvirt.json": library_facts(uri, tmp_path)})
    assert read_guests(reader)[0] is None
    assert [(problem.what, problem.where) for problem in reader.problems] == [("libvirt cannot be asked", uri)]


@pytest.mark.skipif(shutil.which("virsh") is None, reason="virsh is not installed")
def test_virsh_and_libvirt_python_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node.xml").write_text(f"<node>{PINNED}{PLAIN}</node>")
    uri = f"test://{tmp_path}/node.xml"
    by_library = library_facts(uri, tmp_path)
    monkeypatch.setenv(URI_VARIABLE, uri)
    by_virsh = ask_libvirt(LiveMachine())
    assert by_virsh is not None
    assert read_guests(recorded({"libvirt.json": by_virsh})) == read_guests(recorded({"libvirt.json": by_library}))


VOLUMES = """<node>
<pool type='logical'><name>vg</name><target><path>/dev/vg</path></target>
<volume><name>data</name><capacity>1000</capacity><target><path>/dev/vg/data</path></target></volume></pool>
<pool type='dir'><name>files</name><target><path>/srv</path></target>
<volume><name>a.img</name><capacity>1000</capacity></volume></pool>
<domain type='test'><name>old</name><uuid>5c2b0000-0000-4000-8000-0000000000aa</uuid><memory>1024</memory>
<os><type>hvm</type></os><devices>
<disk type='volume'><source pool='vg' volume='data'/><target dev='vda' bus='virtio'/></disk>
<disk type='volume'><source pool='files' volume='a.img'/><target dev='vdb' bus='virtio'/></disk>
<disk type='volume'><source pool='gone' volume='b'/><target dev='vdc' bus='virtio'/></disk>
</devices></domain></node>"""


@pytest.mark.parametrize("library", [True, False], ids=["library", "virsh"])
def test_volumes_of_pools_are_the_disks_that_they_are_on(
    library: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is no device of the host; a volume that libvirt cannot find may be on any."""
    (tmp_path / "node.xml").write_text(VOLUMES)
    uri = f"test://{tmp_path}/node.xml"
    monkeypatch.setenv(URI_VARIABLE, uri)
    if not library and shutil.which("virsh") is None:
        pytest.skip("virsh is not installed")
    text = library_facts(uri, tmp_path) if library else ask_libvirt(LiveMachine())
    assert text is not None
    guests, _ = read_guests(recorded({"libvirt.json": text}))
    assert [guest.host_paths for guest in guests or ()] == [("/dev/vg/data", "volume b")]
    (kept,), _ = read_guests(recorded({"libvirt.json": strip_facts(text, Scrub("key", None).node)}))  # type: ignore[misc]
    assert len(kept.host_paths) == 2
    assert "volume" not in str(kept.host_paths)
