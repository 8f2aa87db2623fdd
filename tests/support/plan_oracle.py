"""What every plan must keep, checked on plain JSON: `violations(host, intent, plan)`.

Written from the contract's sentences alone and importing nothing of what it judges. Each check is named; a
violation reads "name: detail". Where the contract is silent nothing is asserted: a doubtful case is skipped.
`[inv]` marks a sentence of "Plans always keep these", `[plan]`, `[intent]`, `[host]` the other document
sections, `[issue]` the requirements that they were written for.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from plan_device_oracle import device_checks
from plan_facts import GuestFacts, HostFacts, Json, ids, named, size
from plan_joint_oracle import held_bytes, joint_checks, wanted_pages

Found = Iterator[str]


def violations(host: Json, intent: Json, plan: Json) -> list[str]:
    """Every contract invariant that this plan breaks, as "check-name: detail"; empty when it keeps them all."""
    facts = HostFacts(host)
    guests = [GuestFacts(facts, intent, plan, guest) for guest in plan["guests"]]
    found = [*_document(facts, intent, plan), *joint_checks(facts, guests, plan), *_housekeeping(facts, intent, plan)]
    for guest in guests:
        pins = [v for i, v in enumerate(guest.pin_sets) if len(v) != 1 or not v <= facts.cpus.keys()]
        if pins:  # nothing below can be read when pins are no CPUs
            found.append(f"pin-one-cpu: {guest.planned['name']}: {pins}")
            continue
        for check in _GUEST_CHECKS:
            found += [f"{line} ({guest.planned['name']})" for line in check(guest)]
    return found


# --- the document --------------------------------------------------------------------------------------------


def _document(host: HostFacts, intent: Json, plan: Json) -> Found:
    if plan.get("schema") != "hosttune.plan/v1":  # [plan] schema
        yield f"schema: {plan.get('schema')}"
    if plan["host_digest"] != host.document.get("digest"):  # [plan] host_digest = the host's digest
        yield f"host-digest: {plan['host_digest']!r}, the host says {host.document.get('digest')!r}"
    names = [g["name"] for g in plan["guests"]] + [u["guest"] for u in plan["unplaced"]]
    if Counter(names) != Counter(g["name"] for g in intent["guests"]):  # each guest is placed or unplaced, once
        yield f"guest-once: {names}"
    for row in plan["unplaced"]:
        if not row["why"]:  # [plan] unplaced carries why
            yield f"unplaced-why: {row['guest']} is unplaced without a reason"
    for finding in plan["findings"]:
        if finding["level"] not in ("info", "warn", "error"):  # [plan] findings
            yield f"finding-level: {finding['level']}"
    action_ids = Counter(action["id"] for action in plan["actions"])
    for name, times in action_ids.items():
        if times > 1:  # an id names one action
            yield f"action-id: {name} stands {times} times"
    for action in plan["actions"]:
        if action["effect"] not in ("now", "reboot"):  # [plan] actions
            yield f"action-effect: {action['id']}: {action['effect']}"
        if not action["needed"] and ("hugepage" in action["kind"] or action["want"] == "vfio-pci"):
            yield f"action-needed: {action['id']}"  # [result] needed (pages, binding, VFs, MIG, boot arguments)
    said = " ".join(f"{finding['text']} {finding['where']}" for finding in plan["findings"])
    if host.document.get("hypervisor") and plan["guests"] and not re.search("guest|hypervisor|virtual", said):
        yield "hypervisor-said: the host is itself a guest and no finding says it"  # [plan] unknown facts


# --- CPUs ----------------------------------------------------------------------------------------------------


def _housekeeping(host: HostFacts, intent: Json, plan: Json) -> Found:
    kept = ids(plan["housekeeping_cpus"])
    per_node = int((intent.get("reserve") or {}).get("cores_per_node", 1))
    pinned = {cpu for g in plan["guests"] for pin in g["vcpu_pins"] for cpu in ids(pin["cpus"])}
    if kept & host.isolated:  # [inv] isolated CPUs never to housekeeping
        yield f"housekeeping-isolated: {sorted(kept & host.isolated)}"
    if kept - host.online:
        yield f"housekeeping-online: {sorted(kept - host.online)}"
    for core in {host.core(cpu) for cpu in kept & host.online}:  # [inv] no core shared by a guest and housekeeping
        if host.cores[core] & pinned:
            yield f"housekeeping-pinned: core {core} has housekeeping and guest CPUs"
    if per_node < 1:  # [inv] cores_per_node: 0 gives both up
        return
    if host.cores[host.boot_core] & pinned:  # [inv] the boot CPU's core stays with the host
        yield f"boot-core: core {host.boot_core} is pinned"
    for node in host.nodes:  # [inv] at least one core per node that has non-isolated CPUs stays with the host
        cores = [host.cores[c] for c in host.node_cores(node)]
        boot = host.cores[host.boot_core]
        left = [core for core in cores if core - host.isolated and (core == boot or not core & host.held)]
        if left and all(core & pinned for core in left):
            yield f"node-core: node {node} has no core left for the host"
    exact = [host.housekeeping(per_node, hidden_counts=counts) for counts in (True, False)]
    if None not in exact and kept not in exact:  # [plan] housekeeping_cpus = the reserved cores only
        yield f"housekeeping-exact: {sorted(kept)}, the rule gives {sorted(exact[0] or ())}"


def _pins(guest: GuestFacts) -> Found:
    host, pinned = guest.host, set(guest.pins)
    numbers = [pin["vcpu"] for pin in guest.planned["vcpu_pins"]]
    if sorted(numbers) != list(range(len(numbers))) or not numbers:  # [plan] vcpu_pins
        yield f"vcpus-numbered: {numbers}"
    if pinned - host.online:  # [host] offline CPUs have no places: nothing can run there
        yield f"pin-online: {sorted(pinned - host.online)} are offline"
    if pinned & host.hidden:  # [host] allowed=false where a cpuset hides it from guests
        yield f"pin-allowed: {sorted(pinned & host.hidden)} are hidden by a cpuset"
    if not pinned <= host.online:
        return
    asked = guest.asked.get("vcpus", "auto")
    cells = guest.asked.get("numa")
    asked = sum(c["vcpus"] for c in cells) if isinstance(cells, list) else asked
    if asked != "auto" and len(numbers) != asked:  # [intent] vcpus
        yield f"vcpus-asked: {len(numbers)}, asked {asked}"
    if guest.smt == "cores":
        yield from _whole_cores(guest)
    yield from _isolated_first(guest)


def _whole_cores(guest: GuestFacts) -> Found:
    """[issue] whole cores, siblings together; [intent] an odd vCPU count leaves the last sibling idle."""
    host, pinned = guest.host, set(guest.pins)
    if len({len(core - host.hidden) for core in host.cores.values()} - {0}) > 1:  # several widths: not decided
        return
    for cell in guest.cells:
        cores = {host.core(cpu) for cpu in guest.cell_pins(cell)}
        part = sorted(core for core in cores if not host.cores[core] - host.hidden <= pinned)
        if len(part) > 1:
            yield f"whole-cores: cell {cell['id']} uses only part of cores {part}"


def _isolated_first(guest: GuestFacts) -> Found:
    """[inv] isolated CPUs go to guests first: no whole free isolated core of a used node is left over."""
    host, pinned = guest.host, set(guest.pins)
    threads = max(len(core) for core in host.cores.values())
    for node in {host.node(cpu) for cpu in pinned - host.isolated}:
        cores = [host.cores[c] for c in host.node_cores(node)] if node is not None else []
        blocked = pinned | guest.others | host.held | host.hidden
        kept = host.cores[host.boot_core] if guest.cores_per_node else frozenset()
        free = [core for core in cores if core <= host.isolated and not core & (blocked | kept)]
        if any(len(core) == threads for core in free):
            yield f"isolated-first: isolated CPUs {[sorted(c) for c in free]} of node {node} are left over"


def _siblings(guest: GuestFacts) -> Found:
    """[inv] SMT siblings are host siblings and the guest topology says so (exceptions: threads=1, said)."""
    host, count = guest.host, len(guest.pins)
    topology = guest.planned.get("topology")
    if not topology or not set(guest.pins) <= host.online:
        return
    product = topology["sockets"] * topology["dies"] * topology["cores"] * topology["threads"]
    if product != count:
        yield f"topology-size: {topology} makes {product} CPUs, the guest has {count}"
    threads, per_core = topology["threads"], Counter(host.core(cpu) for cpu in guest.pins)
    if threads > 1:
        for first in range(0, count, threads):
            if len({host.core(cpu) for cpu in guest.pins[first : first + threads]}) != 1:
                yield f"siblings: vCPUs {first}-{first + threads - 1} are siblings in the guest, not on the host"
        uneven = sorted(core for core, used in per_core.items() if used != threads)
        if uneven:
            yield f"siblings-said: cores {uneven} do not carry {threads} vCPUs as the guest is told"
        return
    if max(per_core.values()) == 1:
        return
    width = max(len(core) for core in host.cores.values())
    odd = any(len(ids(cell["vcpus"])) % width for cell in guest.cells)
    uneven_host = len({len(core) for core in host.cores.values()}) > 1 or bool(host.hidden)
    if not odd and guest.smt == "cores" and not uneven_host:
        yield "siblings-said: host siblings are used, the guest says threads=1 and no count is odd"
    if not guest.said(r"thread|sibling|odd|idle"):
        yield "threads-one-said: threads=1 although siblings are used, and nothing says it"


def _helpers(guest: GuestFacts) -> Found:
    """Emulator and I/O threads: off the pinned CPUs, on housekeeping of the node or the nearest."""
    host = guest.host
    pinned = set(guest.pins) | guest.others | host.held
    allowed = _near_housekeeping(guest)
    free = host.online - host.isolated - host.hidden - pinned
    for cpus in guest.helpers:
        if not cpus:
            yield "helpers-empty: emulator or I/O threads have no CPUs"
        if cpus - host.online:
            yield f"helpers-online: {sorted(cpus - host.online)}"
        own_only = guest.cores_per_node == 0 and not free
        others = cpus & (guest.others | host.held)
        if cpus & pinned and (others or not own_only):  # [inv] emulator and I/O threads are off the pinned CPUs
            yield f"helpers-pinned: {sorted(cpus & pinned)} are pinned to vCPUs"
        if cpus & pinned and own_only and not guest.said(r"emulator"):  # [inv] ... said as a finding
            yield "helpers-own-said: emulator threads run on the guest's own CPUs and nothing says it"
        if cpus & host.isolated and not (own_only and cpus <= pinned):  # [inv] isolated: never to emulator, I/O
            yield f"helpers-isolated: {sorted(cpus & host.isolated)} are isolated"
        if cpus & host.hidden and allowed - host.hidden:  # [host] a cpuset hides it from guests
            yield f"helpers-hidden: {sorted(cpus & host.hidden)} are hidden by a cpuset"
        if guest.cores_per_node and allowed and not cpus <= allowed:
            # [issue] on housekeeping cores of the same node; [inv] where a node has none, the nearest
            yield f"helpers-place: {sorted(cpus)} are not among the near housekeeping CPUs {sorted(allowed)}"


def _near_housekeeping(guest: GuestFacts) -> set[int]:
    host, kept = guest.host, ids(guest.plan["housekeeping_cpus"])
    found: set[int] = set()
    for usable in (kept, kept - host.hidden):
        places = {host.node(cpu) for cpu in usable & host.online} - {None}
        for cell in guest.cells:
            node = min(ids(cell["host_nodes"]))
            steps = {p: host.distance(node, p) for p in places if p is not None and node in host.nodes}
            if node in places or None in steps.values():
                near = {node} if node in places else set(steps)
            else:
                near = {p for p, step in steps.items() if step == min(s for s in steps.values() if s is not None)}
            found |= {cpu for cpu in usable & host.online if host.node(cpu) in near}
    return found


# --- cells and memory ----------------------------------------------------------------------------------------


def _cells(guest: GuestFacts) -> Found:
    parts = [cpu for cell in guest.cells for cpu in ids(cell["vcpus"])]
    if sorted(parts) != list(range(len(guest.pins))):  # [plan] cells carry the vCPUs
        yield f"cells-partition: {[cell['vcpus'] for cell in guest.cells]}"
    if [cell["id"] for cell in guest.cells] != list(range(len(guest.cells))):  # guest cell ids are dense
        yield f"cells-numbered: {[cell['id'] for cell in guest.cells]}"
    nodes = [ids(cell["host_nodes"]) for cell in guest.cells]
    if any(len(n) != 1 for n in nodes) or len(set().union(*nodes)) != len(nodes):  # [intent] numa: its own host node
        yield f"cells-own-node: {nodes}"
        return
    wanted = guest.asked.get("numa", "auto")
    counts = [len(ids(cell["vcpus"])) for cell in guest.cells]
    if isinstance(wanted, list):
        if counts != [cell["vcpus"] for cell in wanted]:  # [intent] numa list
            yield f"cells-listed: {counts}, asked {[cell['vcpus'] for cell in wanted]}"
    elif len(set(counts)) > 1:  # [issue] equal vCPU counts unless the intent lists them
        yield f"cells-equal: {counts}"
    if isinstance(wanted, int) and len(counts) != wanted:  # [intent] numa: N
        yield f"cells-count: {len(counts)}, asked {wanted}"
    for cell, node in zip(guest.cells, nodes, strict=True):
        away = [cpu for cpu in guest.cell_pins(cell) if guest.host.node(cpu) != min(node)]
        if away:  # [issue] two or more cells with their own CPUs; never a silent spill
            yield f"cell-node: cell {cell['id']} on node {min(node)} has CPUs {away} of another"


def _memory(guest: GuestFacts) -> Found:
    page = guest.planned["page_bytes"] or 4096
    wanted = guest.asked.get("hugepages") or "auto"
    if wanted in ("2MiB", "1GiB") and page != size(wanted):  # [intent] hugepages
        yield f"page-size: {page}, asked {wanted}"
    if wanted == "none" and page != 4096:
        yield f"page-size: {page}, asked none"
    for cell in guest.cells:
        if cell["memory_bytes"] <= 0 or cell["memory_bytes"] % page:  # [inv] a whole number of pages
            yield f"whole-pages: cell {cell['id']} has {cell['memory_bytes']} bytes in pages of {page}"
        node = min(ids(cell["host_nodes"]), default=-1)
        if node not in guest.host.nodes:  # [inv] memory of each cell comes from its host node
            yield f"memory-node: cell {cell['id']} takes memory of node {node}, which does not exist"
            continue
        limit = _free_bytes(guest, node)
        if limit is not None and cell["memory_bytes"] > limit:  # [inv] pages that are free or that an action reserves
            yield f"memory-free: cell {cell['id']} takes {cell['memory_bytes']} of {limit} bytes on node {node}"
        if page != 4096:
            yield from _pages(guest, cell, node, page)
    yield from _memory_asked(guest, page)


def _free_bytes(guest: GuestFacts, node: int) -> int | None:
    """What a cell can have at most: the node less its reserve and guests pinned there, or its free pool."""
    host, row = guest.host, guest.host.nodes[node]
    if row.get("memory_bytes") is None:
        return None
    used, memory = held_bytes(host, node), int(row["memory_bytes"])
    pool = sum(int(p["free"] or 0) * int(p["size_bytes"]) for p in row.get("hugepages") or [])
    return max(memory - host.reserve_bytes(guest.intent, node) - int(used), pool)


def _pages(guest: GuestFacts, cell: Json, node: int, page: int) -> Found:
    """[inv] pages that are free or that an action reserves: total wanted >= pages used + this guest's."""
    row = guest.host.nodes[node]
    pool: Json = next((p for p in row.get("hugepages") or [] if p["size_bytes"] == page), {})
    total, free = pool.get("total") or 0, pool.get("free") or 0
    wants = wanted_pages(guest.plan)
    needed = total - free + cell["memory_bytes"] // page
    if wants.get((node, page), total) < needed:
        yield f"pages-short: node {node} gets {wants.get((node, page), total)} pages of {page}, {needed} are needed"
    grown = wants.get((node, page), total) > total
    totals = {p["size_bytes"]: p["total"] or 0 for p in row.get("hugepages") or []}
    pooled = sum(n * p for p, n in (totals | {p: n for (at, p), n in wants.items() if at == node}).items())
    memory = row.get("memory_bytes")
    if grown and memory is not None and pooled > memory - guest.host.reserve_bytes(guest.intent, node):
        yield f"pages-exceed-node: node {node} would have {pooled} bytes of huge pages, of {memory}"  # [intent] reserve


