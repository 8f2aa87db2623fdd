"""The host's CPUs: where each one is, with which CPUs it shares a core or cache, and which settings it runs with.

Second step of discovery: takes the NUMA nodes of `memory` and returns the `Cpu`s and the `CpuModel` of the host
document. `topology` reads what CPUs share; this module reads which CPUs may be used, and their settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from hosttune.discovery.cpuinfo import blocks_by_cpu, first_block, model_of, read_cpuinfo, values_of, vendor_of
from hosttune.discovery.sets import parse_list, read_list, read_set
from hosttune.discovery.topology import CPUS, read_caches, read_homes, read_kinds, read_places
from hosttune.machine.reader import Reader, number
from hosttune.model.host import Cpu, CpuModel, NumaNode
from hosttune.model.limits import check_count
from hosttune.model.values import MAX_ID, CpuSet

_CPU_NAME = re.compile(r"cpu([0-9]+)")
_OF_THREADS = re.compile(r"emulator|(?:vcpu|iothread)[0-9]+")  # libvirt's groups, vircgroup.c
_ADDRESS_SIZES = re.compile(r"([0-9]{1,4}) bits physical, ([0-9]{1,4}) bits virtual")


def read_cpus(reader: Reader, nodes: tuple[NumaNode, ...]) -> tuple[tuple[Cpu, ...], CpuModel]:
    """Return all CPUs that are present or have a directory, sorted by id, and the facts that they have in common.

    `numa_node` comes from the CPU lists of `nodes`. For an offline CPU, its place (core, package, node, caches) and
    `allowed` are None. Facts that the kernel does not give are None.
    """
    cpuinfo = read_cpuinfo(reader)
    directories, present, online = _read_ids(reader, cpuinfo)
    homes = read_homes(reader, nodes, online)
    packages, dies, cores = read_places(reader, online, homes, cpuinfo)
    first = min(online & directories, default=None)
    names = [] if first is None else reader.names(f"{CPUS}/cpu{first}")
    llc, l2 = read_caches(reader, online, packages) if "cache" in names else ({}, {})
    kinds, hybrid = read_kinds(reader, cores, names)
    isolated, nohz_full = _isolated_cpus(reader), _nohz_full_cpus(reader)
    allowed = _allowed_cpus(reader, online)
    settings, driver = _read_running(reader, online, first, names)
    cpus = tuple(
        Cpu(
            id=cpu,
            core=cores.get(cpu),
            package=packages.get(cpu),
            die=dies.get(cpu),
            numa_node=homes.get(cpu),
            llc=llc.get(cpu),
            l2=l2.get(cpu),
            online=cpu in online,
            isolated=None if isolated is None else cpu in isolated,
            nohz_full=None if nohz_full is None else cpu in nohz_full,
            allowed=(allowed is None or cpu in allowed) if cpu in online else None,
            kind=kinds.get(cpu),
            **{name: values.get(cpu) for name, values in settings.items()},
        )
        for cpu in sorted(directories | present | online)
    )
    return cpus, _read_model(reader, cpuinfo, hybrid, driver)


def _read_ids(reader: Reader, cpuinfo: str) -> tuple[CpuSet, CpuSet, CpuSet]:
    """Return the CPUs that have a directory of their own in sysfs, those that are present, and those online."""
    numbers = (number(match[1], MAX_ID) for name in reader.names(CPUS) if (match := _CPU_NAME.fullmatch(name)))
    directories = CpuSet(cpu for cpu in numbers if cpu is not None)
    present = _with_directory(reader, read_set(reader, f"{CPUS}/present") or CpuSet(), directories, "present")
    online = _with_directory(reader, _online_cpus(reader, directories, cpuinfo), directories, "online")
    check_count(len(directories | present | online), "CPUs", f"{reader.system.origin}: {CPUS}")
    if not online:
        reader.problem("no CPUs", CPUS, "neither sysfs nor /proc/cpuinfo lists an online CPU")
    return directories, present, online


def _with_directory(reader: Reader, cpus: CpuSet, directories: CpuSet, name: str) -> CpuSet:
    """Return the listed CPUs that have a directory.

    Every present CPU has one, so the others are left out, with a problem. If no CPU has a directory (an incomplete
    capture), all listed CPUs are returned.
    """
    missing = cpus - directories
    if not directories or not missing:
        return cpus
    reader.problem("CPUs without a directory", f"{CPUS}/{name}", f"it lists CPUs {missing}, which are left out")
    return cpus & directories


def _online_cpus(reader: Reader, directories: Iterable[int], cpuinfo: str) -> CpuSet:
    """Return the online CPUs: the kernel's list, or else each CPU's own `online` file, or else /proc/cpuinfo.

    A CPU that cannot be unplugged has no `online` file and counts as online.
    """
    listed = read_set(reader, f"{CPUS}/online")
    if listed:
        return listed
    online = CpuSet(cpu for cpu in directories if reader.text(f"{CPUS}/cpu{cpu}/online") != "0")
    return online or CpuSet(blocks_by_cpu(cpuinfo))


# --- which CPUs may be used ----------------------------------------------------------------------------------


def _isolated_cpus(reader: Reader) -> CpuSet | None:
    """Return the CPUs that the scheduler does not use by itself: isolcpus, and isolated partitions of cgroup 2.

    Sources: /sys/devices/system/cpu/isolated, or else the kernel argument; and cpuset.cpus.isolated.
    """
    booted = read_set(reader, f"{CPUS}/isolated")
    if booted is None:
        booted = _cpus_of_argument(reader, "isolcpus")
    partitions = read_set(reader, "/sys/fs/cgroup/cpuset.cpus.isolated")
    return booted if partitions is None else (booted or CpuSet()) | partitions


def _nohz_full_cpus(reader: Reader) -> CpuSet | None:
    """Return the CPUs on which the kernel stops the scheduler tick while only one task runs (nohz_full)."""
    running = read_set(reader, f"{CPUS}/nohz_full")
    return _cpus_of_argument(reader, "nohz_full") if running is None else running


def _cpus_of_argument(reader: Reader, name: str) -> CpuSet | None:
    """Return the CPU list of a kernel argument.

    None if the command line is unknown, or if the argument has a form that only the kernel can expand.
    """
    arguments = reader.text("/proc/cmdline")
    if arguments is None:
        return None
    values = [word.partition("=")[2] for word in arguments.split() if word.startswith(f"{name}=")]
    # isolcpus=managed_irq,domain,2-7: flags come before the list.
    parts = [part for part in values[-1].split(",") if not part.isalpha() and part != "managed_irq"] if values else []
    try:
        return parse_list(",".join(parts))
    except ValueError:
        reader.problem("unreadable CPU list", "/proc/cmdline", f"{name}={values[-1][:80]} is not expanded here")
        return None


def _allowed_cpus(reader: Reader, online: CpuSet) -> CpuSet | None:
    """Return the CPUs of the cpuset that guests started by root get.

    None if no cpuset limits them, or if it is unknown. libvirt puts system guests into machine.slice (without systemd:
    /machine). If that group does not exist yet and this process is in another slice of systemd, the guests will get the
    CPUs of the root group. If this process is in any other cpuset (of a batch system or a container), hosttune assumes
    that guests will be started in the same cpuset. The affinity mask of this process is not used, because isolcpus and
    taskset narrow it.
    """
    mount, names = _cpuset_mount(reader)
    if mount is None:
        return None
    own = reader.text("/proc/self/cpuset") or "/"
    if not _is_plain(own):  # "/../x" is a group outside this cgroup namespace, so only the root is visible
        own = "/"
    groups = reader.names(mount)
    group = next((f"/{name}" for name in ("machine.slice", "machine") if name in groups), own)
    if group.split("/")[1] in ("user.slice", "system.slice", "init.scope"):
        group = "/"
    allowed = _cpus_of_group(reader, mount, group, names)
    if allowed is not None and group == own != "/" and online - allowed:
        why = f"this process may use CPUs {allowed}: guests are taken to be started from the same cpuset"
        reader.problem("cpuset of a batch system or container", f"{mount}{group}", why)
    return allowed


def cpuset_of_guest(reader: Reader, process: int) -> tuple[str, CpuSet] | None:
    """Return the control group above those of a guest's threads, and its CPUs; None if no cpuset limits it, or unknown.

    libvirt gives each vCPU, each I/O thread and the emulator a group of its own, whose CPUs follow the pins. Of the
    groups above, the uppermost that has no more CPUs is named, because that is the one to change.
    """
    mount, names = _cpuset_mount(reader)
    own = reader.text(f"/proc/{process}/cpuset")
    if mount is None or not own or not _is_plain(own):
        return None
    group = own.rpartition("/")[0] if _OF_THREADS.fullmatch(own.rpartition("/")[2]) else own
    cpus = _cpus_of_group(reader, mount, group, names)
    if cpus is None:
        return None
    while (above := group.rpartition("/")[0]) and _cpus_of_group(reader, mount, above, names) == cpus:
        group = above
    return group, cpus


def _cpuset_mount(reader: Reader) -> tuple[str | None, tuple[str, ...]]:
    """Return the mount point of cpusets, and the names of the files that may hold a group's CPUs.

    Version 1 compares a child with its parent's configured list (kernel/cgroup/cpuset-v1.c). A few kernels narrow
    `effective_cpus` further, but that does not limit a guest's group.
    """
    mounts = reader.text("/proc/mounts") or reader.text("/proc/self/mounts") or ""
    unified = None
    for line in mounts.splitlines():
        _, mount, kind, options = (*line.split(), "", "", "", "")[:4]
        if not _is_plain(mount):
            continue
        if kind == "cpuset" or (kind == "cgroup" and "cpuset" in options.split(",")):
            return mount, ("cpuset.cpus", "cpus")
        if kind == "cgroup2" and unified is None:
            unified = mount
    return unified, ("cpuset.cpus.effective",)


def _is_plain(path: str) -> bool:
    """Return whether text that the machine gave may be used as a path: it is absolute and has no ".."."""
    return path.startswith("/") and ".." not in path.split("/")


def _cpus_of_group(reader: Reader, mount: str, group: str, names: Iterable[str]) -> CpuSet | None:
    """Return the CPUs of a control group, or of the nearest group above it that has a list of CPUs."""
    path = f"{mount}{group}".rstrip("/")
    while path.startswith(mount):
        for name in names:
            cpu_set = read_set(reader, f"{path}/{name}")
            if cpu_set:
                return cpu_set
        path = path.rpartition("/")[0]
    return None


# --- settings of CPUs ----------------------------------------------------------------------------------------


def _read_running(
    reader: Reader, online: CpuSet, first: int | None, names: Sequence[str]
) -> tuple[dict[str, dict[int, Any]], str | None]:
    """Return the settings of CPUs by field of `Cpu` and CPU, and the one frequency driver of all CPUs.

    If the first CPU lacks a file, all CPUs lack it. `names` lists the first CPU's directory.
    """
    folders = [folder for folder in ("cpufreq", "power") if folder in names]
    files = {f"{folder}/{name}" for folder in folders for name in reader.names(f"{CPUS}/cpu{first}/{folder}")}

    def each(name: str) -> dict[int, str]:
        if name not in files:
            return {}
        texts = ((cpu, reader.text(f"{CPUS}/cpu{cpu}/{name}")) for cpu in sorted(online))
        return {cpu: text for cpu, text in texts if text}

    # The kernel has one driver for all CPUs (drivers/cpufreq/cpufreq.c, cpufreq_register_driver).
    drivers = sorted(set(each("cpufreq/scaling_driver").values()))
    if len(drivers) > 1:
        where = f"{CPUS}/cpu*/cpufreq/scaling_driver"
        reader.problem("CPUs of several frequency drivers", where, " and ".join(drivers)[:80])
    settings = {
        "governor": each("cpufreq/scaling_governor"),
        "energy_preference": each("cpufreq/energy_performance_preference"),
        "resume_latency_us": each("power/pm_qos_resume_latency_us"),
    }
    return settings, drivers[0] if len(drivers) == 1 else None


# --- facts that all CPUs have in common ----------------------------------------------------------------------


def _read_model(reader: Reader, cpuinfo: str, hybrid: bool | None, scaling_driver: str | None) -> CpuModel:
    """Return the CPU model and the settings that apply to all CPUs."""
    block = first_block(cpuinfo)
    sizes = _ADDRESS_SIZES.search(block.get("address sizes", ""))
    flags = block.get("flags") or block.get("Features") or block.get("features")
    smt = f"{CPUS}/smt"
    smt_active = reader.count(f"{smt}/active")
    # The CPUs' maker; None, with a problem, if /proc/cpuinfo names several (no machine mixes them).
    named = values_of(cpuinfo, "vendor_id") - {""}
    if len(named) > 1:
        reader.problem("CPUs of several makers", "/proc/cpuinfo", " and ".join(sorted(named))[:80])
    return CpuModel(
        vendor=vendor_of(block) if len(named) <= 1 else None,
        model=model_of(block),
        physical_address_bits=number(sizes[1], 64) if sizes else None,
        virtual_address_bits=number(sizes[2], 64) if sizes else None,
        flags=tuple(flags.split()) if flags else None,
        possible=read_list(reader, f"{CPUS}/possible"),
        present=read_list(reader, f"{CPUS}/present"),
        smt_control=reader.text(f"{smt}/control"),
        smt_active=None if smt_active is None else smt_active == 1,
        scaling_driver=scaling_driver,
        idle_driver=reader.text(f"{CPUS}/cpuidle/current_driver"),
        hybrid=hybrid,
    )
