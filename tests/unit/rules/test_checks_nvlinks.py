"""NVLinks one by one: what NVML and nvidia-smi say of their speed and errors, and what is judged of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from gpuevidence import A, B, evidence, is_whole, nvidia, of
from readings import looked_at
from unit.gpu.test_gpu_nvml import FakeNvml, everyone, read

from hosttune.gpu.nvidia_links import ask_links, has_no_counters, links_of_record, links_of_tables, parse_nvlink_errors
from hosttune.model.gpu import Gpu, Mig, Nvlink
from hosttune.model.validation import CheckResult

FULL = 26.562
CLEAN: dict[str, Any] = {"active": True, "gb_per_s": FULL, "replays": 0, "recoveries": 0, "crc_errors": 0}


def links(**second: Any) -> tuple[Nvlink, ...]:
    """Two links; facts of the second as given."""
    return Nvlink(link=0, **CLEAN), Nvlink(link=1, **{**CLEAN, **second})


def gpu(*, own: tuple[Nvlink, ...] | None, address: str = A, **facts: Any) -> Gpu:
    return nvidia(address, nvlinks=own, nvlinks_active=facts.pop("nvlinks_active", len(own or ())), **facts)


def judged(*gpus: Gpu, **rest: Any) -> CheckResult:
    result = of(evidence(*gpus, **rest), "nvlink-errors", "nvlinks")[A]
    assert is_whole(result)
    return result


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({}, "pass"),
        ({"replays": 1}, "warn"),
        ({"recoveries": 1}, "warn"),
        ({"crc_errors": 9}, "warn"),
        ({"replays": None}, "unknown"),
        ({"crc_errors": None, "recoveries": 1}, "unknown"),
        ({"gb_per_s": None}, "unknown"),
        ({"gb_per_s": 20.0}, "fail"),
        ({"gb_per_s": 20.0, "replays": None}, "fail"),
        ({"active": False, "gb_per_s": None, "replays": None, "recoveries": None, "crc_errors": None}, "pass"),
    ],
)
def test_each_active_link_is_judged(second: dict[str, Any], expected: str) -> None:
    assert judged(gpu(own=links(**second))).outcome == expected


def test_all_links_slow_are_slow_too() -> None:
    """By the speed that the model's links have, or by those of another GPU of the model."""
    slow = tuple(msgspec.structs.replace(link, gb_per_s=20.0) for link in links())
    assert judged(gpu(own=slow)).outcome == "fail"
    assert judged(gpu(own=slow), device_id="9999").outcome == "pass", "no board that the table has"
    assert judged(gpu(own=slow), gpu(own=links(), address=B), device_id="9999").outcome == "fail"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (gpu(own=None, nvlinks_active=0), "skip"),
        (gpu(own=None, nvlinks_active=18), "unknown"),
        (gpu(own=None, nvlinks_active=None), "unknown"),
        (gpu(own=None, nvlinks_active=None, mig=Mig(mode="enabled", pending="enabled")), "skip"),
        (gpu(own=None, nvlinks_active=18, lacks=("nvlinks",)), "skip"),  # Blackwell
    ],
)
def test_a_gpu_whose_links_are_not_known(found: Gpu, expected: str) -> None:
    assert judged(found).outcome == expected


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({}, "pass"),
        ({"replays": 1}, "fail"),
        ({"recoveries": 1}, "fail"),
        ({"crc_errors": 1}, "warn"),
        ({"crc_errors": 99 * 60}, "warn"),
        ({"crc_errors": 100 * 60}, "fail"),  # DCGM: 100 a second
        ({"crc_errors": None}, "unknown"),
        ({"active": False}, "fail"),  # it went down, and its counters stand still
        ({"gb_per_s": 20.0}, "fail"),
        ({"gb_per_s": None}, "unknown"),
    ],
)
def test_errors_that_came_while_benchmarks_ran(second: dict[str, Any], expected: str) -> None:
    later = (gpu(own=links(**second)),)
    assert judged(gpu(own=links()), gpus_later=later, seconds_later=60.0).outcome == expected


NEWER = (
    "malformed packets", "buffer overruns", "receive errors", "remote receive errors", "general receive errors",
    "link integrity errors", "link recoveries", "effective errors", "symbol errors",
)  # fmt: skip


