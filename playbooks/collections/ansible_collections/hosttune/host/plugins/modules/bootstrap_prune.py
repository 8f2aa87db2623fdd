#!/usr/bin/python
"""Ansible module: of the installed versions of hosttune, takes away those that are old and that nothing names.

It runs under the host's own /usr/bin/python3, which may be older than what hosttune needs (3.9 on RHEL 9), so it
keeps to that language.
"""

# Copyright: hosttune's authors. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: bootstrap_prune
short_description: Take away old versions of hosttune
description:
  - Of the folders O(prefix)/HASH, the one that O(prefix)/bin/hosttune leads to stays, with those used last, O(keep)
    in all.
  - None goes that a systemd unit names (the boot unit runs the hosttune that applied the plan, by its path) or that a
    process runs from. Where units or processes cannot be read, nothing goes, and the module fails.
options:
  prefix:
    description: Where versions and the link lie.
    type: path
    default: /opt/hosttune
  keep:
    description: How many versions stay, the one in use among them.
    type: int
    default: 2
  unit_folders:
    description: Where systemd units are that may name a version.
    type: list
    elements: path
    default: [/etc/systemd/system, /run/systemd/system, /usr/local/lib/systemd/system, /usr/lib/systemd/system]
attributes:
  check_mode:
    support: full
    description: Says what would go.
version_added: "0.1.0"
author: hosttune's authors (@hosttune)
"""

EXAMPLES = r"""
- name: Two versions stay, and those that a boot unit runs
  hosttune.host.bootstrap_prune:
    keep: 2
"""

RETURN = r"""
removed:
  description: Versions that were taken away.
  returned: success
  type: list
  elements: str
held:
  description: Versions that would have gone, but for a unit that names them or a process.
  returned: success
  type: list
  elements: str
"""

VERSION = re.compile(r"[0-9a-f]{16}")


class Refused(Exception):
    """What cannot be done here, and what to do about it: the task's message."""


def named_in(paths: Iterator[str], versions: list[str]) -> set[str]:
    """Those versions that a file names. Raises OSError for one that is there and cannot be read."""
    found: set[str] = set()
    for path in paths:
        try:
            with open(path, "rb") as file:
                text = file.read(1 << 20)
        except (FileNotFoundError, ProcessLookupError):
            continue  # a link into nothing; a process that has ended
        found.update(version for version in versions if f"/{version}/".encode() in text)
    return found


def unit_files(folders: list[str]) -> Iterator[str]:
    """Units and drop-ins. A unit masked by a link to /dev/null is empty, a folder that is a link is read as well."""
    for folder in folders:
        for place, _, names in os.walk(folder, onerror=stop, followlinks=False):
            yield from (os.path.join(place, name) for name in names if not os.path.isdir(os.path.join(place, name)))


def stop(error: OSError) -> None:
    """A folder that does not exist names nothing; one that cannot be read may name anything."""
    if not isinstance(error, FileNotFoundError):
        raise error


def process_files() -> Iterator[str]:
    """The arguments of every process: where it runs from a version, the first is that version's python."""
    return (f"/proc/{name}/cmdline" for name in os.listdir("/proc") if name.isdigit())


def old_versions(prefix: str, keep: int) -> list[str]:
    """Versions beyond `keep`, the one used last first. Raises Refused where none is in use, OSError."""
    link = os.path.join(prefix, "bin", "hosttune")
    current = os.path.basename(os.path.dirname(os.path.dirname(os.readlink(link)))) if os.path.islink(link) else ""
    names = [name for name in os.listdir(prefix) if VERSION.fullmatch(name)]
    if current not in names:
        raise Refused(f"{link} leads to no version: run the bootstrap to its end first")
    others = [name for name in names if name != current]
    others.sort(key=lambda name: os.stat(os.path.join(prefix, name)).st_mtime_ns, reverse=True)
    return others[max(keep - 1, 0) :]


def prune(prefix: str, keep: int, unit_folders: list[str], check: bool) -> dict[str, object]:
    """What RETURN says. Raises Refused, OSError."""
    descriptor = os.open(prefix, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the lock of bootstrap_hosttune
        old = old_versions(prefix, keep)
        held = named_in(unit_files(unit_folders), old) | named_in(process_files(), old) if old else set()
        going = [name for name in old if name not in held]
        for name in [] if check else going:
            grave = tempfile.mkdtemp(prefix=".old-", dir=prefix)
            os.rename(os.path.join(prefix, name), grave)  # out of its place at once, then piece by piece
            shutil.rmtree(grave)
    except BlockingIOError:
        raise Refused(f"a bootstrap is at work in {prefix}: let it end, then run this again") from None
    finally:
        os.close(descriptor)
    return {"changed": bool(going), "removed": going, "held": sorted(held)}


def main() -> None:
    """See DOCUMENTATION."""
    units = [f"{place}/systemd/system" for place in ("/etc", "/run", "/usr/local/lib", "/usr/lib")]
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "default": "/opt/hosttune"},
            "keep": {"type": "int", "default": 2},
            "unit_folders": {"type": "list", "elements": "path", "default": units},
        },
        supports_check_mode=True,
    )
    asked = module.params
    try:
        result = prune(asked["prefix"], asked["keep"], asked["unit_folders"], module.check_mode)
    except (Refused, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
