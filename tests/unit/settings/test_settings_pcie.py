"""PCIe settings on a scratch root: one field of one register, and nothing beside it.

Registers and bits: <linux/pci_regs.h>. Kernel behaviour of the `link/` switches: drivers/pci/pcie/aspm.c.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
from configspace import ACSCTL, DEVCTL, DOWNSTREAM, LNKCTL, ROOT_PORT, UPSTREAM, space, word
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pcitrees import Tree

import hosttune
from hosttune.errors import BadInput, Unreadable, WriteFailed
from hosttune.linux.pciconfig import ASPM, decode
from hosttune.machine.capture import Capture
from hosttune.machine.scratch import Scratch
from hosttune.machine.system import System
from hosttune.model.values import FrozenMap
from hosttune.settings.pcie import LINK_ASPM, READ_REQUEST, WRITABLE, Field, write_field
from hosttune.transaction.kinds import setting_of

PORT, CARD = "0000:40:01.0", "0000:41:00.0"
PORT_PATH = f"pci0000:40/{PORT}"
FOUR = "SrcValid ReqRedir CmpltRedir UpstreamFwd"
_ISOLATE = 0x1D


class Memory(System):
    """A machine with one function, whose power state and configuration space are given."""

    def __init__(self, config: bytes, state: str | None = "D0") -> None:
        self.config = config
        self.state = state
        self.writes: list[tuple[int, bytes]] = []

    def read_bytes(self, path: str) -> bytes | None:
        if path.endswith("/config"):
            assert self.state != "D3cold", "reading the configuration space would wake the device"
            return self.config
        return self.state.encode() if path.endswith("/power_state") and self.state else None

    def list(self, path: str) -> list[str]:
        return []

    def link(self, path: str) -> str | None:
        return None

    def exists(self, path: str) -> bool:
        return False

    def write_register(self, path: str, offset: int, data: bytes) -> None:
        self.writes.append((offset, data))
        self.config = self.config[:offset] + data + self.config[offset + len(data) :]


def tree(root: Path, port: bytes, card: bytes, **files: str) -> Scratch:
    """A root port with one card below, as a scratch root."""
    made = Tree(root)
    made.port(PORT_PATH, config=port, power_state="D0")
    made.add(f"{PORT_PATH}/{CARD}", config=card, power_state="D0", **files)
    return scratch(root)


def scratch(root: Path) -> Scratch:
    (root / ".hosttune").mkdir(exist_ok=True)
    (root / ".hosttune" / "scratch").touch()
    return Scratch(str(root))


def config(system: Scratch, address: str) -> bytes:
    return system.read_bytes(f"/sys/bus/pci/devices/{address}/config") or b""


def digest(root: Path) -> dict[str, bytes]:
    """Every file below a root, but what the scratch root remembers for itself."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink() and "var/lib" not in str(path)
    }


# --- the guard -----------------------------------------------------------------------------------------------

FIELDS = sorted(WRITABLE, key=lambda field: (field.register, field.mask))


def test_what_can_be_written() -> None:
    """Neither link disable and retrain (LNKCTL 4, 5) nor function-level reset (DEVCTL 15), payload or target speed."""
    assert [(field.register, field.offset, field.mask) for field in FIELDS] == [
        ("ACSCTL", 0x06, 0x005F),
        ("DEVCTL", 0x08, 0x0010),
        ("DEVCTL", 0x08, 0x7000),
        ("LNKCTL", 0x10, 0x0003),
    ]


@pytest.mark.parametrize(
    "field",
    [
        replace(LINK_ASPM, mask=0x0010),
        replace(LINK_ASPM, mask=0x0023),
        replace(LINK_ASPM, acts=0),
        replace(READ_REQUEST, mask=0xF000),
        replace(READ_REQUEST, mask=0x70E0),
        Field("LNKCTL2", 0x10, 0x30, 0x000F),
        Field("BRIDGE_CONTROL", 0x10, 0x3E, 0x0040),
    ],
)
def test_any_other_field_is_refused(field: Field) -> None:
    machine = Memory(space())
    with pytest.raises(WriteFailed, match="must not be written"):
        write_field(machine, CARD, field, 0)
    assert machine.writes == []


@settings(deadline=None)
@given(st.sampled_from(FIELDS), st.integers(0, 0xFFFF))
def test_bits_outside_the_field_are_refused(field: Field, bits: int) -> None:
    machine = Memory(space(acs=(0x7F, 0x1D)))
    if bits & ~field.mask:
        with pytest.raises(WriteFailed, match="must not be written"):
            write_field(machine, CARD, field, bits)
        assert machine.writes == []
    else:
        write_field(machine, CARD, field, bits)
        assert len(machine.writes) <= 1


