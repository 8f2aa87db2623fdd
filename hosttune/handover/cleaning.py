"""How the last tenant's data is removed from a device, by its kind, and what shows it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from hosttune.errors import BadInput, HosttuneError, Unreadable
from hosttune.gpu.vgpu_set import LEFT, VgpuFunctions, manage_functions
from hosttune.handover import binding, gpumemory, network, timelimits
from hosttune.handover.erasing import Clock, EraseOrder, erase, erasing, forget_erasing, hold_back, let_go, survey
from hosttune.handover.targets import NVME_DRIVER, Target
from hosttune.machine.child import in_child
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.handover import HandoverStep, StepOutcome
from hosttune.model.host import Host
from hosttune.settings import resets
from hosttune.settings.setting import driver_of
from hosttune.transaction.site import Site


class Work(msgspec.Struct, frozen=True):
    """What the erasing of a device may use of its hand-over: where, with which devices, and its number.

    `reset`: resets the device, and leaves it on the host's driver.
    """

    site: Site
    targets: Sequence[Target]
    number: int
    discover: Callable[[], Host]
    reset: Callable[[], HandoverStep]


class Erasure(msgspec.Struct, frozen=True):
    """The step that erases one device. Times in seconds; None: unknown."""

    work: Callable[[], HandoverStep]
    limit_seconds: float | None = None
    estimate_seconds: float | None = None


class Cleaning:
    """Erases devices, each kind in its own way. What it has no way for is not supported.

    `clock`: of the erasure of drives; None: the machine's.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock

    def before_anything(self, site: Site, target: Target, number: int) -> None:
        """Keep what a device is like before anything is done to it, where that can be read. Raises HosttuneError.

        A drive is kept from udev already here: after a power cut the host's driver finds it at the boot.
        """
        self.before_driver(site, target)
        if target.kind != "nic" or site.store is None:
            return
        if target.physical is not None:
            network.first_look_of_virtual(site.system, site.store.folder, target, target.physical)
        else:
            network.first_look(site.system, site.store.folder, target, number)

    def before_reset(self, site: Site, target: Target) -> None:
        """Remove what would go with the driver: the virtual functions of a NIC or GPU. Raises HosttuneError."""
        if target.kind == "nic" and target.physical is None:
            network.remove_all(site.system, target.address)
        functions = VgpuFunctions(target.address)
        taken = functions.taken(site.system) if target.kind == "gpu" else ()
        state = functions.read(site.system) if taken else None
        if state is True or (state == LEFT and len(taken) > 1):  # one of them may be without a driver
            for function in taken:
                binding.refuse_users(site.system, function)
            remove = partial(manage_functions, site.system, target.address, on=False)
            in_child(remove, VgpuFunctions.limit_seconds or 0.0, f"virtual functions of {target.address}")
            site.system.forget()

    def before_driver(self, site: Site, target: Target) -> None:
        """Prepare for the host's driver, before it gets the device. Raises HosttuneError: then it must not get it."""
        if target.serial is not None:
            hold_back(site.system, target.address, target.serial)

    def after_driver(self, site: Site, target: Target, *, erased: bool) -> None:
        """Undo `before_driver`, after the device was returned. Raises HosttuneError.

        A drive that stays with the host's driver and was not proven erased is still kept from udev.
        """
        if target.kind == "nvme" and (erased or driver_of(site.system, target.address) != NVME_DRIVER):
            let_go(site.system, target.address)

    def finished(self, site: Site, target: Target, number: int, *, clean: bool) -> None:
        """Remove what was kept to go on after a cut, once the statement is on the disk. Raises HosttuneError.

        What has not ended (the time limit came first) stays: another hand-over waits on. What a clean network function
        is like now is what the next hand-over compares with.
        """
        if site.store is not None and target.kind == "nic" and clean:
            network.settle(site.store.folder, target.address, target.identity, "clean", f"as of hand-over {number}")
        if site.store is None or target.kind != "nvme":
            return
        try:
            known = erasing(site.store.folder, target.address)
        except BadInput:
            return  # damaged: the erasure has said it, and it stays until a release
        if known is not None and known.step is not None:
            forget_erasing(site.store.folder, target.address)

    def erasure(self, work: Work, target: Target, *, back: bool) -> Erasure:
        """Return the step that erases a device. `back`: the host's driver has it. Raises BadInput."""
        if not back:
            return _answer("unknown", "the host's driver does not have the device")
        if target.kind == "nvme" and target.serial is not None:
            return _unless_left(work, target, self._drive(work, target))
        if target.kind == "gpu":
            step = Erasure(lambda: _gpu(work, target), *timelimits.of_memory(work.site.system, target))
            return _unless_left(work, target, step)
        if target.kind == "nic":
            return _unless_left(work, target, _network(work, target))
        if target.kind == "nvswitch":
            return _answer(
                "not-supported",
                "what an NVSwitch keeps over a reset cannot be read, and no source says that a reset clears the rest",
            )
        return _answer("not-supported", f"hosttune knows no way to erase a device of the kind {target.kind}")

    def _drive(self, work: Work, target: Target) -> Erasure:
        site = work.site
        assert site.store is not None
        folder = site.store.folder
        order = EraseOrder(
            address=target.address,
            serial=target.serial or "",
            handover=target.handover or str(work.number),
            owner=target.owner,
            belonging=tuple(target.address for target in work.targets),
        )
        limit, estimate = None, None
        with contextlib.suppress(HosttuneError):  # the erasure says it
            known = erasing(folder, target.address)
            if known is None or known.order.handover != order.handover:  # of an earlier one: `erase` begins anew
                found = survey(site.system, order)
                limit, estimate = found.limit_seconds, found.estimate_seconds
            else:
                limit, estimate = known.limit_seconds, known.estimate_seconds
        return Erasure(lambda: erase(site.system, folder, order, self._clock), *timelimits.of_drive(limit, estimate))


