"""Knobs of the kernel's sysctl: those that hosttune sets, each under its own name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hosttune.knobs.knob import BY_NAME, HOST, Change, Knob, by_name
from hosttune.model.host import Host
from hosttune.settings.sysctl import NAMES, Sysctl, sysctl_path

_BY_NAME = "sysctl, likewise, by name only"


def _changes(name: str) -> Callable[[Host, int], Iterable[Change]]:
    def changes(host: Host, value: int) -> Iterable[Change]:
        text = (host.settings or {}).get(sysctl_path(name))
        yield Change(name, None if text is None else " ".join(text.split()), str(value))

    return changes


def _by_name(name: str, takes: str) -> Knob[Host]:
    """A sysctl without a value of ours: it is there to be named."""
    return _sysctl(name, BY_NAME, None, sets=_BY_NAME, why=by_name(name), takes=takes)


def _sysctl(name: str, profiles: tuple[str, ...], value: int | None, *, sets: str, why: str, takes: str) -> Knob[Host]:
    where = "vm" if name.startswith("vm.") else "kernel"
    return Knob(
        name=name,
        setting=Sysctl,
        profiles=profiles,
        value=value,
        numbers=NAMES[name],
        changes=_changes(name),
        sets=sets,
        takes=takes,
        why=why,
        source=f"Documentation/admin-guide/sysctl/{where}",
    )


KNOBS: tuple[Knob[Host], ...] = (
    _sysctl(
        "vm.zone_reclaim_mode",
        HOST,
        0,
        sets="sysctl, now and in `/etc/sysctl.d/90-hosttune.conf`",
        takes="`0` to `7`",
        why="a node short of memory shall take from the others before it drops its cache",
    ),
    _sysctl(
        "vm.compaction_proactiveness",
        HOST,
        0,
        sets="sysctl, likewise",
        takes="`0` to `100`",
        why="compaction in the background moves pages about, and its latency shows elsewhere",
    ),
    _by_name("vm.swappiness", "a number such as `10`, to 200"),
    _by_name("vm.max_map_count", "a number such as `262144`, from 65530"),
    _by_name("vm.stat_interval", "seconds, such as `10`"),
    _by_name("kernel.nmi_watchdog", "`0`, `1`"),
    _by_name("kernel.timer_migration", "`0`, `1`"),
)
