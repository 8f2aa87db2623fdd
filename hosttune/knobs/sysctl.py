"""Knobs of the kernel's sysctl: those that hosttune sets, each under its own name."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.knobs.knob import BY_NAME, HOST, Change, Knob, by_name
from hosttune.model.host import Host
from hosttune.settings.sysctl import DROP_IN, NAMES, Sysctl, sysctl_path

# Name -> why the profile `host` sets it to 0 (Documentation/admin-guide/sysctl/vm). An intent can name others.
_BY_PROFILE = {
    "vm.zone_reclaim_mode": "a node that is short of memory takes it from the other nodes before it drops its cache",
    "vm.compaction_proactiveness": "background compaction moves pages and delays other work",
}


def _knob(name: str) -> Knob[Host]:
    brought = name in _BY_PROFILE
    unit = " in seconds" if name == "vm.stat_interval" else ""

    def changes(host: Host, value: int) -> Iterable[Change]:
        text = (host.settings or {}).get(sysctl_path(name))
        yield Change(name, None if text is None else " ".join(text.split()), str(value))

    return Knob(
        name=name,
        kept=True,
        setting=Sysctl,
        profiles=HOST if brought else BY_NAME,
        value=0 if brought else None,
        numbers=NAMES[name],
        changes=changes,
        sets=f"sysctl{unit}, now and in `{DROP_IN}`{'' if brought else ', by name only'}",
        why=_BY_PROFILE.get(name, by_name(name)),
        source=f"Documentation/admin-guide/sysctl/{name.partition('.')[0]}",
    )


KNOBS: tuple[Knob[Host], ...] = tuple(_knob(name) for name in NAMES)
