"""Checks of CPUs, memory, IOMMU, traffic between devices, interrupts, kernel and what was applied."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from evidences import (
    DOWN,
    DOWN_2,
    EVERY_ACS,
    GIB,
    GPU,
    ISOLATING,
    NIC,
    ROOT_PORT,
    UP,
    clocks,
    cpus,
    evidence,
    gpu,
    guest,
    host,
    judged,
    nic,
    outcome,
    rdma,
    switch,
    with_pci,
)

from hosttune.discovery.clocks import read_clocks
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.model.configuration import Fact
from hosttune.model.evidence import STATE, ClockLimit, Clocks, Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import (
    Acs,
    CpuModel,
    GuestMemory,
    Host,
    HugePages,
    Hugetlbfs,
    Iommu,
    Irq,
    MemorySettings,
    Module,
    NumaNode,
    Platform,
    Problem,
)
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Plan
from hosttune.model.result import Drift, Entry, OpenTransaction, Result
from hosttune.rules.checks import checks, judge

MINE = (
    "pcie-link", "numa-affinity", "pcie-payload", "aspm", "bar-size", "cpu-frequency", "cpu-idle", "smt", "hugepages",
    "thp", "ksm", "numa-balancing", "iommu-mode", "interrupt-remapping", "vfio-no-iommu", "vfio-unsafe-interrupts",
    "iommu-groups", "acs", "ats", "irq-affinity", "irqbalance", "kernel-arguments", "module-options",
    "kernel-arguments-pending", "settings-in-force",
)  # fmt: skip


def planned(kind: str, target: str, want: Any) -> Plan:
    action = Action(
        id=f"{kind}:{target}", kind=kind, target=target, current=None, want=want, effect="now", needed=False,
        reversible=True, why="",
    )  # fmt: skip
    return Plan(intent=Intent(version=1), actions=(action,))


def test_a_host_with_nothing_wrong_has_only_passes_and_skips() -> None:
    found = [result for result in judge(evidence()) if result.check in MINE]
    assert {result.check for result in found} == set(MINE)
    assert [result for result in found if result.outcome not in ("pass", "skip")] == []


@pytest.mark.parametrize("complete", [True, False, None])
def test_a_document_without_facts_passes_nothing(complete: bool | None) -> None:
    bare = Host(gpus=(Gpu(address=GPU, vendor="nvidia"),))
    found = [r for r in judge(Evidence(host=bare, complete=complete)) if r.check in MINE]
    passes = {r.check for r in found if r.outcome == "pass"}
    assert passes <= ({"vfio-no-iommu", "vfio-unsafe-interrupts"} if complete else set())


def test_ids_are_kebab_case_and_stand_once_and_every_check_is_documented() -> None:
    rows = checks()
    assert len({row.id for row in rows}) == len(rows)
    for row in rows:
        assert row.id == row.id.lower().replace("_", "-").replace(" ", "-")
        assert all((row.title, row.about, row.why, row.source)), row.id
    assert set(MINE) <= {row.id for row in rows}
    assert {"pcie-link", "numa-affinity"} <= {row.id for row in checks(inside=True)}
    assert "iommu-mode" not in {row.id for row in checks(inside=True)}


# --- CPUs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "governor", "preference", "expected"),
    [
        ("intel_pstate", "powersave", "performance", "pass"),
        ("intel_pstate", "performance", "performance", "pass"),
        ("intel_pstate", "powersave", "balance_performance", "warn"),
        ("intel_pstate", "powersave", None, "warn"),  # without HWP the governor alone decides, and does not hold
        ("amd-pstate-epp", "powersave", "performance", "pass"),
        ("acpi-cpufreq", "performance", None, "pass"),
        ("acpi-cpufreq", "schedutil", None, "warn"),
        ("acpi-cpufreq", "powersave", None, "fail"),  # holds the lowest frequency
        ("amd-pstate", "powersave", None, "fail"),  # passive and guided: the generic governors, likewise
        ("amd-pstate", "schedutil", None, "warn"),
        (None, None, None, "skip"),
    ],
)
def test_frequency(driver: str | None, governor: str | None, preference: str | None, expected: str) -> None:
    found = host(cpus=cpus(governor=governor, energy_preference=preference), cpu_model=CpuModel(scaling_driver=driver))
    assert outcome("cpu-frequency", evidence(found), "a")[0] == expected


def test_frequency_of_pinned_cpus_only_and_unrecorded_is_unknown() -> None:
    mixed = tuple(msgspec.structs.replace(c, energy_preference="power" if c.id in (0, 4) else "performance",
                                          governor="powersave") for c in cpus())  # fmt: skip
    assert set(judged("cpu-frequency", evidence(host(cpus=mixed)))) == {"a"}
    assert outcome("cpu-frequency", evidence(host(cpus=mixed)), "a")[0] == "pass"
    assert outcome("cpu-frequency", evidence(host(cpus=mixed, guests=())), "host")[0] == "warn"
    captured = evidence(host(cpus=cpus(governor=None)), complete=False)
    assert outcome("cpu-frequency", captured, "a")[0] == "unknown"


@pytest.mark.parametrize(
    ("limit", "highest", "expected"),
    [
        (4_000_000, 4_000_000, "pass"),
        (3_900_000, 4_000_000, "pass"),  # one step
        (3_700_000, 2_450_000, "pass"),
        (800_000, 4_000_000, "warn"),
        (None, 4_000_000, "unknown"),
        (800_000, None, "unknown"),
        (800_000, 0, "unknown"),
    ],
)
def test_a_limit_of_the_clock(limit: int | None, highest: int | None, expected: str) -> None:
    found = outcome("cpu-frequency", evidence(clocks=clocks(cpus(), limit, highest)), "a")
    assert found[0] == expected
    assert ("clock limited to 800 of 4000 MHz" in str(found[1])) is (expected == "warn")


def test_limits_of_the_clock_count_on_the_guests_cpus_and_beside_what_else_is_wrong() -> None:
    mixed = Clocks(limits=(*clocks(cpus()[:2]).limits, *clocks(cpus()[2:3], 800_000).limits), percent=100)
    only = evidence(host(guests=(guest(pins=(0, 1)),)), clocks=mixed)
    assert outcome("cpu-frequency", only, "a")[0] == "pass"
    some = evidence(host(guests=(guest(pins=(0, 2)),)), clocks=mixed)
    assert outcome("cpu-frequency", some, "a") == (
        "warn", "performance; clock of CPUs 2 limited to 800 of 4000 MHz",
    )  # fmt: skip
    assert outcome("cpu-frequency", evidence(clocks=mixed), "a")[0] == "unknown", "nothing of CPU 6 was read"
    slow = host(cpus=cpus(governor="powersave"), cpu_model=CpuModel(scaling_driver="acpi-cpufreq"))
    assert outcome("cpu-frequency", evidence(slow, clocks=clocks(cpus(), 800_000)), "a") == (
        "fail", "powersave; clock limited to 800 of 4000 MHz",
    )  # fmt: skip
    assert outcome("cpu-frequency", evidence(clocks=None), "a")[0] == "unknown"


def test_intel_pstates_own_limit_of_all_cpus() -> None:
    def at(percent: int | None, **more: Any) -> str:
        found = msgspec.structs.replace(clocks(cpus()), percent=percent)
        return outcome("cpu-frequency", evidence(clocks=found, **more), "a")[0]

    assert at(20) == "warn"
    assert at(None) == "pass", "the kernel has no such file"
    assert at(None, complete=False) == "unknown"
    other = host(cpu_model=CpuModel(scaling_driver="acpi-cpufreq"))
    assert at(None, found=other, complete=False) == "pass"


def test_turbo_that_is_off_is_said_and_no_fault() -> None:
    off = Fact(name="boost", value="off", source="/sys/devices/system/cpu/intel_pstate/no_turbo")
    assert outcome("cpu-frequency", evidence(configuration=(off,)), "a") == (
        "pass", f"performance; turbo is off ({off.source})",
    )  # fmt: skip


CPUFREQ = "sys/devices/system/cpu/cpu{}/cpufreq"


@pytest.mark.parametrize(
    ("table", "highest"),
    [(None, 3_700_000), ("2450000 2000000 1500000", 2_450_000), ("2450000 x", None), ("", None)],
)
def test_the_highest_clock_is_that_of_the_drivers_table(tmp_path: Path, table: str | None, highest: int | None) -> None:
    """acpi-cpufreq shows the boost clock, which it cannot set, as cpuinfo_max_freq."""
    for cpu in range(2):
        folder = tmp_path / CPUFREQ.format(cpu)
        folder.mkdir(parents=True)
        (folder / "scaling_max_freq").write_text("2450000\n")
        (folder / "cpuinfo_max_freq").write_text("3700000\n")
        if table is not None:
            (folder / "scaling_available_frequencies").write_text(f"{table}\n")
    found = read_clocks(Reader(Capture(str(tmp_path))), host(cpus=cpus(2)))
    assert found == Clocks(limits=(ClockLimit(cpus="0-1", limit_khz=2_450_000, highest_khz=highest),))


def test_what_a_plan_asks_for_is_right() -> None:
    found = host(cpus=cpus(governor="schedutil"), cpu_model=CpuModel(scaling_driver="acpi-cpufreq"))
    plan = planned("governor", "cpus 2,6", "schedutil")
    assert outcome("cpu-frequency", evidence(found, plans=(plan,)), "a") == (
        "pass",
        "schedutil, as the applied plan asks",
    )


@pytest.mark.parametrize(
    ("latency", "want", "arguments", "expected"),
    [
        ("0", None, (), "pass"),
        ("10", None, (), "pass"),
        ("n/a", None, (), "warn"),
        ("10", "10", (), "pass"),
        ("0", "10", (), "fail"),
        ("0", None, ("intel_idle.max_cstate=0",), "warn"),
        (None, None, (), "skip"),
    ],
)
def test_idle(latency: str | None, want: str | None, arguments: tuple[str, ...], expected: str) -> None:
    plans = (planned("resume-latency", "cpus 2,6", want),) if want else ()
    found = evidence(host(cpus=cpus(resume_latency_us=latency), kernel_args=arguments), plans=plans)
    assert outcome("cpu-idle", found, "a")[0] == expected


def test_a_missing_sibling_and_a_shared_core_are_told() -> None:
    offline = tuple(msgspec.structs.replace(cpu, online=cpu.id != 5) for cpu in cpus())
    assert outcome("smt", evidence(host(cpus=offline)))[0] == "warn"
    two = evidence(host(guests=(guest("a", (2,)), guest("b", (6,), ()))))
    assert {s: r.outcome for s, r in judged("smt", two).items()} == {"host": "pass", "a": "fail", "b": "fail"}
    apart = evidence(host(guests=(guest("a", (2, 6)), guest("b", (3,), ()))))
    assert {s: r.outcome for s, r in judged("smt", apart).items()} == {"host": "pass", "a": "pass", "b": "pass"}
    bare = tuple(msgspec.structs.replace(cpu, core=None) for cpu in cpus())
    assert outcome("smt", evidence(host(cpus=bare, guests=())))[0] == "unknown"


# --- memory --------------------------------------------------------------------------------------------------


def pools(total: int | None, free: int | None) -> tuple[NumaNode, ...]:
    return (NumaNode(id=0, kind="cpu", hugepages=(HugePages(size_bytes=GIB, total=total, free=free),)),)


@pytest.mark.parametrize(
    ("state", "total", "free", "expected"),
    [
        ("shut off", 8, 8, "pass"),
        ("shut off", 8, 7, "fail"),
        ("shut off", 0, 0, "fail"),
        ("shut off", None, None, "unknown"),
        ("running", 8, 0, "pass"),
    ],
)
def test_pages_for_a_guest_that_waits(state: str, total: int | None, free: int | None, expected: str) -> None:
    one = guest(state=state, memory=(GuestMemory(node=0, memory_bytes=8 * GIB, page_bytes=GIB),))
    found = evidence(host(guests=(one,), numa_nodes=pools(total, free)))
    result = judged("hugepages", found)["node0 1 GiB"]
    assert result.outcome == expected
    if expected == "fail":
        assert f"echo {8 + (total or 0) - (free or 0)} > /sys/devices/system/node/node0/" in (result.hint or "")


@pytest.mark.parametrize(
    ("mounts", "state", "expected"),
    [
        (None, "shut off", "unknown"),
        ((), "shut off", "fail"),
        (((2 << 20, True),), "shut off", "fail"),
        (((GIB, False),), "shut off", "fail"),
        (((GIB, None),), "shut off", "unknown"),
        (((GIB, False), (GIB, True)), "shut off", "pass"),
        ((), "running", "pass"),  # it has its pages: how it got them is no matter any more
    ],
)
def test_pages_that_no_mount_gives_to_a_guest(mounts: Any, state: str, expected: str) -> None:
    one = guest(state=state, memory=(GuestMemory(node=0, memory_bytes=8 * GIB, page_bytes=GIB),))
    found = mounts and tuple(Hugetlbfs(path=f"/{size}", size_bytes=size, libvirt=known) for size, known in mounts)
    settings = MemorySettings(hugetlbfs=found)
    result = judged("hugepages", evidence(host(guests=(one,), numa_nodes=pools(8, 8), memory_settings=settings)))
    assert result["node0 1 GiB"].outcome == expected


def test_pages_of_any_node_and_no_pages_at_all() -> None:
    one = guest(state="shut off", memory=(GuestMemory(memory_bytes=2 * GIB, page_bytes=GIB),))
    single = partial(host, cpus=cpus(numa_node=0))
    assert outcome("hugepages", evidence(single(guests=(one,), numa_nodes=pools(3, 2))), "host 1 GiB")[0] == "pass"
    assert outcome("hugepages", evidence(single(guests=(one,), numa_nodes=pools(3, 1))), "host 1 GiB")[0] == "fail"
    assert outcome("hugepages", evidence(single(guests=(), numa_nodes=pools(0, 0))))[0] == "skip"
    assert outcome("hugepages", evidence(single(guests=None, numa_nodes=pools(0, 0))))[0] == "unknown"
    assert outcome("hugepages", evidence(single(guests=(), numa_nodes=(NumaNode(id=0),))))[0] == "unknown"
    # harvester/harvester#8182: two of four nodes have no memory, and Linux before 6.1 shows no folder of pools there.
    without = evidence(single(guests=(), numa_nodes=(*pools(0, 0), NumaNode(id=1, memory_bytes=0))))
    assert [outcome(check, without)[0] for check in ("hugepages", "leftover-pages")] == ["skip", "skip"]
    unread = evidence(single(guests=(), numa_nodes=(*pools(0, 0), NumaNode(id=1, memory_bytes=GIB))))
    assert {result.outcome for result in judged("hugepages", unread).values()} == {"unknown"}
    for unsure in (
        guest(memory=None),
        msgspec.structs.replace(one, state=None),
        msgspec.structs.replace(one, state="paused", starting=True),
    ):
        unread = evidence(single(guests=(unsure,), numa_nodes=pools(0, 0)))
        assert outcome("hugepages", unread)[0] == "unknown", "whether it needs pages is unknown"
    assert outcome("hugepages", evidence(single(guests=(guest(memory=()),), numa_nodes=pools(0, 0))))[0] == "skip"
    lost = host(guests=(one,), numa_nodes=pools(3, 2))  # some CPUs are on node 1, whose folder is lost
    found = judged("hugepages", evidence(lost))
    assert {subject: result.outcome for subject, result in found.items()} == {
        "host 1 GiB": "unknown",
        "node0 1 GiB": "pass",
        "node1 1 GiB": "unknown",
    }


@pytest.mark.parametrize(
    ("check", "settings", "expected"),
    [
        ("thp", {"thp": "madvise"}, "pass"),
        ("thp", {"thp": "never"}, "pass"),
        ("thp", {"thp": "always"}, "warn"),
        ("thp", {}, "skip"),
        ("ksm", {"ksm_run": 0}, "pass"),
        ("ksm", {"ksm_run": 2}, "pass"),
        ("ksm", {"ksm_run": 1}, "warn"),
        ("ksm", {}, "skip"),
        ("numa-balancing", {"numa_balancing": 0}, "pass"),
        ("numa-balancing", {"numa_balancing": 1}, "warn"),
        ("numa-balancing", {"numa_balancing": 2}, "warn"),
        ("numa-balancing", {}, "skip"),
    ],
)
def test_memory_settings(check: str, settings: dict[str, Any], expected: str) -> None:
    found = host(memory_settings=MemorySettings(**settings))
    assert outcome(check, evidence(found))[0] == expected
    if not settings:
        assert outcome(check, evidence(found, complete=False))[0] == "unknown"
        where = {"thp": "/sys/kernel/mm/transparent_hugepage/enabled", "ksm": "/sys/kernel/mm/ksm/run"}
        refusal = Problem(what="unreadable", where=where.get(check, "/proc/sys/kernel/numa_balancing"), why="EACCES")
        assert outcome(check, evidence(found, problems=(refusal,)))[0] == "unknown"


def test_merged_pages_that_stay_are_told_and_a_single_node_needs_no_balancing() -> None:
    assert outcome("ksm", evidence(ksm_pages_shared=7))[0] == "warn"
    assert outcome("ksm", evidence(ksm_pages_shared=0))[0] == "pass"
    setting = MemorySettings(numa_balancing=1)
    single = host(numa_nodes=pools(0, 0), memory_settings=setting, cpus=cpus(numa_node=0))
    assert outcome("numa-balancing", evidence(single))[0] == "skip"
    lost = host(numa_nodes=pools(0, 0), memory_settings=setting)  # some CPUs are on node 1
    assert outcome("numa-balancing", evidence(lost))[0] == "warn"
    plan = planned("thp", "/sys/kernel/mm/transparent_hugepage/enabled", "always")
    assert outcome("thp", evidence(host(memory_settings=MemorySettings(thp="always")), plans=(plan,)))[0] == "pass"


# --- IOMMU ---------------------------------------------------------------------------------------------------


def without_groups(**iommu: Any) -> Evidence:
    return with_pci(gpu(iommu_group=None, driver="nvidia"), guests=(), iommu=Iommu(**iommu))


def test_iommu_on_off_and_unknown() -> None:
    assert outcome("iommu-mode", evidence())[0] == "pass"
    off = judged("iommu-mode", without_groups(present=False))["host"]
    assert (off.outcome, "intel_iommu=on" in (off.hint or "")) == ("fail", True)
    assert outcome("iommu-mode", without_groups())[0] == "unknown"
    for mode in ("identity", "DMA", "DMA-FQ"):
        assert outcome("iommu-mode", evidence(host(iommu=Iommu(present=True, mode=mode))))[0] == "pass"


@pytest.mark.parametrize(("state", "expected"), [(True, "pass"), (False, "fail"), (None, "unknown")])
def test_interrupt_remapping(state: bool | None, expected: str) -> None:
    found = evidence(host(iommu=Iommu(present=True, interrupt_remapping=state)))
    assert outcome("interrupt-remapping", found)[0] == expected


@pytest.mark.parametrize(
    ("check", "module", "parameter"),
    [
        ("vfio-no-iommu", "vfio", "enable_unsafe_noiommu_mode"),
        ("vfio-unsafe-interrupts", "vfio_iommu_type1", "allow_unsafe_interrupts"),
    ],
)
def test_back_doors_of_vfio(check: str, module: str, parameter: str) -> None:
    def with_value(value: str | None) -> Host:
        given = {parameter: value} if value is not None else {"other": "N"}
        return host(platform=Platform(modules=(Module(name=module, parameters=given),)))

    for value, expected in (("N", "pass"), ("Y", "fail"), ("1", "fail"), ("0", "pass"), (None, "pass")):
        assert outcome(check, evidence(with_value(value)))[0] == expected, value
    assert outcome(check, evidence(host()))[0] == "pass"  # not loaded, on a live machine
    assert outcome(check, evidence(host(), complete=False))[0] == "unknown"
    asked = host(kernel_args=(f"{module}.{parameter}=1",))
    assert outcome(check, evidence(asked))[0] == "fail"
    assert outcome(check, evidence(host(kernel_args=(f"{module}.{parameter}=0",))))[0] == "pass"


def test_groups_of_given_devices() -> None:
    alone = with_pci(gpu())
    assert outcome("iommu-groups", alone, GPU) == ("pass", "group 40, alone")
    foreign = with_pci(gpu(), nic(iommu_group=40, driver="mlx5_core"))
    assert outcome("iommu-groups", foreign, GPU)[0] == "fail"
    for driver in ("vfio-pci", "mlx5_vfio_pci", "pci-stub", None):
        whole = with_pci(gpu(), nic(iommu_group=40, driver=driver))
        assert outcome("iommu-groups", whole, GPU)[0] == "pass", driver
    two = with_pci(gpu(), nic(iommu_group=40), guests=(guest("a"), guest("b", (3,), (NIC,))))
    assert outcome("iommu-groups", two, GPU) == ("fail", "group 40 is shared by guests a, b")
    kept = with_pci(gpu(iommu_direct=("0x1000-0x1fff",)))
    assert outcome("iommu-groups", kept, GPU)[0] == "fail"
    of_host = with_pci(gpu(iommu_direct=("0x1000-0x1fff",), driver="nvidia"), guests=())
    assert outcome("iommu-groups", of_host, GPU)[0] == "warn"
    assert outcome("iommu-groups", with_pci(gpu(iommu_direct=())), GPU)[0] == "pass"
    lost = with_pci(gpu(), nic(iommu_direct=()))
    assert outcome("iommu-groups", lost, GPU)[0] == "unknown"
    assert outcome("iommu-groups", with_pci(gpu(iommu_group=None)), GPU)[0] == "fail"
    captured = msgspec.structs.replace(with_pci(gpu(iommu_group=None)), complete=False, absent=())
    assert outcome("iommu-groups", captured, GPU)[0] == "unknown"


def test_groups_of_gpus_that_the_host_keeps() -> None:
    kept = gpu(driver="nvidia")
    assert outcome("iommu-groups", with_pci(kept, guests=()), GPU)[0] == "pass"
    shared = with_pci(kept, nic(iommu_group=40, driver="mlx5_core"), guests=())
    assert outcome("iommu-groups", shared, GPU)[0] == "warn"
    assert outcome("iommu-groups", without_groups(present=False), GPU)[0] == "skip"


@pytest.mark.parametrize(
    ("groupless", "absent", "expected"),
    [
        ({"parent": DOWN_2}, ("/",), "unknown"),  # behind a port of the same root bus: it must have a group
        ({"parent": "0000:99:01.0"}, ("/",), "pass"),  # proven to have none, and of another root bus
        ({"parent": None}, ("/",), "pass"),  # on the root bus, as the IOMMU's own function
        ({"parent": "0000:99:01.0"}, (), "unknown"),  # lost: it may be in any group
    ],
)
@pytest.mark.parametrize("driver", ["vfio-pci", "nvidia"])
def test_a_function_of_unknown_group_may_be_in_this_one(
    driver: str, groupless: dict[str, Any], absent: tuple[str, ...], expected: str
) -> None:
    found = with_pci(gpu(driver=driver), nic(iommu_group=None, **groupless), guests=())
    found = msgspec.structs.replace(found, absent=absent)
    result = judged("iommu-groups", found)[GPU]
    assert result.outcome == expected
    assert (f"the group of {NIC} is not known" in (result.actual or "")) is (expected == "unknown")


# --- ACS and ATS ---------------------------------------------------------------------------------------------


def test_acs_bits_that_were_cleared_after_boot_fail_at_their_port() -> None:
    cleared = Acs(capable=EVERY_ACS.capable, enabled=("SrcValid",))
    tree = [msgspec.structs.replace(d, acs=cleared) if d.address == DOWN else d for d in switch()]
    found = judged("acs", evidence(host(pci=(*tree, gpu()))))
    assert {subject: result.outcome for subject, result in found.items()} == {ROOT_PORT: "pass", DOWN: "fail"}
    assert "ReqRedir CmpltRedir UpstreamFwd" in (found[DOWN].actual or "")
    merged = judged("acs", evidence(host(pci=(*tree, gpu(), nic(iommu_group=40)))))
    assert merged[DOWN].outcome == "pass", "the kernel's group says that they reach each other"


def test_acs_unread_missing_and_nobodys_business() -> None:
    assert outcome("acs", evidence(host(pci=(*switch(acs=None), gpu()))), DOWN)[0] == "unknown"
    assert outcome("acs", evidence(host(pci=(*switch(acs=Acs()), gpu()))), DOWN)[0] == "pass"
    assert outcome("acs", with_pci(gpu(driver="nvidia"), guests=()))[0] == "skip"


def pair(ports: Acs | None = EVERY_ACS, /, **of_nic: Any) -> Evidence:
    both = (guest(devices=(GPU, NIC)),)
    return evidence(host(pci=(*switch(acs=ports), gpu(), nic(**of_nic)), guests=both, nics=(rdma(),)))


def test_ats_of_a_pair_below_one_switch() -> None:
    direct = Acs(capable=EVERY_ACS.capable, enabled=(*ISOLATING, "DirectTrans"))
    assert outcome("ats", pair(direct), NIC)[0] == "pass"
    assert outcome("ats", pair(EVERY_ACS), NIC)[0] == "warn"  # translated requests are redirected too
    off = judged("ats", pair(direct, ats_enabled=False))[NIC]
    assert (off.outcome, f"mlxconfig -d {NIC} set ATS_ENABLED=1" in (off.hint or "")) == ("warn", True)
    assert outcome("ats", pair(Acs(capable=ISOLATING)), NIC)[0] == "pass"  # translated requests are not redirected
    for nowhere in (Acs(capable=ISOLATING), Acs()):  # the guest's addresses are never direct
        assert outcome("ats", pair(nowhere, ats_enabled=False), NIC)[0] == "warn"
    assert outcome("ats", pair(None), NIC)[0] == "unknown"
    assert outcome("ats", pair(direct, ats_enabled=None, acs=None), NIC)[0] == "unknown"


def test_ats_concerns_only_pairs_of_one_guest_below_one_switch() -> None:
    assert outcome("ats", evidence())[0] == "skip"
    elsewhere = evidence(
        host(pci=(*switch(), gpu(), nic(parent=ROOT_PORT)), guests=(guest(devices=(GPU, NIC)),), nics=(rdma(),))
    )
    assert outcome("ats", elsewhere)[0] == "skip"
    two = (guest("a", devices=(GPU,)), guest("b", (3,), (NIC,)))
    assert outcome("ats", evidence(host(pci=(*switch(), gpu(), nic()), guests=two, nics=(rdma(),))))[0] == "skip"
    assert {UP, DOWN_2} <= {device.address for device in elsewhere.host.pci}


# --- interrupts ----------------------------------------------------------------------------------------------


def interrupts(*cpu_lists: str | None, plans: tuple[Plan, ...] = ()) -> Evidence:
    irqs = tuple(Irq(irq=50 + n, affinity=cpus, effective=cpus) for n, cpus in enumerate(cpu_lists))
    return msgspec.structs.replace(with_pci(gpu(irqs=irqs)), plans=plans)


def test_interrupts_of_a_running_guests_device() -> None:
    assert outcome("irq-affinity", interrupts("0", "1"), GPU)[0] == "pass"
    assert outcome("irq-affinity", interrupts("0", "2"), GPU)[0] == "warn"  # a vCPU's CPU
    assert outcome("irq-affinity", interrupts("3"), GPU)[0] == "warn"  # the other node
    assert outcome("irq-affinity", interrupts(None), GPU)[0] == "unknown"
    assert outcome("irq-affinity", interrupts(), GPU)[0] == "skip"
    assert outcome("irq-affinity", with_pci(gpu(irqs=None)), GPU)[0] == "unknown"
    plan = planned("irq-affinity", GPU, "0-1")
    assert outcome("irq-affinity", interrupts("0", plans=(plan,)), GPU)[0] == "pass"
    assert outcome("irq-affinity", interrupts("3", plans=(plan,)), GPU)[0] == "fail"
    assert outcome("irq-affinity", with_pci(gpu(), guests=(guest(state="shut off"),)))[0] == "skip"


@pytest.mark.parametrize(
    ("ban", "installed", "complete", "expected"),
    [
        ("2,6", True, True, "pass"),
        ("0-7", True, True, "pass"),
        ("2", True, True, "warn"),
        ("", True, True, "warn"),
        (None, True, True, "warn"),
        (None, False, True, "skip"),
        (None, None, False, "unknown"),
        (None, None, True, "unknown"),
        ("2,6 (irqbalance not restarted)", True, True, "unknown"),
    ],
)
def test_irqbalance(ban: str | None, installed: bool | None, complete: bool, expected: str) -> None:
    settings = {} if ban is None else {"/etc/default/irqbalance": ban}
    found = evidence(host(settings=settings), irqbalance=installed, complete=complete)
    assert outcome("irqbalance", found)[0] == expected


def test_irqbalance_leaves_isolated_cpus_alone_by_itself() -> None:
    isolated = tuple(msgspec.structs.replace(cpu, isolated=cpu.id in (2, 6)) for cpu in cpus())
    assert outcome("irqbalance", evidence(host(settings={}, cpus=isolated)))[0] == "pass"


# --- kernel --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("quiet",), "pass"),
        (("iommu=pt", "intel_iommu=on,sm_on"), "pass"),
        (("intel_iommu=on", "iommu=off"), "fail"),
        (("intel_iommu=off",), "fail"),
        (("amd_iommu=off",), "fail"),
        (("pcie_acs_override=downstream,multifunction",), "fail"),
        (("intremap=off",), "fail"),
        (("pci=noats,realloc",), "warn"),
        (("mitigations=off",), "warn"),
        (("mitigations=auto,nosmt",), "pass"),
        (None, "unknown"),
    ],
)
def test_kernel_arguments(arguments: tuple[str, ...] | None, expected: str) -> None:
    assert outcome("kernel-arguments", evidence(host(kernel_args=arguments)))[0] == expected


def test_module_options() -> None:
    def loaded(**parameters: str) -> Evidence:
        return evidence(host(platform=Platform(modules=(Module(name="vfio_pci", parameters=parameters),))))

    assert outcome("module-options", loaded(nointxmask="N"), "vfio_pci") == ("pass", "nointxmask off")
    assert outcome("module-options", loaded(nointxmask="Y"), "vfio_pci")[0] == "warn"
    assert outcome("module-options", loaded(), "vfio_iommu_type1")[0] == "skip"
    assert outcome("module-options", evidence(complete=False), "vfio_pci")[0] == "unknown"


# --- what was applied ----------------------------------------------------------------------------------------

DONE = Entry(action="thp:x", outcome="done")
LATER = Entry(action="hugepages:x", outcome="pending", want=1, after=2, when="after-stop")  # waits for no reboot


@pytest.mark.parametrize(
    ("applied_state", "pending", "in_force"),
    [
        (None, "skip", "skip"),
        (Result(verb="status"), "skip", "skip"),
        (Result(verb="status", entries=(DONE,)), "pass", "pass"),
        (
            Result(verb="status", entries=(Entry(action="kernel-argument:iommu", outcome="pending"),)),
            "fail",
            "pass",
        ),
        (Result(verb="status", entries=(DONE, LATER)), "pass", "pass"),
        (Result(verb="status", reboot_required=True), "fail", "pass"),
        (Result(verb="status", entries=(Entry(action="hugepages:x", outcome="clamped"),)), "pass", "warn"),
        (
            Result(
                verb="status",
                open_transaction=OpenTransaction(number=3, verb="apply", state="applying", journal="/j"),
            ),
            "pass",
            "fail",
        ),
    ],
)
def test_what_is_applied(applied_state: Result | None, pending: str, in_force: str) -> None:
    found = evidence(applied_state=applied_state)
    assert outcome("kernel-arguments-pending", found)[0] == pending
    assert outcome("settings-in-force", found)[0] == in_force


def test_drift_fails_by_setting_and_what_cannot_be_read_is_unknown() -> None:
    drift = (
        Drift(action="thp:x", expected="madvise", actual="always"),
        Drift(action="aspm:y", expected="off", why="cannot be read: EACCES"),
        Drift(action="driver:z", expected="vfio-pci", why="its device is gone", hint="take it away"),
    )
    found = judged(
        "settings-in-force", evidence(applied_state=Result(verb="status", entries=(DONE, DONE), drift=drift))
    )
    assert {subject: result.outcome for subject, result in found.items()} == {
        "host": "warn",
        "thp:x": "fail",
        "aspm:y": "unknown",
        "driver:z": "fail",
    }
    assert found["host"].hint == "hosttune apply --intent FILE; take it away"
    assert (found["thp:x"].expected, found["thp:x"].actual) == ("madvise", "always")


def test_a_state_that_does_not_read_is_unknown() -> None:
    doubt = Problem(what=STATE, where="/var/lib/hosttune/transactions/000001.jsonl", why="line 3 is no record")
    for check in ("kernel-arguments-pending", "settings-in-force"):
        result = judged(check, evidence(problems=(doubt,)))["host"]
        assert (result.outcome, result.source) == ("unknown", doubt.where)
