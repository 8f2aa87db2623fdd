"""Configuration facts of a host: firmware, drivers, kernel, and settings of the BIOS that the OS can see.

They should be alike on all hosts of one model. A validation carries them; a fleet compares them. `FACT_KINDS` declares
each of them once. What no source says is None: unknown, and never alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from hosttune.model.commandline import split
from hosttune.model.values import Closed, Value

Of = Literal["host", "gpu", "nic", "drive"]
KIND = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4} [0-9a-f]{4}:[0-9a-f]{4}")  # of `Fact.kind`
LONGEST = 4096  # characters of a value: the longest command line of any kernel (COMMAND_LINE_SIZE)
KERNEL_ARGUMENTS = "kernel-arguments"


class Fact(Closed, frozen=True, kw_only=True):
    """One configuration fact of a host, or of its devices that have the same value.

    `value` None: unknown. `kind`: of devices, the ids of vendor and device, then of the subsystem ("10de:2335
    10de:18be"); None for a fact of the host, or if the ids are unknown. `model`: the name of these devices. `subjects`:
    their addresses; empty for a fact of the host. `source`: the file or call that was read, or that should have been.
    """

    name: str
    value: str | None = None
    kind: str | None = None
    model: str | None = None
    subjects: tuple[str, ...] = ()
    source: str | None = None


class FactKind(Value, frozen=True, kw_only=True):
    """A fact by name, whether a host or its devices have it, and what it is in words.

    `order`: how two values are compared where a source defines it ("dotted": numbers with dots; "hex"; "date":
    mm/dd/yyyy); None: they are only equal or not.
    """

    name: str
    of: Of
    words: str
    order: Literal["dotted", "hex", "date"] | None = None


def _kinds() -> Iterable[FactKind]:
    rows: tuple[tuple[str, Of, str, Literal["dotted", "hex", "date"] | None], ...] = (
        ("bios-vendor", "host", "the BIOS's maker", None),
        ("bios-version", "host", "the BIOS's version; each maker has its own form, so it has no order", None),
        ("bios-date", "host", "the BIOS's release date (SMBIOS: mm/dd/yyyy)", "date"),
        ("boot-mode", "host", "whether the host was booted through EFI", None),
        ("cpu-model", "host", "the CPUs' model", None),
        ("microcode", "host", "the microcode of all CPUs", "hex"),
        ("sockets", "host", "the number of sockets with CPUs", None),
        ("numa-nodes-per-socket", "host", "NUMA nodes with CPUs in each socket: NPS, sub-NUMA clustering", None),
        ("smt", "host", "whether SMT is on", None),
        ("boost", "host", "whether the CPUs may raise their clock above the base", None),
        ("c-states", "host", "the idle states that CPU 0 has", None),
        ("frequency-driver", "host", "the driver that sets the CPUs' clock", None),
        ("memory-modules", "host", "the number of memory modules by size and configured speed", None),
        ("devices", "host", "the number of GPUs, network devices and NVMe drives by vendor and device", None),
        ("iommu", "host", "whether the IOMMU is on, and the default type of its domains", None),
        ("interrupt-remapping", "host", "whether the IOMMU remaps interrupts", None),
        ("secure-boot", "host", "whether Secure Boot is on", None),
        ("lockdown", "host", "the kernel's lockdown, which secure boot may switch on", None),
        ("os", "host", "the operating system", None),
        ("kernel", "host", "the kernel's release", None),
        (KERNEL_ARGUMENTS, "host", "the kernel's arguments, without order and without what differs per host", None),
        ("fabric-manager", "host", "the version of Fabric Manager", "dotted"),
        ("gpu-driver", "gpu", "the version of the GPUs' driver", "dotted"),
        ("vbios", "gpu", "the GPUs' firmware (VBIOS)", None),
        ("gpu-bar", "gpu", "the size of the GPUs' largest BAR, which the BIOS assigns", None),
        ("nic-firmware", "nic", "the firmware of network devices", "dotted"),
        ("nic-virtual-functions", "nic", "how many virtual functions a network device offers (SR-IOV)", None),
        ("drive-firmware", "drive", "the firmware of NVMe drives", None),
    )
    return (FactKind(name=name, of=of, words=words, order=order) for name, of, words, order in rows)


FACT_KINDS: Mapping[str, FactKind] = {one.name: one for one in _kinds()}


def sane(value: str | None) -> str | None:
    """Return a text that can be a value, without blanks around it; None if it is empty, overlong or not printable."""
    text = value.strip() if value is not None else ""
    return text if text and len(text) <= LONGEST and text.isprintable() else None


# --- order ---------------------------------------------------------------------------------------------------

_DOTTED = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,7}")
_HEX = re.compile(r"0x[0-9a-f]{1,16}")
_DATE = re.compile(r"([0-9]{2})/([0-9]{2})/([0-9]{4})")


def _dotted(text: str) -> tuple[int, ...] | None:
    if not _DOTTED.fullmatch(text):
        return None
    parts = [int(part) for part in text.split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def _hex(text: str) -> tuple[int, ...] | None:
    return (int(text, 16),) if _HEX.fullmatch(text) else None


def _date(text: str) -> tuple[int, ...] | None:
    match = _DATE.fullmatch(text)
    if match is None or not (1 <= int(match[1]) <= 12 and 1 <= int(match[2]) <= 31):
        return None
    return int(match[3]), int(match[1]), int(match[2])


_KEYS: Mapping[str, Callable[[str], tuple[int, ...] | None]] = {"dotted": _dotted, "hex": _hex, "date": _date}


def sort_key(name: str, value: str) -> tuple[int, ...] | None:
    """Return what orders the values of a fact; None if the fact has no order, or the value not its form.

    Of one CPU the higher microcode revision is the newer one: the kernel loads no lower one
    (arch/x86/kernel/cpu/microcode, intel.c and amd.c). SMBIOS gives the date as mm/dd/yyyy (DSP0134, 7.1).
    """
    order = FACT_KINDS[name].order if name in FACT_KINDS else None
    return _KEYS[order](value) if order is not None else None


# --- kernel arguments ----------------------------------------------------------------------------------------

# Arguments whose value belongs to one host, with the reason. Names from Documentation/admin-guide/kernel-parameters,
# dracut.cmdline(7), systemd's kernel-command-line(7) and initramfs-tools(7). The value is left out; `_GONE`: the whole
# argument, because boot loaders differ in whether they give it.
HOST_SPECIFIC: Mapping[str, str] = {
    "BOOT_IMAGE": "the boot loader's path of the kernel; the fact `kernel` has its release",
    "initrd": "the boot loader's path of the initrd, which names the kernel's release",
    "root": "names the host's own disk",
    "resume": "names the host's own disk",
    "resume_offset": "a place on the host's own disk",
    "swap": "names the host's own disk",
    "cryptdevice": "names the host's own disk",
    "crashkernel": "distributions compute the size from the host's memory",
    "ip": "the host's own address",
    "ifname": "the MAC address of the host's own interface",
    "BOOTIF": "the MAC address of the host's own interface",
    "bootdev": "the host's own interface",
    "nfsroot": "may name the host's own folder",
    "netroot": "may name the host's own disk",
    "rd.iscsi.initiator": "the host's own name",
    "iscsi_initiator": "the host's own name",
    "systemd.hostname": "the host's own name",
    "systemd.machine_id": "the host's own id",
}
_SPECIFIC_BEGINNINGS = ("rd.luks", "luks.", "rd.lvm", "rd.md", "rd.dm")  # they name the host's own disks
_GONE = frozenset(("BOOT_IMAGE", "initrd", "BOOTIF"))
_HIDDEN = "*"


def alike_arguments(arguments: Iterable[str]) -> str:
    """Return kernel arguments in the form in which hosts are compared; "(none)" if none is left.

    Sorted by name; arguments of one name keep their order, because the last one often wins. `hugepages=` stays behind
    the `hugepagesz=` that it belongs to (mm/hugetlb.c). What follows `--` is for init and keeps its order. The value of
    what is host-specific is left out.
    """
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    pairs: list[tuple[str, str]] = []
    size = ""
    for argument in words[:end]:
        name, equals, _ = argument.partition("=")
        if name in _GONE:
            continue
        if name in ("hugepagesz", "default_hugepagesz"):
            size = argument
        text = (
            f"{name}={_HIDDEN}"
            if equals and (name in HOST_SPECIFIC or name.startswith(_SPECIFIC_BEGINNINGS))
            else argument
        )
        if name == "hugepagesz":
            continue
        pairs.append((name, f"{size} {text}" if name == "hugepages" and size.startswith("hugepagesz") else text))
    ordered = [text for _, text in sorted(pairs, key=lambda pair: pair[0])]
    return " ".join((*ordered, *words[end:])) or "(none)"


def normal_value(name: str, value: str) -> str:
    """Return a declared value in the form in which hosts give it."""
    if name != KERNEL_ARGUMENTS or value == "(none)":
        return value
    return alike_arguments(split(value))


def argument_difference(value: str, other: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (the arguments that only `value` has, those that only `other` has), each as often as it is more there."""
    mine, theirs = list(split(value)), list(split(other))
    for word in split(value):
        if word in theirs:
            mine.remove(word)
            theirs.remove(word)
    return tuple(mine), tuple(theirs)
