"""Faults of foreign domain XML against what the host says: BARs and address width, other guests, the host's own use."""

from __future__ import annotations

from typing import Any

import pytest
from domain_faults import faults, findings, host_of
from domain_shapes import GIB, ONE_GPU, changed
from xmledits import Edit, edited

from hosttune.model.host import Bar, CpuModel, Host, Nic, Nvme, PciDevice, RunningGuest, VcpuPin, Virtualization
from hosttune.model.lint import LintFinding


def with_bars(bits: int | None = 46, bar_bytes: int = 2048 * GIB) -> Host:
    """The host with that width, and a BAR of that size on every device, beside two that go below 4 GiB."""
    bars = (
        Bar(index=0, size_bytes=16 << 20, prefetchable=True, is_64bit=False),
        Bar(index=2, size_bytes=bar_bytes, prefetchable=True, is_64bit=True),
        Bar(index=4, size_bytes=32 << 20, prefetchable=False, is_64bit=True),
    )
    pci = tuple(changed(device, bars=bars) for device in host_of().pci)
    return host_of(pci=pci, cpu_model=CpuModel(vendor="GenuineIntel", physical_address_bits=bits))


HOLE, WIDTH = "devices/controller/pcihole64", "cpu/maxphysaddr"
SMALL_HOLE = (HOLE, "67108864")
EMULATE_40 = (WIDTH, {"mode": "emulate", "bits": "40"})
CUSTOM = ("cpu", {"mode": "custom"})


@pytest.mark.parametrize(
    ("host", "edits", "level", "text", "where"),
    [
        (
            with_bars(),
            [SMALL_HOLE],
            "info",
            "pcihole64 is 64 GiB, but the 64-bit BARs of the passed devices are 2 TiB",
            "/domain/devices/controller[@index='0']/pcihole64",
        ),
        (
            with_bars(bar_bytes=1024 * GIB),
            [EMULATE_40, CUSTOM],
            "error",
            "40 address bits (maxphysaddr bits='40') reach 1 TiB, but 64 GiB of memory and BARs of 1 TiB above it need "
            "41 bits",
            "/domain/cpu/maxphysaddr",
        ),
        (
            with_bars(bar_bytes=1024 * GIB),
            [EMULATE_40],
            "warn",
            "with host-passthrough QEMU takes the host's width instead",
            "/domain/cpu/maxphysaddr",
        ),
        (
            with_bars(bits=39, bar_bytes=256 * GIB),
            [],
            "error",
            "39 address bits (this host's, /proc/cpuinfo) reach 512 GiB, but 64 GiB of memory and a pcihole64 of "
            "512 GiB above it need 40 bits",
            "/domain/cpu/maxphysaddr",
        ),
        (
            with_bars(bar_bytes=256 * GIB),
            [(WIDTH, {"limit": "39"})],
            "error",
            "39 address bits (maxphysaddr limit='39')",
            "/domain/cpu/maxphysaddr",
        ),
    ],
)
def test_windows_too_small_for_the_bars(
    host: Host, edits: list[tuple[str, Edit]], level: str, text: str, where: str
) -> None:
    found = [finding for finding in faults(ONE_GPU, *edits, host=host) if text in finding.text]
    assert [(finding.level, finding.where) for finding in found] == [(level, f"vm.xml: {where}")]


def test_windows_that_fit_exactly_are_right() -> None:
    """The hole is 512 GiB; of 64 GiB of memory 62 are above 4 GiB, which leaves 958 GiB of 40 bits."""
    host = with_bars(bar_bytes=512 * GIB)
    less = ("memory", "33554432")  # the cells say otherwise
    fits, exceeds = ((HOLE, str(gib << 20)) for gib in (958, 959))
    for edits, levels in (((), []), ((fits,), []), ((exceeds,), ["error"]), ((exceeds, less), ["error"])):
        found = [f for f in faults(ONE_GPU, EMULATE_40, CUSTOM, *edits, host=host) if f.rule == "address-width"]
        assert [f.level for f in found] == levels


