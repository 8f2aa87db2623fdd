"""Ports of network functions: links, subnet manager, rate against their like, errors since boot and in between.

The class tree of an H100 host is real (tests/cases/ports); around it stand PCI functions with nothing else wrong.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import evidences
import msgspec
import pytest
from damage import Files
from readings import looked_at, read_again

from hosttune.discovery.evidence import gather
from hosttune.discovery.kernellog import parse_dmesg, parse_events
from hosttune.discovery.ports import read_ports
from hosttune.machine.reader import Reader
from hosttune.model.evidence import Evidence, Health, KernelEvent
from hosttune.model.host import DeviceSource, Host, Nic, PciDevice, Problem, SeenDevice
from hosttune.model.ports import Interface, NicPorts, RdmaPort
from hosttune.model.validation import CheckResult
from hosttune.rules.checks import checks, results_of
from hosttune.rules.checks.data import table
from hosttune.validating import look_again

A, B, A1, B1 = "0000:19:00.0", "0000:2a:00.0", "0000:19:00.1", "0000:2a:00.1"
CASE = Path(__file__).parents[2] / "cases" / "ports" / "gpud-h100.tar.xz"
DAY = 86400.0
WHOLE = Health(events=(), events_since=0.0, events_source="dmesg", events_links=True, uptime_seconds=DAY)
ZEROS: Mapping[str, int | None] = {row["name"]: 0 for row in table("ports")["rdma"]}
QUIET: Mapping[str, int | None] = {
    "rx_errors": 0, "rx_crc_errors": 0, "rx_missed_errors": 0, "rx_bytes": 10**12, "carrier_down_count": 1,
}  # fmt: skip
UP: dict[str, Any] = {"layer": "infiniband", "state": "active", "phys_state": "linkup", "rate_gbps": 400.0, "width": 4}
POLLING: dict[str, Any] = {"state": "down", "phys_state": "polling", "rate_gbps": 10.0, "width": 4, "speed": "SDR"}


def rdma(device: str = "mlx5_0", **more: Any) -> RdmaPort:
    facts: dict[str, Any] = {
        "number": 1,
        **UP,
        "speed": "NDR",
        "lid": 5,
        "sm_lid": 1,
        "firmware": "28.39.1002",
        "counters": ZEROS,
    }
    return RdmaPort(device=device, **(facts | more))


def interface(name: str = "ens1np0", **more: Any) -> Interface:
    facts: dict[str, Any] = {
        "is_up": True, "carrier": True, "arp_type": 1, "speed_gbps": 25.0, "duplex": "full",
        "mtu": 1500, "counters": QUIET,
    }  # fmt: skip
    return Interface(name=name, **(facts | more))


def infiniband(**more: Any) -> NicPorts:
    return NicPorts(rdma=(rdma(**more),), interfaces=())


def ethernet(**more: Any) -> NicPorts:
    return NicPorts(rdma=(), interfaces=(interface(**more),))


DEAD_IB = infiniband(**POLLING)
UNPLUGGED = ethernet(carrier=False, speed_gbps=None)
SET_DOWN = ethernet(is_up=False, carrier=None, speed_gbps=None)

_OFF = rdma(layer="ethernet", state="down", phys_state="disabled", rate_gbps=2.5, width=1, speed="SDR")
ROCE = NicPorts(rdma=(rdma(layer="ethernet", lid=0, sm_lid=0),), interfaces=(interface(),))
ROCE_OFF = NicPorts(rdma=(_OFF,), interfaces=SET_DOWN.interfaces)


def evidence(ports: Mapping[str, NicPorts | None], health: Health | None = WHOLE, **more: Any) -> Evidence:
    device: dict[str, Any] = {"class_code": "020700", "vendor_id": "15b3", "device_id": "1021", "driver": "mlx5_core"}
    device |= more.pop("device", {})
    host = Host(
        pci=tuple(PciDevice(address=address, **device) for address in ports),
        nics=tuple(Nic(address=address, fabric_bridge=more.get("bridge")) for address in ports),
        sources=more.pop("sources", None),
    )
    more.pop("bridge", None)
    known = {address: found for address, found in ports.items() if found is not None}
    return Evidence(host=host, ports=known, health=health, complete=True, **more)


def one(found: Evidence, check: str, subject: str = A) -> CheckResult:
    declared = next(listed for listed in checks() if listed.id == check)
    return next(result for result in results_of(declared, found) if result.subject == subject)


def outcome(found: Evidence, check: str, subject: str = A) -> str:
    return one(found, check, subject).outcome


# --- state -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        (infiniband(), "pass"),
        (infiniband(state="init"), "fail"),  # a link, and no subnet manager
        (infiniband(sm_lid=0), "fail"),
        (infiniband(lid=0), "fail"),
        (infiniband(lid=0xFFFF), "fail"),  # the permissive LID, which is what drivers show where none was assigned
        (infiniband(sm_lid=0xFFFF), "fail"),
        (infiniband(lid=None), "unknown"),
        (infiniband(sm_lid=None), "unknown"),
        (infiniband(state=None), "unknown"),
        (infiniband(phys_state=None), "unknown"),
        (infiniband(layer=None), "unknown"),
        (infiniband(state="active", phys_state="polling"), "unknown"),
        (infiniband(layer="ethernet", lid=0, sm_lid=0), "pass"),  # RoCE has no subnet manager
        (infiniband(layer="unspecified", lid=None, sm_lid=None), "pass"),  # nor has EFA
        (infiniband(layer="unspecified", state="down", phys_state="polling"), "fail"),
        (DEAD_IB, "fail"),  # no port of the card has a link
        (infiniband(state="down", phys_state="disabled"), "skip"),
        (ethernet(), "pass"),
        (UNPLUGGED, "warn"),
        (SET_DOWN, "skip"),
        (ethernet(is_up=None), "unknown"),
        (ethernet(carrier=None), "unknown"),
        (NicPorts(rdma=(), interfaces=()), "skip"),
        (NicPorts(rdma=None, interfaces=(interface(),)), "unknown"),
        (NicPorts(rdma=(rdma(),), interfaces=None), "unknown"),
        (NicPorts(), "unknown"),
        (None, "unknown"),
    ],
)
def test_the_state_of_a_function_alone(ports: NicPorts | None, expected: str) -> None:
    assert outcome(evidence({A: ports}), "port-state") == expected


@pytest.mark.parametrize(
    ("mine", "sibling", "expected"),
    [
        (DEAD_IB, infiniband(), "fail"),  # a rail without a link
        (DEAD_IB, DEAD_IB, "fail"),
        (DEAD_IB, None, "fail"),  # whatever the other is, no port of this card has a link
        (ROCE_OFF, ROCE, "warn"),  # forgotten?
        (ROCE_OFF, ROCE_OFF, "skip"),
        (ROCE_OFF, None, "unknown"),
        (UNPLUGGED, ethernet(), "warn"),  # without RDMA a spare port is common
        (UNPLUGGED, None, "warn"),
        (SET_DOWN, ethernet(), "skip"),
        (SET_DOWN, None, "skip"),
    ],
)
def test_the_same_port_of_another_card_tells_what_is_meant(
    mine: NicPorts, sibling: NicPorts | None, expected: str
) -> None:
    assert outcome(evidence({A: mine, B: sibling}), "port-state") == expected


def test_a_pass_names_the_link_and_the_firmware() -> None:
    assert one(evidence({A: infiniband()}), "port-state").actual == "mlx5_0/1 active, linkup, firmware 28.39.1002"


def test_a_second_port_without_a_cable_is_no_fault_unless_the_other_cards_have_one() -> None:
    alone = evidence({A: infiniband(), A1: DEAD_IB})
    assert (outcome(alone, "port-state"), outcome(alone, "port-state", A1)) == ("pass", "warn")
    rails = evidence({A: infiniband(), A1: DEAD_IB, B: infiniband(), B1: infiniband()})
    assert outcome(rails, "port-state", A1) == "fail"
    no_card = evidence({A: None, A1: DEAD_IB})
    assert outcome(no_card, "port-state", A1) == "unknown"


def test_a_function_that_only_another_source_shows_may_be_of_the_model() -> None:
    lost = DeviceSource(name="class", read="/sys", beyond=(SeenDevice(address=B, kind="nic"),))
    assert outcome(evidence({A: ROCE_OFF}, sources=(lost,)), "port-state") == "unknown"
    assert outcome(evidence({A: infiniband()}, sources=(lost,)), "port-rate") == "unknown"


def test_a_function_whose_ids_were_not_read_may_be_of_the_model() -> None:
    """Else the loss of another card's ids would leave nothing to compare with, and what was judged would be skipped."""
    both = evidence({A: HALF, B: infiniband()})
    assert outcome(both, "port-rate") == "warn"
    for lost in ("subsystem_device_id", "device_id"):
        other = msgspec.structs.replace(both.host.pci[1], **{lost: None})
        host = msgspec.structs.replace(both.host, pci=(both.host.pci[0], other))
        assert outcome(msgspec.structs.replace(both, host=host), "port-rate") == "warn"
    other = msgspec.structs.replace(both.host.pci[1], class_code=None)  # its ports are not looked for then
    host = msgspec.structs.replace(both.host, pci=(both.host.pci[0], other), nics=both.host.nics[:1])
    assert outcome(msgspec.structs.replace(both, host=host, ports={A: HALF}), "port-rate") == "unknown"


