"""Which hosts of an inventory cannot be measured with others, and why. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from hosttune.model.fleet import Answer
from hosttune.model.listing import some
from hosttune.model.values import Value, grouped


class Planned(Value, frozen=True, kw_only=True):
    """A host of a plan. `outcome` other than ok: it is not measured, and why."""

    host: str
    outcome: str = "ok"
    why: str | None = None


PlannedT = TypeVar("PlannedT", bound=Planned)


def unanswered(answer: Answer) -> tuple[str, str]:
    """Return (outcome, why) of a host that gave no document."""
    return answer.outcome if answer.outcome != "ok" else "unknown", answer.why or "no document"


def with_guests(host: str, guests: Sequence[str] | None) -> str:
    """Return why a host with guests is not measured. `guests` None: they are unknown."""
    running = "unknown" if guests is None else f"running: {some(guests, 5)}"
    return f"its guests are {running}; --disrupt {host} would load its network"


def without_mistaken(
    hosts: Iterable[PlannedT], addresses: Mapping[str, Sequence[str]], said: Mapping[str, str | None]
) -> tuple[PlannedT, ...]:
    """Return the hosts, those not to be measured that a name or an address tells to be another one of the run.

    `addresses`: of each host; `said`: by host, the name that it gave.
    """
    faults = {host: ("other-name", why) for host, why in other_names(said).items()}
    faults |= {host: ("same-address", why) for host, why in shared_addresses(addresses).items()}
    return tuple(
        replace(member, outcome=faults[member.host][0], why=faults[member.host][1])
        if member.outcome == "ok" and member.host in faults
        else member
        for member in hosts
    )


def shared_addresses(addresses: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return why hosts are not measured that have an address which another has too. `addresses`: of each host."""
    owners = grouped((address, host) for host, own in addresses.items() for address in set(own))
    host_of = {}
    for host, own in addresses.items():
        shared = sorted(address for address in own if len(owners[address]) > 1)
        if shared:
            others = some(sorted({*owners[shared[0]]} - {host}), 3)
            host_of[host] = (
                f"{others} has its address {shared[0]} too: the same machine, or an address that is there twice"
            )
    return host_of


def other_names(said: Mapping[str, str | None]) -> dict[str, str]:
    """Return why hosts are not measured that call themselves as another host of the run is called: what is measured
    would be told of the wrong one. `said`: by host, the name that it gave. Domains are not compared."""
    known = {_short(host): host for host in said}
    return {
        host: f"it calls itself {name}, which is another host here: the inventory leads to the wrong machine"
        for host, name in said.items()
        if name and _short(name) != _short(host) and _short(name) in known
    }


def _short(name: str) -> str:
    return name.lower().partition(".")[0]


def other_machine(listed: str | None, machine: str | None, since: str) -> str | None:
    """Return why an answer is not that of the machine that was listed; None if it is, or if none was known then.

    `listed`, `machine`: the identities that it gave then and now; `since`: what was done then, in words.
    """
    if listed is None or listed == machine:
        return None
    if machine is None:
        return "it does not say any more which machine it is"
    return f"it was restarted, or another machine answers in its place, since {since}"


def unwatched(machines: Mapping[str, str | None]) -> Iterator[str]:
    """Yield which hosts did not say which machine they are: a restart, or another machine in their place, is not seen.

    `machines`: by host that is measured, the identity that it gave when it was listed.
    """
    silent = [host for host, machine in machines.items() if not machine]
    if silent:
        yield (
            f"{some(silent, 8)} did not say which machine they are (boot id): whether the same ones answered to the end"
            " is unknown"
        )


def groups_of_known_hosts(groups: Iterable[Sequence[str]], known: Iterable[str]) -> str | None:
    """Return what is wrong with groups that measure at once: a host that is not known, or that is there twice."""
    there, seen = set(known), set[str]()
    for host in (host for group in groups for host in group):
        if host not in there or host in seen:
            return (
                f"host {host[:60]!r} is {'twice in one step' if host in seen else 'in a step, and not to be measured'}"
            )
        seen.add(host)
    return None
