"""TuneD's active profile: what its files set, read as TuneD reads them, and where that is not what hosttune sets.

The profiles are written for these tests, with the keys that TuneD's own have (tuned 2.28, profiles/*/tuned.conf).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from damage import Damage, as_captured, load, read_by_discovery, with_damage
from evidences import evidence, judged
from evidences import host as evidence_host
from hypothesis import given
from hypothesis import strategies as st
from planhosts import Card, build_host, intent_of
from sickhosts import EXAMPLE

from hosttune import manifest
from hosttune.discovery import discover
from hosttune.discovery.tuned import MOST_BYTES, MOST_FILES, MOST_KEYS, read_tuned
from hosttune.model.host import Host, Tuned, TunedKey
from hosttune.model.intent import Intent
from hosttune.model.result import Entry, Result
from hosttune.model.values import FrozenMap, to_json
from hosttune.planning import plan
from hosttune.reader import Reader
from hosttune.recorded import Archive
from hosttune.recording import Recording
from hosttune.tuned import OTHERWISE, OVERRULED, UNSURE, WantedSetting, tuned_conflicts

BALANCED = "[main]\nsummary=x\n[cpu]\ngovernor=schedutil|powersave\nenergy_performance_preference=balance_performance\n"
LATENCY = """
[main]
[cpu]  # a comment
governor=performance
[vm]
transparent_hugepages=never
[sysctl]
vm.swappiness=10
kernel.numa_balancing=0
"""
USR, ETC = "/usr/lib/tuned/profiles", "/etc/tuned/profiles"


def read(active: str, files: Mapping[str, str], *, ours: bool = False, arch: str = "x86_64") -> Tuned:
    """`ours`: a capture whose manifest says that everything was looked for; what it then lacks was lost."""
    held = {path: text.encode() for path, text in files.items()}
    if ours:
        held["/.hosttune/capture"] = manifest.write((), (), []).encode()
    found = read_tuned(Reader(Archive(held, {}, "test", ())), active, arch)
    assert found is not None
    return found


def keys(found: Tuned) -> dict[str, str]:
    return {f"{one.plugin}.{one.key}": one.value for one in found.keys}


# --- reading -------------------------------------------------------------------------------------------------


def test_a_profile_is_merged_over_what_it_includes() -> None:
    files = {
        f"{USR}/latency/tuned.conf": LATENCY,
        f"{USR}/mine/tuned.conf": "[main]\ninclude = latency\n[sysctl]\nvm.swappiness = 1\n"
        "[vm]\nreplace=1\ndirty_ratio=3\n",
    }
    found = read("mine", files)
    assert keys(found) == {
        "cpu.governor": "performance",
        "sysctl.vm.swappiness": "1",
        "sysctl.kernel.numa_balancing": "0",
        "vm.dirty_ratio": "3",
    }
    assert found.unread == ()
    assert {one.key: one.where for one in found.keys}["kernel.numa_balancing"] == f"{USR}/latency/tuned.conf"


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (("/usr/lib/tuned", "/etc/tuned"), "/etc/tuned"),
        (("/usr/lib/tuned/profiles", "/etc/tuned/profiles"), "/etc/tuned/profiles"),
        (("/usr/lib/tuned",), "/usr/lib/tuned"),
    ],
)
def test_the_users_profile_counts_before_the_systems(folders: tuple[str, ...], expected: str) -> None:
    found = read("p", {f"{folder}/p/tuned.conf": "[sysctl]\na=1\n" for folder in folders})
    assert [one.where for one in found.keys] == [f"{expected}/p/tuned.conf"]


def test_a_profile_may_include_the_systems_of_its_own_name_and_loops_end() -> None:
    files = {
        f"{ETC}/p/tuned.conf": "[main]\ninclude=p\n[sysctl]\na=2\n",
        f"{USR}/p/tuned.conf": "[main]\ninclude=p,-none\n[sysctl]\na=1\nb=1\n",
    }
    found = read("p", files)
    assert (keys(found), found.unread) == ({"sysctl.a": "2", "sysctl.b": "1"}, ())


def test_several_profiles_and_the_one_loaded_after_them_count_in_order() -> None:
    files = {f"{USR}/{name}/tuned.conf": f"[sysctl]\na={name}\n" for name in ("one", "two", "last")}
    assert keys(read("one two", files)) == {"sysctl.a": "two"}
    found = read("two one", {**files, "/etc/tuned/post_loaded_profile": "last\n"})
    assert (found.profiles, keys(found)) == (("two", "one", "last"), {"sysctl.a": "last"})


def test_units_that_are_off_or_of_another_machine_set_nothing() -> None:
    text = (
        "[sysctl]\nenabled=0\na=1\n[sysctl.arm]\ntype=sysctl\nuname_regex=aarch64\nb=1\n"
        "[sysctl.some]\ntype=sysctl\ncpuinfo_regex=CPU part\nc=1\n[disk]\ndevices=sd*,!sda\nelevator=bfq\n"
    )
    found = read("p", {f"{USR}/p/tuned.conf": text})
    assert [(one.key, one.sure) for one in found.keys] == [("c", False)]
    assert "sysctl.b" in keys(read("p", {f"{USR}/p/tuned.conf": text}, arch="aarch64"))


def test_variables_are_put_in_and_functions_are_not_carried_out() -> None:
    text = (
        "[variables]\ninclude=/etc/tuned/v.conf\nmore=${cores},9\n"
        "[irqbalance]\nbanned_cpus=${more}\n[sysfs]\n/sys/a=${f:exec:reboot}\n"
        "[bootloader]\ncmdline_a=+isolcpus=${cores} quiet\ncmdline_b=-quiet\ncmdline_c=nohz=${unknown}\n"
    )
    found = read("p", {f"{USR}/p/tuned.conf": text, "/etc/tuned/v.conf": "# mine\ncores=2-7\n"})
    assert keys(found) == {
        "irqbalance.banned_cpus": "2-7,9",
        "sysfs./sys/a": "${f:exec:reboot}",
        "bootloader.cmdline": "isolcpus=2-7 nohz=${unknown}",
    }
    assert {one.plugin: one.sure for one in found.keys}["sysfs"] is False


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no such profile"),
        ({f"{USR}/p/tuned.conf": "[main]\ninclude=gone\n"}, "gone/tuned.conf: no such profile"),
        ({f"{USR}/p/tuned.conf": "[main]\ninclude=${f:exec:x}\n"}, "worked out when TuneD starts"),
        ({f"{USR}/p/tuned.conf": "a=1\n"}, "line 1 is not configuration"),
        ({f"{USR}/p/tuned.conf": "[main\n"}, "line 1 is not configuration"),
        ({f"{USR}/p/tuned.conf": "#" * (MOST_BYTES + 1)}, "larger than"),
        ({f"{USR}/p/tuned.conf": "[variables]\ninclude=/etc/shadow\n"}, "not in TuneD's folders"),
        ({f"{USR}/p/tuned.conf": "[variables]\ninclude=/etc/tuned/../shadow\n"}, "not in TuneD's folders"),
        ({f"{USR}/p/tuned.conf": "[sysctl]\n" + "".join(f"a{n}=1\n" for n in range(MOST_KEYS + 1))}, "more than"),
        ({f"{USR}/p/tuned.conf": f"[main]\ninclude={','.join(f'-x{n}' for n in range(MOST_FILES))}\n"}, "more than"),
    ],
)
def test_what_cannot_be_read_is_said(files: dict[str, str], said: str) -> None:
    (text,) = read("p", files).unread
    assert said in text


def test_a_file_that_a_capture_has_lost_is_said_and_not_taken_from_elsewhere() -> None:
    found = read("p", {f"{USR}/p/tuned.conf": "[sysctl]\na=1\n"}, ours=True)
    assert found.keys == ()
    assert any(f"{ETC}/p/tuned.conf: could not be read" in text for text in found.unread)


def test_a_capture_holds_what_was_read_of_tuned() -> None:
    files = {
        "/sys/devices/system/cpu/online": "0\n",
        "/etc/tuned/active_profile": "p\n",
        f"{USR}/p/tuned.conf": "[main]\ninclude=q\n[variables]\ninclude=/etc/tuned/v.conf\n",
        f"{USR}/q/tuned.conf": LATENCY,
        "/etc/tuned/v.conf": "a=1\n",
    }
    recording = Recording(Archive({path: text.encode() for path, text in files.items()}, {}, "test", ()))
    host = discover(recording)
    assert set(files) <= set(recording.files)
    assert host.tuned is not None
    assert keys(host.tuned)["sysctl.vm.swappiness"] == "10"
    assert Host.from_json(host.to_json()).tuned == host.tuned


@given(st.text(alphabet="[]=#;,$\\{} \t\n\rabmintuvrcludes*/.-+0", max_size=300))
def test_no_file_is_too_odd(text: str) -> None:
    found = read("p", {f"{USR}/p/tuned.conf": text})
    assert len(found.keys) <= MOST_KEYS


# --- holding it against what hosttune sets -------------------------------------------------------------------

CPUS = "cpus 0-3"


def held(
    plugin: str, key: str, value: str, wanted_setting: WantedSetting, *, sure: bool = True, args: Any = (), **more: Any
) -> str:
    tuned = Tuned(profiles=("p",), keys=(TunedKey(plugin=plugin, key=key, value=value, where="/f", sure=sure),), **more)
    found = tuned_conflicts(tuned, (wanted_setting,), args)
    return found[0].how if found else "none"


@pytest.mark.parametrize(
    ("plugin", "key", "value", "wanted_setting", "how"),
    [
        ("cpu", "governor", "performance", ("governor", CPUS, "performance"), "none"),
        ("cpu", "governor", "schedutil|powersave", ("governor", CPUS, "performance"), OTHERWISE),
        ("cpu", "governor", "schedutil|performance", ("governor", CPUS, "performance"), UNSURE),
        ("cpu", "governor", "powersave", ("governor", CPUS, {"0-1": "powersave", "2-3": "performance"}), OTHERWISE),
        ("cpu", "energy_performance_preference", "power", ("energy-preference", CPUS, "performance"), OTHERWISE),
        ("cpu", "energy_performance_preference", "128", ("energy-preference", CPUS, "performance"), UNSURE),
        ("cpu", "energy_perf_bias", "normal", ("energy-preference", CPUS, "performance"), "none"),
        ("cpu", "force_latency", "cstate.id:1|3", ("resume-latency", CPUS, "10"), "none"),
        ("cpu", "pm_qos_resume_latency_us", "100", ("resume-latency", CPUS, "10"), OTHERWISE),
        ("vm", "transparent_hugepages", "never", ("thp", "/x", "madvise"), OTHERWISE),
        ("vm", "transparent_hugepage", "madvise", ("thp", "/x", "madvise"), "none"),
        ("vm", "dirty_ratio", "3", ("thp", "/x", "madvise"), "none"),
        ("sysctl", "kernel.numa_balancing", "1", ("numa-balancing", "kernel.numa_balancing", 0), OTHERWISE),
        ("sysctl", "kernel.numa_balancing", "0", ("numa-balancing", "kernel.numa_balancing", 0), "none"),
        ("sysctl", "vm.swappiness", "10", ("sysctl", "vm.swappiness", "60"), OVERRULED),
        ("sysctl", "vm.swappiness", ">10", ("sysctl", "vm.swappiness", "60"), "none"),
        ("sysctl", "vm.swappiness", "60", ("sysctl", "vm.max_map_count", "70000"), "none"),
        ("sysctl", "vm.nr_hugepages", "8", ("hugepages", "/sys/x", 4), UNSURE),
        ("sysfs", "/sys/kernel/mm/ksm/run", "1", ("ksm", "/sys/kernel/mm/ksm/run", 2), OTHERWISE),
        ("sysfs", "/sys/kernel/mm/ksm/run", "2", ("ksm", "/sys/kernel/mm/ksm/run", 2), "none"),
        ("sysfs", "/sys/kernel/mm/k*/run", "${x}", ("ksm", "/sys/kernel/mm/ksm/run", 2), UNSURE),
        (
            "sysfs", "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", "powersave",
            ("governor", CPUS, "performance"), OTHERWISE,
        ),
        (
            "sysfs", "/sys/devices/system/cpu/cpu9/cpufreq/scaling_governor", "powersave",
            ("governor", CPUS, "performance"), "none",
        ),
        ("sysfs", "/sys/block/sd*/queue/scheduler", "bfq", ("nvme-queue", "a n1", {"scheduler": "none"}), "none"),
        ("sysfs", "/sys/block/*/queue/scheduler", "bfq", ("nvme-queue", "a n1", {"scheduler": "none"}), OTHERWISE),
        ("disk", "elevator", "bfq", ("nvme-queue", "a n1", {"scheduler": "none"}), OTHERWISE),
        ("disk", "elevator", "bfq", ("nvme-queue", "a n1", {"rq_affinity": 2}), "none"),
        ("disk", "readahead", ">4096", ("nvme-queue", "a n1", {"scheduler": "none"}), "none"),
        ("irqbalance", "banned_cpus", "2-3", ("irqbalance-ban", "irqbalance", "2,3"), "none"),
        ("irqbalance", "banned_cpus", "2-7", ("irqbalance-ban", "irqbalance", "2-3"), OTHERWISE),
        ("irqbalance", "banned_cpus", "${x}", ("irqbalance-ban", "irqbalance", "2-3"), UNSURE),
        ("scheduler", "isolated_cores", "4-7", ("irq-affinity", "0000:41:00.0", "0-1"), "none"),
        ("scheduler", "isolated_cores", "0-7", ("irq-affinity", "0000:41:00.0", "0-1"), OTHERWISE),
        ("irq", "affinity", "2", ("irq-affinity", "0000:41:00.0", "0-1"), OTHERWISE),
        ("irq", "affinity", "", ("irq-affinity", "0000:41:00.0", "0-1"), "none"),
        ("bootloader", "cmdline", "isolcpus=2 quiet", ("kernel-argument", "isolcpus", "isolcpus=4-7"), OTHERWISE),
        ("bootloader", "cmdline", "isolcpus=2 quiet", ("kernel-argument", "iommu", "iommu=pt"), "none"),
        ("bootloader", "cmdline", "iommu=pt", ("kernel-argument", "iommu", "iommu=pt"), "none"),
        ("bootloader", "cmdline", "iommu=off", ("kernel-argument", "iommu", None), OTHERWISE),
        ("bootloader", "cmdline", "isolcpus=${x}", ("kernel-argument", "isolcpus", "isolcpus=4"), UNSURE),
        ("bootloader", "cmdline", "${f:x}", ("kernel-argument", "isolcpus", "isolcpus=4"), UNSURE),
        ("service", "service.ksmtuned", "start,enable", ("ksm", "/sys/kernel/mm/ksm/run", 2), OTHERWISE),
        ("service", "service.ksmtuned", "stop", ("ksm", "/sys/kernel/mm/ksm/run", 2), "none"),
    ],
)  # fmt: skip
def test_a_key_is_held_against_a_setting(
    plugin: str, key: str, value: str, wanted_setting: tuple[str, str, Any], how: str
) -> None:
    want = FrozenMap(wanted_setting[2]) if isinstance(wanted_setting[2], dict) else wanted_setting[2]
    assert held(plugin, key, value, WantedSetting(wanted_setting[0], wanted_setting[1], want)) == how


def test_a_doubtful_key_is_never_a_proven_fight() -> None:
    wanted_setting = WantedSetting("thp", "/x", "madvise")
    assert held("vm", "transparent_hugepages", "never", wanted_setting, sure=False) == UNSURE
    assert (
        held("vm", "transparent_hugepages", "never", wanted_setting, args=("transparent_hugepage=madvise",)) == "none"
    )
    assert held("vm", "transparent_hugepages", "never", wanted_setting, args=None) == UNSURE


def test_sysctls_are_ours_unless_tuned_is_told_not_to_apply_sysctl_d_again() -> None:
    wanted_setting = WantedSetting("sysctl", "vm.swappiness", "60")
    assert held("sysctl", "vm.swappiness", "10", wanted_setting, reapply_sysctl=False) == OTHERWISE
    assert held("sysctl", "vm.swappiness", "10", wanted_setting, reapply_sysctl_exclude=("vm.*",)) == OTHERWISE
    main = {f"{USR}/p/tuned.conf": "[sysctl]\na=1\n", "/etc/tuned/tuned-main.conf": "daemon = 1\nreapply_sysctl = 0\n"}
    assert read("p", main).reapply_sysctl is False


# --- the plan ------------------------------------------------------------------------------------------------


def said(text: str | None, *, profile: str = "host", driver: str = "intel_pstate") -> list[tuple[str, str]]:
    """(level, text) of the findings about TuneD, its profile p being made of this file; None: the file is not there."""
    document = build_host(cards=[Card("0000:41:00.0", 0, group=1)])
    document["settings"] = {"/etc/tuned/active_profile": "p"}
    document["cpu_model"] = {"vendor": "GenuineIntel", "scaling_driver": driver}
    document["kernel_args"] = ["quiet"]
    document["cpus"] = [{**cpu, "governor": "powersave", "energy_preference": "power"} for cpu in document["cpus"]]
    host = Host.from_json(to_json(document))
    tuned = read("p", {} if text is None else {f"{USR}/p/tuned.conf": text})
    host = Host.from_json(to_json({**document, "tuned": tuned}))
    wanted = intent_of(gpus=1, vcpus=4, memory="4GiB", profile=profile)
    made = plan(host, Intent.from_json(to_json(wanted)))
    return [(one.level, one.text) for one in made.findings if "TuneD" in one.text]


def test_the_plan_names_what_the_profile_sets_otherwise_and_nothing_else() -> None:
    ((level, text),) = said(BALANCED, profile="guest")
    assert level == "warn"
    assert "energy-preference (energy_performance_preference=balance_performance in" in text
    assert "here performance)" in text
    for other in ("irqbalance-ban", "numa-balancing", "governor"):
        assert f"{other} (" not in text
    assert said(LATENCY.replace("transparent_hugepages=never", "")) == []
    ((level, text),) = said(LATENCY)
    assert (level, "thp (transparent_hugepages=never" in text) == ("warn", True)


def test_an_active_profile_that_was_lost_is_no_proof_of_none() -> None:
    bare = load(EXAMPLE).put({"/etc/tuned/active_profile": "p\n", f"{USR}/p/tuned.conf": BALANCED})
    whole = as_captured(bare, read_by_discovery(bare))
    host = discover(whole.system())
    assert host.tuned is not None
    assert (host.tuned.profiles, host.tuned.unread) == (("p",), ())
    for lost in ("/etc/tuned/active_profile", f"{USR}/p/tuned.conf"):
        found = discover(with_damage(whole, Damage("lost", lost, lost)).system()).tuned
        assert found is not None
        assert found.unread, lost
    nothing = load(EXAMPLE)
    assert discover(as_captured(nothing, read_by_discovery(nothing)).system()).tuned is None


def test_the_plan_says_what_of_the_profile_is_not_known() -> None:
    ((level, text),) = said(None)
    assert level == "warn"
    assert "no such profile" in text
    ((level, text),) = said("[bootloader]\ncmdline=iommu=${x}\n")
    assert (level, "kernel-argument (cmdline=iommu=${x}" in text) == ("warn", True)


# --- the check -----------------------------------------------------------------------------------------------

STANDING = Result(
    verb="status",
    entries=(
        Entry(action="energy-preference:cpus 0-3", outcome="done", want="performance"),
        Entry(action="thp:/sys/kernel/mm/transparent_hugepage/enabled", outcome="ignored", want="madvise"),
    ),
)


def tuned_result(text: str | None, *, active: str | None = "p", **more: Any) -> tuple[str, str] | None:
    settings = {} if active is None else {"/etc/tuned/active_profile": active}
    tuned = None if text is None else read("p", {f"{USR}/p/tuned.conf": text})
    found = evidence(evidence_host(settings=settings, tuned=tuned), applied_state=STANDING, **more)
    result = judged("settings-in-force", found).get("TuneD")
    return None if result is None else (result.outcome, result.actual or "")


def test_validate_warns_where_tuned_sets_otherwise_what_is_in_force() -> None:
    outcome, actual = tuned_result(BALANCED) or ("", "")
    assert outcome == "warn"
    assert "energy-preference (energy_performance_preference=balance_performance" in actual
    assert tuned_result(LATENCY) is None  # its THP is not in force here
    assert tuned_result(LATENCY, active="") is None
    assert tuned_result(None, active=None) is None


def test_validate_does_not_know_what_it_could_not_read() -> None:
    assert (tuned_result("a=1") or ("",))[0] == "unknown"
    assert (tuned_result("[main]\ninclude=gone\n") or ("",))[0] == "unknown"
    assert (tuned_result("[cpu]\ndevices=cpu0\nenergy_performance_preference=power\n") or ("",))[0] == "unknown"
    assert (tuned_result(None) or ("",))[0] == "unknown"
    assert (tuned_result(None, active=None, absent=()) or ("",))[0] == "unknown"
    assert tuned_result(None, active=None, complete=False) is None  # somebody else recorded it, and nothing of TuneD