def can_erase(target: Target) -> bool:
    """Return whether hosttune knows a way to erase such a device. Without one it never becomes clean."""
    return bool(target.search) if target.kind == "gpu" else target.kind in ("nvme", "nic")


def _unless_left(work: Work, target: Target, erasure: Erasure) -> Erasure:
    """Return the erasure, which is not begun while parts that a tenant had are still there, or that is unknown."""

    def step() -> HandoverStep:
        left, unknown = parts_left(work.site.system, work.discover(), target)
        if left:
            return HandoverStep(step="erased", outcome="failed", why=f"still there: {'; '.join(left)}")
        if unknown:
            return HandoverStep(step="erased", outcome="unknown", why=f"it is unknown {'; '.join(unknown)}")
        return erasure.work()

    return Erasure(step, erasure.limit_seconds, erasure.estimate_seconds)


def _network(work: Work, target: Target) -> Erasure:
    """Compare what the function keeps, or put back what its physical function keeps for it."""
    site, physical = work.site, target.physical
    assert site.store is not None
    system, folder = site.system, site.store.folder
    if physical is not None:
        return Erasure(
            lambda: network.put_back(system, folder, target, physical),
            network.LIMIT_SECONDS,
            network.ESTIMATE_SECONDS,
        )
    return Erasure(
        lambda: network.compare(system, folder, target, driver_of(system, target.address), work.number),
        network.LIMIT_SECONDS,
        network.ESTIMATE_SECONDS,
    )


def _gpu(work: Work, target: Target) -> HandoverStep:
    """Search the memory of a GPU, whose size its driver says now."""
    gpu = work.discover().index.gpus.get(target.address)
    return gpumemory.search(work.site.system, target, gpu.memory_bytes if gpu is not None else None, work.reset)


def _answer(outcome: StepOutcome, why: str) -> Erasure:
    step = HandoverStep(step="erased", outcome=outcome, why=why)
    return Erasure(work=lambda: step)


# --- what may be left on the host ------------------------------------------------------------------------------
# What a tenant's use can have left on the host: parts of a device, and files with its guest's memory.
# Memory: when a guest has ended, its pages are the kernel's. It zeroes a page before it gives it to a program again:
# mm/memory.c (do_anonymous_page: a zeroed folio), mm/hugetlb.c (hugetlb_no_page: clear_huge_page, folio_zero_user
# since 6.11), mm/shmem.c (shmem_get_folio_gfp clears). hosttune zeroes nothing. Only a file that was left, in
# hugetlbfs or in libvirt's folder of memory files, keeps pages with their contents: libvirt makes ID-NAME of at most
# 20 characters of the name there, and removes it at the guest's end (src/qemu/qemu_process.c,
# virDomainDefGetShortName). All of a guest's memory is also in what libvirt saved or dumped of it: NAME.save (virsh
# managedsave: qemuDomainManagedSavePath) and ID-NAME-TIME (on_crash: getAutoDumpPath, both src/qemu/qemu_driver.c),
# at the places of an unchanged qemu.conf.

_MOUNTS, _MDEVS = "/proc/self/mounts", "/sys/bus/mdev/devices"
_SAVED, _DUMPED = "/var/lib/libvirt/qemu/save", "/var/lib/libvirt/qemu/dump"
_WHEN = r"-[0-9]{4}(?:-[0-9]{2}){3}(?::[0-9]{2}){2}$"  # the end of a dump's name: -2026-01-31-12:00:59
_SHORT = 20  # characters of a guest's name in its folder
ZEROED = "freed at the guest's end, and zeroed by the kernel before a program gets them"


