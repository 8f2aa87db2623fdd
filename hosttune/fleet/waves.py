"""Waves: which hosts are changed together, and in which order. Pure functions.

The sizes have the same meaning as in Ansible's `serial`: a number of hosts, or a percentage of all hosts, rounded down
but at least one host. The last size is repeated until no host is left (playbooks_strategies, "Setting the batch size").
All waves of `hosttune fleet` are made here. When ansible-playbook is used alone, `serial` in playbooks/waves.yml makes
the same waves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from hosttune.errors import BadInput

DEFAULT = "1,5%,25%,100%"
_SIZE = re.compile(r"([0-9]{1,7})(%?)")


def parse_sizes(text: str) -> tuple[str, ...]:
    """Return the sizes in a text such as "1,5%,25%,100%". Raises BadInput that names an invalid size."""
    sizes = tuple(part.strip() for part in text.split(","))
    for size in sizes:
        match = _SIZE.fullmatch(size)
        if match is None or not 1 <= int(match[1]) <= (100 if match[2] else 10**7):
            raise BadInput(
                f"{size!r} is not a size of a wave",
                where="--waves",
                hint=f"write hosts or percentages with commas, as in {DEFAULT}",
            )
    return sizes


def hosts_of(size: str, total: int) -> int:
    """Return how many of `total` hosts a size means, at least one."""
    number = int(size.removesuffix("%"))
    return max(1, number * total // 100 if size.endswith("%") else number)


def cut(hosts: Sequence[str], sizes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Split the hosts, in their order, into waves of these sizes. Every host is in one wave, and no wave is empty."""
    waves: list[tuple[str, ...]] = []
    start = 0
    while start < len(hosts):
        size = sizes[min(len(waves), len(sizes) - 1)]
        end = start + hosts_of(size, len(hosts))
        waves.append(tuple(hosts[start:end]))
        start = end
    return tuple(waves)


def shards(hosts: Sequence[str], most: int) -> tuple[tuple[str, ...], ...]:
    """Split the hosts, in their order, into as few parts of at most `most` hosts as possible, of about equal size.

    One ansible process handles one shard, because ansible keeps the data of each host in memory until it ends.
    """
    count = -(-len(hosts) // most)
    bounds = [len(hosts) * i // count for i in range(count + 1)] if count else []
    return tuple(tuple(hosts[a:b]) for a, b in pairwise(bounds))
