"""The wheelhouse: what `playbooks/bootstrap.yml` installs on hosts without a package index. Run where there is one.

    python requirements/wheelhouse.py             # wheelhouse/cp311-x86_64.tar … and wheelhouse/index.json
    python requirements/wheelhouse.py --lock      # resolve requirements/host.txt anew; read the diff

One archive a Python version: hosttune's own wheel, its runtime dependencies (no Ansible), pip, and `requirements.txt`
with the SHA-256 of each. Only binary wheels: a host has no compiler. The same tree and lock give the same archives,
byte for byte, so an archive's SHA-256 names an installation.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "host.txt"
CONSTRAINTS = ROOT / "requirements" / "run.txt"
NAMESPACE = "hosttune-packages"  # of signatures
INDEX_SCHEMA = "hosttune.wheelhouse/v1"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINE = "x86_64"  # hosttune plans for no other
NEWEST_GLIBC = 34  # of RHEL 9, the oldest host served: glibc 2.34. PEP 600: a wheel names the oldest glibc it runs on.
OLDEST_GLIBC = 5  # manylinux1, PEP 513
_LOCK_HEAD = """\
# Locked for hosts: the runtime dependencies of pyproject.toml for Python {pythons} on {machine}, and pip to install
# them, in the versions of run.txt, with the SHA-256 of each wheel. Made by `python requirements/wheelhouse.py --lock`.
"""


def runtime_requirements(pyproject: Path = ROOT / "pyproject.toml") -> tuple[str, ...]:
    """The requirements of hosttune without extras, as pyproject.toml words them, and pip, which installs them."""
    with pyproject.open("rb") as file:
        return (*tomllib.load(file)["project"]["dependencies"], "pip")


def tag_of(python: str) -> str:
    """The archive's name for a Python version: `3.11` -> `cp311-x86_64`."""
    return f"cp{python.replace('.', '')}-{MACHINE}"


def target_options(python: str) -> list[str]:
    """pip's options for wheels of that CPython on every glibc up to that of the oldest host."""
    levels = [f"manylinux_2_{minor}_{MACHINE}" for minor in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1)]
    legacy = [f"{name}_{MACHINE}" for name in ("manylinux2014", "manylinux2010", "manylinux1")]
    platforms = [option for level in (*levels, *legacy) for option in ("--platform", level)]
    return ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python, *platforms]


def pip(*arguments: str) -> None:
    """Run this Python's pip. Raises CalledProcessError; pip has said on stderr what is wrong."""
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], check=True, cwd=ROOT)


def resolve(python: str, folder: Path) -> list[Mapping[str, Any]]:
    """What pip would install for the runtime requirements on that Python: rows of its installation report."""
    report = folder / f"{python}.json"
    pip(
        *("install", "--quiet", "--dry-run", "--ignore-installed", "--target", str(folder / "nowhere")),
        *("--report", str(report), "--constraint", str(CONSTRAINTS), *target_options(python)),
        *runtime_requirements(),
    )
    rows: list[Mapping[str, Any]] = json.loads(report.read_text())["install"]
    return rows


def lock_text(reports: Iterable[Sequence[Mapping[str, Any]]]) -> str:
    """requirements/host.txt from one installation report a Python version. Raises SystemExit where they disagree."""
    hashes: dict[tuple[str, str], set[str]] = {}
    for row in (row for report in reports for row in report):
        name, version = row["metadata"]["name"].lower().replace("_", "-"), row["metadata"]["version"]
        hashes.setdefault((name, version), set()).add(row["download_info"]["archive_info"]["hashes"]["sha256"])
    names = [name for name, _ in hashes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SystemExit(f"different versions for different Pythons: {', '.join(twice)}: pin them in {CONSTRAINTS}")
    lines = [
        " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in sorted(digests))])
        for (name, version), digests in sorted(hashes.items())
    ]
    head = _LOCK_HEAD.format(pythons=f"{PYTHONS[0]} to {PYTHONS[-1]}", machine=MACHINE)
    return head + "\n".join(lines) + "\n"


def write_lock() -> None:
    """Resolve anew and write requirements/host.txt."""
    with tempfile.TemporaryDirectory() as folder:
        text = lock_text([resolve(python, Path(folder)) for python in PYTHONS])
    LOCK.write_text(text)


def own_wheel(folder: Path) -> Path:
    """hosttune's own wheel, built from this tree into the folder."""
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("hosttune-*.whl")
    return wheel


def download(python: str, folder: Path) -> list[Path]:
    """The locked wheels for that Python, in the folder. pip refuses what has another hash than the lock says."""
    pip(
        *("download", "--quiet", "--no-deps", "--require-hashes", "--requirement", str(LOCK)),
        *("--dest", str(folder), *target_options(python)),
    )
    return sorted(folder.glob("*.whl"))


def requirement_of(wheel: Path) -> str:
    """`name==version --hash=…` of a wheel, from its file name (PEP 427) and its bytes."""
    name, version = wheel.name.split("-")[:2]
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"


def write_archive(path: Path, wheels: Sequence[Path]) -> str:
    """A tar of the wheels and their requirements.txt, the same bytes for the same wheels. Its SHA-256, in hex."""
    members = {wheel.name: wheel.read_bytes() for wheel in wheels}
    members["requirements.txt"] = ("\n".join(sorted(requirement_of(wheel) for wheel in wheels)) + "\n").encode()
    partial = path.with_name(f".{path.name}.new")
    with tarfile.open(partial, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(members):
            member = tarfile.TarInfo(name)  # owner 0, time 0: nothing of this machine
            member.size, member.mode = len(members[name]), 0o644
            tar.addfile(member, io.BytesIO(members[name]))
    os.replace(partial, path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build(out: Path, pythons: Sequence[str]) -> dict[str, Any]:
    """Write the archives and, last, `index.json`: which archives belong together. Gives the index."""
    out.mkdir(parents=True, exist_ok=True)
    archives: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix=".wheels-", dir=out) as scratch:
        own = own_wheel(Path(scratch))
        for python in pythons:
            tag = tag_of(python)
            folder = Path(scratch) / tag
            folder.mkdir()
            path = out / f"{tag}.tar"
            digest = write_archive(path, [own, *download(python, folder)])
            archives[tag] = {"file": path.name, "sha256": digest, "bytes": path.stat().st_size}
        index = {"schema": INDEX_SCHEMA, "version": own.name.split("-")[1], "archives": archives}
        fresh = Path(scratch) / "index.json"
        fresh.write_text(json.dumps(index, indent=2) + "\n")
        os.replace(fresh, out / "index.json")
    return index


def sign(path: Path, key: str) -> None:
    """Write `path`.sig by an SSH key, as `hosttune handover sign` does with a statement, in a namespace of its own."""
    Path(f"{path}.sig").unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-Y", "sign", "-q", "-n", NAMESPACE, "-f", key, str(path)], check=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "wheelhouse", help="the folder (default: wheelhouse)")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only for this Python version (repeatable)")
    parser.add_argument("--key", help="sign the index with this SSH key, as index.json.sig")
    parser.add_argument("--lock", action="store_true", help="resolve requirements/host.txt anew; builds nothing")
    asked = parser.parse_args()
    if asked.lock:
        write_lock()
        return
    index = build(asked.out.resolve(), asked.python or PYTHONS)
    if asked.key:
        sign(asked.out / "index.json", asked.key)
    for tag, archive in index["archives"].items():
        size = f"{archive['bytes'] / 1e6:.1f} MB"
        print(f"{asked.out}/{archive['file']}: hosttune {index['version']} for {tag}, {size}, {archive['sha256'][:16]}")


if __name__ == "__main__":
    main()
