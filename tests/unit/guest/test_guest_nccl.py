"""NCCL's topology file of a planned guest: what NCCL's own reader accepts, masks, links, and where it is installed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from domain_shapes import NO_GPU, ONE_GPU, SWITCHED, TWO_CELLS, cells_of, changed, device, pins_of, plan_of
from guest_tree_oracle import Nccl, read_mask
from hypothesis import given
from hypothesis import strategies as st
from unit.guest.test_guest_scripts import Inside, make

from hosttune.errors import BadInput
from hosttune.guest import guest_files
from hosttune.guest.nccl import FILE, PLACE, mask
from hosttune.model.plan import Device, PlannedGuest
from hosttune.model.values import CpuSet

SWITCHES = {"0000:18:00.0": "0000:16:00.0", "0000:19:00.0": "0000:16:00.0"}
MAX_STR_LEN = 255  # NVIDIA/nccl, src/graph/xml.h: no name or value is longer
TOKEN = re.compile(r'<(/?)([a-z]+)((?: [a-z_]+="[^"<>]*")*)(/?)>')


def told(guest: PlannedGuest) -> Nccl:
    return Nccl(text_of(guest))


def text_of(guest: PlannedGuest) -> str:
    return guest_files(plan_of(guest), guest.name).bundle[FILE]


def attributes(element: Any) -> dict[str, str]:
    return dict(element.attrib)


def with_host(device: Device) -> Device:
    return changed(
        device, class_code="030200" if device.kind == "gpu" else "020700", link_speed_gts=32.0, link_width=16
    )


# --- the reader ------------------------------------------------------------------------------------------------------


def as_nccl_reads(text: str) -> list[tuple[str, str, dict[str, str]]]:
    """The tags of a file by the grammar of ncclTopoGetXmlFromFile: no declaration, one blank before each attribute."""
    found = []
    depth = 0
    rest = text
    while rest.strip():
        rest = rest.lstrip()
        match = TOKEN.match(rest)
        assert match, rest[:80]
        closing, name, pairs, single = match.groups()
        depth += -1 if closing else 0 if single else 1
        assert depth >= 0
        values = dict(re.findall(r' ([a-z_]+)="([^"]*)"', pairs))
        assert len(values) <= 16
        assert all(len(part) < MAX_STR_LEN for pair in values.items() for part in (name, *pair))
        found.append((closing, name, values))
        rest = rest[match.end() :]
    assert depth == 0
    return found


@pytest.mark.parametrize("guest", [ONE_GPU, TWO_CELLS, SWITCHED], ids=lambda guest: guest.name)
def test_nccl_can_read_it(guest: PlannedGuest) -> None:
    tags = as_nccl_reads(text_of(guest))
    assert tags[0] == ("", "system", {"version": "1"})
    assert {name for _, name, _ in tags} == {"system", "cpu", "pci"}
    for closing, name, values in tags:
        if not closing and name == "cpu":
            assert set(values) == {"numaid", "affinity", "arch", "vendor"}
        elif not closing and name == "pci":
            assert set(values) == {"busid", "class", "link_speed", "link_width"}
            assert re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", values["busid"])


def test_the_file_of_two_cells() -> None:
    guest = changed(SWITCHED, devices=tuple(with_host(d) for d in SWITCHED.devices))
    assert text_of(guest) == (
        """\
<system version="1">
  <cpu numaid="0" affinity="000000ff" arch="x86_64" vendor="GenuineIntel">
    <pci busid="0000:07:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
    <pci busid="0000:08:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/>
    <pci busid="0000:0b:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
    <pci busid="0000:0c:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/>
  </cpu>
  <cpu numaid="1" affinity="0000ff00" arch="x86_64" vendor="GenuineIntel">
    <pci busid="0000:10:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
    <pci busid="0000:11:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/>
  </cpu>
