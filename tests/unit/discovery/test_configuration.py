"""Configuration facts of a host: where each is read, and that what is missing or damaged is unknown, never a value."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from hosttune.discovery.configuration import configuration_of, modules_of, read_driver_info
from hosttune.discovery.evidence import gather
from hosttune.discovery.recording import Recording
from hosttune.machine.live import LiveMachine
from hosttune.machine.opening import open_root
from hosttune.machine.reader import Reader
from hosttune.model.configuration import FACT_KINDS, Fact, alike_arguments, argument_difference, normal_value, sort_key
from hosttune.model.evidence import Evidence
from hosttune.model.host import Host
from hosttune.validating import ValidationRequest, validate

NIC, GPU, DRIVE, PLAIN = "0000:0a:00.0", "0000:41:00.0", "0000:05:00.0", "0000:0b:00.0"
CPUINFO = "".join(
    f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel name\t: Xeon 8480\n"
    "microcode\t: 0x2b000590\nflags\t\t: lm vmx\n\n"
    for cpu in range(2)
)
QUERIES = {"ethtool-i-eth7": "driver: igb\nversion: 6.8\nfirmware-version: 3.30, 0x8000079c\n",
           "memory-modules": "16 x 65536 MiB at 4800 MT/s\n"}  # fmt: skip


def plant(root: Path) -> Path:
    """A small host on which every fact can be read but those of a GPU's driver."""
    files = {
        "proc/cpuinfo": CPUINFO,
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz-6.8 root=UUID=11-22 ro intel_iommu=on iommu=pt\n",
        "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
        "proc/sys/kernel/arch": "x86_64\n",
        "etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\n',
        "sys/class/dmi/id/bios_vendor": "Acme\n",
        "sys/class/dmi/id/bios_version": "2.3.5\n",
        "sys/class/dmi/id/bios_date": "07/14/2025\n",
        "sys/class/dmi/id/product_name": "PowerBox 9680\n",
        "sys/devices/system/cpu/cpu0/microcode/version": "0x2b000590\n",
        "sys/devices/system/cpu/cpu0/cpuidle/state0/name": "POLL\n",
        "sys/devices/system/cpu/cpu0/cpuidle/state1/name": "C1\n",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
        "sys/devices/system/cpu/smt/active": "1\n",
        "sys/devices/system/cpu/smt/control": "on\n",
        "sys/firmware/efi/fw_platform_size": "64\n",
        "sys/kernel/security/lockdown": "none [integrity] confidentiality\n",
        f"sys/devices/pci0000:00/{DRIVE}/nvme/nvme0/firmware_rev": "GDC5602Q\n",
        f"sys/devices/pci0000:00/{DRIVE}/nvme/nvme0/model": "ACME PM1743\n",
        f"sys/devices/pci0000:00/{NIC}/infiniband/mlx5_0/fw_ver": "28.39.1002\n",
        f"sys/devices/pci0000:00/{PLAIN}/net/eth7/mtu": "1500\n",
    }
    ids = {DRIVE: ("0x010802", "0x144d", "0xa824"), NIC: ("0x020700", "0x15b3", "0x1021"),
           PLAIN: ("0x020000", "0x8086", "0x1521"), GPU: ("0x030200", "0x10de", "0x2335")}  # fmt: skip
    for address, (class_code, vendor, device) in ids.items():
        place = f"sys/devices/pci0000:00/{address}"
        files |= {f"{place}/class": class_code, f"{place}/vendor": vendor, f"{place}/device": device,
                  f"{place}/subsystem_vendor": "0x1028", f"{place}/subsystem_device": "0x0001",
                  f"{place}/numa_node": "0", f"{place}/sriov_totalvfs": "16",
                  f"{place}/resource": "0x0000020000000000 0x00000203ffffffff 0x000000000014220c\n"}  # fmt: skip
    for cpu in range(2):
        place = f"sys/devices/system/cpu/cpu{cpu}/topology"
        files |= {f"{place}/physical_package_id": "0", f"{place}/core_id": "0", f"{place}/thread_siblings_list": "0-1"}
    files |= {"sys/devices/system/cpu/online": "0-1", "sys/devices/system/cpu/present": "0-1",
              "sys/devices/system/node/online": "0", "sys/devices/system/node/node0/cpulist": "0-1"}  # fmt: skip
    files |= {f".hosttune/commands/{name}": text for name, text in QUERIES.items()}
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    links = {f"sys/bus/pci/devices/{one}": f"../../../devices/pci0000:00/{one}" for one in ids}
    links |= {"sys/class/nvme/nvme0": f"../../devices/pci0000:00/{DRIVE}/nvme/nvme0",
              "sys/class/infiniband/mlx5_0": f"../../devices/pci0000:00/{NIC}/infiniband/mlx5_0",
              "sys/class/net/eth7": f"../../devices/pci0000:00/{PLAIN}/net/eth7",
              f"sys/devices/pci0000:00/{PLAIN}/net/eth7/device": f"../../../{PLAIN}"}  # fmt: skip
    for path, target in links.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)
    return root


