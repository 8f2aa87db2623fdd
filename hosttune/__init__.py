"""hosttune: discover, plan, tune and validate KVM hosts for GPU guests.

    import hosttune
    host = hosttune.discover("capture.tar.gz")          # or discover() on this machine
    intent = hosttune.Intent.from_yaml(text)
    plan = hosttune.plan(host, intent)
    print(hosttune.domain_xml(plan, "guest"))

Every value is immutable. Names are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hosttune.model.host import Host
    from hosttune.model.intent import Intent
    from hosttune.model.plan import Plan

__version__ = "0.1.0"

__all__ = ["Host", "Intent", "Plan", "__version__", "discover", "domain_xml", "plan"]


def discover(root: str | None = None) -> Host:
    """Discover this machine, or the captured one in a directory or tar archive. Raises HosttuneError."""
    from hosttune.discovery import discover as read

    if root is None:
        from hosttune.machine import Machine

        return read(Machine())
    from hosttune.archive import open_root

    return read(open_root(root))


def plan(host: Host, intent: Intent) -> Plan:
    """Decide guests and settings. Pure. Raises BadInput; what does not fit is in the plan's `unplaced`."""
    from hosttune.planning import plan as decide

    return decide(host, intent)


def domain_xml(plan: Plan, name: str) -> str:
    """The libvirt domain XML of one planned guest."""
    from hosttune.domain import domain_xml as write

    return write(plan, name)


def __getattr__(name: str) -> object:
    home = {"Host": "host", "Intent": "intent", "Plan": "plan"}.get(name)
    if home is None:
        raise AttributeError(f"module 'hosttune' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"hosttune.model.{home}"), name)
