"""What is printed of a plan with several guests: XML of one by its name, valid for each, and the text of all."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import joint_fabric
import joint_mig
import joint_sizes
import pytest
from applyroots import EXAMPLE, block
from batch_cases import case
from domain_faults import criticise
from examplehosts import discovered
from libvirtd import PACKAGES
from lxml import etree
from plan_facts import Json

import hosttune
from hosttune.cli import run
from hosttune.domain.planned import guest_of
from hosttune.domain.reader import read_domain
from hosttune.domain.writer import domain_xml
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan

GOLDEN = Path(__file__).parents[1] / "golden" / "report" / "plan-joint.txt"
SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")
THREE = """
version: 1
guests:
- {name: train, gpus: 4}
- {name: tune, gpus: ["0000:41:00.0"], nics: 1, vcpus: 7, memory: 64GiB}
- {name: web, vcpus: 4, memory: 16GiB, hugepages: 2MiB}
"""
PLANS = 20


@pytest.fixture
def intent(tmp_path: Path) -> str:
    """The intent of three guests in a file."""
    path = tmp_path / "intent.yaml"
    path.write_text(THREE)
    return str(path)


@cache
def example() -> Host:
    """The bundled host."""
    return discovered()


def test_xml_of_several_guests_needs_a_name(intent: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--root", str(EXAMPLE), "-f", intent, "-o", "xml"]) == 2
    out, err = capsys.readouterr()
    said = block(err)
    assert out == ""
    assert "--name" in said["where"] + said["do"]
    assert all(name in err for name in ("train", "tune", "web"))


def test_xml_of_a_guest_that_is_not_there(intent: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--root", str(EXAMPLE), "-f", intent, "-o", "xml", "--name", "nobody"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "nobody" in block(err)["error"]


@pytest.mark.parametrize("name", ["train", "tune", "web"])
def test_xml_is_that_of_the_guest_beside_the_others(name: str, intent: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--name chooses what is printed; what is decided is the plan of all."""
    assert run(["plan", "--root", str(EXAMPLE), "-f", intent, "-o", "xml", "--name", name]) == 0
    out = capsys.readouterr().out
    assert etree.fromstring(out).findtext("name") == name
    plan = hosttune.plan(example(), Intent.from_yaml(THREE))
    (guest,) = (guest for guest in plan.guests if guest.name == name)
    assert read_domain(out) == guest_of(guest)
    assert out.strip() == domain_xml(plan, name).strip()


def test_text_of_three_guests(intent: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> None:
    assert run(["plan", "--root", str(EXAMPLE), "-f", intent]) == 0
    out = capsys.readouterr().out
    if request.config.getoption("--regenerate"):
        GOLDEN.write_text(out)
    assert out == GOLDEN.read_text()


def test_the_text_names_every_pin_device_and_action_once(intent: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--root", str(EXAMPLE), "-f", intent]) == 0
    out = capsys.readouterr().out
    plan = hosttune.plan(example(), Intent.from_yaml(THREE))
    assert "3 guests placed" in out
    for guest in plan.guests:
        assert out.count(f"\nguest {guest.name}:") == 1
        for device in guest.devices:
            assert device.address in out
    for action in plan.actions:
        assert action.target in out


# --- valid for libvirt -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schema() -> etree.RelaxNG:
    """libvirt's schema of a domain."""
    if not SCHEMA.exists():
        pytest.fail(f"{SCHEMA} not installed: apt-get install {PACKAGES}")
    return etree.RelaxNG(etree.parse(str(SCHEMA)))


def joint_plan(seed: int) -> Plan:
    """The first plan from this seed on that places two guests or more."""
    return next(plan for step in range(100) if len((plan := random_plan(seed % 4, 800 + seed + 20 * step)).guests) > 1)


def random_plan(kind: int, number: int) -> Plan:
    """A random plan of several guests: on plain hosts, fabrics, with vGPUs, with sizes auto."""
    made: tuple[Json, Json]
    if kind == 0:
        plain = case(number)
        made = (plain.host, plain.intent)
    elif kind == 1:
        board = joint_fabric.board(number)
        made = (board.host, board.intent)
    elif kind == 2:
        sliced = joint_mig.batch(number)
        made = (sliced.host, sliced.intent)
    else:
        sized = joint_sizes.sized(number)
        made = (sized.host, sized.intent)
    return hosttune.plan(Host.from_json(json.dumps(made[0])), Intent.from_json(json.dumps(made[1])))


@pytest.mark.parametrize("seed", range(PLANS))
def test_every_guest_of_a_joint_plan_is_valid_for_libvirt(schema: etree.RelaxNG, seed: int) -> None:
    plan = joint_plan(seed)
    for guest in plan.guests:
        xml = domain_xml(plan, guest.name)
        assert schema.validate(etree.fromstring(xml)), (guest.name, schema.error_log)
        assert read_domain(xml) == guest_of(guest), guest.name


def test_the_critic_has_nothing_against_any_of_three() -> None:
    plan = hosttune.plan(example(), Intent.from_yaml(THREE))
    for guest in plan.guests:
        found = criticise(example(), domain_xml(plan, guest.name), where=guest.name)
        assert [finding.text for finding in found if finding.level != "info"] == []
