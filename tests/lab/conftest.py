"""The emulated host for the tests that ask for it: built and booted once a session, only under `-m lab`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.machine import LabMachine, booted, booted_by_grub, build_image
from lab.product import discover
from lab.rollout import Rollout, rolled_out

# Whose tests look at one machine, by module; a module that is not named has a machine of its own.
MACHINES = {
    **dict.fromkeys(
        (
            *("adopt", "apply", "capture", "changes", "discover", "live", "plan"),
            *("quarantine", "running", "settings", "validate"),
            "watch",  # last: its kernel log and its counters of errors keep what happened to it
        ),
        "lab",
    ),
    **dict.fromkeys(("fleet", "reboot"), "grub_lab"),
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With workers, all tests of one machine go to one of them. (`--dist loadgroup` does nothing in pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

    class ByMachine(LoadScopeScheduling):  # type: ignore[misc]  # for the same reason
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition(".py::")[0].rpartition("test_lab_")[2]
            return MACHINES.get(module, module)

    return ByMachine(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without `-m lab` these tests are not run: they take minutes, root and several GiB of disk."""
    if config.option.markexpr:
        return
    wanted = [item for item in items if not item.get_closest_marker("lab")]
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("lab")])
    items[:] = wanted


@pytest.fixture(scope="session")
def image() -> Path:
    """The directory of the emulated host's image."""
    return build_image()


@pytest.fixture(scope="session")
def lab(image: Path) -> Iterator[LabMachine]:
    """The emulated host, running. Whoever changes something in it puts it back."""
    with booted(image) as machine:
        yield machine


@pytest.fixture(scope="session")
def grub_lab(image: Path) -> Iterator[LabMachine]:
    """The emulated host booted from its disk by GRUB, for what needs a reboot. Whoever changes it puts it back."""
    with booted_by_grub(image) as machine:
        yield machine


@pytest.fixture(scope="session")
def document(lab: LabMachine) -> dict[str, Any]:
    """What hosttune discovered on the untouched host."""
    return discover(lab)


@pytest.fixture(scope="session")
def rollout(grub_lab: LabMachine, image: Path, tmp_path_factory: pytest.TempPathFactory) -> Rollout:
    """Two hosts brought to an intent and back by `hosttune fleet`; the second of them is there for this alone."""
    folder = tmp_path_factory.mktemp("fleet")
    with booted_by_grub(image) as second, tempfile.TemporaryDirectory(prefix="ansible-") as home:
        try:
            return rolled_out(grub_lab, second, folder, Path(home))
        except BaseException:
            grub_lab.hang_up()
            grub_lab.shell("hosttune recover --force; hosttune revert --yes --force", check=False)
            raise
