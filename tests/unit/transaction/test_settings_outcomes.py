"""Outcomes say what was written: every kind of setting, any of its changes taken, dropped or refused, forth and back.

Whatever came of it, the outcome's word, `status` and the plan in force speak of the settings that are in force; and
what hosttune did not change it neither calls drift nor takes back. Marked tests, each of every kind, are a sweep.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from configspace import ROOT_PORT, space
from faultkills import Lab, applying, back_at_original, lab_of, options_of, recovering, reverting, shut_off
from faultkinds import EXAMPLES, GPU, PORT, Content, Example, host
from faultlab import fresh_root, quiet, site_on, transactions, tree_of
from settingfates import DROPPED, FATES, LATE, REFUSED, Fated, check_words, live, moved, same, site_of
from sweeps import sample

from hosttune.knobs.knob import make_action
from hosttune.machine.scratch import Scratch
from hosttune.machine.system import System
from hosttune.model.result import Entry, Result
from hosttune.model.values import freeze
from hosttune.settings.files import Thp
from hosttune.settings.setting import RUNTIME
from hosttune.transaction import apply_plan, recover, rehearse_apply, revert, status
from hosttune.transaction.engine import carry_out
from hosttune.transaction.kinds import setting_of
from hosttune.transaction.rehearsal import rehearse
from hosttune.transaction.steps import TODO, Prepared, SettingStep, setting_of_record, steps_of

ANOTHER_BOOT = "22222222-0000-4000-8000-000000000000"
MOST = 1  # fates of one kind of setting in a sample
WRITTEN = ("done", "clamped", "ignored")
of_every_kind = pytest.mark.sweep(most=60)


@pytest.fixture(params=EXAMPLES)
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    """One kind of setting, on a root of its own; needed, so that what falls short of it takes all back."""
    return lab_of(EXAMPLES[request.param], tmp_path / "root")


def told(result: Result) -> dict[str, Entry]:
    return {entry.action: entry for entry in result.entries}


def carried(lab: Lab, system: Fated) -> tuple[Result, int, list[int]]:
    """An apply, its code, and how many changes each of its steps asked for."""
    begun: dict[str, int] = {}

    def say(text: str) -> None:
        # "[2/3] kind target: …" as a step begins, and again if it did not go as wanted; then the rollback.
        begun.setdefault(text.partition("/")[0] if text.startswith("[") else "end", system.count)

    example = lab.example
    result, code = apply_plan(site_of(system), example.plan, options_of(example), host, lambda todo: True, say)
    begun.setdefault("end", system.count)
    return result, code, [after - before for before, after in pairwise(begun.values())]


def changes_of(lab: Lab) -> int:
    lab.anew()
    system = Fated(lab.root)
    assert carried(lab, system)[1] == 0
    return system.count


def fates(name: str, count: int) -> list[tuple[int, str]]:
    """Which change meets which fate."""
    return sample(f"fates {name}", list(product(range(1, count + 1), FATES)), MOST)


# --- forth ---------------------------------------------------------------------------------------------------


@of_every_kind
@pytest.mark.parametrize("needed", [True, False])
def test_an_outcome_says_what_was_written(lab: Lab, needed: bool) -> None:
    lab = replace(lab, example=replace(lab.example, needed=needed))
    for at, fate in fates(f"forth {lab.example.name} {needed}", changes_of(lab)):
        where = f"{lab.example.name}: change {at} {fate}"
        lab.anew()
        result, code, counts = carried(lab, Fated(lab.root, {at: fate}))
        check_outcomes(lab, result, code, counts, where)
        check_words(lab, where, drift=code == 4)
        if code == 0:
            check_again(lab, where)
            shut_off(lab.root)
        settled, code = (recovering if result.open_transaction else reverting)(lab.example)(site_on(lab.root))
        assert (code, settled.open_transaction) == (0, None), where
        assert list(back_at_original(lab)) == [], where
        check_words(lab, where)


def check_outcomes(lab: Lab, result: Result, code: int, counts: list[int], where: str) -> None:
    """The words are true of the values; and of what was written."""
    found = told(result)
    for number, record in enumerate(lab.records[: len(counts)]):
        setting = setting_of_record(record)
        for action in record.actions:
            entry = found[action]
            if entry.outcome in WRITTEN:
                assert counts[number] > 0, (where, entry)
            if code == 0 and entry.outcome == "done":
                assert same(setting, live(lab, record), freeze(record.new)), (where, entry)
            if code == 0 and entry.outcome == "ignored":
                assert live(lab, record) == freeze(record.old), (where, entry)
    if code == 1:
        assert list(back_at_original(lab)) == [], where
        assert result.changed is False
    outcomes = {entry.outcome for entry in result.entries}
    assert code == 0 or outcomes & {"failed", "clamped", "ignored", "stuck"}, (where, outcomes)


def check_again(lab: Lab, where: str) -> None:
    """A second apply writes nothing, whatever the first one left."""
    system = Fated(lab.root)
    result, code, _ = carried(lab, system)
    assert (code, result.changed, system.count) == (0, False, 0), (where, result.entries)


@of_every_kind
def test_what_was_dropped_is_not_ours(lab: Lab) -> None:
    """Somebody else sets what was written in vain: no drift, and no way back."""
    lab = replace(lab, example=replace(lab.example, needed=False))
    every = dict.fromkeys(range(1, changes_of(lab) + 1), DROPPED)
    lab.anew()
    result, code, _ = carried(lab, Fated(lab.root, every))
    if code == 1:  # a guest's definition is always needed
        assert list(back_at_original(lab)) == []
        return
    assert code == 0
    assert not result.changed
    assert list(moved(lab)) == [], result.entries
    machine = Scratch(str(lab.root))
    ours = [record for record in lab.records if record.kind not in ("drop-in", "guest-files", "guest-state")]
    for record in ours:
        setting_of_record(record).write(machine, freeze(record.new))
    theirs = {record.target: live(lab, record) for record in ours}
    found, code = status(site_on(lab.root))
    assert (code, found.drift) == (0, ())
    assert {entry.outcome for entry in found.entries} <= {"ignored"}
    _, code = revert(site_on(lab.root), quiet, force=True)
    assert code == 0
    assert {record.target: live(lab, record) for record in ours} == theirs


@of_every_kind
def test_a_rehearsal_lists_the_writes_of_what_it_calls_planned(lab: Lab) -> None:
    lab.anew()
    example, site = lab.example, site_on(lab.root)
    before = tree_of(lab.root)
    result, code = rehearse_apply(site, example.plan, options_of(example), host)
    assert (code, tree_of(lab.root)) == (0, before)
    assert {entry.outcome for entry in result.entries} == {"planned"}
    for record in lab.records:
        changes, why = rehearse(site.system, setting_of_record(record), freeze(record.new))
        assert changes, record
        assert why is None, record
        assert set(changes) <= set(result.writes), record
    system = Fated(lab.root)
    carried(lab, system)
    assert system.count == len(result.writes)


# --- back ----------------------------------------------------------------------------------------------------


@of_every_kind
def test_a_rehearsal_of_a_way_back_does_not_end_halfway(lab: Lab) -> None:
    lab.anew()
    assert applying(lab.example)(site_on(lab.root))[1] == 0
    site = site_on(lab.root)
    for row in site.standings(site.transactions()).in_force:
        changes, why = rehearse(site.system, setting_of_record(row.record), freeze(row.record.old))
        assert not (changes and why), (row.record, why)


@of_every_kind
def test_a_way_back_says_what_is_still_in_force(lab: Lab) -> None:
    lab.anew()
    assert applying(lab.example)(site_on(lab.root))[1] == 0
    check_words(lab, "applied")
    shut_off(lab.root)
    system = Fated(lab.root)
    assert revert(site_of(system), quiet)[1] == 0
    check_words(lab, "reverted")
    for at, fate in fates(f"back {lab.example.name}", system.count):
        where = f"{lab.example.name}: way back, change {at} {fate}"
        lab.anew()
        assert applying(lab.example)(site_on(lab.root))[1] == 0
        shut_off(lab.root)
        result, code = revert(site_of(Fated(lab.root, {at: fate})), quiet)
        for record in (one for one in lab.records if setting_of_record(one).undone_later):
            for action in record.actions:
                outcome = told(result)[action].outcome
                back = action not in moved(lab)
                assert outcome in ("reverted", "already", "failed"), (where, outcome)
                assert back or outcome == "failed", (where, outcome)
        check_words(lab, where, drift=True)
        if code == 0:
            assert list(moved(lab)) == [], where
        else:
            assert site_on(lab.root).transactions()[-1].is_open
            assert recover(site_on(lab.root), quiet)[1] == 0, where
            assert list(back_at_original(lab)) == [], where


@of_every_kind
def test_what_a_reboot_has_undone_is_not_said_to_be_taken_back(lab: Lab) -> None:
    """A power cut: values that only run are back by themselves; files are taken back."""
    lab.anew()
    assert applying(lab.example)(site_on(lab.root))[1] == 0
    shut_off(lab.root)
    journal = Path(transactions(lab.root)[-1].path)
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    machine = Scratch(str(lab.root))
    runtime = [record for record in lab.records if record.scope == RUNTIME]
    for record in reversed(runtime):
        setting_of_record(record).write(machine, freeze(record.old))
    result, code = recover(site_on(lab.root, boot_id=ANOTHER_BOOT), quiet)
    assert (code, list(back_at_original(lab))) == (0, [])
    found = told(result)
    for record in lab.records:
        for entry in (found[action] for action in record.actions):
            if record in runtime:
                assert entry.outcome == "already", entry
                assert entry.before == entry.after, entry
                assert "the reboot had undone it" in (entry.why or ""), entry
            elif setting_of_record(record).undone_later:
                assert entry.outcome == "reverted", entry
            else:  # libvirt was restarted: there is no way back and no need of one
                assert (entry.outcome, entry.before) == ("already", entry.after), entry
    assert result.changed is (len(runtime) < len(lab.records))


# --- two books -----------------------------------------------------------------------------------------------

SWITCHES = f"sys/devices/pci0000:40/{PORT}/{GPU}/link"
WORDS = ("off", "L0s", "L1", "L0s L1")


def link(port: int, card: int, switches: tuple[str, str], want: str) -> Example:
    """A link whose ends and switches say what they say."""
    base = EXAMPLES["aspm by registers"]
    files: dict[str, Content] = dict(base.files)
    files[f"sys/devices/pci0000:40/{PORT}/config"] = space(ROOT_PORT, aspm=port)
    files[f"sys/devices/pci0000:40/{PORT}/{GPU}/config"] = space(aspm=card)
    files |= {f"{SWITCHES}/{name}_aspm": f"{value}\n" for name, value in zip(("l0s", "l1"), switches, strict=True)}
    return Example("link", files, (("aspm", PORT, want),), base.links, needed=False)


def parameter(now: str, line: str | None, want: str) -> Example:
    """A kernel parameter whose value and file say what they say."""
    files: dict[str, Content] = {"proc/sys/vm/swappiness": f"{now}\n"}
    if line is not None:
        files["etc/sysctl.d/90-hosttune.conf"] = (
            f"# Written by hosttune; `hosttune revert` takes its lines away.\nvm.swappiness = {line}\n"
        )
    return Example("parameter", files, (("sysctl", "vm.swappiness", want),), needed=False)


def function(driver: str | None, override: str) -> Example:
    """A function whose driver and override say what they say."""
    base = EXAMPLES["driver"]
    files = {name: f"{override}\n" if name.endswith("driver_override") else text for name, text in base.files.items()}
    links = {name: target for name, target in base.links.items() if not name.endswith("/driver")}
    if driver is not None:
        links[next(name for name in base.links if name.endswith("/driver"))] = f"sys/bus/pci/drivers/{driver}"
    return Example("function", files, base.wants, links, needed=False)


def ban(theirs: str | None, ours: str | None, drop_in: bool) -> Example:
    """irqbalance's files: the distribution's, and our two."""
    folder = "etc/systemd/system/irqbalance.service.d"
    head = "# Written by hosttune: the CPUs that irqbalance leaves alone. irqbalance(1), 1.8 or later.\n"
    files: dict[str, Content] = {"usr/lib/systemd/system/irqbalance.service": "[Service]\n"}
    if theirs is not None:
        files["etc/default/irqbalance"] = f"IRQBALANCE_BANNED_CPULIST={theirs}\n"
    if ours is not None:
        files[f"{folder}/hosttune.env"] = f"{head}IRQBALANCE_BANNED_CPUS=\nIRQBALANCE_BANNED_CPULIST={ours}\n"
    if drop_in:
        files[f"{folder}/hosttune.conf"] = f"[Service]\nEnvironmentFile=-/{folder}/hosttune.env\n"
    return Example("ban", files, (("irqbalance-ban", "irqbalance", "2-7"),), needed=False)


BANS = [
    ban(theirs, ours, drop_in)
    for theirs in (None, "4")
    for ours, drop_in in ((None, False), ("2-7", False), ("5", False), ("2-7", True), ("5", True))
]
LINKS = [
    link(port, card, switches, want)
    for port, card in ((0, 0), (3, 3), (2, 2), (0, 3), (2, 0))
    for switches in (("0", "0"), ("0", "1"), ("1", "0"), ("1", "1"))
    for want in ("off", "L1", "L0s L1")
]
PARAMETERS = [parameter(now, line, "1") for now in ("1", "60") for line in (None, "1", "33")]
FUNCTIONS = [
    function(driver, name) for driver in (None, "nvidia", "vfio-pci") for name in ("(null)", "nvidia", "vfio-pci")
]


@pytest.mark.parametrize("books", [LINKS, PARAMETERS, FUNCTIONS, BANS], ids=["aspm", "sysctl", "driver", "irqbalance"])
def test_both_books_are_read_and_written(books: list[Example], tmp_path: Path) -> None:
    """It is as wanted only if both say so; a rehearsal lists what an apply writes; the way back restores each book."""
    for example in sample(f"books {books[0].name}", books, 6):
        root = fresh_root(tmp_path / "root", example.files, example.links)
        original = tree_of(root)
        (kind, target, want), *_ = example.wants
        setting, machine = setting_of(kind, target), Scratch(str(root))
        old = setting.read(machine)
        planned, _ = rehearse_apply(site_on(root), example.plan, options_of(example), host)
        system = Fated(root)
        result, code = apply_plan(site_of(system), example.plan, options_of(example), host, lambda todo: True, quiet)
        entry = told(result)[f"{kind}:{target}"]
        assert code == 0, (old, want)
        assert entry.outcome == ("already" if setting.agrees(old, want) else "done"), (old, want, entry)
        assert setting.agrees(setting.read(Scratch(str(root))), want), (old, want)
        assert told(planned)[entry.action].outcome == ("already" if entry.outcome == "already" else "planned")
        assert system.count == len(planned.writes), (old, want, planned.writes)
        assert revert(site_on(root), quiet)[1] == 0
        assert tree_of(root) == original, (old, want)


def test_the_switches_alone_do_not_say_that_a_link_is_off(tmp_path: Path) -> None:
    """Both ends set by hand, the kernel's switches at 0, registers that keep nothing: written in vain, and not ours."""
    example = link(3, 3, ("0", "0"), "off")
    root = fresh_root(tmp_path / "root", example.files, example.links)
    planned, _ = rehearse_apply(site_on(root), example.plan, options_of(example), host)
    assert [line.rpartition(" <- ")[2] for line in planned.writes[:2]] == ["48 01", "48 01"]  # both ends, bits 1:0 off
    system = Fated(root, {1: DROPPED, 2: DROPPED})
    result, code = apply_plan(site_of(system), example.plan, options_of(example), host, lambda todo: True, quiet)
    (entry,) = [one for one in result.entries if one.action.startswith("aspm")]
    assert (code, entry.outcome) == (0, "ignored")
    by_hand = Scratch(str(root))
    setting_of("aspm", PORT).write(by_hand, "off")
    found, code = status(site_on(root))
    assert (code, found.drift) == (0, ())
    assert "aspm" not in {one.action.partition(":")[0] for one in found.entries}
    undone, code = revert(site_on(root), quiet)
    assert code == 0
    assert "aspm" not in {one.action.partition(":")[0] for one in undone.entries}
    assert setting_of("aspm", PORT).read(Scratch(str(root))) == "off"