def test_a_rail_that_is_down_names_its_gpu() -> None:
    """A GPU and a NIC below one switch of the kit of `evidences`."""
    down = rdma(**POLLING)
    fields = {"driver": "mlx5_core"}
    host = msgspec.structs.replace(
        evidences.host(), pci=(*evidences.switch(), evidences.gpu(), evidences.nic(**fields)),
        nics=(Nic(address=evidences.NIC, rdma="mlx5_0"),),
    )  # fmt: skip
    found = Evidence(host=host, ports={evidences.NIC: NicPorts(rdma=(down,), interfaces=())}, complete=True)
    result = one(found, "port-state", evidences.NIC)
    assert result.outcome == "fail"
    assert f"the rail of GPU {evidences.GPU}" in (result.actual or "")
    assert "rail" not in (one(evidence({A: DEAD_IB}), "port-state").actual or "")


def test_a_roce_port_is_the_port_of_its_interface() -> None:
    """mlx5 says "disabled" of a RoCE port without a cable and of one that was set down: the interface decides."""
    for part, expected in ((SET_DOWN, "skip"), (UNPLUGGED, "fail"), (ethernet(is_up=None), "unknown")):
        assert outcome(evidence({A: NicPorts(rdma=(_OFF,), interfaces=part.interfaces)}), "port-state") == expected
    assert outcome(evidence({A: NicPorts(rdma=(_OFF,), interfaces=())}), "port-state") == "unknown"


