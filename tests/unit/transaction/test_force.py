"""What is in force is one fold of the journals: against a model that keeps every part by itself, and by example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from domain_shapes import NO_GPU, changed
from hypothesis import given
from hypothesis import strategies as st

from hosttune.journal import Header, Record, Transaction
from hosttune.journal.force import fold, plan_in_force, standings
from hosttune.knobs.knob import make_action
from hosttune.model.force import InForce
from hosttune.model.host import Host
from hosttune.model.intent import GuestIntent, Intent
from hosttune.model.plan import Plan, Source
from hosttune.transaction.applying import ApplyOptions, wanted_of
from hosttune.transaction.steps import setting_of_record

CPUS = "governor"
FILE = Source(kind="file", name="a.yaml", sha256="0" * 64)


def header(number: int, verb: str = "apply", boot_id: str = "b1") -> Header:
    return Header(
        schema="hosttune.journal/v1", number=number, verb=verb, version="0", at="2026-01-01T00:00:00+00:00",
        boot_id=boot_id,
    )  # fmt: skip


def record(step: int, cpus: str, old: Any, new: Any, **more: Any) -> Record:
    target = f"cpus {cpus}"
    return Record(
        step=step, kind=CPUS, target=target, actions=(f"{CPUS}:{target}",), scope="runtime", needed=False, old=old,
        new=new, **{"outcome": "done", "after": new, **more},
    )  # fmt: skip


def transaction(number: int, *records: Record, verb: str = "apply", state: str = "applied") -> Transaction:
    return Transaction(path=f"{number}", header=header(number, verb), records=records, state=state)


def no_plan(_: Transaction) -> None:
    return None


def in_force(*transactions: Transaction) -> InForce:
    return fold(transactions, no_plan, setting_of_record)


def by_part(found: InForce) -> dict[str, tuple[Any, Any]]:
    """(original, wanted) of each CPU; a CPU in two settings is an error."""
    rows = [(name, one.original[name], one.want[name]) for one in found.settings for name in one.want]
    assert len({name for name, *_ in rows}) == len(rows)
    return {name: (original, want) for name, original, want in rows}


# --- by example ----------------------------------------------------------------------------------------------


def test_nothing_was_ever_applied() -> None:
    assert in_force() == InForce(last=0)


def test_the_first_original_and_the_newest_value_count_by_part() -> None:
    first = transaction(1, record(1, "0-3", "powersave", "performance"))
    second = transaction(2, record(1, "2-5", {"2-3": "performance", "4-5": "ondemand"}, "schedutil"))
    found = in_force(first, second)
    assert [(one.target, one.number) for one in found.settings] == [("cpus 0-1", 1), ("cpus 2-5", 2)]
    assert found.settings[1].original == {"2": "powersave", "3": "powersave", "4": "ondemand", "5": "ondemand"}
    assert found.last == 2


def test_a_way_back_takes_parts_out_and_a_cut_one_does_not() -> None:
    first = transaction(1, record(1, "0-3", "powersave", "performance"))
    back = record(1, "0-1", "performance", "powersave", change="back", outcome="reverted", after="powersave")
    assert by_part(in_force(first, transaction(2, back))).keys() == {"2", "3"}
    cut = record(1, "0-3", "performance", "powersave", change="back", outcome=None, after=None)
    open_revert = transaction(2, cut, verb="revert", state="reverting")
    assert by_part(in_force(first, open_revert)).keys() == {"0", "1", "2", "3"}
    (row,) = standings((first, open_revert), setting_of_record).in_force
    assert row.record.undoing


def test_what_a_revert_left_alone_is_not_in_force_and_is_known() -> None:
    first = transaction(1, record(1, "0-1", "powersave", "performance"))
    mixed = {"0": "powersave", "1": "ondemand"}
    back = record(
        1, "0-1", {"0": "performance", "1": "ondemand"}, mixed, change="back", outcome="conflict", after=mixed
    )
    closed = transaction(2, back, verb="revert", state="kept")
    assert in_force(first, closed).settings == ()
    (left,) = standings((first, closed), setting_of_record).left_alone
    assert (left.record.target, left.record.old) == ("cpus 1", "powersave")


def test_what_changed_nothing_is_told_until_everything_is_taken_back() -> None:
    first = transaction(
        1, record(1, "0-1", "powersave", "performance"), record(2, "2", "a", "b", outcome="ignored", after="a")
    )
    (told,) = standings((first,), setting_of_record).dropped
    assert told.record.target == "cpus 2"
    back = record(1, "0-1", "performance", "powersave", change="back", outcome="reverted", after="powersave")
    revert = transaction(2, back, verb="revert", state="reverted")
    assert standings((first, revert), setting_of_record).dropped == ()
    assert standings((first, transaction(2, back)), setting_of_record).dropped != ()


def test_an_interrupted_apply_does_not_count_and_its_rollback_puts_a_way_back_again() -> None:
    first = transaction(1, record(1, "0-1", "powersave", "performance"))
    back = record(1, "0-1", "performance", "powersave", change="back", outcome="reverted", after="powersave")
    assert by_part(in_force(first, transaction(2, back, state="applying"))).keys() == {"0", "1"}
    again = record(
        1, "0-1", "performance", "powersave", change="back", outcome="reverted", after="powersave", undone="reverted"
    )
    assert by_part(in_force(first, transaction(2, again, state="reverted"))).keys() == {"0", "1"}


def test_what_was_set_again_changes_only_what_it_reads() -> None:
    first = transaction(1, record(1, "0-1", "powersave", "performance"))
    boot = transaction(2, record(1, "0-1", "powersave", "performance", after="ondemand"), verb="boot")
    (one,) = in_force(first, boot).settings
    assert (one.original, one.want) == ({"0": "powersave", "1": "powersave"}, {"0": "performance", "1": "performance"})
    assert one.after == {"0": "ondemand", "1": "ondemand"}
    assert in_force(first, boot).last == 1


def guest_record(step: int = 1, **more: Any) -> Record:
    return Record(
        step=step, kind="guest", target="vm", actions=("guest:vm",), scope="file", needed=True,
        **{"old": None, "new": "<domain/>", "outcome": "done", "after": "<domain/>", **more},
    )  # fmt: skip


def test_guests_are_of_the_newest_plan_until_they_are_taken_away() -> None:
    def plan(memory: str, **settings: Any) -> Plan:
        request = GuestIntent(name="vm", vcpus=16, memory=memory)
        intent = Intent(version=1, profile="host", guests=(request,), settings=settings or None)
        return Plan(intent=intent, guests=(changed(NO_GPU, name="vm"),), source=FILE)

    plans = {"1": plan("64GiB", thp="never", ksm=2), "2": plan("32GiB", ksm="keep")}
    known = [transaction(1, guest_record()), transaction(2)]

    def folded(*more: Transaction) -> InForce:
        return fold((*known, *more), lambda one: plans.get(one.path), setting_of_record)

    found = folded()
    (vm,) = found.guests
    assert (vm.request.memory, vm.number, vm.source) == (plans["2"].intent.guests[0].memory, 2, FILE)
    assert (found.profile, list(found.wanted)) == ("host", ["thp"])
    gone = guest_record(change="back", old="<domain/>", new=None, outcome="reverted", after=None)
    plans["3"] = Plan(intent=Intent(version=1, guests=()))
    assert folded(transaction(3, gone, verb="revert-guest")).guests == ()
    del plans["3"]
    whole = folded(transaction(3, gone, verb="revert", state="reverted"))
    assert whole == InForce(last=3)
    host = Host(in_force=found)
    assert Host.from_json(host.to_json()).in_force == found


# --- an earlier version's journals ----------------------------------------------------------------------------

EARLIER = Path(__file__).parents[2] / "cases" / "journals" / "e54c20ff"


def test_a_journal_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """Its reverts are lines of the applies' own journals, newest apply first."""
    from hosttune.journal import Store

    folder = tmp_path / "transactions"
    folder.mkdir()
    for path in EARLIER.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    store = Store(str(tmp_path))

    def plan_of(one: Transaction) -> Plan | None:
        text = store.plan_of(one)
        return None if text is None else Plan.from_json(text)

    found = fold(store.transactions(), plan_of, setting_of_record)
    assert by_part(found) == {
        "0": ("powersave", "performance"), "1": ("powersave", "performance"), "2": ("powersave", "performance"),
    }  # fmt: skip
    assert found.last == 2
    (left,) = standings(store.transactions(), setting_of_record).left_alone
    assert (left.record.kind, left.record.old, left.record.new) == ("ksm", 1, 2)
    assert plan_in_force(store.transactions(), plan_of, setting_of_record) is not None
    assert json.loads((folder / "000001.jsonl").read_text().splitlines()[0])["version"] == "0.1.0"