def test_windows_of_unknown_needs_are_no_fault() -> None:
    unknown = with_bars(bits=None, bar_bytes=256 * GIB)
    assert faults(ONE_GPU, host=unknown) == faults(ONE_GPU)
    assert faults(ONE_GPU, SMALL_HOLE) == faults(ONE_GPU)
    edits = CUSTOM, (WIDTH, None)
    assert faults(ONE_GPU, *edits, host=with_bars(bits=36, bar_bytes=1)) == faults(ONE_GPU, *edits)


def pages_of(*, host: bool | None) -> Host:
    """A host with BARs of 512 GiB, whose CPU has 1 GiB pages, has none, or of which that is unknown."""
    flags = None if host is None else ("vmx", "pdpe1gb") if host else ("vmx",)
    model = CpuModel(vendor="GenuineIntel", physical_address_bits=52, flags=flags)
    stack = Virtualization(libvirt_version="10.0.0", qemu_version="8.2.0")
    return changed(with_bars(bar_bytes=512 * GIB), cpu_model=model, virtualization=stack)


def feature(policy: str) -> tuple[str, str]:
    return "cpu", f"<feature policy='{policy}' name='pdpe1gb'/>"


HOST_MODEL = ("cpu", {"mode": "host-model"})
WITHOUT = "40 address bits (the most that the firmware uses) reach only 1 TiB"
UNSURE = "whether the CPU has 1 GiB pages is unknown"
ASKED = (
    ".",
    "<commandline xmlns='http://libvirt.org/schemas/domain/qemu/1.0'><arg value='-fw_cfg'/>"
    "<arg value='name=opt/ovmf/X-PciMmio64Mb,string=1048576'/></commandline>",
)


@pytest.mark.parametrize(
    ("host", "edits", "expected"),
    [
        (True, [], None),
        (False, [], ("warn", WITHOUT)),
        (None, [], ("info", UNSURE)),
        (True, [feature("disable")], ("warn", WITHOUT)),
        (True, [feature("forbid")], ("warn", WITHOUT)),
        (None, [feature("disable")], ("warn", WITHOUT)),
        (True, [feature("optional")], None),
        (True, [feature("require")], None),
        (False, [feature("force")], ("warn", WITHOUT)),
        (True, [HOST_MODEL], ("info", UNSURE)),
        (True, [CUSTOM], ("info", UNSURE)),
        (True, [CUSTOM, ASKED], ("info", "1 GiB pages (pdpe1gb) is unknown; without: BARs of 512.00 GiB need")),
        (True, [ASKED], None),
        (False, [HOST_MODEL], ("warn", WITHOUT)),
        (True, [CUSTOM, feature("require")], None),
        (True, [CUSTOM, feature("force")], None),
        (True, [CUSTOM, feature("disable")], ("warn", WITHOUT)),
    ],
)
def test_the_firmware_uses_fewer_bits_if_the_guests_cpu_has_no_1_gib_pages(
    host: bool | None, edits: list[tuple[str, Edit]], expected: tuple[str, str] | None
) -> None:
    found = [f for f in findings(ONE_GPU, *edits, host=pages_of(host=host)) if f.rule == "firmware-window"]
    assert [f.level for f in found] == ([expected[0]] if expected else [])
    assert expected is None or expected[1] in found[0].text
    assert [f.judged for f in found] == ([expected[0] == "warn"] if expected else [])


def holder(**fields: object) -> Host:
    """The host with another guest, running on node 1 with devices of its own unless said."""
    values = {"state": "running", "vcpu_pins": (VcpuPin(vcpu=0, cpus="600"),), "devices": ("0000:c1:00.0",), **fields}
    return host_of(guests=(changed(RunningGuest(name="other"), **values),))