def test_ipoib_and_what_stands_for_virtual_functions_are_not_ports() -> None:
    ipoib = interface("ibp25s0", arp_type=32, is_up=False, carrier=None, speed_gbps=None)
    found = evidence({A: NicPorts(rdma=(rdma(),), interfaces=(ipoib,))})
    assert {outcome(found, check) for check in ("port-state", "port-errors")} == {"pass"}
    stands = interface("eth7", represents=True, carrier=False)
    assert outcome(evidence({A: NicPorts(rdma=(), interfaces=(interface(), stands))}), "port-state") == "pass"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"device": {"driver": "vfio-pci"}}, "skip"),
        ({"device": {"driver": None}, "absent": ("/",)}, "skip"),
        ({"device": {"driver": None}}, "unknown"),
        ({"bridge": True}, "skip"),
        ({"device": {"physfn": B}}, None),
    ],
)
def test_whose_ports_are_judged(more: dict[str, Any], expected: str | None) -> None:
    found = evidence({A: None}, **more)
    for check in ("port-state", "port-rate", "port-errors"):
        declared = next(listed for listed in checks() if listed.id == check)
        assert [r.outcome for r in results_of(declared, found) if r.subject == A] == ([expected] if expected else [])


# --- rate --------------------------------------------------------------------------------------------------------

HALF = infiniband(rate_gbps=200.0, width=2)
SDR_RATE: dict[str, Any] = {"rate_gbps": 10.0, "width": 4, "speed": "SDR"}  # rate_show: also of a speed without a name
SDR = infiniband(**SDR_RATE)
JUMBO = NicPorts(rdma=ROCE.rdma, interfaces=(interface(mtu=9000),))
NO_MTU = NicPorts(rdma=ROCE.rdma, interfaces=(interface(mtu=None),))


@pytest.mark.parametrize(
    ("mine", "other", "expected"),
    [
        (infiniband(), infiniband(), "pass"),
        (infiniband(), HALF, "pass"),
        (HALF, infiniband(), "warn"),
        (HALF, HALF, "pass"),
        (infiniband(), DEAD_IB, "skip"),  # nothing to compare with
        (infiniband(), None, "unknown"),
        (infiniband(), infiniband(rate_gbps=None), "unknown"),
        (infiniband(rate_gbps=None), infiniband(), "unknown"),
        (SDR, SDR, "unknown"),  # alike, and none of them proven
        (SDR, infiniband(), "unknown"),
        (infiniband(), SDR, "unknown"),
        (infiniband(**{**SDR_RATE, "speed": None}), DEAD_IB, "unknown"),  # kernels that name no speed
        (DEAD_IB, infiniband(), "skip"),
        (ethernet(), ethernet(), "pass"),
        (ethernet(speed_gbps=1.0), ethernet(), "warn"),
        (ethernet(speed_gbps=None), ethernet(), "unknown"),
        (ethernet(duplex="half"), ethernet(), "fail"),
        (ethernet(duplex=None), ethernet(), "unknown"),
        (ethernet(carrier=None), ethernet(), "unknown"),
        (NicPorts(rdma=None, interfaces=(interface(),)), ethernet(), "unknown"),
        (ROCE, ROCE, "pass"),
        (ROCE, JUMBO, "warn"),
        (JUMBO, ROCE, "pass"),
        (ROCE, NO_MTU, "unknown"),
        (NO_MTU, ROCE, "unknown"),
        (ethernet(mtu=1500), ethernet(mtu=9000), "pass"),  # not RoCE
    ],
)
def test_the_rate_is_that_of_its_like(mine: NicPorts, other: NicPorts | None, expected: str) -> None:
    assert outcome(evidence({A: mine, B: other}), "port-rate") == expected


