"""Cases of other planners about the guest's PCI tree and about fabric partitions (`cases/planner/conformance.json`)."""

from __future__ import annotations

import pytest
from planhosts import Card, Shape, build_host

from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import PciController, PlannedGuest
from hosttune.model.values import to_json
from hosttune.planning import plan

FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"


def _guest(nodes: dict[str, int]) -> PlannedGuest:
    """A guest with a cell on each of two nodes and these devices (address -> node)."""
    cards = [Card(address, node=node, group=n) for n, (address, node) in enumerate(nodes.items())]
    host = Host.from_json(to_json(build_host(Shape(cards=cards, memory_gib=64, cores_per_node=8))))
    cells = [{"vcpus": 4, "memory": "4GiB"}, {"vcpus": 4, "memory": "4GiB"}]
    guest = {"name": "g", "gpus": list(nodes), "numa": cells}
    (found,) = plan(host, Intent.from_json(to_json({"version": 1, "guests": [guest]}))).guests
    return found


def _of(guest: PlannedGuest, model: str) -> list[PciController]:
    return [controller for controller in guest.controllers if controller.model == model]


@pytest.mark.parametrize(("nodes", "least"), [({FIRST: 0}, 1), ({FIRST: 0, SECOND: 1}, 2)], ids=["kv-15", "kv-17"])
def test_devices_get_an_expander_bus_for_each_of_their_nodes(nodes: dict[str, int], least: int) -> None:
    guest = _guest(nodes)
    expanders = _of(guest, "pcie-expander-bus")
    assert len(expanders) >= least
    assert {expander.node for expander in expanders} >= {device.guest_cell for device in guest.devices}
    below = {expander.index: expander for expander in expanders}
    ports = [port for port in _of(guest, "pcie-root-port") if port.bus in below]
    assert len(ports) >= least
    # Every expander's numbers, its own and one for each port below it, are nobody else's and end at 255.
    taken: set[int] = set()
    for expander in expanders:
        assert expander.bus_nr is not None
        mine = set(range(expander.bus_nr, expander.bus_nr + 1 + sum(port.bus == expander.index for port in ports)))
        assert taken.isdisjoint(mine)
        assert max(mine) <= 255
        taken |= mine
