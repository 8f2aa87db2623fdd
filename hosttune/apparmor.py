"""What libvirt's AppArmor profile of a guest lets QEMU read of NUMA nodes, and the rule that hosttune adds. Pure.

libvirt 9.0 and later has QEMU 7.2 and later clear a guest's huge pages in threads that run on the CPUs of the pages'
node (qemu_command.c, qemuBuildThreadContextProps). QEMU asks libnuma for these CPUs (util/thread-context.c), which
reads the node's `cpumap`. The profile of libvirt 9.0 in Debian 12 allows no such read, and QEMU ends: "The nodes select
no CPUs" (gitlab.com/libvirt/libvirt, issue 515); later ones allow it. What an administrator adds to the profile belongs
into its file below `local`, which Debian's and Ubuntu's profile includes.
"""

from __future__ import annotations

import re

ENABLED = "/sys/module/apparmor/parameters/enabled"
PROFILE = "/etc/apparmor.d/abstractions/libvirt-qemu"
LOCAL = "/etc/apparmor.d/local/abstractions/libvirt-qemu"
RULE = "/sys/devices/system/node/node[0-9]*/cpumap r,"
_MARK, _MADE = "# hosttune", "# hosttune, the whole file"
# Any rule that lets a node's cpumap be read: named, or by a pattern that ends in it or in everything.
_ALLOWS = re.compile(
    r"^\s*(?:@\{sys\}|/sys)/(?:devices/system/node/(?:\*\*|(?:node\S*|\*{1,2})/(?:cpumap|\*{1,2}))|(?:devices/(?:system/)?)?\*\*)"
    r"\s+\w*r\w*\s*,",
    re.MULTILINE,
)


_INCLUDES_LOCAL = re.compile(r"^\s*#?include\s+(?:if\s+exists\s+)?<local/abstractions/libvirt-qemu>", re.MULTILINE)


def includes_local(profile: str) -> bool:
    """Whether the profile takes in its local part; one that does not ignores a rule there."""
    return _INCLUDES_LOCAL.search(profile) is not None


def allows_node_cpus(*texts: str | None) -> bool:
    """Whether one of these parts of a profile lets QEMU read which CPUs a node has."""
    return any(_ALLOWS.search(text) for text in texts if text)


def is_ours(text: str | None) -> bool:
    """Whether the local part holds hosttune's rule."""
    return any(_is_own_line(line) for line in (text or "").splitlines())


def with_rule(text: str | None) -> str:
    """The local part with hosttune's rule as its last line; None: there is no such file yet."""
    before = "" if text is None else text if text.endswith("\n") or not text else f"{text}\n"
    return f"{before}  {RULE} {_MADE if text is None else _MARK}\n"


def without_rule(text: str) -> str | None:
    """The local part without hosttune's rule; None: the file was made for it, and nothing else is in it."""
    lines = text.splitlines(keepends=True)
    made = any(line.rstrip().endswith(_MADE) for line in lines)
    rest = "".join(line for line in lines if not _is_own_line(line))
    return None if made and not rest else rest


def _is_own_line(line: str) -> bool:
    return line.strip() in (f"{RULE} {_MARK}", f"{RULE} {_MADE}")
