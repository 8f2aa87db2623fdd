"""What a picture of a host shows: its devices in their tree, which guest has what, and where the faults are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from hosttune.model.devicepath import DevicePath, Hop
from hosttune.model.host import Cpu, Host, PciDevice
from hosttune.model.plan import Plan
from hosttune.model.validation import CheckResult
from hosttune.model.values import CpuSet, Value, grouped, parse_cpus
from hosttune.report.devices import DeviceLookups, link_text, listed, shown
from hosttune.report.picture.guests import PictureGuest, holders_of
from hosttune.report.text import problem_numbers

K = TypeVar("K")
V = TypeVar("V")

DEEPEST = 16  # bridges above a device that are drawn; no machine has as many, but a document may
_SIGNS = {"fail": ("fail", "failed"), "unknown": ("unknown", "unknown"), "warn": ("warn", "warning")}


class PictureMark(Value, frozen=True, kw_only=True):
    """A fault or a doubt: its sign, the text beside the sign, and the full text."""

    sign: str
    text: str
    hover_text: str


class TreePlace(Value, frozen=True, kw_only=True):
    """A bridge or a device in the PCIe tree, and what is below it. `kind` of a bridge: "port", "switch"."""

    address: str
    kind: str
    below: tuple[TreePlace, ...] = ()


class HostView(Value, frozen=True, kw_only=True):
    """One host and everything that is needed to look up its parts."""

    host: Host
    index: DeviceLookups
    guests: tuple[PictureGuest, ...]
    holders: Mapping[str, tuple[PictureGuest, ...]]  # address -> guests that have it
    cpu_holders: Mapping[int, tuple[PictureGuest, ...]]
    cpus: Mapping[int | None, tuple[Cpu, ...]]  # node -> its online CPUs
    results: Mapping[str, tuple[CheckResult, ...]]  # subject -> results that did not pass
    checked: tuple[CheckResult, ...]
    reported_at_device: frozenset[str]  # ports whose degraded link is reported on the device at its other end
    plan: Plan | None = None
    by_guest: bool = False  # colours are the guests'; else the kinds' of devices, with the guests marked on them
    housekeeping: CpuSet = CpuSet()  # CPUs that the plan leaves to the host
    paths: tuple[DevicePath, ...] = ()  # drawn over the host

    @property
    def cpus_known(self) -> bool:
        """Whether it is known of every guest which CPUs it has. If not, what no guest seems to have may be in use."""
        return self.host.guests is not None and all(holder.pinned for holder in self.guests)

    @property
    def memory_known(self) -> bool:
        """Whether it is known of every guest on which nodes its memory is."""
        return self.host.guests is not None and all(holder.placed for holder in self.guests)

    def device(self, address: str) -> PciDevice | None:
        """Return the function with this address; None if the document does not have it."""
        return self.index.pci.get(address)


def view_of_host(
    host: Host,
    results: Iterable[CheckResult] = (),
    *,
    plan: Plan | None = None,
    by_guest: bool = False,
    names: Sequence[str] = (),
    paths: Sequence[DevicePath] = (),
) -> HostView:
    """Collect what the picture needs of a host, the results of its checks, a plan made for it, and paths to draw.

    `names` gives the guests of these names the first letters and colours.
    """
    results = tuple(results)
    guests = holders_of(host, plan, names)
    holders = grouped((address, holder) for holder in guests for address in holder.devices)
    cpu_holders = grouped((cpu, holder) for holder in guests for cpu in holder.cpus)
    marked = grouped((result.subject, result) for result in results if result.outcome in _SIGNS)
    by_node = grouped((processor.numa_node, processor) for processor in host.cpus if processor.online)
    return HostView(
        host=host,
        index=shown(host, problem_numbers(host)),
        guests=guests,
        holders=_tuples(holders),
        cpu_holders=_tuples(cpu_holders),
        cpus=_tuples(by_node),
        results=_tuples(marked),
        checked=results,
        reported_at_device=frozenset(
            d.link.upstream.address for d in host.pci if _degraded(d) and d.link and d.link.upstream
        ),
        plan=plan,
        by_guest=by_guest,
        housekeeping=parse_cpus(plan.housekeeping_cpus) if plan else CpuSet(),
        paths=tuple(paths),
    )


def _tuples(groups: Mapping[K, list[V]]) -> dict[K, tuple[V, ...]]:
    return {key: tuple(values) for key, values in groups.items()}


# --- marks ---------------------------------------------------------------------------------------------------


def marks_of(view: HostView, address: str) -> tuple[PictureMark, ...]:
    """Return a function's faults: checks that did not pass, worst first, then its link, then problems."""
    marks = [*check_marks(view, (address,))]
    device = view.device(address)
    if device and device.link and _degraded(device) and address not in view.reported_at_device:
        text = link_text(device.link).replace(" x", " ×")
        most = text.partition(" of ")[2]
        hover_text = "; ".join(filter(None, (text, device.link.why)))
        marks.append(PictureMark(sign="warn", text=f"degraded from {most}" if most else text, hover_text=hover_text))
    number = min((n for place, n in view.index.problems.items() if address in place), default=None)
    if number is not None:
        marks.append(PictureMark(sign="unknown", text=f"see problem {number}", hover_text=f"see problem {number}"))
    return tuple(marks)