# --- against a model -----------------------------------------------------------------------------------------

VALUES = ("powersave", "performance", "ondemand")
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("apply", "apply", "failed", "back", "revert", "boot", "cut")),
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from(VALUES),
    ),
    max_size=12,
)


@given(EVENTS)
def test_any_history_folds_as_a_model_does_that_keeps_every_part(events: list[tuple[str, int, int, str]]) -> None:
    live = dict.fromkeys(range(4), "powersave")
    first: dict[int, str] = {}
    wanted: dict[int, str] = {}
    known: list[Transaction] = []
    for number, (what, one, other, value) in enumerate(events, 1):
        cpus = sorted({one, other})
        text = ",".join(map(str, cpus))
        old = {str(cpu): live[cpu] for cpu in cpus}
        if what == "apply":
            known.append(transaction(number, record(1, text, old, value)))
            first |= {cpu: live[cpu] for cpu in cpus if cpu not in first}
            wanted |= dict.fromkeys(cpus, value)
            live |= dict.fromkeys(cpus, value)
        elif what == "failed":
            known.append(transaction(number, record(1, text, old, value, undone="reverted"), state="reverted"))
        elif what == "cut":
            known.append(transaction(number, record(1, text, old, value, outcome=None), state="applying"))
        elif what == "boot":
            known.append(transaction(number, record(1, text, old, value), verb="boot"))
        else:
            away = sorted(first) if what == "revert" else [cpu for cpu in cpus if cpu in first]
            rows = [
                record(step, f"{cpu}", live[cpu], first[cpu], change="back", outcome="reverted", after=first[cpu])
                for step, cpu in enumerate(away, 1)
            ]
            verb, state = ("revert", "reverted") if what == "revert" else ("apply", "applied")
            known.append(transaction(number, *rows, verb=verb, state=state))
            for cpu in away:
                live[cpu] = first.pop(cpu)
                del wanted[cpu]
    found = in_force(*known)
    assert by_part(found) == {str(cpu): (first[cpu], wanted[cpu]) for cpu in first}
    finished = [one for one in known if one.header.verb != "boot" and (one.state == "applied" or one.goes_on)]
    assert found.last == max((one.header.number for one in finished), default=0)


def test_a_mode_of_a_gpu_goes_back_only_if_disrupt_names_it() -> None:
    gpu = "0000:41:00.0"
    back = make_action("gpu-mig-mode", gpu, "enabled", "disabled", "not wanted any more", change="back")
    decided = Plan(intent=Intent(version=1), actions=(back,))
    for disrupt, now in ((frozenset[str](), 0), (frozenset((gpu,)), 1)):
        wanted = wanted_of(decided, ApplyOptions(disrupt=disrupt))
        assert (len(wanted.steps), len(wanted.waiting)) == (now, 1 - now)