@settings(deadline=None)
@given(st.integers(0, 2**64), st.sampled_from(FIELDS), st.integers(0, 0xFFFF), st.booleans())
@example(-1, LINK_ASPM, 0, False)
def test_no_other_bit_of_any_configuration_space_changes(seed: int, field: Field, bits: int, lists: bool) -> None:
    """Random registers below intact lists, or nothing but noise."""
    noise = b"\xff" * 4096 if seed < 0 else Random(seed).randbytes(4096)
    before = noise
    if lists:
        kept = bytearray(noise)
        good = space(acs=(0x7F, 0x1D))
        for start, end in ((0, 0x10), (0x34, 0x35), (0x40, 0x42), (0x60, 0x64), (0x100, 0x104), (0x140, 0x144)):
            kept[start:end] = good[start:end]
        before = bytes(kept)
    machine = Memory(before)
    try:
        write_field(machine, CARD, field, bits & field.mask)
    except WriteFailed:
        assert machine.config == before
        return
    assert len(machine.writes) <= 1
    changed = int.from_bytes(before, "little") ^ int.from_bytes(machine.config, "little")
    for at, data in machine.writes:
        assert len(data) == 2
        assert at % 2 == 0
        assert changed & ~(field.mask << 8 * at) == 0
        assert not word(machine.config, at) & field.acts
    assert bool(machine.writes) == bool(changed)


@pytest.mark.parametrize(
    ("field", "at", "bit"), [(READ_REQUEST, DEVCTL, 15), (LINK_ASPM, LNKCTL, 4), (LINK_ASPM, LNKCTL, 5)]
)
def test_a_word_that_shows_an_acting_bit_is_not_written_back(field: Field, at: int, bit: int) -> None:
    data = bytearray(space())
    data[at : at + 2] = (word(bytes(data), at) | 1 << bit).to_bytes(2, "little")
    machine = Memory(bytes(data))
    with pytest.raises(WriteFailed, match="left alone"):
        write_field(machine, CARD, field, 0)
    assert machine.writes == []


def test_a_device_that_is_gone_is_not_written() -> None:
    for silent in (b"\xff" * 4096, b"\xff" * 64, b""):
        machine = Memory(silent)
        with pytest.raises(WriteFailed, match="does not answer"):
            write_field(machine, CARD, READ_REQUEST, 0x5000)
        assert machine.writes == []


@pytest.mark.parametrize("kind", ["read-request", "relaxed-ordering", "aspm", "acs"])
def test_a_device_in_d3cold_is_neither_woken_nor_known(kind: str) -> None:
    machine = Memory(space(acs=(0x7F, 0)), state="D3cold")
    assert setting_of(kind, CARD).read(machine) is None
    with pytest.raises(WriteFailed, match="does not answer"):
        write_field(machine, CARD, READ_REQUEST, 0x5000)
    assert machine.writes == []


def test_a_write_in_d3hot_says_what_may_become_of_it() -> None:
    machine = Memory(space(), state="D3hot")
    assert "D3hot" in (setting_of("read-request", CARD).write(machine, 4096) or "")
    assert setting_of("read-request", CARD).write(Memory(space()), 4096) is None


# --- one function --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "old", "new", "at", "mask"),
    [
        ("read-request", 512, 4096, DEVCTL, 0x7000),
        ("read-request", 512, 128, DEVCTL, 0x7000),
        ("relaxed-ordering", False, True, DEVCTL, 0x0010),
        ("acs", FOUR, f"{FOUR} DirectTrans", ACSCTL, 0x0040),
    ],
)
def test_there_and_back(tmp_path: Path, kind: str, old: Any, new: Any, at: int, mask: int) -> None:
    system = tree(tmp_path, space(ROOT_PORT), space(acs=(0x5F, _ISOLATE)))
    setting = setting_of(kind, CARD)
    before = digest(tmp_path)
    assert setting.read(system) == old
    setting.check(new)
    setting.write(system, new)
    assert setting.read(system) == new
    after = config(system, CARD)
    assert word(after, at) & ~mask == word(before[f"sys/devices/{PORT_PATH}/{CARD}/config"], at) & ~mask
    setting.write(system, old)
    assert digest(tmp_path) == before


