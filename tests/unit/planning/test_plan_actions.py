"""Actions of a plan: settings and their values, boot arguments, the IOMMU, page pools of unknown size.

Hosts are synthetic (`planhosts`); expected values follow mm/hugetlb.c and admin-guide/kernel-parameters of
the Linux kernel.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from planhosts import Card, build_host, intent_of

from hosttune.errors import BadInput
from hosttune.knobs.kernelargs import add_cpus, boot_pages, passthrough
from hosttune.knobs.registry import all_knobs
from hosttune.model.commandline import read_boot_pages
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Plan
from hosttune.model.values import CpuSet, to_json
from hosttune.planning import plan

GIB = 1 << 30
GPU = Card("0000:41:00.0", 0, group=1)
LOOSE = Card("0000:41:00.0", 0)  # no IOMMU group read
Json = dict[str, Any]


def planned(host: Json, **intent: Any) -> Plan:
    document = intent_of(**{"vcpus": 4, "memory": "4GiB", **intent})
    return plan(Host.from_json(to_json(host)), Intent.from_json(to_json(document)))


def arguments(made: Plan) -> dict[str, tuple[Any, Any, bool]]:
    """Kernel arguments by target: current, want, needed."""
    rows = [a for a in made.actions if a.kind == "kernel-argument"]
    assert all(a.effect == "reboot" for a in rows)
    assert len({a.id for a in rows}) == len(rows)
    return {a.target: (a.current, a.want, a.needed) for a in rows}


def action(made: Plan, kind: str) -> Action:
    (found,) = [a for a in made.actions if a.kind == kind]
    return found


def said(made: Plan, level: str, where: str) -> list[str]:
    return [f.text for f in made.findings if f.level == level and where in f.where]


# --- pages at boot -------------------------------------------------------------------------------------------


def boot(host: Json, **intent: Any) -> tuple[Any, Any, bool] | None:
    return arguments(planned(host, profile="host", hugepages="1GiB", **intent)).get("hugepages")


def test_boot_pages_are_one_value_with_their_size() -> None:
    """The guest takes 4 of node 0; node 1's pool of 6, 2 of them in use, stays as it is."""
    host = build_host(hugepages={0: {GIB: (10, 1)}, 1: {GIB: (6, 4)}}, cards=[GPU])
    assert boot(host, gpus=1) == (None, "hugepagesz=1G hugepages=0:13,1:6", False)


def test_boot_pages_of_a_node_without_any_are_left_out() -> None:
    assert boot(build_host(cards=[GPU]), gpus=1) == (None, "hugepagesz=1G hugepages=0:4", False)


def test_no_boot_pages_where_the_profile_does_not_ask_or_the_guest_has_others() -> None:
    host = build_host(cards=[GPU])
    assert "hugepages" not in arguments(planned(host, gpus=1, hugepages="1GiB"))
    assert "hugepages" not in arguments(planned(host, gpus=1, hugepages="2MiB", profile="host"))
    assert "hugepages" not in arguments(
        planned(host, gpus=1, hugepages="1GiB", profile="host", settings={"boot_pages": "keep"})
    )


def test_what_the_plan_wants_is_enough_for_the_next_plan() -> None:
    host = build_host(hugepages={0: {GIB: (10, 1)}, 1: {GIB: (6, 4)}}, cards=[GPU])
    _, want, _ = boot(host, gpus=1) or (None, "", False)
    assert boot({**host, "kernel_args": ["quiet", *want.split()]}, gpus=1) is None


