"""One test guest, from its files to its removal: a transient domain with a name and a UUID of ours, never persistent.

Before anything is made, `handover/test-guest` in the state directory names the guest, its UUID and its devices: the
hook of libvirt lets only this guest have them while they are quarantined, and the next hand-over finds there what a
kill left. It is removed last.
"""

from __future__ import annotations

import secrets
import sys
import uuid
from collections.abc import Callable, Mapping

import msgspec

from hosttune.domain.xml import parse
from hosttune.errors import CommandFailed, Refused, Unreadable, WriteFailed
from hosttune.guest import guest_files
from hosttune.guest.bundle import asking_user_data, meta_data
from hosttune.handover import record
from hosttune.handover.targets import Target
from hosttune.handover.testguest.order import (
    CHANNEL,
    GuestAnswer,
    GuestOrder,
    OrderedDevice,
    Task,
    Unanswered,
    most_bytes,
    read_answer,
)
from hosttune.handover.testguest.planned import NAME, TestGuest, planned_guest, refuse_unstartable, xml_of
from hosttune.hypervisor import unreachable
from hosttune.hypervisor.connection import CHANGE_SECONDS, START_SECONDS, ask, virsh
from hosttune.hypervisor.disk import Image, read_image
from hosttune.hypervisor.state import record_devices_start
from hosttune.journal import Store
from hosttune.journal.state import mode_of
from hosttune.machine.system import System, state_in
from hosttune.model.host import Host
from hosttune.model.jsontext import plain_json
from hosttune.model.plan import Plan, PlannedGuest
from hosttune.model.starts import TEST_GUEST
from hosttune.model.values import is_address, to_json
from hosttune.transaction.guestfiles import FilesOfGuest, value_of
from hosttune.transaction.site import Site

BOOT_SECONDS, BOOT_ESTIMATE = 900.0, 120.0  # until the image runs what its seed asks for: a choice of ours
_CREATE_SECONDS = 60.0
_DISK = "disk.qcow2"
_NVRAM = f"/var/lib/libvirt/qemu/nvram/{NAME}_VARS.fd"
_SILENCE: Mapping[str, str] = {
    "silent": "it said nothing within {seconds:.0f} s",
    "unfinished": "it did not end its answer within {seconds:.0f} s",
    "ended-early": "it ended before it answered",
    "too-much": "it said more than one answer, or more than {most} bytes",
    "garbled": "what it said is not UTF-8",
}


class Heard(msgspec.Struct, frozen=True):
    """An answer that counts, the guest that gave it, and what is told of both in the evidence."""

    answer: GuestAnswer
    guest: PlannedGuest
    evidence: Mapping[str, object]


class Session(msgspec.Struct):
    """Makes test guests for a hand-over, one at a time. `others`: devices of the hand-over, by address."""

    site: Site
    store: Store
    discover: Callable[[], Host]
    wanted: TestGuest
    others: frozenset[str] = msgspec.field(default_factory=frozenset)

    def ask(
        self, targets: Mapping[str, Target], task: Task, seconds: float, *, level: int = 1, pattern: str | None = None
    ) -> Heard:
        """Make a guest with these devices, let it do a task, and remove it. Raises Unanswered, HosttuneError.

        `seconds`: for the work, after the boot. `level`, `pattern`: of the order.
        """
        system, folder = self.site.system, state_in(self.site.system)
        if system.exists(f"{folder}/{TEST_GUEST}"):
            raise Unanswered("not-planned", "the test guest before this one could not be removed")
        read_image(system, self.wanted.image.path)  # it may have changed since the hand-over began
        host, name = self.discover(), str(uuid.uuid4())
        kinds = {address: target.kind for address, target in targets.items()}
        plan = planned_guest(host, self.wanted, kinds, self.others, name, f"{folder}/guests/{NAME}")
        guest = plan.guests[0]
        refuse_unstartable(host, guest)
        order = _order(host, guest, targets, task, level, pattern)
        addresses = [device.address for device in guest.devices]
        with record.state_lock(self.store):
            assert all(map(is_address, addresses))
            text = "\n".join([f"{NAME} {name}", *addresses, ""])
            system.replace(f"{folder}/{TEST_GUEST}", text.encode(), mode_of(TEST_GUEST))
        try:
            with record.state_lock(self.store):
                record_devices_start(system, NAME, addresses)
                _start(system, folder, plan, self.wanted.image, order)
            said = _listen(system, name, BOOT_SECONDS + seconds)
        finally:
            with record.state_lock(self.store):
                _remove(system, folder, name)
        return Heard(answer=read_answer(said, order), guest=guest, evidence=self._told(guest))

    def _told(self, guest: PlannedGuest) -> Mapping[str, object]:
        image = self.wanted.image
        places = {device.address: device.guest_address for device in guest.devices}
        return {"image": image.path, "format": image.format, "devices": places}