def test_what_is_set_already_is_not_written() -> None:
    machine = Memory(space(read_request=5, relaxed=True, aspm=0, acs=(0x5F, _ISOLATE)))
    for kind, value in (("read-request", 4096), ("relaxed-ordering", True), ("aspm", "off"), ("acs", FOUR)):
        setting_of(kind, CARD).write(machine, value)
    assert machine.writes == []


def test_a_virtual_function_has_no_such_bits(tmp_path: Path) -> None:
    made = Tree(tmp_path)
    made.port(PORT_PATH, config=space(ROOT_PORT))
    made.add(f"{PORT_PATH}/{CARD}", config=space())
    virtual = made.add(f"{PORT_PATH}/0000:41:00.1", config=space())
    os.symlink("../0000:41:00.0", virtual / "physfn")
    system = scratch(tmp_path)
    for kind in ("read-request", "relaxed-ordering", "aspm", "acs"):
        assert setting_of(kind, "0000:41:00.1").read(system) is None


def test_sixty_four_bytes_tell_nothing() -> None:
    """What a reader without privilege gets."""
    for kind in ("read-request", "relaxed-ordering", "aspm", "acs"):
        assert setting_of(kind, CARD).read(Memory(space()[:64])) is None


TARGETS = [
    "",
    "41:00.0",
    "0000:41:00.0 ",
    "0000:41:00.8",
    "0000:41:20.0",
    "0000:41:00.0/../0000:42:00.0",
    "../0000:41:00.0",
    "0000:41:00.A",
    "0000:4F:00.0".lower().upper(),
    "00000:41:00.0",
    "\n",
]


@pytest.mark.parametrize("kind", ["read-request", "relaxed-ordering", "aspm", "acs"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_an_address_in_the_kernel_s_form(kind: str, target: str) -> None:
    with pytest.raises(BadInput) as error:
        setting_of(kind, target)
    assert error.value.where == f"action {kind}:{target}"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("read-request", 8192),
        ("read-request", 100),
        ("read-request", "4096"),
        ("read-request", True),
        ("read-request", None),
        ("relaxed-ordering", 1),
        ("relaxed-ordering", "on"),
        ("aspm", "L2"),
        ("aspm", "L1 L0s"),
        ("aspm", False),
        ("aspm", {"0000:41:00.0": "off"}),
        ("acs", ""),
        ("acs", "ReqRedir SrcValid"),
        ("acs", "SrcValid SrcValid"),
        ("acs", "SrcValid  ReqRedir"),
        ("acs", "Everything"),
        ("acs", ["SrcValid"]),
        ("acs", "none SrcValid"),
    ],
)
def test_a_value_that_it_cannot_have(kind: str, value: object) -> None:
    setting = setting_of(kind, CARD)
    with pytest.raises(BadInput) as error:
        setting.check(value)
    assert error.value.where == f"action {kind}:{CARD}"


# --- ACS is not cleared --------------------------------------------------------------------------------------


def acs_tree(root: Path, *, own_group: str = "1", group: str | None = "2", driver: str | None = None) -> Scratch:
    system = tree(root, space(ROOT_PORT, acs=(0x5F, 0x1F)), space())
    port = root / "sys/devices" / PORT_PATH
    (root / "sys/kernel/iommu_groups").mkdir(parents=True)
    for number in {own_group, group} - {None}:
        (root / f"sys/kernel/iommu_groups/{number}").mkdir()
    os.symlink(f"../../../kernel/iommu_groups/{own_group}", port / "iommu_group")
    if group is not None:
        os.symlink(f"../../../../kernel/iommu_groups/{group}", port / CARD / "iommu_group")
    if driver is not None:
        os.symlink(f"../../../../bus/pci/drivers/{driver}", port / CARD / "driver")
    return system


@pytest.mark.parametrize(
    ("want", "why", "shape"),
    [
        ("TransBlk", "IOMMU group 2", {}),
        ("SrcValid TransBlk ReqRedir CmpltRedir", "IOMMU group 2", {"driver": "nvidia"}),
        ("TransBlk", "IOMMU group None", {"group": None}),
        ("none", "virtual machine", {"group": "1", "driver": "vfio-pci"}),
        (FOUR, "virtual machine", {"driver": "vfio-pci"}),
    ],
)
def test_isolation_is_not_taken_away(tmp_path: Path, want: str, why: str, shape: dict[str, Any]) -> None:
    system = acs_tree(tmp_path, **shape)
    before = config(system, PORT)
    with pytest.raises(WriteFailed, match="stays on") as error:
        setting_of("acs", PORT).write(system, want)
    assert why in error.value.reason
    assert error.value.path.endswith(f"{PORT}/config")
    assert config(system, PORT) == before


