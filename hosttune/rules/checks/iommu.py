"""Checks of isolation by the IOMMU: it is on, it remaps interrupts, its groups are whole, and nothing bypasses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hosttune.gpu.vgpu import stays_with_driver
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.host import Host, PciDevice, Platform
from hosttune.model.pci import DIRECT_REMEDY
from hosttune.model.values import slot_of
from hosttune.rules.checks.facts import OTHER_ARCHES, RECORD, accelerators, driver_unread, given, holders, lacks, listed
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding

_GROUPS = sysfs.IOMMU_GROUPS
_SWITCHED_ON = "intel_iommu=on"
_YES, _NO = ("Y", "1"), ("N", "0")


@check(
    "iommu-mode",
    title="IOMMU",
    about="the host",
    why="without it no device can be given to a guest, and nothing keeps a device's DMA from the host's memory",
    source="Linux Documentation/driver-api/vfio, ABI/testing/sysfs-kernel-iommu_groups, kernel-parameters (iommu)",
    expected="on, with IOMMU groups",
    reads=_GROUPS,
    for_guests=True,
)
def iommu_mode(on: On) -> Finding:
    """Check that the IOMMU is on and has groups. Which default domain devices of the host get is not judged."""
    host = on.host
    hint = _switch_on(host)
    if host.hypervisor:
        hint = "this machine is itself a guest: its own hypervisor has to give it an IOMMU"
    present = host.iommu.present if host.iommu else None
    if present is None and not any(device.iommu_group is not None for device in host.pci):
        on.give_up("no IOMMU groups were recorded", f"ls {_GROUPS}; where it is empty: {hint}", _GROUPS)
    if present is False:
        return on.failed("off: no groups", hint)
    mode = host.iommu.mode if host.iommu else None
    return on.passed(f"on{f', host-owned devices in domains of type {mode}' if mode else ''}")


def _switch_on(host: Host) -> str:
    """Return how to switch the IOMMU on: in the firmware, and in the file that this host's boot loader reads."""
    vendor = host.cpu_model.vendor if host.cpu_model else None
    if vendor == "AuthenticAMD":
        return "switch AMD-Vi (IOMMU) on in the firmware, remove amd_iommu=off and iommu=off, reboot"
    platform = host.platform or Platform()
    place = {
        "grub": "GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub (grub2-mkconfig)",
        "systemd-boot": "/etc/kernel/cmdline, then kernel-install add-all",
        "proxmox-boot-tool": "/etc/kernel/cmdline, then proxmox-boot-tool refresh",
    }.get(platform.boot_loader or "", "the kernel's arguments")
    firmware = "VT-d" if vendor == "GenuineIntel" else "the IOMMU"
    hint = f"switch {firmware} on in the firmware; add {_SWITCHED_ON} to {place}; reboot"
    if _SWITCHED_ON in platform.unused_arguments:
        hint += f". It is in /etc/default/grub, but {platform.boot_loader} boots this host"
    return hint


@check(
    "interrupt-remapping",
    title="Interrupt remapping",
    about="the host, where its IOMMU is on",
    why="without it a guest's device can raise interrupts that are not its own",
    source="Linux drivers/vfio/vfio_iommu_type1.c (allow_unsafe_interrupts); Intel VT-d specification, chapter 5",
    expected="on",
    remedy="switch interrupt remapping (x2APIC, VT-d) on in the firmware, remove intremap=off, reboot",
    reads="/proc/interrupts (chips named IR-)",
    for_guests=True,
)
def interrupt_remapping(on: On) -> Finding:
    host = on.host
    if host.arch in OTHER_ARCHES:
        on.skip(f"interrupts of {host.arch} are not remapped this way")
    if host.iommu is not None and host.iommu.present is False:
        on.skip("the IOMMU is off")
    state = host.iommu.interrupt_remapping if host.iommu else None
    remaps = on.need(state, "interrupt remapping", "/proc/interrupts", look="dmesg | grep -i remapping")
    return on.passed("on") if remaps else on.failed("off")


# --- what bypasses the IOMMU ---------------------------------------------------------------------------------


