"""The files of one guest: as a value, and as the bytes that the applier writes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hosttune.errors import BadInput
from hosttune.guest.bundle import EXPECTED, make_bundle, notes_of
from hosttune.guest.expected import expected
from hosttune.guest.iso import make_image
from hosttune.guest.libraries import library
from hosttune.guest.nccl import FILE, topology
from hosttune.guest.places import places
from hosttune.guest.seed import VOLUME, meta_data, user_data
from hosttune.guest.treecheck import check_tree
from hosttune.guest.wanted import read_wanted
from hosttune.model.intent import is_guest_name
from hosttune.model.plan import Plan
from hosttune.model.values import Value, close_mappings

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class GuestFiles(Value, frozen=True, kw_only=True):
    """The files of one guest: the `bundle` (file name → text) and the cloud-init seed that contains it.

    `name` is checked: it is safe as a single part of a path. `notes` say which settings are not applied, and why.
    """

    name: str
    bundle: Mapping[str, str]
    meta_data: str
    user_data: str
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        close_mappings(self, "bundle")


def guest_files(plan: Plan, name: str) -> GuestFiles:
    """Return the files that the guest `name` of a plan needs inside. The same plan gives the same files.

    Raises BadInput for a guest that the plan does not place, and for an impossible value in the plan: a name with
    characters other than letters, digits, '.', '_' and '-', a malformed address, an unknown setting.
    """
    guest = plan.guest(name)
    where = f"plan: guests[{guest.name!r}]"
    if not is_guest_name(guest.name):
        raise BadInput(
            f"{guest.name!r} is not a guest name",
            where=f"{where}.name",
            hint="use letters, digits, '.', '_' and '-'; at most 64, the first a letter or digit",
        )
    if guest.uuid is not None and not _UUID.fullmatch(guest.uuid):
        raise BadInput(f"{guest.uuid!r} is not a UUID", where=f"{where}.uuid", hint="plan the guest again")
    wanted = read_wanted(guest)
    devices = places(guest)
    notes = notes_of(wanted, devices)
    roce = plan.intent.fabric.roce if plan.intent.fabric is not None else None
    check_tree(guest)
    found = {EXPECTED: expected(guest, roce).to_json()}
    text = topology(guest)
    bundle = make_bundle(
        guest.name, wanted, devices, notes, found if text is None else found | {FILE: text}, library(guest, roce)
    )
    user = user_data(bundle)
    return GuestFiles(
        name=guest.name,
        bundle=bundle,
        meta_data=meta_data(guest.name, guest.uuid, user),
        user_data=user,
        notes=notes,
    )


def seed_image(files: GuestFiles) -> bytes:
    """Return the seed as an ISO 9660 image labelled `cidata`, with Rock Ridge and Joliet names.

    The same files give the same bytes.
    """
    return make_image(VOLUME, {"meta-data": files.meta_data.encode(), "user-data": files.user_data.encode()})


def write_plan(files: GuestFiles) -> Mapping[str, bytes]:
    """Return every file of a guest by its path in the guest's folder: the seed, its two texts, the bundle.

    They are whole files, for the applier to write. The paths are constant.
    """
    bundle = {f"bundle/{name}": text.encode() for name, text in files.bundle.items()}
    texts = {"meta-data": files.meta_data.encode(), "user-data": files.user_data.encode()}
    return {"seed.iso": seed_image(files), **texts, **bundle}
