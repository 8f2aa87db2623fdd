"""Ports against what they support: Ethernet as ethtool, InfiniBand as smpquery tells it.

The texts are outputs of the tools (tests/cases/ports/PROVENANCE.md); faults are made by changing one line of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from unit.rules.test_checks_portmodules import (
    FAST,
    NAME,
    NO_LINK,
    SLOW,
    UNPLUGGED,
    Asked,
    changed,
    judged,
    outcome,
    told,
)
from unit.rules.test_checks_ports import DEAD_IB, A, ethernet, infiniband, one, rdma
from unit.rules.test_checks_ports import evidence as ports_evidence

from hosttune.discovery.portdetails import parse_link_modes
from hosttune.discovery.portinfo import parse_port_info, read_port_info, strip_port_info
from hosttune.errors import CommandFailed
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.model.host import Host, Nic
from hosttune.model.ports import NicPorts, PortDetail, PortInfo

CASES = Path(__file__).parents[2] / "cases" / "ports" / "portinfo"
HDR, HDR_AT_EDR = (CASES.joinpath(f"ibsim-{name}.txt").read_text() for name in ("hdr", "edr"))

# --- Ethernet -------------------------------------------------------------------------------------------------------


def test_the_rates_of_ethtool() -> None:
    slow = parse_link_modes(SLOW)
    assert slow.supported_gbps == (1.0, 10.0, 25.0)
    assert (slow.advertised_gbps, slow.partner_gbps, slow.speed_gbps) == ((1.0, 10.0), None, 10.0)
    down = parse_link_modes(NO_LINK)
    assert (down.supported_gbps, down.advertised_gbps, down.speed_gbps) == ((0.01, 0.1, 1.0), (0.01, 0.1, 1.0), None)
    assert parse_link_modes("\tAdvertised link modes:  Not reported\n").advertised_gbps == ()
    assert parse_link_modes("").supported_gbps is None
    # The one rate whose name has no duplex (net/ethtool/common.c, link_mode_names).
    fec = parse_link_modes("\tSupported link modes:   10000baseKR/Full\n\t                        10000baseR_FEC\n")
    assert fec.supported_gbps == (10.0,)


@pytest.mark.parametrize(
    ("modes", "speed", "expected"),
    [
        (FAST, 10.0, "pass"),
        (SLOW, 10.0, "warn"),
        (SLOW, None, "unknown"),
        (changed(FAST, "Speed", "25000Mb/s"), 25.0, "unknown"),  # more than it supports
        (changed(FAST, "Speed", None), 10.0, "unknown"),
        (FAST.replace("10000baseT/Full", "garbled"), 10.0, "unknown"),
        ("", 10.0, "unknown"),
    ],
)
def test_a_rate_below_what_the_port_supports_is_told(modes: str, speed: float | None, expected: str) -> None:
    assert outcome("port-capability", told(modes=modes), ethernet(speed_gbps=speed)) == expected


def test_what_both_ends_offer_is_told() -> None:
    assert judged("port-capability", told(modes=SLOW))[1] == (
        f"{NAME} runs at 10 Gb/s and supports 25; it offers at most 10; what its partner can is not known"
    )
    partner = SLOW + "\tLink partner advertised link modes:  10000baseSR/Full\n"
    assert judged("port-capability", told(modes=partner))[1].endswith("; its partner offers at most 10")


@pytest.mark.parametrize(
    ("detail", "ports", "expected"),
    [
        (None, None, "unknown"),
        (told(modes_error="not installed"), None, "skip"),
        (told(modes_error="netlink error: Operation not supported"), None, "skip"),
        (told(modes=NO_LINK), UNPLUGGED, "skip"),
        (told(modes=FAST), ethernet(carrier=None), "unknown"),
        (told(modes=FAST), NicPorts(rdma=(), interfaces=None), "unknown"),
        (told(modes=FAST), infiniband(), "unknown"),  # not asked
        (
            told(modes=FAST.replace("1000baseT/Full\n\t                        10000baseT/Full", "Not reported", 1)),
            None,
            "skip",
        ),
    ],
)
def test_a_port_that_tells_no_capability(detail: PortDetail | None, ports: NicPorts | None, expected: str) -> None:
    assert outcome("port-capability", detail, ports) == expected


# --- InfiniBand: what the tool tells --------------------------------------------------------------------------------


def card(text: str, widths: str = "1X or 2X or 4X") -> str:
    """The text with the widths of a card; the simulator's ports have all that there are."""
    return line(text, "LinkWidthSupported", widths)


