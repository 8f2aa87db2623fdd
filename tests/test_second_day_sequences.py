"""Sequences of intents on a scratch root: guests that nobody changed stay, the settings are those of one plan on the
bare host, the same intent writes nothing, and revert gives back every byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from applyroots import Root, copied
from secondday import Day, Walk, check_back, check_settings
from sweeps import sample


@pytest.fixture
def day(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    """A fresh scratch root with an empty intent; the state of this machine stays untouched."""
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "outside"))
    with copied(pristine, tmp_path / "root") as root:
        yield Day(root, pristine)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("seed", sample("second day", range(500), 6))
def test_a_sequence_of_intents(day: Day, seed: int, tmp_path: Path) -> None:
    walk = Walk(day, f"second day {seed}")
    try:
        for _ in range(5):
            walk.step()
        check_settings(day, tmp_path / "bare")
        check_back(day)
    except AssertionError as error:
        error.add_note(f"steps: {', '.join(day.log)}; intent: {day.intent}; guests in force: {day.asked}")
        raise