TOTALS = {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("line", "totals", "needed", "change"),
    [
        (None, TOTALS, {0: 4}, (None, "0:4")),
        ("quiet hugepagesz=1G hugepages=0:4", TOTALS, {0: 4}, None),
        ("hugepagesz=1G hugepages=0:8", TOTALS, {0: 4}, None),
        ("hugepagesz=1024M hugepages=0:8", TOTALS, {0: 4}, None),
        ("hugepagesz=1G quiet hugepages=0:8", TOTALS, {0: 4}, None),  # other arguments between change nothing
        ("hugepagesz=1G hugepages=1:8", TOTALS, {0: 4}, ("hugepagesz=1G hugepages=1:8", "0:4,1:8")),
        ("hugepagesz=1G hugepages=0:2,1:8", TOTALS, {0: 4}, ("hugepagesz=1G hugepages=0:2,1:8", "0:4,1:8")),
        # pages that were made since the boot stay too
        ("hugepagesz=1G hugepages=0:2", {0: 2, 1: 6}, {0: 4}, ("hugepagesz=1G hugepages=0:2", "0:4,1:6")),
        # a number without a node is shared out by the kernel, evenly unless a node is too small for its part
        ("hugepagesz=1G hugepages=16", {0: 8, 1: 8}, {0: 8}, None),
        ("hugepagesz=1G hugepages=16", {0: 12, 1: 4}, {0: 12}, None),
        ("hugepagesz=1G hugepages=16", {0: 8, 1: 8}, {0: 9}, ("hugepagesz=1G hugepages=16", "0:9,1:8")),
        ("hugepagesz=1G hugepages=15", TOTALS, {1: 9}, ("hugepagesz=1G hugepages=15", "0:8,1:9")),
        ("hugepagesz=1G hugepages=2", {0: 9, 1: 9}, {0: 9}, ("hugepagesz=1G hugepages=2", "0:9,1:9")),
        # the size before a count is the one that counts
        ("hugepages=512", TOTALS, {0: 4}, (None, "0:4")),
        ("hugepagesz=2M hugepages=0:512", TOTALS, {0: 4}, (None, "0:4")),
        ("hugepagesz=1G hugepagesz=2M hugepages=0:512", TOTALS, {0: 4}, ("hugepagesz=1G", "0:4")),
        ("hugepagesz=2M hugepages=64 hugepagesz=1G hugepages=0:4", TOTALS, {0: 4}, None),
        ("default_hugepagesz=1G hugepages=0:4", TOTALS, {0: 4}, None),
        ("hugepages=0:4 default_hugepagesz=1G", TOTALS, {0: 4}, None),
        ("default_hugepagesz=1G hugepages=0:4", TOTALS, {0: 5}, ("hugepages=0:4", "0:5")),
        ("hugepagesz=1G hugepages=0:9 hugepagesz=1G hugepages=0:2", TOTALS, {0: 9}, None),  # the kernel ignores it
        # what cannot be read gives nothing, and is replaced
        ("hugepagesz=1G hugepages=many", TOTALS, {0: 4}, ("hugepagesz=1G hugepages=many", "0:4")),
        ("hugepagesz=huge hugepages=0:9", TOTALS, {0: 4}, (None, "0:4")),
    ],
)
def test_boot_pages_on_a_command_line(
    line: str | None, totals: dict[int, int], needed: dict[int, int], change: tuple[str | None, str] | None
) -> None:
    found = boot_pages(None if line is None else line.split(), totals, needed)
    if change is None:
        assert found is None
    else:
        assert found == ("hugepages", change[0], f"hugepagesz=1G hugepages={change[1]}")


@pytest.mark.parametrize("anywhere", [1, 7, 8, 31])
@pytest.mark.parametrize("totals", [{0: 0, 1: 0, 2: 0}, {0: 9, 1: 0, 2: 1}, {0: 40, 1: 40, 2: 40}])
def test_boot_pages_are_never_fewer_than_now(anywhere: int, totals: dict[int, int]) -> None:
    found = boot_pages(["hugepagesz=1G", f"hugepages={anywhere}"], totals, {1: 50})
    assert found is not None
    counts = read_boot_pages((found[2] or "").split()).by_node or {}
    assert sum(counts.values()) >= anywhere
    assert all(counts.get(node, 0) >= count for node, count in totals.items())
    assert counts[1] == 50


# --- page pools ----------------------------------------------------------------------------------------------


def with_pool(total: int | None, free: int | None, memory_gib: int = 700) -> Json:
    host = build_host(nodes=1, memory_gib=memory_gib, cards=[GPU])
    host["numa_nodes"][0]["hugepages"] = [{"size_bytes": GIB, "total": total, "free": free}]
    return host


def test_a_pool_whose_free_pages_are_unknown_counts_as_used_and_never_shrinks() -> None:
    made = planned(with_pool(600, None), gpus=1, hugepages="1GiB")
    found = action(made, "hugepages")
    assert (found.current, found.want) == (600, 604)
    assert "unknown" in found.why


def test_the_memory_of_such_a_pool_cannot_become_other_pages() -> None:
    """700 GiB, 8 of them the host's, 600 in the pool: 92 are left."""
    assert planned(with_pool(600, None), gpus=1, hugepages="2MiB", memory="92GiB").guests
    assert planned(with_pool(600, None), gpus=1, hugepages="2MiB", memory="93GiB").unplaced


