"""What guests need besides huge pages: a hugetlbfs mount that libvirt knows, and an AppArmor rule. Pure.

See `hosttune.linux.hugetlbfs` for the reason: a guest with huge pages does not start without a mount of its page size.
"""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.domain.elements import version_of
from hosttune.knobs.actions import make_action
from hosttune.linux.apparmor import LOCAL, RULE
from hosttune.linux.hugetlbfs import FOUND, NOT_FOUND, PLACES
from hosttune.model.host import Host
from hosttune.model.plan import Action, Finding, PlannedGuest
from hosttune.model.values import format_size

_WHERE = "/proc/mounts"
_WITH_CONTEXTS = (9, 0)  # the first libvirt version that lets QEMU allocate memory on the CPUs of its node
_NODE_CPUS = (
    "QEMU allocates a guest's memory on the CPUs of its node, and libvirt's AppArmor profile does not let it read which"
    " these are: planned guests do not start without this rule"
)


def mount_actions(host: Host, guests: tuple[PlannedGuest, ...], findings: list[Finding]) -> Iterator[Action]:
    """Yield a mount for each page size that has none, and libvirt's restart if it does not know the mount yet."""
    found: list[Action] = []
    for page in sorted({guest.page_bytes for guest in guests if guest.page_bytes}):
        names = ", ".join(guest.name for guest in guests if guest.page_bytes == page)
        found += _of_size(host, page, names, findings)
    yield from sorted(found, key=lambda action: action.kind != "mount")  # one restart finds all mounts
    if guests and _kept_from_node_cpus(host):  # each has its memory allocated at its start, with huge pages or without
        yield make_action("apparmor-rule", LOCAL, None, RULE, _NODE_CPUS, needed=True)


def _kept_from_node_cpus(host: Host) -> bool:
    """Return whether AppArmor blocks QEMU from reading which CPUs are on a node.

    Only libvirt versions from `_WITH_CONTEXTS` on need that; an unknown version counts as one of them.
    """
    stack = host.virtualization
    if stack is None or stack.reads_node_cpus is not False:
        return False
    version = version_of(stack.libvirt_version)
    return version is None or version >= _WITH_CONTEXTS


def _of_size(host: Host, page: int, names: str, findings: list[Finding]) -> Iterator[Action]:
    size = format_size(page)
    mounts = host.memory_settings.hugetlbfs if host.memory_settings else None
    if mounts is None:
        text = (
            f"whether a hugetlbfs of {size} pages is mounted is unknown: without one libvirt starts no guest with such"
            " pages; apply looks before a start"
        )
        findings.append(Finding(level="warn", text=text, where=_WHERE))
        return
    alike = [mount for mount in mounts if mount.size_bytes == page]
    place = alike[0].path if alike else PLACES.get(page)
    if place is None:
        text = f"hosttune mounts no hugetlbfs of {size} pages: mount one, or guests {names} do not start"
        findings.append(Finding(level="error", text=text, where=_WHERE))
        return
    if not alike and any(mount.path == place for mount in mounts):
        text = f"{place} holds huge pages of another size: unmount it, or mount {size} pages elsewhere, then plan again"
        findings.append(Finding(level="error", text=text, where=_WHERE))
        return
    if not alike:
        why = f"guests with {size} pages ({names}) need a hugetlbfs of that page size: libvirt starts none without it"
        yield make_action("mount", place, None, page, why, needed=True)
    if not any(mount.libvirt is not False for mount in alike):
        why = (
            f"libvirt looks for file systems of huge pages when it starts: its daemon is restarted after {place} is"
            " mounted; running guests go on running, and nothing is done while libvirt works on one"
        )
        yield make_action("libvirt-restart", place, NOT_FOUND, FOUND, why, needed=True)
