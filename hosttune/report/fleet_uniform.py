"""Uniformity of a fleet, in words: which facts differ, and who differs from the majority."""

from __future__ import annotations

from hosttune.model.configuration import KERNEL_ARGUMENTS, argument_difference
from hosttune.model.declared import Checked
from hosttune.model.fleet import FleetReport, Holder, Spread, State, ValueGroup
from hosttune.model.listing import some
from hosttune.report.blocks import Entries, Report, TitledFacts
from hosttune.report.outcomes import SIGNS, Mark

STATE_WORDS: dict[State, str] = {
    "differs": "differing",
    "split": "without majority",
    "unknown": "not known everywhere",
    "single": "on one host or device only",
    "alike": "alike",
}
MOST_DEVICES = 8  # of a host, by address
MOST_VALUE = 160  # characters of a value in a line; JSON has all


def machine_text(spread: Spread) -> str:
    """Return the machine model: "PowerEdge XE9680 with NVIDIA H200"."""
    gpus = ", ".join(spread.gpu_models)
    return (spread.product or "machines of unknown model") + (f" with {gpus}" if gpus else "")


def fact_text(spread: Spread) -> str:
    """Return the fact, and the devices that it is of: "vbios of NVIDIA H200 (10de:2335 10de:18be)"."""
    if spread.kind is None:
        return f"{spread.fact} of {spread.model} (ids unknown)" if spread.model else spread.fact
    return f"{spread.fact} of {spread.model} ({spread.kind})" if spread.model else f"{spread.fact} of {spread.kind}"


def majority_text(spread: Spread) -> str:
    """Return the majority with its size, or why there is none. A tie is said."""
    if spread.majority is not None:
        size = next(group.subjects for group in spread.groups if group.value == spread.majority)
        return f"majority {_cut(spread.majority)} ({size} of {spread.known} known)"
    if spread.product is None:
        return "the product name is unknown: not compared"
    if not spread.groups:
        return "not known anywhere"
    sizes = [group.subjects for group in spread.groups]
    if spread.state == "split":
        tie = len(sizes) > 1 and sizes[0] == sizes[1]
        return f"no majority: {'a tie, ' if tie else ''}{some((f'{size} x' for size in sizes), 6)}"
    return f"nothing to compare with: {_cut(spread.groups[0].value)}"


def group_text(spread: Spread, group: ValueGroup) -> str:
    """Return a value; of kernel arguments, how they differ from the majority."""
    if spread.fact != KERNEL_ARGUMENTS or spread.majority is None:
        return _cut(group.value)
    more, less = argument_difference(group.value, spread.majority)
    parts = [f"adds {' '.join(more)}"] if more else []
    parts += [f"lacks {' '.join(less)}"] if less else []
    return _cut("; ".join(parts) or "the same arguments in another order")


def holder_text(holder: Holder) -> str:
    """Return a host with its devices: "gpu7 (0000:18:00.0)"."""
    return f"{holder.host} ({some(holder.subjects, MOST_DEVICES)})" if holder.subjects else holder.host


def others(spread: Spread) -> tuple[ValueGroup, ...]:
    """Return the values that are not the majority's."""
    return tuple(group for group in spread.groups if group.holders)


def notable(report: FleetReport) -> tuple[Spread, ...]:
    """Return the facts that a reader must look at, by machine model."""
    spreads = (spread for spread in report.uniformity if spread.state not in ("alike", "single"))
    return tuple(sorted(spreads, key=machine_text))


def some_unknown(spread: Spread) -> tuple[Holder, ...]:
    """Return the hosts that do not say it, if any other does: "not known anywhere" names nobody."""
    return spread.unknown if spread.groups else ()


def few_without(spread: Spread) -> tuple[str, ...]:
    """Return the hosts without such a device, if they are not more than half: there one may be missing."""
    return spread.without if 2 * len(spread.without) <= spread.hosts else ()


def _cut(text: str) -> str:
    return text if len(text) <= MOST_VALUE else f"{text[:MOST_VALUE]} …"


# --- against a declared baseline -------------------------------------------------------------------------------
# The report of a run against a declared baseline: which hosts are not as declared, and in what.

MOST_RESULTS = 12  # of a host; JSON has every one


def checked_report(checked: Checked) -> Report:
    """Return the hosts that are not as declared."""
    entries = []
    for host in checked.hosts:
        if host.verdict == "pass":
            continue
        facts = []
        for result in host.results[:MOST_RESULTS]:
            place = "" if result.subject == "host" else f" {result.subject}"
            what = f"{result.check.removeprefix('declared-')}{place}: {result.actual}, declared {result.expected}"
            facts.append(("", f"{SIGNS[result.outcome]} {what}"))
        more = len(host.results) - MOST_RESULTS
        facts += [("", f"and {more} more")] if more > 0 else []
        entries.append(TitledFacts(title=host.host, mark=Mark(host.verdict, host.verdict), facts=tuple(facts)))
    return Report(
        kind="A fleet against its declared baseline",
        verdict=checked.verdict,
        word=checked.verdict.upper(),
        headline=checked.headline,
        blocks=(Entries(heading="Not as declared", parts=tuple(entries), numbered=False),),
    )