def test_each_port_of_a_function_is_compared_with_the_same_port_of_the_other_card() -> None:
    def both(**second: Any) -> NicPorts:
        return NicPorts(rdma=(rdma(), rdma(number=2, **second)), interfaces=())

    assert outcome(evidence({A: both(), B: both()}), "port-rate") == "pass"
    assert outcome(evidence({A: both(rate_gbps=200.0, width=2), B: both()}), "port-rate") == "warn"
    assert outcome(evidence({A: both(**POLLING), B: both()}), "port-rate") == "pass", "port-state tells that"


def test_sdr_may_be_a_speed_that_the_kernel_has_no_name_for() -> None:
    found = one(evidence({A: SDR, B: SDR}), "port-rate")
    assert "mlx5_0/1 shows 10 Gb/s (4X SDR), as the kernel does also" in (found.actual or "")
    assert "mlxlink" in (found.hint or "")
    before, after = evidence({A: infiniband()}), infiniband(**SDR_RATE)
    again = msgspec.structs.replace(before, ports_later={A: after}, seconds_later=60.0)
    assert outcome(again, "port-errors") == "fail", "it was faster before, with a name"


ETHERNET: dict[str, Any] = {"device": {"class_code": "020000"}}
BONDED = NicPorts(rdma=(rdma("mlx5_bond_0", layer="ethernet", lid=0, sm_lid=0),), interfaces=(interface(),))


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ({A: ethernet(), B: ethernet()}, "pass"),  # none has RDMA
        ({A: ethernet(), B: ROCE}, "warn"),  # mlx5_ib has failed at one of two cards
        ({A: SET_DOWN, B: ROCE}, "skip"),  # nothing can use it
        ({A: ethernet(), B: None}, "unknown"),
        ({A: ethernet(), B: NicPorts(rdma=None, interfaces=(interface(),))}, "unknown"),
        ({A: ROCE, B: ethernet()}, "pass"),  # B's result says it
        ({A: ethernet(), B1: ROCE}, "pass"),  # another port of another card
        ({A1: BONDED, A: ethernet(), B: ROCE}, "pass"),  # the bond's RDMA device is at the card's other function
    ],
)
def test_an_ethernet_function_without_the_rdma_device_of_its_like(
    ports: dict[str, NicPorts | None], expected: str
) -> None:
    found = one(evidence(ports, **ETHERNET), "port-state")
    assert found.outcome == expected
    assert expected != "warn" or f"no RDMA device, and {B}, of the same model, has one" in (found.actual or "")


OLD = "28.36.1010"


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ((None, None), "pass"),  # the driver tells none
        ((OLD, OLD, OLD), "pass"),
        ((OLD, "28.39.1002"), "warn"),  # which of two is the right one, nothing tells
        ((OLD, "28.39.1002", "28.39.1002"), "warn"),
        (("28.39.1002", "28.39.1002", OLD), "pass"),  # the other one's result says it
        ((None, OLD), "unknown"),
        ((OLD, None), "unknown"),
    ],
)
def test_cards_of_a_model_have_one_firmware(versions: tuple[str | None, ...], expected: str) -> None:
    places = (A, B, "0000:3b:00.0")
    ports = {at: infiniband(firmware=version) for at, version in zip(places, versions, strict=False)}
    found = one(evidence(ports), "port-state")
    assert found.outcome == expected
    lost = evidence({at: None if at == places[-1] else port for at, port in ports.items()})
    assert versions[0] is None or len(ports) < 3 or one(lost, "port-state").outcome == "unknown"
    assert expected != "warn" or f"firmware {OLD}; other cards of its model have 28.39.1002" in (found.actual or "")


def test_a_card_for_guests_has_no_rdma_device_here() -> None:
    found = evidence({A: ethernet(), B: None}, **ETHERNET)
    pci = (found.host.pci[0], msgspec.structs.replace(found.host.pci[1], driver="vfio-pci"))
    host = msgspec.structs.replace(found.host, pci=pci)
    assert outcome(msgspec.structs.replace(found, host=host), "port-state") == "pass"


def test_an_infiniband_function_without_its_rdma_device_is_told() -> None:
    """Its driver holds it, and the module that makes the RDMA device is not loaded: no port, no interface."""
    found = evidence({A: NicPorts(rdma=(), interfaces=())})
    nics = tuple(msgspec.structs.replace(nic, kind="infiniband") for nic in found.host.nics)
    found = msgspec.structs.replace(found, host=msgspec.structs.replace(found.host, nics=nics))
    assert outcome(found, "port-state") == "warn"
    assert outcome(found, "port-errors") == "skip"