@pytest.mark.parametrize(
    ("fields", "level", "text", "where"),
    [
        (
            {"devices": ("0000:41:00.0",)},
            "error",
            "0000:41:00.0 belongs to guest other (running)",
            "/domain/devices/hostdev[0000:41:00.0]",
        ),
        (
            {"devices": ("0000:41:00.0",), "state": "shut off"},
            "warn",
            "0000:41:00.0 belongs to guest other (shut off): the two cannot run at the same time",
            "/domain/devices/hostdev[0000:41:00.0]",
        ),
        (
            {"devices": ("0000:41:00.0",), "state": "crashed"},
            "warn",
            "0000:41:00.0 belongs to guest other (crashed)",
            "/domain/devices/hostdev[0000:41:00.0]",
        ),
        (
            {"vcpu_pins": (VcpuPin(vcpu=0, cpus="4"),), "emulator_cpus": "4"},
            "warn",
            "vCPUs on CPU 4, where guest other has its vCPUs",
            "/domain/cputune/vcpupin",
        ),
        (
            {"devices": ("0000:41:00.0",), "state": None},
            "error",
            "0000:41:00.0 belongs to guest other (state unknown)",
            "/domain/devices/hostdev[0000:41:00.0]",
        ),
        (
            {"vcpu_pins": (VcpuPin(vcpu=0, cpus="4"), VcpuPin(vcpu=1, cpus=(5,)))},
            "warn",
            "vCPUs on CPUs 4-5, where guest other has its vCPUs",
            "/domain/cputune/vcpupin",
        ),
        (
            {"emulator_cpus": "6"},
            "warn",
            "vCPUs on CPU 6, where guest other has its emulator and I/O threads",
            "/domain/cputune/vcpupin",
        ),
        (
            {"iothread_cpus": ("7",)},
            "warn",
            "vCPUs on CPU 7, where guest other has its emulator and I/O threads",
            "/domain/cputune/vcpupin",
        ),
        (
            {"vcpu_pins": (VcpuPin(vcpu=0, cpus="1"),)},
            "warn",
            "the emulator's and I/O threads on CPU 1, where guest other has its vCPUs",
            "/domain/cputune/emulatorpin",
        ),
    ],
)
def test_what_another_guest_holds(fields: dict[str, object], level: str, text: str, where: str) -> None:
    (finding,) = faults(ONE_GPU, host=holder(**fields))
    assert (finding.level, finding.where) == (level, f"vm.xml: {where}")
    assert text in finding.text


def test_a_core_shared_with_another_guest() -> None:
    (*pins, last) = ONE_GPU.vcpu_pins
    guest = changed(ONE_GPU, vcpu_pins=(*pins, changed(last, cpus="40")))
    found = set(faults(guest, host=holder(vcpu_pins=(VcpuPin(vcpu=0, cpus="41"),)))) - set(faults(guest))
    assert [(f.level, f.where, f.text) for f in found] == [
        (
            "warn",
            "vm.xml: /domain/cputune/vcpupin",
            "vCPUs on CPU 40, siblings of CPUs of guest other's vCPUs: they share those cores",
        )
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"emulator_cpus": "0-1", "iothread_cpus": ("0-1",)},  # housekeeping CPUs are for everybody's
        {"vcpu_pins": (VcpuPin(vcpu=0, cpus="0-199,512-711"),)},  # floats: holds nothing
        {"vcpu_pins": None, "devices": ()},
        {"name": "one-gpu", "devices": ("0000:41:00.0",)},  # this guest itself
    ],
)
def test_another_guest_that_is_in_nobodys_way(fields: dict[str, object]) -> None:
    assert faults(ONE_GPU, host=holder(**fields)) == ()


