"""Fixtures that every room's tests share: real captures unpacked once, and a builder for odd hosts."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import applyroots
import pytest
import sweeps
import unpacking
from hypothesis import settings

HOSTS = Path(__file__).parent / "hosts"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--regenerate` writes the golden files anew instead of failing; read the diff before committing it."""
    parser.addoption("--regenerate", action="store_true", help="write golden files instead of comparing")


# How long one example takes says how busy the machine is, and nothing of what is tested.
settings.register_profile("untimed", deadline=None, max_examples=sweeps.examples(50, full=200))
settings.load_profile("untimed")

MEMORY = "/dev/shm"
ROOM = 6 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Temporary roots in memory where there is room: every journalled step is synced, and disks take their time."""
    for name in ("COLUMNS", "LINES"):  # set in workers, of a terminal that is none; texts are as wide as in a pipe
        os.environ.pop(name, None)
    # Ignored where a shell runs the tests in the background, and programs that they start would ignore it, too.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.path.isdir(MEMORY) and os.access(MEMORY, os.W_OK) and min(shutil.disk_usage(MEMORY).free, _free()) > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a module's tests that are marked `sweep(most=N)`, a sample runs N."""
    marked: dict[str, list[tuple[pytest.Item, int]]] = {}
    for item in items:
        if mark := item.get_closest_marker("sweep"):
            marked.setdefault(item.nodeid.partition("::")[0], []).append((item, mark.kwargs["most"]))
    left_out = {
        item
        for module, tests in marked.items()
        for item, _ in set(tests) - set(sweeps.sample(module, tests, tests[0][1]))
    }
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def pytest_collection_finish() -> None:
    """All that was collected stays: the collector need not walk it again, and forked children share its pages."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)  # plans and trees that a test makes are many small parts, and few of them are garbage


def pytest_report_header() -> str:
    """Which part of the sweeps this run tries."""
    return "sweeps: full" if sweeps.FULL else f"sweeps: sample {sweeps.SEED} (HOSTTUNE_SWEEP=full tries all)"


def _free() -> int:
    """Bytes of memory that are free, by and large."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """A test that leaves a variable behind changes the ones after it, and which those are is chance."""
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} <= {
        "PYTEST_CURRENT_TEST"
    }


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
            unpacked[name] = unpacking.unpack(archive, tmp_path_factory.mktemp("host"))
        return unpacked[name]

    return unpack


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The example as a scratch root, which nobody writes to: what tests write are copies by hard links."""
    root = applyroots.unpack(applyroots.EXAMPLE, tmp_path_factory.mktemp("pristine") / "root")
    before = _written(root)
    yield root
    assert _written(root) == before, "a test wrote through a hard link into the root that all tests copy"


def _written(root: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            state = os.lstat(os.path.join(folder, name))
            found[f"{folder}/{name}"] = (state.st_size, state.st_mtime_ns)
    return found
