"""Guests under libvirt: what must hold before one is defined or started, defining and starting it, and proof that it
runs as planned. Above discovery (whose records it reads) and domain (which writes, reads and compares the XML).

Two kinds of setting: `definition.Guest`, the persistent definition, and `state.GuestState`, whether it runs.
"""

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
    "verify_running",
    "xml_difference",
]
