"""Samples of sweeps: as many as asked for, the same ones again, ends included; all of them in a full sweep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2]
CODE = "from sweeps import examples, sample; print(sample('x', range(1, 101), {most}), examples(3, full=9))"


def printed(sweep: str | None, most: int) -> tuple[list[int], int]:
    """The sample of 1 to 100 and the number of examples, as a run with this $HOSTTUNE_SWEEP has them."""
    environment = {"PYTHONPATH": str(HERE / "support")} | ({} if sweep is None else {"HOSTTUNE_SWEEP": sweep})
    argv = [sys.executable, "-c", CODE.format(most=most)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment)
    numbers, _, count = done.stdout.rstrip().rpartition(" ")
    return [int(word) for word in numbers.strip("[]").split(", ")], int(count)


@pytest.mark.parametrize("most", [1, 2, 3, 20])
def test_a_sample_is_of_its_size_in_order_and_the_same_again(most: int) -> None:
    numbers, count = printed(None, most)
    assert len(set(numbers)) == most
    assert numbers == sorted(numbers)
    assert most < 3 or (numbers[0], numbers[-1]) == (1, 100)
    assert count == 3
    assert printed("1", most) == (numbers, count)


def test_another_seed_is_another_sample() -> None:
    assert printed("2", 20)[0] != printed("1", 20)[0]


def test_a_full_sweep_is_all() -> None:
    assert printed("full", 20) == (list(range(1, 101)), 9)
