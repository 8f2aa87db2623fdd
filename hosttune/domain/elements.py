"""Optional XML elements, by the versions that introduced them; the plan lists those that it may use.

The versions are those of libvirt's formatdomain reference ("Since …") and of QEMU's change logs. A version is the
second-best evidence, for what `virsh domcapabilities` and the schema do not tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Names are those of the element or attribute in libvirt's XML.
HINT_DEDICATED = "hint-dedicated"  # KVM_HINTS_REALTIME: the guest need not yield its vCPUs
POLL_CONTROL = "poll-control"  # the guest may switch the host's halt polling off
ALLOCATION_THREADS = "allocation-threads"  # memory is touched by several threads at start
MAXPHYSADDR = "maxphysaddr"
MAXPHYSADDR_LIMIT = "maxphysaddr-limit"
FIRMWARE_FEATURES = "firmware-features"  # <firmware><feature name='secure-boot'/>

Version = tuple[int, ...]

ASSUMED_LIBVIRT: Version = (9, 0)  # Debian 12, the oldest target that has all of what is assumed
ASSUMED_QEMU: Version = (7, 2)

SINCE: tuple[tuple[str, Version, Version], ...] = (
    # element, libvirt, QEMU
    (HINT_DEDICATED, (5, 7), (2, 12)),
    (POLL_CONTROL, (6, 10), (4, 2)),
    (FIRMWARE_FEATURES, (7, 2), (2, 9)),
    (ALLOCATION_THREADS, (8, 2), (5, 0)),
    (MAXPHYSADDR, (8, 7), (2, 7)),
    (MAXPHYSADDR_LIMIT, (9, 3), (2, 9)),
)


def known_elements(
    libvirt_version: str | None, qemu_version: str | None
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Element names that these versions know, and (name, reason) of each one left out.

    An unknown (None) or unreadable version counts as libvirt 9.0 or QEMU 7.2, and the reason says so.
    """
    installed = (
        ("libvirt", _parse(libvirt_version), ASSUMED_LIBVIRT),
        ("QEMU", _parse(qemu_version), ASSUMED_QEMU),
    )
    known: list[str] = []
    left_out: list[tuple[str, str]] = []
    for name, *since in SINCE:
        reasons = list(_lacking(installed, since))
        if reasons:
            left_out.append((name, "; ".join(reasons)))
        else:
            known.append(name)
    return tuple(known), tuple(left_out)


def _lacking(installed: tuple[tuple[str, Version | None, Version], ...], since: list[Version]) -> Iterator[str]:
    for (software, version, assumed), needed in zip(installed, since, strict=True):
        if (version or assumed) < needed:
            have = _text(version) if version else f"of unknown version, taken for {_text(assumed)}"
            yield f"needs {software} {_text(needed)}, this one is {have}"


def _parse(version: str | None) -> Version | None:
    match = re.match(r"\d+(\.\d+)*", version or "")
    return tuple(int(part) for part in match[0].split(".")) if match else None


def _text(version: Version) -> str:
    return ".".join(str(part) for part in version)
