"""What the tests of the bootstrap share: its files as modules, changed wheelhouses, and the playbook run here."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from modulepython import module_python

from requirements.wheelhouse import requirement_of, tag_of

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = ROOT / "playbooks/collections/ansible_collections/hosttune/host"
HERE = "{}.{}".format(*sys.version_info[:2])


def load(path: str) -> ModuleType:
    """A file of the collection as a module, made anew: it lies where no package is."""
    name = Path(path).stem
    sys.path.append(str(COLLECTION / "plugins/module_utils"))  # pull mode has that file beside itself on a host
    spec = importlib.util.spec_from_file_location(name, COLLECTION / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(COLLECTION / "plugins/module_utils"))
    return module


class Refused(Exception):
    """The module's own, which is another class each time that the module is loaded."""


def settle(prefix: Path, wheelhouse: Path, **options: Any) -> dict[str, Any]:
    """What the installing module does for this wheelhouse, with the archive brought as the playbook brings it."""
    module = load("plugins/modules/bootstrap_hosttune.py")
    index = json.loads((wheelhouse / "index.json").read_text())
    archive = index["archives"][tag_of(HERE)]
    prefix.mkdir(mode=0o755, exist_ok=True)
    asked = {
        **{"prefix": str(prefix), "sha256": archive["sha256"], "version": index["version"], "libvirt": []},
        **{"python": os.path.realpath(sys.executable), "limit_seconds": 300, **options},
    }
    if "archive" not in asked:
        place = prefix / f".incoming-{archive['sha256'][:16]}.tar"
        asked["archive"] = str(shutil.copy(wheelhouse / archive["file"], place))
    try:
        done: dict[str, Any] = module.settle(module.Ask(**asked), check=False)
    except module.Refused as error:
        raise Refused(str(error)) from error
    return done


@dataclass
class Recap:
    """What ansible-playbook said of a host at its end."""

    text: str
    host: str = "host"
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        line = re.search(rf"^{self.host}\s+: (.*)$", self.text, re.M)
        assert line, self.text
        self.counts = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", line[1])}

    @property
    def changed(self) -> int:
        assert self.counts["failed"] == 0, self.text
        return self.counts["changed"]

    @property
    def refusal(self) -> str:
        assert self.counts["failed"] == 1, self.text
        found = re.search(rf"^fatal: \[{self.host}\]: FAILED! => (\{{.*\}})", self.text, re.M)
        assert found, self.text
        return found[1]


def play(prefix: Path, wheelhouse: Path, *options: str, **variables: Any) -> Recap:
    """Run the playbook on a host of its own, which is this machine with another prefix."""
    return play_hosts(prefix, {"host": (wheelhouse, variables)}, *options)["host"]


def play_hosts(prefix: Path, hosts: Mapping[str, tuple[Path, dict[str, Any]]], *options: str) -> dict[str, Recap]:
    """Run the playbook once on hosts with a wheelhouse and variables each; what it said of each."""
    home = prefix.parent
    inventory = home / "inventory.json"
    shared = {
        **{"ansible_connection": "local", "hosttune_packages": []},
        "ansible_python_interpreter": module_python(home / "python"),
        **{"hosttune_prefix": str(prefix), "hosttune_pythons": [sys.executable]},
        "hosttune_unit_folders": [str(home / "units")],
    }
    facts = {name: {"hosttune_wheelhouse": str(wheelhouse), **given} for name, (wheelhouse, given) in hosts.items()}
    group = {"gpu_hosts": {"hosts": dict.fromkeys(hosts)}}
    inventory.write_text(json.dumps({"all": {"hosts": facts, "vars": shared, "children": group}}))
    tool = Path(sys.executable).with_name("ansible-playbook")
    environment = {
        **{"PATH": f"{tool.parent}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", "HOME": str(home)},
        **{"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
    }
    done = subprocess.run(
        [str(tool), "-i", str(inventory), str(ROOT / "playbooks" / "bootstrap.yml"), *options],
        capture_output=True, text=True, check=False, env=environment, cwd=ROOT, timeout=300,
    )  # fmt: skip
    return {name: Recap(done.stdout + done.stderr, name) for name in hosts}


def picture(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path below a folder with its inode and time: what is written anew, or copied, shows."""
    return {str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in sorted(folder.rglob("*"))}


def version_of(wheelhouse: Path) -> str:
    index = json.loads((wheelhouse / "index.json").read_text())
    return str(index["archives"][tag_of(HERE)]["sha256"][:16])


def says(prefix: Path, *arguments: str) -> str:
    done = subprocess.run([str(prefix / "bin" / "hosttune"), *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def changed(wheelhouse: Path, room: Path, change: Callable[[Path], None]) -> Path:
    """A wheelhouse for this Python alone whose archive holds changed files, with an index that says its SHA-256."""
    tag = tag_of(HERE)
    copy = Path(tempfile.mkdtemp(prefix="wheelhouse-", dir=room))
    folder = copy / "wheels"
    with tarfile.open(wheelhouse / f"{tag}.tar") as tar:
        for member in tar.getmembers():
            folder.mkdir(exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None
            (folder / member.name).write_bytes(content.read())
    change(folder)
    with tarfile.open(copy / f"{tag}.tar", "w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)
    digest = hashlib.sha256((copy / f"{tag}.tar").read_bytes()).hexdigest()
    index = json.loads((wheelhouse / "index.json").read_text())
    index["archives"] = {tag: {**index["archives"][tag], "sha256": digest}}
    (copy / "index.json").write_text(json.dumps(index))
    return copy


def touch_wheel(folder: Path) -> None:
    """Other bytes of hosttune's wheel, the same files in it."""
    (wheel,) = folder.glob("hosttune-*.whl")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.comment = b"another build"


def newer_build(folder: Path) -> None:
    """What the next commit's wheelhouse is: another wheel of hosttune, and requirements that say so."""
    touch_wheel(folder)
    lines = sorted(requirement_of(wheel) for wheel in folder.glob("*.whl"))
    (folder / "requirements.txt").write_text("\n".join(lines) + "\n")