def newer(**second: int | None) -> Gpu:
    """A GPU with NVLink 5: two links, all counters 0 but those of the second link that are given (_ for a space)."""
    counts = {name.replace("_", " "): count for name, count in second.items()}
    own = tuple(
        Nvlink(link=n, active=True, gb_per_s=53.125, errors={**dict.fromkeys(NEWER, 0), **(counts if n else {})})
        for n in (0, 1)
    )
    return gpu(own=own)


@pytest.mark.parametrize("name", NEWER)
def test_nvlink_5_has_counters_of_its_own_and_no_tolerance(name: str) -> None:
    """DCGM, MonitorNVLink5Fields: an increase of 1 is critical."""
    key = name.replace(" ", "_")
    assert judged(newer()).outcome == "pass"
    had = judged(newer(**{key: 1}))
    assert had.outcome == "warn"
    assert f"1 {name} since its driver was loaded; one reading does not tell when (link 1: 1)" in str(had.actual)
    assert judged(newer(**{key: None})).outcome == "unknown"
    more = judged(newer(), gpus_later=(newer(**{key: 1}),), seconds_later=60.0)
    assert more.outcome == "fail"
    assert judged(newer(), gpus_later=(newer(),), seconds_later=60.0).outcome == "pass"
    assert judged(newer(), gpus_later=(newer(**{key: None}),), seconds_later=60.0).outcome == "unknown"


def test_the_second_look_counts_only_what_is_new() -> None:
    had = gpu(own=links(replays=5))
    assert judged(had, gpus_later=(had,), seconds_later=60.0).outcome == "warn"
    cleared = gpu(own=links(replays=2))
    assert judged(had, gpus_later=(cleared,), seconds_later=60.0).outcome == "fail", "cleared, and two since then"
    assert judged(gpu(own=links()), gpus_later=(), seconds_later=60.0).outcome == "unknown"


def test_errors_of_before_the_last_look_do_not_count_again() -> None:
    had = evidence(gpu(own=links(replays=5)))
    own = {
        f"nvlink {A} {link.link}": {k: n or 0 for k, n in link.counters.items()}
        for link in had.host.gpus[0].nvlinks or ()
    }
    assert of(looked_at(had, own), "nvlink-errors", "nvlinks")[A].outcome == "pass"
    fewer = {name: {**counts, "replays": max(0, counts["replays"] - 1)} for name, counts in own.items()}
    more = of(looked_at(had, fewer), "nvlink-errors", "nvlinks")[A]
    assert (more.outcome, "1 replays since the look of" in (more.actual or "")) == ("fail", True)


# The form of driver 535 on H100 (published in stas00/ml-engineering, debug/nvidia guide).
ERRORS = """GPU 0: NVIDIA H200 (UUID: GPU-a)
\t Link 0: Replay Errors: 0
\t Link 0: Recovery Errors: 0
\t Link 0: CRC Errors: 0

\t Link 1: Replay Errors: 7
\t Link 1: Recovery Errors: 1
\t Link 1: CRC Errors: N/A
"""


def test_nvidia_smi_has_the_counters_of_each_link() -> None:
    own = (Gpu(address=A, vendor="nvidia", uuid="GPU-a"),)
    found = links_of_tables(ERRORS, {A: (FULL, FULL)}, own, numbered=True)[A]
    assert [(link.replays, link.recoveries, link.crc_errors) for link in found] == [(0, 0, 0), (7, 1, None)]
    assert links_of_tables(ERRORS, {A: (FULL,)}, own, numbered=True) == {}, "another number of links"
    assert links_of_tables("", {A: (FULL, FULL)}, own, numbered=True) == {}
    lost = ERRORS.replace("\t Link 0: Replay Errors: 0\n", "")
    assert parse_nvlink_errors(lost, "Replay Errors")[0].links is None
    assert [link.replays for link in links_of_tables(lost, {A: (FULL, FULL)}, own, numbered=True)[A]] == [None, None]


# Names of counters as driver 595 prints them of Blackwell's links; those that are not judged are left out here.
ERRORS_5 = """GPU 0: NVIDIA B200 (UUID: GPU-a)
\t Link 0: Malformed packet Errors: 0
\t Link 0: Buffer overrun Errors: 0
\t Link 0: Rx Errors: 0
\t Link 0: Rx remote Errors: 0
\t Link 0: Rx General Errors: 0
\t Link 0: Local link integrity Errors: 0
\t Link 0: Tx discards: 0
\t Link 0: Total link recovery events: 2
\t Link 0: Effective Errors: 0
\t Link 0: Effective BER: 15e-255
\t Link 0: Symbol Errors: 0
\t Link 0: FEC Errors - 0: 36140749276
"""


