"""`make packages`: a .deb and an .rpm for every supported Python, wheel, sdist, Ansible collection, SBOM, checksums.

A package holds the locked wheels (requirements/host.txt), unpacked below /opt/hosttune as a virtual environment whose
interpreter is the host's own: `bin/python3` is a link, and each Python has its folder of compiled libraries. So a host
runs no pip, `dpkg -V` and `rpm -V` check every file, and a newer Python of the distribution needs no other package.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))
import hosttune  # noqa: E402
from requirements.wheelhouse import LOCK, PYTHONS, download, own_wheel, sign  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PREFIX = "opt/hosttune"
PYVENV = "home = /usr/bin\ninclude-system-site-packages = false\n"
LAUNCHER = """\
#!/opt/hosttune/bin/python3 -I
import sys

from hosttune.cli import main

sys.exit(main())
"""
# libvirt's binding is the distribution's: a link that leads nowhere is the same as no binding.
BINDINGS = {"deb": "/usr/lib/python3/dist-packages", "rpm": "/usr/lib64/python{python}/site-packages"}
KINDS = ("deb", "rpm", "python", "collection")
# Not in a package: nothing is installed by pip there, and of rich hosttune uses what needs none of the others (12 MB).
LEFT_OUT = ("pip", "pygments", "markdown-it-py", "mdurl")
VERSION = hosttune.__version__


def wheels_of(scratch: Path) -> dict[str, list[Path]]:
    """The locked wheels by Python, without those left out; hosttune's own is in none."""
    wheels = {}
    for python in PYTHONS:
        (scratch / python).mkdir()
        wheels[python] = [
            file
            for file in download(python, scratch / python)
            if file.name.partition("-")[0].replace("_", "-") not in LEFT_OUT
        ]
    return wheels


def unpack(wheel: Path, to: Path) -> None:
    """A wheel's modules; of what it installs elsewhere only hosttune's man pages and completion are wanted."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(to)
    for data in to.glob("*.data"):
        if wheel.name.startswith("hosttune-"):
            shutil.copytree(data / "data", to.parents[3] / "usr", dirs_exist_ok=True)
        shutil.rmtree(data)


def write_tree(tree: Path, own: Path, wheels: dict[str, list[Path]], kind: str) -> None:
    """Everything that the package installs."""
    lib = tree / PREFIX / "lib"
    unpack(own, lib / "common")
    for python, files in wheels.items():
        site = lib / f"python{python}" / "site-packages"
        site.mkdir(parents=True)
        (site / "hosttune-common.pth").write_text(f"/{PREFIX}/lib/common\n")
        for wheel in files:
            unpack(wheel, lib / "common" if wheel.name.endswith("-none-any.whl") else site)
        binding = BINDINGS[kind].format(python=python)
        module = f"libvirtmod.cpython-{python.replace('.', '')}-x86_64-linux-gnu.so"
        for name in ("libvirt.py", module):
            (site / name).symlink_to(f"{binding}/{name}")
    binaries = tree / PREFIX / "bin"
    binaries.mkdir()
    (binaries / "hosttune").write_text(LAUNCHER)
    (binaries / "hosttune").chmod(0o755)
    (tree / PREFIX / "pyvenv.cfg").write_text(PYVENV)
    if kind == "deb":
        (binaries / "python3").symlink_to("/usr/bin/python3")
    (tree / "usr/bin").mkdir(parents=True, exist_ok=True)
    (tree / "usr/bin/hosttune").symlink_to(f"/{PREFIX}/bin/hosttune")
    write_rest(tree)
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def write_rest(tree: Path) -> None:
    """The unit, the configuration, bash's completion, and the documents that Debian's policy asks for."""
    units = tree / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    text = (ROOT / "playbooks/files/hosttune-watch.service").read_text()
    (units / "hosttune-watch.service").write_text(text.replace(f"/{PREFIX}/bin/", "/usr/bin/"))
    (tree / "etc/hosttune").mkdir(parents=True)
    shutil.copy(HERE / "config.toml", tree / "etc/hosttune/config.toml")
    documents = tree / "usr/share/doc/hosttune"
    documents.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "LICENSE", documents / "copyright")
    log = (ROOT / "CHANGELOG.md").read_bytes()
    (documents / "changelog.gz").write_bytes(gzip.compress(log, mtime=0))
    for page in (tree / "usr/share/man/man1").glob("*.1"):
        page.with_suffix(".1.gz").write_bytes(gzip.compress(page.read_bytes(), mtime=0))
        page.unlink()


def build_deb(tree: Path, out: Path, version: str) -> Path:
    """The Debian package of the tree."""
    control = tree / "DEBIAN"
    shutil.copytree(HERE / "deb", control)
    size = sum(path.lstat().st_size for path in files_of(tree)) // 1024
    text = (control / "control").read_text().format(version=version, size=size, summary=PROJECT["description"])
    (control / "control").write_text(text)
    sums = (f"{md5(path)}  {path.relative_to(tree)}" for path in files_of(tree) if not path.is_symlink())
    (control / "md5sums").write_text("\n".join(sorted(sums)) + "\n")
    package = out / f"hosttune_{version}_amd64.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", "-Zzstd", tree, package], check=True, stdout=-3)
    return package


def files_of(tree: Path) -> Iterator[Path]:
    """The files that a package installs."""
    control = tree / "DEBIAN"
    yield from (
        path for path in tree.rglob("*") if (path.is_symlink() or path.is_file()) and control not in path.parents
    )


def md5(path: Path) -> str:
    """As dpkg keeps it in its own records; no proof of where a file is from."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def build_rpm(tree: Path, out: Path, version: str) -> Path:
    """The RPM package of the tree."""
    with tempfile.TemporaryDirectory() as top:
        defines = {"_topdir": top, "tree": tree, "version": version, "summary": PROJECT["description"], "_rpmdir": out}
        options = [word for name, value in defines.items() for word in ("--define", f"{name} {value}")]
        options += ["--define", "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm", "--target", "x86_64"]
        subprocess.run(["rpmbuild", "-bb", "--quiet", *options, HERE / "hosttune.spec"], check=True)
    return out / f"hosttune-{version}-1.x86_64.rpm"


