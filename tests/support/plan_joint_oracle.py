"""The part of the plan oracle about what guests share: CPUs and cores, pages and memory of a node.

The tags name the section of the contract that a check comes from, as in `plan_oracle`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from plan_facts import GuestFacts, HostFacts, Json, ids

Found = Iterator[str]


def joint_checks(host: HostFacts, guests: list[GuestFacts], plan: Json) -> Found:
    """Every sentence about the planned guests together, as "check-name: detail"."""
    yield from _cpus(host, guests)
    yield from _free_now(host, guests, plan)
    if len(guests) > 1:
        yield from _memory(host, guests, wanted_pages(plan))


def wanted_pages(plan: Json) -> dict[tuple[int, int], int]:
    """(node, page size) -> pages that an action wants there."""
    wants: dict[tuple[int, int], int] = {}
    for action in plan["actions"]:
        text = f"{action['kind']} {action['target']} {action['id']}"
        node, kilobytes = re.search(r"node\D?(\d+)", text), re.search(r"(\d+)kB", text)
        if "hugepage" in text and node and kilobytes:
            wants[int(node[1]), int(kilobytes[1]) << 10] = int(action["want"])
    return wants


def _cpus(host: HostFacts, guests: list[GuestFacts]) -> Found:
    uses = Counter(cpu for guest in guests for pin in guest.pin_sets for cpu in pin)
    uses.update(host.held)  # [plan] a guest defined here, running or not, keeps its CPUs
    twice = sorted(cpu for cpu, times in uses.items() if times > 1)
    if twice:  # [inv] no CPU is pinned to two vCPUs or two guests
        yield f"cpu-once: CPUs {twice} are pinned twice"
    owners: dict[int, set[str]] = {}
    for guest in guests:
        for cpu in set(guest.pins) & host.online:
            owners.setdefault(host.core(cpu), set()).add(guest.planned["name"])
    for cpu in host.held & host.online:
        owners.setdefault(host.core(cpu), set()).add("(existing)")
    for guest in guests:  # [inv] no core is shared by two guests (unless `smt: threads`)
        mine = {host.core(cpu) for cpu in set(guest.pins) & host.online}
        shared = sorted(core for core in mine if len(owners[core]) > 1)
        if shared and guest.smt == "cores":
            yield f"core-shared: {guest.planned['name']} shares cores {shared}"
        if shared and guest.smt == "threads" and not guest.said(r"core|sibling|thread"):
            yield f"core-shared-said: {guest.planned['name']} shares cores {shared} without a finding"  # [intent] smt


def _memory(host: HostFacts, guests: list[GuestFacts], wants: dict[tuple[int, int], int]) -> Found:
    """[inv] memory of each cell comes from its host node: pages that are free or that an action reserves."""
    used: Counter[tuple[int, int]] = Counter()
    for guest in guests:
        page = guest.planned["page_bytes"] or 4096
        for cell in guest.cells:
            used[min(ids(cell["host_nodes"]), default=-1), page] += cell["memory_bytes"] // page
    for node, row in host.nodes.items():
        pools = {pool["size_bytes"]: (pool["total"] or 0, pool["free"] or 0) for pool in row.get("hugepages") or []}
        here = {page: pages for (at, page), pages in used.items() if at == node}
        grown = sum(max(0, pages - pools.get(page, (0, 0))[1]) * page for page, pages in here.items())
        limit = _unpooled(host, guests[0].intent, node)
        if limit is not None and grown > limit:
            yield f"memory-joint: guests take {grown} bytes besides free pages on node {node}, which has {limit}"
        for page, pages in here.items():
            total, free = pools.get(page, (0, 0))
            got, needed = wants.get((node, page), total), total - free + pages
            if page != 4096 and got < needed:
                yield f"pages-joint: node {node} gets {got} pages of {page}, the guests together need {needed}"


def _free_now(host: HostFacts, guests: list[GuestFacts], plan: Json) -> Found:
    """[issue] memory from what is free now, or a reboot that reserves it first.

    New pages of 1 GiB may be for the next boot, by an action of their pool and a kernel argument for that node.
    """
    late = _for_the_next_boot(plan)
    boot = _boot_counts(plan)
    grown: Counter[int] = Counter()
    for guest in guests:
        page = guest.planned["page_bytes"] or 4096
        for cell in guest.cells:
            node = min(ids(cell["host_nodes"]), default=-1)
            if (node, page) not in late:
                grown[node] += cell["memory_bytes"]
    for node, size in grown.items():
        row = host.nodes.get(node, {})
        pools = sum((pool["free"] or 0) * pool["size_bytes"] for pool in row.get("hugepages") or [])
        if row.get("free_bytes") is not None and size > row["free_bytes"] + pools:
            yield f"not-free-now: guests take {size} bytes of node {node}, free are {row['free_bytes']} and its pages"
    for (node, page), want in wanted_pages(plan).items():
        if (node, page) in late and boot.get(node, 0) < want:
            yield f"not-reserved: node {node} waits for {want} pages of {page}, the next boot reserves {boot.get(node)}"


def _for_the_next_boot(plan: Json) -> set[tuple[int, int]]:
    """(node, page size) of pools whose action takes effect with a reboot."""
    actions = [action for action in plan["actions"] if action["effect"] == "reboot"]
    return set(wanted_pages({"actions": actions}))


def _boot_counts(plan: Json) -> dict[int, int]:
    """1 GiB pages that the next boot reserves on each node."""
    text = next(
        (str(a["want"]) for a in plan["actions"] if (a["kind"], a["target"]) == ("kernel-argument", "hugepages")), ""
    )
    return {int(node): int(count) for node, count in re.findall(r"(\d+):(\d+)", text)}


def _unpooled(host: HostFacts, intent: Json, node: int) -> int | None:
    """Bytes of a node that no pool, reserve or guest has; a guest's memory may be in pages that are in use."""
    row = host.nodes[node]
    if row.get("memory_bytes") is None:
        return None
    pools = [pool for pool in row.get("hugepages") or [] if pool["total"]]
    pooled = sum(int(pool["total"]) * int(pool["size_bytes"]) for pool in pools)
    elsewhere = any(pool["total"] != pool["free"] for pool in pools)
    guests = 0 if elsewhere else held_bytes(host, node)
    return max(0, int(row["memory_bytes"]) - host.reserve_bytes(intent, node) - pooled - guests)


def held_bytes(host: HostFacts, node: int) -> int:
    """Memory of the existing guests that are pinned to this node alone."""
    total = 0
    for guest in host.document.get("guests") or []:
        pinned = {c for pin in guest.get("vcpu_pins") or [] for c in ids(pin["cpus"]) if c in host.cpus}
        if {host.node(cpu) for cpu in pinned} == {node}:
            total += guest.get("memory_bytes") or 0
    return total
