#!/usr/bin/python
"""Ansible module: which Python of this host hosttune can run on. It changes nothing.

It runs under the host's own /usr/bin/python3, which may be older than what hosttune needs (3.9 on RHEL 9), so it
keeps to that language.
"""

# Copyright: hosttune's authors. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: bootstrap_python
short_description: Find the Python that hosttune is to run on
description:
  - Asks each of O(pythons) in turn what it is, and takes the first CPython that is 3.11 or newer, has the module
    C(venv), and is served by the wheelhouse.
  - Where none fits it fails, and says what each of them was and what to install.
options:
  pythons:
    description: Names or absolute paths of interpreters; names are looked for in the system's folders.
    type: list
    elements: str
    required: true
  tags:
    description: What the wheelhouse serves, as C(cp311-x86_64).
    type: list
    elements: str
    required: true
  install_hint:
    description: Packages to name where no Python fits.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: It only looks.
version_added: "0.1.0"
author: hosttune's authors (@hosttune)
"""

EXAMPLES = r"""
- name: Which Python is there
  hosttune.host.bootstrap_python:
    pythons: [/usr/bin/python3, python3.12]
    tags: [cp311-x86_64, cp312-x86_64]
    install_hint: [python3.12]
  register: hosttune_python
"""

RETURN = r"""
python:
  description: Path of the interpreter, links resolved.
  returned: success
  type: str
release:
  description: Its version.
  returned: success
  type: str
tag:
  description: The archive of the wheelhouse that serves it.
  returned: success
  type: str
libvirt:
  description: The two files of the distribution's libvirt binding for this very Python; empty where it has none.
  returned: success
  type: list
  elements: str
"""

OLDEST = (3, 11)  # pyproject.toml, requires-python
SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROBE = """
import importlib.util, json, os, platform, sys, sysconfig
specs = [importlib.util.find_spec(name) for name in ("libvirt", "libvirtmod")]
print(json.dumps({
    "version": list(sys.version_info[:3]), "implementation": sys.implementation.name, "machine": platform.machine(),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")), "executable": os.path.realpath(sys.executable),
    "venv": importlib.util.find_spec("venv") is not None,
    "libvirt": [spec.origin for spec in specs if spec and spec.origin] if all(specs) else [],
}))
"""


class Refused(Exception):
    """What cannot be done here, and what to do about it: the task's message."""


@dataclasses.dataclass(frozen=True)
class Python:
    """An interpreter that fits; the fields are those of RETURN."""

    python: str
    release: str
    tag: str
    libvirt: list[str]


def look_at(command: str, tags: list[str]) -> Python | str:
    """The interpreter behind a command, or why it does not fit."""
    path = shutil.which(command, path=SEARCHED)
    if path is None:
        return "not there"
    try:
        done = subprocess.run(
            [path, "-I", "-c", PROBE], capture_output=True, text=True, timeout=30, check=True, stdin=subprocess.DEVNULL
        )
        told = json.loads(done.stdout)
        release = ".".join(str(part) for part in told["version"])
        tag = "cp{}{}-{}".format(*told["version"][:2], told["machine"])
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, LookupError) as error:
        return f"does not answer as Python 3 does ({type(error).__name__})"
    if told["implementation"] != "cpython" or told["free_threaded"]:
        return f"{release}, not the usual build of CPython"
    if tuple(told["version"][:2]) < OLDEST:
        return f"{release}, older than 3.11"
    if tag not in tags:
        return f"{release}: the wheelhouse has nothing for {tag}"
    if not told["venv"]:
        return f"{release}, without the module venv"
    return Python(told["executable"], release, tag, told["libvirt"])


def choose(commands: list[str], tags: list[str], hint: list[str]) -> Python:
    """The first that fits. Raises Refused with all that was found and what to install."""
    seen = []
    for command in commands:
        found = look_at(command, tags)
        if isinstance(found, Python):
            return found
        seen.append(f"{command}: {found}")
    served = ", ".join(sorted(tags)) or "none at all"
    install = f"install {' '.join(hint)}" if hint else "install Python 3.11 or newer from the distribution"
    raise Refused(
        f"no Python 3.11 or newer on this host that the wheelhouse serves ({served}). "
        f"Looked at {'; '.join(seen) or 'nothing'}. To do: {install}, or name its path in hosttune_pythons."
    )


def main() -> None:
    """See DOCUMENTATION."""
    words = {"type": "list", "elements": "str"}
    module = AnsibleModule(
        argument_spec={
            "pythons": {**words, "required": True},
            "tags": {**words, "required": True},
            "install_hint": {**words, "default": []},
        },
        supports_check_mode=True,
    )
    asked = module.params
    try:
        found = choose(asked["pythons"], asked["tags"], asked["install_hint"])
    except Refused as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **dataclasses.asdict(found))


if __name__ == "__main__":
    main()
