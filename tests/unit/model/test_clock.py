"""The times that hosttune writes: one format, and those of earlier versions and of libvirt's hook can be read."""

from __future__ import annotations

import re
import time

import pytest

from hosttune.model.clock import now_text, seconds_of, since_boot
from hosttune.model.starts import GUEST, HANDOVER, no_start_before, start_line

DEVICE = "0000:41:00.0"
QUARANTINED, BEFORE, AFTER = "2026-01-31T12:00:00", "2026-01-31T11:59:59", "2026-01-31T12:00:01"


def test_a_time_has_one_format_and_is_read_back() -> None:
    before = int(time.time())
    text = now_text()
    assert re.fullmatch(r"[0-9]{4}(-[0-9]{2}){2}T([0-9]{2}:){2}[0-9]{2}\+00:00", text)
    found = seconds_of(text)
    assert found is not None
    assert before <= found <= time.time()
    assert seconds_of(text.replace("+00:00", "Z")) == found


@pytest.mark.parametrize("text", ["", "not a time", "2026-01-31", "2026-01-31T12:00:00", "2026-13-01T00:00:00Z"])
def test_what_is_no_time_or_of_no_zone_is_none(text: str) -> None:
    assert seconds_of(text) is None


def test_the_clock_of_the_boot_goes_on() -> None:
    assert 0 < since_boot() <= since_boot()


@pytest.mark.parametrize("quarantined", ["Z", "+00:00"])
@pytest.mark.parametrize("own", ["Z", "+00:00"])
def test_starts_are_compared_whatever_their_format(quarantined: str, own: str) -> None:
    starts = start_line(DEVICE, HANDOVER, QUARANTINED + quarantined, "")
    assert no_start_before(starts, start_line(DEVICE, GUEST, BEFORE + own, "vm"), DEVICE)
    assert not no_start_before(starts, start_line(DEVICE, GUEST, QUARANTINED + own, "vm"), DEVICE)
    assert not no_start_before(starts, start_line(DEVICE, GUEST, AFTER + own, "vm"), DEVICE)
