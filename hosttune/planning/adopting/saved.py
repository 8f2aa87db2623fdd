"""An adoption as a part of a saved plan, and the same changes made again from there. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from hosttune.domain.definitions import digest_of
from hosttune.domain.edit import XmlText
from hosttune.domain.reader import read_domain
from hosttune.model.plan import AdoptedCell, AdoptedChange, AdoptedGuest, Plan, PlannedPin
from hosttune.model.values import parse_cpus
from hosttune.planning.adopting.adoption import Adoption, Adoptions
from hosttune.planning.adopting.changes import Change, Placement, write_placement


def saved_plan(adopted: Adoptions, *, consent: bool = False) -> Plan:
    """Return the plan document of guests that were planned together (`adopted_guest`)."""
    placed = (one for one in adopted.guests if one.placement is not None)
    return replace(adopted.plan, guests=(), adoptions=tuple(adopted_guest(one, consent=consent) for one in placed))


def adopted_guest(adoption: Adoption, *, consent: bool = False) -> AdoptedGuest:
    """Return the part of a plan that applies an adoption of a guest that libvirt has.

    `consent`: the operator agreed to change it although another program manages it. The adoption has a placement. Apply
    takes it only if it was made from what `read_definition` returned; a file may lack a UUID, which is then empty.
    """
    facts = read_domain(adoption.before)
    placement = adoption.placement
    if placement is None:
        raise ValueError(f"guest {adoption.name} has no place")
    return AdoptedGuest(
        name=adoption.name,
        uuid=facts.uuid or "",
        definition_sha256=digest_of(adoption.before.decode("utf-8", "replace")),
        changes=tuple(_saved(change) for change in adoption.changes),
        guest=placement.guest,
        pins=tuple(PlannedPin(vcpu=vcpu, cpus=str(cpu)) for vcpu, cpu in sorted(placement.pins.items())),
        cells=tuple(AdoptedCell(id=number, cell=cell) for number, cell in placement.cells),
        foreign_cpus=str(placement.foreign),
        managers=adoption.managers,
        consent=consent,
    )


def change_definition(xml: str, adopted: AdoptedGuest, *, where: str = "domain XML") -> tuple[str, tuple[Change, ...]]:
    """Return the definition with the guest where the plan has it, and the changes. All else stays byte for byte.

    Raises BadInput if the text is not a domain XML.
    """
    text = XmlText(xml.encode(), where=where)
    pins = {pin.vcpu: int(pin.cpus) for pin in adopted.pins}
    cells = tuple((one.id, one.cell) for one in adopted.cells)
    changes = write_placement(
        text, read_domain(xml, where=where), Placement(adopted.guest, pins, cells, parse_cpus(adopted.foreign_cpus))
    )
    return bytes(text).decode(), changes


def _saved(change: Change) -> AdoptedChange:
    return AdoptedChange(
        element=change.element, was=change.was, becomes=change.becomes, why=change.why, effect=change.effect
    )
