"""Checks of links between GPUs: NVLink and XGMI to all others, each NVLink's speed, and its errors since the last
look and while benchmarks ran."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from hosttune.gpu import hints_for, vendor_of
from hosttune.model.counters import grew, growths
from hosttune.model.gpu import Gpu, Nvlink
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import listed
from hosttune.rules.checks.gpufacts import by_driver, fact, gpu_check, others_of_model, why_unknown
from hosttune.rules.checks.on import On
from hosttune.rules.engine import Finding

_GUIDE = "Fabric Manager user guide"
_NAMES = {"nvlink": "NVLink", "xgmi": "XGMI"}
_COUNTERS = {"replays": "replays", "recoveries": "recoveries", "crc_errors": "CRC errors"}
_NOT_FATAL = ("crc_errors",)  # DCGM: an increase of these warns, of every other one it fails
_Fault = tuple[str, str]  # outcome, words


def stays_in_mig(gpu: Gpu) -> bool:
    """Return whether a GPU is in MIG mode, which turns its NVLinks off, now and (if known) after its next reset."""
    return gpu.mig_on and gpu.mig is not None and gpu.mig.pending in ("enabled", None)


# --- to all others -------------------------------------------------------------------------------------------


@gpu_check(
    "nvlink",
    title="NVLinks active, all GPUs of a board joined",
    about="each GPU",
    why="A GPU off NVLink slows every job over it to PCIe, and nothing else reports it",
    source=f"nvml.h: nvmlDeviceGetNvLinkState; data sheets: links of a board; {_GUIDE}",
    expected="as many links and peers as the other GPUs of its model",
)
def nvlink(on: On, gpu: Gpu) -> Finding:
    """Half of the facts can show a fault, but never a pass."""
    _joined_by(on, gpu, "nvlink")
    others = others_of_model(on.evidence, gpu)  # a single GPU has no peers to compare
    names = ("nvlinks_active", "peers") if others else ("nvlinks_active",)
    unread = [why for name in names if (why := why_unknown(on, gpu, name)) is not None]
    if len(unread) == len(names):
        return unread[0]
    finding = _compared(by_driver(on, gpu, "nvmlDeviceGetNvLinkState"), gpu, "nvlink", others)
    # A card without NVLink has no list of links. Its row in the topology matrix proves that it has none.
    proven = finding.outcome == "skip" and (stays_in_mig(gpu) or (others and gpu.peers is not None))
    return finding if not unread or finding.outcome == "fail" or proven else unread[0]


@gpu_check(
    "nvlink-errors",
    title="Links between GPUs at full speed, without errors",
    about="each GPU with active NVLinks",
    why="A link that replays or retrains stalls every collective over it long before it goes down",
    source="NVIDIA/DCGM 4.6.0 modules/health/DcgmHealthWatch.cpp (MonitorNVLink4Fields: replays, recoveries and from"
    " 100 CRC errors a second on fail, fewer warn; MonitorNVLink5Fields); nvml.h, NVML_FI_DEV_NVLINK_*",
    expected="each active link at full speed, without replays, recoveries and CRC errors",
)
def nvlink_errors(on: On, gpu: Gpu) -> Finding:
    """Check speed and errors of each active NVLink of each GPU. How many links are active is the check `nvlink`."""
    _joined_by(on, gpu, "nvlink")
    if stays_in_mig(gpu) and not gpu.nvlinks_active:
        on.skip("MIG is on, which turns NVLink between GPUs off")
    if gpu.nvlinks is None and gpu.nvlinks_active == 0:
        on.skip("no NVLink of it is active: see nvlink")
    on = by_driver(on, gpu, "nvmlDeviceGetFieldValues")
    active = [link for link in fact(on, gpu, "nvlinks") if link.active]
    faults = [*_slow(on, gpu, active), *_counted(on, gpu, active)]
    if on.evidence.gpus_later is not None:
        again = next((other.nvlinks for other in on.evidence.gpus_later if other.address == gpu.address), None)
        later = {link.link: link for link in again or ()}
        faults += [*_later(on, active, later), *_changed(active, later)]
    hint = f"look at them again with {hints_for(gpu).links}; reset the GPU, then reseat it or its baseboard"
    say = {"fail": on.failed, "unknown": on.unknown, "warn": on.warned}
    if faults:
        return on.worst(say[outcome](text, hint) for outcome, text in faults)
    speed = f" of {active[0].gb_per_s:g} GB/s" if active and active[0].gb_per_s else ""
    before = "none since the last look" if any(n for link in active for n in link.counters.values()) else "no error"
    return on.passed(f"{len(active)} links{speed}, {before}")


@gpu_check(
    "xgmi",
    title="GPUs of a board joined by XGMI",
    about="each GPU of a maker that has XGMI",
    why="A GPU off XGMI slows every job over it to PCIe",
    source="Linux drivers/gpu/drm/amd/amdkfd/kfd_topology.c: io_links",
    expected="XGMI to each GPU of its model",
)
def xgmi(on: On, gpu: Gpu) -> Finding:
    _joined_by(on, gpu, "xgmi")
    fact(on, gpu, "peers")
    return _compared(by_driver(on, gpu), gpu, "xgmi", others_of_model(on.evidence, gpu))


def _joined_by(on: On, gpu: Gpu, kind: str) -> None:
    vendor = vendor_of(gpu.vendor)
    if vendor is None or vendor.link != kind:
        on.skip(f"its maker's GPUs are not joined by {_NAMES[kind]}")


def _compared(on: On, gpu: Gpu, kind: str, others: list[Gpu]) -> Finding:
    """Compare the links of one GPU with those of its model. MIG mode switches NVLink off by design."""
    reporting = [other for other in others if other.peers is not None or other.nvlinks_active is not None]
    device_id = on.host.index.device_id(gpu.address)
    board = table("boards")["nvlinks"].get(device_id) if kind == "nvlink" and not on.host.hypervisor else None
    links, reach = _count(gpu, kind), _reach(gpu, kind)
    most_links = max([count for other in reporting if (count := _count(other, kind)) is not None] + [board or 0])
    most_reach = max([count for other in reporting if (count := _reach(other, kind)) is not None], default=0)
    actual = _text(kind, links, reach, len(others))
    if stays_in_mig(gpu) and not reach and (not links or links >= most_links):
        return on.skipped("MIG is on, which turns NVLink between GPUs off")
    unread = _unread_peer(gpu, others) if kind == "xgmi" and (reach or 0) >= most_reach else None
    if unread is not None:
        hint = f"look with: {hints_for(gpu).links}; and why /sys/class/kfd/kfd/topology does not show it whole"
        return on.unknown(f"{actual}; how {unread}, of the same model, is joined is unknown", hint)
    if not (most_links or most_reach or links or reach):
        return on.skipped(f"no {kind} on this GPU or another of its model")
    expected = _text(kind, most_links or None, most_reach if reporting else None, len(others))
    if (links is None or links >= most_links) and (reach is None or reach >= most_reach):
        return on.passed(actual, expected=expected)
    # A bridge joins pairs of cards, so a card without a bridge can be intended. A fabric joins three or more GPUs.
    say = on.failed if most_reach > 1 or board else on.warned
    hint = f"reseat the GPU or its baseboard; read {hints_for(gpu).links}; plan no guest over {_NAMES[kind]} with it"
    return say(actual, hint, expected=expected)


def _unread_peer(gpu: Gpu, others: list[Gpu]) -> str | None:
    """Return a peer whose own peers are unknown, so that this GPU may lack a link that others have; else None."""
    if gpu.peers is None or all(peer.kind == "xgmi" for peer in gpu.peers):
        return None
    peers = {peer.address for peer in gpu.peers}
    return next((other.address for other in others if other.peers is None and other.address in peers), None)


def _count(gpu: Gpu, kind: str) -> int | None:
    """Return the number of active links: as the driver counts, else the most to one peer; 0 without such a peer."""
    if kind == "nvlink" and gpu.nvlinks_active is not None:
        return gpu.nvlinks_active
    if gpu.peers is None:
        return None
    joined = [peer.links for peer in gpu.peers if peer.kind == kind]
    counts = [links for links in joined if links is not None]
    return max(counts) if counts else None if joined else 0


def _reach(gpu: Gpu, kind: str) -> int | None:
    return None if gpu.peers is None else sum(peer.kind == kind for peer in gpu.peers)


def _text(kind: str, links: int | None, reach: int | None, others: int) -> str:
    name = _NAMES[kind]
    parts = [f"{links} links"] if links is not None else []
    parts += [f"{name} to {reach} of {others} others"] if reach is not None and others else []
    return ", ".join(parts) or f"{name}, links not counted"


# --- each NVLink ---------------------------------------------------------------------------------------------


def _errors(counts: Mapping[int, Mapping[str, int]], when: str, seconds: float | None) -> Iterator[_Fault]:
    """Yield the errors of each counter, by link, judged as DCGM does; `seconds` None: when they came is not known."""
    limit = table("limits")["nvlink"]["crc_errors_per_second"] * (seconds or math.inf)
    for name in dict.fromkeys(name for counters in counts.values() for name in counters):
        had = {link: count for link, counters in counts.items() if (count := counters.get(name))}
        if had:
            links = listed([f"{link}: {count}" for link, count in had.items()], 4)
            text = f"{sum(had.values())} {_COUNTERS.get(name, name)} {when} (link {links})"
            warns = seconds is None or (name in _NOT_FATAL and max(had.values()) < limit)
            yield "warn" if warns else "fail", text


def _slow(on: On, gpu: Gpu, active: list[Nvlink]) -> Iterator[_Fault]:
    """Yield links below the speed of the model's NVLinks, or of the fastest link of the model here."""
    unread = [str(link.link) for link in active if link.gb_per_s is None]
    if unread:
        yield "unknown", f"the speed of link {listed(unread, 3)} was not reported"
    alike = [link for other in (gpu, *others_of_model(on.evidence, gpu)) for link in other.nvlinks or ()]
    full = table("boards")["nvlink_gb_per_s"].get(on.host.index.device_id(gpu.address), 0.0)
    full = max([full, *(link.gb_per_s for link in alike if link.gb_per_s)])
    slow = [f"{link.link} at {link.gb_per_s:g} GB/s" for link in active if link.gb_per_s and link.gb_per_s < full]
    if slow:
        yield "fail", f"link {listed(slow, 3)}, of {full:g}"


