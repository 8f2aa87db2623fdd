"""The emulated host for the tests that ask for it: built and booted once a session, only under `-m lab`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.machine import LabMachine, booted, booted_by_grub, build_image
from lab.product import STATE, discover
from lab.rollout import Rollout, rolled_out


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without `-m lab` these tests are not run: they take minutes, root and several GiB of disk.

    With workers (pytest-xdist, `--dist loadgroup`) all tests of one machine go to one of them.
    """
    if config.option.markexpr:
        for item in items:
            item.add_marker(pytest.mark.xdist_group(_machine_of(item)))
        return
    wanted = [item for item in items if not item.get_closest_marker("lab")]
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("lab")])
    items[:] = wanted


def _machine_of(item: pytest.Item) -> str:
    """The fixture of the machine that a test looks at; a module's own machine goes by the module's name."""
    asked = getattr(item, "fixturenames", ())
    return next((name for name in ("grub_lab", "lab") if name in asked), item.nodeid.partition("::")[0])


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
        finally:
            grub_lab.hang_up()
            grub_lab.shell(f"hosttune recover --force; hosttune revert --force; rm -rf {STATE}", check=False)
