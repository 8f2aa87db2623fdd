"""The bundle: a table of wanted settings, the script that applies it at every boot, its unit, and their installer.

Scripts and unit are constant files. Only the table has values from the plan; each was checked before.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from hosttune.assets import templates
from hosttune.guest.libraries import nics_of
from hosttune.guest.nccl import FILE
from hosttune.guest.places import PassedDevice
from hosttune.guest.wanted import WantedInside
from hosttune.model.guestplan import ExpectedLibrary

if TYPE_CHECKING:
    from jinja2 import Environment

CONF = "hosttune-guest.conf"
APPLY = "hosttune-guest-apply"
UNIT = "hosttune-guest.service"
INSTALL = "install.sh"
TMPFILES = "hosttune-guest.tmpfiles"
EXPECTED = "expected.json"
EXECUTABLE = frozenset((APPLY, INSTALL))


def make_bundle(
    name: str,
    wanted: WantedInside,
    devices: tuple[PassedDevice, ...],
    notes: tuple[str, ...],
    shown: Mapping[str, str],
    library: ExpectedLibrary | None = None,
) -> Mapping[str, str]:
    """Return the bundle's files (name → text), in the order in which to read them.

    All arguments are checked values: nothing is quoted here. `shown` are complete documents about the guest's PCI tree,
    which are written unchanged.
    """
    nics = nics_of(library, devices)
    table = _render(f"{CONF}.j2", name=name, wanted=wanted, devices=devices, notes=notes, library=library, nics=nics)
    files = {INSTALL: _render(INSTALL), APPLY: _render(APPLY), CONF: table, UNIT: _render(UNIT), **shown}
    return files | {TMPFILES: _render(TMPFILES)} if FILE in shown else files


def notes_of(wanted: WantedInside, devices: tuple[PassedDevice, ...]) -> tuple[str, ...]:
    """Return what is not applied inside the guest, in the order of the devices, each note once."""
    notes = [place.maker.note for place in devices if place.gpu and place.maker.note]
    if wanted.power_limit_watts is not None and not any(place.tool != "-" for place in devices):
        notes.append("a power limit is asked for, and no GPU of this guest takes one here")
    return tuple(dict.fromkeys(notes))


def _render(template: str, **values: object) -> str:
    return _templates().get_template(template).render(**values)


@cache
def _templates() -> Environment:
    return templates("guest", autoescape=False)  # not markup; every value is checked against a pattern before