@pytest.mark.parametrize(("free", "want"), [(None, 4), (3, 4)])
def test_a_pool_of_unknown_size_is_said_to_be_at_risk(free: int | None, want: int) -> None:
    made = planned(with_pool(None, free), gpus=1, hugepages="1GiB")
    found = action(made, "hugepages")
    assert (found.current, found.want) == (None, want)
    (text,) = said(made, "warn", found.target)
    assert "unknown" in text


def test_free_pages_of_a_pool_of_unknown_size_are_taken() -> None:
    made = planned(with_pool(None, 8), gpus=1, hugepages="1GiB")
    assert made.guests
    assert not [a for a in made.actions if a.kind == "hugepages"]


# --- IOMMU ---------------------------------------------------------------------------------------------------

ON = ("intel_iommu", None, "intel_iommu=on")


@pytest.mark.parametrize(
    ("vendor", "present", "line", "change", "firmware"),
    [
        ("GenuineIntel", False, "", [ON], None),
        ("GenuineIntel", None, "", [ON], None),
        ("GenuineIntel", None, None, [ON], None),
        ("GenuineIntel", True, "", [], None),
        ("GenuineIntel", False, "intel_iommu=on", [], "VT-d"),
        ("GenuineIntel", False, "intel_iommu=on,sm_on", [], "VT-d"),
        (
            "GenuineIntel",
            None,
            "intel_iommu=sm_on",
            [("intel_iommu", "intel_iommu=sm_on", "intel_iommu=on,sm_on")],
            None,
        ),
        ("GenuineIntel", False, "intel_iommu=off", [("intel_iommu", "intel_iommu=off", "intel_iommu=on")], None),
        ("GenuineIntel", False, "iommu=off intel_iommu=on", [("iommu", "iommu=off", None)], None),
        ("GenuineIntel", False, "iommu=off", [("iommu", "iommu=off", None), ON], None),
        ("GenuineIntel", False, "amd_iommu=off", [ON], None),
        ("AuthenticAMD", False, "", [], "AMD-Vi"),
        ("AuthenticAMD", None, None, [], "AMD-Vi"),
        ("AuthenticAMD", False, "amd_iommu=off", [("amd_iommu", "amd_iommu=off", None)], None),
        ("AuthenticAMD", False, "iommu=pt,off", [("iommu", "iommu=pt,off", "iommu=pt")], None),
        ("AuthenticAMD", False, "intel_iommu=off", [], "AMD-Vi"),
        (None, None, "", [], "maker is unknown"),
        (None, None, None, [], "maker is unknown"),
        (None, None, "iommu=off", [("iommu", "iommu=off", None)], None),
    ],
)
def test_no_iommu_groups(
    vendor: str | None,
    present: bool | None,
    line: str | None,
    change: list[tuple[str, str | None, str | None]],
    firmware: str | None,
) -> None:
    host = build_host(cards=[LOOSE])
    host["kernel_args"] = None if line is None else line.split()
    host["cpu_model"] = None if vendor is None else {"vendor": vendor}
    host["iommu"] = None if present is None else {"present": present}
    made = planned(host, gpus=1)
    assert made.guests
    assert arguments(made) == {target: (current, want, True) for target, current, want in change}
    (text,) = said(made, "error", "iommu_groups")
    assert ("unknown" in text) == (present is None)
    hints = said(made, "error", "firmware")
    assert bool(hints) == bool(firmware)
    assert (firmware or "") in "".join(hints)


def test_a_guest_does_not_switch_its_own_firmware() -> None:
    host = build_host(cards=[LOOSE]) | {"hypervisor": True, "cpu_model": {"vendor": "AuthenticAMD"}}
    assert "hypervisor" in said(planned(host, gpus=1), "error", "firmware")[0]


def test_no_devices_no_iommu() -> None:
    made = planned(build_host(cards=[LOOSE]))
    assert not said(made, "error", "")
    assert arguments(made) == {}


