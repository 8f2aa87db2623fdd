"""The checks of GPUs: each outcome of each, the named fault and its place; and what real machines printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from gpuevidence import A, B, C, evidence, evidence_from_smi, function, is_whole, not_well, nvidia, of, results
from readings import UP, looked_at, read_again

from hosttune.bench.compare import loaded_clocks
from hosttune.discovery.kernellog import parse_events
from hosttune.gpu.nvidia import NVIDIA
from hosttune.model.evidence import LOOKED, Health
from hosttune.model.gpu import Gpu, Mig, MigInstance
from hosttune.model.host import Link, Module, NvSwitch, PciDevice, Platform, Problem
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, MigAssignment, Plan, PlannedGuest
from hosttune.model.validation import Validation
from hosttune.rules.checks import FAMILIES
from hosttune.rules.checks.gpumemory import errors_allowed

OURS = ("gpus", "gpumemory", "gpumodes", "nvlinks", "fabric", "kernelevents", "health")
GPUS = OURS[:3]
HOSTS = Path(__file__).resolve().parents[2] / "hosts"


CONSUMER = "2684"  # GeForce RTX 4090 (pci.ids)
ROWS = ("remapped_pending", "remapped_failed", "remapped_correctable", "remapped_uncorrectable")
SWITCHED = (NvSwitch(address="0000:83:00.0"),)
SWITCH = PciDevice(address="0000:83:00.0", vendor_id="10de", device_id="22a3", class_code="068000")


def action(kind: str, want: object, target: str = A) -> Action:
    return Action(
        id=f"{kind}:{target}", kind=kind, target=target, current=None, want=want, effect="now", needed=False,
        reversible=True, why="test",
    )  # fmt: skip


def planned(*actions: Action, guests: tuple[PlannedGuest, ...] = ()) -> Plan:
    return Plan(intent=Intent(version=1), actions=actions, guests=guests)


def guest_with(*places: tuple[str, int]) -> PlannedGuest:
    mine = tuple(MigAssignment(gpu=A, profile=profile, start=start) for profile, start in places)
    return PlannedGuest(name="g", vcpu_pins=(), emulator_cpus="0", cells=(), page_bytes=4096, mig=mine)


def outcome(check: str, subject: str = A, **facts: Any) -> tuple[str, str | None]:
    result = of(evidence(nvidia(**facts)), check, *GPUS)[subject]
    assert is_whole(result)
    return result.outcome, result.actual


# --- what real machines printed ------------------------------------------------------------------------------


def test_eight_h100_whose_power_brake_is_pulled_fail_for_that_alone() -> None:
    """nvidia-smi of a real XE9680: nothing else of it is a fault."""
    found = evidence_from_smi("h100-x8-535", "2330", health=Health(uptime_seconds=86400.0))
    assert not_well(results(found, *GPUS)) == {("clock-reasons", "fail"), ("pcie-replay", "warn")}
    clocks = of(found, "clock-reasons", *GPUS)
    assert len(clocks) == 8
    assert {result.outcome for result in clocks.values()} == {"fail"}
    assert "power brake" in (clocks[A].actual or "")
    replays = of(found, "pcie-replay", *GPUS)[A]
    assert (replays.outcome, replays.actual) == ("warn", "67 since its reset; one reading does not tell when")


def test_a_healthy_h100_has_no_fault() -> None:
    found = evidence_from_smi("h100-x1-590", "2330")
    again = read_again(found, {f"replays {gpu.address}": {"replays": gpu.pcie_replays or 0} for gpu in found.host.gpus})
    assert not_well(results(again, *GPUS)) == set()


def test_consumer_cards_warn_of_ecc_and_what_runs_on_them() -> None:
    found = evidence_from_smi("rtx4090-x8-535", "2684")
    assert not_well(results(found, *GPUS)) == {("ecc-mode", "warn"), ("gpu-processes", "warn")}
    assert {result.outcome for result in of(found, "ecc-errors", *GPUS).values()} == {"skip"}


def test_mig_hides_row_remaps_which_is_unknown_not_none() -> None:
    found = evidence_from_smi("h200-mig-590", "2335")
    (result,) = of(found, "row-remap", *GPUS).values()
    assert (result.outcome, result.actual) == ("unknown", "MIG is on, which hides it from the driver's library")
    assert of(found, "mig-instances", *GPUS)["0000:83:00.0"].outcome == "pass"
    assert not_well(results(found, *GPUS)) == set()


# --- which GPUs are judged -----------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["vfio-pci", "nvgrace_gpu_vfio_pci"])
def test_of_a_gpu_for_a_guest_the_health_is_unknown_without_a_look_and_the_rest_skipped(driver: str) -> None:
    """A host whose GPUs nobody has looked at passed: everything was skipped."""
    found = evidence(Gpu(address=A, vendor="nvidia", source="sysfs"), driver=driver, looks={})
    told = {result.check: result for result in results(found, *GPUS)}
    judged = {*LOOKED} & told.keys() - {"retired-pages"}  # in place of which this model has row-remap
    assert {check for check, result in told.items() if result.outcome == "unknown"} == judged
    assert {result.outcome for result in told.values()} == {"unknown", "skip"}
    assert driver in (told["clock-reasons"].actual or "")
    assert "validate --guest" in (of(found, "gpu-driver", *GPUS)[A].actual or "")


@pytest.mark.parametrize("complete", [True, False, None])
def test_nothing_passes_of_a_gpu_of_which_nothing_is_known(complete: bool | None) -> None:
    old = {"pci": (function(A, None, "1db5"),)}  # a V100, which retires pages
    found = evidence(Gpu(address=A, vendor="nvidia"), host=old, complete=complete)
    told = results(found, *GPUS)
    assert all(is_whole(result) for result in told)
    assert {result.outcome for result in told if result.check != "gpu-driver"} == {"unknown"}
    assert of(found, "gpu-driver", *GPUS)[A].outcome == ("warn" if complete else "unknown")


def test_nothing_passes_of_a_gpu_that_its_driver_did_not_tell_of() -> None:
    found = evidence(Gpu(address=A, vendor="nvidia", source="sysfs"), host={"pci": (function(A, device_id="1db5"),)})
    assert {result.outcome for result in results(found, *GPUS)} == {"unknown"}


def test_a_gpu_that_sleeps_is_not_woken() -> None:
    gpu = Gpu(address=A, vendor="nvidia", source="sysfs")
    found = evidence(gpu, host={"pci": (function(A, runtime_status="suspended"),)})
    result = of(found, "persistence", *GPUS)[A]
    assert (result.outcome, result.actual) == ("unknown", "suspended: asking would wake it")


def test_a_host_without_gpus_skips_once_a_check() -> None:
    told = results(evidence(), *GPUS)
    assert {(result.outcome, result.subject) for result in told} == {("skip", "host")}
    assert len({result.check for result in told}) == len(told)
    unread = results(evidence(absent=()), *GPUS)
    assert {(result.outcome, result.subject) for result in unread} == {("unknown", "host")}, "no PCI function was read"
    assert {result.expected for result in unread} >= {"the host's GPUs can be listed"}


def test_what_a_gpu_lacks_is_skipped_and_the_rest_is_unknown() -> None:
    found = evidence(nvidia(lacks=("ecc", "ecc_pending")), device_id=CONSUMER)
    assert of(found, "ecc-mode", *GPUS)[A].outcome == "skip"
    assert of(found, "row-remap", *GPUS)[A].outcome == "unknown"


@pytest.mark.parametrize(
    ("check", "lacking", "facts", "expected"),
    [
        ("row-remap", ROWS, {}, "unknown"),
        ("row-remap", ROWS, {"model": "NVIDIA H200-141C"}, "skip"),
        ("row-remap", ROWS, {"mig": Mig(mode="enabled", pending="enabled")}, "unknown"),
        ("row-remap", ROWS[2:], {"remapped_pending": False, "remapped_failed": False}, "unknown"),
        ("ecc-mode", ("ecc", "ecc_pending"), {}, "unknown"),
        ("ecc-errors", ("ecc_uncorrected",), {}, "unknown"),
        ("ecc-errors", ("ecc_uncorrected",), {"ecc": False, "ecc_pending": False}, "skip"),
    ],
)
def test_all_gpus_deny_what_their_model_has_for_certain(
    check: str, lacking: tuple[str, ...], facts: dict[str, Any], expected: str
) -> None:
    gpus = [msgspec.structs.replace(nvidia(one, lacks=lacking), **facts) for one in (A, B)]
    assert {result.outcome for result in of(evidence(*gpus), check, *GPUS).values()} == {expected}


@pytest.mark.parametrize(("switches", "expected"), [(SWITCHED, "unknown"), ((), "skip")])
def test_beside_nvswitches_a_gpu_has_a_fabric_state(switches: tuple[NvSwitch, ...], expected: str) -> None:
    gpus = (nvidia(lacks=("fabric_state",)), nvidia(B, lacks=("fabric_state",)))
    found = evidence(*gpus, host={"pci": (function(A), function(B), SWITCH), "nvswitches": switches})
    assert {one.outcome for one in of(found, "fabric-state", "fabric").values()} == {expected}


def test_every_field_that_nvidia_tells_is_one_of_a_gpu() -> None:
    assert set(Gpu.__struct_fields__) >= NVIDIA.tells


@pytest.mark.parametrize("family", OURS)
def test_each_family_is_in_the_list(family: str) -> None:
    assert family in FAMILIES


# --- driver --------------------------------------------------------------------------------------------------


def test_a_driver_and_library_of_two_versions_fail() -> None:
    platform = Platform(modules=(Module(name="nvidia", version="580.1"),))
    found = evidence(nvidia(driver_version="570.2"), host={"platform": platform})
    result = of(found, "gpu-driver", *GPUS)[A]
    assert (result.outcome, result.actual) == ("fail", "module 580.1, library 570.2")


def test_nvmls_own_word_for_it_fails() -> None:
    problem = Problem(what="NVML did not answer", where="nvml.json", why="NVML: Driver/library version mismatch")
    found = evidence(Gpu(address=A, vendor="nvidia", source="sysfs"), host={"problems": (problem,)})
    assert of(found, "gpu-driver", *GPUS)[A].outcome == "fail"


def test_a_gpu_that_alone_is_not_listed_is_lost() -> None:
    loaded = Platform(modules=(Module(name="nvidia", version="580.1"),))
    gpus = nvidia(A, driver_version="580.1"), Gpu(address=B, vendor="nvidia", source="sysfs")
    found = evidence(*gpus, host={"platform": loaded})
    told = of(found, "gpu-driver", *GPUS)
    assert (told[A].outcome, told[B].outcome) == ("pass", "fail")


def test_a_driver_of_which_one_version_is_known_may_be_mixed() -> None:
    assert outcome("gpu-driver", driver_version="580.1")[0] == "unknown"


def driver_results(gpus: tuple[Gpu, ...]) -> dict[str, tuple[str, str]]:
    loaded = Platform(modules=(Module(name="nvidia", version="580.1"),))
    told = of(evidence(*gpus, host={"platform": loaded}), "gpu-driver", *GPUS)
    return {address: (one.outcome, one.actual or "") for address, one in told.items()}


def test_a_gpu_whose_memory_is_not_reported_where_that_of_its_sister_is() -> None:
    facts: dict[str, Any] = {"driver_version": "580.1"}
    told = driver_results((nvidia(**facts), nvidia(B, memory_bytes=143771 << 20, **facts)))
    assert told == {A: ("unknown", "nvidia 580.1; memory bytes not reported"), B: ("pass", "nvidia 580.1")}
    assert driver_results((nvidia(**facts),))[A][0] == "pass", "no other one to compare"


def test_nouveau_fails() -> None:
    found = evidence(Gpu(address=A, vendor="nvidia"), driver="nouveau")
    result = of(found, "gpu-driver", *GPUS)[A]
    assert (result.outcome, result.actual) == ("fail", "held by nouveau")


@pytest.mark.parametrize(
    ("action", "expected"),
    [("none", "pass"), ("reset", "fail"), ("drain and reset", "fail"), ("reboot", "fail"), ("action 9", "fail")],
)
def test_recovery_action(action: str, expected: str) -> None:
    assert outcome("gpu-status", recovery_action=action) == (expected, action)


@pytest.mark.parametrize(("status", "expected"), [("operational", "pass"), ("malfunction", "fail"), (None, "unknown")])
def test_gaudi_by_its_status(status: str | None, expected: str) -> None:
    gpu = Gpu(address=A, vendor="habana", model="Intel Gaudi3", source="habanalabs", status=status)
    told = results(evidence(gpu, driver="habanalabs"), *GPUS)
    assert [r.outcome for r in told if r.check == "gpu-status"] == [expected]
    assert {r.outcome for r in told if r.check in ("ecc-mode", "row-remap", "clock-reasons")} == {"skip"}


def test_amd_by_what_amdgpu_tells() -> None:
    gpu = Gpu(address=A, vendor="amd", source="amdgpu", ecc_uncorrected=3, ecc_corrected=0, power_limit_watts=500.0)
    gpu = msgspec.structs.replace(gpu, power_default_watts=750.0, temperature_c=45.0, temperature_slowdown_c=100.0)
    told = {r.check: r.outcome for r in results(evidence(gpu, driver="amdgpu"), *GPUS)}
    assert told["ecc-errors"] == "fail"
    assert told["power-limit"] == "warn"
    assert told["gpu-temperature"] == "pass"
    assert told["clock-reasons"] == "skip"
    assert told["pcie-replay"] == "unknown"


# --- memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"ecc": True, "ecc_pending": True}, ("pass", "enabled")),
        ({"ecc": False, "ecc_pending": False}, ("fail", "disabled")),
        ({"ecc": True, "ecc_pending": False}, ("warn", "enabled, disabled pending")),
        ({"ecc": False, "ecc_pending": True}, ("warn", "disabled, enabled pending")),
    ],
)
def test_ecc_mode(facts: dict[str, Any], expected: tuple[str, str]) -> None:
    assert outcome("ecc-mode", **facts) == expected


@pytest.mark.parametrize(
    ("device_id", "model", "expected"),
    [
        ("2335", None, "fail"),
        (None, "NVIDIA H200", "fail"),  # the driver names the model, and the id was lost
        (None, "NVIDIA GeForce RTX 4090", "unknown"),
        (None, None, "unknown"),
        (CONSUMER, "NVIDIA GeForce RTX 4090", "warn"),
    ],
)
def test_ecc_that_is_off_warns_only_on_a_gpu_that_is_known_for_another(
    device_id: str | None, model: str | None, expected: str
) -> None:
    found = evidence(msgspec.structs.replace(nvidia(ecc=False, ecc_pending=False), model=model))
    functions = tuple(msgspec.structs.replace(one, device_id=device_id) for one in found.host.pci)
    host = msgspec.structs.replace(found.host, pci=functions)
    assert of(msgspec.structs.replace(found, host=host), "ecc-mode", *GPUS)[A].outcome == expected


def test_ecc_as_planned() -> None:
    found = evidence(nvidia(ecc=False, ecc_pending=False), plans=(planned(action("gpu-ecc", False)),))
    result = of(found, "ecc-mode", *GPUS)[A]
    assert (result.outcome, result.actual) == ("warn", "disabled, as planned")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"ecc_uncorrected": 0, "ecc_corrected": 9}, "pass"),
        ({"ecc_uncorrected": 0, "ecc_uncorrected_lifetime": 4}, "pass"),
        ({"ecc_uncorrected": 1}, "fail"),
        ({"ecc_uncorrected": 0, "sram_threshold_exceeded": True}, "fail"),
        ({"ecc_uncorrected": 0, "unrepairable_memory": True}, "fail"),
        ({"ecc_uncorrected": 0, "channel_repair_pending": False, "tpc_repair_pending": False}, "pass"),
        ({"ecc_uncorrected": 0, "channel_repair_pending": True, "tpc_repair_pending": False}, "fail"),
        ({"ecc_uncorrected": 0, "channel_repair_pending": False, "tpc_repair_pending": True}, "fail"),
        ({"channel_repair_pending": True}, "fail"),
        ({"channel_repair_pending": False}, "unknown"),
    ],
)
def test_ecc_errors(facts: dict[str, Any], expected: str) -> None:
    assert outcome("ecc-errors", **facts)[0] == expected


def test_a_repair_that_is_pending_is_made_by_a_reset() -> None:
    facts: dict[str, Any] = {"ecc_uncorrected": 0, "channel_repair_pending": True, "tpc_repair_pending": True}
    told = of(evidence(nvidia(**facts), nvidia(B, ecc_uncorrected=0)), "ecc-errors", *GPUS)
    assert told[A].actual == "0 uncorrected, repair of a memory channel pending, repair of a TPC pending"
    assert (told[A].hint or "").startswith("nvidia-smi --gpu-reset")
    assert told[B].outcome == "unknown", "its sister reports repairs, and it does not"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, ("pass", "no row remapped")),
        ({"remapped_uncorrectable": 2}, ("pass", "remapped: 2 after uncorrected errors")),
        ({"remap_banks_none": 1}, ("warn", "1 memory banks without a spare row; no row remapped")),
        ({"remapped_pending": True}, ("fail", "remapping pending; no row remapped")),
        ({"remapped_pending": True, "remapped_failed": True}, ("fail", "remapping failed; no row remapped")),
    ],
)
def test_row_remap(facts: dict[str, Any], expected: tuple[str, str]) -> None:
    none = {"remapped_correctable": 0, "remapped_uncorrectable": 0}
    assert outcome("row-remap", **{"remapped_pending": False, "remapped_failed": False, **none, **facts}) == expected


def test_a_failed_remap_is_a_gpu_to_be_replaced() -> None:
    found = of(evidence(nvidia(remapped_pending=False, remapped_failed=True)), "row-remap", *GPUS)[A]
    assert "replacement" in (found.hint or "")


def test_half_a_remap_answer_is_unknown_unless_it_is_bad() -> None:
    assert outcome("row-remap", remapped_pending=False)[0] == "unknown"
    assert outcome("row-remap", remapped_pending=False, remapped_failed=False)[0] == "unknown", "how many is not told"
    assert outcome("row-remap", remapped_pending=True, remapped_failed=False)[0] == "fail"


def test_what_a_sister_tells_and_a_gpu_does_not_is_unknown() -> None:
    good: dict[str, Any] = {"ecc_uncorrected": 0, "sram_threshold_exceeded": False}
    told = of(evidence(nvidia(**good), nvidia(B, ecc_uncorrected=0)), "ecc-errors", *GPUS)
    assert (told[A].outcome, told[B].outcome) == ("pass", "unknown")
    assert "sram threshold exceeded not reported" in (told[B].actual or "")


def test_a_fact_that_only_one_gpu_of_a_model_lacks_is_no_proof() -> None:
    lacking = nvidia(B, lacks=("ecc", "ecc_pending"))
    told = of(evidence(nvidia(ecc=True, ecc_pending=True), lacking), "ecc-mode", *GPUS)
    assert (told[A].outcome, told[B].outcome) == ("pass", "unknown")
    assert of(evidence(lacking, device_id=CONSUMER), "ecc-mode", *GPUS)[B].outcome == "skip"
    odd = nvidia(ecc=True, ecc_pending=True, lacks=("ecc_uncorrected",))
    assert of(evidence(odd), "ecc-errors", *GPUS)[A].outcome == "unknown", "with ECC on it counts errors"


@pytest.mark.parametrize(("pending", "expected"), [(True, "fail"), (False, "pass")])
def test_retired_pages(pending: bool, expected: str) -> None:
    assert outcome("retired-pages", retired_pending=pending)[0] == expected


def test_a_part_that_remaps_rows_retires_no_pages() -> None:
    assert outcome("retired-pages", remapped_pending=False)[0] == "skip"
    assert outcome("retired-pages", remapped_failed=False)[0] == "skip"
    assert outcome("retired-pages", remapped_pending=False, retired_pending=True)[0] == "fail", "what it tells counts"


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("2335", "skip"),
        ("20b2", "skip"),
        ("2901", "skip"),
        ("1db6", "unknown"),
        ("1eb8", "unknown"),
        ("2182", "unknown"),
    ],
)
def test_a_part_that_tells_nothing_is_known_by_its_generation(device: str, expected: str) -> None:
    found = evidence(nvidia(), host={"pci": (function(A, device_id=device),)})
    assert of(found, "retired-pages", *GPUS)[A].outcome == expected


def test_the_bit_error_rate_allows_what_dcgm_allows() -> None:
    assert [errors_allowed(speed, 16) for speed in (8.0, 16.0, 32.0)] == [8, 16, 31]
    assert errors_allowed(64.0, 16) is None


@pytest.mark.parametrize(("count", "expected"), [(0, "pass"), (1, "unknown")])
def test_replays_of_a_link_of_64_gts_have_no_bound(count: int, expected: str) -> None:
    fast = Link(speed_gts=64.0, width=16, max_speed_gts=64.0, max_width=16)
    host = {"pci": (msgspec.structs.replace(function(A), link=fast),)}
    found = looked_at(evidence(nvidia(pcie_replays=count), host=host), {f"replays {A}": {"replays": 0}})
    assert of(found, "pcie-replay", *GPUS)[A].outcome == expected


@pytest.mark.parametrize(("count", "expected"), [(0, "pass"), (31 * 30, "pass"), (31 * 30 + 1, "warn")])
def test_replays_by_their_rate(count: int, expected: str) -> None:
    found = looked_at(evidence(nvidia(pcie_replays=count)), {f"replays {A}": {"replays": 0}})
    assert of(found, "pcie-replay", *GPUS)[A].outcome == expected


@pytest.mark.parametrize(("loaded", "more"), [(None, "2"), (UP - 1801, "2"), (UP - 1799, "9")])
def test_replays_of_a_driver_that_was_loaded_since_count_whole(loaded: float | None, more: str) -> None:
    text = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.159.04"
    health = Health(events=parse_events([(loaded, text)] if loaded else []))
    found = looked_at(evidence(nvidia(pcie_replays=9), health=health), {f"replays {A}": {"replays": 7}})
    assert f", {more} of them since the look" in (of(found, "pcie-replay", *GPUS)[A].actual or "")


# --- clocks, power, heat -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ((), "pass"),
        (("gpu_idle",), "pass"),
        (("sw_power_cap",), "pass"),
        (("applications_clocks_setting", "sync_boost"), "pass"),
        (("sw_thermal_slowdown",), "warn"),
        (("hw_slowdown",), "fail"),
        (("hw_slowdown", "hw_thermal_slowdown"), "fail"),
        (("sw_power_cap", "hw_power_brake_slowdown"), "fail"),
    ],
)
def test_clock_reasons(reasons: tuple[str, ...], expected: str) -> None:
    found, actual = outcome("clock-reasons", clock_reasons=reasons)
    assert found == expected
    assert all(reason in (actual or "") for reason in reasons)


@pytest.mark.parametrize(("now", "expected"), [(1980.0, "pass"), (1500.0, "warn")])
def test_application_clocks(now: float, expected: str) -> None:
    found = outcome("application-clocks", application_clock_mhz=now, default_application_clock_mhz=1980.0)
    assert found[0] == expected


@pytest.mark.parametrize(
    ("now", "want", "expected"),
    [(700.0, None, "pass"), (750.0, None, "pass"), (500.0, None, "warn"), (500.0, 500, "pass"), (700.0, 500, "warn")],
)
def test_power_limit(now: float, want: int | None, expected: str) -> None:
    plans = () if want is None else (planned(action("gpu-power-limit", want)),)
    found = evidence(nvidia(power_limit_watts=now, power_default_watts=700.0), plans=plans)
    assert of(found, "power-limit", *GPUS)[A].outcome == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"temperature_margin_c": 51.0}, "pass"),
        ({"temperature_margin_c": 0.0}, "warn"),
        ({"temperature_slowdown_c": 90.0}, "pass"),
        ({"temperature_slowdown_c": 37.0}, "warn"),
        ({}, "unknown"),
    ],
)
def test_temperature(facts: dict[str, Any], expected: str) -> None:
    assert outcome("gpu-temperature", temperature_c=37.0, **facts)[0] == expected


def test_the_smaller_of_two_margins_counts() -> None:
    heat: dict[str, Any] = {"temperature_c": 95.0, "temperature_margin_c": 30.0, "temperature_slowdown_c": 90.0}
    assert outcome("gpu-temperature", **heat)[0] == "warn"
    assert outcome("gpu-temperature", **{**heat, "temperature_c": 40.0, "temperature_margin_c": -2.0})[0] == "warn"
    assert outcome("gpu-temperature", **{**heat, "temperature_c": 40.0})[0] == "pass"


# --- modes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "want", "expected"), [(True, None, "pass"), (False, None, "warn"), (False, False, "pass")]
)
def test_persistence(on: bool, want: bool | None, expected: str) -> None:
    plans = () if want is None else (planned(action("gpu-persistence", want)),)
    assert of(evidence(nvidia(persistence=on), plans=plans), "persistence", *GPUS)[A].outcome == expected


@pytest.mark.parametrize(
    ("mode", "want", "expected"),
    [
        ("default", None, "pass"),
        ("prohibited", None, "fail"),
        ("exclusive_process", None, "warn"),
        ("exclusive_process", "exclusive_process", "pass"),
        ("default", "exclusive_process", "warn"),
    ],
)
def test_compute_mode(mode: str, want: str | None, expected: str) -> None:
    plans = () if want is None else (planned(action("gpu-compute-mode", want)),)
    assert of(evidence(nvidia(compute_mode=mode), plans=plans), "compute-mode", *GPUS)[A].outcome == expected


@pytest.mark.parametrize(
    ("mode", "pending", "want", "expected"),
    [
        ("disabled", "disabled", None, "pass"),
        ("enabled", "enabled", None, "pass"),
        ("enabled", None, None, "unknown"),
        ("disabled", "enabled", None, "warn"),
        ("disabled", "disabled", "enabled", "fail"),
        ("enabled", "enabled", "enabled", "pass"),
    ],
)
def test_mig_mode(mode: str, pending: str | None, want: str | None, expected: str) -> None:
    plans = () if want is None else (planned(action("gpu-mig-mode", want)),)
    found = evidence(nvidia(mig=Mig(mode=mode, pending=pending)), plans=plans)
    assert of(found, "mig-mode", *GPUS)[A].outcome == expected


def test_a_gpu_without_mig_is_skipped() -> None:
    for check in ("mig-mode", "mig-instances"):
        assert outcome(check, lacks=("mig",))[0] == "skip"
        assert outcome(check)[0] == "unknown", "not told"


ONE, THREE = MigInstance(profile="1g.18gb", id=7, start=6), MigInstance(profile="3g.71gb", id=2, start=4)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((ONE, THREE), "pass"),
        ((THREE, ONE), "pass"),
        ((ONE,), "fail"),
        ((ONE, THREE, ONE), "fail"),
        ((ONE, msgspec.structs.replace(THREE, start=0)), "fail"),
        ((), "fail"),
        (None, "unknown"),
        ((ONE, MigInstance(id=2)), "unknown"),
    ],
)
def test_mig_instances_against_the_plan(found: tuple[MigInstance, ...] | None, expected: str) -> None:
    plan = planned(guests=(guest_with(("3g.71gb", 4), ("1g.18gb", 6)),))
    seen = evidence(nvidia(mig=Mig(mode="enabled", pending="enabled", instances=found)), plans=(plan,))
    assert of(seen, "mig-instances", *GPUS)[A].outcome == expected


def test_planned_instances_with_mig_off_fail() -> None:
    plan = planned(guests=(guest_with(("1g.18gb", 6)),))
    seen = evidence(nvidia(mig=Mig(mode="disabled", pending="disabled", instances=())), plans=(plan,))
    assert of(seen, "mig-instances", *GPUS)[A].outcome == "fail"


def test_mig_without_instances_is_of_no_use() -> None:
    assert outcome("mig-instances", mig=Mig(mode="enabled", instances=()))[0] == "warn"


@pytest.mark.parametrize(("count", "expected"), [(0, ("pass", "none")), (2, ("warn", "2 use it"))])
def test_processes(count: int, expected: tuple[str, str]) -> None:
    assert outcome("gpu-processes", processes=count) == expected


def test_virtual_functions_are_told_of_by_their_parent() -> None:
    found = evidence(Gpu(address=C, vendor="nvidia"), host={"pci": (function(C, physfn=A),)})
    assert of(found, "ecc-mode", *GPUS)[C].actual == f"a virtual function: reported for {A}"


def test_a_gpu_without_a_function_is_unknown() -> None:
    found = evidence(Gpu(address=C, vendor="nvidia"), host={"pci": (PciDevice(address=A),)})
    assert {r.outcome for r in results(found, *GPUS)} <= {"unknown", "warn"}


@pytest.mark.parametrize(
    ("seen", "facts", "expected"),
    [
        ((1905.0, 272.0), {}, "pass"),  # an H200 as it was measured
        ((1200.0, 230.0), {}, "warn"),  # nvidia-smi -lgc 210,1200
        ((1200.0, 560.0), {}, "warn"),  # the same, all units at work
        ((1380.0, 700.0), {}, "skip"),  # at its power limit
        ((1200.0, 230.0), {"sm_clock_max_mhz": None}, "unknown"),
        ((1200.0, 230.0), {"power_limit_watts": None}, "unknown"),
    ],
)
def test_a_locked_clock_shows_under_load(seen: tuple[float, float], facts: dict[str, Any], expected: str) -> None:
    known = {"sm_clock_max_mhz": 1980.0, "power_limit_watts": 700.0, **facts}
    found = msgspec.structs.replace(evidence(nvidia(**known)), loaded_clocks={A: seen})
    assert of(found, "locked-clocks", *GPUS)[A].outcome == expected


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("h100/vm-h100-level2", "pass"),
        ("h100/vm-h100x1-level1", "skip"),  # the first reading: 1635 MHz at 272 W, the average of a second
        ("h200/vm-x1-level1", "pass"),
        ("h200/vm-x4-level1", "pass"),
    ],
)
def test_no_gpu_that_was_measured_has_a_locked_clock(name: str, outcome: str) -> None:
    measured = Validation.from_json((HOSTS / f"{name}.json").read_text())
    clocks = loaded_clocks(measured.samples)
    assert clocks
    found = evidence(nvidia(sm_clock_max_mhz=1980.0, power_limit_watts=700.0))
    for seen in clocks.values():
        assert of(msgspec.structs.replace(found, loaded_clocks={A: seen}), "locked-clocks", *GPUS)[A].outcome == outcome
