"""The knob of libvirt's hook, which records and guards starts of guests by other programs."""

from __future__ import annotations

from hosttune.knobs.knob import BY_NAME, Knob
from hosttune.model.host import Host
from hosttune.settings.hook import INSTALLED, PLACE, LibvirtHook

KNOBS: tuple[Knob[Host], ...] = (
    Knob(
        name="libvirt_hook",
        setting=LibvirtHook,
        profiles=BY_NAME,
        value=INSTALLED,
        values=(INSTALLED,),
        target=lambda _: PLACE,
        now=lambda _: None,  # not in the host document: apply reads it
        sets="a hook of libvirt that records starts of guests and refuses those with quarantined devices",
        why="starts of guests by other programs are recorded, and refused for quarantined devices",
        source="libvirt.org/hooks.html",
    ),
)