def test_a_virtual_device_has_no_rate_and_another_function_number_is_another_port() -> None:
    virtio = evidence({A: ethernet(speed_gbps=None, duplex="unknown")}, device={"vendor_id": "1af4"})
    assert outcome(virtio, "port-rate") == "skip"
    assert outcome(evidence({A: HALF, B1: infiniband()}), "port-rate") == "skip"
    both = evidence({A: HALF, B: infiniband()})
    other = msgspec.structs.replace(both.host.pci[1], device_id="1017")
    host = msgspec.structs.replace(both.host, pci=(both.host.pci[0], other))
    assert outcome(msgspec.structs.replace(both, host=host), "port-rate") == "skip", "another model"


# --- errors ------------------------------------------------------------------------------------------------------


def counted(**counts: int | None) -> NicPorts:
    return infiniband(counters={**ZEROS, **counts})


def framed(**counts: int | None) -> NicPorts:
    return ethernet(counters={**QUIET, **counts})


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        (counted(), "pass"),
        (counted(link_downed=1), "warn"),
        (counted(excessive_buffer_overrun_errors=1), "warn"),
        (counted(rnr_nak_retry_err=1), "warn"),
        (counted(symbol_error=120 * 24), "pass"),  # a day: 120 an hour are allowed
        (counted(symbol_error=120 * 24 + 1), "fail"),
        (counted(link_error_recovery=5 * 60 * 24), "pass"),
        (counted(link_error_recovery=5 * 60 * 24 + 1), "warn"),
        (counted(port_rcv_errors=10 * 86400 + 1), "warn"),
        (counted(port_rcv_errors=65535), "unknown"),  # the counter is full: there may have been any number
        (counted(link_error_recovery=255), "unknown"),
        (counted(link_downed=255), "warn"),
        (counted(link_downed=None), "unknown"),
        (counted(port_rcv_remote_physical_errors=9), "pass"),  # of the far end: told, not judged
        (counted(symbol_error=None), "unknown"),
        (counted(symbol_error=None, link_downed=1), "unknown"),
        (counted(symbol_error=10**6, link_downed=None), "fail"),
        (infiniband(counters={}), "skip"),  # the driver is proven to count nothing
        (framed(), "pass"),
        (framed(rx_crc_errors=8), "pass"),  # 10^12 bytes at 25 Gb/s: 8 wrong bits are within 10^-12
        (framed(rx_crc_errors=9), "warn"),
        (framed(rx_crc_errors=1, rx_bytes=0), "warn"),
        (ethernet(speed_gbps=None, counters={**QUIET, "rx_crc_errors": 9}), "unknown"),  # 8 or 800 are allowed
        (ethernet(speed_gbps=1.0, counters={**QUIET, "rx_crc_errors": 9}), "pass"),
        (ethernet(speed_gbps=10.0, counters={**QUIET, "rx_crc_errors": 9}), "warn"),
        (ethernet(speed_gbps=None, counters={**QUIET, "rx_crc_errors": 900}), "warn"),
        (framed(rx_crc_errors=None), "unknown"),
        (framed(rx_bytes=None), "unknown"),
        (framed(rx_missed_errors=50), "pass"),
        (NicPorts(rdma=None, interfaces=(interface(),)), "unknown"),
    ],
)
def test_errors_since_the_last_look(ports: NicPorts, expected: str) -> None:
    """It was a day ago, and all counters were 0."""
    before = {name: dict.fromkeys(counts, 0) for name, counts in read_of(ports).items()}
    found = looked_at(evidence({A: ports}), before, 86400.0)
    assert outcome(found, "port-errors") == expected
    same = looked_at(evidence({A: ports}), read_of(ports), 86400.0)
    if expected in ("warn", "fail"):
        assert outcome(same, "port-errors") in ("pass", "unknown"), "what was told before is not told again"


def read_of(ports: NicPorts) -> dict[str, dict[str, int]]:
    """What a validation keeps of these counters."""
    all_of: list[RdmaPort | Interface] = [*(ports.rdma or ()), *(ports.interfaces or ())]
    return {f"port {one.name}": {word: n for word, n in one.counters.items() if n is not None} for one in all_of}


@pytest.mark.parametrize("ports", [counted(link_downed=1), counted(symbol_error=10**6), framed(rx_crc_errors=1)])
def test_one_reading_alone_warns_and_two_tell(ports: NicPorts) -> None:
    assert outcome(evidence({A: ports}), "port-errors") == "warn"
    lost = Problem(what="unreadable", where="/.hosttune/commands/counted-later", why="lost")
    assert outcome(evidence({A: ports}, problems=(lost,)), "port-errors") == "unknown", "it may have shown a fault"
    assert outcome(read_again(evidence({A: ports}), read_of(ports)), "port-errors") == "pass"