@check(
    "vfio-no-iommu",
    title="VFIO without IOMMU",
    about="the host",
    why="a device then reaches all memory of the host, and no guest can use it",
    source="Linux drivers/vfio/Kconfig (VFIO_NOIOMMU)",
    for_guests=True,
)
def vfio_no_iommu(on: On) -> Finding:
    return _off(on, "vfio", "enable_unsafe_noiommu_mode")


@check(
    "vfio-unsafe-interrupts",
    title="VFIO without interrupt remapping",
    about="the host",
    why="it lets devices be given away although they can raise any interrupt",
    source="Linux drivers/vfio/vfio_iommu_type1.c (allow_unsafe_interrupts)",
    for_guests=True,
)
def vfio_unsafe_interrupts(on: On) -> Finding:
    return _off(on, "vfio_iommu_type1", "allow_unsafe_interrupts")


def _off(on: On, module: str, name: str) -> Finding:
    """Judge a parameter of a VFIO module that must be off, by its value and by the kernel arguments."""
    host, path = on.host, f"/sys/module/{module}/parameters/{name}"
    on = on.reading(path, f"{module}.{name} off")
    hint = (
        f"echo N > {path}, and take {name} out of /etc/modprobe.d and the kernel's arguments; guests need the IOMMU,"
        " not this"
    )
    modules = {module.name: module.parameters or {} for module in host.platform.modules} if host.platform else {}
    value = modules.get(module, {}).get(name)
    if value in _YES:
        return on.failed(value or "", hint)
    switched_on = [f"{module}.{name}{value}" for value in ("", "=1", "=Y", "=y", "=on", "=true")]
    words = on.need(host.kernel_args, "the kernel's command line", "/proc/cmdline")
    if asked := [word for word in words if word.replace("-", "_") in switched_on]:
        return on.failed(asked[0], hint, "/proc/cmdline")
    if value is None and lacks(on.evidence, path):
        return on.passed("this kernel is built without it" if module in modules else f"module {module} is not loaded")
    look = f"cat {path} (no such file: off)"
    value = on.need(value, name, path, look=look)
    return on.passed(value) if value in _NO else on.unknown(f"it reads {value[:40]!r}", on.look(look))


# --- groups --------------------------------------------------------------------------------------------------


class InGroup(NamedTuple):
    """A function and the functions of its group.

    `given`: a guest has it, or it is bound for one. `guests`: which guests have one of the group. `unplaced`: functions
    that may be in the group, because theirs is unknown. `regions`: whether reserved regions of any group were read.
    """

    device: PciDevice
    members: tuple[PciDevice, ...]
    given: bool
    guests: list[str]
    unplaced: tuple[str, ...]
    regions: bool


def in_groups(evidence: Evidence) -> Iterator[tuple[str, InGroup]]:
    """Yield GPUs of known makers and what guests have or may have, with their groups."""
    host, held = evidence.host, holders(evidence)
    ready = {device.address for device in given(evidence)}
    known = ready | {gpu.address for gpu in accelerators(host)}
    # Functions of unknown group: those that may be in any, and by root bus those that are in one of that bus.
    # The second ones are proven to have no group, but Linux gives a group to every function that an IOMMU
    # translates, and it translates all that are behind the ports of a root bus. Only functions on the root bus
    # itself may have none, such as the IOMMU's own.
    anywhere: list[str] = []
    behind: dict[str, list[str]] = {}
    for device in evidence.host.pci:
        if device.iommu_group is not None or device.is_bridge:
            continue
        if not lacks(evidence, sysfs.function(device.address, "iommu_group")):
            anywhere.append(device.address)
        elif device.parent is not None and not stays_with_driver(device):
            behind.setdefault(_root_bus(evidence, device), []).append(device.address)
    regions = any(device.iommu_direct is not None for device in host.pci)
    for device in (device for device in host.pci if device.address in known):
        members = host.index.groups.get(-1 if device.iommu_group is None else device.iommu_group, (device,))
        guests = sorted({name for member in members for name in held.get(member.address, ())})
        unplaced = (*anywhere, *behind.get(_root_bus(evidence, device), ()))
        yield device.address, InGroup(device, members, device.address in ready, guests, unplaced, regions)


