"""System → configuration facts: firmware, drivers, kernel, and settings of the BIOS that the OS can see. Read only.

`read_configuration` reads what no other part of the evidence has; `configuration_of` puts all facts together and is
pure. A capture must hold, as far as the host has them: /sys/class/dmi/id/bios_*, the microcode in /proc/cpuinfo and of
CPU 0, the names of CPU 0's idle states, `no_turbo` or `boost`, /sys/firmware/efi, /sys/kernel/security/lockdown,
`firmware_rev` of NVMe controllers, `fw_ver` of RDMA devices, and the answers `ethtool-i-INTERFACE` and
`memory-modules`.

Sources: drivers/firmware/dmi-id.c; arch/x86/kernel/cpu/proc.c and microcode/core.c; admin-guide/pm/cpuidle,
admin-guide/pm/intel_pstate (no_turbo) and admin-guide/pm/cpufreq (boost); kernel_lockdown(7);
drivers/nvme/host/sysfs.c; Documentation/ABI/stable/sysfs-class-infiniband; include/uapi/linux/ethtool.h.
"""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from hosttune.discovery.cpuinfo import read_cpuinfo, values_of
from hosttune.errors import Unreadable
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.configuration import FACT_KINDS, Fact, alike_arguments, sane
from hosttune.model.evidence import SECURE_BOOT, Evidence
from hosttune.model.gpu import OTHER
from hosttune.model.host import Host
from hosttune.model.values import grouped

# --- memory modules (SMBIOS) ---------------------------------------------------------------------------------
# Source: SMBIOS, DMTF DSP0134 3.7: structures (6.1.2), end of the table (7.45), memory device (7.18). The kernel
# gives the table to root only, and it has serial numbers, so that a capture holds this answer in its place.


MEMORY_MODULES = "memory-modules"  # name of the query
_TABLE = "/sys/firmware/dmi/tables/DMI"
_MEMORY_DEVICE, _END = 17, 127
_ANSWER = re.compile(r"[0-9]{1,4} x [0-9]{1,9} MiB at (?:[0-9]{1,6} MT/s|unknown speed)")


def read_memory_modules(reader: Reader) -> str | None:
    """Return modules by size and configured speed ("16 x 65536 MiB at 5600 MT/s"), the most first.

    None if the table cannot be read, or if it lists no module.
    """
    answer = reader.query(MEMORY_MODULES, lambda: _live(reader.system))
    if not answer or len(answer) > 1000:
        return None
    text = " ".join(answer.split())
    return text if all(map(_ANSWER.fullmatch, text.split(", "))) else None


def _live(system: System) -> str | None:
    try:
        data = system.read_bytes(_TABLE)
    except Unreadable:
        return None  # for root only; the fact is then unknown
    return modules_of(data) if data is not None else None


def modules_of(table: bytes) -> str | None:
    """Return the memory modules of an SMBIOS table; None if it lists none, is cut, or has a module of unknown size."""
    modules: Counter[tuple[int, int]] = Counter()
    ended = False
    for kind, area in _structures(table):
        ended = ended or kind == _END
        if kind == _MEMORY_DEVICE:
            size = _size(area)
            if size is None:
                return None
            speed = _dmi_number(area, 0x20, 2)
            modules[size, _dmi_number(area, 0x58, 4) & 0x7FFFFFFF if speed == 0xFFFF else speed] += size > 0
    if not ended or not any(modules.values()):
        return None
    rows = sorted(((count, *module) for module, count in modules.items() if count), reverse=True)
    return ", ".join(
        f"{count} x {size} MiB at {f'{speed} MT/s' if speed else 'unknown speed'}" for count, size, speed in rows
    )


