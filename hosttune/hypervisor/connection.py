"""What libvirt reports about one guest, and the commands that change it: always `virsh`, always with a time limit.

A call of libvirt-python cannot be cancelled: a daemon that does not respond would block the transaction forever. A
command is killed at its limit, works the same wherever libvirt runs, and can be shown in a rehearsal.

virsh reads a number first as the id of a running guest, then as a name, and likewise a UUID. So every command here
names its guest by the UUID that libvirt lists beside that name.
"""

from __future__ import annotations

import os

from hosttune.discovery.guests import DEFINITION, STATE, recorded_domain
from hosttune.discovery.libvirtd import DEFAULT_URI, URI_VARIABLE
from hosttune.discovery.processes import pid_of
from hosttune.domain.definitions import without_secrets
from hosttune.errors import BadInput, CommandFailed, Unreadable, WriteFailed
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model.host import Host, RunningGuest

READ_SECONDS = 20.0
CHANGE_SECONDS = 60.0
# Before QEMU runs, every page of the guest is cleared: terabytes take minutes.
START_SECONDS = 1800.0
_SAVED = "/var/lib/libvirt/qemu/save/{name}.save"  # libvirt's qemuDomainManagedSavePath, of the system's daemon
SHUT_OFF, RUNNING = "shut off", "running"


def read_definition(system: System, name: str, *, secure: bool = False) -> str | None:
    """Return the persistent definition of a guest; None if there is none. Raises Unreadable.

    `secure`: with its secrets, which only root may read.
    """
    xml = system.query(DEFINITION + name, lambda: _ask_definition(system, name, secure=secure))
    if xml is None and system.captured:
        domain = recorded_domain(system, name)
        xml = None if domain is None else domain.inactive_xml or domain.xml
    if xml is not None and system.captured and not secure:
        xml = _hidden(xml, name)
    return None if xml is None else xml.strip() + "\n"


def _hidden(xml: str, name: str) -> str:
    try:
        return without_secrets(xml)
    except BadInput as error:
        raise Unreadable(f"the definition of guest {name}", error.what) from error


def has_managed_save(system: System, name: str) -> bool:
    """Return whether the state of a guest is saved (virsh managedsave), with its present definition.

    Raises Unreadable.
    """
    if system.captured:
        return system.exists(_SAVED.format(name=name))
    saved = ask(system, "list", "--all", "--with-managed-save", "--uuid")
    return uuid_of(system, name) in saved.split()


def read_state(system: System, name: str) -> str | None:
    """Return the state of a guest in virsh's words ("running", "shut off", "paused"…); None: the guest does not exist.

    Raises Unreadable.
    """
    state = system.query(STATE + name, lambda: _ask_state(system, name))
    if state is None and system.captured:
        domain = recorded_domain(system, name)
        state = None if domain is None else domain.state or SHUT_OFF
    return state and state.strip()


def is_active(state: str | None) -> bool:
    """Return whether a guest in this state has a process, memory and devices now.

    A crashed guest may have, so it counts.
    """
    return state is not None and state != SHUT_OFF


def unread_guests(host: Host) -> tuple[RunningGuest, ...]:
    """Return the guests whose definition cannot be read: which devices they have is unknown."""
    return tuple(guest for guest in host.guests or () if guest.unread)


def process_of(system: System, name: str) -> int | None:
    """Return the process id of a running guest; None if it is not found or the name is ambiguous."""
    return pid_of(Reader(system), name)


def identity_of(system: System, process: int) -> str:
    """Return the process id and when it started, in clock ticks: the kernel reuses ids (proc(5), stat, field 22).

    "1000.4711"; "1000.?" if that is not known.
    """
    fields = (system.read(f"/proc/{process}/stat") or "").rpartition(")")[2].split()
    return f"{process}.{fields[19] if len(fields) > 19 and fields[19].isdecimal() else '?'}"


def virsh(*arguments: str) -> tuple[str, ...]:
    """Return a virsh command for the libvirt that discovery reads, which HOSTTUNE_LIBVIRT_URI can name."""
    return ("virsh", "--quiet", "--connect", os.environ.get(URI_VARIABLE) or DEFAULT_URI, *arguments)


def uuid_of(system: System, name: str, *, persistent: bool = False) -> str | None:
    """Return the UUID of the guest with that name, on the live machine; None if there is none. Raises Unreadable."""
    only = ("--persistent",) if persistent else ()
    rows = (line.split(maxsplit=1) for line in ask(system, "list", "--all", *only, "--uuid", "--name").splitlines())
    return next((row[0] for row in rows if len(row) == 2 and row[1].strip() == name), None)


def known_uuid(system: System, name: str) -> str:
    """Return the UUID of a guest that must exist. Raises WriteFailed, Unreadable."""
    uuid = uuid_of(system, name)
    if uuid is None:
        raise WriteFailed(f"guest {name}", "libvirt has no guest of that name")
    return uuid


def _ask_definition(system: System, name: str, *, secure: bool) -> str | None:
    uuid = uuid_of(system, name, persistent=True)
    if uuid is None:
        return None
    return _ask_about(system, uuid, "dumpxml", "--inactive", *(("--security-info",) if secure else ()))


def _ask_state(system: System, name: str) -> str | None:
    uuid = uuid_of(system, name)
    return None if uuid is None else _ask_about(system, uuid, "domstate")


def _ask_about(system: System, uuid: str, *command: str) -> str | None:
    try:
        return ask(system, *command, uuid)
    except Unreadable as error:
        if "failed to get domain" in error.reason or "Domain not found" in error.reason:
            return None  # it was removed after it was listed
        raise


def ask(system: System, *arguments: str) -> str:
    """Return the output of a virsh command that reads. Raises Unreadable.

    libvirt gives secrets only to a connection that may also write.
    """
    argv = virsh(*(() if "--security-info" in arguments else ("--readonly",)), *arguments)
    try:
        return system.run(argv, timeout=READ_SECONDS)
    except CommandFailed as error:
        said = f"{error.reason}: {error.output.strip()}".rstrip(": ")
        raise Unreadable(f"virsh {' '.join(arguments)}", said) from error