def line(text: str, name: str, value: str | None) -> str:
    """The text with another value in one line; None: without the line."""
    lines = text.splitlines()
    [at] = [n for n, row in enumerate(lines) if row.startswith(f"{name}:")]
    lines[at : at + 1] = [] if value is None else [f"{name}:{'.' * (32 - len(name))}{value}"]
    return "\n".join(lines) + "\n"


_TO_NDR = "14.0625 Gbps or 25.78125 Gbps or 53.125 Gbps or 106.25 Gbps"
NDR = line(line(card(HDR), "LinkSpeedExtSupported", _TO_NDR), "LinkSpeedExtEnabled", _TO_NDR)
XDR = NDR + "LinkSpeedExtSupported2:..........212.5 Gbps\nLinkSpeedExtEnabled2:............212.5 Gbps\n"
_SIGNALS = {"FDR": "14.0625 Gbps", "EDR": "25.78125 Gbps", "HDR": "53.125 Gbps", "NDR": "106.25 Gbps"}


def running(text: str, width: int, speed: str) -> str:
    """The text of a port that has this width and this speed."""
    text = line(text, "LinkWidthActive", f"{width}X")
    if speed == "XDR":
        none = line(text, "LinkSpeedExtActive", "No Extended Speed")
        return none + "LinkSpeedExtActive2:.............212.5 Gbps\n"
    return line(text, "LinkSpeedExtActive", _SIGNALS[speed])


SPEEDS = (2.5, 5.0, 10.0, 14.0, 25.0, 50.0, 100.0, 200.0)


def test_speeds_and_lanes_are_read_as_the_kernel_counts_them() -> None:
    found = parse_port_info(HDR)
    assert found == PortInfo(
        widths=(1, 2, 4, 8, 12), lane_gbps=SPEEDS[:6], widths_enabled=(1, 4), lane_gbps_enabled=SPEEDS[:6], gbps=200.0
    )
    assert parse_port_info(HDR_AT_EDR).gbps == 100.0
    assert parse_port_info(running(XDR, 4, "XDR")).gbps == 800.0
    fdr10 = line(line(HDR, "LinkSpeedExtActive", "No Extended Speed"), "LinkWidthActive", "1X")
    assert parse_port_info(fdr10).gbps == 10.0
    older = line(fdr10, "LinkSpeedActive", "Extended speed")  # it has a speed that the tool does not print
    assert parse_port_info(older).gbps is None
    assert parse_port_info(HDR_AT_EDR).lane_gbps_enabled == (2.5, 5.0, 10.0, 25.0)
    assert (parse_port_info(NDR).lane_gbps, parse_port_info(XDR).lane_gbps) == (SPEEDS[:7], SPEEDS)
    old = line(line(HDR, "LinkSpeedExtSupported", "0"), "LinkSpeedExtEnabled", "Extended link speeds disabled")
    assert (parse_port_info(old).lane_gbps, parse_port_info(old).lane_gbps_enabled) == (SPEEDS[:3], SPEEDS[:3])
    assert parse_port_info(line(card(HDR, "4X (IBA extension)"), "LinkWidthEnabled", "4X")).widths == (4,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LinkSpeedSupported", None),
        ("LinkSpeedSupported", "2.5 Gbps or undefined (9)"),
        ("LinkSpeedExtSupported", None),
        ("LinkSpeedExtSupported", "14.0625 Gbps or 25.78125 Gbps or undefined (19)"),
        ("LinkSpeedExtSupported", "14.0625 Gbps or 25.7"),
        ("CapabilityMask2", None),
        ("CapabilityMask2", "0x830"),  # it has speeds from XDR on, and this tool does not print them
        ("CapabilityMask2", "?"),
        ("CapabilityMask2", "0x3?"),
        ("LinkSpeedExtEnabled", None),
        ("LinkSpeedEnabled", None),
    ],
)
def test_a_list_that_is_not_whole_is_unknown(name: str, value: str | None) -> None:
    assert parse_port_info(line(HDR, name, value)).lane_gbps is None


def test_widths_that_may_be_cut_short_are_unknown() -> None:
    assert parse_port_info("").widths is None
    assert parse_port_info(line(HDR, "LinkWidthEnabled", None)).widths is None


