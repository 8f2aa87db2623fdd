"""The bundle: a table of what is wanted, the script that applies it at every boot, its unit, and their installer.

Scripts and unit are constant files; only the table holds values of the plan, each checked before it gets here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from hosttune.guest.nccl import FILE
from hosttune.guest.places import Place
from hosttune.guest.wanted import Wanted

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
    name: str, wanted: Wanted, devices: tuple[Place, ...], notes: tuple[str, ...], shown: Mapping[str, str]
) -> Mapping[str, str]:
    """File name → text, in the order of reading. All arguments are checked values: nothing is quoted here.

    `shown` are documents about the guest's own tree, whole: they are written as they are.
    """
    table = _render(f"{CONF}.j2", name=name, wanted=wanted, devices=devices, notes=notes)
    files = {INSTALL: _render(INSTALL), APPLY: _render(APPLY), CONF: table, UNIT: _render(UNIT), **shown}
    return files | {TMPFILES: _render(TMPFILES)} if FILE in shown else files


def notes_of(wanted: Wanted, devices: tuple[Place, ...]) -> tuple[str, ...]:
    """What is not done inside, in the order of the devices, each said once."""
    said = [place.maker.note for place in devices if place.gpu and place.maker.note]
    if wanted.power_limit_watts is not None and not any(place.tool != "-" for place in devices):
        said.append("a power limit is asked for, and no GPU of this guest takes one here")
    return tuple(dict.fromkeys(said))


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
