"""A capture replays to the document it was made from, but for what was scrubbed; and nothing that identifies stays."""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweeps import sample

from hosttune.discovery import discover
from hosttune.discovery.portdetails import parse_module, read_port_details
from hosttune.discovery.recording import Recording, write_capture
from hosttune.discovery.roce import strip_devinfo
from hosttune.discovery.scrub import Scrub
from hosttune.errors import BadInput, Unreadable
from hosttune.machine.capture import Archive, Capture
from hosttune.machine.opening import open_root
from hosttune.machine.reader import Reader
from hosttune.model.host import Host
from hosttune.model.values import to_builtins

HOSTS = Path(__file__).parents[2] / "hosts"
REAL = sorted(
    path
    for path in HOSTS.glob("*/*.tar.*")
    if path.parent.name in ("derived", "ghw", "h100", "h200", "hwloc", "lscpu", "older")
)

UUID = "4c4c4544-0043-5910-8052-b4c04f4d3732"
MACHINE = "0123456789abcdef0123456789abcdef"
MAC = "b8:ce:f6:01:23:45"


def differences(a: Any, b: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Places where two documents differ, with both values."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            yield from differences(a.get(key), b.get(key), f"{place}.{key}")
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, f"{place}[{i}]")
    elif a != b:
        yield place, a, b


def scrubbed_places(before: Host, after: Host) -> set[str]:
    differ = differences(to_builtins(before), to_builtins(after))
    return {re.sub(r"\[\d+\]|(?<=^\.nodes)\./dev/.+", "[]", place) for place, *_ in differ}


# Everything in the documents of the real captures that identifies a machine or names its volumes.
IDENTIFYING = {".kernel_args[]", ".nodes[]", ".platform.uuid"}