def check_marks(view: HostView, subjects: Iterable[str]) -> tuple[PictureMark, ...]:
    """Return one mark per outcome for checks of these subjects that did not pass, then slowest links of paths."""
    subjects = tuple(subjects)
    results = [result for subject in subjects for result in view.results.get(subject, ())]
    marks = [mark for outcome in _SIGNS if (mark := _mark(outcome, results))]
    for number, path in enumerate(view.paths, 1):
        if path.slowest is not None and marked_at(view.host, path.slowest).intersection(subjects):
            name = f"path {number}" if len(path.hops) == 1 else f"slowest link of path {number}"
            words = path.slowest.words.partition(", degraded")[0]
            text = f"{name}: {path.slowest.gb_per_s:g} GB/s, {words}"
            marks.append(PictureMark(sign="slow", text=text, hover_text=text))
    return tuple(marks)


def marked_at(host: Host, hop: Hop) -> set[str]:
    """Return the subjects at which a link is marked: the function whose link it is, or both ends."""
    if hop.kind == "pcie":
        return {hop.start if hop.end in host.index.above(hop.start) else hop.end}
    return {hop.start, hop.end}


def _mark(outcome: str, results: Iterable[CheckResult]) -> PictureMark | None:
    some = [result for result in results if result.outcome == outcome]
    sign, word = _SIGNS[outcome]
    if not some:
        return None
    hover_text = "; ".join(f"{word}: {result.check}{_difference(result)}" for result in some)
    return PictureMark(sign=sign, text=f"{word}: {', '.join(result.check for result in some)}", hover_text=hover_text)


def _difference(result: CheckResult) -> str:
    facts = [f"{what} {value}" for what, value in (("expected", result.expected), ("is", result.actual)) if value]
    return f" ({', '.join(facts)})" if facts else ""


def node_subjects(node: int) -> tuple[str, ...]:
    """Return the names that results may use for a node."""
    return (str(node), f"node {node}", f"node{node}")


def marks_elsewhere(view: HostView, drawn: Iterable[str]) -> tuple[PictureMark, ...]:
    """Return what did not pass and has no place in the picture, by subject ("host" first)."""
    places = set(drawn)
    rest = sorted(
        (subject for subject in view.results if subject not in places), key=lambda name: (name != "host", name)
    )
    marks = []
    for outcome, (sign, word) in _SIGNS.items():
        texts = [
            f"{result.check} ({subject})"
            for subject in rest
            for result in view.results[subject]
            if result.outcome == outcome
        ]
        if texts:
            marks.append(PictureMark(sign=sign, text=f"{word}: {', '.join(texts)}", hover_text=""))
    return tuple(marks)


# --- the tree ------------------------------------------------------------------------------------------------


