"""Packages in a bare Debian root without a checkout: install, first plan, second day, upgrade, purge."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
STORE = Path(os.environ.get("HOSTTUNE_LAB", ROOT / ".lab"))
SUITE = os.environ.get("HOSTTUNE_SUITE", "bookworm")
INTENT = "version: 1\nguests: [{name: train, gpus: 1, disk: /images/train.qcow2, networks: [{network: default}]}]\n"
OLDER = "0.0.1"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Packages of this tree, and older ones: of the wheel HOSTTUNE_OLDER, or of this tree with one module more."""
    out = tmp_path_factory.mktemp("packages")
    build = [sys.executable, "packaging/build.py", "--out", str(out), "--only", "deb", "--only", "rpm"]
    subprocess.run([*build, "--only", "python"], check=True, cwd=ROOT)
    (wheel,) = out.glob("*.whl")
    older = os.environ.get("HOSTTUNE_OLDER") or shutil.copy(wheel, tmp_path_factory.mktemp("older"))
    if "HOSTTUNE_OLDER" not in os.environ:
        with zipfile.ZipFile(older, "a") as archive:
            archive.writestr("hosttune/gone/__init__.py", "")
    subprocess.run([*build, "--wheel", older, "--version", OLDER], check=True, cwd=ROOT)
    new, old = sorted(out.glob("*.deb"), reverse=True)
    new_rpm, old_rpm = sorted(out.glob("*.rpm"), reverse=True)
    return {"new": new, "old": old, "new rpm": new_rpm, "old rpm": old_rpm}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A Debian of packages alone, with Python; made once and kept."""
    STORE.mkdir(exist_ok=True)
    made = STORE / f"packages-{SUITE}.tar"
    if not made.exists():
        partial = made.with_suffix(".new.tar")
        command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--include=ca-certificates,python3"]
        mirror = [] if SUITE == "bookworm" else [f"deb http://deb.debian.org/debian {SUITE} main"]
        subprocess.run([*command, SUITE, str(partial), *mirror], check=True)
        partial.rename(made)
    folder = tmp_path / "root"
    folder.mkdir()
    subprocess.run(["tar", "-xf", made, "-C", folder], check=True)
    yield folder
    shutil.rmtree(folder)


def inside(root: Path, *command: str, code: int = 0) -> str:
    """Run a command in the root, in namespaces of its own: no /sys, its own /proc. Its output."""
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--net", "--mount-proc", f"--root={root}", "--wd=/root", *command],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def install(root: Path, package: Path) -> str:
    """Install a package in the root."""
    shutil.copy(package, root / "root/hosttune.deb")
    return inside(root, "dpkg", "-i", "/root/hosttune.deb")


def take_away(root: Path, remove: Callable[[], str]) -> None:
    """Remove the package of a host with a plan in force: what stays is said, and nothing else does."""
    for path in ("var/lib/hosttune", "etc/systemd/system/hosttune-boot.service"):
        (root / path).mkdir(parents=True)
    said = remove()
    assert "what it applied stays in force" in said
    assert "/var/lib/hosttune is kept" in said
    assert (root / "var/lib/hosttune").is_dir()
    assert not (root / "opt/hosttune").exists()


def test_a_strangers_host(packages: dict[str, Path], root: Path) -> None:
    install(root, packages["old"])
    assert inside(root, "hosttune", "--version").startswith("hosttune, version 0.1.0")
    assert inside(root, "dpkg", "-V", "hosttune") == ""
    assert "1 guest placed" in inside(root, "hosttune", "plan", "--root", "@example", "--gpu", "0000:41:00.0")

    intent, scratch = root / "root/intent.yaml", ("--root", "/srv/scratch")
    intent.write_text(INTENT)
    with tarfile.open(ROOT / "examples/hgx-h200-8.tar.xz") as tar:
        tar.extractall(root / "srv/scratch", filter="fully_trusted")
    (root / "srv/scratch/.hosttune/scratch").touch()
    (root / "srv/scratch/etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    inside(root, "hosttune", "apply", *scratch, "--intent", "/root/intent.yaml", "--yes")
    (root / "etc/hosttune/config.toml").write_text("[plan]\nprofile = 'none'\n")
    install(root, packages["new"])
    assert inside(root, "dpkg", "-V", "hosttune").split() == ["??5??????", "c", "/etc/hosttune/config.toml"]
    assert "train" in inside(root, "hosttune", "status", *scratch)
    intent.write_text(INTENT.replace("gpus: 1", "gpus: 2"))
    assert "~" in inside(root, "hosttune", "plan", *scratch, "-f", "/root/intent.yaml")
    inside(root, "hosttune", "apply", *scratch, "--intent", "/root/intent.yaml", "--yes")
    inside(root, "hosttune", "revert", *scratch, "--yes")

    take_away(root, lambda: inside(root, "dpkg", "--purge", "hosttune"))
    assert not (root / "etc/hosttune").exists()


def test_the_rpm_and_its_scriptlets(packages: dict[str, Path], root: Path) -> None:
    """No RHEL: the dependencies are not resolved, all else is rpm's own doing."""
    rpm = ["rpm", f"--root={root}", "--nodeps"]
    subprocess.run(["rpmdb", f"--root={root}", "--initdb"], check=True)
    subprocess.run([*rpm, "--install", packages["old rpm"]], check=True)
    subprocess.run([*rpm, "--upgrade", packages["new rpm"]], check=True)
    assert "1 guest placed" in inside(root, "hosttune", "plan", "--root", "@example", "--gpu", "0000:41:00.0")
    assert subprocess.run([*rpm, "--verify", "hosttune"], capture_output=True, text=True, check=True).stdout == ""
    take_away(root, lambda: subprocess.check_output([*rpm, "--erase", "hosttune"], stderr=subprocess.STDOUT, text=True))
