"""The functions of the package where a program calls them: what they refuse, ask and give back."""

from __future__ import annotations

from pathlib import Path

import applyroots
import msgspec
import pytest
from applyroots import EXAMPLE, GPU, Root

import hosttune
from hosttune.errors import Declined

INTENT = hosttune.Intent.from_yaml(f"{{version: 1, guests: [{{name: a, gpus: ['{GPU}'], disk: /srv/a.qcow2}}]}}")
root = applyroots.root


def test_a_captured_host_is_rehearsed_and_never_changed() -> None:
    with pytest.raises(hosttune.Refused, match="a captured host cannot be changed") as refused:
        hosttune.apply(INTENT, str(EXAMPLE))
    assert refused.value.where == str(EXAMPLE)
    with pytest.raises(hosttune.Refused, match="a captured host cannot be changed"):
        hosttune.revert(str(EXAMPLE))
    told = hosttune.apply(INTENT, str(EXAMPLE), dry_run=True)
    assert (told.exit_code, told.changed) == (0, False)
    assert any(line.startswith("write /sys/") for line in told.writes)


def test_a_place_may_be_a_path(tmp_path: Path) -> None:
    """All functions take it; `validate` took it for a host document and ended in an AttributeError."""
    assert hosttune.discover(EXAMPLE) == hosttune.discover(str(EXAMPLE))
    assert hosttune.validate(EXAMPLE).results == hosttune.validate(str(EXAMPLE)).results
    assert hosttune.status(EXAMPLE).entries == ()
    copy = hosttune.capture(tmp_path / "copy.tar.gz", EXAMPLE)
    assert [gpu.address for gpu in copy.gpus] == [
        gpu.address for gpu in hosttune.discover(tmp_path / "copy.tar.gz").gpus
    ]


def test_who_confirms_sees_each_change_and_can_decline(root: Root) -> None:
    seen: list[str] = []
    before = root.tree()

    def declined(lines: object) -> bool:
        seen.extend(lines if isinstance(lines, tuple) else ())
        return False

    with pytest.raises(Declined, match="answered no"):
        hosttune.apply(INTENT, str(root.path), guests=False, confirm=declined)
    assert any(f"{GPU}: nvidia -> vfio-pci" in line for line in seen), seen
    after = root.tree()
    assert {name for name in after if after[name] != before.get(name)} <= {
        *("var", "var/lib", "var/lib/hosttune", "var/lib/hosttune/lock"),
    }


def test_a_plan_of_a_capture_is_refused_and_its_intent_is_not(root: Root) -> None:
    plan = hosttune.plan(hosttune.discover(str(EXAMPLE)), INTENT)
    with pytest.raises(hosttune.Refused) as refused:
        hosttune.apply(plan, str(root.path))
    assert refused.value.where == "plan: host_digest"
    assert hosttune.apply(INTENT, str(root.path), guests=False).exit_code == 0
    again = hosttune.apply(INTENT, str(root.path), guests=False)
    assert (again.exit_code, again.changed) == (0, False), "the plan in force is that of the intent"
    assert hosttune.revert(str(root.path)).exit_code == 0


def test_a_validation_expects_the_devices_of_another_document(tmp_path: Path) -> None:
    host = hosttune.discover(str(EXAMPLE))
    gone = msgspec.structs.replace(host.nvme[0], address="0000:fe:00.0")
    known = msgspec.structs.replace(host, nvme=(*host.nvme, gone))
    found = hosttune.validate(host, expect=known)
    assert [row.outcome for row in found.results if row.subject == "0000:fe:00.0"] != []
    assert all(row.outcome in ("fail", "unknown") for row in found.results if row.subject == "0000:fe:00.0")
    with pytest.raises(hosttune.BadInput, match="names no device"):
        hosttune.validate(host, expect=hosttune.Host())


def test_only_this_machine_is_measured() -> None:
    with pytest.raises(hosttune.Refused, match="level 1 runs benchmarks"):
        hosttune.validate(str(EXAMPLE), level=1)
    with pytest.raises(hosttune.BadInput) as refused:
        hosttune.validate(str(EXAMPLE), floors="[[baseline]]")
    assert refused.value.where == "--fleet"


def test_a_name_that_the_package_does_not_have() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Frobnicate'"):
        _ = hosttune.Frobnicate
    assert all(hasattr(hosttune, name) for name in hosttune.__all__)
