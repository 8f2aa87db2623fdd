"""Optional XML elements, and the versions that introduced them; the plan lists those that it may use.

libvirt's installed schema is the evidence where it can be read. The versions from libvirt's formatdomain reference
("Since …") and QEMU's change logs are used for captures without the schema, and for QEMU.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

# A name is that of the element or attribute in libvirt's XML.
HINT_DEDICATED = "hint-dedicated"  # KVM_HINTS_REALTIME: the guest does not have to yield its vCPUs
# Every libvirt and QEMU that hosttune supports has these. Their names in a plan tell it from those of earlier versions,
# whose guests are left as they are.
MAC = "mac"  # a MAC that is the guest's own at each print
DISCARD = "discard"  # what the guest's file system frees becomes free on the host
PANIC = "panic"  # the guest's kernel tells the host of its panic
VMCOREINFO = "vmcoreinfo"  # a dump of the guest's memory can be read
FIRMWARE = "firmware"  # <os firmware='efi'>: libvirt finds the firmware's files
POLL_CONTROL = "poll-control"  # the guest may switch the host's halt polling off
ALLOCATION_THREADS = "allocation-threads"  # several threads allocate the guest's memory at start
MAXPHYSADDR = "maxphysaddr"
MAXPHYSADDR_LIMIT = "maxphysaddr-limit"
FIRMWARE_FEATURES = "firmware-features"  # <firmware><feature name='secure-boot'/>
DMA_TRANSLATION = (
    "dma-translation"  # <iommu><driver dma_translation='off'/>: an IOMMU device that remaps interrupts only
)
DMA_TRANSLATION_GLOBAL = "dma-translation-argument"  # the same as a QEMU argument, for a libvirt without the element
CHIPSET_WATCHDOG = "itco-watchdog"  # the chipset's own; without it one on conventional PCI, below a bridge
CLIQUE = "gpudirect-clique"  # <qemu:override> with the clique of a GPU
PORT_HOTPLUG = "port-hotplug"  # <target hotplug='off'/>: no memory and no I/O space is reserved behind a port

Version = tuple[int, ...]

ASSUMED_LIBVIRT: Version = (9, 0)  # Debian 12, the oldest target; it has every element that is used without a check
ASSUMED_QEMU: Version = (7, 2)

SINCE: tuple[tuple[str, Version, Version], ...] = (
    # element, libvirt, QEMU
    (MAC, (1, 0), (1, 0)),
    (DISCARD, (1, 0, 6), (1, 5)),
    (PANIC, (1, 3), (1, 5)),
    (VMCOREINFO, (3, 10), (2, 11)),
    (FIRMWARE, (5, 2), (2, 9)),
    (HINT_DEDICATED, (5, 7), (2, 12)),
    (POLL_CONTROL, (6, 10), (4, 2)),
    (PORT_HOTPLUG, (6, 3), (5, 0)),
    (FIRMWARE_FEATURES, (7, 2), (2, 9)),
    (ALLOCATION_THREADS, (8, 2), (5, 0)),
    (CLIQUE, (8, 2), (2, 11)),
    (MAXPHYSADDR, (8, 7), (2, 7)),
    (CHIPSET_WATCHDOG, (9, 1), (2, 4)),
    (MAXPHYSADDR_LIMIT, (9, 3), (2, 9)),
    (DMA_TRANSLATION, (10, 7), (7, 2)),
    (DMA_TRANSLATION_GLOBAL, (1, 0), (7, 2)),
)
# Every libvirt and QEMU that hosttune supports has queues, guest-agent channel and random numbers, so that no table has
# them (formatdomain: "Since 1.0.6" for queues of virtio-net, 1.0.3 for <rng>, 0.7.7 for virtio channels).

# How each element appears in libvirt's own schema (domaincommon.rng, cputypes.rng of the installed packages).
SCHEMA_MARKS: tuple[tuple[str, str], ...] = (
    (HINT_DEDICATED, r'<element name="hint-dedicated">'),
    (POLL_CONTROL, r'<element name="poll-control">'),
    (PORT_HOTPLUG, r'<attribute name="hotplug">'),
    (FIRMWARE_FEATURES, r"<value>enrolled-keys</value>"),
    (ALLOCATION_THREADS, r'<element name="allocation">(?:(?!</element>).)*<attribute name="threads">'),
    (MAXPHYSADDR, r'<element name="maxphysaddr">'),
    (MAXPHYSADDR_LIMIT, r'<element name="maxphysaddr">(?:(?!</element>).)*<attribute name="limit">'),
    (CHIPSET_WATCHDOG, r"<value>itco</value>"),
    (DMA_TRANSLATION, r'<attribute name="dma_translation">'),
)
_OF_LIBVIRT = frozenset(name for name, _ in SCHEMA_MARKS)  # elements shown by a schema; others need QEMU alone


def in_schema(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the names of elements in a libvirt schema (its RelaxNG files): `define --validate` accepts them."""
    whole = "\n".join(texts)
    return tuple(name for name, mark in SCHEMA_MARKS if re.search(mark, whole, re.DOTALL))


def known_elements(
    libvirt_version: str | None, qemu_version: str | None, schema: Collection[str] | None = None
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the names of the elements that may be used, and (name, reason) of each one left out.

    For libvirt the installed `schema` (`in_schema`) decides if it was read, else the version; for QEMU the version.
    A version that is unknown (None) or unreadable counts as libvirt 9.0 or QEMU 7.2, and the reason says so.
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
    """Return the numbers at the start of a version; None if it does not start with a number."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version or "")
    return tuple(int(part) for part in match[0].split(".")) if match else None


def _text(version: Version) -> str:
    return ".".join(str(part) for part in version)
