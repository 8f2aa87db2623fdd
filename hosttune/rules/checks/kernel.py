"""Checks of the kernel's arguments and modules, and of applied settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from hosttune.linux.tuned import (
    ACTIVE,
    OTHERWISE,
    UNSURE,
    WantedSetting,
    conflict_lines,
    reaches,
    tuned_conflicts,
    unknown_profiles,
)
from hosttune.model.evidence import STATE, Evidence
from hosttune.model.result import Entry, Result
from hosttune.model.settingtext import short_value
from hosttune.rules.checks.facts import lacks, listed
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding

_CMDLINE = "/proc/cmdline"
_TUNED = "TuneD"  # the subject of results about TuneD
_TUNED_AGREES = "TuneD sets nothing else than what is in force here"

# (test of an argument, its outcome, what the argument does, what to do)
_Rule = tuple[Callable[[str], bool], str, str, str]


def _option(name: str, *values: str) -> Callable[[str], bool]:
    """Return a test: whether a word of the command line gives one of these values to a comma-separated argument."""

    def matches(word: str) -> bool:
        key, _, given = word.partition("=")
        return key.replace("-", "_") == name and bool(set(given.split(",")) & set(values))

    return matches


_HARMFUL: tuple[_Rule, ...] = (
    (
        lambda word: word.startswith("pcie_acs_override"),
        "fail",
        "groups that it splits are not isolated (a patch outside the kernel)",
        "remove it: give whole IOMMU groups, or use another slot",
    ),
    (_option("iommu", "off"), "fail", "no device can be given to a guest", "remove iommu=off"),
    (_option("intel_iommu", "off"), "fail", "no device can be given to a guest", "use intel_iommu=on"),
    (_option("amd_iommu", "off"), "fail", "no device can be given to a guest", "remove amd_iommu=off"),
    (_option("intremap", "off"), "fail", "interrupts of guests' devices are not checked", "remove intremap=off"),
    (_option("pci", "noats"), "warn", "GPUDirect RDMA below a switch cannot be direct", "remove pci=noats"),
    (
        _option("mitigations", "off"),
        "warn",
        "a guest may read what is not its own: never with several tenants",
        "remove mitigations=off",
    ),
)


@check(
    "kernel-arguments",
    title="Kernel arguments",
    about="the host",
    why="some arguments from the internet undo the isolation of guests or switch the IOMMU off",
    source="Linux Documentation/admin-guide/kernel-parameters, admin-guide/hw-vuln; it knows no pcie_acs_override",
    expected="no argument that undoes isolation",
    reads=_CMDLINE,
    for_guests=True,
)
def kernel_arguments(on: On) -> Finding:
    words = on.need(on.host.kernel_args, "the kernel's command line", _CMDLINE)
    harmful = [(word, rule) for word in words for rule in _HARMFUL if rule[0](word)]
    if not harmful:
        return on.passed(f"none of {len(words)}")
    actual = "; ".join(f"{word}: {what}" for word, (_, _, what, _) in harmful)
    remedy = f"{'; '.join(dict.fromkeys(rule[3] for _, rule in harmful))}; then reboot"
    return (on.failed if any(rule[1] == "fail" for _, rule in harmful) else on.warned)(actual, remedy)


# --- modules -------------------------------------------------------------------------------------------------

# By module: (parameter, what it does if it is on, what to do)
_OPTIONS = {
    "vfio_pci": (
        ("disable_denylist", "devices known to break out may be given"),
        ("nointxmask", "guests' interrupts share no line: some devices stop"),
    ),
    "vfio_iommu_type1": (("disable_hugepages", "the IOMMU maps guest memory 4 KiB at a time"),),
}
_ON = ("Y", "1")


def _modules(evidence: Evidence) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    yield from _OPTIONS.items()


@check(
    "module-options",
    title="VFIO module options",
    about="each VFIO module that has such options",
    why="an option set for another device once stays in force for all of them",
    source="modinfo vfio_pci, vfio_iommu_type1",
    expected="safe and fast, as by default",
    each=_modules,
    for_guests=True,
)
def module_options(on: On, options: tuple[tuple[str, str], ...]) -> Finding:
    platform, folder = on.host.platform, f"/sys/module/{on.subject}"
    look, on = f"grep . {folder}/parameters/*", on.reading(f"{folder}/parameters")
    modules = {module.name: module.parameters for module in platform.modules} if platform else {}
    values = on.need(modules.get(on.subject), "which options it has", folder, look=look, skip="not loaded")
    bad = [(option, what) for option, what in options if values.get(option) in _ON]
    if bad:
        actual = "; ".join(f"{option}={values[option]}: {what}" for option, what in bad)
        names = ", ".join(option for option, _ in bad)
        return on.warned(actual, f"in /etc/modprobe.d remove: {names}; then reload the module or reboot")
    for option, _ in options:
        there = not lacks(on.evidence, f"{folder}/parameters/{option}")
        on.need(values.get(option) or (None if there else ""), option, f"{folder}/parameters/{option}", look=look)
    known = [option for option, _ in options if option in values]
    return on.passed(f"{', '.join(known)} off" if known else "nothing of the kind is set")


# --- what was applied ----------------------------------------------------------------------------------------


def _applied(on: On) -> Result:
    """Return what is applied; the check ends if nothing is, or if that is unknown."""
    doubt = next((problem for problem in on.evidence.problems if problem.what == STATE), None)
    if doubt is not None:
        hint = "run hosttune validate as root; hosttune status says what is wrong with the state"
        on.give_up(doubt.why, hint, doubt.where)
    applied = on.evidence.applied_state
    if applied is None:
        on.skip("a captured host keeps no state: what was applied to it is unknown")
    if not applied.entries and not applied.reboot_required and applied.open_transaction is None:
        on.skip("hosttune has applied nothing here")
    return applied


@check(
    "kernel-arguments-pending",
    title="Nothing waits for a reboot",
    about="the host, where something is applied",
    why="what is staged for the next boot does not work yet, and guests that need it cannot",
    source="hosttune's own journals and /proc/cmdline",
    expected="nothing waits for a reboot",
    reads="hosttune status",
)
def pending_reboot(on: On) -> Finding:
    applied = _applied(on)
    pending = [entry for entry in applied.entries if entry.outcome == "pending"]
    waiting = [entry.action for entry in pending if entry.when is None]  # a reboot is not what the others wait for
    if not waiting and not applied.reboot_required:
        return on.passed("all staged arguments are in force")
    if by_hand := [entry.action for entry in applied.entries if entry.is_unstaged]:
        hint = "add them to the kernel's arguments by hand (hosttune status has them), reboot, then validate again"
        return on.failed(f"asked for, and not staged: {listed(by_hand)}", hint)
    actual = f"staged: {listed(waiting)}" if waiting else "what was reverted still works until the next boot"
    return on.failed(actual, "reboot, then validate again")


_NOT_IN_FORCE = ("ignored", "conflict")  # outcomes that `status` reports separately


@check(
    "settings-in-force",
    title="Applied settings in force",
    about="the host, each setting that has drifted, and TuneD where its profile sets otherwise or is not known",
    why="a later change by something else makes an earlier validation untrue",
    source="hosttune's own journals, read back; TuneD's profiles (hosttune.linux.tuned), tuned-adm verify",
    expected="every applied setting as it was left",
    reads="hosttune status",
)
def settings_in_force(on: On) -> Iterator[Finding]:
    applied = _applied(on)
    yield _in_force(on, applied)
    for drift in applied.drift:
        setting, expected = replace(on, subject=drift.action), short_value(drift.expected)
        if drift.hint is not None:
            yield setting.failed(drift.why or "", drift.hint, expected=expected)
        elif drift.why is not None and drift.actual is None:
            yield setting.unknown(drift.why, "run hosttune validate as root", expected=expected)
        else:
            hint = "hosttune apply --intent FILE sets it again; if it was meant: settings: {NAME: keep} there"
            yield setting.failed(short_value(drift.actual), hint, expected=expected)
    yield from _tuned(replace(on, subject=_TUNED).reading(ACTIVE, _TUNED_AGREES), applied)


def _in_force(on: On, applied: Result) -> Finding:
    if unfinished := applied.open_transaction:
        text, expected = f"transaction {unfinished.number} is unfinished", "no unfinished transaction"
        return on.failed(text, "hosttune recover", unfinished.journal, expected=expected)
    conflicts = [entry.action for entry in applied.entries if entry.outcome == "conflict"]
    short = [entry.action for entry in applied.entries if entry.outcome in ("clamped", "ignored", "stuck", "failed")]
    number = sum(not entry.waits and entry.outcome not in _NOT_IN_FORCE for entry in applied.entries)
    kept = number - len(applied.drift)
    if conflicts:
        text = f"{kept} in force; not reverted, since something else had changed it: {listed(conflicts)}"
        return on.warned(text, "hosttune revert --force reverts it")
    if short:
        text = f"{kept} in force; the kernel gave less than asked for: {listed(short)}"
        return on.warned(text, "hosttune status says what it gave, and why")
    if applied.drift:
        hints = dict.fromkeys(drift.hint or "hosttune apply --intent FILE" for drift in applied.drift)
        return on.warned(f"{kept} of {number} in force, the others below", "; ".join(hints))
    return on.passed(f"{kept} in force")


def _tuned(on: On, applied: Result) -> Iterator[Finding]:
    """Compare applied settings with TuneD's active profile; nothing is said if no profile is active."""
    host, evidence = on.host, on.evidence
    entries = [entry for entry in applied.entries if entry.outcome not in _NOT_IN_FORCE]
    settings = [setting for entry in entries for setting in _wanted_settings(entry)]
    active = " ".join((host.settings or {}).get(ACTIVE, "").split())
    # If the host was recorded by another tool, and without TuneD's files, nothing shows that TuneD is installed.
    none = ACTIVE in (host.settings or {}) or lacks(evidence, ACTIVE) or (host.tuned is None and not evidence.complete)
    if not settings or (not active and none):
        return
    tuned = host.tuned
    conflicts = tuned_conflicts(tuned, settings, host.kernel_args) if tuned else ()
    if tuned and (texts := list(conflict_lines(conflicts, OTHERWISE))):
        yield on.warned(
            f"the active profile {' '.join(tuned.profiles)} sets otherwise at its next start: {listed(texts, 4)}",
            "leave each to one of the two: tuned-adm off, a profile of your own, or settings: NAME: keep and apply"
            " again",
        )
        return
    if tuned is None or not tuned.profiles:
        why = f"what profile {active} sets was not read" if active else "whether a profile is active was not read"
    elif names := unknown_profiles(tuned):
        why = f"what profile {' '.join(names)} sets is not known"
    elif unsure := list(conflict_lines(conflicts, UNSURE)):
        why = f"known only when TuneD starts: {listed(unsure, 4)}"
    else:
        return
    if evidence.tuned_verified and not applied.drift:
        yield on.passed(f"{why}; tuned-adm verify: the settings in force match it", "tuned-adm verify")
        return
    differ = "; tuned-adm verify: the settings in force differ from it" if evidence.tuned_verified is False else ""
    look = f"cat {ACTIVE}; tuned-adm profile_info; tuned-adm verify; hosttune status after TuneD's next start"
    yield on.unknown(f"{why}{differ}", f"look with: {look}")


def _wanted_settings(entry: Entry) -> tuple[WantedSetting, ...]:
    """Return the settings that an entry sets; kernel arguments that were written together become one setting each."""
    kind, _, target = entry.action.partition(":")
    if not reaches(kind, target):
        return ()
    if kind == "kernel-argument" and isinstance(entry.want, Mapping):
        return tuple(WantedSetting(kind, name, want) for name, want in entry.want.items())
    return () if entry.want is None else (WantedSetting(kind, target, entry.want),)