def test_what_is_not_judged_is_told() -> None:
    assert "rx_missed_errors 50" in (one(evidence({A: framed(rx_missed_errors=50)}), "port-errors").actual or "")


def test_counters_of_other_drivers_are_told_and_none_of_them_is_a_pass_by_itself() -> None:
    """bnxt_re, irdma and EFA keep no counters with a limit: what passes then is the interface alone."""
    port = rdma("bnxt_re0", layer="ethernet", counters={"rx_roce_discards": 7, "rx_roce_errors": 0})
    found = one(evidence({A: NicPorts(rdma=(port,), interfaces=(interface(),))}), "port-errors")
    assert found.outcome == "pass"
    said = "bnxt_re0/1: rx_roce_discards 7; the driver of bnxt_re0/1 keeps none of the RDMA counters that have a limit"
    assert found.actual == said
    alone = one(evidence({A: NicPorts(rdma=(port,), interfaces=())}), "port-errors")
    assert (alone.outcome, alone.actual) == (
        "skip", f"its driver keeps no counters of its ports that have a limit: {said}"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (counted(), counted(), "pass"),
        (counted(link_downed=1), counted(link_downed=1), "warn"),
        (counted(), counted(link_downed=1), "fail"),
        (counted(), counted(local_link_integrity_errors=1), "fail"),
        (counted(), counted(rnr_nak_retry_err=1), "fail"),
        (counted(), counted(symbol_error=2), "pass"),
        (counted(), counted(symbol_error=3), "fail"),  # 120 an hour are 2 in a minute
        (counted(), counted(port_rcv_errors=601), "warn"),
        (counted(symbol_error=900), counted(symbol_error=3), "fail"),  # cleared in between: they are new
        (counted(), counted(symbol_error=None), "unknown"),
        (counted(), infiniband(counters={}), "unknown"),
        (counted(), None, "unknown"),
        (framed(), framed(carrier_down_count=2), "fail"),
        (counted(), infiniband(**POLLING), "fail"),  # the link is gone, whatever was counted
        (counted(), infiniband(state="init"), "fail"),
        (counted(), HALF, "fail"),  # it came back with half of its lanes
        (counted(), infiniband(rate_gbps=None), "unknown"),
        (counted(), infiniband(phys_state=None), "unknown"),
        (HALF, counted(), "pass"),
        (framed(), UNPLUGGED, "fail"),
        (framed(), framed(), "pass"),
        (SET_DOWN, SET_DOWN, "pass"),
        (framed(), framed(rx_crc_errors=1, rx_bytes=10**12 + 1000), "pass"),
        (framed(), framed(rx_crc_errors=2, rx_bytes=10**12 + 1000), "warn"),
    ],
)
def test_errors_that_came_while_benchmarks_ran(before: NicPorts, after: NicPorts | None, expected: str) -> None:
    later = {} if after is None else {A: after}
    assert outcome(evidence({A: before}, ports_later=later, seconds_later=60.0), "port-errors") == expected


def lost(count: int, first: float, last: float, least: float | None = None) -> KernelEvent:
    return KernelEvent(
        kind="link-down", address=A, seconds=first, last_seconds=last, least_seconds_apart=least, count=count
    )


HOUR = 3600.0


@pytest.mark.parametrize(
    ("changes", "downs", "expected"),
    [
        ({"events": (lost(2, HOUR, 2 * HOUR),)}, 2, "warn"),
        ({"events": (lost(2, HOUR, 8 * HOUR),)}, 2, "pass"),  # seven hours apart
        ({"events": (lost(3, HOUR, 8 * HOUR),)}, 3, "warn"),  # two of the three are within 6 hours
        ({"events": (lost(1, HOUR, HOUR),)}, 1, "pass"),
        ({"events": (lost(3, HOUR, 20 * HOUR, 60.0),)}, 3, "warn"),  # twice in a minute, and once the day after
        ({"events": (lost(3, HOUR, 20 * HOUR, 9 * HOUR),)}, 3, "pass"),
        ({}, 6, "warn"),  # the log of a driver that writes no such line: 6 times in 24 hours are twice in 6
        ({"uptime_seconds": 5 * HOUR}, 4, "pass"),  # soon after the boot: set up, renamed, given its MTU
        ({"events": None}, 1, "pass"),  # once is no flapping, whenever it was
        ({"events": None, "events_since": None}, 2, "unknown"),
        ({"events_links": False}, 2, "unknown"),  # a capture whose log has no lost links
        ({"events_unread": 1}, 2, "unknown"),
        ({"events_since": 20 * HOUR}, 2, "unknown"),
        ({"events_since": 10 * HOUR}, 2, "pass"),  # the last 6 of 24 hours are known
        ({}, None, "pass"),
        ({"events_links": False}, None, "unknown"),
    ],
)
def test_flapping(changes: dict[str, Any], downs: int | None, expected: str) -> None:
    counters = {name: count for name, count in QUIET.items() if name != "carrier_down_count"}
    ports = ethernet(counters=counters if downs is None else {**counters, "carrier_down_count": downs})
    health = msgspec.structs.replace(WHOLE, **changes)
    assert outcome(evidence({A: ports}, health=health), "port-errors") == expected


