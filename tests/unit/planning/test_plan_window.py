"""The 64-bit MMIO window of a guest: its size, who opens it, what stands against it, and what is unknown."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from planhosts import Card, build_host, intent_of
from rich.console import Console

from hosttune.domain.writer import domain_xml
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan, PlannedGuest
from hosttune.planning import plan
from hosttune.report.draw.text import draw
from hosttune.report.plan import plan_report

Json = dict[str, Any]
GIB = 1 << 30
TIB = 1 << 40
GPUS = ["0000:21:00.0", "0000:31:00.0", "0000:41:00.0", "0000:51:00.0"]
NIC = "0000:61:00.0"
FLAGS = ("lm", "pdpe1gb")


def machine(
    *,
    bits: int | None = 46,
    vendor: str | None = "GenuineIntel",
    flags: tuple[str, ...] | None = FLAGS,
    libvirt: str | None = "10.0.0",
    qemu: str | None = "8.2.2",
    iommu: int | None = None,
    bar: int | None = 256 * GIB,
    gpus: int = 1,
    cards: tuple[Card, ...] = (),
    memory_gib: int = 64,
) -> Json:
    """A host of two nodes with `gpus` GPUs of one BAR each on node 0, whose widths and versions vary."""
    gpu_cards = [Card(address, group=i, bar_bytes=bar) for i, address in enumerate(GPUS[:gpus])]
    host = build_host(cards=[*gpu_cards, *cards], memory_gib=memory_gib)
    host["cpu_model"] = {"vendor": vendor, "physical_address_bits": bits, "flags": flags and list(flags)}
    host["virtualization"] = {"kvm": True, "libvirt_version": libvirt, "qemu_version": qemu}
    host["iommu"] = {"present": True, "address_bits": iommu}
    return host


def decide(host: Json, **guest: Any) -> Plan:
    wanted = {"gpus": GPUS[: len(host["gpus"])], "vcpus": 2, "memory": "8GiB", **guest}
    return plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent_of(**wanted))))


def only(result: Plan) -> PlannedGuest:
    assert result.unplaced == ()
    return result.guests[0]


def window_line(guest: PlannedGuest) -> str:
    return next(line for line in guest.why if line.startswith("64-bit window"))


def said(result: Plan, level: str, word: str) -> list[str]:
    return [f.text for f in result.findings if f.level == level and f.where == "guest g" and word in f.text]


def text_of(host: Json, result: Plan) -> str:
    out = io.StringIO()
    draw(plan_report(result, Host.from_json(json.dumps(host))), Console(file=out, width=300, color_system=None))
    _, head, told = " ".join(out.getvalue().split()).partition("64-bit MMIO ")
    return told.partition(" devices kind ")[0] if head else ""


# --- whom the firmware believes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "own"),
    [
        ({"bits": 46}, True),
        ({"bits": 52}, True),
        ({"bits": 48, "vendor": "AuthenticAMD"}, True),
        ({"bits": 41, "bar": 64 * GIB}, True),  # 2 TiB / 8 = 256 GiB, and 128 GiB are needed
        ({"bits": 41, "bar": 256 * GIB}, False),
        ({"bits": 40, "vendor": "AuthenticAMD", "bar": 64 * GIB}, True),
        ({"bits": 40, "vendor": "GenuineIntel", "bar": 64 * GIB}, False),  # QEMU's default: not believed
        ({"bits": 40, "vendor": None, "bar": 64 * GIB}, False),
        ({"bits": 39, "bar": 16 * GIB}, True),
        ({"bits": 39, "bar": 32 * GIB}, True),
        ({"bits": 39, "vendor": "AuthenticAMD", "bar": 32 * GIB}, False),
        ({"bits": 40, "vendor": "GenuineIntel", "bar": 16 * GIB}, True),  # the classic 32 GiB hold it
        ({"flags": None}, False),
        ({"libvirt": "8.0.0", "qemu": "6.2.0"}, False),
        ({"libvirt": "9.0.0", "qemu": "7.1.0"}, False),
        ({"libvirt": "8.9.0"}, False),
        ({"libvirt": "9.0.0", "qemu": "7.2.0"}, True),
        ({"libvirt": None}, False),
        ({"qemu": None}, False),
    ],
)
def test_a_floor_is_written_unless_the_firmwares_own_window_is_surely_enough(changes: Json, own: bool) -> None:
    host = machine(**changes)
    result = decide(host)
    guest = only(result)
    assert guest.mmio64_bytes is not None
    assert guest.ovmf_window_mib == (None if own else guest.mmio64_bytes >> 20)
    assert ("the firmware's own" in text_of(host, result)) is own
    assert ("large enough" in window_line(guest)) is own


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bits": 40, "bar": 64 * GIB}, "the firmware does not believe 40 address bits of a GenuineIntel CPU"),
        ({"flags": None}, "whether the CPU has 1 GiB pages is unknown"),
        ({"libvirt": "8.0.0"}, "libvirt or QEMU is older than 9.0 and 7.2"),
        ({"qemu": None}, "libvirt or QEMU is unknown"),
        ({"bits": None}, "the address width is unknown"),
        ({"bits": 41}, "the firmware's own window is only 256 GiB"),
    ],
)
def test_the_reason_of_a_floor_is_told(changes: Json, text: str) -> None:
    assert text in window_line(only(decide(machine(**changes))))


def test_without_1_gib_pages_the_firmware_uses_40_bits_of_the_width() -> None:
    small = only(decide(machine(flags=("lm",), bar=64 * GIB)))
    assert (small.mmio64_bytes, small.ovmf_window_mib) == (128 * GIB, None)
    large = only(decide(machine(flags=("lm",), bar=96 * GIB)))
    assert (large.mmio64_bytes, large.ovmf_window_mib) == (256 * GIB, 256 << 10)


def test_memory_in_the_way_of_the_firmwares_own_window_asks_for_a_floor() -> None:
    host = machine(bits=41, bar=64 * GIB, memory_gib=2048)
    assert only(decide(host, memory="1024GiB")).ovmf_window_mib is None
    assert only(decide(host, memory="1800GiB")).ovmf_window_mib == 128 << 10


# --- unknown width -------------------------------------------------------------------------------------------


def test_an_unknown_width_keeps_the_size_writes_the_floor_and_says_so() -> None:
    host = machine(bits=None)
    result = decide(host)
    guest = only(result)
    assert (guest.physical_address_bits, guest.mmio64_bytes) == (None, 512 * GIB)
    assert guest.ovmf_window_mib == 512 << 10
    assert said(result, "warn", "address width is unknown") != []
    line = text_of(host, result)
    assert "a window of 512 GiB, the firmware is asked for 512 GiB: the address width is unknown" in line
    assert "the firmware's own" not in line


# --- SeaBIOS -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bar", "hole", "text"),
    [
        (256 * GIB, 512 * GIB, "the host bridge's hole is made as large"),
        (8 * GIB, None, "the host bridge's default hole"),
    ],
)
def test_seabios_gets_the_hole_and_no_floor(bar: int, hole: int | None, text: str) -> None:
    host = machine(bar=bar)
    result = decide(host, firmware="bios")
    guest = only(result)
    assert (guest.ovmf_window_mib, guest.pci_hole64_bytes) == (None, hole)
    assert text in text_of(host, result)
    assert "firmware's own" not in " ".join(guest.why)


@pytest.mark.parametrize(("qemu", "gpus", "warned"), [("8.2.2", 2, True), ("8.2.2", 1, False), ("7.2.0", 2, False)])
def test_a_plan_says_what_seabios_1_16_3_misplaces(qemu: str, gpus: int, warned: bool) -> None:
    """96 GiB behind each port, of BARs of 64 and 32 GiB: the second window begins at no multiple of 64 GiB."""
    host = machine(qemu=qemu, bar=64 * GIB, gpus=gpus)
    for device in host["pci"]:
        device["bars"] = [{**bar, "size_bytes": 64 * GIB} for bar in device["bars"] or ()]
        device["bars"] += [{**bar, "index": 4, "size_bytes": 32 * GIB} for bar in device["bars"]]
    assert bool(said(decide(host, firmware="bios"), "warn", "SeaBIOS is 1.16.3")) is warned
    assert said(decide(host), "warn", "SeaBIOS") == []


def test_seabios_does_not_clamp_the_width() -> None:
    host = machine(bits=52, bar=16 * TIB)
    assert only(decide(host, firmware="bios")).mmio64_bytes == 32 * TIB
    refused = decide(host).unplaced[0]
    assert "the firmware opens 16 TiB at the most" in refused.why[0]


# --- a narrower IOMMU ----------------------------------------------------------------------------------------


def test_a_narrower_iommu_limits_the_guest_where_libvirt_can_say_so() -> None:
    result = decide(machine(bits=46, iommu=42, bar=64 * GIB))
    guest = only(result)
    assert (guest.physical_address_bits, guest.physical_address_limit_bits) == (42, 42)
    assert said(result, "info", "the IOMMU maps 42 address bits, the guest's CPU has 46") != []
    assert "limit='42'" in domain_xml(result, "g")


@pytest.mark.parametrize(("iommu", "level"), [(42, "error"), (46, "warn")])
def test_a_narrower_iommu_that_cannot_be_told_is_a_finding(iommu: int, level: str) -> None:
    result = decide(machine(bits=52, iommu=iommu, libvirt="9.0.0", qemu="7.2.0", bar=64 * GIB))
    guest = only(result)
    assert (guest.physical_address_bits, guest.physical_address_limit_bits) == (52, None)
    text = said(result, level, f"the IOMMU maps {iommu} address bits, the guest's CPU has 52")
    assert len(text) == 1
    assert "needs libvirt 9.3, this one is 9.0" in text[0]
    assert guest.ovmf_window_mib is None  # the firmware sees 52 bits


@pytest.mark.parametrize("iommu", [46, 57, None])
def test_an_iommu_that_is_no_narrower_changes_nothing(iommu: int | None) -> None:
    result = decide(machine(iommu=iommu))
    assert only(result).physical_address_limit_bits is None
    assert [f for f in result.findings if "IOMMU maps" in f.text] == []


def test_the_iommu_does_not_limit_a_guest_without_host_devices() -> None:
    result = decide(machine(iommu=39), gpus=0)
    assert (only(result).physical_address_bits, only(result).physical_address_limit_bits) == (46, None)


def test_a_window_beyond_the_iommu_is_refused() -> None:
    refused = decide(machine(bits=46, iommu=39)).unplaced[0]
    assert "39 address bits (the IOMMU's) reach only 512 GiB" in refused.why[0]


def test_without_kvm_the_width_stays_that_of_qemu() -> None:
    result = decide(machine(iommu=39, bar=64 * GIB), accelerator="tcg")
    guest = only(result)
    assert (guest.physical_address_bits, guest.physical_address_limit_bits) == (40, None)
    assert said(result, "warn", "the IOMMU maps 39 address bits, the guest's CPU has 40") != []


# --- unknown BARs --------------------------------------------------------------------------------------------


def bars_of(host: Json, address: str) -> Json:
    found: Json = next(row for row in host["pci"] if row["address"] == address)
    return found


BAR = {"index": 2, "size_bytes": 256 * GIB, "prefetchable": True, "is_64bit": True}


@pytest.mark.parametrize("bars", [None, [], [{**BAR, "is_64bit": None}]])
def test_a_gpu_without_known_bars_has_no_window_and_says_so(bars: list[Json] | None) -> None:
    host = machine(gpus=2)
    bars_of(host, GPUS[1])["bars"] = bars
    result = decide(host)
    guest = only(result)
    assert (guest.mmio64_bytes, guest.ovmf_window_mib, guest.pci_hole64_bytes) == (None, None, None)
    assert said(result, "warn", f"the BARs of {GPUS[1]} are unknown: no MMIO window was computed") != []
    assert text_of(host, result) == ""


@pytest.mark.parametrize("bars", [None, [{**BAR, "is_64bit": None}]])
def test_other_devices_with_unknown_bars_leave_the_least_of_the_rest(bars: list[Json] | None) -> None:
    host = machine(cards=(Card(NIC, kind="nic", group=9),))
    bars_of(host, NIC)["bars"] = bars
    result = decide(host, nics=[NIC])
    assert only(result).mmio64_bytes == 512 * GIB
    assert said(result, "warn", f"the BARs of {NIC} are unknown: the 64-bit window is the least") != []
    assert "the least that the known BARs need" in text_of(host, result)


def test_a_nic_alone_with_unknown_bars_has_no_window() -> None:
    host = machine(gpus=0, cards=(Card(NIC, kind="nic", group=9),))
    result = decide(host, nics=[NIC])
    assert only(result).mmio64_bytes is None
    assert said(result, "warn", f"the BARs of {NIC} are unknown: no MMIO window was computed") != []


def test_small_bars_that_are_not_prefetchable_stay_below_4_gib() -> None:
    host = machine()
    bars_of(host, GPUS[0])["bars"] = [{"index": 0, "size_bytes": 1 << 24, "prefetchable": False, "is_64bit": False}]
    assert only(decide(host)).mmio64_bytes == 0


# --- refusal and what would help -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "memory", "advice"),
    [
        # 39 bits: 512 GiB; one 64 GiB BAR needs 128, so that memory may end at 384
        ({"bits": 39, "bar": 64 * GIB}, "500GiB", ("memory: at most 380 GiB",)),
        # four need 512 GiB: two fit with little memory, whatever the memory four do not
        ({"bits": 39, "bar": 64 * GIB, "gpus": 4}, "8GiB", ("gpus: 2",)),
        # two need 256 GiB of 512: less memory helps, and so does one GPU alone
        ({"bits": 39, "bar": 64 * GIB, "gpus": 2}, "300GiB", ("memory: at most 252 GiB", "gpus: 1")),
        # with 500 GiB of memory one GPU does not fit either
        ({"bits": 39, "bar": 64 * GIB, "gpus": 4}, "500GiB", ("gpus: 2 and memory: at most 252 GiB",)),
        # 40 bits: 1 TiB; AMD's hole pushes memory that ends above 1012 GiB past it
        ({"bits": 41, "bar": 256 * GIB, "vendor": "AuthenticAMD"}, "1800GiB", ("memory: at most 1520 GiB",)),
        ({"bits": 39, "bar": 256 * GIB}, "8GiB", ()),
        ({"bits": 39, "bar": 256 * GIB, "gpus": 4}, "8GiB", ()),
    ],
)
def test_a_refusal_advises_only_what_helps(changes: Json, memory: str, advice: tuple[str, ...]) -> None:
    refused = decide(machine(memory_gib=2048, **changes), memory=memory).unplaced[0]
    assert refused.relaxation == advice
    assert "need a 64-bit window of" in refused.why[0]
    hopeless = "39 address bits cannot hold one of them" in refused.why[-1]
    assert hopeless is (advice == ())


def test_what_is_advised_fits() -> None:
    host = machine(memory_gib=2048, bits=41, bar=256 * GIB, vendor="AuthenticAMD")
    limit = (1 << 41) - 512 * GIB - 4 * GIB - 12 * GIB
    assert only(decide(host, memory=limit)).mmio64_bytes == 512 * GIB
    assert decide(host, memory=limit + GIB).guests == ()
    one = machine(memory_gib=2048, bits=39, bar=64 * GIB)
    assert only(decide(one, memory="380GiB")).mmio64_bytes == 128 * GIB
    assert decide(one, memory="381GiB").guests == ()


def test_a_window_that_no_memory_size_can_help_says_so() -> None:
    refused = decide(machine(bits=39, bar=256 * GIB)).unplaced[0]
    assert "with no memory at all it ends at 1 TiB, but 39 address bits reach only 512 GiB" in refused.why[0]