def _counted(on: On, gpu: Gpu, active: list[Nvlink]) -> Iterator[_Fault]:
    """Yield the errors since the last look; without one, those since the driver was loaded warn."""
    unread = [str(link.link) for link in active if None in link.counters.values()]
    if unread:
        yield "unknown", f"the error counters of link {listed(unread, 3)} were not reported"
    known = growths(on.evidence, "nvlink", {link.link: (f"{gpu.address} {link.link}",) for link in active})
    alone = {link.link: grew(dict.fromkeys(link.counters, 0), link.counters) for link in active if not known[link.link]}
    said = on.alone("since its driver was loaded")
    yield from ((said.outcome, text) for _, text in _errors(alone, said.text, None))
    grown = {link: growth for link, growth in known.items() if growth is not None}
    for growth in list(grown.values())[:1]:
        yield from _errors({link: more.counts for link, more in grown.items()}, growth.words, growth.seconds)


def _later(on: On, active: list[Nvlink], later: Mapping[int, Nvlink]) -> Iterator[_Fault]:
    """Yield the errors that came while benchmarks ran."""
    after = {number: link.counters for number, link in later.items()}
    grown = {link.link: grew(link.counters, after.get(link.link, {})) for link in active}
    lost = [str(link.link) for link in active if grown[link.link].keys() != link.counters.keys()]
    if lost:
        yield "unknown", f"the error counters of link {listed(lost, 3)} were not reported again after the benchmarks"
    seconds = max(on.evidence.seconds_later or 0.0, 1.0)
    yield from _errors(grown, f"in {seconds:.0f} s of benchmarks", seconds)


def _changed(active: list[Nvlink], later: Mapping[int, Nvlink]) -> Iterator[_Fault]:
    """Yield the links that were active before the benchmarks, and are not, or are slower, after them."""
    for link in active:
        now = later.get(link.link)
        if now is None:
            continue  # its counters are told as unknown
        if not now.active:
            yield "fail", f"link {link.link} was active before the benchmarks, and is not after them"
        elif link.gb_per_s is not None and now.gb_per_s is None:
            yield "unknown", f"the speed of link {link.link} after the benchmarks was not reported"
        elif link.gb_per_s is not None and now.gb_per_s is not None and now.gb_per_s < link.gb_per_s:
            yield "fail", f"link {link.link} at {now.gb_per_s:g} GB/s after the benchmarks, of {link.gb_per_s:g}"