def remove_left(site: Site, store: Store) -> str | None:
    """Remove a test guest that a hand-over left that was cut off. Return what was found; None for nothing.

    Raises Refused if its note cannot be read, HosttuneError if it cannot be removed.
    """
    system, folder = site.system, state_in(site.system)
    path = f"{folder}/{TEST_GUEST}"
    text = system.read(path)
    if text is None:
        if system.exists(f"{path}.hosttune-new"):
            system.tidy(path)
        return None
    name, _, known = text.partition("\n")[0].partition(" ")
    try:
        same = str(uuid.UUID(known)) == known
    except ValueError:
        same = False
    if name != NAME or not same:
        hint = "see virsh list --all: destroy a test guest that runs, then remove the file"
        raise Refused("the note of a test guest cannot be read", where=path, hint=hint)
    with record.state_lock(store):
        _remove(system, folder, known)
    return f"{name} ({known})"


# --- making it -------------------------------------------------------------------------------------------------------


def _order(
    host: Host, guest: PlannedGuest, targets: Mapping[str, Target], task: Task, level: int, pattern: str | None
) -> GuestOrder:
    devices = [
        OrderedDevice(address=device.guest_address, ids=host.index.ids(device.address))
        for device in guest.devices
        if task == "validate" or device.address in targets
    ]
    return GuestOrder(nonce=secrets.token_hex(16), task=task, devices=tuple(devices), level=level, pattern=pattern)


def _start(system: System, folder: str, plan: Plan, image: Image, order: GuestOrder) -> None:
    """Make the files and start the guest. Raises Unanswered, WriteFailed."""
    guest = plan.guests[0]
    files = guest_files(plan, NAME)
    refusal = GuestAnswer(
        nonce=order.nonce, problem="hosttune in the image is missing, or does not know `handover inside`"
    )
    user = asking_user_data(files.bundle, to_json(order), refusal.to_line(), CHANNEL)
    meta = meta_data(NAME, plan.guests[0].uuid, user)
    FilesOfGuest.of(NAME).write(system, value_of(msgspec.structs.replace(files, user_data=user, meta_data=meta)))
    overlay = f"{folder}/guests/{NAME}/{_DISK}"
    system.replace(overlay, b"", mode_of(f"guests/{NAME}/{_DISK}"))
    base = ("-b", image.path, "-F", image.format)
    try:
        system.change(("qemu-img", "create", "-q", "-f", "qcow2", *base, overlay), timeout=_CREATE_SECONDS)
        closed = unreachable(system, guest, base=image.path)
        if closed:
            raise Unanswered("not-started", "; ".join(closed))
        system.change(virsh("create", "--validate", "/dev/stdin"), timeout=START_SECONDS, stdin=xml_of(plan, image))
    except CommandFailed as error:
        said = " ".join(error.output.split())[-300:]
        raise Unanswered("not-started", f"{error.argv[0]}: {error.reason}: {said}") from error


def _listen(system: System, name: str, seconds: float) -> str:
    """Return the line that the guest says. Raises Unanswered."""
    path = _socket(system, name)
    module = "hosttune.handover.testguest.listening"
    argv = (sys.executable, "-P", "-m", module, path, f"{seconds:g}", str(most_bytes()))
    try:
        said = plain_json(system.run(argv, timeout=seconds + 60.0), where=module)
    except CommandFailed as error:
        raise Unanswered("ended-early", f"its channel cannot be reached: {error.reason}") from error
    if said["ended"] != "line":
        raise Unanswered(said["ended"], _SILENCE[said["ended"]].format(seconds=seconds, most=most_bytes()))
    return str(said["text"])


def _socket(system: System, name: str) -> str:
    try:
        domain = parse(ask(system, "dumpxml", name))
    except Unreadable as error:
        raise Unanswered("ended-early", f"libvirt does not have it any more: {error.reason}") from error
    for channel in domain.iterfind("devices/channel"):
        source = channel.find("source")
        if [target.get("name") for target in channel.iterfind("target")] == [CHANNEL] and source is not None:
            return str(source.get("path"))
    raise Unanswered("not-started", "libvirt made no channel for its answer")


# --- removing it -----------------------------------------------------------------------------------------------------


def _remove(system: System, folder: str, name: str) -> None:
    """End the guest and remove all that was made for it; the note last. Raises WriteFailed, Unreadable."""
    if name in ask(system, "list", "--all", "--uuid").split():
        try:
            system.change(virsh("destroy", name), timeout=CHANGE_SECONDS)
        except CommandFailed as error:
            reason = f"{error.reason}: {error.output.strip()}"
        else:
            reason = "virsh destroy ended without an error"
        if name in ask(system, "list", "--all", "--uuid").split():
            raise WriteFailed(f"test guest {NAME} ({name})", f"libvirt still has it: {reason}")
    files = FilesOfGuest.of(NAME)
    if system.exists(_NVRAM):
        system.remove(_NVRAM)
    for path in (f"{folder}/guests/{NAME}/{_DISK}", *files.places(system)):
        if system.exists(path):
            system.remove(path)
        else:
            system.tidy(path)
    system.remove(f"{folder}/{TEST_GUEST}")
