"""Judge a PCIe link by what both of its ends can do: full, by design, degraded, idle or unknown, and why.

Pure: takes functions that `pci_function` read. lspci's word "downgraded" looks at one end only; a Gen5 port above a
Gen4 drive is not a fault. The figures of a root port or downstream port are those of the link *below* it. The figures
of an endpoint, an upstream port or a PCI bridge are those of the link above it. Inside a switch (upstream to downstream
port) and inside the root complex there is no link.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import asdict, replace

from hosttune.discovery.pci_function import Figures, Function
from hosttune.gpu.idling import IDLING_DRIVERS
from hosttune.model import pciclass
from hosttune.model.host import Link, LinkEnd
from hosttune.model.pci import link_shape
from hosttune.model.values import grouped, slot_of

_BRIDGES_FACE_DOWN = {"pci-to-pcie-bridge": True, "pcie-to-pci-bridge": False}
_ON_NO_LINK = ("root-complex-endpoint", "root-complex-event-collector")
_QEMU_VENDOR = "1b36"

Verdict = tuple[str, str]


class Links:
    """All functions, and the functions below each port. `of` returns a function's link."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = functions
        self._below = grouped(
            (function.parent, function) for function in functions.values() if function.parent is not None
        )

    def of(self, function: Function) -> Link | None:
        """Return the function's link with the port above; None if it reports none.

        A virtual function has its PF's link.
        """
        if function.physfn is not None and function.physfn in self._functions:
            link = self.of(self._functions[function.physfn])
            if link is None:
                return None
            why = f"the link of the physical function {function.physfn}: {link.why}"
            return replace(link, why=why)
        figures = function.figures
        if figures.silent or function.config.port_type in _ON_NO_LINK:
            if function.power_state != "D3cold" or "current_link_speed" not in function.names:
                return None
            return Link(state="unknown", why="in D3cold: not read, that would wake it")
        if self._is_above_link(function):
            state, why = self._below_port(function)
            return _link(function, None, state, why)
        above = self._functions.get(function.parent or "")
        port = above if above is not None and self._is_above_link(above) else None
        state, why = self._judge(function, port)
        return _link(function, port, state, why)

    def _is_above_link(self, function: Function) -> bool:
        """Return whether the link is below the function.

        Ports alternate along the tree, and that overrides a wrong or unread port type (as in the kernel's
        set_pcie_port_type()): a port below a link faces up, a port below an upstream port faces down.
        """
        kind = function.config.port_type
        if kind in _BRIDGES_FACE_DOWN or not (function.class_code or "").startswith(pciclass.PCI_BRIDGE):
            return _BRIDGES_FACE_DOWN.get(kind or "", False)
        above = self._functions.get(function.parent or "")
        return kind != "upstream-port" if above is None else not self._is_above_link(above)

    def _judge(self, function: Function, port: Function | None) -> Verdict:
        """Judge the link of a function's slot.

        If a slot has several functions, the first one shows what the slot can do.
        """
        first = self._functions.get(f"{slot_of(function.address)}.0")
        lead = first if first is not None and first is not function and not first.figures.silent else None
        return judge(function, port, lead, self._why_slow(function))

    def _why_slow(self, function: Function) -> str | None:
        """Return why the link above a function may run at a lower speed now; None if nothing lowers it.

        A card's own switch has its maker's id, and its link is slowed with that of the GPU below it.
        """
        if function.resting:
            return f"{function.address} is {'in D3hot' if function.power_state == 'D3hot' else 'suspended'}"
        kind = function.class_code or ""
        if kind.startswith(pciclass.GPUS) and function.driver in IDLING_DRIVERS:
            return f"{function.driver} may slow an idle link"
        below = self._below.get(function.address, ()) if kind.startswith(pciclass.PCI_BRIDGE) else ()
        return next((why for f in below if f.vendor == function.vendor and (why := self._why_slow(f))), None)

    def _below_port(self, port: Function) -> Verdict:
        """Judge a port's link by the first function below it, so that both ends of a link get the same state."""
        below = [f for f in self._below.get(port.address, ()) if not f.figures.silent and f.physfn is None]
        if not below:
            return "unknown", "nothing answers below the port"
        state, why = self._judge(below[0], port)
        if state in ("full", "by-design"):
            if _at_most(port.figures):
                return "full", "runs at the port's most"
            return "by-design", f"{below[0].address} below can do {_most(below[0].figures)}"
        return state, why


def judge(device: Function, port: Function | None, lead: Function | None, why_slow: str | None) -> Verdict:
    """Return the state and the reason for the link between a function and the port above it (None: not visible).

    `lead` is function 0 of the same slot, if `device` is another function: a function may claim more lanes than the
    slot has. `why_slow`: why its speed may be lower now; the width never is.
    """
    own = device.figures
    if own.speed_gts is None or own.width is None or own.max_speed_gts is None or own.max_width is None:
        return "unknown", "the link reports no speed or width: not trained, or not readable"
    if port is None or port.figures.max_speed_gts is None or port.figures.max_width is None:
        return _alone(
            own, "no port above: the other end is not visible" if port is None else f"{port.address} is silent"
        )
    if port.vendor == _QEMU_VENDOR:
        return _alone(own, f"{port.address} is a virtual port: the real other end is not visible")
    if own.speed_gts > port.figures.max_speed_gts or own.width > port.figures.max_width:
        return _alone(own, f"{port.address} claims less than what runs ({_most(port.figures)}): not the real other end")
    best_speed, best_width = _best(own, port, lead)
    if own.speed_gts < best_speed or own.width < best_width:
        best = link_shape(best_speed, best_width)
        lower = f"{_now(own)} of {best}, which both ends ({device.address}, {port.address}) can do"
        if own.width == best_width and why_slow:
            return "idle", f"{lower}; {why_slow}: read it again under load"
        return "degraded", lower
    if _at_most(own):
        return "full", "runs at the device's most"
    if _best(own, port, None) == (own.speed_gts, own.width):
        return "by-design", f"{port.address} above can do {_most(port.figures)}"
    return "by-design", f"the slot can do {link_shape(best_speed, best_width)}"


def _best(own: Figures, port: Function, lead: Function | None) -> tuple[float, int]:
    """Return the highest speed and width that all known ends support."""
    ends = [own, port.figures] + ([lead.figures] if lead is not None else [])
    speeds = [end.max_speed_gts for end in ends if end.max_speed_gts is not None]
    widths = [end.max_width for end in ends if end.max_width is not None]
    return min(speeds), min(widths)


def _alone(own: Figures, reason: str) -> Verdict:
    """Judge a link from one end only. At its maximum it is full; anything lower cannot be explained."""
    if _at_most(own):
        return "full", f"runs at the device's most; {reason}"
    return "unknown", f"{_now(own)} of {_most(own)}; {reason}"


def _at_most(figures: Figures) -> bool:
    return figures.speed_gts == figures.max_speed_gts and figures.width == figures.max_width


def _now(figures: Figures) -> str:
    return link_shape(figures.speed_gts, figures.width)


def _most(figures: Figures) -> str:
    return link_shape(figures.max_speed_gts, figures.max_width)


def _link(function: Function, port: Function | None, state: str, why: str) -> Link:
    end = None if port is None else LinkEnd(address=port.address, **asdict(port.figures))
    reported = function.reported_figures or None
    return Link(**asdict(function.figures), upstream=end, state=state, why=why, told=reported)
