"""Sources of events: lines of the kernel log, devices as the kernel names them, libvirt, a file; and their ends."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hosttune.errors import BadInput
from hosttune.machine.opening import open_system
from hosttune.watch.core import LOST, Event, NoSource
from hosttune.watch.guests import _until_closed
from hosttune.watch.guests import event_of_line as libvirt_event
from hosttune.watch.kmsg import KmsgSource, event_of_line, event_of_record
from hosttune.watch.replay import Replay
from hosttune.watch.udev import Udev, event_of_device

GPU = "device 0000:41:00.0"

# --- the kernel log ------------------------------------------------------------------------------------------

# Texts of the kernel and of drivers; their sources: drivers/pci/pcie/aer.c, hotplug/pciehp_ctrl.c, pci.c
# (pcie_print_link_status, pci_dev_wait), nvme/host/pci.c, NVIDIA's XID catalogue, mlx5/core/port.c, edac_mc.c.
LINES = [
    ("NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "xid", GPU),
    ("pcieport 0000:40:01.1: AER: Corrected error received: 0000:41:00.0", None, None),
    ("nvme 0000:41:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)", "aer", GPU),
    ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x0)", "edac", "host"),
    ("EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 IMC#0", None, None),
    ("mce: [Hardware Error]: Machine check events logged", "mce", "host"),
    ("pcieport 0000:40:01.1: pciehp: Slot(12): Link Down", "slot-event", "device 0000:40:01.1"),
    ("pcieport 0000:40:01.1: pciehp: Slot(12): Card not present", "slot-event", "device 0000:40:01.1"),
    ("pci 0000:41:00.0: 63.012 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x4 link", "link", GPU),
    ("mlx5_core 0000:41:00.0 ens1f0np0: Link down", "link", GPU),
    ("ixgbe 0000:41:00.0 eth2: NIC Link is Up 10 Gbps, Flow Control: RX/TX", "link", GPU),
    ("pcieport 0000:40:01.1: pciehp: Slot(12): Link Up", "link", "device 0000:40:01.1"),
    ("nvme nvme3: I/O 12 QID 4 timeout, reset controller", "nvme-timeout", "host"),
    ("nvme 0000:41:00.0: Removing after probe failure status: -19", "nvme", GPU),
    ("vfio-pci 0000:41:00.0: not ready 1023ms after FLR; waiting", None, None),
    ("vfio-pci 0000:41:00.0: not ready 65535ms after FLR; giving up", "reset-failed", GPU),
    ("vfio-pci 0000:41:00.0: enabling device (0000 -> 0002)", None, None),
    ("audit: type=1400 apparmor=\"DENIED\" profile=\"pcieport 0000:40:01.1: pciehp: Slot(12): Link Down\"", None, None),
    ("usb 1-1: new high-speed USB device number 2 using xhci_hcd", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "what", "subject"), LINES, ids=[text[:40] for text, _, _ in LINES])
def test_lines_of_the_kernel_log(text: str, what: str | None, subject: str | None) -> None:
    found = event_of_line(text)
    assert (found and (found.what, found.subject)) == (what and (what, subject))
    assert event_of_record(f"4,1234,5678901,-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:x\n".encode()) == found


def test_a_program_that_writes_to_the_log_is_not_the_kernel() -> None:
    """Facility 1 and more are not the kernel's (Documentation/ABI/testing/dev-kmsg)."""
    line = "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus."
    assert event_of_record(f"4,1,1,-;{line}".encode()) is not None
    assert event_of_record(f"12,1,1,-;{line}".encode()) is None
    for record in (b"", b";", b"4,1;x", b"\xff\xfe", b"4,1,1,-", b"99999999999,1,1,-;x", b"4,1,1,-;\xff\xff" * 900):
        assert event_of_record(record) is None


def answers(rows: Iterable[bytes | int]) -> KmsgSource:
    """A log whose reads give these: bytes, or the number of an error."""
    left = iter(rows)

    def read(fd: int, size: int) -> bytes:
        row = next(left, errno.EAGAIN)
        if isinstance(row, int):
            raise OSError(row, os.strerror(row))
        return row

    return KmsgSource(os.devnull, read)


