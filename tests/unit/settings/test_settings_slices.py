"""Slices of systemd and the default mask of interrupts: written, read back from the cgroup, and put back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.errors import BadInput
from hosttune.machine.scratch import Scratch
from hosttune.model.values import CpuSet
from hosttune.settings.irqs import DEFAULT_AFFINITY, DefaultAffinity, SliceCpus, mask_list, slice_file
from hosttune.transaction.kinds import setting_of

SYSTEM = "system.slice"


def root(base: Path, **files: str) -> Scratch:
    for name, text in {".hosttune/scratch": "", **files}.items():
        path = base / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Scratch(str(base))


def test_a_slice_that_its_cgroup_does_not_follow_is_not_as_wanted(tmp_path: Path) -> None:
    system, setting = root(tmp_path), SliceCpus.of(SYSTEM)
    assert setting.read(system) is None
    setting.write(system, "0-1")
    assert setting.read(system) == "0-1"
    cgroup = {f"sys/fs/cgroup/{SYSTEM}/cpuset.cpus.effective": "0-7\n"}
    assert setting.read(root(tmp_path, **cgroup)) == "0-1 (works: 0-7)"
    setting.write(system, None)
    assert (setting.read(system), (tmp_path / slice_file(SYSTEM)[1:]).exists()) == (None, False)


def test_a_file_of_somebody_else_is_not_hosttunes(tmp_path: Path) -> None:
    system = root(tmp_path, **{slice_file(SYSTEM): "[Slice]\nAllowedCPUs=3\n"})
    assert SliceCpus.of(SYSTEM).read(system) is None


@pytest.mark.parametrize(("kind", "target"), [("slice-cpus", "machine.slice"), ("default-irq-affinity", "/proc/irq/4")])
def test_only_the_hosts_own_are_targets(kind: str, target: str) -> None:
    with pytest.raises(BadInput):
        setting_of(kind, target)


@pytest.mark.parametrize("value", ["", "1-0", "2,1", None, 3])
def test_only_lists_of_cpus_are_values(value: object) -> None:
    for setting in (SliceCpus.of(SYSTEM), DefaultAffinity.of(DEFAULT_AFFINITY)):
        with pytest.raises(BadInput):
            setting.check(value)


@given(st.sets(st.integers(0, 39), min_size=1))
def test_the_mask_keeps_its_form(tmp_path_factory: pytest.TempPathFactory, cpus: set[int]) -> None:
    system = root(tmp_path_factory.mktemp("root"), **{DEFAULT_AFFINITY: "ff,ffffffff\n"})
    setting = DefaultAffinity.of(DEFAULT_AFFINITY)
    setting.write(system, str(CpuSet(cpus)))
    text = system.read(DEFAULT_AFFINITY) or ""
    assert [len(group) for group in text.split(",")] == [2, 8]
    assert (setting.read(system), mask_list(text)) == (str(CpuSet(cpus)),) * 2
    setting.write(system, "0-39")
    assert system.read(DEFAULT_AFFINITY) == "ff,ffffffff"
