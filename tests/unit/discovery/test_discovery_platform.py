"""What the machine is: kernel, architecture, hypervisor, IOMMU, modules, live settings, digest; on odd machines too."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from hosttune.discovery import discover
from hosttune.discovery.platform import read_digest, read_identity, read_iommu, read_platform
from hosttune.discovery.settings import read_settings
from hosttune.errors import BadInput, Unreadable
from hosttune.machine import manifest
from hosttune.machine.capture import Archive, Capture
from hosttune.machine.opening import open_root
from hosttune.machine.reader import Reader
from hosttune.model.commandline import split
from hosttune.model.host import Iommu, Module, NumaNode, PciDevice

X86 = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nflags\t\t: fpu lm{flag}\n\nprocessor\t: 1\n"


def reader_of(files: dict[str, str], dirs: tuple[str, ...] = ()) -> Reader:
    return Reader(Archive({path: text.encode() for path, text in files.items()}, {}, "test", dirs))


# --- identity ------------------------------------------------------------------------------------------------


def test_identity_is_read_from_proc() -> None:
    found = read_identity(
        reader_of(
            {
                "/proc/sys/kernel/hostname": "gpu1\n",
                "/proc/sys/kernel/random/boot_id": "9dd7f1c3-0000-4000-8000-000000000000\n",
                "/proc/sys/kernel/osrelease": "6.1.0-18-amd64\n",
                "/proc/sys/kernel/arch": "x86_64\n",
                "/proc/cmdline": "BOOT_IMAGE=/vmlinuz iommu=pt\n",
            }
        )
    )
    assert (found.hostname, found.kernel, found.arch) == ("gpu1", "6.1.0-18-amd64", "x86_64")
    assert found.boot_id == "9dd7f1c3-0000-4000-8000-000000000000"
    assert found.kernel_args == ("BOOT_IMAGE=/vmlinuz", "iommu=pt")


def test_what_a_capture_does_not_hold_is_unknown() -> None:
    found = read_identity(reader_of({}))
    assert (found.hostname, found.boot_id, found.kernel, found.kernel_args, found.arch) == (None,) * 5


def test_older_captures_tell_the_kernel_in_proc_version() -> None:
    version = "Linux version 4.14.0-49.el7a.ppc64le (mockbuild@x) (gcc) #1 SMP\n"
    found = read_identity(reader_of({"/proc/version": version, "/etc/hostname": "power\n"}))
    assert (found.kernel, found.arch, found.hostname) == ("4.14.0-49.el7a.ppc64le", "ppc64le", "power")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("  quiet   iommu=pt\n", ("quiet", "iommu=pt")),
        ('dyndbg="file a +p; file b +p" ro', ('dyndbg="file a +p; file b +p"', "ro")),
        ('"a b=c d" e', ('"a b=c d"', "e")),
        ('open="never closed', ('open="never closed',)),
        ('a="" b', ('a=""', "b")),
        ("init=/bin/sh -- -c x", ("init=/bin/sh", "--", "-c", "x")),
    ],
)
def test_kernel_arguments_are_split_as_the_kernel_does(text: str, expected: tuple[str, ...]) -> None:
    assert split(text) == expected


@pytest.mark.parametrize(
    ("cpuinfo", "arch"),
    [
        (X86.format(flag=""), "x86_64"),
        ("vendor_id : AuthenticAMD\ncpu family : 25\n", "x86_64"),
        ("vendor_id : GenuineIntel\ncpu family : 6\nflags : fpu pae\n", "i686"),
        ("processor : 0\nCPU implementer : 0x41\nCPU architecture: 8\n", "aarch64"),
        ("processor : 0\nCPU implementer : 0x41\nCPU architecture: 7\n", "arm"),
        ("processor : 0\nvendor : GenuineIntel\narch : IA-64\n", "ia64"),
        ("processor : 0\nhart : 1\nisa : rv64imafdc\n", "riscv64"),
        ("vendor_id       : IBM/S390\n# processors    : 4\n", "s390x"),
        ("processor : 0\ncpu : POWER7 (architected)\n", None),  # ppc64 and ppc64le look the same
        ("", None),
    ],
)
def test_architecture_from_the_shape_of_cpuinfo(cpuinfo: str, arch: str | None) -> None:
    assert read_identity(reader_of({"/proc/cpuinfo": cpuinfo})).arch == arch


# --- hypervisor ----------------------------------------------------------------------------------------------

DMI = "/sys/class/dmi/id/"
HYPERVISORS: dict[str, tuple[dict[str, str], bool | None, str | None]] = {
    "bare metal": ({"/proc/cpuinfo": X86.format(flag="")}, False, None),
    "flag alone": ({"/proc/cpuinfo": X86.format(flag=" hypervisor")}, True, "unidentified"),
    "qemu": ({"/proc/cpuinfo": X86.format(flag=" hypervisor"), f"{DMI}sys_vendor": "QEMU\n"}, True, "qemu"),
    "hyper-v": (
        {
            "/proc/cpuinfo": X86.format(flag=" hypervisor"),
            f"{DMI}sys_vendor": "Microsoft Corporation\n",
            f"{DMI}product_name": "Virtual Machine\n",
        },
        True,
        "microsoft",
    ),
    "a cloud's bare metal": (
        {
            "/proc/cpuinfo": X86.format(flag=""),
            f"{DMI}sys_vendor": "Amazon EC2\n",
            f"{DMI}product_name": "p5.48xlarge\n",
        },
        False,
        None,
    ),
    "a guest that hides the flag": (
        {"/proc/cpuinfo": X86.format(flag=""), f"{DMI}sys_vendor": "QEMU\n"},
        None,
        None,
    ),
    "bare metal that is named as a guest": (
        {"/proc/cpuinfo": X86.format(flag=""), f"{DMI}sys_vendor": "Dell Inc.\n", f"{DMI}product_name": "KVM\n"},
        None,
        None,
    ),
    "bare metal with the flag": (
        {"/proc/cpuinfo": X86.format(flag=" hypervisor"), f"{DMI}sys_vendor": "Dell Inc.\n"},
        None,
        None,
    ),
    "a guest with a name that nobody knows": (
        {
            "/proc/cpuinfo": X86.format(flag=" hypervisor"),
            f"{DMI}sys_vendor": "Some Cloud\n",
            "/sys/devices/system/clocksource/clocksource0/available_clocksource": "kvm-clock tsc acpi_pm\n",
        },
        True,
        "kvm",
    ),
    "firmware alone, of x86 or not": ({f"{DMI}sys_vendor": "QEMU\n"}, None, None),
    "xen's control domain": ({"/proc/cpuinfo": X86.format(flag=""), "/sys/hypervisor/type": "xen\n"}, None, None),
    "arm guest": (
        {"/proc/cpuinfo": "processor : 0\nCPU implementer : 0x41\n", f"{DMI}product_name": "KVM Virtual Machine\n"},
        True,
        "kvm",
    ),
    "arm bare metal of a cloud": (
        {
            "/proc/cpuinfo": "processor : 0\nCPU implementer : 0x41\n",
            f"{DMI}sys_vendor": "Amazon EC2\n",
            f"{DMI}product_name": "c7g.metal\n",
        },
        None,
        None,
    ),
    "power guest": (
        {
            "/proc/cpuinfo": "processor : 0\ncpu : POWER9\n\nmachine : CHRP IBM pSeries (emulated by qemu)\n",
        },
        True,
        "qemu",
    ),
    "s390 guest": ({"/proc/sysinfo": "VM00 Control Program: KVM/Linux\n"}, True, "kvm"),
    "nothing known": ({}, None, None),
}


@pytest.mark.parametrize("case", HYPERVISORS)
def test_am_i_a_guest(case: str) -> None:
    files, hypervisor, kind = HYPERVISORS[case]
    platform, found = read_platform(reader_of(files))
    assert (found, platform.virtualization) == (hypervisor, kind)


@pytest.mark.parametrize(
    ("name", "hypervisor", "kind"),
    [
        ("h200/vm-h200x1", True, "kvm"),
        ("older/vm-x4", True, "unidentified"),
        ("hwloc/2pa-pcidomain32bits", True, "kvm"),  # DMI: CloudStack KVM Hypervisor
        ("hwloc/40intel64-2g2n4c+pcilocality", False, None),
        ("hwloc/nvidiagpunumanodes", None, None),
        ("derived/xe9680-8xh100-lspci", None, None),  # its cpuinfo has no flags
        ("lscpu/vmware_fpe", False, None),  # physical: only its name says VMware
    ],
)
def test_real_machines_say_whether_they_are_guests(
    host_root: Callable[[str], Path], name: str, hypervisor: bool | None, kind: str | None
) -> None:
    platform, found = read_platform(Reader(Capture(str(host_root(name)))))
    assert (found, platform.virtualization) == (hypervisor, kind)


def test_the_h200_guest_says_that_its_topology_is_hidden(host_root: Callable[[str], Path]) -> None:
    host = discover(open_root(str(host_root("h200/vm-h200x4"))))
    assert host.hypervisor is True
    assert len(host.gpus) == 4
    hidden = [problem for problem in host.problems if problem.what == "topology hidden"]
    assert [problem.where for problem in hidden] == ["/sys/bus/pci/devices"]
    assert (host.arch, host.kernel) == ("x86_64", "6.18.44")
    assert "pci=realloc=off" in (host.kernel_args or ())
    assert host.digest is None


# --- platform ------------------------------------------------------------------------------------------------


def test_firmware_modules_system_and_loader() -> None:
    platform, _ = read_platform(
        reader_of(
            {
                f"{DMI}sys_vendor": "Dell Inc.\n",
                f"{DMI}product_name": "PowerEdge XE9680\n",
                f"{DMI}bios_version": "2.1.5\n",
                f"{DMI}product_uuid": "4c4c4544-0043-5910-8052-b4c04f4d3732\n",
                "/etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
                "/proc/modules": "nvidia 14299136 - - Live 0x0 (O)\next4 1 0 - Live 0x0\n",
                "/sys/module/nvidia/version": "580.159.04\n",
                "/sys/module/kvm/parameters/halt_poll_ns": "200000\n",
                "/sys/module/vfio_pci/parameters/disable_idle_d3": "N\n",
                "/sys/module/ext4/version": "1\n",
                "/boot/grub/grub.cfg": "",
            }
        )
    )
    assert (platform.vendor, platform.product, platform.bios_version) == ("Dell Inc.", "PowerEdge XE9680", "2.1.5")
    assert platform.uuid == "4c4c4544-0043-5910-8052-b4c04f4d3732"
    assert platform.os == "Debian GNU/Linux 12 (bookworm)"
    assert platform.boot_loader == "grub"
    assert platform.modules == (
        Module(name="kvm", parameters={"halt_poll_ns": "200000"}),
        Module(name="nvidia", version="580.159.04"),
        Module(name="vfio_pci", parameters={"disable_idle_d3": "N"}),
    )


def test_proxmox_boots_by_its_own_tool_and_what_grubs_file_has_is_not_used() -> None:
    files = {
        "/sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f": "\0".join("systemd-boot 252"),
        "/etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet intel_iommu=on"\nGRUB_CMDLINE_LINUX="iommu=pt"\n',
        "/boot/grub/grub.cfg": "",
    }
    platform = read_platform(reader_of(files))[0]
    assert (platform.boot_loader, platform.unused_arguments) == (
        "systemd-boot",
        ("quiet", "intel_iommu=on", "iommu=pt"),
    )
    platform = read_platform(reader_of({**files, "/etc/kernel/proxmox-boot-uuids": "1234-ABCD"}))[0]
    assert platform.boot_loader == "proxmox-boot-tool"
    del files["/sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"]
    platform = read_platform(reader_of(files))[0]
    assert (platform.boot_loader, platform.unused_arguments) == ("grub", ())


def test_systemd_boot_wins_over_a_leftover_grub() -> None:
    files = {"/boot/grub/grub.cfg": "", "/boot/efi/loader/loader.conf": ""}
    assert read_platform(reader_of(files))[0].boot_loader == "systemd-boot"
    assert read_platform(reader_of({}))[0].boot_loader is None


def test_an_unreadable_parameter_is_a_problem_and_not_a_value() -> None:
    doubting = reader_of(
        {
            "/sys/module/kvm/parameters/secret": "",
            "/sys/module/kvm/parameters/open": "1",
            "/.hosttune/unreadable": "/sys/module/kvm/parameters/secret\tPermission denied\n",
        }
    )
    platform, _ = read_platform(doubting)
    assert platform.modules == (Module(name="kvm", parameters={"open": "1"}),)
    assert [(p.what, p.where) for p in doubting.problems] == [("unreadable", "/sys/module/kvm/parameters/secret")]


# --- IOMMU ---------------------------------------------------------------------------------------------------


def device(group: int | None, kind: str | None = None) -> PciDevice:
    return PciDevice(address="0000:01:00.0", iommu_group=group, iommu_group_type=kind)


def test_an_intel_iommu_with_groups() -> None:
    found = read_iommu(
        reader_of(
            {
                "/sys/kernel/iommu_groups/0/type": "DMA-FQ\n",
                "/sys/kernel/iommu_groups/1/type": "identity\n",
                "/sys/kernel/iommu_groups/2/type": "identity\n",
                # CAP_REG.MGAW, bits 21:16, holds the width less one: 0x38 is 57 bits, 0x2f 48
                "/sys/class/iommu/dmar0/intel-iommu/cap": "19ed008c40780c66\n",
                "/sys/class/iommu/dmar1/intel-iommu/cap": "2f0000\n",
                "/proc/interrupts": "  24:  0  IR-PCI-MSI-0000:00:1c.0  0-edge  PCIe PME\n",
            }
        ),
        (),
    )
    # CAP_REG.PI, bit 59: 0x19… has it, 0x2f0000 does not
    assert found == Iommu(
        present=True,
        mode="identity",
        vendor="intel",
        address_bits=48,
        interrupt_remapping=True,
        interrupt_posting=False,
    )


@pytest.mark.parametrize(
    ("registers", "posts"),
    [
        (("19ed008c40780c66", "8d2008c222f0686"), True),
        (("19ed008c40780c66", "2f0000"), False),  # one that cannot ends it for all
        (("19ed008c40780c66", "garbled"), None),
        (("2f0000", "garbled"), False),
        ((), None),
    ],
)
def test_interrupts_are_posted_where_every_unit_can(registers: tuple[str, ...], posts: bool | None) -> None:
    files = {f"/sys/class/iommu/dmar{n}/intel-iommu/cap": f"{text}\n" for n, text in enumerate(registers)}
    assert read_iommu(reader_of(files), ()).interrupt_posting is posts


def test_the_width_is_that_of_the_register() -> None:
    cap = "/sys/class/iommu/dmar0/intel-iommu/cap"
    assert read_iommu(reader_of({cap: "d2008c40660462\n"}), ()).address_bits == 39
    assert read_iommu(reader_of({cap: "8d2008c222f0686\n"}), ()).address_bits == 48


def test_the_groups_of_devices_count_and_their_types_once_a_group() -> None:
    devices = [device(1, "DMA"), device(2, "identity"), device(2, "identity"), device(2, "identity"), device(3, "DMA")]
    found = read_iommu(reader_of({"/sys/class/iommu/ivhd0/amd-iommu/cap": "1\n"}), devices)
    assert (found.present, found.mode, found.vendor, found.address_bits) == (True, "DMA", "amd", None)


def test_an_iommu_that_is_off_is_told_from_one_that_was_not_recorded() -> None:
    off = read_iommu(reader_of({"/sys/firmware/acpi/tables/DMAR": ""}, ("/sys/kernel/iommu_groups",)), [device(None)])
    assert (off.present, off.mode, off.vendor) == (False, None, "intel")
    looked_for = manifest.write((), (), ["/sys/kernel/iommu_groups"])
    assert read_iommu(reader_of({"/.hosttune/capture": looked_for}), ()).present is False
    assert read_iommu(reader_of({}), [device(None)]) == Iommu()


@pytest.mark.parametrize(
    ("interrupts", "remapping"),
    [
        (" 9:  0  IR-IO-APIC   9-fasteoi   acpi\n", True),
        (" 24: 0  PCI-MSI 524288-edge  nvme0q0\n", False),
        (" 9:  0  IO-APIC   9-fasteoi   acpi\n", False),
        (" 11: 0  GICv3  27 Level  arch_timer\n", None),
        (None, None),
    ],
)
def test_interrupt_remapping_is_told_by_the_names_of_chips(interrupts: str | None, remapping: bool | None) -> None:
    files = {} if interrupts is None else {"/proc/interrupts": interrupts}
    assert read_iommu(reader_of(files), ()).interrupt_remapping is remapping


# --- digest --------------------------------------------------------------------------------------------------

NODES = (NumaNode(id=1), NumaNode(id=0))


def scratch_root(root: Path, **files: str) -> Reader:
    texts = {"etc/machine-id": "abc\n", "sys/devices/system/cpu/present": "0-7\n", ".hosttune/scratch": ""} | files
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Reader(Capture(str(root)))


def test_a_scratch_root_has_a_digest_of_its_own_files(tmp_path: Path) -> None:
    expected = hashlib.sha256(b"abc\n0-7\n0,1").hexdigest()
    assert read_digest(scratch_root(tmp_path / "a"), NODES) == expected
    assert read_digest(scratch_root(tmp_path / "b"), tuple(reversed(NODES))) == expected
    assert read_digest(scratch_root(tmp_path / "c", **{"etc/machine-id": "abd\n"}), NODES) != expected
    assert read_digest(scratch_root(tmp_path / "d"), NODES[:1]) != expected


@pytest.mark.parametrize("machine_id", ["", "\n", "uninitialized\n"])
def test_without_a_machine_id_there_is_no_digest(tmp_path: Path, machine_id: str) -> None:
    assert read_digest(scratch_root(tmp_path, **{"etc/machine-id": machine_id}), NODES) is None


def test_a_capture_has_no_digest() -> None:
    files = {"/etc/machine-id": "abc\n", "/sys/devices/system/cpu/present": "0-7\n"}
    assert read_digest(reader_of(files), NODES) is None


# --- live settings -------------------------------------------------------------------------------------------


def test_settings_by_path() -> None:
    gpu = PciDevice(address="0000:41:00.0", class_code="030200")
    disk = PciDevice(address="0000:42:00.0", class_code="010802")
    link = "/sys/bus/pci/devices/0000:41:00.0/link"
    found = read_settings(
        reader_of(
            {
                f"{link}/l1_aspm": "1\n",
                "/sys/bus/pci/devices/0000:42:00.0/link/l1_aspm": "1\n",
                "/sys/module/kvm/parameters/halt_poll_ns": "200000\n",
                "/proc/sys/vm/swappiness": "60\n",
                "/sys/block/nvme0n1/queue/scheduler": "[none] mq-deadline\n",
                "/sys/block/nvme0n1/queue/nr_requests": "1023\n",
                "/sys/block/sda/queue/scheduler": "[none]\n",
                "/etc/default/irqbalance": '#IRQBALANCE_BANNED_CPULIST=1\nIRQBALANCE_BANNED_CPULIST="2-5,4,9"\n',
            }
        ),
        (gpu, disk),
    )
    assert found == {
        f"{link}/l1_aspm": "1",
        "/sys/module/kvm/parameters/halt_poll_ns": "200000",
        "/proc/sys/vm/swappiness": "60",
        "/sys/block/nvme0n1/queue/scheduler": "none",
        "/sys/block/nvme0n1/queue/nr_requests": "1023",
        "/etc/default/irqbalance": "2-5,9",
    }


@pytest.mark.parametrize(
    ("text", "banned"),
    [
        ("# nothing\n", ""),
        ("IRQBALANCE_BANNED_CPUS=0000ff00\n", "8-15"),
        ("IRQBALANCE_BANNED_CPUS=00000001,00000000\n", "32"),
        ("export IRQBALANCE_BANNED_CPULIST=3\n", "3"),
        ("IRQBALANCE_BANNED_CPULIST=\n", ""),
        ("IRQBALANCE_BANNED_CPULIST=isolated\n", None),
        ("IRQBALANCE_BANNED_CPULIST=0-1048575\n", None),
        (f"IRQBALANCE_BANNED_CPUS={'f' * 20000}\n", None),
    ],
)
def test_what_irqbalance_bans(text: str, banned: str | None) -> None:
    doubting = reader_of({"/etc/default/irqbalance": text})
    assert read_settings(doubting, ()).get("/etc/default/irqbalance") == banned
    problems = [(problem.what, problem.where) for problem in doubting.problems]
    assert problems == ([("not a CPU list", "/etc/default/irqbalance")] if banned is None else [])


# --- the whole document --------------------------------------------------------------------------------------


class Closed(Archive):
    """A capture whose directories below some paths the kernel does not open."""

    def exists(self, path: str) -> bool:
        self._open(path)
        return super().exists(path)

    def list(self, path: str) -> list[str]:
        self._open(path)
        return super().list(path)

    @staticmethod
    def _open(path: str) -> None:
        if path.startswith(("/boot", "/efi", "/dev", "/sys/kernel/iommu_groups")):
            raise Unreadable(path, "Permission denied")


def test_what_cannot_be_looked_into_is_unknown_also_on_a_whole_capture() -> None:
    host = discover(Closed({"/.hosttune/capture": b"1", "/proc/version": b""}, {}, "test"))
    assert host.platform is not None
    assert host.virtualization is not None
    assert host.iommu is not None
    assert (host.platform.boot_loader, host.virtualization.kvm, host.iommu.present) == (None, None, None)
    unreadable = {problem.where for problem in host.problems if problem.what == "unreadable"}
    assert {"/boot/loader/loader.conf", "/dev/kvm", "/sys/kernel/iommu_groups"} <= unreadable


def test_what_is_no_host_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with pytest.raises(BadInput, match="neither sys/ nor proc/") as caught:
        discover(open_root(str(tmp_path)))
    assert caught.value.where == str(tmp_path)


def test_a_host_without_pci_is_discovered(host_root: Callable[[str], Path]) -> None:
    host = discover(open_root(str(host_root("hwloc/96em64t-4no4pa3ca2co"))))
    assert (host.pci, host.gpus, host.nics, host.nvme, host.nvswitches) == ((),) * 5
    assert (len(host.cpus), len(host.numa_nodes), host.guests) == (96, 4, None)


def test_a_document_survives_its_own_text(host_root: Callable[[str], Path]) -> None:
    host = discover(open_root(str(host_root("h200/vm-h200x4"))))
    assert type(host).from_json(host.to_json()) == host
