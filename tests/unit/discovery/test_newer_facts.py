"""A fact that is newer than a capture is not in it: that is told, and is no unknown. What is there counts."""

from __future__ import annotations

from pathlib import Path

import msgspec
from unit.machine.test_manifest import live, repacked, unpacked

from hosttune.discovery.evidence import FACTS, gather
from hosttune.discovery.kernellog import parse_events
from hosttune.discovery.recording import write_capture
from hosttune.machine import manifest
from hosttune.machine.opening import open_root
from hosttune.machine.sealing import seal
from hosttune.machine.system import COMPLETE
from hosttune.model.evidence import Health
from hosttune.rules.checks import checks, on, results_of
from hosttune.rules.engine import Finding


def test_a_capture_says_up_to_which_fact_it_has_them(tmp_path: Path) -> None:
    capture = open_root(str(unpacked(tmp_path)))
    assert capture.facts == gather(capture).facts == live().facts
    assert max(check.since for check in checks()) == FACTS


@on.check("toy", title="Clocks", about="the host", why="a test", source="a test", since=FACTS + 1)
def toy(scene: on.On) -> Finding:
    """A check that needs a newer fact."""
    return scene.passed("known") if scene.need(scene.evidence.clocks, "clocks") else scene.failed("none")


def test_a_check_of_a_newer_fact_is_skipped_in_an_older_capture_and_unknown_on_a_machine_without_it() -> None:
    evidence = gather(live())
    old = msgspec.structs.replace(evidence, clocks=None, facts=FACTS)
    lost = msgspec.structs.replace(evidence, clocks=None, facts=None)
    assert [(one.outcome, one.actual) for one in results_of(toy, old)] == [("skip", "not in this capture")]
    assert [one.outcome for one in results_of(toy, lost)] == ["unknown"]


def test_what_is_bad_in_an_older_capture_counts_and_what_is_good_does_not() -> None:
    old = msgspec.structs.replace(gather(live()), facts=0)
    (kernel_log,) = (check for check in checks() if check.id == "kernel-log")
    assert {one.outcome for one in results_of(kernel_log, old)} == {"skip"}
    told = parse_events([(9.0, "nvme nvme0: controller is down; will reset: CSTS=0xffffffff")])
    health = Health(events=told, events_since=0.0)
    assert [one.outcome for one in results_of(kernel_log, msgspec.structs.replace(old, health=health))] == ["warn"]


def test_a_capture_without_the_mark_is_of_the_oldest_and_stays_it(tmp_path: Path) -> None:
    root = unpacked(tmp_path)
    own = root / COMPLETE[1:]
    own.write_text(own.read_text().replace(f"\tfacts\t{live().facts}\n", ""))
    assert open_root(str(root)).facts == open_root(str(repacked(root))).facts == 0
    own.write_text(own.read_text() + "\tfacts\t7\n")
    seal(str(root))
    write_capture(open_root(str(root)), str(tmp_path / "again.tar.gz"))
    assert open_root(str(tmp_path / "again.tar.gz")).facts == 7
    for text in ("", "1\n", "2\n\tfacts\t-1\n", "2\n\tfacts\tx\n", "2\n\tfacts\t1"):
        assert manifest.read(text).facts == 0
