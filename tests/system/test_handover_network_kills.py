"""A hand-over that is killed while it compares or puts back what a network function keeps: never free and unproven."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from coursekills import ASKED, DRIVE, course, judged, killed, neither
from courses import states
from cutshort import KilledError
from faultkills import memory_folder
from networkroots import (
    LEFT,
    VIRTUAL,
    NetworkOnly,
    Uplink,
    answer,
    function,
    link,
    passing_all,
    physical_root,
    row,
    start_guest,
    virtual_root,
)
from sweeps import FULL, sample
from system.test_handover_kills_erasing import Mortal

from hosttune.discovery import discover
from hosttune.handover.running import Handed, HandoverOptions, hand_over
from hosttune.model.host import Host
from hosttune.model.result import Result
from hosttune.transaction.site import Site, site_of

MOST = 1  # `make test` is at its budget; a full sweep takes every point


@pytest.fixture
def folder() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="hosttune-network-", dir=memory_folder()))
    yield place
    shutil.rmtree(place)


def network(site: Site) -> tuple[Result, int]:
    """The hand-over of a drive and a physical function, which is compared for real."""
    return course(site, NetworkOnly(), passing_all)


@pytest.mark.skipif(not FULL, reason="only in a full sweep: `make test` is at its budget")
def test_killed_anywhere_a_physical_function_is_quarantined_or_covered(folder: Path) -> None:
    start, root = physical_root(folder / "start"), folder / "root"
    start_guest(start)
    whole = killed(start, root, 0, network)
    assert (whole.code, whole.strays) == (0, 0)
    assert judged(root, network) == []
    wrong = []
    for at in sample("network function", range(1, whole.count + 1), MOST):
        ended = killed(start, root, at, network)
        assert ended.fired, f"no point {at} of {whole.count}"
        wrong += [f"killed at {at}, {ended.fired}: {text}" for text in judged(root, network)]
    assert wrong == []


class MortalUplink(Mortal, Uplink):
    """A physical function that keeps settings for its virtual ones, on a host that dies."""


def run(system: MortalUplink, at: int = -1) -> Handed | None:
    """A hand-over that dies at a point; None then."""
    system.at, system.count, system.dead, system.home = at, 0, False, os.getpid()

    def look() -> Host:
        system.forget()
        return discover(system)

    try:
        options = HandoverOptions(None, NetworkOnly(), passing_all)
        return hand_over((site_of(system), look), ASKED, options, lambda lines: True, lambda text: None)
    except KilledError:
        return None


def test_killed_while_it_puts_settings_back(folder: Path) -> None:
    hosts = function(0, "b8:59:9f:00:00:01", vlan_list=[{"vlan": 100, "qos": 0}])
    start, root = virtual_root(folder / "start", hosts), folder / "root"
    start_guest(start)
    answer(start, "ip-link-up0", link("up0", vfinfo_list=[LEFT, function(1)]))

    def fresh() -> MortalUplink:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(start, root, symlinks=True)
        return MortalUplink(str(root))

    whole = fresh()
    done = run(whole)
    assert done is not None
    assert done.clean
    assert any(one[0] == "ip" for one in whole.ran())
    wrong = []
    for at in sample("virtual function", range(whole.count), MOST):
        system = fresh()
        assert run(system, at) is None, at
        place = f"killed at {at} of {whole.count}, {system.where}"
        devices = (DRIVE, VIRTUAL)
        wrong += [f"{place}: {one} is neither quarantined nor covered" for one in neither(root, devices)]
        again = run(MortalUplink(str(root)))
        if again is None or not again.clean or states(root) != dict.fromkeys(devices, "clean"):
            wrong.append(f"{place}: a second hand-over ends with {states(root)}")
        if row(root) != hosts:
            wrong.append(f"{place}: its settings are {row(root)}")
    assert wrong == []
