"""A guest defined by hand, with what an apply must not lose or show, and the plan that adopts it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hosttune.domain.definitions import digest_of, managers_of
from hosttune.domain.edit import XmlText
from hosttune.domain.reader import read_domain
from hosttune.model.plan import AdoptedCell, AdoptedGuest, Cell, PlannedGuest, PlannedPin
from hosttune.planning.adopting import change_definition

SECRET = "geheim<7"
BY_HAND = """<domain type='kvm'>
  <name>byhand</name>
  <uuid>c7a5fdbd-edaf-9455-926a-d65c16db1809</uuid>
  <metadata>
    <own:note xmlns:own='urn:own' at='7'>kept</own:note>
  </metadata>
  <memory unit='KiB'>131072</memory>
  <currentMemory unit='KiB'>131072</currentMemory>
  <vcpu placement='static'>2</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
  </os>
  <features>
    <acpi/>
  </features>
  <devices>
    <graphics type='vnc' port='-1' autoport='yes' passwd='geheim&lt;7' passwdValidTo='2030-01-01T00:00:00'/>
  </devices>
</domain>
"""


def adopted_by_hand(
    xml: str, *, cpus: Sequence[int] = (4, 5), node: int = 0, emulator: str = "0-1", consent: bool = False
) -> AdoptedGuest:
    """The saved form of a guest without devices, in one cell, on these host CPUs."""
    facts = read_domain(xml)
    pins = tuple(PlannedPin(vcpu=vcpu, cpus=str(cpu)) for vcpu, cpu in enumerate(cpus))
    cell = Cell(id=0, vcpus=f"0-{len(cpus) - 1}", memory_bytes=facts.memory_bytes or 0, host_nodes=str(node))
    assert facts.name
    assert facts.uuid
    found = AdoptedGuest(
        name=facts.name,
        uuid=facts.uuid,
        definition_sha256=digest_of(xml),
        changes=(),
        guest=PlannedGuest(
            name=facts.name, vcpu_pins=pins, emulator_cpus=emulator, cells=(cell,), page_bytes=None, uuid=facts.uuid
        ),
        pins=pins,
        cells=(AdoptedCell(id=0, cell=cell),),
        foreign_cpus=",".join(map(str, cpus)),
        managers=managers_of(XmlText(xml.encode())),
        consent=consent,
    )
    return with_changes(found, xml)


def with_changes(adopted: AdoptedGuest, xml: str) -> AdoptedGuest:
    """The same, with the changes that it makes of a definition."""
    return replace(adopted, changes=change_definition(xml, adopted)[1])