# Of the kernel: drivers/net/ethernet/{mellanox/mlx5/core/en_main.c,intel/i40e/i40e_main.c,intel/igb/igb_main.c,
# broadcom/tg3.c}, printed by netdev_info with driver, address and name.
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("mlx5_core 0000:19:00.0 ens1f0np0: Link down", ["link-down"]),
        ("i40e 0000:19:00.0 eno1: NIC Link is Down", ["link-down"]),
        ("igb 0000:19:00.0 eno1: igb: eno1 NIC Link is Down", ["link-down"]),
        ("tg3 0000:19:00.0 eno1: Link is down", ["link-down"]),
        ("mlx5_core 0000:19:00.0 ens1f0np0: Link up", []),
        ("pcieport 0000:19:00.0: pciehp: Slot(12): Link Down", ["slot-event"]),  # a PCIe link
        ("systemd[1]: x 0000:19:00.0 eno1: Link down", []),
    ],
)
def test_lost_links_in_the_kernel_log(line: str, found: list[str]) -> None:
    events = parse_events(parse_dmesg(f"[   12.500000] {line}\n").lines)
    assert [event.kind for event in events] == found
    assert all(event.address == A for event in events)


def test_how_close_two_losses_were_is_kept_beside_the_first_and_the_last() -> None:
    down = "mlx5_core 0000:19:00.0 ens1f0np0: Link down"
    (event,) = parse_events([(10.0, down), (None, down), (9000.0, down), (9040.0, down), (90000.0, down)])
    assert (event.count, event.seconds, event.last_seconds, event.least_seconds_apart) == (5, 10.0, 90000.0, 40.0)


# --- reading -----------------------------------------------------------------------------------------------------


@cache
def h100() -> Files:
    """The real class tree, its devices at made-up PCI addresses in their order."""
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    with tarfile.open(CASE) as tar:
        for member in (member for member in tar.getmembers() if member.isfile()):
            _, device, rest = member.name.split("/", 2)
            read = tar.extractfile(member)
            assert read is not None
            files[f"/sys/devices/pci0000:00/{address(device)}/infiniband/{device}/{rest}"] = read.read()
    for device in {path.split("/")[6] for path in files}:
        folder = f"/sys/devices/pci0000:00/{address(device)}"
        files |= {f"{folder}/{name}": text for name, text in FUNCTION.items()}
        links[f"/sys/class/infiniband/{device}"] = f"{folder}/infiniband/{device}"
        links[f"/sys/bus/pci/devices/{address(device)}"] = folder
    dirs = {"/".join(path.split("/")[:depth]) for path in files for depth in range(2, path.count("/") + 1)}
    return Files(files, links, frozenset(dirs))


FUNCTION = {"vendor": b"0x15b3\n", "device": b"0x1021\n", "class": b"0x020700\n"}


def address(device: str) -> str:
    number = device.rpartition("_")[2]
    return f"0000:{10 + int(number):02d}:00.0" if device != "mlx5_bond_0" else "0000:30:00.0"


def test_a_real_class_tree_is_read() -> None:
    found = gather(h100().system())
    ports = found.ports or {}
    assert len(ports) == 9
    port = (ports["0000:11:00.0"].rdma or ())[0]
    assert (port.name, port.layer, port.state, port.phys_state) == ("mlx5_1/1", "infiniband", "active", "linkup")
    assert (port.rate_gbps, port.width, port.speed, port.firmware) == (400.0, 4, "NDR", "28.41.1000")
    assert port.counters["link_downed"] == 255
    assert port.counters["rnr_nak_retry_err"] is None, "not recorded, and not proven to be absent"
    bond = (ports["0000:30:00.0"].rdma or ())[0]
    assert (bond.layer, bond.rate_gbps, bond.width) == ("ethernet", 200.0, 2)
    result = one(found, "port-errors", "0000:11:00.0")
    assert result.outcome == "unknown", "no hardware counters, no time since boot"
    assert "mlx5_1/1: link_downed 255 or more since boot" in (result.actual or "")
    assert outcome(found, "port-state", "0000:11:00.0") == "unknown", "its LID is not in the tree"


