"""A measured host of the bundled example, as a live machine would give it: its evidence, its validation, its pages."""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec.structs import replace
from validations import figures

from hosttune.cli.validate import certificate_of, report_of
from hosttune.discovery.evidence import gather
from hosttune.machine.opening import open_root
from hosttune.model.evidence import Evidence
from hosttune.model.validation import Acceptance, CheckResult, Validation, verdict_of
from hosttune.model.verification import Verification
from hosttune.report.draw import drawn
from hosttune.validating import Validated, decide

ACCEPTED = Acceptance(
    check="cpu-frequency", by="Jana Novak", why="change 4711", until="2027-03-31", at="2026-11-01T10:00:00+00:00"
)


@cache
def evidence() -> Evidence:
    return gather(open_root("@example"), inside=False)


@cache
def measured() -> Validation:
    """Level 1 of eight GPUs: two warnings, everything else as it should be."""
    gpus = tuple(gpu.address for gpu in evidence().host.index.accelerators)
    found = decide(evidence(), 1, None, live=True)
    return replace(found, at="2026-11-28T12:00:00+00:00", samples=figures(gpus=gpus), facts={"nccl": "2.28.9"})


def changed(*results: CheckResult) -> Validation:
    """The same with these results in place of those of their check and subject, and the verdict that follows."""
    new = {(result.check, result.subject): result for result in results}
    every = tuple(new.get((result.check, result.subject), result) for result in measured().results)
    return replace(measured(), results=every, verdict=verdict_of(every))


def result_of(check: str, **fields: Any) -> CheckResult:
    """The first result of a check, with other fields."""
    return replace(next(result for result in measured().results if result.check == check), **fields)


def statement(**fields: Any) -> Verification:
    host = evidence().host
    known: dict[str, Any] = {
        "verdict": "valid", "about": "host", "host": host.hostname, "signer": "ops@example.net",
        "devices": tuple(gpu.address for gpu in host.index.accelerators),
        "issued_at": "2026-11-28T10:00:00+00:00", "expires_at": "2026-11-30T10:00:00+00:00",
    }  # fmt: skip
    return Verification(**(known | fields))


def certificate(found: Validation, *statements: Verification) -> str:
    return certificate_of(Validated(found, replace(evidence(), statements=statements)))


def full_page(found: Validation) -> str:
    return drawn(report_of(Validated(found, evidence()), None), "html")
