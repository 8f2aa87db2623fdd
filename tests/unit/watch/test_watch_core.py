"""When the agent looks: properties over random events, on a clock that the test turns."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweeps import examples

from hosttune.watch.core import (
    AFTER_START,
    GAP,
    HOST,
    LONGEST_GAP,
    LOST,
    MOST_CONCERNS,
    SETTLE,
    DueLook,
    Event,
    Schedule,
)

INTERVAL, LOOK_SECONDS = 60.0, 0.2
DEVICES = [f"device 0000:{bus:02x}:00.0" for bus in range(40)]
SUBJECTS = [*DEVICES, *(f"guest g{n}" for n in range(8)), HOST]


def run(schedule: Schedule, until: float, now: float = 0.0) -> list[DueLook]:
    """Every look that is due until then; each takes a while, as a real one does."""
    looks = []
    while schedule.next_due() <= until:
        now = max(now, schedule.next_due())
        look = schedule.take(now)
        assert look is not None
        looks.append(look)
        now += LOOK_SECONDS
    return looks


def play(events: list[tuple[float, Event]], until: float) -> tuple[list[DueLook], Schedule, int]:
    """The looks that these events cause, the schedule afterwards, and its largest size."""
    schedule, looks, largest, now = Schedule(INTERVAL, 0.0), [], 0, 0.0
    for at, event in events:
        found = run(schedule, at, now)
        looks += found
        now = max(now, at, found[-1].at + LOOK_SECONDS if found else 0.0)
        schedule.add(max(at, now if found and found[-1].at + LOOK_SECONDS > at else at), event)
        largest = max(largest, schedule.size)
    looks += run(schedule, until, now)
    return looks, schedule, largest


def random_events(seed: int, count: int) -> list[tuple[float, Event]]:
    """Bursts, storms and single events, of devices and guests, some of them lost."""
    chance, at = Random(seed), 0.0
    found: list[tuple[float, Event]] = []
    while len(found) < count:
        subject, what = chance.choice(SUBJECTS), chance.choice(["bind", "unbind", "started", "xid", "stopped", LOST])
        storm = chance.choice([1, 1, 1, 5, 200])
        for _ in range(min(storm, count - len(found))):
            found.append((at, Event("test", what, subject)))
            at += chance.choice([0.0, 0.001, 0.05]) if storm > 1 else 0.0
        at += chance.choice([0.0, 0.1, 2.0, 15.0, 100.0])
    return found


def test_ten_thousand_random_events_leave_nothing_behind_and_miss_no_final_state() -> None:
    events = random_events(1, 10_000)
    end = events[-1][0] + 1000
    looks, schedule, largest = play(events, end)
    times = [look.at for look in looks]
    last: dict[str, float] = {}
    for at, event in events:
        last[event.subject] = at
    after = iter(sorted(last.values()))
    waiting = next(after, None)
    for time in times:  # each subject's last event has a look after it
        while waiting is not None and waiting <= time:
            waiting = next(after, None)
    assert waiting is None
    assert schedule.size == 0, "nothing is remembered when it has been quiet"
    assert largest <= 4 * len(SUBJECTS)
    assert sum(count for look in looks for _, count in look.events) >= len(events) * 0.99  # the rest: kinds beyond 8
    assert all(b - a >= GAP - 1e-6 for a, b in itertools.pairwise(times)), "never two looks within a second"
    assert len(looks) < len(events) / 4, "storms are merged"


@given(st.lists(st.tuples(st.floats(0, 20), st.sampled_from(SUBJECTS)), min_size=1, max_size=60))
def test_no_event_waits_longer_than_a_storm_is_slowed_down_and_none_is_forgotten(rows: list[tuple[float, str]]) -> None:
    at, events = 0.0, []
    for pause, subject in rows:
        at += pause
        events.append((at, Event("test", "change", subject)))
    looks, _, _ = play(events, at + 200)
    for moment, _ in events:
        assert any(moment <= look.at <= moment + LONGEST_GAP + LOOK_SECONDS for look in looks), moment


@given(st.lists(st.floats(0, 3), min_size=1, max_size=40), st.sampled_from(DEVICES))
def test_the_first_event_of_a_quiet_device_is_answered_within_two_seconds_whatever_storms(
    pauses: list[float], quiet: str
) -> None:
    other = next(name for name in DEVICES if name != quiet)
    at, events = 0.0, []
    for pause in pauses:
        at += pause
        events.append((at, Event("test", "aer", other)))
    events.append((at, Event("test", "unbind", quiet)))
    looks, _, _ = play(events, at + 100)
    answer = next(look.at for look in looks if any("unbind" in text for text, _ in look.events))
    assert answer - at <= GAP + LOOK_SECONDS + 1e-6


def test_a_storm_of_one_device_is_slowed_down_and_its_end_is_seen() -> None:
    storm = [(n / 100, Event("kernel-log", "aer", DEVICES[0])) for n in range(60_000)]  # ten minutes, 100 a second
    looks, schedule, largest = play(storm, 1000.0)
    assert len([look for look in looks if look.at < 600]) <= 35
    assert any(600 <= look.at <= 600 + LONGEST_GAP for look in looks)
    assert largest <= 3
    assert schedule.size == 0


def test_five_single_events_in_a_row_are_not_yet_a_storm() -> None:
    events = [(10 + 2.5 * n, Event("udev", "bind", DEVICES[0])) for n in range(5)]
    looks, _, _ = play(events, 30.0)
    for at, _ in events:
        assert any(at <= look.at <= at + GAP + SETTLE for look in looks)


def test_a_guest_that_started_is_looked_at_twice() -> None:
    looks, _, _ = play([(10.0, Event("libvirt", "started", "guest vm"))], 40.0)
    assert [round(look.at, 2) for look in looks] == [0.0, 10 + SETTLE, 10 + AFTER_START]
    assert looks[1].events == (("libvirt: started guest vm", 1),)


def test_nothing_happens_but_the_interval() -> None:
    schedule = Schedule(INTERVAL, 0.0)
    assert [look.at for look in run(schedule, 200.0)] == [0.0, 60.0, 120.0, 180.0]
    assert schedule.take(200.0) is None


def test_what_was_lost_is_the_host_s() -> None:
    schedule = Schedule(INTERVAL, 0.0)
    schedule.take(0.0)
    schedule.add(5.0, Event("udev", LOST, DEVICES[0]))
    look = schedule.take(5.0 + SETTLE)
    assert look is not None
    assert look.events == (("udev: lost device 0000:00:00.0", 1),)


def test_more_devices_than_can_be_remembered_are_one_concern() -> None:
    schedule = Schedule(INTERVAL, 0.0)
    schedule.take(0.0)
    for n in range(20_000):
        schedule.add(1.0, Event("udev", "started", f"device {n}"))
    assert schedule.size <= 2 * (MOST_CONCERNS + 1)
    assert schedule.take(2.0) is not None
    run(schedule, 300.0, 2.0)
    assert schedule.size == 0


def test_a_clock_that_goes_back_stands_still_and_one_that_jumps_is_caught_up_once() -> None:
    schedule = Schedule(INTERVAL, 1000.0)
    assert schedule.take(1000.0) is not None
    schedule.add(10.0, Event("udev", "bind", DEVICES[0]))
    assert schedule.take(11.0) is None
    assert schedule.next_due() == pytest.approx(1000 + GAP)
    assert schedule.take(50_000.0) is not None  # a suspend
    assert schedule.take(50_000.1) is None
    assert schedule.next_due() == pytest.approx(50_060.0)


@given(st.floats(1, 3600))
def test_any_interval_is_kept(interval: float) -> None:
    schedule = Schedule(interval, 0.0)
    times = [schedule.next_due()]
    for _ in range(examples(5, 50)):
        assert schedule.take(times[-1]) is not None
        times.append(schedule.next_due())
    assert all(b - a == pytest.approx(interval) for a, b in itertools.pairwise(times))