def _root_bus(evidence: Evidence, device: PciDevice) -> str:
    """Return domain and bus of the topmost bridge above a function ("0000:15")."""
    return evidence.host.index.path(device.address)[0].rpartition(":")[0]


@check(
    "iommu-groups",
    title="Whole IOMMU groups",
    about="each GPU, and each device of a guest or bound for one",
    why="members of a group reach each other past the IOMMU; a group for which the firmware keeps memory is refused"
    " by VFIO",
    source="Linux Documentation/driver-api/vfio (groups; a viable group), ABI/testing/sysfs-kernel-iommu_groups"
    " (reserved_regions), drivers/iommu/iommu.c (require_direct)",
    each=in_groups,
    none="GPU, and no device that a guest has",
    of_tree=True,
    for_guests=True,
)
def iommu_groups(on: On, place: InGroup) -> Finding:
    device, folder = place.device, f"{_GROUPS}/{place.device.iommu_group}"
    if device.iommu_group is None:
        return _in_no_group(on, place)
    if kept := device.kept_by_firmware:
        on = on.reading(f"{folder}/reserved_regions", "no reserved region of type direct")
        return (on.failed if place.given else on.warned)(kept, DIRECT_REMEDY)
    on = on.reading(f"{folder}/devices")
    finding = _of_guest(on, place) if place.given else _of_host(on, place)
    silent = [member.address for member in place.members if place.given and driver_unread(on.evidence, member.address)]
    why = None
    if silent:
        why = f"the driver of {listed(silent, 3)} was not read"
    elif place.unplaced:
        why = f"the group of {listed(place.unplaced, 3)} is not known"
    elif device.iommu_direct is None and place.regions:
        why = "its reserved regions were not read, and those of other groups were"
    if why is None or finding.outcome != "pass":
        return finding
    return on.unknown(why, f"look with: ls -l {folder}/devices; {RECORD}", expected=finding.expected or "")


def _in_no_group(on: On, place: InGroup) -> Finding:
    iommu, path = on.host.iommu, sysfs.function(place.device.address, "iommu_group")
    on = on.reading(path, "in an IOMMU group that is whole")
    if not place.given and iommu is not None and iommu.present is False:
        on.skip("the IOMMU is off, and no guest has it (see iommu-mode)")
    if place.given and lacks(on.evidence, path) and not stays_with_driver(place.device):
        hint = "no guest may have it so: switch the IOMMU on (see iommu-mode), and vfio-no-iommu off"
        return on.failed("in no group", hint)
    return on.unknown("its group is not known", f"look with: readlink {path}; {RECORD}")


def _of_guest(on: On, place: InGroup) -> Finding:
    """Judge the group of a device that a guest has, or that is ready for a guest."""
    group, on = place.device.iommu_group, on.reading(on.reads or "", "its whole group free for the same guest")
    others = [member for member in place.members if member.address != place.device.address]
    foreign = [member for member in others if not member.vfio_viable and not stays_with_driver(member)]
    if len(place.guests) > 1:
        hint = "give all of the group to one of them; ACS at the ports above would separate the devices (see acs)"
        return on.failed(f"group {group} is shared by guests {', '.join(place.guests)}", hint)
    if foreign:
        names = listed([f"{member.address} ({member.driver})" for member in foreign])
        hint = "give these to the same guest (name them in the intent), or bind them to vfio-pci; see acs to split them"
        return on.failed(f"group {group} also holds {names}: VFIO will not open it", hint)
    return on.passed(
        f"group {group}, {f'with {listed([function.address for function in others])}' if others else 'alone'}"
    )


def _of_host(on: On, place: InGroup) -> Finding:
    """Judge the group of a GPU that the host keeps: whether it could be given to a guest alone."""
    device, on = place.device, on.reading(on.reads or "", "a group of its own, so that it can be given by itself")
    slot = slot_of(device.address)
    others = [
        function.address for function in place.members if slot_of(function.address) != slot and function.physfn is None
    ]
    if not others:
        return on.passed(f"group {device.iommu_group}")
    hint = "ACS at the ports above separates them (firmware setting, or settings: acs); else one guest gets all of them"
    return on.warned(f"group {device.iommu_group} also holds {listed(others)}", hint)
