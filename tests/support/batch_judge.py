"""What is wrong with a plan for several guests: the contract's invariants, then the exact optimum.

`faults(host, intent, plan)` gives "name: detail" lines, empty for a right plan. Imports nothing of what it judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from batch_facts import levels, score
from batch_oracle import Optimum, solve
from plan_facts import Json
from plan_oracle import violations


def faults(host: Json, intent: Json, plan: Json, best: Optimum | None = None) -> list[str]:
    """Every fault of the plan, as "name: detail"; `best` saves solving again."""
    return [*violations(host, intent, plan), *_short_of(host, intent, plan, best or solve(host, intent))]


def _short_of(host: Json, intent: Json, plan: Json, best: Optimum) -> Iterator[str]:
    """Fewer guests, then more extra cells, then a larger objective than the optimum; less than it is a fault too."""
    placed, objective = score(host, plan)
    if placed != best.placed:
        yield f"batch-placed: {placed} guests, the optimum is {best.placed}: {_shown(best)}"
        return
    extra = levels(host, intent, plan)
    if extra != best.levels:
        yield f"batch-levels: {extra} beyond the own cells, the optimum is {best.levels}: {_shown(best)}"
    elif objective != best.objective:
        yield f"batch-objective: {_number(objective)}, the optimum is {_number(best.objective)}: {_shown(best)}"


def _shown(best: Optimum) -> str:
    """The optimum's placement: nodes of each guest's cells, its devices as pool×count@node."""
    rows = []
    for name, (nodes, devices) in best.guests.items():
        taken = [f"{kind.pool}×{count}@{kind.node}" for kind, count in devices.items()]
        rows.append(f"{name} on {','.join(map(str, nodes))} {' '.join(taken)}".rstrip() if nodes else f"{name} nowhere")
    return "; ".join(rows)


def _number(value: Fraction) -> str:
    return f"{value} ({float(value):.3f})" if value.denominator > 1 else str(value)