def test_a_speed_without_a_name_is_told_apart_from_one_that_was_not_read() -> None:
    assert parse_port_info(line(HDR, "LinkSpeedExtSupported", "53.125 Gbps or undefined (20)")).unnamed
    assert parse_port_info(line(HDR, "CapabilityMask2", "0x830")).unnamed
    assert not parse_port_info(line(HDR, "CapabilityMask2", None)).unnamed
    assert not parse_port_info(running(XDR, 4, "XDR")).unnamed


def test_neither_keys_nor_gids_are_recorded() -> None:
    kept = strip_port_info(HDR)
    assert "GidPrefix" in HDR
    assert not {"Mkey", "GidPrefix", "Lid", "SMLid", "CapMask"} & {row.partition(":")[0] for row in kept.splitlines()}
    assert parse_port_info(kept) == parse_port_info(HDR)
    assert strip_port_info('{"error": "not installed"}') == '{"error": "not installed"}'


def test_infiniband_ports_are_asked_at_the_port_itself(tmp_path: Path) -> None:
    """By the direct route "0", so that no subnet manager is needed, and at no other address of the fabric."""
    for name, layer in (("mlx5_0", "InfiniBand"), ("mlx5_1", "Ethernet")):
        at = tmp_path / "sys/class/infiniband" / name
        (at / "ports/1").mkdir(parents=True)
        (at / "ports/1/link_layer").write_text(f"{layer}\n")
        (tmp_path / f"sys/bus/pci/devices/{A}").mkdir(parents=True, exist_ok=True)
        (at / "device").symlink_to(f"../../../bus/pci/devices/{A}")
    host = Host(nics=(Nic(address=A),))
    command = "smpquery -C mlx5_0 -P 1 -D portinfo 0 1"
    system = Asked(tmp_path, {command: HDR})
    assert read_port_info(Reader(system), host) == {"mlx5_0/1": parse_port_info(HDR)}
    assert system.asked == [tuple(command.split())]
    for reason, output, error in (
        ("not installed", "", "not installed"),
        # What smpquery writes to stderr where ib_umad is not loaded, each time with another number of its process.
        ("exit status 255", "ibwarn: [3554] get_abi_version: can't read ABI version from"
         " /sys/class/infiniband_mad/abi_version (No such file or directory): is ib_umad module loaded?\n"
         "ibwarn: [3554] mad_rpc_open_port: can't open UMAD port (mlx5_0:1)\n",
         "mad_rpc_open_port: can't open UMAD port (mlx5_0:1)"),
    ):  # fmt: skip
        no = CommandFailed(tuple(command.split()), reason, output)
        assert read_port_info(Reader(Asked(tmp_path, {command: no})), host) == {"mlx5_0/1": PortInfo(error=error)}
    commands = tmp_path / ".hosttune/commands"
    commands.mkdir(parents=True)
    answer = commands / "smpquery-portinfo-mlx5_0-1"
    capture = Reader(Capture(str(tmp_path)))
    assert read_port_info(capture, host) == {"mlx5_0/1": PortInfo()}
    answer.write_text(HDR)
    assert read_port_info(Reader(Capture(str(tmp_path))), host) == {"mlx5_0/1": parse_port_info(HDR)}
    answer.write_text(json.dumps({"error": "not installed"}))
    assert read_port_info(Reader(Capture(str(tmp_path))), host) == {"mlx5_0/1": PortInfo(error="not installed")}


# --- InfiniBand: how it is judged -----------------------------------------------------------------------------------


def judged_ib(text: str | PortInfo | None, *, inside: bool = False, **port: Any) -> tuple[str, str]:
    if isinstance(text, str) and "LinkSpeedExtActive" in text and port.get("speed") in (*_SIGNALS, "XDR"):
        text = running(text, port["width"], port["speed"])
    info = parse_port_info(text) if isinstance(text, str) else text
    infos = {"mlx5_0/1": info} if info is not None else {}
    found = ports_evidence({A: infiniband(**port)}, port_info=infos, inside=inside)
    result = one(found, "port-capability")
    return result.outcome, result.actual or ""


def rate(gbps: float, width: int, speed: str) -> dict[str, Any]:
    return {"rate_gbps": gbps, "width": width, "speed": speed}


