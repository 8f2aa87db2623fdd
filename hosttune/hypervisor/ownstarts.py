"""hosttune's own record of the guests that it starts, for the epochs of their devices (`hosttune.model.starts`).

libvirt's hook records the same starts where it is installed. A start that is recorded and then fails advances an epoch
too, which makes a statement void and nothing worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hosttune.disks import functions_of
from hosttune.domain.reader import read_domain
from hosttune.errors import BadInput, HosttuneError
from hosttune.hypervisor.connection import read_definition
from hosttune.machine.reader import Reader
from hosttune.machine.system import System, state_in
from hosttune.model import pciclass, sysfs
from hosttune.model.clock import now_text
from hosttune.model.starts import FUNCTION, GUEST, OWN_STARTS, REGISTER, start_line
from hosttune.settings.hook import hook_text

_MODE = 0o600
_LOOK_SECONDS = 20.0  # the hook itself ends after 10
_NETWORK = pciclass.in_sysfs(pciclass.NETWORK)
_EVERY = "*"  # in place of an address: it counts for every device


def record_start(system: System, name: str) -> None:
    """Record that a guest is about to start with its devices. Raises WriteFailed, Unreadable.

    Where no device was ever in a hand-over, no epoch matters and no start is written. What its network functions are
    like now is kept for their hand-over.
    """
    folder = state_in(system)
    _look(system, folder, name)
    if system.exists(f"{folder}/{REGISTER}"):
        _record(system, folder, name, _devices(system, name))


def record_devices_start(system: System, name: str, addresses: Iterable[str]) -> None:
    """Record that a guest without a definition is about to start with these functions. Raises WriteFailed."""
    folder = state_in(system)
    devices = dict.fromkeys(addresses, GUEST)
    for address in tuple(devices):
        _with_parent(system, address, devices)
    _record(system, folder, name, devices)


def _look(system: System, folder: str, name: str) -> None:
    """Let the hook's script record what the network functions of a guest are like, before the guest has them.

    Where the hook is installed, it finds that this is done. Whatever fails leaves no record, and the start goes on.
    """
    text = hook_text(folder)
    try:
        xml = read_definition(system, name)
        if text is None or xml is None:
            return
        devices = [device.source for device in read_domain(xml, where=f"guest {name}").hostdevs if device.kind == "pci"]
        classes = [system.read(sysfs.function(device, "class")) or "" for device in devices if device]
        if any(one.startswith(_NETWORK) for one in classes):
            argv = ("sh", "-c", text, "hosttune", name, "look", "begin", "-")
            system.change(argv, timeout=_LOOK_SECONDS, stdin=xml)
    except HosttuneError:
        return


def _record(system: System, folder: str, name: str, devices: Mapping[str, str]) -> None:
    if not devices:
        return
    when = now_text()
    before = system.read_bytes(f"{folder}/{OWN_STARTS}") or b""
    lines = "".join(start_line(address, how, when, name) for address, how in devices.items())
    system.replace(f"{folder}/{OWN_STARTS}", before + lines.encode(), _MODE)


def _devices(system: System, name: str) -> dict[str, str]:
    """Return the functions of a guest's definition and how it has each; every device if the definition is unknown."""
    try:
        xml = read_definition(system, name)
        facts = read_domain(xml, where=f"guest {name}") if xml is not None else None
    except BadInput:
        facts = None
    if facts is None:
        return {_EVERY: GUEST}
    devices: dict[str, str] = {}
    if any(device.kind == "mdev" or (device.kind == "pci" and not device.source) for device in facts.hostdevs):
        devices[_EVERY] = GUEST
    for address in facts.functions:
        devices[address] = GUEST
        _with_parent(system, address, devices)
    for address in (one for on in functions_of(Reader(system), facts.host_paths) for one in on or ()):
        devices.setdefault(address, FUNCTION)
        _with_parent(system, address, devices)
    return devices


def _with_parent(system: System, address: str, drivers: dict[str, str]) -> None:
    """Add the function that a virtual function belongs to."""
    parent = system.link(sysfs.function(address, "physfn"))
    if parent is not None:
        drivers.setdefault(parent.rpartition("/")[2], FUNCTION)
