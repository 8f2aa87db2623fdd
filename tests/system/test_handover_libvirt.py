"""The hook under a real libvirtd: it is called before a start, and its refusal is libvirt's."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from libvirtd import NEEDED, NOBODY

from hosttune.settings.hook import hook_text

GPU = "0000:41:00.0"
# Metadata stands for a passed device, which this machine does not have: the hook takes its <source> for one.
XML = """<domain type='qemu'><name>vm 1</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
<metadata><device xmlns='http://x'><source><address domain='0x0000' bus='0x41' slot='0x00' function='0x0'/></source>
</device></metadata><os><type arch='x86_64' machine='q35'>hvm</type></os>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator></devices></domain>
"""
# In namespaces of its own: the hook's folder is the test's, and the end of the first process ends all others.
OUTER = "mount --bind hooks /etc/libvirt/hooks && exec setpriv --reuid={user} --regid={user} --clear-groups sh inner"
INNER = r"""
libvirtd --timeout 60 >log 2>&1 &
until [ -S libvirt/libvirt-sock ]; do sleep 0.05; kill -0 $! || exit 9; done
start() { virsh -q -c qemu:///session start --paused 'vm 1'; echo "start $?"; }
virsh -q -c qemu:///session define guest.xml
start
virsh -q -c qemu:///session destroy 'vm 1'
printf '0000:41:00.0\nend 1\n' >state/handover/quarantined
printf '  "address": "0000:41:00.0",\n  "state": "quarantined"\n' >state/handover/register.json
start
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user reaches, with a short name: a socket's path has at most 107 characters."""
    path = Path(tempfile.mkdtemp(prefix="hosttune-hook-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a mount namespace")
@pytest.mark.skipif(not all(map(shutil.which, NEEDED)), reason="no libvirtd or QEMU")
def test_libvirt_calls_the_hook_and_refuses_as_it_does(folder: Path) -> None:
    for name in ("hooks/qemu.d", "state/handover", "libvirt"):
        (folder / name).mkdir(parents=True)
    hook = folder / "hooks/qemu.d/hosttune"
    hook.write_text(hook_text(str(folder / "state")) or "")
    texts = {
        "guest.xml": XML,
        "inner": INNER,
        "libvirt/libvirtd.conf": 'auth_unix_rw = "none"\n',
        "libvirt/qemu.conf": "",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o755)
    places = {f"XDG_{name}": str(folder) for name in ("RUNTIME_DIR", "CONFIG_HOME", "CACHE_HOME", "DATA_HOME")}
    spaces = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    done = subprocess.run(
        ["unshare", *spaces, "sh", "-c", OUTER.format(user=NOBODY)],
        cwd=folder, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder), "LC_ALL": "C", **places},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if "unshare: " in done.stderr or "mount: " in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.stdout.split("\n")[:2] == ["start 0", "start 1"], done.stderr + (folder / "log").read_text()[-2000:]
    assert f"hosttune: guest vm 1: {GPU} is quarantined: see hosttune handover status" in done.stderr
    (line,) = (folder / "state/handover/starts").read_text().splitlines()
    assert line.startswith(f"{GPU} guest 20")
    assert line.endswith("Z vm 1")
