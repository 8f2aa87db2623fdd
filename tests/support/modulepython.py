"""Pythons for Ansible's modules on hosts that tests simulate: virtual environments without packages of this machine."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def bare_python(folder: Path, name: str) -> str:
    """The path of a Python in `folder`, made if it is not there. It loads nothing at its start."""
    link = folder / "bin" / name
    if not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        (folder / "pyvenv.cfg").write_text(f"home = {sys.base_exec_prefix}/bin\ninclude-system-site-packages = false\n")
        link.symlink_to(Path(sys.executable).resolve())
    return str(link)


def module_python(folder: Path) -> str:
    """The path of a Python for Ansible's own modules.

    Each of them brings Ansible's code as source, and compiling that takes half of the time of a module. Here it is
    loaded before, from byte code. Our own module `hosttune` uses nothing of it.
    """
    site = folder / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
    if not site.exists():
        site.mkdir(parents=True)
        (site / "ansible").symlink_to(Path(sysconfig.get_path("purelib"), "ansible"))
        (site / "ansible.pth").write_text("import ansible.module_utils.basic\n")
    return bare_python(folder, "python")