class Idle(Thp):
    """A setting that writes nothing."""

    def write(self, system: System, value: Any) -> None:
        """See Setting."""


def test_a_setting_that_finds_nothing_to_write_has_failed_and_is_not_ours(tmp_path: Path) -> None:
    """A defect of a setting, or a knob that is none: it must not say `ignored`."""
    example = EXAMPLES["thp"]
    root = fresh_root(tmp_path / "root", example.files, example.links)
    site = site_on(root)
    assert site.store is not None
    journal = site.store.begin(1, verb="apply", version="0")
    action = example.plan.actions[0]
    step = SettingStep(Idle(Thp.path), "never", (action,), {action.id: ""})
    found = carry_out(site.system, journal, [Prepared(step, TODO, "always", "always")], quiet)
    journal.close()
    assert (found.failed, found.undone) == (1, {})
    assert found.made[1].outcome == "failed"
    assert found.made[1].why == "nothing was written"
    (record,) = transactions(root)[0].records
    assert (record.untouched, record.to_undo, record.in_force) == (True, False, False)


def test_each_fate_is_tried() -> None:
    """The sample holds each of them for some kind."""
    tried = {fate for name in EXAMPLES for _, fate in fates(f"forth {name} True", 6)}
    assert tried == {DROPPED, REFUSED, LATE}