def test_switching_on_and_passthrough_of_one_argument_are_one_action() -> None:
    host = build_host(cards=[LOOSE]) | {"kernel_args": ["iommu=off"], "cpu_model": {"vendor": "AuthenticAMD"}}
    made = planned(host, gpus=1, profile="host", hugepages="2MiB")
    assert arguments(made) == {"iommu": ("iommu=off", "iommu=pt", True)}


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("", (None, "iommu=pt")),
        ("iommu=pt", None),
        ("iommu=memaper,pt", None),
        ("iommu.passthrough=1", None),
        ("iommu=nopt", ("iommu=nopt", "iommu=pt")),
        ("iommu=memaper", ("iommu=memaper", "iommu=memaper,pt")),
        ("intel_iommu=on", (None, "iommu=pt")),
    ],
)
def test_passthrough(line: str, change: tuple[str | None, str] | None) -> None:
    assert passthrough(line.split()) == (("iommu", *change) if change else None)


# --- isolation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (None, (None, "isolcpus=4-5,8")),
        ("quiet", (None, "isolcpus=4-5,8")),
        ("isolcpus=2-3", ("isolcpus=2-3", "isolcpus=2-5,8")),
        ("isolcpus=2-8", None),
        (
            "isolcpus=managed_irq,domain,2-3,8",
            ("isolcpus=managed_irq,domain,2-3,8", "isolcpus=managed_irq,domain,2-5,8"),
        ),
        ("isolcpus=domain,4,5,8", None),
        ("isolcpus", ("isolcpus", "isolcpus=4-5,8")),
        ("isolcpus=0-30:2/4", ("isolcpus=0-30:2/4", "isolcpus=0-30:2/4,4-5,8")),  # a stride stays as it is
        ("isolcpus=0-30:2/4,4-5,8", None),
        ("isolcpus=10-N,14-5,18", ("isolcpus=10-N,14-5,18", "isolcpus=10-N,14-5,18,4-5,8")),
    ],
)
def test_isolated_cpus_are_added_to_those_that_are(line: str | None, change: tuple[str | None, str] | None) -> None:
    found = add_cpus(None if line is None else line.split(), "isolcpus", CpuSet((4, 5, 8)))
    assert found == (("isolcpus", *change) if change else None)


def test_isolation_by_name_keeps_the_list_of_the_command_line() -> None:
    host = build_host(cards=[GPU]) | {"kernel_args": ["isolcpus=domain,7", "nohz_full=7"]}
    made = planned(host, gpus=1, settings={"isolcpus": True, "nohz_full": True})
    pins = CpuSet(int(pin.cpus) for pin in made.guests[0].vcpu_pins)
    assert 7 not in pins
    together = pins | {7}
    assert arguments(made) == {
        "isolcpus": ("isolcpus=domain,7", f"isolcpus=domain,{together}", False),
        "nohz_full": ("nohz_full=7", f"nohz_full={together}", False),
    }


def test_a_list_that_is_given_is_the_list() -> None:
    host = build_host(cards=[GPU]) | {"kernel_args": ["isolcpus=7"]}
    made = planned(host, gpus=1, settings={"isolcpus": "domain,2-3"})
    assert arguments(made) == {"isolcpus": ("isolcpus=7", "isolcpus=domain,2-3", False)}


# --- settings ------------------------------------------------------------------------------------------------


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput) as error:
        planned(build_host(), settings={"turbo": True})
    assert error.value.where.endswith("settings.turbo")
    assert "governor" in str(error.value.hint)


