"""Whether a guest runs, and whether libvirt starts it when the host has booted, as settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from hosttune.discovery.guests import STATE
from hosttune.disks import functions_of
from hosttune.domain.reader import read_domain
from hosttune.errors import BadInput, HosttuneError, WriteFailed
from hosttune.hypervisor.connection import (
    CHANGE_SECONDS,
    RUNNING,
    SHUT_OFF,
    START_SECONDS,
    ask,
    known_uuid,
    read_definition,
    read_state,
    uuid_of,
    virsh,
)
from hosttune.hypervisor.definition import GUESTS, PlannedDefinition
from hosttune.machine.reader import Reader
from hosttune.machine.system import System, state_in
from hosttune.model import pciclass, sysfs
from hosttune.model.clock import now_text
from hosttune.model.starts import FUNCTION, GUEST, OWN_STARTS, REGISTER, start_line
from hosttune.settings.hook import hook_text
from hosttune.settings.setting import FILE, GUEST_STAGE, START_STAGE, MadeByAnother, Setting, refuse


class GuestState(Setting):
    """The state of a guest. Target: its name. Value: virsh's word. A guest that libvirt does not know is shut off.

    Only "running" can be wanted. A rollback ends the guest at once (`virsh destroy`). This is right only within the
    transaction that started it, because later the guest does a tenant's work (`undone_later` is False).
    """

    kind: ClassVar[str] = "guest-state"
    stage: ClassVar[int] = START_STAGE
    may_stop_midway: ClassVar[bool] = True  # libvirt continues a start without its caller; the guest is "paused" then
    undone_later: ClassVar[bool] = False
    targets = GUESTS

    def check(self, value: Any) -> None:
        """See Setting."""
        if value != RUNNING:
            raise refuse(self.kind, self.target, f"{value!r} is not a state a plan can ask for", f"it is {RUNNING!r}")

    def read(self, system: System) -> str:
        """See Setting."""
        return read_state(system, self.target) or SHUT_OFF

    def write(self, system: System, value: Any) -> None:
        """See Setting. Returns when the guest runs; before that all of its memory is cleared."""
        if self.read(system) == value:
            return
        if value == RUNNING:
            record_start(system, self.target)
            system.tell(STATE + self.target, RUNNING, lambda: _start(system, self.target))
        elif value == SHUT_OFF:
            # On a scratch root, a guest that does not run has no record.
            system.tell(STATE + self.target, "", lambda: _end(system, self.target))
        else:
            raise WriteFailed(f"guest {self.target}", f"it cannot be made {value!r} again")


def _start(system: System, name: str) -> None:
    system.change(virsh("start", known_uuid(system, name)), timeout=START_SECONDS)


def _end(system: System, name: str) -> None:
    uuid = uuid_of(system, name)
    if uuid is not None:
        system.change(virsh("destroy", uuid), timeout=CHANGE_SECONDS)


# --- start with the host ---------------------------------------------------------------------------------------

_AUTOSTART = "virsh-autostart-"  # followed by the guest's name


class Autostart(MadeByAnother):
    """Whether libvirt starts a guest with the host. Target: its name. Value: true or false, which a new guest has."""

    kind: ClassVar[str] = "guest-autostart"
    scope: ClassVar[str] = FILE
    stage: ClassVar[int] = GUEST_STAGE
    targets = GUESTS

    @property
    def made_by(self) -> tuple[str, str]:
        """See MadeByAnother."""
        return PlannedDefinition.kind, self.target

    def check(self, value: Any) -> None:
        """See Setting."""
        if not isinstance(value, bool):
            raise refuse(self.kind, self.target, f"{value!r} is neither true nor false", "plan again")

    def waits_for(self, system: System) -> str | None:
        """See Setting."""
        return None if read_definition(system, self.target) is not None else "the guest is not defined"

    def read(self, system: System) -> bool:
        """See Setting."""
        return system.query(_AUTOSTART + self.target, lambda: _ask(system, self.target)) is not None

    def write(self, system: System, value: Any) -> None:
        """See Setting."""
        if self.read(system) != value:
            system.tell(_AUTOSTART + self.target, "on" if value else "", lambda: _set(system, self.target, value))


def _ask(system: System, name: str) -> str | None:
    uuid = uuid_of(system, name)
    return "on" if uuid in ask(system, "list", "--all", "--autostart", "--uuid").split() else None


def _set(system: System, name: str, on: bool) -> None:
    system.change(virsh("autostart", *(() if on else ("--disable",)), known_uuid(system, name)), timeout=CHANGE_SECONDS)


# --- hosttune's own record of starts ---------------------------------------------------------------------------
# hosttune's own record of the guests that it starts, for the epochs of their devices (`hosttune.model.starts`).
# libvirt's hook records the same starts where it is installed. A start that is recorded and then fails advances an
# epoch too, which makes a statement void and nothing worse.

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
