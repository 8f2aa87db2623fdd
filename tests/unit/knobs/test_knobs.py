"""Declared knobs: the manual's table is made of them, their kinds take their values; one declaration adds another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from planhosts import Card, build_host, intent_of

from hosttune.errors import BadInput
from hosttune.knobs.files import KNOBS, file_knob, paths_to_read
from hosttune.knobs.knob import HOST, Knob, actions_for
from hosttune.knobs.registry import all_knobs
from hosttune.machine.scratch import Scratch
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Plan
from hosttune.model.values import to_json
from hosttune.planning import plan as make_plan
from hosttune.settings.files import Form, Ksm, NumaBalancing, OneFile, Thp
from hosttune.transaction.kinds import kinds, setting_of

MANUAL = Path(__file__).parents[3] / "docs" / "intent.md"
HEAD = "| name | in profiles | what it sets | values, the profile's first |\n|---|---|---|---|\n"
GPU, DRIVE, NIC = "0000:41:00.0", "0000:c1:00.0", "0000:81:00.0"


# --- the manual ----------------------------------------------------------------------------------------------


def test_the_table_of_the_manual_is_made_of_the_declarations(request: pytest.FixtureRequest) -> None:
    """`pytest --regenerate` writes it."""
    text = MANUAL.read_text(encoding="utf-8")
    before, head, rest = text.partition(HEAD)
    assert head, "docs/intent.md has no table of settings"
    table, _, after = rest.partition("\n\n")
    made = "\n".join(knob.row for knob in all_knobs().values())
    if request.config.getoption("--regenerate"):
        MANUAL.write_text(f"{before}{head}{made}\n\n{after}", encoding="utf-8")
    else:
        assert table == made


SWITCH = file_knob(Ksm, name="s", profiles=HOST, value=0, values=(), numbers=range(2), sets="", why="", source="")


@pytest.mark.parametrize("knob", [*all_knobs().values(), SWITCH], ids=lambda knob: knob.name)
def test_a_row_names_values_that_an_intent_may_give(knob: Knob[Any]) -> None:
    named = [yaml.safe_load(word) for word in re.findall(r"`([^`]+)`", knob.row.split("|")[4])]
    assert named
    assert knob.value is None or named[0] == knob.value
    single = re.findall(r"`([^`]+)`", knob.row.split("|")[4].partition("any number from")[0])
    assert len(set(single)) == len(single)
    assert all(knob.accepts(value) for value in named)
    assert {repr(value) for value in knob.values} <= {repr(value) for value in named}


@pytest.mark.parametrize("knob", all_knobs().values(), ids=lambda knob: knob.name)
def test_a_declaration_is_whole(knob: Knob[Any]) -> None:
    assert knob.sets
    assert knob.why
    assert knob.source
    assert knob.setting in kinds().values()


# --- what a plan wants, apply takes --------------------------------------------------------------------------


def planned(name: str, value: Any) -> Plan:
    """A plan with one knob, on a host where nothing is as it is wanted, or nothing is known."""
    cards = [Card(GPU, 0, group=1), Card("0000:42:00.0", 0, group=2, driver="nvidia"), Card(NIC, 0, "nic", group=3)]
    host = build_host(cards=[*cards, Card(DRIVE, 0, "nvme", group=9, driver="nvme")])
    host["nvme"] = [{"address": DRIVE, "controller": "nvme3", "namespaces": ["nvme3n1"]}]
    host["memory_settings"] = {"ksm_run": 1}
    document = intent_of(vcpus=4, memory="4GiB", gpus=[GPU], profile="none", settings={name: value})
    return make_plan(Host.from_json(to_json(host)), Intent.from_json(to_json(document)))


def values_of(knob: Knob[Any]) -> Iterator[Any]:
    """Every word that an intent may give, the ends of its numbers, a CPU list."""
    yield from knob.values
    if knob.numbers is not None:
        yield from (knob.numbers[0], knob.numbers[-1])
    if knob.cpus:
        yield from ("2-3,5", "domain,2-3")
    yield from knob.names
    if knob.value is not None:
        yield True


@pytest.mark.parametrize("knob", all_knobs().values(), ids=lambda knob: knob.name)
def test_what_an_intent_may_want_its_kind_takes(knob: Knob[Any]) -> None:
    """A value that a plan offers and apply refuses would be found on the host, when it is too late."""
    for value in values_of(knob):
        for action in planned(knob.name, value).actions:
            setting_of(action.kind, action.target).check(action.want)


# --- a knob in one module ------------------------------------------------------------------------------------


class Toy(OneFile):
    """How long the kernel protects the pages that were used last (Documentation/admin-guide/mm/multigen_lru)."""

    kind: ClassVar[str] = "lru-protection"
    path: ClassVar[str] = "/sys/kernel/mm/lru_gen/min_ttl_ms"
    form: ClassVar[Form] = "number"
    numbers: ClassVar[range | None] = range(10_001)


TOY = file_knob(
    Toy,
    name="lru_protection_ms",
    profiles=HOST,
    value=1000,
    sets="pages used within these ms are kept",
    why="what was used a moment ago is needed again",
    source="Documentation/admin-guide/mm/multigen_lru",
)


def test_its_file_is_read_and_written(tmp_path: Path) -> None:
    assert paths_to_read((TOY, *KNOBS)) == (Toy.path, *paths_to_read())
    assert not {Thp.path, NumaBalancing.path, Ksm.path} & {*paths_to_read()}  # read into fields of the host document
    for name, text in ((".hosttune/scratch", ""), (Toy.path[1:], "0\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    system, setting = Scratch(str(tmp_path)), Toy.of(Toy.path)
    assert setting.read(system) == 0
    setting.check(500)
    setting.write(system, 500)
    assert setting.read(system) == 500
    with pytest.raises(BadInput, match="invalid value 10001"):
        setting.check(10_001)


def test_a_profile_brings_it_and_the_intent_keeps_it_away() -> None:
    host = Host(settings={Toy.path: "0\n"})

    def of(**top: Any) -> list[tuple[str, Any, Any, str]]:
        intent = Intent.from_json(to_json({"version": 1, "guests": [], **top}))
        found = [one for one in actions_for(intent, (TOY,), (host,)) if isinstance(one, Action)]
        return [(action.id, action.current, action.want, action.why) for action in found]

    name = f"{Toy.kind}:{Toy.path}"
    assert of(profile="host") == [(name, 0, 1000, TOY.why)]
    assert of(profile="host", settings={TOY.name: 0}) == []
    assert of(profile="host", settings={TOY.name: "keep"}) == of(profile="guest") == []
    assert of(settings={TOY.name: 20}) == [(name, 0, 20, f"asked for by name: settings.{TOY.name}")]
    assert [TOY.accepts(value) for value in (0, 10_000, 10_001, True)] == [True, True, False, True]
    assert TOY.allowed == "a whole number from 0 to 10000, true, false, keep"


def test_the_manual_would_list_it() -> None:
    assert TOY.row == (
        "| `lru_protection_ms` | host | pages used within these ms are kept | `1000`, any number from `0` to `10000` |"
    )