def parts_left(system: System, host: Host, target: Target) -> tuple[list[str], list[str]]:
    """Return (the parts of a device that a tenant had, which are still there; what cannot be told), one text each.

    The host's driver has the device. Raises Unreadable.
    """
    function, gpu = host.index.pci.get(target.address), host.index.gpus.get(target.address)
    left, unknown = [], []
    if function is not None and function.virtfns:
        left.append(f"virtual functions {', '.join(function.virtfns)}: set their number to 0")
    for name in system.list(_MDEVS):
        path = system.link(f"{_MDEVS}/{name}")
        if path is None:
            unknown.append(f"of which device the mediated device {name} is")
        elif target.address in sysfs.functions_in(path):
            left.append(f"mediated device {name}: echo 1 > {_MDEVS}/{name}/remove")
    mig = gpu.mig if gpu is not None else None
    if mig is not None and mig.instances:
        left.append(f"{len(mig.instances)} MIG instances: destroy them with the maker's tool")
    unlisted = mig is None or (mig.mode != "disabled" and mig.instances is None)
    if gpu is not None and target.search and unlisted and "mig" not in (gpu.lacks or ()):
        unknown.append("whether it has MIG instances")
    return left, unknown


def memory_left(system: System, guest: str) -> list[str]:
    """Return the files and folders that may have the memory of a guest that has ended. Raises Unreadable."""
    text = system.read(_MOUNTS)
    if text is None:
        raise Unreadable(_MOUNTS, "it does not exist: where huge pages are mounted is unknown")
    mounted = [words[1] for line in text.splitlines() for words in (line.split(" "),) if words[2:3] == ["hugetlbfs"]]
    places = [*(f"{mount}/libvirt/qemu" for mount in dict.fromkeys(mounted)), "/var/lib/libvirt/qemu/ram"]
    saved = f"{_SAVED}/{guest}.save"
    return [
        *(f"{place}/{name}" for place in places for name in system.list(place) if _is_of(name, guest)),
        *([saved] if system.exists(saved) else []),
        *(f"{_DUMPED}/{name}" for name in system.list(_DUMPED) if _is_of(re.sub(_WHEN, "", name), guest)),
    ]


def _is_of(name: str, guest: str) -> bool:
    """Return whether libvirt's short name of a guest can be that of this one."""
    number, _, short = name.partition("-")
    return number.isdecimal() and short == guest[:_SHORT]


# --- resets ----------------------------------------------------------------------------------------------------
# The reset of a device of a hand-over, by a method that is known to clear it (`settings.resets`).

# In this order. `pm` is left out: the PCI standard does not say that it clears what is in a device.
_CLEARING = ("device_specific", "acpi", "flr", "af_flr", "bus")


def method_of(methods: Sequence[str] | None, weak: Mapping[str, str]) -> str | None:
    """Return the reset method to use, of those that the kernel has for a function; None if none clears it."""
    known = methods or ()
    return next((method for method in _CLEARING if method in known and method not in weak), None)


def reset(system: System, target: Target) -> HandoverStep:
    """Reset a function that no driver of the host has. Raises HosttuneError for what the kernel refuses."""
    driver = driver_of(system, target.address)
    if driver is not None and "vfio" not in driver:
        return _step("failed", None, why=f"{driver} has the device: it would be reset under its driver")
    method = method_of(target.methods, target.weak)
    if method is None:
        if target.methods is None:
            why = "which reset methods the kernel has for it is unknown"
        else:
            weak = "; ".join(f"{method}: {target.weak[method]}" for method in target.methods if method in target.weak)
            offered = ", ".join(target.methods) or "none"
            why = f"no reset method that clears it: the kernel offers {offered}{f' ({weak})' if weak else ''}"
        return _step("unknown" if target.methods is None else "not-supported", None, why=why)
    done = resets.reset(system, target.address, method, target.methods)
    evidence = {
        "offered": list(target.methods or ()),
        "reset_method": done.method,
        "kernel": "the write to reset succeeded",
        "seconds": done.seconds,
        "ids": done.ids,
    }
    if done.ids is None:
        return _step("unknown", method, evidence, "its configuration space cannot be read")
    # Why a device is not as before its reset, by the beginning of its configuration space. A virtual function
    # reads all ones as its ids (PCI Express Base Specification 5.0, 9.3.4.1.1 and 9.3.4.1.2).
    wrong, before = None, target.identity.split(" ")[1]
    if not done.answers or (target.physical is None and str(done.ids).startswith("ffff:")):
        wrong = "it does not answer any more: it reads all ones"
    elif target.physical is None and "?" not in before and done.ids != before:
        wrong = f"it was {before} before its reset, and says that it is {done.ids}: its firmware may not have started"
    return _step("failed" if wrong else "done", method, evidence, wrong)


def _step(
    outcome: StepOutcome, method: str | None, evidence: Mapping[str, object] | None = None, why: str | None = None
) -> HandoverStep:
    name = f"{method} reset" if method is not None else None
    return HandoverStep(step="reset", outcome=outcome, method=name, evidence=evidence, why=why)


def reason(error: HosttuneError | OSError) -> str:
    """Return what an error says, on one line."""
    text = error.what if isinstance(error, HosttuneError) else str(error)
    return " ".join(text.split())
