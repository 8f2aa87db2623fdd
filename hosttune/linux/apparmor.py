"""What libvirt's AppArmor profile of a guest lets QEMU read about NUMA nodes, and the rule that hosttune adds. Pure.

libvirt 9.0 and later has QEMU 7.2 and later allocate a guest's memory, where that is done at its start (huge pages, or
`<allocation mode='immediate'/>`), in threads that run on the CPUs of its node (qemu_command.c,
qemuBuildThreadContextProps). QEMU gets these CPUs from libnuma (util/thread-context.c), which reads the node's
`cpumap`. The profile of libvirt 9.0 in Debian 12 does not allow that read, and QEMU exits with "The nodes select no
CPUs" (gitlab.com/libvirt/libvirt, issue 515); later profiles allow it. An administrator's additions to the profile
belong into its file below `local`, which the profile of Debian and Ubuntu includes.
"""

from __future__ import annotations

import re

ENABLED = "/sys/module/apparmor/parameters/enabled"
PROFILE = "/etc/apparmor.d/abstractions/libvirt-qemu"
LOCAL = "/etc/apparmor.d/local/abstractions/libvirt-qemu"
RULE = "/sys/devices/system/node/node[0-9]*/cpumap r,"
_MARK, _MADE = "# hosttune", "# hosttune, the whole file"
# Any rule that allows reading a node's cpumap: by its name, or by a pattern that ends in it or in everything.
_ALLOWS = (
    r"(?m)^[ \t]*(?:@\{sys\}|/sys)/"
    r"(?:devices/system/node/(?:\*\*|(?:node\S*|\*{1,2})/(?:cpumap|\*{1,2}))|(?:devices/(?:system/)?)?\*\*)"
    r"\s+\w*r\w*\s*,"
)


_INCLUDES_LOCAL = r"(?m)^[ \t]*#?include[ \t]+(?:if\s+exists\s+)?<local/abstractions/libvirt-qemu>"


def includes_local(profile: str) -> bool:
    """Return whether the profile includes its local part; otherwise a rule there has no effect."""
    return re.search(_INCLUDES_LOCAL, profile) is not None


def allows_node_cpus(*texts: str | None) -> bool:
    """Return whether one of these parts of a profile lets QEMU read which CPUs a node has."""
    return any(re.search(_ALLOWS, text) for text in texts if text)


def is_ours(text: str | None) -> bool:
    """Return whether the local part contains hosttune's rule."""
    return any(_is_own_line(line) for line in (text or "").splitlines())


def with_rule(text: str | None) -> str:
    """Return the local part with hosttune's rule as its last line. `text` None: the file does not exist yet."""
    before = "" if text is None else text if text.endswith("\n") or not text else f"{text}\n"
    return f"{before}  {RULE} {_MADE if text is None else _MARK}\n"


def without_rule(text: str) -> str | None:
    """Return the local part without hosttune's rule; None: hosttune made the file, and nothing else is in it."""
    lines = text.splitlines(keepends=True)
    made = any(line.rstrip().endswith(_MADE) for line in lines)
    rest = "".join(line for line in lines if not _is_own_line(line))
    return None if made and not rest else rest


def _is_own_line(line: str) -> bool:
    return line.strip() in (f"{RULE} {_MARK}", f"{RULE} {_MADE}")