@pytest.mark.parametrize(
    ("want", "shape"),
    [
        ("none", {"group": "1"}),  # one group anyway: nothing rests on these bits
        (FOUR, {}),  # translation blocking is no part of what groups are made by
    ],
)
def test_what_nobody_rests_on_can_be_taken_back(tmp_path: Path, want: str, shape: dict[str, Any]) -> None:
    system = acs_tree(tmp_path, **shape)
    setting = setting_of("acs", PORT)
    setting.write(system, want)
    assert setting.read(system) == want


def test_enabling_is_free_and_going_back_from_direct_translated_too(tmp_path: Path) -> None:
    system = acs_tree(tmp_path, driver="vfio-pci")
    setting = setting_of("acs", PORT)
    old = setting.read(system)
    setting.write(system, f"{old} DirectTrans")
    assert setting.read(system) == "SrcValid TransBlk ReqRedir CmpltRedir UpstreamFwd DirectTrans"
    setting.write(system, old)
    assert setting.read(system) == old


# --- ASPM: two ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [PORT, CARD])
@pytest.mark.parametrize(("port", "card"), [(2, 2), (3, 3), (2, 3), (0, 2), (2, 0), (1, 1)])
def test_both_ends_go_off_and_come_back(tmp_path: Path, target: str, port: int, card: int) -> None:
    system = tree(tmp_path, space(ROOT_PORT, aspm=port), space(aspm=card))
    setting = setting_of("aspm", target)
    before = digest(tmp_path)
    old = setting.read(system)
    assert old == (ASPM[port] if port == card else FrozenMap({CARD: ASPM[card], PORT: ASPM[port]}))
    assert setting.effective(system) == old
    setting.write(system, "off")
    assert (decode(config(system, PORT)).aspm, decode(config(system, CARD)).aspm) == ("off", "off")
    assert setting.read(system) == "off"
    setting.write(system, old)
    assert digest(tmp_path) == before


class Ordered(Scratch):
    """Notes where registers are written."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.order: list[str] = []

    def write_register(self, path: str, offset: int, data: bytes) -> None:
        self.order.append(path.split("/")[-2])
        super().write_register(path, offset, data)


def test_the_port_above_comes_last(tmp_path: Path) -> None:
    made = Tree(tmp_path)
    made.port(PORT_PATH, config=space(ROOT_PORT, aspm=2))
    for function in (1, 0):
        made.add(f"{PORT_PATH}/0000:41:00.{function}", config=space(aspm=2))
    scratch(tmp_path)
    system = Ordered(str(tmp_path))
    setting_of("aspm", PORT).write(system, "off")
    assert system.order == ["0000:41:00.0", "0000:41:00.1", PORT]


def test_the_inside_of_a_switch_is_no_link(tmp_path: Path) -> None:
    """Of an upstream port the link is the one above; its downstream ports are no ends of it."""
    made = Tree(tmp_path)
    up, down = f"{PORT_PATH}/0000:41:00.0", f"{PORT_PATH}/0000:41:00.0/0000:42:00.0"
    made.port(PORT_PATH, config=space(ROOT_PORT, aspm=2))
    made.port(up, config=space(UPSTREAM, aspm=2))
    made.port(down, config=space(DOWNSTREAM, aspm=2))
    made.add(f"{down}/0000:43:00.0", config=space(aspm=2))
    system = scratch(tmp_path)
    setting_of("aspm", "0000:41:00.0").write(system, "off")
    states = {
        name: decode(config(system, name)).aspm for name in (PORT, "0000:41:00.0", "0000:42:00.0", "0000:43:00.0")
    }
    assert states == {PORT: "off", "0000:41:00.0": "off", "0000:42:00.0": "L1", "0000:43:00.0": "L1"}


def test_an_end_that_sleeps_is_left_alone(tmp_path: Path) -> None:
    made = Tree(tmp_path)
    made.port(PORT_PATH, config=space(ROOT_PORT, aspm=2))
    made.add(f"{PORT_PATH}/{CARD}", config=space(aspm=2), power_state="D3cold")
    system = scratch(tmp_path)
    setting = setting_of("aspm", PORT)
    assert setting.read(system) == "L1"
    setting.write(system, "off")
    assert setting.read(system) == "off"
    assert decode(config(system, CARD)).aspm == "L1"


def switches(**values: str) -> dict[str, str]:
    return {f"link__{name}": value for name, value in values.items()}


def linked(root: Path, aspm: int, **values: str) -> Ordered:
    tree(root, space(ROOT_PORT, aspm=aspm), space(aspm=aspm), **switches(**values))
    return Ordered(str(root))


def test_the_kernel_s_switches_are_used_where_there_are_any(tmp_path: Path) -> None:
    system = linked(tmp_path, 3, l0s_aspm="1", l1_aspm="1", clkpm="1")
    setting = setting_of("aspm", PORT)
    before = digest(tmp_path)
    assert setting.read(system) == "L0s L1"
    setting.write(system, "off")
    assert system.order == []
    link = f"/sys/bus/pci/devices/{CARD}/link"
    assert [system.read(f"{link}/{name}") for name in ("l0s_aspm", "l1_aspm", "clkpm")] == ["0", "0", "1"]
    assert setting.read(system) == setting.effective(system) == "off"
    setting.write(system, "L0s L1")
    assert digest(tmp_path) == before


def test_substates_that_go_off_with_l1_come_back_with_it(tmp_path: Path) -> None:
    """aspm_attr_store_common: L1 off disables its substates, L1 on does not enable them again."""
    on = {"l1_aspm": "1", "l1_1_aspm": "1", "l1_2_aspm": "0", "l1_1_pcipm": "1"}
    system = linked(tmp_path, 2, **on)
    setting = setting_of("aspm", PORT)
    before = digest(tmp_path)
    old = setting.read(system)
    assert old == FrozenMap({CARD: "L1", PORT: "L1", "link": "l1_aspm l1_1_aspm l1_1_pcipm"})
    assert setting.effective(system) == "L1"
    setting.write(system, "off")
    assert setting.read(system) == "off"
    assert system.read(f"/sys/bus/pci/devices/{CARD}/link/l1_1_aspm") == "0"
    setting.write(system, old)
    assert digest(tmp_path) == before


def test_where_the_books_differ_both_are_read(tmp_path: Path) -> None:
    """setpci sets the ends behind the switches' back; a switch that is as asked already would do nothing."""
    system = linked(tmp_path, 3, l0s_aspm="0", l1_aspm="0")
    setting = setting_of("aspm", PORT)
    before = digest(tmp_path)
    old = setting.read(system)
    assert old == FrozenMap({CARD: "L0s L1", PORT: "L0s L1", "link": "off", "apart": "l0s_aspm l1_aspm"})
    assert setting.effective(system) == "L0s L1"
    assert not setting.agrees(old, "L0s L1")
    setting.write(system, "off")
    assert system.order == [CARD, PORT]
    assert setting.read(system) == "off"
    setting.write(system, old)
    assert digest(tmp_path) == before


