"""Waves: every host once, in order, of the sizes that Ansible's `serial` gives them; and shards."""

from __future__ import annotations

import re
from ast import literal_eval
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.errors import BadInput
from hosttune.fleet.rollout import DEFAULT, cut, hosts_of, parse_sizes, shards

PLAYBOOKS = Path(__file__).resolve().parents[3] / "playbooks"
NUMBERS = st.integers(1, 400).map(str)
PERCENTAGES = st.integers(1, 100).map(lambda number: f"{number}%")
SIZES = st.lists(NUMBERS | PERCENTAGES, min_size=1, max_size=6).map(tuple)


def names(count: int) -> list[str]:
    return [f"h{number}" for number in range(count)]


def serial(sizes: tuple[str, ...], total: int) -> list[int]:
    """The batch sizes of ansible-core's PlaybookExecutor._get_serialized_batches with utils.helpers.pct_to_int."""
    batches = []
    left = total
    index = 0
    while left > 0:
        size = sizes[index]
        count = (int(int(size[:-1]) / 100.0 * total) or 1) if size.endswith("%") else int(size)
        batches.append(min(count, left))
        left -= count
        index = min(index + 1, len(sizes) - 1)
    return batches


@given(st.integers(0, 1200), SIZES)
def test_every_host_is_in_exactly_one_wave_in_order(total: int, sizes: tuple[str, ...]) -> None:
    hosts = names(total)
    waves = cut(hosts, sizes)
    assert [host for wave in waves for host in wave] == hosts
    assert all(waves)


@given(st.integers(1, 1200), SIZES)
def test_waves_are_as_large_as_asked_and_only_the_last_is_smaller(total: int, sizes: tuple[str, ...]) -> None:
    waves = cut(names(total), sizes)
    for number, wave in enumerate(waves):
        wanted = hosts_of(sizes[min(number, len(sizes) - 1)], total)
        assert len(wave) == wanted or (number == len(waves) - 1 and len(wave) < wanted)


@given(st.integers(1, 100), st.integers(1, 5000))
def test_a_percentage_is_rounded_down_but_never_to_nobody(percent: int, total: int) -> None:
    hosts = hosts_of(f"{percent}%", total)
    assert hosts == max(1, percent * total // 100)
    assert 1 <= hosts <= total


def test_sizes_mean_what_they_mean_to_ansible() -> None:
    for total in (1, 2, 3, 7, 16, 19, 20, 99, 100, 1000):
        for sizes in (("1", "5%", "25%", "100%"), ("10%",), ("3",), ("2", "50%"), ("100%",)):
            assert [len(wave) for wave in cut(names(total), sizes)] == serial(sizes, total)


def test_the_default_begins_with_one_host() -> None:
    assert [len(wave) for wave in cut(names(1000), parse_sizes(DEFAULT))] == [1, 50, 250, 699]
    assert [len(wave) for wave in cut(names(3), parse_sizes(DEFAULT))] == [1, 1, 1]
    assert cut([], parse_sizes(DEFAULT)) == ()


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "5 %", "1,,2", "a", "-1", "1.5%", "1;2", "１", "9" * 8])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(BadInput, match="is not a size of a wave") as refused:
        parse_sizes(text)
    assert refused.value.where == "--waves"


def test_spaces_around_commas_are_fine() -> None:
    assert parse_sizes(" 1, 5% ") == ("1", "5%")


@given(st.integers(0, 3000), st.integers(1, 500))
def test_shards_hold_every_host_once_and_are_about_equal(total: int, most: int) -> None:
    hosts = names(total)
    parts = shards(hosts, most)
    assert [host for part in parts for host in part] == hosts
    assert all(0 < len(part) <= most for part in parts)
    assert len(parts) == -(-total // most)
    assert not parts or max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_playbooks_have_the_same_default_and_say_it_once() -> None:
    """ansible-playbook alone cuts waves by `serial`, in one playbook and with the sizes of `hosttune fleet`."""
    found = {path.name: path.read_text() for path in PLAYBOOKS.rglob("*.yml") if "serial:" in path.read_text()}
    assert list(found) == ["waves.yml"]
    sizes = re.findall(r"hosttune_waves \| default\((\[.*?\])\)", found["waves.yml"])
    assert [tuple(map(str, literal_eval(text))) for text in sizes] == [parse_sizes(DEFAULT)]
