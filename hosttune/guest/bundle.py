"""The bundle: a table of what is wanted, the script that applies it at every boot, its unit, and their installer.

Scripts and unit are constant files; only the table (and comments) hold values of the plan, each checked before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from hosttune.errors import BadInput
from hosttune.guest.places import Place, places
from hosttune.guest.wanted import Wanted, read_wanted
from hosttune.model.plan import Plan, PlannedGuest
from hosttune.model.values import Value, close_mappings

if TYPE_CHECKING:
    from jinja2 import Environment

CONF = "hosttune-guest.conf"
APPLY = "hosttune-guest-apply"
UNIT = "hosttune-guest.service"
INSTALL = "install.sh"
EXECUTABLE = frozenset((APPLY, INSTALL))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class GuestFiles(Value, frozen=True, kw_only=True):
    """The files of one guest: the `bundle` (file name → text) and the cloud-init seed that carries it.

    `name` is checked: it is safe as a path of its own. `notes` say what is not done, and why.
    """

    name: str
    bundle: Mapping[str, str]
    meta_data: str
    user_data: str
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        close_mappings(self, "bundle")


def guest_files(plan: Plan, name: str) -> GuestFiles:
    """The files that the guest `name` of a plan needs inside; the same plan gives the same files.

    Raises BadInput for a guest that the plan does not place, and for a value of the plan that cannot be: a name with
    other characters than letters, digits, '.', '_' and '-', a malformed address, an unknown setting.
    """
    from hosttune.guest.seed import meta_data, user_data

    guest = next((guest for guest in plan.guests if guest.name == name), None)
    if guest is None:
        placed = ", ".join(guest.name for guest in plan.guests) or "none"
        raise BadInput(f"the plan places no guest named {name!r}", where="plan: guests", hint=f"it places {placed}")
    _check(guest)
    wanted = read_wanted(guest)
    devices = places(guest)
    notes = _notes(wanted, devices)
    bundle = _bundle(guest, wanted, devices, notes)
    user = user_data(bundle)
    return GuestFiles(
        name=guest.name,
        bundle=bundle,
        meta_data=meta_data(guest.name, guest.uuid, user),
        user_data=user,
        notes=notes,
    )


def _check(guest: PlannedGuest) -> None:
    where = f"plan: guests[{guest.name!r}]"
    if not _NAME.fullmatch(guest.name):
        raise BadInput(
            f"{guest.name!r} is not a guest name",
            where=f"{where}.name",
            hint="use letters, digits, '.', '_' and '-'; at most 64, the first a letter or digit",
        )
    if guest.uuid is not None and not _UUID.fullmatch(guest.uuid):
        raise BadInput(f"{guest.uuid!r} is not a UUID", where=f"{where}.uuid", hint="plan the guest again")


def _notes(wanted: Wanted, devices: tuple[Place, ...]) -> tuple[str, ...]:
    """What is not done inside, in the order of the devices, each said once."""
    said = [place.maker.note for place in devices if place.endpoint and place.maker.note]
    if wanted.power_limit_watts is not None and not any(place.tool != "-" for place in devices):
        said.append("a power limit is asked for, and no GPU of this guest takes one here")
    return tuple(dict.fromkeys(said))


def _bundle(
    guest: PlannedGuest, wanted: Wanted, devices: tuple[Place, ...], notes: tuple[str, ...]
) -> Mapping[str, str]:
    table = _render(f"{CONF}.j2", guest=guest, wanted=wanted, devices=devices, notes=notes)
    return {
        INSTALL: _render(INSTALL),
        APPLY: _render(APPLY),
        CONF: table,
        UNIT: _render(UNIT),
    }


def _render(template: str, **values: object) -> str:
    return _templates().get_template(f"guest/{template}").render(**values)


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from hosttune.assets import folder

    return Environment(
        loader=FileSystemLoader(folder("templates")),
        undefined=StrictUndefined,
        autoescape=False,  # no markup: every value is checked against a pattern before it gets here
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
