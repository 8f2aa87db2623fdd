"""What other tools say about the emulated host: the other side of each comparison. Imports nothing of hosttune."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from typing import Any, NamedTuple

from lab.machine import LabMachine

Groups = frozenset[frozenset[int]]
# Every writable value of the kernel, config space, drivers, modules, mounts and device nodes, by path. Left out: what
# reading itself disturbs or what holds no settings (debugfs, tracing, slab statistics, raw BARs and ROMs).
SNAPSHOT = r"""
import hashlib, json, os, re, subprocess
skip = ("/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/kernel/slab", "/sys/fs/cgroup",
        "/sys/fs/bpf", "/proc/sys/fs/binfmt_misc")
found = {}
def keep(path):
    try:
        with open(path, "rb", buffering=0) as file:
            found[path] = hashlib.sha256(file.read(1 << 16)).hexdigest()
    except OSError as error:
        found[path] = str(error.errno)
pruned = [word for path in skip for word in ("-path", path, "-prune", "-o")]
# By find: to walk there in emulated Python takes longer than to read what is writable.
walk = ["find", "/sys", "/proc/sys", "/proc/irq", *pruned, "-type", "f", "-perm", "/444", "-perm", "/222", "-print0"]
for path in os.fsdecode(subprocess.run(walk, stdout=subprocess.PIPE, check=False).stdout).split("\0")[:-1]:
    if not re.fullmatch(r"resource\d.*|rom", path.rpartition("/")[2]):
        keep(path)
for address in os.listdir("/sys/bus/pci/devices"):
    link = f"/sys/bus/pci/devices/{address}/driver"
    found[link] = os.readlink(link) if os.path.islink(link) else ""
for path in ("/proc/mounts", "/proc/cmdline", "/proc/swaps"):
    keep(path)
found["modules"] = " ".join(sorted(line.split()[0] for line in open("/proc/modules")))
found["nodes"] = " ".join(sorted(f"{folder}/{name}" for folder, _, names in os.walk("/dev") for name in names
                                 if not folder.startswith(("/dev/pts", "/dev/shm"))))
