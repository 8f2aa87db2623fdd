"""Checks of the kernel's arguments and modules, and of applied settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

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
from hosttune.model.result import Drift, Entry, Result
from hosttune.model.validation import CheckResult
from hosttune.model.values import value_text
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.rules.checks.facts import HOST, lacks, listed, refused

_CMDLINE = "/proc/cmdline"
_TUNED = "TuneD"  # the subject of results about TuneD

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


def kernel_arguments(evidence: Evidence) -> Iterable[CheckResult]:
    """Check for arguments of the running kernel that undo isolation or direct transfers between devices."""
    check = "kernel-arguments"
    words = evidence.host.kernel_args
    expected = "no argument that undoes isolation"
    if words is None:
        why = refused(evidence, _CMDLINE) or "not recorded"
        yield unknown(check, HOST, expected=expected, why=why, hint=f"look with: cat {_CMDLINE}", source=_CMDLINE)
        return
    found = [(word, rule) for word in words for rule in _HARMFUL if rule[0](word)]
    if not found:
        yield passed(check, HOST, expected=expected, actual=f"none of {len(words)}", source=_CMDLINE)
        return
    actual = "; ".join(f"{word}: {what}" for word, (_, _, what, _) in found)
    hint = f"{'; '.join(dict.fromkeys(rule[3] for _, rule in found))}; then reboot"
    make = failed if any(rule[1] == "fail" for _, rule in found) else warned
    yield make(check, HOST, expected=expected, actual=actual, source=_CMDLINE, hint=hint)


# --- modules -------------------------------------------------------------------------------------------------

# (module, parameter, wrong values, what they do, what to do)
_OPTIONS = (
    (
        "vfio_pci",
        "disable_denylist",
        ("Y", "1"),
        "devices known to break out may be given",
        "options vfio-pci: remove it",
    ),
    ("vfio_pci", "nointxmask", ("Y", "1"), "guests' interrupts share no line: some devices stop", "remove it"),
    (
        "vfio_iommu_type1",
        "disable_hugepages",
        ("Y", "1"),
        "the IOMMU maps guest memory 4 KiB at a time",
        "remove it",
    ),
)


def module_options(evidence: Evidence) -> Iterable[CheckResult]:
    """Check for parameters of the VFIO modules that reduce safety or speed."""
    check = "module-options"
    platform = evidence.host.platform
    modules = {module.name: module.parameters for module in platform.modules} if platform else {}
    for name in dict.fromkeys(row[0] for row in _OPTIONS):
        source = f"/sys/module/{name}/parameters"
        expected = "safe and fast, as by default"
        if name not in modules and lacks(evidence, f"/sys/module/{name}"):
            yield skipped(check, name, "not loaded")
            continue
        parameters = modules.get(name)
        if parameters is None:
            hint = f"look with: grep . {source}/*"
            yield unknown(check, name, expected=expected, why="not recorded", hint=hint, source=source)
            continue
        bad = [row for row in _OPTIONS if row[0] == name and parameters.get(row[1]) in row[2]]
        known = {row[1]: _known(evidence, name, row[1], parameters.get(row[1])) for row in _OPTIONS if row[0] == name}
        unread = [option for option, is_known in known.items() if not is_known]
        if not bad and unread:
            hint = f"look with: grep . {source}/*"
            why = f"{listed(unread)} not recorded"
            yield unknown(check, name, expected=expected, why=why, hint=hint, source=source)
            continue
        if not bad:
            yield passed(check, name, expected=expected, actual=_value_text(parameters, name), source=source)
            continue
        actual = "; ".join(f"{row[1]}={parameters[row[1]]}: {row[3]}" for row in bad)
        hint = f"in /etc/modprobe.d remove: {', '.join(row[1] for row in bad)}; then reload the module or reboot"
        yield warned(check, name, expected=expected, actual=actual, source=source, hint=hint)


def _known(evidence: Evidence, module: str, option: str, value: str | None) -> bool:
    """Return whether an option is known: its value was read, or the module in this kernel has no such option."""
    return value in ("Y", "N", "1", "0") or (
        value is None and lacks(evidence, f"/sys/module/{module}/parameters/{option}")
    )


def _value_text(parameters: Mapping[str, str], name: str) -> str:
    known = [row[1] for row in _OPTIONS if row[0] == name and row[1] in parameters]
    return f"{', '.join(known)} off" if known else "nothing of the kind is set"


# --- what was applied ----------------------------------------------------------------------------------------


def pending_reboot(evidence: Evidence) -> Iterable[CheckResult]:
    """Check for settings that were staged for the next boot and do not have effect yet."""
    check = "kernel-arguments-pending"
    applied_state, result = _standing(evidence, check, "nothing waits for a reboot")
    if applied_state is None:
        yield result
        return
    pending = [entry for entry in applied_state.entries if entry.outcome == "pending"]
    waiting = [entry.action for entry in pending if entry.when is None]  # a reboot is not what the others wait for
    source = "hosttune status"
    expected = "nothing waits for a reboot"
    if not waiting and not applied_state.reboot_required:
        yield passed(check, HOST, expected=expected, actual="all staged arguments are in force", source=source)
        return
    actual = f"staged: {listed(waiting)}" if waiting else "what was reverted still works until the next boot"
    hint = "reboot, then validate again"
    if by_hand := [entry.action for entry in applied_state.entries if entry.is_unstaged]:
        actual = f"asked for, and not staged: {listed(by_hand)}"
        hint = f"add them to the kernel's arguments by hand (hosttune status has them), {hint}"
    yield failed(check, HOST, expected=expected, actual=actual, source=source, hint=hint)


def settings_in_force(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that each applied setting still has the value that it had after the apply."""
    check = "settings-in-force"
    applied_state, result = _standing(evidence, check, "every applied setting as it was left")
    if applied_state is None:
        yield result
        return
    if applied_state.open_transaction is not None:
        yield failed(
            check,
            HOST,
            expected="no unfinished transaction",
            actual=f"transaction {applied_state.open_transaction.number} is unfinished",
            source=applied_state.open_transaction.journal,
            hint="hosttune recover",
        )
    else:
        yield _in_force(check, applied_state)
    for drift in applied_state.drift:
        yield _drifted(check, drift)
    yield from _tuned(evidence, check, applied_state)


