"""Benchmarks of one host: run in children, parsed purely, judged against floors that each name their source.

The children (`python -m hosttune.bench.gpu_child`, `… .memory_child`) import this package too, with an interpreter
that may have nothing but the GPU library: names are loaded on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hosttune.bench.course import Measured
    from hosttune.model.host import Host
    from hosttune.model.validation import Validation
    from hosttune.system import System


def measure(
    system: System,
    host: Host,
    level: int,
    *,
    seconds: float | None = None,
    scratch_path: str | None = None,
    peers: Iterable[str] | None = None,
    say: Callable[[str], None] = lambda text: None,
    history: tuple[Validation, ...] = (),
    fleet: str | None = None,
) -> Measured:
    """The benchmarks of a level: results, every run, and the versions that belong to the figures.

    `history`: earlier validations of this host, oldest first. `fleet`: the text of a TOML file of baselines, which
    stand beside the shipped ones. Raises Refused for a captured host and a GPU that somebody holds, BadInput for a
    scratch path, peer or baseline that is none.
    """
    from hosttune.bench.baselines import with_fleet
    from hosttune.bench.course import measure as run_all

    return run_all(
        system,
        host,
        level,
        seconds=seconds,
        scratch_path=scratch_path,
        peers=peers,
        say=say,
        history=history,
        standard=with_fleet(fleet),
    )
