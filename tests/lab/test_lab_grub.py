"""The host that boots from its disk: what GRUB stages, a reboot brings; what was flushed, a power cut leaves."""

from __future__ import annotations

import pytest

from lab import facts
from lab.machine import LabMachine

pytestmark = pytest.mark.lab

DROP_IN = "/etc/default/grub.d/zz-test.cfg"
ARGUMENT = "isolcpus=2-3"
# fsync of the file and of the folder that names it, then a second file that nobody flushes.
WRITE = """
import os
with open("/root/flushed", "w") as file:
    file.write("kept")
    file.flush()
    os.fsync(file.fileno())
folder = os.open("/root", os.O_RDONLY)
os.fsync(folder)
with open("/root/cached", "w") as file:
    file.write("lost")
"""


def test_grub_starts_the_distributions_kernel(grub_lab: LabMachine) -> None:
    arguments = facts.arguments_of_kernel(grub_lab)
    release = grub_lab.shell("uname -r").strip()
    partition = grub_lab.shell("findmnt -n -o UUID /").strip()
    assert arguments[:2] == [f"BOOT_IMAGE=/boot/vmlinuz-{release}", f"root=UUID={partition}"]
    assert grub_lab.shell("systemctl is-system-running").strip() == "running"


def test_a_drop_in_is_staged_until_the_reboot(grub_lab: LabMachine) -> None:
    """Its removal too: there the next boot follows a power cut, which must not undo what update-grub had synced."""
    before = facts.arguments_of_kernel(grub_lab)
    boots = [grub_lab.boot_id()]
    files = facts.files_below(grub_lab, "/etc/default", "/boot/grub")
    try:
        grub_lab.shell("cat >" + DROP_IN, stdin=f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {ARGUMENT}"\n')
        grub_lab.shell("update-grub")
        assert facts.arguments_of_kernel(grub_lab) == before
        assert grub_lab.boot_id() == boots[0]
        grub_lab.reboot()
        boots.append(grub_lab.boot_id())
        assert set(facts.arguments_of_kernel(grub_lab)) - set(before) == {ARGUMENT}
        assert grub_lab.shell("cat /sys/devices/system/cpu/isolated").strip() == "2-3"
    finally:
        grub_lab.shell(f"rm {DROP_IN}; update-grub; sync; rm -f /root/flushed /root/cached")
        grub_lab.shell("python3 -", stdin=WRITE)
        grub_lab.power_cut()
        grub_lab.start()
    boots.append(grub_lab.boot_id())
    assert len(set(boots)) == len(boots)
    assert facts.arguments_of_kernel(grub_lab) == before
    assert facts.files_below(grub_lab, "/etc/default", "/boot/grub") == files
    assert grub_lab.shell("cat /root/flushed") == "kept"
    assert "lost" not in grub_lab.shell("cat /root/cached", check=False)
    grub_lab.shell("rm -f /root/flushed /root/cached")