def _memory_asked(guest: GuestFacts, page: int) -> Found:
    wanted, got = guest.asked.get("numa"), [cell["memory_bytes"] for cell in guest.cells]
    if isinstance(wanted, list):
        sizes = [size(cell["memory"]) for cell in wanted]
        if len(sizes) == len(got) and any(not 0 <= have - ask < page for have, ask in zip(got, sizes, strict=True)):
            yield f"memory-listed: {got}, asked {sizes}"
        return
    asked = guest.asked.get("memory", "auto")
    if asked != "auto" and not 0 <= sum(got) - size(asked) < page * len(got):
        yield f"memory-asked: {sum(got)} bytes, asked {asked}"
    if asked == "auto" and len(set(got)) > 1:  # [intent] all cells take the smallest cell's share
        yield f"memory-share: auto gave cells {got}"


# --- auto ----------------------------------------------------------------------------------------------------


def _auto(guest: GuestFacts) -> Found:
    """[intent] auto = the node's unreserved CPUs and memory ÷ its GPUs × this guest's there, rounded down."""
    host, nodes = guest.host, [min(ids(cell["host_nodes"])) for cell in guest.cells]
    gpus = {g["address"]: g.get("vendor", "other") for g in host.document.get("gpus") or []}
    mine = Counter(host.device_home(d["address"]) for d in guest.devices if d["address"] in gpus)
    kept = host.housekeeping(guest.cores_per_node, hidden_counts=True)
    widths = {len(core) for core in host.cores.values()}
    plain = kept is not None and not host.hidden and len(widths) == 1 and set(nodes) == set(mine)
    if not plain or isinstance(guest.asked.get("numa"), list):
        return
    counted = {a for a, vendor in gpus.items() if vendor != "other" or a in named(guest.asked)}
    parts = {n: Fraction(mine[n], sum(host.device_home(a) == n for a in counted) or 1) for n in nodes}
    if guest.asked.get("vcpus", "auto") == "auto":
        yield from _auto_vcpus(guest, parts, kept or set(), min(widths))
    if guest.asked.get("memory", "auto") == "auto":
        yield from _auto_memory(guest, parts)


