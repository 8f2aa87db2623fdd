"""`fleet files`: playbooks and example inventories, where hosttune is a package and Ansible came otherwise."""

from __future__ import annotations

import os
import shutil

from hosttune.assets import folder
from hosttune.errors import BadInput

FOLDERS = ("playbooks", "inventories", "monitoring")
_NOT = shutil.ignore_patterns("__pycache__", "*.py[co]", "tests")


def write_files(target: str) -> None:
    """Write the shipped folders and their ansible.cfg below a new folder. Raises BadInput."""
    if os.path.lexists(target):
        raise BadInput(f"it is there already: {target}", where="DIR", hint="name a new folder: nothing is overwritten")
    try:
        for name in FOLDERS:
            shutil.copytree(folder(name), os.path.join(target, name), ignore=_NOT)
        shutil.copy(os.path.join(os.path.dirname(folder("playbooks")), "ansible.cfg"), target)
        os.mkdir(os.path.join(target, "examples"))  # of the trial
        shutil.copy(os.path.join(folder("examples"), "hgx-h200-8.tar.xz"), os.path.join(target, "examples"))
    except OSError as error:
        raise BadInput(f"cannot write {target}: {error}", where="DIR", hint="name another folder") from error
