"""Sysctl on a scratch root: the value now and the line of our drop-in, together and apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosttune.errors import BadInput, WriteFailed
from hosttune.machine.scratch import Scratch
from hosttune.model.values import FrozenMap
from hosttune.settings.sysctl import DROP_IN, NAMES
from hosttune.transaction.kinds import setting_of

NAME, OTHER = "vm.zone_reclaim_mode", "vm.swappiness"


def scratch(root: Path) -> Scratch:
    for name, text in ((NAME, "1\n"), (OTHER, "60\n")):
        path = root / "proc/sys" / name.replace(".", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "etc/sysctl.d").mkdir(parents=True)
    (root / "etc/sysctl.d/99-mine.conf").write_text("vm.swappiness = 60\n")
    (root / ".hosttune").mkdir()
    (root / ".hosttune/scratch").touch()
    return Scratch(str(root))


def digest(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_there_and_back(tmp_path: Path) -> None:
    system = scratch(tmp_path)
    setting = setting_of("sysctl", NAME)
    before = digest(tmp_path)
    old = setting.read(system)
    assert old == FrozenMap({"now": "1", "boot": None})
    assert setting.effective(system) == "1"
    setting.check("0")
    setting.write(system, "0")
    assert setting.read(system) == setting.effective(system) == "0"
    text = system.read(DROP_IN) or ""
    assert text.splitlines()[-1] == "vm.zone_reclaim_mode = 0"
    assert all(line.startswith("#") for line in text.splitlines()[:-1])
    setting.write(system, old)
    assert digest(tmp_path) == before


@pytest.mark.parametrize("order", [(NAME, OTHER), (OTHER, NAME)])
def test_each_name_has_a_line_of_its_own(tmp_path: Path, order: tuple[str, str]) -> None:
    system = scratch(tmp_path)
    before = digest(tmp_path)
    settings = [setting_of("sysctl", name) for name in (NAME, OTHER)]
    olds = [setting.read(system) for setting in settings]
    for setting, value in zip(settings, ("0", "10"), strict=True):
        setting.write(system, value)
    assert (system.read(DROP_IN) or "").splitlines()[1:] == ["vm.swappiness = 10", "vm.zone_reclaim_mode = 0"]
    first = [NAME, OTHER].index(order[0])
    settings[first].write(system, olds[first])
    assert settings[1 - first].read(system) == ("0", "10")[1 - first]
    settings[1 - first].write(system, olds[1 - first])
    assert digest(tmp_path) == before


def test_a_line_that_somebody_added_to_our_file_stays(tmp_path: Path) -> None:
    system = scratch(tmp_path)
    (tmp_path / DROP_IN[1:]).write_text("# note\nnet.core.somaxconn=1024\n")
    setting = setting_of("sysctl", NAME)
    old = setting.read(system)
    setting.write(system, "0")
    setting.write(system, old)
    assert (system.read(DROP_IN) or "").splitlines()[1:] == ["net.core.somaxconn = 1024"]


@pytest.mark.parametrize(
    ("now", "boot", "read"),
    [
        ("0", "0", "0"),
        ("1", "0", FrozenMap({"now": "1", "boot": "0"})),  # cut off between the two
        ("0", None, FrozenMap({"now": "0", "boot": None})),
    ],
)
def test_states_between_are_told_and_settled_either_way(
    tmp_path: Path, now: str, boot: str | None, read: object
) -> None:
    system = scratch(tmp_path)
    (tmp_path / "proc/sys/vm/zone_reclaim_mode").write_text(f"{now}\n")
    if boot is not None:
        (tmp_path / DROP_IN[1:]).write_text(f"vm.zone_reclaim_mode = {boot}\n")
    setting = setting_of("sysctl", NAME)
    assert setting.read(system) == read
    setting.write(system, "0")
    assert setting.read(system) == "0"
    setting.write(system, FrozenMap({"now": "1", "boot": None}))
    assert setting.read(system) == FrozenMap({"now": "1", "boot": None})
    assert not system.exists(DROP_IN)


def test_what_is_so_already_is_not_written(tmp_path: Path) -> None:
    system = scratch(tmp_path)
    setting = setting_of("sysctl", NAME)
    setting.write(system, "0")
    stamps = {path: path.stat().st_ino for path in tmp_path.rglob("*") if path.is_file()}
    setting.write(system, "0")
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*") if path.is_file()} == stamps


def test_a_kernel_without_it_has_none_and_makes_no_file(tmp_path: Path) -> None:
    system = scratch(tmp_path)
    setting = setting_of("sysctl", "vm.compaction_proactiveness")
    assert setting.read(system) is None
    with pytest.raises(WriteFailed, match="No such file"):
        setting.write(system, "0")
    assert not system.exists(DROP_IN)


@settings(deadline=None)
@given(st.text(max_size=30))
def test_no_other_name_is_a_target(target: str) -> None:
    if target not in NAMES:
        with pytest.raises(BadInput) as error:
            setting_of("sysctl", target)
        assert error.value.where == f"action sysctl:{target}"


@pytest.mark.parametrize("target", ["kernel.core_pattern", "kernel.modprobe", "vm/swappiness", "vm.swappiness ", "vm"])
def test_names_that_would_do_harm_are_none(target: str) -> None:
    with pytest.raises(BadInput) as error:
        setting_of("sysctl", target)
    assert error.value.where == f"action sysctl:{target}"


@pytest.mark.parametrize(
    "value", [0, None, "", "8", "-1", "0\n1", "00", "+0", "0 ", "٣", "x", {"now": "0", "boot": None}]
)
def test_a_value_that_it_cannot_have(value: object) -> None:
    with pytest.raises(BadInput) as error:
        setting_of("sysctl", NAME).check(value)
    assert error.value.where == f"action sysctl:{NAME}"


@pytest.mark.parametrize("name", list(NAMES))
def test_both_ends_of_a_range_are_values(name: str) -> None:
    setting = setting_of("sysctl", name)
    setting.check(str(NAMES[name][0]))
    setting.check(str(NAMES[name][-1]))
    with pytest.raises(BadInput):
        setting.check(str(NAMES[name][-1] + 1))
