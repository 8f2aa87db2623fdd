"""The bundled example host: reproducible, synthetic and says so, and planned the way its topology demands."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
ARCHIVE = EXAMPLES / "hgx-h200-8.tar.xz"

Member = tuple[bytes, str, int, int, bytes]


def contents(archive: Path) -> dict[str, Member]:
    """Every member of a tar: type, link target, mode, time, bytes."""
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        return {
            m.name: (m.type, m.linkname, m.mode, int(m.mtime), tar.extractfile(m).read() if m.isreg() else b"")  # type: ignore[union-attr]
            for m in members
        }


@pytest.fixture(scope="module")
def bundled() -> dict[str, Member]:
    return contents(ARCHIVE)


def test_building_it_again_gives_the_same_archive(tmp_path: Path, bundled: dict[str, Member]) -> None:
    again = tmp_path / "again.tar.xz"
    subprocess.run([sys.executable, str(EXAMPLES / "build_hgx_h200.py"), str(again)], check=True)
    built = contents(again)
    assert list(built) == list(bundled)
    assert [name for name in built if built[name] != bundled[name]] == []


def test_it_says_that_it_is_synthetic(bundled: dict[str, Member]) -> None:
    assert bundled[".hosttune/SYNTHETIC"][4].startswith(b"SYNTHETIC HOST")
    assert b"SYNTHETIC" in bundled["sys/devices/virtual/dmi/id/product_name"][4]


def test_it_is_small() -> None:
    assert ARCHIVE.stat().st_size < 300_000


def test_every_link_leads_to_something_inside(bundled: dict[str, Member]) -> None:
    known = set(bundled)
    for name in bundled:
        known.update(str(parent) for parent in Path(name).parents)
    for name, (kind, target, *_) in bundled.items():
        if kind != tarfile.SYMTYPE:
            continue
        parts = name.split("/")[:-1]
        for part in target.split("/"):
            assert part != ".." or parts, name
            parts = parts[:-1] if part == ".." else [*parts, part]
        assert "/".join(parts) in known, name
