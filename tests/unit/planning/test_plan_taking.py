"""A host of which a planned guest has taken its part is what reading it anew would give, once the guest is defined."""

from __future__ import annotations

import random

import msgspec
import pytest
from batch_cases import case

from hosttune.domain.defined import as_planned
from hosttune.inventory.sizing import PlanningContext, read_field
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.values import to_json
from hosttune.planning import plan
from hosttune.planning.guest.reserve import take

SEEDS = range(40)


def _planned(seed: int) -> tuple[Host, Intent]:
    found = case(seed)
    return Host.from_json(to_json(found.host)), Intent.from_json(to_json(found.intent))


def _seen(field: PlanningContext) -> object:
    """All that planning reads of a field, but for the housekeeping that no guest may move."""
    nodes = {
        node.id: ([core.id for core in node.free], str(node.free_threads), [core.id for core in node.reserved])
        for node in field.resources.nodes.values()
    }
    memory = {
        n: (m.creatable_bytes, m.assignable_bytes, {page: m.pages_free(page) for page in m.pools})
        for n, m in field.memory.items()
    }
    return nodes, memory, dict(field.catalogue.holders), str(field.resources.pinned), field.host.guests


@pytest.mark.parametrize("seed", SEEDS)
def test_taking_is_reading_the_host_with_the_guest(seed: int) -> None:
    host, intent = _planned(seed)
    # A defined guest without pages of its own looks like one whose pages are unknown: it may hold some of any pool.
    guests = [guest for guest in plan(host, intent).guests if guest.page_bytes]
    random.Random(seed).shuffle(guests)
    field = read_field(host, intent.reserve)
    for guest in guests:
        field = take(field, guest)
        anew = msgspec.structs.replace(host, guests=field.host.guests)
        assert _seen(field) == _seen(read_field(anew, intent.reserve)), guest.name
    held = [entry.name for entry in host.guests or ()]
    assert [entry.name for entry in field.host.guests or ()] == [*held, *(guest.name for guest in guests)]


def test_a_defined_guest_is_what_the_plan_says() -> None:
    host, intent = _planned(3)
    guest = plan(host, intent).guests[0]
    entry = as_planned(guest)
    assert (entry.name, entry.state, entry.devices) == (guest.name, "shut off", tuple(d.address for d in guest.devices))
    assert entry.memory_bytes == sum(cell.memory_bytes for cell in guest.cells)
    assert [pin.cpus for pin in entry.vcpu_pins or ()] == [pin.cpus for pin in guest.vcpu_pins]
