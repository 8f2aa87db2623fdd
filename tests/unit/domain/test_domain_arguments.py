"""Arguments to QEMU in a definition, and the firmware that it names by the files of distributions."""

from __future__ import annotations

import re

import pytest

from hosttune.domain.arguments import WINDOW, hole_bytes, passed_functions, values_of
from hosttune.domain.reader import read_domain

GIB = 1 << 30


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("q35-pcihost.pci-hole64-size=1024G", 1024 * GIB),
        ("q35-pcihost.pci-hole64-size=1T", 1024 * GIB),
        ("i440FX-pcihost.pci-hole64-size=1073741824K", 1024 * GIB),
        ("q35-pcihost.pci-hole64-size=0x10000000000", 1024 * GIB),
        ("q35-pcihost.pci-hole64-size=1099511627776", 1024 * GIB),
        ("driver=q35-pcihost,property=pci-hole64-size,value=64g", 64 * GIB),
        ("q35-pcihost.below-4g-mem-size=1G", None),
    ],
)
def test_the_hole_as_an_argument(value: str, size: int | None) -> None:
    assert hole_bytes(("-snapshot", "-global", value)) == size
    assert hole_bytes(("-global", "q35-pcihost.pci-hole64-size=1G", "--global", value)) == (size or GIB)
    assert hole_bytes(("-device", value)) is None


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("vfio-pci,host=0000:27:00.0,bus=rp1", {"0000:27:00.0": "0000:27:00.0"}),
        ("driver=vfio-pci,id=gpu,host=AF:00.1", {"AF:00.1": "0000:af:00.1"}),
        ("vfio-pci-nohotplug,host=27:00.0", {"27:00.0": "0000:27:00.0"}),
        ('{"driver":"vfio-pci","host":"10000:01:00.0","id":"a"}', {"10000:01:00.0": "10000:01:00.0"}),
        (
            "vfio-pci,sysfsdev=/sys/devices/pci0000:20/0000:20:01.0/0000:27:00.0",
            {"/sys/devices/pci0000:20/0000:20:01.0/0000:27:00.0": "0000:27:00.0"},
        ),
        ("vfio-pci,sysfsdev=/sys/bus/mdev/devices/c0ffee00-1234", {"/sys/bus/mdev/devices/c0ffee00-1234": None}),
        ("virtio-net-pci,host_mtu=9000", {}),
        ("pcie-root-port,id=rp1,bus=pcie.0", {}),
    ],
)
def test_devices_that_an_argument_passes(value: str, found: dict[str, str | None]) -> None:
    assert passed_functions(("-device", value)) == found


def test_the_window_with_and_without_the_implied_key() -> None:
    assert all(re.fullmatch(WINDOW, f"{key}opt/ovmf/X-PciMmio64Mb,string=65536") for key in ("", "name="))
    assert not re.fullmatch(WINDOW, "opt/ovmf/X-PciMmio64Mb,string=0x10000")
    assert values_of(("-s", "-fw_cfg", "a", "--fw_cfg", "b"), "fw_cfg") == ["a", "b"]


def firmware(inner: str = "", arguments: tuple[str, ...] = (), more: str = "") -> str | None:
    words = "".join(f"<q:arg value='{word}'/>" for word in arguments)
    return read_domain(
        "<domain type='kvm' xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'><name>a</name>"
        f"<os><type arch='x86_64'>hvm</type>{inner}</os>{more}<q:commandline>{words}</q:commandline></domain>"
    ).firmware


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("/usr/share/qemu/OVMF.fd", "efi"),
        ("/usr/share/OVMF/OVMF_CODE_4M.secboot.fd", "efi"),
        ("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "efi"),
        ("/usr/share/edk2/ovmf/OVMF.inteltdx.fd", "efi"),
        ("/usr/share/edk2/ovmf/OVMF.amdsev.fd", "efi"),
        ("/usr/share/qemu/edk2-x86_64-code.fd", "efi"),
        ("/usr/share/qemu/ovmf-x86_64-ms-code.bin", "efi"),
        ("/opt/tdx/TDVF.fd", "efi"),
        ("/usr/share/seabios/bios.bin", "bios"),
        ("/usr/share/qemu/bios-256k.bin", "bios"),
        ("/srv/ovmf-tests/bios-256k.bin", "bios"),
        ("/usr/share/qemu/qboot.rom", None),
        ("/opt/node.bin", None),
    ],
)
def test_a_rom_is_what_its_name_says(file: str, kind: str | None) -> None:
    assert firmware(f"<loader>{file}</loader>") == kind
    assert firmware(f"<loader type='rom' readonly='yes'>{file}</loader>") == kind
    assert firmware(arguments=("-bios", file)) == kind
    assert firmware(f"<loader type='pflash'>{file}</loader>") == "efi"
    for kind_of_guest in ("tdx", "sev-snp"):
        assert firmware(f"<loader>{file}</loader>", more=f"<launchSecurity type='{kind_of_guest}'/>") == "efi"


def test_flash_is_uefi_and_nothing_is_seabios() -> None:
    assert firmware() == "bios"
    assert firmware(arguments=("-pflash", "a.fd")) == "efi"
    assert firmware(arguments=("-drive", "file=a.fd,if=pflash,unit=0")) == "efi"
    assert firmware(arguments=("-machine", "pc-q35-9.0,pflash0=flash")) == "efi"
    assert firmware(arguments=("-drive", "file=a.img,if=none")) == "bios"
