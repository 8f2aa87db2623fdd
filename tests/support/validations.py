"""Validation documents for the tests of the reports: a clean host, a faulty one, one of which nothing is known, a
large one, and one whose every text is hostile. Built here from words; no check and no benchmark has made them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hosttune.model.validation import CheckResult, Outcome, Sample, Validation, verdict_of

GPUS = (
    "0000:18:00.0", "0000:29:00.0", "0000:41:00.0", "0000:56:00.0",
    "0000:9a:00.0", "0000:aa:00.0", "0000:ba:00.0", "0000:da:00.0",
)  # fmt: skip
HOSTILE = (
    "</script><script>window.hacked=1</script>\"'><img src=x onerror=window.hacked=1>"
    "\x00\x1b[31m|`*_[x](javascript:1)&amp;"
)


@dataclass(frozen=True)
class Rule:
    """A check as the builder words it."""

    check: str
    subjects: tuple[str, ...]
    expected: str
    actual: str
    source: str
    hint: str


RULES = (
    Rule("pcie-link", GPUS, "32 GT/s x16, what both ends can do", "32 GT/s x16",
         "/sys/bus/pci/devices/{}/current_link_speed", "reseat the board of {} or replace its riser"),
    Rule("numa-affinity", GPUS, "guest tenant-a on the GPU's node", "on the GPU's node", "virsh vcpupin",
         "hosttune apply the plan again: vCPUs of the guest belong on node 0"),
    Rule("gpu-ecc", GPUS, "no uncorrected error since the driver was loaded", "0 uncorrected",
         "nvidia-smi -q -x", "nvidia-smi --gpu-reset -i {}"),
    Rule("gpu-clocks", GPUS, "no slowdown by hardware", "no reason active", "nvidia-smi -q -x",
         "look at power and cooling of {}"),
    Rule("cpu-governor", ("host",), "performance on pinned CPUs", "performance",
         "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", "hosttune plan with profile: guest"),
    Rule("iommu-mode", ("host",), "on, with groups", "intel, DMA-FQ, 214 groups", "/sys/kernel/iommu_groups",
         "boot with intel_iommu=on iommu=pt"),
    Rule("hugepages", ("node 0", "node 1"), "1000 pages of 1 GiB", "1000 pages of 1 GiB",
         "/sys/devices/system/node/node*/hugepages", "hosttune apply with profile: host, then boot"),
    Rule("time-sync", ("host",), "synchronised", "synchronised by chrony", "timedatectl show",
         "systemctl enable --now chrony"),
)  # fmt: skip


def result(rule: Rule, subject: str, outcome: Outcome, actual: str | None = None) -> CheckResult:
    return CheckResult(
        check=rule.check,
        subject=subject,
        outcome=outcome,
        expected=rule.expected,
        actual=actual or rule.actual,
        source=None if outcome == "unknown" else rule.source.format(subject),
        hint=rule.hint.format(subject) if outcome in ("fail", "unknown", "warn") else None,
    )


def document(results: tuple[CheckResult, ...], **fields: object) -> Validation:
    common: dict[str, object] = {
        "host": "gpu-07.example.net",
        "verdict": verdict_of(results),
        "results": results,
        "at": "2026-03-01T09:30:00Z",
        "version": "0.1.0",
    }
    return Validation(**(common | fields))  # type: ignore[arg-type]


def all_passed() -> tuple[CheckResult, ...]:
    return tuple(result(rule, subject, "pass") for rule in RULES for subject in rule.subjects)


def skipped() -> tuple[CheckResult, ...]:
    return (
        CheckResult(check="gaudi-ports", subject="host", outcome="skip", actual="no Gaudi here"),
        CheckResult(check="mig-layout", subject="host", outcome="skip", actual="no plan asks for MIG"),
    )


def clean(*, level: int = 1) -> Validation:
    facts = {"driver": "580.95.05", "CUDA": "13.0", "NCCL": "2.28.3", "gemm-bf16-side": "8192", "gemm-fp8-side": "8192"}
    return document(all_passed() + skipped(), level=level, samples=figures(), facts=facts)


def faulty() -> Validation:
    """Two links down, one GPU with ECC errors and held clocks, a wrong governor, unknown time, few pages."""
    found = list(all_passed())
    changes: dict[tuple[str, str], tuple[Outcome, str]] = {
        ("pcie-link", GPUS[2]): ("fail", "16 GT/s x16, both ends can do 32 GT/s"),
        ("pcie-link", GPUS[5]): ("fail", "16 GT/s x16, both ends can do 32 GT/s"),
        ("gpu-ecc", GPUS[5]): ("fail", "3 uncorrected"),
        ("gpu-clocks", GPUS[5]): ("warn", "hw_slowdown"),
        ("numa-affinity", GPUS[6]): ("unknown", "the node of this GPU is not known"),
        ("cpu-governor", "host"): ("warn", "powersave on 96 of 192 CPUs"),
        ("hugepages", "node 1"): ("fail", "612 pages of 1 GiB"),
        ("time-sync", "host"): ("unknown", "timedatectl is not installed"),
    }
    rules = {rule.check: rule for rule in RULES}
    for n, one in enumerate(found):
        if (one.check, one.subject) in changes:
            outcome, actual = changes[one.check, one.subject]
            found[n] = result(rules[one.check], one.subject, outcome, actual)
    return document((*found, *skipped()), level=1, samples=figures(slow=GPUS[2]), facts={"driver": "580.95.05"})


def everything_unknown() -> Validation:
    found = tuple(
        result(rule, subject, "unknown", "not recorded in this capture") for rule in RULES for subject in rule.subjects
    )
    return document(found, host=None, at=None, version=None)


def hostile() -> Validation:
    """Every free text tries to be markup."""
    outcomes: tuple[Outcome, ...] = ("fail", "unknown", "warn", "pass", "skip")
    found = tuple(
        CheckResult(check=f"x-{HOSTILE}", subject=HOSTILE, outcome=outcome, expected=HOSTILE, actual=HOSTILE,
                    source=HOSTILE, hint=HOSTILE)
        for outcome in outcomes
    )  # fmt: skip
    found += (CheckResult(check="plain", subject="host", outcome="pass", expected="a", actual="a", source="b"),)
    samples = (Sample(metric=HOSTILE, subject=HOSTILE, value=1.0, unit=HOSTILE),)
    return document(found, host=HOSTILE, at=HOSTILE, version=HOSTILE, facts={HOSTILE: HOSTILE}, samples=samples)


def large(results: int = 2000, gpus: int = 16) -> Validation:
    """16 GPUs, 2,000 results, all pairs measured five times."""
    addresses = tuple(f"0000:{16 + 8 * n:02x}:00.0" for n in range(gpus))
    functions = tuple(f"{addresses[n % gpus][:-4]}{n // gpus % 32:02x}.0" for n in range(results // 8))
    found = []
    for n, rule in enumerate(RULES):
        for m, function in enumerate(functions):
            outcome: Outcome = "fail" if (n + m) % 97 == 0 else "unknown" if (n + m) % 89 == 0 else "pass"
            found.append(result(replace(rule, subjects=(function,)), function, outcome))
    return document(tuple(found), level=2, samples=figures(gpus=addresses))


def figures(slow: str | None = None, gpus: tuple[str, ...] = GPUS) -> tuple[Sample, ...]:
    """Five runs each, near what H200 boards measure; `slow` has half the host bandwidth."""
    kinds = (
        ("h2d-ce", 55.5, "GB/s"), ("d2h-ce", 55.4, "GB/s"), ("device-copy", 4247.0, "GB/s"),
        ("gemm-bf16", 798.0, "TFLOP/s"), ("gemm-fp8", 1440.0, "TFLOP/s"),
    )  # fmt: skip
    samples = []
    for metric, value, unit in kinds:
        for n, gpu in enumerate(gpus):
            factor = 0.5 if gpu == slow and metric in ("h2d-ce", "d2h-ce") else 1.0
            samples += runs(metric, gpu, value * factor, unit, n)
    for n, (size, value) in enumerate((("1mib", 63.0), ("32mib", 294.0), ("256mib", 339.0), ("4gib", 363.0))):
        samples += runs(f"all-reduce-{size}", f"{len(gpus)} GPUs", value, "GB/s", n)
    return (*samples, *pairs(gpus), *nodes())


def runs(metric: str, subject: str, value: float, unit: str, n: int) -> list[Sample]:
    shifts = (1 + ((n * 7 + run * 3) % 11 - 5) / 1000 for run in range(5))
    return [Sample(metric=metric, subject=subject, value=round(value * shift, 2), unit=unit) for shift in shifts]


def pairs(gpus: tuple[str, ...]) -> tuple[Sample, ...]:
    return tuple(
        Sample(metric="p2p-write-ce", subject=f"{one}->{other}", value=round(394 + (n * 3 + m) % 5 / 5, 1), unit="GB/s")
        for n, one in enumerate(gpus)
        for m, other in enumerate(gpus)
        if one != other
    )


def nodes() -> tuple[Sample, ...]:
    table = (
        ("memory-copy", "GB/s", ((242.1, 118.4), (117.9, 240.8))),
        ("memory-latency", "ns", ((98.0, 171.0), (172.0, 97.0))),
    )
    return tuple(
        Sample(metric=metric, subject=f"node {n}->node {m}", value=value, unit=unit)
        for metric, unit, rows in table
        for n, row in enumerate(rows)
        for m, value in enumerate(row)
    )