print(json.dumps(found))
"""


def cpus_of_lscpu(machine: LabMachine) -> list[dict[str, Any]]:
    """`lscpu` rows: cpu, node, socket, core, "l1d:l1i:l2:l3" (numbers of its own), online."""
    rows = json.loads(machine.shell("lscpu -a -e=CPU,NODE,SOCKET,CORE,CACHE,ONLINE -J"))["cpus"]
    assert isinstance(rows, list)
    return rows


def online_of_lscpu(machine: LabMachine) -> dict[int, bool]:
    """CPU → whether it is online (lscpu's JSON is broken where an offline CPU has no core)."""
    rows = (line.split(",") for line in machine.shell("lscpu -a -p=CPU,ONLINE | grep -v ^#").splitlines())
    return {int(cpu): online == "Y" for cpu, online in rows}


def grouped(pairs: list[tuple[int, object]]) -> Groups:
    """CPUs that carry the same name, whatever the names are."""
    names = {name for _, name in pairs}
    return frozenset(frozenset(cpu for cpu, name in pairs if name == wanted) for wanted in names)


def nodes_of_numactl(machine: LabMachine) -> dict[int, dict[str, Any]]:
    """`numactl -H` by node: cpus (a set), mib, distances to the nodes in order."""
    text = machine.shell("numactl -H")
    nodes: dict[int, dict[str, Any]] = {}
    for number, cpus in re.findall(r"^node (\d+) cpus:(.*)$", text, re.MULTILINE):
        nodes[int(number)] = {"cpus": {int(cpu) for cpu in cpus.split()}}
    for number, mib in re.findall(r"^node (\d+) size: (\d+) MB$", text, re.MULTILINE):
        nodes[int(number)]["mib"] = int(mib)
    for number, row in re.findall(r"^\s*(\d+):((?:\s+\d+)+)\s*$", text, re.MULTILINE):
        nodes[int(number)]["distances"] = [int(value) for value in row.split()]
    return nodes


def functions_of_lspci(machine: LabMachine) -> dict[str, dict[str, str]]:
    """`lspci -vmmDkn` by address: Vendor, Device, Class, Driver, NUMANode, IOMMUGroup… (a key only where said)."""
    found = {}
    for block in machine.shell("lspci -vmmDkn").strip().split("\n\n"):
        fields = dict(line.split(":\t", 1) for line in block.splitlines())
        found[fields["Slot"]] = fields
    return found


def parents_of_lspci(machine: LabMachine) -> dict[str, str | None]:
    """The bridge directly above each function, from `lspci -PP`: "0000:40:02.0/43:00.0/44:01.0 0604: …"."""
    parents: dict[str, str | None] = {}
    for line in machine.shell("lspci -D -PP -n").splitlines():
        path = [part if part.count(":") == 2 else f"0000:{part}" for part in line.split()[0].split("/")]
        parents[path[-1]] = path[-2] if len(path) > 1 else None
    return parents


def details_of_lspci(machine: LabMachine) -> dict[str, str]:
    """`lspci -vv` by address, as text."""
    blocks = machine.shell("lspci -D -n -vv").strip().split("\n\n")
    return {block.split()[0]: block for block in blocks}


def devices_of_libvirt(machine: LabMachine) -> dict[str, ElementTree.Element]:
    """libvirt's <device> of each PCI function by address."""
    # By one virsh: the start of one takes half a second of emulation.
    text = machine.shell("virsh \"$(printf 'nodedev-dumpxml %s;' $(virsh nodedev-list --cap pci))\"")
    found = {}
    for device in ElementTree.fromstring(f"<all>{text}</all>"):
        name = device.findtext("name", "")
        domain, bus, slot, function = name.removeprefix("pci_").split("_")
        found[f"{domain}:{bus}:{slot}.{function}"] = device
    return found


def address_of_libvirt(element: ElementTree.Element) -> str:
    """The PCI address of an <address domain= bus= slot= function=>."""
    parts = {key: int(value, 16) for key, value in element.attrib.items()}
    return f"{parts['domain']:04x}:{parts['bus']:02x}:{parts['slot']:02x}.{parts['function']:x}"


def groups_of_kernel(machine: LabMachine) -> dict[int, set[str]]:
    """IOMMU groups and their members, from the kernel's own listing of groups."""
    groups: dict[int, set[str]] = {}
    for path in machine.shell("find /sys/kernel/iommu_groups -path '*/devices/*'").split():
        number, _, address = path.removeprefix("/sys/kernel/iommu_groups/").partition("/devices/")
        groups.setdefault(int(number), set()).add(address)
    return groups


def interfaces_of_ethtool(machine: LabMachine) -> dict[str, str]:
    """Network interface → PCI address, as each driver tells ethtool."""
    script = 'for i in /sys/class/net/*; do ethtool -i ${i##*/} 2>/dev/null | sed -n "s/^bus-info: /${i##*/} /p"; done'
    pairs = (line.split() for line in machine.shell(script).splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def drives_of_nvme(machine: LabMachine) -> dict[str, str]:
    """NVMe block device → PCI address of its controller, as `nvme list-subsys` tells."""
    script = "for d in $(lsblk -dno NAME | grep ^nvme); do echo $d $(nvme list-subsys /dev/$d | grep ' pcie '); done"
    found = {}
    for line in machine.shell(script).splitlines():
        addresses = re.findall(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", line)
        assert len(addresses) == 1, line
        found[line.split()[0]] = addresses[0]
    return found


def threads_of(machine: LabMachine, process: int) -> list[tuple[str, str]]:
    """(name, CPUs it may run on) of every thread of a process, from the kernel's own status files."""
    script = f"for t in /proc/{process}/task/*; do awk '/^Cpus_allowed_list/ {{print $2}}' $t/status; cat $t/comm; done"
    lines = machine.shell(script).splitlines()
    return [(name, cpus) for cpus, name in zip(lines[::2], lines[1::2], strict=True)]


def huge_pages_of(machine: LabMachine, process: int) -> list[dict[str, int]]:
    """Each huge mapping of a process by `numa_maps`: pages per node ("N0") and the page size in KiB."""
    lines = machine.shell(f"grep -w huge /proc/{process}/numa_maps", check=False).splitlines()
    return [{key: int(n) for key, n in re.findall(r"\b(N\d+|kernelpagesize_kB)=(\d+)", line)} for line in lines]


def arguments_of_kernel(machine: LabMachine) -> list[str]:
    """The words of /proc/cmdline."""
    return machine.shell("cat /proc/cmdline").split()


def snapshot(machine: LabMachine) -> dict[str, str]:
    """Path → digest of every writable value of the kernel (see SNAPSHOT), and what drives, is loaded and mounted."""
    values = json.loads(machine.shell("python3 -", stdin=SNAPSHOT))
    assert isinstance(values, dict)
    return values


def files_below(machine: LabMachine, *folders: str) -> dict[str, str]:
    """Path → BLAKE2 of every regular file below the folders, but for the profiles that libvirt makes of guests."""
    left_out = "-path /etc/apparmor.d/libvirt -prune -o -path /etc/apparmor.d/cache -prune -o"
    lines = machine.shell(f"find {' '.join(folders)} {left_out} -type f -exec sha256sum {{}} +").splitlines()
    return {path: digest for digest, path in (line.split("  ", 1) for line in lines)}


# --- what changed ---------------------------------------------------------------------------------------------

STATE = "/var/lib/hosttune"


def still(one: dict[str, str], other: dict[str, str]) -> dict[str, str]:
    """Of two snapshots of an idle machine, what stood still."""
    return {path: value for path, value in one.items() if other.get(path) == value}


def moved(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str, str | None]]:
    """Of what stood still, what is otherwise now: path → (then, now)."""
    return {path: (value, after.get(path)) for path, value in before.items() if after.get(path) != value}


# --- what a program did, by strace ----------------------------------------------------------------------------

TRACE = "/run/hosttune-trace"
# Strings wholly in hexadecimal: nothing in them can be mistaken for strace's own words. One file a process: no line
# is ever cut in two.
STRACE = (
    f"rm -rf {TRACE}; mkdir {TRACE}; strace -ff -ttt -y -xx -s 1000000 --seccomp-bpf -o {TRACE}/t"
    " -e trace=execve,openat,open,creat,write,pwrite64,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat"
)
_HEX = re.compile(r"\\x([0-9a-f]{2})")
_CALL = re.compile(r"([0-9.]+) (\w+)\((.*)\)\s+= (-?\d+|\?)(.*)")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FD = re.compile(r"\d+<([^>]*)>")


class Call(NamedTuple):
    """A system call that succeeded: name, its strings (as bytes), all arguments as text, the path of its first fd."""

    name: str
    strings: tuple[bytes, ...]
    arguments: str
    path: str


class WrittenValue(NamedTuple):
    """A write to a file of the kernel: its real path, the bytes, and at which offset (None: where it stood)."""

    path: str
    data: bytes
    offset: int | None


def calls_of_strace(machine: LabMachine) -> list[Call]:
    """The successful calls of the last program that was run with STRACE, of all its processes, in order of time."""
    lines = machine.shell(f"cat {TRACE}/t.*; rm -r {TRACE}").splitlines()
    found = []
    for line in lines:
        match = _CALL.fullmatch(line)
        if match and match[4] not in ("-1", "?"):
            strings = tuple(bytes.fromhex(text.replace("\\x", "")) for text in _STRING.findall(match[3]))
            fd = _FD.match(match[3])
            path = _HEX.sub(lambda pair: chr(int(pair[1], 16)), fd[1]) if fd else ""
            found.append((float(match[1]), Call(match[2], strings, match[3], path)))
    return [call for _, call in sorted(found, key=lambda one: one[0])]


def values_written(calls: list[Call]) -> list[WrittenValue]:
    """Every write to a file of sysfs or procfs."""
    return [
        WrittenValue(
            call.path,
            call.strings[0] if call.strings else b"",
            int(call.arguments.rpartition(", ")[2]) if call.name == "pwrite64" else None,
        )
        for call in calls
        if call.name in ("write", "pwrite64") and call.path.startswith(("/sys/", "/proc/"))
    ]


def programs_run(calls: list[Call], *names: str) -> list[tuple[str, ...]]:
    """The argument vectors of the programs of these names that were started."""
    vectors = [
        tuple(text.decode() for text in call.strings[1 : 1 + call.arguments.partition("]")[0].count('", "') + 1])
        for call in calls
        if call.name == "execve"
    ]
    return [vector for vector in vectors if vector and vector[0].rpartition("/")[2] in names]


def files_changed(calls: list[Call]) -> list[str]:
    """What was opened for writing, made, renamed or removed, outside of hosttune's state and of device nodes."""
    changing = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC")
    touched = []
    for call in calls:
        opened = call.name in ("openat", "open")
        if call.name in ("write", "pwrite64", "execve") or (opened and not changing.search(call.arguments)):
            continue
        touched += [text.decode() for text in call.strings[: 1 if opened else 2]]
    return [path for path in touched if not path.startswith((f"{STATE}/", "/dev/", "/proc/self/"))]