def build_collection(stage: Path, out: Path) -> Path:
    """The Ansible collection: that of the playbooks, with the playbooks themselves and what they copy to hosts."""
    shutil.copytree(ROOT / "playbooks/collections/ansible_collections/hosttune/host", stage)
    shutil.copytree(ROOT / "playbooks", stage / "playbooks", ignore=shutil.ignore_patterns("collections"))
    shutil.copytree(ROOT / "monitoring", stage / "monitoring", ignore=shutil.ignore_patterns("tests"))
    (stage / "docs").mkdir()
    for name in ("LICENSE", "CHANGELOG.md", "docs/playbooks.md", "docs/bootstrap.md", "docs/monitoring.md"):
        shutil.copy(ROOT / name, stage / name)
    about = {
        "namespace": "hosttune", "name": "host", "version": VERSION, "description": PROJECT["description"],
        "readme": "README.md", "license_file": "LICENSE", "authors": ["The hosttune authors"], "dependencies": {},
        "tags": ["infrastructure", "linux", *PROJECT["keywords"]], "build_ignore": ["__pycache__"],
        "homepage": PROJECT["urls"]["Homepage"], "repository": PROJECT["urls"]["Homepage"],
    }  # fmt: skip
    (stage / "galaxy.yml").write_text(json.dumps(about))
    galaxy = Path(sys.executable).with_name("ansible-galaxy")
    options = ["--force", "--output-path", str(out), str(stage)]
    subprocess.run([str(galaxy), "collection", "build", *options], check=True, stdout=subprocess.DEVNULL)
    return out / f"hosttune-host-{VERSION}.tar.gz"


def sbom(own: Path, version: str) -> str:
    """What is in a package, as CycloneDX 1.6: hosttune and each locked library, with the SHA-256 of its wheels."""
    libraries = []
    for entry in LOCK.read_text().replace("\\\n", " ").splitlines():
        name, _, rest = entry.partition("==")
        if not rest or entry.startswith("#") or name in LEFT_OUT:
            continue
        of_library, *hashes = rest.split()
        libraries.append(component(name, of_library, [one.removeprefix("--hash=sha256:") for one in hashes]))
    main = component("hosttune", version, [hashlib.sha256(own.read_bytes()).hexdigest()])
    document = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"component": {**main, "type": "application", "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": libraries,
    }  # fmt: skip
    return json.dumps(document, indent=2) + "\n"


def component(name: str, version: str, hashes: Sequence[str]) -> dict[str, object]:
    """One component; a library has one hash for each Python for which it is compiled."""
    reference = f"pkg:pypi/{name}@{version}"
    sums = [{"alg": "SHA-256", "content": one} for one in hashes]
    return {
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "purl": reference,
        "hashes": sums,
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", choices=KINDS, action="append", help="build these alone")
    parser.add_argument("--wheel", type=Path, help="a wheel of hosttune, instead of one of this tree")
    parser.add_argument("--version", default=VERSION, help="the packages' version")
    parser.add_argument("--key", help="sign the checksums with this SSH key, as SHA256SUMS.sig")
    asked = parser.parse_args()
    out, kinds = asked.out.resolve(), asked.only or KINDS
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with tempfile.TemporaryDirectory(prefix=".packages-", dir=out) as folder:
        scratch = Path(folder)
        own = asked.wheel or own_wheel(scratch)
        if "python" in kinds:
            written += [Path(shutil.copy(own, out))]
            subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", out], check=True, cwd=ROOT)
            written += [out / f"hosttune-{VERSION}.tar.gz"]
        if "collection" in kinds:
            written += [build_collection(scratch / "collection", out)]
        wheels = wheels_of(scratch) if {"deb", "rpm"} & {*kinds} else {}
        for kind, build in (("deb", build_deb), ("rpm", build_rpm)):
            if kind in kinds:
                write_tree(scratch / kind, own, wheels, kind)
                written += [build(scratch / kind, out, asked.version)]
        bill = out / f"hosttune-{asked.version}.cdx.json"
        bill.write_text(sbom(own, asked.version))
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in (*written, bill))
    (out / "SHA256SUMS").write_text("".join(sums))
    if asked.key:
        sign(out / "SHA256SUMS", asked.key)
    for path in written:
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
