"""Where TuneD's active profile contradicts hosttune: the profile's keys compared with wanted settings. Pure.

Source for which key of which plugin sets which knob: TuneD (tuned/plugins/plugin_*.py, 2.28). Not included, because
hosttune does not set these knobs: `energy_perf_bias` (the MSR, not the preference), `force_latency` (one limit for all
CPUs; the lower of it and a CPU's own limit counts).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from hosttune.model import sysfs
from hosttune.model.commandline import split, text_of
from hosttune.model.host import Tuned, TunedKey
from hosttune.model.values import CpuSet

ACTIVE = "/etc/tuned/active_profile"  # its names, one or several (tuned/consts.py, ACTIVE_PROFILE_FILE)
SAME, OTHERWISE, UNSURE, OVERRULED = "same", "otherwise", "unsure", "overruled"
_CPU_FILES = {
    "governor": "cpufreq/scaling_governor",
    "energy-preference": "cpufreq/energy_performance_preference",
    "resume-latency": "power/pm_qos_resume_latency_us",
}
_CPU_KEYS = {
    "governor": "governor",
    "energy-preference": "energy_performance_preference",
    "resume-latency": "pm_qos_resume_latency_us",
}
_PAGE_KEYS = ("vm.nr_hugepages", "vm.nr_hugepages_mempolicy")
_KSM_SERVICES = ("service.ksm", "service.ksmtuned")
_SYSFS = "/sys/"
# What its other plugins set, whatever the target is.
_KINDS = frozenset(
    (
        *_CPU_KEYS, "thp", "numa-balancing", "ksm", "sysctl", "hugepages", "irqbalance-ban", "irq-affinity",
        "kernel-argument", "nvme-queue",
    )
)  # fmt: skip


class WantedSetting(msgspec.Struct, frozen=True):
    """A setting that hosttune wants: its kind, target and wanted value, as in an action."""

    kind: str
    target: str
    want: Any


class TunedConflict(msgspec.Struct, frozen=True):
    """A key of TuneD for a setting of hosttune.

    `how`: OTHERWISE, UNSURE, or OVERRULED: hosttune's value stays in effect.
    """

    wanted_setting: WantedSetting
    key: TunedKey
    how: str

    @property
    def text(self) -> str:
        """Return text for people: the kind, the value in the profile's file, the value that hosttune wants."""
        want = "none" if self.wanted_setting.want is None else _shown(self.wanted_setting.want)
        return f"{self.wanted_setting.kind} ({self.key.key}={self.key.value} in {self.key.where}, here {want})"


def reaches(kind: str, target: str) -> bool:
    """Return whether a profile of TuneD can set what this setting is about; it can set any file of sysfs."""
    return kind in _KINDS or target.startswith(_SYSFS)


def tuned_conflicts(
    tuned: Tuned, settings: Iterable[WantedSetting], kernel_args: Iterable[str] | None
) -> tuple[TunedConflict, ...]:
    """Return, once for each key, the kinds of setting that the key is about and may set to another value."""
    found: dict[tuple[str, TunedKey, str], TunedConflict] = {}
    wanted = [setting for setting in settings if reaches(setting.kind, setting.target)]
    for key in tuned.keys:
        for setting in wanted:
            how = _judged(tuned, key, setting, kernel_args)
            if how is not None and how != SAME:
                found.setdefault((setting.kind, key, how), TunedConflict(setting, key, how))
    return tuple(found.values())


def _judged(tuned: Tuned, key: TunedKey, setting: WantedSetting, kernel_args: Iterable[str] | None) -> str | None:
    wants = (
        setting.want.values() if isinstance(setting.want, Mapping) and setting.kind in _CPU_KEYS else (setting.want,)
    )
    verdicts = {_of_plugin(tuned, key, msgspec.structs.replace(setting, want=want), kernel_args) for want in wants}
    how = next((one for one in (OTHERWISE, UNSURE, OVERRULED, SAME) if one in verdicts), None)
    return UNSURE if how == OTHERWISE and not key.sure else how


def _of_plugin(tuned: Tuned, key: TunedKey, setting: WantedSetting, kernel_args: Iterable[str] | None) -> str | None:
    if key.plugin == "cpu":
        if _CPU_KEYS.get(setting.kind) != key.key:
            return None
        return (_value if setting.kind == "resume-latency" else _alternatives)(key.value, setting.want)
    if key.plugin == "vm":
        return _thp(key, setting, kernel_args)
    if key.plugin == "sysctl":
        return _sysctl(tuned, key, setting)
    if key.plugin == "sysfs":
        return _sysfs(key, setting)
    if key.plugin in ("irqbalance", "irq", "scheduler"):
        return _interrupts(key, setting)
    if key.plugin == "bootloader":
        return _argument(key.value, setting) if setting.kind == "kernel-argument" else None
    if key.plugin == "disk":
        return _queue("scheduler", key.value, setting) if key.key == "elevator" else None
    if key.plugin == "service":
        starts = {"start", "enable"} & {word.strip() for word in key.value.replace(";", ",").split(",")}
        return OTHERWISE if setting.kind == "ksm" and key.key in _KSM_SERVICES and starts else None
    return None


def _alternatives(value: str, want: Any) -> str:
    """Compare `a|b|c`: TuneD takes the first that the kernel has (plugin_cpu.py).

    A preference can be a plain number.
    """
    words = [word.strip() for word in value.split("|")]
    if words[0] == str(want):
        return SAME
    return UNSURE if str(want) in words or any(word.isdecimal() for word in words) else _value(words[0], want)


