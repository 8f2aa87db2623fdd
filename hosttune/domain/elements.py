"""Optional XML elements, by the versions that introduced them; the plan lists those that it may use.

libvirt's installed schema is the evidence where it can be read. The versions are those of libvirt's formatdomain
reference ("Since …") and of QEMU's change logs: the second-best, for captures without it and for QEMU.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

# Names are those of the element or attribute in libvirt's XML.
HINT_DEDICATED = "hint-dedicated"  # KVM_HINTS_REALTIME: the guest need not yield its vCPUs
POLL_CONTROL = "poll-control"  # the guest may switch the host's halt polling off
ALLOCATION_THREADS = "allocation-threads"  # memory is touched by several threads at start
MAXPHYSADDR = "maxphysaddr"
MAXPHYSADDR_LIMIT = "maxphysaddr-limit"
FIRMWARE_FEATURES = "firmware-features"  # <firmware><feature name='secure-boot'/>
DMA_TRANSLATION = (
    "dma-translation"  # <iommu><driver dma_translation='off'/>: an IOMMU device that remaps interrupts only
)
DMA_TRANSLATION_GLOBAL = "dma-translation-argument"  # the same as an argument to QEMU, for a libvirt that lacks it
PORT_HOTPLUG = "port-hotplug"  # <target hotplug='off'/>: no memory and I/O is kept free behind a port

Version = tuple[int, ...]

ASSUMED_LIBVIRT: Version = (9, 0)  # Debian 12, the oldest target that has all of what is assumed
ASSUMED_QEMU: Version = (7, 2)

SINCE: tuple[tuple[str, Version, Version], ...] = (
    # element, libvirt, QEMU
    (HINT_DEDICATED, (5, 7), (2, 12)),
    (POLL_CONTROL, (6, 10), (4, 2)),
    (PORT_HOTPLUG, (6, 3), (5, 0)),
    (FIRMWARE_FEATURES, (7, 2), (2, 9)),
    (ALLOCATION_THREADS, (8, 2), (5, 0)),
    (MAXPHYSADDR, (8, 7), (2, 7)),
    (MAXPHYSADDR_LIMIT, (9, 3), (2, 9)),
    (DMA_TRANSLATION, (10, 7), (7, 2)),
    (DMA_TRANSLATION_GLOBAL, (1, 0), (7, 2)),
)
# Since when every libvirt and QEMU that hosttune meets has them (formatdomain: "Since 1.0.6" for queues of virtio-net,
# 1.0.3 for <rng>, 0.7.7 for virtio channels), and so in no table: queues, guest-agent channel, random numbers.

# How each element shows in libvirt's own schema (domaincommon.rng, cputypes.rng of the installed packages).
SCHEMA_MARKS: tuple[tuple[str, str], ...] = (
    (HINT_DEDICATED, r'<element name="hint-dedicated">'),
    (POLL_CONTROL, r'<element name="poll-control">'),
    (PORT_HOTPLUG, r'<attribute name="hotplug">'),
    (FIRMWARE_FEATURES, r"<value>enrolled-keys</value>"),
    (ALLOCATION_THREADS, r'<element name="allocation">(?:(?!</element>).)*<attribute name="threads">'),
    (MAXPHYSADDR, r'<element name="maxphysaddr">'),
    (MAXPHYSADDR_LIMIT, r'<element name="maxphysaddr">(?:(?!</element>).)*<attribute name="limit">'),
    (DMA_TRANSLATION, r'<attribute name="dma_translation">'),
)
_OF_LIBVIRT = frozenset(name for name, _ in SCHEMA_MARKS)  # what a schema tells; the others are QEMU's alone


def in_schema(texts: Iterable[str]) -> tuple[str, ...]:
    """Element names that a libvirt schema (its RelaxNG files, as text) knows: what `define --validate` accepts."""
    whole = "\n".join(texts)
    return tuple(name for name, mark in SCHEMA_MARKS if re.search(mark, whole, re.DOTALL))


def known_elements(
    libvirt_version: str | None, qemu_version: str | None, schema: Collection[str] | None = None
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Element names that may be used, and (name, reason) of each one left out.

    libvirt's word is its installed `schema` (`in_schema`) where it could be read, else its version; QEMU's its version.
    An unknown (None) or unreadable version counts as libvirt 9.0 or QEMU 7.2, and the reason says so.
    """
    qemu = ("QEMU", version_of(qemu_version), ASSUMED_QEMU)
    installed = (("libvirt", version_of(libvirt_version), ASSUMED_LIBVIRT), qemu)
    known: list[str] = []
    left_out: list[tuple[str, str]] = []
    for name, *since in SINCE:
        if schema is None or name not in _OF_LIBVIRT:
            reasons = list(_lacking(installed, since))
        else:
            reasons = [] if name in schema else ["the installed libvirt's schema does not know"]
            reasons += _lacking((qemu,), since[1:])
        if reasons:
            left_out.append((name, "; ".join(reasons)))
        else:
            known.append(name)
    return tuple(known), tuple(left_out)


def _lacking(installed: tuple[tuple[str, Version | None, Version], ...], since: list[Version]) -> Iterator[str]:
    for (software, version, assumed), needed in zip(installed, since, strict=True):
        if (version or assumed) < needed:
            have = _text(version) if version else f"of unknown version, assumed to be {_text(assumed)}"
            yield f"needs {software} {_text(needed)}, this one is {have}"


def version_of(version: str | None) -> Version | None:
    """The numbers that a version begins with, None where it begins with none."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version or "")
    return tuple(int(part) for part in match[0].split(".")) if match else None


def _text(version: Version) -> str:
    return ".".join(str(part) for part in version)
