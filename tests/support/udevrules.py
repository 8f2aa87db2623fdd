"""What udev's rules would do with a block device: a small interpreter of udev(7), for the rules in tests/cases/udev.

Written from udev(7). Every program that a rule would run is noted, not run; `blkid` finds what the device is said to
have. Only what these rules use is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

_TOKEN = re.compile(r'([A-Z]+)(?:\{([^}]*)\})?\s*(==|!=|\+=|-=|:=|=)\s*"((?:[^"\\]|\\.)*)"')


class Device:
    """A block device: its name, what blkid finds on it, and its parents, nearest first: name and attributes.

    After `process`: its properties in `env`, and the programs that would be run in `ran`.
    """

    def __init__(
        self,
        kernel: str,
        content: Mapping[str, str],
        parents: Sequence[tuple[str, Mapping[str, str]]],
        *,
        part: bool = False,
        action: str = "add",
    ) -> None:
        self.kernel, self.content, self.parents, self.action = kernel, content, parents, action
        self.env = {"DEVTYPE": "partition" if part else "disk", "DEVNAME": f"/dev/{kernel}"}
        self.ran: list[str] = []


def process(device: Device, files: Mapping[str, str]) -> Device:
    """Apply rules files, by name, in udev's order."""
    for name in sorted(files):
        rules = [_TOKEN.findall(line) for line in re.sub(r"\\\n", " ", files[name]).splitlines() if line[:1] != "#"]
        at = 0
        while at < len(rules):
            target = _apply(device, rules[at])
            at += 1
            if target is not None:
                labels = [n for n, rule in enumerate(rules) if ("LABEL", "", "=", target) in rule and n >= at]
                at = labels[0]  # udev refuses a rule whose label is not after it
    return device


def _apply(device: Device, rule: list[tuple[str, str, str, str]]) -> str | None:
    """Apply one rule; return the label to go on from."""
    above = [
        (key, name, op, value) for key, name, op, value in rule if key in ("KERNELS", "ATTRS", "SUBSYSTEMS", "DRIVERS")
    ]
    if above and not any(all(_parent(parent, *token) for token in above) for parent in device.parents):
        return None
    target = None
    for key, name, op, value in rule:
        if key == "ENV" and op == "=":
            device.env[name] = value
        elif key in ("IMPORT", "PROGRAM", "RUN"):
            if not _run(device, key, name, value):
                return None
        elif key == "GOTO":
            target = value
        elif op in ("==", "!=") and key not in ("KERNELS", "ATTRS", "SUBSYSTEMS", "DRIVERS"):
            known = {
                "ACTION": device.action,
                "SUBSYSTEM": "block",
                "KERNEL": device.kernel,
                "ENV": device.env.get(name, ""),
            }
            if _matches(known.get(key, ""), value) != (op == "=="):
                return None
    return target


def _run(device: Device, key: str, name: str, value: str) -> bool:
    if (key, name) == ("IMPORT", "builtin") and value.startswith("blkid"):
        device.ran.append("blkid")
        device.env |= device.content
        return True
    if key == "IMPORT" and name in ("cmdline", "db", "parent"):
        return False
    device.ran.append(value)
    return True


def _parent(parent: tuple[str, Mapping[str, str]], key: str, name: str, op: str, value: str) -> bool:
    known = {"KERNELS": parent[0], "ATTRS": parent[1].get(name, "")}.get(key, "")
    return _matches(known, value) == (op == "==")


def _matches(text: str, patterns: str) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns.split("|"))
