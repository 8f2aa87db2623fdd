"""System → Evidence: the host document, and what only a validation needs. Changes nothing.

Each reader is a row of `READERS`. Its function takes a Reader and the Host and returns the value of the field, None
where it is unknown. `hosttune capture` runs all of them on a recording, so that a capture holds what they read.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import NamedTuple

import msgspec

from hosttune.discovery import discover
from hosttune.discovery.health import read_counted_later
from hosttune.errors import BadInput
from hosttune.gpu import VENDORS
from hosttune.linux.irqbalance import IRQBALANCE
from hosttune.linux.tuned import ACTIVE
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.counters import last_reading
from hosttune.model.evidence import LIBVIRT_ANSWER, Evidence
from hosttune.model.guestplan import PLACE, UNREADABLE, GuestPlan
from hosttune.model.host import GpuPort, Host
from hosttune.model.plan import Plan
from hosttune.model.result import Result
from hosttune.model.validation import Validation
from hosttune.model.values import MAX_SIZE
from hosttune.settings.files import Ksm, NumaBalancing, Thp


class FactReader(NamedTuple):
    """A field of Evidence, the module of this package that reads it, and its function."""

    field: str
    module: str
    function: str


READERS: tuple[FactReader, ...] = (
    FactReader("bar_limits", "evidence", "read_bar_limits"),
    FactReader("irqbalance", "evidence", "read_irqbalance"),
    FactReader("absent", "evidence", "read_absent"),
    FactReader("ksm_pages_shared", "evidence", "read_ksm_pages_shared"),
    FactReader("gpu_ports", "evidence", "read_gpu_ports"),
    FactReader("guest_plan", "evidence", "read_guest_plan"),
    FactReader("library_files", "guestlibrary", "read_library_files"),
    FactReader("rdma_access", "guestlibrary", "read_rdma_access"),
    FactReader("health", "health", "read_health"),
    FactReader("fabric_manager", "fabric", "read_fabric_manager"),
    FactReader("looks", "looks", "read_looks"),
    FactReader("guest_runs", "looks", "read_guest_runs"),
    FactReader("processes", "processes", "read_processes"),
    FactReader("leftovers", "processes", "read_leftovers"),
    FactReader("ports", "ports", "read_ports"),
    FactReader("configuration", "configuration", "read_configuration"),
    FactReader("clocks", "clocks", "read_clocks"),
    FactReader("port_details", "portdetails", "read_port_details"),
    FactReader("port_info", "portinfo", "read_port_info"),
    FactReader("roce", "roce", "read_roce"),
    FactReader("tuned_verified", "settings", "read_tuned_verified"),
    FactReader("security", "security", "read_security"),
)
# Up to which number a capture of today has facts (`Check.since`); a new kind of fact has the next one. A capture made
# before a fact was read lacks it, which is no fault and no doubt of its machine. 1: `linux.kernellines`; 2: `security`.
FACTS = 2
_UNITS = tuple(
    f"{folder}/irqbalance.service"
    for folder in ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
)
IRQBALANCE_UNIT = "irqbalance-unit"  # name of the query; answers: absent, masked or installed
# Paths whose absence means that the kernel or the machine does not have the feature. `_ABSENT_OF_CPU` and
# `_ABSENT_OF_FUNCTION` are such files of each CPU and each PCI function.
_ABSENT = (
    sysfs.PCI_DEVICES,
    sysfs.NODES,
    "/sys/kernel/mm/hugepages",
    Ksm.path,
    Thp.path,
    NumaBalancing.path,
    sysfs.MAX_PERF_PERCENT,
    "/sys/module/kvm_amd",
    "/sys/module/kvm_amd/parameters/avic",
    "/sys/module/kvm_intel",
    "/sys/module/kvm_intel/parameters/enable_apicv",
    "/sys/module/vfio",
    "/sys/module/vfio_iommu_type1",
    "/sys/module/vfio_pci",
    "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
    "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts",
    "/sys/module/vfio_iommu_type1/parameters/disable_hugepages",
    "/sys/module/vfio_pci/parameters/disable_denylist",
    "/sys/module/vfio_pci/parameters/nointxmask",
    sysfs.VULNERABILITIES,
    sysfs.CLOCKSOURCE,
    LIBVIRT_ANSWER,
    PLACE,
    ACTIVE,
    *IRQBALANCE,
)
_ABSENT_OF_CPU = ("cpufreq/scaling_governor", "cpufreq/energy_performance_preference", "power/pm_qos_resume_latency_us")
_ABSENT_OF_FUNCTION = (
    "driver",
    "iommu_group",
    "current_link_speed",
    "aer_dev_correctable",
    "aer_dev_nonfatal",
    "aer_dev_fatal",
    "sriov_totalvfs",
)
_MASK = re.compile(r"[0-9a-f]{1,16}")
_SMALLEST_BAR = 20  # bit n of resourceN_resize stands for 2**(n + 20) bytes


def gather(
    system: System,
    *,
    inside: bool = False,
    plans: tuple[Plan, ...] = (),
    applied_state: Result | None = None,
    history: tuple[Validation, ...] = (),
    wait: bool = False,
) -> Evidence:
    """Return everything that a validation looks at.

    The caller reads `plans`, `applied_state` and `history` from the state. `wait`: error counters that are not 0, and
    that no validation of this boot has, are read again some seconds later. What could not be read is in `problems`.
    Raises BadInput if the system is not a host, or if a capture is hostile.
    """
    host = discover(system)
    reader = Reader(system)
    evidence = Evidence(
        host=host,
        inside=inside,
        plans=plans,
        applied_state=applied_state,
        history=history,
        complete=system.complete,
        facts=system.facts,
        **{
            field: getattr(import_module(f"hosttune.discovery.{module}"), function)(reader, host)
            for field, module, function in READERS
        },
    )
    twice = system.captured or (wait and last_reading(evidence) is None)
    later = read_counted_later(reader, evidence) if twice else None
    return msgspec.structs.replace(evidence, counted_later=later, problems=tuple(reader.problems))


def read_gpu_ports(reader: Reader, host: Host) -> dict[str, tuple[GpuPort, ...]]:
    """Return the network ports of each GPU that carries some, as its maker's tool lists them."""
    gpu_ports: dict[str, tuple[GpuPort, ...]] = {}
    for vendor in VENDORS:
        functions = tuple(host.index.pci[gpu.address] for gpu in host.gpus if gpu.vendor == vendor.name)
        if vendor.ports is not None and functions:
            gpu_ports.update(vendor.ports.read(reader, functions))
    return gpu_ports


