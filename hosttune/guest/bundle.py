"""The bundle: a table of wanted settings, the script that applies it at every boot, its unit, and their installer.

Scripts and unit are constant files. Only the table has values from the plan; each was checked before.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from hosttune.assets import templates
from hosttune.gpu import inside
from hosttune.gpu.inside import Inside
from hosttune.guest.nccl import FILE, is_gpu, is_nic, topology
from hosttune.guest.places import PassedDevice, ids_of
from hosttune.guest.wanted import WantedInside
from hosttune.model.guestplan import ExpectedLibrary
from hosttune.model.networkintent import Roce
from hosttune.model.plan import PlannedGuest

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


# --- libraries ------------------------------------------------------------------------------------------------

# NCCL reads ~/.nccl.conf and then /etc/nccl.conf, RCCL its own files, and neither replaces what is set (NVIDIA/nccl,
# src/misc/param.cc; RCCL environment variables). The names of RDMA devices are the guest's own: its kernel and udev
# choose them. So the plan has PCI addresses, and `hosttune-guest-apply` writes the names that they have at each boot.

TOPOLOGY = "/etc/hosttune-guest/virtualTopology.xml"  # where the bundle installs it


def library(guest: PlannedGuest, roce: Roce | None = None) -> ExpectedLibrary | None:
    """Return the file and its NICs. None if no library of the guest's GPUs has such a file, or two makers' have.

    A network of the guest's own is one for the library's sockets where it is the only one and on a bridge: a network of
    libvirt may be behind address translation, which other hosts do not get through. `roce`: what the intent declares.
    """
    if topology(guest) is None:
        return None
    makers: list[Inside] = [inside(ids_of(device).partition(":")[0]) for device in guest.devices if is_gpu(device)]
    files = {maker.library_file for maker in makers if maker.library_file is not None}
    if len(files) != 1:
        return None
    own = [device for device in guest.devices if is_nic(device)]
    named = roce.addresses if roce is not None else ()
    declared = roce is not None and bool(own) and (named is None or {device.address for device in own} <= set(named))
    return ExpectedLibrary(
        path=files.pop(),
        topology=TOPOLOGY,
        nics=tuple(device.guest_address for device in own),
        own_network=len(guest.networks) == 1 and guest.networks[0].bridge is not None,
        traffic_class=roce.traffic_class if roce is not None and declared else None,
    )


def nics_of(expected_library: ExpectedLibrary | None, devices: tuple[PassedDevice, ...]) -> tuple[PassedDevice, ...]:
    """Return the places of the library's NICs, in the plan's order."""
    wanted = frozenset(expected_library.nics) if expected_library is not None else frozenset[str]()
    return tuple(place for place in devices if place.address in wanted)