def test_overwritten_records_are_lost_and_the_next_ones_are_read() -> None:
    xid = b"4,9,1,-;NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.\n"
    log = answers([errno.EPIPE, xid, errno.EINVAL, b"6,10,1,-;hello\n", xid])
    assert log.take() == [Event("kernel-log", LOST), Event("kernel-log", "xid", GPU), Event("kernel-log", "xid", GPU)]
    assert log.take() == []
    log.close()
    failing = answers([errno.EIO])
    with pytest.raises(NoSource, match="Input/output error"):
        failing.take()
    failing.close()


def test_no_kernel_log(tmp_path: Path) -> None:
    with pytest.raises(NoSource, match=r"no-such: No such file"):
        KmsgSource(str(tmp_path / "no-such"))


@pytest.mark.skipif(
    not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg is not readable here: root's on most machines"
)
def test_the_real_log_is_read_from_now_on() -> None:
    log = KmsgSource()
    assert [event for event in log.take() if event.what == LOST] == []
    log.close()
    past = KmsgSource(read=lambda fd, size: (os.lseek(fd, 0, os.SEEK_CUR), os.read(fd, size))[1])
    os.lseek(past.fileno(), 0, os.SEEK_SET)
    past.take()  # whatever this machine has logged since its start: no record is an error
    past.close()


# --- devices -------------------------------------------------------------------------------------------------

ROOT = "/devices/pci0000:40/0000:40:01.1/0000:41:00.0"
DEVICES = [
    (("unbind", "pci", ROOT), Event("udev", "unbind", GPU)),
    (("add", "nvme", f"{ROOT}/nvme/nvme3"), Event("udev", "add", GPU)),
    (("change", "infiniband", f"{ROOT}/infiniband/mlx5_0"), Event("udev", "change", GPU)),
    (("remove", "net", f"{ROOT}/net/ens1"), Event("udev", "remove", GPU)),
    (("add", "net", "/devices/virtual/net/vnet7"), None),
    (("add", "pci", "/devices/pci0000:40"), Event("udev", "add")),
    (("add", "usb", "/devices/pci0000:40/0000:40:01.1/usb1"), None),
    (("explode", "pci", ROOT), None),
]


@pytest.mark.parametrize(("words", "event"), DEVICES)
def test_events_of_devices(words: tuple[str, str, str], event: Event | None) -> None:
    assert event_of_device(dict(zip(("ACTION", "SUBSYSTEM", "DEVPATH"), words, strict=True))) == event


class Monitor:
    """What pyudev's monitor does: poll returns a device, None, or fails as recvmsg(2) does."""

    def __init__(self, rows: list[tuple[str, str, str] | int]) -> None:
        self.rows = rows
        self.wanted: list[str] = []

    def filter_by(self, subsystem: str) -> None:
        self.wanted.append(subsystem)

    def set_receive_buffer_size(self, size: int) -> None:
        raise OSError(errno.EPERM, "not root")

    def start(self) -> None:
        pass

    def fileno(self) -> int:
        return 0

    def poll(self, timeout: float) -> SimpleNamespace | None:
        row = self.rows.pop(0) if self.rows else None
        if isinstance(row, int):
            raise OSError(row, os.strerror(row))
        return row and SimpleNamespace(action=row[0], subsystem=row[1], device_path=row[2])


def test_a_full_buffer_is_told_and_reading_goes_on() -> None:
    monitor = Monitor([("bind", "pci", ROOT), errno.ENOBUFS, ("unbind", "pci", ROOT)])
    source = Udev(lambda: monitor)
    assert monitor.wanted == ["pci", "nvme", "net", "infiniband"]
    assert [event.what for event in source.take()] == ["bind", LOST, "unbind"]
    with pytest.raises(NoSource, match="Bad file descriptor"):
        Udev(lambda: Monitor([errno.EBADF])).take()


def test_no_udev() -> None:
    def missing() -> Monitor:
        raise ImportError("No library named udev")

    with pytest.raises(NoSource, match="No library named udev"):
        Udev(missing)


def test_the_real_monitor_opens_and_has_nothing_to_say() -> None:
    pytest.importorskip("pyudev")
    source = Udev()
    assert source.fileno() > 2
    assert [event for event in source.take() if event.what == LOST] == []
    source.close()


