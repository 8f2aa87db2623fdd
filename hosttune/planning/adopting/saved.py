"""Adoptions as a part of a saved plan, and the same changes made again from there. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from hosttune.domain.edit import XmlText
from hosttune.model.plan import AdoptedChange, AdoptedGuest, Plan
from hosttune.planning.adopting.adoption import Adoptions
from hosttune.planning.adopting.changes import write_placement


def saved_plan(adopted: Adoptions, *, consent: bool = False) -> Plan:
    """Return the plan document of guests that were planned together.

    `consent`: the operator agreed to change them although another program manages them. Apply takes a guest only if its
    definition was what `read_definition` returned; a file may lack a UUID, which is then empty.
    """
    placed = (adoption.placement for adoption in adopted.guests if adoption.placement is not None)
    return replace(adopted.plan, guests=(), adoptions=tuple(replace(guest, consent=consent) for guest in placed))


def change_definition(
    xml: str, adopted: AdoptedGuest, *, where: str = "domain XML"
) -> tuple[str, tuple[AdoptedChange, ...]]:
    """Return the definition with the guest where the plan has it, and the changes. All else stays byte for byte.

    Raises BadInput if the text is not a domain XML.
    """
    text = XmlText(xml.encode(), where=where)
    changes = write_placement(text, adopted)
    return bytes(text).decode(), changes