</system>
"""
    )


def test_a_switch_stands_at_its_bus_id_in_the_guest_with_the_hosts_link() -> None:
    upstream = next(c for c in SWITCHED.controllers if c.host is not None)
    shown = changed(upstream, host="0000:16:00.0", link_speed_gts=16.0, link_width=8)
    devices = tuple(
        changed(with_host(d), switches=(SWITCHES[d.address],)) if d.address in SWITCHES else with_host(d)
        for d in SWITCHED.devices
    )
    controllers = tuple(shown if c is upstream else c for c in SWITCHED.controllers)
    nccl = told(changed(SWITCHED, devices=devices, controllers=controllers))
    assert nccl.above("0000:07:00.0") == nccl.above("0000:08:00.0") == [f"0000:{upstream.bus:02x}:00.0"]
    assert attributes(nccl.pci[f"0000:{upstream.bus:02x}:00.0"]) == {
        "busid": f"0000:{upstream.bus:02x}:00.0",
        "class": "0x060400",
        "link_speed": "16.0 GT/s PCIe",
        "link_width": "8",
    }


@pytest.mark.parametrize("cell", [None, 1])
def test_a_device_of_unknown_node_stands_with_what_it_shares_a_switch_with(cell: int | None) -> None:
    """Whether the plan gives it that cell, or, as older ones, none."""
    first, second, *rest = (changed(with_host(d), host_node=0) for d in TWO_CELLS.devices)
    last = changed(rest[-1], switches=("0000:16:00.0",), host_node=1)
    stray = changed(first, switches=("0000:16:00.0",), host_node=None, guest_cell=cell)
    nccl = told(changed(TWO_CELLS, devices=(stray, second, *rest[:-1], last)))
    assert nccl.numaid(stray.guest_address) == nccl.numaid(last.guest_address) == "1"
    assert nccl.above(stray.guest_address) == nccl.above(last.guest_address) != []


def test_a_switch_that_the_guest_does_not_show_has_a_bus_id_that_it_does_not_have() -> None:
    devices = tuple(changed(d, switches=("0000:16:00.0",)) for d in TWO_CELLS.devices[:2])
    nccl = told(changed(TWO_CELLS, devices=devices))
    (bridge,) = nccl.above(devices[0].guest_address)
    assert bridge.startswith("ffff:ff:")
    assert attributes(nccl.pci[bridge])["link_speed"] == attributes(nccl.pci[bridge])["link_width"] == ""


def test_drives_and_nvswitches_are_not_for_nccl() -> None:
    more = (device("0000:44:00.0", "nvme", 2), device("0000:45:00.0", "nvswitch", 3))
    assert set(told(changed(ONE_GPU, devices=(*ONE_GPU.devices, *more))).pci) == {"0000:01:00.0"}


@pytest.mark.parametrize(
    ("identity", "version"),
    [("x 10de:2335", "1"), ("x 1002:74a1", "2"), ("x 1da3:1060", None), ("x", None)],
    ids=["NVIDIA", "AMD", "Gaudi", "unknown"],
)
def test_each_maker_has_the_version_that_its_library_reads(identity: str, version: str | None) -> None:
    guest = changed(ONE_GPU, devices=(changed(ONE_GPU.devices[0], identity=identity),))
    text = guest_files(plan_of(guest), guest.name).bundle.get(FILE)
    assert (text is None) == (version is None)
    if text is not None:
        assert Nccl(text).root.get("version") == version


def test_two_makers_get_no_file_since_each_refuses_the_others() -> None:
    both = (ONE_GPU.devices[0], changed(device("0000:43:00.0", "gpu", 2), identity="x 1002:74a1"))
    assert FILE not in guest_files(plan_of(changed(ONE_GPU, devices=both)), "one-gpu").bundle
    assert FILE not in guest_files(plan_of(NO_GPU), "no-gpu").bundle


def test_the_cpus_maker_is_left_to_nccl_where_the_cpu_is_emulated() -> None:
    (cpu,) = told(changed(ONE_GPU, accelerator="tcg")).root.iter("cpu")
    assert attributes(cpu) == {"numaid": "0", "affinity": "0000ffff", "arch": "x86_64"}


# --- masks -----------------------------------------------------------------------------------------------------------


@given(st.frozensets(st.integers(0, 300), min_size=1), st.integers(301, 400))
def test_a_mask_is_read_back_as_it_was_meant(cpus: frozenset[int], width: int) -> None:
    text = mask(CpuSet(cpus), width)
    assert read_mask(text) == cpus
    assert re.fullmatch(r"[0-9a-f]{8}(,[0-9a-f]{8})*", text)
    assert set(CpuSet.parse_mask(text)) == cpus


def test_masks_of_more_than_thirty_two_vcpus() -> None:
    guest = changed(TWO_CELLS, vcpu_pins=pins_of(2, 48), cells=cells_of(2, 48))
    masks = {cpu.get("numaid"): cpu.get("affinity") for cpu in told(guest).root.iter("cpu")}
    assert masks == {"0": "00000000,0000ffff,ffffffff", "1": "ffffffff,ffff0000,00000000"}


# --- hostile plans ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cpu_vendor": '"/><gpu'}, "cpu_vendor"),
        ({"vcpu_pins": (changed(ONE_GPU.vcpu_pins[0], vcpu=10**9),)}, "vcpu_pins[0].vcpu"),
        ({"cells": (changed(ONE_GPU.cells[0], vcpus="0-x"),)}, "cells[0].vcpus"),
        ({"cells": (changed(ONE_GPU.cells[0], host_nodes="900000"),)}, "cells[0].host_nodes"),
        ({"controllers": (changed(ONE_GPU.controllers[1], bus=-1),)}, "controllers[0]"),
        ({"devices": (changed(ONE_GPU.devices[0], class_code="03\x000200"),)}, "devices[0].class_code"),
        ({"devices": (changed(ONE_GPU.devices[0], guest_address="0001:01:00.0"),)}, "devices[0].guest_address"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_guest_can_have_is_refused_by_its_field(changes: Mapping[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as error:
        guest_files(plan_of(changed(ONE_GPU, **changes)), "one-gpu")
    assert error.value.where == f"plan: guests['one-gpu'].{field}"


# --- where it lies ---------------------------------------------------------------------------------------------------

LINK = Path("run/nvidia-topologyd/virtualTopology.xml")  # /var/run is /run (Filesystem Hierarchy Standard 3.0, 5.13)
KEPT = Path("etc/hosttune-guest/virtualTopology.xml")


@pytest.fixture
def inside(tmp_path: Path) -> Inside:
    return make(tmp_path, TWO_CELLS)


def test_it_is_found_where_nccl_looks(inside: Inside) -> None:
    assert inside.install().returncode == 0
    assert f"/var/{LINK}" == PLACE
    assert (inside.root / LINK).read_text() == text_of(TWO_CELLS)
    again = inside.install()
    assert again.returncode == 0
    assert "already: " in again.stdout
    assert "left alone" not in again.stdout


def test_it_comes_back_after_a_reboot_by_systemd_tmpfiles(inside: Inside) -> None:
    assert inside.install().returncode == 0
    rows = [row.split() for row in (inside.root / "etc/tmpfiles.d/hosttune-guest.conf").read_text().splitlines()]
    (link,) = [row for row in rows if row[0] == "L"]
    assert link[1] == f"/{LINK}"
    assert (inside.root / LINK.parent / link[-1]).resolve() == (inside.root / KEPT).resolve()


def test_somebody_elses_file_is_left_alone(inside: Inside) -> None:
    (inside.root / LINK).parent.mkdir(parents=True)
    (inside.root / LINK).write_text("theirs")
    done = inside.install()
    assert done.returncode == 0
    assert "is not of our making" in done.stdout
    assert (inside.root / LINK).read_text() == "theirs"
    assert inside.install("--remove").returncode == 0
    assert (inside.root / LINK).read_text() == "theirs"


def test_a_dry_run_writes_nothing_and_removal_leaves_nothing(inside: Inside) -> None:
    assert inside.install("--dry-run").returncode == 0
    assert not (inside.root / "etc").exists()
    assert inside.install().returncode == 0
    assert inside.install("--remove").returncode == 0
    left = [path for path in (inside.root / "etc").rglob("*") if not path.is_dir()]
    assert left == []
    assert not (inside.root / LINK).is_symlink()


def test_a_new_bundle_without_the_file_takes_the_old_one_away(inside: Inside) -> None:
    assert inside.install().returncode == 0
    (inside.bundle / FILE).unlink()
    (inside.bundle / "hosttune-guest.tmpfiles").unlink()
    assert inside.install().returncode == 0
    assert not (inside.root / KEPT).exists()
    assert not (inside.root / LINK).is_symlink()
    assert (inside.root / "etc/hosttune-guest/expected.json").exists()
