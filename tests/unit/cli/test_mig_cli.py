"""`hosttune plan --mig`: what it asks for, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mighosts import A, mig_host

from hosttune.cli import run
from hosttune.cli.plan import asked_of_mig, read_intent
from hosttune.errors import BadInput
from hosttune.model.values import to_json

NOTHING: dict[str, Any] = dict.fromkeys(
    ("gpus", "file", "name", "vcpus", "memory", "numa", "smt", "hugepages", "nics", "nvme", "firmware")
)
NOTHING |= {
    "accelerator": None,
    "profile": None,
    "mig": None,
    "addresses": (),
    "networks": (),
    "bridges": (),
    "disks": (),
}


def test_one_guest_for_each_instance() -> None:
    intent, source = read_intent(
        {**NOTHING, "mig": "1g.18gb:7", "name": "small", "vcpus": "4", "memory": "16GiB"}, prune=False
    )
    assert source.kind == "options"
    assert [guest.name for guest in intent.guests] == [f"small-{n}" for n in range(7)]
    assert {(g.mig.profile, g.mig.count, g.gpus, g.vcpus, g.memory) for g in intent.guests if g.mig} == {
        ("1g.18gb", 1, None, 4, "16GiB")
    }


def test_without_a_number_it_is_one_guest() -> None:
    intent, _ = read_intent({**NOTHING, "mig": "1g.18gb+me"}, prune=False)
    assert [(guest.name, guest.mig and guest.mig.profile) for guest in intent.guests] == [("gpu-guest-0", "1g.18gb+me")]


def test_one_disk_and_several() -> None:
    asked = {**NOTHING, "addresses": ("0000:41:00.0",)}
    for disks, keys in ((("/a.qcow2",), ["disk"]), (("/a.qcow2", "/dev/b"), ["disks[0]", "disks[1]"])):
        intent, _ = read_intent({**asked, "disks": disks}, prune=False)
        assert intent.guests[0].disk_paths == dict(zip(keys, disks, strict=True))


@pytest.mark.parametrize(
    ("asked", "where", "what"),
    [
        ({"mig": "::"}, "--mig", "'::' names no profile"),
        ({"mig": ":7"}, "--mig", "':7' names no profile"),
        ({"mig": "1g.18gb:0"}, "--mig", "'0' is not a number of guests"),
        ({"mig": "1g.18gb:"}, "--mig", "'' is not a number of guests"),
        ({"mig": "1g.18gb:7:7"}, "--mig", "'7:7' is not a number of guests"),
        ({"mig": "1g.18gb:99999"}, "--mig", "'99999' is not a number of guests"),
        ({"mig": "1g.18gb:-1"}, "--mig", "'-1' is not a number of guests"),
        ({"mig": "1g.18gb", "gpus": 1}, "--mig", "--mig together with whole GPUs"),
        ({"mig": "1g.18gb", "addresses": ("0000:41:00.0",)}, "--mig", "--mig together with whole GPUs"),
        ({"mig": "1g.18gb:2", "disks": ("/a.qcow2",)}, "--disk", "one disk for 2 guests"),
        ({"addresses": ("0000:41:00.0",), "disks": ("/a", "/a")}, "--disk", "/a is named twice"),
        ({"mig": "1g.18gb:2", "name": "a b"}, "--name", "'a b-0' is not a guest name"),
        ({"mig": "1g.18gb", "file": "x"}, "command line", "-f together with options of a single guest"),
    ],
)
def test_what_makes_no_intent_is_refused(asked: dict[str, Any], where: str, what: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_intent({**NOTHING, **asked}, prune=False)
    assert (caught.value.where, caught.value.what) == (where, what)


@pytest.mark.parametrize(
    ("mig", "name", "output", "base", "chosen"),
    [
        ("1g.18gb:7", "small-3", "xml", "small", "small-3"),
        ("1g.18gb:7", "a-1-6", "xml", "a-1", "a-1-6"),
        ("1g.18gb:7", "small-7", "xml", "small-7", None),
        ("1g.18gb:7", "small-03", "xml", "small-03", None),
        ("1g.18gb:7", "small", "xml", "small", None),
        ("1g.18gb:7", None, "xml", None, None),
        ("1g.18gb:7", "small-3", "text", "small-3", None),
        ("1g.18gb", "small-0", "xml", "small-0", None),
        (None, "small-3", "xml", "small-3", "small-3"),
    ],
)
def test_a_name_with_a_number_chooses_the_xml(
    mig: str | None, name: str | None, output: str, base: str | None, chosen: str | None
) -> None:
    asked, guest = asked_of_mig({**NOTHING, "mig": mig, "name": name}, output)
    assert (asked["name"], guest) == (base, chosen)


def test_xml_of_one_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "host.json"
    document.write_text(to_json(mig_host(A)))
    asked = ["plan", "--host", str(document), "--mig", "1g.18gb:3", "--vcpus", "2", "--memory", "8GiB", "-o", "xml"]
    assert run([*asked, "--name", "small-1"]) == 0
    assert "<name>small-1</name>" in capsys.readouterr().out
    assert run([*asked, "--name", "small"]) == 2
    error = capsys.readouterr().err
    assert "3 guests, but -o xml prints one" in error
    assert "--name small-K with --mig 1g.18gb:3 prints the XML of small-K, K from 0 to 2" in error
