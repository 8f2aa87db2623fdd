"""Guests under libvirt: checks before a guest is defined or started, define and start, and proof that it runs as
planned. Above `discovery` (whose records it reads) and `domain` (which writes, reads and compares the XML).

Kinds of setting: `definition.PlannedDefinition`, the persistent definition; `definition.AdoptedDefinition`, that of a
guest that was not made by hosttune; `state.GuestState`, whether it runs; `state.Autostart`, whether it starts with
the host; `hugemount.Mount`, a file system for its pages; `daemon.LibvirtRestart`, whether libvirt has found that file
system; `disk.CopiedDisk`, whether a disk that is copied from an image is there.
"""

from hosttune.hypervisor.access import no_system, unreachable
from hosttune.hypervisor.checks import ready, startable
from hosttune.hypervisor.connection import (
    is_active,
    process_of,
    read_definition,
    read_state,
    unread_guests,
)
from hosttune.hypervisor.definition import canonical, xml_difference
from hosttune.hypervisor.running import verify_running

__all__ = [
    "canonical",
    "is_active",
    "no_system",
    "process_of",
    "read_definition",
    "read_state",
    "ready",
    "startable",
    "unreachable",
    "unread_guests",
    "verify_running",
    "xml_difference",
]
