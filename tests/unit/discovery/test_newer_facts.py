"""A fact that is newer than a capture is not in it: that is told, and is no unknown of the machine."""

from __future__ import annotations

from pathlib import Path

import msgspec
from unit.machine.test_manifest import live, repacked, unpacked

from hosttune.discovery import discover
from hosttune.discovery.evidence import FACTS, READERS, FactReader, gather, read_facts
from hosttune.discovery.recording import Recording, write_capture
from hosttune.machine import manifest
from hosttune.machine.archive import open_root
from hosttune.machine.reader import Reader
from hosttune.machine.sealing import seal
from hosttune.machine.system import COMPLETE, System
from hosttune.rules.checks import on, results_of
from hosttune.rules.engine import Finding

NEWER = FactReader("clocks", "clocks", "read_clocks", since=FACTS + 1)


def newer_of(system: System) -> tuple[str, ...]:
    return tuple({NEWER.field} - read_facts(Reader(system), discover(system), (NEWER,)).keys())


def test_a_capture_lacks_what_is_newer_and_a_machine_nothing(tmp_path: Path) -> None:
    capture = open_root(str(unpacked(tmp_path)))
    assert capture.facts == live().facts
    assert newer_of(capture) == ("clocks",)
    machine = live()
    machine.facts = None
    assert newer_of(machine) == ()
    assert newer_of(Recording(machine)) == ()
    assert gather(capture).facts == live().facts
    assert max(row.since for row in READERS) <= FACTS


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


def test_a_capture_without_the_mark_is_of_the_oldest_and_stays_it(tmp_path: Path) -> None:
    root = unpacked(tmp_path)
    own = root / COMPLETE[1:]
    own.write_text(own.read_text().replace(f"\tfacts\t{live().facts}\n", ""))
    assert open_root(str(root)).facts == 0
    assert newer_of(open_root(str(repacked(root)))) == ("clocks",)
    own.write_text(own.read_text() + "\tfacts\t7\n")
    seal(str(root))
    write_capture(open_root(str(root)), str(tmp_path / "again.tar.gz"))
    assert open_root(str(tmp_path / "again.tar.gz")).facts == 7
    for text in ("", "1\n", "2\n\tfacts\t-1\n", "2\n\tfacts\tx\n", "2\n\tfacts\t1"):
        assert manifest.read(text).facts == 0
