"""What the reports on runs between hosts share."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.model.collective import CollectiveReport
from hosttune.model.pairs import PairsReport


def unmeasured_hosts(report: PairsReport | CollectiveReport) -> Iterator[str]:
    """Yield a line for each host that was not measured."""
    for host in report.hosts:
        if host.outcome != "ok":
            yield f"host {host.host}: not measured: {host.outcome}: {host.why}"