def test_of_several_parts_only_those_are_ours_that_were_changed(tmp_path: Path) -> None:
    """CPU 3 drops its write and CPU 4 was so before: what becomes of them later is not taken back."""
    example = replace(EXAMPLES["governor"], needed=False)
    root = fresh_root(tmp_path / "root", example.files, example.links)
    path = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor"
    system = Fated(root, {2: DROPPED})
    result, code = apply_plan(site_of(system), example.plan, options_of(example), host, lambda todo: True, quiet)
    entry = told(result)["governor:cpus 2-5"]
    assert (code, entry.outcome, dict(entry.after)) == (0, "clamped", {"2,4-5": "performance", "3": "schedutil"})
    (root / path.format(3)).write_text("ondemand\n")
    assert status(site_on(root))[0].drift == ()
    (root / path.format(4)).write_text("powersave\n")
    assert status(site_on(root))[1] == 1  # what was applied no longer holds
    undone, code = revert(site_on(root), quiet, force=True)
    assert (code, told(undone)["governor:cpus 2-5"].outcome) == (0, "reverted")
    left = [(root / path.format(cpu)).read_text().strip() for cpu in (2, 3, 4, 5)]
    assert left == ["powersave", "ondemand", "powersave", "ondemand"]


def test_a_message_names_long_lists_of_cpus_shortly() -> None:
    every = ",".join(str(cpu) for cpu in range(2, 82, 2))  # of one socket, where firmware counts sockets in turn
    (step,) = steps_of([make_action("resume-latency", f"cpus {every}", None, "10", "")])
    assert step.name == "resume-latency cpus 2,4..80"
