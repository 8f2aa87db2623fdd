"""Whether libvirt starts a guest with the host: set once the guest is defined, back before it is undefined."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from domain_shapes import changed
from faultkills import Lab, applying, lab_of, reverting
from faultkinds import EXAMPLES
from faultlab import site_on, transactions, tree_of

from hosttune.errors import BadInput
from hosttune.hypervisor.state import Autostart
from hosttune.model.result import Result
from hosttune.transaction import status

EXAMPLE = EXAMPLES["guest-autostart"]
MARK = ".hosttune/commands/virsh-autostart-vm"
ACTION = "guest-autostart:vm"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A root without guests and the plan of one that starts with the host."""
    made = lab_of(EXAMPLE, tmp_path / "root")
    made.anew()
    return made


def apply(lab: Lab, value: bool | None) -> tuple[int, str | None, bool]:
    """Exit code, outcome and whether the guest starts with the host, of an apply that wants this."""
    guest = changed(EXAMPLE.guests[0], autostart=value)
    result, code = applying(replace(EXAMPLE, guests=(guest,)))(site_on(lab.root))
    return code, outcome(result), (lab.root / MARK).exists()


def outcome(result: Result) -> str | None:
    return next((one.outcome for one in result.entries if one.action == ACTION), None)


def test_it_is_set_with_the_guest_kept_and_undone_with_it(lab: Lab) -> None:
    before = tree_of(lab.root)
    assert apply(lab, True) == (0, "done", True)
    order = [record.kind for record in transactions(lab.root)[-1].records]
    assert order.index("guest") < order.index("guest-autostart")
    assert apply(lab, True) == (0, "already", True)
    assert apply(lab, False) == (0, "done", False)
    assert apply(lab, False) == (0, "already", False)
    assert apply(lab, True) == (0, "done", True)
    _, code = reverting(EXAMPLE)(site_on(lab.root))
    assert (code, (lab.root / MARK).exists()) == (0, False)
    assert {path for path in tree_of(lab.root) if path.startswith("/.hosttune/commands")} <= before.keys()


def test_a_change_by_hand_is_drift_until_it_is_left_to_others(lab: Lab) -> None:
    assert apply(lab, True) == (0, "done", True)
    (lab.root / MARK).unlink()
    found, code = status(site_on(lab.root))
    assert (code, [(one.action, one.expected, one.actual) for one in found.drift]) == (1, [(ACTION, True, False)])
    assert apply(lab, None)[0] == 0
    assert status(site_on(lab.root))[1] == 0
    (lab.root / MARK).write_text("on")
    assert status(site_on(lab.root))[1] == 0
    assert reverting(EXAMPLE)(site_on(lab.root))[1] == 0


def test_keep_leaves_a_guest_as_it_is(lab: Lab) -> None:
    (lab.root / MARK).write_text("on")
    assert apply(lab, None) == (0, None, True)
    assert apply(lab, True) == (0, "already", True)
    assert apply(lab, False) == (0, "done", False)


@pytest.mark.parametrize("value", ["on", 1, None])
def test_a_plan_wants_true_or_false(value: Any) -> None:
    with pytest.raises(BadInput, match="neither true nor false"):
        Autostart.of("vm").check(value)
