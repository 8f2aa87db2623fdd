"""The certificate: what it tells the tenant, and that nothing but a verdict that may be signed looks like one."""

from __future__ import annotations

import json
import re

import pytest
from certified import ACCEPTED, certificate, changed, measured, result_of, statement
from msgspec.structs import replace

from hosttune.model.handover import digest_of
from hosttune.model.validation import CheckResult, Validation


def words(page: str) -> str:
    return " ".join(re.sub(r"<(style|script)[^>]*>.*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL).split())


def banner(page: str) -> str:
    return page[page.index('<div class="verdict') : page.index("<main>")]


def test_it_tells_what_a_tenant_asks() -> None:
    page = certificate(changed(result_of("cpu-frequency", accepted=ACCEPTED)), statement())
    assert '<div class="verdict warn"' in page
    assert "<strong>CERTIFICATE</strong>" in page
    text = words(page)
    for told in (
        "1650000000003", "GPU-00000000-0000-4000-8000-000000000056", "96.00.A5.00.1A", "nvidia 580.159.04",
        "2026-11-28T12:00:00+00:00, level 1 (quick benchmarks)", "at least 48.0", "✓ 55.3 GB/s", "numa-balancing",
        "by Jana Novak on 2026-11-01 until 2027-03-31: change 4711", "signer ops@example.net", "valid now",
    ):  # fmt: skip
        assert told in text, told
    assert "It holds until 2026-11-30T10:00:00+00:00 (the statement of the hand-over)" in text


def test_it_holds_no_longer_than_what_somebody_answers_for() -> None:
    page = certificate(changed(result_of("cpu-frequency", accepted=replace(ACCEPTED, until="2026-11-29"))), statement())
    assert "It holds until 2026-11-29 (cpu-frequency is accepted)" in words(page)
    assert "No signed statement is kept on this host" in certificate(measured())


def test_a_void_statement_gives_no_date() -> None:
    page = certificate(measured(), statement(verdict="void"))
    assert "It holds until a device, its firmware or driver," in words(page)
    assert "void now" in page


def test_its_digest_is_that_of_the_validation_in_it() -> None:
    page = certificate(measured())
    kept = re.search(r'<script type="application/json" id="validation">(.*?)</script>', page, re.DOTALL)
    assert kept is not None
    held = Validation.from_json(json.dumps(json.loads(kept[1])))
    assert held == measured()
    assert f"sha256 {digest_of(held)}" in words(page)


@pytest.mark.parametrize(
    ("result", "colour"),
    [
        (result_of("pcie-link", outcome="fail", actual="16 GT/s x8", hint="reseat it"), "fail"),
        (result_of("pcie-link", outcome="unknown", actual="not read", hint="as root"), "unknown"),
        (result_of("ecc-errors", outcome="unknown", accepted=replace(ACCEPTED, check="ecc-errors")), "unknown"),
    ],
    ids=["failed", "unknown", "unseen and accepted"],
)
def test_what_may_not_be_signed_is_no_certificate(result: CheckResult, colour: str) -> None:
    page = certificate(changed(result), statement())
    assert f'<div class="verdict {colour}"' in page
    assert "<strong>NO CERTIFICATE</strong>" in page
    assert "This page certifies nothing." in page
    assert "It holds" not in banner(page)
    assert "<title>NO CERTIFICATE" in page


def test_what_nobody_looked_at_is_a_specimen() -> None:
    page = certificate(replace(measured(), at=None), statement())
    assert "<strong>SPECIMEN</strong>" in page
    assert '<div class="verdict unknown"' in page
    assert "✓" not in banner(page)
