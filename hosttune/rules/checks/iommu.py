"""Checks of isolation by the IOMMU: it is on, it remaps interrupts, its groups are whole, and nothing bypasses it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hosttune.gpu.vgpu import stays_with_driver
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.host import PciDevice
from hosttune.model.pci import DIRECT_REMEDY
from hosttune.model.validation import CheckResult
from hosttune.model.values import grouped, slot_of
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.rules.checks.facts import (
    HOST,
    RECORD,
    accelerators,
    driver_unread,
    given,
    holders,
    lacks,
    listed,
)

_GROUPS = sysfs.IOMMU_GROUPS
_ON = {
    "GenuineIntel": "switch VT-d on in the firmware, add intel_iommu=on to the kernel's arguments, reboot",
    "AuthenticAMD": "switch AMD-Vi (IOMMU) on in the firmware, remove amd_iommu=off and iommu=off, reboot",
}
_ANY = "switch the IOMMU on in the firmware and in the kernel's arguments (intel_iommu=on), reboot"
_OTHER_ARCHES = ("aarch64", "arm", "ia64", "ppc64", "ppc64le", "riscv32", "riscv64", "s390x")
_YES, _NO = ("Y", "1"), ("N", "0")


def iommu_mode(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that the IOMMU is on and has groups. Which default domain devices of the host get is not judged."""
    check = "iommu-mode"
    host = evidence.host
    present = host.iommu.present if host.iommu else None
    if present is None and any(device.iommu_group is not None for device in host.pci):
        present = True
    expected = "on, with IOMMU groups"
    hint = _ON.get(host.cpu_model.vendor if host.cpu_model and host.cpu_model.vendor else "", _ANY)
    if host.hypervisor:
        hint = "this machine is itself a guest: its own hypervisor has to give it an IOMMU"
    if present is None:
        look = f"ls {_GROUPS}; where it is empty: {hint}"
        yield unknown(check, HOST, expected=expected, why="no IOMMU groups were recorded", hint=look, source=_GROUPS)
    elif not present:
        yield failed(check, HOST, expected=expected, actual="off: no groups", source=_GROUPS, hint=hint)
    else:
        mode = host.iommu.mode if host.iommu else None
        actual = f"on{f', host-owned devices in domains of type {mode}' if mode else ''}"
        yield passed(check, HOST, expected=expected, actual=actual, source=_GROUPS)


def interrupt_remapping(evidence: Evidence) -> Iterable[CheckResult]:
    """Check interrupt remapping. Without it a guest's device can raise any interrupt of the host."""
    check = "interrupt-remapping"
    host = evidence.host
    why_not = None
    # The kernel's report and /proc/cpuinfo must agree (see `arch`); one of them alone is not enough.
    model = host.cpu_model
    if host.arch in _OTHER_ARCHES and model and (model.vendor or model.model):
        why_not = f"interrupts of {host.arch} are not remapped this way"
    if why_not is None and host.iommu is not None and host.iommu.present is False:
        why_not = "the IOMMU is off"
    if why_not is not None:
        yield skipped(check, HOST, why_not)
        return
    state = host.iommu.interrupt_remapping if host.iommu else None
    source = "/proc/interrupts (chips named IR-)"
    expected = "on"
    if state is None:
        look = "look with: dmesg | grep -i remapping"
        yield unknown(check, HOST, expected=expected, why="not recorded", hint=look, source=source)
    elif state:
        yield passed(check, HOST, expected=expected, actual="on", source=source)
    else:
        hint = "switch interrupt remapping (x2APIC, VT-d) on in the firmware, remove intremap=off, reboot"
        yield failed(check, HOST, expected=expected, actual="off", source=source, hint=hint)


# --- what bypasses the IOMMU ---------------------------------------------------------------------------------


