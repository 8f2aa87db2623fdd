"""TuneD's active profile: where it sets what hosttune sets to another value, and what TuneD itself says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from damage import Damage, as_captured, load, read_by_discovery, with_damage
from evidences import evidence, judged
from evidences import host as evidence_host
from planhosts import Card, build_host, intent_of
from sickhosts import EXAMPLE

from hosttune.discovery import discover
from hosttune.discovery.evidence import gather
from hosttune.discovery.recording import Recording
from hosttune.discovery.settings import VERIFY, read_tuned
from hosttune.knobs.registry import all_knobs
from hosttune.linux.tuned import (
    OTHERWISE,
    OVERRULED,
    PROFILES,
    UNSURE,
    WantedSetting,
    tuned_conflicts,
    unknown_profiles,
)
from hosttune.machine.capture import Archive
from hosttune.machine.reader import Reader
from hosttune.machine.system import COMMANDS
from hosttune.model.host import Host, Tuned
from hosttune.model.intent import Intent
from hosttune.model.result import Drift, Entry, Result
from hosttune.model.values import FrozenMap, to_json
from hosttune.planning import plan
from hosttune.settings.sysctl import NAMES

ACTIVE = "/etc/tuned/active_profile"
PASSED = "Verification succeeded, current system settings match the preset profile.\nSee TuneD log file."
FAILED = "Verification failed, current system settings differ from the preset profile.\nYou can mostly fix this by"


def read(active: str, files: Mapping[str, str]) -> Tuned:
    held = {path: text.encode() for path, text in files.items()}
    found = read_tuned(Reader(Archive(held, {}, "test", ())), active)
    assert found is not None
    return found


# --- reading -------------------------------------------------------------------------------------------------


def test_the_names_and_the_mode_are_read() -> None:
    found = read("virtual-host balanced", {"/etc/tuned/profile_mode": "auto\n"})
    assert (found, unknown_profiles(found)) == (Tuned(profiles=("virtual-host", "balanced"), mode="auto"), ())
    found = read("virtual-host", {"/etc/tuned/post_loaded_profile": "mine\n"})
    assert (found.profiles, unknown_profiles(found)) == (("virtual-host", "mine"), ("mine",))


@pytest.mark.parametrize("folder", ["/etc/tuned", "/etc/tuned/profiles"])
def test_the_users_version_of_a_known_profile_is_not_taken_for_the_known_one(folder: str) -> None:
    found = read("virtual-host", {f"{folder}/virtual-host/tuned.conf": "[main]\n"})
    assert unknown_profiles(found) == found.own == ("virtual-host",)


def test_a_capture_holds_what_was_read_of_tuned_and_its_verdict() -> None:
    for said, verdict in ((PASSED, True), (FAILED, False), ("Not supported in no_daemon mode.", None), (None, None)):
        files = {"/sys/devices/system/cpu/online": "0\n", ACTIVE: "balanced\n", "/etc/tuned/profile_mode": "manual\n"}
        files |= {} if said is None else {COMMANDS + VERIFY: said}
        recording = Recording(Archive({path: text.encode() for path, text in files.items()}, {}, "test", ()))
        seen = gather(recording)
        assert seen.tuned_verified is verdict
        assert recording.answers.get(VERIFY) == said
        assert {ACTIVE, "/etc/tuned/profile_mode"} <= set(recording.files)
        assert (
            Host.from_json(seen.host.to_json()).tuned == seen.host.tuned == Tuned(profiles=("balanced",), mode="manual")
        )


def test_an_active_profile_that_was_lost_is_no_proof_of_none() -> None:
    bare = load(EXAMPLE).put({ACTIVE: "balanced\n", "/etc/tuned/balanced/tuned.conf": "[main]\n"})
    whole = as_captured(bare, read_by_discovery(bare))
    assert discover(whole.system()).tuned == Tuned(profiles=("balanced",), own=("balanced",))
    assert discover(with_damage(whole, Damage("lost", ACTIVE, ACTIVE)).system()).tuned == Tuned(profiles=())
    nothing = load(EXAMPLE)
    assert discover(as_captured(nothing, read_by_discovery(nothing)).system()).tuned is None


# --- holding it against what hosttune sets -------------------------------------------------------------------

CPUS = "cpus 0-3"
KSM = ("ksm", "/sys/kernel/mm/ksm/run")


def held(active: str, *setting: Any, args: Any = (), **more: Any) -> str:
    want = FrozenMap(setting[2]) if isinstance(setting[2], dict) else setting[2]
    tuned = Tuned(profiles=tuple(active.split()), **more)
    found = tuned_conflicts(tuned, (WantedSetting(setting[0], setting[1], want),), args)
    return found[0].how if found else "none"


@pytest.mark.parametrize(
    ("profile", "setting", "how"),
    [
        ("virtual-host", ("governor", CPUS, "performance"), "none"),
        ("virtual-host", ("governor", CPUS, "powersave"), OTHERWISE),
        ("balanced", ("governor", CPUS, "performance"), OTHERWISE),
        ("balanced", ("governor", CPUS, "powersave"), UNSURE),
        ("virtual-host", ("governor", CPUS, {"0-1": "powersave", "2-3": "performance"}), OTHERWISE),
        ("balanced", ("energy-preference", CPUS, "performance"), OTHERWISE),
        ("latency-performance", ("energy-preference", CPUS, "power"), "none"),
        ("network-latency", ("thp", "/x", "madvise"), OTHERWISE),
        ("throughput-performance", ("thp", "/x", "madvise"), "none"),
        ("network-latency", ("numa-balancing", "kernel.numa_balancing", 0), "none"),
        ("network-latency", ("numa-balancing", "kernel.numa_balancing", 1), OTHERWISE),
        ("virtual-host", ("sysctl", "vm.swappiness", "60"), OVERRULED),
        ("virtual-host", ("sysctl", "vm.swappiness", "10"), "none"),
        ("virtual-host", ("sysctl", "vm.max_map_count", "70000"), "none"),
        ("realtime-virtual-host", (*KSM, 2), "none"),
        ("realtime-virtual-host", (*KSM, 0), OTHERWISE),
        ("cpu-partitioning", ("irqbalance-ban", "irqbalance", "2-3"), UNSURE),
        ("cpu-partitioning", ("irq-affinity", "0000:41:00.0", "0-1"), UNSURE),
        ("cpu-partitioning", ("kernel-argument", "nohz_full", "nohz_full=4-7"), UNSURE),
        ("cpu-partitioning", ("kernel-argument", "iommu", "iommu=pt"), "none"),
        ("balanced virtual-host", ("governor", CPUS, "performance"), "none"),  # the later one counts
        ("virtual-host balanced", ("governor", CPUS, "performance"), OTHERWISE),
        ("balanced mine", ("governor", CPUS, "performance"), UNSURE),
        ("mine", ("governor", CPUS, "performance"), "none"),
    ],
)
def test_a_profile_is_held_against_a_setting(profile: str, setting: tuple[str, str, Any], how: str) -> None:
    assert held(profile, *setting) == how


def test_tuned_leaves_thp_to_the_kernels_arguments() -> None:
    setting = ("thp", "/x", "madvise")
    assert held("network-latency", *setting, args=("transparent_hugepage=madvise",)) == "none"
    assert held("network-latency", *setting, args=None) == UNSURE


def test_the_table_names_only_what_hosttune_sets() -> None:
    named = {key.partition(" ")[::2] for values in PROFILES.values() for key in values}
    assert {kind for kind, _ in named} <= {knob.setting.kind for knob in all_knobs().values()}
    assert {target for kind, target in named if kind == "sysctl"} <= NAMES.keys()


# --- the plan ------------------------------------------------------------------------------------------------


def said(active: str | None, *, tuned: Tuned | None = None, profile: str = "host") -> list[tuple[str, str]]:
    """(level, text) of the findings about TuneD."""
    document = build_host(cards=[Card("0000:41:00.0", 0, group=1)])
    document["settings"] = {} if active is None else {ACTIVE: active}
    document["cpu_model"] = {"vendor": "GenuineIntel", "scaling_driver": "intel_pstate"}
    document["kernel_args"] = ["quiet"]
    document["cpus"] = [{**cpu, "governor": "powersave", "energy_preference": "power"} for cpu in document["cpus"]]
    host = Host.from_json(to_json({**document, "tuned": tuned}))
    wanted = intent_of(gpus=1, vcpus=4, memory="4GiB", profile=profile)
    made = plan(host, Intent.from_json(to_json(wanted)))
    return [(one.level, one.text) for one in made.findings if "TuneD" in one.text]


def test_the_plan_names_what_the_profile_sets_otherwise_and_nothing_else() -> None:
    ((level, text),) = said("balanced", profile="guest", tuned=Tuned(profiles=("balanced",), mode="auto"))
    assert level == "warn"
    assert "TuneD's profile balanced (which TuneD chose itself) sets otherwise" in text
    assert "energy-preference (balance_performance in the profile, here performance)" in text
    for other in ("irqbalance-ban", "numa-balancing", "governor"):
        assert f"{other} (" not in text
    assert said("virtual-host\n") == said("\n") == said(None) == []
    ((level, text),) = said("network-latency")
    assert (level, "thp (never in the profile, here madvise)" in text) == ("warn", True)


def test_the_plan_says_what_of_the_profile_is_not_known() -> None:
    ((level, text),) = said("mine")
    assert level == "warn"
    assert "what TuneD's profile mine sets is not known" in text
    assert "tuned-adm profile_info mine" in text
    ((level, text),) = said("virtual-host", tuned=Tuned(profiles=("virtual-host",), own=("virtual-host",)))
    assert (level, "profile virtual-host sets is not known" in text) == ("warn", True)
    ((level, text),) = said(None, tuned=Tuned(profiles=()))
    assert (level, "could not be read" in text) == ("warn", True)
    assert len(said("mine", profile="none")) == 1  # of pages


# --- the check -----------------------------------------------------------------------------------------------

STANDING = Result(
    verb="status",
    entries=(
        Entry(action="energy-preference:cpus 0-3", outcome="done", want="performance"),
        Entry(action="thp:/sys/kernel/mm/transparent_hugepage/enabled", outcome="ignored", want="madvise"),
    ),
)
DRIFTED = Result(
    verb="status",
    entries=STANDING.entries,
    drift=(Drift(action="energy-preference:cpus 0-3", expected="performance", actual="power"),),
)


def tuned_result(
    *profiles: str, active: str | None = "p", state: Result = STANDING, **more: Any
) -> tuple[str, str] | None:
    settings = {} if active is None else {ACTIVE: active}
    tuned = Tuned(profiles=profiles) if profiles else None
    found = evidence(evidence_host(settings=settings, tuned=tuned), applied_state=state, **more)
    result = judged("settings-in-force", found).get("TuneD")
    return None if result is None else (result.outcome, result.actual or "")


def test_validate_warns_where_tuned_sets_otherwise_what_is_in_force() -> None:
    outcome, actual = tuned_result("balanced") or ("", "")
    assert outcome == "warn"
    assert "energy-preference (balance_performance in the profile, here performance)" in actual
    assert tuned_result("network-latency") is None  # its THP is not in force here
    assert tuned_result(active="") is None
    assert tuned_result(active=None) is None


def test_validate_does_not_know_a_profile_of_the_users_own_unless_tuned_does() -> None:
    assert (tuned_result("mine") or ("",))[0] == "unknown"
    assert (tuned_result("mine", tuned_verified=True) or ("",))[0] == "pass"
    outcome, actual = tuned_result("mine", tuned_verified=False) or ("", "")
    assert (outcome, "differ" in actual) == ("unknown", True)
    # What is not in force any more may be what TuneD has set.
    assert (tuned_result("mine", tuned_verified=True, state=DRIFTED) or ("",))[0] == "unknown"
    assert (tuned_result("balanced", tuned_verified=True) or ("",))[0] == "warn"


def test_validate_does_not_know_what_it_could_not_read() -> None:
    assert (tuned_result() or ("",))[0] == "unknown"
    assert (tuned_result(active=None, absent=()) or ("",))[0] == "unknown"
    assert tuned_result(active=None, complete=False) is None  # somebody else recorded it, and nothing of TuneD