# --- libvirt -------------------------------------------------------------------------------------------------

SAID = [
    ("event 'lifecycle' for domain 'vm one': Started Booted", "started", "guest vm one"),
    ("event 'lifecycle' for domain vm: Stopped Failed", "stopped", "guest vm"),  # libvirt before 8.5
    ("event 'device-removed' for domain 'vm': hostdev0", "device-removed", "guest vm"),
    ("event 'lifecycle' for domain 'vm':  ", "lifecycle", "guest vm"),
    ('["started", "vm one"]', "started", "guest vm one"),
    ('["closed", ""]', "closed", "host"),
    ('["broken', LOST, "host"),
    ('["a", "b", "c"]', LOST, "host"),
    ("something else", LOST, "host"),
]


@pytest.mark.parametrize(("text", "what", "subject"), SAID)
def test_what_libvirt_says(text: str, what: str, subject: str) -> None:
    assert libvirt_event(text) == Event("libvirt", what, subject)


class OldLibvirt:
    """libvirt-python without the newer kinds of event, and its connection to a daemon that knows one kind alone."""

    VIR_DOMAIN_EVENT_ID_LIFECYCLE, VIR_DOMAIN_EVENT_ID_REBOOT = 0, 1

    class libvirtError(Exception):  # noqa: N801  (libvirt's name)
        pass

    def __init__(self) -> None:
        self.lifecycle: Callable[..., None] | None = None
        self.turns = 0

    def setKeepAlive(self, *numbers: int) -> None:  # noqa: N802
        raise self.libvirtError

    registerCloseCallback = setKeepAlive  # noqa: N815

    def domainEventRegisterAny(self, _domain: None, number: int, callback: Callable[..., None], *_: object) -> None:  # noqa: N802
        if number != self.VIR_DOMAIN_EVENT_ID_LIFECYCLE:
            raise self.libvirtError
        self.lifecycle = callback

    def isAlive(self) -> bool:  # noqa: N802
        return self.turns < 3

    def virEventRunDefaultImpl(self) -> None:  # noqa: N802
        assert self.lifecycle is not None
        self.turns += 1
        self.lifecycle(self, SimpleNamespace(name=lambda: "vm"), {1: 2, 2: 5, 3: 99}[self.turns], 0, None)

    def close(self) -> None:
        raise self.libvirtError


def test_an_old_libvirt_tells_what_it_can() -> None:
    reader, writer = os.pipe()
    old = OldLibvirt()
    _until_closed(old, old, writer)
    os.close(writer)
    with open(reader, encoding="utf-8") as told:
        found = [event for line in told if (event := libvirt_event(line.strip()))]
    assert [(one.what, one.subject) for one in found] == [
        ("opened", "host"), ("started", "guest vm"), ("stopped", "guest vm"), ("lifecycle", "guest vm"),
    ]  # fmt: skip


def test_the_last_line_of_virsh_is_no_event() -> None:
    assert libvirt_event("events received: 12") is None


# --- a file --------------------------------------------------------------------------------------------------


def test_events_of_a_captured_host_come_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    events = tmp_path / ".hosttune" / "events"
    with pytest.raises(NoSource, match=r"^no events: this capture has no file \.hosttune/events"):
        Replay(lambda: open_system(str(tmp_path)))
    events.parent.mkdir()
    events.write_text(f"udev unbind pci {ROOT}\nlost udev\nkmsg 4,1,1,-;nvme 0000:41:00.0: Removing\nlibvirt star")
    source = Replay(lambda: open_system(str(tmp_path)))
    assert source.take() == [Event("udev", "unbind", GPU), Event("udev", LOST), Event("kernel-log", "nvme", GPU)]
    assert source.take() == []
    with events.open("a") as file:
        file.write("ted vm\n\nlibvirt opened\nkmsg 4,1,1,-;nothing\n")
    assert source.take() == [Event("libvirt", "started", "guest vm"), Event("libvirt", "opened")]
    with events.open("a") as file:
        file.write("rm -rf /\n")
    with pytest.raises(BadInput, match="not an event: 'rm -rf /'"):
        source.take()
