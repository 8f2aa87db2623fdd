"""What `make evidence` has tried: trials and coverage by captured host, from the lines that the tests wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(path: str) -> None:
    """Print one line a host, and the sums."""
    rows = sorted(map(json.loads, Path(path).read_text(encoding="utf-8").splitlines()), key=lambda row: row["host"])
    print(
        f"{'host':60} {'own':5} {'verdict':8} {'results':>7} {'strata':>7} {'covered':>7} {'trials':>7} {'improved':>8}"
    )
    for row in rows:
        numbers = f"{row['results']:7} {row['strata']:7} {row['covered']:7} {row['trials']:7} {row['improved']:8}"
        print(f"{row['host'][:60]:60} {'yes' if row['own'] else 'no':5} {row['verdict']:8} {numbers}")
    sums = {name: sum(row[name] for row in rows) for name in ("results", "strata", "covered", "trials", "improved")}
    hosts = len({row["host"] for row in rows})
    print(
        f"{hosts} hosts, {sums['trials']} trials, {sums['covered']} of {sums['strata']} kinds of damage (by host),"
        f" {sums['improved']} improved a result"
    )


if __name__ == "__main__":
    main(sys.argv[1])
