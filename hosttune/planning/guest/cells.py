"""The NUMA cells of a placed guest, with the distances in a form that libvirt accepts.

Pure.
"""

from __future__ import annotations

from hosttune.inventory.resources import LOCAL_DISTANCE, Resources
from hosttune.model.plan import Cell, Finding
from hosttune.model.values import CpuSet
from hosttune.planning.guest.choice import Choice

# libvirt refuses the local distance between two cells, and values that are not distances (255 means "unreachable" in
# ACPI).
NEAREST_REMOTE = 11
FARTHEST = 254


def guest_cells(resources: Resources, choice: Choice, at: str) -> tuple[tuple[Cell, ...], tuple[Finding, ...]]:
    """Return (cells, findings). If the host's distance table is unknown, the cells have no distances."""
    nodes = choice.nodes
    known = resources.has_all_distances(nodes)
    findings: list[Finding] = []
    if not known and len(nodes) > 1:
        text = "the distances between its nodes are unknown: its cells get none"
        findings.append(Finding(level="info", text=text, where=at))
    cells: list[Cell] = []
    first = 0
    for i, (node, demand) in enumerate(zip(nodes, choice.shape.cells, strict=True)):
        row = [_written(resources, node, other, at) for other in nodes] if known else []
        findings += [finding for _, finding in row if finding]
        cells.append(
            Cell(
                id=i,
                vcpus=str(CpuSet(range(first, first + demand.vcpus))),
                memory_bytes=demand.memory_bytes,
                host_nodes=str(node),
                distances=tuple(distance for distance, _ in row),
            )
        )
        first += demand.vcpus
    return tuple(cells), tuple(findings)


def _written(resources: Resources, a: int, b: int, at: str) -> tuple[int, Finding | None]:
    """Return the distance to write between the cells of two host nodes, and a finding if it differs from the host's."""
    found = resources.distance(a, b)
    value = LOCAL_DISTANCE if a == b else min(max(found, NEAREST_REMOTE), FARTHEST)
    if value == found:
        return value, None
    most = f"{LOCAL_DISTANCE} within a cell and {NEAREST_REMOTE} to {FARTHEST} between cells"
    text = f"the host's distance {found} from node {a} to node {b} is written as {value}: libvirt accepts {most}"
    return value, Finding(level="info", text=text, where=at)