def test_the_same_uuid_is_the_same_guest() -> None:
    guest = changed(ONE_GPU, uuid="53764d0e-85a0-42b4-af5c-2046b460b1dc")
    assert faults(guest, host=holder(uuid=guest.uuid, devices=("0000:41:00.0",))) == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"nvme": (Nvme(address="0000:41:00.0", in_use="mounted on /"),)},
        {"nics": (Nic(address="0000:41:00.0", in_use="mounted on /"), Nic(address="0000:43:00.0"))},
    ],
)
def test_a_device_that_the_host_uses(fields: dict[str, object]) -> None:
    (finding,) = faults(ONE_GPU, host=host_of(**fields))
    assert (finding.level, finding.where) == ("error", "vm.xml: /domain/devices/hostdev[0000:41:00.0]")
    assert finding.text == "0000:41:00.0 is in use by the host: mounted on /"


def test_a_device_whose_use_is_unknown_is_not_judged() -> None:
    unread = host_of(nics=(Nic(address="0000:41:00.0", use_unknown="the routes were not read"),))
    (finding,) = (one for one in findings(ONE_GPU, host=unread) if one.rule == "device-in-use")
    assert (finding.level, finding.judged) == ("info", False)
    assert finding.text == "cannot be judged: whether the host uses 0000:41:00.0: the routes were not read"


# --- drives that are disks of the guest --------------------------------------------------------------------------

ROOT_DRIVE, DATA_DRIVE = "0000:01:00.0", "0000:02:00.0"
NVME_DISK = (
    "<disk type='nvme' device='disk'><source type='pci' managed='yes' namespace='1'><address domain='0x0000' bus='0x01'"
    " slot='0x00' function='0x0'/></source><target dev='vda' bus='virtio'/></disk>"
)
DRIVES = (
    Nvme(
        address=ROOT_DRIVE,
        namespaces=("nvme0n1", "nvme0n2"),
        in_use="nvme0n1p1 mounted on /boot/efi; nvme0n1p2 mounted on /",
    ),
    Nvme(address=DATA_DRIVE, namespaces=("nvme1n1",)),
    Nvme(address="0000:03:00.0", namespaces=("nvme10n1",), use_unknown="the mounts were not read"),
)


def with_disk(disk: str, **fields: object) -> tuple[LintFinding, ...]:
    function = PciDevice(address=ROOT_DRIVE, class_code="010802", iommu_group=90)
    usb = changed(function, address="0000:01:00.1", class_code="0c0330", driver="xhci_hcd")
    pci = (*host_of().pci, function, usb)
    return findings(ONE_GPU, ("devices", disk), host=host_of(pci=pci, nvme=DRIVES, **fields))


def about(found: tuple[LintFinding, ...], rule: str) -> list[tuple[str, str, str]]:
    return [(one.level, one.text, one.path) for one in found if one.rule == rule]


def test_an_nvme_disk_takes_the_drive_as_a_passed_device_does() -> None:
    other = RunningGuest(name="other", state="running", vcpu_pins=(), devices=(ROOT_DRIVE,))
    found, path = with_disk(NVME_DISK, guests=(other,)), "/domain/devices/disk[@type='nvme']"
    assert about(found, "device-in-use") == [
        ("error", f"{ROOT_DRIVE} is in use by the host: {DRIVES[0].in_use}", path),
    ]
    assert about(found, "device-shared") == [("error", f"{ROOT_DRIVE} belongs to guest other (running)", path)]
    assert any("0000:01:00.0 cannot be passed: 0000:01:00.1, which driver xhci_hcd holds" in one.text for one in found)
    assert about(with_disk(edited(NVME_DISK, "source/address", {"bus": "0x77"})), "device-missing") == [
        ("error", "0000:77:00.0 does not exist on this host (/sys/bus/pci/devices)", path)
    ]


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("nvme0n1", "nvme0n1p1 mounted on /boot/efi; nvme0n1p2 mounted on /"),
        ("nvme0n1p2", "nvme0n1p2 mounted on /"),
        ("nvme0n1p3", None),  # a partition that the host does not use
        ("nvme0n2", None),  # another namespace
        ("nvme1n1", None),
    ],
)
def test_a_block_disk_that_the_host_uses(name: str, use: str | None) -> None:
    disk = f"<disk type='block' device='disk'><source dev='/dev/{name}'/><target dev='vda' bus='virtio'/></disk>"
    expected = [("error", f"/dev/{name} is in use by the host: {use}", "/domain/devices/disk[@type='block']")]
    assert about(with_disk(disk), "device-in-use") == (expected if use else [])


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/dev/nvme10n1", "the mounts were not read"),
        ("/dev/disk/by-id/nvme-x", "only of NVMe drives this is known"),
        ("/dev/vg/root", "only of NVMe drives this is known"),
    ],
)
def test_a_block_disk_of_which_it_is_unknown(path: str, why: str) -> None:
    disk = f"<disk type='block' device='disk'><source dev='{path}'/><target dev='vda' bus='virtio'/></disk>"
    (found,) = about(with_disk(disk), "device-in-use")
    assert found[:2] == ("info", f"cannot be judged: whether the host uses {path}: {why}")