REFUSED = [
    ("governor", "fast"),
    ("governor", 1),
    ("governor", None),
    ("governor", ["performance"]),
    ("energy_preference", "performance "),
    ("irqbalance_ban", "2-3"),
    ("irq_affinity", 1),
    ("aspm", "L1"),
    ("aspm", False),  # what YAML makes of a bare `off`
    ("resume_latency_us", 0),
    ("resume_latency_us", -1),
    ("resume_latency_us", 1 << 31),
    ("resume_latency_us", "10"),
    ("resume_latency_us", 1.5),
    ("thp", "on"),
    ("numa_balancing", 4),
    ("numa_balancing", -1),
    ("ksm", 1),
    ("ksm", 0.0),
    ("iommu_passthrough", "pt"),
    ("boot_pages", 600),
    ("isolcpus", "2-"),
    ("isolcpus", ""),
    ("isolcpus", "domain"),
    ("isolcpus", -2),
    ("nohz_full", "all"),
    ("mitigations", "on"),
    ("mitigations", False),
    ("mitigations", True),
    ("read_request_bytes", 8192),
    ("read_request_bytes", "4096"),
    ("relaxed_ordering", "off"),
    ("relaxed_ordering", 1),
    ("acs", "off"),  # bits are only added
    ("acs", "none"),
    ("acs", ""),
    ("acs", " "),
    ("acs", "SrcValid TransBlk"),
    ("acs", "EgressCtrl"),
    ("acs", ["SrcValid"]),
    ("nvme_scheduler", "noop"),
    ("nvme_requests", 3),
    ("nvme_requests", 65537),
    ("nvme_affinity", 3),
    ("vm.zone_reclaim_mode", 8),
    ("vm.swappiness", True),
    ("vm.swappiness", 201),
    ("kernel.nmi_watchdog", 2),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_value_that_a_setting_cannot_have_is_refused(name: str, value: object) -> None:
    with pytest.raises(BadInput) as error:
        planned(build_host(), settings={name: value})
    assert error.value.where.endswith(f"settings.{name}")
    assert "keep" in str(error.value.hint)
    assert error.value.exit_code == 2


def test_a_bare_off_is_a_word_and_a_false_in_its_place_is_refused() -> None:
    """Other readers of YAML make `off` false, which elsewhere means keep: the opposite."""
    text = "version: 1\nsettings: {aspm: %s}\nguests: []"
    assert plan(Host.from_json(to_json(build_host())), Intent.from_yaml(text % "off")).unplaced == ()
    with pytest.raises(BadInput, match="off") as error:
        plan(Host.from_json(to_json(build_host())), Intent.from_yaml(text % "false"))
    assert error.value.where.endswith("settings.aspm")


@pytest.mark.parametrize("name", list(all_knobs()))
def test_keep_is_a_value_of_every_setting_and_true_of_those_with_one_of_ours(name: str) -> None:
    for value in ("keep", True):
        if value is True and all_knobs()[name].value is None:
            with pytest.raises(BadInput, match="invalid value True"):
                planned(build_host(cards=[GPU]), gpus=1, settings={name: value})
        else:
            planned(build_host(cards=[GPU]), gpus=1, settings={name: value})


def on(setting: str, value: object, profile: str = "none") -> list[tuple[Any, Any]]:
    """(current, want) of the host-wide action of a setting, on a host where KSM runs."""
    host = build_host(cards=[GPU]) | {"memory_settings": {"thp": "always", "numa_balancing": 1, "ksm_run": 1}}
    kinds = {"numa_balancing": "numa-balancing"}
    made = planned(host, gpus=1, profile=profile, settings={setting: value})
    return [(a.current, a.want) for a in made.actions if a.kind == kinds.get(setting, setting)]


@pytest.mark.parametrize(
    ("setting", "value", "profile", "found"),
    [
        ("thp", True, "none", [("always", "madvise")]),
        ("thp", "never", "none", [("always", "never")]),
        ("thp", "always", "host", []),
        ("thp", "keep", "host", []),
        ("thp", False, "host", []),
        ("numa_balancing", True, "none", [(1, 0)]),
        ("numa_balancing", 0, "none", [(1, 0)]),  # 0 is a value, not false
        ("numa_balancing", 1, "host", []),  # 1 is a value, not true
        ("numa_balancing", 2, "host", [(1, 2)]),
        ("ksm", 0, "none", [(1, 0)]),
        ("ksm", True, "none", [(1, 2)]),
    ],
)
def test_a_value_that_is_given_is_wanted(setting: str, value: object, profile: str, found: list[Any]) -> None:
    assert on(setting, value, profile) == found


def test_a_value_that_was_asked_for_is_not_given_the_reason_of_another() -> None:
    host = build_host(cards=[GPU]) | {"memory_settings": {"numa_balancing": 0}}
    made = planned(host, gpus=1, profile="none", settings={"numa_balancing": 2})
    assert action(made, "numa-balancing").why == "asked for by name: settings.numa_balancing"


def test_interrupts_go_to_housekeeping_of_the_device_s_own_node() -> None:
    cards = [Card(f"0000:{0x21 + 16 * i:02x}:00.0", i, group=i + 1) for i in range(2)]
    host = build_host(nodes=2, cards=cards)
    intent = intent_of(gpus=[card.address for card in cards], vcpus=8, memory="8GiB")
    made = plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent)))
    assert made.guests[0].emulator_cpus == "0,8,16,24"
    wants = {action.target: action.want for action in made.actions if action.kind == "irq-affinity"}
    assert wants == {"0000:21:00.0": "0,16", "0000:31:00.0": "8,24"}