def _auto_vcpus(guest: GuestFacts, parts: dict[int, Fraction], kept: set[int], threads: int) -> Found:
    host = guest.host
    usable = {node: [c for c in host.node_cores(node) if not host.cores[c] & kept] for node in parts}
    cores = min(int(len(usable[node]) * part) for node, part in parts.items())  # all cells take the smallest share
    free = min(sum(not host.cores[c] & (host.held | guest.others) for c in usable[node]) for node in parts)
    have = len(guest.pins) // len(parts)
    if not cores or cores * threads * len(parts) > 255:  # at most 255 without an IOMMU device
        return
    if have > cores * threads or (have < cores * threads and free >= cores):  # less where less is free
        yield f"auto-vcpus: {have} a cell, the rule gives {cores * threads}"


def _auto_memory(guest: GuestFacts, parts: dict[int, Fraction]) -> Found:
    host, page = guest.host, guest.planned["page_bytes"] or 4096
    unreserved = {n: (host.nodes[n].get("memory_bytes") or 0) - host.reserve_bytes(guest.intent, n) for n in parts}
    share = min(int(unreserved[node] * part) // page * page for node, part in parts.items())
    pooled = any(pool["total"] for node in parts for pool in host.nodes[node].get("hugepages") or [])
    alone = not host.document.get("guests") and not guest.others
    got = guest.cells[0]["memory_bytes"]
    if any(host.nodes[n].get("free_bytes") is not None for n in parts):
        alone = False  # less where less is free
    if share > 0 and (got > share or (got < share and not pooled and alone)):
        yield f"auto-memory: {got} a cell, the rule gives {share}"


# --- caches --------------------------------------------------------------------------------------------------


def _caches(guest: GuestFacts) -> Found:
    """[issue] fewest last-level caches; asserted for whole cores of one width where no CPU of the node is isolated."""
    host = guest.host
    kept = ids(guest.plan["housekeeping_cpus"])
    if guest.smt != "cores" or len({len(core) for core in host.cores.values()}) != 1 or host.hidden:
        return
    for cell in guest.cells:
        node, pins = min(ids(cell["host_nodes"])), guest.cell_pins(cell)
        cores = [c for c in host.node_cores(node) if not host.cores[c] & (kept | host.held | guest.others)]
        if any(host.cores[c] & host.isolated for c in cores):
            continue
        room = sorted(Counter(host.cpus[c]["llc"] for c in cores).values(), reverse=True)
        wanted, fewest = len({host.core(cpu) for cpu in pins}), 0
        while wanted > 0 and fewest < len(room):
            wanted -= room[fewest]
            fewest += 1
        spanned = len({host.cpus[cpu]["llc"] for cpu in pins})
        if spanned > fewest:
            yield f"fewest-caches: cell {cell['id']} spans {spanned} last-level caches, {fewest} would do"


_GUEST_CHECKS = (_pins, _siblings, _helpers, _cells, _memory, device_checks, _auto, _caches)


def same_bytes(first: str, second: str) -> list[str]:
    """[inv] the same host and intent give the same plan, byte for byte."""
    if first == second:
        return []
    before, after = json.loads(first), json.loads(second)
    return [f"determinism: {key} differs" for key in before if before[key] != after.get(key)] or ["determinism: bytes"]
