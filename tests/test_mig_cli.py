"""`hosttune plan --mig`: what it asks for, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from hosttune.cli.plan import read_intent
from hosttune.errors import BadInput

NOTHING: dict[str, Any] = dict.fromkeys(
    ("gpus", "file", "name", "vcpus", "memory", "numa", "smt", "hugepages", "nics", "nvme", "disk", "firmware")
)
NOTHING |= {"accelerator": None, "profile": None, "mig": None, "addresses": (), "networks": (), "bridges": ()}


def test_one_guest_for_each_instance() -> None:
    intent, where = read_intent({**NOTHING, "mig": "1g.18gb:7", "name": "small", "vcpus": "4", "memory": "16GiB"})
    assert where == "command line"
    assert [guest.name for guest in intent.guests] == [f"small-{n}" for n in range(7)]
    assert {(g.mig.profile, g.mig.count, g.gpus, g.vcpus, g.memory) for g in intent.guests if g.mig} == {
        ("1g.18gb", 1, None, 4, "16GiB")
    }


def test_without_a_number_it_is_one_guest() -> None:
    intent, _ = read_intent({**NOTHING, "mig": "1g.18gb+me"})
    assert [(guest.name, guest.mig and guest.mig.profile) for guest in intent.guests] == [("gpu-guest-0", "1g.18gb+me")]


@pytest.mark.parametrize(
    ("asked", "where", "what"),
    [
        ({"mig": "1g.18gb:0"}, "--mig", "'0' is no number of guests"),
        ({"mig": "1g.18gb:"}, "--mig", "'' is no number of guests"),
        ({"mig": "1g.18gb:7:7"}, "--mig", "'7:7' is no number of guests"),
        ({"mig": "1g.18gb:99999"}, "--mig", "'99999' is no number of guests"),
        ({"mig": "1g.18gb:-1"}, "--mig", "'-1' is no number of guests"),
        ({"mig": "1g.18gb", "gpus": 1}, "--mig", "--mig together with whole GPUs"),
        ({"mig": "1g.18gb", "addresses": ("0000:41:00.0",)}, "--mig", "--mig together with whole GPUs"),
        ({"mig": "1g.18gb:2", "disk": "/a.qcow2"}, "--disk", "one disk for 2 guests"),
        ({"mig": "1g.18gb:2", "name": "a b"}, "--name", "'a b-0' is not a guest name"),
        ({"mig": "1g.18gb", "file": "x"}, "command line", "-f together with options of a single guest"),
    ],
)
def test_what_makes_no_intent_is_refused(asked: dict[str, Any], where: str, what: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_intent({**NOTHING, **asked})
    assert (caught.value.where, caught.value.what) == (where, what)
