"""Inputs that are made to cost: each is answered or refused within 10 s of CPU time and 500 MiB (docs/limits.md).

`python bench/bounds.py` prints the rows of this module alone; `make bench` has them in its table.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rows import HOSTTUNE, ROOT, Row

SECONDS, MEBIBYTES = 10.0, 500
EXAMPLE = ROOT / "examples/hgx-h200-8.tar.xz"
# Runs a command and prints its exit code, CPU seconds and peak KiB; a child of its own, for RUSAGE_CHILDREN sums up.
_MEASURE = (
    "import resource, subprocess, sys;"
    "done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL);"
    "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
    "print(done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss)"
)

_ADDRESS = b"<address domain='0' bus='1' slot='2' function='0'/>"
_HOSTDEV = b"<hostdev mode='subsystem' type='pci'><source>" + _ADDRESS + b"</source></hostdev>"

Members = Iterator[tuple[str, bytes, bytes, str]]  # name, type, contents, link


def file(name: str, data: bytes) -> tuple[str, bytes, bytes, str]:
    """A regular member."""
    return name, tarfile.REGTYPE, data, ""


def archive(path: Path, members: Members) -> Path:
    """A gzipped tar of these members, written straight: tarfile would take longer than what is measured."""
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for name, kind, data, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(data), link
            stream.write(info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512))
        stream.write(bytes(1024))
    return path


def functions(count: int, *, displays: bool) -> Members:
    """So many PCI functions, GPUs or NICs."""
    kind = b"0x030200\n" if displays else b"0x020000\n"
    for n in range(count):
        domain, bus, device = n >> 13, n >> 5 & 255, n & 31
        address = f"{domain:04x}:{bus:02x}:{device:02x}.0"
        place = f"pci{domain:04x}:{bus:02x}/{address}"
        for name, text in (("vendor", b"0x10de\n"), ("device", b"0x2335\n"), ("class", kind)):
            yield file(f"sys/devices/{place}/{name}", text)
        yield f"sys/bus/pci/devices/{address}", tarfile.SYMTYPE, b"", f"../../../devices/{place}"


def cpus(count: int, *, lists: bool = False) -> Members:
    """So many CPUs; `lists`: each says of itself that it shares its core with all others but one."""
    yield file("sys/devices/system/cpu/online", f"0-{count - 1}\n".encode())
    for n in range(count):
        yield file(f"sys/devices/system/cpu/cpu{n}/topology/physical_package_id", b"0\n")
        if lists:
            text = f"0-{max(0, n - 1)},{n + 1}-{count}\n".encode()
            yield file(f"sys/devices/system/cpu/cpu{n}/topology/core_cpus_list", text)


def siblings(count: int) -> Members:
    """So many CPUs that all name each other as threads of one core; one of them denies it."""
    yield file("sys/devices/system/cpu/online", f"0-{count - 1}\n".encode())
    for n in range(count):
        text = f"0-{count - 1}\n".encode() if n else b"0\n"
        yield file(f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list", text)


def one_file(name: str, data: bytes) -> Members:
    """A host with one file."""
    yield file("sys/x", b"")
    yield file(name, data)


def guests(count: int, element: bytes) -> Members:
    """So many definitions of guests, each of a great many devices."""
    xml = (
        b"<domain type='kvm'><name>x</name><devices>"
        + element * (49_000 // element.count(b"<"))
        + b"</devices></domain>"
    )
    yield file("sys/x", b"")
    for n in range(count):
        yield file(f".hosttune/commands/virsh-dumpxml-g{n}", xml)


def empty(count: int) -> Members:
    """Empty members."""
    return (file(f"sys/{n // 1000}/{n}", b"") for n in range(count))


def document(**fields: object) -> str:
    """A host document."""
    return json.dumps({"schema": "hosttune.host/v1", **fields})


def function(n: int, **more: object) -> dict[str, object]:
    """A PCI function of a document."""
    address = f"{n >> 13:04x}:{n >> 5 & 255:02x}:{n & 31:02x}.0"
    return {"address": address, "vendor_id": "10de", "device_id": "2335", "class_code": "030200", **more}


GUEST = "{name: g%d, vcpus: 1, memory: 1GiB}"
ONE = "version: 1\nguests: [{name: a, gpus: 1, vcpus: 2, memory: 1GiB}]\n"


def varied(count: int, gpus: int, nics: int = 0) -> str:
    """An intent of so many guests of which no two are alike: 0 to `gpus`-1 GPUs, 2 to 41 vCPUs, 1 to 200 GiB."""
    rows = (
        f"{{name: g{n}, gpus: {n % gpus}, nics: {nics}, vcpus: {2 + n * 7 % 40}, memory: {1 + n * 13 % 200}GiB}}"
        for n in range(count)
    )
    return f"version: 1\nguests: [{', '.join(rows)}]\n"


Case = tuple[str, tuple[str, ...]]


def cases(folder: Path) -> Iterator[Case]:
    """(what it is, the words after `hosttune`)."""
    intents = {
        "numa: 1,000,000,000": "version: 1\nguests: [{name: a, gpus: 1, numa: 1000000000}]\n",
        "numa: 100,000": "version: 1\nguests: [{name: a, gpus: 1, numa: 100000}]\n",
        "20,000 guests": "version: 1\nguests: [" + ", ".join(GUEST % n for n in range(20_000)) + "]\n",
        "100 guests, all different, most without a place": varied(100, gpus=3),
        "256 guests, all different, most without a place": varied(256, gpus=3),
        "256 guests without GPUs, all different": varied(256, gpus=1),
        "256 guests with NICs, all different": varied(256, gpus=2, nics=1),
        "256 guests, the most": "version: 1\nguests: [" + ", ".join(GUEST % n for n in range(256)) + "]\n",
        "100,000 unknown keys": "version: 1\n" + "".join(f"k{n}: 1\n" for n in range(100_000)),
        "20,000 unknown keys, below the size": "version: 1\n" + "".join(f"k{n}: 1\n" for n in range(20_000)),
        "256 KiB of brackets": "version: 1\nguests: " + "[" * (250 << 10),
    }
    for n, (what, text) in enumerate(intents.items()):
        path = folder / f"intent{n}.yaml"
        path.write_text(text)
        yield f"intent: {what}", ("plan", "--root", str(EXAMPLE), "-f", str(path), "-o", "json")
    one = folder / "one.yaml"
    one.write_text(ONE)
    long = b"a " * (8 << 20)
    tars: dict[str, Callable[[], Members]] = {
        "a kernel command line of 16 MiB": lambda: one_file("proc/cmdline", long),
        "/proc/cpuinfo of 16 MiB": lambda: one_file("proc/cpuinfo", b"processor\t: 0\nflags\t\t: " + long[: 15 << 20]),
        "a file of 256 MiB of zeros": lambda: one_file("sys/y", bytes(256 << 20)),
        "300,000 CPUs": lambda: cpus(300_000),
        "8,192 CPUs, the most": lambda: cpus(8192),
        "8,192 CPUs, each with a list of all": lambda: cpus(8192, lists=True),
        "8,192 CPUs of one core, the most": lambda: siblings(8192),
        "30,000 functions": lambda: functions(30_000, displays=False),
        "8,192 NICs, the most": lambda: functions(8192, displays=False),
        "1,024 GPUs, the most": lambda: functions(1024, displays=True),
        "60 definitions of 49,000 elements": lambda: guests(60, b"<a/>"),
        "9 definitions of 12,000 devices": lambda: guests(9, _HOSTDEV),
        "300,000 empty members": lambda: empty(300_000),
        "150,000 empty members, the most": lambda: empty(150_000),
    }
    for n, (what, members) in enumerate(tars.items()):
        path = archive(folder / f"tar{n}.tar.gz", members())
        for command in ("discover", "validate") if "most" in what else ("discover",):
            yield f"capture: {what}, `{command}`", (command, "--root", str(path), "-o", "json")
        if "GPUs" in what:
            yield f"capture: {what}, `plan`", ("plan", "--root", str(path), "-f", str(one), "-o", "json")
            yield f"capture: {what}, picture", ("discover", "--root", str(path), "-o", "svg")
    documents = {
        "16 MiB of empty lists": '{"schema": "hosttune.host/v1", "x": [' + "[]," * 5_000_000 + "[]]}",
        "8,192 CPUs and functions": document(
            cpus=[{"id": n, "core": n, "numa_node": n % 256} for n in range(8192)],
            numa_nodes=[{"id": n, "cpus": f"{n * 32}-{n * 32 + 31}"} for n in range(256)],
            pci=[function(n, local_cpus="0-8191", class_code="020000") for n in range(8192)],
        ),
        "a chain of 8,192 bridges": document(
            pci=[
                function(n, class_code="060400", parent=function(n - 1)["address"] if n else None) for n in range(8192)
            ]
        ),
    }
    for n, (what, text) in enumerate(documents.items()):
        path = folder / f"host{n}.json"
        path.write_text(text)
        for words in (("discover",), ("discover", "-o", "svg"), ("validate",), ("plan", "-f", str(one))):
            yield f"host document: {what}, `{' '.join(words[:3:2])}`", (*words, "--host", str(path))
    pins = "".join(f"<vcpupin vcpu='{n}' cpuset='{n}-16000'/>" for n in range(4096))
    twice = "<hostdev mode='subsystem' type='pci'><source><address domain='0' bus='24' slot='0' function='0'/></source>"
    domains = {
        "one device 12,000 times": f"<domain type='kvm'><devices>{f'{twice}</hostdev>' * 12_000}</devices></domain>",
        "a million elements": "<domain type='kvm'>" + "<a/>" * 1_000_000 + "</domain>",
        "4,096 pins of 16,000 CPUs": f"<domain type='kvm'><cputune>{pins}</cputune></domain>",
        "one list of 4 MiB": "<domain type='kvm'><vcpu cpuset='" + "0-16000," * (500 << 10) + "0'>1</vcpu></domain>",
    }
    for n, (what, text) in enumerate(domains.items()):
        path = folder / f"domain{n}.xml"
        path.write_text(text)
        yield f"domain XML: {what}", ("lint", "--root", str(EXAMPLE), str(path))


def measured(words: tuple[str, ...]) -> tuple[int, float, float]:
    """Exit code, CPU seconds and peak MiB of a command."""
    command = [sys.executable, "-c", _MEASURE, HOSTTUNE, *words]
    environment = {**os.environ, "NO_COLOR": "1"}
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()
    return int(out[0]), float(out[1]), int(out[2]) / 1024


def bounds() -> Iterator[Row]:
    """A row a case: CPU time and memory, and that the exit code says answered (0, 1) or refused (2)."""
    with tempfile.TemporaryDirectory() as folder:
        for what, words in cases(Path(folder)):
            code, seconds, mebibytes = measured(words)
            figure = f"{seconds:.1f} s, {mebibytes:.0f} MiB, exit {code}"
            holds = seconds <= SECONDS and mebibytes <= MEBIBYTES and code in (0, 1, 2)
            yield Row(what, figure, f"≤ {SECONDS:.0f} s, {MEBIBYTES} MiB", holds)


if __name__ == "__main__":
    for row in bounds():
        print(f"| {row.what} | {row.figure}{'' if row.holds else ' **missed**'} | {row.bound} |", flush=True)