def read_guest_plan(reader: Reader, host: Host) -> GuestPlan | None:
    """Return what this machine, a guest, should have according to its plan; None if there is no such document.

    The guest's seed left the document on the machine. A document that cannot be read is a problem.
    """
    text = reader.text(PLACE)
    if text is None:
        return None
    try:
        return GuestPlan.from_json(text)
    except BadInput as error:
        reader.problem(UNREADABLE, error.where, error.what)
        return None


def read_absent(reader: Reader, host: Host) -> tuple[str, ...]:
    """Return the paths that the machine is proven not to have, of those whose absence is an answer to some check.

    Where the drivers' folders list every endpoint that has a driver, one that none of them lists has no driver.
    """
    asked = [*_ABSENT]
    asked += [f"{sysfs.CPUS}/cpu{cpu.id}/{name}" for cpu in host.cpus for name in _ABSENT_OF_CPU]
    asked += [f"{sysfs.PCI_DEVICES}/{function.address}/{name}" for function in host.pci for name in _ABSENT_OF_FUNCTION]
    absent = [path for path in asked if reader.lacks(path)]
    if not reader.system.complete:
        drivers = reader.names(sysfs.PCI_DRIVERS)
        bound = {name for driver in drivers for name in reader.names(f"{sysfs.PCI_DRIVERS}/{driver}")}
        functions = {function.address: function.driver for function in host.pci if not function.is_bridge}
        if bound and bound.issuperset(address for address, driver in functions.items() if driver):
            absent += [sysfs.function(address, "driver") for address in functions if address not in bound]
    return tuple(absent)


def read_bar_limits(reader: Reader, host: Host) -> dict[str, int]:
    """Return the largest size that a GPU's resizable BARs can have, in bytes by address.

    0: the GPU has no resizable BAR. No entry: unknown. Source: Documentation/ABI/testing/sysfs-bus-pci,
    resource<N>_resize (Linux 6.1): a bit mask of sizes.
    """
    limits: dict[str, int] = {}
    for gpu in host.gpus:
        folder = sysfs.function(gpu.address)
        masks = {name: reader.text(f"{folder}/{name}") or "" for name in (f"resource{bar}_resize" for bar in range(6))}
        read = {name: int(mask, 16) for name, mask in masks.items() if _MASK.fullmatch(mask)}
        if all(name in read or reader.lacks(f"{folder}/{name}") for name in masks):
            limits[gpu.address] = 0
        for bits in filter(None, read.values()):
            size = 1 << (bits.bit_length() - 1 + _SMALLEST_BAR)
            limits[gpu.address] = max(limits.get(gpu.address, 0), min(size, MAX_SIZE))
    return limits


def read_irqbalance(reader: Reader, host: Host) -> bool | None:
    """Return whether irqbalance is installed as a systemd unit that is not masked (systemd.unit(5)).

    None: not recorded. It is a query, because the link of a masked unit leads to /dev/null, which no capture holds.
    """
    system = reader.system

    def live() -> str:
        unit = next((path for path in _UNITS if system.exists(path) or system.link(path) is not None), None)
        return "absent" if unit is None else "masked" if system.link(unit) == "/dev/null" else "installed"

    answer = reader.query(IRQBALANCE_UNIT, live)
    return None if answer is None else answer.strip() == "installed"


def read_ksm_pages_shared(reader: Reader, host: Host) -> int | None:
    """Return the number of pages that same-page merging (KSM) shares now (admin-guide/mm/ksm)."""
    return reader.count("/sys/kernel/mm/ksm/pages_shared")
