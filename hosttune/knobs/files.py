"""Knobs that are one kernel file each. To add one, declare it here; no other module names it.

Declare its kind (a `OneFile`: kind, path, form, values) and its knob (`file_knob`), and put the knob into `KNOBS`. Then
discovery reads the file, a plan compares the value, apply writes it and reads it back, status and validation check that
it is unchanged, `revert` restores the previous value, and the manual lists the knob.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hosttune.knobs.knob import BY_NAME, HOST, Change, Knob, by_name
from hosttune.model.host import Host
from hosttune.settings.files import Ksm, NumaBalancing, OneFile, Thp
from hosttune.settings.hook import INSTALLED, PLACE, LibvirtHook
from hosttune.settings.sysctl import DROP_IN, NAMES, Sysctl, sysctl_path


def file_knob(setting: type[OneFile], *, now: Callable[[Host], Any] | None = None, **declared: Any) -> Knob[Host]:
    """Return the knob of a file that exists once on a host; `declared`: the fields of `Knob`.

    Its values are those of the kind unless `declared` narrows them. Its current value is read from `Host.settings`,
    where discovery puts the file's text, unless `now` takes it from a field of the host document.
    """
    known = now or (lambda host: setting.parse((host.settings or {}).get(setting.path)))
    given = {"values": setting.values, "numbers": setting.numbers, **declared}
    return Knob(setting=setting, target=lambda host: setting.target_name or setting.path, now=known, **given)


def _ksm(host: Host, value: int) -> Iterable[Change]:
    """Yield a change only if KSM is running."""
    if host.memory_settings is not None and host.memory_settings.ksm_run == 1:
        why = "asked for by name: settings.ksm; 0 stops merging and keeps the merged pages" if value == 0 else None
        yield Change(Ksm.path, 1, value, why)


THP = file_knob(
    Thp,
    name="thp",
    kept=True,
    profiles=HOST,
    value="madvise",
    now=lambda host: host.memory_settings.thp if host.memory_settings else None,
    sets="transparent huge pages",
    why="guests have their own huge pages; of the host, only programs that ask for them get some",
    source="Documentation/admin-guide/mm/transhuge",
)
NUMA_BALANCING = file_knob(
    NumaBalancing,
    name="numa_balancing",
    kept=True,
    profiles=HOST,
    value=0,
    now=lambda host: host.memory_settings.numa_balancing if host.memory_settings else None,
    sets="automatic NUMA balancing, `kernel.numa_balancing`",
    why="page scanning costs time and cannot move pinned memory",
    source="Documentation/admin-guide/sysctl/kernel",
)
KSM = file_knob(
    Ksm,
    name="ksm",
    profiles=HOST,
    value=2,
    values=(0, 2),
    now=lambda host: host.memory_settings.ksm_run if host.memory_settings else None,
    changes=_ksm,
    sets="same-page merging; only where it runs",
    takes="`2` (stop and unmerge), `0` (stop)",
    why="2 stops merging and unmerges; 0 would keep the merged pages",
    source="Documentation/admin-guide/mm/ksm",
)
KNOBS: tuple[Knob[Host], ...] = (THP, NUMA_BALANCING, KSM)
# The current value of these is in a field of the host document, which has its own reader.
_IN_THE_DOCUMENT = frozenset((Thp.path, NumaBalancing.path, Ksm.path))


def paths_to_read(knobs: Iterable[Knob[Host]] = KNOBS) -> tuple[str, ...]:
    """Return the files whose text discovery puts into `Host.settings`."""
    paths = (knob.setting.path for knob in knobs if issubclass(knob.setting, OneFile))
    return tuple(path for path in paths if path not in _IN_THE_DOCUMENT)


# --- the kernel's sysctl ---------------------------------------------------------------------------------------
# Knobs of the kernel's sysctl: those that hosttune sets, each under its own name.

# Name -> why the profile `host` sets it to 0 (Documentation/admin-guide/sysctl/vm). An intent can name others.
_BY_PROFILE = {
    "vm.zone_reclaim_mode": "a node that is short of memory takes it from the other nodes before it drops its cache",
    "vm.compaction_proactiveness": "background compaction moves pages and delays other work",
}


def _sysctl(name: str) -> Knob[Host]:
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


SYSCTLS: tuple[Knob[Host], ...] = tuple(_sysctl(name) for name in NAMES)


# --- the hook of libvirt ---------------------------------------------------------------------------------------
# The knob of libvirt's hook, which records and guards starts of guests by other programs.

LIBVIRT_HOOK: tuple[Knob[Host], ...] = (
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
