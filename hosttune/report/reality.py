"""Plan against reality: what each planned guest was to get, beside what the host document says that it has.

The checks judge; this only sets the two side by side. What the host does not tell is unknown, never "as planned".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hosttune.model.host import Host, RunningGuest
from hosttune.model.plan import Plan, PlannedGuest
from hosttune.model.validation import CheckResult
from hosttune.model.values import CpuSet, Value, format_size, parse_cpus
from hosttune.report.branch import short_list, some
from hosttune.report.outcomes import worst_first

SAME, DIFFERENT, UNKNOWN = "as planned", "differs", "unknown"
_MANY = 6  # differing vCPUs or devices named before "and N more"


class Comparison(Value, frozen=True, kw_only=True):
    """One thing that the plan decides: as planned, as it is, and whether that is the same."""

    what: str
    planned: str
    actual: str
    state: str


class GuestReality(Value, frozen=True, kw_only=True):
    """One planned guest: `state` as libvirt says it, the comparisons, and what the checks say of it."""

    name: str
    state: str
    rows: tuple[Comparison, ...]
    results: tuple[CheckResult, ...] = ()

    @property
    def differing(self) -> int:
        """How many rows differ."""
        return sum(row.state == DIFFERENT for row in self.rows)

    @property
    def unknown(self) -> int:
        """How many rows could not be compared."""
        return sum(row.state == UNKNOWN for row in self.rows)


def reality(plans: Iterable[Plan], host: Host | None, results: Iterable[CheckResult] = ()) -> tuple[GuestReality, ...]:
    """Every guest of the plans (of two plans of one guest the later counts), in the order in which they came."""
    planned = {guest.name: guest for plan in plans for guest in plan.guests}
    results = tuple(results)
    return tuple(
        _guest(guest, host, tuple(result for result in worst_first(results) if result.subject == guest.name))
        for guest in planned.values()
    )


def _guest(planned: PlannedGuest, host: Host | None, results: tuple[CheckResult, ...]) -> GuestReality:
    guests = host.guests if host else None
    actual = next((guest for guest in guests or () if guest.name == planned.name), None)
    if actual is None:
        missing = "this host's guests are unknown" if guests is None else "not defined on this host"
        state = UNKNOWN if guests is None else DIFFERENT
        row = Comparison(what="guest", planned="defined", actual=missing, state=state)
        return GuestReality(name=planned.name, state=missing, rows=(row,), results=results)
    rows = (_vcpus(planned, actual), _emulator(planned, actual), *_memory(planned, actual), _devices(planned, actual))
    return GuestReality(name=planned.name, state=actual.state or "state unknown", rows=rows, results=results)


def _vcpus(planned: PlannedGuest, actual: RunningGuest) -> Comparison:
    want = {pin.vcpu: parse_cpus(pin.cpus) for pin in planned.vcpu_pins}
    words = _pins(want)
    if actual.vcpu_pins is None:
        return Comparison(what="vCPUs", planned=words, actual="unknown", state=UNKNOWN)
    have = {pin.vcpu: parse_cpus(pin.cpus) for pin in actual.vcpu_pins}
    if have == want:
        return Comparison(what="vCPUs", planned=words, actual=words, state=SAME)
    wrong = [vcpu for vcpu in sorted({*want, *have}) if want.get(vcpu) != have.get(vcpu)]
    said = some(
        (f"vCPU {vcpu} on {have.get(vcpu) or 'no pin'}, not {want.get(vcpu) or 'planned'}" for vcpu in wrong), 3
    )
    return Comparison(what="vCPUs", planned=words, actual=f"{_pins(have)}; {said}", state=DIFFERENT)


def _pins(pins: dict[int, CpuSet]) -> str:
    cpus = CpuSet(cpu for one in pins.values() for cpu in one)
    return f"{len(pins)} on host CPUs {short_list(cpus)}" if pins else "none pinned"


def _emulator(planned: PlannedGuest, actual: RunningGuest) -> Comparison:
    want = parse_cpus(planned.emulator_cpus)
    if actual.emulator_cpus is None:
        return Comparison(what="emulator threads", planned=f"host CPUs {want}", actual="unknown", state=UNKNOWN)
    have = parse_cpus(actual.emulator_cpus)
    state = SAME if have == want else DIFFERENT
    return Comparison(what="emulator threads", planned=f"host CPUs {want}", actual=f"host CPUs {have}", state=state)


def _memory(planned: PlannedGuest, actual: RunningGuest) -> tuple[Comparison, ...]:
    want: dict[str, int] = {}
    for cell in planned.cells:
        want[cell.host_nodes] = want.get(cell.host_nodes, 0) + cell.memory_bytes
    have: dict[str, int] | None = None
    if actual.memory is not None and all(part.memory_bytes is not None for part in actual.memory):
        have = {}
        for part in actual.memory:
            node = "any" if part.node is None else str(part.node)
            have[node] = have.get(node, 0) + (part.memory_bytes or 0)
    place = Comparison(
        what="memory",
        planned=_sizes(want),
        actual="unknown" if have is None else _sizes(have),
        state=UNKNOWN if have is None else SAME if have == want else DIFFERENT,
    )
    if planned.page_bytes is None:
        return (place,)
    pages = actual.page_bytes
    state = UNKNOWN if pages is None else SAME if pages == planned.page_bytes else DIFFERENT
    shown = "unknown" if pages is None else format_size(pages)
    return (place, Comparison(what="page size", planned=format_size(planned.page_bytes), actual=shown, state=state))


def _sizes(by_node: dict[str, int]) -> str:
    return ", ".join(f"{format_size(size)} on node {node}" for node, size in sorted(by_node.items())) or "none"


def _devices(planned: PlannedGuest, actual: RunningGuest) -> Comparison:
    want, have = [device.address for device in planned.devices], list(actual.devices)
    missing, extra = _without(want, have), _without(have, want)
    said = [f"missing {some(missing, _MANY)}"] if missing else []
    said += [f"not planned {some(extra, _MANY)}"] if extra else []
    return Comparison(
        what="devices",
        planned=some(want, _MANY) or "none",
        actual="; ".join([some(have, _MANY) or "none", *said]),
        state=DIFFERENT if said else SAME,
    )


def _without(names: Sequence[str], others: Sequence[str]) -> list[str]:
    return [name for name in names if name not in others]
