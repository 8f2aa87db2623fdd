"""Waves: which hosts are changed together, and in which order. Pure.

The sizes mean what they mean to Ansible's `serial`: a number of hosts, or a percentage of all of them rounded down but
at least one host; the last size is repeated until no host is left (playbooks_strategies, "Setting the batch size").
`hosttune fleet` gets its waves here and nowhere else; ansible-playbook alone cuts the same ones by that `serial`, in
playbooks/waves.yml.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from hosttune.errors import BadInput

DEFAULT = "1,5%,25%,100%"
_SIZE = re.compile(r"([0-9]{1,7})(%?)")


def parse_sizes(text: str) -> tuple[str, ...]:
    """The sizes of "1,5%,25%,100%", each checked. Raises BadInput naming the one that is none."""
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
    """How many of `total` hosts a size means: at least one."""
    number = int(size.removesuffix("%"))
    return max(1, number * total // 100 if size.endswith("%") else number)


def cut(hosts: Sequence[str], sizes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The hosts, in their order, in waves of these sizes. Every host is in exactly one wave, and no wave is empty."""
    waves: list[tuple[str, ...]] = []
    start = 0
    while start < len(hosts):
        size = sizes[min(len(waves), len(sizes) - 1)]
        end = start + hosts_of(size, len(hosts))
        waves.append(tuple(hosts[start:end]))
        start = end
    return tuple(waves)


def shards(hosts: Sequence[str], most: int) -> tuple[tuple[str, ...], ...]:
    """The hosts, in their order, in as few parts of at most `most` as there must be, all about equally large.

    One ansible process asks a shard: what it holds of a host it holds to its end.
    """
    count = -(-len(hosts) // most)
    bounds = [len(hosts) * i // count for i in range(count + 1)] if count else []
    return tuple(tuple(hosts[a:b]) for a, b in pairwise(bounds))
