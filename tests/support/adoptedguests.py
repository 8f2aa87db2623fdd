"""Domain XML of guests as people write them: floating, badly pinned, bound to odd nodes; for tests of adoption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from planhosts import Card, Shape, build_host, cores_of, small_shapes

GIB = 1 << 30


@dataclass(frozen=True)
class Guest:
    """What its definition says. `pins`: host CPUs of each vCPU; a vCPU without an entry floats.

    `node`: the host node that its memory is bound to; `runs`: None = the host does not have it.
    """

    name: str = "old"
    vcpus: int = 4
    gib: int = 1
    devices: tuple[str, ...] = ()
    pins: Mapping[int, str] | None = None
    emulator: str | None = None
    iothreads: int = 0
    node: int | None = None
    huge: bool = False
    runs: bool | None = None
    metadata: str = '<own:note xmlns:own="urn:own">kept &amp; left</own:note>'

    @property
    def uuid(self) -> str:
        """A UUID of its own for each name."""
        return str(UUID(bytes=self.name.encode().ljust(16, b"-")[:16]))

    @property
    def xml(self) -> str:
        """The definition, with a comment, odd quotes and an element that hosttune does not know."""
        pins = [f"    <vcpupin vcpu='{vcpu}' cpuset='{cpus}'/>" for vcpu, cpus in (self.pins or {}).items()]
        pins += [f"    <emulatorpin cpuset='{self.emulator}'/>"] if self.emulator else []
        tune = ["  <cputune>", "    <shares>2048</shares>", *pins, "  </cputune>"] if pins else []
        bound = f"  <numatune><memory mode='preferred' nodeset='{self.node}'/></numatune>"
        lines = [
            "<domain type='kvm'>",
            f"  <!-- {self.name}, by hand -->",
            f"  <name>{self.name}</name>",
            f"  <uuid>{self.uuid}</uuid>",
            f"  <metadata>{self.metadata}</metadata>",
            f"  <memory unit='GiB'>{self.gib}</memory>",
            *(["  <memoryBacking><hugepages><page size='2' unit='MiB'/></hugepages></memoryBacking>"] * self.huge),
            f"  <vcpu>{self.vcpus}</vcpu>",
            *([f"  <iothreads>{self.iothreads}</iothreads>"] * bool(self.iothreads)),
            *tune,
            *([bound] * (self.node is not None)),
            '  <os ><type arch="x86_64" machine="q35">hvm</type></os>',
            "  <devices>",
            *(line for address in self.devices for line in _hostdev(address)),
            "    <unheard-of kept='yes'/>",
            "  </devices>",
            "</domain>",
            "",
        ]
        return "\n".join(lines)

    @property
    def resident(self) -> dict[str, Any]:
        """The guest in the document of its host."""
        pins = [{"vcpu": vcpu, "cpus": cpus} for vcpu, cpus in (self.pins or {}).items()]
        return {
            "name": self.name,
            "uuid": self.uuid,
            "state": "running" if self.runs else "shut off",
            "vcpus": self.vcpus,
            "vcpu_pins": pins,
            "emulator_cpus": self.emulator,
            "memory_bytes": self.gib * GIB,
            "memory": [{"node": self.node, "memory_bytes": self.gib * GIB, "page_bytes": None}],
            "devices": list(self.devices),
        }


def _hostdev(address: str) -> Sequence[str]:
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    place = f"domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'"
    head = "    <hostdev mode='subsystem' type='pci' managed='yes'>"
    return head, f"      <source><address {place}/></source>", "    </hostdev>"


def host_with(shape: Shape, guests: Sequence[Guest]) -> dict[str, Any]:
    """The document of a host of that shape that has the guests."""
    document = build_host(shape)
    document["guests"] += [guest.resident for guest in guests if guest.runs is not None]
    return document


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Shape, tuple[Guest, ...]]:
    """A host, and up to five guests that are defined for it: they may have the same CPUs, but no device in common."""
    shape = draw(small_shapes())
    cards = (Card(f"0000:e{n}:00.0", draw(st.integers(0, shape.nodes - 1)), kind="nic", group=90 + n) for n in range(3))
    shape = replace(shape, cards=(*shape.cards, *cards))
    cpus = [cpu for node in range(shape.nodes) for core in cores_of(shape, node) for cpu in core]
    online = [cpu for cpu in cpus if cpu not in shape.offline]
    held = {address for guest in shape.guests for address in guest.devices}
    left = [card.address for card in shape.cards if not card.boot_display and card.address not in held]
    guests = []
    for number in range(draw(st.integers(1, 5))):
        vcpus = draw(st.integers(1, 6))
        taken = [left.pop() for _ in range(min(len(left), draw(st.integers(0, 2))))]
        one = st.sampled_from(online).map(str)
        apart = st.permutations(online).map(lambda cpus: [str(cpu) for cpu in cpus])
        pins = draw(st.one_of(st.none(), st.lists(one, min_size=vcpus, max_size=vcpus), apart))
        guests.append(
            Guest(
                name=f"g{number}",
                vcpus=vcpus,
                gib=draw(st.sampled_from([1, 2, 8])),
                devices=tuple(taken),
                pins=None if pins is None else dict(enumerate(pins[:vcpus])),
                emulator=draw(st.one_of(st.none(), one)),
                iothreads=draw(st.integers(0, 2)),
                node=draw(st.one_of(st.none(), st.integers(0, shape.nodes - 1))),
                huge=draw(st.booleans()),
                runs=draw(st.sampled_from([None, True, False])),
            )
        )
    return shape, tuple(guests)
