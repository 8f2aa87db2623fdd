"""Kill -9 at every point of a hand-over: each device is quarantined or covered, and a second hand-over ends it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from coursekills import course, judged, killed, root_of
from faultkills import memory_folder
from faultlab import Faults, kill, run_forked, site_on
from sweeps import sample

MOST = 3


@pytest.fixture
def start() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hosttune-course-", dir=memory_folder()))
    yield root_of(folder / "start")
    shutil.rmtree(folder)


def test_killed_anywhere_a_device_is_quarantined_or_covered_and_a_second_hand_over_ends_it(start: Path) -> None:
    root = start.with_name("root")
    whole = killed(start, root, 0)
    assert (whole.code, whole.strays) == (0, 0)
    assert judged(root) == []
    wrong = []
    for at in sample("hand-over", range(1, whole.count + 1), MOST):
        ended = killed(start, root, at)
        assert ended.fired, f"no point {at} of {whole.count}"
        wrong += [f"killed at {at}, {ended.fired}: {text}" for text in judged(root)]
    assert wrong == []


def test_killed_in_the_second_hand_over_too(start: Path) -> None:
    root = start.with_name("root")
    count = killed(start, root, 0).count
    for at in sample("hand-over begun", range(1, count + 1), 1):
        killed(start, root, count // 2)
        again = run_forked(root, course, Faults(at=at, act=kill))
        assert again.fired, at
        assert judged(root) == [], (at, again.fired)
    assert course(site_on(root))[1] == 0