_NOT_IN_FORCE = ("ignored", "conflict")  # outcomes that `status` reports separately


def _in_force(check: str, applied_state: Result) -> CheckResult:
    expected = "every applied setting as it was left"
    by_outcome = {
        word: [entry.action for entry in applied_state.entries if entry.outcome == word] for word in _NOT_IN_FORCE
    }
    number = sum(not entry.waits for entry in applied_state.entries) - sum(map(len, by_outcome.values()))
    kept = number - len(applied_state.drift)
    short = [
        entry.action for entry in applied_state.entries if entry.outcome in ("clamped", "ignored", "stuck", "failed")
    ]
    if by_outcome["conflict"]:
        actual = f"{kept} in force; not reverted, since something else had changed it: {listed(by_outcome['conflict'])}"
        hint = "hosttune revert --force reverts it"
        return warned(check, HOST, expected=expected, actual=actual, source="hosttune status", hint=hint)
    if short:
        actual = f"{kept} in force; the kernel gave less than asked for: {listed(short)}"
        hint = "hosttune status says what it gave, and why"
        return warned(check, HOST, expected=expected, actual=actual, source="hosttune status", hint=hint)
    if applied_state.drift:
        actual = f"{kept} of {number} in force, the others below"
        return warned(
            check, HOST, expected=expected, actual=actual, source="hosttune status", hint="hosttune apply --intent FILE"
        )
    return passed(check, HOST, expected=expected, actual=f"{kept} in force", source="hosttune status")


def _drifted(check: str, drift: Drift) -> CheckResult:
    """Return the result for a setting that differs from its applied value; unknown if it cannot be read now."""
    expected = value_text(drift.expected, nothing="nothing")
    if drift.why is not None and drift.actual is None:
        return unknown(check, drift.action, expected=expected, why=drift.why, hint="run hosttune validate as root")
    hint = "hosttune apply --intent FILE sets it again; if it was meant: settings: {NAME: keep} there"
    actual = value_text(drift.actual, nothing="nothing")
    return failed(check, drift.action, expected=expected, actual=actual, source="hosttune status", hint=hint)