def _value(value: str, want: Any) -> str:
    """Compare a value. `>N` raises to N, `<N` lowers to it (plugins/base.py, _process_assignment_modifiers)."""
    text, wanted = _unquoted(value), str(want)
    if text[:1] in ("<", ">") and len(text) > 1:
        if not (text[1:].strip().isdecimal() and wanted.isdecimal()):
            return UNSURE
        above = int(text[1:]) > int(wanted)
        below = int(text[1:]) < int(wanted)
        return OTHERWISE if (above if text[0] == ">" else below) else SAME
    if "${" in text:
        return UNSURE
    return SAME if " ".join(text.split()) == wanted else OTHERWISE


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value


def _thp(key: TunedKey, setting: WantedSetting, kernel_args: Iterable[str] | None) -> str | None:
    """Compare THP. plugin_vm.py does not change THP if the kernel's arguments set it."""
    if setting.kind != "thp" or key.key not in ("transparent_hugepages", "transparent_hugepage"):
        return None
    how = _value(key.value, setting.want)
    if kernel_args is None:
        return UNSURE if how == OTHERWISE else how
    return None if any(word.startswith("transparent_hugepage=") for word in kernel_args) else how


def _sysctl(tuned: Tuned, key: TunedKey, setting: WantedSetting) -> str | None:
    """Compare a sysctl.

    After its own values TuneD applies the files of sysctl.d again, hosttune's too, unless disabled.
    """
    if setting.kind == "hugepages" and key.key in _PAGE_KEYS:  # of the default size, spread over the nodes
        return UNSURE
    if setting.kind not in ("sysctl", "numa-balancing") or setting.target != key.key:
        return None
    if isinstance(setting.want, Mapping):  # the value now and the value after a boot differ
        return UNSURE
    how = _value(key.value, setting.want)
    if setting.kind == "sysctl" and tuned.reapply_sysctl:
        excluded = any(fnmatchcase(key.key, pattern) for pattern in tuned.reapply_sysctl_exclude)
        return how if excluded or how == SAME else OVERRULED
    return how


def _sysfs(key: TunedKey, setting: WantedSetting) -> str | None:
    if setting.kind == "nvme-queue":
        head, _, part = key.key.rpartition("/queue/")
        folder, _, disk = head.rpartition("/")
        return _queue(part, key.value, setting) if folder == "/sys/block" and may_match(disk, "nvme") else None
    paths: tuple[str, ...] = (setting.target,)
    if setting.kind in _CPU_FILES:
        cpus = _cpus(setting.target.removeprefix("cpus ")) or ()
        paths = tuple(f"{sysfs.CPUS}/cpu{cpu}/{_CPU_FILES[setting.kind]}" for cpu in cpus)
    elif not setting.target.startswith(_SYSFS):
        return None
    return _value(key.value, setting.want) if any(fnmatchcase(path, key.key) for path in paths) else None


def may_match(pattern: str, start: str) -> bool:
    """Return whether a wildcard can match a name that begins like this."""
    literal = pattern.partition("*")[0].partition("?")[0].partition("[")[0]
    return literal.startswith(start) or (len(literal) < len(pattern) and start.startswith(literal))


def _queue(part: str, value: str, setting: WantedSetting) -> str | None:
    if setting.kind != "nvme-queue" or not isinstance(setting.want, Mapping) or part not in setting.want:
        return None
    return _value(value, setting.want[part])


def _interrupts(key: TunedKey, setting: WantedSetting) -> str | None:
    """Compare interrupts.

    [irqbalance] sets banned CPUs; [irq] an affinity; [scheduler] removes isolated CPUs from every affinity.
    """
    known = (("irqbalance", "banned_cpus", "irqbalance-ban"), ("irq", "affinity", "irq-affinity"))
    isolates = (key.plugin, key.key, setting.kind) == ("scheduler", "isolated_cores", "irq-affinity")
    if not key.value or not (isolates or (key.plugin, key.key, setting.kind) in known):
        return None
    by_tuned, wanted = _cpus(_unquoted(key.value)), _cpus(str(setting.want))
    if by_tuned is None or wanted is None:
        return UNSURE
    return OTHERWISE if (wanted & by_tuned if isolates else wanted != by_tuned) else SAME


def _argument(line: str, setting: WantedSetting) -> str | None:
    """Compare an argument with `line`, the whole command line that [bootloader] adds."""
    words = split(_unquoted(line))
    text = text_of(words, setting.target)
    open_names = any("${" in word.partition("=")[0] for word in words)
    if text is None:
        return UNSURE if open_names else None
    if "${" in text:
        return UNSURE
    return SAME if text == setting.want else OTHERWISE


def _cpus(text: str) -> CpuSet | None:
    try:
        return CpuSet.parse(text)
    except ValueError:
        return None


def _shown(want: Any) -> str:
    if isinstance(want, Mapping):
        return ", ".join(f"{name} {value}" for name, value in want.items())
    return str(want)


def conflict_lines(found: Iterable[TunedConflict], how: str) -> Iterator[str]:
    """Yield the texts of those with this `how`, each once."""
    yield from dict.fromkeys(tuned_conflict.text for tuned_conflict in found if tuned_conflict.how == how)
