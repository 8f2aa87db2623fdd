"""Fixtures that every room's tests share: real captures unpacked once, and a builder for odd hosts."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

HOSTS = Path(__file__).parent / "hosts"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--regenerate` writes the golden files anew instead of failing; read the diff before committing it."""
    parser.addoption("--regenerate", action="store_true", help="write golden files instead of comparing")


# How long one example takes says how busy the machine is, and nothing of what is tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

MEMORY = "/dev/shm"
ROOM = 6 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Temporary roots in memory where there is room: every journalled step is synced, and disks take their time."""
    if os.path.isdir(MEMORY) and os.access(MEMORY, os.W_OK) and min(shutil.disk_usage(MEMORY).free, _free()) > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


def _free() -> int:
    """Bytes of memory that are free, by and large."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Captured roots by name, unpacked once a session (filled by `host_root`)."""
    return {}


@pytest.fixture(scope="session")
def host_root(tmp_path_factory: pytest.TempPathFactory, unpacked: dict[str, Path]) -> Callable[[str], Path]:
    """host_root("hwloc/NAME") -> the directory that holds sys/ and proc/ of that capture."""

    def unpack(name: str) -> Path:
        if name not in unpacked:
            archive = next(p for p in sorted(HOSTS.glob(f"{name}.tar.*")))
            target = tmp_path_factory.mktemp("host")
            with tarfile.open(archive) as tar:
                if hasattr(tarfile, "fully_trusted_filter"):  # our own archives; Python 3.11.2 knows no filters
                    tar.extraction_filter = staticmethod(tarfile.fully_trusted_filter)
                tar.extractall(target)
            inner = [p for p in target.iterdir() if p.is_dir()]
            nested = not (target / "sys").is_dir() and len(inner) == 1
            unpacked[name] = inner[0] if nested else target
        return unpacked[name]

    return unpack