def test_a_whole_namespace_that_is_in_use_is_so_with_its_partitions() -> None:
    drive = Nvme(address=DATA_DRIVE, namespaces=("nvme1n1",), in_use="nvme1n1 held by md0")
    assert drive.use_of("nvme1n1p1") == "nvme1n1 held by md0"
    assert Nvme(address=DATA_DRIVE, namespaces=("nvme1n1",), in_use="mounted on /").use_of("nvme1n1") == "mounted on /"


MATE, VIRTUAL = "0000:41:00.1", "0000:41:10.0"
ELSEWHERE = "use another slot or port, or a virtual function"
LEFT = "0000:41:00.1 is left in the group of 0000:41:00.0"
SHARED = "0000:41:00.0 and 0000:41:00.1 of guest other are in one group"


@pytest.mark.parametrize(
    ("mate", "fields", "level", "text", "may_go"),
    [
        ({"driver": "xhci_hcd"}, {}, "error", "which driver xhci_hcd holds", True),
        ({"driver": "nvidia-gpu"}, {}, "error", "which driver nvidia-gpu holds", True),
        ({"driver": "nouveau", "boot_display": True}, {}, "error", "(the host boots on this display)", False),
        ({"driver": "megaraid_sas", "class_code": "010400"}, {}, "error", "(which of the host's disks are", False),
        (
            {"driver": "ice", "virtfns": (VIRTUAL,)},
            {"nics": (Nic(address=VIRTUAL, in_use="used"),)},
            "error",
            "(used)",
            False,
        ),
        ({"driver": "ice"}, {"nics": (Nic(address=MATE, use_unknown="no routes"),)}, "error", "it: no routes)", False),
        ({"driver": "ice"}, {"guests": "shut off"}, "error", "(guest other has it)", False),
        ({"driver": "vfio-pci"}, {"guests": "running"}, "error", SHARED, False),
        ({"driver": "vfio-pci"}, {"guests": "shut off"}, "warn", SHARED, False),
        ({"driver": "vfio-pci"}, {}, "info", LEFT, True),
        ({"driver": "mlx5_vfio_pci"}, {}, "info", LEFT, True),
        ({"driver": "pci-stub"}, {}, "info", LEFT, True),
        ({"unbound": True}, {}, "info", LEFT, True),
        ({}, {}, "info", "cannot be judged: which driver holds 0000:41:00.1", True),
    ],
)
def test_a_function_that_is_left_of_a_group(
    mate: dict[str, Any], fields: dict[str, Any], level: str, text: str, may_go: bool
) -> None:
    if "guests" in fields:
        fields = {"guests": (RunningGuest(name="other", state=fields["guests"], devices=(MATE,)),)}
    left = PciDevice(address=MATE, iommu_group=0, **{"class_code": "0c0330", **mate})
    found = findings(ONE_GPU, host=host_of(pci=(*host_of().pci, left), **fields))
    (one,) = [one for one in found if one.rule == "iommu-group" and MATE in one.text]
    assert (one.level, text in one.text) == (level, True), one.text
    assert (one.remedy != ELSEWHERE) is may_go