def _tuned(evidence: Evidence, check: str, applied_state: Result) -> Iterable[CheckResult]:
    """Compare applied settings with TuneD's active profile; no result if no profile is active."""
    expected = "TuneD sets nothing else than what is in force here"
    host = evidence.host
    wanted_settings = [
        wanted_setting
        for entry in applied_state.entries
        if entry.outcome not in _NOT_IN_FORCE
        for wanted_setting in _wanted_settings(entry)
    ]
    active = " ".join((host.settings or {}).get(ACTIVE, "").split())
    # If the host was recorded by another tool, and without TuneD's files, nothing shows that TuneD is installed.
    none = ACTIVE in (host.settings or {}) or lacks(evidence, ACTIVE) or (host.tuned is None and not evidence.complete)
    if not wanted_settings or (not active and none):
        return
    tuned = host.tuned
    hint = "leave each to one of the two: tuned-adm off, a profile of your own, or settings: NAME: keep and apply again"
    conflicts = tuned_conflicts(tuned, wanted_settings, host.kernel_args) if tuned else ()
    texts = list(conflict_lines(conflicts, OTHERWISE))
    if tuned and texts:
        actual = f"the active profile {' '.join(tuned.profiles)} sets otherwise at its next start: {listed(texts, 4)}"
        yield warned(check, _TUNED, expected=expected, actual=actual, source=ACTIVE, hint=hint)
        return
    why = None
    if tuned is None or not tuned.profiles:
        why = f"what profile {active} sets was not read" if active else "whether a profile is active was not read"
    elif names := unknown_profiles(tuned):
        why = f"what profile {' '.join(names)} sets is not known"
    elif unsure := list(conflict_lines(conflicts, UNSURE)):
        why = f"known only when TuneD starts: {listed(unsure, 4)}"
    if why is None:
        return
    if evidence.tuned_verified and not applied_state.drift:
        actual = f"{why}; tuned-adm verify: the settings in force match it"
        yield passed(check, _TUNED, expected=expected, actual=actual, source="tuned-adm verify")
        return
    if evidence.tuned_verified is False:
        why += "; tuned-adm verify: the settings in force differ from it"
    look = (
        f"look with: cat {ACTIVE}; tuned-adm profile_info; tuned-adm verify; hosttune status after TuneD's next start"
    )
    yield unknown(check, _TUNED, expected=expected, why=why, hint=look, source=ACTIVE)


def _wanted_settings(entry: Entry) -> Iterable[WantedSetting]:
    """Return the settings that an entry sets; kernel arguments that were written together become one setting each."""
    kind, _, target = entry.action.partition(":")
    if not reaches(kind, target):
        return ()
    if kind == "kernel-argument" and isinstance(entry.want, Mapping):
        return tuple(WantedSetting(kind, name, want) for name, want in entry.want.items())
    return () if entry.want is None else (WantedSetting(kind, target, entry.want),)


def _standing(evidence: Evidence, check: str, expected: str) -> tuple[Result | None, CheckResult]:
    """Return (the applied settings, or None if there are none or they are unknown; the result to report for None)."""
    doubt = next((problem for problem in evidence.problems if problem.what == STATE), None)
    if doubt is not None:
        hint = "run hosttune validate as root; hosttune status says what is wrong with the state"
        found = unknown(check, HOST, expected=expected, why=doubt.why, hint=hint, source=doubt.where)
        return None, found
    applied_state = evidence.applied_state
    if applied_state is None:
        return None, skipped(check, HOST, "a captured host keeps no state: what was applied to it is unknown")
    nothing = not applied_state.entries and not applied_state.reboot_required and applied_state.open_transaction is None
    return None if nothing else applied_state, skipped(check, HOST, "hosttune has applied nothing here")


CHECKS = (
    Check(
        id="kernel-arguments",
        title="Kernel arguments",
        subjects="the host",
        why="some arguments from the internet undo the isolation of guests or switch the IOMMU off",
        source="Linux Documentation/admin-guide/kernel-parameters, admin-guide/hw-vuln; it knows no pcie_acs_override",
        judge=kernel_arguments,
        for_guests=True,
    ),
    Check(
        id="module-options",
        title="VFIO module options",
        subjects="each VFIO module that has such options",
        why="an option set for another device once stays in force for all of them",
        source="modinfo vfio_pci, vfio_iommu_type1",
        judge=module_options,
        for_guests=True,
    ),
    Check(
        id="kernel-arguments-pending",
        title="Nothing waits for a reboot",
        subjects="the host, where something is applied",
        why="what is staged for the next boot does not work yet, and guests that need it cannot",
        source="hosttune's own journals and /proc/cmdline",
        judge=pending_reboot,
    ),
    Check(
        id="settings-in-force",
        title="Applied settings in force",
        subjects="the host where something is applied, each setting that has drifted, and TuneD where its active"
        " profile sets otherwise, or what it sets is not known",
        why="a later change by something else makes an earlier validation untrue",
        source="hosttune's own journals, read back; TuneD's profiles (hosttune.linux.tuned), tuned-adm verify",
        judge=settings_in_force,
    ),
)