def test_substates_do_not_matter_for_what_is_wanted() -> None:
    setting = setting_of("aspm", PORT)
    live = FrozenMap({CARD: "L1", PORT: "L1", "link": "l1_aspm l1_1_aspm"})
    assert setting.agrees(live, "L1")
    assert not setting.agrees(live, "off")
    assert not setting.agrees(FrozenMap({CARD: "off", PORT: "off", "link": "l1_aspm"}), "off")
    assert not setting.agrees(FrozenMap({CARD: "L1", PORT: "off"}), "off")


def test_the_values_are_those_of_the_host_document(tmp_path: Path) -> None:
    made = Tree(tmp_path)
    made.port(PORT_PATH, config=space(ROOT_PORT, aspm=3, acs=(0x5F, _ISOLATE)), power_state="D0")
    made.add(f"{PORT_PATH}/{CARD}", config=space(aspm=3, read_request=5, relaxed=True), power_state="D0")
    devices = {device.address: device for device in hosttune.discover(str(tmp_path)).pci}
    system = Capture(str(tmp_path))
    for address, device in devices.items():
        assert setting_of("aspm", address).effective(system) == device.aspm == "L0s L1"
        assert setting_of("read-request", address).effective(system) == device.read_request_bytes
        assert setting_of("relaxed-ordering", address).effective(system) == device.relaxed_ordering
    acs = devices[PORT].acs
    assert acs is not None
    assert setting_of("acs", PORT).effective(system) == " ".join(acs.enabled)
    assert setting_of("acs", CARD).effective(system) is None


def test_what_the_kernel_refuses_to_show_is_not_absent(tmp_path: Path) -> None:
    tree(tmp_path, space(ROOT_PORT), space())
    (tmp_path / ".hosttune/unreadable").write_text(f"/sys/devices/{PORT_PATH}/{CARD}/config\tpermission denied\n")
    with pytest.raises(Unreadable, match="permission denied"):
        setting_of("read-request", CARD).read(Capture(str(tmp_path)))
