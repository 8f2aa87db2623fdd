"""The fabric partition of a GPU in a hand-over: inactive, active for the test, inactive; unproven is not clean."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import applyroots
import pytest
from applyroots import GPU, Cli
from courses import Wiped, handed, here, states, steps, with_guest
from fabricroots import LIST, activate, active, address_of, exactly_of, with_mode

from hosttune.cli.output import waiting
from hosttune.discovery import discover
from hosttune.handover.partitions import Partitions
from hosttune.handover.running import lines_of
from hosttune.handover.targets import Asked, Target
from hosttune.machine.scratch import Scratch
from hosttune.model.handover import HandoverStep
from hosttune.model.host import Host
from hosttune.transaction.site import site_of

root = applyroots.root
cli = applyroots.cli
plan = applyroots.plan

OTHER = "0000:18:00.0"  # module id 2; GPU has 1
BOTH = (
    Target(address=GPU, kind="gpu", identity=GPU, guest="a"),
    Target(address=OTHER, kind="gpu", identity="b", guest="a"),
)


class Manager(Scratch):
    """A host whose Fabric Manager does what `fmpm` asks for, or, `stubborn`, nothing."""

    stubborn = False

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        """See System."""
        return "" if self.stubborn and argv[0] == "fmpm" else super().change(argv, timeout=timeout, stdin=stdin)

    def commands(self) -> list[tuple[str, ...]]:
        """The commands of fmpm, without its own name."""
        return [one[1:] for one in self.ran() if one[0] == "fmpm"]


def fabric(
    root: Path, targets: tuple[Target, ...] = BOTH, confirm: Callable[[str, float], bool] | None = None
) -> tuple[Partitions, Manager]:
    system = Manager(str(root))

    def look() -> Host:
        system.forget()
        return discover(system)

    site = site_of(system)
    assert site.store is not None
    return Partitions(site, site.store, look, targets, confirm), system


def test_an_active_partition_of_the_hand_over_is_deactivated(cli: Cli) -> None:
    number = exactly_of(cli.root.path, {1, 3})
    activate(cli.root.path, number)
    targets = (BOTH[0], Target(address=address_of(cli.root.path, 3), kind="gpu", identity="c", guest="a"))
    partitions, system = fabric(cli.root.path, targets)
    found = partitions.close(targets[0])
    assert (found.proven, found.why) == (True, None)
    assert found.evidence is not None
    assert (found.evidence["was_active"], found.evidence["active"]) == ([number], [])
    assert system.commands() == [("-d", str(number))]
    assert partitions.close(targets[1]).evidence == {
        "mode": 1,
        "module_id": 3,
        "was_active": [],
        "active": [],
        "commands": [],
    }
    assert len(system.commands()) == 1


def test_a_partition_with_other_gpus_is_left_alone(cli: Cli) -> None:
    """Another guest may use them: nothing is sent, and the GPU is not clean."""
    activate(cli.root.path, exactly_of(cli.root.path, {1, 2, 3, 4}))
    partitions, system = fabric(cli.root.path)
    found = partitions.close(BOTH[0])
    assert (found.proven, found.failed, system.commands()) == (False, True, [])
    assert "joins it with module ids 3, 4, which are not part of this hand-over" in str(found.why)
    assert found.step("taken-back").outcome == "failed"


def test_a_partition_that_stays_active_is_a_failure(cli: Cli) -> None:
    activate(cli.root.path, exactly_of(cli.root.path, {1}))
    partitions, system = fabric(cli.root.path)
    system.stubborn = True
    found = partitions.close(BOTH[0])
    assert (found.proven, found.failed) == (False, True)
    assert "is active: modules 1, not inactive" in str(found.why)
    done = HandoverStep(step="returned", outcome="done", evidence={"driver": "vfio-pci"})
    told = found.told(done)
    assert (told.outcome, told.why) == ("failed", found.why)
    assert told.evidence is not None
    assert told.evidence["driver"] == "vfio-pci"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda root: (root / LIST).unlink(), "which partitions are active cannot be read here (fmpm -l)"),
        (lambda root: (root / LIST).write_text("{}"), "which partitions are active cannot be read here (fmpm -l)"),
        (lambda root: with_mode(root, 2), "in FABRIC_MODE 2 no source says how"),
    ],
)
def test_what_has_no_source_is_printed_and_waited_for(cli: Cli, spoil: Callable[[Path], Any], says: str) -> None:
    number = exactly_of(cli.root.path, {1})
    activate(cli.root.path, number)
    spoil(cli.root.path)
    asked: list[tuple[str, float]] = []

    def person(text: str, seconds: float, *, does: bool = False) -> bool:
        asked.append((text, seconds))
        if does:
            activate(cli.root.path)
        return True

    partitions, system = fabric(cli.root.path)  # nobody is there
    found = partitions.close(BOTH[0])
    assert (found.proven, found.failed, system.commands()) == (False, False, [])
    assert (says in str(found.why), "nobody confirmed it" in str(found.why) or "still active" in str(found.why)) == (
        True,
        True,
    )
    assert found.step("taken-back").outcome == "unknown"
    partitions, system = fabric(cli.root.path, confirm=person)
    found = partitions.close(BOTH[0])
    assert (found.proven, asked[0][1], "fmpm -d" in asked[0][0]) == (False, 600.0, True)  # a word alone proves nothing
    if "MODE" in says:
        partitions, system = fabric(cli.root.path, confirm=lambda text, seconds: person(text, seconds, does=True))
        assert partitions.close(BOTH[0]).proven
    assert system.commands() == []


def test_a_person_is_asked_on_a_terminal_and_no_longer_than_the_limit() -> None:
    ours, theirs = os.openpty()
    with os.fdopen(ours, "w", buffering=1) as person, os.fdopen(theirs) as terminal, open(os.devnull) as nobody:
        assert (waiting(True, terminal), waiting(False, nobody), waiting(False, None)) == (None, None, None)
        ask = waiting(False, terminal)
        assert ask is not None
        for answer, meant in (("y", True), ("yes", True), ("n", False), ("", False)):
            person.write(f"{answer}\n")
            assert ask("deactivate partition 7", 600.0) is meant
        assert ask("deactivate partition 7", 0.0) is False  # nobody answers


def test_what_needs_no_partition(cli: Cli) -> None:
    drive = Target(address="0000:c1:00.0", kind="nvme", identity="d")
    partitions, _ = fabric(cli.root.path)
    assert (partitions.close(drive).evidence, partitions.open(drive)) == (None, None)
    with_mode(cli.root.path, 0)
    (cli.root.path / LIST).unlink()
    found = fabric(cli.root.path)[0].close(BOTH[0])
    assert (found.proven, found.evidence) == (True, {"mode": 0, "active": None})


def test_a_gpu_on_the_fabric_goes_the_whole_way(cli: Cli, plan: Path) -> None:
    """Its partition is active while it is erased and tested, and at the end again, as apply has it in force."""
    with_guest(cli.root.path, plan)
    number = exactly_of(cli.root.path, {1})
    assert active(cli.root.path) == [number]
    told = lines_of(here(cli.root.path), Asked(guest="gpu-guest"))
    assert f"{GPU}: fabric partition {number} is active: deactivated after the reset (fmpm -d {number})" in told
    found = handed(cli.root.path, Asked(guest="gpu-guest"))
    (device,) = found.statement.predicate.devices
    assert (found.clean, states(cli.root.path)) == (True, {GPU: "clean"}), device.unclean
    fabrics: dict[str, Any] = {one.step: (one.evidence or {}).get("fabric") for one in device.steps}
    assert (fabrics["taken-back"]["was_active"], fabrics["taken-back"]["active"]) == ((number,), ())
    assert fabrics["taken-back"]["for_the_test"]["activated"] == number
    assert (fabrics["returned"]["was_active"], fabrics["returned"]["active"]) == ((number,), ())
    assert (device.steps[-1].evidence or {})["in_force"] == {"set": (f"fabric-partition {number}@{GPU}",), "why": None}
    sent = [one[1] for one in Scratch(str(cli.root.path)).ran() if one[0] == "fmpm"]
    assert (sent, active(cli.root.path)) == (["-a", "-d", "-a", "-d", "-a"], [number])
    cli._capsys.readouterr()
    assert cli.json("status")["drift"] == []
    order = [name for name, _ in steps(found)]
    assert order.index("taken-back") > order.index("reset")  # deactivated after the reset


def test_what_is_not_proven_clean_stays_off_the_fabric(cli: Cli, plan: Path) -> None:
    with_guest(cli.root.path, plan)
    found = handed(cli.root.path, Asked(guest="gpu-guest"), Wiped("unknown"))
    assert (found.clean, states(cli.root.path), active(cli.root.path)) == (False, {GPU: "quarantined"}, [])
