"""The bundle: a table of wanted settings, the script that applies it at every boot, its unit, and their installer.

Scripts and unit are constant files. Only the table has values from the plan; each was checked before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from hosttune.assets import templates
from hosttune.errors import BadInput
from hosttune.gpu import inside
from hosttune.gpu.inside import Inside
from hosttune.guest.nccl import FILE, PassedDevice, ids_of, is_gpu, is_nic, topology
from hosttune.model.guestplan import ExpectedLibrary
from hosttune.model.intent import is_sysctl
from hosttune.model.networkintent import Roce
from hosttune.model.plan import PlannedGuest
from hosttune.model.values import Closed

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


# --- wanted settings -------------------------------------------------------------------------------------------
# The settings wanted inside a guest: the plan's `guest_settings`, checked and typed.
# They are untrusted input. Unknown names and impossible values are refused (BadInput) with their path.

MAX_WATTS = 10_000  # far above any board; the driver refuses what the board does not support
READ_REQUESTS = tuple(128 << n for n in range(6))  # pci_regs.h, PCI_EXP_DEVCTL_READRQ: field n = 128 << n bytes


class WantedInside(Closed, frozen=True, kw_only=True):
    """The settings wanted inside a guest. None or False: the setting is not changed.

    `aspm_off`, `read_request_bytes` and `relaxed_ordering` are settings of the passed endpoints, whose registers vfio
    resets when the guest opens them. `sysctl` has only what the intent names.
    """

    persistence: bool = False
    power_limit_watts: int | None = None
    aspm_off: bool = False
    read_request_bytes: int | None = None
    relaxed_ordering: bool | None = None
    sysctl: Mapping[str, str] | None = None

    MAPPINGS = ("sysctl",)


def read_wanted(guest: PlannedGuest) -> WantedInside:
    """Return the guest's settings. Raises BadInput for an unknown setting or an impossible value."""
    fields: dict[str, Any] = {}
    for name, value in (guest.guest_settings or {}).items():
        where = f"plan: guests[{guest.name!r}].guest_settings.{name}"
        reader = _READERS.get(name)
        if reader is None:
            raise BadInput(f"no setting {name!r} inside a guest", where=where, hint=f"known: {', '.join(_READERS)}")
        if value is not None:
            field, read = reader
            fields[field] = read(value, where)
    return WantedInside(**fields)


def _switch(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        _refuse(value, where, "true or false")
    return value


def _on_or_off(value: object, where: str) -> bool:
    """Return a switch from a truth value or from an intent's word: in YAML 1.2 `off` is text."""
    return _switch({"on": True, "off": False}.get(value, value) if isinstance(value, str) else value, where)


def _watts(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_WATTS:
        _refuse(value, where, f"whole watts from 1 to {MAX_WATTS}")
    return value


def _off(value: object, where: str) -> bool:
    if value != "off":
        _refuse(value, where, '"off"')
    return True


def _read_request(value: object, where: str) -> int:
    if isinstance(value, bool) or value not in READ_REQUESTS:
        _refuse(value, where, f"one of {', '.join(map(str, READ_REQUESTS))}")
    return int(value)


def _sysctl(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        _refuse(value, where, "a mapping of names to values")
    for name, wanted in value.items():
        if not is_sysctl(name, wanted):
            _refuse({name: wanted}, where, "names such as vm.nr_hugepages, and words with single spaces between")
    return {name: str(wanted) for name, wanted in value.items()}


def _refuse(value: object, where: str, allowed: str) -> NoReturn:
    raise BadInput(f"invalid value {value!r}", where=where, hint=f"allowed: {allowed}")


_READERS: Mapping[str, tuple[str, Callable[[Any, str], object]]] = {
    "persistence": ("persistence", _switch),
    "power_limit_watts": ("power_limit_watts", _watts),
    "aspm": ("aspm_off", _off),
    "read_request_bytes": ("read_request_bytes", _read_request),
    "relaxed_ordering": ("relaxed_ordering", _on_or_off),
    "sysctl": ("sysctl", _sysctl),
}


# --- the seed --------------------------------------------------------------------------------------------------
# The NoCloud seed: meta-data and user-data that copy the bundle into a guest and install it.
# Source: cloud-init, "NoCloud" (a filesystem labelled cidata with the files meta-data and user-data), "Instance ID".

VOLUME = "cidata"
FOLDER = "/usr/local/share/hosttune-guest"  # the bundle's folder inside the guest
_HASH_DIGITS = 16


def meta_data(name: str, uuid: str | None, user: str, *, hostname: bool = False) -> str:
    """Return the meta-data. The instance id is the guest's UUID (or its name) and a hash of its user-data.

    `hostname`: the guest gets its name as host name.

    cloud-init runs its once-per-instance modules again when the id changes. So a changed seed is installed, and an
    unchanged seed is not installed again.
    """
    digest = hashlib.sha256(user.encode()).hexdigest()[:_HASH_DIGITS]
    host = {"local-hostname": name.replace("_", "-")} if hostname else {}
    return _yaml({"instance-id": f"hosttune-{(uuid or name).lower()}-{digest}", **host})


def user_data(bundle: Mapping[str, str], user: str | None = None, keys: Sequence[str] = ()) -> str:
    """Return a #cloud-config that writes the bundle and runs its installer. PyYAML quotes the values.

    `ssh_deletekeys: false`: the guest must keep its SSH host keys when its instance id changes (cloud-init, cc_ssh).
    `user`: whom `keys` let in, as any user by sudo; None: the image's own user. Without keys nobody.
    """
    return _config(bundle, [["sh", f"{FOLDER}/{INSTALL}"]], _login(user, keys) if keys else None)


def _login(user: str | None, keys: Sequence[str]) -> dict[str, Any]:
    """Return what lets a user in. Source: cloud-init, "Users and Groups" and "SSH"; passwords stay locked."""
    if user is None:
        return {"ssh_authorized_keys": [*keys]}
    sudo = "ALL=(ALL) NOPASSWD:ALL"
    return {"users": [{"name": user, "shell": "/bin/bash", "sudo": sudo, "ssh_authorized_keys": [*keys]}]}


def asking_user_data(bundle: Mapping[str, str], order: str, refusal: str, channel: str) -> str:
    """Return the user-data of a test guest: as `user_data`, then hosttune in the guest answers an order on a channel.

    `refusal`: what is said on the channel (the name of a virtio-serial port) if hosttune there fails. No value becomes
    part of a command but the channel, a constant.
    """
    files = {**bundle, "order.json": order, "refusal.json": refusal}
    answer = f"{FOLDER}/answer.json"
    command = (
        f"hosttune handover inside {FOLDER}/order.json >{answer} || cp {FOLDER}/refusal.json {answer};"
        f" cat {answer} >/dev/virtio-ports/{channel}"
    )
    return _config(files, [["sh", f"{FOLDER}/{INSTALL}"], ["sh", "-c", command]])


def _config(texts: Mapping[str, str], commands: list[list[str]], login: Mapping[str, Any] | None = None) -> str:
    files = [
        {
            "path": f"{FOLDER}/{name}",
            "owner": "root:root",
            "permissions": "0755" if name in EXECUTABLE else "0644",
            "content": text,
        }
        for name, text in texts.items()
    ]
    document = {**(login or {}), "ssh_deletekeys": False, "write_files": files, "runcmd": commands}
    return f"#cloud-config\n{_yaml(document)}"


def _yaml(document: object) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """PyYAML's safe dumper, with texts of several lines in block style, which people can read."""

    def represent(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, represent)
    dumped: str = yaml.dump(document, Dumper=Dumper, sort_keys=False, width=10_000)
    return dumped