@pytest.mark.parametrize("path", sample("captures", REAL, 9), ids=lambda path: path.stem)
def test_a_real_capture_captured_again_replays_to_the_same_document(path: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.tar.gz", tmp_path / "second.tar.gz"
    before = write_capture(open_root(str(path)), str(first))
    assert before == discover(open_root(str(path)))
    after = discover(open_root(str(first)))
    assert scrubbed_places(before, after) <= IDENTIFYING
    # Scrubbing what is scrubbed changes nothing, and the same facts are packed to the same bytes.
    write_capture(open_root(str(first)), str(second))
    assert first.read_bytes() == second.read_bytes()


# --- a machine with everything that must not leave it --------------------------------------------------------


def config_space(serial: bytes) -> bytes:
    """4 KiB of config space with two extended capabilities: AER (1), then the Device Serial Number (3)."""
    data = bytearray(4096)
    struct.pack_into("<HH", data, 0, 0x15B3, 0x1021)
    struct.pack_into("<I", data, 0x100, 0x150 << 20 | 2 << 16 | 1)
    struct.pack_into("<I", data, 0x150, 1 << 16 | 3)
    data[0x154:0x15C] = serial
    return bytes(data)


SERIAL = bytes.fromhex("b8cef60300012345")
NIC = "/sys/devices/pci0000:00/0000:00:01.0"
GPU = "/sys/devices/pci0000:00/0000:02:00.0"
DOMAIN = f"""<domain type='kvm'><name>tenant-a</name><uuid>{UUID}</uuid><title>Secret Customer</title>
<memory unit='KiB'>1048576</memory><vcpu cpuset='0-1'>2</vcpu><os><type arch='x86_64'>hvm</type>
<kernel>/srv/customer/vmlinuz</kernel></os><devices>
<disk type='file'><source file='/srv/customer/disk.qcow2'/><target dev='vda'/></disk>
<hostdev mode='subsystem' type='pci'><source><address domain='0' bus='0' slot='1' function='0'/></source></hostdev>
<interface type='bridge'><mac address='{MAC}'/><source bridge='customer0'/></interface></devices></domain>"""


def private_files() -> dict[str, bytes]:
    libvirt = {
        "uri": "qemu:///system",
        "libvirt_version": "9.0.0",
        "domains": [{"name": "tenant-a", "state": "running", "xml": DOMAIN, "inactive_xml": DOMAIN}],
    }
    texts = {
        "/etc/machine-id": f"{MACHINE}\n",
        "/proc/sys/kernel/hostname": "gpu17.example.com\n",
        "/proc/sys/kernel/random/boot_id": "11111111-2222-3333-4444-555555555555\n",
        "/proc/sys/kernel/osrelease": "6.1.0\n",
        "/proc/version": "Linux version 6.1.0 (alice@build.example.com) #1\n",
        "/proc/cmdline": (
            f"BOOT_IMAGE=/vmlinuz root=UUID={UUID} quiet iommu=pt ip=10.1.2.3::10.1.2.1 rd.iscsi.password=hunter2 "
            "log=10.9.8.7:514 resume=/dev/mapper/gpu17-swap isolcpus=2-3 agent.id=gpu17.example.com "
            'dyndbg="file drivers/* +p" pci=realloc=off\n'
        ),
        "/proc/mounts": (
            "nas.example.com:/home /home nfs4 rw,addr=10.1.2.9 0 0\nacme-fuse /mnt/acme fuse rw 0 0\n"
            "/dev/vda1 / ext4 rw 0 0\n/dev/vdb1 /data/acme ext4 rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
        ),
        "/proc/net/route": (
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
            "enxb8cef6012345\t00000000\t0103020A\t0003\t0\t0\t0\t00000000\n"
            "enxb8cef6012345\t0003020A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n"
        ),
        "/proc/net/ipv6_route": f"{'0' * 32} 00 {'0' * 32} 00 20010db8{'a1' * 12} 00000400 1 0 00000003 eth0\n",
        "/sys/class/dmi/id/product_uuid": f"{UUID}\n",
        "/sys/class/dmi/id/product_serial": "7XK2M33\n",
        "/sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
        f"{GPU}/vendor": "0x10de\n",
        f"{GPU}/device": "0x2335\n",
        f"{GPU}/class": "0x030200\n",
        f"{NIC}/vendor": "0x15b3\n",
        f"{NIC}/device": "0x1021\n",
        f"{NIC}/class": "0x020000\n",
        f"{NIC}/net/enxb8cef6012345/address": f"{MAC}\n",
        f"{NIC}/net/enxb8cef6012345/speed": "100000\n",
        "/sys/devices/system/cpu/present": "0-3\n",
        "/.hosttune/commands/libvirt.json": json.dumps(libvirt),
        "/.hosttune/commands/nvml.json": json.dumps(
            {
                "0": {
                    "busId": "00000000:02:00.0",
                    "nvmlDeviceGetUUID": "GPU-39d46a46-29c2-f95b-0b9b-d5e7a1b5c3d2",
                    "nvmlDeviceGetSerial": "1652923033443",
                }
            }
        ),
        "/.hosttune/capture": "1\n",
    }
    return {path: text.encode() for path, text in texts.items()} | {f"{NIC}/config": config_space(SERIAL)}


@pytest.fixture
def machine() -> Archive:
    links = {
        "/sys/bus/pci/devices/0000:00:01.0": NIC,
        "/sys/bus/pci/devices/0000:02:00.0": GPU,
        f"{GPU}/driver": "/sys/bus/pci/drivers/nvidia",
        "/sys/class/net/enxb8cef6012345": f"{NIC}/net/enxb8cef6012345",
    }
    return Archive(private_files(), links, "machine", ["/sys/kernel/iommu_groups", "/boot/grub/grub.cfg"])


def whole_text(path: Path) -> str:
    """All names, link targets and contents of an archive in one text."""
    parts: list[str] = []
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() else None
            parts += [member.name, member.linkname, file.read().decode("latin-1") if file else ""]
    return "\n".join(parts)


def test_nothing_that_identifies_the_machine_is_left(machine: Archive, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    write_capture(machine, str(path))
    text = whole_text(path)
    for secret in (
        *(UUID, MACHINE, MAC, "b8cef6012345", "gpu17", "example.com", "11111111-2222", "7XK2M33", "1652923033443"),
        *("39d46a46", "10.1.2", "10.9.8.7", "hunter2", "Customer", "customer", "alice", "nas"),
        *("acme", "0103020A", "0003020A", "20010db8", "a1a1a1"),
        SERIAL.decode("latin-1"),
    ):
        assert secret.lower() not in text.lower(), secret


def test_a_capture_of_a_capture_that_proves_nothing_proves_nothing(machine: Archive, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    write_capture(machine, str(path))
    driver = "/sys/bus/pci/devices/0000:00:01.0/driver"
    again = open_root(str(path))
    assert not again.exists(driver)
    assert not again.lacks(driver)
    assert {one.unbound for one in discover(again).pci} == {None}


def test_what_identifies_nobody_is_kept(machine: Archive, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    before = write_capture(machine, str(path))
    after = discover(open_root(str(path)))
    assert after.kernel_args is not None
    assert [argument for argument in after.kernel_args if "scrub" not in argument and "5c2b" not in argument] == [
        *("BOOT_IMAGE=/vmlinuz", "quiet", "iommu=pt", after.kernel_args[6], "isolcpus=2-3"),
        *('dyndbg="file drivers/* +p"', "pci=realloc=off"),
    ]
    assert re.fullmatch(r"log=198\.1[89]\.\d+\.\d+:514", after.kernel_args[6])
    assert after.platform is not None
    assert after.platform.vendor == "Dell Inc."
    assert after.guests is not None
    assert [(guest.name, guest.devices, guest.vcpus) for guest in after.guests] == [("tenant-a", ("0000:00:01.0",), 2)]
    assert scrubbed_places(before, after) == {
        *(".hostname", ".boot_id", ".platform.uuid", ".kernel_args[]", ".guests[].uuid", ".nics[].interfaces[]"),
        *(".gpus[].uuid", ".gpus[].serial", ".nics[].in_use"),
    }


def test_the_same_input_gives_the_same_replacement(machine: Archive, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    write_capture(machine, str(path))
    replayed = open_root(str(path))
    uuid = (replayed.read("/sys/class/dmi/id/product_uuid") or "").strip()
    assert f"root=UUID={uuid} " in (replayed.read("/proc/cmdline") or "")
    assert uuid in (replayed.read("/.hosttune/commands/libvirt.json") or "")
    scrub = Scrub(MACHINE, "gpu17")
    assert scrub.path(f"/dev/disk/{UUID}") == f"/dev/disk/{uuid}"
    own = scrub.contents("/proc/net/if_inet6", b"20010db80000a1a1a1a1a1a1a1a1a1a1 02 40 00 80 eth0\n").decode()
    assert re.fullmatch(r"fd005c2b[0-9a-f]{24} 02 40 00 80 eth0\n", own)
    assert scrub.contents("/x/address", f"{MAC}\n".encode()).decode().strip().replace(":", "") == scrub.path(
        "enxb8cef6012345"
    ).removeprefix("enx")


def test_replacements_depend_on_the_machine() -> None:
    assert Scrub("one", None).contents("/x", UUID.encode()) != Scrub("two", None).contents("/x", UUID.encode())


SHAPES = {
    "/sys/class/net/eth0/address": (MAC, r"02:00:5c(:[0-9a-f]{2}){3}"),
    "/sys/class/net/ib0/address": ("00:00:10:49:fe:80" + ":1f" * 14, r"02:00:5c(:[0-9a-f]{2}){17}"),
    "/sys/class/infiniband/mlx5_0/node_guid": ("b8ce:f603:0001:2345", r"5c2b(:[0-9a-f]{4}){3}"),
    "/sys/class/infiniband/mlx5_0/ports/1/gids/0": (
        "fe80:0000:0000:0000:b8ce:f603:0001:2345",
        r"fe80(:0000){3}:5c2b(:[0-9a-f]{4}){3}",
    ),
    "/sys/bus/pci/devices/0000:00:01.0/unique_id": ("a1b2c3d4e5f60718", r"5c2b[0-9a-f]{12}"),
    "/sys/block/nvme0n1/wwid": ("eui.0025385b01234567", r"eui\.5c2b[0-9a-f]{12}"),
    "/sys/class/nvme/nvme0/serial": ("S64GNE0R123456      ", r"SCRUBBED-[0-9a-f]{8} +"),
    "/sys/class/dmi/id/product_serial": ("ABC", r"SCRUBBED-[0-9a-f]{8}"),
    "/etc/hostname": ("gpu17", r"scrubbed-host-[0-9a-f]{8}"),
    "/anywhere": (UUID.upper(), r"5c2b0000-0000-4000-8000-[0-9a-f]{12}"),
    "/.hosttune/commands/x": ('"nvmlDeviceGetSerial": "165"', r'"nvmlDeviceGetSerial": "SCRUBBED-[0-9a-f]{8}"'),
    "/.hosttune/commands/y": ("<serial>165</serial>", r"<serial>SCRUBBED-[0-9a-f]{8}</serial>"),
}


@pytest.mark.parametrize("path", SHAPES)
def test_a_replacement_keeps_the_shape_and_is_known_again(path: str) -> None:
    value, shape = SHAPES[path]
    once = Scrub("key", None).contents(path, f"{value}\n".encode())
    assert re.fullmatch(shape, once.decode().rstrip("\n")), once
    assert Scrub("another", None).contents(path, once) == once


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/sys/class/net/lo/address", "00:00:00:00:00:00"),
        ("/sys/class/net/eth0/broadcast", "ff:ff:ff:ff:ff:ff"),
        ("/proc/sys/kernel/hostname", "localhost"),
        ("/sys/class/infiniband/mlx5_0/ports/1/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000"),
        ("/sys/bus/pci/devices/0000:41:00.0/uevent", "PCI_SLOT_NAME=0000:41:00.0"),
        ("/sys/module/nvidia/version", "580.159.04"),
        ("/proc/interrupts", " 12:   3:  4: 10: 11: 12: IR-PCI-MSI 0000:41:00.0"),
        ("/.hosttune/commands/nvidia-smi-q", "    Serial Number : N/A\n    Chassis Serial Number : 0"),
        ("/proc/cmdline", "root=/dev/vda rw console=ttyS0 listen=127.0.0.1 hugepages=0:4,1:4 keyboard=de"),
    ],
)
def test_what_identifies_nothing_stays(path: str, text: str) -> None:
    assert Scrub("key", "gpu17").contents(path, text.encode()).decode() == text


def test_bytes_that_are_no_text_are_kept_and_config_space_loses_its_serial() -> None:
    scrub = Scrub("key", None)
    assert scrub.contents("/x", b"\xff\xfe") == b"\xff\xfe"
    before, after = config_space(SERIAL), scrub.contents("/x/config", config_space(SERIAL))
    assert [i for i in range(4096) if before[i] != after[i]] == list(range(0x154, 0x15C))
    assert after[0x154:0x156] == b"\x5c\x2b"
    assert scrub.contents("/x/config", after) == after
    assert scrub.contents("/x/config", before[:256]) == before[:256]
    # The same number beside the last look at a GPU stays the same number.
    kept = scrub.contents("/.hosttune/commands/kept-gpus", f'{{"dsn": "{SERIAL[::-1].hex()}"}}'.encode())
    assert kept.decode() == f'{{"dsn": "{after[0x154:0x15C][::-1].hex()}"}}'
    looping = bytearray(before)
    struct.pack_into("<I", looping, 0x150, 0x100 << 20 | 1 << 16 | 2)
    assert scrub.contents("/x/config", bytes(looping)) == bytes(looping)


# --- what is recorded ----------------------------------------------------------------------------------------


def test_only_what_was_read_is_in_the_archive(machine: Archive, tmp_path: Path) -> None:
    files = private_files() | {"/home/alice/.ssh/id_ed25519": b"private", "/etc/shadow": b"root:x"}
    path = tmp_path / "x.tar.gz"
    write_capture(Archive(files, {}, "machine"), str(path))
    with tarfile.open(path) as tar:
        names = tar.getnames()
    assert not [name for name in names if name.startswith(("home", "etc/shadow", "etc/machine-id"))]


def test_empty_directories_and_unreadable_files_replay() -> None:
    inner = Archive(
        {"/sys/a/one": b"1", "/sys/a/two": b"2", "/.hosttune/unreadable": b"/sys/a/shut\tPermission denied\n"},
        {"/sys/l": "/sys/a"},
        "inner",
        ["/sys/empty", "/sys/a/shut"],
    )
    recording = Recording(inner)
    assert recording.list("/sys/l") == ["one", "shut", "two"]
    assert recording.read("/sys/l/one") == "1"
    assert recording.list("/sys/empty") == []
    assert recording.exists("/sys/empty")
    assert not recording.exists("/sys/none")
    with pytest.raises(Unreadable):
        recording.read_bytes("/sys/l/shut")
    assert recording.files == {"/sys/a/one": b"1"}
    assert recording.links == {"/sys/l": "/sys/a"}
    assert recording.present == {"/sys/a", "/sys/a/one", "/sys/a/shut", "/sys/a/two", "/sys/empty"}
    assert recording.unreadable == {"/sys/a/shut": "Permission denied"}


class Shut(Archive):
    def exists(self, path: str) -> bool:
        if path == "/dev/kvm":
            raise Unreadable(path, "Permission denied")
        return super().exists(path)


def test_what_could_not_be_looked_at_is_recorded_as_such() -> None:
    recording = Recording(Shut({}, {}, "x"))
    with pytest.raises(Unreadable):
        recording.exists("/dev/kvm")
    assert recording.unreadable == {"/dev/kvm": "Permission denied"}


def test_an_unreadable_file_is_the_same_problem_in_the_replay(tmp_path: Path) -> None:
    refused = b"/proc/cmdline\tPermission denied\n/sys/devices/system/cpu\tInput/output error\n"
    inner = Archive({**private_files(), "/.hosttune/unreadable": refused}, {}, "inner")
    path = tmp_path / "x.tar.gz"
    before = write_capture(inner, str(path))
    after = discover(open_root(str(path)))
    assert ("unreadable", "/proc/cmdline", "Permission denied") in [(p.what, p.where, p.why) for p in before.problems]
    assert after.problems == before.problems


def test_what_is_absent_on_a_whole_capture_is_known_to_be(machine: Archive, tmp_path: Path) -> None:
    write_capture(machine, str(tmp_path / "x.tar.gz"))
    host = discover(open_root(str(tmp_path / "x.tar.gz")))
    assert host.virtualization is not None
    assert host.virtualization.kvm is False
    assert host.iommu is not None
    assert host.iommu.present is False


def test_reading_on_the_way_to_an_answer_is_not_recorded() -> None:
    inner = Archive({"/.hosttune/commands/tool": b"answer", "/proc/1/comm": b"init"}, {}, "inner")
    recording = Recording(inner)
    assert recording.query("tool", lambda: recording.read("/proc/1/comm")) == "answer"
    assert recording.answers == {"tool": "answer"}
    assert recording.files == {}


def test_a_capture_unpacks_to_a_directory_that_replays(machine: Archive, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    write_capture(machine, str(path))
    (tmp_path / "root").mkdir()
    with tarfile.open(path) as tar:
        tar.extractall(tmp_path / "root", filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(
            tmp_path / "root"
        )
    assert discover(Capture(str(tmp_path / "root"))) == discover(open_root(str(path)))


# --- the file ------------------------------------------------------------------------------------------------


def test_an_existing_file_is_never_replaced(machine: Archive, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_text("mine")
    with pytest.raises(BadInput, match="already exists") as caught:
        write_capture(machine, str(path))
    assert caught.value.where == str(path)
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["x.tar.gz"]


def test_a_dash_is_no_file_name(machine: Archive, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path), pytest.raises(BadInput) as caught:
        write_capture(machine, "-")
    assert (caught.value.where, caught.value.hint.split(":")[0]) == ("-", "give a file name")
    assert list(tmp_path.iterdir()) == []


def test_a_dangling_link_counts_as_existing(machine: Archive, tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").symlink_to("elsewhere")
    with pytest.raises(BadInput, match="already exists"):
        write_capture(machine, str(tmp_path / "x.tar.gz"))
    assert not (tmp_path / "elsewhere").exists()


def test_a_place_that_takes_no_file_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    nothing = Archive({}, {}, "nothing")  # refused as soon as it is read
    (tmp_path / "file").write_text("")
    for folder in ("none", "file"):
        path = str(tmp_path / folder / "x.tar.gz")
        with pytest.raises(BadInput) as caught:
            write_capture(nothing, path)
        assert (caught.value.what, caught.value.where) == (f"cannot be written: no folder {tmp_path / folder}", path)
    assert os.listdir(tmp_path) == ["file"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no host"):
        write_capture(Archive({}, {}, "nothing"), str(tmp_path / "x.tar.gz"))
    assert os.listdir(tmp_path) == []


def test_the_file_is_private_to_its_owner(machine: Archive, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    write_capture(machine, str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_nlink == 1
    assert os.listdir(tmp_path) == ["x.tar.gz"]


# --- what somebody has put into a root by hand ---------------------------------------------------------------

HAND_MADE = f"""<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><name>tenant-a</name>
<uuid>{UUID}</uuid><description>Secret Customer</description><memory unit='KiB'>1048576</memory><vcpu>2</vcpu>
<os><type arch='x86_64'>hvm</type><loader>/srv/customer/OVMF.fd</loader></os><devices>
<graphics type='vnc' port='5901' listen='10.1.2.3' passwd='hunter2'/>
<graphics type='spice' passwd='hunter3'><listen type='address' address='10.1.2.4'/></graphics>
<disk type='network'><source protocol='rbd' name='pool/customer'><host name='ceph.example.com'/>
<auth username='alice'/></source><target dev='vda'/></disk>
<hostdev mode='subsystem' type='pci'><source><address domain='0' bus='0' slot='2' function='0'/></source>
<rom file='/srv/customer/rom.bin'/></hostdev>
<hostdev mode='subsystem' type='scsi'><source protocol='iscsi' name='iqn.2014-07.com.example:store/1'>
<host name='iscsi.example.com' port='3260'/><auth username='bob'/></source></hostdev>
<interface type='bridge'><mac address='{MAC}'/><source bridge='customer0'/></interface>
<memory model='nvdimm'><source><path>/srv/customer/nvdimm</path></source></memory></devices>
<qemu:commandline><qemu:arg value='/srv/customer/secret'/></qemu:commandline></domain>"""
LOG = {
    "since": 0.5,
    "source": "dmesg on gpu17.example.com",
    "lines": [
        [1.0, "Command line: password=hunter4"],
        [2.0, f"NVRM: Xid (PCI:0000:00:02): 79, pid=7, name=customer-job, serial 1652923033443, mac {MAC} on gpu17"],
        [3.0, "NVRM: Xid (PCI:0000:00:02): 43, loaded /srv/customer/libcuda.so from 10.1.2.9, Serial Number: ABCD1234"],
        [4.0, "usb 1-1: SerialNumber: 7XK2M33"],
    ],
}


def by_hand(tmp_path: Path) -> tuple[Path, list[str], Archive]:
    """A machine with answers that somebody has put there: the capture, what was told, and it opened."""
    files = private_files()
    del files["/.hosttune/commands/libvirt.json"]
    answers = {
        "virsh-dumpxml-tenant-a": HAND_MADE,
        "virsh-list": " Id   Name       State\n--------------\n 1    tenant-a   running\n",
        "kernel-log": json.dumps(LOG),
        "notes-of-the-operator": "the password of gpu17.example.com is hunter5",
        "nvidia-smi-q": "Serial Number : 1652923033443\nHostname : gpu17.example.com\n",
    }
    files |= {f"/.hosttune/commands/{name}": text.encode() for name, text in answers.items()}
    said: list[str] = []
    path = tmp_path / "by-hand.tar.gz"
    write_capture(Archive(files, {}, "by hand"), str(path), said.append)
    replay = open_root(str(path))
    assert isinstance(replay, Archive)
    return path, said, replay


SECRETS = (
    "hunter", "Secret Customer", "customer", "10.1.2", "example.com", "alice", "bob", MAC, "iqn.2014", UUID, "gpu17",
    "1652923033443", "7XK2M33", "ABCD1234", "libcuda",
)  # fmt: skip


def test_what_was_put_there_by_hand_is_scrubbed_as_well(tmp_path: Path) -> None:
    path, _, _ = by_hand(tmp_path)
    with tarfile.open(path) as tar:
        for member in tar:
            data = tar.extractfile(member)
            text = member.name.encode() + (data.read() if data is not None else b"")
            assert [secret for secret in SECRETS if secret.encode() in text] == [], member.name


def test_what_the_readers_need_of_it_is_kept(tmp_path: Path) -> None:
    _, _, replay = by_hand(tmp_path)
    (guest,) = discover(replay).guests or ()
    assert (guest.name, guest.state, guest.memory_bytes) == ("tenant-a", "running", 1 << 30)
    assert guest.devices == ("0000:00:02.0",)
    log = json.loads(replay.read("/.hosttune/commands/kernel-log") or "")
    assert [seconds for seconds, _ in log["lines"]] == [2.0, 3.0]
    assert log["lines"][0][1].startswith("NVRM: Xid (PCI:0000:00:02): 79, serial SCRUBBED-")


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    _, said, replay = by_hand(tmp_path)
    assert [line for line in said if "notes-of-the-operator" in line] == [
        "left out: /.hosttune/commands/notes-of-the-operator, which hosttune does not read here"
    ]
    assert any("virsh-dumpxml-tenant-a only CPUs, memory and host devices are kept" in line for line in said)
    assert not replay.exists("/.hosttune/commands/notes-of-the-operator")


def test_a_kernel_log_that_is_no_record_is_left_out(tmp_path: Path) -> None:
    files = private_files() | {"/.hosttune/commands/kernel-log": b"password: hunter6\n"}
    said: list[str] = []
    path = tmp_path / "x.tar.gz"
    write_capture(Archive(files, {}, "by hand"), str(path), said.append)
    assert "left out: /.hosttune/commands/kernel-log, which is not what hosttune writes there" in said
    assert not open_root(str(path)).exists("/.hosttune/commands/kernel-log")
    again = tmp_path / "y.tar.gz"
    write_capture(open_root(str(path)), str(again))
    assert contents(again) == contents(path)


def contents(path: Path) -> dict[str, bytes]:
    """The files of a capture, but for the manifest: what a capture lists, its replay can prove."""
    with tarfile.open(path) as tar:
        files = [(member.name, tar.extractfile(member)) for member in tar if member.isfile()]
        return {name: file.read() for name, file in files if file is not None and name != ".hosttune/capture"}


def test_what_ethtool_tells_of_a_port_is_found_again_without_the_serial_number(
    machine: Archive, tmp_path: Path
) -> None:
    """Its answer is named for the interface, whose name has a MAC address here."""
    module = (Path(__file__).parents[2] / "cases/ports/ethtool/m-sfp.txt").read_text()
    name = "enxb8cef6012345"
    files = private_files() | {f"{NIC}/net/{name}/type": b"1\n", f"{NIC}/driver_override": b"(null)\n"}
    files[f"/.hosttune/commands/ethtool-m-{name}"] = f"{module}\tVendor SN    : F2020533679\n".encode()
    links = {
        "/sys/bus/pci/devices/0000:00:01.0": NIC,
        f"/sys/class/net/{name}": f"{NIC}/net/{name}",
        f"{NIC}/net/{name}/device": NIC,
    }
    path = tmp_path / "port.tar.gz"
    write_capture(Archive(files, links, "machine"), str(path))
    assert "F2020533679" not in whole_text(path)
    assert name not in whole_text(path)
    replay = open_root(str(path))
    (detail,) = read_port_details(Reader(replay), discover(replay)).values()
    assert detail.module == parse_module(module)
    assert strip_devinfo("hca_id:\tmlx5_0\n\tnode_guid:\t4821:0b03:0096:04cb\n") == "hca_id:\tmlx5_0\n"
