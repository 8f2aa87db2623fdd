"""Configuration space: what we decode is what lspci prints, and nothing breaks on truncated or hostile bytes."""

from __future__ import annotations

import json
from pathlib import Path
from struct import pack_into
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.linux.pciconfig import ConfigFacts, decode, extended_capability_at
from hosttune.model.host import Acs

CASES = Path(__file__).parents[2] / "cases" / "pci_config"
RAW = Path(__file__).parents[2] / "hosts" / "libvirt" / "pciconfig"
STATED = (
    *("vendor_id", "device_id", "revision", "subsystem_vendor_id", "subsystem_device_id", "port_type"),
    *("max_payload_supported_bytes", "max_payload_bytes", "read_request_bytes", "relaxed_ordering"),
    *("speed_gts", "width", "max_speed_gts", "max_width", "aspm", "aspm_supported", "ats_enabled", "sriov"),
)


def dump(path: Path) -> dict[str, bytes]:
    """Configuration spaces of an lspci -x dump, by address with the domain."""
    spaces: dict[str, bytearray] = {}
    space = bytearray()
    for line in path.read_text().splitlines():
        if line.endswith(" device"):
            address = line.split()[0]
            space = spaces.setdefault(address if address.count(":") == 2 else f"0000:{address}", bytearray())
        elif line:
            space += bytes.fromhex(line.partition(":")[2])
    return {address: bytes(space) for address, space in spaces.items()}


def assert_says(facts: ConfigFacts, expected: dict[str, Any]) -> None:
    """Every fact that lspci states, and no fact that it does not state."""
    got = msgspec.to_builtins(facts)
    # A subsystem of zeros is none; lspci prints it on some headers.
    assert {name: got[name] for name in STATED} == {name: expected.get(name) for name in STATED}
    assert (facts.class_code or "")[:4] == expected["class"]
    acs = expected.get("acs", {"capable": [], "enabled": []})
    assert facts.acs is None or msgspec.to_builtins(facts.acs) == {key: tuple(acs[key]) for key in acs}
    assert facts.acs is not None or "acs" not in expected


@pytest.mark.parametrize("case", sorted(CASES.glob("*.txt")), ids=lambda path: path.stem)
def test_agrees_with_lspci_on_pciutils_dumps(case: Path) -> None:
    spaces = dump(case)
    expected = json.loads(case.with_suffix(".json").read_text())
    assert spaces.keys() == expected.keys()
    for address, config in spaces.items():
        assert_says(decode(config), expected[address])


@pytest.mark.parametrize("name", sorted(json.loads((CASES / "libvirt.json").read_text())))
def test_agrees_with_lspci_on_libvirt_files(name: str) -> None:
    assert_says(decode((RAW / name).read_bytes()), json.loads((CASES / "libvirt.json").read_text())[name])


def express(size: int = 4096, *, kind: int = 0, version: int = 2) -> bytearray:
    """A minimal Express function: one capability at 0x40, no extended ones."""
    config = bytearray(size)
    pack_into("<HHHH", config, 0, 0x10DE, 0x2335, 0, 0x10)
    config[0x34] = 0x40
    pack_into("<BBH", config, 0x40, 0x10, 0, version | kind << 4)
    return config


def test_link_speed_at_most_comes_from_the_vector_before_the_code() -> None:
    config = express()
    pack_into("<I", config, 0x4C, 4 | 16 << 4)
    pack_into("<I", config, 0x6C, 0b0111110)  # 2.5 to 32 GT/s
    assert decode(bytes(config)).max_speed_gts == 32.0
    pack_into("<H", config, 0x42, 1)  # version 1 has no LNKCAP2: what is there is something else
    assert decode(bytes(config)).max_speed_gts == 16.0


def test_untrained_link_and_reserved_sizes_are_unknown() -> None:
    config = express()
    pack_into("<H", config, 0x48, 7 << 5 | 6 << 12)
    facts = decode(bytes(config))
    assert (facts.speed_gts, facts.width, facts.max_width) == (None, None, None)
    assert (facts.max_payload_bytes, facts.read_request_bytes) == (None, None)


def test_root_complex_endpoint_has_no_link() -> None:
    config = express(kind=9)
    pack_into("<I", config, 0x4C, 5 | 16 << 4)
    facts = decode(bytes(config))
    assert facts.port_type == "root-complex-endpoint"
    assert (facts.max_speed_gts, facts.max_width, facts.aspm) == (None, None, None)


@pytest.mark.parametrize("size", [0, 63])
def test_less_than_a_header_is_nothing(size: int) -> None:
    assert decode(bytes(express())[:size]) == ConfigFacts()


def test_unprivileged_64_bytes_give_the_ids_only() -> None:
    facts = decode(bytes(express())[:64])
    assert (facts.vendor_id, facts.device_id, facts.port_type, facts.acs, facts.doubts) == (
        *("10de", "2335", None, None),
        (),
    )


def test_256_bytes_leave_extended_facts_unknown_and_4096_say_absent() -> None:
    assert decode(bytes(express())[:256]).acs is None
    assert decode(bytes(express())).acs == Acs()


def test_a_device_that_fell_off_the_bus_says_nothing() -> None:
    assert decode(b"\xff" * 4096) == ConfigFacts(all_ones=True)


def test_a_virtual_function_reads_ffff_and_keeps_the_rest() -> None:
    config = express()
    config[0:4] = b"\xff" * 4
    facts = decode(bytes(config))
    assert (facts.vendor_id, facts.device_id, facts.port_type) == (None, None, "endpoint")


def test_the_device_serial_number_is_in_the_order_of_lspci() -> None:
    """An Intel NIC makes it of its MAC address, 00:1b:21:2b:46:e0."""
    config = dump(CASES / "cap-pcie-2.txt")["0000:01:00.0"]
    at = extended_capability_at(config, 3) or 0
    assert decode(config).dsn == "001b21ffff2b46e0"
    assert decode(config[: at + 4] + bytes(8) + config[at + 12 :]).dsn is None


def test_loops_are_told_with_their_place() -> None:
    config = express()
    config[0x41] = 0x40
    pack_into("<I", config, 0x100, 0x0D | 1 << 16 | 0x200 << 20)
    pack_into("<I", config, 0x200, 0x0F | 1 << 16 | 0x100 << 20)
    pack_into("<HH", config, 0x104, 0x5F, 0x1D)
    facts = decode(bytes(config))
    assert facts.doubts == ("the capability list loops at 0x40", "the extended capability list loops at 0x100")
    assert facts.extended_capabilities == (0x0D, 0x0F)
    assert facts.acs == Acs(
        capable=("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "DirectTrans"),
        enabled=("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"),
    )


@pytest.mark.parametrize(
    ("pointer", "doubt"), [(0x10, "points into the header, at 0x10"), (0x80, "reads 0xff at 0x80")]
)
def test_bad_capability_pointers_are_told(pointer: int, doubt: str) -> None:
    config = express()
    config[0x34] = pointer
    config[0x80:0x82] = b"\xff\xff"
    assert decode(bytes(config)).doubts == (f"the capability list {doubt}",)


@given(st.binary(min_size=64, max_size=320), st.integers(0, 63))
def test_any_bytes_are_decoded(noise: bytes, at: int) -> None:
    """Garbage may mislead, but never raises and never hangs."""
    config = express(len(noise) + 64)
    config[6:6] = noise[:at]
    config[0x40 : 0x40 + len(noise)] = noise
    assert isinstance(decode(bytes(config)), ConfigFacts)
    assert isinstance(decode(noise), ConfigFacts)