def facts(root: Path) -> dict[str, Fact]:
    """The facts by name, those of NICs by name and address."""
    found = configuration_of(gather(open_root(str(root))))
    return {f"{one.name} {one.subjects[0]}" if one.name.startswith("nic-") else one.name: one for one in found}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("host"))


EXPECTED = {
    "bios-vendor": "Acme", "bios-version": "2.3.5", "bios-date": "07/14/2025", "boot-mode": "EFI",
    "cpu-model": "Xeon 8480", "microcode": "0x2b000590", "sockets": "1", "numa-nodes-per-socket": "1", "smt": "on",
    "boost": "on", "c-states": "POLL C1", "memory-modules": "16 x 65536 MiB at 4800 MT/s", "lockdown": "integrity",
    "os": "Ubuntu 24.04.1 LTS", "kernel": "6.8.0-45-generic",
    "kernel-arguments": "intel_iommu=on iommu=pt ro root=*", "gpu-bar": "16384 MiB", "drive-firmware": "GDC5602Q",
    f"nic-firmware {NIC}": "28.39.1002", f"nic-firmware {PLAIN}": "3.30, 0x8000079c",
    f"nic-virtual-functions {NIC}": "16",
    "devices": "1 x 10de:2335, 1 x 144d:a824, 1 x 15b3:1021, 1 x 8086:1521",
}  # fmt: skip


def test_each_fact_is_read_from_its_own_source(whole: Path) -> None:
    found = facts(whole)
    assert {name: found[name].value for name in EXPECTED} == EXPECTED
    assert found["drive-firmware"].kind == "144d:a824 1028:0001"
    assert found["drive-firmware"].subjects == (DRIVE,)
    assert found["bios-date"].source == "/sys/class/dmi/id/bios_date"
    assert found["gpu-driver"].value is None  # no driver is read here: unknown
    assert found["vbios"].value is None