@pytest.mark.parametrize(
    ("text", "port", "expected"),
    [
        (NDR, rate(400.0, 4, "NDR"), "pass"),
        (XDR, rate(800.0, 4, "XDR"), "pass"),
        (card(HDR), rate(200.0, 4, "HDR"), "pass"),
        (NDR, rate(100.0, 4, "EDR"), "warn"),
        (NDR, rate(100.0, 1, "NDR"), "warn"),  # three lanes are lost
        (NDR, rate(200.0, 4, "HDR"), "skip"),  # all that an NDR200 card has, half of what an NDR card has
        (card(HDR), rate(100.0, 2, "HDR"), "skip"),
        (card(HDR, "1X or 4X"), rate(100.0, 4, "EDR"), "warn"),  # without two lanes there are no such cards
        (card(HDR), rate(400.0, 4, "NDR"), "unknown"),  # more than it supports
        (NDR, rate(10.0, 4, "SDR"), "unknown"),  # what an old kernel shows for a speed without a name
        (NDR, {"rate_gbps": None, "width": None, "speed": None}, "unknown"),
        (line(NDR, "LinkWidthSupported", None), rate(400.0, 4, "NDR"), "unknown"),
        (line(NDR, "LinkSpeedExtSupported", None), rate(400.0, 4, "NDR"), "unknown"),
        ("", rate(400.0, 4, "NDR"), "unknown"),
        (None, rate(400.0, 4, "NDR"), "unknown"),
        (PortInfo(), rate(400.0, 4, "NDR"), "unknown"),
        (PortInfo(error="not installed"), rate(400.0, 4, "NDR"), "skip"),
        (PortInfo(error="smpquery: iberror: failed: Failed to open"), rate(400.0, 4, "NDR"), "unknown"),
        (NDR, {"phys_state": None}, "unknown"),
    ],
)
def test_a_port_is_judged_by_what_it_surely_supports(text: Any, port: dict[str, Any], expected: str) -> None:
    assert judged_ib(text, **port)[0] == expected


def test_what_a_slow_port_supports_and_has_enabled_is_told() -> None:
    text = line(card(HDR_AT_EDR, "1X or 4X"), "LinkWidthEnabled", "1X or 4X")
    assert judged_ib(text, **rate(100.0, 4, "EDR")) == (
        "warn",
        "mlx5_0/1 runs at 100 Gb/s (4X EDR) and supports 4 lanes and 50 Gb/s on each; at most 100 is enabled",
    )


def test_a_port_without_a_link_and_a_virtual_function_of_a_guest_are_not_judged() -> None:
    found = ports_evidence({A: DEAD_IB}, port_info={"mlx5_0/1": parse_port_info(NDR)})
    assert one(found, "port-capability").outcome == "skip"
    refused = PortInfo(error="mad_rpc_open_port: can't open UMAD port (mlx5_0:1)")
    assert judged_ib(refused, inside=True)[0] == "unknown"  # a whole card of a guest, asked without root
    assert judged_ib(None, inside=True)[0] == "unknown"
    found = ports_evidence({A: infiniband()}, device={"device_id": "101e"}, port_info={}, inside=True)
    assert one(found, "port-capability").outcome == "skip"  # a virtual function


def test_what_to_do_is_said_of_an_answer_that_is_not_there() -> None:
    def hint(info: PortInfo) -> str:
        found = ports_evidence({A: infiniband()}, port_info={"mlx5_0/1": info})
        return one(found, "port-capability").hint or ""

    assert hint(PortInfo(error="mad_rpc_open_port: can't open UMAD port (mlx5_0:1)")) == (
        "as root: modprobe ib_umad; smpquery -C mlx5_0 -P 1 -D portinfo 0 1"
    )
    assert hint(PortInfo(error="no answer within 10 s")) == "as root: smpquery -C mlx5_0 -P 1 -D portinfo 0 1"
    assert hint(PortInfo(unnamed=True)) == "a newer infiniband-diags; XDR needs 49 or newer"


def test_each_port_of_a_card_counts() -> None:
    two = NicPorts(rdma=(rdma(), rdma(number=2, rate_gbps=100.0, speed="EDR")), interfaces=())
    infos = {
        "mlx5_0/1": parse_port_info(running(NDR, 4, "NDR")),
        "mlx5_0/2": parse_port_info(running(NDR, 4, "EDR")),
    }
    result = one(ports_evidence({A: two}, port_info=infos), "port-capability")
    assert (result.outcome, result.actual) == (
        "warn",
        "mlx5_0/2 runs at 100 Gb/s (4X EDR) and supports 4 lanes and 100 Gb/s on each",
    )
    lost = NicPorts(rdma=None, interfaces=ethernet(speed_gbps=10.0).interfaces)
    found = ports_evidence({A: lost}, port_details={NAME: told(modes=FAST)})
    assert one(found, "port-capability").outcome == "unknown"
