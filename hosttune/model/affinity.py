"""The CPUs of a guest's threads as one line of text: "vcpu.0=4 vcpu.1=5 emulator=0,64 iothread.1=0,64". Pure.

The order is vCPUs, emulator, I/O threads, each by number; CPUs are in the kernel's list format. What is read from a
machine can have more words at the end: "libvirt:vcpu.0=0-7", a pin that libvirt reports and the kernel does not follow,
and "process=PID.START", the process that the threads are of. QEMU names its threads for libvirt
(-name debug-threads=on): "CPU 3/KVM", "IO iothread1"; all others are the emulator's, as libvirt divides them
(formatdomain, emulatorpin).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hosttune.model.values import CpuSet, FrozenMap, Value

VCPU, EMULATOR = "vcpu.", "emulator"
_THREAD = re.compile(r"(vcpu|iothread)\.(0|[1-9][0-9]{0,4})|emulator")
_LIBVIRT, _PROCESS = "libvirt:", "process="
_ORDER = ("vcpu", EMULATOR, "iothread")
_SEVERAL = "|"  # between the CPU lists of the emulator's threads where they differ
_MOST = 1 << 22  # CPUs in all words: 4096 threads on 1024 CPUs each
_NAMES = (
    (re.compile(r"CPU ([0-9]{1,5})/(?:KVM|TCG)"), "vcpu"),
    (re.compile(r"IO iothread([0-9]{1,5})"), "iothread"),
)
# Threads that are on CPUs of their own accord: QEMU's thread-context, which clears a cell's memory before the guest
# starts; a pool's, which runs where the thread does that asked for it; the kernel's own in the process (KVM, vhost).
_OTHER = re.compile(r"TC tc-ram-node[0-9]*|worker|kvm-nx-lpage-re.*|vhost-[0-9]+")


class Affinity(Value, frozen=True, kw_only=True):
    """The CPUs by thread ("vcpu.0"), the differing pins that libvirt reports, and the process; see the module."""

    cpus: Mapping[str, str]
    libvirt: Mapping[str, str] = FrozenMap({})
    process: str | None = None

    def __str__(self) -> str:
        words = [f"{thread}={self.cpus[thread]}" for thread in sorted(self.cpus, key=_place)]
        words += [f"{_LIBVIRT}{thread}={self.libvirt[thread]}" for thread in sorted(self.libvirt, key=_place)]
        return " ".join([*words, f"{_PROCESS}{self.process}"] if self.process else words)

    def without_notes(self) -> str:
        """Return the text with the CPUs alone, as a plan has it."""
        return str(Affinity(cpus=self.cpus))


def affinity_text(vcpus: Mapping[int, CpuSet], emulator: CpuSet | None, iothreads: Mapping[int, CpuSet]) -> str:
    """Return the text of a plan: CPUs by vCPU, of the emulator (None: not changed), by the id of the I/O thread."""
    cpus = {f"vcpu.{number}": str(cpu_set) for number, cpu_set in vcpus.items()}
    cpus |= {f"iothread.{number}": str(cpu_set) for number, cpu_set in iothreads.items()}
    return str(Affinity(cpus=cpus | ({EMULATOR: str(emulator)} if emulator else {})))


def read_affinity(text: str) -> Affinity:
    """Return the parts of a text. Raises ValueError for one that is not as this module writes it."""
    cpus: dict[str, str] = {}
    libvirt: dict[str, str] = {}
    process = None
    named = 0
    for word in text.split(" "):
        name, _, value = word.partition("=")
        if word.startswith(_PROCESS):
            process = value
        elif not _THREAD.fullmatch(name.removeprefix(_LIBVIRT)):
            raise ValueError(f"{word[:40]!r} is not a thread and its CPUs")
        elif name.startswith(_LIBVIRT):
            libvirt[name.removeprefix(_LIBVIRT)] = value
        else:
            sets = masks(value)
            named += sum(map(len, sets))
            if not all(sets) or _SEVERAL.join(map(str, sets)) != value or named > _MOST:
                raise ValueError(f"{word[:40]!r} is not a thread and its CPUs")
            cpus[name] = value
    read = Affinity(cpus=cpus, libvirt=libvirt, process=process)
    if not cpus or str(read) != text:
        raise ValueError("the words are not in their order and form")
    return read


def masks(cpus: str) -> tuple[CpuSet, ...]:
    """Return the CPUs of a thread; several sets if the emulator's threads differ. Raises ValueError."""
    return tuple(map(CpuSet.parse, cpus.split(_SEVERAL)))


def thread_of(name: str) -> str | None:
    """Return the word for a thread of QEMU by its name; None for one that is where it is of its own accord."""
    for form, word in _NAMES:
        if match := form.fullmatch(name):
            return f"{word}.{int(match[1])}"
    return None if _OTHER.fullmatch(name) else EMULATOR


def _place(thread: str) -> tuple[int, int]:
    word, _, number = thread.partition(".")
    return _ORDER.index(word), int(number or 0)
