"""What TuneD's well-known profiles set that hosttune sets, too, and where the two differ. Pure.

Not included: `energy_perf_bias` (the MSR, not the preference) and `force_latency` (one limit for all CPUs; the lower of
it and a CPU's own limit counts), which hosttune does not set, and what applies to some CPU models only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from hosttune.model.host import Tuned
from hosttune.model.values import value_text

ACTIVE = "/etc/tuned/active_profile"  # its names, one or several (tuned/consts.py, ACTIVE_PROFILE_FILE)
OTHERWISE, UNSURE, OVERRULED = "otherwise", "unsure", "overruled"
# A kind of setting, or a kind and a target -> its value in the profile with what it includes: profiles/*/tuned.conf,
# 2.28. `a|b`: the first that the kernel has (plugin_cpu.py).
_LATENCY = {"governor": "performance", "sysctl vm.swappiness": "10"}
_THROUGHPUT = _LATENCY | {"energy-preference": "performance"}
_NETWORK_LATENCY = _LATENCY | {
    "thp": "never",
    "numa-balancing": "0",
    "sysctl kernel.nmi_watchdog": "0",
    "sysctl kernel.timer_migration": "0",
    "sysctl vm.stat_interval": "10",
}
# Of the user's own variables file: [irqbalance] bans them, [scheduler] removes them from every interrupt's affinity.
_ISOLATED = dict.fromkeys(("irqbalance-ban", "irq-affinity", "kernel-argument isolcpus"), "${isolated_cores}")
_TICKLESS = {"kernel-argument nohz_full": "${isolated_cores}"}
PROFILES: Mapping[str, Mapping[str, str]] = {
    "accelerator-performance": _LATENCY,
    "balanced": {"governor": "schedutil|ondemand|powersave", "energy-preference": "balance_performance"},
    "cpu-partitioning": _NETWORK_LATENCY | _ISOLATED | _TICKLESS | {"kernel-argument isolcpus": "${no_balance_cores}"},
    "hpc-compute": _LATENCY | {"thp": "always", "numa-balancing": "0", "sysctl vm.zone_reclaim_mode": "1"},
    "latency-performance": _LATENCY,
    "network-latency": _NETWORK_LATENCY,
    "network-throughput": _THROUGHPUT,
    "powersave": {
        "governor": "schedutil|conservative|powersave",
        "energy-preference": "power",
        "sysctl kernel.nmi_watchdog": "0",
    },
    "realtime": _NETWORK_LATENCY | _ISOLATED,
    "realtime-virtual-host": _NETWORK_LATENCY | _ISOLATED | _TICKLESS | {"ksm": "2"},
    "throughput-performance": _THROUGHPUT,
    "virtual-guest": _THROUGHPUT | {"sysctl vm.swappiness": "30"},
    "virtual-host": _THROUGHPUT,
}
# What a profile can set besides files of sysfs, whatever the target is.
_KINDS = frozenset(
    (
        "governor", "energy-preference", "resume-latency", "thp", "numa-balancing", "ksm", "sysctl", "hugepages",
        "irqbalance-ban", "irq-affinity", "kernel-argument", "nvme-queue",
    )
)  # fmt: skip


class WantedSetting(msgspec.Struct, frozen=True):
    """A setting that hosttune wants: its kind, target and wanted value, as in an action."""

    kind: str
    target: str
    want: Any


class TunedConflict(msgspec.Struct, frozen=True):
    """A value of a profile for a setting of hosttune.

    `how`: OTHERWISE, UNSURE (only TuneD can tell), or OVERRULED: hosttune's value stays in effect.
    """

    wanted_setting: WantedSetting
    value: str
    how: str

    @property
    def text(self) -> str:
        """Return text for people: the kind, the profile's value, the value that hosttune wants."""
        kind, target, want = msgspec.structs.astuple(self.wanted_setting)
        name = target if kind in ("sysctl", "kernel-argument") else kind
        return f"{name} ({self.value} in the profile, here {value_text(want, nothing='none')})"


def reaches(kind: str, target: str) -> bool:
    """Return whether a profile of TuneD can set what this setting is about; it can set any file of sysfs."""
    return kind in _KINDS or target.startswith("/sys/")


def unknown_profiles(tuned: Tuned) -> tuple[str, ...]:
    """Return the active profiles of which it is not known what they set: the user's own."""
    return tuple(name for name in tuned.profiles if name not in PROFILES or name in tuned.own)


def tuned_conflicts(
    tuned: Tuned, settings: Iterable[WantedSetting], kernel_args: Iterable[str] | None
) -> tuple[TunedConflict, ...]:
    """Return, once for each value of the active profiles, the setting that it is about and may set otherwise."""
    unknown = unknown_profiles(tuned)
    values = {key: value for name in tuned.profiles if name not in unknown for key, value in PROFILES[name].items()}
    conflicts: dict[str, TunedConflict] = {}
    for setting in settings:
        for key in {setting.kind, f"{setting.kind} {setting.target}"} & values.keys():
            how = _compared(setting, values[key], kernel_args)
            if how is not None:
                how = UNSURE if unknown and how == OTHERWISE else how
                conflicts.setdefault(f"{key} {how}", TunedConflict(setting, values[key], how))
    return tuple(conflicts.values())


def _compared(setting: WantedSetting, value: str, kernel_args: Iterable[str] | None) -> str | None:
    """Return how a profile's value differs from the wanted one, None if it does not.

    TuneD leaves THP alone if the kernel's arguments set it (plugin_vm.py). After its own sysctls it applies the files
    of sysctl.d again, hosttune's too (`reapply_sysctl`).
    """
    wants = {str(want) for want in (setting.want.values() if isinstance(setting.want, Mapping) else (setting.want,))}
    if wants == {value}:
        return None
    if setting.kind == "sysctl":
        return OVERRULED
    if setting.kind == "thp" and any(word.startswith("transparent_hugepage=") for word in kernel_args or ()):
        return None
    unsure = value.startswith("${") or (setting.kind == "thp" and kernel_args is None)
    return UNSURE if unsure or wants <= set(value.split("|")) else OTHERWISE


def conflict_lines(conflicts: Iterable[TunedConflict], how: str) -> Iterator[str]:
    """Yield the texts of those with this `how`, each once."""
    yield from dict.fromkeys(conflict.text for conflict in conflicts if conflict.how == how)