LOST = {
    "bios-vendor": "sys/class/dmi/id/bios_vendor", "bios-version": "sys/class/dmi/id/bios_version",
    "bios-date": "sys/class/dmi/id/bios_date", "boot-mode": "sys/firmware/efi", "microcode": "proc/cpuinfo",
    "c-states": "sys/devices/system/cpu/cpu0/cpuidle/state0", "boost": "sys/devices/system/cpu/intel_pstate",
    "smt": "sys/devices/system/cpu/smt", "memory-modules": ".hosttune/commands/memory-modules",
    "lockdown": "sys/kernel/security", "os": "etc/os-release", "kernel": "proc/sys/kernel/osrelease",
    "kernel-arguments": "proc/cmdline", "drive-firmware": "sys/class/nvme/nvme0/firmware_rev",
    f"nic-firmware {NIC}": "sys/class/infiniband/mlx5_0/fw_ver",
    f"nic-firmware {PLAIN}": ".hosttune/commands/ethtool-i-eth7",
    "devices": f"sys/devices/pci0000:00/{GPU}/device",
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_a_fact_whose_source_is_lost_is_unknown(name: str, whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "host"
    shutil.copytree(whole, root, symlinks=True)
    lost = (root / LOST[name]).resolve() if name != "boot-mode" else root / LOST[name]
    shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    found = facts(root)
    assert found[name].value is None
    assert found[name].source


def edited(root: Path, path: str, change: Callable[[str], str]) -> None:
    (root / path).write_text(change((root / path).read_text()))


@pytest.mark.parametrize(
    ("path", "change", "name", "value"),
    [
        ("proc/cpuinfo", lambda text: text.replace("0x2b000590", "0x2b000603", 1), "microcode",
         "0x2b000590 and 0x2b000603"),
        ("proc/cpuinfo", lambda text: text.replace("microcode\t: 0x2b000590\n", "", 1), "microcode", None),
        ("sys/devices/system/cpu/cpu0/microcode/version", lambda text: "0x1\n", "microcode", None),
        ("sys/class/dmi/id/bios_version", lambda text: "\x1b[31m2.3.5\n", "bios-version", None),
        ("sys/class/dmi/id/bios_version", lambda text: "9" * 5000, "bios-version", None),
        ("sys/class/dmi/id/bios_version", lambda text: " \n", "bios-version", None),
        ("sys/devices/system/cpu/intel_pstate/no_turbo", lambda text: "2\n", "boost", None),
        ("sys/kernel/security/lockdown", lambda text: "none integrity\n", "lockdown", None),
        (".hosttune/commands/memory-modules", lambda text: "many", "memory-modules", None),
        (".hosttune/commands/ethtool-i-eth7", lambda text: text + text, f"nic-firmware {PLAIN}", None),
        (".hosttune/commands/ethtool-i-eth7", lambda text: "driver: igb\nfirmware-version: \n",
         f"nic-firmware {PLAIN}", "none, says its driver"),
        (".hosttune/commands/ethtool-i-eth7", lambda text: "driver: x\nfirmware-version: 28.39.1002 (MT_0838)\n",
         f"nic-firmware {PLAIN}", "28.39.1002"),
    ],
)  # fmt: skip
def test_damaged_and_different_sources(
    path: str, change: Callable[[str], str], name: str, value: str | None, whole: Path, tmp_path: Path
) -> None:
    root = tmp_path / "host"
    shutil.copytree(whole, root, symlinks=True)
    edited(root, path, change)
    assert facts(root)[name].value == value


def test_a_host_document_alone_has_every_fact_some_unknown() -> None:
    found = configuration_of(Evidence(host=Host(kernel="6.8.0", arch="x86_64")))
    of_host = {name for name, kind in FACT_KINDS.items() if kind.of == "host"} - {"fabric-manager"}
    assert {one.name for one in found} == of_host
    assert {one.name for one in found if one.value is not None} == {"kernel"}


def test_a_validation_carries_the_facts_and_older_ones_are_read(whole: Path) -> None:
    made = validate(open_root(str(whole)), ValidationRequest(keep=False)).validation
    assert made.configuration is not None
    assert {one.name for one in made.configuration} >= {"kernel", "drive-firmware", "vbios"}
    old = msgspec.json.decode(made.to_json())
    del old["configuration"]
    assert type(made).from_json(msgspec.json.encode(old)).configuration is None


def test_a_capture_keeps_what_the_facts_are_read_from(whole: Path) -> None:
    recording = Recording(open_root(str(whole)))
    gather(recording)
    assert recording.answers.keys() >= QUERIES.keys()
    kept = {path.rpartition("/")[2] for path in recording.files}
    assert {"bios_date", "no_turbo", "lockdown", "firmware_rev", "fw_ver", "version", "name"} <= kept


def test_the_kernel_names_the_driver_of_a_live_interface() -> None:
    """The link `driver` of sysfs is the oracle; the request needs no privilege."""
    net = Path("/sys/class/net")
    known = {one.name: os.readlink(one / "device/driver").rpartition("/")[2]
             for one in (net.iterdir() if net.is_dir() else ()) if (one / "device/driver").is_symlink()}  # fmt: skip
    if not known:
        pytest.skip("no interface of a device here")
    reader = Reader(LiveMachine())
    assert {name: read_driver_info(reader, name).get("driver") for name in known} == known
    assert read_driver_info(reader, "no-such-if") == {}
    assert read_driver_info(reader, "a/b") == read_driver_info(reader, "x" * 16) == {}
    assert reader.problems == []


# --- kernel arguments --------------------------------------------------------------------------------------------


def test_what_is_host_specific_in_kernel_arguments_is_left_out() -> None:
    one = "BOOT_IMAGE=/a root=UUID=1 crashkernel=512M ip=10.0.0.1::eth0 iommu=pt nosmt quiet"
    other = "quiet nosmt iommu=pt ip=10.0.0.2::eth0 crashkernel=1G root=UUID=2 initrd=/b"
    alike = "crashkernel=* iommu=pt ip=* nosmt quiet root=*"
    assert alike_arguments(one.split()) == alike_arguments(other.split()) == alike
    assert alike_arguments(["iommu=pt"]) != alike_arguments(["iommu=off"])
    assert alike_arguments([]) == "(none)"


def test_pages_stay_with_their_size_and_equal_names_in_their_order() -> None:
    first = ["hugepagesz=1G", "hugepages=16", "hugepagesz=2M", "hugepages=512"]
    swapped = ["hugepagesz=1G", "hugepages=512", "hugepagesz=2M", "hugepages=16"]
    assert alike_arguments(first) != alike_arguments(swapped)
    assert alike_arguments(["console=tty0", "console=ttyS0"]) != alike_arguments(["console=ttyS0", "console=tty0"])
    assert alike_arguments(["b", "--", "z", "a"]) == "b -- z a"
    assert argument_difference("a b=1 c", "a b=2 c d") == (("b=1",), ("b=2", "d"))


def test_a_compared_form_is_its_own_form() -> None:
    for text in ("a b=1 root=*", "hugepagesz=1G hugepages=16 hugepagesz=2M hugepages=3 z", "(none)", "b -- z a"):
        normal = normal_value("kernel-arguments", text)
        assert normal_value("kernel-arguments", normal) == normal
    assert normal_value("kernel-arguments", "quiet root=UUID=5 iommu=pt") == "iommu=pt quiet root=*"


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("gpu-driver", "570.86.15", "570.124.06"), ("fabric-manager", "570.86", "570.86.1"),
        ("microcode", "0x2b000590", "0x2b000603"), ("bios-date", "12/31/2024", "01/01/2025"),
        ("nic-firmware", "28.39.1002", "28.40.1000"),
    ],
)  # fmt: skip
def test_order_where_it_is_defined(name: str, low: str, high: str) -> None:
    below, above = sort_key(name, low), sort_key(name, high)
    assert below is not None and above is not None and below < above  # noqa: PT018