def test_the_second_look_reads_the_counters_again() -> None:
    """As a validation from level 1 on does after its benchmarks."""
    host = h100()
    at = f"/sys/devices/pci0000:00/{address('mlx5_0')}/infiniband/mlx5_0/ports/1/counters/link_downed"
    before = gather(host.system())
    assert host.files[at] == b"0"
    same = one(look_again(host.system(), before, 60.0), "port-errors", address("mlx5_0"))
    grown = one(look_again(host.put({at: "1\n"}).system(), before, 60.0), "port-errors", address("mlx5_0"))
    assert (same.outcome, grown.outcome) == ("unknown", "fail")
    assert "mlx5_0/1: link_downed 1, of which 1 in 60 s of benchmarks" in (grown.actual or "")


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("rate", "400 Gb/sec (4X NDR)", "rate_gbps", 400.0),
        ("rate", "2.5 Gb/sec (1X SDR)", "rate_gbps", 2.5),
        ("rate", "56 Gb/sec (4X FDR)", "rate_gbps", 56.0),
        ("rate", "400", "rate_gbps", None),
        ("rate", "-400 Gb/sec (4X NDR)", "rate_gbps", None),
        ("state", "4: ACTIVE", "state", "active"),
        ("state", "EVITCA :4", "state", None),
        ("phys_state", "5: LinkUp", "phys_state", "linkup"),
        ("lid", "0x3a4", "lid", 932),
        ("lid", "NaN", "lid", None),
        ("link_layer", "Ethernet", "layer", "ethernet"),
        ("link_layer", "Unspecified", "layer", "unspecified"),
        ("link_layer", "ethernet ", "layer", None),
    ],
)
def test_files_of_a_port(name: str, text: str, field: str, value: object) -> None:
    at = f"/sys/devices/pci0000:00/{address('mlx5_1')}/infiniband/mlx5_1/ports/1/{name}"
    system = h100().put({at: f"{text}\n"}).system()
    nic = Host(nics=(Nic(address=address("mlx5_1")),))
    ports = read_ports(Reader(system), nic)[address("mlx5_1")].rdma or ()
    assert getattr(ports[0], field) == value


def test_counters_that_are_told_are_read_where_the_driver_keeps_them() -> None:
    at = f"/sys/devices/pci0000:00/{address('mlx5_1')}/infiniband/mlx5_1/ports/1/hw_counters"
    nic = Host(nics=(Nic(address=address("mlx5_1")),))
    for text, kept in (("7\n", {"rx_roce_discards": 7}), ("?\n", {})):
        host = h100().put({f"{at}/rx_roce_discards": text})
        ports = read_ports(Reader(host.system()), nic)[address("mlx5_1")].rdma or ()
        assert {name: ports[0].counters.get(name) for name in ports[0].counters if "roce_d" in name} == kept


def test_two_places_show_that_an_ethernet_nic_has_no_rdma() -> None:
    """Its own folder, and the class folder: of a capture that lists nothing as absent, both are asked."""
    folder = "/sys/devices/pci0000:00/0000:40:00.0"
    nic = Host(nics=(Nic(address="0000:40:00.0", kind="ethernet", interfaces=("eth0",)),))
    whole = h100().put({f"{folder}/net/eth0/flags": "0x1003\n"})
    whole = listed_there(whole, folder)

    def rdma_of(host: Files) -> object:
        return read_ports(Reader(host.system()), nic)["0000:40:00.0"].rdma

    assert rdma_of(whole) == ()
    unread = {path: to for path, to in whole.links.items() if not path.startswith("/sys/class/infiniband/")}
    assert rdma_of(Files(whole.files, unread, whole.dirs - {"/sys/class/infiniband"})) is None
    without = frozenset(path for path in whole.dirs if not path.startswith(f"{folder}/net"))
    assert rdma_of(Files({**h100().files, f"{folder}/vendor": b"0x14e4\n"}, whole.links, without)) is None


def listed_there(host: Files, folder: str) -> Files:
    """The host with a link of its list of functions to a folder that it has got."""
    links = {**host.links, f"/sys/bus/pci/devices/{folder.rpartition('/')[2]}": folder}
    return Files(host.files, links, host.dirs | {folder, f"{folder}/net", f"{folder}/net/eth0"})


def test_a_device_whose_ports_are_lost_has_unknown_ports() -> None:
    whole = h100()
    files = {path: data for path, data in whole.files.items() if "/mlx5_1/ports/" not in path}
    dirs = frozenset(path for path in whole.dirs if "/mlx5_1/ports" not in path)
    found = gather(Files(files, whole.links, dirs).system())
    assert outcome(found, "port-state", address("mlx5_1")) == "unknown"
