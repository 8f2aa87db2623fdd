"""Guests under libvirt: what must hold before one is defined or started, defining and starting it, and proof that it
runs as planned. Above discovery (whose records it reads) and domain (which writes, reads and compares the XML).

Kinds of setting: `definition.Guest`, the persistent definition; `state.GuestState`, whether it runs; `hugemount.Mount`,
a file system for its pages; `daemon.LibvirtRestart`, that libvirt has found that.
"""

from hosttune.hypervisor.access import unreachable
from hosttune.hypervisor.checks import ready, startable
from hosttune.hypervisor.connection import is_active, process_of, read_definition, read_state
from hosttune.hypervisor.running import verify_running
from hosttune.hypervisor.texts import canonical, xml_difference

__all__ = [
    "canonical",
    "is_active",
    "process_of",
    "read_definition",
    "read_state",
    "ready",
    "startable",
    "unreachable",
    "verify_running",
    "xml_difference",
]