@pytest.mark.parametrize(
    ("name", "value"),
    [("vbios", "96.00.A5.00.01"), ("kernel", "6.8.0"), ("gpu-driver", "570.x"), ("bios-date", "2025-01-01"),
     ("microcode", "0x1 and 0x2"), ("nic-firmware", "3.30, 0x8000079c"), ("no-such-fact", "1")],
)  # fmt: skip
def test_no_order_where_none_is_defined(name: str, value: str) -> None:
    assert sort_key(name, value) is None


# --- SMBIOS: structures written by hand from DSP0134, 6.1.2 and 7.18 ----------------------------------------------


def module(size: int, speed: int, *, extended: int = 0, length: int = 0x28) -> bytes:
    area = bytearray(length)
    area[0:4] = struct.pack("<BBH", 17, length, 7)
    area[0x0C:0x0E] = struct.pack("<H", size)
    area[0x1C:0x20] = struct.pack("<I", extended)
    area[0x20:0x22] = struct.pack("<H", speed)
    return bytes(area) + b"DIMM A1\0SERIAL\0\0"


END = bytes((127, 4, 0, 0, 0, 0))
OTHER = bytes((0, 4, 1, 0)) + b"\0\0"


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (OTHER + module(0x4000, 4800) * 2 + module(0, 0) + END, "2 x 16384 MiB at 4800 MT/s"),
        (module(0x7FFF, 5600, extended=65536) * 3 + module(0x7FFF, 4400, extended=65536) + END,
         "3 x 65536 MiB at 5600 MT/s, 1 x 65536 MiB at 4400 MT/s"),
        (module(0x4000, 0) + END, "1 x 16384 MiB at unknown speed"),
        (module(0xFFFF, 4800) + END, None),  # unknown size
        (module(0x4000, 4800), None),  # no end: cut
        ((module(0x4000, 4800) + END)[:30], None),
        (OTHER + END, None),
        (b"", None),
        (b"\xff" * 64, None),
    ],
)  # fmt: skip
def test_memory_modules_of_a_table(table: bytes, told: str | None) -> None:
    assert modules_of(table) == told