def test_nvidia_smi_has_the_counters_of_nvlink_5() -> None:
    own = (Gpu(address=A, vendor="nvidia", uuid="GPU-a"),)
    (link,) = links_of_tables(ERRORS_5, {A: (53.125,)}, own, numbered=True)[A]
    assert link.errors == {**dict.fromkeys(NEWER, 0), "link recoveries": 2}
    assert link.replays is None
    lost = ERRORS_5.replace("\t Link 0: Symbol Errors: 0\n", "")
    (link,) = links_of_tables(lost, {A: (53.125,)}, own, numbered=True)[A]
    assert link.errors is not None
    assert link.errors["symbol errors"] is None


def test_nvml_is_asked_for_the_counters_of_nvlink_5_where_it_has_no_others() -> None:
    class Blackwell:
        """No counter of earlier links; 7 effective errors on every link."""

        library = None

        def ask(self, name: str, *arguments: Any) -> Any:
            if name == "nvmlErrorString":
                return "Not Supported"
            if name != "nvmlDeviceGetFieldValues":
                return MISSING
            values = {field: 53125 if field == 164 else 7 * (field == 219) for field, _ in arguments[1]}
            return [
                SimpleNamespace(
                    nvmlReturn=3 if field in (161, 162, 163) else 0, valueType=1, value=SimpleNamespace(uiVal=value)
                )
                for field, value in values.items()
            ]

        def reference(self, value: Any) -> object:
            return value

        def guard(self, call: Any) -> Any:
            return call()

    answer = {"link": 0, "state": 1, **ask_links(Blackwell(), "handle", [0])[0]}
    found = links_of_record([answer], None)
    assert found == (
        Nvlink(link=0, active=True, gb_per_s=53.125, errors={**dict.fromkeys(NEWER, 0), "effective errors": 7}),
    )
    assert not has_no_counters([answer])
    none = {**answer, "errors": dict.fromkeys(NEWER, MISSING)}
    assert has_no_counters([none])
    assert links_of_record([none], None) is None


def test_nvml_has_the_counters_of_each_link() -> None:
    library = FakeNvml({A: [(1, B), (1, B)], B: [(1, A), (1, A)]}, everyone(0, (A, B)))
    library.errors[A, 162] = 3
    gpus, _ = read(library, A, B)
    assert (gpus[A].nvlinks or ())[:2] == tuple(Nvlink(link=n, **{**CLEAN, "recoveries": 3}) for n in (0, 1))
    assert gpus[B].nvlinks == (*links(), Nvlink(link=2, active=False))


def record(**facts: Any) -> list[dict[str, Any]]:
    clean = {"link": 0, "state": 1, "speed": 26562, "replays": 0, "recoveries": 0, "crc_errors": 0}
    return [clean, {**clean, "link": 1, **facts}]


MISSING = "ERR Not Supported"


@pytest.mark.parametrize(
    ("facts", "field", "value"),
    [
        ({"replays": -7}, "replays", None),
        ({"replays": "ERR Unknown Error"}, "replays", None),
        ({"replays": True}, "replays", None),
        ({"speed": MISSING}, "gb_per_s", 25.0),  # the speed of all links, of GPUs before Hopper
        ({"speed": "ERR Unknown Error"}, "gb_per_s", None),
        ({"state": 0}, "active", False),
    ],
)
def test_values_of_a_record(facts: dict[str, Any], field: str, value: object) -> None:
    found = links_of_record(record(**facts), 25_000)
    assert found is not None
    assert getattr(found[1], field) == value


def test_records_without_counters_have_no_links() -> None:
    assert links_of_record([{"link": 0, "state": 1}], None) is None, "an older record"
    assert links_of_record(record(link=5), None) is None
    assert links_of_record(MISSING, None) is None
    blackwell = [{**one, **dict.fromkeys(("replays", "recoveries", "crc_errors"), MISSING)} for one in record()]
    assert has_no_counters(blackwell)
    assert links_of_record(blackwell, None) is None
    assert not has_no_counters(record(replays=MISSING))
