"""Faults of foreign domain XML against what the host says: BARs and address width, other guests, the host's own use."""

from __future__ import annotations

import pytest
from domain_faults import faults, host_of
from domain_shapes import GIB, ONE_GPU, changed

from hosttune.model.host import Bar, CpuModel, Host, Nic, Nvme, RunningGuest, VcpuPin


def with_bars(bits: int | None = 46, bar_bytes: int = 2048 * GIB) -> Host:
    """The host with that width, and a BAR of that size on every device, beside two that go below 4 GiB."""
    bars = (
        Bar(index=0, size_bytes=16 << 20, prefetchable=True, is_64bit=False),
        Bar(index=2, size_bytes=bar_bytes, prefetchable=True, is_64bit=True),
        Bar(index=4, size_bytes=32 << 20, prefetchable=False, is_64bit=True),
    )
    pci = tuple(changed(device, bars=bars) for device in host_of().pci)
    return host_of(pci=pci, cpu_model=CpuModel(vendor="GenuineIntel", physical_address_bits=bits))


SMALL_HOLE = ("<pcihole64 unit='KiB'>536870912<", "<pcihole64 unit='KiB'>67108864<")
EMULATE_40 = ("<maxphysaddr mode='passthrough'/>", "<maxphysaddr mode='emulate' bits='40'/>")
CUSTOM = ("mode='host-passthrough'", "mode='custom'")


@pytest.mark.parametrize(
    ("host", "edits", "level", "text", "where"),
    [
        (
            with_bars(),
            [SMALL_HOLE],
            "warn",
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
            [("<maxphysaddr mode='passthrough'/>", "<maxphysaddr mode='passthrough' limit='39'/>")],
            "error",
            "39 address bits (maxphysaddr limit='39')",
            "/domain/cpu/maxphysaddr",
        ),
    ],
)
def test_windows_too_small_for_the_bars(
    host: Host, edits: list[tuple[str, str]], level: str, text: str, where: str
) -> None:
    found = [finding for finding in faults(ONE_GPU, *edits, host=host) if text in finding.text]
    assert [(finding.level, finding.where) for finding in found] == [(level, f"vm.xml: {where}")]


def test_windows_that_fit_exactly_are_right() -> None:
    """The hole is 512 GiB; of 64 GiB of memory 62 are above 4 GiB, which leaves 958 GiB of 40 bits."""
    host = with_bars(bar_bytes=512 * GIB)
    less = ("<memory unit='KiB'>67108864", "<memory unit='KiB'>33554432")  # the cells say otherwise
    fits, exceeds = ((SMALL_HOLE[0], f"<pcihole64 unit='GiB'>{size}<") for size in (958, 959))
    for edits, levels in (((), []), ((fits,), []), ((exceeds,), ["error"]), ((exceeds, less), ["error"])):
        found = [f for f in faults(ONE_GPU, EMULATE_40, CUSTOM, *edits, host=host) if f.rule == "address-width"]
        assert [f.level for f in found] == levels


def test_windows_of_unknown_needs_are_no_fault() -> None:
    unknown = with_bars(bits=None, bar_bytes=256 * GIB)
    assert faults(ONE_GPU, host=unknown) == faults(ONE_GPU)
    assert faults(ONE_GPU, SMALL_HOLE) == faults(ONE_GPU)
    assert faults(ONE_GPU, CUSTOM, ("<maxphysaddr mode='passthrough'/>", ""), host=with_bars(bits=36, bar_bytes=1)) == (
        faults(ONE_GPU, CUSTOM, ("<maxphysaddr mode='passthrough'/>", ""))
    )


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