def places_of(view: HostView) -> dict[int | None, tuple[str, ...]]:
    """Return the addresses that get a box, by node. None has those whose node is unknown or not in the document.

    These are devices known by their class, and any other function that a guest has, whose link is degraded, or for
    which a check did not pass. A virtual function is shown on its physical function, if that has a box.
    """
    nodes = {node.id for node in view.host.numa_nodes}
    chosen = dict.fromkeys(listed(view.index))
    by_class = set(chosen)
    for address in (*(d.address for d in view.host.pci), *view.holders):
        if address not in by_class and _needs_box(view, address):
            chosen.setdefault(address)
    places: dict[int | None, list[str]] = {}
    for address in sorted((function for function in chosen if _physical(view, function) not in chosen), key=bus_order):
        device = view.device(address)
        node = device.numa_node if device and device.numa_node in nodes else None
        places.setdefault(node, []).append(address)
    return {node: tuple(addresses) for node, addresses in places.items()}


def _needs_box(view: HostView, address: str) -> bool:
    device = view.device(address)
    if _degraded(device) and address not in view.reported_at_device:
        return True
    if device is not None and device.is_bridge:
        return False
    return address in view.holders or (address in view.results and device is not None)


def _degraded(device: PciDevice | None) -> bool:
    return bool(device and not device.physfn and device.link and device.link.state == "degraded")


def _physical(view: HostView, address: str) -> str | None:
    """Return the physical function of a virtual one.

    None if the function is not virtual, or if a document names a function that cannot be a physical one.
    """
    device = view.device(address)
    owner = view.device(device.physfn) if device and device.physfn else None
    return owner.address if owner and not owner.is_bridge and not owner.physfn and owner.address != address else None


def virtual_functions(view: HostView, address: str) -> tuple[str, ...]:
    """Return the virtual functions of a physical one that are shown one by one.

    These are the ones that a guest has or that a check marks.
    """
    marked = dict.fromkeys((*view.holders, *view.results))
    return tuple(sorted((function for function in marked if _physical(view, function) == address), key=bus_order))


def bus_order(address: str) -> tuple[int, str]:
    """Return the sort key of an address: the order of the bus numbers. Domains may have more than four digits."""
    domain = address.partition(":")[0]
    return (int(domain, 16) if all(c in "0123456789abcdef" for c in domain) and domain else 0), address


def trees(view: HostView, addresses: Iterable[str]) -> dict[str, tuple[TreePlace, ...]]:
    """Return the host bridges ("0000:15") that lead to these devices, in bus order, each with what is below it."""
    by_bridge: dict[str, list[tuple[str, ...]]] = {}
    for address in addresses:
        path = _path(view, address)
        by_bridge.setdefault(path[0].rpartition(":")[0] or path[0], []).append(path)
    return {bus: _forks(view, paths) for bus, paths in by_bridge.items()}


def _path(view: HostView, address: str) -> tuple[str, ...]:
    """Return the bridges above the device and the device, top first. It ends at a parent that is not in the document.

    A path longer than DEEPEST is cut in the middle.
    """
    path = view.host.index.path(address)
    return path if len(path) <= DEEPEST else (*path[: DEEPEST // 2], *path[-DEEPEST // 2 :])


def _forks(view: HostView, paths: list[tuple[str, ...]]) -> tuple[TreePlace, ...]:
    groups = grouped((path[0], path) for path in paths)
    places: list[TreePlace] = []
    for address, members in groups.items():
        longer = [path[1:] for path in members if len(path) > 1]
        below = _forks(view, longer) if longer else ()
        kind = _bridge_kind(view, address) if below else "device"
        device = view.device(address)
        if len(longer) < len(members) and below and not (device and device.is_bridge):  # a document may contain this
            places.append(TreePlace(address=address, kind="device"))
        hidden = kind == "downstream" and not marks_of(view, address)
        places += (
            below
            if hidden
            else [TreePlace(address=address, kind="port" if kind == "downstream" else kind, below=below)]
        )
    return tuple(places)


def _bridge_kind(view: HostView, address: str) -> str:
    device = view.device(address)
    kinds = {"upstream-port": "switch", "downstream-port": "downstream"}
    return kinds.get((device and device.port_type) or "", "port")


def addresses_in(places: Iterable[TreePlace]) -> tuple[str, ...]:
    """Return every address of these trees, including bridges."""
    return tuple(address for place in places for address in (place.address, *addresses_in(place.below)))