def vfio_no_iommu(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that VFIO's no-IOMMU mode is off: in this mode, DMA of devices reaches all memory."""
    yield _parameter(evidence, "vfio-no-iommu", "vfio", "enable_unsafe_noiommu_mode")


def vfio_unsafe_interrupts(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that VFIO without interrupt remapping is off: it is meant for platforms that cannot remap interrupts."""
    yield _parameter(evidence, "vfio-unsafe-interrupts", "vfio_iommu_type1", "allow_unsafe_interrupts")


def _parameter(evidence: Evidence, check: str, module: str, name: str) -> CheckResult:
    """Judge a parameter of a VFIO module that must be off, by its value and by the kernel arguments."""
    host = evidence.host
    path = f"/sys/module/{module}/parameters/{name}"
    expected = f"{module}.{name} off"
    hint = (
        f"echo N > {path}, and take {name} out of /etc/modprobe.d and the kernel's arguments; guests need the IOMMU,"
        " not this"
    )
    modules = {one.name: one for one in host.platform.modules} if host.platform else {}
    value = (modules[module].parameters or {}).get(name) if module in modules else None
    if value in _YES:
        return failed(check, HOST, expected=expected, actual=value, source=path, hint=hint)
    asked = [word for word in host.kernel_args or () if word.replace("-", "_") in _switched_on(module, name)]
    if asked:
        return failed(check, HOST, expected=expected, actual=asked[0], source="/proc/cmdline", hint=hint)
    if host.kernel_args is None:
        why, look = "the kernel's arguments were not read", "look with: cat /proc/cmdline"
        return unknown(check, HOST, expected=expected, why=why, hint=look, source="/proc/cmdline")
    if value in _NO:
        return passed(check, HOST, expected=expected, actual=value or "", source=path)
    if value is None and lacks(evidence, path):
        text = "this kernel is built without it" if module in modules else f"module {module} is not loaded"
        return passed(check, HOST, expected=expected, actual=text, source=path)
    look = f"look with: cat {path} (no such file: off)"
    why = "not recorded" if value is None else f"reads {value[:40]!r}"
    return unknown(check, HOST, expected=expected, why=why, hint=look, source=path)


def _switched_on(module: str, name: str) -> tuple[str, ...]:
    return tuple(f"{module}.{name}{value}" for value in ("", "=1", "=Y", "=y", "=on", "=true"))


# --- groups --------------------------------------------------------------------------------------------------


def iommu_groups(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that a whole group goes to one guest: devices in one group can reach each other without the IOMMU."""
    check = "iommu-groups"
    others = (one for one in evidence.host.pci if not one.is_bridge)
    members = grouped((one.iommu_group, one) for one in others if one.iommu_group is not None)
    passed_on = {device.address: device for device in given(evidence)}
    gpus = {gpu.address for gpu in accelerators(evidence.host)}
    subjects = [device for device in evidence.host.pci if device.address in passed_on or device.address in gpus]
    held, groupless = holders(evidence), _Groupless.of(evidence)
    regions_read = any(device.iommu_direct is not None for device in evidence.host.pci)
    for device in subjects:
        if device.iommu_group is None:
            yield _no_group(evidence, check, device, is_given=device.address in passed_on)
            continue
        group = members.get(device.iommu_group, [device])
        if device.address in passed_on:
            found = _given_group(evidence, check, device, group, held)
        else:
            found = _kept_group(evidence, check, device, group)
        if found.outcome == "pass" and (unplaced := groupless.near(evidence, device)):
            why = f"the group of {listed(unplaced, 3)} is not known"
            found = _doubt(check, device, found.expected or "", why)
        if kept := device.kept_by_firmware:
            say = failed if device.address in passed_on else warned
            found = say(
                check,
                device.address,
                expected="no reserved region of type direct",
                actual=kept,
                source=f"{_GROUPS}/{device.iommu_group}/reserved_regions",
                hint=DIRECT_REMEDY,
            )
        elif found.outcome == "pass" and device.iommu_direct is None and regions_read:
            why = "its reserved regions were not read, and those of other groups were"
            found = _doubt(check, device, found.expected or "", why)
        yield found


def _no_group(evidence: Evidence, check: str, device: PciDevice, *, is_given: bool) -> CheckResult:
    source = sysfs.function(device.address, "iommu_group")
    expected = "in an IOMMU group that is whole"
    present = evidence.host.iommu.present if evidence.host.iommu else None
    if not is_given and present is False:
        return skipped(check, device.address, "the IOMMU is off, and no guest has it (see iommu-mode)")
    if is_given and lacks(evidence, source) and not stays_with_driver(device):
        hint = "no guest may have it so: switch the IOMMU on (see iommu-mode), and vfio-no-iommu off"
        return failed(check, device.address, expected=expected, actual="in no group", source=source, hint=hint)
    hint = f"look with: readlink {source}; {RECORD}"
    return unknown(check, device.address, expected=expected, why="its group is not known", hint=hint, source=source)


class _Groupless(NamedTuple):
    """Functions whose group is unknown: they may be in any group (`anywhere`), or in one of their root bus (`behind`).

    The second ones are proven to have no group, but Linux gives a group to every function that an IOMMU translates, and
    it translates all that are behind the ports of a root bus. Only functions on the root bus itself may have none, such
    as the IOMMU's own.
    """

    anywhere: tuple[str, ...]
    behind: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, evidence: Evidence) -> _Groupless:
        anywhere: list[str] = []
        behind: dict[str, tuple[str, ...]] = {}
        for device in evidence.host.pci:
            if device.iommu_group is not None or device.is_bridge:
                continue
            if not lacks(evidence, sysfs.function(device.address, "iommu_group")):
                anywhere.append(device.address)
            elif device.parent is not None and not stays_with_driver(device):
                bus = _root_bus(evidence, device)
                behind[bus] = (*behind.get(bus, ()), device.address)
        return cls(tuple(anywhere), behind)

    def near(self, evidence: Evidence, device: PciDevice) -> tuple[str, ...]:
        """Return those that may be in the group of a device."""
        return (*self.anywhere, *self.behind.get(_root_bus(evidence, device), ()))


def _root_bus(evidence: Evidence, device: PciDevice) -> str:
    """Return domain and bus of the topmost bridge above a function ("0000:15")."""
    return evidence.host.index.path(device.address)[0].rpartition(":")[0]


def _doubt(check: str, device: PciDevice, expected: str, why: str) -> CheckResult:
    hint = f"look with: ls -l {_GROUPS}/{device.iommu_group}/devices; {RECORD}"
    return unknown(check, device.address, expected=expected, why=why, hint=hint)


def _given_group(
    evidence: Evidence, check: str, device: PciDevice, members: list[PciDevice], held: Mapping[str, tuple[str, ...]]
) -> CheckResult:
    """Judge the group of a device that a guest has, or that is ready for a guest."""
    group = device.iommu_group
    source = f"{_GROUPS}/{group}/devices"
    expected = "its whole group free for the same guest"
    owners = sorted({name for member in members for name in held.get(member.address, ())})
    if len(owners) > 1:
        hint = "give all of the group to one of them; ACS at the ports above would separate the devices (see acs)"
        actual = f"group {group} is shared by guests {', '.join(owners)}"
        return failed(check, device.address, expected=expected, actual=actual, source=source, hint=hint)
    foreign = [member for member in members if not member.vfio_viable and not stays_with_driver(member)]
    foreign = [member for member in foreign if member.address != device.address]
    if foreign:
        names = listed([f"{member.address} ({member.driver})" for member in foreign])
        actual = f"group {group} also holds {names}: VFIO will not open it"
        hint = "give these to the same guest (name them in the intent), or bind them to vfio-pci; see acs to split them"
        return failed(check, device.address, expected=expected, actual=actual, source=source, hint=hint)
    silent = [m.address for m in members if driver_unread(evidence, m.address)]
    if silent:
        return _doubt(check, device, expected, f"the driver of {listed(silent, 3)} was not read")
    others = [member.address for member in members if member.address != device.address]
    actual = f"group {group}, {f'with {listed(others)}' if others else 'alone'}"
    return passed(check, device.address, expected=expected, actual=actual, source=source)


def _kept_group(evidence: Evidence, check: str, device: PciDevice, members: list[PciDevice]) -> CheckResult:
    """Judge the group of a GPU that the host keeps: whether it could be given to a guest alone."""
    source = f"{_GROUPS}/{device.iommu_group}/devices"
    others = [m.address for m in members if slot_of(m.address) != slot_of(device.address) and m.physfn is None]
    expected = "a group of its own, so that it can be given by itself"
    if not others:
        return passed(check, device.address, expected=expected, actual=f"group {device.iommu_group}", source=source)
    actual = f"group {device.iommu_group} also holds {listed(others)}"
    hint = "ACS at the ports above separates them (firmware setting, or settings: acs); else one guest gets all of them"
    return warned(check, device.address, expected=expected, actual=actual, source=source, hint=hint)


CHECKS = (
    Check(
        id="iommu-mode",
        title="IOMMU",
        subjects="the host",
        why="without it no device can be given to a guest, and nothing keeps a device's DMA from the host's memory",
        source="Linux Documentation/driver-api/vfio, ABI/testing/sysfs-kernel-iommu_groups, kernel-parameters (iommu)",
        judge=iommu_mode,
        for_guests=True,
    ),
    Check(
        id="interrupt-remapping",
        title="Interrupt remapping",
        subjects="the host, where its IOMMU is on",
        why="without it a guest's device can raise interrupts that are not its own",
        source="Linux drivers/vfio/vfio_iommu_type1.c (allow_unsafe_interrupts); Intel VT-d specification, chapter 5",
        judge=interrupt_remapping,
        for_guests=True,
    ),
    Check(
        id="vfio-no-iommu",
        title="VFIO without IOMMU",
        subjects="the host",
        why="in this mode a device reaches all memory of the host, and no guest can use it: it has no benefit",
        source="Linux drivers/vfio/Kconfig (VFIO_NOIOMMU)",
        judge=vfio_no_iommu,
        for_guests=True,
    ),
    Check(
        id="vfio-unsafe-interrupts",
        title="VFIO without interrupt remapping",
        subjects="the host",
        why="it lets devices be given away although they can raise any interrupt",
        source="Linux drivers/vfio/vfio_iommu_type1.c (allow_unsafe_interrupts)",
        judge=vfio_unsafe_interrupts,
        for_guests=True,
    ),
    Check(
        id="iommu-groups",
        title="Whole IOMMU groups",
        subjects="each GPU of a known maker, and each device that a guest has or that is bound for one",
        why="members of a group reach each other past the IOMMU: given to two guests they are not isolated; a group for"
        " which the firmware keeps memory is refused by VFIO",
        source="Linux Documentation/driver-api/vfio (groups; a viable group), ABI/testing/sysfs-kernel-iommu_groups"
        " (reserved_regions), drivers/iommu/iommu.c (require_direct)",
        judge=iommu_groups,
        none="GPU, and no device that a guest has",
        of_tree=True,
        for_guests=True,
    ),
)