def _structures(table: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and formatted area of each structure; stops at one that is cut."""
    at = 0
    while at + 4 <= len(table):
        kind, length = table[at], table[at + 1]
        end = table.find(b"\0\0", at + length)
        if length < 4 or end < 0:
            return
        yield kind, table[at : at + length]
        if kind == _END:
            return
        at = end + 2


def _dmi_number(area: bytes, at: int, width: int) -> int:
    """Return a number of the formatted area; 0 if this version of SMBIOS does not have the field."""
    return int.from_bytes(area[at : at + width], "little") if at + width <= len(area) else 0


def _size(area: bytes) -> int | None:
    """Return the size in MiB; 0 for an empty slot, None if unknown."""
    size = _dmi_number(area, 0x0C, 2)
    if size == 0xFFFF or len(area) < 0x0E:
        return None
    if size == 0x7FFF:
        return _dmi_number(area, 0x1C, 4) & 0x7FFFFFFF or None
    return (size & 0x7FFF) >> 10 if size & 0x8000 else size


# --- configuration facts -------------------------------------------------------------------------------------


# --- drivers of network interfaces ---------------------------------------------------------------------------
# Live it is the request ETHTOOL_GDRVINFO of ioctl SIOCETHTOOL, which needs no privilege and changes nothing
# (include/uapi/linux/ethtool.h, struct ethtool_drvinfo; net/ethtool/ioctl.c). The recorded answer, `ethtool-i-
# INTERFACE`, has the lines of `ethtool -i` that are used here.


_SIOCETHTOOL = 0x8946  # include/uapi/linux/sockios.h
_GDRVINFO = 0x00000003
_DRVINFO = struct.Struct("=I32s32s32s32s32s12s5I")
_LONGEST_NAME = 15  # IFNAMSIZ, include/uapi/linux/if.h, without its end


def read_driver_info(reader: Reader, interface: str) -> Mapping[str, str]:
    """Return "driver", "version" and "firmware-version" of an interface, those that the driver fills in.

    Empty if it cannot be asked, or if the answer is not in this form.
    """
    if not 0 < len(interface.encode("utf-8", "surrogateescape")) <= _LONGEST_NAME or "/" in interface:
        return {}
    answer = reader.query(f"ethtool-i-{interface}", lambda: _ask(interface)) or ""
    rows = (line.partition(": ") for line in answer.splitlines())
    info: dict[str, str] = {}
    for name, colon, value in rows:
        if name in info:
            return {}  # a line that is there twice: it is unknown which of the two is true
        if colon and value.strip() not in ("", "N/A"):
            info[name] = value.strip()
    return info


def _ask(interface: str) -> str | None:
    buffer = array.array("B", _DRVINFO.pack(_GDRVINFO, b"", b"", b"", b"", b"", b"", 0, 0, 0, 0, 0))
    place, _ = buffer.buffer_info()
    name = interface.encode("utf-8", "surrogateescape")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
            fcntl.ioctl(channel.fileno(), _SIOCETHTOOL, struct.pack("16sP16x", name, place))
    except OSError:
        return None  # this driver has no answer, or the interface has gone: the fact is then unknown
    _, driver, version, firmware, *_ = _DRVINFO.unpack(buffer.tobytes())
    rows = (("driver", driver), ("version", version), ("firmware-version", firmware))
    return "".join(f"{row}: {text.partition(bytes(1))[0].decode('utf-8', 'replace')}\n" for row, text in rows)


# --- configuration facts -------------------------------------------------------------------------------------


_DMI = "/sys/class/dmi/id"
_MICROCODE = f"{sysfs.CPUS}/cpu0/microcode/version"
_IDLE = f"{sysfs.CPUS}/cpu0/cpuidle"
_NO_TURBO = f"{sysfs.CPUS}/intel_pstate/no_turbo"
_BOOST = f"{sysfs.CPUS}/cpufreq/boost"
_EFI = "/sys/firmware/efi"
_LOCKDOWN = "/sys/kernel/security/lockdown"
_SWITCH, _YES = ({True: yes, False: no, None: None} for yes, no in (("on", "off"), ("yes", "no")))
_BOARD = re.compile(r"([0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,6}) \([^()]{1,40}\)")  # "28.39.1002 (MT_0000000838)": its board
_X86 = ("x86_64", "i386", "i486", "i586", "i686")
_UNKNOWN_SOURCE = "hosttune discover"


def read_configuration(reader: Reader, host: Host) -> tuple[Fact, ...]:
    """Return the facts that only this reads. A fact that could not be read has no value."""
    bios = [_file(reader, f"bios-{name}", f"{_DMI}/bios_{name}") for name in ("vendor", "version", "date")]
    value = "EFI" if reader.exists(_EFI) else "BIOS" if reader.lacks(_EFI) else None
    # The names of CPU 0's idle states, the shallowest first. No value if one of them has no name.
    states = sorted((name for name in reader.names(_IDLE) if re.fullmatch(r"state[0-9]{1,2}", name)), key=_number)
    names = [reader.text(f"{_IDLE}/{state}/name") for state in states]
    complete = [_number(state) for state in states] == list(range(len(states)))
    states_value = " ".join(filter(None, names)) if names and all(names) and complete else None
    if not states and reader.lacks(_IDLE):
        states_value = "none"
    others = (
        Fact(name="boot-mode", value=value, source=_EFI),
        Fact(name="c-states", value=sane(states_value), source=f"{_IDLE}/state*/name"),
        _boost(reader),
        lockdown(reader),
    )
    microcode = (_microcode(reader),) if host.arch is None or host.arch in _X86 else ()
    memory = Fact(name="memory-modules", value=sane(read_memory_modules(reader)), source=MEMORY_MODULES)
    return (*bios, *microcode, *others, memory, *_drives(reader, host), *_nics(reader, host))


def _file(reader: Reader, name: str, path: str) -> Fact:
    return Fact(name=name, value=sane(reader.text(path)), source=path)


def _microcode(reader: Reader) -> Fact:
    """Return the revisions of all CPUs. No value if a CPU has none, or if CPU 0's own file has another one."""
    text = read_cpuinfo(reader)
    revisions = values_of(text, "microcode")
    cpus, lines = (len(re.findall(rf"^{key}[ \t]*:", text, re.MULTILINE)) for key in ("processor", "microcode"))
    own = reader.text(_MICROCODE)
    whole = bool(revisions) and "" not in revisions and cpus == lines and (own is None or own in revisions)
    value = sane(" and ".join(sorted(revisions))) if whole else None
    return Fact(name="microcode", value=value, source="/proc/cpuinfo")


def _number(state: str) -> int:
    return int(state.removeprefix("state"))


def _boost(reader: Reader) -> Fact:
    """Return whether clocks above the base are allowed: "on", "off", or "no such switch" where neither file exists."""
    for path, words in ((_NO_TURBO, {"0": "on", "1": "off"}), (_BOOST, {"1": "on", "0": "off"})):
        text = reader.text(path)
        if text is not None:
            return Fact(name="boost", value=words.get(text), source=path)
    missing = all(reader.lacks(path) for path in (_NO_TURBO, _BOOST))
    return Fact(name="boost", value="no such switch" if missing else None, source=_BOOST)


def lockdown(reader: Reader) -> Fact:
    """Return the mode in brackets ("none [integrity] confidentiality"); "no such switch" for a kernel without it."""
    match = re.search(r"\[([a-z]+)\]", reader.text(_LOCKDOWN) or "")
    value = match[1] if match else "no such switch" if reader.lacks(_LOCKDOWN) else None
    return Fact(name="lockdown", value=value, source=_LOCKDOWN)


# --- devices -------------------------------------------------------------------------------------------------


def _drives(reader: Reader, host: Host) -> Iterator[Fact]:
    for drive in host.nvme:
        path = f"/sys/class/nvme/{drive.controller or '*'}/firmware_rev"
        value = sane(reader.text(path)) if drive.controller else None
        yield _of_device("drive-firmware", host, drive.address, value, "/sys/class/nvme/*/firmware_rev", drive.model)


def _nics(reader: Reader, host: Host) -> Iterator[Fact]:
    """Yield the firmware of each physical network device: of its RDMA device, or as its interface's driver says."""
    for nic in host.nics:
        if nic.physfn is not None:
            continue
        source = "/sys/class/infiniband/*/fw_ver"
        value = sane(reader.text(f"/sys/class/infiniband/{nic.rdma}/fw_ver")) if nic.rdma else None
        if value is None and nic.interfaces:
            source = "ethtool -i INTERFACE"
            said = read_driver_info(reader, nic.interfaces[0])
            value = sane(said.get("firmware-version")) or ("none, says its driver" if "driver" in said else None)
        board = _BOARD.fullmatch(value or "")
        yield _of_device("nic-firmware", host, nic.address, board[1] if board else value, source)


def _of_device(
    name: str, host: Host, address: str, value: str | None, source: str | None, model: str | None = None
) -> Fact:
    function = host.index.pci.get(address)
    label = sane(model) or (sane(function.device_name) if function is not None else None)
    # The ids by which devices are compared: a maker's board has firmware of its own, so the subsystem counts.
    # None if one of the four ids is unknown.
    if function is None or function.ids is None:
        kind = None
    else:
        board = (function.subsystem_vendor_id, function.subsystem_device_id)
        kind = f"{function.ids} {board[0]}:{board[1]}" if all(board) else None
    return Fact(name=name, value=value, kind=kind, model=label, subjects=(address,), source=source or _UNKNOWN_SOURCE)


# --- all facts -----------------------------------------------------------------------------------------------


def configuration_of(evidence: Evidence) -> tuple[Fact, ...]:
    """Return all configuration facts: those that were read for this, and those of the other evidence. Pure.

    Devices with the same value are one fact. Every fact that the host must have is there, without a value if unknown.
    """
    host = evidence.host
    read = list(evidence.configuration or ())
    if evidence.configuration is None:
        names = ("bios-vendor", "bios-date", "boot-mode", "c-states", "boost", "lockdown", "memory-modules")
        read = [Fact(name=name, source=_UNKNOWN_SOURCE) for name in (*names, "microcode")]
        version = sane(host.platform.bios_version) if host.platform is not None else None
        read.append(Fact(name="bios-version", value=version, source=f"{_DMI}/bios_version"))
        read += [_of_device("drive-firmware", host, drive.address, None, None, drive.model) for drive in host.nvme]
        read += [_of_device("nic-firmware", host, nic.address, None, None) for nic in host.nics if nic.physfn is None]
    facts = (*read, *_of_host(evidence), *_of_gpus(host), *_of_nics(host))
    order = {name: place for place, name in enumerate(FACT_KINDS)}
    return tuple(sorted(_together(facts), key=lambda fact: (order[fact.name], fact.kind or "", fact.value or "")))


def _together(facts: Iterable[Fact]) -> Iterator[Fact]:
    """Yield the facts, those of devices that differ only in their address as one."""
    by_value = grouped(((fact.name, fact.kind, fact.value, fact.source, fact.model), fact) for fact in facts)
    for (name, kind, value, source, model), alike in by_value.items():
        subjects = tuple(sorted({subject for fact in alike for subject in fact.subjects}))
        yield Fact(name=name, kind=kind, value=value, source=source, model=model, subjects=subjects)


def _of_host(evidence: Evidence) -> Iterator[Fact]:
    host = evidence.host
    cpu = host.cpu_model
    arguments = alike_arguments(host.kernel_args) if host.kernel_args is not None else None
    packages = {cpu.package for cpu in host.cpus if cpu.online}
    active = host.cpu_model.smt_active if host.cpu_model is not None else None
    secure = evidence.security.secure_boot if evidence.security is not None else None
    values: Mapping[str, tuple[str | None, str]] = {
        "cpu-model": (cpu.model if cpu else None, "/proc/cpuinfo"),
        "sockets": (
            str(len(packages)) if packages and None not in packages else None,
            f"{sysfs.CPUS}/cpu*/topology/physical_package_id",
        ),
        "numa-nodes-per-socket": (_nodes_per_socket(host), f"{sysfs.NODES}/node*/cpulist"),
        "smt": (_SWITCH[active], f"{sysfs.CPUS}/smt"),
        "devices": (_devices(host), sysfs.PCI_DEVICES),
        "frequency-driver": (cpu.scaling_driver if cpu else None, f"{sysfs.CPUS}/cpu*/cpufreq/scaling_driver"),
        "iommu": (_iommu(host), f"{sysfs.IOMMU_GROUPS}/*/type"),
        "interrupt-remapping": (_YES[host.iommu.interrupt_remapping if host.iommu else None], "/proc/interrupts"),
        "secure-boot": (_SWITCH[secure], SECURE_BOOT),
        "os": (host.platform.os if host.platform else None, "/etc/os-release"),
        "kernel": (host.kernel, "/proc/sys/kernel/osrelease"),
        "kernel-arguments": (arguments, "/proc/cmdline"),
    }
    for name, (value, source) in values.items():
        yield Fact(name=name, value=sane(value), source=source)
    manager = evidence.fabric_manager
    if manager is not None:
        version = "not installed" if manager.installed is False else sane(manager.version)
        yield Fact(name="fabric-manager", value=version, source="fabric-manager-version")


def _nodes_per_socket(host: Host) -> str | None:
    """Return NUMA nodes with CPUs by sockets; no value if a CPU's place is unknown."""
    places = {(cpu.package, cpu.numa_node) for cpu in host.cpus if cpu.online}
    if not places or any(None in place for place in places):
        return None
    packages, nodes = ({place[side] for place in places} for side in (0, 1))
    return f"{len(nodes) / len(packages):g}"


def _devices(host: Host) -> str | None:
    """Return how many GPUs, network devices and NVMe drives there are of each vendor and device; none virtual.

    No value if the devices are not known, or the ids of one.
    """
    there = (
        {gpu.address for gpu in host.gpus} | {nic.address for nic in host.nics} | {drive.address for drive in host.nvme}
    )
    functions = [host.index.pci.get(address) for address in there]
    ids = [
        function.ids if function is not None else None
        for function in functions
        if function is None or function.physfn is None
    ]
    if not host.pci or None in ids:
        return None
    return ", ".join(f"{number} x {kind}" for kind, number in sorted(Counter(filter(None, ids)).items())) or "none"


def _iommu(host: Host) -> str | None:
    if host.iommu is None or host.iommu.present is None:
        return None
    if not host.iommu.present:
        return "off"
    return f"on, {host.iommu.mode}" if host.iommu.mode else None


def _of_gpus(host: Host) -> Iterator[Fact]:
    for gpu in host.gpus:
        function = host.index.pci.get(gpu.address)
        if gpu.vendor == OTHER or (function is not None and function.physfn is not None):
            continue
        sizes = [bar.size_bytes for bar in (function.bars if function is not None else None) or ()]
        bar = f"{max(sizes) >> 20} MiB" if sizes else None
        rows = (
            ("gpu-driver", gpu.driver_version, gpu.source),
            ("vbios", gpu.firmware_version, gpu.source),
            ("gpu-bar", bar, f"{sysfs.PCI_DEVICES}/*/resource"),
        )
        for name, value, source in rows:
            yield _of_device(name, host, gpu.address, sane(value), source, gpu.model)


def _of_nics(host: Host) -> Iterator[Fact]:
    for nic in host.nics:
        function = host.index.pci.get(nic.address)
        total = function.sriov_total_vfs if function is not None else None
        if nic.physfn is None and total is not None:
            source = f"{sysfs.PCI_DEVICES}/*/sriov_totalvfs"
            yield _of_device("nic-virtual-functions", host, nic.address, str(total), source)
