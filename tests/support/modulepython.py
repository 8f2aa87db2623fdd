"""A Python for Ansible's own modules on hosts that tests simulate.

Each of them brings Ansible's code as source, and compiling that takes half of the time of a module. Here it is loaded
before, from byte code. Our own module `hosttune` uses nothing of it, and is quicker without.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ansible


def module_python(folder: Path) -> str:
    """The path of a Python in `folder`, made if it is not there: a virtual environment that holds Ansible alone."""
    link = folder / "bin" / "python"
    if not link.is_symlink():
        site = folder / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
        site.mkdir(parents=True)
        (folder / "pyvenv.cfg").write_text(f"home = {sys.base_exec_prefix}/bin\ninclude-system-site-packages = false\n")
        (site / "ansible").symlink_to(Path(*ansible.__path__))
        (site / "ansible.pth").write_text("import ansible.module_utils.basic\n")
        link.parent.mkdir()
        link.symlink_to(Path(sys.executable).resolve())
    return str(link)
